"""`rowmq queues`: what there is, and how it is configured."""

from datetime import timedelta
from typing import Any

import click
from rich.text import Text

import rowmq
from rowmq.cli import names, options
from rowmq.cli.commands import Section
from rowmq.cli.failing import unknown
from rowmq.cli.options import Database
from rowmq.cli.showing import Cell, duration, emit, facts, marked, out, size, table, visible
from rowmq.cli.values import DURATION, KEPT, LIMIT, SIZE

__all__ = ["find_queue", "queues"]

STATES = ("pending", "processing", "retryable", "completed", "failed")


@click.group(cls=Section)
def queues() -> None:
    """List queues; pause, resume or configure one.

    For example:
      rowmq queues
      rowmq queues pause emails
      rowmq queues configure emails --max-in-flight 10 --retention 1d
    """


@queues.command()
@click.argument("queue", required=False, shell_complete=names.queues)
@options.database
@options.as_json
def ls(database: Database, queue: str | None, *, as_json: bool) -> None:
    """List all queues, or look at one.

    With their jobs counted.

    For example:
      rowmq queues ls
      rowmq queues ls emails
    """
    with database.open() as mq:
        if queue is not None:
            show_queue(mq, find_queue(mq, queue), as_json=as_json)
            return
        found = [(info, mq.queue(info.name).counts()) for info in mq.queues()]
    if as_json:
        emit([queue_fields(info, counts) for info, counts in found])
        return
    rows = [(info.name, *(counts[s] for s in STATES), remarks(info)) for info, counts in found]
    columns = ("queue", *STATES, "")
    table(columns, rows, empty="there are no queues yet: the first job makes one")


def remarks(info: rowmq.QueueInfo) -> Cell:
    """What is not as usual with a queue."""
    words = ["paused"] * info.paused + ["relaxed"] * (info.durability == "relaxed")
    return Text(", ").join(map(marked, words)) if words else ""


def find_queue(mq: rowmq.RowMQ, name: str) -> rowmq.QueueInfo:
    """A queue that must be there."""
    found = mq.queue(name).info()
    if found is not None:
        return found
    known = (info.name for info in mq.queues())
    raise unknown(f"there is no queue {name!r}", name, known, listed_by="rowmq queues")


def show_queue(mq: rowmq.RowMQ, info: rowmq.QueueInfo, *, as_json: bool) -> None:
    counts = mq.queue(info.name).counts()
    if as_json:
        emit(queue_fields(info, counts))
        return
    period = duration(info.rate_period or timedelta(seconds=1))
    shown: dict[str, Cell] = {
        "queue": info.name,
        "state": marked("paused") if info.paused else "active",
        "jobs": ", ".join(f"{counts[state]:,} {state}" for state in STATES),
        "kinds": ", ".join(kind for kind in info.kinds if kind) or None,
        "completed jobs": f"kept {kept(info.retention)}" if info.keep_completed else "not kept",
        "failed jobs": f"kept {kept(info.failed_retention)}" if info.keep_failed else "not kept",
        "max payload": size(info.max_payload_bytes),
        "max in flight": "no limit" if info.max_in_flight is None else info.max_in_flight,
        "rate": "no limit" if info.rate is None else f"{info.rate:,} in {period}",
        "durability": info.durability,
    }
    facts(shown)


def kept(span: timedelta | None) -> str:
    return "forever" if span is None else duration(span)


def queue_fields(info: rowmq.QueueInfo, counts: dict[str, int]) -> dict[str, Any]:
    return {
        "queue": info.name,
        "paused": info.paused,
        "kinds": [kind for kind in info.kinds if kind],
        "counts": counts,
        "keep_completed": info.keep_completed,
        "keep_failed": info.keep_failed,
        "retention_seconds": info.retention,
        "failed_retention_seconds": info.failed_retention,
        "max_payload_bytes": info.max_payload_bytes,
        "max_in_flight": info.max_in_flight,
        "rate": info.rate,
        "rate_period_seconds": info.rate_period,
        "durability": info.durability,
    }


@queues.command()
@click.argument("queue", shell_complete=names.queues)
@options.database
@options.as_json
def pause(database: Database, queue: str, *, as_json: bool) -> None:
    """Have nobody claim jobs of a QUEUE.

    What is claimed can be settled.

    For example:
      rowmq queues pause emails
    """
    set_paused(database, queue, paused=True, as_json=as_json)


@queues.command()
@click.argument("queue", shell_complete=names.queues)
@options.database
@options.as_json
def resume(database: Database, queue: str, *, as_json: bool) -> None:
    """Have jobs of a QUEUE be claimed again.

    For example:
      rowmq queues resume emails
    """
    set_paused(database, queue, paused=False, as_json=as_json)


def set_paused(database: Database, queue: str, *, paused: bool, as_json: bool) -> None:
    with database.open() as mq:
        find_queue(mq, queue)
        handle = mq.queue(queue)
        handle.pause() if paused else handle.resume()
    if as_json:
        emit({"queue": queue, "paused": paused})
    else:
        out().print(f"{'paused' if paused else 'resumed'} {visible(queue)}")


@queues.command()
@click.argument("queue", shell_complete=names.queues)
@click.option("--keep-completed/--no-keep-completed", default=None, help="Archive what is done.")
@click.option("--keep-failed/--no-keep-failed", default=None, help="Archive what has failed.")
@click.option("--retention", type=KEPT, help="How long completed jobs are kept: 7d, forever.")
@click.option("--failed-retention", type=KEPT, help="How long failed jobs are kept.")
@click.option("--max-payload", "max_payload_bytes", type=SIZE, help="The largest payload: 64KiB.")
@click.option("--max-in-flight", type=LIMIT, help="Jobs claimed at a time, by all workers; none.")
@click.option("--rate", type=LIMIT, help="Jobs started in a period, by all workers; none.")
@click.option("--rate-period", type=DURATION, help="That period; a second if it is left out.")
@click.option(
    "--durability",
    type=click.Choice(["full", "relaxed"]),
    help="Whether puts and settles wait for the disk.",
)
@options.database
@options.as_json
def configure(database: Database, queue: str, *, as_json: bool, **settings: Any) -> None:
    """Change a queue's settings.

    Those left out stay as they are.

    For example:
      rowmq queues configure emails --max-in-flight 10 --rate 100 --rate-period 1m
      rowmq queues configure emails --retention 1d --failed-retention 90d
    """
    chosen = {name: value for name, value in settings.items() if value is not None}
    if not chosen:
        raise click.UsageError("say what to change: see rowmq queues configure --help")
    with database.open(create=True) as mq:
        mq.queue(queue).configure(**chosen)
        show_queue(mq, find_queue(mq, queue), as_json=as_json)
