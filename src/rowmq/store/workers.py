"""Workers: who runs handlers, and what they run, for people to see. Nothing depends on it."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Literal

import msgspec

from rowmq.message import RunningInfo, SubscriberInfo, WorkerInfo
from rowmq.store.dialect import Dialect, as_text
from rowmq.store.statement import Operation, Statement
from rowmq.times import from_micros

__all__ = ["WorkerFacts", "Workers"]

FORGET_AFTER_US = 24 * 3600 * 1_000_000
"""How long a worker that has died is remembered."""

FORGET_BATCH = 100

SUBSCRIBERS_MAX = 1_000

OWNED_MAX = 10_000
"""How far the partitions of a subscriber are counted: there may be one for each key."""

COUNTED_AT_ONCE = 20
"""For how many subscribers at a time: no statement takes long."""


class Running(msgspec.Struct, frozen=True, kw_only=True):
    """A `RunningInfo`, as it is stored: for how long, since machines disagree about the time."""

    handler: str
    source: str
    id: str
    key: str | None
    attempt: int
    seconds: float
    progress: float | None = None
    note: str | None = None
    source_type: Literal["topic", "queue"] | None = None

    def seen_at(self, moment: datetime) -> RunningInfo:
        """What it is, if it was told at that time."""
        return RunningInfo(
            handler=self.handler,
            source=self.source,
            id=self.id,
            key=self.key,
            attempt=self.attempt,
            since=moment - timedelta(seconds=self.seconds),
            progress=self.progress,
            note=self.note,
            source_type=self.source_type,
        )


class WorkerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What does not change while a worker lives. A field that is added needs a default: workers of
    the version before are still at work, and read what this one writes.
    """

    app: str
    host: str
    pid: int
    version: str
    handlers: tuple[str, ...]


class Workers:
    """The operations on workers, for one dialect."""

    owned_sql = """
        SELECT x.leased_by, COUNT(*) FROM (
            SELECT o.leased_by FROM {offsets} o WHERE o.group_id = ? AND o.leased_by = ? LIMIT ?
        ) x GROUP BY x.leased_by"""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect

    def beat(
        self, name: str, facts: WorkerFacts, running: Sequence[Running], *, lease_us: int
    ) -> Operation[None]:
        """Be heard of, with what is run now."""
        yield from self.dialect.seize()
        told = msgspec.json.encode(running).decode()
        named = self.dialect.text(name)
        known = yield Statement("workers.find", self.dialect.sql(FIND), (named,))
        if known.rows:
            params: tuple[object, ...] = (lease_us, told, named)
            yield Statement("workers.beat", self.dialect.sql(BEAT), params)
        else:
            text = msgspec.json.encode(facts).decode()
            params = (named, lease_us, text, told)
            yield Statement("workers.enter", self.dialect.sql(ENTER), params)

    def leave(self, name: str) -> Operation[None]:
        """Be no more."""
        yield from self.dialect.seize()
        yield Statement("workers.leave", self.dialect.sql(LEAVE), (self.dialect.text(name),))

    def list_workers(self) -> Operation[list[WorkerInfo]]:
        """All that are known, the longest at work first."""
        found = yield Statement("workers.list", self.dialect.sql(LIST), sole=True)
        return [
            worker_of(as_text(name), times, as_text(facts), as_text(running))
            for name, *times, facts, running in found.rows
        ]

    def list_subscribers(self) -> Operation[list[SubscriberInfo]]:
        """Who has subscribed to what, by topic, and how many partitions each owns."""
        sql = self.dialect.sql(SUBSCRIBERS)
        found = yield Statement("workers.subscribers", sql, (SUBSCRIBERS_MAX,), sole=True)
        owned = yield from self._owned([(group_id, id) for id, group_id, *_ in found.rows])
        return [
            SubscriberInfo(
                topic=as_text(topic),
                group=as_text(group),
                name=as_text(name),
                partitions=owned.get(id, 0),
                seen_at=from_micros(heartbeat_at),
                alive=bool(alive),
            )
            for id, _, topic, group, name, heartbeat_at, alive in found.rows
        ]

    def _owned(self, subscribers: Sequence[tuple[int, int]]) -> Operation[dict[int, int]]:
        """How many partitions subscribers own, by their ids; given with their groups."""
        counts: dict[int, int] = {}
        for start in range(0, len(subscribers), COUNTED_AT_ONCE):
            run = subscribers[start : start + COUNTED_AT_ONCE]
            sql = self.dialect.sql(" UNION ALL ".join([self.owned_sql] * len(run)))
            params = [value for group_id, id in run for value in (group_id, id, OWNED_MAX)]
            counted = yield Statement("workers.owned", sql, params, sole=True)
            counts |= {id: int(count) for id, count in counted.rows}
        return counts

    def forget_dead(self) -> Operation[int]:
        """Delete what is left of workers that died long ago."""
        yield from self.dialect.seize()
        found = yield Statement(
            "workers.find_dead", self.dialect.sql(DEAD), (FORGET_AFTER_US, FORGET_BATCH)
        )
        for (name,) in found.rows:
            yield Statement("workers.forget", self.dialect.sql(LEAVE), (name,))
        return len(found.rows)


def worker_of(name: str, times: Sequence[int], facts: str, running: str) -> WorkerInfo:
    started_at, seen_at, expires_at, now = times
    known = msgspec.json.decode(facts, type=WorkerFacts)
    told = msgspec.json.decode(running, type=tuple[Running, ...])
    return WorkerInfo(
        name=name,
        app=known.app,
        host=known.host,
        pid=known.pid,
        version=known.version,
        handlers=known.handlers,
        started_at=from_micros(started_at),
        seen_at=from_micros(seen_at),
        alive=expires_at > now,
        running=tuple(one.seen_at(from_micros(seen_at)) for one in told),
    )


FIND = "SELECT name FROM {workers} WHERE name = ?"

BEAT = "UPDATE {workers} SET seen_at = {now}, expires_at = {now} + ?, running = ? WHERE name = ?"

ENTER = """
    INSERT INTO {workers} (name, started_at, seen_at, expires_at, facts, running)
    VALUES (?, {now}, {now}, {now} + ?, ?, ?)"""

LEAVE = "DELETE FROM {workers} WHERE name = ?"

LIST = """
    SELECT name, started_at, seen_at, expires_at, {now}, facts, running FROM {workers}
    ORDER BY started_at, name"""

SUBSCRIBERS = """
    SELECT s.id, s.group_id, g.topic, g.consumer_group, s.subscriber_name, s.heartbeat_at,
           CASE WHEN s.expires_at > {now} THEN 1 ELSE 0 END
    FROM {groups} g JOIN {subscribers} s ON s.group_id = g.id
    ORDER BY g.topic, g.consumer_group, s.id LIMIT ?"""

DEAD = "SELECT name FROM {workers} WHERE expires_at < {now} - ? ORDER BY name LIMIT ?"
