"""The archive: topics, dead letters and finished jobs into a lake, exactly once.

It is a loop of ordinary Spark jobs. A pass plans what is new, has tasks read it from the database
and write it to files, and commits those; then the consumer group in the database moves on, so that
garbage collection may let go of the rows. Whatever dies whenever, the next pass begins where the
lake ends.

    plan ──► tasks: rows to Parquet ──► commit to the lake ──► advance the group ──► next pass
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path

import msgspec
from pyspark.sql import SparkSession

from rowmq.administration import gc_steps
from rowmq.drivers.base import take_steps
from rowmq.errors import (
    InvalidOption,
    LakeConflict,
    LakeError,
    LakeMismatch,
    PipelineFailed,
    TransientError,
)
from rowmq.naming import check_group, check_queue, check_topic
from rowmq.spark.pipelines.archiving.desk import Desk, Part, Passed, owner_of
from rowmq.spark.pipelines.archiving.jobs import Jobs
from rowmq.spark.pipelines.archiving.letters import Letters
from rowmq.spark.pipelines.archiving.messages import Messages
from rowmq.spark.pipelines.archiving.upkeep import compact, sample_lag, vacuum
from rowmq.spark.pipelines.storage import lake_of
from rowmq.spark.pipelines.tasks import is_gone
from rowmq.spark.place import place_of
from rowmq.spark.source.offsets import refuse_missing, refuse_unknown
from rowmq.times import Duration, to_seconds

__all__ = ["ArchiveProgress", "ArchiveResult", "archive"]

log = logging.getLogger("rowmq")

RECORDS_MAX = 1_000_000
"""How much one pass takes, of each table."""

COMPACT_EVERY = 20
"""After how many commits the small files of a table become large ones."""

CONFLICTS_MAX = 10
"""How often in a row somebody else may be first, before a run until caught up gives up."""

KEEP_MIN = timedelta(hours=1)
PAUSE_SECONDS_MAX = 60.0
"""How long is waited at most before a pass that failed is tried again."""

LAG_SECONDS = 60.0
GC_SECONDS = 60.0
"""How often lag is sampled, and topics are collected that had nothing new."""


class ArchiveResult(msgspec.Struct, frozen=True, kw_only=True):
    """What an archive did: rows that it added to the lake's tables, and what it did beside that."""

    messages: int = 0
    dead_letters: int = 0
    jobs: int = 0
    passes: int = 0
    files: int = 0
    compacted: int = 0
    """Small files that became parts of larger ones."""
    collected: int = 0
    """Messages that garbage collection deleted from the database afterwards."""
    lost: int = 0
    """Messages that were gone before they could be archived: 0, unless that was allowed."""

    @property
    def rows(self) -> int:
        """All that was added."""
        return self.messages + self.dead_letters + self.jobs


class ArchiveProgress(msgspec.Struct, frozen=True):
    """How far an archive is."""

    doing: str
    result: ArchiveResult
    left: int
    """How much the pass saw and left for the next one."""


def archive(
    spark: SparkSession,
    *,
    url: str | None = None,
    lake: str | Path,
    topics: Sequence[str] | None = None,
    queues: Sequence[str] | None = None,
    dead_letters: bool = True,
    group: str = "lake",
    once: bool = True,
    every: Duration = 10.0,
    gc: bool = False,
    fail_on_loss: bool = True,
    records_max: int = RECORDS_MAX,
    compact_every: int = COMPACT_EVERY,
    vacuum_after: Duration | None = None,
    storage_options: Mapping[str, str] | None = None,
    prefix: str | None = None,
    schema: str | None = None,
    progress: Callable[[ArchiveProgress], None] | None = None,
    stop: threading.Event | None = None,
) -> ArchiveResult:
    """Archive topics, their dead letters and finished jobs to a lake, each row exactly once.

    Without names, all topics and all queues; an empty list stands for none. With `once` until it
    has caught up with what there was; else for ever, a pass each `every` seconds, until `stop` is
    set. `gc` deletes from topics what every group has acked, after it is archived.

    Messages that retention took before they were archived raise `DataLoss`; with `fail_on_loss`
    False they are counted, and logged. `storage_options` are those of the package deltalake.
    """
    place = place_of(given(url=url, prefix=prefix, schema=schema))
    check_numbers(records_max=records_max, compact_every=compact_every)
    seconds = to_seconds(every, name="every")
    keep = None if vacuum_after is None else kept_for(vacuum_after)
    with place.connect() as mq:
        desk = Desk(
            spark=spark,
            place=place,
            mq=mq,
            lake=lake_of(lake, storage_options),
            owner=owner_of(mq),
            group=check_group(group),
            fail_on_loss=fail_on_loss,
            records_max=records_max,
        )
        parts = parts_of(desk, topics, queues, dead_letters=dead_letters)
        if once:
            refuse_missing(mq, topics or ())
            refuse_unknown("queue", queues or (), [queue.name for queue in mq.queues()])
        for part in parts.values():
            part.check()
        run = Run(desk, parts, compact_every, keep, collects=gc, progress=progress)
        if once:
            run.catch_up(stop or threading.Event())
        else:
            run.keep_up(seconds, stop or threading.Event())
        return run.result


def kept_for(vacuum_after: Duration) -> timedelta:
    """How long files are kept that no version has. Those of a pass are such until its commit."""
    keep = timedelta(seconds=to_seconds(vacuum_after, name="vacuum_after"))
    if keep < KEEP_MIN:
        raise InvalidOption(
            f"vacuum_after must be an hour or more, not {vacuum_after!r}: files that a pass has "
            f"just written would be taken for old ones"
        )
    return keep


