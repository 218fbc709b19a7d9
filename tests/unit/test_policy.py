"""Delays are what they seem and end when they should; shares are fair, whoever computes them."""

import math
import random
import sys
from collections.abc import Callable
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rowmq
from rowmq.errors import InvalidOption
from rowmq.policy import (
    Constant,
    ExponentialBackoff,
    Limits,
    Linear,
    NoRetry,
    RetryStrategy,
    fair_share,
    share_out,
    slice_for,
    to_shed,
)

HUGE = 2**31


def delays(strategy: RetryStrategy, attempts: int = 8) -> list[float | None]:
    return [strategy.delay(attempt) for attempt in range(1, attempts + 1)]


def zero() -> float:
    return 0.0


# --- retries ------------------------------------------------------------------------------------


def test_no_retry_gives_up_at_once() -> None:
    assert delays(NoRetry(), 2) == [None, None]
    assert NoRetry().max_attempts == 1


def test_a_constant_delay() -> None:
    assert delays(Constant(5), 3) == [5, 5, 5]
    assert delays(Constant(timedelta(minutes=1)), 2) == [60, 60]
    assert delays(Constant(0), 2) == [0, 0]


def test_a_linear_delay() -> None:
    assert delays(Linear(1, 2, 6), 5) == [1, 3, 5, 6, 6]
    assert delays(Linear(), 3) == [1, 2, 3]
    assert delays(Linear(initial=timedelta(seconds=2), step=0), 3) == [2, 2, 2]


def test_an_exponential_delay() -> None:
    assert delays(ExponentialBackoff(), 7) == [1, 2, 4, 8, 16, 30, 30]
    assert delays(ExponentialBackoff(initial=1, multiplier=3, max_delay=60), 5) == [1, 3, 9, 27, 60]
    assert delays(ExponentialBackoff(multiplier=1), 3) == [1, 1, 1]
    assert delays(ExponentialBackoff(initial=0), 3) == [0, 0, 0]


@pytest.mark.parametrize("strategy", [Linear(60, max_delay=5), ExponentialBackoff(60, max_delay=5)])
def test_no_delay_is_longer_than_the_longest(strategy: RetryStrategy) -> None:
    assert delays(strategy, 3) == [5, 5, 5]


def test_attempts_are_counted_with_the_first() -> None:
    strategy = Constant(1, max_attempts=3)
    assert strategy.max_attempts == 3
    assert delays(strategy, 4) == [1, 1, None, None]
    assert delays(Constant(1, max_attempts=1), 1) == [None]


@pytest.mark.parametrize(
    ("strategy", "given"),
    [
        (Constant(0.1, max_total_delay=0.3), 3),
        (Constant(2, max_total_delay=timedelta(seconds=7)), 3),
        (Constant(1, max_total_delay=0), 0),
        (Constant(0, max_total_delay=0), 8),
        (Linear(1, 1, 3, max_total_delay=9), 4),
        (Linear(1, 1, 3, max_total_delay=8.9), 3),
        (Linear(2, 0, max_total_delay=6), 3),
        (ExponentialBackoff(max_total_delay=7), 3),
        (ExponentialBackoff(max_total_delay=6.9), 2),
        (ExponentialBackoff(max_total_delay=91), 7),
        (ExponentialBackoff(max_total_delay=90.9), 6),
        (ExponentialBackoff(1, 1, max_total_delay=2), 2),
    ],
)
def test_the_delays_together_are_no_longer_than_the_limit(
    strategy: RetryStrategy, given: int
) -> None:
    assert [delay is not None for delay in delays(strategy)] == [True] * given + [False] * (
        8 - given
    )


def test_jitter_shortens_a_delay_and_does_not_count_in_the_total() -> None:
    strategy = Constant(10, jitter=0.25, max_total_delay=20)
    assert strategy.delay(1, random=zero) == 10
    assert strategy.delay(1, random=lambda: 1.0) == 7.5
    assert strategy.delay(2, random=lambda: 1.0) == 7.5
    assert strategy.delay(3, random=lambda: 1.0) is None
    drawn = {ExponentialBackoff(jitter=1.0).delay(3) for _ in range(20)}
    assert len(drawn) > 1
    assert all(delay is not None and 0 <= delay <= 4 for delay in drawn)


