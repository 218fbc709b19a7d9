"""Buckets that fill with time."""

import pytest

from rowmq.web import limits
from rowmq.web.limits import Limiter


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def test_a_burst_and_then_so_many_a_second() -> None:
    clock = Clock()
    limiter = Limiter(2, 3, clock=clock)
    assert [limiter.take("a") for _ in range(4)] == [0, 0, 0, 0.5]
    assert limiter.take("b") == 0
    clock.now += 0.5
    assert [limiter.take("a"), limiter.take("a")] == [0, 0.5]
    clock.now += 3_600
    assert [limiter.take("a") for _ in range(4)] == [0, 0, 0, 0.5]


def test_callers_of_any_number_take_no_more_memory_than_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "CALLERS_MAX", 10)
    limiter = Limiter(1, 1, clock=Clock())
    for n in range(100):
        limiter.take(str(n))
    assert len(limiter._left) == 10
