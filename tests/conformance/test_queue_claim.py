"""Claiming jobs: what comes, to whom, in which order, and when it comes again."""

import asyncio
import time
from collections import Counter
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import psycopg
import pymysql
import pytest

from rowmq import DeliveryType, NoRetry, ScheduledMessage, errors, pacing
from rowmq.drivers.base import take_steps_async
from rowmq.queue import claiming
from rowmq.store.claims import HEAD_OF_LANE
from rowmq.store.statement import Statement
from rowmq.times import to_micros
from tests.choices import async_only, on_mysql, on_servers, on_sqlite
from tests.conftest import Connect
from tests.consuming import eventually, statements
from tests.databases import Database, MySQLDatabase, Rows
from tests.flavours import plain

where_woken = pytest.mark.parametrize("database", ["sqlite", "postgres"], indirect=True)

FIRST, AGAIN = DeliveryType.FIRST_DELIVERY, DeliveryType.REDELIVERY

JOB_TABLES = (
    "jobs",
    "ready",
    "locks",
    "job_keys",
    "lines",
    "waiting",
    "completed",
    "failed",
    "job_errors",
    "holds",
)


def occupied(database: Database) -> set[str]:
    """The tables that have any rows of jobs."""
    each = [f"SELECT '{table}', COUNT(*) FROM rowmq_{table}" for table in JOB_TABLES]
    return {table for table, count in database.execute(" UNION ALL ".join(each)) if count}


def contents(database: Database) -> dict[str, Rows]:
    """All rows that the database has of jobs, by table; those tables that have any."""
    rows: dict[str, Rows] = {}
    if database.name == "postgres":  # in one statement: each needs a connection of its own
        each = [f"SELECT '{table}', t::text FROM rowmq_{table} t" for table in JOB_TABLES]
        for table, row in database.execute(" UNION ALL ".join(each) + " ORDER BY 1, 2"):
            rows.setdefault(table, []).append((row,))
        return rows
    for table in occupied(database):
        rows[table] = sorted(database.execute(f"SELECT * FROM rowmq_{table}"), key=repr)
    return rows


def expire(database: Database) -> None:
    """Let the time of every lock be over."""
    database.execute("UPDATE rowmq_locks SET locked_until = 1")


def make_due(database: Database) -> None:
    """Let every job that nobody has claimed be due. Those with keys are not found by them then."""
    database.execute("UPDATE rowmq_ready SET due_at = 1")


def payloads(jobs: list[Any]) -> list[Any]:
    return [job.payload for job in jobs]


def past(seconds: float) -> datetime:
    """A time at which a job was due long ago: the larger, the earlier."""
    return datetime.now(UTC) - timedelta(days=1, seconds=seconds)


async def counted(q: Any) -> dict[str, int]:
    """The states in which there are any jobs."""
    return {state: count for state, count in (await q.counts()).items() if count}


# --- one job, and many ----------------------------------------------------------------------------


async def test_an_empty_queue_gives_nothing(mq: Any) -> None:
    q = mq.queue("q")
    assert await q.try_poll() is None
    assert await q.try_poll_many(10) == []
    assert await q.poll(timeout=0) is None
    assert await mq.poller("q", "other").try_poll() is None
    assert await q.counts() == {
        "pending": 0,
        "processing": 0,
        "retryable": 0,
        "completed": 0,
        "failed": 0,
    }
    assert await mq.queues() == []  # to look makes nothing


async def test_a_claimed_job_shows_what_was_put(mq: Any) -> None:
    q = mq.queue("q")
    put = await q.put({"n": 1}, key="k", priority=3, headers={"trace": "ü"})
    job = await q.try_poll()
    assert (job.id, job.payload, job.key, job.priority) == (put.id, {"n": 1}, "k", 3)
    assert dict(job.headers) == {"trace": "ü"}
    assert plain(job).queue == "q"
    assert job.due_at == put.due_at
    assert job.created_at is not None
    assert (job.attempt, job.attempts, job.deliveries) == (1, 0, 1)
    assert job.delivery_type is FIRST
    assert not job.settled
    assert await q.try_poll() is None


async def test_jobs_come_in_the_order_in_which_they_were_put(mq: Any) -> None:
    q = mq.queue("q")
    for n in range(5):
        await q.put(n)
    await q.put_many(range(5, 12))
    assert (await q.try_poll()).payload == 0
    assert payloads(await q.try_poll_many(4)) == [1, 2, 3, 4]
    assert payloads(await q.try_poll_many(100)) == [5, 6, 7, 8, 9, 10, 11]


