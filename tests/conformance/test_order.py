"""Commit order is read order: no reader passes an offset whose transaction has not committed."""

import asyncio
import random
import secrets
from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import Any

import pytest

import rowmq
from rowmq import Message
from rowmq.store.entries import Entry, results
from rowmq.store.postgres import PostgresStaging, PostgresTopics
from rowmq.store.statement import Operation, Statement
from rowmq.store.store import store_of
from tests.choices import on_servers
from tests.conftest import Connect
from tests.databases import Database, Databases


class Follower:
    """A reader that goes on from where it stopped, and so misses what appears behind it."""

    def __init__(self, mq: Any) -> None:
        self.mq = mq
        self.following = 1
        self.seen: list[Any] = []

    async def follow(self) -> None:
        for message in await self.mq.read("orders", key="k", from_offset=self.following):
            self.seen.append(message.payload)
            self.following = message.offset + 1


async def held_open_trial(slow: Any, quick: Any, reader: Any) -> list[Any]:
    """One publisher holds its transaction open while another publishes to the same partition."""
    await slow.publish("orders", "zeroth", key="k")
    follower = Follower(reader)
    await follower.follow()
    async with slow.transaction() as tx:
        await tx.publish("orders", "held open", key="k")
        overtaking = asyncio.create_task(quick.publish("orders", "overtaking", key="k"))
        for _ in range(5):
            await asyncio.sleep(0.05)
            await follower.follow()
    await overtaking
    await follower.follow()
    return follower.seen


async def test_a_lower_offset_held_open_is_never_passed(
    connect: Connect, database: Database
) -> None:
    slow, quick, reader = [await connect(database.url) for _ in range(3)]
    seen = await held_open_trial(slow, quick, reader)
    assert seen == ["zeroth", "held open", "overtaking"]


async def test_a_held_publish_that_rolls_back_leaves_no_gap(
    connect: Connect, database: Database
) -> None:
    slow, quick = await connect(database.url), await connect(database.url)
    with pytest.raises(ZeroDivisionError):
        async with slow.transaction() as tx:
            await tx.publish("orders", "held open", key="k")
            waiting = asyncio.create_task(quick.publish("orders", "next", key="k"))
            await asyncio.sleep(0.1)
            raise ZeroDivisionError
    assert (await waiting).offset == 1
    assert [m.payload for m in await quick.read("orders")] == ["next"]


@on_servers  # one writer at a time is what SQLite is
async def test_other_partitions_do_not_wait_for_one_held_open(
    connect: Connect, database: Database
) -> None:
    slow, quick = await connect(database.url), await connect(database.url)
    await slow.publish_many("orders", [Message(payload=0, key=k) for k in ("k", "other")])
    async with slow.transaction() as tx:
        await tx.publish("orders", "held open", key="k")
        async with asyncio.timeout(5):
            await quick.publish("orders", "quick", key="other")
            await quick.publish("orders", "quick", key="new")


@on_servers  # one writer at a time is what SQLite is
async def test_a_key_held_open_makes_no_other_publish_of_the_client_wait(
    connect: Connect, database: Database
) -> None:
    """Single publishes share transactions, but only with those that wait for the same lock."""
    mq = await connect(database.url)
    # A name nobody used: MySQL locks the gaps around rows that were deleted and not yet purged.
    topic = secrets.token_hex(8)
    async with mq.transaction() as tx:
        await tx.publish(topic, "held open", key="hot")
        waiting = [asyncio.create_task(mq.publish(topic, n, key="hot")) for n in range(3)]
        await asyncio.sleep(0.1)
        async with asyncio.timeout(5):
            # The owner of the lock publishes too: behind the others it would wait for itself.
            await mq.publish(topic, "by the owner", key="x")
            await asyncio.gather(*(mq.publish(topic, n, key=f"cold{n}") for n in range(10)))
        assert not any(task.done() for task in waiting)
    await asyncio.gather(*waiting)
    assert len(await mq.read(topic, key="hot")) == 4


class SequenceTopics(PostgresTopics):
    """The log of the RFC: offsets from a plain sequence, taken without a lock."""

    def publish(
        self,
        entries: Sequence[Entry],
        *,
        alone: bool = True,
        notify: Collection[str] = (),  # noqa: ARG002 - nobody listens
    ) -> Operation[list[rowmq.PublishResult]]:
        found: dict[tuple[str, str, str], Any] = {}
        for e in entries:
            result = yield Statement(
                "naive.publish",
                self.dialect.sql(NAIVE),
                (e.topic, e.key, e.id, e.data, e.encoding),
                sole=alone,
            )
            found[e.identity] = (result.rows[0][0], False)
        return results(entries, found)


