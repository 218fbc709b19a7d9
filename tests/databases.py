"""The databases that tests run on: real ones, started once a session and emptied between tests.

SQLite gets a new file for every test. PostgreSQL and MariaDB are started by `tests.servers`, unless
an environment variable names one that runs already. A MySQL is used where `ROWMQ_TEST_MYSQL_URL`
names one. A server that cannot be had is an error: no test is ever skipped for want of it.

Tests that run in several processes share nothing: each process starts servers of its own, and makes
a database of its own on a server that is named.
"""

import os
import secrets
import shutil
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import psycopg
import pymysql

import rowmq
from rowmq.store.dialect import TABLES
from tests.servers import MariaDBServer, PostgresServer

Rows = list[tuple[Any, ...]]

TO_CLEAN = [f"rowmq_{table}" for table in TABLES if table != "migrations"]

SMALL_BYTES_MAX = 2**18

NAMES = ["sqlite", "postgres", "mariadb"]
if os.environ.get("ROWMQ_TEST_MYSQL_URL"):
    NAMES.append("mysql")


class Database:
    """One database under test, and a way to look into it that does not go through RowMQ."""

    name: str
    dialect: str
    version_sql: str

    def __init__(self, url: str) -> None:
        self.url = url

    @property
    def version(self) -> str:
        """Its number, without what its packagers add."""
        ((told,),) = self.execute(self.version_sql)
        return str(told).split()[0].split("-")[0]

    def execute(self, sql: str, params: Sequence[Any] = ()) -> Rows:
        """Run a statement on a connection that nobody else uses, committed."""
        raise NotImplementedError

    def create(self) -> "Database":
        """Another, empty database of the same kind."""
        raise NotImplementedError

    def drop(self) -> None:
        """Let go of a database that `create` made."""

    def keep_connection(self) -> None:
        """Be asked often: until `drop`, keep a connection where a new one takes long."""

    def clean(self) -> None:
        """Empty every table of RowMQ's."""
        raise NotImplementedError

    def analyze(self) -> None:
        """Have the database look at how much there is."""
        self.execute("ANALYZE")

    def can_be_written(self) -> bool:
        """Whether nobody who stands still keeps all others from writing."""
        return True


class SQLiteDatabase(Database):
    name = dialect = "sqlite"
    version_sql = "SELECT sqlite_version()"

    def __init__(self, folder: Path) -> None:
        self.path = folder / f"{secrets.token_hex(4)}.db"
        super().__init__(f"sqlite:///{self.path}")

    def execute(self, sql: str, params: Sequence[Any] = ()) -> Rows:
        with closing(sqlite3.connect(self.path, isolation_level=None, timeout=30)) as connection:
            return connection.execute(sql, params).fetchall()

    def can_be_written(self) -> bool:
        with closing(sqlite3.connect(self.path, isolation_level=None, timeout=0.2)) as connection:
            try:
                connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                return False
            connection.execute("ROLLBACK")
            return True

    def create(self) -> "SQLiteDatabase":
        return SQLiteDatabase(self.path.parent)

    def copy(self) -> "SQLiteDatabase":
        """Another one with the same content; nobody may be connected to this one."""
        created = self.create()
        shutil.copyfile(self.path, created.path)
        return created

    def delete(self) -> None:
        """Do away with its files; nobody may be connected any more."""
        for suffix in ("", "-wal", "-shm"):
            self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)


class PostgresDatabase(Database):
    name = dialect = "postgres"
    version_sql = "SELECT current_setting('server_version')"

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.keeps = 0
        self.kept: list[psycopg.Connection[Any]] = []

    def keep_connection(self) -> None:
        self.keeps = 1  # no more: a test that ends all other sessions asks for that on this one

    @contextmanager
    def connection(self) -> Iterator[psycopg.Connection[Any]]:
        try:
            connection = self.kept.pop()
        except IndexError:
            # Nothing is prepared, since tests change the tables that plans are made for.
            connection = psycopg.connect(self.url, autocommit=True, prepare_threshold=None)
        with ExitStack() as stack:
            stack.callback(connection.close)
            yield connection
            if len(self.kept) < self.keeps:
                stack.pop_all()
                self.kept.append(connection)

    def execute(self, sql: str, params: Sequence[Any] = ()) -> Rows:
        with self.connection() as connection:
            cursor = connection.execute(sql, params or None)
            return cursor.fetchall() if cursor.description else []

    def clean(self) -> None:
        """To truncate takes long, also what is nearly empty: only what has grown is truncated."""
        sizes = ", ".join(f"pg_relation_size('{table}')" for table in TO_CLEAN)
        (row,) = self.execute(f"SELECT {sizes}")
        found = list(zip(TO_CLEAN, row, strict=True))
        grown = ", ".join(table for table, size in found if size > SMALL_BYTES_MAX)
        used = [f"DELETE FROM {table}" for table, size in found if 0 < size <= SMALL_BYTES_MAX]
        self.execute("; ".join([*([f"TRUNCATE {grown}"] if grown else []), *used]))

    def create(self) -> "PostgresDatabase":
        name = f"rowmq_{secrets.token_hex(6)}"
        self.execute(f"CREATE DATABASE {name}")
        return PostgresDatabase(urlsplit(self.url)._replace(path=f"/{name}").geturl())

    def drop(self) -> None:
        while self.kept:
            self.kept.pop().close()
        name = urlsplit(self.url).path[1:]
        outside = PostgresDatabase(urlsplit(self.url)._replace(path="/postgres").geturl())
        outside.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


