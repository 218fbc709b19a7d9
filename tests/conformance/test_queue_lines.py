"""Lines: the jobs of one ordering key, one after the other."""

import asyncio
import random
from collections import defaultdict
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest

import rowmq
from rowmq import Outcome, State, errors
from tests import clocks
from tests.choices import async_only, on_servers, on_sqlite
from tests.conftest import Connect
from tests.consuming import eventually
from tests.databases import Database

NOW = rowmq.Constant(interval=0)

CONFIRM = "Yes, please, I know what I'm doing!"


async def numbers(q: Any) -> dict[str, int]:
    return {state: count for state, count in (await q.counts()).items() if count}


def payloads(jobs: list[Any]) -> list[Any]:
    return [job.payload for job in jobs]


async def done_in_order(q: Any, **options: Any) -> list[Any]:
    """What comes one by one, each acked before the next is asked for."""
    found = []
    while (job := await q.try_poll(**options)) is not None:
        found.append(job.payload)
        assert await q.try_poll() is None  # one at a time
        await job.ack()
    return found


def lines(database: Database) -> dict[str, tuple[int, int]]:
    """By ordering key, of lines that somebody is in: whether it has a head, and how many wait."""
    waiting: dict[Any, int] = dict(
        database.execute("SELECT ordering_key, COUNT(*) FROM rowmq_waiting GROUP BY ordering_key")
    )
    heads = database.execute("SELECT ordering_key, head_id FROM rowmq_lines")
    found = {key: (int(head > 0), waiting.pop(key, 0)) for key, head in heads}
    found |= {key: (0, count) for key, count in waiting.items()}
    return {
        key.decode() if isinstance(key, bytes) else key: line
        for key, line in found.items()
        if line != (0, 0)
    }


# --- one at a time, in order ---------------------------------------------------------------------


async def test_one_of_a_line_is_in_flight_at_a_time(mq: Any, database: Database) -> None:
    q = mq.queue("q")
    for n in (1, 2, 3):
        await q.put(n, ordering_key="a")
    await q.put(4, ordering_key="b")
    await q.put(5)
    first = await q.try_poll_many(99)
    assert [(job.payload, job.ordering_key) for job in first] == [(1, "a"), (4, "b"), (5, None)]
    assert await q.try_poll_many(99) == []
    assert await numbers(q) == {"processing": 3, "pending": 2}
    await first[1].ack()
    assert await q.try_poll() is None
    await first[0].ack()
    assert await done_in_order(q) == [2, 3]
    await first[2].ack()
    assert await numbers(q) == {"completed": 5}
    assert lines(database) == {}


@async_only
async def test_many_are_put_into_a_line_in_their_order(mq: Any) -> None:
    q = mq.queue("q")
    await q.put(0, ordering_key="a")
    jobs = await q.put_many(range(1, 250), ordering_key="a")
    assert {job.ordering_key for job in jobs} == {"a"}
    for n in range(12):
        job = await q.try_poll()
        assert job.payload == n
        await job.ack()
    assert await numbers(q) == {"completed": 12, "pending": 238}


@async_only
async def test_lines_of_different_queues_have_nothing_to_do_with_each_other(mq: Any) -> None:
    one, two = mq.queue("one"), mq.queue("two")
    for q in (one, two):
        await q.put_many([q.name, "later"], ordering_key="a")
    poller = mq.poller(one, two)
    jobs = await poller.try_poll_many(9)
    assert sorted(payloads(jobs)) == ["one", "two"]
    await poller.ack(jobs)
    assert payloads(await poller.try_poll_many(9)) == ["later", "later"]


@async_only
async def test_jobs_of_different_kinds_share_a_line(mq: Any) -> None:
    texts, counts = mq.queue("q", type=str), mq.queue("q", type=int)
    await texts.put("first", ordering_key="a")
    await counts.put(2, ordering_key="a")
    await texts.put("third", ordering_key="a")
    assert await counts.try_poll() is None
    assert await done_in_order(mq.queue("q")) == ["first", 2, "third"]


