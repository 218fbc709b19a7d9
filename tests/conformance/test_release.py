"""Giving a delivery back: it is as if it had never been delivered."""

import asyncio
import time
from typing import Any

import pytest

import rowmq
from rowmq import Message, errors
from tests.choices import on_sqlite
from tests.conftest import Connect
from tests.consuming import (
    acked,
    attempts,
    lag,
    nothing_comes,
    payloads,
    publish,
    stored,
    subscribe,
    take,
)
from tests.crash import crash
from tests.databases import Database

NOW = rowmq.Constant(interval=0)
LATER = rowmq.Constant(interval=600)


async def test_it_is_due_at_once_and_that_was_no_attempt(mq: Any) -> None:
    await publish(mq, 1)
    async with subscribe(mq, max_attempts=1, backoff=LATER) as sub:
        for _ in range(4):
            (delivery,) = await take(sub, 1)
            assert delivery.attempt == 1
            await delivery.release()
            assert delivery.settled
        (row,) = await mq.lag("t", "g")
        assert (row.lag, row.in_flight, row.offset_acked) == (1, 0, 0)
        (delivery,) = await take(sub, 1)
        await delivery.ack()
        assert await lag(mq) == 0
    assert await mq.dead_letters("t") == []


async def test_only_the_attempt_that_was_given_back_is_not_counted(mq: Any) -> None:
    await publish(mq, 1)
    async with subscribe(mq, max_attempts=3, backoff=NOW) as sub:
        (first,) = await take(sub, 1)
        await first.nack(error="first")
        (second,) = await take(sub, 1)
        assert second.attempt == 2
        await second.release()
        (again,) = await take(sub, 1)
        assert again.attempt == 2
        await again.nack(error="second")
        (last,) = await take(sub, 1)
        assert last.attempt == 3
        await last.release()
        (last,) = await take(sub, 1)
        await last.nack(error="third")
        (letter,) = await mq.dead_letters("t")
        assert (letter.attempts, letter.error) == (3, "third")


async def test_the_order_is_kept(mq: Any) -> None:
    await publish(mq, 6)
    async with subscribe(mq) as sub:
        deliveries = await take(sub, 4)
        for place in (2, 0, 1, 3):
            await deliveries[place].release()
        again = await take(sub, 6)
        assert payloads(again) == [1, 2, 3, 4, 5, 6]
        assert attempts(again) == [1] * 6
        await sub.ack(again)
        assert await acked(mq) == 6


async def test_what_is_between_those_that_are_done_comes_alone(mq: Any, database: Database) -> None:
    await publish(mq, 5)
    async with subscribe(mq) as sub:
        deliveries = await take(sub, 5)
        await deliveries[1].release()
        await deliveries[3].release()
        await sub.ack([deliveries[0], deliveries[2], deliveries[4]])
        again = await take(sub, 2)
        assert payloads(again) == [2, 4]
        assert attempts(again) == [1, 1]
        assert await nothing_comes(sub)
        await sub.ack(again)
        assert await acked(mq) == 5
    assert stored(database)["delivery_state"] == []


async def test_another_subscriber_gets_it_too(connect: Connect, database: Database) -> None:
    """All there is of it is in the database."""
    mq, other = await connect(database.url), await connect(database.url)
    await publish(mq, 3)
    async with subscribe(mq, max_attempts=1) as sub:
        for delivery in await take(sub, 3):
            await delivery.release()
    async with subscribe(other, max_attempts=1) as sub:
        again = await take(sub, 3)
        assert (payloads(again), attempts(again)) == ([1, 2, 3], [1, 1, 1])


async def test_in_strict_mode_the_same_one_is_next(mq: Any) -> None:
    await publish(mq, 3)
    async with subscribe(mq, strict=True, max_attempts=1) as sub:
        seen = []
        for number in range(6):
            (delivery,) = await take(sub, 1)
            seen.append((delivery.message.payload, delivery.attempt))
            await (delivery.ack() if number % 2 else delivery.release())
            del delivery
        assert seen == [(1, 1), (1, 1), (2, 1), (2, 1), (3, 1), (3, 1)]
        assert await lag(mq) == 0


async def test_a_poll_that_waits_is_woken(mq: Any) -> None:
    await publish(mq, 1)
    async with subscribe(mq, poll_interval=5.0) as sub:
        (delivery,) = await take(sub, 1)
        waiting = asyncio.create_task(sub.poll(timeout=10))
        await asyncio.sleep(0.3)
        began = time.monotonic()
        await delivery.release()
        (again,) = await waiting
        assert time.monotonic() - began < 2
        await again.ack()


