"""Settling in a transaction: effects and settle are committed together, or neither of them is.

In `mq.transaction()`, and in every object that `connection=` takes: see `callers`.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

import rowmq
from rowmq import Message, errors
from tests.choices import on_servers
from tests.conformance.callers.kinds import Held, Kind, Undo, ask, client, transaction
from tests.conformance.test_callers import matrix, with_own_table
from tests.conformance.test_dead_letters import letters
from tests.conformance.test_groups import QUICK, consume, lag_of, rows
from tests.conftest import Connect
from tests.consuming import eventually, nothing_comes, payloads, publish, stored, take
from tests.databases import Database, Databases

NOW = rowmq.Constant(interval=0)
OPTIONS = QUICK | {"backoff": NOW}

SETTLES: dict[str, Callable[..., Any]] = {
    "ack": lambda d, **where: d.ack(**where),
    "nack": lambda d, **where: d.nack(delay=60, error="not now", **where),
    "reject": lambda d, **where: d.reject(error="no", **where),
    "extend": lambda d, **where: d.extend(90, **where),
}


@pytest.fixture
def own_table(database: Database) -> str:
    database.execute("DROP TABLE IF EXISTS own_effects")
    database.execute("CREATE TABLE own_effects (id integer PRIMARY KEY)")
    return "own_effects"


async def state(mq: Any) -> tuple[Any, ...]:
    """Acked, last offset, lag and in flight of the only partition, and how many letters."""
    (row,) = (await lag_of(mq, "t", "g")).values()
    return (*row[:4], len(await mq.dead_letters("t")))


SETTLED = {
    "ack": (1, 1, 0, 0, 0),
    "nack": (0, 1, 1, 0, 0),
    "reject": (1, 1, 0, 0, 1),
    "extend": (0, 1, 1, 1, 0),
}
UNSETTLED = (0, 1, 1, 1, 0)


# --- commit and rollback ------------------------------------------------------------------------


@pytest.mark.parametrize("way", SETTLES)
async def test_a_commit_settles(mq: Any, database: Database, way: str) -> None:
    await publish(mq, 1)
    async with mq.subscribe("t", group="g", **OPTIONS) as sub:
        (delivery,) = await take(sub, 1)
        before = stored(database)
        async with mq.transaction() as tx:
            await SETTLES[way](delivery, connection=tx)
            assert stored(database) == before  # for all others
        assert await state(mq) == SETTLED[way]
        if way == "extend":
            await delivery.ack()
        else:
            for again in SETTLES.values():
                with pytest.raises(errors.AlreadySettled):
                    await again(delivery)
        await mq.publish("t", "next", key="k")
        assert payloads(await take(sub, 1)) == ["next"]


@pytest.mark.parametrize(
    ("way", "afterwards"),
    [("ack", "nack"), ("nack", "reject"), ("reject", "extend"), ("extend", "ack")],
)
async def test_a_rollback_leaves_it_unsettled(mq: Any, way: str, afterwards: str) -> None:
    await publish(mq, 1)
    async with mq.subscribe("t", group="g", **OPTIONS) as sub:
        (delivery,) = await take(sub, 1)
        with pytest.raises(ZeroDivisionError):
            async with mq.transaction() as tx:
                await SETTLES[way](delivery, connection=tx)
                raise ZeroDivisionError
        assert await state(mq) == UNSETTLED
        assert not delivery.settled
        await SETTLES[afterwards](delivery)
        assert await state(mq) == SETTLED[afterwards]


async def test_a_handler_that_failed_is_tried_again(mq: Any, database: Database) -> None:
    """Its transaction is rolled back, then it is nacked, and comes with the next attempt."""
    await publish(mq, 1)
    async with mq.subscribe("t", group="g", max_attempts=3, **OPTIONS) as sub:
        for attempt in (1, 2, 3):
            (delivery,) = await take(sub, 1)
            assert delivery.attempt == attempt
            with pytest.raises(ZeroDivisionError):
                async with mq.transaction() as tx:
                    await tx.publish("results", attempt)
                    await delivery.ack(connection=tx)
                    raise ZeroDivisionError
            await delivery.nack(error=f"attempt {attempt}")
        assert await letters(mq) == [("g", 1, "attempt 3")]
    assert await mq.read("results") == []
    assert rows(database, "delivery_state") == [0]


async def test_effects_and_acks_are_one(mq: Any, database: Database, own_table: str) -> None:
    """Every message has its effect exactly once, though every other handler fails at first."""
    await publish(mq, 12)
    failed: set[int] = set()

    async def handle(delivery: Any) -> None:
        n = delivery.message.payload
        async with mq.transaction() as tx:
            await tx.execute(f"INSERT INTO {own_table} VALUES (?)", [n])
            await tx.publish("results", n, key="k")
            await delivery.ack(connection=tx)
            if n % 2 and n not in failed:
                failed.add(n)
                raise ZeroDivisionError

    async with mq.subscribe("t", group="g", **OPTIONS) as sub:
        handled = 0
        while handled < 12 + 6:
            for delivery in await sub.poll(max=3, timeout=0.5):
                handled += 1
                try:
                    await handle(delivery)
                except ZeroDivisionError:
                    await delivery.nack()
        assert await nothing_comes(sub)
    assert len(failed) == 6
    assert {id for (id,) in database.execute(f"SELECT id FROM {own_table}")} == set(range(1, 13))
    assert sorted(m.payload for m in await mq.read("results")) == list(range(1, 13))
    assert await state(mq) == (12, 12, 0, 0, 0)


async def test_many_are_acked_in_a_transaction(mq: Any) -> None:
    await mq.publish_many("t", [Message(payload=n, key=f"k{n % 3}") for n in range(9)])
    async with mq.subscribe("t", group="g", **OPTIONS) as sub:
        deliveries = await take(sub, 9)
        with pytest.raises(ZeroDivisionError):
            async with mq.transaction() as tx:
                await sub.ack(deliveries, connection=tx)
                raise ZeroDivisionError
        assert sum(row.lag for row in await mq.lag("t", "g")) == 9
        async with mq.transaction() as tx:
            await sub.ack(deliveries[:5], connection=tx)
            await sub.ack(deliveries[5:], connection=tx)
        assert [row.lag for row in await mq.lag("t", "g")] == [0, 0, 0]


async def test_a_letter_is_made_in_the_transaction(mq: Any) -> None:
    await publish(mq, 2)
    async with mq.subscribe("t", group="g", max_attempts=1, **OPTIONS) as sub:
        first, second = await take(sub, 2)
        with pytest.raises(ZeroDivisionError):
            async with mq.transaction() as tx:
                await first.reject(error="undone", connection=tx)
                await second.nack(error="undone", connection=tx)
                raise ZeroDivisionError
        assert await letters(mq) == await mq.read("t_dlq") == []
        async with mq.transaction() as tx:
            await first.reject(error="kept", connection=tx)
            await second.nack(error="the last attempt", connection=tx)
            assert await letters(mq) == await mq.read("t_dlq") == []
    assert await letters(mq) == [("g", 1, "kept"), ("g", 2, "the last attempt")]


async def test_an_extension_that_is_rolled_back_extends_nothing(mq: Any) -> None:
    await publish(mq, 1)
    async with mq.subscribe("t", group="g", visibility=0.2, **OPTIONS) as sub:
        (delivery,) = await take(sub, 1)
        with pytest.raises(ZeroDivisionError):
            async with mq.transaction() as tx:
                await delivery.extend(60, connection=tx)
                raise ZeroDivisionError
        (again,) = await take(sub, 1)
        assert again.attempt == 2
        async with mq.transaction() as tx:
            await again.extend(60, connection=tx)
        await asyncio.sleep(0.25)
        assert await nothing_comes(sub)
        await again.ack()


# --- several at the same time -------------------------------------------------------------------


@on_servers
@pytest.mark.parametrize("first_commits", [True, False], ids=["commit", "rollback"])
async def test_two_transactions_of_one_partition(mq: Any, first_commits: bool) -> None:
    """The second waits for the first, and then goes by what became of it."""
    await publish(mq, 3)
    async with mq.subscribe("t", group="g", **OPTIONS) as sub:
        one, two, three = await take(sub, 3)

        async def second() -> None:
            async with mq.transaction() as tx:
                await one.ack(connection=tx)
                await three.nack(delay=60, error="later", connection=tx)

        with suppress(ZeroDivisionError):
            async with mq.transaction() as tx:
                await two.ack(connection=tx)
                waiting = asyncio.create_task(second())
                await asyncio.wait({waiting}, timeout=0.1)
                assert not waiting.done()
                if not first_commits:
                    raise ZeroDivisionError
        await waiting
        if not first_commits:
            assert await state(mq) == (1, 3, 2, 1, 0)
            await two.ack()
        assert await state(mq) == (2, 3, 1, 0, 0)


async def test_many_transactional_handlers_of_one_partition(
    connect: Connect, database: Database, own_table: str
) -> None:
    mq = await connect(database.url, pool_size=8)
    await publish(mq, 40)

    async def handle(delivery: Any) -> None:
        n = delivery.message.payload
        async with mq.transaction() as tx:
            await delivery.ack(connection=tx)
            await tx.execute(f"INSERT INTO {own_table} VALUES (?)", [n])

    async with mq.subscribe("t", group="g", visibility=60, **OPTIONS) as sub:
        for _ in range(5):
            await asyncio.gather(*(handle(d) for d in await take(sub, 8)))
    assert database.execute(f"SELECT COUNT(*) FROM {own_table}") == [(40,)]
    assert await state(mq) == (40, 40, 0, 0, 0)
    assert rows(database, "delivery_state") == [0]


async def test_transactions_among_plain_settles(connect: Connect, database: Database) -> None:
    """Whatever the order is in which the database takes them, each counts, and once."""
    mq = await connect(database.url, pool_size=8)
    await publish(mq, 60)

    async def in_transaction(delivery: Any) -> None:
        async with mq.transaction() as tx:
            await delivery.ack(connection=tx)

    async with mq.subscribe("t", group="g", **OPTIONS) as sub:
        for _ in range(5):
            deliveries = await take(sub, 12)
            plain = [d.ack() for d in deliveries[::2]]
            within = [in_transaction(d) for d in deliveries[1::2]]
            await asyncio.gather(*plain, *within)
            assert {d.attempt for d in deliveries} == {1}
        assert await nothing_comes(sub)
    assert await state(mq) == (60, 60, 0, 0, 0)


@on_servers
async def test_an_open_transaction_holds_up_its_own_partition_only(mq: Any) -> None:
    await mq.publish_many("t", [Message(payload=n, key=key) for n in (1, 2, 3) for key in "ab"])
    async with mq.subscribe("t", group="g", **OPTIONS) as sub:
        held = {d.message.key: d for d in await take(sub, 2)}
        async with mq.transaction() as tx:
            await held["a"].ack(connection=tx)
            await held["b"].ack()
            deliveries = await take(sub, 2)
            assert [d.message.key for d in deliveries] == ["b", "b"]
            await sub.ack(deliveries)
        assert [(d.message.key, d.attempt) for d in await take(sub, 2)] == [("a", 1), ("a", 1)]


@on_servers
async def test_closing_waits_for_a_transaction(mq: Any) -> None:
    """What was settled in it before the subscriber left is settled when it commits."""
    await publish(mq, 2)
    sub = await mq.subscribe("t", group="g", **OPTIONS)
    first, second = await take(sub, 2)
    async with mq.transaction() as tx:
        await first.ack(connection=tx)
        closing = asyncio.create_task(sub.close())
        await asyncio.wait({closing}, timeout=0.1)
    await closing
    assert (await state(mq))[:3] == (1, 2, 1)
    with pytest.raises(errors.StaleLease):
        await second.ack()


async def test_what_is_settled_and_rolled_back_after_it_is_due_comes_again(mq: Any) -> None:
    await publish(mq, 1)
    async with mq.subscribe("t", group="g", visibility=0.05, **OPTIONS) as sub:
        (delivery,) = await take(sub, 1)
        with pytest.raises(ZeroDivisionError):
            async with mq.transaction() as tx:
                await delivery.ack(connection=tx)
                await asyncio.sleep(0.1)
                raise ZeroDivisionError
        (again,) = await take(sub, 1)
        assert again.attempt == 2
        with pytest.raises(errors.StaleLease):
            await delivery.ack()
        await again.ack()


async def test_strict_order_waits_for_the_commit(mq: Any) -> None:
    await publish(mq, 2)
    async with mq.subscribe("t", group="g", strict=True, **OPTIONS) as sub:
        (first,) = await take(sub, 1)
        with pytest.raises(ZeroDivisionError):
            async with mq.transaction() as tx:
                await first.ack(connection=tx)
                raise ZeroDivisionError
        assert await nothing_comes(sub)
        async with mq.transaction() as tx:
            await first.ack(connection=tx)
        (second,) = await take(sub, 1)
        assert second.message.payload == 2


async def test_what_is_acked_in_transactions_makes_room(mq: Any) -> None:
    """It does not count as in flight any more, once it is committed."""
    await publish(mq, 9)
    async with mq.subscribe("t", group="g", max_in_flight=3, **OPTIONS) as sub:
        for _ in range(3):
            deliveries = await take(sub, 3)
            assert await nothing_comes(sub)
            async with mq.transaction() as tx:
                await sub.ack(deliveries, connection=tx)
    assert await state(mq) == (9, 9, 0, 0, 0)


# --- what is refused ----------------------------------------------------------------------------


async def lost_delivery(mq: Any, sub: Any) -> Any:
    """A delivery that is not its subscriber's any more, and the subscriber knows nothing of it."""
    (delivery,) = await take(sub, 1)
    await mq.seek("t", "g", to="earliest")
    return delivery


