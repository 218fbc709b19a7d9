"""What people do to jobs by their ids, also while workers have them."""

import asyncio
import contextlib
import random
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

import rowmq
from rowmq import State, errors
from rowmq.queue.steering import Counted
from rowmq.store.statement import Statement
from rowmq.store.steering import When
from tests.choices import on_servers
from tests.commits import lost_answers
from tests.conformance.test_queue_claim import contents, counted, expire, occupied, past
from tests.conftest import Connect
from tests.databases import Database

HOUR = timedelta(hours=1)

ENDS: dict[str, Callable[[Any, list[int]], Awaitable[int]]] = {
    "fail": lambda queue, ids: queue.fail(ids, error="no use"),
    "drop": lambda queue, ids: queue.drop_jobs(ids),
}

ends = pytest.mark.parametrize("end", list(ENDS.values()), ids=list(ENDS))


async def claimed(queue: Any) -> list[Any]:
    """The payloads of what can be claimed now, in this order; each is acked at once."""
    payloads = []
    while (job := await queue.try_poll()) is not None:
        payloads.append(job.payload)
        await job.ack()
    return payloads


# --- at another time ------------------------------------------------------------------------------


async def test_jobs_are_run_now_or_at_another_time(mq: Any) -> None:
    queue = mq.queue("q")
    later = [(await queue.put(n, delay=3600, key=f"k{n}" if n < 2 else None)).id for n in range(4)]
    due = await queue.put("due")
    assert await queue.run_now([later[0], later[2]]) == 2
    assert await queue.reschedule([due.id], at=datetime.now(UTC) + HOUR) == 1
    assert await queue.reschedule([later[3]], delay=7200) == 1
    assert sorted(await claimed(queue)) == [0, 2]
    assert (await queue.get(later[3])).due_at > datetime.now(UTC) + 1.9 * HOUR
    # By its key it is found where it now is.
    assert await queue.offer_or_update("k1", "new") == rowmq.Outcome.UPDATED
    assert await claimed(queue) == ["new"]
    assert await counted(queue) == {"pending": 2, "completed": 3}


async def test_a_job_that_is_to_be_tried_again_keeps_its_attempts(mq: Any) -> None:
    queue = mq.queue("q", retry=rowmq.Constant(interval=3600))
    for key in (None, "k"):
        put = await queue.put("x", key=key)
        for attempt in (1, 2, 3):
            job = await queue.try_poll()
            assert (job.id, job.attempt) == (put.id, attempt)
            await job.nack(error="no")
            assert await queue.try_poll() is None
            assert await queue.run_now([put.id]) == 1
        await queue.drop_jobs([put.id])


async def test_what_is_claimed_or_done_stays_as_it_is(mq: Any) -> None:
    queue = mq.queue("q")
    await queue.put_many(["done", "failed", "taken"])
    done, failed, taken = await queue.try_poll_many(3)
    await done.ack()
    await failed.reject()
    assert await queue.run_now([done.id, failed.id, taken.id, 1]) == 0
    assert await queue.reschedule([], delay=1) == 0
    await taken.ack()
    assert await counted(queue) == {"completed": 2, "failed": 1}


async def test_what_is_in_an_expired_lock_is_run_now(mq: Any, database: Database) -> None:
    queue = mq.queue("q")
    job = await queue.put("x")
    stale = await queue.try_poll()
    expire(database)
    assert await queue.reschedule([job.id], delay=3600) == 1
    assert await queue.try_poll() is None
    assert await queue.run_now([job.id]) == 1
    again = await queue.try_poll()
    assert (again.id, again.deliveries) == (job.id, 2)
    with pytest.raises(errors.StaleLease):
        await stale.ack()


async def test_in_a_line_a_job_goes_where_its_time_belongs(mq: Any) -> None:
    queue = mq.queue("q")
    ids = [(await queue.put(n, ordering_key="o", at=past(100 - n))).id for n in range(4)]
    assert await queue.reschedule([ids[2]], at=past(200)) == 1  # in front of the head
    assert await queue.reschedule([ids[0]], at=past(1)) == 1  # behind all the others
    assert await claimed(queue) == [2, 1, 3, 0]


