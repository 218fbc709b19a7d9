"""Dead letters into the lake. They may be redriven or purged before that, and leave gaps.

No group is made on their topics: garbage collection would then delete letters that nobody has dealt
with yet. So where the archive stands is known by the lake alone.
"""

from collections.abc import Iterator, Sequence

import msgspec
import pyarrow as pa

from rowmq.spark.arrow import Query, fetch
from rowmq.spark.columns import named
from rowmq.spark.jobs import LETTER, LETTERS, ask, letter_column, literal, select, travels
from rowmq.spark.options import JobsOptions
from rowmq.spark.pipelines.archiving.desk import Desk, Part, Passed
from rowmq.spark.pipelines.books import Ends
from rowmq.spark.pipelines.layout import DEAD_LETTERS
from rowmq.spark.pipelines.storage import Root
from rowmq.spark.pipelines.tasks import cores_of, run_tasks
from rowmq.spark.pipelines.writing import Added, write_files
from rowmq.spark.place import Place
from rowmq.spark.source.planning import Range, cut_offsets, share_out
from rowmq.store.dialect import as_text

__all__ = ["Letters"]

TASK_RECORDS_MAX = 50_000
RANGES_MAX = 200
"""How many ranges one query reads."""


class Piece(msgspec.Struct, frozen=True):
    """What one task archives."""

    place: Place
    root: Root
    ranges: tuple[Range, ...]


class Letters(Part):
    """Archives the dead letters of topics: those named, or all."""

    layout = DEAD_LETTERS
    counted_by = ("partition", "offset")

    def __init__(self, desk: Desk, topics: Sequence[str] | None) -> None:
        super().__init__(desk)
        self.topics = topics

    def pass_once(self) -> Passed:
        found = self.partitions()
        if not found:
            return Passed()
        snapshot, books = self.open()
        ranges = []
        for one in found:
            # By partition, whatever topic the lake knows its letters under.
            known = max((ends.get(one.partition_id, 0) for ends in books.ends.values()), default=0)
            start = max(one.first, known)
            if start < one.end:
                ranges.append(one._replace(first=start))
        cut = cut_offsets(ranges, self.desk.records_max)
        if not cut:
            return Passed()
        shared = share_out(
            cut,
            partitions_min=None,
            cores=cores_of(self.desk.spark),
            records_max=TASK_RECORDS_MAX,
        )
        pieces = [Piece(self.desk.place, snapshot.root, tuple(part)) for part in shared]
        added = run_tasks(self.desk.spark, archive_letters, pieces, Added)
        ends: Ends = {}
        for one in cut:
            ends.setdefault(one.topic, {})[one.partition_id] = one.end
        self.commit(snapshot, books, added, ends)
        left = sum(one.size for one in ranges) - sum(one.size for one in cut)
        return Passed(sum(file.rows for file in added), len(added), 0, left, tuple(ends))

    def partitions(self) -> list[Range]:
        """The partitions that hold letters."""
        which = ""
        if self.topics is not None:
            dialect = self.desk.mq._store.dialect  # noqa: SLF001 - its own
            names = ", ".join(literal(dialect, topic) for topic in self.topics)
            which = f" AND d.origin_topic IN ({names})" if names else " AND 1 = 0"
        rows = ask(self.desk.mq, "spark.letters", PARTITIONS.replace("<which>", which))
        return [
            Range(as_text(topic), as_text(key), id, first, following, largest)
            for topic, key, id, first, following, largest in rows
        ]


def archive_letters(piece: Piece) -> Iterator[Added]:
    """Write the letters of ranges to files: what a task does."""
    return write_files(piece.root, DEAD_LETTERS, read_letters(piece.place, piece.ranges))


def read_letters(place: Place, ranges: Sequence[Range]) -> Iterator[pa.RecordBatch]:
    columns = tuple(DEAD_LETTERS.columns)
    dialect = place.store.dialect
    schema = pa.schema([(name, travels(name, LETTER[name][0])) for name in columns])
    chosen = select(dialect, JobsOptions(place=place, what="deadLetters", names=()), columns)
    for start in range(0, len(ranges), RANGES_MAX):
        where = " OR ".join(
            f"(d.partition_id = {one.partition_id} AND d.message_offset >= {one.first} "
            f"AND d.message_offset < {one.end})"
            for one in ranges[start : start + RANGES_MAX]
        )
        sql = dialect.fill(LETTERS.format(columns=chosen, where=f"({where})"))
        for batch in fetch(place, Query(sql, schema)):
            yield named({name: letter_column(name, batch.column(name)) for name in columns})


PARTITIONS = """
    SELECT p.topic, p.partition_key, p.id, p.first_offset, p.next_offset, p.largest_bytes
    FROM {partitions} p
    WHERE EXISTS (SELECT 1 FROM {dead_letters} d WHERE d.partition_id = p.id<which>)
    ORDER BY p.id"""
