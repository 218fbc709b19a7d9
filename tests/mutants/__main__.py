"""Turns off each guard in turn, and shows which test notices: `python -m tests.mutants`.

    python -m tests.mutants --database sqlite --only fence

The exit code is 1 if one is not noticed, or could not be tried.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table
from rich.text import Text

from tests.databases import Databases
from tests.mutants.guards import MUTANTS
from tests.mutants.mutant import ALL, NONE, Mutant
from tests.mutants.running import Run, Verdict, passing, try_mutant
from tests.servers import MariaDBServer, PostgresServer
from tests.servers.process import Server
from tests.verdicts import Mutated, write

SERVERS: dict[str, type[Server]] = {"postgres": PostgresServer, "mariadb": MariaDBServer}


REASON_CHARS = 80
"""How much is shown of how a test failed."""


def main() -> None:
    options = arguments()
    console = Console(stderr=True)
    only = options.only or [""]
    mutants = [m for m in MUTANTS if any(text in m.guard for text in only)]
    asked = options.database or (*ALL, *NONE)
    pairs = [(m, database) for m in mutants for database in m.databases if database in asked]
    with ExitStack() as stack:
        for database in {database for _, database in pairs} & SERVERS.keys():
            start(stack, SERVERS[database])
        for database in asked:
            console.print(f"the tests of {database}, with every guard on")
            if trouble := passing([m for m, where in pairs if where == database], database):
                sys.exit(f"they do not pass:\n{trouble}")
        runs = [told(console, try_mutant(*pair)) for pair in track(pairs, console=console)]
        versions = versions_of(asked) if options.json else {}
    Console().print(table_of(runs))
    write(options.json, list(map(facts_of, runs)), versions)
    bad = [run for run in runs if run.verdict is not Verdict.KILLED]
    for run in bad:
        console.print(f"[bold red]{run.verdict.value}[/]: {run.mutant.guard}, {run.database}")
        console.print(run.by, run.reason, markup=False, highlight=False)
    guards = {run.mutant.guard for run in runs}
    console.print(f"{len(guards)} guards, {len(runs)} mutants, {len(runs) - len(bad)} killed")
    sys.exit(1 if bad else 0)


def told(console: Console, run: Run) -> Run:
    """Tell what became of a mutant at once: the table comes at the end."""
    said = f"{run.verdict.value}: {run.mutant.guard}, {run.database}"
    console.print(said, markup=False, highlight=False)
    return run


def start(stack: ExitStack, kind: type[Server]) -> None:
    """Start a server for all runs, unless one is named."""
    if kind.variable not in os.environ:
        os.environ[kind.variable] = stack.enter_context(kind()).url


def table_of(runs: list[Run]) -> Table:
    table = Table("guard", "file", "database", "verdict", "by", "how", "seconds")
    for mutant, database, verdict, by, reason, seconds in runs:
        told = by.partition("[")[0] if reason else ""
        how = Text(reason.removeprefix("AssertionError: ")[:REASON_CHARS])
        what = (mutant.guard, files(mutant), database, verdict.value, told)
        table.add_row(*what, how, f"{seconds:.1f}")
    return table


def facts_of(run: Run) -> Mutated:
    told = list(dict.fromkeys(edit.file for edit in run.mutant.edits))
    return Mutated(run.mutant.guard, told, run.database, run.verdict.value, run.by, run.seconds)


def versions_of(names: Sequence[str]) -> dict[str, str]:
    with tempfile.TemporaryDirectory() as folder:
        databases = Databases(Path(folder))
        with databases.stack:
            return {name: databases.get(name).version for name in names if name in ALL}


def files(mutant: Mutant) -> str:
    return ", ".join(dict.fromkeys(edit.file for edit in mutant.edits))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    choices = (*ALL, *NONE)
    parser.add_argument("--database", action="append", choices=choices, help="may be given again")
    parser.add_argument("--only", action="append", help="guards with this text; may be given again")
    parser.add_argument("--json", metavar="FILE", default="", help="write what came of it")
    return parser.parse_args()


if __name__ == "__main__":
    main()
