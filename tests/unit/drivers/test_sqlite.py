"""A session of SQLite's: for how long it is relaxed."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from rowmq.drivers.sqlite import NORMAL, SQLiteSession, open_session

OFF, FULL = 0, 2


@pytest.fixture
def session(tmp_path: Path) -> Iterator[SQLiteSession]:
    opened = open_session(str(tmp_path / "q.db"), 0.01)
    opened.connection.execute("CREATE TABLE t (n integer CHECK (n < 9))")
    yield opened
    opened.close()


def level(session: SQLiteSession) -> int:
    ((found,),) = session.connection.execute("PRAGMA synchronous").fetchall()
    return int(found)


def test_a_transaction_is_relaxed_until_its_commit(session: SQLiteSession) -> None:
    session.begin_relaxed()
    session.connection.execute("INSERT INTO t VALUES (1)")
    assert level(session) == NORMAL
    session.commit()
    assert level(session) == FULL


def test_a_transaction_is_relaxed_until_its_rollback(session: SQLiteSession) -> None:
    session.begin_relaxed()
    with pytest.raises(sqlite3.IntegrityError):
        session.connection.execute("INSERT INTO t VALUES (9)")
    session.rollback()
    assert level(session) == FULL


def test_one_that_could_not_begin_is_relaxed_until_its_rollback(
    session: SQLiteSession, tmp_path: Path
) -> None:
    with closing(sqlite3.connect(tmp_path / "q.db", isolation_level=None)) as rival:
        rival.execute("BEGIN IMMEDIATE")
        with pytest.raises(sqlite3.OperationalError):
            session.begin_relaxed()
        session.rollback()
    assert level(session) == FULL


def test_what_waits_for_nothing_anyway_stays_so(session: SQLiteSession) -> None:
    session.connection.execute("PRAGMA synchronous = OFF")
    session.begin_relaxed()
    assert level(session) == OFF
    session.commit()
    assert level(session) == OFF


def test_without_a_write_ahead_log_nothing_is_relaxed(session: SQLiteSession) -> None:
    assert session.logged
    session.connection.execute("PRAGMA journal_mode = DELETE")
    plain = SQLiteSession(session.connection)
    plain.begin_relaxed()
    assert level(plain) == FULL
    plain.commit()
