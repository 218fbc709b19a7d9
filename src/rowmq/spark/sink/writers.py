"""What Spark calls: `write` in each task, `commit` or `abort` at the driver.

These are other processes, and a writer goes to them as a pickle. The commit of a stream is called
again if Spark was killed before it had noted that it was done: the ledger knows it then.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from rowmq.client import RowMQ
from rowmq.errors import ConfigurationError, RowMQError
from rowmq.spark.options import Given
from rowmq.spark.sink.loading import LOCK_SECONDS, clear, load, sweep
from rowmq.spark.sink.options import SinkOptions, sink_options
from rowmq.spark.sink.rows import Rows
from rowmq.spark.sink.shape import Shape, shape_of
from rowmq.store.staging import Stage, Version
from rowmq.store.statement import Operation

__all__ = ["BatchWriter", "StreamWriter", "Written", "batch_writer", "stream_writer"]

log = logging.getLogger("rowmq")

QUERY_ID = "sql.streaming.queryId"
"""The property by which Spark tells tasks of their stream's id: it stays the same when the stream
is started again from its checkpoint.
"""


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What a task has staged, and for which stream."""

    stages: tuple[Stage, ...]
    query_id: str | None


def batch_writer(given: Given, schema: StructType, *, overwrite: bool = False) -> "BatchWriter":
    """The writer of a batch."""
    options = sink_options(given, stream=False, overwrite=overwrite)
    return BatchWriter(options, shape_of(options, schema))


def stream_writer(given: Given, schema: StructType, *, overwrite: bool = False) -> "StreamWriter":
    """The writer of a stream's batches."""
    options = sink_options(given, stream=True, overwrite=overwrite)
    return StreamWriter(options, shape_of(options, schema))


class BatchWriter(DataSourceArrowWriter):
    """Publishes the rows of a DataFrame."""

    def __init__(self, options: SinkOptions, shape: Shape) -> None:
        self.options = options
        self.shape = shape

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return stage(self.options, self.shape, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        publish(self.options, told(messages), self.options.version)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        discard(self.options, told(messages))


class StreamWriter(DataSourceStreamArrowWriter):
    """Publishes the rows of a stream, batch by batch."""

    def __init__(self, options: SinkOptions, shape: Shape) -> None:
        self.options = options
        self.shape = shape

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return stage(self.options, self.shape, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's
        written = told(messages)
        publish(self.options, written, version_of(written, batchId))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803, ARG002 - Spark's
        discard(self.options, told(messages))


def told(messages: Sequence[WriterCommitMessage | None]) -> list[Written]:
    """What tasks have told of, in the order of Spark's partitions."""
    return [message for message in messages if isinstance(message, Written)]


def version_of(written: Sequence[Written], batch: int) -> Version:
    """A stream's batch. Its target is not part of it: it is published once, wherever to."""
    (query_id,) = {message.query_id for message in written} or {None}
    if query_id is None and any(message.stages for message in written):
        raise ConfigurationError(
            f"Spark did not tell its tasks the stream's id (the property {QUERY_ID}), without "
            f"which a batch cannot be known again"
        )
    return Version(f"query:{query_id}", "", batch)


def stage(options: SinkOptions, shape: Shape, batches: Iterator[pa.RecordBatch]) -> Written:
    """Write the rows of a task, where nobody sees them yet."""
    task = TaskContext.get()
    partition = 0 if task is None else task.partitionId()
    query_id = None if task is None else task.getLocalProperty(QUERY_ID)
    stages = load(options.place, Rows(shape, batches, partition))
    return Written(tuple(stages), query_id)


def publish(options: SinkOptions, written: Sequence[Written], version: Version | None) -> None:
    """Publish what tasks have written, all of it, unless that was done before."""
    stages = [stage for message in written for stage in message.stages]
    if not stages:
        return
    with options.place.connect(lock_timeout=LOCK_SECONDS) as mq:
        if not mq._run(operation(options, mq, stages, version)):  # noqa: SLF001 - our own client
            log.info("%s was published before, and so is left out", version)
        tidy(mq, stages)


def operation(
    options: SinkOptions, mq: RowMQ, stages: Sequence[Stage], version: Version | None
) -> Callable[[], Operation[bool]]:
    """What publishes stages."""
    store, notify = mq._store, mq._engine.notify  # noqa: SLF001 - a client of our own
    if options.queue is None:
        return partial(store.staging.publish, stages, version, notify=notify)
    return partial(
        store.staged_jobs.put,
        options.queue,
        stages,
        version,
        conflict=options.conflict,
        notify=notify,
    )


def discard(options: SinkOptions, written: Sequence[Written]) -> None:
    """Take away what tasks have written for nothing."""
    stages = [stage for message in written for stage in message.stages]
    if stages:
        with options.place.connect() as mq:
            tidy(mq, stages)


def tidy(mq: RowMQ, stages: Sequence[Stage]) -> None:
    """Clear stages away, and what others have left. It is no harm if that fails: it is then done by
    a later write.
    """
    try:
        for done in stages:
            clear(mq, done)
        sweep(mq)
    except RowMQError as error:
        log.warning("staged rows could not be cleared away: %s", error)
