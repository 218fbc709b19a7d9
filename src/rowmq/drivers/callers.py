"""The caller's own open transaction, in whatever object it comes.

`connection=` takes raw driver connections, SQLAlchemy's connections and sessions, and Django's
connection. Each is wrapped as a guest that executes statements and nothing else: RowMQ neither
begins, commits, rolls back nor closes what is not its own. An object without an open transaction is
refused, because its writes would each commit by themselves.

Objects are recognised by where their class comes from, so that no driver has to be installed.
"""

import inspect
import sqlite3
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rowmq.drivers.base import AsyncGuest, Guest
from rowmq.drivers.faults import Translate, mysql_fault, postgres_fault, sqlite_fault
from rowmq.drivers.placeholders import Style, restyle_own
from rowmq.errors import NoTransaction, UnsupportedConnection
from rowmq.store.statement import Result, Statement

__all__ = ["async_guest_of", "guest_of"]

TRANSLATE: dict[str, Translate] = {
    "postgres": postgres_fault,
    "mysql": mysql_fault,
    "sqlite": sqlite_fault,
}

IN_TRANSACTION = 1
"""The bit of MySQL's server status that says so."""


class _Guest:
    """What all guests share: the owner ends the transaction, not RowMQ."""

    def __init__(self, connection: Any, database: str, style: Style) -> None:
        self.connection = connection
        self.translate = TRANSLATE[database]
        self.style = style

    def restyled(self, statement: Statement) -> tuple[str, Sequence[Any]]:
        return restyle_own(statement.sql, statement.params, self.style)


class CursorGuest(_Guest):
    """A DB-API connection: psycopg, PyMySQL, mysqlclient, mysql-connector, sqlite3, Django's."""

    def execute(self, statement: Statement) -> Result:
        cursor = plain_cursor(self.connection)
        try:
            cursor.execute(*self.restyled(statement))
            rows = cursor.fetchall() if cursor.description is not None else []
            return Result(rows, cursor.rowcount)
        finally:
            cursor.close()


class AsyncCursorGuest(_Guest):
    """The same with awaits: psycopg's AsyncConnection, asyncmy, aiomysql, aiosqlite."""

    async def execute(self, statement: Statement) -> Result:
        cursor = plain_cursor(self.connection)
        if inspect.isawaitable(cursor):
            cursor = await cursor
        try:
            await cursor.execute(*self.restyled(statement))
            rows = await cursor.fetchall() if cursor.description is not None else []
            return Result(rows, cursor.rowcount)
        finally:
            await cursor.close()


class AsyncpgGuest(_Guest):
    """An asyncpg connection, which has no cursors of this kind."""

    async def execute(self, statement: Statement) -> Result:
        return Result(await self.connection.fetch(statement.sql, *statement.params))


class AlchemyGuest(_Guest):
    """SQLAlchemy's Connection: through it, so that it begins and logs as for its own SQL."""

    def execute(self, statement: Statement) -> Result:
        sql, params = self.restyled(statement)
        return alchemy_result(self.connection.exec_driver_sql(sql, tuple(params)))


class AsyncAlchemyGuest(_Guest):
    """SQLAlchemy's AsyncConnection."""

    async def execute(self, statement: Statement) -> Result:
        sql, params = self.restyled(statement)
        return alchemy_result(await self.connection.exec_driver_sql(sql, tuple(params)))


class InlineGuest(_Guest):
    """A sqlite3 connection in async code: it has no network to wait for."""

    async def execute(self, statement: Statement) -> Result:
        return CursorGuest.execute(self, statement)  # type: ignore[arg-type]


def plain_cursor(connection: Any) -> Any:
    """A cursor whose rows are tuples, whatever rows the caller likes to have."""
    package, _ = origin(connection)
    module = sys.modules.get(PLAIN_CURSORS.get(package, ""))
    if package == "psycopg":
        names = {base.__name__ for base in type(connection).__mro__}
        kind = "AsyncCursor" if "AsyncConnection" in names else "Cursor"
        return getattr(module, kind)(connection, row_factory=module.rows.tuple_row)  # type: ignore[union-attr]
    if module is not None:
        return connection.cursor(module.Cursor)
    cursor = connection.cursor()
    if package in ("sqlite3", "aiosqlite") and not inspect.isawaitable(cursor):
        cursor.row_factory = None
    return cursor


PLAIN_CURSORS = {
    "psycopg": "psycopg",
    "pymysql": "pymysql.cursors",
    "MySQLdb": "MySQLdb.cursors",
    "asyncmy": "asyncmy.cursors",
    "aiomysql": "aiomysql.cursors",
}


