"""Limits of a queue: how many of its jobs are in flight, how many are started in a time, pauses.

They hold for all clients together, exactly.
"""

import asyncio
import math
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import rowmq
from rowmq import errors
from tests.choices import async_only
from tests.conftest import Connect
from tests.consuming import eventually
from tests.databases import Database

ROOT = Path(__file__).parents[2]

CONFIRM = "Yes, please, I know what I'm doing!"

NOW = rowmq.Constant(interval=0)


def payloads(jobs: Sequence[Any]) -> list[Any]:
    return [job.payload for job in jobs]


async def numbers(q: Any) -> dict[str, int]:
    return {state: count for state, count in (await q.counts()).items() if count}


def starts(database: Database) -> list[int]:
    """When completed jobs were claimed, in microseconds by the database's clock."""
    rows = database.execute("SELECT started_at FROM rowmq_completed ORDER BY started_at")
    return [moment for (moment,) in rows]


def most_at_once(database: Database) -> int:
    """How many completed jobs were claimed and not yet settled at the same time, at most."""
    rows = database.execute("SELECT started_at, finished_at FROM rowmq_completed")
    # Of two things in the same moment, the end comes first: SQLite's clock has milliseconds.
    moves = sorted([(start, 1) for start, _ in rows] + [(end, -1) for _, end in rows])
    most = count = 0
    for _, change in moves:
        count += change
        most = max(most, count)
    return most


# --- in flight -----------------------------------------------------------------------------------


async def test_no_more_are_in_flight_than_the_limit(mq: Any) -> None:
    q = mq.queue("q")
    await q.configure(max_in_flight=3)
    await q.put_many(range(10))
    first = await q.try_poll_many(2)
    second = await q.try_poll_many(5)
    assert (payloads(first), payloads(second)) == ([0, 1], [2])
    assert await q.try_poll_many(5) == []
    assert await q.try_poll() is None
    await second[0].ack()
    assert payloads(await q.try_poll_many(5)) == [3]


async def test_a_settle_gives_the_permit_back(mq: Any) -> None:
    for way in ("ack", "nack", "reject", "release", "many"):
        q = mq.queue(way, retry=NOW)
        await q.configure(max_in_flight=2)
        await q.put_many(range(6))
        for _ in range(3):
            jobs = await q.try_poll_many(5)
            assert len(jobs) == 2
            assert await q.try_poll() is None
            if way == "many":
                await q.ack(jobs)
            else:
                for job in jobs:
                    await getattr(job, way)()


@async_only
async def test_a_settle_in_a_transaction_gives_the_permit_back_if_it_commits(mq: Any) -> None:
    q = mq.queue("q")
    await q.configure(max_in_flight=1)
    await q.put_many([1, 2])
    job = await q.try_poll()
    with suppress(ZeroDivisionError):
        async with mq.transaction() as tx:
            await job.ack(connection=tx)
            raise ZeroDivisionError
    assert await q.try_poll() is None
    async with mq.transaction() as tx:
        await job.ack(connection=tx)
    assert (await q.try_poll()).payload == 2


@async_only
async def test_a_lock_that_expires_gives_its_permits_back(
    connect: Connect, database: Database
) -> None:
    mq, other = await connect(database.url), await connect(database.url)
    q = mq.queue("q")
    await q.configure(max_in_flight=2)
    await q.put_many(range(4))
    lost = await q.try_poll_many(2, lock_timeout=0.1)
    assert payloads(lost) == [0, 1]
    assert await other.queue("q").try_poll() is None

    async def some() -> list[Any]:
        jobs: list[Any] = await other.queue("q").try_poll_many(9)
        return jobs

    again = await eventually(some)
    assert len(again) == 2
    # What is late takes nothing from those who have the permits now.
    for job in lost:
        with suppress(errors.StaleLease):
            await job.ack()
    assert await q.try_poll() is None
    await again[0].ack()
    assert len(await q.try_poll_many(9)) == 1


