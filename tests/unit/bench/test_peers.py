"""How a peer is played: the lines between its script and who started it, told by a fake peer."""

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rowmq.bench import environment
from rowmq.bench.benchmark import peer_scripts

PEERS = environment.REQUIREMENTS.parent
SCRIPTS = sorted(PEERS.glob("play_*.py"))
FAKE = """
import threading
from part import Played, Refused, Tally, by_callers, play, shares

SENT = []

def prepare(spec, stage):
    spec.require("sqlite")
    print("a line of the peer's own")

async def send(count):
    SENT.append(count)

async def publish(spec, stage):
    stage.ready(shares=shares(spec))
    played = await by_callers(spec, send)
    assert sum(SENT) == spec.messages and max(SENT) <= spec.batch, SENT
    return played

async def consume(spec, stage):
    tally = Tally(spec)
    began = stage.ready()
    handlers = [threading.Thread(target=lambda: [tally.add() for _ in range(100)]) for _ in "ab"]
    for handler in handlers:
        handler.start()
    await tally.wait()
    return tally.played(began)

def fail(spec, stage):
    raise RuntimeError("the peer broke")

TASKS = {"prepare": prepare, "publish": publish, "consume": consume, "fill": fail,
         "check": lambda spec, stage: 3}
play("fake", TASKS, packages=("pip",))
"""


@pytest.fixture
def fake(tmp_path: Path) -> Path:
    script = tmp_path / "play_fake.py"
    script.write_text(FAKE)
    return script


class Said:
    """What a player said, and how it ended."""

    def __init__(self, done: subprocess.CompletedProcess[str]) -> None:
        self.lines = [json.loads(line) for line in done.stdout.splitlines()]
        self.errors = done.stderr
        self.code = done.returncode


def play(script: Path, *, stdin: str = "", **spec: Any) -> Said:
    return Said(
        subprocess.run(
            [sys.executable, script, json.dumps({"url": "sqlite:////tmp/fake.db", **spec})],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
            env={"PYTHONPATH": str(PEERS)},
        )
    )


def test_a_measured_task_says_ready_waits_for_go_and_says_what_it_did(fake: Path) -> None:
    said = play(fake, task="publish", messages=10, batch=4, callers=3, stdin="go\n")

    ready, done = said.lines
    assert (ready["event"], ready["name"]) == ("ready", "fake")
    assert ready["version"] == ready["versions"]["pip"] != ""
    assert ready["settings"] == {"shares": [4, 3, 3]}
    assert (done["event"], done["count"]) == ("done", 10)
    assert done["go"] <= done["began"] <= done["ended"]
    assert done["cpu"] >= 0


def test_time_runs_from_the_first_handler_to_the_last_on_whatever_thread(fake: Path) -> None:
    _, done = play(fake, task="consume", messages=200, stdin="go\n").lines

    assert done["count"] == 200
    assert done["go"] <= done["began"] <= done["ended"]


def test_a_player_that_gets_no_more_stops_after_the_idle_time_and_does_not_count_it(
    fake: Path,
) -> None:
    _, done = play(fake, task="consume", messages=500, idle=0.2, stdin="go\n").lines

    assert done["count"] == 200
    assert done["ended"] - done["began"] < 0.2


@pytest.mark.parametrize(
    ("task", "more"), [("prepare", {"count": 0}), ("check", {"left": 3})], ids=str
)
def test_what_is_not_measured_waits_for_nothing(
    fake: Path, task: str, more: dict[str, int]
) -> None:
    said = play(fake, task=task)

    assert said.lines == [{"event": "done", **more}]


def test_what_a_peer_prints_does_not_get_between_the_lines(fake: Path) -> None:
    said = play(fake, task="prepare")

    assert [line["event"] for line in said.lines] == ["done"]
    assert "a line of the peer's own" in said.errors


def test_a_peer_that_breaks_ends_with_its_traceback(fake: Path) -> None:
    said = play(fake, task="fill", messages=1)

    assert said.code == 1
    assert said.lines == []
    assert "Traceback" in said.errors
    assert "RuntimeError: the peer broke" in said.errors


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"task": "dance"}, "fake knows the tasks prepare, publish, consume, fill, check, not"),
        ({"task": "publish", "batch": 0}, "batch must be at least 1, not 0"),
        ({"task": "publish", "callers": 0}, "callers must be at least 1, not 0"),
        ({"task": "prepare", "url": "mysql://h/d"}, "runs on sqlite, not on mysql"),
    ],
    ids=["task", "batch", "callers", "database"],
)
def test_a_spec_that_a_player_cannot_do_is_told_in_one_line(
    fake: Path, spec: dict[str, Any], message: str
) -> None:
    said = play(fake, **spec)

    assert said.code == 1
    assert said.lines == []
    assert message in said.errors
    assert "Traceback" not in said.errors


def test_a_player_ends_when_who_started_it_has_gone(fake: Path) -> None:
    said = play(fake, task="publish", messages=1)

    assert said.code == 1
    assert [line["event"] for line in said.lines] == ["ready"]
    assert "was to say go" in said.errors


def test_every_peer_of_the_benchmark_has_a_script() -> None:
    assert sorted(peer_scripts().values()) == SCRIPTS


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_script_plays_every_task_and_imports_nothing_of_rowmq(script: Path) -> None:
    tree = ast.parse(script.read_text("utf-8"))

    assert not [name for name in imported(tree) if name.split(".")[0] == "rowmq"]
    assert {"prepare", "fill", "publish", "consume", "check"} <= {
        node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def test_versions_of_the_peers_are_pinned_by_names_and_versions_only() -> None:
    lines = environment.REQUIREMENTS.read_text("utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]

    assert len(pins) > 20
    assert [pin for pin in pins if not re.fullmatch(r"[A-Za-z0-9_.-]+==[A-Za-z0-9.]+", pin)] == []
