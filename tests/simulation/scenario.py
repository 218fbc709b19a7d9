"""Who acts in a world, and what they do there: publishers, subscribers, workers and schedulers.

All of it is written down as it happens. When publishers and producers are done, nothing goes wrong
any more, and the others go on until all is handled; then it is looked at what is in the database.
"""

import contextlib
import random
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

import msgspec

import rowmq
from rowmq.errors import StaleLease, TransientError, UnknownGroup
from tests.databases import Database, SQLiteDatabase
from tests.simulation.clients import connect, in_world
from tests.simulation.history import (
    Claimed,
    Crashed,
    Delivered,
    Event,
    History,
    JobSettled,
    Outcome,
    Partition,
    Place,
    Published,
    Put,
    Settled,
    Tick,
)
from tests.simulation.locks import locks_of
from tests.simulation.looking import (
    GROUPS,
    INSERT_EFFECT,
    MAIL,
    SCHEDULE,
    TICKS,
    TOPIC,
    left,
    look,
    make_effects,
    mark_of,
    token_of,
)
from tests.simulation.rules import Violation, check
from tests.simulation.world import Fault, Killed, Process, Script, Turn, World

__all__ = ["Played", "Run", "run_script", "script_of"]

KEYS = ("a", "b")
LEASE_SECONDS = 6.0
VISIBILITY_SECONDS = 8.0
LOCK_SECONDS = 8.0
PERIOD_SECONDS = 5.0
PUBLISHES, PUTS = 6, 5
"""How many rounds each publisher, and each producer, makes."""

LEAVE_RATE = 0.05
"""After what part of its polls a subscriber leaves, and comes again."""

FAULT_STEPS, FAULT_RATE = 20_000, 0.01
"""At what part of the first turns something goes wrong."""

STEPS_MAX = 60_000
LOOK_STEPS = 100
BEGAN_US = 1_800_000_000_000_000

RETRY = rowmq.Constant(interval=1.0, max_attempts=30)


