"""Long polling: a request that waits for something to come, in short waits.

Between two of them it is seen whether the client is still there and may still ask, and whether this
process is going down: so nothing is handed to nobody or to who was shut out meanwhile, and nobody
keeps a server from ending.
"""

import contextlib
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TypeVar

from rowmq.web.asking import Ask

__all__ = ["WAITS_MAX", "Waits", "wait_for"]

T = TypeVar("T")

SLICE_SECONDS = 1.0

WAITS_MAX = 500
"""How many requests may wait at a time; more are answered at once with what there is. There are
twice as many connections: those who do not wait find one.
"""


class Waits:
    """Who waits just now. One caller may have as many waits as are free: half of them alone, and
    less the more others wait; so there is always one for who has none.
    """

    def __init__(self, most: int = WAITS_MAX) -> None:
        self.most = most
        self._of: Counter[str] = Counter()

    def has_room(self, who: str) -> bool:
        """Whether somebody may wait."""
        return self._of[who] < self.most - self._of.total()

    @contextlib.contextmanager
    def counted(self, who: str) -> Iterator[None]:
        """Count somebody for as long as they wait."""
        self._of[who] += 1
        try:
            yield
        finally:
            self._of[who] -= 1
            if not self._of[who]:
                del self._of[who]


async def wait_for(
    ask: Ask,
    seconds: float,
    look: Callable[[float], Awaitable[Sequence[T]]],
    give_back: Callable[[Sequence[T]], Awaitable[None]],
    *,
    closing: Callable[[], bool],
) -> Sequence[T]:
    """What `look` finds, which may itself wait for as long as it is told. If the client has gone
    meanwhile, or may not ask any more, that is given back; then this raises what the gate does.
    """
    waits: Waits = ask.site.waits
    who = ask.caller.digest
    if seconds <= 0 or not waits.has_room(who):
        return await look(0.0)
    deadline = time.monotonic() + seconds
    with waits.counted(who):
        while True:
            left = max(0.0, deadline - time.monotonic())
            found = await look(min(left, SLICE_SECONDS))
            try:
                gone = await ask.request.is_disconnected()
                await ask.site.gate.admit_again(ask)
            except Exception:
                if found:
                    await give_back(found)
                raise
            if gone:
                if found:
                    await give_back(found)
                return ()
            if found or left <= SLICE_SECONDS or closing():
                return found
