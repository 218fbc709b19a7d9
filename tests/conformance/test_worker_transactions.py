"""Transactional handlers: their own writes and the ack are committed together, or neither is."""

import asyncio
import contextlib
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pymysql
import pytest

import rowmq
from rowmq import AckPolicy, Message, errors
from rowmq.drivers.mysql import AsyncmySession, PyMySQLSession
from rowmq.drivers.postgres import AsyncpgSession, PsycopgSession
from rowmq.drivers.sqlite import SQLiteSession
from rowmq.worker import executor
from tests.choices import async_only, on_servers
from tests.conformance.test_faults import cut_connections
from tests.consuming import eventually
from tests.databases import Database, MySQLDatabase, SQLiteDatabase
from tests.working import (
    AT_ONCE,
    LATER,
    SOURCES,
    STYLES,
    attach,
    errors_of,
    left,
    new_app,
    on_one,
    on_two,
    outcome,
    put,
)

pytestmark = async_only

in_both_styles = pytest.mark.parametrize("style", STYLES)
of_both_sources = pytest.mark.parametrize("source", SOURCES)

INSERT = "INSERT INTO own_effects VALUES (?)"


@pytest.fixture(autouse=True)
def own_table(database: Database) -> Iterator[None]:
    database.execute("DROP TABLE IF EXISTS own_effects")
    database.execute("CREATE TABLE own_effects (id integer PRIMARY KEY)")
    yield
    database.execute("DROP TABLE own_effects")


def effects(database: Database) -> list[int]:
    return sorted(id for (id,) in database.execute("SELECT id FROM own_effects"))


def inserts(style: str, after: Callable[[int], None] = lambda _: None) -> Callable[..., Any]:
    """A handler that writes down what it is given, and then does something else."""

    async def handle(number: int, tx: rowmq.AsyncTransaction) -> None:
        await tx.execute(INSERT, [number])
        after(number)

    def handle_in_thread(number: int, tx: rowmq.Transaction) -> None:
        tx.execute(INSERT, [number])
        after(number)

    return handle if style == "async" else handle_in_thread


@of_both_sources
@in_both_styles
async def test_effects_and_acks_are_one(
    mq: Any, database: Database, source: str, style: str
) -> None:
    """Half of the handlers fail at first, after they have written."""
    app = new_app(database)
    tried: Counter[int] = Counter()

    def sometimes(number: int) -> None:
        tried[number] += 1
        if number % 2 and tried[number] == 1:
            raise ValueError("at first")

    attach(app, source, "m", inserts(style, sometimes), transactional=True, retry=AT_ONCE)
    await put(mq, source, "m", *range(20))
    async with app:
        await eventually(lambda: tried.total() >= 30)
    assert effects(database) == list(range(20))
    assert tried == {n: 1 + n % 2 for n in range(20)}
    assert await left(mq, source, "m") == 0
    assert await errors_of(mq, source, "m") == []


@of_both_sources
async def test_messages_without_a_key_share_a_place_and_not_a_transaction(
    mq: Any, database: Database, source: str
) -> None:
    app = new_app(database)
    handled: list[int] = []
    handler = inserts("async", handled.append)
    attach(app, source, "m", handler, transactional=True, concurrency=8)
    if source == "topic":
        await mq.publish_many("m", [Message(payload=n) for n in range(40)])
    else:
        await put(mq, source, "m", *range(40))
    async with app:
        await eventually(lambda: len(handled) >= 40)
    assert effects(database) == sorted(handled) == list(range(40))
    assert await left(mq, source, "m") == 0


@of_both_sources
@in_both_styles
async def test_after_an_error_nothing_is_left_but_the_error(
    mq: Any, database: Database, source: str, style: str
) -> None:
    app = new_app(database)

    def fail(_: int) -> None:
        raise ValueError("after the write")

    attach(app, source, "m", inserts(style, fail), transactional=True, retry=rowmq.NoRetry())
    await put(mq, source, "m", 1)
    async with app:
        await eventually(lambda: errors_of(mq, source, "m"))
    assert effects(database) == []
    assert await errors_of(mq, source, "m") == ["ValueError: after the write"]


