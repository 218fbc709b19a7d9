"""Rows that were fetched, dealt out to the spans they were fetched for."""

import random

from hypothesis import given
from hypothesis import strategies as st

from rowmq.store.topics import Span
from rowmq.subscriber.polling import by_span

SPANS = [Span("a", 1, 4, 6), Span("b", 2, 1, 2), Span("a", 1, 9, 9)]
ROWS = [(1, 4), (1, 5), (1, 6), (2, 1), (2, 2), (1, 9)]


def test_rows_that_come_in_order_are_counted_off() -> None:
    assert [found for _, found in by_span(SPANS, ROWS)] == [ROWS[:3], ROWS[3:5], ROWS[5:]]


def test_rows_of_another_partition_do_not_pass_for_those_of_a_span() -> None:
    spans = [Span("a", 1, 1, 2), Span("b", 2, 1, 2)]
    rows = [(1, 1), (2, 2), (2, 1), (1, 2)]
    assert [found for _, found in by_span(spans, rows)] == [[(1, 1), (1, 2)], [(2, 1), (2, 2)]]


@given(st.sets(st.sampled_from(ROWS)), st.randoms())
def test_rows_in_any_order_with_any_missing_find_their_spans(
    there: set[tuple[int, int]], order: random.Random
) -> None:
    rows = sorted(there)
    order.shuffle(rows)
    dealt = list(by_span(SPANS, rows))
    assert [span for span, _ in dealt] == SPANS
    expected = [[row for row in part if row in there] for part in (ROWS[:3], ROWS[3:5], ROWS[5:])]
    assert [list(found) for _, found in dealt] == expected
