"""A world in which nothing happens by itself: time, and whose turn it is, are decided by a script.

Actors are greenlets. Each runs plain code of RowMQ's until that asks the database for something, or
sleeps: then it stands still until it has its turn again. So at any time at most one statement is
under way, and a run is a row of turns, which the seed of its script decides alone.

    script ──► whose turn ──► (a fault) ──► one statement ──► whose turn ──► ...

What can go wrong at a turn: the actor's process dies before the statement or after it, its
connection breaks before it or after it, all of its process stands still for longer than a lease
lasts, or the database's clock is set.
"""

import random
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from enum import Enum
from typing import Any, NamedTuple, Protocol

import greenlet  # type: ignore[import-untyped] # it has no types of its own
import msgspec

__all__ = ["Actor", "Fault", "Killed", "NeverDone", "Process", "Script", "Turn", "World"]

SECOND = 1_000_000
STEP_US = (100, 3_000)
"""How much time a turn takes, at least and at most."""

PAUSE_US = (1 * SECOND, 40 * SECOND)
JUMP_US = (-20 * SECOND, 20 * SECOND)

QUICK_SECONDS = 0.005
"""How long a statement may take before it is asked whether it waits for a lock."""

DEADLOCK_SECONDS = 20.0
"""How long a database may take to end one of those who wait for each other."""


BEGIN = "its beginning"


class Killed(BaseException):
    """The process that this is part of has died: nothing may come of anything it still does."""


class NeverDone(Exception):
    """There is work left, and nobody gets it done."""


class Fault(Enum):
    """What goes wrong at a turn."""

    CRASH = "dies before"
    CRASH_AFTER = "dies after"
    LOST = "loses its connection before"
    LOST_AFTER = "loses its connection after"
    PAUSE = "stands still before"
    CLOCK = "has the clock set before"


class Turn(NamedTuple):
    """One step of a run."""

    step: int
    actor: str
    point: str
    fault: Fault | None = None

    def __str__(self) -> str:
        fault = f"{self.fault.value} " if self.fault else ""
        return f"{self.step:5} {self.actor} {fault}{self.point}"


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """Decides whose turn it is, and what goes wrong then. The choices of one step do not depend on
    those of others: a script from which something is taken away is otherwise the same.
    """

    seed: int
    faults: frozenset[int] = frozenset()
    """The steps at which something goes wrong."""
    switches: frozenset[int] | None = None
    """The steps at which it may be another one's turn than before; None is all."""

    @classmethod
    def of(cls, seed: int, *, steps: int, rate: float) -> "Script":
        """A script with faults at some of its first steps."""
        chance = random.Random(f"{seed}")
        return cls(seed=seed, faults=frozenset(s for s in range(steps) if chance.random() < rate))

    def chance(self, step: int, what: str) -> random.Random:
        return random.Random(f"{self.seed} {step} {what}")

    def fault(self, step: int) -> Fault | None:
        if step not in self.faults:
            return None
        return self.chance(step, "fault").choice(list(Fault))

    def may_switch(self, step: int) -> bool:
        return self.switches is None or step in self.switches


class Actor(greenlet.greenlet):  # type: ignore[misc] # for the same reason
    """Somebody who does something, one turn after the other."""

    def __init__(self, process: "Process", name: str, do: Callable[[], None]) -> None:
        super().__init__(self._live)
        self.process = process
        self.name = name
        self.point = BEGIN
        self.wake_at = 0
        self.waits_for: Future[Any] | None = None
        """What the database has not answered: it waits for others' locks."""
        self.blocked_at: int | None = None
        """How many transactions had ended when it found that somebody else was writing."""
        self.error: BaseException | None = None
        self.session: Any = None
        """The connection that was asked last."""
        self._do = do

    def _live(self, _: Fault | None) -> None:
        try:
            self._do()
        except Killed:
            pass
        except BaseException as error:  # noqa: BLE001 - told by the hub
            self.error = error


class Closes(Protocol):
    """A connection, as far as a process that dies has to do with it."""

    def cut(self) -> None:
        """End it without a word."""


class Process:
    """Actors that live and die together, and their connections."""

    def __init__(self, world: "World", name: str) -> None:
        self.world = world
        self.name = name
        self.dead = False
        self.still_until = 0
        self.actors: list[Actor] = []
        self.sessions: list[Closes] = []

    def spawn(self, name: str, do: Callable[[], None]) -> Actor:
        """Have something done, from its first turn on."""
        actor = Actor(self, f"{self.name}/{name}", do)
        actor.wake_at = self.world.now
        self.actors.append(actor)
        self.world.actors.append(actor)
        return actor

    def die(self) -> None:
        """Leave nothing but what was committed."""
        self.dead = True
        for session in self.sessions:
            session.cut()
        self.sessions = []
        self.world.ended()


