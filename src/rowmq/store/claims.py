"""Claims: look for jobs that are due, take them out of `ready` into a lock, give them back.

    look ----> claim ------> settles (see `settles`)
     |          |  takes ready rows that nobody else is taking, writes one lock row for all
     |          |
     '--> give_back: a lock whose time is over gives back what was not settled

A look only reads. It tells which lanes have something due, so that an idle poll writes nothing and
waits for nobody; and whether a lock has expired, so that there is no sweep that has to run.

A claim begins each lane at a *cursor*, where the last one began: before it are, mostly, index
entries of jobs that were taken already, which a database is slow to clean up under load, and cannot
clean up at all while somebody holds an old snapshot. It is only a hint: a claim that follows a look
begins at the first job that this saw.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from rowmq.errors import SerializationFailure, UniqueViolation
from rowmq.store.dialect import as_bytes, as_text
from rowmq.store.jobs import JOB_COLUMNS, Jobs
from rowmq.store.lines import READY_KEY, ReadyRow
from rowmq.store.postings import KeyRow
from rowmq.store.queues import IN_FLIGHT, RATE
from rowmq.store.statement import Operation, Row, Statement

__all__ = [
    "CLAIM_MAX",
    "HEAD_OF_LANE",
    "ClaimedJob",
    "Claims",
    "Cursor",
    "Entry",
    "Look",
    "OpenLane",
    "Permits",
    "is_of",
    "job_of",
]

CLAIM_MAX = 10_000
"""How many jobs are claimed at a time, at most."""

GIVE_BACK_MAX = 5
"""How many expired locks are given back at a time."""

BUSY_KEY_US = 1_000_000
"""When to look again at an expired job whose key somebody has locked."""

Cursor = tuple[int, int]
"""A due time and a job id: where to begin in a lane."""

HEAD_OF_LANE: Cursor = (-(2**62), 0)


class OpenLane(NamedTuple):
    """A lane that may be claimed from."""

    id: int
    queue_id: int
    queue: str
    kind: str
    precedence: int
    limited: bool
    """Whether its queue has limits, so that a claim needs permits."""
    first_due: int | None
    """When the first of its jobs is due, and the queue's rate allows it; None if it has none."""

    @property
    def head(self) -> "Cursor":
        """Where a claim begins that follows the look: to look for the first job once more may take
        as long again. With limits, only the look itself knows when the first one is due.
        """
        if self.limited or self.first_due is None:
            return HEAD_OF_LANE
        return self.first_due, 0


class Look(NamedTuple):
    """What there is to claim, at a time by the database's clock."""

    now: int
    lanes: list[OpenLane]
    expires: int | None
    """When the first of all locks expires."""


class Entry(NamedTuple):
    """A claimed job as its lock has it: what stood in `ready`, this delivery counted."""

    job_id: int
    lane_id: int
    due_at: int
    attempts: int
    deliveries: int
    permit: int = 0
    """The number of its permit for jobs in flight; 0 if it needs none."""

    @property
    def ready(self) -> ReadyRow:
        """Its ready row, if it is given back: the delivery has been one."""
        return ReadyRow(self.lane_id, self.due_at, self.job_id, self.attempts, self.deliveries)


class ClaimedJob(msgspec.Struct, frozen=True, gc=False):
    """A claimed job with all that is stored of it; position is its place in the lock."""

    entry: Entry
    position: int
    created_at: int
    encoding: int
    key: str | None
    ordering_key: str | None
    headers: str | None
    payload: bytes


