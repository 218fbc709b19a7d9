"""What the page tells, section by section: plots, and under them the same in figures."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from rowmq.spark.pipelines.reporting.backlog import lag, standing
from rowmq.spark.pipelines.reporting.failing import failures, retries
from rowmq.spark.pipelines.reporting.findings import Story
from rowmq.spark.pipelines.reporting.html import Markup
from rowmq.spark.pipelines.reporting.keys import hot_keys
from rowmq.spark.pipelines.reporting.latency import latency
from rowmq.spark.pipelines.reporting.throughput import throughput

__all__ = ["Section", "sections_of"]

Tell = Callable[[Story], Iterator[Markup | None]]

SECTIONS: tuple[tuple[str, str, Tell], ...] = (
    ("throughput", "Throughput", throughput),
    ("latency", "Latency", latency),
    ("retries", "Retries", retries),
    ("failures", "Failures", failures),
    ("lag", "Lag", lag),
    ("keys", "Hot keys", hot_keys),
    ("now", "As it stands", standing),
)


class Section(NamedTuple):
    """A part of the page."""

    id: str
    title: str
    body: list[Markup]


def sections_of(story: Story) -> list[Section]:
    """The sections about which something is known."""
    told = [
        Section(id, title, [part for part in tell(story) if part is not None])
        for id, title, tell in SECTIONS
    ]
    return [section for section in told if section.body]
