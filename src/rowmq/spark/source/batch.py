"""The source as a batch: the log between two bounds, as it is when the read is planned."""

import os
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from rowmq.spark.options import TopicsOptions
from rowmq.spark.source.offsets import batch_ranges
from rowmq.spark.source.planning import Range, share_out
from rowmq.spark.source.reading import read_ranges

__all__ = ["Task", "TopicsReader", "read_task", "tasks_of"]


class Task(InputPartition):
    """What one task reads."""

    def __init__(self, ranges: Sequence[Range]) -> None:
        self.ranges = tuple(ranges)


def tasks_of(ranges: Sequence[Range], options: TopicsOptions) -> list[InputPartition]:
    """The tasks that read ranges."""
    shared = share_out(
        ranges,
        partitions_min=options.partitions_min,
        cores=os.cpu_count() or 1,
        records_max=options.records_max,
    )
    return [Task(part) for part in shared]


def read_task(
    options: TopicsOptions, columns: Sequence[str], task: InputPartition
) -> Iterator[pa.RecordBatch]:
    """The messages of a task. Spark makes a task of its own where there is nothing to read."""
    if not isinstance(task, Task):
        return
    for whole in (True, False):
        ranges = [one for one in task.ranges if one.whole is whole]
        yield from read_ranges(options.place, columns, ranges, checked=whole)


class TopicsReader(DataSourceReader):
    """Reads topics once."""

    def __init__(self, options: TopicsOptions, columns: tuple[str, ...]) -> None:
        self.options = options
        self.columns = columns

    def partitions(self) -> Sequence[InputPartition]:
        with self.options.place.connect() as mq:
            return tasks_of(batch_ranges(mq, self.options), self.options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_task(self.options, self.columns, partition)
