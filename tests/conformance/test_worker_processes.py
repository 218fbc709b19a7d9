"""Workers in processes of their own: stopped, killed, paused, and in the way of themselves.

What must hold: a stop loses nothing, runs nothing twice and costs nothing that was not begun; a
death loses nothing, and what it had comes again; whoever is too late settles nothing.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import rowmq
from rowmq import Message
from rowmq.worker.signals import SAME_SECONDS
from tests.consuming import pause
from tests.databases import NAMES, Database
from tests.processes.app import GROUP, Act, parse
from tests.working import on_one, on_two

ROOT = Path(__file__).parents[2]

QUICK: dict[str, Any] = {"retry": 0}
SHORT_LOCK = QUICK | {"lock_timeout": 1.0}
SHORT_LEASE = QUICK | {"lease_duration": 1.0, "visibility": 1.0}


def until(condition: Callable[[], Any], what: str, seconds: float = 60.0) -> Any:
    began = time.monotonic()
    deadline = began + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        time.sleep(pause(began))
        began = time.monotonic()
    return found


class Worker:
    """A process of `tests.processes.app`, and what it has written down so far."""

    def __init__(self, database: Database, path: Path, options: dict[str, Any]) -> None:
        self.database = database
        self.record = path.with_suffix(".jsonl")
        self.log = path.with_suffix(".log")
        module = [sys.executable, "-m", "tests.processes.app", database.url]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*module, str(self.record), json.dumps(options)], stdout=log, stderr=log, cwd=ROOT
            )

    @property
    def acts(self) -> list[Act]:
        text = self.record.read_bytes() if self.record.exists() else b""
        return [parse(line) for line in text[: text.rfind(b"\n") + 1].splitlines()]

    def payloads(self, what: str, handler: str | None = None) -> list[int]:
        """What something was done with, as often as it was."""
        return [a.payload for a in self.acts if a.what == what and handler in (None, a.handler)]

    def told(self) -> str:
        return self.log.read_text()

    def wait_until(self, what: str, count: int = 1, handler: str | None = None) -> None:
        def enough() -> bool:
            assert self.process.poll() is None, self.told()
            return len(self.payloads(what, handler)) >= count

        until(enough, f"{count} of {handler or 'all'} had their {what}")

    def send(self, number: int) -> None:
        assert self.process.poll() is None, self.told()
        os.kill(self.process.pid, number)

    def stop(self, number: int = signal.SIGTERM, seconds: float = 30.0) -> tuple[int, float]:
        """Its exit code, and how long it took after the signal."""
        began = time.monotonic()
        self.send(number)
        code = self.process.wait(seconds)
        return code, time.monotonic() - began

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def pause(self) -> None:
        """Have it stand still, but not in the middle of a write to an SQLite file: that holds up
        everybody, for as long as the process is there.
        """
        for _ in range(100):
            self.send(signal.SIGSTOP)
            os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)
            if self.database.can_be_written():
                return
            self.send(signal.SIGCONT)
            time.sleep(random.uniform(0.001, 0.03))
        pytest.fail("it never stood still outside of a write")


class Fleet:
    """The workers of a test, and the database they work on."""

    def __init__(self, database: Database, folder: Path, mq: rowmq.RowMQ) -> None:
        self.database = database
        self.folder = folder
        self.mq = mq
        self.workers: list[Worker] = []

    def start(self, *handlers: dict[str, Any], wait: bool = True, **options: Any) -> Worker:
        path = self.folder / f"worker{len(self.workers)}"
        worker = Worker(self.database, path, {"handlers": handlers} | options)
        self.workers.append(worker)
        if wait:
            worker.wait_until("ready")
        return worker

    def acts(self) -> list[Act]:
        return sorted(act for worker in self.workers for act in worker.acts)

    def times(self, what: str, handler: str) -> Counter[int]:
        """How often something was done with each payload, by all."""
        return Counter(p for worker in self.workers for p in worker.payloads(what, handler))

    def fill(self, count: int, queues: Iterable[str] = (), topics: Iterable[str] = ()) -> None:
        """Jobs, and messages of ten keys."""
        for queue in queues:
            self.mq.queue(queue).put_many(range(count))
        for topic in topics:
            messages = [Message(payload=n, key=f"k{n % 10}") for n in range(count)]
            self.mq.publish_many(topic, messages)

    def left(self, name: str) -> int:
        """How many are neither done nor given up."""
        counts = self.mq.queue(name).counts()
        jobs = counts["pending"] + counts["processing"] + counts["retryable"]
        known = {topic.name for topic in self.mq.topics()}
        if name not in known:
            return jobs
        return sum(row.lag for row in self.mq.lag(name, GROUP))

    def wait_until_done(self, name: str) -> None:
        until(lambda: self.left(name) == 0, f"{name} is done")


@pytest.fixture
def fleet(database: Database, tmp_path: Path) -> Iterator[Fleet]:
    with rowmq.connect(database.url) as mq:
        started = Fleet(database, tmp_path, mq)
        try:
            yield started
        finally:
            for worker in started.workers:
                worker.kill()


def handler(source: str, style: str, does: str = "nap", **how: Any) -> dict[str, Any]:
    seconds = how.pop("seconds", 0.005)
    name = how.pop("name", f"{source}.{style}")
    return {
        "source": source,
        "name": name,
        "style": style,
        "does": does,
        "seconds": seconds,
        "options": how,
    }


QUEUES = ["queue.sync", "queue.async"]
TOPICS = ["topic.sync", "topic.async"]


def all_kinds(does: str = "nap", **how: Any) -> list[dict[str, Any]]:
    jobs, messages = how.pop("jobs", {}), how.pop("messages", {})
    return [
        handler(source, style, does, **(how | (jobs if source == "queue" else messages)))
        for source in ("queue", "topic")
        for style in ("sync", "async")
    ]


# --- a stop -------------------------------------------------------------------------------------

COUNT = 300


@pytest.mark.parametrize(
    ("database", "number"),
    [("sqlite", signal.SIGINT), *((name, signal.SIGTERM) for name in NAMES)],
    indirect=["database"],
)
def test_a_stop_under_load_loses_nothing_repeats_nothing_and_costs_nothing(
    fleet: Fleet, number: signal.Signals
) -> None:
    fleet.fill(COUNT, QUEUES, TOPICS)
    handlers = all_kinds(concurrency=8, fetch_batch_size=60, seconds=0.04)
    worker = fleet.start(*handlers, graceful_timeout=20)
    for each in handlers:
        worker.wait_until("end", 10, each["name"])
    code, seconds = worker.stop(number)
    assert (code, seconds < 5) == (0, True), worker.told()
    assert worker.acts[-1].what == "exit"
    check_stopped(fleet, worker)
    rest = fleet.start(*all_kinds(concurrency=8, fetch_batch_size=60), graceful_timeout=20)
    for name in QUEUES + TOPICS:
        fleet.wait_until_done(name)
    assert rest.stop()[0] == 0, rest.told()
    for name in QUEUES + TOPICS:
        assert fleet.times("begin", name) == dict.fromkeys(range(COUNT), 1)
    assert {act.attempt for act in fleet.acts() if act.what == "begin"} == {1}
    assert {act.deliveries for act in fleet.acts() if act.what == "begin"} == {0, 1}
    assert "Traceback" not in worker.told() + rest.told()


def check_stopped(fleet: Fleet, worker: Worker) -> None:
    """All that was begun has ended and is done; what was not begun is as it was put."""
    execute = fleet.database.execute
    for name in QUEUES + TOPICS:
        begun, ended = worker.payloads("begin", name), worker.payloads("end", name)
        assert sorted(begun) == sorted(ended)
        assert len(set(begun)) == len(begun) < COUNT, "all was done before it was stopped"
        assert fleet.left(name) == COUNT - len(ended)
    assert execute("SELECT COUNT(*) FROM rowmq_locks") == [(0,)]
    assert execute("SELECT MAX(attempts + deliveries) FROM rowmq_ready") == [(0,)]
    assert execute("SELECT COUNT(*) FROM rowmq_delivery_state WHERE attempts > 0") == [(0,)]
    assert execute("SELECT COUNT(*) FROM rowmq_subscribers") == [(0,)]
    assert fleet.mq.workers() == []


@on_two
def test_a_second_signal_leaves_at_once(fleet: Fleet) -> None:
    fleet.fill(1, QUEUES[:1])
    slow = handler("queue", "sync", seconds=60, **SHORT_LOCK)
    worker = fleet.start(slow)
    worker.wait_until("begin")
    worker.send(signal.SIGTERM)
    until(lambda: "a second signal" in worker.told(), "it has heard the first")
    time.sleep(SAME_SECONDS)  # what comes sooner is taken for the same one
    code, seconds = worker.stop()
    assert code == 128 + signal.SIGTERM
    assert seconds < 1
    quick = fleet.start(handler("queue", "sync", **SHORT_LOCK))
    quick.wait_until("end")
    (act,) = [act for act in quick.acts if act.what == "begin"]
    assert act.deliveries == 2


@on_one
def test_a_stop_waits_for_a_handler_that_blocks_the_event_loop(fleet: Fleet) -> None:
    """And not for all those that were fetched ahead."""
    fleet.fill(8, ["queue.async"])
    blocking = handler("queue", "async", "block", seconds=0.6, concurrency=1, fetch_batch_size=8)
    worker = fleet.start(blocking)
    worker.wait_until("begin")
    code, seconds = worker.stop()
    assert code == 0, worker.told()
    assert seconds < 4
    done = worker.payloads("end")
    assert worker.payloads("begin") == done
    assert len(done) <= 2
    assert fleet.left("queue.async") == 8 - len(done)


@on_two
@pytest.mark.parametrize("style", ["sync", "async"])
def test_a_handler_that_does_not_end_in_time_is_left_and_comes_again(
    fleet: Fleet, style: str
) -> None:
    queue, topic = f"queue.{style}", f"topic.{style}"
    fleet.fill(1, [queue], [topic])
    handlers = [handler(source, style, seconds=60, **QUICK) for source in ("queue", "topic")]
    worker = fleet.start(*handlers, graceful_timeout=0.5)
    worker.wait_until("begin", 2)
    code, seconds = worker.stop()
    assert code == 1
    assert 0.4 < seconds < 4, worker.told()
    again = fleet.start(*(handler(source, style, **QUICK) for source in ("queue", "topic")))
    again.wait_until("end", 2)
    assert again.stop()[0] == 0
    assert fleet.left(queue) == fleet.left(topic) == 0


@on_one
def test_a_stop_while_it_starts_is_a_stop(fleet: Fleet) -> None:
    worker = fleet.start(handler("queue", "async"))
    code, seconds = worker.stop()
    assert (code, seconds < 3) == (0, True), worker.told()
    assert fleet.mq.workers() == []


def test_the_order_of_a_key_is_kept_when_others_take_over(fleet: Fleet) -> None:
    """A worker is stopped in the middle: the next one begins where it has ended, key by key."""
    handlers = [handler("topic", "async", concurrency=10, fetch_batch_size=40, seconds=0.02)]
    for _ in range(3):
        fleet.start(*handlers)
    fleet.fill(300, (), ["topic.async"])
    for worker in fleet.workers[:2]:
        worker.wait_until("end")
        assert worker.stop()[0] == 0, worker.told()
    fleet.wait_until_done("topic.async")
    acts = [act for act in fleet.acts() if act.what in ("begin", "end")]
    for key in range(10):
        mine = [(act.payload, act.what) for act in acts if act.payload % 10 == key]
        assert mine == [(n, what) for n in range(key, 300, 10) for what in ("begin", "end")]


# --- a death ------------------------------------------------------------------------------------


def test_a_death_loses_nothing_and_repeats_only_what_may_be(fleet: Fleet) -> None:
    """What it had comes again, but for what is acked first: that is run at most once."""
    count = 120
    once = [f"once.{name}" for name in QUEUES + TOPICS]
    fleet.fill(count, [*QUEUES, *once[:2]], [*TOPICS, *once[2:]])
    how: dict[str, Any] = {"jobs": SHORT_LOCK, "messages": SHORT_LEASE, "concurrency": 8}
    handlers = all_kinds(**how)
    firsts = all_kinds(**how, ack_policy="ack_first")
    for each in firsts:
        each["name"] = f"once.{each['name']}"
    worker = fleet.start(*slowly(handlers + firsts))
    for each in handlers + firsts:
        worker.wait_until("end", 5, each["name"])
    worker.kill()
    other = fleet.start(*handlers, *firsts)
    for name in QUEUES + TOPICS:
        fleet.wait_until_done(name)
        ended = fleet.times("end", name)
        assert set(ended) == set(range(count)), "lost"
        # What the dead one had ended may not have been settled.
        assert max(ended.values()) <= 2
        cut = set(worker.payloads("begin", name)) - set(worker.payloads("end", name))
        assert cut <= set(other.payloads("end", name))
    for name in once:
        fleet.wait_until_done(name)
        begun = fleet.times("begin", name)
        assert max(begun.values()) == 1
        # Of what was acked and not begun there is no more than it had in its hands.
        assert len(begun) >= count - 8
    fleet.database.execute("UPDATE rowmq_workers SET expires_at = expires_at - 60000000")
    assert {info.pid: info.alive for info in fleet.mq.workers()}[worker.process.pid] is False
    assert other.stop()[0] == 0
    assert [info.pid for info in fleet.mq.workers()] == [worker.process.pid]


def slowly(handlers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same handlers, which take their time."""
    return [each | {"seconds": 0.05} for each in handlers]


