"""What the migrations make, read from their own text: tables, columns and indexes.

So what a database should have is written down once. Migrations are plain statements, one way each
to say a thing, and a test compares what is read here with what a migrated database has.
"""

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from rowmq.message import Migration
from rowmq.store.schema import statements, strip_comments

__all__ = ["Blueprint", "Key", "blueprint_of"]


class Key(NamedTuple):
    """An index, or what a constraint makes one for."""

    table: str
    columns: tuple[str, ...]
    unique: bool
    name: str | None
    """None where the database names it."""
    statement: str
    """Makes it, in the words of the migration."""


class Blueprint:
    """What there should be after some migrations."""

    def __init__(self) -> None:
        self.columns: dict[str, list[str]] = {}
        self.keys: list[Key] = []

    def apply(self, sql: str) -> None:
        """Take in one statement; those that make no table, column or index do not matter."""
        for pattern, take in RULES:
            if match := pattern.fullmatch(sql):
                take(self, match, sql)
                return

    def create_table(self, match: re.Match[str], _: str) -> None:
        table = match["table"]
        self.columns[bare(table)] = []
        for item in items(enclosed(match["rest"])):
            self.add(table, item)

    def alter_table(self, match: re.Match[str], _: str) -> None:
        for item in items(match["rest"]):
            if added := ADD.fullmatch(item):
                self.add(match["table"], added["item"])
            elif dropped := DROP_COLUMN.fullmatch(item):
                self.columns[bare(match["table"])].remove(dropped["name"])
            elif dropped := DROP_KEY.fullmatch(item):
                self.forget(dropped["name"])

    def add(self, table: str, item: str) -> None:
        """Take in a line of a table: a column, a key, or both in one."""
        if found := TABLE_KEY.match(item):
            listed = columns_of(enclosed(item[found.end() - 1 :]))
            self.keys.append(
                Key(bare(table), listed, is_unique(item), found["name"], adding(table, item))
            )
            return
        column = item.split(maxsplit=1)[0]
        self.columns[bare(table)].append(column)
        if own := COLUMN_KEY.search(item):
            adds = adding(table, f"{own[0].upper()} ({column})")
            self.keys.append(Key(bare(table), (column,), True, None, adds))

    def create_index(self, match: re.Match[str], sql: str) -> None:
        listed = columns_of(enclosed(match["rest"]))
        self.keys.append(
            Key(bare(match["table"]), listed, bool(match["unique"]), match["name"], sql)
        )

    def drop_index(self, match: re.Match[str], _: str) -> None:
        self.forget(bare(match["name"]))

    def drop_table(self, match: re.Match[str], _: str) -> None:
        table = bare(match["table"])
        self.columns.pop(table, None)
        self.keys = [key for key in self.keys if key.table != table]

    def forget(self, name: str) -> None:
        self.keys = [key for key in self.keys if key.name != name]


def blueprint_of(migrations: Iterable[Migration]) -> Blueprint:
    """What there should be after these migrations."""
    blueprint = Blueprint()
    for migration in migrations:
        for sql in statements(migration.sql):
            blueprint.apply(strip_comments(sql))
    return blueprint


def bare(name: str) -> str:
    """A table's name without its schema."""
    return name.rpartition(".")[2]


def enclosed(text: str) -> str:
    """What stands in the first parentheses of a text."""
    depth, start = 0, text.index("(")
    for place in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[place], 0)
        if depth == 0:
            return text[start + 1 : place]
    return text[start + 1 :]


def items(text: str) -> Iterator[str]:
    """The parts of a text between commas that are in no parentheses, each on one line."""
    depth, part = 0, ""
    for char in text + ",":
        depth += {"(": 1, ")": -1}.get(char, 0)
        if char == "," and depth == 0:
            yield " ".join(part.split())
            part = ""
        else:
            part += char


def columns_of(listed: str) -> tuple[str, ...]:
    return tuple(column.strip() for column in listed.split(","))


def is_unique(item: str) -> bool:
    return item.upper().startswith(("PRIMARY", "UNIQUE"))


def adding(table: str, item: str) -> str:
    return f"ALTER TABLE {table} ADD {item}"


def pattern(text: str) -> re.Pattern[str]:
    return re.compile(text.replace(" ", r"\s+"), re.IGNORECASE | re.DOTALL)


ADD = pattern(r"ADD (?:COLUMN )?(?:IF NOT EXISTS )?(?P<item>.+)")
DROP_COLUMN = pattern(r"DROP COLUMN (?:IF EXISTS )?(?P<name>\S+)")
DROP_KEY = pattern(r"DROP (?:KEY|INDEX) (?:IF EXISTS )?(?P<name>\S+)")
TABLE_KEY = pattern(r"(?:PRIMARY KEY|UNIQUE(?: KEY)?|KEY|INDEX)(?: (?P<name>\w+))?\s*\(")
COLUMN_KEY = pattern(r"\bPRIMARY KEY\b|\bUNIQUE\b")

RULES = (
    (
        pattern(r"CREATE (?:UNLOGGED )?TABLE (?:IF NOT EXISTS )?(?P<table>\S+)(?P<rest>.*)"),
        Blueprint.create_table,
    ),
    (pattern(r"ALTER TABLE (?P<table>\S+) (?P<rest>.*)"), Blueprint.alter_table),
    (
        pattern(
            r"CREATE (?P<unique>UNIQUE )?INDEX (?:IF NOT EXISTS )?(?P<name>\S+) ON "
            r"(?P<table>\S+)(?P<rest>.*)"
        ),
        Blueprint.create_index,
    ),
    (pattern(r"DROP INDEX (?:IF EXISTS )?(?P<name>\S+)(?: ON \S+)?"), Blueprint.drop_index),
    (pattern(r"DROP TABLE (?:IF EXISTS )?(?P<table>\S+)"), Blueprint.drop_table),
)
