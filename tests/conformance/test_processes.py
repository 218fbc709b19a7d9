"""Subscribers in processes of their own that are killed, paused and cut off while they work.

What must hold, whatever happens to whom: no message is lost, none is settled by one who has lost
its lease, none is settled twice, and in strict mode the messages of a key are handled in order.
"""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import rowmq
from rowmq import Message
from tests.choices import async_only, on_servers
from tests.conformance.test_faults import cut_connections
from tests.consuming import eventually, pause
from tests.databases import NAMES, Database
from tests.flavours import FLAVOURS
from tests.processes.worker import GROUP, TOPIC, Event, parse

Place = tuple[str, int]

KEYS = [f"customer-{number}" for number in range(6)]
ROOT = Path(__file__).parents[2]
LEASE_SECONDS = 1.0
BACKLOG_MAX = 200

on_postgres = pytest.mark.parametrize("database", ["postgres"], indirect=True)
# Each two of database, flavour and mode meet.
in_pairs = pytest.mark.parametrize(
    ("database", "flavour", "strict"),
    [
        (database, flavour, (number + place) % 2 == 0)
        for number, database in enumerate(NAMES)
        for place, flavour in enumerate(FLAVOURS)
    ],
    indirect=["database", "flavour"],
)


def some(*cases: tuple[str, bool]) -> pytest.MarkDecorator:
    """Not every combination: each takes seconds."""
    return pytest.mark.parametrize(("flavour", "strict"), cases, indirect=["flavour"])


