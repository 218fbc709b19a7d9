"""The sampler: how often it looks, whatever is asked of it, and what it keeps."""

import asyncio
from collections.abc import AsyncIterator

import pytest

import rowmq
from rowmq.web import sampling
from rowmq.web.kinds import Kinds
from rowmq.web.sampling import KEPT_SECONDS, Sampler
from tests.consuming import eventually
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


async def test_whatever_goes_wrong_it_goes_on_and_can_be_closed(
    mq: rowmq.AsyncRowMQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampler = Sampler()
    monkeypatch.setattr(sampling, "EVERY_SECONDS", 0.0)
    monkeypatch.setattr(sampling, "SHARE_MAX", 1e9)
    failed = 0

    async def fails() -> None:
        nonlocal failed
        failed += 1
        raise ZeroDivisionError

    await sampler.look(mq)
    with monkeypatch.context() as broken:
        broken.setattr(mq, "traffic", fails)
        await eventually(lambda: failed > 1)
    seen = await sampler.sample(mq)
    await eventually(lambda: sampler._latest is not seen)
    assert sampler._task is not None
    sampler._task.cancel()
    await eventually(sampler._task.done)
    await sampler.close()


def test_after_it_was_closed_another_loop_may_look(database: Database, clock: Moved) -> None:
    """Only if there was somebody to wait for is there anything of a loop in a lock."""
    sampler, kinds = Sampler(clock=clock), Kinds()

    async def look() -> None:
        async with await rowmq.connect_async(database.url) as mq:
            sampler.expire()
            found = [kinds.look(mq, "t", None, lately=False) for _ in range(3)]
            await asyncio.gather(*found, *(sampler.look(mq) for _ in range(3)))
            await sampler.close()
            kinds.close()

    for _ in range(2):
        asyncio.run(look())
        clock.now += 1


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
