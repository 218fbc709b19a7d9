"""What the parts of the archive share: where they read and write, and how a pass is committed."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import msgspec
from pyspark.sql import SparkSession

from rowmq.client import RowMQ
from rowmq.spark.jobs import ask
from rowmq.spark.pipelines.books import Books, Ends, open_books
from rowmq.spark.pipelines.lake import Snapshot, StoredFile, commit, open_table, snapshot_of
from rowmq.spark.pipelines.layout import Layout
from rowmq.spark.pipelines.storage import Lake
from rowmq.spark.pipelines.writing import Added
from rowmq.spark.place import Place

__all__ = ["Desk", "Part", "Passed", "owner_of"]


class Desk(msgspec.Struct):
    """Where an archive reads and writes."""

    spark: SparkSession
    place: Place
    mq: RowMQ
    lake: Lake
    owner: str
    group: str
    fail_on_loss: bool
    records_max: int


class Passed(NamedTuple):
    """What a pass came to."""

    rows: int = 0
    files: int = 0
    lost: int = 0
    left: int = 0
    """How many rows it saw and left for the next one."""
    names: tuple[str, ...] = ()
    """The topics or queues that it moved."""


class Part(ABC):
    """What archives one table. A pass reads what is new, writes it to files, and commits those."""

    layout: ClassVar[Layout]
    counted_by: ClassVar[tuple[str, str]]
    """The columns that tell how far the rows go: see `books`."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.books: Books | None = None

    def check(self) -> None:
        """Raise if what is to be archived cannot be."""
        _ = snapshot_of(self.desk.lake, self.layout)

    @abstractmethod
    def pass_once(self) -> Passed:
        """Archive what is new, or as much of it as a pass may take."""

    def open(self) -> tuple[Snapshot, Books]:
        """The table as it is now, and the books at that commit. They are read again if somebody
        else has committed.
        """
        snapshot = open_table(self.desk.lake, self.layout, owner=self.desk.owner)
        if self.books is None or self.books.number != snapshot.number:
            self.books = None
            self.books = open_books(self.desk.spark, snapshot, self.counted_by)
        return snapshot, self.books

    def commit(
        self,
        snapshot: Snapshot,
        books: Books,
        added: Sequence[Added],
        ends: Ends,
        removed: Sequence[StoredFile] = (),
    ) -> None:
        """Commit what a pass wrote, with where it ends.

        If it is not known whether that worked, the lake is asked. Files are not deleted then: they
        may be part of it.
        """
        self.books = None
        after, note = books.after(snapshot.root, ends)
        commit(snapshot, added, note, removed=removed)
        self.books = after
        if after.base != books.base and books.base:
            snapshot.root.delete(books.base)


def owner_of(mq: RowMQ) -> str:
    """What tells a database from others: when its tables were made, to the microsecond."""
    sql = "SELECT applied_at FROM {migrations} WHERE version = 1"
    ((made_at,),) = ask(mq, "spark.owner", sql)
    return str(made_at)
