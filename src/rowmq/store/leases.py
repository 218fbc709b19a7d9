"""Leases: who owns which partition of a group, and what the owner writes there.

The one idea: a group's place in a partition and the lease on it are one row of `offsets`, and only
the lease's owner moves that place. So the owner may keep it in memory, decide in Python, and write
what changed; every such write names the owner, the lease's epoch and the version it started from,
and changes nothing if any of them is not the row's any more.

    register ─► survey ─► acquire ─► find ─► advance (deliver) ─► advance (settle) ─► ... ─► leave
                  ▲ every second or so: who is here, what is free, what is my share

A lease has no time of its own: it lives as long as its owner's row in `subscribers`, which a
heartbeat renews. A subscriber that has expired is swept by whoever sees it first: its leases become
free, with a new epoch. An id of a subscriber is never given twice, so one that wakes up after that
finds itself gone, and can never be mistaken for its successor.
"""

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, NamedTuple

from rowmq.errors import DatabaseError, Locked
from rowmq.progress import Progress, Range, State, Stored
from rowmq.store.dialect import Dialect, as_text
from rowmq.store.groups import ADOPT, Groups, Readers
from rowmq.store.statement import Operation, Row, Statement
from rowmq.store.topics import Span, Topics

__all__ = [
    "Change",
    "Conflict",
    "Counters",
    "Found",
    "Leases",
    "Loaded",
    "Member",
    "Survey",
    "Work",
]

FREE = 0
"""The owner of a partition that nobody owns."""

FOUND_MAX = 1_000
"""How many partitions with work one look finds."""

FREE_MAX = 20_000
"""How many free partitions a survey looks at."""


class Conflict(DatabaseError):
    """A write was refused: the row is not at the epoch and version that its writer knows."""


class Member(NamedTuple):
    """A subscriber of a group, as the database knows it."""

    group_id: int
    subscriber_id: int


class Survey(NamedTuple):
    """How a group's partitions are shared out, as one member sees it."""

    alive: bool
    """Whether this member's heartbeat was in time."""
    subscribers: int
    rank: int
    """How many of the living subscribers stand before this one."""
    dead: list[int]
    """Subscribers that have expired, or that leases name and nobody knows."""
    leased: int
    owned: int
    newest: int
    """The highest id of a partition of the topic: if it rises, there are new ones."""
    free: list[int]


class Counters(NamedTuple):
    """A partition: its key, and what its log holds."""

    partition_id: int
    key: str
    first_offset: int
    next_offset: int
    largest_bytes: int


class Loaded(NamedTuple):
    """A group's place in a partition, locked."""

    partition_id: int
    leased_by: int
    epoch: int
    version: int
    stored: Stored


class Work(NamedTuple):
    """An owned partition that has something to look at."""

    partition_id: int
    epoch: int
    next_offset: int
    largest_bytes: int
    touched: bool


class Found(NamedTuple):
    """What a look at the owned partitions gave, and the database's time."""

    now: int
    alive: bool
    newest: int
    work: list[Work]


class Change(NamedTuple):
    """What an owner writes for one partition: from what it knows, to what it is to be."""

    partition_id: int
    epoch: int
    version: int
    before: Stored
    after: Stored


