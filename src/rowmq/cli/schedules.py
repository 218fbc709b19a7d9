"""`rowmq schedules`: what fires by itself, and when."""

from datetime import datetime
from typing import Any

import click

import rowmq
from rowmq.cli import names, options
from rowmq.cli.commands import Section
from rowmq.cli.failing import unknown
from rowmq.cli.options import Database, confirm
from rowmq.cli.showing import (
    Cell,
    compact,
    emit,
    err,
    facts,
    marked,
    out,
    payload_fields,
    show_payload,
    table,
    visible,
)

__all__ = ["schedules"]

OF_APPS = "cron."
"""What the queues begin with that schedules of apps put their jobs into."""

named = click.argument("name", shell_complete=names.schedules)


@click.group(cls=Section)
def schedules() -> None:
    """List schedules; pause, resume, run or remove one.

    For example:
      rowmq schedules
      rowmq schedules next reports --count 10
      rowmq schedules run reports
    """


@schedules.command()
@click.argument("name", required=False, shell_complete=names.schedules)
@options.database
@options.as_json
def ls(database: Database, name: str | None, *, as_json: bool) -> None:
    """List all schedules, or look at one.

    For example:
      rowmq schedules ls
      rowmq schedules ls reports
    """
    with database.open() as mq:
        if name is not None:
            show(find_schedule(mq, name), as_json=as_json)
            return
        found = mq.cron.list()
    if as_json:
        emit([schedule_fields(info) for info in found])
        return
    rows = [(s.name, s.expression, s.tz, target(s), s.last_at, upcoming(s)) for s in found]
    columns = ("schedule", "when", "zone", "to", "last", "next")
    table(columns, rows, empty="there are no schedules yet: mq.cron.install makes one")


def find_schedule(mq: rowmq.RowMQ, name: str) -> rowmq.ScheduleInfo:
    """A schedule that must be there."""
    found = {info.name: info for info in mq.cron.list()}
    if name in found:
        return found[name]
    raise unknown(f"there is no schedule {name!r}", name, found, listed_by="rowmq schedules")


def target(info: rowmq.ScheduleInfo) -> str:
    return f"queue {info.queue}" if info.topic is None else f"topic {info.topic}"


def upcoming(info: rowmq.ScheduleInfo) -> Cell:
    return marked("paused") if info.paused else info.next_at or "never"


def show(info: rowmq.ScheduleInfo, *, as_json: bool) -> None:
    if as_json:
        emit(schedule_fields(info))
        return
    facts(
        {
            "schedule": info.name,
            "when": info.expression,
            "that is": info.description,
            "to": target(info),
            "key": info.key,
            "priority": info.priority,
            "missed ticks": info.catch_up,
            "headers": compact(dict(info.headers)) if info.headers else None,
            "last": info.last_at,
            "next": upcoming(info),
            "created": info.created_at,
            "payload": f"made by {info.function}" if info.function else None,
        }
    )
    if info.function is None:
        show_payload(info.payload)


def schedule_fields(info: rowmq.ScheduleInfo) -> dict[str, Any]:
    return {
        "schedule": info.name,
        "kind": info.kind,
        "expression": info.expression,
        "description": info.description,
        "tz": info.tz,
        "queue": info.queue,
        "topic": info.topic,
        "key": info.key,
        "function": info.function,
        "headers": dict(info.headers),
        "priority": info.priority,
        "catch_up": info.catch_up,
        "grace_seconds": info.grace,
        "paused": info.paused,
        "last_at": info.last_at,
        "next_at": info.next_at,
        "created_at": info.created_at,
        **payload_fields(info.payload),
    }


@schedules.command()
@named
@options.database
@options.as_json
def pause(database: Database, name: str, *, as_json: bool) -> None:
    """Have a schedule make no ticks.

    For example:
      rowmq schedules pause reports
    """
    with database.open() as mq:
        find_schedule(mq, name)
        mq.cron.pause(name)
    done("paused", name, as_json=as_json)


@schedules.command()
@named
@options.database
@options.as_json
def resume(database: Database, name: str, *, as_json: bool) -> None:
    """Have a paused schedule make ticks again.

    Those of the meantime are not made up.

    For example:
      rowmq schedules resume reports
    """
    with database.open() as mq:
        find_schedule(mq, name)
        mq.cron.resume(name)
    done("resumed", name, as_json=as_json)


@schedules.command()
@named
@options.database
@options.yes
@options.as_json
def rm(database: Database, name: str, *, yes: bool, as_json: bool) -> None:
    """Remove a schedule. What its ticks have made stays.

    One that an app declares, with @app.cron, is installed again when the app starts next: take it
    out of the app first, or pause it, which lasts.

    For example:
      rowmq schedules rm reports
    """
    with database.open() as mq:
        info = find_schedule(mq, name)
        confirm(f"Schedule {name!r}, {info.description}, will be removed.", yes=yes)
        mq.cron.remove(name)
    done("removed", name, as_json=as_json)
    if info.queue == f"{OF_APPS}{name}" and not as_json:
        err().print(
            ("an app that declares it installs it again when it starts; to pause it lasts", "dim")
        )


@schedules.command()
@named
@options.database
@options.as_json
def run(database: Database, name: str, *, as_json: bool) -> None:
    """Make a tick now, beside the plan.

    Also if the schedule is paused.

    For example:
      rowmq schedules run reports
    """
    with database.open() as mq:
        find_schedule(mq, name)
        fired = mq.cron.run(name)
    done("ran", name, as_json=as_json, fire_at=fired)


def done(what: str, name: str, *, as_json: bool, **more: Any) -> None:
    if as_json:
        emit({"schedule": name, what: True} | more)
    else:
        out().print(f"{what} {visible(name)}")


@schedules.command(name="next")
@named
@click.option(
    "--count", "-n", type=click.IntRange(1, 1000), default=5, show_default=True, help="How many."
)
@options.database
@options.as_json
def upcoming_times(database: Database, name: str, *, count: int, as_json: bool) -> None:
    """Show when a schedule fires next.

    In its zone, and as if it were not paused.

    For example:
      rowmq schedules next reports --count 10
    """
    with database.open() as mq:
        find_schedule(mq, name)
        found = mq.cron.next(name, count)
    if as_json:
        emit({"schedule": name, "next": found})
    else:
        rows = [(in_zone(time), time) for time in found]
        table(("in its zone", "utc"), rows, empty=f"schedule {name!r} never fires again")


def in_zone(time: datetime) -> str:
    zone = time.tzname() or ""
    return f"{time:%a %Y-%m-%d %H:%M:%S} {zone}"
