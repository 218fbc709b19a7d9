"""Settling jobs: ack, nack, reject, release and extend, and what happens to those who are late."""

import asyncio
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import rowmq
from rowmq import (
    Constant,
    DeliveryType,
    ExponentialBackoff,
    Linear,
    NoRetry,
    ScheduledMessage,
    State,
    errors,
)
from rowmq.drivers.base import take_steps
from rowmq.drivers.mysql import AsyncmySession, PyMySQLSession
from rowmq.drivers.postgres import AsyncpgSession, PsycopgSession
from rowmq.drivers.sqlite import SQLiteSession
from rowmq.queue.ticket import Ticket, wanted_of
from rowmq.store.settles import Kind
from rowmq.store.statement import Result, Statement
from tests.choices import async_only, on_servers, on_sqlite
from tests.conformance.test_queue_claim import (
    contents,
    counted,
    expire,
    make_due,
    occupied,
    past,
    payloads,
)
from tests.conftest import Connect
from tests.consuming import eventually, statements
from tests.databases import Database

FIRST, AGAIN = DeliveryType.FIRST_DELIVERY, DeliveryType.REDELIVERY

PARAMETERS_MAX = {"sqlite": 32_766, "postgres": 65_535, "mysql": 65_535}

Settling = Callable[[Any], Any]

WAYS: dict[str, Settling] = {
    "ack": lambda job: job.ack(),
    "nack": lambda job: job.nack(delay=0, error="late"),
    "reject": lambda job: job.reject(error="late"),
    "release": lambda job: job.release(),
    "extend": lambda job: job.extend(60),
}


STATES = ("completed", "retryable", "failed", "pending", "processing")
"""What becomes of a job in each of these ways."""


async def claimed(q: Any, *payloads: Any, **how: Any) -> list[Any]:
    """Jobs that were put and claimed, in one lock, and not by a claim that was full."""
    await q.put_many(payloads or [1], **how)
    jobs: list[Any] = await q.try_poll_many(10_000)
    return jobs


# --- each way -------------------------------------------------------------------------------------


async def test_an_acked_job_is_completed(mq: Any, database: Database) -> None:
    q = mq.queue("q")
    (job,) = await claimed(q, "done")
    await job.ack()
    assert job.settled
    assert await counted(q) == {"completed": 1}
    (kept,) = await q.archive()
    assert (kept.id, kept.payload, kept.state) == (job.id, "done", State.COMPLETED)
    assert (kept.attempts, kept.attempt, kept.error) == (1, 1, None)
    assert kept.finished_at >= kept.created_at
    assert occupied(database) == {"jobs", "completed"}
    expire(database)
    assert await q.try_poll() is None


async def test_a_rejected_job_has_failed_for_the_reason_that_was_given(
    mq: Any, database: Database
) -> None:
    q = mq.queue("q")
    reasons: dict[Any, str | None] = {
        "plain": "plain",
        None: None,
        ValueError("of no use 😀"): "ValueError: of no use 😀",
        "nul \0 byte": "nul \\0 byte",
        "lone \ud800 surrogate": "lone \\ud800 surrogate",
        "": "",
        "€" * 20_000: "€" * 16_000,
    }
    jobs = await claimed(q, *range(len(reasons)))
    for job, reason in zip(jobs, reasons, strict=True):
        await job.reject(error=reason)
    failed = await q.failed()
    assert {job.payload: job.error for job in failed} == dict(enumerate(reasons.values()))
    assert {(job.state, job.attempts) for job in failed} == {(State.FAILED, 1)}
    assert occupied(database) == {"jobs", "failed"}


async def test_a_nacked_job_comes_again_when_it_is_due(mq: Any, database: Database) -> None:
    q = mq.queue("q")
    (job,) = await claimed(q, "again")
    await job.nack(delay=60, error="not now")
    assert await counted(q) == {"retryable": 1}
    assert await q.try_poll() is None
    assert delays(database) == [60_000_000]
    make_due(database)
    again = await q.try_poll()
    assert (again.id, again.payload) == (job.id, "again")
    assert (again.attempt, again.attempts, again.deliveries) == (2, 1, 2)
    assert again.delivery_type is AGAIN
    assert [(e.attempt, e.error) for e in await q.errors(job.id)] == [(1, "not now")]
    await again.ack()
    (kept,) = await q.archive()
    assert (kept.attempts, kept.deliveries) == (2, 2)
    assert len(await q.errors(job.id)) == 1


async def test_a_released_job_is_as_if_it_had_never_been_claimed(
    mq: Any, database: Database
) -> None:
    q = mq.queue("q", max_deliveries=1)
    await q.put("plain")
    await q.put("keyed", key="k")
    await q.put("in a line", ordering_key="line")
    before = contents(database)
    for _ in range(3):
        jobs = await q.try_poll_many(9)
        assert [(job.delivery_type, job.deliveries, job.attempt) for job in jobs] == [
            (FIRST, 1, 1)
        ] * 3
        for job in jobs:
            await job.release()
            assert job.settled
        assert contents(database) == before


