"""Calls that share a transaction get their own results and errors, and nobody is left waiting."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Hashable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from operator import attrgetter
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
from rowmq.message import PublishResult
from rowmq.store.entries import Entry, entry_of
from rowmq.store.keys import SHARD_KEYS
from tests.unit.drivers.test_pool import exit_code, fork

WAIT = 10


def one_lane(_: Entry) -> str:
    """As if all needed the same lock."""
    return "one"


def entry(id: str, payload: object = "x", key: str | None = None) -> Entry:
    return entry_of("t", payload, key, None, id, True, SHARD_KEYS[0])


def published(entries: list[Entry]) -> list[PublishResult]:
    return [
        PublishResult(topic=e.topic, key=None, id=e.id, offset=1, duplicate=False) for e in entries
    ]


def publisher(
    publish: Callable[[list[Entry]], list[PublishResult]],
    lane_of: Callable[[Entry], Hashable] = one_lane,
) -> Combiner[Entry, PublishResult]:
    return Combiner(publish, lane_of, attrgetter("size"), repeatable=True)


def async_publisher(
    publish: Callable[[list[Entry]], Awaitable[list[PublishResult]]],
    lane_of: Callable[[Entry], Hashable] = one_lane,
) -> AsyncCombiner[Entry, PublishResult]:
    return AsyncCombiner(publish, lane_of, attrgetter("size"), at_once=4, repeatable=True)


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
    combiner: Combiner[Entry, PublishResult],
    gate: Gate,
    threads: ThreadPoolExecutor,
    ids: list[str],
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

    combiner = publisher(publish)
    assert combiner.submit(entry("a")).id == "a"
    assert combiner.submit(entry("b")).id == "b"
    assert batches == [1, 1]


def test_waiting_calls_go_out_together_in_their_order(threads: ThreadPoolExecutor) -> None:
    gate = Gate()
    combiner = publisher(gate)
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
    combiner = publisher(gate)
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
    combiner = publisher(gate)
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
    combiner = publisher(gate)
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
    combiner = publisher(gate)
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
    combiner = publisher(gate)
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
    combiner = publisher(gate)
    calls = crowd(combiner, gate, threads, ["a", "b", "c"])
    gate.open.set()
    for call in calls.values():
        call.result(WAIT)
    assert gate.batches == [["first"], ["a", "b"], ["c"]]


def test_a_call_larger_than_a_transaction_goes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(combining, "BYTES_MAX", 10)
    assert publisher(published).submit(entry("large", "x" * 100)).id == "large"


def test_many_threads_on_a_real_file_get_their_own_results(tmp_path: Path) -> None:
    with rowmq.connect(f"sqlite:///{tmp_path / 'queue.db'}") as mq:
        mq.configure_topic("t", max_payload_bytes=10)

        def publish(n: int) -> object:
            try:
                return mq.publish("t", "x" * (50 if n % 10 == 0 else 5), key="k", id=str(n)).id
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
    combiner = publisher(gate)
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
    combiner: AsyncCombiner[Entry, PublishResult], gate: AsyncGate, ids: list[str]
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
    combiner = async_publisher(gate)
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
    combiner = async_publisher(gate)
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
    combiner = async_publisher(gate)
    calls = await async_crowd(combiner, gate, ["a", "b"])
    gate.open.set()
    results = await asyncio.gather(*calls.values(), return_exceptions=True)
    assert [type(r) for r in results] == [PublishResult, Deadlock, Deadlock]
    assert results[1] is not results[2]


async def test_a_cancelled_waiter_is_not_published() -> None:
    gate = AsyncGate()
    combiner = async_publisher(gate)
    calls = await async_crowd(combiner, gate, ["a", "given up", "c"])
    calls["given up"].cancel()
    await asyncio.sleep(0)
    gate.open.set()
    results = await asyncio.gather(*calls.values(), return_exceptions=True)
    assert isinstance(results[2], asyncio.CancelledError)
    assert gate.batches == [["first"], ["a", "c"]]


async def test_a_cancelled_caller_takes_nobody_with_it() -> None:
    gate = AsyncGate()
    combiner = async_publisher(gate)
    calls = await async_crowd(combiner, gate, ["a"])
    calls["first"].cancel()
    await asyncio.sleep(0)
    gate.open.set()
    assert (await calls["a"]).id == "a"


async def test_when_the_publishing_task_is_cancelled_nobody_hangs() -> None:
    gate = AsyncGate()
    combiner = async_publisher(gate)
    calls = await async_crowd(combiner, gate, ["a", "b"])
    (task,) = combiner._tasks
    task.cancel()
    results = await asyncio.gather(*calls.values(), return_exceptions=True)
    assert [type(r) for r in results] == [ConnectionLost] * 3
    assert all(isinstance(r, TransientError) for r in results)
    assert (await combiner.submit(entry("later"))).id == "later"


async def test_closing_waits_for_what_was_submitted() -> None:
    gate = AsyncGate()
    combiner = async_publisher(gate)
    calls = await async_crowd(combiner, gate, ["a"])
    closing = asyncio.create_task(combiner.close())
    await asyncio.sleep(0)
    assert not closing.done()
    gate.open.set()
    await closing
    assert all([(await call).id for call in calls.values()])
    await combiner.close()


def test_an_async_client_can_be_used_by_one_loop_after_another() -> None:
    async def publish(combiner: AsyncCombiner[Entry, PublishResult]) -> str:
        return (await combiner.submit(entry("a"))).id

    async def answer(entries: list[Entry]) -> list[PublishResult]:
        await asyncio.sleep(0)
        return published(entries)

    combiner = async_publisher(answer)
    assert asyncio.run(publish(combiner)) == "a"
    assert asyncio.run(publish(combiner)) == "a"


def test_calls_of_other_lanes_do_not_wait(threads: ThreadPoolExecutor) -> None:
    gate = Gate()
    combiner = publisher(gate, lambda entry: entry.key)
    held = threads.submit(combiner.submit, entry("held", 1, key="held"))
    assert gate.entered.wait(WAIT)
    free = entry("free", 1, key="free")
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

    combiner = async_publisher(publish, lambda entry: entry.key)
    submit = combiner.submit(entry("held", 1, key="held"))
    held = asyncio.create_task(submit)
    await asyncio.sleep(0)
    free = entry("free", 1, key="free")
    assert (await combiner.submit(free)).id == "free"
    assert not held.done()
    opened.set()
    assert (await held).id == "held"
    assert combiner._lanes == {}


# --- settling: answers, lingering, flushing, several at once --------------------------------------

FOR_EVER = 3600.0
"""A linger that a test which forgets to cut it short would notice."""


class Ledger:
    """Work on names, which holds the first batch if it is told to, and notes every batch."""

    def __init__(self, *, opened: bool = True) -> None:
        self.batches: list[list[str]] = []
        self.entered = threading.Event()
        self.open = threading.Event()
        if opened:
            self.open.set()

    def __call__(self, names: list[str]) -> list[str | Exception]:
        self.batches.append(names)
        self.entered.set()
        assert self.open.wait(WAIT)
        return answers(names)


def answers(names: list[str]) -> list[str | Exception]:
    """Names of trouble trouble nobody but themselves."""
    if "refused" in names:
        raise InvalidInput("all of it")
    if "broken" in names:
        raise Uncopyable(reason="all of it")
    return [InvalidInput(name) if name.startswith("bad") else name.upper() for name in names]


class Uncopyable(Exception):
    def __init__(self, *, reason: str) -> None:
        super().__init__(reason)


def lane_of_name(name: str) -> str:
    return name.partition("/")[0] if "/" in name else "one"


def settler(work: Ledger, *, linger: float = 0.0) -> Combiner[str, str]:
    return Combiner(work, lane_of_name, len, repeatable=False, linger=linger)


def line_up(
    combiner: Combiner[str, str], threads: ThreadPoolExecutor, names: list[str]
) -> dict[str, "Future[str]"]:
    """Have each wait, one after the other."""
    calls = {}
    for place, name in enumerate(names, 1 + number_waiting(combiner)):
        calls[name] = threads.submit(combiner.submit, name)
        wait_until(lambda place=place: number_waiting(combiner) == place)  # type: ignore[misc]
    return calls


def number_waiting(combiner: Combiner[str, str]) -> int:
    return sum(len(lane.waiting) for lane in list(combiner._lanes.values()))


def test_an_answered_error_is_raised_by_its_caller_only(threads: ThreadPoolExecutor) -> None:
    work = Ledger(opened=False)
    combiner = settler(work)
    first = threads.submit(combiner.submit, "first")
    assert work.entered.wait(WAIT)
    calls = line_up(combiner, threads, ["a", "bad", "b"])
    work.open.set()
    assert first.result(WAIT) == "FIRST"
    assert calls["a"].result(WAIT) == "A"
    assert calls["b"].result(WAIT) == "B"
    assert repr(calls["bad"].exception(WAIT)) == "InvalidInput('bad')"
    assert work.batches == [["first"], ["a", "bad", "b"]]


@pytest.mark.parametrize(
    ("poison", "kind", "copies"), [("refused", InvalidInput, 2), ("broken", Uncopyable, 1)]
)
def test_what_may_not_be_repeated_is_refused_to_everybody(
    threads: ThreadPoolExecutor, poison: str, kind: type[Exception], copies: int
) -> None:
    work = Ledger(opened=False)
    combiner = settler(work)
    first = threads.submit(combiner.submit, "first")
    assert work.entered.wait(WAIT)
    calls = line_up(combiner, threads, ["a", poison])
    work.open.set()
    errors = [call.exception(WAIT) for call in calls.values()]
    assert [type(error) for error in errors] == [kind, kind]
    assert [str(error) for error in errors] == ["all of it", "all of it"]
    assert len({id(error) for error in errors}) == copies
    assert first.result(WAIT) == "FIRST"
    assert work.batches == [["first"], ["a", poison]]


def test_a_result_may_be_none() -> None:
    combiner: Combiner[str, None] = Combiner(
        lambda names: [None for _ in names], lane_of_name, len, repeatable=False
    )
    results: list[object] = [combiner.submit(name) for name in "ab"]
    assert results == [None, None]


def test_lingering_ends_by_itself() -> None:
    work = Ledger()
    combiner = settler(work, linger=0.001)
    assert [combiner.submit(name) for name in "ab"] == ["A", "B"]
    assert work.batches == [["a"], ["b"]]


def test_calls_join_one_that_lingers_until_a_flush(threads: ThreadPoolExecutor) -> None:
    work = Ledger()
    combiner = settler(work, linger=FOR_EVER)
    calls = line_up(combiner, threads, ["a", "b", "c", "d"])
    combiner.flush()
    assert work.batches == [["a", "b", "c", "d"]]
    assert [call.result(WAIT) for call in calls.values()] == ["A", "B", "C", "D"]
    assert combiner._lanes == {}


def test_after_a_flush_calls_linger_again(threads: ThreadPoolExecutor) -> None:
    work = Ledger()
    combiner = settler(work, linger=FOR_EVER)
    for names in (["a", "b"], ["c", "d"]):
        line_up(combiner, threads, names)
        combiner.flush()
    assert work.batches == [["a", "b"], ["c", "d"]]


def test_a_caller_interrupted_while_it_lingers_hands_over(
    threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    class InterruptedPause:
        def wait(self, _: float) -> None:
            monkeypatch.setattr(combiner, "_hurry", patient)
            joined.append(threads.submit(combiner.submit, "b"))
            wait_until(lambda: number_waiting(combiner) == 2)
            raise Interrupted

    work = Ledger()
    combiner = settler(work, linger=FOR_EVER)
    patient, joined = combiner._hurry, list["Future[str]"]()
    monkeypatch.setattr(combiner, "_hurry", InterruptedPause())
    with pytest.raises(Interrupted):
        combiner.submit("a")
    combiner.flush()
    assert joined[0].result(WAIT) == "B"
    assert work.batches == [["b"]]


def test_a_full_lane_does_not_linger(
    threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(combining, "CALLS_MAX", 1)
    combiner = settler(Ledger(), linger=FOR_EVER)
    assert threads.submit(combiner.submit, "a").result(WAIT) == "A"


def test_a_flush_waits_for_what_came_before_it_and_lets_nobody_linger(
    threads: ThreadPoolExecutor,
) -> None:
    work = Ledger(opened=False)
    combiner = settler(work, linger=FOR_EVER)
    line_up(combiner, threads, ["a"])
    flush = threads.submit(combiner.flush)
    assert work.entered.wait(WAIT)
    wait_until(lambda: number_waiting(combiner) == 1)  # the flush
    line_up(combiner, threads, ["b"])  # behind the flush that waits for "a"
    second = threads.submit(combiner.flush)
    elsewhere = threads.submit(combiner.submit, "other/c")
    wait_until(lambda: ["other/c"] in work.batches)
    assert not flush.done()
    assert not second.done()
    work.open.set()
    for call in (flush, second, elsewhere):
        call.result(WAIT)
    assert sorted(work.batches) == [["a"], ["b"], ["other/c"]]
    assert not combiner._hurry.is_set()


def test_a_flush_of_nothing_returns_at_once() -> None:
    settler(Ledger(), linger=FOR_EVER).flush()


def test_a_flush_that_waits_for_one_lane_does_not_hold_up_another(
    threads: ThreadPoolExecutor,
) -> None:
    held, free = threading.Event(), threading.Event()
    doors = {"held": held, "free": free}
    entered = {"held": threading.Event(), "free": threading.Event()}

    def work(names: list[str]) -> list[str]:
        lane = lane_of_name(names[0])
        entered[lane].set()
        assert doors[lane].wait(WAIT)
        return names

    combiner: Combiner[str, str] = Combiner(work, lane_of_name, len, repeatable=False)
    calls = [threads.submit(combiner.submit, f"{lane}/1") for lane in ("held", "free")]
    assert all(event.wait(WAIT) for event in entered.values())
    flush = threads.submit(combiner.flush)
    wait_until(lambda: number_waiting(combiner) == 2)
    calls.append(threads.submit(combiner.submit, "free/2"))  # behind the flush
    wait_until(lambda: number_waiting(combiner) == 3)
    free.set()
    assert calls[1].result(WAIT) == "free/1"
    assert calls[2].result(WAIT) == "free/2"
    assert combiner.submit("free/3") == "free/3"
    assert not flush.done()
    held.set()
    flush.result(WAIT)
    assert calls[0].result(WAIT) == "held/1"
    assert combiner._lanes == {}


def test_threads_that_submit_and_flush_at_once_all_get_through() -> None:
    work = Ledger()
    combiner = settler(work, linger=0.0005)

    def caller(n: int) -> list[str]:
        done = []
        for round in range(20):
            names = [f"{n % 3}/{n}-{round}-{place}" for place in range(n % 4 + 1)]
            done += [combiner.submit(name) for name in names]
            if round % 5 == 0:
                combiner.flush()
        return done

    with ThreadPoolExecutor(12) as pool:
        results = list(pool.map(caller, range(12)))
    assert [len(done) for done in results] == [20 * (n % 4 + 1) for n in range(12)]
    assert all(
        name.split("/")[1].startswith(f"{n}-") for n, done in enumerate(results) for name in done
    )
    assert all(len({lane_of_name(name) for name in batch}) == 1 for batch in work.batches)
    assert combiner._lanes == {}


# --- the same for tasks ---------------------------------------------------------------------------


class AsyncLedger:
    def __init__(self, *, opened: bool = True) -> None:
        self.batches: list[list[str]] = []
        self.entered = asyncio.Event()
        self.open = asyncio.Event()
        if opened:
            self.open.set()

    async def __call__(self, names: list[str]) -> list[str | Exception]:
        self.batches.append(names)
        self.entered.set()
        await self.open.wait()
        return answers(names)


def async_settler(
    work: AsyncLedger, *, linger: float = 0.0, at_once: int = 4
) -> AsyncCombiner[str, str]:
    return AsyncCombiner(work, lane_of_name, len, at_once=at_once, repeatable=False, linger=linger)


async def start(
    combiner: AsyncCombiner[str, str], names: list[str]
) -> dict[str, "asyncio.Task[str]"]:
    calls = {name: asyncio.create_task(combiner.submit(name)) for name in names}
    await settle_down()
    return calls


async def settle_down() -> None:
    """Let every task run until it waits."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_an_answered_error_is_raised_by_its_task_only() -> None:
    work = AsyncLedger()
    combiner = async_settler(work)
    calls = await start(combiner, ["a", "bad", "b"])
    results = await asyncio.gather(*calls.values(), return_exceptions=True)
    assert [results[0], repr(results[1]), results[2]] == ["A", "InvalidInput('bad')", "B"]
    assert work.batches == [["a", "bad", "b"]]


