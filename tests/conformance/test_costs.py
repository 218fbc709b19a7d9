"""What delivering costs: rows, as PostgreSQL counts them, and statements, as the client does."""

from typing import Any

import pytest

from rowmq import Message
from rowmq.store.statement import Statement
from tests.choices import on_mysql
from tests.conftest import Connect
from tests.consuming import statements
from tests.databases import Database

GROUP_TABLES = ("groups", "subscribers", "offsets", "delivery_state", "dead_letters")

on_postgres = pytest.mark.parametrize("database", ["postgres"], indirect=True)

QUIET = {"discovery_interval": 600, "lease_duration": 600}
"""Options for a subscriber that does nothing by itself while a test counts."""


async def publish(mq: Any, *, partitions: int, each: int) -> None:
    messages = [
        Message(payload=number, key=f"k{partition}")
        for number in range(each)
        for partition in range(partitions)
    ]
    await mq.publish_many("orders", messages)


async def drain(sub: Any) -> None:
    while deliveries := await sub.poll(max=1_000, timeout=0):
        await sub.ack(deliveries)


def names(seen: list[Statement]) -> list[str]:
    return [statement.name for statement in seen]


# --- rows, as the database counts them ----------------------------------------------------------


async def rows_written(mq: Any, database: Database) -> int:
    """How many rows of the group's tables were inserted, updated or deleted so far.

    The client has a single connection: it is asked to report what it has done.
    """
    async with mq.transaction() as tx:
        await tx.execute("SELECT pg_stat_force_next_flush()")
    tables = ", ".join(f"'rowmq_{table}'" for table in GROUP_TABLES)
    ((count, found),) = database.execute(
        "SELECT SUM(n_tup_ins + n_tup_upd + n_tup_del), COUNT(*) FROM pg_stat_user_tables "
        f"WHERE relname IN ({tables})"
    )
    assert found == len(GROUP_TABLES)
    return int(count)


@on_postgres
@pytest.mark.parametrize("strict", [False, True], ids=["free", "strict"])
async def test_delivering_and_acking_a_batch_writes_two_rows(
    empty_database: Database, connect: Connect, strict: bool
) -> None:
    """Of a partition: its row says that they are delivered, and then that they are acked. The
    limit that was set is five.
    """
    mq = await connect(empty_database.url, pool_size=1)
    await mq.migrate()
    batches, size = 10, 100
    await publish(mq, partitions=1, each=batches * (1 if strict else size))
    async with mq.subscribe("orders", group="billing", strict=strict, **QUIET) as sub:
        before = await rows_written(mq, empty_database)
        for _ in range(batches):
            deliveries = await sub.poll(max=size, timeout=0)
            assert len(deliveries) == (1 if strict else size)
            await sub.ack(deliveries)
        written = await rows_written(mq, empty_database) - before
        assert await sub.poll(timeout=0) == []
    assert written == 2 * batches


@on_postgres
async def test_an_idle_poll_writes_nothing(empty_database: Database, connect: Connect) -> None:
    mq = await connect(empty_database.url, pool_size=1)
    await mq.migrate()
    await publish(mq, partitions=20, each=1)
    async with mq.subscribe("orders", group="billing", **QUIET) as sub:
        await drain(sub)
        before = await rows_written(mq, empty_database)
        for _ in range(10):
            assert await sub.poll(timeout=0) == []
        assert await rows_written(mq, empty_database) == before


# --- statements, as the client counts them ------------------------------------------------------


async def test_a_poll_over_a_thousand_idle_partitions_is_one_statement(mq: Any) -> None:
    await publish(mq, partitions=1_000, each=1)
    async with mq.subscribe("orders", group="billing", **QUIET) as sub:
        await drain(sub)
        assert len(sub.owned) == 1_000
        with statements(mq) as seen:
            for _ in range(3):
                assert await sub.poll(timeout=0) == []
        assert names(seen) == ["leases.find"] * 3


@on_postgres
@pytest.mark.parametrize(("partitions", "each", "polled"), [(1, 2_000, 1), (2_000, 1, 500)])
async def test_a_busy_poll_is_one_statement_on_postgres(
    mq: Any, partitions: int, each: int, polled: int
) -> None:
    await publish(mq, partitions=partitions, each=each)
    async with mq.subscribe("orders", group="billing", **QUIET) as sub:
        await sub.ack(await sub.poll(max=500, timeout=0))
        for _ in range(2):
            with statements(mq) as seen:
                deliveries = await sub.poll(max=500, timeout=0)
            assert len(deliveries) == 500
            assert len({d.message.key for d in deliveries}) == polled
            assert names(seen) == ["leases.advance"]


