"""Replay: from the lake back to a topic, a queue or one group, never twice for one id."""

import shutil
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

import rowmq
from rowmq.errors import InvalidOption, PipelineFailed, UnknownGroup
from rowmq.spark.pipelines.archive import archive
from rowmq.spark.pipelines.replay import ReplayProgress, ReplayResult, replay
from rowmq.spark.pipelines.replaying.ledger import Ledger
from tests.databases import Database, Databases


class Lake:
    """A database and its lake."""

    def __init__(self, spark: SparkSession, database: Database, folder: Path) -> None:
        self.spark = spark
        self.database = database
        self.path = folder / "lake"
        self.mq = rowmq.connect(database.url)

    def publish(self, count: int, *, topic: str = "orders", keys: int = 2) -> None:
        for start in range(0, count, keys):
            sent = [
                rowmq.Message(
                    payload={"n": n}, key=f"k{n % keys}", id=f"id-{n}", headers={"h": "1"}
                )
                for n in range(start, min(count, start + keys))
            ]
            self.mq.publish_many(topic, sent)

    def archive(self) -> None:
        archive(self.spark, url=self.database.url, lake=self.path)

    def replay(self, id: str = "once", **options: Any) -> ReplayResult:
        if not {"topics", "queue"} & set(options):
            options["topics"] = "orders"
        return replay(self.spark, url=self.database.url, lake=self.path, id=id, **options)

    def numbers(self, topic: str) -> list[int]:
        """What a topic holds, by key."""
        return [message.payload["n"] for message in self.mq.read(topic, limit=10_000)]


@pytest.fixture
def lake(spark: SparkSession, database: Database, tmp_path: Path) -> Iterator[Lake]:
    """On each database."""
    found = Lake(spark, database, tmp_path)
    yield found
    found.mq.close()


@pytest.fixture
def small(spark: SparkSession, databases: Databases, tmp_path: Path) -> Iterator[Lake]:
    """Ten messages on SQLite, archived."""
    found = Lake(spark, databases.get("sqlite"), tmp_path)
    found.publish(10)
    found.archive()
    yield found
    found.mq.close()


def test_messages_are_replayed_to_a_topic_once_and_in_order(lake: Lake) -> None:
    lake.publish(6)
    lake.mq.publish("orders", b"\x00\xff")
    lake.mq.publish("orders", "text", key="k0")
    lake.archive()
    lake.mq.gc("orders")
    result = lake.replay(to_topic="again & again", chunk=3)
    assert result == ReplayResult(id="once", rows=8, replayed=8, chunks=3)
    assert lake.replay(to_topic="again & again").chunks == 0
    found = lake.mq.read("again & again", key="k0")
    assert [message.payload for message in found] == [{"n": 0}, {"n": 2}, {"n": 4}, "text"]
    assert [message.payload for message in lake.mq.read("again & again", key="k1")] == [
        {"n": 1},
        {"n": 3},
        {"n": 5},
    ]
    assert [m.payload for m in lake.mq.read("again & again") if m.key is None] == [b"\x00\xff"]
    assert dict(found[0].headers) == {"h": "1", "rowmq-replay": "once", "rowmq-replay-of": "id-0"}
    # Another id is another replay.
    assert lake.replay("twice", to_topic="again & again").replayed == 8
    assert sum(info.messages for info in lake.mq.topics() if info.name == "again & again") == 16


