"""Runs a handler on one unit, from its injection to the verdict on it."""

import asyncio
import contextlib
import inspect
import logging
import random
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
    Deadlock,
    RowMQError,
    SerializationFailure,
    StaleLease,
    TransientError,
)
from rowmq.policy import AckPolicy
from rowmq.queue.holding import AsyncLazyTransaction
from rowmq.queue.job import AnyJob
from rowmq.schedule import zone_of
from rowmq.subscriber.delivery import AsyncDelivery
from rowmq.telemetry.measuring import HandlerMeter
from rowmq.telemetry.metrics import Metrics
from rowmq.transaction import AsyncTransaction
from rowmq.worker.bridge import Bridge, BridgedTransaction
from rowmq.worker.context import Context, Progress
from rowmq.worker.handler import Handler
from rowmq.worker.injection import Role
from rowmq.worker.observing import outcome_of
from rowmq.worker.sources import Source
from rowmq.worker.threads import Threads
from rowmq.worker.unit import ACK, RELEASE, Interrupted, Unit, Verdict, verdict_of
from rowmq.worker.waiting import wait_for

__all__ = ["Executor", "Middleware", "Surroundings"]

log = logging.getLogger("rowmq")

Middleware = Callable[[Context, Callable[[], Awaitable[Any]]], Awaitable[Any]]

PUT_OFF_SECONDS = 1.0
CROSSED_SECONDS = 0.2
CROSSED_MAX = 10
"""How often a handler may get in others' way at no cost. If it always does, it is its own fault."""

CROSSED_KEPT = 10_000

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

    metrics: Metrics | None
    """Who measures the worker, if anybody does."""

    stop_asked: asyncio.Event
    """Set when the worker is to stop."""

    @property
    def stopping(self) -> bool:
        """Whether the worker is to stop."""


class Executor:
    """Runs one handler."""

    def __init__(
        self,
        handler: Handler,
        source: Source,
        around: Surroundings,
        *,
        meter: HandlerMeter | None = None,
    ) -> None:
        self.handler = handler
        self._source = source
        self._meter = meter
        self._around = around
        self._threads: Threads | None = None
        givers = GIVERS | {Role.PAYLOAD: of_message if handler.view is None else of_job}
        self._givers = [(name, givers[role]) for name, role in handler.plan.roles.items()]
        self._sole = self._givers[0] if len(self._givers) == 1 else None
        """Most handlers take the payload, and nothing else."""
        self._wants_context = not set(handler.plan.roles.values()) <= OF_UNITS
        self._plain = (
            handler.is_async
            and handler.timeout is None
            and not handler.transactional
            and not self._wants_context
        )
        """Whether all there is to do is to call the function."""
        manual = handler.ack_policy is AckPolicy.MANUAL
        self._good_end = None if manual else verdict_of(handler.ack_policy, None)
        """What a good end comes to, if that is always the same."""
        self._crossed: dict[str, int] = {}
        """How often transactions of units were ended for others', by their ids."""
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
        unit.began_at = time.monotonic()
        if handler.ack_policy is AckPolicy.ACK_FIRST and not await self._ack_first(unit):
            return None
        error: BaseException | None = None
        try:
            if self._plain and not self._around.middleware:
                # As `_call` does, in fewer steps: most handlers are like this, and many are quick.
                unit.called = True
                sole = self._sole
                if sole is None:
                    await handler.function(**self._arguments(unit, None))
                else:
                    await handler.function(**{sole[0]: sole[1](self, unit, None)})
                unit.returned = True
            elif handler.transactional:
                await self._in_transaction(unit)
            else:
                await self._call(unit)
        except asyncio.CancelledError as cancelled:
            error = self._cancelled(cancelled)
        except BaseException as failure:  # noqa: BLE001 - whatever it is, it decides on the unit
            error = failure
        unit.over = True
        if error is None and not unit.settling and not unit.manual:
            return self._good_end or self._unsettled_verdict(unit)
        try:
            return await self._verdict(unit, error)
        finally:
            del error  # which refers to this frame, and would keep itself and the unit

    def _unsettled_verdict(self, unit: Unit) -> Verdict | None:
        """What becomes of a unit whose handler came to a good end, and has not settled it."""
        policy = self.handler.ack_policy
        if policy is AckPolicy.MANUAL:
            log.error("handler %s has not settled %r: it is rejected", self.handler.name, unit.raw)
        return verdict_of(policy, None)

    async def _verdict(self, unit: Unit, error: BaseException | None) -> Verdict | None:
        """What becomes of a unit whose handler has settled it, or raised."""
        handler = self.handler
        if error is not None and unit.tracer is not None:
            unit.tracer.failed(error)
        problem = await unit.settles_done()
        if problem is not None and problem is not error:
            log.warning("handler %s: %r was not settled: %s", handler.name, unit.raw, problem)
        if error is not None and is_blameless(handler, unit, error) and self._crosses(unit, error):
            return await self._put_off(unit, error)
        self._crossed.pop(unit.id, None)
        if error is not None:
            self._tell(unit, error)
        if unit.manual and (error is None or not unit.tentative):
            self._source.finished([unit])
            self._count(outcome_of(unit))
            return None
        if error is None:
            return self._unsettled_verdict(unit)
        return verdict_of(handler.ack_policy, error)

    def _crosses(self, unit: Unit, error: BaseException) -> bool:
        """Whether it may be tried again at no cost: not, if others are always in its way."""
        if not isinstance(error, CROSSED):
            return True
        if len(self._crossed) >= CROSSED_KEPT:
            self._crossed.clear()
        times = self._crossed[unit.id] = self._crossed.get(unit.id, 0) + 1
        if times > CROSSED_MAX:
            return False
        self._has_failed()
        return True

    async def _ack_first(self, unit: Unit) -> bool:
        try:
            await unit.settle(unit.wanted(ACK))
        except RowMQError as error:
            log.warning("%r was not acked, and so is not handled: %s", unit.raw, error)
            self._source.finished([unit])
            self._count("lost")
            return False
        return True

    def _cancelled(self, error: asyncio.CancelledError) -> BaseException:
        """A handler was cut short: by a stop, if it was not its own doing."""
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            task.uncancel()
            return Interrupted(STOPPED)
        return error

    def _has_failed(self) -> None:
        self.failed += 1
        if self._meter is not None:
            self._meter.failures += 1

    def _count(self, outcome: str) -> None:
        if self._meter is not None:
            self._meter.count(outcome)

    def _tell(self, unit: Unit, error: BaseException) -> None:
        self._has_failed()
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
        crossed = isinstance(error, CROSSED)
        # Not all at the same time again.
        pause = random.uniform(0, CROSSED_SECONDS) if crossed else PUT_OFF_SECONDS
        await wait_for(self._around.stop_asked, pause)
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
        middleware = self._around.middleware
        if middleware:
            context = self._context(unit)
            call: Callable[[], Awaitable[Any]] = partial(self._call_function, unit, context)
            for around in reversed(middleware):
                call = partial(around, context, call)
            await call()
        else:
            await self._call_function(unit, self._context(unit) if self._wants_context else None)
        unit.returned = True

    async def _call_function(self, unit: Unit, context: Context | None) -> Any:
        handler = self.handler
        if context is not None and not handler.is_async:
            context = context.seen_as(self.given(unit))
        arguments = self._arguments(unit, context)
        if self._threads is None:
            if handler.timeout is None:
                return await handler.function(**arguments)
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
        try:
            return await thread
        finally:
            del thread, done  # as in `execute`: they have what it raised

    def _arguments(self, unit: Unit, context: Context | None) -> dict[str, Any]:
        return {name: give(self, unit, context) for name, give in self._givers}

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
        raw = unit.for_async()
        unit.progress = Progress(self._around.report)
        return Context(
            handler=self.handler.name,
            source=self._source.name,
            job=raw if isinstance(raw, AnyJob) else None,
            delivery=raw if isinstance(raw, AsyncDelivery) else None,
            progress=unit.progress,
            stopping=lambda: self._around.stopping,
            lost=partial(self._source.lost, unit),
        )

    def given(self, unit: Unit) -> Any:
        """The job or delivery, as the function can use it."""
        if self._threads is None:
            return unit.for_async()
        bridge = self._around.bridge
        tx = None if unit.tx is None else BridgedTransaction(bridge, unit.tx)
        return unit.for_threads(bridge.settler(unit), tx)

    def transaction(self, unit: Unit) -> AsyncTransaction | BridgedTransaction:
        """The transaction that the function is run in."""
        tx: AsyncTransaction = unit.tx
        return tx if self.handler.is_async else BridgedTransaction(self._around.bridge, tx)

    def client(self) -> AsyncRowMQ | RowMQ:
        """A client, as the function can use it."""
        return self._around.mq if self.handler.is_async else self._around.sync_client()


