"""Publishing: offsets, ids, payloads, limits, on every database and for both clients."""

import asyncio
import math
import random
import time
from datetime import timedelta
from typing import Any

import pytest

import rowmq
from rowmq import Message, errors
from rowmq.store.statement import Statement
from tests.choices import async_only
from tests.conftest import Connect
from tests.databases import Database

NAMES = [
    "plain",
    "per%cent",
    "under_score",
    "qu'ote",
    'dou"ble',
    "a space",
    "MiXed",
    "mixed",
    "trailing ",
    "emoji 😀",
    "back\\slash",
    "semi;colon",
    "ünïcode",
    "tab\there",
    "new\nline",
]


async def test_offsets_start_at_one_and_have_no_gaps(mq: Any) -> None:
    offsets = [(await mq.publish("orders", n, key="a")).offset for n in range(5)]
    assert offsets == [1, 2, 3, 4, 5]


async def test_partitions_count_by_themselves(mq: Any) -> None:
    first = await mq.publish("orders", 1, key="a")
    other_key = await mq.publish("orders", 2, key="b")
    other_topic = await mq.publish("returns", 3, key="a")
    keyless = await mq.publish("orders", 4)
    assert [r.offset for r in (first, other_key, other_topic, keyless)] == [1, 1, 1, 1]


async def test_a_result_tells_where_the_message_stands(mq: Any) -> None:
    result = await mq.publish("orders", {"id": 7}, key="customer-42", id="order-7")
    assert result == rowmq.PublishResult(
        topic="orders", key="customer-42", id="order-7", offset=1, duplicate=False
    )


async def test_an_id_is_made_when_none_is_given(mq: Any) -> None:
    results = [await mq.publish("orders", n) for n in range(3)]
    assert len({r.id for r in results}) == 3
    assert not any(r.duplicate for r in results)


async def test_a_second_publish_with_the_same_id_adds_nothing(mq: Any) -> None:
    first = await mq.publish("orders", "original", key="a", id="x")
    await mq.publish("orders", "between", key="a")
    second = await mq.publish("orders", "changed", key="a", id="x")
    assert (second.offset, second.duplicate) == (first.offset, True)
    assert [m.payload for m in await mq.read("orders")] == ["original", "between"]


async def test_an_id_is_unique_within_its_partition_only(mq: Any) -> None:
    results = [
        await mq.publish("orders", 1, key="a", id="x"),
        await mq.publish("orders", 2, key="b", id="x"),
        await mq.publish("returns", 3, key="a", id="x"),
        await mq.publish("orders", 4, id="x"),
    ]
    assert not any(r.duplicate for r in results)


async def test_publish_many_answers_in_order(mq: Any) -> None:
    await mq.publish("orders", "known", key="a", id="known")
    results = await mq.publish_many(
        "orders",
        [
            Message(payload=1, key="b", id="1"),
            Message(payload=2, key="a", id="2"),
            Message(payload=3, key="a", id="known"),
            Message(payload=4, key="a", id="2"),
            Message(payload=5, key="a", id="5"),
            Message(payload=6, key="b"),
        ],
    )
    assert [(r.key, r.offset, r.duplicate) for r in results] == [
        ("b", 1, False), ("a", 2, False), ("a", 1, True), ("a", 2, True), ("a", 3, False),
        ("b", 2, False),
    ]  # fmt: skip
    assert [(m.key, m.offset, m.payload) for m in await mq.read("orders")] == [
        ("a", 1, "known"), ("a", 2, 2), ("a", 3, 5), ("b", 1, 1), ("b", 2, 6),
    ]  # fmt: skip


async def test_publish_many_of_nothing_is_nothing(mq: Any) -> None:
    assert await mq.publish_many("orders", []) == []
    assert await mq.topics() == []


async def test_a_batch_of_duplicates_only_adds_nothing(mq: Any) -> None:
    batch = [Message(payload=n, key="a", id=str(n)) for n in range(10)]
    first = await mq.publish_many("orders", batch)
    second = await mq.publish_many("orders", batch)
    assert [r.offset for r in first] == [r.offset for r in second] == list(range(1, 11))
    assert all(r.duplicate for r in second)
    (topic,) = await mq.topics()
    assert topic.messages == 10


