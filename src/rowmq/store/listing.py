"""Live jobs as people look for them: those of a queue, soonest first, and one by its id.

A job does not say where it stands: it is in `ready`, in a lock, in a line, or in the archive, and
is looked for there, always by an index. What is asked for rarely has none of its own: to find the
retryable jobs of a queue is to look through what is ready in it, as counting them is.
"""

from collections.abc import Collection, Iterable
from typing import NamedTuple

from rowmq.codec import BEGINNING_BYTES
from rowmq.message import State
from rowmq.store.archive import Archive, Lanes, Record, id_list, record_of
from rowmq.store.dialect import as_text, as_text_or_none
from rowmq.store.postings import Stored
from rowmq.store.statement import Operation, Statement

__all__ = ["LIVE", "Found", "Listing", "waiting_state"]

LOOKS_MAX = 3
"""How often one job is looked for."""

LIVE = (State.PENDING, State.PROCESSING, State.RETRYABLE)
"""The states of jobs that are not in the archive."""


class Found(NamedTuple):
    """Where a job stands."""

    state: State
    attempts: int
    deliveries: int
    due_at: int | None
    """None if it is as the job's own row says."""
    error: str | None = None
    finished_at: int | None = None


class Listing:
    """The operations that look for jobs, for one dialect."""

    def __init__(self, archive: Archive) -> None:
        self.archive = archive
        self.jobs = archive.jobs
        self.dialect = archive.dialect

    # --- the live jobs of a queue -----------------------------------------------------------------

    def list_live(
        self, queue: str, kinds: Collection[str] | None, *, states: Collection[State], limit: int
    ) -> Operation[list[Record]]:
        """Live jobs, soonest first; those that wait behind another of their line come last."""
        lanes = yield from self.archive.lanes(queue, kinds)
        if lanes is None or not lanes.ids:
            return []
        found = yield from self._ready(lanes, states, limit)
        found |= yield from self._claimed(lanes, states)
        chosen = soonest(found)[:limit]
        if State.PENDING in states and len(chosen) < limit:
            waiting = yield from self._waiting(lanes, limit)
            waiting = {id: waiting[id] for id in waiting if id not in found}
            found |= waiting
            chosen += soonest(waiting)
        return (yield from self.records(chosen[:limit], found))

    def _ready(
        self, lanes: Lanes, states: Collection[State], limit: int
    ) -> Operation[dict[int, Found]]:
        tried = {State.PENDING: "AND attempts = 0", State.RETRYABLE: "AND attempts > 0"}
        wanted = [tried[state] for state in (State.PENDING, State.RETRYABLE) if state in states]
        if not wanted:
            return {}
        which = wanted[0] if len(wanted) == 1 else ""
        sql = self.dialect.sql(READY_OF_LANE.replace("<which>", which))
        found = {}
        for lane in sorted(lanes.ids):
            rows = yield Statement("listing.ready", sql, (lane, limit), sole=True)
            for id, due_at, attempts, deliveries in rows:
                found[id] = Found(waiting_state(attempts), attempts, deliveries, due_at)
        return found

    def _claimed(self, lanes: Lanes, states: Collection[State]) -> Operation[dict[int, Found]]:
        found = {}
        for entry, expired in (yield from self.archive.claimed(lanes.ids)):
            state = waiting_state(entry.attempts) if expired else State.PROCESSING
            if state in states:
                found[entry.job_id] = Found(state, entry.attempts, entry.deliveries, entry.due_at)
        return found

    def _waiting(self, lanes: Lanes, limit: int) -> Operation[dict[int, Found]]:
        of_kinds = "" if lanes.whole else f"AND lane_id IN ({id_list(lanes.ids)})"
        sql = self.dialect.sql(WAITING_OF_QUEUE.replace("<kinds>", of_kinds))
        rows = yield Statement("listing.waiting", sql, (lanes.queue_id, limit), sole=True)
        return {id: Found(State.PENDING, 0, 0, due_at) for id, due_at in rows}

    def records(
        self, ids: Iterable[int], found: dict[int, Found], *, whole: bool = True
    ) -> Operation[list[Record]]:
        ids = list(ids)
        rows = yield from self.archive.fetch(ids, whole=whole)
        records = [
            record_of(
                rows[id],
                found[id].state,
                found[id].attempts,
                found[id].deliveries,
                due_at=found[id].due_at,
                error=found[id].error,
                finished_at=found[id].finished_at,
            )
            for id in ids
            if id in rows  # else it was settled between two looks, and is not kept
        ]
        return records if whole else [cut_if_longer(record) for record in records]

    # --- one job ----------------------------------------------------------------------------------

    def get(self, queue: str, kinds: Collection[str] | None, id: int) -> Operation[Record | None]:
        """A job by its id, alive or in the archive."""
        lanes = yield from self.archive.lanes(queue, kinds)
        stored = yield from self.jobs.stored([id], only_look=True)
        if lanes is None or id not in stored or stored[id].lane_id not in lanes.ids:
            return None
        return (yield from self._record(stored[id]))

    def find(self, id: int) -> Operation[tuple[str, Record] | None]:
        """A job by its id, and the queue that it is in, whichever that is."""
        stored = yield from self.jobs.stored([id], only_look=True)
        if id not in stored:
            return None
        record = yield from self._record(stored[id])
        params = (stored[id].queue_id,)
        names = yield Statement("listing.queue", self.dialect.sql(QUEUE), params, sole=True)
        return None if record is None else (as_text(names.rows[0][0]), record)

    def _record(self, job: Stored) -> Operation[Record | None]:
        """A job as it stands. One that moves is looked for again: it may have been nowhere."""
        for _ in range(LOOKS_MAX):
            found = yield from self._place(job)
            if found is not None:
                records = yield from self.records([job.id], {job.id: found})
                return records[0] if records else None
        return None

    def _place(self, job: Stored) -> Operation[Found | None]:
        """Where a job stands: where it is cheap to find it first."""
        failed = yield from self._find_failed(job)
        if failed is not None:
            return failed
        ready = yield from self._find_ready(job)
        if ready is not None:
            return ready
        if (yield from self._waits(job)):
            return Found(State.PENDING, 0, 0, job.due_at)
        claim = yield from self.archive.claim_of(job.id)
        if claim is not None:
            entry, expired = claim
            state = waiting_state(entry.attempts) if expired else State.PROCESSING
            return Found(state, entry.attempts, entry.deliveries, entry.due_at)
        # One that was tried again is where its notes say, unless the clock was set back meanwhile.
        for look in (self._find_retried, self._find_completed, self._find_later):
            found = yield from look(job)
            if found is not None:
                return found
        return None

    def _find_failed(self, job: Stored) -> Operation[Found | None]:
        sql = self.dialect.sql(FAILED_JOB)
        for attempts, deliveries, finished_at, error in (
            yield Statement("listing.failed", sql, (job.id,), sole=True)
        ):
            text = as_text_or_none(error)
            return Found(State.FAILED, attempts, deliveries, job.due_at, text, finished_at)
        return None

    def _find_completed(self, job: Stored) -> Operation[Found | None]:
        """By time, from when it was due: so what was completed before is not looked at."""
        sql, params = self.dialect.sql(COMPLETED_JOB), (job.queue_id, job.id, job.id)
        for attempts, deliveries, finished_at in (
            yield Statement("listing.completed", sql, params, sole=True)
        ):
            return Found(State.COMPLETED, attempts, deliveries, job.due_at, None, finished_at)
        return None

    def _find_retried(self, job: Stored) -> Operation[Found | None]:
        """Where it was to be tried again."""
        sql = self.dialect.sql(TRIED_AGAIN)
        for (due_at,) in (yield Statement("listing.tried_again", sql, (job.id,), sole=True)):
            found = yield from self._find_ready(job._replace(due_at=due_at))
            if found is not None:
                return found
        return None

    def _find_later(self, job: Stored) -> Operation[Found | None]:
        """Among all that is due later than it was at first."""
        return (yield from self._find_ready(job, "due_at > ?"))

    def _find_ready(self, job: Stored, due: str = "due_at = ?") -> Operation[Found | None]:
        sql = self.dialect.sql(READY_JOB.replace("<due>", due))
        params = (job.lane_id, job.due_at, job.id)
        for due_at, attempts, deliveries in (
            yield Statement("listing.find_ready", sql, params, sole=True)
        ):
            return Found(waiting_state(attempts), attempts, deliveries, due_at)
        return None

    def _waits(self, job: Stored) -> Operation[bool]:
        """Whether a job waits in its line."""
        if job.ordering_key is None:
            return False
        params = (job.queue_id, self.dialect.text(job.ordering_key), job.id)
        result = yield Statement("listing.waits", self.dialect.sql(WAITS), params, sole=True)
        return bool(result.rows)


