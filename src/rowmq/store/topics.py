"""Topics: publish, read, list and configure, as operations.

The one idea: a partition's row holds its counter. To publish is to lock that row, take the next
offsets, insert, and let the commit release the lock. So offsets have no gaps, no reader can pass
one that has not committed, and how many messages there are is arithmetic and never a scan.

    publish   lock_partitions -> insert_messages (-> find_messages, if an id was there) -> advance
    read      list_partitions (which ranges exist) -> fetch_ranges (only those)

This module holds the course of events. The SQL that differs in shape is in each dialect's module.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from datetime import timedelta
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from rowmq.codec import BEGINNING_BYTES, Encoding, beginning_of, decode, decode_headers
from rowmq.errors import InvalidOption, PayloadMismatch, UniqueViolation
from rowmq.message import Message, PartitionInfo, PublishResult, TopicInfo
from rowmq.quoting import quoted
from rowmq.store.dialect import Dialect, as_bytes, as_text, beginning
from rowmq.store.entries import (
    ROW_OVERHEAD_BYTES,
    Entry,
    Partition,
    refuse_oversized,
    results,
    unrepeated,
)
from rowmq.store.keys import Place, named, place_of
from rowmq.store.statement import Operation, Result, Row, Statement
from rowmq.store.sweeping import Sweeping
from rowmq.times import Duration, from_micros, to_seconds

__all__ = [
    "KEEP_FOR_EVER",
    "PAYLOAD_BYTES_DEFAULT",
    "PAYLOAD_BYTES_LIMIT",
    "UNCONFIGURED",
    "Advance",
    "Counter",
    "Placed",
    "Span",
    "StepwiseTopics",
    "Topics",
    "topic_info",
]

PAYLOAD_BYTES_DEFAULT = 1024 * 1024
"""The largest payload of a topic that was not configured."""

PAYLOAD_BYTES_LIMIT = 256 * 1024 * 1024
"""The largest limit a topic can be given; beyond it a payload belongs into a file store."""

KEEP_FOR_EVER = 0
"""A retention that stands for none: to keep messages for no time is refused, so it is free."""


class Counter(NamedTuple):
    """A locked partition: its id, its next free offset, and its topic's payload limit."""

    partition_id: int
    next_offset: int
    payload_bytes_max: int


class Placed(NamedTuple):
    """An entry with the place it is to take."""

    partition_id: int
    offset: int
    entry: Entry


class Advance(NamedTuple):
    """What becomes of a locked partition that messages were added to."""

    partition_id: int
    next_offset: int
    largest_bytes: int


class Span(NamedTuple):
    """A run of offsets of one partition, both ends included."""

    key: str
    partition_id: int
    first: int
    last: int


