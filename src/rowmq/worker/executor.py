"""Runs a handler on one unit, from its injection to the verdict on it."""

import asyncio
import contextlib
import inspect
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Protocol
from zoneinfo import ZoneInfo

from rowmq.client import AsyncRowMQ, RowMQ
from rowmq.codec import said_by
from rowmq.cron.options import FIRE_AT_HEADER
from rowmq.errors import (
    AlreadySettled,
    ConnectionLost,
    DatabaseUnreachable,
    RowMQError,
    StaleLease,
    TransientError,
)
from rowmq.policy import AckPolicy
from rowmq.queue.holding import AsyncLazyTransaction
from rowmq.queue.job import AnyJob
from rowmq.schedule import zone_of
from rowmq.subscriber.delivery import AsyncDelivery
from rowmq.transaction import AsyncTransaction
from rowmq.worker.bridge import Bridge, BridgedTransaction
from rowmq.worker.context import Context, Progress
from rowmq.worker.handler import Handler
from rowmq.worker.injection import Role
from rowmq.worker.sources import Source
from rowmq.worker.threads import Threads
from rowmq.worker.unit import ACK, RELEASE, Interrupted, Unit, Verdict, verdict_of
from rowmq.worker.waiting import wait_for

__all__ = ["Executor", "Middleware", "Surroundings"]

log = logging.getLogger("rowmq")

Middleware = Callable[[Context, Callable[[], Awaitable[Any]]], Awaitable[Any]]

PUT_OFF_SECONDS = 1.0

OURS = "rowmq.worker."

STOPPED = "the worker was stopped before its handler was done"


class Surroundings(Protocol):
    """What an executor needs of the worker that it is part of."""

    mq: AsyncRowMQ
    bridge: Bridge
    middleware: Sequence[Middleware]

    def sync_client(self) -> RowMQ:
        """A client for handlers in threads."""

    def report(self) -> None:
        """A handler has told of its progress."""

    stop_asked: asyncio.Event
    """Set when the worker is to stop."""

    @property
    def stopping(self) -> bool:
        """Whether the worker is to stop."""


