"""`mq.transaction()`: own SQL and messages together, or not at all."""

import asyncio
from typing import Any

import pytest

from rowmq import Message, errors
from tests.databases import Database


@pytest.fixture
def own_table(database: Database) -> str:
    database.execute("DROP TABLE IF EXISTS own_orders")
    database.execute("CREATE TABLE own_orders (id integer PRIMARY KEY, name varchar(50))")
    return "own_orders"


def partitions(database: Database) -> int:
    return int(database.execute("SELECT COUNT(*) FROM rowmq_partitions")[0][0])


async def test_commit_keeps_both(mq: Any, database: Database, own_table: str) -> None:
    async with mq.transaction() as tx:
        await tx.execute(f"INSERT INTO {own_table} VALUES (?, ?)", (1, "a"))
        result = await tx.publish("orders", 1, key="k", id="x", headers={"a": "b"})
        many = await tx.publish_many("orders", [Message(payload=2, key="k")])
        assert [result.offset, many[0].offset] == [1, 2]
    assert database.execute(f"SELECT id, name FROM {own_table}") == [(1, "a")]
    assert [m.payload for m in await mq.read("orders")] == [1, 2]


async def test_an_exception_leaves_nothing(mq: Any, database: Database, own_table: str) -> None:
    with pytest.raises(ZeroDivisionError):
        async with mq.transaction() as tx:
            await tx.execute(f"INSERT INTO {own_table} VALUES (?, ?)", (1, "a"))
            await tx.publish("orders", 1, key="k")
            await tx.publish("new topic", 1, id="x")
            raise ZeroDivisionError
    assert database.execute(f"SELECT id FROM {own_table}") == []
    assert await mq.topics() == []
    assert partitions(database) == 0


async def test_nothing_is_seen_before_the_commit(mq: Any, database: Database) -> None:
    async with mq.transaction() as tx:
        await tx.publish("orders", 1, key="k")
        assert partitions(database) == 0
    assert partitions(database) == 1


async def test_duplicates_are_found_inside_and_outside(mq: Any) -> None:
    await mq.publish("orders", "outside", key="k", id="x")
    async with mq.transaction() as tx:
        assert (await tx.publish("orders", "inside", key="k", id="x")).duplicate
        assert not (await tx.publish("orders", "inside", key="k", id="y")).duplicate
        assert (await tx.publish("orders", "again", key="k", id="y")).duplicate
    assert [m.payload for m in await mq.read("orders")] == ["outside", "inside"]


async def test_any_call_takes_the_transaction_as_its_connection(
    mq: Any, database: Database
) -> None:
    with pytest.raises(ZeroDivisionError):
        async with mq.transaction() as tx:
            await mq.publish("orders", 1, connection=tx)
            await mq.publish_many("orders", [Message(payload=2)], connection=tx)
            await mq.configure_topic("orders", max_payload_bytes=5, connection=tx)
            raise ZeroDivisionError
    assert await mq.topics() == []
    assert partitions(database) == 0


@pytest.mark.parametrize(
    ("sql", "params"),
    [
        ("SELECT ?, ?", (1, "a")),
        ("SELECT %s, %s", (1, "a")),
        ("SELECT $1, $2", (1, "a")),
        ("SELECT :number, :name", {"name": "a", "number": 1}),
    ],
)
async def test_every_placeholder_style_works_everywhere(
    mq: Any, database: Database, sql: str, params: Any
) -> None:
    if database.name == "postgres":
        # Its server infers types, and has to be told where nothing else says them.
        sql = sql.replace("SELECT ?, ?", "SELECT ?::int, ?::text")
        sql = sql.replace("%s, %s", "%s::int, %s::text").replace("$1, $2", "$1::int, $2::text")
        sql = sql.replace(":number, :name", ":number::int, :name::text")
    async with mq.transaction() as tx:
        result = await tx.execute(sql, params)
    assert [tuple(row) for row in result] == [(1, "a")]


async def test_execute_tells_how_many_rows_changed(mq: Any, own_table: str) -> None:
    async with mq.transaction() as tx:
        for n in range(3):
            await tx.execute(f"INSERT INTO {own_table} VALUES (?, ?)", (n, "a"))
        assert (await tx.execute(f"UPDATE {own_table} SET name = 'b' WHERE id > 0")).rowcount == 2
        assert (await tx.execute(f"DELETE FROM {own_table}")).rowcount == 3


async def test_a_refused_statement_is_a_database_error(mq: Any, own_table: str) -> None:
    with pytest.raises(errors.DatabaseError):
        async with mq.transaction() as tx:
            await tx.publish("orders", 1)
            await tx.execute("SELECT nonsense FROM nowhere_at_all")
    with pytest.raises(errors.UniqueViolation):
        async with mq.transaction() as tx:
            await tx.execute(f"INSERT INTO {own_table} VALUES (1, 'a')")
            await tx.execute(f"INSERT INTO {own_table} VALUES (1, 'a')")
    assert await mq.topics() == []
    await mq.publish("orders", 1)  # the connections are still good


