"""What the errors of many drivers mean: by code, behind wrappers, and without any code."""

import asyncio
import sqlite3
from collections.abc import Callable
from typing import Any

import asyncmy.errors
import asyncpg
import django.db.utils
import mysql.connector.errors
import psycopg
import pymysql
import pytest
import sqlalchemy.exc

from rowmq.drivers import faults
from rowmq.drivers.faults import mysql_fault, postgres_fault, sqlite_fault
from rowmq.errors import (
    AuthenticationFailed,
    ConnectionLost,
    DatabaseError,
    DatabaseUnreachable,
    Deadlock,
    Locked,
    MissingTable,
    NotADatabase,
    SerializationFailure,
    StatementTooLarge,
    TransientError,
    UniqueViolation,
)

Fault = Callable[[Exception], Exception]

POSTGRES: dict[str, type[Exception]] = {
    "23505": UniqueViolation,
    "25006": ConnectionLost,
    "25P02": DatabaseError,
    "25P03": ConnectionLost,
    "25P04": ConnectionLost,
    "28000": AuthenticationFailed,
    "28P01": AuthenticationFailed,
    "3D000": DatabaseUnreachable,
    "3F000": MissingTable,
    "40001": SerializationFailure,
    "40P01": Deadlock,
    "42P01": MissingTable,
    "53300": DatabaseUnreachable,
    "55P03": Locked,
    "57P01": ConnectionLost,
    "57P02": ConnectionLost,
    "57P03": DatabaseUnreachable,
    "57P05": ConnectionLost,
}

MYSQL: dict[int, type[Exception]] = {
    1020: SerializationFailure,
    1040: DatabaseUnreachable,
    1044: AuthenticationFailed,
    1045: AuthenticationFailed,
    1049: DatabaseUnreachable,
    1053: ConnectionLost,
    1062: UniqueViolation,
    1146: MissingTable,
    1153: StatementTooLarge,
    1203: DatabaseUnreachable,
    1205: Locked,
    1213: Deadlock,
    1290: ConnectionLost,
    1698: AuthenticationFailed,
    1836: ConnectionLost,
    1927: ConnectionLost,
    2002: DatabaseUnreachable,
    2003: DatabaseUnreachable,
    2005: DatabaseUnreachable,
    2006: ConnectionLost,
    2013: ConnectionLost,
    2055: ConnectionLost,
    4031: ConnectionLost,
}

SQLITE: dict[int, type[Exception]] = {
    sqlite3.SQLITE_BUSY: Locked,
    sqlite3.SQLITE_LOCKED: Locked,
    sqlite3.SQLITE_PROTOCOL: Locked,
    sqlite3.SQLITE_CANTOPEN: DatabaseUnreachable,
    sqlite3.SQLITE_NOTADB: NotADatabase,
    sqlite3.SQLITE_FULL: DatabaseError,
    sqlite3.SQLITE_READONLY: DatabaseError,
}

UNIQUE = {
    sqlite3.SQLITE_CONSTRAINT_UNIQUE: UniqueViolation,
    sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY: UniqueViolation,
}


class Psycopg2Error(Exception):
    """psycopg2 has its SQLSTATE under another name, which only its C code can set."""

    __module__ = "psycopg2.errors"

    def __init__(self, pgcode: str | None, text: str = "said the server") -> None:
        super().__init__(text)
        self.pgcode = pgcode


def psycopg_error(state: str, text: str = "said the server") -> psycopg.Error:
    error = psycopg.OperationalError(text)
    error.sqlstate = state
    return error


def asyncpg_error(state: str, text: str = "said the server") -> asyncpg.PostgresError:
    return asyncpg.PostgresError.new({"C": state, "M": text, "S": "ERROR", "V": "ERROR"})


def sqlite_error(code: int, text: str = "said the library") -> sqlite3.Error:
    error = sqlite3.OperationalError(text)
    error.sqlite_errorcode = code
    return error


def alchemy_wrapped(error: Exception) -> Exception:
    """As SQLAlchemy wraps a sync driver's error."""
    return sqlalchemy.exc.DBAPIError("INSERT INTO t", {"payload": "the secret"}, error)


def alchemy_wrapped_twice(error: Exception) -> Exception:
    """As SQLAlchemy wraps an async driver's error: behind an adapter's own."""
    adapted = Exception("an adapter's error")
    adapted.__cause__ = error
    return alchemy_wrapped(adapted)


