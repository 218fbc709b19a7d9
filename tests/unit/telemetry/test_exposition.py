"""Metrics, as Prometheus reads them."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from rowmq.telemetry import Metrics, catalogue
from rowmq.telemetry.families import Distribution, Gathering


def samples_of(text: bytes) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            labels = tuple(sorted(sample.labels.items()))
            found.setdefault(sample.name, {})[labels] = sample.value
    return found


def test_a_histogram_is_cumulative() -> None:
    values = Distribution(catalogue.STATEMENT_BOUNDS)
    for seconds in (0.0001, 0.004, 0.004, 60):
        values.note(seconds)
    metrics = Metrics()

    def gauge(gathering: Gathering) -> None:
        gathering.spread(catalogue.STATEMENT_SECONDS, ("topics.read",), values)

    metrics.add(gauge)
    told = samples_of(metrics.text())
    buckets = {
        dict(labels)["le"]: value
        for labels, value in told["rowmq_statement_seconds_bucket"].items()
    }
    assert buckets["0.0005"] == 1
    assert buckets["0.0025"] == 1
    assert buckets["0.005"] == buckets["5.0"] == 3
    assert buckets["+Inf"] == 4
    name = (("statement", "topics.read"),)
    assert told["rowmq_statement_seconds_count"][name] == 4
    assert told["rowmq_statement_seconds_sum"][name] == pytest.approx(60.0081)


def test_names_are_data() -> None:
    """Whatever a topic is called, it stays one value of one label."""
    name = 'a"b\\c\nrowmq_evil{} 1\n# 🐘'
    metrics = Metrics()
    metrics.add(lambda gathering: gathering.add(catalogue.PUBLISHED, (name,), 7))
    told = samples_of(metrics.text())
    assert told == {"rowmq_topic_published_total": {(("topic", name),): 7.0}}
    assert metrics.content_type.startswith("text/plain")


def test_each_metric_has_a_name_that_says_what_it_is() -> None:
    """As Prometheus' own conventions have it: counters end in _total, times are in seconds."""
    names = [metric.name for metric in catalogue.EVERYTHING]
    assert len(set(names)) == len(names) > 40
    for metric in catalogue.EVERYTHING:
        assert metric.name.startswith("rowmq_")
        assert metric.name.endswith("_total") == (metric.kind == catalogue.COUNTER)
        assert bool(metric.bounds) == (metric.kind == catalogue.HISTOGRAM)
        assert metric.help.endswith(".")
