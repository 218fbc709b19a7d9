"""What differs between databases in spelling only: names of tables, placeholders, the clock.

SQL is written once as a template: `{messages}` stands for the table's full name, `{now}` for the
database's clock in microseconds, and `?` for a parameter. A dialect renders a template on first
use and remembers it. Where databases differ in shape, the operation itself is overridden in that
dialect's module.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar, TypeVar

from rowmq.errors import ConfigurationError
from rowmq.naming import check_identifier
from rowmq.store.statement import Row

__all__ = [
    "DEFAULT_LOCK_SECONDS",
    "DEFAULT_PREFIX",
    "TABLES",
    "Dialect",
    "Row",
    "as_bytes",
    "as_text",
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
    "jobs",
    "ready",
    "locks",
    "job_keys",
    "finished",
    "schedules",
    "ticks",
)

T = TypeVar("T")


class Dialect(ABC):
    """One database's spelling."""

    name: ClassVar[str]
    """The database's name in migrations, errors and URLs."""

    now: ClassVar[str]
    """SQL for the database's own clock: microseconds since 1970, UTC."""

    rows_max: ClassVar[int]
    """How many rows one statement may carry."""

    statement_bytes_max: ClassVar[int] = 4 * 1024 * 1024
    """How many bytes of values one statement carries before another is begun."""

    def __init__(
        self,
        *,
        prefix: str = DEFAULT_PREFIX,
        schema: str | None = None,
        lock_timeout: float = DEFAULT_LOCK_SECONDS,
    ) -> None:
        self.prefix = check_identifier(prefix, what="the table prefix")
        self.schema = schema
        self.lock_timeout = lock_timeout
        qualifier = self.qualifier(schema)
        self._names = {table: f"{qualifier}{prefix}{table}" for table in TABLES}
        self._names |= {"now": self.now, "prefix": prefix, "qualifier": qualifier}
        self._rendered: dict[str, str] = {}

    def qualifier(self, schema: str | None) -> str:
        """What stands before a table's name."""
        if schema is not None:
            raise ConfigurationError(
                f"schema={schema!r} is for PostgreSQL only: on {self.name} the tables live in the "
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

    @abstractmethod
    def placeholders(self, sql: str) -> str:
        """The `?` of a template in this database's own style."""

    def text(self, value: str) -> str | bytes:
        """A name as a parameter."""
        return value

    def chunks(self, items: Iterable[T], sizes: Iterable[int]) -> Iterator[list[T]]:
        """The items in runs that fit into one statement each."""
        run: list[T] = []
        filled = 0
        for item, size in zip(items, sizes, strict=True):
            if run and (len(run) >= self.rows_max or filled + size > self.statement_bytes_max):
                yield run
                run, filled = [], 0
            run.append(item)
            filled += size
        if run:
            yield run


def as_text(value: str | bytes | memoryview | bytearray) -> str:
    """A name as it came from a database: binary columns give bytes."""
    return value if isinstance(value, str) else bytes(value).decode()


def as_bytes(value: bytes | memoryview | bytearray | str) -> bytes:
    """A payload as it came from a database: some drivers give a view, and SQLite gives text where
    another program wrote text.
    """
    if isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else bytes(value)


def values_table(columns: Sequence[str], rows: int) -> str:
    """A derived table of parameters, `rows` long, that every database can join in its order."""
    head = "SELECT " + ", ".join(f"? AS {column}" for column in columns)
    rest = " UNION ALL SELECT " + ", ".join("?" for _ in columns)
    return head + rest * (rows - 1)
