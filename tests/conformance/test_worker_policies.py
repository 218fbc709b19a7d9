"""What becomes of a message when its handler is done: by its ack policy, or by its own word."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

import rowmq
from rowmq import AckPolicy, errors
from tests.choices import async_only
from tests.consuming import eventually
from tests.databases import Database
from tests.working import (
    AT_ONCE,
    LATER,
    SOURCES,
    STYLES,
    attach,
    errors_of,
    new_app,
    on_one,
    on_two,
    outcome,
    put,
)

pytestmark = async_only

in_both_styles = pytest.mark.parametrize("style", STYLES)

ACTS = ["", "fail", "ack", "ack fail", "nack", "nack fail", "reject", "reject fail"]

BY_POLICY = {
    AckPolicy.ACK_FIRST: ("done", "done"),
    AckPolicy.ACK: ("done", "done"),
    AckPolicy.REJECT_ON_ERROR: ("done", "dead"),
    AckPolicy.NACK_ON_ERROR: ("done", "waiting"),
    AckPolicy.MANUAL: ("dead", "dead"),
}
"""What comes of a success, and of an error."""

BY_HAND = {"ack": "done", "nack": "waiting", "reject": "dead"}


def expected(policy: AckPolicy, act: str) -> str:
    by_hand = act.split()[:1]
    if by_hand in (["fail"], []) or policy is AckPolicy.ACK_FIRST:
        return BY_POLICY[policy]["fail" in act]
    return BY_HAND[by_hand[0]]


def handler_of(style: str, source: str, act: str, done: list[Any]) -> Callable[..., Any]:
    """A handler that settles, and fails, as an act says."""
    steps = act.split()

    async def job(payload: Any, unit: rowmq.Job[Any]) -> None:
        for step in steps:
            await settles(step, unit)
        done.append(payload)

    async def message(payload: Any, unit: rowmq.Delivery[Any]) -> None:
        await job(payload, unit)  # type: ignore[arg-type]

    def sync_job(payload: Any, unit: rowmq.Job[Any]) -> None:
        for step in steps:
            settles(step, unit)
        done.append(payload)

    def sync_message(payload: Any, unit: rowmq.Delivery[Any]) -> None:
        sync_job(payload, unit)  # type: ignore[arg-type]

    if style == "async":
        return job if source == "queue" else message
    return sync_job if source == "queue" else sync_message


def settles(step: str, unit: Any) -> Any:
    if step == "fail":
        raise ValueError("as told")
    return getattr(unit, step)()


@in_both_styles
async def test_every_policy_and_every_way_to_settle(
    mq: Any, database: Database, style: str
) -> None:
    app = new_app(database, pool_size=6)
    wanted: dict[str, str] = {}
    done: list[Any] = []
    for source in SOURCES:
        for policy in AckPolicy:
            for act in ACTS:
                name = f"{source}.{policy.value}.{act.replace(' ', '_') or 'nothing'}"
                wanted[name] = expected(policy, act)
                handler = handler_of(style, source, act, done)
                options = {"retry": LATER, "ack_policy": policy, "concurrency": 1}
                attach(app, source, name, handler, max_fetch_interval=1.0, **options)
                await put(mq, source, name, 1)

    async def outcomes() -> dict[str, str]:
        return {name: await outcome(mq, name.partition(".")[0], name) for name in wanted}

    async with app:
        handled = {h["handler"]: h for h in app.health()["handlers"]}
        assert handled.keys() == wanted.keys()
        await eventually(lambda: sum(h["handled"] for h in app.health()["handlers"]) == len(wanted))
    assert await outcomes() == wanted


@on_one
@in_both_styles
@pytest.mark.parametrize("source", SOURCES)
async def test_a_manual_handler_that_settles_nothing_is_told_of(
    mq: Any, database: Database, source: str, style: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = new_app(database)
    attach(app, source, "m", handler_of(style, source, "", []), ack_policy=AckPolicy.MANUAL)
    await put(mq, source, "m", 1)
    async with app:
        await eventually(lambda: app.health()["handlers"][0]["handled"])
    (error,) = await errors_of(mq, source, "m")
    assert "MANUAL" in str(error)
    assert [r.levelname for r in caplog.records if "not settled" in r.getMessage()] == ["ERROR"]


@on_two
@pytest.mark.parametrize("source", SOURCES)
async def test_the_error_is_kept_with_what_failed(
    mq: Any, database: Database, source: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = new_app(database)
    handler = handler_of("async", source, "fail", [])
    attach(app, source, "m", handler, ack_policy=AckPolicy.REJECT_ON_ERROR)
    await put(mq, source, "m", 1)
    async with app:
        await eventually(lambda: app.health()["handlers"][0]["failed"])
    assert await errors_of(mq, source, "m") == ["ValueError: as told"]
    (record,) = [r for r in caplog.records if "failed, attempt 1" in r.getMessage()]
    assert record.exc_info is not None


@in_both_styles
@pytest.mark.parametrize("source", SOURCES)
async def test_what_is_acked_first_is_done_before_its_handler_runs(
    mq: Any, database: Database, source: str, style: str
) -> None:
    app = new_app(database)
    entered, go_on = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    async def slow(_payload: int) -> None:
        entered.set()
        await go_on.wait()

    def slow_in_thread(payload: int) -> None:
        asyncio.run_coroutine_threadsafe(slow(payload), loop).result(20)

    handler = slow if style == "async" else slow_in_thread
    attach(app, source, "m", handler, ack_policy=AckPolicy.ACK_FIRST)
    await put(mq, source, "m", 1)
    async with app:
        await entered.wait()
        assert await outcome(mq, source, "m") == "done"
        go_on.set()


# --- settles by hand ----------------------------------------------------------------------------


@on_two
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("step", ["ack", "reject", "nack"])
async def test_a_settle_that_nobody_awaits_takes_effect(
    mq: Any, database: Database, source: str, step: str
) -> None:
    app = new_app(database)

    async def job(_payload: int, unit: rowmq.Job[int]) -> None:
        settles(step, unit)

    async def message(_payload: int, unit: rowmq.Delivery[int]) -> None:
        settles(step, unit)

    policy = AckPolicy.MANUAL if step != "reject" else AckPolicy.NACK_ON_ERROR
    handler = job if source == "queue" else message
    attach(app, source, "m", handler, ack_policy=policy, retry=LATER)
    await put(mq, source, "m", 1)
    async with app:
        await eventually(lambda: app.health()["handlers"][0]["handled"])
    assert await outcome(mq, source, "m") == BY_HAND[step]


@on_two
@in_both_styles
@pytest.mark.parametrize("source", SOURCES)
async def test_a_second_settle_is_refused_in_the_handler(
    mq: Any, database: Database, source: str, style: str
) -> None:
    app = new_app(database)
    refused: list[str] = []

    async def twice(_payload: int, unit: Any) -> None:
        await unit.ack()
        assert unit.settled
        for step in ("ack", "nack", "reject", "release"):
            with pytest.raises(errors.AlreadySettled):
                await settles(step, unit)
            refused.append(step)

    async def job(payload: int, unit: rowmq.Job[int]) -> None:
        await twice(payload, unit)

    async def message(payload: int, unit: rowmq.Delivery[int]) -> None:
        await twice(payload, unit)

    def sync_twice(_payload: int, unit: Any) -> None:
        unit.ack()
        assert unit.settled
        for step in ("ack", "nack", "reject", "release"):
            with pytest.raises(errors.AlreadySettled):
                settles(step, unit)
            refused.append(step)

    def sync_job(payload: int, unit: rowmq.Job[int]) -> None:
        sync_twice(payload, unit)

    def sync_message(payload: int, unit: rowmq.Delivery[int]) -> None:
        sync_twice(payload, unit)

    handlers: dict[tuple[str, str], Any] = {
        ("queue", "async"): job,
        ("topic", "async"): message,
        ("queue", "sync"): sync_job,
        ("topic", "sync"): sync_message,
    }
    attach(app, source, "m", handlers[source, style], retry=LATER)
    await put(mq, source, "m", 1)
    async with app:
        await eventually(lambda: app.health()["handlers"][0]["handled"])
    assert len(refused) == 4
    assert await outcome(mq, source, "m") == "done"


@in_both_styles
@pytest.mark.parametrize("source", SOURCES)
async def test_what_is_released_comes_again_and_was_no_attempt(
    mq: Any, database: Database, source: str, style: str
) -> None:
    app = new_app(database)
    seen: list[tuple[int, int]] = []

    def look(unit: Any) -> Any:
        seen.append((unit.attempt, getattr(unit, "deliveries", 1)))
        return unit.release() if len(seen) < 3 else unit.ack()

    async def job(unit: rowmq.Job[int]) -> None:
        await look(unit)

    async def message(unit: rowmq.Delivery[int]) -> None:
        await look(unit)

    def sync_job(unit: rowmq.Job[int]) -> None:
        look(unit)

    def sync_message(unit: rowmq.Delivery[int]) -> None:
        look(unit)

    handlers: dict[tuple[str, str], Any] = {
        ("queue", "async"): job,
        ("topic", "async"): message,
        ("queue", "sync"): sync_job,
        ("topic", "sync"): sync_message,
    }
    attach(app, source, "m", handlers[source, style], max_deliveries=1)
    await put(mq, source, "m", 1)
    async with app:
        await eventually(lambda: len(seen) == 3)
    assert seen == [(1, 1)] * 3
    assert await outcome(mq, source, "m") == "done"


@on_two
async def test_an_extension_is_no_settle(mq: Any, database: Database) -> None:
    app = new_app(database)

    @app.worker("q")
    async def job(job: rowmq.AsyncJob[int]) -> None:
        await job.extend(120)
        assert not job.settled

    @app.subscriber("t", group="g")
    def message(_payload: int, delivery: rowmq.Delivery[int]) -> None:
        delivery.extend(120)
        assert not delivery.settled

    await put(mq, "queue", "q", 1)
    await put(mq, "topic", "t", 1)
    async with app:
        await eventually(lambda: all(h["handled"] for h in app.health()["handlers"]))
    assert await outcome(mq, "queue", "q") == await outcome(mq, "topic", "t") == "done"


@on_one
@pytest.mark.parametrize("source", SOURCES)
async def test_a_sync_handler_can_settle_by_its_context(
    mq: Any, database: Database, source: str
) -> None:
    app = new_app(database)

    def handle(context: rowmq.Context) -> None:
        unit = context.job or context.delivery
        assert unit is not None
        assert unit.attempt == context.attempt == 1
        unit.reject(error="by its context")

    attach(app, source, "m", handle)
    await put(mq, source, "m", 1)
    async with app:
        await eventually(lambda: errors_of(mq, source, "m"))
    assert await errors_of(mq, source, "m") == ["by its context"]


# --- errors of every kind -----------------------------------------------------------------------


class Abort(BaseException):
    """What is no Exception, as some libraries raise to get out of everything."""


class Speechless(Exception):
    """An error that cannot even say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