class Executor:
    """Runs one handler."""

    def __init__(self, handler: Handler, source: Source, around: Surroundings) -> None:
        self.handler = handler
        self._source = source
        self._around = around
        self._threads: Threads | None = None
        self.failed = 0
        """How often the function has raised."""
        if not handler.is_async:
            self._threads = Threads(handler.pace.concurrency, f"rowmq-{handler.name}")

    def close(self) -> None:
        if self._threads is not None:
            self._threads.close()

    async def execute(self, unit: Unit) -> Verdict | None:
        """Handle a unit. What is to become of it; None if that has been seen to."""
        handler = self.handler
        unit.begin(Progress(self._around.report))
        if handler.ack_policy is AckPolicy.ACK_FIRST and not await self._ack_first(unit):
            return None
        error: BaseException | None = None
        try:
            if handler.transactional:
                await self._in_transaction(unit)
            else:
                await self._call(unit)
        except asyncio.CancelledError as cancelled:
            error = self._cancelled(cancelled)
        except BaseException as failure:  # noqa: BLE001 - whatever it is, it decides on the unit
            error = failure
        unit.over = True
        problem = await unit.settles_done()
        if problem is not None and problem is not error:
            log.warning("handler %s: %r was not settled: %s", handler.name, unit.raw, problem)
        if error is not None and is_blameless(handler, unit, error):
            return await self._put_off(unit, error)
        if error is not None:
            self._tell(unit, error)
        if unit.manual and (error is None or not unit.tentative):
            self._source.finished([unit])
            return None
        verdict = verdict_of(handler.ack_policy, error)
        if error is None and handler.ack_policy is AckPolicy.MANUAL:
            log.error("handler %s has not settled %r: it is rejected", handler.name, unit.raw)
        return verdict

    async def _ack_first(self, unit: Unit) -> bool:
        try:
            await unit.settle(unit.wanted(ACK))
        except RowMQError as error:
            log.warning("%r was not acked, and so is not handled: %s", unit.raw, error)
            self._source.finished([unit])
            return False
        return True

    def _cancelled(self, error: asyncio.CancelledError) -> BaseException:
        """A handler was cut short: by a stop, if it was not its own doing."""
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            task.uncancel()
            return Interrupted(STOPPED)
        return error

    def _tell(self, unit: Unit, error: BaseException) -> None:
        self.failed += 1
        expected = isinstance(error, Interrupted | StaleLease | AlreadySettled)
        log.warning(
            "handler %s failed, attempt %d%s, %r: %s: %s",
            self.handler.name,
            unit.raw.attempt,
            self._prospects(unit, error),
            unit.raw,
            type(error).__name__,
            said_by(error),
            exc_info=None if expected else traced(error),
        )

    async def _put_off(self, unit: Unit, error: BaseException) -> Verdict:
        """Give a unit back at no cost, and wait a little: the next one would fare no better."""
        log.warning(
            "handler %s could not be run, or its transaction not be ended, for %r: %s",
            self.handler.name,
            unit.raw,
            said_by(error),
        )
        await wait_for(self._around.stop_asked, PUT_OFF_SECONDS)
        return RELEASE

    def _prospects(self, unit: Unit, error: BaseException) -> str:
        """What will become of what failed, in words."""
        limit = self.handler.attempts_max
        known = "" if limit is None else f" of {limit}"
        verdict = verdict_of(self.handler.ack_policy, error)
        if unit.manual or verdict is None or verdict.kind == "ack":
            return known
        last = limit is not None and unit.raw.attempt >= limit
        return f"{known}, given up" if last or verdict.kind == "reject" else f"{known}, tried again"

    # --- in a transaction -------------------------------------------------------------------------

    async def _in_transaction(self, unit: Unit) -> None:
        """The handler's writes and the ack, all or nothing."""
        try:
            async with transaction_of(self._around.mq) as tx:
                unit.tx = tx
                await self._call(unit)
                await unit.settles_done(strict=True)
                if not unit.manual and self.handler.ack_policy is not AckPolicy.MANUAL:
                    unit.tx = settling_in(tx)
                    await unit.settle(unit.wanted(ACK))
        except BaseException:
            unit.over, unit.manual = True, False  # if it was settled in there, that is undone
            raise
        finally:
            unit.tx = None

    # --- calling the function ---------------------------------------------------------------------

    async def _call(self, unit: Unit) -> None:
        unit.called = True
        context = self._context(unit)
        call: Callable[[], Awaitable[Any]] = partial(self._call_function, unit, context)
        for middleware in reversed(self._around.middleware):
            call = partial(middleware, context, call)
        await call()
        unit.returned = True

    async def _call_function(self, unit: Unit, context: Context) -> Any:
        handler = self.handler
        seen = context if handler.is_async else self._in_thread(unit, context)
        roles = handler.plan.roles
        arguments = {name: GIVERS[role](self, unit, seen) for name, role in roles.items()}
        if self._threads is None:
            limit = asyncio.timeout(handler.timeout)
            try:
                async with limit:
                    return await handler.function(**arguments)
            except TimeoutError as error:
                if limit.expired():
                    raise self._too_long() from error
                raise
        thread = self._threads.call(partial(call_in_thread, handler.function, arguments))
        try:
            done, _ = await asyncio.wait({thread}, timeout=handler.timeout)
        except asyncio.CancelledError:
            self._leave_behind(unit, thread)
            raise
        if not done:
            self._leave_behind(unit, thread)
            raise self._too_long()
        return await thread

    def _leave_behind(self, unit: Unit, thread: "asyncio.Future[Any]") -> None:
        """Go on without a thread, and tell when it has ended."""
        began = time.monotonic()

        def ended(late: "asyncio.Future[Any]") -> None:
            seconds = time.monotonic() - began
            error = None if late.cancelled() else late.exception()
            story = f"it raised {type(error).__name__}" if error is not None else "it returned"
            log.warning("handler %s ended %.1f s too late: %s", self.handler.name, seconds, story)

        unit.straggler = thread
        thread.add_done_callback(ended)

    def _too_long(self) -> TimeoutError:
        return TimeoutError(f"it took longer than its timeout of {self.handler.timeout:g} s")

    def _context(self, unit: Unit) -> Context:
        assert unit.progress is not None  # noqa: S101 - it has begun
        raw = unit.for_async()
        return Context(
            handler=self.handler.name,
            source=self._source.name,
            job=raw if isinstance(raw, AnyJob) else None,
            delivery=raw if isinstance(raw, AsyncDelivery) else None,
            progress=unit.progress,
            stopping=lambda: self._around.stopping,
            lost=partial(self._source.lost, unit),
        )

    def _in_thread(self, unit: Unit, context: Context) -> Context:
        """The same, for a function in a thread."""
        bridge = self._around.bridge
        tx = None if unit.tx is None else BridgedTransaction(bridge, unit.tx)
        return context.seen_as(unit.for_threads(bridge.settler(unit), tx))

    def transaction(self, unit: Unit) -> AsyncTransaction | BridgedTransaction:
        """The transaction that the function is run in."""
        tx: AsyncTransaction = unit.tx
        return tx if self.handler.is_async else BridgedTransaction(self._around.bridge, tx)

    def client(self) -> AsyncRowMQ | RowMQ:
        """A client, as the function can use it."""
        return self._around.mq if self.handler.is_async else self._around.sync_client()


