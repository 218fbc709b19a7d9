"""Connections are lent out one at a time, never too many, and never across a fork."""

import asyncio
import gc
import itertools
import os
import sqlite3
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import rowmq
from rowmq.drivers.pool import AsyncPool, Pool
from rowmq.drivers.sqlite import SQLiteSession, open_session
from rowmq.errors import Closed, DatabaseUnreachable, PoolTimeout
from rowmq.store.keys import SHARD_KEYS

SECONDS_MAX = 60

STEPS_MIN = 50
"""Of the interpreter's, of which a session is lent out and given back in more."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "queue.db"


@pytest.fixture
def pool(path: Path) -> Iterator[Pool[SQLiteSession]]:
    pool = Pool[SQLiteSession](lambda: open_session(str(path), 5), size=2, timeout=0.05)
    yield pool
    pool.close()


def is_open(session: SQLiteSession) -> bool:
    try:
        session.connection.execute("SELECT 1")
    except sqlite3.ProgrammingError:
        return False
    return True


def test_a_session_is_opened_only_when_needed(pool: Pool[SQLiteSession], path: Path) -> None:
    assert not path.exists()
    session = pool.acquire()
    assert path.exists()
    pool.release(session, healthy=True)


def test_an_interrupt_at_any_step_leaves_nothing_that_closing_waits_for(path: Path) -> None:
    """Ctrl-C may come between any two steps of the interpreter's, also in modules that we use."""
    for step in itertools.count(1):
        pool = Pool[SQLiteSession](lambda: open_session(str(path), 5), size=2, timeout=0.05)
        pool.release(pool.acquire(), healthy=True)
        interrupted = is_interrupted(step, partial(lend, pool))
        idle = pool.places.qsize()
        closing = threading.Thread(target=pool.close, daemon=True)
        closing.start()
        closing.join(SECONDS_MAX)
        assert not closing.is_alive(), f"interrupted at step {step}"
        # Nothing is lost but what the one who was interrupted had in hand.
        assert (idle, pool.places.qsize()) in ((1, 1), (2, 2)), f"interrupted at step {step}"
        assert len(pool.own) <= 2 - idle, f"interrupted at step {step}"
        if not interrupted:
            break
    assert step > STEPS_MIN


def lend(pool: Pool[SQLiteSession]) -> None:
    pool.release(pool.acquire(), healthy=True)


def is_interrupted(at: int, call: Callable[[], None]) -> bool:
    """Interrupt a call at one of its steps, unless it has ended by then."""
    steps = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal steps
        frame.f_trace_opcodes = True
        if event == "opcode":
            steps += 1
            if steps == at:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    gc.disable()  # others are told of its runs, and are not to be interrupted
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
        gc.enable()
    return False


def test_the_session_used_last_is_lent_out_first(pool: Pool[SQLiteSession]) -> None:
    first, second = pool.acquire(), pool.acquire()
    pool.release(first, healthy=True)
    pool.release(second, healthy=True)
    assert pool.acquire() is second
    assert pool.acquire() is first
    pool.release(first, healthy=True)
    pool.release(second, healthy=True)


def test_an_idle_session_is_preferred_to_a_new_one(pool: Pool[SQLiteSession]) -> None:
    session = pool.acquire()
    pool.release(session, healthy=True)
    assert pool.acquire() is session
    pool.release(session, healthy=True)


def test_no_more_than_its_size_are_lent_out(pool: Pool[SQLiteSession]) -> None:
    lent = [pool.acquire(), pool.acquire()]
    with pytest.raises(PoolTimeout, match=r"all 2 connections were in use for 0\.05 seconds"):
        pool.acquire()
    for session in lent:
        pool.release(session, healthy=True)
    pool.release(pool.acquire(), healthy=True)


def test_a_waiting_thread_gets_what_comes_back(path: Path) -> None:
    pool = Pool[SQLiteSession](lambda: open_session(str(path), 5), size=1, timeout=10)
    session = pool.acquire()
    got: list[SQLiteSession] = []
    thread = threading.Thread(target=lambda: got.append(pool.acquire()))
    thread.start()
    pool.release(session, healthy=True)
    thread.join(10)
    assert got == [session]
    pool.release(session, healthy=True)
    pool.close()


