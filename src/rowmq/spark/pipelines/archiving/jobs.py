"""Finished jobs into the lake, each once.

When a job was finished is written before that is committed, so one may appear behind others that
the lake has already. Every pass therefore looks again at the time before its mark, and leaves out
what the lake has of that.
"""

import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rowmq.errors import DataLoss
from rowmq.message import State
from rowmq.spark.arrow import Query, fetch
from rowmq.spark.columns import named
from rowmq.spark.jobs import FINISHED, FINISHED_JOBS, ask, finished, literal, select, travels
from rowmq.spark.options import JobsOptions
from rowmq.spark.pipelines.archiving.desk import Desk, Part, Passed
from rowmq.spark.pipelines.books import Ends
from rowmq.spark.pipelines.lake import Snapshot
from rowmq.spark.pipelines.layout import DATE, JOBS
from rowmq.spark.pipelines.storage import Root
from rowmq.spark.pipelines.tasks import run_tasks
from rowmq.spark.pipelines.writing import Added, write_files
from rowmq.spark.place import Place
from rowmq.store.dialect import as_text

__all__ = ["Jobs"]

OVERLAP_US = 3_600_000_000
"""How long before its mark a pass looks: how late a commit may be."""

SHORT_OVERLAP_US = 30_000_000
FULL_LOOK_SECONDS = 60.0
"""Passes that follow each other closely look only a little back, but for one each minute."""

TASK_RECORDS_MAX = 50_000
PAGE_ROWS = 50_000

IDS = pa.schema([("id", pa.int64()), ("finished_at", pa.int64())])
TABLES = {State.COMPLETED: "{completed}", State.FAILED: "{failed}"}


class Queue(NamedTuple):
    """The finished jobs of a queue in one state; `number` stands for the state in the books."""

    name: str
    id: int
    state: State
    number: int


class Piece(msgspec.Struct, frozen=True):
    """What one task archives: the jobs with these ids, finished in this time."""

    place: Place
    root: Root
    queue: str
    queue_id: int
    state: str
    first: int
    last: int
    ids: tuple[int, ...]
    checked: bool


class Jobs(Part):
    """Archives the finished jobs of queues: those named, or all."""

    layout = JOBS
    counted_by = ("state", "finished_at")

    def __init__(self, desk: Desk, queues: Sequence[str] | None) -> None:
        super().__init__(desk)
        self.queues = queues
        self.looked: float | None = None
        self.recent: dict[str, pa.Table] = {}
        """What the lake has of the time that may be looked at again, by queue."""
        self.recent_number = -1

    def pass_once(self) -> Passed:
        chosen = self.chosen()
        if not chosen:
            return Passed()
        snapshot, books = self.open()
        if books.number != self.recent_number:
            self.recent = {}
        overlap = self.overlap()
        fresh: dict[Queue, pa.Table] = {}
        room, left = self.desk.records_max, 0
        for queue in chosen:
            mark = books.ends.get(queue.name, {}).get(queue.number)
            since = 0 if mark is None else mark - overlap
            found, more = self.look(snapshot, queue, since, room)
            room, left = room - len(found), left + more
            if len(found):
                fresh[queue] = found
        if not fresh:
            self.recent_number = books.number
            return Passed(left=left)
        pieces = [
            piece for queue, ids in fresh.items() for piece in self.pieces(snapshot, queue, ids)
        ]
        added = run_tasks(self.desk.spark, archive_jobs, pieces, Added)
        ends: Ends = {}
        for queue, ids in fresh.items():
            known = books.ends.get(queue.name, {}).get(queue.number, 0)
            last = max(known, pc.max(ids.column("finished_at")).as_py())
            ends.setdefault(queue.name, {})[queue.number] = last
        self.commit(snapshot, books, added, ends)
        self.remember(fresh, ends)
        names = tuple(dict.fromkeys(queue.name for queue in fresh))
        return Passed(sum(file.rows for file in added), len(added), 0, left, names)

    def chosen(self) -> list[Queue]:
        """The queues to archive, once for each state."""
        rows = ask(self.desk.mq, "spark.queues", "SELECT id, queue FROM {queues} ORDER BY id")
        return [
            Queue(as_text(name), id, state, number)
            for id, name in rows
            if self.queues is None or as_text(name) in self.queues
            for number, state in enumerate(TABLES)
        ]

    def overlap(self) -> int:
        """How far to look back."""
        now = time.monotonic()
        if self.looked is None or now - self.looked >= FULL_LOOK_SECONDS:
            self.looked = now
            return OVERLAP_US
        return SHORT_OVERLAP_US

    def look(self, snapshot: Snapshot, queue: Queue, since: int, room: int) -> tuple[pa.Table, int]:
        """Which jobs finished since a time the lake does not have, at most so many; and 1 if there
        may be more of them.
        """
        known = self.known(snapshot, queue.name)
        found: list[pa.Table] = []
        count = 0
        for page in self.pages(queue, since):
            if count >= room:
                return joined(found), 1
            new = page.join(known, keys=IDS.names, join_type="left anti") if len(known) else page
            taken = new.sort_by("finished_at").slice(0, room - count)
            found.append(taken)
            count += len(taken)
            if len(taken) < len(new):
                return joined(found), 1
        return joined(found), 0

    def pages(self, queue: Queue, since: int) -> Iterator[pa.Table]:
        """The jobs of a queue that were finished since a time, in the order of that.

        By the client, not by ADBC: two libraries that have the same SQLite file open in one process
        take each other's locks away.
        """
        after, id = since, -1
        while True:
            sql = PAGE.format(
                table=TABLES[queue.state], queue_id=queue.id, after=after, id=id, limit=PAGE_ROWS
            )
            rows = ask(self.desk.mq, "spark.finished", sql)
            if rows:
                yield pa.table(list(zip(*rows, strict=True)), schema=IDS)
                id, after = rows[-1]
            if len(rows) < PAGE_ROWS:
                return

    def known(self, snapshot: Snapshot, queue: str) -> pa.Table:
        """The jobs of a queue that the lake has, of the time that may be looked at again."""
        if queue not in self.recent:
            marks = self.books.ends.get(queue, {}) if self.books else {}
            # A state without a mark has nothing in the lake yet.
            since = min(marks.values(), default=0) - OVERLAP_US
            self.recent[queue] = archived_ids(snapshot, queue, since) if marks else joined([])
        return self.recent[queue]

    def remember(self, fresh: dict[Queue, pa.Table], ends: Ends) -> None:
        """Keep in mind what was archived, and forget what nobody will look at again."""
        for queue, ids in fresh.items():
            known = pa.concat_tables([self.recent.get(queue.name, joined([])), ids])
            marks = (self.books.ends if self.books else ends).get(queue.name, {})
            oldest = min(marks.values(), default=0) - OVERLAP_US
            self.recent[queue.name] = known.filter(pc.field("finished_at") >= oldest)
        self.recent_number = self.books.number if self.books else -1

    def pieces(self, snapshot: Snapshot, queue: Queue, ids: pa.Table) -> Iterator[Piece]:
        """What tasks are to archive, in the order of time."""
        ids = ids.sort_by("finished_at")
        for start in range(0, len(ids), TASK_RECORDS_MAX):
            part = ids.slice(start, TASK_RECORDS_MAX)
            times = part.column("finished_at")
            yield Piece(
                place=self.desk.place,
                root=snapshot.root,
                queue=queue.name,
                queue_id=queue.id,
                state=queue.state.value,
                first=times[0].as_py(),
                last=times[-1].as_py(),
                ids=tuple(part.column("id").to_pylist()),
                checked=self.desk.fail_on_loss,
            )


