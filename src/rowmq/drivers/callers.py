"""The caller's own open transaction, in whatever object it comes.

`connection=` takes raw driver connections, SQLAlchemy's connections and sessions, and Django's
connection. Each is wrapped as a guest that executes statements and nothing else: RowMQ neither
begins, commits, rolls back nor closes what is not its own. An object without an open transaction is
refused, because its writes would each commit by themselves.

Objects are recognised by the names of their classes, so that no driver has to be installed. The
tables SYNC and ASYNC, at the end, hold all that is known of each one.
"""

import contextlib
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

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

VENDORS = {"postgresql": "postgres", "mysql": "mysql", "mariadb": "mysql", "sqlite": "sqlite"}
"""What SQLAlchemy and Django call our databases."""


def guest_of(connection: Any, database: str) -> Guest:
    """The guest on a caller's connection, for a sync client of a database."""
    known = recognised(connection, SYNC)
    if known is None:
        raise unsupported(connection, SYNC_WANTED[database])
    with told_as_ours(database):
        guest = known(connection)
        if guest.database != database:
            raise unsupported(connection, SYNC_WANTED[database])
        if not guest.has_transaction():
            raise no_transaction(connection)
    return guest  # type: ignore[no-any-return]


async def async_guest_of(connection: Any, database: str) -> AsyncGuest:
    """The guest on a caller's connection, for an async client of a database."""
    known = recognised(connection, ASYNC)
    if known is None:
        raise unsupported(connection, ASYNC_WANTED[database])
    with told_as_ours(database):
        guest = await settled(known(connection))
        if guest.database != database:
            raise unsupported(connection, ASYNC_WANTED[database])
        if not await settled(guest.has_transaction()):
            raise no_transaction(connection)
    return guest  # type: ignore[no-any-return]


def recognised(connection: Any, known: dict[str, Any]) -> Any:
    """What is known of the class of a connection, or of the nearest of its bases."""
    # Not type(): a proxy, as tracing tools wrap around a connection, tells the class behind it.
    for base in inspect.getmro(connection.__class__):
        found = known.get(f"{base.__module__}.{base.__qualname__}")
        if found is not None:
            return found
    return None


@contextlib.contextmanager
def told_as_ours(database: str) -> Iterator[None]:
    """Asking for a transaction may already meet a lock, or a lost connection."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - told as what it means
        raise TRANSLATE[database](error)  # noqa: B904 - which brings its cause with it


async def settled(value: Any) -> Any:
    """A value that some drivers give at once and others let wait for."""
    return await value if inspect.isawaitable(value) else value


# --- guests ------------------------------------------------------------------------------------


class Driver(NamedTuple):
    """What there is to know of a DB-API driver, sync or async."""

    database: str
    has_transaction: Callable[[Any], Any]
    cursor: Callable[[Any], Any]
    """Makes a cursor whose rows are tuples, whatever rows the caller likes to have."""


class _Guest:
    """What all guests share: a statement as the caller's driver wants it."""

    def __init__(self, connection: Any, database: str, style: Style | None = None) -> None:
        self.connection = connection
        self.database = database
        self.style: Style = style or ("?" if database == "sqlite" else "%s")

    @property
    def translate(self) -> Translate:
        return TRANSLATE[self.database]

    @property
    def savepoints(self) -> bool:
        return self.database != "postgres"  # where an error ends the whole transaction

    def prepared(self, statement: Statement) -> tuple[str, Sequence[Any]]:
        sql, params = statement.sql, statement.params
        if self.database == "mysql":
            sql, params = for_mysql(sql, params)
        return restyle_own(sql, params, self.style)


class _CursorGuest(_Guest):
    """A DB-API connection."""

    def __init__(self, connection: Any, driver: Driver) -> None:
        super().__init__(connection, driver.database)
        self.driver = driver

    def has_transaction(self) -> Any:
        return self.driver.has_transaction(self.connection)


class CursorGuest(_CursorGuest):
    """A connection of a sync driver."""

    def execute(self, statement: Statement) -> Result:
        cursor = self.driver.cursor(self.connection)
        try:
            cursor.execute(*self.prepared(statement))
            rows = cursor.fetchall() if cursor.description is not None else []
            return Result(rows, cursor.rowcount)
        finally:
            cursor.close()


