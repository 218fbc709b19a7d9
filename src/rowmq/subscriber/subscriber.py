"""The two subscribers: `Subscriber` for sync code and `AsyncSubscriber` for async code.

What they do is in `subscription`, what they do it with in `flavours`.
"""

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import AsyncIterator, Generator, Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from rowmq.combining import AsyncCombiner, Combiner
from rowmq.drivers.base import take_steps, take_steps_async
from rowmq.drivers.forking import after_fork
from rowmq.errors import Closed, Locked
from rowmq.options import whole
from rowmq.store.keys import key_of
from rowmq.subscriber.delivery import AsyncDelivery, Delivery, acks, claim, conclude, let_go, take
from rowmq.subscriber.flavours import Tasks, Threads
from rowmq.subscriber.home import Home
from rowmq.subscriber.options import Options
from rowmq.subscriber.settling import Kind, Settlement, settled_before
from rowmq.subscriber.subscription import Subscription
from rowmq.times import Duration, to_seconds

__all__ = ["AsyncSubscriber", "Subscriber", "hush"]

log = logging.getLogger("rowmq")
T = TypeVar("T")

Settlements = Sequence[Settlement]
Outcomes = list[Exception | None]

CALLS_MAX = 1_000_000
"""Settles that share a transaction: all that one call brings, however many."""


class _Common(Generic[T]):
    """What sync and async subscribers share."""

    _core: Subscription
    _forked = False

    @property
    def name(self) -> str:
        """What this subscriber is called in `lag`."""
        return self._core.options.name

    @property
    def owned(self) -> list[str | None]:
        """The keys of the partitions that are leased to this subscriber, sorted; None, for each
        shard of the messages without a key.
        """
        keys = [holding.key for holding in list(self._core.holdings.values())]
        return [key_of(key) for key in sorted(keys)]

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._core.closed

    def __repr__(self) -> str:
        options = self._core.options
        state = "closed" if self.closed else f"owns {len(self._core.holdings)} partitions"
        return (
            f"<{type(self).__name__} {options.name!r} of group {options.group!r}, "
            f"topic {options.topic!r}: {state}>"
        )

    def reset(self) -> None:
        """In a forked child: this subscriber is the parent's."""
        self._forked = self._core.closed = True
        self._core.lose(list(self._core.holdings.values()), tell=False)

    def _arguments(self, limit: int | None, timeout: Duration | None) -> tuple[int, float | None]:
        if self._core.closed:
            reason = "belongs to the parent process" if self._forked else "was closed"
            raise Closed(f"this subscriber {reason}; subscribe again")
        size = self._core.options.batch_size if limit is None else whole("max", limit)
        return size, None if timeout is None else to_seconds(timeout, name="timeout")