async def test_a_large_batch_keeps_order_over_many_statements(mq: Any) -> None:
    known = [Message(payload=n, key=f"k{n % 7}", id=str(n)) for n in range(0, 12_000, 5)]
    await mq.publish_many("orders", known)
    batch = [Message(payload=n, key=f"k{n % 7}", id=str(n)) for n in range(12_000)]
    results = await mq.publish_many("orders", batch)
    assert [r.duplicate for r in results] == [n % 5 == 0 for n in range(12_000)]
    messages = await mq.read("orders", limit=20_000)
    assert len(messages) == 12_000
    for key in (f"k{n}" for n in range(7)):
        mine = [m for m in messages if m.key == key]
        assert [m.offset for m in mine] == list(range(1, len(mine) + 1))
        fresh = [m.payload for m in mine if m.payload % 5]
        assert fresh == sorted(fresh)


async def test_names_are_data_and_exact(mq: Any) -> None:
    for name in NAMES:
        result = await mq.publish(name, name, key=name, id=name, headers={name: name})
        assert (result.offset, result.duplicate) == (1, False), name
    for name in NAMES:
        (message,) = await mq.read(name)
        assert (message.topic, message.key, message.id) == (name, name, name)
        assert (message.payload, message.headers) == (name, {name: name})
    assert [t.name for t in await mq.topics()] == sorted(NAMES, key=str.encode)


async def test_keys_that_collations_confuse_are_apart(mq: Any) -> None:
    keys = [
        "key",
        "Key",
        "KEY",
        "key ",
        " key",
        "k\u00e9y",
        "ke\u0301y",
        "key\t",
        "ключ",
        "Ключ",
        "ß",
        "ss",
    ]
    results = await mq.publish_many("t", [Message(payload=k, key=k, id="same") for k in keys])
    assert [(r.offset, r.duplicate) for r in results] == [(1, False)] * len(keys)
    for key in keys:
        assert [m.payload for m in await mq.read("t", key=key)] == [key]


async def test_the_longest_names_fit(mq: Any) -> None:
    topic, key, id = "t" * 200, "😀" * 63 + "abc", "i" * 255
    await mq.publish(topic, 1, key=key, id=id)
    (message,) = await mq.read(topic, key=key)
    assert (message.topic, message.key, message.id) == (topic, key, id)


@pytest.mark.parametrize("megabytes", [1, 16])
async def test_large_payloads_come_back_whole(mq: Any, megabytes: int) -> None:
    payload = random.Random(megabytes).randbytes(megabytes * 1024 * 1024)
    await mq.configure_topic("files", max_payload_bytes=32 * 1024 * 1024)
    await mq.publish("files", payload)
    (message,) = await mq.read("files")
    assert message.payload == payload


async def test_a_payload_at_the_limit_passes_and_one_byte_more_does_not(mq: Any) -> None:
    await mq.configure_topic("small", max_payload_bytes=10)
    await mq.publish("small", b"x" * 10)
    with pytest.raises(errors.PayloadTooLarge, match=r"11 bytes.*10 bytes.*configure_topic"):
        await mq.publish("small", b"x" * 11)
    assert len(await mq.read("small")) == 1


async def test_a_payload_over_the_limit_is_refused_also_when_its_id_is_known(mq: Any) -> None:
    await mq.publish("small", b"x", id="x")
    await mq.configure_topic("small", max_payload_bytes=10)
    for publish in (
        mq.publish("small", b"x" * 11, id="x"),
        mq.publish_many("small", [Message(payload=b"x" * 11, id="x")]),
    ):
        with pytest.raises(errors.PayloadTooLarge):
            await publish


async def test_the_limit_without_configuration_is_a_mebibyte(mq: Any) -> None:
    await mq.publish("plain", b"x" * 1024 * 1024)
    with pytest.raises(errors.PayloadTooLarge, match="1,048,576"):
        await mq.publish("plain", b"x" * (1024 * 1024 + 1))


