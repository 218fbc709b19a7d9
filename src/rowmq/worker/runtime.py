"""A worker at work: one client, one keeper, a crew for each handler, and the chores."""

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import rowmq
from rowmq.client import AsyncRowMQ, RowMQ, connect, connect_async, spare_of
from rowmq.drivers.sqlite import AsyncSQLiteDriver, MemoryPool
from rowmq.errors import ConfigurationError
from rowmq.message import Outcome
from rowmq.options import own_name
from rowmq.store.workers import Running, WorkerFacts
from rowmq.telemetry import catalogue
from rowmq.telemetry.families import Gathering
from rowmq.telemetry.figures import Figures, look_async
from rowmq.telemetry.metrics import Metrics
from rowmq.telemetry.turning import Traces, trace
from rowmq.worker.bridge import Bridge
from rowmq.worker.crew import Crew
from rowmq.worker.executor import Middleware
from rowmq.worker.handler import Handler
from rowmq.worker.injection import Role, is_async
from rowmq.worker.keeper import Keeper
from rowmq.worker.maintenance import Maintenance
from rowmq.worker.sources import QueueSource, Source, TopicSource

__all__ = ["Runtime", "Status"]

log = logging.getLogger("rowmq")

FLUSH_SECONDS_MIN = 2.0
"""However late it is, what is done has so long to be settled."""

CLOSE_SECONDS = 3.0
"""How long the last goodbyes may take."""

HOOK_SECONDS = 5.0
"""However late it is, each shutdown hook has so long."""

BEAT_SECONDS = 1.0
SILENT_SECONDS = 60.0
"""An event loop that was blocked for so long is not alive."""

Hook = Callable[[], Any]


