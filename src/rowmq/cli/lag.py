"""`rowmq lag`: how far consumer groups are behind."""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import click
from rich.console import Group, RenderableType
from rich.text import Text

import rowmq
from rowmq.cli import names, options
from rowmq.cli.commands import Command
from rowmq.cli.groups import find_group
from rowmq.cli.options import Database
from rowmq.cli.showing import Cell, Screen, emit, err, out, table_of, visible
from rowmq.cli.topics import find_topic
from rowmq.cli.values import DURATION

__all__ = ["lag"]

Rows = dict[str, list[rowmq.LagInfo]]


@click.command(cls=Command)
@click.argument("topic", shell_complete=names.topics)
@click.argument("group", required=False, shell_complete=names.groups)
@click.option("--partitions", is_flag=True, help="A row for each key, and not only for each group.")
@click.option("--watch", is_flag=True, help="Show it again and again, until Ctrl-C.")
@click.option(
    "--interval", type=DURATION, default="2s", show_default=True, help="How often, with --watch."
)
@options.database
@options.as_json
def lag(
    database: Database,
    topic: str,
    group: str | None,
    *,
    partitions: bool,
    watch: bool,
    interval: timedelta,
    as_json: bool,
) -> None:
    """Show how far consumer groups are behind.

    The lag is the number of messages that a group has not acked; those in flight are delivered and
    not settled.

    For example:
      rowmq lag orders
      rowmq lag orders billing --partitions
      rowmq lag orders --watch --interval 5s
    """
    with database.open() as mq:
        rows = look(mq, topic, group)
        if not watch:
            show(topic, rows, partitions=partitions, as_json=as_json)
            return
        screen = out()
        again = every(interval, lambda: look(mq, topic, group))
        if as_json or not screen.is_terminal:
            while True:
                show(topic, rows, partitions=partitions, as_json=as_json)
                rows = again()
        watch_live(screen, topic, rows, again, partitions=partitions)


def look(mq: rowmq.RowMQ, topic: str, group: str | None) -> Rows:
    """The partitions of each group."""
    if group is not None:
        find_group(mq, topic, group)
        return {group: mq.lag(topic, group)}
    found = [info.name for info in mq.groups(topic)]
    if not found:
        find_topic(mq, topic)
    return {name: mq.lag(topic, name) for name in found}


def every(interval: timedelta, action: Callable[[], Rows]) -> Callable[[], Rows]:
    """Does something after an interval."""

    def after() -> Rows:
        time.sleep(max(interval.total_seconds(), 0.1))
        return action()

    return after


def watch_live(
    screen: Screen, topic: str, rows: Rows, again: Callable[[], Rows], *, partitions: bool
) -> None:
    """Show it in one place of the terminal, until Ctrl-C."""
    from rich.live import Live  # noqa: PLC0415 - most runs need none

    with Live(console=screen, auto_refresh=False) as live:
        while True:
            now = Text(f"{datetime.now(UTC):%H:%M:%SZ}  topic {visible(topic)}", "dim")
            live.update(Group(now, shown(rows, partitions=partitions)), refresh=True)
            rows = again()


def show(topic: str, rows: Rows, *, partitions: bool, as_json: bool) -> None:
    if as_json:
        emit({"topic": topic, "groups": [fields(name, rows[name]) for name in rows]})
    elif rows:
        out().print(shown(rows, partitions=partitions))
    else:
        err().print((visible(f"topic {topic!r} has no groups: subscribing makes one"), "dim"))


def shown(rows: Rows, *, partitions: bool) -> RenderableType:
    """A table of groups, or of their partitions."""
    if not partitions:
        columns = ("group", "partitions", "lag", "in flight", "subscribers")
        return table_of(columns, [summary(name, rows[name]) for name in rows])
    return table_of(
        ("group", "key", "acked", "last", "lag", "in flight", "owner"),
        [
            (name, r.key, r.offset_acked, r.last_offset, r.lag, r.in_flight, r.owner)
            for name, found in rows.items()
            for r in found
        ],
    )


def summary(name: str, rows: list[rowmq.LagInfo]) -> tuple[Cell, ...]:
    owners = {row.owner for row in rows if row.owner is not None}
    total, in_flight = sum(row.lag for row in rows), sum(row.in_flight for row in rows)
    return name, len(rows), total, in_flight, len(owners)


def fields(name: str, rows: list[rowmq.LagInfo]) -> dict[str, Any]:
    return {
        "group": name,
        "lag": sum(row.lag for row in rows),
        "in_flight": sum(row.in_flight for row in rows),
        "partitions": [
            {
                "key": row.key,
                "offset_acked": row.offset_acked,
                "last_offset": row.last_offset,
                "lag": row.lag,
                "in_flight": row.in_flight,
                "owner": row.owner,
            }
            for row in rows
        ],
    }
