"""From SQL to Arrow: the rows of a query as record batches, streamed, without Python in between.

PostgreSQL and SQLite are read through ADBC, MySQL and MariaDB through connectorx, which has no say
in TLS files and sockets: where a URL asks for those, PyMySQL reads row by row. Values stand in the
SQL as literals (they are numbers that this package made): with parameters, ADBC would take the
whole result into memory first.
"""

import atexit
import contextlib
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pyarrow as pa

from rowmq.drivers.mysql import open_pymysql
from rowmq.engine import Options, limits_of
from rowmq.errors import DatabaseError, DatabaseUnreachable
from rowmq.spark.place import Place

__all__ = ["Query", "fetch"]

BATCH_BYTES = 8 * 1024 * 1024
"""About how much a task has in memory at a time, several times over."""

BATCH_ROWS = 10_000
BATCH_ROWS_UNKNOWN = 256

# Ranges of the log are read in the order of its index: to sort them, or to have several processes
# read them, takes half as much work again. For this transaction only.
BY_INDEX = "SELECT " + ", ".join(
    f"set_config('{name}', '{value}', true)"
    for name, value in {
        "enable_bitmapscan": "off",
        "enable_seqscan": "off",
        "enable_sort": "off",
        "jit": "off",
        "max_parallel_workers_per_gather": "0",
    }.items()
)

NOTHING = "SELECT 1"

KEPT: dict[str, Any] = {}
"""Connections to PostgreSQL that are not in use, by URL. Spark ends processes that have been idle
for a minute, and these with them.
"""


class Query(NamedTuple):
    """What is asked, and what is known of the answer.

    `columns` are the query's, in order. `by_index` says that its rows are read in the order of an
    index. `counted` says that whoever asks knows how many rows there must be, and counts them;
    where it is not so, a driver is chosen that is sure to tell of a broken connection. `row_bytes`
    is the size of the largest row, if that is known.
    """

    sql: str
    columns: pa.Schema
    by_index: bool = False
    counted: bool = False
    row_bytes: int = 0