@on_two
@of_both_sources
async def test_an_error_of_the_database_is_one_of_the_handler(
    mq: Any, database: Database, source: str
) -> None:
    """Even if the handler has not noticed: what failed once in a transaction is not committed."""
    app = new_app(database)

    async def twice(number: int, tx: rowmq.AsyncTransaction) -> None:
        await tx.execute(INSERT, [number])
        with contextlib.suppress(errors.RowMQError):
            await tx.execute(INSERT, [number])  # there is one already

    attach(app, source, "m", twice, transactional=True, retry=rowmq.NoRetry())
    await put(mq, source, "m", 1)
    async with app:
        await eventually(lambda: errors_of(mq, source, "m"))
    assert effects(database) == []


@of_both_sources
async def test_what_comes_after_the_writes_is_undone_with_them(
    mq: Any, database: Database, source: str
) -> None:
    """Publishes and puts of a transaction are its own, and nobody sees them before its end."""
    app = new_app(database)
    early: list[int] = []

    async def publish(number: int, tx: rowmq.AsyncTransaction) -> None:
        await tx.publish("out", number)
        await tx.queue("out").put(number)
        if database.name != "sqlite":  # where it is the only one to write, and others may not
            early.append(len(await mq.read("out")))
        if number == 1:
            raise ValueError("never mind")

    attach(app, source, "m", publish, transactional=True, retry=LATER, concurrency=1)
    await put(mq, source, "m", 1, 2)
    async with app:
        await eventually(lambda: app.health()["handlers"][0]["handled"] == 2)
    assert [m.payload for m in await mq.read("out")] == [2]
    assert (await mq.queue("out").counts())["pending"] == 1
    assert set(early) <= {0}


# --- settles by hand ----------------------------------------------------------------------------


async def settled_by_hand(
    mq: Any, database: Database, source: str, style: str, step: str, *, fails: bool
) -> str:
    """What becomes of a message whose handler writes, settles, and perhaps fails."""
    app = new_app(database)

    def end() -> None:
        if fails:
            raise ValueError("after the settle")

    async def job(unit: rowmq.Job[int], tx: rowmq.AsyncTransaction) -> None:
        await tx.execute(INSERT, [1])
        getattr(unit, step)()  # in the transaction, and awaited or not
        end()

    async def message(unit: rowmq.Delivery[int], tx: rowmq.AsyncTransaction) -> None:
        await tx.execute(INSERT, [1])
        await getattr(unit, step)(connection=tx)
        end()

    def sync_job(unit: rowmq.Job[int], tx: rowmq.Transaction) -> None:
        tx.execute(INSERT, [1])
        getattr(unit, step)(connection=tx)
        end()

    def sync_message(unit: rowmq.Delivery[int], tx: rowmq.Transaction) -> None:
        tx.execute(INSERT, [1])
        getattr(unit, step)()
        end()

    handlers: dict[tuple[str, str], Any] = {
        ("queue", "async"): job,
        ("topic", "async"): message,
        ("queue", "sync"): sync_job,
        ("topic", "sync"): sync_message,
    }
    policy = AckPolicy.NACK_ON_ERROR if fails else AckPolicy.MANUAL
    how: dict[str, Any] = {"transactional": True, "retry": LATER, "ack_policy": policy}
    attach(app, source, "m", handlers[source, style], **how)
    await put(mq, source, "m", 1)
    async with app:
        await eventually(lambda: app.health()["handlers"][0]["handled"])
    return await outcome(mq, source, "m")


@of_both_sources
@in_both_styles
async def test_a_settle_by_hand_is_part_of_the_transaction(
    mq: Any, database: Database, source: str, style: str
) -> None:
    found = await settled_by_hand(mq, database, source, style, "reject", fails=False)
    assert found == "dead"
    assert effects(database) == [1]


@of_both_sources
@in_both_styles
async def test_a_settle_by_hand_is_undone_by_an_error_after_it(
    mq: Any, database: Database, source: str, style: str
) -> None:
    found = await settled_by_hand(mq, database, source, style, "ack", fails=True)
    assert found == "waiting"
    assert effects(database) == []


@on_two
@of_both_sources
async def test_a_manual_handler_that_settles_nothing_keeps_its_writes_and_is_rejected(
    mq: Any, database: Database, source: str
) -> None:
    app = new_app(database)
    options = {"transactional": True, "ack_policy": AckPolicy.MANUAL}
    attach(app, source, "m", inserts("async"), **options)
    await put(mq, source, "m", 1)
    async with app:
        await eventually(lambda: app.health()["handlers"][0]["handled"])
    assert await outcome(mq, source, "m") == "dead"
    assert effects(database) == [1]


