"""What had to be tried again, and what was given up on and why."""

from collections import defaultdict
from collections.abc import Iterator

from rowmq.spark.pipelines.reporting import plots
from rowmq.spark.pipelines.reporting.book import Name
from rowmq.spark.pipelines.reporting.findings import Story
from rowmq.spark.pipelines.reporting.html import Markup, el, join, member, name, visible
from rowmq.spark.pipelines.reporting.reasons import Place, Reason
from rowmq.spark.pipelines.reporting.tabular import (
    ROWS_MAX,
    Row,
    headed,
    key,
    left_out,
    table,
)
from rowmq.spark.pipelines.reporting.wording import brief, count, number, share

__all__ = ["failures", "retries"]

ATTEMPTS_SHOWN = 5
"""As many attempts have a column of their own; the last one stands for more, too."""

REASONS_MAX = 20
PLACES_MAX = 6
EXAMPLE_CHARS_MAX = 400

Tally = dict[int, float]
"""How many things took so many attempts."""


# --- retries --------------------------------------------------------------------------------------


def retries(story: Story) -> Iterator[Markup | None]:
    queues: dict[Name, Tally] = defaultdict(lambda: defaultdict(float))
    book = story.book
    for (queue, _, tries), jobs in book.by(
        "attempts", "count", "queue", "state", "attempts"
    ).items():
        queues[(queue,)][int(tries or 0)] += jobs
    if not queues:
        return
    ordered = sorted(queues, key=lambda queue: (-again(queues[queue]), str(queue)))
    shown = ordered[:ROWS_MAX]
    labels = [*(str(n) for n in range(1, ATTEMPTS_SHOWN)), f"{ATTEMPTS_SHOWN} or more"]
    yield el("p", "How many attempts finished jobs took, whether they were done or given up on.")
    yield key(*((f"a{place}", label) for place, label in enumerate(labels, 1)))
    bars = [
        part
        for queue in shown
        for part in (el("div", name(str(queue[0])), class_="label"), attempts_bar(queues[queue]))
    ]
    yield el("div", *bars, class_="rows")
    yield table(
        "Jobs by the number of attempts they took",
        headed("queue", "jobs", *labels, "tried again", "mean attempts", words=("queue",)),
        [attempts_row(queue, queues[queue]) for queue in shown],
    )
    yield left_out(len(shown), len(ordered), "queues")


def again(tally: Tally) -> float:
    """The part that took more than one attempt."""
    total = sum(tally.values())
    return sum(jobs for tries, jobs in tally.items() if tries > 1) / total if total else 0.0


def columns_of(tally: Tally) -> list[float]:
    """How many took one attempt, two, and so on; the last of them for more, too."""
    columns = [0.0] * ATTEMPTS_SHOWN
    for tries, jobs in tally.items():
        columns[min(max(tries, 1), ATTEMPTS_SHOWN) - 1] += jobs
    return columns


def attempts_bar(tally: Tally) -> Markup:
    total = sum(tally.values()) or 1.0
    columns = columns_of(tally)
    told = ", ".join(
        f"{place}: {share(jobs, total)}" for place, jobs in enumerate(columns, 1) if jobs
    )
    parts = [(jobs / total, f"a{place}") for place, jobs in enumerate(columns, 1)]
    return plots.bar(parts, title=f"Share of jobs by attempts: {told}")


def attempts_row(queue: Name, tally: Tally) -> Row:
    total = sum(tally.values())
    cells = [number(jobs) if jobs else None for jobs in columns_of(tally)]
    mean = sum(tries * jobs for tries, jobs in tally.items()) / total if total else 0.0
    repeated = share(again(tally), 1.0) if again(tally) else None
    return Row((name(str(queue[0])), number(total), *cells, repeated, f"{mean:.2f}"))


# --- failures -------------------------------------------------------------------------------------


def failures(story: Story) -> Iterator[Markup | None]:
    total = story.book.total("dead_letters") + sum(
        jobs
        for (_, state), jobs in story.book.by("finished", "count", "queue", "state").items()
        if state == "failed"
    )
    if not total:
        return
    shown = story.reasons[:REASONS_MAX]
    yield el(
        "p",
        f"Jobs and messages that were given up on, {number(total)} in all, by reason. Errors that "
        "differ only in numbers, ids, quoted words, paths or one name are one reason; the newest "
        "is shown as it was.",
    )
    yield el("ol", *(reason_item(reason, total) for reason in shown), class_="reasons")
    yield left_out(len(shown), len(story.reasons), "reasons")


def reason_item(reason: Reason, total: float) -> Markup:
    example = shortened(reason.example or "")
    return el(
        "li",
        el("div", number(reason.times), el("small", share(reason.times, total)), class_="count"),
        el(
            "div",
            el("code", visible(reason.text), class_="text", dir="auto"),
            el("p", seen(reason), " · ", places(reason)),
            el("code", example, class_="example", dir="auto")
            if example and example != reason.text
            else None,
            class_="body",
        ),
    )


def seen(reason: Reason) -> str:
    first, last = brief(reason.first), brief(reason.last)
    return last if first == last else f"{first} to {last}"


def places(reason: Reason) -> Markup:
    """Where it happened, most often first."""
    told = [
        join(place_name(place), f" {number(times)}")
        for place, times in list(reason.places.items())[:PLACES_MAX]
    ]
    if len(reason.places) > PLACES_MAX:
        told.append(join(f"{count(len(reason.places) - PLACES_MAX, 'other place')}"))
    return join(*told, between=", ")


def place_name(place: Place) -> Markup:
    if place.queue is not None:
        return join("queue ", name(place.queue))
    return join("topic ", member(place.topic, place.group))


def shortened(text: str) -> str:
    """The beginning of a text, in which what cannot be seen is shown by a sign."""
    cut = text if len(text) <= EXAMPLE_CHARS_MAX else text[: EXAMPLE_CHARS_MAX - 1] + "…"
    return visible(" ".join(cut.split()))
