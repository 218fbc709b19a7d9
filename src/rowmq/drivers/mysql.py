"""MySQL and MariaDB: PyMySQL for sync code, asyncmy for async code.

Both build a statement with its values on the client, so its size is known before it is sent: one
that the server would refuse raises here, where a server would just hang up. Connections work at
READ COMMITTED, in strict mode, and report matched rows.
"""

import asyncio
import contextlib
import ssl
from collections.abc import Mapping
from functools import partial
from typing import Any

from rowmq.drivers.base import AsyncDriver, Limits, SyncDriver
from rowmq.drivers.faults import mysql_fault
from rowmq.drivers.network import expect_signs, socket_of
from rowmq.drivers.placeholders import restyle
from rowmq.drivers.pool import AsyncPool, Pool
from rowmq.errors import ConnectionLost, DatabaseUnreachable, StatementTooLarge
from rowmq.store.statement import Result, Statement

__all__ = ["AsyncmySession", "PyMySQLSession", "async_driver", "sync_driver"]

FOUND_ROWS = 2
ISOLATION = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"
SETTINGS = (
    "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ZERO_IN_DATE,NO_ZERO_DATE,"
    "ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION', "
    "SESSION sql_safe_updates = 0, SESSION sql_select_limit = 18446744073709551615, "
    "SESSION innodb_lock_wait_timeout = %s"
)
PACKET = "SELECT @@max_allowed_packet"
PACKET_ROOM_BYTES = 32 * 1024
"""What a statement leaves free: a message that fits must also fit as a dead letter."""


class PyMySQLSession:
    """A PyMySQL connection."""

    translate = staticmethod(mysql_fault)
    savepoints = False

    def __init__(self, connection: Any, packet_bytes_max: int) -> None:
        self.connection = connection
        self.cursor = connection.cursor()
        self.packet_bytes_max = packet_bytes_max

    def begin(self) -> None:
        self.cursor.execute("BEGIN")

    def commit(self) -> None:
        self.cursor.execute("COMMIT")

    def rollback(self) -> None:
        self.cursor.execute("ROLLBACK")

    def in_transaction(self) -> bool:
        return bool(self.connection.server_status & 1)

    def execute(self, statement: Statement) -> Result:
        return self._run(statement.sql, statement.params or None)

    def query(self, sql: str, params: Any) -> Result:
        return self._run(*restyle(sql, params, "%s"))

    def _run(self, sql: str, params: Any) -> Result:
        text = self.cursor.mogrify(sql, params)
        refuse_oversized(text, self.packet_bytes_max)
        changed = self.cursor.execute(text)
        return Result(list(self.cursor.fetchall()), changed)

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self.connection.close()


class AsyncmySession:
    """An asyncmy connection."""

    translate = staticmethod(mysql_fault)
    savepoints = False

    def __init__(self, connection: Any, packet_bytes_max: int) -> None:
        self.connection = connection
        self.cursor = connection.cursor()
        self.packet_bytes_max = packet_bytes_max

    async def begin(self) -> None:
        await self.cursor.execute("BEGIN")

    async def commit(self) -> None:
        await self.cursor.execute("COMMIT")

    async def rollback(self) -> None:
        await self.cursor.execute("ROLLBACK")

    def in_transaction(self) -> bool:
        return bool(self.connection.get_transaction_status())

    async def execute(self, statement: Statement) -> Result:
        return await self._run(statement.sql, statement.params or None)

    async def query(self, sql: str, params: Any) -> Result:
        return await self._run(*restyle(sql, params, "%s"))

    async def _run(self, sql: str, params: Any) -> Result:
        text = self.cursor.mogrify(sql, params)
        refuse_oversized(text, self.packet_bytes_max)
        changed = await self.cursor.execute(text)
        return Result(list(await self.cursor.fetchall()), changed)

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self.connection.close()


def sync_driver(options: Mapping[str, Any], limits: Limits) -> SyncDriver:
    """A sync driver for the server that the options name."""
    pool = Pool[PyMySQLSession](
        partial(open_pymysql, options, limits), size=limits.pool_size, timeout=limits.pool_timeout
    )
    return SyncDriver(pool, retry_for=limits.retry_for)


