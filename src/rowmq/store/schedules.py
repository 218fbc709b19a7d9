"""Schedules: install, fire, pause and list, as operations.

A schedule is a row with the time at which it fires next. To fire is to move that time on, which
only one of many can do: whoever finds it as it was a moment ago. What the tick makes, a job or a
message, is written in the same transaction.

    upcoming ─► which are due? ─► load ─► what to make, in memory ─► fire: advance ─► ticks ─► put
                                                                      │ somebody else was first
                                                                      └─► nothing

The row of the tick is a second guard: if the database's clock is set back, or a schedule is removed
and installed again, what was made is not made again. Each transaction fires one schedule and waits
for no other, so that any number of those who fire wait for each other, but never in a circle.
"""

from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from difflib import get_close_matches
from typing import Any, NamedTuple

import msgspec

from rowmq.codec import decode, decode_headers
from rowmq.errors import PayloadTooLarge, UnknownSchedule
from rowmq.message import Outcome, ScheduleInfo
from rowmq.schedule import Period, Spec, describe, expression_of, next_after
from rowmq.store.dialect import as_text
from rowmq.store.entries import Entry
from rowmq.store.jobs import Jobs
from rowmq.store.postings import Posting
from rowmq.store.statement import Operation, Row, Statement
from rowmq.store.ticks import Ticks
from rowmq.store.topics import Topics, limit_of
from rowmq.times import from_micros

__all__ = ["Firing", "Made", "Schedule", "Schedules", "Sees", "Upcoming"]

Made = Posting | Entry
"""What a tick makes: a job, or a message."""

Sees = Callable[[str | None, str | None], bool]
"""Whether somebody may have to do with schedules that feed a queue, or a topic."""

NAMES_MAX = 10_000
"""How many names are looked through for one that is like an unknown one."""


class Upcoming(NamedTuple):
    """When a schedule fires next."""

    next_at: int
    name: str


class Schedule(NamedTuple):
    """A schedule as its row has it."""

    name: str
    config_hash: str
    spec: Spec
    paused: bool
    next_at: int | None
    last_at: int | None
    created_at: int
    revision: int
    now: int
    """The time at which it was read, by the database's clock."""


class Firing(NamedTuple):
    """A schedule that is due, when it fires next, and what its ticks make, by their times."""

    schedule: Schedule
    next_at: int | None
    ticks: Sequence[tuple[int, Made]]


