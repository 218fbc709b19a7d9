"""What each hot path costs, in things that can be counted: statements, transactions that take a
BEGIN and a COMMIT besides, rows written, bytes of log.

`budgets.toml` has the figures. Nothing is timed, so nothing here depends on the machine. If a
change is meant to cost more, or costs less, write down the new figures: each failure says what was
seen.
"""

import asyncio
import re
import tomllib
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from rowmq import Message, ScheduledMessage
from rowmq.drivers.mysql import AsyncmySession
from rowmq.drivers.postgres import AsyncpgSession
from rowmq.drivers.sqlite import SQLiteSession
from tests.choices import async_only
from tests.conftest import Connect
from tests.consuming import statements
from tests.databases import Database, SQLiteDatabase

BUDGETS = tomllib.loads(Path(__file__).with_name("budgets.toml").read_text())

PAYLOAD = b"x" * 200

TRIALS = 3
TRIALS_MAX = 30
"""The cheapest of so many counts: others may use the server, and it tidies up when it likes. As
long as it looks too dear, and that may be others' doing, it is tried again.
"""

LOG_TOLERANCE = {"sqlite": 0.05, "postgres": 0.1, "mariadb": 0.25, "mysql": 0.4}
"""InnoDB also logs what it cleans up later, MySQL more of it; twice as much is beyond it."""

LOG_END = re.compile(r"^Log sequence number\s+(\d+)$", re.MULTILINE)
"""To the byte: what InnoDB says to have written of its log is whole blocks."""

WRITTEN = "SHOW SESSION STATUS LIKE 'Handler_%'"
"""By the client's only connection. MySQL, unlike MariaDB, counts rows of temporary tables, too."""

WRITTEN_POSTGRES = (
    "SELECT SUM(n_tup_ins + n_tup_upd + n_tup_del), pg_current_wal_lsn() - '0/0'::pg_lsn "
    "FROM pg_stat_user_tables"
)

QUIET = {"discovery_interval": 600, "lease_duration": 600}

LATER = 3_600

Work = Callable[[], Awaitable[Any]]


class HotPath(NamedTuple):
    """What is done before, and what is then counted, each time with as many messages."""

    before: Work
    counted: Work


class Cost(NamedTuple):
    """What was counted, a message."""

    statements: float
    begins: float
    rows: float
    log_bytes: float


# --- the hot paths ------------------------------------------------------------------------------


async def nothing() -> None:
    """What is needed before a path that needs nothing."""


async def publishing(mq: Any, batch: int) -> HotPath:
    async def publish() -> None:
        if batch == 1:
            await mq.publish("orders", PAYLOAD, key="k")
        else:
            await mq.publish_many("orders", [Message(payload=PAYLOAD, key="k")] * batch)

    return HotPath(nothing, publish)


async def publishing_without_key(mq: Any, batch: int) -> HotPath:
    messages = [Message(payload=PAYLOAD)] * batch
    return HotPath(nothing, partial(mq.publish_many, "orders", messages))


async def publishing_over_16_keys(mq: Any, batch: int) -> HotPath:
    messages = [Message(payload=PAYLOAD, key=f"k{number % 16}") for number in range(batch)]
    return HotPath(nothing, partial(mq.publish_many, "orders", messages))


async def publishing_at_once(mq: Any, batch: int) -> HotPath:
    """They share a transaction."""

    async def publish() -> None:
        await asyncio.gather(*(mq.publish("orders", PAYLOAD, key="k") for _ in range(batch)))

    return HotPath(nothing, publish)


async def consuming(mq: Any, batch: int) -> HotPath:
    publish = (await publishing(mq, batch)).counted
    await publish()
    sub = await mq.subscribe("orders", group="billing", **QUIET)
    await sub.ack(await sub.poll(max=batch, timeout=0))

    async def consume() -> None:
        deliveries = await sub.poll(max=batch, timeout=0)
        assert len(deliveries) == batch
        await sub.ack(deliveries)

    return HotPath(publish, consume)


async def nacking_deliveries(mq: Any, batch: int) -> HotPath:
    publish = (await publishing(mq, batch)).counted
    await publish()
    sub = await mq.subscribe("orders", group="billing", **QUIET)
    await sub.ack(await sub.poll(max=batch, timeout=0))

    async def take() -> list[Any]:
        await publish()
        return await sub.poll(max=batch, timeout=0)  # type: ignore[no-any-return]

    return nacking(take, batch)


