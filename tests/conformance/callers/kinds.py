"""What a kind of caller is, and how a test holds one.

A kind opens a transaction in the way its library's users do: as a context manager, which commits
at its end and rolls back after an error. Sync ones live in a thread of their own, together with
the client's calls on them, because several libraries bind a connection to its thread.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from functools import partial
from typing import Any, NamedTuple

import pymysql

import rowmq
from tests.databases import TO_CLEAN, Database, MySQLDatabase, Rows


class Caller(NamedTuple):
    """A transaction that is open: what is given as `connection=`, and how to run SQL of its own."""

    connection: Any
    run: Callable[[str], Any]


Opened = AbstractContextManager[Caller] | AbstractAsyncContextManager[Caller]


class Kind(NamedTuple):
    name: str
    flavour: str
    open: Callable[[Any], Opened]


class Held:
    """A client, and perhaps a caller, on the thread where they belong; all calls are awaited."""

    def __init__(self, mq: Any, call: Callable[..., Any], caller: Caller | None = None) -> None:
        self.mq = mq
        self.call = call
        self.caller = caller

    async def publish(self, *args: Any, **options: Any) -> Any:
        return await self.call(self.mq.publish, *args, **self.inside(options))

    async def publish_many(self, *args: Any, **options: Any) -> Any:
        return await self.call(self.mq.publish_many, *args, **self.inside(options))

    async def run(self, sql: str) -> Any:
        assert self.caller is not None
        return await self.call(self.caller.run, sql)

    def inside(self, options: dict[str, Any]) -> dict[str, Any]:
        return options if self.caller is None else {"connection": self.caller.connection} | options


class Undo(Exception):
    """Rolls a transaction back."""


async def in_loop(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    value = function(*args, **options)
    return await value if asyncio.iscoroutine(value) else value


class Thread:
    """One thread to run sync things in."""

    def __init__(self) -> None:
        self.pool = ThreadPoolExecutor(1)

    async def __call__(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.pool, partial(function, *args, **options))


@asynccontextmanager
async def client(flavour: str, url: str) -> AsyncIterator[Held]:
    """A client of a flavour, without a caller."""
    if flavour == "async":
        async with await rowmq.connect_async(url) as mq:
            yield Held(mq, in_loop)
        return
    thread = Thread()
    sync_mq = await thread(rowmq.connect, url)
    try:
        yield Held(sync_mq, thread)
    finally:
        await thread(sync_mq.close)
        thread.pool.shutdown()


@asynccontextmanager
async def transaction(held: Held, opened: Opened) -> AsyncIterator[Held]:
    """The client with a caller's transaction, which ends with the block; `Undo` undoes it."""
    enter, leave = ends(opened)
    caller = await held.call(enter)
    try:
        yield Held(held.mq, held.call, caller)
    except BaseException as error:
        await held.call(leave, type(error), error, error.__traceback__)
        if not isinstance(error, Undo):
            raise
    else:
        await held.call(leave, None, None, None)


def ends(opened: Opened) -> tuple[Any, Any]:
    """How to enter and how to leave a context manager, sync or async."""
    if isinstance(opened, AbstractAsyncContextManager):
        return opened.__aenter__, opened.__aexit__
    return opened.__enter__, opened.__exit__


def ask(database: Database, sql: str) -> Rows:
    """What another connection sees, or does, right now."""
    if not isinstance(database, MySQLDatabase):
        return database.execute(sql)
    # Without TLS: half of this suite's time would be spent on its set-up.
    options = database.options() | {"ssl_disabled": True, "autocommit": True}
    with pymysql.connect(**options) as connection, connection.cursor() as cursor:
        cursor.execute(sql)
        return list(cursor.fetchall())


def seen(database: Database) -> tuple[int, int, int]:
    """How many rows others see: the caller's own, partitions, messages."""
    (counts,) = ask(database, counting(["callers_own", "rowmq_partitions", "rowmq_messages"]))
    own, partitions, messages = counts
    return own, partitions, messages


def nothing_of_ours(database: Database) -> bool:
    """Whether no table of RowMQ's has a row, for others to see."""
    (counts,) = ask(database, counting(TO_CLEAN))
    return not any(counts)


def counting(tables: Sequence[str]) -> str:
    return "SELECT " + ", ".join(f"(SELECT COUNT(*) FROM {table})" for table in tables)
