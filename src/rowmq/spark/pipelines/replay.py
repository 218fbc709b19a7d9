"""Replay: rows of the lake back to a topic, a queue, or one consumer group; never twice for one id.

The rows are put in order and cut into chunks, once for each id. A chunk is one transaction of the
database, in which the ledger notes that it was done: so a replay that is killed goes on with the
chunk that it was at.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import msgspec
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls them

from rowmq.client import RowMQ
from rowmq.codec import Encoding, encode_headers
from rowmq.errors import InvalidOption, LakeError, PipelineFailed
from rowmq.message import new_id
from rowmq.spark.pipelines.archive import given
from rowmq.spark.pipelines.archiving.desk import owner_of
from rowmq.spark.pipelines.lake import OWNER, Snapshot, snapshot_of
from rowmq.spark.pipelines.replaying.asked import check_id, chunk_size, selection_of
from rowmq.spark.pipelines.replaying.ledger import Ledger
from rowmq.spark.pipelines.replaying.plan import (
    FIRST,
    Plan,
    another_lake,
    check_same,
    find_plan,
    keep_plan,
    make_plan,
    table_id,
)
from rowmq.spark.pipelines.replaying.selection import Selection, chosen, within
from rowmq.spark.pipelines.storage import Lake, lake_of
from rowmq.spark.pipelines.tasks import failed
from rowmq.spark.place import Place, place_of
from rowmq.store.givingback import GivingBack, Returned
from rowmq.store.keys import id_within, shard_key
from rowmq.times import from_micros

__all__ = ["ReplayProgress", "ReplayResult", "replay"]

log = logging.getLogger("rowmq")

CHUNK_BYTES = 64 * 1024 * 1024
"""How much of a chunk for a group the driver has in memory."""

HEADER, HEADER_OF = "rowmq-replay", "rowmq-replay-of"
"""The headers of what is replayed: the id of the replay, and that of the original."""


class ReplayResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a replay came to."""

    id: str
    rows: int
    """How many rows were chosen."""
    replayed: int = 0
    """How many rows are replayed by now, also by earlier calls with the same id."""
    chunks: int = 0
    """How many chunks this call did."""
    dry_run: bool = False

    @property
    def done(self) -> bool:
        """Whether all of it is replayed."""
        return not self.dry_run and self.replayed >= self.rows


class ReplayProgress(msgspec.Struct, frozen=True):
    """How far a replay is."""

    done: int
    total: int


def replay(
    spark: SparkSession,
    *,
    url: str | None = None,
    lake: str | Path,
    id: str,
    topics: Sequence[str] | str = (),
    queue: str | None = None,
    to_topic: str | None = None,
    to_queue: str | None = None,
    to_group: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    key: str | None = None,
    where: str | None = None,
    keep_ids: bool = False,
    rate: float | None = None,
    chunk: int | None = None,
    dry_run: bool = False,
    storage_options: Mapping[str, str] | None = None,
    prefix: str | None = None,
    schema: str | None = None,
    progress: Callable[[ReplayProgress], None] | None = None,
    stop: threading.Event | None = None,
) -> ReplayResult:
    """Replay archived messages of topics, or archived jobs of a queue, in the order they had.

    They go to a topic, to a queue, or to one group of their own topics, which is then delivered
    them again: no other group sees anything of that. `since`, `until` (not included), `key` and
    `where`, a condition in SQL on the lake's columns, choose among them. `rate` is how many a
    second. A dry run tells how many it would be.

    Nothing is replayed twice for the same `id`, whatever is killed when: a call with the same id
    and the same choice goes on where the last one ended; with another choice, or another lake, it
    is an error. Of a job that finished more than once, only the last time counts.
    Messages that go to a topic get ids of their own, unless they `keep_ids`: those that the topic
    still has are then left out.
    """
    asked = selection_of(
        topics=topics,
        queue=queue,
        to_topic=to_topic,
        to_queue=to_queue,
        to_group=to_group,
        since=since,
        until=until,
        key=key,
        where=where,
        keep_ids=keep_ids,
    )
    check_id(id)
    size = chunk_size(asked, chunk, rate)
    place = place_of(given(url=url, prefix=prefix, schema=schema))
    found = lake_of(lake, storage_options)
    with place.connect() as mq:
        run = Replay(spark, place, mq, found, id=id, selection=asked)
        run.check()
        if dry_run:
            return ReplayResult(id=id, rows=run.count(), dry_run=True)
        plan = run.plan(size)
        return run.replay(plan, rate, progress, stop or threading.Event())


