"""PromQL, as far as it can be told whether it asks for what there is."""

import re

from rowmq.telemetry import catalogue
from rowmq.telemetry.families import Metric

__all__ = ["EXPOSED", "NAME", "check"]

NAME = re.compile(r"\browmq_[a-z_]+")
SELECTED = re.compile(r"(rowmq_[a-z_]+)(?:\{([^}]*)\})?")
MATCHER = re.compile(r'([a-z_]+)\s*(?:=~|!~|!=|=)\s*"')
GROUPED = re.compile(r"\bby \(([^)]*)\)")
SHOWN = re.compile(r"\{\{(\w+)\}\}")

ADDED = {"instance", "job", "process"}
"""Prometheus has the first two, and a worker of several processes the last."""


def exposed() -> dict[str, Metric]:
    """Metrics by the names of their samples."""
    found: dict[str, Metric] = {}
    for metric in catalogue.EVERYTHING:
        suffixes = ("_bucket", "_sum", "_count") if metric.kind == catalogue.HISTOGRAM else ("",)
        found |= {metric.name + suffix: metric for suffix in suffixes}
    return found


EXPOSED = exposed()


def check(expression: str, legend: str = "") -> None:
    """An expression asks for metrics that there are, by labels that they have."""
    names = NAME.findall(expression)
    assert names
    assert set(names) <= set(EXPOSED)
    labels: set[str] = set()
    for name, matchers in SELECTED.findall(expression):
        own = set(EXPOSED[name].labels) | ({"le"} if name.endswith("_bucket") else set())
        assert set(MATCHER.findall(matchers)) <= own
        labels |= own
    for grouped in GROUPED.findall(expression):
        kept = {label.strip() for label in grouped.split(",")}
        assert kept <= labels | ADDED
        assert set(SHOWN.findall(legend)) <= kept
    for name in names:
        if EXPOSED[name].kind == catalogue.COUNTER:
            assert re.search(rf"(rate|increase)\({name}", expression), "of use as a rate only"
