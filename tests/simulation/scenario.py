"""Who acts in a world, and what they do there: publishers, subscribers, workers and schedulers.

All of it is written down as it happens. When publishers and producers are done, nothing goes wrong
any more, and the others go on until all is handled; then it is looked at what is in the database.
"""

import contextlib
import random
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial
from typing import Any

import rowmq
from rowmq.cron.options import FIRE_AT_HEADER, SCHEDULE_HEADER
from rowmq.errors import StaleLease, TransientError
from rowmq.times import to_micros
from tests.databases import Database, SQLiteDatabase
from tests.simulation.clients import connect, in_world
from tests.simulation.history import (
    Claimed,
    Crashed,
    Delivered,
    Effect,
    Event,
    Final,
    History,
    Job,
    JobSettled,
    Outcome,
    Partition,
    Place,
    Progress,
    Published,
    Put,
    Settled,
    Stored,
    Tick,
)
from tests.simulation.rules import Violation, check
from tests.simulation.sessions import is_stuck_on
from tests.simulation.world import Killed, Process, Script, Turn, World

__all__ = ["Run", "run_script", "script_of"]

TOPIC, MAIL, TICKS = "orders", "mail", "ticks"
KEYS = ("a", "b")
GROUPS = {"loose": False, "strict": True}
"""The groups, and whether they keep strict order; their handlers are transactional."""

LEASE_SECONDS = 6.0
VISIBILITY_SECONDS = 8.0
LOCK_SECONDS = 8.0
PERIOD_SECONDS = 5.0
PUBLISHES, PUTS = 6, 5
"""How many rounds each publisher, and each producer, makes."""

FAULT_STEPS, FAULT_RATE = 20_000, 0.01
"""At what part of the first turns something goes wrong."""

STEPS_MAX = 60_000
LOOK_STEPS = 100
BEGAN_US = 1_800_000_000_000_000

EFFECTS = {
    "sqlite": "id INTEGER PRIMARY KEY AUTOINCREMENT",
    "postgres": "id bigserial PRIMARY KEY",
    "mysql": "id bigint PRIMARY KEY AUTO_INCREMENT",
}
INSERT_EFFECT = "INSERT INTO simulated_effects (owner, mark) VALUES (?, ?)"

RETRY = rowmq.Constant(interval=1.0, max_attempts=30)