@async_only
async def test_ordering_keys_are_told_apart_byte_by_byte(mq: Any) -> None:
    q = mq.queue("q")
    keys = ["a", "A", "a ", " ", "ä", "ключ 😀", "x" * 200]
    for key in keys:
        await q.put_many([(key, 1), (key, 2)], ordering_key=key)
    for n in (1, 2):
        jobs = await q.try_poll_many(99)
        assert sorted(payloads(jobs)) == sorted([key, n] for key in keys)
        assert {job.payload[0]: job.ordering_key for job in jobs} == {key: key for key in keys}
        await q.ack(jobs)


# --- put by several clients -----------------------------------------------------------------------


async def with_falling_ids(clients: list[Any]) -> list[Any]:
    """A queue to each of the clients, the first of which has the highest ids."""
    queues = [client.queue("q") for client in clients]
    for q in reversed(queues):
        await q.put("takes a block of ids")
    await queues[0].ack(await queues[0].try_poll_many(99))
    return queues


@async_only
async def test_a_line_is_in_the_order_of_puts_of_several_clients(
    connect: Connect, database: Database
) -> None:
    queues = await with_falling_ids([await connect(database.url) for _ in range(3)])
    for n in range(24):
        await queues[n % 3].put(n, ordering_key="a")
    assert await done_in_order(queues[0]) == list(range(24))


@async_only
@on_sqlite
async def test_a_line_is_in_the_order_of_puts_while_the_clock_stands_still(
    connect: Connect, database: Database, flavour: str
) -> None:
    """SQLite's stands still for a millisecond, in which many can put. Whoever was told that it is
    done is in front of those who then come: however they put, and where they update.
    """
    await connect(database.url)  # which makes the tables
    clock = clocks.Clock(database, datetime(2026, 6, 1, tzinfo=UTC))
    clients = [await clocks.connect(flavour, database.url) for _ in range(3)]
    queues = await with_falling_ids(clients)
    for n in range(6):
        for line, how in {"now": {}, "soon": {"delay": 1}, "high": {"priority": 7}}.items():
            await queues[n % 3].put(n, ordering_key=line, **how)
        await queues[n % 3].put_many([n, n + 0.5], ordering_key="many")
        async with clients[n % 3].transaction() as tx:
            await tx.queue("q").put(n, ordering_key="together")
            await tx.queue("q").put(n + 0.5, ordering_key="together")
    await queues[0].put("old", ordering_key="updated", key="k")
    await queues[1].put("first", ordering_key="updated")
    async with clients[2].transaction() as tx:
        offers = [
            rowmq.ScheduledMessage("new", 0, None),
            rowmq.ScheduledMessage("k", "second", None),
        ]
        told = await tx.queue("q").offer_batch(offers)
        assert [outcome for _, outcome in told] == [Outcome.CREATED, Outcome.UPDATED]
    clock.move(seconds=2)
    found = defaultdict(list)
    while jobs := await queues[0].try_poll_many(99):
        for job in jobs:
            found[job.ordering_key].append(job.payload)
        await queues[0].ack(jobs)
    assert found.pop("updated") == ["first", "second"]
    assert found.pop(None) == [0]
    assert found.pop("many") == found.pop("together") == [half / 2 for half in range(12)]
    assert found == {line: list(range(6)) for line in ("now", "soon", "high")}
    for client in clients:
        await client.close()
    clock.drop()


# --- what a head may do --------------------------------------------------------------------------


async def test_a_nacked_head_stays_the_head(mq: Any) -> None:
    q = mq.queue("q", retry=NOW)
    await q.put_many([1, 2, 3], ordering_key="a")
    for attempt in (1, 2, 3):
        job = await q.try_poll()
        assert (job.payload, job.attempt) == (1, attempt)
        await job.nack(error="again")
    assert await done_in_order(q) == [1, 2, 3]


