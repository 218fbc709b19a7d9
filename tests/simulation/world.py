"""A world in which nothing happens by itself: time, and whose turn it is, are decided by a script.

Actors are greenlets. Each runs plain code of RowMQ's until that asks the database for something, or
sleeps: then it stands still until it has its turn again. So at any time at most one statement is
under way, and a run is a row of turns, which the seed of its script decides alone.

    script ──► whose turn ──► (a fault) ──► one statement ──► whose turn ──► ...

What can go wrong at a turn: the actor's process dies before the statement or after it, its
connection breaks before it or after it, the database refuses it and undoes the transaction, all of
the process stands still for longer than a lease lasts, or the database's clock is set. Of a COMMIT
that means: it fails, or its client does not know whether it has. The world does: see `Attempt`.

Whoever waits for a lock stands still until it has it, or until its patience is over. If its process
dies meanwhile, the statement stays behind: a server that waits does not notice that its client has
gone, and does in the end what it was asked for.
"""

import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import ExitStack
from enum import Enum
from typing import Any, NamedTuple, Protocol

import greenlet  # type: ignore[import-untyped] # it has no types of its own
import msgspec

from rowmq.errors import Deadlock, Locked

__all__ = [
    "BEGIN_TRANSACTION",
    "COMMIT",
    "CONNECT",
    "PATIENCE_US",
    "ROLLBACK",
    "Actor",
    "Attempt",
    "Fault",
    "Killed",
    "Locks",
    "NeverDone",
    "Process",
    "Question",
    "Script",
    "Turn",
    "World",
]

SECOND = 1_000_000
STEP_US = (100, 3_000)
"""How much time a turn takes, at least and at most."""

PAUSE_US = (1 * SECOND, 40 * SECOND)
JUMP_US = (-20 * SECOND, 20 * SECOND)

PATIENCE_US = 5 * SECOND
"""How long a statement waits for a lock."""

QUICK_SECONDS = 0.002
"""How long a statement may take before the server is asked whether it waits for a lock."""

LOOKS = 2
"""How often the server must say so at first: it may be about to end one of those who wait in a
circle.
"""

ANSWER_SECONDS = 60.0
"""How long it may take in all."""

BIRTH, SLEEP, CONNECT = "its beginning", "sleep", "connect"
BEGIN_TRANSACTION, COMMIT, ROLLBACK = "begin", "commit", "rollback"
"""Points that are no statement."""


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
    REFUSED = "is refused"
    PAUSE = "stands still before"
    CLOCK = "has the clock set before"


ELSEWHERE = 0.2
"""Of the steps that are chosen, how many have something go wrong although they are no COMMIT."""

AT_ANY_POINT = {Fault.CRASH, Fault.PAUSE, Fault.CLOCK}
"""What needs no statement."""


def may_befall(point: str, *, waits: bool) -> set[Fault]:
    """What can go wrong at a point: nothing that would be told and not happen. A statement that
    waits for a lock is not refused: who waits in a circle, or for too long, is.
    """
    if point in (BIRTH, SLEEP):
        return AT_ANY_POINT
    if point == CONNECT:
        return AT_ANY_POINT | {Fault.LOST}
    return set(Fault) - {Fault.REFUSED} if waits or point == ROLLBACK else set(Fault)


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
    """The steps at which something goes wrong, if they come to a COMMIT; at others, mostly not."""
    switches: frozenset[int] | None = None
    """The steps at which it may be another one's turn than before; None is all."""
    steady: bool = False
    """Whether nobody sets the clock: then it is known which ticks there must be."""

    @classmethod
    def of(cls, seed: int, *, steps: int, rate: float) -> "Script":
        """A script with faults at some of its first steps; every other one is steady."""
        chance = random.Random(f"{seed}")
        faults = frozenset(step for step in range(steps) if chance.random() < rate)
        return cls(seed=seed, faults=faults, steady=seed % 2 == 0)

    def chance(self, step: int, what: str) -> random.Random:
        return random.Random(f"{self.seed} {step} {what}")

    def fault(self, step: int, point: str, possible: Collection[Fault]) -> Fault | None:
        if step not in self.faults:
            return None
        if point != COMMIT and self.chance(step, "elsewhere").random() >= ELSEWHERE:
            return None
        kinds = [kind for kind in Fault if not (self.steady and kind is Fault.CLOCK)]
        kinds = [kind for kind in kinds if kind in possible]
        return self.chance(step, "fault").choice(kinds)

    def may_switch(self, step: int) -> bool:
        return self.switches is None or step in self.switches


