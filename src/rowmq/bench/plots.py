"""Plots of results as SVG files, each in two kinds: for pages with a light and with a dark ground.

Bars compare the subjects of a scenario; where a trial has windows, lines show one after the other.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from rowmq.bench.results import Line, Results
from rowmq.bench.wording import Measure, database_name, line_name, measures_of
from rowmq.markup import Markup, el, join, nice_ticks, raw

__all__ = ["draw"]

WIDTH = 760.0
LABELS, NUMBERS = 330.0, 80.0
"""How much room words have on the left, and figures on the right."""

TOP, BOTTOM, ROW, BAR = 34.0, 26.0, 22.0, 13.0
LINES_HEIGHT, AXIS = 190.0, 56.0


class Ground(NamedTuple):
    """The colours of a plot that stands on a page."""

    name: str
    ink: str
    soft: str
    faint: str
    ours: str
    theirs: str
    limit: str


GROUNDS = (
    Ground("light", "#1f2225", "#63696f", "#e5e5df", "#2b6cac", "#bf5b14", "#9aa1a8"),
    Ground("dark", "#e4e5e2", "#9aa1a8", "#2d3236", "#7db4ea", "#f0a45f", "#63696f"),
)


def draw(results: Results, folder: Path) -> Iterator[Path]:
    """Write a plot for each scenario on each database; their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    for database in results.databases:
        for scenario, title in results.scenarios.items():
            lines = [
                line
                for line in results.lines
                if (line.database, line.scenario) == (database, scenario) and line.figures
            ]
            if lines:
                words = f"{database_name(database)}: {title}"
                for ground in GROUNDS:
                    path = folder / f"{database}-{scenario}-{ground.name}.svg"
                    path.write_text(plot(scenario, words, lines, ground), encoding="utf-8")
                    yield path


def plot(scenario: str, title: str, lines: Sequence[Line], ground: Ground) -> str:
    """A scenario as bars, or as lines where it has windows."""
    measure = measures_of(scenario)[0]
    if any(line.windows for line in lines):
        return windows(title, lines, ground) + "\n"
    return bars(title, measure, lines, ground) + "\n"


def sheet(title: str, height: float, ground: Ground, *shapes: Markup) -> Markup:
    return el(
        "svg",
        el("title", title),
        el("style", raw(style_of(ground))),
        el("text", title, x=0, y=16, class_="head"),
        *shapes,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {WIDTH:.0f} {height:.0f}",
        role="img",
    )


def style_of(ground: Ground) -> str:
    return (
        f"text{{font:12px system-ui,sans-serif;fill:{ground.ink}}}"
        f".head{{font-weight:600;font-size:13px}}.soft{{fill:{ground.soft}}}"
        f".end{{text-anchor:end}}.middle{{text-anchor:middle}}.grid{{stroke:{ground.faint}}}"
        f".ours{{fill:{ground.ours}}}.theirs{{fill:{ground.theirs}}}.limit{{fill:{ground.limit}}}"
        f".line{{fill:none;stroke-width:2}}.line.ours{{stroke:{ground.ours};fill:none}}"
        f".line.theirs{{stroke:{ground.theirs};fill:none}}.held{{stroke-dasharray:5 3}}"
    )


def kind_of(line: Line) -> str:
    return {"rowmq": "ours", "raw": "limit"}.get(line.subject, "theirs")


# --- bars -----------------------------------------------------------------------------------------


def bars(title: str, measure: Measure, lines: Sequence[Line], ground: Ground) -> Markup:
    """A bar for each subject, from zero."""
    shown = [line for line in lines if measure.name in line.figures]
    top = max((value_of(measure, line) for line in shown), default=1.0)
    ticks = nice_ticks(top)
    height = TOP + ROW * len(shown) + BOTTOM
    bottom = height - BOTTOM

    def x(value: float) -> float:
        return LABELS + (WIDTH - LABELS - NUMBERS) * value / ticks[-1]

    axis = [
        join(
            el("line", x1=x(tick), x2=x(tick), y1=TOP - 6, y2=bottom, class_="grid"),
            el("text", said(tick), x=x(tick), y=bottom + 16, class_="soft middle"),
        )
        for tick in ticks
    ]
    rows = [
        bar(measure, line, TOP + ROW * place, x(value_of(measure, line)))
        for place, line in enumerate(shown)
    ]
    unit = el("text", measure.title, x=0, y=bottom + 16, class_="soft")
    return sheet(title, height, ground, *axis, *rows, unit)


def bar(measure: Measure, line: Line, y: float, right: float) -> Markup:
    middle = y + BAR - 2
    return join(
        el("text", line_name(line), x=LABELS - 8, y=middle, class_="end"),
        el("rect", x=LABELS, y=y, width=right - LABELS, height=BAR, rx=2, class_=kind_of(line)),
        el("text", said(value_of(measure, line)), x=right + 6, y=middle),
    )


def value_of(measure: Measure, line: Line) -> float:
    return line.figures[measure.name].median / measure.unit


def said(value: float) -> str:
    return f"{value:,.0f}" if value >= 20 or value == int(value) else f"{value:.2g}"


# --- windows, one after the other -----------------------------------------------------------------


def windows(title: str, lines: Sequence[Line], ground: Ground) -> Markup:
    """A line for each subject; one that is dashed had something against it."""
    shown = [line for line in lines if line.windows]
    ticks = nice_ticks(max(max(line.windows) for line in shown))
    most = max(len(line.windows) for line in shown)
    bottom, right = TOP + LINES_HEIGHT, WIDTH - 20

    def x(place: float) -> float:
        return AXIS + (right - AXIS) * place / max(1, most - 1)

    def y(value: float) -> float:
        return bottom - LINES_HEIGHT * value / ticks[-1]

    grid = [
        join(
            el("line", x1=AXIS, x2=right, y1=y(tick), y2=y(tick), class_="grid"),
            el("text", said(tick), x=AXIS - 6, y=y(tick) + 4, class_="soft end"),
        )
        for tick in ticks
    ]
    drawn, legend = [], []
    for row, line in enumerate(shown):
        kind = f"line {kind_of(line)}" + (" held" if "a snapshot" in line.variant else "")
        points = [(x(place), y(rate)) for place, rate in enumerate(line.windows)]
        drawn.append(
            el("path", d="M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in points), class_=kind)
        )
        under = bottom + 24 + 18 * row
        legend.append(el("line", x1=AXIS, x2=AXIS + 30, y1=under - 4, y2=under - 4, class_=kind))
        legend.append(el("text", line_name(line), x=AXIS + 38, y=under))
    height = bottom + 24 + 18 * len(shown)
    return sheet(title, height, ground, *grid, *drawn, *legend)
