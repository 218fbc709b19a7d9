"""The source as a stream: each message once, and the group's place follows what Spark has done."""

import json
import shutil
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import rowmq
from rowmq.errors import InvalidOption
from tests.choices import on_sqlite
from tests.consuming import eventually
from tests.databases import NAMES, Database
from tests.spark.reading import Stream, publish, refused


@pytest.fixture
def mq(database: Database) -> Iterator[rowmq.RowMQ]:
    with rowmq.connect(database.url) as client:
        yield client


@pytest.fixture
def stream(spark: SparkSession, database: Database, tmp_path: Path) -> Stream:
    return Stream(spark, database.url, tmp_path)


def has_nothing(query: StreamingQuery) -> bool:
    """Whether a stream has last looked for more and found none."""
    progress = query.lastProgress
    return progress is not None and progress["numInputRows"] == 0


def lag(mq: rowmq.RowMQ, topic: str = "orders", group: str = "lake") -> int:
    return sum(one.lag for one in mq.lag(topic, group))


def test_a_stream_is_a_consumer_group(mq: rowmq.RowMQ, stream: Stream) -> None:
    publish(mq, "orders", 30, keys=3)
    options = {"topic": "orders", "group": "lake"}
    assert stream.run(**options, maxOffsetsPerTrigger="20") == [20, 10]
    assert set(stream.read) == {(f"k{key}", offset) for key in range(3) for offset in range(1, 11)}
    assert len(stream.read) == 30
    assert [group.name for group in mq.groups("orders")] == ["lake"]
    publish(mq, "orders", 10, keys=5)
    stream.run(**options)
    assert len(stream.read) == len(set(stream.read)) == 40
    # The run has seen its last batch in Spark's log, or the next one does.
    stream.run(**options)
    assert lag(mq) == 0
    assert mq.gc("orders") == 40


def test_garbage_collection_waits_for_what_spark_has_not_done(
    mq: rowmq.RowMQ, stream: Stream
) -> None:
    publish(mq, "orders", 10)

    class Broken(Exception):
        pass

    def fails(*batch: object) -> None:
        raise Broken(batch)

    kept, stream.keep = stream.keep, fails  # type: ignore[assignment, method-assign]
    with pytest.raises(Exception, match="Broken"):
        stream.run(topic="orders", group="lake")
    assert mq.gc("orders") == 0
    assert lag(mq) == 10
    stream.keep = kept  # type: ignore[method-assign]
    assert stream.run(topic="orders", group="lake") == [10]


@pytest.mark.parametrize(
    ("database", "start"),
    [
        *(("sqlite", start) for start in ("latest", "timestamp")),
        *((name, "json") for name in NAMES),
    ],
    indirect=["database"],
)
def test_a_new_group_begins_where_it_is_told_and_an_old_one_where_it_stands(
    spark: SparkSession, database: Database, mq: rowmq.RowMQ, tmp_path: Path, start: str
) -> None:
    publish(mq, "orders", 10)
    options = {
        "latest": {"startingOffsets": "latest"},
        "json": {"startingOffsets": json.dumps({"orders": {"k0": 8}})},
        "timestamp": {"startingTimestamp": "2100-01-01T00:00:00Z"},
    }[start]
    first = Stream(spark, database.url, tmp_path / "first")
    expected = [("k0", 10), ("k0", 8), ("k0", 9)] if start == "json" else []
    first.run(topic="orders", group="lake", **options)
    assert first.read == expected
    publish(mq, "orders", 2)
    # Without its checkpoint, it goes on where the group stands.
    second = Stream(spark, database.url, tmp_path / "second")
    second.run(topic="orders", group="lake")
    assert second.read == [("k0", 11), ("k0", 12)]


def test_topics_and_keys_that_come_later_are_read_from_their_beginning(
    mq: rowmq.RowMQ, stream: Stream
) -> None:
    options = {"subscribePattern": "orders.*", "group": "lake"}
    publish(mq, "orders-1", 5)
    stream.run(**options)
    publish(mq, "orders-2", 5, keys=5)
    publish(mq, "orders-1", 3, keys=3, start=1)
    publish(mq, "other", 5)
    stream.run(**options)
    assert len(stream.read) == 13
    mq.create_group("orders-3", "other")
    publish(mq, "orders-3", 8)
    mq.seek("orders-3", "other", to={"k0": 5})
    assert mq.gc("orders-3") == 4
    stream.run(**options)
    assert len(stream.read) == 17
    assert lag(mq, "orders-3") in (0, 4)


@on_sqlite
def test_a_pattern_leaves_dead_letters_alone(mq: rowmq.RowMQ, stream: Stream) -> None:
    publish(mq, "orders", 1)
    with mq.subscribe("orders", group="billing") as subscriber:
        for delivery in subscriber.poll():
            delivery.reject()
    stream.run(subscribePattern=".*", group="lake")
    assert stream.read == [("k0", 1)]
    assert mq.groups("orders_dlq") == []


@on_sqlite
def test_a_topic_may_be_awaited(mq: rowmq.RowMQ, stream: Stream) -> None:
    """Where it is known that it comes: what is mistyped would read as nothing."""
    options = {"topic": "later", "group": "lake"}
    publish(mq, "late", 1)
    with refused("there is no topic 'later'", "did you mean 'late'?"):
        stream.run(**options)
    mq.create_group("later", "lake")
    stream.run(**options)  # the first batch of a stream may be empty
    assert stream.read == []
    publish(mq, "later", 3)
    assert stream.run(**options) == [3]


