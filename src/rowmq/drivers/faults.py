"""What a driver's error means, whichever driver it came from.

A fault is recognised by what all drivers of a database share: the SQLSTATE on PostgreSQL, the
error number on MySQL and MariaDB, the result code on SQLite. SQLAlchemy and Django wrap errors, so
the chain of causes is searched. What is not recognised becomes a plain `DatabaseError`, and what
is no database error at all is left as it is.
"""

import sqlite3
from collections.abc import Callable, Iterator

from rowmq.errors import (
    AuthenticationFailed,
    ConnectionLost,
    DatabaseError,
    DatabaseUnreachable,
    Deadlock,
    Locked,
    MissingTable,
    NotADatabase,
    RowMQError,
    SerializationFailure,
    StatementTooLarge,
    UniqueViolation,
)
from rowmq.quoting import visible

__all__ = ["Translate", "mysql_fault", "postgres_fault", "sqlite_fault"]

Translate = Callable[[Exception], Exception]
"""From a driver's error to RowMQ's, which keeps it as its cause."""

_NO_TABLE = "a table is missing"
_AUTH = "the server refused the user or password; check the URL"
_LOST = "the connection to the database was lost"
_DEADLOCK = "the database ended this transaction to resolve a deadlock"
_UNORDERED = "the database could not order this transaction among others"
_LOCKED = (
    "another transaction holds what this one needs, and has not ended in time; if it is one of "
    "your own, write inside it (tx.publish, tx.queue(name).put, or connection=), or end it first"
)
_UNIQUE = "a row with this key exists"
_UNREACHABLE = "no connection to the server; is it running, and are host and port right?"
_READ_ONLY = "the server is read-only; after a failover, the next connection finds the new primary"

_Table = dict[str, tuple[type[RowMQError], str]]

_POSTGRES: _Table = {
    "23505": (UniqueViolation, _UNIQUE),
    "25006": (ConnectionLost, _READ_ONLY),
    "25P02": (DatabaseError, "an earlier statement of this transaction failed; roll it back"),
    "25P03": (ConnectionLost, _LOST),
    "25P04": (ConnectionLost, _LOST),
    "28000": (AuthenticationFailed, _AUTH),
    "28P01": (AuthenticationFailed, _AUTH),
    "3D000": (DatabaseUnreachable, "the database does not exist on this server; create it"),
    "3F000": (MissingTable, _NO_TABLE),
    "40001": (SerializationFailure, _UNORDERED),
    "40P01": (Deadlock, _DEADLOCK),
    "42P01": (MissingTable, _NO_TABLE),
    "53300": (DatabaseUnreachable, "the server has no connection left; lower pool_size"),
    "55P03": (Locked, _LOCKED),
    "57P01": (ConnectionLost, _LOST),
    "57P02": (ConnectionLost, _LOST),
    "57P03": (DatabaseUnreachable, "the server is starting or stopping"),
    "57P05": (ConnectionLost, _LOST),
}

_MYSQL: dict[int, tuple[type[RowMQError], str]] = {
    1020: (SerializationFailure, _UNORDERED),
    1040: (DatabaseUnreachable, "the server has no connection left; lower pool_size"),
    1044: (AuthenticationFailed, "this user may not use this database; check the URL"),
    1045: (AuthenticationFailed, _AUTH),
    1049: (DatabaseUnreachable, "the database does not exist on this server; create it"),
    1053: (ConnectionLost, _LOST),
    1062: (UniqueViolation, _UNIQUE),
    1146: (MissingTable, _NO_TABLE),
    1153: (StatementTooLarge, "raise the server's max_allowed_packet"),
    1203: (DatabaseUnreachable, "this user has no connection left; lower pool_size"),
    1205: (Locked, _LOCKED),
    1213: (Deadlock, _DEADLOCK),
    1290: (ConnectionLost, _READ_ONLY),
    1698: (AuthenticationFailed, _AUTH),
    1836: (ConnectionLost, _READ_ONLY),
    1927: (ConnectionLost, _LOST),
    2002: (DatabaseUnreachable, _UNREACHABLE),
    2003: (DatabaseUnreachable, _UNREACHABLE),
    2005: (DatabaseUnreachable, _UNREACHABLE),
    2006: (ConnectionLost, _LOST),
    2013: (ConnectionLost, _LOST),
    2055: (ConnectionLost, _LOST),
    4031: (ConnectionLost, _LOST),
}

