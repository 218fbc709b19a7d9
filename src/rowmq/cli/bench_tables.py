"""What `rowmq bench` prints: first what is to hold, then a table for each scenario."""

from collections.abc import Sequence

from rich.text import Text

from rowmq.bench.results import Line, Results, Verdict
from rowmq.bench.wording import (
    amount,
    database_name,
    has_settings,
    line_name,
    measures_of,
    settings_told,
)
from rowmq.cli.showing import Cell, out, table, visible

__all__ = ["show"]


def show(results: Results) -> None:
    """Print all that was found."""
    measured = [verdict for verdict in results.verdicts if verdict.holds is not None]
    if measured:
        heading("What is to hold")
        table(("", "measured", "wanted", "on", "target"), map(judged, measured), empty="")
    for database in results.databases:
        for scenario in dict.fromkeys(line.scenario for line in results.lines):
            lines = [
                line
                for line in results.lines
                if (line.database, line.scenario) == (database, scenario)
            ]
            if lines:
                heading(f"{database_name(database)}: {results.scenarios[scenario]}")
                show_scenario(scenario, lines)
    if results.lines:
        heading("How to read this")
        out().print(LEGEND)
    show_surroundings(results)


LEGEND = (
    "'RowMQ is' says how many times as fast, or as small, RowMQ in the line with 1.00x is as the "
    "subject of this line: 2.00x is a line that does half as much. Log bytes (WAL, or redo), disk "
    "bytes, rows, statements and CPU are for one message. 'from' and 'to' are the least and the "
    "most of the repetitions for the first figure. With one repetition, look and do not judge."
)


def heading(text: str) -> None:
    out().print()
    out().print((visible(text), "bold"))


def judged(verdict: Verdict) -> tuple[Cell, ...]:
    sign = Text("holds", "green") if verdict.holds else Text("misses", "red")
    measured = "" if verdict.measured is None else f"{amount(verdict.measured)}{verdict.unit}"
    on = database_name(verdict.database)
    return sign, measured, verdict.wanted, on, verdict.target


def show_scenario(scenario: str, lines: Sequence[Line]) -> None:
    measures = measures_of(scenario)
    main = measures[0]
    reference = next((line.figure(main.name) for line in lines if line.reference), None)
    columns = ["", "RowMQ is", *(measure.title for measure in measures), "from", "to"]
    rows = []
    for line in lines:
        spread = line.figures.get(main.name)
        ratio = main.ratio(reference, line.figure(main.name))
        rows.append(
            [
                line_name(line),
                "" if ratio is None else f"{amount(ratio)}x",
                *(measure.shown(line) for measure in measures),
                None if spread is None or line.trials < 2 else main.value(spread.least),
                None if spread is None or line.trials < 2 else main.value(spread.most),
            ]
        )
    table(columns, rows, empty="")
    for line in lines:
        if line.windows:
            rates = " ".join(f"{rate:,.0f}" for rate in line.windows)
            out().print(f"  {visible(line.name)}, one window after the other: {rates}")
        if line.error is not None:
            out().print((f"  {visible(line.name)}: {line.error}", "red"))


def show_surroundings(results: Results) -> None:
    """Versions and settings of everything."""
    if not results.complete:
        out().print(("\nIt was interrupted: what is missing was not measured.", "yellow"))
    heading("Measured with")
    machine = ", ".join(f"{name} {value}" for name, value in results.machine.items())
    out().print(f"RowMQ {results.version}, {repeated(results.repeat)}; {visible(machine)}")
    for database, facts in results.databases.items():
        told = ", ".join(f"{name} {value}" for name, value in facts.items())
        out().print(f"{database_name(database)}: {visible(told)}")
    for line in all_at_their_best(results):
        out().print(visible(settings_told(line)))


def repeated(count: int) -> str:
    return "once" if count == 1 else f"{count} repetitions in turns"


def all_at_their_best(results: Results) -> list[Line]:
    """A line of each subject: that in which it was quickest, at handling if that was measured."""
    theirs = [line for line in results.lines if has_settings(line) and line.figure("rate")]
    theirs.sort(key=lambda line: (line.scenario == "queues-one", line.figure("rate") or 0.0))
    return list({line.subject: line for line in theirs}.values())
