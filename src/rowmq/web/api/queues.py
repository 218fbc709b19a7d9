"""Queues over HTTP: put, offer, claim, settle by receipts, and the settings."""

import contextlib
import math
from collections.abc import Sequence
from typing import Any

import msgspec

import rowmq
from rowmq.errors import RowMQError
from rowmq.inspection import COUNT_MAX
from rowmq.queue.redeeming import How
from rowmq.rights import Role
from rowmq.web.api import job_models, members, models
from rowmq.web.api.calls import Calls
from rowmq.web.api.consuming import REFUSED, all_or_refused
from rowmq.web.api.payloads import plain, raw_of
from rowmq.web.api.waiting import wait_for
from rowmq.web.asking import Ask
from rowmq.web.existing import queue_of
from rowmq.web.problems import Problem

__all__ = ["CALLS"]

CALLS = Calls(
    "Queues", "Put and offer jobs, claim them, and settle what was claimed by its receipts."
)

NO_JOB = "The queue has no such job: it was dropped, or pruned, or never put."
TAKEN = "There is a live job of this key; an offer updates it."

MAKES: dict[str, Any] = {"needs": Role.PRODUCE, "audited": False, "may_be_new": True}
PUTS: dict[str, Any] = MAKES | {"action": "job.put"}
OFFERS: dict[str, Any] = MAKES | {"action": "job.offer"}
SETTLES: dict[str, Any] = {
    "needs": Role.CONSUME,
    "action": "job.settle",
    "audited": False,
    "may_be_new": True,
    "conflicts": REFUSED,
}


# --- put and offer --------------------------------------------------------------------------------


@CALLS.post("/queues/{queue}/jobs", raw=True, conflicts=TAKEN, **PUTS)
async def put(
    ask: Ask, body: job_models.NewJob | None, query: job_models.RawJob
) -> job_models.PutJob:
    """Add a job. It is durable when this answers. A body that is no JSON is the payload itself:
    text, if its Content-Type says so, and else bytes; what goes with it stands after the question
    mark. To be able to repeat a call whose answer was lost, offer the job by a key.
    """
    queue = ask.mq.queue(ask.path["queue"])
    if body is None:
        raw = await raw_of(ask)
        job = await queue.put(
            raw.payload,
            delay=query.delay_seconds,
            at=query.at,
            priority=query.priority,
            key=query.key,
            ordering_key=query.ordering_key,
            headers=raw.headers,
        )
        return put_job(job)
    if ask.query:
        raise Problem(422, "what goes with the payload are members of the body, if it is JSON")
    job = await queue.put(
        plain(body.payload, body.encoding),
        delay=body.delay_seconds,
        at=body.at,
        priority=body.priority,
        key=body.key,
        ordering_key=body.ordering_key,
        headers=body.headers,
    )
    return put_job(job)


@CALLS.post("/queues/{queue}/jobs/batch", **PUTS)
async def put_many(ask: Ask, body: job_models.NewJobs) -> job_models.PutJobs:
    """Add a job for each payload in one transaction: all of them, or none and an error."""
    jobs = await ask.mq.queue(ask.path["queue"]).put_many(
        [plain(payload, body.encoding) for payload in body.payloads],
        delay=body.delay_seconds,
        at=body.at,
        priority=body.priority,
        ordering_key=body.ordering_key,
        headers=body.headers,
    )
    return job_models.PutJobs(jobs=[put_job(job) for job in jobs])


@CALLS.post("/queues/{queue}/offers", **OFFERS)
async def offer(ask: Ask, body: job_models.NewOffer) -> job_models.Offered:
    """Have one live job of a key, with this payload, due at this time: `created` if there was none,
    `updated` if there was (also one that is being worked on, whose lock becomes void), `ignored` if
    it was the same already, or was not to be updated.
    """
    done = await ask.mq.queue(ask.path["queue"]).offer_batch([offered(body)])
    return job_models.Offered(outcome=done[0][1])


