"""What charts are made from: a look at everything every two seconds, kept for fifteen minutes.

There is one sampler for a site, however many look at it. Its task is started by the first who does,
and ends by itself when nobody has for half a minute: a dashboard that nobody sees costs nothing.
Each look is a few statements of fixed cost; where one takes long, the next is later.

Totals are for who may see everything. What others may see is summed up for them from the busiest
topics and queues, which is why those are kept one by one.
"""

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

from rowmq.client import AsyncRowMQ
from rowmq.errors import RowMQError
from rowmq.inspection import COUNT_MAX, QueueBacklog
from rowmq.message import Pipelines, ScheduleInfo, WorkerInfo
from rowmq.overview import GroupTraffic, Traffic

__all__ = ["Counted", "Sample", "Sampler", "Snapshot"]

log = logging.getLogger("rowmq")

EVERY_SECONDS = 2.0
KEPT_SECONDS = 900.0
IDLE_SECONDS = 30.0
SLOWLY_SECONDS = 10.0
"""How often workers, schedules and pipelines are looked at, which change less."""

SHARE_MAX = 0.05
"""How much of the time may be spent on looking."""

NAMES_MAX = 100
"""How many topics, and queues, are kept one by one."""

Clock = Callable[[], float]

N = TypeVar("N")


class Counted(NamedTuple):
    """What was counted of a topic or of a queue: what came in and went out, ever or lately."""

    came: int = 0
    went: int = 0
    waiting: int = 0
    in_flight: int = 0
    failed: int = 0
    oldest_seconds: float = 0.0

    def plus(self, other: "Counted") -> "Counted":
        """Both together, as old as the older."""
        return Counted(
            self.came + other.came,
            self.went + other.went,
            self.waiting + other.waiting,
            self.in_flight + other.in_flight,
            self.failed + other.failed,
            max(self.oldest_seconds, other.oldest_seconds),
        )


class Sample(NamedTuple):
    """One look: all together, and the busiest one by one."""

    at: float
    topics: Counted
    queues: Counted
    by_topic: Mapping[str, Counted]
    by_queue: Mapping[str, Counted]
    by_group: Mapping[tuple[str, str], Counted]


class Snapshot(NamedTuple):
    """The latest look, whole. `began` is the first that is still known, to see what has grown."""

    traffic: Traffic
    backlog: list[QueueBacklog]
    workers: list[WorkerInfo]
    schedules: list[ScheduleInfo]
    pipelines: Pipelines
    began: Traffic
    samples: tuple[Sample, ...]
    every: float

    def groups_of(self, topic: str) -> list[GroupTraffic]:
        """The groups of a topic."""
        return [group for group in self.traffic.groups if group.topic == topic]


