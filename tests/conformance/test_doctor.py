"""The doctor: a healthy database is called so, a sick one is told what it has; advice helps."""

import asyncio
import contextlib
import re
import shlex
import sqlite3
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import msgspec
import psycopg
import pymysql
import pytest
from click.testing import CliRunner

import rowmq
from rowmq import Level, Message, Thresholds, errors
from rowmq.cli.main import app
from rowmq.doctor.checks import CHECKS
from rowmq.store.doctor_sqlite import SQLiteExamination
from rowmq.store.workers import WorkerFacts
from tests.choices import async_only, on_mysql, on_servers, on_sqlite
from tests.conftest import Connect
from tests.consuming import eventually, publish, statements, subscribe, take
from tests.databases import Database, MySQLDatabase, PostgresDatabase, SQLiteDatabase
from tests.plans import reads_of
from tests.servers import PostgresServer

on_postgres = pytest.mark.parametrize("database", ["postgres"], indirect=True)

# Where the tests' own user may grant rights: on a MySQL that is named, it may well not.
on_servers_of_ours = pytest.mark.parametrize("database", ["postgres", "mariadb"], indirect=True)

# What the servers of the tests do without, to be quick.
SHORTCUTS = {"fsync", "full_page_writes", "innodb_flush_log_at_trx_commit", "sync_binlog"}

NAMES = [check.name for check in CHECKS]


async def examined(mq: Any, check: str, **thresholds: Any) -> rowmq.Checkup:
    """One check, and thresholds that differ from the usual ones."""
    checkup = await mq.doctor(checks=[check], thresholds=Thresholds(**thresholds))
    assert isinstance(checkup, rowmq.Checkup)
    assert {finding.check for finding in checkup} == {check}
    return checkup


def sick(checkup: rowmq.Checkup) -> list[rowmq.Finding]:
    """The warnings and problems."""
    return [finding for finding in checkup if finding.level in (Level.WARNING, Level.PROBLEM)]


def about(checkup: rowmq.Checkup, words: str) -> rowmq.Finding:
    """The only finding whose summary has some words."""
    found = [finding for finding in checkup if words in finding.summary]
    assert len(found) == 1, [finding.summary for finding in checkup]
    return found[0]


def short_of(checkup: rowmq.Checkup) -> list[rowmq.Finding]:
    """What is wrong beside the shortcuts of the tests' own servers."""
    return [finding for finding in sick(checkup) if not set(finding.details) & SHORTCUTS]


def follow(finding: rowmq.Finding, command: str, database: Database, *, yes: bool = False) -> None:
    """Run a command as the advice of a finding has it."""
    match = re.search(rf"rowmq {command}[^;]*", finding.advice)
    assert match is not None, finding.advice
    words = [*shlex.split(match[0])[1:], "--url", database.url, *(["--yes"] if yes else [])]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output


# --- healthy ------------------------------------------------------------------------------------


async def test_a_database_at_work_is_healthy(mq: Any, database: Database) -> None:
    await publish(mq, 3)
    queue = mq.queue("emails")
    await queue.put("hello")
    async with subscribe(mq) as sub:
        deliveries = await take(sub, 3)
        checkup = await mq.doctor()
        for delivery in deliveries:
            await delivery.ack()
    job = await queue.try_poll()
    await job.ack()
    assert [finding.check for finding in short_of(checkup)] == []
    again = await mq.doctor()
    assert short_of(again) == []
    assert not [finding for finding in again if "could not be made" in finding.summary]
    assert list(dict.fromkeys(finding.check for finding in checkup)) == NAMES
    (indexes,) = checkup.of("indexes")
    assert (indexes.level, indexes.details["indexes"] >= 10) == (Level.OK, True)
    names = {"mysql": {"mysql", "mariadb"}}.get(database.dialect, {database.dialect})
    assert any(about(checkup, "answers in").details["url"].startswith(name) for name in names)


async def test_the_connection_is_shown_without_its_password(mq: Any, database: Database) -> None:
    checkup = await mq.doctor()
    told = msgspec.json.encode(list(checkup)).decode()
    assert "rowmq:rowmq" not in told
    found = about(checkup, "answers in")
    assert found.details["round_trip_ms"] > 0
    driver = {"sqlite": "sqlite3", "postgres": "psycopg|asyncpg", "mysql": "pymysql|asyncmy"}
    assert re.match(driver[database.dialect], found.details["driver"])


async def test_only_the_checks_that_are_named_are_made(mq: Any) -> None:
    checkup = await mq.doctor(checks=["lag", "clock"])
    assert [finding.check for finding in checkup] == ["lag", "clock"]
    assert checkup.of("clock")[0].details["difference_seconds"] < 5


