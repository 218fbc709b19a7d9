"""What queues are, without a database: jobs, keys, lines and locks, in dictionaries."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, NamedTuple

from rowmq import Outcome, State
from rowmq.errors import AlreadySettled, StaleLease

__all__ = [
    "ATTEMPTS_MAX",
    "RETRY_US",
    "Claim",
    "Content",
    "Identity",
    "Job",
    "QueueModel",
    "Seen",
    "Where",
]

ATTEMPTS_MAX = 3
RETRY_US = 30_000_000
"""What the handles of the queues are told of retries."""

Identity = tuple[str, str, str]
"""Queue, kind and key: what has one live job."""


class Seen(NamedTuple):
    """What a handle sees of a queue: with a kind, the jobs of this one, and those without any."""

    queue: str
    kind: str
    type: Any
    deliveries_max: float

    def sees(self, kind: str) -> bool:
        return self.kind in ("", kind) or kind == ""


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

    queue: str
    kind: str
    payload: int | str
    due: int
    priority: int = 0
    key: str | None = None
    line: str | None = None

    @property
    def identity(self) -> Identity:
        return self.queue, self.kind, str(self.key)


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
    finished: int | None = None
    error: str = ""
    """What is told of why it failed begins so."""
    given_up: Lock | None = None
    """The lock that it was in when people gave it up."""

    @property
    def order(self) -> tuple[int, int, int]:
        return -self.content.priority, self.due, self.id

    @property
    def newest(self) -> tuple[int, int, int]:
        return -self.content.priority, -self.due, -self.id

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
    """Some queues at a time, in microseconds; with limits of jobs in flight, by queue."""

    now: int
    limits: dict[str, int] = field(default_factory=dict)
    paused: set[str] = field(default_factory=set)
    jobs: dict[int, Job] = field(default_factory=dict)
    keys: dict[Identity, Job] = field(default_factory=dict)
    heads: dict[tuple[str, str], Job] = field(default_factory=dict)

    def seen(self, view: Seen) -> list[Job]:
        """The jobs that a handle sees."""
        jobs = [job for job in self.jobs.values() if job.content.queue == view.queue]
        return [job for job in jobs if view.sees(job.content.kind)]

    # --- put, offer, drop -------------------------------------------------------------------------

    def put(self, id: int, content: Content) -> None:
        """Add a job whose key is free."""
        job = self.jobs[id] = Job(id, content, content.due)
        self._enter(job)

    def _enter(self, job: Job) -> None:
        """Have a job be ready, or wait in its line."""
        content = job.content
        if content.key is not None:
            self.keys[content.identity] = job
        job.where = Where.READY
        if content.line is None:
            return
        line = (content.queue, content.line)
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
        old = self.keys.get(content.identity)
        if had is None and old is None:
            return Outcome.CREATED
        if had is None and old is not None:
            had = old.content
        assert had is not None
        same = (had.payload, had.priority, had.due) == (content.payload, content.priority, at)
        return Outcome.IGNORED if same or not can_update else Outcome.UPDATED

    def update(self, id: int, content: Content) -> None:
        """A new job in the place of the one with its key, in the same line."""
        old = self.keys[content.identity]
        self._drop(old)
        self.put(id, replace(content, line=old.content.line))

    def read(self, view: Seen, key: str) -> Job | None:
        """The live job of a key; of two kinds, the first one's."""
        found = [job for job in self.seen(view) if self.keys.get(job.content.identity) is job]
        found = [job for job in found if job.content.key == key]
        return min(found, key=lambda job: job.content.kind, default=None)

    def drop(self, view: Seen, key: str) -> bool:
        """Delete the live jobs of a key, of all kinds that are seen; whether there was one."""
        found = False
        while (job := self.read(view, key)) is not None:
            self._drop(job)
            found = True
        return found

    def _drop(self, job: Job) -> None:
        del self.jobs[job.id]
        self._leave(job)
        job.lock = None

    def drop_all(self, view: Seen) -> int:
        """Delete every live job that is seen; how many it were."""
        live = [job for job in self.seen(view) if job.alive]
        for job in sorted(live, key=lambda job: job.where is not Where.WAITING):
            self._drop(job)
        return len(live)

    def _leave(self, job: Job) -> None:
        """A job is alive no more: its key is free, and its line goes on."""
        content = job.content
        if content.key is not None:
            del self.keys[content.identity]
        self._move_up(job)

    def _move_up(self, job: Job) -> None:
        """Who stands behind a head becomes the head."""
        line = (job.content.queue, str(job.content.line))
        if job.content.line is None or self.heads[line] is not job:
            return
        del self.heads[line]
        waiting = [j for j in self.jobs.values() if j.where is Where.WAITING]
        waiting = [j for j in waiting if (j.content.queue, j.content.line) == line]
        if waiting:
            head = self.heads[line] = min(waiting, key=lambda j: j.order)
            head.where = Where.READY

    def retry(self, view: Seen, id: int) -> bool:
        """Have a failed job be claimed again, as if for the first time."""
        job = self.jobs[id]
        if job not in self.seen(view) or job.where is not Where.FAILED:
            return False
        if job.content.key is not None and job.content.identity in self.keys:
            return False
        job.attempts = job.deliveries = 0
        job.due, job.finished, job.error = self.now, None, ""
        job.content = replace(job.content, due=self.now)
        self._enter(job)
        return True

    def reschedule(self, view: Seen, id: int, due: int) -> bool:
        """Have a job that nobody has claimed be due then. What is in expired locks is given back,
        if it is not found at once.
        """
        job = self.jobs[id]
        if job.where not in (Where.READY, Where.WAITING) or job not in self.seen(view):
            self.give_back()
        if job.where not in (Where.READY, Where.WAITING) or job not in self.seen(view):
            return False
        content, untried = job.content, job.where is Where.WAITING or job.deliveries == 0
        if content.line is not None and untried:
            job.where = Where.READY
            self._move_up(job)
        job.due, job.content = due, replace(content, due=due)
        if content.line is not None and untried:
            self._enter(job)
        return True

    def fail(self, view: Seen, id: int, error: str) -> bool:
        """Give up a live job, whoever has it."""
        job = self.jobs[id]
        if not job.alive or job not in self.seen(view):
            return False
        job.given_up = job.lock
        self._finish(job, Where.FAILED, error)
        return True

    def drop_job(self, view: Seen, id: int) -> bool:
        """Delete a live job, whoever has it."""
        job = self.jobs[id]
        if not job.alive or job not in self.seen(view):
            return False
        self._drop(job)
        return True

    def prune(self, view: Seen, where: Where, age: int) -> int:
        """Delete what was finished so long ago; how many it were."""
        finished = [job for job in self.seen(view) if job.where is where]
        old = [job for job in finished if (job.finished or 0) <= self.now - age]
        for job in old:
            del self.jobs[job.id]
        return len(old)

    # --- claim ------------------------------------------------------------------------------------

    def expired(self) -> list[Job]:
        """Jobs whose lock is over, and who have not been given back."""
        claimed = [job for job in self.jobs.values() if job.where is Where.CLAIMED]
        return [job for job in claimed if job.lock is not None and job.lock.until <= self.now]

    def give_back(self) -> None:
        """What expired locks have is ready again."""
        for job in self.expired():
            job.where, job.lock = Where.READY, None

    def due(self, views: Sequence[Seen], *, newest: bool = False) -> list[Job]:
        """What is due, in the order in which it is claimed, whatever the limits."""
        open = [view for view in views if view.queue not in self.paused]
        found = [job for view in open for job in self.seen(view)]
        due = [job for job in found if job.where is Where.READY and job.due <= self.now]
        return sorted(due, key=lambda job: job.newest if newest else job.order)

    def claimable(self, views: Sequence[Seen], *, newest: bool = False) -> list[Job]:
        """What can be claimed now, in the order in which it is: what a queue has no room for is
        passed over.
        """
        room = dict(self.limits)
        for job in self.jobs.values():
            if job.where is Where.CLAIMED and job.content.queue in room:
                room[job.content.queue] -= 1
        chosen = []
        for job in self.due(views, newest=newest):
            queue = job.content.queue
            if room.get(queue, 1) > 0:
                chosen.append(job)
                if queue in room:
                    room[queue] -= 1
        return chosen

    def refused(self, views: Sequence[Seen], job: Job) -> str | None:
        """Why a job that was claimed is not handed out, if so."""
        (view,) = [view for view in views if view.queue == job.content.queue]
        if view.type is not None and not isinstance(job.content.payload, view.type):
            return "the payload does not parse as "
        return "it was claimed " if job.deliveries > view.deliveries_max else None

    def claim(self, views: Sequence[Seen], limit: int, until: int) -> list[Claim]:
        """Claim the first jobs. What is not handed out has failed, and others are looked for."""
        while True:
            chosen = self.claimable(views)[:limit]
            claims = self.take([job.id for job in chosen], until)
            handed = [claim for claim in claims if not self._refuse(views, claim.job)]
            if handed or not chosen:
                return handed

    def _refuse(self, views: Sequence[Seen], job: Job) -> bool:
        error = self.refused(views, job)
        if error is not None:
            self._finish(job, Where.FAILED, error)
        return error is not None

    def take(self, ids: list[int], until: int) -> list[Claim]:
        """Claim these jobs."""
        lock = Lock(until)
        for id in ids:
            job = self.jobs[id]
            job.where, job.lock = Where.CLAIMED, lock
            job.deliveries += 1
        return [Claim(self.jobs[id], lock) for id in ids]

    def hold(self, id: int, *, error: str | None) -> None:
        """Do a job in a transaction: it is done; or it fails, and stays where it stood."""
        job = self.jobs[id]
        job.deliveries += 1
        job.attempts += 1
        if error is None:
            self._finish(job, Where.COMPLETED)
        elif job.attempts >= ATTEMPTS_MAX:
            self._finish(job, Where.FAILED, error)

    # --- settle -----------------------------------------------------------------------------------

    def refusal(self, claim: Claim) -> type[Exception] | None:
        """Why a claim cannot be settled."""
        if claim.settled:
            return AlreadySettled
        held = claim.job.lock is claim.lock and claim.job.where is Where.CLAIMED
        return None if held else StaleLease

    def settle(self, claim: Claim, how: str, delay: int, error: str = "") -> None:
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
            self._finish(job, Where.COMPLETED if how == "ack" else Where.FAILED, error)

    def _finish(self, job: Job, where: Where, error: str = "") -> None:
        job.where, job.lock = where, None
        job.finished, job.error = self.now, "" if where is Where.COMPLETED else error
        self._leave(job)

    # --- look -------------------------------------------------------------------------------------

    def state(self, job: Job) -> State:
        """What a job is said to be."""
        if not job.alive:
            return State(job.where.value)
        if job.where is Where.CLAIMED and job not in self.expired():
            return State.PROCESSING
        return State.RETRYABLE if job.attempts else State.PENDING

    def counts(self, view: Seen) -> dict[str, int]:
        """How many jobs there are in each state."""
        counts = {state.value: 0 for state in State}
        for job in self.seen(view):
            counts[self.state(job).value] += 1
        return counts
