"""Tending: clients make the ticks of schedules in the background, by the database's own clock."""

import asyncio
import itertools
import logging
import threading
from datetime import datetime
from typing import Any

import pytest

import rowmq
from rowmq import errors
from rowmq.queue.waiting import ThreadWaiter
from rowmq.store.statement import Statement
from tests.choices import on_servers
from tests.conformance.test_faults import cut_connections
from tests.conftest import Connect
from tests.consuming import eventually
from tests.databases import Database
from tests.flavours import plain
from tests.unit.drivers.test_pool import exit_code, fork

PERIOD = 0.1


async def every(mq: Any, name: str = "beat", **options: Any) -> None:
    """A schedule that fires often."""
    target = {} if "topic" in options else {"queue": "q"}
    await mq.cron.install_periodic(name, PERIOD, **(target | options))


async def comes(mq: Any) -> Any:
    """The next job of a tick, done."""
    job = await mq.queue("q").poll(timeout=20)
    assert job is not None
    await job.ack()
    return job


async def nothing_is_pending(mq: Any) -> bool:
    return await mq.queue("q").try_poll() is None


async def drain(mq: Any) -> None:
    """Do what is left."""
    while (job := await mq.queue("q").try_poll()) is not None:
        await job.ack()


async def test_who_installs_makes_the_ticks_until_it_is_closed(
    connect: Connect, database: Database
) -> None:
    mq, other = await connect(database.url), await connect(database.url)
    assert not mq.cron.tending
    await every(mq)
    assert mq.cron.tending
    times = [(await comes(other)).headers["rowmq-fire-at"] for _ in range(3)]
    assert times == sorted(set(times))
    assert all(datetime.fromisoformat(text).microsecond % 100_000 == 0 for text in times)
    await mq.close()
    assert not mq.cron.tending
    await drain(other)
    await asyncio.sleep(3 * PERIOD)
    assert await nothing_is_pending(other)


class Sleeper(ThreadWaiter):
    """A poll that waits, and never looks by itself."""

    def woken(self) -> bool:
        return self._event.is_set()


async def test_a_poller_of_the_client_that_tends_is_woken_by_a_tick(mq: Any) -> None:
    sleeper = Sleeper()
    waiters = plain(mq)._desk.waiters
    waiters.add(["q"], sleeper)
    await eventually(lambda: waiters.woken or database_is_silent(mq))
    sleeper.calm()
    await every(mq)
    await eventually(sleeper.woken)
    await comes(mq)
    waiters.remove(["q"], sleeper)


def database_is_silent(mq: Any) -> bool:
    """Whether nothing but the client itself could wake it: MySQL has no way to."""
    return bool(plain(mq)._engine.new_watch is None)


async def test_a_subscriber_gets_the_ticks_of_a_topic(mq: Any) -> None:
    async with mq.subscribe("t", group="g") as sub:
        await every(mq, topic="t", key="k")
        (delivery, *_) = await sub.poll(timeout=20)
        assert delivery.message.id.startswith("beat@")