class Subscriber(_Common[T]):
    """A subscriber of a group, for sync code. Deliveries may be settled from any thread."""

    def __init__(self, home: Home, options: Options) -> None:
        self._home = home
        self._threads: set[int] = set()
        self._flavour = Threads(home, Delivery, self._settle)
        self._core = Subscription(home.store, options, self._flavour)
        self._combiner: Combiner[Settlements, Outcomes] = Combiner(
            self._flush,
            one_lane,
            no_size,
            repeatable=False,
            linger=options.flush_interval,
            calls_max=CALLS_MAX,
        )
        try:
            take_steps(self._core.start())
        except BaseException:
            with contextlib.suppress(Exception):
                take_steps(self._core.leave())  # as if it had never come
            raise
        self._flavour.begin(self._core)
        after_fork(self)

    def poll(self, max: int | None = None, timeout: Duration | None = 1.0) -> list[Delivery[T]]:
        """Up to `max` messages (`batch_size`, if not given), as soon as there is one.

        Waits for `timeout` seconds, or, with None, for as long as it takes. Messages of one key
        come in their order.
        """
        arguments = self._arguments(max, timeout)
        self._close_if_asked()
        with self._inside():
            return take_steps(self._core.polling.poll(*arguments))

    def ack(self, deliveries: Iterable[Delivery[T]], *, connection: Any = None) -> None:
        """Ack many deliveries in one transaction."""
        self._settle(acks(deliveries), connection)

    def __iter__(self) -> Iterator[Delivery[T]]:
        """Messages one at a time, until the subscriber is closed."""
        while not self.closed:
            try:
                deliveries = self.poll(max=1, timeout=None)
            except Closed:
                return
            if not deliveries:
                self._close_if_asked()
            for delivery in deliveries:
                yield delivery
                let_go(delivery)
            self._close_if_asked()

    def close(self) -> None:
        """Settle what is under way, and hand everything over to others at once.

        In a signal handler that comes upon a call of this subscriber, it is closed right after that
        call, or at the next one if that gave messages.
        """
        if self.closed:
            return
        if threading.get_ident() in self._threads:
            self._core.closing = True
            self._flavour.wake()
            return
        try:
            self._combiner.flush()
            take_steps(self._core.leave())
        except Exception as error:  # noqa: BLE001 - the leases end by themselves
            log.warning("subscriber %s could not say that it leaves: %s", self.name, error)
        finally:
            self._core.closed = True
            self._flavour.end(self._core)
            self._home.left(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def reset(self) -> None:
        """In a forked child: this subscriber is the parent's."""
        self._flavour.reset()
        super().reset()

    @contextlib.contextmanager
    def _inside(self) -> Iterator[None]:
        """Know which threads are in a call: one that is cannot wait for its own end."""
        thread = threading.get_ident()
        outermost = thread not in self._threads
        self._threads.add(thread)
        try:
            yield
        finally:
            if outermost:
                self._threads.discard(thread)

    def _close_if_asked(self) -> None:
        if self._core.closing:
            self.close()

    def _settle(self, settlements: Sequence[Settlement], connection: Any) -> None:
        with self._inside():
            self._settle_once(settlements, connection)

    def _settle_once(self, settlements: Sequence[Settlement], connection: Any) -> None:
        claim(settlements)
        if connection is None:
            self._settle_alone(settlements)
            return
        try:
            self._home.run(partial(self._core.settling.settle_within, settlements), connection)
        finally:
            conclude(settlements)

    def _settle_alone(self, settlements: Sequence[Settlement]) -> None:
        """Settle in a transaction of our own. What a transaction of the user's has locked is waited
        for here, where nobody else has to wait with us.
        """
        patience = Patience(self._home.store.dialect.lock_timeout)
        try:
            while True:
                try:
                    outcomes = self._combiner.submit(settlements)
                except Locked as error:
                    outcomes = [error] * len(settlements)
                settlements = patience.left(settlements, outcomes)
                if not settlements:
                    return
                time.sleep(patience.pause)
        except Exception:
            raise  # each delivery was told its own outcome
        except BaseException:
            conclude(settlements)  # interrupted: nobody knows
            raise

    def _flush(self, calls: list[Settlements]) -> list[Outcomes]:
        settlements = [settlement for call in calls for settlement in call]
        outcomes: Outcomes | None = None
        try:
            outcomes = take_steps(self._core.settle(settlements))
        finally:
            conclude(settlements, outcomes)
        return dealt_out(calls, outcomes)


class AsyncSubscriber(_Common[T]):
    """A subscriber of a group, for async code, started by `async with`, `await` or a poll."""

    def __init__(self, home: Home, options: Options) -> None:
        self._home = home
        self._flavour = Tasks(home, AsyncDelivery, self._settle)
        self._core = Subscription(home.store, options, self._flavour)
        self._started = False
        self._closing: asyncio.Task[None] | None = None
        self._combiner: AsyncCombiner[Settlements, Outcomes] = AsyncCombiner(
            self._flush,
            one_lane,
            no_size,
            at_once=1,
            repeatable=False,
            linger=options.flush_interval,
            calls_max=CALLS_MAX,
        )

    async def poll(
        self,
        max: int | None = None,
        timeout: Duration | None = 1.0,  # noqa: ASYNC109 - how long it may find nothing
    ) -> list[AsyncDelivery[T]]:
        """Up to `max` messages, as soon as there is one: see `Subscriber.poll`."""
        limit, seconds = self._arguments(max, timeout)
        await self._start()
        return await take_steps_async(self._core.polling.poll(limit, seconds))

    async def ack(self, deliveries: Iterable[AsyncDelivery[T]], *, connection: Any = None) -> None:
        """Ack many deliveries in one transaction."""
        await self._settle(acks(deliveries), connection)

    async def __aiter__(self) -> AsyncIterator[AsyncDelivery[T]]:
        """Messages one at a time, until the subscriber is closed."""
        while not self.closed:
            try:
                deliveries = await self.poll(max=1, timeout=None)
            except Closed:
                return
            for delivery in deliveries:
                yield delivery
                let_go(delivery)

    async def close(self) -> None:
        """Settle what is under way, and hand everything over to others at once."""
        if self.closed:
            return
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(), name="rowmq-close")
        await asyncio.shield(self._closing)  # who is cancelled while closing has still closed

    async def _close(self) -> None:
        try:
            await self._combiner.flush()
            await take_steps_async(self._core.leave())
        except Exception as error:  # noqa: BLE001 - the leases end by themselves
            log.warning("subscriber %s could not say that it leaves: %s", self.name, error)
        finally:
            self._core.closed = True
            self._flavour.end(self._core)
            self._home.left(self)

    async def __aenter__(self) -> Self:
        return await self._start()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def __await__(self) -> Generator[Any, None, Self]:
        return self._start().__await__()

    async def _start(self) -> Self:
        """Enter the group, unless that has been done."""
        if not self._started:
            self._started = True
            try:
                await take_steps_async(self._core.start())
            except BaseException:
                await self.close()  # as if it had never come
                raise
            self._flavour.begin(self._core)
            after_fork(self)
        return self

    async def _settle(self, settlements: Sequence[Settlement], connection: Any) -> None:
        claim(settlements)
        if connection is None:
            await self._settle_alone(settlements)
            return
        try:
            await self._home.run(
                partial(self._core.settling.settle_within, settlements), connection
            )
        finally:
            conclude(settlements)

    async def _settle_alone(self, settlements: Sequence[Settlement]) -> None:
        """Settle in a transaction of our own: see `Subscriber`."""
        patience = Patience(self._home.store.dialect.lock_timeout)
        try:
            while True:
                try:
                    outcomes = await self._combiner.submit(settlements)
                except Locked as error:
                    outcomes = [error] * len(settlements)
                settlements = patience.left(settlements, outcomes)
                if not settlements:
                    return
                await asyncio.sleep(patience.pause)
        except Exception:
            raise  # each delivery was told its own outcome
        except BaseException:
            conclude(settlements)  # interrupted: nobody knows
            raise

    async def _flush(self, calls: list[Settlements]) -> list[Outcomes]:
        settlements = [settlement for call in calls for settlement in call]
        outcomes: Outcomes | None = None
        try:
            outcomes = await take_steps_async(self._core.settle(settlements))
        finally:
            conclude(settlements, outcomes)
        return dealt_out(calls, outcomes)


