"""What operators see of queues: pages of jobs, what became of one, and how much there is to do.

All frozen, like the values of `message`. Counts that are bounded say so: to count a million jobs
takes longer than to look at a page of them.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Generic, TypeVar

import msgspec

__all__ = ["COUNT_MAX", "JobEvent", "JobPage", "JobStep", "QueueBacklog"]

COUNT_MAX = 10_000
"""How far jobs are counted: beyond it, nobody reads the figure, and everybody would wait for it."""

J = TypeVar("J")


class JobPage(msgspec.Struct, Generic[J], frozen=True, kw_only=True):
    """Some of the jobs that `find` looks for.

    `next` is what to give as `after` for more of them, and None at the end. `looked_at` is how many
    jobs were looked at for this page: one that was looked for in vain among many is empty, and has
    a `next` none the less.
    """

    jobs: tuple[J, ...]
    next: str | None
    looked_at: int


class JobStep(StrEnum):
    """What has happened to a job."""

    PUT = "put"
    DUE = "due"
    CLAIMED = "claimed"
    ATTEMPT_FAILED = "attempt failed"
    COMPLETED = "completed"
    FAILED = "failed"


class JobEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Something that has happened to a job, or, if it is not due yet, that will.

    `attempt` is the number of the attempt that it belongs to, the first being 1. `worker` is the
    client that has claimed a job, as long as it has it; `error` says why an attempt failed.
    """

    at: datetime
    what: JobStep
    attempt: int | None = None
    worker: str | None = None
    error: str | None = None


class QueueBacklog(msgspec.Struct, frozen=True, kw_only=True):
    """How much there is to do in a queue, and what was done lately.

    `counts` has a number for each state, as `Queue.counts`. Of each state no more jobs than asked
    for were looked at: if there are more of any, `capped` is True, and that count is too low.
    `due` are those that could be claimed now, and `oldest_due_at` says since when the first of them
    could be. `locks` are the claims that have jobs of this queue. `put_lately`, `completed_lately`
    and `failed_lately` are how many it were within the last seconds, as far as the newest jobs
    tell. Limits that are None are none.
    """

    name: str
    paused: bool
    counts: Mapping[str, int]
    capped: bool
    due: int
    oldest_due_at: datetime | None
    locks: int
    put_lately: int
    completed_lately: int
    failed_lately: int
    max_in_flight: int | None
    rate: int | None
    rate_period: timedelta | None
