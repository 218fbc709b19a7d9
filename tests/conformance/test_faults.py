"""What goes wrong around RowMQ: servers that restart, connections that break, locks, forks."""

import asyncio
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import psycopg
import pymysql
import pytest

import rowmq
from rowmq import Message, errors
from rowmq.drivers.mysql import AsyncmySession, PyMySQLSession
from rowmq.drivers.postgres import AsyncpgSession, PsycopgSession
from rowmq.drivers.sqlite import SQLiteSession
from rowmq.store.mysql import MySQLTopics
from rowmq.store.sqlite import SQLiteTopics
from rowmq.store.statement import Result, Statement
from rowmq.store.topics import StepwiseTopics
from tests.choices import async_only, not_on_postgres, on_mysql, on_servers, on_sqlite
from tests.conftest import Connect
from tests.databases import Database, MySQLDatabase, SQLiteDatabase
from tests.flavours import in_thread
from tests.servers import MariaDBServer, PgBouncer, PostgresServer

Server = PostgresServer | MariaDBServer


# --- servers that go away ----------------------------------------------------------------------


@pytest.fixture(scope="module", params=[PostgresServer, MariaDBServer], ids=lambda s: str(s.name))
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server of the test's own, to be restarted and killed."""
    with request.param() as started:
        with rowmq.connect(started.url) as mq:
            mq.migrate()
        yield started


@pytest.mark.parametrize("way", ["restart", "kill"])
async def test_publishing_goes_on_over_a_restart(
    connect: Connect, server: Server, flavour: str, way: str
) -> None:
    topic = f"{flavour}-{way}"
    mq = await connect(server.url, retry_for=60, pool_size=4)
    done, enough = asyncio.Event(), asyncio.Event()
    acknowledged: list[str] = []
    wanted = 10**9

    async def publish(worker: int) -> None:
        number = 0
        while not done.is_set():
            id = f"{worker}-{number}"
            result = await mq.publish(topic, number, key=f"k{worker % 2}", id=id)
            assert result.id == id
            acknowledged.append(id)
            number += 1
            if len(acknowledged) >= wanted:
                enough.set()

    tasks = [asyncio.create_task(publish(worker)) for worker in range(6)]
    await asyncio.sleep(0.3)
    before = len(acknowledged)
    if way == "kill":
        await in_thread(server.kill)
        await asyncio.sleep(0.2)
    await in_thread(server.restart)
    await asyncio.sleep(0.5)
    wanted = before + 50
    async with asyncio.timeout(30):
        await enough.wait()
    done.set()
    await asyncio.gather(*tasks)
    messages = await mq.read(topic, limit=1_000_000)
    assert sorted(m.id for m in messages) == sorted(acknowledged)
    for key in ("k0", "k1"):
        mine = [m.offset for m in messages if m.key == key]
        assert mine == list(range(1, len(mine) + 1))


async def test_a_server_that_stays_away_is_reported(connect: Connect) -> None:
    for kind in (PostgresServer, MariaDBServer):
        with kind() as server:
            mq = await connect(server.url, retry_for=0.5)
            await mq.migrate()
            await mq.publish("t", 1, key="k")
            server.kill()
            with pytest.raises((errors.DatabaseUnreachable, errors.ConnectionLost)):
                await mq.publish("t", 2, key="k")
            server.restart()
            mq._driver.retry_for = 30
            assert (await mq.publish("t", 3, key="k", id="back")).offset == 2


# --- connections that break ---------------------------------------------------------------------


def cut_connections(database: Database) -> None:
    """End every other session of a server's database, idle or not."""
    if database.name == "postgres":
        database.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    elif database.dialect == "mysql":
        rows = database.execute(
            "SELECT id FROM information_schema.processlist "
            "WHERE db = DATABASE() AND id <> CONNECTION_ID()"
        )
        for (id,) in rows:
            database.execute(f"KILL {id}")


async def test_idle_connections_may_be_cut(connect: Connect, database: Database) -> None:
    mq = await connect(database.url, pool_size=4)
    await asyncio.gather(*(mq.publish_many("t", [Message(payload=n)]) for n in range(8)))
    cut_connections(database)
    assert (await mq.publish("t", "after")).offset == 9
    cut_connections(database)
    async with mq.transaction() as tx:
        await tx.publish("t", "in a transaction")
    cut_connections(database)
    assert len(await mq.read("t")) == 10


