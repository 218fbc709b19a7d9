"""When schedules fire: around changes of the clock, in zones east and west."""

from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rowmq.errors import InvalidOption
from rowmq.schedule import (
    NICKNAMES,
    Due,
    Spec,
    Timing,
    catch_up,
    cron_of,
    daily_of,
    describe,
    expression_of,
    last_until,
    next_after,
    periodic_of,
    preview,
    zone_of,
)
from rowmq.times import from_micros, to_micros

ZONES = [
    "UTC",
    "Europe/Paris",
    "America/New_York",
    "America/St_Johns",
    "Australia/Lord_Howe",
    "Asia/Kathmandu",
    "America/Havana",
    "Africa/Casablanca",
]

EXPRESSIONS = [
    "0 2 * * *",
    "30 2 * * *",
    "15,45 1-3 * * *",
    "0 0 * * *",
    "*/10 * * * *",
    "0 * * * *",
    "7 */2 * * *",
    "30 2 L * *",
    "0 12 29 2 *",
    "0 0 31 * *",
    "5 1 1-7 * 1",
    "20 30 2 * * *",
    "*/20 * * * * *",
]


def utc(*numbers: int) -> datetime:
    return datetime(*numbers, tzinfo=UTC)  # type: ignore[misc, arg-type]


def fires(timing: Timing, after: datetime, number: int) -> list[datetime]:
    return [from_micros(moment) for moment in preview(timing, to_micros(after), number)]


def local(timing: Timing, tz: str, after: datetime, number: int) -> list[str]:
    """What clocks in a zone show when it fires, with the offset."""
    found = fires(timing, after, number)
    return [f"{moment.astimezone(ZoneInfo(tz)):%d %H:%M:%S %z}" for moment in found]


# --- changes of the clock -------------------------------------------------------------------------

SPRING = {
    # when clocks go forward: zone, midday before, a time in the gap, the first moment after it
    "Europe/Paris": (utc(2027, 3, 27, 12), "30 2", utc(2027, 3, 28, 1)),
    "America/New_York": (utc(2027, 3, 13, 16), "30 2", utc(2027, 3, 14, 7)),
    "America/St_Johns": (utc(2027, 3, 13, 16), "30 2", utc(2027, 3, 14, 5, 30)),
    "Australia/Lord_Howe": (utc(2027, 10, 2, 0), "15 2", utc(2027, 10, 2, 15, 30)),
}

AUTUMN = {
    # when clocks go back: zone, midday before, a time that comes twice, the first of the two
    "Europe/Paris": (utc(2026, 10, 24, 12), "30 2", utc(2026, 10, 25, 0, 30)),
    "America/New_York": (utc(2026, 10, 31, 16), "30 1", utc(2026, 11, 1, 5, 30)),
    "America/St_Johns": (utc(2026, 10, 31, 16), "30 1", utc(2026, 11, 1, 4, 0)),
    "Australia/Lord_Howe": (utc(2027, 4, 3, 0), "45 1", utc(2027, 4, 3, 14, 45)),
}


def at(text: str) -> time:
    minute, hour = text.split()
    return time(int(hour), int(minute))


@pytest.mark.parametrize("tz", SPRING)
def test_a_time_that_does_not_exist_fires_at_the_first_moment_after_the_gap(tz: str) -> None:
    before, shown, expected = SPRING[tz]
    minute, hour = shown.split()
    zone = ZoneInfo(tz)
    for timing in (
        cron_of(f"{shown} * * *", tz),
        cron_of(f"0 {minute} {hour} * * *", tz),
        daily_of([at(shown)], tz),
    ):
        first, second = fires(timing, before, 2)
        assert first == expected
        assert second.astimezone(zone).time() == at(shown)  # the day after it is there again
        assert second.astimezone(zone).date() == first.astimezone(zone).date() + timedelta(days=1)


@pytest.mark.parametrize("tz", AUTUMN)
def test_a_time_that_comes_twice_fires_once_at_the_first(tz: str) -> None:
    before, shown, expected = AUTUMN[tz]
    for timing in (cron_of(f"{shown} * * *", tz), daily_of([at(shown)], tz)):
        first, second = fires(timing, before, 2)
        assert first == expected
        assert second - first > timedelta(hours=24)
        # Also if one asks between the two.
        assert fires(timing, expected + timedelta(minutes=20), 1) == [second]


