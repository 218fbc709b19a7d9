"""Figures, to be looked up by what they measure and of what."""

from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime

from rowmq.spark.pipelines.reporting.figures import DIMENSIONS, Figure

__all__ = ["Book", "Name", "Points"]

Name = tuple[str | int | None, ...]
"""The values of some dimensions."""

Points = dict[datetime, float]
"""Values over time, by the beginning of their bucket."""

OPTIONAL = frozenset({"key"})
"""Dimensions in which None is a value: there are messages without a key."""


class Book:
    """The figures of a report."""

    def __init__(self, figures: Iterable[Figure]) -> None:
        self._totals: dict[tuple[str, str], list[Figure]] = defaultdict(list)
        self._series: dict[tuple[str, str], list[Figure]] = defaultdict(list)
        for figure in figures:
            kept = self._totals if figure.bucket is None else self._series
            kept[figure.metric, figure.statistic].append(figure)

    def total(self, metric: str, statistic: str = "count") -> float:
        """The figure of everything together; 0 if there is none."""
        for figure in self._totals[metric, statistic]:
            if all(getattr(figure, name) is None for name in DIMENSIONS):
                return figure.value
        return 0.0

    def by(self, metric: str, statistic: str, *names: str) -> dict[Name, float]:
        """The figures of these dimensions and no others, the largest first."""
        found = {
            tuple(getattr(figure, name) for name in names): figure.value
            for figure in self._totals[metric, statistic]
            if is_of(figure, names)
        }
        return dict(sorted(found.items(), key=lambda item: (-item[1], str(item[0]))))

    def series(self, metric: str, statistic: str, *names: str) -> dict[Name, Points]:
        """The figures over time."""
        found: dict[Name, Points] = defaultdict(dict)
        for figure in self._series[metric, statistic]:
            if figure.bucket is not None and is_of(figure, names):
                name = tuple(getattr(figure, name) for name in names)
                found[name][figure.bucket] = figure.value
        return dict(found)


def is_of(figure: Figure, names: tuple[str, ...]) -> bool:
    """Whether a figure has these dimensions, beside its time, and no others."""
    return all(
        (getattr(figure, name) is not None or name in OPTIONAL)
        if name in names
        else getattr(figure, name) is None
        for name in DIMENSIONS
        if name != "bucket"
    )