class Schedules:
    """The operations on schedules, for one dialect."""

    def __init__(self, jobs: Jobs, topics: Topics, ticks: Ticks) -> None:
        self.jobs = jobs
        self.queues = jobs.queues
        self.topics = topics
        self.ticks = ticks
        self.dialect = jobs.dialect

    # --- install, pause, remove -------------------------------------------------------------------

    def install(
        self,
        name: str,
        spec: Spec,
        revision: int,
        *,
        memo: list[Outcome],
        sees: Sees | None = None,
    ) -> Operation[Outcome]:
        """Have a schedule be as it is given. Whoever does not see the one that there is does not
        replace it.

        `revision` is a new number, by which a repeat knows that it was committed before; what it
        came to is noted in `memo`.
        """
        yield from self.dialect.seize()
        yield from self._refuse_oversized(spec)
        now = yield from self.dialect.clock("schedules.now")
        config_hash, text = spec.config_hash, msgspec.json.encode(spec).decode()
        row = (name, config_hash, text, next_after(spec.timing, now), revision, now)
        # Made first and read afterwards: to lock a row that is missing may lock a whole gap.
        ending = self.dialect.unless_there("revision")
        yield from self.queues.insert("schedules.create", "{schedules}", COLUMNS, [row], ending)
        found = yield from self._lock(name, sees)
        outcome = Outcome.UPDATED
        if found.revision == revision:
            outcome = memo[0] if memo else Outcome.CREATED
        elif found.config_hash == config_hash:
            outcome = Outcome.IGNORED
        else:
            next_at = following(found, spec)
            values = (self.dialect.text(config_hash), self.dialect.text(text), next_at, revision)
            yield self._statement("schedules.change", CHANGE, name, *values)
        memo[:] = [outcome]
        return outcome

    def _refuse_oversized(self, spec: Spec) -> Operation[None]:
        """Raise for a payload that would be refused whenever the schedule fires."""
        template = QUEUE_LIMIT if spec.topic is None else TOPIC_LIMIT
        target = spec.queue if spec.topic is None else spec.topic
        found = yield self._statement("schedules.limit", template, str(target))
        limit = limit_of(found.rows[0][0] if found.rows else None)
        if len(spec.data) > limit:
            kind = "queue" if spec.topic is None else "topic"
            raise PayloadTooLarge(
                f"a payload of {len(spec.data):,} bytes is over the limit of {kind} {target!r}, "
                f"{limit:,} bytes; raise its max_payload_bytes, or store the data elsewhere"
            )

    def pause(self, name: str, *, sees: Sees | None = None) -> Operation[None]:
        """Let a schedule make no ticks."""
        yield from self.dialect.seize()
        yield from self._lock(name, sees)
        yield self._statement("schedules.pause", PAUSE, name)

    def resume(self, name: str, *, sees: Sees | None = None) -> Operation[None]:
        """Let a paused schedule make ticks again, from now on."""
        yield from self.dialect.seize()
        found = yield from self._lock(name, sees)
        if found.paused:
            next_at = next_after(found.spec.timing, found.now)
            yield self._statement("schedules.resume", RESUME, name, next_at)

    def remove(
        self, name: str, *, again: bool = False, sees: Sees | None = None
    ) -> Operation[bool]:
        """Delete a schedule; whether there was one. What its ticks have made stays."""
        yield from self.dialect.seize()
        found = yield self._statement("schedules.find", f"{LOAD} {{for_update}}", name)
        if not found.rows:
            return again  # then it was this one that deleted it
        seen(schedule_of(found.rows[0]), sees)
        yield self._statement("schedules.remove", REMOVE, name)
        return True

    def _lock(self, name: str, sees: Sees | None) -> Operation[Schedule]:
        found = yield self._statement("schedules.lock", f"{LOAD} {{for_update}}", name)
        if not found.rows:
            names = yield Statement("schedules.names", self.dialect.sql(NAMES), (NAMES_MAX,))
            raise unknown(name, [] if sees else [as_text(known) for (known,) in names])
        return seen(schedule_of(found.rows[0]), sees)

    # --- look -------------------------------------------------------------------------------------

    def upcoming(
        self, limit: int, after: Upcoming | None = None
    ) -> Operation[tuple[list[Upcoming], int]]:
        """Those that fire next, the first ones first, and the time; from after one on."""
        params: tuple[Any, ...] = ()
        template = UPCOMING.replace("<after>", "")
        if after is not None:
            template = UPCOMING.replace("<after>", AFTER)
            params = (after.next_at, after.next_at, self.dialect.text(after.name))
        sql = self.dialect.sql(template)
        found = yield Statement("schedules.upcoming", sql, (*params, limit), sole=True)
        rows = [Upcoming(next_at, as_text(name)) for name, next_at, _ in found]
        return rows, int(found.rows[0][2]) if found.rows else 0

    def load(self, name: str, *, sees: Sees | None = None) -> Operation[Schedule]:
        """A schedule; raises `UnknownSchedule`."""
        found = yield self._statement("schedules.load", LOAD, name, sole=True)
        if found.rows:
            return seen(schedule_of(found.rows[0]), sees)
        names = yield Statement("schedules.names", self.dialect.sql(NAMES), (NAMES_MAX,), sole=True)
        raise unknown(name, [] if sees else [as_text(known) for (known,) in names])

    def list_schedules(self) -> Operation[list[ScheduleInfo]]:
        """Every schedule, by name."""
        found = yield Statement("schedules.list", self.dialect.sql(LIST), sole=True)
        return [info_of(schedule_of(row)) for row in found]

    def set_right(self) -> Operation[int]:
        """Have schedules fire from now on that fired in what is now the future: the clock of the
        database was wrong, and was set right. What was made too early is not made again.
        """
        found = yield Statement("schedules.ahead", self.dialect.sql(AHEAD))
        moved = 0
        for schedule in map(schedule_of, found):
            next_at = next_after(schedule.spec.timing, schedule.now)
            planned = schedule.next_at
            if planned is not None and next_at is not None and planned > next_at:
                as_it_was = (self.dialect.text(schedule.config_hash), schedule.next_at)
                yield self._statement(
                    "schedules.set_right", MOVE, schedule.name, next_at, then=as_it_was
                )
                moved += 1
        return moved

    # --- fire -------------------------------------------------------------------------------------

    def fire(
        self, firing: Firing, ids: Sequence[int | None], *, notify: Collection[str] = ()
    ) -> Operation[int | None]:
        """Make the ticks of a schedule that is as it was when it was loaded; how many. None if it
        is not so any more, or if somebody has its row.

        Whoever does so second finds that its time has moved on, and so does a repeat.
        """
        yield from self.dialect.seize()
        schedule = firing.schedule
        as_it_was = (self.dialect.text(schedule.config_hash), schedule.next_at)
        found = yield self._statement("schedules.claim", CLAIM, schedule.name, then=as_it_was)
        if not found.rows:
            return None
        last_at = max((fire_at for fire_at, _ in firing.ticks), default=schedule.last_at)
        yield self._statement("schedules.advance", ADVANCE, schedule.name, firing.next_at, last_at)
        # From here on nobody else makes ticks of this schedule, until the commit.
        fires = {at: id for (at, _), id in zip(firing.ticks, ids, strict=True)}
        fresh = yield from self.ticks.take(schedule.name, schedule.config_hash, fires, schedule.now)
        yield from self._make(
            [(made, fires[at]) for at, made in firing.ticks if at in fresh], notify
        )
        return len(fresh)

    def _make(
        self, made: Sequence[tuple[Made, int | None]], notify: Collection[str]
    ) -> Operation[None]:
        """Put jobs, or publish messages."""
        postings = {id: item for item, id in made if isinstance(item, Posting) and id is not None}
        if postings:
            yield from self.jobs.put(list(postings.values()), list(postings), notify=notify)
        entries = [item for item, _ in made if isinstance(item, Entry)]
        if entries:
            # Not alone: what comes before is in the same transaction.
            yield from self.topics.publish(entries, alone=False, notify=notify)

    def _statement(
        self,
        name: str,
        template: str,
        schedule: str,
        *values: Any,
        then: Any = (),
        sole: bool = False,
    ) -> Statement:
        """A statement about one schedule, or whatever else is named so."""
        params = (*values, self.dialect.text(schedule), *then)
        return Statement(name, self.dialect.sql(template), params, sole=sole)


