"""What a report is made from: the lake's tables, and of the live ones what the lake has not yet.

The lake is exactly once, and the database keeps what is archived until it is collected: so a row
that is in both is taken from the lake.
"""

from collections.abc import Sequence
from datetime import UTC, date, datetime
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls them

from rowmq.spark.pipelines.lake import read_table
from rowmq.spark.pipelines.reporting.live import Live
from rowmq.spark.pipelines.storage import Lake
from rowmq.spark.place import Place
from rowmq.times import to_micros

__all__ = ["Span", "Tables", "load_tables", "moment_of"]

MESSAGES = "topic string, key string, offset bigint, timestamp timestamp"
LETTERS = (
    "topic string, `group` string, partition bigint, offset bigint, attempts int, error string, "
    "failed_at timestamp"
)
JOBS = (
    "id bigint, queue string, kind string, state string, attempts int, created_at timestamp, "
    "due_at timestamp, started_at timestamp, finished_at timestamp, error string"
)
WAITING = "queue string, kind string, created_at timestamp"
LAG = (
    "sampled_at timestamp, topic string, `group` string, lag bigint, in_flight bigint, "
    "oldest_seconds double"
)


class Span(NamedTuple):
    """A time from, and a time before, of which either may be open."""

    since: datetime | None = None
    until: datetime | None = None


class Tables(NamedTuple):
    """The rows of a span of time; None where there is no such table."""

    messages: DataFrame | None = None
    letters: DataFrame | None = None
    jobs: DataFrame | None = None
    """Finished in or after the span: what was put in it may have been finished later."""
    waiting: DataFrame | None = None
    lag: DataFrame | None = None


def load_tables(
    spark: SparkSession, lake: Lake | None, place: Place | None, live: Live | None, span: Span
) -> Tables:
    """The tables of a lake, of a database, or of both together."""
    archived = Tables() if lake is None else lake_tables(spark, lake, span)
    if place is None or live is None:
        return archived
    fresh = live_tables(spark, place, live, span)
    return Tables(
        messages=with_fresh_messages(archived.messages, fresh.messages),
        letters=with_fresh(archived.letters, fresh.letters, ("topic", "partition", "offset")),
        jobs=with_fresh(archived.jobs, fresh.jobs, ("queue", "id")),
        waiting=fresh.waiting,
        lag=with_fresh(archived.lag, fresh.lag, ()),
    )


def lake_tables(spark: SparkSession, lake: Lake, span: Span) -> Tables:
    def of(name: str, columns: str, time: str, *, open_end: bool = False) -> DataFrame | None:
        last = None if open_end else span.until
        rows = read_table(spark, lake, name, since=day_of(span.since), until=day_of(last))
        if rows is None:
            return None
        return within(rows.select(*names_of(columns)), time, span, open_end=open_end)

    return Tables(
        messages=of("messages", MESSAGES, "timestamp"),
        letters=of("dead_letters", LETTERS, "failed_at"),
        jobs=of("jobs", JOBS, "finished_at", open_end=True),
        lag=of("lag", LAG, "sampled_at"),
    )


def live_tables(spark: SparkSession, place: Place, live: Live, span: Span) -> Tables:
    """The tables of a database; its groups' lag is a sample, taken now."""

    def of(columns: str, **options: str) -> DataFrame:
        reader = spark.read.format("rowmq").options(url=place.url, prefix=place.prefix, **options)
        if place.schema is not None:
            reader = reader.option("schema", place.schema)
        return reader.option("includeHeaders", "false").schema(columns).load()

    messages = None
    if live.topics:
        begin = {} if span.since is None else {"startingTimestamp": span.since.isoformat()}
        messages = of(MESSAGES, subscribePattern="(?s).*", failOnDataLoss="false", **begin)
        messages = messages.where(~F.col("topic").isin(list(live.letter_topics)))
        messages = within(messages, "timestamp", span)
    sampled = [
        (live.at, group.topic, group.group, group.lag, group.in_flight, group.oldest_seconds)
        for group in live.groups
    ]
    return Tables(
        messages=messages,
        letters=within(of(LETTERS, deadLetters="*"), "failed_at", span) if live.topics else None,
        jobs=within(of(JOBS, archive="*"), "finished_at", span, open_end=True)
        if live.queues
        else None,
        waiting=of(WAITING, queue="*") if live.queues else None,
        lag=within(spark.createDataFrame(sampled, LAG), "sampled_at", span) if sampled else None,
    )


def with_fresh_messages(archived: DataFrame | None, fresh: DataFrame | None) -> DataFrame | None:
    """Messages of the lake, and those behind its end in each partition, which has no gaps."""
    if archived is None or fresh is None:
        return fresh if archived is None else archived
    ends = archived.groupBy(F.col("topic").alias("end_topic"), F.col("key").alias("end_key")).agg(
        F.max("offset").alias("end_offset")
    )
    same = (F.col("topic") == F.col("end_topic")) & F.col("key").eqNullSafe(F.col("end_key"))
    known = same & (F.col("offset") <= F.col("end_offset"))
    return archived.unionByName(fresh.join(ends, known, "left_anti"))


def with_fresh(
    archived: DataFrame | None, fresh: DataFrame | None, key: Sequence[str]
) -> DataFrame | None:
    """Rows of the lake, and those that only the database has."""
    if archived is None or fresh is None:
        return fresh if archived is None else archived
    if key:
        fresh = fresh.join(archived.select(*key), list(key), "left_anti")
    return archived.unionByName(fresh)


def within(rows: DataFrame, time: str, span: Span, *, open_end: bool = False) -> DataFrame:
    if span.since is not None:
        rows = rows.where(F.col(time) >= moment_of(span.since))
    if span.until is not None and not open_end:
        rows = rows.where(F.col(time) < moment_of(span.until))
    return rows


def day_of(when: datetime | None) -> date | None:
    return None if when is None else when.astimezone(UTC).date()


def moment_of(when: datetime) -> Column:
    """A time as Spark has it, whatever the zone of its session is."""
    return F.timestamp_micros(F.lit(to_micros(when)))


def names_of(columns: str) -> list[str]:
    """The names in a schema."""
    return [column.split()[0].strip("`") for column in columns.split(", ")]
