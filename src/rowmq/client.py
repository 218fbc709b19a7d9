"""The two clients: `RowMQ` for sync code and `AsyncRowMQ` for async code.

They have the same methods with the same signatures, and each method is a line or two: check the
input, name the operation, run it. The methods are in `topics`, `queue.queues`,
`subscriber.subscribing`, `administration`, `browsing` and `doctor`; here a client is opened and
closed, and runs operations. What happens is in `store`, how it is run in `drivers`.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from operator import attrgetter
from types import TracebackType
from typing import Any, Self, TypeVar

from rowmq.access import Access, AsyncAccess
from rowmq.administration import Administration, AsyncAdministration
from rowmq.browsing import AsyncBrowsing, Browsing
from rowmq.combining import AsyncCombiner, Combiner
from rowmq.cron.cron import AsyncCron, Cron
from rowmq.cron.tending import TEND_LOCK_SECONDS
from rowmq.doctor.examining import AsyncExamining, Examining
from rowmq.drivers.base import AsyncDriver, SyncDriver
from rowmq.drivers.callers import async_guest_of, guest_of
from rowmq.drivers.watching import Notifier, Watcher
from rowmq.engine import (
    SPARE_LOCK_SECONDS,
    Engine,
    Options,
    open_async_engine,
    open_engine,
    store_for,
)
from rowmq.errors import InvalidInput, Locked, SchemaError, SchemaTooNew
from rowmq.message import Migration
from rowmq.queue.queues import AsyncQueues, Queues, async_desk_of, desk_of
from rowmq.store.dialect import DEFAULT_LOCK_SECONDS, DEFAULT_PREFIX
from rowmq.store.statement import Operation
from rowmq.subscriber.home import Home
from rowmq.subscriber.subscribing import AsyncSubscribing, Subscribing
from rowmq.telemetry.turning import trace_if_configured
from rowmq.times import Duration
from rowmq.topics import AsyncTopics, OwnShard, Topics
from rowmq.transaction import (
    AsyncTransaction,
    Guard,
    Transaction,
    begun_guard_of,
    guard_of,
)

__all__ = ["AsyncRowMQ", "RowMQ", "connect", "connect_async", "schema_sql"]

T = TypeVar("T")
D = TypeVar("D", SyncDriver, AsyncDriver)


def connect(
    url: str,
    *,
    prefix: str = DEFAULT_PREFIX,
    schema: str | None = None,
    pool_size: int = 10,
    pool_timeout: Duration = 30.0,
    connect_timeout: Duration = 10.0,
    lock_timeout: Duration = DEFAULT_LOCK_SECONDS,
    retry_for: Duration = 10.0,
    prepared_statements: bool = True,
    notify: bool = True,
    auto_migrate: bool = True,
) -> "RowMQ":
    """Connect to a database for sync code.

    `url` is `sqlite:///queue.db`, `sqlite://` (memory), `postgresql://...`, `mysql://...` or
    `mariadb://...`. `prefix` and, on PostgreSQL, `schema` say where the tables are. At most
    `pool_size` connections are opened; a call waits `pool_timeout` for a free one, and
    `lock_timeout` for what another transaction has locked. Transient errors are retried for
    `retry_for`. Turn `prepared_statements` off behind PgBouncer. `notify` says whether, on
    PostgreSQL, publishing and putting wake subscribers and pollers at once (NOTIFY) and this
    client's own are woken (LISTEN, on one more connection); without, they look now and then. Turn
    it off for two-phase commits, which PostgreSQL refuses after a NOTIFY. `auto_migrate` says
    whether SQLite creates and updates its tables here.

    Raises `UnknownScheme`, `InvalidURL`, `MissingExtra`, `DatabaseUnreachable`,
    `AuthenticationFailed`, `NotADatabase` or `SchemaTooNew`. SQLite is migrated at once; a server
    whose tables are missing or old is reported by the first call, so that `migrate()` can be it.
    """
    options = Options(
        prefix=prefix,
        schema=schema,
        pool_size=pool_size,
        pool_timeout=pool_timeout,
        connect_timeout=connect_timeout,
        lock_timeout=lock_timeout,
        retry_for=retry_for,
        prepared_statements=prepared_statements,
        notify=notify,
    )
    mq = RowMQ(open_engine(url, options))
    trace_if_configured(mq)
    try:
        mq._prepare(auto_migrate=auto_migrate)  # noqa: SLF001 - the client's own constructor
    except BaseException:
        mq.close()
        raise
    return mq


async def connect_async(
    url: str,
    *,
    prefix: str = DEFAULT_PREFIX,
    schema: str | None = None,
    pool_size: int = 10,
    pool_timeout: Duration = 30.0,
    connect_timeout: Duration = 10.0,
    lock_timeout: Duration = DEFAULT_LOCK_SECONDS,
    retry_for: Duration = 10.0,
    prepared_statements: bool = True,
    notify: bool = True,
    auto_migrate: bool = True,
) -> "AsyncRowMQ":
    """Connect to a database for async code; everything else is as for `connect`."""
    options = Options(
        prefix=prefix,
        schema=schema,
        pool_size=pool_size,
        pool_timeout=pool_timeout,
        connect_timeout=connect_timeout,
        lock_timeout=lock_timeout,
        retry_for=retry_for,
        prepared_statements=prepared_statements,
        notify=notify,
    )
    mq = AsyncRowMQ(open_async_engine(url, options))
    trace_if_configured(mq)
    try:
        await mq._prepare(auto_migrate=auto_migrate)  # noqa: SLF001 - the client's own constructor
    except BaseException:
        await mq.close()
        raise
    return mq


def schema_sql(database: str, *, prefix: str = DEFAULT_PREFIX, schema: str | None = None) -> str:
    """The SQL that makes all tables, for review or for another migration tool.

    `database` is `postgresql`, `mysql`, `mariadb` or `sqlite`. The text is the same every time.
    """
    return store_for(database, prefix=prefix, schema=schema).schema.script()


class RowMQ(Topics, Queues, Subscribing, Administration, Browsing, Examining):
    """A client for sync code. Safe to share between threads, and to use after a fork."""

    def __init__(self, engine: Engine[SyncDriver]) -> None:
        self._engine = check_engine(engine)
        self._driver = engine.driver
        self._store = engine.store
        self._checked = False
        self._notifier = Notifier(enabled=engine.notify)
        self._watcher = Watcher(engine.new_watch)
        self._home = Home(self._store, self._run, spare=spare_of(engine), watcher=self._watcher)
        self._desk = desk_of(
            self._store,
            self._run,
            notifier=self._notifier,
            watcher=self._watcher,
            spare=spare_of(engine),
        )
        self.access = Access(self._store.access, self._run)
        self.cron = Cron(self._desk, spare_of(engine, TEND_LOCK_SECONDS), notify=engine.notify)
        self._shard = OwnShard()
        self._combiner = Combiner(
            self._publish, self._store.topics.lock_of, size_of=attrgetter("size"), repeatable=True
        )

    # --- transactions, schema, life -------------------------------------------------------------

    @contextlib.contextmanager
    def transaction(self) -> Iterator["Transaction"]:
        """A transaction for own SQL and RowMQ's writes together: all of it, or nothing.

        Leaving the block commits; an exception rolls back.
        """
        self._check_schema()
        session = self._driver.begin()
        guard = Guard(self, session)
        try:
            yield Transaction(self, guard)
        except BaseException as error:
            guard.end(wait=True)
            self._driver.end(session, error=guard.failure or error)
            raise
        guard.end(wait=True)
        self._driver.end(session, error=guard.failure)
        guard.refuse_if_failed()

    def migrate(self, *, dry_run: bool = False) -> list[Migration]:
        """Bring the tables up to date, safely from any number of processes at once.

        Returns what was applied; with `dry_run`, what would be.
        """
        schema = self._store.schema
        done = self._driver.run(schema.pending if dry_run else schema.migrate)
        self._checked = not dry_run
        return done

    def close(self) -> None:
        """Close every subscriber and every connection. A call after that raises `Closed`."""
        for subscriber in list(self._home.subscribers):
            subscriber.close()
        self._home.heart.close()
        self.cron._close()  # noqa: SLF001 - the client's own
        self._watcher.close()
        self._driver.close()
        self._desk.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # --- running operations ---------------------------------------------------------------------

    def _run(self, make: Callable[[], Operation[T]], connection: Any = None) -> T:
        self._check_schema()
        if connection is None:
            return self._driver.run(make)
        if isinstance(connection, Transaction):
            with guard_of(connection).in_use(self) as session:
                return self._driver.follow(session, make())
        return self._driver.follow(guest_of(connection, self._engine.database), make())

    def _prepare(self, *, auto_migrate: bool) -> None:
        try:
            found = self._driver.run(self._store.schema.check, retry_for=0)
        except Locked:  # a file that is busy, not one that is not there
            found = self._driver.run(self._store.schema.check)
        if must_migrate(found, self._engine.database) and auto_migrate:
            self.migrate()
        else:
            self._checked = found is None

    def _check_schema(self) -> None:
        if not self._checked:
            error = self._driver.run(self._store.schema.check)
            if error is not None:
                raise error
            self._checked = True


class AsyncRowMQ(
    AsyncTopics,
    AsyncQueues,
    AsyncSubscribing,
    AsyncAdministration,
    AsyncBrowsing,
    AsyncExamining,
):
    """A client for async code, for one event loop."""

    def __init__(self, engine: Engine[AsyncDriver]) -> None:
        self._engine = check_engine(engine)
        self._driver = engine.driver
        self._store = engine.store
        self._checked = False
        self._notifier = Notifier(enabled=engine.notify)
        self._watcher = Watcher(engine.new_watch)
        self._home = Home(self._store, self._run, spare=spare_of(engine), watcher=self._watcher)
        self._desk = async_desk_of(
            self._store,
            self._run,
            notifier=self._notifier,
            watcher=self._watcher,
            spare=spare_of(engine),
            at_once=engine.driver.pool.size,
        )
        self.access = AsyncAccess(self._store.access, self._run)
        self.cron = AsyncCron(self._desk, spare_of(engine, TEND_LOCK_SECONDS), notify=engine.notify)
        self._shard = OwnShard()
        self._combiner = AsyncCombiner(
            self._publish,
            self._store.topics.lock_of,
            size_of=attrgetter("size"),
            at_once=engine.driver.pool.size,
            repeatable=True,
        )

    # --- transactions, schema, life -------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator["AsyncTransaction"]:
        """A transaction for own SQL and RowMQ's writes together: see `RowMQ.transaction`."""
        await self._check_schema()
        session = await self._driver.begin()
        guard = Guard(self, session)
        try:
            yield AsyncTransaction(self, guard)
        except BaseException as error:
            guard.end(wait=False)
            await self._driver.end(session, error=guard.failure or error)
            raise
        guard.end(wait=False)
        await self._driver.end(session, error=guard.failure)
        guard.refuse_if_failed()

    async def migrate(self, *, dry_run: bool = False) -> list[Migration]:
        """Bring the tables up to date: see `RowMQ.migrate`."""
        schema = self._store.schema
        done = await self._driver.run(schema.pending if dry_run else schema.migrate)
        self._checked = not dry_run
        return done

    async def close(self) -> None:
        """Close every subscriber and every connection. A call after that raises `Closed`."""
        for subscriber in list(self._home.subscribers):
            await subscriber.close()
        for combiner in (self._combiner, self._desk.puts, self._desk.settles):
            if isinstance(combiner, AsyncCombiner):
                await combiner.close()
        if self._watcher.busy or self._home.heart.busy or self.cron.tending:
            # Then they wait for their threads, which the loop's must not.
            await asyncio.to_thread(self._home.heart.close)
            await asyncio.to_thread(self.cron._close)  # noqa: SLF001 - the client's own
            await asyncio.to_thread(self._watcher.close)
        self.cron._close()  # noqa: SLF001 - the client's own
        await self._driver.close()
        self._desk.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    # --- running operations ---------------------------------------------------------------------

    async def _run(self, make: Callable[[], Operation[T]], connection: Any = None) -> T:
        await self._check_schema()
        if connection is None:
            return await self._driver.run(make)
        if isinstance(connection, AsyncTransaction):
            guard = await begun_guard_of(connection)
            with guard.in_use(self) as session:
                return await self._driver.follow(session, make())
        guest = await async_guest_of(connection, self._engine.database)
        return await self._driver.follow(guest, make())

    async def _prepare(self, *, auto_migrate: bool) -> None:
        try:
            found = await self._driver.run(self._store.schema.check, retry_for=0)
        except Locked:  # a file that is busy, not one that is not there
            found = await self._driver.run(self._store.schema.check)
        if must_migrate(found, self._engine.database) and auto_migrate:
            await self.migrate()
        else:
            self._checked = found is None

    async def _check_schema(self) -> None:
        self._driver.check_loop()
        if not self._checked:
            error = await self._driver.run(self._store.schema.check)
            if error is not None:
                raise error
            self._checked = True


def spare_of(
    engine: Engine[D], lock_timeout: float = SPARE_LOCK_SECONDS
) -> Callable[[], SyncDriver]:
    """Opens drivers whose statements are observed like the client's own."""

    def open_driver() -> SyncDriver:
        driver = engine.spare(lock_timeout=lock_timeout)
        driver.observers = engine.driver.observers
        driver.timers = engine.driver.timers
        return driver

    return open_driver


def check_engine(engine: Engine[D]) -> Engine[D]:
    if not isinstance(engine, Engine):
        raise InvalidInput("clients are made by rowmq.connect(url) and rowmq.connect_async(url)")
    return engine


def must_migrate(found: SchemaError | None, database: str) -> bool:
    """Whether to migrate when connecting: SQLite's file is nobody else's to look after."""
    if isinstance(found, SchemaTooNew):
        raise found
    return found is not None and database == "sqlite"