def open_pymysql(options: Mapping[str, Any], limits: Limits) -> PyMySQLSession:
    import pymysql  # noqa: PLC0415 - the extra may not be installed

    try:
        # PyMySQL's own limit ends with the TCP handshake: the server must also answer in time.
        connection = pymysql.connect(
            **arguments(options, limits),
            read_timeout=max(1, round(limits.connect_timeout)),
            # Told nothing, PyMySQL tries TLS; asyncmy does not.
            ssl_disabled=options.get("ssl") in ("false", "0"),
        )
        connection._read_timeout = None  # type: ignore[attr-defined]  # noqa: SLF001 - queries may
        expect_signs(getattr(connection, "_sock", None))
        with connection.cursor() as cursor:
            cursor.execute(SETTINGS, (max(1, round(limits.lock_timeout)),))
            cursor.execute(PACKET)
            (packet_bytes_max,) = cursor.fetchone()
    except (pymysql.Error, OSError, UnicodeError) as error:
        raise refused(error) from error
    return PyMySQLSession(connection, int(packet_bytes_max))


def async_driver(options: Mapping[str, Any], limits: Limits) -> AsyncDriver:
    """An async driver for the server that the options name."""
    pool = AsyncPool[AsyncmySession](
        partial(open_asyncmy, options, limits), size=limits.pool_size, timeout=limits.pool_timeout
    )
    return AsyncDriver(pool, retry_for=limits.retry_for)


async def open_asyncmy(options: Mapping[str, Any], limits: Limits) -> AsyncmySession:
    import asyncmy  # noqa: PLC0415 - the extra may not be installed
    from asyncmy.errors import MySQLError  # noqa: PLC0415

    cancelled = times_cancelled()
    try:
        async with asyncio.timeout(limits.connect_timeout):  # asyncmy's own limits TCP only
            connection = await asyncmy.connect(**arguments(options, limits))
        refuse_if_cancelled(connection, cancelled)
        expect_signs(socket_of(connection))
        async with connection.cursor() as cursor:
            await cursor.execute(SETTINGS, (max(1, round(limits.lock_timeout)),))
            await cursor.execute(PACKET)
            (packet_bytes_max,) = await cursor.fetchone()
    except (TimeoutError, MySQLError, OSError, UnicodeError) as error:
        raise refused(error) from error
    return AsyncmySession(connection, int(packet_bytes_max))


def times_cancelled() -> int:
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


def refuse_if_cancelled(connection: Any, before: int) -> None:
    """Raise the cancellation that `asyncio.wait_for` in Python 3.11 loses in asyncmy's connect,
    when it comes in the moment in which the connection is made.
    """
    if times_cancelled() > before:
        connection.close()
        raise asyncio.CancelledError


def arguments(options: Mapping[str, Any], limits: Limits) -> dict[str, Any]:
    """The arguments that both drivers connect with."""
    plain = {name: value for name, value in options.items() if not name.startswith("ssl")}
    plain |= {
        # Of text, both drivers would take what Latin-1 has; servers keep passwords in UTF-8.
        "password": options["password"].encode(),
        "charset": "utf8mb4",
        "autocommit": True,
        "binary_prefix": True,
        "client_flag": FOUND_ROWS,
        "init_command": ISOLATION,
        "connect_timeout": max(1, round(limits.connect_timeout)),
    }
    if "ssl_ca" in options:
        plain["ssl"] = ssl.create_default_context(cafile=options["ssl_ca"])
    elif options.get("ssl") in ("true", "1"):
        plain["ssl"] = unverified()
    return plain


def unverified() -> ssl.SSLContext:
    """Encrypted, but without a CA to check the server against; `ssl_ca` gives one."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def refuse_oversized(text: str, packet_bytes_max: int) -> None:
    # A character may take four bytes; only a text that could be too long is measured exactly.
    if len(text) * 4 + PACKET_ROOM_BYTES <= packet_bytes_max:
        return
    size = len(text.encode("utf-8", "surrogateescape")) + PACKET_ROOM_BYTES
    if size > packet_bytes_max:
        raise StatementTooLarge(
            f"this statement takes {size:,} bytes and the server accepts {packet_bytes_max:,}; "
            f"raise max_allowed_packet on the server, or send smaller payloads"
        )


def refused(error: Exception) -> Exception:
    """Why no connection came about. Without an error of the server's, nobody answered."""
    meaning = mysql_fault(error)
    if meaning is not error and type(meaning) is not ConnectionLost:
        return meaning
    return DatabaseUnreachable(
        f"no connection to MySQL or MariaDB ({str(error) or type(error).__name__}); is it "
        f"running, and are host and port right?"
    )