def test_several_times_in_one_gap_fire_once() -> None:
    timing = daily_of([time(2), time(2, 30), time(2, 59, 59), time(3)], "Europe/Paris")
    assert fires(timing, utc(2027, 3, 28, 0), 2) == [utc(2027, 3, 28, 1), utc(2027, 3, 29, 0)]


def test_an_interval_goes_on_through_a_change_of_the_clock() -> None:
    paris = cron_of("*/30 * * * *", "Europe/Paris")
    assert local(paris, "Europe/Paris", utc(2026, 10, 25, 0, 0), 5) == [
        "25 02:30:00 +0200",
        "25 02:00:00 +0100",
        "25 02:30:00 +0100",
        "25 03:00:00 +0100",
        "25 03:30:00 +0100",
    ]
    hourly = cron_of("0 * * * *", "America/New_York")
    assert local(hourly, "America/New_York", utc(2027, 3, 14, 5, 0), 3) == [
        "14 01:00:00 -0500",
        "14 03:00:00 -0400",
        "14 04:00:00 -0400",
    ]


def test_a_zone_that_is_off_by_a_quarter_of_an_hour() -> None:
    assert fires(cron_of("0 2 * * *", "Asia/Kathmandu"), utc(2026, 1, 1), 1) == [
        utc(2026, 1, 1, 20, 15)
    ]


# --- days -----------------------------------------------------------------------------------------


def test_the_ends_of_months() -> None:
    last_day = fires(cron_of("0 0 L * *", "UTC"), utc(2027, 12, 31), 4)
    assert [f"{moment:%m-%d}" for moment in last_day] == ["01-31", "02-29", "03-31", "04-30"]
    long_months = fires(cron_of("0 0 31 * *", "UTC"), utc(2027, 1, 1), 4)
    assert [f"{moment:%m-%d}" for moment in long_months] == ["01-31", "03-31", "05-31", "07-31"]
    weekday = fires(cron_of("0 0 LW * *", "UTC"), utc(2027, 1, 1), 1)
    assert weekday == [utc(2027, 1, 29)]


def test_leap_years() -> None:
    found = fires(cron_of("0 12 29 2 *", "Europe/Paris"), utc(2026, 1, 1), 3)
    assert [moment.year for moment in found] == [2028, 2032, 2036]
    # 2100 is none.
    assert fires(cron_of("0 0 29 2 *", "UTC"), utc(2097, 1, 1), 1) == [utc(2104, 2, 29)]


def test_weekdays_by_number_and_by_name() -> None:
    assert fires(cron_of("0 9 * * MON#2", "UTC"), utc(2026, 11, 1), 1) == [utc(2026, 11, 9, 9)]
    assert fires(cron_of("0 9 * * 5L", "UTC"), utc(2026, 11, 1), 1) == [utc(2026, 11, 27, 9)]
    assert fires(cron_of("0 9 * * 7", "UTC"), utc(2026, 11, 1, 10), 1) == [utc(2026, 11, 8, 9)]


@pytest.mark.parametrize("nickname", NICKNAMES)
def test_nicknames_are_the_expressions_they_stand_for(nickname: str) -> None:
    assert cron_of(f" {nickname.upper()} ", "UTC") == cron_of(NICKNAMES[nickname], "UTC")


# --- the same answer, however it is asked for -----------------------------------------------------


CHANGES = [
    *(change for _, _, change in (*SPRING.values(), *AUTUMN.values())),
    utc(2026, 3, 8, 5),  # Havana, at midnight
    utc(2026, 11, 1, 5),
    utc(2026, 2, 15, 2),  # Casablanca, for a month
    utc(2026, 3, 22, 2),
]

moments = st.one_of(
    st.integers(to_micros(utc(2023, 1, 1)), to_micros(utc(2031, 1, 1))).map(from_micros),
    st.builds(
        lambda change, seconds: change + timedelta(seconds=seconds),
        st.sampled_from(CHANGES),
        st.floats(-90_000, 90_000),
    ),
)
timings = st.one_of(
    st.builds(cron_of, st.sampled_from(EXPRESSIONS), st.sampled_from(ZONES)),
    st.builds(daily_of, st.lists(st.times(), min_size=1, max_size=4), st.sampled_from(ZONES)),
    st.builds(periodic_of, st.floats(0.1, 1e6)),
)