async def test_bad_input_is_refused(mq: Any) -> None:
    with pytest.raises(errors.InvalidOption, match="no check 'cloak'; there are connection"):
        await mq.doctor(checks=["cloak"])
    wrong: list[dict[str, Any]] = [{"lag_age": -1}, {"failures": 0.5}, {"connections": 2}]
    for thresholds in [*wrong, {"history": True}, {"long_transaction": "1h"}]:
        (name,) = thresholds
        with pytest.raises(errors.InvalidOption, match=name):
            await mq.doctor(thresholds=Thresholds(**thresholds))
    with pytest.raises(errors.InvalidOption, match="Thresholds"):
        await mq.doctor(thresholds={"lag_age": 1})


# --- the schema and its indexes -------------------------------------------------------------------


@on_servers
async def test_missing_tables_are_a_problem_and_what_needs_them_is_left_out(
    connect: Connect, empty_database: Database
) -> None:
    mq = await connect(empty_database.url)
    checkup = await mq.doctor()
    found = about(checkup, "there are no tables with the prefix")
    assert (found.check, found.level) == ("schema", Level.PROBLEM)
    assert "rowmq migrate" in found.advice
    assert [finding.level for finding in checkup.of("lag")] == [Level.NOTE]
    assert short_of(checkup) == [found]
    await mq.migrate()
    assert short_of(await mq.doctor()) == []


async def test_tables_of_a_newer_release_are_a_problem(mq: Any, database: Database) -> None:
    database.execute("INSERT INTO rowmq_migrations VALUES (99, 'later', 0)")
    try:
        (found,) = sick(await examined(mq, "schema"))
    finally:
        database.execute("DELETE FROM rowmq_migrations WHERE version = 99")
    assert found.level is Level.PROBLEM
    assert "upgrade" in found.advice
    assert (found.details["version"], found.details["wanted"]) == (99, 1)


@async_only
async def test_a_missing_table_or_column_is_named(
    connect: Connect, empty_database: Database
) -> None:
    mq = await connect(empty_database.url)
    await mq.migrate()
    empty_database.execute("DROP TABLE rowmq_holds")
    empty_database.execute("ALTER TABLE rowmq_topics RENAME COLUMN retention_us TO kept_us")
    missing = {f.details["table"]: f.details["missing"] for f in sick(await examined(mq, "schema"))}
    assert missing["rowmq_topics"] == ["retention_us"]
    assert missing["rowmq_holds"] == ["job_id", "started_at", "starts"]


LOST = {
    "sqlite": "DROP INDEX rowmq_locks_by_expiry",
    "postgres": "DROP INDEX rowmq_locks_by_expiry",
    "mysql": "ALTER TABLE rowmq_locks DROP KEY locks_by_expiry",
}

REPLACED = {
    "sqlite": "CREATE INDEX rowmq_locks_by_expiry ON rowmq_locks (owner)",
    "postgres": "CREATE INDEX rowmq_locks_by_expiry ON rowmq_locks (owner)",
    "mysql": "ALTER TABLE rowmq_locks ADD KEY locks_by_expiry (owner)",
}


@async_only
async def test_an_index_that_is_missing_or_wrong_comes_back_by_the_advice(
    connect: Connect, empty_database: Database
) -> None:
    mq = await connect(empty_database.url)
    await mq.migrate()
    dialect = empty_database.dialect
    for breaking, story in (([LOST], "is missing"), ([LOST, REPLACED], "other columns (owner)")):
        for statement in breaking:
            empty_database.execute(statement[dialect])
        (found,) = sick(await examined(mq, "indexes"))
        assert found.level is Level.PROBLEM
        assert "locks_by_expiry of rowmq_locks" in found.summary
        assert story in found.summary
        for statement in found.details["statements"]:
            assert statement in found.advice
            empty_database.execute(statement)
        assert sick(await examined(mq, "indexes")) == []


@async_only
@on_servers
async def test_a_lost_constraint_is_found_too(connect: Connect, empty_database: Database) -> None:
    mq = await connect(empty_database.url)
    await mq.migrate()
    lost = {
        "postgres": "ALTER TABLE rowmq_lanes DROP CONSTRAINT "
        "rowmq_lanes_queue_id_kind_precedence_key",
        "mysql": "ALTER TABLE rowmq_lanes DROP KEY queue_id",
    }
    empty_database.execute(lost[empty_database.dialect])
    (found,) = sick(await examined(mq, "indexes"))
    assert "UNIQUE (queue_id, kind, precedence)" in found.summary
    (statement,) = found.details["statements"]
    empty_database.execute(statement)
    assert sick(await examined(mq, "indexes")) == []


@async_only
@on_postgres
async def test_an_index_that_is_not_valid_is_made_anew(
    connect: Connect, empty_database: Database
) -> None:
    mq = await connect(empty_database.url, schema="queue")
    await mq.migrate()
    empty_database.execute(
        "UPDATE pg_index SET indisvalid = false "
        "WHERE indexrelid = 'queue.rowmq_locks_by_expiry'::regclass"
    )
    (found,) = sick(await examined(mq, "indexes"))
    assert "not valid" in found.summary
    for statement in found.details["statements"]:
        empty_database.execute(statement)
    assert sick(await examined(mq, "indexes")) == []