@on_servers
async def test_a_transaction_that_is_cut_leaves_nothing(
    connect: Connect, database: Database
) -> None:
    mq = await connect(database.url)
    with pytest.raises(errors.ConnectionLost):
        async with mq.transaction() as tx:
            await tx.publish("t", 1)
            cut_connections(database)
            await tx.publish("t", 2)
    assert await mq.read("t") == []
    await mq.publish("t", 3)


SESSIONS = (PsycopgSession, AsyncpgSession, PyMySQLSession, AsyncmySession, SQLiteSession)


def lose_answers(monkeypatch: pytest.MonkeyPatch, times: int) -> list[str]:
    """Let commits happen and then fail, as when the connection breaks before the answer comes."""
    lost: list[str] = []

    def failing(what: str) -> None:
        if len(lost) < times:
            lost.append(what)
            raise ConnectionResetError("the answer was lost")

    for kind in SESSIONS:
        asynchronous = asyncio.iscoroutinefunction(kind.commit)
        make = after_async if asynchronous else after_sync
        monkeypatch.setattr(kind, "commit", make(kind.commit, failing))
        monkeypatch.setattr(kind, "execute", make(kind.execute, failing, only_sole_writes=True))
    return lost


def after_sync(
    method: Callable[..., Any], failing: Callable[[str], None], *, only_sole_writes: bool = False
) -> Any:
    def call(self: Any, *args: Statement) -> Result:
        result = method(self, *args)
        if not only_sole_writes or (args[0].sole and args[0].name == "topics.append"):
            failing(method.__name__)
        return result  # type: ignore[no-any-return]

    return call


def after_async(
    method: Callable[..., Any], failing: Callable[[str], None], *, only_sole_writes: bool = False
) -> Any:
    async def call(self: Any, *args: Statement) -> Result:
        result = await method(self, *args)
        if not only_sole_writes or (args[0].sole and args[0].name == "topics.append"):
            failing(method.__name__)
        return result  # type: ignore[no-any-return]

    return call


@pytest.mark.parametrize("given", [True, False], ids=["given id", "made id"])
@on_servers  # there is no connection to lose
async def test_a_commit_whose_answer_is_lost_doubles_nothing(
    connect: Connect, database: Database, monkeypatch: pytest.MonkeyPatch, given: bool
) -> None:
    mq = await connect(database.url)
    await mq.publish("t", "before", key="k")
    lost = lose_answers(monkeypatch, times=2)
    result = await mq.publish("t", "once", key="k", id="x" if given else None)
    assert len(lost) == 2
    assert result.offset == 2
    if not given:
        assert not result.duplicate
    lost.clear()
    batch = [Message(payload=n, key=f"k{n % 3}", id=str(n) if given else None) for n in range(50)]
    await mq.publish_many("t", batch)
    assert len(lost) == 2
    messages = await mq.read("t", limit=1000)
    assert len(messages) == 52
    for key in {m.key for m in messages}:
        offsets = [m.offset for m in messages if m.key == key]
        assert offsets == list(range(1, len(offsets) + 1))


# --- locks ---------------------------------------------------------------------------------------


def hold_in_reverse(database: Database, holding: threading.Event, go: threading.Event) -> str:
    """Lock partition b, and then a: against the order in which RowMQ locks them."""
    # By the whole unique key: a scan would lock both at once, and there would be no circle.
    lock = (
        "UPDATE rowmq_partitions SET next_offset = next_offset "
        "WHERE topic = 't' AND partition_key = '{}'"
    )
    connection: Any
    if isinstance(database, MySQLDatabase):
        connection = pymysql.connect(**database.options())
    else:
        connection = psycopg.connect(database.url)
    with closing(connection), connection.cursor() as cursor:
        cursor.execute(lock.format("b"))
        holding.set()
        go.wait(10)
        time.sleep(0.3)
        try:
            cursor.execute(lock.format("a"))
        except (psycopg.Error, pymysql.Error) as error:
            connection.rollback()
            return type(error).__name__
        connection.commit()
        return "committed"


