"""Consuming in tests: subscribers that look around often, and what they are given."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rowmq import Message
from rowmq.store.statement import Statement
from tests.databases import Database, Rows


def subscribe(mq: Any, topic: str = "t", group: str = "g", **options: Any) -> Any:
    """A subscriber that looks around often."""
    return mq.subscribe(topic, group=group, **({"discovery_interval": 0.05} | options))


async def publish(mq: Any, count: int, key: str | None = "k", topic: str = "t") -> None:
    """Messages 1, 2, 3 ... of one key, whose payloads are their offsets."""
    await mq.publish_many(topic, [Message(payload=n, key=key) for n in range(1, count + 1)])


async def acked(mq: Any, group: str = "g", topic: str = "t") -> int:
    """Where the watermark of the only partition is."""
    (row,) = await mq.lag(topic, group)
    return int(row.offset_acked)


async def lag(mq: Any, group: str = "g", topic: str = "t") -> int:
    return sum(row.lag for row in await mq.lag(topic, group))


def stored(database: Database) -> dict[str, Rows]:
    """All that the database knows of groups' places, deliveries and dead letters."""
    tables = ("offsets", "delivery_state", "dead_letters", "messages")
    return {
        table: sorted(database.execute(f"SELECT * FROM rowmq_{table}"), key=repr)
        for table in tables
    }


async def eventually(condition: Callable[[], Any | Awaitable[Any]], seconds: float = 30.0) -> Any:
    """Wait until a condition holds, and give what it gave."""
    deadline = time.monotonic() + seconds
    while True:
        began = time.monotonic()
        value = condition()
        if inspect.isawaitable(value):
            value = await value
        if value or time.monotonic() > deadline:
            assert value, "it did not come to that in time"
            return value
        await asyncio.sleep(pause(began))


def pause(began: float) -> float:
    """How long to wait before a look that began then is taken again: most of the time is left to
    those who are waited for.
    """
    took = time.monotonic() - began
    return min(max(0.005, 3 * took), 0.1)


async def take(sub: Any, count: int, seconds: float = 30.0) -> list[Any]:
    """So many deliveries, in the order in which they come."""
    deadline = time.monotonic() + seconds
    taken: list[Any] = []
    while len(taken) < count and time.monotonic() < deadline:
        taken += await sub.poll(max=count - len(taken), timeout=0.5)
    assert len(taken) == count, [d.message.payload for d in taken]
    return taken


async def nothing_comes(sub: Any) -> bool:
    """Whether there is nothing to deliver: a look finds all there is in the owned partitions."""
    return not await sub.poll(timeout=0.03)


@contextmanager
def statements(mq: Any, *, seconds: float = 0) -> Iterator[list[Statement]]:
    """The statements that a client runs meanwhile; each takes so many seconds more, in which others
    come.
    """
    seen: list[Statement] = []

    def see(statement: Statement) -> None:
        seen.append(statement)
        time.sleep(seconds)

    observers = mq._driver.observers
    observers.append(see)
    try:
        yield seen
    finally:
        observers.remove(see)


def payloads(deliveries: list[Any]) -> list[Any]:
    return [d.message.payload for d in deliveries]


def attempts(deliveries: list[Any]) -> list[int]:
    return [d.attempt for d in deliveries]
