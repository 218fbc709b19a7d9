"""How a report shows names: those of topics, keys and errors are data, set apart from its words."""

import re

from rowmq.markup import Markup, el, join, raw

__all__ = ["Markup", "el", "join", "member", "name", "raw", "visible"]

UNDER = "\N{NO-BREAK SPACE}\N{SINGLE RIGHT-POINTING ANGLE QUOTATION MARK} "

CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]")
"""What cannot be seen, or turns around how the text beside it is read."""


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
