"""Where units come from: a topic, as one subscriber of a group; or a queue."""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import msgspec

from rowmq.client import AsyncRowMQ
from rowmq.drivers.base import take_steps_async
from rowmq.pacing import Pace
from rowmq.queue.queue import AsyncQueue
from rowmq.queue.view import View
from rowmq.queue.waiting import TaskWaiter
from rowmq.subscriber.delivery import let_go
from rowmq.subscriber.options import Options
from rowmq.subscriber.subscriber import AsyncSubscriber, hush
from rowmq.telemetry import catalogue
from rowmq.telemetry.families import Gathering
from rowmq.times import to_micros
from rowmq.worker.keeper import Keeper
from rowmq.worker.unit import ACK, Unit, Verdict

__all__ = ["QueueSource", "Source", "TopicSource", "for_worker"]

DOUBT_SECONDS = 0.05

FETCH_SECONDS = 20.0
"""How long a fetch waits for a first unit: a stop wakes it, and it is well all the time."""


class Source(ABC):
    """What a handler's units come from, and are settled with."""

    name: str

    @abstractmethod
    async def open(self) -> None:
        """Begin."""

    @abstractmethod
    async def fetch(self, limit: int) -> list[Unit]:
        """Up to so many units; after a while, or when hushed, none."""

    @abstractmethod
    def hush(self) -> None:
        """Have a fetch that waits return."""

    @abstractmethod
    def lost(self, unit: Unit) -> bool:
        """Whether others may have a unit by now."""

    async def is_ours(self, unit: Unit) -> bool:
        """Whether a unit may be begun."""
        return not self.lost(unit)

    async def settle(self, verdicts: Sequence[tuple[Unit, Verdict]]) -> None:
        """Settle units in one transaction; raises the first error, once all that can be are."""
        wanted: list[Any] = []
        for unit, verdict in verdicts:
            if verdict is ACK:
                wanted.append(unit.raw._ack_wanted())
            else:
                wanted += unit.wanted(verdict)
                unit.asked = wanted[-1]
        await verdicts[0][0].raw._settle(wanted, None)

    @abstractmethod
    def waited(self, unit: Unit) -> float | None:
        """For how many seconds a unit could have been handled, if that is known."""

    @property
    @abstractmethod
    def given_up(self) -> int:
        """How many no handler was given, as they could not be read, or came again and again."""

    def measure(self, gathering: Gathering) -> None:  # noqa: B027 - jobs' locks are the keeper's
        """Tell what it has taken for itself."""

    def spare(self, unit: Unit) -> None:  # noqa: B027 - most have nothing to free
        """Free what only the handler of a unit needs: it is done, and waits to be acked. Another
        thread may just be looking at the unit, to tell of it.
        """

    def finished(self, units: Sequence[Unit]) -> None:
        """Units are settled, or lost: nothing is kept for them any more."""
        for unit in units:
            unit.finished = True

    @abstractmethod
    async def close(self) -> None:
        """Leave what is left to others."""