@pytest.mark.parametrize(
    ("poison", "kind", "copies"), [("refused", InvalidInput, 2), ("broken", Uncopyable, 1)]
)
async def test_what_may_not_be_repeated_is_refused_to_every_task(
    poison: str, kind: type[Exception], copies: int
) -> None:
    work = AsyncLedger()
    calls = await start(async_settler(work), ["a", poison])
    errors = await asyncio.gather(*calls.values(), return_exceptions=True)
    assert [type(error) for error in errors] == [kind, kind]
    assert len({id(error) for error in errors}) == copies
    assert work.batches == [["a", poison]]


async def test_a_lingering_lane_goes_on_by_itself() -> None:
    work = AsyncLedger()
    combiner = async_settler(work, linger=0.001)
    assert [await combiner.submit(name) for name in "ab"] == ["A", "B"]
    assert work.batches == [["a"], ["b"]]
    assert not combiner._lingering


@pytest.mark.parametrize("end", [AsyncCombiner.flush, AsyncCombiner.close])
async def test_tasks_join_a_lane_that_lingers_until_a_flush_or_the_close(
    end: Callable[[AsyncCombiner[str, str]], Awaitable[None]],
) -> None:
    work = AsyncLedger()
    combiner = async_settler(work, linger=FOR_EVER)
    calls = {**await start(combiner, ["a", "b"]), **await start(combiner, ["c", "x/d"])}
    assert work.batches == []
    await end(combiner)
    assert sorted(work.batches) == [["a", "b", "c"], ["x/d"]]
    assert await asyncio.gather(*calls.values()) == ["A", "B", "C", "X/D"]
    again = await start(combiner, ["e", "f"])
    assert len(work.batches) == 2
    await end(combiner)
    assert work.batches[2:] == [["e", "f"]]
    assert all(call.done() for call in again.values())
    assert combiner._lanes == {}


