"""Driving an operation: one body of logic for sync and async.

What a driver does (take a connection, begin, execute, commit, try again) is itself written as a
generator, of steps. A step is a call that is ready to be made; on a sync driver it returns a value,
on an async one an awaitable. `take_steps` and `take_steps_async` make the calls. So transactions,
retries and the handling of errors stand once, here, for all databases and both kinds of code.

    attempts -> one_attempt -> drive    -> operation
    (retries)   (connection)   (BEGIN..)   (statements)
"""

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Generator
from functools import partial
from itertools import count
from typing import Any, Protocol, TypeVar, cast

import msgspec

from rowmq.drivers.faults import Translate
from rowmq.errors import (
    ConfigurationError,
    ConnectionLost,
    DatabaseUnreachable,
    MissingTable,
    PoolTimeout,
    RowMQError,
    SchemaMissing,
    TransientError,
)
from rowmq.store.statement import Operation, Result, Statement

__all__ = [
    "AsyncDriver",
    "AsyncGuest",
    "AsyncSession",
    "Driver",
    "Ended",
    "Guest",
    "Limits",
    "Observer",
    "Session",
    "Step",
    "Steps",
    "SyncDriver",
    "Timer",
    "attempts",
    "drive",
    "one_attempt",
    "take_steps",
    "take_steps_async",
]

T = TypeVar("T")
Step = Callable[[], Any]
Steps = Generator[Step, Any, T]
Observer = Callable[[Statement], None]
"""Is told of every statement before it runs: for tests, which may then come between."""

Ended = Callable[[BaseException | None], None]
Timer = Callable[[Statement], Ended | None]
"""Is told of every statement before it runs, and gives whom to tell how it ended, if anybody: for
metrics and traces.
"""

BACKOFF_SECONDS_FIRST = 0.01
BACKOFF_SECONDS_MAX = 1.0


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How many connections, and how long to wait for what; times in seconds."""

    pool_size: int
    pool_timeout: float
    connect_timeout: float
    lock_timeout: float
    retry_for: float
    prepared_statements: bool


class AnyGuest(Protocol):
    """What can execute statements in a transaction that is somebody else's, sync or async."""

    @property
    def translate(self) -> Translate: ...
    @property
    def savepoints(self) -> bool:
        """Whether a failed operation must be undone by itself: the transaction is a caller's, who
        may go on, and the database undoes only the statement that failed.
        """

    def execute(self, statement: Statement) -> Any: ...


class Guest(AnyGuest, Protocol):
    """A guest for sync code."""

    def execute(self, statement: Statement) -> Result: ...


class AsyncGuest(AnyGuest, Protocol):
    """A guest for async code."""

    async def execute(self, statement: Statement) -> Result: ...


class AnySession(AnyGuest, Protocol):
    """A connection of our own, sync or async."""

    def in_transaction(self) -> bool:
        """Whether a transaction is open: some statements end it."""

    def begin(self) -> Any: ...
    def commit(self) -> Any: ...
    def rollback(self) -> Any: ...
    def query(self, sql: str, params: Any) -> Any:
        """Run SQL of the user's own."""

    def close(self) -> None:
        """Let go of the connection, in whatever state it is. Never raises, never waits."""


class Relaxing(Protocol):
    """A session that can begin a transaction whose commit does not wait for the disk. That of a
    database where it must be known at the start can, and only such a one is asked to.
    """

    def begin_relaxed(self) -> Any: ...


class Session(AnySession, Protocol):
    """A connection of a sync driver."""

    def begin(self) -> None: ...
    def commit(self) -> None: ...
    def rollback(self) -> None: ...
    def execute(self, statement: Statement) -> Result: ...
    def query(self, sql: str, params: Any) -> Result: ...


class AsyncSession(AnySession, Protocol):
    """A connection of an async driver."""

    async def begin(self) -> None: ...
    async def commit(self) -> None: ...
    async def rollback(self) -> None: ...
    async def execute(self, statement: Statement) -> Result: ...
    async def query(self, sql: str, params: Any) -> Result: ...


class AnyPool(Protocol):
    """What the steps need of a pool."""

    def acquire(self) -> Any: ...
    def release(self, session: Any, *, healthy: bool) -> None: ...
    def clear(self) -> None: ...
    def close(self) -> None: ...
    def refuse_if_closed(self) -> None: ...
    def owns(self, session: Any) -> bool: ...

    closed: bool
    size: int


class Driver:
    """What sync and async drivers share."""

    def __init__(self, pool: AnyPool, *, retry_for: float) -> None:
        self.pool = pool
        self.retry_for = retry_for
        self.observers: list[Observer] = []
        self.timers: list[Timer] = []

    def observe(self, statement: Statement) -> None:
        for observer in self.observers:
            observer(statement)


