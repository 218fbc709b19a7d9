"""When a message is delivered again: it was not settled, it failed, its subscriber died."""

import asyncio
import gc
import logging
import threading
import time
from collections import defaultdict
from typing import Any

import pytest

import rowmq
from rowmq import Constant, ExponentialBackoff, Message, errors
from tests.choices import async_only, on_servers
from tests.conftest import Connect
from tests.consuming import (
    acked,
    attempts,
    eventually,
    lag,
    nothing_comes,
    payloads,
    publish,
    subscribe,
    take,
)
from tests.crash import core_of, crash, expire, stop
from tests.databases import Database
from tests.flavours import in_thread

# --- again ---------------------------------------------------------------------------------------


async def test_a_message_that_is_not_settled_in_time_comes_again(mq: Any) -> None:
    await publish(mq, 1)
    async with subscribe(mq, visibility=0.3) as sub:
        (first,) = await take(sub, 1)
        began = time.monotonic()
        (second,) = await take(sub, 1)
        assert 0.1 < time.monotonic() - began < 5
        assert (first.attempt, second.attempt) == (1, 2)
        with pytest.raises(errors.StaleLease):
            await first.ack()
        assert await acked(mq) == 0
        await second.ack()
        assert await nothing_comes(sub)


async def test_a_nacked_message_comes_again_after_its_delay_and_not_before(mq: Any) -> None:
    await publish(mq, 1)
    async with subscribe(mq) as sub:
        (d,) = await take(sub, 1)
        await d.nack(delay=0.3, error="not now")
        began = time.monotonic()
        assert await nothing_comes(sub)
        (d,) = await take(sub, 1)
        assert 0.2 < time.monotonic() - began < 5
        assert d.attempt == 2
        await d.nack(delay=0)
        (d,) = await sub.poll(timeout=0.5)
        assert d.attempt == 3


async def test_without_a_delay_a_nacked_message_waits_as_backoff_says(mq: Any) -> None:
    await publish(mq, 1)
    backoff = ExponentialBackoff(initial=0.1, multiplier=10)
    async with subscribe(mq, backoff=backoff, max_attempts=4) as sub:
        waits = []
        (d,) = await take(sub, 1)
        for _ in range(2):
            began = time.monotonic()
            await d.nack()
            (d,) = await take(sub, 1)
            waits.append(time.monotonic() - began)
        assert 0.05 < waits[0] < 0.9
        assert 0.9 < waits[1] < 10


async def test_while_a_nacked_message_waits_the_others_are_delivered(mq: Any) -> None:
    await publish(mq, 5)
    async with subscribe(mq) as sub:
        first, *others = await take(sub, 2)
        await first.nack(delay=60)
        others += await take(sub, 3)
        assert payloads(others) == [2, 3, 4, 5]
        await sub.ack(others)
        assert await acked(mq) == 0
        assert [(r.lag, r.in_flight) for r in await mq.lag("t", "g")] == [(1, 0)]
        assert await nothing_comes(sub)


async def test_a_message_in_flight_does_not_block_those_after_it(mq: Any) -> None:
    await publish(mq, 40)
    async with subscribe(mq, batch_size=10) as sub:
        first, *others = await take(sub, 10)
        await sub.ack(others)
        for _ in range(3):
            deliveries = await take(sub, 10)
            others += deliveries
            await sub.ack(deliveries)
        assert payloads(others) == list(range(2, 41))
        assert await acked(mq) == 0
        await first.ack()
        assert await acked(mq) == 40


async def test_what_fails_for_the_last_time_is_a_dead_letter_with_its_last_error(mq: Any) -> None:
    await publish(mq, 2)
    async with subscribe(mq, max_attempts=2, backoff=Constant(interval=0.01)) as sub:
        first, second = await take(sub, 2)
        await second.ack()
        await first.nack(error="once")
        (again,) = await take(sub, 1)
        await again.nack(error=ValueError("twice"))
        assert await nothing_comes(sub)
    (letter,) = await mq.dead_letters("t")
    assert (letter.group, letter.attempts, letter.offset) == ("g", 2, 1)
    assert letter.error == "ValueError: twice"
    assert (letter.message.payload, letter.message.key) == (1, "k")
    assert await lag(mq) == 0


