"""Calls that share a transaction get their own results and errors, and nobody is left waiting."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

import rowmq
from rowmq import combining
from rowmq.combining import AsyncCombiner, Combiner
from rowmq.errors import (
    ConnectionLost,
    Deadlock,
    InvalidInput,
    PayloadTooLarge,
    TransientError,
)
from rowmq.message import Message, PublishResult
from rowmq.store.topics import Entry, prepare
from tests.unit.drivers.test_pool import exit_code, fork

WAIT = 10


def one_lane(_: Entry) -> str:
    """As if all needed the same lock."""
    return "one"


def entry(id: str, payload: object = "x") -> Entry:
    return prepare("t", Message(payload=payload, id=id))


def published(entries: list[Entry]) -> list[PublishResult]:
    return [
        PublishResult(topic=e.topic, key=None, id=e.id, offset=1, duplicate=False) for e in entries
    ]


class Gate:
    """A publish that holds the first batch until the others wait, and notes every batch."""

    def __init__(self, then: Callable[[list[Entry]], list[PublishResult]] = published) -> None:
        self.then = then
        self.batches: list[list[str]] = []
        self.entered = threading.Event()
        self.open = threading.Event()

    def __call__(self, entries: list[Entry]) -> list[PublishResult]:
        self.batches.append([e.id for e in entries])
        if len(self.batches) == 1:
            self.entered.set()
            assert self.open.wait(WAIT)
        return self.then(entries)


def wait_until(true: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(2000):
        if true():
            return
        pause.wait(0.005)
    raise AssertionError("it never came true")


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(32) as pool:
        yield pool


def crowd(
    combiner: Combiner, gate: Gate, threads: ThreadPoolExecutor, ids: list[str]
) -> dict[str, "Future[PublishResult]"]:
    """Have one call publish and the rest wait together behind it."""
    calls = {"first": threads.submit(combiner.submit, entry("first"))}
    assert gate.entered.wait(WAIT)
    for place, id in enumerate(ids, 1):
        calls[id] = threads.submit(combiner.submit, entry(id))
        wait_until(lambda place=place: len(combiner._lanes["one"].waiting) == place)  # type: ignore[misc]
    return calls


def test_a_lone_call_goes_out_at_once() -> None:
    batches: list[int] = []

    def publish(entries: list[Entry]) -> list[PublishResult]:
        batches.append(len(entries))
        return published(entries)

    combiner = Combiner(publish, one_lane)
    assert combiner.submit(entry("a")).id == "a"
    assert combiner.submit(entry("b")).id == "b"
    assert batches == [1, 1]


def test_waiting_calls_go_out_together_in_their_order(threads: ThreadPoolExecutor) -> None:
    gate = Gate()
    combiner = Combiner(gate, one_lane)
    ids = [f"n{n}" for n in range(20)]
    calls = crowd(combiner, gate, threads, ids)
    gate.open.set()
    assert {id: call.result(WAIT).id for id, call in calls.items()} == {id: id for id in calls}
    assert gate.batches == [["first"], ids]


def test_a_refused_transaction_is_repeated_one_by_one(threads: ThreadPoolExecutor) -> None:
    def refuse_bad(entries: list[Entry]) -> list[PublishResult]:
        if any(e.id.startswith("bad") for e in entries):
            raise PayloadTooLarge("too large")
        return published(entries)

    gate = Gate(refuse_bad)
    combiner = Combiner(gate, one_lane)
    calls = crowd(combiner, gate, threads, ["good1", "bad1", "good2", "bad2"])
    gate.open.set()
    for id, call in calls.items():
        if id.startswith("bad"):
            assert isinstance(call.exception(WAIT), PayloadTooLarge)
        else:
            assert call.result(WAIT).id == id


def test_a_transient_error_is_everybodys_own(threads: ThreadPoolExecutor) -> None:
    def refuse_many(entries: list[Entry]) -> list[PublishResult]:
        if len(entries) > 1:
            raise Deadlock("again")
        return published(entries)

    gate = Gate(refuse_many)
    combiner = Combiner(gate, one_lane)
    calls = crowd(combiner, gate, threads, ["a", "b", "c"])
    gate.open.set()
    errors = [calls[id].exception(WAIT) for id in "abc"]
    assert {type(error) for error in errors} == {Deadlock}
    assert len({id(error) for error in errors}) == 3
    assert len(gate.batches) == 2


class Interrupted(BaseException):
    """Stands for KeyboardInterrupt, which pytest would take for the user's."""


def test_an_interrupted_leader_leaves_nobody_hanging(threads: ThreadPoolExecutor) -> None:
    def interrupt(entries: list[Entry]) -> list[PublishResult]:
        if len(entries) > 1:
            raise Interrupted
        return published(entries)

    gate = Gate(interrupt)
    combiner = Combiner(gate, one_lane)
    calls = crowd(combiner, gate, threads, ["a", "b", "c"])
    gate.open.set()
    kinds = sorted(type(calls[id].exception(WAIT)).__name__ for id in "abc")
    assert kinds == ["ConnectionLost", "ConnectionLost", "Interrupted"]
    assert combiner.submit(entry("later")).id == "later"