async def test_a_full_lane_of_tasks_does_not_linger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(combining, "CALLS_MAX", 2)
    combiner = async_settler(AsyncLedger(), linger=FOR_EVER)
    calls = await start(combiner, ["a", "b"])
    assert await asyncio.gather(*calls.values()) == ["A", "B"]


async def test_an_async_flush_waits_for_what_came_before_it_and_lets_nobody_linger() -> None:
    work = AsyncLedger(opened=False)
    combiner = async_settler(work, linger=FOR_EVER)
    calls = await start(combiner, ["a"])
    flush = asyncio.create_task(combiner.flush())
    await work.entered.wait()
    calls |= await start(combiner, ["b", "other/c"])
    assert work.batches == [["a"], ["other/c"]]
    assert not flush.done()
    work.open.set()
    await flush
    assert await asyncio.gather(*calls.values()) == ["A", "B", "OTHER/C"]
    await combiner.flush()


async def test_an_async_flush_also_waits_for_a_call_whose_caller_has_gone() -> None:
    work = AsyncLedger(opened=False)
    combiner = async_settler(work)
    calls = await start(combiner, ["a"])
    calls["a"].cancel()
    flush = asyncio.create_task(combiner.flush())
    await settle_down()
    assert calls["a"].cancelled()
    assert not flush.done()
    work.open.set()
    await flush
    assert work.batches == [["a"]]


