"""Workers in processes of their own, that are killed and paused while they work off a queue.

What must hold, whatever happens to whom: no job is lost, each is acked once, one that comes again
is marked so, and whoever has lost its lock settles nothing.
"""

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import rowmq
from tests.databases import Database
from tests.processes.jobs import QUEUE, WORKERS

JOBS = 1_000
PROCESSES = 3
ROOT = Path(__file__).parents[2]


class Line(NamedTuple):
    """What a worker has written down."""

    act: str
    job: int
    delivery: str
    worker: str


class Fleet:
    """Processes of `tests.processes.jobs`, and what they have written down so far."""

    def __init__(
        self, flavour: str, database: Database, folder: Path, lock_timeout: float, naps: list[float]
    ) -> None:
        self.records = [folder / f"{number}.txt" for number in range(len(naps))]
        module = [sys.executable, "-m", "tests.processes.jobs", flavour, database.url]
        self.processes = [
            subprocess.Popen([*module, str(record), str(lock_timeout), str(nap)], cwd=ROOT)
            for record, nap in zip(self.records, naps, strict=True)
        ]

    def lines(self, *numbers: int) -> list[Line]:
        """The record of some processes, or of all."""
        found = []
        for record in [self.records[number] for number in numbers] or self.records:
            text = record.read_text() if record.exists() else ""
            for line in text.splitlines():
                act, job, delivery, worker = line.split()
                found.append(Line(act, int(job), delivery, worker))
        return found

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


@contextmanager
def fleet(
    flavour: str, database: Database, folder: Path, lock_timeout: float, naps: list[float]
) -> Iterator[tuple[Fleet, "rowmq.Queue[int]"]]:
    """Three processes at work on a thousand jobs, which are there when all of these are."""
    with rowmq.connect(database.url) as mq:
        queue = mq.queue(QUEUE)
        started = Fleet(flavour, database, folder, lock_timeout, naps)
        try:
            while not all(record.exists() for record in started.records):
                assert all(process.poll() is None for process in started.processes)
                time.sleep(0.01)
            queue.put_many(range(JOBS))
            yield started, queue
        finally:
            started.end()


def wait_until_done(queue: "rowmq.Queue[int]", seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while queue.counts()["completed"] < JOBS:
        assert time.monotonic() < deadline, queue.counts()
        time.sleep(0.05)


def nothing_but_the_archive(queue: "rowmq.Queue[int]") -> bool:
    return queue.counts() == {
        "pending": 0,
        "processing": 0,
        "retryable": 0,
        "completed": JOBS,
        "failed": 0,
    }


def test_each_job_is_handled_once(database: Database, flavour: str, tmp_path: Path) -> None:
    naps = [0.005] * PROCESSES
    with fleet(flavour, database, tmp_path, 60, naps) as (workers, queue):
        wait_until_done(queue)
        assert nothing_but_the_archive(queue)
        lines = workers.lines()
    assert handled_in(lines) == dict.fromkeys(range(JOBS), 1)
    assert {line.delivery for line in lines} == {"FIRST_DELIVERY"}
    assert len({line.worker for line in lines}) == PROCESSES * WORKERS


def test_a_worker_that_is_killed_loses_nothing_and_one_that_is_late_settles_nothing(
    database: Database, flavour: str, tmp_path: Path
) -> None:
    """The second process sleeps over its first jobs until others have done them."""
    with fleet(flavour, database, tmp_path, 1.0, [0.005, 4.0, 0.005]) as (workers, queue):
        while len(workers.lines(0)) < 60 or len(workers.lines(1)) < WORKERS:
            time.sleep(0.005)
        workers.processes[0].kill()
        late = {line.job for line in workers.lines(1)}
        wait_until_done(queue)
        while late - {line.job for line in workers.lines(1) if line.act != "handled"}:
            time.sleep(0.01)
        assert nothing_but_the_archive(queue)
        lines = workers.lines()
    handled = handled_in(lines)
    assert set(handled) == set(range(JOBS))
    # One that was killed may have acked a job and not have written that down any more.
    acked = Counter(line.job for line in lines if line.act == "acked")
    assert set(acked.values()) == {1}
    assert len(acked) >= JOBS - WORKERS
    assert late <= {line.job for line in lines if line.act == "stale"}
    first = Counter(line.job for line in lines if line[0::2] == ("handled", "FIRST_DELIVERY"))
    assert set(first.values()) == {1}
    again = {job for job, times in handled.items() if times > 1}
    assert late <= again <= {line.job for line in lines if line.delivery == "REDELIVERY"}


def handled_in(lines: list[Line]) -> Counter[int]:
    """How often each job was handled."""
    return Counter(line.job for line in lines if line.act == "handled")