def test_an_interrupt_while_repeating_leaves_nobody_hanging(threads: ThreadPoolExecutor) -> None:
    def refuse_then_interrupt(entries: list[Entry]) -> list[PublishResult]:
        if len(entries) > 1:
            raise InvalidInput("one of them")
        if entries[0].id == "b":
            raise Interrupted
        return published(entries)

    gate = Gate(refuse_then_interrupt)
    combiner = Combiner(gate, one_lane)
    calls = crowd(combiner, gate, threads, ["a", "b", "c", "d"])
    gate.open.set()
    outcomes = [calls[id].exception(WAIT) for id in "abcd"]
    assert sum(isinstance(outcome, Interrupted) for outcome in outcomes) == 1
    assert all(
        outcome is None or isinstance(outcome, ConnectionLost | Interrupted) for outcome in outcomes
    )
    assert combiner.submit(entry("later")).id == "later"


def test_too_few_results_leave_nobody_hanging(threads: ThreadPoolExecutor) -> None:
    gate = Gate(lambda entries: published(entries)[:1])
    combiner = Combiner(gate, one_lane)
    calls = crowd(combiner, gate, threads, ["a", "b"])
    gate.open.set()
    outcomes = [calls[id].exception(WAIT) for id in "ab"]
    assert any(isinstance(outcome, ValueError) for outcome in outcomes)
    assert combiner.submit(entry("later")).id == "later"


