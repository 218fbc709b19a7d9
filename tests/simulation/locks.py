"""Who waits for whose lock, as a server says: nobody waits for an answer that cannot come yet.

What a server caches is of no use here. InnoDB renews its table of transactions only when nobody has
looked at it for a tenth of a second, so who asks more often never learns anything new; its status
is made anew each time.
"""

import contextlib
import re

import psycopg
import pymysql

from tests.databases import Database, MySQLDatabase
from tests.simulation.world import Locks

__all__ = ["locks_of"]


class PostgresLocks:
    """As PostgreSQL says."""

    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url, autocommit=True)

    def waiting(self) -> dict[int, set[int]]:
        """Not by `pg_stat_activity`, which shows a wait until the one who waited has woken up."""
        return {number: set(others) for number, others in self._connection.execute(WAITING)}

    def cancel(self, number: int) -> None:
        self._connection.execute("SELECT pg_cancel_backend(%s)", (number,))

    def close(self) -> None:
        self._connection.close()


class MySQLLocks:
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

    def close(self) -> None:
        self._connection.close()


def locks_of(database: Database) -> Locks:
    """The locks of a server."""
    if isinstance(database, MySQLDatabase):
        return MySQLLocks(database)
    return PostgresLocks(database.url)


THREAD = re.compile(r"\n(?:MariaDB|MySQL) thread id (\d+),")

WAITING = "SELECT pid, pg_blocking_pids(pid) FROM pg_locks WHERE NOT granted"
