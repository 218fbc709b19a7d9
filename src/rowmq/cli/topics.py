"""`rowmq topics`: what there is, and how it is configured."""

from datetime import timedelta
from typing import Any

import click

import rowmq
from rowmq.cli import names, options
from rowmq.cli.commands import Section
from rowmq.cli.failing import unknown
from rowmq.cli.options import Database
from rowmq.cli.showing import duration, emit, facts, out, shard_shown, size, table
from rowmq.cli.values import KEPT, SIZE

__all__ = ["find_topic", "topics"]


@click.group(cls=Section)
def topics() -> None:
    """List topics, look at one, or configure it.

    For example:
      rowmq topics
      rowmq topics orders
      rowmq topics configure orders --retention 7d --max-payload 4MiB
    """


@topics.command()
@click.argument("topic", required=False, shell_complete=names.topics)
@options.database
@options.as_json
def ls(database: Database, topic: str | None, *, as_json: bool) -> None:
    """List all topics, or look at one.

    Of one, its partitions are shown: its keys, and the offsets that they hold.

    For example:
      rowmq topics ls
      rowmq topics ls orders --json
    """
    with database.open() as mq:
        if topic is not None:
            show_topic(find_topic(mq, topic), mq.partitions(topic), as_json=as_json)
            return
        found = mq.topics()
    if as_json:
        emit([topic_fields(info) for info in found])
    else:
        rows = [
            (t.name, t.partitions, t.messages, kept(t), size(t.max_payload_bytes)) for t in found
        ]
        columns = ("topic", "partitions", "messages", "retention", "max payload")
        table(columns, rows, empty="there are no topics yet: rowmq publish makes one")


def find_topic(mq: rowmq.RowMQ, name: str) -> rowmq.TopicInfo:
    """A topic that must be there."""
    found = mq.topic(name)
    if found is not None:
        return found
    known = (info.name for info in mq.topics())
    raise unknown(f"there is no topic {name!r}", name, known, listed_by="rowmq topics")


def show_topic(
    info: rowmq.TopicInfo, partitions: list[rowmq.PartitionInfo], *, as_json: bool
) -> None:
    if as_json:
        emit(topic_fields(info) | {"keys": [partition_fields(p) for p in partitions]})
        return
    facts(
        {
            "topic": info.name,
            "partitions": info.partitions,
            "messages": info.messages,
            "retention": kept(info),
            "max payload": size(info.max_payload_bytes),
        }
    )
    if partitions:
        out().print()
        rows = [
            (p.key, shard_shown(p.key, p.shard), p.first_offset, p.last_offset, p.messages)
            for p in partitions
        ]
        table(("key", "shard", "first offset", "last offset", "messages"), rows, empty="")


def kept(info: rowmq.TopicInfo) -> str:
    """How long messages stay, where somebody collects them."""
    limit = "" if info.retention is None else f", {duration(info.retention)} at most"
    return f"until acked{limit}"


def topic_fields(info: rowmq.TopicInfo) -> dict[str, Any]:
    return {
        "topic": info.name,
        "partitions": info.partitions,
        "messages": info.messages,
        "retention_seconds": info.retention,
        "max_payload_bytes": info.max_payload_bytes,
        "holds_letters": info.holds_letters,
    }


def partition_fields(info: rowmq.PartitionInfo) -> dict[str, Any]:
    return {
        "key": info.key,
        "shard": info.shard,
        "first_offset": info.first_offset,
        "last_offset": info.last_offset,
        "messages": info.messages,
    }


@topics.command()
@click.argument("topic", shell_complete=names.topics)
@click.option("--retention", type=KEPT, help="How long messages are kept: 7d, or forever.")
@click.option("--max-payload", type=SIZE, help="The largest payload: 64KiB, 4MiB.")
@options.database
@options.as_json
def configure(
    database: Database,
    topic: str,
    *,
    retention: timedelta | None,
    max_payload: int | None,
    as_json: bool,
) -> None:
    """Change a topic's settings.

    Those left out stay as they are. Retention deletes nothing by itself: rowmq gc does, and so do
    workers.

    For example:
      rowmq topics configure orders --retention 7d
      rowmq topics configure files --retention forever --max-payload 16MiB
    """
    if retention is None and max_payload is None:
        raise click.UsageError("say what to change: --retention or --max-payload")
    with database.open(create=True) as mq:
        mq.configure_topic(topic, retention=retention, max_payload_bytes=max_payload)
        show_topic(find_topic(mq, topic), [], as_json=as_json)
