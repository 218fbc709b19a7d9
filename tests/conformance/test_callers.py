"""The caller's own transaction: what RowMQ writes in it is kept or undone with everything else.

Every object that `connection=` takes, on every database it can be had on: see `callers`.
"""

import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from typing import Any

import pytest
from sqlalchemy import create_engine, event
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import sessionmaker

import rowmq
from rowmq import Message, errors
from rowmq.drivers import callers
from tests.conformance.callers import alchemy, mysql, postgres, sqlite
from tests.conformance.callers.kinds import (
    Held,
    Kind,
    Thread,
    Undo,
    ask,
    client,
    nothing_of_ours,
    seen,
    transaction,
)
from tests.databases import NAMES, Database, Databases, SQLiteDatabase

MODULES: dict[str, Any] = {
    "sqlite": sqlite,
    "postgres": postgres,
    "mariadb": mysql,
    "mysql": mysql,
}

INSERT = "INSERT INTO callers_own (note) VALUES ('mine')"
EVERY_BYTE = bytes(range(256))
QUOTES = b"\\'\"%s%%\x00\x1a\xbf\x5c\xbf\x27"
KEY = "schlüssel 😀"
HEADERS = {"träger": "😀", "quote": "'\"\\%"}
BATCH = [
    Message(payload=EVERY_BYTE, key=KEY, id="new", headers=HEADERS),
    Message(payload="known", key=KEY, id="ïd 😀"),
    Message(payload={"json": "😀"}, key=KEY, headers=HEADERS),
    Message(payload="again", key=KEY, id="new"),
    Message(payload="keyless", id="ïd 😀"),
]


def matrix(kinds: str, *names: str) -> list[Any]:
    """Each database with each of its kinds; or with those named only."""
    return [
        pytest.param((database, kind), id=f"{database}-{kind.name}-{kind.flavour}")
        for database in NAMES
        for kind in getattr(MODULES[database], kinds)
        if not names or kind.name in names
    ]


@pytest.fixture(params=matrix("KINDS"))
def chosen(request: pytest.FixtureRequest, databases: Databases) -> tuple[Database, Kind]:
    name, kind = request.param
    return with_own_table(databases.get(name)), kind


@pytest.fixture
def database(chosen: tuple[Database, Kind]) -> Database:
    return chosen[0]


@pytest.fixture
def kind(chosen: tuple[Database, Kind]) -> Kind:
    return chosen[1]


@pytest.fixture(scope="module")
def clients() -> Iterator[dict[str, Held]]:
    """Sync clients of the servers, kept: connecting takes longer than most tests."""
    kept: dict[str, Held] = {}
    yield kept
    for held in kept.values():
        held.mq.close()


@pytest.fixture
async def mq(database: Database, kind: Kind, clients: dict[str, Held]) -> AsyncIterator[Held]:
    if kind.flavour == "async" or database.name == "sqlite":
        async with client(kind.flavour, database.url) as held:
            yield held
        return
    if database.url not in clients:
        clients[database.url] = Held(rowmq.connect(database.url), Thread())
    yield clients[database.url]


def with_own_table(database: Database) -> Database:
    try:
        ask(database, "DELETE FROM callers_own")
    except Exception:  # noqa: BLE001 - each driver has its own error for a missing table
        ask(database, "CREATE TABLE callers_own (note varchar(100))")
    return database


# --- commit and rollback ------------------------------------------------------------------------


async def test_a_commit_keeps_both(mq: Held, database: Database, kind: Kind) -> None:
    async with transaction(mq, kind.open(database)) as tx:
        first = await tx.publish("orders", 1, key="a")
        await tx.run(INSERT)
        second = await tx.publish("orders", 2, key="a")
        assert seen(database) == (0, 0, 0)  # the transaction is still open
    assert (first.offset, second.offset) == (1, 2)
    assert seen(database) == (1, 1, 2)


