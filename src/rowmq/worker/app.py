"""An app: its handlers, what is around them, and how it is run. How they are declared is in
`declaring`.
"""

import asyncio
import contextlib
import inspect
import logging
import os
from collections.abc import Callable, Collection, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from rowmq.client import AsyncRowMQ, RowMQ, connect, connect_async
from rowmq.errors import Closed, ConfigurationError, InvalidOption
from rowmq.naming import check_group
from rowmq.quoting import quoted
from rowmq.telemetry.metrics import Metrics
from rowmq.telemetry.turning import Traces, imported
from rowmq.times import Duration, to_seconds
from rowmq.worker.collecting import collector_at_ease
from rowmq.worker.declaring import DEFAULT_NAME, Declaring
from rowmq.worker.executor import Middleware
from rowmq.worker.handler import Handler
from rowmq.worker.injection import is_async, name_of
from rowmq.worker.looping import run_loop
from rowmq.worker.runtime import Hook, Runtime
from rowmq.worker.serving import Address, address_of, metrics_answers, serving
from rowmq.worker.signals import stop_on_signals

__all__ = ["App", "client_of"]

log = logging.getLogger("rowmq")

F = TypeVar("F", bound=Callable[..., Any])
M = TypeVar("M", bound=Middleware)

OVERTIME_SECONDS = 15.0
"""How much longer than its graceful timeout a stop may take before the process is ended."""