class MySQLDatabase(Database):
    dialect = "mysql"
    version_sql = "SELECT version()"

    def __init__(self, url: str, name: str) -> None:
        super().__init__(url)
        self.name = name

    def options(self) -> dict[str, Any]:
        """What a MySQL driver connects with."""
        parts = urlsplit(self.url)
        return {
            "host": parts.hostname,
            "port": parts.port,
            "user": unquote(parts.username or ""),
            "password": unquote(parts.password or ""),
            "database": parts.path[1:],
        }

    def connect(self) -> "pymysql.Connection[Any]":
        """A connection without TLS, which takes longer to set up than most tests take."""
        return pymysql.connect(**self.options(), autocommit=True, ssl_disabled=True)

    def execute(self, sql: str, params: Sequence[Any] = ()) -> Rows:
        with (
            self.connect() as connection,
            connection.cursor() as cursor,
        ):
            cursor.execute(sql, params or None)
            return list(cursor.fetchall())

    def clean(self) -> None:
        """To look into all tables at once takes less long than to delete from each."""
        looks = " UNION ALL ".join(f"(SELECT '{table}' FROM {table} LIMIT 1)" for table in TO_CLEAN)
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.execute(looks)
            for (table,) in cursor.fetchall():
                cursor.execute(f"DELETE FROM {table}")

    def analyze(self) -> None:
        self.execute(f"ANALYZE TABLE {', '.join(TO_CLEAN)}")

    def create(self) -> "MySQLDatabase":
        name = f"rowmq_{secrets.token_hex(6)}"
        self.execute(f"CREATE DATABASE {name}")
        return MySQLDatabase(urlsplit(self.url)._replace(path=f"/{name}").geturl(), self.name)

    def drop(self) -> None:
        self.execute(f"DROP DATABASE IF EXISTS {urlsplit(self.url).path[1:]}")


class Databases:
    """All databases of a test session, each started when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.stack = ExitStack()
        self.known: dict[str, Database] = {}
        self.migrated: SQLiteDatabase | None = None
        self.given_back: list[SQLiteDatabase] = []

    def get(self, name: str) -> Database:
        """A migrated, empty database of a kind."""
        if name == "sqlite":
            while self.given_back:
                self.given_back.pop().delete()
            return self._sqlite().copy()
        if name not in self.known:
            database = self._server(name).create()
            self.stack.callback(database.drop)
            with rowmq.connect(database.url) as mq:
                mq.migrate()
            database.keep_connection()
            self.known[name] = database
        else:
            self.known[name].clean()
        return self.known[name]

    def give_back(self, database: Database) -> None:
        """A test is over; the next one finds its clients closed, and can do away with its file."""
        if isinstance(database, SQLiteDatabase):
            self.given_back.append(database)

    def _sqlite(self) -> SQLiteDatabase:
        if self.migrated is None:
            self.migrated = SQLiteDatabase(self.folder)
            rowmq.connect(self.migrated.url).close()
        return self.migrated

    def _server(self, name: str) -> Database:
        url = os.environ.get(f"ROWMQ_TEST_{name.upper()}_URL")
        if name == "postgres":
            return PostgresDatabase(url or self.stack.enter_context(PostgresServer()).url)
        if name == "mariadb":
            return MySQLDatabase(url or self.stack.enter_context(MariaDBServer()).url, name)
        assert url, "ROWMQ_TEST_MYSQL_URL names the MySQL to test on"
        return MySQLDatabase(url, name)