@pytest.mark.parametrize("way", SETTLES)
async def test_a_stale_lease_fails_the_transaction(
    mq: Any, database: Database, own_table: str, way: str
) -> None:
    """As any error in `mq.transaction()` does: the effects of its handler are undone."""
    await publish(mq, 1)
    async with mq.subscribe("t", group="g", discovery_interval=60) as sub:
        delivery = await lost_delivery(mq, sub)
        with pytest.raises(errors.StaleLease):
            async with mq.transaction() as tx:
                await tx.execute(f"INSERT INTO {own_table} VALUES (1)")
                await SETTLES[way](delivery, connection=tx)
        with pytest.raises(errors.TransactionFailed):
            async with mq.transaction() as tx:
                await tx.execute(f"INSERT INTO {own_table} VALUES (1)")
                with pytest.raises(errors.StaleLease):
                    await SETTLES[way](delivery, connection=tx)
        assert database.execute(f"SELECT COUNT(*) FROM {own_table}") == [(0,)]
        assert (await state(mq))[:3] == (0, 1, 1)
        assert await letters(mq) == []
        (again,) = await take(sub, 1)
        assert again.attempt == 1


async def test_a_second_settle_in_a_transaction_is_refused(mq: Any) -> None:
    await publish(mq, 1)
    async with mq.subscribe("t", group="g", **OPTIONS) as sub:
        (delivery,) = await take(sub, 1)
        with pytest.raises(errors.AlreadySettled):
            async with mq.transaction() as tx:
                await delivery.ack(connection=tx)
                await delivery.reject(connection=tx)
        assert await state(mq) == UNSETTLED
        await delivery.ack()
        with pytest.raises(errors.AlreadySettled):
            async with mq.transaction() as tx:
                await delivery.ack(connection=tx)