@async_only
async def test_a_head_that_waits_for_its_next_attempt_holds_up_its_line(mq: Any) -> None:
    q = mq.queue("q")
    await q.put_many([1, 2], ordering_key="a")
    await q.put("other", ordering_key="b")
    job = await q.try_poll()
    await job.nack(delay=1)
    assert payloads(await q.try_poll_many(9)) == ["other"]
    # Nobody gets in front of one that was tried.
    await q.put(0, ordering_key="a", priority=9)
    assert await q.try_poll() is None
    again = await eventually(q.try_poll)
    assert (again.payload, again.attempt) == (1, 2)
    await again.ack()
    assert await done_in_order(q) == [0, 2]


@async_only
@pytest.mark.parametrize("way", ["ack", "reject", "last nack"])
async def test_whoever_is_finished_lets_the_next_one_up(mq: Any, way: str) -> None:
    q = mq.queue("q", retry=rowmq.NoRetry())
    await q.put_many([1, 2, 3], ordering_key="a")
    for n in (1, 2, 3):
        job = await q.try_poll()
        assert job.payload == n
        await (job.nack() if way == "last nack" else getattr(job, way)())
    assert await q.try_poll() is None
    state = "completed" if way == "ack" else "failed"
    assert await numbers(q) == {state: 3}


@async_only
async def test_a_released_head_is_the_first_again(mq: Any) -> None:
    q = mq.queue("q")
    await q.put_many([1, 2], ordering_key="a")
    job = await q.try_poll()
    await job.release()
    assert await done_in_order(q) == [1, 2]


@async_only
async def test_an_expired_head_is_the_first_again(connect: Connect, database: Database) -> None:
    mq, other = await connect(database.url), await connect(database.url)
    q = mq.queue("q")
    await q.put_many([1, 2], ordering_key="a")
    lost = await q.try_poll(lock_timeout=0.05)
    await q.put(0, ordering_key="a", priority=9)
    again = await eventually(other.queue("q").try_poll)
    assert (again.payload, again.deliveries) == (1, 2)
    with pytest.raises(errors.StaleLease):
        await lost.ack()
    assert await q.try_poll() is None  # what is stale moves nobody up
    await again.ack()
    assert await done_in_order(q) == [0, 2]


async def test_heads_of_many_lines_are_settled_together(mq: Any, database: Database) -> None:
    q = mq.queue("q", retry=NOW)
    for n in range(3):
        for key in "cab":
            await q.put(f"{key}{n}", ordering_key=key)
    jobs = await q.try_poll_many(9)
    assert payloads(jobs) == ["c0", "a0", "b0"]
    await q.ack(jobs)
    jobs = await q.try_poll_many(9)
    assert sorted(payloads(jobs)) == ["a1", "b1", "c1"]
    for job, way in zip(jobs, ("reject", "nack", "ack"), strict=True):
        await getattr(job, way)()
    last = await q.try_poll_many(9)
    assert sorted(job.payload[1] for job in last) == ["1", "2", "2"]
    assert lines(database) == {jobs[1].payload[0]: (1, 1)} | {
        jobs[place].payload[0]: (1, 0) for place in (0, 2)
    }


# --- delays and priorities -----------------------------------------------------------------------


@async_only
async def test_a_line_is_in_the_order_of_time(mq: Any, database: Database) -> None:
    q = mq.queue("q")
    await q.put("third", ordering_key="a", delay=3600)
    await q.put("second", ordering_key="a", delay=1800)
    await q.put("first", ordering_key="a")
    first = await q.try_poll()
    assert first.payload == "first"
    database.execute("UPDATE rowmq_waiting SET due_at = due_at - 3600000000")
    assert await q.try_poll() is None  # they are due, and not in turn
    await first.ack()
    assert await done_in_order(q) == ["second", "third"]


