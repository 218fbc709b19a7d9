"""Compares topics, queues and schedules with their models, in other examples each time:

    python -m tests.models --examples 2000 --database sqlite --machine queues

What differs is told with the fewest steps that lead there. The exit code is 1 then.
"""

import argparse
import logging
import sys
import tempfile
import time
import traceback
from pathlib import Path

from hypothesis.configuration import set_hypothesis_home_dir
from rich.console import Console
from rich.table import Table

from tests.databases import NAMES, Databases
from tests.models.running import MACHINES, STEPS, run
from tests.verdicts import Compared, write

EXAMPLES = 300


def main() -> None:
    options = arguments()
    console = Console(stderr=True)
    logging.getLogger("rowmq").setLevel(logging.ERROR)  # clocks are set back, subscribers die
    table = Table("machine", "database", "examples", "of at most", "seconds", "")
    rows: list[Compared] = []
    versions: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="rowmq-models-") as folder:
        set_hypothesis_home_dir(Path(folder))
        databases = Databases(Path(folder))
        with databases.stack:
            for name in options.database or NAMES:
                versions[name] = databases.get(name).version
                for machine in options.machine or MACHINES:
                    console.print(f"{machine} on {name}")
                    began = time.monotonic()
                    differs = compare(databases, name, machine, options.examples)
                    seconds = time.monotonic() - began
                    rows.append(Compared(machine, name, options.examples, STEPS, seconds, differs))
                    verdict = "differs" if differs else "as in the model"
                    told = (f"{options.examples:,}", f"{STEPS} steps", f"{seconds:.0f}", verdict)
                    table.add_row(machine, name, *told)
    Console().print(table)
    write(options.json, rows, versions)
    sys.exit(1 if any(row.differs for row in rows) else 0)


def compare(databases: Databases, name: str, machine: str, examples: int) -> bool:
    """Whether something differs, which is told."""
    try:
        run(databases, name, MACHINES[machine], examples, derandomize=False)
    except Exception:  # noqa: BLE001 - whatever it is, the others are compared too
        traceback.print_exc()
        return True
    return False


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--examples", type=int, default=EXAMPLES, help="of each, on each")
    parser.add_argument("--database", action="append", choices=NAMES, help="may be given again")
    parser.add_argument("--machine", action="append", choices=MACHINES, help="may be given again")
    parser.add_argument("--json", metavar="FILE", default="", help="write what came of it")
    return parser.parse_args()


if __name__ == "__main__":
    main()
