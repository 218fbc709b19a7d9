"""Wake-ups: a publish is told at its commit, not too often, and heard by who waits for it."""

import asyncio
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest

import rowmq
from rowmq import Message
from rowmq.drivers import postgres as driver
from rowmq.drivers.postgres import PostgresWatch
from rowmq.drivers.watching import Deaf
from rowmq.store.postgres import PostgresDialect
from rowmq.store.queues import wake_name
from tests.choices import on_mysql
from tests.conftest import Connect
from tests.databases import Database, Databases
from tests.flavours import in_thread
from tests.servers import PgBouncer
from tests.unit.drivers.test_pool import exit_code, fork
from tests.unit.drivers.test_watching import Bell, Clock, until

CHANNEL = PostgresDialect().channel

on_postgres = pytest.mark.parametrize("database", ["postgres"], indirect=True)
where_heard = pytest.mark.parametrize("database", ["sqlite", "postgres"], indirect=True)


# --- publishers, on PostgreSQL --------------------------------------------------------------------


class Ear:
    """Hears what is said to subscribers, without RowMQ."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.connection = psycopg.connect(database.url, autocommit=True)
        self.connection.execute(f"LISTEN {CHANNEL}".encode())
        self.marks = 0

    def heard(self) -> list[str]:
        """All that was said since the last time: a mark of our own comes after it."""
        self.marks += 1
        mark = f"mark {self.marks}"
        self.database.execute("SELECT pg_notify(%s, %s)", (CHANNEL, mark))
        said: list[str] = []
        while mark not in said:
            found = [n.payload for n in self.connection.notifies(timeout=10, stop_after=1)]
            assert found
            said += found
        return said[: said.index(mark)]


@pytest.fixture
def ear(database: Database) -> Iterator[Ear]:
    made = Ear(database)
    with closing(made.connection):
        yield made


@pytest.fixture
async def clock(mq: Any) -> Clock:
    """What the client's publishes are throttled by: it stands, unless it is moved."""
    stopped = mq._notifier._clock = Clock()
    return stopped


@on_postgres
async def test_a_publish_tells_its_topic(mq: Any, ear: Ear) -> None:
    for topic in ("orders", "qu'ote", "emoji 😀", "back\\slash", "per%cent", "t" * 200):
        await mq.publish(topic, 1, key="k")
        assert ear.heard() == [topic]


@on_postgres
@pytest.mark.parametrize("given", [True, False], ids=["given ids", "made ids"])
async def test_a_batch_tells_its_topic_once(mq: Any, ear: Ear, given: bool) -> None:
    batch = [Message(payload=n, key=f"k{n % 3}", id=str(n) if given else None) for n in range(9)]
    await mq.publish_many("small", batch)
    assert ear.heard() == ["small"]
    await mq.publish_many("large", [Message(payload=n, key=f"k{n % 3}") for n in range(12_000)])
    assert ear.heard() == ["large"]


@on_postgres
@pytest.mark.parametrize("id", ["given", None])
async def test_a_transaction_tells_when_it_commits(mq: Any, ear: Ear, id: str | None) -> None:
    async with mq.transaction() as tx:
        await tx.publish("t", 1, id=id)
        assert await in_thread(ear.heard) == []
    assert ear.heard() == ["t"]


@on_postgres
async def test_a_callers_own_transaction_tells_when_it_commits(
    database: Database, ear: Ear
) -> None:
    with rowmq.connect(database.url) as mq, psycopg.connect(database.url) as own:
        mq.publish("t", 1, connection=own)
        assert ear.heard() == []
        own.commit()
        assert ear.heard() == ["t"]


@on_postgres
async def test_what_is_rolled_back_is_not_told(mq: Any, ear: Ear) -> None:
    with pytest.raises(ZeroDivisionError):
        async with mq.transaction() as tx:
            await tx.publish("t", 1)
            raise ZeroDivisionError
    assert ear.heard() == []


