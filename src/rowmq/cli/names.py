"""Completion of names that are in the database: quick, and silent whatever happens."""

import contextlib
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import click

import rowmq
from rowmq.cli.options import Database

__all__ = ["groups", "queues", "schedules", "topics"]

SECONDS_MAX = 1.0
"""How long a server may take to answer: whoever presses Tab does not wait longer."""

PLAIN = re.compile(r"[\w.@%+:/=-]+")
"""Names that mean nothing to a shell: others would be run, if they were completed unquoted."""

Find = Callable[[rowmq.RowMQ, click.Context], Iterable[str]]


def completed(find: Find) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """A callback of click's that finds names, or none."""

    def complete(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
        with contextlib.suppress(Exception), silence():
            names = names_of(find, ctx)
            return sorted(n for n in names if n.startswith(incomplete) and PLAIN.fullmatch(n))
        return []

    return complete


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Whoever presses Tab wants to see names, and no log."""
    log = logging.getLogger("rowmq")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)


def names_of(find: Find, ctx: click.Context) -> list[str]:
    database = Database(
        setting(ctx, "url") or "",
        setting(ctx, "prefix") or rowmq.DEFAULT_PREFIX,
        setting(ctx, "schema"),
    )
    if not database.url or database.missing_file is not None:
        return []
    with rowmq.connect(
        database.url,
        prefix=database.prefix,
        schema=database.schema,
        connect_timeout=SECONDS_MAX,
        lock_timeout=SECONDS_MAX,
        retry_for=0,
        notify=False,
        auto_migrate=False,
    ) as mq:
        return list(find(mq, ctx))


def setting(ctx: click.Context, name: str) -> Any:
    return ctx.params.get(name) or os.environ.get(f"ROWMQ_{name.upper()}")


def groups_of(mq: rowmq.RowMQ, ctx: click.Context) -> list[str]:
    topic = ctx.params.get("topic")
    return [group.name for group in mq.groups(topic)] if topic else []


topics = completed(lambda mq, _: [topic.name for topic in mq.topics()])
groups = completed(groups_of)
queues = completed(lambda mq, _: [queue.name for queue in mq.queues()])
schedules = completed(lambda mq, _: [schedule.name for schedule in mq.cron.list()])
