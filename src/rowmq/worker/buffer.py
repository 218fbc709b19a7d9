"""What was fetched and is not yet begun, in the order in which it may be.

Units that have an order in common, as messages of one key do, are begun one after the other; the
others at the same time.
"""

import asyncio
from collections import deque
from collections.abc import Iterable

from rowmq.worker.unit import Unit

__all__ = ["Buffer"]


class Buffer:
    """The units of one handler that wait."""

    def __init__(self) -> None:
        self._ready: deque[Unit] = deque()
        self._takers: deque[asyncio.Future[None]] = deque()
        """Those who wait for a unit: no more of them are woken than there are units."""
        self._parked: dict[str, deque[Unit]] = {}
        """By order: those behind one that is waiting or at work."""
        self._closed = False

    @property
    def ready(self) -> int:
        """How many could be begun at once."""
        return len(self._ready)

    def put(self, units: Iterable[Unit]) -> None:
        """Add units, in their order."""
        ready, parked = self._ready, self._parked
        for unit in units:
            order = unit.order
            if order is None:
                ready.append(unit)
            elif order in parked:
                parked[order].append(unit)
            else:
                parked[order] = deque()
                ready.append(unit)
        self._wake(len(ready))

    def take_at_once(self) -> Unit | None:
        """The next unit to begin, if there is one."""
        return self._ready.popleft() if self._ready else None

    async def take(self) -> Unit | None:
        """The next unit to begin, as soon as there is one; None when there will be none."""
        while not self._ready:
            if self._closed:
                return None
            taker = asyncio.get_running_loop().create_future()
            self._takers.append(taker)
            try:
                await taker
            except asyncio.CancelledError:
                taker.cancel()
                self._wake(len(self._ready))  # if it was to take one, somebody else is
                raise
        return self._ready.popleft()

    def _wake(self, count: int) -> None:
        while count > 0 and self._takers:
            taker = self._takers.popleft()
            if not taker.done():
                taker.set_result(None)
                count -= 1

    def done(self, unit: Unit) -> None:
        """Let the next one of the same order begin. Whoever calls this takes a unit now: nobody
        has to be woken.
        """
        if unit.order is None or self._closed:
            return
        parked = self._parked[unit.order]
        if parked:
            self._ready.append(parked.popleft())
        else:
            del self._parked[unit.order]

    def close(self) -> list[Unit]:
        """Take out what was not begun; who waits for more is told that this was all."""
        self._closed = True
        left = [*self._ready, *(unit for parked in self._parked.values() for unit in parked)]
        self._ready.clear()
        self._parked = {}
        self._wake(len(self._takers))
        return left
