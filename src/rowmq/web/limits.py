"""How often somebody may ask: buckets that fill with time, for as many callers as are remembered.

The clock is given, so that tests need not wait. A process counts for itself; whoever runs several
has as many times the limit.
"""

import time
from collections import OrderedDict
from collections.abc import Callable

__all__ = ["Limiter"]

CALLERS_MAX = 10_000


class Limiter:
    """Lets each caller through `burst` times at once, and `per_second` times in the long run."""

    def __init__(
        self, per_second: float, burst: float, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.per_second = per_second
        self.burst = burst
        self.clock = clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, caller: str) -> float:
        """Count one, if there is one left: 0, or how many seconds to wait instead."""
        left = self._now(caller)
        if left < 1:
            return (1 - left) / self.per_second
        self._left[caller] = (left - 1, self.clock())
        self._left.move_to_end(caller)
        # Who asked longest ago has a full bucket by now, or is one of very many: then all of them
        # begin anew, and the server's own limits are what is left.
        while len(self._left) > CALLERS_MAX:
            self._left.popitem(last=False)
        return 0.0

    def give_back(self, caller: str) -> None:
        """What was taken last was none that counts."""
        self._left[caller] = (min(self.burst, self._now(caller) + 1), self.clock())

    def _now(self, caller: str) -> float:
        left, at = self._left.get(caller, (self.burst, 0.0))
        return min(self.burst, left + (self.clock() - at) * self.per_second)
