"""What those who take part write down, so that it survives their death, and how it is read.

A line is written by one call, and the system keeps it if the process is killed right after. What
may take effect is written down before it is done, and again when it is known what came of it: the
later line of the same number replaces the earlier one. So nothing happens that nobody has told.
"""

import contextlib
import ctypes
import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from rowmq.errors import RowMQError, StaleLease
from tests.simulation.history import (
    Claimed,
    Crashed,
    Delivered,
    Event,
    JobSettled,
    Outcome,
    Published,
    Put,
    Settled,
)

__all__ = ["READY", "Offered", "Reader", "Record", "Trouble"]

READY = "ready"
PAUSE_SECONDS = 0.02
PR_SET_PDEATHSIG = 1


class Trouble(Event, frozen=True, kw_only=True):
    """Somebody was told of an error."""

    error: str


class Offered(Put, frozen=True, kw_only=True):
    """A job was offered under a key."""

    answer: str | None = None
    """What came of it, if that was answered: CREATED, UPDATED or IGNORED."""


KINDS = {
    kind.__name__: kind
    for kind in (
        *(Published, Delivered, Settled, Put, Claimed, JobSettled, Crashed),
        *(Trouble, Offered),
    )
}

T = TypeVar("T")


class Record:
    """A file that one participant appends to; safe from any thread."""

    def __init__(self, path: str) -> None:
        # Nobody takes part in a trial that is over, however it ended.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        self.actor = Path(path).stem
        self.born = time.monotonic_ns()
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    def ready(self) -> None:
        self._write(READY)

    def number(self) -> int:
        return next(self._numbers)

    def note(self, what: type[Event], /, *, number: int = 0, **told: Any) -> None:
        """Write down an event; with the number of an earlier one, instead of that."""
        event = what(actor=self.actor, **told)
        self._write([what.__name__, number or self.number(), event])

    def attempt(
        self,
        what: type[Event],
        do: Callable[[], T],
        learned: Callable[[T], dict[str, Any]] = lambda _: {},
        /,
        **told: Any,
    ) -> T | None:
        """Do something that may take effect, and note what came of it; None if that is unknown."""
        number, began = self.number(), time.monotonic_ns()
        self.note(what, number=number, began=began, outcome=Outcome.UNKNOWN, **told)
        outcome, result = Outcome.UNKNOWN, None
        try:
            result = do()
            outcome, told = Outcome.OK, told | learned(result)
        except StaleLease:
            outcome = Outcome.REFUSED
        except RowMQError as error:
            self.trouble(error)  # perhaps only the answer was lost
        ended = time.monotonic_ns()
        self.note(what, number=number, began=began, ended=ended, outcome=outcome, **told)
        return result

    def trouble(self, error: RowMQError) -> None:
        """Note that something did not work."""
        now = time.monotonic_ns()
        self.note(Trouble, began=now, ended=now, error=str(error))

    @contextlib.contextmanager
    def enduring(self) -> Iterator[None]:
        """Go on after an error, and note it."""
        try:
            yield
        except RowMQError as error:
            self.trouble(error)
            time.sleep(PAUSE_SECONDS)

    def _write(self, line: Any) -> None:
        with self._lock:
            os.write(self._file, msgspec.json.encode(line) + b"\n")


class Reader:
    """What a participant has told so far; it is read as it grows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ready = False
        self.events: dict[int, Event] = {}
        self._position = 0

    def read(self) -> Iterator[Event]:
        """What is new. A line that was cut off has no end, and is not there."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self._position)
            text = file.read()
        text = text[: text.rfind(b"\n") + 1]
        self._position += len(text)
        for line in text.splitlines():
            told = msgspec.json.decode(line)
            if told == READY:
                self.ready = True
                continue
            name, number, fields = told
            event = self.events[number] = msgspec.convert(fields, KINDS[name])
            yield event
