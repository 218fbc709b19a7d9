"""What a subscription is run with: locks, events and background work of threads, or of tasks."""

import asyncio
import contextlib
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from rowmq.drivers.base import take_steps, take_steps_async
from rowmq.errors import Closed, UnknownGroup
from rowmq.store.statement import Operation
from rowmq.subscriber.home import Home
from rowmq.subscriber.subscription import Subscription

__all__ = ["Tasks", "Threads"]

log = logging.getLogger("rowmq")

TROUBLE_SECONDS = 1.0
"""How long the background waits after an error before it tries again, and at most in any case."""

STOP_SECONDS = 5.0


class _Flavour(ABC):
    """What threads and tasks share."""

    def __init__(
        self, home: Home, delivery: Callable[..., Any], settle: Callable[..., Any]
    ) -> None:
        self.home = home
        self.delivery = delivery
        self.settle = settle

    def run(self, make: Callable[[], Operation[Any]]) -> Any:
        """Run an operation in a transaction of its own."""
        return self.home.run(make)

    def watched(self) -> bool:
        """Whether a publish wakes it."""
        return self.home.watcher.alive

    @abstractmethod
    def wake(self) -> None:
        """Have it look again; from any thread."""

    def begin(self, core: Subscription) -> None:
        """A subscription has started: have it beat and be woken."""
        self.home.heart.add(core)
        self.home.watcher.add(core.options.topic, self.wake)

    def end(self, core: Subscription) -> None:
        """A subscription has ended."""
        self.home.heart.remove(core)
        self.home.watcher.remove(core.options.topic, self.wake)
        self.wake()


class Threads(_Flavour):
    """For sync code."""

    def __init__(
        self, home: Home, delivery: Callable[..., Any], settle: Callable[..., Any]
    ) -> None:
        super().__init__(home, delivery, settle)
        self.reset()

    def reset(self) -> None:
        """Nobody waits: at the start, and in a forked child."""
        self.lock = threading.Lock()
        self.event = threading.Event()
        self.stopping = threading.Event()
        self.tender: threading.Thread | None = None

    def wait(self, seconds: float) -> None:
        """Wait, or until woken."""
        self.event.wait(seconds)

    def wake(self) -> None:
        self.event.set()

    def calm(self) -> None:
        """Forget that it was woken."""
        self.event.clear()

    def begin(self, core: Subscription) -> None:
        super().begin(core)
        tend = self._tend
        self.tender = threading.Thread(target=tend, args=(core,), name="rowmq-tender", daemon=True)
        self.tender.start()

    def end(self, core: Subscription) -> None:
        super().end(core)
        self.stopping.set()
        if self.tender is not None and self.tender is not threading.current_thread():
            self.tender.join(STOP_SECONDS)

    def _tend(self, core: Subscription) -> None:
        """Keep the share of partitions fair, also while nobody polls."""
        while not self.stopping.wait(pause_before(core)):
            try:
                take_steps(core.tend())
            except (Closed, UnknownGroup):
                return  # nothing is left to share; who polls is told
            except Exception as error:  # noqa: BLE001 - the thread must live, and try again
                log.warning("subscriber %s could not share out: %s", core.options.name, error)
                self.stopping.wait(TROUBLE_SECONDS)


class Tasks(_Flavour):
    """For async code, in the loop that it begins in."""

    def __init__(
        self, home: Home, delivery: Callable[..., Any], settle: Callable[..., Any]
    ) -> None:
        super().__init__(home, delivery, settle)
        self.lock = asyncio.Lock()
        self.event = asyncio.Event()
        self.loop: asyncio.AbstractEventLoop | None = None
        self.tender: asyncio.Task[None] | None = None

    async def wait(self, seconds: float) -> None:
        """Wait, or until woken."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.event.wait()

    def wake(self) -> None:
        if self.loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop may be closed by now
                self.loop.call_soon_threadsafe(self.event.set)

    def calm(self) -> None:
        """Forget that it was woken."""
        self.event.clear()

    def begin(self, core: Subscription) -> None:
        self.loop = asyncio.get_running_loop()
        super().begin(core)
        self.tender = asyncio.create_task(self._tend(core), name="rowmq-tender")

    def end(self, core: Subscription) -> None:
        super().end(core)
        if self.tender is not None:
            self.tender.cancel()

    async def _tend(self, core: Subscription) -> None:
        """Keep the share of partitions fair, also while nobody polls."""
        while True:
            await asyncio.sleep(pause_before(core))
            try:
                await take_steps_async(core.tend())
            except (Closed, UnknownGroup):
                return  # nothing is left to share; who polls is told
            except Exception as error:  # noqa: BLE001 - the task must live, and try again
                log.warning("subscriber %s could not share out: %s", core.options.name, error)
                await asyncio.sleep(TROUBLE_SECONDS)


def pause_before(core: Subscription) -> float:
    """How long until a subscription is to be tended."""
    return max(0.01, min(core.sharing.due_at - time.monotonic(), TROUBLE_SECONDS))
