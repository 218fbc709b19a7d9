"""What others chose, in a message of our own: in one line, not long, and never a failure itself.

An error quotes what a call was given, and a log names what it is about. Both may be anything: a
number of more digits than Python writes out, a text of megabytes, an object whose own code raises,
a line break followed by what looks like the next line of a log.
"""

import json
import re
import unicodedata
from typing import Any

__all__ = ["in_line", "quoted", "visible", "within"]

CHARS_MAX = 400

SAID_CHARS_MAX = 1_000

PLAIN = re.compile(r'[^\s"/]([^"/]*[^\s"/])?')


def quoted(value: Any) -> str:
    """A value as Python would write it, for an error."""
    # Its escapes are made of no more than is shown.
    large = isinstance(value, str | bytes | bytearray) and len(value) > CHARS_MAX
    try:
        text = repr(value[:CHARS_MAX] if large else value)
    except Exception:  # noqa: BLE001 - a value's own code may raise, and long numbers do
        text = "a number too long to show" if type(value) is int else f"<{type(value).__name__}>"
    return visible(text[:CHARS_MAX] + "..." if large or len(text) > CHARS_MAX else text)


def in_line(text: str) -> str:
    """What the code of others says, in a line that is not long: they quote what they were given."""
    line = visible(" ".join(text[:SAID_CHARS_MAX].split()))
    whole = len(text) <= SAID_CHARS_MAX and len(line) <= SAID_CHARS_MAX
    return line if whole else f"{line[:SAID_CHARS_MAX]}..."


def within(*names: str) -> str:
    """Names of things that are in one another, in a line: `orders / billing`. One in which it could
    not be seen where it ends is in quotes, as in JSON: so no two lists of names are the same.
    """
    return " / ".join(name if PLAIN.fullmatch(name) else json_text(name) for name in names)


def json_text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def visible(text: str) -> str:
    r"""Text with all that is not plainly visible as an escape: `\x1b`, `\n`, `\u202e`."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or unicodedata.category(char) == "Zs" else escaped(char)
        for char in text
    )


def escaped(char: str) -> str:
    return char.encode("unicode_escape").decode()
