"""Payloads to bytes and back.

Three encodings are stored beside the bytes, so that a reader gets back what the writer gave: raw
bytes, text, and JSON. Everything that is not bytes or text becomes JSON: plain values, dataclasses,
pydantic models, and whatever else msgspec knows (datetimes, UUIDs, decimals, enums). Naming a type
when reading turns the JSON back into it.
"""

import math
import re
from collections.abc import Iterator, Mapping
from enum import IntEnum
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from rowmq.errors import InvalidOption, PayloadMismatch, PayloadNotSerializable
from rowmq.quoting import in_line, quoted

__all__ = [
    "BEGINNING_BYTES",
    "ERROR_CHARS_MAX",
    "Beginning",
    "Encoded",
    "Encoding",
    "NoForm",
    "beginning_of",
    "decode",
    "decode_headers",
    "encode",
    "encode_headers",
    "error_text",
    "is_pydantic_model",
    "said_by",
]

ERROR_CHARS_MAX = 16_000

DEPTH_MAX = 200
"""How many lists and objects may be within each other: every reader can follow these, however much
of its stack is in use already.
"""


BEGINNING_BYTES = 4_096
"""How much of a payload is read where its beginning is enough: to tell it from others."""


class Encoding(IntEnum):
    """How a stored payload is to be read. The numbers are stored: they never change."""

    BYTES = 0
    TEXT = 1
    JSON = 2


class NoForm(TypeError):
    """A type that nothing can be read as."""


class Encoded(NamedTuple):
    """A payload as it is stored."""

    data: bytes
    encoding: Encoding


class Beginning(msgspec.Struct, frozen=True):
    """The beginning of a payload that is larger, as it is stored: JSON is text that breaks off."""

    data: bytes | str


def encode(payload: Any) -> Encoded:
    """The bytes of a payload. `PayloadNotSerializable` if it cannot come back as it was."""
    try:
        if isinstance(payload, _BINARY):
            return Encoded(bytes(payload), Encoding.BYTES)
        if isinstance(payload, str):
            return Encoded(payload.encode(), Encoding.TEXT)
        if type(payload) not in _BUILTIN and is_pydantic_model(type(payload)):
            return Encoded(_refuse_deep(_encode_model(payload)), Encoding.JSON)
        data = _refuse_deep(_encoder.encode(payload))
        # msgspec writes NaN and infinity as null: a null may be a number that would be lost.
        if b"null" in data:
            _refuse_lost_numbers(msgspec.to_builtins(payload, enc_hook=_encode_foreign))
        # A number that is a key is written as text, which may be a key itself.
        if _NUMBER_KEY.search(data):
            _refuse_merged_keys(data)
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise PayloadNotSerializable(
            f"a payload of type {type(payload).__name__} cannot be stored: "
            f"{in_line(said_by(error))}. "
            f"Give bytes, str, or values that JSON can hold"
        ) from error
    return Encoded(data, Encoding.JSON)


def decode(data: bytes, encoding: int, type: Any = None) -> Any:
    """The payload of stored bytes; as `type`, if one is given.

    Bytes and text are read as JSON when a type other than `bytes` or `str` is asked for, so that
    producers in other languages need not know about encodings.
    """
    if encoding not in _ENCODINGS:
        raise PayloadMismatch(
            f"encoding {encoding} is unknown: a newer RowMQ wrote it; upgrade this one"
        )
    if type is bytes or (type is None and encoding == Encoding.BYTES):
        return data
    try:
        if type in (None, str) and encoding != Encoding.JSON:
            return data.decode()
        if type is None:
            return msgspec.json.decode(data)
        if is_pydantic_model(type):
            return type.model_validate_json(data)
        return _decoder(type).decode(data)
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
        wanted = _name_of(Encoding(encoding).name if type is None else type)
        if type not in (None, str) and encoding != Encoding.JSON and not _is_json(data):
            said = _no_json(len(data), Encoding(encoding), wanted)
        else:
            said = in_line(said_by(error))
        raise PayloadMismatch(f"the payload does not parse as {wanted}: {said}") from error


def beginning_of(data: bytes, encoding: int) -> Beginning:
    """The beginning of a payload, of bytes that are more than that. A character that was cut is
    left out.
    """
    kept = data[:BEGINNING_BYTES]
    return Beginning(kept if encoding == Encoding.BYTES else kept.decode(errors="ignore"))


def encode_headers(headers: Mapping[str, str]) -> str | None:
    """Headers as JSON text; None when there are none, which takes no room in a row."""
    return _encoder.encode(headers).decode() if headers else None


def decode_headers(text: str | bytes | None) -> dict[str, str]:
    """Headers of stored JSON text."""
    if not text:
        return {}
    return msgspec.json.decode(text, type=dict[str, str])


def error_text(error: str | BaseException | None) -> str | None:
    """An error as text that every database can store."""
    if error is None:
        return None
    if isinstance(error, BaseException):
        text = f"{type(error).__name__}: {said_by(error)}"
    elif isinstance(error, str):
        text = error
    else:
        raise InvalidOption(f"error must be a str or an exception, not {quoted(error)}")
    text = text[:ERROR_CHARS_MAX].replace("\0", "\\0")
    return text.encode("utf-8", "backslashreplace").decode()