durations = st.one_of(
    st.just(0), st.floats(1e-6, 1e9), st.timedeltas(timedelta(0), timedelta(days=1000))
)
multipliers = st.one_of(st.just(1), st.floats(1.0, 1.0001), st.floats(1.0, 100.0))
waiting = st.one_of(
    st.builds(Constant, durations),
    st.builds(Linear, durations, durations, durations),
    st.builds(ExponentialBackoff, durations, multipliers, durations),
)


@given(waiting, st.integers(1, 200))
def test_the_total_is_the_sum_of_the_delays(strategy: Limits, attempts: int) -> None:
    total = math.fsum(strategy.delay(n) or 0.0 for n in range(1, attempts + 1))
    assert strategy._total(attempts) == pytest.approx(total, rel=1e-9)


@given(waiting, st.integers(1, HUGE - 1))
def test_delays_never_shrink_and_no_attempt_is_too_many(strategy: Limits, attempt: int) -> None:
    first, second = strategy.delay(attempt), strategy.delay(attempt + 1)
    assert first is not None
    assert second is not None
    assert 0 <= first <= second < math.inf
    assert strategy._total(attempt) <= strategy._total(attempt + 1) * (1 + 1e-9) < math.inf


@given(waiting, st.floats(0, 1), st.floats(0, 1), st.integers(1, 1000))
def test_jitter_stays_in_its_range(
    strategy: Limits, jitter: float, draw: float, attempt: int
) -> None:
    fields = {name: getattr(strategy, name) for name in strategy.__struct_fields__}
    jittered = type(strategy)(**(fields | {"jitter": jitter}))
    full, delay = strategy.delay(attempt), jittered.delay(attempt, random=lambda: draw)
    assert full is not None
    assert delay is not None
    assert full * (1 - jitter) <= delay <= full


@pytest.mark.parametrize("attempt", [HUGE, sys.maxsize])
@pytest.mark.parametrize(
    ("strategy", "delay"),
    [
        (Constant(1, max_total_delay=1e9), None),
        (Linear(1, 1e-6, 1e3, max_total_delay=1e9), None),
        (Linear(1, 1, 1e9), 1e9),
        (Linear(0, 0, max_total_delay=0), 0),
        (ExponentialBackoff(1, 2, max_total_delay=1e9), None),
        (ExponentialBackoff(1, 2, max_total_delay=None), 30),
        (ExponentialBackoff(1e-6, 1e6, 3e9), 3e9),
        (ExponentialBackoff(1e-6, 1 + 1e-8, 10, max_total_delay=1e9), None),
        (ExponentialBackoff(0, 1e6, max_total_delay=0), 0),
    ],
)
def test_the_last_attempt_there_can_be_is_answered(
    strategy: RetryStrategy, delay: float | None, attempt: int
) -> None:
    assert strategy.delay(attempt) == delay


@pytest.mark.parametrize("attempt", [0, -1])
@pytest.mark.parametrize("strategy", [NoRetry(), Constant(1), Linear(), ExponentialBackoff()])
def test_attempts_are_counted_from_one(strategy: RetryStrategy, attempt: int) -> None:
    with pytest.raises(ValueError, match="counted from 1"):
        strategy.delay(attempt)


@pytest.mark.parametrize(
    ("make", "options", "name"),
    [
        (Constant, {"interval": -1}, "interval"),
        (Constant, {"interval": "5"}, "interval"),
        (Constant, {"interval": None}, "interval"),
        (Linear, {"initial": -1}, "initial"),
        (Linear, {"step": -1}, "step"),
        (Linear, {"max_delay": math.inf}, "max_delay"),
        (ExponentialBackoff, {"initial": math.nan}, "initial"),
        (ExponentialBackoff, {"multiplier": 0.5}, "multiplier"),
        (ExponentialBackoff, {"multiplier": math.nan}, "multiplier"),
        (ExponentialBackoff, {"multiplier": math.inf}, "multiplier"),
        (ExponentialBackoff, {"multiplier": "2"}, "multiplier"),
        (ExponentialBackoff, {"multiplier": True}, "multiplier"),
        (ExponentialBackoff, {"max_delay": timedelta(-1)}, "max_delay"),
        (ExponentialBackoff, {"jitter": 1.1}, "jitter"),
        (ExponentialBackoff, {"jitter": -0.1}, "jitter"),
        (Linear, {"jitter": None}, "jitter"),
        (Linear, {"max_attempts": 0}, "max_attempts"),
        (Linear, {"max_attempts": 2.0}, "max_attempts"),
        (Linear, {"max_attempts": True}, "max_attempts"),
        (Linear, {"max_total_delay": -1}, "max_total_delay"),
    ],
)
def test_an_option_out_of_its_range_is_refused_by_its_name(
    make: Callable[..., Any], options: dict[str, Any], name: str
) -> None:
    with pytest.raises(InvalidOption, match=f"^{name} must be"):
        make(**options)


