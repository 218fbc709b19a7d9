"""Players talk in lines of JSON; what goes wrong with one of them is told, and ends with it."""

import sys
from pathlib import Path

import pytest

from rowmq.bench.playing import Spec
from rowmq.bench.trial import Part, PlayerFailed, run_part, run_trial

PLAYER = """
import json, sys, time
spec = json.loads(sys.argv[1])
ready = {"event": "ready", "name": "fake", "version": "7", "settings": {"a": 1}}
print(json.dumps(ready), flush=True)
assert sys.stdin.readline() == "go\\n"
number = spec.get("messages", 0)
began = 100.0 + number
print(json.dumps({"event": "done", "count": number, "began": began, "ended": began + 4, "cpu": 0.5,
                  "statements": 3, "windows": [1.0, number]}), flush=True)
"""

BROKEN = """
import sys
print('{"event": "ready", "name": "fake", "version": "7"}', flush=True)
sys.stdin.readline()
raise RuntimeError("the disk is full")
"""


@pytest.fixture
def commands(tmp_path: Path) -> dict[str, list[str]]:
    scripts = {"fake": PLAYER, "broken": BROKEN, "other": 'print(\'{"event": "hello"}\')'}
    for name, code in scripts.items():
        (tmp_path / f"{name}.py").write_text(code)
    return {name: [sys.executable, str(tmp_path / f"{name}.py")] for name in scripts}


def part(player: str, messages: int = 1, *, counted: bool = True) -> Part:
    return Part(player, Spec(task="consume", messages=messages), counted)


def test_a_trial_is_the_sum_of_its_players_from_first_to_last(
    commands: dict[str, list[str]],
) -> None:
    played = run_trial([part("fake", 2), part("fake", 6)], commands)
    assert (played.count, played.seconds, played.cpu_seconds) == (8, 8.0, 1.0)
    assert played.rate == 1.0
    assert played.figures == {"statements": 6}
    assert played.windows == (2.0, 8.0)
    assert (played.version, played.settings) == ("7", {"a": 1})


def test_who_only_helps_is_not_counted(commands: dict[str, list[str]]) -> None:
    played = run_trial([part("fake", 2), part("fake", 50, counted=False)], commands)
    assert (played.count, played.seconds) == (2, 4.0)


def test_a_player_that_fails_is_told_with_its_own_words(commands: dict[str, list[str]]) -> None:
    with pytest.raises(PlayerFailed, match=r"(?s)broken did not come to 'done'.*the disk is full"):
        run_trial([part("fake"), part("broken")], commands)


def test_a_player_that_talks_of_something_else_is_refused(commands: dict[str, list[str]]) -> None:
    with pytest.raises(PlayerFailed, match="said 'hello' instead of 'done'"):
        run_part(part("other"), commands)