def said_by(error: BaseException) -> str:
    """What an exception says; its own code may raise, and must not hide it."""
    try:
        return str(error)
    except Exception as problem:  # noqa: BLE001 - see above
        return f"(what it says cannot be told: {type(problem).__name__})"


def is_pydantic_model(type: Any) -> bool:
    """Whether it is a pydantic model class, without importing pydantic, which is optional."""
    return hasattr(type, "model_validate_json") and hasattr(type, "__pydantic_validator__")


_ENCODINGS = frozenset(int(encoding) for encoding in Encoding)

_BINARY = (bytes, bytearray, memoryview)

_BUILTIN = frozenset({dict, list, tuple, int, float, bool, type(None)})
"""What most payloads are, and no model is."""


def _is_json(data: bytes) -> bool:
    try:
        msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    except RecursionError:
        return True  # as far as anybody can tell
    return True


def _no_json(size: int, encoding: Encoding, wanted: str) -> str:
    """What was published in place of JSON: not a word of it, since it may be a secret."""
    many = f"{size:,} byte{'' if size == 1 else 's'}"
    what, type = (f"{many} of text", "str") if encoding == Encoding.TEXT else (many, "bytes")
    return (
        f"it is {what}, and no JSON, which {wanted} is read from. Publish a value that JSON can "
        f"hold, or read this as {type}"
    )


def _name_of(wanted: Any) -> str:
    return wanted.__name__ if isinstance(wanted, type) else str(wanted)


# Aliases are what a model reads by default, so they are what it must write to come back.
_ROUND_TRIP: dict[str, Any] = {"by_alias": True, "round_trip": True}


def _encode_model(model: Any) -> bytes:
    data: bytes = model.model_dump_json(**_ROUND_TRIP).encode()
    if any(word in data for word in (b"null", b"NaN", b"Infinity")):
        # Pydantic, too, writes lost numbers as null: there are then more than the model has Nones.
        written, meant = msgspec.json.decode(data), model.model_dump(mode="json", **_ROUND_TRIP)
        if _count_nones(written) != _count_nones(meant):
            _refuse_lost_numbers(meant)
    return data


def _count_nones(value: Any) -> int:
    return sum(leaf is None for leaf in _leaves(value))


def _encode_foreign(value: Any) -> Any:
    if is_pydantic_model(type(value)):
        return value.model_dump(mode="json", **_ROUND_TRIP)
    if isinstance(value, str):  # a subclass of a plain type, such as numpy has
        return str.__str__(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return int(value) if isinstance(value, int) else float(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


def _decode_foreign(type: Any, value: Any) -> Any:
    if is_pydantic_model(type):
        return type.model_validate_json(msgspec.json.encode(value))
    raise NoForm(f"{type} has no JSON form")


_encoder = msgspec.json.Encoder(enc_hook=_encode_foreign)


def _decoder(type: Any) -> msgspec.json.Decoder[Any]:
    try:
        hash(type)
    except TypeError:  # as Annotated with a list is: it works, and is not remembered
        return _make_decoder(type)
    return _known_decoder(type)


def _make_decoder(type: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(type, dec_hook=_decode_foreign)


_known_decoder = lru_cache(maxsize=256)(_make_decoder)


def _refuse_lost_numbers(plain: Any) -> None:
    for value in _leaves(plain):
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"JSON has no {value}")


_NUMBER_KEY = re.compile(rb'"-?[0-9][^"\\]*":')

_STRING = re.compile(rb'"[^"]*"')
_NO_BRACKETS = bytes(set(range(256)) - set(b'[]{}"'))
_ALIKE = bytes.maketrans(b"{}", b"[]")


def _refuse_deep(data: bytes) -> bytes:
    """The JSON text, unless it is nested so deep that somebody could not read it."""
    if data.count(b"[") + data.count(b"{") <= DEPTH_MAX:
        return data
    # Brackets that are not in strings; then each pass takes the innermost of them away.
    left = data.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in data else data
    left = left.translate(_ALIKE, _NO_BRACKETS).replace(b'""', b"")
    left = _STRING.sub(b"", left)
    for _ in range(DEPTH_MAX):
        if not left:
            return data
        left = left.replace(b"[]", b"")
    if left:
        raise ValueError(f"it is nested more than {DEPTH_MAX} levels deep")
    return data


def _refuse_merged_keys(data: bytes) -> None:
    if _encoder.encode(msgspec.json.decode(data)) != data:
        raise ValueError("two keys of an object would be the same in JSON")


def _leaves(value: Any) -> Iterator[Any]:
    """What stands in plain dictionaries and lists, however deep."""
    left = [value]
    while left:
        value = left.pop()
        if isinstance(value, dict):
            left.extend(value.values())
        elif isinstance(value, list | tuple | set | frozenset):
            left.extend(value)
        else:
            yield value
