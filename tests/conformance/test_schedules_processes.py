"""Twenty schedulers in four processes, on machines whose clocks are up to a day apart.

For them a week passes, and a day more, in which clocks go back in a zone in the east and then in
one in the west. The time is the database's, which is moved here. Each tick must have made one job,
or one message, whoever was first; also though the jobs are done as soon as they are there.
"""

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from zoneinfo import ZoneInfo

import rowmq
from rowmq.engine import Options
from rowmq.times import to_micros
from tests.clocks import CLOCK, Clock, connect_sync
from tests.databases import Database
from tests.processes.scheduler import AHEAD, around

ROOT = Path(__file__).parents[2]

START = datetime(2026, 10, 24, 12, tzinfo=UTC)
END = datetime(2026, 11, 1, 12, tzinfo=UTC)
PARIS, NEW_YORK = ZoneInfo("Europe/Paris"), ZoneInfo("America/New_York")

MACHINES = [("sync", -24), ("async", -7), ("sync", 5), ("async", 24)]
"""Kinds of clients, and by how many hours the clocks of their machines are off."""


@contextmanager
def schedulers(database: Database) -> Iterator[None]:
    module = [sys.executable, "-m", "tests.processes.scheduler"]
    processes = [
        subprocess.Popen(
            [*module, flavour, database.url, str(hours)], cwd=ROOT, stdout=subprocess.PIPE
        )
        for flavour, hours in MACHINES
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
        yield
        assert [process.poll() for process in processes] == [None] * len(MACHINES)
    finally:
        for process in processes:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


def expected() -> set[tuple[str, datetime]]:
    """Every tick, found by looking at the clocks on the wall, minute by minute."""
    ticks = set()
    shown: set[tuple[str, datetime]] = set()
    minute = START
    while minute < END:
        minute += timedelta(minutes=1)
        paris, new_york = (minute.astimezone(zone) for zone in (PARIS, NEW_YORK))
        for name, wall, times in (
            ("paris at night", paris, {"02:30"}),
            ("paris by day", paris, {"02:00", "02:30", "14:00"}),
            ("new york at night", new_york, {"01:30"}),
            ("new york by day", new_york, {"01:15", "23:59"}),
        ):
            seen = (name, wall.replace(tzinfo=None))
            if f"{wall:%H:%M}" in times and seen not in shown:  # what comes twice counts once
                ticks.add((name, minute))
                shown.add(seen)
        if new_york.minute % 30 == 0:
            ticks.add(("new york often", minute))
        if minute.timestamp() % 2700 == 0:
            ticks.add(("beat", minute))
    return ticks


def test_twenty_schedulers_with_wrong_clocks_make_each_tick_of_a_week_once(
    database: Database,
) -> None:
    clock = Clock(database, START)
    random = Random(7)
    made: list[tuple[str, datetime]] = []
    ahead: list[datetime] = []
    with connect_sync(database.url, Options(clock=CLOCK)) as mq:
        with schedulers(database):
            while clock.now < END:
                clock.set(min(END, clock.now + timedelta(minutes=random.randint(5, 900))))
                wait_until_fired(mq, clock.now)
                wait_until_put_ahead(database, clock.now)
                made += ticks_of(work(mq, "q"))
                ahead += [at for _, at in ticks_of(work(mq, AHEAD))]
        made += ticks_of(work(mq, "q")) + ticks_of(mq.read("t", limit=10_000))
        assert mq.cron.tend() == 0
    clock.drop()
    assert Counter(made) == Counter(expected())
    assert Counter(ahead).most_common(1)[0][1] == 1
    assert {START + timedelta(hours=hour) for hour in range(1, 192)} <= set(ahead)


def wait_until_fired(mq: rowmq.RowMQ, now: datetime) -> None:
    deadline = time.monotonic() + 60
    while any(s.next_at is None or s.next_at <= now for s in mq.cron.list()):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def wait_until_put_ahead(database: Database, now: datetime) -> None:
    """Until each machine has put the hours around what it believes the time to be."""
    wanted = {
        to_micros(message.at) for _, hours in MACHINES for message in around(to_micros(now), hours)
    }
    deadline = time.monotonic() + 60
    sql = f"SELECT fire_at FROM rowmq_ticks WHERE queue = '{AHEAD}'"
    while not wanted <= {fire_at for (fire_at,) in database.execute(sql)}:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def work(mq: rowmq.RowMQ, queue: str) -> list["rowmq.Job[object]"]:
    """All that is to do, done."""
    jobs = mq.queue(queue).try_poll_many(10_000)
    mq.queue(queue).ack(jobs)
    return jobs


def ticks_of(
    made: list["rowmq.Job[object]"] | list["rowmq.Message[object]"],
) -> list[tuple[str, datetime]]:
    """The ticks that have made jobs or messages."""
    headers = [item.headers for item in made]
    return [
        (found["rowmq-schedule"], datetime.fromisoformat(found["rowmq-fire-at"]))
        for found in headers
    ]
