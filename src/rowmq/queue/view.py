"""What a handle of a queue sees, and how it treats what it claims: one frozen value."""

import builtins
import math
from collections.abc import Collection
from typing import Any

import msgspec

from rowmq.errors import InvalidOption
from rowmq.naming import check_kind, check_queue
from rowmq.options import check_retry, check_type, positive, whole
from rowmq.policy import ExponentialBackoff, RetryStrategy
from rowmq.times import Duration

__all__ = ["DEFAULT_RETRY", "View", "micros_of", "view_of"]

UNTYPED = ""
"""The stored kind of jobs without a type."""

DEFAULT_RETRY = ExponentialBackoff(
    initial=1, multiplier=2, max_delay=3600, jitter=0.1, max_attempts=20
)
"""Some eight hours in all: long enough for an outage that begins in the evening."""


class View(msgspec.Struct, frozen=True, kw_only=True):
    """A queue as one handle sees it.

    A handle without a type sees all kinds of jobs; one with a type those of this type, and those
    without any.
    """

    queue: str
    kind: str
    type: Any
    lock_us: int
    retry: RetryStrategy
    max_deliveries: float | None
    poll_interval: float

    @property
    def kinds(self) -> Collection[str] | None:
        """The kinds that are seen; None is all."""
        return None if self.kind == UNTYPED else (self.kind, UNTYPED)

    def sees(self, kind: str) -> bool:
        """Whether jobs of a kind are seen."""
        return self.kinds is None or kind in self.kinds


def view_of(
    queue: str,
    *,
    type: Any,
    kind: str | None,
    lock_timeout: Duration,
    retry: RetryStrategy | None,
    max_deliveries: float | None,
    poll_interval: Duration,
) -> View:
    """The checked options of `queue`."""
    return View(
        queue=check_queue(queue),
        kind=kind_of(type) if kind is None else check_kind(kind),
        type=check_type(type),
        lock_us=micros_of("lock_timeout", lock_timeout),
        retry=DEFAULT_RETRY if retry is None else check_retry("retry", retry),
        max_deliveries=check_deliveries(max_deliveries),
        poll_interval=positive("poll_interval", poll_interval),
    )


def check_deliveries(limit: float | None) -> float | None:
    """A whole number, `math.inf` for no limit, or None for the usual one."""
    if limit is None or limit == math.inf:
        return limit
    return whole("max_deliveries", limit)  # type: ignore[arg-type]


def micros_of(name: str, duration: Duration) -> int:
    """Microseconds of an option that must be more than none."""
    return round(positive(name, duration) * 1_000_000)


def kind_of(type: Any) -> str:
    """What a type is called in the database: by its own name, as modules move."""
    if type is None:
        return UNTYPED
    plain = isinstance(type, builtins.type) and not getattr(type, "__args__", ())
    name = type.__name__ if plain else str(type)
    try:
        return check_kind(name)
    except ValueError as error:
        raise InvalidOption(f"give the type a shorter name with kind=...: {error}") from error
