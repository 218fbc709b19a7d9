"""Garbage collection: what every group has acked, and what is older than its topic's retention.

Collecting is bounded: a batch of messages in a transaction, as many transactions as it takes. It
holds the topic's lock, which keeps out whoever could want a message back (a new group, a seek, a
redrive), and only for a moment the counters of the partitions it shortens.

Retention is the one thing that takes a message from a group that has not acked it. It is counted in
the group's row, and told to the caller.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rowmq.progress import Progress
from rowmq.store.dialect import Dialect, as_text
from rowmq.store.groups import Groups
from rowmq.store.leases import Change, Leases
from rowmq.store.statement import Operation, Statement
from rowmq.store.topics import Span, Topics

__all__ = ["BATCH", "Collected", "Retention"]

BATCH = 1_000
"""How many messages one transaction collects."""

PARTITIONS_MAX = 200
"""Of how many partitions."""


class Collected(NamedTuple):
    """What one batch came to: messages, whether there is more, and what groups lost to age."""

    messages: int
    more: bool
    expired: Mapping[str, int]


class Retention:
    """The operations of garbage collection, for one dialect."""

    def __init__(self, dialect: Dialect, topics: Topics, groups: Groups, leases: Leases) -> None:
        self.dialect = dialect
        self.topics = topics
        self.groups = groups
        self.leases = leases

    def collect(self, topic: str, *, patient: bool) -> Operation[Collected]:
        """Collect one batch. `patient` waits for partitions that are just being published to."""
        yield from self.groups.lock(topic)
        acked = yield from self.acked_spans(topic)
        if acked:
            messages = yield from self.delete(acked, patient=patient)
            return Collected(messages, more=True, expired={})
        given_back = yield from self.collect_given_back(topic)
        if given_back:
            return Collected(given_back, more=True, expired={})
        old = yield from self.old_spans(topic)
        if old:
            locked = yield from self.lock(old, patient=patient)
            expired = yield from self.expire(topic, locked)
            messages = yield from self.delete_locked(locked)
            return Collected(messages, more=True, expired=expired)
        return Collected(0, more=False, expired={})

    # --- what may go ----------------------------------------------------------------------------

    def acked_spans(self, topic: str) -> Operation[list[Span]]:
        """What every group has acked, of some partitions, a batch of it."""
        params = (self.dialect.text(topic), PARTITIONS_MAX)
        result = yield Statement("retention.acked", self.dialect.sql(ACKED), params)
        return bounded([Span("", id, first, int(floor)) for id, first, floor in result])

    def old_spans(self, topic: str) -> Operation[list[Span]]:
        """What is older than the topic's retention, of some partitions, a batch of it."""
        params: tuple[object, ...] = (self.dialect.text(topic),)
        result = yield Statement("retention.limit", self.dialect.sql(LIMIT), params)
        if not result.rows or result.rows[0][0] is None:
            return []
        retention_us, now = result.rows[0]
        oldest = now - retention_us
        sql = self.dialect.sql(OLD)
        result = yield Statement("retention.old", sql, (*params, oldest, PARTITIONS_MAX))
        spans = [Span(as_text(key), id, first, after - 1) for id, key, first, after in result]
        young = yield from self.topics.spans_since(spans, oldest)
        first = {span.partition_id: span.first for span in young}
        return bounded([s._replace(last=first.get(s.partition_id, s.last + 1) - 1) for s in spans])

    def collect_given_back(self, topic: str) -> Operation[int]:
        """Collect what was put back for one group, once that has acked it."""
        params = (self.dialect.text(topic), BATCH)
        result = yield Statement("retention.given_back", self.dialect.sql(GIVEN_BACK), params)
        for id, offset in result:
            yield from self.delete_span(Span("", id, offset, offset))
        return len(result)

    # --- letting go -----------------------------------------------------------------------------

    def delete(self, spans: Sequence[Span], *, patient: bool) -> Operation[int]:
        """Delete spans of those partitions whose counters can be locked."""
        locked = yield from self.lock(spans, patient=patient)
        return (yield from self.delete_locked(locked))

    def lock(self, spans: Sequence[Span], *, patient: bool) -> Operation[list[Span]]:
        """Lock the counters of the spans' partitions; `patient` waits, else they are left out."""
        source, params = self.dialect.given({"id": "bigint"}, [(s.partition_id,) for s in spans])
        template = LOCK.replace("<source>", source)
        lock = "{for_update}" if patient else "{skip_locked}"
        sql = self.dialect.sql(template.replace("<lock>", lock))
        result = yield Statement("retention.lock", sql, params)
        locked = {row[0] for row in result}
        return [span for span in spans if span.partition_id in locked]

    def delete_locked(self, spans: Sequence[Span]) -> Operation[int]:
        for span in spans:
            yield from self.delete_span(span)
            params = (span.last + 1, span.last + 1, span.partition_id)
            yield Statement("retention.shorten", self.dialect.sql(SHORTEN), params)
        return sum(span.last - span.first + 1 for span in spans)

    def delete_span(self, span: Span) -> Operation[None]:
        params = (span.partition_id, span.first, span.last)
        yield Statement("retention.delete", self.dialect.sql(DELETE), params)
        yield Statement("retention.forget_letters", self.dialect.sql(FORGET_LETTERS), params)

    def expire(self, topic: str, spans: Sequence[Span]) -> Operation[dict[str, int]]:
        """Take every group past spans. How many messages each had not acked."""
        expired: dict[str, int] = {}
        params = (self.dialect.text(topic),)
        groups = yield Statement("retention.groups", self.dialect.sql(GROUPS), params)
        for group_id, name in groups:
            lost = yield from self.skip(group_id, spans)
            if lost:
                expired[as_text(name)] = lost
                sql = self.dialect.sql(COUNT_EXPIRED)
                yield Statement("retention.count", sql, (lost, group_id))
        return expired

    def skip(self, group_id: int, spans: Sequence[Span]) -> Operation[int]:
        """Take a group past spans. How many messages it had not acked."""
        places = yield from self.leases.load(group_id, [span.partition_id for span in spans])
        known = {place.partition_id: place for place in places}
        changes, lost = [], 0
        for span in spans:
            place = known.get(span.partition_id)
            if place is None:  # it has not come here yet, and so begins after the span
                lost += span.last - span.first + 1
                continue
            progress = Progress.restored(place.stored)
            missed = progress.skip_to(span.last + 1)
            if missed or progress.stored() != place.stored:
                lost += missed
                moved = (place.partition_id, place.epoch, place.version)
                changes.append(Change(*moved, place.stored, progress.stored()))
        yield from self.leases.overwrite(group_id, changes)
        return lost