class Run:
    """One run of a script on a database."""

    def __init__(self, database: Database, script: Script) -> None:
        self.database = database
        self.world = World(script, began_us=BEGAN_US)
        self.world.crashed = self._crashed
        if not isinstance(database, SQLiteDatabase):
            self.world.is_stuck = is_stuck_on(database)
        self.events: list[Event] = []
        self.processes: list[Process] = []
        self._chance = random.Random(f"{script.seed} actors")
        self._roles: dict[Process, tuple[str, Callable[[Process], None]]] = {}
        self._busy: set[str] = set()
        """Those who have more to publish or to put."""
        self._over = False
        self._marks = 0

    def play(self) -> History:
        """All of it, and what came of it."""
        self._make_effects()
        world = self.world
        with in_world(world):
            try:
                self._begin()
                world.calm = False
                world.run(lambda: not self._busy, steps=STEPS_MAX)
                world.calm, world.set_by = True, max(world.set_by, 0)
                world.run(self._looked(self._is_done), steps=STEPS_MAX)
                self._over = True
                world.run(lambda: not world.actors, steps=STEPS_MAX)
            finally:
                world.kill_all(self.processes)
        return History(
            events=tuple(sorted(self.events, key=lambda event: event.began)),
            final=self._final(),
            strict=frozenset(group for group, strict in GROUPS.items() if strict),
            transactional=frozenset([*GROUPS, MAIL]),
        )

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

    # --- what they do -----------------------------------------------------------------------------

    def _publish(self, process: Process) -> None:
        mq = connect(process, self.database)
        for _ in range(PUBLISHES):
            partition = Partition(TOPIC, self._chance.choice(KEYS))
            mark = self._new_mark("m")
            done = partial(self._published, partition, mark)
            how = self._chance.random()
            if how < 0.6:
                self._try(done, partial(mq.publish, TOPIC, mark, key=partition.key))
            else:
                self._try(done, partial(self._publish_within, mq, partition, mark, how < 0.8))
            self.world.sleep(self._chance.random())
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
        mq = connect(process, self.database)
        queue = mq.queue(MAIL)
        for _ in range(PUTS):
            mark, how = self._new_mark("j"), self._chance.random()
            key = self._chance.choice(["x", "y"]) if how < 0.4 else None
            done = partial(self._put, mark, key)
            if key is not None:
                self._try(done, partial(queue.offer_or_update, key, mark))
            else:
                self._try(done, partial(queue.put, mark))
            self.world.sleep(self._chance.random())
        self._is_through(process)

    def _put(self, mark: str, key: str | None, outcome: Outcome, _: Any, **when: Any) -> Event:
        return Put(queue=MAIL, mark=mark, key=key, outcome=outcome, **when)

    def _is_through(self, process: Process) -> None:
        self._busy.discard(self._roles[process][0])

    def _consume(self, group: str, process: Process) -> None:
        mq = connect(process, self.database)
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
        while not self._over:
            began = self.world.step
            try:
                deliveries = sub.poll(max=self._chance.randint(1, 4), timeout=1.0)
            except TransientError:
                continue
            for delivery in deliveries:
                self._note(
                    Delivered(
                        actor=process.name,
                        began=began,
                        ended=self.world.step,
                        place=self._place(group, delivery),
                        offset=delivery.message.offset,
                        mark=delivery.message.payload,
                        epoch=delivery._token.holding.epoch,
                        attempt=delivery.attempt,
                    )
                )
            while deliveries:
                self._handle(mq, group, deliveries.pop(0))
        sub.close()

    def _place(self, group: str, delivery: Any) -> Place:
        return Place(group, Partition(TOPIC, delivery.message.key))

    def _handle(self, mq: rowmq.RowMQ, group: str, delivery: Any) -> None:
        if self._chance.random() < 0.3:
            self.world.sleep(self._chance.random() * 2)
        kind = self._kind()
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

    def _kind(self) -> str:
        """How something is settled: mostly well, while things go wrong; and else always."""
        if self.world.calm:
            return "ack"
        return self._chance.choices(["ack", "nack", "release", "reject"], [80, 8, 8, 4])[0]

    def _work(self, process: Process) -> None:
        mq = connect(process, self.database)
        queues = [mq.queue(name, lock_timeout=LOCK_SECONDS, retry=RETRY) for name in (MAIL, TICKS)]
        poller = mq.poller(*queues)
        while not self._over:
            began, now = self.world.step, self.world.clock
            try:
                jobs = poller.try_poll_many(self._chance.randint(1, 3))
            except TransientError:
                continue
            for job in jobs:
                self._note(
                    Claimed(
                        actor=process.name,
                        began=began,
                        ended=self.world.step,
                        queue=job.queue,
                        job=job.id,
                        key=job.key,
                        mark=mark_of(job),
                        token=token_of(job),
                        now=self.world.highest,
                        until=now + round(LOCK_SECONDS * 1_000_000),
                    )
                )
            while jobs:
                self._handle_job(mq, jobs.pop(0))
            self.world.sleep(0.2)

    def _handle_job(self, mq: rowmq.RowMQ, job: Any) -> None:
        if self._chance.random() < 0.3:
            self.world.sleep(self._chance.random() * 2)
        kind = self._kind()

        def settle() -> None:
            if kind != "ack" or job.queue != MAIL:
                getattr(job, kind)()
                return
            with mq.transaction() as tx:
                tx.execute(INSERT_EFFECT, [MAIL, mark_of(job)])
                job.ack(connection=tx)

        def settled(outcome: Outcome, _: Any, **when: Any) -> Event:
            return JobSettled(
                queue=job.queue,
                job=job.id,
                token=token_of(job),
                kind=kind,
                outcome=outcome,
                **when,
            )

        self._try(settled, settle)

    def _schedule(self, process: Process) -> None:
        mq = connect(process, self.database)
        self._insist(
            lambda: mq.cron.install_periodic(
                "tick", PERIOD_SECONDS, queue=TICKS, payload="tick", catch_up="all", tend=False
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

    def _is_done(self) -> bool:
        if any(actor.name.startswith("scheduler") for actor in self.world.actors):
            return False  # it may make another tick
        with rowmq.connect(self.database.url, notify=False) as mq:
            return not any(self._left(mq))

    def _left(self, mq: rowmq.RowMQ) -> Iterator[int]:
        for group in GROUPS:
            yield sum(info.lag for info in mq.lag(TOPIC, group))
        for queue in (MAIL, TICKS):
            counts = mq.queue(queue).counts()
            yield counts["pending"] + counts["processing"] + counts["retryable"]

    def _final(self) -> Final:
        with rowmq.connect(self.database.url, notify=False) as mq:
            messages = tuple(
                Stored(Partition(TOPIC, m.key), m.offset, m.payload)
                for m in mq.read(TOPIC, limit=10_000)
            )
            dead: dict[Place, set[int]] = {}
            for letter in mq.dead_letters(TOPIC, limit=10_000):
                place = Place(letter.group, Partition(TOPIC, letter.message.key))
                dead.setdefault(place, set()).add(letter.offset)
            progress = []
            for group in GROUPS:
                for info in mq.lag(TOPIC, group):
                    place = Place(group, Partition(TOPIC, info.key))
                    gone = frozenset(dead.get(place, ()))
                    progress.append(Progress(place, 0, info.offset_acked, dead=gone))
            found = [
                job
                for name in (MAIL, TICKS)
                for queue in [mq.queue(name)]
                for job in [*queue.live(limit=10_000), *queue.archive(limit=10_000)]
            ]
            made = tuple(
                Tick(job.headers[SCHEDULE_HEADER], fire_at(job), job.id)
                for job in found
                if job.queue == TICKS
            )
            return Final(
                messages=messages,
                progress=tuple(progress),
                jobs=tuple(
                    Job(job.queue, job.id, mark_of(job), job.state.value, job.key) for job in found
                ),
                ticks=made,
                due=self._due(made),
                effects=tuple(
                    Effect(owner, mark)
                    for owner, mark in self.database.execute(
                        "SELECT owner, mark FROM simulated_effects ORDER BY id"
                    )
                ),
                counts={name: mq.queue(name).counts() for name in (MAIL, TICKS)},
                lags={
                    (TOPIC, group): sum(info.lag for info in mq.lag(TOPIC, group))
                    for group in GROUPS
                },
            )

    def _due(self, made: tuple[Tick, ...]) -> tuple[tuple[str, int], ...]:
        """The times that must have a tick: all from the first to the last, unless the clock was
        set, which decides about which there are.
        """
        times = sorted({tick.due for tick in made})
        if any(turn.fault is not None and turn.fault.name == "CLOCK" for turn in self.world.trace):
            return tuple(("tick", due) for due in times)
        period = round(PERIOD_SECONDS * 1_000_000)
        if not times:
            return ()
        return tuple(("tick", due) for due in range(times[0], times[-1] + 1, period))

    def _make_effects(self) -> None:
        self.database.execute("DROP TABLE IF EXISTS simulated_effects")
        column = EFFECTS[self.database.dialect]
        self.database.execute(
            f"CREATE TABLE simulated_effects ({column}, owner varchar(50), mark varchar(50))"
        )


class Undone(Exception):
    """A transaction is rolled back, on purpose."""


def mark_of(job: Any) -> str:
    """What tells a job apart: what was put, or the time of its tick."""
    return f"tick {fire_at(job)}" if job.queue == TICKS else str(job.payload)


def token_of(job: Any) -> int:
    token: int = job._facts.claimed.token
    return token


def fire_at(job: Any) -> int:
    return to_micros(datetime.fromisoformat(job.headers[FIRE_AT_HEADER]))


def script_of(seed: int) -> Script:
    """The script of a seed."""
    return Script.of(seed, steps=FAULT_STEPS, rate=FAULT_RATE)


def run_script(database: Database, script: Script) -> tuple[list[Violation], list[Turn]]:
    """What is wrong with a run, and its turns."""
    run = Run(database, script)
    try:
        history = run.play()
    except Exception as error:  # noqa: BLE001 - told as what is wrong
        return [Violation("nothing fails", f"{type(error).__name__}: {error}")], run.world.trace
    return check(history), run.world.trace
