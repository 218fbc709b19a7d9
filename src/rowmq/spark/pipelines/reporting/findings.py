"""What needs attention first, in words: figures measured by what is usual."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from enum import IntEnum
from typing import NamedTuple

from rowmq.spark.pipelines.reporting.book import Book, Points
from rowmq.spark.pipelines.reporting.live import Live
from rowmq.spark.pipelines.reporting.reasons import Place, Reason
from rowmq.spark.pipelines.reporting.window import Window
from rowmq.spark.pipelines.reporting.wording import UNIT, count, factor, lasting, number, share

__all__ = [
    "Finding",
    "Literal",
    "Named",
    "Story",
    "Urgency",
    "are_settled",
    "findings_of",
    "plain",
]

FAILING_SHARE = 0.01
"""From what part of given up jobs on a queue is said to fail."""

RETRIED_SHARE = 0.1
FEW = 20
"""So few say nothing about the rest."""

OLD_SECONDS = 300.0
"""How long a message may wait for a group."""

LAG_GROWTH = 2.0
"""How much larger than the median of its time a lag is that grows."""

TAIL = 20.0
"""How much longer than the median the slowest hundredth may take."""

TAIL_SECONDS = 30.0
TAIL_JOBS = 100
"""From how many jobs on one can speak of the slowest hundredth."""

HOT_SHARE = 0.25
HOT_SKEW = 5.0
HOT_MESSAGES = 1_000
NEW_PART = 0.1
"""The last part of the window: what was first seen in it is new."""


class Named(str):
    """A name in a sentence, which somebody else gave."""

    __slots__ = ()


class Literal(str):
    """An error, or a command, in a sentence: it stands there as it is."""

    __slots__ = ()


Sentence = tuple[str, ...]


class Urgency(IntEnum):
    """What comes first."""

    NOW = 0
    SOON = 1
    NOTE = 2


class Finding(NamedTuple):
    """Something that needs attention, and what to do about it."""

    urgency: Urgency
    weight: float
    """Among those that are as urgent, the larger comes first."""
    what: Sentence
    advice: Sentence = ()


class Story(NamedTuple):
    """All that is known."""

    window: Window
    book: Book
    reasons: list[Reason]
    live: Live | None = None


def plain(sentence: Iterable[str]) -> str:
    """A sentence as text."""
    told = (repr(str(part)) if isinstance(part, Named) else str(part) for part in sentence)
    return "".join(told).replace(UNIT, " ")


def findings_of(story: Story) -> list[Finding]:
    """What needs attention, the most urgent first."""
    found = [
        *judge_lag(story),
        *judge_unattended(story),
        *judge_failing(story),
        *judge_letters(story),
        *judge_new(story),
        *judge_queues(story),
        *judge_latency(story),
        *judge_retries(story),
        *judge_keys(story),
        *judge_expired(story),
    ]
    return sorted(
        found, key=lambda finding: (finding.urgency, -finding.weight, plain(finding.what))
    )


# --- topics ---------------------------------------------------------------------------------------


def judge_lag(story: Story) -> Iterator[Finding]:
    """Groups that are behind at the end: for long, or ever more."""
    ages = story.book.by("oldest", "last", "topic", "group")
    series = story.book.series("lag", "last", "topic", "group")
    for name, lag in story.book.by("lag", "last", "topic", "group").items():
        topic, group = (Named(part) for part in name)
        age = ages.get(name, 0.0)
        if not lag or age < OLD_SECONDS:
            continue
        rising = is_rising(series.get(name, {}))
        grows = " and falls further behind" if rising else ""
        yield Finding(
            Urgency.NOW if rising else Urgency.SOON,
            age,
            (
                *("Group ", group, " of topic ", topic, f" is {count(int(lag), 'message')} behind"),
                f"{grows}; the oldest has waited {lasting(age)}.",
            ),
            (
                "Start more subscribers, make its handler faster, or look for a stuck key: ",
                Literal("rowmq lag --partitions"),
            ),
        )


def is_rising(points: Points) -> bool:
    """Whether the last value is far over what was usual, and higher than a little before."""
    values = [points[at] for at in sorted(points)]
    if len(values) < 6:
        return False
    usual = sorted(values)[len(values) // 2]
    return values[-1] > LAG_GROWTH * max(usual, 1.0) and values[-1] > values[-4]


def judge_unattended(story: Story) -> Iterator[Finding]:
    """Groups that nobody consumes."""
    for group in story.live.groups if story.live else ():
        if group.lag and not group.subscribers and (group.oldest_seconds or 0) > OLD_SECONDS:
            yield Finding(
                Urgency.NOW,
                float(group.lag),
                (
                    *("Nobody consumes group ", Named(group.group), " of topic "),
                    *(Named(group.topic), f": {count(group.lag, 'message')} wait."),
                ),
                ("Start a subscriber; or, if nobody needs the group any more, drop it.",),
            )


def judge_letters(story: Story) -> Iterator[Finding]:
    """Messages that the groups of a topic gave up on."""
    published = story.book.by("published", "count", "topic")
    topics: dict[str, dict[str, float]] = {}
    for (topic, group), letters in story.book.by("dead_letters", "count", "topic", "group").items():
        topics.setdefault(str(topic), {})[str(group)] = letters
    for topic, groups in topics.items():
        letters, total = sum(groups.values()), published.get((topic,), 0.0)
        part = f", {share(letters, total)} of what was published to it" if total >= letters else ""
        many = letters >= FEW or letters > FAILING_SHARE * total
        settled = are_settled(story, topic)
        yield Finding(
            Urgency.SOON if many and not settled else Urgency.NOTE,
            letters,
            (
                *(f"{count(int(letters), 'message')} of topic ", Named(topic)),
                *(" were" if letters > 1 else " was", " given up on", part, ", by "),
                *by_groups(groups),
                *(gone(letters) if settled else ()),
                *mostly(story.reasons, [Place(topic, group, None) for group in groups]),
            ),
            ()
            if settled
            else ("Mend the cause, then have them delivered again: ", Literal("rowmq dlq redrive")),
        )


def are_settled(story: Story, topic: str) -> bool:
    """Whether the topic's database is at hand and has none of its messages as a dead letter."""
    live = story.live
    return live is not None and topic in live.topics and topic not in live.letter_origins


