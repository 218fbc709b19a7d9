"""`rowmq pipeline`: what its commands print, and how they end."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import rowmq
from tests.databases import Databases
from tests.spark.chaos import command_of, family, wait_until_gone
from tests.unit.cli.running import answer, invoke, json_of

pytestmark = pytest.mark.usefixtures("spark")  # commands use the session that is there


@pytest.fixture
def url(databases: Databases) -> str:
    database = databases.get("sqlite")
    with rowmq.connect(database.url) as mq:
        for number in range(3):
            mq.publish("orders", {"n": number}, key="k")
    return database.url


@pytest.fixture
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def lake(tmp_path: Path) -> str:
    return str(tmp_path / "lake")


def test_archive_says_what_it_did(url: str, lake: str, spark: SparkSession) -> None:
    assert json_of(url, "pipeline", "archive", lake, "--gc") == {
        "messages": 3,
        "dead_letters": 0,
        "jobs": 0,
        "passes": 1,
        "files": 1,
        "compacted": 0,
        "collected": 3,
        "lost": 0,
    }
    assert answer(url, "pipeline", "archive", lake) == "nothing is new: the lake has it all\n"
    assert spark.range(3).count() == 3  # it is not the command's to stop


def test_replay_and_report_work_on_what_was_archived(url: str, lake: str, tmp_path: Path) -> None:
    answer(url, "pipeline", "archive", lake)
    replay = ("pipeline", "replay", lake, "--id", "x", "--topic", "orders", "--to-topic", "again")
    assert answer(url, *replay, "--dry-run") == "would be replayed: 3 rows\n"
    assert answer(url, *replay) == "replayed 3 rows\n"
    assert answer(url, *replay) == "replayed 3 rows (it was done before)\n"
    assert json_of(url, *replay)["done"] is True
    page = tmp_path / "page.html"
    found = json_of(url, "pipeline", "report", lake, "--out", str(page))
    assert found["page"] == str(page)
    assert found["totals"]["published"] == 6
    assert page.read_text().startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("archive", 2, "LAKE"),
        ("archive lake --topic ordrs", 1, "did you mean 'orders'"),
        ("archive lake --no-topics --topic a", 2, "or say that there are to be none"),
        ("archive lake --conf nonsense", 2, "write name=value"),
        ("replay lake --id x --topic orders", 2, "--to-queue and --to-group"),
        ("replay lake --id x --to-topic t", 2, "replay what"),
        ("replay nowhere --id x --topic o --to-topic t", 1, "archive something first"),
        ("transform a:f --topic o --group g --to-topic t", 2, "checkpoint"),
        ("transform a:f --topic o --group g --checkpoint c", 2, "where to?"),
        ("transform no:f --topic o --group g --to-topic t --checkpoint c", 1, "no module 'no'"),
    ],
)
def test_a_wrong_call_is_told_and_changes_nothing(
    url: str, empty_folder: Path, words: str, code: int, message: str
) -> None:
    result = invoke(url, "pipeline", *words.split())
    assert (result.exit_code, message in result.stderr) == (code, True), result.stderr
    assert list(empty_folder.iterdir()) == []


def test_a_database_that_is_not_there_is_told_before_spark_starts(tmp_path: Path) -> None:
    result = invoke(f"sqlite:///{tmp_path}/none.db", "pipeline", "archive", str(tmp_path / "lake"))
    assert result.exit_code == 3
    assert "there is no file" in result.stderr


# --- in processes of their own ------------------------------------------------------------------


class Process:
    """A command that goes on until it is stopped."""

    def __init__(self, url: str, *words: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "rowmq", "pipeline", *words, "--json"],
            env={**os.environ, "ROWMQ_URL": url},
            stdout=subprocess.PIPE,
            text=True,
        )

    def line(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def stop(self) -> Any:
        """What it says at its end, which is a good one."""
        self.process.send_signal(signal.SIGTERM)
        rest, _ = self.process.communicate(timeout=90)
        assert self.process.returncode == 0
        return json.loads(rest.splitlines()[-1])


@pytest.fixture
def transforming(url: str, tmp_path: Path) -> Iterator[Process]:
    words = "--topic orders --group doubler --to-topic doubled --every 100ms --master local[2]"
    options = [*words.split(), "--checkpoint", str(tmp_path / "checkpoint")]
    found = Process(url, "transform", "tests.spark.streams:doubled", *options)
    with found.process:
        yield found
        found.process.kill()


def test_a_transform_whose_process_is_killed_goes_on(transforming: Process, url: str) -> None:
    assert transforming.line()["rows"] == 3
    child = [p for p in family(transforming.process.pid) if "transform_child" in command_of(p)]
    for pid in {*child, *(p for one in child for p in family(one))}:
        os.kill(pid, signal.SIGKILL)
    with rowmq.connect(url) as mq:
        mq.publish("orders", {"n": 21}, key="k")
        end = time.monotonic() + 120
        while [m.payload["n"] for m in mq.read("doubled")] != [0, 2, 4, 42]:
            assert time.monotonic() < end
            time.sleep(0.1)
        assert transforming.stop()["restarts"] >= 1
        assert [m.payload["n"] for m in mq.read("doubled")] == [0, 2, 4, 42]


def test_interrupted_while_spark_starts_it_leaves_no_process(url: str, lake: str) -> None:
    command = [sys.executable, "-m", "rowmq", "pipeline", "archive", lake]
    environment = {**os.environ, "ROWMQ_URL": url}
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as program:
        started: list[int] = []
        while not started:
            assert program.poll() is None
            started = [pid for pid in family(program.pid) if "spark" in command_of(pid)]
            time.sleep(0.05)
        program.send_signal(signal.SIGINT)
        assert program.wait(60) == 130
    for pid in started:
        wait_until_gone(pid)
        assert "spark" not in command_of(pid)
