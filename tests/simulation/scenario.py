"""Who acts in a world, and what they do there: publishers, subscribers, workers and schedulers.

What a run has beyond that, its plan says. All of it is written down as it happens. When publishers
and producers are done, nothing goes wrong any more, and the others go on until all is handled; then
it is looked at what is in the database.
"""

import contextlib
import itertools
import random
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from operator import methodcaller
from typing import Any, NamedTuple

import msgspec

import rowmq
from rowmq.errors import TransientError, UnknownGroup
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
from tests.simulation.notes import Notes
from tests.simulation.operating import Operator
from tests.simulation.plans import COLLECT, SEEK, plan_of
from tests.simulation.rules import Violation, check
from tests.simulation.world import Fault, Process, Script, Turn, World

__all__ = ["Played", "Run", "run_script", "script_of"]

LINES = ("red", "green", None)
LEASE_SECONDS = 6.0
VISIBILITY_SECONDS = 8.0
LOCK_SECONDS = 8.0
PERIOD_SECONDS = 5.0
PERIOD_US = round(PERIOD_SECONDS * 1_000_000)
PUBLISHES, PUTS = 6, 5
"""How many rounds each publisher, and each producer, makes."""

TRIES = 3
"""How often something is published under its own id, at most."""

LEAVE_RATE = 0.05
"""After what part of its polls a subscriber leaves, and comes again."""

FAULT_STEPS, FAULT_RATE = 20_000, 0.05
"""At what part of the first turns something goes wrong, if they are a COMMIT."""

STEPS_MAX = 60_000
AFTER_US = 10_000_000
"""How long it goes on when all is done, so that it is seen whether anything comes again: longer
than any lease, or lock, or invisibility lasts.
"""
LOOK_STEPS = 100
BEGAN_US = 1_800_000_000_000_000

STRICT = frozenset(group for group, strict in GROUPS.items() if strict)

RETRY = rowmq.Constant(interval=1.0, max_attempts=30)


