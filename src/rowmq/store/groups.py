"""Consumer groups: create, drop, list, how far they are behind, and seek.

A group is registered, so that garbage collection knows of it before it has read anything. Where it
has no row for a partition, it stands at that partition's beginning: a partition that appears while
the group is down is one of those, and nothing of it is missed. A group that starts at `latest` gets
a row for every partition there is when it is created.

What decides which messages may be collected (creating a group, seeking, giving a message back,
collecting) is done under the topic's lock, a row that publishing never waits for.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rowmq.errors import InvalidOption, UnknownGroup
from rowmq.message import GroupInfo, LagInfo
from rowmq.progress import State
from rowmq.store.dialect import Dialect, as_text
from rowmq.store.statement import Operation, Statement
from rowmq.store.topics import Span, Topics
from rowmq.times import from_micros

__all__ = ["ADOPT", "STARTS", "Groups", "Target"]

STARTS = ("earliest", "latest")


class Target(NamedTuple):
    """Where to seek to: one of these."""

    start: str | None = None
    time: int | None = None
    offsets: Mapping[str, int] | None = None


class Groups:
    """The operations on consumer groups, for one dialect."""

    def __init__(self, dialect: Dialect, topics: Topics) -> None:
        self.dialect = dialect
        self.topics = topics

    def lock(self, topic: str) -> Operation[None]:
        """Lock a topic against whatever decides what may be collected.

        One without a row has no group and no settings: there is nothing to decide.
        """
        yield from self.dialect.seize()
        params = (self.dialect.text(topic),)
        yield Statement("groups.lock_topic", self.dialect.sql(LOCK_TOPIC), params)

    def find(self, topic: str, group: str) -> Operation[int]:
        """The id of a group."""
        params = (self.dialect.text(topic), self.dialect.text(group))
        result = yield Statement("groups.find", self.dialect.sql(FIND), params)
        if not result.rows:
            raise UnknownGroup(
                f"topic {topic!r} has no group {group!r}; create it with create_group() or "
                f"subscribe(), or see groups({topic!r})"
            )
        return int(result.rows[0][0])

    def create(self, topic: str, group: str, *, start: str) -> Operation[bool]:
        """Register a group, unless it is registered. Whether it was new."""
        yield from self.dialect.seize()
        names = (self.dialect.text(topic), self.dialect.text(group))
        result = yield Statement("groups.find", self.dialect.sql(FIND), names)
        if result.rows:
            return False
        sql = self.dialect.sql(self.dialect.lock_topic)
        yield Statement("groups.make_topic", sql, names[:1])
        result = yield Statement("groups.find", self.dialect.sql(FIND), names)
        if result.rows:
            return False
        params = (*names, self.dialect.text(start))
        id = yield from self.dialect.insert_id("groups.create", CREATE, params)
        if start == "latest":
            sql = self.dialect.sql(START_AT_LATEST)
            yield Statement("groups.start_at_latest", sql, (id, names[0]))
        return True

    def drop(self, topic: str, group: str) -> Operation[bool]:
        """Forget a group: its place, its leases and its subscribers. Whether it was there."""
        yield from self.lock(topic)
        names = (self.dialect.text(topic), self.dialect.text(group))
        result = yield Statement("groups.find", self.dialect.sql(FIND), names)
        for (id,) in result:
            for table in ("subscribers", "offsets", "delivery_state"):
                sql = self.dialect.sql(f"DELETE FROM {{{table}}} WHERE group_id = ?")
                yield Statement(f"groups.drop_{table}", sql, (id,))
            yield Statement("groups.drop", self.dialect.sql(DROP), (id,))
        return len(result) > 0

    def list_groups(self, topic: str) -> Operation[list[GroupInfo]]:
        """The groups of a topic, by name."""
        params = (self.dialect.text(topic),)
        result = yield Statement("groups.list", self.dialect.sql(LIST), params, sole=True)
        return [
            GroupInfo(
                topic=topic,
                name=as_text(name),
                start=as_text(start),
                created_at=from_micros(created_at),
                subscribers=int(subscribers),
                lag=int(lag or 0) - int(acked or 0),
                expired=int(expired),
            )
            for name, start, created_at, expired, subscribers, lag, acked in result
        ]

    def lag(self, topic: str, group: str) -> Operation[list[LagInfo]]:
        """How far a group is behind in each partition, from counters and ranges."""
        id = yield from self.find(topic, group)
        params = (id, id, self.dialect.text(topic))
        result = yield Statement("groups.lag", self.dialect.sql(LAG), params)
        return [
            LagInfo(
                key=as_text(key) or None,
                offset_acked=acked,
                last_offset=following - 1,
                lag=following - 1 - acked - int(done),
                in_flight=int(delivered) + max(0, int(tail)),
                owner=None if owner is None else as_text(owner),
            )
            for key, following, acked, done, delivered, tail, owner in result
        ]

    # --- seek -----------------------------------------------------------------------------------

    def seek(self, topic: str, group: str, *, key: str | None, to: Target) -> Operation[int]:
        """Set a group's place, fenced: what its subscribers have in flight is void."""
        yield from self.lock(topic)
        id = yield from self.find(topic, group)
        yield Statement("groups.adopt", self.dialect.sql(ADOPT), (id, id, self.dialect.text(topic)))
        spans = yield from self.partitions(topic, key)
        places = yield from self.places(topic, spans, to)
        moved = [(id, span.partition_id, acked) for span, acked in places]
        for run in self.dialect.chunks(moved, (0 for _ in moved)):
            yield from self.move(run)
        return len(moved)

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


