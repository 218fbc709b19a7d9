"""Which rows of the lake are replayed, and in which order: that in which they came about."""

from collections.abc import Sequence
from datetime import date
from typing import Any, NamedTuple

import msgspec
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls them

from rowmq.errors import InvalidOption
from rowmq.spark.pipelines.lake import Snapshot, read_snapshot
from rowmq.spark.pipelines.layout import JOBS, MESSAGES, Layout
from rowmq.times import from_micros

__all__ = ["Border", "Selection", "chosen", "ordered_by", "within"]


class Border(NamedTuple):
    """A place in the order of rows: a time in microseconds, and what tells apart rows of that."""

    time: int
    partition: int
    number: int


class Selection(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is replayed, and where to: as it stands in the plan. Times are in microseconds."""

    topics: tuple[str, ...] = ()
    queue: str | None = None
    to_topic: str | None = None
    to_queue: str | None = None
    to_group: str | None = None
    since: int | None = None
    until: int | None = None
    key: str | None = None
    where: str | None = None
    keep_ids: bool = False

    @property
    def layout(self) -> Layout:
        return MESSAGES if self.queue is None else JOBS

    @property
    def names(self) -> tuple[str, ...]:
        return self.topics if self.queue is None else (self.queue,)

    @property
    def target(self) -> str:
        """Where it goes, as the ledger names it."""
        if self.to_topic is not None:
            return f"topic {self.to_topic}"
        return f"queue {self.to_queue}" if self.to_queue is not None else f"group {self.to_group}"


def ordered_by(layout: Layout) -> tuple[Column, Column, Column]:
    """The columns of a border."""
    time = F.unix_micros(F.col(layout.time))
    if layout is JOBS:
        return time, F.lit(0).cast("bigint"), F.col("id")
    return time, F.col("partition"), F.col("offset")


def chosen(spark: SparkSession, snapshot: Snapshot, selection: Selection) -> DataFrame:
    """The rows of a selection."""
    rows = read_days(spark, snapshot, selection, selection.since, selection.until)
    time = F.unix_micros(F.col(selection.layout.time))
    if selection.since is not None:
        rows = rows.where(time >= selection.since)
    if selection.until is not None:
        rows = rows.where(time < selection.until)
    rows = filtered(rows, selection)
    return last_of_each(spark, snapshot, selection, rows, selection.since)


def within(
    spark: SparkSession, snapshot: Snapshot, selection: Selection, after: Border, last: Border
) -> DataFrame:
    """The rows of a selection behind a border, up to another, in order."""
    rows = read_days(spark, snapshot, selection, after.time, last.time)
    columns = ordered_by(selection.layout)
    # The time by itself as well: files are left out by it.
    times = F.col(selection.layout.time)
    rows = rows.where(times >= moment(after.time)).where(times <= moment(last.time))
    place = F.struct(*(column.alias(f"c{n}") for n, column in enumerate(columns)))
    rows = rows.where(place > literal(after)).where(place <= literal(last))
    rows = last_of_each(spark, snapshot, selection, filtered(rows, selection), after.time)
    return rows.coalesce(1).sortWithinPartitions(*columns)


def last_of_each(
    spark: SparkSession,
    snapshot: Snapshot,
    selection: Selection,
    rows: DataFrame,
    since: int | None,
) -> DataFrame:
    """Rows, all of them since a time, without those of jobs that finished again later, whether or
    not that is chosen: a job that failed and was retried has a row for each time.
    """
    if selection.layout is not JOBS:
        return rows
    later = read_days(spark, snapshot, selection, since, None)
    if since is not None:
        later = later.where(F.col(JOBS.time) >= moment(since))
    later = later.select(F.col("id").alias("later_id"), F.col(JOBS.time).alias("later_time"))
    again = (F.col("id") == F.col("later_id")) & (F.col(JOBS.time) < F.col("later_time"))
    return rows.join(later, again, "left_anti")


def filtered(rows: DataFrame, selection: Selection) -> DataFrame:
    if selection.key is not None:
        rows = rows.where(F.col("key") == selection.key)
    if selection.where is None:
        return rows
    try:
        found = rows.where(selection.where)
        _ = found.schema  # analysed now, also by Spark Connect
    except (AnalysisException, ParseException) as error:
        first = (error.getMessage() or str(error)).strip().splitlines()[0]
        raise InvalidOption(f"where is no condition on the lake's columns: {first}") from error
    return found


def read_days(
    spark: SparkSession,
    snapshot: Snapshot,
    selection: Selection,
    since: int | None,
    until: int | None,
) -> DataFrame:
    return read_snapshot(
        spark, snapshot, names=selection.names, since=day_of(since), until=day_of(until)
    )


def day_of(time: int | None) -> date | None:
    return None if time is None else from_micros(time).date()


def moment(time: int) -> Column:
    return F.timestamp_micros(F.lit(time))


def literal(border: Sequence[int]) -> Column:
    parts: list[Any] = [F.lit(part).cast("bigint") for part in border]
    return F.struct(*(part.alias(f"c{number}") for number, part in enumerate(parts)))
