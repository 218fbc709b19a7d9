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
    Published,
    Put,
    Settled,
)
from tests.simulation.rules import check
from tests.simulation.scenario import Played, Run, run_script, script_of
from tests.simulation.shorten import shorten
from tests.simulation.world import Fault, Script, waits_in_circle

SEEDS = {"sqlite": range(20)}
SEEDS_OF_SERVERS = range(2)

FEW = range(25)
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
        happened["ticks"] += len(history.final.ticks)
        faults.update(turn.fault for turn in run.world.trace if turn.point == "commit")
    expected: set[object] = {"offers", "ticks"}
    expected |= {(kind, None, None) for kind in (Crashed, Delivered, Claimed)}
    for outcome in (Outcome.OK, Outcome.UNKNOWN):
        expected |= {(Published, None, outcome), (Put, None, outcome)}
    for settle in ("ack", "nack", "release", "reject"):
        expected |= {(kind, settle, Outcome.OK) for kind in (Settled, JobSettled)}
    expected |= {(kind, "ack", Outcome.REFUSED) for kind in (Settled, JobSettled)}
    assert expected - happened.keys() == set()
    assert set(Fault) - faults.keys() == set()


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
