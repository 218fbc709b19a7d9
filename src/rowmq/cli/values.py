"""What options take: durations, sizes, times, headers. Each error shows a right one."""

from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any

import click

from rowmq.errors import InvalidOption
from rowmq.spelling import (
    duration_of,
    header_of,
    is_number,
    limit_of,
    moment_of,
    size_of,
)

__all__ = ["DURATION", "HEADER", "KEPT", "LIMIT", "MOMENT", "SIZE", "Place", "place_of"]


class Spelled(click.ParamType):  # type: ignore[type-arg]  # not in every click
    """What is read from a text by a function, whose errors are the option's."""

    read: Callable[[str], Any]

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str | int | float):
            return value
        try:
            return self.read(str(value))
        except InvalidOption as error:
            self.fail(str(error), param, ctx)


class Duration(Spelled):
    """30s, 5m, 2h, 7d, 1h30m, or seconds; and `forever`, where that means something."""

    name = "duration"

    def __init__(self, *, forever: bool = False) -> None:
        self.read = partial(duration_of, forever=forever)


class Size(Spelled):
    """A number of bytes: 65536, 64KiB, 1MiB."""

    name = "size"
    read = staticmethod(size_of)


class Moment(Spelled):
    """An ISO time with its zone."""

    name = "time"
    read = staticmethod(moment_of)


class Limit(Spelled):
    """A whole number, or `none` for no limit."""

    name = "number"
    read = staticmethod(limit_of)


class Header(Spelled):
    """A header: name=value."""

    name = "name=value"
    read = staticmethod(header_of)


DURATION = Duration()
KEPT = Duration(forever=True)
SIZE = Size()
MOMENT = Moment()
LIMIT = Limit()
HEADER = Header()

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
        return moment_of(text)
    except InvalidOption as error:
        if "no time zone" in str(error):
            raise click.BadParameter(str(error), param_hint=option) from None
        known = ", ".join(words)
        raise click.BadParameter(
            f"{value!r} is neither {known}, nor an offset, nor a time such as 2026-03-01T09:30:00Z",
            param_hint=option,
        ) from None