@on_sqlite
def test_an_older_copy_of_a_checkpoint_is_refused(
    mq: rowmq.RowMQ, stream: Stream, tmp_path: Path
) -> None:
    """Its next batch would have the number of another one, which the sink takes for done."""
    options = {"topic": "orders", "group": "lake"}
    publish(mq, "orders", 3)
    assert stream.run(**options) == [3]
    shutil.copytree(stream.checkpoint, tmp_path / "older")
    publish(mq, "orders", 3, start=3)
    stream.run(**options)
    stream.run(**options)
    stream.checkpoint = tmp_path / "older"
    publish(mq, "orders", 3, start=6)
    with refused("the checkpoint only up to", "new checkpoint"):
        stream.run(**options)
    assert lag(mq) == 3
    stream.run(**options, failOnDataLoss="false")
    assert lag(mq) in (0, 3)


@on_sqlite
def test_the_group_of_subscribers_is_refused_also_while_they_are_away(
    mq: rowmq.RowMQ, stream: Stream
) -> None:
    publish(mq, "orders", 2)
    with mq.subscribe("orders", group="billing"):
        pass
    with refused("has subscribers, or had some"):
        stream.run(topic="orders", group="billing")
    stream.run(topic="orders", group="lake")
    with (
        pytest.raises(InvalidOption, match="keeps its own books"),
        mq.subscribe("orders", group="lake"),
    ):
        pass


@on_sqlite
def test_limits_are_shared_fairly(mq: rowmq.RowMQ, stream: Stream) -> None:
    publish(mq, "orders", 100)
    publish(mq, "orders", 2, keys=2, start=1)
    stream.run(topic="orders", group="lake", maxOffsetsPerTrigger="20")
    assert ("k1", 1) in stream.batches[0]
    assert [len(rows) for rows in stream.batches.values()] == [20, 20, 20, 20, 20, 2]


@on_sqlite
def test_bytes_limit_a_batch(mq: rowmq.RowMQ, stream: Stream) -> None:
    for size in (1000, 1000, 5000, 10, 10, 10):
        mq.publish("files", b"x" * size, key="k")
    assert stream.run(topic="files", group="lake", maxBytesPerTrigger="2100b") == [2, 1, 3]


@on_sqlite
async def test_a_small_batch_waits_for_more_but_not_for_ever(
    mq: rowmq.RowMQ, stream: Stream
) -> None:
    publish(mq, "orders", 3)
    options = {"topic": "orders", "group": "lake", "minOffsetsPerTrigger": "10"}
    query = stream.start(once=False, **options, maxTriggerDelay="1h")
    try:
        await eventually(lambda: len(stream.read) == 3)  # the first batch waits for nobody
        publish(mq, "orders", 4)
        await eventually(lambda: has_nothing(query))
        publish(mq, "orders", 6)
        await eventually(lambda: len(stream.read) == 13)
        assert sorted(len(rows) for rows in stream.batches.values()) == [3, 10]
    finally:
        query.stop()
    query = stream.start(once=False, **options, maxTriggerDelay="200ms")
    try:
        publish(mq, "orders", 1)
        await eventually(lambda: len(stream.read) == 14)
    finally:
        query.stop()


def test_retention_that_took_messages_is_an_error_unless_it_was_said_to_be_none(
    database: Database, mq: rowmq.RowMQ, stream: Stream
) -> None:
    publish(mq, "orders", 10)
    options = {"topic": "orders", "group": "lake"}
    assert stream.run(**options) == [10]
    publish(mq, "orders", 10)
    database.execute("UPDATE rowmq_messages SET published_at = 1 WHERE message_offset < 16")
    mq.configure_topic("orders", retention=timedelta(days=1))
    assert mq.gc("orders") == 15
    with refused("retention", "failOnDataLoss"):
        stream.run(**options)
    assert stream.run(**options, failOnDataLoss="false") == [5]


@on_sqlite
def test_a_group_with_subscribers_is_refused(mq: rowmq.RowMQ, stream: Stream) -> None:
    publish(mq, "orders", 1)
    with mq.subscribe("orders", group="billing") as subscriber:
        subscriber.poll()
        with refused("has subscribers", "a group of its own"):
            stream.run(topic="orders", group="billing")


@on_sqlite
def test_a_group_that_is_dropped_ends_the_stream(mq: rowmq.RowMQ, stream: Stream) -> None:
    publish(mq, "orders", 1)
    stream.run(topic="orders", group="lake")
    mq.drop_group("orders", "lake")
    publish(mq, "orders", 1)
    with refused("has no group 'lake'", "create_group"):
        stream.run(topic="orders", group="lake")
    # Made anew, at the beginning: what Spark has done is not done again.
    mq.create_group("orders", "lake")
    assert stream.run(topic="orders", group="lake") == [1]


def test_bad_options_are_told_by_spark(spark: SparkSession, tmp_path: Path) -> None:
    stream = Stream(spark, f"sqlite:///{tmp_path / 'queue.db'}", tmp_path)
    with refused("a stream is a consumer group", "'group'"):
        stream.run(topic="a")
    with rowmq.connect(stream.url) as mq:
        mq.publish("a", 1)
    with refused("has no group 'g'"):
        stream.run(topic="a", group="g", startingOffsets="group")