async def test_a_second_settle_is_refused_and_changes_nothing(mq: Any, database: Database) -> None:
    await publish(mq, 2)
    async with subscribe(mq, backoff=LATER) as sub:
        released, other = await take(sub, 2)
        await released.release()
        await other.ack()
        before = stored(database)
        for delivery in (released, other):
            with pytest.raises(errors.AlreadySettled):
                await delivery.release()
        for settle in (released.ack, released.nack, released.reject):
            with pytest.raises(errors.AlreadySettled):
                await settle()
        assert stored(database) == before
        (again,) = await take(sub, 1)
        with pytest.raises(errors.AlreadySettled):
            await released.ack()  # which is not this one
        await again.ack()
        assert await lag(mq) == 0


async def test_after_the_lease_was_lost_it_is_refused(connect: Connect, database: Database) -> None:
    mq, other = await connect(database.url), await connect(database.url)
    await publish(mq, 1)
    sub = await subscribe(mq)
    (late,) = await take(sub, 1)
    await crash(database, sub)
    async with subscribe(other) as heir:
        (delivery,) = await take(heir, 1)
        assert delivery.attempt == 2
        before = stored(database)
        with pytest.raises(errors.StaleLease):
            await late.release()
        assert stored(database) == before
        assert not late.settled
        await delivery.ack()


async def test_after_its_visibility_has_passed_it_is_refused(mq: Any) -> None:
    await publish(mq, 1)
    async with subscribe(mq, visibility=0.05) as sub:
        (late,) = await take(sub, 1)
        (again,) = await take(sub, 1)
        assert again.attempt == 2
        with pytest.raises(errors.StaleLease):
            await late.release()
        await again.ack()


# --- in a transaction ---------------------------------------------------------------------------


async def test_a_commit_gives_it_back(mq: Any, database: Database) -> None:
    await publish(mq, 2)
    async with subscribe(mq, max_attempts=1) as sub:
        first, second = await take(sub, 2)
        before = stored(database)
        async with mq.transaction() as tx:
            await first.release(connection=tx)
            await tx.publish("other", "with it")
            assert stored(database) == before  # for all others
        (again,) = await take(sub, 1)
        assert (again.message.payload, again.attempt) == (1, 1)
        assert [m.payload for m in await mq.read("other")] == ["with it"]
        await sub.ack([again, second])
        assert await lag(mq) == 0


async def test_after_a_commit_a_second_settle_is_refused_as_such(mq: Any) -> None:
    await publish(mq, 1)
    async with subscribe(mq) as sub:
        (delivery,) = await take(sub, 1)
        async with mq.transaction() as tx:
            await delivery.release(connection=tx)
        for settle in (delivery.ack, delivery.nack, delivery.reject, delivery.release):
            with pytest.raises(errors.AlreadySettled):
                await settle()
        (again,) = await take(sub, 1)
        assert again.attempt == 1
        await again.ack()


async def test_a_rollback_leaves_it_delivered(mq: Any) -> None:
    await publish(mq, 1)
    async with subscribe(mq) as sub:
        (delivery,) = await take(sub, 1)
        with pytest.raises(ZeroDivisionError):
            async with mq.transaction() as tx:
                await delivery.release(connection=tx)
                raise ZeroDivisionError
        assert not delivery.settled
        assert await nothing_comes(sub)
        (row,) = await mq.lag("t", "g")
        assert row.in_flight == 1
        await delivery.ack()
        assert await lag(mq) == 0


@on_sqlite
async def test_many_messages_without_a_key_can_be_given_back_in_any_order(mq: Any) -> None:
    await mq.publish_many("t", [Message(payload=n) for n in range(40)])
    async with subscribe(mq, max_attempts=2, backoff=NOW) as sub:
        deliveries = await take(sub, 40)
        await asyncio.gather(*(d.release() for d in deliveries[::3]))
        await asyncio.gather(*(d.ack() for d in deliveries[1::3]))
        await asyncio.gather(*(d.nack() for d in deliveries[2::3]))
        again = await take(sub, len(deliveries[::3]) + len(deliveries[2::3]))
        seen = {d.message.payload: d.attempt for d in again}
        assert seen == dict.fromkeys(range(0, 40, 3), 1) | dict.fromkeys(range(2, 40, 3), 2)
        await sub.ack(again)
        assert await lag(mq) == 0
