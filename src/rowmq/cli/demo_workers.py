"""The worker processes of `rowmq demo`: started, killed, and in any case ended."""

import contextlib
import os
import signal
import subprocess
from pathlib import Path

from rowmq.cli.supervisor import LIFE_VARIABLE, URL_VARIABLE, command_of

__all__ = ["Worker", "Workers"]

TARGET = "rowmq.cli.demo_app:app"

STOP_SECONDS = 15.0
"""How long a worker that is asked to stop has for it."""


class Worker:
    """One process of `rowmq worker`. It ends with the demo, however that ends: it has a pipe that
    says so.
    """

    def __init__(self, name: str, folder: Path, url: str) -> None:
        self.name = name
        self.killed = False
        life, self._hold = os.pipe()
        with (folder / f"{name}.log").open("wb") as log, Path(os.devnull).open("wb") as nobody:
            told = nobody.fileno()
            self._process = subprocess.Popen(  # noqa: S603 - our own command
                command_of(TARGET, ["--log-level=warning"]),
                env=os.environ | {LIFE_VARIABLE: f"{told},{life}", URL_VARIABLE: url},
                pass_fds=(told, life),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=folder,
                start_new_session=True,  # Ctrl-C is the demo's to handle
            )
        os.close(life)
        self._log = folder / f"{name}.log"

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def code(self) -> int | None:
        """Its exit code, if it has ended."""
        return self._process.poll()

    @property
    def log(self) -> str:
        """What it has said."""
        return self._log.read_text(errors="replace")

    def kill(self) -> None:
        """End it at once, in the middle of whatever it does."""
        self.killed = True
        self._process.kill()
        self._process.wait()

    def ask_to_stop(self) -> None:
        if self.code is None:
            self._process.send_signal(signal.SIGTERM)

    def end(self) -> int:
        """Wait until it has stopped, or kill it. Its exit code."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_SECONDS)
        if self.code is None:
            self._process.kill()
        code = self._process.wait()
        if self._hold >= 0:
            os.close(self._hold)
            self._hold = -1
        return code


class Workers(list[Worker]):
    """All of them."""

    def alive(self) -> list[Worker]:
        return [worker for worker in self if worker.code is None]

    def stop(self) -> list[int]:
        """Ask all to stop, and wait for it. The exit codes of those that were not killed."""
        for worker in self:
            worker.ask_to_stop()
        codes = [(worker, worker.end()) for worker in self]
        return [code for worker, code in codes if not worker.killed]