class Leases:
    """The operations of subscribers, for one dialect."""

    beat_sql: ClassVar[str] = """
        UPDATE {subscribers} SET heartbeat_at = {now}, expires_at = {now} + ?
        WHERE id = ? AND expires_at > {now}"""

    finds_more: ClassVar[bool] = False
    """Whether `advance` can also look for more, in the same round trip."""

    def __init__(self, dialect: Dialect, topics: Topics, groups: Groups) -> None:
        self.dialect = dialect
        self.topics = topics
        self.groups = groups

    # --- subscribers ----------------------------------------------------------------------------

    def register(
        self, topic: str, group: str, *, start: str | None, name: str, lease_us: int
    ) -> Operation[Member]:
        """Enter a group, which is created if `start` says where it begins."""
        if start is not None:
            yield from self.groups.create(topic, group, start=start)
        yield from self.groups.assign(topic, group, Readers.SUBSCRIBERS)
        group_id = yield from self.groups.find(topic, group, keep=True)
        params = (group_id, lease_us, self.dialect.text(name))
        id = yield from self.dialect.insert_id("leases.register", REGISTER, params)
        return Member(group_id, id)

    def beat(self, member: Member, *, lease_us: int) -> Operation[bool]:
        """Renew all leases of a subscriber: one row. False if it has expired, or was swept.

        `Locked` if somebody has its row: other heartbeats are not to wait for that.
        """
        id = member.subscriber_id
        beat = Statement("leases.beat", self.dialect.sql(self.beat_sql), (lease_us, id), sole=True)
        if (yield beat).rowcount == 1:
            return True
        return (yield from self.is_locked(member))

    def is_locked(self, member: Member) -> Operation[bool]:
        """`Locked` if a subscriber that could not be renewed is alive; False if it is dead."""
        alive = Statement("leases.alive", self.dialect.sql(ALIVE), (member.subscriber_id,))
        if (yield alive).rows:
            raise Locked("the subscriber's row is locked by somebody else")
        return False

    def leave(self, member: Member) -> Operation[None]:
        """Free all leases of a subscriber and forget it."""
        yield Statement("leases.free", self.dialect.sql(FREE_ALL), member)
        params = (member.subscriber_id,)
        yield Statement("leases.leave", self.dialect.sql(LEAVE), params)

    def sweep(self, group_id: int, dead: Sequence[int]) -> Operation[None]:
        """Free the leases of subscribers that are dead, and forget those.

        A place that is locked, by an open transaction of the dead one perhaps, is left for later.
        """
        for subscriber_id in dead:
            member = Member(group_id, subscriber_id)
            sql = self.dialect.sql(ALIVE)
            if (yield Statement("leases.alive", sql, (subscriber_id,))).rows:
                continue
            owned = yield Statement("leases.lock_owned", self.dialect.sql(LOCK_OWNED), member)
            yield from self.release(member, [row[0] for row in owned])
            if not (yield Statement("leases.owned", self.dialect.sql(OWNED), member)).rows:
                yield from self.forget(subscriber_id)

    def forget(self, subscriber_id: int) -> Operation[None]:
        """Delete a dead subscriber's row, unless that is locked: then it is for the next sweep."""
        sql = self.dialect.sql(LOCK_SUBSCRIBER)
        if (yield Statement("leases.lock_subscriber", sql, (subscriber_id,))).rows:
            yield Statement("leases.leave", self.dialect.sql(LEAVE), (subscriber_id,))

    # --- sharing out ----------------------------------------------------------------------------

    def survey(self, member: Member, topic: str) -> Operation[Survey]:
        """Who is here, what is free, and what is mine."""
        group_id, subscriber_id = member
        sql, params = self.dialect.sql(SURVEY), (self.dialect.text(topic), group_id)
        result = yield Statement("leases.survey", sql, params, sole=True)
        living = {id for id, alive in result if id and alive}
        known = {id for id, _ in result if id}
        (newest,) = [newest for id, newest in result if not id]
        sql = self.dialect.sql(LIST_FREE)
        result = yield Statement("leases.list_free", sql, (group_id, group_id, FREE_MAX), sole=True)
        owners = {owner: int(count) for owner, count, free in result if not free}
        return Survey(
            alive=subscriber_id in living,
            subscribers=len(living),
            rank=sum(1 for id in living if id < subscriber_id),
            dead=sorted((known | set(owners)) - living),
            leased=sum(owners.values()),
            owned=owners.get(subscriber_id, 0),
            newest=newest,
            free=sorted(id for id, _, free in result if free),
        )

    def adopt(self, topic: str, group_id: int) -> Operation[None]:
        """Give the group a place in every partition that it has none in: at its beginning."""
        yield from self.groups.keep(group_id)
        params = (group_id, self.dialect.text(topic), group_id)
        yield Statement("leases.adopt", self.dialect.sql(ADOPT), params)

    def acquire(
        self, member: Member, partition_ids: Sequence[int]
    ) -> Operation[list[tuple[Loaded, Counters]]]:
        """Take the lease of those partitions that are free and that nobody else is just taking.

        If the subscriber is swept before this is committed, the lease names nobody, and is swept.
        """
        taken: list[int] = []
        for run in self._runs(partition_ids):
            source, params = self._keys(member.group_id, run)
            sql = self.dialect.sql(LOCK_FREE.replace("<source>", source))
            params.append(member.subscriber_id)
            result = yield Statement("leases.lock_free", sql, params)
            taken += [row[0] for row in result]
        for run in self._runs(taken):
            rows = [(member.group_id, id, member.subscriber_id) for id in run]
            source, params = self.dialect.given(
                {"group_id": "bigint", "partition_id": "bigint", "owner": "bigint"}, rows
            )
            sets = {"leased_by": "w.owner", "epoch": "t.epoch + 1", "version": "t.version + 1"}
            sql = self.dialect.update_from("{offsets}", source, PLACE, sets | {"touched": "0"})
            yield Statement("leases.acquire", self.dialect.sql(sql), params)
        loaded = yield from self.load(member.group_id, taken)
        loaded = yield from self.give_back(member.group_id, loaded)
        counters = yield from self.counters(taken)
        return [(place, counters[place.partition_id]) for place in loaded]

    def give_back(self, group_id: int, places: Sequence[Loaded]) -> Operation[list[Loaded]]:
        """What a former owner delivered is due at once: it cannot be settled any more."""
        changes, given = [], []
        for place in places:
            progress = Progress.restored(place.stored)
            progress.give_back()
            after = progress.stored()
            if after == place.stored:
                given.append(place)
                continue
            changes.append(
                Change(place.partition_id, place.epoch, place.version, place.stored, after)
            )
            given.append(place._replace(version=place.version + 1, stored=after))
        yield from self.overwrite(group_id, changes, touched=False)
        return given

    def release(self, member: Member, partition_ids: Sequence[int]) -> Operation[None]:
        """Free the lease of partitions that the member owns."""
        for run in self._runs(partition_ids):
            rows = [(*member, id) for id in run]
            source, params = self.dialect.given(
                {"group_id": "bigint", "leased_by": "bigint", "partition_id": "bigint"}, rows
            )
            sets = {"leased_by": "0", "epoch": "t.epoch + 1", "version": "t.version + 1"}
            keys = (*PLACE, "leased_by")
            sql = self.dialect.update_from("{offsets}", source, keys, sets)
            yield Statement("leases.release", self.dialect.sql(sql), params)

    def owned(self, member: Member) -> Operation[list[int]]:
        """The partitions whose lease a member has."""
        result = yield Statement("leases.owned", self.dialect.sql(OWNED), member, sole=True)
        return [row[0] for row in result]

    def idle(self, member: Member) -> Operation[list[int]]:
        """The owned partitions whose log is empty and that are wholly acked."""
        result = yield Statement("leases.idle", self.dialect.sql(IDLE), member, sole=True)
        return [row[0] for row in result]

    def awaited(self, member: Member) -> Operation[int]:
        """For how long something is invisible that a member has delivered, by whoever it was
        extended; not more than zero if nothing is.
        """
        sql, params = self.dialect.sql(AWAITED), (*member, *member)
        result = yield Statement("leases.awaited", sql, params, sole=True)
        until, now = result.rows[0]
        return 0 if until is None else int(until - now)

    # --- looking and loading --------------------------------------------------------------------

    def find(self, member: Member, topic: str, *, after: int = 0) -> Operation[Found]:
        """The owned partitions that have something new, by their counters, in one statement."""
        params = (member.subscriber_id, self.dialect.text(topic), *member, after, FOUND_MAX)
        result = yield Statement("leases.find", self.dialect.sql(FIND), params, sole=True)
        return found_of(result)

    def load(
        self, group_id: int, partition_ids: Sequence[int], *, skip: bool = False
    ) -> Operation[list[Loaded]]:
        """Lock a group's place in partitions, in order, and tell it; `skip` those that are locked.

        Locked, since a transaction of the owner's own may be about to change one.
        """
        places: list[Row] = []
        for run in self._runs(sorted(partition_ids)):
            source, params = self._keys(group_id, run)
            lock = "{skip_locked}" if skip else "{for_update}"
            template = LOAD.replace("<source>", source).replace("<lock>", lock)
            places += (yield Statement("leases.load", self.dialect.sql(template), params)).rows
        ranges = yield from self.load_ranges(
            group_id, [row[0] for row in places if has_ranges(row)]
        )
        return [
            Loaded(id, owner, epoch, version, Stored(*columns, tuple(sorted(ranges.get(id, ())))))  # type: ignore[call-arg]
            for id, owner, epoch, version, *columns in places
        ]

    def load_ranges(
        self, group_id: int, partition_ids: Sequence[int]
    ) -> Operation[dict[int, list[Range]]]:
        """The ranges of places that are locked, as they are now."""
        ranges: dict[int, list[Range]] = {}
        # A locking read, where a plain one may show a snapshot. In a caller's transaction it may
        # keep others out of the gaps between the rows, so it is not made where there are none.
        template = LOAD_RANGES + (" {for_share}" if self.dialect.snapshots else "")
        for run in self._runs(sorted(partition_ids)):
            source, params = self._keys(group_id, run)
            sql = self.dialect.sql(template.replace("<source>", source))
            for id, *row in (yield Statement("leases.load_ranges", sql, params)):
                ranges.setdefault(id, []).append(range_of(row))
        return ranges

    def counters(self, partition_ids: Sequence[int]) -> Operation[dict[int, Counters]]:
        """What partitions are called and hold."""
        found = {}
        for run in self._runs(partition_ids):
            source, params = self.dialect.given({"id": "bigint"}, [(id,) for id in run])
            sql = self.dialect.sql(COUNTERS.replace("<source>", source))
            for id, key, *counts in (yield Statement("leases.counters", sql, params)):
                found[id] = Counters(id, as_text(key), *counts)
        return found

    # --- writing --------------------------------------------------------------------------------

    def advance(
        self,
        member: Member,
        changes: Sequence[Change],
        *,
        spans: Sequence[Span],
        find: tuple[str, int] | None = None,
    ) -> Operation[tuple[list[Row], Found | None]]:
        """Write changes, all or none, and fetch messages; `Conflict` if a lease is not as known.

        Gives the messages of the spans; and, where `finds_more`, what `find` would give for a topic
        and the partition to begin after, if these are named.
        """
        del find  # see `finds_more`
        yield from self.write(member, changes)
        return (yield from self.fetch(spans)), None

    def fetch(self, spans: Sequence[Span]) -> Operation[list[Row]]:
        """The messages of spans."""
        rows: list[Row] = []
        for run in self._runs(spans):
            rows += yield from self.topics.fetch_ranges(run)
        return rows

    def sizes(self, spans: Sequence[Span]) -> Operation[dict[tuple[int, int], int]]:
        """How many bytes the payloads of spans have, by partition and offset."""
        sizes: dict[tuple[int, int], int] = {}
        for run in self._runs(spans):
            rows = yield from self.topics.fetch_sizes(run)
            sizes |= {(id, offset): size for id, offset, size in rows}
        return sizes

    def write(self, member: Member, changes: Sequence[Change]) -> Operation[None]:
        """Write changes of partitions that the member owns, all or none."""
        for run in self._runs(sorted(changes)):
            rows = [(*member, c.partition_id, c.epoch, c.version, *c.after[:5]) for c in run]
            source, params = self.dialect.given(MOVED, rows)
            sql = self.dialect.update_from("{offsets}", source, (*PLACE, *FENCE), MOVES)
            result = yield Statement("leases.advance", self.dialect.sql(sql), params)
            if result.rowcount != len(run):
                raise Conflict("a lease was lost, or its partition was changed by somebody else")
        yield from self.write_ranges(member.group_id, changes)

    def overwrite(
        self, group_id: int, changes: Sequence[Change], *, touched: bool = True
    ) -> Operation[None]:
        """Write changes of places that are locked, whoever owns them; if `touched`, the owner will
        look again. The lease stays as it is, and with it whatever is in flight.

        What the owner has not written is two versions on: so it is never taken for a write of the
        owner's own whose answer was lost, also if it comes to the same.
        """
        sets = MOVES | ({"version": "t.version + 2", "touched": "1"} if touched else {})
        for run in self._runs(changes):
            rows = [(group_id, change.partition_id, *change.after[:5]) for change in run]
            source, params = self.dialect.given(OVERWRITTEN, rows)
            sql = self.dialect.update_from("{offsets}", source, PLACE, sets)
            yield Statement("leases.overwrite", self.dialect.sql(sql), params)
        yield from self.write_ranges(group_id, changes)

    def write_ranges(self, group_id: int, changes: Iterable[Change]) -> Operation[None]:
        """Remove and put the ranges that changed."""
        changes = list(changes)
        gone = [
            (group_id, change.partition_id, first)
            for change in changes
            for first in change.after.removed_since(change.before)
        ]
        for run in self._runs(gone):
            source, params = self.dialect.given(RANGE_KEY, run)
            sql = self.dialect.delete_from("{delivery_state}", source, tuple(RANGE_KEY))
            yield Statement("leases.remove_ranges", self.dialect.sql(sql), params)
        kept = [
            (group_id, change.partition_id, *stored)
            for change in changes
            for stored in change.after.changed_since(change.before)
        ]
        for run in self._runs(kept):
            source, params = self.dialect.given(RANGE_KEY | RANGE_REST, run)
            rest = tuple(RANGE_REST)
            sql = self.dialect.upsert_from("{delivery_state}", source, tuple(RANGE_KEY), rest)
            yield Statement("leases.put_ranges", self.dialect.sql(sql), params)

    def _keys(self, group_id: int, partition_ids: Sequence[int]) -> tuple[str, list[Any]]:
        columns = {"group_id": "bigint", "partition_id": "bigint"}
        return self.dialect.given(columns, [(group_id, id) for id in partition_ids])

    def _runs(self, items: Sequence[Any]) -> Iterable[list[Any]]:
        return self.dialect.chunks(items, (0 for _ in items))