def hush(subscriber: AsyncSubscriber[Any]) -> None:
    """Have a poll that waits return, and later ones not wait: it is to be closed soon."""
    subscriber._core.closing = True  # noqa: SLF001 - its own module
    subscriber._flavour.wake()  # noqa: SLF001


class Patience:
    """How long a settle waits for a transaction that has locked its partition."""

    pause = 0.02

    def __init__(self, seconds: float) -> None:
        self._until = time.monotonic() + seconds
        self._error: Exception | None = None

    def left(self, settlements: Sequence[Settlement], outcomes: Outcomes) -> list[Settlement]:
        """Those to try again, taken again. When there are none, or it has been long enough, raises
        the first error there was.
        """
        if not any(outcomes) and self._error is None:
            return []
        pairs = [*zip(settlements, outcomes, strict=True)]
        locked = [settlement for settlement, outcome in pairs if isinstance(outcome, Locked)]
        others = (o for o in outcomes if o is not None and not isinstance(o, Locked))
        self._error = self._error or next(others, None)
        if time.monotonic() > self._until:
            self._error = self._error or next((o for o in outcomes if o is not None), None)
            locked = []
        again = []
        for settlement in locked:
            if take(settlement):
                again.append(settlement)
            elif settlement.kind is not Kind.EXTEND:  # somebody else has settled it meanwhile
                self._error = self._error or settled_before(settlement.token)
        if not again and self._error is not None:
            raise self._error
        return again


def one_lane(_: Settlements) -> str:
    """All settles of a subscriber may share a transaction."""
    return "settle"


def no_size(_: Settlements) -> int:
    return 0


def dealt_out(calls: Sequence[Settlements], outcomes: Outcomes) -> list[Outcomes]:
    """The outcomes of each call."""
    ends = [*accumulate(len(call) for call in calls)]
    return [outcomes[end - len(call) : end] for call, end in zip(calls, ends, strict=True)]
