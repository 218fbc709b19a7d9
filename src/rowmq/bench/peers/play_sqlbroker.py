"""Plays faststream-sqlbroker on PostgreSQL (asyncpg), MySQL and MariaDB (asyncmy), and SQLite."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import uvloop
from faststream_sqlbroker import SqlBroker
from faststream_sqlbroker.sqlbroker.schema import SqlBrokerSchemaConfig, define_sqlbroker_schema
from part import Played, Spec, Stage, Tally, by_callers, play, warmed_up
from sqlalchemy import URL, BigInteger, Integer, event, func, make_url, select, text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

QUEUE = "bench"
FILL_BATCH = 500
MESSAGES = "faststream_message"
ARCHIVE = "faststream_message_archive"
DRIVERS = {
    "postgresql": "postgresql+asyncpg",
    "mysql": "mysql+asyncmy",
    "sqlite": "sqlite+aiosqlite",
}
ANALYZE = {
    "postgresql": f"ANALYZE {MESSAGES}",
    "mysql": f"ANALYZE TABLE {MESSAGES}",
    "sqlite": f"ANALYZE {MESSAGES}",
}
# One for what fetches, one for what flushes, and some to spare.
CONNECTIONS = 4
# It polls; so it is to fetch as soon as it can take a batch, and to flush much at a time.
PACE = {"max_fetch_interval": 0.1, "min_fetch_interval": 0.0, "flush_interval": 0.1}
# After an error of the database it rests for five seconds. A player that took this for the end
# would report the rate of the part before, which is higher than that of the whole.
IDLE_SECONDS_MIN = 8.0
# At MySQL's own level, its fetches and its deletes run into deadlocks in every other trial.
ENGINE = {"mysql": {"isolation_level": "READ COMMITTED"}}


@asynccontextmanager
async def connected(spec: Spec, *, connections: int = CONNECTIONS) -> AsyncIterator[AsyncEngine]:
    spec.require(*DRIVERS)
    more = ENGINE.get(spec.database, {})
    engine = create_async_engine(url_of(spec), pool_size=connections, **more)
    if spec.database == "sqlite":
        event.listen(engine.sync_engine, "connect", set_up_sqlite)
    try:
        yield engine
    finally:
        await engine.dispose()


def url_of(spec: Spec) -> URL:
    if spec.database == "sqlite":
        return URL.create(DRIVERS["sqlite"], database=spec.path)
    return make_url(spec.url).set(drivername=DRIVERS[spec.database])


def set_up_sqlite(connection: Any, _record: Any) -> None:
    """What a new connection to SQLite is told: the same as RowMQ tells its own."""
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode = WAL")
    cursor.execute("PRAGMA synchronous = FULL")
    cursor.close()


def schema(spec: Spec) -> SqlBrokerSchemaConfig:
    archive = ARCHIVE if spec.keep else None
    return SqlBrokerSchemaConfig(message_table_name=MESSAGES, message_archive_table_name=archive)


def tables(spec: Spec) -> list[Any]:
    """The table of messages, and that of the archive if there is one."""
    found = list(define_sqlbroker_schema(config=schema(spec)).tables.values())
    # SQLite numbers rows by itself only if they have an id of this type.
    found[0].c.id.type = BigInteger().with_variant(Integer(), "sqlite")
    return found


def broker_on(engine: AsyncEngine, spec: Spec) -> Any:
    """A broker without what takes time and can be turned off: checking of types, and logs."""
    return SqlBroker(
        engine=engine,
        schema=schema(spec),
        validate_schema_on_start=False,
        apply_types=False,
        logger=None,
    )


async def prepare(spec: Spec, _stage: Stage) -> None:
    async with connected(spec) as engine, engine.begin() as connection:
        for table in tables(replace(spec, keep=True)):
            await connection.run_sync(table.drop, checkfirst=True)
        for table in tables(spec):
            await connection.run_sync(table.create, checkfirst=True)


async def send_all(spec: Spec, broker: Any) -> Played:
    payload = spec.payload()

    async def send(count: int) -> None:
        if spec.batch == 1:
            await broker.publish(payload, queue=QUEUE)
        else:
            await broker.publish_batch(*[payload] * count, queue=QUEUE)

    return await by_callers(spec, send)


async def fill(spec: Spec, _stage: Stage) -> None:
    bulk = replace(spec, batch=FILL_BATCH, callers=1)
    async with connected(bulk) as engine:
        broker = broker_on(engine, bulk)
        await broker.connect()
        await send_all(bulk, broker)
        async with engine.begin() as connection:
            await connection.execute(text(ANALYZE[spec.database]))


async def publish(spec: Spec, stage: Stage) -> Played:
    async with connected(spec, connections=spec.callers) as engine:
        broker = broker_on(engine, spec)
        await broker.connect()
        await warmed_up(spec, lambda few: send_all(few, broker))
        stage.ready(driver=DRIVERS[spec.database], connections=spec.callers, batch=spec.batch)
        return await send_all(spec, broker)


async def consume(spec: Spec, stage: Stage) -> Played:
    tally = Tally(replace(spec, idle=max(spec.idle, IDLE_SECONDS_MIN)))

    async def handle(_body: bytes) -> None:
        tally.add()

    async def handle_batch(bodies: list[bytes]) -> None:
        for _body in bodies:
            tally.add()

    batched = spec.handler == "batch"
    options = {
        **PACE,
        "fetch_batch_size": spec.batch,
        "max_workers": 1,
        "batch": batched,
        "retain_in_archive_on_ack": spec.keep,
        "retain_in_archive_on_reject": spec.keep,
    }
    async with connected(spec) as engine:
        broker = broker_on(engine, spec)
        broker.subscriber([QUEUE], **options)(handle_batch if batched else handle)
        more = ENGINE.get(spec.database, {})
        began = stage.ready(driver=DRIVERS[spec.database], **more, **options)
        await broker.start()
        await tally.wait()
        await broker.stop()
    return tally.played(began)


async def check(spec: Spec, _stage: Stage) -> int:
    async with connected(spec) as engine, engine.connect() as connection:
        left = await connection.execute(select(func.count()).select_from(tables(spec)[0]))
        return int(left.scalar_one())


if __name__ == "__main__":
    play(
        "faststream-sqlbroker",
        {
            "prepare": prepare,
            "fill": fill,
            "publish": publish,
            "consume": consume,
            "check": check,
        },
        packages=("faststream-sqlbroker", "faststream", "sqlalchemy", "uvloop"),
        run=uvloop.run,
    )