async def test_a_rejected_message_is_a_dead_letter_at_once(mq: Any) -> None:
    await publish(mq, 3)
    async with subscribe(mq) as sub:
        _, second, _ = await take(sub, 3)
        await second.reject(error="no good")
        assert await nothing_comes(sub)
        (letter,) = await mq.dead_letters("t", group="g")
        assert (letter.offset, letter.attempts, letter.error) == (2, 1, "no good")
        assert await lag(mq) == 2


async def test_an_extended_message_stays_invisible_and_can_be_settled(mq: Any) -> None:
    await publish(mq, 2)
    async with subscribe(mq, visibility=0.3) as sub:
        first, second = await take(sub, 2)
        await first.extend(60)
        assert not first.settled
        (again,) = await take(sub, 1)
        assert (again.message.payload, again.attempt) == (2, 2)
        await first.extend(60)
        await first.ack()
        assert await acked(mq) == 1
        with pytest.raises(errors.AlreadySettled):
            await first.extend(1)
        with pytest.raises(errors.StaleLease):
            await second.extend(60)
        with pytest.raises(errors.InvalidOption):
            await again.extend(0)


async def test_an_extension_can_make_it_shorter(mq: Any) -> None:
    await publish(mq, 1)
    async with subscribe(mq, visibility=60) as sub:
        (d,) = await take(sub, 1)
        await d.extend(0.05)
        (again,) = await take(sub, 1)
        assert again.attempt == 2


# --- crashes -------------------------------------------------------------------------------------


async def test_what_a_crashed_subscriber_had_in_flight_is_delivered_to_the_next(
    mq: Any, database: Database
) -> None:
    await publish(mq, 10)
    dead = await subscribe(mq)
    deliveries = await take(dead, 5)
    await deliveries[0].ack()
    await deliveries[2].ack()
    await crash(database, dead)
    async with subscribe(mq) as sub:
        recovered = await take(sub, 8)
        assert payloads(recovered) == [2, 4, 5, 6, 7, 8, 9, 10]
        assert attempts(recovered) == [2, 2, 2, 1, 1, 1, 1, 1]
        await sub.ack(recovered)
        assert await nothing_comes(sub)
    assert await acked(mq) == 10


async def test_a_lease_is_over_when_its_time_is(mq: Any) -> None:
    await publish(mq, 1)
    dead = await subscribe(mq, lease_duration=0.5)
    (lost,) = await take(dead, 1)
    await stop(dead)
    async with subscribe(mq) as sub:
        began = time.monotonic()
        (d,) = await take(sub, 1)
        assert 0.05 < time.monotonic() - began < 5
        assert d.attempt == 2
        with pytest.raises(errors.StaleLease):
            await lost.ack()


async def test_heartbeats_keep_a_lease_for_as_long_as_it_takes(mq: Any) -> None:
    await publish(mq, 1)
    async with subscribe(mq, lease_duration=1) as sub, subscribe(mq) as other:
        (d,) = await take(sub, 1)
        ended = time.monotonic() + 1.7
        while time.monotonic() < ended:  # nobody polls `sub`: its handler takes long
            assert await nothing_comes(other)
        assert not d.lost
        await d.ack()
    assert await acked(mq) == 1


async def test_who_crashes_after_a_reject_loses_nothing_and_repeats_nothing(
    mq: Any, database: Database
) -> None:
    await publish(mq, 3)
    dead = await subscribe(mq)
    first, second, _ = await take(dead, 3)
    await second.reject(error="no good")
    await crash(database, dead)
    async with subscribe(mq) as sub:
        deliveries = await take(sub, 2)
        assert payloads(deliveries) == [1, 3]
        await sub.ack(deliveries)
        assert await nothing_comes(sub)
    letters = await mq.dead_letters("t")
    assert [(x.offset, x.error) for x in letters] == [(2, "no good")]
    assert [m.payload for m in await mq.read("t_dlq")] == [2]
    with pytest.raises(errors.StaleLease):
        await first.reject()
    assert len(await mq.dead_letters("t")) == 1


async def test_a_message_that_kills_its_subscribers_is_given_up_and_says_so(
    mq: Any, database: Database
) -> None:
    await publish(mq, 3)
    for attempt in (1, 2):
        dead = await subscribe(mq, max_attempts=2)
        (d,) = await take(dead, 1)
        assert (d.message.payload, d.attempt) == (1, attempt)
        await crash(database, dead)
    async with subscribe(mq, max_attempts=2) as sub:
        assert payloads(await take(sub, 2)) == [2, 3]
    (letter,) = await mq.dead_letters("t")
    assert (letter.message.payload, letter.attempts) == (1, 2)
    assert letter.error is not None
    assert "never settled" in letter.error