@on_two
def test_a_poison_job_that_kills_its_worker_is_given_up(fleet: Fleet) -> None:
    fleet.fill(1, ["queue.async"], ["topic.async"])
    for source, options in (("queue", SHORT_LOCK), ("topic", SHORT_LEASE)):
        name = f"{source}.async"
        poison = handler(source, "async", "die", **(options | {"max_deliveries": 2}))
        for _ in range(2):
            worker = fleet.start(poison, wait=False)
            assert worker.process.wait(30) == 9, worker.told()
        survivor = fleet.start(poison)
        fleet.wait_until_done(name)
        assert survivor.stop()[0] == 0
        assert len(fleet.times("begin", name)) == 1
        assert sum(fleet.times("begin", name).values()) == 2
    (job,) = fleet.mq.queue("queue.async").archive()
    assert "max_deliveries is 2" in str(job.error)
    (letter,) = fleet.mq.dead_letters("topic.async")
    assert "never settled" in str(letter.error)


# --- a long time --------------------------------------------------------------------------------


def test_a_handler_that_blocks_its_event_loop_keeps_its_message(fleet: Fleet) -> None:
    """For twice as long as its lock, its lease and its visibility last, which is long enough for
    a machine that is busy with other tests to keep them.
    """
    fleet.fill(1, ["queue.async"], ["topic.async"])
    how: dict[str, Any] = {
        "jobs": QUICK | {"lock_timeout": 2.5},
        "messages": QUICK | {"lease_duration": 2.5, "visibility": 2.5},
        "seconds": 5.0,
        "concurrency": 1,
    }
    handlers = [h for h in all_kinds("block", **how) if h["style"] == "async"]
    first = [fleet.start(each) for each in handlers]
    for worker in first:
        worker.wait_until("begin")
    others = fleet.start(*handlers)
    for worker in first:
        worker.wait_until("end")
    for name in ("queue.async", "topic.async"):
        fleet.wait_until_done(name)
        assert fleet.times("begin", name) == {0: 1}
    assert others.payloads("begin") == []
    assert all(worker.stop()[0] == 0 for worker in first)


