"""The two clients: `RowMQ` for sync code and `AsyncRowMQ` for async code.

They have the same methods with the same signatures, and each method is a line or two: check the
input, name the operation, run it. What happens is in `store`, how it is run in `drivers`.
"""

import asyncio
import builtins
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from operator import attrgetter
from types import TracebackType
from typing import Any, Self, TypeVar, overload

from rowmq.administration import Administration, AsyncAdministration
from rowmq.combining import AsyncCombiner, Combiner
from rowmq.drivers.base import AsyncDriver, SyncDriver
from rowmq.drivers.callers import async_guest_of, guest_of
from rowmq.drivers.watching import Notifier, Watcher
from rowmq.engine import Engine, Options, open_async_engine, open_engine, store_for
from rowmq.errors import InvalidInput, InvalidOption, Locked, SchemaError, SchemaTooNew
from rowmq.message import Message, Migration, PublishResult, TopicInfo
from rowmq.naming import check_key, check_topic
from rowmq.policy import RetryStrategy
from rowmq.store.dialect import DEFAULT_LOCK_SECONDS, DEFAULT_PREFIX
from rowmq.store.statement import Operation
from rowmq.store.topics import Entry, check_limit, check_retention, prepare
from rowmq.subscriber.delivery import AsyncDelivery, Delivery
from rowmq.subscriber.home import Home
from rowmq.subscriber.options import options_of
from rowmq.subscriber.subscriber import AsyncSubscriber, Subscriber
from rowmq.times import Duration, to_micros
from rowmq.transaction import AsyncTransaction, Guard, Transaction, guard_of

__all__ = [
    "DEFAULT_PREFIX",
    "AsyncDelivery",
    "AsyncRowMQ",
    "AsyncSubscriber",
    "AsyncTransaction",
    "Delivery",
    "RowMQ",
    "Subscriber",
    "Transaction",
    "connect",
    "connect_async",
    "schema_sql",
]

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
    PostgreSQL, publishing wakes subscribers up at once (NOTIFY) and this client's own are woken
    (LISTEN, on one more connection); without, they poll. Turn it off for two-phase commits, which
    PostgreSQL refuses after a NOTIFY. `auto_migrate` says whether SQLite creates and updates its
    tables here.

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


