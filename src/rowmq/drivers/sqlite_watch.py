"""Wake-ups on SQLite: a number that changes when somebody else has committed to the file.

What it was about does not show, so everybody is woken. When to look at the number is told by writes
to the log, where the system tells of them; where it does not, it is looked at all the time.

    calm ──── a write ────► look often ──── a commit ────► rest, and look once
     ▲  a look from time        │                                │
     │  to time                 └── nothing came ──┐  no write ──┤── a write ──► look often
     └─────────────────────────────────────────────┴─────────────┘
"""

import contextlib
import sqlite3
import threading
from collections import deque
from pathlib import Path

from rowmq.drivers.faults import sqlite_fault
from rowmq.drivers.file_events import FileEvents
from rowmq.drivers.forking import FORK_SECONDS, around_fork
from rowmq.drivers.pool import keep_for_ever
from rowmq.errors import Locked

__all__ = ["SQLiteWatch"]

LOOK_SECONDS = 0.004
"""How often to look where nobody tells of writes, and at most once a commit was seen: a look takes
some microseconds.
"""

CALM_SECONDS = 0.1
"""How often to look while no write is told of."""

FLUSH_PAUSES = (*[0.0005] * 6, *[0.001] * 8, *[LOOK_SECONDS] * 10)
"""How long to wait before each look after a write: its commit comes as soon as it is flushed."""

SURPRISES_MAX = 3
"""How many commits in a row may come without a word before we rely on nobody's word."""


class SQLiteWatch:
    """Sees that another connection, of any process, has committed to the file.

    A connection must not be open while its process forks: it is closed around that, and what is
    missed meanwhile counts as a commit.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None
        self._version: int | None = None
        self._events: FileEvents | None = None
        self._surprises = 0
        self._pauses: deque[float] = deque()
        self._committed = self._anew = False
        self._interrupted = threading.Event()
        self._lock = threading.Lock()
        self._forking = False
        around_fork(self)

    def open(self) -> None:
        self._changed()

    def wait(self, seconds: float) -> tuple[()] | None:
        expected = self._rest(seconds)
        self._committed = not self._interrupted.is_set() and self._changed()
        if not self._committed:
            return ()
        self._pauses = deque((LOOK_SECONDS,))
        if self._events is not None and not self._anew:
            self._surprises = 0 if expected else self._surprises + 1
            if self._surprises == SURPRISES_MAX:
                self._be_told_no_more()
        return None

    def interrupt(self) -> None:
        self._interrupted.set()
        if (events := self._events) is not None:
            events.interrupt()

    def close(self) -> None:
        with self._lock:
            self._disconnect()
            self._be_told_no_more()

    def suspend(self) -> None:
        """Before a fork: have no connection, and let none be opened."""
        self._forking = self._lock.acquire(timeout=FORK_SECONDS)
        if self._forking:
            self._disconnect()

    def resume(self) -> None:
        if self._forking:
            self._forking = False
            self._lock.release()

    def reset(self) -> None:
        """In a forked child: a connection that was in use during the fork is the parent's."""
        keep_for_ever(self._connection)
        events, self._connection, self._events = self._events, None, None
        if events is not None:
            events.forget()
        self._lock, self._forking = threading.Lock(), False

    def _rest(self, seconds: float) -> bool:
        """Wait until it is time to look; and say whether a commit is to be expected then."""
        pause = self._pauses.popleft() if self._pauses else None
        if self._events is None or pause is not None:
            self._interrupted.wait(min(seconds, LOOK_SECONDS if pause is None else pause))
        if self._events is None:
            return True
        # What is told of from here on is looked at again.
        told = self._events.wait(min(seconds, CALM_SECONDS) if pause is None else 0)
        if told and not self._pauses:
            # Who goes on writing without a commit is not looked after more and more often.
            first = pause is None or self._committed
            self._pauses.extend(FLUSH_PAUSES if first else (LOOK_SECONDS,))
        return told or pause is not None

    def _changed(self) -> bool:
        """Whether there was a commit since the last look."""
        try:
            with self._lock:
                if self._connection is None:
                    # The number means nothing to another connection: a first look sees a change.
                    self._connection, self._version = self._connect(), None
                    self._be_told_no_more()
                before, self._version = self._version, data_version(self._connection)
                self._anew = before is None
                if self._anew:
                    self._be_told()
        except sqlite3.Error as error:
            meaning = sqlite_fault(error)
            if isinstance(meaning, Locked):
                return False  # for a moment: it is looked at again soon
            raise meaning from error
        return self._version != before

    def _be_told(self) -> None:
        """Hear of writes to the file and to its log, which is there while we are connected."""
        files = [Path(self._path), Path(f"{self._path}-wal")]
        if self._surprises < SURPRISES_MAX and not self._interrupted.is_set():
            with contextlib.suppress(OSError):
                self._events = FileEvents([file for file in files if file.exists()])

    def _be_told_no_more(self) -> None:
        events, self._events = self._events, None
        if events is not None:
            events.close()

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(
            f"{Path(self._path).as_uri()}?mode=rw",  # a file that is gone is not made anew
            uri=True,
            timeout=0,
            isolation_level=None,
            check_same_thread=False,
        )

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                connection.close()


def data_version(connection: sqlite3.Connection) -> int:
    """A number that changes when another connection has committed."""
    ((version,),) = connection.execute("PRAGMA data_version").fetchall()
    return int(version)
