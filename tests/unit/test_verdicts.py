"""The page about reliability has what the long trials came to, and nothing that was typed."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests import verdicts
from tests.chaos.verdict import Verdict
from tests.pages import PLACE, filled
from tests.verdicts import PAGE, PLACES, Compared, Mutated, Report, Simulated

REPORTS: dict[str, list[Any]] = {
    "simulation": [
        Simulated("sqlite", 1_000, 2_000_000, 9_000, {"crash": 12, "pause": 3}, 60.0, {}),
        Simulated("postgres", 200, 400_000, 2_000, {"crash": 4}, 90.0, {"order is kept": 2}),
    ],
    "chaos": [
        Verdict(fault="kill", database="mariadb", hits=7, messages=1_234, recovered_after=1.5),
        Verdict(fault="full", database="sqlite", messages=5, lost=1),
    ],
    "models": [
        Compared("topics", "sqlite", 2_000, 40, 9.0, False),
        Compared("queues", "mysql", 60, 40, 9.0, True),
    ],
    "mutants": [
        Mutated("the epoch", ["store/leases.py"], "sqlite", "killed", "test_x", 1.0),
        Mutated("the epoch", ["store/leases.py"], "postgres", "survived", "", 1.0),
    ],
}

ROWS = {
    "simulation": [
        "| SQLite | 1,000 | 2,000,000 | 9,000 | 12 | 3 | none |",
        "| PostgreSQL | 200 | 400,000 | 2,000 | 4 | 0 | order is kept: 2 |",
    ],
    "chaos": [
        "| kill | MariaDB | 7 | 1,234 | 0 | 0 | 0 | 0 | 0 | 0 | 0 | 0 | 1.5 s |",
        "| full | SQLite | 0 | 5 | 0 | 0 | 1 | 0 | 0 | 0 | 0 | 0 | never |",
    ],
    "models": [
        "| topics | SQLite | 2,000 | 40 steps | as in the model |",
        "| queues | MySQL | 60 | 40 steps | differs |",
    ],
    "mutants": ["1 guards, 2 mutants, 1 killed.", "| the epoch | SQLite, PostgreSQL | 1 | 1 |"],
}


@pytest.mark.parametrize("name", PLACES)
def test_a_report_becomes_a_table(name: str, tmp_path: Path) -> None:
    path = tmp_path / f"{name}.json"
    verdicts.write(str(path), REPORTS[name], {"sqlite": "3.40.1", "mariadb": "10.11"})
    report = msgspec.json.decode(path.read_bytes(), type=Report)
    told = PLACES[name](report).splitlines()
    assert set(ROWS[name]) <= set(told)
    assert "SQLite 3.40.1, MariaDB 10.11" in told[-1]


def test_nothing_is_written_where_nobody_asks(tmp_path: Path) -> None:
    verdicts.write("", REPORTS["models"], {})
    assert list(tmp_path.iterdir()) == []


def test_the_page_has_a_place_for_each_and_no_other() -> None:
    places = [place[1] for place in PLACE.finditer(PAGE.read_text("utf-8"))]
    assert sorted(places) == sorted(PLACES)


def test_what_is_not_given_stays() -> None:
    kept, given = "<!-- figures: a -->\nold\n<!-- end -->", "<!-- figures: b -->\nold\n<!-- end -->"
    assert filled(f"{kept} {given}", {"b": "new"}) == f"{kept} {given.replace('old', 'new')}"