# --- topics ---------------------------------------------------------------------------------------


async def test_a_group_that_nobody_consumes_is_found(mq: Any, database: Database) -> None:
    await publish(mq, 3)
    await mq.create_group("t", "g")
    (found,) = sick(await examined(mq, "lag", unattended=0))
    assert "nobody consumes group 'g' of topic 't'" in found.summary
    assert found.details["lag"] == 3
    assert found.details["oldest_seconds"] > 0
    assert sick(await examined(mq, "lag")) == []  # it may be a moment's absence
    follow(found, "groups drop", database, yes=True)
    assert sick(await examined(mq, "lag", unattended=0)) == []


async def test_a_group_that_is_slow_is_found(mq: Any, database: Database) -> None:
    await publish(mq, 3)
    async with subscribe(mq) as sub:
        first, *_ = await take(sub, 3)
        await first.ack()
        for thresholds in ({"lag_age": 0}, {"lag_messages": 1}):
            (found,) = sick(await examined(mq, "lag", **thresholds))
            assert "2 messages behind" in found.summary
            assert found.details["subscribers"] == 1
            follow(found, "lag", database)


async def test_messages_that_retention_took_are_told(mq: Any, database: Database) -> None:
    await mq.create_group("t", "g")
    database.execute("UPDATE rowmq_groups SET expired = 7")
    checkup = await examined(mq, "lag")
    assert "retention took 7 messages" in about(checkup, "retention").summary
    assert checkup.healthy  # it is over, and the group is not behind


async def test_dead_letters_are_counted_with_their_errors(mq: Any, database: Database) -> None:
    await publish(mq, 3)
    async with subscribe(mq) as sub:
        for delivery in await take(sub, 3):
            bad = delivery.message.payload > 1
            await delivery.reject(error="no such product" if bad else "too late\nby a day")
    (found,) = sick(await examined(mq, "failures"))
    follow(found, "dlq ls", database)
    assert "3 dead letters of group 'g' of topic 't'" in found.summary
    assert found.details["errors"] == {"no such product": 2, "too late": 1}
    assert found.details["oldest_seconds"] >= found.details["newest_seconds"] >= 0
    assert sick(await examined(mq, "failures", failures=4)) == []
    follow(found, "dlq redrive", database)
    assert sick(await examined(mq, "failures")) == []
    assert sick(await examined(mq, "failures")) == []


async def test_errors_that_differ_in_numbers_and_names_are_of_one_kind(mq: Any) -> None:
    await publish(mq, 4)
    told = [f"no address for customer 'c-{n} \u2603'" + " so far" * 100 for n in range(3)]
    async with subscribe(mq) as sub:
        for delivery, error in zip(await take(sub, 4), [*told, "too late"], strict=True):
            await delivery.reject(error=error)
    jobs = mq.queue("q")
    await jobs.put_many([1, 2, 3, 4])
    for job, error in zip(await jobs.try_poll_many(4), [*told, "too late"], strict=True):
        await job.reject(error=error)
    kinds = {kind.pattern: kind.count for kind in await mq.letter_kinds("t")}
    assert sorted(kinds.values()) == [1, 3]
    for found in sick(await examined(mq, "failures")):
        assert found.details["errors"] == kinds
        assert "most often: \"no address for customer '…' so far" in found.summary


async def test_a_lease_that_nobody_took_over_is_found(mq: Any, database: Database) -> None:
    await publish(mq, 1)
    async with subscribe(mq) as sub:
        (delivery,) = await take(sub, 1)
        await delivery.ack()
    abandon(database, "worker-7")
    (found,) = sick(await examined(mq, "stuck"))
    assert "subscriber 'worker-7' of group 'g' of topic 't'" in found.summary
    assert found.details["partitions"] == 1
    assert found.details["expired_seconds"] > 60
    async with subscribe(mq):  # as the advice says
        assert await eventually(lambda: is_cured(mq, "stuck"))


def abandon(database: Database, name: str) -> None:
    """Let a subscriber have died long ago, that owned everything."""
    database.execute(
        "INSERT INTO rowmq_subscribers (group_id, heartbeat_at, expires_at, subscriber_name) "
        f"SELECT id, 1, 2, '{name}' FROM rowmq_groups"
    )
    database.execute(
        "UPDATE rowmq_offsets SET epoch = epoch + 1, version = version + 1, leased_by = "
        f"(SELECT id FROM rowmq_subscribers WHERE subscriber_name = '{name}')"
    )


async def is_cured(mq: Any, check: str) -> bool:
    return not sick(await examined(mq, check))


# --- queues ---------------------------------------------------------------------------------------