@CALLS.post("/queues/{queue}/offers/batch", **OFFERS)
async def offer_many(ask: Ask, body: job_models.NewOffers) -> job_models.Outcomes:
    """Offer jobs in one transaction, one after the other."""
    done = await ask.mq.queue(ask.path["queue"]).offer_batch(list(map(offered, body.offers)))
    return job_models.Outcomes(outcomes=[outcome for _, outcome in done])


@CALLS.get("/queues/{queue}/keys/{key}", needs=Role.READ, missing=NO_JOB)
async def read_job(ask: Ask) -> job_models.Job:
    """The live job of a key. Payload and headers are masked as the settings of the server say."""
    job = await ask.mq.queue(ask.path["queue"]).read(ask.path["key"])
    if job is None:
        raise Problem(404, "no live job has this key: it was never offered, or is done")
    return job_models.job_of(
        job, headers=ask.mask_headers(job.headers), payload=ask.mask(job.payload)
    )


@CALLS.delete("/queues/{queue}/keys/{key}", needs=Role.PRODUCE, action="job.withdraw")
async def withdraw(ask: Ask) -> models.Done:
    """Delete the live job of a key, also if it is being worked on."""
    done = await ask.mq.queue(ask.path["queue"]).drop(ask.path["key"])
    return models.Done(changed=done)


def offered(body: job_models.NewOffer) -> "rowmq.ScheduledMessage[Any]":
    """The job that a body offers."""
    return rowmq.ScheduledMessage(
        body.key,
        plain(body.payload, body.encoding),
        body.at,
        body.can_update,
        body.priority,
        body.headers,
        body.delay_seconds,
    )


def put_job(job: Any) -> job_models.PutJob:
    """A job that was put, for an answer."""
    return job_models.PutJob(id=job.id, queue=job.queue, key=job.key, due_at=job.due_at)


# --- claim and settle -----------------------------------------------------------------------------


@CALLS.post(
    "/queues/{queue}/claim",
    needs=Role.CONSUME,
    action="job.claim",
    audited=False,
    may_be_new=True,
)
async def claim(ask: Ask, body: job_models.ClaimWanted) -> job_models.ClaimedJobs:
    """Claim jobs that are due, the highest priority first, then the earliest. Waits for the first
    for as long as asked for. They are locked for `lock_seconds`; what is not settled by then is
    given to others. If the answer is lost, so is nothing: that costs no attempt.
    """
    queue, most, lock = ask.mq.queue(ask.path["queue"]), body.max, body.lock_seconds

    async def look(seconds: float) -> Sequence[Any]:
        jobs = await queue.try_poll_many(most, lock_timeout=lock)
        if jobs or seconds <= 0:
            return jobs
        job = await queue.poll(seconds, lock_timeout=lock)
        if job is None:
            return ()
        more: Sequence[Any] = ()
        with contextlib.suppress(RowMQError):  # this one is claimed all the same
            more = await queue.try_poll_many(most - 1, lock_timeout=lock) if most > 1 else ()
        return [job, *more]

    async def give_back(jobs: Sequence[Any]) -> None:
        with contextlib.suppress(RowMQError):  # else their lock ends by itself
            await queue.settle([queue.receipt(job) for job in jobs], "release")

    consumers = ask.site.consumers
    jobs = await wait_for(
        ask, body.timeout_seconds, look, give_back, closing=lambda: consumers.closing
    )
    return job_models.ClaimedJobs(jobs=[claimed(job, queue.receipt(job)) for job in jobs])


@CALLS.post("/queues/{queue}/ack", **SETTLES)
async def ack_jobs(ask: Ask, body: models.Settle) -> models.Settled:
    """Jobs are done."""
    return await settle(ask, body.receipts, "ack")


@CALLS.post("/queues/{queue}/nack", **SETTLES)
async def nack_jobs(ask: Ask, body: models.Nack) -> models.Settled:
    """Try jobs again, after a delay or after longer and longer ones; those that have had their last
    attempt, the twentieth, have failed.
    """
    return await settle(ask, body.receipts, "nack", delay=body.delay_seconds, error=body.error)


