"""Settling a delivery: once, in whatever order, by many at a time, and by nobody who is late."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import pytest

from rowmq import Message, errors
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
    statements,
    stored,
    subscribe,
    take,
)
from tests.crash import crash
from tests.databases import Database

# --- settle --------------------------------------------------------------------------------------


WAYS: dict[str, Callable[[Any], Any]] = {
    "ack": lambda d: d.ack(),
    "nack": lambda d: d.nack(delay=0, error="stale"),
    "reject": lambda d: d.reject(error="stale"),
}
EXTEND: dict[str, Callable[[Any], Any]] = {"extend": lambda d: d.extend(60)}


async def test_the_watermark_rises_over_what_is_acked_without_a_gap(mq: Any) -> None:
    await publish(mq, 6)
    async with subscribe(mq) as sub:
        deliveries = await take(sub, 6)
        marks = []
        for place in (2, 0, 1, 5, 4, 3):
            await deliveries[place].ack()
            (row,) = await mq.lag("t", "g")
            marks.append((row.offset_acked, row.lag, row.in_flight))
        assert marks == [(0, 5, 5), (1, 4, 4), (3, 3, 3), (3, 2, 2), (3, 1, 1), (6, 0, 0)]


async def test_a_second_settle_is_refused_and_changes_nothing(mq: Any, database: Database) -> None:
    await publish(mq, 3)
    async with subscribe(mq) as sub:
        deliveries = await take(sub, 3)
        for d, first in zip(deliveries, WAYS.values(), strict=True):
            await first(d)
            assert d.settled
            before = stored(database)
            for second in (WAYS | EXTEND).values():
                with pytest.raises(errors.AlreadySettled):
                    await second(d)
            with pytest.raises(errors.AlreadySettled):
                await sub.ack([d])
            assert stored(database) == before


async def test_only_one_of_several_settles_at_the_same_time_counts(mq: Any) -> None:
    await publish(mq, 20)
    async with subscribe(mq) as sub:
        deliveries = await take(sub, 20)

        async def settle(d: Any, way: str) -> str | None:
            try:
                await WAYS[way](d)
            except errors.AlreadySettled:
                return None
            return way

        for d in deliveries:
            outcomes = await asyncio.gather(*(settle(d, way) for way in ("ack", "reject", "ack")))
            assert len([way for way in outcomes if way is not None]) == 1
        assert await acked(mq) == 20


@pytest.mark.parametrize("way", WAYS)
async def test_what_is_extended_can_be_settled_at_the_same_time(mq: Any, way: str) -> None:
    """A heartbeat beside a handler is no settle, and neither are two of them."""
    await publish(mq, 20)
    async with subscribe(mq) as sub:
        for d in await take(sub, 20):
            acts = [d.extend(60), WAYS[way](d), d.extend(60)]
            extended, settled, later = await asyncio.gather(*acts, return_exceptions=True)
            assert (extended, settled) == (None, None)
            assert later is None or isinstance(later, errors.AlreadySettled)
            with pytest.raises(errors.AlreadySettled):
                await d.extend(60)
        if way == "nack":  # at once, and not when the extension is over
            assert attempts(await take(sub, 20)) == [2] * 20
        else:
            assert await lag(mq) == 0


@pytest.mark.parametrize("way", WAYS | EXTEND)
async def test_a_settle_after_the_lease_was_lost_is_refused_and_changes_nothing(
    mq: Any, database: Database, way: str
) -> None:
    await publish(mq, 2)
    stale = await subscribe(mq)
    deliveries = await take(stale, 2)
    await crash(database, stale)
    async with subscribe(mq) as sub:
        current = await take(sub, 2)
        before = stored(database)
        with pytest.raises(errors.StaleLease):
            await (WAYS | EXTEND)[way](deliveries[0])
        with pytest.raises(errors.StaleLease):
            await (WAYS | EXTEND)[way](deliveries[0])  # and it is no second settle
        with pytest.raises(errors.StaleLease):
            await stale.ack(deliveries)
        assert stored(database) == before
        assert await nothing_comes(sub)
        await sub.ack(current)
    assert await acked(mq) == 2


@pytest.mark.parametrize("way", WAYS | EXTEND)
async def test_a_settle_after_a_newer_delivery_is_refused_and_changes_nothing(
    mq: Any, database: Database, way: str
) -> None:
    await publish(mq, 1)
    async with subscribe(mq, visibility=0.1) as sub:
        (old,) = await take(sub, 1)
        (new,) = await take(sub, 1)
        await new.extend(60)
        before = stored(database)
        with pytest.raises(errors.StaleLease):
            await (WAYS | EXTEND)[way](old)
        assert stored(database) == before
        await new.ack()


async def test_many_are_acked_in_one_transaction(mq: Any) -> None:
    await mq.publish_many("t", [Message(payload=n, key=f"k{n % 4}") for n in range(100)])
    async with subscribe(mq) as sub:
        deliveries = await take(sub, 100)
        with statements(mq) as seen:
            await sub.ack(deliveries)
        assert len([s for s in seen if s.name == "leases.advance"]) == 1
        assert await lag(mq) == 0
        await sub.ack([])


async def test_of_many_all_are_acked_or_none(mq: Any) -> None:
    await publish(mq, 4)
    async with subscribe(mq) as sub:
        deliveries = await take(sub, 4)
        await deliveries[2].ack()
        with pytest.raises(errors.AlreadySettled):
            await sub.ack(deliveries)
        assert await lag(mq) == 3
        assert [d.settled for d in deliveries] == [False, False, True, False]
        await sub.ack([deliveries[0], deliveries[1], deliveries[1], deliveries[3]])
        assert await lag(mq) == 0
        with pytest.raises(errors.InvalidInput):
            await sub.ack([1])
        with pytest.raises(errors.InvalidInput):
            await sub.ack(deliveries[0])


async def test_settles_at_the_same_time_share_transactions(mq: Any) -> None:
    await mq.publish_many("t", [Message(payload=n, key=f"k{n % 4}") for n in range(60)])
    async with subscribe(mq) as sub:
        deliveries = await take(sub, 60)
        with statements(mq, seconds=0.002) as seen:
            await asyncio.gather(*(d.ack() for d in deliveries))
        writes = len([s for s in seen if s.name == "leases.advance"])
        assert 1 <= writes <= 30
        assert await lag(mq) == 0


async def test_settles_that_share_a_transaction_each_get_their_own_answer(
    mq: Any, database: Database
) -> None:
    await mq.publish_many("t", [Message(payload=n, key=f"k{n}") for n in range(8)])
    async with subscribe(mq, flush_interval=0.2) as sub:
        deliveries = await take(sub, 8)
        lost = [d for d in deliveries if d.message.payload in (1, 5)]
        # Two of the eight partitions are somebody else's from now on.
        database.execute(
            "UPDATE rowmq_offsets SET leased_by = 0, epoch = epoch + 1, version = version + 1 "
            "WHERE partition_id IN (SELECT id FROM rowmq_partitions "
            "WHERE partition_key IN ('k1', 'k5'))"
        )
        outcomes = await asyncio.gather(*(d.ack() for d in deliveries), return_exceptions=True)
        refused = [isinstance(outcome, errors.StaleLease) for outcome in outcomes]
        assert refused == [d in lost for d in deliveries]
        assert await lag(mq) == 2
        again = await take(sub, 2)
        assert sorted(payloads(again)) == [1, 5]
        await sub.ack(again)


async def test_settles_within_the_flush_interval_share_a_transaction(mq: Any) -> None:
    await publish(mq, 5)
    async with subscribe(mq, flush_interval=0.5) as sub:
        deliveries = await take(sub, 5)
        with statements(mq) as seen:
            settling = []
            for d in deliveries:
                settling.append(asyncio.create_task(d.ack()))
                await asyncio.sleep(0.01)
            assert await acked(mq) == 0
            await asyncio.gather(*settling)
        assert len([s for s in seen if s.name == "leases.advance"]) == 1
        assert await acked(mq) == 5


async def test_a_settle_is_part_of_a_callers_transaction(mq: Any) -> None:
    await publish(mq, 2)
    async with subscribe(mq) as sub:
        first, second = await take(sub, 2)
        with pytest.raises(ZeroDivisionError):
            async with mq.transaction() as tx:
                await first.ack(connection=tx)
                raise ZeroDivisionError
        assert await acked(mq) == 0
        async with mq.transaction() as tx:
            await first.ack(connection=tx)
            await second.reject(error="in a transaction", connection=tx)
            await tx.publish("results", "done")
        assert await acked(mq) == 2
        with pytest.raises(errors.AlreadySettled):
            await first.ack()
        assert await nothing_comes(sub)
    assert len(await mq.read("results")) == 1
    assert [x.offset for x in await mq.dead_letters("t")] == [2]


async def test_an_attempt_that_was_made_stays_counted_whatever_is_settled_around_it(
    mq: Any,
) -> None:
    await publish(mq, 3)
    async with subscribe(mq, visibility=0.15) as sub:
        await take(sub, 3)
        (first,) = await take(sub, 1)  # the others' time is over, too
        assert (first.message.payload, first.attempt) == (1, 2)
        async with mq.transaction() as tx:
            await first.ack(connection=tx)
        assert attempts(await take(sub, 2)) == [2, 2]


@async_only
async def test_a_poll_that_is_cancelled_burns_no_attempt_and_loses_nothing(mq: Any) -> None:
    await publish(mq, 40)
    async with subscribe(mq) as sub:
        seen: list[Any] = []
        cancelled = 0
        for turn in range(200):
            polling = asyncio.create_task(sub.poll(max=2, timeout=0))
            for _ in range(turn % 17):
                await asyncio.sleep(0)
            if turn % 3:
                await asyncio.sleep(0.0005 * (turn % 7))
            polling.cancel()
            try:
                seen += await polling
            except asyncio.CancelledError:
                cancelled += 1
        assert cancelled > 10
        while len(seen) < 40:
            seen += await take(sub, 1)
        assert sorted(payloads(seen)) == list(range(1, 41))
        assert set(attempts(seen)) == {1}
        await sub.ack(seen)
        assert await acked(mq) == 40


@async_only
async def test_a_settle_that_is_cancelled_is_done_or_can_be_repeated(mq: Any) -> None:
    await publish(mq, 60)
    async with subscribe(mq) as sub:
        for turn, d in enumerate(await take(sub, 60)):
            settling = asyncio.create_task(d.ack())
            for _ in range(turn % 13):
                await asyncio.sleep(0)
            settling.cancel()
            await asyncio.wait({settling})
            await eventually(partial(acked_at_last, d, mq, turn + 1))


async def acked_at_last(d: Any, mq: Any, offset: int) -> bool:
    """Whether a delivery is acked, by an earlier try or by this one."""
    with contextlib.suppress(errors.AlreadySettled):
        await d.ack()
    return await acked(mq) == offset


@async_only
async def test_a_settle_that_is_cancelled_while_it_waits_for_others_can_be_repeated(
    mq: Any,
) -> None:
    await publish(mq, 1)
    async with subscribe(mq, flush_interval=0.2) as sub:
        (d,) = await take(sub, 1)
        await cancelled(d.ack())
        assert await acked(mq) == 0
        await d.ack()
        assert await acked(mq) == 1


@async_only
async def test_a_settle_that_is_cancelled_while_it_waits_for_its_turn_can_be_repeated(
    mq: Any,
) -> None:
    await publish(mq, 2)
    async with subscribe(mq) as sub:
        first, second = await take(sub, 2)
        async with mq.transaction() as tx:
            await tx.execute("UPDATE rowmq_offsets SET touched = touched")  # which locks the place
            settling = asyncio.create_task(second.ack())
            await eventually(lambda: second.settled)
            await asyncio.sleep(0.02)  # it waits for the lock by now, and has the only turn
            await cancelled(first.ack())
        await settling
        assert await acked(mq) == 0
        await first.ack()
        assert await acked(mq) == 2


async def cancelled(settle: Coroutine[Any, Any, None]) -> None:
    """Have a settle begin, and cancel it."""
    task = asyncio.create_task(settle)
    await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@on_servers
async def test_a_settle_in_an_open_transaction_holds_up_nobody_elses(
    connect: Connect, empty_database: Database
) -> None:
    mq = await connect(empty_database.url, lock_timeout=2, retry_for=0)
    await mq.migrate()
    await mq.publish_many("t", [Message(payload=n, key=f"k{n}") for n in range(300)])
    async with subscribe(mq) as sub, subscribe(mq, group="other") as other:
        mine, theirs = await take(sub, 300), await take(other, 300)
        async with mq.transaction() as tx:
            await mine[0].ack(connection=tx)
            await other.ack(theirs)
            await sub.ack(mine[1:])
    assert (await lag(mq), await lag(mq, "other")) == (0, 0)


@on_servers
async def test_what_must_wait_is_acked_also_beside_what_is_lost(
    connect: Connect, empty_database: Database
) -> None:
    mq = await connect(empty_database.url)
    await mq.migrate()
    await mq.publish_many("t", [Message(payload=n, key=key) for key in "ab" for n in range(2)])
    async with subscribe(mq) as sub:
        found = await take(sub, 4)
        a, b = ([d for d in found if d.message.key == key] for key in "ab")
        await mq.seek("t", "g", to="earliest", key="a")
        async with mq.transaction() as tx:
            await b[0].ack(connection=tx)
            both = asyncio.create_task(sub.ack([a[1], b[1]]))
            await asyncio.sleep(0.2)
        with pytest.raises(errors.StaleLease):
            await both
        assert (a[1].settled, b[1].settled) == (False, True)
    assert {row.key: row.lag for row in await mq.lag("t", "g")} == {"a": 2, "b": 0}
