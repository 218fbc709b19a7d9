"""Settling deliveries: what ack, nack, reject and extend do to a partition's progress.

What a settle comes to is decided by pure functions; `Settling` applies them, to what is remembered
or, in a caller's transaction, to what the database holds.
"""

from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, Protocol, TypeGuard

import msgspec

from rowmq.drivers.base import Steps
from rowmq.errors import AlreadySettled, Locked, SerializationFailure, StaleLease
from rowmq.message import new_id
from rowmq.policy import RetryStrategy
from rowmq.progress import Progress, Range
from rowmq.store.leases import Change, Conflict, Loaded, Member
from rowmq.store.letters import Burial
from rowmq.store.statement import Operation
from rowmq.subscriber.holding import Draft, Holding, Token, is_last, is_open, was_settled
from rowmq.subscriber.options import Options

if TYPE_CHECKING:
    from rowmq.subscriber.subscription import Subscription

__all__ = [
    "Kind",
    "Settlement",
    "Settling",
    "exhausted",
    "settled_before",
    "unsettled_error",
]

CONFLICTS_MAX = 10
"""How often a write is decided anew before it is given up."""


class Kind(Enum):
    """What is done with a delivery."""

    ACK = "ack"
    NACK = "nack"
    REJECT = "reject"
    RELEASE = "release"
    EXTEND = "extend"


# Nothing that a settlement refers to refers back to it, so it needs no garbage collection.
class Settlement(msgspec.Struct, frozen=True, eq=False, gc=False):
    """What somebody wants to be done with a delivery."""

    token: Token
    kind: Kind
    delay: float | None = None
    error: str | None = None


class Terms(Protocol):
    """What a settle goes by: of a subscriber's options, those that matter for it."""

    @property
    def max_attempts(self) -> int: ...
    @property
    def backoff(self) -> RetryStrategy: ...
    @property
    def buries(self) -> bool: ...


class Drafting:
    """What many settlements come to in one partition."""

    __slots__ = ("_draft", "_known", "acked", "holding", "ours")

    def __init__(self, holding: Holding, *, ours: bool) -> None:
        self.holding = holding
        self.ours = ours
        self.acked: list[int] = []
        self._draft: Draft | None = None
        self._known: Range | None = None
        """The range that was looked at last: the next message is mostly of it, too."""

    def refusal(self, token: Token) -> Exception | None:
        """Why a delivery cannot be settled."""
        holding, known = self.holding, self._known
        if not self.ours:
            return stale(token)
        if holding.doubtful:
            return busy(token)
        if known is None or not known.first <= token.offset <= known.last:
            known = self._known = holding.progress.at(token.offset)
        return None if is_last(known, token) else void(holding.progress, token)

    def begun(self) -> Draft:
        """The change that is being made."""
        if self._draft is None:
            self._draft = self.holding.draft()
        return self._draft

    def drafted(self) -> Draft | None:
        """The whole change, if there is one."""
        if self.acked:
            self.begun().progress.ack_all(self.acked)
        return self._draft


class Settling:
    """A subscriber's settles."""

    def __init__(self, subscription: "Subscription") -> None:
        self.subscription = subscription

    def settle(self, settlements: Sequence[Settlement]) -> Steps[list[Exception | None]]:
        """Settle deliveries in one transaction. None, or an error, for each."""
        for _ in range(CONFLICTS_MAX):
            doubtful = [h for h in {s.token.holding for s in settlements} if h.doubtful]
            yield from self.subscription.reload(doubtful, skip=True)
            drafts, burials, outcomes = self._draft(settlements)
            try:
                yield from self.subscription.write(drafts, burials)
            except Conflict:
                continue
            self._finish(settlements, outcomes)
            return outcomes
        raise SerializationFailure("the partition was changed by others again and again; try again")

    def _draft(
        self, settlements: Sequence[Settlement]
    ) -> tuple[list[Draft], list[Burial], list[Exception | None]]:
        """What settlements come to, and which of them are void."""
        subscription = self.subscription
        now, ack = subscription.clock.now(), Kind.ACK
        drafting: dict[Holding, Drafting] = {}
        others: list[tuple[Drafting, Settlement]] = []
        burials: list[Burial] = []
        outcomes: list[Exception | None] = []
        for settlement in settlements:
            token = settlement.token
            part = drafting.get(token.holding)
            if part is None:
                ours = subscription.holdings.get(token.holding.id) is token.holding
                part = drafting[token.holding] = Drafting(token.holding, ours=ours)
            outcome = part.refusal(token)
            outcomes.append(outcome)
            if outcome is None and settlement.kind is ack:
                part.acked.append(token.offset)
            elif outcome is None:
                others.append((part, settlement))
        # One that was extended and settled at the same time was extended before.
        for part, settlement in sorted(others, key=lambda other: other[1].kind is not Kind.EXTEND):
            progress = part.begun().progress
            burials += apply(progress, settlement, subscription.options, now=now)
        drafts = [draft for part in drafting.values() if (draft := part.drafted()) is not None]
        return drafts, burials, outcomes

    def _finish(
        self, settlements: Sequence[Settlement], outcomes: Sequence[Exception | None]
    ) -> None:
        """Forget what is settled, and wake whoever waits in a poll if it could go on now."""
        subscription, options = self.subscription, self.subscription.options
        wake = options.strict or options.per_key is not None or subscription.full
        # Looked up once: for each of very many messages that would take half of the time.
        nack, release, extend = Kind.NACK, Kind.RELEASE, Kind.EXTEND
        gone: list[Token] = []
        for settlement, outcome in zip(settlements, outcomes, strict=True):
            token, kind = settlement.token, settlement.kind
            if kind is extend if outcome is None else isinstance(outcome, Locked):
                continue
            holding = token.holding
            if holding.tokens.get(token.offset) is token:
                del holding.tokens[token.offset]
                gone.append(token)
            if holding.draining and not holding.tokens:
                subscription.sharing.due_at = 0.0
            if (kind is nack or kind is release) and holding.id in subscription.holdings:
                subscription.lively.add(holding.id)
                wake = True
        subscription.forget(gone)
        if wake:
            subscription.flavour.wake()

    def settle_within(self, settlements: Sequence[Settlement]) -> Operation[None]:
        """Settle in a transaction of the caller's: from what the database holds, not from what is
        remembered, since nobody knows yet whether it will be committed.
        """
        subscription = self.subscription
        member = subscription.member
        holdings: dict[int, Holding] = {s.token.holding.id: s.token.holding for s in settlements}
        for settlement in settlements:
            holding = settlement.token.holding
            if member is None or subscription.holdings.get(holding.id) is not holding:
                raise stale(settlement.token)
        assert member is not None  # noqa: S101 - just checked
        for holding in holdings.values():
            subscription.doubt(holding)
        yield from subscription.store.dialect.seize()
        loaded = yield from subscription.leases.load(member.group_id, sorted(holdings))
        for holding in holdings.values():
            subscription.doubt(holding)  # again: it may have been loaded meanwhile
        places = {place.partition_id: place for place in loaded}
        drafts: dict[int, Draft] = {}
        burials: list[Burial] = []
        now = subscription.clock.now()
        for settlement in settlements:
            token, holding = settlement.token, settlement.token.holding
            place = places.get(holding.id)
            if not is_ours(place, holding, member):
                raise stale(token)
            draft = drafts.setdefault(holding.id, Draft(holding, Progress.restored(place.stored)))
            if not is_open(draft.progress, token):
                raise void(draft.progress, token)
            token.released = settlement.kind is Kind.RELEASE
            burials += apply(draft.progress, settlement, subscription.options, now=now)
        changes = [
            Change(id, d.holding.epoch, places[id].version, places[id].stored, d.progress.stored())
            for id, d in drafts.items()
        ]
        yield from subscription.leases.write(member, changes)
        if burials:
            yield from subscription.store.letters.bury(subscription.options.grave, burials)


