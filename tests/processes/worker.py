"""A subscriber in a process of its own, which writes down what it does.

    python -m tests.processes.worker sync|async URL RECORD '{"strict": true, ...}'

With `"freezes": true` it rejects what it is given, and stops, as by SIGSTOP, in the middle of the
transaction that does so.

A line of the record says when, what, and of which delivery. What is about to be settled is written
down before, and what came of it after: so nothing is settled unseen, even by one who is killed.
"""

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import rowmq
from rowmq.errors import StaleLease
from rowmq.store.statement import Statement

__all__ = ["GROUP", "TOPIC", "Event", "parse"]

TOPIC, GROUP = "orders", "billing"

BATCH = 5
HANDLING_SECONDS = 0.01


class Event(NamedTuple):
    """What a worker did, when by the machine's monotonic clock, which all processes share."""

    at: int
    act: str
    key: str = ""
    offset: int = 0
    attempt: int = 0


def parse(line: bytes) -> Event:
    return Event(*json.loads(line))


class Record:
    """A file that events are appended to. Many go into one write: they are there all or none."""

    def __init__(self, path: str) -> None:
        self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, act: str, deliveries: Iterable[Any] | None = None) -> None:
        now = time.monotonic_ns()
        if deliveries is None:
            events = [Event(now, act)]
        else:
            events = [
                Event(now, act, d.message.key, d.message.offset, d.attempt) for d in deliveries
            ]
        lines = "".join(json.dumps(event) + "\n" for event in events)
        os.write(self.file, lines.encode())

    def lost(self, deliveries: Sequence[Any]) -> None:
        self.write("lost", deliveries)

    def settled(self, deliveries: Sequence[Any]) -> None:
        """What came of an ack of many."""
        self.write("acked", [d for d in deliveries if d.settled])
        self.write("stale", [d for d in deliveries if not d.settled])


class Worker:
    """What both kinds of workers have."""

    def __init__(self, url: str, record: Record, options: dict[str, Any]) -> None:
        self.url = url
        self.record = record
        self.freezes = options.pop("freezes", False)
        self.strict = options["strict"]
        self.options = options | {"batch_size": BATCH, "on_lost": record.lost}
        self.stopping = False

    def stop(self) -> None:
        self.stopping = True

    def prepare(self, mq: Any) -> None:
        if self.freezes:
            mq._driver.observers.append(freeze)


def freeze(statement: Statement) -> None:
    """Stop where a lease's row is written, and a dead letter is yet to be."""
    if statement.name.startswith("letters."):
        os.kill(os.getpid(), signal.SIGSTOP)


class SyncWorker(Worker):
    def run(self) -> None:
        signal.signal(signal.SIGTERM, lambda *_: self.stop())
        with (
            rowmq.connect(self.url, pool_size=3) as mq,
            mq.subscribe(TOPIC, group=GROUP, **self.options) as sub,
        ):
            self.prepare(mq)
            self.record.write("ready")
            while not self.stopping:
                deliveries = sub.poll(timeout=0.2)
                self.record.write("got", deliveries)
                if deliveries:
                    time.sleep(HANDLING_SECONDS)
                    self.settle(sub, deliveries)

    def settle(self, sub: Any, deliveries: list[Any]) -> None:
        if self.freezes:
            deliveries[0].reject()
        for part in [[d] for d in deliveries] if self.strict else [deliveries]:
            self.record.write("begin", part)
            with contextlib.suppress(StaleLease):
                part[0].ack() if self.strict else sub.ack(part)
            self.record.settled(part)


class AsyncWorker(Worker):
    def run(self) -> None:
        asyncio.run(self.work())

    async def work(self) -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.stop)
        mq = await rowmq.connect_async(self.url, pool_size=3)
        async with mq, mq.subscribe(TOPIC, group=GROUP, **self.options) as sub:
            self.prepare(mq)
            self.record.write("ready")
            while not self.stopping:
                deliveries = await sub.poll(timeout=0.2)
                self.record.write("got", deliveries)
                if deliveries:
                    await asyncio.sleep(HANDLING_SECONDS)
                    await self.settle(sub, deliveries)

    async def settle(self, sub: Any, deliveries: list[Any]) -> None:
        if self.freezes:
            await deliveries[0].reject()
        if self.strict:
            await asyncio.gather(*(self.ack(delivery) for delivery in deliveries))
            return
        self.record.write("begin", deliveries)
        with contextlib.suppress(StaleLease):
            await sub.ack(deliveries)
        self.record.settled(deliveries)

    async def ack(self, delivery: Any) -> None:
        self.record.write("begin", [delivery])
        with contextlib.suppress(StaleLease):
            await delivery.ack()
        self.record.settled([delivery])


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    flavour, url, path, options = sys.argv[1:]
    kind = SyncWorker if flavour == "sync" else AsyncWorker
    kind(url, Record(path), json.loads(options)).run()


if __name__ == "__main__":
    main()
