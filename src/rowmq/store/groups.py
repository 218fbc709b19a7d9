"""Consumer groups: create, drop, list, and how far they are behind.

A group is registered, so that garbage collection knows of it before it has read anything. Where it
has no row for a partition, it stands at that partition's beginning: a partition that appears while
the group is down is one of those, and nothing of it is missed. A group that starts at `latest` gets
a row for every partition there is when it is created.

What decides which messages may be collected (creating a group, seeking, giving a message back,
collecting) is done under the topic's lock, a row that publishing never waits for.
"""

import heapq
from collections.abc import Sequence
from enum import IntEnum
from typing import Any

from rowmq.errors import InvalidOption, UnknownGroup
from rowmq.message import GroupInfo, LagInfo
from rowmq.progress import State
from rowmq.store.dialect import Dialect, as_text
from rowmq.store.keys import key_of, shard_of
from rowmq.store.statement import Operation, Row, Statement
from rowmq.store.sweeping import PLACES, Behind, Member, Sweeping
from rowmq.store.topics import Topics
from rowmq.times import from_micros

__all__ = ["ADOPT", "PARTITIONS_MAX", "STARTS", "Groups", "Readers"]

STARTS = ("earliest", "latest")

PARTITIONS_MAX = 100_000
"""Among how many partitions those are looked for in which a group is most behind: of a topic with
more, those with the oldest keys and the newest ones.
"""


class Readers(IntEnum):
    """Who reads for a group: nobody yet, subscribers who share its messages among themselves, or
    one reader that keeps its own books and only says how far it is.
    """

    NONE = 0
    SUBSCRIBERS = 1
    BOOKKEEPER = 2


