"""A mutant: a guard of ours that is turned off by a change of the source's text.

A text that is not there exactly once is an error: a mutant that changes nothing would be taken for
one that no test notices, or, worse, be overlooked.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

__all__ = ["ALL", "NONE", "SERVERS", "Area", "Edit", "Misfit", "Mutant", "apply", "place_of_test"]

SOURCE = Path(__file__).parents[2] / "src"
TESTS = Path(__file__).parents[1]

SERVERS = ("postgres", "mariadb")
ALL = ("sqlite", *SERVERS)
NONE = ("no database",)
"""Where the tests are of no database, or choose one themselves."""


class Misfit(Exception):
    """A text to be changed is not in the source, or more than once."""


class Area(NamedTuple):
    """A part of RowMQ, and a test of its ordinary use. That test must pass with every mutant: what
    breaks everything proves nothing of one guard.
    """

    name: str
    ordinary: str


class Edit(NamedTuple):
    """A change: of a file below `src/rowmq`, the text that must be there once, and what is put in
    its place.
    """

    file: str
    old: str
    new: str


class Mutant(NamedTuple):
    """A guard, what turns it off, and on which databases which tests fail then.

    Tests are named as `test_order.py::test_x`, below `tests/conformance`, or with their folder.
    """

    guard: str
    area: Area
    databases: tuple[str, ...]
    edits: tuple[Edit, ...]
    killers: tuple[str, ...]


def apply(edits: Iterable[Edit], source: Path = SOURCE) -> dict[Path, str]:
    """The files that edits change, by their path below the source, as they are then."""
    changed: dict[Path, str] = {}
    for file, old, new in edits:
        path = Path("rowmq") / file
        text = changed[path] if path in changed else (source / path).read_text()
        if text.count(old) != 1:
            raise Misfit(f"{file} has {text.count(old)} times, and not once: {old!r}")
        changed[path] = text.replace(old, new)
    return changed


def place_of_test(name: str) -> tuple[Path, str]:
    """The file and the function of a test's name."""
    file, _, function = name.partition("::")
    return TESTS / (file if "/" in file else f"conformance/{file}"), function
