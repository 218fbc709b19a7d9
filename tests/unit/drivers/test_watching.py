"""Who waits is woken up, on a file of SQLite, and by watches that go wrong in every way."""

import contextlib
import errno
import gc
import logging
import os
import queue
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import closing
from pathlib import Path

import pytest

import rowmq
from rowmq.drivers import sqlite_watch, watching
from rowmq.drivers.postgres import PostgresWatch
from rowmq.drivers.sqlite_watch import SQLiteWatch, data_version
from rowmq.drivers.watching import (
    DEAF_SECONDS,
    LOST_SECONDS,
    Deaf,
    Notifier,
    Watcher,
    pause_seconds,
)
from rowmq.engine import Options, open_engine, store_for
from rowmq.errors import Closed, ConnectionLost
from rowmq.store.postgres import PostgresDialect
from tests.unit.drivers.test_pool import exit_code, fork

SECONDS_MAX = 30.0


class Bell:
    """Can be rung from any thread, and waited for."""

    def __init__(self) -> None:
        self.rings = threading.Semaphore(0)

    def __call__(self) -> None:
        self.rings.release()

    def rung(self, seconds: float = 10.0) -> bool:
        return self.rings.acquire(timeout=seconds)

    def silent(self) -> bool:
        return not self.rings.acquire(blocking=False)


def until(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 10
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.002)
    return condition()


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "rowmq-watch"]


@pytest.fixture(autouse=True)
def no_thread_stays() -> Iterator[None]:
    yield
    assert until(lambda: not threads())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "queue?#% ü.db"  # what a file's URI must escape
    with closing(sqlite3.connect(found)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE t (n integer)")
    return found


@pytest.fixture
def watcher(path: Path) -> Iterator[Watcher]:
    with closing(Watcher(lambda: SQLiteWatch(str(path)))) as made:
        yield made


def commit(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None, timeout=30)) as connection:
        connection.execute("INSERT INTO t VALUES (1)")


def listening(watcher: Watcher, topic: str = "t") -> Bell:
    """A bell that every publish rings from now on."""
    bell, first = Bell(), not watcher.alive
    watcher.add(topic, bell)
    assert bell.rung() if first else bell.silent()
    assert watcher.alive
    return bell


# --- publishers ----------------------------------------------------------------------------------


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_topic_is_told_of_at_once_and_then_not_for_a_while() -> None:
    clock = Clock()
    notifier = Notifier(seconds=0.05, clock=clock)
    assert notifier.due({"t"}) == {"t"}
    clock.now += 0.049
    assert notifier.due({"t"}) == frozenset()
    clock.now += 0.002
    assert notifier.due({"t"}) == {"t"}
    clock.now += 0.049  # counted from the last time it was told, not from the last publish
    assert notifier.due({"t"}) == frozenset()


def test_topics_are_told_of_each_by_itself() -> None:
    clock = Clock()
    notifier = Notifier(seconds=0.05, clock=clock)
    assert notifier.due({"a", "b"}) == {"a", "b"}
    assert notifier.due({"b", "c"}) == {"c"}


def test_a_callers_transaction_keeps_nobody_else_silent() -> None:
    notifier = Notifier(seconds=0.05, clock=Clock())
    assert notifier.due({"t"}, alone=False) == {"t"}
    assert notifier.due({"t"}, alone=True) == {"t"}
    assert notifier.due({"t"}, alone=False) == frozenset()


def test_a_notifier_that_is_off_tells_nothing() -> None:
    assert Notifier(enabled=False).due({"t"}) == frozenset()


def test_a_notifier_remembers_only_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "TOPICS_MAX", 10)
    notifier = Notifier(seconds=0.05, clock=Clock())
    for n in range(100):
        assert notifier.due({str(n)}) == {str(n)}
        assert len(notifier._told) <= 11


@pytest.mark.parametrize(
    ("url", "options", "expected"),
    [
        ("postgresql://h/d", Options(), True),
        ("postgresql://h/d", Options(notify=False), False),
        ("mysql://h/d", Options(), False),
        ("sqlite:///x.db", Options(), False),
    ],
)
def test_only_postgres_is_notified(url: str, options: Options, expected: bool) -> None:
    engine = open_engine(url, options)
    assert engine.notify is expected
    engine.driver.close()


