"""Samples as lines of a chart: on a grid of equal steps, in which a time nobody looked is a gap.

Pure functions. What was counted since ever becomes how many a second: within a step all that was
counted by all the time there was, so that two looks in quick succession make no peak.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from itertools import pairwise

from rowmq.markup import Markup
from rowmq.web import charts
from rowmq.web.charts import Line
from rowmq.web.sampling import Sample
from rowmq.web.wording import duration, short

__all__ = ["Grid", "a_second", "chart"]

POINTS_MAX = 90
SPAN_SECONDS_MIN = 60.0
GAP_SECONDS = 20.0
"""After how long without a look there is a gap. A database that is busy is looked at less often."""

Pick = Callable[[Sample], float | None]


class Grid:
    """The steps of a chart, of which the last is the latest look."""

    def __init__(self, samples: Sequence[Sample], *, every: float, now: datetime) -> None:
        self.samples = samples
        self.gap_seconds = max(GAP_SECONDS, 3 * every)
        self.end = samples[-1].at if samples else 0.0
        begin = samples[0].at if samples else 0.0
        length = max(self.end - begin, SPAN_SECONDS_MIN)
        self.step = max(length / POINTS_MAX, every * 1.25)
        self.count = math.ceil(length / self.step) + 1
        self.now = now

    @property
    def span(self) -> tuple[str, str]:
        """What stands below the chart, at its ends."""
        return f"{duration(round((self.count - 1) * self.step))} ago", "now"

    @property
    def moments(self) -> list[str]:
        """When each step was."""
        back = (self.count - 1 - at for at in range(self.count))
        return [f"{self.now - timedelta(seconds=steps * self.step):%H:%M:%S}" for steps in back]

    def place(self, at: float) -> int:
        """The step of a look."""
        return max(self.count - 1 - round((self.end - at) / self.step), 0)

    def levels(self, pick: Pick) -> list[float | None]:
        """What there was at each step, on average."""
        found = [(self.place(one.at), pick(one), 1.0) for one in self.samples]
        return self._averages(found)

    def rates(self, pick: Pick) -> list[float | None]:
        """How many a second came to what is counted; a count that fell began anew."""
        found: list[tuple[int, float | None, float]] = []
        for before, after in pairwise(self.samples):
            first, last, seconds = pick(before), pick(after), after.at - before.at
            if first is None or last is None or last < first or not 0 < seconds <= self.gap_seconds:
                continue
            found.append((self.place(after.at), last - first, seconds))
        return self._averages(found)

    def _averages(self, found: Iterable[tuple[int, float | None, float]]) -> list[float | None]:
        sums = [0.0] * self.count
        weights = [0.0] * self.count
        for place, value, weight in found:
            if value is not None:
                sums[place] += value
                weights[place] += weight
        values = [
            total / weight if weight else None for total, weight in zip(sums, weights, strict=True)
        ]
        return bridged(values, math.ceil(self.gap_seconds / self.step))


def bridged(values: list[float | None], most: int) -> list[float | None]:
    """Values with a straight line where a few steps between two others have no look in them."""
    filled = list(values)
    known = [at for at, value in enumerate(values) if value is not None]
    for before, after in pairwise(known):
        first, last = values[before] or 0.0, values[after] or 0.0
        if 1 < after - before <= most:
            for at in range(before + 1, after):
                part = (at - before) / (after - before)
                filled[at] = first + (last - first) * part
    return filled


def a_second(value: float) -> str:
    """A rate, in words."""
    return f"{short(value)}/s"


def chart(
    grid: Grid,
    *series: Line,
    say: Callable[[float], str] = short,
    whole: bool = False,
    times: bool = False,
) -> Markup:
    """Lines on a grid, as a drawing; `times` if they are of seconds."""
    return charts.lines(
        series, span=grid.span, say=say, moments=grid.moments, whole=whole, times=times
    )