async def test_a_delivery_of_a_closed_subscriber_is_refused(mq: Any) -> None:
    await publish(mq, 1)
    async with mq.subscribe("t", group="g", **OPTIONS) as sub:
        (delivery,) = await take(sub, 1)
    with pytest.raises(errors.StaleLease):
        async with mq.transaction() as tx:
            await delivery.ack(connection=tx)


async def test_a_committed_settle_is_told(mq: Any) -> None:
    await publish(mq, 1)
    async with mq.subscribe("t", group="g", **OPTIONS) as sub:
        (delivery,) = await take(sub, 1)
        async with mq.transaction() as tx:
            await delivery.ack(connection=tx)
        assert await nothing_comes(sub)
        assert delivery.settled


# --- callers' own connections -------------------------------------------------------------------


# These only begin a transaction in another way, on a connection that another kind has too: what is
# written there is kept or undone, as the tests of publishing show for all kinds.
ALIKE = ("-BEGIN", "-transaction")


def different() -> list[Any]:
    """Each kind whose connections are of a class, or have settings, of their own."""
    return [case for case in matrix("KINDS") if not case.values[0][1].name.endswith(ALIKE)]


@pytest.fixture(params=different())
def chosen(request: pytest.FixtureRequest, databases: Databases) -> tuple[Database, Kind]:
    name, kind = request.param
    return with_own_table(databases.get(name)), kind


