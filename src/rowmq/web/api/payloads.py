"""Payloads in JSON, and back: JSON and text as they are, bytes in base64, with an `encoding` beside
them that says which it is.
"""

import binascii
from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from rowmq.web.asking import Ask
from rowmq.web.problems import Problem

__all__ = ["Encoding", "Raw", "plain", "raw_of", "written"]

Encoding = Literal["json", "text", "base64"]

FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")
"""What a body is said to be if nobody has said what it is: curl does so, and every form."""

CONTENT_TYPE = "content-type"


class Raw(NamedTuple):
    """A payload that is the body itself, and the headers that it comes with."""

    payload: bytes | str
    headers: Mapping[str, str]


def plain(payload: Any, encoding: Encoding, what: str = "payload") -> Any:
    """What a payload in JSON stands for."""
    if encoding == "json":
        return payload
    if not isinstance(payload, str):
        raise Problem(422, f"{what} must be a string, since its encoding is {encoding!r}")
    if encoding == "text":
        return payload
    try:
        return b64decode(payload, validate=True)
    except (binascii.Error, ValueError):
        raise Problem(422, f"{what} is no base64, as its encoding says: RFC 4648, padded") from None


def written(payload: Any) -> tuple[Any, Encoding]:
    """A payload as it stands in JSON, and its encoding."""
    if isinstance(payload, bytes):
        return b64encode(payload).decode(), "base64"
    return payload, "text" if isinstance(payload, str) else "json"


async def raw_of(ask: Ask) -> Raw:
    """The body as a payload: text, if it says that it is, else bytes. What it says is kept as a
    header.
    """
    said = ask.request.headers.get(CONTENT_TYPE, "")
    if ask.content_type in FORMS:
        raise Problem(
            415,
            f"say what the body is: Content-Type: application/json for a call in JSON, and any "
            f"other, such as application/octet-stream, for a payload as it is; {ask.content_type} "
            f"is what programs send if nobody has said",
        )
    body = await ask.body()
    headers = {CONTENT_TYPE: said} if said else {}
    if not ask.content_type.startswith("text/"):
        return Raw(body, headers)
    try:
        return Raw(body.decode(), headers)
    except UnicodeDecodeError:
        raise Problem(
            415, "the body is no UTF-8: send other text as application/octet-stream"
        ) from None
