"""What options take, and what they say to the rest."""

import math
from datetime import UTC, datetime, timedelta
from typing import Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rowmq.cli.health import address_of
from rowmq.cli.showing import duration, size
from rowmq.cli.values import DURATION, HEADER, KEPT, LIMIT, MOMENT, SIZE, place_of


def refusal(kind: Any, text: str) -> str:
    with pytest.raises(click.BadParameter) as refused:
        kind.convert(text, None, None)
    return refused.value.message


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30s", 30), ("5m", 300), ("2h", 7200), ("7d", 604_800), ("2w", 1_209_600), ("1h30m", 5400),
     ("0.5s", 0.5), ("250ms", 0.25), (" 5M ", 300), ("5", 5)],
)  # fmt: skip
def test_durations(text: str, seconds: float) -> None:
    assert DURATION.convert(text, None, None) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "s", "5x", "-5s", "5s!", "1h 30m", "forever", "٣s"])
def test_what_is_no_duration_is_told_how_to_write_one(text: str) -> None:
    assert "7d" in refusal(DURATION, text)


def test_what_is_far_too_long_for_a_duration_is_refused_at_once() -> None:
    """If it were looked at from each of its digits, this would take hours."""
    assert "7d" in refusal(DURATION, "9" * 5_000_000 + "x")


def test_forever_is_a_duration_only_where_it_means_something() -> None:
    assert KEPT.convert("forever", None, None) == timedelta.max
    assert "forever" in refusal(KEPT, "for ever")
    assert "too long" in refusal(DURATION, "9" * 20 + "d")


@given(st.integers(1, 10**8))
def test_a_duration_that_is_shown_can_be_given(seconds: int) -> None:
    span = timedelta(seconds=seconds)
    given = DURATION.convert(duration(span), None, None)
    assert given <= span
    assert span - given < timedelta(hours=1)


@given(st.integers(0, 2**40))
def test_a_size_that_is_shown_can_be_given(count: int) -> None:
    assert SIZE.convert(size(count), None, None) == count


@pytest.mark.parametrize(
    ("text", "count"), [("65536", 65536), ("64KiB", 65536), ("1 MiB", 2**20), ("1kB", 1000)]
)
def test_sizes(text: str, count: int) -> None:
    assert SIZE.convert(text, None, None) == count


@pytest.mark.parametrize("text", ["", "-1", "1.5MiB", "1XiB", "MiB"])
def test_what_is_no_size_is_told_how_to_write_one(text: str) -> None:
    assert "64KiB" in refusal(SIZE, text)


def test_times_have_a_zone() -> None:
    assert MOMENT.convert("2026-03-01T09:30:00Z", None, None) == datetime(
        2026, 3, 1, 9, 30, tzinfo=UTC
    )
    assert MOMENT.convert("2026-03-01T10:30:00+01:00", None, None) == datetime(
        2026, 3, 1, 9, 30, tzinfo=UTC
    )
    assert "write 2026-03-01T09:30:00Z" in refusal(MOMENT, "2026-03-01T09:30")
    assert "2026-03-01T09:30:00Z" in refusal(MOMENT, "yesterday")


def test_limits_and_headers() -> None:
    assert LIMIT.convert("10", None, None) == 10
    assert LIMIT.convert("none", None, None) == math.inf
    for text in ("0", "-1", "1.5", "many", "²"):
        assert "whole number" in refusal(LIMIT, text)
    assert HEADER.convert("a=b=c", None, None) == ("a", "b=c")
    assert HEADER.convert("a=", None, None) == ("a", "")
    assert "name=value" in refusal(HEADER, "=b")
    assert "name=value" in refusal(HEADER, "b")


def test_places() -> None:
    words = ("earliest", "latest")
    assert place_of("Latest", words=words, option="--to") == "latest"
    assert place_of("17", words=words, option="--to") == 17
    assert place_of("2026-03-01T00:00:00Z", words=words, option="--to") == datetime(
        2026, 3, 1, tzinfo=UTC
    )


@pytest.mark.parametrize(
    ("text", "hint"),
    [("0", "begin with 1"), ("2026-03-01T00:00:00", "no time zone"), ("soon", "earliest, latest")],
)
def test_what_is_no_place_is_told_what_is(text: str, hint: str) -> None:
    with pytest.raises(click.BadParameter) as refused:
        place_of(text, words=("earliest", "latest"), option="--to")
    assert hint in refused.value.message
    assert refused.value.param_hint == "--to"


def test_numbers_of_thousands_of_digits_are_refused() -> None:
    digits = "9" * 5_000
    for kind in (SIZE, LIMIT, DURATION, MOMENT):
        assert refusal(kind, digits)
    with pytest.raises(click.BadParameter, match="neither"):
        place_of(digits, words=("earliest",), option="--from")
    with pytest.raises(click.BadParameter, match="give a port"):
        address_of(digits)