class Status(Enum):
    """Where a worker is in its life."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"


class Runtime:
    """One run of an app."""

    def __init__(
        self,
        url: str,
        options: dict[str, Any],
        *,
        app: str,
        handlers: Sequence[Handler],
        middleware: Sequence[Middleware],
        startup: Sequence[Hook],
        shutdown: Sequence[Hook],
        graceful_timeout: float,
        maintenance_interval: float,
        metrics: Metrics | None = None,
        traces: Traces | None = None,
    ) -> None:
        self.status = Status.STARTING
        self.metrics = metrics
        self.name = own_name()
        self.middleware = middleware
        self.mq: AsyncRowMQ = None  # type: ignore[assignment] # set when it has connected
        self.bridge: Bridge
        self._url = url
        self._options = options
        self._app = app
        self._handlers = handlers
        self._startup = startup
        self._shutdown = shutdown
        self._graceful_timeout = graceful_timeout
        self._maintenance_interval = maintenance_interval
        self._traces = traces
        self._keeper: Keeper | None = None
        self._crews: list[Crew] = []
        self._chores: asyncio.Task[None] | None = None
        self._sync: RowMQ | None = None
        self._hooked = False
        self.stop_asked = asyncio.Event()
        self.stop_soon = False
        self.started_at = self._beat_at = time.monotonic()
        self._beating: asyncio.Task[None] | None = None
        self._stop_task: asyncio.Task[bool] | None = None
        self._figures: Figures | None = None

    # --- what crews need --------------------------------------------------------------------------

    @property
    def stopping(self) -> bool:
        """Whether it is to stop: true at once, while the event takes some turns of the loop."""
        return self.stop_soon or self.stop_asked.is_set()

    def sync_client(self) -> RowMQ:
        """A client for handlers in threads."""
        assert self._sync is not None  # noqa: S101 - connected if one of them wants it
        return self._sync

    def report(self) -> None:
        if self._keeper is not None:
            self._keeper.report()

    # --- life -------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connect, and have every handler work. If that fails, nothing is left behind."""
        self.mq = await connect_async(self._url, **self._options)
        self._look_at(self.mq)
        try:
            await self._start()
        except BaseException:
            await self.stop(graceful=False)
            raise

    async def _start(self) -> None:
        await self.mq._check_schema()
        threads = [h.name for h in self._handlers if h.plan.wants(Role.CLIENT) and not h.is_async]
        if threads:
            self._refuse_memory(threads)
            self._sync = await asyncio.to_thread(connect, self._url, **self._options)
            self._look_at(self._sync)
        for hook in self._startup:
            await called(hook)
        self._hooked = True
        self.bridge = Bridge(self.mq)
        self._keeper = self._new_keeper()
        self._keeper.start()
        await self._install_schedules()
        for handler in self._handlers:
            crew = Crew(handler, self._source(handler), self)
            self._crews.append(crew)
            await crew.open()
        for crew in self._crews:  # all or, if somebody stops it before, none
            crew.begin()
        if self._maintenance_interval:
            chores = Maintenance(self.mq, self._maintenance_interval)
            self._chores = asyncio.create_task(chores.run(), name="rowmq-maintenance")
        self._beating = asyncio.create_task(self._beat(), name="rowmq-beat")
        self.status = Status.RUNNING
        self._tell_metrics()
        level = logging.INFO if self._handlers else logging.WARNING
        told = (self.name, self._app, self._summary(), where(self._url))
        log.log(level, "worker %s of app %r runs %s on %s", *told)

    async def stop(self, *, graceful: bool = True) -> bool:
        """Fetch no more, give back what was not begun, let handlers end, settle, leave. False if
        the time was not enough for all of that. Who is cancelled while it stops has still stopped.
        """
        if self._stop_task is None:
            self._stop_task = asyncio.create_task(self._stop(graceful=graceful), name="rowmq-stop")
        try:
            return await asyncio.shield(self._stop_task)
        except asyncio.CancelledError:
            await asyncio.wait({self._stop_task})
            raise

    async def _stop(self, *, graceful: bool) -> bool:
        if self.status is Status.RUNNING:
            self._tell_metrics_no_more()
        self.status = Status.STOPPING
        self.stop_asked.set()
        deadline = time.monotonic() + (self._graceful_timeout if graceful else 0.0)
        for task in (self._chores, self._beating):
            if task is not None:
                task.cancel()
        left = deadline - time.monotonic()
        await self._quiet(*(crew.stop_fetching(left) for crew in self._crews))
        left = deadline - time.monotonic()
        finished = await self._quiet(*(crew.finish(left) for crew in self._crews))
        left = max(deadline - time.monotonic(), FLUSH_SECONDS_MIN)
        settled = await self._quiet(*(crew.close(left) for crew in self._crews))
        for hook in reversed(self._shutdown if self._hooked else ()):
            limit = max(deadline - time.monotonic(), HOOK_SECONDS)
            await self._quiet(asyncio.wait_for(called(hook), limit))
        if self._keeper is not None:
            await asyncio.to_thread(self._keeper.stop)
            self.bridge.close()
        if self._sync is not None:
            await self._quiet(asyncio.to_thread(self._sync.close))
        await self._quiet(self._disconnect())
        self.status = Status.STOPPED
        complete = all(outcome is not False for outcome in [*finished, *settled])
        log.info("worker %s has stopped%s", self.name, "" if complete else ", with work left")
        return complete

    async def _quiet(self, *work: Awaitable[Any]) -> list[Any]:
        """Do things at the same time; what goes wrong with one is told, and keeps no other back."""
        outcomes = await asyncio.gather(*work, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                log.warning("while worker %s stopped: %r", self.name, outcome)
        return [False if isinstance(outcome, BaseException) else outcome for outcome in outcomes]

    async def _disconnect(self) -> None:
        """Close the client; if the database does not answer, just let go of it."""
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self.mq.close()
        except TimeoutError:
            await self.mq._driver.close()

    def _refuse_memory(self, handlers: Sequence[str]) -> None:
        """A database in memory has one client, and a thread needs another."""
        driver = self.mq._driver
        if isinstance(driver, AsyncSQLiteDriver) and isinstance(driver.sync.pool, MemoryPool):
            raise ConfigurationError(
                f"handler {handlers[0]} runs in a thread and wants a client, which a database in "
                f"memory cannot give: use a file, as in sqlite:///queue.db, or an async handler"
            )

    def _new_keeper(self) -> Keeper:
        facts = WorkerFacts(
            app=self._app,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=rowmq.__version__,
            handlers=tuple(handler.name for handler in self._handlers),
        )
        return Keeper(
            self.mq._store,
            spare_of(self.mq._engine),
            name=self.name,
            facts=facts,
            running=self._running,
        )

    def _source(self, handler: Handler) -> Source:
        assert self._keeper is not None  # noqa: S101 - started before
        if handler.subscription is not None:
            return TopicSource(self.mq, handler.subscription)
        assert handler.view is not None  # noqa: S101 - one of them there is
        return QueueSource(self.mq, handler.view, self._keeper)

    async def _install_schedules(self) -> None:
        """Have the schedules of cron handlers, and tend all there are."""
        for handler in self._handlers:
            table = handler.timetable
            if table is not None:
                outcome = await self.mq.cron.install(
                    table.name,
                    table.cron,
                    payload=table.payload,
                    queue=handler.source,
                    tz=table.tz,
                    catch_up=table.catch_up,
                    tend=False,
                )
                if outcome is Outcome.UPDATED:
                    log.info(
                        "schedule %r had another configuration, and has this one now", table.name
                    )
        await self.mq.cron.start()

    # --- for those who measure and trace ----------------------------------------------------------

    def _look_at(self, mq: AsyncRowMQ | RowMQ) -> None:
        if self._traces is not None:
            trace(mq, provider=self._traces.provider, statements=self._traces.statements)
        if self.metrics is not None:
            self.metrics.observe(mq)

    def _tell_metrics(self) -> None:
        """Tell of the worker from now on and, unless somebody else does, of its database."""
        metrics = self.metrics
        if metrics is None:
            return
        metrics.add(self._measure)
        if metrics.wants_figures and metrics.figures is None:
            loop, mq = asyncio.get_running_loop(), self.mq
            self._figures = metrics.figures = Figures(
                lambda: asyncio.run_coroutine_threadsafe(look_async(mq), loop)
            )

    def _tell_metrics_no_more(self) -> None:
        metrics = self.metrics
        if metrics is None:
            return
        metrics.remove(self._measure)
        if self._figures is not None:
            metrics.figures = None
            self._figures.close()

    def _measure(self, gathering: Gathering) -> None:
        """Tell how it stands, from any thread."""
        for crew in self._crews:
            crew.measure(gathering)
        gathering.add(catalogue.LOCKS, (), self._keeper.locks if self._keeper else 0)
        gathering.add(catalogue.HEALTHY, (self._app, rowmq.__version__), self.is_healthy)
        gathering.add(catalogue.UP_SECONDS, (), time.monotonic() - self.started_at)

    # --- for people -------------------------------------------------------------------------------

    def _summary(self) -> str:
        parts = [f"{handler.name} ({handler.source})" for handler in self._handlers]
        return ", ".join(parts) or "no handlers (is the module imported that declares them?)"

    def _running(self) -> list[Running]:
        with contextlib.suppress(RuntimeError):  # the set has changed while it was copied
            return [info for crew in self._crews for info in crew.running()]
        return []

    async def _beat(self) -> None:
        """Show that the event loop lives."""
        while True:
            self._beat_at = time.monotonic()
            await asyncio.sleep(BEAT_SECONDS)

    @property
    def alive(self) -> bool:
        """Whether the loop and the keeper live: what another start would mend, if not."""
        silent = time.monotonic() - self._beat_at
        kept = self._keeper is None or self._keeper.alive
        return silent < SILENT_SECONDS and kept

    @property
    def is_healthy(self) -> bool:
        """Whether it gets its work done."""
        stalled = any(crew.stalled for crew in self._crews)
        return self.status is Status.RUNNING and self.alive and not stalled

    def health(self) -> dict[str, Any]:
        """How it does: `alive`; `healthy`, if it also gets work done; the figures behind that."""
        crews = [crew.health() for crew in self._crews]
        stalled = [crew["handler"] for crew in crews if crew["stalled"]]
        return {
            "healthy": self.is_healthy,
            "alive": self.alive,
            "status": self.status.value,
            "worker": self.name,
            "app": self._app,
            "pid": os.getpid(),
            "up_seconds": round(time.monotonic() - self.started_at, 1),
            "stalled": stalled,
            "handlers": crews,
        }


def where(url: str) -> str:
    """A database for people to recognise, without its password."""
    parts = urlsplit(url)
    if parts.scheme.startswith("sqlite"):
        path = unquote(parts.path.removeprefix("/"))
        return f"SQLite, {Path(path).absolute()}" if path else "SQLite, in memory"
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


async def called(hook: Hook) -> None:
    """Call a hook: an async one in the loop, a sync one in a thread."""
    if is_async(hook):
        await hook()
    else:
        await asyncio.to_thread(hook)
