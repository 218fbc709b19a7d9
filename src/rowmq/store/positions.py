"""The place of a group that nobody subscribes to: whoever reads for it keeps its own books.

Spark is such a reader. It plans which offsets to read, and it knows by its own log what it has
processed; the group's row is there so that garbage collection waits for it, and lag can be seen. So
a place only ever moves forward here, and by many partitions at once.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from rowmq.errors import UnknownGroup
from rowmq.store.dialect import Dialect, as_text
from rowmq.store.groups import Groups, Readers
from rowmq.store.keys import of_partitions
from rowmq.store.leases import Leases
from rowmq.store.seeking import MOVE, Seeking, Target
from rowmq.store.statement import Operation, Statement
from rowmq.store.topics import Span

__all__ = ["EARLIEST", "LATEST", "Positions", "Standing"]

EARLIEST, LATEST = -2, -1
"""What stands for an offset of a partition, as in Kafka."""


class Standing(NamedTuple):
    """A partition: what its log holds, and how far the group has come; None if it has no place."""

    key: str
    partition_id: int
    first_offset: int
    next_offset: int
    largest_bytes: int
    acked: int | None


class Positions:
    """The operations of a reader that keeps its own books, for one dialect."""

    def __init__(self, dialect: Dialect, groups: Groups, leases: Leases, seeking: Seeking) -> None:
        self.dialect = dialect
        self.groups = groups
        self.leases = leases
        self.seeking = seeking

    def establish(self, topic: str, group: str, to: Target | None) -> Operation[bool]:
        """See that a group is there, and that nobody subscribes to it; a new one begins at a
        target, in the same transaction. None: it must be there. Whether it was new.
        """
        if to is None:
            yield from self.find(topic, group)
            return False
        start = to.start or "earliest"
        created = yield from self.groups.create(topic, group, start=start)
        if created and to.start is None:
            offsets = to.offsets
            if offsets is not None:
                offsets = yield from self.resolve(topic, offsets)
            yield from self.seeking.seek(topic, group, key=None, to=to._replace(offsets=offsets))
        id = yield from self.find(topic, group)
        # A place everywhere: so it stays known where the group began, whatever comes.
        yield from self.leases.adopt(topic, id)
        return created

    def resolve(self, topic: str, offsets: Mapping[str, int]) -> Operation[dict[str, int]]:
        """Offsets by stored key, without words for them."""
        spans = yield from self.seeking.partitions(topic, None)
        offsets = of_partitions(topic, offsets, [span.key for span in spans], in_json=True)
        ends = {span.key: {EARLIEST: span.first, LATEST: span.last + 1} for span in spans}
        return {key: ends.get(key, {}).get(offset, offset) for key, offset in offsets.items()}

    def find(self, topic: str, group: str) -> Operation[int]:
        """The id of a group that nobody subscribes to, now or later."""
        try:
            return (yield from self.groups.assign(topic, group, Readers.BOOKKEEPER))
        except UnknownGroup:
            raise UnknownGroup(
                f"topic {topic!r} has no group {group!r}: it was dropped, or never made. Make it "
                f"with create_group(), and its reader goes on where it was"
            ) from None

    def standing(self, topic: str, group: str | None) -> Operation[list[Standing]]:
        """Every partition of a topic, by key, with the place of a group, if one is named."""
        params = (self.dialect.text(group or ""), self.dialect.text(topic))
        sql = self.dialect.sql(STANDING)
        result = yield Statement("positions.standing", sql, params, sole=True)
        return [Standing(as_text(key), *rest) for key, *rest in result]

    def letter_topics(self) -> Operation[frozenset[str]]:
        """The topics that dead letters were buried in."""
        sql = self.dialect.sql(LETTER_TOPICS)
        result = yield Statement("positions.letter_topics", sql, sole=True)
        return frozenset(as_text(topic) for (topic,) in result)

    def ids(self, places: Iterable[tuple[int, int]]) -> Operation[dict[int, str]]:
        """The ids of single messages that are still there, by partition; one of each."""
        spans = [Span("", id, offset, offset) for id, offset in places]
        found: dict[int, str] = {}
        for run in self.dialect.chunks(spans, (0 for _ in spans)):
            rows = yield from self.leases.topics.fetch_ids(run)
            found |= {id: as_text(message_id) for id, _, message_id in rows}
        return found

    def advance(self, topic: str, group: str, acked: Mapping[int, int]) -> Operation[None]:
        """Move a group's place forward, by partition id; where it is further already, it stays."""
        id = yield from self.find(topic, group)
        yield from self.leases.adopt(topic, id)
        rows = [(id, partition_id, offset) for partition_id, offset in sorted(acked.items())]
        columns = {"group_id": "bigint", "partition_id": "bigint", "acked": "bigint"}
        keys = ("group_id", "partition_id")
        for run in self.dialect.chunks(rows, (0 for _ in rows)):
            source, params = self.dialect.given(columns, run)
            forward = "t.offset_acked < w.acked"
            sql = self.dialect.update_from("{offsets}", source, keys, MOVE, forward)
            yield Statement("positions.advance", self.dialect.sql(sql), params)
        # Ranges below the place, which are done; a group that had subscribers once may have some.
        sql = self.dialect.sql(HAS_RANGES)
        if (yield Statement("positions.has_ranges", sql, (id,))).rows:
            sql = self.dialect.sql(FORGET_RANGES)
            yield Statement("positions.forget_ranges", sql, (id, id))
        yield Statement("positions.moved", self.dialect.sql(MOVED), (id,))


LETTER_TOPICS = "SELECT topic FROM {topics} WHERE holds_letters = 1"

HAS_RANGES = "SELECT 1 FROM {delivery_state} WHERE group_id = ? LIMIT 1"

FORGET_RANGES = """
    DELETE FROM {delivery_state}
    WHERE group_id = ? AND last_offset <= (
        SELECT o.offset_acked FROM {offsets} o
        WHERE o.group_id = ? AND o.partition_id = {delivery_state}.partition_id
    )"""

MOVED = "UPDATE {groups} SET moved_at = {now} WHERE id = ?"

STANDING = """
    SELECT p.partition_key, p.id, p.first_offset, p.next_offset, p.largest_bytes, o.offset_acked
    FROM {partitions} p
    LEFT JOIN {groups} g ON g.topic = p.topic AND g.consumer_group = ?
    LEFT JOIN {offsets} o ON o.group_id = g.id AND o.partition_id = p.id
    WHERE p.topic = ? ORDER BY p.partition_key"""