class Replay:
    """One replay."""

    def __init__(
        self,
        spark: SparkSession,
        place: Place,
        mq: RowMQ,
        lake: Lake,
        *,
        id: str,
        selection: Selection,
    ) -> None:
        self.spark = spark
        self.place = place
        self.mq = mq
        self.lake = lake
        self.id = id
        self.selection = selection
        self.ledger = Ledger(mq, id=id, target=selection.target)

    # --- before anything is done ------------------------------------------------------------------

    def check(self) -> None:
        """Raise if it cannot be."""
        snapshot = self.snapshot()
        names = {file.values[str(snapshot.layout.name)] for file in snapshot.files()}
        for name in self.selection.names:
            if name not in names:
                what = "topic" if self.selection.queue is None else "queue"
                raise InvalidOption(f"the lake at {self.lake.uri} has nothing of {what} {name!r}")
        if self.selection.to_group is not None:
            self.check_group(snapshot, self.selection.to_group)
        _ = chosen(self.spark, snapshot, self.selection)
        known = self.known()
        if known is not None:
            check_same(self.id, known, self.selection)
            if known.table not in ("", table_id(snapshot)):
                raise another_lake(self.id)

    def check_group(self, snapshot: Snapshot, group: str) -> None:
        if snapshot.table.metadata().configuration.get(OWNER) != owner_of(self.mq):
            raise InvalidOption(
                f"the lake at {self.lake.uri} is from another database: it can be replayed to a "
                f"topic or a queue of this one, but not to a group"
            )
        for topic in self.selection.topics:
            self.mq._run(partial(self.mq._store.groups.find, topic, group))  # noqa: SLF001 - its own
        self.check_retention(snapshot)

    def check_retention(self, snapshot: Snapshot) -> None:
        """Raise if garbage collection would take away at once what is given back."""
        kept = {info.name: info.retention for info in self.mq.topics()}
        retained = [kept[name] for name in self.selection.topics if kept.get(name) is not None]
        if not retained:
            return
        rows = chosen(self.spark, snapshot, self.selection)
        oldest = rows.agg(F.min(F.unix_micros("timestamp"))).collect()[0][0]
        shortest = min(retention for retention in retained if retention is not None)
        if oldest is not None and from_micros(oldest) + shortest < datetime.now(UTC):
            raise InvalidOption(
                f"the oldest message is from {from_micros(oldest):%Y-%m-%d}, and its topic keeps "
                f"messages for {shortest}: garbage collection would delete it before the group "
                f"has it. Choose newer ones, with since=, or keep them longer, with "
                f"configure_topic(..., retention=...)"
            )

    def snapshot(self, version: int | None = None) -> Snapshot:
        found = snapshot_of(self.lake, self.selection.layout, version=version)
        if found is None:
            raise InvalidOption(
                f"there is no table {self.selection.layout.table!r} in {self.lake.uri}: archive "
                f"something first, with rowmq pipeline archive"
            )
        return found

    def count(self) -> int:
        """How many rows it would be."""
        try:
            return int(chosen(self.spark, self.snapshot(), self.selection).count())
        except PySparkException as error:
            raise failed(error) from error

    def known(self) -> Plan | None:
        """What was planned before."""
        number = self.ledger.plan()
        found = find_plan(self.lake, self.id, number)
        if found is None and number is not None:
            raise another_lake(self.id)
        return found

    def plan(self, chunk: int) -> Plan:
        """What is to be done: as it was planned before, or planned now."""
        known = self.known()
        if known is None:
            snapshot = self.snapshot()
            try:
                made = make_plan(
                    self.spark, snapshot, self.selection, self.fitting(snapshot, chunk)
                )
            except PySparkException as error:
                raise failed(error) from error
            if not made.rows:
                return made
            known = keep_plan(self.lake, self.id, made)
        settled = self.settled(known)
        check_same(self.id, settled, self.selection)
        return settled

    def settled(self, plan: Plan) -> Plan:
        """The plan that the id stands for from now on: this one, unless another was quicker."""
        number = self.ledger.settle(plan.number)
        if number == plan.number:
            return plan
        found = find_plan(self.lake, self.id, number)
        if found is None:
            raise another_lake(self.id)
        return found

    def fitting(self, snapshot: Snapshot, chunk: int) -> int:
        """How many rows a chunk can have, if the driver is to hold it."""
        if self.selection.to_group is None:
            return chunk
        rows = chosen(self.spark, snapshot, self.selection)
        largest = rows.agg(F.max(F.length("value"))).collect()[0][0] or 0
        return max(1, min(chunk, CHUNK_BYTES // max(1, largest)))

    # --- chunk by chunk ---------------------------------------------------------------------------

    def replay(
        self,
        plan: Plan,
        rate: float | None,
        progress: Callable[[ReplayProgress], None] | None,
        stop: threading.Event,
    ) -> ReplayResult:
        """Do the chunks that were not done before."""
        first = self.ledger.done() + 1
        begun, rows_before = time.monotonic(), min(plan.rows, first * plan.chunk)
        replayed, chunks = rows_before, 0
        snapshot = self.planned(plan) if plan.rows else None
        for number in range(first, len(plan.borders)):
            if progress is not None:
                progress(ReplayProgress(replayed, plan.rows))
            if stop.is_set() or snapshot is None:
                break
            self.send(plan, snapshot, number)
            replayed, chunks = min(plan.rows, (number + 1) * plan.chunk), chunks + 1
            if rate is not None:
                due = begun + (replayed - rows_before) / rate
                stop.wait(max(0.0, due - time.monotonic()))
        if progress is not None:
            progress(ReplayProgress(replayed, plan.rows))
        return ReplayResult(id=self.id, rows=plan.rows, replayed=replayed, chunks=chunks)

    def planned(self, plan: Plan) -> Snapshot:
        """The table as it was when the replay was planned; as it is, if that is not known any more:
        what was archived since then is behind the last border, or else a chunk's count tells.
        """
        try:
            snapshot = self.snapshot(plan.version)
            if all(snapshot.root.size_of(file.path) is not None for file in snapshot.files()):
                return snapshot
        except LakeError:
            pass
        log.warning("version %d of the lake is gone; the newest is replayed", plan.version)
        return self.snapshot()

    def send(self, plan: Plan, snapshot: Snapshot, number: int) -> None:
        """Replay one chunk, unless that was done meanwhile."""
        after = plan.borders[number - 1] if number else FIRST
        rows = within(self.spark, snapshot, self.selection, after, plan.borders[number])
        check = partial(self.check_count, plan, snapshot, number)
        try:
            if self.selection.to_group is not None:
                self.give_back(rows, self.selection.to_group, number, check)
            else:
                self.send_counted(rows, number, check)
        except PySparkException as error:
            raise failed(error) from error

    def check_count(self, plan: Plan, snapshot: Snapshot, number: int, found: int) -> None:
        """Raise unless a chunk has as many rows as it was planned with."""
        planned = plan.rows_in(number)
        if found == planned:
            return
        why = "as a condition with now() does"
        if snapshot.version != plan.version:
            why = f"since version {plan.version} of the lake is gone"
        raise PipelineFailed(
            f"replay {self.id!r} now chooses other rows than when it was planned, {why}: chunk "
            f"{number + 1} has {found} rows, not {planned}. Nothing of this chunk was replayed; "
            f"the {number * plan.chunk} rows before it were. Choose what is left by fixed times, "
            f"with since=, until= or where=, and give that a new id"
        )

    def send_counted(self, rows: DataFrame, number: int, check: Callable[[int], None]) -> None:
        """Replay the rows of a chunk that were counted, and no others."""
        if self.selection.where is None:
            check(rows.count())
            self.write(rows, number)
            return
        kept = rows.persist()  # a condition could choose others the next time
        try:
            check(kept.count())
            self.write(kept, number)
        finally:
            kept.unpersist()

    def write(self, rows: DataFrame, number: int) -> None:
        """Publish a chunk, or put it into a queue, by the sink."""
        where = (
            {"topic": self.selection.to_topic}
            if self.selection.to_topic is not None
            else {"queue": str(self.selection.to_queue)}
        )
        options = given(url=self.place.url, prefix=self.place.prefix, schema=self.place.schema)
        transaction = {"txnAppId": f"replay:{self.id}", "txnVersion": str(number)}
        ready = to_sink(rows, self.selection, self.id)
        writer = ready.write.format("rowmq").mode("append")
        writer.options(**options, **where, **transaction).save()

    def give_back(
        self, rows: DataFrame, group: str, number: int, check: Callable[[int], None]
    ) -> None:
        """Open a chunk again for a group."""
        messages: dict[str, list[Returned]] = {}
        columns = [F.col(name) for name in RETURNED]
        found = rows.select("topic", *columns, F.unix_micros("timestamp")).collect()
        check(len(found))
        for row in found:
            topic, partition, key, offset, id, value, encoding, headers, published_at = row
            messages.setdefault(topic, []).append(
                Returned(
                    partition_id=partition,
                    key=key,
                    offset=offset,
                    id=id,
                    payload=bytes(value),
                    encoding=int(Encoding[encoding.upper()]),
                    headers=encode_headers(headers or {}),
                    published_at=published_at,
                    spare_id=id_within(key or shard_key(id), new_id()),
                )
            )
        giving = GivingBack(self.mq._store)  # noqa: SLF001 - its own
        version = self.ledger.chunk(number)
        self.mq._run(partial(giving.give_back, group, messages, version))  # noqa: SLF001 - its own


RETURNED = ("partition", "key", "offset", "id", "value", "encoding", "headers")


def to_sink(rows: DataFrame, selection: Selection, id: str) -> DataFrame:
    """Rows of the lake as the sink takes them, with headers that say what they are."""
    original = F.col("id").cast("string")
    known = {HEADER: F.lit(id), HEADER_OF: original}
    added = F.create_map(*(part for name, value in known.items() for part in (F.lit(name), value)))
    # Those of an earlier replay give way.
    own = F.map_filter(F.coalesce("headers", F.create_map()), lambda name, _: ~name.isin(*known))
    headers = F.map_concat(own.cast("map<string,string>"), added)
    columns = [F.col("value"), F.col("encoding"), headers.alias("headers")]
    if selection.to_topic is not None:
        columns.append(F.col("key"))
        columns.append(message_id(selection, id).alias("id"))
    elif selection.queue is None:
        columns.append(F.col("key").alias("ordering_key"))  # what it keeps in order is the same
    else:
        columns += [F.nullif("kind", F.lit("")).alias("kind")]
        columns += [F.col("ordering_key"), F.col("priority")]
    return rows.select(*columns)


def message_id(selection: Selection, id: str) -> Column:
    """The id of a message that is replayed: the same for the same row of the same replay."""
    if selection.queue is not None:
        return F.concat(F.lit(f"{id}:"), F.col("id").cast("string"))
    if selection.keep_ids:
        return F.col("id")
    return F.concat_ws(":", F.lit(id), F.col("partition"), F.col("offset"))
