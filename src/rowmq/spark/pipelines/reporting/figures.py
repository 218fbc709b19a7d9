"""Figures: rows in long form, each of which says what was measured, of what, when, and its unit.

They are what the page is made from, and they are written beside it for those who want to go on from
there.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Any, NamedTuple

import pyarrow as pa

__all__ = [
    "DIMENSIONS",
    "KEYS_MAX",
    "QUANTILES",
    "STATISTICS",
    "Failure",
    "Figure",
    "figures_table",
]

QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
STATISTICS = (*QUANTILES, "max")

KEYS_MAX = 20
"""Of how many keys of a topic there are figures: the hottest ones."""

DIMENSIONS = ("topic", "group", "queue", "kind", "key", "state", "attempts", "error", "bucket")


class Figure(NamedTuple):
    """What was measured: `statistic` of `metric`, in `unit`. What does not apply is None."""

    metric: str
    statistic: str
    value: float
    unit: str
    topic: str | None = None
    group: str | None = None
    queue: str | None = None
    kind: str | None = None
    key: str | None = None
    state: str | None = None
    attempts: int | None = None
    error: str | None = None
    bucket: datetime | None = None


class Failure(NamedTuple):
    """Failures of one group of a topic, or of one queue, that are alike."""

    reason: str
    topic: str | None
    group: str | None
    queue: str | None
    times: int
    first: datetime
    last: datetime
    example: str | None


def figures_table(figures: Iterable[Figure]) -> pa.Table:
    """Figures as a table to write, in an order that does not change."""
    rows: list[dict[str, Any]] = [figure._asdict() for figure in figures]
    rows.sort(
        key=lambda row: [str(row[name] or "") for name in ("metric", *DIMENSIONS, "statistic")]
    )
    return pa.Table.from_pylist(rows, schema=FIGURES)


FIGURES = pa.schema(
    [
        ("metric", pa.string()),
        ("statistic", pa.string()),
        ("topic", pa.string()),
        ("group", pa.string()),
        ("queue", pa.string()),
        ("kind", pa.string()),
        ("key", pa.string()),
        ("state", pa.string()),
        ("attempts", pa.int32()),
        ("error", pa.string()),
        ("bucket", pa.timestamp("us", tz="UTC")),
        ("value", pa.float64()),
        ("unit", pa.string()),
    ]
)