def until(condition: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
    began = time.monotonic()
    deadline = began + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        time.sleep(pause(began))
        began = time.monotonic()


class Worker:
    """A process of `tests.processes.worker`, and what it has written down so far."""

    def __init__(self, flavour: str, url: str, path: Path, options: dict[str, Any]) -> None:
        self.path = path
        self.record = path.with_suffix(".jsonl")
        self.log = path.with_suffix(".log")
        self.dead = False
        self._events: list[Event] = []
        self._places: dict[str, set[Place]] = defaultdict(set)
        self._read = 0
        self._reading = threading.Lock()
        module = [sys.executable, "-m", "tests.processes.worker"]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*module, flavour, url, str(self.record), json.dumps(options)],
                stdout=log,
                stderr=log,
                cwd=ROOT,
            )

    @property
    def events(self) -> list[Event]:
        with self._reading:
            self._read_on()
            return self._events.copy()

    def places(self, act: str) -> set[Place]:
        """What something was done with."""
        with self._reading:
            self._read_on()
            return self._places[act].copy()

    def _read_on(self) -> None:
        if not self.record.exists():
            return
        with self.record.open("rb") as file:
            file.seek(self._read)
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._read += len(whole)
        for event in map(parse, whole.splitlines()):
            self._events.append(event)
            self._places[event.act].add((event.key, event.offset))

    @property
    def held(self) -> set[Place]:
        """What it was given and has not begun to settle."""
        return self.places("got") - self.places("begin")

    @property
    def unknown(self) -> set[Place]:
        """What it began to settle and was killed before it wrote down what came of that."""
        return self.places("begin") - self.places("acked") - self.places("stale")

    def wait_ready(self) -> None:
        until(self.is_ready, "it is ready")

    def is_ready(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        return bool(self.places("ready"))

    def signal(self, number: int) -> None:
        assert self.process.poll() is None, self.log.read_text()
        os.kill(self.process.pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.process.wait()
        self.dead = True

    def pause(self) -> None:
        self.signal(signal.SIGSTOP)
        self.wait_stopped()

    def wait_stopped(self) -> None:
        until(self.is_stopped, "it stands still")

    def is_stopped(self) -> bool:
        how = os.WSTOPPED | os.WNOWAIT | os.WNOHANG
        return os.waitid(os.P_PID, self.process.pid, how) is not None

    def resume(self) -> None:
        self.signal(signal.SIGCONT)

    def stop(self) -> None:
        """Have it end by itself, as after a deploy."""
        self.signal(signal.SIGTERM)
        assert self.process.wait(30) == 0, self.log.read_text()


class Crew:
    """Workers of one group, and somebody who publishes all the time, if they keep up."""

    def __init__(self, database: Database, flavour: str, folder: Path, *, strict: bool) -> None:
        self.database = database
        self.flavour = flavour
        self.folder = folder
        self.strict = strict
        self.workers: list[Worker] = []
        self.mq = rowmq.connect(database.url, retry_for=30)
        self.mq.create_group(TOPIC, GROUP)
        self.published: list[Place] = []
        self._enough = threading.Event()
        self._failed: list[Exception] = []
        self._publisher = threading.Thread(target=self._publish)

    def hire(self, count: int, **special: Any) -> list[Worker]:
        options: dict[str, Any] = special | {
            "strict": self.strict,
            "max_attempts": 100,
            "lease_duration": LEASE_SECONDS,
            "discovery_interval": 0.1,
        }
        new = []
        for _ in range(count):
            path = self.folder / f"worker-{len(self.workers)}"
            options["name"] = path.name
            new.append(Worker(self.flavour, self.database.url, path, options))
            self.workers.append(new[-1])
        for worker in new:
            worker.wait_ready()
        return new

    @property
    def living(self) -> list[Worker]:
        return [worker for worker in self.workers if not worker.dead]

    def acked(self) -> set[Place]:
        return set().union(*(worker.places("acked") for worker in self.workers))

    def _publish(self) -> None:
        number = 0
        try:
            while not self._enough.is_set():
                if len(self.published) - len(self.acked()) > BACKLOG_MAX:
                    time.sleep(0.01)
                    continue
                number += 1
                # The id is given, so that a publish that is repeated is found out.
                messages = [
                    Message(payload=number, key=key, id=f"{number}-{place}")
                    for place, key in enumerate(random.choices(KEYS, k=4))
                ]
                results = self.mq.publish_many(TOPIC, messages)
                pairs = zip(messages, results, strict=True)
                self.published += [(m.key or "", r.offset) for m, r in pairs]
        except Exception as error:  # noqa: BLE001 - told to the test
            self._failed.append(error)

    def keep_working(self, seconds: float = 60.0) -> None:
        """Wait until a good many more messages are done."""
        wanted = len(self.acked()) + 50
        until(lambda: len(self.acked()) >= wanted, "work goes on", seconds)

    def finish(self) -> None:
        """Publish no more, have everything done, and go home."""
        self._enough.set()
        self._publisher.join()
        assert not self._failed
        until(lambda: all(row.lag == 0 for row in self.mq.lag(TOPIC, GROUP)), "the lag is 0")
        for worker in self.living:
            worker.stop()

    @contextmanager
    def at_work(self, count: int) -> Iterator["Crew"]:
        try:
            self.hire(count)
            self._publisher.start()
            yield self
        finally:
            self._enough.set()
            for worker in self.workers:
                if worker.process.poll() is None:
                    worker.process.kill()
                    worker.process.wait()
            if self._publisher.ident is not None:
                self._publisher.join()
            self.mq.close()

    # --- what must hold -------------------------------------------------------------------------

    def check(self) -> None:
        assert len(self.published) > 200
        self.check_nothing_is_lost()
        self.check_nothing_is_settled_twice()
        self.check_attempts()
        if self.strict:
            self.check_strict_order()
        else:
            self.check_first_deliveries_are_in_order()

    def check_nothing_is_lost(self) -> None:
        assert self.mq.dead_letters(TOPIC) == []
        unknown = set().union(*(worker.unknown for worker in self.workers if worker.dead))
        assert set(self.published) - self.acked() <= unknown
        assert len(self.published) == len(set(self.published))
        assert not any(worker.unknown for worker in self.living)

    def check_nothing_is_settled_twice(self) -> None:
        settled = Counter(
            (event.key, event.offset)
            for worker in self.workers
            for event in worker.events
            if event.act == "acked"
        )
        assert [place for place, times in settled.items() if times > 1] == []

    def check_attempts(self) -> None:
        """No two deliveries are the same attempt, and none comes after the one that was acked."""
        attempts: dict[Place, list[int]] = defaultdict(list)
        acked: dict[Place, int] = {}
        for event in (event for worker in self.workers for event in worker.events):
            if event.act == "got":
                attempts[event.key, event.offset].append(event.attempt)
            elif event.act == "acked":
                acked[event.key, event.offset] = event.attempt
        for place, numbers in attempts.items():
            assert len(numbers) == len(set(numbers)), place
            assert acked.get(place, max(numbers)) == max(numbers), place

    def check_strict_order(self) -> None:
        """A message is delivered after those before it were acked, be it by others."""
        first_got: dict[Place, int] = {}
        acked: dict[Place, int] = {}
        for worker in self.workers:
            began = {(e.key, e.offset): e.at for e in worker.events if e.act == "begin"}
            done = worker.places("acked") | (worker.unknown if worker.dead else set())
            for place in done - acked.keys():
                acked[place] = began[place]
            for event in worker.events:
                if event.act == "got":
                    place = event.key, event.offset
                    first_got[place] = min(event.at, first_got.get(place, event.at))
        for key in KEYS:
            offsets = sorted(offset for found, offset in first_got if found == key)
            assert offsets == list(range(1, len(offsets) + 1))
            for before, after in pairwise(offsets):
                assert first_got[key, before] < acked[key, before] < first_got[key, after]

    def check_first_deliveries_are_in_order(self) -> None:
        for worker in self.workers:
            for key in KEYS:
                got = [e for e in worker.events if e.act == "got" and e.key == key]
                first = [event.offset for event in got if event.attempt == 1]
                assert first == sorted(first)


def pause_while_it_holds_something(worker: Worker, database: Database) -> set[Place]:
    """Pause a worker between being given messages and settling them. Which these are."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        worker.pause()
        if worker.held and not worker.unknown and database.can_be_written():
            return worker.held
        worker.resume()
        time.sleep(random.uniform(0.001, 0.03))
    pytest.fail("it never held anything")


@some(("sync", True), ("async", False))
def test_workers_killed_at_any_moment_lose_nothing(
    database: Database, flavour: str, tmp_path: Path, strict: bool
) -> None:
    with Crew(database, flavour, tmp_path, strict=strict).at_work(2) as crew:
        for _ in range(3):
            time.sleep(random.uniform(0.0, 0.3))  # any moment
            random.choice(crew.living).kill()
            crew.hire(1)
        crew.keep_working()
        crew.finish()
        crew.check()


@in_pairs
def test_a_worker_paused_beyond_its_lease_settles_nothing_and_works_on(
    database: Database, flavour: str, tmp_path: Path, strict: bool
) -> None:
    with Crew(database, flavour, tmp_path, strict=strict).at_work(2) as crew:
        crew.keep_working()
        paused = crew.workers[0]
        held = pause_while_it_holds_something(paused, database)
        until(lambda: held <= crew.acked(), "others do what it held")
        before = len(paused.places("acked"))
        paused.resume()
        until(lambda: held <= paused.places("stale"), "it knows that it is too late")
        until(lambda: len(paused.places("acked")) > before, "it has work again")
        crew.finish()
        assert not held & paused.places("acked")
        assert held <= paused.places("lost")
        crew.check()


@on_servers
@some(("sync", False), ("async", True))
def test_workers_whose_connections_are_cut_go_on_by_themselves(
    database: Database, flavour: str, tmp_path: Path, strict: bool
) -> None:
    with Crew(database, flavour, tmp_path, strict=strict).at_work(2) as crew:
        for _ in range(5):
            time.sleep(random.uniform(0.0, 0.3))  # any moment
            cut_connections(database)
            crew.keep_working()
        crew.finish()
        crew.check()


@on_servers  # one writer at a time is what SQLite is
@async_only
def test_a_worker_that_freezes_in_a_transaction_holds_up_nobody_else(
    database: Database, flavour: str, tmp_path: Path
) -> None:
    with Crew(database, flavour, tmp_path, strict=False).at_work(1) as crew:
        (frozen,) = crew.hire(1, freezes=True)
        frozen.wait_stopped()
        until_expired = time.monotonic() + 2 * LEASE_SECONDS
        while time.monotonic() < until_expired:
            crew.keep_working(seconds=10)
        frozen.kill()
        crew.finish()
        crew.check()


@on_postgres
@async_only
async def test_leases_are_kept_where_it_takes_long_to_connect(mq: Any) -> None:
    heart = mq._home.heart
    open_driver = heart._open_driver

    def open_slowly() -> Any:
        driver = open_driver()
        open_session = driver.pool.open_session

        def wait_and_open() -> Any:
            time.sleep(0.7)
            return open_session()

        driver.pool.open_session = wait_and_open
        return driver

    heart._open_driver = open_slowly
    async with mq.subscribe(TOPIC, group=GROUP, lease_duration=2) as sub:
        member, began = sub._core.member, sub._core.beaten_at
        await eventually(lambda: sub._core.beaten_at > began + 3)
        assert sub._core.member == member