@async_only
async def test_a_delayed_head_is_displaced_by_an_earlier_one(mq: Any, database: Database) -> None:
    q = mq.queue("q")
    await q.put("in an hour", ordering_key="a", delay=3600, key="hour")
    assert lines(database) == {"a": (1, 0)}
    await q.put("in a minute", ordering_key="a", delay=60, key="minute")
    await q.put("now", ordering_key="a")
    assert lines(database) == {"a": (1, 2)}
    assert await done_in_order(q) == ["now"]
    assert lines(database) == {"a": (1, 1)}
    assert (await q.read("hour")).state is State.PENDING
    # Both can still be found by their keys, wherever they stand.
    assert await q.offer_or_update("hour", "now after all", None) is Outcome.UPDATED
    assert await q.drop("minute") is True
    assert await done_in_order(q) == ["now after all"]
    assert await numbers(q) == {"completed": 2}


async def test_within_a_line_the_highest_priority_is_next(mq: Any) -> None:
    q = mq.queue("q")
    await q.put("low", ordering_key="a", priority=-5)
    await q.put("middle", ordering_key="a")
    await q.put("high", ordering_key="a", priority=5)
    await q.put("middle too", ordering_key="a")
    assert await done_in_order(q) == ["high", "middle", "middle too", "low"]


@async_only
async def test_nobody_displaces_a_head_that_is_in_flight(mq: Any) -> None:
    q = mq.queue("q")
    await q.put(1, ordering_key="a")
    job = await q.try_poll()
    await q.put(0, ordering_key="a", priority=5)
    assert await q.try_poll() is None
    await job.ack()
    assert await done_in_order(q) == [0]


@async_only
async def test_who_displaces_a_released_head_does_not_overtake_who_waited_for_it(
    mq: Any, database: Database
) -> None:
    q = mq.queue("q")
    await q.put("plain", ordering_key="a")
    head = await q.try_poll()
    for n in (1, 2):
        await q.put(n, ordering_key="a", priority=1)
    await head.release()
    await q.put_many([3, 4], ordering_key="a", priority=1)
    assert lines(database) == {"a": (1, 4)}
    assert await done_in_order(q) == [1, 2, 3, 4, "plain"]
    assert lines(database) == {}


@async_only
async def test_a_displaced_head_comes_back_whole(mq: Any) -> None:
    """Displaced and moved up again, many times over."""
    q = mq.queue("q")
    for priority in range(8):
        await q.put(priority, ordering_key="a", priority=priority, headers={"n": str(priority)})
    job = await q.try_poll()
    assert (job.payload, job.headers) == (7, {"n": "7"})
    await job.ack()
    await q.put(99, ordering_key="a", priority=99)
    assert await done_in_order(q) == [99, 6, 5, 4, 3, 2, 1, 0]


# --- drop, update, retry -------------------------------------------------------------------------


PLACES = {"head": 1, "in flight": 1, "middle": 2, "last": 3}
"""Where a member of a line of three may be, and which one it is."""


@async_only
async def test_a_dropped_member_leaves_its_line(mq: Any, database: Database) -> None:
    for place, dropped in PLACES.items():
        q = mq.queue(place)
        for n in (1, 2, 3):
            await q.put(n, ordering_key="a", key=f"k{n}")
        job = await q.try_poll() if place == "in flight" else None
        assert await q.drop(f"k{dropped}") is True
        assert await done_in_order(q) == [n for n in (1, 2, 3) if n != dropped]
        if job is not None:
            with pytest.raises(errors.StaleLease):
                await job.ack()
        assert lines(database) == {}
        assert await numbers(q) == {"completed": 2}


@async_only
async def test_an_updated_member_stays_in_its_line(mq: Any, database: Database) -> None:
    """Where it stands there is where its new time puts it: at the end, if that is now."""
    for place, updated in PLACES.items():
        q = mq.queue(place)
        for n in (1, 2, 3):
            await q.put(n, ordering_key="a", key=f"k{n}")
        job = await q.try_poll() if place == "in flight" else None
        assert await q.offer_or_update(f"k{updated}", "new", None) is Outcome.UPDATED
        assert (await q.read(f"k{updated}")).ordering_key == "a"
        assert await done_in_order(q) == [*(n for n in (1, 2, 3) if n != updated), "new"]
        if job is not None:
            with pytest.raises(errors.StaleLease):
                await job.ack()
        assert lines(database) == {}
        assert await numbers(q) == {"completed": 3}


