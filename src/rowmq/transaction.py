"""The transactions of `mq.transaction()`: own SQL and messages, all or nothing.

An error of the database ends a transaction, on every database alike. Some roll back by themselves
and go on as if nothing was; others answer a COMMIT with a rollback and no error; MySQL commits
before DDL. So the first thing that goes wrong is remembered here: what follows it raises, and so
does the end of the block.
"""

import contextlib
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rowmq.errors import Closed, DatabaseError, InvalidInput, RowMQError, TransactionFailed
from rowmq.message import Message, PublishResult
from rowmq.quoting import visible
from rowmq.store.statement import Result

__all__ = ["AsyncTransaction", "Guard", "Transaction", "begun_guard_of", "guard_of"]

Params = Sequence[Any] | Mapping[str, Any]


# Not an Exception, so that the session is not used again, not even to roll back.
STILL_RUNNING = GeneratorExit("a call on it was still running when the block ended")


class Guard:
    """Who may use a transaction's session, and for how long. The client holds it."""

    def __init__(self, mq: Any, session: Any) -> None:
        self.session = session
        self.failure: BaseException | None = None
        self._mq = mq
        self._process = os.getpid()
        self._open = True
        self._busy = threading.Lock()

    def end(self, *, wait: bool) -> None:
        """Be of no more use. A call that is still running spoils the whole; if it runs in a thread,
        which cannot be stopped, `wait` for it.
        """
        self._open = False
        if not self._busy.acquire(blocking=False):
            self.failure = STILL_RUNNING
            if wait:
                self._busy.acquire()

    def refuse_if_failed(self) -> None:
        if self.failure is not None:
            reason = str(self.failure) or type(self.failure).__name__
            raise TransactionFailed(
                f"this transaction was not committed, since something in it failed; repeat the "
                f"whole block ({reason})"
            ) from self.failure

    @contextlib.contextmanager
    def in_use(self, mq: Any) -> Iterator[Any]:
        """Let one call at a time use the session, and remember if one fails."""
        self._check(mq)
        if not self._busy.acquire(blocking=False):
            raise InvalidInput("a transaction takes one call at a time; await each before the next")
        try:
            yield self.session
            refuse_if_ended(self.session)
        except InvalidInput:
            raise  # before anything was run
        except BaseException as error:
            self.failure = error
            raise
        finally:
            self._busy.release()

    def _check(self, mq: Any) -> None:
        if not self._open:
            raise Closed("this transaction has ended; begin another with mq.transaction()")
        if self._process != os.getpid():
            raise Closed("this transaction is the parent process's; begin one of your own")
        if mq is not self._mq:
            raise InvalidInput("this transaction belongs to another client; use that one")
        self.refuse_if_failed()


class Transaction:
    """An open transaction of `RowMQ.transaction()`, for one thread."""

    def __init__(self, mq: Any, guard: Guard) -> None:
        self._mq = mq
        self._guard = guard

    def execute(self, sql: str, params: Params | None = None) -> Result:
        """Run SQL of your own, with `?`, `%s`, `$1` or `:name` for parameters on any database."""
        check_sql(sql)
        with self._guard.in_use(self._mq) as session:
            try:
                result: Result = session.query(sql, params)
                return result
            except Exception as error:  # noqa: BLE001 - told as what it means
                raise meaning(session.translate(error))  # noqa: B904 - which brings its cause

    def publish(
        self,
        topic: str,
        payload: Any,
        *,
        key: str | None = None,
        id: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> PublishResult:
        """Publish in this transaction: see `RowMQ.publish`."""
        result: PublishResult = self._mq.publish(
            topic, payload, key=key, id=id, headers=headers, connection=self
        )
        return result

    def publish_many(self, topic: str, messages: Iterable[Message[Any]]) -> list[PublishResult]:
        """Publish many in this transaction: see `RowMQ.publish_many`."""
        results: list[PublishResult] = self._mq.publish_many(topic, messages, connection=self)
        return results

    def queue(self, name: str, *, type: Any = None, kind: str | None = None) -> Any:
        """A queue whose writes are part of this transaction: see `RowMQ.queue`."""
        return self._mq.queue(name, type=type, kind=kind)._within(self)  # noqa: SLF001 - its own


class AsyncTransaction:
    """An open transaction of `AsyncRowMQ.transaction()`, for one task."""

    def __init__(self, mq: Any, guard: Guard) -> None:
        self._mq = mq
        self._guard = guard

    async def _begin(self) -> Guard:
        """Begin, unless it has begun."""
        return self._guard

    async def execute(self, sql: str, params: Params | None = None) -> Result:
        """Run SQL of your own, with `?`, `%s`, `$1` or `:name` for parameters on any database."""
        check_sql(sql)
        guard = await self._begin()
        with guard.in_use(self._mq) as session:
            try:
                result: Result = await session.query(sql, params)
                return result
            except Exception as error:  # noqa: BLE001 - told as what it means
                raise meaning(session.translate(error))  # noqa: B904 - which brings its cause

    async def publish(
        self,
        topic: str,
        payload: Any,
        *,
        key: str | None = None,
        id: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> PublishResult:
        """Publish in this transaction: see `RowMQ.publish`."""
        result: PublishResult = await self._mq.publish(
            topic, payload, key=key, id=id, headers=headers, connection=self
        )
        return result

    async def publish_many(
        self, topic: str, messages: Iterable[Message[Any]]
    ) -> list[PublishResult]:
        """Publish many in this transaction: see `RowMQ.publish_many`."""
        results: list[PublishResult] = await self._mq.publish_many(topic, messages, connection=self)
        return results

    def queue(self, name: str, *, type: Any = None, kind: str | None = None) -> Any:
        """A queue whose writes are part of this transaction: see `RowMQ.queue`."""
        return self._mq.queue(name, type=type, kind=kind)._within(self)  # noqa: SLF001 - its own


def guard_of(transaction: Transaction | AsyncTransaction) -> Guard:
    """What the client that made a transaction looks after it by."""
    return transaction._guard  # noqa: SLF001 - it is no business of users


async def begun_guard_of(transaction: AsyncTransaction) -> Guard:
    """The same, of a transaction that may only begin now."""
    return await transaction._begin()  # noqa: SLF001 - it is no business of users


def refuse_if_ended(session: Any) -> None:
    if not session.in_transaction():
        raise TransactionFailed(
            "that statement ended the transaction and committed what came before it, as DDL does "
            "on MySQL; run it outside mq.transaction()"
        )


def meaning(error: Exception) -> Exception:
    """What an error of a driver says; also of one that cannot write a parameter down."""
    if isinstance(error, RowMQError) or not isinstance(error, UNSENT):
        return error
    said = visible(str(error)) or type(error).__name__
    fault = DatabaseError(f"the driver could not run the SQL with these parameters ({said})")
    fault.__cause__ = error
    return fault


UNSENT = (TypeError, ValueError, OverflowError)


def check_sql(sql: str) -> None:
    if not isinstance(sql, str):
        raise InvalidInput(f"SQL must be a str, not {type(sql).__name__}")
    try:
        sql.encode()
    except UnicodeEncodeError:
        raise InvalidInput("SQL must be valid Unicode, and this holds a lone surrogate") from None
    if "\0" in sql:
        raise InvalidInput("SQL must not hold the NUL character, where databases would end it")
