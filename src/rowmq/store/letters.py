"""Dead letters: messages that a group gave up on.

A letter is a copy of the message in the dead-letter topic, written in the transaction that settles
the original, so that it is never in neither place. The log itself is not touched: other groups see
the message as before. A row of `dead_letters` says which group, why, and where it came from; the
same stands in the copy's headers, for those who consume the dead-letter topic.

To redrive a letter is to open its offset again in the place of its group, and of no other. If the
log has let go of the message meanwhile, it is put back where it stood: below the log's first
offset, where only the group that it is open for will look.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from rowmq.codec import ERROR_CHARS_MAX, decode_headers, encode_headers
from rowmq.message import DeadLetter, Message
from rowmq.progress import Progress, State
from rowmq.store.dialect import Dialect, as_bytes, as_text, beginning
from rowmq.store.entries import Entry
from rowmq.store.groups import Groups
from rowmq.store.keys import id_within, place_of
from rowmq.store.leases import Change, Leases, Loaded
from rowmq.store.selection import HANDLE, Handle, Selection
from rowmq.store.statement import Operation, Row, Statement
from rowmq.store.topics import (
    Span,
    Topics,
    cut_message_of,
    limit_of,
    message_of,
    unread_message_of,
)
from rowmq.times import from_micros

__all__ = [
    "COPY",
    "CUT_COLUMNS",
    "LETTER_COLUMNS",
    "Burial",
    "Filter",
    "Grave",
    "Letters",
    "letter_of",
    "origin_of",
    "reopen",
]

HEADER_CHARS_MAX = 1_000
"""How much of an error is kept in a header."""

TOLD = frozenset(
    f"rowmq-{what}"
    for what in ("topic", "group", "offset", "id", "attempts", "error", "failed-at", "published-at")
)
"""The headers that a copy has beside its message's own. Others that begin so are the message's: a
tick has some, and so has what was replayed.
"""


class Burial(NamedTuple):
    """A message that its group gives up on."""

    partition_id: int
    key: str
    """The stored one: its copy goes to the same shard of the dead-letter topic."""
    offset: int
    attempts: int
    error: str
    failed_at: int
    spare_id: str
    """The copy's id, if another group's letter has the message's own."""


class Grave(NamedTuple):
    """Where the letters of a group go."""

    topic: str
    group: str
    suffix: str

    @property
    def name(self) -> str:
        return self.topic + self.suffix


class Filter(NamedTuple):
    """Which letters `d` are meant, in SQL: where they are looked up, and the condition for them."""

    rows: str
    where: str
    params: list[Any]

    def fill(self, template: str) -> str:
        """A statement about these letters."""
        return template.replace("<letters>", self.rows).replace("<where>", self.where)