@on_postgres
async def test_what_adds_nothing_is_not_told(mq: Any, ear: Ear, clock: Clock) -> None:
    await mq.configure_topic("t", max_payload_bytes=10)
    await mq.publish("t", 1, id="known")
    assert ear.heard() == ["t"]
    clock.now += 1
    assert (await mq.publish("t", 1, id="known")).duplicate
    clock.now += 1
    with pytest.raises(rowmq.errors.PayloadTooLarge):
        await mq.publish("t", "x" * 11)
    assert ear.heard() == []
    clock.now += 1
    batch = [Message(payload=1, id="known"), Message(payload=1, id="new")]
    assert [r.duplicate for r in await mq.publish_many("t", batch)] == [True, False]
    assert ear.heard() == ["t"]


@on_postgres
async def test_a_topic_is_not_told_of_all_the_time(mq: Any, ear: Ear, clock: Clock) -> None:
    for _ in range(3):
        await asyncio.gather(*(mq.publish("t", n, key=f"k{n}") for n in range(10)))
        await mq.publish_many("t", [Message(payload=1)])
        told = ear.heard()
        assert set(told) == {"t"}
        assert len(told) <= 3  # of eleven: threads at the very same time may tell twice
        await mq.publish("t", 1)
        assert ear.heard() == []
        clock.now += 0.051


@on_postgres
async def test_a_transaction_that_is_open_keeps_nobody_silent(
    mq: Any, ear: Ear, clock: Clock
) -> None:
    assert clock.now
    async with mq.transaction() as tx:
        await tx.publish("t", 1, key="held")
        await mq.publish("t", 2, key="free")
        assert await in_thread(ear.heard) == ["t"]
    assert ear.heard() == ["t"]


@on_postgres
async def test_a_client_can_be_told_to_tell_nobody(
    connect: Connect, database: Database, ear: Ear
) -> None:
    mq = await connect(database.url, notify=False)
    await mq.publish("t", 1)
    async with mq.transaction() as tx:
        await tx.publish("t", 2)
    assert ear.heard() == []
    mq._watcher.add("t", Bell())
    assert not mq._watcher.busy  # and it does not listen: it polls
    assert not mq._watcher.alive


@on_postgres
async def test_other_tables_are_told_of_elsewhere(
    connect: Connect, database: Database, ear: Ear
) -> None:
    mq = await connect(database.url, prefix="other_")
    await mq.migrate()
    await mq.publish("t", 1)
    assert ear.heard() == []


# --- subscribers ---------------------------------------------------------------------------------


async def listening(mq: Any, topic: str = "t") -> Bell:
    """A bell that every publish to a topic rings from now on."""
    bell, first = Bell(), not mq._watcher.alive
    mq._watcher.add(topic, bell)
    if first:
        assert await in_thread(bell.rung)
    assert mq._watcher.alive
    return bell


def watches(database: Database) -> list[int]:
    """The server's sessions that belong to watches."""
    rows = database.execute(
        "SELECT pid FROM pg_stat_activity "
        "WHERE datname = current_database() AND application_name = 'rowmq watch' ORDER BY pid"
    )
    return [pid for (pid,) in rows]


def only_watch(database: Database) -> int:
    """The session of the one watch there is, once the server has ended those that were closed."""
    assert until(lambda: len(watches(database)) == 1)
    (pid,) = watches(database)
    return pid


@where_heard
async def test_a_publish_wakes_who_waits_in_another_client(
    connect: Connect, database: Database
) -> None:
    mq, publisher = await connect(database.url), await connect(database.url)
    bell = await listening(mq)
    await publisher.publish("t", 1)
    assert await in_thread(bell.rung, 2)


@where_heard
async def test_a_publish_wakes_who_waits_in_the_same_client(mq: Any) -> None:
    bell = await listening(mq)
    async with mq.transaction() as tx:
        await tx.publish("t", 1)
    assert await in_thread(bell.rung, 2)


