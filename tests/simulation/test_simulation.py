"""Runs of the simulator on every database: no rule is broken, all kinds of operations and faults
occur, and the same seed does the same each time. `make simulate` plays more.
"""

from collections import Counter

import pytest

from tests.databases import NAMES, Databases
from tests.simulation.history import (
    Claimed,
    Crashed,
    Delivered,
    JobSettled,
    Outcome,
    Pruned,
    Published,
    Put,
    Redriven,
    Settled,
    Sought,
    Tick,
)
from tests.simulation.looking import SCHEDULE
from tests.simulation.notes import seen
from tests.simulation.rules import check
from tests.simulation.scenario import PERIOD_US, Played, Run, run_script, script_of
from tests.simulation.shorten import shorten
from tests.simulation.world import COMMIT, Attempt, Fault, Script, waits_in_circle

SEEDS = {"sqlite": range(100, 112)}
SEEDS_OF_SERVERS = range(2)

FEW = range(20)
"""So many seeds on SQLite have all that can happen."""


def play(databases: Databases, name: str, seed: int) -> Played:
    database = databases.get(name)
    try:
        return run_script(database, script_of(seed))
    finally:
        databases.give_back(database)


@pytest.mark.parametrize("name", NAMES)
def test_no_rule_is_broken(databases: Databases, name: str) -> None:
    for seed in SEEDS.get(name, SEEDS_OF_SERVERS):
        played = play(databases, name, seed)
        assert played.violations == [], (
            f"python -m tests.simulation --database {name} --only {seed}"
        )
        assert any(turn.fault for turn in played.turns)


@pytest.mark.parametrize("name", NAMES)
def test_a_seed_does_the_same_each_time(databases: Databases, name: str) -> None:
    assert play(databases, name, 0) == play(databases, name, 0)


def test_all_that_can_happen_does(databases: Databases) -> None:
    """Every kind of operation with every outcome, and every fault at a COMMIT."""
    happened: Counter[object] = Counter()
    faults: Counter[Fault | None] = Counter()
    for seed in FEW:
        database = databases.get("sqlite")
        run = Run(database, script_of(seed))
        history = run.play()
        databases.give_back(database)
        assert check(history) == []
        for event in history.events:
            kind = getattr(event, "kind", None)
            happened[type(event), kind, getattr(event, "outcome", None)] += 1
        happened["offers"] += sum(put.key is not None for put in history.of(Put))
        happened["offers ignored"] += sum(put.ignored for put in history.of(Put))
        happened["lines"] += sum(put.line is not None for put in history.of(Put))
        happened["duplicates"] += sum(event.duplicate for event in history.of(Published))
        happened["no key"] += sum(m.partition.key is None for m in history.final.messages)
        happened["collected"] += sum(first > 1 for first in history.final.begins.values())
        happened["letters"] += len(history.final.letters)
        happened["limits"] += len(history.limits)
        happened["ticks"] += len(history.final.ticks)
        # What is told to have gone wrong did so, and nothing else.
        told = Counter(turn.fault for turn in run.world.trace if turn.fault is not None)
        assert told == run.world.befallen
        faults.update(turn.fault for turn in run.world.trace if turn.point == "commit")
    expected: set[object] = {kind for kind in happened if isinstance(kind, str)}
    expected |= {(kind, None, None) for kind in (Crashed, Delivered, Claimed)}
    expected |= {(kind, None, Outcome.OK) for kind in (Pruned, Redriven, Sought)}
    expected |= {(kind, None, Outcome.OK) for kind in (Published, Put)}
    expected |= {(Put, None, Outcome.UNKNOWN)}
    for settle in ("ack", "nack", "release", "reject"):
        expected |= {(kind, settle, Outcome.OK) for kind in (Settled, JobSettled)}
    expected |= {(kind, "ack", Outcome.REFUSED) for kind in (Settled, JobSettled)}
    assert expected - {what for what, times in happened.items() if times} == set()
    assert set(Fault) - faults.keys() == set()


@pytest.mark.parametrize(
    ("whole", "attempts", "expected"),
    [
        (True, [], Outcome.FAILED),
        (True, [(COMMIT, False)], Outcome.FAILED),
        (True, [(COMMIT, None)], Outcome.UNKNOWN),
        (True, [(COMMIT, True)], Outcome.OK),
        (True, [("a read beside", True)], Outcome.FAILED),
        (False, [], Outcome.FAILED),
        (False, [("a statement", False)], Outcome.FAILED),
        (False, [("a statement", True)], Outcome.UNKNOWN),
        (False, [("a read", True), (COMMIT, None)], Outcome.UNKNOWN),
    ],
)
def test_of_what_was_not_answered_it_is_told_what_was_seen(
    whole: bool, attempts: list[tuple[str, bool | None]], expected: Outcome
) -> None:
    made = []
    for point, done in attempts:
        made.append(Attempt(point, list))
        made[-1].done = done
    assert seen(made, whole=whole) is expected


def test_a_tick_that_was_due_has_to_be_there(databases: Databases) -> None:
    """All after it was installed, also if there is none at all; not those that may come later."""
    run = Run(databases.get("sqlite"), Script(seed=0))
    run._installed, run._tended = 3 * PERIOD_US + 1, 5 * PERIOD_US
    run.world.highest = 6 * PERIOD_US
    expected = [(SCHEDULE, 4 * PERIOD_US), (SCHEDULE, 5 * PERIOD_US)]
    assert run._due(()) == tuple(expected)
    made = tuple(Tick(SCHEDULE, number * PERIOD_US, 1) for number in (5, 6, 7))
    assert run._due(made) == (*expected, (SCHEDULE, 6 * PERIOD_US))


def test_a_script_that_fails_is_shortened() -> None:
    """It fails if the faults at 30 and 70 come with a change of turn at 50."""
    script = Script(seed=1, faults=frozenset(range(0, 100, 10)))

    def fails(script: Script) -> bool:
        return {30, 70} <= script.faults and script.may_switch(50)

    shortened = shorten(script, fails, 100)
    assert shortened == Script(seed=1, faults=frozenset({30, 70}), switches=frozenset({50}))


@pytest.mark.parametrize(
    ("waiting", "expected"),
    [
        ({}, False),
        ({1: {2}}, False),
        ({1: {2}, 2: {3}}, False),
        ({1: {2}, 2: {1}}, True),
        ({1: {2}, 2: {3}, 3: {1}}, True),
        ({1: {2}, 2: {3}, 3: {2}}, False),
    ],
)
def test_who_waits_for_whom_may_be_a_circle(waiting: dict[int, set[int]], expected: bool) -> None:
    assert waits_in_circle(1, waiting) is expected