@on_servers
async def test_deadlocks_are_resolved_and_retried(connect: Connect, database: Database) -> None:
    mq = await connect(database.url)
    pair = [Message(payload=n, key=k) for n, k in enumerate("ab")]
    await mq.publish_many("t", pair)
    seen: list[str] = []
    driver = (mq if isinstance(mq, rowmq.AsyncRowMQ) else mq.target)._driver
    driver.observers.append(lambda statement: seen.append(statement.name))
    deadlocks = 0
    for _ in range(3):
        seen.clear()
        holding, go = threading.Event(), threading.Event()
        rival = asyncio.create_task(in_thread(hold_in_reverse, database, holding, go))
        await in_thread(holding.wait, 10)
        go.set()
        results = await mq.publish_many("t", pair)
        assert len(results) == 2
        tried_again = seen.count(seen[0]) > 1
        deadlocks += await rival != "committed" or tried_again
    assert deadlocks > 0
    assert len(await mq.read("t")) == 8


@on_mysql
async def test_callers_may_publish_to_new_keys_at_once(database: MySQLDatabase) -> None:
    """At REPEATABLE READ, as most are on MySQL: to lock a row that is missing is to lock a gap."""
    with rowmq.connect(database.url) as mq:
        mq.topics()

        def outbox(worker: int) -> None:
            with closing(pymysql.connect(**database.options(), ssl_disabled=True)) as connection:
                for turn in range(15):
                    with connection.cursor() as cursor:
                        cursor.execute("SELECT COUNT(*) FROM rowmq_topics")
                    mq.publish("outbox", 1, key=f"{worker}-{turn}", connection=connection)
                    connection.commit()

        await asyncio.gather(*(in_thread(outbox, worker) for worker in range(4)))
        assert len(mq.read("outbox", limit=100)) == 60