def cut_if_longer(record: Record) -> Record:
    """The record of a job of whose payload the beginning was asked for."""
    return record._replace(cut=len(record.payload) > BEGINNING_BYTES)


def soonest(found: dict[int, Found]) -> list[int]:
    """Ids of jobs by when they are due."""
    return [id for _, id in sorted((job.due_at or 0, id) for id, job in found.items())]


def waiting_state(attempts: int) -> State:
    """Of a job that is to be claimed: whether it was tried before."""
    return State.RETRYABLE if attempts else State.PENDING


QUEUE = "SELECT queue FROM {queues} WHERE id = ?"

READY_OF_LANE = """
    SELECT job_id, due_at, attempts, deliveries FROM {ready}
    WHERE lane_id = ? <which> ORDER BY due_at, job_id LIMIT ?"""

WAITING_OF_QUEUE = """
    SELECT job_id, due_at FROM {waiting} WHERE queue_id = ? <kinds>
    ORDER BY ordering_key, precedence, due_at, job_id LIMIT ?"""

READY_JOB = """
    SELECT due_at, attempts, deliveries FROM {ready}
    WHERE lane_id = ? AND <due> AND job_id = ? ORDER BY due_at LIMIT 1"""

# The last note first; another of the same attempt may have been left out.
TRIED_AGAIN = """
    SELECT due_at FROM {job_errors} WHERE job_id = ? AND due_at IS NOT NULL
    ORDER BY job_id DESC, failed_at DESC, attempt DESC LIMIT 1"""

FAILED_JOB = "SELECT attempts, deliveries, finished_at, error FROM {failed} WHERE job_id = ?"

COMPLETED_JOB = """
    SELECT attempts, deliveries, finished_at FROM {completed}
    WHERE queue_id = ? AND finished_at >= (
        SELECT CASE WHEN due_at > created_at THEN due_at ELSE created_at END FROM {jobs}
        WHERE id = ?
    ) AND job_id = ?
    ORDER BY finished_at LIMIT 1"""

WAITS = """
    SELECT job_id FROM {waiting} WHERE queue_id = ? AND ordering_key = ? AND job_id = ?"""
