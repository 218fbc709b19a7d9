"""Where other job queues are known to break: a test for each, that breaks with them.

The numbers are those of a list of weaknesses found in other systems.
"""

import asyncio
import contextlib
import re
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import rowmq
from rowmq import DeliveryType, Outcome, ScheduledMessage, errors
from rowmq.store.statement import Statement
from tests.choices import async_only, on_mysql, on_servers, on_sqlite
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
from tests.databases import Database, SQLiteDatabase
from tests.flavours import plain

FIRST, AGAIN = DeliveryType.FIRST_DELIVERY, DeliveryType.REDELIVERY
DAY_SECONDS = 86_400
FINISHED = 200_000


# --- 5: the application's clock -------------------------------------------------------------------


@pytest.mark.parametrize("ahead", [DAY_SECONDS, -DAY_SECONDS], ids=["ahead", "behind"])
async def test_weakness_05_a_wrong_clock_steals_no_lock_and_claims_nothing_early(
    connect: Connect, mq: Any, database: Database, monkeypatch: pytest.MonkeyPatch, ahead: int
) -> None:
    q = mq.queue("q")
    await q.put_many(["claimed", "nacked"])
    claimed, nacked = await q.try_poll_many(9)
    await nacked.nack(delay=60)
    right, right_ns = time.time, time.time_ns
    monkeypatch.setattr(time, "time", lambda: right() + ahead)
    monkeypatch.setattr(time, "time_ns", lambda: right_ns() + ahead * 10**9)
    wrong = (await connect(database.url)).queue("q")
    assert await wrong.try_poll() is None
    await wrong.put("delayed", delay=60)
    assert await wrong.poll(timeout=0.02) is None
    await wrong.put("now")
    job = await wrong.try_poll()
    assert job.payload == "now"
    await job.extend(600)
    ((since, until),) = database.execute(
        "SELECT claimed_at, locked_until FROM rowmq_locks ORDER BY claimed_at DESC LIMIT 1"
    )
    assert 600_000_000 <= until - since < 700_000_000
    assert abs(since / 1_000_000 - right()) < 60
    await job.nack(delay=0)
    await (await wrong.try_poll()).ack()
    assert await wrong.prune() == 0  # a week is not over
    for moment in (kept := (await wrong.archive())[0]).created_at, kept.finished_at:
        assert abs(moment.timestamp() - right()) < 60
    await claimed.ack()
    assert await counted(q) == {"pending": 1, "retryable": 1, "completed": 2}


@on_sqlite
def test_weakness_05_no_clock_of_the_application_is_asked(database: Database) -> None:
    """Other than the monotonic one, for how long to wait: a statement's times are the database's,
    or those that a caller gave.
    """
    assert database.name
    package = Path(rowmq.__file__).parent
    clocks = re.compile(r"datetime\.(now|utcnow|today)|time\.(time|time_ns|localtime|gmtime)\b")
    found = [
        path.name
        for folder in ("queue", "store")
        for path in (package / folder).glob("*.py")
        if clocks.search(path.read_text())
    ]
    assert found == []


# --- 8: keys and names that are patterns, or compared loosely -------------------------------------


async def test_weakness_08_a_key_is_no_pattern_and_differs_in_every_byte(mq: Any) -> None:
    keys = ["a_b", "axb", "a%", "abc", "ab", "%", "_", "a/b", "a", "Key", "kEY", "key", "key ", "é"]
    keys += ["e\u0301", "E", "e", "\\", "'", '"', "ß", "ss", "a\\_b"]
    q = mq.queue("q")
    outcomes = await q.offer_batch([ScheduledMessage(key, key) for key in keys])
    assert [outcome for _, outcome in outcomes] == [Outcome.CREATED] * len(keys)
    for key in keys:
        assert (await q.read(key)).payload == key
    for key in ("a_b", "a%", "%", "_", "Key", "key ", "é"):
        assert await q.drop(key)
        assert not await q.contains(key)
        keys.remove(key)
        assert (await counted(q))["pending"] == len(keys)
    jobs = await q.try_poll_many(99)
    assert payloads(jobs) == keys
    await q.ack(jobs)


