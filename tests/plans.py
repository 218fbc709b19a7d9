"""What databases say of how they run statements: what they scan, and how much they read."""

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import Any

import psycopg
import pymysql
from psycopg import sql as composed

from rowmq.store.statement import Statement
from tests.databases import Database, MySQLDatabase, SQLiteDatabase

LARGE_TABLES = (
    "messages",
    "partitions",
    "topics",
    "groups",
    "offsets",
    "delivery_state",
    "subscribers",
    "dead_letters",
    "jobs",
    "ready",
    "locks",
    "job_keys",
    "lines",
    "waiting",
    "completed",
    "failed",
    "job_errors",
    "staged",
)
"""Tables that may grow large: to read one whole is a scan. Permits are as many as limits say."""

INSTRUCTIONS_PER_ROW = 3
"""How many steps SQLite takes at least for a row that it looks at."""


def scans_of(database: Database, statements: list[Statement]) -> list[str]:
    """What statements would read whole, a table or an index."""
    explain: dict[str, Callable[..., list[str]]] = {
        "sqlite": scans_of_sqlite,
        "postgres": scans_of_postgres,
        "mysql": scans_of_mysql,
    }
    return explain[database.dialect](database, statements)


def reads_of(database: Database, statements: list[Statement]) -> dict[str, float]:
    """How many rows statements look at, when they are run and undone."""
    run: dict[str, Callable[..., dict[str, float]]] = {
        "sqlite": reads_of_sqlite,
        "postgres": reads_of_postgres,
        "mysql": reads_of_mysql,
    }
    return run[database.dialect](database, statements)


def reads_of_sqlite(database: Database, statements: list[Statement]) -> dict[str, float]:
    """How many rows each statement may have looked at, by what the virtual machine had to do."""
    assert isinstance(database, SQLiteDatabase)
    reads: dict[str, float] = {}
    with closing(sqlite3.connect(database.path, isolation_level=None)) as connection:
        for s in statements:
            steps = 0

            def step() -> int:
                nonlocal steps
                steps += 1
                return 0

            connection.execute("BEGIN")
            connection.set_progress_handler(step, 10)
            connection.execute(s.sql, s.params).fetchall()
            connection.set_progress_handler(None, 0)
            connection.execute("ROLLBACK")
            reads[s.name] = max(reads.get(s.name, 0), steps * 10 / INSTRUCTIONS_PER_ROW)
    return reads


def reads_of_postgres(database: Database, statements: list[Statement]) -> dict[str, float]:
    reads: dict[str, float] = {}
    with psycopg.connect(database.url, autocommit=True) as connection:
        for mode in ("force_custom_plan", "force_generic_plan"):
            connection.execute(f"SET plan_cache_mode = {mode}")
            for number, s in enumerate(statements):
                connection.execute(f"PREPARE {mode}_{number} AS {s.sql}")
                values = [composed.Literal(value) for value in s.params]
                arguments = composed.SQL("({})").format(composed.SQL(", ").join(values))
                query = composed.SQL("EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE {}{}").format(
                    composed.Identifier(f"{mode}_{number}"),
                    arguments if values else composed.SQL(""),
                )
                with connection.transaction(force_rollback=True):
                    row = connection.execute(query).fetchone()
                assert row is not None
                reads[f"{s.name} ({mode})"] = rows_of(row[0][0]["Plan"])
    return reads


def rows_of(plan: dict[str, Any]) -> float:
    """The rows that all parts of a plan have looked at."""
    removed = (
        "Rows Removed by Filter",
        "Rows Removed by Join Filter",
        "Rows Removed by Index Recheck",
    )
    rows = plan["Actual Rows"] + sum(plan.get(key, 0) for key in removed)
    below = sum(rows_of(child) for child in plan.get("Plans", []))
    return float(rows * plan["Actual Loops"] if "Scan" in plan["Node Type"] else 0) + below


def reads_of_mysql(database: Database, statements: list[Statement]) -> dict[str, float]:
    assert isinstance(database, MySQLDatabase)
    reads: dict[str, float] = {}
    with pymysql.connect(**database.options()) as connection, connection.cursor() as cursor:

        def total() -> int:
            cursor.execute("SHOW SESSION STATUS LIKE 'Handler_read%'")
            return sum(int(value) for _, value in cursor.fetchall())

        itself = -total() + total()  # what the counting counts
        for s in statements:
            before = total()
            cursor.execute(s.sql, list(s.params) or None)
            cursor.fetchall()
            reads[s.name] = max(reads.get(s.name, 0), total() - before - itself)
            connection.rollback()
    return reads