@pytest.fixture
async def held(chosen: tuple[Database, Kind]) -> AsyncIterator[Held]:
    database, kind = chosen
    async with client(kind.flavour, database.url) as found:
        yield found


@asynccontextmanager
async def subscribed(held: Held, count: int, **options: Any) -> AsyncIterator[list[Any]]:
    """So many deliveries of a subscriber."""
    sub = await held.call(held.mq.subscribe, "t", group="g", **OPTIONS | options)
    try:
        if hasattr(sub, "__await__"):
            await sub
        found: list[Any] = []

        async def enough() -> bool:
            found.extend(await held.call(sub.poll, max=count - len(found), timeout=0.2))
            return len(found) == count

        await eventually(enough)
        yield found
    finally:
        await held.call(sub.close)


async def publish_to(held: Held, count: int) -> None:
    await held.publish_many("t", [Message(payload=n, key="k") for n in range(1, count + 1)])


async def held_state(held: Held) -> tuple[Any, ...]:
    (row,) = await held.call(held.mq.lag, "t", "g")
    found = await held.call(held.mq.dead_letters, "t")
    return row.offset_acked, row.lag, row.in_flight, [letter.offset for letter in found]


async def settle_all(tx: Held, deliveries: list[Any], error: str) -> None:
    """Six deliveries, in each way that there is."""
    assert tx.caller is not None
    where = {"connection": tx.caller.connection}
    one, two, three, four, five, six = deliveries
    await tx.call(four.ack, **where)
    await tx.call(one.ack, **where)
    await tx.call(two.reject, error=error, **where)
    await tx.call(three.nack, delay=60, error=error, **where)
    await tx.call(five.extend, 60, **where)
    await tx.call(six.nack, error=None, **where)
    await tx.run("INSERT INTO callers_own (note) VALUES ('mine')")


