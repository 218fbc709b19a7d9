"""What became of a job, from all that is known of it.

Nothing is written down for this: when it was put and is due stands in the job, who has it in a
lock, why attempts failed in their notes, and how it ended in the archive.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from rowmq.inspection import JobEvent, JobStep
from rowmq.message import JobError, State
from rowmq.store.archive import LOCKS, Record
from rowmq.store.dialect import as_text
from rowmq.store.listing import Listing
from rowmq.store.statement import Operation, Statement
from rowmq.times import from_micros

__all__ = ["Histories"]


class Claim(NamedTuple):
    """When an attempt began, and who has the job; that is known only as long as they do."""

    at: int
    attempt: int
    worker: str | None = None


class Histories:
    """The operation that tells of a job, for one dialect."""

    def __init__(self, listing: Listing) -> None:
        self.listing = listing
        self.archive = listing.archive
        self.dialect = listing.dialect

    def timeline(
        self, queue: str, kinds: Collection[str] | None, id: int
    ) -> Operation[list[JobEvent]]:
        """What has happened to a job, in order; nothing, if it is not there."""
        record = yield from self.listing.get(queue, kinds, id)
        if record is None:
            return []
        errors = yield from self.archive.errors(id)
        finished = record.finished_at is not None
        early = ended_early(record, errors)
        last = self._last(queue, record, early=early) if finished else self._lock(record)
        claim = yield from last
        events = [*begun(record), *tried(errors), *ended(record, early=early)]
        if claim is not None:
            what, moment = JobStep.CLAIMED, from_micros(claim.at)
            events.append(
                JobEvent(at=moment, what=what, attempt=claim.attempt, worker=claim.worker)
            )
        return sorted(events, key=lambda event: (event.at, ORDER.index(event.what)))

    def _lock(self, record: Record) -> Operation[Claim | None]:
        """The claim of a live job, if it has one."""
        sql = self.dialect.sql(CLAIMED.replace("<which>", f"WHERE {self.dialect.packs}"))
        params = (self.dialect.packed(record.id),)
        result = yield Statement("histories.lock", sql, params, sole=True)
        for claimed, settled, claimed_at, owner in result:
            marks = as_text(settled)
            for place, entry in enumerate(self.dialect.unpack(claimed)):
                if entry[0] == record.id and marks[place] == "0":
                    return Claim(claimed_at, record.attempts + 1, as_text(owner))
        return None

    def _last(self, queue: str, record: Record, *, early: bool) -> Operation[Claim | None]:
        """The last claim of a job that is done; one that ended early may not have been claimed."""
        completed = record.state is State.COMPLETED
        sql = COMPLETED if completed else FAILED
        where = (self.dialect.text(queue), record.finished_at) if completed else ()
        params = (*where, record.id)
        for (started_at,) in (
            yield Statement("histories.started", self.dialect.sql(sql), params, sole=True)
        ):
            if early and started_at == record.finished_at:
                return None
            return Claim(started_at, record.attempts + 1 if early else record.attempts)
        return None


def begun(record: Record) -> Iterable[JobEvent]:
    """When it was put, and when it is due, if it was put for later or is tried again."""
    yield JobEvent(at=from_micros(record.created_at), what=JobStep.PUT)
    if record.due_at != record.created_at:
        yield JobEvent(at=from_micros(record.due_at), what=JobStep.DUE)


def tried(errors: Iterable[JobError]) -> Iterable[JobEvent]:
    """Why attempts failed."""
    for error in errors:
        yield JobEvent(
            at=error.failed_at,
            what=JobStep.ATTEMPT_FAILED,
            attempt=error.attempt,
            error=error.error,
        )


def ended_early(record: Record, errors: Sequence[JobError]) -> bool:
    """Whether a job failed before its next attempt ended, as it was refused or given up: then the
    last one that has ended has a note, which one that ends a job has not.
    """
    noted = errors[-1].attempt if errors else 0
    return record.state is State.FAILED and record.attempts in (0, noted)


def ended(record: Record, *, early: bool) -> Iterable[JobEvent]:
    """How it ended, if it did."""
    if record.finished_at is not None:
        failed = record.state is State.FAILED
        yield JobEvent(
            at=from_micros(record.finished_at),
            what=JobStep.FAILED if failed else JobStep.COMPLETED,
            attempt=None if early else record.attempts,
            error=record.error,
        )


ORDER = list(JobStep)
"""What is told first of what has the same time."""

CLAIMED = LOCKS.replace(
    "token, claimed, settled, CASE WHEN locked_until <= {now} THEN 1 ELSE 0 END",
    "claimed, settled, claimed_at, owner",
)

COMPLETED = """
    SELECT started_at FROM {completed}
    WHERE queue_id = (SELECT id FROM {queues} WHERE queue = ?) AND finished_at = ? AND job_id = ?"""

FAILED = "SELECT started_at FROM {failed} WHERE job_id = ?"