def test_a_transaction_carries_only_so_many_calls_and_bytes(
    threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(combining, "CALLS_MAX", 2)
    gate = Gate()
    combiner = Combiner(gate, one_lane)
    calls = crowd(combiner, gate, threads, ["a", "b", "c"])
    gate.open.set()
    for call in calls.values():
        call.result(WAIT)
    assert gate.batches == [["first"], ["a", "b"], ["c"]]


def test_a_call_larger_than_a_transaction_goes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(combining, "BYTES_MAX", 10)
    assert Combiner(published, one_lane).submit(entry("large", "x" * 100)).id == "large"


def test_many_threads_on_a_real_file_get_their_own_results(tmp_path: Path) -> None:
    with rowmq.connect(f"sqlite:///{tmp_path / 'queue.db'}") as mq:
        mq.configure_topic("t", max_payload_bytes=10)

        def publish(n: int) -> object:
            try:
                return mq.publish("t", "x" * (50 if n % 10 == 0 else 5), id=str(n)).id
            except PayloadTooLarge:
                return None

        with ThreadPoolExecutor(16) as pool:
            results = list(pool.map(publish, range(200)))
        assert results == [None if n % 10 == 0 else str(n) for n in range(200)]
        stored = mq.read("t", limit=1000)
        assert {m.id for m in stored} == {str(n) for n in range(200) if n % 10}
        assert [m.offset for m in stored] == list(range(1, 181))


def test_a_fork_while_others_wait_leaves_the_child_free(threads: ThreadPoolExecutor) -> None:
    gate = Gate()
    combiner = Combiner(gate, one_lane)
    calls = crowd(combiner, gate, threads, ["a", "b"])

    def work() -> None:
        assert combiner.submit(entry("child")).id == "child"
        assert gate.batches[-1] == ["child"]

    assert exit_code(fork(work)) == 0
    gate.open.set()
    assert {call.result(WAIT).id for call in calls.values()} == {"first", "a", "b"}


# --- async ---------------------------------------------------------------------------------------


class AsyncGate:
    """The same for tasks."""

    def __init__(self, then: Callable[[list[Entry]], list[PublishResult]] = published) -> None:
        self.then = then
        self.batches: list[list[str]] = []
        self.entered = asyncio.Event()
        self.open = asyncio.Event()

    async def __call__(self, entries: list[Entry]) -> list[PublishResult]:
        self.batches.append([e.id for e in entries])
        if len(self.batches) == 1:
            self.entered.set()
            await self.open.wait()
        return self.then(entries)


async def async_crowd(
    combiner: AsyncCombiner, gate: AsyncGate, ids: list[str]
) -> dict[str, "asyncio.Task[PublishResult]"]:
    calls = {"first": asyncio.create_task(combiner.submit(entry("first")))}
    await gate.entered.wait()
    for id in ids:
        calls[id] = asyncio.create_task(combiner.submit(entry(id)))
    await asyncio.sleep(0)
    assert len(combiner._lanes["one"]) == len(ids)
    return calls


async def test_waiting_tasks_go_out_together() -> None:
    gate = AsyncGate()
    combiner = AsyncCombiner(gate, one_lane, at_once=4)
    ids = [f"n{n}" for n in range(50)]
    calls = await async_crowd(combiner, gate, ids)
    gate.open.set()
    results = await asyncio.gather(*calls.values())
    assert [result.id for result in results] == ["first", *ids]
    assert gate.batches == [["first"], ids]


async def test_each_task_gets_its_own_error() -> None:
    def refuse_bad(entries: list[Entry]) -> list[PublishResult]:
        if any(e.id == "bad" for e in entries):
            raise PayloadTooLarge("too large")
        return published(entries)

    gate = AsyncGate(refuse_bad)
    combiner = AsyncCombiner(gate, one_lane, at_once=4)
    calls = await async_crowd(combiner, gate, ["good", "bad"])
    gate.open.set()
    assert (await calls["good"]).id == "good"
    with pytest.raises(PayloadTooLarge):
        await calls["bad"]


async def test_a_transient_error_is_every_tasks_own() -> None:
    def refuse_many(entries: list[Entry]) -> list[PublishResult]:
        if len(entries) > 1:
            raise Deadlock("again")
        return published(entries)

    gate = AsyncGate(refuse_many)
    combiner = AsyncCombiner(gate, one_lane, at_once=4)
    calls = await async_crowd(combiner, gate, ["a", "b"])
    gate.open.set()
    results = await asyncio.gather(*calls.values(), return_exceptions=True)
    assert [type(r) for r in results] == [PublishResult, Deadlock, Deadlock]
    assert results[1] is not results[2]


async def test_a_cancelled_waiter_is_not_published() -> None:
    gate = AsyncGate()
    combiner = AsyncCombiner(gate, one_lane, at_once=4)
    calls = await async_crowd(combiner, gate, ["a", "given up", "c"])
    calls["given up"].cancel()
    await asyncio.sleep(0)
    gate.open.set()
    results = await asyncio.gather(*calls.values(), return_exceptions=True)
    assert isinstance(results[2], asyncio.CancelledError)
    assert gate.batches == [["first"], ["a", "c"]]


async def test_a_cancelled_caller_takes_nobody_with_it() -> None:
    gate = AsyncGate()
    combiner = AsyncCombiner(gate, one_lane, at_once=4)
    calls = await async_crowd(combiner, gate, ["a"])
    calls["first"].cancel()
    await asyncio.sleep(0)
    gate.open.set()
    assert (await calls["a"]).id == "a"
    assert not combiner._changed


async def test_when_the_publishing_task_is_cancelled_nobody_hangs() -> None:
    gate = AsyncGate()
    combiner = AsyncCombiner(gate, one_lane, at_once=4)
    calls = await async_crowd(combiner, gate, ["a", "b"])
    (task,) = combiner._tasks
    task.cancel()
    results = await asyncio.gather(*calls.values(), return_exceptions=True)
    assert [type(r) for r in results] == [ConnectionLost] * 3
    assert all(isinstance(r, TransientError) for r in results)
    assert (await combiner.submit(entry("later"))).id == "later"


async def test_closing_waits_for_what_was_submitted() -> None:
    gate = AsyncGate()
    combiner = AsyncCombiner(gate, one_lane, at_once=4)
    calls = await async_crowd(combiner, gate, ["a"])
    closing = asyncio.create_task(combiner.close())
    await asyncio.sleep(0)
    assert not closing.done()
    gate.open.set()
    await closing
    assert all([(await call).id for call in calls.values()])
    await combiner.close()


def test_an_async_client_can_be_used_by_one_loop_after_another() -> None:
    async def publish(combiner: AsyncCombiner) -> str:
        return (await combiner.submit(entry("a"))).id

    async def answer(entries: list[Entry]) -> list[PublishResult]:
        await asyncio.sleep(0)
        return published(entries)

    combiner = AsyncCombiner(answer, one_lane, at_once=4)
    assert asyncio.run(publish(combiner)) == "a"
    assert asyncio.run(publish(combiner)) == "a"


def test_calls_of_other_lanes_do_not_wait(threads: ThreadPoolExecutor) -> None:
    gate = Gate()
    combiner = Combiner(gate, lambda entry: entry.key)
    held = threads.submit(combiner.submit, prepare("t", Message(payload=1, key="held", id="held")))
    assert gate.entered.wait(WAIT)
    free = prepare("t", Message(payload=1, key="free", id="free"))
    assert combiner.submit(free).id == "free"
    assert not held.done()
    gate.open.set()
    assert held.result(WAIT).id == "held"
    assert combiner._lanes == {}


async def test_tasks_of_other_lanes_do_not_wait() -> None:
    opened = asyncio.Event()

    async def publish(entries: list[Entry]) -> list[PublishResult]:
        if entries[0].key == "held":
            await opened.wait()
        return published(entries)

    combiner = AsyncCombiner(publish, lambda entry: entry.key, at_once=4)
    submit = combiner.submit(prepare("t", Message(payload=1, key="held", id="held")))
    held = asyncio.create_task(submit)
    await asyncio.sleep(0)
    free = prepare("t", Message(payload=1, key="free", id="free"))
    assert (await combiner.submit(free)).id == "free"
    assert not held.done()
    opened.set()
    assert (await held).id == "held"
    assert combiner._lanes == {}