class RowMQ(Administration):
    """A client for sync code. Safe to share between threads, and to use after a fork."""

    def __init__(self, engine: Engine[SyncDriver]) -> None:
        self._engine = check_engine(engine)
        self._driver = engine.driver
        self._store = engine.store
        self._checked = False
        self._notifier = Notifier(enabled=engine.notify)
        self._watcher = Watcher(engine.new_watch)
        self._home = Home(self._store, self._run, spare=spare_of(engine), watcher=self._watcher)
        self._combiner = Combiner(
            self._publish, self._store.topics.lock_of, size_of=attrgetter("size"), repeatable=True
        )

    # --- topics ---------------------------------------------------------------------------------

    def publish(
        self,
        topic: str,
        payload: Any,
        *,
        key: str | None = None,
        id: str | None = None,
        headers: Mapping[str, str] | None = None,
        connection: Any = None,
    ) -> PublishResult:
        """Append a message to a topic. It is durable when this returns.

        Messages with the same `key` keep their order. A second message with the same key and `id`
        adds nothing and is answered with `duplicate=True`. With `connection=`, the message is part
        of the caller's own transaction and there only if that commits. Raises `InvalidInput`.
        """
        entry = prepare_one(topic, payload, key=key, id=id, headers=headers)
        if connection is None:
            return self._combiner.submit(entry)
        return self._publish([entry], connection)[0]

    def publish_many(
        self, topic: str, messages: Iterable[Message[Any]], *, connection: Any = None
    ) -> list[PublishResult]:
        """Append messages to a topic in one transaction: all of them, or none and an error."""
        return self._publish(prepare_many(topic, messages), connection)

    @overload
    def read(
        self,
        topic: str,
        *,
        key: str | None = None,
        from_offset: int = 1,
        since: datetime | None = None,
        limit: int = 100,
        type: None = None,
    ) -> list[Message[Any]]: ...

    @overload
    def read(
        self,
        topic: str,
        *,
        key: str | None = None,
        from_offset: int = 1,
        since: datetime | None = None,
        limit: int = 100,
        type: builtins.type[T],
    ) -> list[Message[T]]: ...

    def read(
        self,
        topic: str,
        *,
        key: str | None = None,
        from_offset: int = 1,
        since: datetime | None = None,
        limit: int = 100,
        type: Any = None,
    ) -> list[Message[Any]]:
        """Look at messages without consuming them, in order of key and offset.

        With `key` one partition, without it all; from an offset on, or those published since a
        time; at most `limit` in all; payloads as `type`, if one is given. Raises `PayloadMismatch`
        if one does not parse.
        """
        return self._run(
            read_operation(
                self._store.topics.read,
                topic,
                key=key,
                from_offset=from_offset,
                since=since,
                limit=limit,
                type=type,
            )
        )

    def topics(self) -> list[TopicInfo]:
        """Every topic, with its partitions and messages counted."""
        return self._run(self._store.topics.list_topics)

    def configure_topic(
        self,
        topic: str,
        *,
        retention: Duration | None = None,
        max_payload_bytes: int | None = None,
        connection: Any = None,
    ) -> None:
        """Change a topic's settings; those left out stay as they are.

        A message older than `retention` may be deleted; `timedelta.max`, or an infinite number,
        keeps messages for ever, which is how a topic begins.
        """
        configure = configure_operation(
            self._store.topics.configure, topic, retention, max_payload_bytes
        )
        self._run(configure, connection)

    @overload
    def subscribe(
        self,
        topic: str,
        *,
        group: str,
        name: str | None = None,
        batch_size: int = 10,
        visibility: Duration = 60.0,
        max_attempts: int | None = None,
        backoff: RetryStrategy | None = None,
        lease_duration: Duration = 30.0,
        heartbeat_interval: Duration | None = None,
        strict: bool = False,
        dlq_suffix: str = "_dlq",
        start: str = "earliest",
        type: None = None,
        max_in_flight: int = 1_000,
        max_bytes: int = 64 * 1024 * 1024,
        flush_interval: Duration = 0.0,
        poll_interval: Duration = 0.1,
        discovery_interval: Duration = 1.0,
        idle_timeout: Duration = 60.0,
        on_lost: Callable[[Sequence[Delivery[Any]]], None] | None = None,
    ) -> "Subscriber[Any]": ...

    @overload
    def subscribe(
        self,
        topic: str,
        *,
        group: str,
        name: str | None = None,
        batch_size: int = 10,
        visibility: Duration = 60.0,
        max_attempts: int | None = None,
        backoff: RetryStrategy | None = None,
        lease_duration: Duration = 30.0,
        heartbeat_interval: Duration | None = None,
        strict: bool = False,
        dlq_suffix: str = "_dlq",
        start: str = "earliest",
        type: builtins.type[T],
        max_in_flight: int = 1_000,
        max_bytes: int = 64 * 1024 * 1024,
        flush_interval: Duration = 0.0,
        poll_interval: Duration = 0.1,
        discovery_interval: Duration = 1.0,
        idle_timeout: Duration = 60.0,
        on_lost: Callable[[Sequence[Delivery[Any]]], None] | None = None,
    ) -> "Subscriber[T]": ...

    def subscribe(
        self,
        topic: str,
        *,
        group: str,
        name: str | None = None,
        batch_size: int = 10,
        visibility: Duration = 60.0,
        max_attempts: int | None = None,
        backoff: RetryStrategy | None = None,
        lease_duration: Duration = 30.0,
        heartbeat_interval: Duration | None = None,
        strict: bool = False,
        dlq_suffix: str = "_dlq",
        start: str = "earliest",
        type: Any = None,
        max_in_flight: int = 1_000,
        max_bytes: int = 64 * 1024 * 1024,
        flush_interval: Duration = 0.0,
        poll_interval: Duration = 0.1,
        discovery_interval: Duration = 1.0,
        idle_timeout: Duration = 60.0,
        on_lost: Callable[[Sequence[Delivery[Any]]], None] | None = None,
    ) -> "Subscriber[Any]":
        """Join a consumer group, which is created if it is new, and consume a topic.

        A message that is not settled within `visibility` is delivered again. After `max_attempts`
        (3, if not given; 1,000 for a dead-letter topic) it goes to the dead letters; `backoff` says
        how long a nacked one waits. `strict` has one message of a key in flight at a time.
        `max_in_flight` and `max_bytes` bound what is delivered and not settled. Payloads come as
        `type`, if one is given. `on_lost` is told of deliveries whose lease was lost.

        Close it, or leave its `with` block, and others take over at once; otherwise they do when
        `lease_duration` has passed since its last heartbeat.
        """
        options = options_of(
            topic,
            group=group,
            name=name,
            batch_size=batch_size,
            visibility=visibility,
            max_attempts=max_attempts,
            backoff=backoff,
            lease_duration=lease_duration,
            heartbeat_interval=heartbeat_interval,
            strict=strict,
            dlq_suffix=dlq_suffix,
            start=start,
            type=type,
            max_in_flight=max_in_flight,
            max_bytes=max_bytes,
            flush_interval=flush_interval,
            poll_interval=poll_interval,
            discovery_interval=discovery_interval,
            idle_timeout=idle_timeout,
            on_lost=on_lost,
        )
        subscriber: Subscriber[Any] = Subscriber(self._home, options)
        self._home.subscribers.add(subscriber)
        return subscriber

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
        self._watcher.close()
        self._driver.close()

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

    def _publish(self, entries: list[Entry], connection: Any = None) -> list[PublishResult]:
        if not entries:
            return []
        publish = publish_operation(
            self._store.topics.publish, self._notifier, entries, alone=connection is None
        )
        return self._run(publish, connection)

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


