"""What the database says of topics, groups and queues, for metrics.

It is asked when somebody wants to know, and not again for some seconds, however many ask: each look
is a few statements. Whoever asks waits a little; if the database takes longer, what is known of the
process is told without it, so that an outage does not take the worker's own metrics with it.
"""

import asyncio
import concurrent.futures
import logging
import threading
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any, NamedTuple

from rowmq.errors import RowMQError
from rowmq.inspection import COUNT_MAX, QueueBacklog
from rowmq.overview import GroupTraffic, TopicTraffic, Traffic
from rowmq.telemetry import catalogue
from rowmq.telemetry.families import Gathering

__all__ = ["Figures", "Look", "OwnClient", "Seen", "look", "look_async"]

log = logging.getLogger("rowmq")

FRESH_SECONDS = 5.0
WAIT_SECONDS = 2.0
STALE_SECONDS = 60.0
"""What was seen so long ago is told no more."""

SHARE_MAX = 0.1
"""How much of the time may be spent on looking: where a look takes long, the next one is later."""

LATELY_SECONDS = 60

Scope = Callable[[str], bool]


class Seen(NamedTuple):
    """One look, and how long it took."""

    traffic: Traffic
    backlog: list[QueueBacklog]
    seconds: float


Look = concurrent.futures.Future[Seen | None]


def look(mq: Any) -> Seen | None:
    """Look, by a sync client; None if the database does not tell."""
    began = time.monotonic()
    try:
        traffic = mq.traffic()
        backlog = mq.backlog(up_to=COUNT_MAX, lately_seconds=LATELY_SECONDS)
    except RowMQError as error:
        log.info("metrics could not look at the database: %s", error)
        return None
    return Seen(traffic, backlog, time.monotonic() - began)


async def look_async(mq: Any) -> Seen | None:
    """Look, by an async client; None if the database does not tell."""
    began = time.monotonic()
    try:
        traffic = await mq.traffic()
        backlog = await mq.backlog(up_to=COUNT_MAX, lately_seconds=LATELY_SECONDS)
    except RowMQError as error:
        log.info("metrics could not look at the database: %s", error)
        return None
    return Seen(traffic, backlog, time.monotonic() - began)


class OwnClient:
    """Looks by a client of its own, in a thread, for a process that has none."""

    def __init__(self, open_client: Callable[[], Any]) -> None:
        self._open = open_client
        self._client: Any = None

    def begin(self) -> Look:
        """Begin a look."""
        looking = Look()
        looking.set_running_or_notify_cancel()
        threading.Thread(
            target=self._work, args=(looking,), name="rowmq-figures", daemon=True
        ).start()
        return looking

    def _work(self, looking: Look) -> None:
        seen: Seen | None = None
        try:
            if self._client is None:
                self._client = self._open()
            seen = look(self._client)
        except Exception as error:  # noqa: BLE001 - whatever it is, metrics are told without it
            log.info("metrics could not look at the database: %s", error)
        looking.set_result(seen)

    def close(self) -> None:
        """Let go of the client, if there is one."""
        if self._client is not None:
            self._client.close()


