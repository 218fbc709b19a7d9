"""A delivery: a message handed to a handler, to be settled once."""

from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any, Generic, TypeVar

from rowmq.codec import error_text
from rowmq.errors import InvalidInput, InvalidOption
from rowmq.message import Message
from rowmq.quoting import quoted
from rowmq.subscriber.holding import Token
from rowmq.subscriber.settling import Kind, Settlement, settled_before
from rowmq.subscriber.subscription import Subscription
from rowmq.times import Duration, to_seconds

__all__ = [
    "AnyDelivery",
    "AsyncDelivery",
    "Delivery",
    "acks",
    "claim",
    "conclude",
    "let_go",
    "take",
]

T = TypeVar("T")


class AnyDelivery(Generic[T]):
    """What deliveries of sync and async subscribers share."""

    __slots__ = ("__weakref__", "_core", "_settle", "_token", "message")

    def __init__(
        self,
        message: Message[T],
        token: Token,
        core: Subscription,
        settle: Callable[..., Any],
    ) -> None:
        self.message = message
        self._token = token
        self._core = core
        self._settle = settle

    @property
    def group(self) -> str:
        """The group that it was delivered to."""
        return self._core.options.group

    @property
    def attempt(self) -> int:
        """How often this message was delivered to the group, this time included."""
        return self._token.attempt

    @property
    def settled(self) -> bool:
        """Whether it was acked, nacked, rejected or released."""
        return self._token.claimed

    @property
    def lost(self) -> bool:
        """Whether the lease was lost, or may have been: a long handler looks here, and stops."""
        return self._token.holding.lost or self._core.presumed_dead()

    def __repr__(self) -> str:
        token, options = self._token, self._core.options
        return (
            f"<{type(self).__name__} topic={options.topic!r}, key={token.holding.place[0]!r}, "
            f"offset={token.offset}, group={options.group!r}, attempt={token.attempt}>"
        )

    def _as(
        self, kind: Kind, *, delay: Duration | None = None, error: str | BaseException | None = None
    ) -> list[Settlement]:
        seconds = None if delay is None else to_seconds(delay, name="delay")
        return [Settlement(self._token, kind, seconds, error_text(error))]

    def _ack_wanted(self) -> Settlement:
        return Settlement(self._token, Kind.ACK)


class Delivery(AnyDelivery[T]):
    """A message delivered to a sync subscriber.

    It is settled once: `ack`, `nack`, `reject` or `release`. Each returns when that is durable, or,
    with `connection=`, is part of the caller's transaction. A second settle raises
    `AlreadySettled`; one after the lease was lost raises `StaleLease` and changes nothing.
    """

    __slots__ = ()

    def ack(self, *, connection: Any = None) -> None:
        """The message is done."""
        self._settle(self._as(Kind.ACK), connection)

    def nack(
        self,
        *,
        delay: Duration | None = None,
        error: str | BaseException | None = None,
        connection: Any = None,
    ) -> None:
        """Deliver it again after a delay, or as `backoff` says; after its last attempt, give up."""
        self._settle(self._as(Kind.NACK, delay=delay, error=error), connection)

    def reject(self, *, error: str | BaseException | None = None, connection: Any = None) -> None:
        """Give it up: it goes to the dead letters at once."""
        self._settle(self._as(Kind.REJECT, error=error), connection)

    def release(self, *, connection: Any = None) -> None:
        """Give it back as if it had never been delivered: it is due at once, at no attempt."""
        self._settle(self._as(Kind.RELEASE), connection)

    def extend(self, seconds: Duration, *, connection: Any = None) -> None:
        """Keep it invisible for so long from now on."""
        self._settle(self._as(Kind.EXTEND, delay=check_extension(seconds)), connection)


class AsyncDelivery(AnyDelivery[T]):
    """A message delivered to an async subscriber: see `Delivery`."""

    __slots__ = ()

    async def ack(self, *, connection: Any = None) -> None:
        """The message is done."""
        await self._settle(self._as(Kind.ACK), connection)

    async def nack(
        self,
        *,
        delay: Duration | None = None,
        error: str | BaseException | None = None,
        connection: Any = None,
    ) -> None:
        """Deliver it again after a delay, or as `backoff` says; after its last attempt, give up."""
        await self._settle(self._as(Kind.NACK, delay=delay, error=error), connection)

    async def reject(
        self, *, error: str | BaseException | None = None, connection: Any = None
    ) -> None:
        """Give it up: it goes to the dead letters at once."""
        await self._settle(self._as(Kind.REJECT, error=error), connection)

    async def release(self, *, connection: Any = None) -> None:
        """Give it back as if it had never been delivered: it is due at once, at no attempt."""
        await self._settle(self._as(Kind.RELEASE), connection)

    async def extend(self, seconds: Duration, *, connection: Any = None) -> None:
        """Keep it invisible for so long from now on."""
        await self._settle(self._as(Kind.EXTEND, delay=check_extension(seconds)), connection)


def claim(settlements: Sequence[Settlement]) -> None:
    """Take deliveries for settling, all or none: nobody else can then."""
    claimed: list[Token] = []
    for settlement in settlements:
        if not take(settlement):
            for other in claimed:
                other.unclaim()
            raise settled_before(settlement.token)
        if settlement.kind is not EXTEND:
            claimed.append(settlement.token)


def take(settlement: Settlement) -> bool:
    """Take a delivery for settling. False if somebody has. One that is extended is there for all:
    it can be settled at the same time, or extended by others.
    """
    token = settlement.token
    return token.claim() if settlement.kind is not EXTEND else not token.claimed


EXTEND = Kind.EXTEND


def conclude(
    settlements: Sequence[Settlement], outcomes: Sequence[Exception | None] | None = None
) -> None:
    """Let go of deliveries that are not settled after all. Without outcomes nobody knows, and
    whoever tries again will be told.
    """
    if outcomes is None:
        for settlement in settlements:
            if settlement.kind is not EXTEND:
                settlement.token.tentative = True
                settlement.token.unclaim()
        return
    if not any(outcomes):
        return
    for settlement, outcome in zip(settlements, outcomes, strict=True):
        if outcome is not None and settlement.kind is not EXTEND:
            settlement.token.unclaim()


def acks(deliveries: Iterable[AnyDelivery[Any]]) -> list[Settlement]:
    """Many acks, each delivery once."""
    if isinstance(deliveries, AnyDelivery):
        raise InvalidInput("ack takes a list of deliveries; for a single one call delivery.ack()")
    if not isinstance(deliveries, Iterable):
        raise InvalidInput(f"ack takes a list of deliveries, not {quoted(deliveries)}")
    tokens: dict[Token, None] = {}
    for delivery in deliveries:
        if not isinstance(delivery, AnyDelivery):
            raise InvalidInput(f"ack takes deliveries that poll() gave, not {quoted(delivery)}")
        tokens[delivery._token] = None  # noqa: SLF001 - its own module
    ack = Kind.ACK
    return [Settlement(token, ack) for token in tokens]


def let_go(delivery: AnyDelivery[Any]) -> None:
    """Its handler is done, whatever became of it: it does not keep the message invisible."""
    delivery._token.held = False  # noqa: SLF001 - its own module


def check_extension(seconds: Duration) -> float:
    given = seconds.total_seconds() if isinstance(seconds, timedelta) else seconds
    duration = to_seconds(given, name="seconds")
    if duration == 0:
        raise InvalidOption(
            "extend takes the seconds from now on, more than none; nack(delay=0) "
            "makes a message visible at once"
        )
    return duration
