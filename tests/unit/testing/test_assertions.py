"""Assertions find what is there, and say what is there instead of what was expected."""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import ANY

import pytest

import rowmq
from rowmq.testing import Assertions, AsyncAssertions, AsyncTestApp, TestApp

START = datetime(2030, 1, 1, tzinfo=UTC)


@dataclass
class Order:
    id: int
    total: float


@pytest.fixture
def t() -> Iterator[TestApp]:
    with TestApp(now=START) as app:
        yield app


def said_by(assertion: Callable[[], Any]) -> str:
    """What an assertion says that fails."""
    with pytest.raises(AssertionError) as caught:
        assertion()
    return str(caught.value)


# --- what is found --------------------------------------------------------------------------------


def test_messages_are_found_by_what_is_named(t: TestApp) -> None:
    t.publish("orders", {"id": 7, "total": 1.5}, key="ann", id="order-7", headers={"a": "1"})
    t.publish("orders", {"id": 8, "total": 1.5}, key="bob")
    (message,) = t.assert_published("orders", {"id": 7, "total": 1.5})
    assert message.id == "order-7"
    t.assert_published("orders", count=2)
    t.assert_published("orders", key="ann", count=1)
    t.assert_published("orders", id="order-7", headers={"a": "1"}, count=1)
    t.assert_published("orders", lambda order: order["id"] > 6, count=2)
    t.assert_published("orders", {"id": ANY, "total": 1.5}, count=2)
    t.assert_not_published("orders", {"id": 7})
    t.assert_not_published("orders", key="cleo")
    t.assert_not_published("orders", key=None)


def test_a_payload_is_compared_as_it_is_stored(t: TestApp) -> None:
    t.publish("orders", Order(7, 1.5))
    t.assert_published("orders", Order(7, 1.5))
    t.assert_published("orders", {"id": 7, "total": 1.5})
    t.publish("texts", "hello")
    t.assert_published("texts", "hello")
    t.assert_not_published("texts", b"hello")


def test_a_function_that_fails_on_a_payload_does_not_fit_it(t: TestApp) -> None:
    t.publish("orders", "no order")
    t.publish("orders", {"id": 7})
    t.assert_published("orders", lambda order: order["id"] == 7, count=1)


def test_jobs_are_found_by_what_is_named(t: TestApp) -> None:
    emails = t.queue("emails")
    emails.put({"to": "ann"}, key="k", priority=3, delay=3600, headers={"a": "1"})
    emails.put({"to": "bob"}, at=START + timedelta(days=1), ordering_key="line")
    (job,) = t.assert_enqueued("emails", {"to": "ann"}, key="k", priority=3, delay=3600)
    assert job.due_at == START + timedelta(hours=1)
    t.assert_enqueued("emails", delay=timedelta(hours=1), headers={"a": "1"}, count=1)
    t.assert_enqueued("emails", at=START + timedelta(days=1), ordering_key="line", count=1)
    t.assert_not_enqueued("emails", {"to": "cleo"})
    t.assert_not_enqueued("emails", key="other")
    t.assert_enqueued("emails", count=2)


def test_a_job_at_work_or_to_be_tried_again_is_enqueued_and_one_that_is_done_is_not(
    t: TestApp,
) -> None:
    jobs = t.queue("jobs", retry=rowmq.Constant(interval=60, max_attempts=2))
    jobs.put(1)
    job = jobs.try_poll()
    assert job is not None
    t.assert_enqueued("jobs", 1, count=1)
    job.nack(error="later")
    t.assert_enqueued("jobs", 1, count=1)
    t.clock.move(minutes=1)
    job = jobs.try_poll()
    assert job is not None
    job.nack(error="ValueError: never")
    t.assert_not_enqueued("jobs")
    t.assert_failed("jobs", 1, error="never", count=1)
    t.assert_failed("jobs", 2, count=0)


def test_dead_letters_are_found_by_what_is_named(t: TestApp) -> None:
    t.publish("orders", {"id": 7}, key="ann", id="order-7")
    with t.mq.subscribe("orders", group="billing") as sub:
        (delivery,) = sub.poll()
        delivery.reject(error="no such product")
    (letter,) = t.assert_dead_lettered("orders", {"id": 7}, group="billing", error="no such")
    assert letter.message.id == "order-7"
    t.assert_dead_lettered("orders", key="ann", id="order-7", count=1)
    t.assert_dead_lettered("orders", group="search", count=0)
    t.assert_dead_lettered("others", count=0)


# --- what is said ---------------------------------------------------------------------------------