def is_ours(place: Loaded | None, holding: Holding, member: Member) -> TypeGuard[Loaded]:
    """Whether a lease is the one that a holding was delivered from."""
    return (
        place is not None
        and place.leased_by == member.subscriber_id
        and place.epoch == holding.epoch
    )


def void(progress: Progress, token: Token) -> Exception:
    """Why a delivery of a partition that is still ours cannot be settled."""
    settled = token.tentative and was_settled(progress, token)
    return settled_before(token) if settled else stale(token)


def busy(token: Token) -> Locked:
    return Locked(
        f"{token}: a transaction that has settled another message of this key is still open; "
        f"nothing was changed. Try again when it has ended"
    )


def stale(token: Token) -> StaleLease:
    return StaleLease(
        f"{token}: the lease was lost, or the visibility passed and it was delivered again, or the "
        f"subscriber was closed; so this changed nothing. Whoever gets the message next settles "
        f"it: let go of this delivery"
    )


def settled_before(token: Token) -> AlreadySettled:
    return AlreadySettled(f"{token}: this delivery was settled before, and that stands")


def apply(progress: Progress, settlement: Settlement, options: Terms, *, now: int) -> list[Burial]:
    """Do to the progress what is to be done. A burial, if the message is given up."""
    token = settlement.token
    offset, attempt = token.offset, token.attempt
    if settlement.kind is Kind.ACK:
        progress.ack(offset, offset)
        return []
    if settlement.kind is Kind.EXTEND:
        progress.extend(offset, until=now + micros(settlement.delay or 0.0))
        return []
    if settlement.kind is Kind.RELEASE:
        progress.release(offset)
        return []
    if settlement.kind is Kind.NACK:
        delay = retry_delay(settlement.delay, attempt, options)
        if delay is not None:
            progress.wait(offset, until=now + micros(delay), error=settlement.error)
            return []
    known = progress.at(offset)
    last_error = known.error if known is not None else None
    progress.ack(offset, offset)
    token.given_up = True
    if not options.buries:
        return []
    error = settlement.error or last_error or f"{settlement.kind.value}ed without an error"
    return [Burial(token.holding.id, token.holding.key, offset, attempt, error, now, new_id())]


def retry_delay(delay: float | None, attempt: int, options: Terms) -> float | None:
    """How long a nacked message waits; None if it was its last attempt."""
    backoff = options.backoff.delay(attempt)
    if attempt >= options.max_attempts or backoff is None:
        return None
    return backoff if delay is None else delay


def exhausted(known: Range, options: Options) -> bool:
    """Whether a range that is due has had all its attempts, without being settled."""
    limit = options.backoff.max_attempts
    attempts_max = options.max_attempts if limit is None else min(limit, options.max_attempts)
    return known.attempts >= attempts_max


def unsettled_error(known: Range, options: Options) -> str:
    """What to say of a message whose handlers never said anything."""
    story = (
        f"delivered {known.attempts} times and never settled: each time its subscriber died, lost "
        f"its lease, or let the visibility of {options.visibility:g} s pass"
    )
    return story if known.error is None else f"{story}; the last error before: {known.error}"


def micros(seconds: float) -> int:
    return round(seconds * 1_000_000)