@async_only
async def test_an_extended_lock_keeps_its_permit(mq: Any) -> None:
    q = mq.queue("q")
    await q.configure(max_in_flight=1)
    await q.put_many(range(2))
    job = await q.try_poll(lock_timeout=0.1)
    await job.extend(60)
    await asyncio.sleep(0.15)
    assert await q.try_poll() is None
    await job.ack()
    assert (await q.try_poll()).payload == 1


@async_only
async def test_an_extension_never_shortens_what_a_permit_is_for(mq: Any) -> None:
    """A lock lasts at least as long as asked for: so does the permit."""
    q = mq.queue("q", lock_timeout=60)
    await q.configure(max_in_flight=1)
    await q.put_many(range(2))
    job = await q.try_poll()
    await job.extend(0.01)
    await asyncio.sleep(0.05)
    assert await q.try_poll() is None
    await job.ack()


@async_only
async def test_extending_one_job_keeps_the_permits_of_all_in_its_lock(mq: Any) -> None:
    free, limited = mq.queue("free"), mq.queue("limited")
    await limited.configure(max_in_flight=1)
    await free.put("a")
    await limited.put_many(["b", "c"])
    jobs = await mq.poller(free, limited).try_poll_many(5, lock_timeout=0.1)
    assert sorted(payloads(jobs)) == ["a", "b"]
    (unlimited,) = [job for job in jobs if job.payload == "a"]
    await unlimited.extend(60)
    await asyncio.sleep(0.15)
    assert await limited.try_poll() is None
    for job in jobs:
        await job.ack()
    assert (await limited.try_poll()).payload == "c"


@async_only
@pytest.mark.parametrize("way", ["drop", "update", "drop all"])
async def test_a_claimed_job_that_is_taken_away_gives_its_permit_back(mq: Any, way: str) -> None:
    """When its worker is told so at the latest, and not only when the lock's time is over."""
    q = mq.queue("q", lock_timeout=60)
    await q.configure(max_in_flight=1)
    await q.put("old", key="k")
    job = await q.try_poll()
    if way == "drop":
        assert await q.drop("k")
    elif way == "update":
        await q.offer_or_update("k", "new", None)
    else:
        assert await q.drop_all(CONFIRM) == 1
    with pytest.raises(errors.StaleLease):
        await job.ack()
    await q.put("next", priority=1)
    assert (await eventually(q.try_poll, seconds=0.2)).payload == "next"


@async_only
async def test_a_killed_process_gives_its_permits_back_when_its_lock_is_over(
    mq: Any, database: Database
) -> None:
    q = mq.queue("q")
    await q.configure(max_in_flight=2)
    await q.put_many(range(4))
    module = [sys.executable, "-m", "tests.processes.taker", database.url, "q", "9", "0.2"]
    process = await asyncio.create_subprocess_exec(
        *module, stdout=asyncio.subprocess.PIPE, cwd=ROOT
    )
    try:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"2\n"
    finally:
        process.kill()
        await process.wait()
    taken: list[Any] = []

    async def both() -> bool:
        taken.extend(await q.try_poll_many(9))
        return len(taken) == 2

    await eventually(both)
    assert await q.try_poll() is None


async def test_a_held_job_has_a_permit(mq: Any) -> None:
    q = mq.queue("q")
    await q.configure(max_in_flight=2)
    await q.put_many(range(9))
    for _ in range(2):
        with suppress(ZeroDivisionError):
            async with q.hold(max_failures=9), q.hold():
                assert await q.try_poll() is None
                async with q.hold() as three:
                    assert three is None
                raise ZeroDivisionError
        async with q.hold(max_failures=9), q.hold():
            assert await q.try_poll() is None
    jobs = await q.try_poll_many(5)
    assert len(jobs) == 2
    async with q.hold() as job:
        assert job is None


