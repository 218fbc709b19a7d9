"""Claims of deliveries: what a delivery is known by to whoever does not have it, in any process.

A handler behind HTTP is told of a claim, and its settle may come to another process than the one
that has the subscriber. There is a lease to check it against, and a place to change: all that a
settle needs is in the database. It is decided from there, and the owner is asked to look again.

    sub.poll ──► delivery ──► claim_of ──► somewhere else ──► settle_claims, fenced as every settle
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from rowmq.errors import AlreadySettled, InvalidInput, StaleLease
from rowmq.policy import ExponentialBackoff, RetryStrategy
from rowmq.progress import Progress
from rowmq.quoting import quoted
from rowmq.store.leases import Change, Counters, Loaded
from rowmq.store.letters import Burial, Grave
from rowmq.store.statement import Operation
from rowmq.store.store import Store
from rowmq.subscriber.delivery import AnyDelivery, check_extension
from rowmq.subscriber.holding import Holding, Token, is_open, was_settled
from rowmq.subscriber.settling import Kind, Settlement, apply, settled_before

__all__ = ["Claim", "Refusal", "Wanted", "awaited", "claim_of", "settle_claims", "wanted_of"]

Refusal = AlreadySettled | StaleLease

DLQ_SUFFIX = "_dlq"

KINDS = {kind.value: kind for kind in (Kind.ACK, Kind.NACK, Kind.REJECT, Kind.EXTEND)}
"""What can be done by a claim. Not a release: what comes after it looks the same as before."""


class Claim(NamedTuple):
    """A delivery: which attempt at which message, under which lease."""

    group_id: int
    subscriber_id: int
    partition_id: int
    epoch: int
    offset: int
    attempt: int
    reopened: int
    """When the message was given back after it had been done, and its attempts began anew; 0 if it
    never was.
    """
    attempts_max: int
    """After how many attempts a nack gives the message up."""


class Wanted(NamedTuple):
    """What somebody wants to be done with the delivery of a claim."""

    claim: Claim
    kind: Kind
    delay: float | None = None
    """Of a nack, or for how long to extend."""
    error: str | None = None


class Told(NamedTuple):
    """What a settle goes by, where the subscriber is not here."""

    max_attempts: int
    buries: bool
    backoff: RetryStrategy = ExponentialBackoff()


def claim_of(delivery: AnyDelivery[Any]) -> Claim | None:
    """The claim of a delivery that was just handed out; None if it is lost already."""
    token, core = delivery._token, delivery._core  # noqa: SLF001 - its own package
    member, holding = core.member, token.holding
    if member is None or holding.lost:
        return None
    return Claim(
        *member,
        partition_id=holding.id,
        epoch=holding.epoch,
        offset=token.offset,
        attempt=token.attempt,
        reopened=token.reopened,
        attempts_max=core.options.max_attempts,
    )


def awaited(store: Store, subscriber: Any) -> Operation[float]:
    """For how many seconds somebody may still settle what a subscriber has delivered: another
    process may have extended it.
    """
    member = subscriber._core.member  # noqa: SLF001 - its own package
    if member is None:
        return 0.0
    return (yield from store.leases.awaited(member)) / 1_000_000


def wanted_of(
    claims: Sequence[Claim], how: str, *, seconds: float | None = None, error: str | None = None
) -> list[Wanted]:
    """The same for all: `seconds` are the delay of a nack, or for how long to extend."""
    kind = KINDS.get(how)
    if kind is None:
        raise InvalidInput(
            f"a delivery can be {', '.join(KINDS)}ed by its claim, not {quoted(how)}"
        )
    if kind is Kind.EXTEND:
        seconds = check_extension(0.0 if seconds is None else seconds)
    return [Wanted(claim, kind, seconds, error) for claim in dict.fromkeys(claims)]


def settle_claims(
    store: Store, topic: str, group: str, wanted: Sequence[Wanted]
) -> Operation[list[Refusal | None]]:
    """Settle deliveries of a group in one transaction: None, or why not, for each."""
    grave = Grave(topic, group, DLQ_SUFFIX)
    yield from store.dialect.seize()
    group_id = yield from store.groups.find(topic, group)
    parts = yield from load(store, group_id, {item.claim.partition_id for item in wanted})
    now = yield from store.dialect.clock("deliveries.now")
    burials: list[Burial] = []
    outcomes: list[Refusal | None] = []
    for item in wanted:
        part = parts.get(item.claim.partition_id)
        outcome = refusal_of(item.claim, part, group_id)
        outcomes.append(outcome)
        if outcome is None and part is not None:
            burials += part.settle(item, now=now, buries=not topic.endswith(DLQ_SUFFIX))
    changes = [part.change for part in parts.values() if part.changed]
    yield from store.leases.overwrite(group_id, changes)
    if burials:
        yield from store.letters.bury(grave, burials)
    return outcomes


class Part:
    """A partition, locked, and what settles come to in it."""

    def __init__(self, loaded: Loaded, counters: Counters) -> None:
        self.loaded = loaded
        self.holding = Holding(loaded, counters)
        self.progress = Progress.restored(loaded.stored)
        self.changed = False

    @property
    def change(self) -> Change:
        loaded, after = self.loaded, self.progress.stored()
        return Change(loaded.partition_id, loaded.epoch, loaded.version, loaded.stored, after)

    def token_of(self, claim: Claim) -> Token:
        return Token(self.holding, claim.offset, claim.attempt, 0, reopened=claim.reopened)

    def settle(self, item: Wanted, *, now: int, buries: bool) -> list[Burial]:
        """Do what is wanted. A burial, if the message is given up."""
        self.changed = True
        settlement = Settlement(self.token_of(item.claim), item.kind, item.delay, item.error)
        told = Told(item.claim.attempts_max, buries)
        return apply(self.progress, settlement, told, now=now)


def load(store: Store, group_id: int, partition_ids: set[int]) -> Operation[dict[int, Part]]:
    """Lock a group's place in partitions, and tell them."""
    loaded = yield from store.leases.load(group_id, sorted(partition_ids))
    counters = yield from store.leases.counters([place.partition_id for place in loaded])
    return {
        place.partition_id: Part(place, counters[place.partition_id])
        for place in loaded
        if place.partition_id in counters
    }


def refusal_of(claim: Claim, part: Part | None, group_id: int) -> Refusal | None:
    """Why a delivery cannot be settled."""
    if part is None or claim.group_id != group_id:
        return StaleLease("this delivery is of another group, or its group was dropped")
    token, loaded = part.token_of(claim), part.loaded
    if (loaded.leased_by, loaded.epoch) != (claim.subscriber_id, claim.epoch):
        return stale(token)
    if is_open(part.progress, token):
        return None
    return settled_before(token) if was_settled(part.progress, token) else stale(token)


def stale(token: Token) -> StaleLease:
    return StaleLease(
        f"{token}: the lease was lost, or the visibility passed and it was delivered again, so "
        f"this changed nothing: whoever gets the message next settles it"
    )
