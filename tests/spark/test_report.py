"""The report on real Spark: its figures are those that Python counts, its page tells of them."""

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls them

import rowmq
from rowmq.errors import InvalidOption
from rowmq.spark.pipelines import Report, archive, report
from rowmq.spark.pipelines.layout import LAYOUTS
from rowmq.spark.pipelines.reporting import counting
from rowmq.spark.pipelines.reporting.errors import normalised, reason_of
from rowmq.spark.pipelines.reporting.live import look
from tests.choices import on_servers
from tests.databases import Database, Databases
from tests.unit.spark.test_report_errors import ALIKE

EVIL = "<script>alert(\"x\")</script> & 'q' 🚀"
MIDNIGHT = datetime(2026, 1, 15, tzinfo=UTC)
HOUR = timedelta(hours=1)

Rows = list[dict[str, Any]]


def minutes(number: float) -> datetime:
    return MIDNIGHT + timedelta(minutes=number)


def write(lake: Path, table: str, rows: Rows) -> None:
    layout = LAYOUTS[table]
    filled = [
        {name: row.get(name) for name in layout.schema.names}
        | {"date": row[layout.time].date(), "headers": []}
        for row in rows
    ]
    found = pa.Table.from_pylist(filled, schema=layout.schema)
    write_deltalake(str(lake / table), found, partition_by=list(layout.partitioned_by))


def messages() -> Rows:
    """Five hours of messages, across a midnight; in one topic nearly all have the same key."""
    return [
        {
            "topic": (EVIL, "orders", "orders")[n % 3],
            "key": None if n % 30 == 0 else "hot" if n % 4 else f"k{n}",
            "partition": 1,
            "offset": n,
            "timestamp": minutes(n - 120),
        }
        for n in range(300)
    ]


def jobs() -> Rows:
    return [
        {
            "queue": "emails",
            "id": n,
            "kind": ("Welcome", "Receipt")[n % 2],
            "state": "failed" if n % 10 == 0 else "completed",
            "attempts": 3 if n % 10 == 0 else 1,
            "created_at": minutes(n),
            "due_at": minutes(n),
            "started_at": None if n == 5 else minutes(n) + timedelta(seconds=1),
            "finished_at": minutes(n) + timedelta(seconds=1 + n),
            "error": f"ValueError: no user {n}" if n % 10 == 0 else None,
        }
        for n in range(100)
    ]


def letters() -> Rows:
    return [
        {
            "topic": "orders",
            "group": "billing",
            "offset": n,
            "attempts": 5,
            "error": f"KeyError: '{n}'",
            "failed_at": minutes(n),
        }
        for n in range(3)
    ]


def lags() -> Rows:
    return [
        {
            "sampled_at": minutes(10 * n),
            "topic": "orders",
            "group": "billing",
            "lag": n,
            "in_flight": 1,
            "oldest_seconds": 60.0 * n if n else None,
        }
        for n in range(12)
    ]


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    for table, rows in (
        ("messages", messages()),
        ("jobs", jobs()),
        ("dead_letters", letters()),
        ("lag", lags()),
    ):
        write(tmp_path / "lake", table, rows)
    return tmp_path / "lake"


@pytest.fixture
def elsewhere(spark: SparkSession) -> Iterator[None]:
    """A session whose clock is far from UTC, by no whole number of hours."""
    usual = str(spark.conf.get("spark.sql.session.timeZone"))
    spark.conf.set("spark.sql.session.timeZone", "Asia/Kathmandu")
    yield
    spark.conf.set("spark.sql.session.timeZone", usual)


class Figures:
    """The figures of a report, read from its file."""

    def __init__(self, made: Report) -> None:
        self.rows = pq.read_table(made.figures).to_pylist()

    def of(self, metric: str, statistic: str, names: Sequence[str]) -> dict[Any, float]:
        """By some dimensions, where all others are empty."""
        known = {"topic", "group", "queue", "kind", "key", "state", "attempts", "error", "bucket"}
        return {
            tuple(row[name] for name in names): row["value"]
            for row in self.rows
            if (row["metric"], row["statistic"]) == (metric, statistic)
            and all(row[name] is None for name in known - set(names))
        }


