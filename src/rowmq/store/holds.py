r"""Holds: a job that stays in `ready`, its row locked by a transaction for as long as it runs.

The transaction is the lock: if its process dies, the database lets go of the row. So that such a
death is counted, the start is written down by another connection, once the row is locked; whoever
gets the job next finds that note, and nobody there.

    take (locks the row) -> mark (committed beside it) -> the caller's own writes -> finish, COMMIT
                                                       \-> ROLLBACK -> fail (counts, or gives up)
"""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from rowmq.store.claims import ClaimedJob, Entry, OpenLane, Permits, is_of
from rowmq.store.lines import READY_KEY, ReadyRow
from rowmq.store.queues import RATE
from rowmq.store.settles import Held, Kind, Settle, Settles, stale
from rowmq.store.statement import Operation, Statement

__all__ = ["HeldJob", "Holds"]


class HeldJob(NamedTuple):
    """A job whose ready row this transaction has locked."""

    lane: OpenLane
    row: ReadyRow
    job: ClaimedJob
    starts: int
    """How many held it before and died."""
    taken_at: int
    rate_permit: int = 0
    """The number of the permit of the queue's rate that was used up; 0 if there is no rate."""

    @property
    def failures(self) -> int:
        """How often it was tried in vain."""
        return self.row.attempts + self.starts

    def settle(self, kind: Kind, *, attempts: int, error: str | None = None) -> Settle:
        """What becomes of it, after so many attempts."""
        deliveries = self.row.deliveries + self.starts + 1
        return Settle(
            kind=kind,
            token=0,
            position=0,
            queue=self.lane.queue,
            queue_id=self.lane.queue_id,
            entry=Entry(
                self.row.job_id, self.row.lane_id, self.row.due_at, attempts - 1, deliveries
            ),
            job_kind=self.lane.kind,
            key=self.job.key,
            ordering_key=self.job.ordering_key,
            error=error,
        )


