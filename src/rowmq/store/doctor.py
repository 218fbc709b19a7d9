"""What `doctor` looks at: figures only. What they mean is decided in `rowmq.doctor`.

Every look is cheap on tables of any size: it reads counters, the ends of indexes, the catalogue, or
a part whose size is bounded. What is the same on every database is here; the settings, locks and
sizes of each are in `doctor_postgres`, `doctor_mysql` and `doctor_sqlite`.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from rowmq.likeness import pattern_of
from rowmq.message import WorkerInfo
from rowmq.store.dialect import TABLES, Dialect, as_text
from rowmq.store.doctor_facts import (
    Catalogue,
    Failures,
    GroupState,
    Identity,
    IndexState,
    LeftHold,
    LockState,
    Payload,
    QueueState,
    ScheduleState,
    SchemaState,
    StaleSubscriber,
    StuckJob,
)
from rowmq.store.doctor_schema import blueprint_of
from rowmq.store.groups import Readers
from rowmq.store.schema import Schema
from rowmq.store.sorting import ERROR_BYTES, beginning
from rowmq.store.statement import Operation, Result, Statement
from rowmq.store.sweeping import Member
from rowmq.store.traffic import Counting, Place
from rowmq.store.workers import LIST as WORKERS
from rowmq.store.workers import worker_of

__all__ = ["COUNT_MAX", "ROWS_MAX", "SAMPLE", "Examination"]

SAMPLE = 1_000
"""How many of the newest failures are read, and how many jobs at the head of a lane."""

COUNT_MAX = 10_000
"""How far anything is counted."""

ROWS_MAX = 500
"""How many groups, queues, topics, schedules and so on are looked at."""

LANES_MAX = 5_000
"""How many lanes: a queue has one for each kind and priority."""

LOCKS_MAX = 100
"""How many locks: each may be of many jobs."""


class Examination:
    """What can be asked of every database."""

    def __init__(self, dialect: Dialect, schema: Schema) -> None:
        self.dialect = dialect
        self.schema = schema

    # --- how to ask -------------------------------------------------------------------------------

    def ask(self, name: str, template: str, params: Sequence[Any] = ()) -> Operation[Result]:
        """Run one statement, which is a transaction by itself: it keeps nobody waiting."""
        sql = self.dialect.sql(template)
        return (yield Statement(f"doctor.{name}", sql, params, sole=True))

    def tables(self) -> list[str]:
        """The names of all tables."""
        return [f"{self.dialect.prefix}{table}" for table in TABLES]

    # --- the server and its tables ----------------------------------------------------------------

    def clock(self) -> Operation[int]:
        """The database's clock, in microseconds."""
        result = yield from self.ask("clock", "SELECT {now}")
        return int(result.rows[0][0])

    def identity(self) -> Operation[Identity]:
        """Which server this is."""
        raise NotImplementedError

    def version(self) -> Operation[SchemaState]:
        """The version of the tables."""
        version = yield from self.schema.version()
        error = yield from self.schema.check()
        return SchemaState(version, self.schema.migrations()[-1].version, error)

    def catalogue(self) -> Operation[Catalogue]:
        """What there is of the tables that the database's version should have."""
        version = yield from self.schema.version()
        known = [m for m in self.schema.migrations() if m.version <= version]
        columns: dict[str, set[str]] = {}
        for table, column in (yield from self.columns()):
            columns.setdefault(table, set()).add(column)
        return Catalogue(blueprint_of(known), columns, (yield from self.indexes()))

    def columns(self) -> Operation[list[tuple[str, str]]]:
        """Every table and column of ours that is there."""
        raise NotImplementedError

    def indexes(self) -> Operation[list[IndexState]]:
        """Every index on a table of ours."""
        raise NotImplementedError

    # --- topics -----------------------------------------------------------------------------------

    def groups(self) -> Operation[list[GroupState]]:
        """How far each group is behind."""
        found = (yield from self.ask("groups", GROUPS, (ROWS_MAX,))).rows
        members = [Member(id, as_text(topic)) for id, topic, *_ in found]
        places = yield from Counting(self.dialect).standings(members)
        return [
            group_state(member.topic, facts, places[member.id])
            for member, (_, _, *facts) in zip(members, found, strict=True)
        ]

    def letters(self) -> Operation[list[Failures]]:
        """The dead letters, by topic and group."""
        found: list[Failures] = []
        topic: Any = self.dialect.text("")
        for _ in range(ROWS_MAX):
            result = yield from self.ask("letter_topic", LETTER_TOPIC, (topic,))
            topic = result.rows[0][0]
            if topic is None:
                break
            rows = (yield from self.ask("letters", LETTERS, (topic, SAMPLE))).rows
            count, oldest = (
                yield from self.ask("count_letters", COUNT_LETTERS, (topic, topic))
            ).rows[0]
            found += letters_of(as_text(topic), [tuple(row) for row in rows], int(count), oldest)
        return found

    # --- queues -----------------------------------------------------------------------------------

    def failed(self) -> Operation[list[Failures]]:
        """The failed jobs, by queue."""
        found = []
        queues = yield from self.ask("failed_queues", FAILED_QUEUES, (ROWS_MAX,))
        for id, queue, oldest, now in queues:
            if oldest is None:
                continue
            rows = (yield from self.ask("failed", FAILED, (id, SAMPLE))).rows
            count = (yield from self.ask("count_failed", COUNT_FAILED, (id,))).rows[0][0]
            newest = max((row[0] for row in rows), default=oldest)
            ages = (seconds(now - oldest), seconds(now - newest))
            errors, exact = frequent(row[1] for row in rows), count < COUNT_MAX
            found.append(Failures(as_text(queue), None, int(count), *ages, errors, exact))
        return found

    def queues(self) -> Operation[list[QueueState]]:
        """Since when the first job of each queue is due."""
        due: dict[int, int] = {}
        for _, queue_id, first in (yield from self.ask("lanes", LANES, (LANES_MAX,))):
            if first is not None:
                due[queue_id] = min(first, due.get(queue_id, first))
        claimed = yield from self._claimed_queues()
        states = []
        for id, queue, paused, limited, done, failed, now in (
            yield from self.ask("queues", QUEUES, (ROWS_MAX,))
        ):
            last = max((at for at in (done, failed) if at is not None), default=None)
            state = QueueState(
                queue=as_text(queue),
                paused=bool(paused),
                limited=bool(limited),
                claimed=as_text(queue) in claimed,
                due_seconds=seconds(now - due[id]) if due.get(id, now) < now else None,
                finished_seconds=None if last is None else seconds(now - last),
            )
            states.append(state)
        return states

    def stale_subscribers(self) -> Operation[list[StaleSubscriber]]:
        """Subscribers whose lease has run out."""
        result = yield from self.ask("stale_subscribers", STALE, (ROWS_MAX,))
        return [
            StaleSubscriber(as_text(t), as_text(g), as_text(name), seconds(us), int(owned))
            for t, g, name, us, owned in result
        ]

    def expired_locks(self) -> Operation[list[LockState]]:
        """Locks of jobs that have run out and were not given back."""
        names = yield from self._lane_names()
        result = yield from self.ask("expired_locks", EXPIRED_LOCKS, (LOCKS_MAX,))
        states = []
        for owner, us, claimed, settled in result:
            marks = as_text(settled)
            entries = [
                e
                for e, mark in zip(self.dialect.unpack(claimed), marks, strict=False)
                if mark == "0"
            ]
            queues = sorted({names.get(entry[1], "?") for entry in entries})
            states.append(LockState(as_text(owner), tuple(queues), len(entries), seconds(us)))
        return states

    def stuck_jobs(self, *, deliveries: int) -> Operation[list[StuckJob]]:
        """Jobs near the head of their lanes that were handed out so often without being settled."""
        names = yield from self._lane_names()
        found: list[StuckJob] = []
        for id, _, first in (yield from self.ask("lanes", LANES, (LANES_MAX,))):
            if first is not None:
                params = (id, SAMPLE, deliveries)
                rows = yield from self.ask("stuck_jobs", STUCK, params)
                found += [StuckJob(names.get(id, "?"), *row) for row in rows]
        return found

    def left_holds(self) -> Operation[list[LeftHold]]:
        """Notes of jobs that were begun in a transaction."""
        result = yield from self.ask("left_holds", HOLDS, (ROWS_MAX,))
        return [LeftHold(id, starts, seconds(us)) for id, starts, us in result]

    def _claimed_queues(self) -> Operation[set[str]]:
        """The queues of the locks that last longest."""
        names = yield from self._lane_names()
        result = yield from self.ask("live_locks", LIVE_LOCKS, (LOCKS_MAX,))
        lanes = {entry[1] for (claimed,) in result for entry in self.dialect.unpack(claimed)}
        return {names[id] for id in lanes if id in names}

    def _lane_names(self) -> Operation[dict[int, str]]:
        result = yield from self.ask("lane_names", LANE_NAMES, (LANES_MAX,))
        return {id: as_text(queue) for id, queue in result}

    # --- schedules and workers --------------------------------------------------------------------

    def schedules(self) -> Operation[list[ScheduleState]]:
        """For how long each schedule has been due."""
        result = yield from self.ask("schedules", SCHEDULES, (ROWS_MAX,))
        return [
            ScheduleState(
                name=as_text(name),
                paused=bool(paused),
                due_seconds=None if at is None or at > now else seconds(now - at),
                function=msgspec.json.decode(as_text(spec), type=Payload).function,
            )
            for name, paused, at, spec, now in result
        ]

    def workers(self) -> Operation[list[WorkerInfo]]:
        """Who runs handlers, or did until lately."""
        found = yield from self.ask("workers", WORKERS)
        return [
            worker_of(as_text(name), times, as_text(facts), as_text(running))
            for name, *times, facts, running in found
        ]

    def largest_payload(self) -> Operation[int | None]:
        """The largest payload that the settings of any topic or queue allow."""
        result = yield from self.ask("largest_payload", LARGEST)
        return max((int(row[0]) for row in result if row[0] is not None), default=None)


