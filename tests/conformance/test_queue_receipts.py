"""Receipts: jobs are settled by a line of text, from whatever process, at most once."""

import asyncio
import inspect
from collections.abc import Sequence
from typing import Any

import pytest

import rowmq
from rowmq import errors
from rowmq.store.statement import Statement
from tests.conformance.test_queue_claim import contents, counted, expire, past
from tests.conftest import Connect
from tests.databases import Database
from tests.flavours import plain
from tests.plans import reads_of


async def receipt(queue: Any, job: Any) -> str:
    """A receipt: not awaited from an async queue, which need not ask for it."""
    found = queue.receipt(getattr(job, "target", job))
    return str(await found if inspect.isawaitable(found) else found)


async def receipts(queue: Any, payloads: Sequence[Any], **options: Any) -> list[str]:
    """Receipts of jobs that are put and claimed together, by a client that forgets them."""
    await queue.put_many(list(payloads), **options)
    jobs = await queue.try_poll_many(len(payloads))
    return [await receipt(queue, job) for job in jobs]


def kinds(outcomes: list[Any]) -> list[type]:
    return [type(outcome) for outcome in outcomes]


NONE, SETTLED, STALE = type(None), errors.AlreadySettled, errors.StaleLease


@pytest.fixture
async def elsewhere(connect: Connect, database: Database) -> Any:
    """The queue, in another process as far as that matters."""
    return (await connect(database.url)).queue("q", retry=rowmq.Constant(interval=3600))


async def test_each_way_of_settling_is_that_of_the_job(mq: Any, elsewhere: Any) -> None:
    given = await receipts(mq.queue("q"), ["ack", "nack", "reject", "release", "extend"])
    for how, text in zip(("ack", "reject", "release"), (given[0], *given[2:4]), strict=True):
        assert await elsewhere.settle([text], how) == [None]
    assert await elsewhere.settle([given[1]], "nack", error="not yet", delay=60) == [None]
    assert await elsewhere.settle([given[4]], "extend", seconds=600) == [None]
    assert await counted(elsewhere) == dict.fromkeys(
        ("completed", "retryable", "failed", "pending", "processing"), 1
    )
    (tried,) = (await elsewhere.find(state="retryable")).jobs
    assert ([e.error for e in await elsewhere.errors(tried.id)]) == ["not yet"]
    assert await elsewhere.settle([given[4]]) == [None]


async def test_a_receipt_is_settled_once(mq: Any, elsewhere: Any) -> None:
    queue = mq.queue("q")
    first, second, third = await receipts(queue, range(3))
    assert await elsewhere.settle([first, second, first]) == [None] * 3
    for where in (queue, elsewhere):
        again = await where.settle([second, third], "reject")
        assert kinds(again) == [SETTLED, NONE if where is queue else SETTLED]
        assert kinds(await where.settle([second], "nack")) == [SETTLED]
    assert await counted(queue) == {"completed": 2, "failed": 1}


async def test_of_many_who_settle_at_once_one_does(mq: Any, elsewhere: Any) -> None:
    queue = mq.queue("q")
    for key in (None, "k"):
        await queue.put("x", key=key)
        text = await receipt(queue, await queue.try_poll())
        ways = [where.settle([text], how) for where in (queue, elsewhere) for how in ("ack",) * 4]
        outcomes = [outcome for (outcome,) in await asyncio.gather(*ways)]
        assert sorted(kinds(outcomes), key=repr) == sorted([NONE] + [SETTLED] * 7, key=repr)


async def test_a_job_and_its_receipt_are_settled_once_together(mq: Any) -> None:
    queue = mq.queue("q")
    await queue.put("x")
    job = await queue.try_poll()
    text = await receipt(queue, job)
    await job.ack()
    assert kinds(await queue.settle([text])) == [SETTLED]
    await queue.put("y")
    job = await queue.try_poll()
    assert await queue.settle([await receipt(queue, job)], "reject") == [None]
    with pytest.raises(errors.AlreadySettled):
        await job.ack()


async def test_who_was_late_changes_nothing(mq: Any, elsewhere: Any, database: Database) -> None:
    queue = mq.queue("q")
    (late,) = await receipts(queue, ["x"])
    expire(database)
    (job,) = await elsewhere.try_poll_many(1)
    before = contents(database)
    for how in ("ack", "nack", "reject", "release"):
        assert kinds(await elsewhere.settle([late], how)) == [STALE]
    assert kinds(await elsewhere.settle([late], "extend", seconds=60)) == [STALE]
    assert contents(database) == before
    await job.ack()
    assert kinds(await elsewhere.settle([late])) == [STALE]


