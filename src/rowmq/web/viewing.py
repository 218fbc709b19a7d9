"""Payloads as people see them: JSON in colours, text, or bytes in hexadecimal.

Whatever is in them, it becomes text: every character goes through `shown` or is escaped. Of a large
one the beginning is shown, so that a page stays quick.
"""

import base64
import json
import re
from typing import Any, NamedTuple

import msgspec

from rowmq.codec import Beginning
from rowmq.markup import Markup, el, join
from rowmq.web.wording import shown

__all__ = ["Seen", "glance", "plain_text", "see"]

CHARS_MAX = 50_000
BYTES_MAX = 4_096
BYTES_IN_LINE = 16

TOKEN = re.compile(
    r'(?P<string>"(?:\\.|[^"\\])*(?:"|\\?\Z))(?P<key>:)?'
    r"|(?P<number>-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)"
    r"|(?P<word>true|false|null)"
    r"|(?P<mark>[{}\[\],]+)",
    re.DOTALL,
)
"""The parts of JSON that have a colour. A text that is cut ends at the cut: else each quote in it
would be tried as the beginning of another, to the end.
"""


class Seen(NamedTuple):
    """A payload as it is shown. `text` is what is copied, or put into a form to be edited."""

    kind: str
    bytes: int
    markup: Markup
    text: str
    cut: bool
    masked: bool = False


def see(payload: Any, *, masked: bool = False) -> Seen:
    """A payload, shown as what it is."""
    if isinstance(payload, bytes | bytearray | memoryview):
        return see_bytes(bytes(payload), masked=masked)
    if isinstance(payload, str):
        size, cut = len(payload.encode()), len(payload) > CHARS_MAX
        markup = shown(payload[:CHARS_MAX], lines=True)
        return Seen("text", size, markup, "" if cut else payload, cut, masked)
    text = pretty(payload)
    cut = len(text) > CHARS_MAX
    size = len(compact(payload).encode())
    return Seen("json", size, coloured(text[:CHARS_MAX]), "" if cut else text, cut, masked)


def see_bytes(data: bytes, *, masked: bool) -> Seen:
    """Bytes, as every tool shows them: where, in hexadecimal, and the letters among them."""
    lines = []
    for start in range(0, min(len(data), BYTES_MAX), BYTES_IN_LINE):
        line = data[start : min(start + BYTES_IN_LINE, BYTES_MAX)]
        digits = line[:8].hex(" ") + "  " + line[8:].hex(" ")
        letters = "".join(chr(byte) if 32 <= byte < 127 else "·" for byte in line)
        lines.append(join(el("span", f"{start:08x}", class_="j-p"), f"  {digits:<49} ", letters))
    cut = len(data) > BYTES_MAX
    copied = "" if cut else data.hex(" ")
    return Seen("bytes", len(data), join(*lines, between="\n"), copied, cut, masked)


def pretty(payload: Any) -> str:
    """JSON over several lines."""
    try:
        return json.dumps(payload, indent=2, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return compact(payload)


def compact(payload: Any) -> str:
    """JSON in one line."""
    try:
        return msgspec.json.encode(payload).decode()
    except (TypeError, ValueError, msgspec.MsgspecError, RecursionError):
        return str(payload)


def coloured(text: str) -> Markup:
    """JSON with its keys, texts, numbers and words in colours."""
    parts: list[Markup | str] = []
    done = 0
    for match in TOKEN.finditer(text):
        parts.append(shown(text[done : match.start()], lines=True))
        done = match.end()
        kind = match.lastgroup
        if kind == "key":
            parts += [el("span", shown(match["string"], lines=True), class_="j-k"), ":"]
        elif kind == "mark":
            parts.append(el("span", match["mark"], class_="j-p"))
        else:
            class_ = {"string": "j-s", "number": "j-n", "word": "j-w"}[str(kind)]
            parts.append(el("span", shown(match[0], lines=True), class_=class_))
    return join(*parts, shown(text[done:], lines=True))


def glance(payload: Any, chars: int) -> Markup:
    """The beginning of a payload in one line."""
    if isinstance(payload, Beginning):
        payload = payload.data
    if isinstance(payload, bytes | bytearray | memoryview):
        data = bytes(payload[: chars // 2])
        text = data.hex(" ")
        return join(shown(text, chars), "" if len(data) == len(payload) else " …")
    text = payload if isinstance(payload, str) else compact(payload)
    return shown(" ".join(text[: 2 * chars].split()), chars)


def plain_text(payload: Any) -> tuple[str, str]:
    """A payload as a form shows it to be edited: what it is written as, and the text."""
    if isinstance(payload, bytes | bytearray | memoryview):
        return "base64", base64.b64encode(payload).decode()
    if isinstance(payload, str):
        return "text", payload
    return "json", pretty(payload)
