"""How the rows of a task get into the database: by COPY on PostgreSQL, by INSERT on the others.

Nothing of it is to be seen before it is published. What a task has begun and cannot end it takes
away again, if it still can; what is left then is swept when it is old.
"""

import contextlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from rowmq.client import RowMQ
from rowmq.errors import DatabaseError, RowMQError
from rowmq.message import new_id
from rowmq.spark.place import Place
from rowmq.spark.sink.rows import Rows
from rowmq.store.keys import SHARD_KEYS, id_within
from rowmq.store.staging import IS_OPEN, PART, Part, Stage, StagedRow, lost

__all__ = ["LOCK_SECONDS", "clear", "load", "sweep"]

log = logging.getLogger("rowmq")

LOCK_SECONDS = 300.0
"""How long to wait for a lock: another write of Spark's may have it, and be a large one."""

FILL_ROWS = 5_000
FILL_BYTES = 8 * 1024 * 1024
"""How many rows one transaction stages, and about how large they are together: on SQLite, others
wait for it.
"""

CLEAR_ROWS = 50_000
"""How many rows one transaction clears away."""

SWEEP_US = 24 * 3600 * 1_000_000
"""How old a stage is when nobody will publish it any more."""


def load(place: Place, rows: Rows) -> list[Stage]:
    """Write the rows of a task into stages."""
    stages: list[Stage] = []
    if not rows.more:
        return stages
    with place.connect(lock_timeout=LOCK_SECONDS) as mq:
        loader = LOADERS.get(place.database, ByInsert)(place, mq)
        try:
            while rows.more:
                # Of its name ids are made: those of messages without a key are in this shard.
                name = id_within(SHARD_KEYS[0], new_id())
                id = mq._run(partial(loader.staging.open, name))  # noqa: SLF001 - our own
                stages.append(Stage(id, 0))
                loader.load(id, rows)
                stages[-1] = Stage(id, rows.count, rows.plain)
        except BaseException:
            with contextlib.suppress(RowMQError):
                for stage in stages:
                    clear(
                        mq, stage._replace(rows=rows.count if stage is stages[-1] else stage.rows)
                    )
            raise
    return stages


class Loader(ABC):
    """Writes stages into one kind of database."""

    def __init__(self, place: Place, mq: RowMQ) -> None:
        self.place = place
        self.mq = mq
        self.staging = mq._store.staging  # noqa: SLF001 - a client of our own

    @abstractmethod
    def load(self, stage_id: int, rows: Rows) -> None:
        """Write a whole stage."""


class ByInsert(Loader):
    """In short transactions, so that tasks take turns on SQLite."""

    def load(self, stage_id: int, rows: Rows) -> None:
        for batch in rows.stage(stage_id):
            for run in runs(batch):
                self._run(partial(self.staging.fill, stage_id, run))
        parts = rows.parts
        for start in range(0, len(parts), FILL_ROWS):
            part = parts[start : start + FILL_ROWS]
            self._run(partial(self.staging.complete, stage_id, part))

    def _run(self, make: Any) -> None:
        self.mq._run(make)  # noqa: SLF001 - a client of our own


def runs(batch: pa.RecordBatch) -> Iterator[list[StagedRow]]:
    """The rows of a batch, in runs of one transaction each."""
    size = max(1, batch.nbytes // batch.num_rows)
    step = max(1, min(FILL_ROWS, FILL_BYTES // size))
    names = [name for name in batch.schema.names if name != "stage_id"]
    for start in range(0, batch.num_rows, step):
        part = batch.slice(start, step)
        columns = {name: part.column(name).to_pylist() for name in names}
        none = [None] * part.num_rows
        given = [columns.get(name, none) for name in StagedRow._fields]
        yield [StagedRow(*values) for values in zip(*given, strict=True)]


class ByCopy(Loader):
    """Through ADBC, a stage in one transaction."""

    def load(self, stage_id: int, rows: Rows) -> None:
        from adbc_driver_postgresql import dbapi  # noqa: PLC0415 - by the databases that are used

        failures: list[BaseException] = []
        batches = kept(rows.stage(stage_id), failures)
        try:
            with dbapi.connect(str(self.place.target)) as connection, connection.cursor() as cursor:
                reader = pa.RecordBatchReader.from_batches(rows.schema, batches)
                self._ingest(cursor, "staged", reader)
                self._ingest(cursor, "stage_parts", parts_table(stage_id, rows.parts))
                cursor.execute(self.staging.dialect.fill(IS_OPEN).replace("?", str(int(stage_id))))
                if not cursor.fetchall():
                    raise lost("a task took longer than that")
                connection.commit()
        except dbapi.Error as error:
            if failures:
                raise failures[0] from None
            first = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise DatabaseError(f"writing to the database failed: {first}") from None

    def _ingest(self, cursor: Any, table: str, rows: pa.RecordBatchReader | pa.Table) -> None:
        name = f"{self.place.prefix}{table}"
        cursor.adbc_ingest(name, rows, mode="append", db_schema_name=self.place.schema)


def kept(
    batches: Iterator[pa.RecordBatch], failures: list[BaseException]
) -> Iterator[pa.RecordBatch]:
    """Batches for a driver that tells of an error only as text: the error itself is kept."""
    try:
        yield from batches
    except BaseException as error:
        failures.append(error)
        raise


def parts_table(stage_id: int, parts: Sequence[Part]) -> pa.Table:
    """Parts as their table has them."""
    columns = zip(*((stage_id, *part) for part in parts), strict=True)
    types = {"bigint": pa.int64(), "integer": pa.int32(), "text": pa.string()}
    return pa.table(
        {
            name: pa.array(values, types[kind])
            for (name, kind), values in zip(PART.items(), columns, strict=True)
        }
    )


LOADERS: dict[str, type[Loader]] = {"postgres": ByCopy}


def clear(mq: RowMQ, stage: Stage) -> None:
    """Take a stage away that is published, or that nobody will publish."""
    staging = mq._store.staging  # noqa: SLF001 - a client of our own
    for first in range(0, stage.rows, CLEAR_ROWS):
        mq._run(partial(staging.clear, stage.id, first, first + CLEAR_ROWS - 1))  # noqa: SLF001
    mq._run(partial(staging.forget, stage.id))  # noqa: SLF001


def sweep(mq: RowMQ) -> None:
    """Take stages away that were left by tasks and drivers that died."""
    condemn = partial(mq._store.staging.condemn, SWEEP_US)  # noqa: SLF001 - a client of our own
    while old := mq._run(condemn):  # noqa: SLF001
        for id, last in old:
            clear(mq, Stage(id, last + 1))
        log.info("%d stages of writes that were never finished are swept", len(old))