class Holds:
    """The operations on held jobs, for one dialect."""

    def __init__(self, settles: Settles) -> None:
        self.settles = settles
        self.claims = settles.claims
        self.jobs = settles.jobs
        self.queues = settles.queues
        self.dialect = settles.dialect

    def take(
        self, lanes: Sequence[OpenLane], *, newest: bool, passed: Collection[int] = ()
    ) -> Operation["HeldJob | int | None"]:
        """Lock the first job that is due, or the newest, that nobody else has, but for those that
        are to be passed over.

        A number is the id of a job whose key somebody has: its row is locked now, so the caller
        ends this transaction, and passes it over in the next.
        """
        permits = yield from self.claims.take_permits(lanes, 1)
        allowed = [lane for lane in lanes if lane.queue_id not in permits or room(permits, lane)]
        for lane in sorted(allowed, key=lambda lane: lane.precedence):
            row = yield from self._lock_first(lane, allowed, newest=newest, passed=passed)
            if row is not None:
                held = yield from self._held(by_id(allowed, row.lane_id), row)
                if held is None:
                    return row.job_id
                return (yield from self._start(held, permits))
        return None

    def _lock_first(
        self,
        lane: OpenLane,
        lanes: Sequence[OpenLane],
        *,
        newest: bool,
        passed: Collection[int],
    ) -> Operation[ReadyRow | None]:
        """Lock the first job of the lanes that have this one's precedence: by time, then id."""
        equals = [other for other in lanes if other.precedence == lane.precedence]
        order = "r.due_at DESC, r.job_id DESC" if newest else "r.due_at, r.job_id"
        excluded = f"AND r.job_id NOT IN ({', '.join('?' for _ in passed)})" if passed else ""
        first: list[tuple[int, int, OpenLane]] = []
        template = FIRST.replace("<passed>", excluded).replace("<order>", order)
        for other in equals:
            sql = self.dialect.sql(template.replace("<lock>", ""))
            result = yield Statement("holds.peek", sql, (other.id, *passed))
            first += [(due, id, other) for _, due, id, *_ in result]
        sql = self.dialect.sql(template.replace("<lock>", "{skip_locked}"))
        for *_, other in sorted(first, key=lambda found: found[:2], reverse=newest):
            result = yield Statement("holds.lock_first", sql, (other.id, *passed))
            if result.rows:
                return ReadyRow(*result.rows[0])
        return None

    def _held(self, lane: OpenLane, row: ReadyRow) -> Operation[HeldJob | None]:
        """The job of a locked row, if nobody else has its key."""
        entry = Entry(row.job_id, row.lane_id, row.due_at, row.attempts, row.deliveries)
        jobs = yield from self.claims.fetch([entry])
        if not jobs:
            return None
        if jobs[0].key is not None:
            identity = (lane.queue_id, jobs[0].key, lane.kind)
            held = yield from self.jobs.find_keys([identity], skip=True)
            if not is_of(held.get(identity), row.job_id):
                return None
        sql = self.dialect.sql(STARTS)
        result = yield Statement("holds.starts", sql, (row.job_id, row.job_id))
        ((starts, now),) = result.rows
        return HeldJob(lane, row, jobs[0], starts or 0, now)

    def _start(self, held: HeldJob, permits: Mapping[int, Permits]) -> Operation[HeldJob]:
        """Use up a permit of the rate; one for jobs in flight is in use while it is locked."""
        found = permits.get(held.lane.queue_id)
        free = [] if found is None else found.free.get(RATE, [])
        if not free:
            return held
        held = held._replace(rate_permit=free[0])
        yield from self._use_rate(held)
        return held

    def _use_rate(self, held: HeldJob) -> Operation[None]:
        params = (held.lane.queue_id, held.lane.queue_id, RATE, held.rate_permit)
        yield Statement("holds.use_rate", self.dialect.sql(USE_RATE), params)

    def _use_rate_again(self, held: HeldJob) -> Operation[None]:
        """That it was used was rolled back. If somebody else has it by now, it is used up."""
        if not held.rate_permit:
            return
        params = (held.lane.queue_id, RATE, held.rate_permit)
        result = yield Statement("holds.lock_rate", self.dialect.sql(LOCK_RATE), params)
        if result.rows:
            yield from self._use_rate(held)

    def mark(self, held: HeldJob) -> Operation[None]:
        """Write down that it is started, apart from the transaction that holds it."""
        yield from self._note(held.row.job_id, held.starts + 1)

    def unmark(self, held: HeldJob) -> Operation[None]:
        """Take it back: whoever held it was stopped, and that is no failure of the job."""
        yield from self._note(held.row.job_id, held.starts)

    def _note(self, job_id: int, starts: int) -> Operation[None]:
        yield from self.queues.delete("holds.forget", "{holds}", {"job_id": "bigint"}, [(job_id,)])
        if starts:
            sql = self.dialect.sql(NOTE)
            yield Statement("holds.note", sql, (job_id, starts))

    def finish(self, held: HeldJob, settle: Settle) -> Operation[None]:
        """Settle a held job in the transaction that holds it."""
        now = yield from self.dialect.clock("holds.now")
        if settle.key is not None:
            keys = yield from self.jobs.find_keys([settle.identity])
            if not is_of(keys.get(settle.identity), held.row.job_id):
                raise stale(settle)  # by this very transaction: nobody else could
            yield from self.jobs.free_keys(keys.values())
        yield from self.queues.delete("holds.take", "{ready}", READY_KEY, [held.row[:3]])
        keeps = yield from self.queues.keeps([settle.queue_id])
        yield from self.settles.finish([settle], {0: Held("0", held.taken_at, now)}, keeps)
        if settle.ordering_key is not None:
            line = (settle.queue_id, settle.ordering_key)
            ready = yield from self.jobs.lines.leave([(line, held.row.job_id)])
            yield from self.jobs.make_ready(ready)
        yield from self._note(held.row.job_id, 0)

    def fail(self, held: HeldJob, *, error: str, max_failures: int) -> Operation[bool]:
        """Count a failure, after the transaction that held the job was rolled back; whether the job
        is given up.

        If somebody else has it already, the note of the start stands for this failure.
        """
        yield from self._use_rate_again(held)
        sql, params = self.dialect.sql(LOCK_ROW), held.row[:3]
        result = yield Statement("holds.lock_row", sql, params)
        if not result.rows:
            return False
        row = ReadyRow(*result.rows[0])
        failures = row.attempts + held.starts + 1
        if failures >= max_failures:
            settle = held.settle(Kind.REJECT, attempts=failures, error=error)
            yield from self.finish(held, settle)
            return True
        yield from self._note(row.job_id, held.starts)
        yield Statement("holds.fail", self.dialect.sql(FAIL), params)
        now = yield from self.dialect.clock("holds.now")
        note = [(row.job_id, now, failures, error, row.due_at)]
        yield from self.jobs.note_errors("holds.note_error", note)
        return False


def room(permits: Mapping[int, Permits], lane: OpenLane) -> bool:
    return permits[lane.queue_id].room > 0


def by_id(lanes: Sequence[OpenLane], id: int) -> OpenLane:
    return next(lane for lane in lanes if lane.id == id)


FIRST = """
    SELECT r.lane_id, r.due_at, r.job_id, r.attempts, r.deliveries FROM {ready} r
    WHERE r.lane_id = ? AND r.due_at <= (SELECT {now}) <passed>
    ORDER BY <order> LIMIT 1 <lock>"""

LOCK_RATE = """
    SELECT number FROM {permits} WHERE queue_id = ? AND purpose = ? AND number = ? {skip_locked}"""

USE_RATE = """
    UPDATE {permits} SET free_at = {now} + (SELECT rate_period_us FROM {queues} WHERE id = ?)
    WHERE queue_id = ? AND purpose = ? AND number = ?"""

STARTS = """
    SELECT (SELECT starts FROM {holds} WHERE job_id = ?), {now} FROM {jobs} WHERE id = ?"""

NOTE = "INSERT INTO {holds} (job_id, starts, started_at) VALUES (?, ?, {now})"

LOCK_ROW = """
    SELECT lane_id, due_at, job_id, attempts, deliveries FROM {ready}
    WHERE lane_id = ? AND due_at = ? AND job_id = ? {skip_locked}"""

FAIL = """
    UPDATE {ready} SET attempts = attempts + 1, deliveries = deliveries + 1
    WHERE lane_id = ? AND due_at = ? AND job_id = ?"""
