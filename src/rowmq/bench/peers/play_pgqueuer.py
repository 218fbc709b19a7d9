"""Plays pgqueuer, by asyncpg and uvloop as its own benchmark does."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

import asyncpg
import uvloop
from part import Played, Spec, Stage, Tally, by_callers, play, warmed_up
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver, AsyncpgPoolDriver
from pgqueuer.queries import Queries

ENTRYPOINT = "bench"
FILL_BATCH = 1_000


@asynccontextmanager
async def connected(spec: Spec) -> AsyncIterator[Any]:
    """Queries over a pool with a connection for every caller."""
    spec.require("postgresql")
    async with asyncpg.create_pool(spec.url, min_size=spec.callers, max_size=spec.callers) as pool:
        yield Queries(AsyncpgPoolDriver(pool))


async def prepare(spec: Spec, _stage: Stage) -> None:
    async with connected(spec) as queries:
        if await queries.schema_is_installed():
            await queries.uninstall()
        await queries.install()


async def send_all(spec: Spec, queries: Any) -> Played:
    payload = spec.payload()

    async def send(count: int) -> None:
        if spec.batch == 1:
            await queries.enqueue(ENTRYPOINT, payload, 0)
        else:
            await queries.enqueue([ENTRYPOINT] * count, [payload] * count, [0] * count)

    return await by_callers(spec, send)


async def fill(spec: Spec, _stage: Stage) -> None:
    bulk = replace(spec, batch=FILL_BATCH, callers=1)
    async with connected(bulk) as queries:
        await send_all(bulk, queries)
        await queries.driver.execute("VACUUM ANALYZE pgqueuer")


async def publish(spec: Spec, stage: Stage) -> Played:
    async with connected(spec) as queries:
        await warmed_up(spec, lambda few: send_all(few, queries))
        stage.ready(driver="AsyncpgPoolDriver", connections=spec.callers, batch=spec.batch)
        return await send_all(spec, queries)


async def consume(spec: Spec, stage: Stage) -> Played:
    """One queue manager for each caller, on a connection of its own."""
    spec.require("postgresql")
    tally = Tally(spec)

    async def handle(_job: Any) -> None:
        tally.add()

    async with AsyncExitStack() as stack:
        workers = []
        for _ in range(spec.callers):
            connection = await asyncpg.connect(spec.url)
            stack.push_async_callback(connection.close)
            worker = PgQueuer(AsyncpgDriver(connection))
            worker.entrypoint(ENTRYPOINT)(handle)
            workers.append(worker)
        began = stage.ready(driver="AsyncpgDriver", batch_size=spec.batch, managers=spec.callers)
        running = [asyncio.create_task(one.run(batch_size=spec.batch)) for one in workers]
        await tally.wait()
        for worker in workers:
            worker.shutdown.set()
        await asyncio.gather(*running)
    return tally.played(began)


async def check(spec: Spec, _stage: Stage) -> int:
    async with connected(spec) as queries:
        return sum(row.count for row in await queries.queue_size())


if __name__ == "__main__":
    play(
        "pgqueuer",
        {
            "prepare": prepare,
            "fill": fill,
            "publish": publish,
            "consume": consume,
            "check": check,
        },
        packages=("pgqueuer", "asyncpg", "uvloop"),
        run=uvloop.run,
    )