def test_messages_are_given_back_to_one_group_also_those_that_are_gone(lake: Lake) -> None:
    lake.publish(6)
    lake.archive()
    for group in ("billing", "mail"):
        lake.mq.create_group("orders", group)
        with lake.mq.subscribe("orders", group=group) as subscriber:
            subscriber.ack(subscriber.poll(max=100))
    lake.mq.gc("orders")
    lake.publish(1, keys=1)
    assert len(lake.mq.read("orders")) == 1
    result = lake.replay(to_group="billing", key="k1", chunk=2)
    assert result == ReplayResult(id="once", rows=3, replayed=3, chunks=2)
    with lake.mq.subscribe("orders", group="billing") as subscriber:
        found = subscriber.poll(max=100)
        assert [
            (d.message.key, d.message.offset, d.message.id, d.message.payload["n"])
            for d in found
            if d.message.key == "k1"
        ] == [("k1", 1, "id-1", 1), ("k1", 2, "id-3", 3), ("k1", 3, "id-5", 5)]
        assert dict(found[-1].message.headers) == {"h": "1"}
        subscriber.ack(found)
    with lake.mq.subscribe("orders", group="mail") as subscriber:
        assert [d.message.key for d in subscriber.poll(max=100)] == ["k0"]
    assert lake.replay(to_group="billing", key="k1").chunks == 0
    with lake.mq.subscribe("orders", group="billing") as subscriber:
        assert subscriber.poll(max=100) == []


def test_messages_and_jobs_are_replayed_to_a_queue(lake: Lake) -> None:
    lake.publish(3)
    done = lake.mq.queue("done")
    done.put({"n": 7}, priority=5, headers={"a": "b"}, key="seven")
    for job in done.try_poll_many(1):
        job.ack()
    lake.archive()
    assert lake.replay(to_queue="work").replayed == 3
    assert lake.replay("jobs", queue="done", to_queue="work").replayed == 1
    assert lake.replay("jobs", queue="done", to_queue="work").chunks == 0
    found = lake.mq.queue("work").try_poll_many(10)
    assert found[0].payload["n"] == 7
    # What had a key is in order, as it was: 2 waits for 0.
    assert sorted(job.payload["n"] for job in found[1:]) == [0, 1]
    lake.mq.queue("work").ack(found)
    assert [job.payload["n"] for job in lake.mq.queue("work").try_poll_many(10)] == [2]
    assert found[0].headers["a"] == "b"
    assert found[0].headers["rowmq-replay"] == "jobs"
    assert lake.replay("jobs to a topic", queue="done", to_topic="finished").replayed == 1
    assert lake.numbers("finished") == [7]


def test_a_choice_is_made_by_time_key_and_condition(small: Lake) -> None:
    times = sorted(str(message.published_at) for message in small.mq.read("orders"))
    border, before = datetime.fromisoformat(times[5]), sum(time < times[5] for time in times)
    assert small.replay("a", to_topic="t", until=border, dry_run=True).rows == before
    assert small.replay("b", to_topic="t", since=border, dry_run=True).rows == 10 - before
    assert small.replay("c", to_topic="t", key="k1", dry_run=True).rows == 5
    where = "get_json_object(cast(value AS string), '$.n') >= 6 AND offset < 5"
    assert small.replay("d", to_topic="t", where=where, key="k0", dry_run=True).rows == 1
    later = datetime.now(UTC) + timedelta(days=400)
    assert small.replay("e", to_topic="t", since=later) == ReplayResult(id="e", rows=0)
    assert [info.name for info in small.mq.topics()] == ["orders"]
    small.replay("f", to_topic="t", where=where)
    assert small.numbers("t") == [6, 7]


class Killed(BaseException):
    """Stands for the end of the process."""


def test_a_replay_that_was_killed_goes_on_where_it_was(small: Lake) -> None:
    def die(progress: ReplayProgress) -> None:
        if progress.done == 4:
            raise Killed

    with pytest.raises(Killed):
        small.replay(to_topic="t", chunk=2, progress=die)
    assert len(small.numbers("t")) == 4
    # What was archived since then is not part of it, nor is another size of chunks.
    small.publish(12, topic="other")
    small.mq.publish("orders", {"n": 99})
    small.archive()
    result = small.replay(to_topic="t", chunk=7)
    assert (result.rows, result.replayed, result.chunks) == (10, 10, 3)
    assert sorted(small.numbers("t")) == list(range(10))


def test_a_chunk_that_was_published_is_not_published_again(small: Lake) -> None:
    """Whoever published it may have died before anybody was told."""
    with ThreadPoolExecutor(2) as threads:
        runs = [threads.submit(small.replay, to_topic="t", chunk=4) for _ in range(2)]
        assert all(run.result().done for run in runs)
    assert sorted(small.numbers("t")) == list(range(10))


