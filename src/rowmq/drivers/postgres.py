"""PostgreSQL: psycopg for sync code, asyncpg for async code.

Both speak the same SQL with `$1` placeholders. Connections stay in autocommit mode and hold no
session state, so they may be shared behind PgBouncer in transaction mode. There, turn prepared
statements off: asyncpg then parses and runs a statement in two exchanges, which only a transaction
keeps on one server, so even a statement that is one by itself gets BEGIN and COMMIT.
"""

import contextlib
import random
import re
import secrets
import selectors
import socket
import time
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from rowmq.drivers.base import AsyncDriver, Limits, SyncDriver
from rowmq.drivers.faults import postgres_fault
from rowmq.drivers.network import PATIENCE, Patience, expect_signs, expect_signs_of, socket_of
from rowmq.drivers.placeholders import restyle
from rowmq.drivers.pool import AsyncPool, Pool
from rowmq.drivers.watching import NOTIFY_SECONDS, Deaf
from rowmq.errors import (
    AuthenticationFailed,
    ConnectionLost,
    DatabaseUnreachable,
    InvalidURL,
    RowMQError,
)
from rowmq.naming import TOPIC_BYTES_MAX
from rowmq.store.statement import Result, Statement

if TYPE_CHECKING:
    import psycopg

__all__ = ["AsyncpgSession", "PostgresWatch", "PsycopgSession", "async_driver", "sync_driver"]

QUIET_SECONDS = 30.0
"""How long a watch may hear nothing before it says something itself."""

PROOF_SECONDS = 5.0
"""How long it may take until it hears that."""

ECHO_SECONDS = 2 * NOTIFY_SECONDS
"""When to wake once more: what was published just after was not told of, and is there by then."""

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


def patience_of(url: str) -> Patience:
    """How long a server may be silent: as the URL says, if it says anything of it."""
    said = {name: value for name, value in parse_qsl(urlsplit(url).query) if name in PATIENCE}
    if not said:
        return PATIENCE
    numbers = {name: int(value) for name, value in said.items() if NUMBER.fullmatch(value)}
    return {"keepalives": 1, **numbers}  # as libpq reads them


NUMBER = re.compile("[0-9]{1,9}")


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

        from rowmq.drivers.postgres_arrays import ColumnDumper  # noqa: PLC0415

        self.connection = connection
        self.begin_sql = begin_sql(limits)
        self.users_cursor: RawCursor[Any] = RawCursor(connection)
        self.cursor: RawCursor[Any] = RawCursor(connection)
        # Arrays go over faster in binary. Our own SQL says its types; a
        # user's may leave them to be guessed, which needs text.
        self.cursor.adapters.register_dumper(list, ColumnDumper)

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
        expect_signs_of(connection.fileno(), patience_of(url))
    except psycopg.ProgrammingError:
        # What libpq says of a URL quotes it, with the password.
        raise InvalidURL("the database URL cannot be read by libpq; see its options") from None
    except (psycopg.Error, UnicodeError) as error:  # which a host's name may be the reason for
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
    except (
        TimeoutError,
        asyncpg.PostgresError,
        asyncpg.InterfaceError,
        OSError,
        UnicodeError,
    ) as error:
        raise refused(error) from error
    expect_signs(socket_of(connection), patience_of(url))
    return AsyncpgSession(connection, limits)