async def test_weakness_08_a_queue_is_no_pattern_and_differs_in_every_byte(mq: Any) -> None:
    names = ["Jobs", "jobs", "jobs ", "job_", "jobs%", "jobsx", "jöbs"]
    for name in names:
        await mq.queue(name).put(name)
    for name in names:
        assert await counted(mq.queue(name)) == {"pending": 1}
        assert payloads(await mq.queue(name).try_poll_many(9)) == [name]
    assert {info.name for info in await mq.queues()} == set(names)


@async_only  # what is asked of the database is the same
async def test_weakness_08_ordering_keys_and_kinds_differ_in_every_byte(mq: Any) -> None:
    q = mq.queue("q")
    for key in ("line", "Line", "line ", "lin_", "lin%"):
        await q.put(key, ordering_key=key)
    assert len(await q.try_poll_many(99)) == 5  # none waits behind another
    for kind in ("kind", "Kind", "kind "):
        await mq.queue("kinds", kind=kind).put(kind, key="k")
    assert payloads(await mq.queue("kinds", kind="Kind").try_poll_many(9)) == ["Kind"]


# --- 13: offers that drop, offers that spin, types that lie, heads that block ---------------------


async def test_weakness_13_a_duplicate_inside_a_batch_drops_no_other_row(mq: Any) -> None:
    q = mq.queue("q")
    messages: list[Any] = [ScheduledMessage(f"k{n}", n) for n in range(250)]
    messages.insert(100, ScheduledMessage("k7", "seven again"))
    messages.insert(200, ScheduledMessage("k8", "not this", can_update=False))
    outcomes = [outcome for _, outcome in await q.offer_batch(messages)]
    assert outcomes[100] is Outcome.UPDATED
    assert outcomes[200] is Outcome.IGNORED
    assert outcomes.count(Outcome.CREATED) == 250
    found = {job.key: job.payload for job in await q.try_poll_many(999)}
    assert found == {f"k{n}": n for n in range(250)} | {"k7": "seven again"}


@async_only  # what is asked of the database is the same
async def test_weakness_13_a_key_that_is_taken_drops_no_other_row_of_its_batch(mq: Any) -> None:
    q = mq.queue("q")
    await q.put("there", key="k3")
    messages = [ScheduledMessage(f"k{n}", n, can_update=False) for n in range(20)]
    outcomes = [outcome for _, outcome in await q.offer_batch(messages)]
    assert [n for n, outcome in enumerate(outcomes) if outcome is Outcome.IGNORED] == [3]
    assert await counted(q) == {"pending": 20}
    assert (await q.read("k3")).payload == "there"


async def test_weakness_13_an_offer_ends_though_its_row_comes_and_goes(
    connect: Connect, mq: Any, database: Database
) -> None:
    q, other = mq.queue("q"), (await connect(database.url)).queue("q")
    done = asyncio.Event()
    handled: list[Any] = []

    async def take_away() -> None:
        turn = 0
        while not done.is_set():
            turn += 1
            if turn % 2:
                await other.drop("k")
            elif job := await other.try_poll():
                try:
                    await job.ack()
                    handled.append(job.payload)
                except errors.StaleLease:
                    pass  # it was updated meanwhile

    async def offer(worker: int) -> None:
        for turn in range(12):
            outcome = await q.offer_or_update("k", [worker, turn])
            assert outcome in (Outcome.CREATED, Outcome.UPDATED)

    taking = asyncio.create_task(take_away())
    async with asyncio.timeout(30):
        await asyncio.gather(*(offer(worker) for worker in range(3)))
    done.set()
    await taking
    left = await counted(q)
    assert left.get("completed", 0) == len(handled)
    assert left.get("pending", 0) <= 1
    await q.drop("k")
    expire(database)
    assert await q.try_poll() is None
    assert occupied(database) <= {"jobs", "completed"}


