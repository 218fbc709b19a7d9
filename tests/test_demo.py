"""`rowmq demo` ends by itself, leaves nothing behind, and says whether its promises held."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

import rowmq
from rowmq.cli.demo import Demo
from rowmq.cli.main import app

SECONDS = 90
SPARK_SECONDS = 240
PROMISES = 10
SPARK_PROMISES = 2

SHORTER = (
    "import rowmq.cli.demo as d; d.FIRST, d.SECOND, d.PAUSE_SECONDS, d.TWICE = 26, 10, 0.02, 5"
)
RUN = "from rowmq.cli.main import main; main()"

DOUBLE = """; d.LEDGER_SQL += '''; CREATE TRIGGER twice AFTER INSERT ON demo_ledger
    WHEN NEW.effect = 'billed' AND NEW.reference = 'order-3' BEGIN
        INSERT INTO demo_ledger (effect, reference, customer, pid, attempt, at)
        VALUES (NEW.effect, NEW.reference, NEW.customer, NEW.pid, NEW.attempt, NEW.at);
    END'''"""
"""Has the ledger say that an order was billed twice."""


class Running:
    """A demo that was started in an empty folder, and what it has printed."""

    def __init__(self, folder: Path, *options: str, program: str = SHORTER) -> None:
        self.folder = folder
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        self.process = subprocess.Popen(
            [sys.executable, "-c", f"{program}; {RUN}", "demo", *options],
            cwd=folder,
            env=os.environ | {"TMPDIR": str(self.temporary), "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.text = ""

    def until(self, wanted: str) -> re.Match[str]:
        """Read on until something is printed."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.text += line
            found = re.search(wanted, line)
            if found:
                return found
        raise AssertionError(f"{wanted!r} was not printed:\n{self.text}")

    def end(self, seconds: float = SECONDS) -> int:
        """Read what is left; the exit code."""
        rest, _ = self.process.communicate(timeout=seconds)
        self.text += rest
        return self.process.returncode

    @property
    def pids(self) -> list[int]:
        """The processes of its workers."""
        found = re.search(r"processes ([\d, ]+)", self.text)
        assert found is not None, self.text
        return [int(pid) for pid in found[1].split(", ")]


@contextmanager
def running(folder: Path, *options: str, program: str = SHORTER) -> Iterator[Running]:
    demo = Running(folder, *options, program=program)
    try:
        yield demo
    finally:
        if demo.process.poll() is None:
            demo.process.kill()  # its workers then end by themselves
        demo.process.communicate()


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def eventually(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_it_ends_by_itself_with_every_promise_held_and_leaves_nothing(tmp_path: Path) -> None:
    with running(tmp_path) as demo:
        assert demo.end() == 0, demo.text
        assert demo.text.count("  held  ") == PROMISES, demo.text
        assert "BROKEN" not in demo.text
        for told in ("is killed (kill -9) in the middle of", "has taken over", "redrive"):
            assert told in demo.text
        assert re.search(r"group billing +37 +\d+ +\d+ +1 +1 +37 +0\n", demo.text), demo.text
        assert "rowmq demo --keep" in demo.text
        assert max(map(len, demo.text.splitlines())) <= 200
        assert "\x1b" not in demo.text
        assert all(map(is_gone, demo.pids))
        assert list(demo.temporary.iterdir()) == []
        assert list(tmp_path.iterdir()) == [demo.temporary]


def test_with_spark_it_ends_with_a_lake_and_a_report(tmp_path: Path) -> None:
    with running(tmp_path, "--spark") as demo:
        assert demo.end(SPARK_SECONDS) == 0, demo.text
        assert demo.text.count("  held  ") == PROMISES + SPARK_PROMISES, demo.text
        (folder,) = demo.temporary.glob("rowmq-demo-*")
        page = folder / "report.html"
        assert f"report   {page.as_uri()}\n" in demo.text
        assert "37 messages in 1 topic, 1 dead letter\n" in demo.text
        assert "yen have no cents" in page.read_text()
        assert page.with_suffix(".parquet").is_file()
        for table in ("messages", "dead_letters", "jobs", "lag"):
            assert list((folder / "lake" / table / "_delta_log").glob("*.json"))
        assert all(map(is_gone, demo.pids))


def test_without_the_extra_it_says_so_before_it_begins(tmp_path: Path) -> None:
    missing = f"import sys; sys.modules['pyspark'] = None; {SHORTER}"
    with running(tmp_path, "--spark", program=missing) as demo:
        assert demo.end() == 1
        assert "pip install 'rowmq[spark]'" in demo.text
        assert "worker" not in demo.text
        assert list(demo.temporary.iterdir()) == []


def test_a_broken_promise_is_told_and_is_exit_code_1(tmp_path: Path) -> None:
    with running(tmp_path, program=SHORTER + DOUBLE) as demo:
        assert demo.end() == 1, demo.text
        assert " BROKEN  every order billed, and none twice" in demo.text
        assert "A promise was broken." in demo.text
        assert list(demo.temporary.iterdir()) == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted_it_leaves_nothing(tmp_path: Path, number: signal.Signals, code: int) -> None:
    with running(tmp_path) as demo:
        demo.until("workers are up")
        demo.process.send_signal(number)
        assert demo.end() == code, demo.text
        assert all(map(is_gone, demo.pids))
        assert list(demo.temporary.iterdir()) == []


def test_an_interrupt_that_was_lost_is_not_forgotten(tmp_path: Path) -> None:
    demo = Demo(Console(), tmp_path)
    with suppress(KeyboardInterrupt):
        demo.end_by(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        demo._until("nothing", lambda: False)


def test_killed_its_workers_end_all_the_same(tmp_path: Path) -> None:
    with running(tmp_path) as demo:
        demo.until("workers are up")
        demo.process.kill()
        demo.process.wait()
        eventually(lambda: all(map(is_gone, demo.pids)))


def test_kept_it_goes_on_until_it_is_interrupted_and_its_file_stays(tmp_path: Path) -> None:
    with running(tmp_path, "--keep") as demo:
        url = demo.until(r"export ROWMQ_URL=(\S+)")[1]
        demo.until("Ctrl-C ends it")
        assert demo.text.count("  held  ") == PROMISES - 1, demo.text  # no worker was stopped yet
        with rowmq.connect(url) as mq:
            before = len(mq.read("orders", limit=1_000))
            eventually(lambda: len(mq.read("orders", limit=1_000)) > before)
            alive = [worker.pid for worker in mq.workers() if worker.alive]
            assert set(alive) <= set(demo.pids)
            assert len(alive) >= 2
        for command in re.findall(r"^  rowmq (.+?)  +", demo.text, re.MULTILINE):
            if not command.startswith("tail"):  # which follows until it is stopped
                done = CliRunner().invoke(app, command.split(), env={"ROWMQ_URL": url})
                assert done.exit_code in (0, 4), (command, done.output)
        demo.process.send_signal(signal.SIGINT)
        assert demo.end() == 0, demo.text
        assert all(map(is_gone, demo.pids))
        (folder,) = demo.temporary.iterdir()
        assert (folder / "demo.db").exists()
