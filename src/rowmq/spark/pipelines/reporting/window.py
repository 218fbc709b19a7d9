"""The time that a report is about, in buckets of equal length, all in UTC."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from rowmq.errors import InvalidOption
from rowmq.times import from_micros, to_micros

__all__ = ["BUCKETS_MAX", "Window", "window_of"]

BUCKETS_WANTED = 96
"""How many points a plot should have at most: as many as one can see in it."""

BUCKETS_MAX = 2_000
"""How many a user may ask for."""

MONDAY_MICROS = 4 * 86_400_000_000
"""The first Monday after the beginning of time as we count it: where weeks begin."""

SECOND, MINUTE, HOUR, DAY = 1, 60, 3_600, 86_400
LENGTHS = (
    *(SECOND * n for n in (1, 2, 5, 10, 15, 30)),
    *(MINUTE * n for n in (1, 2, 5, 10, 15, 30)),
    *(HOUR * n for n in (1, 2, 3, 6, 12)),
    *(DAY * n for n in (1, 7, 28, 91, 364)),
)
MICRO = timedelta(microseconds=1)


class Window(NamedTuple):
    """A span of time, its end not in it, and the length of a bucket."""

    since: datetime
    until: datetime
    bucket: timedelta

    @property
    def width(self) -> int:
        """The length of a bucket in microseconds."""
        return self.bucket // MICRO

    @property
    def origin(self) -> int:
        """Where buckets are counted from: weeks begin on Mondays, all else at midnight."""
        return MONDAY_MICROS if self.bucket >= timedelta(days=7) else 0

    @property
    def starts(self) -> list[datetime]:
        """The beginnings of all buckets; the first may be before the window's."""
        first = to_micros(self.since)
        first -= (first - self.origin) % self.width
        return [from_micros(at) for at in range(first, to_micros(self.until), self.width)]

    @property
    def fine(self) -> bool:
        """Whether times of its buckets are told apart only by their seconds."""
        return self.bucket < timedelta(minutes=1)

    def seconds_of(self, start: datetime) -> float:
        """How much of a bucket is in the window."""
        begin, end = max(start, self.since), min(start + self.bucket, self.until)
        return max(0.0, (end - begin).total_seconds())


def window_of(since: datetime, until: datetime, bucket: timedelta | None) -> Window:
    """A window whose buckets are as long as was asked for, or as its length suggests."""
    seconds = (until - since).total_seconds()
    chosen = bucket or timedelta(seconds=length_for(seconds, LENGTHS))
    if seconds / chosen.total_seconds() > BUCKETS_MAX:
        raise InvalidOption(
            f"buckets of {chosen} are too short for {until - since}: at most {BUCKETS_MAX:,} can "
            f"be shown. Leave `bucket` out, or name a shorter time with `since` and `until`"
        )
    return Window(since, until, chosen)


def length_for(seconds: float, lengths: Sequence[int]) -> int:
    """The shortest length of which not too many make up a time."""
    fitting = (length for length in lengths if seconds / length <= BUCKETS_WANTED)
    return next(fitting, lengths[-1])
