"""Consumer groups as operators see them: created, listed, dropped, and how far they are behind."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import rowmq
from rowmq import Message, errors
from rowmq.store.statement import Statement
from tests.choices import on_servers
from tests.conftest import Connect
from tests.consuming import eventually, payloads, take
from tests.databases import Database

QUICK = {"discovery_interval": 0.05, "poll_interval": 0.02}
"""Subscribers that look often, so that tests need not wait."""

PATIENCE_SECONDS = 15.0


async def consume(mq: Any, topic: str, group: str, count: int, **options: Any) -> list[Any]:
    """The payloads of so many messages, acked by a subscriber that comes and goes."""
    async with mq.subscribe(topic, group=group, **QUICK | options) as sub:
        deliveries = await take(sub, count)
        await sub.ack(deliveries)
        return payloads(deliveries)


async def raises_eventually(kind: type[Exception], call: Callable[[], Awaitable[Any]]) -> None:
    """A call raises an error, if not the first time then soon."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    with pytest.raises(kind):
        while time.monotonic() < deadline:
            await call()


def rows(database: Database, *tables: str) -> list[int]:
    return [database.execute(f"SELECT COUNT(*) FROM rowmq_{table}")[0][0] for table in tables]


async def lag_of(mq: Any, topic: str, group: str) -> dict[str | None, tuple[Any, ...]]:
    """Of each key: acked, last offset, lag, in flight, owner."""
    return {
        row.key: (row.offset_acked, row.last_offset, row.lag, row.in_flight, row.owner)
        for row in await mq.lag(topic, group)
    }


# --- create and list ----------------------------------------------------------------------------


async def test_a_group_is_created_once(mq: Any) -> None:
    before = datetime.now(UTC) - timedelta(minutes=5)
    assert await mq.create_group("t", "b", start="latest") is True
    assert await mq.create_group("t", "b", start="earliest") is False
    assert await mq.create_group("t", "a") is True
    first, second = await mq.groups("t")
    assert (first.topic, first.name, first.start) == ("t", "a", "earliest")
    assert (second.topic, second.name, second.start) == ("t", "b", "latest")
    assert (first.subscribers, first.lag, first.expired) == (0, 0, 0)
    assert before < first.created_at < datetime.now(UTC) + timedelta(minutes=5)
    assert await mq.groups("another") == []


async def test_rivals_create_a_group_once(connect: Connect, database: Database) -> None:
    clients = [await connect(database.url, pool_size=2) for _ in range(4)]
    for name in ("a", "b", "c"):
        calls = [mq.create_group("t", name, start="latest") for mq in clients for _ in range(2)]
        assert sorted(await asyncio.gather(*calls)) == [False] * 7 + [True]
    assert [group.name for group in await clients[0].groups("t")] == ["a", "b", "c"]


async def test_names_of_groups_are_exact(mq: Any) -> None:
    names = ["Group", "group", "group ", "gröup 😀", "gr%p", "gr_p", "'; --", "x" * 200]
    await mq.publish("t", 1)
    for name in names:
        assert await mq.create_group("t", name)
    assert [group.name for group in await mq.groups("t")] == sorted(names)
    assert await consume(mq, "t", "group ", 1) == [1]
    lags = {group.name: group.lag for group in await mq.groups("t")}
    assert lags == {name: int(name != "group ") for name in names}
    assert await mq.drop_group("t", "gr%p")
    assert len(await mq.groups("t")) == len(names) - 1


async def test_a_group_belongs_to_its_topic(mq: Any) -> None:
    await mq.publish("s", "of s")
    await mq.publish("t", "of t")
    assert await mq.create_group("s", "g")
    assert await mq.create_group("t", "g")
    assert await consume(mq, "t", "g", 1) == ["of t"]
    assert [row.lag for row in await mq.lag("s", "g")] == [1]
    assert await mq.drop_group("t", "g")
    assert await consume(mq, "s", "g", 1) == ["of s"]


async def test_subscribing_registers_the_group(mq: Any) -> None:
    async with mq.subscribe("t", group="g", **QUICK), mq.subscribe("t", group="g", **QUICK):
        (group,) = await mq.groups("t")
        assert (group.name, group.start, group.subscribers) == ("g", "earliest", 2)
        found = await mq.subscribers()
        assert [(s.topic, s.group, s.alive) for s in found] == [("t", "g", True)] * 2
    assert await mq.subscribers() == []
    (group,) = await mq.groups("t")
    assert (group.name, group.subscribers) == ("g", 0)