async def test_none_and_fewer_are_claimed_as_nothing(mq: Any) -> None:
    q = mq.queue("q")
    await q.put(1)
    with statements(mq) as seen:
        for limit in (0, -1, -(10**9)):
            assert await q.try_poll_many(limit) == []
    assert seen == []
    assert await counted(q) == {"pending": 1}


@on_sqlite
async def test_how_many_must_be_a_whole_number(mq: Any) -> None:
    for limit in (1.5, "2", None, True):
        with pytest.raises(errors.InvalidOption, match="whole number"):
            await mq.queue("q").try_poll_many(limit)


async def test_an_earlier_due_time_comes_first_and_a_higher_priority_before_it(mq: Any) -> None:
    q = mq.queue("q")
    await q.put("late", at=past(1))
    await q.put("early", at=past(3))
    await q.put("middle", at=past(2))
    await q.put("urgent", priority=7)
    await q.put("trifle", priority=-7, at=past(9))
    order = ["urgent", "early", "middle", "late", "trifle"]
    jobs = await q.try_poll_many(10)
    assert payloads(jobs) == order
    for job in reversed(jobs):
        await job.release()
    one_by_one = [(await q.try_poll()).payload for _ in range(5)]
    assert one_by_one == order


async def test_a_job_of_a_higher_priority_overtakes_a_busy_claimer(mq: Any) -> None:
    q = mq.queue("q")
    await q.put_many(range(4))
    assert (await q.try_poll()).payload == 0
    await q.put("urgent", priority=1)
    await q.put("long due", at=past(1))
    assert [(await q.try_poll()).payload for _ in range(3)] == ["urgent", "long due", 1]


