"""What keeps a lake in shape: small files become large ones, old ones go, and lag is sampled."""

import contextlib
import math
from collections.abc import Iterator, Sequence
from datetime import timedelta
from functools import partial

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

from rowmq.client import RowMQ
from rowmq.doctor.checks import EXAMINATIONS
from rowmq.errors import LakeConflict
from rowmq.spark.pipelines.archiving.desk import Desk, Part
from rowmq.spark.pipelines.lake import StoredFile, unusable
from rowmq.spark.pipelines.layout import LAG, LAYOUTS, Layout
from rowmq.spark.pipelines.storage import Root
from rowmq.spark.pipelines.tasks import run_tasks
from rowmq.spark.pipelines.writing import FILE_BYTES, Added, write_files
from rowmq.times import from_micros

__all__ = ["compact", "sample_lag", "vacuum"]

SMALL_BYTES = FILE_BYTES // 4
FILES_MIN = 4
"""How many small files of a partition are worth a larger one."""

SAMPLES_PER_FILE = 100
"""How many samples of lag, each a file, become one."""

READ_ROWS = 10_000
READ_BYTES = 16 * 1024 * 1024


class Piece(msgspec.Struct, frozen=True):
    """The files that one task makes one of."""

    root: Root
    table: str
    values: tuple[tuple[str, str], ...]
    files: tuple[StoredFile, ...]


def compact(part: Part) -> int:
    """Make large files of the small ones of a table; how many those were.

    Nothing is changed if somebody else commits meanwhile: it is only tidying up.
    """
    snapshot, books = part.open()
    pieces = [
        Piece(snapshot.root, part.layout.table, tuple(files[0].values.items()), tuple(files))
        for files in small_files(snapshot.files())
    ]
    if not pieces:
        return 0
    added = run_tasks(part.desk.spark, rewrite, pieces, Added)
    removed = [file for piece in pieces for file in piece.files]
    rows = sum(file.rows for file in removed)
    if sum(file.rows for file in added) != rows:
        return 0  # pragma: no cover - a file that says of itself what is not so
    with contextlib.suppress(LakeConflict):
        part.commit(snapshot, books, added, {}, removed)
        return len(removed)
    return 0


def small_files(files: Sequence[StoredFile]) -> Iterator[list[StoredFile]]:
    """Small files of the same partition, as many as fit into a large one."""
    partitions: dict[tuple[str, ...], list[StoredFile]] = {}
    for file in files:
        if file.size < SMALL_BYTES:
            partitions.setdefault(tuple(file.values.values()), []).append(file)
    for found in partitions.values():
        if len(found) < FILES_MIN:
            continue
        run: list[StoredFile] = []
        for file in found:
            if run and sum(one.size for one in run) + file.size > FILE_BYTES:
                yield run
                run = []
            run.append(file)
        if len(run) > 1:
            yield run


def rewrite(piece: Piece) -> Iterator[Added]:
    """Write the rows of files to one: what a task does."""
    layout = LAYOUTS[piece.table]
    return write_files(piece.root, layout, rows_of(layout, piece))


def rows_of(layout: Layout, piece: Piece) -> Iterator[pa.RecordBatch]:
    """The rows of files, with the values of their partition."""
    for file in piece.files:
        parquet = pq.ParquetFile(piece.root.opened(file.path))
        row_bytes = max(1, sum_bytes(parquet) // max(1, parquet.metadata.num_rows))
        size = max(1, min(READ_ROWS, READ_BYTES // row_bytes))
        for batch in parquet.iter_batches(batch_size=size):
            columns = {name: batch.column(name) for name in layout.stored.names}
            for name, value in piece.values:
                if name in layout.columns:
                    columns[name] = pa.array([value] * batch.num_rows, pa.string())
            yield pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def sum_bytes(parquet: pq.ParquetFile) -> int:
    meta = parquet.metadata
    return sum(meta.row_group(number).total_byte_size for number in range(meta.num_row_groups))


def vacuum(part: Part, older_than: timedelta) -> int:
    """Delete files that no version since a time has, and those that no commit ever had."""
    snapshot, _ = part.open()
    hours = math.ceil(older_than.total_seconds() / 3600)
    try:
        gone = snapshot.table.vacuum(
            retention_hours=hours, dry_run=False, enforce_retention_duration=False, full=True
        )
    except (DeltaError, OSError) as error:
        raise unusable(snapshot.root, error) from error
    return len(gone)


# --- lag ----------------------------------------------------------------------------------------


def sample_lag(desk: Desk) -> int:
    """Write down how far every group is behind now; how many groups there are."""
    rows = lag_of(desk.mq)
    if not rows:
        return 0
    table = pa.Table.from_pylist(rows, schema=pa.schema(list(LAG.columns.items())))
    day = table.column("sampled_at").cast(pa.date32())
    root = desk.lake.root(LAG.table)
    options = root.options or None
    try:
        write_deltalake(
            root.uri,
            table.append_column("date", day).select(LAG.schema.names),
            mode="append",
            partition_by=list(LAG.partitioned_by),
            storage_options=options,
        )
        written = DeltaTable(root.uri, storage_options=options)
        if written.version() % SAMPLES_PER_FILE == SAMPLES_PER_FILE - 1:
            written.optimize.compact()
    except CommitFailedError:  # somebody else's sample does as well
        return 0
    except (DeltaError, OSError) as error:
        raise unusable(root, error) from error
    return len(rows)


def lag_of(mq: RowMQ) -> list[dict[str, object]]:
    """The lag of every group, by the database's clock."""
    engine = mq._engine  # noqa: SLF001 - a part of rowmq that looks at its own tables
    examination = EXAMINATIONS[engine.database](engine.store.dialect, engine.store.schema)
    run = partial(engine.driver.run, retry_for=None)
    now = from_micros(run(examination.clock))
    rows = []
    for state in run(examination.groups):
        partitions = mq.lag(state.topic, state.group)
        rows.append(
            {
                "sampled_at": now,
                "topic": state.topic,
                "group": state.group,
                "lag": sum(one.lag for one in partitions),
                "in_flight": sum(one.in_flight for one in partitions),
                "oldest_seconds": state.oldest_seconds,
                "partitions": len(partitions),
            }
        )
    return rows