def nacking(take: Callable[[], Awaitable[list[Any]]], batch: int) -> HotPath:
    """To nack at once what was taken, each by itself."""
    held: list[Any] = []

    async def hold() -> None:
        held[:] = await take()
        assert len(held) == batch

    async def nack() -> None:
        await asyncio.gather(*(one.nack(delay=LATER) for one in held))

    return HotPath(hold, nack)


async def putting(mq: Any, batch: int) -> HotPath:
    queue = mq.queue("emails")

    async def put() -> None:
        if batch == 1:
            await queue.put(PAYLOAD)
        else:
            await queue.put_many([PAYLOAD] * batch)

    return HotPath(nothing, put)


async def offering(mq: Any, batch: int) -> HotPath:
    """Of keys that are new."""
    queue, numbers = mq.queue("emails"), count()

    async def offer() -> None:
        keys = [f"key {next(numbers)}" for _ in range(batch)]
        await queue.offer_batch([ScheduledMessage(key, PAYLOAD) for key in keys])

    return HotPath(nothing, offer)


async def offering_again(mq: Any, batch: int) -> HotPath:
    """Of keys that have a live job, which gets another payload."""
    queue, numbers = mq.queue("emails"), count()

    async def offer() -> None:
        payload = PAYLOAD + b"%d" % (next(numbers) % 10)
        await queue.offer_batch([ScheduledMessage(f"key {n}", payload) for n in range(batch)])

    await offer()
    return HotPath(nothing, offer)


async def claiming(mq: Any, batch: int, *, keep: bool = True) -> HotPath:
    put = (await putting(mq, batch)).counted
    queue = mq.queue("emails")
    await queue.configure(keep_completed=keep)
    await queue.put_many([PAYLOAD] * batch * 2)  # so that each claim finds all it asks for
    await queue.ack(await queue.try_poll_many(batch))

    async def claim() -> None:
        jobs = await queue.try_poll_many(batch)
        assert len(jobs) == batch
        await queue.ack(jobs)

    return HotPath(put, claim)


async def claiming_unarchived(mq: Any, batch: int) -> HotPath:
    return await claiming(mq, batch, keep=False)


async def nacking_jobs(mq: Any, batch: int) -> HotPath:
    put = (await putting(mq, batch)).counted
    queue = mq.queue("emails")

    async def take() -> list[Any]:
        await put()
        return await queue.try_poll_many(batch)  # type: ignore[no-any-return]

    return nacking(take, batch)


class Budgeted(NamedTuple):
    """How a hot path is made, of how many messages it is, and how often a trial does it: the more
    often, the less matters what a database does besides, now and then.
    """

    make: Callable[[Any, int], Awaitable[HotPath]]
    batch: int
    turns: int


PATHS = {
    "publish_1": Budgeted(publishing, 1, turns=8),
    "publish_100": Budgeted(publishing, 100, turns=2),
    "publish_without_key_100": Budgeted(publishing_without_key, 100, turns=2),
    "publish_over_16_keys_100": Budgeted(publishing_over_16_keys, 100, turns=2),
    "publish_at_once_16": Budgeted(publishing_at_once, 16, turns=4),
    "consume_1": Budgeted(consuming, 1, turns=8),
    "consume_100": Budgeted(consuming, 100, turns=2),
    "nack_deliveries_100": Budgeted(nacking_deliveries, 100, turns=2),
    "put_1": Budgeted(putting, 1, turns=8),
    "put_100": Budgeted(putting, 100, turns=2),
    "offer_100": Budgeted(offering, 100, turns=2),
    "offer_again_100": Budgeted(offering_again, 100, turns=2),
    "claim_and_ack_1": Budgeted(claiming, 1, turns=8),
    "claim_and_ack_100": Budgeted(claiming, 100, turns=2),
    "claim_and_ack_unarchived_1": Budgeted(claiming_unarchived, 1, turns=8),
    "claim_and_ack_unarchived_100": Budgeted(claiming_unarchived, 100, turns=2),
    "nack_jobs_100": Budgeted(nacking_jobs, 100, turns=1),
}


