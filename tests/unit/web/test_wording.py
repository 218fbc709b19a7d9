"""Numbers, times and names as words."""

from datetime import UTC, datetime, timedelta

import pytest

from rowmq.web import wording

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0, "0"),
        (0.25, "0.2"),
        (7.0, "7"),
        (999, "999"),
        (999.6, "1k"),
        (1_250, "1.2k"),
        (12_499, "12k"),
        (999_600, "1M"),
        (34_000_000, "34M"),
        (5e12, "5000G"),
    ],
)
def test_numbers_are_short(value: float, words: str) -> None:
    assert wording.short(value) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.0004, "0 ms"),
        (0.25, "250 ms"),
        (1.5, "1.5 s"),
        (59.4, "59 s"),
        (90, "1 min 30 s"),
        (900, "15 min"),
        (3_900, "1 h 5 min"),
        (90_000, "1 d 1 h"),
        (1_728_000, "20 d"),
    ],
)
def test_durations_have_the_units_that_matter(seconds: float, words: str) -> None:
    assert wording.duration(seconds) == words
    assert wording.duration(timedelta(seconds=seconds)) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.5, "now"), (59, "59 s ago"), (7_300, "2 h ago"), (200_000, "2 d ago"), (-90, "in 1 min")],
)
def test_how_long_ago(seconds: float, words: str) -> None:
    assert wording.ago(NOW - timedelta(seconds=seconds), NOW) == words


def test_sizes() -> None:
    assert [wording.size(n) for n in (0, 999, 1_500, 2_000_000)] == [
        "0 B",
        "999 B",
        "1.5 kB",
        "2.0 MB",
    ]


def test_names_that_differ_look_different() -> None:
    names = [
        "a",
        "a ",
        " a",
        "a\u200b",
        "a\u202eb",
        "a\x00",
        "a\n",
        "a  b",
        "a b",
        "a\u00a0b",
        "\uff41",
    ]
    assert len({str(wording.shown(name)) for name in names}) == len(names)


def test_what_moves_text_or_is_markup_does_neither() -> None:
    shown = wording.shown("<b>\u202e\u0007'\"&")
    assert "<b>" not in shown
    assert "\u202e" not in shown
    assert "\u0007" not in shown
    assert "&lt;b&gt;" in shown


def test_symbols_that_are_joined_stay_one() -> None:
    family = "👩\u200d👩\u200d👧"
    assert wording.shown(family) == family
    assert "\u200d" not in wording.shown("a\u200db")


def test_a_name_is_cut_where_it_is_too_long() -> None:
    assert wording.shown("abcdef", 4) == "abc…"
    assert wording.shown("abcd", 4) == "abcd"