NAIVE = """
    WITH partition AS (
        SELECT id FROM {partitions} WHERE topic = $1 AND partition_key = $2
    )
    INSERT INTO {messages} (partition_id, message_offset, message_id, payload, encoding,
                            published_at)
    SELECT id, nextval('naive'), $3, $4, $5::smallint, {now} FROM partition
    RETURNING message_offset"""


async def test_the_trial_catches_offsets_from_a_plain_sequence(
    databases: Databases, connect: Connect
) -> None:
    database = databases.get("postgres")
    clients = [await connect(database.url) for _ in range(3)]
    # The reader plans by the counter; a log without one would read to its end.
    await clients[0].publish_many("orders", [Message(payload="zeroth", key="k")])
    database.execute("UPDATE rowmq_partitions SET next_offset = 100")
    database.execute("DROP SEQUENCE IF EXISTS naive")
    database.execute("CREATE SEQUENCE naive START 2")
    for client in clients:
        mq = client if isinstance(client, rowmq.AsyncRowMQ) else client.target
        naive = SequenceTopics(mq._store.dialect)
        parts = mq._store.dialect, naive, mq._store.schema
        mq._store = store_of(*parts, staging=PostgresStaging)
    seen = await held_open_trial(*clients)
    assert "overtaking" in seen
    assert "held open" not in seen  # lost for ever: this is what the counter's lock prevents


# --- many at once ------------------------------------------------------------------------------

PUBLISHERS = 16


async def publisher(mq: Any, number: int, partitions: int) -> list[tuple[str, str]]:
    """Publish single messages and batches over the partitions, in an order nobody else has."""
    rng = random.Random(number)
    sent = []
    for turn in range(4):
        keys = [f"key-{rng.randrange(partitions)}" for _ in range(40)]
        batch = [
            Message(payload=[number, turn, place], key=key, id=f"{number}-{turn}-{place}")
            for place, key in enumerate(keys)
        ]
        results = await mq.publish_many("busy", batch)
        singles = [
            mq.publish("busy", [number, turn, 40 + n], key=keys[n], id=f"{number}-{turn}-s{n}")
            for n in range(4)
        ]
        results += await asyncio.gather(*singles)
        assert not any(result.duplicate for result in results)
        sent += [(result.key, result.id) for result in results]
    return sent


@pytest.mark.parametrize("partitions", [1, 16, 1000])
async def test_sixteen_publishers_lose_double_and_reorder_nothing(
    connect: Connect, database: Database, partitions: int
) -> None:
    clients = [await connect(database.url, pool_size=2) for _ in range(PUBLISHERS)]
    sent = await asyncio.gather(
        *(publisher(mq, number, partitions) for number, mq in enumerate(clients))
    )
    expected = sorted(pair for pairs in sent for pair in pairs)
    messages = await clients[0].read("busy", limit=100_000)
    assert sorted((m.key, m.id) for m in messages) == expected
    by_key = defaultdict(list)
    for message in messages:
        by_key[message.key].append(message)
    for mine in by_key.values():
        assert [m.offset for m in mine] == list(range(1, len(mine) + 1))
        for number in range(PUBLISHERS):
            turns = [(m.payload[1], m.payload[2] >= 40) for m in mine if m.payload[0] == number]
            assert turns == sorted(turns), "one publisher's messages changed their order"
            batch = [m.payload for m in mine if m.payload[0] == number and m.payload[2] < 40]
            assert batch == sorted(batch)


async def test_rivals_with_the_same_ids_agree_on_one_message(
    connect: Connect, database: Database
) -> None:
    clients = [await connect(database.url, pool_size=2) for _ in range(8)]

    async def rival(mq: Any, number: int) -> list[Any]:
        ids = [str(n) for n in range(60)]
        random.Random(number).shuffle(ids)
        singles = [await mq.publish("t", number, key=f"k{int(id) % 3}", id=id) for id in ids[:30]]
        batch = [Message(payload=number, key=f"k{int(id) % 3}", id=id) for id in ids[30:]]
        return singles + list(await mq.publish_many("t", batch))

    outcomes = await asyncio.gather(*(rival(mq, n) for n, mq in enumerate(clients)))
    where = defaultdict(set)
    created: defaultdict[str, int] = defaultdict(int)
    for result in (r for outcome in outcomes for r in outcome):
        where[result.id].add((result.key, result.offset))
        created[result.id] += not result.duplicate
    assert all(len(places) == 1 for places in where.values())
    assert set(created.values()) == {1}
    messages = await clients[0].read("t", limit=1000)
    assert len(messages) == 60
    assert {(m.id, (m.key, m.offset)) for m in messages} == {
        (id, next(iter(places))) for id, places in where.items()
    }
