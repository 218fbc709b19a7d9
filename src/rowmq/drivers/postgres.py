"""PostgreSQL: psycopg for sync code, asyncpg for async code.

Both speak the same SQL with `$1` placeholders. Connections stay in autocommit mode and hold no
session state, so they may be shared behind PgBouncer in transaction mode. There, turn prepared
statements off: asyncpg then parses and runs a statement in two exchanges, which only a transaction
keeps on one server, so even a statement that is one by itself gets BEGIN and COMMIT.
"""

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from rowmq.drivers.base import AsyncDriver, Limits, SyncDriver
from rowmq.drivers.faults import postgres_fault
from rowmq.drivers.placeholders import restyle
from rowmq.drivers.pool import AsyncPool, Pool
from rowmq.errors import AuthenticationFailed, ConnectionLost, DatabaseUnreachable
from rowmq.store.statement import Result, Statement

if TYPE_CHECKING:
    import psycopg

__all__ = ["AsyncpgSession", "PsycopgSession", "async_driver", "sync_driver"]

# What a URL may say to both drivers.
SHARED_OPTIONS = {"host", "port", "user", "password", "dbname", "passfile", "service"} | {
    "sslmode", "sslcert", "sslkey", "sslrootcert", "sslcrl", "sslpassword",
    "ssl_min_protocol_version", "ssl_max_protocol_version",
    "target_session_attrs", "krbsrvname", "gsslib", "application_name", "options",
}  # fmt: skip

# What only libpq understands: asyncpg would take these for settings of the server.
LIBPQ_OPTIONS = {"channel_binding", "client_encoding", "connect_timeout", "gssencmode"} | {
    "fallback_application_name", "keepalives", "keepalives_count", "keepalives_idle",
    "keepalives_interval", "load_balance_hosts", "requirepeer", "sslnegotiation",
    "tcp_user_timeout",
}  # fmt: skip


def for_asyncpg(url: str) -> str:
    """A URL without what asyncpg does not know."""
    parts = urlsplit(url)
    options = parse_qsl(parts.query, keep_blank_values=True)
    kept = [(name, value) for name, value in options if name not in LIBPQ_OPTIONS]
    return urlunsplit(parts._replace(query=urlencode(kept)))


def begin_sql(limits: Limits) -> str:
    """In one exchange. READ COMMITTED, whatever the server's default: a lock that was waited for
    must be followed by a look at what its owner committed.
    """
    millis = round(limits.lock_timeout * 1000)
    return f"BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = {millis}"


class PsycopgSession:
    """A psycopg connection."""

    translate = staticmethod(postgres_fault)
    savepoints = False

    def __init__(self, connection: "psycopg.Connection[Any]", limits: Limits) -> None:
        from psycopg import RawCursor  # noqa: PLC0415 - the extra may not be installed
        from psycopg.types.array import ListBinaryDumper  # noqa: PLC0415

        self.connection = connection
        self.begin_sql = begin_sql(limits)
        self.users_cursor: RawCursor[Any] = RawCursor(connection)
        self.cursor: RawCursor[Any] = RawCursor(connection)
        # Arrays go over faster in binary. Our own SQL says its types; a
        # user's may leave them to be guessed, which needs text.
        self.cursor.adapters.register_dumper(list, ListBinaryDumper)

    def begin(self) -> None:
        self.cursor.execute(self.begin_sql)

    def commit(self) -> None:
        self.cursor.execute("COMMIT")

    def rollback(self) -> None:
        self.cursor.execute("ROLLBACK")

    def in_transaction(self) -> bool:
        return int(self.connection.info.transaction_status) != 0

    def execute(self, statement: Statement) -> Result:
        return self._run(self.cursor, statement.sql, statement.params)

    def query(self, sql: str, params: Any) -> Result:
        return self._run(self.users_cursor, *restyle(sql, params, "$1"))

    def _run(self, cursor: "psycopg.RawCursor[Any]", sql: str, params: Any) -> Result:
        cursor.execute(sql, params or None, binary=True)
        rows = cursor.fetchall() if cursor.description is not None else []
        return Result(rows, cursor.rowcount)

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self.connection.close()