def look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have claimers that are busy look around more often than they do."""
    assert claiming.LOOK_SECONDS <= claiming.LOOK_SECONDS_MAX <= 1.0
    monkeypatch.setattr(claiming, "LOOK_SECONDS", 0.05)


async def test_what_others_put_before_a_busy_claimer_is_found_soon(
    connect: Connect, mq: Any, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_often(monkeypatch)
    q, other = mq.queue("q"), (await connect(database.url)).queue("q")
    await q.put_many(range(900))
    assert (await q.try_poll()).payload == 0
    await other.put("urgent", priority=1)
    deadline = time.monotonic() + 2.5
    while (await q.try_poll()).payload != "urgent":
        assert time.monotonic() < deadline


# --- several queues -------------------------------------------------------------------------------


async def test_several_queues_are_claimed_from_in_one_order(mq: Any) -> None:
    a, b = mq.queue("a"), mq.queue("b")
    await a.put("a4", at=past(4))
    await b.put("b5", at=past(5))
    await b.put("b3", at=past(3))
    await a.put("a2", at=past(2))
    await b.put("b urgent", priority=1)
    await mq.queue("c").put("of nobody's business", priority=9)
    poller = mq.poller(a, "b")
    order = ["b urgent", "b5", "a4", "b3", "a2"]
    jobs = await poller.try_poll_many(10)
    assert payloads(jobs) == order
    assert [plain(job).queue for job in jobs] == ["b", "b", "a", "b", "a"]
    for job in jobs:
        await job.release()
    assert payloads(await poller.try_poll_many(3)) == order[:3]
    assert [(await poller.poll(timeout=1)).payload for _ in range(2)] == order[3:]
    assert await poller.try_poll() is None
    assert await counted(mq.queue("c")) == {"pending": 1}


async def test_a_poller_acks_jobs_of_several_queues_at_once(mq: Any, database: Database) -> None:
    a, b = mq.queue("a"), mq.queue("b")
    await a.put(1)
    await b.put(2)
    await a.put(3, key="k")
    poller = mq.poller("a", "b")
    jobs = await poller.try_poll_many(3)
    assert len(contents(database)["locks"]) == 1
    await poller.ack(jobs)
    assert await counted(a) == {"completed": 2}
    assert await counted(b) == {"completed": 1}
    assert "locks" not in occupied(database)


@async_only  # what is asked of the database is the same
async def test_a_poller_treats_each_queues_jobs_as_its_handle_says(
    mq: Any, database: Database
) -> None:
    strict, easy = mq.queue("strict", retry=NoRetry(), max_deliveries=1), mq.queue("easy")
    await strict.put(1)
    await easy.put(2)
    poller = mq.poller(strict, easy)
    for job in await poller.try_poll_many(2):
        await job.nack(delay=0)
    assert await counted(strict) == {"failed": 1}
    assert await counted(easy) == {"retryable": 1}
    await strict.put(3)
    assert len(await poller.try_poll_many(3)) == 2
    expire(database)
    assert payloads(await poller.try_poll_many(3)) == [2]
    assert [job.payload for job in await strict.failed()] == [3, 1]


@on_sqlite
async def test_a_poller_needs_queues(mq: Any) -> None:
    with pytest.raises(errors.InvalidInput, match="poller"):
        mq.poller()


# --- kinds ----------------------------------------------------------------------------------------


@async_only  # what is asked of the database is the same
async def test_a_handle_with_a_type_claims_its_own_kind_and_untyped_jobs(mq: Any) -> None:
    numbers, texts, every = mq.queue("q", type=int), mq.queue("q", type=str), mq.queue("q")
    await numbers.put(1)
    await texts.put("2")
    await every.put(3)
    assert payloads(await numbers.try_poll_many(9)) == [1, 3]
    assert payloads(await every.try_poll_many(9)) == ["2"]


# --- claimers that compete ------------------------------------------------------------------------


async def test_claimers_never_share_a_job(connect: Connect, mq: Any, database: Database) -> None:
    total = 300
    await mq.queue("q").put_many(range(total))
    clients = [mq, *[await connect(database.url) for _ in range(2)]]
    claimed: list[Any] = []

    async def work(client: Any, limit: int) -> None:
        q = client.queue("q")
        while len(claimed) < total:
            jobs = await q.try_poll_many(limit)
            claimed.extend(payloads(jobs))
            await q.ack(jobs)

    async with asyncio.timeout(30):
        await asyncio.gather(*(work(c, limit) for c in clients for limit in (1, 7, 30)))
    assert Counter(claimed) == Counter(range(total))
    assert await counted(mq.queue("q")) == {"completed": total}
    assert occupied(database) == {"jobs", "completed"}


async def test_claimers_of_keyed_jobs_with_priorities_never_share_a_job(
    connect: Connect, mq: Any, database: Database
) -> None:
    total = 90
    await mq.queue("q").offer_batch(
        [ScheduledMessage(f"k{n}", n, priority=n % 3) for n in range(total)]
    )
    clients = [mq, await connect(database.url)]
    claimed: list[Any] = []

    async def work(client: Any) -> None:
        q = client.queue("q")
        while len(claimed) < total:
            for job in await q.try_poll_many(4):
                claimed.append(job.payload)
                await job.ack()

    async with asyncio.timeout(30):
        await asyncio.gather(*(work(client) for client in clients * 2))
    assert Counter(claimed) == Counter(range(total))
    assert occupied(database) == {"jobs", "completed"}


@async_only  # what is asked of the database is the same
@on_servers
async def test_a_claim_passes_over_what_somebody_else_is_taking(
    connect: Connect, database: Database
) -> None:
    mq = await connect(database.url, lock_timeout=1, retry_for=0)
    q = mq.queue("q")
    for locked in (0, 1, 3):
        jobs = [*await q.put_many(range(3)), await q.put("urgent", priority=1)]
        others = [job.payload for job in jobs if job is not jobs[locked]]
        with closing(own_connection(database)) as rival, rival.cursor() as cursor:
            cursor.execute(f"SELECT * FROM rowmq_ready WHERE job_id = {jobs[locked].id} FOR UPDATE")
            assert cursor.fetchall()
            async with asyncio.timeout(30):  # who waits for the rival waits for ever
                claimed = await q.try_poll_many(9)
                assert sorted(payloads(claimed), key=str) == others
                assert await q.try_poll() is None
            rival.rollback()
        (last,) = await q.try_poll_many(9)
        assert last.id == jobs[locked].id
        await q.ack([*claimed, last])


def own_connection(database: Database) -> Any:
    """A connection in whose transaction rows can be locked."""
    if isinstance(database, MySQLDatabase):
        connection = pymysql.connect(**database.options(), ssl_disabled=True)
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
        return connection
    return psycopg.connect(database.url)


@async_only  # what is asked of the database is the same
@on_servers
async def test_a_busy_claimer_finds_what_others_had_their_hands_on(
    mq: Any, database: Database
) -> None:
    """Somebody has locked rows, and was then undone: they are as free as they were."""
    queue = mq.queue("q")
    await queue.put_many(range(400))
    taken = await queue.try_poll_many(100)
    with closing(own_connection(database)) as somebody, somebody.cursor() as cursor:
        cursor.execute("SELECT * FROM rowmq_ready WHERE mod(job_id, 2) = 0 FOR UPDATE")
        assert cursor.fetchall()
        taken += await queue.try_poll_many(50)  # a busy claimer, which passes over what is locked
        somebody.rollback()
    while jobs := await queue.try_poll_many(50):
        taken += jobs
    assert sorted(job.payload for job in taken) == list(range(400))


# --- expired locks --------------------------------------------------------------------------------


async def test_an_expired_lock_gives_its_jobs_to_the_next_claim(
    connect: Connect, mq: Any, database: Database
) -> None:
    q, other = mq.queue("q"), (await connect(database.url)).queue("q")
    await q.put_many([1, 2])
    assert len(await q.try_poll_many(2)) == 2
    assert await other.try_poll() is None
    expire(database)
    jobs = await other.try_poll_many(5)
    assert payloads(jobs) == [1, 2]
    assert [job.delivery_type for job in jobs] == [AGAIN, AGAIN]
    assert [(job.deliveries, job.attempts, job.attempt) for job in jobs] == [(2, 0, 1)] * 2
    await other.ack(jobs)
    finished = await other.archive()
    assert [(job.deliveries, job.attempts) for job in finished] == [(2, 1)] * 2


async def test_a_lock_expires_by_itself(mq: Any) -> None:
    q = mq.queue("q", lock_timeout=0.05)
    await q.put("by the handle")
    assert (await q.try_poll()).delivery_type is FIRST
    assert (await q.poll(timeout=10)).deliveries == 2
    await (await q.poll(timeout=10)).ack()
    await q.put("by the call")
    claimed = await q.try_poll_many(1, lock_timeout=timedelta(seconds=60))
    assert await q.poll(timeout=0.15) is None
    await claimed[0].ack()


async def test_only_the_unsettled_jobs_of_a_batch_come_back(mq: Any, database: Database) -> None:
    q = mq.queue("q")
    await q.put_many(range(6))
    jobs = await q.try_poll_many(6)
    await jobs[0].ack()
    await jobs[2].nack(delay=60)
    await jobs[3].reject(error="no")
    await jobs[5].release()
    expire(database)
    again = await q.try_poll_many(10)
    assert [(job.payload, job.delivery_type) for job in again] == [
        (1, AGAIN),
        (4, AGAIN),
        (5, FIRST),
    ]
    assert await counted(q) == {"processing": 3, "retryable": 1, "completed": 1, "failed": 1}


@async_only  # what is asked of the database is the same
async def test_every_expired_lock_is_given_back_before_a_claim(mq: Any, database: Database) -> None:
    """More of them than are given back at a time."""
    q = mq.queue("q")
    await q.put_many(range(13))
    for _ in range(13):
        assert await q.try_poll() is not None
    expire(database)
    assert sorted(payloads(await q.try_poll_many(20))) == list(range(13))


@async_only  # what is asked of the database is the same
async def test_void_locks_do_not_hide_an_expired_one(mq: Any, database: Database) -> None:
    """Locks of jobs that were updated give nothing back: what comes after them does."""
    q = mq.queue("q")
    for n in range(7):
        await q.put(n, key=f"k{n}")
        assert await q.try_poll() is not None
        await q.offer_or_update(f"k{n}", "later", datetime.now(UTC) + timedelta(days=1))
    await q.put("left")
    assert await q.try_poll() is not None
    database.execute("UPDATE rowmq_locks SET locked_until = claimed_at - 1000000000")
    job = await q.try_poll()
    assert job is not None
    assert job.payload == "left"


@async_only  # what is asked of the database is the same
async def test_an_expired_lock_of_another_queue_is_no_hindrance(
    mq: Any, database: Database
) -> None:
    a, b = mq.queue("a"), mq.queue("b")
    await a.put(1)
    await b.put(2)
    assert await a.try_poll() is not None
    expire(database)
    assert (await b.try_poll()).payload == 2
    assert await b.try_poll() is None
    assert (await a.try_poll()).delivery_type is AGAIN


@async_only  # what is asked of the database is the same
async def test_each_claim_is_counted(mq: Any, database: Database) -> None:
    q = mq.queue("q")
    await q.put(1)
    for deliveries in range(1, 5):
        job = await q.try_poll()
        assert (job.deliveries, job.attempt) == (deliveries, 1)
        expire(database)
    job = await q.try_poll()
    await job.nack(delay=0)
    job = await q.try_poll()
    assert (job.deliveries, job.attempt, job.delivery_type) == (6, 2, AGAIN)


# --- delayed jobs ---------------------------------------------------------------------------------


async def test_a_delayed_job_does_not_come_before_it_is_due(mq: Any, database: Database) -> None:
    q = mq.queue("q")
    await q.put("delayed", delay=60)
    await q.put("at", at=datetime.now(UTC) + timedelta(hours=1))
    assert await q.try_poll() is None
    assert await counted(q) == {"pending": 2}
    database.execute("UPDATE rowmq_ready SET due_at = due_at - 61000000")
    assert payloads(await q.try_poll_many(5)) == ["delayed"]
    database.execute("UPDATE rowmq_ready SET due_at = due_at - 3600000000")
    assert payloads(await q.try_poll_many(5)) == ["at"]


async def test_a_delayed_job_comes_when_it_is_due_by_the_databases_clock(
    mq: Any, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    never_look_again(monkeypatch)
    q = mq.queue("q", poll_interval=30)
    await q.put("later", delay=0.35)
    await q.put("sooner", delay=timedelta(milliseconds=150))
    for payload in ("sooner", "later"):
        job = await q.poll(timeout=10)
        assert job.payload == payload
        ((claimed_at,),) = database.execute("SELECT claimed_at FROM rowmq_locks")
        assert 0 <= claimed_at - to_micros(job.due_at) < 10_000_000
        await job.ack()


# --- waiting --------------------------------------------------------------------------------------


def never_look_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a poll that finds nothing wait for long: only what wakes it lets it look again."""
    monkeypatch.setattr(pacing, "FIRST_SECONDS", 30.0)


