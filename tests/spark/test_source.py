"""The source as a batch: what is published is what Spark reads, of any topic and any part of it."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

import rowmq
from rowmq import Message
from rowmq.errors import DataLoss
from rowmq.spark.options import Given, topics_options
from rowmq.spark.source.stream import TopicsStream
from tests.choices import on_sqlite
from tests.consuming import statements
from tests.databases import Database
from tests.spark.reading import load, publish, refused

STRANGE = "o'r\"d %_\\ é😀,"


@pytest.fixture
def mq(database: Database) -> Iterator[rowmq.RowMQ]:
    with rowmq.connect(database.url) as client:
        yield client


def stream_of(database: Database, **options: str) -> TopicsStream:
    """The driver's side of a stream, without Spark."""
    given = Given({"url": database.url, "group": "lake", **options})
    return TopicsStream(topics_options(given, stream=True), ("key", "offset"))


def test_every_column_is_as_it_was_published(
    spark: SparkSession, database: Database, mq: rowmq.RowMQ
) -> None:
    messages: list[Message[Any]] = [
        Message(payload={"n": 1}, key="a'b%", id="x-1", headers={"trace": "é😀", "empty": ""}),
        Message(payload="text", key="K"),
        Message(payload=b"\0\xff", key="k"),
        Message(payload=b""),
    ]
    sent = mq.publish_many(STRANGE, messages)
    columns = ["key", "value", "topic", "partition", "offset", "timestamp", "id", "headers"]
    found = load(spark, database.url, topic=STRANGE)
    assert found.columns == columns
    rows = {row.id: row for row in found.collect()}
    for message, result in zip(messages, sent, strict=True):
        row = rows.pop(result.id)
        assert (row.key, row.topic, row.offset) == (message.key, STRANGE, result.offset)
        assert row.headers == message.headers
        stored = mq.read(STRANGE, key=message.key, limit=1) if message.key else []
        if stored:
            assert row.timestamp.replace(tzinfo=UTC) == stored[0].published_at
    assert rows == {}
    values = {bytes(row.value) for row in found.collect()}
    assert values == {b'{"n":1}', b"text", b"\0\xff", b""}


def test_columns_are_pruned_by_the_schema(
    spark: SparkSession, database: Database, mq: rowmq.RowMQ
) -> None:
    publish(mq, "orders", 30, keys=3)
    mq.publish("orders", "text")
    found = load(spark, database.url, "offset bigint, encoding string", topic="orders")
    assert found.columns == ["offset", "encoding"]
    counted = {row.encoding: row["count"] for row in found.groupBy("encoding").count().collect()}
    assert counted == {"json": 30, "text": 1}
    plain = load(spark, database.url, topic="orders", includeHeaders="false")
    assert "headers" not in plain.columns
    with refused("there is no column 'values'", "value"):
        load(spark, database.url, "values string", topic="orders").count()
    with refused("column 'value' is a binary, not a string"):
        load(spark, database.url, "value string", topic="orders").count()


