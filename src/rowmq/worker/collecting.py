"""The garbage collector while a worker works: it is not to look, again and again, at what is no
garbage.

It looks each time some hundred objects more were made than were freed. A worker has thousands of
units in flight, of some objects each, which it frees by itself: so looking begins with that many
more. And what the process has loaded to do its work with is not looked at at all.

Until it looks, garbage keeps whatever it refers to. So the worker itself is to leave none, of what
fails either, and there is an end to how late looking may begin.
"""

import contextlib
import gc
from collections.abc import Iterable, Iterator

from rowmq.worker.handler import Handler

__all__ = ["collector_at_ease"]

OBJECTS_PER_UNIT = 7
"""How many objects that the collector counts are there for a unit: its message or job and what
tells of it, its handle, token, and verdict.
"""

BUFFERS = 2
"""About as many units wait to be settled as wait to be begun."""

OBJECTS_MAX = 100_000
"""However much is in flight: what handlers leave in cycles is not to pile up without end."""


@contextlib.contextmanager
def collector_at_ease(handlers: Iterable[Handler]) -> Iterator[None]:
    """Have the garbage collector look at what may be garbage, while these handlers work. If it was
    turned off, it stays off. There may be other workers in the process.
    """
    more = room_for(handlers)
    freezes = not gc.get_freeze_count()
    change_threshold(more)
    try:
        if freezes:  # otherwise somebody has seen to that
            gc.collect()
            gc.freeze()
        yield
    finally:
        change_threshold(-more)
        if freezes:
            gc.unfreeze()


def room_for(handlers: Iterable[Handler]) -> int:
    """With how many more objects looking is to begin."""
    first, *_ = gc.get_threshold()
    units = BUFFERS * sum(handler.pace.buffer for handler in handlers)
    return max(0, min(units * OBJECTS_PER_UNIT, OBJECTS_MAX - first)) if first else 0


def change_threshold(by: int) -> None:
    """Have looking begin with so many more objects; by this it is never turned on or off."""
    first, *others = gc.get_threshold()
    if first and first + by > 0:
        gc.set_threshold(first + by, *others)
