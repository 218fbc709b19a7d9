"""A worker's life: how it starts and stops, what is around its handlers, how it is seen."""

import asyncio
import threading
import time
from datetime import timedelta
from typing import Any

import pytest

import rowmq
from rowmq import App, Message, errors
from rowmq.errors import ConfigurationError
from tests.choices import async_only, on_servers
from tests.conftest import Connect
from tests.consuming import eventually
from tests.databases import Database
from tests.flavours import in_thread
from tests.working import AT_ONCE, LATER, SOURCES, attach, left, new_app, on_one, on_two, put

pytestmark = async_only


def threads_left() -> list[str]:
    """Threads of a worker, and of its client."""
    names = ("rowmq-keeper", "rowmq-heart", "rowmq-watch", "rowmq-tend", "rowmq-cron")
    return [t.name for t in threading.enumerate() if t.name.startswith(names)]


async def nothing_is_left(mq: Any, database: Database) -> None:
    assert await mq.workers() == []
    assert database.execute("SELECT COUNT(*) FROM rowmq_subscribers") == [(0,)]
    assert database.execute("SELECT COUNT(*) FROM rowmq_locks") == [(0,)]
    await eventually(lambda: not threads_left())
    tasks = [task.get_name() for task in asyncio.all_tasks()]
    assert [name for name in tasks if name.startswith("rowmq-")] == []


def simple(app: App, done: list[int]) -> None:
    """A handler of a queue and one of a topic."""

    @app.worker("q")
    async def job(number: int) -> None:
        done.append(number)

    @app.subscriber("t", group="g")
    def message(number: int) -> None:
        done.append(number)


# --- inside another program ---------------------------------------------------------------------


async def test_it_runs_inside_another_program_and_leaves_nothing(
    mq: Any, database: Database
) -> None:
    app, done = new_app(database), list[int]()
    simple(app, done)
    for turn in (1, 2):
        async with app as entered:
            assert entered is app
            await app.mq.queue("q").put(turn)
            await app.mq.publish("t", 10 * turn)
            await eventually(lambda: len(done) == 2 * turn)  # noqa: B023 - it is waited for here
            (info,) = await eventually(mq.workers)
            assert info.alive
        await nothing_is_left(mq, database)
    assert sorted(done) == [1, 2, 10, 20]
    with pytest.raises(errors.Closed):
        _ = app.mq


@on_one
async def test_an_error_of_the_program_stops_it_gracefully(mq: Any, database: Database) -> None:
    app, ended = new_app(database), list[int]()
    begun = asyncio.Event()

    @app.worker("q", concurrency=1)
    async def slow(number: int) -> None:
        begun.set()
        await asyncio.sleep(0.2)
        ended.append(number)

    await put(mq, "queue", "q", 1, 2)
    with pytest.raises(ZeroDivisionError):
        async with app:
            await begun.wait()
            raise ZeroDivisionError
    assert ended == [1]
    assert await left(mq, "queue", "q") == 1
    await nothing_is_left(mq, database)


@on_one
async def test_a_program_that_is_cancelled_stops_it_gracefully(mq: Any, database: Database) -> None:
    app, ended = new_app(database), list[int]()
    begun = asyncio.Event()

    @app.worker("q", concurrency=1)
    async def slow(number: int) -> None:
        begun.set()
        await asyncio.sleep(0.2)
        ended.append(number)

    async def program() -> None:
        async with app:
            await asyncio.sleep(60)

    await put(mq, "queue", "q", 1, 2)
    running = asyncio.create_task(program())
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert ended == [1]
    await nothing_is_left(mq, database)


@on_one
async def test_a_program_that_is_cancelled_twice_stops_it_all_the_same(
    mq: Any, database: Database
) -> None:
    app = new_app(database)
    begun, go_on = asyncio.Event(), asyncio.Event()

    @app.worker("q")
    async def slow(_number: int) -> None:
        begun.set()
        await go_on.wait()

    async def program() -> None:
        async with app:
            await asyncio.sleep(60)

    await put(mq, "queue", "q", 1)
    running = asyncio.create_task(program())
    await begun.wait()
    running.cancel()
    await eventually(lambda: app.health()["status"] == "stopping")
    running.cancel()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert app.health()["status"] == "stopped"
    assert await left(mq, "queue", "q") == 0
    await nothing_is_left(mq, database)


@on_one
async def test_one_that_is_cancelled_while_it_starts_leaves_nothing(
    mq: Any, database: Database
) -> None:
    app, started = new_app(database), asyncio.Event()
    simple(app, [])

    @app.on_startup
    async def slow() -> None:
        started.set()
        await asyncio.sleep(60)

    async def program() -> None:
        async with app:
            pass

    running = asyncio.create_task(program())
    await started.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await nothing_is_left(mq, database)
    assert app.health()["status"] == "stopped"


@on_one
async def test_several_apps_can_run_at_the_same_time(mq: Any, database: Database) -> None:
    done: list[int] = []
    apps = [new_app(database, name=f"app{n}") for n in range(3)]
    for app in apps:
        simple(app, done)
    await put(mq, "queue", "q", *range(50))
    await put(mq, "topic", "t", *range(50))
    async with apps[0], apps[1], apps[2]:
        await eventually(lambda: len(done) == 100)
        infos = await eventually(lambda: three(mq))
        assert sorted(info.app for info in infos) == ["app0", "app1", "app2"]
    assert sorted(done) == sorted([*range(50), *range(50)])
    await nothing_is_left(mq, database)


