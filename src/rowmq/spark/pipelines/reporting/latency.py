"""How long things took: percentiles as ladders, in figures, and over time."""

from collections.abc import Iterator, Mapping, Sequence

from rowmq.spark.pipelines.reporting import plots
from rowmq.spark.pipelines.reporting.book import Book, Name, Points
from rowmq.spark.pipelines.reporting.figures import STATISTICS
from rowmq.spark.pipelines.reporting.findings import Story
from rowmq.spark.pipelines.reporting.html import Markup, el, member, name, visible
from rowmq.spark.pipelines.reporting.plots import Ladder, Line
from rowmq.spark.pipelines.reporting.series import drawn_values
from rowmq.spark.pipelines.reporting.tabular import (
    CHARTS_MAX,
    ROWS_MAX,
    Column,
    Row,
    charts,
    figure,
    headed,
    key,
    left_out,
    table,
)
from rowmq.spark.pipelines.reporting.window import Window
from rowmq.spark.pipelines.reporting.wording import lasting, number, time_unit

__all__ = ["latency"]

LADDERS_MAX = 20
TITLES = {"max": "longest"}

Spread = Mapping[str, float]
"""Percentiles and the maximum."""

MARKS = "Each ladder: a disc for p50, strokes for p90, p95 and p99, a ring for the longest."


def latency(story: Story) -> Iterator[Markup | None]:
    yield from of_jobs(story)
    yield from of_topics(story)


# --- jobs -----------------------------------------------------------------------------------------


def of_jobs(story: Story) -> Iterator[Markup | None]:
    book = story.book
    whole, handling = spreads(book, "end_to_end", "queue"), spreads(book, "handling", "queue")
    jobs = jobs_by_queue(book)
    queues = [queue for queue in jobs if queue in whole or queue in handling]
    if not queues:
        return
    yield el("h3", "Jobs")
    yield key(
        ("one", "end to end: due until finished"), ("two", "handling: started until finished")
    )
    yield el("p", MARKS, class_="note")
    yield ladders(
        [
            (name(str(queue[0])), {"one": whole.get(queue, {}), "two": handling.get(queue, {})})
            for queue in queues[:LADDERS_MAX]
        ]
    )
    yield job_table(book, queues[:ROWS_MAX], jobs)
    yield left_out(min(len(queues), ROWS_MAX), len(queues), "queues")
    yield from over_time(story, queues)


def jobs_by_queue(book: Book) -> dict[Name, float]:
    """How many jobs were finished, most first."""
    found: dict[Name, float] = {}
    for (queue, _), jobs in book.by("finished", "count", "queue", "state").items():
        found[(queue,)] = found.get((queue,), 0.0) + jobs
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def job_table(book: Book, queues: Sequence[Name], jobs: dict[Name, float]) -> Markup:
    """Both latencies of each queue, and of its kinds of jobs where it has several."""
    whole, handling = spreads(book, "end_to_end", "queue"), spreads(book, "handling", "queue")
    whole |= spreads(book, "end_to_end", "queue", "kind")
    handling |= spreads(book, "handling", "queue", "kind")
    counts = jobs | book.by("finished_of_kind", "count", "queue", "kind")
    rows = []
    for queue in queues:
        kinds = [of for of in counts if len(of) == 2 and of[0] == queue[0]]
        for of in (queue, *(kinds if len(kinds) > 1 else ())):
            cells = (*said(whole.get(of, {})), *said(handling.get(of, {})))
            rows.append(Row((name(str(of[-1])), number(counts[of]), *cells), part=of in kinds))
    return table(
        "Latency of jobs, by queue and kind; those that were given up on are among them",
        [*headed("queue", "jobs", words=("queue",)), *stepped(), *stepped()],
        rows,
        groups=(("", 2), ("end to end", len(STATISTICS)), ("handling", len(STATISTICS))),
    )


def over_time(story: Story, queues: Sequence[Name]) -> Iterator[Markup | None]:
    window = story.window
    if len(window.starts) < 2:
        return
    middle = story.book.series("end_to_end", "p50", "queue")
    slow = story.book.series("end_to_end", "p95", "queue")
    yield el("h3", "Jobs, end to end, over time")
    yield key(("one", "p50"), ("two", "p95"))
    yield charts(
        time_figure(window, queue, middle.get(queue, {}), slow.get(queue, {}))
        for queue in queues[:CHARTS_MAX]
    )


def time_figure(window: Window, queue: Name, middle: Points, slow: Points) -> Markup:
    seconds, unit = time_unit(max(slow.values(), default=0.0))
    lines = [
        Line("p95", drawn_values(slow, window, seconds), "two"),
        Line("p50", drawn_values(middle, window, seconds), "one"),
    ]
    plot = plots.chart(
        window,
        lines,
        title=f"Time from due to finished of queue {visible(str(queue[0]))}: p50 and p95",
        say=lambda value: lasting(value * seconds),
        axis=lambda value: f"{value:g} {unit}" if value else "0",
    )
    return figure(plot, name(str(queue[0])))


# --- topics ---------------------------------------------------------------------------------------


def of_topics(story: Story) -> Iterator[Markup | None]:
    ages = spreads(story.book, "oldest", "topic", "group")
    groups = sorted(ages, key=lambda group: (-ages[group].get("p95", 0.0), str(group)))
    if not groups:
        return
    yield el("h3", "Topics: how long the oldest message waited for a group")
    waited = [group for group in groups if any(ages[group].values())]
    if waited:
        yield el("p", "Over all samples of lag, 0 where no message waited. ", MARKS, class_="note")
        yield ladders([(member(*group), {"one": ages[group]}) for group in waited[:LADDERS_MAX]])
    shown = groups[:ROWS_MAX]
    yield table(
        "Age of the oldest message that a group had not acked, over all samples",
        [*headed("topic and group", words=("topic and group",)), *stepped()],
        [Row((member(*group), *said(ages[group]))) for group in shown],
    )
    yield left_out(len(shown), len(groups), "groups")


# --- both -----------------------------------------------------------------------------------------


def spreads(book: Book, metric: str, *names: str) -> dict[Name, dict[str, float]]:
    """Percentiles and the maximum, by name."""
    found: dict[Name, dict[str, float]] = {}
    for statistic in STATISTICS:
        for of, value in book.by(metric, statistic, *names).items():
            found.setdefault(of, {})[statistic] = value
    return found


def stepped() -> list[Column]:
    """Columns for percentiles, set apart from those before."""
    first, *others = (TITLES.get(name, name) for name in STATISTICS)
    return [Column(first, "n gap"), *headed(*others)]


def said(spread: Spread) -> list[str | None]:
    return [lasting(spread[name]) if name in spread else None for name in STATISTICS]


def ladders(rows: Sequence[tuple[Markup, Mapping[str, Spread]]]) -> Markup:
    """A ladder for each row, all on one scale; by the style of each line."""
    scale = plots.ladder_scale(
        [value for _, lines in rows for spread in lines.values() for value in spread.values()]
    )
    cells = []
    for label, lines in rows:
        steps = [Ladder(list(spread.items()), style) for style, spread in lines.items()]
        told = "; ".join(
            ", ".join(f"{name} {lasting(value)}" for name, value in spread.items())
            for spread in lines.values()
        )
        cells += [el("div", label, class_="label"), plots.ladder(steps, scale, title=told)]
    cells += [el("div", class_="axis-gap"), plots.ladder_axis(scale)]
    return el("div", *cells, class_="rows")
