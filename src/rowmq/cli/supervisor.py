"""Several worker processes under one: started, watched, started again, and stopped together.

Each child has two pipes to its parent. It says how it does through one. The other says nothing, and
ends when the parent lets go of it, or is gone: then the child stops.
"""

import contextlib
import logging
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any

import msgspec

from rowmq.cli.failing import Code
from rowmq.telemetry import catalogue
from rowmq.telemetry.families import Family, Gathering, Labels, of_processes
from rowmq.worker.signals import SAME_SECONDS

__all__ = ["URL_VARIABLE", "Supervisor", "command_of", "live_with_parent"]

log = logging.getLogger("rowmq")

LIFE_VARIABLE = "ROWMQ_WORKER_PIPES"
"""Tells a child the numbers of its pipes."""

URL_VARIABLE = "ROWMQ_WORKER_URL"
"""Tells a child the database: others may read its arguments, and this has a password."""

TELL_SECONDS = 1.0
SILENT_SECONDS = 30.0
"""A child that has not said how it does for so long is not well."""

RESTART_SECONDS_FIRST = 0.5
RESTART_SECONDS_MAX = 30.0
STEADY_SECONDS = 60.0
"""A child that lived so long did not die of its start."""

EXTRA_SECONDS = 10.0
"""How long children have beyond their graceful timeout before they are killed."""


class Child:
    """One worker process, and those that take its place."""

    def __init__(self, number: int, command: Sequence[str], url: str | None) -> None:
        self.number = number
        self._command = command
        self._url = url
        self.told: dict[str, Any] = {}
        self.told_at = time.monotonic()
        self.restarts = -1
        self.start_at: float | None = 0.0
        self._pause = RESTART_SECONDS_FIRST
        self.start()

    def start(self) -> None:
        told, tell = os.pipe()
        life, hold = os.pipe()
        given = {LIFE_VARIABLE: f"{tell},{life}"}
        if self._url is not None:
            given[URL_VARIABLE] = self._url
        self.process = subprocess.Popen(  # noqa: S603 - our own command
            self._command,
            env=os.environ | given,
            pass_fds=(tell, life),
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # a Ctrl-C is the parent's to pass on
        )
        os.close(tell)
        os.close(life)
        os.set_blocking(told, False)
        self._told, self._hold, self._text = told, hold, b""
        self._asked = False
        self._measured: list[Any] = []
        self.began_at = self.told_at = time.monotonic()
        self.told = {}
        self.restarts += 1
        self.start_at = None

    def listen(self) -> None:
        """Read what the child has said, the last of it."""
        with contextlib.suppress(BlockingIOError):
            while part := os.read(self._told, 65536):
                self._text += part
        *lines, self._text = self._text.split(b"\n")
        if lines:
            self.told = msgspec.json.decode(lines[-1])
            self._measured = self.told.pop("metrics", [])
            self.told_at = time.monotonic()

    def watch(self) -> None:
        """Start another if this one has ended; not at once, if it ends again and again."""
        now = time.monotonic()
        if self.start_at is None and self.process.poll() is not None:
            self.bury()
            if now - self.began_at > STEADY_SECONDS:
                self._pause = RESTART_SECONDS_FIRST
            self.start_at = now + self._pause
            log.warning(
                "worker process %d (pid %d) ended with code %d; another is started in %.1f s",
                self.number,
                self.process.pid,
                self.process.returncode,
                self._pause,
            )
            self._pause = min(self._pause * 2, RESTART_SECONDS_MAX)
        if self.start_at is not None and now >= self.start_at:
            self.start()

    def ask_to_stop(self) -> None:
        """Let go of its pipe. A signal would be the second one where all processes get the first,
        as from systemd, and a second one stops at once.
        """
        if not self._asked:
            os.close(self._hold)
        self._asked = True

    def bury(self) -> None:
        with contextlib.suppress(OSError):
            self.listen()
        os.close(self._told)
        self.ask_to_stop()

    @property
    def alive(self) -> bool:
        return self.start_at is None and self.process.poll() is None

    def families(self) -> list[Family]:
        """What it has measured, as it has told last."""
        gathering = Gathering(Labels(1))
        gathering.add(catalogue.RESTARTS, (), self.restarts)
        return [*msgspec.convert(self._measured, list[Family]), *gathering.families()]

    def health(self) -> dict[str, Any]:
        silent = time.monotonic() - self.told_at
        well = self.alive and bool(self.told.get("healthy")) and silent < SILENT_SECONDS
        return self.told | {
            "process": self.number,
            "pid": self.process.pid,
            "healthy": well,
            "alive": bool(self.told.get("alive", True)) and silent < SILENT_SECONDS,
            "restarts": self.restarts,
            "silent_seconds": round(silent, 1),
        }