class Letters:
    """The operations on dead letters, for one dialect."""

    def __init__(self, dialect: Dialect, topics: Topics, groups: Groups, leases: Leases) -> None:
        self.dialect = dialect
        self.topics = topics
        self.groups = groups
        self.leases = leases

    # --- bury -----------------------------------------------------------------------------------

    def bury(self, grave: Grave, burials: Sequence[Burial]) -> Operation[None]:
        """Copy messages to the dead-letter topic, in the transaction that settles them."""
        found = yield from self.fetch((b.partition_id, b.offset) for b in burials)
        entries = {}
        for burial in burials:
            row = found.get((burial.partition_id, burial.offset))
            if row is not None:  # otherwise retention was quicker
                entries[burial] = entry_of(grave, burial, row)
        if entries:
            yield from self.make_room(grave.name, max(len(e.data) for e in entries.values()))
            places = yield from self.append(entries)
            yield from self.note(grave, places, found)

    def fetch(self, places: Iterable[tuple[int, int]]) -> Operation[dict[tuple[int, int], Row]]:
        """The rows of single messages, by partition and offset."""
        spans = [Span("", id, offset, offset) for id, offset in places]
        found = yield from self.fetch_spans(spans, share=False)
        missing = [span for span in spans if (span.partition_id, span.first) not in found]
        if missing and self.dialect.snapshots:
            found |= yield from self.fetch_spans(missing, share=True)
        return found

    def fetch_spans(
        self, spans: Sequence[Span], *, share: bool
    ) -> Operation[dict[tuple[int, int], Row]]:
        found: dict[tuple[int, int], Row] = {}
        for run in self.dialect.chunks(spans, (0 for _ in spans)):
            rows = yield from self.topics.fetch_ranges(run, share=share)
            found |= {(row[0], row[1]): row for row in rows}
        return found

    def make_room(self, topic: str, size: int) -> Operation[None]:
        """See that the dead-letter topic is known as one, and takes what the message's own took."""
        params = (self.dialect.text(topic),)
        result = yield Statement("letters.limit", self.dialect.sql(LIMIT), params)
        limit, holds_letters = result.rows[0] if result.rows else (None, 0)
        if not holds_letters:
            yield from self.groups.make_topic(topic)
            yield Statement("letters.mark_topic", self.dialect.sql(MARK), params)
        if size > limit_of(limit):
            yield from self.topics.configure(topic, max_payload_bytes=size, retention_us=None)

    def append(self, entries: Mapping[Burial, Entry]) -> Operation[list[tuple[Burial, int]]]:
        """Publish the copies, each under an id that is free, and tell their offsets."""
        topics = {entry.topic for entry in entries.values()}
        results = yield from self.topics.publish(list(entries.values()), alone=False, notify=topics)
        places = [
            (burial, result.offset)
            for burial, result in zip(entries, results, strict=True)
            if not result.duplicate
        ]
        taken = [burial for burial, r in zip(entries, results, strict=True) if r.duplicate]
        if taken:
            again = [renamed(entries[burial], burial.spare_id) for burial in taken]
            results = yield from self.topics.publish(again, alone=False)
            places += [(b, r.offset) for b, r in zip(taken, results, strict=True)]
        return places

    def note(
        self,
        grave: Grave,
        places: Sequence[tuple[Burial, int]],
        found: Mapping[tuple[int, int], Row],
    ) -> Operation[None]:
        """Say where letters came from and why."""
        rows = []
        for burial, offset in places:
            origin = (burial.partition_id, burial.offset)
            id, error = as_text(found[origin][2]), burial.error[:ERROR_CHARS_MAX]
            copy = (grave.name, burial.key, offset)
            how = (burial.failed_at, burial.attempts)
            rows.append((*copy, *origin, *how, grave.topic, grave.group, id, error))
        for run in self.dialect.chunks(rows, (len(row[-1]) for row in rows)):
            source, params = self.dialect.given(NOTE_COLUMNS, run)
            sql = self.dialect.sql(NOTE.replace("<source>", source))
            yield Statement("letters.note", sql, params)

    # --- list -----------------------------------------------------------------------------------

    def list_letters(
        self, chosen: Selection, *, limit: int, type: Any
    ) -> Operation[list[DeadLetter[Any]]]:
        """Letters, oldest first."""
        rows = yield from self.select(chosen, limit=limit)
        return [letter_of(chosen.topic, row, type) for row in rows]

    def find(self, topic: str, handle: Handle) -> Operation[DeadLetter[Any] | None]:
        """The letter of a handle."""
        chosen = Selection(topic, handles=[handle])
        found = yield from self.list_letters(chosen, limit=1, type=None)
        return found[0] if found else None

    def count(self, chosen: Selection, *, limit: int | None = None) -> Operation[int]:
        """How many letters there are; or, up to a limit, how many there are at least."""
        found = self.filter(chosen)
        template, params = COUNT, found.params
        if limit is not None:
            template, params = COUNT_UP_TO, [*params, limit]
        sql = self.dialect.sql(found.fill(template))
        result = yield Statement("letters.count", sql, params, sole=True)
        return int(result.rows[0][0])

    def groups_of(self, chosen: Selection) -> Operation[list[str]]:
        """The groups that gave up on some letters."""
        found = self.filter(chosen)
        sql = self.dialect.sql(found.fill(GROUPS))
        result = yield Statement("letters.groups", sql, found.params, sole=True)
        return sorted(as_text(group) for (group,) in result)

    def select(self, chosen: Selection, *, limit: int) -> Operation[list[Row]]:
        """Rows of LIST, with their messages."""
        found = self.filter(chosen)
        sql = self.dialect.sql(found.fill(LIST))
        result = yield Statement("letters.list", sql, (*found.params, limit), sole=True)
        return [*result.rows]

    def select_now(self, chosen: Selection, *, limit: int) -> Operation[list[Row]]:
        """Rows of LIST that are still there, whatever a caller's transaction saw before."""
        rows = yield from self.select(chosen, limit=limit)
        if not rows or not self.dialect.snapshots:
            return rows
        source, params = self.dialect.given(COPY, [(row[0], row[1]) for row in rows])
        letters = self.dialect.looked_up("{dead_letters}", "d", source, tuple(COPY))
        sql = self.dialect.sql(THERE.replace("<letters>", letters))
        result = yield Statement("letters.list", sql, params)
        there = {(id, offset) for id, offset in result}
        return [row for row in rows if (row[0], row[1]) in there]

    def filter(self, chosen: Selection) -> Filter:
        """Which letters are meant. A handle is of a letter of this topic and group, or of none."""
        rows, params = "{dead_letters} d", list[Any]()
        if chosen.handles is not None:
            source, params = self.dialect.given(HANDLE, chosen.handles)
            rows = self.dialect.looked_up("{dead_letters}", "d", source, tuple(HANDLE))
        where = "d.origin_topic = ?"
        params.append(self.dialect.text(chosen.topic))
        if chosen.group is not None:
            where += " AND d.consumer_group = ?"
            params.append(self.dialect.text(chosen.group))
        if chosen.ids is not None:
            where += f" AND d.origin_id IN ({', '.join('?' * len(chosen.ids))})"
            params += [self.dialect.text(id) for id in chosen.ids]
        return Filter(rows, where, params)

    # --- purge and redrive ----------------------------------------------------------------------

    def purge(self, chosen: Selection, *, limit: int) -> Operation[int]:
        """Delete a batch of letters and their copies. How many it was."""
        yield from self.groups.lock(chosen.topic)
        rows = yield from self.select_now(chosen, limit=limit)
        yield from self.remove(rows)
        return len(rows)

    def redrive(self, chosen: Selection, *, group: str, spares: Sequence[str]) -> Operation[int]:
        """Give letters back to their group, as many as there are spare ids. How many it was."""
        chosen = chosen._replace(group=group)
        yield from self.groups.lock(chosen.topic)
        group_id = yield from self.groups.find(chosen.topic, group, keep=True)
        yield from self.leases.adopt(chosen.topic, group_id)
        rows = yield from self.select_now(chosen, limit=len(spares))
        now = yield from self.dialect.clock("letters.now")
        loaded = yield from self.leases.load(group_id, sorted({row[2] for row in rows}))
        opened: set[tuple[int, int]] = set()
        changes = []
        for place in loaded:
            offsets = {row[3] for row in rows if row[2] == place.partition_id}
            change, reopened = reopen(place, offsets, at=now)
            opened |= {(place.partition_id, offset) for offset in reopened}
            changes.append(change)
        # Once each: a message may have failed twice.
        unique = {(row[2], row[3]): row for row in rows if (row[2], row[3]) in opened}
        yield from self.restore(list(unique.values()), spares)
        yield from self.leases.overwrite(group_id, changes)
        yield from self.remove(rows)
        return len(rows)

    def restore(self, rows: Sequence[Row], spares: Sequence[str]) -> Operation[None]:
        """Put messages back that the log has let go of, where they stood."""
        there = yield from self.fetch((row[2], row[3]) for row in rows)
        for row, spare in zip(rows, spares, strict=False):
            if (row[2], row[3]) in there:
                continue
            headers, published_at = origin_of(row)
            values = [row[2], row[3], row[11], row[12], headers, published_at]
            known = yield from self.known(row[2], row[7])
            id = self.dialect.text(id_within(as_text(row[9]), spare)) if known else row[7]
            yield Statement("letters.restore", self.dialect.sql(RESTORE), [id, *values])

    def known(self, partition_id: int, id: Any) -> Operation[bool]:
        """Whether a partition holds a message of this id."""
        sql = self.dialect.sql(KNOWN)
        result = yield Statement("letters.known", sql, (partition_id, id))
        return len(result) > 0

    def remove(self, rows: Sequence[Row]) -> Operation[None]:
        """Delete letters and their copies, and let the logs of those begin where they now do."""
        keys = [(row[0], row[1]) for row in rows]
        for run in self.dialect.chunks(keys, (0 for _ in keys)):
            source, params = self.dialect.given(COPY, run)
            for name, table in (("forget", "{dead_letters}"), ("delete", "{messages}")):
                sql = self.dialect.delete_from(table, source, tuple(COPY))
                yield Statement(f"letters.{name}", self.dialect.sql(sql), params)
        yield from self.trim(sorted({row[0] for row in rows}))

    def trim(self, partition_ids: Sequence[int]) -> Operation[None]:
        """Let logs begin at their first message, after some were deleted.

        A counter is locked first and its log looked at then: a message that is just being published
        would otherwise be passed.
        """
        for id in partition_ids:
            yield Statement("letters.lock_log", self.dialect.sql(LOCK_LOG), (id,))
            yield Statement("letters.trim", self.dialect.sql(TRIM), (id,))


