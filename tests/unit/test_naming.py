"""What may be a name, up to the edge of each limit."""

import enum
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rowmq import naming
from rowmq.errors import (
    ConfigurationError,
    InvalidHeaders,
    InvalidId,
    InvalidKey,
    InvalidName,
    InvalidTopic,
)

Check = Callable[[Any], Any]

NAMES: list[tuple[Check, int, type[InvalidName]]] = [
    (naming.check_topic, naming.TOPIC_BYTES_MAX, InvalidTopic),
    (naming.check_key, naming.KEY_BYTES_MAX, InvalidKey),
    (naming.check_id, naming.ID_BYTES_MAX, InvalidId),
]

every_limit = pytest.mark.parametrize(("check", "bytes_max", "error"), NAMES)
every_name = pytest.mark.parametrize(("check", "error"), [(n[0], n[2]) for n in NAMES])


class Topic(enum.StrEnum):
    ORDERS = "orders"


@pytest.mark.parametrize("check", [name[0] for name in NAMES])
def test_any_short_unicode_is_a_name(check: Check) -> None:
    for name in ("a", " ", "%", "'", '"', "`", ";", "\\", "\n", "Ä", "😀", "Key", "?", "$1"):
        assert check(name) == name


@every_name
def test_a_name_must_not_be_empty(check: Check, error: Any) -> None:
    with pytest.raises(error, match="must not be empty"):
        check("")


@every_limit
def test_length_is_counted_in_bytes(check: Check, bytes_max: int, error: Any) -> None:
    assert check("x" * bytes_max)
    with pytest.raises(error, match=f"at most {bytes_max} bytes"):
        check("x" * (bytes_max + 1))
    emoji, rest = "😀" * (bytes_max // 4), "x" * (bytes_max % 4)
    assert check(emoji + rest)
    with pytest.raises(error, match=f"has {bytes_max + 1}"):
        check(emoji + rest + "x")


@every_name
@pytest.mark.parametrize("name", ["\0", "a\0", "\0a", "a\0b"])
def test_nul_is_refused(check: Check, error: Any, name: str) -> None:
    with pytest.raises(error, match="NUL"):
        check(name)


@every_name
@pytest.mark.parametrize("name", ["\ud800", "a\udfff", "\udcffb"])
def test_lone_surrogates_are_refused(check: Check, error: Any, name: str) -> None:
    with pytest.raises(error, match="lone surrogate"):
        check(name)


@every_name
@pytest.mark.parametrize("name", [1, b"a", ["a"], 1.5, True, object()])
def test_only_str_is_a_name(check: Check, error: Any, name: Any) -> None:
    with pytest.raises(error, match="must be a str"):
        check(name)


def test_none_is_a_key_and_nothing_else() -> None:
    assert naming.check_key(None) is None
    with pytest.raises(InvalidTopic):
        naming.check_topic(None)  # type: ignore[arg-type]
    with pytest.raises(InvalidId):
        naming.check_id(None)  # type: ignore[arg-type]


def test_an_enum_becomes_its_plain_value() -> None:
    assert type(naming.check_topic(Topic.ORDERS)) is str
    headers = naming.check_headers({Topic.ORDERS: Topic.ORDERS})
    assert {type(part) for pair in headers.items() for part in pair} == {str}


@pytest.mark.parametrize("headers", [None, {}, MappingProxyType({"a": "b"}), {"": ""}])
def test_headers_become_a_dictionary_of_their_own(headers: Mapping[str, str] | None) -> None:
    checked = naming.check_headers(headers)
    assert checked == (headers or {})
    assert checked is not headers


@pytest.mark.parametrize(
    "headers",
    [
        {"a": 1},
        {"a": None},
        {"a": b"b"},
        {1: "a"},
        {None: "a"},
        {"a": "\0"},
        {"\0": "a"},
        {"a": "\ud800"},
        {"\ud800": "a"},
        [("a", "b")],
        "a=b",
        1,
    ],
)
def test_headers_that_are_not_text_are_refused(headers: Any) -> None:
    with pytest.raises(InvalidHeaders):
        naming.check_headers(headers)


def test_headers_have_a_limit_together() -> None:
    value = "é" * (naming.HEADERS_BYTES_MAX // 4)
    half = {"a": value[:-1], "b": value}
    assert naming.check_headers(half) == half
    with pytest.raises(InvalidHeaders, match="65,537 bytes"):
        naming.check_headers({**half, "c": ""})


@pytest.mark.parametrize("name", ["a", "_", "rowmq_", "a1", "_9", "a" * 40, "select"])
def test_plain_names_are_identifiers(name: str) -> None:
    assert naming.check_identifier(name, what="the table prefix") == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        "1a",
        "A",
        "Rowmq_",
        "a" * 41,
        "a b",
        "a\n",
        "\na",
        "a-b",
        "a.b",
        "a;drop table x",
        'a"',
        "a'",
        "a`",
        "a--",
        "{topics}",
        "😀",
        "ä",
        "\u017f",
        "\u0663",
        "a\0",
        None,
        1,
        b"a",
    ],
)
def test_whatever_could_be_sql_is_no_identifier(name: Any) -> None:
    with pytest.raises(ConfigurationError, match="the schema must be 1 to 40"):
        naming.check_identifier(name, what="the schema")


@given(st.text())
def test_an_identifier_is_never_anything_but_plain_characters(name: str) -> None:
    try:
        naming.check_identifier(name, what="it")
    except ConfigurationError:
        return
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789_")