@on_mysql
@pytest.mark.parametrize(("partitions", "each", "polled"), [(1, 600, 1), (600, 1, 200)])
async def test_the_statements_of_a_poll_do_not_grow_with_the_partitions(
    mq: Any, partitions: int, each: int, polled: int
) -> None:
    await publish(mq, partitions=partitions, each=each)
    async with mq.subscribe("orders", group="billing", **QUIET) as sub:
        for _ in range(3):
            with statements(mq) as seen:
                deliveries = await sub.poll(max=200, timeout=0)
            assert len(deliveries) == 200
            assert len({d.message.key for d in deliveries}) == polled
            # It need not look again if it has just done so.
            looked = names(seen).count("leases.find")
            assert looked <= 1
            assert names(seen)[looked:] == ["leases.advance", "topics.read"]
            await sub.ack(deliveries)


@pytest.mark.parametrize("partitions", [1, 100])
async def test_acking_many_is_one_statement(mq: Any, partitions: int) -> None:
    await publish(mq, partitions=partitions, each=200 // partitions)
    async with mq.subscribe("orders", group="billing", **QUIET) as sub:
        deliveries = await sub.poll(max=100, timeout=0)
        assert len(deliveries) == 100
        with statements(mq) as seen:
            await sub.ack(deliveries)
        assert names(seen) == ["leases.advance"]


# --- rows that are read, on MySQL and MariaDB ---------------------------------------------------


async def rows_read(mq: Any) -> int:
    """How many rows the client's only connection has looked at so far."""
    async with mq.transaction() as tx:
        result = await tx.execute("SHOW SESSION STATUS LIKE 'Handler_read%'")
    return sum(int(count) for _, count in result)


@on_mysql
async def test_a_batch_reads_no_other_partitions_rows(
    empty_database: Database, connect: Connect
) -> None:
    """Whatever the database believes of tables that were empty a moment ago: a join that looks
    through all of them for each row would look at millions here, and lock them.
    """
    mq = await connect(empty_database.url, pool_size=1)
    await mq.migrate()
    await publish(mq, partitions=1_000, each=2)
    before = await rows_read(mq)
    async with mq.subscribe("orders", group="billing", **QUIET) as sub:
        assert len(sub.owned) == 1_000
        deliveries = await sub.poll(max=1_000, timeout=0)
        await sub.ack(deliveries[:500])
        for delivery in deliveries[500:510]:
            await delivery.nack(delay=0)
        assert await rows_read(mq) - before < 100_000


@on_mysql
async def test_new_partitions_are_found_by_one_look_at_the_places(
    empty_database: Database, connect: Connect
) -> None:
    """Also while the table is thought to be empty. To look through all of it for each partition
    would then seem as cheap, but is not if somebody else is filling it, as all subscribers of a
    new group do.
    """
    mq = await connect(empty_database.url)
    await mq.migrate()
    await publish(mq, partitions=1_000, each=1)
    plans = []

    def explain(statement: Statement) -> None:
        if statement.name == "leases.adopt":
            sql = f"EXPLAIN FORMAT=TRADITIONAL {statement.sql}"
            plans.append(empty_database.execute(sql, statement.params))

    mq._driver.observers.append(explain)
    async with mq.subscribe("orders", group="billing", **QUIET):
        (places,) = [row for row in plans[0] if row[2] == "o"]
        assert "ref" in places
        assert not [row for row in plans[0] if "DEPENDENT" in str(row[1])]


# --- plans, which PostgreSQL makes anew for every call unless one for all looks as cheap ---------


@on_postgres
@pytest.mark.parametrize("batch", [1, 200])
async def test_publishing_and_putting_are_not_planned_every_time(
    connect: Connect, database: Database, batch: int
) -> None:
    mq = await connect(database.url, pool_size=1, notify=False)
    queue = mq.queue("emails")
    for _ in range(20):
        await mq.publish_many("orders", [Message(payload=b"x" * 200, key="k")] * batch)
        await queue.put_many([b"x" * 200] * batch)
    async with mq.transaction() as tx:
        kept = await tx.execute("SELECT statement, generic_plans FROM pg_prepared_statements")
    plans = [generic for sql, generic in kept if "appended AS (" in sql or "made_ready AS (" in sql]
    assert len(plans) == 2
    assert min(plans) >= 5