class Claims:
    """The operations on claims, for one dialect."""

    # Rows that are being claimed are passed over; so are those before the cursor.
    after_cursor = "(r.due_at, r.job_id) >= (?, ?)"
    locks_ready = "{skip_locked}"

    def __init__(self, jobs: Jobs) -> None:
        self.jobs = jobs
        self.queues = jobs.queues
        self.dialect = jobs.dialect

    # --- look -------------------------------------------------------------------------------------

    def look(self, queues: Sequence[str], since: int = HEAD_OF_LANE[0]) -> Operation[Look]:
        """What there is to claim in queues that are not paused; of what is due since then."""
        lanes: list[OpenLane] = []
        marks = ", ".join("?" for _ in queues)
        sql = self.dialect.sql(LOOK.replace("<queues>", marks).replace("<rate>", str(RATE)))
        params = [since, *(self.dialect.text(queue) for queue in queues)]
        result = yield Statement("claims.look", sql, params, sole=True)
        now, expires = 0, None
        for id, queue_id, queue, kind, order, limited, due, free, now, expires in result:  # noqa: B007
            if id is not None:
                name = (as_text(queue), as_text(kind))
                first = due if due is None or free is None else max(due, free)
                lanes.append(OpenLane(id, queue_id, *name, order, bool(limited), first))
        return Look(now, lanes, expires)

    # --- claim ------------------------------------------------------------------------------------

    def take(
        self,
        lanes: Mapping[OpenLane, Cursor],
        *,
        limit: int,
        token: int,
        lock_us: int,
        owner: str,
        newest: bool = False,
        again: bool = False,
    ) -> Operation[list[ClaimedJob]]:
        """Claim jobs. `again` says that this may have been committed before, and its answer lost:
        then the lock is there.
        """
        if again and (jobs := (yield from self.load(token))) is not None:
            return jobs
        how = (limit, token, lock_us, owner)
        try:
            return (yield from self.claim(lanes, *how, newest=newest))
        except UniqueViolation as error:
            raise SerializationFailure("this claim is being committed; look again") from error

    def claim(
        self,
        lanes: Mapping[OpenLane, Cursor],
        limit: int,
        token: int,
        lock_us: int,
        owner: str,
        *,
        newest: bool = False,
    ) -> Operation[list[ClaimedJob]]:
        """Take jobs that are due into a lock: the highest priority first, then by time and id; or,
        of each priority, the newest first.
        """
        permits = yield from self.take_permits(lanes, limit)
        left = dict(lanes)
        found: dict[ReadyRow, Row] = {}
        while left and not found:
            counts = yield from self.shares(left, limit, permits, newest=newest)
            if not counts:
                return []
            for lane, count in counts.items():
                found |= yield from self.lock_ready(lane, lanes[lane], count, newest=newest)
                del left[lane]  # if others have all of its first jobs, the next lanes' turn comes
        if not found:
            return []
        taken = list(found) if len(lanes) == 1 else in_order(found, lanes, newest=newest)
        yield from self.remove(taken)
        entries = with_permits(taken, lanes, permits)
        yield from self.write_lock(entries, token=token, lock_us=lock_us, owner=owner)
        yield from self.use_permits(entries, lanes, permits, token=token, lock_us=lock_us)
        known = {row[0]: row for row in found.values() if row[0] is not None}
        # One whose row was locked, or deleted while it was made ready.
        missing = [entry.job_id for entry in entries if entry.job_id not in known]
        if missing:
            known |= yield from self.contents(missing)
        return jobs_of(entries, known)

    def shares(
        self,
        lanes: Mapping[OpenLane, Cursor],
        limit: int,
        permits: Mapping[int, "Permits"],
        *,
        newest: bool,
    ) -> Operation[dict[OpenLane, int]]:
        """How many jobs to take from each lane, in the order of claims."""
        room = {id: found.room for id, found in permits.items()}
        if len(lanes) == 1:
            (lane,) = lanes
            count = min(limit, room.get(lane.queue_id, limit))
            return {lane: count} if count else {}
        candidates: list[tuple[int, int, int, OpenLane]] = []
        for lane, cursor in lanes.items():
            rows = yield from self.peek(lane, cursor, limit, newest=newest)
            sign = -1 if newest else 1
            candidates += [(lane.precedence, sign * due, sign * id, lane) for due, id in rows]
        counts: dict[OpenLane, int] = {}
        left = limit
        for *_, lane in sorted(candidates, key=lambda candidate: candidate[:3]):
            if left and room.get(lane.queue_id, 1):
                counts[lane] = counts.get(lane, 0) + 1
                left -= 1
                if lane.queue_id in room:
                    room[lane.queue_id] -= 1
        return counts

    def peek(
        self, lane: OpenLane, cursor: Cursor, limit: int, *, newest: bool
    ) -> Operation[list[tuple[int, int]]]:
        """Due time and id of the first jobs that are due in a lane, without a lock."""
        sql = self.dialect.sql(self._ready("r.due_at, r.job_id", "{ready} r", newest=newest))
        params = (lane.id, *self.cursor_params(cursor), limit)
        result = yield Statement("claims.peek", sql, params)
        return [(due, id) for due, id in result]

    def lock_ready(
        self, lane: OpenLane, cursor: Cursor, count: int, *, newest: bool
    ) -> Operation[dict[ReadyRow, Row]]:
        """Lock the first jobs that are due in a lane, and that nobody else is taking. All that is
        stored of them comes with them, or NULLs if it is not there or locked.
        """
        columns = f"r.lane_id, r.due_at, r.job_id, r.attempts, r.deliveries, {JOB_COLUMNS}"
        template = self._ready(columns, WHOLE, newest=newest)
        params = (lane.id, *self.cursor_params(cursor), count)
        result = yield Statement(
            "claims.lock_ready", self.dialect.sql(f"{template} {self.locks_ready}"), params
        )
        return {ReadyRow._make(row[:5]): row[5:] for row in result}

    def remove(self, taken: Sequence[ReadyRow]) -> Operation[None]:
        """Delete ready rows that are locked."""
        yield from self.queues.delete("claims.take", "{ready}", READY_KEY, [r[:3] for r in taken])

    def _ready(self, columns: str, tables: str, *, newest: bool) -> str:
        order = "r.due_at DESC, r.job_id DESC" if newest else "r.due_at, r.job_id"
        template = READY.replace("<columns>", columns).replace("<cursor>", self.after_cursor)
        return template.replace("<tables>", tables).replace("<order>", order)

    def cursor_params(self, cursor: Cursor) -> tuple[int, ...]:
        """The parameters of `after_cursor`."""
        return cursor

    def write_lock(
        self, entries: Sequence[Entry], *, token: int, lock_us: int, owner: str
    ) -> Operation[None]:
        """Write the lock of claimed jobs."""
        params = (
            token,
            lock_us,
            self.dialect.text(owner),
            self.dialect.pack(entries),
            self.dialect.text("0" * len(entries)),
        )
        yield Statement("claims.lock", self.dialect.sql(WRITE_LOCK), params)

    def fetch(self, entries: Sequence[Entry]) -> Operation[list[ClaimedJob]]:
        """All that is stored of claimed jobs, in the order of claims."""
        return jobs_of(entries, (yield from self.contents([entry.job_id for entry in entries])))

    def contents(self, ids: Sequence[int]) -> Operation[dict[int, Row]]:
        """The rows of those jobs that are there."""
        wanted = [(id,) for id in ids]
        rows = yield from self.queues.select("claims.fetch", FETCH, {"id": "bigint"}, wanted)
        return {row[0]: row for row in rows}

    def load(self, token: int) -> Operation[list[ClaimedJob] | None]:
        """The jobs of a lock, of a claim whose answer was lost; None if it is not there. Those that
        people have taken from it meanwhile may be somebody else's by now.
        """
        result = yield Statement("claims.load", self.dialect.sql(LOAD), (token,), sole=True)
        for claimed, settled in result:
            marks = as_text(settled)
            entries = [Entry(*values) for values in self.dialect.unpack(claimed)]
            jobs = yield from self.fetch(entries)
            return [job for job in jobs if marks[job.position] == "0"]
        return None

    # --- limits -----------------------------------------------------------------------------------

    def take_permits(
        self, lanes: Iterable[OpenLane], limit: int
    ) -> Operation[dict[int, "Permits"]]:
        """Lock free permits of limited queues, up to `limit` of a kind; by queue. As many jobs may
        be started.
        """
        permits: dict[int, Permits] = {}
        for queue_id in sorted({lane.queue_id for lane in lanes if lane.limited}):
            result = yield Statement("claims.limits", self.dialect.sql(LIMITS), (queue_id,))
            for in_flight, rate, period_us in result:
                found = Permits(period_us or 0, {})
                for purpose, most in ((IN_FLIGHT, in_flight), (RATE, rate)):
                    if most is not None:
                        found.free[purpose] = yield from self._free(queue_id, purpose, most, limit)
                if found.free:
                    permits[queue_id] = found
        return permits

    def _free(self, queue_id: int, purpose: int, most: int, limit: int) -> Operation[list[int]]:
        """Lock free permits. Those in use from when the limit was higher count too: as many of the
        others stay unused.
        """
        params = (queue_id, purpose, most)
        result = yield Statement("claims.permits_over", self.dialect.sql(OVER), params)
        over = len(result)
        sql = self.dialect.sql(PERMITS)
        rows = (yield Statement("claims.permits", sql, (*params, limit + over))).rows
        return [number for (number,) in rows][over:]

    def use_permits(
        self,
        entries: Sequence[Entry],
        lanes: Iterable[OpenLane],
        permits: Mapping[int, "Permits"],
        *,
        token: int,
        lock_us: int,
    ) -> Operation[None]:
        """Note when the permits of claimed jobs are free: when the period ends; or, of those in
        flight, when they are settled or their lock is gone, though not before its time.
        """
        if not permits:
            return
        queue_of = {lane.id: lane.queue_id for lane in lanes}
        claimed: dict[int, list[Entry]] = {}
        for entry in entries:
            claimed.setdefault(queue_of[entry.lane_id], []).append(entry)
        # The time after the lock was written: a permit is not free before its lock is, nor is a
        # period over too soon.
        now = yield from self.dialect.clock("claims.now")
        rows: list[tuple[int | None, ...]] = []
        for queue_id, found in permits.items():
            used = claimed.get(queue_id, [])
            for number, _ in zip(found.free.get(RATE, ()), used, strict=False):
                rows.append((queue_id, RATE, number, now + found.period_us, 0, None))
            for entry in used:
                if entry.permit:
                    place = (queue_id, IN_FLIGHT, entry.permit)
                    rows.append((*place, now + lock_us, token, entry.job_id))
        yield from self.queues.update(
            "claims.use_permits", "{permits}", PERMIT, tuple(PERMIT_KEY), rows
        )

    def free_permits(self, permits: Iterable[tuple[int, int, int]]) -> Operation[None]:
        """Let permits of settled jobs be used again: by queue, number and the token of the lock."""
        rows = [(queue, IN_FLIGHT, number, token) for queue, number, token in sorted(permits)]
        columns = PERMIT_KEY | {"held": "bigint"}
        for run in self.queues.runs(rows, columns):
            source, params = self.dialect.given(columns, run)
            sets = {"free_at": "0", "token": "0", "job_id": "NULL"}
            sql = self.dialect.update_from(
                "{permits}", source, tuple(PERMIT_KEY), sets, "t.token = w.held"
            )
            yield Statement("claims.free_permits", self.dialect.sql(sql), params)

    # --- expired locks ----------------------------------------------------------------------------

    def give_back(self) -> Operation[int]:
        """Make ready again what expired locks have left; how many jobs it were."""
        sql = self.dialect.sql(EXPIRED)
        result = yield Statement("claims.expired", sql, (GIVE_BACK_MAX,))
        total = 0
        for token, claimed, settled, now in result:
            marks = as_text(settled)
            entries = [Entry(*values) for values in self.dialect.unpack(claimed)]
            left = {place: e for place, e in enumerate(entries) if marks[place] == "0"}
            busy = yield from self._give_back(left, token)
            total += len(left) - len(busy)
            if busy:
                marks = "".join("0" if place in busy else "1" for place in range(len(entries)))
                params = (self.dialect.text(marks), now + BUSY_KEY_US, token)
                yield Statement("claims.keep", self.dialect.sql(KEEP), params)
            else:
                yield Statement("claims.unlock", self.dialect.sql(UNLOCK), (token,))
        return total

    def _give_back(self, left: Mapping[int, Entry], token: int) -> Operation[set[int]]:
        """Make jobs of a lock ready again, but not those whose key somebody has locked now: which
        stay. A job that was updated or dropped is not there any more.
        """
        # A plain look, in a transaction of our own: it waits for nobody.
        ids = [entry.job_id for entry in left.values()]
        stored = yield from self.jobs.stored(ids, only_look=True)
        keys = {
            place: (job.queue_id, job.key, job.kind)
            for place, entry in left.items()
            if (job := stored.get(entry.job_id)) is not None and job.key is not None
        }
        held = yield from self.jobs.find_keys(list(keys.values()), skip=True)
        locked = yield from self.jobs.seen_keys([k for k in keys.values() if k not in held])
        ready, busy = [], set()
        for place, entry in left.items():
            if entry.job_id not in stored:
                continue
            if place in keys and keys[place] in locked:
                busy.add(place)
            elif place not in keys or is_of(held.get(keys[place]), entry.job_id):
                ready.append(entry.ready)
        yield from self.jobs.make_ready(ready)
        yield from self.free_permits(
            [
                (stored[entry.job_id].queue_id, entry.permit, token)
                for place, entry in left.items()
                if entry.permit and place not in busy and entry.job_id in stored
            ]
        )
        return busy