async def test_subscribing_leaves_a_group_as_it_is(mq: Any) -> None:
    await mq.create_group("t", "g", start="latest")
    async with mq.subscribe("t", group="g", start="earliest", **QUICK):
        assert [group.start for group in await mq.groups("t")] == ["latest"]


async def test_a_group_is_created_or_dropped_in_a_transaction_or_not_at_all(mq: Any) -> None:
    with pytest.raises(ZeroDivisionError):
        async with mq.transaction() as tx:
            assert await mq.create_group("t", "g", connection=tx)
            raise ZeroDivisionError
    assert await mq.groups("t") == []
    async with mq.transaction() as tx:
        assert await mq.create_group("t", "g", connection=tx)
    assert len(await mq.groups("t")) == 1
    with pytest.raises(ZeroDivisionError):
        async with mq.transaction() as tx:
            assert await mq.drop_group("t", "g", connection=tx)
            raise ZeroDivisionError
    assert len(await mq.groups("t")) == 1


# --- where a group begins -----------------------------------------------------------------------


async def test_earliest_begins_with_the_oldest_message(mq: Any) -> None:
    await mq.publish("t", "before", key="k")
    await mq.create_group("t", "created")
    await mq.publish("t", "after", key="k")
    assert await consume(mq, "t", "created", 2) == ["before", "after"]
    assert await consume(mq, "t", "subscribed", 2) == ["before", "after"]


async def test_latest_begins_where_it_was_created(mq: Any) -> None:
    """And not where it first subscribes: what is published in between is its own."""
    await mq.publish("t", "before", key="k")
    await mq.publish("t", "before, without a key")
    await mq.create_group("t", "created", start="latest")
    await mq.publish("t", "after", key="k")
    await mq.publish("t", "of a new key", key="new")
    found = await consume(mq, "t", "created", 2, start="earliest")
    assert sorted(found) == ["after", "of a new key"]
    assert {row.key: row.lag for row in await mq.lag("t", "created")} == {
        None: 0, "k": 0, "new": 0,
    }  # fmt: skip


async def test_subscribing_may_begin_with_the_latest(mq: Any) -> None:
    await mq.publish("t", "before", key="k")
    async with mq.subscribe("t", group="g", start="latest", **QUICK) as sub:
        await mq.publish("t", "after", key="k")
        assert payloads(await take(sub, 1)) == ["after"]


@on_servers
async def test_latest_misses_nothing_that_is_committed_later(mq: Any) -> None:
    """Its transaction began before the group, but nobody had seen it by then."""
    await mq.publish("t", "before", key="known")
    async with mq.transaction() as tx:
        await tx.publish("t", "late", key="known")
        await tx.publish("t", "late too", key="new")
        await mq.create_group("t", "g", start="latest")
    assert sorted(await consume(mq, "t", "g", 2)) == ["late", "late too"]


# --- partitions that appear later ---------------------------------------------------------------


async def test_a_group_that_is_down_misses_no_new_partition(mq: Any) -> None:
    await mq.publish("t", "old", key="old")
    assert await consume(mq, "t", "g", 1) == ["old"]
    for n in range(3):
        await mq.publish("t", n, key="new")
    await mq.gc("t")
    assert await consume(mq, "t", "g", 3) == [0, 1, 2]


async def test_a_group_that_never_came_misses_no_new_partition(mq: Any) -> None:
    await mq.create_group("t", "g", start="latest")
    await mq.publish("t", 1, key="new")
    assert await consume(mq, "t", "other", 1) == [1]
    await mq.gc("t")
    assert await consume(mq, "t", "g", 1) == [1]


async def test_a_running_group_gets_new_partitions(mq: Any) -> None:
    async with mq.subscribe("t", group="g", **QUICK) as sub:
        for n in range(5):
            await mq.publish("t", n, key=f"k{n}")
            await sub.ack(await take(sub, 1))
        await mq.publish("t", "keyless")
        assert payloads(await take(sub, 1)) == ["keyless"]
        assert sub.owned == [None, "k0", "k1", "k2", "k3", "k4"]


