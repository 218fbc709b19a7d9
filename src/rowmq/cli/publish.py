"""`rowmq publish`: messages from arguments, files and stdin."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import click
import msgspec

import rowmq
from rowmq.cli import names, options
from rowmq.cli.commands import Command
from rowmq.cli.options import Database
from rowmq.cli.showing import NEW, emit, out, plural, visible
from rowmq.cli.sources import (
    Item,
    Source,
    argument_items,
    batches,
    open_sources,
    parse_argument,
    parse_json,
    parse_text,
    reading,
    refused,
    unpacked,
)
from rowmq.cli.values import HEADER
from rowmq.errors import InvalidInput

__all__ = ["publish"]

Messages = list[Item[rowmq.Message[Any]]]


class Envelope(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A line with `--envelope`. What only a message that was read has is accepted and ignored."""

    payload: Any
    key: str | None = None
    id: str | None = None
    headers: dict[str, str] | None = None
    encoding: str = "json"
    topic: str | None = None
    offset: int | None = None
    published_at: str | None = None
    shard: int | None = None


class Marks(msgspec.Struct, frozen=True):
    """What the options give to every message."""

    key: str | None
    id: str | None
    headers: dict[str, str]

    def message(self, payload: Any) -> rowmq.Message[Any]:
        return rowmq.Message(payload=payload, key=self.key, id=self.id, headers=self.headers)

    def open(self, line: bytes) -> rowmq.Message[Any]:
        """The message of an envelope."""
        try:
            envelope = msgspec.json.decode(line, type=Envelope)
        except RecursionError as error:
            raise ValueError(f"this is nested too deep ({error})") from None
        return rowmq.Message(
            payload=unpacked(envelope.payload, envelope.encoding),
            key=self.key if envelope.key is None else envelope.key,
            id=self.id if envelope.id is None else envelope.id,
            headers=self.headers | (envelope.headers or {}),
        )


@click.command(cls=Command)
@click.argument("topic", shell_complete=names.topics)
@click.argument("payloads", metavar="[PAYLOAD]...", nargs=-1)
@options.files
@click.option("--key", help="The key: messages with the same one keep their order.")
@click.option("--id", help="The id: the same key and id twice is one message.")
@click.option(
    "--header", "headers", type=HEADER, multiple=True, help="A header; may be given again."
)
@click.option("--envelope", is_flag=True, help="Each line is {payload, key, id, headers}.")
@click.option("--raw", is_flag=True, help="Payloads are text, and not JSON.")
@options.database
@options.as_json
def publish(
    database: Database,
    topic: str,
    payloads: tuple[str, ...],
    *,
    files: tuple[str, ...],
    key: str | None,
    id: str | None,
    headers: tuple[tuple[str, str], ...],
    envelope: bool,
    raw: bool,
    as_json: bool,
) -> None:
    """Publish messages from arguments, files or stdin.

    A PAYLOAD is JSON, or else text; what begins with { or [ must be JSON. Files, and stdin if it is
    no terminal, have a JSON value to a line. They are published 1,000 at a time; a line that is
    wrong is named, and nothing of its batch is published. With --envelope, what rowmq tail --json
    printed can be published again. A TOPIC that is not there is made, and said to be new.

    For example:
      rowmq publish orders '{"id": 7}' --key customer-42 --id order-7
      rowmq publish orders --file orders.jsonl --header source=import
      rowmq tail orders --from earliest --no-follow --json | rowmq publish copy --envelope
    """
    if envelope and raw:
        raise click.UsageError("give --envelope or --raw, but not both")
    if id is not None and len(payloads) != 1:
        raise click.UsageError("--id names one message: give one PAYLOAD, or ids in --envelope")
    marks = Marks(key, id, dict(headers))
    sources = open_sources(files, arguments=bool(payloads))
    tally = Tally(topic, one_by_one=bool(payloads) and not files)
    with (
        database.open(create=True) as mq,
        reading(f"publishing to {topic}", sources, quiet=as_json) as read,
    ):
        tally.is_new = not as_json and not is_known(mq, topic)
        for batch in given(payloads, sources, marks, envelope=envelope, raw=raw, read=read):
            try:
                tally.add(mq.publish_many(topic, [item.value for item in batch]))
            except InvalidInput as error:
                raise refused(error, batch, tally.total) from error
    tally.report(as_json=as_json)


def is_known(mq: rowmq.RowMQ, topic: str) -> bool:
    """Whether there is a topic. To look at all of one may take long: most have a partition."""
    return bool(mq.partitions(topic, limit=1)) or mq.topic(topic) is not None


def given(
    payloads: tuple[str, ...],
    sources: list[Source],
    marks: Marks,
    *,
    envelope: bool,
    raw: bool,
    read: Callable[[int], None],
) -> Iterator[Messages]:
    """The messages to publish, in batches; all arguments are one."""
    of_line: Callable[[bytes], Any] = parse_text if raw else parse_json
    of_argument: Callable[[bytes], Any] = parse_text if raw else parse_argument
    if payloads:
        parse = marks.open if envelope else partial(parsed, of_argument, marks)
        yield argument_items(payloads, parse)
    parse = marks.open if envelope else partial(parsed, of_line, marks)
    yield from batches(sources, parse, read=read)


def parsed(parse: Callable[[bytes], Any], marks: Marks, line: bytes) -> rowmq.Message[Any]:
    return marks.message(parse(line))


class Tally:
    """What became of messages: of each, if they were given one by one, else how many it were."""

    def __init__(self, topic: str, *, one_by_one: bool) -> None:
        self.topic = topic
        self.is_new = False
        self.results: list[rowmq.PublishResult] | None = [] if one_by_one else None
        self.total = 0
        self.duplicates = 0

    def add(self, results: list[rowmq.PublishResult]) -> None:
        self.total += len(results)
        self.duplicates += sum(result.duplicate for result in results)
        if self.results is not None:
            self.results += results

    def report(self, *, as_json: bool) -> None:
        if as_json:
            emit(self.fields())
            return
        topic = visible(self.topic)
        new = NEW if self.is_new and self.total else ""
        for result in self.results or []:
            what = "was there already" if result.duplicate else "published"
            key = f", key {visible(result.key)}" if result.key else f", shard {result.shard}"
            where = f"{topic}{new}{key}, offset {result.offset}, id {visible(result.id)}"
            out().print(f"{what}: {where}", soft_wrap=True)
            new = ""  # by the next one it is known
        if self.results is None:
            many = plural(self.total - self.duplicates, "message")
            also = f", {plural(self.duplicates, 'duplicate')}" if self.duplicates else ""
            out().print(f"published {many} to {topic}{new}{also}")

    def fields(self) -> dict[str, Any]:
        each = None if self.results is None else [result_fields(r) for r in self.results]
        return {
            "topic": self.topic,
            "published": self.total - self.duplicates,
            "duplicates": self.duplicates,
            "messages": each,
        }


def result_fields(result: rowmq.PublishResult) -> dict[str, Any]:
    return {
        "key": result.key,
        "shard": result.shard,
        "id": result.id,
        "offset": result.offset,
        "duplicate": result.duplicate,
    }
