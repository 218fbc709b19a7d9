"""The schema: checked, migrated by many at once, kept apart by prefix and schema."""

import asyncio
from typing import Any

import pytest

import rowmq
from rowmq import errors
from rowmq.store.dialect import TABLES
from rowmq.store.schema import Schema, statements
from tests import flavours
from tests.choices import on_mysql, on_servers, on_sqlite
from tests.conftest import Connect
from tests.databases import Database, SQLiteDatabase


@on_servers
async def test_a_server_without_tables_says_what_to_run(
    connect: Connect, empty_database: Database
) -> None:
    mq = await connect(empty_database.url)
    for call in (mq.publish("t", 1), mq.read("t"), mq.topics()):
        with pytest.raises(errors.SchemaMissing, match="rowmq migrate"):
            await call
    with pytest.raises(errors.SchemaMissing, match="rowmq migrate"):
        async with mq.transaction():
            pytest.fail("the block was entered")
    assert [m.version for m in await mq.migrate()] == [1]
    await mq.publish("t", 1)


async def test_sqlite_migrates_itself(connect: Connect, tmp_path: Any) -> None:
    mq = await connect(SQLiteDatabase(tmp_path).url)
    await mq.publish("t", 1)
    assert await mq.migrate() == []


async def test_memory_is_a_database_for_tests(connect: Connect) -> None:
    one, other = await connect("sqlite://"), await connect("sqlite:///:memory:")
    await asyncio.gather(*(one.publish("t", n) for n in range(20)))
    assert len(await one.read("t")) == 20
    assert await other.read("t") == []
    with pytest.raises(ZeroDivisionError):
        async with one.transaction() as tx:
            await tx.publish("t", "gone")
            raise ZeroDivisionError
    assert len(await one.read("t")) == 20


async def test_migrate_is_repeatable(connect: Connect, empty_database: Database) -> None:
    mq = await connect(empty_database.url)
    await mq.migrate()
    await mq.publish("t", 1)
    assert await mq.migrate() == []
    assert await mq.migrate(dry_run=True) == []
    assert len(await mq.read("t")) == 1


@on_servers  # it has migrated itself by then
async def test_a_dry_run_changes_nothing_and_prints_all(
    connect: Connect, empty_database: Database
) -> None:
    mq = await connect(empty_database.url)
    (migration,) = await mq.migrate(dry_run=True)
    with pytest.raises(errors.SchemaMissing):
        await mq.topics()
    for statement in statements(migration.sql):
        empty_database.execute(statement)
    assert await mq.topics() == []
    assert await mq.migrate() == []


async def test_the_printed_sql_is_all_there_is(connect: Connect, empty_database: Database) -> None:
    name = {"postgres": "postgresql"}.get(empty_database.name, empty_database.name)
    for statement in statements(rowmq.schema_sql(name)):
        empty_database.execute(statement)
    mq = await connect(empty_database.url)
    assert await mq.migrate() == []
    await mq.publish("t", 1, id="x")


async def test_many_processes_may_migrate_at_once(
    connect: Connect, empty_database: Database
) -> None:
    clients = await asyncio.gather(*(connect(empty_database.url) for _ in range(12)))
    applied = await asyncio.gather(*(mq.migrate() for mq in clients))
    if empty_database.name != "sqlite":
        assert sorted(len(migrations) for migrations in applied) == [0] * 11 + [1]
    await asyncio.gather(*(mq.publish("t", 1) for mq in clients))
    recorded = empty_database.execute("SELECT version FROM rowmq_migrations")
    assert recorded == [(1,)]


async def test_a_newer_schema_is_refused_on_connect(
    connect: Connect, empty_database: Database
) -> None:
    mq = await connect(empty_database.url)
    await mq.migrate()
    empty_database.execute("INSERT INTO rowmq_migrations VALUES (999, 'future', 0)")
    with pytest.raises(errors.SchemaTooNew, match=r"999.*upgrade"):
        await connect(empty_database.url)
    with pytest.raises(errors.SchemaTooNew):
        await mq.migrate()


