"""A task of the source: many ranges of the log in one query, as record batches of Spark's schema.

The query gives, beside a message's own columns, the number of the range it is from; topic, key and
partition are then looked up by that number, and never travel.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from rowmq.errors import ConnectionLost, DataLoss, RowMQError
from rowmq.spark.arrow import Query, fetch
from rowmq.spark.columns import encodings_of, headers_of, named
from rowmq.spark.place import Place
from rowmq.spark.source.planning import Range
from rowmq.store.keys import key_of

__all__ = ["COLUMNS", "EXTRA", "read_ranges"]

COLUMNS = StructType(
    [
        StructField("key", StringType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", LongType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("id", StringType()),
        StructField("headers", MapType(StringType(), StringType())),
    ]
)

EXTRA = StructType([StructField("encoding", StringType())])
"""Columns that are there for those who ask for them by name."""

STORED = {
    "value": ("m.payload", pa.binary()),
    "offset": ("m.message_offset", pa.int64()),
    "timestamp": ("m.published_at", pa.timestamp("us", "UTC")),
    "id": ("m.message_id", pa.string()),
    "headers": ("m.headers", pa.string()),
    "encoding": ("m.encoding", pa.int16()),
}
"""The columns that a message's row has, and how they travel."""

RANGES: dict[str, Callable[[Range], object]] = {
    "key": lambda one: key_of(one.key),
    "topic": lambda one: one.topic,
    "partition": lambda one: one.partition_id,
}
"""The columns that all messages of a range have alike."""

RANGE_TYPES = {"key": pa.string(), "topic": pa.string(), "partition": pa.int64()}

TYPED = {"m.payload": "CAST(m.payload AS BLOB)", "m.headers": "COALESCE(m.headers, '')"}
"""How SQLite is asked: there, columns have the types of what comes first, and so no NULL may."""

RANGES_MAX = {"postgres": 5_000, "sqlite": 5_000, "mysql": 500}
"""How many ranges one query reads."""

ROW_BYTES = 200
COUNTED = pa.schema([("count", pa.int64())])


def read_ranges(
    place: Place, names: Sequence[str], ranges: Sequence[Range], *, checked: bool
) -> Iterator[pa.RecordBatch]:
    """The messages of ranges, each range in order; `checked` raises if one is missing."""
    most = RANGES_MAX[place.database]
    for start in range(0, len(ranges), most):
        run = ranges[start : start + most]
        expected, found = sum(one.size for one in run), 0
        for batch in read_run(place, names, run, counted=checked):
            found += batch.num_rows
            yield batch
        if checked and found != expected:
            raise missing(place, run, found, expected)


def read_run(
    place: Place, names: Sequence[str], run: Sequence[Range], *, counted: bool
) -> Iterator[pa.RecordBatch]:
    dialect = place.store.dialect
    stored = {name: STORED[name] for name in names if name in STORED} or {
        "offset": STORED["offset"]
    }
    types = [(name, kind) for name, (_, kind) in stored.items()]
    columns = [column for column, _ in stored.values()]
    if dialect.name == "sqlite":
        columns = [TYPED.get(column, column) for column in columns]
    if len(run) == 1:
        sql = dialect.fill(one_range(columns, run[0]))
    else:
        types.insert(0, ("place", pa.int32()))
        sql = dialect.fill(QUERIES[dialect.name](columns, run))
    largest = max(one.largest_bytes for one in run) if "value" in stored else 0
    columns_of = pa.schema(types)
    query = Query(sql, columns_of, by_index=True, counted=counted, row_bytes=largest + ROW_BYTES)
    yield from map(partial(complete, names, run), fetch(place, query))


def complete(names: Sequence[str], run: Sequence[Range], batch: pa.RecordBatch) -> pa.RecordBatch:
    """A batch with the columns that were asked for, those of the ranges looked up."""
    columns = {}
    for name in names:
        if name == "headers":
            columns[name] = headers_of(batch.column(name))
        elif name == "encoding":
            columns[name] = encodings_of(batch.column(name))
        elif name in STORED:
            columns[name] = batch.column(name)
        else:
            columns[name] = looked_up(name, run, batch)
    return named(columns)