def given(**options: str | None) -> dict[str, str]:
    return {name: value for name, value in options.items() if value is not None}


def check_numbers(**numbers: int) -> None:
    for name, number in numbers.items():
        if type(number) is not int or number < 1:
            raise InvalidOption(f"{name} must be a whole number from 1 on, not {number!r}")


def parts_of(
    desk: Desk,
    topics: Sequence[str] | None,
    queues: Sequence[str] | None,
    *,
    dead_letters: bool,
) -> dict[str, Part]:
    """What is archived, by the table of the lake that it goes to."""
    for names in (topics, queues):
        if isinstance(names, str):
            raise InvalidOption(f"topics and queues are lists of names, not {names!r}")
    parts: dict[str, Part] = {}
    if topics is None or topics:
        chosen = None if topics is None else [check_topic(topic) for topic in topics]
        parts["messages"] = Messages(desk, chosen)
        if dead_letters:
            parts["dead_letters"] = Letters(desk, chosen)
    if queues is None or queues:
        parts["jobs"] = Jobs(desk, None if queues is None else [check_queue(q) for q in queues])
    if not parts:
        raise InvalidOption("there is nothing to archive: name a topic or a queue")
    return parts


class Run:
    """One run of an archive."""

    def __init__(
        self,
        desk: Desk,
        parts: Mapping[str, Part],
        compact_every: int,
        keep: timedelta | None,
        *,
        collects: bool,
        progress: Callable[[ArchiveProgress], None] | None,
    ) -> None:
        self.desk = desk
        self.parts = parts
        self.compact_every = compact_every
        self.keep = keep
        self.collects = collects
        self.progress = progress
        self.result = ArchiveResult()
        self.sampled = -LAG_SECONDS
        self.collected = 0.0

    def catch_up(self, stop: threading.Event) -> None:
        """Archive all there is at the time of the last pass, unless it is told to stop before."""
        conflicts = 0
        while not stop.is_set():
            try:
                left = self.pass_all()
            except LakeConflict:
                conflicts += 1
                if conflicts >= CONFLICTS_MAX:
                    raise
                log.warning("somebody else archives to %s at the same time", self.desk.lake.uri)
                continue
            conflicts = 0
            if not left:
                break
        self.collect([], everything=True)

    def keep_up(self, every: float, stop: threading.Event) -> None:
        """Archive until it is told to stop. What may be over soon is waited for: a database or an
        object store that does not answer.
        """
        failures = 0
        while not stop.is_set():
            begun, left = time.monotonic(), 0
            try:
                left = self.pass_all()
                failures = 0
            except LakeMismatch:
                raise
            except (TransientError, PipelineFailed, LakeError) as error:
                if is_gone(self.desk.spark):
                    raise
                failures += 1
                log.warning("a pass of the archive failed, and is tried again: %s", error)
            if not left:
                pause = every if not failures else min(PAUSE_SECONDS_MAX, 2.0**failures)
                stop.wait(max(0.0, pause - (time.monotonic() - begun)))

    def pass_all(self) -> int:
        """One pass over everything; how much it left."""
        self.sample()
        left = 0
        for table, part in self.parts.items():
            passed = part.pass_once()
            left += passed.left
            self.note(table, passed)
            if passed.rows:
                self.tidy(part)
            if table == "messages":
                due = time.monotonic() - self.collected >= GC_SECONDS
                self.collect(passed.names, everything=due)
        self.add(passes=1)
        self.tell("waiting")
        return left

    def note(self, table: str, passed: Passed) -> None:
        """Count what a pass came to, and tell of it."""
        self.add(**{table: passed.rows}, files=passed.files, lost=passed.lost)
        if passed.lost:
            log.warning("%d messages were deleted before they could be archived", passed.lost)
        self.tell(f"archiving {table.replace('_', ' ')}", passed.left)

    def tell(self, doing: str, left: int = 0) -> None:
        if self.progress is not None:
            self.progress(ArchiveProgress(doing, self.result, left))

    def add(self, **counts: int) -> None:
        """Add to what was done."""
        known = msgspec.structs.asdict(self.result)
        changed = {name: known[name] + count for name, count in counts.items()}
        self.result = msgspec.structs.replace(self.result, **changed)

    def tidy(self, part: Part) -> None:
        """Make large files of small ones every so often, and clear away what is old."""
        if part.books is None or part.books.number % self.compact_every:
            return
        self.tell("compacting")
        self.add(compacted=compact(part))
        if self.keep is not None:
            vacuum(part, self.keep)

    def sample(self) -> None:
        """Sample lag, once in a while."""
        if time.monotonic() - self.sampled >= LAG_SECONDS:
            self.sampled = time.monotonic()
            sample_lag(self.desk)

    def collect(self, topics: Sequence[str], *, everything: bool) -> None:
        """Have the database let go of what is archived."""
        if not self.collects or "messages" not in self.parts:
            return
        part, mq = self.parts["messages"], self.desk.mq
        if everything and isinstance(part, Messages):
            topics = sorted(part.established)
            self.collected = time.monotonic()
        for topic in topics:
            self.tell("collecting")
            # What is too old and not archived yet is for the next pass, or for others to delete.
            steps = gc_steps(mq._run, mq._store, topic, acked_only=True)  # noqa: SLF001 - its own
            self.add(collected=take_steps(steps))
