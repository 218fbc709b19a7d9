"""What differs between databases in spelling only: names of tables, placeholders, the clock.

SQL is written once as a template: `{messages}` stands for the table's full name, `{now}` for the
database's clock in microseconds, and `?` for a parameter. A dialect renders a template on first
use and remembers it. Where databases differ in shape, the operation itself is overridden in that
dialect's module.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, ClassVar, TypeVar

import msgspec

from rowmq.codec import BEGINNING_BYTES
from rowmq.errors import ConfigurationError
from rowmq.naming import check_identifier
from rowmq.quoting import quoted
from rowmq.store.statement import Operation, Row, Statement

__all__ = [
    "DEFAULT_LOCK_SECONDS",
    "DEFAULT_PREFIX",
    "TABLES",
    "Columns",
    "Dialect",
    "Row",
    "are_numbers",
    "as_bytes",
    "as_text",
    "as_text_or_none",
    "beginning",
    "equal",
    "values_table",
]

DEFAULT_PREFIX = "rowmq_"
DEFAULT_LOCK_SECONDS = 30.0

TABLES = (
    "migrations",
    "topics",
    "partitions",
    "messages",
    "groups",
    "offsets",
    "delivery_state",
    "subscribers",
    "dead_letters",
    "queues",
    "lanes",
    "job_ids",
    "jobs",
    "ready",
    "locks",
    "job_keys",
    "lines",
    "waiting",
    "completed",
    "failed",
    "job_errors",
    "permits",
    "holds",
    "workers",
    "schedules",
    "ticks",
    "stages",
    "stage_parts",
    "staged",
    "ledger",
    "tokens",
    "ended_sessions",
    "audit",
)

T = TypeVar("T")
Columns = Mapping[str, str]
"""Names of columns, with the types that PostgreSQL knows them by."""


class Dialect(ABC):
    """One database's spelling."""

    name: ClassVar[str]
    """The database's name in migrations, errors and URLs."""

    now: str
    """SQL for the database's own clock: microseconds since 1970, UTC."""

    rows_max: ClassVar[int]
    """How many rows one statement may carry."""

    numbers_max: ClassVar[int]
    """How many rows one statement may carry that are whole numbers only."""

    statement_bytes_max: ClassVar[int] = 4 * 1024 * 1024
    """How many bytes of values one statement carries before another is begun."""

    join: ClassVar[str] = "JOIN"
    """A join that keeps the order in which its tables are written, where there is one."""

    snapshots: ClassVar[bool] = False
    """Whether a plain read in a caller's transaction may show less than a locking one, without an
    error: at MySQL's REPEATABLE READ.
    """

    by_key: ClassVar[str] = ""
    """After a table in a join: look rows up by their primary key, however small the table seems. A
    scan would lock what it reads.
    """

    for_update: ClassVar[str] = "FOR UPDATE"
    """Locks the rows that a SELECT gives; SQLite has one writer and needs nothing."""

    for_share: ClassVar[str] = "FOR SHARE"
    """Keeps rows from being changed or deleted, by whoever reads them."""

    as_now: ClassVar[str] = ""
    """Ends a read that must see what is committed now, where a caller's transaction may read an
    older snapshot without an error.
    """

    skip_locked: ClassVar[str] = "FOR UPDATE SKIP LOCKED"
    """Locks those that nobody else has locked, and leaves out the others."""

    on_conflict: ClassVar[str] = "ON CONFLICT DO NOTHING"
    """Ends an INSERT into offsets that leaves rows alone which are already there."""

    packs: ClassVar[str] = "INSTR(claimed, ?) > 0"
    """Whether the packed table `claimed` may have a row that begins with a number: true for all
    that have, and perhaps for others.
    """

    # WHERE false: an existing row is locked but not written.
    lock_topic: ClassVar[str] = """
        INSERT INTO {topics} AS t (topic, created_at) VALUES (?, {now})
        ON CONFLICT (topic) DO UPDATE SET created_at = t.created_at WHERE false"""
    """Makes a topic's row, if it is missing, and locks it."""

    def __init__(
        self,
        *,
        prefix: str = DEFAULT_PREFIX,
        schema: str | None = None,
        lock_timeout: float = DEFAULT_LOCK_SECONDS,
        clock: str | None = None,
    ) -> None:
        """`clock` is SQL that stands for the database's clock, for tests that move the time: an
        expression in parentheses that gives microseconds since 1970.
        """
        self.now = self.now if clock is None else clock
        self.prefix = check_identifier(prefix, what="the table prefix")
        self.schema = schema
        self.lock_timeout = lock_timeout
        qualifier = self.qualifier(schema)
        self._names = {table: f"{qualifier}{prefix}{table}" for table in TABLES}
        self._names |= {"now": self.now, "prefix": prefix, "qualifier": qualifier}
        self._names |= {"join": self.join, "on_conflict": self.on_conflict.format_map(self._names)}
        self._names |= {"for_update": self.for_update, "skip_locked": self.skip_locked}
        self._names |= {"for_share": self.for_share, "by_key": self.by_key}
        self._names |= {"as_now": self.as_now}
        self._rendered: dict[str, str] = {}

    def qualifier(self, schema: str | None) -> str:
        """What stands before a table's name."""
        if schema is not None:
            raise ConfigurationError(
                f"schema={quoted(schema)} is for PostgreSQL only: on {self.name} the "
                f"tables live in the "
                f"database that the URL names; use prefix= to keep several sets apart"
            )
        return ""

    def sql(self, template: str) -> str:
        """The statement of a template, with names and placeholders as this database has them."""
        sql = self._rendered.get(template)
        if sql is None:
            sql = self._rendered[template] = self.placeholders(self.fill(template))
        return sql

    def fill(self, template: str) -> str:
        """The template with its names filled in, its placeholders untouched."""
        return template.format_map(self._names)

    def insert_id(self, name: str, template: str, params: Sequence[Any]) -> Operation[int]:
        """Insert a row, and tell the id that it was given."""
        result = yield Statement(name, self.sql(template + " RETURNING id"), params)
        return int(result.rows[0][0])

    def clock(self, name: str) -> Operation[int]:
        """The time by the database's clock; `name` is that of the statement."""
        result = yield Statement(name, self.sql("SELECT {now}"))
        return int(result.rows[0][0])

    def seize(self, *, relaxed: bool = False) -> Operation[None]:  # noqa: ARG002 - for a dialect
        """Begin to write, in a caller's transaction that may only have read so far. One that begins
        here is not to wait for the disk if it is `relaxed`.
        """
        yield from ()

    @abstractmethod
    def placeholders(self, sql: str) -> str:
        """The `?` of a template in this database's own style."""

    def text(self, value: str) -> str | bytes:
        """A name as a parameter."""
        return value

    # --- pages: what comes after a place in an index ----------------------------------------------

    def different(self, table: str, column: str) -> str:
        """A query for the first values of a column, each once, as many as are asked for: one step
        in an index that begins with it for each.
        """
        first = f"SELECT r.{column} AS value FROM {table} r"
        return f"""
            WITH RECURSIVE steps (value, nth) AS (
                SELECT f.value, 1 FROM ({first} ORDER BY r.{column} LIMIT 1) f
                UNION ALL
                SELECT ({first} WHERE r.{column} > s.value ORDER BY r.{column} LIMIT 1), s.nth + 1
                FROM steps s WHERE s.value IS NOT NULL AND s.nth < ?
            )
            SELECT value FROM steps WHERE value IS NOT NULL"""

    def past(self, columns: Sequence[str], sign: str = ">") -> str:
        """Whether a row comes after a place in an index of these columns, or, `<`, before it."""
        return f"({', '.join(columns)}) {sign} ({', '.join('?' for _ in columns)})"

    def past_params(self, place: Sequence[Any]) -> list[Any]:
        """The parameters of `past`."""
        return [self.text(value) if isinstance(value, str) else value for value in place]

    # --- many rows in one statement: a source `w` of given values, and what is done with it -------

    def given(self, columns: Columns, rows: Sequence[Sequence[Any]]) -> tuple[str, list[Any]]:
        """A query for given rows, and its parameters."""
        return values_table(tuple(columns), len(rows)), self.values(columns, rows)

    def looked_up(self, table: str, alias: str, source: str, keys: Sequence[str]) -> str:
        """The rows of a table that have the keys of the source `w`, in a FROM: each is looked up by
        itself, whatever else is asked of them.
        """
        return f"({source}) w {{join}} {table} {alias} {{by_key}} ON {equal(keys, alias)}"

    def update_from(
        self,
        table: str,
        source: str,
        keys: Sequence[str],
        sets: Mapping[str, str],
        where: str = "1 = 1",
    ) -> str:
        """Update the rows `t` of a table that have the keys of the source `w`."""
        changes = ", ".join(f"{column} = {value}" for column, value in sets.items())
        matched = f"{equal(keys)} AND {where}"
        return f"UPDATE {table} AS t SET {changes} FROM ({source}) w WHERE {matched}"

    def delete_from(self, table: str, source: str, keys: Sequence[str]) -> str:
        """Delete the rows of a table that have the keys of the source."""
        return f"DELETE FROM {table} AS t USING ({source}) w WHERE {equal(keys)}"

    def discard_from(self, table: str, source: str, keys: Sequence[str]) -> str:
        """Delete rows that nobody ever updates, or that are known by one column: what becomes of
        those while this waits for them makes no difference.
        """
        return self.delete_from(table, source, keys)

    def upsert_from(
        self, table: str, source: str, keys: Sequence[str], columns: Sequence[str]
    ) -> str:
        """Insert the rows of the source, or put them in the place of those with the same keys."""
        names = ", ".join([*keys, *columns])
        changes = ", ".join(f"{column} = excluded.{column}" for column in columns)
        return (
            f"INSERT INTO {table} ({names}) SELECT {names} FROM ({source}) w WHERE true "
            f"ON CONFLICT ({', '.join(keys)}) DO UPDATE SET {changes}"
        )

    def insert_into(
        self, table: str, columns: Columns, rows: Sequence[Sequence[Any]], ending: str = ""
    ) -> tuple[str, list[Any]]:
        """Insert given rows, and the parameters; `ending` is what follows."""
        marks = f"({', '.join('?' for _ in columns)})"
        listed = ", ".join([marks] * len(rows))
        sql = f"INSERT INTO {table} ({', '.join(columns)}) VALUES {listed} {ending}"
        return sql, self.values(columns, rows)

    def values(self, columns: Columns, rows: Sequence[Sequence[Any]]) -> list[Any]:
        """The values of rows as parameters, one row after the other."""
        if are_numbers(columns):
            return list(chain.from_iterable(rows))
        return [self.text(v) if isinstance(v, str) else v for row in rows for v in row]

    def unless_there(self, column: str) -> str:  # noqa: ARG002 - for a dialect
        """Ends an INSERT that leaves rows alone which are already there; `column` is one of them
        that it may name.
        """
        return "ON CONFLICT DO NOTHING"

    def pack(self, rows: Sequence[Sequence[int]]) -> Any:
        """A table of whole numbers as one value."""
        return self.text(msgspec.json.encode(rows).decode())

    def packed(self, number: int) -> Any:
        """The parameter of `packs`."""
        return self.text(f"[{number},")

    def unpack(self, value: Any) -> list[list[int]]:
        """The table of a value that `pack` made."""
        return msgspec.json.decode(as_text(value), type=list[list[int]])

    def chunks(self, items: Iterable[T], sizes: Iterable[int]) -> Iterator[list[T]]:
        """The items in runs that fit into one statement each."""
        run: list[T] = []
        filled = 0
        items, sizes = list(items), list(sizes)
        if 0 < len(items) <= self.rows_max and sum(sizes) <= self.statement_bytes_max:
            yield items  # as nearly always
            return
        for item, size in zip(items, sizes, strict=True):
            if run and (len(run) >= self.rows_max or filled + size > self.statement_bytes_max):
                yield run
                run, filled = [], 0
            run.append(item)
            filled += size
        if run:
            yield run


