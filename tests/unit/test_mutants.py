"""Each guard that `make mutants` turns off is there, and so are the tests that must notice."""

import ast
from functools import cache
from pathlib import Path

import pytest

from tests.mutants.guards import MUTANTS
from tests.mutants.mutant import SOURCE, Edit, Misfit, Mutant, apply, place_of_test
from tests.mutants.running import Verdict, first_failure, is_of_the_guard, verdict_of


@cache
def functions(file: Path) -> set[str]:
    tree = ast.parse(file.read_text())
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in tree.body if isinstance(node, kinds)}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.guard)
def test_a_mutant_can_be_made_and_its_tests_are_there(mutant: Mutant) -> None:
    changed = apply(mutant.edits)
    assert changed
    for path, text in changed.items():
        assert text != (SOURCE / path).read_text()
        if path.suffix == ".py":
            ast.parse(text)
    assert mutant.killers
    for name in (mutant.area.ordinary, *mutant.killers):
        file, function = place_of_test(name)
        assert function in functions(file)


def test_a_guard_is_turned_off_once_on_each_database() -> None:
    pairs = [(mutant.guard, database) for mutant in MUTANTS for database in mutant.databases]
    assert len(pairs) == len(set(pairs))


@pytest.mark.parametrize("text", ["nowhere to be found", "yield"])
def test_a_text_that_is_not_there_once_is_an_error(text: str) -> None:
    with pytest.raises(Misfit, match="and not once"):
        apply([Edit("store/topics.py", text, "")])


def test_edits_of_one_file_are_made_one_after_the_other() -> None:
    first = Edit("store/ticks.py", "FORGET_BATCH = 1_000", "FORGET_BATCH = 2_000")
    second = Edit("store/ticks.py", "FORGET_BATCH = 2_000", "FORGET_BATCH = 3_000")
    ((_, text),) = apply([first, second]).items()
    assert "FORGET_BATCH = 3_000" in text


SAID = """\
=== short test summary info ===
FAILED tests/conformance/test_x.py::test_y[a key-sqlite] - {}
1 failed, 3 passed in 0.42s
"""

OF_THE_GUARD = [
    "assert [1, 2] == [1]",
    "AssertionError: two own one partition",
    "Failed: DID NOT RAISE <class 'rowmq.errors.StaleLease'>",
    "rowmq.errors.DatabaseError: UNIQUE constraint failed: rowmq_messages.message_offset",
    "AttributeError: 'NoneType' object has no attribute 'ack'",
]

OF_ANOTHER_REASON = [
    "NameError: name 'first' is not defined",
    "ModuleNotFoundError: No module named 'rowmq.store.claimz'",
    "rowmq.errors.DatabaseError: no such column: o.epoch",
    'rowmq.errors.DatabaseError: syntax error at or near "AND"',
    "rowmq.errors.DatabaseError: (1064, 'You have an error in your SQL syntax; check')",
    "rowmq.errors.DatabaseError: could not determine data type of parameter $2",
]


@pytest.mark.parametrize("reason", [*OF_THE_GUARD, *OF_ANOTHER_REASON])
def test_what_does_not_run_kills_nobody(reason: str) -> None:
    failed = first_failure(SAID.format(reason))
    assert failed == ("test_y[a key-sqlite]", reason)
    assert is_of_the_guard(reason) is (reason in OF_THE_GUARD)
    killed = Verdict.KILLED if reason in OF_THE_GUARD else Verdict.OTHER
    assert verdict_of(MUTANTS[0], 1, failed) is killed


def test_what_hangs_kills_nobody() -> None:
    failed = first_failure(SAID.format("Failed: Timeout (>120.0s) from pytest-timeout."))
    assert verdict_of(MUTANTS[0], 1, failed) is Verdict.HANGS
    assert verdict_of(MUTANTS[0], None, None) is Verdict.HANGS


def test_what_breaks_ordinary_use_and_what_does_not_fail_is_told_apart() -> None:
    ordinary = MUTANTS[0].area.ordinary.partition("::")[2]
    failed = first_failure(f"FAILED tests/a.py::{ordinary}[sqlite-sync] - assert 1 == 2")
    assert verdict_of(MUTANTS[0], 1, failed) is Verdict.BROKEN
    assert verdict_of(MUTANTS[0], 0, None) is Verdict.SURVIVED
    assert verdict_of(MUTANTS[0], 4, first_failure("no tests ran")) is Verdict.UNTRIED
