"""The clock of a test is the database's: all that is due by time follows it."""

import sqlite3
import time
from datetime import UTC, datetime, timedelta, timezone

import pytest

import rowmq
from rowmq.errors import InvalidInput, InvalidOption
from rowmq.testing import TestApp

START = datetime(2030, 1, 1, tzinfo=UTC)


def test_it_goes_with_the_real_time_until_it_is_moved_and_then_stands() -> None:
    with TestApp() as t:
        before = t.clock.now()
        assert abs(before - datetime.now(UTC)) < timedelta(seconds=5)
        deadline = time.monotonic() + 5
        while t.clock.now() == before:
            assert time.monotonic() < deadline
        moved = t.clock.move(hours=2)
        assert moved - before >= timedelta(hours=2)
        time.sleep(0.005)
        assert t.clock.now() == moved


def test_a_drain_does_not_stop_a_clock_that_was_not_moved() -> None:
    with TestApp(rowmq.App()) as t:
        t.drain()
        before = t.clock.now()
        deadline = time.monotonic() + 5
        while t.clock.now() == before:
            assert time.monotonic() < deadline


def test_it_moves_by_seconds_by_a_timedelta_and_by_names() -> None:
    with TestApp(now=START) as t:
        assert t.clock.move(90) == START + timedelta(seconds=90)
        assert t.clock.move(timedelta(days=1)) == START + timedelta(days=1, seconds=90)
        t.clock.set(datetime(2030, 6, 1, 12, tzinfo=timezone(timedelta(hours=2))))
        assert t.clock.now() == datetime(2030, 6, 1, 10, tzinfo=UTC)
        assert "stands" in repr(t.clock)


def test_it_never_goes_back() -> None:
    with TestApp(now=START) as t:
        with pytest.raises(InvalidOption, match="forward only"):
            t.clock.move(hours=-1)
        with pytest.raises(InvalidOption, match="now="):
            t.clock.set(START - timedelta(seconds=1))
        with pytest.raises(InvalidInput, match="no time zone"):
            t.clock.set(datetime(2031, 1, 1))  # noqa: DTZ001 - the mistake
        assert t.clock.now() == START


def test_it_is_the_time_of_every_client_and_of_the_users_own_connections() -> None:
    with TestApp(now=START) as t:
        t.publish("topic", 1)
        with t.connect() as other:
            other.publish("topic", 2)
        connection = sqlite3.connect(t.path)
        with connection:
            t.mq.publish("topic", 3, connection=connection)
        connection.close()
        assert {m.published_at for m in t.mq.read("topic")} == {START}


def test_delayed_jobs_follow_it() -> None:
    app, done = rowmq.App(), []

    @app.worker("jobs")
    async def work(number: int) -> None:
        done.append(number)

    with TestApp(app, now=START) as t:
        jobs = t.queue("jobs")
        jobs.put(1, delay=3600)
        jobs.put(2, at=START + timedelta(hours=2))
        assert t.drain() == []
        t.clock.move(minutes=59)
        assert t.drain() == []
        t.clock.move(minutes=1)
        t.drain()
        assert done == [1]
        t.clock.set(START + timedelta(hours=2))
        t.drain()
        assert done == [1, 2]


def test_retries_follow_it() -> None:
    app, tried = rowmq.App(), []
    backoff = rowmq.ExponentialBackoff(
        initial=10, multiplier=6, max_delay=600, jitter=0, max_attempts=3
    )

    @app.subscriber("orders", group="billing", retry=backoff)
    async def bill(_: int) -> None:
        tried.append(t.clock.now() - START)
        raise ValueError("no")

    with TestApp(app, now=START) as t:
        t.publish("orders", 1)
        t.run_for(hours=1, raise_errors=False)
        assert tried == [timedelta(0), timedelta(seconds=10), timedelta(seconds=70)]
        assert t.clock.now() == START + timedelta(hours=1)


def test_leases_follow_it() -> None:
    with TestApp(now=START) as t, t.mq.subscribe("orders", group="g", visibility=60) as sub:
        t.publish("orders", 1)
        (first,) = sub.poll()
        assert sub.poll(timeout=0) == []
        del first
        t.clock.move(minutes=2)
        (again,) = sub.poll()
        assert again.attempt == 2


def test_retention_follows_it_when_chores_are_done() -> None:
    app = rowmq.App()
    with TestApp(app, now=START) as t:
        t.mq.configure_topic("orders", retention=timedelta(days=7))
        t.mq.create_group("orders", "g")
        t.publish("orders", 1)
        t.maintain()
        t.assert_published("orders", 1)
        t.clock.move(days=8)
        t.maintain()
        t.assert_not_published("orders")


def test_after_a_jump_a_schedule_does_what_it_does_after_an_outage() -> None:
    app, fired = rowmq.App(), []

    @app.cron("0 * * * *", catch_up="all")
    def every(at: datetime) -> None:
        fired.append(("every", at.hour))

    @app.cron("0 * * * *")
    def latest(at: datetime) -> None:
        fired.append(("latest", at.hour))

    with TestApp(app, now=START) as t:
        t.clock.move(hours=3)
        t.drain()
        assert sorted(fired) == [("every", 1), ("every", 2), ("every", 3), ("latest", 3)]


def test_a_schedule_fires_at_each_of_its_times_while_time_passes() -> None:
    app, fired = rowmq.App(), []

    @app.cron("*/20 * * * *")
    def often(at: datetime) -> None:
        fired.append((at, t.clock.now()))

    with TestApp(app, now=START) as t:
        t.run_for(hours=1)
    times = [START + timedelta(minutes=minutes) for minutes in (20, 40, 60)]
    assert fired == [(at, at) for at in times]


def test_schedules_that_a_test_installs_are_tended_by_its_drains_alone() -> None:
    app, beats = rowmq.App(), []

    @app.worker("beats")
    async def beat(at: str) -> None:
        beats.append(at)

    with TestApp(app, now=START) as t:
        t.mq.cron.install_periodic("beat", 60, queue="beats", payload=lambda at: f"{at:%H:%M}")
        assert not t.mq.cron.tending
        t.run_for(minutes=2)
        assert beats == ["00:01", "00:02"]


def test_it_cannot_be_moved_under_a_transaction_that_writes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rowmq.testing.clock.LOCK_SECONDS", 0.05)
    with TestApp(now=START) as t, t.mq.transaction() as tx:
        tx.publish("topic", 1)
        with pytest.raises(InvalidOption, match="while a transaction is writing"):
            t.clock.move(1)
