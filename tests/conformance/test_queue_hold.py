"""`hold()`: a job that is worked on in one transaction, from its claim to its ack."""

import asyncio
import json
import logging
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import rowmq
from rowmq import DeliveryType, Outcome, State, errors
from tests.choices import async_only, on_servers, on_sqlite
from tests.conformance.test_faults import cut_connections
from tests.conftest import Connect
from tests.consuming import eventually
from tests.databases import Database

ROOT = Path(__file__).parents[2]

CONFIRM = "Yes, please, I know what I'm doing!"


@pytest.fixture
def effects(database: Database) -> "Effects":
    return Effects(database)


class Effects:
    """A table of the user's own, which a job's work is written to."""

    def __init__(self, database: Database) -> None:
        self.database = database
        database.execute("DROP TABLE IF EXISTS own_effects")
        database.execute("CREATE TABLE own_effects (id integer PRIMARY KEY)")

    async def add(self, tx: Any, number: int) -> None:
        await tx.execute("INSERT INTO own_effects VALUES (?)", [number])

    @property
    def all(self) -> list[int]:
        """What others see of it."""
        return [id for (id,) in self.database.execute("SELECT id FROM own_effects ORDER BY id")]


async def numbers(q: Any) -> dict[str, int]:
    """How many jobs are in which state, without the empty ones."""
    return {state: count for state, count in (await q.counts()).items() if count}


def left(database: Database) -> list[str]:
    """What is written of live jobs anywhere."""
    tables = ("ready", "locks", "job_keys", "waiting", "holds")
    return [t for t in tables if database.execute(f"SELECT COUNT(*) FROM rowmq_{t}") != [(0,)]]


async def held(q: Any, **options: Any) -> Any:
    """The payload of a job that is held and done; None if there is none."""
    async with q.hold(**options) as job:
        return None if job is None else job.payload


async def fail(q: Any, error: BaseException, **options: Any) -> Any:
    """Hold a job and raise; the job."""
    with pytest.raises(type(error)):
        async with q.hold(**options) as job:
            assert job is not None
            raise error
    return job


# --- leaving -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("order", "wanted"), [("fifo", [1, 2, 3]), ("lifo", [3, 2, 1])])
async def test_jobs_are_held_in_order(mq: Any, order: str, wanted: list[int]) -> None:
    q = mq.queue("q")
    for n in (1, 2, 3):
        await q.put(n)
    assert [await held(q, order=order) for _ in range(4)] == [*wanted, None]
    assert await numbers(q) == {"completed": 3}


@async_only
@pytest.mark.parametrize(("order", "wanted"), [("fifo", "bcda"), ("lifo", "cbad")])
async def test_priorities_come_before_age(mq: Any, order: str, wanted: str) -> None:
    q = mq.queue("q")
    await q.put("d", priority=-1) if order == "lifo" else await q.put("d")
    await q.put("a") if order == "lifo" else await q.put("a", priority=-1)
    await q.put("b", priority=1)
    await q.put("c", priority=1)
    assert [await held(q, order=order) for _ in range(4)] == list(wanted)


async def test_leaving_acks_together_with_what_was_written(
    mq: Any, database: Database, effects: Effects
) -> None:
    q = mq.queue("q")
    put = await q.put({"n": 7}, headers={"a": "b"}, priority=2)
    async with q.hold() as job:
        assert (job.id, job.payload, job.headers, job.priority) == (put.id, {"n": 7}, {"a": "b"}, 2)
        assert (job.attempt, job.delivery_type) == (1, DeliveryType.FIRST_DELIVERY)
        assert job.state is State.PROCESSING
        await effects.add(job.tx, 1)
        await effects.add(job.tx, 2)
        assert (await job.tx.execute("SELECT COUNT(*) FROM own_effects")).rows[0][0] == 2
        assert effects.all == []  # it is not committed
        assert database.execute("SELECT COUNT(*) FROM rowmq_completed") == [(0,)]
    assert effects.all == [1, 2]
    assert await numbers(q) == {"completed": 1}
    (done,) = await q.archive()
    assert (done.id, done.state, done.attempts, done.error) == (put.id, State.COMPLETED, 1, None)
    assert left(database) == []