def seconds(micros: Any) -> float:
    """Seconds of microseconds, which a database may give in any kind of number."""
    return int(micros) / 1_000_000


def group_state(topic: str, facts: Sequence[Any], place: Place) -> GroupState:
    group, expired, subscribers, keeps_books, now = facts
    return GroupState(
        topic=topic,
        group=as_text(group),
        subscribers=int(subscribers),
        expired=int(expired),
        partitions=place.behind.partitions,
        behind=place.behind.behind,
        lag=place.behind.lag,
        oldest_seconds=None if place.oldest is None else max(0.0, seconds(now - place.oldest)),
        keeps_books=bool(keeps_books),
        capped=place.capped,
        oldest_capped=place.oldest_capped,
    )


def frequent(errors: Iterable[Any], most: int = 3) -> list[tuple[str, int]]:
    """What the most frequent kinds of errors have in common, and how many each has."""
    kinds = Counter(pattern_of(beginning(error or "")) or "(no error given)" for error in errors)
    return kinds.most_common(most)


def letters_of(
    topic: str, rows: Sequence[tuple[Any, ...]], count: int, oldest: int
) -> list[Failures]:
    """The dead letters of a topic by group; of many, each group's part of the newest ones."""
    groups: dict[str, list[tuple[Any, ...]]] = {}
    for row in rows:
        groups.setdefault(as_text(row[0]), []).append(row)
    found = []
    for group, own in groups.items():
        now = own[0][3]
        ages = [seconds(now - row[1]) for row in own]
        alone = len(groups) == 1
        oldest_seconds = seconds(now - oldest) if alone else max(ages)
        errors = frequent(row[2] for row in own)
        number, exact = (count, count < COUNT_MAX) if alone else (len(own), count <= len(rows))
        found.append(Failures(topic, group, number, oldest_seconds, min(ages), errors, exact))
    return found