@not_on_postgres  # there, an error ends the caller's transaction
def test_half_a_publish_is_undone_in_a_callers_transaction(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller catches the error and commits: nothing of the publish may be there."""
    connection: Any
    if isinstance(database, MySQLDatabase):
        connection = pymysql.connect(**database.options(), ssl_disabled=True)
    else:
        assert isinstance(database, SQLiteDatabase)
        connection = sqlite3.connect(database.path)

    def fail(*_: Any) -> Any:
        raise errors.DatabaseError("between the messages and the counter")
        yield

    with closing(connection), rowmq.connect(database.url) as mq:
        mq.publish("t", "before", key="k")
        with monkeypatch.context() as broken:
            broken.setattr(StepwiseTopics, "advance_partitions", fail)
            for kind in (MySQLTopics, SQLiteTopics):
                broken.setattr(kind, "advance_partitions", fail)
            with pytest.raises(errors.DatabaseError, match="between"):
                mq.publish("t", "half", key="k", connection=connection)
        mq.publish("t", "whole", key="k", connection=connection)
        connection.commit()
        assert [(m.offset, m.payload) for m in mq.read("t")] == [(1, "before"), (2, "whole")]


async def test_a_transaction_waits_for_a_server_that_restarts(
    connect: Connect, server: Server
) -> None:
    mq = await connect(server.url, retry_for=30)
    await mq.publish("waiting", 1)
    await in_thread(server.kill)
    restarting = asyncio.create_task(in_thread(server.restart))
    async with mq.transaction() as tx:
        await tx.publish("waiting", 2)
    await restarting


async def test_waiting_calls_do_not_starve_an_open_transaction(
    connect: Connect, database: Database
) -> None:
    mq = await connect(database.url, pool_size=3)
    async with mq.transaction() as tx:
        await tx.publish("t", 0, key="k")
        waiting = [
            asyncio.create_task(mq.publish_many("t", [Message(payload=n, key="k")]))
            for n in range(8)
        ]
        await asyncio.sleep(0.05)
        async with asyncio.timeout(3):
            for n in range(5):
                await tx.publish("t", n, key="k")
    await asyncio.gather(*waiting)


@on_sqlite
async def test_sqlite_waits_for_another_writer(connect: Connect, database: SQLiteDatabase) -> None:
    mq = await connect(database.url)
    with closing(sqlite3.connect(database.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        waiting = asyncio.create_task(mq.publish("t", 1))
        assert await mq.read("t") == []  # readers do not wait
        await asyncio.sleep(0.3)
        assert not waiting.done()
        other.execute("COMMIT")
    assert (await waiting).offset == 1


async def test_a_lock_is_not_waited_for_for_ever(connect: Connect, database: Database) -> None:
    """As when `mq.publish` is written for `tx.publish`."""
    mq = await connect(database.url, lock_timeout=0.2, retry_for=0)  # a second on MariaDB
    await mq.publish("t", 0, key="k")
    async with mq.transaction() as tx:
        await tx.publish("t", "inside", key="k")
        with pytest.raises(errors.Locked, match=r"tx\.publish"):
            await mq.publish("t", "outside", key="k")
        with pytest.raises(errors.Locked, match=r"tx\.publish"):
            await mq.publish_many("t", [Message(payload=1, key="k", id="x")])
    assert [m.payload for m in await mq.read("t")] == [0, "inside"]


async def test_an_exhausted_pool_says_so(connect: Connect, database: Database) -> None:
    mq = await connect(database.url, pool_size=1, pool_timeout=0.2)
    async with mq.transaction() as tx:
        with pytest.raises(errors.PoolTimeout, match=r"pool_size.*connection="):
            await mq.read("t")
        await tx.publish("t", 1)
    assert len(await mq.read("t")) == 1


@async_only  # threads cannot be cancelled
async def test_cancelled_calls_give_their_connection_back(
    connect: Connect, database: Database
) -> None:
    mq = await connect(database.url, pool_size=1, pool_timeout=5)

    async def in_transaction() -> None:
        async with mq.transaction() as tx:
            for n in range(100):
                await tx.publish("t", n)

    for turns in range(12):
        for make in (in_transaction, lambda: mq.publish_many("t", [Message(payload=1)])):
            task = asyncio.ensure_future(make())
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    await mq.publish("t", "after all")
    offsets = [m.offset for m in await mq.read("t", limit=1000)]
    assert offsets == list(range(1, len(offsets) + 1))
    assert len(offsets) < 15


# --- forks ---------------------------------------------------------------------------------------


def in_child(work: Callable[[], object]) -> int:
    """Run something in a forked child and give its exit code."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_client_may_be_used_on_both_sides_of_a_fork(database: Database) -> None:
    with rowmq.connect(database.url) as mq:
        mq.publish("t", "parent", id="1")

        def child() -> None:
            for n in range(20):
                mq.publish("t", "child", id=f"c{n}")
            mq.close()

        assert in_child(child) == 0
        for n in range(20):
            mq.publish("t", "parent", id=f"p{n}")
        assert in_child(lambda: None) == 0
        with mq.transaction() as tx:
            tx.publish("t", "held", id="held")
            assert in_child(lambda: None) == 0
        manager = mq.transaction()
        manager.__enter__().publish("t", "the parent's to end")
        assert in_child(lambda: manager.__exit__(None, None, None)) == 0
        assert manager.__exit__(ValueError, ValueError("changed my mind"), None) is False
        assert len(mq.read("t")) == 42


# --- poolers -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pgbouncer() -> Iterator[str]:
    with PostgresServer() as postgres:
        with rowmq.connect(postgres.url) as mq:
            mq.migrate()
        with PgBouncer(postgres.url) as bouncer:
            yield bouncer.url


async def test_pgbouncer_in_transaction_mode(
    connect: Connect, pgbouncer: str, flavour: str
) -> None:
    topic = f"bounced-{flavour}"
    clients = [await connect(pgbouncer, prepared_statements=False, pool_size=2) for _ in range(6)]

    async def work(number: int) -> None:
        mq = clients[number]
        for turn in range(10):
            await mq.publish(topic, 1, key="k", id=f"s-{number}-{turn}")
            await mq.publish(topic, 1, key="k")
            batch = [Message(payload=n, key=f"k{n}", id=f"{number}-{turn}") for n in range(5)]
            await mq.publish_many(topic, batch)
            async with mq.transaction() as tx:
                await tx.publish(topic, 1, key="k", id=f"t-{number}-{turn}")
                await tx.execute("SELECT pg_sleep(0.001)")
            await mq.read(topic, limit=10)

    await asyncio.gather(*(work(number) for number in range(6)))
    messages = await clients[0].read(topic, limit=10_000)
    assert len(messages) == 6 * 10 * 8
    for key in {m.key for m in messages}:
        offsets = [m.offset for m in messages if m.key == key]
        assert offsets == list(range(1, len(offsets) + 1))
