"""The lake of the Spark page: what its own log tells, without Spark."""

import asyncio
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from rowmq.web import lake
from rowmq.web.lake import KEPT_SECONDS, Lake, Lakes, look_at
from tests.databases import Database
from tests.web.operating import operating


def make_table(folder: Path, name: str, rows: int) -> None:
    """A Delta table of so many rows, in two files."""
    for _ in range(2):
        table = pa.table({"n": list(range(rows // 2))})
        write_deltalake(str(folder / name), table, mode="append")


def test_a_lake_tells_its_tables_sizes_and_commits(tmp_path: Path) -> None:
    make_table(tmp_path, "messages", 10)
    found = look_at(str(tmp_path))
    assert found.error is None
    (table,) = found.tables
    assert (table.name, table.rows, table.files, table.version) == ("messages", 10, 2, 1)
    stored = sum(file.stat().st_size for file in (tmp_path / "messages").glob("*.parquet"))
    assert found.bytes == stored
    assert found.committed_at is not None
    assert abs(found.committed_at - datetime.now(UTC)) < timedelta(minutes=5)


@pytest.mark.parametrize(
    ("place", "shown"),
    [
        ("/srv/lake?x@y", "/srv/lake?x@y"),
        ("s3://bucket/a@b/lake", "s3://bucket/a@b/lake"),
        ("s3://KEY:SECRET@bucket/lake", "s3://bucket/lake"),
        ("https://TOKEN@host:8080/lake?sig=SECRET#x", "https://host:8080/lake"),
        ("az://account/lake?sv=1&sig=SECRET", "az://account/lake"),
        ("abfss://box@account.example/lake?sig=SECRET", "abfss://box@account.example/lake"),
        ("abfss://box:SECRET@account.example", "abfss://account.example"),
    ],
)
def test_an_address_is_shown_without_what_lets_others_in(place: str, shown: str) -> None:
    assert Lake(place).address == shown


async def test_the_page_shows_no_signature(database: Database) -> None:
    async with operating(database.url, lake="file:///nowhere?sig=SECRET") as operator:
        shown = await operator.read("spark")
    assert "file:///nowhere" in shown
    assert "SECRET" not in shown


def test_a_lake_that_is_not_there_has_no_tables(tmp_path: Path) -> None:
    found = look_at(str(tmp_path / "nowhere"))
    assert (found.tables or (), found.committed_at) == ((), None) or found.error


def test_a_lake_that_cannot_be_read_says_why_in_the_log_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_table(tmp_path, "jobs", 2)
    log = tmp_path / "jobs" / "_delta_log"
    for file in log.iterdir():
        file.write_text("no json")
    with caplog.at_level("WARNING", "rowmq.web"):
        found = look_at(str(tmp_path))
    assert found.error == "it cannot be read; the log of this server says why"
    (record,) = caplog.records
    assert "the lake cannot be read: " in record.getMessage()
    assert "\n" not in record.getMessage()


async def test_what_was_seen_is_told_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1_000.0
    monkeypatch.setattr("rowmq.web.lake.time.monotonic", lambda: now)
    lakes = Lakes()
    assert (await lakes.look(str(tmp_path))).tables in ((), [])
    make_table(tmp_path, "lag", 4)
    assert not (await lakes.look(str(tmp_path))).tables
    now += KEPT_SECONDS + 1
    assert [table.rows for table in (await lakes.look(str(tmp_path))).tables] == [4]


async def test_a_store_that_does_not_answer_keeps_one_thread_and_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, looks = threading.Event(), list[str]()

    def look_slowly(place: str) -> Lake:
        looks.append(place)
        answers.wait(30)
        return Lake(place)

    monkeypatch.setattr(lake, "look_at", look_slowly)
    monkeypatch.setattr(lake, "WAIT_SECONDS", 0.05)
    lakes, place = Lakes(), str(tmp_path)
    try:
        found = await asyncio.gather(*(lakes.look(place) for _ in range(10)))
        assert {one.error for one in found} == {"it has not answered yet: look again in a while"}
        assert (await lakes.look(place)).error is not None
        assert looks == [place]
    finally:
        answers.set()
    monkeypatch.setattr(lake, "WAIT_SECONDS", 30)
    assert (await lakes.look(place)).error is None
    assert looks == [place]