@on_servers
async def test_a_partition_that_is_committed_late_is_found(mq: Any) -> None:
    """Its id is lower than those that the subscriber has seen for long."""
    options = QUICK | {"lease_duration": 0.9}
    async with mq.subscribe("t", group="g", **options) as sub:
        async with mq.transaction() as tx:
            await tx.publish("t", "late", key="first")
            await mq.publish("t", "early", key="second")
            await sub.ack(await take(sub, 1))
            for _ in range(10):
                assert await sub.poll(timeout=0.05) == []
        assert payloads(await take(sub, 1)) == ["late"]


# --- drop ---------------------------------------------------------------------------------------


async def test_drop_forgets_the_group_and_nothing_else(mq: Any, database: Database) -> None:
    await mq.publish_many("t", [Message(payload=n, key=f"k{n % 2}") for n in range(6)])
    for name in ("dropped", "kept"):
        async with mq.subscribe("t", group=name, **QUICK) as sub:
            deliveries = await take(sub, 6)
            await deliveries[1].ack()
            await deliveries[2].nack(delay=60)
    assert await mq.drop_group("t", "dropped") is True
    assert await mq.drop_group("t", "dropped") is False
    assert [group.name for group in await mq.groups("t")] == ["kept"]
    (kept,) = database.execute("SELECT id FROM rowmq_groups")[0]
    for table in ("offsets", "delivery_state"):
        assert {id for (id,) in database.execute(f"SELECT group_id FROM rowmq_{table}")} == {kept}
    assert rows(database, "messages", "subscribers") == [6, 0]
    assert sum(row.lag for row in await mq.lag("t", "kept")) == 5


async def test_drop_while_subscribers_run(mq: Any, database: Database) -> None:
    await mq.publish("t", "in flight", key="k")
    options = QUICK | {"lease_duration": 0.6}
    async with (
        mq.subscribe("t", group="g", **options) as sub,
        mq.subscribe("t", group="g", **options) as idle,
        mq.subscribe("t", group="other", **options) as other,
    ):
        (delivery,) = await take(sub, 1) if sub.owned else await take(idle, 1)
        assert await mq.drop_group("t", "g") is True
        for call in (delivery.ack, lambda: delivery.extend(5), delivery.reject):
            with pytest.raises(errors.StaleLease):
                await call()
        await raises_eventually(errors.UnknownGroup, lambda: sub.poll(timeout=0.1))
        await raises_eventually(errors.UnknownGroup, lambda: idle.poll(timeout=0.1))
        assert sub.owned == idle.owned == []
        await other.ack(await take(other, 1))
        assert [group.name for group in await mq.groups("t")] == ["other"]
    assert rows(database, "subscribers", "dead_letters") == [0, 0]


async def test_a_dropped_group_begins_anew(mq: Any) -> None:
    await mq.publish("t", 1, key="k")
    assert await consume(mq, "t", "g", 1) == [1]
    await mq.drop_group("t", "g")
    async with mq.subscribe("t", group="g", **QUICK) as sub:
        (again,) = await take(sub, 1)
        assert (again.message.payload, again.attempt) == (1, 1)
    await mq.drop_group("t", "g")
    await mq.create_group("t", "g", start="latest")
    assert [row.lag for row in await mq.lag("t", "g")] == [0]


async def test_a_subscriber_of_a_group_that_was_dropped_and_made_again_goes_on(mq: Any) -> None:
    """At once, however long it has been there: the new group knows nothing of the partitions."""
    await mq.publish("t", 1, key="k")
    async with mq.subscribe("t", group="g", **QUICK) as sub:
        await sub.ack(await take(sub, 1))
        assert await sub.poll(timeout=0.3) == []
        async with mq.transaction() as tx:
            await mq.drop_group("t", "g", connection=tx)
            await mq.create_group("t", "g", connection=tx)
        (again,) = await take(sub, 1, seconds=5)
        assert (again.message.payload, again.attempt) == (1, 1)
        await again.ack()
    assert [row.lag for row in await mq.lag("t", "g")] == [0]


def dropping_before(database: Database, moment: str) -> Callable[[Statement], None]:
    """An observer that drops the group just before a statement runs, unless that is locked out."""
    dropped: list[bool] = []

    def drop(statement: Statement) -> None:
        if statement.name == moment and not dropped:
            dropped.append(True)
            with (
                rowmq.connect(database.url, lock_timeout=0.2, retry_for=0) as rival,
                suppress(errors.Locked),
            ):
                rival.drop_group("t", "g")

    return drop


