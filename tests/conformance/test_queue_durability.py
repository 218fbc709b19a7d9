"""Relaxed queues: which commits wait for the disk, as seen by a trigger when they are made."""

import asyncio
import contextlib
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import rowmq
from rowmq import ScheduledMessage, errors
from rowmq.store.queues import IDS_A_BLOCK
from tests.choices import async_only, on_mysql, on_sqlite
from tests.conftest import Connect
from tests.consuming import eventually, statements
from tests.databases import Database, SQLiteDatabase
from tests.servers import PostgresServer

on_relaxing = pytest.mark.parametrize("database", ["sqlite", "postgres"], indirect=True)

FULL, RELAXED = {"full"}, {"relaxed"}

LEVELS = {"1": "relaxed", "2": "full", "off": "relaxed", "on": "full"}

WATCHED = ("jobs", "locks", "completed", "failed", "messages")

SEE_ON_POSTGRES = """
    CREATE TABLE seen (level text);
    CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO seen VALUES (current_setting('synchronous_commit'));
        RETURN NULL;
    END $$"""


class Spy:
    """Sees with what durability rows of RowMQ's tables are committed."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.postgres = database.dialect == "postgres"
        database.execute(SEE_ON_POSTGRES if self.postgres else "CREATE TABLE seen (level text)")
        for table in WATCHED:
            self._watch(f"rowmq_{table}")

    def _watch(self, table: str) -> None:
        if self.postgres:
            # Deferred, it runs at the commit, when nothing can change the level any more.
            self.database.execute(
                f"CREATE CONSTRAINT TRIGGER see AFTER INSERT OR UPDATE OR DELETE ON {table} "
                f"DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION see()"
            )
            return
        for event in ("INSERT", "UPDATE", "DELETE"):
            self.database.execute(
                f"CREATE TRIGGER see_{table}_{event} AFTER {event} ON {table} BEGIN "
                f"INSERT INTO seen SELECT synchronous FROM pragma_synchronous; END"
            )

    def close(self) -> None:
        if self.postgres:
            self.database.execute("DROP TABLE seen; DROP FUNCTION see CASCADE")

    async def __call__(self, call: Awaitable[Any]) -> set[str]:
        """How durable what a call writes is."""
        self.database.execute("DELETE FROM seen")
        await call
        return {LEVELS[level] for (level,) in self.database.execute("SELECT level FROM seen")}


@pytest.fixture
def spy(database: Database) -> Iterator[Spy]:
    found = Spy(database)
    yield found
    found.close()


async def relaxed(mq: Any, name: str = "q") -> Any:
    """A relaxed queue that its client has put to and settled in before."""
    q = mq.queue(name)
    await q.put(0)
    await q.configure(durability="relaxed")
    await q.put(1)
    await q.ack(await q.try_poll_many(2))
    return q


PUTS: dict[str, Callable[[Any], Awaitable[Any]]] = {
    "put": lambda q: q.put(1),
    "put later": lambda q: q.put(1, delay=60),
    "put_many": lambda q: q.put_many([1, 2]),
    "put with a key": lambda q: q.put(1, key="k"),
    "put in a line": lambda q: q.put(1, ordering_key="o"),
    "offer": lambda q: q.offer_or_update("k", 2, delay=1),
    "offer again": lambda q: q.offer_or_update("k", 3, delay=2),
}

SETTLES: dict[str, Callable[[Any], Awaitable[Any]]] = {
    "ack": lambda job: job.ack(),
    "nack": lambda job: job.nack(delay=60),
    "reject": lambda job: job.reject(error="no"),
    "release": lambda job: job.release(),
}


@on_relaxing
async def test_puts_and_settles_of_a_relaxed_queue_do_not_wait_for_the_disk(
    mq: Any, spy: Spy
) -> None:
    q = await relaxed(mq)
    for name, put in PUTS.items():
        assert await spy(put(q)) == RELAXED, name
    await q.put_many(range(10))
    for name, settle in SETTLES.items():
        job = await q.try_poll()
        assert await spy(settle(job)) == RELAXED, name
    jobs = await q.try_poll_many(3)
    assert await spy(q.ack(jobs)) == RELAXED
    await q.configure(keep_completed=False, max_in_flight=1)
    assert await spy((await q.try_poll()).ack()) == RELAXED


@on_relaxing
async def test_claims_and_extensions_wait_for_the_disk(mq: Any, spy: Spy) -> None:
    q = await relaxed(mq)
    await q.put_many(range(10))
    assert await spy(q.try_poll()) == FULL
    assert await spy(q.try_poll_many(2)) == FULL
    job = await q.try_poll()
    assert await spy(job.extend(600)) == FULL
    await q.configure(max_in_flight=100)
    assert await spy(q.try_poll()) == FULL


@on_relaxing
async def test_other_queues_and_topics_wait_for_the_disk(mq: Any, spy: Spy) -> None:
    await relaxed(mq, "other")
    q = mq.queue("q")
    for name, put in PUTS.items():
        assert await spy(put(q)) == FULL, name
    await q.put_many(range(10))
    for name, settle in SETTLES.items():
        job = await q.try_poll()
        assert await spy(settle(job)) == FULL, name
    assert await spy(mq.publish("t", 1)) == FULL


@on_relaxing
async def test_a_callers_transaction_waits_for_the_disk(mq: Any, spy: Spy) -> None:
    q = await relaxed(mq)
    await q.put_many([1, 2, 3])
    one, two, _ = await q.try_poll_many(3)

    async def write() -> None:
        async with mq.transaction() as tx:
            await q.put(1, connection=tx)
            await q.put(1, key="k", connection=tx)
            await one.ack(connection=tx)
            await two.reject(connection=tx)

    async def hold() -> None:
        async with q.hold() as job:
            await job.tx.execute("SELECT 1")

    assert await spy(write()) == FULL
    assert await spy(hold()) == FULL


@on_relaxing
async def test_a_tick_waits_for_the_disk(mq: Any, spy: Spy) -> None:
    await relaxed(mq)
    later = [ScheduledMessage("k", 1, at=datetime.now(UTC) + timedelta(hours=1))]
    assert await spy(mq.cron.install_tick("v1", "tick", later, queue="q")) == FULL
    await mq.cron.install_periodic("often", 0.1, queue="q", payload=1, tend=False)

    async def tend() -> None:
        await mq.cron.start()
        await eventually(lambda: spy.database.execute("SELECT * FROM seen"))
        await mq.cron.stop()

    assert await spy(tend()) == FULL


@on_relaxing
@async_only  # whose calls of one moment share a transaction
async def test_what_shares_a_transaction_with_a_full_queue_waits_for_the_disk(
    mq: Any, spy: Spy
) -> None:
    q, other = await relaxed(mq), mq.queue("other")
    await other.put(0)
    with statements(mq) as seen:
        together = asyncio.gather(q.put(1), other.put(1))
        assert await spy(together) == FULL
    writes = [s for s in seen if s.name in ("jobs.put", "jobs.insert")]
    assert len(writes) == 1  # they did share one
    poller = mq.poller("q", "other")
    jobs = await poller.try_poll_many(3)
    assert {job.queue for job in jobs} == {"q", "other"}
    assert await spy(poller.ack(jobs)) == FULL
    assert await spy(q.put(1)) == RELAXED


@on_relaxing
async def test_a_lane_is_made_for_good(mq: Any, spy: Spy) -> None:
    q = await relaxed(mq)
    assert await spy(q.put(1, priority=5)) == FULL
    assert await spy(q.put(1, priority=5)) == RELAXED
    assert await spy(q.put(1, key="k", priority=6)) == FULL
    some = [ScheduledMessage(str(n), n, delay=60, priority=n) for n in (0, 7)]
    assert await spy(q.offer_batch(some)) == FULL
    more = [ScheduledMessage(str(n), n, delay=90, priority=n) for n in (0, 7)]
    assert await spy(q.offer_batch(more)) == RELAXED


@on_relaxing
async def test_a_queue_that_another_client_makes_full_is_full_at_once(
    mq: Any, spy: Spy, connect: Connect, database: Database
) -> None:
    q, other = await relaxed(mq), await connect(database.url)
    await q.put_many([1, 2])
    one, two = await q.try_poll_many(2)
    await other.queue("q").configure(durability="full")
    assert await spy(one.ack()) == FULL
    assert await spy(q.put(1)) == FULL
    await other.queue("q").configure(durability="relaxed")
    await q.put(1)
    assert await spy(q.put(1)) == RELAXED
    assert await spy(two.ack()) == RELAXED


LEVEL = {"sqlite": "PRAGMA synchronous", "postgres": "SHOW synchronous_commit"}


@on_relaxing
async def test_a_connection_is_as_durable_as_ever_after_relaxed_calls(
    connect: Connect, database: Database
) -> None:
    mq = await connect(database.url, pool_size=1)

    async def level() -> str:
        async with mq.transaction() as tx:
            ((found,),) = (await tx.execute(LEVEL[database.dialect])).rows
        return LEVELS[str(found)]

    q = await relaxed(mq)
    await q.put(1, key="k")
    assert await level() == "full"
    with pytest.raises(errors.KeyTaken):
        await q.put(2, key="k")
    assert await level() == "full"
    await (await q.try_poll()).ack()
    assert await level() == "full"


@on_sqlite
async def test_a_relaxed_put_that_cannot_begin_leaves_the_connection_as_it_was(
    connect: Connect, database: SQLiteDatabase
) -> None:
    mq = await connect(database.url, pool_size=1, lock_timeout=0.01, retry_for=0)
    q = await relaxed(mq)
    with closing(sqlite3.connect(database.path, isolation_level=None)) as rival:
        rival.execute("BEGIN IMMEDIATE")
        with pytest.raises(errors.Locked):
            await q.put(1)
    async with mq.transaction() as tx:
        assert (await tx.execute("PRAGMA synchronous")).rows == [(2,)]


@on_relaxing
@async_only  # what is asked of the database is the same
async def test_relaxed_calls_cost_no_more_statements_on_a_server(
    connect: Connect, database: Database
) -> None:
    mq = await connect(database.url, notify=False)

    async def cost(call: Awaitable[Any]) -> int:
        with statements(mq) as seen:
            await call
        return len(seen)

    costs: dict[str, list[int]] = {}
    for durability in ("full", "relaxed"):
        q = mq.queue(durability)
        await q.put(0)
        await q.configure(durability=durability)
        await q.put(0)
        await q.ack(await q.try_poll_many(2))
        puts = [await cost(q.put(1)), await cost(q.put(2, key="k"))]
        plain, keyed = await q.try_poll_many(2)
        costs[durability] = [*puts, await cost(plain.ack()), await cost(keyed.ack())]
    # A look before the transaction begins, what begins it so, and a look in it.
    more = 3 if database.dialect == "sqlite" else 0
    assert costs["relaxed"] == [count + more for count in costs["full"]]


@on_relaxing
@async_only  # what is stored is the same
async def test_durability_stays_as_it_was_set(
    mq: Any, connect: Connect, database: Database
) -> None:
    q = mq.queue("q")
    await q.put(1)
    (info,) = await mq.queues()
    assert info.durability == "full"
    await q.configure(durability="relaxed", rate=5)
    await q.configure(rate=6)
    await q.pause()
    (info,) = await (await connect(database.url)).queues()
    assert (info.durability, info.rate, info.paused) == ("relaxed", 6, True)
    await q.configure(durability="full")
    (info,) = await mq.queues()
    assert info.durability == "full"


@on_mysql
async def test_a_server_that_cannot_relax_one_queue_says_so(mq: Any) -> None:
    q = mq.queue("q")
    with pytest.raises(errors.InvalidOption, match="innodb_flush_log_at_trx_commit"):
        await q.configure(durability="relaxed", rate=5)
    assert await mq.queues() == []
    async with mq.transaction() as tx:
        with pytest.raises(errors.InvalidOption):
            await q.configure(durability="relaxed", connection=tx)
        await q.configure(durability="full", connection=tx)
    (info,) = await mq.queues()
    assert (info.durability, info.rate) == ("full", None)


LAZY = {"wal_writer_delay": "10s", "bgwriter_lru_maxpages": "0", "autovacuum": "off"}
"""With these, nothing but a commit that waits for it writes to the disk."""


def test_a_crash_gives_no_ids_to_two_clients() -> None:
    with PostgresServer(**LAZY) as server, ExitStack() as stack:
        mq, other, third = [stack.enter_context(rowmq.connect(server.url)) for _ in range(3)]
        mq.migrate()
        mq.queue("q").configure(durability="relaxed")
        for client in (mq, other):
            client.queue("q").put_many(["a lane, and all ids"] * IDS_A_BLOCK)
        # A sequence is logged for 32 values ahead, here by one who does not commit: the next one
        # has nothing to log, and its put does not wait for the disk.
        with contextlib.suppress(errors.RowMQError), mq.transaction() as tx:
            for _ in range(33):
                tx.execute("SELECT nextval(pg_get_serial_sequence('rowmq_job_ids', 'id'))")
            taken = other.queue("q").put("lost").id
            server.kill()
            server.restart()
        assert other.queue("q").get(taken) is None
        assert third.queue("q").put("new").id > taken


def test_a_crash_takes_the_end_of_a_relaxed_queue_and_nothing_else() -> None:
    with PostgresServer(**LAZY) as server, rowmq.connect(server.url) as mq:
        mq.migrate()
        q, full = mq.queue("q"), mq.queue("full")
        q.configure(durability="relaxed")
        full.put("a lane")
        q.put("claimed")
        claimed = q.try_poll_many(1)[0]
        claimed.ack()
        lost = q.put("lost", key="k")
        server.kill()
        server.restart()
        assert q.get(lost.id) is None
        assert [job.id for job in q.live(state=rowmq.State.PROCESSING)] == [claimed.id]
        taken_along = q.put("taken along", key="k")
        full.put("kept")
        server.kill()
        server.restart()
        assert (
            [job.id for job in q.live(state=rowmq.State.PENDING)] == [taken_along.id] != [lost.id]
        )
        assert full.counts()["pending"] == 2
