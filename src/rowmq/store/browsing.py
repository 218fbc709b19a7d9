"""Messages as people look for them: newest first, a page at a time, over all partitions.

Nothing keeps the messages of a topic in the order of their times; within a partition the offsets
do. So a page is a merge: of each partition it is known where its log ends and when that message
was published, and the newest 50 messages of a topic are in the 50 partitions that were written to
last. Of these a few messages each are looked at, without their payloads, then more of those that
need it; and only the rows of the page are read whole.

A cursor is a place in the order of all messages: by time, then partition, then offset. A later page
finds it in each partition by halving its log, all partitions in one statement.

    heads ─► (halve, if there is a cursor) ─► merge, in rounds ─► cut ─► read

Messages that were given back to one group stand below their log, and are not seen here.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from rowmq.message import Message
from rowmq.overview import MessagePage
from rowmq.store.cursors import Cursor
from rowmq.store.dialect import as_text
from rowmq.store.entries import ROW_OVERHEAD_BYTES
from rowmq.store.keys import SHARD_KEYS, place_of
from rowmq.store.statement import Operation, Row, Statement
from rowmq.store.topics import Span, Topics, cut_message_of, unread_message_of

__all__ = ["Browsing"]

PARTITIONS_MAX = 10_000
"""Of how many partitions it is asked when they were written to last."""

HALVED_MAX = 256
"""In how many partitions with newer messages a cursor's place is found."""

DEPTHS = (8, 64, 512)
"""How many messages of a partition are looked at, at first and where that is not enough."""

PAGE_BYTES_MAX = 16 * 1024 * 1024
"""How many bytes of payloads a page has, unless its one message has more."""


class Head(NamedTuple):
    """A partition: what its log holds, its largest payload, and the place of its last message."""

    span: Span
    largest_bytes: int
    last: Cursor


class Heads(NamedTuple):
    """The partitions that were written to last, in that order."""

    found: list[Head]
    cut: bool
    """Whether there are others, that were written to before."""
    unsure: bool
    """Whether there are others that were not asked."""


