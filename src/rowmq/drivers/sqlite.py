"""SQLite, by the standard library's sqlite3.

WAL, so that readers and the writer do not wait for each other; `synchronous=FULL`, so that a commit
survives a power cut, and NORMAL only for a transaction that need not; BEGIN IMMEDIATE, so that a
writer waits for its turn at the start and never fails half way; a busy timeout for that waiting. A
connection serves one thread at a time.

SQLite has no network to wait for, so the async driver runs whole operations in threads: one hop for
an operation, not one for each statement.
"""

import asyncio
import contextlib
import contextvars
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from rowmq.drivers.base import AsyncDriver, Limits, Session, SyncDriver
from rowmq.drivers.faults import sqlite_fault
from rowmq.drivers.forking import FORK_SECONDS, after_fork
from rowmq.drivers.placeholders import restyle
from rowmq.drivers.pool import Pool
from rowmq.errors import Closed, ConfigurationError
from rowmq.store.statement import Operation, Result, Statement

__all__ = [
    "AsyncSQLiteDriver",
    "AsyncSQLiteSession",
    "SQLiteSession",
    "async_driver",
    "sync_driver",
]

P = ParamSpec("P")
T = TypeVar("T")

VERSION_MIN = (3, 35)
NORMAL = 1
"""A level of `synchronous` at which commits to the log do not wait for the disk."""


class SQLiteSession:
    """A connection in autocommit mode: transactions begin and end only where RowMQ says so."""

    translate = staticmethod(sqlite_fault)
    savepoints = False

    def __init__(
        self, connection: sqlite3.Connection, *, lasting: bool = False, logged: bool = False
    ) -> None:
        """`logged` says that there is a write-ahead log."""
        self.connection = connection
        self.lasting = lasting
        self.logged = logged
        self._level: int | None = None

    def begin(self) -> None:
        self.connection.execute("BEGIN IMMEDIATE")

    def begin_relaxed(self) -> None:
        # In the log, what a power cut leaves is whole; without one, the file might be damaged.
        ((level,),) = self.connection.execute("PRAGMA synchronous").fetchall()
        if self.logged and level > NORMAL:
            self._level = level
            self.connection.execute(f"PRAGMA synchronous = {NORMAL}")
        self.begin()

    def commit(self) -> None:
        self.connection.execute("COMMIT")
        self._tighten()

    def rollback(self) -> None:
        # A full disk, for one, has rolled back already.
        if self.connection.in_transaction:
            self.connection.execute("ROLLBACK")
        self._tighten()

    def _tighten(self) -> None:
        """After a relaxed transaction, however it ended: let the next one wait for the disk. It is
        an error while a transaction is open; then that is rolled back, and this comes again.
        """
        if self._level is not None:
            self.connection.execute(f"PRAGMA synchronous = {self._level}")
            self._level = None

    def in_transaction(self) -> bool:
        return self.connection.in_transaction

    def execute(self, statement: Statement) -> Result:
        cursor = self.connection.execute(statement.sql, statement.params)
        return Result(cursor.fetchall(), cursor.rowcount)

    def query(self, sql: str, params: Any) -> Result:
        cursor = self.connection.execute(*restyle(sql, params, "?"))
        return Result(cursor.fetchall(), cursor.rowcount)

    def close(self) -> None:
        if self.lasting:
            self.rollback()  # closing would drop the database
        else:
            self.connection.close()


class MemoryPool(Pool[SQLiteSession]):
    """The one connection of a database in memory, which lives as long as its client."""

    def __init__(self, *, timeout: float) -> None:
        session = open_session("", 0)
        super().__init__(lambda: session, size=1, timeout=timeout)
        self.session = session

    def close(self) -> None:
        super().close()
        self.session.connection.close()


def sync_driver(path: str, limits: Limits) -> SyncDriver:
    """A driver for the file at a path; an empty one is a database in memory."""
    if sqlite3.sqlite_version_info < VERSION_MIN:
        raise ConfigurationError(
            f"RowMQ needs SQLite {VERSION_MIN[0]}.{VERSION_MIN[1]} or newer and this Python has "
            f"{sqlite3.sqlite_version}; use a newer Python, or another database"
        )
    if not path:
        return SyncDriver(MemoryPool(timeout=limits.pool_timeout), retry_for=limits.retry_for)
    pool = Pool[SQLiteSession](
        partial(open_session, path, limits.lock_timeout),
        size=limits.pool_size,
        timeout=limits.pool_timeout,
        fork_patience=FORK_SECONDS,
    )
    return SyncDriver(pool, retry_for=limits.retry_for)


def async_driver(path: str, limits: Limits) -> AsyncDriver:
    """The same for async code."""
    return AsyncSQLiteDriver(sync_driver(path, limits), threads=limits.pool_size)