class Groups:
    """The operations on consumer groups, for one dialect."""

    def __init__(self, dialect: Dialect, topics: Topics) -> None:
        self.dialect = dialect
        self.topics = topics
        self.sweeping = Sweeping(dialect)

    def lock(self, topic: str) -> Operation[bool]:
        """Lock a topic against whatever decides what may be collected.

        False if it has no row: then it has no group and no settings, so nothing to decide.
        """
        yield from self.dialect.seize()
        params = (self.dialect.text(topic),)
        result = yield Statement("groups.lock_topic", self.dialect.sql(LOCK_TOPIC), params)
        return len(result) > 0

    def keep(self, group_id: int) -> Operation[None]:
        """See that a group is there, and is not dropped before this transaction ends."""
        result = yield Statement("groups.keep", self.dialect.sql(KEEP), (group_id,))
        if not result.rows:
            raise UnknownGroup("this group was dropped; subscribe again to create it anew")

    def find(self, topic: str, group: str, *, keep: bool = False) -> Operation[int]:
        """The id of a group; `keep` it from being dropped before this transaction ends."""
        params = (self.dialect.text(topic), self.dialect.text(group))
        sql = self.dialect.sql(FIND_AND_KEEP if keep else FIND)
        result = yield Statement("groups.find", sql, params, sole=not keep)
        if not result.rows:
            raise UnknownGroup(
                f"topic {topic!r} has no group {group!r}; create it with create_group() or "
                f"subscribe(), or see groups({topic!r})"
            )
        return int(result.rows[0][0])

    def assign(self, topic: str, group: str, to: Readers) -> Operation[int]:
        """See that a group has one kind of readers, from the first on; its id."""
        id = yield from self.find(topic, group)
        now = yield Statement("groups.read_by", self.dialect.sql(READ_BY), (id,))
        if now.rows and now.rows[0][0] == Readers.NONE:
            yield Statement("groups.assign", self.dialect.sql(ASSIGN), (int(to), id))
            sql = self.dialect.sql(READ_BY_AND_KEEP)
            now = yield Statement("groups.read_by", sql, (id,))
        if now.rows and now.rows[0][0] != to:
            raise InvalidOption(taken(topic, group, to))
        return id

    def make_topic(self, topic: str) -> Operation[None]:
        """See that a topic has a row, and lock it."""
        sql, params = self.dialect.sql(self.dialect.lock_topic), (self.dialect.text(topic),)
        yield Statement("groups.make_topic", sql, params)

    def create(self, topic: str, group: str, *, start: str) -> Operation[bool]:
        """Register a group, unless it is registered. Whether it was new."""
        yield from self.dialect.seize()
        names = (self.dialect.text(topic), self.dialect.text(group))
        result = yield Statement("groups.find", self.dialect.sql(FIND), names)
        if result.rows:
            return False
        yield from self.make_topic(topic)
        # As it is now, also where the caller's transaction reads a snapshot.
        result = yield Statement("groups.find", self.dialect.sql(FIND_AND_KEEP), names)
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
        result = yield Statement("groups.find", self.dialect.sql(FIND_AND_KEEP), names)
        for (id,) in result:
            # First, so that whoever is about to write for this group waits, and finds it gone.
            yield Statement("groups.drop", self.dialect.sql(DROP), (id,))
            for table in ("subscribers", "offsets", "delivery_state"):
                sql = self.dialect.sql(f"DELETE FROM {{{table}}} WHERE group_id = ?")
                yield Statement(f"groups.drop_{table}", sql, (id,))
        return len(result) > 0

    def list_groups(self, topic: str) -> Operation[list[GroupInfo]]:
        """The groups of a topic, by name."""
        params = (self.dialect.text(topic),)
        sql = self.dialect.sql(LIST.replace("<one>", ""))
        result = yield Statement("groups.list", sql, params, sole=True)
        return (yield from self._with_lag(topic, result.rows))

    def find_group(self, topic: str, group: str) -> Operation[GroupInfo | None]:
        """A group as in the list, if there is one."""
        params = (self.dialect.text(topic), self.dialect.text(group))
        sql = self.dialect.sql(LIST.replace("<one>", "AND g.consumer_group = ?"))
        result = yield Statement("groups.look", sql, params, sole=True)
        found = yield from self._with_lag(topic, result.rows)
        return found[0] if found else None

    def _with_lag(self, topic: str, rows: Sequence[Row]) -> Operation[list[GroupInfo]]:
        """Groups with how far they are behind: partitions are looked at if there is a group."""
        if not rows:
            return []
        parts = (yield from self.sweeping.topics([topic]))[topic].parts
        members = [(Member(id, topic), parts) for id, *_ in rows]
        places = yield from self.sweeping.behind(members)
        return [group_info(topic, row, places[row[0]]) for row in rows]

    def lag(self, topic: str, group: str, *, limit: int | None = None) -> Operation[list[LagInfo]]:
        """How far a group is behind in each partition, from counters and ranges; or only in those
        in which it is most.
        """
        id = yield from self.find(topic, group)
        if limit is not None:
            return (yield from self._most_lag(id, topic, limit))
        params = [id, self.dialect.text(topic)]
        result = yield Statement("groups.lag", self.dialect.sql(LAG), params, sole=True)
        return [lag_info(row) for row in result]

    def _most_lag(self, id: int, topic: str, limit: int) -> Operation[list[LagInfo]]:
        swept = yield from self.sweeping.topics([topic], looks_max=PARTITIONS_MAX)
        most: list[tuple[Any, LagInfo]] = []
        for part in swept[topic].parts:
            params = [*self.sweeping.places(Member(id, topic), part), limit]
            sql = self.dialect.sql(MOST_LAG)
            result = yield Statement("groups.most_lag", sql, params, sole=True)
            found = [(as_text(row[0]), lag_info(row)) for row in result]
            ranked = [((-info.lag, name.encode()), info) for name, info in found]
            most = heapq.nsmallest(limit, [*most, *ranked], key=lambda known: known[0])
        return [info for _, info in most]


def group_info(topic: str, row: Row, places: Sequence[Behind]) -> GroupInfo:
    _, name, start, created_at, expired, subscribers = row
    return GroupInfo(
        topic=topic,
        name=as_text(name),
        start=as_text(start),
        created_at=from_micros(created_at),
        subscribers=int(subscribers),
        lag=sum(one.above - one.done for one in places),
        expired=int(expired),
    )


def lag_info(row: Row) -> LagInfo:
    key, following, acked, done, delivered, tail, owner, retrying = row
    return LagInfo(
        key=key_of(as_text(key)),
        shard=shard_of(as_text(key)),
        offset_acked=acked,
        last_offset=following - 1,
        lag=following - 1 - acked - int(done),
        in_flight=int(delivered) + max(0, int(tail)),
        owner=None if owner is None else as_text(owner),
        retrying=int(retrying),
    )


def taken(topic: str, group: str, wanted: Readers) -> str:
    """Why readers of a kind cannot have a group."""
    anew = "or, if nobody needs it any more, drop it and create it anew"
    if wanted is Readers.SUBSCRIBERS:
        return (
            f"group {group!r} of topic {topic!r} is that of a reader which keeps its own books, a "
            f"stream of Spark's or an archive: it has no subscribers, and nothing can be given "
            f"back to it. Use another group, {anew}"
        )
    return (
        f"group {group!r} of topic {topic!r} has subscribers, or had some, which share its "
        f"messages among themselves: give this reader a group of its own, {anew}"
    )