async def test_the_story_of_a_message_given_up_tells_its_last_error(
    mq: Any, database: Database
) -> None:
    await publish(mq, 1)
    dead = await subscribe(mq, max_attempts=2)
    (d,) = await take(dead, 1)
    await d.nack(delay=0, error="first this")
    await take(dead, 1)
    await crash(database, dead)
    async with subscribe(mq, max_attempts=2) as sub:
        assert await sub.poll(timeout=0.2) == []
        (letter,) = await mq.dead_letters("t")
        assert letter.error is not None
        assert "never settled" in letter.error
        assert "first this" in letter.error


async def test_a_subscriber_that_was_silent_for_too_long_is_told_and_goes_on(
    mq: Any, database: Database
) -> None:
    await publish(mq, 2)
    told: list[Any] = []
    async with subscribe(mq, lease_duration=0.6, on_lost=told.extend) as sub:
        lost = await take(sub, 2)
        expire(database, sub)
        await eventually(lambda: told)  # by itself: nobody polls
        assert sorted(d.message.payload for d in told) == [1, 2]
        assert all(d.lost for d in lost)
        again = await take(sub, 2)
        assert attempts(again) == [2, 2]
        assert not any(d.lost for d in again)
        with pytest.raises(errors.StaleLease):
            await lost[0].ack()
        await sub.ack(again)
    assert await lag(mq) == 0


