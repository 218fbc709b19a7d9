"""Ticks that are put ahead of time: one job for each time, whatever was put before by whom."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any

import pytest

from rowmq import CronMessage, Outcome, ScheduledMessage, errors
from rowmq.store.ticks import KEPT_US
from tests.choices import async_only
from tests.clocks import Clock, connect
from tests.commits import lost_answers
from tests.conftest import Connect
from tests.databases import Database

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)

CREATED, UPDATED, IGNORED = Outcome.CREATED, Outcome.UPDATED, Outcome.IGNORED

Open = Callable[..., Awaitable[Any]]


@pytest.fixture
def clock(database: Database) -> Iterator[Clock]:
    moved = Clock(database, NOON)
    yield moved
    moved.drop()


@pytest.fixture
async def clients(clock: Clock, flavour: str) -> AsyncIterator[Open]:
    """Connects clients that go by the moved clock."""
    opened = []

    async def open_client(**options: Any) -> Any:
        opened.append(await connect(flavour, clock.database.url, **options))
        return opened[-1]

    yield open_client
    for client in opened:
        await client.close()


@pytest.fixture
async def mq(clients: Open) -> Any:
    return await clients()


def ticks(*hours: int, payload: Any = "tick") -> list[CronMessage[Any]]:
    """A message for each of these hours from noon on."""
    return [CronMessage(payload, NOON + timedelta(hours=hour)) for hour in hours]


async def install(
    mq: Any,
    messages: list[Any],
    config_hash: str = "hash",
    prefix: str = "prefix",
    **options: Any,
) -> list[Outcome]:
    options.setdefault("queue", "q")
    given = await mq.cron.install_tick(config_hash, prefix, messages, **options)
    assert [message for message, _ in given] == messages
    return [outcome for _, outcome in given]


async def pending(mq: Any, queue: str = "q") -> int:
    return int((await mq.queue(queue).counts())["pending"])


async def work(mq: Any, clock: Clock, hours: float = 48) -> list[Any]:
    """The payloads of all jobs that are due by then, each done."""
    clock.move(hours=hours)
    jobs = await mq.queue("q").try_poll_many(1000)
    await mq.queue("q").ack(jobs)
    return [job.payload for job in jobs]


async def test_jobs_are_put_ahead_and_due_at_their_times(mq: Any, clock: Clock) -> None:
    assert await install(mq, ticks(1, 2)) == [CREATED, CREATED]
    assert await mq.queue("q").try_poll() is None
    clock.move(hours=1)
    job = await mq.queue("q").try_poll()
    assert job.due_at == NOON + timedelta(hours=1)
    assert dict(job.headers) == {
        "rowmq-schedule": "prefix",
        "rowmq-fire-at": "2026-06-01T13:00:00+00:00",
    }
    assert await mq.queue("q").try_poll() is None


async def test_the_same_again_is_ignored_and_another_payload_updates(mq: Any, clock: Clock) -> None:
    await install(mq, ticks(1, 2))
    assert await install(mq, ticks(1, 2)) == [IGNORED, IGNORED]
    assert await install(mq, ticks(1, payload="new"), can_update=False) == [IGNORED]
    assert await install(mq, ticks(1, payload="new")) == [UPDATED]
    assert await install(mq, ticks(1, payload="new")) == [IGNORED]
    assert await pending(mq) == 2
    assert await work(mq, clock) == ["new", "tick"]


async def test_priority_and_headers_are_part_of_what_is_put(mq: Any, clock: Clock) -> None:
    at = NOON + timedelta(hours=1)
    assert await install(mq, [CronMessage(1, at, headers={"a": "b"}, priority=2)]) == [CREATED]
    assert await install(mq, [CronMessage(1, at, headers={"a": "b"}, priority=2)]) == [IGNORED]
    assert await install(mq, [CronMessage(1, at, headers={"a": "c"}, priority=2)]) == [UPDATED]
    assert await install(mq, [CronMessage(1, at, headers={"a": "c"}, priority=3)]) == [UPDATED]
    clock.move(hours=1)
    job = await mq.queue("q").try_poll()
    assert (job.priority, job.headers["a"]) == (3, "c")


async def test_a_new_configuration_takes_the_place_of_the_old_ones(mq: Any, clock: Clock) -> None:
    await install(mq, ticks(1, 2, 3, payload="old"), "old")
    await install(mq, ticks(1, payload="older"), "older")
    outcomes = await install(mq, ticks(2, 4, payload="new"), "new")
    assert outcomes == [CREATED, CREATED]
    assert await work(mq, clock) == ["new", "new"]


async def test_what_is_due_or_claimed_is_not_taken_away(mq: Any, clock: Clock) -> None:
    await install(mq, ticks(1, 2, payload="old"), "old")
    clock.move(hours=1)
    outcomes = await install(mq, ticks(1, 2, payload="new"), "new")
    assert outcomes == [IGNORED, CREATED]  # the first is due: it will be done as it is
    job = await mq.queue("q").try_poll()
    assert job.payload == "old"
    clock.move(hours=-1)  # as if it had been claimed before its time
    assert await install(mq, ticks(1, payload="newest"), "newest") == [IGNORED]
    assert await install(mq, ticks(1, payload="x"), "old") == [IGNORED]
    await job.ack()


async def test_a_job_that_was_done_is_never_put_again(mq: Any, clock: Clock) -> None:
    """Weakness 5: a lagging scheduler re-inserts a tick that was already run and acked."""
    await install(mq, ticks(1, 2))
    assert len(await work(mq, clock, 24)) == 2
    await mq.queue("q").prune(older_than=0)
    lagging = ticks(1, 2, payload="by a clock that is a day behind")
    assert await install(mq, lagging) == [IGNORED, IGNORED]
    assert await install(mq, lagging, "another configuration") == [IGNORED, IGNORED]
    assert await pending(mq) == 0


async def test_a_tick_is_remembered_for_thirty_days_and_then_too_old(
    clients: Open, clock: Clock
) -> None:
    mq = await clients()
    await install(mq, ticks(0))
    assert len(await work(mq, clock, 0)) == 1
    clock.move(seconds=KEPT_US / 1_000_000)
    await mq.cron.tend()
    assert await install(mq, ticks(0)) == [IGNORED]
    clock.move(seconds=1)
    await (await clients()).cron.tend()  # which forgets
    assert await install(mq, ticks(0)) == [IGNORED]
    assert await install(mq, ticks(1)) == [CREATED]
    assert clock.database.execute("SELECT COUNT(*) FROM rowmq_ticks") == [(1,)]


async def test_a_missed_tick_that_nobody_put_is_put_late(mq: Any) -> None:
    assert await install(mq, ticks(-5)) == [CREATED]
    assert await mq.queue("q").try_poll() is not None


async def test_keys_make_several_jobs_at_one_time(mq: Any, clock: Clock) -> None:
    at = NOON + timedelta(hours=1)
    messages = [ScheduledMessage(key, key, at) for key in ("a", "b", "A", "a ")]
    assert await install(mq, [*messages, *ticks(1)]) == [CREATED] * 5
    changed = [
        ScheduledMessage("a", "new", at),
        ScheduledMessage("b", "new", at, can_update=False),
    ]
    assert await install(mq, changed) == [UPDATED, IGNORED]
    assert sorted(await work(mq, clock)) == ["A", "a ", "b", "new", "tick"]


async def test_a_duplicate_within_a_batch_drops_nothing(mq: Any, clock: Clock) -> None:
    """Weakness 13: a duplicate inside a batch dropped up to 200 rows, reported Ignored."""
    many = ticks(*range(1, 300))
    twice = [*many, many[7], *ticks(9, payload="other")]
    expected = [CREATED] * 299 + [IGNORED, UPDATED]
    assert await install(mq, twice) == expected
    done = await work(mq, clock, 24 * 20)
    assert len(done) == 299
    assert done.count("other") == 1


async def test_uninstall_removes_its_own_configuration_and_no_other(mq: Any, clock: Clock) -> None:
    """Weakness 13: uninstallTick deleted the other configurations and kept its own."""
    await install(mq, ticks(1, payload="other prefix"), "mine", "another")
    await install(mq, ticks(1, 2, payload="mine"), "mine")
    await install(mq, ticks(1, payload="other queue"), "mine", queue="q2")
    assert await mq.cron.uninstall_tick("other", "prefix", queue="q") == 0
    assert await pending(mq) == 3
    assert await mq.cron.uninstall_tick("mine", "prefix", queue="q") == 2
    assert await mq.cron.uninstall_tick("mine", "prefix", queue="q") == 0
    assert await mq.cron.uninstall_tick("mine", "prefix", queue="nowhere") == 0
    assert await pending(mq, "q2") == 1
    assert await work(mq, clock) == ["other prefix"]


async def test_uninstall_leaves_what_is_claimed_or_done(mq: Any, clock: Clock) -> None:
    await install(mq, ticks(0, 1, 2))
    done = await mq.queue("q").try_poll()
    await done.ack()
    clock.move(hours=1)
    claimed = await mq.queue("q").try_poll()
    assert await mq.cron.uninstall_tick("hash", "prefix", queue="q") == 1
    await claimed.ack()
    assert await install(mq, ticks(0, 1, 2)) == [IGNORED, IGNORED, CREATED]


LIKE = ["a", "a/b", "A", "a%", "a_", "%", "_", "ab", "abc", "a ", "a/", "ä", "a\u0308", "🙂", "\\"]
"""Prefixes and hashes that patterns and collations take for each other."""


@async_only
async def test_a_prefix_or_a_hash_is_taken_for_no_other(mq: Any) -> None:
    """Weakness 8: LIKE without escaping; prefix `a` deletes `a/b`, hash `ab` spares `abc`."""
    for prefix in LIKE:
        assert await install(mq, ticks(1), "first", prefix) == [CREATED]
    assert await pending(mq) == len(LIKE)
    for prefix in LIKE:
        assert await install(mq, ticks(1), "second", prefix) == [CREATED]
        assert await pending(mq) == len(LIKE)
    for config_hash, prefix in product(LIKE[:9], LIKE[:2]):
        assert await install(mq, ticks(1), config_hash, prefix) == [CREATED]
        assert await pending(mq) == len(LIKE)  # one came, and one went
    for prefix in LIKE:
        for config_hash in LIKE[:8]:
            assert await mq.cron.uninstall_tick(config_hash, prefix, queue="q") == 0
    for prefix in LIKE:
        own = LIKE[8] if prefix in LIKE[:2] else "second"
        assert await mq.cron.uninstall_tick(own, prefix, queue="q") == 1
    assert await pending(mq) == 0


async def test_a_change_in_a_transaction_is_undone_with_it(mq: Any, clock: Clock) -> None:
    await install(mq, ticks(1, 2, payload="old"), "old")
    with pytest.raises(ZeroDivisionError):
        async with mq.transaction() as tx:
            assert await install(mq, ticks(1), "new", connection=tx) == [CREATED]
            gone = await mq.cron.uninstall_tick("new", "prefix", queue="q", connection=tx)
            assert gone == 1
            1 / 0  # noqa: B018
    assert await work(mq, clock) == ["old", "old"]


async def test_an_error_leaves_everything_as_it_was(mq: Any, clock: Clock) -> None:
    await install(mq, ticks(1, payload="old"), "old")
    async with mq.transaction() as tx:
        with pytest.raises(errors.PayloadTooLarge):
            await install(mq, ticks(1, 2, payload="x" * 2**21), "new", connection=tx)
    assert await work(mq, clock) == ["old"]


async def test_many_at_once_put_each_tick_once(clients: Open, clock: Clock) -> None:
    several = [await clients(retry_for=0) for _ in range(4)]  # a deadlock would be an error
    messages = ticks(*range(1, 20))
    outcomes = await asyncio.gather(*(install(mq, messages) for mq in several for _ in range(3)))
    assert [list(column).count(CREATED) for column in zip(*outcomes, strict=True)] == [1] * 19
    assert len(await work(several[0], clock)) == 19


async def test_many_configurations_at_once_leave_one(clients: Open, clock: Clock) -> None:
    several = [await clients(retry_for=0) for _ in range(4)]  # a deadlock would be an error
    hashes = [f"hash {number}" for number in range(8)]
    await asyncio.gather(
        *(
            install(mq, ticks(1, 2, 3, payload=hash), hash)
            for hash, mq in zip(hashes, several * 2, strict=True)
        )
    )
    payloads = await work(several[0], clock)
    assert len(payloads) == 3
    assert len(set(payloads)) == 1


async def test_a_repeat_after_a_lost_answer_changes_nothing(mq: Any, clock: Clock) -> None:
    with lost_answers(mq, "ticks.lock_queue") as lost:
        assert await install(mq, ticks(1, 2)) == [CREATED, CREATED]
        assert await install(mq, ticks(1, payload="new")) == [UPDATED]
        assert await install(mq, ticks(1, 3), "other") == [CREATED, CREATED]
        assert await pending(mq) == 2
        assert await mq.cron.uninstall_tick("other", "prefix", queue="q") == 2
    assert len(lost) == 4
    assert await work(mq, clock) == []


async def test_a_poller_that_waits_gets_a_tick_at_its_time(
    connect: Connect, database: Database
) -> None:
    """By the database's own clock: what is put wakes a poller, who then waits for its time."""
    mq = await connect(database.url)
    poll = asyncio.create_task(mq.queue("q", poll_interval=30).poll(timeout=20))
    at = datetime.now(UTC) + timedelta(seconds=0.3)
    await install(mq, [CronMessage(1, at)])
    job = await poll
    assert job.payload == 1
    assert datetime.now(UTC) >= at
    assert datetime.now(UTC) < at + timedelta(seconds=5)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"config_hash": ""}, errors.InvalidSchedule),
        ({"config_hash": "h" * 101}, errors.InvalidSchedule),
        ({"key_prefix": " "}, errors.InvalidSchedule),
        ({"key_prefix": "p" * 201}, errors.InvalidSchedule),
        ({"queue": ""}, errors.InvalidQueue),
        ({"messages": "text"}, errors.InvalidInput),
        ({"messages": 5}, errors.InvalidInput),
        ({"messages": ["text"]}, errors.InvalidInput),
        ({"messages": [CronMessage(1, None)]}, errors.InvalidOption),  # type: ignore[arg-type]
        ({"messages": [CronMessage(1, NOON.replace(tzinfo=None))]}, errors.NaiveDatetime),
        ({"messages": [CronMessage(object(), NOON)]}, errors.PayloadNotSerializable),
        ({"messages": [CronMessage(1, NOON, priority=1.5)]}, errors.InvalidOption),  # type: ignore[arg-type]
        ({"messages": [ScheduledMessage("k", 1)]}, errors.InvalidOption),
        ({"messages": [ScheduledMessage("k", 1, NOON, delay=1)]}, errors.InvalidOption),
        ({"messages": [ScheduledMessage("", 1, NOON)]}, errors.InvalidKey),
        ({"can_update": 1}, errors.InvalidOption),
    ],
)
@async_only
async def test_bad_input_is_refused_before_anything_is_written(
    mq: Any, arguments: dict[str, Any], error: type[Exception]
) -> None:
    given = {"config_hash": "h", "key_prefix": "p", "messages": ticks(1), "queue": "q"} | arguments
    with pytest.raises(error):
        await mq.cron.install_tick(**given)
    assert await mq.queues() == []