async def test_a_rollback_leaves_nothing(mq: Held, database: Database, kind: Kind) -> None:
    async with transaction(mq, kind.open(database)) as tx:
        await tx.run(INSERT)
        await tx.publish("orders", 1, key="a")
        await tx.publish("orders", 2, key="a", id="x")
        await tx.publish_many("returns", [Message(payload=n, key=str(n)) for n in range(3)])
        raise Undo
    assert seen(database) == (0, 0, 0)
    assert nothing_of_ours(database)
    again = await mq.publish("orders", 3, key="a", id="x")
    assert (again.offset, again.duplicate) == (1, False)


@pytest.mark.parametrize("chosen", matrix("UNBEGUN"), indirect=True)
async def test_sqlalchemy_begins_by_itself(mq: Held, database: Database, kind: Kind) -> None:
    async with transaction(mq, kind.open(database)) as tx:
        await tx.publish("orders", "closed without a commit")
        await tx.run(INSERT)
    assert nothing_of_ours(database)
    async with transaction(mq, kind.open(database)) as tx:
        assert tx.caller is not None
        await tx.publish("orders", "kept")
        await tx.run(INSERT)
        await tx.call(tx.caller.connection.commit)
        await tx.publish("orders", "lost again")
    assert seen(database) == (1, 1, 1)


# --- what is written is right -------------------------------------------------------------------


async def test_messages_are_written_as_without(mq: Held, database: Database, kind: Kind) -> None:
    known = await mq.publish("töpic 😀", "known", key=KEY, id="ïd 😀", headers=HEADERS)
    async with transaction(mq, kind.open(database)) as tx:
        again = await tx.publish("töpic 😀", "again", key=KEY, id="ïd 😀")
        one = await tx.publish("töpic 😀", EVERY_BYTE, key=KEY, id="öne", headers=HEADERS)
        one_again = await tx.publish("töpic 😀", "again", key=KEY, id="öne")
        made = await tx.publish("töpic 😀", QUOTES, key=KEY, headers=HEADERS)
        many = await tx.publish_many("töpic 😀", BATCH)
    results = [known, again, one, one_again, made, *many]
    assert [(r.offset, r.duplicate) for r in results] == [
        (1, False), (1, True), (2, False), (2, True), (3, False),
        (4, False), (1, True), (5, False), (4, True), (1, False),
    ]  # fmt: skip
    read = await mq.call(mq.mq.read, "töpic 😀", key=KEY)
    assert [m.payload for m in read] == ["known", EVERY_BYTE, QUOTES, EVERY_BYTE, {"json": "😀"}]
    assert [m.id for m in read] == ["ïd 😀", "öne", made.id, "new", many[2].id]
    assert all(m.headers == HEADERS for m in read)


# MySQL 9 warns of VALUES() in our ON DUPLICATE KEY UPDATE, and aiomysql hands warnings on.
async def test_what_is_refused_leaves_the_transaction_usable(
    mq: Held, database: Database, kind: Kind
) -> None:
    await mq.call(mq.mq.configure_topic, "small", max_payload_bytes=10)
    async with transaction(mq, kind.open(database)) as tx:
        await tx.publish("small", b"before")
        for id in (None, "given"):
            with pytest.raises(errors.PayloadTooLarge):
                await tx.publish("small", b"x" * 11, id=id)
        with pytest.raises(errors.InvalidTopic):
            await tx.publish("", 1)
        await tx.run(INSERT)
        await tx.call(mq.mq.configure_topic, "small", max_payload_bytes=11, **tx.inside({}))
        await tx.publish("small", b"x" * 11)
    assert seen(database) == (1, 1, 2)


# --- among others -------------------------------------------------------------------------------

ON_MYSQL = matrix(
    "KINDS",
    "PyMySQL",
    "mysql-connector",
    "mysql+pymysql-Session",
    "asyncmy",
    "aiomysql",
    "mysql+asyncmy-AsyncConnection",
)