class AsyncRowMQ(AsyncAdministration):
    """A client for async code, for one event loop."""

    def __init__(self, engine: Engine[AsyncDriver]) -> None:
        self._engine = check_engine(engine)
        self._driver = engine.driver
        self._store = engine.store
        self._checked = False
        self._notifier = Notifier(enabled=engine.notify)
        self._watcher = Watcher(engine.new_watch)
        self._home = Home(self._store, self._run, spare=spare_of(engine), watcher=self._watcher)
        self._combiner = AsyncCombiner(
            self._publish,
            self._store.topics.lock_of,
            size_of=attrgetter("size"),
            at_once=engine.driver.pool.size,
            repeatable=True,
        )

    # --- topics ---------------------------------------------------------------------------------

    async def publish(
        self,
        topic: str,
        payload: Any,
        *,
        key: str | None = None,
        id: str | None = None,
        headers: Mapping[str, str] | None = None,
        connection: Any = None,
    ) -> PublishResult:
        """Append a message to a topic: see `RowMQ.publish`."""
        entry = prepare_one(topic, payload, key=key, id=id, headers=headers)
        if connection is None:
            self._driver.check_loop()
            return await self._combiner.submit(entry)
        return (await self._publish([entry], connection))[0]

    async def publish_many(
        self, topic: str, messages: Iterable[Message[Any]], *, connection: Any = None
    ) -> list[PublishResult]:
        """Append messages to a topic in one transaction: see `RowMQ.publish_many`."""
        return await self._publish(prepare_many(topic, messages), connection)

    @overload
    async def read(
        self,
        topic: str,
        *,
        key: str | None = None,
        from_offset: int = 1,
        since: datetime | None = None,
        limit: int = 100,
        type: None = None,
    ) -> list[Message[Any]]: ...

    @overload
    async def read(
        self,
        topic: str,
        *,
        key: str | None = None,
        from_offset: int = 1,
        since: datetime | None = None,
        limit: int = 100,
        type: builtins.type[T],
    ) -> list[Message[T]]: ...

    async def read(
        self,
        topic: str,
        *,
        key: str | None = None,
        from_offset: int = 1,
        since: datetime | None = None,
        limit: int = 100,
        type: Any = None,
    ) -> list[Message[Any]]:
        """Look at messages without consuming them: see `RowMQ.read`."""
        return await self._run(
            read_operation(
                self._store.topics.read,
                topic,
                key=key,
                from_offset=from_offset,
                since=since,
                limit=limit,
                type=type,
            )
        )

    async def topics(self) -> list[TopicInfo]:
        """Every topic, with its partitions and messages counted."""
        return await self._run(self._store.topics.list_topics)

    async def configure_topic(
        self,
        topic: str,
        *,
        retention: Duration | None = None,
        max_payload_bytes: int | None = None,
        connection: Any = None,
    ) -> None:
        """Change a topic's settings: see `RowMQ.configure_topic`."""
        configure = configure_operation(
            self._store.topics.configure, topic, retention, max_payload_bytes
        )
        await self._run(configure, connection)

    @overload
    def subscribe(
        self,
        topic: str,
        *,
        group: str,
        name: str | None = None,
        batch_size: int = 10,
        visibility: Duration = 60.0,
        max_attempts: int | None = None,
        backoff: RetryStrategy | None = None,
        lease_duration: Duration = 30.0,
        heartbeat_interval: Duration | None = None,
        strict: bool = False,
        dlq_suffix: str = "_dlq",
        start: str = "earliest",
        type: None = None,
        max_in_flight: int = 1_000,
        max_bytes: int = 64 * 1024 * 1024,
        flush_interval: Duration = 0.0,
        poll_interval: Duration = 0.1,
        discovery_interval: Duration = 1.0,
        idle_timeout: Duration = 60.0,
        on_lost: Callable[[Sequence[AsyncDelivery[Any]]], None] | None = None,
    ) -> "AsyncSubscriber[Any]": ...

    @overload
    def subscribe(
        self,
        topic: str,
        *,
        group: str,
        name: str | None = None,
        batch_size: int = 10,
        visibility: Duration = 60.0,
        max_attempts: int | None = None,
        backoff: RetryStrategy | None = None,
        lease_duration: Duration = 30.0,
        heartbeat_interval: Duration | None = None,
        strict: bool = False,
        dlq_suffix: str = "_dlq",
        start: str = "earliest",
        type: builtins.type[T],
        max_in_flight: int = 1_000,
        max_bytes: int = 64 * 1024 * 1024,
        flush_interval: Duration = 0.0,
        poll_interval: Duration = 0.1,
        discovery_interval: Duration = 1.0,
        idle_timeout: Duration = 60.0,
        on_lost: Callable[[Sequence[AsyncDelivery[Any]]], None] | None = None,
    ) -> "AsyncSubscriber[T]": ...

    def subscribe(
        self,
        topic: str,
        *,
        group: str,
        name: str | None = None,
        batch_size: int = 10,
        visibility: Duration = 60.0,
        max_attempts: int | None = None,
        backoff: RetryStrategy | None = None,
        lease_duration: Duration = 30.0,
        heartbeat_interval: Duration | None = None,
        strict: bool = False,
        dlq_suffix: str = "_dlq",
        start: str = "earliest",
        type: Any = None,
        max_in_flight: int = 1_000,
        max_bytes: int = 64 * 1024 * 1024,
        flush_interval: Duration = 0.0,
        poll_interval: Duration = 0.1,
        discovery_interval: Duration = 1.0,
        idle_timeout: Duration = 60.0,
        on_lost: Callable[[Sequence[AsyncDelivery[Any]]], None] | None = None,
    ) -> "AsyncSubscriber[Any]":
        """Join a consumer group and consume a topic, with `async with` or `await`: see
        `RowMQ.subscribe`.
        """
        options = options_of(
            topic,
            group=group,
            name=name,
            batch_size=batch_size,
            visibility=visibility,
            max_attempts=max_attempts,
            backoff=backoff,
            lease_duration=lease_duration,
            heartbeat_interval=heartbeat_interval,
            strict=strict,
            dlq_suffix=dlq_suffix,
            start=start,
            type=type,
            max_in_flight=max_in_flight,
            max_bytes=max_bytes,
            flush_interval=flush_interval,
            poll_interval=poll_interval,
            discovery_interval=discovery_interval,
            idle_timeout=idle_timeout,
            on_lost=on_lost,
        )
        subscriber: AsyncSubscriber[Any] = AsyncSubscriber(self._home, options)
        self._home.subscribers.add(subscriber)
        return subscriber

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
        await self._combiner.close()
        if self._watcher.busy or self._home.heart.busy:
            # Then they wait for their threads, which the loop's must not.
            await asyncio.to_thread(self._home.heart.close)
            await asyncio.to_thread(self._watcher.close)
        await self._driver.close()

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

    async def _publish(self, entries: list[Entry], connection: Any = None) -> list[PublishResult]:
        if not entries:
            return []
        publish = publish_operation(
            self._store.topics.publish, self._notifier, entries, alone=connection is None
        )
        return await self._run(publish, connection)

    async def _run(self, make: Callable[[], Operation[T]], connection: Any = None) -> T:
        await self._check_schema()
        if connection is None:
            return await self._driver.run(make)
        if isinstance(connection, AsyncTransaction):
            with guard_of(connection).in_use(self) as session:
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