async def test_an_older_schema_is_reported_and_brought_up_to_date(
    connect: Connect, empty_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await (await connect(empty_database.url)).migrate()
    known = Schema.migrations

    def with_one_more(self: Any) -> list[rowmq.Migration]:
        sql = self.dialect.fill(
            "CREATE TABLE {prefix}extra (id integer);\n"
            "INSERT INTO {migrations} VALUES (2, 'extra', {now});\n"
        )
        return [*known(self), rowmq.Migration(version=2, name="extra", sql=sql)]

    monkeypatch.setattr(Schema, "migrations", with_one_more)
    mq = await connect(empty_database.url)
    if empty_database.name != "sqlite":
        with pytest.raises(errors.SchemaTooOld, match=r"version 1 .*rowmq migrate"):
            await mq.publish("t", 1)
        assert [m.version for m in await mq.migrate()] == [2]
    assert empty_database.execute("SELECT COUNT(*) FROM rowmq_extra") == [(0,)]
    await mq.publish("t", 1)


@on_mysql  # DDL is transactional on the others
async def test_a_migration_cut_off_half_way_can_be_finished(
    connect: Connect, empty_database: Database
) -> None:
    script = statements(rowmq.schema_sql("mysql"))
    for statement in script[: len(script) // 2]:
        empty_database.execute(statement)
    mq = await connect(empty_database.url)
    assert len(await mq.migrate()) == 1
    await mq.publish("t", 1)


async def test_prefixes_keep_queues_apart(connect: Connect, empty_database: Database) -> None:
    one = await connect(empty_database.url, prefix="one_")
    other = await connect(empty_database.url, prefix="other_")
    await one.migrate()
    await other.migrate()
    await one.publish("t", "one")
    assert await other.read("t") == []
    assert empty_database.execute("SELECT COUNT(*) FROM one_messages") == [(1,)]


async def test_a_postgres_schema_of_its_own(connect: Connect, empty_database: Database) -> None:
    if empty_database.name != "postgres":
        with pytest.raises(errors.ConfigurationError, match="PostgreSQL only"):
            await connect(empty_database.url, schema="queue")
        return
    mq = await connect(empty_database.url, schema="order")  # a reserved word
    await mq.migrate()
    await mq.publish("t", 1, id="x")
    assert empty_database.execute('SELECT COUNT(*) FROM "order".rowmq_messages') == [(1,)]
    plain = await connect(empty_database.url)
    with pytest.raises(errors.SchemaMissing):
        await plain.topics()


@pytest.mark.parametrize("name", ["", "Upper", "1st", "a-b", "a b", "a;drop", "é", "x" * 41, "a\n"])
async def test_prefix_and_schema_are_checked(database: Database, flavour: str, name: str) -> None:
    with pytest.raises(errors.ConfigurationError, match="a-z"):
        await flavours.connect(flavour, database.url, prefix=name)
    if database.name == "postgres":
        with pytest.raises(errors.ConfigurationError, match="a-z"):
            await flavours.connect(flavour, database.url, schema=name)


async def test_dropped_tables_are_named_as_such(connect: Connect, empty_database: Database) -> None:
    mq = await connect(empty_database.url)
    await mq.migrate()
    for table in TABLES:
        empty_database.execute(f"DROP TABLE rowmq_{table}")
    with pytest.raises(errors.SchemaMissing, match="rowmq migrate"):
        await mq.publish("t", 1)


def test_ids_are_never_given_twice(database: Database) -> None:
    """A partition that is deleted takes its id with it: an offset row of it cannot be mistaken."""
    for table, insert in {
        "partitions": "(topic, partition_key, next_offset) VALUES ('t', 'k', 1)",
        "queues": "(queue, created_at) VALUES ('q', 0)",
        "lanes": "(queue_id, precedence, kind) VALUES (1, 0, '')",
        "groups": "(topic, consumer_group, start_at, created_at) VALUES ('t', 'g', 'e', 0)",
    }.items():
        seen = []
        for _ in range(2):
            database.execute(f"INSERT INTO rowmq_{table} {insert}")
            seen += database.execute(f"SELECT MAX(id) FROM rowmq_{table}")
            database.execute(f"DELETE FROM rowmq_{table}")
        assert seen[0] < seen[1], table


@on_mysql
def test_nothing_is_truncated_even_by_a_lax_server(database: Database) -> None:
    """Every column is wide enough for what the checks let through."""
    widths = database.execute(
        "SELECT table_name, column_name, character_maximum_length FROM information_schema.columns "
        "WHERE table_schema = DATABASE() AND data_type IN ('varbinary', 'varchar')"
    )
    wanted = {"topic": 200, "partition_key": 255, "message_id": 255, "consumer_group": 200}
    found = {str(column): int(width) for _, column, width in widths}
    assert {name: found[name] for name in wanted} == wanted


@on_sqlite
def test_durability_of_sqlite(database: Database) -> None:
    with rowmq.connect(database.url) as mq, mq.transaction() as tx:
        assert tx.execute("PRAGMA journal_mode").rows == [("wal",)]
        assert tx.execute("PRAGMA synchronous").rows == [(2,)]
        assert tx.execute("PRAGMA busy_timeout").rows[0][0] >= 5000
