"""An app in a process of its own, which writes down what its handlers do.

    python -m tests.processes.app URL RECORD '{"graceful_timeout": 5, "handlers": [{...}, ...]}'

A handler is `{"source": "queue" | "topic", "name": ..., "style": "sync" | "async", "does": ...,
"seconds": ..., "options": {...}}`. What it does is one of:

    nap       sleeps, as handlers of its style do
    block     sleeps in the event loop, although it is async
    to_thread sleeps in a thread of asyncio's
    die       ends the process, in the middle
    write     inserts what it was given into own_effects, in its transaction, and naps
    progress  says that half is done, and naps

A line of the record says what, which handler, which payload, and what is known of the delivery.
That something begins is written down before anything is done, and that it has ended at last.
"""

import asyncio
import json
import logging
import os
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import rowmq
from rowmq import AckPolicy

__all__ = ["GROUP", "Act", "parse"]

GROUP = "g"


class Act(NamedTuple):
    """What was done, when by the machine's monotonic clock, which all processes share."""

    at: int
    what: str
    handler: str = ""
    payload: int = 0
    attempt: int = 0
    deliveries: int = 0


def parse(line: bytes) -> Act:
    return Act(*json.loads(line))


class Record:
    """A file that lines are appended to, each in one write."""

    def __init__(self, path: str) -> None:
        self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, what: str, context: "rowmq.Context | None" = None) -> None:
        line: tuple[Any, ...] = (time.monotonic_ns(), what)
        if context is not None:
            deliveries = 0 if context.job is None else context.job.deliveries
            line += (context.handler, context.payload, context.attempt, deliveries)
        os.write(self.file, json.dumps(line).encode() + b"\n")


class Doing:
    """What one handler does."""

    def __init__(self, record: Record, does: str, seconds: float) -> None:
        self.record = record
        self.does = does
        self.seconds = seconds

    def start(self, context: rowmq.Context) -> None:
        self.record.write("begin", context)
        if self.does == "die":
            os._exit(9)
        if self.does == "progress":
            context.progress.report(0.5, "half way")

    def sync(self) -> Callable[..., None]:
        def handle(_payload: Any, context: rowmq.Context) -> None:
            self.start(context)
            time.sleep(self.seconds)
            self.record.write("end", context)

        def write(payload: int, context: rowmq.Context, tx: rowmq.Transaction) -> None:
            self.start(context)
            tx.execute("INSERT INTO own_effects VALUES (?)", [payload])
            time.sleep(self.seconds)
            self.record.write("end", context)

        return write if self.does == "write" else handle

    def tasks(self) -> Callable[..., Any]:
        async def handle(_payload: Any, context: rowmq.Context) -> None:
            self.start(context)
            if self.does == "block":
                time.sleep(self.seconds)  # noqa: ASYNC251 - that is what is tried
            elif self.does == "to_thread":
                await asyncio.to_thread(time.sleep, self.seconds)
            else:
                await asyncio.sleep(self.seconds)
            self.record.write("end", context)

        async def write(payload: int, context: rowmq.Context, tx: rowmq.AsyncTransaction) -> None:
            self.start(context)
            await tx.execute("INSERT INTO own_effects VALUES (?)", [payload])
            await asyncio.sleep(self.seconds)
            self.record.write("end", context)

        return write if self.does == "write" else handle


def declare(app: rowmq.App, record: Record, handler: dict[str, Any]) -> None:
    doing = Doing(record, handler["does"], handler.get("seconds", 0.0))
    function = doing.sync() if handler["style"] == "sync" else doing.tasks()
    options: dict[str, Any] = handler.get("options", {})
    if "ack_policy" in options:
        options["ack_policy"] = AckPolicy(options["ack_policy"])
    if "retry" in options:
        options["retry"] = rowmq.Constant(interval=options["retry"])
    name = handler["name"]
    if handler["source"] == "queue":
        app.worker(name, name=name, **options)(function)
    else:
        app.subscriber(name, group=GROUP, name=name, **options)(function)


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    url, path, told = sys.argv[1:]
    options = json.loads(told)
    record = Record(path)
    handlers = options.pop("handlers")
    app = rowmq.App(url, **({"maintenance_interval": 0} | options))
    for handler in handlers:
        declare(app, record, handler)

    @app.on_startup
    def ready() -> None:
        record.write("ready")

    complete = app.run()
    record.write("exit")
    sys.exit(0 if complete else 1)


if __name__ == "__main__":
    main()