async def three(mq: Any) -> Any:
    found = await mq.workers()
    return found if len(found) == 3 else None


# --- run and stop -------------------------------------------------------------------------------


@on_two
@pytest.mark.parametrize("who", ["async handler", "sync handler", "another thread"])
async def test_stop_brings_run_to_its_end(mq: Any, database: Database, who: str) -> None:
    app = new_app(database)
    done = threading.Event()

    @app.worker("async")
    async def from_task(_number: int) -> None:
        done.set()
        if who == "async handler":
            app.stop()

    @app.worker("sync")
    def from_thread(_number: int) -> None:
        done.set()
        if who == "sync handler":
            app.stop()

    await put(mq, "queue", "sync" if who == "sync handler" else "async", 1)
    running = asyncio.create_task(in_thread(app.run))
    await eventually(done.is_set)
    if who == "another thread":
        app.stop()
    assert await running is True
    app.stop()  # which has ended
    await nothing_is_left(mq, database)


@on_one
async def test_run_says_whether_work_was_left(mq: Any, database: Database) -> None:
    app = new_app(database, graceful_timeout=0.2)
    begun = threading.Event()

    @app.worker("q", retry=AT_ONCE)
    async def slow(_number: int, _context: rowmq.Context) -> None:
        begun.set()
        await asyncio.sleep(60)

    await put(mq, "queue", "q", 1)
    running = asyncio.create_task(in_thread(app.run))
    await eventually(begun.is_set)
    app.stop()
    assert await running is False
    assert await left(mq, "queue", "q") == 1
    await nothing_is_left(mq, database)


@on_one
async def test_a_handler_can_see_that_it_is_to_stop(mq: Any, database: Database) -> None:
    app = new_app(database)
    begun, ended = threading.Event(), threading.Event()

    @app.worker("q")
    def long(_number: int, context: rowmq.Context) -> None:
        begun.set()
        while not context.stopping:
            time.sleep(0.005)
        ended.set()

    await put(mq, "queue", "q", 1)
    async with app:
        await eventually(begun.is_set)
        assert not ended.is_set()
    assert ended.is_set()
    assert await left(mq, "queue", "q") == 0


@on_one
@pytest.mark.parametrize("source", SOURCES)
async def test_what_was_cut_short_by_a_stop_is_not_given_up_for_that(
    mq: Any, database: Database, source: str
) -> None:
    """Whatever its policy says of errors: it did not fail, its worker was stopped."""
    for policy in (rowmq.AckPolicy.REJECT_ON_ERROR, rowmq.AckPolicy.MANUAL, rowmq.AckPolicy.ACK):
        app = new_app(database, graceful_timeout=0.05)
        begun = asyncio.Event()
        name = f"{source}.{policy.value}"

        async def slow(_number: int, begun: asyncio.Event = begun) -> None:
            begun.set()
            await asyncio.sleep(60)

        attach(app, source, name, slow, ack_policy=policy)
        await put(mq, source, name, 1)
        async with app:
            await begun.wait()
        assert await left(mq, source, name) == 1, policy


@on_one
async def test_a_handler_that_will_not_be_cancelled_does_not_keep_the_worker(
    mq: Any, database: Database
) -> None:
    app = new_app(database, graceful_timeout=0.1)
    begun, over = asyncio.Event(), asyncio.Event()

    @app.worker("q")
    async def stubborn(_number: int) -> None:
        begun.set()
        while not over.is_set():
            try:
                await over.wait()
            except asyncio.CancelledError:
                continue

    await put(mq, "queue", "q", 1)
    async with app:
        await begun.wait()
        began = time.monotonic()
    assert time.monotonic() - began < 8
    over.set()


@on_two
async def test_what_was_fetched_ahead_is_given_back_at_once(mq: Any, database: Database) -> None:
    """Not only when the last handler has come to its end."""
    app, other = new_app(database), new_app(database)
    begun, go_on = asyncio.Event(), asyncio.Event()
    done: list[int] = []

    @app.worker("q", concurrency=1, fetch_batch_size=20, flush_interval=30)
    async def slow(_number: int) -> None:
        begun.set()
        await go_on.wait()

    @other.worker("q")
    async def quick(number: int, job: rowmq.Job[int]) -> None:
        assert job.deliveries == 1
        done.append(number)

    await put(mq, "queue", "q", *range(10))
    await app.__aenter__()
    await begun.wait()
    await eventually(lambda: processing(mq, 10))
    stopping = asyncio.create_task(app.__aexit__(None, None, None))
    async with other:
        await eventually(lambda: len(done) == 9)
        assert not stopping.done()
        go_on.set()
        await stopping
    assert sorted(done) == list(range(1, 10))


async def processing(mq: Any, count: int) -> bool:
    return bool((await mq.queue("q").counts())["processing"] == count)


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
async def test_one_app_can_run_in_one_loop_after_another(mq: Any, database: Database) -> None:
    app, done = new_app(database), list[int]()
    simple(app, done)

    async def once(number: int) -> None:
        async with app:
            await app.mq.queue("q").put(number)
            await eventually(lambda: number in done)

    await asyncio.to_thread(lambda: asyncio.run(once(1)))
    await asyncio.to_thread(lambda: asyncio.run(once(2)))
    async with app:
        with pytest.raises(ConfigurationError, match="running"):
            await asyncio.to_thread(lambda: asyncio.run(once(3)))
    assert done == [1, 2]
    await nothing_is_left(mq, database)


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