class AsyncCursorGuest(_CursorGuest):
    """A connection of an async driver; or of sqlite3, which has no network to wait for."""

    async def execute(self, statement: Statement) -> Result:
        cursor = await settled(self.driver.cursor(self.connection))
        try:
            await settled(cursor.execute(*self.prepared(statement)))
            rows = await settled(cursor.fetchall()) if cursor.description is not None else []
            return Result(rows, cursor.rowcount)
        finally:
            await settled(cursor.close())


class AsyncpgGuest(_Guest):
    """An asyncpg connection, which has no cursors of this kind."""

    def __init__(self, connection: Any) -> None:
        super().__init__(connection, "postgres", "$1")

    def has_transaction(self) -> bool:
        return bool(self.connection.is_in_transaction())

    async def execute(self, statement: Statement) -> Result:
        sql, params = self.prepared(statement)
        return Result(await self.connection.fetch(sql, *params))


# From MariaDB 11.6 on, a transaction at REPEATABLE READ that has read anything is ended when it
# locks a row that was changed since: a partition's counter, whenever another publisher was there.
# RowMQ wants the row as it is now. Other servers, and older ones, read this as a comment.
AS_IT_IS_NOW = "/*M!110602 SET STATEMENT innodb_snapshot_isolation = OFF FOR */ "


def for_mysql(sql: str, params: Sequence[Any]) -> tuple[str, Sequence[Any]]:
    """A statement whose bytes travel as hexadecimal text, for any MySQL and MariaDB.

    A driver would paste them into the statement, as text in whatever character set the caller's
    connection has: some are then refused, and the names among them come back as other text.
    """
    head, *rest = sql.split("%s")
    marks = ["UNHEX(%s)" if isinstance(value, bytes) else "%s" for value in params]
    text = head + "".join(mark + part for mark, part in zip(marks, rest, strict=True))
    values = [value.hex() if isinstance(value, bytes) else value for value in params]
    return AS_IT_IS_NOW + text, values


# --- drivers: does it have a transaction, and a plain cursor -------------------------------------


def psycopg_has_transaction(connection: Any) -> bool:
    """Without autocommit, both psycopgs begin one at the first statement."""
    return not connection.autocommit or int(connection.info.transaction_status) != 0


def psycopg_cursor(connection: Any) -> Any:
    psycopg = sys.modules["psycopg"]
    kind = psycopg.AsyncCursor if hasattr(connection, "__aenter__") else psycopg.Cursor
    return kind(connection, row_factory=psycopg.rows.tuple_row)


def psycopg2_cursor(connection: Any) -> Any:
    return connection.cursor(cursor_factory=sys.modules["psycopg2.extensions"].cursor)


def pymysql_has_transaction(connection: Any) -> bool:
    """Without autocommit, the server begins one at the first statement. In it, the server's
    status tells, in a bit.
    """
    return not connection.get_autocommit() or bool(connection.server_status & 1)


def asyncmy_has_transaction(connection: Any) -> bool:
    return not connection.get_autocommit() or connection.get_transaction_status()


def mysqldb_has_transaction(connection: Any) -> bool:
    """In autocommit mode the driver does not tell, so it is refused, transaction or not."""
    return not connection.get_autocommit()


def mysql_cursor(package: str) -> Callable[[Any], Any]:
    """PyMySQL's way of making a plain cursor, which others took over."""
    return lambda connection: connection.cursor(sys.modules[f"{package}.cursors"].Cursor)


def connector_has_transaction(connection: Any) -> bool:
    return connection.in_transaction or not connection.autocommit


async def async_connector_has_transaction(connection: Any) -> bool:
    return connection.in_transaction or not await connection.get_autocommit()


def connector_cursor(connection: Any) -> Any:
    return connection.cursor(buffered=True)


def sqlite_has_transaction(connection: Any) -> bool:
    """sqlite3 begins one by itself only before a write, and then without the write lock; so it is
    begun here, as the connection would have, unless it is in autocommit mode.
    """
    if not connection.in_transaction and sqlite_begins(connection):
        connection.execute("BEGIN IMMEDIATE")
    return bool(connection.in_transaction)


async def aiosqlite_has_transaction(connection: Any) -> bool:
    if not connection.in_transaction and sqlite_begins(connection):
        await connection.execute("BEGIN IMMEDIATE")
    return bool(connection.in_transaction)


