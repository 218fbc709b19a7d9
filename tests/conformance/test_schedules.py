"""Schedules: what is installed fires when the database's clock says so, each tick once."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import UTC, datetime, time, timedelta
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

import pytest

import rowmq
from rowmq import Outcome, errors
from rowmq.cron.options import made_of
from rowmq.store.schedules import Firing
from rowmq.store.statement import Statement
from tests.choices import async_only
from tests.clocks import Clock, connect
from tests.commits import lost_answers
from tests.conftest import Connect
from tests.consuming import statements
from tests.databases import Database
from tests.flavours import plain

MIDNIGHT = datetime(2026, 6, 1, tzinfo=UTC)

NAMES = ["a", "a/b", "A", "a ", "%", "_", "a%", "a_", "a\\", "'", '"', "é", "e\u0301", "🙂", "?"]
"""Names that some database, somewhere, would take for each other."""

Open = Callable[..., Awaitable[Any]]


@pytest.fixture
def clock(database: Database) -> Iterator[Clock]:
    moved = Clock(database, MIDNIGHT)
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


async def hourly(mq: Any, name: str = "s", **options: Any) -> Outcome:
    """A schedule on the hour, which nobody tends by itself."""
    if "topic" not in options:
        options.setdefault("queue", "q")
    outcome: Outcome = await mq.cron.install(name, "0 * * * *", tend=False, **options)
    return outcome


async def jobs(mq: Any, queue: str = "q") -> list[Any]:
    """All jobs of a queue that are due, claimed."""
    found: list[Any] = await mq.queue(queue).try_poll_many(1000)
    return found


def fire_times(jobs: list[Any]) -> list[str]:
    return [job.headers["rowmq-fire-at"] for job in jobs]


async def only(mq: Any) -> Any:
    (schedule,) = await mq.cron.list()
    return schedule


# --- install --------------------------------------------------------------------------------------


async def test_a_schedule_is_created_then_ignored_then_updated(mq: Any) -> None:
    assert await hourly(mq, payload={"n": 1}) is Outcome.CREATED
    assert await hourly(mq, payload={"n": 1}) is Outcome.IGNORED
    before = await only(mq)
    assert await hourly(mq, payload={"n": 2}) is Outcome.UPDATED
    after = await only(mq)
    assert (before.payload, after.payload) == ({"n": 1}, {"n": 2})
    assert before.config_hash != after.config_hash
    assert before.created_at == after.created_at == MIDNIGHT


async def test_a_schedule_is_told_with_everything(mq: Any) -> None:
    await mq.cron.install(
        "reports",
        "30 2 * * *",
        payload=[1],
        queue="q",
        key="k",
        headers={"a": "b"},
        priority=3,
        tz="Europe/Paris",
        catch_up="none",
        grace=timedelta(minutes=5),
        tend=False,
    )
    assert await only(mq) == rowmq.ScheduleInfo(
        name="reports",
        kind="cron",
        expression="30 2 * * *",
        description="At 02:30 every day (Europe/Paris)",
        tz="Europe/Paris",
        queue="q",
        topic=None,
        key="k",
        payload=[1],
        function=None,
        headers={"a": "b"},
        priority=3,
        catch_up="none",
        grace=timedelta(minutes=5),
        paused=False,
        next_at=datetime(2026, 6, 1, 0, 30, tzinfo=UTC),
        last_at=None,
        config_hash=(await only(mq)).config_hash,
        created_at=MIDNIGHT,
    )


async def test_each_kind_of_schedule_fires_at_its_times(mq: Any, clock: Clock) -> None:
    paris = ZoneInfo("Europe/Paris")
    await mq.cron.install("c", "0 2 * * *", queue="c", tz="Europe/Paris", tend=False)
    times = [time(14, 30), time(3), time(3)]
    await mq.cron.install_daily("d", times, queue="d", tz=paris, catch_up="all", tend=False)
    await mq.cron.install_periodic("p", timedelta(hours=8), queue="p", catch_up="all", tend=False)
    assert [(s.kind, s.expression) for s in await mq.cron.list()] == [
        ("cron", "0 2 * * *"),
        ("daily", "03:00, 14:30"),
        ("periodic", "28800s"),
    ]
    clock.move(hours=23)
    assert await mq.cron.tend() == 0 + 2 + 2  # that of the first begins with the day in Paris
    assert fire_times(await jobs(mq, "d")) == [
        "2026-06-01T01:00:00+00:00",
        "2026-06-01T12:30:00+00:00",
    ]
    assert fire_times(await jobs(mq, "p")) == [
        "2026-06-01T08:00:00+00:00",
        "2026-06-01T16:00:00+00:00",
    ]
    assert await mq.cron.next("d", 2) == [
        datetime(2026, 6, 2, 3, tzinfo=paris),
        datetime(2026, 6, 2, 14, 30, tzinfo=paris),
    ]


async def test_many_who_install_at_once_create_it_once(clients: Open) -> None:
    several = [await clients(retry_for=0) for _ in range(4)]  # a deadlock would be an error
    outcomes = await asyncio.gather(*(hourly(mq) for mq in several for _ in range(3)))
    assert outcomes.count(Outcome.CREATED) == 1
    assert outcomes.count(Outcome.IGNORED) == 11


async def test_a_changed_configuration_replaces_times_and_payload_at_once(
    mq: Any, clock: Clock
) -> None:
    await hourly(mq, payload="old")
    await hourly(mq, "other", payload="other", queue="other")
    outcome = await mq.cron.install("s", "30 * * * *", payload="new", queue="q", tend=False)
    assert outcome is Outcome.UPDATED
    clock.move(minutes=59)
    assert await mq.cron.tend() == 1
    clock.move(minutes=2)
    assert await mq.cron.tend() == 1  # the other one, which nothing has touched
    assert [job.payload for job in await jobs(mq)] == ["new"]
    assert [job.payload for job in await jobs(mq, "other")] == ["other"]


async def test_a_change_of_the_times_keeps_a_tick_that_both_name_and_that_is_due(
    mq: Any, clock: Clock
) -> None:
    await hourly(mq, payload="old")
    clock.move(hours=1, seconds=1)  # a tick is due, and not yet made
    outcome = await mq.cron.install("s", "*/30 * * * *", payload="new", queue="q", tend=False)
    assert outcome is Outcome.UPDATED
    assert await mq.cron.tend() == 1
    assert [job.payload for job in await jobs(mq)] == ["new"]


async def test_a_clock_that_was_wrong_and_is_set_right_silences_no_schedule(
    mq: Any, clock: Clock
) -> None:
    await hourly(mq, catch_up="latest")
    clock.move(days=365)
    assert await mq.cron.tend() == 1  # as far as anybody can know, it was time
    clock.move(days=-365)
    made = await mq.cron.tend()  # which finds out
    for _ in range(30):
        clock.move(hours=1)
        made += await mq.cron.tend()
    assert made == 30
    times = [job.headers["rowmq-fire-at"] for job in await jobs(mq)]
    assert len(set(times)) == len(times) == 30, "the one of next year waits for its time"


async def test_a_change_of_the_payload_alone_loses_no_missed_tick(mq: Any, clock: Clock) -> None:
    await hourly(mq, payload="old")
    clock.move(hours=1, minutes=10)  # nobody was there
    assert await hourly(mq, payload="new") is Outcome.UPDATED
    assert await mq.cron.tend() == 1
    assert [job.payload for job in await jobs(mq)] == ["new"]


@pytest.mark.parametrize("name", NAMES)
@async_only
async def test_a_name_is_taken_for_no_other(mq: Any, name: str) -> None:
    """Weakness 8: patterns and collations that merge names."""
    for other in NAMES:
        assert await hourly(mq, other, payload=other) is Outcome.CREATED
    assert await hourly(mq, name, payload="changed") is Outcome.UPDATED
    await mq.cron.pause(name)
    assert [s.name for s in await mq.cron.list() if s.paused] == [name]
    assert await mq.cron.remove(name)
    left = {s.name: s.payload for s in await mq.cron.list()}
    assert left == {other: other for other in NAMES if other != name}


async def test_an_install_in_a_transaction_is_undone_with_it(mq: Any, clock: Clock) -> None:
    await hourly(mq, payload="old")
    with pytest.raises(ZeroDivisionError):
        async with mq.transaction() as tx:
            assert await hourly(mq, payload="new", connection=tx) is Outcome.UPDATED
            assert await hourly(mq, "another", connection=tx) is Outcome.CREATED
            await mq.cron.run("another", connection=tx)
            assert await mq.cron.remove("another", connection=tx)
            await mq.cron.pause("s", connection=tx)
            1 / 0  # noqa: B018
    assert (await only(mq)).payload == "old"
    assert not (await only(mq)).paused
    async with mq.transaction() as tx:
        assert await hourly(mq, payload="new", connection=tx) is Outcome.UPDATED
    clock.move(hours=1)
    assert await mq.cron.tend() == 1
    assert [job.payload for job in await jobs(mq)] == ["new"]


async def test_a_repeat_after_a_lost_answer_tells_what_was_done(
    mq: Any, database: Database
) -> None:
    """The COMMIT of an install or a removal is done, and its answer is lost."""
    with lost_answers(mq, "schedules.change") as lost:
        assert await hourly(mq, payload=1) is Outcome.CREATED
        assert await hourly(mq, payload=2) is Outcome.UPDATED
    assert lost
    with lost_answers(mq, "schedules.remove") as lost:
        assert await mq.cron.remove("s") is True
    assert lost
    assert database.execute("SELECT COUNT(*) FROM rowmq_schedules") == [(0,)]


# --- fire -----------------------------------------------------------------------------------------


async def test_a_tick_is_made_when_it_is_due_and_not_before(mq: Any, clock: Clock) -> None:
    await hourly(mq, payload="x")
    assert await mq.cron.tend() == 0
    clock.move(hours=1, seconds=-0.001)
    assert await mq.cron.tend() == 0
    clock.move(seconds=0.001)
    assert await mq.cron.tend() == 1
    assert await mq.cron.tend() == 0
    (job,) = await jobs(mq)
    assert job.payload == "x"
    assert job.due_at == MIDNIGHT + timedelta(hours=1)
    assert dict(job.headers) == {
        "rowmq-schedule": "s",
        "rowmq-fire-at": "2026-06-01T01:00:00+00:00",
    }
    info = await only(mq)
    assert (info.last_at, info.next_at) == (job.due_at, job.due_at + timedelta(hours=1))


async def test_a_job_has_the_priority_the_headers_and_the_order_of_its_schedule(
    mq: Any, clock: Clock
) -> None:
    await hourly(mq, headers={"a": "b"}, priority=7, key="line", catch_up="all")
    clock.move(hours=2)
    assert await mq.cron.tend() == 2
    (job,) = await jobs(mq)  # the second waits in the line of its ordering key
    assert (job.priority, job.ordering_key, job.headers["a"]) == (7, "line", "b")
    await job.ack()
    assert len(await jobs(mq)) == 1


async def test_ticks_go_to_a_topic_too(mq: Any, clock: Clock) -> None:
    await hourly(mq, topic="t", key="k", payload={"n": 1}, headers={"a": "b"}, catch_up="all")
    clock.move(hours=2)
    assert await mq.cron.tend() == 2
    messages = await mq.read("t", key="k")
    assert [message.id for message in messages] == [
        "s@2026-06-01T01:00:00+00:00",
        "s@2026-06-01T02:00:00+00:00",
    ]
    assert messages[0].payload == {"n": 1}
    assert messages[0].headers["a"] == "b"
    assert messages[0].headers["rowmq-schedule"] == "s"
    async with mq.subscribe("t", group="g", start="earliest") as sub:
        assert len(await sub.poll(timeout=5)) == 2


async def test_a_job_that_was_done_long_ago_is_not_made_again(mq: Any, clock: Clock) -> None:
    """Weakness 5: a scheduler whose clock lags makes a tick that was run and acked."""
    await hourly(mq)
    clock.move(hours=3)
    assert await mq.cron.tend() == 1
    await mq.queue("q").ack(await jobs(mq))
    clock.move(hours=-2)  # as a failover to a server whose clock is behind
    await mq.cron.remove("s")
    assert await hourly(mq) is Outcome.CREATED
    clock.move(hours=2, minutes=30)
    assert await mq.cron.tend() == 0
    assert await jobs(mq) == []
    clock.move(minutes=30)
    assert await mq.cron.tend() == 1


async def test_a_topic_gets_a_tick_once_though_its_row_was_lost(
    mq: Any, clock: Clock, database: Database
) -> None:
    await hourly(mq, topic="t")
    clock.move(hours=1)
    assert await mq.cron.tend() == 1
    database.execute("DELETE FROM rowmq_ticks")
    await mq.cron.remove("s")
    clock.move(minutes=-30)
    await hourly(mq, topic="t")
    clock.move(minutes=30)
    await mq.cron.tend()
    assert len(await mq.read("t")) == 1


@pytest.mark.parametrize(
    ("policy", "hours"), [("latest", [5]), ("all", [1, 2, 3, 4, 5]), ("none", [])]
)
async def test_what_an_outage_missed_is_made_up_as_was_chosen(
    mq: Any, clock: Clock, policy: str, hours: list[int]
) -> None:
    await hourly(mq, catch_up=policy)
    clock.move(hours=5, minutes=10)
    assert await mq.cron.tend() == len(hours)
    expected = [(MIDNIGHT + timedelta(hours=hour)).isoformat() for hour in hours]
    assert fire_times(await jobs(mq)) == expected
    clock.move(minutes=50, seconds=30)  # half a minute late is not missed
    assert await mq.cron.tend() == 1


async def test_all_that_was_missed_is_made_in_parts(mq: Any, clock: Clock) -> None:
    await mq.cron.install_periodic("p", 60, queue="q", catch_up="all", tend=False)
    clock.move(hours=4)
    assert [await mq.cron.tend() for _ in range(4)] == [100, 100, 40, 0]
    assert len(set(fire_times(await jobs(mq)))) == 240


async def test_a_tick_within_the_grace_is_not_missed(mq: Any, clock: Clock) -> None:
    await hourly(mq, catch_up="none", grace=600)
    clock.move(hours=1, seconds=600)
    assert await mq.cron.tend() == 1
    clock.move(hours=1, seconds=0.001)
    assert await mq.cron.tend() == 0
    assert (await only(mq)).next_at == MIDNIGHT + timedelta(hours=3)


async def test_many_tenders_at_once_make_each_tick_once(clients: Open, clock: Clock) -> None:
    several = [await clients(retry_for=0) for _ in range(4)]  # a deadlock would be an error
    for number in range(6):
        await hourly(several[0], f"q{number}", queue="q", catch_up="all")
        await hourly(several[0], f"t{number}", topic="t", key="k", catch_up="all")
    made = 0
    for _ in range(3):
        clock.move(hours=2)
        tends = [mq.cron.tend() for mq in several for _ in range(2)]
        made += sum(await asyncio.gather(*tends))
    assert made == 12 * 6
    found = [(job.headers["rowmq-schedule"], *fire_times([job])) for job in await jobs(several[0])]
    assert len(found) == len(set(found)) == 36
    messages = await several[0].read("t", limit=1000)
    assert len(messages) == len({message.id for message in messages}) == 36


MEANWHILE: dict[str, Callable[[Any], Awaitable[Any]]] = {
    "paused": lambda mq: mq.cron.pause("s"),
    "changed": lambda mq: hourly(mq, payload="new"),
    "removed": lambda mq: mq.cron.remove("s"),
    "fired": lambda mq: mq.cron.tend(),
}


@pytest.mark.parametrize("meanwhile", MEANWHILE)
async def test_who_comes_late_changes_nothing(
    mq: Any, clock: Clock, database: Database, meanwhile: str
) -> None:
    """One looks at a schedule that is due, and before it fires, somebody else does something."""
    await hourly(mq, payload="old")
    clock.move(hours=1)
    store = plain(mq)._store
    schedule = await mq._run(partial(store.schedules.load, "s"))
    await MEANWHILE[meanwhile](mq)
    database.execute("DELETE FROM rowmq_ticks")  # which would be a second guard
    before = database.execute("SELECT * FROM rowmq_schedules")
    tick = made_of(schedule, schedule.next_at, None)
    firing = Firing(schedule, schedule.next_at + 1, [(schedule.next_at, tick)])
    assert await mq._run(partial(store.schedules.fire, firing, [2**40])) is None
    assert database.execute("SELECT * FROM rowmq_schedules") == before
    assert database.execute("SELECT COUNT(*) FROM rowmq_ticks") == [(0,)]
    assert len(await jobs(mq)) == (1 if meanwhile == "fired" else 0)


# --- what goes wrong ------------------------------------------------------------------------------


def spoil(mq: Any, name: str) -> tuple[list[Any], Callable[[Statement], None]]:
    """Have the client fail where it comes to a statement, as often as there are failures left."""
    left: list[Exception] = []

    def fail(statement: Statement) -> None:
        if statement.name == name and left:
            raise left.pop()

    plain(mq)._driver.observers.append(fail)
    return left, fail


@pytest.mark.parametrize("target", [{"queue": "q"}, {"topic": "t", "key": "k"}])
@async_only
async def test_a_crash_between_any_two_statements_makes_no_half_of_a_tick(
    mq: Any, clock: Clock, database: Database, target: dict[str, str]
) -> None:
    await hourly(mq, **target)
    clock.move(hours=1)
    await mq.cron.tend()  # so that queue, lane and partition are there
    clock.move(hours=1)
    with statements(mq) as seen:
        assert await mq.cron.tend() == 1
    names = [statement.name for statement in seen]
    first = names.index("schedules.advance")
    last = (
        next(n for n, name in enumerate(names) if name in ("jobs.put", "jobs.insert"))
        if ("queue" in target)
        else len(names) - 1
    )
    for name in dict.fromkeys(names[first : last + 1]):
        clock.move(hours=1)
        left, fail = spoil(mq, name)
        left.append(ZeroDivisionError())
        before = made(database)
        with pytest.raises(ZeroDivisionError):
            await mq.cron.tend()
        assert made(database) == before, name
        plain(mq)._driver.observers.remove(fail)
        assert await mq.cron.tend() == 1
        assert made(database) == [count + 1 for count in before]


def made(database: Database) -> list[int]:
    """How many ticks there are, and how many jobs and messages."""
    tables = ["rowmq_ticks"], ["rowmq_jobs", "rowmq_messages"]
    return [
        sum(database.execute(f"SELECT COUNT(*) FROM {table}")[0][0] for table in group)
        for group in tables
    ]


async def test_a_repeat_after_a_lost_answer_makes_no_second_tick(
    mq: Any, clock: Clock, database: Database
) -> None:
    await hourly(mq)
    await hourly(mq, "to a topic", topic="t")
    clock.move(hours=1)
    with lost_answers(mq, "schedules.advance") as lost:
        await mq.cron.tend()
    assert len(lost) == 2
    assert made(database) == [2, 2]
    assert await mq.cron.tend() == 0


async def test_one_schedule_that_cannot_fire_does_not_stop_the_others(
    mq: Any, clock: Clock
) -> None:
    def fails(_: datetime) -> None:
        raise ZeroDivisionError

    await hourly(mq, "bad", payload=fails)
    await hourly(mq, "good")
    for _ in range(2):
        clock.move(hours=1)
        with pytest.raises(ZeroDivisionError):
            await mq.cron.tend()
        (job,) = await jobs(mq)
        await job.ack()


# --- functions ------------------------------------------------------------------------------------


def day_of(fire_time: datetime) -> dict[str, str]:
    return {"day": f"{fire_time:%A %H:%M}"}


async def test_a_function_makes_the_payload_of_the_time_in_the_zone(mq: Any, clock: Clock) -> None:
    options = {"queue": "q", "payload": day_of, "tz": "Asia/Tokyo", "tend": False}
    assert await mq.cron.install("s", "0 9 * * *", **options) is Outcome.CREATED
    assert await mq.cron.install("s", "0 9 * * *", **options) is Outcome.IGNORED
    assert (await only(mq)).function == f"{__name__}:day_of"
    clock.move(days=1)
    assert await mq.cron.tend() == 1
    assert [job.payload for job in await jobs(mq)] == [{"day": "Tuesday 09:00"}]


async def test_only_who_has_the_function_can_fire(clients: Open, clock: Clock) -> None:
    owner, other = await clients(), await clients()
    await hourly(owner, "made", payload=day_of)
    await hourly(owner, "plain", payload=1)
    clock.move(hours=1)
    assert await other.cron.tend() == 1
    with pytest.raises(errors.InvalidOption, match="day_of"):
        await other.cron.run("made")
    assert await owner.cron.tend() == 1
    assert sorted(str(job.payload) for job in await jobs(owner)) == [
        "1",
        "{'day': 'Monday 01:00'}",
    ]


async def test_many_that_nobody_here_can_fire_hide_no_other(clients: Open, clock: Clock) -> None:
    owner, other = await clients(), await clients()
    for number in range(105):
        await hourly(owner, f"a{number:03}", payload=day_of)
    await hourly(owner, "z", payload=1)
    clock.move(hours=1)
    assert await other.cron.tend() == 1


# --- pause, resume, remove, run, next -------------------------------------------------------------


async def test_a_paused_schedule_fires_not_and_does_not_make_up_for_it(
    mq: Any, clock: Clock
) -> None:
    await hourly(mq, catch_up="all")
    await mq.cron.pause("s")
    clock.move(hours=3, minutes=30)
    assert await mq.cron.tend() == 0
    assert (await only(mq)).paused
    await mq.cron.resume("s")
    assert await mq.cron.tend() == 0
    clock.move(minutes=30)
    assert await mq.cron.tend() == 1
    assert fire_times(await jobs(mq)) == ["2026-06-01T04:00:00+00:00"]


async def test_to_resume_what_is_not_paused_changes_nothing(mq: Any, clock: Clock) -> None:
    await hourly(mq)
    clock.move(hours=1)
    await mq.cron.resume("s")
    assert await mq.cron.tend() == 1


async def test_a_paused_schedule_stays_paused_when_it_is_installed_again(
    mq: Any, clock: Clock
) -> None:
    await hourly(mq)
    await mq.cron.pause("s")
    assert await hourly(mq) is Outcome.IGNORED
    assert await hourly(mq, payload=2) is Outcome.UPDATED
    clock.move(hours=2)
    assert await mq.cron.tend() == 0
    assert (await only(mq)).paused


async def test_what_is_removed_fires_no_more_and_what_it_made_stays(mq: Any, clock: Clock) -> None:
    await hourly(mq)
    clock.move(hours=1)
    await mq.cron.tend()
    assert await mq.cron.remove("s") is True
    assert await mq.cron.remove("s") is False
    clock.move(hours=1)
    assert await mq.cron.tend() == 0
    assert len(await jobs(mq)) == 1
    assert await mq.cron.list() == []


@pytest.mark.parametrize("target", [{"queue": "q"}, {"topic": "t"}])
async def test_run_fires_once_beside_the_plan(mq: Any, clock: Clock, target: Any) -> None:
    await hourly(mq, payload="x", **target)
    await mq.cron.pause("s")
    for _ in range(2):
        assert await mq.cron.run("s") == MIDNIGHT
    made = await mq.read("t") if "topic" in target else await jobs(mq)
    assert [item.payload for item in made] == ["x", "x"]
    assert fire_times(made) == [MIDNIGHT.isoformat()] * 2
    await mq.cron.resume("s")
    clock.move(hours=1)
    assert await mq.cron.tend() == 1


async def test_next_shows_the_times_to_come(mq: Any, clock: Clock) -> None:
    await mq.cron.install("s", "30 2 * * *", queue="q", tz="America/New_York", tend=False)
    new_york = ZoneInfo("America/New_York")
    assert await mq.cron.next("s", 2) == [
        datetime(2026, 6, 1, 2, 30, tzinfo=new_york),
        datetime(2026, 6, 2, 2, 30, tzinfo=new_york),
    ]
    clock.move(days=10)
    (following,) = await mq.cron.next("s", count=1)
    assert following.isoformat() == "2026-06-11T02:30:00-04:00"
    assert len(await mq.cron.next("s")) == 5


@pytest.mark.parametrize("call", ["pause", "resume", "run", "next"])
async def test_an_unknown_schedule_is_told_with_those_that_are_like_it(mq: Any, call: str) -> None:
    with pytest.raises(errors.UnknownSchedule, match=r"no schedule 'report'; cron.list\(\)"):
        await getattr(mq.cron, call)("report")
    await hourly(mq, "reports")
    with pytest.raises(errors.UnknownSchedule, match="did you mean 'reports'"):
        await getattr(mq.cron, call)("report")


# --- old ticks ------------------------------------------------------------------------------------


async def test_ticks_are_forgotten_after_thirty_days(
    clients: Open, clock: Clock, database: Database
) -> None:
    mq = await clients()
    await mq.cron.install("s", "0 0 * * *", queue="q", catch_up="all", tend=False)
    clock.move(days=40)
    assert await mq.cron.tend() == 40
    assert await (await clients()).cron.tend() == 0  # one that has not cleaned up lately
    ((count, oldest),) = database.execute("SELECT COUNT(*), MIN(fire_at) FROM rowmq_ticks")
    assert count == 31
    assert oldest == (MIDNIGHT + timedelta(days=10)).timestamp() * 1_000_000


# --- bad input ------------------------------------------------------------------------------------


async def no_function(_: datetime) -> None: ...


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"name": ""}, errors.InvalidSchedule),
        ({"name": "  \n"}, errors.InvalidSchedule),
        ({"name": "n" * 201}, errors.InvalidSchedule),
        ({"name": None}, errors.InvalidSchedule),
        ({"cron": "0 0 30 2 *"}, errors.InvalidOption),
        ({"cron": "every day"}, errors.InvalidOption),
        ({"tz": "Paris"}, errors.InvalidOption),
        ({"queue": None}, errors.InvalidOption),
        ({"topic": "t"}, errors.InvalidOption),
        ({"queue": ""}, errors.InvalidQueue),
        ({"queue": None, "topic": ""}, errors.InvalidTopic),
        ({"queue": None, "topic": "t", "priority": 1}, errors.InvalidOption),
        ({"key": ""}, errors.InvalidKey),
        ({"headers": {"a": 1}}, errors.InvalidHeaders),
        ({"priority": 1.5}, errors.InvalidOption),
        ({"catch_up": "some"}, errors.InvalidOption),
        ({"grace": -1}, errors.InvalidOption),
        ({"payload": object()}, errors.PayloadNotSerializable),
        ({"payload": no_function}, errors.InvalidOption),
        ({"payload": dict}, errors.InvalidOption),
        ({"payload": "x" * 1024 * 1025}, errors.PayloadTooLarge),
        ({"payload": "x" * 1024 * 1025, "queue": None, "topic": "t"}, errors.PayloadTooLarge),
    ],
)
@async_only
async def test_bad_input_is_refused_before_anything_is_written(
    mq: Any, options: dict[str, Any], error: type[Exception]
) -> None:
    given = {"name": "s", "cron": "0 2 * * *", "queue": "q", "tend": False} | options
    with pytest.raises(error):
        await mq.cron.install(given.pop("name"), given.pop("cron"), **given)
    assert await mq.cron.list() == []
    assert await mq.queues() == []


@async_only
async def test_a_period_or_a_number_that_is_none_is_refused(mq: Any) -> None:
    for period in (0, -1, 0.01, "1", None):
        with pytest.raises(errors.InvalidOption):
            await mq.cron.install_periodic("p", period, queue="q", tend=False)
    with pytest.raises(errors.InvalidOption):
        await mq.cron.install_daily("d", [], queue="q", tend=False)
    await hourly(mq)
    for count in (0, -1, 1.5, 10_000, None):
        with pytest.raises(errors.InvalidOption):
            await mq.cron.next("s", count)


async def test_a_closed_client_tends_nothing(connect: Connect, database: Database) -> None:
    mq = await connect(database.url)
    await mq.close()
    for call in (mq.cron.start, mq.cron.tend, mq.cron.list):
        with pytest.raises(errors.Closed):
            await call()


# --- who may have to do with some only ------------------------------------------------------------


@async_only
async def test_who_does_not_see_a_schedule_neither_changes_nor_finds_it(mq: Any) -> None:
    await hourly(mq, "theirs", queue="theirs")
    await hourly(mq, "topical", queue=None, topic="news")
    mine = mq.cron._seen_by(lambda queue, topic: queue == "mine" or topic == "mine")
    before = await mq.cron.list()
    for name in ("theirs", "topical"):
        for call in (
            partial(mine.install, name, "0 0 * * *", queue="mine", tend=False),
            partial(mine.pause, name),
            partial(mine.resume, name),
            partial(mine.run, name),
            partial(mine.next, name),
            partial(mine.remove, name),
        ):
            with pytest.raises(errors.UnknownSchedule) as raised:
                await call()
            assert "did you mean" not in str(raised.value)
    with pytest.raises(errors.UnknownSchedule) as raised:
        await mine.pause("their")
    assert "theirs" not in str(raised.value)
    assert await mq.cron.list() == before
    assert await mine.install("own", "0 * * * *", queue="mine", tend=False) is Outcome.CREATED
    assert await mine.install("own", "1 * * * *", queue="mine", tend=False) is Outcome.UPDATED
    await mine.pause("own")
    assert await mine.remove("own")
    assert not await mine.remove("own")
