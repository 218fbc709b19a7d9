"""What is in the database when a run is over, and what is left to do before that."""

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

import rowmq
from rowmq.cron.options import FIRE_AT_HEADER, SCHEDULE_HEADER
from rowmq.times import to_micros
from tests.databases import Database
from tests.simulation.history import (
    Effect,
    Final,
    Job,
    Letter,
    Partition,
    Place,
    Progress,
    Stored,
    Tick,
)

__all__ = [
    "GROUPS",
    "INSERT_EFFECT",
    "MAIL",
    "SCHEDULE",
    "TICKS",
    "TOPIC",
    "left",
    "look",
    "make_effects",
    "mark_of",
    "token_of",
]

TOPIC, MAIL, TICKS, SCHEDULE = "orders", "mail", "ticks", "tick"
GROUPS = {"loose": False, "strict": True}
"""The groups, and whether they keep strict order; their handlers are transactional."""

INSERT_EFFECT = "INSERT INTO simulated_effects (owner, mark) VALUES (?, ?)"

EFFECT_IDS = {
    "sqlite": "INTEGER PRIMARY KEY AUTOINCREMENT",
    "postgres": "bigserial PRIMARY KEY",
    "mysql": "bigint PRIMARY KEY AUTO_INCREMENT",
}

ALL = 10_000

RESTS = {
    "jobs that can be claimed": "SELECT COUNT(*) FROM rowmq_ready",
    "keys": "SELECT COUNT(*) FROM rowmq_job_keys",
    "lines": "SELECT COUNT(*) FROM rowmq_lines",
    "jobs in lines": "SELECT COUNT(*) FROM rowmq_waiting",
    "ranges above a watermark": "SELECT COUNT(*) FROM rowmq_delivery_state",
    "jobs that are nowhere": """
        SELECT COUNT(*) FROM rowmq_jobs j
        WHERE NOT EXISTS (SELECT 1 FROM rowmq_completed c WHERE c.job_id = j.id)
          AND NOT EXISTS (SELECT 1 FROM rowmq_failed f WHERE f.job_id = j.id)""",
    "completed ones without a job": """
        SELECT COUNT(*) FROM rowmq_completed c
        WHERE NOT EXISTS (SELECT 1 FROM rowmq_jobs j WHERE j.id = c.job_id)""",
    "failed ones without a job": """
        SELECT COUNT(*) FROM rowmq_failed f
        WHERE NOT EXISTS (SELECT 1 FROM rowmq_jobs j WHERE j.id = f.job_id)""",
}
"""What must be empty when all is done: asked for not by RowMQ, which may not find what it lost."""


def make_effects(database: Database) -> None:
    """A table, empty, for what transactional handlers write."""
    database.execute(
        f"CREATE TABLE IF NOT EXISTS simulated_effects "
        f"(id {EFFECT_IDS[database.dialect]}, owner varchar(50), mark varchar(50))"
    )
    database.execute("DELETE FROM simulated_effects")


def left(mq: rowmq.RowMQ) -> Iterator[int]:
    """How many messages and jobs are left to do, for each group and queue."""
    for group in GROUPS:
        yield sum(info.lag for info in mq.lag(TOPIC, group))
    for queue in (MAIL, TICKS):
        counts = mq.queue(queue).counts()
        yield counts["pending"] + counts["processing"] + counts["retryable"]


def look(database: Database, mq: rowmq.RowMQ) -> Final:
    """All that there is."""
    jobs = [
        job
        for name in (MAIL, TICKS)
        for queue in [mq.queue(name)]
        for job in [*queue.live(limit=ALL), *queue.archive(limit=ALL)]
    ]
    effects = database.execute("SELECT owner, mark FROM simulated_effects ORDER BY id")
    letters = tuple(
        Letter(Place(letter.group, partition_of(letter.message)), letter.offset, payload)
        for letter in mq.dead_letters(TOPIC, limit=ALL)
        for payload in [str(letter.message.payload)]
    )
    return Final(
        messages=tuple(
            Stored(partition_of(message), message.offset, message.payload)
            for message in mq.read(TOPIC, limit=ALL)
        ),
        begins={partition_of(info): info.first_offset for info in mq.partitions(TOPIC)},
        progress=tuple(progress(mq, letters)),
        letters=letters,
        jobs=tuple(Job(job.queue, job.id, mark_of(job), job.state.value, job.key) for job in jobs),
        ticks=tuple(
            Tick(job.headers[SCHEDULE_HEADER], fire_at(job), job.id)
            for job in jobs
            if job.queue == TICKS
        ),
        effects=tuple(Effect(owner, mark) for owner, mark in effects),
        counts={name: mq.queue(name).counts() for name in (MAIL, TICKS)},
        lags={(TOPIC, group): sum(info.lag for info in mq.lag(TOPIC, group)) for group in GROUPS},
        rests={
            what: count for what, sql in RESTS.items() for ((count,),) in [database.execute(sql)]
        }
        | {"copies of letters, too many or too few": copies(mq) - len(letters)},
    )


def copies(mq: rowmq.RowMQ) -> int:
    """How many messages there are in the dead-letter topic."""
    return len(mq.read(f"{TOPIC}_dlq", limit=ALL))


def partition_of(what: Any) -> Partition:
    return Partition(TOPIC, what.key, what.shard)


def progress(mq: rowmq.RowMQ, letters: Iterable[Letter]) -> Iterator[Progress]:
    """How far each group is in each partition."""
    dead: dict[Place, set[int]] = {}
    for letter in letters:
        dead.setdefault(letter.place, set()).add(letter.offset)
    for group in GROUPS:
        for info in mq.lag(TOPIC, group):
            place = Place(group, partition_of(info))
            yield Progress(place, 0, info.offset_acked, dead=frozenset(dead.get(place, ())))


def mark_of(job: Any) -> str:
    """What tells a job apart: what was put, or the time of its tick."""
    return f"tick {fire_at(job)}" if job.queue == TICKS else str(job.payload)


def token_of(job: Any) -> int:
    """What tells a claim apart."""
    token: int = job._facts.claimed.token
    return token


def fire_at(job: Any) -> int:
    return to_micros(datetime.fromisoformat(job.headers[FIRE_AT_HEADER]))