async def test_failed_jobs_are_counted_with_their_errors(mq: Any, database: Database) -> None:
    queue = mq.queue("e mails")
    await queue.put("a")
    job = await queue.try_poll()
    await job.reject(error="no such address")
    (found,) = sick(await examined(mq, "failures"))
    assert "1 failed job in queue 'e mails'" in found.summary
    assert found.details["errors"] == {"no such address": 1}
    for command in ("jobs ls", "jobs prune"):
        follow(found, command, database, yes=command == "jobs prune")
    assert sick(await examined(mq, "failures")) == []


async def test_a_lock_that_ran_out_and_was_not_given_back_is_found(
    mq: Any, database: Database
) -> None:
    queue = mq.queue("emails")
    await queue.put_many(["a", "b"])
    first, _ = await queue.try_poll_many(2)
    await first.ack()
    database.execute("UPDATE rowmq_locks SET locked_until = 1000")
    (found,) = sick(await examined(mq, "stuck"))
    assert "1 job of queue 'emails' was claimed by a worker that is gone" in found.summary
    assert found.details["jobs"] == 1
    job = await queue.try_poll()  # as the advice says
    assert job.payload == "b"
    assert sick(await examined(mq, "stuck")) == []


async def test_a_queue_that_nobody_works_off_is_found(mq: Any) -> None:
    queue = mq.queue("emails")
    await queue.put("a")
    await queue.put("later", delay=3600)
    (found,) = sick(await examined(mq, "stuck", unattended=0))
    assert "nobody works off queue 'emails'" in found.summary
    assert found.details["oldest_due_seconds"] > 0
    assert sick(await examined(mq, "stuck")) == []
    job = await queue.try_poll()
    await job.ack()
    assert sick(await examined(mq, "stuck", unattended=0)) == []


async def test_a_queue_that_is_behind_is_found(mq: Any) -> None:
    queue = mq.queue("emails")
    await queue.put_many(["a", "b"])
    job = await queue.try_poll()
    claimed = await examined(mq, "stuck", due_age=0, unattended=0)  # somebody is at work
    await job.ack()
    finished = await examined(mq, "stuck", due_age=0, unattended=0)  # and was a moment ago
    for (found,) in (sick(claimed), sick(finished)):
        assert "queue 'emails' is behind" in found.summary


async def test_letters_of_several_groups_are_told_apart(mq: Any) -> None:
    await publish(mq, 2)
    for group, errors_of in (("g", ["a", "a"]), ("h", ["b", "c"])):
        async with subscribe(mq, group=group) as sub:
            for delivery, error in zip(await take(sub, 2), errors_of, strict=True):
                await delivery.reject(error=error)
    found = {f.details["group"]: f for f in sick(await examined(mq, "failures"))}
    assert {group: f.details["errors"] for group, f in found.items()} == {
        "g": {"a": 2},
        "h": {"b": 1, "c": 1},
    }
    assert all("2 dead letters of group" in f.summary for f in found.values())


async def test_a_paused_queue_is_noted_and_resumes_by_the_advice(
    mq: Any, database: Database
) -> None:
    queue = mq.queue("emails")
    await queue.put("a")
    await queue.pause()
    checkup = await examined(mq, "stuck", unattended=0)
    found = about(checkup, "queue 'emails' is paused, and its first job has been due")
    assert checkup.healthy
    follow(found, "queues resume", database)
    assert not any("paused" in finding.summary for finding in await examined(mq, "stuck"))


async def test_a_job_that_kills_its_workers_is_found(mq: Any, database: Database) -> None:
    queue = mq.queue("emails")
    await queue.put("a")
    database.execute("UPDATE rowmq_ready SET deliveries = 6, attempts = 1")
    (found,) = sick(await examined(mq, "stuck"))
    assert "handed out 6 times, and 5 times nobody settled it" in found.summary
    follow(found, "jobs show", database)
    assert sick(await examined(mq, "stuck", deliveries=6)) == []


async def test_a_hold_that_did_not_end_is_noted(mq: Any, database: Database) -> None:
    database.execute("INSERT INTO rowmq_holds (job_id, started_at, starts) VALUES (5, 1000, 2)")
    checkup = await examined(mq, "stuck")
    assert about(checkup, "hold()").details["starts"] == 2
    assert checkup.healthy


# --- schedules and workers ------------------------------------------------------------------------


