"""What `mq.cron` does, as steps: written once, taken by `Cron`, `AsyncCron` and the tender."""

import logging
import random
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from functools import partial
from typing import Any

import msgspec

from rowmq.cron.options import (
    Function,
    fire_time,
    is_function,
    made_of,
    owner_of,
    spec_of,
    ticks_of,
)
from rowmq.drivers.base import Steps
from rowmq.errors import InvalidInput, InvalidOption, UnknownSchedule
from rowmq.message import Outcome, new_id
from rowmq.naming import check_schedule
from rowmq.options import whole
from rowmq.queue.desk import Desk
from rowmq.schedule import Timing, catch_up, preview
from rowmq.store.entries import Entry
from rowmq.store.keys import id_within
from rowmq.store.postings import Posting
from rowmq.store.queues import wake_name
from rowmq.store.schedules import Firing, Made, Schedule, Sees, Upcoming
from rowmq.store.ticks import FORGET_BATCH

__all__ = ["Core", "Round", "pause_seconds"]

log = logging.getLogger("rowmq")

PAGE = 100
"""How many schedules are looked at with one statement."""

TICKS_MAX = 100
"""How many ticks of a schedule one transaction makes."""

FORGET_SECONDS = 3600.0
FORGET_BATCHES_MAX = 20
"""How often old ticks are deleted, and how many batches of them at a time."""

SET_RIGHT_SECONDS = 60.0

LATE_US = 60_000_000
"""From when on it is said that nobody here can make a schedule's payload."""

PREVIEW_MAX = 1_000

BUSY_SECONDS = 0.25
"""When to look again for a schedule whose row somebody has locked."""

TROUBLE_SECONDS = 0.5, 5.0
"""The first and the longest pause after an error."""


class Round(msgspec.Struct):
    """What one round of tending came to."""

    made: int = 0
    wait: float | None = None
    """In how many seconds the next tick is due, as far as is known."""
    errors: dict[str, Exception] = {}
    """Why schedules could not be fired, by name."""

    def expect(self, seconds: float) -> None:
        """There is something to do by then."""
        self.wait = seconds if self.wait is None else min(self.wait, seconds)