def test_one_id_stands_for_one_choice(small: Lake) -> None:
    small.replay(to_topic="t", key="k1")
    with pytest.raises(InvalidOption, match="was begun with key='k1'"):
        small.replay(to_topic="t")
    with pytest.raises(InvalidOption, match="was begun with to_topic='t'"):
        small.replay(to_topic="u", key="k1")
    assert len(small.numbers("t")) == 5


def test_the_database_says_which_of_two_plans_an_id_stands_for(small: Lake) -> None:
    """Some stores let two who begin at once keep a plan each."""

    def die(progress: ReplayProgress) -> None:
        if progress.done == 6:
            raise Killed

    with pytest.raises(Killed):
        small.replay(to_topic="t", chunk=3, progress=die)
    replays = DeltaTable(small.path / "replays")
    (mine,) = replays.to_pyarrow_dataset().to_table().to_pylist()
    plan = msgspec.json.decode(mine["plan"])
    other = plan | {"chunk": 6, "borders": [*plan["borders"][1::2]]}
    for days in (-1, 1):
        row = mine | {
            "made_at": mine["made_at"] + timedelta(days=days),
            "plan": msgspec.json.encode(other).decode(),
        }
        write_deltalake(replays, pa.Table.from_pylist([row]), mode="append")
    assert small.replay(to_topic="t", chunk=6).chunks == 2
    assert sorted(small.numbers("t")) == list(range(10))


def test_of_two_who_settle_a_plan_at_once_both_have_the_same(database: Database) -> None:
    with rowmq.connect(database.url) as one, rowmq.connect(database.url) as two:
        ledgers = [Ledger(mq, id="é" * 50, target="topic t") for mq in (one, two)]
        assert ledgers[0].plan() is None
        start = threading.Barrier(2)

        def settle(ledger: Ledger, number: int) -> int:
            start.wait()
            return ledger.settle(number)

        with ThreadPoolExecutor(2) as threads:
            told = list(threads.map(settle, ledgers, (2**62 - 1, 0)))
        assert told[0] == told[1] == ledgers[0].plan()
        assert ledgers[1].settle(7) == told[0]
        assert ledgers[0].done() == -1  # it is no chunk


def test_one_id_stands_for_one_lake(small: Lake, tmp_path: Path) -> None:
    other = tmp_path / "other"
    archive(small.spark, url=small.database.url, lake=other, group="other")
    small.replay(to_topic="t")
    same: dict[str, Any] = {"url": small.database.url, "topics": "orders", "to_topic": "t"}
    for dry_run in (False, True):
        with pytest.raises(InvalidOption, match="'once' was used for a replay of another lake"):
            replay(small.spark, lake=other, id="once", dry_run=dry_run, **same)
    assert not (other / "replays").exists()
    shutil.copytree(small.path / "replays", other / "replays")
    with pytest.raises(InvalidOption, match="give this replay a new one"):
        replay(small.spark, lake=other, id="once", **same)
    assert replay(small.spark, lake=other, id="new", **same).done
    assert len(small.numbers("t")) == 20


@pytest.mark.parametrize("target", [{"to_topic": "t"}, {"to_group": "g"}])
def test_rows_that_a_condition_no_longer_chooses_are_not_passed_over(
    small: Lake, target: dict[str, str]
) -> None:
    """As with now(), but at a time of our choice."""
    small.mq.create_group("orders", "g", start="latest")
    small.spark = small.spark.newSession()
    small.spark.conf.set("spark.sql.session.timeZone", "UTC")

    def change(progress: ReplayProgress) -> None:
        if progress.done == 4:
            small.spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")

    options: dict[str, Any] = {"where": "current_timezone() = 'UTC' OR key = 'k0'", "chunk": 4}
    with pytest.raises(PipelineFailed, match=r"other rows .* has \d rows, not 4"):
        small.replay(**target, **options, progress=change)
    with small.mq.subscribe("orders", group="g") as subscriber:
        replayed = len(subscriber.poll(max=100)) or len(small.numbers("t"))
    assert replayed == 4


