"""Who waits for whose lock, as a server says: nobody waits for an answer that cannot come yet.

What a server caches is of no use here. InnoDB renews its table of transactions only when nobody has
looked at it for a tenth of a second, so who asks more often never learns anything new. Its
status is made anew each time. On MySQL that leaves out who has not written anything yet; they are
in a table of waits, which takes some of the others for one another.

When a transaction of PostgreSQL's ends, all who have waited for it wake up at once, and race. So
that a seed does the same each time, a process of the server that waits is stopped, and goes on when
it is its turn. That takes a server of this machine; on others, seeds are played without it.
"""

import contextlib
import os
import re
import signal
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pymysql

from tests.databases import Database, MySQLDatabase
from tests.simulation.world import Locks

__all__ = ["locks_of"]


class PostgresLocks:
    """As PostgreSQL says."""

    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url, autocommit=True)
        self._name = urlsplit(url).path[1:].encode()
        self._stopped: set[int] = set()

    def waiting(self) -> dict[int, set[int]]:
        """Not by `pg_stat_activity`, which shows a wait until the one who waited has woken up."""
        return {number: set(others) for number, others in self._connection.execute(WAITING)}

    def cancel(self, number: int) -> None:
        self._connection.execute("SELECT pg_cancel_backend(%s)", (number,))

    def stop(self, number: int) -> None:
        if self._is_of_this_machine(number):
            os.kill(number, signal.SIGSTOP)
            self._stopped.add(number)

    def go_on(self, number: int) -> None:
        if number in self._stopped:
            self._stopped.discard(number)
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGCONT)

    def _is_of_this_machine(self, number: int) -> bool:
        """Whether a process of that number is one of the server's, at work on our database, whose
        name nobody else's has.
        """
        try:
            title = Path(f"/proc/{number}/cmdline").read_bytes()
        except OSError:
            return False
        return title.startswith(b"postgres: ") and self._name in title.split()

    def close(self) -> None:
        for number in list(self._stopped):
            self.go_on(number)
        self._connection.close()


class MariaDBLocks:
    """As InnoDB says, which ends by itself, and at once, who waits in a circle."""

    def __init__(self, database: MySQLDatabase) -> None:
        self._connection = database.connect()
        self._cursor = self._connection.cursor()

    def waiting(self) -> dict[int, set[int]]:
        self._cursor.execute("SHOW ENGINE INNODB STATUS")
        ((_, _, status),) = self._cursor.fetchall()
        _, _, transactions = status.partition("\nTRANSACTIONS\n")
        return {
            int(found[1]): set()
            for block in transactions.split("\n---TRANSACTION ")
            if "\nLOCK WAIT " in block and (found := THREAD.search(block))
        }

    def cancel(self, number: int) -> None:
        with contextlib.suppress(pymysql.OperationalError):  # it has gone
            self._cursor.execute(f"KILL QUERY {number}")

    def stop(self, number: int) -> None:
        """Not needed: who waits for a lock is given it in turn."""

    def go_on(self, number: int) -> None:
        """It does."""

    def close(self) -> None:
        self._connection.close()


class MySQLLocks(MariaDBLocks):
    """As InnoDB and, of transactions that have not written anything yet, MySQL's own table say."""

    def waiting(self) -> dict[int, set[int]]:
        writers = super().waiting()
        self._cursor.execute(READERS_WAITING)
        return writers | {number: set() for (number,) in self._cursor.fetchall()}


def locks_of(database: Database) -> Locks:
    """The locks of a server."""
    if isinstance(database, MySQLDatabase):
        return (MySQLLocks if database.name == "mysql" else MariaDBLocks)(database)
    return PostgresLocks(database.url)


THREAD = re.compile(r"\n(?:MariaDB|MySQL) thread id (\d+),")

# Who has not written anything yet has a number beyond those of all transactions that have.
READERS_WAITING = """
    SELECT t.processlist_id FROM performance_schema.data_lock_waits w
    JOIN performance_schema.threads t ON t.thread_id = w.requesting_thread_id
    WHERE w.requesting_engine_transaction_id >= 1 << 48"""

WAITING = "SELECT pid, pg_blocking_pids(pid) FROM pg_locks WHERE NOT granted"
