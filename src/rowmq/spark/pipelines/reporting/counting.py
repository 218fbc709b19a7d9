"""Counting, which Spark does: what reaches the driver are figures, a few thousand at most."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import reduce
from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import Window as Over
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls them

from rowmq.spark.pipelines.reporting.errors import reason_of
from rowmq.spark.pipelines.reporting.figures import (
    DIMENSIONS,
    KEYS_MAX,
    QUANTILES,
    Failure,
    Figure,
)
from rowmq.spark.pipelines.reporting.tables import Tables, moment_of
from rowmq.spark.pipelines.reporting.window import Window
from rowmq.times import from_micros

__all__ = ["Extent", "count_failures", "count_figures", "find_extent"]

ACCURACY = 10_000
"""Of percentiles: their rank is at most a ten-thousandth off."""

NAMES_MAX = 1_000
"""Of how many topics, groups or queues, the busiest, there are figures."""

FAILURES_MAX = 2_000

NAMES = ("topic", "group", "queue", "state")
"""What things are counted by."""


class Measure(NamedTuple):
    """What a column of an aggregate measures."""

    metric: str
    statistic: str
    unit: str


class Extent(NamedTuple):
    """How much there is: the first and the last time of anything, and whether it has many names."""

    first: datetime
    last: datetime
    crowded: bool


# --- what is asked of Spark -----------------------------------------------------------------------


def find_extent(tables: Tables) -> Extent | None:
    """How much there is; None if there is nothing."""
    parts = [
        rows.agg(
            F.min(F.unix_micros(begin)).alias("first"),
            F.max(F.unix_micros(end)).alias("last"),
            F.approx_count_distinct(F.struct(*names)).alias("names"),
        )
        for rows, begin, end, names in (
            (tables.messages, "timestamp", "timestamp", ("topic",)),
            (tables.letters, "failed_at", "failed_at", ("topic", "group")),
            (tables.jobs, "created_at", "finished_at", ("queue", "kind")),
            (tables.waiting, "created_at", "created_at", ("queue",)),
            (tables.lag, "sampled_at", "sampled_at", ("topic", "group")),
        )
        if rows is not None
    ]
    if not parts:
        return None
    first, last, names = (
        united(parts).agg(F.min("first"), F.max("last"), F.max("names")).collect()[0]
    )
    if first is None:
        return None
    # Their number is an estimate, and off by a twentieth or so.
    return Extent(from_micros(first), from_micros(last), crowded=names > 0.8 * NAMES_MAX)


def count_figures(tables: Tables, window: Window, *, crowded: bool = False) -> list[Figure]:
    """All figures, in one Spark job; where there are many names, of the busiest ones."""
    parts = list(parts_of(tables, window, crowded=crowded))
    rows = united(parts).toArrow().to_pylist() if parts else []
    return [
        Figure(**row | {"bucket": None if row["bucket"] is None else from_micros(row["bucket"])})
        for row in rows
    ]


def parts_of(tables: Tables, window: Window, *, crowded: bool) -> Iterator[DataFrame]:
    found = list(events(tables))
    if found:
        yield counts(inside(united(found), "at", window), window, crowded=crowded)
    if tables.messages is not None:
        yield hot_keys(inside(tables.messages, "timestamp", window))
    if tables.jobs is not None:
        yield durations(inside(tables.jobs, "finished_at", window), window, crowded=crowded)
    if tables.lag is not None:
        yield lagging(inside(tables.lag, "sampled_at", window), window, crowded=crowded)


def count_failures(tables: Tables, window: Window) -> list[Failure]:
    """What was given up on, by reason and place: the most frequent ones."""
    parts = []
    if tables.letters is not None:
        letters = inside(tables.letters, "failed_at", window)
        parts.append(letters.select("topic", "group", nothing("queue"), "error", at("failed_at")))
    if tables.jobs is not None:
        jobs = inside(tables.jobs, "finished_at", window).where(F.col("state") == "failed")
        parts.append(
            jobs.select(nothing("topic"), nothing("group"), "queue", "error", at("finished_at"))
        )
    if not parts:
        return []
    reasons = united(parts).withColumn("reason", reason_of(F.col("error")))
    found = (
        reasons.groupBy("reason", "topic", "group", "queue")
        .agg(
            F.count("*").alias("times"),
            F.min("at").alias("first"),
            F.max("at").alias("last"),
            F.max_by("error", "at").alias("example"),
        )
        .orderBy(F.desc("times"), "reason", "topic", "group", "queue")
        .limit(FAILURES_MAX)
    )
    return [
        Failure(**row | {"first": from_micros(row["first"]), "last": from_micros(row["last"])})
        for row in found.toArrow().to_pylist()
    ]


# --- one function for each thing that is measured -------------------------------------------------


def events(tables: Tables) -> Iterator[DataFrame]:
    """Everything that is only counted, with what it is counted as."""
    messages, letters, jobs, waiting, _ = tables
    if messages is not None:
        yield event(messages, "published", "timestamp", ("topic",))
    if letters is not None:
        yield event(letters, "dead_letters", "failed_at", ("topic", "group", "attempts"))
    if jobs is not None:
        yield event(jobs, "finished", "finished_at", ("queue", "state", "attempts"))
    for rows in (jobs, waiting):
        if rows is not None:
            yield event(rows, "put", "created_at", ("queue",))


def event(rows: DataFrame, metric: str, time: str, names: Sequence[str]) -> DataFrame:
    columns = [F.col(name) if name in names else nothing(name) for name in (*NAMES, "attempts")]
    return rows.select(F.lit(metric).alias("metric"), *columns, F.col(time).alias("at"))


def counts(events: DataFrame, window: Window, *, crowded: bool) -> DataFrame:
    """How many there are: in all, by name, over time, and by the number of attempts they took."""
    timed = events.withColumn("bucket", bucket_of("at", window))
    names = ("metric", *NAMES)
    sets = [("metric",), names, (*names, "bucket"), (*names, "attempts")]
    rows = timed.groupingSets(sets, *names, "bucket", "attempts").agg(
        F.count("*").alias("count"), F.grouping("attempts").alias("any_attempts")
    )
    rows = rows.where((F.col("any_attempts") == 1) | F.isnotnull("attempts"))
    if crowded:
        rows = busiest(rows, names, per="metric")
    tried = F.when(F.isnotnull("attempts"), "attempts").otherwise(F.col("metric"))
    unit = F.when(F.col("metric").isin("published", "dead_letters"), "messages").otherwise("jobs")
    return rows.select(
        tried.alias("metric"),
        F.lit("count").alias("statistic"),
        F.col("count").cast("double").alias("value"),
        unit.alias("unit"),
        *(F.col(name) if name in rows.columns else nothing(name) for name in DIMENSIONS),
    )


def durations(jobs: DataFrame, window: Window, *, crowded: bool) -> DataFrame:
    """How long jobs took, by queue, by kind, and over time."""
    timed = jobs.select(
        "queue",
        "kind",
        bucket_of("finished_at", window),
        seconds_between("due_at", "finished_at").alias("end_to_end"),
        seconds_between("started_at", "finished_at").alias("handling"),
    )
    sets = [("queue",), ("queue", "kind"), ("queue", "bucket")]
    rows = timed.groupingSets(sets, "queue", "kind", "bucket").agg(
        F.count("*").alias("count"), *spread("end_to_end"), *spread("handling")
    )
    of_kind = F.when(F.isnotnull("kind"), F.col("count"))
    measures = {Measure("finished_of_kind", "count", "jobs"): of_kind}
    measures |= spread_measures("end_to_end") | spread_measures("handling")
    rows = busiest(rows, ("queue",)) if crowded else rows
    return long_form(rows, ("queue", "kind", "bucket"), measures)


def lagging(samples: DataFrame, window: Window, *, crowded: bool) -> DataFrame:
    """How far groups were behind, and how old the oldest message was that they had not acked."""
    timed = samples.select(
        *("topic", "group", "sampled_at", "lag", "in_flight"),
        bucket_of("sampled_at", window),
        # A group that is behind by nothing lets nobody wait.
        F.coalesce("oldest_seconds", F.when(F.col("lag") == 0, 0.0)).alias("oldest"),
    )
    names = ("topic", "group")
    rows = timed.groupingSets([names, (*names, "bucket")], *names, "bucket").agg(
        F.max("lag").alias("count"),
        F.max_by("lag", "sampled_at").alias("lag_last"),
        F.max_by("in_flight", "sampled_at").alias("in_flight_last"),
        F.max_by("oldest", "sampled_at").alias("oldest_last"),
        *spread("oldest"),
    )
    measures = {
        Measure("lag", "max", "messages"): F.col("count"),
        Measure("lag", "last", "messages"): F.col("lag_last"),
        Measure("in_flight", "last", "messages"): F.col("in_flight_last"),
        Measure("oldest", "last", "seconds"): F.col("oldest_last"),
    }
    measures |= spread_measures("oldest")
    rows = busiest(rows, names) if crowded else rows
    return long_form(rows, (*names, "bucket"), measures)


def hot_keys(messages: DataFrame) -> DataFrame:
    """The keys that most messages have, in each topic, and how unevenly they are spread.

    How many keys a topic has, and how much more than the mean of them the first one has, stand
    with that first key.
    """
    counts = messages.groupBy("topic", "key").agg(F.count("*").alias("count"))
    of_topic = Over.partitionBy("topic")
    ranked = counts.select(
        "topic",
        "key",
        "count",
        F.count("*").over(of_topic).alias("keys"),
        F.sum("count").over(of_topic).alias("total"),
        F.row_number().over(of_topic.orderBy(F.desc("count"), "key")).alias("rank"),
    ).where(F.col("rank") <= KEYS_MAX)
    ranked = ranked.orderBy(F.desc("total"), "topic", "rank").limit(NAMES_MAX * KEYS_MAX)
    first = F.col("rank") == 1
    skew = F.col("count") * F.col("keys") / F.col("total")
    measures = {
        Measure("messages_of_key", "count", "messages"): F.col("count"),
        Measure("share_of_key", "share", "of the topic"): F.col("count") / F.col("total"),
        Measure("keys", "count", "keys"): F.when(first, F.col("keys")),
        Measure("skew", "ratio", "times the mean"): F.when(first, skew),
    }
    return long_form(ranked, ("topic", "key"), measures)


# --- how it is said in Spark ----------------------------------------------------------------------


def long_form(
    rows: DataFrame, names: Sequence[str], measures: Mapping[Measure, Column]
) -> DataFrame:
    """A row for each measure, with all dimensions; what was not measured is left out."""
    facts = F.array(
        *(
            F.struct(
                F.lit(measure.metric).alias("metric"),
                F.lit(measure.statistic).alias("statistic"),
                column.cast("double").alias("value"),
                F.lit(measure.unit).alias("unit"),
            )
            for measure, column in measures.items()
        )
    )
    dimensions = [F.col(name) if name in names else nothing(name) for name in DIMENSIONS]
    exploded = rows.select(F.explode(facts).alias("fact"), *dimensions)
    return exploded.select("fact.*", *DIMENSIONS).where(F.isnotnull("value"))


def busiest(rows: DataFrame, names: Sequence[str], *, per: str | None = None) -> DataFrame:
    """The rows of those that have most, for each value of `per`: as many as the driver can hold.

    All rows of a name become one for a while, so that no name comes with a part of its rows.
    """
    others = [name for name in rows.columns if name not in names]
    gathered = rows.groupBy(*names).agg(
        F.max("count").alias("most"), F.collect_list(F.struct(*others)).alias("rows")
    )
    order = [F.desc("most"), *(F.col(name) for name in names)]
    if per is None:
        top = gathered.orderBy(*order).limit(NAMES_MAX)
    else:
        rank = F.row_number().over(Over.partitionBy(per).orderBy(*order))
        top = gathered.withColumn("rank", rank).where(F.col("rank") <= NAMES_MAX)
    return top.select(*names, F.inline("rows"))


def spread(column: str) -> Iterator[Column]:
    """The percentiles and the maximum of a column."""
    points = F.array(*(F.lit(point) for point in QUANTILES.values()))
    yield F.percentile_approx(column, points, ACCURACY).alias(f"{column}_points")
    yield F.max(column).alias(f"{column}_max")


def spread_measures(column: str) -> dict[Measure, Column]:
    """What `spread` has left of a column."""
    points = F.col(f"{column}_points")
    columns = {name: points[index] for index, name in enumerate(QUANTILES)}
    columns["max"] = F.col(f"{column}_max")
    return {Measure(column, name, "seconds"): found for name, found in columns.items()}


def bucket_of(time: str, window: Window) -> Column:
    """The beginning of the bucket that a time is in, in microseconds."""
    micros = F.unix_micros(time)
    past = F.pmod(micros - F.lit(window.origin), F.lit(window.width))
    return (micros - past).alias("bucket")


def seconds_between(begin: str, end: str) -> Column:
    """How long it took; clocks that were set back in between make no negative times."""
    micros = F.unix_micros(end) - F.unix_micros(begin)
    return F.when(micros < 0, 0).otherwise(micros) / F.lit(1e6)


def inside(rows: DataFrame, time: str, window: Window) -> DataFrame:
    since, until = moment_of(window.since), moment_of(window.until)
    return rows.where((F.col(time) >= since) & (F.col(time) < until))


def nothing(name: str) -> Column:
    kinds = {"attempts": "int", "bucket": "bigint"}
    return F.lit(None).cast(kinds.get(name, "string")).alias(name)


def at(time: str) -> Column:
    return F.unix_micros(time).alias("at")


def united(parts: Iterable[DataFrame]) -> DataFrame:
    return reduce(DataFrame.unionByName, parts)
