"""Seek: a group is moved while its subscribers run, and nobody settles what they had before."""

import asyncio
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

import rowmq
from rowmq import Message, errors
from rowmq.store.statement import Statement
from tests.choices import on_servers
from tests.conformance.test_groups import QUICK, consume, lag_of, rows
from tests.consuming import eventually, payloads, take
from tests.databases import Database

KEYS = (None, "a", "b")


async def publish_each(mq: Any, count: int, *keys: str | None) -> None:
    """Messages 1 to `count` of each key."""
    await mq.publish_many(
        "t", [Message(payload=n, key=key) for n in range(1, count + 1) for key in keys or KEYS]
    )


async def acked(mq: Any, group: str = "g") -> dict[str | None, int]:
    return {row.key: row.offset_acked for row in await mq.lag("t", group)}


# --- where to -----------------------------------------------------------------------------------


async def test_to_earliest(mq: Any) -> None:
    await publish_each(mq, 3)
    await consume(mq, "t", "g", 9)
    assert await mq.seek("t", "g", to="earliest") == 3
    assert await lag_of(mq, "t", "g") == dict.fromkeys(KEYS, (0, 3, 3, 0, None))
    assert sorted(await consume(mq, "t", "g", 9)) == [1, 1, 1, 2, 2, 2, 3, 3, 3]


async def test_earliest_is_the_oldest_message_that_is_kept(mq: Any) -> None:
    await publish_each(mq, 4, "a")
    await consume(mq, "t", "g", 2, batch_size=2)
    assert await mq.gc("t") == 2
    await consume(mq, "t", "g", 2)
    await mq.seek("t", "g", to="earliest")
    assert await consume(mq, "t", "g", 2) == [3, 4]


async def test_to_latest(mq: Any) -> None:
    await publish_each(mq, 3)
    await mq.create_group("t", "g")
    assert await mq.seek("t", "g", to="latest") == 3
    assert await lag_of(mq, "t", "g") == dict.fromkeys(KEYS, (3, 3, 0, 0, None))
    await mq.publish("t", "new", key="a")
    assert await consume(mq, "t", "g", 1) == ["new"]


async def test_to_a_time(mq: Any) -> None:
    await publish_each(mq, 2)
    await asyncio.sleep(0.01)  # SQLite's clock has milliseconds
    await mq.publish("t", 3, key="a")
    (third,) = await mq.read("t", key="a", from_offset=3)
    await mq.publish("t", 4, key="a")
    await mq.create_group("t", "g")
    # The first at or after it, by key: where there is none, what comes next.
    assert await mq.seek("t", "g", to=third.published_at) == 3
    assert await acked(mq) == {None: 2, "a": 2, "b": 2}
    assert await consume(mq, "t", "g", 2) == [3, 4]
    elsewhere = third.published_at.astimezone(timezone(timedelta(hours=-9, minutes=-30)))
    await mq.seek("t", "g", to=elsewhere)
    assert (await acked(mq))["a"] == 2
    await mq.seek("t", "g", to=elsewhere + timedelta(microseconds=1))
    assert (await acked(mq))["a"] in (3, 4)  # two may share a moment
    await mq.seek("t", "g", to=datetime.now(UTC) + timedelta(days=1))
    assert await acked(mq) == {None: 2, "a": 4, "b": 2}
    await mq.seek("t", "g", to=datetime(1970, 1, 1, tzinfo=UTC))
    assert await acked(mq) == dict.fromkeys(KEYS, 0)
    await mq.seek("t", "g", to=datetime.max.replace(tzinfo=UTC))
    assert await acked(mq) == {None: 2, "a": 4, "b": 2}
    await mq.seek("t", "g", to=datetime.min.replace(tzinfo=UTC))
    assert await acked(mq) == dict.fromkeys(KEYS, 0)


async def test_to_offsets_by_key(mq: Any) -> None:
    """Each is the next one to be delivered; keys that are left out stay where they are."""
    await publish_each(mq, 5)
    await consume(mq, "t", "g", 15)
    assert await mq.seek("t", "g", to={"a": 4, None: 1}) == 2
    assert await acked(mq) == {None: 0, "a": 3, "b": 5}
    async with mq.subscribe("t", group="g", **QUICK) as sub:
        deliveries = await take(sub, 7)
        assert sorted((d.message.key or "", d.message.offset) for d in deliveries) == [
            ("", 1), ("", 2), ("", 3), ("", 4), ("", 5), ("a", 4), ("a", 5),
        ]  # fmt: skip
        assert {d.attempt for d in deliveries} == {1}
    assert await mq.seek("t", "g", to={"b": 6}) == 1  # what comes next
    assert (await lag_of(mq, "t", "g"))["b"][:3] == (5, 5, 0)
    assert await mq.seek("t", "g", to={}) == 0


