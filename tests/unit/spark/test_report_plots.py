"""Scales, times and shapes of plots, and how figures are worded."""

import re
from datetime import timedelta
from xml.etree import ElementTree as ET

import pytest

from rowmq.errors import InvalidOption
from rowmq.markup import nice_ticks
from rowmq.spark.pipelines.report import window_in
from rowmq.spark.pipelines.reporting import plots, series, wording
from rowmq.spark.pipelines.reporting.counting import Extent
from rowmq.spark.pipelines.reporting.plots import Ladder, Line, Scale
from rowmq.spark.pipelines.reporting.tables import Span
from rowmq.spark.pipelines.reporting.window import BUCKETS_MAX, Window, window_of
from tests.unit.spark.reports import DAY, at, window

MICRO, HOUR = timedelta(microseconds=1), timedelta(hours=1)


# --- windows --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("length", "bucket"),
    [
        (MICRO, timedelta(seconds=1)),
        (timedelta(seconds=96), timedelta(seconds=1)),
        (timedelta(minutes=10), timedelta(seconds=10)),
        (timedelta(days=1), timedelta(minutes=15)),
        (timedelta(days=3.25), timedelta(hours=1)),
        (timedelta(days=90), timedelta(days=1)),
        (timedelta(days=700), timedelta(days=28)),
        (timedelta(days=36_500), timedelta(days=364)),
    ],
)
def test_buckets_suit_the_length_of_the_window(length: timedelta, bucket: timedelta) -> None:
    assert window_of(DAY, DAY + length, None).bucket == bucket


def test_buckets_begin_at_round_times_and_weeks_on_mondays() -> None:
    half = timedelta(minutes=30)
    assert Window(at(0.75), at(2), half).starts == [at(0.5), at(1), at(1.5)]
    weeks = Window(DAY, at(24 * 14), timedelta(days=7)).starts
    assert [start.weekday() for start in weeks] == [0, 0, 0]
    assert weeks[0] <= DAY < weeks[1]


def test_more_buckets_than_can_be_shown_are_refused() -> None:
    assert len(window_of(DAY, DAY + timedelta(seconds=BUCKETS_MAX), timedelta(seconds=1)).starts)
    with pytest.raises(InvalidOption, match="too short"):
        window_of(DAY, DAY + timedelta(seconds=BUCKETS_MAX + 1), timedelta(seconds=1))


def test_a_window_is_open_as_far_as_there_is_anything_and_one_bucket_at_least() -> None:
    extent = Extent(at(1), at(5), crowded=False)
    found = window_in(extent, Span(until=at(3)), HOUR)
    assert found == Window(at(1), at(3), HOUR)
    assert window_in(extent, Span(since=at(2)), HOUR) == Window(at(2), at(5) + MICRO, HOUR)
    alone = Extent(at(1), at(1), crowded=False)
    second = timedelta(seconds=1)
    assert window_in(alone, Span(), None) == Window(at(1), at(1) + second, second)
    assert window_in(extent, Span(until=at(1)), None) is None
    assert window_in(None, Span(), None) is None


# --- series ---------------------------------------------------------------------------------------


def test_a_bucket_that_the_window_cuts_counts_for_what_is_in_it() -> None:
    cut = Window(at(0.5), at(2.1), timedelta(hours=1))
    points = {at(0): 1800.0, at(1): 3600.0, at(2): 360.0}
    assert series.rates(points, cut) == [1.0, 1.0, None]


def test_where_nothing_was_counted_there_is_silence_or_a_gap() -> None:
    three = window(3)
    assert series.rates({at(1): 3600.0}, three) == [0.0, 1.0, 0.0]
    assert series.rates({at(1): 3600.0}, three, silence=None) == [None, 1.0, None]
    assert series.drawn_values({at(1): 120.0}, three, 60.0) == [None, 2.0, None]


def test_what_was_handled_is_what_was_published_less_what_lag_grew_by() -> None:
    published = {at(1): 10.0, at(2): 10.0, at(3): 10.0}
    lag = {at(0): 0.0, at(1): 4.0, at(2): 0.0, at(3): 100.0, at(5): 0.0}
    assert series.handled_points(published, lag, window(6)) == {at(1): 6.0, at(2): 14.0, at(3): 0.0}


# --- scales ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("top", "ticks"),
    [
        (0, [0, 1]),
        (float("nan"), [0, 1]),
        (3, [0, 1, 2, 3]),
        (38, [0, 20, 40]),
        (75, [0, 25, 50, 75]),
        (1e9, [0, 5e8, 1e9]),
    ],
)
def test_marks_of_an_axis_are_round_numbers_up_to_the_top(top: float, ticks: list[float]) -> None:
    assert nice_ticks(top) == pytest.approx(ticks)


def test_what_is_counted_in_whole_numbers_has_no_others_at_its_axis() -> None:
    assert nice_ticks(1) == pytest.approx([0, 0.5, 1])
    assert nice_ticks(1, whole=True) == [0, 1]


