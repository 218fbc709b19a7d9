"""`rowmq seek`: move a consumer group, once it was shown where to."""

from datetime import datetime
from typing import Any, NamedTuple

import click

import rowmq
from rowmq.cli import names, options
from rowmq.cli.commands import Command
from rowmq.cli.failing import NotFound
from rowmq.cli.groups import find_group
from rowmq.cli.options import Database, confirm, place_chosen
from rowmq.cli.showing import emit, err, out, plural, shard_shown, table_of, visible
from rowmq.cli.values import Place, place_of
from rowmq.store import keys

__all__ = ["seek"]

PREVIEW_MAX = 20
"""How many partitions are shown before a seek."""


class Move(NamedTuple):
    """Where a group stands in a partition, and what it is to be delivered next."""

    key: str | None
    shard: int
    acked: int
    next: int
    last: int

    @property
    def again(self) -> int:
        """How many messages it gets once more."""
        return max(0, self.acked + 1 - self.next)

    @property
    def skipped(self) -> int:
        """How many messages it never gets."""
        return max(0, self.next - 1 - self.acked)


@click.command(cls=Command)
@click.argument("topic", shell_complete=names.topics)
@click.argument("group", shell_complete=names.groups)
@click.option(
    "--to",
    required=True,
    metavar="earliest|latest|TIME|OFFSET",
    help="The first message there is, the next one published, the first one published at or "
    "after a time, or an offset, which is delivered next.",
)
@click.option("--key", help="Only the partition of this key.")
@options.shard
@options.database
@options.dry_run
@options.yes
@options.as_json
def seek(
    database: Database,
    topic: str,
    group: str,
    *,
    to: str,
    key: str | None,
    shard: int | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Move a consumer group to another place.

    Shows first what will happen, and asks. Subscribers may be running: what they have in flight
    becomes void.

    For example:
      rowmq seek orders billing --to earliest
      rowmq seek orders billing --to 2026-03-01T09:30:00Z --dry-run
      rowmq seek orders billing --to 17 --key customer-42 --yes
      rowmq seek orders billing --to 17 --shard 3
    """
    one = place_chosen(key, shard)
    place = place_of(to, words=("earliest", "latest"), option="--to")
    with database.open() as mq:
        find_group(mq, topic, group)
        moves, more = preview(mq, topic, group, place, one)
        if not as_json:
            show(moves, more)
        moved = 0
        if not dry_run:
            confirm(question(topic, group, moves, more), yes=yes)
            moved = mq.seek(topic, group, **target(place, one, moves))
    if as_json:
        answer = {"topic": topic, "group": group, "moved": moved}
        emit(answer | {"dry_run": dry_run, "partitions": [fields(move) for move in moves]})
    elif dry_run:
        err().print(("nothing was changed", "dim"))
    else:
        out().print(visible(f"moved group {group} in {plural(moved, 'partition')}"))


def preview(
    mq: rowmq.RowMQ, topic: str, group: str, place: Place, one: keys.Place | None
) -> tuple[list[Move], int]:
    """What a seek does to the first partitions, and how many more there are. What offsets are
    given for is known for all; where a time is, is looked up in these few.
    """
    acked = {(row.key, row.shard): row.offset_acked for row in mq.lag(topic, group)}
    found = [info for info in mq.partitions(topic) if one in (None, (info.key, info.shard))]
    if one is not None and not found:
        key, shard = one
        where = f"in shard {shard}, without a key" if key is None else f"with the key {key!r}"
        raise NotFound(f"topic {topic!r} has no messages {where}")
    chosen = found[:PREVIEW_MAX] if isinstance(place, datetime) else found
    moves = [
        Move(p.key, p.shard, now, next_of(mq, topic, p, place), p.last_offset)
        for p in chosen
        for now in [acked.get((p.key, p.shard), 0)]
    ]
    return moves, len(found) - len(chosen)


def next_of(mq: rowmq.RowMQ, topic: str, info: rowmq.PartitionInfo, place: Place) -> int:
    """The offset that is delivered next in a partition."""
    if place == "earliest":
        return info.first_offset
    if isinstance(place, datetime):
        first = mq.read(topic, key=(info.key, info.shard), since=place, limit=1)
        return first[0].offset if first else info.last_offset + 1
    if isinstance(place, int):
        if not info.first_offset <= place <= info.last_offset + 1:
            name, option = f"key {info.key!r}", "--key"
            if info.key is None:
                name = f"shard {info.shard} of the messages without a key"
                option = "--shard or --key"
            raise click.BadParameter(
                f"{name}: there are the offsets {info.first_offset} to {info.last_offset}, and "
                f"{info.last_offset + 1} is what comes next; {option} names one partition",
                param_hint="--to",
            )
        return place
    return info.last_offset + 1


def target(place: Place, one: keys.Place | None, moves: list[Move]) -> dict[str, Any]:
    """The arguments of `mq.seek`."""
    if isinstance(place, int):
        return {"to": {(move.key, move.shard): move.next for move in moves}}
    return {"to": place, "key": one}


def show(moves: list[Move], more: int) -> None:
    rows = [
        (m.key, shard_shown(m.key, m.shard), m.acked, m.next, m.again, m.skipped)
        for m in moves[:PREVIEW_MAX]
    ]
    if rows:
        err().print(table_of(("key", "shard", "acked now", "next then", "again", "skipped"), rows))
    more += len(moves[PREVIEW_MAX:])
    if more:
        err().print((f"and {plural(more, 'more partition')}", "dim"))


def question(topic: str, group: str, moves: list[Move], more: int) -> str:
    again, skipped = sum(m.again for m in moves), sum(m.skipped for m in moves)
    besides = f", besides {plural(more, 'partition')} more" if more else ""
    return (
        f"Group {group!r} of topic {topic!r} gets {plural(again, 'message')} again and skips "
        f"{skipped:,}{besides}; what its subscribers have in flight becomes void."
    )


def fields(move: Move) -> dict[str, Any]:
    return {
        "key": move.key,
        "shard": move.shard,
        "offset_acked": move.acked,
        "next_offset": move.next,
        "last_offset": move.last,
        "again": move.again,
        "skipped": move.skipped,
    }
