"""Times and durations as RowMQ stores them: whole microseconds, UTC, in integers.

Integers mean the same on every database, sort as they should, and have no daylight-saving hour.
The clock itself is always the database's; nothing here reads one.
"""

import math
from datetime import UTC, datetime, timedelta

from rowmq.errors import InvalidOption, NaiveDatetime
from rowmq.quoting import quoted

__all__ = ["Duration", "from_micros", "to_micros", "to_seconds"]

Duration = float | timedelta
"""Seconds as a number, or a timedelta."""

SECONDS_MAX = 100 * 365.25 * 86400
"""The longest duration, a century: beyond it the waiting calls of Python overflow."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

_EXACT_MAX = 2**52
"""Up to here, in the year 2112, a float of seconds tells microseconds apart."""


def to_micros(moment: datetime) -> int:
    """Microseconds since 1970, exactly. A naive datetime is an error: it names no moment."""
    if not isinstance(moment, datetime):
        raise InvalidOption(f"expected an aware datetime, not {type(moment).__name__}")
    if moment.utcoffset() is None:
        raise NaiveDatetime(
            f"{quoted(moment)} has no time zone: use datetime.now(timezone.utc), or "
            f"moment.replace(tzinfo=...) if you know which zone it was meant in"
        )
    return (moment - _EPOCH) // _MICROSECOND


def from_micros(micros: int) -> datetime:
    """The aware datetime, in UTC, of microseconds since 1970."""
    if 0 <= micros < _EXACT_MAX:  # twice as fast, and every message has one
        return datetime.fromtimestamp(micros / 1_000_000, UTC)
    return _EPOCH + timedelta(microseconds=micros)


def to_seconds(duration: Duration, *, name: str) -> float:
    """Seconds of a duration, which must be zero or more; `name` is the option it came from."""
    if isinstance(duration, timedelta):
        seconds = duration.total_seconds()
    elif isinstance(duration, int | float) and not isinstance(duration, bool):
        seconds = float(duration) if abs(duration) < 2**1000 else math.inf
    else:
        raise InvalidOption(f"{name} must be seconds or a timedelta, not {quoted(duration)}")
    if not 0 <= seconds <= SECONDS_MAX:
        raise InvalidOption(f"{name} must be from zero to a century, not {quoted(duration)}")
    return seconds
