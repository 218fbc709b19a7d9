"""Garbage collection: what every group has acked, and what is older than its topic's retention.

First it is found what may go, without any lock; then that is deleted, a batch in a transaction.
Each batch holds the topic's lock, which keeps out whoever could want a message back (a new group, a
seek, a redrive), and asks again whether it may go. The counters of the partitions it shortens are
locked without waiting: one that is just being published to is left out, and may be waited for
afterwards, holding nothing else.

Retention is the one thing that takes a message from a group that has not acked it. It is counted in
the group's row, and told to the caller. What was given back to a group has an age of its own: that
begins when it was.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rowmq.progress import Progress, State
from rowmq.store.dialect import Dialect, as_text
from rowmq.store.groups import Groups
from rowmq.store.leases import Change, Leases, Loaded
from rowmq.store.statement import Operation, Statement
from rowmq.store.topics import Span, Topics

__all__ = ["BATCH", "Collected", "Retention", "batches"]

BATCH = 1_000
PARTITIONS_MAX = 100
"""How many messages, and of how many partitions, one transaction collects."""


class Collected(NamedTuple):
    """What a batch came to: messages, what was busy and left out, and what groups lost to age."""

    messages: int = 0
    busy: Sequence[Span] = ()
    expired: Mapping[str, int] = {}


class Retention:
    """The operations of garbage collection, for one dialect."""

    def __init__(self, dialect: Dialect, topics: Topics, groups: Groups, leases: Leases) -> None:
        self.dialect = dialect
        self.topics = topics
        self.groups = groups
        self.leases = leases

    # --- what may go ----------------------------------------------------------------------------

    def find_acked(self, topic: str) -> Operation[list[Span]]:
        """What every group has acked."""
        params = (self.dialect.text(topic),)
        sql = self.dialect.sql(ACKED.replace("<these>", ""))
        result = yield Statement("retention.acked", sql, params, sole=True)
        return [Span("", id, first, int(floor)) for id, first, floor in result]

    def find_old(self, topic: str) -> Operation[list[Span]]:
        """What is older than the topic's retention."""
        oldest = yield from self.oldest(topic)
        if oldest is None:
            return []
        params = (self.dialect.text(topic), oldest)
        result = yield Statement("retention.old", self.dialect.sql(OLD), params, sole=True)
        spans = [Span(as_text(key), id, first, after - 1) for id, key, first, after in result]
        young = yield from self.topics.spans_since(spans, oldest)
        first = {span.partition_id: span.first for span in young}
        cut = [s._replace(last=first.get(s.partition_id, s.last + 1) - 1) for s in spans]
        return [span for span in cut if span.first <= span.last]

    def find_given_back(self, topic: str, *, old: bool) -> Operation[list[Span]]:
        """What was put back below the log for a group that has acked it by now; or, if it is
        `old`, has not.
        """
        oldest = (yield from self.oldest(topic)) if old else None
        if old and oldest is None:
            return []
        params: list[object] = [self.dialect.text(topic)]
        condition = "m.published_at < ?" if old else WANTED_BY_NOBODY
        params += [oldest] if old else []
        sql = self.dialect.sql(GIVEN_BACK.replace("<condition>", condition))
        result = yield Statement("retention.given_back", sql, params, sole=True)
        found = [Span("", id, offset, offset) for id, offset in result]
        if oldest is None:
            return found
        spans: list[Span] = []
        for batch in batches(found):
            spans += yield from self.without_reopened(topic, batch, oldest)
        return spans

    def oldest(self, topic: str) -> Operation[int | None]:
        """Before when messages of a topic are too old; None if they never are."""
        params = (self.dialect.text(topic),)
        sql = self.dialect.sql(LIMIT)
        result = yield Statement("retention.limit", sql, params, sole=True)
        if not result.rows or result.rows[0][0] is None:
            return None
        retention_us, now = result.rows[0]
        return int(now - retention_us)

    # --- letting go -----------------------------------------------------------------------------

    def collect_acked(
        self, topic: str, spans: Sequence[Span], *, patient: bool
    ) -> Operation[Collected]:
        """Collect spans, as far as every group has acked them now. `patient` waits for those that
        are being published to, before it locks anything else.
        """
        locked = (yield from self.lock(spans, patient=True)) if patient else []
        if not (yield from self.groups.lock(topic)):
            return Collected()
        if not patient:
            locked = yield from self.lock(spans, patient=False)
        floors = yield from self.floors(topic, locked)
        acked = [
            span._replace(last=min(span.last, floors.get(span.partition_id, 0))) for span in locked
        ]
        messages = yield from self.shorten([span for span in acked if span.first <= span.last])
        return Collected(messages, [span for span in spans if span not in locked])

    def collect_old(
        self, topic: str, spans: Sequence[Span], *, patient: bool
    ) -> Operation[Collected]:
        """Collect spans that are too old, whoever still wanted them. `patient` as for those that
        are acked.
        """
        waited_for = (yield from self.lock(spans, patient=True)) if patient else []
        if not (yield from self.groups.lock(topic)):
            return Collected()
        spans = yield from self.still_old(topic, spans)
        if not spans:
            return Collected()
        expired, passed_by = yield from self.expire(topic, spans, below=False)
        if patient:
            ids = {span.partition_id for span in waited_for}
            locked = [span for span in passed_by if span.partition_id in ids]
        else:
            locked = (yield from self.lock(passed_by, patient=False)) if passed_by else []
        messages = yield from self.shorten(locked)
        busy = [span for span in spans if span not in locked]
        return Collected(messages, busy, expired)

    def collect_given_back(
        self, topic: str, spans: Sequence[Span], *, old: bool
    ) -> Operation[Collected]:
        """Collect what was put back below the log, unless a group wants it (still, or again)."""
        if not (yield from self.groups.lock(topic)):
            return Collected()
        expired: Mapping[str, int] = {}
        if old:
            spans = yield from self.still_old(topic, spans)
            if not spans:
                return Collected()
            expired, spans = yield from self.expire(topic, spans, below=True)
        else:
            again = yield from self.find_given_back(topic, old=False)
            spans = [span for span in spans if span in set(again)]
        messages = 0
        for span in spans:
            messages += yield from self.delete(span)
        return Collected(messages, (), expired)

    def lock(self, spans: Sequence[Span], *, patient: bool) -> Operation[list[Span]]:
        """Lock the counters of the spans' partitions; `patient` waits, else they are left out."""
        source, params = self.dialect.given({"id": "bigint"}, [(s.partition_id,) for s in spans])
        template = LOCK.replace("<source>", source)
        sql = template.replace("<lock>", "{for_update}" if patient else "{skip_locked}")
        result = yield Statement("retention.lock", self.dialect.sql(sql), params)
        locked = {row[0] for row in result}
        return [span for span in spans if span.partition_id in locked]

    def floors(self, topic: str, spans: Sequence[Span]) -> Operation[dict[int, int]]:
        """How far every group has acked the spans' partitions."""
        if not spans:
            return {}
        these = f"AND p.id IN ({', '.join('?' * len(spans))})"
        params = [self.dialect.text(topic), *(span.partition_id for span in spans)]
        sql = self.dialect.sql(ACKED.replace("<these>", these))
        result = yield Statement("retention.floors", sql, params)
        return {id: int(floor) for id, _, floor in result}

    def shorten(self, spans: Sequence[Span]) -> Operation[int]:
        """Delete the beginnings of logs, whose counters are locked."""
        messages = 0
        for span in spans:
            messages += yield from self.delete(span)
            sql, id = self.dialect.sql(SHORTEN), span.partition_id
            yield Statement("retention.shorten", sql, (span.last, id))
            yield Statement("retention.emptied", self.dialect.sql(EMPTIED), (id, id))
        return messages

    def delete(self, span: Span) -> Operation[int]:
        """Delete a span. How many messages there were."""
        params = (span.partition_id, span.first, span.last)
        result = yield Statement("retention.count", self.dialect.sql(COUNT), params)
        yield Statement("retention.delete", self.dialect.sql(DELETE), params)
        yield Statement("retention.forget_letters", self.dialect.sql(FORGET_LETTERS), params)
        return int(result.rows[0][0])

    def still_old(self, topic: str, spans: Sequence[Span]) -> Operation[list[Span]]:
        """What of spans may go by the topic's retention, as it is now."""
        oldest = yield from self.oldest(topic)
        if oldest is None:
            return []
        return (yield from self.without_reopened(topic, spans, oldest))

    def without_reopened(
        self, topic: str, spans: Sequence[Span], oldest: int
    ) -> Operation[list[Span]]:
        """A batch of spans, without what was given back to a group since a time, and that it still
        wants: somebody has decided that it is to be tried again.
        """
        if not spans:
            return []
        ids = sorted({span.partition_id for span in spans})
        first, last = min(span.first for span in spans), max(span.last for span in spans)
        sql = self.dialect.sql(REOPENED.replace("<ids>", ", ".join("?" * len(ids))))
        params = [self.dialect.text(topic), *ids, oldest, last, first]
        wanted: dict[int, list[tuple[int, int]]] = {}
        for id, start, end in (yield Statement("retention.reopened", sql, params)):
            wanted.setdefault(id, []).append((start, end))
        for ranges in wanted.values():
            ranges.sort()
        return [part for span in spans for part in around(span, wanted.get(span.partition_id, ()))]

    # --- what groups lose -----------------------------------------------------------------------

    def expire(
        self, topic: str, spans: Sequence[Span], *, below: bool
    ) -> Operation[tuple[dict[str, int], list[Span]]]:
        """Take every group past spans: how many messages each had not acked, and which spans all of
        them have passed. A place that a transaction has locked is not waited for.
        """
        expired: dict[str, int] = {}
        left = list(spans)
        params = (self.dialect.text(topic),)
        groups = yield Statement("retention.groups", self.dialect.sql(GROUPS), params)
        for group_id, name in groups:
            # So that it has a place everywhere, which tells what it has lost once and not again.
            yield from self.leases.adopt(topic, group_id)
            lost, ids = yield from self.pass_by(group_id, left, below=below)
            left = [span for span in left if span.partition_id in ids]
            if lost:
                expired[as_text(name)] = lost
                sql = self.dialect.sql(COUNT_EXPIRED)
                yield Statement("retention.count_expired", sql, (lost, group_id))
        return expired, left

    def pass_by(
        self, group_id: int, spans: Sequence[Span], *, below: bool
    ) -> Operation[tuple[int, set[int]]]:
        """Take a group past spans, which lie `below` the log or are its beginning. How many
        messages it had not acked, and in which partitions it has passed them.
        """
        ids = sorted({span.partition_id for span in spans})
        places = yield from self.leases.load(group_id, ids, skip=True)
        changes, lost = [], 0
        for place in places:
            mine = [span for span in spans if span.partition_id == place.partition_id]
            change, missed = passed(place, mine, below=below)
            changes += [] if change is None else [change]
            lost += missed
        yield from self.leases.overwrite(group_id, changes)
        return lost, {place.partition_id for place in places}


