"""Callers on MySQL and MariaDB."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from functools import partial
from typing import Any

import aiomysql
import asyncmy
import asyncmy.cursors
import mysql.connector
import mysql.connector.aio
import mysql.connector.pooling
import pymysql
import pymysql.cursors

from tests.conformance.callers import alchemy, django
from tests.conformance.callers.kinds import Caller, Kind
from tests.databases import MySQLDatabase

Connect = Callable[..., Any]


def plain(database: MySQLDatabase) -> dict[str, Any]:
    """What to connect with. Without TLS: most of a short test would be spent on its set-up."""
    return database.options() | {"ssl_disabled": True}


@contextmanager
def dbapi(connect: Connect, database: MySQLDatabase, **options: Any) -> Iterator[Caller]:
    with closing(connect(**plain(database), **options)) as connection:
        try:
            yield Caller(connection, partial(run, connection))
        except BaseException:
            connection.rollback()
            raise
        connection.commit()


@contextmanager
def begun(connect: Connect, database: MySQLDatabase) -> Iterator[Caller]:
    """In autocommit mode, with a transaction that was begun by SQL."""
    with closing(connect(**plain(database), autocommit=True)) as connection:
        run(connection, "BEGIN")
        try:
            yield Caller(connection, partial(run, connection))
        except BaseException:
            run(connection, "ROLLBACK")
            raise
        run(connection, "COMMIT")


def run(connection: Any, sql: str) -> None:
    with closing(connection.cursor()) as cursor:
        cursor.execute(sql)
        if cursor.description:
            cursor.fetchall()


@asynccontextmanager
async def async_dbapi(
    connect: Connect, database: MySQLDatabase, **options: Any
) -> AsyncIterator[Caller]:
    connection = await connect(database, **options)
    try:
        yield Caller(connection, partial(run_async, connection))
    except BaseException:
        await connection.rollback()
        raise
    else:
        await connection.commit()
    finally:
        await closed(connection)


@asynccontextmanager
async def async_begun(connect: Connect, database: MySQLDatabase) -> AsyncIterator[Caller]:
    connection = await connect(database, autocommit=True)
    await run_async(connection, "BEGIN")
    try:
        yield Caller(connection, partial(run_async, connection))
    except BaseException:
        await run_async(connection, "ROLLBACK")
        raise
    else:
        await run_async(connection, "COMMIT")
    finally:
        await closed(connection)


async def run_async(connection: Any, sql: str) -> None:
    cursor = connection.cursor()
    if isinstance(cursor, Awaitable):
        cursor = await cursor
    await cursor.execute(sql)
    if cursor.description:
        await cursor.fetchall()
    await cursor.close()


async def closed(connection: Any) -> None:
    await (
        connection.ensure_closed() if hasattr(connection, "ensure_closed") else connection.close()
    )


async def connect_asyncmy(database: MySQLDatabase, **options: Any) -> Any:
    return await asyncmy.connect(**database.options(), **options)


async def connect_aiomysql(database: MySQLDatabase, **options: Any) -> Any:
    given = database.options()
    return await aiomysql.connect(db=given.pop("database"), **given, **options)


async def connect_connector(database: MySQLDatabase, **options: Any) -> Any:
    return await mysql.connector.aio.connect(**plain(database), **options)


connector = mysql.connector.connect


@contextmanager
def pooled(database: MySQLDatabase) -> Iterator[Caller]:
    pool = mysql.connector.pooling.MySQLConnectionPool(pool_size=1, **plain(database))
    try:
        with dbapi(lambda **_: pool.get_connection(), database) as caller:
            yield caller
    finally:
        pool._remove_connections()


KINDS = [
    Kind("PyMySQL", "sync", partial(dbapi, pymysql.connect)),
    Kind("PyMySQL-BEGIN", "sync", partial(begun, pymysql.connect)),
    Kind("PyMySQL-latin1", "sync", partial(dbapi, pymysql.connect, charset="latin1")),
    Kind("PyMySQL-gbk", "sync", partial(dbapi, pymysql.connect, charset="gbk")),
    Kind("PyMySQL-binary_prefix", "sync", partial(dbapi, pymysql.connect, binary_prefix=True)),
    Kind(
        "PyMySQL-DictCursor",
        "sync",
        partial(dbapi, pymysql.connect, cursorclass=pymysql.cursors.DictCursor),
    ),
    Kind("mysql-connector", "sync", partial(dbapi, connector)),
    Kind("mysql-connector-BEGIN", "sync", partial(begun, connector)),
    Kind("mysql-connector-pure", "sync", partial(dbapi, connector, use_pure=True)),
    Kind("mysql-connector-pool", "sync", pooled),
    *alchemy.kinds("mysql+pymysql", "mysql+mysqlconnector"),
    *django.KINDS,
    Kind("asyncmy", "async", partial(async_dbapi, connect_asyncmy)),
    Kind("asyncmy-BEGIN", "async", partial(async_begun, connect_asyncmy)),
    Kind("asyncmy-latin1", "async", partial(async_dbapi, connect_asyncmy, charset="latin1")),
    Kind(
        "asyncmy-DictCursor",
        "async",
        partial(async_dbapi, connect_asyncmy, cursor_cls=asyncmy.cursors.DictCursor),
    ),
    Kind("aiomysql", "async", partial(async_dbapi, connect_aiomysql)),
    Kind("aiomysql-BEGIN", "async", partial(async_begun, connect_aiomysql)),
    Kind(
        "aiomysql-DictCursor",
        "async",
        partial(async_dbapi, connect_aiomysql, cursorclass=aiomysql.DictCursor),
    ),
    Kind("mysql-connector-aio", "async", partial(async_dbapi, connect_connector)),
    *alchemy.async_kinds("mysql+asyncmy", "mysql+aiomysql"),
]

# --- without a transaction ----------------------------------------------------------------------

SYNC_DRIVERS = ["mysql+pymysql", "mysql+mysqlconnector"]
ASYNC_DRIVERS = ["mysql+asyncmy", "mysql+aiomysql"]

UNBEGUN = alchemy.unbegun_kinds(SYNC_DRIVERS, ASYNC_DRIVERS)
AUTOCOMMIT = [
    Kind("PyMySQL", "sync", partial(dbapi, pymysql.connect, autocommit=True)),
    Kind("mysql-connector", "sync", partial(dbapi, connector, autocommit=True)),
    django.AUTOCOMMIT,
    Kind("asyncmy", "async", partial(async_dbapi, connect_asyncmy, autocommit=True)),
    Kind("aiomysql", "async", partial(async_dbapi, connect_aiomysql, autocommit=True)),
    Kind("mysql-connector-aio", "async", partial(async_dbapi, connect_connector, autocommit=True)),
    *alchemy.autocommit_kinds(SYNC_DRIVERS, ASYNC_DRIVERS),
]
