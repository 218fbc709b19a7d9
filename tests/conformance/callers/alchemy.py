"""SQLAlchemy's four objects, for any of its dialects."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any

from sqlalchemy import Connection, Engine, NullPool, create_engine, text
from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncEngine,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from tests.conformance.callers.kinds import Caller, Kind
from tests.databases import Database


def url_for(database: Database, driver: str) -> str:
    """The database's URL, as SQLAlchemy spells it."""
    _, _, rest = database.url.partition("://")
    return f"{driver}://{rest}"


@contextmanager
def engine(database: Database, driver: str, **options: Any) -> Iterator[Engine]:
    made = create_engine(url_for(database, driver), poolclass=NullPool, **options)
    yield made
    made.dispose()


@asynccontextmanager
async def async_engine(
    database: Database, driver: str, **options: Any
) -> AsyncIterator[AsyncEngine]:
    made = create_async_engine(url_for(database, driver), poolclass=NullPool, **options)
    yield made
    await made.dispose()


def of(connection: Connection | Session | scoped_session[Session]) -> Caller:
    return Caller(connection, lambda sql: connection.execute(text(sql)))


def async_of(
    connection: AsyncConnection | AsyncSession | async_scoped_session[AsyncSession],
) -> Caller:
    async def run(sql: str) -> Any:
        return await connection.execute(text(sql))

    return Caller(connection, run)


@contextmanager
def connection(driver: str, database: Database) -> Iterator[Caller]:
    with engine(database, driver) as made, made.begin() as opened:
        yield of(opened)


@contextmanager
def session(driver: str, database: Database) -> Iterator[Caller]:
    with engine(database, driver) as made, Session(made) as opened, opened.begin():
        yield of(opened)


@contextmanager
def scoped(driver: str, database: Database) -> Iterator[Caller]:
    with engine(database, driver) as made:
        opened = scoped_session(sessionmaker(made))
        try:
            with opened.begin():
                yield of(opened)
        finally:
            opened.remove()


@asynccontextmanager
async def async_connection(driver: str, database: Database) -> AsyncIterator[Caller]:
    async with async_engine(database, driver) as made, made.begin() as opened:
        yield async_of(opened)


@asynccontextmanager
async def async_session(driver: str, database: Database) -> AsyncIterator[Caller]:
    async with (
        async_engine(database, driver) as made,
        AsyncSession(made) as opened,
        opened.begin(),
    ):
        yield async_of(opened)


@asynccontextmanager
async def async_scoped(driver: str, database: Database) -> AsyncIterator[Caller]:
    async with async_engine(database, driver) as made:
        opened = async_scoped_session(async_sessionmaker(made), scopefunc=lambda: None)
        try:
            async with opened.begin():
                yield async_of(opened)
        finally:
            await opened.remove()


def kinds(*drivers: str) -> list[Kind]:
    """Connection and Session for each dialect; the scoped one, which only forwards, for one."""
    found = [Kind(f"{drivers[0]}-scoped_session", "sync", partial(scoped, drivers[0]))]
    for driver in drivers:
        found.append(Kind(f"{driver}-Connection", "sync", partial(connection, driver)))
        found.append(Kind(f"{driver}-Session", "sync", partial(session, driver)))
    return found


def async_kinds(*drivers: str) -> list[Kind]:
    name = drivers[0]
    found = [Kind(f"{name}-async_scoped_session", "async", partial(async_scoped, name))]
    for driver in drivers:
        found.append(Kind(f"{driver}-AsyncConnection", "async", partial(async_connection, driver)))
        found.append(Kind(f"{driver}-AsyncSession", "async", partial(async_session, driver)))
    return found


# --- not begun, and never to begin --------------------------------------------------------------


@contextmanager
def unbegun(driver: str, database: Database) -> Iterator[Caller]:
    """A connection as it is opened; closed at the end, and committed only by the test."""
    with engine(database, driver) as made, made.connect() as opened:
        yield of(opened)


@asynccontextmanager
async def async_unbegun(driver: str, database: Database) -> AsyncIterator[Caller]:
    async with async_engine(database, driver) as made, made.connect() as opened:
        yield async_of(opened)


def unbegun_kinds(drivers: list[str], async_drivers: list[str]) -> list[Kind]:
    return [
        *(Kind(driver, "sync", partial(unbegun, driver)) for driver in drivers),
        *(Kind(driver, "async", partial(async_unbegun, driver)) for driver in async_drivers),
    ]


@contextmanager
def autocommitting(driver: str, database: Database) -> Iterator[Caller]:
    level = {"isolation_level": "AUTOCOMMIT"}
    with engine(database, driver, **level) as made, made.connect() as opened:
        yield of(opened)


@contextmanager
def autocommitting_by_option(driver: str, database: Database) -> Iterator[Caller]:
    with engine(database, driver) as made, made.connect() as opened:
        yield of(opened.execution_options(isolation_level="AUTOCOMMIT"))


@contextmanager
def autocommitting_session(driver: str, database: Database) -> Iterator[Caller]:
    level = {"isolation_level": "AUTOCOMMIT"}
    with engine(database, driver, **level) as made, Session(made) as opened:
        yield of(opened)


@asynccontextmanager
async def async_autocommitting(driver: str, database: Database) -> AsyncIterator[Caller]:
    level = {"isolation_level": "AUTOCOMMIT"}
    async with async_engine(database, driver, **level) as made, made.connect() as opened:
        yield async_of(opened)


def autocommit_kinds(drivers: list[str], async_drivers: list[str]) -> list[Kind]:
    found = []
    for driver in drivers:
        found += [
            Kind(f"{driver}-engine", "sync", partial(autocommitting, driver)),
            Kind(f"{driver}-option", "sync", partial(autocommitting_by_option, driver)),
            Kind(f"{driver}-session", "sync", partial(autocommitting_session, driver)),
        ]
    for driver in async_drivers:
        found.append(Kind(f"{driver}-engine", "async", partial(async_autocommitting, driver)))
    return found
