"""How close publishing comes to the raw limit of each database, in one run on this machine.

The raw limit is the bulk path of each database into a plain table, without offsets, ids or locks:
COPY on PostgreSQL, multi-row INSERT on MariaDB, executemany on SQLite. Both are measured in turns;
look at the ratio, since absolute figures do not travel. Servers flush every commit to the disk.
"""

import argparse
import asyncio
import json
import os
import platform
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

import psycopg
import pymysql
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import rowmq
from rowmq import Message
from tests.servers import MariaDBServer, PostgresServer

PAYLOAD = b"x" * 200
ID_BYTES = 36
Timed = Callable[[int], float]


class Scenario(NamedTuple):
    """What is measured: messages in batches over partitions, by callers at once."""

    name: str
    batch: int
    partitions: int
    callers: int
    messages: int


SCENARIOS = [
    Scenario("single, 1 caller, 1 partition", 1, 1, 1, 500),
    Scenario("single, 16 callers, 1 partition", 1, 1, 16, 3_000),
    Scenario("single, 16 callers, 1,000 partitions", 1, 1_000, 16, 3_000),
    Scenario("batches of 100, 16 partitions", 100, 16, 1, 10_000),
    Scenario("batches of 1,000, 1 partition", 1_000, 1, 1, 20_000),
    Scenario("batches of 1,000, 1,000 partitions", 1_000, 1_000, 1, 20_000),
]


class Subject(NamedTuple):
    """A database, with its raw bulk insert and what it says of itself."""

    name: str
    url: str
    raw: Callable[[int, int], float]
    settings: dict[str, str]


# --- raw limits --------------------------------------------------------------------------------


