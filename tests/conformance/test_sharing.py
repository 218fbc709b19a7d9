"""Sharing a group's partitions out: fairly, all of them, each to one, and without redelivering."""

import asyncio
import contextlib
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

import pytest

from rowmq import Message, errors
from rowmq.store.statement import Statement
from rowmq.subscriber.receipts import claim_of, settle_claims, wanted_of
from tests.choices import on_servers
from tests.conftest import Connect
from tests.consuming import (
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
from tests.flavours import plain
from tests.working import on_one


async def partitions(mq: Any, count: int, *, each: int = 1) -> list[str]:
    """The keys of so many partitions, with some messages in each."""
    keys = [f"k{number:03}" for number in range(count)]
    await mq.publish_many("t", [Message(payload=n, key=key) for n in range(each) for key in keys])
    return keys


@asynccontextmanager
async def several(mq: Any, count: int, **options: Any) -> AsyncIterator[list[Any]]:
    """So many subscribers of one group."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(subscribe(mq, **options)) for _ in range(count)]


def shares(subs: list[Any]) -> list[int]:
    """How many partitions each subscriber has: the first to come have the larger shares."""
    return [len(sub.owned) for sub in subs]


async def settled(
    subs: list[Any], wanted: list[int], keys: list[str], seconds: float = 30.0
) -> None:
    """Wait until all have their shares; no partition has two owners, and none has none."""
    try:
        await eventually(lambda: shares(subs) == wanted, seconds)
    except AssertionError:
        raise AssertionError(f"{shares(subs)} instead of {wanted}") from None
    owned = sorted(key for sub in subs for key in sub.owned)
    assert owned == keys


def owners(database: Database) -> Counter[int]:
    """How many leases each subscriber has, as the database knows it."""
    return Counter(row[0] for row in database.execute("SELECT leased_by FROM rowmq_offsets"))


def fair(partitions: int, subscribers: int) -> list[int]:
    each, left = divmod(partitions, subscribers)
    return [each + 1] * left + [each] * (subscribers - left)


# --- shares --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "subscribers"),
    [(6, 3), (5, 2), (2, 4), (0, 2), (40, 6)],
    ids=["even", "odd", "more subscribers", "none", "many"],
)
async def test_shares_are_fair_and_add_up_to_all_partitions(
    mq: Any, database: Database, count: int, subscribers: int
) -> None:
    keys = await partitions(mq, count)
    async with several(mq, subscribers) as subs:
        await settled(subs, fair(count, subscribers), keys)
        rows = await mq.lag("t", "g")
        assert Counter(row.owner for row in rows) == {
            sub.name: len(sub.owned) for sub in subs if sub.owned
        }
        # And so it stays.
        before = database.execute("SELECT partition_id, leased_by, epoch FROM rowmq_offsets")
        surveys = [core_of(sub).sharing.due_at for sub in subs]
        await eventually(
            lambda: all(core_of(s).sharing.due_at > at for s, at in zip(subs, surveys, strict=True))
        )
        after = database.execute("SELECT partition_id, leased_by, epoch FROM rowmq_offsets")
        assert sorted(after) == sorted(before)
    assert set(owners(database)) <= {0}


async def test_shares_stay_fair_while_subscribers_come_and_go(mq: Any) -> None:
    keys = await partitions(mq, 11)
    subs: list[Any] = []
    for change in (+3, -1, +3, -2, -2, +1):
        if change > 0:
            subs += [await subscribe(mq) for _ in range(change)]
        for _ in range(-change):
            await subs.pop(0).close()
        await settled(subs, fair(11, len(subs)), keys)


async def test_a_newcomer_gets_its_share(mq: Any) -> None:
    keys = await partitions(mq, 4)
    async with subscribe(mq) as old:
        await settled([old], [4], keys)
        async with subscribe(mq) as new:
            await settled([old, new], [2, 2], keys)
            # What it got is what it is delivered.
            deliveries = await take(new, 2)
            assert sorted(d.message.key for d in deliveries) == new.owned
            assert await nothing_comes(new)


async def test_who_leaves_hands_its_partitions_over_at_once(mq: Any) -> None:
    keys = await partitions(mq, 5)
    async with subscribe(mq) as stays:
        leaves = await subscribe(mq)
        await settled([stays, leaves], [3, 2], keys)
        began = time.monotonic()
        await leaves.close()
        assert leaves.owned == []
        await settled([stays], [5], keys)
        assert time.monotonic() - began < 5  # and not when a lease of 30 s is over


async def test_one_of_those_without_a_partition_steps_in(mq: Any) -> None:
    keys = await partitions(mq, 2)
    async with several(mq, 4) as subs:
        await settled(subs, [1, 1, 0, 0], keys)
        leaver = next(sub for sub in subs if sub.owned)
        await leaver.close()
        await settled([sub for sub in subs if sub is not leaver], [1, 1, 0], keys)


async def test_an_uneven_split_starves_no_partition(mq: Any) -> None:
    await partitions(mq, 7, each=6)
    async with several(mq, 3) as subs:
        await eventually(lambda: shares(subs) == [3, 2, 2])
        seen = []
        for sub in subs:
            for _ in range(len(sub.owned) * 6):
                (d,) = await take(sub, 1)
                seen.append((d.message.key, d.message.payload))
                await d.ack()
        assert len(set(seen)) == len(seen) == 42
    assert await lag(mq) == 0


async def test_groups_share_out_each_for_itself(mq: Any) -> None:
    keys = await partitions(mq, 4)
    async with several(mq, 2, group="a") as a, subscribe(mq, group="b") as b:
        await settled(a, [2, 2], keys)
        await settled([b], [4], keys)


async def test_clients_share_out_like_subscribers_of_one(
    connect: Connect, mq: Any, database: Database
) -> None:
    keys = await partitions(mq, 5)
    other = await connect(database.url)
    async with subscribe(mq) as mine, subscribe(other) as theirs:
        await settled([mine, theirs], [3, 2], keys)


# --- the dead ------------------------------------------------------------------------------------


async def test_partitions_of_the_dead_are_taken_over(mq: Any, database: Database) -> None:
    keys = await partitions(mq, 6)
    async with several(mq, 2) as living:
        dead = await subscribe(mq)
        await settled([*living, dead], [2, 2, 2], keys)
        await crash(database, dead)
        await settled(living, [3, 3], keys)
    assert database.execute("SELECT COUNT(*) FROM rowmq_subscribers") == [(0,)]


async def test_no_partition_is_orphaned_when_everybody_dies(mq: Any, database: Database) -> None:
    keys = await partitions(mq, 5)
    for _ in range(3):
        dead = await subscribe(mq)
        await settled([dead], [5], keys)
        await crash(database, dead)
    async with subscribe(mq) as sub:
        await settled([sub], [5], keys)
        assert len(database.execute("SELECT id FROM rowmq_subscribers")) == 1


async def test_one_who_comes_back_from_the_dead_gets_a_share_and_disturbs_nobody(
    mq: Any, database: Database
) -> None:
    keys = await partitions(mq, 4)
    async with subscribe(mq) as other, subscribe(mq) as sub:
        await settled([other, sub], [2, 2], keys)
        held = await take(other, 2)
        expire(database, sub)
        await eventually(lambda: len({*other.owned, *sub.owned}) == 4 and len(sub.owned) == 2)
        await settled([other, sub], [2, 2], keys)
        await other.ack(held)
        assert await lag(mq) == 2


@on_servers
async def test_a_lease_that_is_taken_while_its_taker_dies_is_not_orphaned(
    mq: Any, database: Database
) -> None:
    """A process may stop between the look that finds it alive and the commit."""
    dying = await subscribe(mq, lease_duration=1)
    await stop(dying)
    keys = await partitions(mq, 2)
    core = core_of(dying)
    assert core.member is not None
    await mq._run(partial(core.leases.adopt, "t", core.member.group_id))
    ids = [row[0] for row in database.execute("SELECT id FROM rowmq_partitions")]
    alive = f"SELECT 1 FROM rowmq_subscribers WHERE id = {core.member.subscriber_id}"
    async with mq.transaction() as tx:
        assert len(await mq._run(partial(core.leases.acquire, core.member, ids), tx)) == 2
        async with subscribe(mq):  # who finds it dead, and sweeps it, if that can be
            with contextlib.suppress(AssertionError):
                await eventually(lambda: not database.execute(alive), seconds=1.6)
    async with subscribe(mq) as sub:
        await settled([sub], [2], keys, seconds=5)


# --- what comes and goes -------------------------------------------------------------------------


async def test_new_partitions_are_found_also_while_nobody_polls(mq: Any) -> None:
    keys = await partitions(mq, 1)
    async with several(mq, 2) as subs:
        await settled(subs, [1, 0], keys)
        keys = await partitions(mq, 5)
        await settled(subs, [3, 2], keys)


async def test_a_partition_that_is_committed_late_is_found(mq: Any) -> None:
    """Ids of partitions rise, and are not committed in that order."""
    async with subscribe(mq, heartbeat_interval=0.3) as sub:
        async with mq.transaction() as tx:
            await tx.publish("t", "late", key="a")
            # Meanwhile others come, and are found, for longer than anybody keeps looking back.
            task = asyncio.create_task(mq.publish("t", "early", key="b"))
            await asyncio.sleep(0.4)
        await task
        assert set(payloads(await take(sub, 2))) == {"early", "late"}
        assert sub.owned == ["a", "b"]


async def test_an_idle_partition_is_released_and_taken_again_when_it_is_not(mq: Any) -> None:
    await partitions(mq, 2)
    async with subscribe(mq, idle_timeout=0.2) as sub:
        await sub.ack(await take(sub, 2))
        await publish(mq, 1, key="k001")  # which is not idle
        assert await mq.gc("t") == 2
        await eventually(lambda: sub.owned == ["k001"])
        await mq.publish("t", "again", key="k000")
        deliveries = await take(sub, 2)
        assert set(payloads(deliveries)) == {1, "again"}
        assert set(attempts(deliveries)) == {1}
        assert sub.owned == ["k000", "k001"]


async def test_idle_partitions_count_in_nobodys_share(mq: Any) -> None:
    await partitions(mq, 6)
    async with subscribe(mq, idle_timeout=0.1) as sub:
        await sub.ack(await take(sub, 6))
        await mq.gc("t")
        await eventually(lambda: sub.owned == [])
    await publish(mq, 1, key="k000")
    await publish(mq, 1, key="k005")
    async with several(mq, 2) as subs:
        await settled(subs, [1, 1], ["k000", "k005"])


async def test_a_partition_that_is_empty_for_a_moment_is_kept(mq: Any) -> None:
    await partitions(mq, 1)
    async with subscribe(mq, idle_timeout=30) as sub:
        await sub.ack(await take(sub, 1))
        await mq.gc("t")
        due_at = core_of(sub).sharing.due_at
        await eventually(lambda: core_of(sub).sharing.due_at > due_at)
        assert sub.owned == ["k000"]


# --- draining ------------------------------------------------------------------------------------


async def test_a_rebalance_redelivers_nothing_that_is_in_flight(mq: Any) -> None:
    await partitions(mq, 4, each=3)
    async with subscribe(mq) as old:
        held = await take(old, 8)  # two of each
        assert Counter(d.message.key for d in held) == dict.fromkeys(old.owned, 2)
        async with subscribe(mq) as new:
            due_at = core_of(old).sharing.due_at
            await eventually(lambda: core_of(old).sharing.due_at > due_at)
            assert await nothing_comes(new)  # all are busy
            assert not any(d.lost for d in held)
            await old.ack(held)  # nothing was lost
            await eventually(lambda: shares([old, new]) == [2, 2])
            rest = await take(old, 2) + await take(new, 2)
            assert payloads(rest) == [2, 2, 2, 2]
            assert attempts(rest) == [1, 1, 1, 1]
            await old.ack(rest[:2])
            await new.ack(rest[2:])
    assert await lag(mq) == 0


async def test_a_rebalance_redelivers_nothing_that_was_extended_elsewhere(mq: Any) -> None:
    """The owner is not told at once of what other processes do by receipts."""
    store = plain(mq)._store

    async def settle(claims: list[Any], how: str, seconds: float | None = None) -> list[Any]:
        wanted = wanted_of(claims, how, seconds=seconds)
        outcomes: list[Any] = await mq._run(partial(settle_claims, store, "t", "g", wanted))
        return outcomes

    keys = await partitions(mq, 2)
    async with subscribe(mq, visibility=0.3) as first:
        claims = [claim_of(plain(delivery)) for delivery in await take(first, 2)]
        assert await settle(claims, "extend", 60) == [None, None]
        await asyncio.sleep(0.4)
        async with subscribe(mq) as second:
            due_at = core_of(first).sharing.due_at
            await eventually(lambda: core_of(first).sharing.due_at > due_at)
            assert await nothing_comes(second)
            assert await settle(claims, "ack") == [None, None]
            await settled([first, second], [1, 1], keys)
    assert await lag(mq) == 0


async def test_what_is_given_up_gets_nothing_new(mq: Any) -> None:
    await partitions(mq, 2, each=5)
    async with subscribe(mq) as old:
        held = await take(old, 2)
        assert len({d.message.key for d in held}) == 2
        async with subscribe(mq) as new:
            drained = await eventually(
                lambda: [h for h in core_of(old).holdings.values() if h.draining]
            )
            (key,) = [holding.key for holding in drained]
            more = await take(old, 4)
            assert {d.message.key for d in more} == {d.message.key for d in held} - {key}
            await next(d for d in held if d.message.key == key).ack()
            deliveries = await take(new, 4)
            assert {d.message.key for d in deliveries} == {key}
            assert payloads(deliveries) == [1, 2, 3, 4]


async def test_who_is_asked_to_give_up_may_keep_it_if_the_newcomer_leaves(mq: Any) -> None:
    await partitions(mq, 2, each=3)
    async with subscribe(mq) as old:
        held = await take(old, 2)
        new = await subscribe(mq)
        await eventually(lambda: [h for h in core_of(old).holdings.values() if h.draining])
        await new.close()
        assert len(await take(old, 4)) == 4
        assert not any(d.lost for d in held)


async def test_a_waiting_retry_moves_with_its_partition(mq: Any) -> None:
    await partitions(mq, 2)
    async with subscribe(mq) as old:
        for d in await take(old, 2):
            await d.nack(delay=0.8, error="later")
        nacked_at = time.monotonic()
        async with subscribe(mq) as new:
            await eventually(lambda: shares([old, new]) == [1, 1])
            (d,) = await take(new, 1)
            assert time.monotonic() - nacked_at > 0.6
            assert d.attempt == 2


async def test_a_handler_that_never_settles_does_not_hold_a_rebalance_up_for_ever(mq: Any) -> None:
    keys = await partitions(mq, 2)
    async with subscribe(mq, visibility=0.3) as old:
        held = await take(old, 2)
        async with subscribe(mq) as new:
            await settled([old, new], [1, 1], keys)
            (d,) = await take(new, 1)
            assert d.attempt == 2
            stale = next(h for h in held if h.message.key == d.message.key)
            with pytest.raises(errors.StaleLease):
                await stale.ack()


async def test_while_subscribers_come_and_go_every_message_is_handled_once_and_in_order(
    mq: Any,
) -> None:
    keys = await partitions(mq, 6, each=25)
    seen: defaultdict[str, list[int]] = defaultdict(list)
    tries: list[int] = []

    async def work(sub: Any, enough: int) -> None:
        while len(tries) < min(enough, 150):
            deliveries = await sub.poll(max=4, timeout=0.02)
            for d in deliveries:
                seen[d.message.key].append(d.message.payload)
                tries.append(d.attempt)
            await sub.ack(deliveries)

    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks, subscribe(mq) as stays:
        staying = tasks.create_task(work(stays, 150))
        for _ in range(3):
            async with subscribe(mq) as guest:
                await work(guest, len(tries) + 25)
        await staying
    assert set(tries) == {1}
    assert seen == {key: list(range(25)) for key in keys}
    assert await lag(mq) == 0


@on_one
async def test_who_waited_for_partitions_looks_again_as_soon_as_ever(mq: Any) -> None:
    """What it had to wait for others says nothing about what a look costs."""
    await partitions(mq, 3)
    waited = []

    def wait(statement: Statement) -> None:
        if statement.name == "leases.acquire":
            waited.append(statement)
            time.sleep(0.3)

    mq._driver.observers.append(wait)
    async with subscribe(mq, discovery_interval=0.5) as sub:
        sharing = core_of(sub).sharing
        await eventually(lambda: len(sub.owned) == 3 and sharing.due_at > sharing._last_at)
        assert waited
        assert sharing.due_at - sharing._last_at < 10 * 0.5