def test_strategies_are_values() -> None:
    assert ExponentialBackoff(1, 2) == ExponentialBackoff(initial=1.0)
    assert len({Constant(1), Constant(1), Linear(), NoRetry(), NoRetry()}) == 3
    with pytest.raises(AttributeError):
        Constant(1).interval = 2  # type: ignore[misc]


@pytest.mark.parametrize("strategy", [NoRetry(), Constant(1), Linear(), ExponentialBackoff()])
def test_every_strategy_is_known_as_one(strategy: object) -> None:
    assert isinstance(strategy, RetryStrategy)
    assert isinstance(strategy, getattr(rowmq, type(strategy).__name__))


def test_what_has_no_delay_is_no_strategy() -> None:
    assert not isinstance(5, RetryStrategy)
    assert rowmq.RetryStrategy is RetryStrategy


# --- partitions among subscribers -----------------------------------------------------------------


def test_known_shares() -> None:
    assert [fair_share(10, 3, rank) for rank in range(3)] == [4, 3, 3]
    assert [fair_share(2, 4, rank) for rank in range(4)] == [1, 1, 0, 0]
    assert fair_share(0, 1, 0) == 0


@given(st.integers(0, 10_000), st.integers(1, 500))
def test_shares_add_up_and_differ_by_one_at_most(partitions: int, subscribers: int) -> None:
    shares = [fair_share(partitions, subscribers, rank) for rank in range(subscribers)]
    assert sum(shares) == partitions
    assert shares == sorted(shares, reverse=True)
    assert shares[0] - shares[-1] <= 1


@pytest.mark.parametrize("numbers", [(-1, 1, 0), (1, 0, 0), (1, -1, 0), (1, 2, 2), (1, 2, -1)])
def test_impossible_shares_are_refused(numbers: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match=r"cannot be|is not one of"):
        fair_share(*numbers)


def test_idle_partitions_are_shed_before_busy_ones_and_high_ids_before_low() -> None:
    owned = [(1, False), (2, True), (3, False), (4, True), (5, False)]
    assert to_shed(owned, 5) == []
    assert to_shed(owned, 9) == []
    assert to_shed(owned, 3) == [5, 3]
    assert to_shed(owned, 1) == [5, 3, 1, 4]
    assert to_shed(owned, 0) == [5, 3, 1, 4, 2]
    with pytest.raises(ValueError, match="a share cannot be -1"):
        to_shed(owned, -1)


@given(st.dictionaries(st.integers(), st.booleans()), st.integers(0, 20), st.randoms())
def test_shedding_leaves_the_share_and_depends_on_no_order(
    owned: dict[int, bool], share: int, order: random.Random
) -> None:
    shuffled = list(owned.items())
    order.shuffle(shuffled)
    shed = to_shed(owned.items(), share)
    assert shed == to_shed(shuffled, share)
    assert len(owned) - len(shed) == min(share, len(owned))
    kept = owned.keys() - set(shed)
    if any(owned[id] for id in shed):
        assert all(owned[id] for id in kept)


def test_slices_begin_apart_and_go_round() -> None:
    candidates = [10, 20, 30, 40, 50]
    assert [slice_for(candidates, rank, 3, 2) for rank in range(3)] == [
        [10, 20],
        [20, 30],
        [40, 50],
    ]
    assert slice_for(candidates, 2, 3, 4) == [40, 50, 10, 20]
    assert slice_for(candidates, 1, 2, 99) == [30, 40, 50, 10, 20]
    assert slice_for(candidates, 0, 1, 0) == []
    assert slice_for([], 1, 2, 3) == []
    with pytest.raises(ValueError, match="is not one of"):
        slice_for(candidates, 3, 3, 1)
    with pytest.raises(ValueError, match="cannot be wanted"):
        slice_for(candidates, 0, 3, -1)


@given(st.lists(st.integers(), unique=True), st.integers(1, 20), st.integers(0, 20))
def test_those_who_want_their_even_part_take_everything_and_nothing_twice(
    candidates: list[int], subscribers: int, want: int
) -> None:
    slices = [slice_for(candidates, rank, subscribers, want) for rank in range(subscribers)]
    for chosen in slices:
        assert len(chosen) == min(want, len(candidates))
        assert len(set(chosen)) == len(chosen)
    taken = [id for chosen in slices for id in chosen]
    if want * subscribers <= len(candidates):
        assert len(set(taken)) == len(taken)
    if want * subscribers >= len(candidates) + subscribers:
        assert set(taken) == set(candidates)


