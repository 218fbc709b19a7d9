"""Reading and listing, on every database and for both clients."""

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pydantic
import pytest

from rowmq import Message, errors
from tests.databases import Database


@dataclass(frozen=True)
class Order:
    id: int
    total: float
    at: datetime | None = None


class Customer(pydantic.BaseModel):
    name: str
    orders: list[int] = []


async def test_a_message_comes_back_as_it_was(mq: Any) -> None:
    before = datetime.now(UTC)
    await mq.publish("orders", {"id": 7, "name": "ß😀"}, key="c", id="o-7", headers={"a": "b"})
    (message,) = await mq.read("orders")
    assert message.payload == {"id": 7, "name": "ß😀"}
    assert (message.topic, message.key, message.id, message.offset) == ("orders", "c", "o-7", 1)
    assert message.headers == {"a": "b"}
    # The database's clock; here it is on the same machine, and SQLite's has milliseconds.
    assert before - timedelta(milliseconds=2) <= message.published_at <= datetime.now(UTC)


@pytest.mark.parametrize(
    "payload",
    [b"", b"\x00\xff\xfe", "", "text", "nul\0inside", None, True, 0, -1.5, 2**80, [], {}, "null",
     {"deep": [{"er": None}]}, list(range(100)), bytes(range(256))],
)  # fmt: skip
async def test_payloads_keep_their_type(mq: Any, payload: Any) -> None:
    await mq.publish("t", payload)
    (message,) = await mq.read("t")
    assert message.payload == payload
    assert type(message.payload) is type(payload)


async def test_typed_payloads(mq: Any) -> None:
    order = Order(id=7, total=9.5, at=datetime(2026, 1, 1, tzinfo=UTC))
    customer = Customer(name="Ada", orders=[7])
    await mq.publish("orders", order)
    await mq.publish("customers", customer)
    await mq.publish("lists", [customer])
    assert [m.payload for m in await mq.read("orders", type=Order)] == [order]
    assert [m.payload for m in await mq.read("customers", type=Customer)] == [customer]
    assert [m.payload for m in await mq.read("lists", type=list[Customer])] == [[customer]]


async def test_a_payload_of_another_type_names_its_place(mq: Any) -> None:
    await mq.publish("orders", {"id": "not a number"}, key="k")
    with pytest.raises(errors.PayloadMismatch, match=r"topic 'orders', key 'k', offset 1.*Order"):
        await mq.read("orders", type=Order)


async def test_read_starts_and_ends_where_told(mq: Any) -> None:
    for key in ("b", "a"):
        await mq.publish_many("t", [Message(payload=f"{key}{n}", key=key) for n in range(1, 6)])
    payloads = [m.payload for m in await mq.read("t")]
    assert payloads == ["a1", "a2", "a3", "a4", "a5", "b1", "b2", "b3", "b4", "b5"]
    assert [m.payload for m in await mq.read("t", key="b", from_offset=4)] == ["b4", "b5"]
    assert [m.payload for m in await mq.read("t", key="b", limit=2)] == ["b1", "b2"]
    assert [m.payload for m in await mq.read("t", from_offset=4, limit=3)] == ["a4", "a5", "b4"]
    assert await mq.read("t", key="b", from_offset=6) == []
    assert await mq.read("t", key="missing") == []
    assert await mq.read("missing") == []


async def test_read_since_a_time(mq: Any) -> None:
    for key in ("a", "b"):
        await mq.publish_many("t", [Message(payload=f"old {key}", key=key)] * 3)
    await mq.publish("t", "old only", key="c")
    await asyncio.sleep(0.02)
    middle = await mq.publish("t", "new", key="a")
    (pivot,) = await mq.read("t", key="a", from_offset=middle.offset)
    await mq.publish("t", "newer", key="b")
    since = [m.payload for m in await mq.read("t", since=pivot.published_at)]
    assert since == ["new", "newer"]
    assert len(await mq.read("t", since=datetime(2000, 1, 1, tzinfo=UTC))) == 9
    assert await mq.read("t", since=datetime(2100, 1, 1, tzinfo=UTC)) == []
    local = pivot.published_at.astimezone()
    assert [m.payload for m in await mq.read("t", since=local)] == since


async def test_topics_are_counted_from_the_counters(mq: Any, database: Database) -> None:
    await mq.publish_many("b", [Message(payload=n, key=str(n % 3)) for n in range(10)])
    await mq.publish("a", 1)
    await mq.configure_topic("c", max_payload_bytes=5)
    topics = {t.name: t for t in await mq.topics()}
    assert list(topics) == ["a", "b", "c"]
    assert (topics["b"].partitions, topics["b"].messages) == (3, 10)
    assert (topics["a"].partitions, topics["a"].messages) == (1, 1)
    assert (topics["c"].partitions, topics["c"].max_payload_bytes) == (0, 5)
    assert topics["a"].max_payload_bytes == 1024 * 1024
    assert database.execute("SELECT COUNT(*) FROM rowmq_messages") == [(11,)]


async def test_many_partitions_are_read_in_one_go(mq: Any) -> None:
    await mq.publish_many("t", [Message(payload=n, key=f"{n:04}") for n in range(700)])
    messages = await mq.read("t", limit=1000)
    assert [m.payload for m in messages] == list(range(700))
