"""Consuming a topic: what is delivered to whom, how much of it, and until when."""

import asyncio
import random
import time
from collections import Counter, defaultdict
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pytest

import rowmq
from rowmq import Message, errors
from tests.choices import async_only
from tests.conftest import Connect
from tests.consuming import (
    acked,
    attempts,
    eventually,
    lag,
    nothing_comes,
    payloads,
    publish,
    statements,
    subscribe,
    take,
)
from tests.crash import core_of
from tests.databases import Database
from tests.flavours import in_thread

# --- deliver and ack -----------------------------------------------------------------------------


async def test_messages_are_delivered_in_order_and_once_they_are_acked_never_again(mq: Any) -> None:
    await publish(mq, 25)
    async with subscribe(mq, name="w1") as sub:
        seen = []
        for size in (10, 10, 5):
            deliveries = await sub.poll()  # batch_size
            assert len(deliveries) == size
            seen += deliveries
            for d in deliveries:
                await d.ack()
        assert payloads(seen) == list(range(1, 26))
        assert [d.message.offset for d in seen] == list(range(1, 26))
        assert {(d.message.key, d.message.topic, d.group, d.attempt) for d in seen} == {
            ("k", "t", "g", 1)
        }
        assert all(d.settled and not d.lost for d in seen)
        assert await nothing_comes(sub)
        assert sub.name == "w1"
        assert sub.owned == ["k"]
    async with subscribe(mq) as sub:
        assert await nothing_comes(sub)
    assert [(r.key, r.offset_acked, r.last_offset, r.lag) for r in await mq.lag("t", "g")] == [
        ("k", 25, 25, 0)
    ]


async def test_a_delivery_tells_all_about_its_message(mq: Any) -> None:
    result = await mq.publish("t", {"a": [1, None]}, key="k", id="id-1", headers={"h": "é"})
    async with subscribe(mq) as sub:
        (d,) = await take(sub, 1)
        (message,) = await mq.read("t")
        assert d.message == message
        assert (d.message.payload, d.message.id, d.message.headers) == (
            {"a": [1, None]},
            "id-1",
            {"h": "é"},
        )
        assert d.message.offset == result.offset
        assert not d.settled
        assert "offset=1" in repr(d if not hasattr(d, "target") else d.target)


async def test_messages_without_a_key_are_delivered_too(mq: Any) -> None:
    await publish(mq, 3, key=None)
    async with subscribe(mq) as sub:
        deliveries = await take(sub, 3)
        assert sub.owned == [None]
        assert {d.message.key for d in deliveries} == {None}
        await sub.ack(deliveries)
    assert [(r.key, r.lag) for r in await mq.lag("t", "g")] == [(None, 0)]


async def test_a_poll_gives_as_many_as_it_is_asked_for(mq: Any) -> None:
    await publish(mq, 30)
    async with subscribe(mq, batch_size=4) as sub:
        assert len(await sub.poll()) == 4
        assert len(await sub.poll(max=7)) == 7
        assert len(await sub.poll(max=100, timeout=0)) == 19
        with pytest.raises(errors.InvalidOption):
            await sub.poll(max=0)
        with pytest.raises(errors.InvalidOption):
            await sub.poll(timeout=-1)


async def test_a_poll_waits_no_longer_than_it_may(mq: Any) -> None:
    async with subscribe(mq) as sub:
        began = time.monotonic()
        assert await sub.poll(timeout=0) == []
        assert await sub.poll(timeout=0.2) == []
        assert 0.2 <= time.monotonic() - began < 5


async def test_a_poll_that_waits_gets_what_is_published_meanwhile(mq: Any) -> None:
    await publish(mq, 1)
    async with subscribe(mq) as sub:
        await sub.ack(await take(sub, 1))
        waiting = asyncio.create_task(sub.poll(timeout=None))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        await mq.publish("t", "new", key="k")
        async with asyncio.timeout(10):
            assert payloads(await waiting) == ["new"]


async def test_an_empty_topic_can_be_subscribed_to(mq: Any) -> None:
    async with subscribe(mq, topic="not there yet") as sub:
        assert sub.owned == []
        assert await nothing_comes(sub)
        await mq.publish("not there yet", 1, key="a")
        await mq.publish("not there yet", 2)
        assert sorted(payloads(await take(sub, 2))) == [1, 2]


