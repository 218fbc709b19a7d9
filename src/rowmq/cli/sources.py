"""Where `publish` and `jobs put` get payloads from: arguments, files, stdin; in batches.

Of a stream that is slower than we are, a batch is what has come so far: whoever follows a log file
does not wait for a thousand lines.
"""

import base64
import binascii
import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Generic, NamedTuple, TypeVar

import click
import msgspec

from rowmq.cli.showing import pulse, visible
from rowmq.errors import RowMQError

__all__ = [
    "BATCH",
    "Item",
    "Source",
    "argument_items",
    "batches",
    "open_sources",
    "parse_argument",
    "parse_json",
    "parse_text",
    "reading",
    "refused",
    "unpacked",
]

BATCH = 1_000
"""How many payloads go into a transaction."""

CHUNK_BYTES = 64 * 1024

T = TypeVar("T")
E = TypeVar("E", bound=RowMQError)

Parse = Callable[[bytes], T]


class Item(NamedTuple, Generic[T]):
    """What was read, and where it stood."""

    value: T
    place: str


class Source(NamedTuple):
    """Something to read lines from."""

    name: str
    stream: BinaryIO
    size: int | None

    @property
    def flows(self) -> bool:
        """Whether its end is not known."""
        return self.size is None


def open_sources(files: Sequence[str], *, arguments: bool) -> list[Source]:
    """The files that are named; without any, and without arguments, stdin if it is no terminal."""
    if not files and not arguments:
        if sys.stdin is None or sys.stdin.isatty():
            raise click.UsageError("give a PAYLOAD, or --file F, or JSON lines on stdin")
        files = ["-"]
    return [open_source(name) for name in files]


def open_source(name: str) -> Source:
    if name == "-":
        return Source("stdin", sys.stdin.buffer, None)
    try:
        stream = Path(name).open("rb")  # noqa: SIM115 - it is closed with the command
    except OSError as error:
        raise click.UsageError(f"{visible(name)} cannot be read: {error.strerror}") from None
    click.get_current_context().call_on_close(stream.close)
    found = os.fstat(stream.fileno())
    return Source(visible(name), stream, found.st_size if stat.S_ISREG(found.st_mode) else None)


@contextmanager
def reading(
    doing: str, sources: Sequence[Source], *, quiet: bool
) -> Iterator[Callable[[int], None]]:
    """A bar that shows how much of the sources was read, as far as their sizes are known."""
    sizes = [source.size for source in sources]
    total = None if None in sizes or not sizes else sum(size or 0 for size in sizes)
    done = 0
    with pulse(doing, total=total, quiet=quiet) as update:

        def read(count: int) -> None:
            nonlocal done
            done += count
            update(done)

        yield read


def batches(
    sources: Iterable[Source], parse: Parse[T], *, read: Callable[[int], None]
) -> Iterator[list[Item[T]]]:
    """What is in the lines of sources, some at a time; `read` is told of the bytes."""
    batch: list[Item[T]] = []
    for source in sources:
        for lines, idle in lines_of(source, read):
            for number, line in lines:
                if line.strip():
                    batch.append(item_of(line, f"{source.name}:{number}", parse))
                if len(batch) == BATCH:
                    yield batch
                    batch = []
            if idle and batch:
                yield batch
                batch = []
    if batch:
        yield batch


Lines = list[tuple[int, bytes]]


def lines_of(source: Source, read: Callable[[int], None]) -> Iterator[tuple[Lines, bool]]:
    """The numbered lines of a source, chunk by chunk, and whether more is yet to be waited for."""
    rest: list[bytes] = []  # put together once, however many chunks a line has
    number = 0
    while chunk := read_some(source):
        read(len(chunk))
        *whole, end = chunk.split(b"\n")
        if whole:
            whole[0] = b"".join([*rest, whole[0]])
            rest = []
        rest.append(end)
        yield list(enumerate(whole, number + 1)), source.flows and len(chunk) < CHUNK_BYTES
        number += len(whole)
    yield [(number + 1, b"".join(rest))], False


def read_some(source: Source) -> bytes:
    try:
        some: bytes = source.stream.read1(CHUNK_BYTES)  # type: ignore[attr-defined]
        return some
    except OSError as error:
        raise click.ClickException(f"{source.name} cannot be read: {error.strerror}") from None


def item_of(line: bytes, place: str, parse: Parse[T]) -> Item[T]:
    try:
        return Item(parse(line), place)
    except (ValueError, msgspec.MsgspecError) as error:
        raise click.ClickException(f"{place}: {error}. Nothing of this batch was written") from None


def argument_items(arguments: Iterable[str], parse: Parse[T]) -> list[Item[T]]:
    """What was given on the command line."""
    return [
        item_of(text.encode("utf-8", "surrogateescape"), f"payload {place}", parse)
        for place, text in enumerate(arguments, 1)
    ]


# --- what a line holds ----------------------------------------------------------------------------


def parse_text(line: bytes) -> str:
    """A line as it is."""
    try:
        return line.rstrip(b"\r").decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"this is no UTF-8 ({error.reason} at byte {error.start + 1})") from None


def parse_json(line: bytes) -> Any:
    """A line of JSON."""
    try:
        return msgspec.json.decode(line)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(f"this is no JSON ({error}); --raw takes lines as text") from None


def parse_argument(text: bytes) -> Any:
    """An argument: JSON if it is, else text; but what begins as JSON was meant to be some."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError) as error:
        if text.lstrip().startswith((b"{", b"[")):
            raise ValueError(
                f"this begins as JSON, and is none ({error}); put all of it into single quotes, or "
                f"send it as text with --raw"
            ) from None
        return parse_text(text)


def unpacked(payload: Any, encoding: str) -> Any:
    """The payload of an envelope, as `rowmq tail --json` prints it."""
    if encoding != "base64":
        return payload
    try:
        return base64.b64decode(payload, validate=True)
    except (TypeError, ValueError, binascii.Error):
        raise ValueError("the payload is no base64, as its encoding says") from None


def refused(error: E, batch: Sequence[Item[Any]], done: int) -> E:
    """An error about a batch, with the place of what it is about."""
    word, _, rest = str(error).partition(": ")
    number = word.rpartition(" ")[2]
    if word.startswith(("message ", "payload ")) and number.isdigit():
        story = f"{batch[int(number)].place}: {rest}"
    else:
        last = "" if len(batch) == 1 else f" to {batch[-1].place}"
        story = f"{batch[0].place}{last}: {error}"
    before = f" ({done:,} before this batch are written)" if done else ""
    return type(error)(story + before)