def entry_of(grave: Grave, burial: Burial, row: Row) -> Entry:
    """The copy of a message, with headers that say what became of it."""
    _, offset, id, payload, encoding, headers, published_at = row
    told = decode_headers(headers) | {
        "rowmq-topic": grave.topic,
        "rowmq-group": grave.group,
        "rowmq-offset": str(offset),
        "rowmq-id": as_text(id),
        "rowmq-attempts": str(burial.attempts),
        "rowmq-error": burial.error[:HEADER_CHARS_MAX],
        "rowmq-failed-at": str(burial.failed_at),
        "rowmq-published-at": str(published_at),
    }
    return Entry(
        topic=grave.name,
        key=burial.key,
        id=as_text(id),
        id_given=True,
        data=as_bytes(payload),
        encoding=encoding,
        headers=encode_headers(told),
    )


def renamed(entry: Entry, id: str) -> Entry:
    id = id_within(entry.key, id)
    return Entry(entry.topic, entry.key, id, True, entry.data, entry.encoding, entry.headers)


def reopen(place: Loaded, offsets: Iterable[int], *, at: int) -> tuple[Change, list[int]]:
    """Open offsets again that are done; `at` is the time. One that is not done will be delivered in
    any case.
    """
    at += place.version % 1_000  # a clock may stand still, or have milliseconds only
    progress = Progress.restored(place.stored)
    opened = []
    for offset in sorted(offsets):
        known = progress.at(offset)
        if offset <= progress.acked or (known is not None and known.state is State.ACKED):
            progress.reopen(offset, at=at)
            opened.append(offset)
    change = Change(place.partition_id, place.epoch, place.version, place.stored, progress.stored())
    return change, opened