class Browsing:
    """The operations of browsing, for one dialect."""

    def __init__(self, topics: Topics) -> None:
        self.topics = topics
        self.dialect = topics.dialect

    def older(
        self,
        topic: str,
        keys: Sequence[str] | None,
        cursor: Cursor | None,
        *,
        limit: int,
        whole: bool,
    ) -> Operation[MessagePage]:
        """The messages before a cursor, or the newest."""
        heads = yield from self.heads(topic, keys, HALVED_MAX + limit + 1)
        above = [h for h in heads.found if cursor is not None and h.last >= cursor]
        below = heads.found[len(above) : len(above) + limit + 1]
        spans = [head.span for head in below]
        if cursor is not None:
            ends = yield from self.halve([head.span for head in above], cursor)
            spans += [s._replace(last=ends[s.partition_id] - 1) for s, *_ in above]
        places = yield from self.merge(spans, limit + 1, cursor, down=True)
        shown = yield from self.fitting(heads, places[:limit], whole=whole)
        messages = yield from self.read(topic, heads, shown, whole=whole)
        newest, more = shown[0] if shown else cursor, len(shown) < len(places)
        return MessagePage(
            messages=tuple(messages),
            newer=newest.written() if above and newest is not None else None,
            older=shown[-1].written() if more else None,
            partial=heads.unsure or (heads.cut and len(below) <= limit),
        )

    def newer(
        self, topic: str, keys: Sequence[str] | None, cursor: Cursor, *, limit: int, whole: bool
    ) -> Operation[MessagePage]:
        """The messages after a cursor: those next to it, the newest of them first."""
        heads = yield from self.heads(topic, keys, HALVED_MAX + limit + 1)
        after = cursor._replace(offset=cursor.offset + 1)
        above = [head for head in heads.found if head.last >= after]
        begins = yield from self.halve([head.span for head in above], after)
        spans = [s._replace(first=begins[s.partition_id]) for s, *_ in above]
        places = yield from self.merge(spans, limit + 1, cursor, down=False)
        shown = yield from self.fitting(heads, places[:limit], whole=whole)
        messages = yield from self.read(topic, heads, shown[::-1], whole=whole)
        # From above the cursor, if nothing is there: so that its own message is on the page below.
        return MessagePage(
            messages=tuple(messages),
            newer=shown[-1].written() if len(shown) < len(places) else None,
            older=(shown[0] if shown else after).written(),
            partial=heads.unsure or (heads.cut and len(above) == len(heads.found)),
        )

    def look_up(
        self, topic: str, keys: Sequence[str] | None, id: str, *, limit: int, whole: bool
    ) -> Operation[MessagePage]:
        """The messages of an id: one, or one for each of several keys."""
        unsure = keys is None and (yield from self.are_many(topic))
        found = yield from self.find(topic, keys, id, limit)
        if unsure:
            known = {head.span.partition_id for head in found}
            shards = yield from self.find(topic, SHARD_KEYS, id, limit)
            found += [head for head in shards if head.span.partition_id not in known]
        heads = Heads(found, cut=False, unsure=unsure)
        places = yield from self.merge([head.span for head in found], limit, None, down=True)
        shown = yield from self.fitting(heads, places, whole=whole)
        messages = yield from self.read(topic, heads, shown, whole=whole)
        return MessagePage(
            messages=tuple(messages),
            newer=shown[0].written() if shown else None,
            older=shown[-1].written() if shown else None,
            partial=unsure,
        )

    # --- partitions -----------------------------------------------------------------------------

    def heads(self, topic: str, keys: Sequence[str] | None, limit: int) -> Operation[Heads]:
        """The partitions of some stored keys, or of all, that were written to last."""
        found = yield from self.find_heads(topic, keys, limit)
        unsure = keys is None and (yield from self.are_many(topic))
        if unsure:
            # Shards were mostly made first, and are written to as long as there is the topic.
            known = {head.span.partition_id for head in found}
            shards = yield from self.find_heads(topic, SHARD_KEYS, limit)
            found += [head for head in shards if head.span.partition_id not in known]
            found = sorted(found, key=lambda head: head.last, reverse=True)[:limit]
        return Heads(found, cut=len(found) == limit, unsure=unsure)

    def find_heads(
        self, topic: str, keys: Sequence[str] | None, limit: int
    ) -> Operation[list[Head]]:
        candidates, params = self.candidates(topic, keys)
        sql = self.dialect.sql(HEADS.replace("<candidates>", candidates))
        result = yield Statement("browsing.heads", sql, (*params, limit), sole=True)
        return [
            Head(Span(as_text(key), id, first, last), largest, Cursor(at, id, last))
            for id, key, first, last, largest, at in result
            if at >= 0  # else all that the log held was deleted by name
        ]

    def find(
        self, topic: str, keys: Sequence[str] | None, id: str, limit: int
    ) -> Operation[list[Head]]:
        """Where the messages of an id are."""
        candidates, params = self.candidates(topic, keys)
        sql = self.dialect.sql(LOOK_UP.replace("<candidates>", candidates))
        params = [self.dialect.text(id), *params, limit]
        result = yield Statement("browsing.look_up", sql, params, sole=True)
        return [
            Head(Span(as_text(key), id, offset, offset), largest, Cursor(0, id, offset))
            for id, key, offset, largest in result
        ]

    def candidates(self, topic: str, keys: Sequence[str] | None) -> tuple[str, list[Any]]:
        """A query for the partitions that are asked: of some stored keys, or the newest."""
        text = self.dialect.text
        if keys is None:
            return NEWEST, [text(topic), PARTITIONS_MAX]
        marks = ", ".join("?" * len(keys))
        return OF_KEYS.replace("<keys>", marks), [text(topic), *map(text, keys)]

    def are_many(self, topic: str) -> Operation[bool]:
        """Whether a topic has more partitions than are asked."""
        params = (self.dialect.text(topic), PARTITIONS_MAX + 1)
        result = yield Statement("browsing.many", self.dialect.sql(MANY), params, sole=True)
        return bool(result.rows[0][0] > PARTITIONS_MAX)

    # --- places ---------------------------------------------------------------------------------

    def halve(self, spans: Iterable[Span], cursor: Cursor) -> Operation[dict[int, int]]:
        """The first offset of each span that is not before a cursor, or the one after the span."""
        found = {}
        searched: dict[int, list[Span]] = {}
        for span in spans:
            _, id, first, last = span
            if id == cursor.partition_id:
                found[id] = min(max(first, cursor.offset), last + 1)
            else:
                since = cursor.time + int(id < cursor.partition_id)
                searched.setdefault(since, []).append(span)
        for since, chosen in searched.items():
            left = yield from self.halve_quickly(chosen, since, found)
            later = yield from self.topics.spans_since(left, since)
            found |= {span.partition_id: span.last + 1 for span in left}
            found |= {span.partition_id: span.first for span in later}
        return found

    def halve_quickly(
        self, spans: Sequence[Span], since: int, found: dict[int, int]
    ) -> Operation[list[Span]]:
        """The same for a time, all steps in one statement; what is left of spans in whose middle
        no message is, since it was deleted by name.
        """
        by_id = {span.partition_id: span for span in spans}
        rows = [(id, since, first, last + 1) for _, id, first, last in spans]
        left = []
        for run in self.dialect.chunks(rows, (0 for _ in rows)):
            source, params = self.dialect.given(HALVED, run)
            sql = self.dialect.sql(HALVE.replace("<source>", source))
            result = yield Statement("browsing.halve", sql, params, sole=True)
            for id, low, high in result:
                if low >= high:
                    found[id] = int(low)
                else:
                    left.append(by_id[id]._replace(first=int(low), last=int(high) - 1))
        return left

    def merge(
        self, spans: Iterable[Span], limit: int, start: Cursor | None, *, down: bool
    ) -> Operation[list[Cursor]]:
        """The places of the first messages of spans, in their order, or from the last one `down`.

        Of each span the messages come in the order of their offsets, whatever its clock said.
        """
        known: list[Cursor] = []
        left = [(span, start) for span in spans if span.first <= span.last]
        depths = iter(DEPTHS)
        depth = 0
        while left:
            depth = next(depths, depth)
            found = yield from self.look(left, -depth if down else depth)
            known = sorted([*known, *(c for cursors in found for c in cursors)], reverse=down)
            known = known[:limit]
            deep = [
                (beyond(span, cursors[-1], down=down), cursors[-1])
                for (span, _), cursors in zip(left, found, strict=True)
                if len(cursors) == depth
            ]
            if len(known) == limit:
                edge = known[-1]
                deep = [(s, c) for s, c in deep if (c >= edge if down else c <= edge)]
            left = [(span, cursor) for span, cursor in deep if span.first <= span.last]
        return known

    def look(
        self, spans: Sequence[tuple[Span, Cursor | None]], few: int
    ) -> Operation[list[list[Cursor]]]:
        """The places of the first or, if `few` is negative, of the last messages of each span."""
        plain = [span for span, _ in spans]
        times: dict[int, dict[int, int]] = {span.partition_id: {} for span in plain}
        for run in self.dialect.chunks(plain, (ROW_OVERHEAD_BYTES for _ in plain)):
            for id, offset, time in (yield from self.topics.fetch_places(run, few=few)):
                times[id][offset] = time
        return [in_order(span, times[span.partition_id], start, few) for span, start in spans]

    # --- messages -------------------------------------------------------------------------------

    def fitting(
        self, heads: Heads, places: Sequence[Cursor], *, whole: bool
    ) -> Operation[list[Cursor]]:
        """Of places those whose payloads a page has room for: at least one."""
        if not whole:
            return [*places]
        largest = {head.span.partition_id: head.largest_bytes for head in heads.found}
        if sum(largest[place.partition_id] for place in places) <= PAGE_BYTES_MAX:
            return [*places]
        sizes: dict[tuple[int, int], int] = {}
        spans = runs_of(places)
        for run in self.dialect.chunks(spans, (ROW_OVERHEAD_BYTES for _ in spans)):
            rows = yield from self.topics.fetch_sizes(run)
            sizes |= {(id, offset): size for id, offset, size in rows}
        room = PAGE_BYTES_MAX
        for count, place in enumerate(places):
            room -= sizes.get(place[1:], 0)
            if room < 0:
                return [*places[: max(count, 1)]]
        return [*places]

    def read(
        self, topic: str, heads: Heads, places: Sequence[Cursor], *, whole: bool
    ) -> Operation[list[Message[Any]]]:
        """The messages of places, in their order; one may be gone by now."""
        fetch = self.topics.fetch_ranges if whole else self.topics.fetch_beginnings
        made_of = unread_message_of if whole else cut_message_of
        keys = {head.span.partition_id: place_of(head.span.key) for head in heads.found}
        spans = runs_of(places)
        rows: dict[tuple[int, int], Row] = {}
        for run in self.dialect.chunks(spans, (ROW_OVERHEAD_BYTES for _ in spans)):
            found = yield from fetch(run)
            rows |= {(row[0], row[1]): row for row in found}
        return [
            made_of(rows[place[1:]], topic, keys[place.partition_id])
            for place in places
            if place[1:] in rows
        ]