class Attempt:
    """A COMMIT, or a statement that is a transaction by itself: what came of it is known here, also
    if whoever asked for it is not told.
    """

    def __init__(self, point: str, run: Callable[[], Any]) -> None:
        self.point = point
        self.done: bool | None = False
        """Whether the database has done it; None while that may still come."""
        self._run = run

    def __call__(self) -> Any:
        self.done = None
        try:
            answer = self._run()
        except BaseException:
            self.done = False
            raise
        self.done = True
        return answer


class Actor(greenlet.greenlet):  # type: ignore[misc] # for the same reason
    """Somebody who does something, one turn after the other."""

    def __init__(self, process: "Process", name: str, do: Callable[[], None]) -> None:
        super().__init__(self._live)
        self.process = process
        self.name = name
        self.point = BIRTH
        self.wake_at = 0
        self.question: Question | None = None
        """What the server has not answered."""
        self.blocked_at: int | None = None
        """How many transactions had ended when it found that somebody else was writing."""
        self.gives_up_at = 0
        """When it has waited for a lock for too long."""
        self.error: BaseException | None = None
        self.attempts: list[Attempt] = []
        """All that it has asked for and that may be committed."""
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

    number: int
    """How the server calls it."""

    def cut(self) -> None:
        """End it without a word; if a statement is under way, when that has ended."""

    def end(self) -> None:
        """Undo what is open, and close it."""


class Question:
    """A statement that a server was asked to run."""

    def __init__(self, session: Closes, future: "Future[Any]") -> None:
        self.session = session
        self.future = future
        self.left = False
        """Whether nobody waits for the answer any more: the process has died."""
        self.error: Exception | None = None
        """Why it was ended before it had its lock."""
        self.looks = 0
        """How often the server has said that it waits for one."""
        self.stopped = False
        """Whether it is kept from going on, also when it has its lock."""

    @property
    def answered(self) -> bool:
        return self.future.done()

    def result(self) -> Any:
        if self.error is not None and self.future.exception() is not None:
            raise self.error
        return self.future.result()


