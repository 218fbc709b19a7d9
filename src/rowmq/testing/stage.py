"""An app on stage: its handlers, run one at a time, when a test says so.

    tend schedules ─► the next unit of the next handler ─► execute ─► settle ─► a record of it
          ▲                                                                        │
          └──────────────── until nobody has anything that is due ◄────────────────┘

It is the worker's own machinery, from the source to the verdict, without its loops: nothing happens
between two calls.
"""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime
from typing import Any, Literal

import msgspec

from rowmq.client import RowMQ
from rowmq.cron.core import Round
from rowmq.drivers.base import take_steps_async
from rowmq.errors import AlreadySettled, PayloadMismatch, StaleLease
from rowmq.message import State
from rowmq.subscriber.delivery import AsyncDelivery
from rowmq.telemetry.handling import HANDLED_NOW, HANDLER_NOW
from rowmq.testing.database import Database
from rowmq.testing.sources import DueJobs, DueMessages, DueSource, SeenUnit
from rowmq.times import from_micros, to_micros
from rowmq.worker.app import App
from rowmq.worker.bridge import Bridge
from rowmq.worker.context import Context
from rowmq.worker.executor import Executor
from rowmq.worker.handler import Handler
from rowmq.worker.maintenance import Maintenance
from rowmq.worker.runtime import Runtime, Status, called
from rowmq.worker.unit import Verdict

__all__ = ["Handled", "HandledAs", "Limits", "Stage"]

HandledAs = Literal["acked", "retried", "failed", "released", "lost"]

SETTLED: dict[str, HandledAs] = {"ack": "acked", "reject": "failed", "release": "released"}

LETTERS_MAX = 100_000

Raised = Callable[[], BaseException | None]
"""What the handler at work has raised, if anything."""