def in_order(span: Span, times: dict[int, int], start: Cursor | None, few: int) -> list[Cursor]:
    """The places of a partition's messages. Where a clock was set back, a message has the time of
    the one before it: so places are in the order of offsets, and none is seen twice.
    """
    down = few < 0
    time = None if start is None else start.time
    found = []
    for offset in sorted(times, reverse=down):
        known = times[offset]
        if time is None:
            time = known
        time = min(time, known) if down else max(time, known)
        found.append(Cursor(time, span.partition_id, offset))
    return found


def beyond(span: Span, place: Cursor, *, down: bool) -> Span:
    """What follows in a span after a place."""
    if down:
        return span._replace(last=place.offset - 1)
    return span._replace(first=place.offset + 1)


def runs_of(places: Iterable[Cursor]) -> list[Span]:
    """Places as spans, neighbours in one."""
    spans: list[Span] = []
    for id, offset in sorted(place[1:] for place in places):
        if spans and spans[-1].partition_id == id and spans[-1].last + 1 == offset:
            spans[-1] = spans[-1]._replace(last=offset)
        else:
            spans.append(Span("", id, offset, offset))
    return spans


HALVED = {"partition_id": "bigint", "since": "bigint", "low": "bigint", "high": "bigint"}

_PARTITIONS = """
    SELECT p.id, p.partition_key, p.first_offset, p.next_offset, p.largest_bytes
    FROM {partitions} p WHERE p.topic = ?"""

