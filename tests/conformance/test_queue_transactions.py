"""Jobs and the caller's own writes in one transaction: both are committed, or neither is.

In `mq.transaction()`, and in every object that `connection=` takes: see `callers`.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import pytest

import rowmq
from rowmq import Outcome, ScheduledMessage, State, errors
from tests.choices import async_only, on_servers
from tests.conformance.callers.kinds import Held, Kind, Undo, ask, client, transaction
from tests.conformance.test_callers import matrix, with_own_table
from tests.conftest import Connect
from tests.consuming import eventually
from tests.databases import Database, Databases

NOW = rowmq.Constant(interval=0)

CONFIRM = "Yes, please, I know what I'm doing!"

SEEN = {
    "jobs": "SUM(id), SUM(due_at)",
    "ready": "SUM(job_id), SUM(due_at), SUM(attempts), SUM(deliveries)",
    "locks": "MIN(locked_until), MAX(locked_until), MIN(settled), MAX(settled)",
    "job_keys": "SUM(job_id), SUM(due_at)",
    "lines": "SUM(head_id)",
    "waiting": "SUM(job_id)",
    "completed": "SUM(job_id)",
    "failed": "SUM(job_id)",
    "job_errors": "SUM(job_id)",
}
"""What tells one state of a table from another, beside how many rows it has."""

SETTLES: dict[str, Callable[..., Any]] = {
    "ack": lambda job, **where: job.ack(**where),
    "nack": lambda job, **where: job.nack(delay=60, error="not now", **where),
    "reject": lambda job, **where: job.reject(error="no", **where),
    "release": lambda job, **where: job.release(**where),
    "extend": lambda job, **where: job.extend(600, **where),
}

SETTLED = {
    "ack": {"completed": 1},
    "nack": {"retryable": 1},
    "reject": {"failed": 1},
    "release": {"pending": 1},
    "extend": {"processing": 1},
}


@pytest.fixture
def own_table(database: Database) -> str:
    database.execute("DROP TABLE IF EXISTS own_effects")
    database.execute("CREATE TABLE own_effects (id integer PRIMARY KEY)")
    return "own_effects"


async def numbers(q: Any) -> dict[str, int]:
    return {state: count for state, count in (await q.counts()).items() if count}


def payloads(jobs: list[Any]) -> list[Any]:
    return [job.payload for job in jobs]


def stored(database: Database) -> list[Any]:
    """What others see of jobs, asked for at once: to connect takes longer than all the rest."""
    values = [
        f"(SELECT {value} FROM rowmq_{table})"
        for table, sums in SEEN.items()
        for value in ("COUNT(*)", *sums.split(", "))
    ]
    return ask(database, "SELECT " + ", ".join(values))


# --- settles in mq.transaction() -----------------------------------------------------------------


async def test_a_commit_settles(mq: Any, database: Database, own_table: str) -> None:
    for number, (way, settle) in enumerate(SETTLES.items()):
        q = mq.queue(way)
        await q.put("work", key="k", ordering_key="line")
        job = await q.try_poll()
        before = stored(database)
        async with mq.transaction() as tx:
            await tx.execute(f"INSERT INTO {own_table} VALUES (?)", [number])
            await settle(job, connection=tx)
            assert stored(database) == before  # for all others
        assert database.execute(f"SELECT COUNT(*) FROM {own_table}") == [(number + 1,)]
        assert await numbers(q) == SETTLED[way]
        if way == "extend":
            await job.ack()
            continue
        # Of what was released nobody can tell whether its lock was lost.
        refusals = (errors.AlreadySettled, errors.StaleLease)
        for again in SETTLES.values():
            with pytest.raises(refusals if way == "release" else refusals[:1]):
                await again(job)
        assert await numbers(q) == SETTLED[way]


async def test_a_rollback_leaves_it_to_be_settled(
    mq: Any, database: Database, own_table: str
) -> None:
    for way, afterwards in zip(SETTLES, [*list(SETTLES)[1:], "ack"], strict=True):
        q = mq.queue(way)
        await q.put("work", key="k", ordering_key="line")
        job = await q.try_poll()
        before = stored(database)
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                async with mq.transaction() as tx:
                    await tx.execute(f"INSERT INTO {own_table} VALUES (1)")
                    await SETTLES[way](job, connection=tx)
                    raise ZeroDivisionError
        assert stored(database) == before
        assert not job.settled
        await SETTLES[afterwards](job)
        assert await numbers(q) == SETTLED[afterwards]
    assert database.execute(f"SELECT id FROM {own_table}") == []


@async_only
async def test_many_are_acked_in_a_transaction(mq: Any) -> None:
    q = mq.queue("q")
    await q.put_many(range(7))
    await q.put("keyed", key="k")
    jobs = [*await q.try_poll_many(4), *await q.try_poll_many(9)]
    with suppress(ZeroDivisionError):
        async with mq.transaction() as tx:
            await q.ack(jobs, connection=tx)
            raise ZeroDivisionError
    assert await numbers(q) == {"processing": 8}
    async with mq.transaction() as tx:
        await q.ack(jobs[:3], connection=tx)
        await q.ack(jobs[3:], connection=tx)
    assert await numbers(q) == {"completed": 8}


async def test_effects_and_acks_are_one(
    connect: Connect, database: Database, own_table: str
) -> None:
    """Every job has its effect exactly once, though every other handler fails at first."""
    mq = await connect(database.url, pool_size=5)
    q, following = mq.queue("q", retry=NOW), mq.queue("next")
    await q.put_many(range(16))
    await following.put(-1)
    await mq.publish("results", -1, key="k")
    failed: set[int] = set()

    async def handle(job: Any) -> None:
        n = job.payload
        async with mq.transaction() as tx:
            await tx.execute(f"INSERT INTO {own_table} VALUES (?)", [n])
            await tx.publish("results", n, key="k")
            await tx.queue("next").put(n)
            await job.ack(connection=tx)
            if n % 2 and n not in failed:
                failed.add(n)
                raise ZeroDivisionError

    async def work() -> None:
        while (job := await q.try_poll()) is not None:
            try:
                await handle(job)
            except ZeroDivisionError:
                await job.nack()

    await asyncio.gather(*(work() for _ in range(4)))
    await work()
    assert len(failed) == 8
    wanted = list(range(16))
    assert sorted(id for (id,) in database.execute(f"SELECT id FROM {own_table}")) == wanted
    assert sorted(m.payload for m in await mq.read("results")) == [-1, *wanted]
    assert sorted(payloads(await following.try_poll_many(99))) == [-1, *wanted]
    assert {job.payload: job.attempts for job in await q.archive()} == {
        n: 1 + n % 2 for n in wanted
    }


@async_only
async def test_a_line_goes_on_with_the_commit(mq: Any) -> None:
    q = mq.queue("q")
    await q.put_many([1, 2], ordering_key="line")
    job = await q.try_poll()
    with suppress(ZeroDivisionError):
        async with mq.transaction() as tx:
            await job.ack(connection=tx)
            raise ZeroDivisionError
    assert await q.try_poll() is None
    async with mq.transaction() as tx:
        await job.ack(connection=tx)
    assert (await q.try_poll()).payload == 2


# --- what is refused -----------------------------------------------------------------------------


async def test_a_stale_settle_fails_the_whole_block(
    mq: Any, database: Database, own_table: str
) -> None:
    for way, settle in SETTLES.items():
        q = mq.queue(way)
        await q.put("old", key="k")
        job = await q.try_poll()
        await q.offer_or_update("k", "new", None)
        with pytest.raises(errors.StaleLease):
            async with mq.transaction() as tx:
                await tx.execute(f"INSERT INTO {own_table} VALUES (1)")
                await settle(job, connection=tx)
        with pytest.raises(errors.TransactionFailed):
            async with mq.transaction() as tx:
                await tx.execute(f"INSERT INTO {own_table} VALUES (1)")
                await tx.publish("t", 1)
                with pytest.raises(errors.StaleLease):
                    await settle(job, connection=tx)
        assert (await q.try_poll()).payload == "new"
    assert database.execute(f"SELECT id FROM {own_table}") == []
    assert await mq.topics() == []


@async_only
async def test_one_stale_job_among_many_fails_the_whole_block(mq: Any) -> None:
    q = mq.queue("q")
    for key in "abc":
        await q.put(key, key=key)
    jobs = await q.try_poll_many(3)
    await q.drop("b")
    with pytest.raises(errors.StaleLease):
        async with mq.transaction() as tx:
            await q.ack(jobs, connection=tx)
    assert await numbers(q) == {"processing": 2}
    await jobs[0].ack()
    await jobs[2].ack()
    assert await numbers(q) == {"completed": 2}


@async_only
async def test_a_lock_that_was_lost_is_stale_in_a_transaction(
    mq: Any, database: Database, own_table: str
) -> None:
    q = mq.queue("q")
    await q.put("work")
    job = await q.try_poll(lock_timeout=0.01)
    again = await eventually(q.try_poll)
    with pytest.raises(errors.StaleLease):
        async with mq.transaction() as tx:
            await tx.execute(f"INSERT INTO {own_table} VALUES (1)")
            await job.ack(connection=tx)
    assert database.execute(f"SELECT id FROM {own_table}") == []
    await again.ack()
    assert await numbers(q) == {"completed": 1}


@async_only
async def test_a_second_settle_in_a_transaction_is_refused(mq: Any) -> None:
    q = mq.queue("q")
    await q.put("work")
    job = await q.try_poll()
    with pytest.raises(errors.AlreadySettled):
        async with mq.transaction() as tx:
            await job.ack(connection=tx)
            await job.reject(connection=tx)
    assert await numbers(q) == {"processing": 1}
    await job.ack()
    with pytest.raises(errors.AlreadySettled):
        async with mq.transaction() as tx:
            await job.ack(connection=tx)


@async_only
async def test_a_taken_key_may_be_caught_and_the_block_goes_on(mq: Any) -> None:
    q = mq.queue("q")
    await q.put("old", key="k")
    async with mq.transaction() as tx:
        await tx.queue("q").put("before")
        with pytest.raises(errors.KeyTaken):
            await tx.queue("q").put("new", key="k")
        await tx.queue("q").put("after", key="free")
    assert payloads(await q.try_poll_many(9)) == ["old", "before", "after"]


# --- put, offer and the others in mq.transaction() -----------------------------------------------


async def write_everything(mq: Any, tx: Any) -> None:
    q = tx.queue("q")
    assert (await q.put("plain", headers={"a": "b"})).payload == "plain"
    await q.put("keyed", key="new key", delay=60)
    await q.put("in line", ordering_key="line", priority=3)
    await q.put_many(["in line too", "and again"], ordering_key="line")
    assert await q.offer_or_update("known", "updated", None) is Outcome.UPDATED
    assert await q.offer_if_not_exists("known", "ignored", None) is Outcome.IGNORED
    batch = [ScheduledMessage("b1", 1, None), ScheduledMessage("known", "again", None)]
    outcomes = [outcome for _, outcome in await q.offer_batch(batch)]
    assert outcomes == [Outcome.CREATED, Outcome.UPDATED]
    assert await q.drop("dropped") is True
    await mq.queue("q").put("by connection", connection=tx)
    await mq.queue("new queue").put(1, connection=tx)
    await tx.publish("t", 1)


async def test_everything_is_put_with_the_commit_or_not_at_all(mq: Any, database: Database) -> None:
    q = mq.queue("q")
    await q.put("old", key="known")
    await q.put("old", key="dropped")
    before = stored(database)
    with pytest.raises(ZeroDivisionError):
        async with mq.transaction() as tx:
            await write_everything(mq, tx)
            assert stored(database) == before
            raise ZeroDivisionError
    assert stored(database) == before
    assert [info.name for info in await mq.queues()] == ["q"]
    async with mq.transaction() as tx:
        await write_everything(mq, tx)
        assert stored(database) == before
    assert await mq.queue("new queue").try_poll() is not None
    assert payloads(await mq.read("t")) == [1]
    assert payloads(await q.try_poll_many(99)) == [
        "in line",
        "plain",
        1,
        "again",
        "by connection",
    ]


@async_only
async def test_administration_is_part_of_the_transaction(mq: Any, database: Database) -> None:
    q = mq.queue("q")
    await q.put_many([1, 2, 3])
    failed, done, _ = await q.try_poll_many(3)
    await failed.reject()
    await done.ack()
    before = stored(database)

    async def administer(tx: Any) -> None:
        assert await q.retry([failed.id], connection=tx) == 1
        assert await q.prune(older_than=0, connection=tx) == 1
        assert await q.drop_all(CONFIRM, connection=tx) == 2
        await q.configure(max_in_flight=3, keep_completed=False, connection=tx)
        await q.pause(connection=tx)

    with suppress(ZeroDivisionError):
        async with mq.transaction() as tx:
            await administer(tx)
            raise ZeroDivisionError
    assert stored(database) == before
    (info,) = await mq.queues()
    assert (info.paused, info.max_in_flight, info.keep_completed) == (False, None, True)
    async with mq.transaction() as tx:
        await administer(tx)
        assert stored(database) == before
    assert await numbers(q) == {}
    (info,) = await mq.queues()
    assert (info.paused, info.max_in_flight, info.keep_completed) == (True, 3, False)


@async_only
async def test_ids_of_a_rolled_back_put_are_never_given_to_others(
    connect: Connect, database: Database
) -> None:
    one, two = await connect(database.url), await connect(database.url)
    with suppress(ZeroDivisionError):
        async with one.transaction() as tx:
            await tx.queue("q").put_many(["undone"] * 3)
            raise ZeroDivisionError
    jobs = []
    for mq in (two, one, two, one):
        async with mq.transaction() as tx:
            jobs.append(await tx.queue("q").put("in a transaction"))
        jobs += await mq.queue("q").put_many([1, 2])
    assert len({job.id for job in jobs}) == 12
    assert await numbers(one.queue("q")) == {"pending": 12}


@async_only
async def test_pollers_are_woken_by_the_commit(connect: Connect, database: Database) -> None:
    mq, other = await connect(database.url), await connect(database.url)
    waiting = asyncio.create_task(other.queue("q").poll(timeout=10))
    async with mq.transaction() as tx:
        await tx.queue("q").put("work")
        await asyncio.wait({waiting}, timeout=0.05)
        assert not waiting.done()
    assert (await waiting).payload == "work"


@async_only
async def test_a_transactions_queue_ends_with_it(mq: Any) -> None:
    async with mq.transaction() as tx:
        q = tx.queue("q")
        await q.put(1)
    with pytest.raises(errors.Closed):
        await q.put(2)
    assert await numbers(mq.queue("q")) == {"pending": 1}


# --- several at the same time --------------------------------------------------------------------


@on_servers
@async_only
@pytest.mark.parametrize("first_commits", [True, False], ids=["commit", "rollback"])
async def test_two_transactions_of_one_lock(mq: Any, first_commits: bool) -> None:
    """The second waits for the first, and then goes by what became of it."""
    q = mq.queue("q")
    await q.put_many(range(3))
    one, two, three = await q.try_poll_many(3)

    async def second() -> None:
        async with mq.transaction() as tx:
            await one.ack(connection=tx)
            await three.reject(connection=tx)

    with suppress(ZeroDivisionError):
        async with mq.transaction() as tx:
            await two.ack(connection=tx)
            waiting = asyncio.create_task(second())
            await asyncio.wait({waiting}, timeout=0.05)
            assert not waiting.done()
            if not first_commits:
                raise ZeroDivisionError
    await waiting
    if not first_commits:
        assert await numbers(q) == {"completed": 1, "failed": 1, "processing": 1}
        await two.ack()
    assert await numbers(q) == {"completed": 2, "failed": 1}


@on_servers
@async_only
@pytest.mark.parametrize("commits", [True, False], ids=["commit", "rollback"])
async def test_a_lock_that_expires_in_an_open_transaction_is_not_doubled(
    connect: Connect, database: Database, commits: bool
) -> None:
    mq, other = await connect(database.url), await connect(database.url)
    q = mq.queue("q")
    await q.put("work")
    job = await q.try_poll(lock_timeout=0.05)
    with suppress(ZeroDivisionError):
        async with mq.transaction() as tx:
            await job.ack(connection=tx)
            await asyncio.sleep(0.1)
            assert await other.queue("q").try_poll() is None
            if not commits:
                raise ZeroDivisionError
    again = await other.queue("q").try_poll()
    assert (again is None) == commits
    if again is not None:
        with pytest.raises(errors.StaleLease):
            await job.ack()
        await again.ack()
    assert await numbers(q) == {"completed": 1}


@on_servers
@async_only
async def test_an_open_transaction_holds_up_no_other_jobs(mq: Any) -> None:
    q = mq.queue("q")
    await q.put_many(range(4))
    job = await q.try_poll()
    async with mq.transaction() as tx:
        await job.ack(connection=tx)
        await tx.queue("q").put("new")
        for n in (1, 2, 3):
            other = await q.try_poll()
            assert other.payload == n
            await other.ack()
        await q.put("from outside")
    assert sorted(payloads(await q.try_poll_many(9))) == ["from outside", "new"]


# --- callers' own connections --------------------------------------------------------------------


@pytest.fixture(params=matrix("KINDS"))
def chosen(request: pytest.FixtureRequest, databases: Databases) -> tuple[Database, Kind]:
    name, kind = request.param
    return with_own_table(databases.get(name)), kind


@pytest.fixture
async def held(chosen: tuple[Database, Kind]) -> AsyncIterator[Held]:
    database, kind = chosen
    async with client(kind.flavour, database.url) as found:
        yield found


async def held_numbers(held: Held) -> dict[str, int]:
    counts = await held.call(held.mq.queue("q").counts)
    return {state: count for state, count in counts.items() if count}


WILD = "wörse 😀 '\"\\%s"


async def work_of(tx: Held, jobs: list[Any]) -> None:
    """Six jobs, settled in each way that there is; and what they lead to."""
    assert tx.caller is not None
    where = {"connection": tx.caller.connection}
    q = tx.mq.queue("q")
    one, two, three, four, five, six = jobs
    await tx.call(q.ack, [four, one], **where)
    await tx.call(two.reject, error=WILD, **where)
    await tx.call(three.nack, delay=60, error=WILD, **where)
    await tx.call(five.extend, 600, **where)
    await tx.call(six.release, **where)
    await tx.call(q.put, {"wild": WILD}, key=WILD, headers={WILD: WILD}, **where)
    await tx.call(q.put_many, [b"\x00\xff'\\", "text"], ordering_key=WILD, **where)
    outcome = await tx.call(q.offer_or_update, "known", WILD, None, **where)
    assert outcome is Outcome.UPDATED
    assert await tx.call(q.offer_if_not_exists, "known", 1, None, **where) is Outcome.IGNORED
    assert await tx.call(q.drop, "dropped", **where) is True
    await tx.publish("results", 1)
    await tx.run("INSERT INTO callers_own (note) VALUES ('mine')")


async def test_callers_commit_or_roll_back(held: Held, chosen: tuple[Database, Kind]) -> None:
    database, kind = chosen
    q = held.mq.queue("q")
    await held.call(q.put_many, range(6))
    jobs = await held.call(q.try_poll_many, 6)
    for key in ("known", "dropped"):
        await held.call(q.put, "old", key=key, delay=60)
    before = stored(database)
    async with transaction(held, kind.open(database)) as tx:
        await work_of(tx, jobs)
        raise Undo
    assert stored(database) == before
    assert ask(database, "SELECT COUNT(*) FROM callers_own") == [(0,)]
    async with transaction(held, kind.open(database)) as tx:
        await work_of(tx, jobs)
        assert stored(database) == before
    assert ask(database, "SELECT COUNT(*) FROM callers_own") == [(1,)]
    assert await held_numbers(held) == {
        "completed": 2,
        "failed": 1,
        "retryable": 1,
        "processing": 1,
        "pending": 5,
    }
    for job in (jobs[0], jobs[1], jobs[2]):
        with pytest.raises(errors.AlreadySettled):
            await held.call(job.ack)
    await held.call(jobs[4].ack)
    (failed,) = await held.call(q.failed)
    assert (failed.error, failed.payload, failed.state) == (WILD, 1, State.FAILED)
    keyed = await held.call(q.read, WILD)
    assert (keyed.payload, dict(keyed.headers)) == ({"wild": WILD}, {WILD: WILD})
    assert (await held.call(q.read, "known")).payload == WILD
    due = await held.call(q.try_poll_many, 9)
    assert sorted(map(repr, payloads(due))) == sorted(
        map(repr, [5, {"wild": WILD}, b"\x00\xff'\\", WILD])
    )


SAMPLE = matrix(
    "KINDS",
    *("sqlite3", "aiosqlite", "psycopg", "psycopg2", "asyncpg"),
    *("postgresql+asyncpg-AsyncSession", "django"),
    *("PyMySQL", "mysql-connector", "asyncmy", "mysql+asyncmy-AsyncConnection"),
)


@pytest.mark.parametrize("chosen", SAMPLE, indirect=True)
async def test_a_refusal_leaves_a_callers_transaction_usable(
    held: Held, chosen: tuple[Database, Kind]
) -> None:
    """The caller decides whether its effects are to stand without the settle, or the job."""
    database, kind = chosen
    q = held.mq.queue("q")
    for key in "ab":
        await held.call(q.put, "old", key=key)
    jobs = await held.call(q.try_poll_many, 2)
    for key in "ab":
        await held.call(q.offer_or_update, key, "new", None)
    async with transaction(held, kind.open(database)) as tx:
        assert tx.caller is not None
        where = {"connection": tx.caller.connection}
        await tx.run("INSERT INTO callers_own (note) VALUES ('before')")
        for settle in (jobs[0].ack, jobs[0].reject, jobs[1].nack):
            with pytest.raises(errors.StaleLease):
                await tx.call(settle, **where)
        with pytest.raises(errors.KeyTaken):
            await tx.call(q.put, 1, key="a", **where)
        await tx.run("INSERT INTO callers_own (note) VALUES ('after')")
        await tx.call(q.put, "more", **where)
    assert ask(database, "SELECT COUNT(*) FROM callers_own") == [(2,)]
    assert payloads(await held.call(q.try_poll_many, 9)) == ["new", "new", "more"]


# --- REPEATABLE READ -----------------------------------------------------------------------------


ON_MYSQL = matrix("KINDS", "PyMySQL", "asyncmy")

SNAPSHOT = "SELECT COUNT(*) FROM rowmq_jobs"
"""At MySQL's default, a transaction that has read something sees no more of what others commit,
unless it locks it.
"""


@pytest.mark.parametrize("chosen", ON_MYSQL, indirect=True)
async def test_a_snapshot_does_not_hide_a_key(held: Held, chosen: tuple[Database, Kind]) -> None:
    """A job that was put after the transaction had read something is there all the same."""
    database, kind = chosen
    q = held.mq.queue("q")
    await held.call(q.put, "first", delay=60)
    async with transaction(held, kind.open(database)) as tx:
        assert tx.caller is not None
        where = {"connection": tx.caller.connection}
        await tx.run(SNAPSHOT)
        for key in ("ignored", "updated", "taken", "dropped"):
            await held.call(q.put, "theirs", key=key, ordering_key=key)
        ignored = await tx.call(q.offer_if_not_exists, "ignored", "mine", None, **where)
        updated = await tx.call(q.offer_or_update, "updated", "mine", None, **where)
        assert (ignored, updated) == (Outcome.IGNORED, Outcome.UPDATED)
        with pytest.raises(errors.KeyTaken):
            await tx.call(q.put, "mine", key="taken", **where)
        assert await tx.call(q.drop, "dropped", **where) is True
    jobs = await held.call(q.try_poll_many, 9)
    found = {job.key: (job.payload, job.ordering_key) for job in jobs}
    assert found == {
        "ignored": ("theirs", "ignored"),
        "updated": ("mine", "updated"),
        "taken": ("theirs", "taken"),
    }
    await held.call(q.ack, jobs)
    assert await held_numbers(held) == {"pending": 1, "completed": 3}


@pytest.mark.parametrize("chosen", ON_MYSQL, indirect=True)
@pytest.mark.parametrize("way", ["ack", "drop"])
async def test_a_snapshot_does_not_hide_who_is_next_in_line(
    held: Held, chosen: tuple[Database, Kind], way: str
) -> None:
    database, kind = chosen
    q = held.mq.queue("q")
    await held.call(q.put, 1, key="head", ordering_key="line")
    (job,) = await held.call(q.try_poll_many, 1)
    async with transaction(held, kind.open(database)) as tx:
        assert tx.caller is not None
        where = {"connection": tx.caller.connection}
        await tx.run(SNAPSHOT)
        await held.call(q.put_many, [2, 3], ordering_key="line")
        if way == "ack":
            await tx.call(job.ack, **where)
        else:
            assert await tx.call(q.drop, "head", **where) is True
    for n in (2, 3):
        following = await held.call(q.try_poll_many, 9)
        assert payloads(following) == [n]
        await held.call(following[0].ack)


@pytest.mark.parametrize("chosen", ON_MYSQL, indirect=True)
async def test_a_snapshot_does_not_hide_the_settles_of_others(
    held: Held, chosen: tuple[Database, Kind]
) -> None:
    database, kind = chosen
    q = held.mq.queue("q")
    await held.call(q.put_many, range(3))
    await held.call(q.put, "new", delay=60, key="failed", priority=1)
    one, two, three = await held.call(q.try_poll_many, 3)
    async with transaction(held, kind.open(database)) as tx:
        assert tx.caller is not None
        where = {"connection": tx.caller.connection}
        await tx.run(SNAPSHOT)
        await held.call(two.ack)
        await tx.call(one.ack, **where)
        with pytest.raises(errors.AlreadySettled):
            await tx.call(two.ack, **where)
    await held.call(three.ack)
    assert await held_numbers(held) == {"pending": 1, "completed": 3}
    assert ask(database, "SELECT COUNT(*) FROM rowmq_locks") == [(0,)]


@pytest.mark.parametrize("chosen", ON_MYSQL, indirect=True)
async def test_a_snapshot_does_not_hide_what_failed(
    held: Held, chosen: tuple[Database, Kind]
) -> None:
    database, kind = chosen
    q = held.mq.queue("q")
    await held.call(q.put, "old", delay=60)
    async with transaction(held, kind.open(database)) as tx:
        assert tx.caller is not None
        where = {"connection": tx.caller.connection}
        await tx.run(SNAPSHOT)
        await held.call(q.put, "failed", key="k")
        (job,) = await held.call(q.try_poll_many, 1)
        await held.call(job.reject)
        assert await tx.call(q.retry, [job.id], **where) == 1
    (again,) = await held.call(q.try_poll_many, 9)
    assert (again.id, again.payload, again.attempt) == (job.id, "failed", 1)
    await held.call(again.ack)


@pytest.mark.parametrize("chosen", ON_MYSQL, indirect=True)
async def test_a_snapshot_does_not_hide_a_new_queue(
    held: Held, chosen: tuple[Database, Kind]
) -> None:
    database, kind = chosen
    q = held.mq.queue("q")
    async with transaction(held, kind.open(database)) as tx:
        assert tx.caller is not None
        await tx.run(SNAPSHOT)
        await held.call(q.put, "theirs", key="k")
        await tx.call(q.put, "mine", connection=tx.caller.connection)
        outcome = await tx.call(
            q.offer_if_not_exists, "k", "mine", None, connection=tx.caller.connection
        )
        assert outcome is Outcome.IGNORED
    assert payloads(await held.call(q.try_poll_many, 9)) == ["theirs", "mine"]


@pytest.mark.parametrize("chosen", matrix("KINDS", "psycopg", "asyncpg"), indirect=True)
async def test_postgres_tells_that_a_snapshot_is_too_old(
    held: Held, chosen: tuple[Database, Kind]
) -> None:
    database, kind = chosen
    q = held.mq.queue("q")
    await held.call(q.put_many, range(2))
    one, two = await held.call(q.try_poll_many, 2)
    async with transaction(held, kind.open(database)) as tx:
        assert tx.caller is not None
        await tx.run("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        await tx.run("SELECT COUNT(*) FROM callers_own")
        await held.call(two.ack)
        with pytest.raises(errors.SerializationFailure):
            await tx.call(one.ack, connection=tx.caller.connection)
        raise Undo
    assert await held_numbers(held) == {"processing": 1, "completed": 1}
    await held.call(one.ack)
    assert await held_numbers(held) == {"completed": 2}