def origin_of(row: Row) -> tuple[str | None, int]:
    """The headers of a letter's message as they were, and when it was published."""
    headers = decode_headers(row[13])
    published_at = int(headers.get("rowmq-published-at") or row[14])
    own = {name: value for name, value in headers.items() if name not in TOLD}
    return encode_headers(own), published_at


def letter_of(topic: str, row: Row, type: Any, *, whole: bool = True) -> DeadLetter[Any]:
    """The dead letter of a row of LETTER_COLUMNS; or, if not `whole`, of CUT_COLUMNS."""
    partition_id, offset, failed_at, attempts, group, id, error, key, _, *content = row[2:]
    headers, published_at = origin_of(row)
    payload, encoding = content[:2]
    original = (partition_id, offset, id, payload, encoding, headers, published_at)
    place = place_of(as_text(key))
    if type is None:
        made_of = unread_message_of if whole else cut_message_of
        message: Message[Any] = made_of(original, topic, place)
    else:
        message = message_of(original, topic, place, type)
    return DeadLetter(
        message=message,
        group=as_text(group),
        error=None if error is None else as_text(error),
        attempts=attempts,
        failed_at=from_micros(failed_at),
        offset=offset,
        handle=Handle(row[0], row[1], failed_at).written(),
    )


LIMIT = "SELECT max_payload_bytes, holds_letters FROM {topics} WHERE topic = ?"

