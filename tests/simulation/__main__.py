"""Runs of many seeds on real databases, and a verdict.

    python -m tests.simulation --seeds 1000 --database sqlite --database postgres

A seed that breaks a rule is told with its shortened script, and can be run again by `--only SEED`.
"""

import argparse
import contextlib
import logging
import os
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
from tests.simulation.plans import plan_of
from tests.simulation.scenario import Played, run_script, script_of
from tests.simulation.shorten import TRIES_MAX, shorten
from tests.simulation.world import Fault, Script, Turn
from tests.verdicts import Simulated, write

TOLD_TURNS = 40
SEEDS = {"sqlite": 2_000}
SEEDS_OF_SERVERS = 200

MEMORY = Path("/dev/shm")  # noqa: S108 - a folder of its own is made there


def main() -> None:
    options = arguments()
    # A client that finds its connection cut says so, which here it does all the time.
    logging.getLogger("rowmq").setLevel(logging.CRITICAL)
    # PyMySQL reads all authorities that the machine trusts for each connection, which takes long.
    os.environ["SSL_CERT_FILE"] = os.devnull
    console = Console(width=None if sys.stdout.isatty() else 120)
    tallies = [play_all(name, options, console) for name in options.database or NAMES]
    table = Table(*HEAD)
    for tally in tallies:
        table.add_row(*tally.row())
    console.print(table)
    write(options.json, [tally.facts() for tally in tallies], {t.name: t.version for t in tallies})
    sys.exit(1 if any(tally.failed for tally in tallies) else 0)


def play_all(name: str, options: argparse.Namespace, console: Console) -> "Tally":
    """All seeds on one database."""
    count = options.seeds or SEEDS.get(name, SEEDS_OF_SERVERS)
    seeds = options.only or range(options.first, options.first + count)
    folder = MEMORY if MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="rowmq-simulation-", dir=folder) as home:
        databases = Databases(Path(home))
        with databases.stack:
            tally = Tally(name, databases, options.tries)
            with contextlib.suppress(KeyboardInterrupt):  # what was played so far is told
                for seed in track(seeds, description=name, console=Console(stderr=True)):
                    for line in tally.play(seed):
                        console.print(line, markup=False, highlight=False, soft_wrap=True)
            return tally


class Tally:
    """The runs on one database."""

    def __init__(self, name: str, databases: Databases, tries: int) -> None:
        self.name = name
        self.version = databases.get(name).version
        self.failed = 0
        """How many seeds break a rule."""
        self._databases = databases
        self._tries = tries
        self._seeds = self._turns = self._messages = 0
        self._faults: Counter[Fault] = Counter()
        self._broken: Counter[str] = Counter()
        self._began = time.monotonic()
        self._seconds = 0.0

    def play(self, seed: int) -> Iterator[str]:
        """Play a seed. Tells what is wrong with it."""
        script = script_of(seed)
        played = self._run(script)
        self._seeds += 1
        self._turns += len(played.turns)
        self._messages += played.messages
        self._faults.update(turn.fault for turn in played.turns if turn.fault is not None)
        if played.violations:
            self._broken.update({violation.rule for violation in played.violations})
            self.failed += 1
            yield from self._story(script, played)
        self._seconds = time.monotonic() - self._began

    def _run(self, script: Script) -> Played:
        database = self._databases.get(self.name)
        try:
            return run_script(database, script)
        finally:
            self._databases.give_back(database)

    def _story(self, script: Script, played: Played) -> Iterator[str]:
        def fails(shorter: Script) -> bool:
            return bool(self._run(shorter).violations)

        yield f"Seed {script.seed} on {self.name} breaks rules: {plan_of(script.seed)}"
        yield from (f"  {rule}: {story}" for rule, story in played.violations[:10])
        shortened = shorten(script, fails, len(played.turns), self._tries)
        again = self._run(shortened)
        yield f"Shortened, with {len(shortened.faults)} faults and {len(again.turns):,} turns:"
        yield from (f"  {rule}: {story}" for rule, story in again.violations[:3])
        yield from (f"  {turn}" for turn in told(again.turns))
        yield f"Again: make simulate DATABASE={self.name} ONLY={script.seed}"
        yield ""

    def facts(self) -> Simulated:
        faults = {fault.value: self._faults[fault] for fault in Fault}
        counts = (self._seeds, self._turns, self._messages)
        return Simulated(self.name, *counts, faults, self._seconds, dict(self._broken))

    def row(self) -> tuple[str, ...]:
        faults = "\n".join(
            f"{fault.value}: {self._faults[fault]:,}" for fault in Fault if self._faults[fault]
        )
        broken = "\n".join(f"{rule}: {seeds:,} seeds" for rule, seeds in self._broken.items())
        return (
            self.name,
            f"{self._seeds:,}",
            f"{self._turns:,}",
            f"{self._messages:,}",
            faults,
            f"{self._seconds:,.0f}",
            broken or "none",
        )


HEAD = ("database", "seeds", "turns", "messages", "faults", "seconds", "broken rules")


def told(trace: list[Turn]) -> list[Turn]:
    """The turns at which something went wrong, and the last ones."""
    return [turn for turn in trace[:-TOLD_TURNS] if turn.fault] + trace[-TOLD_TURNS:]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation", description="Runs of many seeds, and a verdict."
    )
    parser.add_argument(
        "--seeds", type=int, help="how many; by default, 2,000 on SQLite and 200 on a server"
    )
    parser.add_argument("--first", type=int, default=0, help="the first one")
    parser.add_argument("--only", type=int, action="append", help="this one; may be given again")
    parser.add_argument("--database", action="append", choices=NAMES, help="may be given again")
    parser.add_argument("--json", metavar="FILE", default="", help="write what came of it")
    parser.add_argument(
        "--tries", type=int, default=TRIES_MAX, help="how often a seed that fails is played shorter"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
