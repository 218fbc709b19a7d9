"""`rowmq bench` measures on SQLite without being told anything, and says what it found."""

import asyncio
import signal
import subprocess
from pathlib import Path

import msgspec
import pytest

from rowmq.bench.home import open_home
from rowmq.bench.results import Results
from rowmq.cli.failing import Code
from tests.consuming import eventually
from tests.unit.cli.running import SECONDS_MAX, answer, command, invoke, process_environment


def test_a_quick_look_measures_against_the_raw_limit(tmp_path: Path) -> None:
    file, plots = tmp_path / "results.json", tmp_path / "plots"
    words = ("bench", "--quick", "--only", "publish-1000")
    shown = answer(None, *words, "--json", str(file), "--plots", str(plots))
    assert "SQLite: publish in batches of 1,000" in shown
    assert "raw limit" in shown
    results = msgspec.json.decode(file.read_bytes(), type=Results)
    assert results.complete
    assert [line.error for line in results.lines] == [None, None]
    ours = results.find("sqlite", "publish-1000", "rowmq", "1 partition")
    assert ours is not None
    assert ours.reference
    assert ours.figures["rate"].median > 0
    assert 0 < ours.figures["statements"].median < 0.1
    assert {path.name for path in plots.iterdir()} == {
        "sqlite-publish-1000-light.svg",
        "sqlite-publish-1000-dark.svg",
    }


def test_a_file_is_worked_beside_and_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "queue.db"
    file.write_bytes(b"somebody else's")
    with open_home(f"sqlite:///{file}") as home:
        home.link.execute("CREATE TABLE ours (n integer)")
        assert len(list(tmp_path.iterdir())) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["queue.db"]
    assert file.read_bytes() == b"somebody else's"


def test_who_is_ended_tells_what_it_has_and_leaves_nothing(tmp_path: Path) -> None:
    process = subprocess.Popen(
        command("bench", "--url", f"sqlite:///{tmp_path / 'queue.db'}", "--only", "cost"),
        stdout=subprocess.PIPE,
        text=True,
        env=process_environment(None),
    )
    asyncio.run(eventually(lambda: list(tmp_path.glob("rowmq-bench-*/rowmq.db"))))
    process.send_signal(signal.SIGTERM)
    told, _ = process.communicate(timeout=SECONDS_MAX)
    assert process.returncode == 130
    assert "It was interrupted" in told
    assert list(tmp_path.iterdir()) == []


def test_scenarios_are_listed() -> None:
    shown = answer(None, "bench", "--list")
    assert "growth-snapshot" in shown
    assert "claim and ack jobs, two processes" in shown
    some = answer(None, "bench", "--list", "--only", "publish")
    assert "publish-single" in some
    assert "growth" not in some


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (
            ["--only", "nothing"],
            Code.USAGE,
            "no scenario that begins with 'nothing'; there are: publish-single",
        ),
        (["--only", "nothing", "--list"], Code.USAGE, "no scenario that begins with 'nothing'"),
        (["--quick", "--full"], Code.USAGE, "not both"),
        (["--url", "sqlite:////nowhere/at/all.db"], Code.ERROR, "there is no folder /nowhere/at"),
        (["--url", "oracle://host"], Code.ERROR, "does not know the database 'oracle'"),
    ],
)
def test_what_cannot_be_measured_is_refused_at_once(
    options: list[str], code: Code, said: str
) -> None:
    result = invoke(None, "bench", *options)
    assert result.exit_code == code
    assert said in result.stderr
