"""Callers on SQLite."""

import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from functools import partial
from typing import Any

import aiosqlite

from tests.conformance.callers import alchemy, django
from tests.conformance.callers.kinds import Caller, Kind
from tests.databases import SQLiteDatabase


def dict_rows(cursor: Any, row: tuple[Any, ...]) -> dict[str, Any]:
    return {column[0]: value for column, value in zip(cursor.description, row, strict=True)}


@contextmanager
def connection(
    database: SQLiteDatabase, row_factory: Any = None, **options: Any
) -> Iterator[Caller]:
    with closing(sqlite3.connect(database.path, **options)) as opened, opened:
        opened.row_factory = row_factory
        yield Caller(opened, opened.execute)


class Proxy:
    """Stands before a connection and claims its class, as tracing tools and Flask's globals do."""

    def __init__(self, target: Any) -> None:
        self.target = target

    def __getattr__(self, name: str) -> Any:
        return getattr(self.target, name)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self.target)


@contextmanager
def proxied(database: SQLiteDatabase) -> Iterator[Caller]:
    with connection(database) as caller:
        yield caller._replace(connection=Proxy(caller.connection))


@contextmanager
def begun(database: SQLiteDatabase) -> Iterator[Caller]:
    with closing(sqlite3.connect(database.path, isolation_level=None)) as opened:
        opened.execute("BEGIN")
        with opened:
            yield Caller(opened, opened.execute)


@asynccontextmanager
async def in_async_code(database: SQLiteDatabase, **options: Any) -> AsyncIterator[Caller]:
    with connection(database, **options) as caller:
        yield caller


@asynccontextmanager
async def aio(
    database: SQLiteDatabase, row_factory: Any = None, **options: Any
) -> AsyncIterator[Caller]:
    async with aiosqlite.connect(database.path, **options) as opened:
        opened.row_factory = row_factory

        async def run(sql: str) -> None:
            await (await opened.execute(sql)).close()

        try:
            yield Caller(opened, run)
        except BaseException:
            await opened.rollback()
            raise
        await opened.commit()


KINDS = [
    Kind("sqlite3", "sync", connection),
    Kind("sqlite3-BEGIN", "sync", begun),
    Kind("sqlite3-Row", "sync", partial(connection, row_factory=sqlite3.Row)),
    Kind("sqlite3-dict", "sync", partial(connection, row_factory=dict_rows)),
    Kind("sqlite3-proxied", "sync", proxied),
    *alchemy.kinds("sqlite"),
    *django.KINDS,
    Kind("sqlite3-in-async-code", "async", in_async_code),
    Kind("aiosqlite", "async", aio),
    Kind("aiosqlite-dict", "async", partial(aio, row_factory=dict_rows)),
    *alchemy.async_kinds("sqlite+aiosqlite"),
]

# --- without a transaction ----------------------------------------------------------------------

UNBEGUN = alchemy.unbegun_kinds(["sqlite"], ["sqlite+aiosqlite"])
AUTOCOMMIT = [
    Kind("sqlite3", "sync", partial(connection, isolation_level=None)),
    django.AUTOCOMMIT,
    Kind("sqlite3-in-async-code", "async", partial(in_async_code, isolation_level=None)),
    Kind("aiosqlite", "async", partial(aio, isolation_level=None)),
    *alchemy.autocommit_kinds(["sqlite"], ["sqlite+aiosqlite"]),
]