async def test_concurrent_publishers_lose_nothing_and_keep_each_keys_order(mq: Any) -> None:
    async def publisher(number: int) -> None:
        for n in range(20):
            await mq.publish("t", [number, n], key=f"k{number % 3}")

    async with subscribe(mq, batch_size=50) as sub:
        publishers = [asyncio.create_task(publisher(number)) for number in range(5)]
        seen: list[Any] = []
        while len(seen) < 100:
            deliveries = await sub.poll(timeout=10)
            assert deliveries
            await sub.ack(deliveries)
            seen += deliveries
        await asyncio.gather(*publishers)
        assert await nothing_comes(sub)
    by_key, by_publisher = defaultdict(list), defaultdict(list)
    for d in seen:
        by_key[d.message.key].append(d.message.offset)
        by_publisher[d.message.payload[0]].append(d.message.payload[1])
    assert all(offsets == list(range(1, len(offsets) + 1)) for offsets in by_key.values())
    assert all(numbers == list(range(20)) for numbers in by_publisher.values())
    assert len(by_publisher) == 5


async def test_polls_at_the_same_time_get_every_message_once(mq: Any) -> None:
    await mq.publish_many("t", [Message(payload=n, key=f"k{n % 4}") for n in range(200)])
    async with subscribe(mq, batch_size=5) as sub:
        seen: list[int] = []

        async def worker() -> None:
            while deliveries := await sub.poll(timeout=0.2):
                seen.extend(payloads(deliveries))
                await sub.ack(deliveries)

        await asyncio.gather(*(worker() for _ in range(6)))
        assert sorted(seen) == list(range(200))
        assert await lag(mq) == 0


async def test_what_is_published_twice_under_an_id_is_delivered_once(mq: Any) -> None:
    await mq.publish("t", "first", key="k", id="same")
    assert (await mq.publish("t", "second", key="k", id="same")).duplicate
    async with subscribe(mq) as sub:
        (d,) = await take(sub, 1)
        assert d.message.payload == "first"
        assert (await mq.publish("t", "third", key="k", id="same")).duplicate
        await d.ack()
        assert await nothing_comes(sub)


async def test_an_id_is_known_for_as_long_as_its_message_is_kept(mq: Any) -> None:
    await mq.publish("t", "first", key="k", id="same")
    async with subscribe(mq) as sub:
        await sub.ack(await take(sub, 1))
        # Consumed, and still known.
        assert (await mq.publish("t", "second", key="k", id="same")).duplicate
        assert await nothing_comes(sub)
        assert await mq.gc("t") == 1
        # Collected, and so a new message.
        assert not (await mq.publish("t", "third", key="k", id="same")).duplicate
        assert payloads(await take(sub, 1)) == ["third"]


async def test_a_message_of_16_megabytes_is_delivered_and_can_be_given_up(mq: Any) -> None:
    payload = random.Random(7).randbytes(16 * 1024 * 1024)
    await mq.configure_topic("t", max_payload_bytes=32 * 1024 * 1024)
    await mq.publish("t", payload, key="k")
    async with subscribe(mq) as sub:
        (d,) = await take(sub, 1, seconds=30)
        assert d.message.payload == payload
        await d.reject(error="too large")
    (letter,) = await mq.dead_letters("t")
    assert letter.message.payload == payload


NAMES = [
    "100%_a",
    "100%_A",
    'it\'s "quoted"',
    "a b ",
    "a b",
    "😀 back\\slash",
    "`; DROP --",
    "NULL",
    "{a,b}",
    '\\"',
]


async def test_names_are_taken_as_they_are(mq: Any) -> None:
    topic, group = "t%_'\"\\ 😀 Mixed", 'g%_\'"\\ 😀 Mixed"'
    await mq.publish_many(topic, [Message(payload=name, key=name) for name in NAMES])
    await mq.publish(topic.lower(), "another topic", key=NAMES[0])
    await mq.create_group(topic, group.lower())
    async with subscribe(mq, topic=topic, group=group, name=NAMES[2]) as sub:
        deliveries = await take(sub, len(NAMES))
        assert {d.message.payload: d.message.key for d in deliveries} == {n: n for n in NAMES}
        assert {(d.message.topic, d.group) for d in deliveries} == {(topic, group)}
        assert sub.owned == sorted(NAMES)
        rows = await mq.lag(topic, group)
        assert {r.key for r in rows} == set(NAMES)
        assert {r.owner for r in rows} == {NAMES[2]}
        for d in deliveries:
            await (d.reject(error="%s ? $1 \\ 😀") if "%" in d.message.key else d.ack())
    assert await lag(mq, group, topic) == 0
    assert await lag(mq, group.lower(), topic) == len(NAMES)
    letters = await mq.dead_letters(topic, group=group)
    assert {(x.message.key, x.error) for x in letters} == {
        (n, "%s ? $1 \\ 😀") for n in NAMES if "%" in n
    }
    assert await mq.dead_letters(topic, group=group.lower()) == []


