"""Looking at live jobs, at one by its id, and at the partitions of a topic."""

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import rowmq
from rowmq import State, errors
from rowmq.store.statement import Statement
from tests.databases import Database


async def payloads(queue: Any, **which: Any) -> list[Any]:
    return [job.payload for job in await queue.live(**which)]


async def every_state(mq: Any) -> tuple[Any, dict[State, int]]:
    """A queue with a job in each state; their ids."""
    queue = mq.queue("q", retry=rowmq.Constant(interval=3600, max_attempts=5))
    await queue.put_many(["completed", "failed", "retryable", "processing"])
    done, failed, again, taken = await queue.try_poll_many(4)
    await done.ack()
    await failed.reject(error="no")
    await again.nack(error="not yet")
    pending = await queue.put("pending", delay=60)
    jobs = (pending, taken, again, done, failed)
    return queue, {state: job.id for state, job in zip(State, jobs, strict=True)}


# --- counts ---------------------------------------------------------------------------------------


async def test_a_job_on_its_way_is_counted_once(mq: Any, database: Database) -> None:
    """It is claimed and given back by somebody else all the time, between any two statements."""
    dice = random.Random(1)
    with rowmq.connect(database.url) as other:
        other.queue("q").put(1)
        claimed: list[rowmq.Job[Any]] = []

        def move(_: Statement) -> None:
            if dice.random() < 0.5:
                if claimed:
                    claimed.pop().release()
                else:
                    claimed.extend(other.queue("q").try_poll_many(1))

        mq._driver.observers.append(move)
        for _ in range(20):
            assert sum((await mq.queue("q").counts()).values()) == 1


# --- live -----------------------------------------------------------------------------------------


async def test_live_jobs_come_by_when_they_are_due_whatever_their_priority(mq: Any) -> None:
    queue = mq.queue("q")
    await queue.put("in an hour", delay=3600, priority=5)
    await queue.put("now")
    await queue.put("in a minute", delay=60, key="k")
    await mq.queue("other").put("of another queue")
    assert await payloads(queue) == ["now", "in a minute", "in an hour"]
    assert await payloads(queue, limit=2) == ["now", "in a minute"]


async def test_live_jobs_by_their_state(mq: Any) -> None:
    queue, ids = await every_state(mq)
    for state in (State.PENDING, State.PROCESSING, State.RETRYABLE):
        (job,) = await queue.live(state=state)
        assert (job.id, job.state, job.payload) == (ids[state], state, state.value)
    assert await payloads(queue) == ["processing", "pending", "retryable"]
    (again,) = await queue.live(state=State.RETRYABLE)
    assert (again.attempts, again.deliveries) == (1, 1)
    assert again.due_at > datetime.now(UTC) + timedelta(minutes=50)


async def test_a_lock_that_has_expired_makes_a_job_pending_again(mq: Any) -> None:
    queue = mq.queue("q")
    await queue.put("x")
    await queue.try_poll_many(1, lock_timeout=0.001)
    # Nobody has looked for it since, so it is in its lock still.
    deadline = datetime.now(UTC) + timedelta(seconds=10)
    while await queue.live(state=State.PROCESSING):
        assert datetime.now(UTC) < deadline
    (job,) = await queue.live(state=State.PENDING)
    assert job.deliveries == 1
    assert (await queue.get(job.id)).state is State.PENDING


async def test_jobs_that_wait_behind_another_come_last(mq: Any) -> None:
    queue = mq.queue("q")
    for n in range(3):
        await queue.put(f"line {n}", ordering_key="o")
    await queue.put("later", delay=60)
    assert await payloads(queue) == ["line 0", "later", "line 1", "line 2"]
    assert await payloads(queue, limit=3) == ["line 0", "later", "line 1"]
    waiting = (await queue.live())[-1]
    assert (await queue.get(waiting.id)).payload == "line 2"
    assert (await queue.get(waiting.id)).state is State.PENDING


async def test_a_handle_with_a_type_sees_its_own_jobs(mq: Any) -> None:
    await mq.queue("q", kind="a").put("of a")
    of_b = await mq.queue("q", kind="b").put("of b", ordering_key="o")
    await mq.queue("q", kind="b").put("of b, behind", ordering_key="o")
    assert await payloads(mq.queue("q", kind="a")) == ["of a"]
    assert await payloads(mq.queue("q", kind="b")) == ["of b", "of b, behind"]
    assert len(await payloads(mq.queue("q"))) == 3
    assert await mq.queue("q", kind="a").get(of_b.id) is None
    assert (await mq.queue("q", kind="b").get(of_b.id)).payload == "of b"


async def test_a_queue_that_never_had_a_job_has_none(mq: Any) -> None:
    assert await mq.queue("nothing").live() == []
    assert await mq.queue("nothing").get(1) is None


