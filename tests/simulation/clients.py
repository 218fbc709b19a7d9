"""RowMQ's own clients and subscribers, in a world: their time is the world's, and what they do in
the background are actors like others.
"""

import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest import mock

import msgspec

import rowmq
from rowmq.drivers.base import SyncDriver, take_steps
from rowmq.engine import Options, open_engine
from rowmq.errors import Closed, ConnectionLost, RowMQError, UnknownGroup
from rowmq.subscriber import subscriber
from rowmq.subscriber.flavours import Threads, pause_before
from rowmq.subscriber.subscription import Subscription
from tests.databases import Database, MySQLDatabase, SQLiteDatabase
from tests.simulation.sessions import BROKEN, NOW, ServerSession, SQLiteFileSession
from tests.simulation.world import CONNECT, Fault, Process, World

__all__ = ["connect", "in_world"]

RETRY_SECONDS = 3.0

LOCK_SECONDS = 600.0
"""Longer than a run takes: patience with locks is a matter of the world's time."""


def connect(process: Process, database: Database) -> rowmq.RowMQ:
    """A client of a process. Nothing is connected to yet."""
    options = Options(
        clock=NOW,
        notify=False,
        retry_for=RETRY_SECONDS,
        prepared_statements=False,
        lock_timeout=LOCK_SECONDS,
    )
    engine = open_engine(database.url, options)
    wrap_sessions(process, database, engine.driver)

    def spare(**_: Any) -> SyncDriver:
        driver = open_engine(database.url, options).driver
        wrap_sessions(process, database, driver)
        return driver

    mq = rowmq.RowMQ(msgspec.structs.replace(engine, spare=spare, new_watch=None))
    mq._checked = True
    return mq


def wrap_sessions(process: Process, database: Database, driver: SyncDriver) -> None:
    """Have all connections of a driver be the world's."""
    pool: Any = driver.pool
    open_session = pool.open_session

    def open_simulated() -> Any:
        if process.world.turn(CONNECT) is Fault.LOST:
            process.world.befallen[Fault.LOST] += 1
            raise ConnectionLost(BROKEN)
        inner = open_session()
        if isinstance(database, SQLiteDatabase):
            return SQLiteFileSession(process, inner)
        return ServerSession(process, inner, number_of(inner, database))

    pool.open_session = open_simulated


def number_of(session: Any, database: Database) -> int:
    """How the server calls a connection."""
    if isinstance(database, MySQLDatabase):
        return int(session.connection.thread_id())
    return int(session.connection.info.backend_pid)


@contextmanager
def in_world(world: World) -> Iterator[None]:
    """Have RowMQ's code in this process live in a world, for a while."""
    chance = random.Random(f"{world.script.seed} secrets")
    fakes = {"time": WorldTime(world), "secrets": WorldSecrets(chance)}
    random.seed(world.script.seed)
    with ExitStack() as stack:
        for name, module in list(sys.modules.items()):
            if not name.startswith("rowmq."):
                continue
            for attribute, fake in fakes.items():
                if getattr(module, attribute, None) is sys.modules[attribute]:
                    stack.enter_context(mock.patch.object(module, attribute, fake))
        stack.enter_context(mock.patch.object(subscriber, "Threads", partial(Greenlets, world)))
        yield


class WorldTime:
    """The module `time`."""

    def __init__(self, world: World) -> None:
        self._world = world

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def monotonic(self) -> float:
        return self._world.now / 1_000_000

    time = monotonic

    def sleep(self, seconds: float) -> None:
        self._world.sleep(seconds)


class WorldSecrets:
    """The module `secrets`, of which nothing is secret."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self.choice = chance.choice
        self.randbits = chance.getrandbits

    def token_hex(self, size: int) -> str:
        return self._chance.randbytes(size).hex()


class Lock:
    """A lock of actors."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._taken = False

    def acquire(self) -> None:
        while self._taken:
            self._world.sleep(0.001)
        self._taken = True

    def release(self) -> None:
        self._taken = False


class Greenlets(Threads):
    """What a subscriber is run with, in a world: its heartbeats and its tending are actors."""

    def __init__(self, world: World, *arguments: Any) -> None:
        self._world = world
        self._process = world.current().process
        super().__init__(*arguments)

    def reset(self) -> None:
        super().reset()
        self.lock = Lock(self._world)  # type: ignore[assignment] # as far as it is used
        self._waiting: list[Any] = []

    def wait(self, seconds: float) -> None:
        if self.event.is_set():
            return
        actor = self._world.current()
        self._waiting.append(actor)
        try:
            self._world.sleep(seconds)
        finally:
            self._waiting.remove(actor)

    def wake(self) -> None:
        super().wake()
        for actor in self._waiting:
            actor.wake_at = self._world.now

    def watched(self) -> bool:
        return False

    def begin(self, core: Subscription) -> None:
        heart: Any = self.home.heart
        heart._line = Line(heart._open_driver)
        name = core.options.name
        self._process.spawn(f"{name} heart", self._again_and_again(core, self._beat))
        self._process.spawn(f"{name} tender", self._again_and_again(core, self._tend_once))

    def end(self, core: Subscription) -> None:  # noqa: ARG002 - they see that it is closed
        self.stopping.set()
        self.wake()

    def _again_and_again(
        self, core: Subscription, step: Callable[[Subscription], float]
    ) -> Callable[[], None]:
        def go_on() -> None:
            pause = core.options.heartbeat_interval
            while not self.stopping.is_set():
                self._world.sleep(pause)
                if self.stopping.is_set():
                    return
                pause = step(core)

        return go_on

    def _beat(self, core: Subscription) -> float:
        """As `Heart` does, on a connection of its own."""
        return self.home.heart._beat_once(core)

    def _tend_once(self, core: Subscription) -> float:
        try:
            take_steps(core.tend())
        except (Closed, UnknownGroup):
            self.stopping.set()
        except RowMQError:
            return 1.0
        return pause_before(core)


class Line:
    """A connection for heartbeats: asked in the actor's own turns."""

    def __init__(self, open_driver: Callable[[], SyncDriver]) -> None:
        self._driver = open_driver()

    def ask(self, make: Callable[[], Any], *, seconds: float) -> Any:  # noqa: ARG002 - it answers
        return self._driver.run(make, retry_for=0)