def found_of(rows: Iterable[Row]) -> Found:
    """What rows of FIND say: the first is about the member itself."""
    me, *others = sorted(rows, key=lambda row: int(row[0]))
    work = [
        Work(id, epoch, following, largest, bool(touched))
        for id, epoch, following, largest, touched in others
    ]
    return Found(now=me[1], alive=bool(me[2]), newest=me[3], work=work)


def has_ranges(row: Row) -> bool:
    """Whether a row of LOAD has ranges beside its tail: they cover what the tail does not."""
    _, _, _, _, acked, delivered, tail_first, *_ = row
    return bool(min(tail_first - 1, delivered) > acked)


def range_of(row: Sequence[Any]) -> Range:
    """The range of a row of `delivery_state`."""
    first, last, state, until, attempts, error, reopened = row
    text = None if error is None else as_text(error)
    return Range(first, last, State(state), until, attempts, text, reopened)


PLACE = ("group_id", "partition_id")

FENCE = ("leased_by", "epoch", "version")

# As in a row of `given` for `write`: what the row must be, and what it becomes.
MOVED = {
    "group_id": "bigint",
    "leased_by": "bigint",
    "partition_id": "bigint",
    "epoch": "bigint",
    "version": "bigint",
    "acked": "bigint",
    "delivered": "bigint",
    "first": "bigint",
    "until": "bigint",
    "attempts": "integer",
}
OVERWRITTEN = {name: kind for name, kind in MOVED.items() if name not in FENCE}
MOVES = {
    "offset_acked": "w.acked",
    "offset_delivered": "w.delivered",
    "tail_first": "w.first",
    "tail_until": "w.until",
    "tail_attempts": "w.attempts",
    "version": "t.version + 1",
    "touched": "0",
}
RANGE_KEY = {"group_id": "bigint", "partition_id": "bigint", "first_offset": "bigint"}
RANGE_REST = {
    "last_offset": "bigint",
    "state": "smallint",
    "invisible_until": "bigint",
    "attempts": "integer",
    "error": "text",
    "reopened": "bigint",
}