@pytest.mark.parametrize(
    "which",
    [{"state": State.FAILED}, {"state": "nonsense"}, {"limit": 0}, {"limit": 1.5}, {"limit": None}],
)
async def test_live_refuses_what_cannot_be(mq: Any, which: dict[str, Any]) -> None:
    with pytest.raises(errors.InvalidOption):
        await mq.queue("q").live(**which)


# --- get ------------------------------------------------------------------------------------------


async def test_a_job_is_found_by_its_id_whatever_its_state(mq: Any) -> None:
    queue, ids = await every_state(mq)
    for state, id in ids.items():
        job = await queue.get(id)
        assert (job.id, job.state, job.payload) == (id, state, state.value)
    done, failed = await queue.get(ids[State.COMPLETED]), await queue.get(ids[State.FAILED])
    assert failed.error == "no"
    assert done.finished_at is not None
    assert failed.finished_at is not None
    assert (done.attempts, failed.attempts) == (1, 1)
    again = await queue.get(ids[State.RETRYABLE])
    assert (again.attempts, again.due_at > datetime.now(UTC)) == (1, True)


async def test_a_job_is_found_after_it_was_released_retried_or_redelivered(mq: Any) -> None:
    queue = mq.queue("q")
    await queue.put_many(["released", "retried"])
    released, retried = await queue.try_poll_many(2)
    await released.release()
    await retried.reject(error="no")
    await queue.retry([retried.id])
    for job in (released, retried):
        assert (await queue.get(job.id)).state is State.PENDING
    for job in await queue.try_poll_many(2):
        assert (await queue.get(job.id)).state is State.PROCESSING
        await job.ack()
        assert (await queue.get(job.id)).state is State.COMPLETED


async def test_what_is_gone_or_elsewhere_is_not_found(mq: Any) -> None:
    queue = mq.queue("q")
    dropped = await queue.put("dropped", key="k")
    await queue.drop("k")
    elsewhere = await mq.queue("other").put("elsewhere")
    assert await queue.get(dropped.id) is None
    assert await queue.get(elsewhere.id) is None
    assert await queue.get(2**61) is None
    with pytest.raises(errors.InvalidOption):
        await queue.get("1")


async def test_a_job_that_was_found_was_not_claimed(mq: Any) -> None:
    queue = mq.queue("q")
    id = (await queue.put("x")).id
    with pytest.raises(errors.NotClaimed):
        await (await queue.get(id)).ack()
    with pytest.raises(errors.NotClaimed):
        await (await queue.live())[0].ack()


# --- partitions, and reading from a place in each -------------------------------------------------


async def test_partitions_are_listed_by_key_with_what_they_hold(mq: Any) -> None:
    assert await mq.partitions("t") == []
    await mq.publish("t", 1)
    for n in range(3):
        await mq.publish("t", n, key="b")
    await mq.publish("t", 1, key="a")
    await mq.publish("other", 1, key="z")
    found = await mq.partitions("t")
    assert [(p.key, p.first_offset, p.last_offset, p.messages) for p in found] == [
        (None, 1, 1, 1),
        ("a", 1, 1, 1),
        ("b", 1, 3, 3),
    ]
    await mq.create_group("t", "g", start="latest")
    await mq.gc("t")
    assert [(p.first_offset, p.last_offset, p.messages) for p in await mq.partitions("t")] == [
        (2, 1, 0),
        (2, 1, 0),
        (4, 3, 0),
    ]
    with pytest.raises(errors.InvalidTopic):
        await mq.partitions("")


async def test_messages_are_read_from_an_offset_for_each_key(mq: Any) -> None:
    for key in (None, "a", "b"):
        for n in range(1, 4):
            await mq.publish("t", f"{key} {n}", key=key)

    async def read(places: Any, **which: Any) -> list[Any]:
        return [m.payload for m in await mq.read("t", from_offset=places, **which)]

    assert await read({None: 3, "a": 4, "b": 2}) == ["None 3", "b 2", "b 3"]
    assert await read({"a": 3, "b": 4}) == ["None 1", "None 2", "None 3", "a 3"]
    assert await read({None: 4, "a": 2}, limit=2) == ["a 2", "a 3"]
    assert await read({"a": 2, "b": 9}, key="a") == ["a 2", "a 3"]
    assert await read({}, key="b") == ["b 1", "b 2", "b 3"]
    assert await read({None: 9, "a": 9, "b": 9, "unknown": 1}) == []
    past = datetime.now(UTC) - timedelta(hours=1)
    assert await read({None: 4, "a": 3, "b": 4}, since=past) == ["a 3"]
    for bad in ({"a": 0}, {"a": "1"}, {"": 1}, {7: 1}, "earliest"):
        with pytest.raises(errors.InvalidInput):
            await read(bad)