async def asleep(client: Any, poll: Any, looks: list[Statement], *, least: int) -> None:
    """Wait until a poll has looked so often, and waits."""
    waiters = client._desk.waiters
    await eventually(lambda: waiters._waiting.get("q") and len(looks) >= least)
    assert not poll.done()


@where_woken
@pytest.mark.parametrize("way", ["put", "offer", "transaction"])
async def test_a_put_of_another_client_wakes_who_waits(
    connect: Connect,
    mq: Any,
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
    way: str,
) -> None:
    never_look_again(monkeypatch)
    producer = (await connect(database.url)).queue("q")
    with statements(mq) as looks:
        polling = asyncio.create_task(mq.queue("q", poll_interval=30).poll(timeout=20))
        await asleep(mq, polling, looks, least=2)  # when it listens, it looks once more
    began = time.monotonic()
    if way == "put":
        await producer.put(1)
    elif way == "offer":
        await producer.offer_or_update("k", 1)
    else:
        sender = await connect(database.url)
        async with sender.transaction() as tx:
            await tx.queue("q").put(1)
    assert (await polling).payload == 1
    assert time.monotonic() - began < 2


async def test_who_waits_looks_for_what_is_new_and_now_and_then_at_all_there_is(
    connect: Connect, database: Database
) -> None:
    mq = await connect(database.url, notify=False)
    other = (await connect(database.url)).queue("q")
    await other.put("old", at=past(60))
    job = await other.try_poll()
    with statements(mq) as looks:
        polling = asyncio.create_task(mq.queue("q", poll_interval=0.02).poll(timeout=60))
        await eventually(lambda: len({look.params[0] > 0 for look in looks}) == 2)
        await job.release()
        assert (await polling).payload == "old"
    assert await other.try_poll() is None