def sqlite_begins(connection: Any) -> bool:
    """Whether the connection would begin before a write, and end with its `commit()`."""
    # The attribute came with Python 3.12. It is True, False, or a number that means neither.
    autocommits = getattr(connection, "autocommit", None) is True
    return connection.isolation_level is not None and not autocommits


def sqlite_cursor(connection: Any) -> Any:
    cursor = connection.cursor()
    cursor.row_factory = None
    return cursor


async def aiosqlite_cursor(connection: Any) -> Any:
    cursor = await connection.cursor()
    cursor.row_factory = None
    return cursor


# --- Django ------------------------------------------------------------------------------------


class DjangoGuest(CursorGuest):
    """Django's connection, through its own cursors: those take %s on every database."""

    def __init__(self, connection: Any) -> None:
        database = VENDORS.get(connection.vendor, "")
        super().__init__(connection, Driver(database, django_has_transaction, django_cursor))
        self.style = "%s"


def django_has_transaction(connection: Any) -> bool:
    return connection.in_atomic_block or not connection.get_autocommit()


def django_cursor(connection: Any) -> Any:
    return connection.cursor()


# --- SQLAlchemy --------------------------------------------------------------------------------


ALCHEMY_STYLES: dict[str, Style] = {"numeric_dollar": "$1", "qmark": "?"}
"""Where it is not the database's usual one."""


class AlchemyGuest(_Guest):
    """SQLAlchemy's Connection: through it, so that it begins and logs as for its own SQL."""

    def __init__(self, connection: Any) -> None:
        dialect = connection.dialect
        style = ALCHEMY_STYLES.get(dialect.paramstyle)
        super().__init__(connection, VENDORS.get(dialect.name, dialect.name), style)

    def has_transaction(self) -> bool:
        if self.database == "sqlite":
            return self.begun_on_sqlite()
        detect = getattr(self.connection.dialect, "detect_autocommit_setting", None)
        if detect is None:
            raise UnsupportedConnection("connection= needs SQLAlchemy 2.0.43 or newer")
        return not detect(self.connection.connection.dbapi_connection)

    def begun_on_sqlite(self) -> bool:
        """See `sqlite_has_transaction`; here everything is run by SQLAlchemy, which begins a
        transaction of its own at the first statement, and may have been told how.
        """
        raw = self.connection.connection.driver_connection
        if not raw.in_transaction:
            self.connection.exec_driver_sql("SELECT 1").close()
        if not raw.in_transaction and sqlite_begins(raw):
            self.connection.exec_driver_sql("BEGIN IMMEDIATE")
        return bool(raw.in_transaction)

    def execute(self, statement: Statement) -> Result:
        sql, params = self.prepared(statement)
        result = self.connection.exec_driver_sql(sql, tuple(params))
        rows = [tuple(row) for row in result] if result.returns_rows else []
        return Result(rows, result.rowcount)


class AsyncAlchemyGuest:
    """SQLAlchemy's AsyncConnection, which lends its sync one."""

    def __init__(self, connection: Any) -> None:
        if connection.sync_connection is None:
            raise UnsupportedConnection(
                "this AsyncConnection is not started; `async with engine.connect() as connection:`"
            )
        self.connection = connection
        self.guest = AlchemyGuest(connection.sync_connection)
        self.database = self.guest.database

    @property
    def translate(self) -> Translate:
        return self.guest.translate

    @property
    def savepoints(self) -> bool:
        return self.guest.savepoints

    async def has_transaction(self) -> Any:
        return await self.connection.run_sync(lambda _: self.guest.has_transaction())

    async def execute(self, statement: Statement) -> Any:
        return await self.connection.run_sync(lambda _: self.guest.execute(statement))


def alchemy_session(session: Any) -> AlchemyGuest:
    return AlchemyGuest(session.connection())


async def async_alchemy_session(session: Any) -> AsyncAlchemyGuest:
    return AsyncAlchemyGuest(await session.connection())


# --- what is known -----------------------------------------------------------------------------

