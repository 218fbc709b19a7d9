"""`rowmq tail`: follow a topic by reading its log. No group is made, and nobody notices."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import click
from rich.text import Text

import rowmq
from rowmq.cli import names, options
from rowmq.cli.commands import Command
from rowmq.cli.options import Database, place_chosen
from rowmq.cli.showing import Screen, compact, emit, err, out, payload_fields, visible
from rowmq.cli.topics import find_topic
from rowmq.cli.values import place_of
from rowmq.errors import PayloadMismatch
from rowmq.store.keys import Place

__all__ = ["tail"]

BATCH = 1_000
"""How many messages are read at once."""

PAUSE_SECONDS = (0.1, 1.0)
"""How long to wait for more: at first, and at most while there is nothing."""

Offsets = dict[Place, int]
"""By key and shard."""


@click.command(cls=Command)
@click.argument("topic", shell_complete=names.topics)
@click.option(
    "--from",
    "start",
    metavar="earliest|OFFSET|TIME",
    help="Begin with the first message there is, with an offset, or with what was published at "
    "or after a time. Without it, with the next message.",
)
@click.option("-n", "last", type=click.IntRange(0), help="Show the last so many messages first.")
@click.option("--key", help="Only messages with this key.")
@options.shard
@click.option("--limit", type=click.IntRange(1), help="End after so many messages.")
@click.option("--follow/--no-follow", default=True, help="Wait for more, or end.")
@options.database
@options.as_json
def tail(
    database: Database,
    topic: str,
    *,
    start: str | None,
    last: int | None,
    key: str | None,
    shard: int | None,
    limit: int | None,
    follow: bool,
    as_json: bool,
) -> None:
    """Follow a topic, without consuming it.

    Shown are time, key, offset, id, payload and headers; of messages without a key, the shard
    that the offset counts in. Those of one key come in their order; with --json, one to a line.

    For example:
      rowmq tail orders -n 10
      rowmq tail orders --from 2026-03-01T09:30:00Z --key customer-42
      rowmq tail orders --from earliest --no-follow --json > orders.jsonl
    """
    if start is not None and last is not None:
        raise click.UsageError("give --from or -n, but not both")
    one = place_chosen(key, shard)
    place = None if start is None else place_of(start, words=("earliest",), option="--from")
    with database.open() as mq:
        if not follow:
            find_topic(mq, topic)
        elif not as_json and not mq.partitions(topic):
            err().print((visible(f"waiting for the first message of topic {topic!r}"), "dim"))
        reader = Reader(mq, topic, one)
        if place is None and last is None and not follow:
            place = "earliest"
        messages = reader.begin(place, last or 0)
        shown = show_all(messages, limit, as_json=as_json)
        if follow:
            rest = None if limit is None else limit - shown
            if rest is None or rest > 0:
                show_all(reader.follow(), rest, as_json=as_json)


class Reader:
    """Reads a topic, and remembers which offset comes next in each partition."""

    def __init__(self, mq: rowmq.RowMQ, topic: str, one: Place | None) -> None:
        self.mq = mq
        self.topic = topic
        self.one = one
        self.next: Offsets = {}

    def begin(self, place: str | int | datetime | None, last: int) -> Iterator[Any]:
        """Messages from a place on, or the last so many, up to now."""
        partitions = [
            info
            for info in self.mq.partitions(self.topic)
            if self.one in (None, partition_of(info))
        ]
        ends = {partition_of(info): info.last_offset + 1 for info in partitions}
        if place is None:
            yield from self.newest(partitions, last)
        elif isinstance(place, int):
            self.next = dict.fromkeys(ends, place)
            yield from self.read()
        else:
            yield from self.read(since=place if isinstance(place, datetime) else None)
        for known, end in ends.items():
            # What is older than asked for is not to come later.
            self.next[known] = max(self.next.get(known, 1), end)

    def newest(self, partitions: list[rowmq.PartitionInfo], count: int) -> list[Any]:
        """The last messages of all. Times rise within a partition: so the newest so many are in
        those partitions whose last messages are the newest.
        """
        held = [info for info in partitions if info.messages]
        if not held or not count:
            return []
        if len(held) > count:
            heads = self.at({partition_of(p): p.last_offset for p in partitions}, limit=len(held))
            newest = {partition_of(head) for head in sorted(heads, key=when)[-count:]}
            held = [info for info in held if partition_of(info) in newest]
        places = {partition_of(info): info.last_offset + 1 for info in partitions}
        places |= {partition_of(info): max(1, info.last_offset + 1 - count) for info in held}
        return sorted(self.at(places, limit=count * len(held)), key=when)[-count:]

    def at(self, places: Offsets, *, limit: int, since: datetime | None = None) -> list[Any]:
        """Messages from places on; as bytes, if another program wrote a payload that is not what
        it says it is.
        """
        how: dict[str, Any] = {"key": self.one, "from_offset": places, "since": since}
        try:
            return self.mq.read(self.topic, limit=limit, **how)
        except PayloadMismatch:
            return self.mq.read(self.topic, limit=limit, type=bytes, **how)

    def read(self, since: datetime | None = None) -> Iterator[Any]:
        """All that there is from where we are on, a batch at a time."""
        while True:
            found = self.one_or_many(since)
            for message in found:
                self.next[partition_of(message)] = message.offset + 1
            yield from sorted(found, key=when)
            if not found:
                return

    def one_or_many(self, since: datetime | None) -> list[Any]:
        """A batch; around a payload that cannot be read, one message."""
        how: dict[str, Any] = {"key": self.one, "from_offset": self.next, "since": since}
        try:
            return self.mq.read(self.topic, limit=BATCH, **how)
        except PayloadMismatch:
            return self.at(self.next, limit=1, since=since)

    def follow(self) -> Iterator[Any]:
        """What is published from now on."""
        shortest, longest = PAUSE_SECONDS
        pause = shortest
        while True:
            some = False
            for message in self.read():
                some = True
                yield message
            pause = shortest if some else min(pause * 1.5, longest)
            time.sleep(pause)


def partition_of(thing: rowmq.Message[Any] | rowmq.PartitionInfo) -> Place:
    """What a partition, or that of a message, is known by."""
    return thing.key, thing.shard


def when(message: rowmq.Message[Any]) -> tuple[datetime, str, int, int]:
    """The order of messages of several partitions."""
    return (
        message.published_at or datetime.min.replace(tzinfo=UTC),
        message.key or "",
        message.shard,
        message.offset,
    )


def show_all(messages: Iterator[Any], limit: int | None, *, as_json: bool) -> int:
    """Print messages, at most so many; how many it were."""
    screen = out()
    shown = 0
    for message in messages:
        if as_json:
            emit(message_fields(message))
        else:
            show(screen, message)
        shown += 1
        if shown == limit:
            break
    return shown


def show(screen: Screen, message: rowmq.Message[Any]) -> None:
    """A message for people: when, key or shard, offset, id, payload, headers."""
    published = message.published_at or datetime.now(UTC)
    line = Text()
    line.append(published.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + "Z ", "dim")
    if message.key is None:
        line.append(f"- (shard {message.shard})", "dim")
    else:
        line.append(visible(message.key), "cyan")
    line.append(f" {message.offset} ", "bold")
    line.append(visible(message.id or "") + " ", "dim")
    line.append(visible(compact(message.payload)))
    for name, value in message.headers.items():
        line.append(f" {visible(name)}={visible(value)}", "magenta")
    screen.print(line, soft_wrap=True)


def message_fields(message: rowmq.Message[Any]) -> dict[str, Any]:
    return {
        "topic": message.topic,
        "key": message.key,
        "shard": message.shard,
        "offset": message.offset,
        "id": message.id,
        "published_at": message.published_at,
        "headers": dict(message.headers),
        **payload_fields(message.payload),
    }