def test_one_that_was_paused_for_too_long_has_lost_its_message(fleet: Fleet) -> None:
    """Others do it; what the late one says then changes nothing, and is told of."""
    fleet.fill(4, ["queue.async"], ["topic.async"])
    how: dict[str, Any] = {
        "jobs": SHORT_LOCK,
        "messages": SHORT_LEASE,
        "concurrency": 1,
        "fetch_batch_size": 4,
    }
    slow = [h for h in all_kinds(seconds=3.0, **how) if h["style"] == "async"]
    late = fleet.start(*slow)
    late.wait_until("begin", 2)
    late.pause()
    quick = [h for h in all_kinds(**how) if h["style"] == "async"]
    other = fleet.start(*quick)
    for name in ("queue.async", "topic.async"):
        fleet.wait_until_done(name)
    assert other.stop()[0] == 0
    before = settled_state(fleet)
    late.send(signal.SIGCONT)
    late.wait_until("end", 2)
    until(lambda: late.told().count("was not settled") >= 2, "it is told that it is late")
    code, _ = late.stop()
    assert code in (0, 1)
    assert settled_state(fleet) == before
    assert len(late.payloads("begin")) == 2


def settled_state(fleet: Fleet) -> list[Any]:
    tables = ("completed", "failed", "job_errors", "ready", "locks", "dead_letters", "messages")
    found: list[Any] = [
        sorted(fleet.database.execute(f"SELECT * FROM rowmq_{table}"), key=repr) for table in tables
    ]
    places = fleet.database.execute("SELECT offset_acked FROM rowmq_offsets ORDER BY partition_id")
    return [*found, places]