async def test_sixteen_workers_of_two_clients_reach_the_limit_and_never_pass_it(
    connect: Connect, database: Database
) -> None:
    limit, count = 5, 60
    clients = [await connect(database.url, pool_size=8) for _ in range(2)]
    q = clients[0].queue("q")
    await q.configure(max_in_flight=limit)
    await q.put_many(range(count))
    running: set[int] = set()
    most: list[int] = []
    reached = asyncio.Event()
    done: list[int] = []

    async def work(mq: Any, number: int) -> None:
        mine = mq.queue("q")
        while len(done) < count:
            job = await mine.try_poll()
            if job is None:
                await asyncio.sleep(0.005)
                continue
            running.add(job.id)
            most.append(len(running))
            if len(running) >= limit:
                reached.set()
            await asyncio.wait_for(reached.wait(), 10)
            await asyncio.sleep(0.002 * (number % 3))
            running.discard(job.id)  # before the permit can be another's
            await job.ack()
            done.append(job.payload)

    await asyncio.gather(*(work(mq, n) for mq in clients for n in range(8)))
    assert sorted(done) == list(range(count))
    assert max(most) == limit
    assert most_at_once(database) == limit


@async_only
async def test_those_who_hold_and_those_who_poll_share_a_limit(
    connect: Connect, database: Database
) -> None:
    limit, count = 3, 24
    mq = await connect(database.url)
    q = mq.queue("q")
    await q.configure(max_in_flight=limit)
    await q.put_many(range(count))
    running: set[int] = set()
    most: list[int] = []
    done: list[int] = []

    async def run(job: Any) -> None:
        running.add(job.id)
        most.append(len(running))
        await asyncio.sleep(0.002)
        running.discard(job.id)
        done.append(job.payload)

    async def poll() -> None:
        while len(done) < count:
            if (job := await q.try_poll()) is not None:
                await run(job)
                await job.ack()
            await asyncio.sleep(0.002)

    async def hold() -> None:
        while len(done) < count:
            async with q.hold() as job:
                if job is not None:
                    await run(job)
            await asyncio.sleep(0.002)

    await asyncio.wait_for(asyncio.gather(*(work() for _ in range(3) for work in (poll, hold))), 30)
    assert sorted(done) == list(range(count))
    assert max(most) <= limit
    assert await numbers(q) == {"completed": count}


@async_only
async def test_a_limit_may_be_changed_and_removed(mq: Any) -> None:
    q = mq.queue("q")
    await q.put_many(range(40))
    unlimited = await q.try_poll_many(2)  # these have no permit
    await q.configure(max_in_flight=4)
    jobs: list[Any] = []

    async def until_nothing_comes() -> int:
        while (job := await q.try_poll()) is not None:
            jobs.append(job)
        return len(jobs)

    assert await until_nothing_comes() == 4
    await q.configure(max_in_flight=6)
    assert await until_nothing_comes() == 6
    await q.configure(max_in_flight=3)
    assert await until_nothing_comes() == 6
    await q.ack(jobs[:3])
    assert await until_nothing_comes() == 6
    await q.ack(jobs[3:5])
    assert await until_nothing_comes() == 8
    await q.ack([*jobs[5:], *unlimited])
    assert await until_nothing_comes() == 11
    await q.configure(max_in_flight=math.inf)
    assert len(await q.try_poll_many(100)) == 40 - 2 - 11
    (info,) = await mq.queues()
    assert (info.max_in_flight, info.rate) == (None, None)


@async_only
async def test_a_change_is_known_to_other_clients_within_two_seconds(
    connect: Connect, database: Database
) -> None:
    """Also to those who are kept busy, and look only now and then."""
    mq, other = await connect(database.url), await connect(database.url)
    q = mq.queue("q")
    await q.put_many(range(50))
    assert (await q.try_poll()).payload == 0
    assert (await q.try_poll()).payload == 1
    await other.queue("q").configure(max_in_flight=1)
    deadline = time.monotonic() + 2
    while await q.try_poll() is not None:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)
    await other.queue("q").configure(max_in_flight=math.inf)
    await eventually(q.try_poll, seconds=2)


@async_only
async def test_a_limit_that_cannot_be_kept_is_refused(mq: Any) -> None:
    q = mq.queue("q")
    for limit in (0, -1, 1.5, "3", 10_001, True):
        for option in ("max_in_flight", "rate"):
            with pytest.raises(errors.InvalidOption, match=option):
                await q.configure(**{option: limit})
    assert await mq.queues() == []


# --- rate ----------------------------------------------------------------------------------------


