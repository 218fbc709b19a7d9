"""Each guard that `make mutants` turns off is there, and so are the tests that must notice."""

import ast
from functools import cache
from pathlib import Path

import pytest

from tests.mutants.guards import MUTANTS
from tests.mutants.mutant import SOURCE, Edit, Misfit, Mutant, apply, place_of_test


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