GROUPS = f"""
    SELECT g.id, g.topic, g.consumer_group, g.expired,
           (SELECT COUNT(*) FROM {{subscribers}} s
            WHERE s.group_id = g.id AND s.expires_at > {{now}}),
           CASE WHEN g.read_by = {int(Readers.BOOKKEEPER)} THEN 1 ELSE 0 END, {{now}}
    FROM {{groups}} g ORDER BY g.id LIMIT ?"""

# The topics one after the other, each by a step in the index.
LETTER_TOPIC = "SELECT MIN(origin_topic) FROM {dead_letters} WHERE origin_topic > ?"

LETTERS = f"""
    SELECT consumer_group, failed_at, SUBSTR(error, 1, {ERROR_BYTES}), {{now}} FROM {{dead_letters}}
    WHERE origin_topic = ?
    ORDER BY origin_topic DESC, failed_at DESC, partition_id DESC, message_offset DESC LIMIT ?"""

COUNT_LETTERS = f"""
    SELECT (SELECT COUNT(*) FROM (
                SELECT 1 AS one FROM {{dead_letters}} WHERE origin_topic = ? LIMIT {COUNT_MAX}) c),
           (SELECT MIN(failed_at) FROM {{dead_letters}} WHERE origin_topic = ?)"""

# The first of an order, not MIN: for that MariaDB reads all rows of a queue.
FAILED_QUEUES = """
    SELECT q.id, q.queue,
           (SELECT f.finished_at FROM {failed} f WHERE f.queue_id = q.id
            ORDER BY f.queue_id, f.finished_at, f.job_id LIMIT 1), {now}
    FROM {queues} q ORDER BY q.id LIMIT ?"""