async def test_an_update_a_drop_and_giving_up_make_a_receipt_stale(mq: Any, elsewhere: Any) -> None:
    queue = mq.queue("q")
    texts = []
    for key in ("updated", "dropped", "failed"):
        await queue.put(key, key=key)
        texts.append(await receipt(queue, await queue.try_poll()))
    plain = await receipts(queue, ["failed too", "stays"])
    await queue.offer_or_update("updated", "new")
    await queue.drop("dropped")
    claimed = [job.id for job in await queue.live() if job.payload.startswith("failed")]
    assert await queue.fail(claimed) == 2
    assert kinds(await elsewhere.settle([*texts, *plain])) == [STALE] * 4 + [NONE]
    assert await counted(queue) == {"pending": 1, "completed": 1, "failed": 2}


async def test_a_receipt_cannot_be_made_up(mq: Any, elsewhere: Any, database: Database) -> None:
    queue = mq.queue("q")
    (text,) = await receipts(queue, ["x"])
    other = mq.queue("other")
    await other.put("y")
    await other.try_poll()
    mark, token, *rest = text.split("-")
    numbers = [int(number) for number in rest]
    before = contents(database)
    others = [f"{int(token, 16) ^ 1:x}-{'-'.join(rest)}"]
    for place in range(5):  # the last one, when to begin to look, says nothing of the delivery
        changed = [number + (place == n) for n, number in enumerate(numbers)]
        others.append("-".join([token, *map(str, changed)]))
    for forged in others:
        assert kinds(await elsewhere.settle([f"{mark}-{forged}"])) == [STALE]
    assert kinds(await other.settle([text])) == [STALE]
    assert contents(database) == before
    assert await elsewhere.settle([text]) == [None]


async def test_a_transaction_has_all_or_none_of_them(mq: Any, elsewhere: Any) -> None:
    queue = mq.queue("q")
    first, second, third = await receipts(elsewhere, range(3))
    with pytest.raises(ZeroDivisionError):
        async with mq.transaction() as tx:
            assert await tx.queue("q").settle([first, second]) == [None, None]
            1 / 0  # noqa: B018 - it is to raise
    assert await queue.settle([first]) == [None]
    with pytest.raises(errors.AlreadySettled):
        async with mq.transaction() as tx:
            await tx.queue("q").settle([first, second])
    async with mq.transaction() as tx:
        assert await tx.queue("q").settle([second, third]) == [None, None]
    assert await counted(queue) == {"completed": 3}


async def test_a_handler_of_a_line_moves_it_on(mq: Any, elsewhere: Any) -> None:
    queue = mq.queue("q")
    (first,) = await receipts(queue, ["a"], ordering_key="o")
    await queue.put("b", ordering_key="o")
    assert await queue.try_poll() is None
    assert await elsewhere.settle([first]) == [None]
    assert (await queue.try_poll()).payload == "b"


@pytest.mark.parametrize("text", ["", "j1", "j2-1-0-1-0-1", f"j1-{'f' * 17}-0-1-0-1", "é", 7, None])
async def test_what_is_no_receipt_is_refused(mq: Any, text: Any) -> None:
    with pytest.raises(errors.InvalidInput, match="no receipt"):
        await mq.queue("q").settle([text])


@pytest.mark.parametrize(
    ("how", "options"),
    [
        ("done", {}),
        (None, {}),
        ("ack", {"delay": 1}),
        ("ack", {"error": "x"}),
        ("release", {"error": "x"}),
        ("extend", {}),
        ("extend", {"seconds": 0}),
        ("nack", {"seconds": 1}),
        ("nack", {"delay": -1}),
    ],
)
async def test_what_does_not_go_together_is_refused(mq: Any, how: Any, options: Any) -> None:
    queue = mq.queue("q")
    (text,) = await receipts(queue, ["x"])
    with pytest.raises(errors.InvalidInput):
        await queue.settle([text], how, **options)
    assert await queue.settle([text]) == [None]


async def test_only_a_claimed_job_of_the_queue_has_a_receipt(mq: Any) -> None:
    queue = mq.queue("q")
    put = await queue.put("x")
    with pytest.raises(errors.NotClaimed):
        await receipt(queue, put)
    job = await queue.try_poll()
    with pytest.raises(errors.InvalidInput, match="of queue 'q'"):
        await receipt(mq.queue("other"), job)
    with pytest.raises(errors.InvalidInput):
        await receipt(queue, "x")


