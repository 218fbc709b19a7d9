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
from tests.simulation.world import (
    AT_ANY_POINT,
    BEGIN_TRANSACTION,
    COMMIT,
    PATIENCE_US,
    ROLLBACK,
    Attempt,
    Fault,
    Killed,
    Process,
    Question,
)

__all__ = ["BROKEN", "NOW", "SQLiteFileSession", "ServerSession", "SimulatedSession"]

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
        self._ask(BEGIN_TRANSACTION, self.inner.begin)

    def begin_relaxed(self) -> None:
        self._ask(BEGIN_TRANSACTION, getattr(self.inner, "begin_relaxed", self.inner.begin))

    def commit(self) -> None:
        self._ask(COMMIT, self.inner.commit)

    def rollback(self) -> None:
        self._ask(ROLLBACK, self.inner.rollback)

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
            self._lose(fault)
        if self._is_cut:
            raise ConnectionLost(BROKEN)
        if fault is Fault.REFUSED:
            self._refuse()
        try:
            answer = self._run(self._noted(point, run))
        except Killed:
            if fault is not None and fault not in AT_ANY_POINT:
                self._world.befallen[fault] += 1  # who dies as it waits has lost its connection
            raise
        except Exception:
            self._break(fault)
            raise
        if not self.inner.in_transaction():
            self._world.ended()
        self._break(fault)
        return answer

    def _noted(self, point: str, run: Callable[[], Any]) -> Callable[[], Any]:
        """The same, remembered if it may be committed by that."""
        inside = point != COMMIT and self.inner.in_transaction()
        if inside or point in (BEGIN_TRANSACTION, ROLLBACK):
            return run
        attempt = Attempt(point, run)
        self._world.current().attempts.append(attempt)
        return attempt

    def _lose(self, fault: Fault) -> None:
        self._world.befallen[fault] += 1
        self.close()
        raise ConnectionLost(BROKEN)

    def _refuse(self) -> None:
        """Fail as a database does that has undone the whole transaction."""
        self._world.befallen[Fault.REFUSED] += 1
        if self.inner.in_transaction():
            self.inner.rollback()
        self._world.ended()
        raise Deadlock("the database has ended this transaction")

    def _break(self, fault: Fault | None) -> None:
        """What the database has done may never be told."""
        if fault is Fault.CRASH_AFTER:
            self._world.befallen[fault] += 1
            self._process.die()
            raise Killed
        if fault is Fault.LOST or fault is Fault.LOST_AFTER:
            self._lose(fault)

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
            self._break(fault)
            if self._is_cut:
                raise ConnectionLost(BROKEN)
            if fault is Fault.REFUSED:
                self._refuse()


class ServerSession(SimulatedSession):
    """A connection to a server."""

    threads = ThreadPoolExecutor(64, thread_name_prefix="simulated")
    _question: Question | None = None

    def _run(self, run: Callable[[], Any]) -> Any:
        question = self._question = Question(self, self.threads.submit(run))
        fault = self._world.answer(question)
        self._question = None
        self._break(fault)  # while it waited for a lock
        return question.result()

    def cut(self) -> None:
        if self._question is None or self._question.answered:
            super().cut()
        else:
            self._is_cut = self._question.left = True
