"""Writes the figures of a run into docs/performance.md: `python -m benchmarks.page results.json`.

The page is text with places for figures, each between two comments that say what stands there:

    <!-- figures: targets -->
    <!-- figures: queues-one postgresql -->
    <!-- figures: surroundings -->
    <!-- end -->

Nothing there is typed by hand. The plots of those scenarios go to docs/assets/performance.
"""

import re
import sys
import tempfile
from collections.abc import Iterable, Sequence
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

__all__ = ["PAGE", "PLACE", "fill", "main"]

DOCS = Path(__file__).parent.parent / "docs"
PAGE = DOCS / "performance.md"
ASSETS = DOCS / "assets" / "performance"

PLACE = re.compile(r"<!-- figures: ([a-z0-9 -]+) -->\n.*?<!-- end -->", re.DOTALL)

Rows = Iterable[Sequence[str]]


def fill(page: str, results: Results) -> str:
    """The page with these figures, and no others."""
    return PLACE.sub(lambda place: filled(place[1], results), page)


def filled(what: str, results: Results) -> str:
    if what == "targets":
        text = targets(results.verdicts)
    elif what == "surroundings":
        text = surroundings(results)
    else:
        text = scenario(results, *what.split())
    return f"<!-- figures: {what} -->\n{text}\n<!-- end -->"


def markdown(columns: Sequence[str], rows: Rows) -> str:
    lines = ["| " + " | ".join(columns) + " |", "|---" + "|---:" * (len(columns) - 1) + "|"]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines)


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


def surroundings(results: Results) -> str:
    machine = ", ".join(f"{name} {value}" for name, value in results.machine.items())
    run = f"{results.repeat} repetitions, {results.took_seconds / 60:.0f} minutes"
    parts = [f"- RowMQ {results.version}, {results.began_at[:10]}, {run}; {machine}"]
    for database, facts in results.databases.items():
        told = ", ".join(f"`{name}` {value}" for name, value in facts.items())
        parts.append(f"- {database_name(database)}: {told}")
    used = [
        line
        for line in results.lines
        if line.version
        and has_settings(line)
        and line.scenario in ("publish-concurrent", "queues-one")
    ]
    parts += [f"- {settings_told(line)}" for line in used]
    return "\n".join(dict.fromkeys(parts))


def copy_plots(page: str, results: Results) -> None:
    """Those plots that the page shows, and no others."""
    shown = set(re.findall(r"assets/performance/([\w.-]+\.svg)", page))
    ASSETS.mkdir(parents=True, exist_ok=True)
    for old in ASSETS.glob("*.svg"):
        old.unlink()
    with tempfile.TemporaryDirectory() as folder:
        for path in draw(results, Path(folder)):
            if path.name in shown:
                (ASSETS / path.name).write_text(path.read_text("utf-8"), encoding="utf-8")


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("Name the JSON of a run: make bench BENCH='--json results.json', and then this.")
    results = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Results)
    page = fill(PAGE.read_text("utf-8"), results)
    copy_plots(page, results)
    PAGE.write_text(page, encoding="utf-8")
    print(f"{PAGE}: {sum(1 for _ in PLACE.finditer(page))} places filled")


if __name__ == "__main__":
    main()
