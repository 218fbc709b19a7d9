"""RowMQ in Spark: a source, a sink and ready pipelines, through Spark's Python Data Source API.

Spark and what it needs are not part of RowMQ itself: they come with the extra `rowmq[spark]`. What
stands here is imported when it is first asked for, since executors need only parts of it.
"""

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

from rowmq.errors import MissingExtra

if TYPE_CHECKING:
    from rowmq.spark import pipelines
    from rowmq.spark.starting import register, session
    from rowmq.spark.typed import from_value, schema_of, split_bad

__all__ = [
    "from_value",
    "pipelines",
    "register",
    "schema_of",
    "session",
    "split_bad",
]

HOMES = {
    "from_value": "rowmq.spark.typed",
    "register": "rowmq.spark.starting",
    "schema_of": "rowmq.spark.typed",
    "session": "rowmq.spark.starting",
    "split_bad": "rowmq.spark.typed",
}

for module in ("pyspark", "pyarrow"):
    if importlib.util.find_spec(module) is None:
        raise MissingExtra(f"{module!r} is not installed; run: pip install 'rowmq[spark]'")


def __getattr__(name: str) -> Any:
    if name == "pipelines":
        return importlib.import_module("rowmq.spark.pipelines")
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
