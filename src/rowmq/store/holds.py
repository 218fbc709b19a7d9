r"""Holds: a job that stays in `ready`, its row locked by a transaction for as long as it runs.

The transaction is the lock: if its process dies, the database lets go of the row. So that such a
death is counted, the start is written down by another connection, once the row is locked; whoever
gets the job next finds that note, and nobody there.

    take (locks the row) -> mark (committed beside it) -> the caller's own writes -> finish, COMMIT
                                                       \-> ROLLBACK -> fail (counts, or gives up)
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rowmq.store.claims import (
    HEAD_OF_LANE,
    ClaimedJob,
    Claims,
    Cursor,
    Entry,
    OpenLane,
    Permits,
)
from rowmq.store.lines import READY_KEY, ReadyRow
from rowmq.store.queues import RATE
from rowmq.store.settles import JOB_ERROR, Held, Kind, Settle, Settles
from rowmq.store.statement import Operation, Statement

__all__ = ["HeldJob", "Holds"]

PASSED_OVER_MAX = 100
"""How many jobs are passed over in one go because somebody has their key."""


class HeldJob(NamedTuple):
    """A job whose ready row this transaction has locked."""

    lane: OpenLane
    row: ReadyRow
    job: ClaimedJob
    starts: int
    """How many held it before and died."""
    taken_at: int

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
        self.claims: Claims = settles.claims
        self.jobs = settles.jobs
        self.queues = settles.queues
        self.dialect = settles.dialect

    def take(self, lanes: Sequence[OpenLane], *, newest: bool) -> Operation[HeldJob | None]:
        """Lock the first job that is due, or the newest, and that nobody else has."""
        cursors: dict[OpenLane, Cursor] = dict.fromkeys(lanes, HEAD_OF_LANE)
        permits = yield from self.claims.take_permits(lanes, 1)
        for _ in range(PASSED_OVER_MAX):
            row = yield from self._lock_first(cursors, permits, newest=newest)
            if row is None:
                return None
            lane = next(lane for lane in lanes if lane.id == row.lane_id)
            held = yield from self._held(lane, row)
            if held is not None:
                yield from self._start(lane, permits)
                return held
            if newest:
                return None
            cursors[lane] = (row.due_at, row.job_id + 1)
        return None

    def _lock_first(
        self, cursors: Mapping[OpenLane, Cursor], permits: Mapping[int, Permits], *, newest: bool
    ) -> Operation[ReadyRow | None]:
        counts = yield from self.claims.shares(cursors, 1, permits, newest=newest)
        for lane in counts:
            rows = yield from self.claims.lock_ready(lane, cursors[lane], 1, newest=newest)
            if rows:
                return rows[0]
        return None

    def _held(self, lane: OpenLane, row: ReadyRow) -> Operation[HeldJob | None]:
        """The job of a locked row, if nobody has its key."""
        entry = Entry(row.job_id, row.lane_id, row.due_at, row.attempts, row.deliveries)
        jobs = yield from self.claims.fetch([entry])
        if not jobs:
            return None
        if jobs[0].key is not None:
            identity = (lane.queue_id, jobs[0].key, lane.kind)
            held = yield from self.jobs.find_keys([identity], skip=True)
            if identity not in held:
                return None
        sql = self.dialect.sql(STARTS)
        result = yield Statement("holds.starts", sql, (row.job_id, row.job_id))
        ((starts, now),) = result.rows
        return HeldJob(lane, row, jobs[0], starts or 0, now)

    def _start(self, lane: OpenLane, permits: Mapping[int, Permits]) -> Operation[None]:
        """Use up a rate's permit; one for jobs in flight is in use while it is locked."""
        found = permits.get(lane.queue_id)
        if found is not None:
            free = found.free.get(RATE, [])[:1]
            until = found.now + found.period_us
            yield from self.claims.set_permits([(lane.queue_id, RATE, n, until, 0) for n in free])

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
        now = (yield Statement("holds.now", self.dialect.sql("SELECT {now}"))).rows[0][0]
        yield from self.queues.delete("holds.take", "{ready}", READY_KEY, [held.row[:3]])
        yield from self.settles.finish([settle], {0: Held("0", held.taken_at, now)})
        if settle.key is not None:
            keys = yield from self.jobs.find_keys([settle.identity])
            yield from self.jobs.free_keys(keys.values())
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
        now = (yield Statement("holds.now", self.dialect.sql("SELECT {now}"))).rows[0][0]
        note = [(row.job_id, now, failures, error)]
        yield from self.queues.insert("holds.note_error", "{job_errors}", JOB_ERROR, note)
        return False


STARTS = """
    SELECT (SELECT starts FROM {holds} WHERE job_id = ?), {now} FROM {jobs} WHERE id = ?"""

NOTE = "INSERT INTO {holds} (job_id, starts, started_at) VALUES (?, ?, {now})"

LOCK_ROW = """
    SELECT lane_id, due_at, job_id, attempts, deliveries FROM {ready}
    WHERE lane_id = ? AND due_at = ? AND job_id = ? {skip_locked}"""

FAIL = """
    UPDATE {ready} SET attempts = attempts + 1, deliveries = deliveries + 1
    WHERE lane_id = ? AND due_at = ? AND job_id = ?"""