async def test_a_schedule_that_nobody_tends_is_found(mq: Any, database: Database) -> None:
    with rowmq.connect(database.url) as gone:  # and with it who would tend them
        for name, payload in (("nightly", 1), ("hourly", len), ("weekly", 1), ("yearly", 1)):
            gone.cron.install(name, "0 0 1 1 *", payload=payload, queue="reports")
        gone.cron.pause("weekly")
    database.execute("UPDATE rowmq_schedules SET next_at = 1000000 WHERE name <> 'yearly'")
    checkup = await examined(mq, "schedules")
    nightly = about(checkup, "schedule 'nightly' should have fired")
    hourly = about(checkup, "schedule 'hourly' should have fired")
    assert sick(checkup) == [hourly, nightly]
    assert "nobody tends schedules" in nightly.summary
    assert "has installed it with builtins:len" in hourly.summary
    paused = about(checkup, "schedule 'weekly' is paused")
    follow(paused, "schedules resume", database)
    for found in (nightly, hourly):
        follow(found, "schedules rm", database, yes=True)
    assert [finding.level for finding in await examined(mq, "schedules")] == [Level.OK]


async def test_workers_that_died_are_found(mq: Any, database: Database) -> None:
    for name, app_name, version, expires in (
        ("a-1", "shop", "1.0", 2**60),
        ("a-2", "shop", "1.1", 2**60),
        ("a-3", "shop", "1.1", 1),
        ("b-1", "reports", "1.1", 1),
    ):
        facts = WorkerFacts(app=app_name, host="h", pid=7, version=version, handlers=())
        text = msgspec.json.encode(facts).decode()
        database.execute(
            "INSERT INTO rowmq_workers (name, started_at, seen_at, expires_at, facts, running) "
            f"VALUES ('{name}', 1, 1, {expires}, '{text}', '[]')"
        )
    checkup = await examined(mq, "workers")
    (found,) = sick(checkup)
    assert "worker 'b-1' of app 'reports' on h (process 7) has died" in found.summary
    assert about(checkup, "'a-3'").level is Level.NOTE
    assert about(checkup, "different versions").details["versions"] == ["1.0", "1.1"]


# --- transactions ---------------------------------------------------------------------------------


@contextlib.contextmanager
def open_transaction(database: Database) -> Iterator[int]:
    """A transaction of somebody else's that has a snapshot and waits; what the server calls it."""
    if isinstance(database, PostgresDatabase):
        with contextlib.closing(
            psycopg.connect(database.url, application_name="reports")
        ) as reader:
            reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            reader.execute("SELECT 'my secret', 42, topic FROM rowmq_topics")
            yield reader.info.backend_pid
        return
    assert isinstance(database, MySQLDatabase)
    connection = database.connect()
    with connection.cursor() as cursor:
        cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
        cursor.execute("SELECT topic FROM rowmq_topics")
        yield connection.thread_id()  # type: ignore[no-untyped-call]
    with contextlib.suppress(pymysql.Error):
        connection.close()


INNODB_CACHE_SECONDS = 0.11
"""InnoDB tells of the same transactions again to who asks sooner."""


def of_connection(checkup: rowmq.Checkup, id: int) -> list[rowmq.Finding]:
    ids = ("pid", "thread_id")
    return [f for f in sick(checkup) if id in [f.details.get(name) for name in ids]]


@on_servers
async def test_a_long_transaction_is_named_and_ended_by_the_advice(
    mq: Any, database: Database
) -> None:
    with open_transaction(database) as id:
        await asyncio.sleep(INNODB_CACHE_SECONDS)
        (found,) = of_connection(await examined(mq, "transactions", long_transaction=0), id)
        assert found.details["user"] == "rowmq"
        assert found.details["age_seconds"] >= 0
        assert found.details["holds_back"]
        assert not of_connection(await examined(mq, "transactions"), id)
        if database.dialect == "postgres":
            assert found.details["application"] == "reports"
            assert found.details["state"] == "idle in transaction"
            assert found.details["statement"] == "SELECT ?, ?, topic FROM rowmq_topics"
        match = re.search(r"SELECT pg_terminate_backend\(\d+\)|KILL \d+", found.advice)
        assert match is not None
        database.execute(match[0])

        async def is_gone() -> bool:
            await asyncio.sleep(INNODB_CACHE_SECONDS)
            checkup = await examined(mq, "transactions", long_transaction=0)
            return not of_connection(checkup, id)

        assert await eventually(is_gone)


