"""What was found by giving calls anything: each case by itself, on every database."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

import rowmq
from rowmq import errors


class Unspeakable:
    def __repr__(self) -> str:
        raise RuntimeError("this object cannot be shown")


LONG = 10**5000
"""More digits than Python writes out."""


def calls_with(mq: Any, value: Any) -> list[Callable[[], Any]]:
    q = mq.queue("q")
    return [
        lambda: mq.read("t", limit=value),
        lambda: mq.publish(value, 1),
        lambda: mq.publish("t", 1, headers={"a": value}),
        lambda: mq.seek("t", "g", to=value),
        lambda: q.put(1, delay=value),
        lambda: q.put(1, at=value),
        lambda: q.get(value),
        lambda: q.live(state=value),
        lambda: q.archive(state=value),
        lambda: q.configure(rate=value),
        lambda: mq.cron.next("s", value),
        lambda: mq.doctor(checks=value),
    ]


@pytest.mark.parametrize("name", ["number", "object", "list", "text"])
async def test_what_cannot_be_shown_is_refused_all_the_same(mq: Any, name: str) -> None:
    values = {"number": LONG, "object": Unspeakable(), "list": [LONG], "text": "\ud800" * 2**20}
    for call in calls_with(mq, values[name]):
        with pytest.raises(errors.InvalidInput) as caught:
            await call()
        assert len(str(caught.value)) < 1_500
    assert await mq.topics() == []


async def test_checks_that_are_no_list_are_refused(mq: Any) -> None:
    for checks in (5, 1.5, object(), True):
        with pytest.raises(errors.InvalidOption, match="checks must be a list"):
            await mq.doctor(checks=checks)


async def test_sql_that_no_driver_can_send_is_refused(mq: Any) -> None:
    async with mq.transaction() as tx:
        for sql in ("SELECT '\ud800'", "SELECT 1\0"):
            with pytest.raises(errors.InvalidInput, match="SQL must"):
                await tx.execute(sql)
        with pytest.raises(errors.InvalidInput, match="stands for no parameter"):
            await tx.execute("SELECT $" + "9" * 5_000, [1])
        await tx.publish("t", "after")
    assert [message.payload for message in await mq.read("t")] == ["after"]


async def test_a_parameter_that_no_driver_can_send_fails_the_transaction(mq: Any) -> None:
    with pytest.raises(errors.TransactionFailed):
        async with mq.transaction() as tx:
            await tx.publish("t", "before")
            with pytest.raises(errors.DatabaseError):
                await tx.execute("SELECT CAST(? AS char(1))", ["\ud800"])
    assert await mq.read("t") == []


async def test_the_times_of_a_schedule_end_with_the_calendar(mq: Any) -> None:
    await mq.cron.install_periodic("s", timedelta(days=36_525), queue="q", tend=False)
    times = await mq.cron.next("s", 1_000)
    assert 70 < len(times) < 90
    assert times == sorted(times)


async def test_ticks_outside_the_calendar_are_refused(mq: Any) -> None:
    earliest = datetime.min.replace(tzinfo=timezone(timedelta(hours=1)))
    latest = datetime.max.replace(tzinfo=timezone(timedelta(hours=-1)))
    for at in (earliest, latest):
        for message in (rowmq.CronMessage(1, at), rowmq.ScheduledMessage("k", 1, at)):
            with pytest.raises(errors.InvalidOption, match="years 1 to 9999"):
                await mq.cron.install_tick("hash", "prefix", [message], queue="q")
    assert await mq.queues() == []
    for at in (datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)):
        await mq.cron.install_tick("hash", "prefix", [rowmq.CronMessage(1, at)], queue="q")
