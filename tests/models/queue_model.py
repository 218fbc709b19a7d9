"""What a queue is, without a database: jobs, keys, lines and locks, in dictionaries."""

from dataclasses import dataclass, field, replace
from enum import Enum

from rowmq import Outcome
from rowmq.errors import AlreadySettled, StaleLease

__all__ = ["ATTEMPTS_MAX", "RETRY_US", "Claim", "Content", "Job", "QueueModel", "Where"]

ATTEMPTS_MAX = 3
RETRY_US = 30_000_000
"""What the handles of the queue are told of retries."""


class Where(Enum):
    """Where a job is."""

    READY = "ready"
    WAITING = "waiting"  # behind another of its line
    CLAIMED = "claimed"
    COMPLETED = "completed"
    FAILED = "failed"


@dataclass(frozen=True)
class Content:
    """What is put."""

    payload: int
    due: int
    priority: int = 0
    key: str | None = None
    line: str | None = None


@dataclass(eq=False)
class Lock:
    """A claim of some jobs."""

    until: int


@dataclass(eq=False)
class Job:
    """A job, and where it is."""

    id: int
    content: Content
    due: int
    where: Where = Where.READY
    attempts: int = 0
    deliveries: int = 0
    lock: Lock | None = None

    @property
    def order(self) -> tuple[int, int, int]:
        return -self.content.priority, self.due, self.id

    @property
    def alive(self) -> bool:
        return self.where in (Where.READY, Where.WAITING, Where.CLAIMED)


@dataclass(eq=False)
class Claim:
    """What a consumer has in hand: a job as it was claimed."""

    job: Job
    lock: Lock
    settled: bool = False
    tried: bool = False
    """Whether it was settled in a transaction that was rolled back."""


