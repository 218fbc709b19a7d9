"""How people write durations, sizes, times, limits and headers, on a command line or in a form, and
how these are shown to them: what is shown can be given. Each error shows a right one.
"""

import math
import re
from datetime import UTC, datetime, timedelta

from rowmq.errors import InvalidOption
from rowmq.quoting import quoted

__all__ = [
    "FOREVER",
    "duration",
    "duration_of",
    "header_of",
    "is_number",
    "limit_of",
    "moment_of",
    "size",
    "size_of",
]

FOREVER = "forever"

UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|[smhdw])")
NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?")

SIZES = {"": 1, "B": 1, "BYTES": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}
SIZES |= {"K": 1024, "M": 1024**2, "G": 1024**3, "KIB": 1024, "MIB": 1024**2, "GIB": 1024**3}

DURATION_CHARS_MAX = 100
"""More than any duration needs; digits without a unit are looked at from each to the last."""

DIGITS_MAX = 30
"""More than any number needs that is taken here; Python does not read thousands."""


def duration_of(value: str, *, forever: bool = False) -> timedelta:
    """30s, 5m, 2h, 7d, 1h30m, or seconds; and `forever`, where that means something."""
    text = value.strip().lower()
    if forever and text == FOREVER:
        return timedelta.max
    if NUMBER.fullmatch(text):
        text += "s"  # as in Python, where durations are seconds
    parts = PART.findall(text) if len(text) <= DURATION_CHARS_MAX else []
    if not parts or "".join(number + unit for number, unit in parts) != text:
        also = f", or {FOREVER}" if forever else ""
        raise InvalidOption(f"{quoted(value)} is no duration: write 30s, 5m, 2h, 7d or 1h30m{also}")
    try:
        return timedelta(seconds=sum(float(number) * UNITS[unit] for number, unit in parts))
    except OverflowError:
        raise InvalidOption(f"{quoted(value)} is too long") from None


def size_of(value: str) -> int:
    """A number of bytes: 65536, 64KiB, 1MiB."""
    found = re.fullmatch(r"([0-9]+)\s*([a-zA-Z]*)", value.strip())
    if not found or found[2].upper() not in SIZES or len(found[1]) > DIGITS_MAX:
        raise InvalidOption(f"{quoted(value)} is no size: write 65536, 64KiB or 1MiB")
    return int(found[1]) * SIZES[found[2].upper()]


def moment_of(value: str) -> datetime:
    """An ISO time with its zone."""
    example = "2026-03-01T09:30:00Z or 2026-03-01T09:30:00+01:00"
    try:
        found = datetime.fromisoformat(value.strip())
    except ValueError:
        raise InvalidOption(f"{quoted(value)} is no time: write {example}") from None
    if found.utcoffset() is None:
        try:
            shown = found.replace(tzinfo=UTC).isoformat().replace("+00:00", "Z")
        except ValueError:  # pragma: no cover - years that UTC has not
            shown = example
        raise InvalidOption(
            f"{quoted(value)} has no time zone: write {shown} if you mean UTC, or add the offset "
            f"of your zone, as in +01:00"
        )
    return found


def limit_of(value: str) -> float:
    """A whole number, or `none` for no limit."""
    text = value.strip().lower()
    if text == "none":
        return math.inf
    if not is_number(text) or int(text) < 1:
        raise InvalidOption(f"{quoted(value)} is no limit: write a whole number, or none")
    return int(text)


def header_of(value: str) -> tuple[str, str]:
    """A header: name=value."""
    name, equals, content = value.partition("=")
    if not equals or not name:
        raise InvalidOption(f"{quoted(value)} is no header: write name=value")
    return name, content


def is_number(text: str) -> bool:
    """Whether it is a whole number, and none that is only there to be too long."""
    return text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX


# --- as they are shown ---------------------------------------------------------------------------

SHOWN = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}


def duration(value: timedelta) -> str:
    """A duration as it can be given to an option: 7d, 1h30m, 0.5s."""
    seconds = value.total_seconds()
    if seconds < 60:
        return f"{seconds:.3g}s"
    left, parts = round(seconds), []
    for unit, length in SHOWN.items():
        count, left = divmod(left, length)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts[:2])


def size(count: int) -> str:
    """A number of bytes, exactly, as it can be given to an option: 64 KiB, 1 MiB."""
    for unit, length in (("GiB", 1024**3), ("MiB", 1024**2), ("KiB", 1024)):
        if count >= length and count % length == 0:
            return f"{count // length} {unit}"
    return f"{count} bytes"