def given_raw(executor: Executor, unit: Unit, context: Context | None) -> Any:
    """The job or delivery: the one of the context, if there is one."""
    if context is None:
        return executor.given(unit)
    return context.delivery if context.job is None else context.job


def of_message(_: Executor, unit: Unit, __: Context | None) -> Any:
    """The payload of a message."""
    return unit.raw.message.payload  # type: ignore[union-attr] # it is a delivery


def of_job(_: Executor, unit: Unit, __: Context | None) -> Any:
    """The payload of a job."""
    return unit.raw.payload  # type: ignore[union-attr] # it is a job


GIVERS: dict[Role, Callable[[Executor, Unit, Context | None], Any]] = {
    Role.DELIVERY: given_raw,
    Role.JOB: given_raw,
    Role.MESSAGE: lambda _, unit, __: unit.raw.message,  # type: ignore[union-attr]
    Role.TRANSACTION: lambda executor, unit, _: executor.transaction(unit),
    Role.CLIENT: lambda executor, _, __: executor.client(),
    Role.PROGRESS: lambda _, unit, __: unit.progress,
    Role.CONTEXT: lambda _, __, context: context,
    Role.FIRE_TIME: lambda executor, unit, _: fire_time_of(unit, executor.handler),
}
"""What a parameter of a function is given, by its role; the payload depends on the source."""

OF_UNITS = {Role.PAYLOAD, Role.MESSAGE, Role.DELIVERY, Role.JOB, Role.TRANSACTION, Role.CLIENT}
"""What needs no context: mostly there is no other reason to make one."""


def is_blameless(handler: Handler, unit: Unit, error: BaseException) -> bool:
    """Whether a unit failed by no fault of its handler, and can be tried again at no cost: its
    transaction could not be begun or ended because of the database, or the database ended it, to
    let others go on or because it went away, so that nothing of it is left.
    """
    if unit.manual:
        return False
    if not unit.called or unit.returned:
        return isinstance(error, TransientError)
    return handler.transactional and isinstance(error, ENDED)


CROSSED = (Deadlock, SerializationFailure)
"""Transactions got in each other's way: of those that did, one is let through."""

ENDED = (*CROSSED, ConnectionLost, DatabaseUnreachable)
"""The database has ended a transaction, and will not always."""


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
