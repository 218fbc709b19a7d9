"""What takes too long, fails, or cannot be read: tried again as often as was said, no more."""

import asyncio
import threading
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

import msgspec
import pydantic
import pytest

import rowmq
from rowmq import Message
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
    left,
    new_app,
    on_one,
    on_two,
    outcome,
    put,
)

pytestmark = async_only

in_both_styles = pytest.mark.parametrize("style", STYLES)
of_both_sources = pytest.mark.parametrize("source", SOURCES)


# --- timeouts -----------------------------------------------------------------------------------


@on_two
@of_both_sources
async def test_an_async_handler_that_takes_too_long_is_cancelled_and_has_failed(
    mq: Any, database: Database, source: str
) -> None:
    app = new_app(database)
    cancelled: list[int] = []

    async def slow(number: int) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(number)
            raise

    attach(app, source, "m", slow, timeout=0.05, retry=rowmq.NoRetry())
    await put(mq, source, "m", 7)
    async with app:
        await eventually(lambda: app.health()["handlers"][0]["handled"])
    assert cancelled == [7]
    (error,) = await errors_of(mq, source, "m")
    assert error == "TimeoutError: it took longer than its timeout of 0.05 s"


@on_one
async def test_a_timeout_of_the_handlers_own_is_told_as_such(mq: Any, database: Database) -> None:
    app = new_app(database)

    @app.worker("q", timeout=30, retry=rowmq.NoRetry())
    async def impatient(_number: int) -> None:
        async with asyncio.timeout(0.001):
            await asyncio.sleep(5)

    await put(mq, "queue", "q", 1)
    async with app:
        await eventually(lambda: app.health()["handlers"][0]["handled"])
    assert await errors_of(mq, "queue", "q") == ["TimeoutError: "]


@on_two
@of_both_sources
async def test_a_sync_handler_that_takes_too_long_has_failed_and_keeps_its_slot(
    mq: Any, database: Database, source: str
) -> None:
    app = new_app(database)
    begun: list[int] = []
    go_on = threading.Event()

    def slow(number: int) -> None:
        begun.append(number)
        if number == 0:
            go_on.wait(20)

    attach(app, source, "m", slow, timeout=0.1, retry=rowmq.NoRetry(), concurrency=1)
    await put(mq, source, "m", 0, 1)
    async with app:
        await eventually(lambda: app.health()["handlers"][0]["failed"] == 1)
        await eventually(lambda: errors_of(mq, source, "m"))
        await asyncio.sleep(0.2)
        assert begun == [0], "there is one slot, and its thread is not free"
        go_on.set()
        await eventually(lambda: begun == [0, 1])
    assert await left(mq, source, "m") == 0


@on_one
async def test_what_comes_again_does_not_run_beside_its_straggler_on_one_slot(
    mq: Any, database: Database
) -> None:
    app = new_app(database)
    running, most = [0], [0]
    lock = threading.Lock()
    attempts: list[int] = []

    @app.worker("q", timeout=0.05, retry=rowmq.Constant(0, max_attempts=3), concurrency=1)
    def slow(job: rowmq.Job[int]) -> None:
        with lock:
            running[0] += 1
            most[0] = max(most)
            attempts.append(job.attempt)
        time.sleep(0.3)
        with lock:
            most[0] = max(most[0], running[0])
            running[0] -= 1

    await put(mq, "queue", "q", 1)
    async with app:
        await eventually(lambda: attempts == [1, 2, 3])
    assert most == [1]


@on_one
async def test_the_next_message_of_a_key_waits_for_a_straggler(mq: Any, database: Database) -> None:
    app = new_app(database)
    at_work: set[int] = set()
    seen: list[set[int]] = []

    @app.subscriber("t", group="g", timeout=0.05, concurrency=4, retry=LATER)
    def slow(number: int) -> None:
        at_work.add(number)
        seen.append(at_work.copy())
        if number == 0:
            time.sleep(0.4)
        at_work.discard(number)

    await mq.publish_many("t", [Message(payload=n, key="k") for n in range(3)])
    async with app:
        await eventually(lambda: len(seen) == 3)
    assert seen == [{0}, {1}, {2}]


