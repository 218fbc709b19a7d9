"""How much was published, put, handled and finished, over time."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from rowmq.spark.pipelines.reporting import plots
from rowmq.spark.pipelines.reporting.book import Book, Name, Points
from rowmq.spark.pipelines.reporting.findings import Story
from rowmq.spark.pipelines.reporting.html import Markup, el, name, visible
from rowmq.spark.pipelines.reporting.plots import Line
from rowmq.spark.pipelines.reporting.series import (
    Values,
    common_rate,
    drawn_rates,
    handled_points,
    rates,
)
from rowmq.spark.pipelines.reporting.tabular import (
    CHARTS_MAX,
    ROWS_MAX,
    Row,
    charts,
    figure,
    headed,
    key,
    left_out,
    table,
)
from rowmq.spark.pipelines.reporting.window import Window
from rowmq.spark.pipelines.reporting.wording import brief, count, number, share, short

__all__ = ["throughput"]


class Pace(NamedTuple):
    """Rates in one unit of time, for plots and tables that stand together."""

    window: Window
    seconds: float
    unit: str

    @classmethod
    def of(cls, window: Window, series: Iterable[Points]) -> "Pace":
        return cls(window, *common_rate(rates(points, window) for points in series))

    def drawn(self, points: Points, *, silence: float | None = 0.0) -> Values:
        return drawn_rates(points, self.window, self.seconds, silence=silence)

    def chart(self, lines: Sequence[Line], title: str) -> Markup:
        return plots.chart(
            self.window,
            lines,
            title=f"{title}, per {self.unit}",
            say=lambda rate: f"{speed(rate)} / {self.unit}",
            axis=short,
        )

    def cells(self, total: float, points: Points) -> tuple[str | None, ...]:
        """The mean, the peak, and when that was."""
        length = (self.window.until - self.window.since).total_seconds()
        known = [rate for rate in rates(points, self.window) if rate is not None]
        busiest = max(points, key=lambda at: points[at], default=None)
        begin = None if busiest is None else max(busiest, self.window.since)
        return (
            speed(total / length * self.seconds),
            speed(max(known) * self.seconds) if known and points else None,
            None if begin is None else brief(begin, seconds=self.window.fine),
        )


SPEEDS = ("mean", "peak", "busiest from")


def speed(rate: float) -> str:
    """A rate, with one digit behind the point where it is small."""
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.1f}" if rate >= 0.05 else f"{rate:.2g}"


def throughput(story: Story) -> Iterator[Markup | None]:
    yield from topics(story)
    yield from queues(story)


# --- topics ---------------------------------------------------------------------------------------


def topics(story: Story) -> Iterator[Markup | None]:
    window, book = story.window, story.book
    totals = book.by("published", "count", "topic")
    if not totals:
        return
    published = book.series("published", "count", "topic")
    handled = handled_by_topic(book, published, window)
    pace = Pace.of(window, published.values())
    yield el("h3", "Topics")
    yield key(
        ("one", f"published, messages per {pace.unit}"),
        *([("two", "handled, a line for each group")] if handled else []),
    )
    yield charts(
        topic_figure(pace, topic, published.get(topic, {}), handled.get(topic, {}))
        for topic in list(totals)[:CHARTS_MAX]
    )
    shown = list(totals)[:ROWS_MAX]
    yield table(
        f"Messages published; rates are messages per {pace.unit}",
        headed("topic", "messages", "share", *SPEEDS, words=("topic",)),
        [topic_row(pace, book, topic, published.get(topic, {})) for topic in shown],
    )
    yield left_out(len(shown), len(totals), "topics")
    if handled:
        yield el(
            "p",
            "What groups handled is estimated: what was published, less what they fell behind by "
            "from one sample of their lag to the next.",
            class_="note",
        )


def handled_by_topic(
    book: Book, published: dict[Name, Points], window: Window
) -> dict[Name, dict[str, Points]]:
    """What each group of a topic handled."""
    found: dict[Name, dict[str, Points]] = {}
    lags = book.series("lag", "last", "topic", "group")
    for (topic, group), lag in sorted(lags.items(), key=str):
        if (topic,) in published:
            points = handled_points(published[topic,], lag, window)
            if points:
                found.setdefault((topic,), {})[str(group)] = points
    return found


def topic_figure(pace: Pace, topic: Name, published: Points, handled: dict[str, Points]) -> Markup:
    lines = [
        Line(f"handled by {visible(group)}", pace.drawn(points, silence=None), "two thin")
        for group, points in handled.items()
    ]
    # Drawn last, so that it is seen where groups keep up.
    lines.append(Line("published", pace.drawn(published), "one", filled=True))
    plot = pace.chart(lines, f"Messages of topic {visible(str(topic[0]))} over time")
    return figure(plot, name(str(topic[0])), count(int(sum(published.values())), "message"))


def topic_row(pace: Pace, book: Book, topic: Name, published: Points) -> Row:
    total = sum(published.values())
    part = share(total, book.total("published"))
    return Row((name(str(topic[0])), number(total), part, *pace.cells(total, published)))


# --- queues ---------------------------------------------------------------------------------------


def queues(story: Story) -> Iterator[Markup | None]:
    window, book = story.window, story.book
    put = book.series("put", "count", "queue")
    finished = finished_by_queue(book)
    sizes = {of: sum(put.get(of, {}).values()) for of in put.keys() | finished.keys()}
    if not sizes:
        return
    names = sorted(sizes, key=lambda of: (-sizes[of], str(of)))
    pace = Pace.of(window, put.values())
    yield el("h3", "Queues")
    yield key(("one", f"put, jobs per {pace.unit}"), ("two", "finished"))
    yield charts(
        queue_figure(pace, queue, put.get(queue, {}), finished.get(queue, {}))
        for queue in names[:CHARTS_MAX]
    )
    shown = names[:ROWS_MAX]
    yield table(
        f"Jobs; rates are jobs put per {pace.unit}",
        headed("queue", "put", "completed", "failed", "failed share", *SPEEDS, words=("queue",)),
        [queue_row(pace, book, queue, put.get(queue, {})) for queue in shown],
    )
    yield left_out(len(shown), len(names), "queues")


def finished_by_queue(book: Book) -> dict[Name, Points]:
    """How many jobs were finished over time, however they ended."""
    found: dict[Name, Points] = {}
    for (queue, _), points in book.series("finished", "count", "queue", "state").items():
        together = found.setdefault((queue,), {})
        for at, jobs in points.items():
            together[at] = together.get(at, 0.0) + jobs
    return found


def queue_figure(pace: Pace, queue: Name, put: Points, finished: Points) -> Markup:
    lines = [
        Line("finished", pace.drawn(finished), "two"),
        Line("put", pace.drawn(put), "one", filled=True),
    ]
    plot = pace.chart(lines, f"Jobs of queue {visible(str(queue[0]))} over time")
    done = count(int(sum(finished.values())), "job")
    return figure(plot, name(str(queue[0])), f"{done} finished")


def queue_row(pace: Pace, book: Book, queue: Name, put: Points) -> Row:
    states = book.by("finished", "count", "queue", "state")
    completed = states.get((*queue, "completed"), 0.0)
    failed = states.get((*queue, "failed"), 0.0)
    total = sum(put.values())
    return Row(
        (
            name(str(queue[0])),
            number(total),
            number(completed) if completed else None,
            number(failed) if failed else None,
            share(failed, completed + failed) if failed else None,
            *pace.cells(total, put),
        )
    )