@pytest.mark.parametrize("chosen", ON_MYSQL, indirect=True)
@pytest.mark.parametrize("strict", [False, True])
async def test_a_snapshot_does_not_hide_a_duplicate(
    mq: Held, database: Database, kind: Kind, monkeypatch: pytest.MonkeyPatch, *, strict: bool
) -> None:
    """MySQL's default, REPEATABLE READ; and strict, as MariaDB has it by default since 11.6."""
    await mq.publish("orders", 1, key="a", id="old")
    async with transaction(mq, kind.open(database)) as tx:
        await tx.run("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        if strict and database.name == "mariadb":
            # An older MariaDB has the setting too, and leaves it off.
            earlier = callers.AS_IT_IS_NOW.replace("110602", "101108")
            monkeypatch.setattr(callers, "AS_IT_IS_NOW", earlier)
            await tx.run("SET SESSION innodb_snapshot_isolation = ON")
        await tx.run("SELECT COUNT(*) FROM callers_own")
        await mq.publish("orders", 2, key="a", id="new")
        await mq.publish("orders", 3, key="b", id="new")
        results = [
            await tx.publish("orders", 4, key="a", id="new"),
            await tx.publish("orders", 5, key="b", id="new"),
            await tx.publish("orders", 6, key="a", id="newer"),
        ]
    assert [(r.offset, r.duplicate) for r in results] == [(2, True), (1, True), (3, False)]
    assert seen(database) == (0, 2, 4)


@pytest.mark.parametrize("chosen", matrix("KINDS", "psycopg", "asyncpg"), indirect=True)
async def test_postgres_tells_that_a_snapshot_is_too_old(
    mq: Held, database: Database, kind: Kind
) -> None:
    await mq.publish("orders", 1, key="a")
    async with transaction(mq, kind.open(database)) as tx:
        await tx.run("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        await tx.run("SELECT COUNT(*) FROM callers_own")
        await mq.publish("orders", 2, key="a")
        with pytest.raises(errors.SerializationFailure):
            await tx.publish("orders", 3, key="a")
        raise Undo
    assert seen(database) == (0, 1, 2)


SQLITE_WAITS = matrix("KINDS", "sqlite3", "sqlite3-in-async-code", "aiosqlite", "sqlite-Connection")


@pytest.mark.parametrize("chosen", SQLITE_WAITS, indirect=True)
async def test_a_lock_that_is_held_is_told_as_ours(
    mq: Held, database: SQLiteDatabase, kind: Kind
) -> None:
    with closing(sqlite3.connect(database.path, isolation_level=None)) as rival:
        async with transaction(mq, kind.open(database)) as tx:
            rival.execute("BEGIN IMMEDIATE")
            await tx.run("PRAGMA busy_timeout = 1")
            with pytest.raises(errors.Locked):
                await tx.publish("orders", 1)
            rival.execute("ROLLBACK")
            await tx.publish("orders", 2)
    assert seen(database) == (0, 1, 1)


def test_an_sqlite_engine_may_begin_in_its_own_way(databases: Databases) -> None:
    """As SQLAlchemy's documentation advises: sqlite3 in autocommit mode, and an event that begins.
    The style of parameters may be changed as well.
    """
    database = with_own_table(databases.get("sqlite"))
    engine = create_engine(database.url, paramstyle="named")

    @event.listens_for(engine, "connect")
    def connected(raw: Any, _record: Any) -> None:
        raw.isolation_level = None

    @event.listens_for(engine, "begin")
    def begins(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN")

    with rowmq.connect(database.url) as mq, engine.connect() as connection:
        mq.publish("orders", 1, connection=connection)
        assert seen(database) == (0, 0, 0)
        connection.rollback()
        assert nothing_of_ours(database)
        mq.publish("orders", 1, connection=connection)
        connection.commit()
    engine.dispose()
    assert seen(database) == (0, 1, 1)


# --- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize("chosen", matrix("AUTOCOMMIT"), indirect=True)
async def test_without_a_transaction_nothing_is_written(
    mq: Held, database: Database, kind: Kind
) -> None:
    async with transaction(mq, kind.open(database)) as tx:
        with pytest.raises(errors.NoTransaction, match="begin a transaction first"):
            await tx.publish("orders", 1)
        with pytest.raises(errors.NoTransaction):
            await tx.publish_many("orders", [Message(payload=1, id="x")])
        await tx.run(INSERT)
    assert nothing_of_ours(database)
    assert seen(database)[0] == 1


WORDS = {
    ("sqlite", "sync"): "sqlite3, SQLAlchemy or Django",
    ("sqlite", "async"): "sqlite3, aiosqlite or SQLAlchemy",
    ("postgres", "sync"): "psycopg, psycopg2, SQLAlchemy or Django",
    ("postgres", "async"): "asyncpg, psycopg",
    ("mysql", "sync"): "PyMySQL, mysqlclient, mysql-connector, SQLAlchemy or Django",
    ("mysql", "async"): "asyncmy, aiomysql, mysql-connector",
}

SAMPLES = {
    "sqlite": ["sqlite3", "aiosqlite", "django", "sqlite-Session", "sqlite+aiosqlite-AsyncSession"],
    "postgres": ["psycopg", "psycopg-AsyncConnection", "asyncpg", "postgresql+psycopg-Connection"],
    "mariadb": ["PyMySQL", "mysql-connector", "asyncmy", "mysql-connector-aio", "aiomysql"],
}


@pytest.mark.parametrize("flavour", ["sync", "async"])
@pytest.mark.parametrize("name", NAMES)
async def test_a_connection_of_another_kind_is_refused(
    databases: Databases, name: str, flavour: str
) -> None:
    database = with_own_table(databases.get(name))
    wrong = [
        (databases.get(other), kind)
        for other, names in SAMPLES.items()
        for kind in MODULES[other].KINDS
        if kind.name in names
        and (MODULES[other] is not MODULES[name] or kind.flavour != flavour)
        and (name, flavour, kind.name) != ("sqlite", "async", "sqlite3")
    ]
    async with client("sync", database.url) as sync, client("async", database.url) as loop:
        mq = {"sync": sync, "async": loop}[flavour]
        for other, kind in wrong:
            place = {"sync": sync, "async": loop}[kind.flavour]
            async with transaction(place, kind.open(other)) as tx:
                with pytest.raises(
                    errors.UnsupportedConnection, match=WORDS[database.dialect, flavour]
                ):
                    await mq.publish("orders", 1, **tx.inside({}))
    assert nothing_of_ours(database)


@pytest.mark.parametrize("flavour", ["sync", "async"])
@pytest.mark.parametrize("name", NAMES)
async def test_an_object_that_is_no_connection_is_refused(
    databases: Databases, name: str, flavour: str
) -> None:
    database = databases.get(name)
    driver = {"sqlite": "sqlite", "postgres": "postgresql+psycopg", "mysql": "mysql+pymysql"}
    async_driver = driver | {"sqlite": "sqlite+aiosqlite", "mysql": "mysql+asyncmy"}
    url = alchemy.url_for(database, driver[database.dialect])
    async_url = alchemy.url_for(database, async_driver[database.dialect])
    engine, async_engine = create_engine(url), create_async_engine(async_url)
    with closing(sqlite3.connect(":memory:")) as memory, closing(memory.cursor()) as cursor:
        things = [object(), object, 0, False, "", {}, database.url, cursor, engine, async_engine]
        things += [engine.begin(), sessionmaker(engine), async_engine.connect()]
        async with client(flavour, database.url) as held:
            for thing in things:
                with pytest.raises(errors.UnsupportedConnection):
                    await held.publish("orders", 1, connection=thing)
    engine.dispose()
    await async_engine.dispose()
    assert nothing_of_ours(database)


async def test_a_transaction_of_the_other_client_is_refused(databases: Databases) -> None:
    url = databases.get("sqlite").url
    async with await rowmq.connect_async(url) as async_mq:
        with rowmq.connect(url) as mq:
            with mq.transaction() as tx, pytest.raises(errors.UnsupportedConnection):
                await async_mq.publish("orders", 1, connection=tx)
            async with async_mq.transaction() as async_tx:
                with pytest.raises(errors.UnsupportedConnection, match="AsyncTransaction"):
                    mq.publish("orders", 1, connection=async_tx)