class Figures:
    """What was seen last. `begin` begins a look; it is called by one at a time."""

    def __init__(self, begin: Callable[[], Look]) -> None:
        self._begin = begin
        self._lock = threading.RLock()  # a look may be over as soon as it is begun
        self._looking: Look | None = None
        self._tried_at = float("-inf")
        self._seen: tuple[Seen, float] | None = None
        self._fresh_seconds = FRESH_SECONDS
        self._published: dict[str, int] = {}

    def wait(self) -> None:
        """Have something to tell that is fresh, if it can be had soon. In an event loop nobody
        waits, for it may be the one that is to look: then it is there for the next who asks.
        """
        looking = self._look()
        if looking is not None and not in_event_loop():
            concurrent.futures.wait([looking], WAIT_SECONDS)

    async def wait_async(self) -> None:
        """The same, in an event loop."""
        looking = self._look()
        if looking is not None:
            await asyncio.wait({asyncio.wrap_future(looking)}, timeout=WAIT_SECONDS)

    def close(self) -> None:
        """Look no more."""
        with self._lock:
            self._tried_at = float("inf")
            looking = self._looking
        if looking is not None:
            looking.cancel()

    def gather(
        self,
        gathering: Gathering,
        *,
        sees_topic: Scope = lambda _: True,
        sees_queue: Scope = lambda _: True,
    ) -> None:
        """Tell what was seen, if it was lately: of these topics and queues."""
        seen, at = self._seen or (None, 0.0)
        if seen is None or time.monotonic() - at > STALE_SECONDS:
            gathering.add(catalogue.ANSWERS, (), 0)
            return
        gathering.add(catalogue.ANSWERS, (), 1)
        gathering.add(catalogue.LOOK_SECONDS, (), seen.seconds)
        # The busiest first: if there are more than can be told one by one, these are.
        for topic in sorted(seen.traffic.topics, key=lambda topic: -topic.published):
            if sees_topic(topic.topic):
                gather_topic(gathering, topic, self._published.get(topic.topic))
        for group in sorted(seen.traffic.groups, key=lambda group: -(group.acked + group.lag)):
            if sees_topic(group.topic):
                gather_group(gathering, group, seen.traffic.at)
        for queue in sorted(seen.backlog, key=lambda queue: -sum(queue.counts.values())):
            if sees_queue(queue.name):
                gather_queue(gathering, queue, seen.traffic.at)

    def _look(self) -> Look | None:
        """The look that is under way, if what is known is not fresh."""
        with self._lock:
            if self._looking is None and time.monotonic() - self._tried_at >= self._fresh_seconds:
                self._tried_at = time.monotonic()
                self._looking = self._begin()
                self._looking.add_done_callback(self._looked)
            return self._looking

    def _looked(self, looking: Look) -> None:
        with self._lock:
            self._looking = None
            failed = looking.cancelled() or looking.exception() is not None
            seen = None if failed else looking.result()
            self._seen = None if seen is None else (seen, time.monotonic())
            if seen is not None:
                wait = max(FRESH_SECONDS, seen.seconds / SHARE_MAX)
                self._fresh_seconds = min(wait, STALE_SECONDS / 2)
                whole = (topic for topic in seen.traffic.topics if not topic.capped)
                self._published |= {topic.topic: topic.published for topic in whole}


def in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def gather_topic(gathering: Gathering, topic: TopicTraffic, published: int | None) -> None:
    """Tell of a topic. What was ever published is what a look at all of it has said last: of a part
    of the partitions it would fall, and a counter that falls is taken for one that began anew.
    """
    labels = (topic.topic,)
    if published is not None:
        gathering.add(catalogue.PUBLISHED, labels, published)
    gathering.most(catalogue.TOPIC_CAPPED, labels, topic.capped)
    gathering.add(catalogue.MESSAGES, labels, topic.messages)
    gathering.add(catalogue.PARTITIONS, labels, topic.partitions)


def gather_group(gathering: Gathering, group: GroupTraffic, now: datetime) -> None:
    """Tell of a group."""
    labels = (group.topic, group.group)
    gathering.add(catalogue.ACKED, labels, group.acked)
    gathering.add(catalogue.LAG, labels, group.lag)
    gathering.most(catalogue.GROUP_CAPPED, labels, group.capped or group.oldest_capped)
    gathering.add(catalogue.IN_FLIGHT, labels, group.in_flight)
    gathering.add(catalogue.SUBSCRIBERS, labels, group.subscribers)
    gathering.add(catalogue.EXPIRED, labels, group.expired)
    gathering.add(catalogue.DEAD_LETTERS, labels, group.dead_letters)
    gathering.most(catalogue.OLDEST_SECONDS, labels, age_of(group.oldest_at, now))


def gather_queue(gathering: Gathering, queue: QueueBacklog, now: datetime) -> None:
    """Tell of a queue."""
    labels = (queue.name,)
    for state, count in queue.counts.items():
        gathering.add(catalogue.JOBS, (*labels, state), count)
    gathering.most(catalogue.QUEUE_CAPPED, labels, queue.capped)
    gathering.add(catalogue.QUEUE_DUE, labels, queue.due)
    gathering.most(catalogue.QUEUE_OLDEST_SECONDS, labels, age_of(queue.oldest_due_at, now))
    gathering.add(catalogue.QUEUE_LOCKS, labels, queue.locks)
    gathering.most(catalogue.QUEUE_PAUSED, labels, queue.paused)
    gathering.add(catalogue.QUEUE_PUT, labels, queue.put_lately / LATELY_SECONDS)
    for state, count in (
        ("completed", queue.completed_lately),
        ("failed", queue.failed_lately),
    ):
        gathering.add(catalogue.QUEUE_FINISHED, (*labels, state), count / LATELY_SECONDS)


def age_of(moment: datetime | None, now: datetime) -> float:
    return 0.0 if moment is None else max((now - moment).total_seconds(), 0.0)