@given(timings, moments)
def test_the_next_time_is_later_and_the_same_until_then(timing: Timing, after: datetime) -> None:
    asked = to_micros(after)
    following = next_after(timing, asked)
    assert following is not None
    assert following > asked
    for moment in {asked, (asked + following) // 2, following - 1}:
        assert next_after(timing, moment) == following


@given(timings, moments)
def test_times_rise_and_none_is_left_out(timing: Timing, after: datetime) -> None:
    times = preview(timing, to_micros(after), 5)
    for earlier, later in pairwise(times):
        assert earlier < later
        assert next_after(timing, later - 1) == later
        assert last_until(timing, earlier, later - 1) == earlier


@settings(max_examples=25)  # each looks at thousands of minutes
@given(
    st.sampled_from(ZONES),
    st.lists(st.builds(time, st.integers(0, 23), st.integers(0, 59)), min_size=1, max_size=3),
    st.dates(date(2024, 1, 1), date(2030, 12, 31)),
)
def test_every_day_has_each_time_once(tz: str, hours: list[time], day: date) -> None:
    """Compared with every minute of some days, each looked up in the zone."""
    zone = ZoneInfo(tz)
    timing = daily_of(hours, tz)
    start = datetime.combine(day, time(), UTC)
    found = list(until(timing, start, start + timedelta(days=3)))
    assert found == sorted(brute_force(zone, set(hours), start, start + timedelta(days=3)))


def until(timing: Timing, start: datetime, end: datetime) -> Iterator[datetime]:
    moment = next_after(timing, to_micros(start))
    while moment is not None and moment <= to_micros(end):
        yield from_micros(moment)
        moment = next_after(timing, moment)


def brute_force(zone: ZoneInfo, hours: set[time], start: datetime, end: datetime) -> set[datetime]:
    """The first minute of each day at which a clock shows at least a time that it has not shown."""
    found = set()
    shown_until = (start - timedelta(days=1)).astimezone(zone).replace(tzinfo=None)
    minute = start - timedelta(days=1)
    while minute < end:
        minute += timedelta(minutes=1)
        shown = minute.astimezone(zone).replace(tzinfo=None)
        if shown <= shown_until:
            continue  # it was there before
        passed = shown_until + timedelta(minutes=1)
        while passed <= shown:
            if passed.time() in hours and start < minute <= end:
                found.add(minute)
            passed += timedelta(minutes=1)
        shown_until = shown
    return found


@pytest.mark.parametrize("tz", SPRING)
@pytest.mark.parametrize("hours", [[time(2)], [time(1, 59), time(2, 15), time(3)]])
def test_the_days_around_a_change_of_the_clock_have_each_time_once(
    tz: str, hours: list[time]
) -> None:
    for middle in (SPRING[tz][2], AUTUMN[tz][2]):
        start, end = middle - timedelta(days=2), middle + timedelta(days=2)
        found = list(until(daily_of(hours, tz), start, end))
        assert found == sorted(brute_force(ZoneInfo(tz), set(hours), start, end))


def test_periods_are_aligned_since_1970() -> None:
    timing = periodic_of(timedelta(minutes=15))
    assert fires(timing, utc(2026, 1, 1, 10, 7), 2) == [
        utc(2026, 1, 1, 10, 15),
        utc(2026, 1, 1, 10, 30),
    ]
    assert fires(timing, utc(2026, 1, 1, 10, 15), 1) == [utc(2026, 1, 1, 10, 30)]
    assert next_after(timing, -1) == 0


# --- catching up ----------------------------------------------------------------------------------

START = to_micros(utc(2026, 6, 1))
HOUR = 3_600_000_000


def hourly(policy: str, grace: float = 60) -> Spec:
    return Spec(
        timing=cron_of("0 * * * *", "UTC"),
        catch_up=policy,  # type: ignore[arg-type]
        grace_us=round(grace * 1e6),
    )


@pytest.mark.parametrize("policy", ["latest", "all", "none"])
def test_a_tick_on_time_is_made_whatever_the_policy(policy: str) -> None:
    for late in (0, 1, 60_000_000):
        due = catch_up(hourly(policy), START, START + late, limit=10)
        assert due == Due([START], START + HOUR)


def test_what_was_missed_is_made_up_as_was_chosen() -> None:
    now = START + 4 * HOUR + HOUR // 2
    following = START + 5 * HOUR
    everything = [START + hours * HOUR for hours in range(5)]
    assert catch_up(hourly("latest"), START, now, limit=10) == Due(everything[-1:], following)
    assert catch_up(hourly("all"), START, now, limit=10) == Due(everything, following)
    assert catch_up(hourly("none"), START, now, limit=10) == Due([], following)
    on_time = START + 4 * HOUR + 1
    assert catch_up(hourly("none"), START, on_time, limit=10) == Due(everything[-1:], following)


def test_all_is_made_in_parts() -> None:
    now = START + 9 * HOUR
    due = catch_up(hourly("all"), START, now, limit=4)
    assert due == Due([START + n * HOUR for n in range(4)], START + 4 * HOUR)


def test_none_makes_what_is_no_later_than_the_grace() -> None:
    spec = hourly("none", grace=2 * 3600)
    now = START + 9 * HOUR
    due = catch_up(spec, START, now, limit=10)
    assert due == Due([START + n * HOUR for n in (7, 8, 9)], START + 10 * HOUR)
    assert catch_up(spec, START, now + 1, limit=10).fires == due.fires[1:]
    # A tick that would be the only one is late by more than the grace.
    assert catch_up(hourly("none"), START, START + 60_000_001, limit=10).fires == []


def test_years_of_missed_ticks_are_passed_over_at_once() -> None:
    spec = Spec(timing=periodic_of(0.1))
    now = START + 10 * 365 * 24 * HOUR + 50_000
    assert catch_up(spec, START, now, limit=1) == Due([now - 50_000], now + 50_000)


@given(timings, moments, st.timedeltas(timedelta(0), timedelta(days=400)))
def test_the_latest_is_the_last_of_all(timing: Timing, after: datetime, span: timedelta) -> None:
    first = next_after(timing, to_micros(after))
    assert first is not None
    now = first + span // timedelta(microseconds=1)
    due = catch_up(Spec(timing=timing), first, now, limit=1)
    (latest,) = due.fires
    assert first <= latest <= now
    assert next_after(timing, latest - 1) == latest
    assert due.next_at == next_after(timing, latest) == next_after(timing, now)


# --- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "told"),
    [
        ("", "0 fields"),
        ("* * * *", "4 fields"),
        ("* * * * * * *", "7 fields"),
        ("61 * * * *", "field minute, '61'"),
        ("* 24 * * *", "field hour, '24'"),
        ("* * 0 * *", "field day-of-month, '0'"),
        ("* * * 13 *", "field month, '13'"),
        ("* * * * 8", "field day-of-week, '8'"),
        ("60 * * * * *", "field second, '60'"),
        ("*/0 * * * *", "field minute, '*/0'"),
        ("5-1 * * * *", "field minute, '5-1'"),
        ("a b c d e", "field minute, 'a'"),
        ("0 0 30 2 *", "no month that it names has this day"),
        ("0 0 31 4,6 *", "no month that it names has this day"),
        ("@reboot", "no known name"),
    ],
)
def test_an_expression_is_refused_with_what_is_wrong_with_it(expression: str, told: str) -> None:
    with pytest.raises(InvalidOption, match=told.replace("*", r"\*")):
        cron_of(expression, "UTC")


