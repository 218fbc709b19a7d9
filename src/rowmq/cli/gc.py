"""`rowmq gc`: let go of messages that nobody needs any more."""

import click

from rowmq.cli import names, options
from rowmq.cli.commands import Command
from rowmq.cli.options import Database
from rowmq.cli.showing import emit, out, plural, pulse, table, visible
from rowmq.cli.topics import find_topic

__all__ = ["gc"]


@click.command(cls=Command)
@click.argument("topic", required=False, shell_complete=names.topics)
@options.database
@options.as_json
def gc(database: Database, topic: str | None, *, as_json: bool) -> None:
    """Delete messages that nobody needs any more.

    Those that every group of their topic has acked, and those that are older than the topic's
    retention. Without a TOPIC, of all topics.

    For example:
      rowmq gc
      rowmq gc orders --json
    """
    with database.open() as mq:
        found = [info.name for info in mq.topics()] if topic is None else [topic]
        if topic is not None:
            find_topic(mq, topic)
        deleted = {}
        with pulse("collecting", total=len(found), quiet=as_json) as update:
            for done, name in enumerate(found):
                update(done, f"collecting {name}")
                deleted[name] = mq.gc(name)
    if as_json:
        rows = [{"topic": name, "deleted": count} for name, count in deleted.items()]
        emit({"deleted": sum(deleted.values()), "topics": rows})
    elif topic is not None:
        out().print(f"deleted {plural(deleted[topic], 'message')} of topic {visible(topic)}")
    else:
        table(("topic", "deleted"), list(deleted.items()), empty="there are no topics")
