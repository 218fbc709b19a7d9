"""Finished jobs into the lake, each once.

When a job was finished is written before that is committed, so one may appear behind others that
the lake has already. So the time before a queue's mark is looked at again and again, in *looks*,
and what the lake has of it is left out. A look goes on over passes until it is through, and then
follows what is new; after a minute the next one begins.

         mark - an hour            until                   newest
    ──────────┴──── is in the lake ──┴── the next pass's ────┴──►  finished_at

A mark is never later than where the look has come to, nor than the moment at which it began: what
was committed after that is for the next look to find, however the passes between went.
"""

from collections.abc import Iterator, Mapping, Sequence
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
from rowmq.spark.pipelines.books import Books, Ends
from rowmq.spark.pipelines.lake import Snapshot
from rowmq.spark.pipelines.layout import DATE, JOBS
from rowmq.spark.pipelines.storage import Root
from rowmq.spark.pipelines.tasks import run_tasks
from rowmq.spark.pipelines.writing import Added, write_files
from rowmq.spark.place import Place
from rowmq.store.dialect import as_text

__all__ = ["Jobs"]

OVERLAP_US = 3_600_000_000
"""How long before its mark a look begins: how late a commit may be."""

LOOK_US = 60_000_000
"""How long a look lasts until the next one begins."""

STEP_BACK_US = 30_000_000
"""How far each pass of a look goes back: most that are late are so by less, and need not wait."""

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


class Look(NamedTuple):
    """How far a look has come: every job that was committed before it began and finished by `until`
    is in the lake. Both are times of the database.
    """

    begun: int
    until: int

    @property
    def mark(self) -> int:
        """The time that the next look goes by."""
        return min(self.begun, self.until)


class Found(NamedTuple):
    """What a pass found: jobs that the lake does not have, how far the look is with them, and
    whether there are more.
    """

    ids: pa.Table
    look: Look
    more: bool


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
        self.looks: dict[Queue, Look] = {}
        """How far they are, as of the last pass that was committed or found nothing."""
        self.recent: dict[Queue, pa.Table] = {}
        """What the lake has of the time that may be looked at again."""
        self.recent_number = -1

    def pass_once(self) -> Passed:
        chosen = self.chosen()
        if not chosen:
            return Passed()
        snapshot, books = self.open()
        if books.number != self.recent_number:
            self.recent = {}
        found = self.find(snapshot, books, chosen)
        fresh = {queue: new.ids for queue, new in found.items() if len(new.ids)}
        added: Sequence[Added] = ()
        if fresh:
            pieces = [
                piece for queue, ids in fresh.items() for piece in self.pieces(snapshot, queue, ids)
            ]
            added = run_tasks(self.desk.spark, archive_jobs, pieces, Added)
            self.commit(snapshot, books, added, moved(books, found))
        # Not before: of a pass that failed, nothing was looked at.
        self.looks = {queue: new.look for queue, new in found.items()}
        self.remember(fresh)
        names = tuple(dict.fromkeys(queue.name for queue in fresh))
        left = sum(new.more for new in found.values())
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

    def find(self, snapshot: Snapshot, books: Books, chosen: Sequence[Queue]) -> dict[Queue, Found]:
        """What is new in queues, as much of it as a pass may take."""
        ((now,),) = ask(self.desk.mq, "spark.now", "SELECT {now}")
        found: dict[Queue, Found] = {}
        room = self.desk.records_max
        for queue in chosen:
            mark = mark_of(books, queue)
            # Nothing before this is known, nor can be missing.
            oldest = 0 if mark is None else mark - OVERLAP_US
            look = self.looks.get(queue)
            if look is None or not 0 <= now - look.begun < LOOK_US:
                look = Look(int(now), oldest)
            known = self.known(snapshot, queue, mark)
            new = self.search(queue, look, max(oldest, look.until - STEP_BACK_US), known, room)
            room -= len(new.ids)
            found[queue] = new
        return found

    def search(self, queue: Queue, look: Look, since: int, known: pa.Table, room: int) -> Found:
        """Go on with a look, at jobs finished since a time. The oldest that are not known are
        taken, at most so many: the look has then come to the last of them.
        """
        found: list[pa.Table] = []
        for page in self.pages(queue, since):
            new = page.join(known, keys=IDS.names, join_type="left anti") if len(known) else page
            taken = new.sort_by("finished_at").slice(0, room)
            found.append(taken)
            room -= len(taken)
            is_cut = len(taken) < len(new)
            times = (taken if is_cut else page).column("finished_at")
            look = look._replace(until=max(look.until, pc.max(times).as_py() or 0))
            if is_cut:
                return Found(joined(found), look, more=True)
        return Found(joined(found), look, more=False)

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

    def known(self, snapshot: Snapshot, queue: Queue, mark: int | None) -> pa.Table:
        """The jobs of a queue that the lake has, of the time that may be looked at again."""
        if queue not in self.recent:
            # Without a mark, the lake has nothing yet.
            ids = joined([]) if mark is None else archived_ids(snapshot, queue, mark - OVERLAP_US)
            self.recent[queue] = ids
        return self.recent[queue]

    def remember(self, fresh: Mapping[Queue, pa.Table]) -> None:
        """Keep in mind what was archived, and forget what nobody will look at again."""
        if self.books is None:
            return
        for queue, ids in fresh.items():
            known = pa.concat_tables([self.recent[queue], ids])
            oldest = (mark_of(self.books, queue) or 0) - OVERLAP_US
            self.recent[queue] = known.filter(pc.field("finished_at") >= oldest)
        self.recent_number = self.books.number

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


def mark_of(books: Books, queue: Queue) -> int | None:
    return books.ends.get(queue.name, {}).get(queue.number)


def moved(books: Books, found: Mapping[Queue, Found]) -> Ends:
    """The marks that a pass moves on."""
    ends: Ends = {}
    for queue, new in found.items():
        if new.look.mark > (mark_of(books, queue) or 0):
            ends.setdefault(queue.name, {})[queue.number] = new.look.mark
    return ends


def archived_ids(snapshot: Snapshot, queue: Queue, since: int) -> pa.Table:
    """The ids that the lake has of jobs finished since a time."""
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=max(0, since))
    day = moment.date().isoformat()
    found = []
    for file in snapshot.files():
        if file.values["queue"] == queue.name and file.values[DATE] >= day:
            table = pq.read_table(
                snapshot.root.opened(file.path),
                columns=IDS.names,
                filters=[("finished_at", ">=", moment), ("state", "=", queue.state.value)],
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