def django_wrapped(error: Exception) -> Exception:
    wrapped: Exception = django.db.utils.OperationalError(*error.args)
    wrapped.__cause__ = error
    return wrapped


# --- codes ---------------------------------------------------------------------------------------


def test_every_code_is_expected_here() -> None:
    assert set(POSTGRES) == set(faults._POSTGRES)
    assert set(MYSQL) == set(faults._MYSQL)
    assert set(SQLITE) == set(faults._SQLITE)


def check(fault: Fault, error: Exception, expected: type[Exception]) -> None:
    meaning = fault(error)
    assert type(meaning) is expected
    assert meaning.__cause__ is error
    assert "said the" in str(meaning)
    assert not str(meaning).startswith("said the")  # what it means comes first


@pytest.mark.parametrize("make", [psycopg_error, asyncpg_error, Psycopg2Error])
@pytest.mark.parametrize(("state", "expected"), POSTGRES.items())
def test_a_sqlstate_has_a_meaning(
    make: Callable[[str], Exception], state: str, expected: type[Exception]
) -> None:
    check(postgres_fault, make(state), expected)


@pytest.mark.parametrize("state", ["08000", "08003", "08006", "08P01"])
def test_every_connection_exception_is_a_lost_connection(state: str) -> None:
    check(postgres_fault, psycopg_error(state), ConnectionLost)
    check(postgres_fault, asyncpg_error(state), ConnectionLost)


def pymysql_error(number: int) -> Exception:
    return pymysql.err.OperationalError(number, "said the server")


def asyncmy_error(number: int) -> Exception:
    error: Exception = asyncmy.errors.OperationalError(number, "said the server")
    return error


def connector_error(number: int) -> Exception:
    return mysql.connector.errors.Error("said the server", errno=number)


@pytest.mark.parametrize("make", [pymysql_error, asyncmy_error, connector_error])
@pytest.mark.parametrize(("number", "expected"), MYSQL.items())
def test_an_error_number_has_a_meaning(
    make: Callable[[int], Exception], number: int, expected: type[Exception]
) -> None:
    check(mysql_fault, make(number), expected)


@pytest.mark.parametrize(("code", "expected"), [*SQLITE.items(), *UNIQUE.items()])
def test_a_result_code_has_a_meaning(code: int, expected: type[Exception]) -> None:
    check(sqlite_fault, sqlite_error(code), expected)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (sqlite3.SQLITE_BUSY_SNAPSHOT, Locked),
        (sqlite3.SQLITE_BUSY_TIMEOUT, Locked),
        (sqlite3.SQLITE_LOCKED_SHAREDCACHE, Locked),
        (sqlite3.SQLITE_CANTOPEN_ISDIR, DatabaseUnreachable),
        (sqlite3.SQLITE_READONLY_DIRECTORY, DatabaseError),
        (sqlite3.SQLITE_CONSTRAINT_NOTNULL, DatabaseError),
    ],
)
def test_an_extended_code_means_what_its_family_means(code: int, expected: type[Exception]) -> None:
    check(sqlite_fault, sqlite_error(code), expected)


def test_real_errors_of_sqlite() -> None:
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE t (id integer PRIMARY KEY, name text UNIQUE)")
    connection.execute("INSERT INTO t VALUES (1, 'a')")
    for sql, expected in [
        ("INSERT INTO t VALUES (1, 'b')", UniqueViolation),
        ("INSERT INTO t VALUES (2, 'a')", UniqueViolation),
        ("SELECT * FROM nowhere", MissingTable),
        ("SELECT nothing FROM t", DatabaseError),
        ("nonsense", DatabaseError),
    ]:
        with pytest.raises(sqlite3.Error) as raised:
            connection.execute(sql)
        assert type(sqlite_fault(raised.value)) is expected
    connection.close()


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (postgres_fault, psycopg_error("22012")),
        (postgres_fault, asyncpg_error("42601")),
        (postgres_fault, psycopg.ProgrammingError("no code at all")),
        (mysql_fault, pymysql_error(1064)),
        (mysql_fault, pymysql.err.ProgrammingError("no number at all")),
        (sqlite_fault, sqlite_error(sqlite3.SQLITE_ERROR)),
        (sqlite_fault, sqlite3.ProgrammingError("no code at all")),
    ],
)
def test_an_unknown_code_is_a_plain_database_error(fault: Fault, error: Exception) -> None:
    meaning = fault(error)
    assert type(meaning) is DatabaseError
    assert not isinstance(meaning, TransientError)
    assert meaning.__cause__ is error


