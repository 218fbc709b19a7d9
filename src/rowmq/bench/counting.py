"""What a player counts: statements that a client runs, and what handlers have handled."""

import asyncio
import statistics
import threading
from time import monotonic
from typing import Any

from rowmq.store.statement import Statement

__all__ = ["Latencies", "Statements", "Tally"]


class Statements:
    """How many statements clients have run: each is a round trip, and begin and commit are not
    counted.
    """

    def __init__(self, *clients: Any) -> None:
        self.count = 0
        for client in clients:
            self.watch(client)

    def watch(self, client: Any) -> None:
        """Count those of one more client."""
        client._driver.observers.append(self._see)

    def forget(self) -> None:
        """Begin again from none."""
        self.count = 0

    def figures(self) -> dict[str, int]:
        return {"statements": self.count}

    def _see(self, _: Statement) -> None:
        self.count += 1


class Tally:
    """How much was handled, and when first and last; for one event loop and its threads."""

    def __init__(self, wanted: int) -> None:
        self.count = 0
        self.first = self.last = 0.0
        self.enough = asyncio.Event()
        self._wanted = wanted
        self._lock = threading.Lock()
        self._loop = asyncio.get_running_loop()

    def note(self) -> None:
        """One more was handled, in the event loop."""
        if self._is_enough():
            self.enough.set()

    def note_in_thread(self) -> None:
        """One more was handled, in some thread."""
        with self._lock:
            enough = self._is_enough()
        if enough:
            self._loop.call_soon_threadsafe(self.enough.set)

    def _is_enough(self) -> bool:
        """Count one more; whether it was the last."""
        now = monotonic()
        if not self.count:
            self.first = now
        self.count += 1
        self.last = now
        return self.count == self._wanted

    async def settle_down(self, idle: float) -> None:
        """Wait until enough was handled, or nothing more was for so many seconds."""
        began = monotonic()
        while not self.enough.is_set():
            left = max(self.last, began) + idle - monotonic()
            if left <= 0:
                return
            try:
                await asyncio.wait_for(self.enough.wait(), left)
            except TimeoutError:
                continue


class Latencies:
    """Seconds from sending to handling."""

    def __init__(self, wanted: int) -> None:
        self.enough = asyncio.Event()
        self._wanted = wanted
        self._seconds: list[float] = []

    def note(self, sent: float) -> None:
        self._seconds.append(monotonic() - sent)
        if len(self._seconds) == self._wanted:
            self.enough.set()

    @property
    def count(self) -> int:
        return len(self._seconds)

    def figures(self) -> dict[str, float]:
        """The median, the 99th percentile and the most, in milliseconds."""
        if len(self._seconds) < 2:
            return {}
        hundredths = statistics.quantiles(self._seconds, n=100, method="inclusive")
        return {
            "p50_ms": 1_000 * hundredths[49],
            "p99_ms": 1_000 * hundredths[98],
            "max_ms": 1_000 * max(self._seconds),
        }