async def test_an_exception_undoes_what_was_written_and_counts(
    mq: Any, database: Database, effects: Effects
) -> None:
    q = mq.queue("q")
    put = await q.put("work", key="k")
    with pytest.raises(ZeroDivisionError):
        async with q.hold() as job:
            await effects.add(job.tx, 1)
            await job.tx.publish("results", 1)
            raise ZeroDivisionError("no good")
    assert effects.all == []
    assert await mq.topics() == []
    assert await numbers(q) == {"retryable": 1}
    (error,) = await q.errors(put.id)
    assert (error.attempt, error.error) == (1, "ZeroDivisionError: no good")
    async with q.hold() as job:
        assert (job.id, job.attempt, job.deliveries) == (put.id, 2, 2)
        assert job.delivery_type is DeliveryType.REDELIVERY
        await effects.add(job.tx, 1)
    assert effects.all == [1]
    (done,) = await q.archive()
    assert (done.state, done.attempts) == (State.COMPLETED, 2)
    assert left(database) == []


@pytest.mark.parametrize("max_failures", [1, 3])
async def test_after_max_failures_it_has_failed(mq: Any, max_failures: int) -> None:
    q = mq.queue("q")
    put = await q.put("bad", key="k", headers={"a": "b"})
    await q.put("next", delay=60)
    for attempt in range(1, max_failures + 1):
        job = await fail(q, ValueError(f"attempt {attempt}"), max_failures=max_failures)
        assert job.attempt == attempt
    assert await held(q, max_failures=max_failures) is None
    assert await q.try_poll() is None
    (failed,) = await q.failed()
    assert (failed.id, failed.state, failed.payload) == (put.id, State.FAILED, "bad")
    assert (failed.attempts, failed.headers, failed.key) == (max_failures, {"a": "b"}, "k")
    assert failed.error == f"ValueError: attempt {max_failures}"
    earlier = [(e.attempt, e.error) for e in await q.errors(put.id)]
    assert earlier == [(n, f"ValueError: attempt {n}") for n in range(1, max_failures)]
    assert await numbers(q) == {"pending": 1, "failed": 1}
    assert await q.offer_if_not_exists("k", "the key is free", None) is Outcome.CREATED


@async_only
async def test_a_failed_job_that_is_retried_may_fail_as_often_again(mq: Any) -> None:
    q = mq.queue("q")
    put = await q.put("bad")
    for _ in range(2):
        await fail(q, ValueError("no"), max_failures=2)
    assert await q.retry([put.id]) == 1
    job = await fail(q, ValueError("no"), max_failures=2)
    assert job.attempt == 1
    async with q.hold(max_failures=2) as job:
        assert (job.id, job.attempt) == (put.id, 2)
    assert await numbers(q) == {"completed": 1}


@async_only
async def test_failures_of_polled_jobs_count_too(mq: Any) -> None:
    q = mq.queue("q", retry=rowmq.Constant(interval=0))
    await q.put("work")
    job = await q.try_poll()
    await job.nack(error="one")
    job = await fail(q, ValueError("two"), max_failures=3)
    assert job.attempt == 2
    polled = await q.try_poll()
    assert (polled.attempt, polled.deliveries) == (3, 3)
    await polled.release()
    await fail(q, ValueError("three"), max_failures=3)
    (failed,) = await q.failed()
    assert (failed.attempts, failed.error) == (3, "ValueError: three")