class Run:
    """One run of a script on a database."""

    def __init__(self, database: Database, script: Script) -> None:
        self.database = database
        self.world = World(script, began_us=BEGAN_US)
        self.world.crashed = self._crashed
        self.events: list[Event] = []
        self.processes: list[Process] = []
        self._roles: dict[Process, tuple[str, Callable[[Process], None]]] = {}
        self._busy: set[str] = set()
        """Those who have more to publish or to put."""
        self._over = False
        self._marks = 0

    def play(self) -> History:
        """All of it, and what came of it."""
        make_effects(self.database)
        with ExitStack() as stack:
            if not isinstance(self.database, SQLiteDatabase):
                locks = self.world.locks = locks_of(self.database)
                stack.callback(locks.close)
            stack.enter_context(in_world(self.world))
            mq = stack.enter_context(rowmq.connect(self.database.url, notify=False))
            self._go_on(mq)
            final = look(self.database, mq)
        return History(
            events=tuple(sorted(self.events, key=lambda event: event.began)),
            final=msgspec.structs.replace(final, due=self._due(final.ticks)),
            strict=frozenset(group for group, strict in GROUPS.items() if strict),
            transactional=frozenset([*GROUPS, MAIL]),
        )

    def _go_on(self, mq: rowmq.RowMQ) -> None:
        """Until all is published and put, until all is handled, until all have gone."""
        world = self.world
        try:
            self._begin()
            world.calm = False
            world.run(lambda: not self._busy, steps=STEPS_MAX)
            world.calm, world.set_by = True, max(world.set_by, 0)
            world.run(self._looked(partial(self._is_done, mq)), steps=STEPS_MAX)
            self._over = True
            world.run(lambda: not world.actors, steps=STEPS_MAX)
        finally:
            self._over = True
            world.kill_all(self.processes)

    # --- who there is -----------------------------------------------------------------------------

    def _begin(self) -> None:
        for number in (1, 2):
            self._enter(f"publisher-{number}", self._publish)
            self._enter(f"producer-{number}", self._produce)
            self._enter(f"worker-{number}", self._work)
            self._enter(f"scheduler-{number}", self._schedule)
            for group in GROUPS:
                self._enter(f"{group}-{number}", partial(self._consume, group))

    def _enter(self, name: str, role: Callable[[Process], None], life: int = 1) -> None:
        process = self.world.process(name if life == 1 else f"{name}#{life}")
        self._roles[process] = (name, role)
        self.processes.append(process)
        if role in (self._publish, self._produce):
            self._busy.add(name)
        process.spawn("main", partial(role, process))

    def _crashed(self, process: Process) -> None:
        """Whoever has died comes again as somebody new."""
        if process not in self._roles:
            return
        name, role = self._roles.pop(process)
        if self._over or not self.world.actors:
            return
        self._note(Crashed(actor=process.name, began=self.world.step, ended=self.world.step))
        life = 1 + sum(p.name.split("#")[0] == name for p in self.processes)
        self._enter(name, role, life)

    def _chance_of(self, process: Process) -> random.Random:
        """What decides what somebody does: not what others do meanwhile."""
        return random.Random(f"{self.world.script.seed} {process.name}")

    # --- what they do -----------------------------------------------------------------------------

    def _publish(self, process: Process) -> None:
        mq, chance = connect(process, self.database), self._chance_of(process)
        for _ in range(PUBLISHES):
            partition = Partition(TOPIC, chance.choice(KEYS))
            mark, how = self._new_mark("m"), chance.random()
            done = partial(self._published, partition, mark)
            if how < 0.6:
                self._try(done, partial(mq.publish, TOPIC, mark, key=partition.key))
            else:
                self._try(done, partial(self._publish_within, mq, partition, mark, how < 0.8))
            self.world.sleep(chance.random())
        self._is_through(process)

    def _publish_within(
        self, mq: rowmq.RowMQ, partition: Partition, mark: str, commit: bool
    ) -> Any:
        with mq.transaction() as tx:
            result = tx.publish(TOPIC, mark, key=partition.key)
            if not commit:
                raise Undone
        return result

    def _published(
        self, partition: Partition, mark: str, outcome: Outcome, result: Any, **when: Any
    ) -> Event:
        offset = None if result is None else result.offset
        return Published(partition=partition, mark=mark, outcome=outcome, offset=offset, **when)

    def _produce(self, process: Process) -> None:
        mq, chance = connect(process, self.database), self._chance_of(process)
        queue = mq.queue(MAIL)
        for _ in range(PUTS):
            mark, how = self._new_mark("j"), chance.random()
            key = chance.choice(["x", "y"]) if how < 0.5 else None
            done = partial(self._put, mark, key)
            if key is None:
                do = partial(queue.put, mark) if how < 0.8 else partial(self._put_within, mq, mark)
                self._try(done, do)
            elif how < 0.35:
                self._try(done, partial(queue.offer_or_update, key, mark))
            else:
                self._try(done, partial(queue.offer_if_not_exists, key, mark))
            self.world.sleep(chance.random())
        self._is_through(process)

    def _put_within(self, mq: rowmq.RowMQ, mark: str) -> None:
        with mq.transaction() as tx:
            tx.queue(MAIL).put(mark)

    def _put(self, mark: str, key: str | None, outcome: Outcome, result: Any, **when: Any) -> Event:
        if result is rowmq.Outcome.IGNORED:
            outcome = Outcome.FAILED
        return Put(queue=MAIL, mark=mark, key=key, outcome=outcome, **when)

    def _is_through(self, process: Process) -> None:
        self._busy.discard(self._roles[process][0])

    def _consume(self, group: str, process: Process) -> None:
        mq, chance = connect(process, self.database), self._chance_of(process)
        while not self._over:
            sub = self._insist(
                lambda: mq.subscribe(
                    TOPIC,
                    group=group,
                    name=process.name,
                    strict=GROUPS[group],
                    lease_duration=LEASE_SECONDS,
                    visibility=VISIBILITY_SECONDS,
                    max_attempts=30,
                    backoff=RETRY,
                )
            )
            while not self._over and (self.world.calm or chance.random() > LEAVE_RATE):
                with contextlib.suppress(TransientError):
                    self._poll(mq, group, sub, chance)
            with contextlib.suppress(TransientError):
                sub.close()

    def _poll(self, mq: rowmq.RowMQ, group: str, sub: Any, chance: random.Random) -> None:
        began = self.world.step
        deliveries = sub.poll(max=chance.randint(1, 4), timeout=1.0)
        for place in range(len(deliveries)):
            self._note_delivery(group, deliveries[place], began)
        while deliveries:  # what is kept of a strict group is not delivered again
            self._handle(mq, group, deliveries.pop(0), chance)

    def _note_delivery(self, group: str, delivery: Any, began: int) -> None:
        self._note(
            Delivered(
                actor=self.world.current().process.name,
                began=began,
                ended=self.world.step,
                place=self._place(group, delivery),
                offset=delivery.message.offset,
                mark=delivery.message.payload,
                epoch=delivery._token.holding.epoch,
                attempt=delivery.attempt,
            )
        )

    def _place(self, group: str, delivery: Any) -> Place:
        return Place(group, Partition(TOPIC, delivery.message.key))

    def _handle(self, mq: rowmq.RowMQ, group: str, delivery: Any, chance: random.Random) -> None:
        if chance.random() < 0.3:
            self.world.sleep(chance.random() * 2)
        kind = self._kind(chance)
        mark = delivery.message.payload

        def settle() -> None:
            if kind != "ack":
                getattr(delivery, kind)()
                return
            with mq.transaction() as tx:
                tx.execute(INSERT_EFFECT, [group, mark])
                delivery.ack(connection=tx)

        def settled(outcome: Outcome, _: Any, **when: Any) -> Event:
            return Settled(
                place=self._place(group, delivery),
                offset=delivery.message.offset,
                epoch=delivery._token.holding.epoch,
                attempt=delivery.attempt,
                kind=kind,
                outcome=outcome,
                **when,
            )

        self._try(settled, settle)

    def _kind(self, chance: random.Random) -> str:
        """How something is settled: mostly well, while things go wrong; and else always."""
        if self.world.calm:
            return "ack"
        return chance.choices(["ack", "nack", "release", "reject"], [80, 8, 8, 4])[0]

    def _work(self, process: Process) -> None:
        mq, chance = connect(process, self.database), self._chance_of(process)
        queues = [mq.queue(name, lock_timeout=LOCK_SECONDS, retry=RETRY) for name in (MAIL, TICKS)]
        poller = mq.poller(*queues)
        while not self._over:
            began = self.world.step
            try:
                jobs = poller.try_poll_many(chance.randint(1, 3))
            except TransientError:
                continue
            for job in jobs:
                self._note_claim(job, began)
            while jobs:
                self._handle_job(mq, jobs.pop(0), chance)
            self.world.sleep(0.2)

    def _note_claim(self, job: Any, began: int) -> None:
        self._note(
            Claimed(
                actor=self.world.current().process.name,
                began=began,
                ended=self.world.step,
                queue=job.queue,
                job=job.id,
                key=job.key,
                mark=mark_of(job),
                token=token_of(job),
                now=self.world.highest,
                until=self._at_least(began, LOCK_SECONDS),
            )
        )

    def _at_least(self, began: int, seconds: float) -> int:
        """Until when something lasts that the database has set since a step."""
        return min([*self.world.clocks[began:], self.world.clock]) + round(seconds * 1_000_000)

    def _handle_job(self, mq: rowmq.RowMQ, job: Any, chance: random.Random) -> None:
        if chance.random() < 0.3:
            self.world.sleep(chance.random() * 2)
        if chance.random() < 0.2:
            seconds = 1 + chance.random() * 2 * LOCK_SECONDS
            self._settle_job(job, "extend", partial(job.extend, seconds), seconds)
        kind = self._kind(chance)

        def settle() -> None:
            if kind != "ack" or job.queue != MAIL:
                getattr(job, kind)()
                return
            with mq.transaction() as tx:
                tx.execute(INSERT_EFFECT, [MAIL, mark_of(job)])
                job.ack(connection=tx)

        self._settle_job(job, kind, settle)

    def _settle_job(
        self, job: Any, kind: str, settle: Callable[[], None], seconds: float = 0
    ) -> None:
        def settled(outcome: Outcome, _: Any, **when: Any) -> Event:
            return JobSettled(
                queue=job.queue,
                job=job.id,
                token=token_of(job),
                kind=kind,
                outcome=outcome,
                until=self._at_least(when["began"], seconds),
                **when,
            )

        self._try(settled, settle)

    def _schedule(self, process: Process) -> None:
        mq = connect(process, self.database)
        self._insist(
            lambda: mq.cron.install_periodic(
                SCHEDULE, PERIOD_SECONDS, queue=TICKS, payload="tick", catch_up="all", tend=False
            )
        )
        while self._busy:
            with contextlib.suppress(TransientError):
                mq.cron.tend()
            self.world.sleep(1.0)

    def _insist(self, do: Callable[[], Any]) -> Any:
        while True:
            try:
                return do()
            except TransientError:
                self.world.sleep(0.5)

    # --- what is written down ---------------------------------------------------------------------

    def _try(self, event: Callable[..., Event], do: Callable[[], Any]) -> None:
        """Do something, and note what came of it."""
        actor, began = self.world.current().process.name, self.world.step
        outcome, result = Outcome.UNKNOWN, None
        try:
            result = do()
            outcome = Outcome.OK
        except StaleLease:
            outcome = Outcome.REFUSED
        except Undone:
            outcome = Outcome.FAILED
        except TransientError:
            outcome = Outcome.UNKNOWN  # perhaps the answer was lost
        except Killed:
            self._note(event(outcome, None, actor=actor, began=began))
            raise
        when = {"actor": actor, "began": began, "ended": self.world.step}
        self._note(event(outcome, result, **when))

    def _note(self, event: Event) -> None:
        self.events.append(event)

    def _new_mark(self, kind: str) -> str:
        self._marks += 1
        return f"{kind}{self._marks}"

    # --- what is there ----------------------------------------------------------------------------

    def _looked(self, condition: Callable[[], bool]) -> Callable[[], bool]:
        """A condition that is looked at now and then."""
        return lambda: self.world.step % LOOK_STEPS == 0 and condition()

    def _is_done(self, mq: rowmq.RowMQ) -> bool:
        if any(actor.name.startswith("scheduler") for actor in self.world.actors):
            return False  # it may make another tick
        try:
            return not any(left(mq))
        except UnknownGroup:
            return False  # whoever is to enter it first stands still

    def _due(self, made: tuple[Tick, ...]) -> tuple[tuple[str, int], ...]:
        """The times that must have a tick: all from the first to the last, unless the clock was
        set, which decides about which there are.
        """
        times = sorted({tick.due for tick in made})
        if any(turn.fault is Fault.CLOCK for turn in self.world.trace) or not times:
            return tuple((SCHEDULE, due) for due in times)
        period = round(PERIOD_SECONDS * 1_000_000)
        return tuple((SCHEDULE, due) for due in range(times[0], times[-1] + 1, period))


class Undone(Exception):
    """A transaction is rolled back, on purpose."""


def script_of(seed: int) -> Script:
    """The script of a seed."""
    return Script.of(seed, steps=FAULT_STEPS, rate=FAULT_RATE)


class Played(NamedTuple):
    """What came of a script."""

    violations: list[Violation]
    turns: list[Turn]
    messages: int
    """How many messages and jobs there were."""


def run_script(database: Database, script: Script) -> Played:
    """Play a script, and check what came of it."""
    run = Run(database, script)
    try:
        violations = check(run.play())
    except Exception as error:  # noqa: BLE001 - told as what is wrong
        violations = [Violation("nothing fails", f"{type(error).__name__}: {error}")]
    messages = sum(isinstance(event, Published | Put) for event in run.events)
    return Played(violations, run.world.trace, messages)