async def patiently(q: Any) -> list[Any]:
    return payloads(await take_steps_async(q._core.claim(9, patient=True)))


@on_servers  # elsewhere a transaction keeps others from claiming
@async_only  # what is asked of the database is the same
async def test_who_waits_finds_what_a_transaction_lets_go_when_it_is_committed(mq: Any) -> None:
    q = mq.queue("q")
    for payload in (1, 2):
        await q.put(payload, ordering_key="line", at=past(60))
    job = await q.try_poll()
    async with mq.transaction() as tx:
        await job.ack(connection=tx)
        assert await patiently(q) == []
        assert await patiently(q) == []
    assert await patiently(q) == [2]


@on_servers
@async_only
async def test_a_hold_that_finds_nothing_hides_nothing(
    connect: Connect, database: Database
) -> None:
    q, other = [(await connect(database.url)).queue("q") for _ in range(2)]
    await q.put(1)
    assert (await q.try_poll()).payload == 1
    async with q.hold() as job:
        assert job is None
    await other.put(2)
    assert (await q.try_poll()).payload == 2


@async_only
async def test_who_waits_finds_what_others_gave_back(connect: Connect, database: Database) -> None:
    q, other = [(await connect(database.url)).queue("q") for _ in range(2)]
    await other.put(1, at=past(60))
    await other.try_poll(lock_timeout=0.3)
    await patiently(q)
    assert await patiently(q) == []
    await asyncio.sleep(0.4)
    job = await other.try_poll()  # it gives the job back first
    await job.release()
    assert await patiently(q) == [1]