# --- wrappers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrap", [alchemy_wrapped, alchemy_wrapped_twice, django_wrapped])
@pytest.mark.parametrize(
    ("fault", "error", "expected"),
    [
        (postgres_fault, psycopg_error("40P01"), Deadlock),
        (postgres_fault, asyncpg_error("23505"), UniqueViolation),
        (postgres_fault, Psycopg2Error("42P01"), MissingTable),
        (postgres_fault, asyncpg.InterfaceError("connection is closed"), ConnectionLost),
        (mysql_fault, pymysql_error(1213), Deadlock),
        (mysql_fault, asyncmy_error(2013), ConnectionLost),
        (sqlite_fault, sqlite_error(sqlite3.SQLITE_BUSY), Locked),
        (sqlite_fault, sqlite_error(1, "no such table: t"), MissingTable),
    ],
)
def test_a_wrapped_error_means_what_it_wraps(
    wrap: Callable[[Exception], Exception],
    fault: Fault,
    error: Exception,
    expected: type[Exception],
) -> None:
    wrapped = wrap(error)
    meaning = fault(wrapped)
    assert type(meaning) is expected
    assert meaning.__cause__ is wrapped


def test_a_circle_of_causes_is_left() -> None:
    first, second = ValueError("a"), ValueError("b")
    first.__cause__, second.__cause__ = second, first
    for fault in (postgres_fault, mysql_fault, sqlite_fault):
        assert fault(first) is first


# --- without a code ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (postgres_fault, psycopg.OperationalError("the connection is closed")),
        (postgres_fault, psycopg.InterfaceError("the connection is closed")),
        (postgres_fault, asyncpg.InterfaceError("connection is closed")),
        (postgres_fault, asyncpg.ConnectionDoesNotExistError("closed in the middle")),
        (postgres_fault, ConnectionResetError("reset by peer")),
        (postgres_fault, BrokenPipeError(32, "broken pipe")),
        (postgres_fault, OSError(113, "no route to host")),
        (postgres_fault, TimeoutError(110, "nothing was acknowledged")),
        (postgres_fault, psycopg.OperationalError("consuming input failed: timed out")),
        (mysql_fault, pymysql.err.InterfaceError(0, "")),
        (mysql_fault, pymysql.err.OperationalError("no number")),
        (mysql_fault, asyncio.IncompleteReadError(b"", 4)),
        (mysql_fault, ConnectionResetError(104, "reset by peer")),
        (mysql_fault, OSError(113, "no route to host")),
        (mysql_fault, TimeoutError(110, "nothing was acknowledged")),
    ],
    ids=lambda value: f"{type(value).__module__}.{type(value).__name__}",
)
def test_a_connection_is_lost_without_a_code(fault: Fault, error: Exception) -> None:
    meaning = fault(error)
    assert type(meaning) is ConnectionLost
    assert meaning.__cause__ is error


@pytest.mark.parametrize("fault", [postgres_fault, mysql_fault, sqlite_fault])
@pytest.mark.parametrize(
    "error",
    [ZeroDivisionError("x"), ValueError(), KeyError("x"), TypeError("x"), UniqueViolation("x")],
    ids=lambda error: type(error).__name__,
)
def test_what_is_no_database_error_is_left_as_it_is(fault: Fault, error: Exception) -> None:
    assert fault(error) is error


# --- what is told --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (postgres_fault, psycopg_error("23505", "duplicate key\nDETAIL: Key (id)=(the secret)")),
        (postgres_fault, alchemy_wrapped(psycopg_error("40P01"))),
        (postgres_fault, alchemy_wrapped_twice(asyncpg_error("22012"))),
        (mysql_fault, alchemy_wrapped(pymysql_error(1213))),
        (sqlite_fault, alchemy_wrapped(sqlite_error(sqlite3.SQLITE_BUSY))),
    ],
)
def test_what_was_written_is_not_told(fault: Fault, error: Exception) -> None:
    """Drivers and wrappers say on later lines which values a statement had."""
    assert "the secret" in str(error)
    meaning = fault(error)
    assert "the secret" not in str(meaning)
    assert "\n" not in str(meaning)


@pytest.mark.parametrize("fault", [postgres_fault, mysql_fault])
def test_an_error_without_a_text_is_told_by_its_name(fault: Fault) -> None:
    error: Any = ConnectionResetError()
    assert "ConnectionResetError" in str(fault(error))