class PostgresWatch:
    """LISTEN, on a connection of its own.

    To prove that it hears it says something that is no topic. At first it does so on another
    connection: a pooler may give this one a server only for as long as a statement takes, and then
    what is said in such a statement is heard, but nothing else is. A watch that was proven so says
    it on its own connection, when all has been quiet; what any other process says will do as well.
    """

    def __init__(self, url: str, channel: str, *, connect_timeout: float) -> None:
        self.url = url
        self.channel = channel
        self.connect_timeout = connect_timeout
        self.quiet = QUIET_SECONDS * random.uniform(0.75, 1.25)  # not in step with others
        self.connection: psycopg.Connection[Any] | None = None
        self._interrupted = False
        self._ear, self._bell = socket.socketpair()
        self._bell.setblocking(False)
        self._heard: set[str] = set()
        self._echoes: dict[str, float] = {}
        self._prove_at = 0.0

    def open(self) -> None:
        try:
            self.connection = self._connect()
        except ImportError as error:
            raise Deaf(f"the driver 'psycopg' cannot be imported ({error})") from error
        self.connection.add_notify_handler(lambda notify: self._note(notify.payload))
        with translated():
            self.connection.execute(f"LISTEN {self.channel}".encode())
            try:
                with contextlib.closing(self._connect()) as other:
                    self._prove(other)
            except Deaf:
                # In a pooler's server it would stay: leave none, if it is that one which answers.
                self.connection.execute("UNLISTEN *")
                raise

    def wait(self, seconds: float) -> set[str]:
        assert self.connection is not None  # noqa: S101 - it is open
        with translated():
            if time.monotonic() >= self._prove_at:
                self._prove(self.connection)
            now = time.monotonic()
            until = min(now + seconds, self._prove_at, *self._echoes.values())
            self._hear(self.connection, until - now)
        now = time.monotonic()
        due = {topic for topic, at in self._echoes.items() if at <= now}
        for topic in due:
            del self._echoes[topic]
        heard, self._heard = self._heard | due, set()
        return heard

    def interrupt(self) -> None:
        self._interrupted = True
        with contextlib.suppress(OSError):  # it is closed, or was interrupted very often
            self._bell.send(b"!")

    def close(self) -> None:
        self._ear.close()
        self._bell.close()
        if self.connection is not None:
            with contextlib.suppress(Exception):
                self.connection.close()

    def _connect(self) -> "psycopg.Connection[Any]":
        import psycopg  # noqa: PLC0415 - the extra may not be installed

        try:
            return psycopg.connect(
                self.url,
                autocommit=True,
                prepare_threshold=None,
                connect_timeout=max(2, round(self.connect_timeout)),
                client_encoding="utf8",
                fallback_application_name="rowmq watch",
                tcp_user_timeout=round(PROOF_SECONDS * 1000),  # a dead connection is found out
            )
        except psycopg.Error as error:
            raise refused(error) from error

    def _prove(self, speaker: "psycopg.Connection[Any]") -> None:
        """Have something said, and hear it."""
        assert self.connection is not None  # noqa: S101 - it is open
        token = secrets.token_hex(TOPIC_BYTES_MAX)  # twice as long as any topic
        speaker.execute("SELECT pg_notify(%s, %s)", (self.channel, token))
        deadline = time.monotonic() + PROOF_SECONDS
        while token not in self._heard:
            remaining = deadline - time.monotonic()
            if remaining <= 0 or self._interrupted:
                raise Deaf(
                    "notifications of PostgreSQL do not arrive; if there is a pooler, such as "
                    "PgBouncer, in transaction mode before it, that is why"
                )
            self._hear(self.connection, remaining)
        self._heard.discard(token)

    def _hear(self, connection: "psycopg.Connection[Any]", seconds: float) -> None:
        """Wait for anything to be said, or to be interrupted."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._ear, selectors.EVENT_READ)
            selector.register(connection, selectors.EVENT_READ)
            ready = [key.fileobj for key, _ in selector.select(max(0.0, seconds))]
        if connection in ready:
            connection.pgconn.consume_input()
            while (notify := connection.pgconn.notifies()) is not None:
                self._note(notify.extra.decode(errors="replace"))

    def _note(self, said: str) -> None:
        now = time.monotonic()
        self._prove_at = now + self.quiet
        self._heard.add(said)
        if len(said) <= TOPIC_BYTES_MAX:
            self._echoes[said] = now + ECHO_SECONDS


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """A driver's error comes out as RowMQ's."""
    try:
        yield
    except RowMQError:
        raise
    except Exception as error:  # noqa: BLE001 - told as what it means
        raise postgres_fault(error)  # noqa: B904 - which brings its cause with it


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
