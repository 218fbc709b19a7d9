"""Looking at jobs over HTTP, one by one and page by page, and steering them."""

from typing import Any

import msgspec

import rowmq
from rowmq.rights import Role
from rowmq.spelling import header_of, is_number
from rowmq.web.api import job_models, models
from rowmq.web.api.calls import Calls
from rowmq.web.api.queues import NO_JOB
from rowmq.web.asking import Ask
from rowmq.web.problems import Problem

__all__ = ["CALLS"]

CALLS = Calls("Jobs", "Find jobs, see what has happened to them, and steer them.")

NOTED_MAX = 20
"""How many ids stand in the audit trail."""


@CALLS.get("/queues/{queue}/jobs", needs=Role.READ)
async def find_jobs(ask: Ask, query: job_models.JobsWanted) -> job_models.Jobs:
    """Jobs of a queue: live ones soonest first, finished ones newest first. Payloads and headers
    are masked as the settings of the server say; nothing can be looked for by a header that is.
    """
    header = None if query.header is None else dict([header_of(query.header)])
    page = await queue_of(ask).find(
        state=query.state,
        kind=query.kind,
        key=query.key,
        header=ask.site.mask.sought(header),
        since=query.since,
        until=query.until,
        after=query.after,
        limit=query.limit,
    )
    jobs = [shown(ask, job) for job in page.jobs]
    return job_models.Jobs(jobs=jobs, next=page.next, looked_at=page.looked_at)


@CALLS.get("/queues/{queue}/jobs/{id}", needs=Role.READ, missing=NO_JOB)
async def get_job(ask: Ask) -> job_models.JobTold:
    """A job, and what has happened to it."""
    text, queue = ask.path["id"], queue_of(ask)
    number = int(text) if is_number(text) and int(text) < 2**62 else None
    job = None if number is None else await queue.get(number)
    if number is None or job is None:
        raise Problem(404, "the queue has no such job: it was dropped, or pruned, or never put")
    return job_models.JobTold(job=shown(ask, job), events=await queue.timeline(number))


@CALLS.post("/queues/{queue}/retry", needs=Role.ADMIN, action="job.retry")
async def retry_jobs(ask: Ask, body: job_models.JobIds) -> models.Counted:
    """Have failed jobs be claimed again, from their first attempt on. One whose key has a live job
    by now stays failed.
    """
    noted(ask, body.ids)
    return models.Counted(count=await queue_of(ask).retry(body.ids))


@CALLS.post("/queues/{queue}/run", needs=Role.ADMIN, action="job.run")
async def run_jobs_now(ask: Ask, body: job_models.JobIds) -> models.Counted:
    """Have waiting jobs be due now."""
    noted(ask, body.ids)
    return models.Counted(count=await queue_of(ask).run_now(body.ids))


@CALLS.post("/queues/{queue}/reschedule", needs=Role.ADMIN, action="job.reschedule")
async def reschedule_jobs(ask: Ask, body: job_models.Reschedule) -> models.Counted:
    """Have waiting jobs be due at another time, or after a delay from now on."""
    noted(ask, body.ids)
    if (body.at is None) == (body.delay_seconds is None):
        raise Problem(422, "say when they are to be due: at, or delay_seconds")
    moved = await queue_of(ask).reschedule(body.ids, at=body.at, delay=body.delay_seconds)
    return models.Counted(count=moved)


@CALLS.post("/queues/{queue}/fail", needs=Role.ADMIN, action="job.fail")
async def fail_jobs(ask: Ask, body: job_models.FailJobs) -> models.Counted:
    """Have live jobs fail without being tried: the lock of one that is worked on becomes void."""
    noted(ask, body.ids)
    return models.Counted(count=await queue_of(ask).fail(body.ids, error=body.error))


@CALLS.post("/queues/{queue}/drop", needs=Role.ADMIN, action="job.drop")
async def drop_jobs(ask: Ask, body: job_models.JobIds) -> models.Counted:
    """Delete jobs."""
    noted(ask, body.ids)
    return models.Counted(count=await queue_of(ask).drop_jobs(body.ids))


@CALLS.post("/queues/{queue}/prune", needs=Role.ADMIN, action="queue.prune")
async def prune_jobs(ask: Ask, body: job_models.Prune) -> models.Counted:
    """Delete finished jobs that the queue need not keep longer, or that are older than is said:
    failed ones only if they are named.
    """
    ask.note(**msgspec.structs.asdict(body))
    state = None if body.state is None else rowmq.State(body.state)
    gone = await queue_of(ask).prune(older_than=body.older_than_seconds, state=state)
    return models.Counted(count=gone)


def queue_of(ask: Ask) -> Any:
    """The queue of the path."""
    return ask.mq.queue(ask.path["queue"])


def noted(ask: Ask, ids: list[int]) -> None:
    """Have the trail say which jobs."""
    ask.note(jobs=len(ids), ids=ids[:NOTED_MAX])


def shown(ask: Ask, job: Any) -> job_models.Job:
    """A job without what is to be hidden from those who only look."""
    return job_models.job_of(
        job, headers=ask.mask_headers(job.headers), payload=ask.mask(job.payload)
    )