async def test_a_failed_statement_fails_the_block_though_its_error_is_caught(
    mq: Any, own_table: str
) -> None:
    """PostgreSQL would answer the COMMIT with a rollback, and say nothing."""
    with pytest.raises(errors.TransactionFailed, match="repeat the whole block"):
        async with mq.transaction() as tx:
            await tx.publish("orders", 1)
            with pytest.raises(errors.DatabaseError):
                await tx.execute("SELECT nonsense FROM nowhere_at_all")
    with pytest.raises(errors.TransactionFailed):
        async with mq.transaction() as tx:
            await tx.publish("orders", 2)
            await tx.execute(f"INSERT INTO {own_table} VALUES (1, 'a')")
            with pytest.raises(errors.UniqueViolation):
                await tx.execute(f"INSERT INTO {own_table} VALUES (1, 'a')")
            with pytest.raises(errors.TransactionFailed):
                await tx.publish("orders", 3)
            with pytest.raises(errors.TransactionFailed):
                await tx.execute("SELECT 1")
    assert await mq.topics() == []


async def test_ddl_that_ends_the_transaction_is_told(mq: Any, database: Database) -> None:
    if database.dialect != "mysql":
        async with mq.transaction() as tx:
            await tx.execute("CREATE TABLE IF NOT EXISTS made_inside (id integer)")
            await tx.publish("orders", 1)
        assert len(await mq.read("orders")) == 1
        return
    with pytest.raises(errors.TransactionFailed, match="DDL"):
        async with mq.transaction() as tx:
            await tx.execute("CREATE TABLE IF NOT EXISTS made_inside (id integer)")
            await tx.publish("orders", 1)
    assert await mq.topics() == []


async def test_one_call_at_a_time(mq: Any) -> None:
    with pytest.raises(errors.InvalidInput, match="one call at a time"):
        async with mq.transaction() as tx:
            batch = [Message(payload=n) for n in range(500)]
            await asyncio.gather(*(tx.publish_many("orders", batch) for _ in range(4)))
    await mq.publish("orders", "after")
    assert [m.offset for m in await mq.read("orders")] == [1]


async def test_a_call_that_outlives_its_block_spoils_nothing_but_the_block(mq: Any) -> None:
    """As when `asyncio.gather` gives up on one of two things that run together."""
    batch = [Message(payload=n, key="k") for n in range(3000)]
    tasks = []
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            async with mq.transaction() as tx:
                tasks.append(asyncio.ensure_future(tx.publish_many("orders", batch)))
                await asyncio.sleep(0.02)
                raise ZeroDivisionError
        await mq.publish("orders", "after", key="k")
    await asyncio.gather(*tasks, return_exceptions=True)
    messages = await mq.read("orders", limit=10_000)
    assert [(m.offset, m.payload) for m in messages] == [(n, "after") for n in (1, 2, 3)]


async def test_a_batch_refused_in_a_transaction_leaves_no_part_of_itself(mq: Any) -> None:
    batch = [Message(payload=b"x" * 1_000_000, key="k", id=str(n)) for n in range(6)]
    batch.append(Message(payload=b"x" * 2_000_000, key="k", id="large"))
    async with mq.transaction() as tx:
        with pytest.raises(errors.PayloadTooLarge):
            await tx.publish_many("orders", batch)
    assert await mq.topics() == []


async def test_bad_input_inside_leaves_the_transaction_usable(mq: Any) -> None:
    await mq.configure_topic("small", max_payload_bytes=10)
    async with mq.transaction() as tx:
        with pytest.raises(errors.InvalidTopic):
            await tx.publish("", 1)
        with pytest.raises(errors.InvalidInput):
            await tx.execute(None)
        with pytest.raises(errors.InvalidInput):
            await tx.execute("SELECT ?", (1, 2))
        with pytest.raises(errors.PayloadTooLarge):
            await tx.publish("small", "x" * 11, id="x")
        with pytest.raises(errors.PayloadTooLarge):
            await tx.publish("small", "x" * 11)
        await tx.publish("small", "fits")
    assert [m.payload for m in await mq.read("small")] == ["fits"]


async def test_a_refused_payload_leaves_no_partition_behind(mq: Any, database: Database) -> None:
    async with mq.transaction() as tx:
        for id in (None, "x"):
            with pytest.raises(errors.PayloadTooLarge):
                await tx.publish("new", "x" * 2_000_000, key="k", id=id)
    assert partitions(database) == 0
    assert await mq.topics() == []


async def test_an_ended_transaction_is_of_no_more_use(mq: Any) -> None:
    async with mq.transaction() as tx:
        pass
    with pytest.raises(errors.Closed, match="ended"):
        await tx.publish("orders", 1)
    with pytest.raises(errors.Closed, match="ended"):
        await tx.execute("SELECT 1")
    assert await mq.topics() == []