async def test_names_headers_and_errors_may_be_as_long_as_they_may(mq: Any) -> None:
    topic, group, key, id = "t" * 196, "g" * 200, "k" * 255, "i" * 255
    headers = {"h": "v" * (64 * 1024 - 1)}
    await mq.publish(topic, 1, key=key, id=id, headers=headers)
    async with subscribe(mq, topic=topic, group=group, name="n" * 200) as sub:
        (d,) = await take(sub, 1)
        await d.nack(delay=0, error="\0 \udc00" + "😀" * 100_000)
        (d,) = await take(sub, 1)
        await d.reject(error="\0 \udc00" + "😀" * 100_000)
    (letter,) = await mq.dead_letters(topic)
    assert (letter.message.id, letter.message.key, letter.message.headers) == (id, key, headers)
    assert letter.error is not None
    assert letter.error.startswith("\\0 \\udc00😀")
    async with subscribe(mq, topic=topic + "_dlq", group=group) as sub:
        (d,) = await take(sub, 1)
        assert d.message.headers.items() > headers.items()
        await d.ack()
    with pytest.raises(errors.InvalidTopic):
        await subscribe(mq, topic="t" * 197)  # whose dead letters would have no name


# --- groups --------------------------------------------------------------------------------------


async def test_groups_know_nothing_of_each_other(mq: Any) -> None:
    await publish(mq, 4)
    async with subscribe(mq, group="a") as a, subscribe(mq, group="b") as b:
        mine = await take(a, 4)
        await sub_settle_all_ways(mine)
        theirs = await take(b, 4)
        assert payloads(theirs) == [1, 2, 3, 4]
        assert attempts(theirs) == [1, 1, 1, 1]
        await b.ack(theirs[:2])
        assert (await acked(mq, "a"), await acked(mq, "b")) == (1, 2)
        assert {letter.group for letter in await mq.dead_letters("t")} == {"a"}
    async with subscribe(mq, group="c") as c:
        assert payloads(await take(c, 4)) == [1, 2, 3, 4]


async def sub_settle_all_ways(deliveries: list[Any]) -> None:
    first, second, third, _ = deliveries
    await first.ack()
    await second.nack(delay=60, error="a's own")
    await third.reject(error="a's own")


async def test_a_group_that_comes_late_gets_everything_that_is_kept(mq: Any) -> None:
    await publish(mq, 5)
    async with subscribe(mq, group="early") as early:
        await early.ack(await take(early, 5))
    async with subscribe(mq, group="late") as late:
        assert payloads(await take(late, 5)) == [1, 2, 3, 4, 5]


async def test_a_group_may_start_with_what_comes_next(mq: Any) -> None:
    await publish(mq, 3)
    async with subscribe(mq, start="latest") as sub:
        assert await nothing_comes(sub)
        assert await lag(mq) == 0
        await mq.publish("t", "next", key="k")
        await mq.publish("t", "new partition", key="k2")
        deliveries = await take(sub, 2)
        assert set(payloads(deliveries)) == {"next", "new partition"}
    # Where it starts is a group's, not a subscriber's: later ones find it as it is.
    async with subscribe(mq, start="earliest") as sub:
        assert set(payloads(await take(sub, 2))) == {"next", "new partition"}


async def test_a_latest_group_misses_nothing_while_it_is_down(mq: Any) -> None:
    await publish(mq, 3)
    await mq.create_group("t", "g", start="latest")
    await publish(mq, 2)
    await publish(mq, 2, key="came meanwhile")
    async with subscribe(mq) as sub:
        deliveries = await take(sub, 4)
        assert Counter(d.message.key for d in deliveries) == {"k": 2, "came meanwhile": 2}
        assert await nothing_comes(sub)