@async_only  # what is asked of the database is the same
async def test_release_gives_back_an_earlier_delivery_count_and_place(
    mq: Any, database: Database
) -> None:
    q = mq.queue("q")
    await claimed(q, 1, 2)
    expire(database)
    jobs = await q.try_poll_many(9)
    await jobs[0].nack(delay=0)
    await jobs[1].release()
    jobs = await q.try_poll_many(9)
    assert [(job.payload, job.deliveries, job.attempt) for job in jobs] == [(2, 2, 1), (1, 3, 2)]


async def test_an_extended_lock_is_kept(connect: Connect, mq: Any, database: Database) -> None:
    q, other = mq.queue("q"), (await connect(database.url)).queue("q")
    await q.put_many([1, 2])
    jobs = await q.try_poll_many(9, lock_timeout=0.2)
    await jobs[0].extend(60)
    assert not jobs[0].settled
    ((until, since),) = database.execute("SELECT locked_until, claimed_at FROM rowmq_locks")
    assert 60_000_000 <= until - since < 70_000_000
    assert await other.poll(timeout=0.3) is None
    await jobs[0].extend(timedelta(seconds=1))  # which is less than there is
    assert database.execute("SELECT locked_until FROM rowmq_locks") == [(until,)]
    await q.ack(jobs)


@on_sqlite
async def test_an_extension_must_be_a_time_from_now_on(mq: Any) -> None:
    (job,) = await claimed(mq.queue("q"))
    for seconds in (0, -1, "60", None, float("nan"), float("inf")):
        with pytest.raises(errors.InvalidOption):
            await job.extend(seconds)
    await job.ack()


@on_sqlite
async def test_what_was_not_claimed_cannot_be_settled(mq: Any, database: Database) -> None:
    q = mq.queue("q")
    put = await q.put(1, key="k")
    before = contents(database)
    for job in (put, await q.read("k")):
        for settle in WAYS.values():
            with pytest.raises(errors.NotClaimed):
                await settle(job)
    with pytest.raises(errors.NotClaimed):
        await q.ack([put])
    assert contents(database) == before


@on_sqlite
async def test_ack_takes_a_list_of_jobs(mq: Any) -> None:
    q = mq.queue("q")
    jobs = await claimed(q, 1, 2)
    for wrong in (None, 1, [1], ["x"], [jobs[0], None]):
        with pytest.raises(errors.InvalidInput, match="ack takes"):
            await q.ack(wrong)
    await q.ack([])
    await q.ack([jobs[0], jobs[0]])  # the same one twice is once
    await q.ack([jobs[1]])
    assert await counted(q) == {"completed": 2}


# --- twice ----------------------------------------------------------------------------------------


async def test_a_second_settle_is_refused_and_changes_nothing(mq: Any, database: Database) -> None:
    q = mq.queue("q")
    for first in ("ack", "nack", "reject", "release"):
        alone = await claimed(q, "alone")
        batch = await claimed(q, "of many", "other")
        for job in (alone[0], batch[0]):
            await WAYS[first](job)
            before = contents(database)
            for settle in WAYS.values():
                with pytest.raises(errors.AlreadySettled):
                    await settle(job)
            with pytest.raises(errors.AlreadySettled):
                await q.ack([job])
            assert contents(database) == before


async def test_of_two_who_settle_at_once_one_succeeds(mq: Any) -> None:
    q = mq.queue("q")
    jobs = await claimed(q, *range(10))
    settles = [settle(job) for job in jobs for settle in (WAYS["ack"], WAYS["reject"])]
    outcomes = await asyncio.gather(*settles, return_exceptions=True)
    kinds = Counter(type(outcome).__name__ for outcome in outcomes)
    assert kinds == {"NoneType": 10, "AlreadySettled": 10}
    assert sum((await counted(q)).values()) == 10


async def test_an_ack_is_not_refused_because_the_lock_is_being_extended(mq: Any) -> None:
    """As a heartbeat does in the background, all the time."""
    q = mq.queue("q")
    for _ in range(5):
        (job,) = await claimed(q)
        extending = asyncio.create_task(job.extend(60))
        await asyncio.sleep(0)
        await job.ack()
        # The extension may come too late, which it is told; the ack may not.
        outcome = (await asyncio.gather(extending, return_exceptions=True))[0]
        assert outcome is None or isinstance(outcome, errors.AlreadySettled | errors.StaleLease)
    assert await counted(q) == {"completed": 5}


async def test_a_batch_with_a_settled_job_is_refused_as_a_whole(
    mq: Any, database: Database
) -> None:
    q = mq.queue("q")
    jobs = await claimed(q, 1, 2, 3)
    await jobs[1].ack()
    before = contents(database)
    with pytest.raises(errors.AlreadySettled):
        await q.ack(jobs)
    assert contents(database) == before
    await q.ack([jobs[0], jobs[2]])


# --- too late -------------------------------------------------------------------------------------


async def test_a_stale_settle_is_refused_and_changes_nothing(
    connect: Connect, mq: Any, database: Database
) -> None:
    q, other = mq.queue("q"), (await connect(database.url)).queue("q")
    for options in ({}, {"key": "k"}, {"ordering_key": "line"}):
        await q.put(1, **options)
        (stale,) = await q.try_poll_many(9)
        expire(database)
        (job,) = await other.try_poll_many(9)
        before = contents(database)
        for settle in WAYS.values():
            with pytest.raises(errors.StaleLease, match="changed nothing"):
                await settle(stale)
        with pytest.raises(errors.StaleLease):
            await q.ack([stale])
        assert contents(database) == before
        await job.ack()
        with pytest.raises(errors.StaleLease):
            await stale.ack()
    assert await counted(q) == {"completed": 3}


