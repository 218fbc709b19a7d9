"""Families, as prometheus-client has them. This is imported when somebody wants to read them."""

from collections.abc import Callable, Iterable
from itertools import accumulate

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from rowmq.telemetry.catalogue import COUNTER, HISTOGRAM
from rowmq.telemetry.families import Family

__all__ = ["CONTENT_TYPE", "registry_of", "text_of"]

CONTENT_TYPE = CONTENT_TYPE_LATEST


class Gathered(Collector):
    """Asks for the families whenever Prometheus does."""

    def __init__(self, families: Callable[[], list[Family]]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return [metric_of(family) for family in self._families()]


def registry_of(families: Callable[[], list[Family]]) -> CollectorRegistry:
    """A registry with nothing else in it."""
    registry = CollectorRegistry()
    registry.register(Gathered(families))
    return registry


def text_of(families: Callable[[], list[Family]]) -> bytes:
    """Families in the format that Prometheus reads."""
    return generate_latest(registry_of(families))


def metric_of(family: Family) -> Metric:
    """A family with its samples."""
    if family.kind == HISTOGRAM:
        return histogram_of(family)
    kind = CounterMetricFamily if family.kind == COUNTER else GaugeMetricFamily
    metric = kind(family.name.removesuffix("_total"), family.help, labels=family.labels)
    for sample in family.samples:
        metric.add_metric(sample.labels, sample.value)
    return metric


def histogram_of(family: Family) -> Metric:
    """Its buckets are cumulative, and the last one is without a bound."""
    metric = HistogramMetricFamily(family.name, family.help, labels=family.labels)
    bounds = [str(float(bound)) for bound in family.bounds] + ["+Inf"]
    for sample in family.samples:
        buckets = list(zip(bounds, accumulate(sample.counts), strict=True))
        metric.add_metric(sample.labels, buckets=buckets, sum_value=sample.value)
    return metric