async def test_who_does_not_wait_looks_at_all_there_is(
    connect: Connect, database: Database
) -> None:
    q, other = [(await connect(database.url)).queue("q") for _ in range(2)]
    await other.put("old", at=past(60))
    for _ in range(3):
        job = await other.try_poll()
        assert await q.poll(timeout=0.1) is None
        await job.release()
        mine = await q.try_poll()
        assert mine.payload == "old"
        await mine.release()


@on_mysql
async def test_a_put_of_another_client_is_found_by_looking_often(
    connect: Connect, mq: Any, database: Database
) -> None:
    producer = (await connect(database.url)).queue("q")
    with statements(mq) as looks:
        polling = asyncio.create_task(mq.queue("q", poll_interval=0.05).poll(timeout=20))
        await asleep(mq, polling, looks, least=6)
    began = time.monotonic()
    await producer.put(1)
    assert (await polling).payload == 1
    assert time.monotonic() - began < 1


async def test_a_put_of_the_same_client_wakes_who_waits(
    mq: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    never_look_again(monkeypatch)
    q = mq.queue("q", poll_interval=30)
    for what in (q.put(1), q.offer_if_not_exists("k", 2), q.put(3, key="other")):
        with statements(mq) as looks:
            polling = asyncio.create_task(q.poll(timeout=20))
            await asleep(mq, polling, looks, least=1)
        began = time.monotonic()
        await what
        assert (await polling) is not None
        assert time.monotonic() - began < 2


async def test_jobs_that_are_given_back_wake_who_waits(
    mq: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    never_look_again(monkeypatch)
    q = mq.queue("q", poll_interval=30)
    await q.put(1)
    job = await q.try_poll()
    for way in ("nack", "release", "retry", "resume"):
        if way == "retry":
            await job.reject(error="no")
        if way == "resume":
            await job.release()
            await q.pause()
        with statements(mq) as looks:
            polling = asyncio.create_task(q.poll(timeout=20))
            await asleep(mq, polling, looks, least=1)
        if way == "nack":
            await job.nack(delay=0)
        elif way == "release":
            await job.release()
        elif way == "retry":
            assert await q.retry([job.id]) == 1
        else:
            await q.resume()
        began = time.monotonic()
        job = await polling
        assert job.payload == 1, way
        assert time.monotonic() - began < 2, way


async def test_who_waits_is_given_a_job_whose_lock_expires(
    connect: Connect, mq: Any, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    never_look_again(monkeypatch)
    crashed = (await connect(database.url)).queue("q")
    await crashed.put(1)
    assert await crashed.try_poll_many(1, lock_timeout=0.3)
    job = await mq.queue("q", poll_interval=30).poll(timeout=20)
    assert (job.payload, job.delivery_type) == (1, AGAIN)


async def test_a_poll_that_finds_nothing_ends_when_its_time_is_over(mq: Any) -> None:
    q = mq.queue("q")
    await q.put("not yet", delay=60)
    began = time.monotonic()
    assert await q.poll(timeout=0.15) is None
    assert await q.poll(timedelta(seconds=0.05)) is None
    assert 0.2 <= time.monotonic() - began < 2
    assert await counted(q) == {"pending": 1}


async def test_a_poll_without_time_takes_what_is_there(mq: Any) -> None:
    q = mq.queue("q")
    await q.put(1)
    assert (await q.poll(timeout=0)).payload == 1
    assert await q.poll(timeout=0) is None


async def test_of_many_who_wait_each_job_goes_to_one(mq: Any) -> None:
    q = mq.queue("q")
    polls = [asyncio.create_task(q.poll(timeout=20)) for _ in range(6)]
    await eventually(lambda: len(mq._desk.waiters._waiting.get("q", ())) == 6)
    await q.put_many(range(6))
    jobs = await asyncio.gather(*polls)
    assert sorted(payloads(jobs)) == list(range(6))


async def test_a_poll_of_several_queues_is_woken_by_each(
    mq: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    never_look_again(monkeypatch)
    a, b = mq.queue("a", poll_interval=30), mq.queue("b", poll_interval=30)
    poller = mq.poller(a, b)
    for q in (a, b):
        polling = asyncio.create_task(poller.poll(timeout=20))
        await eventually(lambda: len(mq._desk.waiters._waiting.get("b", ())) == 1)
        await q.put(plain(q).name)
        assert (await polling).payload == plain(q).name
        assert mq._desk.waiters._waiting["a"] == mq._desk.waiters._waiting["b"] == set()


@async_only  # threads cannot be cancelled
async def test_a_poll_that_is_cancelled_takes_no_job_with_it(mq: Any) -> None:
    q = mq.queue("q")
    polling = asyncio.create_task(q.poll())
    await eventually(lambda: mq._desk.waiters._waiting.get("q"))
    polling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await polling
    assert mq._desk.waiters._waiting["q"] == set()
    await q.put(1)
    assert (await q.try_poll()).payload == 1


async def test_closing_the_client_wakes_who_waits(
    connect: Connect, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    never_look_again(monkeypatch)
    client = await connect(database.url)
    polling = asyncio.create_task(client.queue("q", poll_interval=30).poll())
    await eventually(lambda: client._desk.waiters._waiting.get("q"))
    await client.close()
    async with asyncio.timeout(5):
        with pytest.raises(errors.Closed):
            await polling


@on_sqlite
async def test_times_of_a_poll_must_be_times(mq: Any) -> None:
    q = mq.queue("q")
    await q.put(1)
    for wrong in (-1, "1", float("nan"), float("inf")):
        with pytest.raises(errors.InvalidOption, match="timeout"):
            await q.poll(timeout=wrong)
        with pytest.raises(errors.InvalidOption, match="lock_timeout"):
            await q.try_poll(lock_timeout=wrong)
        with pytest.raises(errors.InvalidOption, match="lock_timeout"):
            mq.queue("q", lock_timeout=wrong)
    with pytest.raises(errors.InvalidOption, match="lock_timeout"):
        await q.try_poll(lock_timeout=0)
    assert await counted(q) == {"pending": 1}


# --- too many deliveries --------------------------------------------------------------------------


async def test_a_job_that_was_claimed_too_often_is_failed_before_it_is_tried(
    mq: Any, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    q = mq.queue("q", max_deliveries=2)
    await q.put("poison")
    for _ in range(2):
        assert payloads(await q.try_poll_many(5)) == ["poison"]
        expire(database)
    await q.put("healthy")
    assert payloads(await q.try_poll_many(5)) == ["healthy"]
    (failed,) = await q.failed()
    assert (failed.payload, failed.attempts, failed.deliveries) == ("poison", 0, 3)
    assert "max_deliveries is 2" in failed.error
    assert "poison" not in caplog.text  # payloads are nobody's business
    assert f"job {failed.id} of queue 'q' has failed" in caplog.text
    assert await counted(q) == {"processing": 1, "failed": 1}


@async_only  # what is asked of the database is the same
async def test_what_is_failed_before_it_is_tried_leaves_no_hole(
    mq: Any, database: Database
) -> None:
    """A claim that finds only such jobs goes on to others."""
    strict = mq.queue("q", max_deliveries=1)
    await strict.put_many(range(3))
    assert len(await strict.try_poll_many(9)) == 3
    expire(database)
    await strict.put("healthy")
    for payload in ("healthy", None):
        job = await strict.try_poll()
        assert (job and job.payload) == payload
    assert await counted(strict) == {"processing": 1, "failed": 3}


@async_only  # what is asked of the database is the same
async def test_attempts_that_end_are_no_deliveries_too_many_by_themselves(mq: Any) -> None:
    """A delivery is a claim: three attempts need three of them."""
    q = mq.queue("q", max_deliveries=3)
    await q.put(1)
    for attempt in (1, 2, 3):
        job = await q.try_poll()
        assert job.attempt == attempt
        await job.nack(delay=0, error=f"error {attempt}")
    assert await q.try_poll() is None
    (failed,) = await q.failed()
    assert (failed.attempts, failed.deliveries) == (3, 4)


@on_sqlite
async def test_max_deliveries_must_be_a_whole_number(mq: Any) -> None:
    for most in (0, -1, 1.5, "3", True):
        with pytest.raises(errors.InvalidOption, match="max_deliveries"):
            mq.queue("q", max_deliveries=most)


# --- pause and resume -----------------------------------------------------------------------------


async def test_a_paused_queue_gives_nothing_until_it_is_resumed(
    connect: Connect, mq: Any, database: Database
) -> None:
    q, other = mq.queue("q"), (await connect(database.url)).queue("q")
    await q.put_many([1, 2, 3])
    claimed = await q.try_poll_many(2)
    await q.pause()
    await q.put(4)
    for handle in (q, other, mq.poller("q")):
        assert await handle.try_poll() is None
    assert [info.paused for info in await mq.queues()] == [True]
    assert await counted(q) == {"pending": 2, "processing": 2}
    await claimed[0].ack()  # what is claimed can be settled
    expire(database)
    assert await other.try_poll_many(9) == []
    await q.resume()
    assert payloads(await other.try_poll_many(9)) == [2, 3, 4]
    assert [info.paused for info in await mq.queues()] == [False]


@async_only  # what is asked of the database is the same
async def test_a_paused_queue_does_not_keep_others_from_being_claimed(mq: Any) -> None:
    a, b = mq.queue("a"), mq.queue("b")
    await a.put("a", priority=9)
    await b.put("b")
    await a.pause()
    poller = mq.poller(a, b)
    assert payloads(await poller.try_poll_many(5)) == ["b"]
    await a.resume()
    assert payloads(await poller.try_poll_many(5)) == ["a"]


@async_only  # what is asked of the database is the same
async def test_a_queue_can_be_paused_before_it_has_a_job(mq: Any) -> None:
    q = mq.queue("q")
    await q.pause()
    await q.put(1)
    assert await q.try_poll() is None
    await q.resume()
    await q.resume()
    assert (await q.try_poll()).payload == 1


@async_only  # what is asked of the database is the same
async def test_a_busy_claimer_notices_that_another_client_has_paused(
    connect: Connect, mq: Any, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_often(monkeypatch)
    q, other = mq.queue("q"), (await connect(database.url)).queue("q")
    await q.put_many(range(900))
    await q.try_poll()
    await other.pause()
    deadline = time.monotonic() + 2.5
    while await q.try_poll() is not None:
        assert time.monotonic() < deadline
    assert (await q.counts())["pending"] > 0


# --- what a claim costs ---------------------------------------------------------------------------


async def test_an_idle_poll_only_reads(mq: Any, database: Database) -> None:
    q = mq.queue("q")
    await q.put("not yet", delay=60)
    before = contents(database)
    with statements(mq) as seen:
        for _ in range(3):
            assert await q.try_poll() is None
    assert [s.name for s in seen] == ["claims.look"] * 3
    assert all(s.sole for s in seen)
    assert contents(database) == before


@async_only  # what is asked of the database is the same
async def test_a_batch_is_one_lock(mq: Any, database: Database) -> None:
    q = mq.queue("q")
    await q.put_many(range(50))
    await q.try_poll_many(50)
    assert len(contents(database)["locks"]) == 1
    assert "ready" not in contents(database)


async def test_a_claim_that_is_repeated_has_nothing_that_people_took_from_it(mq: Any) -> None:
    """Its answer was lost; meanwhile a job of it was given up, retried, and claimed by another."""
    q = mq.queue("q")
    first, second, third = [(await q.put(n, key=f"k{n}")).id for n in range(3)]
    claims = plain(mq)._store.claims
    look = await mq._run(partial(claims.look, ["q"]))
    how = {"limit": 9, "token": 7, "lock_us": 60_000_000, "owner": "somebody"}
    take = partial(claims.take, dict.fromkeys(look.lanes, HEAD_OF_LANE), **how)
    assert [job.position for job in await mq._run(take)] == [0, 1, 2]
    assert await q.fail([first]) == await q.retry([first]) == 1
    job = await q.try_poll()
    assert job.id == first
    again = await mq._run(partial(take, again=True))
    assert [(job.entry.job_id, job.position) for job in again] == [(second, 1), (third, 2)]
    assert await q.drop("k1")
    assert await q.drop("k2")
    assert await mq._run(partial(take, again=True)) == []