async def test_weakness_13_a_batch_tells_of_each_job_whether_it_comes_again(
    mq: Any, database: Database
) -> None:
    q = mq.queue("q")
    await q.put_many(["old", "older"])
    assert [job.delivery_type for job in await q.try_poll_many(9)] == [FIRST, FIRST]
    expire(database)
    await q.put("new")
    types = {job.payload: job.delivery_type for job in await q.try_poll_many(9)}
    assert types == {"old": AGAIN, "older": AGAIN, "new": FIRST}
    await q.put("single", priority=1)
    assert (await q.try_poll()).delivery_type is FIRST


@async_only  # what is asked of the database is the same
async def test_weakness_13_attempts_are_limited_if_nothing_is_said(
    mq: Any, database: Database
) -> None:
    q = mq.queue("q")
    await q.put("never works")
    database.execute("UPDATE rowmq_ready SET attempts = 18")
    for _ in range(2):
        make_due(database)
        await (await q.try_poll()).nack(error="no")
    assert await q.try_poll() is None
    assert await counted(q) == {"failed": 1}


CORRUPTIONS = {
    "payload": ["payload = 'nonsense'", "payload = ''", "encoding = 99"],
    "headers": ["headers = 'nonsense'", "headers = '[1, 2]'", "headers = '{\"a\": 1}'"],
}


@pytest.mark.parametrize("corruptions", CORRUPTIONS.values(), ids=CORRUPTIONS)
async def test_weakness_13_what_cannot_be_decoded_does_not_block_the_head(
    mq: Any, database: Database, corruptions: list[str]
) -> None:
    q = mq.queue("q")
    poison = [job.id for job in await q.put_many({"n": n} for n in range(3))]
    await q.put_many([1, 2])
    for id, sets in zip(poison, corruptions, strict=True):
        database.execute(f"UPDATE rowmq_jobs SET {sets} WHERE id = {id}")
    assert payloads(await q.try_poll_many(9)) == [1, 2]
    assert await q.try_poll() is None
    assert await counted(q) == {"processing": 2, "failed": 3}
    failed = await q.failed()
    assert sorted(job.id for job in failed) == poison
    assert all(job.error and job.attempts == 0 for job in failed)


async def test_weakness_13_what_is_of_another_type_does_not_block_the_head(mq: Any) -> None:
    q = mq.queue("q", type=dict[str, int], kind="numbers")
    untyped = mq.queue("q")
    for payload in ("text", b"\xff", [1], {"n": "x"}):
        await untyped.put(payload)
    await q.put({"n": 1})
    assert (await q.try_poll()).payload == {"n": 1}
    assert await counted(untyped) == {"processing": 1, "failed": 4}
    assert all("does not parse" in job.error for job in await untyped.failed())


# --- 14: what is too long is cut ------------------------------------------------------------------


async def test_weakness_14_what_is_too_long_is_refused_and_not_cut(
    mq: Any, database: Database
) -> None:
    q = mq.queue("q")
    await q.configure(max_payload_bytes=1_000)
    long = "k" * 256
    message = ScheduledMessage("fine", 1)
    for wrong in (
        q.put(1, key=long),
        q.put(1, ordering_key="é" * 128),
        q.offer_or_update(long, 1),
        q.offer_if_not_exists(long, 1),
        q.offer_batch([message, ScheduledMessage(long, 2)]),
        q.put("x" * 1_001),
        q.put_many(["fine", "x" * 1_001]),
        q.offer_batch([message, ScheduledMessage("k", b"x" * 1_001)]),
        q.put(1, headers={"a": "x" * 70_000}),
    ):
        with pytest.raises(errors.InvalidInput):
            await wrong
    with pytest.raises(errors.InvalidQueue):
        mq.queue("q" * 201)
    with pytest.raises(errors.InvalidInput):
        mq.queue("q", kind="k" * 201)
    assert occupied(database) == set()


async def test_weakness_14_what_is_as_long_as_it_may_be_comes_back_whole(mq: Any) -> None:
    q = mq.queue("é" * 100, kind="ß" * 100)
    text = "€uro 😀 " * 30_000  # beyond what a small blob holds
    key, line = "é" * 127 + "x", "😀" * 63
    headers = {"h": "x" * 60_000}
    await q.put(text, key=key, ordering_key=line, headers=headers)
    await q.put(bytes(range(256)) * 800)
    first, second = await q.try_poll_many(9)
    assert (first.payload, first.key, first.ordering_key) == (text, key, line)
    assert dict(first.headers) == headers
    assert second.payload == bytes(range(256)) * 800
    assert (await q.read(key)).payload == text
    assert first.kind == "ß" * 100
    await first.nack(error="€" * 16_000, delay=60)
    (error,) = await q.errors(first.id)
    assert error.error == "€" * 16_000


