"""Real processes and real servers, and all that goes wrong with them; and a verdict.

    python -m tests.chaos --fault crash --database postgres --seconds 30

Exits with 1 if anything was lost, doubled, out of order or too late, or did not go on.
"""

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.chaos.faults import FAULTS
from tests.chaos.places import open_place
from tests.chaos.trial import try_fault
from tests.chaos.verdict import Verdict
from tests.databases import NAMES
from tests.verdicts import write

STORIES_TOLD = 10
TABLE_WIDTH = 160
"""Where there is no terminal to say how wide it is."""


def main() -> None:
    # PyMySQL reads all authorities that the machine trusts for each connection; none is needed.
    os.environ.setdefault("SSL_CERT_FILE", os.devnull)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    options = arguments()
    told = Console(stderr=True)
    folder = Path(tempfile.mkdtemp(prefix="rowmq-chaos-"))
    told.print(f"seed {options.seed}", highlight=False)
    verdicts = []
    for verdict in trials(options, folder):
        verdicts.append(verdict)
        tell(told, verdict)
    write(options.json, verdicts, {v.database: v.version for v in verdicts})
    Console(width=None if sys.stdout.isatty() else TABLE_WIDTH).print(table(verdicts))
    if not verdicts:
        told.print("None of these faults can happen on these databases", highlight=False)
    good = bool(verdicts) and all(verdict.good for verdict in verdicts)
    if good and not options.keep:
        shutil.rmtree(folder)
    else:
        told.print(f"What they have written down is in {folder}", highlight=False)
    sys.exit(0 if good else 1)


def trials(options: argparse.Namespace, folder: Path) -> Iterator[Verdict]:
    for name in options.database or NAMES:
        with open_place(name, folder) as place:
            for fault in map(FAULTS.__getitem__, options.fault or FAULTS):
                if fault.where(place):
                    seconds = fault.seconds if options.seconds is None else options.seconds
                    yield try_fault(fault, place, folder, seconds=seconds, seed=options.seed)


def tell(console: Console, verdict: Verdict) -> None:
    """A line for a trial that is over, and what is wrong with it."""
    how = "good" if verdict.good else f"{len(verdict.stories)} things wrong"
    console.print(f"{verdict.database} {verdict.fault}: {how}", highlight=False, markup=False)
    for story in verdict.stories[:STORIES_TOLD]:
        console.print(f"  {story}", highlight=False, markup=False)


def table(verdicts: list[Verdict]) -> Table:
    names = ["fault", "database", "hits", "messages", "redelivered", "unknown", "lost", "doubled"]
    names += ["out of order", "stale", "ticks wrong", "other", "flowed after", "recovered after"]
    names += ["done after"]
    shown = Table(*names)
    for v in verdicts:
        figures = [v.hits, v.messages, v.redeliveries, v.unknown, v.lost, v.doubled]
        figures += [v.out_of_order, v.stale, v.ticks, v.other]
        times = [shown_seconds(t) for t in (v.flowed_after, v.recovered_after, v.done_after)]
        style = None if v.good else "red"
        shown.add_row(v.fault, v.database, *(f"{n:,}" for n in figures), *times, style=style)
    return shown


def shown_seconds(seconds: float | None) -> str:
    return "never" if seconds is None else f"{seconds:.1f} s"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos", description=__doc__.split("\n")[0]
    )
    add = parser.add_argument
    add("--fault", action="append", choices=FAULTS, help="may be given again; default: all")
    add("--database", action="append", choices=NAMES, help="may be given again; default: all")
    add("--seconds", type=float, help="how long a fault lasts")
    add("--seed", type=int, default=random.randrange(1_000_000), help="of what is left to chance")
    add("--keep", action="store_true", help="keep what was written down, also if all is good")
    add("--json", metavar="FILE", default="", help="write what came of it")
    return parser.parse_args()


if __name__ == "__main__":
    main()