def prepare_one(
    topic: str,
    payload: Any,
    *,
    key: str | None,
    id: str | None,
    headers: Mapping[str, str] | None,
) -> Entry:
    """The entry of one message's parts."""
    if isinstance(payload, Message):
        raise InvalidInput(
            "a Message was given as the payload: use publish_many(topic, [message]), or give "
            "message.payload with its key=, id= and headers="
        )
    given = {} if headers is None else headers
    return prepare(topic, Message(payload=payload, key=key, id=id, headers=given))


def prepare_many(topic: str, messages: Iterable[Message[Any]]) -> list[Entry]:
    """The entries of many messages; the error of a bad one says which it is."""
    check_topic(topic)
    if isinstance(messages, Message | Mapping | str | bytes) or not isinstance(messages, Iterable):
        raise InvalidInput(
            f"publish_many takes a list of rowmq.Message(payload=...), not a "
            f"{type(messages).__name__}"
        )
    entries = []
    for place, message in enumerate(messages):
        if not isinstance(message, Message):
            raise InvalidInput(
                f"item {place} is a {type(message).__name__}: wrap each payload, as in "
                f"rowmq.Message(payload=...)"
            )
        try:
            entries.append(prepare(topic, message))
        except InvalidInput as error:
            raise type(error)(f"message {place}: {error}") from error
    return entries


