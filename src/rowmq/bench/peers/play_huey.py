"""Plays huey on its SQLite and PostgreSQL storages, with its consumer and worker threads.

Huey takes a task out of the database before it runs it, so there is no acknowledgement to measure.
It has no bulk call. Results are not stored, which is its faster way.
"""

import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import huey
import psycopg
from part import Played, Refused, Spec, Stage, Tally, play, shares

QUEUE = "bench"
TABLES = ("kv", "schedule", "task", "counter")


def opened(spec: Spec, *, flush: bool = True) -> Any:
    """A huey on the storage for the database; on SQLite it syncs every commit, or never."""
    spec.require("sqlite", "postgresql")
    if spec.database == "postgresql":
        return huey.PostgresHuey(QUEUE, results=False, dsn=spec.url)
    return huey.SqliteHuey(QUEUE, results=False, filename=spec.path, fsync=flush)


def settings(spec: Spec) -> dict[str, Any]:
    if spec.database == "postgresql":
        return {"storage": "PostgresStorage", "results": False}
    return {"storage": "SqliteStorage", "results": False, "fsync": True}


def prepare(spec: Spec, _stage: Stage) -> None:
    spec.require("sqlite", "postgresql")
    if spec.database == "postgresql":
        with psycopg.connect(spec.url) as server:
            for table in TABLES:
                server.execute(f"DROP TABLE IF EXISTS huey_{table}")
    else:
        with closing(sqlite3.connect(spec.path, isolation_level=None)) as file:
            for table in TABLES:
                file.execute(f"DROP TABLE IF EXISTS {table}")
            file.execute("VACUUM")
    opened(spec).storage.close()


def fill(spec: Spec, _stage: Stage) -> None:
    """Put all tasks without syncing; then have everything in the database file itself."""
    app = opened(spec, flush=False)
    task = app.task(name=QUEUE)(never_run)
    payload = spec.payload()
    for _ in range(spec.messages):
        task(payload)
    app.storage.close()
    if spec.database == "sqlite":
        with closing(sqlite3.connect(spec.path)) as file:
            file.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    else:
        with psycopg.connect(spec.url, autocommit=True) as server:
            server.execute("VACUUM ANALYZE huey_task")


def never_run(payload: bytes) -> None:
    """What producers know the task by."""
    raise RuntimeError(f"a producer was to run a task: {payload!r}")


def publish(spec: Spec, stage: Stage) -> Played:
    if spec.batch > 1:
        raise Refused("There is no bulk call: publish with a batch of 1.")
    app = opened(spec)
    task = app.task(name=QUEUE)(never_run)
    payload = spec.payload()

    def caller(share: int) -> None:
        for _ in range(share):
            task(payload)

    with ThreadPoolExecutor(spec.callers) as threads:
        list(threads.map(caller, [1] * spec.callers))  # opens the connections
        stage.ready(**settings(spec), threads=spec.callers)
        began = time.monotonic()
        list(threads.map(caller, shares(spec)))
        return Played(spec.messages, began, time.monotonic())


def consume(spec: Spec, stage: Stage) -> Played:
    """Its consumer, with a worker thread for each caller."""
    tally = Tally(spec)

    def handle(_payload: bytes) -> None:
        tally.add()

    app = opened(spec)
    app.task(name=QUEUE)(handle)
    consumer = app.create_consumer(workers=spec.callers, periodic=False)
    began = stage.ready(**settings(spec), workers=spec.callers, worker_type="thread")
    consumer.start()
    tally.wait_in_thread()
    consumer.stop(graceful=True)
    return tally.played(began)


def check(spec: Spec, _stage: Stage) -> int:
    return int(opened(spec).pending_count())


if __name__ == "__main__":
    play(
        "huey",
        {
            "prepare": prepare,
            "fill": fill,
            "publish": publish,
            "consume": consume,
            "check": check,
        },
        packages=("huey", "psycopg"),
    )