async def test_what_is_published_and_put_inside_belongs_to_it(mq: Any) -> None:
    q, next_q = mq.queue("q"), mq.queue("next")
    await q.put(1)

    async def work(job: Any) -> None:
        await job.tx.publish("results", job.attempt, key="k")
        await job.tx.publish_many("results", [rowmq.Message(payload="more", key="k")])
        await job.tx.queue("next").put("put", priority=1)
        await job.tx.queue("next").put_many(["many", "more"])
        offered = await job.tx.queue("next").offer_or_update("key", "offered", None)
        assert offered is Outcome.CREATED
        assert await numbers(next_q) == {}

    with pytest.raises(ZeroDivisionError):
        async with q.hold() as job:
            await work(job)
            raise ZeroDivisionError
    assert await numbers(next_q) == {}
    assert await mq.read("results") == []
    async with q.hold() as job:
        await work(job)
    assert [m.payload for m in await mq.read("results")] == [2, "more"]
    assert [job.payload for job in await next_q.try_poll_many(9)] == [
        "put",
        "many",
        "more",
        "offered",
    ]
    assert await numbers(q) == {"completed": 1}


@async_only
async def test_an_error_that_was_swallowed_still_fails_the_block(mq: Any, effects: Effects) -> None:
    """What went wrong in a transaction cannot be committed, on any database."""
    q = mq.queue("q")
    await q.put("work")
    with pytest.raises(errors.TransactionFailed):
        async with q.hold() as job:
            await effects.add(job.tx, 1)
            with pytest.raises(errors.UniqueViolation):
                await effects.add(job.tx, 1)
    assert effects.all == []
    assert await numbers(q) == {"retryable": 1}
    assert await held(q) == "work"


async def test_a_held_job_is_settled_by_leaving_only(mq: Any) -> None:
    q = mq.queue("q")
    await q.put("work")
    async with q.hold() as job:
        for settle in (job.ack, job.nack, job.reject, job.release):
            with pytest.raises(errors.NotClaimed, match="leaving"):
                await settle()
        with pytest.raises(errors.NotClaimed):
            await job.extend(60)
    assert await numbers(q) == {"completed": 1}


@async_only
async def test_the_transaction_ends_with_the_block(mq: Any) -> None:
    q = mq.queue("q")
    await q.put("work")
    async with q.hold() as job:
        await job.tx.publish("t", 1)
    with pytest.raises(errors.Closed):
        await job.tx.publish("t", 2)
    assert [m.payload for m in await mq.read("t")] == [1]


@async_only
async def test_what_is_completed_is_deleted_where_the_queue_keeps_nothing(
    mq: Any, database: Database
) -> None:
    q = mq.queue("q")
    await q.configure(keep_completed=False, keep_failed=False)
    await q.put("good")
    await fail(q, ValueError("no"))
    assert await held(q) == "good"
    await q.put("bad")
    for _ in range(2):
        await fail(q, ValueError("no"), max_failures=2)
    assert await numbers(q) == {}
    assert left(database) == []
    for table in ("jobs", "job_errors"):
        assert database.execute(f"SELECT COUNT(*) FROM rowmq_{table}") == [(0,)]


# --- nothing to hold -----------------------------------------------------------------------------


@async_only
async def test_nothing_ready_gives_none(mq: Any) -> None:
    q = mq.queue("q")
    assert await held(q) is None  # there is no such queue
    await q.put("later", delay=60)
    for order in ("fifo", "lifo"):
        assert await held(q, order=order) is None
    await q.put("now")
    await q.pause()
    assert await held(q) is None
    await q.resume()
    assert await held(q) == "now"
    assert await held(q) is None
    assert await numbers(q) == {"pending": 1, "completed": 1}


@async_only
async def test_a_block_without_a_job_may_raise(mq: Any) -> None:
    with pytest.raises(ZeroDivisionError):
        async with mq.queue("q").hold() as job:
            assert job is None
            raise ZeroDivisionError


@async_only
async def test_a_delayed_job_is_held_when_it_is_due(mq: Any) -> None:
    q = mq.queue("q")
    await q.put("soon", delay=1)
    assert await held(q) is None
    assert await eventually(lambda: held(q)) == "soon"


@async_only
async def test_a_payload_that_does_not_parse_is_failed_and_the_next_one_held(mq: Any) -> None:
    await mq.queue("q").put_many(["not a number", 5])
    q = mq.queue("q", type=int)
    assert await held(q) == 5
    (failed,) = await q.failed()
    assert failed.payload == "not a number"
    assert "int" in failed.error
    assert await numbers(q) == {"completed": 1, "failed": 1}


