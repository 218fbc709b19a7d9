"""Plays procrastinate, by its psycopg connector."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import procrastinate
import psycopg
import uvloop
from part import Played, Spec, Stage, Tally, by_callers, play, warmed_up
from psycopg_pool import AsyncConnectionPool

TASK = "bench"
FILL_BATCH = 1_000
CONCURRENCY = 50
# A worker fetches jobs one by one but finishes them side by side, each on a connection.
CONNECTIONS_MAX = 50
# It has a command that makes its schema, but none that removes it.
DROP_ALL = r"""
DO $$
DECLARE objects text[];
DECLARE object text;
BEGIN
    SELECT array_agg(name) INTO objects FROM (
        SELECT format('TABLE IF EXISTS %s', oid::regclass) AS name FROM pg_class
        WHERE relkind = 'r' AND relname LIKE 'procrastinate\_%'
        UNION ALL
        SELECT format('FUNCTION IF EXISTS %s', oid::regprocedure) FROM pg_proc
        WHERE proname LIKE 'procrastinate\_%'
        UNION ALL
        SELECT format('TYPE IF EXISTS %s', t.oid::regtype)
        FROM pg_type AS t LEFT JOIN pg_class AS c ON c.oid = t.typrelid
        WHERE t.typname LIKE 'procrastinate\_%' AND (t.typtype = 'e' OR c.relkind = 'c')
    ) AS made;
    FOREACH object IN ARRAY coalesce(objects, '{}') LOOP
        EXECUTE 'DROP ' || object || ' CASCADE';
    END LOOP;
END $$
"""


@asynccontextmanager
async def opened(
    spec: Spec, *, connections: int, handle: Callable[..., Any] | None = None
) -> AsyncIterator[Any]:
    """An app with one task, and a pool of so many connections."""
    spec.require("postgresql")
    # Its workers log every job; without handlers for the lines, only making them would cost.
    logging.getLogger("procrastinate").setLevel(logging.ERROR)
    app = procrastinate.App(connector=procrastinate.PsycopgConnector())
    app.task(name=TASK)(handle or never_run)
    # A pool of our own: the connector's would ask every connection that it lends whether it lives.
    async with (
        AsyncConnectionPool(
            spec.url, min_size=connections, max_size=connections, open=False
        ) as pool,
        app.open_async(pool),
    ):
        await pool.wait()
        yield app


def never_run(data: str) -> None:
    """What producers know the task by."""
    raise RuntimeError(f"a producer was to run a task: {data!r}")


async def prepare(spec: Spec, _stage: Stage) -> None:
    spec.require("postgresql")
    async with await psycopg.AsyncConnection.connect(spec.url, autocommit=True) as connection:
        await connection.execute(DROP_ALL)
    async with opened(spec, connections=1) as app:
        await app.schema_manager.apply_schema_async()


async def send_all(spec: Spec, app: Any) -> Played:
    task = app.tasks[TASK]
    document = spec.document()

    async def send(count: int) -> None:
        if spec.batch == 1:
            await task.defer_async(**document)
        else:
            await task.batch_defer_async(*[document] * count)

    return await by_callers(spec, send)


async def fill(spec: Spec, _stage: Stage) -> None:
    bulk = replace(spec, batch=FILL_BATCH, callers=1)
    async with opened(bulk, connections=1) as app:
        await send_all(bulk, app)
        await app.connector.execute_query_async("ANALYZE procrastinate_jobs")


async def publish(spec: Spec, stage: Stage) -> Played:
    async with opened(spec, connections=spec.callers) as app:
        await warmed_up(spec, lambda few: send_all(few, app))
        stage.ready(connector="PsycopgConnector", connections=spec.callers, batch=spec.batch)
        return await send_all(spec, app)


async def consume(spec: Spec, stage: Stage) -> Played:
    """So many workers as callers, which share a pool; each runs several jobs at once."""
    tally = Tally(spec)

    async def handle(**_document: str) -> None:
        tally.add()

    connections = min(spec.callers * CONCURRENCY, CONNECTIONS_MAX)
    options = {
        "concurrency": CONCURRENCY,
        "delete_jobs": "never" if spec.keep else "always",
        "listen_notify": False,
    }
    async with opened(spec, connections=connections, handle=handle) as app:
        began = stage.ready(
            connector="PsycopgConnector", connections=connections, workers=spec.callers, **options
        )
        workers = [
            asyncio.create_task(app.run_worker_async(install_signal_handlers=False, **options))
            for _ in range(spec.callers)
        ]
        await tally.wait()
        for worker in workers:
            worker.cancel()
        for worker in workers:
            with suppress(asyncio.CancelledError):
                await worker
    return tally.played(began)


async def check(spec: Spec, _stage: Stage) -> int:
    spec.require("postgresql")
    async with await psycopg.AsyncConnection.connect(spec.url) as connection:
        cursor = await connection.execute(
            "SELECT count(*) FROM procrastinate_jobs WHERE status IN ('todo', 'doing')"
        )
        (left,) = await cursor.fetchone() or (0,)
        return int(left)


if __name__ == "__main__":
    play(
        "procrastinate",
        {
            "prepare": prepare,
            "fill": fill,
            "publish": publish,
            "consume": consume,
            "check": check,
        },
        packages=("procrastinate", "psycopg", "uvloop"),
        run=uvloop.run,
    )