async def test_a_cancelled_flush_hurts_nobody() -> None:
    work = AsyncLedger(opened=False)
    combiner = async_settler(work)
    calls = await start(combiner, ["a"])
    flush = asyncio.create_task(combiner.flush())
    await settle_down()
    flush.cancel()
    calls |= await start(combiner, ["b"])
    work.open.set()
    assert await asyncio.gather(*calls.values()) == ["A", "B"]
    assert combiner._flushes == 0
    assert combiner._lanes == {}


async def test_when_a_lane_is_cancelled_its_flush_ends() -> None:
    combiner = async_settler(AsyncLedger(opened=False))
    calls = await start(combiner, ["a"])
    flush = asyncio.create_task(combiner.flush())
    await settle_down()
    (task,) = combiner._tasks
    task.cancel()
    await flush
    assert isinstance(calls["a"].exception(), ConnectionLost)


async def test_a_task_cancelled_while_its_lane_lingers_leaves_the_others_in() -> None:
    work = AsyncLedger()
    combiner = async_settler(work, linger=FOR_EVER)
    calls = await start(combiner, ["a", "given up", "b"])
    calls["given up"].cancel()
    await settle_down()
    await combiner.flush()
    assert work.batches == [["a", "b"]]
    assert calls["given up"].cancelled()


