"""Charts: what is drawn, and what is said of it."""

import re
from datetime import UTC, datetime

from rowmq.web.charts import Bar, Line, bar, columns, lines, time_ticks
from rowmq.web.sampling import Counted, Sample
from rowmq.web.trends import Grid

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def sample(at: float, came: int) -> Sample:
    counted = Counted(came=came, waiting=came)
    return Sample(at, counted, counted, {"orders": counted}, {}, {})


def grid(*samples: Sample) -> Grid:
    return Grid(samples, every=2.0, now=NOW)


def test_a_line_with_a_gap_is_in_two_pieces() -> None:
    drawn = lines([Line("in", [1, 2, None, 4, 5])])
    (path,) = re.findall(r'class="line one" d="([^"]*)"', drawn)
    assert path.count("M") == 2
    assert 'aria-label="in: 5 now, at most 5"' in drawn


def test_a_chart_says_each_point() -> None:
    drawn = lines([Line("in", [1, None]), Line("out", [None, 3])], moments=["11:59:58", "12:00:00"])
    assert 'data-values="11:59:58: in 1;12:00:00: out 3"' in drawn


def test_a_chart_of_nothing_says_so() -> None:
    assert "nothing measured yet" in lines([Line("in", [])])
    assert "nothing measured yet" in lines([Line("in", [None, None])])


def test_time_has_ticks_of_its_own() -> None:
    assert time_ticks(0) == [0, 0.25]
    assert time_ticks(50) == [0, 15, 30, 45, 60]
    assert time_ticks(5_000) == [0, 1800, 3600, 5400]


def test_labels_are_text() -> None:
    drawn = columns([Bar('<b>"', 3), Bar("b", 0)], label='a"<b>')
    assert "<b>" not in drawn
    assert "<title>&lt;b&gt;" in drawn
    assert "style=" not in drawn + bar(3, 10)


def test_counts_become_rates() -> None:
    found = grid(*(sample(2.0 * n, 100 * n) for n in range(31))).rates(lambda one: one.topics.came)
    assert [value for value in found if value is not None]
    assert set(found) <= {None, 50.0}


def test_looks_in_quick_succession_make_no_peak() -> None:
    found = grid(sample(0, 0), sample(2.0, 100), sample(2.01, 101)).rates(
        lambda one: one.topics.came
    )
    assert max(value for value in found if value is not None) < 60


def test_where_nobody_looked_there_is_a_gap() -> None:
    seen = [*(sample(2.0 * n, n) for n in range(5)), *(sample(200 + 2.0 * n, n) for n in range(5))]
    for values in (
        grid(*seen).levels(lambda one: one.topics.waiting),
        grid(*seen).rates(lambda one: one.topics.came),
    ):
        known = [value is not None for value in values]
        assert known[-1]
        assert not all(known)
        assert known.count(False) > len(known) / 2


def test_a_count_that_began_anew_is_no_rate() -> None:
    found = grid(sample(0, 1_000), sample(2, 0), sample(4, 10)).rates(lambda one: one.topics.came)
    assert [value for value in found if value is not None] == [5.0]