def guest_of(connection: Any, database: str) -> Guest:
    """The guest on a caller's connection, for a sync client of a database."""
    package, names = origin(connection)
    if package == "sqlalchemy":
        return sync_alchemy(connection, names, database)
    if package == "django":
        return django(connection, database)
    known = SYNC.get((database, package))
    if known is None or "AsyncConnection" in names:
        raise unsupported(connection, database, "sync")
    style, has_transaction = known
    if not has_transaction(connection):
        raise no_transaction(connection)
    return CursorGuest(connection, database, style)


async def async_guest_of(connection: Any, database: str) -> AsyncGuest:
    """The guest on a caller's connection, for an async client of a database."""
    package, names = origin(connection)
    if package == "sqlalchemy":
        return await async_alchemy(connection, names, database)
    if package == "sqlite3" and database == "sqlite":
        if not sqlite_has_transaction(connection):
            raise no_transaction(connection)
        return InlineGuest(connection, database, "?")
    known = ASYNC.get((database, package))
    if known is None or (package == "psycopg" and "AsyncConnection" not in names):
        raise unsupported(connection, database, "async")
    guest, style, has_transaction = known
    found = has_transaction(connection)
    if inspect.isawaitable(found):
        found = await found
    if not found:
        raise no_transaction(connection)
    session: AsyncGuest = guest(connection, database, style)
    return session


def origin(connection: Any) -> tuple[str, set[str]]:
    """The package that a connection's class, or a base of it, comes from; and its classes."""
    if type(connection).__module__.startswith("django") or hasattr(connection, "in_atomic_block"):
        return "django", set()
    known = {package for _, package in (*SYNC, *ASYNC)} | {"sqlalchemy"}
    names = {base.__name__ for base in type(connection).__mro__}
    for base in type(connection).__mro__:
        package = base.__module__.split(".")[0]
        if package in known:
            return package, names
    return "", names


# --- does it have a transaction? ---------------------------------------------------------------


def psycopg_has_transaction(connection: Any) -> bool:
    """Without autocommit, psycopg begins one at the first statement."""
    return not connection.autocommit or int(connection.info.transaction_status) != 0


def asyncpg_has_transaction(connection: Any) -> bool:
    return bool(connection.is_in_transaction())


def pymysql_has_transaction(connection: Any) -> bool:
    """Without autocommit, the server begins one at the first statement."""
    return not connection.get_autocommit() or bool(connection.server_status & IN_TRANSACTION)


def mysqldb_has_transaction(connection: Any) -> bool:
    """In autocommit mode this driver does not tell; MariaDB does when asked."""
    if not connection.get_autocommit():
        return True
    cursor = connection.cursor()
    try:
        cursor.execute("SELECT @@in_transaction")
        return bool(cursor.fetchone()[0])
    except Exception:  # noqa: BLE001 - MySQL has no such variable: trust the caller
        return True
    finally:
        cursor.close()


def connector_has_transaction(connection: Any) -> bool:
    return not connection.autocommit or bool(connection.in_transaction)


def asyncmy_has_transaction(connection: Any) -> bool:
    return not connection.get_autocommit() or bool(connection.get_transaction_status())


def sqlite_has_transaction(connection: sqlite3.Connection) -> bool:
    """sqlite3 begins one by itself only before a write, and then without the write lock; so it is
    begun here, as the connection would have, unless it is in autocommit mode.
    """
    if connection.in_transaction:
        return True
    if connection.isolation_level is None:
        return False
    connection.execute("BEGIN IMMEDIATE")
    return True


async def aiosqlite_has_transaction(connection: Any) -> bool:
    if connection.in_transaction:
        return True
    if connection.isolation_level is None:
        return False
    await connection.execute("BEGIN IMMEDIATE")
    return True


SYNC: dict[tuple[str, str], tuple[Style, Callable[[Any], bool]]] = {
    ("postgres", "psycopg"): ("%s", psycopg_has_transaction),
    ("postgres", "psycopg2"): ("%s", psycopg_has_transaction),
    ("mysql", "pymysql"): ("%s", pymysql_has_transaction),
    ("mysql", "MySQLdb"): ("%s", mysqldb_has_transaction),
    ("mysql", "mysql"): ("%s", connector_has_transaction),
    ("sqlite", "sqlite3"): ("?", sqlite_has_transaction),
}

ASYNC: dict[tuple[str, str], tuple[type[Any], Style, Callable[[Any], Any]]] = {
    ("postgres", "asyncpg"): (AsyncpgGuest, "$1", asyncpg_has_transaction),
    ("postgres", "psycopg"): (AsyncCursorGuest, "%s", psycopg_has_transaction),
    ("mysql", "asyncmy"): (AsyncCursorGuest, "%s", asyncmy_has_transaction),
    ("mysql", "aiomysql"): (AsyncCursorGuest, "%s", asyncmy_has_transaction),
    ("sqlite", "aiosqlite"): (AsyncCursorGuest, "?", aiosqlite_has_transaction),
}