async def test_a_whole_line_moves(mq: Any, database: Database) -> None:
    queue = mq.queue("q")
    ids = [(await queue.put(n, ordering_key="o", at=past(100 - n))).id for n in range(4)]
    assert await queue.reschedule(ids, delay=3600) == 4
    assert await claimed(queue) == []
    assert await queue.run_now(ids) == 4
    assert await claimed(queue) == [0, 1, 2, 3]
    assert occupied(database) == {"jobs", "completed"}


async def test_a_head_that_was_tried_stays_the_head(mq: Any) -> None:
    queue = mq.queue("q", retry=rowmq.Constant(interval=3600))
    first, second = [await queue.put(n, ordering_key="o", at=past(9 - n)) for n in range(2)]
    await (await queue.try_poll()).nack()
    assert await queue.run_now([second.id]) == 1  # it waits on
    assert await queue.try_poll() is None
    assert await queue.run_now([first.id]) == 1
    assert await claimed(queue) == [0, 1]


# --- given up, or dropped -------------------------------------------------------------------------


@ends
async def test_jobs_end_wherever_they_stand(
    mq: Any, database: Database, end: Callable[..., Awaitable[int]]
) -> None:
    queue = mq.queue("q", retry=rowmq.Constant(interval=3600))
    await queue.put_many(["taken", "tried", "done"], priority=1)
    taken, tried, done = await queue.try_poll_many(3)
    await tried.nack(error="not yet")
    await done.ack()
    ids = [taken.id, tried.id, (await queue.put("later", delay=60, key="k")).id]
    ids += [(await queue.put(n, ordering_key="o")).id for n in range(3)]
    assert await end(queue, [*ids, done.id, 1]) == 6
    assert await end(queue, ids) == 0
    with pytest.raises(errors.StaleLease):
        await taken.ack()
    dropped = end is ENDS["drop"]
    assert await counted(queue) == ({"completed": 1} if dropped else {"completed": 1, "failed": 6})
    left = {"jobs", "completed"}
    assert occupied(database) == (left if dropped else left | {"failed", "job_errors"})
    assert not await queue.contains("k")


async def test_what_was_given_up_tells_why_and_is_retried(mq: Any) -> None:
    queue = mq.queue("q", retry=rowmq.Constant(interval=0))
    job = await queue.put("x", key="k", ordering_key="o")
    await (await queue.try_poll()).nack(error="not yet")
    assert await queue.fail([job], error=ValueError("not wanted")) == 1
    (failed,) = await queue.failed()
    assert (failed.attempts, failed.deliveries) == (1, 1)
    assert failed.error == "ValueError: not wanted"
    assert await queue.retry([failed]) == 1
    again = await queue.try_poll()
    assert (again.id, again.attempt) == (job.id, 1)
    await again.ack()


@ends
async def test_others_of_the_same_lock_are_settled_as_ever(
    mq: Any, end: Callable[..., Awaitable[int]]
) -> None:
    queue = mq.queue("q", retry=rowmq.Constant(interval=3600))
    await queue.put_many(range(5))
    jobs = await queue.try_poll_many(5)
    assert await end(queue, [jobs[1].id, jobs[3].id]) == 2
    for late in (jobs[1].ack, jobs[1].nack, jobs[3].reject, jobs[3].release):
        with pytest.raises(errors.StaleLease):
            await late()
    await jobs[0].ack()
    await jobs[2].nack()
    await jobs[4].extend(60)
    await jobs[4].ack()
    finished = {"completed": 2, "retryable": 1}
    assert await counted(queue) == (finished if end is ENDS["drop"] else {**finished, "failed": 2})


@ends
async def test_who_stands_behind_moves_up_and_the_key_is_free(
    mq: Any, end: Callable[..., Awaitable[int]]
) -> None:
    queue = mq.queue("q")
    ids = [(await queue.put(n, ordering_key="o", key=f"k{n}", at=past(9 - n))).id for n in range(4)]
    head = await queue.try_poll()
    assert await end(queue, [ids[0], ids[2]]) == 2
    with pytest.raises(errors.StaleLease):
        await head.ack()
    await queue.put("new", key="k0", at=past(0))
    assert await claimed(queue) == [1, 3, "new"]


