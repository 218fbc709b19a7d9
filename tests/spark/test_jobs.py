"""Queues, their archive and dead letters as data."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import SparkSession

import rowmq
from tests.databases import Database
from tests.spark.reading import load, refused

STRANGE = "m'a\"il %_ é😀"


@pytest.fixture
def mq(database: Database) -> Iterator[rowmq.RowMQ]:
    with rowmq.connect(database.url) as client:
        yield client


def test_live_jobs_are_read_in_every_state(
    spark: SparkSession, database: Database, mq: rowmq.RowMQ
) -> None:
    queue = mq.queue(STRANGE)
    for number in range(6):
        queue.put({"n": number}, key=f"k{number}", priority=number, headers={"h": "é"})
    for _ in range(3):
        queue.put("in line", ordering_key="line")
    queue.put(b"later", delay=3600)
    failing, running = queue.try_poll_many(2)
    failing.nack(delay=0)
    mq.queue("other").put(1)
    found = load(spark, database.url, queue=STRANGE).collect()
    states = sorted(row.state for row in found)
    assert states == ["pending"] * 8 + ["processing", "retryable"]
    assert {row.queue for row in found} == {STRANGE}
    rows = {row.id: row for row in found}
    mine = rows[running.id]
    assert (mine.key, mine.priority, mine.headers) == (running.key, 4, {"h": "é"})
    assert (mine.deliveries, mine.encoding) == (1, "json")
    assert bytes(mine.value) == b'{"n":4}'
    assert mine.created_at.replace(tzinfo=UTC) == running.created_at
    assert sum(row.ordering_key == "line" for row in found) == 3
    both = load(spark, database.url, queue="*")
    assert both.count() == 11


def test_finished_jobs_are_read_by_when_they_were(
    spark: SparkSession, database: Database, mq: rowmq.RowMQ
) -> None:
    queue = mq.queue(STRANGE)
    for number in range(20):
        queue.put({"n": number})
    jobs = queue.try_poll_many(20)
    for job in jobs[:15]:
        job.ack()
    for job in jobs[15:]:
        job.reject(error="it broke: é😀")
    found = load(spark, database.url, archive=STRANGE, minPartitions="3").collect()
    assert len({row.id for row in found}) == len(found) == 20
    failed = [row for row in found if row.state == "failed"]
    assert {row.error for row in failed} == {"it broke: é😀"}
    assert len(failed) == 5
    done = [row for row in found if row.state == "completed"]
    assert {row.error for row in done} == {None}
    assert all(row.created_at <= row.started_at <= row.finished_at for row in found)
    narrow = load(spark, database.url, "id bigint, state string", archive=STRANGE)
    assert narrow.columns == ["id", "state"]
    assert narrow.count() == 20
    soon = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    assert load(spark, database.url, archive=STRANGE, startingTimestamp=soon).count() == 0
    assert load(spark, database.url, archive=STRANGE, endingTimestamp=soon).count() == 20
    with refused("there is no queue 'nothing'"):
        load(spark, database.url, archive="nothing").count()


def test_dead_letters_are_read_with_where_they_came_from(
    spark: SparkSession, database: Database, mq: rowmq.RowMQ
) -> None:
    for topic in (STRANGE, "other"):
        for number in range(4):
            mq.publish(topic, {"n": number}, key="k" if number % 2 else None)
        with mq.subscribe(topic, group="g'1") as subscriber:
            for delivery in subscriber.poll():
                delivery.reject(error="no such é")
    rows = load(spark, database.url, deadLetters=STRANGE).collect()
    assert {(row.topic, row.group, row.error) for row in rows} == {(STRANGE, "g'1", "no such é")}
    assert sorted((row.key or "", row.origin_offset) for row in rows) == [
        ("", 1),
        ("", 2),
        ("k", 1),
        ("k", 2),
    ]
    listed = {letter.message.id for letter in mq.dead_letters(STRANGE)}
    assert {row.id for row in rows} == listed
    assert load(spark, database.url, deadLetters="*").count() == 8
    with refused("live jobs have no time"):
        load(spark, database.url, queue=STRANGE, startingTimestamp="1").count()