FAILED = f"""
    SELECT finished_at, SUBSTR(error, 1, {ERROR_BYTES}) FROM {{failed}}
    WHERE queue_id = ? ORDER BY queue_id DESC, finished_at DESC, job_id DESC LIMIT ?"""

COUNT_FAILED = f"""
    SELECT COUNT(*) FROM (
        SELECT 1 AS one FROM {{failed}} WHERE queue_id = ? LIMIT {COUNT_MAX}) c"""

QUEUES = """
    SELECT q.id, q.queue, q.paused,
           CASE WHEN q.max_in_flight IS NULL AND q.rate IS NULL THEN 0 ELSE 1 END,
           (SELECT c.finished_at FROM {completed} c WHERE c.queue_id = q.id
            ORDER BY c.queue_id DESC, c.finished_at DESC, c.job_id DESC LIMIT 1),
           (SELECT f.finished_at FROM {failed} f WHERE f.queue_id = q.id
            ORDER BY f.queue_id DESC, f.finished_at DESC, f.job_id DESC LIMIT 1), {now}
    FROM {queues} q ORDER BY q.id LIMIT ?"""

LANES = """
    SELECT l.id, l.queue_id,
           (SELECT r.due_at FROM {ready} r WHERE r.lane_id = l.id
            ORDER BY r.lane_id, r.due_at, r.job_id LIMIT 1)
    FROM {lanes} l ORDER BY l.id LIMIT ?"""

LANE_NAMES = """
    SELECT l.id, q.queue FROM {lanes} l JOIN {queues} q ON q.id = l.queue_id
    ORDER BY l.id LIMIT ?"""

STALE = """
    SELECT g.topic, g.consumer_group, s.subscriber_name, {now} - s.expires_at,
           (SELECT COUNT(*) FROM {offsets} o
            WHERE o.group_id = s.group_id AND o.leased_by = s.id)
    FROM {subscribers} s JOIN {groups} g ON g.id = s.group_id
    WHERE s.expires_at <= {now} ORDER BY s.expires_at LIMIT ?"""

EXPIRED_LOCKS = """
    SELECT owner, {now} - locked_until, claimed, settled FROM {locks}
    WHERE locked_until <= (SELECT {now}) ORDER BY locked_until LIMIT ?"""

LIVE_LOCKS = """
    SELECT claimed FROM {locks}
    WHERE locked_until > (SELECT {now}) ORDER BY locked_until DESC LIMIT ?"""

STUCK = """
    SELECT r.job_id, r.deliveries, r.attempts
    FROM (
        SELECT job_id, deliveries, attempts FROM {ready} WHERE lane_id = ?
        ORDER BY lane_id, due_at, job_id LIMIT ?
    ) r
    WHERE r.deliveries - r.attempts >= ? ORDER BY r.deliveries DESC, r.job_id LIMIT 100"""

HOLDS = "SELECT job_id, starts, {now} - started_at FROM {holds} ORDER BY job_id LIMIT ?"

# By the index, those that are due first.
SCHEDULES = """
    SELECT name, paused, next_at, spec, {now} FROM {schedules}
    ORDER BY paused, next_at, name LIMIT ?"""

LARGEST = """
    SELECT MAX(max_payload_bytes) FROM {topics}
    UNION ALL SELECT MAX(max_payload_bytes) FROM {queues}"""