MARK = "UPDATE {topics} SET holds_letters = 1 WHERE topic = ?"

NOTE_COLUMNS = {
    "topic": "text",
    "partition_key": "text",
    "message_offset": "bigint",
    "origin_partition_id": "bigint",
    "origin_offset": "bigint",
    "failed_at": "bigint",
    "attempts": "integer",
    "origin_topic": "text",
    "consumer_group": "text",
    "origin_id": "text",
    "error": "text",
}

NOTE = """
    INSERT INTO {dead_letters} (partition_id, message_offset, origin_partition_id, origin_offset,
                                failed_at, attempts, origin_topic, consumer_group, origin_id, error)
    SELECT p.id, w.message_offset, w.origin_partition_id, w.origin_offset, w.failed_at, w.attempts,
           w.origin_topic, w.consumer_group, w.origin_id, w.error
    FROM (<source>) w
    {join} {partitions} p ON p.topic = w.topic AND p.partition_key = w.partition_key"""

LETTER_COLUMNS = """d.partition_id, d.message_offset, d.origin_partition_id, d.origin_offset,
    d.failed_at, d.attempts, d.consumer_group, d.origin_id, d.error, p.partition_key, m.message_id,
    m.payload, m.encoding, m.headers, m.published_at"""

CUT_COLUMNS = LETTER_COLUMNS.replace("m.payload", beginning("m.payload"))

LIST = f"""
    SELECT {LETTER_COLUMNS}
    FROM <letters>
    {{join}} {{partitions}} p ON p.id = d.partition_id
    {{join}} {{messages}} m
        ON m.partition_id = d.partition_id AND m.message_offset = d.message_offset
    WHERE <where>
    ORDER BY d.failed_at, d.partition_id, d.message_offset LIMIT ?"""

THERE = "SELECT d.partition_id, d.message_offset FROM <letters> {as_now}"

COUNT = "SELECT COUNT(*) FROM <letters> WHERE <where>"

COUNT_UP_TO = "SELECT COUNT(*) FROM (SELECT 1 AS one FROM <letters> WHERE <where> LIMIT ?) c"

GROUPS = "SELECT DISTINCT d.consumer_group FROM <letters> WHERE <where>"

COPY = {"partition_id": "bigint", "message_offset": "bigint"}

KNOWN = "SELECT 1 FROM {messages} WHERE partition_id = ? AND message_id = ?"

RESTORE = """
    INSERT INTO {messages} (message_id, partition_id, message_offset, payload, encoding, headers,
                            published_at)
    VALUES (?, ?, ?, ?, ?, ?, ?)"""

LOCK_LOG = "SELECT id FROM {partitions} WHERE id = ? {for_update}"

TRIM = """
    UPDATE {partitions} SET first_offset = COALESCE(
        (SELECT MIN(m.message_offset) FROM {messages} m
         WHERE m.partition_id = {partitions}.id AND m.message_offset >= {partitions}.first_offset),
        next_offset)
    WHERE id = ?"""