@given(st.text(alphabet="0123456789*/,-#LWMONJA @", max_size=30))
def test_any_text_is_an_expression_that_fires_or_is_refused(text: str) -> None:
    try:
        timing = cron_of(text, "Europe/Paris")
    except InvalidOption:
        return
    assert next_after(timing, START) is not None
    assert describe(timing)


@pytest.mark.parametrize("given", [None, 5, b"* * * * *", ["* * * * *"]])
def test_an_expression_is_text(given: object) -> None:
    with pytest.raises(InvalidOption, match="must be a str"):
        cron_of(given, "UTC")  # type: ignore[arg-type]


def test_an_expression_has_an_end() -> None:
    with pytest.raises(InvalidOption, match="split it"):
        cron_of(",".join(["1"] * 200) + " * * * *", "UTC")


@pytest.mark.parametrize(
    ("tz", "told"),
    [
        ("paris", "'Europe/Paris'"),
        ("Europe/Pariss", "'Europe/Paris'"),
        ("america/new_york", "'America/New_York'"),
        ("Europe", "no time zone 'Europe'"),
        ("", "no time zone ''"),
        ("../../etc/passwd", "no time zone"),
        ("localtime", "no time zone"),
        ("\0", "no time zone"),
        (None, "name of a time zone"),
        (UTC, "name of a time zone"),
        (2, "name of a time zone"),
    ],
)
def test_a_zone_that_is_none_is_refused_with_those_that_are_like_it(tz: str, told: str) -> None:
    with pytest.raises(InvalidOption, match=told):
        zone_of(tz)