ERRORS: list[Callable[[], BaseException]] = [
    lambda: ValueError("plain"),
    Speechless,
    lambda: ValueError("a null \0, half a pair \ud800, and " + "much " * 20_000),
    lambda: asyncio.CancelledError("its own doing"),
    KeyError,
    lambda: Abort("get me out"),
    lambda: SystemExit(3),
    lambda: GeneratorExit("odd"),
]


@on_one
@in_both_styles
@pytest.mark.parametrize("source", SOURCES)
async def test_whatever_a_handler_raises_is_its_own_failure_and_nobody_elses(
    mq: Any, database: Database, source: str, style: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The only slot goes on, and what succeeded beside it is acked."""
    caplog.set_level(logging.CRITICAL, logger="rowmq")  # half a pair cannot be sent to others
    app = new_app(database)
    handled: list[int] = []

    def handle(number: int) -> None:
        handled.append(number)
        if number < len(ERRORS):
            error = ERRORS[number]()
            raise error

    async def handle_async(number: int) -> None:
        handle(number)

    attach(
        app,
        source,
        "m",
        handle if style == "sync" else handle_async,
        concurrency=1,
        ack_policy=AckPolicy.REJECT_ON_ERROR,
        flush_interval=0.1,
    )
    everything = range(len(ERRORS) + 4)
    await put(mq, source, "m", *everything)
    async with app:
        await eventually(lambda: len(handled) >= len(everything), seconds=10)
    assert sorted(handled) == list(everything)
    found = await errors_of(mq, source, "m")
    assert len(found) == len(ERRORS)
    assert all(found)
    if source == "queue":
        assert (await mq.queue("m").counts())["completed"] == 4
    else:
        assert sum(row.lag for row in await mq.lag("m", "g")) == 0


class Moody:
    """A retry strategy of the user's that fails itself."""

    max_attempts = None

    def delay(self, attempt: int, *, random: Any = None) -> float:  # noqa: ARG002 - as every strategy
        raise ZeroDivisionError(f"attempt {attempt}")


@on_one
@pytest.mark.parametrize("source", SOURCES)
async def test_a_retry_strategy_that_fails_costs_only_what_it_was_asked_about(
    mq: Any, database: Database, source: str
) -> None:
    app = new_app(database)
    handled: list[int] = []

    async def handle(number: int) -> None:
        handled.append(number)
        if number == 3:
            raise ValueError("no")

    attach(app, source, "m", handle, concurrency=10, flush_interval=0.2, retry=Moody())
    await put(mq, source, "m", *range(8))
    async with app:
        await eventually(lambda: len(handled) >= 8)
    assert sorted(set(handled)) == list(range(8))
    if source == "queue":
        assert (await mq.queue("m").counts())["completed"] == 7
    else:
        assert sum(row.lag for row in await mq.lag("m", "g")) <= 1


@on_two
async def test_nothing_is_logged_of_what_went_well(
    mq: Any, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    app = new_app(database)
    handled: list[int] = []

    @app.worker("q", retry=AT_ONCE)
    async def handle(number: int, job: rowmq.Job[int]) -> None:
        handled.append(number)
        if number % 2:
            job.ack()

    await put(mq, "queue", "q", *range(10))
    with caplog.at_level(logging.WARNING):
        async with app:
            await eventually(lambda: len(handled) == 10)
    assert caplog.records == []
