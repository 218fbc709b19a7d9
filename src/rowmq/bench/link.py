"""One plain connection to a database under measurement: to clear it, and to read its meters.

A *reading* is what the server has written and used up so far; the difference of two is the cost of
what happened in between. Where a server does not tell something, the reading has None.
"""

import contextlib
import sqlite3
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

import rowmq
from rowmq.bench.process import cpu_of_family
from rowmq.engine import mysql_options, postgres_url, require, split, sqlite_path

__all__ = ["Link", "Reading", "open_link"]

LEAVE_SECONDS_MAX = 5.0
"""How long it may take until a server has noticed that clients have gone."""

LEAVE_LOOK_SECONDS = 0.01


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """What a server has done since it started."""

    log_bytes: int | None = None
    """Bytes of the log that makes commits durable: WAL, or redo."""
    rows_written: int | None = None
    cpu_seconds: float | None = None

    def since(self, before: "Reading") -> dict[str, float]:
        """What was done after another reading, of what is known."""
        found = {}
        for name in self.__struct_fields__:
            now, then = getattr(self, name), getattr(before, name)
            if now is not None and then is not None:
                found[name] = now - then
        return found


class Link(ABC):
    """A connection that commits each statement."""

    database: str
    """Which database it is, as a scheme of URLs."""

    def __init__(self, url: str) -> None:
        self.url = url

    @abstractmethod
    def execute(self, sql: str, params: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run a statement; its rows, if it has any."""

    @abstractmethod
    def tables(self) -> list[str]:
        """The names of all tables."""

    @abstractmethod
    def facts(self) -> dict[str, str]:
        """The version, and the settings that decide about speed."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the connection."""

    def reading(self, *, settled: bool = True) -> Reading:  # noqa: ARG002 - for a database
        """What the meters say; once all who wrote have left, if it is to be `settled`."""
        return Reading()

    def connections_max(self) -> int:
        """How many connections there can be at once."""
        return 1_000

    def drop_tables(self, prefix: str) -> None:
        """Drop the tables whose names begin so."""
        for table in self.tables():
            if table.startswith(prefix):
                self.execute(f"DROP TABLE {table}")

    @abstractmethod
    def tidy(self) -> None:
        """Have statistics and free space be as they are some time after rows were written."""

    def flush(self) -> None:
        """Have everything written to the disk that would else be written later."""
        return


class PostgresLink(Link):
    """A connection to PostgreSQL."""

    database = "postgresql"

    def __init__(self, url: str) -> None:
        super().__init__(url)
        require("postgres", kind=0)
        import psycopg  # noqa: PLC0415 - there is a database without it

        address, parts, _ = split(url)
        self._connection = psycopg.connect(postgres_url(address, parts), autocommit=True)

    def execute(self, sql: str, params: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        cursor = self._connection.execute(sql.encode(), params or None)
        return cursor.fetchall() if cursor.description else []

    def tables(self) -> list[str]:
        found = self.execute("SELECT tablename FROM pg_tables WHERE schemaname = current_schema")
        return [name for (name,) in found]

    def facts(self) -> dict[str, str]:
        names = (
            "server_version",
            "fsync",
            "synchronous_commit",
            "full_page_writes",
            "shared_buffers",
            "max_wal_size",
            "max_connections",
            "jit",
            "deadlock_timeout",
        )
        return {name: str(self.execute(f"SHOW {name}")[0][0]) for name in names}

    def close(self) -> None:
        self._connection.close()

    def connections_max(self) -> int:
        return int(self.execute("SHOW max_connections")[0][0])

    def reading(self, *, settled: bool = True) -> Reading:
        if settled:
            self._wait_for_others()
        if self._connection.info.server_version >= 150_000:
            self.execute("SELECT pg_stat_force_next_flush()")  # of what this connection has written
        ((written, rows, pid),) = self.execute(
            "SELECT pg_current_wal_insert_lsn() - '0/0', (SELECT"
            " coalesce(sum(n_tup_ins + n_tup_upd + n_tup_del), 0) FROM pg_stat_user_tables),"
            " pg_backend_pid()"
        )
        cpu = cpu_of_family(pid, called="postgres")
        return Reading(log_bytes=int(written), rows_written=int(rows), cpu_seconds=cpu)

    def _wait_for_others(self) -> None:
        """Rows are counted for good when a client's process has ended."""
        deadline = time.monotonic() + LEAVE_SECONDS_MAX
        others = (
            "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'"
            " AND datname = current_database() AND pid <> pg_backend_pid()"
        )
        while self.execute(others)[0][0] and time.monotonic() < deadline:
            time.sleep(LEAVE_LOOK_SECONDS)

    def tidy(self) -> None:
        self.execute("VACUUM ANALYZE")

    def flush(self) -> None:
        import psycopg  # noqa: PLC0415 - there is a database without it

        with contextlib.suppress(psycopg.errors.InsufficientPrivilege):
            self.execute("CHECKPOINT")


class MySQLLink(Link):
    """A connection to MySQL or MariaDB."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        require("mysql", kind=0)
        import pymysql  # noqa: PLC0415 - there is a database without it

        address, parts, _ = split(url)
        self._connection = pymysql.connect(autocommit=True, **mysql_options(address, parts))
        version = str(self.execute("SELECT version()")[0][0])
        self.database = "mariadb" if "mariadb" in version.lower() else "mysql"

    def execute(self, sql: str, params: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self._connection.cursor() as cursor:
            cursor.execute(sql, params or None)
            return list(cursor.fetchall())

    def tables(self) -> list[str]:
        return [name for (name,) in self.execute("SHOW TABLES")]

    def facts(self) -> dict[str, str]:
        names = (
            "version",
            "innodb_flush_log_at_trx_commit",
            "innodb_flush_method",
            "innodb_buffer_pool_size",
            "sync_binlog",
            "log_bin",
        )
        values = self.execute("SELECT " + ", ".join(f"@@{name}" for name in names))[0]
        return {name: str(value) for name, value in zip(names, values, strict=True)}

    def close(self) -> None:
        self._connection.close()

    def reading(self, *, settled: bool = True) -> Reading:  # noqa: ARG002 - it counts at once
        status = {name.lower(): value for name, value in self.execute(STATUS)}
        names = ROWS if ROWS[0] in status else ROWS_HANDLED
        rows = [int(status[name]) for name in names if name in status]
        return Reading(
            log_bytes=int(status["innodb_os_log_written"]),
            rows_written=sum(rows) if rows else None,
            cpu_seconds=cpu_of_family(self._server_pid(), called="m"),
        )

    def _server_pid(self) -> int | None:
        """The number of the server's process, if it runs here and its file can be read."""
        ((path,),) = self.execute("SELECT @@pid_file")
        with contextlib.suppress(OSError, ValueError):
            return int(Path(path).read_text("ascii"))
        return None

    def tidy(self) -> None:
        for table in self.tables():
            self.execute(f"ANALYZE TABLE {table}")


ROWS = ("innodb_rows_inserted", "innodb_rows_updated", "innodb_rows_deleted")
ROWS_HANDLED = ("handler_write", "handler_update", "handler_delete")
"""The same in MariaDB, which counts temporary tables elsewhere."""

STATUS = (
    "SHOW GLOBAL STATUS WHERE Variable_name IN ("
    + ", ".join(f"'{name}'" for name in ("innodb_os_log_written", *ROWS, *ROWS_HANDLED))
    + ")"
)


class SQLiteLink(Link):
    """A connection to an SQLite file. Nobody but its clients does any work, so it has no meters."""

    database = "sqlite"

    def __init__(self, url: str) -> None:
        super().__init__(url)
        address, parts, _ = split(url)
        self.path = sqlite_path(address, parts)
        self._connection = sqlite3.connect(self.path, isolation_level=None, timeout=30.0)

    def execute(self, sql: str, params: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        return self._connection.execute(sql, params).fetchall()

    def tables(self) -> list[str]:
        found = self.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
        )
        return [name for (name,) in found]

    def facts(self) -> dict[str, str]:
        names = ("journal_mode", "synchronous", "page_size", "wal_autocheckpoint")
        with rowmq.connect(self.url) as mq, mq.transaction() as tx:  # as RowMQ has them
            told = {name: str(tx.execute(f"PRAGMA {name}").rows[0][0]) for name in names}
        return {"version": sqlite3.sqlite_version, **told}

    def close(self) -> None:
        self._connection.close()

    def tidy(self) -> None:
        self.execute("VACUUM")
        self.execute("ANALYZE")
        self.execute("PRAGMA wal_checkpoint(TRUNCATE)")


LINKS: dict[str, type[Link]] = {
    "postgres": PostgresLink,
    "mysql": MySQLLink,
    "sqlite": SQLiteLink,
}


def open_link(url: str) -> Link:
    """Connect to the database of a URL."""
    return LINKS[split(url)[2]](url)