def sync_driver(url: str, limits: Limits) -> SyncDriver:
    """A sync driver for the server at a URL."""
    pool = Pool[PsycopgSession](
        partial(open_psycopg, url, limits), size=limits.pool_size, timeout=limits.pool_timeout
    )
    return SyncDriver(pool, retry_for=limits.retry_for)


def open_psycopg(url: str, limits: Limits) -> PsycopgSession:
    import psycopg  # noqa: PLC0415 - the extra may not be installed

    try:
        connection = psycopg.connect(
            url,
            autocommit=True,
            prepare_threshold=5 if limits.prepared_statements else None,
            connect_timeout=max(2, round(limits.connect_timeout)),
        )
    except psycopg.Error as error:
        raise refused(error) from error
    return PsycopgSession(connection, limits)


class AsyncpgSession:
    """An asyncpg connection."""

    translate = staticmethod(postgres_fault)
    savepoints = False

    def __init__(self, connection: Any, limits: Limits) -> None:
        self.connection = connection
        self.begin_sql = begin_sql(limits)
        self.prepares = limits.prepared_statements

    async def begin(self) -> None:
        await self.connection.execute(self.begin_sql)

    async def commit(self) -> None:
        await self.connection.execute("COMMIT")

    async def rollback(self) -> None:
        await self.connection.execute("ROLLBACK")

    def in_transaction(self) -> bool:
        return bool(self.connection.is_in_transaction())

    async def execute(self, statement: Statement) -> Result:
        if not self.prepares and not self.in_transaction():
            return await self._pinned(statement)
        # How many rows changed would cost a second exchange; our own SQL returns what it needs.
        return Result(await self.connection.fetch(statement.sql, *statement.params))

    async def _pinned(self, statement: Statement) -> Result:
        """Run a statement by itself, in a transaction that keeps it on one server."""
        await self.begin()
        try:
            rows = await self.connection.fetch(statement.sql, *statement.params)
            await self.commit()
        except Exception:
            await self.rollback()
            raise
        return Result(rows)

    async def query(self, sql: str, params: Any) -> Result:
        text, values = restyle(sql, params, "$1")
        prepared = await self.connection.prepare(text)
        rows = await prepared.fetch(*values)
        status = (prepared.get_statusmsg() or "").split()
        changed = int(status[-1]) if status and status[-1].isdigit() else -1
        return Result([tuple(row) for row in rows], changed)

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self.connection.terminate()


def async_driver(url: str, limits: Limits) -> AsyncDriver:
    """An async driver for the server at a URL."""
    pool = AsyncPool[AsyncpgSession](
        partial(open_asyncpg, url, limits), size=limits.pool_size, timeout=limits.pool_timeout
    )
    return AsyncDriver(pool, retry_for=limits.retry_for)


async def open_asyncpg(url: str, limits: Limits) -> AsyncpgSession:
    import asyncpg  # noqa: PLC0415 - the extra may not be installed

    try:
        connection = await asyncpg.connect(
            for_asyncpg(url),
            timeout=limits.connect_timeout,
            statement_cache_size=200 if limits.prepared_statements else 0,
        )
    except (TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
        raise refused(error) from error
    return AsyncpgSession(connection, limits)


def refused(error: Exception) -> Exception:
    """Why no connection came about. libpq gives no SQLSTATE then, only what the server said."""
    meaning = postgres_fault(error)
    if meaning is not error and type(meaning) is not ConnectionLost:
        return meaning
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    if "password" in reason or "authentication" in reason:
        return AuthenticationFailed(
            f"the server refused the user or password; check the URL ({reason})"
        )
    if "database" in reason and "does not exist" in reason:
        return DatabaseUnreachable(f"the database does not exist; create it ({reason})")
    return DatabaseUnreachable(
        f"no connection to PostgreSQL ({reason}); is it running, and are host and port right?"
    )
