"""What a machine runs in: a database that is empty again for each example, a clock that is moved,
and clients that go by it.
"""

from contextlib import ExitStack
from datetime import UTC, datetime

import rowmq
from rowmq.engine import Options
from rowmq.times import to_micros
from tests.clocks import CLOCK, Clock, connect_sync
from tests.databases import Database, Databases, SQLiteDatabase

__all__ = ["BEGAN", "World"]

BEGAN = datetime(2026, 6, 1, tzinfo=UTC)

OPTIONS = Options(clock=CLOCK, notify=False)


class World:
    """A database of a kind, for one example after the other."""

    def __init__(self, databases: Databases, name: str) -> None:
        self._databases = databases
        self._name = name
        self._clients = ExitStack()
        self.database: Database
        self.clock: Clock

    def begin(self) -> None:
        """Begin an example."""
        database = self._databases.get(self._name)
        if isinstance(database, SQLiteDatabase) or not hasattr(self, "clock"):
            self.clock = Clock(database, BEGAN)
        self.clock.set(BEGAN)
        self.database = database

    def connect(self) -> rowmq.RowMQ:
        """A client, until the example ends."""
        return self._clients.enter_context(connect_sync(self.database.url, OPTIONS))

    @property
    def now(self) -> int:
        return to_micros(self.clock.now)

    def end(self) -> None:
        """End an example."""
        self._clients.close()
        self._databases.give_back(self.database)

    def close(self) -> None:
        """Leave the database as it was found."""
        if hasattr(self, "clock") and not isinstance(self.database, SQLiteDatabase):
            self.clock.drop()
