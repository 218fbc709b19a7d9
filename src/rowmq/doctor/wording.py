"""How figures are said to people, and what is left out of a statement that is shown."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from rowmq.message import Finding

__all__ = ["count", "duration", "figures_of", "shortened", "size"]

SHOWN_CHARS = 60
"""How much of a statement is shown."""

# Comments, in which a quote means nothing; strings of all kinds, also those whose end was cut off;
# numbers. What stands in double quotes is a name on PostgreSQL and mostly a string on MySQL.
_LITERALS = r"""
    (?P<comment> --[^\n]* | /\*.*?(?:\*/|$) ) | '(?:[^']|'')*(?:'|$)
    | \$(?P<tag>\w*)\$.*?(?:\$(?P=tag)\$|$) | (?<![\w$"])\d[\w.]*"""
_VALUES = re.compile(_LITERALS, re.VERBOSE | re.DOTALL)
_VALUES_OF_MYSQL = re.compile(
    _LITERALS + r"""| "(?:[^"]|"")*(?:"|$) | (?P<remark> \#[^\n]* )""", re.VERBOSE | re.DOTALL
)


def duration(seconds: float) -> str:
    """A time as people say it: 0.4 ms, 12 s, 5 min, 3 h, 4 days."""
    if seconds < 0.0001:
        return "less than 0.1 ms"
    if seconds < 1:
        return f"{round(seconds * 1000, 1 if seconds < 0.01 else 0):g} ms"
    for unit, length in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.3g} s"


def size(number: float) -> str:
    """Bytes as people say them."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:.3g} {unit}" if unit != "bytes" else f"{number:.0f} bytes"
        number /= 1024
    return f"{number:.3g} TiB"


def count(number: int, what: str, many: str = "") -> str:
    """A number of things: 1 job, 2,000 jobs."""
    return f"{number:,} {what if number == 1 else many or what + 's'}"


def shortened(statement: str | None, *, mysql: bool = False) -> str | None:
    """The beginning of a statement, without any value that stands in it: it may be a secret."""
    if not statement:
        return None
    if "\\" in statement:
        # Whether it escapes a quote depends on settings: nothing after the first quote is shown.
        head, quote, _ = re.split(r"(['\"$]|$)", statement, maxsplit=1)
        statement = head + quote
    values = _VALUES_OF_MYSQL if mysql else _VALUES
    text = " ".join(values.sub(hidden, statement).split())
    return text if len(text) <= SHOWN_CHARS else text[: SHOWN_CHARS - 1] + "…"


def hidden(match: re.Match[str]) -> str:
    """What stands in the place of a value, or of a comment."""
    groups = match.groupdict()
    return " " if groups["comment"] or groups.get("remark") else "?"


# --- the figures of a finding ---------------------------------------------------------------------

TOLD = {"error", "statements", "right"}
"""Details that stand in the summary or the advice already."""


def figures_of(finding: Finding) -> list[tuple[str, str]]:
    """The details of a finding that its summary does not name, as words."""
    return [
        (name.replace("_", " "), figure(value))
        for name, value in finding.details.items()
        if value is not None
        and name not in TOLD
        and name.removesuffix("_ms") not in finding.summary
    ]


def figure(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} ({figure(item)})" for key, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return str(value)