async def test_an_on_lost_that_fails_is_logged_and_hinders_nothing(
    mq: Any, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    def on_lost(_: Any) -> None:
        raise ZeroDivisionError

    await publish(mq, 1)
    async with subscribe(mq, on_lost=on_lost) as sub:
        (lost,) = await take(sub, 1)
        with caplog.at_level(logging.ERROR, logger="rowmq"):
            expire(database, sub)
            assert attempts(await take(sub, 1)) == [2]
        assert lost.lost
        assert "on_lost" in caplog.text


async def test_on_lost_may_close_its_subscriber(database: Database) -> None:
    with rowmq.connect(database.url) as mq:
        await in_thread(mq.publish, "t", 1, key="k")
        closed = threading.Event()

        def on_lost(_: Any) -> None:
            sub.close()
            closed.set()

        sub = mq.subscribe("t", group="g", discovery_interval=0.05, on_lost=on_lost)
        try:
            held = await in_thread(sub.poll)
            expire(database, sub)
            assert await in_thread(closed.wait, 3)
            assert [d.lost for d in held] == [True]
        finally:
            if not closed.is_set():
                core_of(sub).flavour.lock.release()  # so that the test can end


@async_only
async def test_an_event_loop_that_is_blocked_loses_no_lease(mq: Any, database: Database) -> None:
    await publish(mq, 1)
    async with subscribe(mq, lease_duration=1) as sub:
        (d,) = await take(sub, 1)
        with rowmq.connect(database.url) as other:
            rival = other.subscribe("t", group="g", discovery_interval=0.05)
            assert rival.poll(timeout=1.7) == []  # in this very thread: the loop stands still
            rival.close()
        assert not d.lost
        await d.ack()


@on_servers
async def test_a_pool_whose_connections_are_all_in_use_loses_no_lease(
    connect: Connect, mq: Any, database: Database
) -> None:
    await publish(mq, 1)
    small = await connect(database.url, pool_size=1)
    async with subscribe(small, lease_duration=1) as sub, subscribe(mq) as rival:
        (d,) = await take(sub, 1)
        async with small.transaction():
            assert await rival.poll(timeout=1.7) == []
        assert not d.lost
        await d.ack()


# --- strict --------------------------------------------------------------------------------------


async def test_strict_delivers_one_message_of_a_key_at_a_time(mq: Any) -> None:
    await mq.publish_many("t", [Message(payload=n, key=f"k{n % 2}") for n in range(6)])
    async with subscribe(mq, strict=True) as sub:
        for first, second in ((0, 1), (2, 3), (4, 5)):
            deliveries = await take(sub, 2)
            assert sorted(payloads(deliveries)) == [first, second]
            assert await nothing_comes(sub)
            await deliveries[0].ack()
            await deliveries[1].ack()
        assert await nothing_comes(sub)
    assert await lag(mq) == 0


async def test_strict_order_holds_while_many_work(mq: Any, database: Database) -> None:
    await mq.publish_many("t", [Message(payload=n, key=f"k{n % 3}") for n in range(45)])
    at_work: set[str] = set()
    done = defaultdict(list)
    failed: set[int] = set()

    async def handle(d: Any) -> None:
        key, number = d.message.key, d.message.payload
        assert key not in at_work
        at_work.add(key)
        await asyncio.sleep(0.002)
        at_work.remove(key)
        if number % 7 == 3 and number not in failed:
            failed.add(number)
            await d.nack(delay=0.01)
        else:
            done[key].append(number)
            await d.ack()

    async def work(sub: Any) -> None:
        while sum(len(numbers) for numbers in done.values()) < 45:
            for d in await sub.poll(timeout=0.05):
                await handle(d)

    async with asyncio.timeout(60):
        async with subscribe(mq, strict=True) as one, subscribe(mq, strict=True) as two:
            await asyncio.gather(*(work(sub) for sub in (one, one, two, two)))
    assert {key: numbers == sorted(numbers) for key, numbers in done.items()} == {
        "k0": True,
        "k1": True,
        "k2": True,
    }
    assert len(failed) == 6
    rows = database.execute("SELECT COUNT(*) FROM rowmq_delivery_state")
    assert rows == [(0,)]


async def test_a_nacked_message_blocks_its_key_in_strict_mode_until_it_is_due(mq: Any) -> None:
    await publish(mq, 2)
    await publish(mq, 1, key="other")
    async with subscribe(mq, strict=True) as sub:
        deliveries = {d.message.key: d for d in await take(sub, 2)}
        began = time.monotonic()
        await deliveries["k"].nack(delay=0.4)
        await deliveries["other"].ack()
        await publish(mq, 1, key="other")
        (d,) = await take(sub, 1)
        assert d.message.key == "other"
        assert await nothing_comes(sub)
        (again,) = await take(sub, 1)
        assert time.monotonic() - began > 0.3
        assert (again.message.key, again.message.payload, again.attempt) == ("k", 1, 2)
        await again.ack()
        assert payloads(await take(sub, 1)) == [2]


async def test_a_message_given_up_unblocks_its_key_in_strict_mode(
    mq: Any, database: Database
) -> None:
    await publish(mq, 3)
    async with subscribe(mq, strict=True, max_attempts=1) as sub:
        (d,) = await take(sub, 1)
        await d.reject(error="no good")
        (d,) = await take(sub, 1)
        assert d.message.payload == 2
        await crash(database, sub)
    async with subscribe(mq, strict=True, max_attempts=1) as sub:
        assert payloads(await take(sub, 1)) == [3]
    assert [x.offset for x in await mq.dead_letters("t")] == [1, 2]


async def test_in_strict_mode_a_living_handler_keeps_its_message_however_long_it_takes(
    mq: Any,
) -> None:
    await publish(mq, 2)
    async with subscribe(mq, strict=True, visibility=0.1) as sub:
        (d,) = await take(sub, 1)
        assert await sub.poll(timeout=0.4) == []
        await d.ack()
        assert payloads(await take(sub, 1)) == [2]


async def test_in_strict_mode_a_message_whose_handler_is_gone_comes_again(mq: Any) -> None:
    await publish(mq, 2)
    async with subscribe(mq, strict=True, visibility=0.2) as sub:
        await take(sub, 1)  # and nobody keeps the delivery
        gc.collect()
        (d,) = await take(sub, 1)
        assert (d.message.payload, d.attempt) == (1, 2)


async def test_strict_takes_over_what_a_lenient_subscriber_left(
    mq: Any, database: Database
) -> None:
    await publish(mq, 4)
    dead = await subscribe(mq)
    deliveries = await take(dead, 3)
    await deliveries[1].ack()
    await crash(database, dead)
    async with subscribe(mq, strict=True) as sub:
        for payload, attempt in ((1, 2), (3, 2), (4, 1)):
            (d,) = await take(sub, 1)
            assert (d.message.payload, d.attempt) == (payload, attempt)
            assert await nothing_comes(sub)
            await d.ack()
    assert await acked(mq) == 4
