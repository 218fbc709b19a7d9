"""Who subscribes to what, and what Spark's pipelines have read and written: for people to see."""

import uuid
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

import rowmq
from rowmq.store import workers
from rowmq.store.seeking import Target
from rowmq.store.staging import Part, Stage, StagedRow, Version
from tests.choices import async_only
from tests.consuming import publish, statements
from tests.databases import Database
from tests.flavours import plain
from tests.plans import reads_of

STRANGE = 'it\'s 100%_"quoted" \\ 🐘 <b>'

OWNED = 3_000
COUNTED_MAX = 100
READ_MAX = 1_000
"""How many rows may be read to tell of a subscriber that owns more partitions than are counted."""


# --- subscribers ----------------------------------------------------------------------------------


async def test_subscribers_are_told_with_what_they_own(mq: Any) -> None:
    for topic in ("b", STRANGE):
        await publish(mq, 1, topic=topic)
    async with (
        mq.subscribe("b", group="g", name="second") as second,
        mq.subscribe(STRANGE, group=STRANGE, name=STRANGE) as strange,
        mq.subscribe("b", group="g", name="idle"),
    ):
        for subscriber in (second, strange):
            await subscriber.poll(timeout=5)
        found = await mq.subscribers()
        told = {(one.topic, one.group, one.name): one.partitions for one in found}
        assert told == {
            ("b", "g", "second"): 1,
            ("b", "g", "idle"): 0,
            (STRANGE, STRANGE, STRANGE): 1,
        }
        assert all(one.alive for one in found)
        assert [one.topic for one in found] == sorted(one.topic for one in found)
        lately = datetime.now(UTC) - timedelta(minutes=1)
        assert all(one.seen_at > lately for one in found)
    assert await mq.subscribers() == []


@async_only
async def test_a_subscriber_that_was_not_heard_of_is_not_alive(mq: Any, database: Database) -> None:
    await publish(mq, 1)
    await mq.create_group("t", "g")
    database.execute(
        "INSERT INTO rowmq_subscribers (group_id, heartbeat_at, expires_at, subscriber_name) "
        "SELECT id, 1000000, 2000000, 'dead' FROM rowmq_groups"
    )
    (found,) = await mq.subscribers()
    assert (found.name, found.alive, found.partitions) == ("dead", False, 0)
    assert found.seen_at == datetime.fromtimestamp(1, UTC)


@pytest.mark.parametrize("analyzed", [False, True])
def test_what_a_subscriber_owns_is_counted_up_to_a_limit(
    database: Database, monkeypatch: pytest.MonkeyPatch, analyzed: bool
) -> None:
    monkeypatch.setattr(workers, "OWNED_MAX", COUNTED_MAX)
    with rowmq.connect(database.url) as mq:
        mq.publish("t", 1)
        mq.create_group("t", "g")
        ((group,),) = database.execute("SELECT id FROM rowmq_groups")
        database.execute(
            "INSERT INTO rowmq_subscribers (id, group_id, heartbeat_at, expires_at, "
            f"subscriber_name) VALUES (7, {group}, 0, 0, 's'), (8, {group}, 0, 0, 's')"
        )
        rows = [f"({group}, {n + 1000}, 0, 0, 1, 0, 0, 0, 7, 0, 0)" for n in range(OWNED)]
        database.execute(
            "INSERT INTO rowmq_offsets (group_id, partition_id, offset_acked, offset_delivered, "
            "tail_first, tail_until, epoch, version, leased_by, tail_attempts, touched) "
            f"VALUES {', '.join(rows)}"
        )
        if analyzed:
            database.analyze()
        with statements(mq) as seen:
            assert sorted(one.partitions for one in mq.subscribers()) == [0, COUNTED_MAX]
        reads = reads_of(database, list(seen))
    assert {name.partition(" ")[0] for name in reads} == {"workers.subscribers", "workers.owned"}
    assert max(reads.values()) <= READ_MAX, reads


# --- pipelines ------------------------------------------------------------------------------------


async def establish(mq: Any, topic: str, group: str) -> None:
    """What a stream of Spark's does first."""
    positions = plain(mq)._store.positions
    await mq._run(partial(positions.establish, topic, group, Target(start="earliest")))


def write(mq: rowmq.RowMQ, version: Version) -> None:
    """What a sink of Spark's does for a batch of one message."""
    staging = mq._store.staging
    name = uuid.uuid4().hex
    id = mq._run(partial(staging.open, name))
    mq._run(partial(staging.fill, id, [StagedRow(0, 0, 0, 1, b"1", name)]))
    mq._run(partial(staging.complete, id, [Part(0, "t", "k", 0, 1, 1)]))
    mq._run(partial(staging.publish, [Stage(id, 1)], version, notify=False))


@async_only
async def test_readers_are_told_with_their_lag(mq: Any, database: Database) -> None:
    await publish(mq, 5)
    await publish(mq, 2, key="other")
    await mq.create_group("t", "consumers")
    await establish(mq, "t", STRANGE)
    rows = database.execute("SELECT partition_key, id FROM rowmq_partitions")
    ids = {key if isinstance(key, str) else key.decode(): id for key, id in rows}
    positions = plain(mq)._store.positions
    await mq._run(partial(positions.advance, "t", STRANGE, {ids["k"]: 2, ids["other"]: 2}))
    (reader,) = (await mq.pipelines()).readers
    assert (reader.topic, reader.group) == ("t", STRANGE)
    assert (reader.partitions, reader.behind, reader.lag) == (2, 1, 3)
    third = next(m for m in await mq.read("t", key="k") if m.offset == 3)
    assert reader.oldest_at == third.published_at
    assert reader.moved_at is not None
    assert reader.created_at <= reader.moved_at

    await mq._run(partial(positions.advance, "t", STRANGE, {ids["k"]: 5}))
    (reader,) = (await mq.pipelines()).readers
    assert (reader.behind, reader.lag, reader.oldest_at) == (0, 0, None)


@async_only
async def test_the_doctor_asks_no_subscribers_of_a_group_that_spark_reads_for(mq: Any) -> None:
    await publish(mq, 5)
    await establish(mq, "t", "lake")
    (fine,) = await mq.doctor(checks=["lag"], thresholds=rowmq.Thresholds(unattended=0.001))
    assert fine.level is rowmq.Level.OK
    far = rowmq.Thresholds(unattended=0.001, lag_messages=4)
    (finding, *_) = await mq.doctor(checks=["lag"], thresholds=far)
    assert finding.level is rowmq.Level.WARNING
    assert "Spark" in finding.summary
    assert "subscriber" not in (finding.advice or "")


def test_writers_are_told_the_last_first(database: Database) -> None:
    with rowmq.connect(database.url) as mq:
        assert mq.pipelines().writers == ()
        write(mq, Version("query:a", "t", 0))
        write(mq, Version("app:b", "t", 7))
        write(mq, Version("query:a", "t", 1))
        database.execute(
            "UPDATE rowmq_ledger SET updated_at = updated_at - 1000000 WHERE writer = 'app:b'"
        )
        written = mq.pipelines().writers
    assert [(one.writer, one.target, one.version) for one in written] == [
        ("query:a", "t", 1),
        ("app:b", "t", 7),
    ]
    assert written[0].written_at > written[1].written_at