def gone(letters: float) -> Sentence:
    if letters > 1:
        return (" None is among the dead letters any more: they were redriven or purged.",)
    return (" It is not among the dead letters any more: it was redriven or purged.",)


def by_groups(groups: Mapping[str, float]) -> Sentence:
    """Who gave up: the first two, and how many others there are."""
    if len(groups) == 1:
        return ("group ", *(Named(group) for group in groups), ".")
    first = [part for group in list(groups)[:2] for part in (" and ", Named(group))]
    others = f" and {count(len(groups) - 2, 'other')}" if len(groups) > 2 else ""
    return ("groups ", *first[1:], f"{others}.")


def judge_keys(story: Story) -> Iterator[Finding]:
    """Keys that have so many messages that a topic is as slow as one consumer."""
    totals = story.book.by("published", "count", "topic")
    skews = story.book.by("skew", "ratio", "topic", "key")
    for (topic, key), part in story.book.by("share_of_key", "share", "topic", "key").items():
        skew = skews.get((topic, key), 0.0)
        total = totals.get((topic,), 0.0)
        if key is None or part < HOT_SHARE or skew < HOT_SKEW or total < HOT_MESSAGES:
            continue
        yield Finding(
            Urgency.NOTE,
            part,
            (
                *("Key ", Named(key), " of topic ", Named(topic), f" has {share(part, 1)} of its "),
                f"messages, {factor(skew)} the mean: only one consumer at a time works on it.",
            ),
            ("Split the key if its messages need no common order.",),
        )


def judge_expired(story: Story) -> Iterator[Finding]:
    """Messages that were deleted before they were handled."""
    for group in story.live.groups if story.live else ():
        if group.expired:
            yield Finding(
                Urgency.SOON if group.lag else Urgency.NOTE,
                float(group.expired),
                (
                    *(f"Retention took {count(group.expired, 'message')} of topic "),
                    *(Named(group.topic), " from group ", Named(group.group)),
                    " before it had acked them.",
                ),
                ("Keep messages longer: ", Literal("rowmq topics configure --retention")),
            )


# --- queues ---------------------------------------------------------------------------------------