class Core:
    """The schedules of a database, to one client."""

    def __init__(
        self, desk: Desk, functions: dict[tuple[str, str], Function], *, notify: bool
    ) -> None:
        """`functions` make payloads, by schedule and configuration; `notify` says that pollers and
        subscribers are to be told of what ticks make, where the database has a way to.
        """
        self.desk = desk
        self.store = desk.store
        self.functions = functions
        self.notify = notify
        self.disturb: Callable[[str], None] = desk.disturb
        self.sees: Sees | None = None
        """Which schedules can be steered; None is all. It is asked when their rows are locked."""
        self.fired: list[Callable[[str, int], None]] = []
        """Are told which schedule was fired here, and how often; for metrics."""
        self._missing: set[tuple[str, str]] = set()
        self._put_off: dict[str, tuple[int, float]] = {}
        """Schedules that failed: how often in a row, and until when they are left alone."""
        self._forget_at = 0.0
        self._set_right_at = 0.0

    # --- install, pause, remove -------------------------------------------------------------------

    def install(
        self, name: str, timing: Timing, connection: Any, *, payload: Any, **options: Any
    ) -> Steps[Outcome]:
        """Have a schedule be as it is given."""
        checked = check_schedule(name)
        spec = spec_of(timing, payload=payload, **options)
        if is_function(payload):
            self.functions[checked, spec.config_hash] = payload
        memo: list[Outcome] = []
        revision = secrets.randbits(62)
        install = partial(self.store.schedules.install, memo=memo, sees=self.sees)
        operation = partial(install, checked, spec, revision)
        outcome: Outcome = yield partial(self.desk.run, operation, connection)
        return outcome

    def change(self, what: str, name: str, connection: Any) -> Steps[None]:
        """Pause or resume a schedule."""
        change = getattr(self.store.schedules, what)
        operation = partial(change, check_schedule(name), sees=self.sees)
        yield partial(self.desk.run, operation, connection)

    def remove(self, name: str, connection: Any) -> Steps[bool]:
        """Delete a schedule; whether there was one."""
        operation = partial(self.store.schedules.remove, check_schedule(name), sees=self.sees)
        removed: bool = yield partial(self.desk.repeat, operation, connection)
        return removed

    def load(self, name: str, connection: Any = None) -> Steps[Schedule]:
        """A schedule as it is."""
        load = partial(self.store.schedules.load, check_schedule(name), sees=self.sees)
        schedule: Schedule = yield partial(self.desk.run, load, connection)
        return schedule

    def next(self, name: str, count: int) -> Steps[list[datetime]]:
        """The next times at which a schedule fires."""
        if whole("count", count) > PREVIEW_MAX:
            raise InvalidOption(f"count must be at most {PREVIEW_MAX:,}, not {count:,}")
        schedule = yield from self.load(name)
        timing = schedule.spec.timing
        return [fire_time(timing, at) for at in preview(timing, schedule.now, count)]

    # --- fire -------------------------------------------------------------------------------------

    def run(self, name: str, connection: Any) -> Steps[datetime]:
        """Make a tick now, beside the plan; its time."""
        schedule = yield from self.load(name, connection)
        made = made_of(schedule, schedule.now, self._function(schedule))
        if isinstance(made, Posting):
            yield from self.desk.put([made], connection)
        else:
            entry = msgspec.structs.replace(made, id=id_within(made.key, new_id()))
            publish = partial(
                self.store.topics.publish,
                [entry],
                alone=connection is None,
                notify=self._names([entry]),
            )
            yield partial(self.desk.run, publish, connection)
        return fire_time(schedule.spec.timing, schedule.now)

    def tend(self, *, again_and_again: bool = False) -> Steps[Round]:
        """Make the ticks that are due, up to a limit for each schedule.

        One schedule that cannot be fired does not keep the others from it: why not is in the
        round's errors. Who does this `again_and_again` leaves it alone for a while.
        """
        if not again_and_again:
            self._put_off.clear()
        yield from self._set_right(always=not again_and_again)
        done = Round()
        after: Upcoming | None = None
        while True:
            look = partial(self.store.schedules.upcoming, PAGE, after)
            rows, now = yield partial(self.desk.run, look)
            due = [row for row in rows if row.next_at <= now]
            # Those of one time in any order, so that not all tenders try the same row; and those
            # that failed before when the others have had their turn.
            for row in sorted(due, key=self._turn):
                yield from self._fire_or_note(row.name, done)
            if len(due) < len(rows):
                done.expect((rows[len(due)].next_at - now) / 1_000_000)
                break
            if len(rows) < PAGE:
                break
            after = rows[-1]
        try:
            yield from self._forget()
        except Exception as error:  # noqa: BLE001 - what was made is made; it is for later
            log.info("old ticks are deleted later: %s", error)
        return done

    def _turn(self, row: Upcoming) -> tuple[bool, int, float]:
        return row.name in self._put_off, row.next_at, random.random()

    def _fire_or_note(self, name: str, done: Round) -> Steps[None]:
        """Fire a schedule. One that fails is left alone for a while, longer each time: it may have
        to wait for a lock, and the others should not wait with it.
        """
        failures, until = self._put_off.get(name, (0, 0.0))
        pause = until - time.monotonic()
        if pause > 0:
            done.expect(pause)
            return
        try:
            yield from self._fire(name, done)
        except UnknownSchedule:
            self._put_off.pop(name, None)  # it was removed a moment ago
        except Exception as error:  # noqa: BLE001 - the others have their turn first
            done.errors[name] = error
            pause = pause_seconds(failures)
            self._put_off[name] = (failures + 1, time.monotonic() + pause)
            done.expect(pause)
        else:
            self._put_off.pop(name, None)

    def _fire(self, name: str, done: Round) -> Steps[None]:
        schedule = yield from self.load(name)
        if schedule.paused or schedule.next_at is None or schedule.next_at > schedule.now:
            return  # somebody else was here a moment ago
        if schedule.spec.function and not self._has_function(schedule):
            return
        due = catch_up(schedule.spec, schedule.next_at, schedule.now, limit=TICKS_MAX)
        function = self._function(schedule)
        ticks = [(at, made_of(schedule, at, function)) for at in due.fires]
        made = yield from self._make(Firing(schedule, due.next_at, ticks))
        if made is None:  # somebody has its row: to fire it, or to change it
            done.expect(BUSY_SECONDS)
            return
        done.made += made
        for told in self.fired:
            told(name, made)
        if due.next_at is not None:
            done.expect(max(0.0, (due.next_at - schedule.now) / 1_000_000))

    def _make(self, firing: Firing) -> Steps[int | None]:
        spec = firing.schedule.spec
        ids: list[Any] = [None] * len(firing.ticks)
        if spec.queue is not None:
            ids = yield from self.desk.new_ids(len(ids), None)
        names = self._names([made for _, made in firing.ticks])
        fire = partial(self.store.schedules.fire, firing, ids, notify=names)
        made: int | None = yield partial(self.desk.run, fire)
        if made and spec.queue is not None:
            self.disturb(spec.queue)
        return made

    def _names(self, made: Sequence[Made]) -> frozenset[str]:
        """What those who wait are to be woken by."""
        if not self.notify:
            return frozenset()
        return frozenset(
            item.topic if isinstance(item, Entry) else wake_name(item.lane.queue) for item in made
        )

    def _function(self, schedule: Schedule) -> Function | None:
        """What makes the payload of a schedule, if a function does."""
        if schedule.spec.function is None:
            return None
        function = self.functions.get((schedule.name, schedule.config_hash))
        if function is None:
            raise InvalidOption(
                f"the payload of schedule {schedule.name!r} is made by {schedule.spec.function}, "
                f"which is not stored: only a client that has installed the schedule can fire it"
            )
        return function

    def _has_function(self, schedule: Schedule) -> bool:
        """Whether the payload can be made here. If nobody else does for long, that is said."""
        known = (schedule.name, schedule.config_hash)
        if known in self.functions:
            return True
        late = schedule.now - (schedule.next_at or 0) > LATE_US
        if late and known not in self._missing:
            self._missing.add(known)
            log.warning(
                "schedule %r is due, and waits for a process that has installed it with %s",
                schedule.name,
                schedule.spec.function,
            )
        return False

    def _set_right(self, *, always: bool) -> Steps[None]:
        """Look for schedules that a wrong clock has made fire in the future, now and then."""
        if not always and time.monotonic() < self._set_right_at:
            return
        moved: int = yield partial(self.desk.run, self.store.schedules.set_right)
        self._set_right_at = time.monotonic() + SET_RIGHT_SECONDS
        if moved:
            log.warning("the database's clock was set back: %d schedules fire from now on", moved)

    def _forget(self) -> Steps[None]:
        """Delete old ticks, if that was not done for a while."""
        if time.monotonic() < self._forget_at:
            return
        for _ in range(FORGET_BATCHES_MAX):
            deleted: int = yield partial(self.desk.run, self.store.ticks.forget)
            if deleted < FORGET_BATCH:
                break
        self._forget_at = time.monotonic() + FORGET_SECONDS

    # --- ticks that are put ahead of time ---------------------------------------------------------

    def install_tick(
        self,
        config_hash: str,
        key_prefix: str,
        messages: Iterable[Any],
        *,
        queue: str,
        can_update: bool,
        connection: Any,
    ) -> Steps[list[tuple[Any, Outcome]]]:
        """Put jobs ahead of time, in the place of those of other configurations."""
        owner = owner_of(config_hash, key_prefix, queue)
        if isinstance(messages, str | bytes) or not isinstance(messages, Iterable):
            raise InvalidInput(
                f"install_tick takes a list of rowmq.CronMessage(payload, at), not a "
                f"{type(messages).__name__}"
            )
        given = list(messages)
        ticks = ticks_of(owner, given, can_update=can_update)
        ids = yield from self.desk.new_ids(len(ticks), connection)
        names = self._names([tick.posting for tick in ticks])
        memo: list[Outcome] = []
        install = partial(self.store.ticks.install, owner, ticks, ids, memo=memo, notify=names)
        outcomes: list[Outcome] = yield partial(self.desk.run, install, connection)
        self.disturb(owner.queue)
        return list(zip(given, outcomes, strict=True))

    def uninstall_tick(
        self, config_hash: str, key_prefix: str, *, queue: str, connection: Any
    ) -> Steps[int]:
        """Remove the unclaimed jobs of one configuration."""
        owner = owner_of(config_hash, key_prefix, queue)
        memo: list[int] = []
        uninstall = partial(self.store.ticks.uninstall, owner, memo=memo)
        removed: int = yield partial(self.desk.run, uninstall, connection)
        return removed


def pause_seconds(failures: int) -> float:
    """How long to wait after errors: longer each time, never in step with others."""
    first, longest = TROUBLE_SECONDS
    return min(longest, first * 2.0 ** min(failures, 20)) * random.uniform(0.5, 1.0)