def passed(place: Loaded, spans: Sequence[Span], *, below: bool) -> tuple[Change | None, int]:
    """A place taken past spans, if that changes it, and how many messages were not acked."""
    progress, lost = Progress.restored(place.stored), 0
    for span in spans:
        if not below:
            # What was given back below the log has an age of its own.
            lost += progress.skip_to(span.last + 1, since=span.first)
            continue
        known = progress.at(span.first)
        if known is not None and known.state is not State.ACKED:
            progress.ack(span.first, span.first)
            lost += 1
    after = progress.stored()
    if after == place.stored:
        return None, lost
    change = Change(place.partition_id, place.epoch, place.version, place.stored, after)
    return change, lost


def around(span: Span, wanted: Sequence[tuple[int, int]]) -> list[Span]:
    """What is left of a span without some ranges, which are in order."""
    parts = []
    for first, last in wanted:
        if first <= span.last and last >= span.first:
            parts.append(span._replace(last=first - 1))
            span = span._replace(first=last + 1)
    return [part for part in (*parts, span) if part.first <= part.last]


def batches(spans: Sequence[Span]) -> list[list[Span]]:
    """Spans in batches, each for one transaction; long ones are cut."""
    found: list[list[Span]] = [[]]
    room = BATCH
    for span in spans:
        rest = span
        while rest.first <= rest.last:
            if room <= 0 or len(found[-1]) >= PARTITIONS_MAX:
                found.append([])
                room = BATCH
            last = min(rest.last, rest.first + room - 1)
            found[-1].append(rest._replace(last=last))
            room -= last - rest.first + 1
            rest = rest._replace(first=last + 1)
    return [batch for batch in found if batch]