@on_postgres
async def test_only_its_own_topic_wakes_who_waits(mq: Any, database: Database) -> None:
    mine, other = await listening(mq, "mine"), await listening(mq, "other")
    with pytest.raises(ZeroDivisionError):
        async with mq.transaction() as tx:
            await tx.publish("mine", "rolled back")
            raise ZeroDivisionError
    database.execute("SELECT pg_notify(%s, %s)", (CHANNEL, "x" * 500))
    await mq.publish("other", 1)
    assert await in_thread(other.rung)
    assert mine.silent()
    await mq.publish("mine", 1)
    assert await in_thread(mine.rung)


@on_postgres
async def test_who_was_woken_is_woken_again_for_what_was_not_told(mq: Any, clock: Clock) -> None:
    """The second publish comes too soon to be told of."""
    bell = await listening(mq)
    assert clock.now
    await mq.publish("t", 1)
    assert await in_thread(bell.rung)
    await mq.publish("t", 2)
    assert await in_thread(bell.rung)
    assert not await in_thread(bell.rung, 0.3)  # but not for ever


@on_postgres
async def test_a_watch_that_is_cut_is_opened_again(connect: Connect, database: Database) -> None:
    mq = await connect(database.url)
    states: list[bool] = []
    bell = Bell()

    def wake() -> None:
        states.append(mq._watcher.alive)
        bell()

    mq._watcher.add("t", wake)
    assert await in_thread(bell.rung)
    for _ in range(2):
        pid = only_watch(database)
        states.clear()
        database.execute("SELECT pg_terminate_backend(%s)", (pid,))
        assert await in_thread(bell.rung)
        assert await in_thread(bell.rung)
        assert states == [False, True]
        await mq.publish("t", 1)
        assert await in_thread(bell.rung)
        assert await in_thread(bell.rung)  # and once more, as always
        assert pid != only_watch(database)


@where_heard
async def test_closing_ends_the_thread_and_its_connection(
    connect: Connect, database: Database
) -> None:
    mq = await connect(database.url)
    await listening(mq)
    if database.name == "postgres":
        assert only_watch(database)
    await mq.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "rowmq-watch"]
    assert not mq._watcher.alive
    if database.name == "postgres":
        assert until(lambda: watches(database) == [])


@on_postgres
async def test_a_connection_is_there_only_while_somebody_waits(
    connect: Connect, database: Database
) -> None:
    mq = await connect(database.url)
    for _ in range(2):
        first, second = await listening(mq, "a"), await listening(mq, "b")
        mq._watcher.remove("a", first)
        assert mq._watcher.alive
        mq._watcher.remove("b", second)
        assert until(lambda: watches(database) == [])


@on_mysql
async def test_mysql_has_nothing_to_listen_to(mq: Any) -> None:
    bell = Bell()
    mq._watcher.add("t", bell)
    await mq.publish("t", 1)
    assert not mq._watcher.alive
    assert not mq._watcher.busy
    mq._watcher.remove("t", bell)
    assert bell.silent()


# --- proofs --------------------------------------------------------------------------------------


@pytest.fixture
def watch(database: Database) -> Iterator[PostgresWatch]:
    with closing(PostgresWatch(database.url, CHANNEL, connect_timeout=5)) as made:
        made.open()
        yield made


@on_postgres
def test_a_quiet_watch_proves_that_it_hears(watch: PostgresWatch, ear: Ear) -> None:
    assert watch.wait(0) == set()
    assert ear.heard() == []
    assert watch.wait(1) == {"mark 1"}
    watch._prove_at = 0
    watch.wait(0)
    (proof,) = ear.heard()
    assert len(proof.encode()) > 200  # which no topic has
    assert watch._prove_at > 0


@on_postgres
def test_what_others_say_is_proof_enough(watch: PostgresWatch, ear: Ear) -> None:
    before = watch._prove_at
    assert ear.heard() == []
    watch.wait(5)
    assert watch._prove_at > before


@on_postgres
def test_a_watch_that_hears_nothing_any_more_is_found_out(
    watch: PostgresWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "PROOF_SECONDS", 0.1)
    assert watch.connection is not None
    watch.connection.execute("UNLISTEN *")
    watch._prove_at = 0
    with pytest.raises(Deaf):
        watch.wait(0)


