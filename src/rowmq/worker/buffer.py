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
        self._ready: asyncio.Queue[Unit | None] = asyncio.Queue()
        self._parked: dict[str, deque[Unit]] = {}
        """By order: those behind one that is waiting or at work."""
        self._closed = False

    @property
    def ready(self) -> int:
        """How many could be begun at once."""
        return self._ready.qsize()

    def put(self, units: Iterable[Unit]) -> None:
        """Add units, in their order."""
        for unit in units:
            if unit.order is None:
                self._ready.put_nowait(unit)
            elif unit.order in self._parked:
                self._parked[unit.order].append(unit)
            else:
                self._parked[unit.order] = deque()
                self._ready.put_nowait(unit)

    async def take(self) -> Unit | None:
        """The next unit to begin, as soon as there is one; None when there will be none."""
        return await self._ready.get()

    def done(self, unit: Unit) -> None:
        """Let the next one of the same order begin."""
        if unit.order is None or self._closed:
            return
        parked = self._parked[unit.order]
        if parked:
            self._ready.put_nowait(parked.popleft())
        else:
            del self._parked[unit.order]

    def close(self, takers: int) -> list[Unit]:
        """Take out what was not begun, and have so many takers know that this was all."""
        self._closed = True
        left: list[Unit] = []
        while not self._ready.empty():
            unit = self._ready.get_nowait()
            if unit is not None:
                left.append(unit)
        for parked in self._parked.values():
            left += parked
        self._parked = {}
        for _ in range(takers):
            self._ready.put_nowait(None)
        return left
