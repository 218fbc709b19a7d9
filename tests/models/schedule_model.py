"""What schedules are, without a database: times to come, and ticks that were made, in dictionaries.

Times are microseconds; schedules fire on whole minutes.
"""

from dataclasses import dataclass, field, replace

from rowmq import Outcome

__all__ = ["MINUTE", "Config", "Schedule", "ScheduleModel", "Tick", "Timing"]

MINUTE = 60_000_000

TICKS_MAX = 100
"""How many ticks of a schedule are made at a time."""

Tick = tuple[str, int]
"""A schedule's name, and a time."""


@dataclass(frozen=True)
class Timing:
    """Fires in each period when so many minutes of it have passed."""

    period: int
    minutes: tuple[int, ...] = (0,)

    def fires(self, at: int) -> bool:
        return at // MINUTE % self.period in self.minutes

    def after(self, moment: int) -> int:
        """The first time after a moment."""
        at = moment - moment % MINUTE + MINUTE
        while not self.fires(at):
            at += MINUTE
        return at


@dataclass(frozen=True)
class Config:
    """What a schedule is installed with."""

    timing: Timing
    payload: int
    topic: bool
    catch_up: str
    grace: int


@dataclass
class Schedule:
    """A schedule."""

    config: Config
    next_at: int
    created_at: int
    last_at: int | None = None
    paused: bool = False


@dataclass
class ScheduleModel:
    """All schedules at a time, and what they made."""

    now: int
    schedules: dict[str, Schedule] = field(default_factory=dict)
    made: dict[Tick, Config] = field(default_factory=dict)
    """Each tick that ever was, with the configuration that it had: it is made once."""
    run: list[tuple[Tick, Config]] = field(default_factory=list)
    """What was made beside the plan, as often as somebody asked for it."""

    def install(self, name: str, config: Config) -> Outcome:
        found = self.schedules.get(name)
        if found is None:
            self.schedules[name] = Schedule(config, config.timing.after(self.now), self.now)
            return Outcome.CREATED
        if found.config == config:
            return Outcome.IGNORED
        if found.config.timing != config.timing and not self._both_name_it(found, config):
            found.next_at = config.timing.after(self.now)
        found.config = replace(config)
        return Outcome.UPDATED

    def _both_name_it(self, found: Schedule, config: Config) -> bool:
        """Whether the new times too have the tick that has just become due."""
        due = found.next_at
        fresh = self.now - config.grace <= due <= self.now
        return fresh and not found.paused and config.timing.fires(due)

    def resume(self, name: str) -> None:
        found = self.schedules[name]
        if found.paused:
            found.paused, found.next_at = False, found.config.timing.after(self.now)

    def upcoming(self, name: str, count: int) -> list[int]:
        """The next times of a schedule, as if it were not paused."""
        times = [self.now]
        for _ in range(count):
            times.append(self.schedules[name].config.timing.after(times[-1]))
        return times[1:]

    def run_now(self, name: str) -> None:
        """Make a tick beside the plan, which stays as it is."""
        self.run.append(((name, self.now), self.schedules[name].config))

    def remove(self, name: str) -> bool:
        return self.schedules.pop(name, None) is not None

    def tend(self) -> int:
        """Make all ticks that are due; how many."""
        count = 0
        for name, found in self.schedules.items():
            if found.paused:
                continue
            self._set_right(found)
            if found.next_at <= self.now:
                count += self._fire(name, found)
        return count

    def _set_right(self, found: Schedule) -> None:
        """What fired in what is now the future fires from now on."""
        lived = found.created_at if found.last_at is None else found.last_at
        following = found.config.timing.after(self.now)
        if lived > self.now and found.next_at > following:
            found.next_at, found.last_at = following, None

    def is_far_behind(self) -> bool:
        """Whether some schedule has more to catch up with than is made at a time."""
        due = [s for s in self.schedules.values() if not s.paused and s.next_at <= self.now]
        return any(s.config.catch_up == "all" and len(self._missed(s)) > TICKS_MAX for s in due)

    def _missed(self, found: Schedule) -> list[int]:
        """The times that are due, the first one of which is known."""
        missed = [found.next_at]
        while (following := found.config.timing.after(missed[-1])) <= self.now:
            missed.append(following)
        return missed

    def _fire(self, name: str, found: Schedule) -> int:
        config, missed = found.config, self._missed(found)
        following = config.timing.after(missed[-1])
        if config.catch_up == "latest":
            missed = missed[-1:]
        elif config.catch_up == "none":
            missed = [at for at in missed if self.now - at <= config.grace]
        if len(missed) > TICKS_MAX:
            following, missed = missed[TICKS_MAX], missed[:TICKS_MAX]
        found.next_at = following
        if missed:
            found.last_at = missed[-1]
        fresh = [at for at in missed if (name, at) not in self.made]
        self.made |= {(name, at): config for at in fresh}
        return len(fresh)