LOCK_TOPIC = "SELECT topic FROM {topics} WHERE topic = ? {for_update}"

FIND = "SELECT id FROM {groups} WHERE topic = ? AND consumer_group = ?"

FIND_AND_KEEP = f"{FIND} {{for_share}}"

CREATE = """
    INSERT INTO {groups} (topic, consumer_group, start_at, created_at) VALUES (?, ?, ?, {now})"""

READ_BY = "SELECT read_by FROM {groups} WHERE id = ?"

READ_BY_AND_KEEP = f"{READ_BY} {{for_share}}"

ASSIGN = f"UPDATE {{groups}} SET read_by = ? WHERE id = ? AND read_by = {int(Readers.NONE)}"

KEEP = "SELECT id FROM {groups} WHERE id = ? {for_share}"

DROP = "DELETE FROM {groups} WHERE id = ?"

_PLACE = """
    INSERT INTO {offsets} (group_id, partition_id, offset_acked, offset_delivered, tail_first,
                           tail_until, tail_attempts, epoch, version, leased_by, touched)"""

START_AT_LATEST = f"""{_PLACE}
    SELECT ?, p.id, p.next_offset - 1, p.next_offset - 1, p.next_offset, 0, 0, 0, 0, 0, 0
    FROM {{partitions}} p WHERE p.topic = ?"""

# Partitions and places are counted together: a plan for a join, or for a subquery, that was made
# while the tables were empty scans one of them for each row of the other.
ADOPT = f"""{_PLACE}
    SELECT ?, w.id, MAX(w.first_offset) - 1, MAX(w.first_offset) - 1, MAX(w.first_offset),
           0, 0, 0, 0, 0, 0
    FROM (
        SELECT p.id, p.first_offset, 0 AS has_place FROM {{partitions}} p WHERE p.topic = ?
        UNION ALL
        SELECT o.partition_id, 0, 1 FROM {{offsets}} o WHERE o.group_id = ?
    ) w
    GROUP BY w.id HAVING MAX(w.has_place) = 0
    {{on_conflict}}"""

LIST = """
    SELECT g.id, g.consumer_group, g.start_at, g.created_at, g.expired,
           (SELECT COUNT(*) FROM {subscribers} s
            WHERE s.group_id = g.id AND s.expires_at > {now})
    FROM {groups} g WHERE g.topic = ? <one> ORDER BY g.consumer_group"""


def _counted(which: str) -> str:
    """How many messages of a place are in ranges of some kind: looked up where there may be any,
    one by one. For a join a plan that was made while the tables were empty would scan one of them
    for each row of the other.
    """
    return f"""CASE WHEN p.offset_delivered > p.offset_acked AND p.tail_first - 1 > p.offset_acked
                THEN COALESCE((
                    SELECT SUM(d.last_offset - d.first_offset + 1) FROM {{delivery_state}} d
                    WHERE d.group_id = p.group_id AND d.partition_id = p.partition_id
                      AND {which}), 0)
                ELSE 0 END"""


_LAG = f"""
    SELECT p.partition_key AS named, p.next_offset AS upcoming,
           COALESCE(p.offset_acked, p.first_offset - 1) AS acked,
           {_counted(f"d.state = {int(State.ACKED)}")} AS done,
           CASE WHEN s.id IS NULL THEN 0 ELSE
                {_counted(f"d.state = {int(State.DELIVERED)}")} END AS delivered,
           CASE WHEN s.id IS NULL THEN 0 ELSE p.offset_delivered - p.tail_first + 1 END AS tail,
           s.subscriber_name AS owned_by,
           {_counted(f"d.state = {int(State.WAITING)} AND d.attempts > 0")} AS retrying
    FROM <places> p
    LEFT JOIN {{subscribers}} s ON s.id = p.leased_by AND s.expires_at > {{now}}"""

_ALL = """(
        SELECT q.partition_key, q.first_offset, q.next_offset, o.group_id, o.partition_id,
               o.offset_acked, o.offset_delivered, o.tail_first, o.leased_by
        FROM {partitions} q
        LEFT JOIN {offsets} o ON o.group_id = ? AND o.partition_id = q.id
        WHERE q.topic = ?
    )"""

LAG = f"""{_LAG.replace("<places>", _ALL)} ORDER BY p.partition_key"""

MOST_LAG = f"""
    SELECT * FROM ({_LAG.replace("<places>", PLACES)}
    ) w
    ORDER BY w.upcoming - w.acked - w.done DESC, w.named LIMIT ?"""
