"""The archive: the lake holds each message, dead letter and finished job once, whatever happens."""

import shutil
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import rowmq
from rowmq.errors import DataLoss, InvalidOption, LakeConflict, LakeError, LakeMismatch
from rowmq.spark.pipelines.archive import ArchiveProgress, ArchiveResult, archive
from rowmq.spark.pipelines.archiving import desk, jobs, messages
from rowmq.spark.pipelines.lake import commit, read_table, snapshot_of
from rowmq.spark.pipelines.layout import LAYOUTS
from rowmq.spark.pipelines.storage import Lake, lake_of
from rowmq.spark.pipelines.writing import Added
from tests.databases import Database, Databases
from tests.spark.lakes import files_of, places, rows_by_deltalake, rows_by_spark

ODD = ["a/b", "100%", "🎉 'party'", 'q"x=y', "[a]{b}*?", "1", "2026-01-31", "..", "%2F", "é" * 100]
"""Names that are nobody's favourites; the last is too long for the name of a folder."""


class Archive:
    """An archive from a database to a lake of its own."""

    def __init__(self, spark: SparkSession, database: Database, folder: Path) -> None:
        self.spark = spark
        self.database = database
        self.lake = folder / "lake"
        self.mq = rowmq.connect(database.url)

    def run(self, **options: Any) -> ArchiveResult:
        return archive(self.spark, url=self.database.url, lake=self.lake, **options)

    def publish(self, topic: str, count: int, *, key: str | None = "k") -> None:
        found = [rowmq.Message(payload={"n": n}, key=key) for n in range(count)]
        self.mq.publish_many(topic, found)

    def rows(self, table: str = "messages") -> list[dict[str, Any]]:
        return rows_by_deltalake(self.lake, table)

    def offsets(self) -> dict[str, list[int]]:
        """The offsets that the lake has of each topic, in order."""
        found: dict[str, list[int]] = {}
        for row in self.rows():
            found.setdefault(row["topic"], []).append(row["offset"])
        return {topic: sorted(offsets) for topic, offsets in found.items()}


@pytest.fixture
def archiving(spark: SparkSession, database: Database, tmp_path: Path) -> Iterator[Archive]:
    """On each database."""
    found = Archive(spark, database, tmp_path)
    yield found
    found.mq.close()


@pytest.fixture
def lake(spark: SparkSession, databases: Databases, tmp_path: Path) -> Iterator[Archive]:
    """On SQLite, where the database does not matter."""
    found = Archive(spark, databases.get("sqlite"), tmp_path)
    yield found
    found.mq.close()


def test_messages_are_archived_once_and_exactly_whatever_their_names(archiving: Archive) -> None:
    payloads: list[Any] = [{"n": 1}, "text", b"\x00\xff", ["ü"], None]
    for topic in ODD:
        sent = [
            rowmq.Message(payload=payload, key=key, id=f"{topic[:9]}-{key}-{n}", headers=headers)
            for n, payload in enumerate(payloads)
            for key, headers in ((None, {}), (topic, {"a/b": "c=d", "é": ""}))
        ]
        archiving.mq.publish_many(topic, sent)
    assert archiving.run().messages == len(ODD) * 10
    assert archiving.run().messages == 0
    archiving.publish("1", 3, key="1")
    assert archiving.run().messages == 3
    by_spark = rows_by_spark(archiving.spark, archiving.lake, "messages")
    by_deltalake = archiving.rows()
    assert sorted(by_spark, key=str) == sorted(
        [{**row, "timestamp": row["timestamp"].replace(tzinfo=None)} for row in by_deltalake],
        key=str,
    )
    assert {*Counter((row["partition"], row["offset"]) for row in by_deltalake).values()} == {1}
    for topic in ODD:
        found = {(row["key"], row["id"]): row for row in by_deltalake if row["topic"] == topic}
        for message in archiving.mq.read(topic, limit=100, type=bytes):
            row = found.pop((message.key, message.id))
            assert row["value"] == message.payload
            assert row["offset"] == message.offset
            assert row["headers"] == dict(message.headers)
            assert row["timestamp"] == message.published_at
            assert row["date"] == row["timestamp"].date()
        assert not found
    assert {row["encoding"] for row in by_deltalake} == {"json", "text", "bytes"}


