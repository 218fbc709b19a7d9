"""An app: handlers, declared by decorators, and how they are run."""

import asyncio
import contextlib
import inspect
import logging
import os
from collections.abc import Callable, Collection, Iterable
from types import TracebackType
from typing import Any, Self, TypeVar
from zoneinfo import ZoneInfo

import msgspec

from rowmq.client import AsyncRowMQ, connect_async
from rowmq.errors import Closed, ConfigurationError, InvalidOption
from rowmq.naming import check_group, check_queue, check_topic
from rowmq.options import check_flag, positive
from rowmq.policy import AckPolicy, RetryStrategy
from rowmq.queue.view import UNTYPED, view_of
from rowmq.schedule import CatchUp, check_catch_up, cron_of
from rowmq.subscriber.options import options_of
from rowmq.times import Duration, to_seconds
from rowmq.worker.executor import Middleware
from rowmq.worker.handler import Handler, Pace, Timetable, check_policy, pace_of
from rowmq.worker.injection import Work, is_async, name_of, plan_of
from rowmq.worker.looping import run_loop
from rowmq.worker.runtime import Hook, Runtime
from rowmq.worker.signals import stop_on_signals
from rowmq.worker.sources import for_worker

__all__ = ["App"]

log = logging.getLogger("rowmq")

F = TypeVar("F", bound=Callable[..., Any])
M = TypeVar("M", bound=Middleware)

PER_KEY_MIN = 20
"""How many messages of one key are fetched ahead, at least: they are handled one after the other,
and should not fill the room that others need.
"""

OVERTIME_SECONDS = 15.0
"""How much longer than its graceful timeout a stop may take before the process is ended."""

PLAIN_MODULES = ("builtins", "collections", "datetime", "decimal", "uuid")

CRON_PREFIX = "cron."
"""A cron handler has a queue of its own, named by this and its own name."""


