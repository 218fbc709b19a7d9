"""What only the right transaction, lock or session guards, and nothing else would show.

Each test here stands for a line that could be taken out of the source with every other test still
passing: a rollback, an order of locks, a setting of the session.
"""

import asyncio
import sqlite3
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack, closing, suppress
from typing import Any

import psycopg
import pymysql
import pytest

from rowmq import Message, errors
from rowmq.drivers.mysql import AsyncmySession, PyMySQLSession
from rowmq.drivers.postgres import AsyncpgSession, PsycopgSession
from rowmq.drivers.sqlite import SQLiteSession
from rowmq.store.statement import Operation, Statement
from tests.conformance.callers import mysql, postgres, sqlite
from tests.conformance.callers.kinds import Kind, client, transaction
from tests.conformance.test_faults import cut_connections
from tests.conftest import Connect
from tests.databases import NAMES, Database, MySQLDatabase, SQLiteDatabase
from tests.flavours import in_thread

SESSIONS: tuple[type[Any], ...] = (
    PsycopgSession,
    AsyncpgSession,
    PyMySQLSession,
    AsyncmySession,
    SQLiteSession,
)
SERVERS = [name for name in NAMES if name != "sqlite"]
CALLERS: dict[str, Any] = {"sqlite": sqlite, "postgres": postgres, "mariadb": mysql, "mysql": mysql}

on_servers = pytest.mark.parametrize("database", SERVERS, indirect=True)
on_sqlite = pytest.mark.parametrize("database", ["sqlite"], indirect=True)
on_postgres = pytest.mark.parametrize("database", ["postgres"], indirect=True)
on_mysql = pytest.mark.parametrize(
    "database", [name for name in SERVERS if name != "postgres"], indirect=True
)
async_only = pytest.mark.parametrize("flavour", ["async"], indirect=True)


async def run(mq: Any, make: Callable[[], Operation[Any]]) -> Any:
    """Run an operation of the test's own, as the client runs its own."""
    if asyncio.iscoroutinefunction(mq._driver.run):
        return await mq._driver.run(make)
    return await in_thread(mq._driver.run, make)


# --- an operation that fails half way -----------------------------------------------------------

WRITE = Statement(
    "test.write",
    "INSERT INTO rowmq_partitions (topic, partition_key, next_offset) VALUES ('t', 'k', 5)",
)


def write_and_raise() -> Operation[None]:
    yield WRITE
    raise ZeroDivisionError


def write_and_be_refused() -> Operation[None]:
    yield WRITE
    yield Statement("test.refused", "SELECT nonsense FROM rowmq_partitions")


@pytest.mark.parametrize("make", [write_and_raise, write_and_be_refused])
async def test_a_failed_operation_leaves_nothing_written_and_nothing_locked(
    connect: Connect, database: Database, make: Callable[[], Operation[None]]
) -> None:
    mq = await connect(database.url, pool_size=1)
    rival = await connect(database.url, lock_timeout=1, retry_for=0)
    with pytest.raises((ZeroDivisionError, errors.DatabaseError)):
        await run(mq, make)
    assert await mq.topics() == []  # on the connection that wrote
    assert (await rival.publish("t", "at once", key="k")).offset == 1
    assert (await mq.publish("t", "too", key="k")).offset == 2


# --- places in the pool --------------------------------------------------------------------------


class Interrupted(BaseException):
    """As KeyboardInterrupt and CancelledError are: no Exception."""


@pytest.mark.parametrize("kind", [Interrupted, ZeroDivisionError])
async def test_a_begin_that_is_interrupted_costs_no_place(
    connect: Connect,
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
    kind: type[BaseException],
) -> None:
    def interrupted(_: Any) -> None:
        raise kind

    mq = await connect(database.url, pool_size=2, pool_timeout=0.2)
    with monkeypatch.context() as patch:
        for session in SESSIONS:
            patch.setattr(session, "begin", interrupted)
        for _ in range(3):
            with pytest.raises(kind):
                async with mq.transaction():
                    pass
    async with mq.transaction() as tx:
        await tx.publish("t", 1)
        await mq.read("t")  # a second connection, while the first is lent out


