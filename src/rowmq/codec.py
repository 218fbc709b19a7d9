"""Payloads to bytes and back.

Three encodings are stored beside the bytes, so that a reader gets back what the writer gave: raw
bytes, text, and JSON. Everything that is not bytes or text becomes JSON: plain values, dataclasses,
pydantic models, and whatever else msgspec knows (datetimes, UUIDs, decimals, enums). Naming a type
when reading turns the JSON back into it.
"""

import math
from collections.abc import Mapping
from enum import IntEnum
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from rowmq.errors import PayloadMismatch, PayloadNotSerializable

__all__ = ["Encoded", "Encoding", "decode", "decode_headers", "encode", "encode_headers"]


class Encoding(IntEnum):
    """How a stored payload is to be read. The numbers are stored: they never change."""

    BYTES = 0
    TEXT = 1
    JSON = 2


class Encoded(NamedTuple):
    """A payload as it is stored."""

    data: bytes
    encoding: Encoding


def encode(payload: Any) -> Encoded:
    """The bytes of a payload. `PayloadNotSerializable` if it cannot come back as it was."""
    if isinstance(payload, bytes | bytearray | memoryview):
        return Encoded(bytes(payload), Encoding.BYTES)
    try:
        if isinstance(payload, str):
            return Encoded(payload.encode(), Encoding.TEXT)
        if _is_pydantic_model(type(payload)):
            return Encoded(payload.model_dump_json().encode(), Encoding.JSON)
        data = _encoder.encode(payload)
        # msgspec writes NaN and infinity as null: a null may be a number that would be lost.
        if b"null" in data:
            _refuse_lost_numbers(payload)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise PayloadNotSerializable(
            f"a payload of type {type(payload).__name__} cannot be stored: {error}. "
            f"Give bytes, str, or values that JSON can hold"
        ) from error
    return Encoded(data, Encoding.JSON)


def decode(data: bytes, encoding: int, type: Any = None) -> Any:
    """The payload of stored bytes; as `type`, if one is given.

    Bytes and text are read as JSON when a type other than `bytes` or `str` is asked for, so that
    producers in other languages need not know about encodings.
    """
    if type is None:
        return _decode_plain(data, encoding)
    if type is bytes:
        return data
    try:
        if type is str and encoding != Encoding.JSON:
            return data.decode()
        if _is_pydantic_model(type):
            return type.model_validate_json(data)
        return _decoder(type).decode(data)
    except (msgspec.MsgspecError, TypeError, ValueError) as error:
        wanted = getattr(type, "__name__", str(type))
        raise PayloadMismatch(f"the payload does not parse as {wanted}: {error}") from error


def encode_headers(headers: Mapping[str, str]) -> str | None:
    """Headers as JSON text; None when there are none, which takes no room in a row."""
    return _encoder.encode(headers).decode() if headers else None


def decode_headers(text: str | bytes | None) -> dict[str, str]:
    """Headers of stored JSON text."""
    if not text:
        return {}
    return msgspec.json.decode(text, type=dict[str, str])


def _decode_plain(data: bytes, encoding: int) -> Any:
    match encoding:
        case Encoding.BYTES:
            return data
        case Encoding.TEXT:
            return data.decode()
        case Encoding.JSON:
            return msgspec.json.decode(data)
        case _:
            raise PayloadMismatch(
                f"encoding {encoding} is unknown: a newer RowMQ wrote it; upgrade this one"
            )


def _is_pydantic_model(type: Any) -> bool:
    """Whether it is a pydantic model class, without importing pydantic, which is optional."""
    return hasattr(type, "model_validate_json") and hasattr(type, "__pydantic_validator__")


def _encode_foreign(value: Any) -> Any:
    if _is_pydantic_model(type(value)):
        return value.model_dump(mode="json")
    raise TypeError(f"{type(value).__name__} has no JSON form")


def _decode_foreign(type: Any, value: Any) -> Any:
    if _is_pydantic_model(type):
        return type.model_validate(value)
    raise TypeError(f"{type} has no JSON form")


_encoder = msgspec.json.Encoder(enc_hook=_encode_foreign)


@lru_cache(maxsize=256)
def _decoder(type: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(type, dec_hook=_decode_foreign)


def _refuse_lost_numbers(payload: Any) -> None:
    for value in _leaves(msgspec.to_builtins(payload, enc_hook=_encode_foreign)):
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"JSON has no {value}")


def _leaves(value: Any) -> Any:
    if isinstance(value, dict):
        for item in value.values():
            yield from _leaves(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _leaves(item)
    else:
        yield value
