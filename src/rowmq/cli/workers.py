"""`rowmq workers`: the processes that run handlers, and what they are at."""

from datetime import UTC, datetime, timedelta
from typing import Any

import click

import rowmq
from rowmq.cli import options
from rowmq.cli.commands import Command
from rowmq.cli.options import Database
from rowmq.cli.showing import Cell, duration, emit, err, marked, out, plural, table, table_of

__all__ = ["workers"]


@click.command(cls=Command)
@click.option("--running", is_flag=True, help="A row for each message or job that is worked on.")
@options.database
@options.as_json
def workers(database: Database, *, running: bool, as_json: bool) -> None:
    """List the workers, and what they are at work on.

    One that was not heard of lately is gone: what it was at is given to others.

    For example:
      rowmq workers
      rowmq workers --running
    """
    with database.open() as mq:
        found = mq.workers()
    if as_json:
        emit([worker_fields(worker) for worker in found])
    elif running:
        show_running(found)
    else:
        rows = [
            (w.name, w.app, w.pid_text, w.state, len(w.info.running), w.started, w.seen)
            for w in map(Shown, found)
        ]
        columns = ("worker", "app", "pid", "state", "running", "started", "seen")
        table(columns, rows, empty="there are no workers: rowmq worker MODULE:APP starts one")


class Shown:
    """A worker as it stands in a table."""

    def __init__(self, info: rowmq.WorkerInfo) -> None:
        now = datetime.now(UTC)
        self.info = info
        self.name = info.name
        self.app = info.app
        self.pid_text = str(info.pid)
        self.state = marked("alive" if info.alive else "gone")
        self.started = since(info.started_at, now)
        self.seen = since(info.seen_at, now)


def since(moment: datetime, now: datetime) -> str:
    """How long ago it was, in seconds of this machine's clock, which may be a little behind."""
    seconds = round((now - moment).total_seconds())
    return f"{duration(timedelta(seconds=seconds))} ago" if seconds > 0 else "now"


def show_running(found: list[rowmq.WorkerInfo]) -> None:
    rows = [
        (w.name, r.handler, r.source, r.id, r.key, r.attempt, r.since, progress_of(r))
        for w in found
        for r in w.running
    ]
    if not rows:
        err().print((f"{plural(len(found), 'worker')}, at nothing", "dim"))
        return
    columns = ("worker", "handler", "source", "id", "key", "attempt", "since", "progress")
    out().print(table_of(columns, rows))


def progress_of(running: rowmq.RunningInfo) -> Cell:
    share = "" if running.progress is None else f"{running.progress:.0%}"
    return " ".join(part for part in (share, running.note) if part) or None


def worker_fields(worker: rowmq.WorkerInfo) -> dict[str, Any]:
    return {
        "worker": worker.name,
        "app": worker.app,
        "host": worker.host,
        "pid": worker.pid,
        "version": worker.version,
        "handlers": worker.handlers,
        "started_at": worker.started_at,
        "seen_at": worker.seen_at,
        "alive": worker.alive,
        "running": [running_fields(running) for running in worker.running],
    }


def running_fields(running: rowmq.RunningInfo) -> dict[str, Any]:
    return {
        "handler": running.handler,
        "source": running.source,
        "source_type": running.source_type,
        "id": running.id,
        "key": running.key,
        "attempt": running.attempt,
        "since": running.since,
        "progress": running.progress,
        "note": running.note,
    }