def judge_failing(story: Story) -> Iterator[Finding]:
    """Queues that give up on a part of their jobs."""
    states = story.book.by("finished", "count", "queue", "state")
    for (queue, state), failed in states.items():
        if state != "failed":
            continue
        done = failed + states.get((queue, "completed"), 0.0)
        bad = failed >= FAILING_SHARE * done
        yield Finding(
            Urgency.SOON if bad and done >= FEW else Urgency.NOTE,
            failed,
            (
                *("Queue ", Named(queue), f" gave up on {count(int(failed), 'job')}, "),
                f"{share(failed, done)} of {number(done)}.",
                *mostly(story.reasons, [Place(None, None, str(queue))]),
            ),
            ("Mend the cause, then have them done again: ", Literal("rowmq jobs retry")),
        )


def judge_queues(story: Story) -> Iterator[Finding]:
    """Queues in which jobs are due and nobody takes them."""
    for queue in story.live.queues if story.live else ():
        due = queue.due_seconds or 0.0
        if due < OLD_SECONDS:
            continue
        why = ", and the queue is paused" if queue.paused else ""
        yield Finding(
            Urgency.NOW,
            due,
            ("In queue ", Named(queue.queue), f" a job has been due for {lasting(due)}{why}."),
            ("Let it go on: ", Literal("rowmq queues resume"))
            if queue.paused
            else ("See whether its workers run: ", Literal("rowmq workers")),
        )


def judge_latency(story: Story) -> Iterator[Finding]:
    """Queues whose slowest jobs are far slower than the usual one."""
    medians = story.book.by("end_to_end", "p50", "queue")
    handling = story.book.by("handling", "p99", "queue")
    jobs = story.book.by("finished", "count", "queue", "state")
    for name, slow in story.book.by("end_to_end", "p99", "queue").items():
        median = medians.get(name, slow)
        done = sum(found for (queue, _), found in jobs.items() if queue == name[0])
        if done < TAIL_JOBS or slow < TAIL_SECONDS or slow < TAIL * median:
            continue
        waits = slow > 2 * handling.get(name, slow)
        yield Finding(
            Urgency.SOON if waits else Urgency.NOTE,
            slow,
            (
                *("In queue ", Named(name[0]), f" one job in 100 took over {lasting(slow)} from "),
                f"when it was due until it was done; half took under {lasting(median)}.",
            ),
            (
                "The handler itself is quicker: jobs wait. More concurrency, or fewer retries with "
                "shorter delays, would help."
                if waits
                else "The handler itself takes that long: a timeout would tell which ones.",
            ),
        )


def judge_retries(story: Story) -> Iterator[Finding]:
    """Queues in which many jobs need more than one attempt."""
    jobs: dict[str, list[float]] = {}
    for (queue, _, tries), found in story.book.by(
        "attempts", "count", "queue", "state", "attempts"
    ).items():
        tally = jobs.setdefault(str(queue), [0.0, 0.0])
        tally[0] += found
        tally[1] += found if int(tries or 0) > 1 else 0.0
    for queue, (done, again) in jobs.items():
        if done >= FEW and again > RETRIED_SHARE * done:
            yield Finding(
                Urgency.NOTE,
                again,
                (
                    *("In queue ", Named(queue), f" {share(again, done)} of the jobs needed more "),
                    "than one attempt.",
                ),
            )


# --- reasons --------------------------------------------------------------------------------------


def judge_new(story: Story) -> Iterator[Finding]:
    """Reasons that were not there before."""
    since, until, _ = story.window
    recent: timedelta = (until - since) * NEW_PART
    for reason in story.reasons:
        if reason.times >= FEW and reason.first > until - recent:
            yield Finding(
                Urgency.NOW,
                float(reason.times),
                (
                    f"New, {count(reason.times, 'time')} in the last ",
                    f"{lasting(recent.total_seconds())}: ",
                    Literal(reason.text),
                ),
            )


def mostly(reasons: Iterable[Reason], places: Sequence[Place]) -> Sentence:
    """Why, for the most part, things failed somewhere."""
    counts = {
        reason.text: sum(reason.places.get(place, 0) for place in places) for reason in reasons
    }
    text = max(counts, key=lambda text: counts[text], default="")
    return (" Most often: ", Literal(text)) if text and counts[text] else ()