def raw_postgres(url: str) -> Callable[[int, int], float]:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS raw (id text, payload bytea)")

    def run(messages: int, batch: int) -> float:
        rows = [("i" * ID_BYTES, PAYLOAD)] * batch
        with psycopg.connect(url, autocommit=True) as connection, connection.cursor() as cursor:
            started = time.perf_counter()
            for _ in range(messages // batch):
                if batch == 1:
                    cursor.execute("INSERT INTO raw VALUES (%s, %s)", rows[0])
                    continue
                with cursor.copy("COPY raw FROM STDIN (FORMAT BINARY)") as copy:
                    copy.set_types(["text", "bytea"])
                    for row in rows:
                        copy.write_row(row)
            return time.perf_counter() - started

    return run


def mysql_options(url: str) -> dict[str, Any]:
    parts = urlsplit(url)
    return {
        "host": parts.hostname,
        "port": parts.port,
        "user": unquote(parts.username or ""),
        "password": unquote(parts.password or ""),
        "database": parts.path[1:],
        "autocommit": True,
    }


def raw_mysql(url: str) -> Callable[[int, int], float]:
    with pymysql.connect(**mysql_options(url)) as connection, connection.cursor() as cursor:
        cursor.execute(
            "CREATE TABLE IF NOT EXISTS raw (n bigint AUTO_INCREMENT PRIMARY KEY,"
            " id varbinary(255), payload longblob)"
        )

    def run(messages: int, batch: int) -> float:
        sql = "INSERT INTO raw (id, payload) VALUES " + ", ".join(["(%s, %s)"] * batch)
        values = ["i" * ID_BYTES, PAYLOAD] * batch
        with pymysql.connect(**mysql_options(url)) as connection, connection.cursor() as cursor:
            started = time.perf_counter()
            for _ in range(messages // batch):
                cursor.execute(sql, values)
            return time.perf_counter() - started

    return run


def raw_sqlite(url: str) -> Callable[[int, int], float]:
    path = url.removeprefix("sqlite:///")

    def run(messages: int, batch: int) -> float:
        rows = [("i" * ID_BYTES, PAYLOAD)] * batch
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("CREATE TABLE IF NOT EXISTS raw (id text, payload blob)")
            started = time.perf_counter()
            for _ in range(messages // batch):
                connection.execute("BEGIN IMMEDIATE")
                connection.executemany("INSERT INTO raw VALUES (?, ?)", rows)
                connection.execute("COMMIT")
            return time.perf_counter() - started

    return run


# --- RowMQ -------------------------------------------------------------------------------------


def publish_sync(mq: rowmq.RowMQ, scenario: Scenario) -> float:
    def caller(number: int) -> None:
        for turn in range(scenario.messages // scenario.batch // scenario.callers):
            start = (number + turn) * scenario.batch
            keys = [f"k{(start + n) % scenario.partitions}" for n in range(scenario.batch)]
            if scenario.batch == 1:
                mq.publish("bench", PAYLOAD, key=keys[0])
            else:
                mq.publish_many("bench", [Message(payload=PAYLOAD, key=key) for key in keys])

    with ThreadPoolExecutor(scenario.callers) as threads:
        started = time.perf_counter()
        list(threads.map(caller, range(scenario.callers)))
        return time.perf_counter() - started


async def publish_async(url: str, scenario: Scenario) -> float:
    async with await rowmq.connect_async(url) as mq:

        async def caller(number: int) -> None:
            for turn in range(scenario.messages // scenario.batch // scenario.callers):
                start = (number + turn) * scenario.batch
                keys = [f"k{(start + n) % scenario.partitions}" for n in range(scenario.batch)]
                if scenario.batch == 1:
                    await mq.publish("bench", PAYLOAD, key=keys[0])
                else:
                    batch = [Message(payload=PAYLOAD, key=key) for key in keys]
                    await mq.publish_many("bench", batch)

        started = time.perf_counter()
        await asyncio.gather(*(caller(number) for number in range(scenario.callers)))
        return time.perf_counter() - started


# --- the run -----------------------------------------------------------------------------------


def subjects(stack: ExitStack, names: list[str]) -> list[Subject]:
    found = []
    if "sqlite" in names:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="rowmq-bench-"))
        url = f"sqlite:///{Path(folder) / 'bench.db'}"
        settings = {"version": sqlite3.sqlite_version, "synchronous": "FULL", "journal": "WAL"}
        found.append(Subject("sqlite", url, raw_sqlite(url), settings))
    if "postgres" in names:
        postgres = stack.enter_context(PostgresServer(fsync="on", full_page_writes="on"))
        with psycopg.connect(postgres.url) as connection:
            settings = {
                name: str((connection.execute(f"SHOW {name}").fetchone() or [""])[0])
                for name in ("server_version", "fsync", "synchronous_commit", "shared_buffers")
            }
        found.append(Subject("postgres", postgres.url, raw_postgres(postgres.url), settings))
    if "mariadb" in names:
        mariadb = stack.enter_context(MariaDBServer())
        with (
            pymysql.connect(**mysql_options(mariadb.url)) as link,
            link.cursor() as cursor,
        ):
            cursor.execute("SET GLOBAL innodb_flush_log_at_trx_commit = 1")
            cursor.execute("SELECT @@version, @@innodb_flush_log_at_trx_commit")
            version, flush = cursor.fetchone() or ("", "")
        settings = {"version": str(version), "innodb_flush_log_at_trx_commit": str(flush)}
        found.append(Subject("mariadb", mariadb.url, raw_mysql(mariadb.url), settings))
    return found


def measure(subject: Subject, scenario: Scenario, repeat: int) -> dict[str, Any]:
    """Rates of the raw limit, the sync and the async client, in turns."""
    rates: dict[str, list[float]] = {"raw": [], "sync": [], "async": []}
    with rowmq.connect(subject.url) as mq:
        mq.migrate()
        publish_sync(mq, scenario._replace(messages=scenario.callers * scenario.batch))
        for _ in range(repeat):
            for kind, seconds in (
                ("raw", subject.raw(scenario.messages, scenario.batch)),
                ("sync", publish_sync(mq, scenario)),
                ("async", asyncio.run(publish_async(subject.url, scenario))),
            ):
                rates[kind].append(scenario.messages / seconds)
    middle = {kind: statistics.median(values) for kind, values in rates.items()}
    return {
        "database": subject.name,
        "scenario": scenario.name,
        "ratio_sync": middle["sync"] / middle["raw"],
        "ratio_async": middle["async"] / middle["raw"],
        "per_second": middle,
        "spread": {kind: [min(values), max(values)] for kind, values in rates.items()},
    }


def show(console: Console, results: list[dict[str, Any]], chosen: list[Subject]) -> None:
    table = Table(title="publishing: ratio to the raw limit, and messages a second (median)")
    for column in ("database", "scenario", "sync", "async", "sync/s", "async/s", "raw/s"):
        table.add_column(column, justify="left" if column in ("database", "scenario") else "right")
    for result in results:
        rates = result["per_second"]
        table.add_row(
            result["database"],
            result["scenario"],
            f"{result['ratio_sync']:.2f}",
            f"{result['ratio_async']:.2f}",
            *(f"{rates[kind]:,.0f}" for kind in ("sync", "async", "raw")),
        )
    console.print(table)
    console.print(
        f"RowMQ {rowmq.__version__}, Python {platform.python_version()}, "
        f"{os.cpu_count()} cores, payloads of {len(PAYLOAD)} bytes"
    )
    for subject in chosen:
        console.print(f"{subject.name}: {subject.settings}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=3, help="how often each is measured")
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")
    parser.add_argument(
        "databases", nargs="*", default=["sqlite", "postgres", "mariadb"], help="which databases"
    )
    options = parser.parse_args()
    console = Console(stderr=options.json, highlight=False)
    with ExitStack() as stack:
        chosen = subjects(stack, options.databases)
        results = []
        with Progress(console=console, transient=True) as progress:
            task = progress.add_task("measuring", total=len(chosen) * len(SCENARIOS))
            for subject in chosen:
                for scenario in SCENARIOS:
                    results.append(measure(subject, scenario, options.repeat))
                    progress.advance(task)
        if options.json:
            settings = {subject.name: subject.settings for subject in chosen}
            json.dump({"settings": settings, "results": results}, sys.stdout, indent=2)
        else:
            show(console, results, chosen)


if __name__ == "__main__":
    main()
