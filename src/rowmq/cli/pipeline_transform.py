"""`rowmq pipeline transform`: a function between a topic and a topic or queue, kept running.

The stream runs in a process of its own, which is started again if it dies, or Spark dies in it: by
then nothing can be done from within. What it is to do it reads from its stdin, where nobody sees
the database's password; when that ends, its parent is gone, and it stops.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from datetime import timedelta
from typing import Any

import click
import msgspec

from rowmq.cli import names, options
from rowmq.cli.commands import Command
from rowmq.cli.options import Database
from rowmq.cli.showing import emit, err, facts, plural, pulse, visible
from rowmq.cli.sparking import Sparking, opened, pairs, sparking, stopping
from rowmq.cli.values import DURATION
from rowmq.errors import InvalidOption, PipelineFailed

__all__ = ["Task", "Told", "transform"]

PAUSE_SECONDS_FIRST = 1.0
PAUSE_SECONDS_MAX = 60.0
STEADY_SECONDS = 60.0
"""A process that lived so long did not die of its start."""

STOP_SECONDS = 60.0


class Task(msgspec.Struct):
    """What the child is to do."""

    master: str
    conf: dict[str, str]
    options: dict[str, Any]
    every: float | None


class Told(msgspec.Struct, omit_defaults=True):
    """What the child tells, a line each."""

    rows: int = 0
    batches: int = 0
    restarts: int = 0
    problem: str | None = None
    """Why its stream is started again."""
    error: str | None = None
    """Why it ends: there is no use in another."""
    done: bool = False


@click.command(cls=Command)
@click.argument("function", metavar="MODULE:FUNCTION")
@click.option(
    "--topic",
    "topics",
    multiple=True,
    required=True,
    shell_complete=names.topics,
    help="The topic to read; may be given again.",
)
@click.option("--group", required=True, help="The consumer group that it reads as.")
@click.option("--to-topic", metavar="TOPIC", help="The topic to publish to.")
@click.option("--to-queue", metavar="QUEUE", help="The queue to put jobs into.")
@click.option(
    "--checkpoint",
    required=True,
    metavar="FOLDER",
    help="Where the stream keeps how far it is; one for each transform.",
)
@click.option(
    "--every",
    type=DURATION,
    metavar="DURATION",
    help="Go on for ever, a batch each so often. Without it, until it has caught up.",
)
@click.option(
    "--read",
    multiple=True,
    callback=pairs,
    metavar="NAME=VALUE",
    help="Another option of the source, such as startingOffsets=latest; may be given again.",
)
@click.option(
    "--write",
    multiple=True,
    callback=pairs,
    metavar="NAME=VALUE",
    help="Another option of the sink, such as onConflict=ignore; may be given again.",
)
@click.option(
    "--restarts",
    type=click.IntRange(0),
    default=10,
    show_default=True,
    help="How often in a row it may fail before it gives up.",
)
@options.database
@sparking
@options.as_json
def transform(
    sparking: Sparking,
    database: Database,
    function: str,
    *,
    topics: tuple[str, ...],
    group: str,
    to_topic: str | None,
    to_queue: str | None,
    checkpoint: str,
    every: timedelta | None,
    read: dict[str, str],
    write: dict[str, str],
    restarts: int,
    as_json: bool,
) -> None:
    """Run MODULE:FUNCTION, from DataFrame to DataFrame, between topics and queues.

    MODULE is imported from the current directory or from what is installed. It is a stream, exactly
    once, that is started again when it fails, and so is the process that it runs in.

    For example:
      rowmq pipeline transform streams:clean --topic raw --to-topic clean --group cleaner
        --checkpoint /var/lib/cleaner --every 1s
    """
    if (to_topic is None) == (to_queue is None):
        raise click.UsageError("where to? Give --to-topic or --to-queue")
    given = {
        "function": function,
        "source": {**read, "group": group, **source_of(topics)},
        "sink": {**write, **({"topic": to_topic} if to_topic else {"queue": to_queue})},
        "checkpoint": checkpoint,
        "restarts": restarts,
        "url": database.url,
        "prefix": database.prefix,
        "schema": database.schema,
    }
    check(given)
    opened(database)
    seconds = None if every is None else every.total_seconds()
    task = Task(sparking.master, dict(sparking.conf), given, seconds)
    with stopping() as stop, pulse("starting Spark", quiet=as_json) as update:
        keeper = Keeper(task, restarts, stop, update, as_json=as_json)
        found = keeper.run()
    if as_json:
        emit({"rows": found.rows, "batches": found.batches, "restarts": found.restarts})
    else:
        facts({"rows": found.rows, "batches": found.batches, "restarts": found.restarts or None})


def source_of(topics: tuple[str, ...]) -> dict[str, str]:
    if len(topics) == 1:
        return {"topic": topics[0]}
    if any("," in topic for topic in topics):
        raise click.UsageError("a topic with a comma in its name can only be read by itself")
    return {"subscribe": ",".join(topics)}


def check(given: dict[str, Any]) -> None:
    """What can be said before Spark is started."""
    from rowmq.spark.options import Given, topics_options  # noqa: PLC0415 - only here
    from rowmq.spark.pipelines.transform import load_function, options_of  # noqa: PLC0415
    from rowmq.spark.place import place_of  # noqa: PLC0415
    from rowmq.spark.sink.options import sink_options  # noqa: PLC0415

    known = {name: given[name] for name in ("url", "prefix", "schema") if given[name] is not None}
    place = place_of(known)
    topics_options(Given(options_of(place, given["source"])), stream=True)
    sink_options(Given(options_of(place, given["sink"])), stream=True, overwrite=False)
    load_function(given["function"])


class Keeper:
    """Keeps a process running that transforms."""

    def __init__(
        self, task: Task, restarts: int, stop: threading.Event, update: Any, *, as_json: bool
    ) -> None:
        self.task = task
        self.restarts = restarts
        self.stop = stop
        self.update = update
        self.as_json = as_json
        self.before = Told()
        """What the processes did that have ended."""
        self.now = Told()

    def run(self) -> Told:
        """Run it until it is done, or told to stop; raise if it fails again and again."""
        failures = 0
        while True:
            begun = time.monotonic()
            code = self.run_once()
            if self.now.error is not None:
                raise InvalidOption(self.now.error)
            if self.now.done or self.stop.is_set():
                return self.total()
            steady = time.monotonic() - begun > STEADY_SECONDS
            failures = 1 if steady or self.now.batches else failures + 1
            if failures > self.restarts:
                why = self.now.problem or f"its process ended with code {code}"
                raise PipelineFailed(f"the transform failed {failures} times in a row: {why}")
            self.before = msgspec.structs.replace(self.total(), restarts=self.total().restarts + 1)
            self.now = Told()
            pause = min(PAUSE_SECONDS_MAX, PAUSE_SECONDS_FIRST * 2 ** (failures - 1))
            self.show(f"its process ended with code {code}, and is started again in {pause:.0f} s")
            self.stop.wait(pause)

    def run_once(self) -> int:
        """One process, to its end."""
        with subprocess.Popen(
            [sys.executable, "-m", "rowmq.cli.transform_child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # a Ctrl-C is the parent's to pass on
        ) as child:
            reader = threading.Thread(target=self.listen, args=(child.stdout,), daemon=True)
            reader.start()
            with contextlib.suppress(BrokenPipeError):
                child.stdin.write(msgspec.json.encode(self.task) + b"\n")  # type: ignore[union-attr]
                child.stdin.flush()  # type: ignore[union-attr]
            try:
                while child.poll() is None and not self.stop.wait(0.1):
                    pass
                return self.end(child)
            finally:
                reader.join(5)

    def end(self, child: "subprocess.Popen[bytes]") -> int:
        """Let a process end, or see that it does."""
        with contextlib.suppress(OSError):
            child.stdin.close()  # type: ignore[union-attr]
        try:
            return child.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            return child.wait()

    def listen(self, stream: Any) -> None:
        for line in stream:
            try:
                told = msgspec.json.decode(line, type=Told)
            except msgspec.MsgspecError:  # the function printed something
                err().print(visible(line.decode(errors="replace").rstrip()))
                continue
            changed = told.rows != self.now.rows
            self.now = told
            if told.problem is not None and told.error is None:
                self.show(f"the stream failed and is started again: {told.problem}")
            total = self.total()
            self.update(doing=f"transforming: {plural(total.rows, 'row')} read")
            if self.as_json and changed:
                emit({"rows": total.rows, "batches": total.batches, "restarts": total.restarts})

    def show(self, problem: str) -> None:
        err().print(("warning: ", "yellow"), visible(problem))

    def total(self) -> Told:
        return Told(
            rows=self.before.rows + self.now.rows,
            batches=self.before.batches + self.now.batches,
            restarts=self.before.restarts + self.now.restarts,
        )