def attempts(
    driver: Driver, once: Callable[[], Steps[T]], sleep: Callable[[float], Any], retry_for: float
) -> Steps[T]:
    """Do something that is safe to repeat, and again after transient errors.

    The last error is raised when the time is over. It begins with the call, and anew when a
    connection is first lost: that may have taken longer to be noticed than anybody would retry.
    """
    started, lost, in_doubt = time.monotonic(), False, False
    for attempt in count():
        try:
            return (yield from once())
        except RowMQError as error:
            # A try whose answer was lost may have been carried out, whatever ended the next ones.
            in_doubt = error.in_doubt = in_doubt or error.in_doubt
            if isinstance(error, PoolTimeout) or not isinstance(error, TransientError):
                raise
            if isinstance(error, ConnectionLost) and not lost:
                started, lost = time.monotonic(), True
            pause = backoff_seconds(attempt)
            if time.monotonic() - started + pause > retry_for:
                raise
            if isinstance(error, ConnectionLost | DatabaseUnreachable):
                driver.pool.clear()
        yield partial(sleep, pause)
    raise AssertionError


def one_attempt(driver: Driver, make: Callable[[], Operation[T]]) -> Steps[T]:
    """Run an operation once, on a connection of the pool, committed or rolled back.

    A COMMIT whose answer was lost may have happened. Operations are safe to repeat, so that is
    treated like any other lost connection.
    """
    session = yield driver.pool.acquire
    healthy = False
    try:
        result = yield from drive(driver, session, make(), owner=session)
        healthy = True
        return result
    except Exception as error:
        healthy = yield from rolled_back(session, error)
        raise
    finally:
        driver.pool.release(session, healthy=healthy)


def drive(
    driver: Driver, guest: AnyGuest, operation: Operation[T], *, owner: AnySession | None = None
) -> Steps[T]:
    """Give an operation the results of its statements until it returns.

    On a session of our own, the owner, a transaction is begun before the first statement that
    needs one, and committed at the end. Without an owner, somebody else began it and will end it.
    """
    begun = False
    try:
        statement = next(operation)
        while True:
            if owner and not begun and not statement.sole:
                relaxed = statement.relaxed
                begin = cast("Relaxing", owner).begin_relaxed if relaxed else owner.begin
                yield from guarded(owner, begin)
                begun = True
            driver.observe(statement)
            step = partial(guest.execute, statement)
            try:
                if driver.timers:
                    result = yield from timed(driver, statement, guarded(guest, step))
                else:
                    result = yield from guarded(guest, step)
            except MissingTable as error:
                statement = operation.throw(schema_missing(error))
            except Exception as error:  # noqa: BLE001 - whatever it is, the operation is told
                statement = operation.throw(error)
            else:
                statement = operation.send(result)
    except StopIteration as stop:
        if owner and begun:
            ending = committed(owner)
            yield from timed(driver, COMMIT, ending) if driver.timers else ending
        return stop.value  # type: ignore[no-any-return]


def timed(driver: Driver, statement: Statement, steps: Steps[T]) -> Steps[T]:
    """Take the steps of a statement, and tell who asked for it when it begins and how it ends."""
    ends = [end for timer in driver.timers if (end := timer(statement)) is not None]
    error: BaseException | None = None
    try:
        return (yield from steps)
    except BaseException as failure:
        error = failure
        raise
    finally:
        for end in reversed(ends):
            end(error)
        del error  # which refers to this frame, and would keep itself


COMMIT = Statement("commit", "COMMIT")
"""What a commit is called by those who time statements: it is where a write waits for the disk."""


def committed(session: AnySession) -> Steps[None]:
    """Commit. Whatever comes of it but an answer, it may have happened."""
    try:
        yield from guarded(session, session.commit)
    except RowMQError as error:
        error.in_doubt = True
        raise


def visit(driver: Driver, guest: AnyGuest, operation: Operation[T]) -> Steps[T]:
    """Give an operation its results in a transaction that is open, and leave no half of it."""
    if not guest.savepoints:
        return (yield from drive(driver, guest, operation))
    yield from guarded(guest, partial(guest.execute, SAVEPOINT))
    try:
        result = yield from drive(driver, guest, operation)
    except BaseException:
        with contextlib.suppress(Exception):  # if the whole transaction is gone, so is this
            yield partial(guest.execute, UNDO)
        raise
    yield from guarded(guest, partial(guest.execute, RELEASE))
    return result


SAVEPOINT = Statement("savepoint", "SAVEPOINT rowmq")
UNDO = Statement("savepoint.undo", "ROLLBACK TO SAVEPOINT rowmq")
RELEASE = Statement("savepoint.release", "RELEASE SAVEPOINT rowmq")


def schema_missing(error: MissingTable) -> SchemaMissing:
    """A table of our own is missing: then the schema is."""
    meaning = SchemaMissing(
        f"RowMQ's tables are not there; run `rowmq migrate`, or, if connection= was given, see "
        f"that it leads to the same database as the client's URL ({error})"
    )
    meaning.__cause__ = error
    return meaning


def rolled_back(session: AnySession, error: Exception) -> Steps[bool]:
    """Roll back after an error. False if the connection is of no more use."""
    if isinstance(error, ConnectionLost):
        return False
    try:
        yield session.rollback
    except Exception:  # noqa: BLE001 - the first error is the one to tell; this one ends the session
        return False
    return True