async def test_a_lane_whose_tasks_are_all_cancelled_has_nothing_to_do() -> None:
    work = AsyncLedger()
    combiner = async_settler(work, linger=FOR_EVER)
    calls = await start(combiner, ["a"])
    calls["a"].cancel()
    await settle_down()
    await combiner.flush()
    await combiner.close()
    assert work.batches == []
    assert combiner._lanes == {}


async def test_a_lane_that_lingers_takes_no_turn_from_others() -> None:
    work = AsyncLedger()
    combiner = async_settler(work, linger=FOR_EVER, at_once=1)
    calls = await start(combiner, ["x/a"])
    monopoly = combiner._turns.locked()
    await combiner.flush()
    assert not monopoly
    assert await calls["x/a"] == "X/A"


def test_a_lingering_combiner_can_be_used_by_one_loop_after_another() -> None:
    async def work(names: list[str]) -> list[str]:
        await asyncio.sleep(0)
        return names

    async def use() -> str:
        call = asyncio.create_task(combiner.submit("a"))
        await settle_down()
        await combiner.flush()
        return await call

    combiner: AsyncCombiner[str, str] = AsyncCombiner(
        work, lane_of_name, len, at_once=4, repeatable=False, linger=FOR_EVER
    )
    assert asyncio.run(use()) == "a"
    assert asyncio.run(use()) == "a"