def chosen(
    topic: str, spans: Mapping[str, Span], offsets: Mapping[str, int]
) -> list[tuple[Span, int]]:
    """The places of given offsets: each is the next one to be delivered."""
    places = []
    for key, offset in offsets.items():
        span = spans.get(key)
        if span is None:
            raise InvalidOption(f"topic {topic!r} has no messages with the key {key or None!r}")
        if not span.first <= offset <= span.last + 1:
            raise InvalidOption(
                f"key {key or None!r} of topic {topic!r} holds the offsets {span.first} to "
                f"{span.last}; seek to one of these, or to {span.last + 1} for what comes next, "
                f"not to {offset}"
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

LOCK_TOPIC = "SELECT topic FROM {topics} WHERE topic = ? {for_update}"

FIND = "SELECT id FROM {groups} WHERE topic = ? AND consumer_group = ?"

CREATE = """
    INSERT INTO {groups} (topic, consumer_group, start_at, created_at) VALUES (?, ?, ?, {now})"""

DROP = "DELETE FROM {groups} WHERE id = ?"

_PLACE = """
    INSERT INTO {offsets} (group_id, partition_id, offset_acked, offset_delivered, tail_first,
                           tail_until, tail_attempts, epoch, version, leased_by, touched)"""

START_AT_LATEST = f"""{_PLACE}
    SELECT ?, p.id, p.next_offset - 1, p.next_offset - 1, p.next_offset, 0, 0, 0, 0, 0, 0
    FROM {{partitions}} p WHERE p.topic = ?"""

ADOPT = f"""{_PLACE}
    SELECT ?, p.id, p.first_offset - 1, p.first_offset - 1, p.first_offset, 0, 0, 0, 0, 0, 0
    FROM {{partitions}} p LEFT JOIN {{offsets}} o ON o.group_id = ? AND o.partition_id = p.id
    WHERE p.topic = ? AND o.partition_id IS NULL
    {{on_conflict}}"""

LIST_PARTITIONS = """
    SELECT id, partition_key, first_offset, next_offset FROM {partitions} WHERE topic = ?"""

LIST = f"""
    SELECT g.consumer_group, g.start_at, g.created_at, g.expired,
           (SELECT COUNT(*) FROM {{subscribers}} s
            WHERE s.group_id = g.id AND s.expires_at > {{now}}),
           (SELECT SUM(p.next_offset - 1 - COALESCE(o.offset_acked, p.first_offset - 1))
            FROM {{partitions}} p
            LEFT JOIN {{offsets}} o ON o.group_id = g.id AND o.partition_id = p.id
            WHERE p.topic = g.topic),
           (SELECT SUM(d.last_offset - d.first_offset + 1) FROM {{delivery_state}} d
            WHERE d.group_id = g.id AND d.state = {int(State.ACKED)})
    FROM {{groups}} g WHERE g.topic = ? ORDER BY g.consumer_group"""

LAG = f"""
    SELECT p.partition_key, p.next_offset, COALESCE(o.offset_acked, p.first_offset - 1),
           COALESCE(r.acked, 0), COALESCE(r.delivered, 0),
           COALESCE(o.offset_delivered - o.tail_first + 1, 0), s.subscriber_name
    FROM {{partitions}} p
    LEFT JOIN {{offsets}} o ON o.group_id = ? AND o.partition_id = p.id
    LEFT JOIN {{subscribers}} s ON s.id = o.leased_by AND s.expires_at > {{now}}
    LEFT JOIN (
        SELECT d.partition_id,
               SUM(CASE WHEN d.state = {int(State.ACKED)}
                   THEN d.last_offset - d.first_offset + 1 ELSE 0 END) AS acked,
               SUM(CASE WHEN d.state = {int(State.DELIVERED)}
                   THEN d.last_offset - d.first_offset + 1 ELSE 0 END) AS delivered
        FROM {{delivery_state}} d WHERE d.group_id = ? GROUP BY d.partition_id
    ) r ON r.partition_id = p.id
    WHERE p.topic = ? ORDER BY p.partition_key"""
