"""How operations are run: when a transaction begins and how it ends, what is tried again, and what
becomes of the session. Sessions here follow a script; the pools are the real ones.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from rowmq.drivers.base import (
    AsyncDriver,
    Step,
    Steps,
    SyncDriver,
    attempts,
    one_attempt,
    take_steps,
    take_steps_async,
)
from rowmq.drivers.pool import AsyncPool, Pool
from rowmq.errors import (
    ConnectionLost,
    DatabaseError,
    DatabaseUnreachable,
    Deadlock,
    Locked,
    MissingTable,
    PoolTimeout,
    SchemaMissing,
    SerializationFailure,
    UniqueViolation,
)
from rowmq.store.statement import Operation, Result, Statement


class Untold(Exception):
    """A driver's own error, which means what it carries."""

    def __init__(self, meaning: Exception) -> None:
        super().__init__("as the driver says it")
        self.meaning = meaning


def translate(error: Exception) -> Exception:
    if isinstance(error, Untold):
        error.meaning.__cause__ = error
        return error.meaning
    return error


class Interrupted(BaseException):
    """As KeyboardInterrupt is: no Exception."""


class Script:
    """What all sessions of a test did, and which of their calls are to fail, in turn."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.failures: dict[str, list[BaseException | None]] = {}
        self.opened = 0

    def call(self, session: int, what: str) -> None:
        self.done.append(what if session == 1 else f"{what} ({session})")
        failures = self.failures.get(what)
        failure = failures.pop(0) if failures else None
        if isinstance(failure, Exception):
            raise Untold(failure)
        if failure is not None:
            raise failure

    def fail(self, what: str, *failures: BaseException | None) -> None:
        """Let calls fail, the first with the first, the second with the second; None is no error.

        An Exception is raised as the driver's own, which has to be translated.
        """
        self.failures[what] = list(failures)


class ScriptedSession:
    translate = staticmethod(translate)
    savepoints = False

    def __init__(self, script: Script) -> None:
        script.opened += 1
        self.script = script
        self.number = script.opened

    def begin(self) -> None:
        self.script.call(self.number, "begin")

    def commit(self) -> None:
        self.script.call(self.number, "commit")

    def rollback(self) -> None:
        self.script.call(self.number, "rollback")

    def execute(self, statement: Statement) -> Result:
        self.script.call(self.number, statement.name)
        return Result([(f"rows of {statement.name}",)], 1)

    def query(self, sql: str, params: Any) -> Result:
        raise NotImplementedError

    def close(self) -> None:
        self.script.call(self.number, "close")


class AsyncScriptedSession:
    translate = staticmethod(translate)
    savepoints = False

    def __init__(self, script: Script) -> None:
        self.session = ScriptedSession(script)

    async def begin(self) -> None:
        await asyncio.sleep(0)
        self.session.begin()

    async def commit(self) -> None:
        await asyncio.sleep(0)
        self.session.commit()

    async def rollback(self) -> None:
        await asyncio.sleep(0)
        self.session.rollback()

    async def execute(self, statement: Statement) -> Result:
        await asyncio.sleep(0)
        return self.session.execute(statement)

    async def query(self, sql: str, params: Any) -> Result:
        raise NotImplementedError

    def close(self) -> None:
        self.session.close()


PLACES = 2


class Runner:
    """A driver, sync or async, over scripted sessions; its calls are awaited."""

    driver: SyncDriver | AsyncDriver

    def __init__(self, flavour: str, script: Script) -> None:
        self.script = script
        self.pauses: list[float] = []
        if flavour == "sync":
            self.pool: Any = Pool(lambda: ScriptedSession(script), size=PLACES, timeout=0.01)
            self.driver = SyncDriver(self.pool, retry_for=0)
        else:
            self.pool = AsyncPool(self.open_async, size=PLACES, timeout=0.01)
            self.driver = AsyncDriver(self.pool, retry_for=0)

    async def open_async(self) -> AsyncScriptedSession:
        return AsyncScriptedSession(self.script)

    async def run(self, make: Callable[[], Operation[Any]], **options: Any) -> Any:
        return await settled(self.driver.run(make, **options))

    async def follow(self, session: Any, operation: Operation[Any]) -> Any:
        return await settled(self.driver.follow(session, operation))

    async def begin(self) -> Any:
        return await settled(self.driver.begin())

    async def end(self, session: Any, error: BaseException | None = None) -> None:
        await settled(self.driver.end(session, error=error))

    async def run_with_pauses(self, make: Callable[[], Operation[Any]], *, retry_for: float) -> Any:
        """Run, and note the pauses between tries instead of making them."""
        once: Callable[[], Steps[Any]] = partial(one_attempt, self.driver, make)
        if isinstance(self.driver, SyncDriver):
            return take_steps(attempts(self.driver, once, self.pauses.append, retry_for))

        async def pause(seconds: float) -> None:
            self.pauses.append(seconds)

        return await take_steps_async(attempts(self.driver, once, pause, retry_for))

    @property
    def free_places(self) -> int:
        return int(self.pool.places.qsize())


async def settled(value: Any) -> Any:
    return await value if asyncio.iscoroutine(value) else value


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture(params=["sync", "async"])
async def runner(request: pytest.FixtureRequest, script: Script) -> AsyncIterator[Runner]:
    """Whatever happens in a test, no place of its pool is lost."""
    made = Runner(request.param, script)
    yield made
    assert made.free_places == PLACES


def one(name: str = "write", *, sole: bool = False) -> Operation[str]:
    result = yield Statement(name, "SQL", sole=sole)
    return str(result.rows[0][0])


def two() -> Operation[str]:
    yield Statement("first", "SQL")
    yield Statement("second", "SQL")
    return "done"


# --- when a transaction begins, and how it ends -------------------------------------------------


async def test_an_operation_runs_between_begin_and_commit(runner: Runner, script: Script) -> None:
    assert await runner.run(two) == "done"
    assert script.done == ["begin", "first", "second", "commit"]


async def test_the_operation_is_sent_its_results(runner: Runner) -> None:
    assert await runner.run(one) == "rows of write"


async def test_a_sole_statement_is_its_own_transaction(runner: Runner, script: Script) -> None:
    assert await runner.run(lambda: one(sole=True)) == "rows of write"
    assert script.done == ["write"]


async def test_a_transaction_begins_when_it_is_needed(runner: Runner, script: Script) -> None:
    def mixed() -> Operation[None]:
        yield Statement("look", "SQL", sole=True)
        yield Statement("write", "SQL")
        yield Statement("look again", "SQL", sole=True)

    await runner.run(mixed)
    assert script.done == ["look", "begin", "write", "look again", "commit"]


async def test_an_operation_without_statements_touches_nothing(
    runner: Runner, script: Script
) -> None:
    def nothing() -> Operation[int]:
        return 7
        yield

    assert await runner.run(nothing) == 7
    assert script.done == []


async def test_sessions_are_used_again(runner: Runner, script: Script) -> None:
    for _ in range(3):
        await runner.run(one)
    assert script.opened == 1


async def test_observers_are_told_before_each_statement_runs(
    runner: Runner, script: Script
) -> None:
    runner.driver.observers.append(lambda s: script.done.append(f"told of {s.name}"))
    await runner.run(two)
    told = ["begin", "told of first", "first", "told of second", "second", "commit"]
    assert script.done == told


# --- errors --------------------------------------------------------------------------------------


async def test_an_error_is_thrown_into_the_operation_as_what_it_means(
    runner: Runner, script: Script
) -> None:
    seen: list[Exception] = []

    def attentive() -> Operation[str]:
        try:
            yield Statement("write", "SQL")
        except UniqueViolation as error:
            seen.append(error)
        yield Statement("write otherwise", "SQL")
        return "went on"

    script.fail("write", UniqueViolation("there"))
    assert await runner.run(attentive) == "went on"
    assert script.done == ["begin", "write", "write otherwise", "commit"]
    assert isinstance(seen[0].__cause__, Untold)


async def test_an_operation_may_end_with_the_error_it_caught(
    runner: Runner, script: Script
) -> None:
    def content() -> Operation[str]:
        try:
            yield Statement("write", "SQL")
        except UniqueViolation:
            return "it is there"
        return "it was not"

    script.fail("write", UniqueViolation("there"))
    assert await runner.run(content) == "it is there"
    assert script.done == ["begin", "write", "commit"]


async def test_an_error_nobody_caught_rolls_back(runner: Runner, script: Script) -> None:
    script.fail("second", DatabaseError("no"))
    with pytest.raises(DatabaseError, match="no"):
        await runner.run(two, retry_for=60)
    assert script.done == ["begin", "first", "second", "rollback"]
    await runner.run(one)
    assert script.opened == 1  # rolled back, the session is as good as new


async def test_an_error_of_the_operation_itself_rolls_back(runner: Runner, script: Script) -> None:
    def failing() -> Operation[None]:
        yield Statement("write", "SQL")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await runner.run(failing, retry_for=60)
    assert script.done == ["begin", "write", "rollback"]
    assert script.opened == 1


async def test_a_missing_table_means_a_missing_schema(runner: Runner, script: Script) -> None:
    script.fail("write", MissingTable("rowmq_topics"))
    with pytest.raises(SchemaMissing, match=r"rowmq migrate.*rowmq_topics") as raised:
        await runner.run(one)
    assert isinstance(raised.value.__cause__, MissingTable)
    assert script.done == ["begin", "write", "rollback"]


async def test_a_begin_that_fails_runs_nothing(runner: Runner, script: Script) -> None:
    script.fail("begin", DatabaseError("no"))
    with pytest.raises(DatabaseError, match="no"):
        await runner.run(one)
    assert "write" not in script.done


async def test_a_commit_that_fails_is_told_and_rolled_back(runner: Runner, script: Script) -> None:
    script.fail("commit", DatabaseError("no"))
    with pytest.raises(DatabaseError, match="no"):
        await runner.run(one)
    assert script.done == ["begin", "write", "commit", "rollback"]


async def test_a_session_that_cannot_roll_back_is_thrown_away(
    runner: Runner, script: Script
) -> None:
    script.fail("write", DatabaseError("the first error"))
    script.fail("rollback", DatabaseError("the second"))
    with pytest.raises(DatabaseError, match="the first error"):
        await runner.run(one)
    assert script.done == ["begin", "write", "rollback", "close"]
    await runner.run(one)
    assert script.opened == 2


@pytest.mark.parametrize("where", ["begin", "write", "commit"])
async def test_a_lost_connection_is_thrown_away_without_rollback(
    runner: Runner, script: Script, where: str
) -> None:
    script.fail(where, ConnectionLost("gone"))
    with pytest.raises(ConnectionLost):
        await runner.run(one)
    assert script.done[-2:] == [where, "close"]
    assert "rollback" not in script.done


@pytest.mark.parametrize("kind", [Interrupted, KeyboardInterrupt, asyncio.CancelledError])
@pytest.mark.parametrize("where", ["begin", "write", "commit", "rollback"])
async def test_an_interrupted_session_is_thrown_away(
    runner: Runner, script: Script, where: str, kind: type[BaseException]
) -> None:
    """In whatever state it is: nobody knows, and closing it undoes what was begun."""
    if where == "rollback":
        script.fail("write", DatabaseError("no"))
    script.fail(where, kind())
    with pytest.raises(kind):
        await runner.run(one, retry_for=60)
    assert script.done[-2:] == [where, "close"]
    await runner.run(one)
    assert script.opened == 2


# --- trying again --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Deadlock, SerializationFailure, Locked, ConnectionLost])
async def test_a_transient_error_is_tried_again_from_the_start(
    runner: Runner, script: Script, kind: type[Exception]
) -> None:
    made: list[int] = []

    def counted() -> Operation[int]:
        made.append(len(made) + 1)
        mine = made[-1]
        yield Statement("first", "SQL")
        yield Statement("second", "SQL")
        return mine

    script.fail("second", kind("once"), kind("twice"))
    assert await runner.run_with_pauses(counted, retry_for=60) == 3
    assert made == [1, 2, 3]
    assert [what.split(" (")[0] for what in script.done].count("first") == 3
    assert len(runner.pauses) == 2
    assert script.opened == (3 if kind is ConnectionLost else 1)


async def test_a_commit_whose_answer_is_lost_is_tried_again(runner: Runner, script: Script) -> None:
    script.fail("commit", ConnectionLost("no answer"))
    await runner.run_with_pauses(one, retry_for=60)
    assert script.done == [
        *["begin", "write", "commit", "close"],
        *["begin (2)", "write (2)", "commit (2)"],
    ]


async def test_pauses_grow_and_stay_bounded(runner: Runner, script: Script) -> None:
    script.fail("write", *(Deadlock("again") for _ in range(30)))
    await runner.run_with_pauses(one, retry_for=60)
    pauses = runner.pauses
    assert len(pauses) == 30
    assert 0 < pauses[0] <= 0.05
    assert pauses[0] < pauses[3] < pauses[6]
    assert all(0.25 <= pause <= 2 for pause in pauses[10:])
    assert len(set(pauses[10:])) > 1  # never in step with others


@pytest.mark.parametrize("retry_for", [0, 0.3])
async def test_the_last_error_is_raised_when_the_time_is_over(
    runner: Runner, script: Script, retry_for: float
) -> None:
    script.fail("write", *(Deadlock(str(n)) for n in range(1, 1000)))
    runner.driver.retry_for = retry_for
    with pytest.raises(Deadlock) as raised:
        await runner.run(one)
    tries = script.done.count("write")
    assert str(raised.value) == str(tries)
    assert tries == 1 if retry_for == 0 else 1 < tries < 20


@pytest.mark.parametrize("kind", [ConnectionLost, Locked])
async def test_a_loss_that_is_noticed_late_is_still_tried_again(
    runner: Runner, script: Script, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    """A server that is silent shows after longer than anybody retries. What a lock was waited for
    is another matter: whoever set its limit has waited enough.
    """
    now = 0.0

    def slow(_: Statement) -> None:
        nonlocal now
        now += 30

    runner.driver.observers.append(slow)
    monkeypatch.setattr("rowmq.drivers.base.time", SimpleNamespace(monotonic=lambda: now))
    script.fail("write", *(kind(str(n)) for n in range(1, 10)))
    with pytest.raises(kind) as raised:
        await runner.run_with_pauses(one, retry_for=10)
    assert str(raised.value) == ("2" if kind is ConnectionLost else "1")  # not for ever, either


async def test_a_call_may_have_its_own_time(runner: Runner, script: Script) -> None:
    script.fail("write", Deadlock("once"))
    runner.driver.retry_for = 60
    with pytest.raises(Deadlock):
        await runner.run(one, retry_for=0)
    script.fail("write", Deadlock("once"))
    runner.driver.retry_for = 0
    await runner.run(one, retry_for=60)


@pytest.mark.parametrize("kind", [ConnectionLost, DatabaseUnreachable, Deadlock])
async def test_a_lost_connection_ends_the_idle_ones_too(
    runner: Runner, script: Script, kind: type[Exception]
) -> None:
    sessions = [await runner.begin(), await runner.begin()]
    for session in sessions:
        await runner.end(session)
    script.done.clear()
    script.fail("begin", kind("once"))
    await runner.run_with_pauses(one, retry_for=60)
    closed = sorted(what for what in script.done if what.startswith("close"))
    assert closed == ([] if kind is Deadlock else ["close", "close (2)"])
    assert script.opened == (2 if kind is Deadlock else 3)


async def test_an_exhausted_pool_is_not_asked_again(runner: Runner, script: Script) -> None:
    sessions = [await runner.begin() for _ in range(PLACES)]
    script.done.clear()
    with pytest.raises(PoolTimeout):
        await runner.run_with_pauses(one, retry_for=60)
    assert runner.pauses == []
    assert script.done == []
    for session in sessions:
        await runner.end(session)


async def test_a_session_that_cannot_be_opened_is_tried_again(
    runner: Runner, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    opening = runner.pool.open_session
    refusals = [DatabaseUnreachable("not yet")] * 2

    def reluctant() -> Any:
        if refusals:
            raise refusals.pop()
        return opening()

    monkeypatch.setattr(runner.pool, "open_session", reluctant)
    await runner.run_with_pauses(one, retry_for=60)
    assert script.done == ["begin", "write", "commit"]


# --- inside a transaction that is open ------------------------------------------------------------


async def test_a_followed_operation_begins_and_ends_nothing(runner: Runner, script: Script) -> None:
    session = await runner.begin()
    script.done.clear()
    assert await runner.follow(session, one(sole=True)) == "rows of write"
    assert await runner.follow(session, two()) == "done"
    script.fail("write", Deadlock("not ours to repeat"))
    with pytest.raises(Deadlock):
        await runner.follow(session, one())
    assert script.done == ["write", "first", "second", "write"]
    await runner.end(session)


async def test_a_followed_operation_is_told_of_errors_too(runner: Runner, script: Script) -> None:
    session = await runner.begin()
    script.fail("write", MissingTable("rowmq_topics"))
    with pytest.raises(SchemaMissing):
        await runner.follow(session, one())
    await runner.end(session)


@pytest.mark.parametrize(
    ("error", "raised"),
    [(UniqueViolation("there"), UniqueViolation), (Interrupted(), Interrupted)],
    ids=["refused", "interrupted"],
)
async def test_a_followed_operation_that_fails_leaves_no_half_where_savepoints_are_asked_for(
    runner: Runner, script: Script, error: BaseException, raised: type[BaseException]
) -> None:
    session = await runner.begin()
    session.savepoints = True
    script.done.clear()
    assert await runner.follow(session, two()) == "done"
    assert script.done == ["savepoint", "first", "second", "savepoint.release"]
    script.done.clear()
    script.fail("second", error)
    with pytest.raises(raised):
        await runner.follow(session, two())
    assert script.done == ["savepoint", "first", "second", "savepoint.undo"]
    script.done.clear()
    script.fail("first", DatabaseError("the first error"))
    script.fail("savepoint.undo", ConnectionLost("and then"))
    with pytest.raises(DatabaseError, match="the first error"):
        await runner.follow(session, two())
    script.fail("savepoint", ConnectionLost("gone"))
    with pytest.raises(ConnectionLost):
        await runner.follow(session, two())
    assert script.done == ["savepoint", "first", "savepoint.undo", "savepoint"]
    await runner.end(session)


# --- begin and end -------------------------------------------------------------------------------


async def test_begin_gives_a_session_and_end_commits_it(runner: Runner, script: Script) -> None:
    session = await runner.begin()
    assert script.done == ["begin"]
    assert runner.free_places == PLACES - 1
    await runner.end(session)
    assert script.done == ["begin", "commit"]


async def test_a_dead_session_is_replaced_at_the_beginning(runner: Runner, script: Script) -> None:
    script.fail("begin", ConnectionLost("gone"))
    runner.driver.retry_for = 60
    session = await runner.begin()
    assert script.done == ["begin", "close", "begin (2)"]
    await runner.end(session)


@pytest.mark.parametrize(
    "error",
    [DatabaseError("no"), ConnectionLost("gone"), Interrupted(), asyncio.CancelledError()],
    ids=lambda error: type(error).__name__,
)
async def test_a_begin_that_fails_gives_its_place_back(
    runner: Runner, script: Script, error: BaseException
) -> None:
    script.fail("begin", error)
    with pytest.raises(type(error)):
        await runner.begin()
    assert script.done == ["begin", "close"]
    assert runner.free_places == PLACES


async def test_end_rolls_back_after_an_error(runner: Runner, script: Script) -> None:
    await runner.end(await runner.begin(), ZeroDivisionError())
    assert script.done == ["begin", "rollback"]


@pytest.mark.parametrize("error", [Interrupted(), ConnectionLost("gone")])
async def test_end_throws_a_session_in_an_unknown_state_away(
    runner: Runner, script: Script, error: BaseException
) -> None:
    await runner.end(await runner.begin(), error)
    assert script.done == ["begin", "close"]


async def test_end_tells_of_a_commit_that_failed(runner: Runner, script: Script) -> None:
    session = await runner.begin()
    script.fail("commit", SerializationFailure("no"))
    with pytest.raises(SerializationFailure):
        await runner.end(session)
    assert script.done == ["begin", "commit", "rollback"]


async def test_end_throws_a_session_that_cannot_roll_back_away(
    runner: Runner, script: Script
) -> None:
    session = await runner.begin()
    script.fail("rollback", DatabaseError("no"))
    await runner.end(session, ZeroDivisionError())
    assert script.done == ["begin", "rollback", "close"]


@pytest.mark.parametrize("where", ["commit", "rollback"])
async def test_an_end_that_is_interrupted_throws_the_session_away(
    runner: Runner, script: Script, where: str
) -> None:
    session = await runner.begin()
    script.fail(where, Interrupted())
    with pytest.raises(Interrupted):
        await runner.end(session, ZeroDivisionError() if where == "rollback" else None)
    assert script.done == ["begin", where, "close"]


# --- taking steps --------------------------------------------------------------------------------


def doubled(first: Step, second: Step) -> Steps[list[Any]]:
    values = []
    for step in (first, second):
        try:
            values.append((yield step))
        except (ValueError, KeyboardInterrupt) as error:
            values.append(type(error).__name__)
    return values


def fail(error: BaseException) -> Any:
    raise error


async def fail_later(error: BaseException) -> Any:
    await asyncio.sleep(0)
    raise error


async def later(value: Any) -> Any:
    await asyncio.sleep(0)
    return value


def test_sync_steps_are_called_in_turn() -> None:
    assert take_steps(doubled(lambda: 1, lambda: 2)) == [1, 2]
    broken = doubled(partial(fail, ValueError()), partial(fail, KeyboardInterrupt()))
    assert take_steps(broken) == ["ValueError", "KeyboardInterrupt"]
    with pytest.raises(ZeroDivisionError):
        take_steps(doubled(partial(fail, ZeroDivisionError()), lambda: 2))


async def test_async_steps_are_awaited_in_turn() -> None:
    assert await take_steps_async(doubled(partial(later, 1), partial(later, 2))) == [1, 2]
    broken = doubled(partial(fail_later, ValueError()), partial(later, 2))
    assert await take_steps_async(broken) == ["ValueError", 2]
    with pytest.raises(ZeroDivisionError):
        await take_steps_async(doubled(partial(fail_later, ZeroDivisionError()), partial(later, 2)))


async def test_a_task_cancelled_in_a_step_gives_its_session_up(script: Script) -> None:
    runner = Runner("async", script)
    running = asyncio.Event()

    async def never(_: Any, statement: Statement) -> Result:
        script.done.append(statement.name)
        running.set()
        await asyncio.Event().wait()
        raise AssertionError

    session = await runner.begin()
    await runner.end(session)
    script.done.clear()
    session.execute = partial(never, None)
    task = asyncio.create_task(runner.run(one, retry_for=60))
    await running.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert script.done == ["begin", "write", "close"]
    assert runner.free_places == PLACES
