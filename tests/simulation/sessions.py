"""Connections whose every statement waits for its turn, and may go wrong.

A statement that would wait for a lock does not keep the others from their turns. SQLite says at
once that somebody else is writing, and is asked again when a transaction has ended. On a server a
statement runs in a thread; the server is asked whether it waits for a lock.
"""

import contextlib
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import msgspec

from rowmq.drivers.base import Session
from rowmq.errors import ConnectionLost, Deadlock, RowMQError
from rowmq.store.statement import Result, Statement
from tests.simulation.world import PATIENCE_US, Fault, Killed, Process, Question

__all__ = ["NOW", "SQLiteFileSession", "ServerSession", "SimulatedSession"]

NOW = "(/* the world's */ 0 + 0)"
"""What stands in SQL for the database's clock: replaced when the statement's turn has come."""

BROKEN = "the connection was cut"


class SimulatedSession:
    """A session of RowMQ's, one turn for each thing that it is asked."""

    def __init__(self, process: Process, inner: Session, number: int = 0) -> None:
        self.inner = inner
        self.number = number
        """How the server calls it."""
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
        self.end()
        self._world.ended()

    def end(self) -> None:
        """A server would notice in a moment that the connection has gone; until then it would keep
        its locks. So it is told.
        """
        with contextlib.suppress(Exception):
            if self.inner.in_transaction():
                self.inner.rollback()
        self.inner.close()

    def _ask(self, point: str, run: Callable[[], Any]) -> Any:
        fault = self._world.turn(point)
        if fault is Fault.LOST:
            self.close()
        if self._is_cut:
            raise ConnectionLost(BROKEN)
        if fault is Fault.REFUSED and point != "rollback":
            self._refuse()
        answer = self._run(run)
        if not self.inner.in_transaction():
            self._world.ended()
        self._break(fault)
        return answer

    def _refuse(self) -> None:
        """Fail as a database does that has undone the whole transaction."""
        if self.inner.in_transaction():
            self.inner.rollback()
        self._world.ended()
        raise Deadlock("the database has ended this transaction")

    def _break(self, fault: Fault | None) -> None:
        """What the database has done may never be known."""
        if fault is Fault.CRASH_AFTER:
            self._process.die()
            raise Killed
        if fault is Fault.LOST_AFTER:
            self.close()
            raise ConnectionLost(BROKEN)

    def _run(self, run: Callable[[], Any]) -> Any:
        raise NotImplementedError


class SQLiteFileSession(SimulatedSession):
    """A connection to a file."""

    def __init__(self, process: Process, inner: Any) -> None:
        super().__init__(process, inner)
        inner.connection.execute("PRAGMA busy_timeout = 0")
        inner.connection.execute("PRAGMA synchronous = OFF")  # nobody pulls the plug here

    def _run(self, run: Callable[[], Any]) -> Any:
        gives_up_at = self._world.now + PATIENCE_US
        while True:
            try:
                return run()
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or self._world.now >= gives_up_at:
                    raise
            fault = self._world.blocked(gives_up_at)
            if fault is Fault.LOST:
                self.close()
            if self._is_cut:
                raise ConnectionLost(BROKEN)
            self._break(fault)


class ServerSession(SimulatedSession):
    """A connection to a server."""

    threads = ThreadPoolExecutor(64, thread_name_prefix="simulated")
    _question: Question | None = None

    def _run(self, run: Callable[[], Any]) -> Any:
        question = self._question = Question(self, self.threads.submit(run))
        fault = self._world.answer(question)
        self._question = None
        if fault is Fault.LOST:
            self.close()
            raise ConnectionLost(BROKEN)
        self._break(fault)
        return question.result()

    def cut(self) -> None:
        if self._question is None or self._question.answered:
            super().cut()
        else:
            self._is_cut = self._question.left = True