def is_of(row: KeyRow | None, job_id: int) -> bool:
    """Whether a key is that of a job."""
    return row is not None and row.job_id == job_id


class Permits(NamedTuple):
    """Free permits of a queue that are locked, by what they are for."""

    period_us: int
    free: dict[int, list[int]]

    @property
    def room(self) -> int:
        """How many jobs may be started."""
        return min(len(numbers) for numbers in self.free.values())


def in_order(
    taken: Iterable[ReadyRow], lanes: Iterable[OpenLane], *, newest: bool
) -> list[ReadyRow]:
    """Jobs of several lanes in the order of claims."""
    precedence = {lane.id: lane.precedence for lane in lanes}
    sign = -1 if newest else 1
    return sorted(
        taken, key=lambda row: (precedence[row.lane_id], sign * row.due_at, sign * row.job_id)
    )


def with_permits(
    taken: Sequence[ReadyRow], lanes: Iterable[OpenLane], permits: Mapping[int, Permits]
) -> list[Entry]:
    """What goes into the lock of taken jobs, in the order of claims."""
    if not permits:
        return [Entry(id, lane, due, tries, times + 1) for lane, due, id, tries, times in taken]
    by_id = {lane.id: lane for lane in lanes}
    free = {id: iter(found.free.get(IN_FLIGHT, ())) for id, found in permits.items()}
    entries = []
    for row in taken:
        numbers = free.get(by_id[row.lane_id].queue_id, iter(()))
        permit = next(numbers, 0)
        entries.append(
            Entry(row.job_id, row.lane_id, row.due_at, row.attempts, row.deliveries + 1, permit)
        )
    return entries