# A group without a place in a partition stands at its beginning.
ACKED = """
    SELECT p.id, p.first_offset, MIN(COALESCE(o.offset_acked, p.first_offset - 1))
    FROM {partitions} p
    JOIN {groups} g ON g.topic = p.topic
    LEFT JOIN {offsets} o ON o.group_id = g.id AND o.partition_id = p.id
    WHERE p.topic = ? <these>
    GROUP BY p.id, p.first_offset
    HAVING MIN(COALESCE(o.offset_acked, p.first_offset - 1)) >= p.first_offset
    ORDER BY p.id"""

LIMIT = "SELECT retention_us, {now} FROM {topics} WHERE topic = ?"

OLD = """
    SELECT p.id, p.partition_key, p.first_offset, p.next_offset
    FROM {partitions} p
    {join} {messages} m ON m.partition_id = p.id AND m.message_offset = p.first_offset
    WHERE p.topic = ? AND m.published_at < ? ORDER BY p.id"""

REOPENED = """
    SELECT d.partition_id, d.first_offset, d.last_offset
    FROM {groups} g JOIN {delivery_state} d ON d.group_id = g.id
    WHERE g.topic = ? AND d.partition_id IN (<ids>) AND d.reopened >= ?
      AND d.first_offset <= ? AND d.last_offset >= ?"""