@ends
async def test_a_claimed_job_that_ends_lets_go_of_its_permit(
    mq: Any, end: Callable[..., Awaitable[int]]
) -> None:
    queue = mq.queue("q")
    await queue.configure(max_in_flight=1)
    await queue.put_many(["first", "second"])
    first = await queue.try_poll()
    assert await queue.try_poll() is None
    assert await end(queue, [first.id]) == 1
    assert await claimed(queue) == ["second"]


async def test_a_queue_that_keeps_no_failed_jobs_keeps_none(mq: Any, database: Database) -> None:
    queue = mq.queue("q")
    await queue.configure(keep_failed=False)
    await queue.put_many(range(3))
    taken = await queue.try_poll()
    assert await queue.fail([job.id for job in await queue.live()]) == 3
    with pytest.raises(errors.StaleLease):
        await taken.ack()
    assert occupied(database) == set()


# --- whose jobs, and in whose transaction ---------------------------------------------------------


async def test_a_handle_changes_only_jobs_that_it_sees(mq: Any) -> None:
    of_b = await mq.queue("q", kind="b").put("b", delay=60)
    taken = await mq.queue("q", kind="b").put("taken")
    await mq.queue("q", kind="b").try_poll()
    of_a = mq.queue("q", kind="a")
    await of_a.put("a", delay=60)
    for change in (of_a.run_now, of_a.fail, of_a.drop_jobs, mq.queue("other").drop_jobs):
        assert await change([of_b.id, taken.id]) == 0
    assert await counted(mq.queue("q")) == {"pending": 2, "processing": 1}


async def test_a_transaction_that_is_undone_changes_nothing(mq: Any, database: Database) -> None:
    queue = mq.queue("q")
    ids = [(await queue.put(n, key=f"k{n}", ordering_key="o")).id for n in range(3)]
    free = [(await queue.put(n, delay=60)).id for n in range(3)]
    taken = await queue.try_poll()
    before = contents(database)
    with pytest.raises(ZeroDivisionError):
        async with mq.transaction() as tx:
            inside = tx.queue("q")
            assert await inside.fail([ids[0], free[0]]) == 2
            assert await inside.drop_jobs([ids[1], free[1]]) == 2
            assert await inside.run_now([ids[2], free[2]]) == 2
            1 / 0  # noqa: B018 - it is to raise
    assert contents(database) == before
    await taken.ack()
    async with mq.transaction() as tx:
        assert await tx.queue("q").drop_jobs(free) == 3
    assert await counted(queue) == {"pending": 2, "completed": 1}


@pytest.mark.parametrize("ids", ["1", 1, [None], [-1], [True], [2**62], [1.5]])
async def test_what_is_no_list_of_jobs_is_refused(mq: Any, ids: Any) -> None:
    queue = mq.queue("q")
    for change in (queue.run_now, queue.fail, queue.drop_jobs):
        with pytest.raises(errors.InvalidOption):
            await change(ids)


async def test_a_time_must_be_given_once(mq: Any) -> None:
    for how in ({}, {"at": past(1), "delay": 1}, {"delay": -1}, {"at": datetime(2026, 1, 1)}):  # noqa: DTZ001 - that is what is refused
        with pytest.raises(errors.InvalidInput):
            await mq.queue("q").reschedule([1], **how)


# --- at the same time as others -------------------------------------------------------------------


@on_servers
async def test_a_job_that_is_held_is_left_to_its_holder(mq: Any) -> None:
    """Nobody waits for a transaction that may last."""
    queue = mq.queue("q")
    put = await queue.put("x", key="k")
    async with queue.hold() as job:
        assert job.id == put.id
        assert await queue.fail([put.id]) == 0
        assert await queue.run_now([put.id]) == 0
    assert await counted(queue) == {"completed": 1}


