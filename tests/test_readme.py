"""The README's first five minutes, taken literally: files, commands, and what is to happen."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

README = (Path(__file__).parent.parent / "README.md").read_text()
FIVE_MINUTES = README.partition("## Five minutes")[2].partition("\n## ")[0]
FENCE = re.compile(r"^```\w*\n(.*?)^```", re.MULTILINE | re.DOTALL)
SECONDS_MAX = 30.0


def block(before: str) -> str:
    """The block of code that follows some words."""
    found = FENCE.search(FIVE_MINUTES.partition(before)[2])
    assert found is not None, before
    return found.group(1)


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    for name in ("app.py", "publish.py"):
        (tmp_path / name).write_text(block(f"`{name}`"))
    return tmp_path


def environment() -> dict[str, str]:
    """As in the README, with its virtual environment active."""
    tools = str(Path(sys.executable).parent)
    return {"PATH": f"{tools}:{os.environ['PATH']}", "ROWMQ_URL": "sqlite:///shop.db"}


def run(folder: Path, command: str) -> str:
    done = subprocess.run(
        shlex.split(command, comments=True),
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout


def work(folder: Path, command: str, output: str, lines: int) -> list[str]:
    """What a worker prints until there are so many lines, and it was stopped."""
    path = folder / output
    with path.open("w") as file:
        arguments = shlex.split(command, comments=True)
        worker = subprocess.Popen(
            arguments, cwd=folder, env=environment(), stdout=file, stderr=subprocess.DEVNULL
        )
        try:
            deadline = time.monotonic() + SECONDS_MAX
            while len(path.read_text().splitlines()) < lines:
                assert time.monotonic() < deadline, path.read_text()
                assert worker.poll() is None
                time.sleep(0.05)
            worker.send_signal(signal.SIGINT)
            assert worker.wait(SECONDS_MAX) == 0
        finally:
            worker.kill()
            worker.wait()
    return path.read_text().splitlines()


def commands(text: str) -> list[str]:
    return [line[2:] for line in text.splitlines() if line.startswith("$ ")]


def test_the_steps_lead_to_what_they_say(shop: Path) -> None:
    (start,) = commands(block("Start the worker:"))
    printed = block("In another terminal").partition("publish.py\n")[2]
    assert run(shop, "python publish.py") == printed
    promised = block("And the worker does its work:").splitlines()
    seen = work(shop, start, "first.txt", len(promised))
    # Jobs are done beside messages; each kind has its order.
    assert sorted(seen) == sorted(promised)
    assert [line for line in seen if "billed" in line] == promised[:3]
    run(shop, "python publish.py")
    *looks, again = commands(block("publish from the shell"))[1:]
    for command in looks:
        run(shop, command)
    assert "--processes 2" in again
    assert work(shop, again, "second.txt", 2) == [
        "billed order 4: 20.00",
        "sent the receipt of order 4",
    ], "and nothing is billed twice"