@on_postgres
@pytest.mark.parametrize("opened", [True, False])
def test_a_watch_can_be_interrupted(database: Database, opened: bool) -> None:
    """Also while it proves itself, and also before it is waited for."""
    with closing(PostgresWatch(database.url, CHANNEL, connect_timeout=5)) as watch:
        if opened:
            watch.open()
            thread = threading.Thread(target=watch.wait, args=(60,), daemon=True)
            thread.start()
            watch.interrupt()
            thread.join(10)
            assert not thread.is_alive()
            assert watch.wait(60) == set()
        else:
            watch.interrupt()
            with pytest.raises(Deaf):
                watch.open()


@pytest.fixture
def pgbouncer(databases: Databases) -> Iterator[str]:
    with PgBouncer(databases.get("postgres").url) as bouncer:
        yield bouncer.url


async def test_behind_pgbouncer_nothing_is_heard_and_that_is_noticed(
    connect: Connect,
    pgbouncer: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level(logging.INFO, "rowmq")
    monkeypatch.setattr(driver, "PROOF_SECONDS", 0.5)
    mq = await connect(pgbouncer, prepared_statements=False, pool_size=2)
    bell = Bell()
    mq._watcher.add("t", bell)
    assert await in_thread(until, lambda: len(caplog.records) > 0)
    assert not mq._watcher.alive
    (record,) = caplog.records
    assert record.levelname == "INFO"
    assert "PgBouncer" in record.message
    assert bell.silent()
    await mq.publish("t", 1)  # which may get the server that was listened on
    assert len(await mq.read("t")) == 1


# --- forks ---------------------------------------------------------------------------------------


@where_heard
def test_both_sides_of_a_fork_are_woken(database: Database) -> None:
    with rowmq.connect(database.url) as mq:
        parents, childs = Bell(), Bell()
        mq._watcher.add("t", parents)
        assert parents.rung()
        before = only_watch(database) if database.name == "postgres" else None

        def child() -> None:
            assert not mq._watcher.alive
            mq._watcher.remove("t", parents)
            mq._watcher.add("t", childs)
            assert childs.rung()
            assert mq._watcher.alive
            mq.publish("t", "child")
            assert childs.rung()
            mq.close()

        assert exit_code(fork(child)) == 0
        assert parents.rung()
        assert mq._watcher.alive
        assert database.name == "sqlite" or only_watch(database) == before
        while parents.rung(0.2):
            pass
        mq.publish("t", "parent")
        assert parents.rung()


FORK_AND_EXIT = """
import os, sys, threading, warnings, rowmq
warnings.simplefilter("ignore")
mq = rowmq.connect(sys.argv[1])
woken = threading.Semaphore(0)
mq._watcher.add("t", woken.release)
assert woken.acquire(timeout=10)
pid = os.fork()
if pid == 0:
    sys.exit(0)  # through the end of the interpreter, which finalises what it finds
assert os.waitpid(pid, 0)[1] == 0
while woken.acquire(timeout=0.2):
    pass
mq.publish("t", 1)
assert woken.acquire(timeout=10)
assert mq._watcher.alive
print(sys.argv[2])
"""


@where_heard
def test_a_child_that_exits_leaves_the_parents_watch_alone(database: Database) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORK_AND_EXIT, database.url, "done"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.stderr, done.returncode) == ("done\n", "", 0)


@on_postgres
async def test_who_has_a_job_be_due_tells_its_queue(mq: Any, ear: Ear, clock: Clock) -> None:
    queue = mq.queue("q")
    told = wake_name("q")
    later = [(await queue.put(n, delay=3600)).id for n in range(2)]
    line = [(await queue.put(n, ordering_key="o", delay=60 * n)).id for n in range(4)]
    assert ear.heard() == [told]
    head = await queue.try_poll()
    assert head.id == line[0]
    for call, id in (
        (queue.fail, later[0]),
        (queue.retry, later[0]),
        (queue.run_now, later[1]),
        (queue.fail, head.id),
        (queue.drop_jobs, line[1]),
    ):
        clock.now += 60
        assert await call([id]) == 1
        assert set(ear.heard()) == {told}
