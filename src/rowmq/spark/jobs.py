"""Queues as data: live jobs, finished jobs and dead letters, as they are while they are read.

The driver looks at how much there is and cuts it into slices of time, one query each; the tasks run
those. Jobs move while they are looked at: one that is claimed, or finished, between two slices may
be seen in neither or both. What must be exact goes by the archive's times, or through a topic.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from rowmq.client import RowMQ
from rowmq.message import State
from rowmq.naming import SHARD_MARK
from rowmq.spark.arrow import Query, fetch
from rowmq.spark.columns import encodings_of, headers_of, named
from rowmq.spark.options import JobsOptions
from rowmq.spark.source.offsets import refuse_unknown
from rowmq.store.dialect import Dialect, as_text
from rowmq.store.listing import waiting_state
from rowmq.store.statement import Operation, Row, Statement

__all__ = ["JobsReader", "columns_of"]

TEXT, NUMBER, COUNT, TIME = StringType(), LongType(), IntegerType(), TimestampType()
HEADERS = MapType(StringType(), StringType())

TRAVELS = {TEXT: pa.string(), NUMBER: pa.int64(), COUNT: pa.int32(), HEADERS: pa.string()} | {
    TIME: pa.timestamp("us", "UTC"),
    BinaryType(): pa.binary(),
}
"""How a column comes from the database."""

NULLABLE = ("key", "ordering_key", "error")
"""Text that may be missing; where it is, the query gives an empty one."""

JOB: Mapping[str, tuple[DataType, str]] = {
    "id": (NUMBER, "j.id"),
    "queue": (TEXT, "<queue>"),
    "kind": (TEXT, "l.kind"),
    "key": (TEXT, "COALESCE(j.job_key, '')"),
    "ordering_key": (TEXT, "COALESCE(j.ordering_key, '')"),
    "priority": (COUNT, "-l.precedence"),
    "state": (TEXT, "<state>"),
    "value": (BinaryType(), "<payload>"),
    "encoding": (TEXT, "j.encoding"),
    "headers": (HEADERS, "COALESCE(j.headers, '')"),
    "attempts": (COUNT, "r.attempts"),
    "deliveries": (COUNT, "r.deliveries"),
    "created_at": (TIME, "j.created_at"),
    "due_at": (TIME, "r.due_at"),
}

FINISHED: Mapping[str, tuple[DataType, str]] = {
    **JOB,
    "due_at": (TIME, "j.due_at"),
    "started_at": (TIME, "r.started_at"),
    "finished_at": (TIME, "r.finished_at"),
    "error": (TEXT, "<error>"),
}

LETTER: Mapping[str, tuple[DataType, str]] = {
    "topic": (TEXT, "d.origin_topic"),
    "group": (TEXT, "d.consumer_group"),
    "key": (TEXT, "p.partition_key"),
    "partition": (NUMBER, "d.partition_id"),
    "offset": (NUMBER, "d.message_offset"),
    "id": (TEXT, "d.origin_id"),
    "origin_partition": (NUMBER, "d.origin_partition_id"),
    "origin_offset": (NUMBER, "d.origin_offset"),
    "value": (BinaryType(), "<payload>"),
    "encoding": (TEXT, "j.encoding"),
    "headers": (HEADERS, "COALESCE(j.headers, '')"),
    "attempts": (COUNT, "d.attempts"),
    "error": (TEXT, "COALESCE(d.error, '')"),
    "failed_at": (TIME, "d.failed_at"),
}

TABLES = {"queue": JOB, "archive": FINISHED, "deadLetters": LETTER}
CLAIMED_MAX = 1_000
"""How many jobs that are being processed one query looks up."""


def columns_of(what: str) -> StructType:
    """The columns of live jobs, finished jobs or dead letters."""
    return StructType([StructField(name, kind) for name, (kind, _) in TABLES[what].items()])


class Slice(InputPartition):
    """A query for one task."""

    def __init__(self, sql: str) -> None:
        self.sql = sql


class JobsReader(DataSourceReader):
    """Reads live jobs, finished jobs or dead letters once."""

    def __init__(self, options: JobsOptions, columns: tuple[str, ...]) -> None:
        self.options = options
        self.columns = columns

    def partitions(self) -> Sequence[InputPartition]:
        with self.options.place.connect() as mq:
            planner = PLANNERS[self.options.what](mq, self.options, self.columns)
            return [Slice(sql) for sql in planner]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, Slice):
            return
        known = TABLES[self.options.what]
        schema = pa.schema([(name, travels(name, known[name][0])) for name in self.columns])
        done = letter_column if self.options.what == "deadLetters" else finished
        for batch in fetch(self.options.place, Query(partition.sql, schema)):
            yield named({name: done(name, batch.column(name)) for name in self.columns})


def travels(name: str, kind: DataType) -> pa.DataType:
    return pa.int16() if name == "encoding" else TRAVELS[kind]


def finished(name: str, column: pa.Array) -> pa.Array:
    """A column as Spark is to have it."""
    if name == "headers":
        return headers_of(column)
    if name == "encoding":
        return encodings_of(column)
    if name in NULLABLE:
        empty = pc.equal(pc.binary_length(column), 0)
        return pc.if_else(empty, pa.scalar(None, pa.string()), column)
    return column


def letter_column(name: str, column: pa.Array) -> pa.Array:
    """A column of dead letters as Spark is to have it: their keys are stored ones."""
    if name != "key":
        return finished(name, column)
    return pc.if_else(pc.starts_with(column, SHARD_MARK), pa.scalar(None, pa.string()), column)


# --- what the driver asks ---------------------------------------------------------------------


class Extent(NamedTuple):
    """How many rows there are, and the first and the last of their times."""

    rows: int
    first: int
    last: int


def ask(mq: RowMQ, name: str, sql: str) -> list[Row]:
    """The rows of a query of our own."""

    def operation() -> Operation[list[Row]]:
        result = yield Statement(name, mq._store.dialect.fill(sql), sole=True)  # noqa: SLF001 - its own
        return list(result.rows)

    return mq._run(operation)  # noqa: SLF001 - its own


def extent(mq: RowMQ, table: str, column: str, where: str) -> Extent | None:
    """How much a table holds, if anything."""
    sql = f"SELECT COUNT(*), MIN({column}), MAX({column}) FROM {table} WHERE {where}"
    ((rows, first, last),) = ask(mq, "spark.extent", sql)
    return Extent(int(rows), int(first), int(last)) if rows else None


def slices(options: JobsOptions, found: Extent) -> list[tuple[int, int]]:
    """An extent in slices of time, the end of each not included."""
    wanted = max(options.partitions_min or 1, math.ceil(found.rows / options.records_max))
    length = found.last - found.first + 1
    count = max(1, min(wanted, length, found.rows))
    borders = [found.first + length * number // count for number in range(count + 1)]
    return list(pairwise(borders))


def within(options: JobsOptions, column: str) -> str:
    """The condition that the options' times make."""
    bounds = [(">=", options.since), ("<", options.until)]
    return "".join(f" AND {column} {sign} {time}" for sign, time in bounds if time is not None)