# --- what goes wrong at the end -----------------------------------------------------------------

SESSIONS = (PsycopgSession, AsyncpgSession, PyMySQLSession, AsyncmySession, SQLiteSession)


@of_both_sources
async def test_a_commit_whose_answer_is_lost_counts_and_is_not_repeated(
    mq: Any, database: Database, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The handler's transaction was committed; that is found out, and its effects stay single."""
    app = new_app(database)
    handled: list[int] = []
    lose: list[bool] = []

    async def handle(number: int, tx: rowmq.AsyncTransaction) -> None:
        handled.append(number)
        await tx.execute(INSERT, [number])
        if number == 1 and len(handled) == 1:
            lose.append(True)

    lose_answers(monkeypatch, lose)
    attach(app, source, "m", handle, transactional=True, retry=AT_ONCE, concurrency=1)
    await put(mq, source, "m", 1)
    async with app:
        await eventually(lambda: handled and not lose)
        await eventually(lambda: outcome_is(mq, source, "done"))
        await put(mq, source, "m", 2)
        await eventually(lambda: 2 in handled)
    assert effects(database) == [1, 2]
    assert await left(mq, source, "m") == 0


async def outcome_is(mq: Any, source: str, wanted: str) -> bool:
    return await outcome(mq, source, "m") == wanted


def lose_answers(monkeypatch: pytest.MonkeyPatch, lose: list[bool]) -> None:
    """Let a commit happen and then fail, once for each entry."""
    for session in SESSIONS:
        plain = session.commit

        if asyncio.iscoroutinefunction(plain):

            async def commit(self: Any, plain: Any = plain) -> None:
                await plain(self)
                if lose:
                    lose.pop()
                    raise ConnectionResetError("the answer is lost")

            monkeypatch.setattr(session, "commit", commit)
        else:

            def commit_in_thread(self: Any, plain: Any = plain) -> None:
                plain(self)
                if lose:
                    lose.pop()
                    raise sqlite3.OperationalError("disk I/O error")

            monkeypatch.setattr(session, "commit", commit_in_thread)


@on_servers
@of_both_sources
async def test_a_connection_that_is_cut_in_the_middle_undoes_it_all(
    mq: Any, database: Database, source: str
) -> None:
    app = new_app(database)
    handled: list[int] = []

    async def handle(number: int, tx: rowmq.AsyncTransaction) -> None:
        handled.append(number)
        await tx.execute(INSERT, [number])
        if len(handled) == 1:
            cut_connections(database)

    attach(app, source, "m", handle, transactional=True, retry=AT_ONCE)
    await put(mq, source, "m", 1)
    async with app:
        await eventually(lambda: len(handled) == 2)
        await eventually(lambda: outcome_is(mq, source, "done"))
    assert effects(database) == [1]


@on_servers
@of_both_sources
async def test_a_deadlock_costs_no_attempt(mq: Any, database: Database, source: str) -> None:
    """Two handlers that take two keys in different order: the database ends one, which is run
    again, also if it has one attempt.
    """
    app = new_app(database)
    handled: list[int] = []
    met = asyncio.Barrier(2)

    async def handle(number: int, tx: rowmq.AsyncTransaction) -> None:
        handled.append(number)
        first, second = ("a", "b") if number == 1 else ("b", "a")
        await tx.publish("out", number, key=first)
        if len(handled) <= 2:
            await met.wait()
        await tx.publish("out", number, key=second)

    for key in "ab":  # whose places are there by now: the handlers meet at those two locks only
        await mq.publish("out", 0, key=key)
    once = rowmq.NoRetry()
    attach(app, source, "m", handle, transactional=True, concurrency=2, retry=once)
    await put(mq, source, "m", 1, 2)
    async with app:
        await eventually(lambda: len(handled) == 3)
        await eventually(lambda: outcome_is(mq, source, "done"))
    assert Counter(m.payload for m in await mq.read("out")) == {0: 2, 1: 2, 2: 2}


@on_one
async def test_a_handler_that_is_always_in_the_way_is_given_up(
    mq: Any, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "CROSSED_SECONDS", 0.001)
    app = new_app(database)
    handled: list[int] = []

    async def handle(number: int, tx: rowmq.AsyncTransaction) -> None:
        handled.append(number)
        await tx.execute(INSERT, [number])
        raise errors.SerializationFailure("every time")

    attach(app, "queue", "m", handle, transactional=True, retry=rowmq.NoRetry())
    await put(mq, "queue", "m", 1)
    async with app:
        await eventually(lambda: outcome_is(mq, "queue", "dead"))
        assert app.health()["handlers"][0]["failed"] == len(handled)
    assert len(handled) == executor.CROSSED_MAX + 1
    assert effects(database) == []


@on_two
@of_both_sources
async def test_a_timeout_undoes_what_was_written(mq: Any, database: Database, source: str) -> None:
    app = new_app(database)

    async def slow(number: int, tx: rowmq.AsyncTransaction) -> None:
        await tx.execute(INSERT, [number])
        await asyncio.sleep(60)

    attach(app, source, "m", slow, transactional=True, retry=rowmq.NoRetry(), timeout=0.1)
    await put(mq, source, "m", 1)
    async with app:
        await eventually(lambda: errors_of(mq, source, "m"))
    assert effects(database) == []


@on_two
@of_both_sources
async def test_a_straggler_can_neither_write_nor_settle(
    mq: Any, database: Database, source: str
) -> None:
    """Its transaction is over: an ack now would be one without the writes."""
    app = new_app(database)
    told: list[str] = []
    ended = threading.Event()

    def late(unit: Any, tx: rowmq.Transaction) -> None:
        tx.execute(INSERT, [1])
        time.sleep(0.4)
        for act in (unit.ack, lambda: tx.execute(INSERT, [2])):
            try:
                act()
            except errors.RowMQError as error:
                told.append(type(error).__name__)
            else:
                told.append("done")
        ended.set()

    def job(unit: rowmq.Job[int], tx: rowmq.Transaction) -> None:
        late(unit, tx)

    def message(unit: rowmq.Delivery[int], tx: rowmq.Transaction) -> None:
        late(unit, tx)

    handler = job if source == "queue" else message
    how: dict[str, Any] = {"transactional": True, "timeout": 0.1, "flush_interval": 1.0}
    attach(app, source, "m", handler, retry=LATER, **how)
    await put(mq, source, "m", 1)
    async with app:
        await eventually(ended.is_set)
    assert told == ["AlreadySettled", "Closed"]
    assert effects(database) == []
    assert await outcome(mq, source, "m") == "waiting"


@on_two
async def test_a_transaction_that_lasts_longer_than_the_lock_keeps_its_job(
    mq: Any, database: Database
) -> None:
    """Also if it was settled at its beginning, so that its lock cannot be extended any more."""
    app, other = new_app(database), new_app(database)
    handled: list[str] = []

    async def slow(job: rowmq.AsyncJob[int], _tx: rowmq.AsyncTransaction) -> None:
        handled.append("slow")
        if database.name != "sqlite":  # which nobody else could write to, all the while
            await job.ack()
        await asyncio.sleep(2)

    async def quick(_number: int) -> None:
        handled.append("quick")

    attach(app, "queue", "m", slow, transactional=True, lock_timeout=0.8)
    attach(other, "queue", "m", quick, lock_timeout=0.8)
    await put(mq, "queue", "m", 1)
    async with app:
        await eventually(lambda: handled)
        async with other:
            await eventually(lambda: outcome_is(mq, "queue", "done"))
    assert handled == ["slow"]


@on_one
async def test_sync_handlers_use_their_transaction_for_all_there_is(
    mq: Any, database: Database
) -> None:
    app = new_app(database)

    @app.worker("q", transactional=True)
    def handle(number: int, tx: rowmq.Transaction) -> None:
        tx.execute(INSERT, [number])
        found = tx.execute("SELECT id FROM own_effects").rows
        assert [tuple(row) for row in found] == [(number,)]
        tx.publish("out", number, key="k", headers={"a": "b"})
        tx.publish_many("out", [Message(payload=number + 1)])
        queue = tx.queue("jobs")
        queue.put(number)
        queue.put_many([number, number])
        assert queue.name == "jobs"

    await put(mq, "queue", "q", 1)
    async with app:
        await eventually(lambda: app.health()["handlers"][0]["handled"])
    assert effects(database) == [1]
    assert sorted(m.payload for m in await mq.read("out")) == [1, 2]
    assert (await mq.queue("jobs").counts())["pending"] == 3


@on_two
@of_both_sources
async def test_a_settle_in_a_transaction_of_its_own_that_is_rolled_back_was_none(
    mq: Any, database: Database, source: str
) -> None:
    app = new_app(database)
    seen: list[int] = []

    async def handle(unit: Any, client: rowmq.AsyncRowMQ) -> None:
        seen.append(unit.attempt)
        if len(seen) == 1:
            with contextlib.suppress(ZeroDivisionError):
                async with client.transaction() as tx:
                    await unit.ack(connection=tx)
                    raise ZeroDivisionError

    async def job(unit: rowmq.Job[int], client: rowmq.AsyncRowMQ) -> None:
        await handle(unit, client)

    async def message(unit: rowmq.Delivery[int], client: rowmq.AsyncRowMQ) -> None:
        await handle(unit, client)

    if source == "queue":
        attach(app, source, "m", job, lock_timeout=0.3)
    else:
        attach(app, source, "m", message, visibility=0.3)
    await put(mq, source, "m", 1)
    async with app:
        await eventually(lambda: len(seen) == 2, seconds=10)
        await eventually(lambda: outcome_is(mq, source, "done"))


# --- transactions of the handler's own ----------------------------------------------------------


def own_connection(database: Database) -> Any:
    """A connection of a sync driver, outside of RowMQ."""
    if isinstance(database, MySQLDatabase):
        return pymysql.connect(**database.options(), ssl_disabled=True)
    if isinstance(database, SQLiteDatabase):
        return sqlite3.connect(database.path)
    return psycopg.connect(database.url)


@of_both_sources
@pytest.mark.parametrize("commits", [True, False], ids=["commit", "rollback"])
async def test_a_sync_handler_can_settle_in_a_connection_of_its_own(
    mq: Any, database: Database, source: str, *, commits: bool
) -> None:
    app = new_app(database)
    handled: list[int] = []

    def handle(unit: Any) -> None:
        handled.append(unit.attempt)
        with contextlib.closing(own_connection(database)) as connection:
            connection.cursor().execute("INSERT INTO own_effects VALUES (1)")
            unit.ack(connection=connection)
            if len(handled) == 1 and not commits:
                connection.rollback()
                raise ValueError("undone")
            connection.commit()

    def job(unit: rowmq.Job[int]) -> None:
        handle(unit)

    def message(unit: rowmq.Delivery[int]) -> None:
        handle(unit)

    attach(app, source, "m", job if source == "queue" else message, retry=AT_ONCE)
    await put(mq, source, "m", 1)
    async with app:
        await eventually(lambda: outcome_is(mq, source, "done"))
    assert handled == ([1] if commits else [1, 2])
    assert effects(database) == [1]


@on_two
@of_both_sources
async def test_a_sync_handler_can_settle_in_a_transaction_of_its_client(
    mq: Any, database: Database, source: str
) -> None:
    app = new_app(database)
    handled: list[int] = []

    def handle(unit: Any, client: rowmq.RowMQ) -> None:
        handled.append(unit.attempt)
        with client.transaction() as tx:
            tx.execute(INSERT, [len(handled)])
            unit.ack(connection=tx)
            if len(handled) == 1:
                raise ValueError("undone")

    def job(unit: rowmq.Job[int], client: rowmq.RowMQ) -> None:
        handle(unit, client)

    def message(unit: rowmq.Delivery[int], client: rowmq.RowMQ) -> None:
        handle(unit, client)

    attach(app, source, "m", job if source == "queue" else message, retry=AT_ONCE)
    await put(mq, source, "m", 1)
    async with app:
        await eventually(lambda: outcome_is(mq, source, "done"))
    assert handled == [1, 2]
    assert effects(database) == [2]


@on_two
async def test_a_sync_handlers_transaction_is_not_its_clients(mq: Any, database: Database) -> None:
    app = new_app(database)
    told: list[str] = []

    @app.worker("q", transactional=True)
    def handle(client: rowmq.RowMQ, tx: rowmq.Transaction) -> None:
        for act in (
            lambda: client.publish("out", 1, connection=tx),
            lambda: client.queue("out").put(1, connection=tx),
        ):
            try:
                act()
            except errors.InvalidInput as error:
                told.append(str(error))
        tx.publish("out", 2)

    await put(mq, "queue", "q", 1)
    async with app:
        await eventually(lambda: app.health()["handlers"][0]["handled"])
    assert len(told) == 2
    assert all("tx.publish()" in text for text in told)
    assert [m.payload for m in await mq.read("out")] == [2]