@async_only
async def test_everything_is_dropped_and_the_line_starts_anew(mq: Any, database: Database) -> None:
    q = mq.queue("q")
    for key in "ab":
        await q.put_many([1, 2, 3], ordering_key=key)
    job = await q.try_poll()
    assert await q.drop_all(CONFIRM) == 6
    with pytest.raises(errors.StaleLease):
        await job.ack()
    assert await numbers(q) == {}
    for table in ("jobs", "ready", "waiting", "locks"):
        assert database.execute(f"SELECT COUNT(*) FROM rowmq_{table}") == [(0,)]
    await q.put_many([4, 5], ordering_key="a")
    assert await done_in_order(q) == [4, 5]


@async_only
async def test_a_failed_member_that_is_retried_joins_its_line_again(mq: Any) -> None:
    q = mq.queue("q")
    await q.put_many([1, 2, 3], ordering_key="a")
    failed = await q.try_poll()
    await failed.reject(error="no")
    second = await q.try_poll()
    assert second.payload == 2
    assert await q.retry([failed.id]) == 1
    assert await q.try_poll() is None  # one at a time still
    await second.ack()
    assert await done_in_order(q) == [3, 1]
    assert await numbers(q) == {"completed": 3}


@async_only
async def test_a_whole_line_that_failed_is_retried_one_at_a_time(mq: Any) -> None:
    q = mq.queue("q")
    jobs = await q.put_many(range(5), ordering_key="a")
    for _ in jobs:
        await (await q.try_poll()).reject()
    assert await numbers(q) == {"failed": 5}
    assert await q.retry(jobs) == 5
    assert await done_in_order(q) == [0, 1, 2, 3, 4]


@async_only
async def test_pruning_forgets_empty_lines_only(mq: Any, database: Database) -> None:
    q = mq.queue("q")
    await q.put("done", ordering_key="empty")
    await (await q.try_poll()).ack()
    await q.put_many([1, 2], ordering_key="full")
    assert await q.prune(older_than=0) == 1
    assert lines(database) == {"full": (1, 1)}
    await q.put("again", ordering_key="empty")
    jobs = await q.try_poll_many(9)
    assert sorted(map(str, payloads(jobs))) == ["1", "again"]
    await q.ack(jobs)
    assert await done_in_order(q) == [2]


@async_only
async def test_what_is_not_kept_lets_the_next_one_up_too(mq: Any, database: Database) -> None:
    q = mq.queue("q")
    await q.configure(keep_completed=False, keep_failed=False)
    await q.put_many([1, 2, 3], ordering_key="a")
    await (await q.try_poll()).reject()
    assert await done_in_order(q) == [2, 3]
    assert database.execute("SELECT COUNT(*) FROM rowmq_jobs") == [(0,)]


# --- transactions --------------------------------------------------------------------------------


@async_only
async def test_a_rolled_back_put_leaves_the_line_as_it_was(mq: Any, database: Database) -> None:
    q = mq.queue("q")
    await q.put("head", ordering_key="a", delay=60)
    for _ in range(2):
        with suppress(ZeroDivisionError):
            async with mq.transaction() as tx:
                await tx.queue("q").put("in front", ordering_key="a")
                await tx.queue("q").put("new line", ordering_key="b")
                raise ZeroDivisionError
    assert lines(database) == {"a": (1, 0)}
    await q.put("now", ordering_key="a", priority=1)
    assert await done_in_order(q) == ["now"]