def guarded(guest: AnyGuest, step: Step) -> Steps[Any]:
    """Take a step; a driver's error comes out as RowMQ's."""
    try:
        return (yield step)
    except Exception as error:  # noqa: BLE001 - told as what it means
        raise guest.translate(error)  # noqa: B904 - which brings its cause with it


def begun_session(driver: Driver) -> Steps[Any]:
    """A session of the pool with a transaction begun. Nothing has happened in it yet, so this is
    safe to repeat: a connection that turns out to be dead is simply replaced.
    """
    session = yield driver.pool.acquire
    try:
        yield from guarded(session, session.begin)
    except BaseException:
        driver.pool.release(session, healthy=False)
        raise
    return session


def end_steps(driver: Driver, session: AnySession, error: BaseException | None) -> Steps[None]:
    """Commit if there was no error, else roll back, and give the session back to the pool."""
    if not driver.pool.owns(session):
        return  # a forked child leaves the parent's transaction alone
    healthy = False
    try:
        if error is None:
            yield from committed(session)
            healthy = True
        elif isinstance(error, Exception):
            healthy = yield from rolled_back(session, error)
    except Exception as failure:
        healthy = yield from rolled_back(session, failure)
        raise
    finally:
        driver.pool.release(session, healthy=healthy)


def backoff_seconds(attempt: int) -> float:
    """How long to wait after a failed attempt: longer each time, never in step with others."""
    longest = min(BACKOFF_SECONDS_MAX, BACKOFF_SECONDS_FIRST * 2.0 ** min(attempt, 20))
    return longest * random.uniform(0.5, 1.0)


def take_steps(steps: Steps[T]) -> T:
    """Make the calls of sync steps, one after the other."""
    try:
        step = next(steps)
        while True:
            try:
                value = step()
            except BaseException as error:  # noqa: BLE001 - the steps clean up after any
                step = steps.throw(error)
            else:
                step = steps.send(value)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]


async def take_steps_async(steps: Steps[T]) -> T:
    """Make the calls of async steps, one after the other."""
    try:
        step = next(steps)
        while True:
            try:
                value = await step()
            except BaseException as error:  # noqa: BLE001 - the steps clean up after any
                step = steps.throw(error)
            else:
                step = steps.send(value)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]


class SyncDriver(Driver):
    """Runs operations in the calling thread."""

    def run(self, make: Callable[[], Operation[T]], *, retry_for: float | None = None) -> T:
        """Run an operation in a transaction of its own."""
        limit = self.retry_for if retry_for is None else retry_for
        return take_steps(attempts(self, partial(one_attempt, self, make), time.sleep, limit))

    def follow(self, guest: Guest, operation: Operation[T]) -> T:
        """Run an operation inside a transaction that is open."""
        return take_steps(visit(self, guest, operation))

    def begin(self) -> Session:
        """A session of the pool with a transaction begun."""
        once: Callable[[], Steps[Session]] = partial(begun_session, self)
        return take_steps(attempts(self, once, time.sleep, self.retry_for))

    def end(self, session: Session, *, error: BaseException | None) -> None:
        """Commit, or roll back after an error, and give the session back to the pool."""
        take_steps(end_steps(self, session, error))

    def close(self) -> None:
        """Close every connection; later calls raise `Closed`."""
        self.pool.close()


class AsyncDriver(Driver):
    """Runs operations in the event loop, which is the one it is first used in."""

    loop: asyncio.AbstractEventLoop | None = None

    def check_loop(self) -> None:
        """Raise in any other loop: connections belong to theirs."""
        running = asyncio.get_running_loop()
        if self.loop is None:
            self.loop = running
        elif self.loop is not running:
            raise ConfigurationError(
                "this client belongs to another event loop; connect one in each loop "
                "(in a test: in a fixture of the same scope as the loop)"
            )

    async def run(self, make: Callable[[], Operation[T]], *, retry_for: float | None = None) -> T:
        """Run an operation in a transaction of its own."""
        limit = self.retry_for if retry_for is None else retry_for
        once = partial(one_attempt, self, make)
        return await take_steps_async(attempts(self, once, asyncio.sleep, limit))

    async def follow(self, guest: AsyncGuest, operation: Operation[T]) -> T:
        """Run an operation inside a transaction that is open."""
        return await take_steps_async(visit(self, guest, operation))

    async def begin(self) -> AsyncSession:
        """A session of the pool with a transaction begun."""
        once: Callable[[], Steps[AsyncSession]] = partial(begun_session, self)
        return await take_steps_async(attempts(self, once, asyncio.sleep, self.retry_for))

    async def end(self, session: AsyncSession, *, error: BaseException | None) -> None:
        """Commit, or roll back after an error, and give the session back to the pool."""
        await take_steps_async(end_steps(self, session, error))

    async def close(self) -> None:
        """Close every connection; later calls raise `Closed`."""
        self.pool.close()
