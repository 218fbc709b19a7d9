"""Moments are exact to the microsecond, and durations are what they seem."""

import math
import threading
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rowmq.errors import InvalidOption, NaiveDatetime
from rowmq.times import SECONDS_MAX, from_micros, to_micros, to_seconds

# Far enough from the ends of the calendar that a zone cannot reach beyond.
EARLY, LATE = datetime(2, 1, 1), datetime(9998, 1, 1)  # noqa: DTZ001


@given(st.datetimes(timezones=st.just(UTC)))
def test_a_moment_comes_back_to_the_microsecond(moment: datetime) -> None:
    assert from_micros(to_micros(moment)) == moment


@given(st.datetimes(EARLY, LATE, timezones=st.timezones()))
def test_every_zone_means_the_same_moment(moment: datetime) -> None:
    assert from_micros(to_micros(moment)) == moment.astimezone(UTC)


def test_known_moments() -> None:
    assert to_micros(datetime(1970, 1, 1, tzinfo=UTC)) == 0
    assert to_micros(datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)) == -1
    assert to_micros(datetime(1970, 1, 1, 1, tzinfo=timezone(timedelta(hours=1)))) == 0
    assert from_micros(1).tzinfo is UTC


def test_the_hour_that_comes_twice_is_two_hours() -> None:
    first = datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"))
    second = first.replace(fold=1)
    assert to_micros(second) - to_micros(first) == 3_600_000_000


def test_the_ends_of_the_calendar_do_not_overflow() -> None:
    east, west = timezone(timedelta(hours=14)), timezone(timedelta(hours=-12))
    assert to_micros(datetime.min.replace(tzinfo=east)) < to_micros(
        datetime.max.replace(tzinfo=west)
    )


def test_a_naive_datetime_names_no_moment() -> None:
    with pytest.raises(NaiveDatetime, match="has no time zone"):
        to_micros(datetime(2026, 1, 1))  # noqa: DTZ001


@pytest.mark.parametrize("moment", [None, 0, 1.5, "2026-01-01", date(2026, 1, 1), timedelta(1)])
def test_only_a_datetime_is_a_moment(moment: Any) -> None:
    with pytest.raises(InvalidOption, match="expected an aware datetime"):
        to_micros(moment)


@pytest.mark.parametrize(
    ("duration", "seconds"),
    [
        (0, 0.0),
        (5, 5.0),
        (0.25, 0.25),
        (timedelta(0), 0.0),
        (timedelta(minutes=1, microseconds=1), 60.000001),
        (SECONDS_MAX, SECONDS_MAX),
    ],
)
def test_a_duration_is_seconds_or_a_timedelta(duration: Any, seconds: float) -> None:
    result = to_seconds(duration, name="retry_for")
    assert result == seconds
    assert type(result) is float


@pytest.mark.parametrize(
    "duration",
    [
        -1,
        -1e-9,
        timedelta(microseconds=-1),
        math.nan,
        math.inf,
        -math.inf,
        SECONDS_MAX + 1,
        10**400,
        -(10**400),
        timedelta.max,
        True,
        False,
        None,
        "5",
        b"5",
        Decimal(5),
        [5],
    ],
)
def test_what_is_no_duration_is_refused_by_its_name(duration: Any) -> None:
    with pytest.raises(InvalidOption, match="retry_for must be"):
        to_seconds(duration, name="retry_for")


def test_the_longest_duration_can_be_waited_for() -> None:
    lock = threading.Lock()
    assert lock.acquire(timeout=SECONDS_MAX)
