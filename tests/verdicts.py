"""What the long trials come to, and the page that tells of it:

    make simulate JSON=simulation.json && make chaos JSON=chaos.json
    make models JSON=models.json && make mutants JSON=mutants.json
    python -m tests.verdicts simulation.json chaos.json models.json mutants.json

Each of these writes such a file, whose name says what it is; docs/reliability.md has a place for
each, and keeps what it has of those that are not given.
"""

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from rowmq.bench.benchmark import machine
from tests.chaos.verdict import Verdict
from tests.pages import filled, markdown

__all__ = ["PAGE", "PLACES", "Compared", "Mutated", "Report", "Simulated", "write"]

PAGE = Path(__file__).parents[1] / "docs" / "reliability.md"

NAMES = {"sqlite": "SQLite", "postgres": "PostgreSQL", "mariadb": "MariaDB", "mysql": "MySQL"}

ANY_DATABASE = "any"
"""What stands for the database of a guard that has nothing to do with one."""


class Simulated(msgspec.Struct):
    """The seeds that were played on a database."""

    database: str
    seeds: int
    turns: int
    messages: int
    faults: dict[str, int]
    seconds: float
    broken: dict[str, int]
    """How many seeds broke a rule, by rule."""


class Compared(msgspec.Struct):
    """A machine and its model on a database."""

    machine: str
    database: str
    examples: int
    steps: int
    seconds: float
    differs: bool


class Mutated(msgspec.Struct):
    """A mutant on a database."""

    guard: str
    files: list[str]
    database: str
    verdict: str
    by: str
    seconds: float


class Report(msgspec.Struct):
    """What a command writes: its rows, and where and when they came to be."""

    rows: list[Any]
    machine: dict[str, str] = msgspec.field(default_factory=machine)
    versions: dict[str, str] = {}
    day: str = msgspec.field(default_factory=lambda: datetime.now(UTC).date().isoformat())


def write(path: str, rows: Sequence[Any], versions: dict[str, str]) -> None:
    """Write what a command found out, if a path was given."""
    if path:
        report = Report(list(rows), versions=versions)
        Path(path).write_bytes(msgspec.json.format(msgspec.json.encode(report)) + b"\n")


def surroundings(report: Report) -> str:
    versions = ", ".join(f"{NAMES[name]} {version}" for name, version in report.versions.items())
    told = ", ".join(f"{name} {value}" for name, value in report.machine.items())
    return f"{report.day}; {versions}; {told}."


def simulation(report: Report) -> str:
    rows = msgspec.convert(report.rows, list[Simulated])
    kinds = sorted({fault for row in rows for fault in row.faults})
    head = ("database", "seeds", "statements and other turns", "messages and jobs")
    table = markdown(
        (*head, *kinds, "broken rules"),
        (
            (
                NAMES[row.database],
                *(f"{count:,}" for count in (row.seeds, row.turns, row.messages)),
                *(f"{row.faults.get(kind, 0):,}" for kind in kinds),
                ", ".join(f"{rule}: {seeds}" for rule, seeds in row.broken.items()) or "none",
            )
            for row in rows
        ),
    )
    return f"{table}\n\n{surroundings(report)}"


def chaos(report: Report) -> str:
    rows = msgspec.convert(report.rows, list[Verdict])
    head = ("fault", "on", "hits", "messages and jobs", "delivered again", "answer lost", "lost")
    rest = ("doubled", "out of order", "stale", "wrong ticks", "other", "went on after")
    table = markdown(
        (*head, *rest),
        (
            (
                row.fault,
                NAMES[row.database],
                *(f"{n:,}" for n in (row.hits, row.messages, row.redeliveries, row.unknown)),
                *(f"{n:,}" for n in (row.lost, row.doubled, row.out_of_order)),
                *(f"{n:,}" for n in (row.stale, row.ticks, row.other)),
                "never" if row.recovered_after is None else f"{row.recovered_after:.1f} s",
            )
            for row in rows
        ),
    )
    return f"{table}\n\n{surroundings(report)}"


def models(report: Report) -> str:
    rows = msgspec.convert(report.rows, list[Compared])
    table = markdown(
        ("compared", "on", "examples", "of at most", "verdict"),
        (
            (
                row.machine,
                NAMES[row.database],
                f"{row.examples:,}",
                f"{row.steps} steps",
                "differs" if row.differs else "as in the model",
            )
            for row in rows
        ),
    )
    return f"{table}\n\n{surroundings(report)}"


def mutants(report: Report) -> str:
    rows = msgspec.convert(report.rows, list[Mutated])
    guards = dict.fromkeys(row.guard for row in rows)
    counts = Counter((row.guard, row.verdict) for row in rows)
    verdicts = sorted({row.verdict for row in rows})
    databases = {
        guard: ", ".join(
            NAMES.get(row.database, ANY_DATABASE) for row in rows if row.guard == guard
        )
        for guard in guards
    }
    table = markdown(
        ("guard that was turned off", "on", *verdicts),
        (
            (guard, databases[guard], *(str(counts[guard, verdict]) for verdict in verdicts))
            for guard in guards
        ),
    )
    killed = sum(row.verdict == "killed" for row in rows)
    told = f"{len(guards)} guards, {len(rows)} mutants, {killed} killed."
    return f"{told}\n\n{table}\n\n{surroundings(report)}"


PLACES: dict[str, Callable[[Report], str]] = {
    "simulation": simulation,
    "chaos": chaos,
    "models": models,
    "mutants": mutants,
}


def main() -> None:
    reports = {Path(path).stem: Path(path) for path in sys.argv[1:]}
    if not reports or not reports.keys() <= PLACES.keys():
        sys.exit(f"Name some of {', '.join(f'{name}.json' for name in PLACES)}: see {__file__}")
    texts = {
        name: PLACES[name](msgspec.json.decode(path.read_bytes(), type=Report))
        for name, path in reports.items()
    }
    PAGE.write_text(filled(PAGE.read_text("utf-8"), texts), encoding="utf-8")
    sys.stdout.write(f"{PAGE}: {', '.join(texts)}\n")


if __name__ == "__main__":
    main()
