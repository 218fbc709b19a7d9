"""How much a worker fetches, holds and settles at a time, and what it costs when idle."""

import asyncio
import gc
import logging
import threading
import time
import weakref
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

import rowmq
from rowmq import Message
from tests.choices import async_only
from tests.consuming import eventually, statements
from tests.databases import Database
from tests.flavours import in_thread
from tests.working import LATER, SOURCES, STYLES, attach, new_app, on_one, on_two, put

pytestmark = async_only


@dataclass
class Order:
    number: int


def claimed(database: Database, source: str) -> int:
    """How many are fetched and not settled."""
    if source == "queue":
        rows = database.execute("SELECT settled FROM rowmq_locks")
        return sum(text(settled).count("0") for (settled,) in rows)
    rows = database.execute(
        "SELECT SUM(offset_delivered - offset_acked) FROM rowmq_offsets WHERE leased_by <> 0"
    )
    return int(rows[0][0] or 0)


def text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


# --- fetching -----------------------------------------------------------------------------------


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("pace", [(4, 1.5, 6), (1, 1.0, 1), (10, 2.0, 20)])
@on_two
async def test_never_more_is_fetched_ahead_than_was_said(
    mq: Any, database: Database, source: str, pace: tuple[int, float, int]
) -> None:
    app = new_app(database)
    batch, factor, ahead = pace
    begun: list[int] = []
    slots = asyncio.Semaphore(0)

    async def handle(number: int) -> None:
        begun.append(number)
        await slots.acquire()

    options: dict[str, Any] = {
        "concurrency": 3,
        "fetch_batch_size": batch,
        "overfetch_factor": factor,
    }
    attach(app, source, "m", handle, **options)
    await put(mq, source, "m", *range(60))
    async with app:
        least = 3 + ahead - batch // 2  # it waits for room for half a batch
        await eventually(lambda: least <= claimed(database, source) <= 3 + ahead)
        for turn in range(1, 4):
            for _ in range(3):
                slots.release()
            await eventually(lambda: len(begun) == 3 + 3 * turn)  # noqa: B023 - waited for here
            await eventually(lambda: claimed(database, source) >= least)
            await asyncio.sleep(0.05)
            assert claimed(database, source) <= 3 + ahead + 3  # three may be done and not acked yet
            await eventually(lambda: least <= claimed(database, source) <= 3 + ahead)
        for _ in range(60):
            slots.release()
        await eventually(lambda: len(begun) == 60)


@on_two
async def test_a_fetch_takes_as_many_as_was_said(mq: Any, database: Database) -> None:
    app = new_app(database)
    go_on = asyncio.Event()

    @app.worker("q", concurrency=4, fetch_batch_size=5, overfetch_factor=3)
    async def handle(_number: int) -> None:
        await go_on.wait()

    await put(mq, "queue", "q", *range(100))
    async with app:
        await eventually(lambda: claimed(database, "queue") == 4 + 15)
        rows = database.execute("SELECT settled FROM rowmq_locks")
        sizes = sorted(len(text(settled)) for (settled,) in rows)
        assert max(sizes) == 5
        go_on.set()


@on_one
async def test_the_least_time_between_fetches_is_kept(mq: Any, database: Database) -> None:
    app = new_app(database)
    begun: list[float] = []

    @app.worker("q", fetch_batch_size=1, overfetch_factor=1, min_fetch_interval=0.1)
    async def handle(_number: int) -> None:
        begun.append(time.monotonic())

    await put(mq, "queue", "q", *range(5))
    async with app:
        await eventually(lambda: len(begun) == 5)
    assert begun[-1] - begun[0] > 0.38