async def test_no_messages_remove_what_others_put(mq: Any) -> None:
    await install(mq, ticks(1, 2), "old")
    assert await install(mq, [], "new") == []
    assert await pending(mq) == 0


async def test_what_people_have_moved_is_withdrawn_and_replaced_as_well(
    mq: Any, clock: Clock
) -> None:
    queue = mq.queue("q")

    async def put(payload: str, config_hash: str) -> list[Outcome]:
        return await install(mq, ticks(1, 2, 3, payload=payload), config_hash)

    async def move() -> None:
        jobs = {job.due_at: job.id for job in await queue.live()}
        assert await queue.reschedule([jobs[NOON + timedelta(hours=1)]], delay=9 * 3600) == 1
        assert await queue.run_now([jobs[NOON + timedelta(hours=2)]]) == 1

    assert await put("first", "old") == [CREATED] * 3
    await move()
    assert await put("second", "old") == [UPDATED] * 3
    assert await put("second", "old") == [IGNORED] * 3
    await move()
    assert await put("third", "new") == [CREATED] * 3
    assert {job.payload for job in await queue.live()} == {"third"}
    await move()
    assert await mq.cron.uninstall_tick("new", "prefix", queue="q") == 3
    assert await pending(mq) == 0
    assert await work(mq, clock) == []


async def test_what_was_moved_and_claimed_stays(mq: Any, clock: Clock) -> None:
    queue = mq.queue("q")
    await install(mq, ticks(1, 2, payload="old"), "old")
    first, _ = await queue.live()
    assert await queue.run_now([first.id]) == 1
    job = await queue.try_poll()
    assert await install(mq, ticks(1, 2, payload="new"), "new") == [IGNORED, CREATED]
    await job.ack()
    assert await work(mq, clock) == ["new"]