def scans_of_sqlite(database: Database, statements: list[Statement]) -> list[str]:
    assert isinstance(database, SQLiteDatabase)
    found = []
    with closing(sqlite3.connect(database.path)) as connection:
        for s in statements:
            plan = connection.execute("EXPLAIN QUERY PLAN " + s.sql, s.params).fetchall()
            found += [f"{s.name}: {row[3]}" for row in plan if is_scan(row[3])]
    return found


SMALL = ("w", "s", "q", "l", "o", "f LEFT-JOIN", "few")
"""What statements call lists of parameters, the queues and their lanes, which are few, and the
first rows of an index.
"""


def is_scan(step: str) -> bool:
    """Whether a step of SQLite's reads a whole table, if only to make an index of its own."""
    small = step.removeprefix("SCAN ") in SMALL
    given = ("CONSTANT ROW" in step, small, step.startswith("SCAN ("))
    return "AUTOMATIC" in step or (step.startswith("SCAN") and not any(given))


def scans_of_postgres(database: Database, statements: list[Statement]) -> list[str]:
    """As prepared statements are planned: once for the parameters, and once for any."""
    found = []
    with psycopg.connect(database.url, autocommit=True) as connection:
        for mode in ("force_custom_plan", "force_generic_plan"):
            connection.execute(f"SET plan_cache_mode = {mode}")
            for number, s in enumerate(statements):
                name = f"{mode}_{number}"
                connection.execute(f"PREPARE {name} AS {s.sql}")
                values = [composed.Literal(value) for value in s.params]
                arguments = composed.SQL("({})").format(composed.SQL(", ").join(values))
                query = composed.SQL("EXPLAIN (FORMAT JSON) EXECUTE {}{}").format(
                    composed.Identifier(name), arguments if values else composed.SQL("")
                )
                row = connection.execute(query).fetchone()
                assert row is not None
                plan = row[0] if isinstance(row[0], list) else json.loads(row[0])
                found += [f"{s.name} ({mode}): {scan}" for scan in full_scans(plan[0]["Plan"])]
    return found


def full_scans(plan: dict[str, Any]) -> list[str]:
    """The parts of a plan that read all of a large table, or all of an index of one."""
    kind, relation = plan["Node Type"], plan.get("Relation Name", "")
    large = relation in {f"rowmq_{table}" for table in LARGE_TABLES}
    # The index of a bitmap scan stands below it, without the name of its table.
    by_index = kind in ("Index Scan", "Index Only Scan", "Bitmap Index Scan")
    unbound = by_index and "Index Cond" not in plan
    found = []
    if (large and (kind == "Seq Scan" or unbound)) or (unbound and not relation):
        found.append(f"{kind} of {relation or plan['Index Name']}")
    for child in plan.get("Plans", []):
        found += full_scans(child)
    return found


def scans_of_mysql(database: Database, statements: list[Statement]) -> list[str]:
    assert isinstance(database, MySQLDatabase)
    found = []
    with (
        pymysql.connect(**database.options(), cursorclass=pymysql.cursors.DictCursor) as connection,
        connection.cursor() as cursor,
    ):
        for s in statements:
            if s.sql.strip().startswith("INSERT") and "SELECT" not in s.sql:
                continue  # of values: there is nothing to look up
            cursor.execute("EXPLAIN FORMAT=TRADITIONAL " + s.sql, list(s.params) or None)
            for row in cursor.fetchall():
                table = str(row["table"] or "")
                if table.startswith("<") or table == "given" or row["type"] is None:
                    continue  # a list of parameters
                if row["select_type"] == "INSERT":
                    continue  # the table that is written to
                many = int(row["rows"] or 0) > 10_000 and "LIMIT" not in s.sql
                one = row["type"] == "index" and int(row["rows"] or 0) == 1  # the first of an order
                whole = row["type"] in ("ALL", "index") and table not in SMALL and not one
                if whole or many:
                    found.append(f"{s.name}: {row['type']} of {table}, {row['rows']} rows")
    return found
