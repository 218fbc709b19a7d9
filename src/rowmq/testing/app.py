"""An app under test, for sync tests and for async ones."""

import asyncio
import contextlib
import contextvars
from collections.abc import Coroutine, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from rowmq.client import AsyncRowMQ, RowMQ
from rowmq.errors import Closed, ConfigurationError, InvalidInput
from rowmq.message import PublishResult
from rowmq.queue.queue import AsyncQueue, Queue
from rowmq.store.dialect import DEFAULT_PREFIX
from rowmq.testing.assertions import Assertions
from rowmq.testing.clock import Clock
from rowmq.testing.database import Database
from rowmq.testing.stage import Handled, Limits, Stage
from rowmq.times import Duration, to_seconds
from rowmq.worker.app import App, check_running

__all__ = ["AsyncTestApp", "TestApp"]

T = TypeVar("T")

MAX_SECONDS = 10.0
"""How long a drain may take, if nothing else is said."""


INTERNAL = ("rowmq", "asyncio", "contextlib")
"""Packages whose frames tell a test nothing about its handler."""


class _Common(Assertions):
    """What both kinds share. Assertions do not wait for anything but a local file: they are not to
    be awaited in async tests either, where one that is forgotten would pass.
    """

    __test__ = False  # it is no test, whatever its name says

    def __init__(self, app: App | None = None, *, now: datetime | None = None) -> None:
        if app is not None and not isinstance(app, App):
            raise InvalidInput(f"an app to be tested is a rowmq.App, not {app!r}")
        self._app = App("sqlite://") if app is None else app
        self._now = now
        self._opened: Database | None = None
        self._client: RowMQ | None = None
        self._staged: Stage | None = None
        self.handled: list[Handled] = []
        """All that was handled so far."""

    @property
    def clock(self) -> Clock:
        """The clock of the database, to be moved."""
        return self._database.clock

    @property
    def url(self) -> str:
        """The URL of the private database, for code that connects by itself. What it writes has the
        real time; `connect` gives clients that have the clock's.
        """
        return self._database.url

    @property
    def path(self) -> Path:
        """The file of the private database, for tables of your own."""
        return self._database.path

    @property
    def _database(self) -> Database:
        if self._opened is None:
            raise Closed(f"the app under test does not run: {self._usage}")
        return self._opened

    @property
    def _stage(self) -> Stage:
        if self._staged is None:
            raise Closed(f"the app under test does not run: {self._usage}")
        return self._staged

    @property
    def _reader(self) -> RowMQ:  # type: ignore[override]
        if self._client is None:
            self._client = self._database.connect()
        return self._client

    _usage = "use `with TestApp(app) as t:`"

    def _open(self) -> Stage:
        if self._opened is not None:
            raise ConfigurationError("the app under test runs already")
        check_running(self._app._runtime)
        prefix = self._app._options.get("prefix", DEFAULT_PREFIX)
        self._opened = Database(prefix=prefix, now=self._now)
        return Stage(self._app, self._opened)

    def _close(self) -> None:
        """Let go of the database."""
        client, self._client = self._client, None
        opened, self._opened = self._opened, None
        self._staged = None
        if client is not None:
            client.close()
        if opened is not None:
            opened.close()

    async def _drain(self, max_time: Duration, *, raise_errors: bool) -> list[Handled]:
        stage = self._stage
        return await stage.drain(limits_of(max_time, raise_errors=raise_errors), self.handled)

    async def _step(self, max_time: Duration, *, raise_errors: bool) -> Handled | None:
        limits = limits_of(max_time, raise_errors=raise_errors)
        return await self._stage.step(limits, self.handled)

    async def _run_for(
        self, passes: timedelta, max_time: Duration, *, raise_errors: bool
    ) -> list[Handled]:
        limits = limits_of(max_time, raise_errors=raise_errors)
        return await self._stage.run_until(self.clock.now() + passes, limits, self.handled)