class Locks(Protocol):
    """A server, as far as it knows who waits for a lock."""

    def waiting(self) -> dict[int, set[int]]:
        """The connections that wait, and for whom, as far as the server says."""

    def cancel(self, number: int) -> None:
        """End the statement of a connection."""

    def stop(self, number: int) -> None:
        """Keep a connection that waits from going on, where several that have waited for one
        transaction would race, and the server does not decide who comes first.
        """

    def go_on(self, number: int) -> None:
        """Let a connection go on."""

    def close(self) -> None:
        """Ask no more."""


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
        self.clocks: list[int] = []
        """What the database's clock showed at each step."""
        self.locks: Locks | None = None
        """Who waits for locks, if the database is a server."""
        self.questions: list[Question] = []
        """What the server has not answered, to the living and the dead."""
        self.transactions = 0
        self.befallen: Counter[Fault] = Counter()
        """What went wrong, counted where it does."""
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
            times = [self._next_time(actor) for actor in self.actors]
            if not any(moment > self.now for moment in times):
                raise NeverDone(f"nobody can go on: {', '.join(self._stories())}")
            self.now = min(moment for moment in times if moment > self.now)
            self.highest = max(self.highest, self.clock)

    def _next_time(self, actor: Actor) -> int:
        """When somebody who is not ready is, if nobody else does anything."""
        moment = actor.gives_up_at if self._is_blocked(actor) else actor.wake_at
        return max(moment, actor.process.still_until)

    def _is_ready(self, actor: Actor) -> bool:
        if self.now < max(actor.wake_at, actor.process.still_until):
            return False
        return not self._is_blocked(actor) or self.now >= actor.gives_up_at

    def _is_blocked(self, actor: Actor) -> bool:
        if actor.question is not None:
            return not actor.question.answered
        return actor.blocked_at is not None and actor.blocked_at == self.transactions

    def _turn(self, actor: Actor) -> None:
        """Give one actor its turn, with whatever goes wrong."""
        step, self.step, self._last = self.step, self.step + 1, actor
        chance = self.script.chance(step, "time")
        self.now += chance.randint(*STEP_US)
        self.highest = max(self.highest, self.clock)
        self.clocks.append(self.clock)
        possible = may_befall(actor.point, waits=actor.question is not None)
        fault = None if self.calm else self.script.fault(step, actor.point, possible)
        self.trace.append(Turn(step, actor.name, actor.point, fault))
        if fault is not None and fault in AT_ANY_POINT:
            self.befallen[fault] += 1
        if fault is Fault.CRASH:
            self._bury(actor.process)
        elif fault is Fault.PAUSE:
            actor.process.still_until = self.now + chance.randint(*PAUSE_US)
        else:
            if fault is Fault.CLOCK:
                self.set_by = chance.randint(*JUMP_US)
                self.highest = max(self.highest, self.clock)
                self.clocks[-1] = self.clock
            self._resume(actor, fault)
        self.settle()

    def _resume(self, actor: Actor, fault: Fault | None) -> None:
        actor.switch(fault)
        if actor.process.dead:
            self._bury(actor.process)
        if actor.dead and actor in self.actors:
            self.actors.remove(actor)
        if actor.error is not None:
            raise actor.error

    def settle(self) -> None:
        """Wait until all who have asked the server have an answer, or wait for a lock: how quick it
        is decides nothing. Those who have waited go on one after the other.
        """
        began = time.monotonic()
        while True:
            open = [question for question in self.questions if not question.answered]
            self._end_left()  # after the look: who is answered from now on is seen the next time
            if not open:
                return
            waiting = self._look(open)
            running = [q for q in open if not q.stopped and q.looks < LOOKS]
            if not running and not self._has_one_go_on(open, waiting):
                return
            if time.monotonic() > began + ANSWER_SECONDS:
                raise NeverDone(f"no answer from the server: {', '.join(self._stories())}")
            wait([question.future for question in running], QUICK_SECONDS, FIRST_COMPLETED)

    def _look(self, open: Sequence[Question]) -> Mapping[int, set[int]]:
        """Who waits for whom."""
        assert self.locks is not None
        waiting = self.locks.waiting()
        for question in open:
            waits = question.error is None and question.session.number in waiting
            question.looks = question.looks + 1 if waits else 0
        return waiting

    def _has_one_go_on(self, open: Sequence[Question], waiting: Mapping[int, set[int]]) -> bool:
        """Have one of those who have waited go on, if any has its lock by now. Of those that wait
        in a circle the last one is ended, which is what a server would do after a while.
        """
        assert self.locks is not None
        for question in reversed(open):
            if waits_in_circle(question.session.number, waiting):
                self.cancel(question, Deadlock("those who wait for each other wait in a circle"))
                return True
        for question in open:
            if not question.stopped:
                question.stopped = True
                self.locks.stop(question.session.number)
        for question in open:
            if not question.looks:
                self._let_go_on(question)
                return True
        return False

    def _let_go_on(self, question: Question) -> None:
        assert self.locks is not None
        question.stopped = False
        self.locks.go_on(question.session.number)

    def cancel(self, question: Question, error: Exception) -> None:
        """End a statement that waits for a lock."""
        assert self.locks is not None
        question.error = error
        self.locks.cancel(question.session.number)
        self._let_go_on(question)

    def _end_left(self) -> None:
        """Close the connections of the dead whose statements have ended."""
        for question in [q for q in self.questions if q.left and q.answered]:
            self.questions.remove(question)
            question.session.end()
            self.ended()

    def _bury(self, process: Process) -> None:
        if not process.dead:
            process.die()
        self.actors = [actor for actor in self.actors if actor.process is not process]
        for actor in process.actors:
            if not actor.dead:
                if actor.point != BIRTH:
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
        self.turn(SLEEP)

    def answer(self, question: Question) -> Fault | None:
        """Wait for what the server answers; others have their turns for as long as it does not.
        What goes wrong then.
        """
        actor, fault = self.current(), None
        self.questions.append(question)
        actor.question, actor.gives_up_at = question, self.now + PATIENCE_US
        wait([question.future], QUICK_SECONDS)
        try:
            self.settle()
            while not question.answered:
                if self.now >= actor.gives_up_at:
                    self.cancel(question, Locked("somebody else has held a lock for too long"))
                    self.settle()
                else:
                    fault = self.turn(actor.point)
        finally:
            actor.question = None
            if not question.left:
                self.questions.remove(question)
        return fault

    def blocked(self, gives_up_at: int) -> Fault | None:
        """Stand still until a transaction has ended, or one's patience is over."""
        actor = self.current()
        actor.blocked_at, actor.gives_up_at = self.transactions, gives_up_at
        try:
            return self.turn(actor.point)
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
        """End what is left of a run: all of it, also if some of it fails at that."""
        with ExitStack() as stack:
            stack.callback(self.settle)
            for process in processes:
                stack.callback(self._bury, process)


def waits_in_circle(number: int, waiting: Mapping[int, set[int]]) -> bool:
    """Whether somebody waits for whom waits for it."""
    seen: set[int] = set()
    following = set(waiting.get(number, ()))
    while following - seen:
        seen |= following
        following = {other for one in following for other in waiting.get(one, ())}
    return number in seen
