"""The loops of one handler: one fetches, some work, one settles.

    source ──fetch──► buffer ──take──► worker tasks ──verdict──► settler ──► source
                        │                                           ▲
                        └───────── given back at a stop ────────────┘

Every loop survives what the database does: it waits, longer each time, and goes on.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable

from rowmq.errors import Closed
from rowmq.store.workers import Running
from rowmq.telemetry import catalogue
from rowmq.telemetry.families import Gathering
from rowmq.telemetry.handling import HANDLED_NOW, HANDLER_NOW
from rowmq.worker.buffer import Buffer
from rowmq.worker.executor import Executor, Surroundings
from rowmq.worker.handler import Handler
from rowmq.worker.observing import Observed
from rowmq.worker.settler import Settler
from rowmq.worker.sources import Source
from rowmq.worker.unit import ACK, RELEASE, Unit, Verdict
from rowmq.worker.waiting import wait_for

__all__ = ["Crew", "go_on"]

log = logging.getLogger("rowmq")

STALLED_SECONDS = 60.0
"""Who has fetched nothing for so long, not even in vain, or settled nothing, is not well."""

BLOCKED_SECONDS = 0.001

CANCEL_SECONDS = 1.0
"""How long a handler that is cancelled has to come to an end."""

LEAVE_SECONDS = 2.0

UNHANDLED = Verdict("nack", "the worker could not handle it; see its log")

BACKOFF_SECONDS_MAX = 10.0
BACKOFF_SECONDS_FIRST = 0.1


class Crew:
    """Those who run one handler."""

    def __init__(self, handler: Handler, source: Source, around: Surroundings) -> None:
        self.handler = handler
        self.handled = 0
        self.fetched_at = time.monotonic()
        self._source = source
        self._around = around
        self._buffer = Buffer()
        metrics, tracer = around.metrics, around.mq._tracer
        meter = None if metrics is None else metrics.handler(handler.name, handler.source)
        self._meter = meter
        self._executor = Executor(handler, source, around, meter=meter)
        self._handle = self._executor.execute
        if meter is not None or tracer is not None:
            observed = Observed(handler.name, source, self._handle, meter=meter, tracer=tracer)
            self._handle = observed.execute
        self._settler = Settler(
            source, flush_interval=handler.pace.flush_interval, meter=meter, tracer=tracer
        )
        self._running: set[Unit] = set()
        self._yielded_at = 0.0
        self._room = asyncio.Event()
        self._fetching: asyncio.Task[None] | None = None
        self._settling: asyncio.Task[None] | None = None
        self._workers: list[asyncio.Task[None]] = []

    # --- life -------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Make ready to begin."""
        await self._source.open()

    def begin(self) -> None:
        """Begin to fetch and to work."""
        name, spawn = self.handler.name, asyncio.create_task
        self._settling = spawn(self._settler.run(), name=f"rowmq-settle-{name}")
        for number in range(self.handler.pace.concurrency):
            self._workers.append(spawn(self._work(), name=f"rowmq-work-{name}-{number + 1}"))
        self._fetching = spawn(
            go_on(f"fetch for {name}", self._fetch, self._around.stop_asked),
            name=f"rowmq-fetch-{name}",
        )

    async def stop_fetching(self, seconds: float) -> None:
        """Fetch no more, and give back what was not begun: it costs no attempt."""
        self._settler.hurry()
        self._give_back(self._buffer.close())
        if self._fetching is not None:
            self._source.hush()
            _, late = await asyncio.wait({self._fetching}, timeout=max(0.0, seconds))
            for task in late:  # the database does not answer
                task.cancel()

    async def finish(self, seconds: float) -> bool:
        """Wait for the handlers that run; False if some had to be cut short."""
        if not self._workers:
            return True
        _, late = await asyncio.wait(self._workers, timeout=max(0.0, seconds))
        for task in late:
            task.cancel()
        if late:
            name = self.handler.name
            log.warning("handler %s: %d were still at work when time was up", name, len(late))
            await asyncio.wait(late, timeout=CANCEL_SECONDS)
        return not late

    async def close(self, seconds: float) -> bool:
        """Settle what is left, and leave; False if not all could be settled in time."""
        settled = True
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await self._settler.flush()
        except TimeoutError:
            settled = False
            log.warning(
                "handler %s: %d could not be settled, and will come again",
                self.handler.name,
                self._settler.unsettled,
            )
        if self._settling is not None:
            self._settling.cancel()
            await asyncio.wait({self._settling})
        self._executor.close()
        await self._leave()
        return settled

    async def _leave(self) -> None:
        """Hand over to others, unless the database does not answer: they find out by themselves."""
        try:
            async with asyncio.timeout(LEAVE_SECONDS):
                await self._source.close()
        except TimeoutError:
            log.warning("handler %s could not say that it leaves in time", self.handler.name)

    # --- the loops --------------------------------------------------------------------------------

    async def _fetch(self) -> bool:
        """Fetch once; False at the end."""
        pace = self.handler.pace
        began = time.monotonic()
        if self._around.stopping:
            return False
        room = pace.buffer - self._buffer.ready
        if room < pace.fetch_batch_size / 2:  # many small fetches would cost more than a large one
            self._room.clear()
            await wait_for(self._room, 1.0)
            self.fetched_at = time.monotonic()
            return True
        units = await self._source.fetch(min(pace.fetch_batch_size, room))
        self.fetched_at = time.monotonic()
        if self._meter is not None:
            self._meter.found(len(units))
        if self._around.stopping:
            self._give_back(units)
            return False
        self._buffer.put(units)
        rest = pace.min_fetch_interval - (self.fetched_at - began)
        if rest > 0:
            await wait_for(self._around.stop_asked, rest)
        return True

    def _give_back(self, units: Iterable[Unit]) -> None:
        """Give back what was not begun."""
        self._settler.add_all((unit, RELEASE) for unit in units)

    async def _work(self) -> None:
        buffer, source, around, room = self._buffer, self._source, self._around, self._room
        pace = self.handler.pace
        enough = pace.buffer - pace.fetch_batch_size / 2  # as `_fetch` has it
        HANDLER_NOW.set(self.handler.name)
        while (unit := buffer.take_at_once() or await self._next()) is not None:
            if buffer.ready <= enough and not room.is_set():
                room.set()
            ours = not source.lost(unit) or await source.is_ours(unit)
            if ours and not around.stopping:
                await self._execute(unit)
            else:
                self._give_back([unit])
            if unit.straggler is not None:
                if self._around.stopping:
                    return
                await asyncio.wait({unit.straggler})  # its thread is not free before
            self._buffer.done(unit)
            del unit  # it may be long before there is another one

    async def _next(self) -> Unit | None:
        """Wait for a unit, without a thought of the one before."""
        HANDLED_NOW.set(None)
        return await self._buffer.take()

    async def _execute(self, unit: Unit) -> None:
        """Handle a unit, and see that it is settled, whatever happens."""
        verdict: Verdict | None = UNHANDLED
        self._running.add(unit)
        HANDLED_NOW.set(unit)
        try:
            verdict = await self._handle(unit)
        except Exception:
            log.exception("%r could not be handled", unit.raw)
        finally:
            self._running.discard(unit)
            self.handled += 1
            if verdict is ACK:
                self._source.spare(unit)
            if verdict is not None and self._settler.add(unit, verdict):
                await self._settler.wait_for_room()
            if time.monotonic() - self._yielded_at > BLOCKED_SECONDS:
                await asyncio.sleep(0)  # it may not have let anybody else have a turn
                self._yielded_at = time.monotonic()

    # --- for people -------------------------------------------------------------------------------

    def running(self) -> list[Running]:
        """What is at work; from any thread."""
        now = time.monotonic()
        return [
            Running(
                handler=self.handler.name,
                source=self.handler.source,
                id=unit.id,
                key=unit.key,
                attempt=unit.raw.attempt,
                seconds=now - unit.began_at,
                progress=unit.progress.fraction if unit.progress else None,
                note=unit.progress.note if unit.progress else None,
                source_type="topic" if self.handler.view is None else "queue",
            )
            for unit in self._running.copy()
        ]

    def measure(self, gathering: Gathering) -> None:
        """Tell how it stands, from any thread."""
        labels = (self.handler.name, self.handler.source)
        gathering.add(catalogue.RUNNING, labels, len(self._running))
        gathering.add(catalogue.BUFFERED, labels, self._buffer.ready)
        gathering.add(catalogue.UNSETTLED, labels, self._settler.unsettled)
        gathering.add(catalogue.GIVEN_UP, labels, self._source.given_up)
        self._source.measure(gathering)

    @property
    def _unsettled_for(self) -> float:
        """For how many seconds settles have failed."""
        failing = self._settler.failing_since
        return 0.0 if failing is None else time.monotonic() - failing

    @property
    def stalled(self) -> bool:
        """Whether nothing was fetched, not even in vain, or settled for long."""
        idle = time.monotonic() - self.fetched_at
        pause = self.handler.pace.min_fetch_interval
        return idle > STALLED_SECONDS + pause or self._unsettled_for > STALLED_SECONDS

    def health(self) -> dict[str, object]:
        """How it does, in figures."""
        idle = time.monotonic() - self.fetched_at
        return {
            "handler": self.handler.name,
            "source": self.handler.source,
            "running": len(self._running),
            "waiting": self._buffer.ready,
            "unsettled": self._settler.unsettled,
            "handled": self.handled,
            "failed": self._executor.failed,
            "fetched_seconds_ago": round(idle, 3),
            "settles_fail_for_seconds": round(self._unsettled_for, 3),
            "stalled": self.stalled,
        }


async def go_on(what: str, step: Callable[[], Awaitable[bool]], stop: asyncio.Event) -> None:
    """Take steps until one says that it was the last; after an error wait, longer each time."""
    pause = BACKOFF_SECONDS_FIRST
    while not stop.is_set():
        try:
            if not await step():
                return
            pause = BACKOFF_SECONDS_FIRST
        except Closed:
            return
        except Exception as error:  # noqa: BLE001 - the loop must live, and try again
            log.warning("could not %s, and try again in %.1f s: %s", what, pause, error)
            await wait_for(stop, pause)
            pause = min(pause * 2, BACKOFF_SECONDS_MAX)
