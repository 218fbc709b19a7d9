"""What the errors of dead letters have in common, for all who look at them.

To find the kinds of ten thousand letters takes some of everybody's time, since this process answers
one thing after the other. Whoever opens a page sees its letters as they are now; the renewals of
all pages that are open, and programs that ask again and again, share what was found last.
"""

import asyncio
import math
import time
from collections.abc import Callable, Sequence

from rowmq.client import AsyncRowMQ
from rowmq.overview import LetterKind

__all__ = ["Kinds"]

KEPT_SECONDS = 10.0
"""How long renewals and programs are shown what was found."""

Place = tuple[str, str | None]
"""A topic, and a group of it or all."""


class Found:
    """The kinds of a place, and when they were found. Others of the same place wait for that."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.at = -math.inf
        self.kinds: Sequence[LetterKind] = ()


class Kinds:
    """Finds kinds of letters, and remembers them for a while."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._found: dict[Place, Found] = {}

    async def look(
        self, mq: AsyncRowMQ, topic: str, group: str | None, *, lately: bool
    ) -> Sequence[LetterKind]:
        """The kinds of a topic's letters: as they are, or as they were lately."""
        asked = self._clock()
        since = asked - KEPT_SECONDS if lately else asked
        found = self._found.setdefault((topic, group), Found())
        async with found.lock:
            if found.at < since:
                begun = self._clock()
                found.kinds = await mq.letter_kinds(topic, group=group)
                found.at = begun
                self._forget(begun - KEPT_SECONDS)
            return found.kinds

    def close(self) -> None:
        """Forget all of it. Who looks afterwards may be of another loop."""
        self._found.clear()

    def _forget(self, before: float) -> None:
        for place, found in list(self._found.items()):
            if found.at < before and not found.lock.locked():
                del self._found[place]