def test_dead_letters_and_finished_jobs_are_archived_once(archiving: Archive) -> None:
    mq, queue = archiving.mq, archiving.mq.queue("emails & co")
    archiving.publish("orders", 4)
    with mq.subscribe("orders", group="billing") as subscriber:
        first, second, *rest = subscriber.poll(max=10)
        first.reject(error="no such customer")
        second.reject(error="again")
        subscriber.ack(rest)
    for number in range(6):
        queue.put({"n": number}, headers={"n": str(number)})
    for job in queue.try_poll_many(4):
        job.ack()
    failed = queue.try_poll()
    assert failed is not None
    failed.reject(error="bounced")
    assert archiving.run() == ArchiveResult(
        messages=4, dead_letters=2, jobs=5, passes=1, files=archiving_files(archiving)
    )
    assert archiving.run().rows == 0
    mq.redrive("orders", group="billing", ids=[str(first.message.id)])
    last = queue.try_poll()
    assert last is not None
    last.ack()
    assert archiving.run().rows == 1
    letters = {row["origin_offset"]: row for row in archiving.rows("dead_letters")}
    assert {offset: row["error"] for offset, row in letters.items()} == {
        1: "no such customer",
        2: "again",
    }
    assert letters[1]["id"] == first.message.id
    assert (letters[1]["topic"], letters[1]["group"], letters[1]["key"]) == (
        "orders",
        "billing",
        "k",
    )
    jobs = archiving.rows("jobs")
    assert Counter(row["state"] for row in jobs) == {"completed": 5, "failed": 1}
    assert {row["queue"] for row in jobs} == {"emails & co"}
    assert [row["error"] for row in jobs if row["state"] == "failed"] == ["bounced"]
    assert {row["value"] for row in jobs} == {b'{"n":%d}' % n for n in range(6)}
    assert all(row["headers"] == {"n": row["value"].decode()[5:-1]} for row in jobs)
    # No group is made on letters: it would have them collected.
    assert mq.groups("orders_dlq") == []
    assert archiving.run(gc=True).collected == 0
    assert len(mq.dead_letters("orders")) == 1


def archiving_files(archiving: Archive) -> int:
    return sum(len(files_of(archiving.lake, name)) for name in ("messages", "dead_letters", "jobs"))


def test_a_job_that_was_committed_late_is_archived_too(archiving: Archive) -> None:
    queue = archiving.mq.queue("late")
    queue.put_many([{"n": n} for n in range(3)])
    for job in queue.try_poll_many(2):
        job.ack()
    assert archiving.run().jobs == 2
    last = queue.try_poll()
    assert last is not None
    last.ack()
    archiving.database.execute(
        f"UPDATE rowmq_completed SET finished_at = finished_at - 600000000 WHERE job_id = {last.id}"
    )
    assert archiving.run().jobs == 1
    assert archiving.run().jobs == 0
    assert Counter(row["id"] for row in archiving.rows("jobs")).most_common(1)[0][1] == 1
    assert len(archiving.rows("jobs")) == 3


def finish(lake: Archive, queue: str, count: int, *, minutes_ago: int = 0) -> set[int]:
    """Jobs that were finished a while ago, and are committed now."""
    source = lake.mq.queue(queue)
    source.put_many([{"n": n} for n in range(count)])
    found = source.try_poll_many(count)
    for job in found:
        job.ack()
        lake.database.execute(
            f"UPDATE rowmq_completed SET finished_at = finished_at - {minutes_ago * 60_000_000} "
            f"WHERE job_id = {job.id}"
        )
    return {job.id for job in found}


