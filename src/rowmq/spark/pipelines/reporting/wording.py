"""How figures are said to people: numbers, durations, times, rates."""

import math
from datetime import UTC, datetime, timedelta

from rowmq.doctor.wording import count

__all__ = [
    "NONE",
    "UNIT",
    "between",
    "brief",
    "clock",
    "count",
    "day",
    "factor",
    "lasting",
    "moment",
    "number",
    "period",
    "rate_unit",
    "share",
    "short",
    "time_unit",
]

MINUTE, HOUR, DAY = 60.0, 3_600.0, 86_400.0

NONE = "\N{EN DASH}"
TIMES = "\N{MULTIPLICATION SIGN}"
UNIT = "\N{NO-BREAK SPACE}"
"""What stands between a number and its unit."""

LARGE = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))

PERIODS = ((DAY, "day"), (HOUR, "hour"), (MINUTE, "minute"), (1.0, "second"))

READABLE = 5
"""From here on a rate says something without digits behind the point."""

RATES = ((1.0, "s"), (MINUTE, "min"), (HOUR, "h"), (DAY, "day"))


def number(value: float) -> str:
    """A number in full: 1,234,567; with some digits if it is a small fraction."""
    if value == round(value) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2g}"


def short(value: float) -> str:
    """A number in a few characters: 950, 1.2k, 34k, 5.6M."""
    for size, letter in LARGE:
        if abs(value) >= size * 0.9995:
            scaled = value / size
            return f"{scaled:.0f}{letter}" if abs(scaled) >= 99.5 else f"{scaled:.3g}{letter}"
    return f"{value:.3g}"


def lasting(seconds: float) -> str:
    """A duration with two or three digits that matter: 4.2 ms, 1.35 s, 2 min 5 s, 3.2 h."""
    if seconds < 0.000_05:
        return f"0{UNIT}ms"
    if seconds < 0.999_5:
        return f"{seconds * 1000:.3g}{UNIT}ms" if seconds < 0.1 else f"{seconds * 1000:.0f}{UNIT}ms"
    if seconds < MINUTE - 0.05:
        return f"{seconds:.3g}{UNIT}s"
    if round(seconds) < 10 * MINUTE:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes}{UNIT}min{UNIT}{rest}{UNIT}s" if rest else f"{minutes}{UNIT}min"
    for length, unit in ((DAY, "days"), (HOUR, "h")):
        if seconds >= 2 * length:
            return f"{seconds / length:.3g}{UNIT}{unit}"
    return f"{seconds / MINUTE:.0f}{UNIT}min"


def share(part: float, whole: float) -> str:
    """A part of something, in percent; a little is never told as none, nor nearly all as all."""
    if not whole:
        return NONE
    percent = 100 * part / whole
    if part and percent < 0.1:
        return f"<{UNIT}0.1{UNIT}%"
    if part < whole and percent > 99.9:
        return f">{UNIT}99.9{UNIT}%"
    return f"{percent:.0f}{UNIT}%" if percent >= 10 or not part else f"{percent:.1f}{UNIT}%"


def factor(value: float) -> str:
    """How many times as much."""
    return f"{value:,.0f}{TIMES}" if value >= 10 else f"{value:.2g}{TIMES}"


def moment(when: datetime, *, seconds: bool = False) -> str:
    """A day and a time of day, UTC; the zone is told once, above."""
    return f"{day(when)} {clock(when, seconds=seconds)}"


def between(since: datetime, until: datetime) -> str:
    """A span of time, the end of which is not in it; to whole minutes."""
    end = until - timedelta(microseconds=1) + timedelta(minutes=1)
    same = since.astimezone(UTC).date() == end.astimezone(UTC).date()
    return f"{moment(since)} to {clock(end) if same else moment(end)} UTC"


def day(when: datetime) -> str:
    when = when.astimezone(UTC)
    return f"{when.day} {when:%b %Y}"


def clock(when: datetime, *, seconds: bool = False) -> str:
    when = when.astimezone(UTC)
    return f"{when:%H:%M:%S}" if seconds else f"{when:%H:%M}"


def period(length: timedelta) -> str:
    """The length of a bucket: an hour, 5 minutes, a day."""
    seconds = length.total_seconds()
    for size, word in PERIODS:
        if seconds >= size and math.isclose(seconds / size, round(seconds / size)):
            times = round(seconds / size)
            return f"1 {word}" if times == 1 else f"{times} {word}s"
    return lasting(seconds)


def rate_unit(per_second: float) -> tuple[float, str]:
    """The seconds and the name of the unit of time in which a rate is a number to be read."""
    for seconds, unit in RATES:
        if per_second * seconds >= READABLE:
            return seconds, unit
    return RATES[-1]


def brief(when: datetime, *, seconds: bool = False) -> str:
    """A time in a table: the year is told above."""
    when = when.astimezone(UTC)
    return f"{when.day} {when:%b} {clock(when, seconds=seconds)}"


def time_unit(seconds: float) -> tuple[float, str]:
    """The unit in which durations up to this one are numbers to be read."""
    for length, unit in ((DAY, "d"), (HOUR, "h"), (MINUTE, "min"), (1.0, "s")):
        if seconds >= 2 * length:
            return length, unit
    return (1.0, "s") if seconds >= 1 else (0.001, "ms")