@pytest.mark.parametrize("end", ["ack", "nack", "reject"])
async def test_who_was_late_is_told_so_of_a_job_that_was_retried(
    mq: Any, elsewhere: Any, end: str
) -> None:
    """Its attempts and deliveries are counted anew, and come to the same numbers again."""
    queue = mq.queue("q", retry=rowmq.Constant(interval=3600))
    for number, way in enumerate(("receipt", "job", "batch")):
        put = await queue.put(number, at=past(9 - number))
        if way == "batch":
            await queue.put("stays", at=past(1))
        late = (await queue.try_poll_many(2))[0]
        text = await receipt(queue, late)
        assert late.id == put.id
        assert await elsewhere.fail([put.id]) == await elsewhere.retry([put.id]) == 1
        (job,) = await elsewhere.try_poll_many(1)
        assert job.id == put.id
        await getattr(job, end)()
        if way == "receipt":
            assert kinds(await elsewhere.settle([text])) == [STALE]
        else:
            with pytest.raises(errors.StaleLease):
                await late.ack()


async def test_a_job_that_was_retried_is_settled_once_by_its_new_receipt(
    mq: Any, elsewhere: Any
) -> None:
    queue = mq.queue("q")
    for number, how in enumerate(("ack", "nack", "reject")):
        put = await queue.put(number)
        assert await queue.fail([put.id]) == await queue.retry([put.id]) == 1
        (job,) = await queue.try_poll_many(1)
        text = await receipt(queue, job)
        del job
        assert await elsewhere.settle([text], how) == [None]
        assert kinds(await elsewhere.settle([text], how)) == [SETTLED]


async def test_many_receipts_that_are_repeated_are_looked_up_together(
    mq: Any, connect: Connect, database: Database
) -> None:
    given = await receipts(mq.queue("q"), range(30), at=past(1))
    ways = ("ack", "nack", "reject")
    for place, how in enumerate(ways):
        assert await mq.queue("q").settle(given[place::3], how) == [None] * 10
    other = await connect(database.url)
    await other.queue("q").counts()
    run: list[list[Statement]] = []
    for some in (given[:3], given):
        seen: list[Statement] = []
        plain(other)._driver.observers[:] = [seen.append]
        assert kinds(await other.queue("q").settle(some)) == [SETTLED] * len(some)
        run.append(seen)
    assert len(run[0]) == len(run[1]) <= 6
    (completed,) = {s.params[1] for s in run[1] if s.name == "receipts.completed"}
    # Not from when they were due, which may be long ago.
    ((claimed_at, due_at),) = database.execute(
        "SELECT MIN(c.started_at), MIN(j.due_at) FROM rowmq_completed c "
        "JOIN rowmq_jobs j ON j.id = c.job_id"
    )
    assert due_at < completed <= claimed_at


async def test_no_receipt_has_more_of_the_archive_read_than_a_day(
    mq: Any, connect: Connect, database: Database
) -> None:
    other = await connect(database.url)
    elsewhere = other.queue("q")
    queue = mq.queue("q")
    count = 4_000
    await queue.put_many(range(count))
    while jobs := await queue.try_poll_many(500):
        await queue.ack(jobs)
    (text,) = await receipts(queue, ["x"], at=past(9 * 86_400))
    assert await elsewhere.settle([text]) == [None]
    forged = text.rpartition("-")[0] + "-0"
    assert kinds(await elsewhere.settle([forged])) == [SETTLED], "it was just now"
    database.execute("UPDATE rowmq_completed SET finished_at = finished_at - 172800000000")
    database.analyze()
    seen: list[Statement] = []
    plain(other)._driver.observers[:] = [seen.append]
    assert kinds(await elsewhere.settle([text])) == [STALE]
    assert kinds(await elsewhere.settle([forged])) == [STALE]
    found = [one for one in seen if one.name == "receipts.completed"]
    assert len(found) == 2
    assert max(reads_of(database, found).values()) <= count / 8


async def test_a_strategy_that_fails_keeps_nobody_from_settling(mq: Any) -> None:
    class Failing:
        max_attempts = None

        def __init__(self) -> None:
            self.asked = 0

        def delay(self, attempt: int) -> float:
            self.asked += 1
            if self.asked == 2:
                raise ZeroDivisionError(attempt)
            return 0.0

    queue = mq.queue("q", retry=Failing())
    await queue.put_many(range(2))
    jobs = await queue.try_poll_many(2)
    given = [await receipt(queue, job) for job in jobs]
    with pytest.raises(ZeroDivisionError):
        await queue.settle(given, "nack")
    await queue.ack(jobs)
    assert await counted(queue) == {"completed": 2}