# --- effects exactly once -----------------------------------------------------------------------


@contextmanager
def own_table(database: Database) -> Iterator[None]:
    database.execute("DROP TABLE IF EXISTS own_effects")
    database.execute("CREATE TABLE own_effects (id integer NOT NULL)")
    yield
    database.execute("DROP TABLE own_effects")


def test_effects_of_transactional_handlers_are_there_exactly_once(fleet: Fleet) -> None:
    """However often workers are killed in the middle: there is new work for each of them."""
    count, rounds = 60, 4
    how: dict[str, Any] = {
        "jobs": SHORT_LOCK | {"max_deliveries": 1000},
        "messages": SHORT_LEASE | {"max_deliveries": 1000},
        "concurrency": 4,
        "seconds": 0.002,
        "transactional": True,
    }
    handlers = all_kinds("write", **how)
    total = rounds * count * len(QUEUES + TOPICS)
    numbers = iter(range(total))
    dice = random.Random(5)
    with own_table(fleet.database):
        for turn in range(rounds):
            for name in QUEUES:
                fleet.mq.queue(name).put_many(islice(numbers, count))
            for name in TOPICS:
                messages = [Message(payload=n, key=f"k{n % 20}") for n in islice(numbers, count)]
                fleet.mq.publish_many(name, messages)
            worker = fleet.start(*handlers)
            if turn < rounds - 1:
                worker.wait_until("end", dice.randrange(20, 2 * count))
                worker.kill()
        for name in QUEUES + TOPICS:
            fleet.wait_until_done(name)
        found = Counter(n for (n,) in fleet.database.execute("SELECT id FROM own_effects"))
    assert found == dict.fromkeys(range(total), 1)
    repeated = sum(sum(fleet.times("begin", name).values()) for name in QUEUES + TOPICS)
    assert repeated > total, "nobody was killed in the middle of anything"