@on_one
@of_both_sources
async def test_a_straggler_cannot_settle_any_more(mq: Any, database: Database, source: str) -> None:
    app = new_app(database)
    told: list[str] = []

    def late(unit: Any) -> None:
        time.sleep(0.3)
        try:
            unit.ack()
        except Exception as error:
            told.append(type(error).__name__)
            raise
        told.append("acked")

    def job(unit: rowmq.Job[int]) -> None:
        late(unit)

    def message(unit: rowmq.Delivery[int]) -> None:
        late(unit)

    handler = job if source == "queue" else message
    attach(app, source, "m", handler, timeout=0.05, retry=LATER)
    await put(mq, source, "m", 1)
    async with app:
        await eventually(lambda: told)
    assert told == ["AlreadySettled"]
    assert await outcome(mq, source, "m") == "waiting"


# --- retries ------------------------------------------------------------------------------------


@of_both_sources
@in_both_styles
async def test_it_is_tried_as_often_as_its_strategy_says_and_then_given_up(
    mq: Any, database: Database, source: str, style: str
) -> None:
    app = new_app(database)
    attempts: list[int] = []

    def fail(context: rowmq.Context) -> None:
        attempts.append(context.attempt)
        raise ValueError(f"attempt {context.attempt}")

    async def fail_async(context: rowmq.Context) -> None:
        fail(context)

    handler = fail if style == "sync" else fail_async
    retry = rowmq.Constant(interval=0, max_attempts=4)
    limit = {"max_deliveries": 10} if source == "topic" else {}
    attach(app, source, "m", handler, retry=retry, **limit)
    await put(mq, source, "m", 1)
    async with app:
        await eventually(lambda: errors_of(mq, source, "m"))
    assert attempts == [1, 2, 3, 4]
    assert await errors_of(mq, source, "m") == ["ValueError: attempt 4"]


@on_two
@of_both_sources
async def test_max_deliveries_is_an_end_too(mq: Any, database: Database, source: str) -> None:
    app = new_app(database)
    attempts: list[int] = []

    async def fail(context: rowmq.Context) -> None:
        attempts.append(context.attempt)
        raise ValueError(f"attempt {context.attempt}")

    attach(app, source, "m", fail, retry=AT_ONCE, max_deliveries=2)
    await put(mq, source, "m", 1)
    async with app:
        await eventually(lambda: errors_of(mq, source, "m"))
    assert attempts == [1, 2]


@on_two
@of_both_sources
async def test_a_retry_waits_for_as_long_as_was_said(
    mq: Any, database: Database, source: str
) -> None:
    app = new_app(database)
    at: list[float] = []

    async def fail(_number: int) -> None:
        at.append(time.monotonic())
        if len(at) < 3:
            raise ValueError("again")

    attach(app, source, "m", fail, retry=rowmq.Linear(initial=0.2, step=0.2), max_deliveries=5)
    await put(mq, source, "m", 1)
    async with app:
        await eventually(lambda: len(at) == 3)
    assert 0.19 < at[1] - at[0] < 3
    assert 0.39 < at[2] - at[1] < 3


@on_one
async def test_a_nack_of_the_handlers_own_may_say_when(mq: Any, database: Database) -> None:
    app = new_app(database)
    at: list[float] = []

    @app.worker("q", retry=LATER)
    async def handle(job: rowmq.AsyncJob[int]) -> None:
        at.append(time.monotonic())
        if len(at) == 1:
            await job.nack(delay=0.2, error="not now")

    await put(mq, "queue", "q", 1)
    async with app:
        await eventually(lambda: len(at) == 2)
    assert at[1] - at[0] > 0.19


# --- payloads -----------------------------------------------------------------------------------


@dataclass
class Order:
    id: int
    items: list[str]


class Email(msgspec.Struct):
    to: str


class Customer(pydantic.BaseModel):
    name: str


GOOD: dict[str, tuple[Any, Any]] = {
    "dataclass": (Order, Order(1, ["a"])),
    "struct": (Email, Email("x@example.org")),
    "model": (Customer, Customer(name="Ada")),
    "list": (list[int], [1, 2, 3]),
    "int": (int, 5),
    "dict": (dict[str, int], {"a": 1}),
    "any": (Any, {"a": [1, None]}),
    "optional": (int | None, None),
    "bytes": (bytes, b"\x00\x01"),
}


