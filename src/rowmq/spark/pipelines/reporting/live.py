"""What a database says of itself: how its groups and queues stand at the time of the report."""

from datetime import datetime
from functools import partial
from typing import NamedTuple

from rowmq.client import RowMQ
from rowmq.doctor.checks import EXAMINATIONS
from rowmq.errors import UnknownGroup
from rowmq.spark.jobs import ask
from rowmq.spark.pipelines.reporting.figures import Figure
from rowmq.store.dialect import as_text
from rowmq.store.doctor_facts import GroupState
from rowmq.times import from_micros

__all__ = ["Live", "LiveGroup", "LiveQueue", "live_figures", "look"]


class LiveGroup(NamedTuple):
    """How far a consumer group is behind."""

    topic: str
    group: str
    lag: int
    in_flight: int
    oldest_seconds: float | None
    """The age of the oldest message that it has not acked."""
    subscribers: int
    partitions: int
    expired: int
    """How many messages retention let go of before the group had acked them."""


class LiveQueue(NamedTuple):
    """A queue, and what is in it."""

    queue: str
    paused: bool
    keeps_completed: bool
    counts: dict[str, int]
    due_seconds: float | None
    """For how long its first job has been due, if one is."""


class Live(NamedTuple):
    """A database at one time, by its own clock."""

    at: datetime
    database: str
    topics: tuple[str, ...] = ()
    letter_topics: tuple[str, ...] = ()
    """Those of the topics that hold the dead letters of others."""
    groups: tuple[LiveGroup, ...] = ()
    queues: tuple[LiveQueue, ...] = ()
    letter_origins: tuple[str, ...] = ()
    """Those of the topics that dead letters are from."""


def look(mq: RowMQ) -> Live:
    """See how groups and queues stand. It is cheap on tables of any size, and changes nothing."""
    engine = mq._engine  # noqa: SLF001 - a part of rowmq that looks at its own tables
    examination = EXAMINATIONS[engine.database](engine.store.dialect, engine.store.schema)
    run = partial(engine.driver.run, retry_for=None)
    groups = [live_group(mq, state) for state in run(examination.groups)]
    topics = mq.topics()
    due = {state.queue: state.due_seconds for state in run(examination.queues)}
    queues = [
        LiveQueue(
            queue=info.name,
            paused=info.paused,
            keeps_completed=info.keep_completed,
            counts=mq.queue(info.name).counts(),
            due_seconds=due.get(info.name),
        )
        for info in mq.queues()
    ]
    return Live(
        at=from_micros(run(examination.clock)),
        database=engine.database,
        topics=tuple(info.name for info in topics),
        letter_topics=tuple(info.name for info in topics if info.holds_letters),
        groups=tuple(group for group in groups if group is not None),
        queues=tuple(queues),
        letter_origins=topics_of(mq, "spark.letter_origins", LETTER_ORIGINS),
    )


def topics_of(mq: RowMQ, statement: str, sql: str) -> tuple[str, ...]:
    return tuple(as_text(topic) for (topic,) in ask(mq, statement, sql))


def live_group(mq: RowMQ, state: GroupState) -> LiveGroup | None:
    try:
        rows = mq.lag(state.topic, state.group)
    except UnknownGroup:  # dropped since
        return None
    return LiveGroup(
        topic=state.topic,
        group=state.group,
        lag=sum(row.lag for row in rows),
        in_flight=sum(row.in_flight for row in rows),
        oldest_seconds=state.oldest_seconds,
        subscribers=state.subscribers,
        partitions=len(rows),
        expired=state.expired,
    )


def live_figures(live: Live | None) -> list[Figure]:
    """What is in queues now, as figures."""
    if live is None:
        return []
    return [
        Figure("jobs_now", "count", float(count), "jobs", queue=queue.queue, state=state)
        for queue in live.queues
        for state, count in queue.counts.items()
    ]


LETTER_ORIGINS = """
    SELECT t.topic FROM (SELECT DISTINCT topic FROM {partitions}) t
    WHERE EXISTS (SELECT 1 FROM {dead_letters} d WHERE d.origin_topic = t.topic)
    ORDER BY t.topic"""
