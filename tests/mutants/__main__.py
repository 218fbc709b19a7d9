"""Turns off each guard in turn, and shows which test notices: `python -m tests.mutants`.

    python -m tests.mutants --database sqlite --only fence

The exit code is 1 if one is not noticed, or could not be tried.
"""

import argparse
import os
import sys
from contextlib import ExitStack

from rich.console import Console
from rich.progress import track
from rich.table import Table

from tests.mutants.guards import MUTANTS
from tests.mutants.mutant import ALL, Mutant
from tests.mutants.running import Run, Verdict, passing, try_mutant
from tests.servers import MariaDBServer, PostgresServer
from tests.servers.process import Server

SERVERS: dict[str, type[Server]] = {"postgres": PostgresServer, "mariadb": MariaDBServer}


def main() -> None:
    options = arguments()
    console = Console(stderr=True)
    only = options.only or [""]
    mutants = [m for m in MUTANTS if any(text in m.guard for text in only)]
    asked = options.database or ALL
    pairs = [(m, database) for m in mutants for database in m.databases if database in asked]
    with ExitStack() as stack:
        for database in {database for _, database in pairs} & SERVERS.keys():
            start(stack, SERVERS[database])
        for database in asked:
            console.print(f"the tests on {database}, with every guard on")
            if trouble := passing([m for m, where in pairs if where == database], database):
                sys.exit(f"they do not pass:\n{trouble}")
        runs = [told(console, try_mutant(*pair)) for pair in track(pairs, console=console)]
    Console().print(table_of(runs))
    bad = [run for run in runs if run.verdict is not Verdict.KILLED]
    for run in bad:
        console.print(f"[bold red]{run.verdict.value}[/]: {run.mutant.guard}, {run.database}")
        console.print(run.by, markup=False, highlight=False)
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
    table = Table("guard", "file", "database", "verdict", "by", "seconds")
    for mutant, database, verdict, by, seconds in runs:
        told = by if verdict in (Verdict.KILLED, Verdict.BROKEN) else ""
        table.add_row(mutant.guard, files(mutant), database, verdict.value, told, f"{seconds:.1f}")
    return table


def files(mutant: Mutant) -> str:
    return ", ".join(dict.fromkeys(edit.file for edit in mutant.edits))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--database", action="append", choices=ALL, help="may be given again")
    parser.add_argument("--only", action="append", help="guards with this text; may be given again")
    return parser.parse_args()


if __name__ == "__main__":
    main()
