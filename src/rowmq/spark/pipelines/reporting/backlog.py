"""How far groups are behind, over time and now, and what is in queues now."""

from collections.abc import Iterator

from rowmq.spark.pipelines.reporting import plots
from rowmq.spark.pipelines.reporting.book import Name, Points
from rowmq.spark.pipelines.reporting.findings import Story
from rowmq.spark.pipelines.reporting.html import Markup, el, member, name, visible
from rowmq.spark.pipelines.reporting.live import LiveQueue
from rowmq.spark.pipelines.reporting.plots import Line
from rowmq.spark.pipelines.reporting.series import drawn_values
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
from rowmq.spark.pipelines.reporting.wording import lasting, moment, number, short

__all__ = ["lag", "standing"]


def lag(story: Story) -> Iterator[Markup | None]:
    book, window = story.book, story.window
    last, most = book.by("lag", "last", "topic", "group"), book.by("lag", "max", "topic", "group")
    if not last:
        return
    series = book.series("lag", "max", "topic", "group")
    groups = sorted(most, key=lambda group: (-last.get(group, 0.0), -most[group], str(group)))
    yield el("p", "How many messages groups had not acked, by topic and group.", class_="lead")
    if len(window.starts) > 1 and any(len(points) > 1 for points in series.values()):
        yield key(("one", "the most in each step, messages"))
        yield charts(
            lag_figure(window, group, series.get(group, {}), last.get(group, 0.0))
            for group in groups[:CHARTS_MAX]
        )
    oldest = book.by("oldest", "last", "topic", "group")
    in_flight = book.by("in_flight", "last", "topic", "group")
    shown = groups[:ROWS_MAX]
    yield table(
        "Lag, in messages",
        headed(
            *("topic and group", "at the end", "most", "in flight", "oldest waits"),
            words=("topic and group",),
        ),
        [
            Row(
                (
                    member(*group),
                    number(last.get(group, 0.0)),
                    number(most[group]),
                    number(in_flight.get(group, 0.0)),
                    lasting(oldest[group]) if oldest.get(group) else None,
                )
            )
            for group in shown
        ],
    )
    yield left_out(len(shown), len(groups), "groups")


def lag_figure(window: Window, group: Name, points: Points, last: float) -> Markup:
    of = f"group {visible(str(group[1]))} of topic {visible(str(group[0]))}"
    plot = plots.chart(
        window,
        [Line("lag", drawn_values(points, window), "one", filled=True)],
        title=f"Lag of {of} over time, in messages",
        say=number,
        axis=short,
        whole=True,
    )
    return figure(plot, member(*group), f"{number(last)} at the end")


# --- now ------------------------------------------------------------------------------------------


def standing(story: Story) -> Iterator[Markup | None]:
    """What the database said when it was asked."""
    live = story.live
    if live is None or not (live.queues or live.groups):
        return
    yield el("p", f"What the database said at {moment(live.at)} UTC.", class_="lead")
    if live.queues:
        queues = sorted(live.queues, key=lambda queue: (-waiting(queue), queue.queue))
        states = ("pending", "processing", "retryable", "completed", "failed")
        yield table(
            "Jobs in queues, with what is kept of finished ones",
            headed("queue", *states, "due for", "", words=("queue", "")),
            [queue_row(queue, states) for queue in queues[:ROWS_MAX]],
        )
        yield left_out(min(len(queues), ROWS_MAX), len(queues), "queues")
    if live.groups:
        groups = sorted(live.groups, key=lambda group: (-group.lag, group.topic, group.group))
        titles = ("topic and group", "keys", "lag", "in flight", "oldest waits", "subscribers")
        yield table(
            "Consumer groups",
            headed(*titles, words=("topic and group",)),
            [
                Row(
                    (
                        member(group.topic, group.group),
                        number(group.partitions),
                        number(group.lag),
                        number(group.in_flight),
                        lasting(group.oldest_seconds) if group.oldest_seconds else None,
                        number(group.subscribers),
                    )
                )
                for group in groups[:ROWS_MAX]
            ],
        )
        yield left_out(min(len(groups), ROWS_MAX), len(groups), "groups")


def queue_row(queue: LiveQueue, states: tuple[str, ...]) -> Row:
    remarks = [
        *(["paused"] if queue.paused else []),
        *([] if queue.keeps_completed else ["keeps no completed jobs"]),
    ]
    counts = [queue.counts.get(state, 0) for state in states]
    return Row(
        (
            name(queue.queue),
            *(number(found) if found else None for found in counts),
            lasting(queue.due_seconds) if queue.due_seconds else None,
            ", ".join(remarks),
        )
    )


def waiting(queue: LiveQueue) -> int:
    return sum(queue.counts.get(state, 0) for state in ("pending", "processing", "retryable"))
