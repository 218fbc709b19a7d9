"""Functions that run at times: once each, however many workers there are."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import rowmq
from tests.choices import async_only
from tests.consuming import eventually
from tests.databases import Database
from tests.working import AT_ONCE, new_app, on_one, on_two

pytestmark = async_only

EVERY_SECOND = "* * * * * *"


async def test_each_time_is_run_once_by_one_of_several_workers(mq: Any, database: Database) -> None:
    fired: list[tuple[int, datetime]] = []
    apps = [new_app(database) for _ in range(3)]

    def declare(app: rowmq.App, number: int) -> None:
        @app.cron(EVERY_SECOND)
        async def tick(at: datetime) -> None:
            fired.append((number, at))

    for number, app in enumerate(apps):
        declare(app, number)
    async with apps[0], apps[1], apps[2]:
        await eventually(lambda: len(fired) >= 3)
    times = sorted(at for _, at in fired)
    assert [at - times[0] for at in times] == [timedelta(seconds=n) for n in range(len(times))]
    assert all(at.tzinfo is not None and at.microsecond == 0 for at in times)
    assert abs(times[0] - datetime.now(UTC)) < timedelta(minutes=1)
    (schedule,) = await mq.cron.list()
    assert (schedule.name, schedule.queue) == ("tick", "cron.tick")


@on_two
async def test_a_time_that_failed_is_tried_again_with_the_same_time(
    mq: Any, database: Database
) -> None:
    app = new_app(database)
    tried: list[tuple[datetime, int]] = []

    @app.cron(EVERY_SECOND, name="flaky", retry=AT_ONCE)
    def tick(job: rowmq.Job[Any], at: datetime) -> None:
        tried.append((at, job.attempt))
        if job.attempt < 3:
            raise ValueError("again")

    async with app:
        await eventually(lambda: len(tried) >= 3)
    assert [attempt for _, attempt in tried[:3]] == [1, 2, 3]
    assert await mq.queue("cron.flaky").archive(state="failed") == []
    assert len({at for at, _ in tried[:3]}) == 1


@on_one
async def test_a_payload_goes_with_every_time(mq: Any, database: Database) -> None:
    app = new_app(database)
    got: list[Any] = []

    @app.cron(EVERY_SECOND, payload={"region": "eu"})
    async def report(options: dict[str, str], context: rowmq.Context) -> None:
        got.append((options, context.source))

    async with app:
        await eventually(lambda: got)
    assert got[0] == ({"region": "eu"}, "cron.report")
    assert [schedule.name for schedule in await mq.cron.list()] == ["report"]


@on_one
async def test_a_job_put_by_hand_is_run_too(mq: Any, database: Database) -> None:
    app = new_app(database)
    got: list[datetime | None] = []

    @app.cron("0 0 1 1 *")
    async def yearly(at: datetime) -> None:
        got.append(at)

    async with app:
        await mq.queue("cron.yearly").put(None)
        await eventually(lambda: got)
    assert got[0] is not None
    assert abs(got[0] - datetime.now(UTC)) < timedelta(minutes=1)


@on_one
async def test_times_of_one_handler_are_not_run_side_by_side(mq: Any, database: Database) -> None:
    app = new_app(database)
    running, most, count = [0], [0], [0]

    @app.cron("0 0 1 1 *")
    async def slow() -> None:
        running[0] += 1
        most[0] = max(most[0], running[0])
        await asyncio.sleep(0.05)
        running[0] -= 1
        count[0] += 1

    async with app:
        await mq.queue("cron.slow").put_many([None] * 4)
        await eventually(lambda: count == [4])
    assert most == [1]


@on_one
async def test_what_was_declared_anew_counts_from_the_next_start(
    mq: Any, database: Database
) -> None:
    for cron, tz in (("0 2 * * *", "UTC"), ("30 3 * * *", "Europe/Paris")):
        app = new_app(database)

        @app.cron(cron, tz=tz)
        def nightly() -> None: ...

        async with app:
            (schedule,) = await mq.cron.list()
            assert cron in str(schedule)


@on_one
async def test_a_schedule_outlives_its_worker(mq: Any, database: Database) -> None:
    """What fell due meanwhile is made up for, the latest of it, by whoever comes."""
    done: list[datetime] = []

    def new() -> rowmq.App:
        app = new_app(database)

        @app.cron(EVERY_SECOND, catch_up="latest")
        async def tick(at: datetime) -> None:
            done.append(at)

        return app

    async with new():
        await eventually(lambda: done)
    before = len(done)
    await asyncio.sleep(2.2)
    assert len(done) == before
    async with new():
        await eventually(lambda: len(done) > before)
    gap = done[before] - done[before - 1]
    assert gap >= timedelta(seconds=2), "only the latest of what was missed"
    assert [schedule.name for schedule in await mq.cron.list()] == ["tick"]


@on_one
async def test_apps_without_cron_handlers_tend_schedules_too(mq: Any, database: Database) -> None:
    """Those that a client has installed that does not tend them."""
    app, done = new_app(database), list[int]()

    @app.worker("beats")
    async def beat() -> None:
        done.append(1)

    await mq.cron.install("beat", EVERY_SECOND, queue="beats", tend=False)
    async with app:
        await eventually(lambda: done)
    assert not mq.cron.tending