def literal(dialect: Dialect, text: str) -> str:
    """Text in SQL, whatever is in it."""
    digits = text.encode().hex()
    if dialect.name == "postgres":
        return f"convert_from('\\x{digits}'::bytea, 'UTF8')"
    return f"X'{digits}'" if dialect.name == "mysql" else f"CAST(x'{digits}' AS TEXT)"


def select(dialect: Dialect, options: JobsOptions, columns: Sequence[str], **words: str) -> str:
    """The list of columns of a query; words stand for what differs from row set to row set."""
    known = TABLES[options.what]
    payload = "CAST(j.payload AS BLOB)" if dialect.name == "sqlite" else "j.payload"
    listed = [f"{known[name][1]} AS c{place}" for place, name in enumerate(columns)]
    chosen = ", ".join(listed).replace("<payload>", payload)
    for word, value in words.items():
        chosen = chosen.replace(f"<{word}>", value)
    return chosen


def queues(mq: RowMQ, options: JobsOptions) -> list[tuple[int, str]]:
    """The ids and names of the queues that are read."""
    rows = ask(mq, "spark.queues", "SELECT id, queue FROM {queues} ORDER BY id")
    known = [(id, as_text(name)) for id, name in rows]
    refuse_unknown("queue", options.names, [name for _, name in known])
    return [(id, name) for id, name in known if not options.names or name in options.names]


def live_queries(mq: RowMQ, options: JobsOptions, columns: Sequence[str]) -> Iterator[str]:
    """Queries for live jobs: those that are ready, that wait in lines, and that are claimed."""
    dialect = mq._store.dialect  # noqa: SLF001 - its own
    for queue_id, queue in queues(mq, options):
        chosen = partial(select, dialect, options, columns, queue=literal(dialect, queue))
        state = "CASE WHEN r.attempts > 0 THEN <retryable> ELSE <pending> END"
        for known in (State.RETRYABLE, State.PENDING):
            state = state.replace(f"<{known.value}>", literal(dialect, known.value))
        lanes = [row[0] for row in ask(mq, "spark.lanes", LANES.format(queue_id=queue_id))]
        for lane in lanes:
            where = f"lane_id = {lane}"
            found = extent(mq, "{ready}", "due_at", where)
            for low, high in [] if found is None else slices(options, found):
                time = f"r.{where} AND r.due_at >= {low} AND r.due_at < {high}"
                yield dialect.fill(READY.format(columns=chosen(state=state), where=time))
        pending = literal(dialect, State.PENDING.value)
        if ask(mq, "spark.waiting", ANY_WAITING.format(queue_id=queue_id)):
            columns_chosen = chosen(state=pending)
            yield dialect.fill(WAITING.format(columns=columns_chosen, queue_id=queue_id))
        yield from claimed_queries(mq, lanes, chosen)


