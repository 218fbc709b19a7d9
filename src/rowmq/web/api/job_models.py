"""What the API takes and gives of queues, jobs and schedules."""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

import rowmq
from rowmq.inspection import JobEvent
from rowmq.web.api.members import (
    BATCH_MAX,
    CENTURY,
    CLAIM_MAX,
    IDS_MAX,
    Given,
    Headers,
    JobId,
    Key,
    Lasting,
    Moment,
    Name,
    Page,
    Priority,
    Seconds,
    Shown,
    Wait,
    payload_members,
    seconds_of,
)
from rowmq.web.api.payloads import Encoding

# --- queues ---------------------------------------------------------------------------------------


class NewJob(Given):
    """A job to put. With a `key`, there is one live job of it: a second put is refused, and the
    offers are what you want.
    """

    payload: Any
    encoding: Encoding = "json"
    delay_seconds: Seconds | None = None
    at: Moment | None = None
    priority: Priority = 0
    key: Key | None = None
    ordering_key: Key | None = None
    headers: Headers = msgspec.field(default_factory=dict)


class NewJobs(Given):
    """Jobs to put in one transaction. What is said beside the payloads is said of all of them."""

    payloads: Annotated[list[Any], Meta(min_length=1, max_length=BATCH_MAX)]
    encoding: Encoding = "json"
    delay_seconds: Seconds | None = None
    at: Moment | None = None
    priority: Priority = 0
    ordering_key: Key | None = None
    headers: Headers = msgspec.field(default_factory=dict)


class RawJob(Given):
    """What goes with a job whose payload is the body."""

    delay_seconds: Seconds | None = None
    at: Moment | None = None
    priority: Priority = 0
    key: Key | None = None
    ordering_key: Key | None = None


class PutJob(Shown):
    """A job that was put."""

    id: int
    queue: str
    key: str | None
    due_at: datetime


class PutJobs(Shown):
    """Jobs that were put, in their order."""

    jobs: list[PutJob]


class NewOffer(Given):
    """A job to offer by its key: new, or an update of the live one unless `can_update` is false."""

    key: Key
    payload: Any
    encoding: Encoding = "json"
    at: Moment | None = None
    delay_seconds: Seconds | None = None
    priority: Priority = 0
    headers: Headers = msgspec.field(default_factory=dict)
    can_update: bool = True


class Offered(Shown):
    """What became of an offer."""

    outcome: rowmq.Outcome


class NewOffers(Given):
    """Jobs to offer, one after the other, in one transaction."""

    offers: Annotated[list[NewOffer], Meta(min_length=1, max_length=BATCH_MAX)]


class Outcomes(Shown):
    """What became of offers, in their order."""

    outcomes: list[rowmq.Outcome]


class ClaimWanted(Given):
    """How many jobs to claim, how long to wait for the first, and how long to lock them."""

    max: Annotated[int, Meta(ge=1, le=CLAIM_MAX)] = 1
    timeout_seconds: Wait = 0.0
    lock_seconds: Annotated[float, Meta(ge=1, le=604_800)] = 300.0


class ClaimedJob(Shown):
    """A claimed job, to be settled by its receipt until its lock is over."""

    receipt: str
    id: int
    key: str | None
    ordering_key: str | None
    headers: Mapping[str, str]
    priority: int
    created_at: datetime | None
    due_at: datetime
    attempt: int
    deliveries: int
    payload: Any
    encoding: Encoding


class ClaimedJobs(Shown):
    """What there was to claim; nothing, if the time was up."""

    jobs: list[ClaimedJob]


class Queue(Shown):
    """A queue and its settings. Null is no limit, and for ever."""

    name: str
    kinds: list[str]
    paused: bool
    keep_completed: bool
    keep_failed: bool
    retention_seconds: float | None
    failed_retention_seconds: float | None
    max_payload_bytes: int
    max_in_flight: int | None
    rate: int | None
    rate_period_seconds: float | None
    durability: str

    @classmethod
    def of(cls, info: rowmq.QueueInfo) -> "Queue":
        """The queue, for an answer."""
        return cls(
            name=info.name,
            kinds=list(info.kinds),
            paused=info.paused,
            keep_completed=info.keep_completed,
            keep_failed=info.keep_failed,
            retention_seconds=seconds_of(info.retention),
            failed_retention_seconds=seconds_of(info.failed_retention),
            max_payload_bytes=info.max_payload_bytes,
            max_in_flight=info.max_in_flight,
            rate=info.rate,
            rate_period_seconds=seconds_of(info.rate_period),
            durability=info.durability,
        )


class Queues(Shown):
    """The queues that this token may see."""

    queues: list[Queue]


class QueueCounts(Shown):
    """A queue, and how many jobs it has in each state, counted up to `counted_up_to`."""

    queue: Queue
    counts: Mapping[str, int]
    counted_up_to: int


