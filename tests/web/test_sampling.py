"""The sampler: how often it looks, whatever is asked of it, and what it keeps."""

import asyncio
from collections.abc import AsyncIterator

import pytest

import rowmq
from rowmq.web.sampling import KEPT_SECONDS, Sampler
from tests.databases import Database


class Moved:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Moved:
    return Moved()


@pytest.fixture
async def mq(database: Database) -> AsyncIterator[rowmq.AsyncRowMQ]:
    async with await rowmq.connect_async(database.url) as client:
        yield client


@pytest.fixture
async def sampler(clock: Moved) -> AsyncIterator[Sampler]:
    found = Sampler(clock=clock)
    yield found
    await found.close()


async def test_many_who_look_at_once_share_a_look(mq: rowmq.AsyncRowMQ, sampler: Sampler) -> None:
    seen = await asyncio.gather(*(sampler.look(mq) for _ in range(50)))
    assert len({id(snapshot) for snapshot in seen}) == 1
    assert len(seen[0].samples) == 1


async def test_after_an_action_it_looks_again(
    mq: rowmq.AsyncRowMQ, sampler: Sampler, clock: Moved
) -> None:
    await sampler.look(mq)
    await mq.publish("orders", 1)
    clock.now += 0.1
    assert (await sampler.look(mq)).traffic.topics == ()
    sampler.expire()
    seen = await sampler.look(mq)
    assert [topic.published for topic in seen.traffic.topics] == [1]
    assert await sampler.look(mq) is seen


async def test_a_look_that_had_begun_before_an_action_is_none_of_after(
    mq: rowmq.AsyncRowMQ, sampler: Sampler, clock: Moved
) -> None:
    before = asyncio.ensure_future(sampler.look(mq))
    await asyncio.sleep(0)
    clock.now += 0.1
    sampler.expire()
    after = await sampler.look(mq)
    assert after is not await before


async def test_a_quarter_of_an_hour_is_kept(
    mq: rowmq.AsyncRowMQ, sampler: Sampler, clock: Moved
) -> None:
    for _ in range(99):
        await mq.publish("orders", 1)
        await sampler.sample(mq)
        clock.now += 20
    seen = await sampler.sample(mq)
    assert len(seen.samples) == KEPT_SECONDS / 20 + 1
    (topic,) = seen.began.topics
    assert 50 <= topic.published <= 58, "what has grown, has since then or a minute before"