class Sampler:
    """Looks now and then, for as long as somebody asks what it saw."""

    def __init__(self, *, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._samples: deque[Sample] = deque()
        self._traffics: deque[tuple[float, Traffic]] = deque()
        self._latest: Snapshot | None = None
        self._slow: tuple[float, Any] | None = None
        self._every = EVERY_SECONDS
        self._asked_at = 0.0
        self._begun_at = self._expired_at = -math.inf
        self._task: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()

    async def look(self, mq: AsyncRowMQ) -> Snapshot:
        """What was seen last; the first to ask waits for a look."""
        self._asked_at = self._clock()
        latest = self._latest
        fresh = self._asked_at - self._begun_at < 2 * self._every
        if latest is None or not fresh or self._begun_at < self._expired_at:
            latest = await self.sample(mq)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._keep_looking(mq), name="rowmq-sampler")
        return latest

    def expire(self) -> None:
        """What was seen is out of date: somebody has just changed it. The next one looks anew."""
        self._slow, self._expired_at = None, self._clock()

    async def close(self) -> None:
        """Stop looking. Who looks afterwards may be of another loop."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        self._lock = asyncio.Lock()

    async def sample(self, mq: AsyncRowMQ) -> Snapshot:
        """Look now. Of those who come while somebody does, one looks again, for all of them."""
        asked = self._clock()
        async with self._lock:
            if self._latest is not None and self._begun_at >= asked:
                return self._latest
            return await self._take(mq)

    async def _take(self, mq: AsyncRowMQ) -> Snapshot:
        begun = self._clock()
        traffic = await mq.traffic()
        backlog = await mq.backlog(up_to=COUNT_MAX)
        workers, schedules, pipelines = await self._look_slowly(mq, begun)
        now = self._clock()
        took = now - begun
        self._every, self._begun_at = max(EVERY_SECONDS, took / SHARE_MAX), begun
        self._samples.append(sample_of(now, traffic, backlog))
        # Of what has grown only the beginning is asked for: one a minute is enough.
        if not self._traffics or now - self._traffics[-1][0] >= 60:
            self._traffics.append((now, traffic))
        while self._samples[0].at < now - KEPT_SECONDS:
            self._samples.popleft()
        while self._traffics[0][0] < now - KEPT_SECONDS and len(self._traffics) > 1:
            self._traffics.popleft()
        self._latest = Snapshot(
            traffic,
            backlog,
            workers,
            schedules,
            pipelines,
            self._traffics[0][1],
            tuple(self._samples),
            self._every,
        )
        return self._latest

    async def _look_slowly(
        self, mq: AsyncRowMQ, now: float
    ) -> tuple[list[WorkerInfo], list[ScheduleInfo], Pipelines]:
        if self._slow is None or now - self._slow[0] >= SLOWLY_SECONDS:
            seen = (await mq.workers(), await mq.cron.list(), await mq.pipelines())
            self._slow = (now, seen)
        return self._slow[1]

    async def _keep_looking(self, mq: AsyncRowMQ) -> None:
        while self._clock() - self._asked_at < IDLE_SECONDS:
            await asyncio.sleep(self._every)
            try:
                await self.sample(mq)
            except RowMQError as error:
                # Whoever asks next is told; until then there is a gap.
                log.info("the dashboard could not look at the database: %s", error)
                return
            except Exception:
                log.exception("the dashboard could not look at the database")


def sample_of(at: float, traffic: Traffic, backlog: list[QueueBacklog]) -> Sample:
    """A look as it is kept: figures only."""
    topics = topics_of(traffic)
    queues = {queue.name: queue_counted(queue, traffic.at) for queue in backlog}
    groups = {(one.topic, one.group): group_counted(one, traffic.at) for one in traffic.groups}
    return Sample(
        at,
        total(topics.values()),
        total(queues.values()),
        busiest(topics),
        busiest(queues),
        busiest(groups),
    )


def topics_of(traffic: Traffic) -> dict[str, Counted]:
    """Each topic: what was published and acked, and how its groups do, all together."""
    found = {topic.topic: Counted(came=topic.published) for topic in traffic.topics}
    for group in traffic.groups:
        counted = group_counted(group, traffic.at)
        found[group.topic] = found.get(group.topic, Counted()).plus(counted)
    return found


def group_counted(group: GroupTraffic, now: datetime) -> Counted:
    """A group: what it acked ever, and what it has before it."""
    return Counted(
        went=group.acked,
        waiting=group.lag,
        in_flight=group.in_flight,
        failed=group.dead_letters,
        oldest_seconds=0.0 if group.oldest_at is None else age_of(group.oldest_at, now),
    )


def queue_counted(queue: QueueBacklog, now: datetime) -> Counted:
    """A queue; what came and went is that of the last minute."""
    return Counted(
        came=queue.put_lately,
        went=queue.completed_lately,
        waiting=queue.due,
        in_flight=queue.counts.get("processing", 0),
        failed=queue.failed_lately,
        oldest_seconds=0.0 if queue.oldest_due_at is None else age_of(queue.oldest_due_at, now),
    )


def age_of(moment: datetime, now: datetime) -> float:
    return max((now - moment).total_seconds(), 0.0)


def total(counts: Iterable[Counted]) -> Counted:
    """All of them together."""
    found = Counted()
    for counted in counts:
        found = found.plus(counted)
    return found


def busiest(counts: Mapping[N, Counted]) -> dict[N, Counted]:
    """The busiest, one by one."""
    if len(counts) <= NAMES_MAX:
        return dict(counts)
    chosen = sorted(counts, key=lambda name: (counts[name].waiting, counts[name].came))
    return {name: counts[name] for name in chosen[-NAMES_MAX:]}
