"""HTML and SVG as nested calls, in which everything is escaped that is not markup already.

Names of topics, keys and errors are data: what somebody put into a queue never becomes a tag.
"""

import html
import re
from typing import Any

__all__ = ["Markup", "el", "join", "member", "name", "raw", "visible"]

EMPTY = frozenset({"br", "hr", "meta", "path", "line", "rect", "circle", "polyline"})
"""Elements without an end tag, in HTML, or that are never given anything to hold."""

UNDER = "\N{NO-BREAK SPACE}\N{SINGLE RIGHT-POINTING ANGLE QUOTATION MARK} "

CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]")
"""What cannot be seen, or turns around how the text beside it is read."""


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def raw(text: str) -> Markup:
    """Text of our own that is HTML; never anything that was read."""
    return Markup(text)


def escaped(value: object) -> str:
    return value if isinstance(value, Markup) else html.escape(str(value), quote=True)


def join(*children: object, between: str = "") -> Markup:
    """Several things after each other; None is nothing."""
    return Markup(between.join(escaped(child) for child in children if child is not None))


def el(tag: str, *children: object, **attributes: Any) -> Markup:
    """An element. `class_` is spelled so for Python; `aria_label` and such get their hyphens.

    An attribute that is None is left out, one that is True stands without a value.
    """
    words = [tag]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        spelled = key.rstrip("_").replace("_", "-")
        words.append(spelled if value is True else f'{spelled}="{escaped_attribute(value)}"')
    inside = join(*children)
    if tag in EMPTY and not inside:
        return Markup(f"<{' '.join(words)}/>")
    return Markup(f"<{' '.join(words)}>{inside}</{tag}>")


def escaped_attribute(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".")
    return html.escape(str(value), quote=True)


def visible(text: str) -> str:
    """Text in which what cannot be seen is shown by a sign."""
    return CONTROLS.sub(shown, text)


def shown(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x20:
        return chr(0x2400 + code)
    return "␡" if code == 0x7F else f"<U+{code:04X}>"


def name(text: str | None, nothing: str = "no key") -> Markup:
    """A name that somebody gave: set apart from our words, in its own direction."""
    if text is None:
        return el("span", nothing, class_="nothing")
    return el("bdi", visible(text), class_="name", translate="no")


def member(topic: object, group: object) -> Markup:
    """A group under its topic."""
    return join(name(str(topic)), UNDER, name(str(group)))
