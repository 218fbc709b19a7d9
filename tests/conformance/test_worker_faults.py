"""What goes wrong around a worker: connections that break, servers that restart, files in use."""

import asyncio
import contextlib
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pymysql
import pytest

import rowmq
from rowmq import App, Message
from tests.choices import async_only, on_servers, on_sqlite
from tests.conformance.test_faults import cut_connections
from tests.conftest import Connect
from tests.consuming import eventually
from tests.databases import Database, Databases, SQLiteDatabase
from tests.flavours import in_thread
from tests.servers import MariaDBServer, PgBouncer, PostgresServer
from tests.working import AT_ONCE, new_app

pytestmark = async_only

Server = PostgresServer | MariaDBServer

COUNT = 300


class Load:
    """Handlers of every kind, each with its own queue or topic, and what they have done."""

    names = ("jobs", "threads", "transactions", "topic")

    def __init__(self, app: App, seconds: float = 0.005) -> None:
        self.done: dict[str, Counter[int]] = {name: Counter() for name in self.names}
        done = self.done
        often: dict[str, Any] = {"retry": AT_ONCE, "max_deliveries": 1_000}

        @app.worker("jobs", concurrency=5, lock_timeout=1, **often)
        async def jobs(number: int) -> None:
            await asyncio.sleep(seconds)
            done["jobs"][number] += 1

        @app.worker("threads", concurrency=5, lock_timeout=1, **often)
        def threads(number: int) -> None:
            time.sleep(seconds)
            done["threads"][number] += 1

        @app.worker("transactions", concurrency=5, lock_timeout=1, transactional=True, **often)
        async def transactions(number: int, tx: rowmq.AsyncTransaction) -> None:
            await tx.publish("effects", number)
            done["transactions"][number] += 1

        @app.subscriber("topic", group="g", concurrency=5, lease_duration=1, visibility=1, **often)
        async def topic(number: int) -> None:
            await asyncio.sleep(seconds)
            done["topic"][number] += 1

    async def fill(self, mq: Any) -> None:
        for name in self.names[:3]:
            await mq.queue(name).put_many(range(COUNT))
        await mq.publish_many("topic", [Message(payload=n, key=f"k{n % 10}") for n in range(COUNT)])

    def share(self, part: float) -> bool:
        """Whether so much of everything was done at least."""
        return all(len(done) >= part * COUNT for done in self.done.values())

    async def complete(self, mq: Any) -> bool:
        for name in self.names[:3]:
            counts = await mq.queue(name).counts()
            if counts["completed"] < COUNT:
                return False
        return not sum(row.lag for row in await mq.lag("topic", "g"))

    async def check(self, mq: Any) -> None:
        """Nothing is lost; and in transactions nothing was done twice."""
        for name, done in self.done.items():
            assert set(done) == set(range(COUNT)), name
        effects = Counter(m.payload for m in await mq.read("effects", limit=10 * COUNT))
        assert effects == dict.fromkeys(range(COUNT), 1)


def cut(database: Database) -> None:
    """End every session that is there; some end by themselves meanwhile."""
    with contextlib.suppress(pymysql.OperationalError):
        cut_connections(database)


@on_servers
async def test_connections_may_be_cut_again_and_again_under_load(
    connect: Connect, mq: Any, database: Database
) -> None:
    app = new_app(database)
    load = Load(app)
    await load.fill(mq)
    async with app:
        for part in (0.1, 0.3, 0.5):
            await eventually(lambda: load.share(part))  # noqa: B023 - it is waited for here
            await in_thread(cut, database)
        fresh = await connect(database.url)
        await eventually(lambda: load.complete(fresh), seconds=60)
        assert app.health()["status"] == "running"
    await load.check(fresh)


@pytest.fixture(scope="module", params=[PostgresServer, MariaDBServer], ids=lambda s: str(s.name))
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server of the test's own, to be restarted and killed."""
    with request.param() as started:
        with rowmq.connect(started.url) as mq:
            mq.migrate()
        yield started


async def test_work_goes_on_over_a_crash_of_the_server(connect: Connect, server: Server) -> None:
    mq = await connect(server.url, retry_for=60)
    app = App(server.url, maintenance_interval=0, retry_for=1)
    load = Load(app)
    await load.fill(mq)
    async with app:
        await eventually(lambda: load.share(0.1))
        await in_thread(server.kill)
        await asyncio.sleep(0.5)
        await in_thread(server.restart)
        await eventually(lambda: load.complete(mq), seconds=100)
        assert app.health()["healthy"]
    await load.check(mq)


async def test_a_worker_whose_server_is_gone_stops_in_time(
    connect: Connect, server: Server
) -> None:
    """What it could not settle comes again."""
    mq = await connect(server.url, retry_for=60)
    app = App(server.url, maintenance_interval=0, graceful_timeout=1, retry_for=30)
    begun, go_on = list[int](), asyncio.Event()

    @app.worker("late", concurrency=2, lock_timeout=1, fetch_batch_size=10)
    async def handle(number: int) -> None:
        begun.append(number)
        await go_on.wait()

    await mq.queue("late").put_many(range(5))
    await app.__aenter__()
    await eventually(lambda: len(begun) == 2)
    await in_thread(server.kill)
    go_on.set()
    began = time.monotonic()
    await app.__aexit__(None, None, None)
    seconds = time.monotonic() - began
    await in_thread(server.restart)
    assert seconds < 10
    async with app:
        await eventually(lambda: all_done(mq))
    assert set(begun) == set(range(5))


async def all_done(mq: Any) -> bool:
    return bool((await mq.queue("late").counts())["completed"] == 5)


async def test_behind_pgbouncer(connect: Connect, databases: Databases) -> None:
    database = databases.get("postgres")
    mq = await connect(database.url)
    with PgBouncer(database.url) as bouncer:
        app = App(bouncer.url, maintenance_interval=0, prepared_statements=False)
        load = Load(app, seconds=0)
        await load.fill(mq)
        async with app:
            await eventually(lambda: load.complete(mq), seconds=60)
        await load.check(mq)


@on_sqlite
async def test_a_file_that_somebody_else_writes_to_is_waited_for(
    mq: Any, database: Database
) -> None:
    assert isinstance(database, SQLiteDatabase)
    path = database.path
    app = new_app(database, lock_timeout=0.2, retry_for=0.2)
    load = Load(app)
    await load.fill(mq)
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            with closing(sqlite3.connect(path, timeout=30, isolation_level=None)) as other:
                other.execute("BEGIN IMMEDIATE")
                time.sleep(0.5)
                other.execute("ROLLBACK")
            stop.wait(0.3)

    writer = threading.Thread(target=write)
    async with app:
        await eventually(lambda: load.share(0.02))
        writer.start()
        try:
            await asyncio.sleep(2)
        finally:
            stop.set()
            await in_thread(writer.join)
        await eventually(lambda: load.complete(mq), seconds=60)
    await load.check(mq)
