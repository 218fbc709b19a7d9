"""Where a test's units come from: one at a time, only what is due, and without ever waiting.

They are the worker's own sources. What differs: there is no heartbeat, no thread that extends
locks, and the time between two looks is nothing, since the clock stands.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from rowmq.client import AsyncRowMQ
from rowmq.drivers.base import Steps, take_steps_async
from rowmq.queue.core import Core
from rowmq.queue.ticket import Wanted
from rowmq.queue.view import View
from rowmq.store.settles import Kind as JobKind
from rowmq.subscriber.options import Options
from rowmq.subscriber.polling import Polling
from rowmq.subscriber.subscriber import AsyncSubscriber
from rowmq.subscriber.subscription import Clock as DatabaseClock
from rowmq.testing.clock import Clock
from rowmq.times import to_micros
from rowmq.worker.keeper import Keeper
from rowmq.worker.sources import QueueSource, Source, TopicSource
from rowmq.worker.unit import Unit, kind_in

__all__ = ["DueJobs", "DueMessages", "DueSource", "Refused", "SeenUnit"]


class Refused(Protocol):
    """Is told of what could not be given to a handler."""

    def __call__(self, *, id: str, key: str | None, attempt: int, error: str) -> None: ...


class SeenUnit(Unit):
    """A unit that remembers how its handler has settled it."""

    settled_as: str | None = None

    async def settle(self, wanted: Sequence[Any], connection: Any = None) -> None:
        await super().settle(wanted, connection)
        kinds = [kind for item in wanted if (kind := kind_in(item)) != "extend"]
        if kinds:
            self.settled_as = kinds[-1]


class DueSource(Source):
    """What a handler's due units come from."""

    def next_due(self) -> int | None:
        """When something is due next, in microseconds, as far as the last look has shown."""
        raise NotImplementedError


class DueMessages(TopicSource, DueSource):
    """The due messages of a topic, for one group."""

    def __init__(self, mq: AsyncRowMQ, options: Options, clock: Clock, on_refused: Refused) -> None:
        super().__init__(mq, options)
        self._clock = clock
        self._on_refused = on_refused

    async def open(self) -> None:
        home = self._mq._home
        subscriber: AsyncSubscriber[Any] = AsyncSubscriber(home, self._options)
        core = subscriber._core
        core.clock = StandingClock(self._clock)
        core.polling = SeenPolling(core, self._on_refused)
        home.entered(subscriber)
        self._subscriber = subscriber
        await take_steps_async(core.start())
        subscriber._started = True  # without its heartbeat: it lives for one drain

    async def fetch(self, limit: int) -> list[Unit]:
        assert self._subscriber is not None  # noqa: S101 - opened before
        core = self._subscriber._core
        core.sharing.due_at = 0.0  # a handler may have published the first message of a key
        core.polling.found_at = 0.0
        return [SeenUnit(raw) for raw in await self._subscriber.poll(limit, timeout=0)]

    def next_due(self) -> int | None:
        assert self._subscriber is not None  # noqa: S101 - opened before
        core = self._subscriber._core
        now = core.clock.now()
        moments = [holding.next_due(now) for holding in core.holdings.values()]
        return min((moment for moment in moments if moment is not None), default=None)


class DueJobs(QueueSource, DueSource):
    """The due jobs of a queue."""

    def __init__(self, mq: AsyncRowMQ, view: View, clock: Clock, on_refused: Refused) -> None:
        super().__init__(mq, view, NoKeeper())
        core = self._queue._core
        self._queue._core = SeenCore(core.desk, [view], core.new_job)
        self._queue._core.on_refused = on_refused
        self._clock = clock

    async def open(self) -> None:
        """There is nothing to begin."""

    async def fetch(self, limit: int) -> list[Unit]:
        # Another client may have put what comes first.
        self._queue._core.claimer.disturbed(self.name)
        return [SeenUnit(job) for job in await self._queue.try_poll_many(limit)]

    def next_due(self) -> int | None:
        seconds = self._queue._core.claimer.next_due
        if seconds is None:
            return None
        return to_micros(self._clock.now()) + max(0, round(seconds * 1_000_000))


class StandingClock(DatabaseClock):
    """The database's time, to a subscriber: it does not pass between two looks at it."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def now(self) -> int:
        return to_micros(self._clock.now())


class SeenPolling(Polling):
    """Polls that tell of what does not parse."""

    def __init__(self, subscription: Any, on_refused: Refused) -> None:
        super().__init__(subscription)
        self._on_refused = on_refused

    def reject_unreadable(self) -> Steps[None]:
        for settlement in self._unreadable:
            token = settlement.token
            self._on_refused(
                id=str(token.offset),
                key=token.holding.place[0],
                attempt=token.attempt,
                error=settlement.error or "",
            )
        yield from super().reject_unreadable()


class SeenCore(Core):
    """A queue that tells of what does not parse, or was delivered too often."""

    on_refused: Refused

    def _refuse(self, refused: Sequence[Wanted]) -> Steps[None]:
        for item in refused:
            settle = item.settle
            if settle.kind is JobKind.REFUSE:
                entry = settle.entry
                self.on_refused(
                    id=str(entry.job_id),
                    key=None,
                    attempt=entry.attempts + 1,
                    error=settle.error or "",
                )
        yield from super()._refuse(refused)


class NoKeeper(Keeper):
    """Keeps no locks: the clock stands while a handler runs."""

    def __init__(self) -> None:
        """There is no thread."""

    def let_go(self, units: Iterable[Unit]) -> None:
        """It has none."""
