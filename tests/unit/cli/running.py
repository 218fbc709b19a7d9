"""Runs commands: within the test, in a process of their own, and on a terminal."""

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from rowmq.cli.main import app

__all__ = [
    "SECONDS_MAX",
    "Terminal",
    "answer",
    "command",
    "environment",
    "invoke",
    "json_of",
    "process_environment",
    "url_of",
]

SECONDS_MAX = 30.0


def url_of(folder: Path) -> str:
    return f"sqlite:///{folder / 'queue.db'}"


def invoke(url: str | None, *arguments: str, input: str | None = None) -> Result:
    """Run a command on a database."""
    return CliRunner().invoke(app, arguments, input=input, env=environment(url))


def answer(url: str | None, *arguments: str, input: str | None = None) -> str:
    """What a command prints that is to succeed."""
    result = invoke(url, *arguments, input=input)
    assert result.exit_code == 0, result.output
    return result.stdout


def json_of(url: str | None, *arguments: str, input: str | None = None) -> Any:
    """The JSON document that a command prints."""
    return json.loads(answer(url, *arguments, "--json", input=input))


def environment(url: str | None, **more: str) -> dict[str, str | None]:
    """The settings of a command: none but these."""
    unset = dict.fromkeys(("ROWMQ_PREFIX", "ROWMQ_SCHEMA", "COLUMNS", "NO_COLOR", "FORCE_COLOR"))
    return {**unset, "ROWMQ_URL": url, **more}


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "rowmq", *arguments]


def process_environment(url: str | None, **more: str) -> dict[str, str]:
    settings = environment(url, **more)
    kept = {name: value for name, value in os.environ.items() if name not in settings}
    return kept | {name: value for name, value in settings.items() if value is not None}


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, url: str | None, *arguments: str, columns: int = 80, **more: str) -> None:
        self.ours, theirs = pty.openpty()
        self.shown = ""
        settings = process_environment(url, COLUMNS=str(columns), TERM="xterm-256color", **more)
        self.process = subprocess.Popen(
            command(*arguments),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=settings,
            start_new_session=True,
        )
        os.close(theirs)

    def read_until(self, text: str) -> str:
        """What was shown, once it has a text."""
        deadline = time.monotonic() + SECONDS_MAX
        while text not in self.shown:
            assert time.monotonic() < deadline, self.shown
            assert self._read(), f"ended without {text!r}: {self.shown}"
        return self.shown

    def interrupt(self) -> None:
        """Ctrl-C, once more if it came before anybody waited for what is typed."""
        self.process.send_signal(signal.SIGINT)
        while not select.select([self.ours], [], [], 1.0)[0]:
            self.process.send_signal(signal.SIGINT)

    def type(self, text: str) -> None:
        os.write(self.ours, text.encode())

    def end(self) -> int:
        """Its exit code, once it has ended."""
        while self._read():
            pass
        os.close(self.ours)
        return self.process.wait(SECONDS_MAX)

    def _read(self) -> bool:
        if not select.select([self.ours], [], [], SECONDS_MAX)[0]:
            self.process.kill()
            raise TimeoutError(self.shown)
        try:
            some = os.read(self.ours, 65536)
        except OSError:  # nobody has the terminal any more
            return False
        self.shown += some.decode(errors="replace")
        return bool(some)