async def test_what_was_dropped_is_not_told_to_be_settled(mq: Any, database: Database) -> None:
    """Nor is it while its lock is there, for a job that nobody has dropped."""
    some, others = mq.queue("q", kind="some"), mq.queue("q", kind="others")
    await some.put(1)
    await others.put(2)
    jobs = await mq.queue("q").try_poll_many(2)
    (dropped,), (kept,) = ([job for job in jobs if job.payload == n] for n in (1, 2))
    assert await some.drop_all("Yes, please, I know what I'm doing!") == 1
    before = contents(database)
    for settle in WAYS.values():
        with pytest.raises(errors.StaleLease, match="changed nothing"):
            await settle(dropped)
        with pytest.raises(errors.StaleLease, match="changed nothing"):
            async with mq.transaction() as tx:
                await mq.queue("q").ack([dropped], connection=tx)
    assert contents(database) == before
    await kept.ack()
    assert await counted(mq.queue("q")) == {"completed": 1}


async def test_a_settle_is_stale_once_the_job_was_given_back(mq: Any, database: Database) -> None:
    """Also while nobody has claimed it again."""
    q = mq.queue("q")
    (stale,) = await claimed(q)
    expire(database)
    assert await mq.queue("other").try_poll() is None  # which gives back what it finds
    before = contents(database)
    for settle in WAYS.values():
        with pytest.raises(errors.StaleLease):
            await settle(stale)
    assert contents(database) == before
    assert (await q.try_poll()).deliveries == 2


async def test_a_settle_that_comes_before_the_job_was_given_back_counts(
    mq: Any, database: Database
) -> None:
    q = mq.queue("q")
    await q.put_many(range(5))
    jobs = [await q.try_poll() for _ in range(5)]
    expire(database)
    for settle, job in zip(WAYS.values(), jobs, strict=True):
        await settle(job)
    assert await counted(q) == dict.fromkeys(STATES, 1)


@pytest.mark.parametrize("change", ["update", "drop"])
async def test_a_settle_of_a_job_that_was_updated_or_dropped_is_stale(
    mq: Any, database: Database, change: str
) -> None:
    q = mq.queue("q")
    await q.put("old", key="k")
    (stale,) = await q.try_poll_many(9)
    if change == "update":
        await q.offer_or_update("k", "new")
    else:
        assert await q.drop("k")
    before = contents(database)
    for settle in WAYS.values():
        with pytest.raises(errors.StaleLease):
            await settle(stale)
    assert contents(database) == before
    assert await counted(q) == ({"pending": 1} if change == "update" else {})
    expire(database)
    assert payloads(await q.try_poll_many(9)) == (["new"] if change == "update" else [])


async def test_of_a_batch_what_is_not_stale_is_settled(mq: Any, database: Database) -> None:
    q = mq.queue("q")
    stale = await claimed(q, "lost")
    expire(database)
    jobs = await claimed(q, "held")
    assert sorted(payloads(jobs)) == ["held", "lost"]
    (held,) = [job for job in jobs if job.payload == "held"]
    with pytest.raises(errors.StaleLease):
        await q.ack([*stale, held])
    assert await counted(q) == {"processing": 1, "completed": 1}
    assert held.settled
    assert not stale[0].settled


# --- retry strategies -----------------------------------------------------------------------------


def delays(database: Database) -> list[int]:
    """How long after its last failure each job is due, in microseconds."""
    rows = database.execute(
        "SELECT r.due_at - e.failed_at FROM rowmq_ready r JOIN rowmq_job_errors e "
        "ON e.job_id = r.job_id AND e.attempt = r.attempts ORDER BY r.job_id"
    )
    return [delay for (delay,) in rows]


class Fibonacci:
    """A user's own: it need not derive from anything."""

    max_attempts = 5

    def delay(self, attempt: int, *, random: Callable[[], float] = lambda: 0.5) -> float | None:
        assert random() <= 1
        return [1.0, 1.0, 2.0, 3.0, None][attempt - 1]


STRATEGIES: dict[str, tuple[Any, list[float]]] = {
    "none": (NoRetry(), []),
    "constant": (Constant(interval=5, max_attempts=3), [5, 5]),
    "constant of total": (Constant(interval=10, max_total_delay=25), [10, 10]),
    "linear": (Linear(initial=1, step=1.5, max_delay=3.5, max_attempts=5), [1, 2.5, 3.5, 3.5]),
    "exponential": (
        ExponentialBackoff(initial=0.25, multiplier=4, max_delay=5, max_attempts=5),
        [0.25, 1, 4, 5],
    ),
    "exponential of total": (
        ExponentialBackoff(initial=timedelta(seconds=1), max_total_delay=timedelta(seconds=8)),
        [1, 2, 4],
    ),
    "a user's own": (Fibonacci(), [1, 1, 2, 3]),
}


