"""How long those wait who found nothing, where nothing may wake them."""

import random
import time

__all__ = ["Pace"]

FIRST_SECONDS = 0.005
GROWTH = 1.6
"""How long to wait after an empty look, and how that grows while there is nothing."""

EMPTY_MAX = 30
"""How many empty looks are counted: by then every pause is the longest."""

WATCHED_SECONDS_MAX = 1.0
"""The longest pause where something wakes us: only what cannot be told of is waited for."""

LOOK_SHARE = 0.1
SLOW_SECONDS_MAX = 1.0
"""What part of the time may go into looks that find nothing, and the longest pause for that: many
who have nothing to do are not to take the database from those who have.
"""


class Pace:
    """The looks of one who polls."""

    def __init__(self) -> None:
        self._empty = 0
        self._began = self._took = 0.0

    def begin(self) -> None:
        """A look begins."""
        self._began = time.monotonic()

    def found(self) -> None:
        """It found something."""
        self._empty, self._took = 0, 0.0

    def pause(self, longest: float, *, watched: bool) -> float:
        """It found nothing: how long to wait before the next one, if nothing wakes us."""
        before, self._took = self._took, time.monotonic() - self._began
        self._empty = min(self._empty + 1, EMPTY_MAX)
        if watched:
            longest = max(longest, WATCHED_SECONDS_MAX)
        pause = min(longest, FIRST_SECONDS * GROWTH**self._empty)
        slow = min(before, self._took)  # one that was slow alone says nothing
        pause = max(pause, min(slow / LOOK_SHARE, SLOW_SECONDS_MAX))
        return pause * random.uniform(0.75, 1.0)  # never in step with others
