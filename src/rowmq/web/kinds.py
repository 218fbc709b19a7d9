"""What the errors of dead letters have in common, for all who look at them.

To find the kinds of ten thousand letters takes some of everybody's time, since this process answers
one thing after the other. Whoever opens a page sees its letters as they are now; the renewals of
all pages that are open share what was found last.
"""

import asyncio
import math
import time
from collections.abc import Callable, Sequence

from rowmq.client import AsyncRowMQ
from rowmq.overview import LetterKind

__all__ = ["Kinds"]

KEPT_SECONDS = 10.0
"""How long renewals show what was found."""

Place = tuple[str, str | None]
"""A topic, and a group of it or all."""


class Kinds:
    """Finds kinds of letters, and remembers them for a while."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._found: dict[Place, tuple[float, Sequence[LetterKind]]] = {}
        self._lock = asyncio.Lock()

    async def look(
        self, mq: AsyncRowMQ, topic: str, group: str | None, *, renewal: bool
    ) -> Sequence[LetterKind]:
        """The kinds of a topic's letters: as they are, or for a renewal as they were lately."""
        asked, place = self._clock(), (topic, group)
        since = asked - KEPT_SECONDS if renewal else asked
        async with self._lock:
            at, found = self._found.get(place, (-math.inf, ()))
            if at < since:
                at, found = self._clock(), await mq.letter_kinds(topic, group=group)
                self._found[place] = (at, found)
                self._forget(at - KEPT_SECONDS)
            return found

    def _forget(self, before: float) -> None:
        for place in [place for place, (at, _) in self._found.items() if at < before]:
            del self._found[place]