class QueueSettings(Given):
    """Settings of a queue; those left out stay as they are. 0 is no limit."""

    keep_completed: bool | None = None
    keep_failed: bool | None = None
    retention_seconds: Lasting | None = None
    failed_retention_seconds: Lasting | None = None
    max_payload_bytes: Annotated[int, Meta(ge=1, lt=2**31)] | None = None
    max_in_flight: Annotated[int, Meta(ge=0, le=10_000)] | None = None
    rate: Annotated[int, Meta(ge=0, le=10_000)] | None = None
    rate_period_seconds: Annotated[float, Meta(ge=0.001, le=CENTURY)] | None = None
    durability: Literal["full", "relaxed"] | None = None


class JobsWanted(Given):
    """Which jobs. `header` is `name=value`."""

    state: rowmq.State | None = None
    kind: Annotated[str, Meta(max_length=200)] | None = None
    key: Key | None = None
    header: Annotated[str, Meta(max_length=1_000, pattern="=")] | None = None
    since: Moment | None = None
    until: Moment | None = None
    after: Annotated[str, Meta(max_length=1_000)] | None = None
    limit: Page = 50


class Job(Shown):
    """A job as it stood when it was looked at."""

    id: int
    queue: str
    kind: str
    state: rowmq.State
    key: str | None
    ordering_key: str | None
    headers: Mapping[str, str]
    priority: int
    created_at: datetime | None
    due_at: datetime
    attempts: int
    deliveries: int
    error: str | None
    finished_at: datetime | None
    payload: Any
    encoding: Encoding


def job_of(job: Any, *, headers: Mapping[str, str], payload: Any) -> Job:
    """The job, for an answer, with what is shown of its headers and payload."""
    return Job(
        id=job.id,
        queue=job.queue,
        kind=job.kind,
        state=job.state,
        key=job.key,
        ordering_key=job.ordering_key,
        headers=headers,
        priority=job.priority,
        created_at=job.created_at,
        due_at=job.due_at,
        attempts=job.attempts,
        deliveries=job.deliveries,
        error=job.error,
        finished_at=job.finished_at,
        **payload_members(payload),
    )


class Jobs(Shown):
    """A page of jobs. Where few match, a page may be empty and there be a `next` one all the same:
    so many were `looked_at`.
    """

    jobs: list[Job]
    next: str | None
    looked_at: int


class JobTold(Shown):
    """A job, and what has happened to it, the first thing first."""

    job: Job
    events: list[JobEvent]


class JobIds(Given):
    """Which jobs."""

    ids: Annotated[list[JobId], Meta(min_length=1, max_length=IDS_MAX)]


class Reschedule(Given):
    """When jobs are to be due: at a time, or after a delay."""

    ids: Annotated[list[JobId], Meta(min_length=1, max_length=IDS_MAX)]
    at: Moment | None = None
    delay_seconds: Seconds | None = None


class Prune(Given):
    """Which finished jobs to delete: what the queue need not keep, or what is older, of a state."""

    state: Literal["completed", "failed"] | None = None
    older_than_seconds: Seconds | None = None


class FailJobs(Given):
    """Which jobs are to fail, and why."""

    ids: Annotated[list[JobId], Meta(min_length=1, max_length=IDS_MAX)]
    error: str | None = None


# --- schedules ------------------------------------------------------------------------------------


class NewSchedule(Given):
    """A schedule: by a cron expression, at times of each day, or once a period.

    Its ticks are jobs of a queue, or messages of a topic.
    """

    cron: Annotated[str, Meta(min_length=1, max_length=500)] | None = None
    daily: Annotated[list[str], Meta(min_length=1, max_length=1_440)] | None = None
    period_seconds: Lasting | None = None
    queue: Name | None = None
    topic: Name | None = None
    payload: Any = None
    encoding: Encoding = "json"
    key: Key | None = None
    headers: Headers = msgspec.field(default_factory=dict)
    priority: Priority = 0
    tz: Annotated[str, Meta(min_length=1, max_length=100)] = "UTC"
    catch_up: Literal["latest", "all", "none"] = "latest"
    grace_seconds: Seconds | None = None


class Installed(Shown):
    """Whether a schedule is new, was changed, or was the same already."""

    outcome: rowmq.Outcome


class Schedule(Shown):
    """A schedule, and when it fires."""

    name: str
    kind: str
    expression: str
    description: str
    tz: str
    queue: str | None
    topic: str | None
    key: str | None
    function: str | None
    headers: Mapping[str, str]
    priority: int
    catch_up: str
    grace_seconds: float
    paused: bool
    next_at: datetime | None
    last_at: datetime | None
    created_at: datetime
    payload: Any
    encoding: Encoding


class ScheduleTold(Shown):
    """A schedule, and when it fires next, as if it were not paused."""

    schedule: Schedule
    next: list[datetime]


class Schedules(Shown):
    """The schedules whose queue or topic this token may see."""

    schedules: list[Schedule]


class Fired(Shown):
    """The time of the tick that was made."""

    at: datetime
