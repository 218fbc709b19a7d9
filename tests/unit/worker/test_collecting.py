"""The garbage collector of a worker counts what is in flight as no garbage."""

import contextlib
import gc
from collections.abc import Iterator
from typing import Any

import pytest

from rowmq import App
from rowmq.worker.collecting import BUFFERS, OBJECTS_MAX, OBJECTS_PER_UNIT, collector_at_ease

DEFAULTS = (700, 10, 10)


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    """As Python has it at the start, and afterwards as it was."""
    before = gc.get_threshold()
    gc.set_threshold(*DEFAULTS)
    gc.unfreeze()
    yield
    gc.unfreeze()
    gc.set_threshold(*before)


def noop(message: bytes) -> None:
    pass


def handlers(*buffers: int) -> Any:
    """Handlers that fetch so many ahead."""
    app = App("sqlite:///not-there.db")
    for number, buffer in enumerate(buffers):
        app.subscriber(
            f"t{number}",
            group="g",
            name=f"h{number}",
            fetch_batch_size=buffer,
            overfetch_factor=1.0,
        )(noop)
    return app.handlers


def test_it_looks_the_less_often_the_more_is_in_flight() -> None:
    with collector_at_ease(handlers(1_000, 500)):
        first, *others = gc.get_threshold()
        assert first == DEFAULTS[0] + 1_500 * BUFFERS * OBJECTS_PER_UNIT
        assert tuple(others) == DEFAULTS[1:]
        assert gc.get_freeze_count() > 0
    assert gc.get_threshold() == DEFAULTS
    assert gc.get_freeze_count() == 0


def test_small_buffers_hardly_change_it() -> None:
    with collector_at_ease(handlers(10)):
        assert gc.get_threshold()[0] < 2 * DEFAULTS[0]


@pytest.mark.parametrize("buffers", [(60_000,), (1_000, 200_000_000)])
def test_there_is_an_end_to_how_late_it_looks(buffers: tuple[int, ...]) -> None:
    with collector_at_ease(handlers(*buffers)):
        assert gc.get_threshold()[0] == OBJECTS_MAX
    assert gc.get_threshold() == DEFAULTS


def test_who_has_it_look_later_still_is_left_alone() -> None:
    largest = 2**31 - 1  # which some set instead of turning it off
    gc.set_threshold(largest, 10, 10)
    with collector_at_ease(handlers(1_000)):
        assert gc.get_threshold()[0] == largest
    assert gc.get_threshold()[0] == largest


def test_workers_of_one_process_may_end_in_any_order() -> None:
    first, second = collector_at_ease(handlers(1_000)), collector_at_ease(handlers(10))
    with contextlib.ExitStack() as later:
        with first:
            later.enter_context(second)
        assert gc.get_threshold()[0] == DEFAULTS[0] + 10 * BUFFERS * OBJECTS_PER_UNIT
    assert gc.get_threshold() == DEFAULTS


@pytest.mark.parametrize("meanwhile", [0, 100])
def test_what_somebody_sets_meanwhile_stays(meanwhile: int) -> None:
    with collector_at_ease(handlers(1_000)):
        gc.set_threshold(meanwhile, 10, 10)
    assert gc.get_threshold()[0] == meanwhile


def test_what_somebody_has_turned_off_stays_off() -> None:
    gc.set_threshold(0, 10, 10)
    with collector_at_ease(handlers(1_000)):
        assert gc.get_threshold() == (0, 10, 10)
    assert gc.get_threshold() == (0, 10, 10)


def test_what_somebody_has_frozen_stays_frozen() -> None:
    gc.freeze()
    frozen = gc.get_freeze_count()
    with collector_at_ease(handlers(10)):
        assert gc.get_freeze_count() == frozen
    assert gc.get_freeze_count() == frozen


def test_it_is_as_before_after_an_error() -> None:
    with pytest.raises(KeyError), collector_at_ease(handlers(1_000)):
        raise KeyError
    assert gc.get_threshold() == DEFAULTS
    assert gc.get_freeze_count() == 0


def test_what_a_worker_makes_in_cycles_is_still_collected() -> None:
    class Knot:
        def __init__(self) -> None:
            self.itself = self

    with collector_at_ease(handlers(100)):
        first = gc.get_threshold()[0]
        for _ in range(first + 1):
            Knot()
        assert sum(isinstance(found, Knot) for found in gc.get_objects()) < first
