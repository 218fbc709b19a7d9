"""A private SQLite database: a file in a folder of its own, removed at the end.

A file, and not memory, since sync and async clients and the user's own connections are to see the
same. It need not survive a power cut, so it is written without waiting for the disk.
"""

import sqlite3
import tempfile
from collections.abc import Callable
from datetime import datetime
from functools import cache, partial
from pathlib import Path
from typing import Any

from rowmq.client import AsyncRowMQ, RowMQ
from rowmq.cron.core import Core
from rowmq.cron.cron import AsyncCron, Cron
from rowmq.cron.tending import Tender
from rowmq.drivers.base import SyncDriver
from rowmq.drivers.sqlite import AsyncSQLiteDriver, SQLiteSession
from rowmq.engine import Options, open_async_engine, open_engine
from rowmq.store.dialect import DEFAULT_PREFIX
from rowmq.testing.clock import CLOCK_SQL, Clock

__all__ = ["Database"]


class Database:
    """A database for one test, with a clock that can be moved."""

    def __init__(self, *, prefix: str = DEFAULT_PREFIX, now: datetime | None = None) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="rowmq-testing-")
        self.path = Path(self._folder.name) / "rowmq.db"
        self.path.write_bytes(template(prefix))
        self.url = f"sqlite:///{self.path}"
        self.clock = Clock(self.path)
        if now is not None:
            self.clock.begin_at(now)
        self._options = Options(prefix=prefix, clock=CLOCK_SQL)
        self._functions: dict[tuple[str, str], Any] = {}

    def connect(self) -> RowMQ:
        """A client for sync code."""
        engine = open_engine(self.url, self._options)
        hasten(engine.driver)
        mq = RowMQ(engine)
        self._calm(mq.cron)
        return mq

    def connect_async(self) -> AsyncRowMQ:
        """A client for the running event loop."""
        engine = open_async_engine(self.url, self._options)
        assert isinstance(engine.driver, AsyncSQLiteDriver)  # noqa: S101 - as the URL says
        hasten(engine.driver.sync)
        mq = AsyncRowMQ(engine)
        self._calm(mq.cron)
        return mq

    def close(self) -> None:
        """Remove the file. Clients are to be closed before."""
        self.clock.close()
        self._folder.cleanup()

    def _calm(self, cron: Cron | AsyncCron) -> None:
        """Have a client make no ticks by itself: a drain does. It may be another client than the
        one that has installed a schedule, and needs the functions that make payloads.
        """
        cron._core.functions = self._functions
        cron._tender = NoTender(no_driver, partial(keep, cron._core))


class NoTender(Tender):
    """Does not tend."""

    def start(self) -> None:
        """Do nothing: a test says when."""


def no_driver() -> SyncDriver:
    raise AssertionError("nothing is tended in the background")


def keep(core: Core, _: Callable[..., Any]) -> Core:
    return core


def hasten(driver: SyncDriver) -> None:
    """Have a driver's connections not wait for the disk."""
    pool: Any = driver.pool
    pool.open_session = partial(open_hasty, pool.open_session)


def open_hasty(open_session: Callable[[], SQLiteSession]) -> SQLiteSession:
    session = open_session()
    session.connection.execute("PRAGMA synchronous = OFF")
    return session


@cache
def template(prefix: str) -> bytes:
    """An empty database, with all tables: made once, and copied for each test."""
    with tempfile.TemporaryDirectory(prefix="rowmq-testing-") as folder:
        path = Path(folder) / "template.db"
        connection = sqlite3.connect(path, isolation_level=None)
        Clock.install(connection)
        connection.close()
        mq = RowMQ(open_engine(f"sqlite:///{path}", Options(prefix=prefix)))
        mq.migrate()
        mq.close()
        return path.read_bytes()