def windows(moments: Sequence[int], count: int) -> list[int]:
    """How long it took from each start to the one that is `count` later, in microseconds."""
    return [late - early for early, late in zip(moments, moments[count:], strict=False)]


@async_only
async def test_a_rate_is_kept_in_every_window(connect: Connect, database: Database) -> None:
    """Of eight workers of two clients, as fast as they can: measured by the database's clock."""
    rate, period, count = 5, 0.15, 25
    clients = [await connect(database.url, pool_size=4) for _ in range(2)]
    q = clients[0].queue("q")
    await q.configure(rate=rate, rate_period=period)
    await q.put_many(range(count))
    done: list[int] = []

    async def work(mq: Any) -> None:
        mine = mq.queue("q")
        while len(done) < count:
            for job in await mine.try_poll_many(2):
                await job.ack()
                done.append(job.payload)
            await asyncio.sleep(0.002)

    await asyncio.gather(*(work(mq) for mq in clients for _ in range(4)))
    assert sorted(done) == list(range(count))
    moments = starts(database)
    assert min(windows(moments, rate)) >= period * 1_000_000
    # And it is reached: the permits are used again soon after they are free.
    assert moments[-1] - moments[0] < 4 * (period + 0.5) * 1_000_000


@async_only
async def test_a_rate_is_of_starts_however_they_end(mq: Any) -> None:
    q = mq.queue("q", retry=NOW)
    await q.configure(rate=3, rate_period=60)
    await q.put_many(range(5))
    for job, settle in zip(await q.try_poll_many(9), ("ack", "nack", "release"), strict=True):
        await getattr(job, settle)()
    assert await q.try_poll() is None
    assert (await numbers(q))["completed"] == 1


@async_only
async def test_a_rate_counts_what_is_held(mq: Any) -> None:
    q = mq.queue("q")
    await q.configure(rate=2, rate_period=60)
    await q.put_many(range(5))
    for n in range(2):
        async with q.hold() as job:
            assert job.payload == n
    async with q.hold() as job:
        assert job is None
    assert await q.try_poll() is None


@async_only
async def test_a_rate_counts_what_was_held_in_vain(mq: Any) -> None:
    """A job that fails at once is not tried again as fast as it can."""
    q = mq.queue("q")
    await q.configure(rate=2, rate_period=60)
    await q.put_many(range(5))
    for _ in range(2):
        with suppress(ZeroDivisionError):
            async with q.hold(max_failures=9):
                raise ZeroDivisionError
    async with q.hold() as job:
        assert job is None


@async_only
async def test_polling_goes_on_when_the_rate_allows_it(mq: Any) -> None:
    q = mq.queue("q")
    await q.configure(rate=1, rate_period=0.2)
    await q.put_many([1, 2, 3])
    got = [(await q.poll(timeout=10)).payload for _ in range(3)]
    assert got == [1, 2, 3]


@async_only
async def test_both_limits_hold_together(connect: Connect, database: Database) -> None:
    mq, other = await connect(database.url), await connect(database.url)
    q = mq.queue("q")
    await q.configure(max_in_flight=2, rate=3, rate_period=60)
    await q.put_many(range(9))
    jobs = await q.try_poll_many(9)
    assert payloads(jobs) == [0, 1]  # by those in flight
    await q.ack(jobs)
    jobs = await other.queue("q").try_poll_many(9)
    assert payloads(jobs) == [2]  # by the rate
    assert await q.try_poll() is None
    await q.configure(rate=math.inf)
    assert payloads(await q.try_poll_many(9)) == [3]
    await q.configure(max_in_flight=math.inf)
    assert payloads(await q.try_poll_many(9)) == [4, 5, 6, 7, 8]


@async_only
async def test_a_rate_may_be_changed(mq: Any) -> None:
    q = mq.queue("q")
    await q.configure(rate=2, rate_period=60)
    await q.put_many(range(9))
    assert payloads(await q.try_poll_many(9)) == [0, 1]
    await q.configure(rate=3)
    (info,) = await mq.queues()
    assert (info.rate, info.rate_period.total_seconds()) == (3, 1)
    await q.configure(rate=3, rate_period=60)
    assert payloads(await q.try_poll_many(9)) == [2]
    await q.configure(rate=1, rate_period=60)
    assert await q.try_poll_many(9) == []