def test_of_a_job_only_the_last_time_it_finished_counts(small: Lake) -> None:
    queue = small.mq.queue("mails")
    first, second, third = [queue.put({"n": n}).id for n in range(3)]
    for job in queue.try_poll_many(3):
        job.reject(error="no")
    small.archive()
    border = datetime.now(UTC)
    time.sleep(0.002)  # SQLite's clock has milliseconds
    queue.retry([first, second])
    again = {job.id: job for job in queue.try_poll_many(2)}
    again[first].reject(error="no again")
    again[second].ack()
    small.archive()
    failed = small.replay("failed", queue="mails", where="state = 'failed'", to_queue="work")
    assert (failed.rows, failed.replayed) == (2, 2)
    found = small.mq.queue("work").try_poll_many(10)
    assert [job.headers["rowmq-replay-of"] for job in found] == [str(third), str(first)]
    assert small.replay("all", queue="mails", to_topic="t", chunk=2).rows == 3
    assert sorted(small.numbers("t")) == [0, 1, 2]
    before = small.replay("before", queue="mails", until=border, to_topic="t", dry_run=True)
    assert before.rows == 1


def test_ids_are_kept_if_that_is_asked_for(small: Lake) -> None:
    small.replay(to_topic="orders", keep_ids=True)
    assert len(small.numbers("orders")) == 10  # it still has them
    small.replay("copy", to_topic="copy", keep_ids=True)
    assert {message.id for message in small.mq.read("copy")} == {f"id-{n}" for n in range(10)}
    small.replay("same", to_topic="orders")
    assert len(small.numbers("orders")) == 20


def test_a_rate_is_kept(small: Lake) -> None:
    small.replay("warm", to_topic="t", dry_run=True)
    begun = time.monotonic()
    result = small.replay(to_topic="t", key="k0", rate=4)
    assert result.chunks == 3
    assert time.monotonic() - begun >= 1.25


def test_it_stops_when_it_is_told_to(small: Lake) -> None:
    stop = threading.Event()

    def look(progress: ReplayProgress) -> None:
        if progress.done >= 6:
            stop.set()

    result = small.replay(to_topic="t", chunk=3, stop=stop, progress=look)
    assert (result.replayed, result.done) == (6, False)
    assert small.replay(to_topic="t").done


def test_bad_input_is_refused_before_anything_is_written(small: Lake, tmp_path: Path) -> None:
    now = datetime.now(UTC)
    for options, message in (
        ({"to_topic": "t", "topics": ["typo"]}, "has nothing of topic 'typo'"),
        ({"to_topic": "t", "queue": "q", "topics": ["orders"]}, "one of the two"),
        ({"to_topic": "t", "to_queue": "q"}, "replay where to"),
        ({}, "replay where to"),
        ({"to_group": "g", "queue": "q"}, "a group is delivered messages"),
        ({"to_topic": "t", "since": now, "until": now}, "since must be before until"),
        ({"to_topic": "t", "where": "no such column > 3"}, "where is no condition"),
        ({"to_topic": "t", "where": "nosuch > 3"}, "where is no condition"),
        ({"to_topic": "t", "rate": 0}, "rate must be"),
        ({"to_topic": "t", "chunk": 0}, "chunk must be"),
        ({"to_topic": "t", "id": ""}, "id must name the replay"),
    ):
        with pytest.raises(InvalidOption, match=message):
            small.replay(**options)
    with pytest.raises(UnknownGroup):
        small.replay(to_group="nobody")
    with pytest.raises(InvalidOption, match="there is no table 'messages'"):
        replay(
            small.spark,
            url=small.database.url,
            lake=tmp_path / "nowhere",
            id="x",
            topics="orders",
            to_topic="t",
        )
    assert [info.name for info in small.mq.topics()] == ["orders"]
