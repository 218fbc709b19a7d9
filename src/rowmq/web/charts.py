"""Charts, drawn on the server as SVG: lines over time, and columns side by side.

The drawing is stretched to its place and its lines keep their width; words stand beside it in HTML,
so that nothing is distorted on a phone. Colours are classes. `data-values` has the words for each
point, for who points at it; a sentence says the same to who cannot see it.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from rowmq.markup import Markup, el, join, nice_ticks
from rowmq.web.wording import short

__all__ = ["Bar", "Line", "bar", "columns", "lines", "spark"]

WIDTH, HEIGHT = 300.0, 100.0

TIME_STEPS: tuple[float, ...] = (
    *(0.25, 0.5, 1, 2, 5, 10, 15, 30),
    *(60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 14_400, 21_600, 43_200),
    *(86_400, 172_800, 432_000, 864_000, 2_592_000, 8_640_000),
)
"""Round lengths of time, in seconds."""

Say = Callable[[float], str]


class Line(NamedTuple):
    """Values over time, None where nobody looked. `tone` is its colour: one, two, info, warning,
    problem.
    """

    label: str
    values: Sequence[float | None]
    tone: str = "one"


class Bar(NamedTuple):
    """One column, and what is said of it."""

    label: str
    value: float
    tone: str = ""


def lines(
    series: Sequence[Line],
    *,
    span: tuple[str, str] = ("", "now"),
    say: Say = short,
    moments: Sequence[str] = (),
    whole: bool = False,
    times: bool = False,
) -> Markup:
    """Lines over time, the latest at the right. `moments` says when each point was; `times` says
    that the values are seconds.
    """
    known = [value for line in series for value in line.values if value is not None]
    most = max(known, default=0.0)
    ticks = time_ticks(most) if times else nice_ticks(most, whole=whole)
    top = ticks[-1]
    drawn = [join(*drawn_line(line, top)) for line in reversed(series)]
    rules = [
        el("line", class_="rule", x1=0, x2=WIDTH, y1=y, y2=y)
        for y in (HEIGHT - HEIGHT * tick / top for tick in ticks)
    ]
    cursor = el("line", class_="cursor", x1=0, x2=0, y1=0, y2=HEIGHT, visibility="hidden")
    drawing = el(
        "svg",
        *rules,
        *drawn,
        cursor,
        viewBox=f"0 0 {WIDTH:.0f} {HEIGHT:.0f}",
        preserveAspectRatio="none",
        role="img",
        aria_label=sentence(series, say),
        data_values=";".join(values_of(series, say, moments)),
    )
    labels = el(
        "div",
        *(el("span", say(tick)) for tick in reversed(ticks)),
        class_="ticks",
        aria_hidden="true",
    )
    below = el("div", el("span", span[0]), el("span", span[1]), class_="span")
    readout = el("div", class_="readout", hidden=True)
    return el("div", labels, drawing, below, readout, class_="plot")


def time_ticks(top: float) -> list[float]:
    """Round lengths of time from zero, of which the last is the top of the axis."""
    step = next((one for one in TIME_STEPS if one * 4 >= top), 0.0)
    if not step:
        return nice_ticks(top)
    return [step * n for n in range(max(math.ceil(top / step - 1e-9), 1) + 1)]


def drawn_line(line: Line, top: float) -> list[Markup]:
    """A line and the area below it, in as many pieces as there are gaps."""
    last = max(len(line.values) - 1, 1)
    places = [
        None if value is None else (WIDTH * at / last, HEIGHT - HEIGHT * min(value / top, 1.0))
        for at, value in enumerate(line.values)
    ]
    areas, strokes = [], []
    for piece in pieces(places):
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in piece)
        left, right = piece[0][0], piece[-1][0]
        areas.append(f"M{left:.1f},{HEIGHT:.0f} L{path} L{right:.1f},{HEIGHT:.0f} Z")
        # A point alone is a line of no length, which round ends make visible.
        strokes.append(f"M{path}" if len(piece) > 1 else f"M{path} h0.5")
    if not strokes:
        return []
    return [
        el("path", class_=f"area {line.tone}", d=" ".join(areas)),
        el("path", class_=f"line {line.tone}", d=" ".join(strokes)),
    ]


def pieces(
    places: Sequence[tuple[float, float] | None],
) -> list[list[tuple[float, float]]]:
    """Runs of points without a gap."""
    found: list[list[tuple[float, float]]] = [[]]
    for place in places:
        if place is not None:
            found[-1].append(place)
        elif found[-1]:
            found.append([])
    return [piece for piece in found if piece]


def values_of(series: Sequence[Line], say: Say, moments: Sequence[str]) -> list[str]:
    """What is said of each point."""
    told = []
    for at in range(max((len(line.values) for line in series), default=0)):
        known = [
            f"{line.label} {say(value)}" if len(series) > 1 else say(value)
            for line in series
            if at < len(line.values) and (value := line.values[at]) is not None
        ]
        when = f"{moments[at]}: " if at < len(moments) else ""
        told.append(when + ", ".join(known) if known else "")
    return told


def sentence(series: Sequence[Line], say: Say) -> str:
    """What the chart shows, for who cannot see it."""
    parts = []
    for line in series:
        known = [value for value in line.values if value is not None]
        if known:
            parts.append(f"{line.label}: {say(known[-1])} now, at most {say(max(known))}")
    return "; ".join(parts) or "nothing measured yet"


def spark(values: Sequence[float | None], *, label: str) -> Markup:
    """One small line, without an axis, for a row of a table."""
    known = [value for value in values if value is not None]
    top = max(known, default=0.0) or 1.0
    return el(
        "svg",
        *drawn_line(Line("", values), top),
        class_="spark",
        viewBox=f"0 -4 {WIDTH:.0f} {HEIGHT + 8:.0f}",
        preserveAspectRatio="none",
        role="img",
        aria_label=label,
    )


def columns(bars: Sequence[Bar], *, label: str) -> Markup:
    """Columns side by side, the highest as high as the drawing."""
    top = max((bar.value for bar in bars), default=0.0) or 1.0
    step = 1000.0 / max(len(bars), 1)
    drawn = []
    for at, one in enumerate(bars):
        height = max(HEIGHT * one.value / top, 1.0 if one.value else 0.0)
        drawn.append(
            el(
                "rect",
                el("title", one.label),
                class_=one.tone or None,
                x=at * step + step * 0.1,
                y=HEIGHT - height,
                width=step * 0.8,
                height=height,
            )
        )
    return el(
        "svg",
        *drawn,
        class_="columns",
        viewBox=f"0 0 1000 {HEIGHT:.0f}",
        preserveAspectRatio="none",
        role="img",
        aria_label=label,
    )


def bar(value: float, most: float, tone: str = "", label: str | None = None) -> Markup:
    """How much of something, from nothing to all."""
    part = min(max(value / most, 0.0), 1.0) if most else 0.0
    width = max(100 * part, 1.5) if part else 0.0
    drawn = el("rect", class_=tone or None, x=0, y=0, width=width, height=8)
    return el(
        "svg",
        drawn,
        class_="bar",
        viewBox="0 0 100 8",
        preserveAspectRatio="none",
        role="img" if label else None,
        aria_label=label,
        aria_hidden=None if label else "true",
    )