async def test_one_key(mq: Any) -> None:
    await publish_each(mq, 4)
    await consume(mq, "t", "g", 2)
    before = await acked(mq)
    for to, place in (("latest", 4), ("earliest", 0), (datetime.now(UTC) + timedelta(1), 4)):
        assert await mq.seek("t", "g", to=to, key="b") == 1
        assert await acked(mq) == before | {"b": place}


async def test_a_group_that_never_subscribed_is_moved(mq: Any) -> None:
    await publish_each(mq, 3)
    await mq.create_group("t", "g")
    await mq.seek("t", "g", to={"a": 3}, key=None)
    assert await acked(mq) == {None: 0, "a": 2, "b": 0}
    assert len(await consume(mq, "t", "g", 7)) == 7


async def test_many_partitions_are_moved_at_once(mq: Any) -> None:
    """More than fit into one statement."""
    keys = [f"k{n:03}" for n in range(300)]
    await mq.publish_many("t", [Message(payload=0, key=key) for key in keys])
    await mq.create_group("t", "g", start="latest")
    assert await mq.seek("t", "g", to="earliest") == 300
    assert sum((await acked(mq)).values()) == 0
    assert await mq.seek("t", "g", to=dict.fromkeys(keys[:250], 2)) == 250
    assert sum((await acked(mq)).values()) == 250
    assert await mq.seek("t", "g", to=datetime(2000, 1, 1, tzinfo=UTC)) == 300
    assert sum((await acked(mq)).values()) == 0


async def test_other_groups_and_topics_stay(mq: Any) -> None:
    await publish_each(mq, 3, "a")
    await mq.publish("other", 1, key="a")
    await consume(mq, "other", "g", 1)
    async with mq.subscribe("t", group="bystander", **QUICK) as sub:
        first, second, third = await take(sub, 3)
        await second.nack(delay=60, error="mine")
        before = await lag_of(mq, "t", "bystander")
        await mq.create_group("t", "g")
        for to in ("latest", "earliest", {"a": 2}):
            await mq.seek("t", "g", to=to)
        assert await lag_of(mq, "t", "bystander") == before
        await sub.ack([first, third])
    assert [row.lag for row in await mq.lag("other", "g")] == [0]


async def test_in_a_transaction_or_not_at_all(mq: Any) -> None:
    await publish_each(mq, 3, "a")
    await consume(mq, "t", "g", 3)
    with pytest.raises(ZeroDivisionError):
        async with mq.transaction() as tx:
            assert await mq.seek("t", "g", to="earliest", connection=tx) == 1
            raise ZeroDivisionError
    assert await acked(mq) == {"a": 3}
    async with mq.transaction() as tx:
        await mq.seek("t", "g", to="earliest", connection=tx)
    assert await acked(mq) == {"a": 0}


# --- while subscribers run ----------------------------------------------------------------------


@pytest.mark.parametrize("strict", [False, True], ids=["free", "strict"])
async def test_what_is_in_flight_becomes_void(mq: Any, database: Database, strict: bool) -> None:
    await publish_each(mq, 4, "a")
    lost: list[Any] = []
    options = QUICK | {"strict": strict, "name": "w1"}
    async with mq.subscribe("t", group="g", on_lost=lost.extend, **options) as sub:
        held = await take(sub, 1 if strict else 4)
        first = held[0]
        if not strict:
            await held[1].ack()
            await held[2].nack(delay=60, error="to be forgotten")
        assert await mq.seek("t", "g", to="earliest") == 1
        for call in (
            first.ack,
            first.nack,
            first.reject,
            lambda: first.extend(5),
            lambda: sub.ack([first]),
        ):
            with pytest.raises(errors.StaleLease):
                await call()
        assert first.lost
        assert [d.message.offset for d in lost] == ([1] if strict else [1, 4])
        again = await take(sub, 1)
        await sub.ack(again)
        again += await take_and_ack(sub, 3)
        assert [(d.message.offset, d.attempt) for d in again] == [(n, 1) for n in (1, 2, 3, 4)]
        assert sub.owned == ["a"]
        assert await lag_of(mq, "t", "g") == {"a": (4, 4, 0, 0, "w1")}
    assert rows(database, "dead_letters", "delivery_state") == [0, 0]


async def take_and_ack(sub: Any, count: int) -> list[Any]:
    """One after the other, as strict mode has them."""
    found = []
    for _ in range(count):
        deliveries = await take(sub, 1)
        await sub.ack(deliveries)
        found += deliveries
    return found


async def test_forward_over_what_is_in_flight(mq: Any) -> None:
    await publish_each(mq, 3, "a")
    async with mq.subscribe("t", group="g", **QUICK) as sub:
        held = await take(sub, 2)
        await mq.seek("t", "g", to="latest")
        await mq.publish("t", "next", key="a")
        (following,) = await take(sub, 1)
        assert (following.message.payload, following.attempt) == ("next", 1)
        with pytest.raises(errors.StaleLease):
            await sub.ack(held)
        await following.ack()
    assert await acked(mq) == {"a": 4}


