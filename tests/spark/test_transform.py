"""Transform: a function between a source and a sink, started again when it fails."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import rowmq
from rowmq.errors import InvalidOption, PipelineFailed
from rowmq.spark.pipelines.transform import TransformProgress, TransformResult, transform
from tests.databases import Database, Databases
from tests.spark import streams


class Stage:
    """A database with a topic to read, and a checkpoint."""

    def __init__(self, spark: SparkSession, database: Database, folder: Path) -> None:
        self.spark = spark
        self.database = database
        self.folder = folder
        self.mq = rowmq.connect(database.url)

    def publish(self, *numbers: int) -> None:
        sent = [rowmq.Message(payload={"n": n}, key=f"k{n % 2}", id=str(n)) for n in numbers]
        self.mq.publish_many("orders", sent)

    def run(self, function: Any = "tests.spark.streams:doubled", **options: Any) -> TransformResult:
        return transform(
            self.spark,
            url=self.database.url,
            function=function,
            source=options.pop("source", {"topic": "orders", "group": "doubler"}),
            sink=options.pop("sink", {"topic": "doubled"}),
            checkpoint=self.folder / "checkpoint",
            **options,
        )

    def doubled(self) -> list[int]:
        return sorted(m.payload["n"] for m in self.mq.read("doubled", limit=1000))


@pytest.fixture
def stage(spark: SparkSession, database: Database, tmp_path: Path) -> Iterator[Stage]:
    """On each database."""
    found = Stage(spark, database, tmp_path)
    yield found
    found.mq.close()


@pytest.fixture
def small(spark: SparkSession, databases: Databases, tmp_path: Path) -> Iterator[Stage]:
    """On SQLite, where the database does not matter."""
    found = Stage(spark, databases.get("sqlite"), tmp_path)
    yield found
    found.mq.close()


def test_each_message_is_transformed_once(stage: Stage) -> None:
    stage.publish(1, 2, 3)
    assert stage.run().rows == 3
    assert stage.doubled() == [2, 4, 6]
    stage.publish(4)
    assert stage.run() == TransformResult(rows=1, batches=1)
    assert stage.doubled() == [2, 4, 6, 8]
    assert {m.id: m.key for m in stage.mq.read("doubled")}["4"] == "k0"


def test_it_is_started_again_when_it_fails(small: Stage) -> None:
    small.mq.configure_topic("doubled", max_payload_bytes=1)
    small.publish(1, 2, 3)
    problems: list[str] = []

    def look(progress: TransformProgress) -> None:
        if progress.error is not None:
            problems.append(progress.error)
            small.mq.configure_topic("doubled", max_payload_bytes=1000)

    result = small.run(pause=0.01, progress=look)
    assert (result.rows, result.restarts) == (3, 1)
    assert small.doubled() == [2, 4, 6]
    assert [problem[:30] for problem in problems] == ["Spark gave up: PayloadTooLarge"]


def test_it_gives_up_after_so_many_restarts(small: Stage) -> None:
    small.mq.configure_topic("doubled", max_payload_bytes=1)
    small.publish(1)
    seen: list[TransformProgress] = []
    with pytest.raises(PipelineFailed, match="Spark gave up: PayloadTooLarge: "):
        small.run(pause=0.01, restarts=1, progress=seen.append)
    assert [progress.result.restarts for progress in seen] == [1]
    assert small.doubled() == []


def test_it_goes_on_until_it_is_stopped(small: Stage) -> None:
    stop = threading.Event()
    small.publish(1)

    def look(progress: TransformProgress) -> None:
        if progress.result.rows == 1:
            small.publish(2)
        else:
            stop.set()

    result = small.run(once=False, every=0.05, stop=stop, progress=look)
    assert result.rows == 2
    assert small.doubled() == [2, 4]


def test_jobs_can_be_made_of_messages(small: Stage) -> None:
    small.publish(21)

    def jobs(rows: Any) -> Any:
        return streams.doubled(rows).select("value")

    assert small.run(jobs, sink={"queue": "work"}).rows == 1
    job = small.mq.queue("work").try_poll()
    assert job is not None
    assert job.payload == {"n": 42}


def test_a_module_of_the_current_directory_is_sent_to_the_executors(
    small: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "halving.py").write_text(
        "from pyspark.sql import functions as F\n"
        "def half(value): return b'%d' % (len(value) // 2)\n"
        "def halve(df):\n"
        "    value = F.udf(half, 'binary', useArrow=False)('value')\n"
        "    return df.select('key', value.alias('value'))\n"
    )
    monkeypatch.chdir(tmp_path)
    small.mq.publish("orders", b"1234")
    assert small.run("halving:halve").rows == 1
    assert [m.payload for m in small.mq.read("doubled")] == [b"2"]


def test_bad_input_is_refused_before_anything_is_started(small: Stage) -> None:
    small.publish(1)
    for options, message in (
        ({"function": "streams.py:doubled"}, "named by its module and name"),
        ({"function": "tests.spark.streams"}, "named by its module and name"),
        ({"function": "no_such_module:f"}, "there is no module 'no_such_module'"),
        ({"function": "tests.spark.streams:nothing"}, "has no function 'nothing'"),
        ({"function": "tests.spark.streams:NOT_A_FUNCTION"}, "has no function"),
        ({"source": {"topic": "orders"}}, "a stream is a consumer group"),
        ({"source": {"topic": "orders", "gruop": "g"}}, "did you mean 'group'"),
        ({"sink": {"topic": "a", "queue": "b"}}, "give one of the options"),
        ({"restarts": -1}, "restarts must be"),
        ({"every": -1, "once": False}, "every must be"),
    ):
        with pytest.raises(InvalidOption, match=message):
            small.run(**options)
    with pytest.raises(PipelineFailed, match="must give a DataFrame"):
        small.run(streams.no_frame)
    assert small.mq.groups("orders") == []
