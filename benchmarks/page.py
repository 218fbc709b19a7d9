"""Writes the figures of a run into docs/performance.md: `python -m benchmarks.page results.json`.

The page has a place for the targets, one for the surroundings, and some for a scenario on a
database, as in `queues-one postgresql`. The plots of those go to docs/assets/performance.

A database that most machines do not have, and so has a run of its own, has places of all kinds
that end with its name, as in `targets mysql`: `--database mysql` fills these and no others.
"""

import argparse
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from rowmq.bench.plots import draw
from rowmq.bench.results import Line, Results, Verdict
from rowmq.bench.wording import (
    amount,
    database_name,
    has_settings,
    line_name,
    measures_of,
    settings_told,
)
from tests.pages import PLACE, filled, markdown

__all__ = ["PAGE", "fill", "main"]

DOCS = Path(__file__).parent.parent / "docs"
PAGE = DOCS / "performance.md"
ASSETS = DOCS / "assets" / "performance"
OWN_RUNS = ("mysql",)


def fill(page: str, results: Results, alone: str | None = None) -> str:
    """The page with these figures, and no others; or with those of one database `alone`."""
    places = [place[1] for place in PLACE.finditer(page) if has_own_run(place[1]) == alone]
    return filled(page, {place: told(results, place) for place in places})


def has_own_run(place: str) -> str | None:
    """The database that stands on the page with figures from another run, if it is such a place."""
    return next((name for name in OWN_RUNS if place.endswith(f" {name}")), None)


def told(results: Results, place: str) -> str:
    what, _, database = place.partition(" ")
    if what == "targets":
        return targets([v for v in results.verdicts if database in ("", v.database)])
    if what == "surroundings":
        return surroundings(results, database)
    return scenario(results, what, database)


def targets(verdicts: Sequence[Verdict]) -> str:
    words = {True: "holds", False: "**misses**", None: "not measured"}
    return markdown(
        ("target", "on", "wanted", "measured", ""),
        (
            (
                verdict.target,
                database_name(verdict.database),
                verdict.wanted,
                "" if verdict.measured is None else f"{amount(verdict.measured)}{verdict.unit}",
                words[verdict.holds],
            )
            for verdict in verdicts
        ),
    )


def scenario(results: Results, name: str, database: str) -> str:
    """A table and a plot of a scenario on one database."""
    lines = [line for line in results.lines if (line.scenario, line.database) == (name, database)]
    if not lines:
        return "Not measured."
    title = results.scenarios[name]
    plots = [
        f"![{database_name(database)}: {title}](assets/performance/{database}-{name}-{ground}.svg"
        f"#only-{ground})"
        for ground in ("light", "dark")
    ]
    return "\n".join([*plots, "", table(name, lines)])


def table(name: str, lines: Sequence[Line]) -> str:
    measures = [
        measure
        for measure in measures_of(name)
        if any(measure.name in one.figures for one in lines)
    ]
    main = measures[0]
    reference = next((line.figure(main.name) for line in lines if line.reference), None)
    rows = []
    for line in lines:
        ratio = main.ratio(reference, line.figure(main.name))
        values = [measure.shown(line) for measure in measures]
        rows.append(
            (
                line_name(line) + (" *failed*" if line.error else ""),
                "" if ratio is None else f"{amount(ratio)}x",
                *("" if value is None else f"{value:,}" for value in values),
                spread(line, main.name),
            )
        )
    return markdown(("", "RowMQ is", *(m.title for m in measures), "spread"), rows)


def spread(line: Line, name: str) -> str:
    """How far apart the repetitions were, as a part of their median."""
    figure = line.figures.get(name)
    if figure is None or line.trials < 2 or not figure.median:
        return ""
    return f"{100 * (figure.most - figure.least) / figure.median:.0f} %"


def surroundings(results: Results, only: str = "") -> str:
    machine = ", ".join(f"{name} {value}" for name, value in results.machine.items())
    run = f"{results.repeat} repetitions, {results.took_seconds / 60:.0f} minutes"
    parts = [f"- RowMQ {results.version}, {results.began_at[:10]}, {run}; {machine}"]
    measured = {name: of for name, of in results.databases.items() if only in ("", name)}
    for database, facts in measured.items():
        told = ", ".join(f"`{name}` {value}" for name, value in facts.items())
        parts.append(f"- {database_name(database)}: {told}")
    used = [
        line
        for line in results.lines
        if line.version
        and line.database in measured
        and has_settings(line)
        and line.scenario in ("publish-concurrent", "queues-one")
    ]
    parts += [f"- {settings_told(line)}" for line in used]
    return "\n".join(dict.fromkeys(parts))


def copy_plots(page: str, results: Results, alone: str | None = None) -> None:
    """Those plots that the page shows, and no others."""
    shown = set(re.findall(r"assets/performance/([\w.-]+\.svg)", page))
    shown = {name for name in shown if plotted_alone(name) == alone}
    ASSETS.mkdir(parents=True, exist_ok=True)
    for old in ASSETS.glob("*.svg"):
        if plotted_alone(old.name) == alone:
            old.unlink()
    with tempfile.TemporaryDirectory() as folder:
        for path in draw(results, Path(folder)):
            if path.name in shown:
                (ASSETS / path.name).write_text(path.read_text("utf-8"), encoding="utf-8")


def plotted_alone(name: str) -> str | None:
    """The database of a plot, if its figures are of a run of its own."""
    return next((database for database in OWN_RUNS if name.startswith(f"{database}-")), None)


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the figures of a run into the page.")
    parser.add_argument("results", type=Path, help="of make bench BENCH='--json results.json'")
    parser.add_argument("--database", choices=OWN_RUNS, help="only the places of this one")
    options = parser.parse_args()
    results = msgspec.json.decode(options.results.read_bytes(), type=Results)
    page = fill(PAGE.read_text("utf-8"), results, options.database)
    copy_plots(page, results, options.database)
    PAGE.write_text(page, encoding="utf-8")
    print(f"{PAGE}: filled")


if __name__ == "__main__":
    main()