def jobs_of(entries: Sequence[Entry], known: Mapping[int, Row]) -> list[ClaimedJob]:
    """The claimed jobs that are there, in the order of claims."""
    return [
        job_of(entry, place, row)
        for place, entry in enumerate(entries)
        if (row := known.get(entry.job_id)) is not None
    ]


def job_of(entry: Entry, position: int, row: Row) -> ClaimedJob:
    """A claimed job, of a row of JOB_COLUMNS."""
    _, created_at, _, encoding, key, ordering_key, headers, payload = row
    return ClaimedJob(
        entry,
        position,
        created_at,
        encoding,
        # Most are None, and bytes: a call for each would take longer than all the rest.
        None if key is None else as_text(key),
        None if ordering_key is None else as_text(ordering_key),
        None if headers is None else as_text(headers),
        payload if type(payload) is bytes else as_bytes(payload),
    )


PERMIT_KEY = {"queue_id": "bigint", "purpose": "smallint", "number": "integer"}
PERMIT = PERMIT_KEY | {"free_at": "bigint", "token": "bigint", "job_id": "bigint"}

# The whole order of the indexes: without it, MySQL reads all of a lane to find its first job.
LOOK = """
    SELECT f.id, f.queue_id, f.queue, f.kind, f.precedence, f.limited, f.first_due, f.rate_free,
           {now},
           (SELECT k.locked_until FROM {locks} k WHERE k.locked_until > 0
            ORDER BY k.locked_until LIMIT 1)
    FROM (SELECT 1 AS one) o
    LEFT JOIN (
        SELECT l.id, l.queue_id, q.queue, l.kind, l.precedence,
               CASE WHEN q.max_in_flight IS NULL AND q.rate IS NULL THEN 0 ELSE 1 END AS limited,
               (SELECT r.due_at FROM {ready} r WHERE r.lane_id = l.id AND r.due_at >= ?
                ORDER BY r.lane_id, r.due_at, r.job_id LIMIT 1) AS first_due,
               CASE WHEN q.rate IS NOT NULL THEN
                   (SELECT p.free_at FROM {permits} p
                    WHERE p.queue_id = q.id AND p.purpose = <rate> AND p.number <= q.rate
                    ORDER BY p.queue_id, p.purpose, p.free_at, p.number LIMIT 1)
               END AS rate_free
        FROM {queues} q {join} {lanes} l ON l.queue_id = q.id
        WHERE q.queue IN (<queues>) AND q.paused = 0
    ) f ON 1 = 1
    ORDER BY f.precedence, f.id"""

