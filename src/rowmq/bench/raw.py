"""The raw limit of a database: `python -m rowmq.bench.raw SPEC`.

The same rows as RowMQ's messages go into a table with the same columns and indexes by the quickest
way that each database has: COPY, INSERT of many rows, `executemany`. Nothing is looked up,
numbered, locked or told. They are read back in the order of their key, page by page.
"""

import asyncio
import platform
import sqlite3
import sys
from collections.abc import Callable, Iterator
from time import monotonic
from typing import Any

import msgspec

import rowmq
from rowmq.bench.link import open_link
from rowmq.bench.playing import Spec, Stage, say, spec_of
from rowmq.engine import mysql_options, postgres_url, split, sqlite_path
from rowmq.message import new_ids

__all__ = ["main"]

TABLE = "raw_messages"
COLUMNS = (
    "partition_id",
    "message_offset",
    "published_at",
    "encoding",
    "message_id",
    "headers",
    "payload",
)
FILL_BATCH = 1_000

Record = tuple[int, int, int, int, str, None, bytes]


def batches_of(spec: Spec) -> Iterator[list[Record]]:
    """The rows to write, a batch at a time; partitions take turns. Ids are like those that messages
    are given: in an index, random ones would cost far more.
    """
    payload = b"x" * spec.payload_bytes
    for first in range(0, spec.messages, spec.batch):
        places = range(first, min(first + spec.batch, spec.messages))
        yield [
            (n % spec.partitions, n // spec.partitions, first, 0, id, None, payload)
            for n, id in zip(places, new_ids(len(places)), strict=True)
        ]


def warm_batch(spec: Spec) -> list[Record]:
    """What is written before the time runs, into a partition of its own."""
    batch = next(batches_of(spec))
    return [(spec.partitions, n, *record[2:]) for n, record in enumerate(batch)]


def prepare(spec: Spec) -> None:
    """Make a table like that of messages."""
    with rowmq.connect(spec.url) as mq:
        mq.migrate()
    link = open_link(spec.url)
    link.drop_tables(TABLE)
    if link.database == "postgresql":
        link.execute(f"CREATE TABLE {TABLE} (LIKE rowmq_messages INCLUDING ALL)")
    elif link.database == "sqlite":
        for (sql,) in link.execute(
            "SELECT sql FROM sqlite_master WHERE tbl_name = 'rowmq_messages' AND sql IS NOT NULL"
        ):
            link.execute(sql.replace("rowmq_", "raw_"))
    else:
        link.execute(f"CREATE TABLE {TABLE} LIKE rowmq_messages")
    link.close()


# --- PostgreSQL -----------------------------------------------------------------------------------


async def connect_postgres(spec: Spec) -> Any:
    import asyncpg  # noqa: PLC0415 - there is a database without it

    address, parts, _ = split(spec.url)
    return await asyncpg.connect(postgres_url(address, parts))


async def copy(spec: Spec, stage: Stage | None) -> None:
    """Write by binary COPY, each batch a transaction: asyncpg is quicker at that than psycopg;
    single rows by INSERT.
    """
    connection = await connect_postgres(spec)
    batches = list(batches_of(spec))
    marks = ", ".join(f"${place + 1}" for place in range(len(COLUMNS)))
    insert = await connection.prepare(
        f"INSERT INTO {TABLE} ({', '.join(COLUMNS)}) VALUES ({marks})"
    )

    async def write(batch: list[Record]) -> None:
        if spec.batch == 1:
            await insert.fetch(*batch[0])
        else:
            await connection.copy_records_to_table(TABLE, records=batch, columns=COLUMNS)

    if stage is not None:
        await write(warm_batch(spec))
    began = await started(stage, batch=spec.batch, how="INSERT" if spec.batch == 1 else "COPY")
    for batch in batches:
        await write(batch)
    ended(stage, sum(map(len, batches)), began)
    await connection.close()


async def read_postgres(spec: Spec, stage: Stage) -> None:
    connection = await connect_postgres(spec)
    page = await connection.prepare(
        f"SELECT {', '.join(COLUMNS)} FROM {TABLE} WHERE partition_id = $1 AND message_offset > $2"
        f" ORDER BY message_offset LIMIT $3"
    )
    began = await started(stage, batch=spec.batch, how="SELECT")
    count = 0
    for partition in range(spec.partitions):
        after = -1
        while rows := await page.fetch(partition, after, spec.batch):
            after, count = rows[-1]["message_offset"], count + len(rows)
    ended(stage, count, began)
    await connection.close()


async def started(stage: Stage | None, **settings: Any) -> float:
    if stage is None:
        return 0.0
    stage.ready(**settings)
    return await stage.wait_async()


def ended(stage: Stage | None, count: int, began: float) -> None:
    if stage is not None:
        stage.done(count=count, began=began, ended=monotonic())


# --- MySQL, MariaDB and SQLite --------------------------------------------------------------------


def write_mysql(spec: Spec, stage: Stage | None) -> None:
    """Write by INSERT of as many rows as there are in a batch."""
    import pymysql  # noqa: PLC0415 - there is a database without it

    address, parts, _ = split(spec.url)
    with pymysql.connect(autocommit=True, **mysql_options(address, parts)) as connection:
        cursor = connection.cursor()
        marks = "(" + ", ".join(["%s"] * len(COLUMNS)) + ")"
        batches = [flat(batch) for batch in batches_of(spec)]

        def write(values: list[Any]) -> None:
            rows = ", ".join([marks] * (len(values) // len(COLUMNS)))
            cursor.execute(f"INSERT INTO {TABLE} ({', '.join(COLUMNS)}) VALUES {rows}", values)

        if stage is not None:
            write(flat(warm_batch(spec)))
        began = asyncio.run(started(stage, batch=spec.batch, how="INSERT"))
        for values in batches:
            write(values)
        ended(stage, sum(map(len, batches)) // len(COLUMNS), began)


def flat(batch: list[Record]) -> list[Any]:
    return [value for record in batch for value in record]


def read_mysql(spec: Spec, stage: Stage) -> None:
    import pymysql  # noqa: PLC0415 - there is a database without it

    address, parts, _ = split(spec.url)
    with pymysql.connect(autocommit=True, **mysql_options(address, parts)) as connection:
        cursor = connection.cursor()

        def page(*values: int) -> Any:
            cursor.execute(PAGE.replace("?", "%s"), values)
            return cursor.fetchall()

        read_pages(spec, stage, page)


def open_sqlite(spec: Spec) -> sqlite3.Connection:
    address, parts, _ = split(spec.url)
    connection = sqlite3.connect(sqlite_path(address, parts), isolation_level=None)
    connection.execute("PRAGMA synchronous = FULL")
    return connection


def write_sqlite(spec: Spec, stage: Stage | None) -> None:
    """Write by `executemany`, each batch a transaction."""
    connection = open_sqlite(spec)
    marks = ", ".join("?" * len(COLUMNS))
    insert = f"INSERT INTO {TABLE} ({', '.join(COLUMNS)}) VALUES ({marks})"
    batches = list(batches_of(spec))

    def write(batch: list[Record]) -> None:
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(insert, batch)
        connection.execute("COMMIT")

    if stage is not None:
        write(warm_batch(spec))
    began = asyncio.run(started(stage, batch=spec.batch, how="executemany"))
    for batch in batches:
        write(batch)
    ended(stage, sum(map(len, batches)), began)
    connection.close()


def read_sqlite(spec: Spec, stage: Stage) -> None:
    connection = open_sqlite(spec)
    read_pages(spec, stage, lambda *values: connection.execute(PAGE, values).fetchall())
    connection.close()


PAGE = (
    f"SELECT {', '.join(COLUMNS)} FROM {TABLE} WHERE partition_id = ? AND message_offset > ?"
    f" ORDER BY message_offset LIMIT ?"
)


def read_pages(spec: Spec, stage: Stage, page: Callable[..., list[Any]]) -> None:
    began = asyncio.run(started(stage, batch=spec.batch, how="SELECT"))
    count = 0
    for partition in range(spec.partitions):
        after = -1
        while rows := page(partition, after, spec.batch):
            after, count = rows[-1][1], count + len(rows)
    ended(stage, count, began)


# --- what is asked --------------------------------------------------------------------------------

WRITERS: dict[str, Callable[[Spec, Stage | None], None]] = {
    "postgres": lambda spec, stage: asyncio.run(copy(spec, stage)),
    "mysql": write_mysql,
    "sqlite": write_sqlite,
}

READERS: dict[str, Callable[[Spec, Stage], None]] = {
    "postgres": lambda spec, stage: asyncio.run(read_postgres(spec, stage)),
    "mysql": read_mysql,
    "sqlite": read_sqlite,
}


def main() -> None:
    spec = spec_of(sys.argv)
    database = split(spec.url)[2]
    stage = Stage("raw", f"Python {platform.python_version()}")
    if spec.task == "prepare":
        prepare(spec)
        say(event="done")
    elif spec.task == "fill":
        WRITERS[database](msgspec.structs.replace(spec, batch=FILL_BATCH), None)
        say(event="done")
    elif spec.task == "publish":
        WRITERS[database](spec, stage)
    else:
        READERS[database](spec, stage)


if __name__ == "__main__":
    main()
