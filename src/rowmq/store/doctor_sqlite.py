"""What `doctor` asks SQLite: its pragmas, and whether somebody holds the write lock."""

from typing import NamedTuple

from rowmq.errors import Locked
from rowmq.store.doctor import Examination
from rowmq.store.doctor_facts import Identity, IndexState
from rowmq.store.statement import Operation, Statement

__all__ = ["SQLiteExamination", "SQLiteState"]


class SQLiteState(NamedTuple):
    """A database file, as its pragmas say."""

    path: str
    """Empty for a database in memory."""
    journal_mode: str
    synchronous: int
    page_bytes: int
    pages: int
    free_pages: int


class SQLiteExamination(Examination):
    """What can be asked of SQLite."""

    def identity(self) -> Operation[Identity]:
        version = (yield from self.ask("identity", "SELECT sqlite_version()")).rows[0][0]
        path = yield from self._path()
        numbers = tuple(int(part) for part in version.split("."))
        return Identity("SQLite", version, numbers, "", path or ":memory:", "this machine")

    def columns(self) -> Operation[list[tuple[str, str]]]:
        found = []
        for table in self.tables():
            result = yield from self.ask("columns", COLUMNS, (table,))
            found += [(table, name) for (name,) in result]
        return found

    def indexes(self) -> Operation[list[IndexState]]:
        found = []
        for table in self.tables():
            columns: dict[tuple[str, bool], list[str]] = {}
            for name, unique, column in (yield from self.ask("indexes", INDEXES, (table,))):
                columns.setdefault((name, bool(unique)), []).append(column)
            found += [
                IndexState(table, name, tuple(listed), unique)
                for (name, unique), listed in columns.items()
            ]
        return found

    def state(self) -> Operation[SQLiteState]:
        """How the file is kept, and how large it is."""
        path = yield from self._path()
        result = yield from self.ask("state", STATE)
        # Of the session, and so without a function that a SELECT could call.
        journal = (yield from self.ask("journal_mode", "PRAGMA journal_mode")).rows[0][0]
        synchronous = (yield from self.ask("synchronous", "PRAGMA synchronous")).rows[0][0]
        return SQLiteState(path, journal, synchronous, *result.rows[0])

    def quick_check(self) -> Operation[str]:
        """`ok`, or the first thing that is wrong with the file."""
        result = yield from self.ask("quick_check", "PRAGMA quick_check(1)")
        return str(result.rows[0][0])

    def checkpoint(self) -> Operation[tuple[int, int]]:
        """Frames in the write-ahead log, and how many of them the file has, after moving what can
        be moved without waiting for anybody.
        """
        result = yield from self.ask("checkpoint", "PRAGMA wal_checkpoint(PASSIVE)")
        _, frames, moved = result.rows[0]
        return int(frames), int(moved)

    def write_lock(self, *, seconds: float) -> Operation[bool]:
        """Whether the write lock can be had within a time; it is let go of at once."""
        before = (yield from self.ask("busy_timeout", "PRAGMA busy_timeout")).rows[0][0]
        yield from self.ask("busy_timeout", f"PRAGMA busy_timeout = {round(seconds * 1000)}")
        try:
            yield Statement("doctor.write_lock", "BEGIN IMMEDIATE", sole=True)
            yield Statement("doctor.unlock", "ROLLBACK", sole=True)
        except Locked:
            return False
        finally:
            yield from self.ask("busy_timeout", f"PRAGMA busy_timeout = {int(before)}")
        return True

    def _path(self) -> Operation[str]:
        result = yield from self.ask("path", "PRAGMA database_list")
        return next((path or "" for _, name, path in result if name == "main"), "")


STATE = """
    SELECT s.page_size, c.page_count, f.freelist_count
    FROM pragma_page_size s, pragma_page_count c, pragma_freelist_count f"""

COLUMNS = "SELECT name FROM pragma_table_info(?)"

INDEXES = """
    SELECT i.name, i."unique", x.name FROM pragma_index_list(?) i, pragma_index_info(i.name) x
    WHERE i.partial = 0 ORDER BY i.name, x.seqno"""
