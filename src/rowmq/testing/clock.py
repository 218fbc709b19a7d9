"""The clock of a private database: it goes with the real time until it is moved, and then stands.

It is a row of a table, which every statement reads instead of the time: so it is the same for every
connection to the file, also for those of the user's own.
"""

import contextlib
import sqlite3
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

from rowmq.errors import InvalidOption
from rowmq.store.sqlite import SQLiteDialect
from rowmq.times import Duration, from_micros, to_micros, to_seconds

__all__ = ["CLOCK_SQL", "CLOCK_TABLE", "Clock"]

CLOCK_TABLE = "CREATE TABLE rowmq_testing_clock (stands_at INTEGER)"
START = "INSERT INTO rowmq_testing_clock (stands_at) VALUES (NULL)"
READ = f"SELECT stands_at, COALESCE(stands_at, {SQLiteDialect.now}) FROM rowmq_testing_clock"
WRITE = "UPDATE rowmq_testing_clock SET stands_at = ?"

CLOCK_SQL = f"(SELECT COALESCE(stands_at, {SQLiteDialect.now}) FROM rowmq_testing_clock)"
"""What stands for the time in every statement."""

LOCK_SECONDS = 2.0


class Clock:
    """The database's clock, to be moved forward.

    Until it is moved for the first time it goes with the real time; from then on it stands still
    between moves. It never goes back.
    """

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._connection = sqlite3.connect(
            path, timeout=LOCK_SECONDS, isolation_level=None, check_same_thread=False
        )

    @staticmethod
    def install(connection: sqlite3.Connection) -> None:
        """Make the row that the clock is."""
        connection.execute(CLOCK_TABLE)
        connection.execute(START)

    def now(self) -> datetime:
        """What the clock shows, in UTC."""
        return from_micros(self._read()[1])

    def move(
        self,
        by: Duration | None = None,
        *,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
    ) -> datetime:
        """Move the clock forward, by seconds or a `timedelta`, or by what is named, as in
        `move(hours=2)`. What it shows then.

        It is a jump, as if no worker had run meanwhile; see `run_for` for the other case. A drain
        does what has become due.
        """
        step = 0.0 if by is None else to_seconds(by, name="by")
        step += timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds).total_seconds()
        if step < 0:
            raise InvalidOption(f"the clock goes forward only, not by {step:g} s")
        return self._write(self._read()[1] + round(step * 1_000_000))

    def set(self, moment: datetime) -> datetime:
        """Move the clock forward to a moment."""
        target, now = to_micros(moment), self._read()[1]
        if target < now:
            raise InvalidOption(
                f"the clock shows {from_micros(now)} and goes forward only; to begin at another "
                f"time, give it at the start, as in TestApp(app, now=...)"
            )
        return self._write(target)

    @contextlib.contextmanager
    def standing(self) -> Iterator[None]:
        """Have it stand for the length of a block, even if it was never moved."""
        moved, now = self._read()
        if moved is not None:
            yield
            return
        self._write(now)
        try:
            yield
        finally:
            if self._read()[0] == now:  # or else it was moved in there
                self._write(None)

    def begin_at(self, moment: datetime) -> None:
        """Stand at a moment, at the start."""
        self._write(to_micros(moment))

    def close(self) -> None:
        """Let go of the file."""
        self._connection.close()

    def __repr__(self) -> str:
        moved, now = self._read()
        return f"<Clock {'goes' if moved is None else 'stands'}, {from_micros(now)}>"

    def _read(self) -> tuple[int | None, int]:
        """Where it stands, if it does, and what it shows."""
        with self._lock:
            ((moved, now),) = self._connection.execute(READ).fetchall()
        return moved, now

    def _write(self, micros: int | None) -> datetime:
        with self._lock:
            try:
                self._connection.execute(WRITE, (micros,))
            except sqlite3.OperationalError as error:
                raise InvalidOption(
                    "the clock cannot be moved while a transaction is writing: move it before "
                    "that, or after"
                ) from error
        return self.now() if micros is None else from_micros(micros)