@async_only
@pytest.mark.parametrize(
    "options", [{"order": "random"}, {"max_failures": 0}, {"max_failures": 1.5}]
)
async def test_what_cannot_be_is_refused(mq: Any, options: dict[str, Any]) -> None:
    q = mq.queue("q")
    await q.put(1)
    with pytest.raises(errors.InvalidOption):
        async with q.hold(**options):
            pytest.fail("it was entered")
    assert await held(q) == 1


# --- several holders -----------------------------------------------------------------------------


@asynccontextmanager
async def holding(q: Any, count: int, **options: Any) -> AsyncIterator[list[Any]]:
    """So many blocks at once, and their jobs."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(q.hold(**options)) for _ in range(count)]


@async_only
async def test_no_two_hold_the_same_job(connect: Connect, database: Database) -> None:
    one, two = await connect(database.url), await connect(database.url)
    await one.queue("q").put_many(range(5))
    async with holding(one.queue("q"), 2) as ours, holding(two.queue("q"), 2) as theirs:
        polled = await two.queue("q").try_poll()
        payloads = [job.payload for job in (*ours, *theirs, polled)]
        assert payloads == [0, 1, 2, 3, 4]
        assert await held(one.queue("q")) is None
        assert await held(two.queue("q"), order="lifo") is None
        assert await one.queue("q").try_poll() is None
        await polled.ack()
    assert await numbers(one.queue("q")) == {"completed": 5}


async def test_many_holders_do_each_job_once(
    connect: Connect, database: Database, effects: Effects
) -> None:
    """Half of them fail at first; each effect is there once, whoever did it."""
    clients = [await connect(database.url, pool_size=4) for _ in range(2)]
    await clients[0].queue("q").put_many(range(30))
    failed: set[int] = set()

    async def work(mq: Any) -> None:
        while True:
            with suppress(ZeroDivisionError):
                async with mq.queue("q").hold() as job:
                    if job is None:
                        return
                    n = job.payload
                    await effects.add(job.tx, n)
                    if n % 2 and n not in failed:
                        failed.add(n)
                        raise ZeroDivisionError

    async def done() -> bool:
        await asyncio.gather(*(work(mq) for mq in clients for _ in range(4)))
        return await numbers(clients[0].queue("q")) == {"completed": 30}

    await eventually(done)
    assert effects.all == list(range(30))
    attempts = {job.payload: job.attempts for job in await clients[0].queue("q").archive()}
    assert attempts == {n: 1 + n % 2 for n in range(30)}
    assert left(database) == []


async def test_more_holders_than_connections_take_turns(
    connect: Connect, database: Database, effects: Effects
) -> None:
    mq = await connect(database.url, pool_size=2)
    q = mq.queue("q")
    await q.put_many(range(8))

    async def work(n: int) -> None:
        with suppress(ZeroDivisionError):
            async with q.hold() as job:
                await effects.add(job.tx, job.payload)
                if n == 3:
                    raise ZeroDivisionError

    await asyncio.gather(*(work(n) for n in range(8)))
    assert (await numbers(q))["completed"] == 7
    async with q.hold() as job:
        await effects.add(job.tx, job.payload)
    assert await numbers(q) == {"completed": 8}
    assert effects.all == list(range(8))


@async_only
async def test_one_connection_is_enough(connect: Connect, database: Database) -> None:
    mq = await connect(database.url, pool_size=1, pool_timeout=5)
    q = mq.queue("q")
    await q.put("work")
    await fail(q, ValueError("no"))
    async with q.hold() as job:
        await job.tx.publish("results", 1)
        assert job.attempt == 2
    assert await numbers(q) == {"completed": 1}


@async_only
async def test_pausing_lets_those_go_on_who_hold(mq: Any) -> None:
    q = mq.queue("q")
    await q.put_many([1, 2])
    async with q.hold() as job:
        assert job.payload == 1
        await q.pause()
        assert await held(q) is None
    assert await numbers(q) == {"completed": 1, "pending": 1}
    await q.resume()
    assert await held(q) == 2


@on_servers
@async_only
async def test_dropping_everything_leaves_what_is_held(mq: Any) -> None:
    q = mq.queue("q")
    await q.put_many([1, 2, 3])
    async with q.hold() as job:
        assert await q.drop_all(CONFIRM) == 2
        assert job.payload == 1
    assert await numbers(q) == {"completed": 1}


# --- keyed jobs ----------------------------------------------------------------------------------


async def offer_meanwhile(q: Any, way: str) -> Any:
    if way == "update":
        return await q.offer_or_update("k", "new", None)
    if way == "create":
        return await q.offer_if_not_exists("k", "new", None)
    if way == "drop":
        return await q.drop("k")
    return (await q.put("new", key="k")).payload


@on_servers
@async_only
@pytest.mark.parametrize(
    ("way", "outcome"),
    [("update", Outcome.CREATED), ("create", Outcome.CREATED), ("drop", False), ("put", "new")],
)
async def test_offers_of_a_held_key_wait_until_it_is_done(
    connect: Connect, database: Database, way: str, outcome: Any
) -> None:
    mq, other = await connect(database.url), await connect(database.url)
    q = mq.queue("q")
    await q.put("old", key="k")
    async with q.hold() as job:
        waiting = asyncio.create_task(offer_meanwhile(other.queue("q"), way))
        await asyncio.wait({waiting}, timeout=0.05)
        assert not waiting.done()
        assert job.payload == "old"
    assert await waiting == outcome
    assert [job.payload for job in await q.archive()] == ["old"]
    wanted = {"completed": 1} if way == "drop" else {"completed": 1, "pending": 1}
    assert await numbers(q) == wanted
    if way != "drop":
        assert (await q.read("k")).payload == await held(q) == "new"


@on_servers
@async_only
@pytest.mark.parametrize(
    ("way", "outcome", "wanted"),
    [
        ("update", Outcome.UPDATED, ["new", 1]),
        ("create", Outcome.IGNORED, ["old", 2]),
        ("drop", True, None),
        ("put", errors.KeyTaken, ["old", 2]),
    ],
)
async def test_offers_of_a_held_key_wait_until_it_has_failed(
    connect: Connect, database: Database, way: str, outcome: Any, wanted: Any
) -> None:
    mq, other = await connect(database.url), await connect(database.url)
    q = mq.queue("q")
    await q.put("old", key="k")
    with suppress(ZeroDivisionError):
        async with q.hold():
            waiting = asyncio.create_task(offer_meanwhile(other.queue("q"), way))
            await asyncio.wait({waiting}, timeout=0.05)
            raise ZeroDivisionError
    if outcome is errors.KeyTaken:
        with pytest.raises(errors.KeyTaken):
            await waiting
    else:
        assert await waiting == outcome
    async with q.hold() as job:
        if wanted is None:
            assert job is None
        else:
            assert [job.payload, job.attempt] == wanted
    assert not await q.contains("k")
    assert await numbers(q) == ({} if wanted is None else {"completed": 1})
    assert left(database) == []


@on_servers
@async_only
async def test_who_cannot_wait_is_told(connect: Connect, database: Database) -> None:
    mq = await connect(database.url)
    other = await connect(database.url, lock_timeout=1, retry_for=0)
    q = mq.queue("q")
    await q.put("old", key="k")
    async with q.hold():
        with pytest.raises(errors.Locked):
            await other.queue("q").offer_or_update("k", "new", None)
        await other.queue("q").offer_or_update("another", "new", None)
    assert [job.payload for job in await q.archive()] == ["old"]
    assert await held(q) == "new"


@on_servers
@async_only
@pytest.mark.parametrize("order", ["fifo", "lifo"])
async def test_a_job_whose_key_is_in_use_is_passed_over(
    connect: Connect, database: Database, order: str
) -> None:
    """And it is not kept from others either, once its key is free."""
    mq, other = await connect(database.url), await connect(database.url)
    q = mq.queue("q")
    keys = ["busy", "free"] if order == "fifo" else ["free", "busy"]
    for key in keys:
        await q.put(key, key=key)
    async with AsyncExitStack() as stack:
        async with other.transaction() as tx:
            outcome = await tx.queue("q").offer_if_not_exists("busy", "in vain", None)
            assert outcome is Outcome.IGNORED
            job = await stack.enter_async_context(q.hold(order=order))
            assert job is not None
            assert job.payload == "free"
        assert await held(other.queue("q"), order=order) == "busy"
    assert await numbers(q) == {"completed": 2}


@async_only
@pytest.mark.parametrize("way", ["update", "drop"])
async def test_a_job_that_changes_its_own_key_loses_and_doubles_nothing(
    mq: Any, database: Database, way: str
) -> None:
    """Whether leaving is refused or not: what the key has afterwards can be worked on."""
    q = mq.queue("q")
    await q.put("old", key="k")
    with suppress(errors.StaleLease):
        async with q.hold(max_failures=5) as job:
            await offer_meanwhile(job.tx.queue("q"), way)
    counts = await numbers(q)
    assert counts.get("completed", 0) == len(await q.archive(state=State.COMPLETED))
    live = counts.get("pending", 0) + counts.get("retryable", 0) + counts.get("processing", 0)
    assert await q.contains("k") == bool(live)
    if live:
        # What is left of a lock on the old one ends by itself; here, at once.
        database.execute("UPDATE rowmq_locks SET locked_until = 1")
        polled = await q.try_poll()
        assert polled is not None
        await polled.ack()
    assert not await q.contains("k")
    assert set(await numbers(q)) <= {"completed"}


# --- who is stopped, and who dies ----------------------------------------------------------------


async def test_being_stopped_is_no_failure(mq: Any, database: Database, effects: Effects) -> None:
    q = mq.queue("q")
    await q.put("work", key="k")
    for error in (KeyboardInterrupt, SystemExit, asyncio.CancelledError):
        with pytest.raises(error):
            async with q.hold(max_failures=1) as job:
                assert (job.attempt, job.delivery_type) == (1, DeliveryType.FIRST_DELIVERY)
                await effects.add(job.tx, 1)
                raise error
    assert effects.all == []
    assert await numbers(q) == {"pending": 1}
    assert await held(q, max_failures=1) == "work"
    assert left(database) == []


@async_only
async def test_a_cancelled_task_lets_go_of_its_job(mq: Any, effects: Effects) -> None:
    q = mq.queue("q")
    await q.put("work")
    started = asyncio.Event()

    async def work() -> None:
        async with q.hold(max_failures=1) as job:
            await effects.add(job.tx, 1)
            started.set()
            await asyncio.sleep(60)

    task = asyncio.create_task(work())
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert effects.all == []
    async with q.hold(max_failures=1) as job:
        assert (job.payload, job.attempt) == ("work", 1)


@on_servers
@async_only
async def test_being_stopped_is_no_failure_for_the_one_who_takes_over_at_once(
    connect: Connect, database: Database
) -> None:
    """A rival who waits for the job gets it in the moment in which it is let go of."""
    mq = await connect(database.url)
    rival = rowmq.connect(database.url)
    q = mq.queue("q")
    taken: list[int] = []
    stop = threading.Event()

    def take_over() -> None:
        while not stop.is_set():
            with rival.queue("q").hold(max_failures=1) as job:
                if job is not None:
                    taken.append(job.payload)

    try:
        for number in range(5):
            await q.put(number)
            with suppress(KeyboardInterrupt):
                async with q.hold(max_failures=1):
                    stop.clear()
                    thread = threading.Thread(target=take_over)
                    thread.start()
                    await asyncio.sleep(0.01)
                    raise KeyboardInterrupt
            with suppress(AssertionError):
                await eventually(partial(taken.count, number), seconds=0.3)
            stop.set()
            thread.join()
            assert await q.failed() == []
            assert taken == list(range(number + 1))
    finally:
        stop.set()
        rival.close()


class Holding:
    """A process of `tests.processes.holder`."""

    def __init__(self, flavour: str, url: str, **options: Any) -> None:
        module = [sys.executable, "-m", "tests.processes.holder"]
        self.process = subprocess.Popen(
            [*module, flavour, url, "q", json.dumps(options)],
            stdout=subprocess.PIPE,
            cwd=ROOT,
        )

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().decode().strip()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextmanager
def processes(count: int, flavour: str, url: str, **options: Any) -> Iterator[list[Holding]]:
    started = [Holding(flavour, url, **options) for _ in range(count)]
    try:
        assert [process.line() for process in started] == ["ready"] * count
        yield started
    finally:
        for process in started:
            if process.process.poll() is None:
                process.kill()


async def test_deaths_are_counted_and_release_the_job_at_once(
    mq: Any, database: Database, flavour: str
) -> None:
    """At once on servers; on SQLite when its lock is over. Nothing else holds the job up."""
    q = mq.queue("q")
    await q.configure(max_in_flight=1)  # its permit is released with it
    await q.put("healthy", delay=600, key="later")
    put = await q.put("kills its process")
    lock = {"lock_timeout": 0.4} if database.name == "sqlite" else {}
    with processes(2, flavour, database.url, max_failures=2, **lock) as crew:
        lines = [asyncio.create_task(asyncio.to_thread(process.line)) for process in crew]
        for delivery in (1, 2):
            done, _ = await asyncio.wait(lines, return_when=asyncio.FIRST_COMPLETED, timeout=30)
            (line,) = done
            assert line.result() == str(delivery)
            place = lines.index(line)
            killed_at = time.monotonic()
            crew.pop(place).kill()
            lines.pop(place)
            if delivery == 1 and database.name != "sqlite":
                await asyncio.wait(lines, timeout=30)
                assert time.monotonic() - killed_at < 2
    with pytest.raises(AssertionError):
        await eventually(lambda: held(q, max_failures=2, **lock), seconds=0.6 if lock else 0.05)
    (failed,) = await q.failed()
    assert (failed.id, failed.state, failed.payload) == (put.id, State.FAILED, "kills its process")
    assert "died" in failed.error
    assert failed.deliveries == 3  # the last one was not tried
    assert await q.try_poll() is None
    assert await mq.read("started") == []  # it was never committed
    assert await numbers(q) == {"pending": 1, "failed": 1}


@on_servers
async def test_a_connection_that_is_cut_is_a_failure(
    mq: Any, database: Database, effects: Effects
) -> None:
    q = mq.queue("q")
    await q.put("work")
    with pytest.raises(errors.RowMQError):
        async with q.hold(max_failures=2) as job:
            await effects.add(job.tx, 1)
            cut_connections(database)
            await effects.add(job.tx, 2)
    assert effects.all == []
    async with q.hold(max_failures=2) as job:
        assert (job.payload, job.attempt) == ("work", 2)
        await effects.add(job.tx, 3)
    assert effects.all == [3]
    assert left(database) == []


@on_servers
@async_only
async def test_a_connection_that_is_cut_before_the_block_is_left_acks_nothing(
    mq: Any, database: Database, effects: Effects
) -> None:
    q = mq.queue("q")
    await q.put("work")
    with pytest.raises(errors.RowMQError):
        async with q.hold() as job:
            await effects.add(job.tx, 1)
            cut_connections(database)
    assert effects.all == []
    async with q.hold() as job:
        assert (job.payload, job.attempt) == ("work", 2)


@on_servers
@async_only
async def test_a_held_job_is_held_for_as_long_as_it_takes(mq: Any) -> None:
    """A lock_timeout is for SQLite: elsewhere the transaction is the lock."""
    q = mq.queue("q", lock_timeout=0.01)
    await q.put("work")
    async with q.hold(lock_timeout=0.01):
        await asyncio.sleep(0.1)
        assert await held(q) is None
        assert await q.try_poll() is None
    assert await numbers(q) == {"completed": 1}


# --- lines ---------------------------------------------------------------------------------------


@async_only
async def test_a_line_goes_on_when_its_held_head_is_done(mq: Any) -> None:
    q = mq.queue("q")
    await q.put_many([1, 2], ordering_key="a")
    await q.put(3, ordering_key="b")
    async with q.hold() as job:
        assert job.payload == 1
        assert await held(q) == 3
        assert await held(q) is None
    job = await fail(q, ValueError("no"))
    assert job.payload == 2
    await q.put(4, ordering_key="a")
    assert [await held(q) for _ in range(3)] == [2, 4, None]


@async_only
async def test_a_line_goes_on_when_its_held_head_has_failed(mq: Any) -> None:
    q = mq.queue("q")
    await q.put_many([1, 2], ordering_key="a")
    await fail(q, ValueError("no"), max_failures=1)
    assert await held(q) == 2
    assert await numbers(q) == {"completed": 1, "failed": 1}


@async_only
async def test_nobody_gets_in_front_of_a_held_head(mq: Any) -> None:
    q = mq.queue("q")
    await q.put(1, ordering_key="a")
    async with q.hold() as job:
        assert job.payload == 1
        await q.put(2, ordering_key="a", priority=5)
        assert await held(q) is None
    assert await held(q) == 2


# --- SQLite --------------------------------------------------------------------------------------


@on_sqlite
async def test_other_writers_are_not_kept_out_until_the_transaction_is_used(
    connect: Connect, database: Database, effects: Effects
) -> None:
    mq = await connect(database.url)
    other = await connect(database.url, lock_timeout=0.05, retry_for=0)
    q = mq.queue("q")
    await q.put("work")
    async with q.hold() as job:
        await other.publish("t", 1)
        await mq.queue("other").put(1)
        await effects.add(job.tx, 1)
        with pytest.raises(errors.Locked):
            await other.publish("t", 2)
    await other.publish("t", 3)
    assert effects.all == [1]
    assert [m.payload for m in await mq.read("t")] == [1, 3]


@on_sqlite
async def test_a_hold_that_took_too_long_keeps_nothing(
    connect: Connect, database: Database, effects: Effects, caplog: pytest.LogCaptureFixture
) -> None:
    """Its job was given to others, so leaving raises, and what it wrote is undone."""
    mq, other = await connect(database.url), await connect(database.url)
    q = mq.queue("q")
    await q.put("work")
    caplog.set_level(logging.CRITICAL)
    with pytest.raises(errors.StaleLease):
        async with q.hold(lock_timeout=0.05) as job:
            await eventually(lambda: takes_over(other, effects))
            await effects.add(job.tx, 1)
    assert effects.all == [2]
    (done,) = await q.archive()
    assert (done.state, done.deliveries) == (State.COMPLETED, 2)
    assert await numbers(q) == {"completed": 1}


async def takes_over(mq: Any, effects: Effects) -> bool:
    async with mq.queue("q").hold() as job:
        if job is None:
            return False
        assert (job.payload, job.delivery_type) == ("work", DeliveryType.REDELIVERY)
        await effects.add(job.tx, 2)
    return True


@async_only
@on_sqlite
@pytest.mark.parametrize("way", ["update", "drop"])
async def test_what_was_updated_or_dropped_meanwhile_keeps_nothing(
    mq: Any, effects: Effects, way: str
) -> None:
    q = mq.queue("q")
    await q.put("old", key="k")
    with pytest.raises(errors.StaleLease):
        async with q.hold() as job:
            await offer_meanwhile(q, way)
            await effects.add(job.tx, 1)
    assert effects.all == []
    assert await held(q) == ("new" if way == "update" else None)
    assert await numbers(q) == ({"completed": 1} if way == "update" else {})


@async_only
@on_sqlite
async def test_a_hold_in_time_is_nobody_elses(connect: Connect, database: Database) -> None:
    mq, other = await connect(database.url), await connect(database.url)
    q = mq.queue("q", lock_timeout=0.01)
    await q.put("work")
    async with q.hold(lock_timeout=60):
        await asyncio.sleep(0.03)
        assert await held(other.queue("q")) is None
    assert await numbers(q) == {"completed": 1}