async def test_a_limit_set_by_one_client_binds_another_at_once(
    connect: Connect, database: Database
) -> None:
    one, other = await connect(database.url), await connect(database.url)
    await other.publish("t", b"xx")
    await one.configure_topic("t", max_payload_bytes=1)
    with pytest.raises(errors.PayloadTooLarge):
        await other.publish("t", b"xx")


async def test_one_oversized_message_refuses_its_batch_whole(mq: Any) -> None:
    await mq.configure_topic("small", max_payload_bytes=10)
    batch = [Message(payload=b"x"), Message(payload=b"x" * 11), Message(payload=b"x", key="new")]
    with pytest.raises(errors.PayloadTooLarge):
        await mq.publish_many("small", batch)
    assert await mq.read("small") == []


def largest_by_key(database: Database) -> dict[str, int]:
    rows = database.execute("SELECT partition_key, largest_bytes FROM rowmq_partitions")
    return {key if isinstance(key, str) else key.decode(): size for key, size in rows}


async def test_a_partition_knows_its_largest_payload(mq: Any, database: Database) -> None:
    for size, expected in ((5, 5), (3, 5), (7, 7), (0, 7)):
        await mq.publish("t", b"x" * size, key="a")
        assert largest_by_key(database) == {"a": expected}
    sizes = {"a": [6, 1], "b": [2, 9, 4], "c": [0]}
    batch = [Message(payload=b"x" * n, key=key) for key in sizes for n in sizes[key]]
    await mq.publish_many("t", batch)
    assert largest_by_key(database) == {"a": 7, "b": 9, "c": 0}
    async with mq.transaction() as tx:
        await tx.publish("t", b"x" * 8, key="a", id="given")
        await tx.publish("t", b"x" * 8, key="b")
    assert largest_by_key(database) == {"a": 8, "b": 9, "c": 0}


async def test_the_largest_payload_is_found_over_many_statements(
    mq: Any, database: Database
) -> None:
    batch = [Message(payload=b"x" * (n % 100), key=f"k{n % 2}") for n in range(12_000)]
    await mq.publish_many("t", batch)
    assert largest_by_key(database) == {"k0": 98, "k1": 99}


async def test_what_was_not_published_is_not_the_largest_payload(
    mq: Any, database: Database
) -> None:
    await mq.publish("t", b"x", key="a", id="known")
    await mq.publish("t", b"x" * 50, key="a", id="known")
    batch = [
        Message(payload=b"x" * 50, key="a", id="known"),
        Message(payload=b"xx", key="a", id="new"),
        Message(payload=b"x" * 50, key="a", id="new"),
    ]
    await mq.publish_many("t", batch)
    assert largest_by_key(database) == {"a": 2}


@pytest.mark.parametrize("keep", [math.inf, timedelta.max])
async def test_retention_is_set_kept_and_taken_back(mq: Any, keep: Any) -> None:
    async def retention() -> timedelta | None:
        (topic,) = await mq.topics()
        found: timedelta | None = topic.retention
        return found

    await mq.configure_topic("t", max_payload_bytes=10)
    assert await retention() is None
    await mq.configure_topic("t", retention=timedelta(days=7, microseconds=1))
    assert await retention() == timedelta(days=7, microseconds=1)
    await mq.configure_topic("t", max_payload_bytes=20)
    assert await retention() == timedelta(days=7, microseconds=1)
    await mq.configure_topic("t", retention=0.5)
    assert await retention() == timedelta(milliseconds=500)
    await mq.publish("t", 1)
    await mq.configure_topic("t", retention=keep)
    assert await retention() is None
    (topic,) = await mq.topics()
    assert (topic.max_payload_bytes, topic.messages) == (20, 1)


async def test_retention_may_be_the_first_thing_a_topic_is_given(mq: Any) -> None:
    century = timedelta(days=36525)
    await mq.configure_topic("a", retention=century)
    await mq.configure_topic("b", retention=math.inf)
    await mq.publish("c", 1)
    found = {topic.name: (topic.retention, topic.max_payload_bytes) for topic in await mq.topics()}
    assert found == {"a": (century, 2**20), "b": (None, 2**20), "c": (None, 2**20)}