class World:
    """Gives turns until all is done."""

    def __init__(self, script: Script, *, began_us: int) -> None:
        self.script = script
        self.now = began_us
        """The time that passes everywhere, in microseconds."""
        self.set_by = 0
        """How far the database's clock is off."""
        self.highest = began_us
        """The latest time that the database's clock has shown."""
        self.step = 0
        self.calm = True
        """Whether nothing goes wrong for now."""
        self.actors: list[Actor] = []
        self.trace: list[Turn] = []
        self.crashed: Callable[[Process], None] = lambda _: None
        """Is told of processes that have died."""
        self.is_stuck: Callable[[Actor], bool] = lambda _: True
        """Whether one that the database has not answered waits for somebody's lock."""
        self.transactions = 0
        self._last: Actor | None = None
        self._hub = greenlet.getcurrent()

    @property
    def clock(self) -> int:
        """What the database's clock shows."""
        return self.now + self.set_by

    def process(self, name: str) -> Process:
        return Process(self, name)

    # --- for the hub ------------------------------------------------------------------------------

    def run(self, done: Callable[[], bool], *, steps: int) -> None:
        """Give turns until it is done, or somebody has failed."""
        last = self.step + steps
        while not done():
            if self.step >= last:
                raise NeverDone(f"not done after {steps:,} turns: {', '.join(self._stories())}")
            self._turn(self._next())

    def _stories(self) -> Iterator[str]:
        for actor in self.actors:
            yield f"{actor.name} at {actor.point}"

    def _next(self) -> Actor:
        """Whose turn it is; if nobody can go on, time passes."""
        while True:
            ready = [actor for actor in self.actors if self._is_ready(actor)]
            if ready:
                if self._last in ready and not self.script.may_switch(self.step):
                    return self._last
                return self.script.chance(self.step, "turn").choice(ready)
            times = [
                max(actor.wake_at, actor.process.still_until)
                for actor in self.actors
                if actor.waits_for is None and not self._is_blocked(actor)
            ]
            if any(moment > self.now for moment in times):
                self.now = min(moment for moment in times if moment > self.now)
                self.highest = max(self.highest, self.clock)
                continue
            waiting = [actor.waits_for for actor in self.actors if actor.waits_for is not None]
            if not wait(waiting, DEADLOCK_SECONDS, FIRST_COMPLETED).done:
                raise NeverDone(f"nobody can go on: {', '.join(self._stories())}")

    def _is_ready(self, actor: Actor) -> bool:
        if self.now < max(actor.wake_at, actor.process.still_until):
            return False
        if actor.waits_for is not None:
            return actor.waits_for.done()
        return not self._is_blocked(actor)

    def _is_blocked(self, actor: Actor) -> bool:
        return actor.blocked_at is not None and actor.blocked_at == self.transactions

    def _turn(self, actor: Actor) -> None:
        """Give one actor its turn, with whatever goes wrong."""
        step, self.step, self._last = self.step, self.step + 1, actor
        chance = self.script.chance(step, "time")
        self.now += chance.randint(*STEP_US)
        self.highest = max(self.highest, self.clock)
        fault = None if self.calm or actor.waits_for is not None else self.script.fault(step)
        self.trace.append(Turn(step, actor.name, actor.point, fault))
        if fault is Fault.CRASH:
            self._bury(actor.process)
        elif fault is Fault.PAUSE:
            actor.process.still_until = self.now + chance.randint(*PAUSE_US)
        else:
            if fault is Fault.CLOCK:
                self.set_by = chance.randint(*JUMP_US)
                self.highest = max(self.highest, self.clock)
            self._resume(actor, fault)

    def _resume(self, actor: Actor, fault: Fault | None) -> None:
        actor.switch(fault)
        if actor.process.dead:
            self._bury(actor.process)
        if actor.dead and actor in self.actors:
            self.actors.remove(actor)
        if actor.error is not None:
            raise actor.error
        self._wait_for_answers()

    def _wait_for_answers(self) -> None:
        """Whoever waits for a lock may have it by now: a database that is slow decides nothing."""
        for actor in self.actors:
            future = actor.waits_for
            while future is not None and not wait([future], QUICK_SECONDS).done:
                if self.is_stuck(actor):
                    break

    def _bury(self, process: Process) -> None:
        if not process.dead:
            process.die()
        self.actors = [actor for actor in self.actors if actor.process is not process]
        for actor in process.actors:
            if not actor.dead:
                if actor.point != BEGIN:
                    actor.throw(Killed())
                if actor.error is not None:
                    raise actor.error
        process.actors = []
        self.crashed(process)

    # --- for actors -------------------------------------------------------------------------------

    def turn(self, point: str) -> Fault | None:
        """Stand still until it is one's turn; what goes wrong then."""
        actor = self.current()
        actor.point = point
        self._refuse_dead(actor)
        fault: Fault | None = self._hub.switch()
        self._refuse_dead(actor)
        return fault

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.current().wake_at = self.now + round(seconds * SECOND)
        self.turn("sleep")

    def answer(self, future: "Future[Any]") -> Any:
        """What the database answers; others have their turns for as long as it does not."""
        actor = self.current()
        actor.waits_for = future
        try:
            while not wait([future], QUICK_SECONDS).done:
                if self.is_stuck(actor):
                    self.turn(actor.point)
        finally:
            actor.waits_for = None
        return future.result()

    def blocked(self) -> None:
        """Stand still until a transaction has ended."""
        actor = self.current()
        actor.blocked_at = self.transactions
        try:
            self.turn(actor.point)
        finally:
            actor.blocked_at = None

    def ended(self) -> None:
        """A transaction has ended: who waits for that may try again."""
        self.transactions += 1

    def current(self) -> Actor:
        actor = greenlet.getcurrent()
        assert isinstance(actor, Actor), "only actors wait for their turn"
        return actor

    def _refuse_dead(self, actor: Actor) -> None:
        if actor.process.dead:
            raise Killed

    def kill_all(self, processes: Iterable[Process]) -> None:
        """End what is left of a run."""
        for process in processes:
            self._bury(process)
