"""The tables of a lake: their columns, how they are partitioned, and how folders are named."""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote, unquote

import msgspec
import pyarrow as pa

__all__ = ["DEAD_LETTERS", "JOBS", "LAG", "LAYOUTS", "MESSAGES", "Layout", "folder_of", "values_in"]

TEXT, NUMBER, COUNT = pa.string(), pa.int64(), pa.int32()
TIME = pa.timestamp("us", "UTC")
HEADERS = pa.map_(TEXT, TEXT)
DATE = "date"

FOLDER_CHARS_MAX = 240
"""How long the name of a folder gets: file systems allow 255 bytes."""

NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
"""What stands for no value, by the custom of Hive."""


class Layout(msgspec.Struct, frozen=True):
    """A table: its columns, the one that names what a row belongs to, and the one with its time."""

    table: str
    columns: dict[str, Any]
    name: str | None
    time: str
    measured: tuple[str, ...]
    """Columns whose smallest and largest values are written down for each file."""

    @property
    def partitioned_by(self) -> tuple[str, ...]:
        return (DATE,) if self.name is None else (self.name, DATE)

    @property
    def stored(self) -> pa.Schema:
        """The columns of a file: those it is partitioned by stand in the log."""
        return pa.schema([one for one in self.columns.items() if one[0] not in self.partitioned_by])

    @property
    def schema(self) -> pa.Schema:
        """All columns."""
        by = [(name, pa.date32() if name == DATE else TEXT) for name in self.partitioned_by]
        return pa.schema([*by, *self.stored])


MESSAGES = Layout(
    table="messages",
    name="topic",
    time="timestamp",
    measured=("partition", "offset", "timestamp"),
    columns={
        "topic": TEXT,
        "key": TEXT,
        "value": pa.binary(),
        "partition": NUMBER,
        "offset": NUMBER,
        "timestamp": TIME,
        "id": TEXT,
        "headers": HEADERS,
        "encoding": TEXT,
    },
)

DEAD_LETTERS = Layout(
    table="dead_letters",
    name="topic",
    time="failed_at",
    measured=("partition", "offset", "failed_at"),
    columns={
        "topic": TEXT,
        "group": TEXT,
        "key": TEXT,
        "partition": NUMBER,
        "offset": NUMBER,
        "id": TEXT,
        "origin_partition": NUMBER,
        "origin_offset": NUMBER,
        "value": pa.binary(),
        "encoding": TEXT,
        "headers": HEADERS,
        "attempts": COUNT,
        "error": TEXT,
        "failed_at": TIME,
    },
)

JOBS = Layout(
    table="jobs",
    name="queue",
    time="finished_at",
    measured=("id", "finished_at"),
    columns={
        "queue": TEXT,
        "id": NUMBER,
        "kind": TEXT,
        "key": TEXT,
        "ordering_key": TEXT,
        "priority": COUNT,
        "state": TEXT,
        "value": pa.binary(),
        "encoding": TEXT,
        "headers": HEADERS,
        "attempts": COUNT,
        "deliveries": COUNT,
        "created_at": TIME,
        "due_at": TIME,
        "started_at": TIME,
        "finished_at": TIME,
        "error": TEXT,
    },
)

LAG = Layout(
    table="lag",
    name=None,
    time="sampled_at",
    measured=("sampled_at",),
    columns={
        "sampled_at": TIME,
        "topic": TEXT,
        "group": TEXT,
        "lag": NUMBER,
        "in_flight": NUMBER,
        "oldest_seconds": pa.float64(),
        "partitions": COUNT,
    },
)

LAYOUTS = {layout.table: layout for layout in (MESSAGES, DEAD_LETTERS, JOBS, LAG)}


def folder_of(values: Mapping[str, str]) -> str:
    """The folder of a partition, as in topic=orders/date=2026-01-31.

    Every byte that is not plain is escaped, as deltalake and Hive do it. What would be too long for
    a file system is cut, and ends with a hash: the log has the whole value.
    """
    return "/".join(f"{name}={escaped(value, len(name) + 1)}" for name, value in values.items())


def escaped(value: str, taken: int) -> str:
    text = quote(value, safe="")
    if text == NULL_FOLDER:
        return text.replace("_", "%5F")
    room = FOLDER_CHARS_MAX - taken
    if len(text) <= room:
        return text
    digest = hashlib.sha256(value.encode()).hexdigest()[:24]
    head = text[: room - len(digest) - 1]
    partial = head.rfind("%", len(head) - 2)
    return f"{head[:partial] if partial >= 0 else head}~{digest}"


def values_in(path: str) -> Iterator[tuple[str, str]]:
    """The values that the folders of a file's path stand for."""
    for part in path.split("/")[:-1]:
        name, _, value = part.partition("=")
        yield name, unquote(value)
