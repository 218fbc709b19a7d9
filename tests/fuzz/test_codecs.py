"""Payloads, headers and errors of any kind: to the byte and back, or refused in words."""

import enum
import json
from typing import Any, Literal

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rowmq.codec import (
    ERROR_CHARS_MAX,
    Encoding,
    decode,
    decode_headers,
    encode,
    encode_headers,
    error_text,
)
from rowmq.errors import InvalidHeaders, PayloadMismatch, PayloadNotSerializable
from rowmq.naming import HEADERS_BYTES_MAX, check_headers
from rowmq.quoting import quoted, visible
from tests.fuzz.effort import effort
from tests.fuzz.playing import same
from tests.fuzz.values import HOSTILE, headers, json_values, payloads


class Colour(enum.Enum):
    RED = "red"


class Order(pydantic.BaseModel):
    number: int
    lines: dict[str, float] = {}


TYPES: list[Any] = [
    None, int, str, bytes, float, list, dict, list[int], dict[str, Any], bool, Colour, Order,
    Literal["red"], list[Order], dict[Colour, int],
]  # fmt: skip
ENCODINGS = st.sampled_from([*map(int, Encoding), 3, -1, 255])

keys = st.one_of(st.text(), st.integers(), st.floats(), st.booleans(), st.none(), st.binary())
objects = st.recursive(
    st.one_of(payloads, HOSTILE, st.text(), st.complex_numbers()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=5,
)


def hashed(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


@effort(150)
@given(objects)
def test_a_payload_comes_back_or_is_refused(payload: Any) -> None:
    try:
        stored = encode(payload)
    except PayloadNotSerializable as error:
        assert "cannot be stored" in str(error)
        assert str(error) == visible(str(error))
        assert len(str(error)) < 1_500
        return
    found = decode(*stored)
    if stored.encoding == Encoding.JSON:
        assert msgspec.json.encode(found) == stored.data
    if isinstance(payload, dict) and all(type(key) is str for key in payload):
        assert list(found) == list(payload)
    if isinstance(payload, str | bytes | int | float | None):
        assert same(found, payload)


@effort(150)
@given(st.one_of(st.binary(), json_values.map(json.dumps).map(str.encode)), ENCODINGS)
def test_any_bytes_are_read_or_do_not_parse(data: bytes, encoding: int) -> None:
    """Another program may have written them."""
    for kind in TYPES:
        try:
            decode(data, encoding, kind)
        except PayloadMismatch as error:
            assert str(error) == visible(str(error))
            assert len(str(error)) < 1_500


@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, '{"a":' * 100_000, "1" * 100_000, "1e" + "9" * 5_000, "[" * 5_000 + "]" * 5_000,
     '"' + "\\u0000" * 100_000 + '"', '"' + "\\u001b[2J" * 100_000 + '"', '"' + "x" * 2**20 + '"',
     '{"lines": {"' + "\\n" * 100_000 + '": "x"}}', '{"' + "\\u202e" * 100_000 + '": 1}',
     '"\\ud800"', "NaN", "-", "\ufeff{}"],
    ids=lambda text: text[:8],
)  # fmt: skip
def test_a_bomb_does_not_parse_or_is_harmless(text: str) -> None:
    for kind in TYPES:
        try:
            decode(text.encode("utf-8", "surrogatepass"), Encoding.JSON, kind)
        except PayloadMismatch as error:
            assert str(error) == visible(str(error))
            assert len(str(error)) < 1_500


@effort(100)
@given(headers | HOSTILE | st.dictionaries(st.text() | HOSTILE.filter(hashed), HOSTILE, max_size=2))
def test_headers_come_back_or_are_refused(given: Any) -> None:
    try:
        checked = check_headers(given)
    except InvalidHeaders as error:
        assert visible(str(error)) == str(error)
        assert len(str(error)) < 1_500
        return
    stored = encode_headers(checked)
    assert decode_headers(stored) == dict(given or {})
    assert sum(len(f"{name}{value}".encode()) for name, value in checked.items()) <= (
        HEADERS_BYTES_MAX
    )
    assert stored is None or json.loads(stored) == checked


@effort(100)
@given(st.text() | st.builds(ValueError, st.text() | HOSTILE), st.sampled_from([1, 20_000]))
def test_an_error_is_text_that_every_database_stores(error: Any, times: int) -> None:
    text = error_text(error * times if isinstance(error, str) else error)
    assert text is not None
    text.encode()
    assert "\0" not in text
    # A character may become the escape of one.
    assert len(text) <= ERROR_CHARS_MAX * len("\\ud800")


@effort(150)
@given(objects | HOSTILE)
def test_anything_can_be_quoted(value: Any) -> None:
    said = quoted(value)
    assert said == visible(said)
    assert len(said) < 5_000
    said.encode()