class Topics(ABC):
    """The operations on topics, for one dialect."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self.sweeping = Sweeping(dialect)

    @abstractmethod
    def publish(
        self,
        entries: Sequence[Entry],
        *,
        alone: bool = True,
        notify: Collection[str] = (),
    ) -> Operation[list[PublishResult]]:
        """Append entries, all or none, and tell where each one stands.

        `alone` says that no caller's transaction is open around it. `notify` are those topics
        whose subscribers are to be told, where the database has a way to. Partitions are locked
        in sorted order, so that two batches wait for each other but never in a circle.
        """

    def lock_of(self, entry: Entry) -> Hashable:
        """Names the lock that publishing an entry waits for: its partition's counter."""
        return entry.partition

    def runs(self, entries: Sequence[Entry]) -> Iterable[list[Entry]]:
        """The entries in runs of one statement each."""
        return self.dialect.chunks(entries, [entry.size for entry in entries])

    # --- read -----------------------------------------------------------------------------------

    def read(
        self,
        topic: str,
        *,
        key: str | None,
        from_offset: int | Mapping[str, int],
        since: int | None,
        limit: int,
        type: Any,
    ) -> Operation[list[Message[Any]]]:
        """Messages of one partition or of all, ordered by partition key and offset."""
        if isinstance(from_offset, int):
            most = limit if since is None else None
            spans = yield from self.list_spans(topic, key=key, from_offset=from_offset, limit=most)
        else:
            spans = yield from self.list_spans(topic, key=key, from_offset=1, limit=None)
            spans = [s._replace(first=max(s.first, from_offset.get(s.key, 1))) for s in spans]
            spans = [span for span in spans if span.first <= span.last]
        if since is not None:
            spans = yield from self.spans_since(spans, since)
        spans = first_of(spans, limit)
        rows: list[Row] = []
        for run in self.dialect.chunks(spans, (ROW_OVERHEAD_BYTES for _ in spans)):
            rows.extend((yield from self.fetch_ranges(run)))
        places = {span.partition_id: place_of(span.key) for span in spans}
        order = {span.partition_id: place for place, span in enumerate(spans)}
        rows.sort(key=lambda row: (order[row[0]], row[1]))
        return [message_of(row, topic, places[row[0]], type) for row in rows]

    def list_partitions(
        self,
        topic: str,
        *,
        after: str | None = None,
        keys: tuple[str, str] | None = None,
        limit: int | None = None,
    ) -> Operation[list[PartitionInfo]]:
        """The partitions of a topic, by key and shard, also those that are empty by now: those that
        follow a stored key, or whose stored keys are between two.
        """
        conditions = ["topic = ?"]
        params: list[Any] = [self.dialect.text(topic)]
        if after is not None:
            conditions.append("partition_key > ?")
            params.append(self.dialect.text(after))
        if keys is not None:
            conditions.append("partition_key >= ? AND partition_key <= ?")
            params += map(self.dialect.text, keys)
        params.append(2**62 if limit is None else limit)
        sql = self.dialect.sql(ALL_PARTITIONS.replace("<where>", " AND ".join(conditions)))
        result = yield Statement("topics.partitions", sql, params, sole=True)
        return [
            partition_info(as_text(stored), first, following - 1)
            for stored, first, following in result
        ]

    def list_spans(
        self, topic: str, *, key: str | None, from_offset: int, limit: int | None
    ) -> Operation[list[Span]]:
        """What each partition of a topic holds from an offset on, by its counters alone."""
        params: list[Any] = [self.dialect.text(topic), from_offset]
        if key is not None:
            params.append(self.dialect.text(key))
        params.append(2**62 if limit is None else limit)
        sql = self.dialect.sql(LIST_PARTITIONS if key is None else LIST_PARTITION)
        result = yield Statement("topics.list_partitions", sql, params, sole=True)
        return [
            Span(as_text(name), id, max(first, from_offset), following - 1)
            for id, name, first, following in result
        ]

    def spans_since(self, spans: Sequence[Span], since: int) -> Operation[list[Span]]:
        """Each span from its first message published at or after a time, found by halving.

        Times rise with the offsets, so some twenty point look-ups, all partitions together in each,
        stand for a scan of the log. Where messages were deleted, the next one is looked at.
        """
        low = {span.partition_id: span.first for span in spans}
        high = {span.partition_id: span.last + 1 for span in spans}
        while searched := [span for span in spans if low[span[1]] < high[span[1]]]:
            middle = {s.partition_id: (low[s[1]] + high[s[1]]) // 2 for s in searched}
            points = [s._replace(first=middle[s[1]]) for s in searched]
            earlier: set[int] = set()
            for run in self.dialect.chunks(points, (ROW_OVERHEAD_BYTES for _ in points)):
                times = yield from self.fetch_times(run)
                earlier |= {row[0] for row in times if row[1] < since}
            for id, offset in middle.items():
                if id in earlier:
                    low[id] = offset + 1
                else:
                    high[id] = offset
        return [span._replace(first=low[span[1]]) for span in spans if low[span[1]] <= span.last]

    def fetch_ranges(
        self, spans: Sequence[Span], *, share: bool = False
    ) -> Operation[Iterable[Row]]:
        """The messages of many spans, in any order."""
        return self.fetch("topics.read", MESSAGE_COLUMNS, spans, share=share)

    def fetch_beginnings(self, spans: Sequence[Span]) -> Operation[Iterable[Row]]:
        """The same with the beginnings of payloads only; a byte more, if there is more."""
        return self.fetch("topics.beginnings", BEGINNING_COLUMNS, spans)

    def fetch_times(self, spans: Sequence[Span]) -> Operation[Iterable[Row]]:
        """Partition id and publishing time of the first message of each span, in any order."""
        return self.fetch("topics.times", "m.partition_id, m.published_at", spans, few=1)

    def fetch_places(self, spans: Sequence[Span], *, few: int) -> Operation[Iterable[Row]]:
        """Partition id, offset and publishing time of the first messages of each span, or of the
        last if `few` is negative, in any order.
        """
        columns = "m.partition_id, m.message_offset, m.published_at"
        return self.fetch("topics.places", columns, spans, few=few)

    def fetch_sizes(self, spans: Sequence[Span]) -> Operation[Iterable[Row]]:
        """Partition id, offset and payload size of the messages of many spans, in any order."""
        columns = "m.partition_id, m.message_offset, LENGTH(m.payload)"
        return self.fetch("topics.sizes", columns, spans)

    def fetch_ids(self, spans: Sequence[Span]) -> Operation[Iterable[Row]]:
        """Partition id, offset and message id of the messages of many spans, in any order."""
        columns = "m.partition_id, m.message_offset, m.message_id"
        return self.fetch("topics.ids", columns, spans)

    @abstractmethod
    def fetch(
        self,
        name: str,
        columns: str,
        spans: Sequence[Span],
        *,
        few: int = 0,
        share: bool = False,
    ) -> Operation[Iterable[Row]]:
        """Columns of the messages `m` of many spans, or of the first `few` of each, or of the last
        if it is negative, in any order.

        `share` sees what is committed now, also where the caller's transaction reads a snapshot.
        """

    # --- list and configure ---------------------------------------------------------------------

    def list_topics(self) -> Operation[list[TopicInfo]]:
        """Every topic that has a partition or was configured, by name."""
        result = yield Statement("topics.list", self.dialect.sql(LIST_TOPICS), sole=True)
        return [topic_info(row) for row in result]

    def find_topic(self, topic: str) -> Operation[TopicInfo | None]:
        """A topic, if it has a partition or was configured; its partitions are counted in parts."""
        settings = yield from self.find_settings(topic)
        swept = (yield from self.sweeping.topics([topic]))[topic]
        if settings is None and not swept.partitions:
            return None
        counted = (topic, swept.partitions, swept.messages)
        return topic_info((*counted, *(settings or UNCONFIGURED)))

    def find_settings(self, topic: str) -> Operation[Row | None]:
        """A topic's settings as they are stored, if it has any."""
        params = (self.dialect.text(topic),)
        result = yield Statement("topics.find", self.dialect.sql(SETTINGS), params, sole=True)
        return result.rows[0] if result.rows else None

    def configure(
        self, topic: str, *, max_payload_bytes: int | None, retention_us: int | None
    ) -> Operation[None]:
        """Set a topic's limits; None leaves one as it is."""
        sets_retention = int(retention_us is not None)
        yield Statement(
            "topics.configure",
            self.dialect.sql(self.configure_sql),
            (self.dialect.text(topic), max_payload_bytes, retention_us or None, sets_retention),
            sole=True,
        )

    # A retention may be set to NULL, so that cannot stand for leaving it as it is.
    configure_sql = """
        INSERT INTO {topics} AS t (topic, max_payload_bytes, retention_us, created_at)
        VALUES (?, ?, ?, {now})
        ON CONFLICT (topic) DO UPDATE
        SET max_payload_bytes = COALESCE(excluded.max_payload_bytes, t.max_payload_bytes),
            retention_us = CASE WHEN ? = 1 THEN excluded.retention_us ELSE t.retention_us END"""


class StepwiseTopics(Topics):
    """Publishing in short statements, where no single one can do it all."""

    def publish(
        self,
        entries: Sequence[Entry],
        *,
        alone: bool = True,
        notify: Collection[str] = (),  # noqa: ARG002 - there is no way to
    ) -> Operation[list[PublishResult]]:
        fresh = unrepeated(entries)
        counters = yield from self.checked_counters(fresh, alone=alone)
        free = {partition: counter.next_offset for partition, counter in counters.items()}
        largest = dict.fromkeys(counters, 0)
        found: dict[tuple[str, str, str], Row] = {}
        for run in self.runs(fresh):
            placed = place(run, counters, free)
            try:
                yield from self.insert_messages(placed)
            except UniqueViolation:
                # The lock is held, so what is found now is all there is to be found.
                known = yield from self.find_messages(placed)
                found |= {
                    entry.identity: (known[entry.identity], True)
                    for entry in run
                    if entry.identity in known
                }
                placed = place([e for e in run if e.identity not in known], counters, free)
                yield from self.insert_messages(placed)
            for _, offset, entry in placed:
                found[entry.identity] = (offset, False)
                free[entry.partition] = offset + 1
                largest[entry.partition] = max(largest[entry.partition], len(entry.data))
        yield from self.advance_partitions(
            [
                Advance(counter.partition_id, free[partition], largest[partition])
                for partition, counter in counters.items()
                if free[partition] != counter.next_offset
            ]
        )
        return results(entries, found)

    def checked_counters(
        self, entries: Sequence[Entry], *, alone: bool
    ) -> Operation[dict[Partition, Counter]]:
        """The locked counters of the entries' partitions, once no payload is too large.

        A partition is made only then: a caller who goes on after the error has nothing of it.
        """
        partitions = sorted({entry.partition for entry in entries})
        counters = yield from self.find_partitions(partitions, alone=alone)
        limits = {topic: counter.payload_bytes_max for (topic, _), counter in counters.items()}
        missing = [partition for partition in partitions if partition not in counters]
        for topic in {topic for topic, _ in missing if topic not in limits}:
            sql, params = self.dialect.sql(LIMIT), (self.dialect.text(topic),)
            result = yield Statement("topics.limit", sql, params)
            limits[topic] = limit_of(result.rows[0][0] if result.rows else None)
        refuse_oversized(entries, limits)
        if missing:
            yield from self.create_partitions(missing)
        if missing or not alone:
            counters |= yield from self.lock_partitions(missing if alone else partitions)
        return counters

    def find_partitions(
        self,
        partitions: Sequence[Partition],
        *,
        alone: bool,  # noqa: ARG002 - for a dialect
    ) -> Operation[dict[Partition, Counter]]:
        """The counters of those partitions that exist, locked if `alone`."""
        return self.lock_partitions(partitions)

    @abstractmethod
    def lock_partitions(
        self, partitions: Sequence[Partition]
    ) -> Operation[dict[Partition, Counter]]:
        """Lock the counters of those partitions that exist, in this order."""

    @abstractmethod
    def create_partitions(self, partitions: Sequence[Partition]) -> Operation[None]:
        """Make partitions that were missing, unless somebody else has just done so."""

    @abstractmethod
    def insert_messages(self, placed: Sequence[Placed]) -> Operation[None]:
        """Insert rows in one statement: all of them, or `UniqueViolation` and none."""

    @abstractmethod
    def find_messages(self, placed: Sequence[Placed]) -> Operation[dict[tuple[str, str, str], int]]:
        """The offsets of those entries whose id is already in their partition."""

    @abstractmethod
    def advance_partitions(self, advances: Sequence[Advance]) -> Operation[None]:
        """Set the counters of locked partitions, and raise what is known of their payloads."""


def limited(few: int) -> str:
    """What ends a look at a span, if not all its messages are asked for."""
    order = "DESC" if few < 0 else "ASC"
    return f"ORDER BY m.message_offset {order} LIMIT {abs(few)}" if few else ""


MESSAGE_COLUMNS = """m.partition_id, m.message_offset, m.message_id, m.payload, m.encoding,
    m.headers, m.published_at"""

BEGINNING_COLUMNS = MESSAGE_COLUMNS.replace("m.payload", beginning("m.payload"))

LIST_PARTITIONS = """
    SELECT id, partition_key, first_offset, next_offset FROM {partitions}
    WHERE topic = ? AND next_offset > ? AND next_offset > first_offset
    ORDER BY partition_key LIMIT ?"""

LIST_PARTITION = """
    SELECT id, partition_key, first_offset, next_offset FROM {partitions}
    WHERE topic = ? AND next_offset > ? AND partition_key = ? AND next_offset > first_offset
    LIMIT ?"""

ALL_PARTITIONS = """
    SELECT partition_key, first_offset, next_offset FROM {partitions}
    WHERE <where> ORDER BY topic, partition_key LIMIT ?"""

LIMIT = "SELECT max_payload_bytes FROM {topics} WHERE topic = ?"

SETTINGS = """
    SELECT max_payload_bytes, retention_us, holds_letters FROM {topics} WHERE topic = ?"""

UNCONFIGURED = (None, None, 0)

LIST_TOPICS = """
    SELECT topic, SUM(partitions), SUM(messages), MAX(max_payload_bytes), MAX(retention_us),
           MAX(holds_letters)
    FROM (
        SELECT topic, 1 AS partitions, next_offset - first_offset AS messages,
               NULL AS max_payload_bytes, NULL AS retention_us, 0 AS holds_letters
        FROM {partitions}
        UNION ALL
        SELECT topic, 0, 0, max_payload_bytes, retention_us, holds_letters FROM {topics}
    ) known
    GROUP BY topic ORDER BY topic"""


def topic_info(row: Row) -> TopicInfo:
    """What is told of a topic."""
    name, partitions, messages, limit, retention, holds_letters = row
    return TopicInfo(
        name=as_text(name),
        partitions=int(partitions),
        messages=int(messages),
        max_payload_bytes=limit_of(limit),
        retention=None if retention is None else timedelta(microseconds=retention),
        holds_letters=bool(holds_letters),
    )


def partition_info(stored: str, first: int, last: int) -> PartitionInfo:
    """What is told of a partition."""
    key, shard = place_of(stored)
    return PartitionInfo(key=key, shard=shard, first_offset=first, last_offset=last)


def place(
    entries: Iterable[Entry], counters: Mapping[Partition, Counter], free: Mapping[Partition, int]
) -> list[Placed]:
    """Give the entries the next free offsets of their partitions, in their order."""
    following = dict(free)
    placed = []
    for entry in entries:
        offset = following[entry.partition]
        following[entry.partition] = offset + 1
        placed.append(Placed(counters[entry.partition].partition_id, offset, entry))
    return placed


def first_of(spans: Sequence[Span], limit: int) -> list[Span]:
    """The spans, cut where they hold `limit` messages together."""
    kept: list[Span] = []
    for span in spans:
        if limit <= 0:
            break
        last = min(span.last, span.first + limit - 1)
        kept.append(span._replace(last=last))
        limit -= last - span.first + 1
    return kept


def message_of(row: Row, topic: str, place: Place, type: Any) -> Message[Any]:
    """The message of a row that begins with MESSAGE_COLUMNS."""
    _, offset, id, data, encoding, headers, published_at, *_ = row
    # Most come as they are to be: a call for each would take longer than all the rest.
    if data.__class__ is not bytes:
        data = as_bytes(data)
    try:
        value = decode(data, encoding, type)
    except PayloadMismatch as error:
        where = f"topic {topic!r}, key {named(place)}, offset {offset}"
        raise PayloadMismatch(f"{where}: {error}") from error
    return Message(
        payload=value,
        key=place[0],
        shard=place[1],
        id=id if id.__class__ is str else as_text(id),
        headers={} if headers is None else decode_headers(headers),
        topic=topic,
        offset=offset,
        published_at=moment_of(published_at),
    )


moment_of = lru_cache(maxsize=1_000)(from_micros)
"""Messages that were published together have the same time."""


def unread_message_of(row: Row, topic: str, place: Place) -> Message[Any]:
    """The message of a row, with the bytes of its payload if nothing else can be made of it."""
    try:
        return message_of(row, topic, place, None)
    except PayloadMismatch:
        plain = (*row[:4], int(Encoding.BYTES), *row[5:])
        return message_of(plain, topic, place, None)


def cut_message_of(row: Row, topic: str, place: Place) -> Message[Any]:
    """The message of a row that begins with BEGINNING_COLUMNS."""
    data, encoding = as_bytes(row[3]), row[4]
    if len(data) <= BEGINNING_BYTES:
        return unread_message_of(row, topic, place)
    bare = (*row[:3], b"", int(Encoding.BYTES), *row[5:])
    message = message_of(bare, topic, place, None)
    return msgspec.structs.replace(message, payload=beginning_of(data, encoding))


def limit_of(configured: int | None) -> int:
    """The payload limit of a topic that was, or was not, configured."""
    return PAYLOAD_BYTES_DEFAULT if configured is None else configured


def limits_of(result: Result) -> dict[str, int]:
    """Payload limits by topic, of rows of topic and limit."""
    return {as_text(topic): limit_of(limit) for topic, limit in result}


def check_limit(max_payload_bytes: int | None) -> int | None:
    """A payload limit that can be stored."""
    if max_payload_bytes is None:
        return None
    if type(max_payload_bytes) is not int or not 1 <= max_payload_bytes <= PAYLOAD_BYTES_LIMIT:
        raise InvalidOption(
            f"max_payload_bytes must be 1 to {PAYLOAD_BYTES_LIMIT:,}, not "
            f"{quoted(max_payload_bytes)}"
        )
    return max_payload_bytes


def check_retention(retention: Duration | None, *, name: str = "retention") -> int | None:
    """A retention in whole microseconds; KEEP_FOR_EVER for one without end."""
    if retention is None:
        return None
    if isinstance(retention, float | timedelta) and retention in (math.inf, timedelta.max):
        return KEEP_FOR_EVER
    micros = round(to_seconds(retention, name=name) * 1_000_000)
    if micros == 0:
        raise InvalidOption(
            f"{name} must be more than zero, not {quoted(retention)}; timedelta.max keeps for ever"
        )
    return micros