_SQLITE: dict[int, tuple[type[RowMQError], str]] = {
    sqlite3.SQLITE_BUSY: (Locked, _LOCKED),
    sqlite3.SQLITE_LOCKED: (Locked, _LOCKED),
    sqlite3.SQLITE_PROTOCOL: (Locked, _LOCKED),
    sqlite3.SQLITE_CANTOPEN: (
        DatabaseUnreachable,
        "the file cannot be opened; does its directory exist, and may this user write there?",
    ),
    sqlite3.SQLITE_NOTADB: (
        NotADatabase,
        "the file is not an SQLite database; choose another path",
    ),
    sqlite3.SQLITE_FULL: (DatabaseError, "the disk is full"),
    sqlite3.SQLITE_READONLY: (DatabaseError, "the file or its directory is read-only"),
}

# Python drivers that lose a connection often say so only by the type of their error.
_LOST_NAMES = {
    "ConnectionDoesNotExistError",
    "ConnectionResetError",
    "BrokenPipeError",
    "IncompleteReadError",
}
_LOST_WITHOUT_CODE = {"InterfaceError", "InternalClientError", "OperationalError"}


def postgres_fault(error: Exception) -> Exception:
    """The meaning of an error of psycopg, psycopg2 or asyncpg."""
    for cause in _chain(error):
        state = getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)
        if isinstance(state, str):
            known = _POSTGRES.get(state)
            if known is None and state.startswith("08"):
                known = ConnectionLost, _LOST
            return _fault(error, known)
    if _is_lost(error, ("psycopg", "psycopg2", "asyncpg")):
        return _fault(error, (ConnectionLost, _LOST))
    return _foreign(error, ("psycopg", "psycopg2", "asyncpg", "sqlalchemy", "django"))


def mysql_fault(error: Exception) -> Exception:
    """The meaning of an error of PyMySQL, mysqlclient, asyncmy, aiomysql or mysql-connector."""
    for cause in _chain(error):
        number = getattr(cause, "errno", None) or (cause.args[0] if cause.args else None)
        if isinstance(number, int) and not isinstance(cause, OSError) and number > 0:
            return _fault(error, _MYSQL.get(number))
    if _is_lost(error, ("pymysql", "MySQLdb", "asyncmy", "aiomysql", "mysql")):
        return _fault(error, (ConnectionLost, _LOST))
    return _foreign(
        error,
        ("pymysql", "MySQLdb", "asyncmy", "aiomysql", "mysql", "mariadb", "sqlalchemy", "django"),
    )


def sqlite_fault(error: Exception) -> Exception:
    """The meaning of an error of sqlite3, also behind aiosqlite."""
    for cause in _chain(error):
        if not isinstance(cause, sqlite3.Error):
            continue
        code = getattr(cause, "sqlite_errorcode", 0)
        if code in (sqlite3.SQLITE_CONSTRAINT_UNIQUE, sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY):
            return _fault(error, (UniqueViolation, _UNIQUE))
        if str(cause).startswith("no such table"):
            return _fault(error, (MissingTable, _NO_TABLE))
        return _fault(error, _SQLITE.get(code & 0xFF))
    return error


def _fault(error: Exception, known: tuple[type[RowMQError], str] | None) -> Exception:
    kind, meaning = known or (DatabaseError, "the database refused a statement")
    fault = kind(f"{meaning} ({_first_line(error)})")
    fault.__cause__ = error
    return fault


def _foreign(error: Exception, packages: tuple[str, ...]) -> Exception:
    if type(error).__module__.split(".")[0] in packages:
        return _fault(error, None)
    # Not any OSError: a bare TimeoutError is a signal handler's, or a caller's own timeout.
    if isinstance(error, OSError) and (error.errno or isinstance(error, ConnectionError)):
        return _fault(error, (ConnectionLost, _LOST))
    return error


def _is_lost(error: Exception, packages: tuple[str, ...]) -> bool:
    """Whether a driver says, by an error without a code, that there is no connection."""
    for cause in _chain(error):
        names = {base.__name__ for base in type(cause).__mro__}
        package = type(cause).__module__.split(".")[0]
        if names & _LOST_NAMES or (names & _LOST_WITHOUT_CODE and package in packages):
            return True
    return False


def _chain(error: Exception) -> Iterator[BaseException]:
    """The error, what a wrapper says it wraps, and what caused it."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = getattr(cause, "orig", None) or cause.__cause__


def _first_line(error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    return visible(text.splitlines()[0])