def claimed_queries(mq: RowMQ, lanes: Sequence[int], chosen: "partial[str]") -> Iterator[str]:
    """Queries for the jobs that are in locks: which they are is known by now."""
    store = mq._store  # noqa: SLF001 - its own
    entries = mq._run(partial(store.archive.claimed, frozenset(lanes)))  # noqa: SLF001 - its own
    for start in range(0, len(entries), CLAIMED_MAX):
        rows = []
        for entry, expired in entries[start : start + CLAIMED_MAX]:
            state = waiting_state(entry.attempts) if expired else State.PROCESSING
            text = literal(store.dialect, state.value)
            counts = f"{entry.attempts} AS attempts, {entry.deliveries} AS deliveries"
            rows.append(
                f"SELECT {entry.job_id} AS job_id, {counts}, {entry.due_at} AS due_at, "
                f"{text} AS state"
            )
        given = " UNION ALL ".join(rows)
        yield store.dialect.fill(CLAIMED.format(columns=chosen(state="r.state"), given=given))


def finished_queries(mq: RowMQ, options: JobsOptions, columns: Sequence[str]) -> Iterator[str]:
    """Queries for finished jobs, by when they were."""
    dialect = mq._store.dialect  # noqa: SLF001 - its own
    for queue_id, queue in queues(mq, options):
        for state, table, error in (
            (State.COMPLETED, "{completed}", literal(dialect, "")),
            (State.FAILED, "{failed}", "COALESCE(r.error, '')"),
        ):
            where = f"queue_id = {queue_id}" + within(options, "finished_at")
            found = extent(mq, table, "finished_at", where)
            words = {"queue": literal(dialect, queue), "state": literal(dialect, state.value)}
            chosen = select(dialect, options, columns, **words, error=error)
            for low, high in [] if found is None else slices(options, found):
                time = f"r.queue_id = {queue_id} AND r.finished_at >= {low}"
                where = f"{time} AND r.finished_at < {high}"
                yield dialect.fill(FINISHED_JOBS.format(columns=chosen, table=table, where=where))


def letter_queries(mq: RowMQ, options: JobsOptions, columns: Sequence[str]) -> Iterator[str]:
    """Queries for dead letters, by when they were given up."""
    dialect = mq._store.dialect  # noqa: SLF001 - its own
    refuse_unknown("topic", options.names, [info.name for info in mq.topics()])
    chosen = select(dialect, options, columns)
    topics = "1 = 1"
    if options.names:
        names = ", ".join(literal(dialect, name) for name in options.names)
        topics = f"origin_topic IN ({names})"
    where = topics + within(options, "failed_at")
    found = extent(mq, "{dead_letters}", "failed_at", where)
    for low, high in [] if found is None else slices(options, found):
        time = f"d.failed_at >= {low} AND d.failed_at < {high}"
        yield dialect.fill(LETTERS.format(columns=chosen, where=f"{topics} AND {time}"))


PLANNERS = {
    "queue": live_queries,
    "archive": finished_queries,
    "deadLetters": letter_queries,
}

LANES = "SELECT id FROM {{lanes}} WHERE queue_id = {queue_id} ORDER BY id"

ANY_WAITING = "SELECT 1 FROM {{waiting}} WHERE queue_id = {queue_id} LIMIT 1"

READY = """
    SELECT {columns}
    FROM {{ready}} r JOIN {{jobs}} j ON j.id = r.job_id JOIN {{lanes}} l ON l.id = r.lane_id
    WHERE {where}"""

WAITING = """
    SELECT {columns}
    FROM (SELECT w.*, 0 AS attempts, 0 AS deliveries FROM {{waiting}} w
          WHERE w.queue_id = {queue_id}) r
    JOIN {{jobs}} j ON j.id = r.job_id JOIN {{lanes}} l ON l.id = r.lane_id"""

CLAIMED = """
    SELECT {columns}
    FROM ({given}) r JOIN {{jobs}} j ON j.id = r.job_id JOIN {{lanes}} l ON l.id = j.lane_id"""

FINISHED_JOBS = """
    SELECT {columns}
    FROM {table} r JOIN {{jobs}} j ON j.id = r.job_id JOIN {{lanes}} l ON l.id = j.lane_id
    WHERE {where}"""

LETTERS = """
    SELECT {columns}
    FROM {{dead_letters}} d
    JOIN {{messages}} j
        ON j.partition_id = d.partition_id AND j.message_offset = d.message_offset
    LEFT JOIN {{partitions}} p ON p.id = d.origin_partition_id
    WHERE {where}"""
