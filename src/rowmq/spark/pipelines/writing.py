"""Parquet files, written by tasks: rows go to the file of their partition, and what the log is to
say of each file is told when it is done.

How much is held in memory is bounded, whatever the rows are like and however many partitions they
are for: what is not written yet is counted, and few files are open at a time.
"""

import contextlib
import uuid
from collections.abc import Iterable, Iterator
from datetime import date
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rowmq.spark.pipelines.layout import DATE, Layout, folder_of
from rowmq.spark.pipelines.storage import Root
from rowmq.times import from_micros

__all__ = ["Added", "write_files"]

FILE_BYTES = 256 * 1024 * 1024
"""How large a file gets, about."""

ROW_GROUP_BYTES = 16 * 1024 * 1024
PENDING_BYTES_MAX = 64 * 1024 * 1024
"""How much is kept for larger row groups, of one file and of all."""

FILES_OPEN_MAX = 32


class Added(msgspec.Struct, frozen=True):
    """A file that was written, for the log."""

    path: str
    size: int
    rows: int
    values: dict[str, str]
    stats: str


class Measure:
    """The smallest and the largest value of a column, and how many there are none of."""

    def __init__(self) -> None:
        self.low: Any = None
        self.high: Any = None
        self.missing = 0

    def add(self, column: pa.ChunkedArray) -> None:
        self.missing += column.null_count
        found = pc.min_max(column if not is_time(column.type) else column.cast(pa.int64()))
        low, high = found["min"].as_py(), found["max"].as_py()
        if low is not None:
            self.low = low if self.low is None else min(self.low, low)
            self.high = high if self.high is None else max(self.high, high)


def is_time(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind))


class PartFile:
    """One file of a partition, being written."""

    def __init__(self, root: Root, layout: Layout, values: dict[str, str]) -> None:
        self.layout = layout
        self.values = values
        self.path = f"{folder_of(values)}/part-{uuid.uuid4()}.zstd.parquet"
        self.rows = 0
        self.pending: list[pa.RecordBatch] = []
        self.pending_bytes = 0
        self.measures = {name: Measure() for name in layout.measured}
        self.stack = contextlib.ExitStack()
        self.sink = self.stack.enter_context(root.writing(self.path))
        self.writer = pq.ParquetWriter(self.sink, layout.stored, compression="zstd")

    def add(self, batch: pa.RecordBatch) -> None:
        self.pending.append(batch)
        self.pending_bytes += batch.nbytes

    def flush(self) -> None:
        """Write a row group."""
        if not self.pending:
            return
        table = pa.Table.from_batches(self.pending)
        for name, measure in self.measures.items():
            measure.add(table.column(name))
        self.writer.write_table(table, row_group_size=table.num_rows)
        self.rows += table.num_rows
        self.pending, self.pending_bytes = [], 0

    def finish(self) -> Added:
        """Write the rest; then the file is there for good."""
        self.flush()
        self.writer.close()
        size = self.sink.tell()
        self.stack.close()
        return Added(self.path, size, self.rows, self.values, self.stats())

    def give_up(self, error: BaseException) -> None:
        """Close the file: it is not to be."""
        with contextlib.suppress(Exception):
            self.stack.__exit__(type(error), error, None)

    def stats(self) -> str:
        """What Delta's log says of a file's columns. Times have milliseconds there."""
        kinds = {name: self.layout.columns[name] for name in self.measures}
        bounds = {name: found for name, found in self.measures.items() if found.low is not None}
        return msgspec.json.encode(
            {
                "numRecords": self.rows,
                "minValues": {n: shown(kinds[n], m.low, up=False) for n, m in bounds.items()},
                "maxValues": {n: shown(kinds[n], m.high, up=True) for n, m in bounds.items()},
                "nullCount": {name: found.missing for name, found in self.measures.items()},
            }
        ).decode()


def shown(kind: pa.DataType, value: int, *, up: bool) -> Any:
    """A value as the log has it; rounded outwards, so that nobody leaves out a file wrongly."""
    if not is_time(kind):
        return value
    millis = -(-value // 1000) if up else value // 1000
    return from_micros(millis * 1000).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def write_files(root: Root, layout: Layout, batches: Iterable[pa.RecordBatch]) -> Iterator[Added]:
    """Write rows, each to a file of its partition. If it fails, what was written is deleted."""
    files = OpenFiles(root, layout)
    try:
        for batch in batches:
            for values, part in parts_of(layout, batch):
                yield from files.add(values, part)
            files.relieve()
        yield from files.finish_all()
    except BaseException as error:
        files.give_up(error)
        raise


class OpenFiles:
    """The files that a task has open, by partition; those that waited longest come first."""

    def __init__(self, root: Root, layout: Layout) -> None:
        self.root = root
        self.layout = layout
        self.files: dict[tuple[str, ...], PartFile] = {}
        self.done: list[str] = []

    def add(self, values: dict[str, str], rows: pa.RecordBatch) -> Iterator[Added]:
        """Add rows of a partition; files that are full, or too many, are finished."""
        place = tuple(values.values())
        if place not in self.files and len(self.files) >= FILES_OPEN_MAX:
            yield self.finish(next(iter(self.files)))
        file = self.files.pop(place, None) or PartFile(self.root, self.layout, values)
        self.files[place] = file
        file.add(rows)
        if file.pending_bytes >= ROW_GROUP_BYTES:
            file.flush()
        if file.sink.tell() >= FILE_BYTES:
            yield self.finish(place)

    def relieve(self) -> None:
        """Write what waits for larger row groups, if that is too much."""
        if sum(file.pending_bytes for file in self.files.values()) > PENDING_BYTES_MAX:
            for file in self.files.values():
                file.flush()

    def finish(self, place: tuple[str, ...]) -> Added:
        added = self.files[place].finish()
        self.done.append(added.path)
        del self.files[place]
        return added

    def finish_all(self) -> Iterator[Added]:
        for place in list(self.files):
            yield self.finish(place)

    def give_up(self, error: BaseException) -> None:
        """Delete what was written: nobody will know of it."""
        for file in self.files.values():
            file.give_up(error)
        for path in [*self.done, *(file.path for file in self.files.values())]:
            self.root.delete(path)


def parts_of(
    layout: Layout, batch: pa.RecordBatch
) -> Iterator[tuple[dict[str, str], pa.RecordBatch]]:
    """The rows of each partition, with the partition's values."""
    if not batch.num_rows:
        return
    days = batch.column(layout.time).cast(pa.date32())
    names = batch.column(layout.name) if layout.name else None
    stored = batch.select(layout.stored.names).cast(layout.stored)
    groups = pa.table([days] if names is None else [names, days], [*layout.partitioned_by])
    for group in groups.group_by(list(layout.partitioned_by)).aggregate([]).to_pylist():
        mask = pc.equal(days, pa.scalar(group[DATE], pa.date32()))
        if layout.name is not None and names is not None:
            mask = pc.and_(mask, pc.equal(names, group[layout.name]))
        yield {name: text_of(group[name]) for name in layout.partitioned_by}, stored.filter(mask)


def text_of(value: str | date) -> str:
    return value if isinstance(value, str) else value.isoformat()
