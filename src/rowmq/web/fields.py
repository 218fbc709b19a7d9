"""What people write into forms, as the values that it stands for. Each error shows a right one.

A field that was left empty stands for nothing: functions whose names end with `_or_none` say so.
"""

import base64
import binascii
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from rowmq.errors import InvalidInput, InvalidOption
from rowmq.quoting import in_line, quoted
from rowmq.spelling import header_of, is_number, moment_of

__all__ = [
    "FORMS",
    "given",
    "headers_of",
    "ids_of",
    "lines_of",
    "moment_or_none",
    "number_or_none",
    "optional",
    "payload_of",
    "put_in_words",
]

T = TypeVar("T")

FORMS = (("json", "JSON"), ("text", "text"), ("base64", "bytes, as base64"))
"""What a payload may be written as."""

NUMBER_MAX = 2**62


def optional(text: str | None, read: Callable[[str], T]) -> T | None:
    """What a field stands for; None if it was left empty."""
    return read(text) if text is not None and text.strip() else None


def moment_or_none(text: str | None) -> datetime | None:
    """A time; one without a zone, as browsers' pickers give it, is in UTC."""

    def read(given: str) -> datetime:
        try:
            found = datetime.fromisoformat(given.strip())
        except ValueError:
            return moment_of(given)  # whose error shows a right one
        return found.replace(tzinfo=UTC) if found.utcoffset() is None else moment_of(given)

    return optional(text, read)


def number_or_none(text: str | None, *, name: str, least: int = 0) -> int | None:
    """A whole number."""

    def read(given: str) -> int:
        digits = given.strip().replace(",", "")
        sign = -1 if digits.startswith("-") else 1
        found = sign * int(digits.lstrip("-")) if is_number(digits.lstrip("-")) else None
        if found is None or not least <= found < NUMBER_MAX:
            from_least = f" from {least:,}" if least > -NUMBER_MAX else ""
            raise InvalidOption(f"{name} must be a whole number{from_least}, not {quoted(given)}")
        return found

    return optional(text, read)


def ids_of(values: list[str]) -> list[int]:
    """The ids of jobs that were chosen."""
    found = [number_or_none(value, name="a job's id") for value in values]
    return sorted({id for id in found if id is not None})


def headers_of(text: str | None) -> dict[str, str]:
    """Headers, one on each line: name=value."""
    return dict(map(header_of, lines_of(text or "")))


def lines_of(text: str) -> list[str]:
    """What stands on the lines of a field, but for blank ones. A line ends as browsers end it, and
    at nothing else that is taken for an end somewhere: names may have such characters in them.
    """
    lines = (line.strip(" \t") for line in re.split(r"\r?\n", text))
    return [line for line in lines if line]


def payload_of(text: str, form: str) -> Any:
    """A payload, written as one of `FORMS`."""
    text = text.replace("\r\n", "\n")  # as every browser sends what has line breaks
    if form == "text":
        return text
    if form == "base64":
        try:
            return base64.b64decode("".join(text.split()), validate=True)
        except (binascii.Error, ValueError):
            raise InvalidOption("the payload is no base64: write it as in aGVsbG8=") from None
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InvalidOption(
            f'the payload is no JSON: {in_line(str(error))}. A text is "in quotes", or choose '
            f"to send it as text"
        ) from None


def put_in_words(read: Callable[[], T], errors: dict[str, str], field: str) -> T | None:
    """What a field stands for; None, and why in `errors`, if it stands for nothing."""
    try:
        return read()
    except InvalidInput as error:
        errors[field] = str(error)
        return None


def given(fields: Mapping[str, str], name: str) -> str | None:
    """A field that was not left empty."""
    return fields.get(name, "").strip() or None
