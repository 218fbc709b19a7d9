"""What each hot path costs, in things that can be counted: statements, rows written, bytes of log.

`budgets.toml` has the figures. Nothing is timed, so nothing here depends on the machine. If a
change is meant to cost more, or costs less, write down the new figures: each failure says what was
seen.
"""

import tomllib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from rowmq import Message
from tests.choices import async_only
from tests.conftest import Connect
from tests.consuming import statements
from tests.databases import Database

BUDGETS = tomllib.loads(Path(__file__).with_name("budgets.toml").read_text())

PAYLOAD = b"x" * 200

TRIALS = 3
TRIALS_MAX = 50
"""The cheapest of so many counts: others may use the server, and it tidies up when it likes. As
long as it looks too dear, and that may be others' doing, it is tried again.
"""

LOG_TOLERANCE = {"sqlite": 0.0, "postgres": 0.15, "mysql": 0.5}
LOG_SLACK_BYTES = {"sqlite": 0, "postgres": 0, "mysql": 3 * 512}
"""InnoDB also logs what it cleans up later, and writes its log in blocks: how many a small write
takes depends on where it begins.
"""

WRITTEN = "SHOW SESSION STATUS LIKE 'Handler_%'"
"""By the client's only connection. MySQL, unlike MariaDB, counts rows of temporary tables, too."""

QUIET = {"discovery_interval": 600, "lease_duration": 600}

Work = Callable[[], Awaitable[Any]]


class HotPath(NamedTuple):
    """A hot path: what is done before, and what is counted, each time with as many messages."""

    before: Work
    counted: Work
    messages: int


class Cost(NamedTuple):
    """What was counted, a message."""

    statements: float
    rows: float
    log_bytes: float


async def written(mq: Any, database: Database) -> tuple[int, int]:
    """How many rows were inserted, updated or deleted so far, and how many bytes of log written."""
    if database.dialect == "sqlite":
        async with mq.transaction() as tx:
            (row,) = (await tx.execute("SELECT total_changes()")).rows
        return row[0], 0
    if database.dialect == "mysql":
        async with mq.transaction() as tx:
            found = {name: int(count) for name, count in await tx.execute(WRITTEN)}
        ((_, log),) = database.execute("SHOW GLOBAL STATUS LIKE 'Innodb_os_log_written'")
        return sum(found[f"Handler_{what}"] for what in ("write", "update", "delete")), int(log)
    async with mq.transaction() as tx:
        await tx.execute("SELECT pg_stat_force_next_flush()")
    ((rows, log),) = database.execute(
        "SELECT SUM(n_tup_ins + n_tup_upd + n_tup_del), pg_current_wal_lsn() - '0/0'::pg_lsn "
        "FROM pg_stat_user_tables"
    )
    return int(rows), int(log)


async def publishing(mq: Any, batch: int) -> HotPath:
    async def publish() -> None:
        if batch == 1:
            await mq.publish("orders", PAYLOAD, key="k")
        else:
            await mq.publish_many("orders", [Message(payload=PAYLOAD, key="k")] * batch)

    return HotPath(publish, publish, batch)


async def consuming(mq: Any, batch: int) -> HotPath:
    publish = (await publishing(mq, batch)).before
    await publish()
    sub = await mq.subscribe("orders", group="billing", **QUIET)
    await sub.ack(await sub.poll(max=batch, timeout=0))

    async def consume() -> None:
        deliveries = await sub.poll(max=batch, timeout=0)
        assert len(deliveries) == batch
        await sub.ack(deliveries)

    return HotPath(publish, consume, batch)


async def putting(mq: Any, batch: int) -> HotPath:
    queue = mq.queue("emails")

    async def put() -> None:
        if batch == 1:
            await queue.put(PAYLOAD)
        else:
            await queue.put_many([PAYLOAD] * batch)

    return HotPath(put, put, batch)


async def claiming(mq: Any, batch: int, *, keep: bool = True) -> HotPath:
    put = (await putting(mq, batch)).before
    queue = mq.queue("emails")
    await queue.configure(keep_completed=keep)
    await queue.put_many([PAYLOAD] * batch * 2)  # so that each claim finds all it asks for
    await queue.ack(await queue.try_poll_many(batch))

    async def claim() -> None:
        jobs = await queue.try_poll_many(batch)
        assert len(jobs) == batch
        await queue.ack(jobs)

    return HotPath(put, claim, batch)


async def claiming_unarchived(mq: Any, batch: int) -> HotPath:
    return await claiming(mq, batch, keep=False)


PATHS: dict[str, Callable[[Any, int], Awaitable[HotPath]]] = {
    "publish": publishing,
    "consume": consuming,
    "put": putting,
    "claim_and_ack": claiming,
    "claim_and_ack_unarchived": claiming_unarchived,
}


async def cost_of(path: HotPath, mq: Any, database: Database, log_max: float) -> Cost:
    """The cheapest of some trials; of more, while they take more of the log than that."""
    costs: list[tuple[int, int, int]] = []
    while len(costs) < TRIALS or (
        len(costs) < TRIALS_MAX and min(log for *_, log in costs) > log_max * path.messages
    ):
        await path.before()
        rows, log = await written(mq, database)
        with statements(mq) as seen:
            await path.counted()
        more_rows, more_log = await written(mq, database)
        costs.append((len(seen), more_rows - rows, more_log - log))
    return Cost(*(min(counts) / path.messages for counts in zip(*costs, strict=True)))


@async_only
@pytest.mark.parametrize("batch", [1, 100])
@pytest.mark.parametrize("name", PATHS)
async def test_a_hot_path_costs_what_it_is_to(
    name: str, batch: int, empty_database: Database, connect: Connect
) -> None:
    mq = await connect(empty_database.url, pool_size=1)
    await mq.migrate()
    budget = Cost(**BUDGETS[empty_database.name][f"{name}_{batch}"])
    dialect = empty_database.dialect
    slack = max(LOG_TOLERANCE[dialect] * budget.log_bytes, LOG_SLACK_BYTES[dialect] / batch)
    path = await PATHS[name](mq, batch)
    cost = await cost_of(path, mq, empty_database, budget.log_bytes + slack)
    story = f"{name}_{batch} on {empty_database.name}: {cost}, to be {budget}"
    assert cost[:2] == pytest.approx(budget[:2]), story
    assert abs(cost.log_bytes - budget.log_bytes) <= slack, story


def test_every_hot_path_has_a_budget_on_every_database() -> None:
    expected = {f"{name}_{batch}" for name in PATHS for batch in (1, 100)}
    found = {name: set(paths) for name, paths in BUDGETS.items()}
    assert found == dict.fromkeys(("sqlite", "postgres", "mariadb", "mysql"), expected)
