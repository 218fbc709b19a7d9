"""Messages of one key one after the other, in order; different keys at the same time."""

import asyncio
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest

import rowmq
from rowmq import Message
from rowmq.worker.declaring import PER_KEY_MIN
from tests.choices import async_only
from tests.consuming import eventually, lag
from tests.databases import Database
from tests.working import AT_ONCE, LATER, STYLES, new_app, on_one, on_two

pytestmark = async_only


class Course:
    """What is at work, and what was, by key. Safe from threads."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.at_work: set[str | None] = set()
        self.most = 0
        self.overlaps: list[Any] = []
        self.begun: dict[str | None, list[Any]] = defaultdict(list)

    def begin(self, message: Message[Any]) -> None:
        with self.lock:
            if message.key is not None and message.key in self.at_work:
                self.overlaps.append((message.key, message.payload))
            self.at_work.add(message.key)
            self.most = max(self.most, len(self.at_work))
            self.begun[message.key].append(message.payload)

    def end(self, message: Message[Any]) -> None:
        with self.lock:
            self.at_work.discard(message.key)

    @property
    def total(self) -> int:
        return sum(map(len, self.begun.values()))


async def publish(mq: Any, keys: int, each: int) -> None:
    messages = [Message(payload=n, key=f"k{k}") for n in range(each) for k in range(keys)]
    await mq.publish_many("t", messages)


def handler_of(style: str, course: Course, seconds: float) -> Callable[..., Any]:
    async def handle(message: Message[int]) -> None:
        course.begin(message)
        await asyncio.sleep(seconds)
        course.end(message)

    def handle_in_thread(message: Message[int]) -> None:
        course.begin(message)
        time.sleep(seconds)
        course.end(message)

    return handle if style == "async" else handle_in_thread


@pytest.mark.parametrize("style", STYLES)
async def test_one_key_one_at_a_time_in_order_and_keys_side_by_side(
    mq: Any, database: Database, style: str
) -> None:
    app, course = new_app(database), Course()
    app.subscriber("t", group="g", concurrency=6)(handler_of(style, course, 0.002))
    await publish(mq, keys=8, each=15)
    async with app:
        await eventually(lambda: course.total == 120)
    assert course.overlaps == []
    assert course.begun == {f"k{k}": list(range(15)) for k in range(8)}
    assert 2 <= course.most <= 6
    assert await lag(mq) == 0


@on_two
async def test_messages_without_a_key_are_handled_side_by_side(mq: Any, database: Database) -> None:
    app = new_app(database)
    together = asyncio.Barrier(5)

    @app.subscriber("t", group="g", concurrency=5)
    async def handle(_number: int) -> None:
        async with asyncio.timeout(20):
            await together.wait()

    await mq.publish_many("t", [Message(payload=n) for n in range(5)])
    async with app:
        await eventually(lambda: app.health()["handlers"][0]["handled"] == 5)


@on_two
async def test_a_slow_key_keeps_no_other_waiting(mq: Any, database: Database) -> None:
    """Though it has more messages than there is room for."""
    app, course = new_app(database), Course()
    go_on = asyncio.Event()

    @app.subscriber("t", group="g", concurrency=3, fetch_batch_size=4)
    async def handle(_number: int, message: Message[int]) -> None:
        course.begin(message)
        if message.key == "slow":
            await go_on.wait()
        course.end(message)

    await mq.publish_many("t", [Message(payload=n, key="slow") for n in range(200)])
    await publish(mq, keys=5, each=20)
    async with app:
        await eventually(lambda: course.total == 101)
        assert course.begun["slow"] == [0]
        (row,) = [row for row in await mq.lag("t", "g") if row.key == "slow"]
        assert row.in_flight <= PER_KEY_MIN, "the slow key fills the room of the others"
        await mq.publish("t", 20, key="k1")
        await eventually(lambda: course.begun["k1"][-1] == 20)
        go_on.set()
        await eventually(lambda: len(course.begun["slow"]) == 200)
    assert course.begun["slow"] == list(range(200))
    assert course.overlaps == []


async def test_a_retry_waits_for_its_turn_and_others_go_on(mq: Any, database: Database) -> None:
    """Not in strict mode: what comes again comes between others, never beside one of its key."""
    app, course = new_app(database), Course()

    @app.subscriber("t", group="g", concurrency=8, retry=AT_ONCE, max_deliveries=5)
    async def handle(number: int, message: Message[int], delivery: rowmq.Delivery[int]) -> None:
        course.begin(message)
        await asyncio.sleep(0.001)
        course.end(message)
        if number % 5 == 0 and delivery.attempt < 3:
            raise ValueError("again")

    await publish(mq, keys=4, each=20)
    async with app:
        await eventually(lambda: course.total == 4 * (20 + 4 * 2))
    assert course.overlaps == []
    for begun in course.begun.values():
        firsts = list(dict.fromkeys(begun))
        assert firsts == sorted(firsts)
    assert await lag(mq) == 0
    assert await mq.dead_letters("t") == []


async def test_in_strict_mode_nothing_passes_what_is_not_done(mq: Any, database: Database) -> None:
    app, course = new_app(database), Course()

    @app.subscriber("t", group="g", concurrency=8, strict=True, retry=AT_ONCE, max_deliveries=3)
    async def handle(number: int, message: Message[int], delivery: rowmq.Delivery[int]) -> None:
        course.begin(message)
        course.end(message)
        if number == 1 and delivery.attempt < 3:
            raise ValueError("again")
        if number == 3:
            raise ValueError("never")

    await publish(mq, keys=3, each=6)
    async with app:
        await eventually(lambda: course.total == 3 * 10)
    assert list(course.begun.values()) == [[0, 1, 1, 1, 2, 3, 3, 3, 4, 5]] * 3
    assert len(await mq.dead_letters("t")) == 3
    assert await lag(mq) == 0


async def test_in_strict_mode_a_key_waits_for_its_retry(mq: Any, database: Database) -> None:
    app, course = new_app(database), Course()

    @app.subscriber("t", group="g", strict=True, retry=LATER)
    async def handle(_number: int, message: Message[int]) -> None:
        course.begin(message)
        course.end(message)
        if message.key == "k0":
            raise ValueError("later")

    await publish(mq, keys=2, each=5)
    async with app:
        await eventually(lambda: len(course.begun["k1"]) == 5)
    assert course.begun == {"k0": [0], "k1": [0, 1, 2, 3, 4]}


@on_two
async def test_two_workers_keep_the_order_of_keys_between_them(mq: Any, database: Database) -> None:
    course = Course()
    apps = [new_app(database) for _ in range(2)]
    for app in apps:
        app.subscriber("t", group="g", concurrency=4)(handler_of("async", course, 0.001))
    async with apps[0]:
        await publish(mq, keys=6, each=10)
        async with apps[1]:
            await eventually(lambda: course.total >= 60)
            await mq.publish_many(
                "t", [Message(payload=n, key=f"k{k}") for n in range(10, 20) for k in range(6)]
            )
            await eventually(lambda: course.total >= 120)
    assert course.overlaps == []
    assert course.begun == {f"k{k}": list(range(20)) for k in range(6)}


@on_one
async def test_jobs_with_an_ordering_key_are_done_in_order(mq: Any, database: Database) -> None:
    app = new_app(database)
    done: list[int] = []

    @app.worker("q", concurrency=5)
    async def handle(number: int, _job: rowmq.Job[int]) -> None:
        await asyncio.sleep(0.01 if number == 0 else 0)
        done.append(number)

    for number in range(10):
        await mq.queue("q").put(number, ordering_key="line")
    async with app:
        await eventually(lambda: len(done) == 10)
    assert done == list(range(10))
