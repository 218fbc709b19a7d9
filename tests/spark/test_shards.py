"""Messages without a key, in several shards, through Spark: each is there once."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import rowmq
from rowmq import Message
from rowmq.spark.options import Given, topics_options
from rowmq.spark.pipelines.archive import archive
from rowmq.spark.pipelines.replay import replay
from rowmq.spark.source.stream import TopicsStream
from rowmq.store.keys import SHARD_KEYS
from tests.choices import on_sqlite
from tests.databases import Database
from tests.spark.lakes import rows_by_deltalake
from tests.spark.reading import Stream, load, refused


@pytest.fixture
def mq(database: Database) -> Iterator[rowmq.RowMQ]:
    with rowmq.connect(database.url) as client:
        yield client


def spread(mq: rowmq.RowMQ, *counts: tuple[int, int]) -> None:
    """So many messages more in each of some shards."""
    for shard, count in counts:
        mq._shard.key = SHARD_KEYS[shard]
        mq.publish_many("t", [Message(payload={"shard": shard}) for _ in range(count)])


def lag(mq: rowmq.RowMQ, group: str) -> dict[int, int]:
    return {row.shard: row.lag for row in mq.lag("t", group)}


def test_a_batch_reads_every_shard(
    spark: SparkSession, database: Database, mq: rowmq.RowMQ
) -> None:
    spread(mq, (1, 3), (6, 2))
    rows = load(spark, database.url, topic="t").collect()
    assert {row.key for row in rows} == {None}
    assert sorted((json.loads(row.value)["shard"], row.offset) for row in rows) == [
        (1, 1), (1, 2), (1, 3), (6, 1), (6, 2)
    ]  # fmt: skip
    assert len({row.partition for row in rows}) == 2


@on_sqlite
def test_offsets_of_shards_in_json(
    spark: SparkSession, database: Database, mq: rowmq.RowMQ
) -> None:
    spread(mq, (1, 3), (6, 2))

    def count(offsets: dict[str, int]) -> int:
        how = {"topic": "t", "startingOffsets": json.dumps({"t": offsets})}
        return load(spark, database.url, **how).count()

    assert count({"\x011": 3}) == 3
    assert count({"\x011": 3, "\x016": -1}) == 1
    assert count({"": -1, "\x016": 2}) == 1
    with refused("messages without a key are in 2 partitions", r'each of "\u00011", "\u00016"'):
        count({"": 2})
    with refused("has no messages with the key None, shard 3"):
        count({"\x013": 1})
    with refused("U+0001"):
        count({"\x019": 1})


def test_a_stream_goes_on_in_every_shard(
    spark: SparkSession, database: Database, mq: rowmq.RowMQ, tmp_path: Path
) -> None:
    stream = Stream(spark, database.url, tmp_path)
    spread(mq, (1, 3))
    stream.run(topic="t", group="lake")
    spread(mq, (1, 1), (6, 2))
    stream.run(topic="t", group="lake")
    assert Counter(stream.read) == {(None, 1): 2, (None, 2): 2, (None, 3): 1, (None, 4): 1}
    assert lag(mq, "lake") == {1: 0, 6: 0}
    spread(mq, (6, 1))
    assert lag(mq, "lake") == {1: 0, 6: 1}


@on_sqlite
def test_a_checkpoint_names_shards_as_options_do(database: Database, mq: rowmq.RowMQ) -> None:
    spread(mq, (0, 1), (6, 2))
    given = Given({"url": database.url, "group": "lake", "topic": "t"})
    stream = TopicsStream(topics_options(given, stream=True), ("key", "offset"))
    offsets = stream.initialOffset()
    stream.stop()
    assert offsets == {"t": {"\x010": 1, "\x016": 1}}
    again = Given({"url": database.url, "topic": "t", "startingOffsets": json.dumps(offsets)})
    assert topics_options(again, stream=False).start.offsets == offsets


def test_the_sink_finds_ids_that_were_published_without_a_key(
    spark: SparkSession, database: Database, mq: rowmq.RowMQ
) -> None:
    for n in range(4):
        mq.publish("t", n, id=f"id-{n}")
    rows = spark.createDataFrame([(f"{n}", f"id-{n}") for n in range(6)], "value string, id string")
    for _ in range(2):
        rows.write.format("rowmq").mode("append").options(url=database.url, topic="t").save()
    assert sorted(m.id or "" for m in mq.read("t")) == [f"id-{n}" for n in range(6)]
    assert mq.publish("t", 5, id="id-5").duplicate


@on_sqlite
def test_an_id_that_the_sink_made_is_found_by_others(
    spark: SparkSession, database: Database, mq: rowmq.RowMQ
) -> None:
    rows = spark.createDataFrame([(f"{n}",) for n in range(6)], "value string").repartition(2)
    rows.write.format("rowmq").mode("append").options(url=database.url, topic="t").save()
    sent = mq.read("t")
    assert len(sent) == 6
    assert all(mq.publish("t", 0, id=message.id).duplicate for message in sent)


@on_sqlite
def test_the_sink_takes_no_key_for_a_shard(
    spark: SparkSession, database: Database, mq: rowmq.RowMQ
) -> None:
    rows = spark.createDataFrame([("1", None), ("2", "\x013")], "value string, key string")
    with refused("U+0001"):
        rows.write.format("rowmq").mode("append").options(url=database.url, topic="t").save()
    assert mq.read("t") == []


def test_dead_letters_of_every_shard_are_read_and_archived(
    spark: SparkSession, database: Database, mq: rowmq.RowMQ, tmp_path: Path
) -> None:
    spread(mq, (1, 1), (6, 1))
    mq.publish("t", 0, key="k")
    with mq.subscribe("t", group="g", discovery_interval=0.05) as sub:
        for _ in range(3):
            (delivery,) = sub.poll(max=1, timeout=10)
            delivery.reject(error="no")
    rows = load(spark, database.url, deadLetters="t").collect()
    assert Counter(row.key for row in rows) == {None: 2, "k": 1}
    assert archive(spark, url=database.url, lake=tmp_path / "lake").dead_letters == 3
    found = rows_by_deltalake(tmp_path / "lake", "dead_letters")
    assert Counter(row["key"] for row in found) == {None: 2, "k": 1}


def test_the_lake_has_every_message_of_every_shard_once(
    spark: SparkSession, database: Database, mq: rowmq.RowMQ, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    spread(mq, (1, 3), (6, 2))
    assert archive(spark, url=database.url, lake=lake).messages == 5
    spread(mq, (6, 1), (2, 2))
    mq.seek("t", "lake", to="latest")  # ahead of the lake: it is set back, shard by shard
    assert archive(spark, url=database.url, lake=lake).messages == 3
    assert archive(spark, url=database.url, lake=lake).messages == 0
    assert lag(mq, "lake") == {1: 0, 2: 0, 6: 0}
    rows = rows_by_deltalake(lake, "messages")
    assert Counter(row["id"] for row in rows) == Counter(m.id for m in mq.read("t"))
    assert len({(row["partition"], row["offset"]) for row in rows}) == 8
    assert {row["key"] for row in rows} == {None}


@on_sqlite
def test_what_is_replayed_to_a_group_comes_back_to_its_shard(
    spark: SparkSession, database: Database, mq: rowmq.RowMQ, tmp_path: Path
) -> None:
    spread(mq, (1, 1), (6, 1))
    archive(spark, url=database.url, lake=tmp_path / "lake")
    with mq.subscribe("t", group="g", discovery_interval=0.05) as sub:
        for _ in range(2):
            sub.ack(sub.poll(max=1, timeout=10))
    assert mq.gc("t") == 2
    replay(spark, url=database.url, lake=tmp_path / "lake", topics=["t"], to_group="g", id="r1")
    with mq.subscribe("t", group="g", discovery_interval=0.05) as sub:
        found = [delivery.message for _ in range(2) for delivery in sub.poll(max=1, timeout=10)]
        assert sorted((m.shard, m.offset, m.payload["shard"]) for m in found) == [
            (1, 1, 1), (6, 1, 6)
        ]  # fmt: skip