class App:
    """Handlers of messages, jobs and schedules, to be run by `rowmq worker module:app`, by `run()`,
    or inside another program by `async with`.

    The options are those of `rowmq.connect`. Without a URL the environment's `ROWMQ_URL` is used.
    When it is stopped, what was not begun is given back, and handlers have `graceful_timeout` to
    come to an end. About every `maintenance_interval`, topics are collected, archives pruned; 0 is
    never.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        name: str = "app",
        graceful_timeout: Duration = 30.0,
        maintenance_interval: Duration = 60.0,
        **options: Any,
    ) -> None:
        self.name = check_group(name, what="an app's name")
        self._url = url
        self._options = check_options(options)
        self._graceful_timeout = to_seconds(graceful_timeout, name="graceful_timeout")
        self._maintenance_interval = to_seconds(maintenance_interval, name="maintenance_interval")
        self._handlers: list[Handler] = []
        self._middleware: list[Middleware] = []
        self._startup: list[Hook] = []
        self._shutdown: list[Hook] = []
        self._runtime: Runtime | None = None
        self._stop: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop_asked = False

    # --- handlers ---------------------------------------------------------------------------------

    def subscriber(
        self,
        topic: str,
        *,
        group: str,
        concurrency: int = 10,
        ack_policy: AckPolicy = AckPolicy.NACK_ON_ERROR,
        retry: RetryStrategy | None = None,
        max_deliveries: int | None = None,
        timeout: Duration | None = None,
        transactional: bool = False,
        strict: bool = False,
        start: str = "earliest",
        visibility: Duration = 60.0,
        lease_duration: Duration = 30.0,
        dlq_suffix: str = "_dlq",
        fetch_batch_size: int | None = None,
        overfetch_factor: float = 1.5,
        min_fetch_interval: Duration = 0.0,
        max_fetch_interval: Duration = 0.1,
        flush_interval: Duration = 0.0,
        name: str | None = None,
    ) -> Callable[[F], F]:
        """Have a function handle the messages of a topic, for a consumer group.

        Messages of one key are handled one after the other, in their order; those of different keys
        and those without a key at the same time, `concurrency` of them. A message stays this
        worker's for as long as its handler runs. After `max_deliveries` (3, if not given) it goes
        to the dead letters; `retry` says how long it waits in between. With `strict`, the next
        message of a key waits until this one is done for good.
        """
        check_topic(topic)
        check_group(group)

        def declare(function: F) -> F:
            pace = pace_of(
                concurrency=concurrency,
                fetch_batch_size=fetch_batch_size,
                overfetch_factor=overfetch_factor,
                min_fetch_interval=min_fetch_interval,
                max_fetch_interval=max_fetch_interval,
                flush_interval=flush_interval,
            )
            handler = new_handler(
                function,
                Work.TOPIC,
                name=name,
                ack_policy=ack_policy,
                timeout=timeout,
                transactional=transactional,
                pace=pace,
            )
            options = options_of(
                topic,
                group=group,
                name=None,
                start=start,
                batch_size=pace.fetch_batch_size,
                visibility=visibility,
                max_attempts=max_deliveries,
                backoff=retry,
                lease_duration=lease_duration,
                heartbeat_interval=None,
                strict=strict,
                dlq_suffix=dlq_suffix,
                max_in_flight=max(1_000, 10 * pace.buffer),
                max_bytes=64 * 1024 * 1024,
                flush_interval=0.0,
                poll_interval=pace.max_fetch_interval,
                discovery_interval=1.0,
                idle_timeout=60.0,
                type=handler.plan.type,
                on_lost=None,
            )
            subscription = for_worker(options, per_key=max(PER_KEY_MIN, pace.buffer))
            self._add(msgspec.structs.replace(handler, subscription=subscription))
            return function

        return declare

    def worker(
        self,
        queue: str,
        *,
        concurrency: int = 10,
        ack_policy: AckPolicy = AckPolicy.NACK_ON_ERROR,
        retry: RetryStrategy | None = None,
        max_deliveries: float | None = None,
        timeout: Duration | None = None,
        transactional: bool = False,
        lock_timeout: Duration = 60.0,
        kind: str | None = None,
        fetch_batch_size: int | None = None,
        overfetch_factor: float = 1.5,
        min_fetch_interval: Duration = 0.0,
        max_fetch_interval: Duration = 0.1,
        flush_interval: Duration = 0.0,
        name: str | None = None,
    ) -> Callable[[F], F]:
        """Have a function do the jobs of a queue, `concurrency` of them at the same time.

        A job stays locked for as long as its handler runs; if the process dies, others get it after
        `lock_timeout`. `retry` and `max_deliveries` are those of `RowMQ.queue`. If the payload is
        annotated with a class, jobs of that class are done, and those without any; so a queue can
        have one handler for each class.
        """
        check_brackets(queue, "@app.worker('emails')")
        check_queue(queue)

        def declare(function: F) -> F:
            pace = pace_of(
                concurrency=concurrency,
                fetch_batch_size=fetch_batch_size,
                overfetch_factor=overfetch_factor,
                min_fetch_interval=min_fetch_interval,
                max_fetch_interval=max_fetch_interval,
                flush_interval=flush_interval,
            )
            handler = new_handler(
                function,
                Work.QUEUE,
                name=name,
                ack_policy=ack_policy,
                timeout=timeout,
                transactional=transactional,
                pace=pace,
            )
            view = view_of(
                queue,
                type=handler.plan.type,
                kind=kind,
                lock_timeout=lock_timeout,
                retry=retry,
                max_deliveries=max_deliveries,
                poll_interval=pace.max_fetch_interval,
            )
            if kind is None and not has_kind(handler.plan.type):
                view = msgspec.structs.replace(view, kind=UNTYPED)
            self._add(msgspec.structs.replace(handler, view=view))
            return function

        return declare

    def cron(
        self,
        cron: str,
        *,
        tz: str | ZoneInfo = "UTC",
        name: str | None = None,
        payload: Any = None,
        catch_up: CatchUp = "latest",
        ack_policy: AckPolicy = AckPolicy.NACK_ON_ERROR,
        retry: RetryStrategy | None = None,
        max_deliveries: float | None = None,
        timeout: Duration | None = None,
        transactional: bool = False,
        lock_timeout: Duration = 60.0,
    ) -> Callable[[F], F]:
        """Have a function run at times, once each, however many workers there are.

        It is a schedule, named like the function, that puts a job into a queue of its own, `cron.`
        and that name; so what fails is tried again like any job. `catch_up` says what is done after
        an outage: `latest`, `all` or `none` of what was missed. A parameter annotated with
        `datetime` is given the time it was to be run at.
        """
        check_brackets(cron, "@app.cron('0 2 * * *')")
        check_times(cron, tz, catch_up)

        def declare(function: F) -> F:
            pace = pace_of(
                concurrency=1,
                fetch_batch_size=1,
                overfetch_factor=1.0,
                min_fetch_interval=0.0,
                max_fetch_interval=0.5,
                flush_interval=0.0,
            )
            handler = new_handler(
                function,
                Work.CRON,
                name=name,
                ack_policy=ack_policy,
                timeout=timeout,
                transactional=transactional,
                pace=pace,
            )
            view = view_of(
                CRON_PREFIX + handler.name,
                type=handler.plan.type,
                kind=None,
                lock_timeout=lock_timeout,
                retry=retry,
                max_deliveries=max_deliveries,
                poll_interval=pace.max_fetch_interval,
            )
            view = msgspec.structs.replace(view, kind=UNTYPED)
            timetable = Timetable(
                name=handler.name, cron=cron, tz=tz, catch_up=catch_up, payload=payload
            )
            self._add(msgspec.structs.replace(handler, view=view, timetable=timetable))
            return function

        return declare

    def _add(self, handler: Handler) -> None:
        check_running(self._runtime)
        for other in self._handlers:
            check_together(handler, other)
        self._handlers.append(handler)

    # --- around handlers --------------------------------------------------------------------------

    def middleware(self, function: M) -> M:
        """Have an async function called around every handler, as `await function(context,
        call_next)`; the first one declared is the outermost.
        """
        check_running(self._runtime)
        if not is_async(function):
            raise InvalidOption(
                f"middleware is async, as in `async def {name_of(function)}(context, call_next): "
                f"return await call_next()`"
            )
        self._middleware.append(function)
        return function

    def on_startup(self, function: F) -> F:
        """Have a function called when a worker starts, before any handler."""
        check_running(self._runtime)
        check_hook(function)
        self._startup.append(function)
        return function

    def on_shutdown(self, function: F) -> F:
        """Have a function called when a worker stops, after all handlers; the last one declared
        first. After a start that failed, none is.
        """
        check_running(self._runtime)
        check_hook(function)
        self._shutdown.append(function)
        return function

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
        self, *, url: str | None = None, graceful_timeout: Duration | None = None
    ) -> None:
        """Change what the app was made with, before it runs: where it is deployed decides."""
        check_running(self._runtime)
        if url is not None:
            self._url = url
        if graceful_timeout is not None:
            self._graceful_timeout = to_seconds(graceful_timeout, name="graceful_timeout")

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
        if self._loop is not None and self._stop is not None:
            with contextlib.suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(self._stop.set)

    def health(self) -> dict[str, Any]:
        """How the app does: `healthy`, `status`, and figures for each handler."""
        if self._runtime is None:
            return {"healthy": False, "status": "stopped"}
        return self._runtime.health()

    async def _main(self, handlers: Iterable[Handler]) -> bool:
        check_running(self._runtime)
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        if self._stop_asked:
            self._stop.set()
        limit = self._graceful_timeout + OVERTIME_SECONDS
        try:
            with stop_on_signals(self.stop, seconds_max=limit):
                return await self._begin_and_end(handlers, self._stop)
        finally:
            self._stop_asked = False

    async def _begin_and_end(self, handlers: Iterable[Handler], stop: asyncio.Event) -> bool:
        starting = asyncio.create_task(self._begin(handlers))
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not starting.done():
                starting.cancel()  # it may try to connect for long
                await asyncio.wait({starting})
                return True
            starting.result()
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

    async def _begin(self, handlers: Iterable[Handler]) -> None:
        check_running(self._runtime)
        runtime = self._runtime = self._new_runtime(list(handlers))
        try:
            await runtime.start()
        except BaseException:
            self._runtime = None
            raise

    async def _end(self) -> bool:
        runtime = self._runtime
        try:
            return True if runtime is None else await runtime.stop()
        finally:
            self._runtime = None

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


def new_handler(
    function: Callable[..., Any],
    work: Work,
    *,
    name: str | None,
    ack_policy: AckPolicy,
    timeout: Duration | None,
    transactional: bool,
    pace: Pace,
) -> Handler:
    """A handler, before its source is known."""
    if not callable(function):
        raise InvalidOption(f"@app.{work.value}(...) stands above a function, not {function!r}")
    check_flag("transactional", transactional)
    return Handler(
        name=check_group(name_of(function) if name is None else name, what="a handler's name"),
        function=function,
        work=work,
        plan=plan_of(function, work, transactional=transactional),
        is_async=is_async(function),
        ack_policy=check_policy(ack_policy, transactional=transactional),
        timeout=None if timeout is None else positive("timeout", timeout),
        transactional=transactional,
        pace=pace,
    )


def has_kind(type: Any) -> bool:
    """Whether a payload's annotation asks for jobs of one kind: a class of the user's own does, and
    plain types take whatever there is.
    """
    plain = not inspect.isclass(type) or type.__module__ in PLAIN_MODULES
    return not plain and not getattr(type, "__args__", ())


def check_together(handler: Handler, other: Handler) -> None:
    """Two handlers must not take what is the other's."""
    if handler.name == other.name:
        raise InvalidOption(
            f"there are two handlers called {handler.name!r}: give one of them a name="
        )
    if handler.source != other.source or (handler.view is None) is not (other.view is None):
        return
    if handler.subscription is not None and other.subscription is not None:
        if handler.subscription.group == other.subscription.group:
            raise InvalidOption(
                f"handlers {other.name} and {handler.name} both consume topic {handler.source!r} "
                f"as group {handler.subscription.group!r}, and would share its messages: give each "
                f"a group of its own"
            )
        return
    assert handler.view is not None and other.view is not None  # noqa: S101, PT018 - just checked
    kinds = {handler.view.kind, other.view.kind}
    if len(kinds) == 1 or UNTYPED in kinds:
        raise InvalidOption(
            f"handlers {other.name} and {handler.name} would take each other's jobs of queue "
            f"{handler.source!r}: annotate the payload of each with a class of its own, or use two "
            f"queues"
        )


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
            f"App has no option {unknown[0]!r}; besides its own, those of rowmq.connect() are: "
            f"{', '.join(known)}"
        )
    return options


def check_hook(function: Any) -> None:
    if not callable(function):
        raise InvalidOption(f"a hook is a function without arguments, not {function!r}")


def check_brackets(given: Any, right: str) -> None:
    """A decorator that was used without its brackets is given the function."""
    if callable(given):
        raise InvalidOption(f"{right} stands above a handler, with what it handles in brackets")


def check_times(cron: str, tz: str | ZoneInfo, catch_up: CatchUp) -> None:
    """Refuse a schedule where it is declared, not when the app starts."""
    cron_of(cron, tz)
    check_catch_up(catch_up)


def url_of(url: str | None) -> str:
    found = url or os.environ.get("ROWMQ_URL")
    if not found:
        raise ConfigurationError(
            "the app has no database: give App a URL, as in App('sqlite:///queue.db'), or set "
            "ROWMQ_URL"
        )
    return found
