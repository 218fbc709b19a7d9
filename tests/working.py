"""Apps in tests: handlers of every kind, and what became of what they were given."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

import rowmq
from rowmq import App
from tests.consuming import eventually
from tests.databases import Database

LATER = rowmq.Constant(interval=600)
"""What failed waits for so long that nothing happens to it any more."""

AT_ONCE = rowmq.Constant(interval=0)

STYLES = ["sync", "async"]
SOURCES = ["queue", "topic"]

on_one = pytest.mark.parametrize("database", ["sqlite"], indirect=True)
"""For what a worker does by itself: a database is needed, and which one does not matter."""

on_two = pytest.mark.parametrize("database", ["sqlite", "postgres"], indirect=True)
"""For what the file and a server may do differently, but hardly one server and another."""


def new_app(database: Database, **options: Any) -> App:
    """An app that does no chores."""
    return App(database.url, **({"maintenance_interval": 0, "graceful_timeout": 10} | options))


def attach(app: App, source: str, name: str, function: Callable[..., Any], **options: Any) -> None:
    """Have a function handle the queue, or the topic for group g, of that name."""
    if source == "queue":
        app.worker(name, name=name, **options)(function)
    else:
        app.subscriber(name, group="g", name=name, **options)(function)


async def put(mq: Any, source: str, name: str, *payloads: Any) -> None:
    """Something to do. Messages have keys of their own, and so do not wait for each other."""
    if source == "queue":
        await mq.queue(name).put_many(payloads)
    else:
        messages = [rowmq.Message(payload=p, key=f"k{n}") for n, p in enumerate(payloads)]
        await mq.publish_many(name, messages)


async def outcome(mq: Any, source: str, name: str) -> str:
    """What became of the only job or message there is: done, dead, waiting, or at work."""
    if source == "queue":
        counts = await mq.queue(name).counts()
        states = [state for state, count in counts.items() if count]
        if len(states) != 1:  # it was settled while it was looked for
            return "at work"
        names = {"completed": "done", "failed": "dead", "processing": "at work"}
        return names.get(states[0], "waiting")
    rows = await mq.lag(name, "g")
    if any(row.in_flight for row in rows):
        return "at work"
    if any(row.lag for row in rows):
        return "waiting"
    return "dead" if await mq.dead_letters(name) else "done"


async def errors_of(mq: Any, source: str, name: str) -> list[str | None]:
    """Why jobs failed, or messages went to the dead letters."""
    if source == "queue":
        return [job.error for job in await mq.queue(name).archive(state="failed")]
    return [letter.error for letter in await mq.dead_letters(name)]


async def left(mq: Any, source: str, name: str) -> int:
    """How many are not done with."""
    if source == "queue":
        counts = await mq.queue(name).counts()
        return int(counts["pending"] + counts["processing"] + counts["retryable"])
    return sum(row.lag for row in await mq.lag(name, "g"))


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