REGISTER = """
    INSERT INTO {subscribers} (group_id, heartbeat_at, expires_at, subscriber_name)
    VALUES (?, {now}, {now} + ?, ?)"""

ALIVE = "SELECT id FROM {subscribers} WHERE id = ? AND expires_at > {now}"

FREE_ALL = """
    UPDATE {offsets} SET leased_by = 0, epoch = epoch + 1, version = version + 1
    WHERE group_id = ? AND leased_by = ?"""

LOCK_SUBSCRIBER = "SELECT id FROM {subscribers} WHERE id = ? {skip_locked}"

LEAVE = "DELETE FROM {subscribers} WHERE id = ?"

# The first row, of no subscriber, tells the highest id of a partition.
SURVEY = """
    SELECT 0, COALESCE(MAX(p.id), 0) FROM {partitions} p WHERE p.topic = ?
    UNION ALL
    SELECT s.id, CASE WHEN s.expires_at > {now} THEN 1 ELSE 0 END
    FROM {subscribers} s WHERE s.group_id = ?"""

# How many partitions each owner has, and which are free, in one statement: what somebody takes at
# this moment is counted once. Free is what holds messages, or has something left to deliver; that
# is the same, unless a message was given back that the log has let go of.
LIST_FREE = """
    SELECT leased_by, COUNT(*), 0 FROM {offsets} WHERE group_id = ? AND leased_by > 0
    GROUP BY leased_by
    UNION ALL
    SELECT * FROM (
        SELECT o.partition_id, 0, 1
        FROM {offsets} o {join} {partitions} p ON p.id = o.partition_id
        WHERE o.group_id = ? AND o.leased_by = 0
          AND (p.next_offset > p.first_offset OR o.offset_acked < p.next_offset - 1)
        ORDER BY o.partition_id LIMIT ?
    ) w"""