class Run:
    """One run of a script on a database."""

    def __init__(self, database: Database, script: Script) -> None:
        self.database = database
        self.plan = plan_of(script.seed)
        self.world = World(script, began_us=BEGAN_US)
        self.world.crashed = self._crashed
        self.notes = Notes(self.world)
        self.processes: list[Process] = []
        self._roles: dict[Process, tuple[str, Callable[[Process], None]]] = {}
        self._busy: set[str] = set()
        """Those who have more to publish or to put."""
        self._over = False
        self._installed: int | None = None
        """When somebody was first told that the schedule is there, by the database's clock."""
        self._tended = 0
        """When it was last seen to that all ticks are made that were due."""

    def play(self) -> History:
        """All of it, and what came of it."""
        make_effects(self.database)
        with ExitStack() as stack:
            if not isinstance(self.database, SQLiteDatabase):
                locks = self.world.locks = locks_of(self.database)
                stack.callback(locks.close)
            stack.enter_context(in_world(self.world))
            mq = stack.enter_context(rowmq.connect(self.database.url, notify=False))
            self._prepare(mq)
            self._go_on(mq)
            final = look(self.database, mq)
        return History(
            events=tuple(sorted(self.notes.events, key=lambda event: event.began)),
            final=msgspec.structs.replace(final, due=self._due(final.ticks)),
            strict=STRICT,
            transactional=frozenset([*GROUPS, MAIL]) - self._plain,
            clocks=tuple(self.world.clocks),
            limits={} if self.plan.limit is None else {MAIL: self.plan.limit},
        )

    @property
    def _plain(self) -> frozenset[str]:
        """The groups that ack by themselves."""
        return frozenset(GROUPS) - STRICT if self.plan.plain else frozenset()

    def _prepare(self, mq: rowmq.RowMQ) -> None:
        """What must be there before anybody comes."""
        if self.plan.limit is not None:
            mq.queue(MAIL).configure(max_in_flight=self.plan.limit)
        if self.plan.duties:  # who enters a group later is not given what was collected before
            for group in GROUPS:
                mq.create_group(TOPIC, group)

    def _go_on(self, mq: rowmq.RowMQ) -> None:
        """Until all is published and put, until all is handled, until all have gone."""
        world = self.world
        try:
            self._begin()
            world.calm = False
            world.run(lambda: not self._busy, steps=STEPS_MAX)
            world.calm, world.set_by = True, max(world.set_by, 0)
            world.run(self._looked(partial(self._is_done, mq)), steps=STEPS_MAX)
            until = world.now + AFTER_US
            world.run(lambda: world.now >= until, steps=STEPS_MAX)
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
        for number in (1, 2) if SEEK not in self.plan.duties else (1,):
            if self.plan.duties:
                self._enter(f"operator-{number}", self._operate)

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
        self.notes.note(Crashed(actor=process.name, began=self.world.step, ended=self.world.step))
        life = 1 + sum(p.name.split("#")[0] == name for p in self.processes)
        self._enter(name, role, life)

    def _chance_of(self, process: Process) -> random.Random:
        """What decides what somebody does: not what others do meanwhile."""
        return random.Random(f"{self.world.script.seed} {process.name}")

    # --- what they do -----------------------------------------------------------------------------

    def _publish(self, process: Process) -> None:
        mq, chance = connect(process, self.database), self._chance_of(process)
        for _ in range(PUBLISHES):
            key = chance.choice(self.plan.keys)
            mark, how = self.notes.new_mark("m"), chance.random()
            done = partial(self._published, key, mark)
            if how < 0.4:
                self.notes.attempt(done, partial(mq.publish, TOPIC, mark, key=key))
            elif how < 0.6:
                self._publish_again(mq, done, mark, key, chance)
            else:
                body = methodcaller("publish", TOPIC, mark, key=key)
                self.notes.within(mq, done, body, commit=how < 0.8)
            self.world.sleep(chance.random())
        self._is_through(process)

    def _publish_again(
        self,
        mq: rowmq.RowMQ,
        done: Callable[..., Event],
        mark: str,
        key: str | None,
        chance: random.Random,
    ) -> None:
        """Under an id of its own, for want of an answer, or for no reason: what is there is not
        published again, as long as it is there.
        """
        publish = partial(mq.publish, TOPIC, mark, key=key, id=mark)
        for _ in range(1 if COLLECT in self.plan.duties else TRIES):
            if self.notes.attempt(done, publish) is Outcome.OK and chance.random() < 0.5:
                break

    def _published(
        self, key: str | None, mark: str, outcome: Outcome, result: Any, **when: Any
    ) -> Event:
        if result is None:
            partition = Partition(TOPIC, key)
            return Published(partition=partition, mark=mark, outcome=outcome, **when)
        return Published(
            partition=Partition(TOPIC, key, result.shard),
            mark=mark,
            outcome=outcome,
            offset=result.offset,
            duplicate=result.duplicate,
            **when,
        )

    def _produce(self, process: Process) -> None:
        mq, chance = connect(process, self.database), self._chance_of(process)
        queue = mq.queue(MAIL)
        for _ in range(PUTS):
            mark, how = self.notes.new_mark("j"), chance.random()
            if how < 0.5:
                key, update = chance.choice(["x", "y"]), how < 0.35
                offer = queue.offer_or_update if update else queue.offer_if_not_exists
                done = partial(self._offered, mark, key, update)
                self.notes.attempt(done, partial(offer, key, mark))
            else:
                line = chance.choice(LINES) if self.plan.lines else None
                done = partial(self._put, mark, line)
                if how < 0.8:
                    self.notes.attempt(done, partial(queue.put, mark, ordering_key=line))
                else:
                    self.notes.within(mq, done, partial(self._put_within, mark, line))
            self.world.sleep(chance.random())
        self._is_through(process)

    def _put_within(self, mark: str, line: str | None, tx: Any) -> None:
        tx.queue(MAIL).put(mark, ordering_key=line)

    def _put(self, mark: str, line: str | None, outcome: Outcome, _: Any, **when: Any) -> Event:
        return Put(queue=MAIL, mark=mark, line=line, replaces=False, outcome=outcome, **when)

    def _offered(
        self, mark: str, key: str, update: bool, outcome: Outcome, result: Any, **when: Any
    ) -> Event:
        ignored = result is rowmq.Outcome.IGNORED
        return Put(
            queue=MAIL,
            mark=mark,
            key=key,
            replaces=update and result is not rowmq.Outcome.CREATED,
            ignored=ignored,
            outcome=Outcome.FAILED if ignored else outcome,
            **when,
        )

    def _is_through(self, process: Process) -> None:
        self._busy.discard(self._roles[process][0])

    def _consume(self, group: str, process: Process) -> None:
        mq, chance = connect(process, self.database), self._chance_of(process)
        for number in itertools.count(1):
            if self._over:
                return
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
            owner = f"{process.name}, subscribed {number} times"
            while not self._over and (self.world.calm or chance.random() > LEAVE_RATE):
                with contextlib.suppress(TransientError):
                    self._poll(mq, sub, owner, chance)
            with contextlib.suppress(TransientError):
                sub.close()

    def _poll(self, mq: rowmq.RowMQ, sub: Any, owner: str, chance: random.Random) -> None:
        began = self.world.step
        deliveries = sub.poll(max=chance.randint(1, 4), timeout=4.0 if self.world.calm else 1.0)
        numbers = [
            self._note_delivery(deliveries[place], owner, began) for place in range(len(deliveries))
        ]
        while deliveries:  # what is kept of a strict group is not delivered again
            self._handle(mq, sub, deliveries.pop(0), numbers.pop(0), chance)

    def _note_delivery(self, delivery: Any, owner: str, began: int) -> int:
        number = self.notes.new_number()
        self.notes.note(
            Delivered(
                actor=owner,
                began=began,
                ended=self.world.step,
                place=place_of(delivery),
                offset=delivery.message.offset,
                mark=delivery.message.payload,
                epoch=delivery._token.holding.epoch,
                attempt=delivery.attempt,
                number=number,
                until=self._invisible_until(began),
            )
        )
        return number

    def _invisible_until(self, began: int) -> int:
        """A subscriber keeps the time by itself, from when it was told it: once the clock was set,
        nobody knows what that is.
        """
        if not self.world.script.steady:
            return 0
        return self.notes.at_least(began, VISIBILITY_SECONDS)

    def _handle(
        self, mq: rowmq.RowMQ, sub: Any, delivery: Any, number: int, chance: random.Random
    ) -> None:
        if chance.random() < 0.3:
            self.world.sleep(chance.random() * 2)
        kind, how = self._kind(chance), chance.random()
        group, mark = delivery.group, delivery.message.payload

        def settled(outcome: Outcome, _: Any, **when: Any) -> Event:
            return Settled(
                place=place_of(delivery),
                offset=delivery.message.offset,
                epoch=delivery._token.holding.epoch,
                attempt=delivery.attempt,
                number=number,
                kind=kind,
                outcome=outcome,
                **when,
            )

        def ack_within(tx: Any) -> None:
            tx.execute(INSERT_EFFECT, [group, mark])
            delivery.ack(connection=tx)

        if kind != "ack":
            self.notes.attempt(settled, getattr(delivery, kind))
        elif group not in self._plain:
            self.notes.within(mq, settled, ack_within)
        else:
            self.notes.attempt(settled, delivery.ack if how < 0.5 else partial(sub.ack, [delivery]))

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
            self.world.sleep(1.0 if self.world.calm else 0.2)

    def _note_claim(self, job: Any, began: int) -> None:
        self.notes.note(
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
                until=self.notes.at_least(began, LOCK_SECONDS),
            )
        )

    def _handle_job(self, mq: rowmq.RowMQ, job: Any, chance: random.Random) -> None:
        if chance.random() < 0.3:
            self.world.sleep(chance.random() * 2)
        if chance.random() < 0.2:
            seconds = 1 + chance.random() * 2 * LOCK_SECONDS
            extended = partial(self._job_settled, job, "extend", seconds)
            self.notes.attempt(extended, partial(job.extend, seconds))
        kind = self._kind(chance)
        settled = partial(self._job_settled, job, kind, 0.0)

        def ack_within(tx: Any) -> None:
            tx.execute(INSERT_EFFECT, [MAIL, mark_of(job)])
            job.ack(connection=tx)

        if kind == "ack" and job.queue == MAIL:
            self.notes.within(mq, settled, ack_within)
        else:
            self.notes.attempt(settled, getattr(job, kind))

    def _job_settled(
        self, job: Any, kind: str, seconds: float, outcome: Outcome, _: Any, **when: Any
    ) -> Event:
        return JobSettled(
            queue=job.queue,
            job=job.id,
            token=token_of(job),
            kind=kind,
            outcome=outcome,
            until=self.notes.at_least(when["began"], seconds),
            **when,
        )

    def _schedule(self, process: Process) -> None:
        mq = connect(process, self.database)
        self._insist(
            lambda: mq.cron.install_periodic(
                SCHEDULE, PERIOD_SECONDS, queue=TICKS, payload="tick", catch_up="all", tend=False
            )
        )
        if self._installed is None:
            self._installed = self.world.clock
        while self._busy:
            with contextlib.suppress(TransientError):
                mq.cron.tend()
            self.world.sleep(1.0)
        self._tended = max(self._tended, self._insist(partial(self._tend, mq)))

    def _tend(self, mq: rowmq.RowMQ) -> int:
        """See to it that what is due is made; what time it was."""
        now = self.world.clock
        mq.cron.tend()
        return now

    def _operate(self, process: Process) -> None:
        mq, chance = connect(process, self.database), self._chance_of(process)
        operator = Operator(mq, self.notes, chance, self.plan.duties)
        while self._busy:
            operator.go_round()
            self.world.sleep(chance.random() * 4)

    def _insist(self, do: Callable[[], Any]) -> Any:
        while True:
            try:
                return do()
            except TransientError:
                self.world.sleep(0.5)

    # --- what is there ----------------------------------------------------------------------------

    def _looked(self, condition: Callable[[], bool]) -> Callable[[], bool]:
        """A condition that is looked at now and then."""
        return lambda: self.world.step % LOOK_STEPS == 0 and condition()

    def _is_done(self, mq: rowmq.RowMQ) -> bool:
        if any(actor.name.startswith(("scheduler", "operator")) for actor in self.world.actors):
            return False  # it may make another tick, or give something back
        try:
            return not any(left(mq))
        except UnknownGroup:
            return False  # whoever is to enter it first stands still

    def _due(self, made: tuple[Tick, ...]) -> tuple[tuple[str, int], ...]:
        """The times that must have a tick: all from the first one to when it was last seen to that
        they are made. Later ones may: the clock may have been ahead by then, and set back.
        """
        times = {tick.due for tick in made}
        starts = list(times)
        if self._installed is not None and not any(
            turn.fault is Fault.CLOCK for turn in self.world.trace
        ):
            starts.append((self._installed // PERIOD_US + 1) * PERIOD_US)
        wanted = set(range(min(starts, default=self._tended + 1), self._tended + 1, PERIOD_US))
        allowed = {at for at in times if at % PERIOD_US == 0 and at <= self.world.highest}
        return tuple((SCHEDULE, due) for due in sorted(wanted | allowed))


def place_of(delivery: Any) -> Place:
    """Where a delivery is from."""
    message = delivery.message
    return Place(delivery.group, Partition(TOPIC, message.key, message.shard))


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
    messages = sum(isinstance(event, Published | Put) for event in run.notes.events)
    return Played(violations, run.world.trace, messages)
