"""Plots as SVG, drawn here: lines over time, ladders of percentiles, bars, sparklines.

Colours are classes, to which the page's style sheet gives a value in light and in dark. Every plot
says in words what it shows, and has its figures in a table beside it.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from rowmq.markup import Markup, el, join, nice_ticks
from rowmq.spark.pipelines.reporting.window import Window
from rowmq.spark.pipelines.reporting.wording import clock, moment
from rowmq.times import from_micros, to_micros

__all__ = [
    "Ladder",
    "Line",
    "Scale",
    "bar",
    "chart",
    "ladder",
    "ladder_axis",
    "ladder_scale",
    "sparkline",
]

WIDTH, HEIGHT = 340.0, 128.0
LEFT, RIGHT, TOP, BOTTOM = 40.0, 6.0, 8.0, 20.0

SPARK_WIDTH, SPARK_HEIGHT = 100.0, 20.0

TICKS_MAX = 5
HITS_MAX = 400
"""Of how many points a plot says its value when it is pointed at."""

TICK_SECONDS = (
    *(1, 2, 5, 10, 15, 30),
    *(60 * n for n in (1, 2, 5, 10, 15, 30)),
    *(3_600 * n for n in (1, 2, 3, 6, 12)),
    *(86_400 * n for n in (1, 2, 7, 14, 28, 91, 182, 364, 1820)),
)

DURATIONS = {
    1e-6: "1 µs",
    1e-5: "10 µs",
    1e-4: "0.1 ms",
    1e-3: "1 ms",
    1e-2: "10 ms",
    1e-1: "100 ms",
    1.0: "1 s",
    10.0: "10 s",
    60.0: "1 min",
    600.0: "10 min",
    3_600.0: "1 h",
    36_000.0: "10 h",
    86_400.0 * 4: "4 days",
    86_400.0 * 40: "40 days",
    86_400.0 * 400: "400 days",
    86_400.0 * 4000: "4000 days",
}
"""Where the axis of a ladder has marks: nearly a decade apart, at times that have a name."""

Say = Callable[[float], str]


class Line(NamedTuple):
    """Values over time, one for each bucket; None where there is none."""

    label: str
    values: Sequence[float | None]
    style: str
    """A class of the style sheet."""
    filled: bool = False


class Ladder(NamedTuple):
    """Durations in rising order, and the style of their line."""

    steps: Sequence[tuple[str, float]]
    style: str


# --- scales ---------------------------------------------------------------------------------------


def time_ticks(window: Window) -> list[datetime]:
    """Round times in a window, a few."""
    length = (window.until - window.since).total_seconds()
    fitting = (step for step in TICK_SECONDS if length / step <= TICKS_MAX)
    step = timedelta(seconds=next(fitting, TICK_SECONDS[-1])) // timedelta(microseconds=1)
    first = -(-to_micros(window.since) // step) * step
    return [from_micros(at) for at in range(first, to_micros(window.until) + 1, step)]


def tick_label(when: datetime, ticks: Sequence[datetime]) -> str:
    """A time of day, or at midnight the day."""
    if when.hour == when.minute == when.second == 0:
        long = len(ticks) > 1 and ticks[1] - ticks[0] >= timedelta(days=182)
        return f"{when:%b %Y}" if long else f"{when.day} {when:%b}"
    return clock(when, seconds=when.second != 0)


def log_position(value: float, low: float, high: float) -> float:
    """Where a value stands between two others, from 0 to 1, in a scale of factors."""
    value = min(max(value, low), high)
    return math.log(value / low) / math.log(high / low)


# --- lines over time ------------------------------------------------------------------------------


def chart(
    window: Window,
    lines: Sequence[Line],
    *,
    title: str,
    say: Say,
    axis: Say,
    whole: bool = False,
) -> Markup:
    """Lines over time, from zero; `say` words a value, `axis` does for a mark of the axis."""
    starts = window.starts
    known = [value for line in lines for value in line.values if value is not None]
    ticks = nice_ticks(max(known, default=0.0), whole=whole)
    frame = Frame(window, ticks[-1])
    return el(
        "svg",
        el("title", title),
        *(grid_line(frame, tick, axis) for tick in ticks),
        *time_axis(frame),
        *(drawn(frame, starts, line) for line in lines),
        *hits(frame, starts, lines, say),
        viewBox=f"0 0 {WIDTH:.0f} {HEIGHT:.0f}",
        class_="chart",
        role="img",
    )


class Frame(NamedTuple):
    """Where times and values stand on the paper."""

    window: Window
    top: float

    def x(self, when: datetime) -> float:
        since, until = self.window.since, self.window.until
        part = (when - since) / (until - since) if until > since else 0.5
        return LEFT + (WIDTH - LEFT - RIGHT) * min(max(part, 0.0), 1.0)

    def y(self, value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / self.top

    def middle(self, start: datetime) -> float:
        """The middle of what is in the window of a bucket."""
        begin = max(start, self.window.since)
        end = min(start + self.window.bucket, self.window.until)
        return self.x(begin + (end - begin) / 2)


def grid_line(frame: Frame, value: float, axis: Say) -> Markup:
    y = frame.y(value)
    return join(
        el("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, class_="grid" if value else "base"),
        el("text", axis(value), x=LEFT - 5, y=y + 3.5, class_="tick end"),
    )


def time_axis(frame: Frame) -> Iterator[Markup]:
    ticks = time_ticks(frame.window)
    bottom = HEIGHT - BOTTOM
    for when in ticks:
        x = frame.x(when)
        yield el("line", x1=x, x2=x, y1=bottom, y2=bottom + 3, class_="base")
        anchor = "start" if x < LEFT + 14 else "end" if x > WIDTH - RIGHT - 14 else "middle"
        yield el("text", tick_label(when, ticks), x=x, y=bottom + 14, class_=f"tick {anchor}")


def drawn(frame: Frame, starts: Sequence[datetime], line: Line) -> Markup:
    """A line, with gaps where nothing is known; a single point is a dot."""
    shapes = []
    for run in runs(line.values):
        points = [(frame.middle(starts[at]), frame.y(line.values[at] or 0.0)) for at in run]
        if len(points) == 1:
            (x, y), *_ = points
            shapes.append(el("circle", cx=x, cy=y, r=2.0, class_=f"dot {line.style}"))
            continue
        path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        if line.filled:
            first, last, floor = points[0][0], points[-1][0], frame.y(0)
            area = f"{path}L{last:.1f} {floor:.1f}L{first:.1f} {floor:.1f}Z"
            shapes.append(el("path", d=area, class_=f"area {line.style}"))
        shapes.append(el("path", d=path, class_=f"line {line.style}"))
    return join(*shapes)


def runs(values: Sequence[float | None]) -> Iterator[list[int]]:
    """The places of values that follow each other without a gap."""
    run: list[int] = []
    for at, value in enumerate(values):
        if value is not None:
            run.append(at)
        elif run:
            yield run
            run = []
    if run:
        yield run


def hits(
    frame: Frame, starts: Sequence[datetime], lines: Sequence[Line], say: Say
) -> Iterator[Markup]:
    """What a plot says where it is pointed at."""
    if len(starts) > HITS_MAX:
        return
    for at, start in enumerate(starts):
        told = [
            f"{line.label}: {say(value)}"
            for line in lines
            if (value := line.values[at]) is not None
        ]
        if told:
            left, right = frame.x(start), frame.x(start + frame.window.bucket)
            when = moment(start, seconds=frame.window.fine)
            label = f"{when} UTC\n" + "\n".join(told)
            size = {"width": max(right - left, 0.5), "height": HEIGHT - BOTTOM}
            yield el("rect", el("title", label), x=left, y=0, class_="hit", **size)


def sparkline(values: Sequence[float | None], style: str) -> Markup:
    """A line in a table: its shape, without a scale."""
    top = max((value for value in values if value is not None), default=0.0) or 1.0
    step = SPARK_WIDTH / max(len(values) - 1, 1)
    shapes = []
    for run in runs(values):
        points = [
            (at * step, SPARK_HEIGHT - 1.5 - (SPARK_HEIGHT - 3) * (values[at] or 0.0) / top)
            for at in run
        ]
        path = "M" + "L".join(
            f"{x:.1f} {y:.1f}" for x, y in (points * 2 if len(run) == 1 else points)
        )
        shapes.append(el("path", d=path, class_=f"line {style}"))
    return el(
        "svg",
        *shapes,
        viewBox=f"0 0 {SPARK_WIDTH:.0f} {SPARK_HEIGHT:.0f}",
        preserveAspectRatio="none",
        class_="spark",
        aria_hidden="true",
    )


# --- bars and ladders: as wide as there is room, so in percent ------------------------------------


def bar(parts: Sequence[tuple[float, str]], *, title: str | None = None) -> Markup:
    """A bar whose parts, of 1 in all, stand after each other."""
    begin, rects = 0.0, []
    for part, style in parts:
        width = max(100 * part, 0.4 if part else 0.0)
        rects.append(
            el("rect", x=f"{begin:.2f}%", width=f"{width:.2f}%", y=0, height="100%", class_=style)
        )
        begin += 100 * part
    told = None if title is None else el("title", title)
    hidden = "true" if title is None else None
    return el("svg", told, *rects, class_="bar", role=title and "img", aria_hidden=hidden)


class Scale(NamedTuple):
    """The axis of ladders, in factors; where there are zeros, their place is left of all others."""

    low: float
    high: float
    zero: bool = False

    @property
    def left(self) -> float:
        return self.low / 10 if self.zero else self.low

    @property
    def marks(self) -> dict[float, str]:
        within = {at: said for at, said in DURATIONS.items() if self.low <= at <= self.high}
        return {self.left: "0"} | within if self.zero else within

    def percent(self, value: float) -> str:
        return f"{100 * log_position(value, self.left, self.high):.2f}%"


def ladder_scale(values: Sequence[float]) -> Scale:
    """The axis of ladders: it ends at marks that all values are between."""
    marks = list(DURATIONS)
    some = [value for value in values if value > 0] or [1.0]
    low = max((mark for mark in marks if mark <= min(some)), default=marks[0])
    high = min((mark for mark in marks if mark >= max(some)), default=marks[-1])
    if high <= low:
        place = marks.index(low)
        low, high = marks[max(place - 1, 0)], marks[min(place + 1, len(marks) - 1)]
    return Scale(low, high, zero=any(value <= 0 for value in values))


def ladder(ladders: Sequence[Ladder], scale: Scale, *, title: str) -> Markup:
    """Percentiles from the median to the maximum, each set a line with its steps."""
    shapes = [
        el("line", x1=at, x2=at, y1=0, y2="100%", class_="grid")
        for at in (scale.percent(mark) for mark in scale.marks)
    ]
    for row, found in enumerate(ladders):
        y = 9 + 14 * row
        places = [(name, scale.percent(value)) for name, value in found.steps]
        if places:
            shapes.append(
                el(
                    "line",
                    x1=places[0][1],
                    x2=places[-1][1],
                    y1=y,
                    y2=y,
                    class_=f"rail {found.style}",
                )
            )
        shapes.extend(rung(name, at, y, found.style) for name, at in places)
    size = "ladder" if len(ladders) > 1 else "ladder single"
    return el("svg", el("title", title), *shapes, class_=size, role="img")


def rung(name: str, at: str, y: float, style: str) -> Markup:
    """A step: the median is a disc, the maximum a ring, those between are strokes."""
    if name == "p50":
        return el("circle", cx=at, cy=y, r=4, class_=f"disc {style}")
    if name == "max":
        return el("circle", cx=at, cy=y, r=3, class_=f"ring {style}")
    return el("line", x1=at, x2=at, y1=y - 4, y2=y + 4, class_=f"rung {style}")


def ladder_axis(scale: Scale) -> Markup:
    """The marks under ladders."""
    texts = []
    for mark, label in scale.marks.items():
        anchor = "start" if mark == scale.left else "end" if mark == scale.high else "middle"
        texts.append(el("text", label, x=scale.percent(mark), y=12, class_=f"tick {anchor}"))
    return el("svg", *texts, class_="ladder-axis", aria_hidden="true")