@async_only
@on_servers
@pytest.mark.parametrize("commits", [True, False], ids=["commit", "rollback"])
async def test_a_head_that_finishes_does_not_lose_who_is_just_joining(
    connect: Connect, database: Database, commits: bool
) -> None:
    """The settle waits for the transaction that joins, and then sees whom it has to let up."""
    mq, other = await connect(database.url), await connect(database.url)
    q = mq.queue("q")
    await q.put(1, ordering_key="a")
    head = await q.try_poll()
    with suppress(ZeroDivisionError):
        async with other.transaction() as tx:
            await tx.queue("q").put(2, ordering_key="a")
            acking = asyncio.create_task(head.ack())
            await asyncio.wait({acking}, timeout=0.05)
            if not commits:
                raise ZeroDivisionError
    await acking
    assert await done_in_order(q) == ([2] if commits else [])
    await q.put(3, ordering_key="a")
    assert await done_in_order(q) == [3]
    assert lines(database) == {}


@async_only
@on_servers
async def test_who_joins_while_the_head_is_being_finished_is_not_lost(
    connect: Connect, database: Database
) -> None:
    mq, other = await connect(database.url), await connect(database.url)
    q = mq.queue("q")
    await q.put(1, ordering_key="a")
    head = await q.try_poll()
    async with mq.transaction() as tx:
        await head.ack(connection=tx)
        joining = asyncio.create_task(other.queue("q").put(2, ordering_key="a"))
        await asyncio.wait({joining}, timeout=0.05)
    await joining
    assert await done_in_order(q) == [2]


@on_servers
@async_only
async def test_a_line_that_is_locked_holds_up_no_other(
    connect: Connect, database: Database
) -> None:
    mq, other = await connect(database.url), await connect(database.url)
    q = mq.queue("q")
    for key in "ab":
        await q.put(key, ordering_key=key)
    async with other.transaction() as tx:
        await tx.queue("q").put("more", ordering_key="a")
        await q.put("more", ordering_key="b")
        jobs = await q.try_poll_many(9)
        assert payloads(jobs) == ["a", "b"]
        await jobs[1].ack()
        assert (await q.try_poll()).ordering_key == "b"
    await jobs[0].ack()
    assert (await q.try_poll()).payload == "more"


# --- many workers --------------------------------------------------------------------------------


