"""How messages are spread over keys: one key is one partition, and has one consumer at a time."""

from collections.abc import Iterator

from rowmq.spark.pipelines.reporting import plots
from rowmq.spark.pipelines.reporting.book import Name
from rowmq.spark.pipelines.reporting.figures import KEYS_MAX
from rowmq.spark.pipelines.reporting.findings import Story
from rowmq.spark.pipelines.reporting.html import Markup, el, name
from rowmq.spark.pipelines.reporting.tabular import ROWS_MAX, Row, headed, left_out, table
from rowmq.spark.pipelines.reporting.wording import factor, number, share

__all__ = ["hot_keys"]


def hot_keys(story: Story) -> Iterator[Markup | None]:
    book = story.book
    messages = book.by("messages_of_key", "count", "topic", "key")
    if not messages:
        return
    shares = book.by("share_of_key", "share", "topic", "key")
    yield el(
        "p",
        "Messages of one key are handled one after the other, by one consumer at a time: a key "
        "with a large share of its topic is what the topic waits for.",
    )
    hottest = list(messages)[:KEYS_MAX]
    largest = max(messages.values())
    yield table(
        f"The {len(hottest)} keys with most messages" if len(hottest) > 1 else "The only key",
        headed(
            *("key", "topic", "", "messages", "of its topic"), words=("key", "topic"), plots=("",)
        ),
        [key_row(of, messages[of], shares.get(of, 0.0), largest) for of in hottest],
    )
    keys, skews = book.by("keys", "count", "topic", "key"), book.by("skew", "ratio", "topic", "key")
    ordered = list(skews)
    yield table(
        "How unevenly each topic is spread: its hottest key, against the mean of all its keys",
        headed("topic", "keys", "hottest key has", "against the mean", words=("topic",)),
        [
            Row(
                (
                    name(str(of[0])),
                    number(keys.get(of, 0.0)),
                    share(shares.get(of, 0.0), 1.0),
                    factor(skews[of]),
                )
            )
            for of in ordered[:ROWS_MAX]
        ],
    )
    yield left_out(min(len(ordered), ROWS_MAX), len(ordered), "topics")


def key_row(of: Name, messages: float, part: float, largest: float) -> Row:
    topic, key = of
    return Row(
        (
            name(None if key is None else str(key)),
            name(str(topic)),
            plots.bar([(messages / largest, "one")]),
            number(messages),
            share(part, 1.0),
        )
    )