async def test_callers_commit_or_roll_back(held: Held, chosen: tuple[Database, Kind]) -> None:
    database, kind = chosen
    await publish_to(held, 6)
    async with subscribed(held, 6) as deliveries:
        async with transaction(held, kind.open(database)) as tx:
            await settle_all(tx, deliveries, "undone")
            raise Undo
        assert await held_state(held) == (0, 6, 6, [])
        assert ask(database, "SELECT COUNT(*) FROM callers_own") == [(0,)]
        async with transaction(held, kind.open(database)) as tx:
            before = stored(database)
            await settle_all(tx, deliveries, "wörse 😀 '\"\\%s")
            assert stored(database) == before
        assert ask(database, "SELECT COUNT(*) FROM callers_own") == [(1,)]
        assert await held_state(held) == (2, 3, 1, [2])
        for delivery in (deliveries[0], deliveries[1], deliveries[2]):
            with pytest.raises(errors.AlreadySettled):
                await held.call(delivery.ack)
        await held.call(deliveries[4].ack)
    (letter,) = await held.call(held.mq.dead_letters, "t")
    assert (letter.error, letter.message.payload) == ("wörse 😀 '\"\\%s", 2)


SAMPLE = matrix(
    "KINDS",
    *("sqlite3", "aiosqlite", "sqlite-Session", "psycopg", "psycopg2", "asyncpg"),
    *("postgresql+psycopg-Session", "postgresql+asyncpg-AsyncSession", "django"),
    *("PyMySQL", "mysql-connector", "asyncmy", "aiomysql", "mysql+asyncmy-AsyncConnection"),
)