# --- what is counted ----------------------------------------------------------------------------


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The sessions, by their kind, that began a transaction, which no statement shows."""
    seen: list[str] = []

    def watch(session: Any) -> None:
        begin = session.begin

        def see(self: Any) -> Any:
            seen.append(session.__name__)
            return begin(self)

        monkeypatch.setattr(session, "begin", see)

    for session in (SQLiteSession, AsyncpgSession, AsyncmySession):
        watch(session)
    return seen


async def written(mq: Any, database: Database) -> tuple[int, int]:
    """How many rows were inserted, updated or deleted so far, and how many bytes of log written."""
    if isinstance(database, SQLiteDatabase):
        async with mq.transaction() as tx:
            ((rows,),) = (await tx.execute("SELECT total_changes()")).rows
        return rows, database.path.with_name(f"{database.path.name}-wal").stat().st_size
    if database.dialect == "mysql":
        async with mq.transaction() as tx:
            found = {name: int(value) for name, value in await tx.execute(WRITTEN)}
            ((*_, status),) = (await tx.execute("SHOW ENGINE INNODB STATUS")).rows
        (end,) = LOG_END.findall(status)
        return sum(found[f"Handler_{what}"] for what in ("write", "update", "delete")), int(end)
    async with mq.transaction() as tx:
        await tx.execute("SELECT pg_stat_force_next_flush()")
    async with mq.transaction() as tx:
        ((rows, end),) = (await tx.execute(WRITTEN_POSTGRES)).rows
    return int(rows), int(end)


async def only_append(mq: Any, database: Database) -> None:
    """Let SQLite's log begin anew now, and not while the client's only connection writes to it."""
    async with mq.transaction() as tx:
        await tx.execute("PRAGMA wal_autocheckpoint = 0")
    assert database.execute("PRAGMA wal_checkpoint(TRUNCATE)") == [(0, 0, 0)]


async def trial(path: HotPath, turns: int, mq: Any, database: Database, begun: list[str]) -> Cost:
    """What so many turns cost together."""
    if database.dialect == "sqlite":
        await only_append(mq, database)
    costs: list[Cost] = []
    for _ in range(turns):
        await path.before()
        rows, log = await written(mq, database)
        begun.clear()
        with statements(mq) as seen:
            await path.counted()
        begins = len(begun)
        rows_now, log_now = await written(mq, database)
        costs.append(Cost(len(seen), begins, rows_now - rows, log_now - log))
    return Cost(*map(sum, zip(*costs, strict=True)))


async def cost_of(
    budgeted: Budgeted, mq: Any, database: Database, begun: list[str], log_max: float
) -> Cost:
    """The cheapest of some trials; of more, while they take more of the log than that."""
    path = await budgeted.make(mq, budgeted.batch)
    messages = budgeted.turns * budgeted.batch
    costs: list[Cost] = []
    while len(costs) < TRIALS or (
        len(costs) < TRIALS_MAX and min(cost.log_bytes for cost in costs) > log_max * messages
    ):
        costs.append(await trial(path, budgeted.turns, mq, database, begun))
    return Cost(*(min(counts) / messages for counts in zip(*costs, strict=True)))


@async_only
@pytest.mark.parametrize("name", PATHS)
async def test_a_hot_path_costs_what_it_is_to(
    name: str, empty_database: Database, connect: Connect, begun: list[str]
) -> None:
    mq = await connect(empty_database.url, pool_size=1)
    await mq.migrate()
    mq._notifier._seconds = 0  # each tells those who wait, not only each that is late enough
    budget = Cost(**BUDGETS[empty_database.name][name])
    slack = LOG_TOLERANCE[empty_database.name] * budget.log_bytes
    cost = await cost_of(PATHS[name], mq, empty_database, begun, budget.log_bytes + slack)
    story = f"{name} on {empty_database.name}: {cost}, to be {budget}"
    assert cost[:3] == pytest.approx(budget[:3]), story
    assert abs(cost.log_bytes - budget.log_bytes) <= slack, story


def test_every_hot_path_has_a_budget_on_every_database() -> None:
    assert set(BUDGETS) == {"sqlite", "postgres", "mariadb", "mysql"}
    for budgets in BUDGETS.values():
        assert set(budgets) == set(PATHS)
