"""Sweeps: sums over all partitions of topics, and over all places of groups, in parts.

A counter stands in a partition's row, so to know how much there is in a topic is to read them all:
by an index, in parts of some thousand, each a statement by itself that takes milliseconds and locks
nothing. The newest partitions come first, then the oldest onwards: whoever may not go on for ever
has seen both ends. Partitions are never deleted, so what all parts say of what was ever published
never falls.

    newest ◄── the first look        next ──► next ──► next ──► up to where the first look began
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from rowmq.progress import State
from rowmq.store.dialect import Dialect
from rowmq.store.statement import Operation, Row, Statement

__all__ = [
    "PARTS_MAX",
    "PLACES",
    "Behind",
    "Member",
    "Part",
    "Sweeping",
    "Swept",
    "ask",
    "fair",
    "runs",
]

NEWEST_MAX = 250
"""How many partitions the first look at a topic sees: most topics have no more."""

PART_MAX = 5_000
"""How many partitions each further part has."""

LOOKS_MAX = 5_000
"""How many partitions one statement looks at: that is ten milliseconds or so."""

PARTS_MAX = 20
"""How many topics, groups or parts of them one statement asks for."""


class Part(NamedTuple):
    """A stretch of a topic's partitions: those with ids between two."""

    after: int
    before: int
    partitions: int


class Swept(NamedTuple):
    """What the counters of a topic say: of all its partitions, if it is whole."""

    partitions: int = 0
    published: int = 0
    messages: int = 0
    parts: tuple[Part, ...] = ()
    """The newest partitions first, then the oldest onwards."""
    whole: bool = True

    @property
    def end(self) -> int:
        """Up to which id it was looked at from the oldest on."""
        return self.parts[-1].before - 1 if len(self.parts) > 1 else 0

    def plus(self, row: Sequence[Any], after: int, before: int, *, whole: bool) -> "Swept":
        """With another part."""
        partitions, published, messages = (int(value or 0) for value in row[:3])
        return Swept(
            self.partitions + partitions,
            self.published + published,
            self.messages + messages,
            (*self.parts, Part(after, before, partitions)),
            whole,
        )


class Member(NamedTuple):
    """A group, and the topic that it reads."""

    id: int
    topic: str


class Behind(NamedTuple):
    """How far a group is in some partitions: of so many messages so many are above its watermarks,
    of which it is done with some.
    """

    partitions: int = 0
    published: int = 0
    above: int = 0
    behind: int = 0
    """In how many partitions there are such."""
    tails: int = 0
    done: int = 0
    delivered: int = 0

    def plus(self, other: "Behind") -> "Behind":
        """Both together."""
        return Behind(*(one + more for one, more in zip(self, other, strict=True)))

    @property
    def lag(self) -> int:
        """How many messages the group is not done with."""
        return max(0, self.above - self.done)

    @property
    def in_flight(self) -> int:
        """How many were delivered and are not settled."""
        return self.tails + self.delivered