def joined(tables: Sequence[pa.Table]) -> pa.Table:
    return pa.concat_tables([IDS.empty_table(), *tables])


def archived_ids(snapshot: Snapshot, queue: str, since: int) -> pa.Table:
    """The ids that the lake has of jobs finished since a time."""
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=max(0, since))
    day = moment.date().isoformat()
    found = []
    for file in snapshot.files():
        if file.values["queue"] == queue and file.values[DATE] >= day:
            table = pq.read_table(
                snapshot.root.opened(file.path),
                columns=IDS.names,
                filters=[("finished_at", ">=", moment)],
                partitioning=None,
            )
            found.append(table.cast(IDS))
    return joined(found)


def archive_jobs(piece: Piece) -> Iterator[Added]:
    """Write finished jobs to files: what a task does."""
    return write_files(piece.root, JOBS, read_jobs(piece))


def read_jobs(piece: Piece) -> Iterator[pa.RecordBatch]:
    columns = tuple(JOBS.columns)
    dialect, state = piece.place.store.dialect, State(piece.state)
    schema = pa.schema([(name, travels(name, FINISHED[name][0])) for name in columns])
    words = {"queue": literal(dialect, piece.queue), "state": literal(dialect, piece.state)}
    error = "COALESCE(r.error, '')" if state is State.FAILED else literal(dialect, "")
    options = JobsOptions(place=piece.place, what="archive", names=())
    chosen = select(dialect, options, columns, **words, error=error)
    within = f"r.finished_at >= {piece.first} AND r.finished_at <= {piece.last}"
    where = f"r.queue_id = {piece.queue_id} AND {within}"
    sql = FINISHED_JOBS.format(columns=chosen, table=TABLES[state], where=where)
    wanted, found = pa.array(piece.ids, pa.int64()), 0
    for batch in fetch(piece.place, Query(dialect.fill(sql), schema)):
        mine = batch.filter(pc.is_in(batch.column("id"), wanted))
        found += mine.num_rows
        yield named({name: finished(name, mine.column(name)) for name in columns})
    # One that had failed may have been put back to work meanwhile.
    if state is State.COMPLETED and piece.checked and found != len(piece.ids):
        raise DataLoss(
            f"{len(piece.ids) - found} completed jobs of queue {piece.queue!r} were pruned while "
            f"they were being archived: keep them longer. Go on without them with "
            f"fail_on_loss=False (--allow-loss)"
        )


PAGE = """
    SELECT job_id, finished_at FROM {table}
    WHERE queue_id = {queue_id} AND finished_at >= {after}
        AND (finished_at > {after} OR job_id > {id})
    ORDER BY finished_at, job_id LIMIT {limit}"""