@pytest.mark.parametrize(
    "trouble",
    ["another queue takes the room", "a pass takes fewer", "one fails", "one is overtaken"],
)
def test_late_jobs_are_archived_whatever_becomes_of_a_pass(
    lake: Archive, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    all_jobs = finish(lake, "busy", 1) | finish(lake, "slow", 1)
    lake.run(topics=[])
    all_jobs |= finish(lake, "slow", 4, minutes_ago=50) | finish(lake, "slow", 2)
    options: dict[str, Any] = {"topics": []}
    if trouble == "another queue takes the room":
        all_jobs |= finish(lake, "busy", 6)
        options["records_max"] = 6
    elif trouble == "a pass takes fewer":
        options["records_max"] = 3
    else:
        all_jobs |= finish(lake, "busy", 1)
        real: Any = vars(desk)["commit"]

        def fail_once(*args: Any, **given: Any) -> None:
            monkeypatch.setattr(desk, "commit", real)
            if trouble == "one fails":
                raise LakeConflict("somebody else wrote to it")
            lake.run(topics=[], queues=["busy"])
            real(*args, **given)

        monkeypatch.setattr(desk, "commit", fail_once)
    lake.run(**options)
    assert Counter(row["id"] for row in lake.rows("jobs")) == dict.fromkeys(all_jobs, 1)


def test_a_mark_is_not_later_than_the_look_that_moved_it(lake: Archive) -> None:
    # As if passes had gone on for half an hour without another look.
    all_jobs = finish(lake, "q", 1) | finish(lake, "q", 1, minutes_ago=-30)
    lake.run(topics=[])
    all_jobs |= finish(lake, "q", 2, minutes_ago=50)
    assert lake.run(topics=[]).jobs == 2
    assert lake.run(topics=[]).jobs == 0
    assert Counter(row["id"] for row in lake.rows("jobs")) == dict.fromkeys(all_jobs, 1)


def test_late_jobs_are_found_by_an_archive_that_keeps_running(
    lake: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "LOOK_US", 200_000)
    stop, late = threading.Event(), set[int]()
    finish(lake, "q", 1)

    def look(progress: ArchiveProgress) -> None:
        if progress.doing == "waiting":
            late.update(set() if late else finish(lake, "q", 1, minutes_ago=50))
            if progress.result.jobs == 2 or progress.result.passes == 500:
                stop.set()

    assert lake.run(topics=[], once=False, every=0.02, stop=stop, progress=look).jobs == 2
    assert late <= {row["id"] for row in lake.rows("jobs")}


def test_what_retention_took_is_an_error_or_is_counted(archiving: Archive) -> None:
    archiving.publish("orders", 5, key="a")
    archiving.run()
    archiving.publish("orders", 7, key="a")
    archiving.publish("orders", 2, key="new")
    archiving.mq.configure_topic("orders", retention=timedelta(seconds=1))
    archiving.database.execute("UPDATE rowmq_messages SET published_at = published_at - 60000000")
    archiving.publish("orders", 1, key="a")
    archiving.publish("orders", 1, key="new")
    assert archiving.mq.gc("orders") == 14
    with pytest.raises(DataLoss, match=r"the offsets 6 to 12 of topic 'orders', key 'a'"):
        archiving.run()
    assert len(archiving.rows()) == 5
    result = archiving.run(fail_on_loss=False)
    assert (result.messages, result.lost) == (2, 9)
    assert archiving.run().rows == 0


def test_an_archive_that_is_behind_leaves_what_is_old_to_itself(lake: Archive) -> None:
    """Its own collection deletes what is archived, and not what is too old."""
    lake.publish("orders", 30)
    lake.mq.configure_topic("orders", retention=timedelta(seconds=1))
    lake.database.execute("UPDATE rowmq_messages SET published_at = published_at - 9000000")
    done = lake.run(gc=True, records_max=10)
    assert (done.messages, done.collected, done.lost) == (30, 30, 0)


def test_retention_that_emptied_a_topic_is_told_of(lake: Archive) -> None:
    lake.publish("orders", 2)
    lake.run()
    lake.publish("orders", 3)
    lake.mq.configure_topic("orders", retention=timedelta(seconds=1))
    lake.database.execute("UPDATE rowmq_messages SET published_at = published_at - 9000000")
    assert lake.mq.gc("orders") == 5
    with pytest.raises(DataLoss, match="3 to 5"):
        lake.run()
    assert lake.run(fail_on_loss=False).lost == 3
    assert lake.run().lost == 0


def test_a_restored_database_is_refused_also_when_it_has_caught_up(
    lake: Archive, tmp_path: Path
) -> None:
    lake.publish("orders", 5)
    lake.run()
    lake.mq.close()
    file = Path(lake.database.url.removeprefix("sqlite:///"))
    shutil.copyfile(file, tmp_path / "backup")
    lake.mq = rowmq.connect(lake.database.url)
    lake.publish("orders", 3)
    lake.run()
    lake.mq.close()
    shutil.copyfile(tmp_path / "backup", file)
    lake.mq = rowmq.connect(lake.database.url)
    lake.publish("orders", 6)
    with pytest.raises(LakeMismatch, match="at the offset 8"):
        lake.run(gc=True)
    assert len(lake.mq.read("orders")) == 11


def test_a_group_that_was_sought_ahead_of_the_lake_is_set_back(lake: Archive) -> None:
    lake.publish("orders", 2)
    lake.run()
    lake.publish("orders", 6)
    lake.mq.seek("orders", "lake", to="latest")
    assert lake.run(gc=True, records_max=2).messages == 6
    assert lake.offsets() == {"orders": [1, 2, 3, 4, 5, 6, 7, 8]}


def test_garbage_collection_takes_only_what_is_archived(archiving: Archive) -> None:
    archiving.publish("orders", 10)
    archiving.run(topics=["orders"], queues=[])
    archiving.publish("orders", 3)
    assert archiving.mq.gc("orders") == 10
    assert archiving.run(gc=True).collected == 3
    assert archiving.offsets() == {"orders": list(range(1, 14))}


# --- what dies, is lost, or comes between -----------------------------------------------------


class Killed(BaseException):
    """Stands for the end of the process."""


def kill(*_: Any, **__: Any) -> None:
    raise Killed


def test_a_death_between_any_two_steps_neither_repeats_nor_loses(
    lake: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.publish("orders", 5)
    lake.run()
    for place, name in (
        (messages, "run_tasks"),  # before anything is written
        (desk, "commit"),  # files are there, which nobody knows of
        (messages, "advance"),  # the lake has it, and the group does not know
    ):
        lake.publish("orders", 2)
        lake.publish("other", 1)
        with monkeypatch.context() as patch:
            patch.setattr(place, name, kill)
            with pytest.raises(Killed):
                lake.run()
        acked = [row.offset_acked for row in lake.mq.lag("orders", "lake")]
        assert acked <= [len(lake.offsets()["orders"])]
    lake.run(gc=True)
    assert lake.offsets() == {"orders": list(range(1, 12)), "other": [1, 2, 3]}
    assert [row.lag for row in lake.mq.lag("orders", "lake")] == [0]


def test_two_archives_at_once_do_not_repeat_anything(lake: Archive) -> None:
    lake.run()  # makes the tables
    for number in range(4):
        lake.publish("orders", 50, key=f"k{number}")
    with ThreadPoolExecutor(2) as threads:
        runs = [threads.submit(partial(lake.run, records_max=30)) for _ in range(2)]
        added = sum(run.result().messages for run in runs)
    assert added == 200
    assert set(places(lake.rows()).values()) == {1}
    assert len(lake.rows()) == 200


def test_who_was_overtaken_changes_nothing(lake: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.publish("orders", 5)
    real: Any = vars(desk)["commit"]

    def overtaken(*args: Any, **options: Any) -> None:
        monkeypatch.setattr(desk, "commit", real)
        lake.run(queues=[], dead_letters=False)
        real(*args, **options)

    monkeypatch.setattr(desk, "commit", overtaken)
    monkeypatch.setattr(sys.modules[archive.__module__], "CONFLICTS_MAX", 1)
    with pytest.raises(LakeConflict, match="somebody else wrote to"):
        lake.run(queues=[], dead_letters=False)
    assert lake.offsets() == {"orders": [1, 2, 3, 4, 5]}


@pytest.mark.parametrize("how", ["dropped", "sought back", "of another name"])
def test_the_lake_is_the_truth_and_not_the_group(lake: Archive, how: str) -> None:
    lake.publish("orders", 5)
    lake.publish("orders", 2, key=None)
    lake.run()
    group = "lake"
    if how == "dropped":
        lake.mq.drop_group("orders", group)
    elif how == "sought back":
        lake.mq.seek("orders", group, to="earliest")
    else:
        group = "another"
    lake.publish("orders", 1)
    assert lake.run(group=group).messages == 1
    assert set(places(lake.rows()).values()) == {1}
    assert sum(row.lag for row in lake.mq.lag("orders", group)) == 0


def test_lost_books_are_made_up_from_the_rows(lake: Archive) -> None:
    queue = lake.mq.queue("q")
    for number in range(3):
        lake.publish("orders", 2, key=f"k{number}")
        queue.put({"n": number})
        for job in queue.try_poll_many(1):
            job.ack()
        lake.run()
    for table in ("messages", "jobs"):
        shutil.rmtree(lake.lake / table / "_rowmq")
    lake.publish("orders", 1, key="k0")
    lake.publish("orders", 1, key="new")
    result = lake.run()
    assert (result.messages, result.jobs) == (2, 0)
    assert lake.run().rows == 0
    assert set(places(lake.rows()).values()) == {1}


def test_a_lake_of_another_database_is_refused(lake: Archive, databases: Databases) -> None:
    lake.publish("orders", 5)
    lake.run()
    other = databases.get("sqlite").create()
    with rowmq.connect(other.url) as mq:
        mq.publish("orders", {})
    with pytest.raises(LakeMismatch, match="another database"):
        archive(lake.spark, url=other.url, lake=lake.lake)
    lake.database.execute("UPDATE rowmq_partitions SET next_offset = 3")
    with pytest.raises(LakeMismatch, match="restored to an earlier time"):
        lake.run()
    assert lake.offsets() == {"orders": [1, 2, 3, 4, 5]}


# --- upkeep and passes --------------------------------------------------------------------------


def test_small_files_become_large_ones_and_rows_stay_as_they_are(lake: Archive) -> None:
    result = ArchiveResult()
    for number in range(4):
        lake.publish("a/b", 3, key=f"k{number % 2}")
        lake.mq.queue("q").put({"n": number})
        for job in lake.mq.queue("q").try_poll_many(1):
            job.ack()
        result = lake.run(compact_every=4)
        assert len(files_of(lake.lake, "messages")) == (number + 1 if number < 3 else 1)
    assert result.compacted == 8
    assert len(files_of(lake.lake, "messages")) == len(files_of(lake.lake, "jobs")) == 1
    expected = {("a/b", f"k{k}", offset): 1 for k in range(2) for offset in range(1, 7)}
    assert places(lake.rows()) == expected
    assert len(rows_by_spark(lake.spark, lake.lake, "messages")) == 12
    lake.publish("a/b", 1, key="k0")
    with pytest.raises(InvalidOption, match="an hour or more"):
        lake.run(vacuum_after=60)
    assert lake.run(vacuum_after=3600, compact_every=1).messages == 1
    assert len(lake.rows()) == 13


def test_a_new_lake_has_all_that_is_there_whatever_its_group_has_read(lake: Archive) -> None:
    lake.publish("orders", 5)
    lake.mq.create_group("orders", "lake", start="latest")
    lake.publish("orders", 3)
    assert lake.run(gc=True).messages == 8
    assert set(places(lake.rows()).values()) == {1}


def test_files_that_the_driver_does_not_see_are_not_committed(lake: Archive) -> None:
    lake.publish("orders", 1)
    lake.run()
    snapshot = snapshot_of(lake_of(lake.lake), LAYOUTS["messages"])
    assert snapshot is not None
    (file,) = snapshot.files()
    elsewhere = Added("topic=orders/elsewhere.parquet", 10, 1, dict(file.values), "{}")
    with pytest.raises(LakeError, match="that all machines share"):
        commit(snapshot, [elsewhere], {})
    assert len(lake.rows()) == 1


def test_a_pass_takes_a_limited_number_and_the_rest_follows(lake: Archive) -> None:
    for number in range(3):
        lake.publish("orders", 7, key=f"k{number}")
    lake.mq.queue("q").put_many([{"n": n} for n in range(7)])
    for job in lake.mq.queue("q").try_poll_many(7):
        job.ack()
    seen: list[ArchiveProgress] = []
    result = lake.run(records_max=5, progress=seen.append)
    assert (result.messages, result.jobs, result.passes) == (21, 7, 5)
    assert [p.left for p in seen if p.doing == "archiving messages"] == [16, 11, 6, 1, 0]
    assert set(places(lake.rows()).values()) == {1}


def test_it_keeps_up_until_it_is_stopped(lake: Archive) -> None:
    stop = threading.Event()

    def look(progress: ArchiveProgress) -> None:
        if progress.doing == "waiting":
            if progress.result.passes < 4:
                lake.publish("orders", 1)
            else:
                stop.set()

    result = lake.run(once=False, every=0.01, stop=stop, progress=look)
    assert (result.messages, result.passes) == (3, 4)


def test_ten_thousand_keys_are_archived_in_one_pass(lake: Archive) -> None:
    sent = [rowmq.Message(payload=b"x", key=f"key-{n}") for n in range(10_000)]
    lake.mq.publish_many("wide", sent)
    assert lake.run(queues=[]).messages == 10_000
    lake.publish("wide", 1, key="key-17")
    assert lake.run(queues=[]).messages == 1
    assert len({row["key"] for row in lake.rows()}) == 10_000


def test_large_payloads_are_archived(lake: Archive) -> None:
    lake.mq.configure_topic("films", max_payload_bytes=32 * 1024 * 1024)
    for number in range(3):
        lake.mq.publish("films", bytes([number]) * 20_000_000)
    assert lake.run().messages == 3
    assert [len(row["value"]) for row in lake.rows()] == [20_000_000] * 3


def test_an_object_store_is_reached_through_deltalake(lake: Archive) -> None:
    """A folder does as one, if it is only known by its URI: nothing is then done by path."""
    store = Lake(f"file://{lake.lake}", {})
    queue = lake.mq.queue("q")
    for number in range(5):
        lake.publish("a/b", 2)
        queue.put({"n": number})
        for job in queue.try_poll_many(1):
            job.ack()
        archive(lake.spark, url=lake.database.url, lake=store, compact_every=5)  # type: ignore[arg-type]
    assert len(files_of(lake.lake, "messages")) == len(files_of(lake.lake, "jobs")) == 1
    shutil.rmtree(lake.lake / "messages" / "_rowmq")
    assert archive(lake.spark, url=lake.database.url, lake=store).rows == 0  # type: ignore[arg-type]
    assert lake.offsets() == {"a/b": list(range(1, 11))}
    assert len(lake.rows("jobs")) == 5
    found = read_table(lake.spark, store, "messages")
    assert found is not None
    assert found.where("topic = 'a/b'").count() == 10


def test_lag_is_sampled(lake: Archive) -> None:
    lake.mq.create_group("orders", "billing")
    lake.publish("orders", 5)
    lake.run()
    (row,) = lake.rows("lag")
    assert (row["topic"], row["group"], row["lag"], row["partitions"]) == (
        "orders",
        "billing",
        5,
        1,
    )
    assert row["oldest_seconds"] is not None
    assert row["date"] == row["sampled_at"].date()


def test_an_empty_database_is_archived_as_nothing(lake: Archive) -> None:
    assert lake.run() == ArchiveResult(passes=1)
    assert not lake.lake.exists()


def test_bad_input_is_refused_before_anything_is_written(lake: Archive) -> None:
    lake.publish("orders", 1)
    with lake.mq.subscribe("orders", group="g") as subscriber:
        subscriber.poll(max=1)[0].reject(error="no")
    for options, message in (
        ({"topics": ["order"]}, "did you mean 'orders'"),
        ({"topics": ["orders_dlq"]}, "holds dead letters"),
        ({"topics": "orders"}, "lists of names"),
        ({"topics": [], "queues": []}, "nothing to archive"),
        ({"records_max": 0}, "records_max must be"),
        ({"every": -1}, "every must be"),
        ({"group": ""}, "group"),
    ):
        with pytest.raises((InvalidOption, rowmq.errors.InvalidGroup), match=message):
            lake.run(**options)
    with pytest.raises(InvalidOption, match="'%'"):
        archive(lake.spark, url=lake.database.url, lake="/tmp/a%20b")  # noqa: S108 - refused
    assert not lake.lake.exists()
    assert [group.name for group in lake.mq.groups("orders")] == ["g"]
