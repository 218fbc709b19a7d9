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
from rowmq.cli.groups import find_group, groups_of, no_groups
from rowmq.cli.options import Database
from rowmq.cli.showing import Cell, Screen, emit, err, out, shard_shown, table_of, visible
from rowmq.cli.values import DURATION

__all__ = ["lag"]

Rows = dict[tuple[str, str], list[rowmq.LagInfo]]
"""The partitions of groups, by topic and group."""


@click.command(cls=Command)
@click.argument("topic", required=False, shell_complete=names.topics)
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
    topic: str | None,
    group: str | None,
    *,
    partitions: bool,
    watch: bool,
    interval: timedelta,
    as_json: bool,
) -> None:
    """Show how far consumer groups are behind.

    Those of a TOPIC, or of all. The lag is the number of messages that a group has not acked; those
    in flight are delivered and not settled.

    For example:
      rowmq lag
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


def look(mq: rowmq.RowMQ, topic: str | None, group: str | None) -> Rows:
    """The partitions of each group."""
    if topic is not None and group is not None:
        found = [find_group(mq, topic, group)]
    else:
        found = groups_of(mq, topic)
    return {(info.topic, info.name): mq.lag(info.topic, info.name) for info in found}


def every(interval: timedelta, action: Callable[[], Rows]) -> Callable[[], Rows]:
    """Does something after an interval."""

    def after() -> Rows:
        time.sleep(max(interval.total_seconds(), 0.1))
        return action()

    return after


def watch_live(
    screen: Screen, topic: str | None, rows: Rows, again: Callable[[], Rows], *, partitions: bool
) -> None:
    """Show it in one place of the terminal, until Ctrl-C."""
    from rich.live import Live  # noqa: PLC0415 - most runs need none

    with Live(console=screen, auto_refresh=False) as live:
        while True:
            about = "all topics" if topic is None else f"topic {visible(topic)}"
            now = Text(f"{datetime.now(UTC):%H:%M:%SZ}  {about}", "dim")
            live.update(Group(now, shown(topic, rows, partitions=partitions)), refresh=True)
            rows = again()


def show(topic: str | None, rows: Rows, *, partitions: bool, as_json: bool) -> None:
    if as_json:
        topics = [topic] if topic is not None else sorted({name for name, _ in rows})
        told = [topic_fields(name, rows) for name in topics]
        emit(told if topic is None else told[0])
    elif rows:
        out().print(shown(topic, rows, partitions=partitions))
    else:
        err().print((visible(no_groups(topic)), "dim"))


def shown(topic: str | None, rows: Rows, *, partitions: bool) -> RenderableType:
    """A table of groups, or of their partitions; with their topics, unless one was named."""
    titled = [((name, None if topic else of), found) for (of, name), found in rows.items()]
    if not partitions:
        columns = ("group", "topic", "partitions", "lag", "in flight", "subscribers")
        return table_of(columns, [(*title, *summary(found)) for title, found in titled])
    return table_of(
        ("group", "topic", "key", "shard", "acked", "last", "lag", "in flight", "owner"),
        [
            (*title, r.key, shard_shown(r.key, r.shard), *figures(r))
            for title, found in titled
            for r in found
        ],
    )


def figures(row: rowmq.LagInfo) -> tuple[Cell, ...]:
    return row.offset_acked, row.last_offset, row.lag, row.in_flight, row.owner


def summary(rows: list[rowmq.LagInfo]) -> tuple[Cell, ...]:
    owners = {row.owner for row in rows if row.owner is not None}
    total, in_flight = sum(row.lag for row in rows), sum(row.in_flight for row in rows)
    return len(rows), total, in_flight, len(owners)


def topic_fields(topic: str, rows: Rows) -> dict[str, Any]:
    found = [fields(name, rows[of, name]) for of, name in rows if of == topic]
    return {"topic": topic, "groups": found}


def fields(name: str, rows: list[rowmq.LagInfo]) -> dict[str, Any]:
    return {
        "group": name,
        "lag": sum(row.lag for row in rows),
        "in_flight": sum(row.in_flight for row in rows),
        "partitions": [
            {
                "key": row.key,
                "shard": row.shard,
                "offset_acked": row.offset_acked,
                "last_offset": row.last_offset,
                "lag": row.lag,
                "in_flight": row.in_flight,
                "owner": row.owner,
            }
            for row in rows
        ],
    }