@on_one
async def test_a_stop_does_not_wait_for_the_next_fetch(mq: Any, database: Database) -> None:
    app = new_app(database)
    begun: list[int] = []

    @app.worker("q", min_fetch_interval=60)
    async def handle(number: int) -> None:
        begun.append(number)

    await put(mq, "queue", "q", 1)
    async with app:
        await eventually(lambda: begun)
        began = time.monotonic()
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("source", SOURCES)
async def test_what_comes_is_handled_soon(mq: Any, database: Database, source: str) -> None:
    """Though the worker has had nothing to do for a while."""
    app = new_app(database)
    handled: dict[int, float] = {}

    async def handle(number: int) -> None:
        handled[number] = time.monotonic()

    attach(app, source, "m", handle)
    await put(mq, source, "m", 0)
    async with app:
        await eventually(lambda: 0 in handled)
        for number in (1, 2, 3):
            await asyncio.sleep(0.3)
            began = time.monotonic()
            if source == "queue":
                await mq.queue("m").put(number)
            else:
                await mq.publish("m", number, key="k0")
            await eventually(lambda: number in handled)  # noqa: B023 - it is waited for here
            assert handled[number] - began < 1.0


@pytest.mark.parametrize("source", SOURCES)
async def test_a_worker_without_work_asks_little(mq: Any, database: Database, source: str) -> None:
    """Where a put is not announced, it looks as often as max_fetch_interval says."""
    app = new_app(database)
    handled: list[int] = []

    async def handle(number: int) -> None:
        handled.append(number)

    attach(app, source, "m", handle, max_fetch_interval=0.5)
    await put(mq, source, "m", 0)
    async with app:
        await eventually(lambda: handled)
        await asyncio.sleep(1.0)
        with statements(app.mq) as seen:
            await asyncio.sleep(2.0)
        names = Counter(statement.name for statement in seen)
    assert names.total() <= 24, names


@on_one
async def test_a_busy_worker_asks_no_more_than_it_must(mq: Any, database: Database) -> None:
    """Fetches and settles are of many at a time."""
    app = new_app(database)
    handled: list[int] = []

    @app.worker("q", concurrency=50)
    async def handle(number: int) -> None:
        handled.append(number)

    await put(mq, "queue", "q", *range(1_000))
    async with app:
        with statements(app.mq) as seen:
            await eventually(lambda: len(handled) == 1_000)
    names = Counter(statement.name for statement in seen)
    assert names["claims.take"] <= 100, names


# --- settling -----------------------------------------------------------------------------------


@on_two
@pytest.mark.parametrize("source", SOURCES)
async def test_settles_are_put_off_for_as_long_as_was_said_and_share_a_transaction(
    mq: Any, database: Database, source: str
) -> None:
    app = new_app(database)
    handled: list[int] = []

    async def handle(number: int) -> None:
        handled.append(number)
        await asyncio.sleep(0.01)

    attach(app, source, "m", handle, concurrency=2, fetch_batch_size=40, flush_interval=0.5)
    await put(mq, source, "m", *range(40))
    async with app:
        await eventually(lambda: claimed(database, source) == 40)
        with statements(app.mq) as seen:
            await eventually(lambda: claimed(database, source) == 0)
        names = Counter(statement.name for statement in seen)
    settles = names["settles.ack"] + names["settles.lock"] + names["leases.advance"]
    assert settles <= 4, names


@on_one
async def test_a_stop_does_not_wait_for_the_next_flush(mq: Any, database: Database) -> None:
    app = new_app(database)
    handled: list[int] = []

    @app.worker("q", flush_interval=60)
    async def handle(number: int) -> None:
        handled.append(number)

    await put(mq, "queue", "q", *range(5))
    async with app:
        await eventually(lambda: len(handled) == 5)
        began = time.monotonic()
    assert time.monotonic() - began < 5
    assert (await mq.queue("q").counts())["completed"] == 5


# --- locks and leases ---------------------------------------------------------------------------