@async_only  # what a nack comes to is decided in one place
@pytest.mark.parametrize("name", STRATEGIES)
async def test_nacks_are_retried_as_the_strategy_says(
    mq: Any, database: Database, name: str
) -> None:
    strategy, expected = STRATEGIES[name]
    q = mq.queue("q", retry=strategy)
    await q.put(1)
    for attempt, seconds in enumerate(expected, 1):
        job = await q.try_poll()
        assert job.attempt == attempt
        await job.nack(error=f"error {attempt}")
        assert delays(database) == [round(seconds * 1_000_000)]
        make_due(database)
    job = await q.try_poll()
    await job.nack(error="the last one")
    assert await counted(q) == {"failed": 1}
    (failed,) = await q.failed()
    assert (failed.attempts, failed.error) == (len(expected) + 1, "the last one")
    earlier = [error.error for error in await q.errors(job.id)]
    assert earlier == [f"error {attempt}" for attempt in range(1, len(expected) + 1)]


@async_only  # what is asked of the database is the same
async def test_jitter_spreads_what_failed_together(mq: Any, database: Database) -> None:
    q = mq.queue("q", retry=Constant(interval=100, jitter=0.5))
    for job in await claimed(q, *range(20)):
        await job.nack()
    found = delays(database)
    assert len(set(found)) > 10
    assert all(50_000_000 <= delay <= 100_000_000 for delay in found)


@async_only  # what a nack comes to is decided in one place
async def test_without_a_strategy_there_are_twenty_attempts_over_hours(
    mq: Any, database: Database
) -> None:
    q = mq.queue("q")
    (job,) = await claimed(q)
    await job.nack()
    assert 900_000 <= delays(database)[0] <= 1_000_000
    database.execute("UPDATE rowmq_ready SET attempts = 18, due_at = 1")
    await (await q.try_poll()).nack()
    assert 3_240_000_000 <= delays(database)[0] <= 3_600_000_000
    make_due(database)
    await (await q.try_poll()).nack(error="enough")
    (failed,) = await q.failed()
    assert (failed.attempts, failed.error) == (20, "enough")


@async_only  # what is asked of the database is the same
async def test_a_given_delay_replaces_only_the_delay(mq: Any, database: Database) -> None:
    q = mq.queue("q", retry=Constant(interval=100, max_attempts=2))
    (job,) = await claimed(q)
    await job.nack(delay=timedelta(seconds=7))
    assert delays(database) == [7_000_000]
    make_due(database)
    await (await q.try_poll()).nack(delay=7)
    assert await counted(q) == {"failed": 1}


@async_only  # what is asked of the database is the same
async def test_who_nacks_decides_by_the_strategy_of_the_handle(mq: Any, database: Database) -> None:
    """It is the handle's and not the job's: another handle may have another."""
    patient, strict = mq.queue("q", retry=Constant(interval=9)), mq.queue("q", retry=NoRetry())
    (job,) = await claimed(patient)
    await job.nack()
    make_due(database)
    await (await strict.try_poll()).nack()
    assert await counted(patient) == {"failed": 1}


@on_sqlite
async def test_a_settle_that_cannot_be_understood_leaves_the_job_to_be_settled(
    mq: Any, database: Database
) -> None:
    class Broken:
        max_attempts = None

        def delay(self, attempt: int, **_: Any) -> float | None:
            raise LookupError(f"no delay for {attempt}")

    (job,) = await claimed(mq.queue("q", retry=Broken()))
    before = contents(database)
    for delay in (-1, "1", float("nan"), float("inf")):
        with pytest.raises(errors.InvalidOption, match="delay"):
            await job.nack(delay=delay)
    for error in (5, b"bytes", ["x"]):
        with pytest.raises(errors.InvalidOption, match="error"):
            await job.nack(error=error)
        with pytest.raises(errors.InvalidOption, match="error"):
            await job.reject(error=error)
    with pytest.raises(LookupError, match="no delay for 1"):
        await job.nack()
    assert contents(database) == before
    assert not job.settled
    await job.ack()


# --- what is not kept -----------------------------------------------------------------------------


async def fill_and_finish(q: Any, database: Database, finish: Settling) -> None:
    """Jobs of every sort, each of which failed once before it was finished."""
    await q.put("plain")
    await q.put("keyed", key="k")
    for n in range(2):
        await q.put(n, ordering_key="line", headers={"a": "b"})
    await q.put("urgent", priority=1)
    for job in await q.try_poll_many(9):
        await job.nack(delay=0, error="once")
    done = 0
    while jobs := await q.try_poll_many(9):
        expire(database)  # and was claimed once more than that
        jobs = await q.try_poll_many(9)
        for job in jobs:
            await finish(job)
            done += 1
    assert done == 5


@pytest.mark.parametrize("state", ["completed", "failed"])
async def test_what_is_not_to_be_kept_leaves_nothing_behind(
    mq: Any, database: Database, state: str
) -> None:
    q = mq.queue("q")
    await q.configure(**{f"keep_{state}": False})
    await fill_and_finish(q, database, WAYS["ack" if state == "completed" else "reject"])
    assert await counted(q) == {}
    await q.prune()
    assert contents(database) == {}
    await fill_and_finish(q, database, WAYS["reject" if state == "completed" else "ack"])
    assert sum((await counted(q)).values()) == 5  # of the other state


