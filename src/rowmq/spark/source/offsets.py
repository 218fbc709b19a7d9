"""What partitions there are and where they begin and end, asked of the database by the driver's
side: a statement for each topic, however many keys it has.
"""

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from rowmq.client import RowMQ
from rowmq.errors import DataLoss, InvalidOption
from rowmq.spark.options import Bound, TopicsOptions
from rowmq.spark.source.planning import Range
from rowmq.store.keys import described, of_partitions
from rowmq.store.positions import EARLIEST, LATEST, Standing
from rowmq.store.seeking import Target
from rowmq.store.topics import Span

__all__ = [
    "advance",
    "batch_ranges",
    "establish",
    "kept",
    "ranges_between",
    "refuse_missing",
    "refuse_unknown",
    "standing",
    "subscribed",
    "whole_topics",
]


def subscribed(mq: RowMQ, options: TopicsOptions, *, letters: bool = True) -> tuple[str, ...]:
    """The topics that are read now: those named, or those that match the pattern.

    Without `letters`, a pattern does not match topics of dead letters: a group there would have
    garbage collection delete letters that nobody has dealt with.
    """
    if options.pattern is None:
        return options.topics
    matches = re.compile(options.pattern).fullmatch
    found = [info for info in mq.topics() if matches(info.name)]
    return tuple(info.name for info in found if letters or not info.holds_letters)


def whole_topics(mq: RowMQ, topics: Iterable[str], options: TopicsOptions) -> set[str]:
    """The topics of which nothing may be missing. Letters that were redriven or purged leave gaps
    in their topics.
    """
    if not options.fail_on_loss:
        return set()
    letters = mq._run(mq._store.positions.letter_topics)  # noqa: SLF001 - its own
    return {topic for topic in topics if topic not in letters}


def standing(mq: RowMQ, topic: str, group: str | None) -> dict[str, Standing]:
    """The partitions of a topic, by stored key."""
    found = mq._run(partial(mq._store.positions.standing, topic, group))  # noqa: SLF001 - its own
    return {one.key: one for one in found}


def establish(mq: RowMQ, topic: str, group: str, start: Bound) -> bool:
    """See that the group is there; a new one begins where the options say."""
    positions = mq._store.positions  # noqa: SLF001 - its own
    return mq._run(partial(positions.establish, topic, group, target_of(topic, start)))  # noqa: SLF001


def target_of(topic: str, start: Bound) -> Target | None:
    """Where a new group begins in a topic; None if it must be there already."""
    if start.word == "group":
        return None
    if start.time is not None:
        return Target(time=start.time)
    if start.offsets is not None and topic in start.offsets:
        return Target(offsets=start.offsets[topic])
    return Target(start=start.word or "earliest")


def advance(mq: RowMQ, topic: str, group: str, acked: Mapping[int, int]) -> None:
    """Move the group's place forward in partitions, by their ids."""
    if acked:
        positions = mq._store.positions  # noqa: SLF001 - its own
        mq._run(partial(positions.advance, topic, group, acked))  # noqa: SLF001 - its own


def ranges_between(
    topic: str,
    partitions: Mapping[str, Standing],
    start: Mapping[str, int] | None,
    end: Mapping[str, int],
    *,
    whole: bool = True,
) -> list[Range]:
    """What lies between two offsets of a topic.

    A topic that the first one does not know begins where the group stood when it was seen; a key
    that it does not know has come since, and begins at its beginning.
    """
    found = []
    for key, last in end.items():
        one = partitions.get(key)
        if one is None:
            raise DataLoss(
                f"topic {topic!r} has no messages with the key {described(key)} any more"
            )
        unknown = 1 if start is not None else (one.acked or 0) + 1
        first = unknown if start is None else start.get(key, unknown)
        if first < last:
            found.append(Range(topic, key, one.partition_id, first, last, one.largest_bytes, whole))
    return found


def kept(ranges: Iterable[Range], partitions: Mapping[str, Mapping[str, Standing]]) -> list[Range]:
    """The ranges that are still there; raises if a part is gone of one that must be whole."""
    there = []
    for one in ranges:
        first = partitions[one.topic][one.key].first_offset
        if one.first < first and one.whole:
            raise DataLoss(
                f"the offsets {one.first} to {min(first, one.end) - 1} of topic {one.topic!r}, key "
                f"{described(one.key)}, are not there any more: retention let go of them. Set "
                f".option('failOnDataLoss', 'false') to go on with what there is"
            )
        there.append(one._replace(first=max(one.first, first)))
    return [one for one in there if one.first < one.end]


def batch_ranges(mq: RowMQ, options: TopicsOptions) -> list[Range]:
    """What a batch reads."""
    topics = subscribed(mq, options)
    partitions = {topic: standing(mq, topic, options.group) for topic in topics}
    refuse_missing(mq, [topic for topic, known in partitions.items() if not known])
    whole = whole_topics(mq, topics, options)
    found: list[Range] = []
    for topic, known in partitions.items():
        starts = bounds(mq, topic, known, options.start, options)
        ends = bounds(mq, topic, known, options.end, options)
        ends = {key: min(end, known[key].next_offset) for key, end in ends.items()}
        found += ranges_between(topic, known, starts, ends, whole=topic in whole)
    return kept(found, partitions)


def refuse_missing(mq: RowMQ, topics: Sequence[str]) -> None:
    """Raise for a topic that does not exist."""
    if topics:
        refuse_unknown("topic", topics, [info.name for info in mq.topics()])


def refuse_unknown(what: str, names: Sequence[str], known: Sequence[str]) -> None:
    """Raise for a topic or a queue that does not exist: what is mistyped would read as nothing."""
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"see `rowmq {what}s`"
            raise InvalidOption(f"there is no {what} {name!r}: {hint}")


def bounds(
    mq: RowMQ, topic: str, known: Mapping[str, Standing], bound: Bound, options: TopicsOptions
) -> dict[str, int]:
    """The offset of each partition that a bound means."""
    if bound.time is not None:
        return times(mq, known, bound.time)
    if bound.word == "group":
        establish(mq, topic, str(options.group), bound)
        return {key: (one.acked or one.first_offset - 1) + 1 for key, one in known.items()}
    offsets = {EARLIEST: "first_offset", LATEST: "next_offset"}
    word = EARLIEST if bound.word == "earliest" or bound is options.start else LATEST
    found = {key: int(getattr(one, offsets[word])) for key, one in known.items()}
    given = (bound.offsets or {}).get(topic, {})
    for key, offset in of_partitions(topic, given, known, in_json=True).items():
        name = described(key)
        if key not in known:
            raise InvalidOption(f"topic {topic!r} has no messages with the key {name}")
        one = known[key]
        found[key] = getattr(one, offsets[offset]) if offset in offsets else offset
        if found[key] > one.next_offset:
            raise InvalidOption(
                f"key {name} of topic {topic!r} ends with the offset "
                f"{one.next_offset - 1}: {found[key]} is beyond it"
            )
    return found


def times(mq: RowMQ, known: Mapping[str, Standing], since: int) -> dict[str, int]:
    """The offset of the first message of each partition that was published at a time or later."""
    spans = [
        Span(key, one.partition_id, one.first_offset, one.next_offset - 1)
        for key, one in known.items()
        if one.first_offset < one.next_offset
    ]
    found = mq._run(partial(mq._store.topics.spans_since, spans, since))  # noqa: SLF001 - its own
    first = {span.key: span.first for span in found}
    return {key: first.get(key, one.next_offset) for key, one in known.items()}