def bounded(spans: Sequence[Span]) -> list[Span]:
    """The first spans, cut where they hold a batch together."""
    kept = []
    room = BATCH
    for span in spans:
        if span.last < span.first or room <= 0:
            continue
        last = min(span.last, span.first + room - 1)
        kept.append(span._replace(last=last))
        room -= last - span.first + 1
    return kept


# A group without a place in a partition stands at its beginning.
ACKED = """
    SELECT p.id, p.first_offset, MIN(COALESCE(o.offset_acked, p.first_offset - 1))
    FROM {partitions} p
    JOIN {groups} g ON g.topic = p.topic
    LEFT JOIN {offsets} o ON o.group_id = g.id AND o.partition_id = p.id
    WHERE p.topic = ?
    GROUP BY p.id, p.first_offset
    HAVING MIN(COALESCE(o.offset_acked, p.first_offset - 1)) >= p.first_offset
    ORDER BY p.id LIMIT ?"""

LIMIT = "SELECT retention_us, {now} FROM {topics} WHERE topic = ?"

OLD = """
    SELECT p.id, p.partition_key, p.first_offset, p.next_offset
    FROM {partitions} p
    {join} {messages} m ON m.partition_id = p.id AND m.message_offset = p.first_offset
    WHERE p.topic = ? AND m.published_at < ? ORDER BY p.id LIMIT ?"""

GIVEN_BACK = """
    SELECT m.partition_id, m.message_offset
    FROM {partitions} p
    {join} {messages} m ON m.partition_id = p.id AND m.message_offset < p.first_offset
    WHERE p.topic = ? AND NOT EXISTS (
        SELECT 1 FROM {groups} g
        JOIN {offsets} o ON o.group_id = g.id AND o.partition_id = p.id
        WHERE g.topic = p.topic AND o.offset_acked < m.message_offset
    ) LIMIT ?"""

LOCK = """
    SELECT p.id FROM (<source>) w {join} {partitions} p ON p.id = w.id
    ORDER BY p.id <lock>"""

DELETE = """
    DELETE FROM {messages} WHERE partition_id = ? AND message_offset BETWEEN ? AND ?"""

FORGET_LETTERS = """
    DELETE FROM {dead_letters} WHERE partition_id = ? AND message_offset BETWEEN ? AND ?"""

# An empty log has no largest message.
SHORTEN = """
    UPDATE {partitions}
    SET first_offset = ?,
        largest_bytes = CASE WHEN next_offset = ? THEN 0 ELSE largest_bytes END
    WHERE id = ?"""

GROUPS = "SELECT id, consumer_group FROM {groups} WHERE topic = ? ORDER BY id"

COUNT_EXPIRED = "UPDATE {groups} SET expired = expired + ? WHERE id = ?"