@async_only  # what is asked of the database is the same
async def test_many_that_are_not_to_be_kept_leave_nothing_behind(
    mq: Any, database: Database
) -> None:
    q = mq.queue("q")
    await q.configure(keep_completed=False, keep_failed=False)
    jobs = await claimed(q, *range(300))
    await q.ack(jobs[:290])
    for job in jobs[290:]:
        await job.reject(error="no")
    assert contents(database) == {}


async def test_a_job_that_was_retried_and_is_not_to_be_kept_leaves_nothing_behind(
    mq: Any, database: Database
) -> None:
    """Its earlier failures are traces, though its deliveries are counted anew."""
    q = mq.queue("q")
    await q.configure(keep_completed=False)
    (job,) = await claimed(q)
    await job.reject(error="at first")
    assert await q.retry([job.id]) == 1
    await (await q.try_poll()).ack()
    assert contents(database) == {}


@on_servers  # where holders note what they began
async def test_a_job_whose_holder_died_and_is_not_to_be_kept_leaves_nothing_behind(
    mq: Any, database: Database
) -> None:
    q = mq.queue("q")
    await q.configure(keep_completed=False)
    job = await q.put(1)
    database.execute(
        f"INSERT INTO rowmq_holds (job_id, started_at, starts) VALUES ({job.id}, 1, 1)"
    )
    await (await q.try_poll()).ack()
    assert contents(database) == {}


# --- many -----------------------------------------------------------------------------------------


@async_only  # what is asked of the database is the same
async def test_thousands_of_jobs_are_settled_in_one_call(mq: Any, database: Database) -> None:
    """Plain ones, and those that have keys."""
    q = mq.queue("q")
    await q.put_many(range(4_000))
    await q.offer_batch([ScheduledMessage(f"k{n}", n) for n in range(4_000, 5_200)])
    await settle_thousands(mq, database)


@async_only  # what is asked of the database is the same
@pytest.mark.parametrize("database", ["postgres"], indirect=True)  # which has a way for it
async def test_thousands_of_plain_jobs_are_settled_in_one_call(mq: Any, database: Database) -> None:
    await mq.queue("q").put_many(range(5_200))
    await settle_thousands(mq, database)


async def settle_thousands(mq: Any, database: Database) -> None:
    q = mq.queue("q")
    with statements(mq) as seen:
        jobs = await q.try_poll_many(10_000)
        assert payloads(jobs) == list(range(5_200))
        await q.ack(jobs)
    assert await counted(q) == {"completed": 5_200}
    assert occupied(database) == {"jobs", "completed"}
    assert max(len(s.params) for s in seen) <= PARAMETERS_MAX[database.dialect]
    assert max(len(s.sql) for s in seen) < 1_000_000


async def test_a_batch_is_acked_bit_by_bit_from_everywhere_at_once(
    mq: Any, database: Database
) -> None:
    q = mq.queue("q")
    jobs = await claimed(q, *range(60))
    settles = [job.ack() for job in jobs[:30]]
    settles += [q.ack(jobs[start : start + 5]) for start in range(30, 50, 5)]
    settles += [job.nack(delay=60) for job in jobs[50:54]]
    settles += [job.reject() for job in jobs[54:57]]
    await asyncio.gather(*settles)
    assert await counted(q) == {"processing": 3, "retryable": 4, "completed": 50, "failed": 3}
    assert len(contents(database)["locks"]) == 1
    await asyncio.gather(*(job.ack() for job in jobs[57:]))
    assert "locks" not in occupied(database)


async def test_clients_settle_their_batches_beside_each_other(
    connect: Connect, mq: Any, database: Database
) -> None:
    clients = [mq, await connect(database.url)]
    await mq.queue("q").offer_batch([ScheduledMessage(f"k{n}", n) for n in range(40)])
    batches = [(c.queue("q"), await c.queue("q").try_poll_many(10)) for c in clients * 2]
    await asyncio.gather(*(q.ack(jobs) for q, jobs in batches))
    assert await counted(mq.queue("q")) == {"completed": 40}
    assert occupied(database) == {"jobs", "completed"}


# --- in a transaction -----------------------------------------------------------------------------


async def test_a_settle_is_part_of_the_callers_transaction(mq: Any, database: Database) -> None:
    q = mq.queue("q")
    jobs = await claimed(q, 1, 2, 3, 4)
    before = contents(database)
    with pytest.raises(ZeroDivisionError):
        async with mq.transaction() as tx:
            await jobs[0].ack(connection=tx)
            await jobs[1].nack(connection=tx)
            await jobs[2].reject(connection=tx)
            await q.ack(jobs[3:], connection=tx)
            raise ZeroDivisionError
    assert contents(database) == before
    async with mq.transaction() as tx:
        await jobs[0].ack(connection=tx)
        await jobs[1].nack(connection=tx, delay=60)
        await jobs[2].reject(connection=tx)
        await q.ack(jobs[3:], connection=tx)
    assert await counted(q) == {"retryable": 1, "completed": 2, "failed": 1}
    for job in jobs:
        with pytest.raises(errors.AlreadySettled):
            await job.ack()