GIVEN_BACK = """
    SELECT m.partition_id, m.message_offset
    FROM {partitions} p
    {join} {messages} m ON m.partition_id = p.id AND m.message_offset < p.first_offset
    WHERE p.topic = ? AND <condition>
    ORDER BY m.partition_id, m.message_offset"""

WANTED_BY_NOBODY = """NOT EXISTS (
        SELECT 1 FROM {groups} g
        JOIN {offsets} o ON o.group_id = g.id AND o.partition_id = p.id
        WHERE g.topic = p.topic AND o.offset_acked < m.message_offset
    )"""

LOCK = """
    SELECT p.id FROM (<source>) w {join} {partitions} p ON p.id = w.id
    ORDER BY p.id <lock>"""

COUNT = """
    SELECT COUNT(*) FROM {messages} WHERE partition_id = ? AND message_offset BETWEEN ? AND ?"""

DELETE = """
    DELETE FROM {messages} WHERE partition_id = ? AND message_offset BETWEEN ? AND ?"""

FORGET_LETTERS = """
    DELETE FROM {dead_letters} WHERE partition_id = ? AND message_offset BETWEEN ? AND ?"""

# To the first message that there is: some behind it may have been deleted by name.
SHORTEN = """
    UPDATE {partitions} SET first_offset = COALESCE(
        (SELECT MIN(m.message_offset) FROM {messages} m
         WHERE m.partition_id = {partitions}.id AND m.message_offset > ?),
        next_offset)
    WHERE id = ?"""

# An empty log has no largest message, unless one was given back below it.
EMPTIED = """
    UPDATE {partitions} SET largest_bytes = 0 WHERE id = ? AND first_offset = next_offset
    AND NOT EXISTS (SELECT 1 FROM {messages} m WHERE m.partition_id = ?)"""

GROUPS = "SELECT id, consumer_group FROM {groups} WHERE topic = ? ORDER BY id"

COUNT_EXPIRED = "UPDATE {groups} SET expired = expired + ? WHERE id = ?"