# --- bounds and fairness -------------------------------------------------------------------------


async def test_a_busy_partition_does_not_starve_quiet_ones(mq: Any) -> None:
    await publish(mq, 900, key="busy")
    for key in ("q1", "q2", "q3"):
        await publish(mq, 1, key=key)
    async with subscribe(mq) as sub:
        await eventually(lambda: len(sub.owned) == 4)
        deliveries = await sub.poll()
        keys = Counter(d.message.key for d in deliveries)
        assert keys == {"busy": 7, "q1": 1, "q2": 1, "q3": 1}
        for _ in range(3):
            await publish(mq, 1, key="q2")
            found: list[Any] = []
            async with asyncio.timeout(5):
                while "q2" not in {d.message.key for d in found}:
                    found += await sub.poll(max=2)
            deliveries += found
        assert len(deliveries) < 900  # the busy one still was


async def test_busy_partitions_take_turns(mq: Any) -> None:
    for key in ("a", "b", "c", "d", "e"):
        await publish(mq, 30, key=key)
    async with subscribe(mq) as sub:
        await eventually(lambda: len(sub.owned) == 5)
        deliveries = [d for _ in range(20) for d in await sub.poll(max=1)]
        assert Counter(d.message.key for d in deliveries) == dict.fromkeys("abcde", 4)


async def test_a_large_poll_takes_more_of_fewer_keys_and_the_next_one_goes_on_from_there(
    mq: Any,
) -> None:
    """Each key that is taken from costs a write: one message each of very many would be slow."""
    keys = [f"k{number:03}" for number in range(250)]
    await mq.publish_many("t", [Message(payload=n, key=key) for key in keys for n in range(4)])
    async with subscribe(mq, max_in_flight=2_000) as sub:
        await eventually(lambda: len(sub.owned) == len(keys))
        rounds = [Counter(d.message.key for d in await sub.poll(500)) for _ in range(2)]
    assert [set(taken.values()) for taken in rounds] == [{4}, {4}]
    assert rounds[0].keys().isdisjoint(rounds[1])
    assert rounds[0].keys() | rounds[1].keys() == set(keys)


async def test_every_key_has_its_turn_however_odd_the_bounds_are(mq: Any) -> None:
    keys = [f"k{number:03}" for number in range(400)]
    await mq.publish_many("t", [Message(payload=n, key=key) for key in keys for n in range(3)])
    seen: set[str] = set()
    async with subscribe(mq, max_in_flight=101) as sub:
        await eventually(lambda: len(sub.owned) == len(keys))
        for _ in range(5):
            deliveries = await sub.poll(400)
            seen |= {d.message.key for d in deliveries}
            await sub.ack(deliveries)
    assert len(seen) == len(keys)


async def test_keys_take_turns_also_where_bytes_are_the_bound(mq: Any) -> None:
    payload = "x" * 100
    messages = [Message(payload=payload, key=key) for key in "abc" for _ in range(4)]
    await mq.publish_many("t", messages)
    turns = []
    async with subscribe(mq, max_bytes=150) as sub:
        await eventually(lambda: len(sub.owned) == 3)
        for _ in range(12):
            (d,) = await sub.poll(9)
            turns.append(d.message.key)
            await d.ack()
    assert [set(turns[n : n + 3]) for n in range(0, 12, 3)] == [{"a", "b", "c"}] * 4


async def test_no_more_is_in_flight_than_may_be(mq: Any) -> None:
    await mq.publish_many("t", [Message(payload=n, key=f"k{n % 2}") for n in range(20)])
    async with subscribe(mq, max_in_flight=7) as sub:
        first = await sub.poll(max=5)
        assert len(first) == 5
        second = await sub.poll(max=5)
        assert len(second) == 2
        assert await nothing_comes(sub)
        await sub.ack(first[:3])
        assert len(await sub.poll(max=20)) == 3
        await first[3].nack(delay=60)
        assert len(await sub.poll(max=20)) == 1
        await first[4].reject()
        assert len(await sub.poll(max=20)) == 1
        assert await nothing_comes(sub)


