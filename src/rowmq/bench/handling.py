"""RowMQ handles messages and jobs through the runtime that workers have: an app with handlers."""

import asyncio
import contextlib
from collections.abc import Callable
from contextlib import AsyncExitStack
from time import monotonic
from typing import Any

from rowmq import App
from rowmq.bench.counting import Latencies, Statements, Tally
from rowmq.bench.playing import Spec, Stage, cpu_seconds, end, resident_bytes
from rowmq.bench.sending import QUEUE, TOPIC
from rowmq.worker.collecting import collector_at_ease

__all__ = ["churn", "consume", "idle", "latency"]

CONCURRENCY_MIN, CONCURRENCY_MAX = 10, 100
"""The default, and more than which does nothing for handlers that never wait."""

GATHER_SECONDS = {"queue": 0.5, "topic": 2.5}
"""How long workers take to be all there: subscribers share partitions out, which takes rounds."""

WARM_QUEUE, WARM_TIMES = "warm", 6
"""Where workers that gather claim before their time runs, and how often: after the fifth time,
PostgreSQL keeps the plan of a statement, for each connection.
"""

WARM_SECONDS = 60.0

POOL_SIZE = 10
"""As it is by default; where there are many apps, each has one connection."""

OVERFETCH = {"queue": 2.0, "topic": 1.0}
"""The quickest for handlers that do nothing. What waits for long has left the caches."""

LOOK_SECONDS = 0.002
TOP_UP = 1_000
"""How many jobs are put at a time where a backlog is kept."""

STARTED_SECONDS = 1.0
"""How long an idle worker is left to calm down before it is looked at."""


def new_app(spec: Spec, handle: Callable[..., Any]) -> App:
    """An app as somebody sets it up who wants many small things done quickly."""
    app = App(spec.url, notify=spec.notify, pool_size=pool_size_of(spec))
    pace: dict[str, Any] = {
        "concurrency": concurrency_of(spec),
        "fetch_batch_size": spec.batch,
        "overfetch_factor": OVERFETCH[spec.source],
    }
    if spec.source == "queue":
        app.worker(QUEUE, name="bench", **pace)(handle)
    else:
        for number in range(spec.groups):
            name = f"group-{number}"
            app.subscriber(TOPIC, group=name, name=name, **pace)(handle)
    return app


def concurrency_of(spec: Spec) -> int:
    return min(max(spec.batch, CONCURRENCY_MIN), CONCURRENCY_MAX)


def handler_of(spec: Spec, tally: Tally) -> Callable[..., Any]:
    """A handler that does nothing but count."""

    async def handle(_: bytes) -> None:
        tally.note()

    def handle_in_thread(_: bytes) -> None:
        tally.note_in_thread()

    return handle if spec.handler == "async" else handle_in_thread


async def consume(spec: Spec, stage: Stage) -> None:
    """Handle so many, or all there are."""
    tally = Tally(spec.messages * spec.groups)
    apps = [new_app(spec, handler_of(spec, tally)) for _ in range(spec.workers)]
    seen = Statements()
    async with AsyncExitStack() as stack:

        async def start() -> None:
            for app in apps:
                await stack.enter_async_context(app)
                seen.watch(app.mq)
            handlers = [handler for app in apps for handler in app.handlers]
            stack.enter_context(collector_at_ease(handlers))  # as `app.run()` has it

        if spec.gather:
            await start()
            if spec.source == "queue":
                await asyncio.gather(*map(warm_up, apps))
            await asyncio.sleep(GATHER_SECONDS[spec.source])
        seen.forget()
        stage.ready(**settings_of(spec))
        began = await stage.wait_async()
        if not spec.gather:
            await start()
        await tally.settle_down(spec.idle)
        busy = resident_bytes()
    stage.done(
        count=tally.count,
        began=tally.first or began,
        ended=tally.last or began,
        rss_bytes=busy,
        **seen.figures(),
    )


async def warm_up(app: App) -> None:
    """Have the connection of a worker done what it will do. Where there are hundreds of them, their
    first statements would be most of what is measured.
    """
    queue = app.mq.queue(WARM_QUEUE)
    for _ in range(WARM_TIMES):
        await queue.put(b"")
        job = await queue.poll(timeout=WARM_SECONDS)
        if job is None:
            raise TimeoutError("there was no job to warm up with")
        await job.ack()


def settings_of(spec: Spec) -> dict[str, Any]:
    return {
        "fetch_batch_size": spec.batch,
        "concurrency": concurrency_of(spec),
        "overfetch_factor": OVERFETCH[spec.source],
        "pool_size": pool_size_of(spec),
        "workers": spec.workers,
        "handler": spec.handler,
    }


def pool_size_of(spec: Spec) -> int:
    return 1 if spec.workers > 1 else POOL_SIZE


async def churn(spec: Spec, stage: Stage) -> None:
    """Put and handle for a while, with about as many jobs waiting all the time."""
    tally = Tally(0)
    app = new_app(spec, handler_of(spec, tally))
    stage.ready(batch=spec.batch, concurrency=concurrency_of(spec), backlog=spec.backlog)
    began = await stage.wait_async()
    marks: list[int] = []
    async with app:
        with collector_at_ease(app.handlers):
            putting = asyncio.create_task(top_up(app, spec, tally))
            for number in range(round(spec.seconds / spec.window)):
                await asyncio.sleep(max(0.0, began + (number + 1) * spec.window - monotonic()))
                marks.append(tally.count)
        await end([putting])
        ended = monotonic()
    windows = [(b - a) / spec.window for a, b in zip([0, *marks], marks, strict=False)]
    stage.done(count=marks[-1], began=began, ended=ended, windows=windows)


async def top_up(app: App, spec: Spec, tally: Tally) -> None:
    """Put as many as were handled."""
    queue = app.mq.queue(QUEUE)
    payloads = [b"x" * spec.payload_bytes] * TOP_UP
    put = 0
    while True:
        if put < tally.count:
            await queue.put_many(payloads)
            put += TOP_UP
        else:
            await asyncio.sleep(LOOK_SECONDS)


async def latency(spec: Spec, stage: Stage) -> None:
    """Handle what another process sends at a rate, and see how long each was under way."""
    latencies = Latencies(round(spec.rate * spec.seconds))

    async def handle(payload: dict[str, Any]) -> None:
        if payload["sent"]:
            latencies.note(payload["sent"])

    app = new_app(spec, handle)
    async with app:
        stage.ready(notify=spec.notify, rate=spec.rate)
        began = await stage.wait_async()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(latencies.enough.wait(), spec.seconds + spec.idle)
    stage.done(count=latencies.count, began=began, ended=monotonic(), **latencies.figures())


async def idle(spec: Spec, stage: Stage) -> None:
    """Have nothing to do, and see what that takes."""

    async def handle(_: bytes) -> None:
        return

    app = new_app(spec, handle)
    async with app:
        await asyncio.sleep(STARTED_SECONDS)
        seen = Statements(app.mq)
        stage.ready(handlers=1)
        began = await stage.wait_async()
        cpu = cpu_seconds()
        seen.forget()
        await asyncio.sleep(spec.seconds)
        ended = monotonic()
        stage.done(
            count=0,
            began=began,
            ended=ended,
            rss_bytes=resident_bytes(),
            idle_statements=seen.count / (ended - began),
            idle_cpu_ms=1_000 * (cpu_seconds() - cpu) / (ended - began),
        )
