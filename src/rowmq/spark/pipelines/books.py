"""The archive's books: how far a table of the lake has come, as its own commits say.

Each commit notes the ends of what it added. Every so often, the ends of all are written to a file
first, which the commit and those after it name as their base. So where the archive stands is known
from the lake alone, exactly, at the cost of the log since the base. If some of that is lost, the
rows themselves are looked at.

    base (a file) ── commit ── commit ── commit     ends = those of the base, then each commit's
"""

import uuid
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from rowmq.spark.pipelines.lake import Snapshot
from rowmq.spark.pipelines.layout import Layout
from rowmq.spark.pipelines.storage import Root
from rowmq.spark.pipelines.tasks import cores_of, run_tasks

__all__ = ["Books", "Ends", "open_books", "write_base"]

BASE_EVERY = 50
"""How many commits name the same base."""

FILES_PER_TASK_MAX = 200

STATES = ("completed", "failed")
"""The partitions of a queue's finished jobs."""

Ends = dict[str, dict[int, int]]
"""How far the archive has come: by topic or queue, and by partition. Of topics it is the next
offset; of queues, by state, the time of the newest job.
"""


class Note(msgspec.Struct, omit_defaults=True):
    """What a commit says."""

    number: int
    base: str
    base_number: int
    ends: Ends = {}


class Books(msgspec.Struct):
    """What is known of a table at a commit."""

    number: int
    ends: Ends
    base: str = ""
    base_number: int = 0
    estimated: bool = False
    """Whether it was found out from the rows, which do not tell of partitions without any."""

    def after(self, root: Root, changes: Ends) -> tuple["Books", Mapping[str, Any]]:
        """The books after a commit, and what the commit is to say."""
        ends = {name: dict(found) for name, found in self.ends.items()}
        merge(ends, changes)
        number, base, base_number = self.number + 1, self.base, self.base_number
        if not base or number - base_number >= BASE_EVERY:
            base, base_number = write_base(root, ends), number
        note = Note(number=number, base=base, base_number=base_number, ends=changes)
        return Books(number, ends, base, base_number), msgspec.to_builtins(note, str_keys=True)


def merge(ends: Ends, changes: Ends) -> None:
    for name, found in changes.items():
        ends.setdefault(name, {}).update(found)


def write_base(root: Root, ends: Ends) -> str:
    """Write all ends to a file; the folder's name keeps Delta from clearing it away."""
    path = f"_rowmq/ends-{uuid.uuid4()}.json"
    with root.writing(path) as file:
        file.write(msgspec.json.encode(ends))
    return path


def open_books(spark: SparkSession, snapshot: Snapshot, kind: tuple[str, str]) -> Books:
    """Where the archive stands at a snapshot; `kind` are the columns that tell it of rows: the one
    of the partition, or the state, and the one that counts.
    """
    return recorded(snapshot) or estimated(spark, snapshot, kind)


def recorded(snapshot: Snapshot) -> Books | None:
    """The books as they were kept; None if something of them is lost."""
    if not snapshot.number:
        return Books(0, {})
    notes: list[Note] = []
    for found in snapshot.notes():
        notes.append(msgspec.convert(found, type=Note, strict=False))
        if notes[0].number != snapshot.number or notes[0].base != notes[-1].base:
            return None
        if notes[-1].number == notes[-1].base_number:
            break
    else:
        return None
    stored = snapshot.root.read(notes[0].base)
    if stored is None:
        return None
    ends = msgspec.json.decode(stored, type=Ends, strict=False)
    for note in reversed(notes[:-1]):
        merge(ends, note.ends)
    return Books(snapshot.number, ends, notes[0].base, notes[0].base_number)


# --- from the rows ------------------------------------------------------------------------------


class Piece(msgspec.Struct, frozen=True):
    """Files that one task looks at."""

    root: Root
    layout: Layout
    kind: tuple[str, str]
    files: tuple[tuple[str, str], ...]
    """The name that each file's rows have, and its path."""


class Found(msgspec.Struct, frozen=True):
    """The highest number of each partition."""

    name: str
    highest: dict[int, int]


def estimated(spark: SparkSession, snapshot: Snapshot, kind: tuple[str, str]) -> Books:
    """The books as the rows tell them."""
    name = str(snapshot.layout.name)
    files = [(file.values[name], file.path) for file in snapshot.files()]
    count = min(len(files), max(cores_of(spark), -(-len(files) // FILES_PER_TASK_MAX)))
    pieces = [
        Piece(snapshot.root, snapshot.layout, kind, tuple(files[number::count]))
        for number in range(count)
    ]
    ends: Ends = {}
    for found in run_tasks(spark, highest_in, pieces, Found):
        known = ends.setdefault(found.name, {})
        for partition, highest in found.highest.items():
            known[partition] = max(known.get(partition, 0), highest)
    return Books(snapshot.number, ends, estimated=True)


def highest_in(piece: Piece) -> Iterator[Found]:
    """The highest numbers in files; of offsets, the next one."""
    partition, counted = piece.kind
    for name, path in piece.files:
        table = pq.read_table(piece.root.opened(path), columns=list(piece.kind), partitioning=None)
        numbers = table.column(counted)
        is_time = pa.types.is_timestamp(numbers.type)
        keys = table.column(partition)
        if pa.types.is_string(keys.type):
            keys = pc.index_in(keys, value_set=pa.array(STATES))
        values = pa.table({"partition": keys, "number": numbers.cast(pa.int64())})
        rows = values.group_by("partition").aggregate([("number", "max")]).to_pylist()
        step = 0 if is_time else 1
        yield Found(name, {row["partition"]: row["number_max"] + step for row in rows})
