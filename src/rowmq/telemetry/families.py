"""Metrics as plain values: what is counted, under which bounded labels, and how it is added up.

A process that has no prometheus-client can gather these and send them to its parent as JSON;
`exposition` makes Prometheus' own of them.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

__all__ = [
    "OTHER",
    "Distribution",
    "Family",
    "Gathering",
    "Labels",
    "Metric",
    "Sample",
    "of_processes",
]

OTHER = "other"
"""What stands for all values of a label beyond the first ones."""

COMBINED = 10


class Metric(NamedTuple):
    """What is measured: see `catalogue`."""

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str
    bounds: tuple[float, ...] = ()
    """Of a histogram: the upper bounds of its buckets, in seconds."""
    fixed: bool = False
    """Whether its labels have values of our own only, of which there are so many and no more."""


class Sample(msgspec.Struct, array_like=True):
    """A value under some labels. Of a histogram it is the sum, and the counts are of its buckets,
    the last one without a bound.
    """

    labels: tuple[str, ...]
    value: float
    counts: tuple[int, ...] = ()


class Family(msgspec.Struct):
    """All samples of one metric."""

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str
    bounds: tuple[float, ...]
    samples: list[Sample]


class Labels:
    """The values that labels may have: of each label the first ones that came, up to a limit. And
    of several labels together the first combinations, up to ten times as many.
    """

    def __init__(self, values_max: int) -> None:
        self._values_max = values_max
        self._known: dict[str, set[str]] = {}
        self._combined: dict[tuple[str, ...], set[tuple[str, ...]]] = {}

    def bounded(self, metric: Metric, values: Sequence[str]) -> tuple[str, ...]:
        """The values themselves, or what stands for all others."""
        pairs = zip(metric.labels, values, strict=True)
        if metric.fixed:
            return tuple(values)
        found = tuple(self._bounded(label, value) for label, value in pairs)
        known = self._combined.setdefault(metric.labels, set())
        if found in known:
            return found
        if len(known) >= COMBINED * self._values_max:
            return tuple(OTHER for _ in found)
        known.add(found)
        return found

    def _bounded(self, label: str, value: str) -> str:
        known = self._known.setdefault(label, set())
        if value in known:
            return value
        if len(known) >= self._values_max:
            return OTHER
        known.add(value)
        return value


class Distribution:
    """How many values fell into which bucket, and their sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def note(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class Gathering:
    """Samples on their way into families. Those whose labels are the same, once bounded, become
    one: they are added up or, by `most`, the highest of them stands for all.
    """

    def __init__(self, labels: Labels) -> None:
        self._labels = labels
        self._found: dict[str, tuple[Metric, dict[tuple[str, ...], Sample]]] = {}

    def add(self, metric: Metric, labels: Sequence[str], value: float) -> None:
        """Count a value in."""
        self._sample(metric, labels).value += value

    def most(self, metric: Metric, labels: Sequence[str], value: float) -> None:
        """Have the value be at least this."""
        sample = self._sample(metric, labels)
        sample.value = max(sample.value, value)

    def spread(self, metric: Metric, labels: Sequence[str], values: Distribution) -> None:
        """Count a distribution in."""
        sample = self._sample(metric, labels)
        before = sample.counts or (0,) * len(values.counts)
        sample.counts = tuple(a + b for a, b in zip(before, values.counts, strict=True))
        sample.value += values.total

    def _sample(self, metric: Metric, labels: Sequence[str]) -> Sample:
        bounded = self._labels.bounded(metric, labels)
        _, samples = self._found.setdefault(metric.name, (metric, {}))
        return samples.setdefault(bounded, Sample(bounded, 0.0))

    def families(self) -> list[Family]:
        """What was gathered."""
        return [
            Family(m.name, m.kind, m.labels, m.help, m.bounds, list(samples.values()))
            for m, samples in self._found.values()
        ]


def of_processes(told: Iterable[tuple[str, Sequence[Family]]]) -> list[Family]:
    """The families of several processes as one each, with a label that says which process."""
    whole: dict[str, Family] = {}
    for process, families in told:
        for family in families:
            one = whole.get(family.name)
            if one is None:
                labels = (*family.labels, "process")
                one = msgspec.structs.replace(family, labels=labels, samples=[])
                whole[family.name] = one
            one.samples += [
                Sample((*sample.labels, process), sample.value, sample.counts)
                for sample in family.samples
            ]
    return list(whole.values())
