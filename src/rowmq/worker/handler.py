"""A handler, and how it is run: frozen values, checked when it is declared."""

import math
from collections.abc import Callable
from typing import Any
from zoneinfo import ZoneInfo

import msgspec

from rowmq.errors import InvalidOption
from rowmq.options import check_flag, positive, whole
from rowmq.policy import AckPolicy
from rowmq.queue.view import View
from rowmq.quoting import quoted
from rowmq.schedule import CatchUp
from rowmq.subscriber.options import Options
from rowmq.times import Duration, to_seconds
from rowmq.worker.injection import Plan

__all__ = ["Handler", "Manner", "Pace", "Timetable", "check_policy", "pace_of"]


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """How much of a handler's work is done, fetched and settled at a time; times in seconds."""

    concurrency: int
    fetch_batch_size: int
    overfetch_factor: float
    min_fetch_interval: float
    max_fetch_interval: float
    flush_interval: float

    @property
    def buffer(self) -> int:
        """How many units may wait to be begun."""
        return math.ceil(self.fetch_batch_size * self.overfetch_factor)


class Manner(msgspec.Struct, frozen=True, kw_only=True):
    """How a function is run, whatever it handles; without a name, it has that of the function."""

    name: str | None
    ack_policy: AckPolicy
    timeout: float | None
    transactional: bool
    pace: Pace


class Timetable(msgspec.Struct, frozen=True, kw_only=True):
    """The schedule that feeds a cron handler's queue."""

    name: str
    cron: str
    tz: str | ZoneInfo
    catch_up: CatchUp
    payload: Any


class Handler(msgspec.Struct, frozen=True, kw_only=True):
    """A function, what it handles, and how."""

    name: str
    function: Callable[..., Any]
    plan: Plan
    is_async: bool
    ack_policy: AckPolicy
    timeout: float | None
    transactional: bool
    pace: Pace
    subscription: Options | None = None
    view: View | None = None
    timetable: Timetable | None = None

    @property
    def attempts_max(self) -> int | None:
        """How often a unit is tried; None if that is not limited."""
        if self.subscription is not None:
            limits = [self.subscription.max_attempts, self.subscription.backoff.max_attempts]
        else:
            assert self.view is not None  # noqa: S101 - one of them there is
            limits = [self.view.retry.max_attempts]
        return min((limit for limit in limits if limit is not None), default=None)

    @property
    def source(self) -> str:
        """The topic, or the queue."""
        if self.subscription is not None:
            return self.subscription.topic
        assert self.view is not None  # noqa: S101 - one of them there is
        return self.view.queue


def pace_of(
    *,
    concurrency: int,
    fetch_batch_size: int | None,
    overfetch_factor: float,
    min_fetch_interval: Duration,
    max_fetch_interval: Duration,
    flush_interval: Duration,
) -> Pace:
    """The checked options of a handler's loops."""
    number = isinstance(overfetch_factor, int | float) and not isinstance(overfetch_factor, bool)
    if not number or not 1 <= overfetch_factor <= 1000:
        raise InvalidOption(
            f"overfetch_factor must be a number from 1 to 1000, not {quoted(overfetch_factor)}"
        )
    at_once = whole("concurrency", concurrency)
    return Pace(
        concurrency=at_once,
        fetch_batch_size=(
            at_once if fetch_batch_size is None else whole("fetch_batch_size", fetch_batch_size)
        ),
        overfetch_factor=overfetch_factor,
        min_fetch_interval=to_seconds(min_fetch_interval, name="min_fetch_interval"),
        max_fetch_interval=positive("max_fetch_interval", max_fetch_interval),
        flush_interval=to_seconds(flush_interval, name="flush_interval"),
    )


def check_policy(policy: AckPolicy, *, transactional: bool) -> AckPolicy:
    """An ack policy that goes with a transaction, if there is one."""
    if not isinstance(policy, AckPolicy):
        names = ", ".join(f"AckPolicy.{known.name}" for known in AckPolicy)
        raise InvalidOption(f"ack_policy must be one of {names}, not {quoted(policy)}")
    if check_flag("transactional", transactional) and policy is AckPolicy.ACK_FIRST:
        raise InvalidOption(
            "a transactional handler is acked in its transaction, and so not with "
            "ack_policy=ACK_FIRST"
        )
    return policy