def looked_up(name: str, run: Sequence[Range], batch: pa.RecordBatch) -> pa.Array:
    """A column of a batch that is the ranges' own."""
    values, kind = [RANGES[name](one) for one in run], RANGE_TYPES[name]
    if len(run) == 1:
        return pa.repeat(pa.scalar(values[0], kind), batch.num_rows)
    return pa.array(values, kind).take(batch.column("place"))


def missing(place: Place, run: Sequence[Range], found: int, expected: int) -> RowMQError:
    """What it means that there were fewer rows: some are gone, or a connection was."""
    there = sum(
        batch.column(0)[0].as_py()
        for one in run
        for batch in fetch(place, Query(place.store.dialect.fill(count_of(one)), COUNTED))
    )
    if there == expected:
        return ConnectionLost(f"{found} of {expected} messages came: the connection broke")
    return lost(run, expected - there)


def lost(run: Sequence[Range], missing: int) -> DataLoss:
    topics = ", ".join(sorted({repr(one.topic) for one in run}))
    return DataLoss(
        f"{missing} messages of topic {topics} were deleted before Spark had read them: by the "
        f"topic's retention, or, in a batch, by garbage collection. Set "
        f".option('failOnDataLoss', 'false') to go on without them"
    )


# --- the query, for each database: numbers of our own stand in it, and no names ---------------


def count_of(one: Range) -> str:
    return f"""
        SELECT COUNT(*) FROM {{messages}} m
        WHERE m.partition_id = {one.partition_id} AND m.message_offset >= {one.first}
            AND m.message_offset < {one.end}"""


def one_range(columns: Sequence[str], one: Range) -> str:
    """A range by itself, which every database reads by its index."""
    return f"""
        SELECT {", ".join(columns)} FROM {{messages}} m
        WHERE m.partition_id = {one.partition_id} AND m.message_offset >= {one.first}
            AND m.message_offset < {one.end}
        ORDER BY m.message_offset"""


def postgres(columns: Sequence[str], run: Sequence[Range]) -> str:
    """Each range is looked up by itself: see the query of `read`."""
    values = ", ".join(
        f"({place}, {one.partition_id}::bigint, {one.first}::bigint, {one.end}::bigint)"
        for place, one in enumerate(run)
    )
    return f"""
        SELECT {", ".join(["s.place", *columns])}
        FROM (VALUES {values}) AS s (place, id, first_offset, end_offset)
        CROSS JOIN LATERAL (
            SELECT {", ".join(columns)} FROM {{messages}} m
            WHERE m.partition_id = s.id AND m.message_offset >= s.first_offset
                AND m.message_offset < s.end_offset
            ORDER BY m.message_offset OFFSET 0
        ) m"""


def sqlite(columns: Sequence[str], run: Sequence[Range]) -> str:
    values = ", ".join(
        f"({place}, {one.partition_id}, {one.first}, {one.end})" for place, one in enumerate(run)
    )
    return f"""
        WITH s (place, id, first_offset, end_offset) AS (VALUES {values})
        SELECT {", ".join(["s.place", *columns])}
        FROM s CROSS JOIN {{messages}} m
            ON m.partition_id = s.id AND m.message_offset >= s.first_offset
            AND m.message_offset < s.end_offset"""


def mysql(columns: Sequence[str], run: Sequence[Range]) -> str:
    """Neither server looks up joined ranges in an index: one SELECT each."""
    return " UNION ALL ".join(
        f"({one_range([f'{place} AS place', *columns], one)} LIMIT {one.size})"
        for place, one in enumerate(run)
    )


QUERIES = {"postgres": postgres, "sqlite": sqlite, "mysql": mysql}
