"""A worker's life: how it starts and stops, what is around its handlers, how it is seen."""

import asyncio
import threading
import time
from typing import Any

import pytest

import rowmq
from rowmq import errors
from rowmq.errors import ConfigurationError
from tests.choices import async_only
from tests.consuming import eventually
from tests.databases import Database
from tests.flavours import in_thread
from tests.working import (
    AT_ONCE,
    SOURCES,
    attach,
    left,
    new_app,
    nothing_is_left,
    on_one,
    on_two,
    put,
    simple,
)

pytestmark = async_only


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