async def test_a_stale_settle_fails_the_callers_transaction(mq: Any, database: Database) -> None:
    q = mq.queue("q")
    (stale,) = await claimed(q)
    expire(database)
    assert len(await q.try_poll_many(9)) == 1
    before = contents(database)
    with pytest.raises(errors.StaleLease):
        async with mq.transaction() as tx:
            await tx.queue("q").put("with it")
            await stale.ack(connection=tx)
    assert contents(database) == before


# --- who has settled ------------------------------------------------------------------------------


async def test_a_settle_that_was_refused_for_certain_leaves_no_doubt(
    connect: Connect, database: Database
) -> None:
    """Somebody else has done the job since: that is not taken for this one's doing."""
    mq = await connect(database.url, lock_timeout=0.2, retry_for=0.2)
    other = await connect(database.url)
    q = mq.queue("q")
    await q.configure(keep_completed=False)
    (job,) = await claimed(q)
    async with other.transaction() as tx:
        await tx.execute("UPDATE rowmq_locks SET owner = owner")
        with pytest.raises(errors.Locked) as refusal:
            await job.nack()
    assert not refusal.value.in_doubt
    expire(database)
    (again,) = await other.queue("q").try_poll_many(9)
    await again.ack()
    with pytest.raises(errors.StaleLease):
        await job.nack()