LOCK_FREE = """
    SELECT o.partition_id FROM (<source>) w
    {join} {offsets} o {by_key} ON o.group_id = w.group_id AND o.partition_id = w.partition_id
    WHERE o.leased_by = 0
      AND EXISTS (SELECT 1 FROM {subscribers} s WHERE s.id = ? AND s.expires_at > {now})
    ORDER BY o.partition_id {skip_locked}"""

LOAD = """
    SELECT o.partition_id, o.leased_by, o.epoch, o.version, o.offset_acked, o.offset_delivered,
           o.tail_first, o.tail_until, o.tail_attempts
    FROM (<source>) w
    {join} {offsets} o {by_key} ON o.group_id = w.group_id AND o.partition_id = w.partition_id
    ORDER BY o.partition_id <lock>"""

LOAD_RANGES = """
    SELECT d.partition_id, d.first_offset, d.last_offset, d.state, d.invisible_until, d.attempts,
           d.error, d.reopened
    FROM (<source>) w
    {join} {delivery_state} d {by_key}
        ON d.group_id = w.group_id AND d.partition_id = w.partition_id"""

COUNTERS = """
    SELECT p.id, p.partition_key, p.first_offset, p.next_offset, p.largest_bytes
    FROM (<source>) w {join} {partitions} p {by_key} ON p.id = w.id"""