PSYCOPG = Driver("postgres", psycopg_has_transaction, psycopg_cursor)
PSYCOPG2 = Driver("postgres", psycopg_has_transaction, psycopg2_cursor)
PYMYSQL = Driver("mysql", pymysql_has_transaction, mysql_cursor("pymysql"))
MYSQLDB = Driver("mysql", mysqldb_has_transaction, mysql_cursor("MySQLdb"))
ASYNCMY = Driver("mysql", asyncmy_has_transaction, mysql_cursor("asyncmy"))
AIOMYSQL = Driver("mysql", asyncmy_has_transaction, mysql_cursor("aiomysql"))
CONNECTOR = Driver("mysql", connector_has_transaction, connector_cursor)
ASYNC_CONNECTOR = Driver("mysql", async_connector_has_transaction, connector_cursor)
SQLITE3 = Driver("sqlite", sqlite_has_transaction, sqlite_cursor)
AIOSQLITE = Driver("sqlite", aiosqlite_has_transaction, aiosqlite_cursor)

SYNC: dict[str, Callable[[Any], Any]] = {
    "psycopg.Connection": partial(CursorGuest, driver=PSYCOPG),
    "psycopg2.extensions.connection": partial(CursorGuest, driver=PSYCOPG2),
    "pymysql.connections.Connection": partial(CursorGuest, driver=PYMYSQL),
    "MySQLdb.connections.Connection": partial(CursorGuest, driver=MYSQLDB),
    "mysql.connector.abstracts.MySQLConnectionAbstract": partial(CursorGuest, driver=CONNECTOR),
    "mysql.connector.pooling.PooledMySQLConnection": partial(CursorGuest, driver=CONNECTOR),
    "sqlite3.Connection": partial(CursorGuest, driver=SQLITE3),
    "sqlalchemy.engine.base.Connection": AlchemyGuest,
    "sqlalchemy.orm.session.Session": alchemy_session,
    "sqlalchemy.orm.scoping.scoped_session": alchemy_session,
    "django.db.backends.base.base.BaseDatabaseWrapper": DjangoGuest,
    "django.utils.connection.ConnectionProxy": DjangoGuest,
}

ASYNC: dict[str, Callable[[Any], Any]] = {
    "asyncpg.connection.Connection": AsyncpgGuest,
    "asyncpg.pool.PoolConnectionProxy": AsyncpgGuest,
    "psycopg.AsyncConnection": partial(AsyncCursorGuest, driver=PSYCOPG),
    "asyncmy.connection.Connection": partial(AsyncCursorGuest, driver=ASYNCMY),
    "aiomysql.connection.Connection": partial(AsyncCursorGuest, driver=AIOMYSQL),
    "mysql.connector.aio.abstracts.MySQLConnectionAbstract": partial(
        AsyncCursorGuest, driver=ASYNC_CONNECTOR
    ),
    "sqlite3.Connection": partial(AsyncCursorGuest, driver=SQLITE3),
    "aiosqlite.core.Connection": partial(AsyncCursorGuest, driver=AIOSQLITE),
    "sqlalchemy.ext.asyncio.engine.AsyncConnection": AsyncAlchemyGuest,
    "sqlalchemy.ext.asyncio.session.AsyncSession": async_alchemy_session,
    "sqlalchemy.ext.asyncio.scoping.async_scoped_session": async_alchemy_session,
}

SYNC_WANTED = {
    "postgres": "PostgreSQL: of psycopg, psycopg2, SQLAlchemy or Django",
    "mysql": "MySQL or MariaDB: of PyMySQL, mysqlclient, mysql-connector, SQLAlchemy or Django",
    "sqlite": "SQLite: of sqlite3, SQLAlchemy or Django",
}

ASYNC_WANTED = {
    "postgres": "PostgreSQL: of asyncpg, psycopg (AsyncConnection) or SQLAlchemy (async)",
    "mysql": "MySQL or MariaDB: of asyncmy, aiomysql, mysql-connector (aio) or SQLAlchemy (async)",
    "sqlite": "SQLite: of sqlite3, aiosqlite or SQLAlchemy (async)",
}


def unsupported(connection: Any, wanted: str) -> UnsupportedConnection:
    return UnsupportedConnection(
        f"connection= cannot be a {full_name(connection)}; this client takes a connection, or a "
        f"SQLAlchemy session, to its own database, {wanted}"
    )


def no_transaction(connection: Any) -> NoTransaction:
    return NoTransaction(
        f"this {full_name(connection)} is in autocommit mode and has no transaction open, so what "
        f"RowMQ writes would not be undone with your own writes; begin a transaction first (in "
        f"Django: `with transaction.atomic():`), or leave connection= out"
    )


def full_name(connection: Any) -> str:
    return f"{type(connection).__module__}.{type(connection).__qualname__}"