@pytest.mark.parametrize("chosen", SAMPLE, indirect=True)
async def test_a_stale_lease_leaves_a_callers_transaction_usable(
    held: Held, chosen: tuple[Database, Kind]
) -> None:
    """The caller decides whether its effects are to stand without the settle."""
    database, kind = chosen
    await publish_to(held, 2)
    async with subscribed(held, 2, discovery_interval=60) as (first, second):
        await held.call(held.mq.seek, "t", "g", to="earliest")
        async with transaction(held, kind.open(database)) as tx:
            assert tx.caller is not None
            await tx.run("INSERT INTO callers_own (note) VALUES ('before')")
            for settle in (first.ack, first.reject, second.nack):
                with pytest.raises(errors.StaleLease):
                    await tx.call(settle, connection=tx.caller.connection)
            await tx.run("INSERT INTO callers_own (note) VALUES ('after')")
            await tx.publish("results", "of the caller's own")
        assert ask(database, "SELECT COUNT(*) FROM callers_own") == [(2,)]
        assert await held_state(held) == (0, 2, 0, [])
    assert len(await held.call(held.mq.read, "results")) == 1


async def administer(tx: Held, error: str) -> list[Any]:
    """Everything an operator can do in a transaction."""
    assert tx.caller is not None
    where = {"connection": tx.caller.connection}
    return [
        await tx.call(tx.mq.create_group, "t", "new", start="latest", **where),
        await tx.call(tx.mq.seek, "t", "new", to={"k": 3}, **where),
        await tx.call(tx.mq.seek, "t", "new", to="earliest", key="k", **where),
        await tx.call(tx.mq.redrive, "t", group="g", ids=["id1", error], **where),
        await tx.call(tx.mq.purge_dead_letters, "t", ids=["id2", error], **where),
        await tx.call(tx.mq.drop_group, "t", "old", **where),
        await tx.call(tx.mq.configure_topic, "t", retention=7, **where),
    ]


@pytest.mark.parametrize("chosen", SAMPLE, indirect=True)
async def test_callers_administer(held: Held, chosen: tuple[Database, Kind]) -> None:
    database, kind = chosen
    await held.publish_many("t", [Message(payload=n, key="k", id=f"id{n}") for n in (1, 2, 3)])
    await held.call(held.mq.create_group, "t", "old")
    async with subscribed(held, 3) as deliveries:
        for delivery in deliveries:
            await held.call(delivery.reject, error="no")
    before = stored(database)
    async with transaction(held, kind.open(database)) as tx:
        assert await administer(tx, "ïd 😀 '%s") == [True, 1, 1, 1, 1, True, None]
        assert stored(database) == before
        raise Undo
    assert stored(database) == before
    async with transaction(held, kind.open(database)) as tx:
        await administer(tx, "ïd 😀 '%s")
    assert await held_state(held) == (0, 1, 0, [3])
    groups = await held.call(held.mq.groups, "t")
    assert [(group.name, group.lag) for group in groups] == [("g", 1), ("new", 3)]


ON_MYSQL = matrix("KINDS", "PyMySQL", "mysql+pymysql-Session", "asyncmy", "aiomysql")


@pytest.mark.parametrize("chosen", ON_MYSQL, indirect=True)
@pytest.mark.parametrize("order", [(1,), (5,), (1, 5), (5, 1)], ids=str)
async def test_a_snapshot_does_not_hide_the_settles_of_others(
    held: Held, chosen: tuple[Database, Kind], order: tuple[int, ...]
) -> None:
    """At REPEATABLE READ, MySQL's default, a transaction that has read something sees no more of
    what others commit, unless it locks it; but it sees what it writes itself.
    """
    database, kind = chosen
    await publish_to(held, 5)
    async with subscribed(held, 5) as deliveries:
        _, two, three, four, _ = deliveries
        async with transaction(held, kind.open(database)) as tx:
            assert tx.caller is not None
            await tx.run("SELECT COUNT(*) FROM rowmq_messages")
            await held.call(two.ack)
            await held.call(four.nack, delay=60, error="later")
            for offset in order:
                settled = deliveries[offset - 1]
                await tx.call(settled.ack, connection=tx.caller.connection)
        for offset in {1, 5} - set(order):
            await held.call(deliveries[offset - 1].ack)
        assert await held_state(held) == (2, 2, 1, [])
        await held.call(three.ack)
        assert await held_state(held) == (3, 1, 0, [])