class Handled(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one message or job.

    `outcome` is `acked`, `retried` (it comes again, at once or later), `failed` (it is in the dead
    letters, or among the failed jobs), `released` (its handler gave it back), or `lost` (its lock
    or lease had run out when it was to be settled). `error` is what the handler raised. One whose
    payload does not parse was never given to the handler: it has `failed`, with the `payload` None.
    """

    handler: str
    source: str
    """The topic, or the queue."""
    id: str
    """The message's id, or the job's."""
    key: str | None
    payload: Any
    attempt: int
    outcome: HandledAs
    error: BaseException | None = None


class Station:
    """One handler, and where its units come from."""

    def __init__(self, handler: Handler, stage: "Stage") -> None:
        self.handler = handler
        self.source = self._new_source(stage)
        self.refused: list[Handled] = []
        self._mq = stage.mq
        self._executor = Executor(handler, self.source, stage)

    def _new_source(self, stage: "Stage") -> DueSource:
        handler, clock = self.handler, stage.database.clock
        if handler.subscription is not None:
            return DueMessages(stage.mq, handler.subscription, clock, self._refuse)
        assert handler.view is not None  # noqa: S101 - one of them there is
        return DueJobs(stage.mq, handler.view, clock, self._refuse)

    def close(self) -> None:
        self._executor.close()

    async def next(self) -> "SeenUnit | Handled | None":
        """A due unit, or one that was refused before it came to its handler."""
        if not self.refused:
            units = await self.source.fetch(1)
            if units:
                assert isinstance(units[0], SeenUnit)  # noqa: S101 - as it was made
                return units[0]
        return self.refused.pop(0) if self.refused else None

    async def handle(self, unit: SeenUnit, limits: "Limits", raised: Raised) -> Handled:
        """Have the handler handle a unit, and settle it as that asks for."""
        HANDLED_NOW.set(unit)
        HANDLER_NOW.set(self.handler.name)
        try:
            verdict = await self._executor.execute(unit)
        finally:
            HANDLED_NOW.set(None)
        if unit.straggler is not None:  # a thread is not to go on behind a test's back
            await asyncio.wait({unit.straggler}, timeout=limits.left())
        raw, error = unit.raw, raised() or error_in(verdict)
        return Handled(
            handler=self.handler.name,
            source=self.handler.source,
            id=unit.id,
            key=unit.key,
            payload=raw.message.payload if isinstance(raw, AsyncDelivery) else raw.payload,
            attempt=raw.attempt,
            outcome=await self._settle(unit, verdict),
            error=error,
        )

    async def _settle(self, unit: SeenUnit, verdict: Verdict | None) -> HandledAs:
        kind = unit.settled_as
        if verdict is not None:
            kind = verdict.kind
            try:
                await self.source.settle([(unit, verdict)])
            except (StaleLease, AlreadySettled):
                return "lost"
        if kind is None:
            return "lost"  # it was to be acked first, which failed
        if kind in SETTLED:
            return SETTLED[kind]
        return "failed" if await self._has_failed(unit) else "retried"

    async def _has_failed(self, unit: SeenUnit) -> bool:
        """Whether a nack was the last one."""
        raw = unit.raw
        if isinstance(raw, AsyncDelivery):
            message = raw.message
            letters = await self._mq.dead_letters(message.topic, group=raw.group, limit=LETTERS_MAX)
            places = {
                (letter.message.key, letter.message.shard, letter.offset) for letter in letters
            }
            return (message.key, message.shard, message.offset) in places
        job = await self._mq.queue(raw.queue).get(raw.id)
        return job is not None and job.state is State.FAILED

    def _refuse(self, *, id: str, key: str | None, attempt: int, error: str) -> None:
        handled = Handled(
            handler=self.handler.name,
            source=self.handler.source,
            id=id,
            key=key,
            payload=None,
            attempt=attempt,
            outcome="failed",
            error=refusal(error),
        )
        self.refused.append(handled)


class Stage(Runtime):
    """An app that is run by a test."""

    def __init__(self, app: App, database: Database) -> None:
        self.database = database
        self._owner = app
        self._raised: BaseException | None = None
        self._stations: list[Station] = []
        self._turn = 0
        self._at_work: str | None = None
        super().__init__(
            database.url,
            {},
            app=app.name,
            handlers=app.handlers,
            middleware=(self._notice, *app._middleware),
            startup=tuple(app._startup),
            shutdown=tuple(app._shutdown),
            graceful_timeout=0.0,
            maintenance_interval=0.0,
        )

    # --- life -------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Do what a worker does at its start; but nothing is fetched yet."""
        self.mq = self.database.connect_async()
        self._owner._runtime = self
        try:
            for hook in self._startup:
                await called(hook)
            self._hooked = True
            self.bridge = Bridge(self.mq)
            await self._install_schedules()
            for handler in self._handlers:
                await self._create_group(handler)
                self._stations.append(Station(handler, self))
        except BaseException:
            await self.stop()
            raise
        self.status = Status.RUNNING

    async def stop(self, *, graceful: bool = True) -> bool:  # noqa: ARG002 - nothing is at work
        """Do what a worker does at its end; raises what a hook raises."""
        self.status = Status.STOPPING
        try:
            for hook in self._shutdown if self._hooked else ():
                await called(hook)
        finally:
            self._owner._runtime = None
            for station in self._stations:
                station.close()
            if self._hooked:
                self.bridge.close()
            if self._sync is not None:
                self._sync.close()
            await self.mq.close()
            self.status = Status.STOPPED
        return True

    def sync_client(self) -> RowMQ:
        if self._sync is None:
            self._sync = self.database.connect()
        return self._sync

    async def _create_group(self, handler: Handler) -> None:
        """A group begins when its worker does: what is published after that is for it."""
        options = handler.subscription
        if options is not None:
            await self.mq.create_group(options.topic, options.group, start=options.start)

    async def _notice(self, _: Context, call_next: Callable[[], Awaitable[Any]]) -> Any:
        """The outermost middleware: see what is raised, whatever becomes of it."""
        try:
            return await call_next()
        except Exception as error:
            self._raised = error
            raise

    # --- handling ---------------------------------------------------------------------------------

    async def drain(self, limits: "Limits", log: list[Handled]) -> list[Handled]:
        """Handle all that is due, and what comes of it; `log` is added to as it is."""
        before = len(log)
        with self.database.clock.standing():
            async with self._open():
                while await self._step(limits, log) is not None:
                    pass
        return log[before:]

    async def step(self, limits: "Limits", log: list[Handled]) -> Handled | None:
        """Handle one unit that is due."""
        with self.database.clock.standing():
            async with self._open():
                return await self._step(limits, log)

    async def run_until(
        self, moment: datetime, limits: "Limits", log: list[Handled]
    ) -> list[Handled]:
        """Let time pass, from one thing that is due to the next, and handle each at its time."""
        clock, end, before = self.database.clock, to_micros(moment), len(log)
        clock.move(0)
        while True:
            async with self._open():
                while await self._step(limits, log) is not None:
                    pass
                due = await self._next_due()
            now = to_micros(clock.now())
            if now >= end:
                return log[before:]
            clock.set(from_micros(end if due is None else min(max(due, now + 1), end)))

    async def maintain(self) -> None:
        """Do a worker's chores once."""
        chores = Maintenance(self.mq, 0.0)
        await chores.collect_topics()
        await chores.prune_queues()
        await chores.forget_workers()

    async def _step(self, limits: "Limits", log: list[Handled]) -> Handled | None:
        """Handle one unit, of the handler whose turn it is; None if there is none."""
        self._at_work = None
        try:
            async with asyncio.timeout_at(limits.loop_deadline()):
                handled = await self._next(limits)
                while handled is None and (await self._tend()).made:
                    handled = await self._next(limits)
        except TimeoutError:
            limits.check(log, self._at_work)
            raise
        if handled is not None:
            log.append(handled)
        limits.check(log, self._at_work)
        if limits.raise_errors and handled is not None and handled.error is not None:
            raise explained(handled)
        return handled

    async def _next(self, limits: "Limits") -> Handled | None:
        for _ in self._stations:
            station = self._stations[self._turn]
            self._turn = (self._turn + 1) % len(self._stations)
            found = await station.next()
            if isinstance(found, Handled):
                return found
            if found is not None:
                self._at_work, self._raised = station.handler.name, None
                return await station.handle(found, limits, lambda: self._raised)
        return None

    async def _tend(self) -> Round:
        """Make the ticks of schedules that are due."""
        made: Round = await take_steps_async(self.mq.cron._core.tend())
        if made.errors:
            raise next(iter(made.errors.values()))
        return made

    async def _next_due(self) -> int | None:
        wait = (await self._tend()).wait
        moments = [station.source.next_due() for station in self._stations]
        if wait is not None:
            moments.append(to_micros(self.database.clock.now()) + max(0, round(wait * 1_000_000)))
        return min((moment for moment in moments if moment is not None), default=None)

    @contextlib.asynccontextmanager
    async def _open(self) -> AsyncIterator[None]:
        """Have the sources of all handlers open. They are closed between calls, so that no lease
        runs out when the clock is moved.
        """
        async with contextlib.AsyncExitStack() as stack:
            for station in self._stations:
                stack.push_async_callback(station.source.close)
                await station.source.open()
            yield


class Limits:
    """How long a drain may take, and whether it goes on after an error."""

    def __init__(self, *, max_time: float, raise_errors: bool) -> None:
        self.max_time = max_time
        self.raise_errors = raise_errors
        self._until = time.monotonic() + max_time

    def loop_deadline(self) -> float:
        """When time is up, to the event loop."""
        loop = asyncio.get_running_loop()
        return loop.time() + self.left()

    def left(self) -> float:
        """How many seconds are left."""
        return max(0.0, self._until - time.monotonic())

    def check(self, log: list[Handled], at_work: str | None) -> None:
        """Raise if time is up."""
        if self.left() > 0:
            return
        busiest = Counter(handled.handler for handled in log).most_common(3)
        most = ", ".join(f"{name} {count:,} times" for name, count in busiest) or "none"
        last = "" if at_work is None else f"; {at_work} was at work"
        raise AssertionError(
            f"this did not come to its end in max_time={self.max_time:g} s{last}. Handlers that "
            f"ran: {most}. Does one publish what it consumes, or is it retried without a delay "
            f"for ever? If it only takes long, give it more max_time"
        )


def error_in(verdict: Verdict | None) -> BaseException | None:
    """What a verdict says went wrong: a commit, or a settle that was missing."""
    error = None if verdict is None else verdict.error
    return RuntimeError(error) if isinstance(error, str) else error


def refusal(text: str) -> Exception:
    """Why something was not given to its handler."""
    _, mismatch, reason = text.partition("PayloadMismatch: ")
    return PayloadMismatch(reason) if mismatch else RuntimeError(text)


def explained(handled: Handled) -> BaseException:
    """The error of a handler, with a note of what it was handling."""
    assert handled.error is not None  # noqa: S101 - just looked at
    handled.error.add_note(
        f"handler {handled.handler!r}, at attempt {handled.attempt} of {handled.source!r} "
        f"{handled.id} (key {handled.key!r}), which was then {handled.outcome}; with "
        f"raise_errors=False the drain goes on"
    )
    return handled.error