# --- SQLAlchemy and Django ---------------------------------------------------------------------

ALCHEMY_STYLES: dict[str, Style] = {
    "numeric_dollar": "$1",
    "format": "%s",
    "pyformat": "%s",
    "qmark": "?",
}

ALCHEMY_NAMES = {"postgresql": "postgres", "mysql": "mysql", "mariadb": "mysql", "sqlite": "sqlite"}


def sync_alchemy(connection: Any, names: set[str], database: str) -> Guest:
    if names & {"AsyncConnection", "AsyncSession", "async_scoped_session"}:
        raise unsupported(connection, database, "sync")
    if names & {"Session", "scoped_session"}:
        connection = connection.connection()
    style = alchemy_style(connection, database)
    if database == "sqlite":
        raw = connection.connection.driver_connection
        for sql in begin_on_sqlite(raw):
            connection.exec_driver_sql(sql)
    elif alchemy_autocommits(connection):
        raise no_transaction(connection)
    return AlchemyGuest(connection, database, style)


async def async_alchemy(connection: Any, names: set[str], database: str) -> AsyncGuest:
    if names & {"AsyncSession", "async_scoped_session"}:
        connection = await connection.connection()
    elif "AsyncConnection" not in names:
        raise unsupported(connection, database, "async")
    style = alchemy_style(connection, database)
    if database == "sqlite":
        raw = (await connection.get_raw_connection()).driver_connection
        for sql in begin_on_sqlite(raw):
            await connection.exec_driver_sql(sql)
    elif alchemy_autocommits(connection.sync_connection):
        raise no_transaction(connection)
    return AsyncAlchemyGuest(connection, database, style)


def begin_on_sqlite(raw: Any) -> Iterator[str]:
    """What to run through SQLAlchemy so that a transaction with the write lock is open.

    SQLAlchemy begins its own at the first statement, whichever it is. sqlite3 then only begins
    before a write; an engine in autocommit mode does so by an event of the user's, or never.
    """
    if not raw.in_transaction:
        yield "SELECT 1"
    if not raw.in_transaction:
        if raw.isolation_level is None:
            raise no_transaction(raw)
        yield "BEGIN IMMEDIATE"


def alchemy_autocommits(connection: Any) -> bool:
    if connection.get_execution_options().get("isolation_level") == "AUTOCOMMIT":
        return True
    detect = getattr(connection.dialect, "detect_autocommit_setting", None)
    try:
        return detect is not None and bool(detect(connection.connection.dbapi_connection))
    except NotImplementedError:
        return False


def alchemy_style(connection: Any, database: str) -> Style:
    dialect = getattr(connection, "dialect", None)
    if dialect is None or ALCHEMY_NAMES.get(dialect.name) != database:
        raise unsupported(connection, database, "sync")
    return ALCHEMY_STYLES[dialect.paramstyle]


def alchemy_result(result: Any) -> Result:
    rows = [tuple(row) for row in result] if result.returns_rows else []
    return Result(rows, result.rowcount)


def django(connection: Any, database: str) -> Guest:
    if ALCHEMY_NAMES.get(connection.vendor) != database:
        raise unsupported(connection, database, "sync")
    if connection.get_autocommit() and not connection.in_atomic_block:
        raise NoTransaction(
            "Django's connection has no transaction open: publish inside `with "
            "transaction.atomic():`"
        )
    return CursorGuest(connection, database, "%s")


# --- refusals ----------------------------------------------------------------------------------


def unsupported(connection: Any, database: str, kind: str) -> UnsupportedConnection:
    wanted = {
        ("postgres", "sync"): "psycopg, psycopg2, SQLAlchemy or Django connection",
        ("postgres", "async"): "asyncpg, psycopg AsyncConnection or SQLAlchemy async connection",
        ("mysql", "sync"): "PyMySQL, mysqlclient, mysql-connector, SQLAlchemy or Django connection",
        ("mysql", "async"): "asyncmy, aiomysql or SQLAlchemy async connection",
        ("sqlite", "sync"): "sqlite3, SQLAlchemy or Django connection",
        ("sqlite", "async"): "sqlite3, aiosqlite or SQLAlchemy async connection",
    }.get((database, kind), f"connection to {database}")
    return UnsupportedConnection(
        f"a {type(connection).__module__}.{type(connection).__qualname__} cannot be used here: "
        f"this client needs a {wanted} to the same database"
    )


def no_transaction(connection: Any) -> NoTransaction:
    return NoTransaction(
        f"the {type(connection).__module__} connection is in autocommit mode and has no "
        f"transaction open, so the publish would not be undone with your own writes; begin one "
        f"first, or leave connection= out"
    )