@on_servers
async def test_a_job_whose_settle_is_open_is_left_to_it(mq: Any) -> None:
    queue = mq.queue("q")
    put = await queue.put("x")
    job = await queue.try_poll()
    async with mq.transaction() as tx:
        await job.ack(connection=plain(tx))
        assert await queue.fail([put.id]) == 0
    assert await counted(queue) == {"completed": 1}


def plain(tx: Any) -> Any:
    return getattr(tx, "target", tx)


JOBS = 80
KINDS = ("plain", "key", "line")


class Play:
    """Workers who claim and settle, and somebody who drops, fails, moves and retries jobs wherever
    they are; and what each has done.
    """

    def __init__(self, queue: Any) -> None:
        self.queue = queue
        self.ids: list[int] = []
        self.acked: list[int] = []
        self.failed = self.retried = self.dropped = 0
        self.over = threading.Event()

    def work(self, seed: int) -> None:
        dice = random.Random(seed)
        while not self.over.is_set():
            jobs = self.queue.try_poll_many(dice.randint(1, 4))
            time.sleep(dice.random() / 20)  # others come between
            for job in jobs:
                with contextlib.suppress(errors.StaleLease):
                    self.settle(job, tired=dice.random() < 0.3)

    def settle(self, job: Any, *, tired: bool) -> None:
        if tired:
            job.nack()
        else:
            job.ack()
            self.acked.append(job.id)

    def operate(self) -> None:
        dice = random.Random(7)
        acts = (self.run, self.move, self.fail, self.drop)
        for n in range(JOBS // 4):
            self.ids += [put(self.queue, number) for number in range(4 * n, 4 * n + 4)]
            acts[n % 4](dice.sample(self.ids[-8:], 3))
            self.retry(self.ids[-8:])

    def run(self, some: list[int]) -> None:
        self.queue.run_now(some)

    def move(self, some: list[int]) -> None:
        self.queue.reschedule(some, delay=some[0] % 10 / 1000)

    def fail(self, some: list[int]) -> None:
        self.failed += self.queue.fail(some, error="by hand")

    def drop(self, some: list[int]) -> None:
        self.dropped += self.queue.drop_jobs(some)

    def retry(self, some: list[int]) -> None:
        self.retried += self.queue.retry(some)

    def play(self) -> None:
        """Until all is done."""
        with ThreadPoolExecutor(4) as pool:
            workers = [pool.submit(self.work, seed) for seed in range(3)]
            try:
                pool.submit(self.operate).result(60)
                deadline = time.monotonic() + 60
                while unfinished(self.queue) and time.monotonic() < deadline:
                    time.sleep(0.01)
            finally:
                self.over.set()
            for worker in workers:
                worker.result(60)


def put(queue: Any, n: int) -> int:
    """A job: plain, with a key, or in a line."""
    how = KINDS[n % 3]
    key, line = (f"k{n}" if how == "key" else None), (f"o{n % 5}" if how == "line" else None)
    return int(queue.put(n, key=key, ordering_key=line).id)


def unfinished(queue: Any) -> int:
    counts = queue.counts()
    return int(counts["pending"] + counts["processing"] + counts["retryable"])


def test_whatever_people_do_each_job_ends_once(database: Database) -> None:
    with rowmq.connect(database.url) as mq:
        play = Play(mq.queue("q", retry=rowmq.Constant(interval=0.001)))
        play.play()
        counts = play.queue.counts()
        assert unfinished(play.queue) == 0
        assert max(Counter(play.acked).values()) == 1
        assert counts["completed"] == len(play.acked)
        assert counts["failed"] == play.failed - play.retried
        assert counts["completed"] + counts["failed"] + play.dropped == JOBS
        assert min(play.failed, play.retried, play.dropped) > 0
    assert occupied(database) <= {"jobs", "completed", "failed", "job_errors"}
    assert database.execute("SELECT COUNT(*) FROM rowmq_jobs") == [(JOBS - play.dropped,)]


async def test_of_a_worker_and_a_person_one_has_the_job(mq: Any) -> None:
    """Each claims, or gives up, while the other does."""
    queue = mq.queue("q")
    for _ in range(10):
        job = await queue.put("x")
        given_up, taken = await asyncio.gather(queue.fail([job.id]), queue.try_poll())
        assert given_up == 1
        if taken is not None:
            with pytest.raises(errors.StaleLease):
                await taken.ack()
    assert await counted(queue) == {"failed": 10}
    assert all(job.state is State.FAILED for job in (await queue.find()).jobs)


# --- what was done and not heard of ---------------------------------------------------------------


async def test_what_is_repeated_tells_what_the_first_try_did(mq: Any) -> None:
    queue = mq.queue("q")
    ids = [(await queue.put(n, delay=3600, key=f"k{n}")).id for n in range(9)]
    lined = [(await queue.put(n, delay=3600, ordering_key="o")).id for n in range(3)]
    with lost_answers(mq, "steering.jobs") as repeated:
        assert await queue.fail([*ids[:3], *lined[:2]]) == 5
        assert await queue.drop_jobs([ids[3], lined[2]]) == 2
        assert await queue.run_now(ids[4:6]) == 2
    with lost_answers(mq, "archive.lock_failed") as retried:
        assert await queue.retry([ids[0], lined[0], ids[8]]) == 2
    with lost_answers(mq, "jobs.find_key"):
        assert await queue.drop("k6") is True
        assert await queue.drop("k6") is False
    with lost_answers(mq, "archive.old"):
        assert await queue.prune(older_than=0, state=State.FAILED) == 3
    with lost_answers(mq, "steering.jobs"):
        (job,) = await queue.try_poll_many(1)
        assert await queue.fail([job.id]) == 1
        assert await queue.drop_jobs([ids[8], ids[8] + 999]) == 1
    with lost_answers(mq, "archive.some_ready"):
        assert await queue.drop_all("Yes, please, I know what I'm doing!") == 4
    assert min(len(repeated), len(retried)) > 0


async def test_a_repeat_counts_nothing_that_is_not_where_it_was_to_go(mq: Any) -> None:
    """The first try was undone, and the job went elsewhere before the second."""
    queue = mq.queue("q")
    steering = plain(queue)._core.desk.store.steering
    for end, arrived in ((steering.fail, steering.ended), (steering.drop, steering.dropped)):
        put = await queue.put("x")
        how = {"error": None} if end == steering.fail else {}
        counted = Counted(partial(end, "q", None, [put.id], **how), arrived)
        with pytest.raises(ZeroDivisionError):
            await mq._run(partial(undone, counted))
        (job,) = await queue.try_poll_many(1)
        assert await mq._run(counted) == []
        await job.ack()
        assert await mq._run(counted) == []


def undone(counted: Counted) -> Any:
    yield from counted()
    raise ZeroDivisionError


async def test_what_was_moved_and_claimed_since_is_counted(mq: Any) -> None:
    queue = mq.queue("q")
    steering = plain(queue)._core.desk.store.steering
    put, memo = await queue.put("x", delay=3600), dict[int, int]()
    move = partial(steering.reschedule, "q", None, [put.id], When(None, 0), memo=memo)
    counted = Counted(move, partial(steering.moved, memo))
    assert await mq._run(counted) == [put.id]
    (job,) = await queue.try_poll_many(1)
    assert await mq._run(counted) == [put.id]
    await job.ack()


@on_servers
async def test_a_job_that_is_dropped_goes_though_its_row_is_being_changed(
    mq: Any, connect: Connect, database: Database
) -> None:
    queue = mq.queue("q")
    put = await queue.put("x", delay=3600)
    other, waits = await connect(database.url), asyncio.Event()
    loop = asyncio.get_running_loop()

    def see(statement: Statement) -> None:
        if statement.name == "jobs.delete":
            loop.call_soon_threadsafe(waits.set)

    plain(other)._driver.observers.append(see)
    async with mq.transaction() as tx:
        change = partial(plain(mq)._store.jobs.set_due, [(put.id, 1)])
        await mq._run(change, plain(tx))
        dropped = asyncio.create_task(other.queue("q").drop_jobs([put.id]))
        await asyncio.wait_for(waits.wait(), 15)
        assert await asyncio.wait({dropped}, timeout=0.1) == (set(), {dropped})
    assert await dropped == 1
    assert occupied(database) == set()