# --- 15: finished rows that are locked, crashes that are not counted, failures that vanish --------


def finish_many(database: Database, count: int) -> None:
    """Have so many completed jobs in the queue that there is."""
    places = len(str(count - 1))
    most = [9] * (places - 1) + [(count - 1) // 10 ** (places - 1)]
    digits = [
        "(SELECT 0 AS n" + "".join(f" UNION ALL SELECT {n}" for n in range(1, last + 1)) + ")"
        for last in most
    ]
    number = " + ".join(f"d{place}.n * {10**place}" for place in range(places))
    joined = ", ".join(f"{digit} d{place}" for place, digit in enumerate(digits))
    database.execute(
        "INSERT INTO rowmq_completed (queue_id, finished_at, job_id, started_at, attempts, "
        f"deliveries) SELECT q.id, 1 + {number}, 1 + {number}, 1, 1, 1 "
        f"FROM rowmq_queues q, {joined} WHERE {number} < {count}"
    )


@async_only  # what is asked of the database is the same
@on_mysql
async def test_weakness_15_a_claim_locks_what_it_takes_and_no_finished_row(
    mq: Any, database: Database
) -> None:
    q = mq.queue("q")
    await q.put_many(range(50))
    finish_many(database, FINISHED)
    ((finished,),) = database.execute("SELECT COUNT(*) FROM rowmq_completed")
    assert finished == FINISHED
    locked: list[int] = []
    sessions = {
        "mysql": "SELECT processlist_id FROM performance_schema.threads WHERE processlist_db",
        "mariadb": "SELECT id FROM information_schema.processlist WHERE db",
    }

    def look(statement: Statement) -> None:
        if statement.name in ("claims.lock", "settles.unlock"):
            rows = database.execute(
                "SELECT trx_rows_locked FROM information_schema.innodb_trx "
                f"WHERE trx_mysql_thread_id IN ({sessions[database.name]} = DATABASE()) "
                "AND trx_rows_locked > 0"
            )
            locked.append(sum(rows_locked for (rows_locked,) in rows))

    mq._driver.observers.append(look)
    job = await q.try_poll()
    await job.ack()
    assert len(locked) == 2
    assert 0 < max(locked) <= 12


@async_only  # what is asked of the database is the same
@on_servers
async def test_weakness_15_a_clean_up_does_not_wait_for_who_works(
    connect: Connect, database: Database
) -> None:
    """Nor does a claim wait for the clean-up: each of them gives up after a second here."""
    options = {"lock_timeout": 1, "retry_for": 0}
    mq, other = await connect(database.url, **options), await connect(database.url, **options)
    q = mq.queue("q")
    await q.put_many(range(60))
    await q.ack(await q.try_poll_many(50))
    finish_many(database, 1_500)
    async with q.hold() as job:
        assert job is not None
        assert await other.queue("q").prune(older_than=0) == 1_550
    await q.ack(await q.try_poll_many(5))
    async with mq.transaction() as tx:
        assert await q.prune(older_than=0, connection=tx) > 0
        claimed = await other.queue("q").try_poll_many(2)
        await other.queue("q").ack(claimed)
        await other.queue("q").put("new")
    assert await counted(q) == {"pending": 3, "completed": 2}


@async_only  # what is asked of the database is the same
async def test_weakness_15_a_crash_is_counted_and_ends_a_loop(mq: Any, database: Database) -> None:
    q = mq.queue("q", max_deliveries=3)
    await q.put("kills its worker")
    claims = 0
    while await q.try_poll_many(9):
        claims += 1
        expire(database)
    assert claims == 3
    (failed,) = await q.failed()
    assert (failed.deliveries, failed.attempts) == (4, 0)
    assert "max_deliveries" in failed.error


@on_servers  # on SQLite, a hold is a claim that expires
def test_weakness_15_the_death_of_a_holder_is_counted_and_ends_a_loop(database: Database) -> None:
    command = [sys.executable, "-m", "tests.processes.holder", "sync", database.url, "q"]
    with rowmq.connect(database.url) as mq:
        q = mq.queue("q")
        q.put("kills its worker")
        with subprocess.Popen([*command, '{"max_failures": 2}'], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            assert process.stdout.readline() == b"1\n"
            process.kill()
        deadline = time.monotonic() + 10
        while q.counts()["failed"] == 0:  # the server may take a moment to notice
            assert time.monotonic() < deadline
            with contextlib.suppress(ZeroDivisionError), q.hold(max_failures=2) as job:
                if job is not None:
                    assert job.attempt == 2
                    1 / 0  # noqa: B018 - the second failure
        (failed,) = q.failed()
        assert failed.attempts == 2


@async_only  # what is asked of the database is the same
async def test_weakness_15_a_clean_up_deletes_no_failure_unseen(
    mq: Any, database: Database
) -> None:
    q = mq.queue("q")
    await q.put("failed")
    await (await q.try_poll()).reject(error="look at me")
    database.execute("UPDATE rowmq_failed SET finished_at = 1")
    assert await q.prune() == 0
    assert await q.prune(older_than=0) == 0
    assert [job.error for job in await q.failed()] == ["look at me"]


# --- 16: compare and swap on times ----------------------------------------------------------------


@pytest.mark.parametrize("key", [None, "k"], ids=["plain", "keyed"])
async def test_weakness_16_a_lock_is_known_by_more_than_its_times(
    mq: Any, database: Database, key: str | None
) -> None:
    """The same job is claimed, given back and claimed again, all in the same microsecond."""
    q = mq.queue("q")
    await q.put(1, key=key)
    (old,) = await q.try_poll_many(9)
    times = database.execute("SELECT claimed_at, locked_until FROM rowmq_locks")
    expire(database)
    (new,) = await q.try_poll_many(9)
    ((claimed_at, locked_until),) = times
    database.execute(
        f"UPDATE rowmq_locks SET claimed_at = {claimed_at}, locked_until = {locked_until}"
    )
    before = contents(database)
    for late in (old.ack(), old.nack(delay=0), old.reject(), old.extend(9), old.release()):
        with pytest.raises(errors.StaleLease):
            await late
    assert contents(database) == before
    await new.ack()
    assert await counted(q) == {"completed": 1}


async def test_weakness_16_an_update_to_the_same_time_is_another_job(mq: Any) -> None:
    q = mq.queue("q")
    moment = datetime.now(UTC).replace(microsecond=0) - timedelta(minutes=1)
    await q.offer_or_update("k", "first", moment)
    (old,) = await q.try_poll_many(9)
    assert await q.offer_or_update("k", "second", moment) is Outcome.UPDATED
    with pytest.raises(errors.StaleLease):
        await old.ack()
    (new,) = await q.try_poll_many(9)
    assert (new.payload, new.due_at) == ("second", old.due_at)
    assert new.id != old.id
    # And back to what it was: that is another one still.
    assert await q.offer_or_update("k", "first", moment) is Outcome.UPDATED
    for late in (old, new):
        with pytest.raises(errors.StaleLease):
            await late.ack()
    (last,) = await q.try_poll_many(9)
    await last.ack()
    assert await counted(q) == {"completed": 1}


# --- 17: locks of others, the last flush, limits of statements, headers, ids ----------------------


async def test_weakness_17_a_short_lock_of_one_queue_frees_no_job_of_another(
    mq: Any,
) -> None:
    quick, slow = mq.queue("quick", lock_timeout=0.01), mq.queue("slow", lock_timeout=600)
    await quick.put("quick")
    await slow.put("slow")
    (held,) = await slow.try_poll_many(9)
    assert (await quick.try_poll()).delivery_type is FIRST
    assert (await quick.poll(timeout=10)).delivery_type is AGAIN
    assert await slow.try_poll() is None
    assert await mq.queue("slow", lock_timeout=0.01).try_poll() is None
    await held.ack()
    assert await counted(slow) == {"completed": 1}


async def test_weakness_17_a_settle_that_returned_outlives_the_client(
    connect: Connect, database: Database
) -> None:
    client = await connect(database.url)
    q = client.queue("q")
    await q.put_many(range(20))
    jobs = await q.try_poll_many(20)
    settles = [asyncio.create_task(job.ack()) for job in jobs]
    outcomes = await asyncio.gather(*settles)
    await client.close()
    assert outcomes == [None] * 20
    again = (await connect(database.url)).queue("q")
    assert await counted(again) == {"completed": 20}


@async_only  # what is asked of the database is the same
async def test_weakness_17_no_statement_grows_with_what_is_settled(mq: Any) -> None:
    """It is cut into statements of a bounded size: of twice as many jobs there are more of them."""
    q = mq.queue("q")
    sizes = {}
    for count in (700, 1_400):
        await q.put_many(range(count))
        jobs = await q.try_poll_many(count)
        with statements(mq) as seen:
            await q.ack(jobs)
        sizes[count] = max(len(s.sql) for s in seen)
    assert sizes[700] == sizes[1_400]
    assert await counted(q) == {"completed": 2_100}


async def test_weakness_17_headers_may_be_missing(mq: Any, database: Database) -> None:
    q = mq.queue("q")
    await q.put("none")
    await q.put("empty", headers={})
    await q.put("some", headers={"a": "b"})
    await q.offer_if_not_exists("offered", "offered")
    rows = database.execute("SELECT headers FROM rowmq_jobs ORDER BY id")
    assert [headers is None for (headers,) in rows] == [True, True, False, True]
    jobs = await q.try_poll_many(9)
    assert [dict(job.headers) for job in jobs] == [{}, {}, {"a": "b"}, {}]
    await q.ack(jobs)
    assert [dict(job.headers) for job in await q.archive()] == [{}, {"a": "b"}, {}, {}]


async def test_weakness_17_an_id_is_given_once(
    connect: Connect, mq: Any, database: Database
) -> None:
    """Also if all that had one before is gone, and if it was taken in vain."""
    ids: list[int] = []
    for _ in range(3):
        client = await connect(database.url)
        q = client.queue("q")
        with pytest.raises(ZeroDivisionError):
            async with client.transaction() as tx:
                await tx.queue("q").put("never")
                raise ZeroDivisionError
        ids += [job.id for job in await q.put_many([1, 2])]
        async with client.transaction() as tx:
            ids.append((await tx.queue("q").put(3)).id)
        await q.ack(await q.try_poll_many(9))
        assert await q.prune(older_than=0) == 3
        assert occupied(database) == set()
        await client.close()
    assert len(set(ids)) == 9
    q = mq.queue("q")
    assert (await q.put("last")).id not in ids


@on_sqlite
async def test_weakness_17_an_id_is_given_once_by_a_file_that_was_closed_and_emptied(
    connect: Connect, database: SQLiteDatabase
) -> None:
    archived: dict[int, str] = {}
    for turn in range(3):
        client = await connect(database.url)
        q = client.queue("q")
        for payload in (f"kept {turn}", f"dropped {turn}"):
            job = await q.put(payload, key="k")
            assert job.id not in archived
            if payload.startswith("kept"):
                await (await q.try_poll()).ack()
                archived[job.id] = payload
            else:
                assert await q.drop("k")
        await client.close()
        database.execute("DELETE FROM rowmq_job_ids")
        database.execute("VACUUM")
    client = await connect(database.url)
    found = {job.id: job.payload for job in await client.queue("q").archive()}
    assert found == archived


@on_mysql
async def test_weakness_17_urls_that_name_a_driver_are_understood(
    connect: Connect, database: Database
) -> None:
    for scheme in ("mariadb+pymysql", "mysql+pymysql", "mysql+asyncmy", "mariadb"):
        url = database.url.replace("mysql://", f"{scheme}://", 1)
        client = await connect(url.replace("mariadb://", f"{scheme}://", 1))
        job = await client.queue("q").put(scheme)
        assert plain(job).queue == "q"
        assert (await client.queue("q").counts())["pending"] > 0