# --- for people ---------------------------------------------------------------------------------


def test_progress_is_seen_from_another_process(fleet: Fleet) -> None:
    fleet.fill(1, ["queue.sync"], ["topic.async"])
    handlers = [
        handler("queue", "sync", "progress", seconds=60),
        handler("topic", "async", "progress", seconds=60),
    ]
    worker = fleet.start(*handlers, name="shop", graceful_timeout=0)
    worker.wait_until("begin", 2)

    def seen() -> Any:
        for info in fleet.mq.workers():
            if [running.progress for running in info.running] == [0.5, 0.5]:
                return info
        return None

    info = until(seen, "it is said how far they are", 10)
    assert (info.app, info.pid, info.alive) == ("shop", worker.process.pid, True)
    assert info.handlers == ("queue.sync", "topic.async")
    job, message = sorted(info.running, key=lambda running: str(running.handler))
    assert (job.handler, job.source, job.attempt, job.note) == (
        "queue.sync",
        "queue.sync",
        1,
        "half way",
    )
    assert (message.key, message.source) == ("k0", "topic.async")
    assert abs(datetime.now(UTC) - job.since) < timedelta(minutes=1)
    worker.stop()
    assert fleet.mq.workers() == []


@on_one
def test_a_thread_that_does_not_end_does_not_keep_the_process(fleet: Fleet) -> None:
    fleet.fill(1, ["queue.async"])
    worker = fleet.start(
        handler("queue", "async", "to_thread", seconds=60, **QUICK), graceful_timeout=0.2
    )
    worker.wait_until("begin")
    code, seconds = worker.stop()
    assert code == 1
    assert seconds < 10