@on_sqlite
async def test_a_write_lock_that_somebody_holds_is_found(
    connect: Connect, database: SQLiteDatabase
) -> None:
    mq = await connect(database.url, pool_size=1)
    with contextlib.closing(sqlite3.connect(database.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        (found,) = sick(await examined(mq, "transactions", write_lock=0.02))
        assert "write lock" in found.summary
        assert str(database.path) in found.advice
        other.execute("ROLLBACK")
    assert sick(await examined(mq, "transactions", write_lock=0.02)) == []
    assert await busy_timeout(mq) == 30_000  # as it was


async def busy_timeout(mq: Any) -> int:
    store = mq._engine.store
    examination = SQLiteExamination(store.dialect, store.schema)
    result = mq._driver.run(lambda: examination.ask("t", "PRAGMA busy_timeout"))
    found = await result if not hasattr(result, "rows") else result
    return int(found.rows[0][0])


def test_a_sound_server_is_healthy_until_something_is_done_to_it() -> None:
    settings = {"fsync": "on", "full_page_writes": "on", "max_prepared_transactions": "5"}
    with PostgresServer(**settings) as server, rowmq.connect(server.url) as mq:
        mq.migrate()
        assert sick(mq.doctor()) == []
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET autovacuum = off")
            connection.execute("SELECT pg_reload_conf()")
            connection.execute("BEGIN")
            connection.execute("CREATE TABLE t (n integer)")
            connection.execute("PREPARE TRANSACTION 'order''7'")
            found = until(mq, {"settings", "transactions"})
            assert {finding.level for finding in found.values()} == {Level.PROBLEM}
            assert found["transactions"].details["name"] == "order'7"
            assert "autovacuum is off" in found["settings"].summary
            match = re.search(r"ROLLBACK PREPARED '[^,]*'", found["transactions"].advice)
            assert match is not None
            for statement in [*found["settings"].advice.split("; "), match[0]]:
                connection.execute(statement.encode())
        until(mq, set())


def until(mq: rowmq.RowMQ, checks: set[str]) -> dict[str, rowmq.Finding]:
    """The findings, once they are of these checks: a server reads its configuration by and by."""
    deadline = time.monotonic() + 30
    while True:
        found = {f.check: f for f in sick(mq.doctor(thresholds=Thresholds(long_transaction=0)))}
        if set(found) == checks:
            return found
        assert time.monotonic() < deadline, found
        time.sleep(0.01)


# --- settings -------------------------------------------------------------------------------------


@async_only
@on_postgres
async def test_settings_of_a_database_that_do_harm_are_found(
    connect: Connect, empty_database: Database
) -> None:
    name = urlsplit(empty_database.url).path[1:]
    for setting in (
        "synchronous_commit = off",
        "statement_timeout = '5s'",
        "lock_timeout = '100ms'",
        "idle_in_transaction_session_timeout = '5s'",
        "default_transaction_isolation = 'serializable'",
    ):
        empty_database.execute(f"ALTER DATABASE {name} SET {setting}")
    mq = await connect(empty_database.url)
    await mq.migrate()
    checkup = await examined(mq, "settings")
    assert {about(checkup, words).level for words in ("synchronous_commit is off",)} == {
        Level.WARNING
    }
    assert about(checkup, "statement_timeout is 5 s").level is Level.WARNING
    for words in ("lock_timeout is 100 ms", "idle_in_transaction_session_timeout is 5 s"):
        assert about(checkup, words).level is Level.NOTE
    assert about(checkup, "default_transaction_isolation is serializable").level is Level.NOTE
    empty_database.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    again = await connect(empty_database.url)
    found = about(await examined(again, "settings"), "default_transaction_read_only")
    assert found.level is Level.PROBLEM


@async_only
@on_postgres
async def test_a_table_that_is_never_vacuumed_is_found_and_cured(
    connect: Connect, empty_database: Database
) -> None:
    mq = await connect(empty_database.url)
    await mq.migrate()
    empty_database.execute("ALTER TABLE rowmq_ready SET (autovacuum_enabled = false)")
    (found,) = short_of(await examined(mq, "settings"))
    assert found.summary == "autovacuum is turned off for rowmq_ready"
    empty_database.execute(found.advice)
    assert short_of(await examined(mq, "settings")) == []


@async_only
@on_postgres
async def test_dead_rows_are_found_and_cleaned_up_by_the_advice(
    connect: Connect, empty_database: Database
) -> None:
    mq = await connect(empty_database.url)
    await mq.migrate()
    empty_database.execute("ALTER TABLE rowmq_ready SET (autovacuum_enabled = false)")
    empty_database.execute(
        "INSERT INTO rowmq_ready (due_at, job_id, lane_id, attempts, deliveries) "
        "SELECT n, n, 1, 0, 0 FROM generate_series(1, 20000) n"
    )
    empty_database.execute("DELETE FROM rowmq_ready WHERE job_id > 100")

    async def is_told() -> list[rowmq.Finding]:
        return sick(await examined(mq, "bloat"))

    (found,) = await eventually(is_told)  # statistics come a moment later
    assert "of the rows of rowmq_ready are dead" in found.summary
    assert found.details["dead_rows"] >= 19_000
    for statement in re.findall(r"(?:VACUUM|ALTER TABLE) [^;:]+(?:;|$)", found.advice):
        empty_database.execute(statement.rstrip("; "))

    async def is_clean() -> bool:
        return not sick(await examined(mq, "bloat"))

    assert await eventually(is_clean)


@async_only
@on_mysql
async def test_a_table_of_another_engine_is_found_and_cured(
    connect: Connect, empty_database: Database
) -> None:
    mq = await connect(empty_database.url)
    await mq.migrate()
    empty_database.execute("ALTER TABLE rowmq_holds ROW_FORMAT=DEFAULT, ENGINE = MyISAM")
    empty_database.execute("ALTER TABLE rowmq_topics MODIFY topic varchar(200) CHARSET utf8mb4")
    found = {f.details["table"]: f for f in short_of(await examined(mq, "settings"))}
    assert set(found) == {"rowmq_holds", "rowmq_topics"}
    assert "MyISAM" in found["rowmq_holds"].summary
    assert found["rowmq_topics"].details["columns"] == ["topic"]
    empty_database.execute(found["rowmq_holds"].advice)
    empty_database.execute("ALTER TABLE rowmq_topics MODIFY topic varbinary(200)")
    assert short_of(await examined(mq, "settings")) == []


@on_mysql
async def test_payloads_that_the_server_would_refuse_are_told(mq: Any) -> None:
    await mq.configure_topic("t", max_payload_bytes=70 * 1024 * 1024)
    (found,) = short_of(await examined(mq, "settings"))
    assert "max_allowed_packet is 64 MiB, and payloads of 70 MiB are allowed" in found.summary


@on_sqlite
async def test_a_log_that_a_reader_holds_back_is_found(mq: Any, database: SQLiteDatabase) -> None:
    with contextlib.closing(sqlite3.connect(database.path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM rowmq_topics").fetchall()
        await publish(mq, 3)
        (found,) = sick(await examined(mq, "settings", wal_bytes=1))
        assert "cannot be emptied" in found.summary
        assert found.details["frames_moved"] < found.details["frames"]
        reader.execute("ROLLBACK")
    checkup = await examined(mq, "settings", wal_bytes=1)
    assert about(checkup, "write-ahead log has grown").level is Level.NOTE


@async_only
@on_sqlite
async def test_a_damaged_file_is_found(connect: Connect, database: SQLiteDatabase) -> None:
    mq = await connect(database.url)
    await mq.publish_many("t", [Message(payload="x" * 500, id=str(n)) for n in range(500)])
    await mq.close()
    with contextlib.closing(sqlite3.connect(database.path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        ((page,),) = connection.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = 'rowmq_messages'"
        )
    with database.path.open("r+b") as file:
        file.seek((page - 1) * 4096)
        file.write(b"\xff" * 100)
    again = await connect(database.url)
    found = about(await examined(again, "settings"), "the file is damaged")
    assert found.level is Level.PROBLEM
    checkup = await examined(again, "settings", integrity_bytes=1)
    assert about(checkup, "was not checked for damage").level is Level.OK


async def test_a_database_in_memory_is_examined_too(connect: Connect) -> None:
    mq = await connect("sqlite://")
    assert sick(await mq.doctor()) == []


# --- rights ---------------------------------------------------------------------------------------


@async_only
@on_servers_of_ours
async def test_a_user_with_few_rights_is_told_which_are_missing(
    connect: Connect, empty_database: Database
) -> None:
    owner = await connect(empty_database.url)
    await owner.migrate()
    with guest(empty_database) as url, open_transaction(empty_database):
        mq = await connect(url)
        checkup = await mq.doctor()
        assert short_of(checkup) == []
        rights = {f.details["right"] for f in checkup if "right" in f.details}
        hidden = [f.advice.partition(": ")[2] for f in checkup if "cannot be looked" in f.summary]
        assert rights | set(hidden), "nothing was hidden from it"
        if empty_database.dialect == "postgres":
            assert {f.check for f in checkup if "right" in f.details} >= {
                "lag",
                "failures",
                "stuck",
            }
            assert len(hidden) == 1
        else:
            assert {f.check for f in checkup if "right" in f.details} == {"transactions"}
        for grant in [*rights, *hidden]:
            empty_database.execute(grant)
        again = await connect(url)
        told = await again.doctor(thresholds=Thresholds(long_transaction=0))
        assert not [f for f in told if "right" in f.details or "cannot be looked" in f.summary]
        await mq.close()
        await again.close()


@contextlib.contextmanager
def guest(database: Database) -> Iterator[str]:
    """The URL of a user who may read only little, or everything but what the server does."""
    parts = urlsplit(database.url)
    name = f"guest_{parts.path[-12:]}"
    url = parts._replace(netloc=f"{name}:guest@{parts.hostname}:{parts.port}").geturl()
    if isinstance(database, PostgresDatabase):
        making = f"CREATE ROLE {name} LOGIN PASSWORD 'guest'"
        granting = f"GRANT SELECT ON rowmq_migrations, rowmq_topics TO {name}"
        dropping = [f"DROP OWNED BY {name}", f"DROP ROLE {name}"]
    else:
        making = f"CREATE USER {name}@'127.0.0.1' IDENTIFIED BY 'guest'"
        granting = f"GRANT SELECT ON {parts.path[1:]}.* TO {name}@'127.0.0.1'"
        dropping = [f"DROP USER {name}@'127.0.0.1'"]
    database.execute(making)
    try:
        database.execute(granting)
        yield url
    finally:
        for statement in dropping:
            database.execute(statement)


# --- what it costs --------------------------------------------------------------------------------

MANY = 40_000
SERIES = {
    "sqlite": f"WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < {MANY}) ",
    "postgres": f"WITH s(n) AS (SELECT generate_series(1, {MANY})) ",
    "mysql": "",
}
FILL = {
    "dead_letters": (
        "partition_id, message_offset, origin_partition_id, origin_offset, failed_at, attempts, \
        origin_topic, consumer_group, origin_id",
        "1, n, 1, n, n, 1, 't', 'g', 'x'",
    ),
    "failed": (
        "job_id, queue_id, finished_at, started_at, attempts, deliveries",
        "n, 1, n, n, 1, 1",
    ),
    "completed": (
        "queue_id, finished_at, job_id, started_at, attempts, deliveries",
        "1, n, n, n, 1, 1",
    ),
    "ready": ("due_at, job_id, lane_id, attempts, deliveries", "n, n, 1, 0, 9"),
    "messages": (
        "partition_id, message_offset, published_at, encoding, message_id, payload",
        "1, n, n, 2, <id>, <payload>",
    ),
}


@async_only
async def test_large_tables_are_not_read(connect: Connect, empty_database: Database) -> None:
    mq = await connect(empty_database.url)
    await mq.migrate()
    await mq.publish("t", 1, key="k")
    await mq.create_group("t", "g")
    await mq.queue("q").put(1)
    fill(empty_database)
    with statements(mq) as seen:
        checkup = await mq.doctor()
    assert about(checkup, "10,000 dead letters or more").details["count"] == 10_000
    assert about(checkup, "40,000 messages behind").details["lag"] == MANY
    own = [s for s in seen if "rowmq_" in s.sql and "information_schema" not in s.sql]
    reads = reads_of(empty_database, [s for s in own if s.sql.lstrip().startswith("SELECT")])
    assert len(reads) > 10
    assert {name: rows for name, rows in reads.items() if rows > 0.75 * MANY} == {}


def fill(database: Database) -> None:
    ids = [
        database.execute(f"SELECT id FROM rowmq_{t}")[0][0]
        for t in ("partitions", "queues", "lanes")
    ]
    assert ids == [1, 1, 1]
    for table in ("ready", "messages"):
        database.execute(f"DELETE FROM rowmq_{table}")
    id = {"mysql": "CONCAT('x', n)"}.get(database.dialect, "'x' || n")
    payload = "'1'::bytea" if database.dialect == "postgres" else "'1'"
    for table, (columns, values) in FILL.items():
        chosen = values.replace("<id>", id).replace("<payload>", payload)
        numbers = "s" if database.dialect != "mysql" else numbers_of_mysql()
        insert = f"INSERT INTO rowmq_{table} ({columns}) SELECT {chosen} FROM {numbers}"
        database.execute(f"{SERIES[database.dialect]}{insert}")
    database.execute(f"UPDATE rowmq_partitions SET next_offset = {MANY + 1}")
    database.analyze()


def numbers_of_mysql() -> str:
    """The numbers from 1 on, without a recursion, whose depth is limited."""
    digits = " UNION ALL ".join(f"SELECT {n} AS d" for n in range(10))
    tables = ", ".join(f"({digits}) t{place}" for place in range(4))
    sum_of = " + ".join(f"t{place}.d * {10**place}" for place in range(4))
    parts = f"(SELECT {MANY // 4} * t.d AS part FROM ({digits}) t WHERE t.d < 4) h"
    return f"(SELECT 1 + h.part + {sum_of} AS n FROM {tables}, {parts}) s"


# --- the command ----------------------------------------------------------------------------------


@async_only
async def test_the_command_tells_and_ends_with_a_code(mq: Any, database: Database) -> None:
    await publish(mq, 1)
    await mq.create_group("t", "g")
    arguments = ["doctor", "--url", database.url, "--check", "lag"]
    result = CliRunner().invoke(app, arguments)
    assert (result.exit_code, result.stderr) == (0, "")
    assert "✓ lag" in result.stdout
    assert result.stdout.endswith("healthy\n")
    result = CliRunner().invoke(app, [*arguments, "--threshold", "unattended=0s"])
    assert result.exit_code == 4
    assert "! lag" in result.stdout
    assert "→ start a subscriber" in result.stdout
    assert "not healthy: 1 warning" in result.stdout
    result = CliRunner().invoke(app, [*arguments, "--threshold", "unattended=0", "--json"])
    assert result.exit_code == 4
    told = msgspec.json.decode(result.stdout)
    assert (told["healthy"], told["level"]) == (False, "warning")
    assert told["findings"][0]["details"]["lag"] == 1