def open_session(path: str, lock_timeout: float) -> SQLiteSession:
    try:
        connection = sqlite3.connect(
            path or ":memory:",
            timeout=lock_timeout,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=256,
        )
        try:
            ((mode,),) = connection.execute("PRAGMA journal_mode = WAL").fetchall()
            connection.execute("PRAGMA synchronous = FULL")
        except BaseException:
            connection.close()
            raise
    except sqlite3.Error as error:
        meaning = sqlite_fault(error)
        raise type(meaning)(f"{Path(path).absolute()}: {meaning}") from error
    return SQLiteSession(connection, lasting=not path, logged=mode == "wal")


class AsyncSQLiteSession:
    """A session whose calls run in the driver's threads."""

    translate = staticmethod(sqlite_fault)
    savepoints = False

    def __init__(self, session: Session, submit: Callable[..., asyncio.Future[Any]]) -> None:
        self.session = session
        self.submit = submit
        self.running: asyncio.Future[Any] | None = None
        self.revoked = False

    async def call(self, function: Callable[..., T], *args: Any) -> T:
        """Make a call in a thread, unless the transaction is over."""
        if self.revoked:
            raise Closed("this transaction has ended")
        self.running = self.submit(function, *args)
        return await waited(self.running)

    async def revoke(self) -> None:
        """Wait for the call that is running, if one is, and allow no other."""
        self.revoked = True
        if self.running is not None:
            await ended(self.running)

    async def begin(self) -> None:
        await self.call(self.session.begin)

    async def commit(self) -> None:
        await self.call(self.session.commit)

    async def rollback(self) -> None:
        await self.call(self.session.rollback)

    def in_transaction(self) -> bool:
        return self.session.in_transaction()

    async def execute(self, statement: Statement) -> Result:
        result: Result = await self.call(self.session.execute, statement)
        return result

    async def query(self, sql: str, params: Any) -> Result:
        result: Result = await self.call(self.session.query, sql, params)
        return result

    def close(self) -> None:
        self.session.close()


class AsyncSQLiteDriver(AsyncDriver):
    """The sync driver, in threads."""

    def __init__(self, sync: SyncDriver, *, threads: int) -> None:
        super().__init__(sync.pool, retry_for=sync.retry_for)
        self.sync = sync
        self.sync.observers = self.observers
        self.sync.timers = self.timers
        self.size = threads
        self.reset()
        after_fork(self)

    def reset(self) -> None:
        """Have threads: at the start, and in a forked child, which inherits none.

        Those that hold a session have threads of their own: calls that wait for a session, or for
        the write lock, could take all of the others.
        """
        self.threads = ThreadPoolExecutor(self.size, thread_name_prefix="rowmq-sqlite")
        self.holders = ThreadPoolExecutor(self.size, thread_name_prefix="rowmq-sqlite-held")

    async def run(self, make: Callable[[], Operation[T]], *, retry_for: float | None = None) -> T:
        return await waited(self._submit(self.sync.run, make, retry_for=retry_for))

    async def begin(self) -> AsyncSQLiteSession:
        future = self._submit(self.sync.begin)
        try:
            session = await waited(future)
        except asyncio.CancelledError as cancelled:
            if future.exception() is None:
                self.sync.end(future.result(), error=cancelled)
            raise
        return AsyncSQLiteSession(session, self._submit_held)

    def _submit(
        self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> asyncio.Future[T]:
        self.sync.pool.refuse_if_closed()
        return self._run_in(self.threads, partial(function, *args, **kwargs))

    def _submit_held(
        self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> asyncio.Future[T]:
        """Make a call on a session that is held."""
        return self._run_in(self.holders, partial(function, *args, **kwargs))

    def _run_in(self, threads: ThreadPoolExecutor, call: Callable[[], T]) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        if self.timers:  # who times statements may ask on whose behalf they are
            return loop.run_in_executor(threads, contextvars.copy_context().run, call)
        return loop.run_in_executor(threads, call)

    async def end(self, session: Any, *, error: BaseException | None) -> None:
        await session.revoke()
        await waited(self._submit_held(self.sync.end, session.session, error=error))

    async def close(self) -> None:
        self.sync.close()
        self.threads.shutdown(wait=False)  # those that hold a session may still end with it


async def waited(future: asyncio.Future[T]) -> T:
    """The result of a call in a thread. Cancelled, it waits for the thread, which cannot be
    stopped: nobody else may use the session before it has ended.
    """
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        await ended(future)
        raise


async def ended(future: asyncio.Future[Any]) -> None:
    """Wait for a call in a thread, whatever it comes to, and however often one is cancelled."""
    while not future.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait({future})
    future.exception()  # looked at, so that asyncio does not complain about it