OWNED = "SELECT partition_id FROM {offsets} WHERE group_id = ? AND leased_by = ?"

AWAITED = """
    SELECT MAX(x.until), {now} FROM (
        SELECT o.tail_until AS until FROM {offsets} o
        WHERE o.group_id = ? AND o.leased_by = ? AND o.tail_first <= o.offset_delivered
        UNION ALL
        SELECT d.invisible_until FROM {offsets} o
        {join} {delivery_state} d ON d.group_id = o.group_id AND d.partition_id = o.partition_id
        WHERE o.group_id = ? AND o.leased_by = ? AND d.state = 1
    ) x"""

LOCK_OWNED = f"{OWNED} ORDER BY partition_id {{skip_locked}}"

IDLE = """
    SELECT o.partition_id FROM {offsets} o {join} {partitions} p ON p.id = o.partition_id
    WHERE o.group_id = ? AND o.leased_by = ?
      AND p.next_offset = p.first_offset AND o.offset_acked = p.next_offset - 1"""

# The first row is about the member itself and is always there.
FIND = """
    SELECT 0 AS partition_id, {now} AS epoch,
           (SELECT COUNT(*) FROM {subscribers} s WHERE s.id = ? AND s.expires_at > {now})
               AS next_offset,
           (SELECT COALESCE(MAX(p.id), 0) FROM {partitions} p WHERE p.topic = ?) AS largest_bytes,
           0 AS touched
    UNION ALL
    SELECT * FROM (
        SELECT o.partition_id, o.epoch, p.next_offset, p.largest_bytes, o.touched
        FROM {offsets} o {join} {partitions} p ON p.id = o.partition_id
        WHERE o.group_id = ? AND o.leased_by = ? AND o.partition_id > ?
          AND (p.next_offset > o.offset_delivered + 1 OR o.touched = 1)
        ORDER BY o.partition_id LIMIT ?
    ) w"""
