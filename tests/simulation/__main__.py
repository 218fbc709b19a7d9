"""Runs of many seeds on real databases, and a verdict.

    python -m tests.simulation --seeds 1000 --database sqlite --database postgres

A seed that fails is told with its shortened script, and can be run again by `--only SEED`: it does
the same each time.
"""

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from tests.databases import NAMES, Databases
from tests.simulation.rules import Violation
from tests.simulation.scenario import run_script, script_of
from tests.simulation.shorten import shorten
from tests.simulation.world import Fault, Script, Turn

TOLD_TURNS = 40


def main() -> None:
    options = arguments()
    console = Console(stderr=True)
    table = Table("database", "seeds", "turns", "faults", "seconds", "broken rules")
    failed = False
    with tempfile.TemporaryDirectory(prefix="rowmq-simulation-") as folder:
        databases = Databases(Path(folder))
        with databases.stack:
            for name in options.database or NAMES:
                tally = Tally(name)
                seeds = options.only or range(options.first, options.first + options.seeds)
                for seed in track(seeds, description=name, console=console):
                    tally.run(databases, seed)
                table.add_row(*tally.row())
                failed = failed or bool(tally.failures)
                for _failure in tally.failures:
                    pass
    Console().print(table)
    sys.exit(1 if failed else 0)


class Tally:
    """The runs on one database."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.seeds = self.turns = 0
        self.faults: Counter[Fault] = Counter()
        self.failures: list[str] = []
        self._began = time.monotonic()

    def run(self, databases: Databases, seed: int) -> None:
        script = script_of(seed)
        violations, turns = play(databases, self.name, script)
        self.seeds += 1
        self.turns += len(turns)
        self.faults.update(turn.fault for turn in turns if turn.fault is not None)
        if violations:
            self.failures.append("\n".join(self._story(databases, script, len(turns))))

    def _story(self, databases: Databases, script: Script, turns: int) -> Iterator[str]:
        def fails(shorter: Script) -> bool:
            return bool(play(databases, self.name, shorter)[0])

        shortened = shorten(script, fails, turns)
        violations, trace = play(databases, self.name, shortened)
        yield f"seed {script.seed} on {self.name}:"
        yield from (f"  {rule}: {story}" for rule, story in violations[:10])
        yield f"  faults at {sorted(shortened.faults)}; the last turns:"
        yield from (f"  {turn}" for turn in told(trace))

    def row(self) -> tuple[str, ...]:
        faults = ", ".join(f"{count:,} {fault.value}" for fault, count in self.faults.items())
        seconds = f"{time.monotonic() - self._began:.0f}"
        return (
            self.name,
            f"{self.seeds:,}",
            f"{self.turns:,}",
            faults,
            seconds,
            str(len(self.failures)),
        )


def play(databases: Databases, name: str, script: Script) -> Played:
    database = databases.get(name)
    try:
        return run_script(database, script)
    finally:
        databases.give_back(database)


def told(trace: list[Turn]) -> list[Turn]:
    """The turns at which something went wrong, and the last ones."""
    return [turn for turn in trace[:-TOLD_TURNS] if turn.fault] + trace[-TOLD_TURNS:]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=100, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first one")
    parser.add_argument("--only", type=int, action="append", help="this one; may be given again")
    parser.add_argument("--database", action="append", choices=NAMES, help="may be given again")
    return parser.parse_args()


if __name__ == "__main__":
    main()
