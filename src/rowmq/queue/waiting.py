"""How pollers wait: each on an event of its own, which a put to their queues sets."""

import asyncio
import contextlib
import threading
from collections.abc import Iterable
from typing import Protocol

from rowmq.drivers.forking import after_fork
from rowmq.drivers.watching import Watcher
from rowmq.store.queues import wake_name

__all__ = ["TaskWaiter", "ThreadWaiter", "Waiter", "Waiters"]


class Waiter(Protocol):
    """One poll that waits."""

    def wait(self, seconds: float) -> object:
        """Wait, or until woken; in async code, something to await."""

    def wake(self) -> None:
        """Have it look again; from any thread."""

    def calm(self) -> bool:
        """Forget that it was woken; whether it was."""


class ThreadWaiter:
    """A thread that waits."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def wait(self, seconds: float) -> None:
        self._event.wait(seconds)

    def wake(self) -> None:
        self._event.set()

    def calm(self) -> bool:
        woken = self._event.is_set()
        self._event.clear()
        return woken


class TaskWaiter:
    """A task that waits."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    async def wait(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._event.wait()

    def wake(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop may be closed by now
            self._loop.call_soon_threadsafe(self._event.set)

    def calm(self) -> bool:
        woken = self._event.is_set()
        self._event.clear()
        return woken


class Waiters:
    """Those who wait for the queues of a client, and what wakes them."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self.reset()
        after_fork(self)

    def reset(self) -> None:
        """Nobody waits, and nothing is watched: at the start, and in a forked child."""
        self._lock = threading.Lock()
        self._waiting: dict[str, set[Waiter]] = {}
        self._watched: set[str] = set()

    @property
    def woken(self) -> bool:
        """Whether a put by others wakes those who wait."""
        return self._watcher.alive

    def add(self, queues: Iterable[str], waiter: Waiter) -> None:
        """Have a waiter woken. A queue that was waited for once is watched from then on: to begin
        anew at every poll would cost a connection each.
        """
        for queue in queues:
            with self._lock:
                self._waiting.setdefault(queue, set()).add(waiter)
                unwatched = queue not in self._watched
                self._watched.add(queue)
            if unwatched:
                self._watcher.add(wake_name(queue), Wake(self, queue))

    def remove(self, queues: Iterable[str], waiter: Waiter) -> None:
        """Do not wake it any more."""
        with self._lock:
            for queue in queues:
                self._waiting.get(queue, set()).discard(waiter)

    def wake(self, queue: str) -> None:
        """Wake those who wait for a queue."""
        with self._lock:
            waiters = list(self._waiting.get(queue, ()))
        for waiter in waiters:
            waiter.wake()

    def wake_all(self) -> None:
        """Wake everybody: the client is being closed."""
        for queue in list(self._waiting):
            self.wake(queue)


class Wake:
    """Wakes those who wait for one queue."""

    def __init__(self, waiters: Waiters, queue: str) -> None:
        self._waiters = waiters
        self._queue = queue

    def __call__(self) -> None:
        self._waiters.wake(self._queue)
