"""The archive of a queue: what was completed, what failed and why, retried, and pruned."""

import asyncio
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from rowmq import NoRetry, Outcome, State, errors
from rowmq.store.statement import Statement
from tests.choices import async_only, on_sqlite
from tests.clocks import Clock
from tests.clocks import connect as connect_to
from tests.commits import lost_answers
from tests.conformance.test_queue_claim import (
    contents,
    counted,
    expire,
    make_due,
    occupied,
    payloads,
)
from tests.conftest import Connect
from tests.consuming import statements
from tests.databases import Database

DAY_US = 86_400 * 1_000_000


async def finish(q: Any, *payloads: Any, error: str | None = None, **how: Any) -> list[int]:
    """Put jobs and complete them, or, with an error, fail them; their ids."""
    ids = []
    for payload in payloads:
        await q.put(payload, **how)
        job = await q.try_poll()
        ids.append(job.id)
        await (job.ack() if error is None else job.reject(error=error))
    return ids


def age(database: Database, days: float, table: str = "completed") -> None:
    """Let finished jobs have finished so much earlier."""
    database.execute(f"UPDATE rowmq_{table} SET finished_at = finished_at - {int(days * DAY_US)}")


# --- looking --------------------------------------------------------------------------------------


async def test_the_archive_has_what_is_finished_the_newest_first(mq: Any) -> None:
    q = mq.queue("q")
    await finish(q, 1, 2)
    await finish(q, 3, error="no")
    await finish(q, 4)
    await finish(mq.queue("other"), "elsewhere")
    await q.put("alive")
    assert payloads(await q.archive()) == [4, 3, 2, 1]
    assert payloads(await q.archive(limit=3)) == [4, 3, 2]
    assert payloads(await q.archive(state=State.COMPLETED)) == [4, 2, 1]
    assert payloads(await q.archive(state=State.COMPLETED, limit=1)) == [4]
    assert payloads(await q.archive(state="failed")) == [3]
    assert payloads(await q.failed()) == [3]
    states = [job.state for job in await q.archive()]
    assert states == [State.COMPLETED, State.FAILED, State.COMPLETED, State.COMPLETED]


@async_only  # what is asked of the database is the same
async def test_the_archive_since_a_time_has_that_time_too(mq: Any, database: Database) -> None:
    q = mq.queue("q")
    await finish(q, "old")
    await finish(q, "old failure", error="no")
    age(database, 2)
    age(database, 1.9, "failed")  # a clock of milliseconds may not tell them apart
    await finish(q, "new")
    await finish(q, "new failure", error="no")
    yesterday = datetime.now(UTC) - timedelta(days=1)
    assert payloads(await q.archive(since=yesterday)) == ["new failure", "new"]
    assert payloads(await q.failed(since=yesterday)) == ["new failure"]
    moment = (await q.archive(state=State.COMPLETED))[1].finished_at
    assert len(await q.archive(since=moment)) == 4
    assert len(await q.archive(since=moment + timedelta(microseconds=1))) == 3
    assert await q.archive(since=datetime.now(UTC) + timedelta(days=1)) == []


async def test_a_finished_job_shows_all_of_it(mq: Any) -> None:
    q = mq.queue("q")
    put = await q.put({"n": 1}, key="k", priority=2, headers={"a": "b"}, ordering_key="line")
    await (await q.try_poll()).nack(delay=0, error="at first")
    await (await q.try_poll()).reject(error="in the end")
    (job,) = await q.failed()
    assert (job.id, job.payload, job.key, job.ordering_key) == (put.id, {"n": 1}, "k", "line")
    assert (job.priority, dict(job.headers)) == (2, {"a": "b"})
    assert (job.attempts, job.deliveries, job.error) == (2, 2, "in the end")
    assert job.created_at <= job.finished_at
    with pytest.raises(errors.NotClaimed):
        await job.ack()


