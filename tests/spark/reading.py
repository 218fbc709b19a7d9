"""Reading through Spark, and publishing what is read: for the tests of the source."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import rowmq
from rowmq import Message


def publish(mq: rowmq.RowMQ, topic: str, count: int, *, keys: int = 1, start: int = 0) -> None:
    """Publish numbers over keys, a batch."""
    mq.publish_many(
        topic,
        [
            Message(payload={"n": number}, key=f"k{number % keys}")
            for number in range(start, start + count)
        ],
    )


def load(spark: SparkSession, url: str, schema: str | None = None, **options: Any) -> DataFrame:
    """A batch of the source."""
    reader = spark.read.format("rowmq").option("url", url).options(**options)
    return (reader if schema is None else reader.schema(schema)).load()


class Stream:
    """A stream of the source that keeps what it read: one (batch, key, offset) for each message."""

    def __init__(self, spark: SparkSession, url: str, folder: Path) -> None:
        self.spark = spark
        self.url = url
        self.checkpoint = folder / "checkpoint"
        self.batches: dict[int, list[tuple[str | None, int]]] = {}

    def keep(self, rows: DataFrame, number: int) -> None:
        self.batches[number] = [(row.key, row.offset) for row in rows.collect()]

    def start(self, *, once: bool = True, **options: Any) -> StreamingQuery:
        reader = self.spark.readStream.format("rowmq").option("url", self.url).options(**options)
        writer = reader.load().writeStream.option("checkpointLocation", str(self.checkpoint))
        timed = {"availableNow": True} if once else {"processingTime": "100 milliseconds"}
        return writer.foreachBatch(self.keep).trigger(**timed).start()

    def run(self, **options: Any) -> list[int]:
        """Read until there is no more; how many messages each new batch had."""
        before = set(self.batches)
        self.start(**options).awaitTermination()
        return [len(rows) for number, rows in self.batches.items() if number not in before]

    @property
    def read(self) -> list[tuple[str | None, int]]:
        return sorted((row for rows in self.batches.values() for row in rows), key=str)


@contextmanager
def refused(*parts: str) -> Iterator[None]:
    """Something that Spark is asked for is refused, with a message that has these parts."""
    with pytest.raises(PySparkException) as caught:
        yield
    for part in parts:
        assert part in str(caught.value)