# A subquery, so that the time is found out once and not for every row.
READY = """
    SELECT <columns> FROM <tables>
    WHERE r.lane_id = ? AND r.due_at <= (SELECT {now}) AND <cursor>
    ORDER BY <order> LIMIT ?"""

WHOLE = "{ready} r LEFT JOIN {jobs} j {by_key} ON j.id = r.job_id"

WRITE_LOCK = """
    INSERT INTO {locks} (token, locked_until, claimed_at, owner, claimed, settled)
    VALUES (?, {now} + ?, {now}, ?, ?, ?)"""

FETCH = f"SELECT {JOB_COLUMNS} FROM (<source>) w {{join}} {{jobs}} j {{by_key}} ON j.id = w.id"

LOAD = "SELECT claimed, settled FROM {locks} WHERE token = ?"

LIMITS = "SELECT max_in_flight, rate, rate_period_us FROM {queues} WHERE id = ?"

# Its time has come, and, of a job in flight, its lock is gone: it may have been extended. The time
# alone would not tell that; the lock alone may be too new to be seen. A subquery is looked up for
# each permit, where EXISTS may be made a join with all locks.
PERMITS = """
    SELECT p.number FROM {permits} p
    WHERE p.queue_id = ? AND p.purpose = ? AND p.number <= ? AND p.free_at <= (SELECT {now})
      AND (SELECT k.token FROM {locks} k WHERE k.token = p.token) IS NULL
    ORDER BY p.free_at, p.number LIMIT ? {skip_locked}"""

OVER = """
    SELECT p.number FROM {permits} p
    WHERE p.queue_id = ? AND p.purpose = ? AND p.number > ?
      AND (p.free_at > (SELECT {now})
           OR (SELECT k.token FROM {locks} k WHERE k.token = p.token) IS NOT NULL)"""

EXPIRED = """
    SELECT token, claimed, settled, {now} FROM {locks} WHERE locked_until <= (SELECT {now})
    ORDER BY locked_until LIMIT ? {skip_locked}"""

KEEP = "UPDATE {locks} SET settled = ?, locked_until = ? WHERE token = ?"

UNLOCK = "DELETE FROM {locks} WHERE token = ?"
