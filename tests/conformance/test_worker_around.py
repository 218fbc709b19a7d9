"""Around handlers: hooks, middleware, what others see, which ones run, and the chores."""

import asyncio
import threading
from datetime import timedelta
from typing import Any

import pytest

import rowmq
from rowmq import Message, errors
from tests.choices import async_only, on_servers
from tests.conftest import Connect
from tests.consuming import eventually
from tests.databases import Database
from tests.flavours import in_thread
from tests.working import LATER, new_app, nothing_is_left, on_one, on_two, put, simple, threads_left

pytestmark = async_only


# --- hooks --------------------------------------------------------------------------------------


@on_one
async def test_hooks_are_called_around_everything(mq: Any, database: Database) -> None:
    app = new_app(database)
    told: list[str] = []
    loop_thread = threading.get_ident()

    @app.on_startup
    async def first() -> None:
        told.append("first")
        await app.mq.queue("q").put(1)

    @app.on_startup
    def second() -> None:
        assert threading.get_ident() != loop_thread
        told.append("second")

    @app.worker("q")
    async def handle(_number: int) -> None:
        told.append("handler")

    @app.on_shutdown
    async def third() -> None:
        told.append("third")
        await app.mq.queue("later").put(1)

    @app.on_shutdown
    def fourth() -> None:
        told.append("fourth")

    async with app:
        await eventually(lambda: "handler" in told)
    assert told == ["first", "second", "handler", "fourth", "third"]
    assert (await mq.queue("later").counts())["pending"] == 1


@on_two
async def test_a_start_that_fails_leaves_nothing_and_can_be_repeated(
    mq: Any, database: Database
) -> None:
    app, done = new_app(database), list[int]()
    simple(app, done)
    failures = [ValueError("not yet")]

    @app.on_startup
    async def fail() -> None:
        if failures:
            raise failures.pop()

    with pytest.raises(ValueError, match="not yet"):
        async with app:
            raise AssertionError("it has not started")
    await nothing_is_left(mq, database)
    await mq.queue("q").put(1)
    async with app:
        await eventually(lambda: done)


