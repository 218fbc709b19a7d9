"""Where queues like this one are known to break: a test for each, that breaks with them.

The numbers are those of a list of weaknesses found in other systems.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from itertools import pairwise
from typing import Any

import pytest

from rowmq import Message, errors
from rowmq.store.statement import Statement
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
from tests.crash import core_of, crash, expire
from tests.databases import Database

DAY_SECONDS = 86_400


@contextmanager
def interrupted(mq: Any, name: str, interrupt: Callable[[], object]) -> Iterator[None]:
    """Interrupt something when it begins to run a statement of this name."""

    def observe(statement: Statement) -> None:
        if statement.name == name:
            interrupt()

    mq._driver.observers.append(observe)
    try:
        yield
    finally:
        mq._driver.observers.remove(observe)


# --- 1: an offset is visible while a smaller one is not committed ---------------------------------


async def test_weakness_01_no_message_is_passed_over_because_it_was_committed_late(
    mq: Any,
) -> None:
    await mq.create_group("t", "g")
    async with subscribe(mq) as sub:
        async with mq.transaction() as tx:
            await tx.publish("t", "first", key="k")
            later = [asyncio.create_task(mq.publish("t", n, key="k")) for n in (2, 3)]
            polling = asyncio.create_task(take(sub, 3))
            await asyncio.sleep(0.15)
            assert not polling.done()
            assert not any(task.done() for task in later)
        deliveries = await polling
        assert [d.message.offset for d in deliveries] == [1, 2, 3]
        assert deliveries[0].message.payload == "first"
        assert sorted(r.offset for r in await asyncio.gather(*later)) == [2, 3]
        await sub.ack(deliveries[1:])
        assert await acked(mq) == 0
        assert await mq.gc("t") == 0  # the first is kept until it is acked, too
        await deliveries[0].ack()
        assert await mq.gc("t") == 3


async def test_weakness_01_a_transaction_that_is_rolled_back_leaves_no_hole(mq: Any) -> None:
    async with subscribe(mq) as sub:
        with pytest.raises(ZeroDivisionError):
            async with mq.transaction() as tx:
                await tx.publish("t", "never", key="k")
                raise ZeroDivisionError
        await mq.publish("t", "first", key="k")
        (d,) = await take(sub, 1)
        assert (d.message.payload, d.message.offset) == ("first", 1)
        await d.ack()
        assert await acked(mq) == 1


# --- 2: no fencing -------------------------------------------------------------------------------


async def test_weakness_02_a_stale_nack_does_not_make_the_new_owners_message_deliverable(
    mq: Any, database: Database
) -> None:
    await publish(mq, 1)
    stale = await subscribe(mq, max_attempts=9)
    (old,) = await take(stale, 1)
    await crash(database, stale)
    async with subscribe(mq, max_attempts=9) as sub:
        (new,) = await take(sub, 1)
        with pytest.raises(errors.StaleLease):
            await old.nack(delay=0)
        assert await nothing_comes(sub)
        assert await nothing_comes(stale)  # which is a newcomer now, and owns nothing
        await new.ack()
    assert await acked(mq) == 1


async def test_weakness_02_a_stale_write_does_not_overwrite_what_was_counted(
    mq: Any, database: Database
) -> None:
    await publish(mq, 3)
    stale = await subscribe(mq, max_attempts=9)
    old = await take(stale, 3)
    await crash(database, stale)
    current = await subscribe(mq, max_attempts=9)
    await current.ack((await take(current, 3))[:1])
    before = stored(database)
    for late in (stale.ack(old[1:]), old[0].reject(), old[1].nack(delay=0), old[2].extend(9)):
        with pytest.raises(errors.StaleLease):
            await late
    assert stored(database) == before
    await crash(database, current)
    async with subscribe(mq, max_attempts=9) as sub:
        deliveries = await take(sub, 2)
        assert payloads(deliveries) == [2, 3]
        assert attempts(deliveries) == [3, 3]
    assert await mq.dead_letters("t") == []


async def test_weakness_02_who_lost_a_lease_delivers_nothing_from_memory(
    mq: Any, database: Database
) -> None:
    await publish(mq, 20)
    stale = await subscribe(mq)
    await take(stale, 2)
    await crash(database, stale)
    async with subscribe(mq) as sub:
        deliveries = await take(sub, 20)
        assert await stale.poll(max=10, timeout=0.2) == []
        await sub.ack(deliveries)
    assert await acked(mq) == 20


@on_servers
@pytest.mark.parametrize("flavour", ["sync"], indirect=True)  # the thread that beats is the same
async def test_weakness_02_a_heartbeat_that_fails_does_not_keep_others_from_theirs(
    connect: Connect, mq: Any, database: Database
) -> None:
    await publish(mq, 1)
    other = await connect(database.url)
    for _ in range(4):
        await subscribe(mq, topic="dropped", lease_duration=1.5)
    async with subscribe(mq, lease_duration=1.5) as sub:
        (d,) = await take(sub, 1)
        async with other.transaction() as tx:
            # The rows of the other group's subscribers are locked until this ends.
            await other.drop_group("dropped", "g", connection=tx)
            async with subscribe(other) as rival:
                ended = time.monotonic() + 2.5
                while time.monotonic() < ended:
                    assert await nothing_comes(rival)
        assert not d.lost
        await d.ack()


async def test_weakness_02_one_subscriber_that_expires_takes_no_other_with_it(
    mq: Any, database: Database
) -> None:
    await publish(mq, 1)
    async with (
        subscribe(mq, topic="gone", lease_duration=0.6) as gone,
        subscribe(mq, lease_duration=0.6) as sub,
    ):
        (d,) = await take(sub, 1)
        first = core_of(gone).member
        expire(database, gone)
        await eventually(lambda: core_of(gone).member not in (None, first))
        second = core_of(gone).member
        expire(database, gone)
        await eventually(lambda: core_of(gone).member not in (None, second))
        assert not d.lost
        await d.ack()


# --- 3: garbage collection that does not know who still has to read -------------------------------


async def test_weakness_03_nothing_is_collected_that_a_registered_group_has_not_acked(
    mq: Any,
) -> None:
    await mq.create_group("t", "down")
    await publish(mq, 3)
    await publish(mq, 3, key="appeared while it was down")
    async with subscribe(mq, group="fast") as fast:
        await fast.ack(await take(fast, 6))
    assert await mq.gc("t") == 0
    async with subscribe(mq, group="down") as down:
        deliveries = await take(down, 6)
        assert Counter(payloads(deliveries)) == {1: 2, 2: 2, 3: 2}
        await down.ack(deliveries)
    assert await mq.gc("t") == 6


async def test_weakness_03_a_group_that_was_down_when_a_partition_appeared_misses_nothing(
    mq: Any,
) -> None:
    async with subscribe(mq, group="down") as down, subscribe(mq, group="fast") as fast:
        await publish(mq, 2, key="old")
        await down.ack(await take(down, 2))
        await fast.ack(await take(fast, 2))
    await publish(mq, 3, key="new")
    async with subscribe(mq, group="fast") as fast:
        await fast.ack(await take(fast, 3))
        assert await mq.gc("t") == 2
    async with subscribe(mq, group="down") as down:
        deliveries = await take(down, 3)
        assert {d.message.key for d in deliveries} == {"new"}
        assert await nothing_comes(down)


async def test_weakness_03_an_abandoned_group_does_not_pin_the_log_for_ever(
    mq: Any, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    await mq.configure_topic("t", retention=timedelta(days=1))
    await mq.create_group("t", "abandoned")
    await publish(mq, 5)
    async with subscribe(mq) as sub:
        await sub.ack(await take(sub, 5))
        assert await mq.gc("t") == 0
        database.execute(
            f"UPDATE rowmq_messages SET published_at = published_at - {2 * DAY_SECONDS * 10**6} "
            "WHERE message_offset <= 3"
        )
        with caplog.at_level(logging.WARNING, logger="rowmq"):
            assert await mq.gc("t") == 3
        assert "abandoned" in caplog.text  # it is not silent
    expired = {group.name: group.expired for group in await mq.groups("t")}
    assert expired == {"abandoned": 3, "g": 0}
    async with subscribe(mq, group="abandoned") as late:
        assert payloads(await take(late, 2)) == [4, 5]


async def test_weakness_03_a_partition_that_is_busy_is_collected_too(mq: Any) -> None:
    await publish(mq, 10)
    async with subscribe(mq) as sub:
        deliveries = await take(sub, 8)
        await sub.ack(deliveries[:4])
        await deliveries[5].ack()
        waiting = asyncio.create_task(sub.poll(max=1))
        assert await mq.gc("t") == 4
        assert [m.payload for m in await mq.read("t")] == [5, 6, 7, 8, 9, 10]
        deliveries += await waiting
        await sub.ack([d for d in deliveries if not d.settled])
        assert await mq.gc("t") == 5
    assert await acked(mq) == 9


async def test_weakness_03_a_collection_is_done_in_bounded_transactions(
    mq: Any, database: Database
) -> None:
    total = 2_050
    await mq.publish_many("t", [Message(payload=0, key=f"k{n % 3}") for n in range(total)])
    await mq.create_group("t", "g", start="latest")
    left = [total]

    def look(_: Statement) -> None:
        left.append(database.execute("SELECT COUNT(*) FROM rowmq_messages")[0][0])

    mq._driver.observers.append(look)  # what is committed, before each statement
    assert await mq.gc("t") == total
    mq._driver.observers.remove(look)
    assert max(before - after for before, after in pairwise([*left, 0])) <= 1_000


# --- 4: dead letters that take the message away from others ---------------------------------------


async def test_weakness_04_a_dead_letter_of_one_group_is_read_by_the_others(mq: Any) -> None:
    await publish(mq, 2)
    await mq.create_group("t", "slow")
    async with subscribe(mq) as sub:
        for d in await take(sub, 2):
            await d.reject(error="no good")
    assert await mq.gc("t") == 0
    async with subscribe(mq, group="slow") as slow:
        assert payloads(await take(slow, 2)) == [1, 2]


async def test_weakness_04_a_dead_letter_names_its_group_and_is_redriven_to_it_alone(
    mq: Any,
) -> None:
    await publish(mq, 1)
    async with subscribe(mq, group="a") as a, subscribe(mq, group="b") as b:
        await (await take(a, 1))[0].reject(error="of a")
        await b.ack(await take(b, 1))
        (letter,) = await mq.dead_letters("t")
        assert (letter.group, letter.error) == ("a", "of a")
        assert await mq.redrive("t", group="b") == 0
        assert await mq.redrive("t", group="a") == 1
        assert attempts(await take(a, 1)) == [1]
        assert await nothing_comes(b)


async def test_weakness_04_the_same_message_can_be_a_dead_letter_many_times(mq: Any) -> None:
    await mq.publish("t", "poison", key="k", id="same")
    for group in ("a", "b", "c"):
        async with subscribe(mq, group=group) as sub:
            await (await take(sub, 1))[0].reject(error=group)
    assert [letter.group for letter in await mq.dead_letters("t")] == ["a", "b", "c"]
    # Once more for one of them; and once more under its id, when the log has let go of it.
    async with subscribe(mq, group="a") as sub:
        assert await mq.redrive("t", group="a") == 1
        await (await take(sub, 1))[0].reject(error="a again")
        assert await mq.gc("t") == 1
        assert not (await mq.publish("t", "poison", key="k", id="same")).duplicate
        await (await take(sub, 1))[0].reject(error="a anew")
    errors_of_a = [letter.error for letter in await mq.dead_letters("t", group="a")]
    assert errors_of_a == ["a again", "a anew"]


async def test_weakness_04_a_dead_letter_whose_id_is_known_does_not_hinder_its_batch(
    mq: Any,
) -> None:
    await publish(mq, 3)
    async with subscribe(mq, group="a") as sub:
        await (await take(sub, 3))[1].reject()
    async with subscribe(mq, group="b", flush_interval=0.1) as sub:
        first, second, third = await take(sub, 3)
        await asyncio.gather(first.ack(), second.reject(error="too"), third.ack())
    assert await acked(mq, "b") == 3
    assert [letter.group for letter in await mq.dead_letters("t")] == ["a", "b"]


# --- 5: clocks of applications --------------------------------------------------------------------


@pytest.mark.parametrize("ahead", [DAY_SECONDS, -DAY_SECONDS], ids=["ahead", "behind"])
async def test_weakness_05_a_wrong_clock_steals_no_lease_and_delivers_nothing_early(
    mq: Any, monkeypatch: pytest.MonkeyPatch, ahead: int
) -> None:
    right, right_ns = time.time, time.time_ns
    await publish(mq, 3)
    async with subscribe(mq) as sub:
        first, second, third = await take(sub, 3)
        await first.nack(delay=60)
        monkeypatch.setattr(time, "time", lambda: right() + ahead)
        monkeypatch.setattr(time, "time_ns", lambda: right_ns() + ahead * 10**9)
        async with subscribe(mq) as wrong:
            due_at = core_of(wrong).sharing.due_at
            await eventually(lambda: core_of(wrong).sharing.due_at > due_at)
            assert wrong.owned == []
            assert await nothing_comes(wrong)
        assert await nothing_comes(sub)
        await second.extend(60)
        assert await nothing_comes(sub)
        await second.nack(delay=0)
        (again,) = await take(sub, 1)
        assert (again.message.payload, again.attempt) == (2, 2)
        await sub.ack([again, third])
        assert await lag(mq) == 1
        assert not first.lost


async def test_weakness_05_times_are_the_databases(
    mq: Any, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = time.time
    began = right()
    monkeypatch.setattr(time, "time", lambda: right() + DAY_SECONDS)
    await publish(mq, 1)
    async with subscribe(mq) as sub:
        await (await take(sub, 1))[0].reject()
        ((expires_at,),) = database.execute("SELECT expires_at FROM rowmq_subscribers")
    (letter,) = await mq.dead_letters("t")
    assert abs(letter.failed_at.timestamp() - began) < 600
    assert abs(expires_at / 1_000_000 - began) < 600


# --- 6 and 7: the cost of looking, and of writing -------------------------------------------------


async def test_weakness_06_partitions_are_discovered_without_reading_the_log(mq: Any) -> None:
    await mq.publish_many("t", [Message(payload=n, key=f"k{n % 5}") for n in range(50)])
    with statements(mq) as seen:
        async with subscribe(mq) as sub:
            await eventually(lambda: len(sub.owned) == 5)
            await mq.publish("t", 1, key="new")
            await eventually(lambda: len(sub.owned) == 6)
            await sub.ack(await take(sub, 51))
            assert await nothing_comes(sub)
    looked = [s for s in seen if s.name.startswith("leases.") and s.name != "leases.advance"]
    assert {"leases.survey", "leases.list_free", "leases.adopt", "leases.find"} <= {
        s.name for s in looked
    }
    assert [s.name for s in looked if "rowmq_messages" in s.sql] == []


async def test_weakness_07_a_look_at_many_idle_partitions_is_one_statement(mq: Any) -> None:
    await mq.publish_many("t", [Message(payload=n, key=f"k{n}") for n in range(300)])
    async with subscribe(mq, discovery_interval=60) as sub:
        await eventually(lambda: len(sub.owned) == 300)
        await sub.ack(await take(sub, 300))
        await sub.poll(timeout=0)
        for pause in (0.0, 0.1):  # also when the last look was a while ago
            await asyncio.sleep(pause)
            with statements(mq) as seen:
                assert await sub.poll(timeout=0) == []
            assert [s.name for s in seen] == ["leases.find"]


async def test_weakness_07_an_idle_subscriber_looks_seldom(mq: Any) -> None:
    await publish(mq, 1)
    async with subscribe(mq, discovery_interval=60, poll_interval=0.2) as sub:
        await sub.ack(await take(sub, 1))
        await sub.poll(timeout=0.5)
        with statements(mq) as seen:
            await sub.poll(timeout=0.6)
        assert len(seen) <= 6, Counter(s.name for s in seen)


async def test_weakness_07_a_batch_costs_two_rows_however_large_it_is(
    mq: Any, database: Database
) -> None:
    await publish(mq, 1000)
    version = "SELECT version FROM rowmq_offsets"  # which counts the writes
    async with subscribe(mq) as sub:
        await eventually(lambda: sub.owned)
        ((before,),) = database.execute(version)
        with statements(mq) as seen:
            for _ in range(10):
                deliveries = await sub.poll(max=100)
                assert len(deliveries) == 100
                await sub.ack(deliveries)
        ((after,),) = database.execute(version)
        assert after - before <= 20
        ranges = [s for s in seen if s.name in ("leases.put_ranges", "leases.remove_ranges")]
        assert ranges == []
        assert database.execute("SELECT COUNT(*) FROM rowmq_delivery_state") == [(0,)]


# --- 8: names that are patterns, and names that differ in case ------------------------------------

ALIKE = ["key", "Key", "kEY", "key ", "k_y", "k%", "ke", "key/", "KEY\t"]


async def test_weakness_08_keys_that_look_alike_are_different_partitions(mq: Any) -> None:
    await mq.publish_many("t", [Message(payload=key, key=key) for key in ALIKE])
    async with subscribe(mq) as sub:
        deliveries = await take(sub, len(ALIKE))
        assert {d.message.key: d.message.payload for d in deliveries} == {k: k for k in ALIKE}
        assert {d.message.offset for d in deliveries} == {1}
        await sub.ack([d for d in deliveries if d.message.key == "k_y"])
    assert {row.key for row in await mq.lag("t", "g") if row.lag == 0} == {"k_y"}
    assert await mq.seek("t", "g", to="latest", key="k%") == 1
    assert {row.key for row in await mq.lag("t", "g") if row.lag == 0} == {"k_y", "k%"}


async def test_weakness_08_groups_and_topics_that_look_alike_are_different(mq: Any) -> None:
    for topic in ALIKE:
        await publish(mq, 1, topic=topic)
        for group in ALIKE:
            assert await mq.create_group(topic, group)
    async with subscribe(mq, topic="k_y", group="k%") as sub:
        await sub.ack(await take(sub, 1))
    lags = {(t, g): await lag(mq, g, t) for t in ("k_y", "key") for g in ("k%", "key", "k_y")}
    assert {names for names, count in lags.items() if count == 0} == {("k_y", "k%")}
    assert await mq.drop_group("k_y", "k%")
    assert {group.name for group in await mq.groups("k_y")} == {*ALIKE} - {"k%"}
    assert len(await mq.groups("key")) == len(ALIKE)


# --- 9: one stuck message and a window of acked ones ----------------------------------------------


async def test_weakness_09_one_stuck_message_does_not_stall_its_partition(mq: Any) -> None:
    await publish(mq, 120)
    async with subscribe(mq, batch_size=10, max_in_flight=10) as sub:
        stuck, *others = await sub.poll()
        assert len(others) == 9
        seen = []
        while others:
            await sub.ack(others)
            seen += payloads(others)
            others = await sub.poll(timeout=0.1)
        assert seen == list(range(2, 121))
        assert await acked(mq) == 0
        await stuck.ack()
        assert await acked(mq) == 120


# --- 10: messages that wait in a buffer -----------------------------------------------------------


async def test_weakness_10_messages_that_wait_behind_a_slow_handler_lose_no_attempt(
    mq: Any,
) -> None:
    await publish(mq, 5)
    seen = []
    async with subscribe(mq, visibility=0.5, max_attempts=1, batch_size=10) as sub:
        async for d in sub:
            await asyncio.sleep(0.2)  # all five take twice as long as each may
            seen.append((d.message.payload, d.attempt))
            await d.ack()
            if len(seen) == 5:
                break
    assert seen == [(n, 1) for n in range(1, 6)]
    assert await mq.dead_letters("t") == []


async def test_weakness_10_a_stop_leaves_nothing_to_its_timeout(mq: Any) -> None:
    await publish(mq, 10)
    async with subscribe(mq, visibility=600, lease_duration=600) as stopped:
        async for d in stopped:
            await d.ack()
            break
        left = await take(stopped, 4)
    async with subscribe(mq) as sub:
        deliveries = await take(sub, 9, seconds=5)
        assert payloads(deliveries) == list(range(2, 11))
        # What was handed out was an attempt; what was not, was none.
        assert attempts(deliveries) == [2] * len(left) + [1] * 5


@async_only
async def test_weakness_10_what_was_marked_and_never_handed_out_is_no_attempt(mq: Any) -> None:
    await publish(mq, 3)
    loop = asyncio.get_running_loop()
    async with subscribe(mq, max_attempts=1) as sub:
        await eventually(lambda: sub.owned)
        for _ in range(5):
            polling = asyncio.create_task(sub.poll(timeout=5))
            cancel = partial(loop.call_soon_threadsafe, polling.cancel)
            with interrupted(mq, "leases.advance", cancel), pytest.raises(asyncio.CancelledError):
                await polling
        deliveries = await take(sub, 3)
        assert attempts(deliveries) == [1, 1, 1]
        assert await mq.dead_letters("t") == []


# --- 11: the state is gone before the watermark is saved ------------------------------------------


@on_servers
async def test_weakness_11_ranges_and_watermark_change_together_or_not_at_all(
    connect: Connect, database: Database
) -> None:
    mq = await connect(database.url, lock_timeout=0.3, retry_for=0)
    other = await connect(database.url)
    await publish(mq, 3)
    async with subscribe(mq) as sub:
        first, second, _ = await take(sub, 3)
        await second.ack()
        before = stored(database)
        async with other.transaction() as tx:
            # The watermark could rise to 2 now; the rows that are done by that cannot go.
            assert (await tx.execute("SELECT * FROM rowmq_delivery_state FOR UPDATE")).rows
            with pytest.raises(errors.Locked):
                await first.ack()
            assert stored(database) == before
        await crash(database, sub)
        async with subscribe(mq) as heir:
            deliveries = await take(heir, 2)
            assert payloads(deliveries) == [1, 3]
            assert await nothing_comes(heir)


async def test_weakness_11_what_is_rolled_back_leaves_what_was_acked_acked(
    mq: Any, database: Database
) -> None:
    await publish(mq, 4)
    async with subscribe(mq) as sub:
        first, second, third, _ = await take(sub, 4)
        await second.ack()
        with pytest.raises(ZeroDivisionError):
            async with mq.transaction() as tx:
                await first.ack(connection=tx)
                await third.nack(delay=60, connection=tx)
                raise ZeroDivisionError
        await crash(database, sub)
    async with subscribe(mq) as heir:
        deliveries = await take(heir, 3)
        assert payloads(deliveries) == [1, 3, 4]
        await heir.ack(deliveries)
    assert await acked(mq) == 4


# --- 12: a share that is rounded up ---------------------------------------------------------------


async def test_weakness_12_twelve_partitions_among_five_leave_nobody_without(mq: Any) -> None:
    await mq.publish_many("t", [Message(payload=n, key=f"k{n:02}") for n in range(12)])
    subs = [await subscribe(mq) for _ in range(5)]
    await eventually(lambda: sorted(len(sub.owned) for sub in subs) == [2, 2, 2, 3, 3])
    assert len({key for sub in subs for key in sub.owned}) == 12
    await asyncio.gather(*(sub.close() for sub in subs))