class Supervisor:
    """Runs so many processes of one command."""

    def __init__(
        self, count: int, command: Sequence[str], *, url: str | None, graceful_timeout: float
    ) -> None:
        self._count = count
        self._command = command
        self._url = url
        self._graceful_timeout = graceful_timeout
        self._children: list[Child] = []
        self._signals: list[int] = []
        self._asked_at = 0.0
        self._ears, self._mouth = os.pipe()
        os.set_blocking(self._mouth, False)

    def run(self) -> int:
        """Run until a signal; the exit code, which is the worst of the children's."""
        with self._on_signals():
            numbers = range(1, self._count + 1)
            self._children = [Child(number, self._command, self._url) for number in numbers]
            log.info("%d worker processes: %s", self._count, self._pids())
            while not self._signals:
                self._pause(TELL_SECONDS / 2)
                for child in self._children:
                    if child.alive:
                        child.listen()
                    child.watch()
            return self._stop()

    def health(self) -> dict[str, Any]:
        """How all of them do."""
        children = [child.health() for child in list(self._children)]
        well = len(children) == self._count and all(child["healthy"] for child in children)
        status = "stopping" if self._signals else "running"
        return {
            "healthy": well and not self._signals,
            "alive": all(child["alive"] for child in children),
            "status": status,
            "pid": os.getpid(),
            "processes": children,
        }

    def families(self) -> list[Family]:
        """What all of them have measured."""
        return of_processes((str(child.number), child.families()) for child in self._children)

    def _stop(self) -> int:
        """Pass a signal on, wait, and kill who does not end; a second signal kills at once."""
        living = [child for child in self._children if child.alive]
        log.info("stopping %d worker processes", len(living))
        for child in living:
            child.ask_to_stop()
        deadline = time.monotonic() + self._graceful_timeout + EXTRA_SECONDS
        while any(child.alive for child in living) and len(self._signals) < 2:
            if time.monotonic() > deadline:
                break
            self._pause(0.05)
        again = len(self._signals) > 1
        for child in living:
            if child.alive:
                if not again:
                    log.warning("worker process %d did not end, and is killed", child.number)
                child.process.kill()
            child.process.wait()
        if again:
            log.warning("stopped at once; what was at work comes again after its time")
            return 128 + self._signals[1]
        return max((exit_code(child.process.returncode) for child in living), default=0)

    @contextlib.contextmanager
    def _on_signals(self) -> Iterator[None]:
        def ask(number: int, _: FrameType | None) -> None:
            now = time.monotonic()
            if self._signals and now - self._asked_at < SAME_SECONDS:
                return
            self._asked_at = now
            self._signals.append(number)
            with contextlib.suppress(BlockingIOError):
                os.write(self._mouth, b".")

        numbers = (signal.SIGTERM, signal.SIGINT)
        before = {number: signal.signal(number, ask) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _pause(self, seconds: float) -> None:
        """Wait, or until a signal."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._ears, selectors.EVENT_READ)
            if selector.select(seconds):
                os.read(self._ears, 1024)

    def _pids(self) -> str:
        return ", ".join(str(child.process.pid) for child in self._children)


def exit_code(returned: int) -> int:
    """What a child's end means. One that SIGTERM has ended had not even begun."""
    if returned >= 0:
        return returned
    return 0 if returned == -signal.SIGTERM else 128 - returned


def live_with_parent(
    health: Callable[[], dict[str, Any]], stop: Callable[[], None], *, seconds_max: float
) -> None:
    """In a child: say how it does, and stop when the parent lets go; it has so long for that."""
    numbers = os.environ.pop(LIFE_VARIABLE, "")
    if not numbers:
        return
    tell, life = (int(number) for number in numbers.split(","))

    def speak() -> None:
        with contextlib.suppress(OSError):
            while True:
                os.write(tell, msgspec.json.encode(health()) + b"\n")
                time.sleep(TELL_SECONDS)

    def wait() -> None:
        os.read(life, 1)
        log.info("the parent process has let go, so this one stops")
        stop()
        time.sleep(seconds_max)
        log.error("the stop took too long; what was at work comes again after its time")
        os._exit(Code.WORK_LEFT)

    for work in (speak, wait):
        threading.Thread(target=work, name=f"rowmq-{work.__name__}", daemon=True).start()


def command_of(target: str, options: Sequence[str]) -> list[str]:
    """The command of a child."""
    return [sys.executable, "-m", "rowmq", "worker", target, *options]