@async_only  # what is asked of the database is the same
async def test_a_typed_handle_sees_its_own_kind_and_untyped_jobs(mq: Any) -> None:
    numbers, texts, every = mq.queue("q", type=int), mq.queue("q", type=str), mq.queue("q")
    await finish(numbers, 1)
    await finish(texts, "two", error="no")
    await finish(every, 3)
    assert payloads(await numbers.archive()) == [3, 1]
    assert payloads(await texts.failed()) == ["two"]
    assert await numbers.failed() == []
    assert payloads(await every.archive()) == [3, "two", 1]


async def test_what_does_not_parse_can_be_looked_at(mq: Any) -> None:
    q, numbers = mq.queue("q"), mq.queue("q", type=int)
    await q.put({"no": "number"})
    assert await numbers.try_poll() is None
    (job,) = await numbers.failed()
    assert (job.payload, job.attempts) == ({"no": "number"}, 0)
    assert "does not parse as int" in job.error


@on_sqlite
async def test_the_archive_is_asked_for_by_what_it_has(mq: Any) -> None:
    q = mq.queue("q")
    for state in (State.PENDING, State.PROCESSING, "nonsense", 7):
        with pytest.raises(errors.InvalidOption, match="state"):
            await q.archive(state=state)
        with pytest.raises(errors.InvalidOption, match="state"):
            await q.prune(state=state)
    for limit in (0, -1, 1.5, None, True):
        with pytest.raises(errors.InvalidOption, match="limit"):
            await q.archive(limit=limit)
    with pytest.raises(errors.NaiveDatetime):
        await q.archive(since=datetime(2026, 1, 1))  # noqa: DTZ001 - that is what is refused
    for older_than in (-1, "1", timedelta(days=-1)):
        with pytest.raises(errors.InvalidOption, match="older_than"):
            await q.prune(older_than=older_than)
    for ids in (1, "12", None, ["x"], [1.5], [-1], [2**63]):
        with pytest.raises(errors.InvalidOption, match="id"):
            await q.retry(ids)
    with pytest.raises(errors.InvalidOption, match="id"):
        await q.errors("7")
    assert await q.archive() == await q.failed() == await q.errors(7) == []


async def test_errors_tell_of_each_attempt_that_failed_before(mq: Any) -> None:
    q = mq.queue("q")
    put = await q.put(1)
    for attempt in (1, 2, 3):
        error: Any = ValueError(f"😀 {attempt}") if attempt < 3 else None
        await (await q.try_poll()).nack(delay=0, error=error)
    found = await q.errors(put.id)
    assert [e.attempt for e in found] == [1, 2, 3]
    assert [e.error for e in found] == ["ValueError: 😀 1", "ValueError: 😀 2", None]
    times = [e.failed_at for e in found]
    assert times == sorted(times)
    assert await q.errors(put.id + 1) == []


# --- retry ----------------------------------------------------------------------------------------


async def test_a_failed_job_is_retried_from_its_first_attempt_on(
    mq: Any, database: Database
) -> None:
    q = mq.queue("q", retry=NoRetry())
    first, second = await finish(q, 1, 2, error="no")
    assert await q.retry([first]) == 1
    assert await counted(q) == {"pending": 1, "failed": 1}
    job = await q.try_poll()
    assert (job.id, job.payload, job.attempt, job.attempts) == (first, 1, 1, 0)
    await job.nack(error="no again")
    assert [e.error for e in await q.errors(first)] == ["no"]
    assert await q.retry([first, second]) == 2
    for job in await q.try_poll_many(9):
        await job.ack()
    assert await counted(q) == {"completed": 2}
    assert [e.error for e in await q.errors(first)] == ["no", "no again"]
    assert occupied(database) == {"jobs", "completed", "job_errors"}


@async_only  # what is asked of the database is the same
async def test_what_fails_again_in_the_same_moment_can_be_tried_again(
    database: Database, flavour: str
) -> None:
    """The attempts of a retried job begin anew, and SQLite's clock has milliseconds."""
    clock = Clock(database, datetime(2026, 6, 1, tzinfo=UTC))
    async with await connect_to(flavour, database.url) as mq:
        q = mq.queue("q")
        (failed,) = await finish(q, 1, error="the first time")
        assert await q.retry([failed]) == 1
        again = await q.try_poll()
        await again.nack(error="the second time", delay=0)
        assert [error.attempt for error in await q.errors(failed)] == [1]
        assert (await q.try_poll()).attempts == 1
    clock.drop()


