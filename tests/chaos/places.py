"""Where a trial takes place: a database, how it is reached, and what can be done to it.

Those who take part connect through a proxy where there is a network. Servers are durable, as one in
use is: what they have committed outlasts SIGKILL by what they wrote, and not by luck.
"""

import contextlib
import os
import resource
import sqlite3
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pymysql

import rowmq
from tests.chaos.load import TABLES
from tests.chaos.proxy import HOST, Proxy
from tests.databases import Database, MySQLDatabase, PostgresDatabase, SQLiteDatabase
from tests.servers import MariaDBServer, PostgresServer

__all__ = ["Place", "SQLitePlace", "ServerPlace", "open_place"]

CONNECTIONS = 80
"""How many a server has: those who take part need about half of them."""

DISK_BYTES = 64 * 2**20
CHUNK_BYTES = 4_096
ROOM_BYTES = 16_384
"""How much larger files may become where it is processes that are limited."""


COUNT = "SELECT COUNT(*) FROM rowmq_messages"


class Place:
    """A kind of database. A trial has an empty one of its own."""

    name: str
    has_network = False
    is_ours = False
    """Whether it is a server that may be ended."""
    database: Database

    @property
    def url(self) -> str:
        """How those who take part reach it."""
        return self.database.url

    @contextlib.contextmanager
    def fresh(self, *, small: bool = False) -> Iterator[None]:
        """A migrated, empty database, for a trial; a file on a small disk, if that is asked for."""
        assert not small, "only a file is on a disk that can be chosen"
        self.database = self._create()
        try:
            with rowmq.connect(self.database.url) as mq:
                mq.migrate()
            self.database.execute(TABLES[self.database.dialect])
            yield
        finally:
            self._drop()

    def messages(self) -> int:
        """How many messages there are by now."""
        ((count,),) = self.database.execute(COUNT)
        return int(count)

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[Callable[[], int]]:
        """A transaction that goes on, and that sees all of it as it is now: how many messages."""
        raise NotImplementedError

    def _create(self) -> Database:
        raise NotImplementedError

    def _drop(self) -> None:
        self.database.drop()


# --- a file ---------------------------------------------------------------------------------------


class SQLitePlace(Place):
    """A file, in a folder, or on a small disk of its own."""

    name = "sqlite"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.disk: Path | None = None

    @contextlib.contextmanager
    def fresh(self, *, small: bool = False) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            self.disk = stack.enter_context(small_disk(self.folder)) if small else None
            stack.enter_context(super().fresh())
            yield

    def _create(self) -> Database:
        return SQLiteDatabase(self.disk or self.folder)

    def _drop(self) -> None:
        assert isinstance(self.database, SQLiteDatabase)
        self.database.delete()

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[Callable[[], int]]:
        assert isinstance(self.database, SQLiteDatabase)
        with contextlib.closing(sqlite3.connect(self.database.path)) as connection:
            connection.execute("BEGIN")
            yield lambda: int(connection.execute(COUNT).fetchone()[0])

    @contextlib.contextmanager
    def full(self, pids: Iterable[int]) -> Iterator[None]:
        """Leave no room to write: on the disk, or to processes if it is not the file's own."""
        if self.disk is None:
            with limited(pids, self._largest() + ROOM_BYTES):
                yield
            return
        ballast = self.disk / "ballast"
        try:
            fill(ballast)
            yield
        finally:
            ballast.unlink(missing_ok=True)

    def _largest(self) -> int:
        assert isinstance(self.database, SQLiteDatabase)
        files = self.folder.glob(f"{self.database.path.name}*")
        return max(path.stat().st_size for path in files)


def fill(path: Path) -> None:
    """Write a file until the disk is full."""
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while file.write(bytes(CHUNK_BYTES)):
            pass


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[Path | None]:
    """A small disk, which is in memory, if this account may have one."""
    disk = Path(tempfile.mkdtemp(prefix="disk-", dir=folder))
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "none", str(disk)]
    try:
        mounted = subprocess.run(command, check=False, capture_output=True).returncode == 0
    except FileNotFoundError:
        mounted = False
    try:
        yield disk if mounted else None
    finally:
        if mounted:
            subprocess.run(["umount", str(disk)], check=True)