def test_a_zone_may_be_given_itself() -> None:
    assert zone_of(ZoneInfo("Asia/Tokyo")) == "Asia/Tokyo"


@pytest.mark.parametrize(
    "hours", [[], "02:00", [2], [time(2, tzinfo=UTC)], 2, None, [utc(2026, 1, 1, 2)]]
)
def test_times_of_day_are_times_without_a_zone(hours: list[time]) -> None:
    with pytest.raises(InvalidOption):
        daily_of(hours, "UTC")


def test_times_of_day_are_sorted_and_each_once() -> None:
    timing = daily_of([time(14), time(2), time(14, fold=1)], "UTC")
    assert timing.times == (time(2), time(14))
    assert daily_of(time(2), "UTC") == daily_of([time(2)], "UTC")


@pytest.mark.parametrize("period", [0, -1, 0.05, timedelta(0), "60", None, float("nan"), True])
def test_a_period_is_a_tenth_of_a_second_or_more(period: float) -> None:
    with pytest.raises(InvalidOption):
        periodic_of(period)


# --- in words -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("timing", "words", "short"),
    [
        (cron_of("0 2 * * *", "Europe/Paris"), "At 02:00 every day (Europe/Paris)", "0 2 * * *"),
        (daily_of([time(2)], "UTC"), "Every day at 02:00 (UTC)", "02:00"),
        (
            daily_of([time(2), time(14, 30, 5), time(8)], "UTC"),
            "Every day at 02:00, 08:00 and 14:30:05 (UTC)",
            "02:00, 08:00, 14:30:05",
        ),
        (periodic_of(60), "Every minute", "60s"),
        (periodic_of(timedelta(hours=6)), "Every 6 hours", "21600s"),
        (periodic_of(0.25), "Every 0.25 seconds", "0.25s"),
    ],
)
def test_a_timing_is_told_in_words(timing: Timing, words: str, short: str) -> None:
    assert describe(timing) == words
    assert expression_of(timing) == short


def test_a_hash_is_of_everything_and_of_nothing_else() -> None:
    timing = cron_of("0 2 * * *", "UTC")
    known = Spec(timing=timing, queue="q", data=b"1").config_hash
    assert known == Spec(timing=timing, queue="q", data=b"1").config_hash
    others = [
        Spec(timing=cron_of("0 2 * * *", "Europe/Paris"), queue="q", data=b"1"),
        Spec(timing=timing, topic="q", data=b"1"),
        Spec(timing=timing, queue="q", data=b"2"),
        Spec(timing=timing, queue="q", data=b"1", priority=1),
        Spec(timing=timing, queue="q", data=b"1", key="k"),
        Spec(timing=timing, queue="q", data=b"1", catch_up="all"),
        Spec(timing=timing, queue="q", data=b"1", grace_us=1),
        Spec(timing=timing, queue="q", data=b"1", function="m:f"),
        Spec(timing=timing, queue="q", data=b"1", headers='{"a":"b"}'),
    ]
    assert len({known, *(spec.config_hash for spec in others)}) == len(others) + 1


@pytest.mark.parametrize(
    "timing",
    [
        cron_of("* * * * *", "UTC"),
        cron_of("0 2 29 2 *", "Pacific/Kiritimati"),
        daily_of(time(23, 59), "America/New_York"),
        periodic_of(timedelta(days=36_525)),
    ],
    ids=lambda timing: type(timing).__name__,
)
def test_nothing_fires_after_the_last_day_of_the_calendar(timing: Timing) -> None:
    last = to_micros(datetime.max.replace(tzinfo=UTC))
    for after in (last, last - 1, last - 3_600_000_000, last - 10 * 366 * 86_400_000_000):
        fires = preview(timing, after, 1_000)
        assert all(after < moment <= last for moment in fires)
        assert next_after(timing, last) is None


def test_the_next_times_of_a_century_are_those_that_there_are() -> None:
    fires = preview(periodic_of(timedelta(days=36_525)), 0, 1_000)
    assert 0 < len(fires) < 100


def test_no_time_zone_has_a_name_of_megabytes() -> None:
    with pytest.raises(InvalidOption, match="there is no time zone 'Europe/Europe") as caught:
        zone_of("Europe/" * 100_000)
    assert len(str(caught.value)) < 500