@async_only  # what is asked of the database is the same
@pytest.mark.parametrize("key", [None, "k"])
async def test_what_is_done_after_the_clock_was_set_back_is_found(
    database: Database, flavour: str, key: str | None
) -> None:
    """Also by an ack that is repeated because its answer was lost: it was not refused."""
    clock = Clock(database, datetime(2026, 6, 1, tzinfo=UTC))
    async with await connect_to(flavour, database.url) as mq:
        q = mq.queue("q")
        put = await q.put(1, key=key)
        clock.move(hours=1)
        job = await q.try_poll()
        clock.move(hours=-2)
        at_once = database.name == "postgres" and key is None
        with lost_answers(mq, "settles.ack" if at_once else "settles.complete") as repeated:
            await job.ack()
        assert len(repeated) == 1
        assert (await q.get(put.id)).state is State.COMPLETED
    clock.drop()


async def test_only_what_has_failed_in_this_queue_is_retried(mq: Any, database: Database) -> None:
    q, other = mq.queue("q"), mq.queue("other")
    (failed,) = await finish(q, 1, error="no")
    (completed,) = await finish(q, 2)
    (elsewhere,) = await finish(other, 3, error="no")
    alive = (await q.put(4)).id
    before = contents(database)
    assert await q.retry([completed, elsewhere, alive, 10**15]) == 0
    assert await q.retry([]) == 0
    assert contents(database) == before
    assert await q.retry([failed, failed, completed]) == 1
    assert await q.retry([failed]) == 0
    assert await counted(other) == {"failed": 1}


async def test_retry_takes_the_jobs_themselves(mq: Any) -> None:
    q = mq.queue("q")
    await finish(q, *range(3), error="no")
    assert await q.retry(await q.failed()) == 3
    assert len(await q.try_poll_many(9)) == 3


@async_only  # what is asked of the database is the same
async def test_retry_of_a_typed_handle_is_of_what_it_sees(mq: Any) -> None:
    numbers, texts = mq.queue("q", type=int), mq.queue("q", type=str)
    (number,) = await finish(numbers, 1, error="no")
    assert await texts.retry([number]) == 0
    assert await numbers.retry([number]) == 1


async def test_a_retried_job_has_its_key_again(mq: Any) -> None:
    q = mq.queue("q")
    (id,) = await finish(q, "first", error="no", key="k")
    assert not await q.contains("k")
    assert await q.retry([id]) == 1
    assert (await q.read("k")).id == id
    with pytest.raises(errors.KeyTaken):
        await q.put("second", key="k")
    assert await q.offer_or_update("k", "updated") is Outcome.UPDATED
    assert payloads(await q.try_poll_many(9)) == ["updated"]


async def test_a_job_whose_key_was_taken_meanwhile_stays_failed(
    mq: Any, database: Database
) -> None:
    q = mq.queue("q")
    (old,) = await finish(q, "old", error="no", key="k")
    (free,) = await finish(q, "free", error="no", key="free")
    new = await q.put("new", key="k")
    assert await q.retry([old, free]) == 1
    assert await counted(q) == {"pending": 2, "failed": 1}
    assert (await q.read("k")).id == new.id
    before = contents(database)
    assert await q.retry([old]) == 0
    assert contents(database) == before
    await q.ack(await q.try_poll_many(9))
    assert await q.retry([old]) == 1
    assert (await q.try_poll()).payload == "old"


@async_only  # what is asked of the database is the same
async def test_of_two_failed_jobs_with_one_key_one_is_retried(mq: Any, database: Database) -> None:
    q = mq.queue("q")
    ids = await finish(q, 1, 2, error="no", key="k")
    assert await q.retry(ids) == 1
    assert await counted(q) == {"pending": 1, "failed": 1}
    assert len(contents(database)["ready"]) == 1
    await q.ack(await q.try_poll_many(9))
    assert await q.retry(ids) == 1
    assert payloads([await q.try_poll()]) + payloads(await q.archive()) in ([1, 2], [2, 1])