class TestApp(_Common):
    """An app on a private database, run step by step by a sync test.

    Handlers, middleware, hooks and schedules are the app's own; its URL is not used. Nothing runs
    between calls. Without an app there are the database, the clock and the assertions.
    """

    __test__ = False

    def __init__(self, app: App | None = None, *, now: datetime | None = None) -> None:
        """`now` is what the clock shows at the start, and stands at; without it, it goes with the
        real time until it is moved.
        """
        super().__init__(app, now=now)
        self._runner: asyncio.Runner | None = None

    @property
    def mq(self) -> RowMQ:
        """A client of the private database."""
        return self._reader

    def connect(self) -> RowMQ:
        """Another client of it, with the same clock, which you close yourself."""
        return self._database.connect()

    def publish(
        self,
        topic: str,
        payload: Any,
        *,
        key: str | None = None,
        id: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> PublishResult:
        """Publish a message: see `RowMQ.publish`."""
        return self.mq.publish(topic, payload, key=key, id=id, headers=headers)

    def queue(self, name: str, **options: Any) -> Queue[Any]:
        """A queue: see `RowMQ.queue`."""
        queue: Queue[Any] = self.mq.queue(name, **options)
        return queue

    def drain(
        self, *, max_time: Duration = MAX_SECONDS, raise_errors: bool = True
    ) -> list[Handled]:
        """Run handlers on all that is due, until nothing is: what they publish and put meanwhile,
        what is to be tried again at once, and schedules. What was handled, in order.

        It is one at a time, a handler after the other, the clock stands meanwhile, and nothing is
        waited for. What a handler raises is raised here, as soon as its message is settled as its
        handler's policy says; without `raise_errors` it is part of what is returned, and the drain
        goes on. One that takes longer than `max_time`, in real time, is an `AssertionError`.
        """
        __tracebackhide__ = True
        return self._run(self._drain(max_time, raise_errors=raise_errors))

    def step(
        self, *, max_time: Duration = MAX_SECONDS, raise_errors: bool = True
    ) -> Handled | None:
        """Run one handler on one message or job that is due; None if there is none."""
        __tracebackhide__ = True
        return self._run(self._step(max_time, raise_errors=raise_errors))

    def run_for(
        self,
        *,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
        max_time: Duration = MAX_SECONDS,
        raise_errors: bool = True,
    ) -> list[Handled]:
        """Let time pass while the app works: the clock goes from one thing that is due to the next,
        and each is handled at its time. In no time at all.
        """
        passes = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
        __tracebackhide__ = True
        return self._run(self._run_for(passes, max_time, raise_errors=raise_errors))

    def maintain(self) -> None:
        """Do a worker's chores once: collect topics, prune archives."""
        self._run(self._stage.maintain())

    def start(self) -> Self:
        """Begin: what `with` does."""
        refuse_loop("`async with AsyncTestApp(app) as t:`")
        stage = self._open()
        self._runner = asyncio.Runner()
        try:
            self._run(stage.start())
        except BaseException:
            self.close()
            raise
        self._staged = stage
        return self

    def close(self) -> None:
        """End: what leaving `with` does."""
        runner, self._runner = self._runner, None
        try:
            if runner is not None and self._staged is not None:
                runner.run(self._staged.stop())
        finally:
            if runner is not None:
                runner.close()
            self._close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        __tracebackhide__ = True
        try:
            runner = self._checked_runner()
        except BaseException:
            work.close()
            raise
        try:
            # With the context of the test, so that handlers see its context variables.
            return runner.run(work, context=contextvars.copy_context())
        except Exception as error:  # noqa: BLE001 - raised again, shorter
            raise error.with_traceback(beyond(error.__traceback__)) from error.__cause__

    def _checked_runner(self) -> asyncio.Runner:
        refuse_loop("`async with AsyncTestApp(app) as t:` and `await t.drain()`")
        if self._runner is None:
            raise Closed(f"the app under test does not run: {self._usage}")
        return self._runner


class AsyncTestApp(_Common):
    """An app on a private database, run step by step by an async test, in its event loop: see
    `TestApp`. The clock and the assertions are not to be awaited.
    """

    __test__ = False

    _usage = "use `async with AsyncTestApp(app) as t:`"

    @property
    def mq(self) -> AsyncRowMQ:
        """A client of the private database: the app's own."""
        return self._stage.mq

    def connect(self) -> AsyncRowMQ:
        """Another client of it, with the same clock, which you close yourself."""
        return self._database.connect_async()

    async def publish(
        self,
        topic: str,
        payload: Any,
        *,
        key: str | None = None,
        id: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> PublishResult:
        """Publish a message: see `RowMQ.publish`."""
        return await self.mq.publish(topic, payload, key=key, id=id, headers=headers)

    def queue(self, name: str, **options: Any) -> AsyncQueue[Any]:
        """A queue: see `RowMQ.queue`."""
        queue: AsyncQueue[Any] = self.mq.queue(name, **options)
        return queue

    async def drain(
        self, *, max_time: Duration = MAX_SECONDS, raise_errors: bool = True
    ) -> list[Handled]:
        """Run handlers on all that is due, until nothing is: see `TestApp.drain`."""
        __tracebackhide__ = True
        return await told(self._drain(max_time, raise_errors=raise_errors))

    async def step(
        self, *, max_time: Duration = MAX_SECONDS, raise_errors: bool = True
    ) -> Handled | None:
        """Run one handler on one message or job that is due; None if there is none."""
        __tracebackhide__ = True
        return await told(self._step(max_time, raise_errors=raise_errors))

    async def run_for(
        self,
        *,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
        max_time: Duration = MAX_SECONDS,
        raise_errors: bool = True,
    ) -> list[Handled]:
        """Let time pass while the app works: see `TestApp.run_for`."""
        passes = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
        __tracebackhide__ = True
        return await told(self._run_for(passes, max_time, raise_errors=raise_errors))

    async def maintain(self) -> None:
        """Do a worker's chores once: collect topics, prune archives."""
        await self._stage.maintain()

    async def start(self) -> Self:
        """Begin: what `async with` does."""
        stage = self._open()
        try:
            await stage.start()
        except BaseException:
            self._close()
            raise
        self._staged = stage
        return self

    async def close(self) -> None:
        """End: what leaving `async with` does."""
        try:
            if self._staged is not None:
                await self._staged.stop()
        finally:
            self._close()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


def limits_of(max_time: Duration, *, raise_errors: bool) -> Limits:
    return Limits(max_time=to_seconds(max_time, name="max_time"), raise_errors=raise_errors)


async def told(work: Coroutine[Any, Any, T]) -> T:
    """Do something; what it raises points at a handler, and not at how that came to be called."""
    __tracebackhide__ = True
    try:
        return await work
    except Exception as error:  # noqa: BLE001 - raised again, shorter
        raise error.with_traceback(beyond(error.__traceback__)) from error.__cause__


def beyond(trace: TracebackType | None) -> TracebackType | None:
    """A traceback from the first frame that is the user's own; all of it, if there is none."""
    first = trace
    while first is not None:
        package = str(first.tb_frame.f_globals.get("__name__", "")).partition(".")[0]
        if package not in INTERNAL:
            return first
        first = first.tb_next
    return trace


def refuse_loop(instead: str) -> None:
    """A sync test app has an event loop of its own, which cannot run inside another."""
    with contextlib.suppress(RuntimeError):
        asyncio.get_running_loop()
        raise ConfigurationError(f"TestApp is for sync tests; in async code use {instead}")
