"""What options take: durations, sizes, times, headers. Each error shows a right one."""

import math
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import click

__all__ = ["DURATION", "FOREVER", "HEADER", "KEPT", "LIMIT", "MOMENT", "SIZE", "Place", "place_of"]

FOREVER = "forever"

UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|[smhdw])")
NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?")

SIZES = {"": 1, "B": 1, "BYTES": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}
SIZES |= {"K": 1024, "M": 1024**2, "G": 1024**3, "KIB": 1024, "MIB": 1024**2, "GIB": 1024**3}


DIGITS_MAX = 30
"""More than any number needs that is taken here; Python does not read thousands."""


class Duration(click.ParamType):  # type: ignore[type-arg]  # not in every click
    """30s, 5m, 2h, 7d, 1h30m, or seconds; and `forever`, where that means something."""

    name = "duration"

    def __init__(self, *, forever: bool = False) -> None:
        self.forever = forever

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> timedelta:
        if isinstance(value, timedelta):
            return value
        text = str(value).strip().lower()
        if self.forever and text == FOREVER:
            return timedelta.max
        if NUMBER.fullmatch(text):
            text += "s"  # as in Python, where durations are seconds
        parts = PART.findall(text)
        if not parts or "".join(number + unit for number, unit in parts) != text:
            also = f", or {FOREVER}" if self.forever else ""
            self.fail(f"{value!r} is no duration: write 30s, 5m, 2h, 7d or 1h30m{also}", param, ctx)
        try:
            return timedelta(seconds=sum(float(number) * UNITS[unit] for number, unit in parts))
        except OverflowError:
            self.fail(f"{value!r} is too long", param, ctx)


class Size(click.ParamType):  # type: ignore[type-arg]  # not in every click
    """A number of bytes: 65536, 64KiB, 1MiB."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        found = re.fullmatch(r"([0-9]+)\s*([a-zA-Z]*)", str(value).strip())
        if not found or found[2].upper() not in SIZES or len(found[1]) > DIGITS_MAX:
            self.fail(f"{value!r} is no size: write 65536, 64KiB or 1MiB", param, ctx)
        return int(found[1]) * SIZES[found[2].upper()]


class Moment(click.ParamType):  # type: ignore[type-arg]  # not in every click
    """An ISO time with its zone."""

    name = "time"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> datetime:
        if isinstance(value, datetime):
            return value
        example = "2026-03-01T09:30:00Z or 2026-03-01T09:30:00+01:00"
        try:
            found = datetime.fromisoformat(str(value).strip())
        except ValueError:
            self.fail(f"{value!r} is no time: write {example}", param, ctx)
        if found.utcoffset() is None:
            try:
                shown = found.replace(tzinfo=UTC).isoformat().replace("+00:00", "Z")
            except ValueError:  # pragma: no cover - years that UTC has not
                shown = example
            self.fail(
                f"{value!r} has no time zone: write {shown} if you mean UTC, or add the offset of "
                f"your zone, as in +01:00",
                param,
                ctx,
            )
        return found


class Limit(click.ParamType):  # type: ignore[type-arg]  # not in every click
    """A whole number, or `none` for no limit."""

    name = "number"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        text = str(value).strip().lower()
        if text == "none":
            return math.inf
        if not is_number(text) or int(text) < 1:
            self.fail(f"{value!r} is no limit: write a whole number, or none", param, ctx)
        return int(text)


class Header(click.ParamType):  # type: ignore[type-arg]  # not in every click
    """A header: name=value."""

    name = "name=value"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        name, equals, content = str(value).partition("=")
        if not equals or not name:
            self.fail(f"{value!r} is no header: write name=value", param, ctx)
        return name, content


DURATION = Duration()
KEPT = Duration(forever=True)
SIZE = Size()
MOMENT = Moment()
LIMIT = Limit()
HEADER = Header()


def is_number(text: str) -> bool:
    """Whether it is a whole number, and none that is only there to be too long."""
    return text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX


Place = str | int | datetime
"""A place in a topic: `earliest`, `latest`, an offset, or a time."""


def place_of(value: str, *, words: tuple[str, ...], option: str) -> Place:
    """The place that an option names."""
    text = value.strip()
    if text.lower() in words:
        return text.lower()
    if is_number(text):
        if not 1 <= int(text) < 2**62:
            raise click.BadParameter("offsets begin with 1", param_hint=option)
        return int(text)
    try:
        return MOMENT.convert(text, None, None)
    except click.BadParameter as error:
        if "no time zone" in error.message:
            raise click.BadParameter(error.message, param_hint=option) from None
        known = ", ".join(words)
        raise click.BadParameter(
            f"{value!r} is neither {known}, nor an offset, nor a time such as 2026-03-01T09:30:00Z",
            param_hint=option,
        ) from None
