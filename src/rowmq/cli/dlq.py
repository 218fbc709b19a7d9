"""`rowmq dlq`: the messages that consumer groups gave up on."""

from typing import Any, NamedTuple

import click
from rich.text import Text

import rowmq
from rowmq.cli import names, options
from rowmq.cli.commands import Section
from rowmq.cli.failing import NotFound
from rowmq.cli.groups import find_group
from rowmq.cli.options import Database, confirm
from rowmq.cli.showing import (
    emit,
    facts,
    out,
    payload_fields,
    plural,
    pulse,
    show_payload,
    table,
    visible_lines,
)
from rowmq.cli.topics import find_topic
from rowmq.errors import PayloadMismatch

__all__ = ["dlq"]

COUNT_MAX = 1_000
"""How many letters are counted before something is done to them all."""

SEARCH_MAX = 100_000
"""Among how many letters those of some ids are looked for."""

of_group = click.option(
    "--group", shell_complete=names.groups, help="Only the letters of this group."
)
of_ids = click.option(
    "--id", "ids", multiple=True, help="Only the letters of this message; may be given again."
)
of_letters = click.option(
    "--letter",
    "handles",
    metavar="HANDLE",
    multiple=True,
    help="Only this letter, by its handle as `rowmq dlq show` tells it; may be given again.",
)


@click.group(cls=Section)
def dlq() -> None:
    """List, redrive or purge dead letters.

    A dead letter is a message that a consumer group gave up on. To redrive it is to give it back to
    that group, and to no other.

    For example:
      rowmq dlq
      rowmq dlq orders
      rowmq dlq show orders order-8
      rowmq dlq redrive orders --group billing
      rowmq dlq purge orders --id order-8

    Several keys may have a message of the same ID, and several groups may have given up on it: what
    is done by an ID is done to all of these letters. A handle is of one letter: show tells it.
    """


@dlq.command()
@click.argument("topic", required=False, shell_complete=names.topics)
@of_group
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=100,
    show_default=True,
    help="At most so many, oldest first.",
)
@options.database
@options.as_json
def ls(
    database: Database, topic: str | None, *, group: str | None, limit: int, as_json: bool
) -> None:
    """List the dead letters of a TOPIC, or of all, oldest first.

    For example:
      rowmq dlq ls
      rowmq dlq ls orders --group billing
    """
    with database.open() as mq:
        if topic is None:
            letters = letters_of_all(mq, group, limit)
        else:
            check(mq, topic, group)
            letters = letters_of(mq, topic, group, limit)
    if as_json:
        emit([letter_fields(letter) for letter in letters])
        return
    rows = [
        (
            letter.message.id,
            letter.message.topic if topic is None else None,
            letter.group,
            letter.message.key,
            letter.failed_at,
            letter.attempts,
            letter.error,
        )
        for letter in letters
    ]
    none = "there are no dead letters" if topic is None else f"topic {topic!r} has no dead letters"
    table(("id", "topic", "group", "key", "failed", "tries", "error"), rows, empty=none)


def letters_of_all(mq: rowmq.RowMQ, group: str | None, limit: int) -> list[rowmq.DeadLetter[Any]]:
    """The oldest letters of all topics."""
    letters = [
        letter for topic in mq.topics() for letter in letters_of(mq, topic.name, group, limit)
    ]
    return sorted(letters, key=lambda letter: letter.failed_at)[:limit]


def check(mq: rowmq.RowMQ, topic: str, group: str | None) -> None:
    """The topic must be there, and the group, if one is named. A group that was dropped may have
    left letters.
    """
    if letters_of(mq, topic, group, 1):
        return
    if group is None:
        find_topic(mq, topic)
    else:
        find_group(mq, topic, group)


def letters_of(
    mq: rowmq.RowMQ, topic: str, group: str | None, limit: int
) -> list[rowmq.DeadLetter[Any]]:
    """Letters; as bytes, if another program wrote a payload that is not what it says it is."""
    try:
        return mq.dead_letters(topic, group=group, limit=limit)
    except PayloadMismatch:
        return mq.dead_letters(topic, group=group, limit=limit, type=bytes)


def letter_fields(letter: rowmq.DeadLetter[Any]) -> dict[str, Any]:
    message = letter.message
    return {
        "handle": letter.handle,
        "topic": message.topic,
        "group": letter.group,
        "key": message.key,
        "shard": message.shard,
        "id": message.id,
        "offset": letter.offset,
        "attempts": letter.attempts,
        "error": letter.error,
        "failed_at": letter.failed_at,
        "published_at": message.published_at,
        "headers": dict(message.headers),
        **payload_fields(message.payload),
    }