def fetch(place: Place, query: Query) -> Iterator[pa.RecordBatch]:
    """Run a query and give its rows in batches."""
    schema = query.columns
    with contextlib.closing(READERS[place.database](place, query)) as found:
        for batch in found:
            if batch.num_rows:
                yield conform(batch, schema)


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """A batch as the schema has it: drivers differ in how wide they make a type."""
    columns = [
        column if column.type == field.type else cast(column, field.type)
        for column, field in zip(batch.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def cast(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    if pa.types.is_timestamp(wanted) and pa.types.is_int64(column.type):
        return column.view(pa.timestamp("us")).view(wanted)
    if pa.types.is_string(wanted) and pa.types.is_large_binary(column.type):
        column = column.cast(pa.binary())
    return column.cast(wanted)


def postgres(place: Place, query: Query) -> Generator[pa.RecordBatch, None, None]:
    """By COPY, in batches of a size.

    A connection is kept for the next task of this process: to make one takes as long as to read
    some fifty thousand messages. One that was not read to its end is of no more use.
    """
    from adbc_driver_postgresql import dbapi  # noqa: PLC0415 - by the databases that are used

    size = {"adbc.postgresql.batch_size_hint_bytes": str(BATCH_BYTES)}
    target = str(place.target)
    first = BY_INDEX if query.by_index else NOTHING
    with told(dbapi.Error):
        connection = kept(target, first) or begun(dbapi.connect(target), first)
        try:
            with connection.cursor() as cursor:
                cursor.adbc_statement.set_options(**size)
                cursor.execute(query.sql)
                yield from read(cursor.fetch_record_batch(), query)
            connection.rollback()
        except BaseException:
            connection.close()
            raise
        if KEPT.setdefault(target, connection) is not connection:
            connection.close()


@atexit.register
def close_kept() -> None:
    """Close what was kept for a task that never came."""
    while KEPT:
        with contextlib.suppress(Exception):  # the process ends anyway
            KEPT.popitem()[1].close()


def kept(target: str, first: str) -> Any | None:
    """A connection that was kept and still answers, with its first statement run."""
    connection = KEPT.pop(target, None)
    if connection is None:
        return None
    with contextlib.suppress(Exception):  # whatever it is, another connection is made
        return begun(connection, first)
    return None


def begun(connection: Any, first: str) -> Any:
    """A connection whose first statement is run; it is closed if that fails."""
    try:
        with connection.cursor() as cursor:
            cursor.execute(first)
    except BaseException:
        connection.close()
        raise
    return connection


def sqlite(place: Place, query: Query) -> Generator[pa.RecordBatch, None, None]:
    """The types of columns are those of the first rows: the query leaves no NULL there."""
    from adbc_driver_sqlite import dbapi  # noqa: PLC0415 - by the databases that are used

    path = str(place.target)
    if not Path(path).is_file():
        raise DatabaseUnreachable(
            f"the file of this SQLite database is not on the machine of the task: {path}. Run "
            f"Spark on the machine that has it (master local[*]), or use a server"
        )
    few = {"adbc.sqlite.query.batch_rows": str(batch_rows(query.row_bytes))}
    with (
        told(dbapi.Error),
        dbapi.connect(path, autocommit=True) as connection,
        connection.cursor() as cursor,
    ):
        cursor.adbc_statement.set_options(**few)
        cursor.execute(query.sql)
        yield from read(cursor.fetch_record_batch(), query)


def mysql(place: Place, query: Query) -> Generator[pa.RecordBatch, None, None]:
    if query.counted and not urlsplit(place.url).query:
        return mysql_by_batches(place, query)
    return mysql_by_rows(place, query)


def mysql_by_batches(place: Place, query: Query) -> Generator[pa.RecordBatch, None, None]:
    """Through connectorx, which tells nobody when the server goes away: rows must be counted."""
    import connectorx  # noqa: PLC0415 - by the databases that are used

    url = "mysql" + place.url[len(urlsplit(place.url).scheme) :]
    with told(RuntimeError):
        found = connectorx.read_sql(
            url,
            query.sql,
            return_type="arrow_stream",
            batch_size=batch_rows(query.row_bytes),
            protocol="binary",
        )
        yield from read(found, query)


def mysql_by_rows(place: Place, query: Query) -> Generator[pa.RecordBatch, None, None]:
    """Through PyMySQL, which holds back what was not asked for yet."""
    import pymysql  # noqa: PLC0415 - by the databases that are used
    from pymysql.cursors import SSCursor  # noqa: PLC0415

    session = open_pymysql(place.target, limits_of(Options()))
    with (
        told(pymysql.Error),
        contextlib.closing(session.connection) as connection,
        connection.cursor(SSCursor) as cursor,
    ):
        cursor.execute(query.sql)
        while rows := cursor.fetchmany(batch_rows(query.row_bytes)):
            columns = [
                pa.array([plain(value) for value in column], plain_type(field.type))
                for column, field in zip(zip(*rows, strict=True), query.columns, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(columns, names=query.columns.names)


def plain(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value


def plain_type(wanted: pa.DataType) -> pa.DataType:
    """How a column is built before it is cast: text as bytes, times as numbers."""
    if pa.types.is_timestamp(wanted):
        return pa.int64()
    return pa.large_binary() if pa.types.is_string(wanted) else wanted


def read(found: pa.RecordBatchReader, query: Query) -> Iterator[pa.RecordBatch]:
    """The batches of a reader, which has as many columns as were asked for."""
    if len(found.schema) != len(query.columns):
        raise DatabaseError(f"the query gave {found.schema.names}, not {query.columns.names}")
    yield from found


def batch_rows(row_bytes: int) -> int:
    """How many rows to take at a time, when the largest has a size; few, if it is not known."""
    return max(1, min(BATCH_ROWS, BATCH_BYTES // row_bytes)) if row_bytes else BATCH_ROWS_UNKNOWN


@contextlib.contextmanager
def told(problems: type[Exception]) -> Iterator[None]:
    """A driver's error as one of RowMQ's, without what may be a secret."""
    try:
        yield
    except problems as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise DatabaseError(f"reading from the database failed: {first}") from None


READERS: dict[str, Callable[..., Generator[pa.RecordBatch, None, None]]] = {
    "postgres": postgres,
    "sqlite": sqlite,
    "mysql": mysql,
}