@pytest.mark.usefixtures("elsewhere")
def test_figures_are_those_that_python_counts(
    spark: SparkSession, lake: Path, tmp_path: Path
) -> None:
    told: list[str] = []
    made = report(spark, lake=lake, out=tmp_path / "out", bucket=HOUR, progress=told.append)
    figures = Figures(made)

    hours = Counter((row["topic"], row["timestamp"].replace(minute=0)) for row in messages())
    published = figures.of("published", "count", ("topic", "bucket"))
    assert {of: n for of, n in published.items() if None not in of} == hours
    keys = Counter((row["topic"], row["key"]) for row in messages())
    assert figures.of("messages_of_key", "count", ("topic", "key")).items() <= keys.items()
    hot = keys["orders", "hot"] / 200
    assert figures.of("share_of_key", "share", ("topic", "key"))["orders", "hot"] == hot

    times = {f"p{point}": float(point) for point in (50, 90, 95, 99)} | {"max": 100.0}
    for statistic, seconds in times.items():
        assert figures.of("end_to_end", statistic, ("queue",)) == {("emails",): seconds}
    # The one that never said when it was started is not among these.
    assert figures.of("handling", "max", ("queue", "kind"))["emails", "Welcome"] == 98.0
    assert figures.of("attempts", "count", ("queue", "state", "attempts")) == {
        ("emails", "failed", 3): 10.0,
        ("emails", "completed", 1): 90.0,
    }
    assert figures.of("failures", "count", ("error", "queue")) == {
        ("ValueError: no user <n>", "emails"): 10.0
    }
    assert figures.of("lag", "last", ("topic", "group")) == {("orders", "billing"): 11.0}
    assert figures.of("oldest", "max", ("topic", "group")) == {("orders", "billing"): 660.0}

    totals = made.totals
    assert (totals.published, totals.completed, totals.failed) == (300, 90, 10)
    assert (totals.dead_letters, totals.retried, totals.lag, totals.waiting) == (3, 10, 11, None)
    assert (made.since, made.until) == (minutes(-120), minutes(179) + timedelta(microseconds=1))
    assert made.findings[0].startswith("Group 'billing' of topic 'orders' is 11 messages behind")
    assert told == ["looking for what there is", "counting", "grouping failures", "writing"]


def test_the_page_stands_beside_its_figures_and_takes_the_place_of_an_earlier_one(
    spark: SparkSession, lake: Path, tmp_path: Path
) -> None:
    target = tmp_path / "out" / "week.html"
    target.parent.mkdir()
    target.write_text("an earlier one")
    made = report(spark, lake=lake, out=target, since=minutes(0), until=minutes(60), title="Week")
    assert (made.page, made.figures) == (target, target.with_suffix(".parquet"))
    assert sorted(path.name for path in target.parent.iterdir()) == ["week.html", "week.parquet"]
    page = target.read_text(encoding="utf-8")
    assert "<title>Week</title>" in page
    assert "15 Jan 2026 00:00 to 01:00 UTC, in steps of 1 minute." in page
    assert "<script" not in page
    assert "&lt;script&gt;alert" in page
    in_time = [row for row in messages() if minutes(0) <= row["timestamp"] < minutes(60)]
    assert made.totals.published == len(in_time) == 60
    assert (made.totals.put, made.totals.completed + made.totals.failed) == (60, 59)