# Of which some may be empty by now: to look for others could take long.
NEWEST = f"{_PARTITIONS} ORDER BY p.topic DESC, p.id DESC LIMIT ?"

OF_KEYS = f"{_PARTITIONS} AND p.partition_key IN (<keys>)"

# What its log ends with may have been deleted by name: then it is the one before that.
HEADS = """
    SELECT c.id, c.partition_key, c.first_offset, c.next_offset - 1, c.largest_bytes,
           COALESCE((
               SELECT m.published_at FROM {messages} m
               WHERE m.partition_id = c.id AND m.message_offset = c.next_offset - 1
           ), (
               SELECT m.published_at FROM {messages} m
               WHERE m.partition_id = c.id
                 AND m.message_offset BETWEEN c.first_offset AND c.next_offset - 1
               ORDER BY m.partition_id DESC, m.message_offset DESC LIMIT 1
           ), -1) AS head_at
    FROM (<candidates>) c
    WHERE c.next_offset > c.first_offset
    ORDER BY head_at DESC, c.id DESC LIMIT ?"""

LOOK_UP = """
    SELECT f.id, f.partition_key, f.message_offset, f.largest_bytes
    FROM (
        SELECT c.id, c.partition_key, c.first_offset, c.largest_bytes,
               (SELECT m.message_offset FROM {messages} m
                WHERE m.partition_id = c.id AND m.message_id = ?) AS message_offset
        FROM (<candidates>) c
    ) f
    WHERE f.message_offset >= f.first_offset
    ORDER BY f.id DESC LIMIT ?"""

MANY = """
    SELECT COUNT(*) FROM (
        SELECT p.id FROM {partitions} p WHERE p.topic = ? ORDER BY p.topic, p.id LIMIT ?
    ) c"""

# Between low and high, of which high is the answer if all before it is too old. The one message of
# an offset is looked up: for the next one after it, MySQL would begin at the partition's first.
_MIDDLE = "((h.low + h.high) >> 1)"

_MIDDLE_AT = f"""(
            SELECT m.published_at FROM {{messages}} m
            WHERE m.partition_id = h.partition_id AND m.message_offset = {_MIDDLE})"""

HALVE = f"""
    WITH RECURSIVE halving (partition_id, since, low, high, lacks) AS (
        SELECT w.partition_id, w.since, w.low, w.high, 0 FROM (<source>) w
        UNION ALL
        SELECT h.partition_id, h.since,
               CASE WHEN {_MIDDLE_AT} < h.since THEN {_MIDDLE} + 1 ELSE h.low END,
               CASE WHEN {_MIDDLE_AT} >= h.since THEN {_MIDDLE} ELSE h.high END,
               CASE WHEN {_MIDDLE_AT} IS NULL THEN 1 ELSE 0 END
        FROM halving h WHERE h.low < h.high AND h.lacks = 0
    )
    SELECT partition_id, low, high FROM halving WHERE low >= high OR lacks = 1"""