def following(found: Schedule, spec: Spec) -> int | None:
    """When a schedule fires next that gets another configuration.

    Of what was missed so far, a change of anything but the times takes nothing away; nor does a
    change of the times, if both name the tick that has just become due.
    """
    due = found.next_at
    if found.spec.timing == spec.timing:
        return due
    fresh = due is not None and found.now - spec.grace_us <= due <= found.now
    if due is not None and fresh and not found.paused and next_after(spec.timing, due - 1) == due:
        return due
    return next_after(spec.timing, found.now)


def schedule_of(row: Row) -> Schedule:
    name, config_hash, spec, paused, *times = row
    decoded = msgspec.json.decode(as_text(spec), type=Spec)
    return Schedule(as_text(name), as_text(config_hash), decoded, bool(paused), *times)


def info_of(schedule: Schedule) -> ScheduleInfo:
    """A schedule as it is shown to people."""
    spec = schedule.spec
    timing = spec.timing
    return ScheduleInfo(
        name=schedule.name,
        kind=str(timing.__struct_config__.tag),
        expression=expression_of(timing),
        description=describe(timing),
        tz="UTC" if isinstance(timing, Period) else timing.tz,
        queue=spec.queue,
        topic=spec.topic,
        key=spec.key,
        payload=None if spec.function else decode(spec.data, spec.encoding),
        function=spec.function,
        headers=decode_headers(spec.headers),
        priority=spec.priority,
        catch_up=spec.catch_up,
        grace=timedelta(microseconds=spec.grace_us),
        paused=schedule.paused,
        next_at=None if schedule.next_at is None else from_micros(schedule.next_at),
        last_at=None if schedule.last_at is None else from_micros(schedule.last_at),
        config_hash=schedule.config_hash,
        created_at=from_micros(schedule.created_at),
    )


def seen(schedule: Schedule, sees: Sees | None) -> Schedule:
    """A schedule, if it is seen. To who does not see it, there is none."""
    if sees is not None and not sees(schedule.spec.queue, schedule.spec.topic):
        raise unknown(schedule.name, [])
    return schedule


def unknown(name: str, known: Sequence[str]) -> UnknownSchedule:
    near = get_close_matches(name, known, n=3)
    hint = f"did you mean {', '.join(map(repr, near))}?" if near else "cron.list() shows all"
    return UnknownSchedule(f"there is no schedule {name!r}; {hint}")


COLUMNS = {
    "name": "text",
    "config_hash": "text",
    "spec": "text",
    "next_at": "bigint",
    "revision": "bigint",
    "created_at": "bigint",
}

_SELECT = """
    SELECT name, config_hash, spec, paused, next_at, last_at, created_at, revision, {now}
    FROM {schedules}"""

LOAD = _SELECT + " WHERE name = ?"

LIST = _SELECT + " ORDER BY name"

AHEAD = _SELECT + " WHERE paused = 0 AND COALESCE(last_at, created_at) > {now}"

MOVE = """
    UPDATE {schedules} SET next_at = ?, last_at = NULL
    WHERE name = ? AND config_hash = ? AND next_at = ?"""

NAMES = "SELECT name FROM {schedules} ORDER BY name LIMIT ?"

# The time is compared in Python: an index cannot be searched by a clock that moves meanwhile.
UPCOMING = """
    SELECT name, next_at, {now} FROM {schedules}
    WHERE paused = 0 AND next_at IS NOT NULL <after> ORDER BY next_at, name LIMIT ?"""

AFTER = "AND (next_at > ? OR (next_at = ? AND name > ?))"

CHANGE = """
    UPDATE {schedules} SET config_hash = ?, spec = ?, next_at = ?, revision = ? WHERE name = ?"""

PAUSE = "UPDATE {schedules} SET paused = 1 WHERE name = ?"

RESUME = "UPDATE {schedules} SET paused = 0, next_at = ? WHERE name = ?"

REMOVE = "DELETE FROM {schedules} WHERE name = ?"

# Nobody waits for the row: who has it makes the ticks, or changes what is to be made.
CLAIM = """
    SELECT name FROM {schedules}
    WHERE name = ? AND config_hash = ? AND next_at = ? AND paused = 0 {skip_locked}"""

ADVANCE = "UPDATE {schedules} SET next_at = ?, last_at = ? WHERE name = ?"

QUEUE_LIMIT = "SELECT max_payload_bytes FROM {queues} WHERE queue = ?"

TOPIC_LIMIT = "SELECT max_payload_bytes FROM {topics} WHERE topic = ?"