def are_numbers(columns: Columns) -> bool:
    """Whether there is nothing but whole numbers in these columns, or NULL."""
    return NUMBERS.issuperset(columns.values())


NUMBERS = frozenset({"bigint", "integer", "smallint"})


def as_text(value: str | bytes | memoryview | bytearray) -> str:
    """A name as it came from a database: binary columns give bytes."""
    return value if isinstance(value, str) else bytes(value).decode()


def as_text_or_none(value: str | bytes | memoryview | bytearray | None) -> str | None:
    """Text that may be missing."""
    return None if value is None else as_text(value)


def beginning(column: str) -> str:
    """The beginning of a payload in SQL, with a byte more if there is more. SQLite finds nothing
    in an empty one.
    """
    return f"COALESCE(SUBSTR({column}, 1, {BEGINNING_BYTES + 1}), '')"


def as_bytes(value: bytes | memoryview | bytearray | str) -> bytes:
    """A payload as it came from a database: some drivers give a view, and SQLite gives text where
    another program wrote text.
    """
    if isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else bytes(value)


def equal(keys: Iterable[str], table: str = "t") -> str:
    """The rows of a table, `t`, and of a source, `w`, have the same keys."""
    return " AND ".join(f"{table}.{key} = w.{key}" for key in keys)


def values_table(columns: Sequence[str], rows: int) -> str:
    """A derived table of parameters, `rows` long, that every database can join in its order."""
    head = "SELECT " + ", ".join(f"? AS {column}" for column in columns)
    rest = " UNION ALL SELECT " + ", ".join("?" for _ in columns)
    return head + rest * (rows - 1)
