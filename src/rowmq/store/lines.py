"""Lines: the jobs of one ordering key, one after the other.

Only the head of a line is in `ready`, or claimed; the others wait. Whoever finishes the head puts
the next one there, in the same transaction; the last one takes the line's row with it. So a claim
knows nothing of lines, and costs nothing more for them. The order is that of claims: priority,
time, id. A head that is tried again stays the head, and whoever joins in front of one that was
never claimed, or was released, takes its place.

A line's row is locked by whoever joins it or ends its head: nobody can join a line unseen.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rowmq.errors import SerializationFailure
from rowmq.store.dialect import as_text
from rowmq.store.queues import Queues
from rowmq.store.statement import Operation, Statement

__all__ = ["READY", "READY_KEY", "TRIES_MAX", "WAITING_KEY", "Lines", "Member", "ReadyRow"]

TRIES_MAX = 10
"""How often a row that vanishes is made again, before it is given up."""

LineKey = tuple[int, str]
"""Queue and ordering key. Sorted, they are the order in which lines are locked."""


class ReadyRow(NamedTuple):
    """A job that can be claimed."""

    lane_id: int
    due_at: int
    job_id: int
    attempts: int = 0
    deliveries: int = 0


class Member(NamedTuple):
    """A job in a line."""

    queue_id: int
    ordering_key: str
    precedence: int
    due_at: int
    job_id: int
    lane_id: int

    @property
    def line(self) -> LineKey:
        return self.queue_id, self.ordering_key

    @property
    def order(self) -> tuple[int, int, int]:
        """Its place in the line; the lowest is first."""
        return self.precedence, self.due_at, self.job_id

    @property
    def waiting_key(self) -> tuple[int, str, int, int, int]:
        """The key of its row while it waits."""
        return (*self.line, *self.order)

    @property
    def ready(self) -> ReadyRow:
        return ReadyRow(self.lane_id, self.due_at, self.job_id)


class Lines:
    """The operations on lines, for one dialect."""

    def __init__(self, queues: Queues) -> None:
        self.queues = queues
        self.dialect = queues.dialect

    def join(self, members: Sequence[Member]) -> Operation[list[ReadyRow]]:
        """Add jobs to their lines; those that are heads now are to be made ready."""
        if not members:
            return []
        heads = yield from self.lock({member.line for member in members}, create=True)
        joining: dict[LineKey, list[Member]] = {}
        for member in sorted(members, key=lambda member: member.order):
            joining.setdefault(member.line, []).append(member)
        new_heads: list[Member] = []
        old_heads: list[Member] = []
        waiting: list[Member] = []
        for line, group in joining.items():
            first, head = group[0], heads[line]
            if head and first.order < head.order and (yield from self.displace(head)):
                waiting.append(head)
                head = None
                # Others may have come before it while it was claimed, and then it was released.
                for longest in (yield from self.first_waiting([line])):
                    if longest.order < first.order:
                        yield from self.move_up([longest])
                        group.insert(0, longest)
            if head is None:
                new_heads.append(group.pop(0))
            else:
                old_heads.append(head)
            waiting += group
        yield from self.queues.insert("lines.wait", "{waiting}", MEMBER, waiting)
        # Also where the head stays: who reads an older snapshot must not miss those who joined.
        yield from self.set_heads([*new_heads, *old_heads])
        return [head.ready for head in new_heads]

    def leave(self, members: Iterable[tuple[LineKey, int]]) -> Operation[list[ReadyRow]]:
        """Jobs are done with: who comes after those that were heads is to be made ready."""
        gone: dict[LineKey, set[int]] = {}
        for line, job_id in members:
            gone.setdefault(line, set()).add(job_id)
        if not gone:
            return []
        heads = yield from self.lock(gone, create=False)
        ended = [
            line for line, ids in gone.items() if (head := heads.get(line)) and head.job_id in ids
        ]
        following = yield from self.first_waiting(sorted(ended))
        yield from self.move_up(following)
        yield from self.set_heads(following)
        empty = sorted(set(ended) - {member.line for member in following})
        yield from self.queues.delete("lines.end", "{lines}", LINE_KEY, empty)
        return [member.ready for member in following]

    def lock(
        self, lines: Iterable[LineKey], *, create: bool
    ) -> Operation[dict[LineKey, Member | None]]:
        """Lock lines, in order, and tell their heads; those that are not there are made, if that is
        asked for, or left out.
        """
        wanted = sorted(set(lines))
        found: dict[LineKey, Member | None] = {}
        for _ in range(TRIES_MAX):
            missing = [line for line in wanted if line not in found]
            if not missing:
                return found
            if create:
                ending = self.dialect.unless_there("head_id")
                rows = [(*line, 0, 0, 0, 0) for line in missing]  # job 0 is nobody
                yield from self.queues.insert("lines.create", "{lines}", HEAD, rows, ending)
            for queue_id, key, precedence, due, job_id, lane_id in (
                yield from self.queues.select("lines.lock", LOCK, LINE_KEY, missing)
            ):
                line = (queue_id, as_text(key))
                head = Member(*line, precedence, due, job_id, lane_id)
                found[line] = head if job_id else None
            if not create:
                return found
        raise SerializationFailure("a line was made and taken away again and again")

    def displace(self, head: Member) -> Operation[bool]:
        """Take a head out of `ready`, if it was never claimed and is not just being claimed."""
        sql, params = self.dialect.sql(UNCLAIMED), (head.lane_id, head.due_at, head.job_id)
        result = yield Statement("lines.unclaimed", sql, params)
        if not result.rows:
            return False
        yield from self.queues.delete("lines.displace", "{ready}", READY_KEY, [params])
        return True

    def first_waiting(self, lines: Sequence[LineKey]) -> Operation[list[Member]]:
        """Who is first among those that wait, for each line that has any."""
        found = []
        for run in self.queues.runs(lines):
            sql = " UNION ALL ".join([FIRST_WAITING] * len(run))
            params = [v for queue_id, key in run for v in (queue_id, self.dialect.text(key))]
            result = yield Statement("lines.first_waiting", self.dialect.sql(sql), params)
            for queue_id, key, *rest in result:
                found.append(Member(queue_id, as_text(key), *rest))
        return found

    def move_up(self, members: Sequence[Member]) -> Operation[None]:
        """Those that waited wait no more."""
        rows = [member.waiting_key for member in members]
        yield from self.queues.delete("lines.move_up", "{waiting}", WAITING_KEY, rows)

    def set_heads(self, heads: Sequence[Member]) -> Operation[None]:
        """Write down who the heads of locked lines are."""
        yield from self.queues.update("lines.set_heads", "{lines}", HEAD, tuple(LINE_KEY), heads)


READY_KEY = {"lane_id": "bigint", "due_at": "bigint", "job_id": "bigint"}
READY = READY_KEY | {"attempts": "integer", "deliveries": "integer"}

LINE_KEY = {"queue_id": "bigint", "ordering_key": "text"}
WAITING_KEY = LINE_KEY | {"precedence": "integer", "due_at": "bigint", "job_id": "bigint"}
MEMBER = WAITING_KEY | {"lane_id": "bigint"}
HEAD = LINE_KEY | {
    "head_order": "integer",
    "head_due": "bigint",
    "head_id": "bigint",
    "head_lane": "bigint",
}

LOCK = """
    SELECT l.queue_id, l.ordering_key, l.head_order, l.head_due, l.head_id, l.head_lane
    FROM (<source>) w
    {join} {lines} l {by_key} ON l.queue_id = w.queue_id AND l.ordering_key = w.ordering_key
    ORDER BY l.queue_id, l.ordering_key {for_update}"""

UNCLAIMED = """
    SELECT job_id FROM {ready}
    WHERE lane_id = ? AND due_at = ? AND job_id = ? AND deliveries = 0 {skip_locked}"""

FIRST_WAITING = """
    SELECT * FROM (
        SELECT queue_id, ordering_key, precedence, due_at, job_id, lane_id FROM {waiting}
        WHERE queue_id = ? AND ordering_key = ?
        ORDER BY queue_id, ordering_key, precedence, due_at, job_id LIMIT 1 {as_now}
    ) AS first_in_line"""