async def test_only_the_key_that_is_moved_is_void(mq: Any) -> None:
    await publish_each(mq, 1, "a", "b")
    async with mq.subscribe("t", group="g", **QUICK) as sub:
        held = {d.message.key: d for d in await take(sub, 2)}
        await mq.seek("t", "g", to="earliest", key="a")
        await held["b"].ack()
        with pytest.raises(errors.StaleLease):
            await held["a"].ack()
        assert payloads(await take(sub, 1)) == [1]
    assert await acked(mq) == {"a": 0, "b": 1}


async def test_one_void_delivery_does_not_spoil_the_others(mq: Any) -> None:
    """Acked together: the one of the key that was moved raises, the other counts."""
    await publish_each(mq, 1, "a", "b")
    async with mq.subscribe("t", group="g", **QUICK) as sub:
        held = await take(sub, 2)
        await mq.seek("t", "g", to="earliest", key="a")
        with pytest.raises(errors.StaleLease):
            await sub.ack(held)
        assert await acked(mq) == {"a": 0, "b": 1}


async def test_a_seek_after_which_nothing_is_left_is_noticed(mq: Any) -> None:
    await publish_each(mq, 3, "a")
    async with mq.subscribe("t", group="g", **QUICK) as sub:
        (held,) = await take(sub, 1)
        await mq.seek("t", "g", to="latest")
        assert await sub.poll(timeout=0.1) == []
        assert held.lost
        await mq.seek("t", "g", to={"a": 3})
        assert [d.message.offset for d in await take(sub, 1)] == [3]


async def test_back_and_forth_while_others_consume(mq: Any) -> None:
    """However often it is moved, in the end all that follows is delivered in order."""
    await publish_each(mq, 30, "a", "b")
    seen: dict[str, list[int]] = {"a": [], "b": []}
    done = asyncio.Event()

    async def work(sub: Any) -> None:
        while not done.is_set():
            for delivery in await sub.poll(max=3, timeout=0.05):
                try:
                    await delivery.ack()
                except errors.StaleLease:
                    continue
                seen[delivery.message.key].append(delivery.message.offset)

    async def finished() -> bool:
        return all(row.lag == 0 for row in await mq.lag("t", "g"))

    async with (
        mq.subscribe("t", group="g", **QUICK) as one,
        mq.subscribe("t", group="g", **QUICK) as two,
    ):
        workers = [asyncio.create_task(work(sub)) for sub in (one, two)]
        for to in ({"a": 20}, "earliest", {"b": 7}, "latest", {"a": 11, "b": 30}, "earliest"):
            await mq.seek("t", "g", to=to)
            await asyncio.sleep(0.02)
        for offsets in seen.values():
            offsets.clear()
        await mq.seek("t", "g", to="earliest")
        await eventually(finished)
        done.set()
        await asyncio.gather(*workers)
    for offsets in seen.values():
        # An ack that was on its way at the seek may stand before; after that, all in order.
        assert offsets[-30:] == list(range(1, 31))


@on_servers
async def test_a_seek_that_comes_before_a_write_of_the_owner_wins(
    mq: Any, database: Database
) -> None:
    """The owner has decided what to write, and writes it when the seek is done."""
    await publish_each(mq, 4, "a")
    moved: list[int] = []

    def move(statement: Statement) -> None:
        if statement.name == "leases.advance" and not moved:
            with rowmq.connect(database.url) as other:
                moved.append(other.seek("t", "g", to={"a": 2}))

    async with mq.subscribe("t", group="g", **QUICK) as sub:
        held = await take(sub, 2)
        mq._driver.observers.append(move)
        with pytest.raises(errors.StaleLease):
            await sub.ack(held)
        assert moved == [1]
        assert [d.message.offset for d in await take(sub, 3)] == [2, 3, 4]
    assert await acked(mq) == {"a": 1}


# --- what is refused ----------------------------------------------------------------------------


async def test_offsets_that_are_not_there(mq: Any) -> None:
    """All keys are moved, or none."""
    await publish_each(mq, 4, "a", "b")
    await mq.create_group("t", "g")
    await mq.seek("t", "g", to={"a": 3, "b": 4})
    assert await mq.gc("t") == 5
    for offset in (1, 2, 6, 100, 2**62 - 1):
        with pytest.raises(errors.InvalidOption, match="3 to 4"):
            await mq.seek("t", "g", to={"b": 5, "a": offset})
    assert await acked(mq) == {"a": 2, "b": 3}


async def test_keys_that_are_not_there(mq: Any) -> None:
    await publish_each(mq, 4, "a")
    await mq.create_group("t", "g")
    for key in (None, "A", "a ", "b"):
        with pytest.raises(errors.InvalidOption, match="no messages with the key"):
            await mq.seek("t", "g", to={"a": 2, key: 1})
    assert await acked(mq) == {"a": 0}
