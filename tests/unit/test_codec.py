"""Payloads come back as they were given, or are refused before anything is written."""

import datetime as dt
import decimal
import enum
import math
import uuid
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rowmq.codec import DEPTH_MAX, Encoding, decode, decode_headers, encode, encode_headers
from rowmq.errors import PayloadMismatch, PayloadNotSerializable
from rowmq.quoting import SAID_CHARS_MAX, visible

LOST = [math.nan, math.inf, -math.inf]

texts = st.text(st.characters(exclude_categories=["Cs"]))
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner) | st.dictionaries(texts, inner),
    max_leaves=20,
)


class Text(str):
    __slots__ = ()


class Number(float):
    __slots__ = ()


class Colour(enum.StrEnum):
    RED = "red"


@dataclass
class Reading:
    value: float
    note: str | None = None


class Order(pydantic.BaseModel):
    number: int
    total: float | None = None


class Aliased(pydantic.BaseModel):
    class_: str = pydantic.Field(alias="class")


class Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True, extra="forbid")
    at: dt.datetime

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def year(self) -> int:
        return self.at.year


class Words(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(ser_json_inf_nan="strings")
    value: float
    other: int | None = None


class Constants(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(ser_json_inf_nan="constants")
    value: float


def round_trip(payload: Any, type: Any = None) -> Any:
    return decode(*encode(payload), type)


@given(json_values)
def test_json_values_come_back_equal(value: Any) -> None:
    assert round_trip(value) == value


@given(st.binary())
def test_bytes_come_back_equal(value: bytes) -> None:
    assert round_trip(value) == value


@given(texts)
def test_text_comes_back_equal(value: str) -> None:
    assert round_trip(value) == value


@pytest.mark.parametrize(
    ("payload", "encoding"),
    [
        (b"", Encoding.BYTES),
        (bytearray(b"x"), Encoding.BYTES),
        (memoryview(b"abcd")[::2], Encoding.BYTES),
        ("", Encoding.TEXT),
        (Text("a"), Encoding.TEXT),
        (Colour.RED, Encoding.TEXT),
        (None, Encoding.JSON),
        (True, Encoding.JSON),
        ({}, Encoding.JSON),
        ([], Encoding.JSON),
    ],
)
def test_each_kind_of_payload_has_its_encoding(payload: Any, encoding: Encoding) -> None:
    assert encode(payload).encoding is encoding


def test_the_stored_numbers_of_encodings_never_change() -> None:
    assert {e.name: e.value for e in Encoding} == {"BYTES": 0, "TEXT": 1, "JSON": 2}


def test_views_of_bytes_come_back_as_bytes() -> None:
    assert round_trip(memoryview(b"abcd")[::2]) == b"ac"
    assert round_trip(bytearray(b"ab")) == b"ab"


@pytest.mark.parametrize(
    ("payload", "type"),
    [
        (Reading(1.5), Reading),
        (Order(number=1), Order),
        ([Order(number=1, total=None)], list[Order]),
        ({"a": Order(number=2, total=2.5)}, dict[str, Order]),
        (Aliased(**{"class": "x"}), Aliased),
        ([Aliased(**{"class": "x"})], list[Aliased]),
        (Strict(at=dt.datetime(2026, 1, 2, tzinfo=dt.UTC)), Strict),
        ([Strict(at=dt.datetime(2026, 1, 2, tzinfo=dt.UTC))], list[Strict]),
        (uuid.UUID(int=7), uuid.UUID),
        (decimal.Decimal("0.10"), decimal.Decimal),
        (dt.datetime(2026, 1, 2, tzinfo=dt.UTC), dt.datetime),
        (Colour.RED, str),
        ((1, 2), tuple[int, int]),
        ({1, 2}, set[int]),
        ({1: "a"}, dict[int, str]),
        ({"a": b"\xff"}, dict[str, bytes]),
        (None, type(None)),
        (2**100, int),
    ],
)
def test_a_named_type_brings_the_value_back(payload: Any, type: Any) -> None:
    assert round_trip(payload, type) == payload


def test_subclasses_of_plain_types_are_stored_as_plain() -> None:
    payload = {"text": Text("a"), "number": Number(1.5), Text("key"): OrderedDict(a=1)}
    assert round_trip(payload) == {"text": "a", "number": 1.5, "key": {"a": 1}}


@pytest.mark.parametrize("number", LOST)
@pytest.mark.parametrize(
    "hide",
    [
        lambda n: n,
        Number,
        lambda n: [None, {"deep": [{"er": (1, n)}]}],
        lambda n: {1.0, n},
        Reading,
        lambda n: [Reading(n)],
        lambda n: Order(number=1, total=n),
        lambda n: [Order(number=1, total=n)],
        lambda n: Reading(1.0, note=Order(number=1, total=n)),  # type: ignore[arg-type]
        lambda n: Constants(value=n),
        lambda n: [Constants(value=n)],
    ],
)
def test_numbers_that_json_would_lose_are_refused(hide: Any, number: float) -> None:
    with pytest.raises(PayloadNotSerializable):
        encode(hide(number))


def test_a_model_that_writes_them_as_words_keeps_them() -> None:
    assert round_trip(Words(value=math.inf), Words) == Words(value=math.inf)


@pytest.mark.parametrize("payload", [[None], {"null": "null"}, Order(number=1), Reading(1.0)])
def test_nones_and_the_word_null_are_no_lost_numbers(payload: Any) -> None:
    assert b"null" in encode(payload).data


def looped() -> list[Any]:
    loop: list[Any] = []
    loop.append(loop)
    return loop


@pytest.mark.parametrize(
    "payload",
    [
        "\ud800",
        ["\ud800"],
        {"\udfff": 1},
        Reading(1.0, note="\ud800"),
        looped(),
        object(),
        iter([1]),
        {None: 1},
        {True: 1},
        {(1, 2): 3},
        1j,
        lambda: None,
    ],
    ids=lambda payload: type(payload).__name__,
)
def test_what_json_cannot_hold_is_refused(payload: Any) -> None:
    with pytest.raises(PayloadNotSerializable, match="Give bytes, str, or values"):
        encode(payload)


def test_a_released_view_is_refused() -> None:
    view = memoryview(b"gone")
    view.release()
    with pytest.raises(PayloadNotSerializable):
        encode(view)


def test_nested_nones_are_found_however_deep() -> None:
    payload: Any = None
    for _ in range(DEPTH_MAX):
        payload = [payload]
    assert round_trip(payload) == payload


def nested(depth: int) -> Any:
    """Lists and objects within each other, with what looks like more of them in texts."""
    payload: Any = None
    for level in range(depth):
        payload = [payload, '["'] if level % 2 else {"{": payload, "}]": '\\\\"]'}
    return payload


def at_the_edge_of_the_stack(call: Callable[[], Any], frames: int = 300) -> Any:
    """What a call gives where that many frames of the stack are in use already."""
    return call() if frames == 0 else at_the_edge_of_the_stack(call, frames - 1)


def test_what_can_be_stored_can_be_read_wherever_it_is_read() -> None:
    stored = encode(nested(DEPTH_MAX))
    assert at_the_edge_of_the_stack(lambda: decode(*stored)) == nested(DEPTH_MAX)
    wide = [[[n]] for n in range(1_000)]
    assert round_trip(wide) == wide


@pytest.mark.parametrize("depth", [DEPTH_MAX + 1, 300, 900, 990, 2_000, 100_000])
def test_json_that_is_nested_too_deep_is_refused(depth: int) -> None:
    with pytest.raises(PayloadNotSerializable, match=r"nested more than 200|recursion"):
        encode(nested(depth))


@pytest.mark.parametrize(
    "payload",
    [{1: "a", "1": "b"}, [{"x": {-2: 1, "-2": 2}}], {1.5: 0, "1.5": 1}, {2**70: 1, str(2**70): 2}],
    ids=str,
)
def test_keys_that_would_become_one_are_refused(payload: Any) -> None:
    with pytest.raises(PayloadNotSerializable, match="two keys"):
        encode(payload)


def test_numbers_that_are_keys_come_back_as_text() -> None:
    assert round_trip({1: "a", "2": "b", 1e22: "c"}) == {"1": "a", "2": "b", "1e22": "c"}


def test_bytes_and_text_are_read_as_json_when_a_type_is_asked_for() -> None:
    assert decode(b'{"number":1}', Encoding.BYTES, Order) == Order(number=1)
    assert decode(b"[1]", Encoding.TEXT, list[int]) == [1]


def test_any_payload_can_be_had_as_bytes() -> None:
    assert [decode(b"[1]", encoding, bytes) for encoding in Encoding] == [b"[1]"] * 3


def test_bytes_and_text_can_be_had_as_text() -> None:
    assert decode("é".encode(), Encoding.BYTES, str) == "é"
    assert decode("é".encode(), Encoding.TEXT, str) == "é"
    assert decode(b'"x"', Encoding.JSON, str) == "x"


@pytest.mark.parametrize(
    ("data", "encoding", "type"),
    [
        (b"\xff", Encoding.TEXT, None),
        (b"\xff", Encoding.BYTES, str),
        (b"{", Encoding.JSON, None),
        (b"", Encoding.JSON, None),
        (b"{}", Encoding.JSON, Order),
        (b'[{"number":"x"}]', Encoding.JSON, list[Order]),
        (b"NaN", Encoding.JSON, float),
        (b'"x"', Encoding.JSON, int),
        (b"x", Encoding.BYTES, dict),
        (b"1", Encoding.JSON, 5),
        (b"[" * 100_000, Encoding.JSON, None),
        (b"[" * 100_000, Encoding.TEXT, list),
    ],
)
def test_what_does_not_parse_is_a_mismatch(data: bytes, encoding: int, type: Any) -> None:
    with pytest.raises(PayloadMismatch, match="does not parse as"):
        decode(data, encoding, type)


@pytest.mark.parametrize("type", [Colour, Literal["red"], Order, list[Order], int])
@pytest.mark.parametrize(
    "payload", ["red\nERROR\x1b[2J\u202e", "\x9b" * 2**20], ids=["evil", "long"]
)
def test_what_does_not_parse_is_told_in_a_line(type: Any, payload: str) -> None:
    with pytest.raises(PayloadMismatch) as caught:
        decode(*encode(payload), type)
    said = str(caught.value)
    assert said == visible(said)
    assert len(said) < SAID_CHARS_MAX + 200


@pytest.mark.parametrize(
    ("payload", "type", "said"),
    [
        ("secret", Order, "it is 6 bytes of text, and no JSON, which Order is read from.*as str$"),
        (b"\0secret", Order, "it is 7 bytes, and no JSON, which Order is read from.*as bytes$"),
        (b"", dict, "it is 0 bytes, and no JSON, which dict is read from"),
        ("{", int, "it is 1 byte of text, and no JSON"),
        (b'"\xff"', str | int, "it is 3 bytes, and no JSON"),
    ],
)
def test_what_is_no_json_is_told_what_it_is_and_not_what_it_says(
    payload: str | bytes, type: Any, said: str
) -> None:
    with pytest.raises(PayloadMismatch, match=said) as caught:
        decode(*encode(payload), type)
    assert "secret" not in str(caught.value)


def test_text_that_is_json_is_told_what_is_wrong_with_it() -> None:
    with pytest.raises(PayloadMismatch, match=r"does not parse as int: Expected `int`, got `str`"):
        decode(b'"7"', Encoding.TEXT, int)


@pytest.mark.parametrize("type", [None, bytes, str, dict, Order])
def test_an_unknown_encoding_is_never_guessed_at(type: Any) -> None:
    with pytest.raises(PayloadMismatch, match="a newer RowMQ wrote it"):
        decode(b"{}", 9, type)


def test_a_type_that_cannot_be_hashed_will_do() -> None:
    assert decode(b"1", Encoding.JSON, Annotated[int, ["unhashable"]]) == 1


def test_a_type_with_constraints_is_checked() -> None:
    positive = Annotated[int, msgspec.Meta(gt=0)]
    assert decode(b"1", Encoding.JSON, positive) == 1
    with pytest.raises(PayloadMismatch):
        decode(b"-1", Encoding.JSON, positive)


@given(st.dictionaries(texts, texts))
def test_headers_come_back_equal(headers: dict[str, str]) -> None:
    assert decode_headers(encode_headers(headers)) == headers


def test_no_headers_take_no_room() -> None:
    assert encode_headers({}) is None
    assert decode_headers(None) == {}
    assert decode_headers(b'{"a":"b"}') == {"a": "b"}