# --- pauses --------------------------------------------------------------------------------------


@async_only
async def test_a_pause_stops_all_clients_within_two_seconds(
    connect: Connect, database: Database
) -> None:
    mq, other = await connect(database.url), await connect(database.url)
    q = mq.queue("q")
    await q.put_many(range(100))
    first = await q.try_poll()
    assert (await q.try_poll()).payload == 1
    await other.queue("q").pause()
    assert await other.queue("q").try_poll() is None
    began = time.monotonic()
    while await q.try_poll() is not None:
        assert time.monotonic() - began < 2
        await asyncio.sleep(0.05)
    assert await q.poll(timeout=0.05) is None
    await first.ack()  # what is being worked on may be finished
    await q.put("while it is paused")
    assert [info.paused for info in await mq.queues()] == [True]
    waiting = asyncio.create_task(q.poll(timeout=10))
    await asyncio.sleep(0.02)
    began = time.monotonic()
    await other.queue("q").resume()
    assert await waiting is not None
    assert time.monotonic() - began < 2


@async_only
async def test_a_pause_stops_no_other_queue(mq: Any) -> None:
    a, b = mq.queue("a"), mq.queue("b")
    await a.put("a")
    await b.put("b")
    await a.pause()
    poller = mq.poller(a, "b")
    assert payloads(await poller.try_poll_many(9)) == ["b"]
    assert await poller.try_poll() is None
    await a.resume()
    assert payloads(await poller.try_poll_many(9)) == ["a"]


# --- several queues ------------------------------------------------------------------------------


async def test_a_poller_keeps_the_limits_of_each_queue(
    connect: Connect, database: Database
) -> None:
    mq, other = await connect(database.url), await connect(database.url)
    names = ("one", "three", "all", "rated")
    for name in names:
        await mq.queue(name).put_many([name] * 5)
    await mq.queue("one").configure(max_in_flight=1)
    await mq.queue("three").configure(max_in_flight=3)
    await mq.queue("rated").configure(rate=2, rate_period=60)
    poller, rival = mq.poller(*names), other.poller(*names)
    jobs = [*await poller.try_poll_many(4), *await rival.try_poll_many(50)]
    found = {name: payloads(jobs).count(name) for name in names}
    assert found == {"one": 1, "three": 3, "all": 5, "rated": 2}
    assert await poller.try_poll_many(50) == []
    await poller.ack([job for job in jobs if job.payload in ("one", "rated")])
    assert payloads(await rival.try_poll_many(50)) == ["one"]


@async_only
async def test_a_queue_at_its_limit_holds_up_no_other(mq: Any) -> None:
    """Though its jobs come first, by priority and by age."""
    full, free = mq.queue("full"), mq.queue("free")
    await full.configure(max_in_flight=1)
    await full.put_many(range(5), priority=5)
    await free.put_many(["a", "b", "c"])
    poller = mq.poller(full, free)
    got = [(await poller.try_poll()).payload for _ in range(4)]
    assert got == [0, "a", "b", "c"]
    assert await poller.try_poll() is None


@async_only
async def test_priorities_hold_within_a_limit(mq: Any) -> None:
    q = mq.queue("q")
    await q.configure(max_in_flight=2)
    for priority in (0, 5, 3):
        await q.put(priority, priority=priority)
    assert payloads(await q.try_poll_many(9)) == [5, 3]


@async_only
async def test_a_poll_wakes_up_when_the_rate_allows_the_next_job(mq: Any) -> None:
    """It knows when: where puts wake it, it would sleep for a second otherwise."""
    q = mq.queue("q")
    await q.configure(rate=1, rate_period=0.2)
    await q.put_many(range(6))
    began = time.monotonic()
    jobs = [await q.poll(timeout=10) for _ in range(6)]
    assert [job.payload for job in jobs] == list(range(6))
    assert 1.0 <= time.monotonic() - began < 5.0
