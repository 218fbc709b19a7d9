"""What is in the database when a trial is over, in the words of a history."""

from collections.abc import Iterator
from typing import Any

import rowmq
from rowmq.cron.options import SCHEDULE_HEADER
from rowmq.times import to_micros
from tests.chaos.load import GROUPS, PERIOD_SECONDS, QUEUES, SCHEDULE, TICKS, TOPIC, mark_of
from tests.databases import Database
from tests.simulation.history import (
    Effect,
    Final,
    Job,
    Partition,
    Place,
    Progress,
    Stored,
    Tick,
)

__all__ = ["due", "find", "left"]

MANY = 1_000_000
PERIOD_US = round(PERIOD_SECONDS * 1_000_000)


def left(mq: rowmq.RowMQ) -> int:
    """How much is not done."""
    jobs = [mq.queue(name).counts() for name in QUEUES]
    waiting = sum(c["pending"] + c["processing"] + c["retryable"] for c in jobs)
    return waiting + sum(info.lag for group in GROUPS for info in mq.lag(TOPIC, group))


def find(database: Database, mq: rowmq.RowMQ) -> Final:
    """All of it."""
    jobs = [job for name in QUEUES for job in jobs_of(mq.queue(name))]
    ticks = tuple(
        Tick(job.headers[SCHEDULE_HEADER], fire_at(job), job.id)
        for job in jobs
        if job.queue == TICKS
    )
    return Final(
        messages=tuple(
            Stored(Partition(TOPIC, m.key), m.offset, m.payload) for m in mq.read(TOPIC, limit=MANY)
        ),
        progress=tuple(progress(mq)),
        jobs=tuple(Job(job.queue, job.id, mark_of(job), job.state.value, job.key) for job in jobs),
        ticks=ticks,
        due=due(ticks, *life_of_schedule(mq)),
        effects=effects(database),
        counts={name: mq.queue(name).counts() for name in QUEUES},
        lags={(TOPIC, group): sum(i.lag for i in mq.lag(TOPIC, group)) for group in GROUPS},
    )


def jobs_of(queue: Any) -> list[Any]:
    return [*queue.live(limit=MANY), *queue.archive(limit=MANY)]


def fire_at(job: Any) -> int:
    return int(mark_of(job).split()[1])


def life_of_schedule(mq: rowmq.RowMQ) -> tuple[int, int]:
    """When the schedule was installed, and when it fired last: the same if it never did."""
    for info in mq.cron.list():
        return to_micros(info.created_at), to_micros(info.last_at or info.created_at)
    return 0, 0  # nobody came so far


def due(ticks: tuple[Tick, ...], installed: int, fired: int) -> tuple[tuple[str, int], ...]:
    """Every full period from when the schedule was installed until it fired last, whatever is
    there of that.
    """
    first = (installed // PERIOD_US + 1) * PERIOD_US
    last = max([fired, *(tick.due for tick in ticks)])
    return tuple((SCHEDULE, time) for time in range(first, last + 1, PERIOD_US))


def progress(mq: rowmq.RowMQ) -> Iterator[Progress]:
    dead: dict[Place, set[int]] = {}
    for letter in mq.dead_letters(TOPIC, limit=MANY):
        place = Place(letter.group, Partition(TOPIC, letter.message.key))
        dead.setdefault(place, set()).add(letter.offset)
    for group in GROUPS:
        for info in mq.lag(TOPIC, group):
            place = Place(group, Partition(TOPIC, info.key))
            yield Progress(place, 0, info.offset_acked, dead=frozenset(dead.get(place, ())))


def effects(database: Database) -> tuple[Effect, ...]:
    rows = database.execute("SELECT owner, mark FROM chaos_effects ORDER BY id")
    return tuple(Effect(owner, mark) for owner, mark in rows)
