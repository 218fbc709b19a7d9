"""What tests see of a lake: its rows, by Spark and by deltalake."""

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from rowmq.spark.pipelines.lake import read_table

__all__ = ["files_of", "places", "rows_by_deltalake", "rows_by_spark"]


def rows_by_spark(spark: SparkSession, lake: Path, table: str) -> list[dict[str, Any]]:
    """The rows of a table as Spark reads them, bytes as bytes."""
    frame = read_table(spark, lake, table)
    if frame is None:
        return []
    rows = [row.asDict() for row in frame.collect()]
    return [
        {name: bytes(v) if isinstance(v, bytearray) else v for name, v in row.items()}
        for row in rows
    ]


def rows_by_deltalake(lake: Path, table: str) -> list[dict[str, Any]]:
    """The rows of a table as the package deltalake reads them."""
    if not DeltaTable.is_deltatable(str(lake / table)):
        return []
    found: pa.Table = DeltaTable(str(lake / table)).to_pyarrow_dataset().to_table()
    rows: list[dict[str, Any]] = found.to_pylist()
    for row in rows:
        if "headers" in row:
            row["headers"] = dict(row["headers"])
    return rows


def places(rows: list[dict[str, Any]]) -> Counter[tuple[Any, ...]]:
    """How often each message is there."""
    return Counter((row["topic"], row["key"], row["offset"]) for row in rows)


def files_of(lake: Path, table: str) -> list[str]:
    """The files that a table consists of."""
    return DeltaTable(str(lake / table)).file_uris()