# --- channels ------------------------------------------------------------------------------------


def channel(**options: str) -> str:
    dialect = store_for("postgres", **options).dialect
    assert isinstance(dialect, PostgresDialect)
    return dialect.channel


def test_every_set_of_tables_has_a_channel() -> None:
    longest = "x" * 40
    channels = [
        channel(),
        channel(prefix="other_"),
        channel(schema="other"),
        channel(prefix="b_c", schema="a"),
        channel(prefix="c", schema="a_b"),
        channel(prefix=longest, schema=longest),
    ]
    assert len(set(channels)) == len(channels)
    assert all(name.isidentifier() and name.isascii() and len(name) <= 63 for name in channels)
    assert all(name == name.lower() for name in channels)


def test_the_usual_schema_has_the_same_channel_by_its_name() -> None:
    assert channel() == channel(schema="public")


# --- subscribers, on a file ----------------------------------------------------------------------


def test_every_commit_wakes_everybody(watcher: Watcher, path: Path) -> None:
    bells = [listening(watcher, topic) for topic in ("a", "a", "b")]
    for _ in range(3):
        commit(path)
        assert all(bell.rung() for bell in bells)


def test_what_is_rolled_back_wakes_nobody(watcher: Watcher, path: Path) -> None:
    bell = listening(watcher)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO t VALUES (1)")
        connection.execute("ROLLBACK")
    assert not bell.rung(0.1)


def test_a_publish_wakes_another_client_and_the_same_one(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'queue.db'}"
    with rowmq.connect(url) as mq, rowmq.connect(url) as other:
        bell = listening(mq._watcher)
        for publisher in (mq, other):
            publisher.publish("t", 1)
            assert bell.rung()
    assert not mq._watcher.alive


def test_a_database_in_memory_has_nobody_to_hear() -> None:
    with rowmq.connect("sqlite://") as mq:
        bell = Bell()
        mq._watcher.add("t", bell)
        mq.publish("t", 1)
        assert not mq._watcher.alive
        assert not mq._watcher.busy
        mq._watcher.remove("t", bell)
        assert bell.silent()


def test_no_thread_is_there_before_somebody_waits_or_after(watcher: Watcher, path: Path) -> None:
    assert not watcher.alive
    assert threads() == []
    for _ in range(2):
        first, second = listening(watcher, "a"), listening(watcher, "b")
        assert len(threads()) == 1
        watcher.remove("a", first)
        commit(path)
        assert second.rung()
        watcher.remove("b", second)
        assert not watcher.alive
        assert until(lambda: not threads())


def test_who_is_removed_is_not_woken(watcher: Watcher, path: Path) -> None:
    gone, stays = listening(watcher), listening(watcher)
    watcher.remove("t", gone)
    watcher.remove("t", gone)  # which is no error
    watcher.remove("other", gone)
    commit(path)
    assert stays.rung()
    assert gone.silent()


def test_closing_waits_for_the_thread_and_its_connection(watcher: Watcher, path: Path) -> None:
    listening(watcher)
    watcher.close()
    assert threads() == []
    assert not watcher.alive
    assert not path.with_name(path.name + "-wal").exists()  # the last connection takes it along
    with pytest.raises(Closed):
        watcher.add("t", Bell())
    watcher.close()


def test_closing_also_waits_for_what_is_ending(watcher: Watcher) -> None:
    watcher.remove("t", listening(watcher))
    watcher.close()
    assert threads() == []


def test_a_wake_may_close_the_watcher(watcher: Watcher) -> None:
    bell = Bell()

    def close() -> None:
        watcher.close()
        bell()

    watcher.add("t", close)
    assert bell.rung()