@on_servers  # there is no connection to lose
async def test_a_settle_that_may_have_been_done_was_done_by_whoever_asked_for_it(
    connect: Connect, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A try is committed, unheard, and there is no time for another one: the job was settled."""
    mq = await connect(database.url, retry_for=0)
    q = mq.queue("q")
    await q.configure(keep_failed=False)
    jobs = await claimed(q, 1, 2)
    with monkeypatch.context() as broken:
        lose_answers(broken, times=1)
        with pytest.raises(errors.ConnectionLost) as loss:
            await jobs[0].reject()
    assert loss.value.in_doubt
    with pytest.raises(errors.AlreadySettled):
        await jobs[0].reject()


@pytest.mark.parametrize("keep", [True, False], ids=["kept", "not kept"])
def test_a_lock_that_is_extended_while_its_job_is_settled_was_not_lost(
    database: Database, keep: bool
) -> None:
    """The lock is there, for another job."""
    with rowmq.connect(database.url) as mq:
        q = mq.queue("q")
        q.configure(keep_completed=keep)
        q.put_many([1, 2])
        job, _ = q.try_poll_many(2)
        assert job._ticket is not None
        steps = mq._desk.settle([wanted_of(job._ticket, Kind.EXTEND, delay=60)])
        step = next(steps)
        job.ack()
        with pytest.raises(errors.AlreadySettled):
            while True:
                step = steps.send(step())


def test_what_a_forked_process_has_settled_was_settled(database: Database) -> None:
    with rowmq.connect(database.url) as mq:
        q = mq.queue("q")
        q.put_many([1, 2, 3, 4])
        for way in ("ack", "nack", "reject"):
            job, *_ = q.try_poll_many(2)
            assert job._ticket is not None
            inherited = Ticket(job._ticket.claimed, job._ticket.retry)
            getattr(job, way)()
            with pytest.raises(errors.AlreadySettled):
                take_steps(mq._desk.settle([wanted_of(inherited, Kind.ACK)]))
            expire(database)


# --- answers that are lost ------------------------------------------------------------------------

SESSIONS = (PsycopgSession, AsyncpgSession, PyMySQLSession, AsyncmySession, SQLiteSession)
SOLE_WRITES = ("claims.claim", "settles.ack", "jobs.put")


def lose_answers(monkeypatch: pytest.MonkeyPatch, times: int) -> list[str]:
    """Let commits happen and then fail, as when the connection breaks before the answer comes."""
    lost: list[str] = []

    def fail(what: str) -> None:
        if len(lost) < times:
            lost.append(what)
            raise ConnectionResetError("the answer was lost")

    for kind in SESSIONS:
        make = after_async if asyncio.iscoroutinefunction(kind.commit) else after_sync
        monkeypatch.setattr(kind, "commit", make(kind.commit, fail))
        monkeypatch.setattr(kind, "execute", make(kind.execute, fail))
    return lost


def is_commit(args: tuple[Statement, ...]) -> bool:
    return not args or (args[0].sole and args[0].name in SOLE_WRITES)


def after_sync(method: Callable[..., Any], fail: Callable[[str], None]) -> Any:
    def call(self: Any, *args: Statement) -> Result:
        result: Result = method(self, *args)
        if is_commit(args):
            fail(method.__name__)
        return result

    return call


def after_async(method: Callable[..., Any], fail: Callable[[str], None]) -> Any:
    async def call(self: Any, *args: Statement) -> Result:
        result: Result = await method(self, *args)
        if is_commit(args):
            fail(method.__name__)
        return result

    return call


@on_servers  # there is no connection to lose
@pytest.mark.parametrize("several", [False, True], ids=["one lane", "several lanes"])
async def test_a_claim_whose_answer_is_lost_gives_the_same_jobs(
    mq: Any, database: Database, monkeypatch: pytest.MonkeyPatch, several: bool
) -> None:
    q = mq.queue("q")
    await q.put_many(range(5))
    if several:
        await q.put("urgent", priority=1)
    expected = ["urgent", *range(5)] if several else list(range(5))
    lost = lose_answers(monkeypatch, times=2)
    jobs = await q.try_poll_many(10)
    assert len(lost) == 2
    assert payloads(jobs) == expected
    assert {job.delivery_type for job in jobs} == {FIRST}
    assert len(contents(database)["locks"]) == 1
    await q.ack(jobs)
    assert await counted(q) == {"completed": len(expected)}


@on_servers  # there is no connection to lose
@pytest.mark.parametrize("keep", [True, False], ids=["kept", "not kept"])
async def test_a_settle_whose_answer_is_lost_is_done_once_and_not_refused(
    mq: Any, monkeypatch: pytest.MonkeyPatch, keep: bool
) -> None:
    q = mq.queue("q")
    await q.configure(keep_completed=keep, keep_failed=keep)
    alone = [(await claimed(q))[0] for _ in WAYS]
    together = await claimed(q, *range(len(WAYS)))
    keyed, ordered = [], []
    for way in WAYS:
        await q.put(1, key=way)
        keyed += await q.try_poll_many(9)
        await q.put(1, ordering_key=way)
        ordered += await q.try_poll_many(9)
    for jobs in (alone, together, keyed, ordered):
        for settle, job in zip(WAYS.values(), jobs, strict=True):
            with monkeypatch.context() as broken:
                lost = lose_answers(broken, times=1)
                await settle(job)
                assert len(lost) == 1
    finished = {"completed", "failed"} if not keep else set()
    assert await counted(q) == dict.fromkeys(set(STATES) - finished, 4)
    for job in (alone[0], together[1], keyed[2], ordered[3]):
        with pytest.raises(errors.AlreadySettled):
            await job.ack()


@on_servers  # there is no connection to lose
async def test_a_nack_whose_answer_is_lost_is_one_attempt(
    mq: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    q = mq.queue("q")
    (job,) = await claimed(q)
    with monkeypatch.context() as broken:
        lost = lose_answers(broken, times=2)
        await job.nack(delay=0, error="once")
        assert len(lost) == 2
    with pytest.raises(errors.AlreadySettled):
        await job.ack()
    again = await q.try_poll()
    assert (again.attempt, again.deliveries) == (2, 2)
    assert len(await q.errors(job.id)) == 1


@on_servers  # there is no connection to lose
async def test_acks_that_share_a_commit_whose_answer_is_lost_are_all_done(
    mq: Any, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    q = mq.queue("q")
    jobs = await claimed(q, *range(20))
    lose_answers(monkeypatch, times=2)
    await asyncio.gather(*(job.ack() for job in jobs))
    assert await counted(q) == {"completed": 20}
    assert occupied(database) == {"jobs", "completed"}


@on_servers  # there is no connection to lose
async def test_a_settle_that_may_have_been_done_is_still_refused_if_it_was_not(
    mq: Any, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock was lost before: that some answer was lost as well makes it no better."""
    q = mq.queue("q")
    (stale,) = await claimed(q)
    expire(database)
    assert len(await q.try_poll_many(9)) == 1
    before = contents(database)
    for settle in (WAYS["ack"], WAYS["reject"], WAYS["extend"]):
        with monkeypatch.context() as broken:
            lost = lose_answers(broken, times=1)
            with pytest.raises(errors.StaleLease):
                await settle(stale)
            assert len(lost) == 1
    assert contents(database) == before


@on_servers  # there is no connection to lose
@pytest.mark.parametrize("finish", ["ack", "reject"])
async def test_a_settle_that_was_not_done_is_not_taken_for_what_another_has_done(
    mq: Any, database: Database, monkeypatch: pytest.MonkeyPatch, finish: str
) -> None:
    """The job is in the archive, but whoever had it next has put it there."""
    q = mq.queue("q")
    (stale,) = await claimed(q)
    expire(database)
    await WAYS[finish](await q.try_poll())
    before = contents(database)
    for settle in (WAYS["ack"], WAYS["reject"]):
        with monkeypatch.context() as broken:
            lost = lose_answers(broken, times=1)
            with pytest.raises(errors.StaleLease):
                await settle(stale)
            assert len(lost) == 1
    assert contents(database) == before


@on_servers  # in SQLite, nobody writes while a transaction does
@pytest.mark.parametrize("way", ["ack", "reject", "extend"])
@pytest.mark.parametrize("losses", [0, 1])
async def test_what_was_given_back_is_lost_also_while_its_lock_stays_for_a_busy_key(
    mq: Any, database: Database, monkeypatch: pytest.MonkeyPatch, way: str, losses: int
) -> None:
    """It has left the lock as if it were settled, but its owner has not settled it."""
    q = mq.queue("q")
    for key in ("busy", None):
        await q.put(1, key=key)
    jobs = await q.try_poll_many(9)
    (plain,) = [job for job in jobs if job.key is None]
    expire(database)
    async with mq.transaction() as tx:
        await tx.queue("q").offer_or_update("busy", 2)
        assert [job.id for job in await q.try_poll_many(9)] == [plain.id]
        with monkeypatch.context() as broken:
            lost = lose_answers(broken, times=losses)
            with pytest.raises(errors.StaleLease):
                await WAYS[way](plain)
            assert len(lost) == losses
    assert await counted(q) == {"processing": 1, "pending": 1}


# --- states, step by step -------------------------------------------------------------------------


async def test_counts_tell_of_each_step_of_a_job(mq: Any, database: Database) -> None:
    q = mq.queue("q")
    await q.put(1, delay=60)
    assert await counted(q) == {"pending": 1}
    make_due(database)
    assert await counted(q) == {"pending": 1}
    job = await q.try_poll()
    assert job.state is State.PROCESSING
    assert await counted(q) == {"processing": 1}
    expire(database)
    assert await counted(q) == {"pending": 1}
    job = await q.try_poll()
    await job.nack(delay=60)
    assert await counted(q) == {"retryable": 1}
    make_due(database)
    job = await q.try_poll()
    assert await counted(q) == {"processing": 1}
    expire(database)
    assert await counted(q) == {"retryable": 1}
    job = await q.try_poll()
    await job.release()
    assert await counted(q) == {"retryable": 1}
    job = await q.try_poll()
    await job.reject()
    assert await counted(q) == {"failed": 1}
    assert await q.retry([job.id]) == 1
    assert await counted(q) == {"pending": 1}
    await (await q.try_poll()).ack()
    assert await counted(q) == {"completed": 1}
    assert await q.prune(older_than=0) == 1
    assert await counted(q) == {}


@async_only  # what is asked of the database is the same
async def test_counts_are_of_the_queue_and_the_kinds_that_a_handle_sees(mq: Any) -> None:
    every, numbers, texts = mq.queue("q"), mq.queue("q", type=int), mq.queue("q", type=str)
    await mq.queue("other").put("elsewhere")
    await numbers.put_many([1, 2, 3])
    await texts.put("x")
    jobs = await numbers.try_poll_many(3)
    await jobs[0].ack()
    await jobs[1].reject()
    assert await counted(numbers) == {"processing": 1, "completed": 1, "failed": 1}
    assert await counted(texts) == {"pending": 1}
    assert await counted(every) == {"pending": 1, "processing": 1, "completed": 1, "failed": 1}


async def test_a_live_job_is_read_as_it_stands(mq: Any) -> None:
    q = mq.queue("q", retry=Constant(interval=0))
    await q.put("x", key="k", at=past(1))
    assert (await q.read("k")).state is State.PENDING
    job = await q.try_poll()
    read = await q.read("k")
    assert (read.id, read.state, read.attempt) == (job.id, State.PROCESSING, 1)
    await job.nack()
    read = await q.read("k")
    assert (read.state, read.attempts, read.attempt) == (State.RETRYABLE, 1, 2)
    job = await q.try_poll()
    assert (await q.read("k")).state is State.PROCESSING
    await job.reject()
    assert await q.read("k") is None
    await q.retry([job.id])
    read = await q.read("k")
    assert (read.state, read.attempts) == (State.PENDING, 0)
    await q.try_poll()
    read = await q.read("k")
    assert (read.state, read.attempts, read.attempt) == (State.PROCESSING, 0, 1)


async def test_a_live_job_whose_lock_expired_is_read_as_what_it_is_counted(
    mq: Any, database: Database
) -> None:
    q = mq.queue("q")
    await q.put("x", key="k")
    await q.try_poll_many(9)
    expire(database)
    assert await counted(q) == {"pending": 1}
    assert (await q.read("k")).state is State.PENDING


@async_only  # what is asked of the database is the same
async def test_a_settle_lets_the_key_be_used_again_or_not(mq: Any) -> None:
    q = mq.queue("q")
    for way in ("nack", "release"):
        await q.put(way, key=way)
        await WAYS[way](await q.try_poll())
        assert await q.contains(way)
        with pytest.raises(errors.KeyTaken):
            await q.put("again", key=way)
    for way in ("ack", "reject"):
        await q.put(way, key=way, priority=1)
        await WAYS[way](await q.try_poll())
        assert not await q.contains(way)
        await q.put("again", key=way)


async def test_times_of_a_job_are_the_databases(mq: Any) -> None:
    q = mq.queue("q")
    began = datetime.now(UTC) - timedelta(seconds=1)  # on this machine it is the same clock
    put = await q.put(1, delay=0.01)
    job = await q.poll(timeout=5)
    await job.ack()
    (kept,) = await eventually(q.archive)
    assert began < kept.created_at < put.due_at <= kept.finished_at
    assert kept.finished_at < datetime.now(UTC) + timedelta(seconds=1)


async def test_of_jobs_that_are_not_kept_only_those_are_deleted_that_are_done(
    mq: Any, database: Database
) -> None:
    """Also where their numbers follow each other, or just do not."""
    q = mq.queue("q")
    await q.configure(keep_completed=False)
    await q.put_many(range(60))
    jobs = await q.try_poll_many(50)
    await q.ack([job for job in jobs if job.payload not in {0, 7, 8, 20, 49}])
    await q.ack([jobs[7]])
    left = sorted(id for (id,) in database.execute("SELECT id FROM rowmq_jobs"))
    unclaimed = range(jobs[-1].id + 1, jobs[-1].id + 11)
    assert left == [jobs[place].id for place in (0, 8, 20, 49)] + [*unclaimed]
    await q.ack([jobs[place] for place in (0, 8, 20, 49)])
    await q.ack([job for job in await q.try_poll_many(20) if job.payload % 2])
    assert await q.counts() == await q.counts() | {"pending": 0, "processing": 5}
