"""Garbage collection: what every group has acked goes, and nothing that anybody still wants.

What age takes from a group that had not acked it is told, and counted.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

import rowmq
from rowmq import Message, errors
from rowmq.store.retention import BATCH
from rowmq.store.statement import Statement
from tests.choices import async_only, on_servers
from tests.conformance.test_dead_letters import bury, letters
from tests.conformance.test_groups import QUICK, consume, lag_of, rows
from tests.conftest import Connect
from tests.consuming import eventually, payloads, publish, take
from tests.databases import Database

HOUR = timedelta(hours=1)
BEGINNING = 1_000_000
"""A time long ago, in microseconds."""


def make_old(database: Database, *, up_to: int, topic: str = "t") -> None:
    """Have the first messages of each partition be published long ago."""
    database.execute(
        f"UPDATE rowmq_messages SET published_at = {BEGINNING} WHERE message_offset <= {up_to} "
        f"AND partition_id IN (SELECT id FROM rowmq_partitions WHERE topic = '{topic}')"
    )


def make_reopened_old(database: Database) -> None:
    """Have all that was given back to groups be given back long ago."""
    database.execute(
        f"UPDATE rowmq_delivery_state SET reopened = {BEGINNING} WHERE reopened > {BEGINNING}"
    )


async def kept(mq: Any, topic: str = "t", **options: Any) -> list[Any]:
    return [m.payload for m in await mq.read(topic, limit=10_000, **options)]


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == "rowmq"
        and record.levelno == logging.WARNING
        and "retention" in record.getMessage()
    ]


@pytest.fixture
def rival(database: Database) -> Iterator[rowmq.RowMQ]:
    """Somebody who comes in between, and does not wait for long."""
    with rowmq.connect(database.url, lock_timeout=0.15, retry_for=0) as mq:
        yield mq


# --- what may go --------------------------------------------------------------------------------


async def test_what_every_group_has_acked_goes(mq: Any, database: Database) -> None:
    await publish(mq, 5)
    await consume(mq, "t", "quick", 5)
    await consume(mq, "t", "slow", 2)
    assert await mq.gc("t") == 2
    assert await kept(mq) == [3, 4, 5]
    assert [topic.messages for topic in await mq.topics()] == [3]
    assert await mq.gc("t") == 0
    assert await consume(mq, "t", "slow", 3) == [3, 4, 5]
    assert await mq.gc("t") == 3
    assert await kept(mq) == []
    assert rows(database, "messages", "delivery_state") == [0, 0]
    assert (await mq.publish("t", 6, key="k")).offset == 6
    assert await consume(mq, "t", "quick", 1) == [6]


async def test_without_a_group_nothing_goes(mq: Any, database: Database) -> None:
    await publish(mq, 5)
    assert await mq.gc("t") == 0
    assert await mq.gc("no such topic") == 0
    assert len(await kept(mq)) == 5
    assert rows(database, "topics") == [0]


async def test_only_what_is_acked_without_a_gap_goes(mq: Any) -> None:
    await publish(mq, 5)
    async with mq.subscribe("t", group="g", **QUICK) as sub:
        one, two, three, four, _ = await take(sub, 5)
        await sub.ack([one, three])
        assert await mq.gc("t") == 1
        await four.nack(delay=60)
        await two.ack()
        assert await mq.gc("t") == 2
    assert await kept(mq) == [4, 5]


async def test_a_group_that_never_subscribed_keeps_all(mq: Any) -> None:
    await mq.create_group("t", "registered")
    await publish(mq, 3)
    await consume(mq, "t", "g", 3)
    assert await mq.gc("t") == 0
    assert await consume(mq, "t", "registered", 3) == [1, 2, 3]
    assert await mq.gc("t") == 3


async def test_a_group_that_was_down_keeps_new_partitions(mq: Any) -> None:
    await publish(mq, 2, key="old")
    await consume(mq, "t", "down", 2)
    await publish(mq, 3, key="new")
    await mq.create_group("t", "latest", start="latest")
    await publish(mq, 1, key="newer")
    await consume(mq, "t", "g", 6)
    assert await mq.gc("t") == 2  # of the old one
    assert sorted(await consume(mq, "t", "down", 4)) == [1, 1, 2, 3]
    assert await mq.gc("t") == 3
    assert await consume(mq, "t", "latest", 1) == [1]
    assert await mq.gc("t") == 1


async def test_a_group_that_is_dropped_keeps_nothing(mq: Any) -> None:
    await publish(mq, 3)
    await consume(mq, "t", "g", 3)
    await mq.create_group("t", "abandoned")
    assert await mq.gc("t") == 0
    await mq.drop_group("t", "abandoned")
    assert await mq.gc("t") == 3


async def test_groups_of_other_topics_do_not_count(mq: Any) -> None:
    await mq.create_group("other", "g")
    await publish(mq, 2, topic="other")
    await publish(mq, 2)
    await consume(mq, "t", "g", 2)
    assert await mq.gc("t") == 2
    assert len(await kept(mq, "other")) == 2


async def test_an_id_can_be_published_again(mq: Any) -> None:
    """Once its message is collected, and not before."""
    await mq.publish("t", 1, key="k", id="x")
    await consume(mq, "t", "g", 1)
    assert (await mq.publish("t", 2, key="k", id="x")).duplicate
    assert await mq.gc("t") == 1
    again = await mq.publish("t", 3, key="k", id="x")
    assert (again.offset, again.duplicate) == (2, False)
    assert await consume(mq, "t", "g", 1) == [3]


async def test_letters_outlive_their_originals(mq: Any) -> None:
    await publish(mq, 2)
    await bury(mq, "g", 2)
    assert await mq.gc("t") == 2
    assert await letters(mq) == [("g", 1, "g cannot"), ("g", 2, "g cannot")]


async def test_letters_go_when_those_who_consume_them_are_done(mq: Any) -> None:
    """A dead-letter topic is a topic: without a group of its own nothing of it goes."""
    await publish(mq, 3)
    await bury(mq, "g", 3)
    assert await mq.gc("t_dlq") == 0
    await consume(mq, "t_dlq", "repair", 2)
    assert await mq.gc("t_dlq") == 2
    assert await letters(mq) == [("g", 3, "g cannot")]
    assert await mq.redrive("t", group="g") == 1
    assert await mq.gc("t_dlq") == 0
    assert await consume(mq, "t", "g", 1) == [3]


# --- in bounded batches -------------------------------------------------------------------------


class Batches:
    """How many rows each transaction and each statement of a collection deletes at most."""

    def __init__(self, mq: Any) -> None:
        self.deletes: list[list[int]] = []
        mq._driver.observers.append(self.see)

    def see(self, statement: Statement) -> None:
        if statement.name == "groups.lock_topic":
            self.deletes.append([])
        if statement.sql.lstrip().startswith("DELETE") and "rowmq_messages" in statement.sql:
            assert statement.name == "retention.delete"
            _, first, last = statement.params
            self.deletes[-1].append(last - first + 1)


async def acked_many(mq: Any, counts: dict[str, int], group: str = "g") -> None:
    """Messages of each key, all of them acked."""
    batch = [Message(payload=0, key=key) for key, count in counts.items() for _ in range(count)]
    await mq.publish_many("t", batch)
    await mq.create_group("t", group)
    await mq.seek("t", group, to="latest")


async def test_no_transaction_deletes_more_than_a_batch(mq: Any, database: Database) -> None:
    counts = {"a": BATCH + 500, "b": 700, "c": 1, "d": 2}
    await acked_many(mq, counts)
    batches = Batches(mq)
    assert await mq.gc("t") == sum(counts.values())
    assert max(sum(deletes) for deletes in batches.deletes) == BATCH
    assert sum(map(sum, batches.deletes)) == sum(counts.values())
    assert rows(database, "messages") == [0]


async def test_no_transaction_expires_more_than_a_batch(mq: Any, database: Database) -> None:
    counts = {"a": BATCH + 500, "b": 700}
    await acked_many(mq, counts)
    await mq.create_group("t", "abandoned")
    await mq.configure_topic("t", retention=HOUR)
    make_old(database, up_to=BATCH + 400)
    batches = Batches(mq)
    assert await mq.gc("t") == BATCH + 400 + 700
    assert max(sum(deletes) for deletes in batches.deletes) == BATCH
    assert rows(database, "messages") == [100]
    assert [g.expired for g in await mq.groups("t")] == [BATCH + 400 + 700, 0]


async def test_many_partitions_take_many_transactions(mq: Any, database: Database) -> None:
    counts = {f"k{n}": 2 for n in range(250)}
    await acked_many(mq, counts)
    assert await mq.gc("t") == 500
    assert rows(database, "messages") == [0]
    assert (await mq.publish("t", "next", key="k7")).offset == 3


# --- while others publish -----------------------------------------------------------------------


async def test_busy_partitions_are_collected(mq: Any, connect: Connect, database: Database) -> None:
    """There is a publish under way at any moment, and all the same they shrink."""
    others = [await connect(database.url, pool_size=1) for _ in range(2)]
    await acked_many(mq, {"a": 300, "b": 300})
    stopped = False
    published = 0

    async def keep_publishing(other: Any) -> None:
        nonlocal published
        while not stopped:
            await other.publish_many("t", [Message(payload=1, key=key) for key in ("a", "b")])
            published += 2

    tasks = [asyncio.create_task(keep_publishing(other)) for other in others]
    await eventually(lambda: published > 4)
    assert await mq.gc("t") == 600
    assert await mq.gc("t") == 0
    stopped = True
    await asyncio.gather(*tasks)
    assert len(await kept(mq)) == published
    found = await consume(mq, "t", "g", published, max_in_flight=published)
    assert len(found) == published


@on_servers
async def test_it_ends_though_more_is_acked_all_the_time(mq: Any, rival: rowmq.RowMQ) -> None:
    """What was there when it began is collected; the rest is for the next one."""
    transactions = 0

    def more_is_acked(statement: Statement) -> None:
        nonlocal transactions
        if statement.name == "groups.lock_topic" and transactions < 30:
            transactions += 1
            rival.publish("t", "more", key="k")
            rival.seek("t", "g", to="latest")

    await acked_many(mq, {"k": 5})
    mq._driver.observers.append(more_is_acked)
    collected = await mq.gc("t")
    assert transactions < 10
    assert collected >= 5


@on_servers
async def test_an_open_publish_holds_up_its_own_partition_only(
    connect: Connect, database: Database
) -> None:
    mq = await connect(database.url)
    await acked_many(mq, {"a": 3, "b": 3, "c": 3})
    async with mq.transaction() as tx:
        await tx.publish("t", "held", key="b")
        collecting = asyncio.create_task(mq.gc("t"))
        await eventually(lambda: rows(database, "messages") == [3])  # those of b
        await asyncio.wait({collecting}, timeout=0.1)
    assert await collecting == 9
    assert await kept(mq) == ["held"]
    assert await consume(mq, "t", "g", 1) == ["held"]


@on_servers
async def test_an_open_publish_does_not_fail_the_collection(
    connect: Connect, database: Database
) -> None:
    """It may be open for longer than anybody waits for a lock."""
    mq = await connect(database.url)
    impatient = await connect(database.url, lock_timeout=0.2, retry_for=0)
    await acked_many(mq, {"a": 3, "b": 3, "c": 3})
    async with mq.transaction() as tx:
        await tx.publish("t", "held", key="a")
        assert await impatient.gc("t") == 6
    assert await impatient.gc("t") == 3


@on_servers
async def test_an_open_publish_does_not_hide_the_partitions_behind_it(
    connect: Connect, database: Database
) -> None:
    """However much there is to be collected in its own."""
    mq = await connect(database.url)
    impatient = await connect(database.url, lock_timeout=0.2, retry_for=0)
    await acked_many(mq, {"a": BATCH + 1, "b": 3})
    async with mq.transaction() as tx:
        await tx.publish("t", "held", key="a")
        with suppress(errors.Locked):
            await impatient.gc("t")
        assert await kept(mq, key="b") == []


@on_servers
async def test_a_collection_that_waits_keeps_nobody_out(
    connect: Connect, database: Database
) -> None:
    """Who creates a group, or seeks, waits for a moment and not for an open publish."""
    mq = await connect(database.url)
    other = await connect(database.url, lock_timeout=1, retry_for=0)
    await acked_many(mq, {"a": 3, "b": 3})
    async with mq.transaction() as tx:
        await tx.publish("t", "held", key="b")
        collecting = asyncio.create_task(mq.gc("t"))
        await eventually(lambda: rows(database, "messages") == [3])
        await asyncio.wait({collecting}, timeout=0.2)
        assert await other.create_group("t", "new")
        assert await other.seek("t", "g", to="latest") == 2
    await collecting


async def test_collections_at_the_same_time(connect: Connect, database: Database) -> None:
    clients = [await connect(database.url, pool_size=2) for _ in range(3)]
    await acked_many(clients[0], {f"k{n}": 100 for n in range(12)})
    counts = await asyncio.gather(*(mq.gc("t") for mq in clients))
    assert sum(counts) == 1200
    assert rows(database, "messages") == [0]


# --- while others change what is wanted ---------------------------------------------------------

MOMENTS = [
    "retention.acked",
    "groups.lock_topic",
    "retention.lock",
    "retention.delete",
    "retention.shorten",
]


def interrupting(moment: str, act: Callable[[], Any]) -> Callable[[Statement], None]:
    """An observer that does something just before a statement runs, unless it is locked out."""
    acted: list[bool] = []

    def see(statement: Statement) -> None:
        if statement.name == moment and not acted:
            acted.append(True)
            with suppress(errors.Locked):
                act()

    return see


@on_servers
@async_only
@pytest.mark.parametrize("moment", MOMENTS)
async def test_a_group_created_meanwhile_has_all_that_was_there(
    mq: Any, rival: rowmq.RowMQ, moment: str
) -> None:
    seen: list[list[Any]] = []

    def create() -> None:
        rival.create_group("t", "new")
        seen.append([m.payload for m in rival.read("t")])

    await publish(mq, 5)
    await consume(mq, "t", "g", 5)
    mq._driver.observers.append(interrupting(moment, create))
    await mq.gc("t")
    mq._driver.observers.clear()
    await mq.create_group("t", "new")
    there = seen[0] if seen else []
    assert [row.lag for row in await mq.lag("t", "new")] == [len(there)]
    await mq.publish("t", "next", key="k")
    assert await consume(mq, "t", "new", len(there) + 1) == [*there, "next"]


@on_servers
async def test_the_first_groups_created_meanwhile_have_all_that_was_there(
    mq: Any, rival: rowmq.RowMQ
) -> None:
    """The topic had no group when the collection began; then one comes and acks all, and another
    one comes before anything is deleted.
    """

    def come_and_ack() -> None:
        rival.create_group("t", "quick")
        rival.seek("t", "quick", to="latest")

    await publish(mq, 5)
    mq._driver.observers.append(interrupting("retention.acked", come_and_ack))
    mq._driver.observers.append(
        interrupting("retention.delete", lambda: rival.create_group("t", "slow"))
    )
    await mq.gc("t")
    mq._driver.observers.clear()
    there = await kept(mq)
    if not await mq.create_group("t", "slow"):  # it was there before the deletion
        assert there == [1, 2, 3, 4, 5]
    await mq.publish("t", "next", key="k")
    assert await consume(mq, "t", "slow", len(there) + 1) == [*there, "next"]


@on_servers
@async_only
@pytest.mark.parametrize("moment", MOMENTS)
async def test_a_seek_meanwhile_has_all_that_was_there(
    mq: Any, rival: rowmq.RowMQ, moment: str
) -> None:
    seen: list[list[Any]] = []

    def seek() -> None:
        rival.seek("t", "g", to="earliest")
        seen.append([m.payload for m in rival.read("t")])

    await publish(mq, 5)
    await consume(mq, "t", "g", 5)
    mq._driver.observers.append(interrupting(moment, seek))
    await mq.gc("t")
    mq._driver.observers.clear()
    there = seen[0] if seen else []
    assert [row.lag for row in await mq.lag("t", "g")] == [len(there)]
    await mq.publish("t", "next", key="k")
    assert await consume(mq, "t", "g", len(there) + 1) == [*there, "next"]


@on_servers
@async_only
@pytest.mark.parametrize("moment", [*MOMENTS, "retention.given_back"])
async def test_a_redrive_meanwhile_gives_back_what_was_given_up(
    mq: Any, rival: rowmq.RowMQ, moment: str
) -> None:
    redriven: list[int] = []
    await publish(mq, 3)
    await bury(mq, "g", 3)
    see = interrupting(moment, lambda: redriven.append(rival.redrive("t", group="g")))
    mq._driver.observers.append(see)
    await mq.gc("t")
    mq._driver.observers.clear()
    redriven.append(await mq.redrive("t", group="g"))
    assert sum(redriven) == 3
    assert await consume(mq, "t", "g", 3) == [1, 2, 3]


class Worker:
    """Handles all messages of a group, every fifth of them only the second time."""

    def __init__(self, mq: Any, group: str) -> None:
        self.mq = mq
        self.group = group
        self.handled: set[int] = set()
        self.refused: set[int] = set()
        self.stopped = False

    async def work(self) -> None:
        options = QUICK | {"max_attempts": 1}
        async with self.mq.subscribe("t", group=self.group, **options) as sub:
            while not self.stopped:
                for delivery in await sub.poll(max=7, timeout=0.05):
                    await self.handle(delivery)

    async def handle(self, delivery: Any) -> None:
        n = delivery.message.payload
        if n % 5 == 0 and n not in self.refused:
            await delivery.reject(error="the first time")
            self.refused.add(n)
        else:
            await delivery.ack()
            assert n not in self.handled
            self.handled.add(n)

    async def complete(self, total: int) -> bool:
        lag = sum(row.lag for row in await self.mq.lag("t", self.group))
        return len(self.handled) == total and lag == 0


async def test_everybody_at_once(connect: Connect, database: Database) -> None:
    """Publish, consume, fail, redrive, new groups, seeks, and collections all the while."""
    mq, other = await connect(database.url), await connect(database.url)
    total, visitors, stopped = 60, 0, False
    workers = [Worker(mq, "a"), Worker(mq, "b")]

    async def keep_doing(call: Callable[[], Awaitable[Any]]) -> None:
        while not stopped:
            await call()

    async def come_and_go() -> None:
        nonlocal visitors
        visitors += 1
        await other.create_group("t", f"visitor {visitors}", start="latest")
        await other.seek("t", f"visitor {visitors}", to="earliest")
        await other.drop_group("t", f"visitor {visitors}")

    for worker in workers:
        await mq.create_group("t", worker.group)
    calls = [lambda: other.gc("t"), lambda: other.redrive("t"), come_and_go]
    tasks = [asyncio.create_task(worker.work()) for worker in workers]
    tasks += [asyncio.create_task(keep_doing(call)) for call in calls]
    for n in range(total):
        await mq.publish("t", n, key=f"k{n % 3}")
    for worker in workers:
        await eventually(partial(worker.complete, total))
        worker.stopped = True
    stopped = True
    await asyncio.gather(*tasks)
    assert visitors > 1
    await mq.gc("t")
    assert rows(database, "messages", "dead_letters") == [0, 0]


# --- retention ----------------------------------------------------------------------------------


@async_only
@pytest.mark.parametrize("collected", [False, True], ids=["in the log", "below the log"])
async def test_what_was_given_back_is_as_old_as_that(
    mq: Any, database: Database, collected: bool
) -> None:
    """Whoever redrives an old message wants it to be handled, and not to be let go of again."""
    await publish(mq, 5)
    await mq.create_group("t", "slow")
    await bury(mq, "g", 3)
    make_old(database, up_to=4)
    if collected:
        await mq.configure_topic("t", retention=HOUR)
        assert await mq.gc("t") == 4
    assert await mq.redrive("t", group="g", limit=2) == 2
    await mq.configure_topic("t", retention=HOUR)
    await mq.gc("t")
    assert await mq.gc("t") == 0
    expired = {group.name: group.expired for group in await mq.groups("t")}
    assert expired == {"g": 1, "slow": 4}  # the fourth, which it never had
    assert await consume(mq, "t", "g", 3) == [1, 2, 5]
    assert await consume(mq, "t", "slow", 1) == [5]
    assert await mq.gc("t") == 3
    assert rows(database, "messages") == [1]  # the copy of the letter that is left


@on_servers
async def test_what_is_spared_holds_nothing_up_that_follows_it(
    connect: Connect, database: Database
) -> None:
    """Also of a key that somebody publishes to at this moment."""
    mq = await connect(database.url)
    await publish(mq, 5)
    await bury(mq, "g", 5)
    make_old(database, up_to=5)
    assert await mq.redrive("t", group="g", limit=1) == 1
    await mq.configure_topic("t", retention=HOUR)
    async with mq.transaction() as tx:
        await tx.publish("t", "held", key="k")
        collecting = asyncio.create_task(mq.gc("t"))
        await asyncio.wait({collecting}, timeout=0.2)
    assert await collecting == 4
    assert await consume(mq, "t", "g", 2) == [1, "held"]


@async_only
async def test_what_was_given_back_long_ago_is_let_go_of(mq: Any, database: Database) -> None:
    await publish(mq, 3)
    await bury(mq, "g", 3)
    assert await mq.redrive("t", group="g") == 3
    await mq.configure_topic("t", retention=HOUR)
    make_old(database, up_to=3)
    assert await mq.gc("t") == 0
    make_reopened_old(database)
    assert await mq.gc("t") == 3
    assert {group.expired for group in await mq.groups("t")} == {3}


async def test_an_abandoned_group_is_let_go_of_and_that_is_told(
    mq: Any, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    await publish(mq, 5)
    await consume(mq, "t", "good", 5)
    await consume(mq, "t", "slow", 1)
    await mq.create_group("t", "abandoned")
    await mq.configure_topic("t", retention=HOUR)
    assert await mq.gc("t") == 0
    make_old(database, up_to=3)
    assert await mq.gc("t") == 3
    assert await kept(mq) == [4, 5]
    expired = {group.name: group.expired for group in await mq.groups("t")}
    assert expired == {"abandoned": 3, "good": 0, "slow": 2}
    assert sorted(warnings(caplog)) == [
        "retention of topic 't' took 2 messages from group 'slow' that it had not acked",
        "retention of topic 't' took 3 messages from group 'abandoned' that it had not acked",
    ]
    assert {name: (await lag_of(mq, "t", name))["k"][:3] for name in expired} == {
        "abandoned": (3, 5, 2), "good": (5, 5, 0), "slow": (3, 5, 2),
    }  # fmt: skip
    assert await consume(mq, "t", "abandoned", 2) == [4, 5]
    assert await consume(mq, "t", "slow", 2) == [4, 5]


async def test_what_is_counted_adds_up(mq: Any, database: Database) -> None:
    await mq.create_group("t", "g")
    await mq.configure_topic("t", retention=HOUR)
    for expected in (2, 4, 6):
        await publish(mq, 2)
        make_old(database, up_to=expected)
        assert await mq.gc("t") == 2
        assert [group.expired for group in await mq.groups("t")] == [expected]


async def test_what_age_takes_from_nobody_is_not_told(
    mq: Any, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    await publish(mq, 5)
    await mq.configure_topic("t", retention=HOUR)
    make_old(database, up_to=4)
    assert await mq.gc("t") == 4  # without a group
    await consume(mq, "t", "g", 1)
    make_old(database, up_to=5)
    assert await mq.gc("t") == 1
    assert warnings(caplog) == []
    assert [group.expired for group in await mq.groups("t")] == [0]


async def test_a_group_is_told_of_what_it_had_not_acked_only(mq: Any, database: Database) -> None:
    await publish(mq, 6)
    await mq.configure_topic("t", retention=HOUR)
    async with mq.subscribe("t", group="g", **QUICK) as sub:
        one, two, three, four, *_ = await take(sub, 6)
        await sub.ack([two, four])
        await three.nack(delay=60)
        make_old(database, up_to=4)
        assert await mq.gc("t") == 4
        assert [group.expired for group in await mq.groups("t")] == [2]
        with pytest.raises(errors.StaleLease):
            await one.ack()


async def test_retention_can_be_taken_back(mq: Any, database: Database) -> None:
    await publish(mq, 3)
    make_old(database, up_to=3)
    await mq.configure_topic("t", retention=HOUR)
    await mq.configure_topic("t", retention=timedelta.max)
    assert await mq.gc("t") == 0
    assert len(await kept(mq)) == 3


async def test_each_partition_has_its_own_age(mq: Any, database: Database) -> None:
    await publish(mq, 3, key="a")
    make_old(database, up_to=2)
    await publish(mq, 3, key="b")
    await publish(mq, 3, key=None)
    await mq.create_group("t", "g")
    await mq.configure_topic("t", retention=HOUR)
    assert await mq.gc("t") == 2
    assert {row.key: row.offset_acked for row in await mq.lag("t", "g")} == {
        None: 0, "a": 2, "b": 0,
    }  # fmt: skip


async def test_a_running_subscriber_is_passed_by_retention(
    mq: Any, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    await publish(mq, 6)
    await mq.configure_topic("t", retention=HOUR)
    async with mq.subscribe("t", group="g", name="w1", **QUICK) as sub:
        one, two, three, four = await take(sub, 4)
        await two.nack(delay=0, error="later")
        make_old(database, up_to=3)
        assert await mq.gc("t") == 3
        assert len(warnings(caplog)) == 1
        for gone in (one, three):
            with pytest.raises(errors.StaleLease):
                await gone.ack()
        await four.ack()
        rest = await take(sub, 2)
        assert payloads(rest) == [5, 6]
        await sub.ack(rest)
        await mq.publish("t", "next", key="k")
        (following,) = await take(sub, 1)
        assert (following.message.payload, following.attempt) == ("next", 1)
        await following.ack()
        assert await lag_of(mq, "t", "g") == {"k": (7, 7, 0, 0, "w1")}
    assert rows(database, "delivery_state") == [0]


async def test_retention_passes_what_was_never_delivered(mq: Any, database: Database) -> None:
    await mq.configure_topic("t", retention=HOUR)
    async with mq.subscribe("t", group="g", max_in_flight=1, **QUICK) as sub:
        await publish(mq, 6)
        (held,) = await take(sub, 1)
        make_old(database, up_to=5)
        assert await mq.gc("t") == 5
        assert [group.expired for group in await mq.groups("t")] == [5]
        (last,) = await take(sub, 1)  # what was held does not count any more
        assert (last.message.payload, last.attempt) == (6, 1)
        with pytest.raises(errors.StaleLease):
            await held.ack()
        await last.ack()


async def test_a_letter_is_kept_though_retention_took_its_original(
    mq: Any, database: Database
) -> None:
    await publish(mq, 2)
    await bury(mq, "g", 1)
    await mq.configure_topic("t", retention=HOUR)
    make_old(database, up_to=2)
    assert await mq.gc("t") == 2
    assert await mq.redrive("t", group="g") == 1
    assert await consume(mq, "t", "g", 1) == [1]


async def test_what_was_given_back_expires_as_well(
    mq: Any, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """An abandoned group that a message was given back to does not keep it for ever."""
    await publish(mq, 1)
    make_old(database, up_to=1)
    await bury(mq, "g", 1)
    assert await mq.gc("t") == 1
    assert await mq.redrive("t", group="g") == 1
    await mq.configure_topic("t", retention=HOUR)
    assert await mq.gc("t") == 0
    make_reopened_old(database)
    assert await mq.gc("t") == 1
    assert rows(database, "messages") == [0]
    assert [group.expired for group in await mq.groups("t")] == [1]
    assert len(warnings(caplog)) == 1


async def test_letters_expire_by_the_retention_of_their_own_topic(
    mq: Any, database: Database
) -> None:
    await publish(mq, 3)
    await bury(mq, "g", 3)
    make_old(database, up_to=2, topic="t_dlq")
    await mq.configure_topic("t", retention=HOUR)
    await mq.gc("t_dlq")
    assert len(await letters(mq)) == 3
    await mq.configure_topic("t_dlq", retention=HOUR)
    assert await mq.gc("t_dlq") == 2
    assert await letters(mq) == [("g", 3, "g cannot")]


@on_servers
@pytest.mark.parametrize("came", [True, False], ids=["came once", "never came"])
async def test_an_open_publish_does_not_keep_age_from_the_others(
    connect: Connect, database: Database, came: bool
) -> None:
    """And whatever is taken is counted once."""
    mq = await connect(database.url)
    for key in ("a", "b"):
        await publish(mq, 2, key=key)
    make_old(database, up_to=2)
    await mq.create_group("t", "g")
    if came:
        async with mq.subscribe("t", group="g", **QUICK):
            pass
    await mq.configure_topic("t", retention=HOUR)
    async with mq.transaction() as tx:
        await tx.publish("t", "held", key="a")
        collecting = asyncio.create_task(mq.gc("t"))
        await eventually(lambda: rows(database, "messages") == [2])
        await asyncio.wait({collecting}, timeout=0.2)
    assert await collecting + await mq.gc("t") == 4
    assert [group.expired for group in await mq.groups("t")] == [4]
    assert await consume(mq, "t", "g", 1) == ["held"]


@on_servers
async def test_two_collections_count_what_age_takes_once(mq: Any, rival: rowmq.RowMQ) -> None:
    """The second has found what is old before the first has deleted it."""
    await mq.create_group("t", "g")
    await publish(mq, 3)
    await mq.configure_topic("t", retention=timedelta(milliseconds=20))
    await asyncio.sleep(0.05)
    collected: list[int] = []
    see = interrupting("groups.lock_topic", lambda: collected.append(rival.gc("t")))
    mq._driver.observers.append(see)
    assert await mq.gc("t") + sum(collected) == 3
    mq._driver.observers.clear()
    assert len(collected) == 1
    assert [group.expired for group in await mq.groups("t")] == [3]


@on_servers
async def test_an_open_settle_does_not_fail_the_collection(
    connect: Connect, database: Database
) -> None:
    """A handler's transaction may be open for long. What it holds up is left for the next time."""
    mq = await connect(database.url)
    impatient = await connect(database.url, lock_timeout=0.2, retry_for=0)
    await mq.publish_many("t", [Message(payload=n, key=key) for n in (1, 2) for key in "ab"])
    await mq.configure_topic("t", retention=HOUR)
    async with mq.subscribe("t", group="g", **QUICK) as sub:
        held = {(d.message.key, d.message.payload): d for d in await take(sub, 4)}
        make_old(database, up_to=2)
        async with mq.transaction() as tx:
            await held["a", 1].ack(connection=tx)
            await impatient.gc("t")
            assert await kept(mq, key="b") == []
            assert await kept(mq, key="a") == [1, 2]
        assert await impatient.gc("t") == 2
    assert [group.expired for group in await mq.groups("t")] == [3]
