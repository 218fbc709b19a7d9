"""Plays pgmq by its SQL: the functions of its extension, installed from its official client.

The queue has no worker runtime of its own; its documented loop is `read` and then `archive` (or
`delete`, if nothing is to be kept), which each caller does here on a connection of its own.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import asyncpg
import uvloop
from part import Played, Spec, Stage, Tally, by_callers, play, warmed_up
from pgmq import install

QUEUE = "bench"
FILL_BATCH = 1_000
# Nothing that is measured lasts as long: a message is read once.
VISIBILITY_SECONDS = 600
# How long a caller that found nothing waits before it looks again.
EMPTY_SECONDS = 0.05


@asynccontextmanager
async def connected(spec: Spec) -> AsyncIterator[Any]:
    """A pool with a connection for every caller."""
    spec.require("postgresql")
    async with asyncpg.create_pool(spec.url, min_size=spec.callers, max_size=spec.callers) as pool:
        yield pool


async def prepare(spec: Spec, _stage: Stage) -> None:
    async with connected(spec) as pool:
        await pool.execute("DROP SCHEMA IF EXISTS pgmq CASCADE")
        await pool.execute(install.get_embedded_install_sql())
        await pool.execute("SELECT pgmq.create($1)", QUEUE)


async def send_all(spec: Spec, pool: Any) -> Played:
    message = json.dumps(spec.document())

    async def send(count: int) -> None:
        if spec.batch == 1:
            await pool.fetch("SELECT * FROM pgmq.send($1, $2::jsonb)", QUEUE, message)
        else:
            sql = "SELECT * FROM pgmq.send_batch($1, $2::jsonb[])"
            await pool.fetch(sql, QUEUE, [message] * count)

    return await by_callers(spec, send)


async def fill(spec: Spec, _stage: Stage) -> None:
    bulk = replace(spec, batch=FILL_BATCH, callers=1)
    async with connected(bulk) as pool:
        await send_all(bulk, pool)
        await pool.execute(f"VACUUM ANALYZE pgmq.q_{QUEUE}")


async def publish(spec: Spec, stage: Stage) -> Played:
    async with connected(spec) as pool:
        await warmed_up(spec, lambda few: send_all(few, pool))
        stage.ready(**settings(spec), function="send" if spec.batch == 1 else "send_batch")
        return await send_all(spec, pool)


async def consume(spec: Spec, stage: Stage) -> Played:
    tally = Tally(spec)
    async with connected(spec) as pool:
        settle = "archive" if spec.keep else "delete"
        began = stage.ready(**settings(spec), functions=["read", settle])
        stopping = asyncio.Event()
        callers = [
            asyncio.create_task(read_and_settle(spec.batch, settle, pool, tally, stopping))
            for _ in range(spec.callers)
        ]
        await tally.wait()
        stopping.set()
        await asyncio.gather(*callers)
    return tally.played(began)


async def read_and_settle(
    batch: int, settle: str, pool: Any, tally: Tally, stopping: asyncio.Event
) -> None:
    """The loop of one caller. Messages are left as the text of their JSON."""
    read = "SELECT * FROM pgmq.read($1, $2, $3)"
    async with pool.acquire() as connection:
        while not stopping.is_set():
            rows = await connection.fetch(read, QUEUE, VISIBILITY_SECONDS, batch)
            if not rows:
                await asyncio.sleep(EMPTY_SECONDS)
                continue
            tally.add(len(rows))
            ids = [row["msg_id"] for row in rows]
            await connection.fetch(f"SELECT * FROM pgmq.{settle}($1, $2::bigint[])", QUEUE, ids)


async def check(spec: Spec, _stage: Stage) -> int:
    async with connected(spec) as pool:
        return int(await pool.fetchval(f"SELECT count(*) FROM pgmq.q_{QUEUE}"))


def settings(spec: Spec) -> dict[str, Any]:
    return {
        "extension": install.get_embedded_sql_version(),
        "driver": "asyncpg",
        "connections": spec.callers,
        "batch": spec.batch,
    }


if __name__ == "__main__":
    play(
        "pgmq",
        {
            "prepare": prepare,
            "fill": fill,
            "publish": publish,
            "consume": consume,
            "check": check,
        },
        packages=("pgmq", "asyncpg", "uvloop"),
        run=uvloop.run,
    )