@pytest.mark.parametrize(
    "retention",
    [0, 0.0, timedelta(0), 1e-9, -1, timedelta(-1), -math.inf, math.nan, 1e12, "7d", True],
)
async def test_a_retention_that_cannot_be_is_refused(mq: Any, retention: Any) -> None:
    with pytest.raises(errors.InvalidOption, match="retention must be"):
        await mq.configure_topic("t", retention=retention)
    assert await mq.topics() == []


async def test_concurrent_publishes_keep_their_own_results_and_errors(mq: Any) -> None:
    await mq.configure_topic("small", max_payload_bytes=10)

    async def publish(n: int) -> Any:
        size = 11 if n % 10 == 3 else 5
        return await mq.publish("small", b"x" * size, key="one", id=str(n % 50))

    outcomes = await asyncio.gather(*(publish(n) for n in range(100)), return_exceptions=True)
    refused = [n for n, outcome in enumerate(outcomes) if isinstance(outcome, Exception)]
    assert refused == [n for n in range(100) if n % 10 == 3]
    assert all(isinstance(outcomes[n], errors.PayloadTooLarge) for n in refused)
    fine = [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]
    assert sorted(r.offset for r in fine if not r.duplicate) == list(range(1, 46))
    assert {r.id: r.offset for r in fine if r.duplicate} == {
        r.id: r.offset for r in fine if not r.duplicate
    }


@pytest.mark.parametrize("keys", [[None], ["a", "b", "c"]], ids=["one key", "keys"])
async def test_every_message_of_a_batch_keeps_what_is_its_own(
    mq: Any, keys: list[str | None]
) -> None:
    payloads = [b"bytes", "text", {"n": 1}, b"", "x" * 500, None, 7]
    messages = [
        rowmq.Message(
            payload=payload,
            key=keys[n * n % len(keys)],
            headers={"n": str(n)} if n % 3 == 1 else {},
        )
        for n, payload in enumerate(payloads)
    ]
    for batch in (messages, messages[::-1], messages[:1], messages[1:2]):
        answers = await mq.publish_many("mixed", batch)
        stored = {(m.key, m.offset): m for m in await mq.read("mixed", limit=500)}
        for message, answer in zip(batch, answers, strict=True):
            found = stored[answer.key, answer.offset]
            assert (found.id, found.key) == (answer.id, message.key)
            assert (found.payload, found.headers) == (message.payload, message.headers)


async def test_concurrent_publishes_share_transactions(mq: Any) -> None:
    seen: list[str] = []
    driver = (mq if isinstance(mq, rowmq.AsyncRowMQ) else mq.target)._driver
    await mq.publish("t", 0, key="k")

    def see(statement: Statement) -> None:
        seen.append(statement.name)
        time.sleep(0.002)  # a database takes its time: meanwhile others come

    driver.observers.append(see)
    await asyncio.gather(*(mq.publish("t", n, key="k") for n in range(200)))
    # Alone, each would write its counter: 200 times.
    writes = [name for name in seen if name.startswith(("topics.append", "topics.insert"))]
    assert 1 <= len(writes) < 100
    assert len(await mq.read("t", key="k", limit=500)) == 201


async def test_a_burst_over_many_keys_waits_for_connections(
    connect: Connect, database: Database, flavour: str
) -> None:
    mq = await connect(database.url, pool_size=2, pool_timeout=0.5 if flavour == "async" else 10)
    await mq.publish_many("t", [Message(payload=0, key=f"k{n}") for n in range(300)])
    await asyncio.gather(*(mq.publish("t", n, key=f"k{n}") for n in range(300)))
    (topic,) = await mq.topics()
    assert topic.messages == 600


@async_only  # threads cannot be cancelled
async def test_a_cancelled_publish_takes_no_other_with_it(
    connect: Connect, database: Database
) -> None:
    mq = await connect(database.url)
    tasks = [asyncio.create_task(mq.publish("t", n, key="k")) for n in range(20)]
    await asyncio.sleep(0)
    for task in tasks[::2]:
        task.cancel()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    kept = [o for o in outcomes[1::2] if not isinstance(o, BaseException)]
    assert len(kept) == 10
    published = {m.payload for m in await mq.read("t")}
    assert published >= {n for n in range(20) if n % 2}
