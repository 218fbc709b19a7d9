"""Connections whose every statement waits for its turn, and may go wrong.

A statement that would wait for a lock does not keep the others from their turns. SQLite says at
once that somebody else is writing, and is asked again when a transaction has ended. On a server a
statement runs in a thread; the server is asked whether it waits for a lock.
"""

import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import msgspec

from rowmq.drivers.base import Session
from rowmq.errors import ConnectionLost, RowMQError
from rowmq.store.statement import Result, Statement
from tests.databases import Database, MySQLDatabase
from tests.simulation.world import Actor, Fault, Killed, Process

__all__ = ["NOW", "SQLiteFileSession", "ServerSession", "SimulatedSession", "is_stuck_on"]

NOW = "(/* the world's */ 0 + 0)"
"""What stands in SQL for the database's clock: replaced when the statement's turn has come."""

BROKEN = "the connection was cut"


class SimulatedSession:
    """A session of RowMQ's, one turn for each thing that it is asked."""

    def __init__(self, process: Process, inner: Session) -> None:
        self.inner = inner
        self.savepoints = inner.savepoints
        self._process = process
        self._world = process.world
        self._is_cut = False
        process.sessions.append(self)

    def translate(self, error: Exception) -> Exception:
        return error if isinstance(error, RowMQError) else self.inner.translate(error)

    def in_transaction(self) -> bool:
        return not self._is_cut and self.inner.in_transaction()

    def begin(self) -> None:
        self._ask("begin", self.inner.begin)

    def begin_relaxed(self) -> None:
        self._ask("begin", getattr(self.inner, "begin_relaxed", self.inner.begin))

    def commit(self) -> None:
        self._ask("commit", self.inner.commit)

    def rollback(self) -> None:
        self._ask("rollback", self.inner.rollback)

    def execute(self, statement: Statement) -> Result:
        def run() -> Result:
            sql = statement.sql.replace(NOW, str(self._world.clock))
            return self.inner.execute(msgspec.structs.replace(statement, sql=sql))

        result: Result = self._ask(statement.name, run)
        return result

    def query(self, sql: str, params: Any) -> Result:
        result: Result = self._ask("own SQL", partial(self.inner.query, sql, params))
        return result

    def close(self) -> None:
        if not self._is_cut:
            self.cut()

    def cut(self) -> None:
        self._is_cut = True
        self.inner.close()
        self._world.ended()

    def _ask(self, point: str, run: Callable[[], Any]) -> Any:
        fault = self._world.turn(point)
        if fault is Fault.LOST:
            self.close()
        if self._is_cut:
            raise ConnectionLost(BROKEN)
        answer = self._run(run)
        if not self.inner.in_transaction():
            self._world.ended()
        if fault is Fault.CRASH_AFTER:
            self._process.die()
            raise Killed
        if fault is Fault.LOST_AFTER:
            self.close()
            raise ConnectionLost(BROKEN)
        return answer

    def _run(self, run: Callable[[], Any]) -> Any:
        raise NotImplementedError


class SQLiteFileSession(SimulatedSession):
    """A connection to a file."""

    def __init__(self, process: Process, inner: Any) -> None:
        super().__init__(process, inner)
        inner.connection.execute("PRAGMA busy_timeout = 0")
        inner.connection.execute("PRAGMA synchronous = OFF")  # nobody pulls the plug here

    def _run(self, run: Callable[[], Any]) -> Any:
        while True:
            try:
                return run()
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_BUSY:
                    raise
            self._world.blocked()
            if self._is_cut:
                raise ConnectionLost(BROKEN)


class ServerSession(SimulatedSession):
    """A connection to a server."""

    threads = ThreadPoolExecutor(64, thread_name_prefix="simulated")

    def __init__(self, process: Process, inner: Any, number: int) -> None:
        super().__init__(process, inner)
        self.number = number
        """How the server calls it."""

    def _run(self, run: Callable[[], Any]) -> Any:
        actor = self._world.current()
        actor.session = self
        return self._world.answer(self.threads.submit(run))


def is_stuck_on(database: Database) -> Callable[[Actor], bool]:
    """Asks a server whether the statement of an actor waits for a lock."""
    sql = LOCKED_MYSQL if isinstance(database, MySQLDatabase) else LOCKED_POSTGRES

    def is_stuck(actor: Actor) -> bool:
        return bool(database.execute(sql, (actor.session.number,)))

    return is_stuck


LOCKED_POSTGRES = "SELECT 1 FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'"
LOCKED_MYSQL = """
    SELECT 1 FROM information_schema.innodb_trx
    WHERE trx_mysql_thread_id = %s AND trx_state = 'LOCK WAIT'"""
