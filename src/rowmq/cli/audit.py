"""`rowmq audit`: what was done by the dashboard and the HTTP API, and by whom."""

from datetime import timedelta
from difflib import get_close_matches
from typing import Any

import click

import rowmq
from rowmq.cli import options
from rowmq.cli.commands import Section
from rowmq.cli.options import Database, confirm
from rowmq.cli.showing import compact, duration, emit, out, plural, pulse, table
from rowmq.cli.tokens import somebody
from rowmq.cli.values import DURATION

__all__ = ["ACTIONS", "audit"]

ACTIONS = (
    "audit.left_out", "audit.prune",
    "group.close", "group.close_of", "group.create", "group.drop", "group.poll", "group.seek",
    "group.settle",
    "job.claim", "job.drop", "job.fail", "job.offer", "job.put", "job.reschedule", "job.retry",
    "job.run", "job.settle", "job.withdraw",
    "letters.purge", "letters.redrive", "letters.redrive_edited",
    "message.publish",
    "queue.configure", "queue.pause", "queue.prune", "queue.resume",
    "schedule.install", "schedule.pause", "schedule.remove", "schedule.resume", "schedule.run",
    "session.begin", "session.end",
    "token.create", "token.revoke",
    "topic.configure",
)  # fmt: skip
"""What RowMQ itself writes into the trail; whoever calls `mq.access.record` may add others. They
are listed here, since the dashboard may not be installed where its trail is looked at.
"""


@click.group(cls=Section)
def audit() -> None:
    """Show who did what by the dashboard, or prune that trail.

    For example:
      rowmq audit
      rowmq audit ls --who ann --action group.seek
      rowmq audit prune --older-than 365d
    """


@audit.command()
@click.option("--who", metavar="NAME", help="Of the token of this name.")
@click.option(
    "--action",
    metavar="NAME",
    shell_complete=lambda *about: [name for name in ACTIONS if name.startswith(about[-1])],
    help="As in group.seek.",
)
@click.option("--before", type=click.IntRange(0), metavar="ID", help="Before the entry of this id.")
@click.option(
    "--limit",
    type=click.IntRange(1, 1000),
    default=50,
    show_default=True,
    help="At most so many.",
)
@options.database
@options.as_json
def ls(
    database: Database,
    *,
    who: str | None,
    action: str | None,
    before: int | None,
    limit: int,
    as_json: bool,
) -> None:
    """List the audit trail, the newest first.

    What was refused is in it, too.

    For example:
      rowmq audit ls
      rowmq audit ls --who ann --limit 1000 --json
    """
    with database.open() as mq:
        found = mq.access.audit(limit=limit, before=before, who=who, action=action)
        if action is not None and not found:
            check_action(mq, action)
    if as_json:
        emit([entry_fields(entry) for entry in found])
        return
    rows = [
        (e.id, e.at, e.who, e.action, e.target, e.ending, told(e), e.remote or None) for e in found
    ]
    columns = ("id", "at", "who", "action", "target", "ending", "details", "from")
    chosen = any(choice is not None for choice in (who, action, before))
    table(columns, rows, empty="no entry is like that" if chosen else "nothing was done yet")


def check_action(mq: rowmq.RowMQ, action: str) -> None:
    """It must be one that is ever written: by RowMQ, or by somebody who has done so."""
    if action in ACTIONS or mq.access.audit(limit=1, action=action):
        return
    near = get_close_matches(action, ACTIONS, n=1)
    meant = f" Did you mean {near[0]!r}?" if near else ""
    raise click.BadParameter(
        f"there is no action {action!r}.{meant} There are {', '.join(ACTIONS)}",
        param_hint="--action",
    )


def told(entry: rowmq.AuditEntry) -> str | None:
    return compact(dict(entry.details)) if entry.details else None


def entry_fields(entry: rowmq.AuditEntry) -> dict[str, Any]:
    return {
        "id": entry.id,
        "at": entry.at,
        "who": entry.who,
        "action": entry.action,
        "target": entry.target,
        "ending": entry.ending,
        "details": dict(entry.details),
        "remote": entry.remote,
    }


@audit.command()
@click.option(
    "--older-than",
    type=DURATION,
    metavar="DURATION",
    default="365d",
    show_default=True,
    help="How old entries are that may go.",
)
@options.database
@options.yes
@options.as_json
def prune(database: Database, *, older_than: timedelta, yes: bool, as_json: bool) -> None:
    """Delete old entries of the trail.

    It is kept for ever otherwise.

    For example:
      rowmq audit prune --older-than 90d --yes
    """
    with database.open() as mq:
        confirm(f"What was done more than {duration(older_than)} ago will be forgotten.", yes=yes)
        with pulse("pruning the trail", quiet=as_json):
            count = mq.access.prune_audit(older_than=older_than)
        details = {"older_than_seconds": older_than.total_seconds(), "pruned": count}
        mq.access.record(
            "audit.prune", who=somebody(), details=details
        )  # after: else it may go, too
    if as_json:
        emit({"pruned": count})
    else:
        out().print(f"pruned {plural(count, 'entry')}")
