"""Numbers, times and other people's names as words for a page. Pure functions: the time is given.

What somebody else has named may hold characters that hide, turn round or pile up what stands beside
them. `shown` makes those visible, so that two names that differ look different.
"""

from datetime import UTC, datetime, timedelta
from enum import Enum
from itertools import groupby

from rowmq.markup import Markup, el, join
from rowmq.quoting import escaped

__all__ = [
    "ago",
    "duration",
    "first_line",
    "iso",
    "number",
    "short",
    "shown",
    "size",
    "tone",
    "utc",
]

MINUTE, HOUR, DAY = 60, 3600, 86_400

TONES = {
    "ok": "ok",
    "done": "ok",
    "completed": "ok",
    "alive": "ok",
    "active": "ok",
    "note": "note",
    "info": "info",
    "processing": "info",
    "running": "info",
    "retryable": "warning",
    "retrying": "warning",
    "warning": "warning",
    "paused": "warning",
    "late": "warning",
    "expired": "warning",
    "refused": "warning",
    "problem": "problem",
    "failed": "problem",
    "dead": "problem",
    "gone": "problem",
    "revoked": "problem",
    "letters": "problem",
}
"""The colour of a state; all others have none."""


def tone(state: object) -> str:
    """The class that gives a state its colour."""
    word = state.value if isinstance(state, Enum) else state
    return TONES.get(str(word), "")


def number(value: float) -> str:
    """A number with its thousands apart."""
    if isinstance(value, float) and not value.is_integer():
        return f"{value:,.1f}"
    return f"{int(value):,}"


def short(value: float) -> str:
    """A number in four characters or so: 950, 1.2k, 34M."""
    if 0 < abs(value) < 10 and value != int(value):
        return f"{value:.1f}"
    for unit, size_of_unit in (("", 1), ("k", 1e3), ("M", 1e6), ("G", 1e9)):
        scaled = value / size_of_unit
        if abs(scaled) < 999.5 or unit == "G":
            digits = 1 if unit and abs(scaled) < 9.95 else 0
            return f"{scaled:.{digits}f}".removesuffix(".0") + unit
    return str(value)


def size(count: int) -> str:
    """A number of bytes."""
    scaled = float(count)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if scaled < 999.5 or unit == "TB":
            digits = 1 if unit != "B" and scaled < 9.95 else 0
            return f"{scaled:.{digits}f} {unit}"
        scaled /= 1000
    return ""


def duration(seconds: float | timedelta) -> str:
    """A length of time, in the two units that matter."""
    if isinstance(seconds, timedelta):
        seconds = seconds.total_seconds()
    if seconds < 1:
        return f"{max(seconds, 0) * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s".replace(".0 s", " s")
    whole = round(seconds)
    if whole < MINUTE:
        return f"{whole} s"
    for unit, name, part, part_name in (
        (MINUTE, "min", 1, "s"),
        (HOUR, "h", MINUTE, "min"),
        (DAY, "d", HOUR, "h"),
    ):
        if whole < unit * (60 if unit < HOUR else 24) or unit == DAY:
            rest = whole % unit // part
            more = f" {rest} {part_name}" if rest and whole // unit < 10 else ""
            return f"{whole // unit:,} {name}{more}"
    return ""


def ago(moment: datetime, now: datetime) -> str:
    """How long ago something was, or in how long it will be."""
    seconds = (now - moment).total_seconds()
    if -1 < seconds < 1:
        return "now"
    return f"{rough(seconds)} ago" if seconds > 0 else f"in {rough(-seconds)}"


def rough(seconds: float) -> str:
    """A length of time in one unit."""
    for unit, name, most in ((1, "s", 60), (MINUTE, "min", 60), (HOUR, "h", 48)):
        if seconds < unit * most:
            return f"{int(seconds // unit)} {name}"
    return f"{int(seconds // DAY):,} d"


def utc(moment: datetime) -> str:
    """A time for people, in UTC, to the millisecond if it has any."""
    at = moment.astimezone(UTC)
    millis = f".{at.microsecond // 1000:03d}" if at.microsecond else ""
    return f"{at:%Y-%m-%d %H:%M:%S}{millis} UTC"


def iso(moment: datetime) -> str:
    """A time for programs, to the microsecond."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def first_line(text: str) -> str:
    """The first line of an error that says anything."""
    return next((line for line in text.splitlines() if line.strip()), text[:80])


def shown(text: object, cut: int | None = None, *, lines: bool = False) -> Markup:
    """What somebody else wrote, with every character that cannot be seen, or that moves others,
    as its code. With `lines`, line breaks and tabs are what they are.
    """
    whole = str(text)
    kept = whole if cut is None or len(whole) <= cut else whole[: cut - 1]
    rest = Markup("…") if len(kept) < len(whole) else None
    if kept.isprintable() and kept == kept.strip(" ") and "  " not in kept:
        return join(kept, rest)
    plain = {"\n", "\t"} if lines else set()
    edge = set() if lines else edges(kept)
    odd = [is_odd(kept, at, plain) or at in edge for at in range(len(kept))]
    parts: list[Markup | str] = []
    for is_marked, group in groupby(range(len(kept)), key=odd.__getitem__):
        run = [kept[at] for at in group]
        parts.append(marked(run) if is_marked else "".join(run))
    return join(*parts, rest)


def edges(text: str) -> set[int]:
    """Where spaces are that nobody sees: at both ends."""
    begin = len(text) - len(text.lstrip(" "))
    end = len(text.rstrip(" "))
    return {*range(begin), *range(end, len(text))}


def is_odd(text: str, at: int, plain: set[str]) -> bool:
    """Whether a character cannot be seen; one that joins two symbols into another can."""
    char = text[at]
    if char.isprintable() or char in plain:
        return False
    return not (
        char == "\u200d" and 0 < at < len(text) - 1 and min(text[at - 1], text[at + 1]) > "\u2000"
    )


def marked(run: list[str]) -> Markup:
    """Characters as their codes; spaces as their sign."""
    codes = "".join("␣" if char == " " else escaped(char) for char in run)
    return el("i", codes, class_="ctl")