def test_what_is_missing_is_told_with_what_is_there_nearest_first(t: TestApp) -> None:
    t.publish("orders", {"id": 1}, key="bob")
    t.publish("orders", {"id": 8, "total": 2}, key="ann")
    t.publish("orders", {"id": 7, "total": 3}, key="ann", headers={"source": "web"})
    said = said_by(lambda: t.assert_published("orders", {"id": 7, "total": 2}, key="ann"))
    head, there, first, why, *rest = said.splitlines()
    assert head == "topic 'orders' has no message with payload={'id': 7, 'total': 2}, key='ann'"
    assert there == "It has 3 messages, nearest first:"
    assert first.startswith("  1. payload={'id': 8, 'total': 2}, key='ann', id=")
    assert why == "     payload['id'] is 8, not 7"
    assert "payload['total'] is 3, not 2" in said
    assert (
        rest[-1]
        == "     payload['id'] is 1, not 7, payload['total'] is missing; key is 'bob', not 'ann'"
    )


def test_each_kind_of_difference_is_named(t: TestApp) -> None:
    t.publish("orders", {"id": 7, "extra": 1}, headers={"a": "1"})
    said = said_by(lambda: t.assert_published("orders", {"id": "7"}, headers={"a": "2", "b": "3"}))
    assert "payload['id'] is 7 (int), not '7'" in said
    assert "payload['extra'] is there, too" in said
    assert "header 'a' is '1', not '2', header 'b' is missing" in said
    t.queue("jobs").put(1, delay=60)
    said = said_by(lambda: t.assert_enqueued("jobs", 1, delay=3600, at=START))
    assert "delay is 60 s, not 3600" in said
    assert "at is 2030-01-01T00:01:00+00:00, not 2030-01-01T00:00:00+00:00" in said
    said = said_by(lambda: t.assert_enqueued("jobs", is_even))
    assert "payload does not fit is_even" in said


def is_even(number: int) -> bool:
    return number % 2 == 0


def test_a_wrong_number_is_told_with_those_that_match(t: TestApp) -> None:
    for number in range(7):
        t.publish("orders", 1, id=f"order-{number}")
    said = said_by(lambda: t.assert_published("orders", 1, count=1))
    assert said.startswith("topic 'orders' has 7 messages with payload=1, not 1:\n  1. payload=1")
    assert said.endswith("and 2 more")
    said = said_by(lambda: t.assert_not_published("orders", id="order-3"))
    assert said.startswith("topic 'orders' has 1 message with id='order-3', not 0:\n")
    said = said_by(lambda: t.assert_published("orders", 2, count=3))
    assert said.startswith("topic 'orders' has none of the 3 messages expected with payload=2\n")


def test_a_name_that_is_wrong_is_told_with_those_there_are(t: TestApp) -> None:
    said = said_by(lambda: t.assert_published("orders"))
    assert said.endswith("It has no message at all. The topics there are: none")
    t.publish("orders", 1)
    t.queue("emails").put(1)
    said = said_by(lambda: t.assert_published("order"))
    assert said.endswith("The topics there are: orders; did you mean 'orders'?")
    said = said_by(lambda: t.assert_enqueued("mails"))
    assert said.endswith("The queues there are: emails; did you mean 'emails'?")
    said = said_by(lambda: t.assert_failed("emails"))
    assert said == "queue 'emails' has no failed job\nIt has no failed job at all"


def test_a_long_payload_is_cut(t: TestApp) -> None:
    t.publish("orders", "x" * 10_000)
    assert len(said_by(lambda: t.assert_published("orders", "y"))) < 2_000


# --- any client -----------------------------------------------------------------------------------


def test_they_serve_any_client() -> None:
    with rowmq.connect("sqlite://") as mq:
        mq.publish("orders", 1)
        Assertions(mq).assert_published("orders", 1, count=1)
        Assertions(mq).assert_not_enqueued("jobs")
        with pytest.raises(rowmq.errors.InvalidInput, match="AsyncAssertions"):
            AsyncAssertions(mq)  # type: ignore[arg-type]


async def test_they_serve_any_async_client() -> None:
    async with await rowmq.connect_async("sqlite://") as mq:
        check = AsyncAssertions(mq)
        await mq.publish("orders", 1)
        jobs = mq.queue("jobs")
        await jobs.put(1)
        await check.assert_published("orders", 1, count=1)
        await check.assert_not_published("orders", 2)
        await check.assert_enqueued("jobs", 1, count=1)
        await check.assert_not_enqueued("jobs", 2)
        await check.assert_dead_lettered("orders", count=0)
        job = await jobs.try_poll()
        assert job is not None
        await job.reject(error="no")
        await check.assert_failed("jobs", 1, error="no")
        with pytest.raises(AssertionError, match="topic 'orders' has no message with payload=2"):
            await check.assert_published("orders", 2)
        with pytest.raises(rowmq.errors.InvalidInput, match="Assertions"):
            Assertions(mq)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("sync", "other"), [(Assertions, AsyncAssertions), (TestApp, AsyncTestApp)]
)
def test_sync_and_async_have_the_same_names_and_parameters(sync: Any, other: Any) -> None:
    for name in sorted(set(dir(sync)) | set(dir(other))):
        if name.startswith("_"):
            continue
        mine, theirs = getattr(sync, name), getattr(other, name)
        if callable(mine):
            assert list(inspect.signature(mine).parameters.values()) == list(
                inspect.signature(theirs).parameters.values()
            ), name