def test_bounds_choose_what_is_read(
    spark: SparkSession, database: Database, mq: rowmq.RowMQ
) -> None:
    publish(mq, "orders", 20, keys=2)
    mq.publish("orders", b"keyless")
    cut = datetime.now(UTC) + timedelta(seconds=5)
    database.execute(
        "UPDATE rowmq_messages SET published_at = published_at + 10000000 WHERE message_offset > 7"
    )

    def offsets(**options: str) -> dict[str | None, list[int]]:
        rows = load(spark, database.url, topic="orders", **options).collect()
        found: dict[str | None, list[int]] = {}
        for row in rows:
            found.setdefault(row.key, []).append(row.offset)
        return {key: sorted(numbers) for key, numbers in found.items()}

    start = json.dumps({"orders": {"k0": 9, "": -1}})
    assert offsets(startingOffsets=start) == {"k0": [9, 10], "k1": list(range(1, 11))}
    end = json.dumps({"orders": {"k0": 3, "k1": -2}})
    assert offsets(endingOffsets=end) == {"k0": [1, 2], None: [1]}
    later = {"k0": [8, 9, 10], "k1": [8, 9, 10]}
    assert offsets(startingTimestamp=cut.isoformat()) == later
    millis = str(int(cut.timestamp() * 1000))
    earlier = {"k0": list(range(1, 8)), "k1": list(range(1, 8)), None: [1]}
    assert offsets(endingTimestamp=millis) == earlier
    mq.create_group("orders", "billing")
    mq.seek("orders", "billing", to={"k0": 5, "k1": 10, None: 2})
    group = {"startingOffsets": "group", "group": "billing"}
    assert offsets(**group) == {"k0": [5, 6, 7, 8, 9, 10], "k1": [10]}
    with refused("beyond it"):
        offsets(startingOffsets=json.dumps({"orders": {"k0": 12}}))
    with refused("no messages with the key 'nobody'"):
        offsets(startingOffsets=json.dumps({"orders": {"nobody": 1}}))


@on_sqlite
def test_many_topics_are_read_by_name_or_by_pattern(
    spark: SparkSession, database: Database, mq: rowmq.RowMQ
) -> None:
    for topic in ("orders.eu", "orders.us", "other", "Orders.x"):
        publish(mq, topic, 3)

    def counts(**options: str) -> dict[str, int]:
        rows = load(spark, database.url, **options).groupBy("topic").count().collect()
        return {row.topic: row["count"] for row in rows}

    assert counts(subscribe="orders.eu, other") == {"orders.eu": 3, "other": 3}
    assert counts(subscribePattern=r"orders\..*") == {"orders.eu": 3, "orders.us": 3}
    assert counts(subscribePattern="nothing") == {}
    with refused("there is no topic 'order.eu'", "did you mean 'orders.eu'?"):
        counts(topic="order.eu")


@on_sqlite
def test_skewed_partitions_are_split_and_small_ones_go_together(
    spark: SparkSession, database: Database, mq: rowmq.RowMQ
) -> None:
    publish(mq, "orders", 300, keys=1)
    publish(mq, "orders", 40, keys=40, start=1)
    found = load(spark, database.url, topic="orders", minPartitions="4")
    sizes = found.groupBy(F.spark_partition_id()).count().collect()
    assert sorted(row["count"] for row in sizes) == [85, 85, 85, 85]
    capped = load(spark, database.url, topic="orders", maxRecordsPerPartition="50")
    sizes = capped.groupBy(F.spark_partition_id()).count().collect()
    assert max(row["count"] for row in sizes) <= 50
    assert sum(row["count"] for row in sizes) == 340
    assert found.select("key", "offset").distinct().count() == 340


def test_ten_thousand_keys_take_no_query_for_each(database: Database, mq: rowmq.RowMQ) -> None:
    keys = 10_000
    publish(mq, "wide", keys, keys=keys)
    stream = stream_of(database, topic="wide")
    with statements(stream.mq) as ran:
        start = stream.initialOffset()
        end = stream.latestOffset(start, stream.getDefaultReadLimit())
        tasks = stream.partitions(start, end)
        stream.commit(end)
    assert sum(len(ends) for ends in end.values()) == keys
    assert len(ran) < keys / 50
    read = [batch.num_rows for task in tasks for batch in stream.read(task)]
    assert sum(read) == keys
    assert sum(one.lag for one in mq.lag("wide", "lake")) == 0
    stream.stop()


def test_a_database_that_was_restored_is_not_taken_for_the_one_that_was_read(
    database: Database, mq: rowmq.RowMQ
) -> None:
    publish(mq, "orders", 5)
    stream = stream_of(database, topic="orders")
    stream.initialOffset()
    with pytest.raises(DataLoss, match="the checkpoint is ahead of the database"):
        stream.latestOffset({"orders": {"k0": 9}}, stream.getDefaultReadLimit())
    with pytest.raises(DataLoss, match="ahead"):
        stream.latestOffset({"orders": {"k1": 2}}, stream.getDefaultReadLimit())
    assert [one.offset_acked for one in mq.lag("orders", "lake")] == [0]
    stream.stop()


