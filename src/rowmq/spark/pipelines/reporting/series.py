"""Values over time, made ready to be drawn: rates, gaps, and what groups handled."""

from collections.abc import Iterable, Sequence
from statistics import median

from rowmq.spark.pipelines.reporting.book import Points
from rowmq.spark.pipelines.reporting.window import Window
from rowmq.spark.pipelines.reporting.wording import rate_unit

__all__ = ["Values", "common_rate", "drawn_rates", "drawn_values", "handled_points", "rates"]

WHOLE_PART = 0.25
"""How much of a bucket must be in the window for its rate to mean something."""

Values = list[float | None]


def rates(points: Points, window: Window, *, silence: float | None = 0.0) -> Values:
    """So many a second, for each bucket; `silence` stands where nothing was counted.

    The first and the last bucket may be cut by the window: they count for what is in it, and for
    nothing if that is little.
    """
    starts = window.starts
    whole = window.bucket.total_seconds()
    values: Values = []
    for start in starts:
        seconds = window.seconds_of(start)
        number = points.get(start, silence)
        cut = seconds < WHOLE_PART * whole and len(starts) > 1
        values.append(None if number is None or cut or not seconds else number / seconds)
    return values


def drawn_rates(
    points: Points, window: Window, seconds: float, *, silence: float | None = 0.0
) -> Values:
    """Rates in a unit of so many seconds."""
    found = rates(points, window, silence=silence)
    return [None if rate is None else rate * seconds for rate in found]


def drawn_values(points: Points, window: Window, unit: float = 1.0) -> Values:
    """Values as they are, in a unit; gaps where there are none."""
    found = [points.get(start) for start in window.starts]
    return [None if value is None else value / unit for value in found]


def common_rate(series: Iterable[Sequence[float | None]]) -> tuple[float, str]:
    """A unit of time for several plots: one that is right for most of their peaks."""
    peaks = [max((rate for rate in rates if rate is not None), default=0.0) for rates in series]
    return rate_unit(median(peaks) if peaks else 0.0)


def handled_points(published: Points, lag: Points, window: Window) -> Points:
    """What a group handled, from what was published and how its lag changed.

    `lag` is the last one known in each bucket. Where there is none in a bucket, or in the one
    before it, nothing can be said; a group that was moved back has handled nothing.
    """
    found = {}
    for before, start in zip(window.starts, window.starts[1:], strict=False):
        if before in lag and start in lag:
            found[start] = max(0.0, published.get(start, 0.0) - (lag[start] - lag[before]))
    return found