def test_a_session_that_is_not_healthy_is_closed_and_replaced(pool: Pool[SQLiteSession]) -> None:
    session = pool.acquire()
    pool.release(session, healthy=False)
    assert not is_open(session)
    others = [pool.acquire(), pool.acquire()]
    assert session not in others
    for other in others:
        pool.release(other, healthy=True)


def test_a_session_that_cannot_be_opened_costs_no_place(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing" / "queue.db")
    pool = Pool[SQLiteSession](lambda: open_session(missing, 5), size=1, timeout=0.05)
    for _ in range(3):
        with pytest.raises(DatabaseUnreachable):
            pool.acquire()


def test_clearing_closes_the_idle_sessions_only(pool: Pool[SQLiteSession]) -> None:
    idle, lent = pool.acquire(), pool.acquire()
    pool.release(idle, healthy=True)
    pool.clear()
    assert not is_open(idle)
    assert is_open(lent)
    pool.release(lent, healthy=True)
    assert {pool.acquire(), pool.acquire()} & {idle} == set()


def test_a_closed_pool_lends_nothing_and_closes_what_comes_back(pool: Pool[SQLiteSession]) -> None:
    idle, lent = pool.acquire(), pool.acquire()
    pool.release(idle, healthy=True)
    pool.close()
    pool.close()
    assert not is_open(idle)
    assert is_open(lent)
    pool.release(lent, healthy=True)
    assert not is_open(lent)
    with pytest.raises(Closed):
        pool.acquire()


def test_who_waits_while_the_pool_is_closed_is_told_so(path: Path) -> None:
    pool = Pool[SQLiteSession](lambda: open_session(str(path), 5), size=1, timeout=10)
    session = pool.acquire()
    errors: list[BaseException] = []
    started = threading.Event()

    def wait() -> None:
        started.set()
        try:
            pool.acquire()
        except Closed as error:
            errors.append(error)

    threads = [threading.Thread(target=wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    started.wait(10)
    pool.close()
    pool.release(session, healthy=True)
    for thread in threads:
        thread.join(10)
    assert len(errors) == 3


def test_many_threads_share_few_sessions(path: Path) -> None:
    first = open_session(str(path), 5)  # whoever makes a file excludes all others, without waiting
    pool = Pool[SQLiteSession](lambda: open_session(str(path), 5), size=3, timeout=10)
    lent: set[SQLiteSession] = set()
    most = []

    def use() -> None:
        for _ in range(50):
            session = pool.acquire()
            assert session not in lent
            lent.add(session)
            most.append(len(lent))
            lent.discard(session)
            pool.release(session, healthy=len(most) % 7 != 0)

    threads = [threading.Thread(target=use) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(most) == 400
    assert max(most) <= 3
    assert pool.places.qsize() == 3
    pool.close()
    first.close()


# --- async ---------------------------------------------------------------------------------------


def async_pool(path: Path, *, size: int, timeout: float) -> AsyncPool[Any]:
    async def open_one() -> SQLiteSession:
        await asyncio.sleep(0)
        return open_session(str(path), 5)

    return AsyncPool[Any](open_one, size=size, timeout=timeout)


async def test_an_async_pool_has_a_limit_too(path: Path) -> None:
    pool = async_pool(path, size=1, timeout=0.05)
    session = await pool.acquire()
    with pytest.raises(PoolTimeout):
        await pool.acquire()
    pool.release(session, healthy=True)
    assert await pool.acquire() is session
    pool.release(session, healthy=False)
    assert not is_open(session)
    pool.close()


async def test_a_task_cancelled_while_waiting_takes_no_place(path: Path) -> None:
    pool = async_pool(path, size=1, timeout=10)
    session = await pool.acquire()
    waiting = [asyncio.create_task(pool.acquire()) for _ in range(5)]
    await asyncio.sleep(0)
    for task in waiting:
        task.cancel()
    pool.release(session, healthy=True)
    await asyncio.gather(*waiting, return_exceptions=True)
    assert pool.places.qsize() == 1
    assert await pool.acquire() is session
    pool.release(session, healthy=True)
    pool.close()


async def test_a_task_cancelled_while_opening_takes_no_place() -> None:
    opening = asyncio.Event()

    async def open_for_ever() -> SQLiteSession:
        opening.set()
        await asyncio.Event().wait()
        raise AssertionError

    pool = AsyncPool[Any](open_for_ever, size=1, timeout=10)
    task = asyncio.create_task(pool.acquire())
    await opening.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert pool.places.qsize() == 1


async def test_tasks_that_wait_while_an_async_pool_is_closed_are_told_so(path: Path) -> None:
    pool = async_pool(path, size=1, timeout=10)
    session = await pool.acquire()
    waiting = [asyncio.create_task(pool.acquire()) for _ in range(3)]
    await asyncio.sleep(0)
    pool.close()
    pool.release(session, healthy=True)
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(result) for result in results] == [Closed] * 3
    assert not is_open(session)


# --- fork ----------------------------------------------------------------------------------------


def fork(work: Callable[[], object], *, by: Callable[[], int] = os.fork) -> int:
    """Start work in a child process; its exit code says whether it raised."""
    sys.stdout.flush()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # that there are threads is the point
        pid = by()
    if pid:
        return pid
    code = 1
    try:
        work()
        code = 0
    except BaseException:  # noqa: BLE001 - a child must not go on as the test runner
        traceback.print_exc()
    finally:
        os._exit(code)


def exit_code(pid: int) -> int:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    raise AssertionError("the child hangs")


def test_a_child_can_use_the_client_and_so_can_the_parent(path: Path) -> None:
    with rowmq.connect(f"sqlite:///{path}") as mq:
        mq.publish("t", "before", key="k")
        assert exit_code(fork(partial(mq.publish, "t", "child", key="k"))) == 0
        mq.publish("t", "after", key="k")
        assert [m.payload for m in mq.read("t")] == ["before", "child", "after"]


def test_a_child_draws_a_shard_of_its_own(path: Path) -> None:
    with rowmq.connect(f"sqlite:///{path}") as mq:
        mq._shard.key = "drawn by the parent"

        def work() -> None:
            assert mq._shard.key in SHARD_KEYS

        assert exit_code(fork(work)) == 0
        assert mq._shard.key == "drawn by the parent"


def test_what_a_child_publishes_outlives_the_parents_client(path: Path) -> None:
    """SQLite's locks are the parent's: without care, its closing would drop the child's log."""
    mq = rowmq.connect(f"sqlite:///{path}")
    mq.publish("t", "before")
    child_reads, parent_writes = os.pipe()
    parent_reads, child_writes = os.pipe()

    def work() -> None:
        mq.publish("t", "first")
        os.write(child_writes, b"x")
        os.read(child_reads, 1)
        mq.publish("t", "second")

    pid = fork(work)
    os.read(parent_reads, 1)
    mq.close()
    os.write(parent_writes, b"x")
    assert exit_code(pid) == 0
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT CAST(payload AS text) FROM rowmq_messages").fetchall()
    assert rows == [("before",), ("first",), ("second",)]
    for end in (child_reads, parent_writes, parent_reads, child_writes):
        os.close(end)


def test_a_session_lent_out_during_a_fork_stays_the_parents(path: Path) -> None:
    with rowmq.connect(f"sqlite:///{path}") as mq:
        with mq.transaction() as tx:
            tx.publish("t", "in the transaction")

            def work() -> None:
                # The child leaves the block too, and ends nothing that is not its own.
                mq._driver.end(tx._guard.session, error=KeyboardInterrupt())
                gc.collect()

            assert exit_code(fork(work)) == 0
        mq.publish("t", "after")
        assert [m.payload for m in mq.read("t")] == ["in the transaction", "after"]


FORK_IN_A_TRANSACTION = """
import os, sys, rowmq
mq = rowmq.connect(sys.argv[1])
with mq.transaction() as tx:
    for n in range(5):
        tx.publish("t", "x" * 900_000)  # more than SQLite's cache: it is in the log before COMMIT
    pid = os.fork()
    if pid == 0:
        sys.exit(0)  # through the block, and through the end of the interpreter
    os.waitpid(pid, 0)
    tx.publish("t", "last")
mq.close()
"""


def test_a_child_that_ends_harms_no_open_transaction_of_the_parent(path: Path) -> None:
    url = f"sqlite:///{path}"
    subprocess.run([sys.executable, "-c", FORK_IN_A_TRANSACTION, url], check=True, timeout=60)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.execute("SELECT count(*) FROM rowmq_messages").fetchone() == (6,)


def test_a_child_has_all_places_though_the_parent_lent_some_out(path: Path) -> None:
    pool = Pool[SQLiteSession](lambda: open_session(str(path), 5), size=2, timeout=0.2)
    lent = [pool.acquire(), pool.acquire()]

    def work() -> None:
        mine = [pool.acquire(), pool.acquire()]
        assert not set(mine) & set(lent)
        pool.release(lent[0], healthy=True)
        for session in mine:
            pool.release(session, healthy=True)
        assert pool.places.qsize() == 2

    assert exit_code(fork(work)) == 0
    assert all(is_open(session) for session in lent)
    for session in lent:
        pool.release(session, healthy=True)
    pool.close()


def test_a_fork_takes_no_places_from_the_parent_or_the_child(path: Path) -> None:
    pool = Pool[SQLiteSession](lambda: open_session(str(path), 5), size=3, timeout=0.2)
    pool.release(pool.acquire(), healthy=True)

    def work() -> None:
        assert pool.places.qsize() == 3
        assert exit_code(fork(lambda: None)) == 0
        assert pool.places.qsize() == 3

    for _ in range(3):
        assert exit_code(fork(work)) == 0
        assert pool.places.qsize() == 3
    pool.close()


def test_a_fork_can_wait_for_the_transactions_of_other_threads(path: Path) -> None:
    """A child of a process that holds SQLite's write lock could never write."""
    pool = Pool[SQLiteSession](
        lambda: open_session(str(path), 5), size=2, timeout=10, fork_patience=10
    )
    begun = threading.Event()

    def write() -> None:
        session = pool.acquire()
        session.begin()
        begun.set()
        while pool.withheld == 0:  # until the fork waits for us
            time.sleep(0.001)
        session.connection.execute("CREATE TABLE parent (id integer)")
        session.commit()
        pool.release(session, healthy=True)

    def work() -> None:
        session = pool.acquire()
        session.begin()
        session.connection.execute("CREATE TABLE child (id integer)")
        session.commit()

    thread = threading.Thread(target=write)
    thread.start()
    assert begun.wait(10)
    assert exit_code(fork(work)) == 0
    thread.join(10)
    assert pool.places.qsize() == 2
    pool.close()
    with closing(sqlite3.connect(path)) as connection:
        names = connection.execute("SELECT name FROM sqlite_master ORDER BY name").fetchall()
    assert names == [("child",), ("parent",)]


def test_a_fork_does_not_wait_for_ever(path: Path) -> None:
    pool = Pool[SQLiteSession](
        lambda: open_session(str(path), 5), size=1, timeout=10, fork_patience=0.01
    )
    session = pool.acquire()
    assert exit_code(fork(lambda: None)) == 0
    pool.release(session, healthy=True)
    assert pool.acquire() is session
    pool.release(session, healthy=True)
    pool.close()


def test_a_closed_pool_is_closed_in_the_child(pool: Pool[SQLiteSession]) -> None:
    pool.release(pool.acquire(), healthy=True)
    pool.close()

    def work() -> None:
        with pytest.raises(Closed):
            pool.acquire()

    assert exit_code(fork(work)) == 0


def test_a_client_in_memory_survives_a_fork() -> None:
    with rowmq.connect("sqlite://") as mq:
        mq.publish("t", 1)
        assert exit_code(fork(lambda: None)) == 0
        assert [m.payload for m in mq.read("t")] == [1]
