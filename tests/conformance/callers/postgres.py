"""Callers on PostgreSQL."""

from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, closing, contextmanager
from functools import partial
from typing import Any

import asyncpg
import psycopg
import psycopg2
import psycopg2.extras
from psycopg.rows import dict_row

from tests.conformance.callers import alchemy, django
from tests.conformance.callers.kinds import Caller, Kind
from tests.databases import Database


@contextmanager
def psycopg_connection(database: Database, **options: Any) -> Iterator[Caller]:
    with psycopg.connect(database.url, **options) as connection:
        yield Caller(connection, connection.execute)


@contextmanager
def psycopg_block(database: Database) -> Iterator[Caller]:
    with psycopg.connect(database.url, autocommit=True) as connection, connection.transaction():
        yield Caller(connection, connection.execute)


def psycopg_raw_cursors(database: Database) -> AbstractContextManager[Caller]:
    return psycopg_connection(database, cursor_factory=psycopg.RawCursor)


@contextmanager
def psycopg2_connection(database: Database, **options: Any) -> Iterator[Caller]:
    with closing(psycopg2.connect(database.url, **options)) as connection, connection:
        yield Caller(connection, partial(run_psycopg2, connection))


@contextmanager
def psycopg2_begun(database: Database) -> Iterator[Caller]:
    """In autocommit mode, with a transaction that was begun by SQL."""
    with closing(psycopg2.connect(database.url)) as connection:
        connection.autocommit = True
        run_psycopg2(connection, "BEGIN")
        try:
            yield Caller(connection, partial(run_psycopg2, connection))
        except BaseException:
            run_psycopg2(connection, "ROLLBACK")
            raise
        run_psycopg2(connection, "COMMIT")


def run_psycopg2(connection: Any, sql: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql)


@asynccontextmanager
async def asyncpg_connection(database: Database) -> AsyncIterator[Caller]:
    connection = await asyncpg.connect(database.url)
    try:
        async with connection.transaction():
            yield Caller(connection, connection.execute)
    finally:
        await connection.close()


@asynccontextmanager
async def asyncpg_pooled(database: Database) -> AsyncIterator[Caller]:
    async with (
        asyncpg.create_pool(database.url, min_size=1, max_size=1) as pool,
        pool.acquire() as connection,
        connection.transaction(),
    ):
        yield Caller(connection, connection.execute)


@asynccontextmanager
async def psycopg_async(database: Database, **options: Any) -> AsyncIterator[Caller]:
    async with await psycopg.AsyncConnection.connect(database.url, **options) as connection:
        yield Caller(connection, connection.execute)


@asynccontextmanager
async def psycopg_async_block(database: Database) -> AsyncIterator[Caller]:
    async with (
        await psycopg.AsyncConnection.connect(database.url, autocommit=True) as connection,
        connection.transaction(),
    ):
        yield Caller(connection, connection.execute)


KINDS = [
    Kind("psycopg", "sync", psycopg_connection),
    Kind("psycopg-transaction", "sync", psycopg_block),
    Kind("psycopg-dict_row", "sync", partial(psycopg_connection, row_factory=dict_row)),
    Kind("psycopg-RawCursor", "sync", psycopg_raw_cursors),
    Kind("psycopg2", "sync", psycopg2_connection),
    Kind("psycopg2-BEGIN", "sync", psycopg2_begun),
    Kind(
        "psycopg2-RealDictCursor",
        "sync",
        partial(psycopg2_connection, cursor_factory=psycopg2.extras.RealDictCursor),
    ),
    *alchemy.kinds("postgresql+psycopg", "postgresql+psycopg2"),
    *django.KINDS,
    Kind("asyncpg", "async", asyncpg_connection),
    Kind("asyncpg-pool", "async", asyncpg_pooled),
    Kind("psycopg-AsyncConnection", "async", psycopg_async),
    Kind("psycopg-async-transaction", "async", psycopg_async_block),
    Kind("psycopg-async-dict_row", "async", partial(psycopg_async, row_factory=dict_row)),
    *alchemy.async_kinds("postgresql+asyncpg", "postgresql+psycopg"),
]


# --- without a transaction ----------------------------------------------------------------------


@contextmanager
def psycopg2_autocommit(database: Database) -> Iterator[Caller]:
    with closing(psycopg2.connect(database.url)) as connection:
        connection.autocommit = True
        yield Caller(connection, partial(run_psycopg2, connection))


@asynccontextmanager
async def asyncpg_alone(database: Database) -> AsyncIterator[Caller]:
    connection = await asyncpg.connect(database.url)
    try:
        yield Caller(connection, connection.execute)
    finally:
        await connection.close()


SYNC_DRIVERS = ["postgresql+psycopg", "postgresql+psycopg2"]
ASYNC_DRIVERS = ["postgresql+asyncpg", "postgresql+psycopg"]

UNBEGUN = alchemy.unbegun_kinds(SYNC_DRIVERS, ASYNC_DRIVERS)
AUTOCOMMIT = [
    Kind("psycopg", "sync", partial(psycopg_connection, autocommit=True)),
    Kind("psycopg2", "sync", psycopg2_autocommit),
    django.AUTOCOMMIT,
    Kind("asyncpg", "async", asyncpg_alone),
    Kind("psycopg-AsyncConnection", "async", partial(psycopg_async, autocommit=True)),
    *alchemy.autocommit_kinds(SYNC_DRIVERS, ASYNC_DRIVERS),
]