GIVERS: dict[Role, Callable[[Executor, Unit, Context], Any]] = {
    Role.PAYLOAD: lambda _, __, context: context.payload,
    Role.DELIVERY: lambda _, __, context: context.delivery,
    Role.JOB: lambda _, __, context: context.job,
    Role.MESSAGE: lambda _, __, context: context.delivery and context.delivery.message,
    Role.TRANSACTION: lambda executor, unit, _: executor.transaction(unit),
    Role.CLIENT: lambda executor, _, __: executor.client(),
    Role.PROGRESS: lambda _, __, context: context.progress,
    Role.CONTEXT: lambda _, __, context: context,
    Role.FIRE_TIME: lambda executor, unit, _: fire_time_of(unit, executor.handler),
}
"""What a parameter of a function is given, by its role."""


def is_blameless(handler: Handler, unit: Unit, error: BaseException) -> bool:
    """Whether a unit failed by no fault of its handler, and can be tried again at no cost: its
    transaction could not be begun or ended because of the database, or the database went away in
    it, so that nothing of it is left.
    """
    if unit.manual:
        return False
    if not unit.called or unit.returned:
        return isinstance(error, TransientError)
    return handler.transactional and isinstance(error, ConnectionLost | DatabaseUnreachable)


def traced(error: BaseException) -> tuple[type[BaseException], BaseException, Any]:
    """An error for the log, from the handler on: how it came to be called helps nobody."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_globals.get("__name__", "").startswith(OURS):
        trace = trace.tb_next
    return type(error), error, trace or error.__traceback__


def call_in_thread(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    result = function(**arguments)
    if inspect.iscoroutine(result):
        result.close()
        raise TypeError(
            f"{function!r} is not declared async and gave a coroutine: declare it `async def`"
        )
    return result


@contextlib.asynccontextmanager
async def transaction_of(mq: AsyncRowMQ) -> AsyncIterator[AsyncTransaction]:
    """A handler's transaction. SQLite lets one connection write at a time: there it begins when it
    is first used, so that it keeps out the others for as short as can be.
    """
    if mq._store.dialect.name != "sqlite":
        async with mq.transaction() as tx:
            yield tx
        return
    async with contextlib.AsyncExitStack() as stack:
        yield AsyncLazyTransaction(mq, stack)


def settling_in(tx: AsyncTransaction) -> AsyncTransaction | None:
    """The transaction to ack in; none if the handler has not used it."""
    unused = isinstance(tx, AsyncLazyTransaction) and not tx.begun
    return None if unused else tx


def fire_time_of(unit: Unit, handler: Handler) -> datetime | None:
    """When a cron job was to be run, in the zone of its schedule; when it was due, if it was put by
    hand.
    """
    raw, table = unit.raw, handler.timetable
    if isinstance(raw, AsyncDelivery) or table is None:
        return None
    told = raw.headers.get(FIRE_AT_HEADER)
    moment = raw.due_at if told is None else datetime.fromisoformat(told)
    return moment.astimezone(ZoneInfo(zone_of(table.tz)))