@async_only
async def test_a_begin_that_is_cancelled_costs_no_place(
    connect: Connect, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    mq = await connect(database.url, pool_size=2, pool_timeout=0.2)
    beginning = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def never(_: Any) -> None:
        beginning.set()
        await asyncio.Event().wait()

    def slowly(_: Any) -> None:
        loop.call_soon_threadsafe(beginning.set)
        time.sleep(0.05)

    async def work() -> None:
        async with mq.transaction():
            pass

    with monkeypatch.context() as patch:
        for session in SESSIONS:
            patch.setattr(session, "begin", slowly if session is SQLiteSession else never)
        for _ in range(3):
            beginning.clear()
            task = asyncio.create_task(work())
            await beginning.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
    async with mq.transaction() as tx:
        await tx.publish("t", 1)
        await mq.read("t")


@on_servers
@pytest.mark.parametrize("call", ["publish", "transaction"])
async def test_one_lost_connection_is_enough_to_distrust_the_others(
    connect: Connect, database: Database, call: str
) -> None:
    """Else each dead connection would cost a try, and the time for those would soon be over."""
    mq = await connect(database.url, pool_size=5)
    async with AsyncExitStack() as stack:
        for _ in range(5):
            await stack.enter_async_context(mq.transaction())
    cut_connections(database)
    if call == "publish":
        await mq.publish("t", "after")
    else:
        async with mq.transaction() as tx:
            await tx.publish("t", "after")
    mq._driver.retry_for = 0
    async with AsyncExitStack() as stack:
        for _ in range(5):
            tx = await stack.enter_async_context(mq.transaction())
            await tx.execute("SELECT 1")
    assert len(await mq.read("t")) == 1


# --- SQLite: the write lock comes first ---------------------------------------------------------


def plain(database: SQLiteDatabase, *, timeout: float = 5) -> sqlite3.Connection:
    """A connection for any thread, which begins nothing by itself."""
    return sqlite3.connect(
        database.path, timeout=timeout, isolation_level=None, check_same_thread=False
    )


@on_sqlite
async def test_a_transaction_may_read_first_and_write_later(
    connect: Connect, database: Database
) -> None:
    mq = await connect(database.url)
    rival = await connect(database.url)
    for turn in range(3):
        async with mq.transaction() as tx:
            await tx.execute("SELECT COUNT(*) FROM rowmq_partitions")
            rivals = asyncio.create_task(rival.publish("t", "rival", key="k"))
            await asyncio.wait({rivals}, timeout=0.1)
            result = await tx.publish("t", "mine", key="k")
            assert result.offset == 2 * turn + 1
        await rivals
    payloads = [m.payload for m in await mq.read("t")]
    assert payloads == ["mine", "rival"] * 3


@on_sqlite
@pytest.mark.parametrize("known", [True, False], ids=["known partition", "new partition"])
async def test_a_callers_plain_begin_takes_the_write_lock_before_it_reads(
    connect: Connect, database: Database, known: bool
) -> None:
    assert isinstance(database, SQLiteDatabase)
    mq = await connect(database.url)
    if known:
        await mq.publish("t", "before", key="k", id="before")
    database.execute("CREATE TABLE own (id integer)")
    tried: list[str] = []

    def come_between(statement: Statement) -> None:
        if tried:  # the first statement has run
            with suppress(sqlite3.OperationalError):
                rival.execute("INSERT INTO own VALUES (1)")
        tried.append(statement.name)

    with closing(plain(database, timeout=0)) as rival, closing(plain(database)) as caller:
        caller.execute("BEGIN")
        mq._driver.observers.append(come_between)
        await mq.publish("t", "mine", key="k", id="x", connection=caller)
        mq._driver.observers.clear()
        caller.execute("COMMIT")
    assert len(tried) > 2
    assert "mine" in [m.payload for m in await mq.read("t")]


@on_sqlite
@pytest.mark.parametrize(
    ("verb", "left"),
    [
        ("put", {"pending": 2, "processing": 1}),
        ("offer", {"pending": 1, "processing": 1}),
        ("ack", {"pending": 1, "completed": 1}),
    ],
)
async def test_a_callers_plain_begin_takes_the_write_lock_before_jobs_are_read(
    connect: Connect, database: Database, verb: str, left: dict[str, int]
) -> None:
    assert isinstance(database, SQLiteDatabase)
    mq = await connect(database.url)
    queue = mq.queue("q")
    await queue.put("claimed")
    job = await queue.try_poll()
    await queue.offer_or_update("key", "before")
    database.execute("CREATE TABLE own (id integer)")
    tried: list[str] = []

    def come_between(statement: Statement) -> None:
        if tried:  # the first statement has run
            with suppress(sqlite3.OperationalError):
                rival.execute("INSERT INTO own VALUES (1)")
        tried.append(statement.name)

    with closing(plain(database, timeout=0)) as rival, closing(plain(database)) as caller:
        caller.execute("BEGIN")
        mq._driver.observers.append(come_between)
        if verb == "put":
            await queue.put("mine", connection=caller)
        elif verb == "offer":
            await queue.offer_or_update("key", "mine", connection=caller)
        else:
            await job.ack(connection=caller)
        mq._driver.observers.clear()
        caller.execute("COMMIT")
    assert len(tried) > 2
    counts = await queue.counts()
    assert {state: count for state, count in counts.items() if count} == left


# --- rivals --------------------------------------------------------------------------------------


@pytest.mark.parametrize("known", [True, False], ids=["known partition", "new partition"])
async def test_a_rival_in_a_transaction_waits_and_finds_the_id(
    connect: Connect, database: Database, known: bool
) -> None:
    """Its statement began before the first one committed, and must see it all the same."""
    first, second = await connect(database.url), await connect(database.url)

    async def rival(id: str) -> Any:
        async with second.transaction() as tx:
            return await tx.publish("t", "rival", key="k", id=id)

    if known:
        await first.publish("t", "before", key="k", id="before")
    for id in ("a", "b", "c"):
        async with first.transaction() as tx:
            mine = await tx.publish("t", "first", key="k", id=id)
            waiting = asyncio.create_task(rival(id))
            await asyncio.wait({waiting}, timeout=0.1)
            assert not waiting.done()
        theirs = await waiting
        assert (mine.duplicate, theirs.duplicate) == (False, True)
        assert mine.offset == theirs.offset
    assert len(await first.read("t")) == 3 + known


@on_servers
async def test_the_lock_is_held_before_ids_are_looked_for(mq: Any, database: Database) -> None:
    """Who looks before has seen nothing of the rival who commits in between."""
    await mq.publish("t", "before", key="k", id="before")
    free: list[list[str]] = []

    def look(statement: Statement) -> None:
        if "rowmq_messages" in statement.sql:
            free.append(free_keys(database))

    assert free_keys(database) == ["k"]
    async with mq.transaction() as tx:
        mq._driver.observers.append(look)
        assert (await tx.publish("t", "again", key="k", id="before")).duplicate
        await tx.publish("t", "new", key="k", id="new")
        mq._driver.observers.clear()
    assert len(free) >= 2
    assert not any(free)


async def test_rivals_in_transactions_agree_on_one_message(
    connect: Connect, database: Database
) -> None:
    clients = [await connect(database.url, pool_size=2) for _ in range(6)]

    async def rival(mq: Any, id: str) -> Any:
        async with mq.transaction() as tx:
            return await tx.publish("t", 1, key="k", id=id)

    for turn in range(10):
        results = await asyncio.gather(*(rival(mq, str(turn)) for mq in clients))
        assert [r.offset for r in results] == [turn + 1] * 6
        assert sum(not r.duplicate for r in results) == 1
    assert [m.id for m in await clients[0].read("t")] == [str(turn) for turn in range(10)]


@on_postgres
@pytest.mark.parametrize("prepared", [True, False], ids=["prepared", "unprepared"])
async def test_rivals_agree_with_and_without_prepared_statements(
    connect: Connect, database: Database, prepared: bool
) -> None:
    clients = [
        await connect(database.url, pool_size=2, prepared_statements=prepared) for _ in range(8)
    ]
    ids = [str(n) for n in range(25)]

    async def rival(mq: Any, id: str) -> list[Any]:
        single = await mq.publish("t", 1, key="k", id=id)
        batch = [Message(payload=1, key=key, id=f"many-{id}") for key in ("l", "k")]
        return [single, *await mq.publish_many("t", batch)]

    created: Counter[tuple[str, str]] = Counter()
    for id in ids:
        for results in await asyncio.gather(*(rival(mq, id) for mq in clients)):
            created.update((r.key, r.id) for r in results if not r.duplicate)
    assert set(created.values()) == {1}
    assert len(created) == 3 * len(ids)
    messages = await clients[0].read("t", limit=1000)
    assert sorted((m.key, m.id) for m in messages) == sorted(created)


def free_keys(database: Database) -> list[str]:
    """The partition keys of the topic that nobody has locked."""
    rows = database.execute(
        "SELECT partition_key FROM rowmq_partitions WHERE topic = 't' FOR UPDATE SKIP LOCKED"
    )
    return sorted(key if isinstance(key, str) else key.decode() for (key,) in rows)


@on_servers
@pytest.mark.parametrize("given", [True, False], ids=["given ids", "made ids"])
async def test_locks_are_taken_in_the_order_of_names(
    connect: Connect, database: Database, given: bool
) -> None:
    """Whoever waits for a name holds all before it and none after it: so there are no circles."""
    keys = [f"k{n:03}" for n in range(300)]
    batch = [Message(payload=1, key=key, id="x" if given else None) for key in reversed(keys)]
    mq = await connect(database.url)
    await mq.publish_many("t", [Message(payload=0, key=key) for key in keys])
    hold = "SELECT 1 FROM rowmq_partitions WHERE topic = 't' AND partition_key = 'k270' FOR UPDATE"
    holder: Any
    if isinstance(database, MySQLDatabase):
        holder = pymysql.connect(**database.options(), ssl_disabled=True)
    else:
        holder = psycopg.connect(database.url)

    async def in_transaction() -> None:
        async with mq.transaction() as tx:
            await tx.publish_many("t", batch)

    with closing(holder), holder.cursor() as cursor:
        for publish in (lambda: mq.publish_many("t", batch), in_transaction):
            cursor.execute(hold)
            task = asyncio.ensure_future(publish())
            free, deadline = keys, time.monotonic() + 5
            while free != keys[271:] and time.monotonic() < deadline:
                free = await in_thread(free_keys, database)
            holder.rollback()
            await task
            assert free == keys[271:]


# --- MySQL: what a session is set to ------------------------------------------------------------


@on_mysql
async def test_a_mysql_session_is_set_up(connect: Connect, database: Database) -> None:
    mq = await connect(database.url, lock_timeout=7)
    variables = "SHOW SESSION VARIABLES WHERE Variable_name IN ({})".format(
        "'tx_isolation', 'transaction_isolation', 'sql_mode', 'innodb_lock_wait_timeout'"
    )
    async with mq.transaction() as tx:
        found = dict(await tx.execute(variables))
    isolation = {found.pop(name, None) for name in ("tx_isolation", "transaction_isolation")}
    assert isolation - {None} == {"READ-COMMITTED"}
    assert "STRICT_ALL_TABLES" in found["sql_mode"].split(",")
    assert found["innodb_lock_wait_timeout"] == "7"


@on_mysql
async def test_a_mysql_session_is_strict_and_counts_what_matches(
    mq: Any, database: Database
) -> None:
    database.execute("DROP TABLE IF EXISTS own_short")
    database.execute("CREATE TABLE own_short (id integer PRIMARY KEY, name varchar(3))")
    async with mq.transaction() as tx:
        await tx.execute("INSERT INTO own_short VALUES (1, 'a'), (2, 'a'), (3, 'b')")
        update = await tx.execute("UPDATE own_short SET name = 'a' WHERE id <= 2")
        assert update.rowcount == 2  # matched, though none is changed
    with pytest.raises(errors.DatabaseError):
        async with mq.transaction() as tx:
            await tx.execute("INSERT INTO own_short VALUES (4, 'too long')")
    assert database.execute("SELECT COUNT(*) FROM own_short") == [(3,)]


@on_mysql
async def test_a_mysql_transaction_sees_what_others_commit(mq: Any, database: Database) -> None:
    async with mq.transaction() as tx:
        count = "SELECT COUNT(*) FROM rowmq_partitions"
        assert (await tx.execute(count)).rows[0][0] == 0
        database.execute(WRITE.sql)
        assert (await tx.execute(count)).rows[0][0] == 1


# --- time ----------------------------------------------------------------------------------------


async def test_times_rise_within_one_transaction(mq: Any) -> None:
    async with mq.transaction() as tx:
        for n, id in enumerate((None, "x", None)):
            await tx.publish("t", n, key="k", id=id)
            await asyncio.sleep(0.02)
    times = [m.published_at for m in await mq.read("t")]
    assert len(times) == 3
    assert times == sorted(set(times))


async def test_times_rise_within_a_callers_transaction(database: Database, flavour: str) -> None:
    kinds: list[Kind] = CALLERS[database.name].KINDS
    kind = next(kind for kind in kinds if kind.flavour == flavour)
    database.execute("DROP TABLE IF EXISTS callers_own")
    database.execute("CREATE TABLE callers_own (note varchar(10))")
    async with client(flavour, database.url) as held:
        async with transaction(held, kind.open(database)) as inside:
            await inside.run("INSERT INTO callers_own VALUES ('mine')")
            for n, id in enumerate((None, "x", None)):
                await inside.publish("t", n, key="k", id=id)
                await asyncio.sleep(0.02)
        times = [m.published_at for m in await held.call(held.mq.read, "t")]
    assert len(times) == 3
    assert times == sorted(set(times))


# --- async SQLite: a thread cannot be cancelled -------------------------------------------------


@on_sqlite
@async_only
@pytest.mark.parametrize("call", ["execute", "publish", "publish_many"])
async def test_a_cancelled_call_in_a_transaction_waits_for_its_thread(
    connect: Connect, database: Database, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    mq = await connect(database.url, pool_size=3)
    database.execute("CREATE TABLE own (id integer)")
    loop, running = asyncio.get_running_loop(), asyncio.Event()
    in_thread_now: list[str] = []
    still_running: list[str] = []
    calls: dict[str, Callable[[Any], Any]] = {
        "execute": lambda tx: tx.execute("INSERT INTO own VALUES (1)"),
        "publish": lambda tx: tx.publish("t", 1),
        "publish_many": lambda tx: tx.publish_many("t", [Message(payload=n) for n in range(5)]),
    }

    def slow(method: Callable[..., Any]) -> Callable[..., Any]:
        def slowly(*args: Any) -> Any:
            in_thread_now.append(method.__name__)
            loop.call_soon_threadsafe(running.set)
            try:
                time.sleep(0.05)
                return method(*args)
            finally:
                in_thread_now.pop()

        return slowly

    async def work() -> None:
        async with mq.transaction() as tx:
            with monkeypatch.context() as patch:
                for name in ("execute", "query"):
                    patch.setattr(SQLiteSession, name, slow(getattr(SQLiteSession, name)))
                try:
                    await calls[call](tx)
                finally:
                    still_running.extend(in_thread_now)

    for _ in range(3):
        running.clear()
        task = asyncio.create_task(work())
        await running.wait()
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()
        assert still_running + in_thread_now == []
    counting = "SELECT (SELECT COUNT(*) FROM own) + (SELECT COUNT(*) FROM rowmq_partitions)"
    assert database.execute(counting) == [(0,)]
    assert (await mq.publish("t", "after")).offset == 1


@on_sqlite
@async_only
async def test_what_was_cancelled_does_not_appear_later(
    connect: Connect, database: Database
) -> None:
    """Whether it happened is settled when the cancelled call ends."""
    assert isinstance(database, SQLiteDatabase)
    mq = await connect(database.url)

    async def release(holder: sqlite3.Connection) -> None:
        await asyncio.sleep(0.05)
        holder.execute("COMMIT")

    for turn in range(3):
        with closing(plain(database)) as holder:
            holder.execute("BEGIN IMMEDIATE")
            task = asyncio.create_task(mq.publish_many("t", [Message(payload=turn)]))
            await asyncio.wait({task}, timeout=0.05)  # it waits for the lock
            task.cancel()
            releasing = asyncio.create_task(release(holder))
            await asyncio.wait({task})
            settled = len(await mq.read("t"))
            await releasing
            await asyncio.sleep(0.1)
            assert len(await mq.read("t")) == settled


@on_sqlite
@async_only
async def test_transactions_cancelled_at_any_moment_leave_nothing(
    connect: Connect, database: Database
) -> None:
    mq = await connect(database.url, pool_size=2)

    async def work() -> None:
        async with mq.transaction() as tx:
            for n in range(1000):
                await tx.publish("t", n)

    for turn in range(40):
        task = asyncio.create_task(work())
        await asyncio.wait({task}, timeout=turn * 0.0005)
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()
        assert await mq.topics() == []
    assert (await mq.publish("t", "after")).offset == 1


# --- one statement, one exchange ----------------------------------------------------------------


async def watched(
    mq: Any, monkeypatch: pytest.MonkeyPatch, call: Callable[[], Any]
) -> tuple[list[str], int]:
    """The names of the statements of a call, and how often it began a transaction."""
    statements: list[str] = []
    begun: list[int] = []

    def counting(begin: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def counted(session: Any) -> Any:
            begun.append(1)
            return begin(session)

        return counted

    def observer(statement: Statement) -> None:
        statements.append(statement.name)

    with monkeypatch.context() as patch:
        for session in SESSIONS:
            patch.setattr(session, "begin", counting(session.begin))
        mq._driver.observers.append(observer)
        await call()
        mq._driver.observers.remove(observer)
    return statements, len(begun)


@on_postgres
async def test_a_publish_on_postgres_is_one_statement_without_begin(
    mq: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = [Message(payload=n, key=f"k{n}") for n in range(10)]
    for call in (
        lambda: mq.publish("t", 1),
        lambda: mq.publish("t", 1, key="k"),
        lambda: mq.publish("t", 1, key="k", id="x"),
        lambda: mq.publish_many("t", batch),
    ):
        statements, begun = await watched(mq, monkeypatch, call)
        assert len(statements) == 1
        assert begun == 0
    assert len(await mq.read("t")) == 13


async def test_what_takes_one_statement_takes_no_begin(
    mq: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for call in (mq.topics, lambda: mq.configure_topic("t", max_payload_bytes=5)):
        statements, begun = await watched(mq, monkeypatch, call)
        assert len(statements) == 1
        assert begun == 0
    assert [topic.max_payload_bytes for topic in await mq.topics()] == [5]
    # And what takes more than one is counted by the same means.
    async with mq.transaction():
        pass
    statements, begun = await watched(mq, monkeypatch, lambda: run(mq, write_two))
    assert (len(statements), begun) == (2, 1)


def write_two() -> Operation[None]:
    yield WRITE
    yield Statement("test.undo", "DELETE FROM rowmq_partitions")
