"""Large groups: thousands of partitions, and many subscribers who share them without a leader."""

import asyncio
import time
from collections import Counter
from functools import partial
from typing import Any

import pytest

import rowmq
from rowmq import Message
from rowmq.policy import fair_share
from rowmq.store.statement import Statement
from tests.choices import async_only
from tests.conftest import Connect
from tests.consuming import eventually, statements
from tests.databases import Database

on_postgres = pytest.mark.parametrize("database", ["postgres"], indirect=True)

BEAT_SECONDS = 0.5
PATIENCE_SECONDS = 120.0  # the machine may be busy with other tests

FREE = "SELECT partition_id FROM rowmq_offsets WHERE leased_by = 0 ORDER BY partition_id"


async def publish(mq: Any, partitions: int) -> None:
    """A message to each of so many partitions."""
    for first in range(0, partitions, 1_000):
        keys = range(first, min(first + 1_000, partitions))
        await mq.publish_many("orders", [Message(payload=0, key=f"k{key}") for key in keys])


async def subscribe(mq: Any, count: int) -> list[Any]:
    """Subscribers that all begin at the same moment."""
    options = {"group": "billing", "discovery_interval": 0.2, "idle_timeout": 600}
    options |= {"lease_duration": 30, "heartbeat_interval": BEAT_SECONDS}
    subs = [mq.subscribe("orders", **options) for _ in range(count)]
    await asyncio.gather(*(started(sub) for sub in subs))
    return subs


async def started(sub: Any) -> Any:
    return await sub


def shares(subs: list[Any]) -> list[int]:
    return sorted((len(sub.owned) for sub in subs), reverse=True)


async def settled(subs: list[Any], partitions: int) -> None:
    """Wait until everybody has a fair share."""
    fair = [fair_share(partitions, len(subs), rank) for rank in range(len(subs))]
    await eventually(lambda: shares(subs) == fair, seconds=PATIENCE_SECONDS)
    assert len({key for sub in subs for key in sub.owned}) == partitions


class Beats:
    """The heartbeats of a client's subscribers, as they are sent."""

    def __init__(self, mq: Any) -> None:
        self.by_subscriber: Counter[int] = Counter()
        mq._driver.observers.append(self.note)

    def note(self, statement: Statement) -> None:
        if statement.name == "leases.beat":
            self.by_subscriber[statement.params[1]] += 1


@async_only
async def test_ten_thousand_partitions_are_shared_by_twenty_and_then_by_fifteen(
    connect: Connect, empty_database: Database
) -> None:
    mq = await connect(empty_database.url, pool_timeout=PATIENCE_SECONDS)
    await mq.migrate()
    await publish(mq, 10_000)
    beats = Beats(mq)
    subs = await subscribe(mq, 20)
    await settled(subs, 10_000)
    assert shares(subs) == [500] * 20

    # Once they are, nobody writes anything but one row each per interval, to say it is alive.
    beats.by_subscriber.clear()
    began = time.monotonic()
    with statements(mq) as seen:
        await eventually(lambda: beats.by_subscriber.total() >= 60)
    intervals = (time.monotonic() - began) / BEAT_SECONDS
    assert len(beats.by_subscriber) == 20
    assert max(beats.by_subscriber.values()) <= intervals + 1
    moves = {"leases.acquire", "leases.release", "leases.advance"}
    assert moves.isdisjoint(statement.name for statement in seen)

    await asyncio.gather(*(sub.close() for sub in subs[:5]))
    await settled(subs[5:], 10_000)
    assert shares(subs[5:]) == [667] * 10 + [666] * 5


@on_postgres
@async_only
async def test_a_heartbeat_writes_one_row_whatever_its_subscriber_owns(
    empty_database: Database, connect: Connect
) -> None:
    """By the database's own count, which is whole when the connections have ended."""
    mq = await connect(empty_database.url)
    await mq.migrate()
    await publish(mq, 1_000)
    beats = Beats(mq)
    await settled(await subscribe(mq, 20), 1_000)
    await eventually(lambda: min(beats.by_subscriber.values(), default=0) >= 2)
    await mq.close()

    def written() -> Any:
        return empty_database.execute(
            "SELECT n_tup_ins, n_tup_upd, n_tup_del FROM pg_stat_user_tables "
            "WHERE relname = 'rowmq_subscribers'"
        )

    await eventually(lambda: written() == [(20, beats.by_subscriber.total(), 20)])


async def test_one_slow_look_around_does_not_keep_others_from_their_share(
    mq: Any, database: Database, connect: Connect
) -> None:
    """Whatever made it slow: a lock, a pause of the process, many partitions to take."""
    await publish(mq, 10)
    slow = {"leases.survey"}

    def delay(statement: Statement) -> None:
        if statement.name in slow:
            slow.clear()
            time.sleep(1)

    mq._driver.observers.append(delay)
    options = {"group": "billing", "discovery_interval": 0.05, "lease_duration": 3}
    async with mq.subscribe("orders", **options) as first:
        assert len(first.owned) == 10
        other = await connect(database.url)
        async with other.subscribe("orders", **options) as second:
            await eventually(lambda: len(second.owned) == 5, seconds=10)


async def test_what_others_take_during_a_look_around_is_not_missed(
    mq: Any, database: Database
) -> None:
    """What is leased and what is free must add up to all there is, also while it changes hands;
    else a share comes out too small, and partitions are given up for nothing.
    """
    await publish(mq, 12)
    with rowmq.connect(database.url) as other:
        leases, run = other._store.leases, other._driver.run
        register = partial(leases.register, "orders", "billing", start="earliest", lease_us=10**9)
        rivals = [run(partial(register, name=f"rival-{number}")) for number in range(2)]
        async with mq.subscribe("orders", group="billing", discovery_interval=600) as sub:
            assert len(sub.owned) == 4
            missing = rivals.copy()
            seen: list[str] = []

            def take(statement: Statement) -> None:
                seen.append(statement.name)
                last = statement.name == "leases.list_free" and "leases.adopt" in seen
                while last and missing:
                    rows = database.execute(FREE)
                    taken = run(partial(leases.acquire, missing.pop(), [id for (id,) in rows][:4]))
                    assert len(taken) == 4

            mq._driver.observers.append(take)
            sub._core.sharing.due_at = 0.0
            await sub.poll(max=1, timeout=0)
            assert not missing
            assert len(sub.owned) == 4
