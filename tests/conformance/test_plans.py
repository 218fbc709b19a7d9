"""Every hot statement, explained on large tables: an index that is lost fails here.

The statements are not copied: they are watched while real calls run, and then explained with the
parameters they had.
"""

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pymysql
import pytest
from psycopg import sql as composed

import rowmq
from rowmq import Message
from rowmq.store.statement import Statement
from tests.databases import Database, Databases, MySQLDatabase, SQLiteDatabase

HUGE = 100_000
PARTITIONS = 2_000
EACH = 20
LARGE_TABLES = ("messages", "partitions", "topics")

SERIES = {
    "sqlite": "WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < {count}) ",
    "postgres": "WITH s(n) AS (SELECT generate_series(1, {count})) ",
    "mysql": "WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < {count}) ",
}


@pytest.fixture(scope="module")
def large(databases: Databases) -> Callable[[str], Database]:
    """Databases with more than 100,000 messages, made once each."""
    made: dict[str, Database] = {}

    def get(name: str) -> Database:
        if name not in made:
            made[name] = databases.get(name).create()
            databases.stack.callback(made[name].drop)
            fill(made[name])
        return made[name]

    return get


def fill(database: Database) -> None:
    """One huge partition, and many small ones."""
    with rowmq.connect(database.url) as mq:
        mq.migrate()
        mq.publish_many("big", [Message(payload=0, key="huge", id="first")])
        batch = [
            Message(payload=n, key=f"k{n % PARTITIONS}", id=str(n))
            for n in range(PARTITIONS * EACH)
        ]
        mq.publish_many("big", batch)
    series = SERIES[database.dialect].format(count=HUGE)
    id = {"mysql": "CONCAT('x', n)"}.get(database.dialect, "'x' || n")
    select = (
        f"SELECT p.id, n + 1, p.id, 2, {id}, '1' FROM s, rowmq_partitions p "
        "WHERE p.partition_key = 'huge'"
    )
    columns = "(partition_id, message_offset, published_at, encoding, message_id, payload)"
    insert = f"INSERT INTO rowmq_messages {columns} "
    topic = {"mysql": "CONCAT('t', n)"}.get(database.dialect, "'t' || n")
    topics = "INSERT INTO rowmq_topics (topic, created_at) "
    topics_select = f"SELECT {topic}, 0 FROM s WHERE n <= 3000"
    others = "INSERT INTO rowmq_partitions (topic, partition_key, next_offset) "
    others_select = f"SELECT 'other', {topic}, 9 FROM s WHERE n <= 20000"
    if isinstance(database, MySQLDatabase):
        variables = {"mysql": "cte_max_recursion_depth", "mariadb": "max_recursive_iterations"}
        with (
            pymysql.connect(**database.options(), autocommit=True) as connection,
            connection.cursor() as cursor,
        ):
            cursor.execute(f"SET SESSION {variables[database.name]} = 1000000")
            cursor.execute(insert + series + select)
            cursor.execute(topics + series + topics_select)
            cursor.execute(others + series + others_select)
            cursor.execute("ANALYZE TABLE rowmq_messages, rowmq_partitions, rowmq_topics")
    else:
        cast = "::bytea" if database.dialect == "postgres" else ""
        select = select.replace("'1'", f"'1'{cast}")
        database.execute(series + insert + select)
        database.execute(series + topics + topics_select)
        database.execute(series + others + others_select)
        database.execute("ANALYZE")
    database.execute(
        f"UPDATE rowmq_partitions SET next_offset = {HUGE + 2} WHERE partition_key = 'huge'"
    )


def hot_calls(mq: rowmq.RowMQ) -> None:
    """Every call of the hot paths, in the sizes that differ."""
    mq.publish("big", 1, key="huge")
    mq.publish("big", 1, key="huge", id="x77")
    mq.publish("big", 1, key="brand new", id="new")
    mq.publish("big", 1)
    spread = [Message(payload=n, key=f"k{n}", id=f"fresh-{n}") for n in range(120)]
    mq.publish_many("big", spread)
    mq.publish_many("big", spread)
    with mq.transaction() as tx:
        tx.publish("big", 1, key="huge", id="in a transaction")
        tx.publish("big", 1, key="huge", id="in a transaction")
    mq.read("big", key="huge", from_offset=HUGE // 2, limit=100)
    mq.read("big", from_offset=2, limit=100)
    mq.read("big", since=datetime.now(UTC) - timedelta(seconds=1), limit=100)


def watched(database: Database) -> list[Statement]:
    """One statement of each text that the hot calls run."""
    seen: dict[str, Statement] = {}
    with rowmq.connect(database.url) as mq:
        mq._driver.observers.append(lambda statement: seen.update({statement.sql: statement}))
        hot_calls(mq)
    return [s for s in seen.values() if s.name.startswith("topics.")]


def test_hot_statements_use_indexes_only(
    large: Callable[[str], Database], database: Database
) -> None:
    subject = large(database.name)
    count = subject.execute("SELECT COUNT(*) FROM rowmq_messages")[0][0]
    assert count >= 100_000
    statements = watched(subject)
    assert len({statement.name for statement in statements}) >= 5
    explain = {"sqlite": scans_of_sqlite, "postgres": scans_of_postgres, "mysql": scans_of_mysql}
    scans = explain[subject.dialect](subject, statements)
    assert scans == []


SCANS = {
    "of a table": "SELECT * FROM rowmq_messages m WHERE m.published_at = 7",
    "of an index": """
        SELECT m.partition_id, m.message_offset FROM rowmq_messages m
        ORDER BY m.partition_id, m.message_offset LIMIT 10""",
}


@pytest.mark.parametrize("sql", SCANS.values(), ids=SCANS)
def test_a_scan_would_be_seen(
    large: Callable[[str], Database], database: Database, sql: str
) -> None:
    """The explaining itself must be able to fail."""
    subject = large(database.name)
    scan = [Statement("a scan", sql)]
    explain = {"sqlite": scans_of_sqlite, "postgres": scans_of_postgres, "mysql": scans_of_mysql}
    found = explain[subject.dialect](subject, scan)
    assert found != []
    if subject.dialect == "postgres":
        assert all(("Index" in each) == ("ORDER BY" in sql) for each in found), found


def scans_of_sqlite(database: Database, statements: list[Statement]) -> list[str]:
    assert isinstance(database, SQLiteDatabase)
    found = []
    with closing(sqlite3.connect(database.path)) as connection:
        for s in statements:
            plan = connection.execute("EXPLAIN QUERY PLAN " + s.sql, s.params).fetchall()
            found += [
                f"{s.name}: {row[3]}"
                for row in plan
                if row[3].startswith("SCAN") and "CONSTANT ROW" not in row[3]
            ]
    return found


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
            if s.sql.strip().startswith("INSERT"):
                continue  # of values: there is nothing to look up
            cursor.execute("EXPLAIN FORMAT=TRADITIONAL " + s.sql, list(s.params) or None)
            for row in cursor.fetchall():
                table = str(row["table"] or "")
                if table.startswith("<") or row["type"] is None:
                    continue  # a list of parameters
                if row["type"] in ("ALL", "index") or int(row["rows"] or 0) > 10_000:
                    found.append(f"{s.name}: {row['type']} of {table}, {row['rows']} rows")
    return found