@async_only  # what is asked of the database is the same
async def test_a_retried_job_goes_back_into_its_line(mq: Any) -> None:
    q = mq.queue("q")
    (id,) = await finish(q, "failed", error="no", ordering_key="line")
    await q.put("next", ordering_key="line")
    await asyncio.sleep(0.01)  # SQLite's clock counts milliseconds
    assert await q.retry([id]) == 1
    jobs = await q.try_poll_many(9)
    assert payloads(jobs) == ["next"]  # one of a line at a time
    await jobs[0].ack()
    assert payloads(await q.try_poll_many(9)) == ["failed"]


async def test_retry_is_part_of_the_callers_transaction(mq: Any, database: Database) -> None:
    q = mq.queue("q")
    (id,) = await finish(q, 1, error="no", key="k")
    before = contents(database)
    with pytest.raises(ZeroDivisionError):
        async with mq.transaction() as tx:
            assert await tx.queue("q").retry([id]) == 1
            raise ZeroDivisionError
    assert contents(database) == before
    async with mq.transaction() as tx:
        assert await q.retry([id], connection=tx) == 1
    assert await counted(q) == {"pending": 1}


@async_only  # what is asked of the database is the same
async def test_a_retried_job_may_be_claimed_as_often_as_a_new_one(
    mq: Any, database: Database
) -> None:
    q = mq.queue("q", max_deliveries=1)
    await q.put(1)
    assert len(await q.try_poll_many(9)) == 1
    expire(database)
    assert await q.try_poll_many(9) == []
    (failed,) = await q.failed()
    assert await q.retry([failed]) == 1
    (job,) = await q.try_poll_many(9)
    assert job.deliveries == 1
    await job.ack()


@async_only  # what is asked of the database is the same
async def test_retries_of_many_take_few_statements(mq: Any, database: Database) -> None:
    q = mq.queue("q")
    await q.put_many(range(300))
    await q.ack(await q.try_poll_many(999))
    database.execute(
        "INSERT INTO rowmq_failed (job_id, queue_id, finished_at, started_at, attempts, deliveries)"
        " SELECT job_id, queue_id, finished_at, started_at, attempts, deliveries "
        "FROM rowmq_completed"
    )
    database.execute("DELETE FROM rowmq_completed")
    with statements(mq) as seen:
        assert await q.retry(await q.failed(limit=300)) == 300
    assert len(seen) < 60
    assert len(await q.try_poll_many(999)) == 300


# --- prune ----------------------------------------------------------------------------------------


async def test_completed_jobs_are_kept_for_a_week(mq: Any, database: Database) -> None:
    q = mq.queue("q")
    await finish(q, "old", key="k", ordering_key="line")
    age(database, 6.9)
    assert await q.prune() == 0
    age(database, 0.2)
    await finish(q, "new")
    assert await q.prune() == 1
    assert payloads(await q.archive()) == ["new"]
    assert occupied(database) == {"jobs", "completed"}
    assert len(contents(database)["jobs"]) == 1


async def test_failed_jobs_are_kept_unless_they_are_named(mq: Any, database: Database) -> None:
    q = mq.queue("q")
    await finish(q, "failed", error="no")
    await finish(q, "completed")
    age(database, 999)
    age(database, 999, "failed")
    assert await q.prune() == 1
    assert await q.prune(older_than=0) == 0
    assert await counted(q) == {"failed": 1}
    assert await q.prune(older_than=timedelta(days=1000), state=State.FAILED) == 0
    assert await q.prune(state=State.FAILED) == 0  # which are kept for ever
    assert await q.prune(older_than=timedelta(days=998), state=State.FAILED) == 1
    assert occupied(database) == set()


@async_only  # what is asked of the database is the same
async def test_retention_is_what_the_queue_says(mq: Any, database: Database) -> None:
    q = mq.queue("q")
    await q.configure(retention=timedelta(days=1), failed_retention=timedelta(days=30))
    await finish(q, 1)
    await finish(q, 2, error="no")
    age(database, 2)
    age(database, 29, "failed")
    assert await q.prune() == 1
    age(database, 2, "failed")
    assert await q.prune() == 1
    assert occupied(database) == set()
    await q.configure(retention=float("inf"))
    await finish(q, 3)
    age(database, 9_999)
    assert await q.prune() == 0