def orphans(database: Database, table: str) -> int:
    """How many rows of a table belong to a group that is not there."""
    known = {id for (id,) in database.execute("SELECT id FROM rowmq_groups")}
    found = database.execute(f"SELECT group_id FROM rowmq_{table}")
    return sum(id not in known for (id,) in found)


@on_servers
async def test_nobody_joins_a_group_while_it_is_dropped(mq: Any, database: Database) -> None:
    """A subscriber of no group would consume what nobody keeps for it, and never be told."""
    await mq.publish("t", 1, key="k")
    await mq.create_group("t", "g")
    mq._driver.observers.append(dropping_before(database, "leases.register"))
    with suppress(errors.UnknownGroup):
        async with mq.subscribe("t", group="g", **QUICK) as sub:
            with suppress(errors.UnknownGroup):
                await take(sub, 1)
            assert orphans(database, "subscribers") == 0
    mq._driver.observers.clear()


@on_servers
async def test_a_group_that_is_dropped_leaves_no_rows(mq: Any, database: Database) -> None:
    """Not even if it is just taking in new partitions."""
    await mq.publish("t", 1, key="k")
    await mq.create_group("t", "g")
    mq._driver.observers.append(dropping_before(database, "leases.adopt"))
    with suppress(errors.UnknownGroup):
        async with mq.subscribe("t", group="g", **QUICK) as sub:
            await take(sub, 1)
    mq._driver.observers.clear()
    assert [orphans(database, table) for table in ("offsets", "subscribers")] == [0, 0]


@pytest.mark.parametrize("group", ["never", "dropped"])
async def test_an_unknown_group_is_told(mq: Any, group: str) -> None:
    await mq.publish("t", 1)
    await mq.create_group("t", "dropped")
    await mq.drop_group("t", "dropped")
    calls: list[Callable[[], Awaitable[Any]]] = [
        lambda: mq.lag("t", group),
        lambda: mq.seek("t", group, to="earliest"),
        lambda: mq.seek("t", group, to={None: 1}),
    ]
    for call in calls:
        with pytest.raises(errors.UnknownGroup, match="create_group"):
            await call()
    assert await mq.drop_group("t", group) is False
    assert await mq.drop_group("no such topic", group) is False
    assert await mq.groups("t") == []


# --- lag ----------------------------------------------------------------------------------------


async def test_lag_counts_what_is_not_acked(mq: Any) -> None:
    batch = [Message(payload=n, key=key) for n in range(4) for key in ("b", "a", None)]
    await mq.publish_many("t", batch)
    await mq.create_group("t", "g")
    await mq.create_group("t", "late", start="latest")
    assert [row.key for row in await mq.lag("t", "g")] == [None, "a", "b"]
    assert await lag_of(mq, "t", "g") == dict.fromkeys([None, "a", "b"], (0, 4, 4, 0, None))
    assert await lag_of(mq, "t", "late") == dict.fromkeys([None, "a", "b"], (4, 4, 0, 0, None))
    await mq.publish("t", 5, key="a")
    assert (await lag_of(mq, "t", "late"))["a"] == (4, 5, 1, 0, None)
    await mq.publish("t", "new", key="c")
    assert (await lag_of(mq, "t", "late"))["c"] == (0, 1, 1, 0, None)
    assert {group.name: group.lag for group in await mq.groups("t")} == {"g": 14, "late": 2}
    assert await mq.lag("t", "g") == sorted(await mq.lag("t", "g"), key=lambda row: row.key or "")


async def test_lag_counts_acks_out_of_order(mq: Any) -> None:
    await mq.publish_many("t", [Message(payload=n, key="k") for n in range(6)])
    async with mq.subscribe("t", group="g", name="w1", **QUICK) as sub:
        one, two, three, four, *_ = await take(sub, 5)
        assert await lag_of(mq, "t", "g") == {"k": (0, 6, 6, 5, "w1")}
        await sub.ack([two, four])
        assert await lag_of(mq, "t", "g") == {"k": (0, 6, 4, 3, "w1")}
        await three.nack(delay=60, error="later")
        assert await lag_of(mq, "t", "g") == {"k": (0, 6, 4, 2, "w1")}
        assert [group.lag for group in await mq.groups("t")] == [4]
        await one.ack()
        assert await lag_of(mq, "t", "g") == {"k": (2, 6, 3, 1, "w1")}
        (six,) = await take(sub, 1)
        await six.reject(error="no")
        assert await lag_of(mq, "t", "g") == {"k": (2, 6, 2, 1, "w1")}
    assert [group.lag for group in await mq.groups("t")] == [2]
    (row,) = await mq.lag("t", "g")
    assert (row.offset_acked, row.lag, row.owner) == (2, 2, None)