@pytest.mark.parametrize("chosen", ON_MYSQL, indirect=True)
async def test_a_snapshot_does_not_hide_the_message_that_is_given_up(
    held: Held, chosen: tuple[Database, Kind]
) -> None:
    """It was published after the transaction had read something."""
    database, kind = chosen
    await held.publish("t", "old", key="other")
    async with transaction(held, kind.open(database)) as tx:
        assert tx.caller is not None
        await tx.run("SELECT COUNT(*) FROM rowmq_messages")
        await publish_to(held, 1)
        async with subscribed(held, 2) as deliveries:
            for delivery in deliveries:
                await tx.call(delivery.reject, connection=tx.caller.connection)
            assert tx.caller is not None
            await tx.call(commit, tx.caller)
    found = await held.call(held.mq.dead_letters, "t")
    assert sorted(str(letter.message.payload) for letter in found) == ["1", "old"]


def commit(caller: Any) -> Any:
    """End the transaction before the subscriber is closed, which waits for it."""
    return caller.connection.commit()


@pytest.mark.parametrize("chosen", ON_MYSQL, indirect=True)
async def test_a_snapshot_does_not_hide_what_a_redrive_or_a_seek_must_know(
    held: Held, chosen: tuple[Database, Kind]
) -> None:
    """Administration in a caller's transaction goes by what is, and not by what was."""
    database, kind = chosen
    await publish_to(held, 4)
    async with subscribed(held, 4) as (one, two, three, four):
        await held.call(one.reject, error="no")
        async with transaction(held, kind.open(database)) as tx:
            assert tx.caller is not None
            await tx.run("SELECT COUNT(*) FROM rowmq_messages")
            await held.call(three.ack)
            redrive = held.mq.redrive
            assert await tx.call(redrive, "t", group="g", connection=tx.caller.connection) == 1
        assert await held_state(held) == (0, 3, 2, [])
        await held.call(two.ack)
        await held.call(four.ack)
        assert await held_state(held) == (0, 1, 0, [])


@pytest.mark.parametrize("chosen", ON_MYSQL, indirect=True)
async def test_a_snapshot_does_not_hide_a_group(held: Held, chosen: tuple[Database, Kind]) -> None:
    database, kind = chosen
    await publish_to(held, 1)
    async with transaction(held, kind.open(database)) as tx:
        assert tx.caller is not None
        await tx.run("SELECT COUNT(*) FROM rowmq_groups")
        await held.call(held.mq.create_group, "t", "g")
        where = {"connection": tx.caller.connection}
        assert await tx.call(held.mq.create_group, "t", "g", start="latest", **where) is False
        assert await tx.call(held.mq.seek, "t", "g", to="latest", **where) == 1
        assert await tx.call(held.mq.drop_group, "t", "g", **where) is True
    assert await held.call(held.mq.groups, "t") == []


@pytest.mark.parametrize("chosen", matrix("KINDS", "psycopg", "asyncpg"), indirect=True)
async def test_postgres_tells_that_a_snapshot_is_too_old(
    held: Held, chosen: tuple[Database, Kind]
) -> None:
    database, kind = chosen
    await publish_to(held, 2)
    async with subscribed(held, 2) as (one, two):
        async with transaction(held, kind.open(database)) as tx:
            assert tx.caller is not None
            await tx.run("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            await tx.run("SELECT COUNT(*) FROM callers_own")
            await held.call(two.ack)
            with pytest.raises(errors.SerializationFailure):
                await tx.call(one.ack, connection=tx.caller.connection)
            raise Undo
        assert await held_state(held) == (0, 1, 1, [])
        await held.call(one.ack)


async def test_consuming_goes_on_after_a_connection_that_was_not_committed(
    mq: Any, database: Database
) -> None:
    """Whoever never ends its transaction, and closes its connection, has settled nothing."""
    await publish(mq, 2)
    async with mq.subscribe("t", group="g", **OPTIONS) as sub:
        first, second = await take(sub, 2)
        with pytest.raises(ZeroDivisionError):
            async with mq.transaction() as tx:
                await sub.ack([first, second], connection=tx)
                raise ZeroDivisionError
        await mq.publish("t", 3, key="k")
        (third,) = await take(sub, 1)
        assert third.message.payload == 3
        await sub.ack([first, second, third])
    assert await state(mq) == (3, 3, 0, 0, 0)
    assert await consume(mq, "t", "other", 3) == [1, 2, 3]
    assert rows(database, "delivery_state") == [0]
