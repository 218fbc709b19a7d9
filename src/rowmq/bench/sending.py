"""RowMQ publishes messages and puts jobs, as many callers do at once."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import Any

import rowmq
from rowmq.bench.counting import Statements
from rowmq.bench.playing import Spec, Stage

__all__ = ["QUEUE", "TOPIC", "keys_of", "pace", "send", "sent"]

TOPIC = QUEUE = "bench"

TICK_SECONDS = 0.001
"""How often a pace is looked at: what is due since then is sent at once."""


def send(spec: Spec, stage: Stage) -> None:
    """Send messages one by one, or in batches, with the client that is asked for."""
    if spec.client == "sync":
        send_sync(spec, stage)
    else:
        asyncio.run(send_async(spec, stage))


def send_sync(spec: Spec, stage: Stage) -> None:
    with (
        rowmq.connect(spec.url, notify=spec.notify) as mq,
        ThreadPoolExecutor(spec.callers) as threads,
    ):
        seen = Statements(mq)
        calls = calls_of(mq, spec)
        list(threads.map(run_calls, [caller[:1] for caller in calls]))  # opens the connections
        stage.ready(client="sync", batch=spec.batch, threads=spec.callers)
        began = stage.wait()
        seen.forget()
        list(threads.map(run_calls, calls))
        stage.done(count=counted(calls, spec), began=began, ended=monotonic(), **seen.figures())


def run_calls(calls: Sequence[Callable[[], Any]]) -> None:
    for call in calls:
        call()


async def send_async(spec: Spec, stage: Stage) -> None:
    async with await rowmq.connect_async(spec.url, notify=spec.notify) as mq:
        seen = Statements(mq)
        calls = calls_of(mq, spec)
        await asyncio.gather(*(caller[0]() for caller in calls))  # opens the connections
        stage.ready(client="async", batch=spec.batch, tasks=spec.callers)
        began = await stage.wait_async()
        seen.forget()
        await asyncio.gather(*map(await_calls, calls))
        stage.done(count=counted(calls, spec), began=began, ended=monotonic(), **seen.figures())


async def await_calls(calls: Sequence[Callable[[], Awaitable[Any]]]) -> None:
    for call in calls:
        await call()


def counted(calls: Sequence[Sequence[Any]], spec: Spec) -> int:
    """How many messages all calls have sent."""
    return sum(map(len, calls)) * spec.batch


def keys_of(spec: Spec) -> list[str | None]:
    """The keys over which messages are spread."""
    return [f"key-{number}" for number in range(spec.partitions)] or [None]


def calls_of(mq: Any, spec: Spec) -> list[list[Callable[[], Any]]]:
    """For each caller what it calls, one after the other."""
    each = max(1, spec.messages // spec.callers // spec.batch)
    return [
        [call_of(mq, spec, caller + spec.callers * turn) for turn in range(each)]
        for caller in range(spec.callers)
    ]


def call_of(mq: Any, spec: Spec, number: int) -> Callable[[], Any]:
    """One call, by its number: keys take turns, within a batch and between calls."""
    payload = b"x" * spec.payload_bytes
    if spec.source == "queue":
        queue = mq.queue(QUEUE)
        if spec.batch == 1:
            return lambda: queue.put(payload)
        payloads = [payload] * spec.batch
        return lambda: queue.put_many(payloads)
    keys = keys_of(spec)
    if spec.batch == 1:
        key = keys[number % len(keys)]
        return lambda: mq.publish(TOPIC, payload, key=key)
    places = range(number * spec.batch, (number + 1) * spec.batch)
    messages = [rowmq.Message(payload=payload, key=keys[n % len(keys)]) for n in places]
    return lambda: mq.publish_many(TOPIC, messages)


async def pace(spec: Spec, stage: Stage) -> None:
    """Send single messages at a rate, each with the time at which it was sent."""
    total = round(spec.rate * spec.seconds)
    async with await rowmq.connect_async(spec.url, notify=spec.notify) as mq:
        await sent(mq, spec, 0.0)  # opens the connection; nobody is to note it
        stage.ready(rate=spec.rate)
        began = await stage.wait_async()
        under_way: set[asyncio.Task[Any]] = set()
        number = 0
        while number < total:
            due = min(total, int((monotonic() - began) * spec.rate) + 1)
            for place in range(number, due):
                # From when it was due: a sender that is late must not hide that.
                task = asyncio.create_task(sent(mq, spec, began + place / spec.rate))
                under_way.add(task)
                task.add_done_callback(under_way.discard)
            number = due
            await asyncio.sleep(max(TICK_SECONDS, began + number / spec.rate - monotonic()))
        await asyncio.gather(*under_way)
        stage.done(count=total, began=began, ended=monotonic())


async def sent(mq: rowmq.AsyncRowMQ, spec: Spec, when: float) -> None:
    """Send one message that says when it was sent."""
    payload = {"sent": when, "filler": "x" * max(0, spec.payload_bytes - 40)}
    if spec.source == "queue":
        await mq.queue(QUEUE).put(payload)
    else:
        await mq.publish(TOPIC, payload, key="key-0")