@of_both_sources
async def test_payloads_are_what_they_are_annotated_as(
    mq: Any, database: Database, source: str
) -> None:
    app = new_app(database)
    got: dict[str, Any] = {}

    def handler_of(name: str, wanted: Any) -> Any:
        async def handle(payload: Any) -> None:
            got[name] = payload

        handle.__annotations__["payload"] = wanted
        return handle

    for name, (wanted, payload) in GOOD.items():
        attach(app, source, name, handler_of(name, wanted), concurrency=1)
        await put(mq, source, name, payload)
    async with app:
        await eventually(lambda: len(got) == len(GOOD))
    assert got == {name: payload for name, (_, payload) in GOOD.items()}


@on_two
@of_both_sources
@in_both_styles
async def test_what_does_not_parse_is_given_up_and_no_handler_sees_it(
    mq: Any, database: Database, source: str, style: str
) -> None:
    app = new_app(database)
    seen: list[Any] = []

    def handle(order: Order) -> None:
        seen.append(order)

    async def handle_async(order: Order) -> None:
        seen.append(order)

    attach(app, source, "m", handle if style == "sync" else handle_async, retry=AT_ONCE)
    await put(
        mq, source, "m", {"id": 1, "items": []}, {"id": "one"}, [1], {"id": 2, "items": ["x"]}
    )
    async with app:
        await eventually(lambda: len(seen) == 2)
        await eventually(lambda: found_errors(mq, source, 2))
    assert sorted(order.id for order in seen) == [1, 2]
    assert await left(mq, source, "m") == 0


async def found_errors(mq: Any, source: str, count: int) -> bool:
    return len(await errors_of(mq, source, "m")) == count


@on_two
async def test_one_queue_can_have_a_handler_for_each_class(mq: Any, database: Database) -> None:
    app = new_app(database)
    seen: Counter[str] = Counter()

    @app.worker("q")
    async def orders(order: Order) -> None:
        assert isinstance(order, Order)
        seen["order"] += 1

    @app.worker("q")
    def emails(email: Email) -> None:
        assert isinstance(email, Email)
        seen["email"] += 1

    await mq.queue("q", type=Order).put_many([Order(n, []) for n in range(10)])
    await mq.queue("q", type=Email).put_many([Email(str(n)) for n in range(10)])
    async with app:
        await eventually(lambda: seen.total() == 20)
    assert seen == {"order": 10, "email": 10}
    assert (await mq.queue("q").counts())["completed"] == 20


# --- parameters ---------------------------------------------------------------------------------


@on_one
async def test_everything_is_given_to_who_asks_for_it(mq: Any, database: Database) -> None:
    app = new_app(database, name="shop")
    got: dict[str, Any] = {}

    @app.subscriber("t", group="g", transactional=True)
    async def message(
        context: rowmq.Context,
        *,
        tx: rowmq.AsyncTransaction,
        mq: rowmq.AsyncRowMQ,
        m: rowmq.Message[Order],
        order: Order,
        delivery: rowmq.AsyncDelivery[Order],
        progress: rowmq.Progress,
    ) -> None:
        got["async"] = locals()
        assert (context.stopping, context.lost, context.state) == (False, False, {})
        await tx.publish("out", order.id)

    @app.worker("q", transactional=True)
    def job(job: rowmq.Job[Order], order: Order, tx: rowmq.Transaction, mq: rowmq.RowMQ) -> None:
        got["sync"] = locals()
        mq.publish("by itself", 1)  # before the transaction has begun: SQLite has one writer
        tx.queue("out").put(order.id)

    @app.worker("plain")
    def nothing() -> None:
        got["nothing"] = True

    await mq.publish("t", Order(1, []), key="k", id="m1", headers={"a": "b"})
    await mq.queue("q").put(Order(2, []))
    await mq.queue("plain").put("whatever")
    async with app:
        await eventually(lambda: len(got) == 3)
        await eventually(lambda: all(h["handled"] for h in app.health()["handlers"]))
    given = got["async"]
    assert given["order"] == given["m"].payload == given["context"].payload == Order(1, [])
    assert (given["m"].key, given["m"].id, given["m"].headers) == ("k", "m1", {"a": "b"})
    assert given["delivery"].message is given["m"]
    assert isinstance(given["mq"], rowmq.AsyncRowMQ)
    context = given["context"]
    assert (context.handler, context.source, context.attempt) == ("message", "t", 1)
    assert context.job is None
    given = got["sync"]
    assert isinstance(given["job"], rowmq.Job)
    assert isinstance(given["mq"], rowmq.RowMQ)
    assert [m.payload for m in await mq.read("out")] == [1]
    assert (await mq.queue("out").counts())["pending"] == 1
    assert [m.payload for m in await mq.read("by itself")] == [1]