class Crew:
    """Workers of several lines, who settle in any way, and note what they have done."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.running: set[str] = set()
        self.done: dict[str, list[int]] = defaultdict(list)

    @property
    def count(self) -> int:
        return sum(map(len, self.done.values()))

    async def work(self, q: Any, total: int) -> None:
        while self.count < total:
            jobs = await q.try_poll_many(self.chance.choice([1, 3]))
            if not jobs:
                await asyncio.sleep(0.005)
            for job in jobs:
                assert job.ordering_key not in self.running
                self.running.add(job.ordering_key)
            for job in jobs:
                await self.settle(job)

    async def settle(self, job: Any) -> None:
        self.running.discard(job.ordering_key)  # before the next one can be another's
        fate = self.chance.random()
        if fate < 0.15:
            await job.nack()
        elif fate < 0.25:
            await job.release()
        else:
            self.done[job.ordering_key].append(job.payload)
            await job.ack()


async def test_many_workers_keep_the_order_of_every_line(
    connect: Connect, database: Database
) -> None:
    """Ten workers of two clients, with failures on the way, and puts while they work."""
    clients = [await connect(database.url, pool_size=6) for _ in range(2)]
    keys = [f"line {n}" for n in range(6)]
    wanted: dict[str, list[int]] = {key: list(range(9)) for key in keys}
    crew = Crew(7)

    async def produce(mq: Any, mine: list[str]) -> None:
        for n in range(0, 9, 3):
            for key in mine:
                await mq.queue("q").put(n, ordering_key=key)
                await mq.queue("q").put_many([n + 1, n + 2], ordering_key=key)

    workers = [crew.work(mq.queue("q", retry=NOW), 54) for mq in clients for _ in range(5)]
    producers = [produce(clients[0], keys[:3]), produce(clients[1], keys[3:])]
    await asyncio.wait_for(asyncio.gather(*producers, *workers), 60)
    assert crew.done == wanted
    assert await numbers(clients[0].queue("q")) == {"completed": 54}
    assert lines(database) == {}


async def test_what_one_producer_puts_is_in_its_order_whoever_else_puts(mq: Any) -> None:
    """Ids decide among jobs of the same time: those of later puts are higher, for each producer."""
    q = mq.queue("q")
    at = datetime(2020, 1, 1, tzinfo=UTC)

    async def produce(producer: int) -> None:
        for n in range(3):
            await q.put([producer, n], ordering_key=f"line {producer}", at=at)

    await asyncio.gather(*(produce(producer) for producer in range(6)))
    for n in range(3):
        jobs = await q.try_poll_many(9)
        assert sorted(payloads(jobs)) == [[producer, n] for producer in range(6)]
        await q.ack(jobs)


@async_only
async def test_many_producers_of_one_line_lose_nothing(
    connect: Connect, database: Database
) -> None:
    """While its head comes and goes all the time."""
    clients = [await connect(database.url, pool_size=5) for _ in range(2)]
    done: list[tuple[int, int]] = []

    async def produce(mq: Any, producer: int) -> None:
        for n in range(6):
            await mq.queue("q").put([producer, n], ordering_key="a")

    async def work(mq: Any) -> None:
        while len(done) < 48:
            job = await mq.queue("q").try_poll()
            if job is None:
                await asyncio.sleep(0.005)
            else:
                done.append(tuple(job.payload))
                await job.ack()

    producers = [produce(clients[n % 2], n) for n in range(8)]
    workers = [work(mq) for mq in clients for _ in range(2)]
    await asyncio.wait_for(asyncio.gather(*producers, *workers), 60)
    assert sorted(done) == [(producer, n) for producer in range(8) for n in range(6)]
    for producer in range(8):
        assert [n for who, n in done if who == producer] == list(range(6))
    assert lines(database) == {}


async def meddle(q: Any, chance: random.Random) -> None:
    """Put, update and drop members of four lines."""
    for n in range(12):
        key = f"k{chance.randrange(4)}"
        line = f"line {key}"
        ways = [
            partial(q.put, n, key=key, ordering_key=line),
            partial(q.offer_or_update, key, n, None),
            partial(q.drop, key),
            partial(q.put, n, ordering_key=line),
        ]
        with suppress(errors.KeyTaken):
            await chance.choice(ways)()


@async_only
async def test_members_that_come_and_go_in_every_way_leave_nothing_behind(
    connect: Connect, database: Database
) -> None:
    """Keyed members are updated and dropped by some while others work on them."""
    mq = await connect(database.url, pool_size=8)
    q = mq.queue("q", retry=NOW)
    chance = random.Random(11)
    stopping = asyncio.Event()

    async def work() -> None:
        while not stopping.is_set():
            job = await q.try_poll()
            if job is None:
                await asyncio.sleep(0.002)
                continue
            with suppress(errors.StaleLease):
                await chance.choice([job.ack, job.ack, job.nack, job.reject, job.release])()

    workers = [asyncio.create_task(work()) for _ in range(4)]
    await asyncio.wait_for(asyncio.gather(*(meddle(q, chance) for _ in range(4))), 60)

    async def empty() -> bool:
        return set(await numbers(q)) <= {"completed", "failed"}

    await eventually(empty)
    stopping.set()
    await asyncio.gather(*workers)
    assert lines(database) == {}
    # Locks on what was updated or dropped bring nothing back when their time is over.
    database.execute("UPDATE rowmq_locks SET locked_until = 1")

    async def unlocked() -> bool:
        assert await q.try_poll() is None
        return database.execute("SELECT COUNT(*) FROM rowmq_locks") == [(0,)]

    await eventually(unlocked)
    for table in ("ready", "waiting", "job_keys"):
        assert database.execute(f"SELECT COUNT(*) FROM rowmq_{table}") == [(0,)]