async def test_no_more_bytes_are_in_flight_than_may_be(mq: Any) -> None:
    await mq.publish_many("t", [Message(payload=b"x" * 400, key="k") for _ in range(10)])
    async with subscribe(mq, max_bytes=1000) as sub:
        first = await sub.poll(max=10)
        assert len(first) == 2
        assert await nothing_comes(sub)
        await first[0].ack()
        assert len(await sub.poll(max=10)) == 1
        assert await nothing_comes(sub)


async def test_a_message_larger_than_the_bound_comes_alone(mq: Any) -> None:
    sizes = [10, 5000, 10, 10]
    await mq.publish_many("t", [Message(payload=b"x" * size, key="k") for size in sizes])
    async with subscribe(mq, max_bytes=1000) as sub:
        (small,) = await sub.poll()
        assert await nothing_comes(sub)
        await small.ack()
        (large,) = await sub.poll()
        assert len(large.message.payload) == 5000
        assert await nothing_comes(sub)
        await large.ack()
        assert [len(d.message.payload) for d in await sub.poll()] == [10, 10]


@pytest.mark.parametrize("bound", ["max_in_flight", "max_bytes"])
@pytest.mark.parametrize("due", [False, True], ids=["new", "due again"])
async def test_a_poll_that_may_have_no_more_does_not_hammer_the_database(
    mq: Any, bound: str, due: bool
) -> None:
    await mq.publish_many("t", [Message(payload=b"x" * 400, key="k") for _ in range(10)])
    options: dict[str, Any] = {bound: {"max_in_flight": 2, "max_bytes": 900}[bound]}
    async with subscribe(mq, discovery_interval=30, **options) as sub:
        first, _ = await take(sub, 2)
        if due:
            await first.nack(delay=0.05)
            assert len(await sub.poll(timeout=0)) == 1  # a new one: it is full again
            await asyncio.sleep(0.1)
        with statements(mq) as seen:
            assert await sub.poll(timeout=0.5) == []
        assert len(seen) < 60, Counter(s.name for s in seen)


# --- payloads that do not parse ------------------------------------------------------------------


@dataclass
class Order:
    number: int


async def test_payloads_come_as_the_type_that_was_asked_for(mq: Any) -> None:
    await mq.publish("t", Order(7), key="k")
    async with subscribe(mq, type=Order) as sub:
        (d,) = await take(sub, 1)
        assert d.message.payload == Order(7)


async def test_a_payload_that_does_not_parse_is_a_dead_letter_and_blocks_nobody(mq: Any) -> None:
    batch: list[Any] = [{"number": 1}, "no order", {"number": 2}, b"\xff", {"number": 3}]
    await mq.publish_many(
        "t", [Message(payload=p, key="k", id=str(i)) for i, p in enumerate(batch)]
    )
    async with subscribe(mq, type=Order) as sub:
        deliveries = await take(sub, 3)
        assert payloads(deliveries) == [Order(1), Order(2), Order(3)]
        await sub.ack(deliveries)
        assert await nothing_comes(sub)
        assert core_of(sub).in_flight == 0
    assert await acked(mq) == 5
    letters = await mq.dead_letters("t")
    assert [(x.message.payload, x.offset) for x in letters] == [("no order", 2), (b"\xff", 4)]
    assert all(x.error for x in letters)


@pytest.mark.parametrize("strict", [False, True], ids=["lenient", "strict"])
async def test_a_run_of_payloads_that_do_not_parse_holds_up_no_poll(mq: Any, strict: bool) -> None:
    await mq.publish_many("t", [Message(payload="no order", key="k") for _ in range(12)])
    await mq.publish("t", {"number": 1}, key="k")
    async with subscribe(mq, type=Order, batch_size=5, strict=strict) as sub:
        (d,) = await sub.poll(timeout=10)
        assert d.message.payload == Order(1)
    assert len(await mq.dead_letters("t")) == 12


# --- dead letters as a topic ---------------------------------------------------------------------


async def test_dead_letters_can_be_consumed_and_stay_while_they_fail(mq: Any) -> None:
    await publish(mq, 1)
    async with subscribe(mq) as sub:
        (d,) = await take(sub, 1)
        await d.reject(error="no good")
    async with subscribe(mq, topic="t_dlq", group="undertaker") as sub:
        for attempt in range(1, 6):  # more than the usual three
            (letter,) = await take(sub, 1)
            assert (letter.message.payload, letter.attempt) == (1, attempt)
            assert letter.message.headers["rowmq-error"] == "no good"
            await letter.nack(delay=0)
    assert [t.name for t in await mq.topics()] == ["t", "t_dlq"]


