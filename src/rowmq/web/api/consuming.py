"""Consuming topics over HTTP: poll, and settle what was delivered by its receipt."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from rowmq.errors import AlreadySettled, StaleLease
from rowmq.rights import Role
from rowmq.web.api import models
from rowmq.web.api.calls import Calls
from rowmq.web.api.consumers import Consumers, Handed, How, Identity
from rowmq.web.api.receipts import Owner
from rowmq.web.api.topics import NO_GROUP
from rowmq.web.api.waiting import wait_for
from rowmq.web.asking import Ask
from rowmq.web.problems import Problem, detail_of

__all__ = ["CALLS", "REFUSED", "all_or_refused"]

CALLS = Calls(
    "Consuming", "Poll a topic for a group, and settle what was delivered by its receipts."
)

REFUSED = "What some receipts stand for is somebody else's by now; the others were settled."
CONFLICT = "A consumer of this name began with other terms, or was closed at this moment."

SETTLES: dict[str, Any] = {
    "needs": Role.CONSUME,
    "action": "group.settle",
    "audited": False,
    "may_be_new": True,
    "conflicts": REFUSED,
    "missing": NO_GROUP,
}


@CALLS.post(
    "/topics/{topic}/groups/{group}/poll",
    needs=Role.CONSUME,
    action="group.poll",
    audited=False,
    may_be_new=True,
    conflicts=CONFLICT,
    missing=NO_GROUP,
)
async def poll(ask: Ask, body: models.Poll) -> models.Deliveries:
    """Have messages delivered to a group, which is created if it is new. Waits for the first for as
    long as asked for. What is not settled within its visibility is delivered again; after
    `max_attempts` (3, if not given) it goes to the dead letters.
    """
    consumers = consumers_of(ask)
    consumer = consumers.get(ask.mq, identity_of(ask, body.consumer), body)
    with consumer.in_use():
        handed = await wait_for(
            ask,
            body.timeout_seconds,
            partial(consumers.poll, consumer, body.max, body.id),
            consumer.forsake,
            closing=lambda: consumers.closing,
        )
    return models.Deliveries(deliveries=[delivery_of(ask, one) for one in handed])


@CALLS.delete(
    "/topics/{topic}/groups/{group}/consumers/{consumer}",
    needs=Role.CONSUME,
    action="group.close",
    audited=False,
)
async def close_consumer(ask: Ask) -> models.Done:
    """Close a consumer of this token that has polled here. What it has not settled is delivered to
    others at once, at no attempt.
    """
    identity = identity_of(ask, ask.path["consumer"])
    return models.Done(changed=await consumers_of(ask).close_named(identity))


@CALLS.delete(
    "/topics/{topic}/groups/{group}/tokens/{token}/consumers/{consumer}",
    needs=Role.ADMIN,
    action="group.close_of",
)
async def close_consumer_of(ask: Ask) -> models.Done:
    """Close a consumer of another token that has polled here. What it has not settled is delivered
    to others at once, at no attempt.
    """
    path = ask.path
    place = (path["topic"], path["group"], path["consumer"])
    return models.Done(changed=await consumers_of(ask).close_of(path["token"], *place))


@CALLS.post("/topics/{topic}/groups/{group}/ack", **SETTLES)
async def ack_messages(ask: Ask, body: models.Settle) -> models.Settled:
    """Messages are done."""
    return await settle(ask, body.receipts, How("ack"))


@CALLS.post("/topics/{topic}/groups/{group}/nack", **SETTLES)
async def nack_messages(ask: Ask, body: models.Nack) -> models.Settled:
    """Deliver messages again, after a delay or after longer and longer ones; those that have had
    their last attempt go to the dead letters.
    """
    return await settle(ask, body.receipts, How("nack", body.delay_seconds, body.error))


@CALLS.post("/topics/{topic}/groups/{group}/reject", **SETTLES)
async def reject_messages(ask: Ask, body: models.Reject) -> models.Settled:
    """Give messages up: they go to the dead letters at once."""
    return await settle(ask, body.receipts, How("reject", error=body.error))


@CALLS.post("/topics/{topic}/groups/{group}/extend", **SETTLES)
async def extend_messages(ask: Ask, body: models.Extend) -> models.Settled:
    """Keep messages invisible for so long from now on."""
    return await settle(ask, body.receipts, How("extend", body.seconds))


async def settle(ask: Ask, receipts: Sequence[str], how: How) -> models.Settled:
    """Settle deliveries to this token."""
    given = list(dict.fromkeys(receipts))
    whose = (owner_of(ask), ask.path["topic"], ask.path["group"])
    return all_or_refused(given, await consumers_of(ask).settle(ask.mq, whose, given, how))


def all_or_refused(
    receipts: Sequence[str], outcomes: Sequence[AlreadySettled | StaleLease | None]
) -> models.Settled:
    """What was settled now, and before; or the problem of what was not."""
    told = list(zip(receipts, outcomes, strict=True))
    before = [receipt for receipt, outcome in told if isinstance(outcome, AlreadySettled)]
    refused = [
        models.Refused(receipt=receipt, detail=detail_of(outcome))
        for receipt, outcome in told
        if isinstance(outcome, StaleLease)
    ]
    settled = len(receipts) - len(before) - len(refused)
    if not refused:
        return models.Settled(settled=settled, before=before)
    single = len(refused) == 1
    raise Problem(
        409,
        refused[0].detail if single else f"{len(refused)} receipts were refused; {REFUSED}",
        kind="stale-lease",
        settled=settled,
        before=before,
        refused=refused,
    )


def delivery_of(ask: Ask, handed: Handed) -> models.Delivery:
    """A delivery, for an answer."""
    delivery = handed.delivery
    return models.Delivery(
        receipt=consumers_of(ask).seal.receipt(handed.claim, owner_of(ask)),
        attempt=delivery.attempt,
        message=models.Message.of(delivery.message),
    )


def owner_of(ask: Ask) -> Owner:
    """The token that was shown."""
    return Owner(ask.caller.token_id, ask.caller.name, ask.caller.digest)


def identity_of(ask: Ask, name: str) -> Identity:
    """A consumer of this token."""
    return Identity(owner_of(ask), ask.path["topic"], ask.path["group"], name)


def consumers_of(ask: Ask) -> Consumers:
    """The consumers of this process."""
    consumers: Consumers = ask.site.consumers
    return consumers