def test_a_wake_that_fails_is_logged_and_keeps_nobody_from_waking(
    watcher: Watcher, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    watcher.add("t", fail)
    bell = listening(watcher)
    commit(path)
    assert bell.rung()
    failed = [record for record in caplog.records if "could not be woken" in record.message]
    assert failed
    assert failed[0].exc_info is not None


def test_a_file_that_is_not_there_is_waited_for_and_not_made(tmp_path: Path) -> None:
    path = tmp_path / "later.db"
    with closing(Watcher(lambda: SQLiteWatch(str(path)))) as watcher:
        bell = Bell()
        watcher.add("t", bell)
        assert not bell.rung(0.05)
        assert not watcher.alive
        assert not path.exists()
        rowmq.connect(f"sqlite:///{path}").close()
        assert bell.rung()
        assert watcher.alive


def test_a_file_that_is_locked_is_looked_at_again(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
        connection.execute("BEGIN EXCLUSIVE")
        with closing(SQLiteWatch(str(path))) as watch:
            watch.open()
            assert watch.wait(0) == ()
            connection.execute("COMMIT")
            assert watch.wait(0) is None
            assert watch.wait(0) == ()


# --- watches that go wrong -----------------------------------------------------------------------


class Scripted:
    """A watch that does what it is told next: to be deaf, to break, or to hear a topic."""

    def __init__(self, script: "queue.SimpleQueue[Exception | str]") -> None:
        self.script = script
        self.closed = False

    def open(self) -> None:
        self.wait(60)

    def wait(self, seconds: float) -> Collection[str]:
        order = self.script.get(timeout=seconds)
        if isinstance(order, Exception):
            raise order
        return {order} if order else ()

    def interrupt(self) -> None:
        self.script.put("")

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def script() -> "queue.SimpleQueue[Exception | str]":
    return queue.SimpleQueue()


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Scripted]:
    monkeypatch.setattr(watching, "LOST_SECONDS", (0.001, 0.01))
    monkeypatch.setattr(watching, "DEAF_SECONDS", (0.001, 0.01))
    return []


@pytest.fixture
def scripted(
    script: "queue.SimpleQueue[Exception | str]", made: list[Scripted]
) -> Iterator[Watcher]:
    def make() -> Scripted:
        made.append(Scripted(script))
        return made[-1]

    with closing(Watcher(make)) as watcher:
        yield watcher
    assert all(watch.closed for watch in made)


@pytest.mark.parametrize("error", [ConnectionLost("gone"), Deaf("quiet"), ZeroDivisionError("!")])
def test_a_watch_that_breaks_wakes_everybody_and_is_opened_again(
    scripted: Watcher,
    script: "queue.SimpleQueue[Exception | str]",
    made: list[Scripted],
    error: Exception,
) -> None:
    states: queue.SimpleQueue[bool] = queue.SimpleQueue()
    scripted.add("t", lambda: states.put(scripted.alive))
    other = Bell()
    scripted.add("other", other)
    script.put("")  # it opens
    assert states.get(timeout=10)
    for _ in range(3):
        script.put(error)
        assert not states.get(timeout=10)  # what came last may have been missed
        script.put("")
        assert states.get(timeout=10)  # and so may what came meanwhile
        script.put("t")
        assert states.get(timeout=10)
    assert [other.rung(0) for _ in range(8)] == [True] * 7 + [False]
    assert len(made) == 4


def test_what_is_deaf_is_told_once(
    scripted: Watcher,
    script: "queue.SimpleQueue[Exception | str]",
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "rowmq")
    bell = Bell()
    for turn in range(2):
        for _ in range(3):
            script.put(Deaf("nothing is heard"))
        scripted.add("t", bell)
        assert until(script.empty)
        assert not scripted.alive
        assert until(lambda: len(caplog.records) == 1)
        scripted.remove("t", bell)
        assert until(lambda: not threads()), turn
        while not script.empty():  # what interrupted it
            script.get()
    assert [record.levelname for record in caplog.records] == ["INFO"]
    assert "nothing is heard" in caplog.text
    assert bell.silent()


def test_what_is_lost_is_told_once_until_it_is_back(
    scripted: Watcher,
    script: "queue.SimpleQueue[Exception | str]",
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "rowmq")
    bell = Bell()
    scripted.add("t", bell)
    for _ in range(2):
        script.put("")
        assert bell.rung()
        for _ in range(4):
            script.put(ConnectionLost("gone"))
        assert bell.rung()
        assert until(script.empty)
    script.put("")
    assert bell.rung()
    assert [record.levelname for record in caplog.records] == ["INFO"] * 4
    assert len({record.message for record in caplog.records}) == 1


def test_what_nobody_foresaw_is_logged_with_its_traceback(
    scripted: Watcher,
    script: "queue.SimpleQueue[Exception | str]",
    caplog: pytest.LogCaptureFixture,
) -> None:
    bell = Bell()
    scripted.add("t", bell)
    script.put(ZeroDivisionError("surprise"))
    script.put("")
    assert bell.rung()
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("rowmq", "ERROR")
    assert record.exc_info is not None
    assert record.exc_info[0] is ZeroDivisionError


def test_pauses_grow_and_are_long_for_the_deaf() -> None:
    lost, deaf = ConnectionLost("gone"), Deaf("quiet")
    for _ in range(50):
        assert pause_seconds(lost, 0) <= LOST_SECONDS[0]
        assert pause_seconds(deaf, 0) <= LOST_SECONDS[0]  # it heard until now
        assert pause_seconds(deaf, 1) >= DEAF_SECONDS[0]
        assert LOST_SECONDS[1] / 2 <= pause_seconds(lost, 100) <= LOST_SECONDS[1]
        assert DEAF_SECONDS[1] / 2 <= pause_seconds(deaf, 100) <= DEAF_SECONDS[1]
    assert len({pause_seconds(lost, 3) for _ in range(50)}) > 40


def test_a_server_that_is_not_there_is_reported_and_closing_does_not_wait(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "rowmq")
    url = "postgresql://user:hunter2@127.0.0.1:1/db"
    with closing(Watcher(lambda: PostgresWatch(url, "c", connect_timeout=5))) as watcher:
        watcher.add("t", Bell())
        assert until(lambda: len(caplog.records) == 1)
        assert not watcher.alive
        started = time.monotonic()
    assert time.monotonic() - started < 1
    assert "is it running" in caplog.text
    assert "hunter2" not in caplog.text


def test_without_its_driver_a_watch_is_deaf(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with closing(PostgresWatch("postgresql://h/d", "c", connect_timeout=5)) as watch:
        with pytest.raises(Deaf, match="psycopg"):
            watch.open()
        watch.interrupt()
    watch.interrupt()


# --- forks ---------------------------------------------------------------------------------------


def test_a_child_begins_without_those_who_wait_in_the_parent(watcher: Watcher, path: Path) -> None:
    parents = listening(watcher)

    def work() -> None:
        assert not watcher.alive
        assert not watcher.busy
        assert threads() == []
        bell = listening(watcher)
        commit(path)
        assert bell.rung()
        assert parents.silent()
        watcher.remove("t", parents)
        watcher.close()
        gc.collect()

    for _ in range(3):
        while not parents.silent():
            pass
        assert exit_code(fork(work)) == 0
        assert parents.rung()  # the child's commit
        assert watcher.alive


def test_no_connection_is_open_during_a_fork(path: Path) -> None:
    with closing(SQLiteWatch(str(path))) as watch:
        watch.open()
        assert watch.wait(0) == ()

        def is_open() -> bool:
            file = path.stat()
            for descriptor in range(256):
                with contextlib.suppress(OSError):
                    if os.path.samestat(os.fstat(descriptor), file):
                        return True
            return False

        def work() -> None:
            assert not is_open()

        assert is_open()
        assert exit_code(fork(work)) == 0
        commit(path)
        assert watch.wait(0) is None
        assert watch.wait(0) == ()


def test_a_commit_during_a_fork_is_not_missed(path: Path) -> None:
    with closing(SQLiteWatch(str(path))) as watch:
        watch.open()
        watch.suspend()
        commit(path)
        watch.resume()
        assert watch.wait(0) is None


def test_a_fork_keeps_the_thread_from_opening_a_connection(watcher: Watcher) -> None:
    listening(watcher)
    assert watcher._listener is not None
    watch = watcher._listener._watch
    assert isinstance(watch, SQLiteWatch)
    watch.suspend()
    assert watch._connection is None
    assert not until_changed(lambda: watch._connection is not None, 0.05)
    watch.resume()
    assert until(lambda: watch._connection is not None)


def until_changed(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.002)
    return condition()


def test_what_a_child_publishes_outlives_the_parents_watcher(tmp_path: Path) -> None:
    """A connection that was open during the fork would, closing, drop the child's log."""
    path = tmp_path / "queue.db"
    mq = rowmq.connect(f"sqlite:///{path}")
    mq.publish("t", "before")
    listening(mq._watcher)
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


# --- when SQLite's watch looks --------------------------------------------------------------------


def told_of(watch: SQLiteWatch) -> bool:
    """Whether it relies on being told of writes."""
    return watch._events is not None


def test_who_is_told_of_writes_looks_at_once(path: Path) -> None:
    with closing(SQLiteWatch(str(path))) as watch:
        watch.open()
        assert told_of(watch)
        committing = threading.Thread(target=commit, args=(path,))
        committing.start()
        while watch.wait(SECONDS_MAX) is not None:
            pass
        committing.join()
        assert told_of(watch)


def test_who_is_told_of_writes_looks_seldom_while_there_are_none(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0

    def looked(connection: sqlite3.Connection) -> int:
        nonlocal looks
        looks += 1
        return data_version(connection)

    with closing(SQLiteWatch(str(path))) as watch:
        watch.open()
        monkeypatch.setattr(sqlite_watch, "data_version", looked)
        deadline = time.monotonic() + 0.5
        while time.monotonic() < deadline:
            assert watch.wait(SECONDS_MAX) == ()
        assert looks <= 0.5 / sqlite_watch.CALM_SECONDS + 1


def test_writes_without_a_commit_are_not_looked_at_all_the_time(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a long transaction makes them, whose pages do not fit into memory."""
    rested: list[float] = []
    with closing(SQLiteWatch(str(path))) as watch:
        watch.open()
        log = path.with_name(f"{path.name}-wal")
        monkeypatch.setattr(watch._interrupted, "wait", rested.append)
        for _ in range(100):
            with log.open("ab") as file:
                file.write(b"\0")
            watch.wait(SECONDS_MAX)
    looks = len(sqlite_watch.FLUSH_PAUSES)
    assert set(rested[looks:]) == {sqlite_watch.LOOK_SECONDS}


def test_a_commit_that_nobody_told_of_is_found(path: Path) -> None:
    with closing(SQLiteWatch(str(path))) as watch:
        watch.open()
        for _ in range(sqlite_watch.SURPRISES_MAX):
            assert told_of(watch)
            deafen(watch, path)
            while watch.wait(SECONDS_MAX) is not None:
                pass
            while watch.wait(SECONDS_MAX) is None or watch._pauses:
                pass
        assert not told_of(watch)  # it is better not to rely on it
        commit(path)
        while watch.wait(SECONDS_MAX) is not None:
            pass


def deafen(watch: SQLiteWatch, path: Path) -> None:
    """Commit, and have nobody be told of it."""
    commit(path)
    assert watch._events is not None
    assert watch._events.wait(SECONDS_MAX)


def test_who_cannot_be_told_of_writes_looks_all_the_time(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object) -> None:
        raise OSError(errno.EMFILE, "too many")

    monkeypatch.setattr(sqlite_watch, "FileEvents", refuse)
    with closing(SQLiteWatch(str(path))) as watch:
        watch.open()
        assert not told_of(watch)
        commit(path)
        while watch.wait(SECONDS_MAX) is not None:
            pass


def test_forks_are_no_reason_not_to_rely_on_being_told(path: Path) -> None:
    with closing(SQLiteWatch(str(path))) as watch:
        watch.open()
        for _ in range(2 * sqlite_watch.SURPRISES_MAX):
            watch.suspend()
            commit(path)
            watch.resume()
            while watch.wait(0) is not None:
                pass
            while watch.wait(0) is None or watch._pauses:
                pass
        assert told_of(watch)


def test_a_forked_child_keeps_nothing_of_what_its_parent_is_told_by(path: Path) -> None:
    def heard() -> list[str]:
        links = (descriptor for descriptor in Path("/proc/self/fd").iterdir())
        targets = []
        for link in links:
            with contextlib.suppress(OSError):
                targets.append(str(link.readlink()))
        return [target for target in targets if "inotify" in target]

    def work() -> None:
        assert heard() == []

    with closing(SQLiteWatch(str(path))) as watch:
        watch.open()
        assert len(heard()) == 1
        assert exit_code(fork(work)) == 0
        assert len(heard()) == 1
