"""Messages without a key: spread over shards, found by their ids, and each delivered once."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from rowmq import Message, errors
from rowmq.store.keys import SHARD_KEYS, SHARDS, shard_key, shard_of
from tests.choices import async_only, on_servers
from tests.conftest import Connect
from tests.consuming import eventually, lag, payloads, subscribe, take
from tests.databases import Database
from tests.flavours import plain


def at(mq: Any, shard: int) -> Any:
    """The client, as if it had drawn this shard."""
    plain(mq)._shard.key = SHARD_KEYS[shard]
    return mq


async def spread(mq: Any, *counts: tuple[int, int]) -> None:
    """So many messages in each of some shards, whose payloads are shard and offset."""
    for shard, count in counts:
        sent = [Message(payload=[shard, n]) for n in range(1, count + 1)]
        await at(mq, shard).publish_many("t", sent)


async def places(mq: Any) -> dict[int, int]:
    """How far the group has acked each shard."""
    return {row.shard: row.offset_acked for row in await mq.lag("t", "g")}


# --- where messages go ----------------------------------------------------------------------------


async def test_what_one_client_publishes_stays_together_and_in_order(mq: Any) -> None:
    sent = [await mq.publish("t", 0)]
    sent += await mq.publish_many("t", [Message(payload=1), Message(payload=2)])
    async with mq.transaction() as tx:
        sent.append(await tx.publish("t", 3))
    assert {(result.key, result.shard) for result in sent} == {(None, sent[0].shard)}
    assert [result.offset for result in sent] == [1, 2, 3, 4]
    found = await mq.read("t")
    assert [message.payload for message in found] == [0, 1, 2, 3]
    assert {(message.key, message.shard) for message in found} == {(None, sent[0].shard)}


async def test_shards_count_by_themselves(mq: Any) -> None:
    await spread(mq, (5, 2), (2, 3))
    await mq.publish("t", 0, key="a")
    found = [(p.key, p.shard, p.first_offset, p.last_offset) for p in await mq.partitions("t")]
    assert found == [(None, 2, 1, 3), (None, 5, 1, 2), ("a", 0, 1, 1)]
    (topic,) = await mq.topics()
    assert (topic.partitions, topic.messages) == (3, 6)


@on_servers
@async_only
async def test_publishers_wait_only_for_those_of_the_same_shard(
    connect: Connect, database: Database
) -> None:
    slow = at(await connect(database.url), 3)
    other = at(await connect(database.url, lock_timeout=1.0, retry_for=0), 4)
    async with slow.transaction() as tx:
        await tx.publish("t", "slow")
        assert (await other.publish("t", "quick")).shard == 4
        with pytest.raises(errors.Locked):
            await at(other, 3).publish("t", "too late")
    assert [message.payload for message in await other.read("t")] == ["slow", "quick"]


# --- ids ------------------------------------------------------------------------------------------


async def test_an_id_is_found_whoever_publishes_it_again(
    connect: Connect, database: Database
) -> None:
    one, other = at(await connect(database.url), 1), at(await connect(database.url), 6)
    first = await one.publish("t", "first", id="x")
    again = [await other.publish("t", "again", id="x")]
    again += await other.publish_many("t", [Message(payload="again", id="x")])
    async with other.transaction() as tx:
        again.append(await tx.publish("t", "again", id="x"))
    assert (first.shard, first.duplicate) == (shard_of(shard_key("x")), False)
    assert {(r.shard, r.offset, r.duplicate) for r in again} == {(first.shard, first.offset, True)}
    assert (await other.publish("t", "keyed", key="k", id="x")).duplicate is False
    assert [message.payload for message in await one.read("t")] == ["first", "keyed"]


async def test_an_id_that_was_made_is_found_as_well(connect: Connect, database: Database) -> None:
    one, other = at(await connect(database.url), 1), at(await connect(database.url), 6)
    sent = [await one.publish("t", 0), *await other.publish_many("t", [Message(payload=0)])]
    for result in sent:
        again = await other.publish("t", "again", id=result.id)
        assert (again.shard, again.offset, again.duplicate) == (result.shard, 1, True)
    assert [(message.shard, message.payload) for message in await one.read("t")] == [(1, 0), (6, 0)]


async def test_of_rivals_with_one_id_one_is_first(connect: Connect, database: Database) -> None:
    clients = [at(await connect(database.url), shard) for shard in range(4)]
    ids = [f"id-{n}" for n in range(12)]
    batch = [Message(payload=0, id=id) for id in ids]
    found = await asyncio.gather(*(client.publish_many("t", batch) for client in clients))
    for results in zip(*found, strict=True):
        assert Counter(result.duplicate for result in results) == {False: 1, True: 3}
        assert len({(result.shard, result.offset) for result in results}) == 1
    read = await clients[0].read("t")
    assert sorted(message.id for message in read) == sorted(ids)
    assert len({message.shard for message in read}) > 1


# --- consuming ------------------------------------------------------------------------------------


@async_only
async def test_with_a_publisher_in_every_shard_nothing_is_lost_or_doubled(
    connect: Connect, database: Database
) -> None:
    clients = [at(await connect(database.url, pool_size=2), shard) for shard in range(SHARDS)]

    async def produce(number: int) -> None:
        for n in range(10):
            await clients[number].publish("t", [number, n])
            await clients[number].publish("t", ["shared", n], id=f"shared-{n}")

    handled: list[Any] = []

    async def consume(mq: Any, stop: asyncio.Event) -> None:
        async with subscribe(mq) as sub:
            while not stop.is_set():
                batch = await sub.poll(max=20, timeout=0.05)
                handled.extend(batch)
                await sub.ack(batch)

    stop = asyncio.Event()
    await clients[0].create_group("t", "g")
    consumers = [asyncio.create_task(consume(clients[n], stop)) for n in range(3)]
    await asyncio.gather(*map(produce, range(SHARDS)))
    await eventually(lambda: len(handled) >= 10 * SHARDS + 10)
    stop.set()
    await asyncio.gather(*consumers)
    wanted = [[number, n] for number in [*range(SHARDS), "shared"] for n in range(10)]
    assert sorted(map(repr, payloads(handled))) == sorted(map(repr, wanted))
    assert await lag(clients[0]) == 0
    assert len(await clients[0].partitions("t")) == SHARDS


async def test_subscribers_share_the_shards_out(mq: Any) -> None:
    await spread(mq, (0, 2), (3, 2), (7, 2))
    async with subscribe(mq) as sub:
        deliveries = await take(sub, 6)
        assert sorted(payloads(deliveries)) == [[s, n] for s in (0, 3, 7) for n in (1, 2)]
        assert sub.owned == [None, None, None]
        await sub.ack(deliveries)
    assert await places(mq) == {0: 2, 3: 2, 7: 2}
    assert await mq.gc("t") == 6


async def test_a_dead_letter_stays_in_its_shard_and_comes_back_to_it(mq: Any) -> None:
    await spread(mq, (2, 1), (6, 1))
    async with subscribe(mq) as sub:
        for delivery in await take(sub, 2):
            await delivery.reject(error="no")
    letters = await mq.dead_letters("t")
    assert sorted((x.message.shard, x.offset) for x in letters) == [(2, 1), (6, 1)]
    assert {copy.shard: copy.payload for copy in await mq.read("t_dlq")} == {2: [2, 1], 6: [6, 1]}
    (id,) = [letter.message.id for letter in letters if letter.message.shard == 6]
    assert await mq.redrive("t", group="g", ids=[id]) == 1
    async with subscribe(mq) as sub:
        (again,) = await take(sub, 1)
        assert (again.message.shard, again.message.payload) == (6, [6, 1])
        await again.ack()


# --- offsets of shards ----------------------------------------------------------------------------


async def test_who_reads_page_by_page_goes_on_in_every_shard(mq: Any) -> None:
    await spread(mq, (1, 3), (4, 3))
    await mq.publish("t", "a", key="a")
    found: list[Any] = []
    following: dict[tuple[str | None, int], int] = {}
    while page := await mq.read("t", from_offset=following, limit=2):
        found += page
        following |= {(m.key, m.shard): m.offset + 1 for m in page}
    wanted = [[1, 1], [1, 2], [1, 3], [4, 1], [4, 2], [4, 3], "a"]
    assert [message.payload for message in found] == wanted


async def test_where_to_read_from_without_a_key_holds_for_every_shard(mq: Any) -> None:
    await spread(mq, (1, 2), (4, 3))
    assert [m.payload for m in await mq.read("t", from_offset={None: 2})] == [
        [1, 2],
        [4, 2],
        [4, 3],
    ]
    assert [m.payload for m in await mq.read("t", from_offset={(None, 4): 3})] == [
        [1, 1],
        [1, 2],
        [4, 3],
    ]
    both: Any = {None: 3, (None, 1): 2}
    assert [m.payload for m in await mq.read("t", from_offset=both)] == [[1, 2], [4, 3]]


async def test_one_shard_is_read(mq: Any) -> None:
    await spread(mq, (1, 2), (4, 3))
    await mq.publish("t", "a", key="a")
    assert [m.payload for m in await mq.read("t", key=(None, 4))] == [[4, 1], [4, 2], [4, 3]]
    assert [m.payload for m in await mq.read("t", key=(None, 1), from_offset=2)] == [[1, 2]]
    assert [m.payload for m in await mq.read("t", key=("a", 0))] == ["a"]
    assert await mq.read("t", key=(None, 2)) == []
    with pytest.raises(errors.InvalidOption, match="shards are 0 to 7"):
        await mq.read("t", key=(None, 8))


async def test_a_group_is_moved_in_one_shard_or_in_all(mq: Any) -> None:
    await spread(mq, (1, 3), (4, 5))
    await mq.create_group("t", "g")
    assert await mq.seek("t", "g", to={(None, 4): 3}) == 1
    assert await places(mq) == {1: 0, 4: 2}
    assert await mq.seek("t", "g", to={(None, 1): 2, (None, 4): 6}) == 2
    assert await places(mq) == {1: 1, 4: 5}
    assert await mq.seek("t", "g", to="earliest", key=(None, 4)) == 1
    assert await places(mq) == {1: 1, 4: 0}
    assert await mq.seek("t", "g", to="latest", key=(None, 1)) == 1
    assert await places(mq) == {1: 3, 4: 0}
    assert await mq.seek("t", "g", to="earliest") == 2
    assert await places(mq) == {1: 0, 4: 0}
    assert await mq.seek("t", "g", to="latest") == 2
    assert await places(mq) == {1: 3, 4: 5}


async def test_an_offset_without_a_key_is_refused_where_it_says_too_little(mq: Any) -> None:
    await spread(mq, (4, 3))
    await mq.create_group("t", "g")
    assert await mq.seek("t", "g", to={None: 2}) == 1
    assert await places(mq) == {4: 1}
    await spread(mq, (1, 3))
    with pytest.raises(errors.InvalidOption, match=r"\(None, 1\), \(None, 4\)$"):
        await mq.seek("t", "g", to={None: 3})
    for key in ((None, 2), (None, 8), ("a", 1)):
        with pytest.raises(errors.InvalidOption):
            await mq.seek("t", "g", to={key: 1})
    assert await places(mq) == {1: 0, 4: 1}


# --- ids that are made later ----------------------------------------------------------------------


async def test_a_letter_of_two_groups_has_ids_of_its_own_shard(mq: Any) -> None:
    """So whoever publishes one again comes to where it is, and finds it."""
    await mq.publish_many("t", [Message(payload=n, id=f"id-{n}") for n in range(8)])
    for group in ("g", "h"):
        async with subscribe(mq, group=group) as sub:
            for d in await take(sub, 8):
                await d.reject(error="no")
    letters = await mq.read("t_dlq")
    assert len({message.id for message in letters}) == 16
    again = await mq.publish_many("t_dlq", [Message(payload=m.payload, id=m.id) for m in letters])
    assert [(r.duplicate, r.shard) for r in again] == [(True, m.shard) for m in letters]