def test_what_is_gone_is_an_error_unless_it_was_said_to_be_none(
    spark: SparkSession, database: Database, mq: rowmq.RowMQ
) -> None:
    publish(mq, "orders", 10)
    database.execute("DELETE FROM rowmq_messages WHERE message_offset IN (4, 5)")
    with refused("2 messages of topic 'orders' were deleted", "failOnDataLoss"):
        load(spark, database.url, topic="orders").count()
    assert load(spark, database.url, topic="orders", failOnDataLoss="false").count() == 8
    database.execute("UPDATE rowmq_partitions SET first_offset = 6")
    start = json.dumps({"orders": {"k0": 2}})
    with refused("the offsets 2 to 5 of topic 'orders'", "retention"):
        load(spark, database.url, topic="orders", startingOffsets=start).count()
    assert load(spark, database.url, topic="orders").count() == 5


@on_sqlite
def test_dead_letter_topics_may_have_gaps(
    spark: SparkSession, database: Database, mq: rowmq.RowMQ
) -> None:
    publish(mq, "orders", 10)
    with mq.subscribe("orders", group="billing", dlq_suffix=".dead") as sub:
        for delivery in sub.poll(max=10, timeout=30):
            delivery.reject(error="no way")
    fourth = mq.dead_letters("orders")[3].message.id
    assert mq.redrive("orders", ids=[str(fourth)]) == 1
    assert load(spark, database.url, topic="orders.dead").count() == 9


def test_large_payloads_pass(spark: SparkSession, database: Database, mq: rowmq.RowMQ) -> None:
    mq.configure_topic("files", max_payload_bytes=20_000_000)
    body = bytes(range(256)) * 65_536
    mq.publish("files", body)
    mq.publish("files", b"small")
    found = load(spark, database.url, topic="files")
    sizes = found.select(F.length("value").alias("size"), F.md5("value").alias("hash")).collect()
    assert sorted(row["size"] for row in sizes) == [5, len(body)]


def test_secrets_stay_out_of_plans_and_errors(
    spark: SparkSession, database: Database, mq: rowmq.RowMQ, capfd: pytest.CaptureFixture[str]
) -> None:
    publish(mq, "orders", 1)
    found = load(spark, database.url, topic="orders")
    found.explain(mode="extended")
    found.explain(mode="formatted")
    shown = capfd.readouterr().out + found._jdf.queryExecution().toString()
    assert "orders" in shown or "rowmq" in shown
    assert database.url not in shown
    secret = "postgresql://me:hunter2@127.0.0.1:1/none"
    with pytest.raises(Exception) as caught:  # noqa: PT011 - whatever it is, it must not tell
        load(spark, secret, topic="orders").count()
    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in capfd.readouterr().err


@on_sqlite
def test_spark_finds_the_source_by_itself(
    spark: SparkSession, database: Database, mq: rowmq.RowMQ
) -> None:
    publish(mq, "orders", 3)
    fresh = spark.newSession()
    found = fresh.read.format("rowmq").option("url", database.url).option("topic", "orders").load()
    assert found.count() == 3


def test_an_order_within_a_task_is_the_order_of_the_log(
    spark: SparkSession, database: Database, mq: rowmq.RowMQ
) -> None:
    publish(mq, "orders", 2000, keys=2)
    found = load(spark, database.url, topic="orders", minPartitions="1").collect()
    for key in ("k0", "k1"):
        offsets = [row.offset for row in found if row.key == key]
        assert offsets == sorted(offsets)


def test_bad_options_are_told_by_spark(spark: SparkSession, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'queue.db'}"
    with refused("there is no option 'topics'", "did you mean 'topic'?"):
        load(spark, url, topics="x")
    with refused("is for streams"):
        load(spark, url, topic="a", maxOffsetsPerTrigger="5").count()