@dataclass
class QueueModel:
    """A queue at a time, in microseconds; with a limit of jobs in flight, or None."""

    now: int
    limit: int | None = None
    paused: bool = False
    jobs: dict[int, Job] = field(default_factory=dict)
    keys: dict[str, Job] = field(default_factory=dict)
    heads: dict[str, Job] = field(default_factory=dict)

    # --- put, offer, drop -------------------------------------------------------------------------

    def put(self, id: int, content: Content) -> None:
        """Add a job whose key is free."""
        job = self.jobs[id] = Job(id, content, content.due)
        self._enter(job)

    def _enter(self, job: Job) -> None:
        """Have a job be ready, or wait in its line."""
        if job.content.key is not None:
            self.keys[job.content.key] = job
        job.where, line = Where.READY, job.content.line
        if line is None:
            return
        head = self.heads.get(line)
        if head is not None:
            if not self._is_displaced(head, job):
                job.where = Where.WAITING
                return
            head.where = Where.WAITING
        self.heads[line] = job

    @staticmethod
    def _is_displaced(head: Job, job: Job) -> bool:
        untouched = head.where is Where.READY and head.deliveries == 0
        return untouched and job.order < head.order

    def outcome(
        self, content: Content, *, at: int | None, can_update: bool, had: Content | None = None
    ) -> Outcome:
        """What an offer comes to; one for now is for another time than before. `had` is what an
        earlier offer of the same batch has made of the job.
        """
        old = self.keys.get(str(content.key))
        if had is None and old is None:
            return Outcome.CREATED
        if had is None and old is not None:
            had = old.content
        assert had is not None
        same = (had.payload, had.priority, had.due) == (content.payload, content.priority, at)
        return Outcome.IGNORED if same or not can_update else Outcome.UPDATED

    def update(self, id: int, content: Content) -> None:
        """A new job in the place of the one with its key, in the same line."""
        old = self.keys[str(content.key)]
        self.drop(str(content.key))
        self.put(id, replace(content, line=old.content.line))

    def drop(self, key: str) -> bool:
        """Delete the live job of a key; whether there was one."""
        job = self.keys.get(key)
        if job is None:
            return False
        del self.jobs[job.id]
        self._leave(job)
        job.lock = None
        return True

    def drop_all(self) -> int:
        """Delete every live job; how many it were."""
        live = [job for job in self.jobs.values() if job.alive]
        for job in live:
            del self.jobs[job.id]
            job.lock = None
        self.keys.clear()
        self.heads.clear()
        return len(live)

    def _leave(self, job: Job) -> None:
        """A job is alive no more: its key is free, and its line goes on."""
        if job.content.key is not None:
            del self.keys[job.content.key]
        line = job.content.line
        if line is None or self.heads[line] is not job:
            return
        del self.heads[line]
        waiting = [j for j in self.jobs.values() if j.content.line == line]
        waiting = [j for j in waiting if j.where is Where.WAITING]
        if waiting:
            head = self.heads[line] = min(waiting, key=lambda j: j.order)
            head.where = Where.READY

    def retry(self, id: int) -> bool:
        """Have a failed job be claimed again, as if for the first time."""
        job = self.jobs[id]
        if job.where is not Where.FAILED or job.content.key in self.keys:
            return False
        job.attempts = job.deliveries = 0
        job.due = self.now
        self._enter(job)
        return True

    # --- claim ------------------------------------------------------------------------------------

    def expired(self) -> list[Job]:
        """Jobs whose lock is over, and who have not been given back."""
        claimed = [job for job in self.jobs.values() if job.where is Where.CLAIMED]
        return [job for job in claimed if job.lock is not None and job.lock.until <= self.now]

    def died(self) -> bool:
        """Whether a job was, or is, claimed by somebody who has not settled it."""
        return any(job.alive and job.deliveries > job.attempts for job in self.jobs.values())

    def give_back(self) -> None:
        """What expired locks have is ready again."""
        for job in self.expired():
            job.where, job.lock = Where.READY, None

    def claimable(self) -> list[Job]:
        """What can be claimed now, in the order in which it is."""
        if self.paused:
            return []
        ready = [j for j in self.jobs.values() if j.where is Where.READY and j.due <= self.now]
        in_flight = sum(job.where is Where.CLAIMED for job in self.jobs.values())
        room = len(ready) if self.limit is None else max(0, self.limit - in_flight)
        return sorted(ready, key=lambda job: job.order)[:room]

    def claim(self, ids: list[int], until: int) -> list[Claim]:
        """Claim jobs."""
        lock = Lock(until)
        for id in ids:
            job = self.jobs[id]
            job.where, job.lock = Where.CLAIMED, lock
            job.deliveries += 1
        return [Claim(self.jobs[id], lock) for id in ids]

    def hold(self, id: int, *, fails: bool) -> None:
        """Do a job in a transaction: it is done; or it fails, and stays where it stood."""
        job = self.jobs[id]
        job.deliveries += 1
        job.attempts += 1
        if fails and job.attempts < ATTEMPTS_MAX:
            return
        job.where = Where.FAILED if fails else Where.COMPLETED
        self._leave(job)

    # --- settle -----------------------------------------------------------------------------------

    def refusal(self, claim: Claim) -> type[Exception] | None:
        """Why a claim cannot be settled."""
        if claim.settled:
            return AlreadySettled
        held = claim.job.lock is claim.lock and claim.job.where is Where.CLAIMED
        return None if held else StaleLease

    def settle(self, claim: Claim, how: str, delay: int) -> None:
        """Settle a claim that is held."""
        job = claim.job
        if how == "extend":
            claim.lock.until = max(claim.lock.until, self.now + delay)
            return
        claim.settled, job.lock = True, None
        last = job.attempts + 1 >= ATTEMPTS_MAX
        if how == "nack" and not last:
            job.where, job.due = Where.READY, self.now + delay
            job.attempts += 1
        elif how == "release":
            job.where = Where.READY
            job.deliveries -= 1
        else:
            job.attempts += 1
            job.where = Where.COMPLETED if how == "ack" else Where.FAILED
            self._leave(job)

    # --- look -------------------------------------------------------------------------------------

    def counts(self) -> dict[str, int]:
        """How many jobs there are in each state."""
        counts = dict.fromkeys(("pending", "processing", "retryable", "completed", "failed"), 0)
        expired = self.expired()
        for job in self.jobs.values():
            if not job.alive:
                counts[job.where.value] += 1
            elif job.where is Where.CLAIMED and job not in expired:
                counts["processing"] += 1
            else:
                counts["retryable" if job.attempts else "pending"] += 1
        return counts
