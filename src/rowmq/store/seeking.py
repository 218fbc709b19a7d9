"""Seek: set a group's place, while its subscribers run."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rowmq.errors import InvalidOption
from rowmq.progress import Progress, State
from rowmq.store.dialect import Dialect, as_text
from rowmq.store.groups import Groups
from rowmq.store.keys import described, of_partitions
from rowmq.store.leases import Change, Leases
from rowmq.store.statement import Operation, Statement
from rowmq.store.topics import Span, Topics

__all__ = ["Seeking", "Target"]


class Target(NamedTuple):
    """Where to seek to: one of these. Offsets are by stored key, or KEYLESS."""

    start: str | None = None
    time: int | None = None
    offsets: Mapping[str, int] | None = None


class Seeking:
    """The operation of seeking, for one dialect."""

    def __init__(self, dialect: Dialect, topics: Topics, groups: Groups, leases: Leases) -> None:
        self.dialect = dialect
        self.topics = topics
        self.groups = groups
        self.leases = leases

    def seek(self, topic: str, group: str, *, key: str | None, to: Target) -> Operation[int]:
        """Set a group's place, fenced: what its subscribers have in flight is void."""
        yield from self.groups.lock(topic)
        id = yield from self.groups.find(topic, group, keep=True)
        yield from self.leases.adopt(topic, id)
        spans = yield from self.partitions(topic, key)
        places = yield from self.places(topic, spans, to)
        kept = [] if to.start == "latest" else (yield from self.given_back(id, places))
        moved = [(id, span.partition_id, acked) for span, acked in places]
        for run in self.dialect.chunks(moved, (0 for _ in moved)):
            yield from self.move(run)
        yield from self.leases.overwrite(id, kept)
        return len(moved)

    def given_back(
        self, group_id: int, places: Sequence[tuple[Span, int]]
    ) -> Operation[list[Change]]:
        """Keep open what was given back to the group below a log: only it knows of that."""
        wanted = {span.partition_id: (span.first, acked) for span, acked in places}
        loaded = yield from self.leases.load(group_id, sorted(wanted))
        changes = []
        for place in loaded:
            first, acked = wanted[place.partition_id]
            opened = opened_below(Progress.restored(place.stored), first)
            if opened:
                after = Progress(acked)
                for offset, at in opened.items():
                    after.reopen(offset, at=at)
                moved = Progress(acked).stored()
                how = (place.partition_id, place.epoch, place.version)
                changes.append(Change(*how, moved, after.stored()))
        return changes

    def partitions(self, topic: str, key: str | None) -> Operation[list[Span]]:
        """All partitions of a topic, or one, with what their logs hold, even if that is nothing."""
        sql = LIST_PARTITIONS if key is None else LIST_PARTITIONS + " AND partition_key = ?"
        params = [self.dialect.text(topic)]
        if key is not None:
            params.append(self.dialect.text(key))
        result = yield Statement(
            "groups.partitions", self.dialect.sql(sql + " ORDER BY id"), params
        )
        return [Span(as_text(name), id, first, after - 1) for id, name, first, after in result]

    def places(
        self, topic: str, spans: Sequence[Span], to: Target
    ) -> Operation[list[tuple[Span, int]]]:
        """Where each partition is to stand: the last offset that counts as acked."""
        if to.offsets is not None:
            return chosen(topic, {span.key: span for span in spans}, to.offsets)
        if to.time is not None:
            later = yield from self.topics.spans_since(spans, to.time)
            first = {span.partition_id: span.first for span in later}
            return [(span, first.get(span.partition_id, span.last + 1) - 1) for span in spans]
        if to.start == "latest":
            return [(span, span.last) for span in spans]
        return [(span, span.first - 1) for span in spans]

    def move(self, places: Sequence[Sequence[Any]]) -> Operation[None]:
        """Set places, given as group, partition and acked offset; all else starts anew."""
        columns = {"group_id": "bigint", "partition_id": "bigint", "acked": "bigint"}
        source, params = self.dialect.given(columns, places)
        keys = ("group_id", "partition_id")
        sql = self.dialect.update_from("{offsets}", source, keys, MOVE)
        yield Statement("groups.move", self.dialect.sql(sql), params)
        sql = self.dialect.delete_from("{delivery_state}", source, keys)
        yield Statement("groups.forget_ranges", self.dialect.sql(sql), params)


def opened_below(progress: Progress, first: int) -> dict[int, int]:
    """The offsets below the log that are not done, and when they were given back."""
    return {
        offset: known.reopened
        for known in progress.ranges
        if known.state is not State.ACKED
        for offset in range(known.first, min(known.last, first - 1) + 1)
    }


def chosen(
    topic: str, spans: Mapping[str, Span], offsets: Mapping[str, int]
) -> list[tuple[Span, int]]:
    """The places of given offsets: each is the next one to be delivered."""
    places = []
    for stored, offset in of_partitions(topic, offsets, spans).items():
        span = spans.get(stored)
        key = described(stored)
        if span is None:
            raise InvalidOption(f"topic {topic!r} has no messages with the key {key}")
        if not span.first <= offset <= span.last + 1:
            held = f"the offsets {span.first} to {span.last}" if span.first <= span.last else "none"
            raise InvalidOption(
                f"key {key} of topic {topic!r} holds {held}; seek to one that is there, "
                f"or to {span.last + 1} for what comes next, not to {offset}"
            )
        places.append((span, offset - 1))
    return places


MOVE = {
    "offset_acked": "w.acked",
    "offset_delivered": "w.acked",
    "tail_first": "w.acked + 1",
    "tail_until": "0",
    "tail_attempts": "0",
    "epoch": "t.epoch + 1",
    "version": "t.version + 1",
    "touched": "1",
}

LIST_PARTITIONS = """
    SELECT id, partition_key, first_offset, next_offset FROM {partitions} WHERE topic = ?"""