class App(Declaring):
    """Handlers of messages, jobs and schedules, to be run by `rowmq worker module:app`, by `run()`,
    or inside another program by `async with`.

    The options are those of `rowmq.connect`. Without a URL the environment's `ROWMQ_URL` is used.
    When it is stopped, what was not begun is given back, and handlers have `graceful_timeout` to
    come to an end. About every `maintenance_interval`, topics are collected, archives pruned; 0 is
    never. `metrics` is a port, or `host:port`, where Prometheus finds what the app does under
    `/metrics` while it runs (`rowmq[metrics]`); without a host, on this machine only.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        name: str = DEFAULT_NAME,
        graceful_timeout: Duration = 30.0,
        maintenance_interval: Duration = 60.0,
        metrics: int | str | None = None,
        **options: Any,
    ) -> None:
        self.name = check_group(name, what="an app's name")
        self._url = url
        self._options = check_options(options)
        self._graceful_timeout = to_seconds(graceful_timeout, name="graceful_timeout")
        self._maintenance_interval = to_seconds(maintenance_interval, name="maintenance_interval")
        self._metrics_at = None if metrics is None else address_of(metrics)
        self._metrics: Metrics | None = None
        self._traces: Traces | None = None
        self._served = contextlib.ExitStack()
        self._handlers: list[Handler] = []
        self._middleware: list[Middleware] = []
        self._startup: list[Hook] = []
        self._shutdown: list[Hook] = []
        self._runtime: Runtime | None = None
        self._stop: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop_asked = False

    # --- around handlers --------------------------------------------------------------------------

    def middleware(self, function: M) -> M:
        """Have an async function called around every handler, as `await function(context,
        call_next)`; the first one declared is the outermost.
        """
        self._check_idle()
        if not is_async(function):
            raise InvalidOption(
                f"middleware is async, as in `async def {name_of(function)}(context, call_next): "
                f"return await call_next()`"
            )
        self._middleware.append(function)
        return function

    def on_startup(self, function: F) -> F:
        """Have a function called when a worker starts, before any handler."""
        self._check_idle()
        check_hook(function)
        self._startup.append(function)
        return function

    def on_shutdown(self, function: F) -> F:
        """Have a function called when a worker stops, after all handlers; the last one declared
        first. After a start that failed, none is.
        """
        self._check_idle()
        check_hook(function)
        self._shutdown.append(function)
        return function

    # --- looking at it ----------------------------------------------------------------------------

    def observe(self, metrics: Metrics) -> None:
        """Measure what the app does when it runs, for somebody else to serve: see
        `rowmq.telemetry.Metrics`.
        """
        self._check_idle()
        self._metrics = metrics

    def trace(self, *, provider: Any = None, statements: bool = True) -> None:
        """Trace what the app does when it runs: see `rowmq.telemetry.trace`. One that begins to run
        when a global tracer provider is configured does so by itself.
        """
        self._check_idle()
        imported()
        self._traces = Traces(provider, statements)

    @property
    def metrics_address(self) -> Address | None:
        """Where its metrics are to be found, if anywhere: host and port."""
        return self._metrics_at

    # --- running ----------------------------------------------------------------------------------

    @property
    def mq(self) -> AsyncRowMQ:
        """The client of the app, while it runs."""
        if self._runtime is None or self._runtime.mq is None:
            raise Closed(
                "the app does not run: use `async with app:`, or rowmq.connect() for a client"
            )
        return self._runtime.mq

    @property
    def graceful_timeout(self) -> float:
        """How long handlers have to come to an end, in seconds."""
        return self._graceful_timeout

    def configure(
        self,
        *,
        url: str | None = None,
        graceful_timeout: Duration | None = None,
        metrics: int | str | None = None,
    ) -> None:
        """Change what the app was made with, before it runs: where it is deployed decides. With
        `metrics=False` it serves none.
        """
        self._check_idle()
        if url is not None:
            self._url = url
        if graceful_timeout is not None:
            self._graceful_timeout = to_seconds(graceful_timeout, name="graceful_timeout")
        if metrics is not None:
            self._metrics_at = None if metrics is False else address_of(metrics)

    @property
    def handlers(self) -> tuple[Handler, ...]:
        """What was declared."""
        return tuple(self._handlers)

    def run(
        self,
        *,
        queues: Collection[str] | None = None,
        topics: Collection[str] | None = None,
    ) -> bool:
        """Run the handlers, or those of some queues and topics, until SIGTERM or SIGINT.

        The first signal stops it gracefully, a second one at once. False if work was left that did
        not end in time.
        """
        chosen = self.chosen(queues=queues, topics=topics)
        check_no_loop()
        return run_loop(self._main(chosen))

    def stop(self) -> None:
        """Have `run()` come to its end, gracefully; from any thread. One that has not begun yet
        ends at once.
        """
        self._stop_asked = True
        if self._runtime is not None:
            self._runtime.stop_soon = True  # so that nothing is begun any more
        if self._loop is not None and self._stop is not None:
            with contextlib.suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(self._stop.set)

    def health(self) -> dict[str, Any]:
        """How the app does: `healthy`, `status`, and figures for each handler."""
        if self._runtime is None:
            return {"healthy": False, "alive": True, "status": "stopped"}
        return self._runtime.health()

    async def _main(self, handlers: Sequence[Handler]) -> bool:
        self._check_idle()
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        if self._stop_asked:
            self._stop.set()
        limit = self._graceful_timeout + OVERTIME_SECONDS
        try:
            with stop_on_signals(self.stop, seconds_max=limit):
                return await self._begin_and_end(handlers, self._stop)
        finally:
            self._stop_asked = False

    async def _begin_and_end(self, handlers: Sequence[Handler], stop: asyncio.Event) -> bool:
        starting = asyncio.create_task(self._begin(handlers))
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not starting.done():
                starting.cancel()  # it may try to connect for long
                await asyncio.wait({starting})
                return True
            starting.result()
            with collector_at_ease(handlers):
                await stopping
            log.info("stopping; a second signal stops at once")
        finally:
            stopping.cancel()
            complete = await self._end()
        return complete

    async def __aenter__(self) -> Self:
        await self._begin(self._handlers)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._end()

    async def _begin(self, handlers: Sequence[Handler]) -> None:
        self._check_idle()
        self._serve_metrics()
        runtime = self._runtime = self._new_runtime(list(handlers))
        try:
            await runtime.start()
        except BaseException:
            self._runtime = None
            await asyncio.to_thread(self._served.close)
            raise

    async def _end(self) -> bool:
        runtime = self._runtime
        try:
            return True if runtime is None else await runtime.stop()
        finally:
            self._runtime = None
            await asyncio.to_thread(self._served.close)

    def _serve_metrics(self) -> None:
        """Answer whoever asks for metrics, from now on."""
        if self._metrics_at is None:
            return
        self._metrics = self._metrics or Metrics()
        answers = metrics_answers(self._metrics.families)
        try:
            self._served.enter_context(serving(self._metrics_at, answers, name="metrics"))
        except OSError as error:
            host, port = self._metrics_at
            raise ConfigurationError(
                f"cannot listen on {host}:{port} for metrics: {error}"
            ) from error

    def _new_runtime(self, handlers: list[Handler]) -> Runtime:
        at_once = sum(h.pace.concurrency for h in handlers if h.transactional)
        options = {"pool_size": 10 + at_once} | self._options
        return Runtime(
            url_of(self._url),
            options,
            app=self.name,
            handlers=handlers,
            middleware=tuple(self._middleware),
            startup=tuple(self._startup),
            shutdown=tuple(self._shutdown),
            graceful_timeout=self._graceful_timeout,
            maintenance_interval=self._maintenance_interval,
            metrics=self._metrics,
            traces=self._traces,
        )

    def chosen(
        self, *, queues: Collection[str] | None = None, topics: Collection[str] | None = None
    ) -> list[Handler]:
        """The handlers of some queues and topics; of all, if none are named."""
        if queues is None and topics is None:
            return self._handlers
        known = {
            "queues": {h.source for h in self._handlers if h.view is not None},
            "topics": {h.source for h in self._handlers if h.subscription is not None},
        }
        for what, names in (("queues", queues or ()), ("topics", topics or ())):
            unknown = sorted(set(names) - known[what])
            if unknown:
                there = ", ".join(sorted(known[what])) or "none"
                raise InvalidOption(
                    f"no handler for {what} {', '.join(unknown)}; there are: {there}"
                )
        return [
            handler
            for handler in self._handlers
            if handler.source in ((topics if handler.view is None else queues) or ())
        ]

    def _check_idle(self) -> None:
        check_running(self._runtime)


def client_of(app: App, **options: Any) -> RowMQ:
    """A sync client of an app's database, for who looks at it from another process."""
    return connect(url_of(app._url), **(app._options | options))


def check_no_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise ConfigurationError("an event loop runs here already: use `async with app:` inside of it")


def check_running(runtime: Runtime | None) -> None:
    if runtime is not None:
        raise ConfigurationError("the app is running already")


def check_options(options: dict[str, Any]) -> dict[str, Any]:
    """Those of `connect`."""
    known = [name for name in inspect.signature(connect_async).parameters if name != "url"]
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise InvalidOption(
            f"App has no option {quoted(unknown[0])}; besides its own, those of "
            f"rowmq.connect() are: "
            f"{', '.join(known)}"
        )
    return options


def check_hook(function: Any) -> None:
    if not callable(function):
        raise InvalidOption(f"a hook is a function without arguments, not {quoted(function)}")


def url_of(url: str | None) -> str:
    found = url or os.environ.get("ROWMQ_URL")
    if not found:
        raise ConfigurationError(
            "the app has no database: give App a URL, as in App('sqlite:///queue.db'), or set "
            "ROWMQ_URL"
        )
    return found