# --- messages among partitions --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wants", "limit", "first", "parts"),
    [
        ({}, 10, 0, {}),
        ({1: 5, 2: 5}, 0, 0, {}),
        ({1: 5, 2: 0, 3: 5}, 100, 0, {1: 5, 3: 5}),
        ({1: 100, 2: 100}, 10, 0, {1: 5, 2: 5}),
        ({1: 100, 2: 2, 3: 100}, 10, 0, {1: 4, 2: 2, 3: 4}),
        ({1: 100, 2: 100, 3: 100}, 10, 0, {1: 4, 2: 3, 3: 3}),
        ({1: 100, 2: 100, 3: 100}, 10, 1, {1: 3, 2: 4, 3: 3}),
        ({1: 100, 2: 1, 3: 100, 4: 100}, 6, 0, {1: 2, 2: 1, 3: 2, 4: 1}),
        ({1: 9, 2: 9, 3: 9, 4: 9}, 2, 0, {1: 1, 2: 1}),
        ({1: 9, 2: 9, 3: 9, 4: 9}, 2, 2, {3: 1, 4: 1}),
        ({1: 9, 2: 9, 3: 9, 4: 9}, 3, 3, {4: 1, 1: 1, 2: 1}),
        ({1: 9, 2: 9, 3: 9, 4: 9}, 1, 99, {1: 1}),
        ({7: 10**12}, 10**15, 7, {7: 10**12}),
    ],
)
def test_known_divisions(
    wants: dict[int, int], limit: int, first: int, parts: dict[int, int]
) -> None:
    assert share_out(wants, limit, first) == parts


def test_less_than_nothing_cannot_be_shared_out() -> None:
    with pytest.raises(ValueError, match="-1 messages"):
        share_out({1: 1}, -1, 0)


wants_of_partitions = st.dictionaries(st.integers(0, 50), st.integers(0, 30), max_size=30)


@given(wants_of_partitions, st.integers(0, 400), st.integers(-1, 51))
def test_a_division_is_complete_and_fair(wants: dict[int, int], limit: int, first: int) -> None:
    parts = share_out(wants, limit, first)
    assert sum(parts.values()) == min(limit, sum(wants.values()))
    assert all(0 < part <= wants[id] for id, part in parts.items())
    most = max(parts.values(), default=0)
    for id, want in wants.items():
        if parts.get(id, 0) < want:
            assert most <= parts.get(id, 0) + 1


@given(wants_of_partitions, st.integers(0, 400), st.integers(-1, 51), st.randoms())
def test_a_division_depends_on_no_order(
    wants: dict[int, int], limit: int, first: int, order: random.Random
) -> None:
    shuffled = list(wants.items())
    order.shuffle(shuffled)
    assert list(share_out(dict(shuffled), limit, first).items()) == list(
        share_out(wants, limit, first).items()
    )


@given(st.sets(st.integers(0, 50), min_size=1), st.integers(1, 120), st.integers(-1, 51))
def test_going_round_serves_everybody_in_turn(ids: set[int], limit: int, first: int) -> None:
    """With the last one served as the next to begin after, nobody gets ahead by more than one."""
    wants = dict.fromkeys(ids, 1000)
    served = dict.fromkeys(ids, 0)
    for _ in range(2 * len(ids)):
        parts = share_out(wants, limit, first)
        for id, part in parts.items():
            served[id] += part
        assert max(served.values()) - min(served.values()) <= 1
        first = list(parts)[-1]


@given(st.sets(st.integers(0, 50), min_size=2), st.integers(-1, 51))
def test_the_first_served_come_after_the_given_one_in_rising_order(
    ids: set[int], first: int
) -> None:
    parts = list(share_out(dict.fromkeys(ids, 3), len(ids) - 1, first))
    assert parts[0] == min((id for id in ids if id > first), default=min(ids))
    assert sum(after < before for before, after in pairwise(parts)) <= 1


def test_ten_thousand_partitions_are_divided_exactly() -> None:
    wants = {id: id % 97 for id in range(10_000)}
    parts = share_out(wants, 123_456, 5_000)
    assert sum(parts.values()) == 123_456