@contextlib.contextmanager
def limited(pids: Iterable[int], size: int) -> Iterator[None]:
    """Let processes write no file beyond a size; what they get is EFBIG."""
    unlimited = resource.RLIM_INFINITY
    found = list(pids)
    for pid in found:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, unlimited))
    try:
        yield
    finally:
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (unlimited, unlimited))


# --- a server -------------------------------------------------------------------------------------


class ServerPlace(Place):
    """A server behind a proxy; one of our own can be ended and started again."""

    has_network = True

    def __init__(
        self, database: Database, proxy: Proxy, server: PostgresServer | MariaDBServer | None
    ) -> None:
        self.name = database.name
        self.proxy = proxy
        self.server = server
        self.is_ours = server is not None
        self._outside = database

    @property
    def url(self) -> str:
        parts = urlsplit(self.database.url)
        who = parts.netloc.rpartition("@")[0]
        return parts._replace(netloc=f"{who}@{HOST}:{self.proxy.port}").geturl()

    def _create(self) -> Database:
        return self._outside.create()

    def connect(self) -> Any:
        """A connection of the driver's, past the proxy."""
        raise NotImplementedError

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[Callable[[], int]]:
        with contextlib.closing(self.connect()) as connection, connection.cursor() as cursor:

            def look() -> int:
                cursor.execute(COUNT)
                return int(cursor.fetchone()[0])

            cursor.execute(self.begin_snapshot)
            yield look
            cursor.execute("ROLLBACK")

    begin_snapshot: str

    @contextlib.contextmanager
    def crowded(self) -> Iterator[Callable[[], None]]:
        """Let strangers have all connections that the server gives: what comes in makes them take
        those that have become free since.
        """
        strangers: list[Any] = []

        def crowd() -> None:
            while len(strangers) < 10 * CONNECTIONS:
                try:
                    strangers.append(self.connect())
                except (psycopg.OperationalError, pymysql.err.OperationalError):
                    break

        try:
            with self.limited():
                crowd()
                yield crowd
        finally:
            for stranger in strangers:
                stranger.close()

    @contextlib.contextmanager
    def limited(self) -> Iterator[None]:
        """Have the server give no more than CONNECTIONS."""
        yield


class PostgresPlace(ServerPlace):
    begin_snapshot = "BEGIN ISOLATION LEVEL REPEATABLE READ"

    def connect(self) -> Any:
        return psycopg.connect(self.database.url, autocommit=True)


class MySQLPlace(ServerPlace):
    begin_snapshot = "START TRANSACTION WITH CONSISTENT SNAPSHOT"

    def connect(self) -> Any:
        assert isinstance(self.database, MySQLDatabase)
        return self.database.connect()

    @contextlib.contextmanager
    def limited(self) -> Iterator[None]:
        with contextlib.closing(self.connect()) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT @@GLOBAL.max_connections")
            (before,) = cursor.fetchone()
            cursor.execute(f"SET GLOBAL max_connections = {CONNECTIONS}")
            try:
                yield
            finally:
                cursor.execute(f"SET GLOBAL max_connections = {before}")


@contextlib.contextmanager
def open_place(name: str, folder: Path) -> Iterator[Place]:
    """A database of a kind, for one trial after the other."""
    if name == "sqlite":
        yield SQLitePlace(folder)
        return
    with contextlib.ExitStack() as stack:
        enter = stack.enter_context
        if name == "mysql":
            url = os.environ["ROWMQ_TEST_MYSQL_URL"]
            port = urlsplit(url).port or 3306
            yield MySQLPlace(MySQLDatabase(url, name), enter(Proxy(port)), None)
        elif name == "mariadb":
            mariadb = enter(MariaDBServer(durable=True))
            database = MySQLDatabase(mariadb.url, name)
            yield MySQLPlace(database, enter(Proxy(mariadb.port)), mariadb)
        else:
            postgres = enter(
                PostgresServer(fsync="on", full_page_writes="on", max_connections=str(CONNECTIONS))
            )
            outside = PostgresDatabase(postgres.url)
            yield PostgresPlace(outside, enter(Proxy(postgres.port)), postgres)