@pytest.mark.parametrize("seconds", [1, 59, 3600, 86400, 86400 * 9, 86400 * 400, 86400 * 36500])
def test_marks_of_time_are_few_and_inside(seconds: float) -> None:
    given = window(seconds / 3600, bucket=timedelta(seconds=max(1, seconds // 96)))
    ticks = plots.time_ticks(given)
    assert 1 <= len(ticks) <= 21
    assert all(given.since <= tick <= given.until for tick in ticks)


def test_marks_of_time_say_the_day_at_midnight() -> None:
    ticks = plots.time_ticks(window(48))
    labels = [plots.tick_label(tick, ticks) for tick in ticks]
    assert labels == ["15 Jan", "12:00", "16 Jan", "12:00", "17 Jan"]


@pytest.mark.parametrize(
    "values", [[], [0.0], [1.0], [0.003, 9.0], [1e-9, 1e12], [60.0, 60.0], [0.0, 1e-6, 9.0]]
)
def test_a_ladder_has_room_for_every_value(values: list[float]) -> None:
    scale = plots.ladder_scale(values)
    assert 0 < scale.left <= scale.low < scale.high
    places = [float(scale.percent(value).rstrip("%")) for value in values]
    assert places == sorted(places)
    assert all(0 <= place <= 100 for place in places)


def test_the_place_of_zero_is_left_of_all_times() -> None:
    scale = plots.ladder_scale([0.0, 0.1, 5.0])
    assert list(scale.marks.values()) == ["0", "100 ms", "1 s", "10 s"]
    assert scale.percent(0.0) == "0.00%"
    assert float(scale.percent(0.1).rstrip("%")) > 20
    assert "0" not in plots.ladder_scale([0.1, 5.0]).marks.values()


# --- shapes ---------------------------------------------------------------------------------------


def drawn(values: list[float | None]) -> ET.Element:
    line = Line("lag", values, "one", filled=True)
    markup = plots.chart(
        window(len(values)), [line], title="Lag", say=wording.number, axis=wording.short
    )
    return ET.fromstring(markup)  # noqa: S314 - our own


def test_a_plot_stays_on_its_paper_and_says_what_it_shows() -> None:
    plot = drawn([0.0, 12_345.0, 7.0])
    assert plot.get("role") == "img"
    assert plot.findtext("title") == "Lag"
    width, height = (float(part) for part in str(plot.get("viewBox")).split()[2:])
    for path in plot.iter("path"):
        numbers = [float(part) for part in re.findall(r"[\d.]+", str(path.get("d")))]
        assert all(0 <= x <= width for x in numbers[::2])
        assert all(0 <= y <= height for y in numbers[1::2])
    told = [rect.findtext("title") for rect in plot.iter("rect")]
    assert told[1] == "15 Jan 2026 01:00 UTC\nlag: 12,345"


def test_a_line_has_gaps_where_nothing_is_known() -> None:
    plot = drawn([1.0, 2.0, None, 3.0, None, 4.0, 5.0])
    assert len([path for path in plot.iter("path") if path.get("class") == "line one"]) == 2
    assert len(list(plot.iter("circle"))) == 1


@pytest.mark.parametrize("values", [[None], [0.0], [0.0, 0.0], [None, None]])
def test_nothing_can_be_drawn(values: list[float | None]) -> None:
    assert "nan" not in ET.tostring(drawn(values), "unicode").lower()


def test_the_steps_of_a_ladder_rise() -> None:
    steps = [("p50", 0.5), ("p90", 2.0), ("max", 100.0)]
    markup = plots.ladder([Ladder(steps, "one")], Scale(0.1, 600.0), title="p50 0.5 s")
    circles = list(ET.fromstring(markup).iter("circle"))  # noqa: S314 - our own
    places = [float(str(circle.get("cx")).rstrip("%")) for circle in circles]
    assert 0 < places[0] < places[1] < 100


def test_the_parts_of_a_bar_stand_after_each_other() -> None:
    markup = plots.bar([(0.25, "a1"), (0.75, "a2"), (0.0, "a3")], title="shares")
    first, second, none = ET.fromstring(markup).iter("rect")  # noqa: S314 - our own
    assert (first.get("width"), second.get("x"), second.get("width")) == ("25.00%",) * 2 + (
        "75.00%",
    )
    assert none.get("width") == "0.00%"


# --- words ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0, "0 ms"),
        (0.000_42, "0.42 ms"),
        (0.0123, "12.3 ms"),
        (0.999, "999 ms"),
        (0.999_9, "1 s"),
        (12.34, "12.3 s"),
        (59.99, "1 min"),
        (125, "2 min 5 s"),
        (599.9, "10 min"),
        (7_199, "120 min"),
        (3 * 3_600, "3 h"),
        (86_400 * 3.5, "3.5 days"),
    ],
)
def test_durations_are_said_with_the_digits_that_matter(seconds: float, said: str) -> None:
    assert wording.lasting(seconds).replace(wording.UNIT, " ") == said


@pytest.mark.parametrize(
    ("part", "whole", "said"),
    [
        (0, 0, wording.NONE),
        (0, 10, "0 %"),
        (1, 1_000_000, "< 0.1 %"),
        (999_999, 1_000_000, "> 99.9 %"),
        (1, 100, "1.0 %"),
        (1, 3, "33 %"),
        (5, 5, "100 %"),
    ],
)
def test_a_little_is_not_none_and_nearly_all_is_not_all(part: int, whole: int, said: str) -> None:
    assert wording.share(part, whole).replace(wording.UNIT, " ") == said


@pytest.mark.parametrize(
    ("value", "said"),
    [(0, "0"), (999, "999"), (1_000, "1k"), (1_250, "1.25k"), (999_999, "1M"), (2.5e9, "2.5G")],
)
def test_numbers_beside_a_plot_are_short(value: float, said: str) -> None:
    assert wording.short(value) == said