@CALLS.post("/queues/{queue}/reject", **SETTLES)
async def reject_jobs(ask: Ask, body: models.Reject) -> models.Settled:
    """Give jobs up: they have failed."""
    return await settle(ask, body.receipts, "reject", error=body.error)


@CALLS.post("/queues/{queue}/release", **SETTLES)
async def release_jobs(ask: Ask, body: models.Settle) -> models.Settled:
    """Give jobs back as if they had never been claimed: they are due at once, at no attempt."""
    return await settle(ask, body.receipts, "release")


@CALLS.post("/queues/{queue}/extend", **SETTLES)
async def extend_jobs(ask: Ask, body: models.Extend) -> models.Settled:
    """Keep jobs locked for at least so long from now on: all that were claimed with them, too."""
    return await settle(ask, body.receipts, "extend", seconds=body.seconds)


async def settle(ask: Ask, receipts: Sequence[str], how: How, **what: Any) -> models.Settled:
    """Settle claimed jobs."""
    given = list(dict.fromkeys(receipts))
    queue = ask.mq.queue(ask.path["queue"])
    return all_or_refused(given, await queue.settle(given, how, **what))


def claimed(job: Any, receipt: str) -> job_models.ClaimedJob:
    """A claimed job, for an answer."""
    return job_models.ClaimedJob(
        receipt=receipt,
        id=job.id,
        key=job.key,
        ordering_key=job.ordering_key,
        headers=job.headers,
        priority=job.priority,
        created_at=job.created_at,
        due_at=job.due_at,
        attempt=job.attempt,
        deliveries=job.deliveries,
        **members.payload_members(job.payload),
    )


# --- queues and their settings --------------------------------------------------------------------


@CALLS.get("/queues", needs=Role.READ)
async def list_queues(ask: Ask) -> job_models.Queues:
    """The queues that this token may see."""
    found = [info for info in await ask.mq.queues() if ask.caller.sees_queue(info.name)]
    return job_models.Queues(queues=list(map(job_models.Queue.of, found)))


@CALLS.get("/queues/{queue}", needs=Role.READ)
async def get_queue(ask: Ask) -> job_models.QueueCounts:
    """A queue, its settings, and how many jobs it has in each state."""
    info = await queue_of(ask)
    counts = await ask.mq.queue(info.name).counts(up_to=COUNT_MAX)
    return job_models.QueueCounts(
        queue=job_models.Queue.of(info), counts=counts, counted_up_to=COUNT_MAX
    )


@CALLS.patch("/queues/{queue}", needs=Role.ADMIN, action="queue.configure", may_be_new=True)
async def configure_queue(ask: Ask, body: job_models.QueueSettings) -> models.Done:
    """Change settings of a queue, which is made if it is new."""
    given = msgspec.structs.asdict(body)
    ask.note(**{name: value for name, value in given.items() if value is not None})
    await ask.mq.queue(ask.path["queue"]).configure(
        keep_completed=body.keep_completed,
        keep_failed=body.keep_failed,
        retention=body.retention_seconds,
        failed_retention=body.failed_retention_seconds,
        max_payload_bytes=body.max_payload_bytes,
        max_in_flight=limit_of(body.max_in_flight),
        rate=limit_of(body.rate),
        rate_period=body.rate_period_seconds,
        durability=body.durability,
    )
    return models.Done(changed=True)


@CALLS.post("/queues/{queue}/pause", needs=Role.ADMIN, action="queue.pause")
async def pause_queue(ask: Ask) -> models.Done:
    """Have nobody claim jobs until it is resumed. What is claimed can be settled."""
    await ask.mq.queue(ask.path["queue"]).pause()
    return models.Done(changed=True)


@CALLS.post("/queues/{queue}/resume", needs=Role.ADMIN, action="queue.resume")
async def resume_queue(ask: Ask) -> models.Done:
    """Have jobs be claimed again."""
    await ask.mq.queue(ask.path["queue"]).resume()
    return models.Done(changed=True)


def limit_of(number: int | None) -> float | None:
    """A limit as the library takes it: 0 is none."""
    return math.inf if number == 0 else number