class TopicSource(Source):
    """The messages of a topic, for one group. Its lease is kept by the subscriber's heartbeat, and
    what was fetched stays invisible for as long as its unit lives.
    """

    def __init__(self, mq: AsyncRowMQ, options: Options) -> None:
        self.name = options.topic
        self._mq = mq
        self._options = options
        self._subscriber: AsyncSubscriber[Any] | None = None
        self._hushed = False

    async def open(self) -> None:
        home = self._mq._home
        subscriber: AsyncSubscriber[Any] = AsyncSubscriber(home, self._options)
        self._subscriber = subscriber
        home.entered(subscriber)
        await subscriber

    async def fetch(self, limit: int) -> list[Unit]:
        assert self._subscriber is not None  # noqa: S101 - opened before
        finished = self.finished
        return [
            Unit(raw, finished, raw.message.key)
            for raw in await self._subscriber.poll(limit, timeout=FETCH_SECONDS)
        ]

    def hush(self) -> None:
        self._hushed = True
        if self._subscriber is not None:
            hush(self._subscriber)

    def lost(self, unit: Unit) -> bool:
        raw: Any = unit.raw
        return raw._token.holding.lost or raw._core.presumed_dead()  # type: ignore[no-any-return]

    def waited(self, unit: Unit) -> float | None:
        raw: Any = unit.raw
        if raw.attempt > 1:
            return None  # most of the time it was to wait
        now: int = raw._core.clock.now()
        return (now - to_micros(raw.message.published_at)) / 1_000_000

    @property
    def given_up(self) -> int:
        return 0 if self._subscriber is None else self._subscriber._core.given_up

    def measure(self, gathering: Gathering) -> None:
        leases = 0 if self._subscriber is None else len(self._subscriber._core.holdings)
        gathering.add(catalogue.LEASES, (self.name, self._options.group), leases)

    def spare(self, unit: Unit) -> None:
        # Thousands may wait to be acked, and the processor's caches have better to keep.
        del unit.raw.message  # type: ignore[union-attr] # it is a delivery

    def finished(self, units: Sequence[Unit]) -> None:
        for unit in units:
            unit.finished = True
            # If it was not settled after all, it becomes visible in its time.
            let_go(unit.raw)  # type: ignore[arg-type]

    async def is_ours(self, unit: Unit) -> bool:
        """After a pause nobody knows, until a heartbeat was answered: to give one message of a key
        back, and then find that the next may be begun, would change their order.
        """
        while self.lost(unit) and not self._hushed:
            if unit.raw._token.holding.lost:  # type: ignore[union-attr]
                return False
            await asyncio.sleep(DOUBT_SECONDS)
        return not self.lost(unit)

    async def close(self) -> None:
        if self._subscriber is not None:
            await self._subscriber.close()


class QueueSource(Source):
    """The jobs of a queue. Their locks are kept by the keeper."""

    def __init__(self, mq: AsyncRowMQ, view: View, keeper: Keeper) -> None:
        self.name = view.queue
        self._queue: AsyncQueue[Any] = AsyncQueue(mq, mq._desk, view)
        self._view = view
        self._keeper = keeper
        self._pace = Pace()
        self._waiter: TaskWaiter | None = None

    async def open(self) -> None:
        self._waiter = TaskWaiter()
        core = self._queue._core
        core.desk.waiters.add(core.views, self._waiter)

    async def fetch(self, limit: int) -> list[Unit]:
        assert self._waiter is not None  # noqa: S101 - opened before
        woken = self._waiter.calm()
        self._pace.begin()
        began = time.monotonic()
        core = self._queue._core
        jobs = await take_steps_async(core.claim(limit, patient=not woken))
        if jobs:
            self._pace.found()
            finished = self.finished
            units = [Unit(job, finished) for job in jobs]
            self._keeper.keep(units, self._view.lock_us, began=began)
            return units
        await self._waiter.wait(core.pause(self._pace))
        return []

    def hush(self) -> None:
        if self._waiter is not None:
            self._waiter.wake()

    def waited(self, unit: Unit) -> float | None:
        now, at = self._queue._core.claimer.clock
        since = (now - unit.raw._facts.due_us) / 1_000_000  # type: ignore[union-attr] # it is a job
        return since + time.monotonic() - at

    @property
    def given_up(self) -> int:
        return self._queue._core.refused

    def lost(self, unit: Unit) -> bool:
        lock = unit.lock
        return lock is not None and lock.lost

    def finished(self, units: Sequence[Unit]) -> None:
        self._keeper.let_go([unit for unit in units if not unit.finished])
        super().finished(units)

    async def close(self) -> None:
        if self._waiter is not None:
            core = self._queue._core
            core.desk.waiters.remove(core.views, self._waiter)


def for_worker(options: Options, *, per_key: int) -> Options:
    """The options of a subscriber whose deliveries live as long as their handlers do."""
    return msgspec.structs.replace(options, held=True, per_key=per_key)