class Sweeping:
    """The operations of sweeping, for one dialect."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect

    def topics(
        self, names: Sequence[str], *, looks_max: int | None = None
    ) -> Operation[dict[str, Swept]]:
        """What topics' counters say. With a limit it ends after about so many partitions, of all
        topics in turn, so that the small ones are whole.
        """
        swept = yield from self._newest(names)
        looks = sum(one.partitions for one in swept.values())
        while unfinished := [name for name in names if not swept[name].whole]:
            if looks_max is not None and looks >= looks_max:
                break
            for run in runs(unfinished, [PART_MAX] * len(unfinished)):
                params = [self._next(name, swept[name]) for name in run]
                for nth, row in (yield from ask(self.dialect, "sweeping.next", NEXT, params)):
                    swept[run[nth]] = with_next(swept[run[nth]], row)
                    looks += int(row[0])
        return swept

    def _newest(self, names: Sequence[str]) -> Operation[dict[str, Swept]]:
        swept = dict.fromkeys(names, Swept())
        for run in runs(names, [NEWEST_MAX] * len(names)):
            params = [(self.dialect.text(name), NEWEST_MAX) for name in run]
            for nth, row in (yield from ask(self.dialect, "sweeping.newest", NEWEST, params)):
                count, low, high = int(row[0]), row[3], row[4]
                if count:
                    one = Swept().plus(row, low - 1, high + 1, whole=count < NEWEST_MAX)
                    swept[run[nth]] = one
        return swept

    def _next(self, name: str, seen: Swept) -> list[Any]:
        return [self.dialect.text(name), seen.end, seen.parts[0].after + 1, PART_MAX]

    def behind(
        self, wanted: Sequence[tuple[Member, Sequence[Part]]]
    ) -> Operation[dict[int, list[Behind]]]:
        """How far groups are in each of some parts."""
        pairs = [(member, part) for member, parts in wanted for part in parts]
        found: dict[int, list[Behind]] = {member.id: [] for member, _ in wanted}
        for run in runs(pairs, [part.partitions for _, part in pairs]):
            params = [self._behind(*pair) for pair in run]
            rows = dict((yield from ask(self.dialect, "sweeping.behind", BEHIND, params)))
            for nth, (member, _) in enumerate(run):
                row = rows[nth]
                found[member.id].append(Behind(*(int(value or 0) for value in row)))
        return found

    def _behind(self, member: Member, part: Part) -> list[Any]:
        own = (member.id, part.after, part.before)
        return [*own, *own, member.id, *self.places(member, part)]

    def places(self, member: Member, part: Part) -> list[Any]:
        """The parameters of PLACES."""
        ends = (part.after, part.before)
        return [self.dialect.text(member.topic), *ends, member.id, *ends]


def with_next(seen: Swept, row: Sequence[Any]) -> Swept:
    """A topic with the part that comes next, which is the last one if it is not full."""
    count, high = int(row[0]), row[4]
    if not count:
        return seen._replace(whole=True)
    return seen.plus(row, seen.end, high + 1, whole=count < PART_MAX)


def ask(
    dialect: Dialect, name: str, template: str, params: Sequence[Sequence[Any]]
) -> Operation[list[tuple[int, Row]]]:
    """Ask the same of several, each with its number, in one statement that is a transaction by
    itself; the rows with those.
    """
    parts = [template.replace("<nth>", str(nth)) for nth in range(len(params))]
    sql = dialect.sql(" UNION ALL ".join(parts))
    flat = [value for each in params for value in each]
    result = yield Statement(name, sql, flat, sole=True)
    return [(int(nth), row) for nth, *row in result]


def runs(items: Sequence[Any], looks: Sequence[int]) -> Iterator[list[Any]]:
    """The items in runs that one statement asks for, given how much each makes it look at."""
    run: list[Any] = []
    room = LOOKS_MAX
    for item, size in zip(items, looks, strict=True):
        if run and (len(run) == PARTS_MAX or size > room):
            yield run
            run, room = [], LOOKS_MAX
        run.append(item)
        room -= size
    if run:
        yield run


def fair(wanted: Mapping[int, Sequence[tuple[Part, int]]], most: int) -> dict[int, list[Part]]:
    """Which parts to look at, of each who wants some, given what each part costs.

    All of them, if they cost no more than `most` together. Else those who want little have it, and
    the others share what is left; each has the newest part, and then the oldest, the newest but
    one and so on, as far as its share goes.
    """
    costs = {id: sum(cost for _, cost in parts) for id, parts in wanted.items()}
    chosen: dict[int, list[Part]] = {}
    for nth, id in enumerate(sorted(wanted, key=costs.__getitem__)):
        share = most // (len(wanted) - nth)
        chosen[id] = []
        for part, cost in ends_first(wanted[id]):
            if chosen[id] and cost > share:
                break
            chosen[id].append(part)
            share -= cost
            most = max(0, most - cost)
    return chosen


def ends_first(parts: Sequence[tuple[Part, int]]) -> Iterable[tuple[Part, int]]:
    """The first, which is the newest; then from both ends towards the middle."""
    yield from parts[:1]
    rest = list(parts[1:])
    while rest:
        yield rest.pop(0)
        if rest:
            yield rest.pop()


_SUMS = """
    SELECT <nth>, COUNT(*), SUM(p.next_offset - 1), SUM(p.next_offset - p.first_offset),
           MIN(p.id), MAX(p.id)
    FROM (
        SELECT q.id, q.first_offset, q.next_offset FROM {partitions} q WHERE q.topic = ?"""

NEWEST = f"""{_SUMS}
        ORDER BY q.topic DESC, q.id DESC LIMIT ?) p"""

NEXT = f"""{_SUMS} AND q.id > ? AND q.id < ?
        ORDER BY q.topic, q.id LIMIT ?) p"""

# A part of a topic, and a group's places in it, which are NULL where it has none. Each is a stretch
# of an index, whatever a plan may think of them: a join might read all of the group's places, or
# all of one stretch for each row of the other.
PLACES = """(
        SELECT w.partition_id, MAX(w.group_id) AS group_id, MAX(w.partition_key) AS partition_key,
               MAX(w.first_offset) AS first_offset, MAX(w.next_offset) AS next_offset,
               MAX(w.offset_acked) AS offset_acked, MAX(w.offset_delivered) AS offset_delivered,
               MAX(w.tail_first) AS tail_first, MAX(w.leased_by) AS leased_by
        FROM (
            SELECT q.id AS partition_id, NULL AS group_id, q.partition_key, q.first_offset,
                   q.next_offset, NULL AS offset_acked, NULL AS offset_delivered,
                   NULL AS tail_first, NULL AS leased_by
            FROM {partitions} q WHERE q.topic = ? AND q.id > ? AND q.id < ?
            UNION ALL
            SELECT o.partition_id, o.group_id, NULL, NULL, NULL, o.offset_acked, o.offset_delivered,
                   o.tail_first, o.leased_by
            FROM {offsets} o WHERE o.group_id = ? AND o.partition_id > ? AND o.partition_id < ?
        ) w
        GROUP BY w.partition_id
    )"""

BEHIND = f"""
    SELECT <nth>, COUNT(*), SUM(b.published), SUM(b.above),
           SUM(CASE WHEN b.above > 0 THEN 1 ELSE 0 END), SUM(b.tail),
           (SELECT SUM(d.last_offset - d.first_offset + 1) FROM {{delivery_state}} d
            WHERE d.group_id = ? AND d.partition_id > ? AND d.partition_id < ?
              AND d.state = {int(State.ACKED)}),
           (SELECT SUM(d.last_offset - d.first_offset + 1) FROM {{delivery_state}} d
            JOIN {{offsets}} o ON o.group_id = d.group_id AND o.partition_id = d.partition_id
            JOIN {{subscribers}} s ON s.id = o.leased_by AND s.expires_at > {{now}}
            WHERE d.group_id = ? AND d.partition_id > ? AND d.partition_id < ?
              AND d.state = {int(State.DELIVERED)})
    FROM (
        SELECT p.next_offset - 1 AS published,
               p.next_offset - 1 - COALESCE(p.offset_acked, p.first_offset - 1) AS above,
               CASE WHEN p.offset_delivered >= p.tail_first AND p.leased_by IN (
                        SELECT s.id FROM {{subscribers}} s
                        WHERE s.group_id = ? AND s.expires_at > {{now}})
                    THEN p.offset_delivered - p.tail_first + 1 ELSE 0 END AS tail
        FROM {PLACES} p
    ) b"""
