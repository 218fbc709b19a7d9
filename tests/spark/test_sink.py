"""DataFrames are published exactly once, in order, all of a batch or nothing of it."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its usual name

import rowmq
from rowmq import RowMQ
from tests.choices import on_sqlite
from tests.databases import Database

STRANGE = 'it\'s 100% "quoted" \\ 🐘 Ünï'
on_postgres = pytest.mark.parametrize("database", ["postgres"], indirect=True)

STAGING = ("stages", "stage_parts", "staged")


@pytest.fixture
def client(database: Database) -> Iterator[RowMQ]:
    with rowmq.connect(database.url) as mq:
        yield mq


def write(df: DataFrame, database: Database, **options: str) -> None:
    df.write.format("rowmq").options(url=database.url, **options).mode("append").save()


def log_of(mq: RowMQ, topic: str = "t") -> list[tuple[str | None, int, Any]]:
    return [(m.key, m.offset, m.payload) for m in mq.read(topic, limit=100_000)]


def left(database: Database) -> list[int]:
    """How many rows there are of what is staged."""
    return [database.execute(f"SELECT COUNT(*) FROM rowmq_{t}")[0][0] for t in STAGING]


def leave_stage(database: Database) -> None:
    """What is left of a task that died long ago."""
    id = 10**12
    part = "part, precedence, messages, largest_bytes, target, name"
    row = "number, nth, part, encoding, payload"
    for sql in (
        f"stages (id, created_at, name) VALUES ({id}, 0, 'x')",
        f"stage_parts (stage_id, {part}) VALUES ({id}, 0, 0, 1, 1, 't', '')",
        f"staged (stage_id, {row}) VALUES ({id}, 0, 0, 0, 0, 'x')",
    ):
        database.execute(f"INSERT INTO rowmq_{sql}")


# --- batches --------------------------------------------------------------------------------------


def test_a_batch_is_published_in_the_order_of_its_rows(
    spark: SparkSession, client: RowMQ, database: Database
) -> None:
    """Also where others have left stages behind, which are swept."""
    client.publish("t", "0", key="0")
    leave_stage(database)
    numbers = spark.range(1, 101, numPartitions=4)
    rows = numbers.select(
        F.col("id").cast("string").alias("value"),
        (F.col("id") % 3).cast("string").alias("key"),
    )
    write(rows, database, topic="t")
    wanted = [str(number) for number in range(101)]
    found = log_of(client)
    for key in ("0", "1", "2"):
        own = [n for n in wanted if int(n) % 3 == int(key)]
        assert [(offset, v) for k, offset, v in found if k == key] == list(enumerate(own, 1))
    assert len(found) == 101
    assert left(database) == [0, 0, 0]


def test_a_row_s_columns_make_a_message(
    spark: SparkSession, client: RowMQ, database: Database
) -> None:
    columns = (
        "topic string, key string, id string, value struct<a:int,b:string>, "
        "headers map<string,string>"
    )
    data = [
        (STRANGE, STRANGE, STRANGE, (1, STRANGE), {STRANGE: STRANGE}),
        ("other", None, None, (2, None), None),
        (STRANGE, STRANGE, STRANGE, (3, "again"), None),
    ]
    write(spark.createDataFrame(data, columns).coalesce(1), database)
    (message,) = client.read(STRANGE)
    assert message.payload == {"a": 1, "b": STRANGE}
    assert (message.key, message.id) == (STRANGE, STRANGE)
    assert message.headers == {STRANGE: STRANGE}
    (other,) = client.read("other")
    assert (other.payload, other.key, other.headers) == ({"a": 2, "b": None}, None, {})


def test_a_batch_of_jobs(spark: SparkSession, client: RowMQ, database: Database) -> None:
    columns = (
        "value string, kind string, key string, ordering_key string, priority int, "
        "due_at timestamp, headers map<string,string>"
    )
    due = datetime(2100, 1, 1, tzinfo=UTC)
    data = [
        ("plain", None, None, None, None, None, {"a": "b"}),
        ("urgent", "mail", None, None, 9, None, None),
        ("later", None, "k", None, None, due, None),
        ("first of line", None, None, "o", None, None, None),
        ("second of line", None, None, "o", None, None, None),
    ]
    jobs = spark.createDataFrame(data, columns).coalesce(1)
    write(jobs, database, queue="q", txnAppId="a", txnVersion="0")
    write(jobs, database, queue="q", txnAppId="a", txnVersion="0")
    queue = client.queue("q")
    assert [(job.payload, job.kind, job.headers) for job in queue.try_poll_many(10)] == [
        ("urgent", "mail", {}),
        ("plain", "", {"a": "b"}),
        ("first of line", "", {}),
    ]
    later = queue.read("k")
    assert later is not None
    assert (later.payload, later.due_at) == ("later", due)
    assert queue.counts()["pending"] == 2
    moved = jobs.where("key = 'k'").withColumn("value", F.lit("now"))
    write(moved, database, queue="q", onConflict="update")
    changed = queue.read("k")
    assert changed is not None
    assert changed.payload == "now"
    assert left(database) == [0, 0, 0]


def test_a_version_is_written_once_also_by_two_at_once(
    spark: SparkSession, client: RowMQ, database: Database
) -> None:
    def write_version(version: int) -> None:
        # Made here, since that is what makes the session known to Spark's side of a thread.
        rows = spark.createDataFrame([(number,) for number in range(10)], "value int")
        write(rows, database, topic="t", txnAppId=STRANGE, txnVersion=str(version))

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(write_version, [5, 5]))
    write_version(4)
    assert sorted(value for _, _, value in log_of(client)) == list(range(10))
    assert left(database) == [0, 0, 0]


def test_a_task_that_is_tried_again_publishes_once(
    spark: SparkSession, client: RowMQ, database: Database
) -> None:
    def value(number: int) -> int:
        task = TaskContext.get()
        assert task is not None
        if number == 7 and task.attemptNumber() == 0:
            raise RuntimeError("the task dies")
        return number

    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "5")
    try:
        fails = F.udf(value, "bigint", useArrow=False)
        rows = spark.range(0, 20, numPartitions=2).select(fails("id").alias("value"))
        write(rows, database, topic="t")
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert [value for _, _, value in log_of(client)] == list(range(20))
    assert left(database) == [0, 0, 0]


@on_postgres
def test_a_row_that_is_wrong_is_named_and_leaves_nothing(
    spark: SparkSession, client: RowMQ, database: Database
) -> None:
    rows = spark.range(0, 4, numPartitions=2)
    bad = rows.select(F.lit("v").alias("value"), F.expr("if(id = 3, '', 'k')").alias("key"))
    with pytest.raises(Exception, match="row 2 of Spark's partition 1, column 'key'"):
        write(bad, database, topic="t")
    assert client.topics() == []
    assert left(database) == [0, 0, 0]


def test_what_the_driver_cannot_publish_leaves_nothing(
    spark: SparkSession, client: RowMQ, database: Database
) -> None:
    client.configure_topic("small", max_payload_bytes=3)
    rows = spark.range(0, 4, numPartitions=2)
    with pytest.raises(Exception, match="PayloadTooLarge"):
        write(rows.select(F.expr("repeat('x', 1 + id)").alias("value")), database, topic="small")
    assert [topic.messages for topic in client.topics()] == [0]
    assert left(database) == [0, 0, 0]


def test_an_empty_batch_publishes_nothing(
    spark: SparkSession, client: RowMQ, database: Database
) -> None:
    write(spark.createDataFrame([], "value string"), database, topic="t")
    write(spark.range(9).where("id < 0").select(F.col("id").alias("value")), database, topic="t")
    assert client.topics() == []


@on_postgres
def test_tables_may_have_a_prefix_and_a_schema(spark: SparkSession, database: Database) -> None:
    where = {"schema": "order", "prefix": "p_"}  # a reserved word
    try:
        with rowmq.connect(database.url, schema="order", prefix="p_") as mq:
            mq.migrate()
            write(spark.range(3).select(F.col("id").alias("value")), database, topic="t", **where)
            assert sorted(message.payload for message in mq.read("t")) == [0, 1, 2]
    finally:
        database.execute('DROP SCHEMA IF EXISTS "order" CASCADE')


@on_sqlite
def test_what_is_wrong_is_told_before_a_task_runs(spark: SparkSession, database: Database) -> None:
    rows = spark.range(1).select(F.lit("v").alias("value"))
    with pytest.raises(Exception, match="not overwritten"):
        rows.write.format("rowmq").options(url=database.url, topic="t").mode("overwrite").save()
    with pytest.raises(Exception, match="did you mean 'txnAppId'"):
        write(rows, database, topic="t", txnApp="a")
    with pytest.raises(Exception, match="there is no place for column 'offset'"):
        write(rows.withColumn("offset", F.lit(1)), database, topic="t")


# --- streams --------------------------------------------------------------------------------------


def test_a_stream_is_published_batch_by_batch(
    spark: SparkSession, client: RowMQ, database: Database, tmp_path: Path
) -> None:
    """Also if it is started again, and if it has nothing to write."""
    folder, checkpoint = tmp_path / "in", str(tmp_path / "checkpoint")

    def run(condition: str = "true") -> None:
        source = spark.readStream.schema("value string").option("maxFilesPerTrigger", 1)
        rows = source.text(str(folder)).where(condition)
        stream = rows.writeStream.format("rowmq").options(url=database.url, topic="t")
        query = stream.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        assert query.awaitTermination(120)

    folder.mkdir()
    for name in ("1", "2"):
        (folder / name).write_text(f"{name}a\n{name}b\n")
    run()
    (folder / "3").write_text("3a\n")
    run("value != '3a'")
    (folder / "4").write_text("4a\n")
    run()
    found = [value for _, _, value in log_of(client)]
    assert sorted(found[:4]) == ["1a", "1b", "2a", "2b"]
    assert found[4:] == ["4a"]
    assert database.execute("SELECT version FROM rowmq_ledger") == [(3,)]
    assert left(database) == [0, 0, 0]