async def test_nobody_has_in_flight_what_its_owner_left(mq: Any) -> None:
    """A graceful close gives back what was delivered."""
    await mq.publish_many("t", [Message(payload=n, key="k") for n in range(3)])
    async with mq.subscribe("t", group="g", name="w1", **QUICK) as sub:
        _, second, _ = await take(sub, 3)
        await second.ack()
        assert await lag_of(mq, "t", "g") == {"k": (0, 3, 2, 2, "w1")}
    assert await lag_of(mq, "t", "g") == {"k": (0, 3, 2, 0, None)}


async def test_lag_after_collecting(mq: Any) -> None:
    await mq.publish_many("t", [Message(payload=n, key="k") for n in range(5)])
    assert len(await consume(mq, "t", "g", 3, batch_size=3)) == 3
    assert await mq.gc("t") == 3
    assert await lag_of(mq, "t", "g") == {"k": (3, 5, 2, 0, None)}
    await mq.create_group("t", "new")
    assert await lag_of(mq, "t", "new") == {"k": (3, 5, 2, 0, None)}
    assert {group.name: group.lag for group in await mq.groups("t")} == {"g": 2, "new": 2}
    assert await consume(mq, "t", "new", 2) == [3, 4]


async def test_lag_tells_each_owner(mq: Any) -> None:
    await mq.publish_many("t", [Message(payload=n, key=f"k{n}") for n in range(4)])
    async with (
        mq.subscribe("t", group="g", name="w1", **QUICK) as first,
        mq.subscribe("t", group="g", name="w2", **QUICK) as second,
        mq.subscribe("t", group="other", name="w3", **QUICK),
    ):

        async def shared() -> bool:
            return len(first.owned) == len(second.owned) == 2

        # What is in flight stays where it is, so nothing is.
        await eventually(shared)
        owners = {row.key: row.owner for row in await mq.lag("t", "g")}
        assert owners == dict.fromkeys(first.owned, "w1") | dict.fromkeys(second.owned, "w2")
        assert {row.owner for row in await mq.lag("t", "other")} == {"w3"}
        groups = {group.name: group.subscribers for group in await mq.groups("t")}
        assert groups == {"g": 2, "other": 1}


async def test_a_dead_owner_is_not_told(mq: Any, database: Database) -> None:
    """Nobody need have swept it."""
    await mq.publish("t", 1, key="k")
    async with mq.subscribe("t", group="g", name="w1", discovery_interval=60) as sub:
        await take(sub, 1)
        assert [row.owner for row in await mq.lag("t", "g")] == ["w1"]
        assert [group.subscribers for group in await mq.groups("t")] == [1]
        database.execute("UPDATE rowmq_subscribers SET expires_at = 1")
        assert [row.owner for row in await mq.lag("t", "g")] == [None]
        assert [group.subscribers for group in await mq.groups("t")] == [0]
        await take(sub, 1)  # as somebody new
        assert [row.owner for row in await mq.lag("t", "g")] == ["w1"]


async def test_looking_waits_for_nobody(connect: Connect, database: Database) -> None:
    """Not even on SQLite, whose writers wait for each other."""
    mq = await connect(database.url)
    impatient = await connect(database.url, lock_timeout=0.2, retry_for=0)
    await mq.publish("t", 1, key="k")
    await mq.create_group("t", "g")
    async with mq.transaction() as tx:
        await tx.publish("t", 2, key="k")
        await mq.seek("t", "g", to="latest", connection=tx)
        assert [group.lag for group in await impatient.groups("t")] == [1]
        assert await impatient.dead_letters("t") == []
        assert await lag_of(impatient, "t", "g") == {"k": (0, 1, 1, 0, None)}


async def test_lag_of_an_empty_topic(mq: Any) -> None:
    await mq.create_group("t", "g")
    assert await mq.lag("t", "g") == []
    assert [group.lag for group in await mq.groups("t")] == [0]