@on_one
async def test_a_hook_that_fails_at_the_end_keeps_nothing_from_ending(
    mq: Any, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    app, told = new_app(database), list[str]()
    simple(app, [])

    @app.on_shutdown
    async def fail() -> None:
        raise ValueError("no end")

    @app.on_shutdown
    def last() -> None:
        told.append("last")

    async with app:
        pass
    assert told == ["last"]
    assert "no end" in caplog.text
    await nothing_is_left(mq, database)


@on_servers
async def test_without_its_tables_it_does_not_start(
    connect: Connect, empty_database: Database
) -> None:
    await connect(empty_database.url)
    app = new_app(empty_database)
    simple(app, [])
    with pytest.raises(errors.SchemaError):
        async with app:
            raise AssertionError("it has not started")
    await eventually(lambda: not threads_left())


# --- middleware ---------------------------------------------------------------------------------


@pytest.mark.parametrize("style", ["sync", "async"])
@on_one
async def test_middleware_is_called_around_handlers_from_the_outside_in(
    mq: Any, database: Database, style: str
) -> None:
    app = new_app(database)
    told: list[str] = []

    @app.middleware
    async def outer(context: rowmq.Context, call_next: Any) -> Any:
        context.state["by"] = "outer"
        told.append(f"outer {context.handler} {context.source} {context.attempt} {context.payload}")
        result = await call_next()
        told.append(f"outer has {result}")
        return result

    @app.middleware
    async def inner(context: rowmq.Context, call_next: Any) -> Any:
        told.append(f"inner by {context.state['by']}")
        result = await call_next()
        context.state["result"] = result
        return result + 1

    def handle(number: int, context: rowmq.Context) -> int:
        told.append(f"handler by {context.state['by']}")
        return number

    async def handle_async(number: int, context: rowmq.Context) -> int:
        return handle(number, context)

    app.worker("q", name="h")(handle if style == "sync" else handle_async)
    await put(mq, "queue", "q", 5)
    async with app:
        await eventually(lambda: "outer has 6" in told)
    assert told == ["outer h q 1 5", "inner by outer", "handler by outer", "outer has 6"]


@on_one
async def test_an_error_in_middleware_is_one_of_the_handler(mq: Any, database: Database) -> None:
    app = new_app(database)
    seen: list[str] = []

    @app.middleware
    async def strange(context: rowmq.Context, call_next: Any) -> Any:
        if context.payload == "before":
            raise ValueError("before")
        try:
            await call_next()
        except KeyError:
            seen.append("forgiven")
        if context.payload == "after":
            raise ValueError("after")

    @app.worker("q", retry=rowmq.NoRetry(), concurrency=1)
    async def handle(payload: str) -> None:
        seen.append(payload)
        if payload == "forgiven":
            raise KeyError(payload)

    await put(mq, "queue", "q", "before", "after", "forgiven")
    async with app:
        await eventually(lambda: app.health()["handlers"][0]["handled"] == 3)
    assert seen == ["after", "forgiven", "forgiven"]
    jobs = await mq.queue("q").archive()
    assert {job.payload: job.error for job in jobs} == {
        "before": "ValueError: before",
        "after": "ValueError: after",
        "forgiven": None,
    }


@on_one
async def test_middleware_may_settle_and_leave_the_handler_out(mq: Any, database: Database) -> None:
    app = new_app(database)
    handled: list[int] = []

    @app.middleware
    async def choose(context: rowmq.Context, call_next: Any) -> Any:
        if context.payload % 2:
            assert context.delivery is not None
            await context.delivery.reject(error="odd")
            return None
        return await call_next()

    @app.subscriber("t", group="g")
    def handle(number: int) -> None:
        handled.append(number)

    await put(mq, "topic", "t", *range(6))
    async with app:
        await eventually(lambda: app.health()["handlers"][0]["handled"] == 6)
    assert sorted(handled) == [0, 2, 4]
    assert sorted(letter.message.payload for letter in await mq.dead_letters("t")) == [1, 3, 5]


# --- as others see it ---------------------------------------------------------------------------


async def test_workers_are_listed_with_what_they_do(mq: Any, database: Database) -> None:
    app = new_app(database, name="shop")
    go_on, begun = asyncio.Event(), list[int]()

    @app.worker("q", name="pack")
    async def handle(number: int, progress: rowmq.Progress) -> None:
        begun.append(number)
        progress.report(number / 10, f"box {number}")
        await go_on.wait()

    @app.subscriber("t", group="g", name="bill")
    async def idle(number: int) -> None: ...

    await mq.queue("q").put(2, key="order-2")
    async with app:
        await eventually(lambda: begun)

        async def reported() -> Any:
            found = await mq.workers()
            return found if found and found[0].running and found[0].running[0].progress else None

        (info,) = await eventually(reported)
        assert (info.app, info.handlers, info.alive) == ("shop", ("pack", "bill"), True)
        assert info.version == rowmq.__version__
        (running,) = info.running
        assert (running.handler, running.source, running.key) == ("pack", "q", "order-2")
        assert running.source_type == "queue"
        assert (running.progress, running.note, running.attempt) == (0.2, "box 2", 1)
        go_on.set()
    assert await mq.workers() == []


async def test_a_worker_that_died_is_listed_as_dead_and_later_forgotten(
    mq: Any, database: Database
) -> None:
    app = new_app(database, maintenance_interval=0.05)
    async with app:
        (info,) = await eventually(mq.workers)
        ghost = "INSERT INTO rowmq_workers SELECT {}, started_at, seen_at, {}, facts, running "
        recently = ghost.format("'ghost'", "seen_at - 60000000") + "FROM rowmq_workers"
        database.execute(recently)
        listed = {worker.name: worker.alive for worker in await mq.workers()}
        assert listed == {info.name: True, "ghost": False}
        day = timedelta(days=1) // timedelta(microseconds=1)
        database.execute(
            f"UPDATE rowmq_workers SET expires_at = expires_at - {day} WHERE name = 'ghost'"
        )
        await eventually(lambda: only(mq, info.name))


async def only(mq: Any, name: str) -> bool:
    return [worker.name for worker in await mq.workers()] == [name]


@on_one
async def test_health_tells_figures(mq: Any, database: Database) -> None:
    app = new_app(database, name="shop")
    go_on, begun = asyncio.Event(), list[int]()

    @app.worker("q", concurrency=2, fetch_batch_size=4, retry=LATER)
    async def handle(number: int) -> None:
        begun.append(number)
        await go_on.wait()
        if number == 0:
            raise ValueError("no")

    assert (app.health()["healthy"], app.health()["status"]) == (False, "stopped")
    await put(mq, "queue", "q", *range(5))
    async with app:
        await eventually(lambda: len(begun) == 2)
        await eventually(lambda: app.health()["handlers"][0]["waiting"] == 3)
        health = app.health()
        assert (health["healthy"], health["status"], health["app"]) == (True, "running", "shop")
        (figures,) = health["handlers"]
        assert (figures["running"], figures["handled"], figures["failed"]) == (2, 0, 0)
        go_on.set()
        await eventually(lambda: app.health()["handlers"][0]["handled"] == 5)
        (figures,) = app.health()["handlers"]
        assert (figures["running"], figures["failed"]) == (0, 1)
        await eventually(lambda: app.health()["handlers"][0]["unsettled"] == 0)


# --- choosing -----------------------------------------------------------------------------------


@on_one
async def test_only_the_chosen_handlers_run(mq: Any, database: Database) -> None:
    app, done = new_app(database), list[str]()

    def handler_of(name: str) -> Any:
        def handle(_number: int) -> None:
            done.append(name)

        return handle

    for name in ("a", "b"):
        app.worker(name, name=f"job {name}")(handler_of(f"job {name}"))
        app.subscriber(name, group="g", name=f"message {name}")(handler_of(f"message {name}"))
        await mq.queue(name).put(1)
        await mq.publish(name, 1)
    running = asyncio.create_task(in_thread(app.run, queues=["a"], topics=["b"]))
    await eventually(lambda: len(done) == 2)
    app.stop()
    assert await running
    assert sorted(done) == ["job a", "message b"]
    assert (await mq.queue("b").counts())["pending"] == 1


# --- chores -------------------------------------------------------------------------------------


async def test_topics_are_collected_and_archives_pruned(mq: Any, database: Database) -> None:
    """By several workers at once, who do not get into each other's way."""
    done: list[int] = []
    apps = [new_app(database, maintenance_interval=0.1) for _ in range(2)]
    for app in apps:
        simple(app, done)
    await mq.queue("q").configure(retention=0.001)
    await put(mq, "queue", "q", *range(30))
    await put(mq, "topic", "t", *range(30))
    async with apps[0], apps[1]:
        await eventually(lambda: len(done) == 60)
        await eventually(lambda: tidy(mq))
        assert all(app.health()["healthy"] for app in apps)


async def tidy(mq: Any) -> bool:
    counts = await mq.queue("q").counts()
    return not counts["completed"] and not await mq.read("t")


@on_one
async def test_without_an_interval_nothing_is_collected(mq: Any, database: Database) -> None:
    app, done = new_app(database, maintenance_interval=0), list[int]()
    simple(app, done)
    await mq.queue("q").configure(retention=0.001)
    await put(mq, "queue", "q", 1)
    async with app:
        await eventually(lambda: done)
        assert "rowmq-maintenance" not in {task.get_name() for task in asyncio.all_tasks()}


@on_one
async def test_messages_published_by_a_handler_are_handled(mq: Any, database: Database) -> None:
    app, done = new_app(database), list[int]()

    @app.subscriber("t", group="g")
    async def count_down(number: int, mq: rowmq.AsyncRowMQ) -> None:
        done.append(number)
        if number:
            await mq.publish("t", number - 1)

    async with app:
        await mq.publish_many("t", [Message(payload=10)])
        await eventually(lambda: done and done[-1] == 0)
    assert done == list(range(10, -1, -1))
