"""Schedules, and their model, which two clients install, change and tend."""

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from rowmq import Outcome
from rowmq.cron.options import FIRE_AT_HEADER, SCHEDULE_HEADER
from rowmq.errors import UnknownSchedule
from rowmq.times import to_micros
from tests.models.schedule_model import MINUTE, Config, ScheduleModel, Timing
from tests.models.world import World

__all__ = ["ScheduleMachine"]

HOUR, DAY = 60, 24 * 60

CLIENTS = st.integers(0, 1)
NAMES = st.sampled_from(["a", "b"])
CRONS = {
    Timing(HOUR): "0 * * * *",
    Timing(HOUR, (0, 15, 30, 45)): "*/15 * * * *",
    Timing(HOUR, (5, 30)): "5,30 * * * *",
    Timing(DAY, (2 * HOUR, 3 * HOUR + 30)): "",
    Timing(20): "",
    Timing(45): "",
}
"""Times, and how cron says it, where it can; else they are times of day, or periods."""

CONFIGS = st.builds(
    Config,
    timing=st.sampled_from(list(CRONS)),
    payload=st.integers(0, 1),
    topic=st.booleans(),
    catch_up=st.sampled_from(["latest", "all", "none"]),
    grace=st.sampled_from([0, 10 * MINUTE, 90 * MINUTE]),
)


class ScheduleMachine(RuleBasedStateMachine):
    """What is installed, changed and made on both sides."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world
        world.begin()
        self.clients = [world.connect(), world.connect()]
        self.model = ScheduleModel(world.now)

    # --- install and change -----------------------------------------------------------------------

    @rule(client=CLIENTS, name=NAMES, config=CONFIGS)
    def install(self, client: int, name: str, config: Config) -> None:
        told = self._install(client, name, config)
        assert told is self.model.install(name, config)

    def _install(self, client: int, name: str, config: Config) -> Outcome:
        cron, timing = self.clients[client].cron, config.timing
        how: dict[str, Any] = {
            "payload": config.payload,
            "catch_up": config.catch_up,
            "grace": timedelta(microseconds=config.grace),
            "tend": False,
        }
        how |= {"topic": "t", "key": "k"} if config.topic else {"queue": "q"}
        if CRONS[timing]:
            return cron.install(name, CRONS[timing], **how)
        if timing.period == DAY:
            midnight = datetime(2026, 1, 1)  # noqa: DTZ001 - of which only the time of day is used
            hours = [(midnight + timedelta(minutes=m)).time() for m in timing.minutes]
            return cron.install_daily(name, hours, **how)
        return cron.install_periodic(name, timedelta(minutes=timing.period), **how)

    @rule(client=CLIENTS, name=NAMES)
    def pause(self, client: int, name: str) -> None:
        if self._is_known(name, lambda: self.clients[client].cron.pause(name)):
            self.model.schedules[name].paused = True

    @rule(client=CLIENTS, name=NAMES)
    def resume(self, client: int, name: str) -> None:
        if self._is_known(name, lambda: self.clients[client].cron.resume(name)):
            self.model.resume(name)

    def _is_known(self, name: str, call: Callable[[], None]) -> bool:
        try:
            call()
        except UnknownSchedule:
            assert name not in self.model.schedules
            return False
        assert name in self.model.schedules
        return True

    @rule(client=CLIENTS, name=NAMES)
    def remove(self, client: int, name: str) -> None:
        assert self.clients[client].cron.remove(name) is self.model.remove(name)

    @rule(client=CLIENTS, name=NAMES)
    def run(self, client: int, name: str) -> None:
        """Make a tick beside the plan."""
        told: list[datetime] = []
        if self._is_known(name, lambda: told.append(self.clients[client].cron.run(name))):
            assert [to_micros(moment) for moment in told] == [self.model.now]
            self.model.run_now(name)

    # --- time and ticks ---------------------------------------------------------------------------

    @rule(minutes=st.sampled_from([1, 10, 25, 60, 150, 700, 3_000]))
    def pass_time(self, minutes: int) -> None:
        self._move(minutes)

    @rule(minutes=st.sampled_from([10, 45, 200]))
    def set_back(self, minutes: int) -> None:
        """The database's clock was wrong, or is now."""
        self._move(-minutes)

    def _move(self, minutes: int) -> None:
        self.world.clock.move(minutes=minutes)
        self.model.now = self.world.now

    @rule(client=CLIENTS)
    def tend(self, client: int) -> None:
        assert self.clients[client].cron.tend() == self.model.tend()
        self.look(client)

    # Else the second one may go on where the first one has stopped.
    @precondition(lambda self: not self.model.is_far_behind())
    @rule()
    def tend_together(self) -> None:
        """Whoever is first makes a tick; one who finds the other at it leaves it to that one."""
        with ThreadPoolExecutor(len(self.clients)) as threads:
            told = list(threads.map(lambda mq: mq.cron.tend(), self.clients))
        assert sum(told) == self.model.tend()
        self.look(0)

    # --- look -------------------------------------------------------------------------------------

    @rule(client=CLIENTS)
    def look(self, client: int) -> None:
        """Every tick has made one job, or one message; and schedules are as they are told."""
        mq, model = self.clients[client], self.model
        jobs = [(job.headers, job.payload, False) for job in mq.queue("q").live(limit=10_000)]
        messages = [(m.headers, m.payload, True) for m in mq.read("t", limit=10_000)]
        told = sorted(
            (headers[SCHEDULE_HEADER], moment_in(headers), payload, topic)
            for headers, payload, topic in [*jobs, *messages]
        )
        known = [*model.made.items(), *model.run]
        assert told == sorted((*tick, config.payload, config.topic) for tick, config in known)
        shown = {
            info.name: (micros(info.next_at), micros(info.last_at), info.paused)
            for info in mq.cron.list()
        }
        assert shown == {
            name: (found.next_at, found.last_at, found.paused)
            for name, found in model.schedules.items()
        }
        for name in model.schedules:
            times = [to_micros(moment) for moment in mq.cron.next(name, 3)]
            assert times == model.upcoming(name, 3)

    def teardown(self) -> None:
        """End the example; if nothing went wrong, see that all that is due is made."""
        try:
            if sys.exception() is None:
                self.pass_time(700)
                self.tend(0)
        finally:
            self.world.end()


def moment_in(headers: Any) -> int:
    return to_micros(datetime.fromisoformat(headers[FIRE_AT_HEADER]))


def micros(moment: datetime | None) -> int | None:
    return None if moment is None else to_micros(moment)