@dlq.command()
@click.argument("topic", shell_complete=names.topics)
@click.argument("id", required=False)
@of_group
@of_letters
@options.database
@options.as_json
def show(
    database: Database,
    topic: str,
    id: str | None,
    *,
    group: str | None,
    handles: tuple[str, ...],
    as_json: bool,
) -> None:
    """Show the dead letters of the message ID, or some by their handles.

    For example:
      rowmq dlq show orders order-8
      rowmq dlq show orders --letter 12.7.1767225600000000
    """
    if id is None and not handles:
        raise click.UsageError("say which letters to show: the ID of a message, or --letter")
    picked = Picked(() if id is None else (id,), handles)
    with database.open() as mq:
        check(mq, topic, group)
        found = some(mq, topic, group, picked)
    if as_json:
        emit([letter_fields(letter) for letter in found])
        return
    for letter in found:
        hidden = ("payload", "encoding", "headers")
        shown = {
            name.removesuffix("_at"): value
            for name, value in letter_fields(letter).items()
            if name not in hidden
        }
        shown["error"] = None if letter.error is None else Text(visible_lines(letter.error))
        headers = {f"header {name}": value for name, value in letter.message.headers.items()}
        facts(shown | headers)
        show_payload(letter.message.payload)


class Picked(NamedTuple):
    """What was named: messages by their ids, or letters by their handles."""

    ids: tuple[str, ...]
    handles: tuple[str, ...]

    @property
    def arguments(self) -> dict[str, Any]:
        """The same as arguments of the client's calls."""
        return {"ids": list(self.ids) or None, "letters": list(self.handles) or None}


def some(
    mq: rowmq.RowMQ, topic: str, group: str | None, picked: Picked
) -> list[rowmq.DeadLetter[Any]]:
    """The letters that were named, which must be there."""
    if picked.ids and picked.handles:
        raise click.UsageError("name messages by --id, or letters by --letter: not both")
    if picked.handles:
        return [letter_of(mq, topic, group, handle) for handle in dict.fromkeys(picked.handles)]
    letters = letters_of(mq, topic, group, SEARCH_MAX)
    found = [letter for letter in letters if letter.message.id in picked.ids]
    missing = sorted(set(picked.ids) - {str(letter.message.id) for letter in found})
    if missing:
        raise NotFound(
            f"topic {topic!r} has no dead letter of {missing[0]!r}: rowmq dlq ls lists them"
        )
    return found


def letter_of(mq: rowmq.RowMQ, topic: str, group: str | None, handle: str) -> rowmq.DeadLetter[Any]:
    """The letter of a handle."""
    letter = mq.find_letter(topic, handle)
    if letter is None or group not in (None, letter.group):
        raise NotFound(
            f"topic {topic!r} has no dead letter {handle!r}: it was given back, or purged, or is "
            f"of another group; rowmq dlq ls lists them"
        )
    return letter


@dlq.command()
@click.argument("topic", shell_complete=names.topics)
@of_group
@of_ids
@of_letters
@options.database
@options.dry_run
@options.as_json
def redrive(
    database: Database,
    topic: str,
    *,
    group: str | None,
    ids: tuple[str, ...],
    handles: tuple[str, ...],
    dry_run: bool,
    as_json: bool,
) -> None:
    """Give dead letters back to the groups that gave up on them.

    For example:
      rowmq dlq redrive orders --group billing
      rowmq dlq redrive orders --id order-8 --id order-9
      rowmq dlq redrive orders --letter 12.7.1767225600000000
    """
    picked = Picked(ids, handles)
    with database.open() as mq:
        count, shown = chosen(mq, topic, group, picked)
        done = 0
        if not dry_run:
            with pulse(f"redriving {shown}", quiet=as_json):
                done = mq.redrive(topic, group=group, **picked.arguments)
    report("redriven", done, count, shown, dry_run=dry_run, as_json=as_json)


@dlq.command()
@click.argument("topic", shell_complete=names.topics)
@of_group
@of_ids
@of_letters
@options.database
@options.dry_run
@options.yes
@options.as_json
def purge(
    database: Database,
    topic: str,
    *,
    group: str | None,
    ids: tuple[str, ...],
    handles: tuple[str, ...],
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Delete dead letters for good.

    For example:
      rowmq dlq purge orders --id order-8
      rowmq dlq purge orders --group billing --yes
      rowmq dlq purge orders --letter 12.7.1767225600000000
    """
    picked = Picked(ids, handles)
    with database.open() as mq:
        count, shown = chosen(mq, topic, group, picked)
        done = 0
        if not dry_run and count:
            confirm(f"{shown} of topic {topic!r} will be deleted for good.", yes=yes)
            with pulse(f"purging {shown}", quiet=as_json):
                done = mq.purge_dead_letters(topic, group=group, **picked.arguments)
    report("purged", done, count, shown, dry_run=dry_run, as_json=as_json)


def chosen(mq: rowmq.RowMQ, topic: str, group: str | None, picked: Picked) -> tuple[int, str]:
    """How many letters it is about, at least, and that in words."""
    check(mq, topic, group)
    if picked.ids or picked.handles:
        count = len(some(mq, topic, group, picked))
        return count, plural(count, "dead letter")
    count = len(letters_of(mq, topic, group, COUNT_MAX))
    shown = (
        f"{count:,} or more dead letters" if count == COUNT_MAX else plural(count, "dead letter")
    )
    return count, shown


def report(what: str, done: int, count: int, shown: str, *, dry_run: bool, as_json: bool) -> None:
    if as_json:
        emit({what: done, "found": count, "dry_run": dry_run})
    elif dry_run:
        out().print(f"would be {what}: {shown}")
    else:
        out().print(f"{what} {plural(done, 'dead letter')}")