def publish_operation(
    publish: Callable[..., Operation[list[PublishResult]]],
    notifier: Notifier,
    entries: list[Entry],
    *,
    alone: bool,
) -> Callable[[], Operation[list[PublishResult]]]:
    """Entries bound to `publish`, with whom to tell: decided once, and repeated with a retry."""
    notify = notifier.due({entry.topic for entry in entries}, alone=alone)
    return partial(publish, entries, alone=alone, notify=notify)


def configure_operation(
    configure: Callable[..., Operation[None]],
    topic: str,
    retention: Duration | None,
    max_payload_bytes: int | None,
) -> Callable[[], Operation[None]]:
    """The checked arguments of `configure_topic`, bound to its operation."""
    return partial(
        configure,
        check_topic(topic),
        max_payload_bytes=check_limit(max_payload_bytes),
        retention_us=check_retention(retention),
    )


def read_operation(
    read: Callable[..., Operation[list[Message[Any]]]],
    topic: str,
    *,
    key: str | None,
    from_offset: int,
    since: datetime | None,
    limit: int,
    type: Any,
) -> Callable[[], Operation[list[Message[Any]]]]:
    """The checked arguments of `read`, bound to its operation."""
    for name, value in (("from_offset", from_offset), ("limit", limit)):
        if builtins.type(value) is not int or not 1 <= value < 2**62:
            raise InvalidOption(f"{name} must be a whole number from 1 on, not {value!r}")
    return partial(
        read,
        check_topic(topic),
        key=check_key(key),
        from_offset=from_offset,
        since=None if since is None else to_micros(since),
        limit=limit,
        type=type,
    )


def spare_of(engine: Engine[D]) -> Callable[[], SyncDriver]:
    """Opens drivers whose statements are observed like the client's own."""

    def open_driver() -> SyncDriver:
        driver = engine.spare()
        driver.observers = engine.driver.observers
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