async def test_a_handler_may_take_longer_than_its_lock_and_its_visibility(
    mq: Any, database: Database
) -> None:
    app, other = new_app(database), new_app(database)
    handled: list[str] = []
    go_on = threading.Event()

    def job(_number: int) -> None:
        handled.append("job")
        go_on.wait(20)

    async def message(_number: int) -> None:
        handled.append("message")
        await asyncio.to_thread(go_on.wait, 20)

    for each in (app, other):
        attach(each, "queue", "q", job, lock_timeout=0.7)
        attach(each, "topic", "t", message, visibility=0.7, lease_duration=1.5)
    await put(mq, "queue", "q", 1)
    await put(mq, "topic", "t", 1)
    async with app:
        await eventually(lambda: len(handled) == 2)
        async with other:
            await asyncio.sleep(2)
            go_on.set()
    assert sorted(handled) == ["job", "message"]
    assert (await mq.queue("q").counts())["completed"] == 1
    assert sum(row.lag for row in await mq.lag("t", "g")) == 0


async def test_what_waits_in_the_buffer_is_kept_too(mq: Any, database: Database) -> None:
    """Though its turn comes long after its lock would have run out."""
    app, other = new_app(database), new_app(database)
    handled: list[tuple[str, int, int]] = []

    def handler_of(name: str) -> Any:
        async def handle(number: int, context: rowmq.Context) -> None:
            handled.append((name, number, context.attempt))
            await asyncio.sleep(0.35)

        return handle

    options = {"concurrency": 1, "fetch_batch_size": 6}
    attach(app, "queue", "q", handler_of("q"), lock_timeout=1, **options)
    attach(app, "topic", "t", handler_of("t"), visibility=1, **options)
    await put(mq, "queue", "q", *range(6))
    await mq.publish_many("t", [Message(payload=n, key="k") for n in range(6)])
    attach(other, "queue", "q", handler_of("other"), lock_timeout=1)
    attach(other, "topic", "t", handler_of("other"), visibility=1)
    async with app:
        await eventually(lambda: claimed(database, "queue") == 6)
        async with other:
            await eventually(lambda: len(handled) >= 12)
    assert sorted(handled) == [(name, number, 1) for name in ("q", "t") for number in range(6)]


@on_two
async def test_the_keeper_leaves_what_is_settled(mq: Any, database: Database) -> None:
    """A lock without jobs is not asked about any more."""
    app = new_app(database)
    handled: list[int] = []

    @app.worker("q", lock_timeout=0.3)
    async def handle(number: int) -> None:
        handled.append(number)
        if number == 3:
            raise ValueError("no")

    await put(mq, "queue", "q", *range(10))
    async with app:
        await eventually(lambda: len(handled) == 10)
        await eventually(lambda: claimed(database, "queue") == 0)
        assert app._runtime is not None
        assert app._runtime._keeper is not None
        keeper = app._runtime._keeper
        # The answer to the last settle may be on its way, and a question to the database, too.
        await eventually(lambda: [kept.tokens for kept in keeper._kept.values()] == [{}])
        await asyncio.sleep(0.1)
        with statements(app.mq) as seen:
            await asyncio.sleep(0.6)
        assert [s.name for s in seen if s.name.startswith("settles.")] == []


@on_two
async def test_a_handler_can_see_that_its_job_was_lost(mq: Any, database: Database) -> None:
    app = new_app(database)
    seen: list[bool] = []
    begun = asyncio.Event()

    @app.worker("q", lock_timeout=0.3)
    async def handle(_number: int, context: rowmq.Context) -> None:
        seen.append(context.lost)
        begun.set()
        await eventually(lambda: context.lost)
        seen.append(context.lost)

    await mq.queue("q").put(1, key="k")
    async with app:
        await begun.wait()
        database.execute("DELETE FROM rowmq_locks")
        await eventually(lambda: len(seen) == 2)
    assert seen == [False, True]


@on_one
async def test_what_a_handler_has_acked_is_not_lost_when_its_lock_is_over(
    mq: Any, database: Database
) -> None:
    app = new_app(database)
    seen: list[bool] = []

    @app.worker("q", lock_timeout=0.2)
    async def handle(job: rowmq.AsyncJob[int], context: rowmq.Context) -> None:
        await job.ack()
        await asyncio.sleep(0.4)
        seen.append(context.lost)

    await mq.queue("q").put(1)
    async with app:
        await eventually(lambda: seen)
    assert seen == [False]