def test_a_lake_that_is_not_there_is_an_error(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="there is no lake at"):
        report(spark, lake=tmp_path / "lake", out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_nothing_at_all_makes_a_page_too(
    spark: SparkSession, databases: Databases, tmp_path: Path
) -> None:
    made = report(spark, url=databases.get("sqlite").url, out=tmp_path / "out")
    assert (made.since, made.totals.published, made.findings) == (None, 0, ())
    page = made.page.read_text(encoding="utf-8")
    assert "There is nothing in this time" in page
    assert pq.read_table(made.figures).num_rows == 0


def test_of_many_names_the_busiest_are_told_with_all_that_is_known_of_them(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting, "NAMES_MAX", 3)
    topics = [f"t{n}" for n in range(8) for _ in range(n + 1)]
    rows: Rows = [
        {"topic": topic, "partition": 1, "offset": n, "timestamp": minutes(n * 30)}
        for n, topic in enumerate(topics)
    ]
    write(tmp_path / "lake", "messages", rows)
    made = report(spark, lake=tmp_path / "lake", out=tmp_path, bucket=HOUR)
    figures = Figures(made)
    # The first of the three is all of them together.
    assert figures.of("published", "count", ("topic",)) == {
        (None,): 36.0,
        ("t7",): 8.0,
        ("t6",): 7.0,
    }
    over_time = figures.of("published", "count", ("topic", "bucket"))
    assert sum(n for (topic, bucket), n in over_time.items() if topic == "t7" and bucket) == 8
    assert made.totals.published == 36


def test_spark_and_python_agree_on_what_is_alike(spark: SparkSession) -> None:
    errors = [error for alike in ALIKE.values() for error in alike]
    errors += ["HTTP 503", "can't and won't", "é 'ü' ٣ 12", EVIL, "", "x" * 500]
    rows = spark.createDataFrame([(error,) for error in errors], "error string")
    found = rows.select(reason_of(F.col("error")).alias("reason")).collect()
    assert [row["reason"] for row in found] == [normalised(error) for error in errors]


@on_servers
def test_what_is_in_the_lake_and_in_the_database_counts_once(
    spark: SparkSession, database: Database, tmp_path: Path
) -> None:
    with rowmq.connect(database.url) as mq:
        mq.migrate()
        mq.create_group("orders, all", "billing")
        fill(mq)
        archive(spark, url=database.url, lake=tmp_path / "lake")
        fill(mq)
    made = report(spark, lake=tmp_path / "lake", url=database.url, out=tmp_path)
    totals = made.totals
    assert (totals.topics, totals.published, totals.dead_letters) == (2, 22, 2)
    assert (totals.put, totals.completed, totals.failed, totals.waiting) == (8, 4, 2, 2)
    figures = Figures(made)
    keys = figures.of("messages_of_key", "count", ("topic", "key"))
    assert keys == {("orders, all", "a"): 20.0, (EVIL, None): 2.0}
    assert figures.of("jobs_now", "count", ("queue", "state"))[EVIL, "pending"] == 2
    assert "the live tables of" in made.page.read_text(encoding="utf-8")
    assert database.url not in made.page.read_text(encoding="utf-8")


def test_topics_of_dead_letters_are_known_by_what_they_hold(database: Database) -> None:
    with rowmq.connect(database.url) as mq:
        mq.publish("orders", 1)
        mq.publish("clicks", 1)
        with mq.subscribe("orders", group="billing", dlq_suffix=".dead") as sub:
            sub.poll(timeout=30)[0].reject(error="no way")
        seen = look(mq)
        assert (seen.letter_topics, seen.letter_origins) == (("orders.dead",), ("orders",))
        assert mq.redrive("orders") == 1
        seen = look(mq)
        assert (seen.letter_topics, seen.letter_origins) == (("orders.dead",), ())


def fill(mq: rowmq.RowMQ) -> None:
    """Ten messages, one of which is given up on, and four jobs, of which one waits."""
    mq.publish_many("orders, all", [rowmq.Message(payload=n, key="a") for n in range(10)])
    mq.publish(EVIL, "hello")
    with mq.subscribe("orders, all", group="billing") as sub:
        sub.poll(max=1, timeout=30)[0].reject(error="no way")
    queue = mq.queue(EVIL)
    queue.put_many([1, 2, 3, 4])
    first, second, third = (queue.poll(timeout=30) for _ in range(3))
    assert first is not None
    first.reject(error="no way")
    queue.ack([job for job in (second, third) if job is not None])