@async_only  # what is asked of the database is the same
async def test_prune_goes_by_age(mq: Any, database: Database) -> None:
    q = mq.queue("q")
    await finish(q, 1)
    age(database, 1)
    await finish(q, 2)
    age(database, 1)
    await finish(q, 3)
    assert await q.prune(older_than=timedelta(days=1.5)) == 1
    assert payloads(await q.archive()) == [3, 2]
    assert await q.prune(older_than=3600.0) == 1
    assert await q.prune(older_than=0) == 1
    assert occupied(database) == set()


async def test_prune_leaves_alone_what_is_alive_and_other_queues(
    mq: Any, database: Database
) -> None:
    q, other = mq.queue("q"), mq.queue("other")
    await finish(q, 1)
    await finish(other, 2)
    await q.put("pending", key="k")
    await q.put("in a line", ordering_key="line")
    await q.put("behind it", ordering_key="line")
    claimed = await q.try_poll_many(1)
    await q.put("retryable", priority=1)
    await (await q.try_poll()).nack(delay=60)
    assert await q.prune(older_than=0) == 1
    assert await counted(q) == {"pending": 2, "processing": 1, "retryable": 1}
    assert await counted(other) == {"completed": 1}
    await claimed[0].ack()
    assert await mq.queue("no such queue").prune(older_than=0) == 0
    make_due(database)
    assert len(await q.try_poll_many(9)) == 2


async def test_what_is_pruned_leaves_no_trace(mq: Any, database: Database) -> None:
    q = mq.queue("q")
    for n in range(3):
        await q.put(n, ordering_key="line", headers={"a": "b"})
    await q.put("keyed", key="k")
    while jobs := await q.try_poll_many(9):
        for job in jobs:
            if job.attempt < 2:
                await job.nack(delay=0, error="once")
            else:
                await job.ack()
    assert await counted(q) == {"completed": 4}
    assert await q.prune(older_than=0) == 4
    assert occupied(database) == set()


@async_only  # what is asked of the database is the same
async def test_prune_is_done_in_bounded_transactions(mq: Any, database: Database) -> None:
    total = 2_050
    q = mq.queue("q")
    await q.put_many(range(total))
    await q.ack(await q.try_poll_many(total))
    left = [total]
    names: list[str] = []

    def look(statement: Statement) -> None:
        names.append(statement.name)
        if statement.name == "archive.retention":
            left.append(database.execute("SELECT COUNT(*) FROM rowmq_completed")[0][0])

    mq._driver.observers.append(look)  # what is committed, before each transaction
    assert await q.prune(older_than=0) == total
    mq._driver.observers.remove(look)
    assert names.count("archive.old") == 3
    steps = [before - after for before, after in pairwise([*left, 0]) if before > after]
    assert steps == [1_000, 1_000, 50]
    assert occupied(database) == set()


async def test_prunes_at_once_do_not_disturb_each_other(
    connect: Connect, mq: Any, database: Database
) -> None:
    q, other = mq.queue("q"), (await connect(database.url)).queue("q")
    await q.put_many(range(200))
    await q.ack(await q.try_poll_many(200))
    async with mq.transaction() as tx:
        removed = await q.prune(older_than=0, connection=tx)
        assert removed == 200
        if database.name != "sqlite":  # which has one writer at a time
            assert await other.prune(older_than=0) == 0
    assert await other.prune(older_than=0) == 0
    assert occupied(database) == set()


@async_only  # what is asked of the database is the same
async def test_a_queue_may_keep_nothing_and_then_something(mq: Any) -> None:
    q = mq.queue("q")
    await q.configure(keep_completed=False)
    await finish(q, 1)
    assert await q.archive() == []
    await q.configure(keep_completed=True)
    await finish(q, 2)
    assert payloads(await q.archive()) == [2]
    (info,) = await mq.queues()
    assert (info.keep_completed, info.keep_failed) == (True, True)