@on_two
async def test_what_was_being_fetched_while_the_loop_was_blocked_is_not_done_twice(
    mq: Any, database: Database
) -> None:
    """Its lock may have run out before anybody knew of it: then it is another worker's."""
    app, other = new_app(database), new_app(database)
    handled: Counter[int] = Counter()

    @app.worker("q", concurrency=4, fetch_batch_size=1, lock_timeout=0.7)
    async def blocking(number: int) -> None:
        handled[number] += 1
        time.sleep(1.4)  # noqa: ASYNC251 - that is what is tried

    @other.worker("q", concurrency=2, fetch_batch_size=1, lock_timeout=0.7)
    async def quick(number: int) -> None:
        handled[number] += 1
        await asyncio.sleep(0.1)

    await put(mq, "queue", "q", *range(25))
    running = asyncio.create_task(in_thread(other.run))
    async with app:
        await eventually(lambda: len(handled) == 25)
        other.stop()
        await running
    assert handled == dict.fromkeys(range(25), 1)


# --- memory -------------------------------------------------------------------------------------


@pytest.fixture
def uncollected() -> Iterator[None]:
    """What is not freed by itself, stays."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("uncollected")
@on_one
async def test_what_waits_to_be_acked_keeps_no_payload(mq: Any, database: Database) -> None:
    app = new_app(database)
    seen: list[weakref.ref[Order]] = []

    @app.subscriber("t", group="g", flush_interval=600)
    async def handle(order: Order) -> None:
        seen.append(weakref.ref(order))

    await put(mq, "topic", "t", *({"number": number} for number in range(20)))
    async with app:
        await eventually(lambda: len(seen) == 20)
        await eventually(lambda: all(order() is None for order in seen))
        (handler,) = app.health()["handlers"]
        assert handler["unsettled"] == 20
    assert [group.lag for group in await mq.groups("t")] == [0]


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.usefixtures("uncollected")
@on_one
async def test_what_is_done_or_has_failed_is_freed_at_once(
    mq: Any,
    database: Database,
    caplog: pytest.LogCaptureFixture,
    *,
    source: str,
    style: str,
    fails: bool,
) -> None:
    caplog.set_level(logging.CRITICAL, "rowmq")  # or else the log keeps the errors
    app = new_app(database)
    seen: list[weakref.ref[Order]] = []

    def handle(order: Order) -> None:
        seen.append(weakref.ref(order))
        if fails:
            raise ValueError(order)

    async def handle_async(order: Order) -> None:
        handle(order)

    attach(app, source, "m", handle if style == "sync" else handle_async, retry=LATER)
    await put(mq, source, "m", *({"number": number} for number in range(20)))
    async with app:
        await eventually(lambda: len(seen) == 20)
        await eventually(lambda: all(order() is None for order in seen))


# --- what is told of it -------------------------------------------------------------------------


@on_one
async def test_a_thread_may_ask_of_a_message_just_when_it_is_done(
    mq: Any, database: Database
) -> None:
    app = new_app(database)
    go_on = asyncio.Event()

    @app.subscriber("t", group="g")
    async def handle(_: int) -> None:
        await go_on.wait()

    await put(mq, "topic", "t", 1)
    async with app:
        assert app._runtime is not None
        (crew,) = app._runtime._crews
        await eventually(lambda: len(crew._running) == 1)
        (told,) = crew.running()
        assert (told.id, told.key) == ((await mq.read("t"))[0].id, "k0")
        assert told.source_type == "topic"
        seen = crew._running.copy()  # as by a thread that is about to tell of them
        go_on.set()
        await eventually(lambda: crew.handled == 1)
        crew._running = seen
        (told,) = crew.running()
        assert (told.id, told.key) == ("1", "k0")
