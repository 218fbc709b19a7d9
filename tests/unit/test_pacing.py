"""How long those wait who found nothing."""

import pytest

from rowmq import pacing
from rowmq.pacing import Pace


class Clock:
    """A clock that looks set forward."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(pacing, "time", clock)
    return clock


def pauses(pace: Pace, clock: Clock, *looks: float, watched: bool = False) -> list[float]:
    """The pauses after looks that took so long and found nothing."""
    found = []
    for took in looks:
        pace.begin()
        clock.now += took
        found.append(pace.pause(0.1, watched=watched))
    return found


def test_pauses_grow_to_the_longest(clock: Clock) -> None:
    found = pauses(Pace(), clock, *[0.0] * 40)
    assert 0.005 <= found[0] <= 0.008
    assert found[0] < found[3] < found[6]
    assert all(0.075 <= pause <= 0.1 for pause in found[10:])
    assert 0.75 <= pauses(Pace(), clock, *[0.0] * 40, watched=True)[-1] <= 1.0


def test_who_found_something_begins_anew(clock: Clock) -> None:
    pace = Pace()
    pauses(pace, clock, *[0.0] * 40)
    pace.found()
    assert pauses(pace, clock, 0.0)[0] <= 0.008


def test_slow_looks_are_made_less_often(clock: Clock) -> None:
    assert 0.3 <= pauses(Pace(), clock, 0.04, 0.04)[-1] <= 0.4
    assert 0.75 <= pauses(Pace(), clock, 60.0, 60.0)[-1] <= 1.0


def test_one_slow_look_says_nothing(clock: Clock) -> None:
    pace = Pace()
    assert pauses(pace, clock, 5.0)[0] <= 0.008
    assert pauses(pace, clock, 0.0)[0] <= 0.0128
    pauses(pace, clock, 5.0, 5.0)
    pace.found()
    assert pauses(pace, clock, 5.0)[0] <= 0.008
