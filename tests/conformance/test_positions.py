"""A reader that keeps its own books has a group, which garbage collection waits for.

Spark is such a reader; what it does there is in `tests/spark`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import rowmq
from rowmq import Message, errors
from rowmq.store.positions import Positions
from rowmq.store.seeking import Target
from rowmq.store.staging import Version
from tests.choices import async_only
from tests.consuming import acked, publish
from tests.databases import Database
from tests.flavours import plain

EARLIEST = Target(start="earliest")

pytestmark = async_only  # what is asked of the database is the same


def positions_of(mq: Any) -> Positions:
    positions: Positions = plain(mq)._store.positions
    return positions


async def establish(mq: Any, group: str = "g", to: Target | None = EARLIEST) -> bool:
    made: bool = await mq._run(partial(positions_of(mq).establish, "t", group, to))
    return made


@pytest.fixture
def advance(mq: Any, database: Database) -> Callable[[int], Any]:
    """Says that a reader is done with all up to an offset, in the only partition."""

    async def to(offset: int) -> None:
        ((partition,),) = database.execute("SELECT id FROM rowmq_partitions WHERE topic = 't'")
        await mq._run(partial(positions_of(mq).advance, "t", "g", {partition: offset}))

    return to


async def test_garbage_collection_waits_for_what_the_reader_has_not_done(
    mq: Any, advance: Any
) -> None:
    await publish(mq, 5)
    assert await establish(mq)
    assert await mq.gc("t") == 0
    await advance(3)
    assert await mq.gc("t") == 3
    assert [message.payload for message in await mq.read("t")] == [4, 5]


async def test_a_place_only_moves_forward(mq: Any, advance: Any) -> None:
    """One of two that do the same work is late: what the other one has done stays done."""
    await publish(mq, 5)
    await establish(mq)
    for told, stands in ((4, 4), (2, 4), (4, 4), (5, 5)):
        await advance(told)
        assert await acked(mq) == stands


async def test_a_reader_begins_where_it_is_told_and_goes_on_where_it_was(
    mq: Any, advance: Any
) -> None:
    await publish(mq, 5)
    assert await establish(mq, to=Target(offsets={"k": 3}))
    assert await acked(mq) == 2
    await advance(4)
    assert not await establish(mq, to=EARLIEST)
    assert not await establish(mq, to=None)
    assert await acked(mq) == 4
    with pytest.raises(errors.UnknownGroup, match="it was dropped, or never made"):
        await establish(mq, "another", None)


async def test_a_new_partition_waits_for_the_reader_too(mq: Any, advance: Any) -> None:
    await publish(mq, 2)
    await establish(mq)
    await advance(2)
    await mq.publish_many("t", [Message(payload=n, key="new") for n in range(3)])
    assert await mq.gc("t") == 2
    assert len(await mq.read("t")) == 3


async def test_nobody_subscribes_for_a_reader_nor_reads_for_subscribers(mq: Any) -> None:
    await publish(mq, 1)
    await establish(mq)
    with pytest.raises(errors.InvalidOption, match="keeps its own books"):
        async with mq.subscribe("t", group="g", discovery_interval=0.05) as sub:
            await sub.poll(timeout=0)
    async with mq.subscribe("t", group="subscribers", discovery_interval=0.05) as sub:
        await sub.poll(timeout=0)
        with pytest.raises(errors.InvalidOption, match="has subscribers, or had some"):
            await establish(mq, "subscribers")


async def test_pipelines_tell_what_is_read_and_what_was_written(mq: Any, advance: Any) -> None:
    assert await mq.pipelines() == rowmq.Pipelines(readers=(), writers=())
    await publish(mq, 5)
    await mq.create_group("t", "subscribers")
    await establish(mq)
    (reader,) = (await mq.pipelines()).readers
    oldest = (await mq.read("t"))[0].published_at
    assert (reader.topic, reader.group, reader.moved_at) == ("t", "g", None)
    assert (reader.partitions, reader.behind, reader.lag) == (1, 1, 5)
    assert reader.oldest_at == oldest
    await advance(5)
    (reader,) = (await mq.pipelines()).readers
    assert (reader.behind, reader.lag, reader.oldest_at) == (0, 0, None)
    assert reader.moved_at >= reader.created_at >= oldest

    staging = plain(mq)._store.staging
    for version in (
        Version("query:1", "", 0),
        Version("app:daily", "t", 7),
        Version("query:1", "", 1),
    ):
        assert await mq._run(partial(staging.enter, version))
    writers = (await mq.pipelines()).writers
    told = sorted((one.writer, one.target, one.version) for one in writers)
    assert told == [("app:daily", "t", 7), ("query:1", "", 1)]
    assert writers[0].written_at >= writers[1].written_at