async def test_one_that_tends_makes_what_others_install(
    connect: Connect, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rowmq.cron.tending.LOOK_SECONDS", 0.05)
    tending, installing = await connect(database.url), await connect(database.url)
    await tending.cron.start()
    await every(installing, tend=False)
    assert not installing.cron.tending
    await comes(installing)


async def test_it_can_be_stopped_and_started(mq: Any) -> None:
    await every(mq)
    await comes(mq)
    await mq.cron.stop()
    assert not mq.cron.tending
    await mq.cron.stop()
    await drain(mq)
    await asyncio.sleep(2 * PERIOD)
    assert await nothing_is_pending(mq)
    await mq.cron.start()
    await mq.cron.start()
    await comes(mq)


async def test_pause_resume_and_remove_are_seen_at_work(mq: Any) -> None:
    await every(mq)
    await comes(mq)
    for _ in range(2):
        await mq.cron.pause("beat")
        await drain(mq)
        await asyncio.sleep(2 * PERIOD)
        assert await nothing_is_pending(mq)
        await mq.cron.resume("beat")
        await comes(mq)
    await mq.cron.remove("beat")
    await drain(mq)
    await asyncio.sleep(2 * PERIOD)
    assert await nothing_is_pending(mq)


async def test_many_tend_at_once_without_a_deadlock_and_each_tick_is_made_once(
    connect: Connect,
    database: Database,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rowmq.cron.tending.RETRY_SECONDS", 0.0)  # what goes wrong is told
    caplog.set_level(logging.WARNING, "rowmq")
    several = [await connect(database.url) for _ in range(5)]
    for mq in several:
        await every(mq, catch_up="all")
        await every(mq, "other", catch_up="all")
    await eventually(lambda: database.execute("SELECT COUNT(*) FROM rowmq_ticks") >= [(20,)])
    for mq in several:
        await mq.cron.stop()
    assert not caplog.records
    jobs = await several[0].queue("q").try_poll_many(1000)
    made = [(job.headers["rowmq-schedule"], job.headers["rowmq-fire-at"]) for job in jobs]
    assert len(made) == len(set(made))
    assert database.execute("SELECT COUNT(*) FROM rowmq_ticks") == [(len(made),)]
    for name in ("beat", "other"):
        times = sorted(datetime.fromisoformat(time) for of, time in made if of == name)
        assert (times[-1] - times[0]).total_seconds() == pytest.approx(PERIOD * (len(times) - 1))


async def test_it_survives_errors_of_the_database(
    mq: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rowmq.cron.core.TROUBLE_SECONDS", (0.01, 0.05))
    left = [errors.DatabaseError("out of order") for _ in range(3)]

    def fail(statement: Statement) -> None:
        if statement.name == "schedules.upcoming" and left:
            raise left.pop()

    plain(mq)._driver.observers.append(fail)
    with caplog.at_level(logging.WARNING, "rowmq"):
        await every(mq)
        await comes(mq)
    assert not left
    assert [r.message for r in caplog.records if "out of order" in r.message] == [
        "tending the schedules failed, and is tried again: DatabaseError: out of order"
    ]


@on_servers
async def test_it_survives_the_loss_of_its_connection(mq: Any, database: Database) -> None:
    await every(mq)
    for _ in range(2):
        await comes(mq)
        cut_connections(database)
        await asyncio.sleep(2 * PERIOD)
    await comes(mq)


async def test_a_function_that_fails_keeps_no_other_schedule_waiting(
    mq: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(_: datetime) -> None:
        raise ZeroDivisionError("no such payload")

    with caplog.at_level(logging.WARNING, "rowmq"):
        await every(mq, "bad", payload=fails)
        await every(mq, "good", payload=lambda at: f"{at:%Y}")
        jobs = [await comes(mq) for _ in range(3)]
    assert {job.headers["rowmq-schedule"] for job in jobs} == {"good"}
    assert jobs[0].payload == jobs[0].headers["rowmq-fire-at"][:4]
    assert any("no such payload" in record.message for record in caplog.records)


async def test_a_schedule_that_waits_for_its_function_is_told_of(
    connect: Connect,
    database: Database,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rowmq.cron.core.LATE_US", -1)
    owner, other = await connect(database.url), await connect(database.url)
    await every(owner, payload=lambda at: at.isoformat(), tend=False)
    with caplog.at_level(logging.WARNING, "rowmq"):
        await other.cron.start()
        await eventually(lambda: "waits for a process that has installed it" in caplog.text)
    assert await other.cron.tend() == 0


def test_a_database_in_memory_is_tended_too() -> None:
    with rowmq.connect("sqlite://") as mq:
        mq.cron.install_periodic("beat", PERIOD, queue="q")
        assert mq.queue("q").poll(timeout=20) is not None
        mq.cron.stop()
        assert len(mq.cron.list()) == 1  # its only connection is still open
        mq.cron.start()
        assert mq.queue("q").poll(timeout=20) is not None
    assert not [t for t in threading.enumerate() if t.name == "rowmq-cron"]


def test_a_forked_child_tends_only_if_it_says_so(database: Database) -> None:
    with rowmq.connect(database.url) as mq:
        mq.cron.install_periodic("beat", PERIOD, queue="q")

        def child() -> None:
            assert not mq.cron.tending
            mq.cron.start()
            assert mq.cron.tending
            assert mq.queue("q").poll(timeout=20) is not None
            mq.close()

        assert exit_code(fork(child)) == 0
        assert mq.cron.tending
        assert mq.queue("q").poll(timeout=20) is not None


def leaves(_: datetime) -> None:
    raise SystemExit("no configuration")


async def test_a_payload_that_ends_its_thread_stops_no_other_schedule(
    mq: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "rowmq"):
        await every(mq, "bad", payload=leaves)
        await every(mq, "good")
        for _ in range(3):
            assert (await comes(mq)).headers["rowmq-schedule"] == "good"
    assert mq.cron.tending
    told = [record.message for record in caplog.records if "'bad'" in record.message]
    assert len(told) == 1
    assert "SystemExit: no configuration" in told[0]


@on_servers
async def test_a_row_that_somebody_has_locked_delays_its_own_schedule_only(
    mq: Any, connect: Connect, database: Database
) -> None:
    await every(mq, "free")
    await every(mq, "kept", queue="kept")
    await comes(mq)
    other = await connect(database.url)
    async with other.transaction() as tx:
        await other.cron.pause("kept", connection=tx)
        await drain(mq)
        times = [
            datetime.fromisoformat((await comes(mq)).headers["rowmq-fire-at"]) for _ in range(8)
        ]
    steps = {(later - sooner).total_seconds() for sooner, later in itertools.pairwise(times)}
    assert max(steps) < 5 * PERIOD, "none was kept waiting for a lock"