# --- the end -------------------------------------------------------------------------------------


async def test_who_closes_hands_over_at_once(mq: Any) -> None:
    await publish(mq, 3)
    leaving = await subscribe(mq)
    first, second, third = await take(leaving, 3)
    await first.ack()
    async with subscribe(mq) as sub:
        await leaving.close()
        assert leaving.closed
        began = time.monotonic()
        deliveries = await take(sub, 2)
        assert time.monotonic() - began < 5  # its lease and visibility were much longer
        assert payloads(deliveries) == [2, 3]
        with pytest.raises(errors.StaleLease):
            await second.ack()
        with pytest.raises(errors.StaleLease):
            await third.nack()
        with pytest.raises(errors.Closed):
            await leaving.poll()
        await leaving.close()  # again, which does nothing
        await sub.ack(deliveries)
    assert await acked(mq) == 3


async def test_settles_under_way_are_done_before_a_subscriber_is_closed(mq: Any) -> None:
    await publish(mq, 3)
    sub = await subscribe(mq, flush_interval=30)
    deliveries = await take(sub, 3)
    began = time.monotonic()
    settling = [asyncio.create_task(d.ack()) for d in deliveries]
    await eventually(lambda: all(d.settled for d in deliveries))
    assert await acked(mq) == 0
    await sub.close()
    await asyncio.gather(*settling)
    assert time.monotonic() - began < 15
    assert await acked(mq) == 3


async def test_a_client_that_is_closed_hands_over_at_once(
    connect: Connect, mq: Any, database: Database
) -> None:
    await publish(mq, 1)
    other = await connect(database.url)
    leaving = await subscribe(other)
    await take(leaving, 1)
    await other.close()
    assert leaving.closed
    async with subscribe(mq) as sub:
        assert attempts(await take(sub, 1, seconds=5)) == [2]


async def test_a_subscriber_is_iterated_until_it_is_closed(mq: Any) -> None:
    await publish(mq, 5)
    seen = []
    async with subscribe(mq) as sub:
        async for d in sub:
            seen.append(d.message.payload)
            await d.ack()
            if len(seen) == 5:
                await mq.publish("t", "meanwhile", key="k")
            if len(seen) == 6:
                await sub.close()
    assert seen == [1, 2, 3, 4, 5, "meanwhile"]
    assert await acked(mq) == 6


async def test_closing_ends_an_iteration_that_waits(mq: Any) -> None:
    async with subscribe(mq) as sub:

        async def iterate() -> int:
            return len([d async for d in sub])

        iterating = asyncio.create_task(iterate())
        await asyncio.sleep(0.1)
        await sub.close()
        async with asyncio.timeout(10):
            assert await iterating == 0


@async_only
async def test_a_subscriber_that_was_never_started_can_be_closed(mq: Any) -> None:
    sub = subscribe(mq)
    await sub.close()
    assert sub.closed
    with pytest.raises(errors.Closed):
        await sub.poll()
    assert await mq.groups("t") == []


# --- with the sync client alone ------------------------------------------------------------------


def test_a_for_loop_consumes_until_the_subscriber_is_closed(database: Database) -> None:
    with rowmq.connect(database.url) as mq:
        mq.publish_many("t", [Message(payload=n, key="k") for n in range(5)])
        seen = []
        with mq.subscribe("t", group="g") as sub:
            for d in sub:
                seen.append(d.message.payload)
                d.ack()
                if len(seen) == 5:
                    sub.close()
        assert seen == [0, 1, 2, 3, 4]


async def test_deliveries_are_settled_from_any_thread(database: Database) -> None:
    with closing(rowmq.connect(database.url)) as mq:
        mq.publish_many("t", [Message(payload=n, key=f"k{n % 3}") for n in range(30)])
        with mq.subscribe("t", group="g") as sub:
            deliveries = await in_thread(sub.poll, max=30)
            assert len(deliveries) == 30
            await asyncio.gather(*(in_thread(d.ack) for d in deliveries))
            assert sum(row.lag for row in mq.lag("t", "g")) == 0
