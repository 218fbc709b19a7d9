"""Declaring handlers: the decorators of an app, and what is checked when they are used."""

import inspect
from collections.abc import Callable
from typing import Any, TypeVar
from zoneinfo import ZoneInfo

import msgspec

from rowmq.errors import InvalidOption
from rowmq.naming import check_group, check_queue, check_topic
from rowmq.options import positive
from rowmq.policy import AckPolicy, RetryStrategy
from rowmq.queue.view import UNTYPED, view_of
from rowmq.quoting import quoted
from rowmq.schedule import CatchUp, check_catch_up, cron_of
from rowmq.subscriber.options import options_of
from rowmq.times import Duration
from rowmq.worker.handler import Handler, Manner, Pace, Timetable, check_policy, pace_of
from rowmq.worker.injection import Work, is_async, name_of, plan_of
from rowmq.worker.sources import for_worker

__all__ = ["DEFAULT_NAME", "Declaring"]

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_NAME = "app"
"""What an app is called that was given no name."""

PER_KEY_MIN = 20
"""How many messages of one key are fetched ahead, at least: they are handled one after the other,
and should not fill the room that others need.
"""

PLAIN_MODULES = ("builtins", "collections", "datetime", "decimal", "uuid")

CRON_PREFIX = "cron."
"""A cron handler has a queue of its own, named by this and its own name."""

CRON_PACE = Pace(
    concurrency=1,
    fetch_batch_size=1,
    overfetch_factor=1.0,
    min_fetch_interval=0.0,
    max_fetch_interval=0.5,
    flush_interval=0.0,
)


class Declaring:
    """What an app's handlers are declared by."""

    name: str
    _handlers: list[Handler]

    def _check_idle(self) -> None:
        raise NotImplementedError

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
        pace = pace_of(
            concurrency=concurrency,
            fetch_batch_size=fetch_batch_size,
            overfetch_factor=overfetch_factor,
            min_fetch_interval=min_fetch_interval,
            max_fetch_interval=max_fetch_interval,
            flush_interval=flush_interval,
        )
        manner = manner_of(pace, name, ack_policy, timeout, transactional=transactional)

        def declare(function: F) -> F:
            handler = new_handler(function, Work.TOPIC, manner)
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
        pace = pace_of(
            concurrency=concurrency,
            fetch_batch_size=fetch_batch_size,
            overfetch_factor=overfetch_factor,
            min_fetch_interval=min_fetch_interval,
            max_fetch_interval=max_fetch_interval,
            flush_interval=flush_interval,
        )
        manner = manner_of(pace, name, ack_policy, timeout, transactional=transactional)

        def declare(function: F) -> F:
            handler = new_handler(function, Work.QUEUE, manner)
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
        and that name; so what fails is tried again like any job. If the app has a name, that comes
        first: apps that share a database should have one each. `catch_up` says what is done after
        an outage: `latest`, `all` or `none` of what was missed. A parameter annotated with
        `datetime` is given the time it was to be run at.
        """
        check_brackets(cron, "@app.cron('0 2 * * *')")
        check_times(cron, tz, catch_up)
        manner = manner_of(CRON_PACE, name, ack_policy, timeout, transactional=transactional)

        def declare(function: F) -> F:
            handler = new_handler(function, Work.CRON, manner)
            own = handler.name if self.name == DEFAULT_NAME else f"{self.name}.{handler.name}"
            view = view_of(
                CRON_PREFIX + own,
                type=handler.plan.type,
                kind=None,
                lock_timeout=lock_timeout,
                retry=retry,
                max_deliveries=max_deliveries,
                poll_interval=CRON_PACE.max_fetch_interval,
            )
            view = msgspec.structs.replace(view, kind=UNTYPED)
            timetable = Timetable(name=own, cron=cron, tz=tz, catch_up=catch_up, payload=payload)
            self._add(msgspec.structs.replace(handler, view=view, timetable=timetable))
            return function

        return declare

    def _add(self, handler: Handler) -> None:
        self._check_idle()
        for other in self._handlers:
            check_together(handler, other)
        self._handlers.append(handler)


def manner_of(
    pace: Pace,
    name: str | None,
    ack_policy: AckPolicy,
    timeout: Duration | None,
    *,
    transactional: bool,
) -> Manner:
    """How a handler is run, checked."""
    return Manner(
        name=None if name is None else check_group(name, what="a handler's name"),
        ack_policy=check_policy(ack_policy, transactional=transactional),
        timeout=None if timeout is None else positive("timeout", timeout),
        transactional=transactional,
        pace=pace,
    )


def new_handler(function: Callable[..., Any], work: Work, manner: Manner) -> Handler:
    """A handler, before its source is known."""
    if not callable(function):
        raise InvalidOption(
            f"@app.{work.value}(...) stands above a function, not {quoted(function)}"
        )
    name = manner.name or check_group(name_of(function), what="a handler's name")
    return Handler(
        name=name,
        function=function,
        plan=plan_of(function, work, transactional=manner.transactional),
        is_async=is_async(function),
        ack_policy=manner.ack_policy,
        timeout=manner.timeout,
        transactional=manner.transactional,
        pace=manner.pace,
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


def check_brackets(given: Any, right: str) -> None:
    """A decorator that was used without its brackets is given the function."""
    if callable(given):
        raise InvalidOption(f"{right} stands above a handler, with what it handles in brackets")


def check_times(cron: str, tz: str | ZoneInfo, catch_up: CatchUp) -> None:
    """Refuse a schedule where it is declared, not when the app starts."""
    cron_of(cron, tz)
    check_catch_up(catch_up)
