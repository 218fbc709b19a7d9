"""Runs of the simulator on SQLite: no rule is broken, and the same seed does the same each time.

Servers are simulated by `python -m tests.simulation --database postgres`, which takes longer.
"""

from tests.databases import Databases
from tests.simulation.scenario import Played, run_script, script_of
from tests.simulation.shorten import shorten
from tests.simulation.world import Script

SEEDS = range(5)


def play(databases: Databases, seed: int) -> Played:
    database = databases.get("sqlite")
    try:
        return run_script(database, script_of(seed))
    finally:
        databases.give_back(database)


def test_no_rule_is_broken(databases: Databases) -> None:
    for seed in SEEDS:
        violations, turns, _ = play(databases, seed)
        assert violations == [], f"python -m tests.simulation --database sqlite --only {seed}"
        assert any(turn.fault for turn in turns)


def test_a_seed_does_the_same_each_time(databases: Databases) -> None:
    assert play(databases, 7) == play(databases, 7)


def test_a_script_that_fails_is_shortened() -> None:
    """It fails if the faults at 30 and 70 come with a change of turn at 50."""
    script = Script(seed=1, faults=frozenset(range(0, 100, 10)))

    def fails(script: Script) -> bool:
        return {30, 70} <= script.faults and script.may_switch(50)

    shortened = shorten(script, fails, 100)
    assert shortened == Script(seed=1, faults=frozenset({30, 70}), switches=frozenset({50}))
