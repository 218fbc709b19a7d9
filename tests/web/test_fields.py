"""What people write into forms, and what it stands for."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from rowmq.errors import InvalidInput
from rowmq.web.fields import (
    headers_of,
    ids_of,
    lines_of,
    moment_or_none,
    number_or_none,
    payload_of,
    put_in_words,
)
from rowmq.web.viewing import plain_text

HALF_PAST_NINE = datetime(2026, 3, 1, 9, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    "text",
    ["2026-03-01T09:30", " 2026-03-01T09:30:00 ", "2026-03-01T10:30+01:00", "2026-03-01T09:30Z"],
)
def test_a_time_without_a_zone_is_in_utc_as_pickers_of_browsers_give_it(text: str) -> None:
    assert moment_or_none(text) == HALF_PAST_NINE


def test_a_number_may_have_its_thousands_apart_as_pages_show_it() -> None:
    assert number_or_none("12,345", name="a number") == 12_345
    assert number_or_none("-3", name="a number", least=-5) == -3
    assert number_or_none("  ", name="a number") is None


@pytest.mark.parametrize("text", ["x", "1.5", "-1", "9" * 40, "٣", "--3", "0x1"])
def test_what_is_no_number_is_refused_in_a_line(text: str) -> None:
    with pytest.raises(InvalidInput, match="must be a whole number"):
        number_or_none(text, name="a number")


def test_headers_stand_one_on_each_line() -> None:
    assert headers_of("a=1\r\n\r\n b = two = 2 \r\n") == {"a": "1", "b ": " two = 2"}
    assert headers_of(None) == {}
    with pytest.raises(InvalidInput, match="name=value"):
        headers_of("a=1\nnothing")


@pytest.mark.parametrize("sign", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\r"])
def test_a_line_ends_where_browsers_end_it_and_nowhere_else(sign: str) -> None:
    """Else who is given a topic that has such a sign in its name would be given another, or all."""
    assert lines_of(f" orders{sign}*\r\n\n{sign}b\n") == [f"orders{sign}*", f"{sign}b"]
    assert headers_of(f"note=a{sign}admin=yes") == {"note": f"a{sign}admin=yes"}


def test_ids_are_of_boxes_that_were_ticked() -> None:
    assert ids_of(["7", "3", "7", ""]) == [3, 7]
    with pytest.raises(InvalidInput):
        ids_of(["7", "' OR 1=1"])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=10,
)


@given(JSON | st.text() | st.binary())
def test_what_a_form_shows_of_a_payload_is_read_back_as_it_was(payload: Any) -> None:
    form, text = plain_text(payload)
    assume("\r" not in text)  # browsers send line breaks of all kinds as the same
    assert payload_of(text.replace("\n", "\r\n"), form) == payload


@pytest.mark.parametrize(
    ("text", "form", "told"),
    [("{", "json", "no JSON"), ("hello", "json", "in quotes"), ("a", "base64", "aGVsbG8=")],
)
def test_a_payload_that_cannot_be_read_says_how_to_write_one(
    text: str, form: str, told: str
) -> None:
    with pytest.raises(InvalidInput, match=told):
        payload_of(text, form)


def test_json_that_is_very_deep_is_refused() -> None:
    with pytest.raises(InvalidInput):
        payload_of("[" * 100_000, "json")


def test_an_error_is_put_beside_its_field() -> None:
    errors: dict[str, str] = {}
    assert put_in_words(lambda: number_or_none("x", name="it"), errors, "priority") is None
    assert list(errors) == ["priority"]
