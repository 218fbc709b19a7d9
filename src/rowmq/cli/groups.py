"""`rowmq groups`: a topic's consumer groups."""

from shlex import quote
from typing import Any

import click

import rowmq
from rowmq.cli import names, options
from rowmq.cli.commands import Section
from rowmq.cli.failing import unknown
from rowmq.cli.options import Database, confirm
from rowmq.cli.showing import emit, out, plural, table, visible
from rowmq.cli.topics import find_topic

__all__ = ["find_group", "groups", "groups_of", "no_groups"]


@click.group(cls=Section)
def groups() -> None:
    """List, create or drop a topic's consumer groups.

    For example:
      rowmq groups
      rowmq groups orders
      rowmq groups create orders billing --start latest
      rowmq groups drop orders billing
    """


@groups.command()
@click.argument("topic", required=False, shell_complete=names.topics)
@options.database
@options.as_json
def ls(database: Database, topic: str | None, *, as_json: bool) -> None:
    """List the consumer groups of a TOPIC, or of all.

    For example:
      rowmq groups ls
      rowmq groups ls orders
    """
    with database.open() as mq:
        found = groups_of(mq, topic)
    if as_json:
        emit([group_fields(group) for group in found])
        return
    rows = [
        (
            group.name,
            group.topic if topic is None else None,
            group.subscribers,
            group.lag,
            group.expired,
            group.start,
            group.created_at,
        )
        for group in found
    ]
    columns = ("group", "topic", "subscribers", "lag", "expired", "start", "created")
    table(columns, rows, empty=no_groups(topic))


def groups_of(mq: rowmq.RowMQ, topic: str | None) -> list[rowmq.GroupInfo]:
    """The groups of a topic, which must be there, or of all topics."""
    if topic is None:
        return [group for info in mq.topics() for group in mq.groups(info.name)]
    found = mq.groups(topic)
    if not found:
        find_topic(mq, topic)
    return found


def no_groups(topic: str | None) -> str:
    none = "there are no groups yet" if topic is None else f"topic {topic!r} has no groups"
    return f"{none}: subscribing makes one"


def group_fields(group: rowmq.GroupInfo) -> dict[str, Any]:
    return {
        "topic": group.topic,
        "group": group.name,
        "start": group.start,
        "created_at": group.created_at,
        "subscribers": group.subscribers,
        "lag": group.lag,
        "expired": group.expired,
    }


def find_group(mq: rowmq.RowMQ, topic: str, name: str) -> rowmq.GroupInfo:
    """A group that must be there, and so must its topic."""
    found = {group.name: group for group in groups_of(mq, topic)}
    if name in found:
        return found[name]
    missing = f"topic {topic!r} has no group {name!r}"
    raise unknown(missing, name, found, listed_by=f"rowmq groups {quote(topic)}")


@groups.command()
@click.argument("topic", shell_complete=names.topics)
@click.argument("group")
@click.option(
    "--start",
    type=click.Choice(["earliest", "latest"]),
    default="earliest",
    show_default=True,
    help="Begin with the oldest message there is, or with the next one published.",
)
@options.database
@options.as_json
def create(database: Database, topic: str, group: str, *, start: str, as_json: bool) -> None:
    """Register a consumer GROUP.

    From then on nothing is collected before it has acked it. A group that is there stays as it is.

    For example:
      rowmq groups create orders billing --start latest
    """
    with database.open(create=True) as mq:
        created = mq.create_group(topic, group, start=start)
    if as_json:
        emit({"topic": topic, "group": group, "created": created})
    else:
        out().print(f"{'created' if created else 'there is already a'} group {visible(group)}")


@groups.command()
@click.argument("topic", shell_complete=names.topics)
@click.argument("group", shell_complete=names.groups)
@options.database
@options.dry_run
@options.yes
@options.as_json
def drop(
    database: Database, topic: str, group: str, *, dry_run: bool, yes: bool, as_json: bool
) -> None:
    """Forget a GROUP and its place; its dead letters stay.

    For example:
      rowmq groups drop orders billing
    """
    with database.open() as mq:
        info = find_group(mq, topic, group)
        what = (
            f"Group {group!r} of topic {topic!r} is forgotten, with its place: it has "
            f"{plural(info.subscribers, 'subscriber')} and a lag of {info.lag:,}."
        )
        if not dry_run:
            confirm(what, yes=yes)
            mq.drop_group(topic, group)
    if as_json:
        emit(group_fields(info) | {"dropped": not dry_run})
    else:
        out().print(visible(f"would happen: {what}" if dry_run else f"dropped group {group}"))
