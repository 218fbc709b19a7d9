"""Traffic: all topics and groups at one time, in quick statements, however large they are.

It is asked for every few seconds. Every partition is looked at, and every group's place in it, in
parts of some thousand: see `sweeping`. Of more than half a million both ends are seen, the oldest
keys and the newest ones; what is told of such topics and groups is marked as capped. Nothing here
reads the log, but for the times of the first messages that are not acked.

    names of topics ─► their counters ─► groups ─► how far each is ─► since when it is behind
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from rowmq.overview import GroupTraffic, TopicTraffic, Traffic
from rowmq.store.dialect import Dialect, as_text
from rowmq.store.statement import Operation, Row, Statement
from rowmq.store.sweeping import (
    PARTS_MAX,
    PLACES,
    Behind,
    Member,
    Part,
    Sweeping,
    Swept,
    ask,
    fair,
    runs,
)
from rowmq.times import from_micros

__all__ = ["Counting"]

NAMES_MAX = 500
"""How many topics, and how many groups, are looked at."""

PARTITIONS_MAX = 500_000
"""How many partitions are looked at, of all topics together; and how many places of groups."""

OLDEST_MAX = 100_000
"""In how many places in which groups are behind it is asked since when."""

GAPS_MAX = 100
"""In how many places the oldest message is looked for beyond messages that were deleted by name."""

LETTERS_MAX = 5_000
"""How far the letters of a group are counted."""


class Group(NamedTuple):
    """A group, and what is known of it without a look at its places."""

    id: int
    topic: str
    name: str
    created_at: int
    expired: int
    subscribers: int

    @property
    def member(self) -> Member:
        """What it is to a sweep."""
        return Member(self.id, self.topic)


class Place(NamedTuple):
    """How far a group is, all in all; and since when the first message waits that it has not acked.
    It is `whole` if all its partitions were looked at.
    """

    behind: Behind
    whole: bool
    oldest: int | None = None
    oldest_whole: bool = True

    @property
    def capped(self) -> bool:
        """Whether the group may be further behind."""
        return not self.whole

    @property
    def oldest_capped(self) -> bool:
        """Whether an older message may wait."""
        return not (self.whole and self.oldest_whole)


class Counting:
    """The operation of looking at everything, for one dialect."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self.sweeping = Sweeping(dialect)

    def snapshot(self) -> Operation[Traffic]:
        """All topics and groups, each by statements of its own: nothing is locked meanwhile."""
        known = yield from self.names()
        names = known[:NAMES_MAX]
        now, found = yield from self.groups()
        groups = sorted(found[:NAMES_MAX], key=lambda group: (group.topic, group.name))
        read = [*names, *sorted({group.topic for group in groups}.difference(names))]
        swept = yield from self.sweeping.topics(read, looks_max=PARTITIONS_MAX)
        places = yield from self.places([group.member for group in groups], swept)
        letters = yield from self.letters(groups)
        return Traffic(
            at=from_micros(now),
            topics=tuple(topic_traffic(name, swept[name]) for name in sorted(names)),
            groups=tuple(
                group_traffic(group, places[group.id], letters[group.id]) for group in groups
            ),
            capped=len(known) > NAMES_MAX or len(found) > NAMES_MAX,
        )

    def names(self) -> Operation[list[str]]:
        """The topics that were published to."""
        sql = self.dialect.sql(self.dialect.different("{partitions}", "topic"))
        result = yield Statement("traffic.names", sql, (NAMES_MAX + 1,), sole=True)
        return [as_text(name) for (name,) in result]

    def groups(self) -> Operation[tuple[int, list[Group]]]:
        """The database's time, and all groups."""
        sql = self.dialect.sql(GROUPS)
        result = yield Statement("traffic.groups", sql, (NAMES_MAX + 1,), sole=True)
        return result.rows[0][0], [
            Group(id, as_text(topic), as_text(name), *(int(value or 0) for value in rest))
            for _, id, topic, name, *rest in result
            if id is not None
        ]

    def standings(self, members: Sequence[Member]) -> Operation[dict[int, Place]]:
        """How far each of some groups is: for who wants no more than that."""
        names = sorted({member.topic for member in members})
        swept = yield from self.sweeping.topics(names, looks_max=PARTITIONS_MAX)
        return (yield from self.places(members, swept))

    def places(
        self, members: Sequence[Member], swept: Mapping[str, Swept]
    ) -> Operation[dict[int, Place]]:
        """How far each group is."""
        wanted = {
            member.id: [(part, part.partitions) for part in swept[member.topic].parts]
            for member in members
        }
        looked_at = fair(wanted, PARTITIONS_MAX)
        chosen = [(member, looked_at[member.id]) for member in members]
        found = yield from self.sweeping.behind(chosen)
        late = {
            id: [(part, one.behind) for part, one in zip(looked_at[id], each, strict=True)]
            for id, each in found.items()
        }
        late = {id: [(part, count) for part, count in each if count] for id, each in late.items()}
        asked = fair(late, OLDEST_MAX)
        oldest, unknown = yield from self.oldest([(member, asked[member.id]) for member in members])
        return {
            member.id: Place(
                total(found[member.id]),
                swept[member.topic].whole and len(looked_at[member.id]) == len(wanted[member.id]),
                oldest.get(member.id),
                len(asked[member.id]) == len(late[member.id]) and member.id not in unknown,
            )
            for member in members
        }

    def oldest(
        self, wanted: Sequence[tuple[Member, Sequence[Part]]]
    ) -> Operation[tuple[dict[int, int], set[int]]]:
        """When the first message was published that groups have not acked, in some parts; and of
        which groups that is not known of all places there.
        """
        pairs = [(member, part) for member, parts in wanted for part in parts]
        found: dict[int, int] = {}
        gaps: list[tuple[Member, Part]] = []
        for run in runs(pairs, [part.partitions for _, part in pairs]):
            params = [self.sweeping.places(*pair) for pair in run]
            rows = yield from ask(self.dialect, "traffic.oldest", OLDEST, params)
            for nth, (at, untold) in rows:
                keep_first(found, run[nth][0].id, at)
                if untold:
                    gaps.append(run[nth])
        return found, (yield from self.beyond(gaps, found))

    def beyond(
        self, gaps: Sequence[tuple[Member, Part]], found: dict[int, int]
    ) -> Operation[set[int]]:
        """Look for the oldest messages also where the next one was deleted by name, in some places;
        the groups that have more of those.
        """
        room, unknown = GAPS_MAX, set[int]()
        for member, part in gaps:
            rows: list[tuple[int, Row]] = []
            if room:
                params = [[*self.sweeping.places(member, part), room + 1]]
                rows = yield from ask(self.dialect, "traffic.gaps", GAPS, params)
            if not room or len(rows) > room:
                unknown.add(member.id)
            places = [row for _, row in rows[:room]]
            room -= len(places)
            for start in range(0, len(places), PARTS_MAX):
                run = places[start : start + PARTS_MAX]
                for _, (at,) in (yield from ask(self.dialect, "traffic.first", FIRST, run)):
                    keep_first(found, member.id, at)
        return unknown

    def letters(self, groups: Sequence[Group]) -> Operation[dict[int, int]]:
        """How many letters groups have."""
        found: dict[int, int] = {}
        for start in range(0, len(groups), PARTS_MAX):
            run = groups[start : start + PARTS_MAX]
            text = self.dialect.text
            params = [(text(group.topic), text(group.name), LETTERS_MAX) for group in run]
            rows = yield from ask(self.dialect, "traffic.letters", LETTERS, params)
            found |= {run[nth].id: int(count) for nth, (count,) in rows}
        return found


def total(found: Iterable[Behind]) -> Behind:
    """All parts together."""
    whole = Behind()
    for one in found:
        whole = whole.plus(one)
    return whole


def keep_first(found: dict[int, int], id: int, at: Any) -> None:
    """Note a time, if there is one and none before it is known."""
    if at is not None:
        found[id] = min(int(at), found.get(id, int(at)))


def topic_traffic(name: str, swept: Swept) -> TopicTraffic:
    return TopicTraffic(
        topic=name,
        partitions=swept.partitions,
        published=swept.published,
        messages=swept.messages,
        capped=not swept.whole,
    )


def group_traffic(group: Group, place: Place, letters: int) -> GroupTraffic:
    behind, oldest = place.behind, place.oldest
    return GroupTraffic(
        topic=group.topic,
        group=group.name,
        acked=behind.published - behind.lag,
        lag=behind.lag,
        in_flight=behind.in_flight,
        subscribers=group.subscribers,
        expired=group.expired,
        dead_letters=letters,
        letters_capped=letters >= LETTERS_MAX,
        oldest_at=None if oldest is None or not behind.lag else from_micros(oldest),
        oldest_capped=place.oldest_capped,
        capped=place.capped,
        created_at=from_micros(group.created_at),
    )


# With a row that only tells the time, if there is no group.
GROUPS = """
    SELECT t.now, g.id, g.topic, g.consumer_group, g.created_at, g.expired,
           (SELECT COUNT(*) FROM {subscribers} s
            WHERE s.group_id = g.id AND s.expires_at > {now})
    FROM (SELECT {now} AS now) t LEFT JOIN {groups} g ON 1 = 1 ORDER BY g.id LIMIT ?"""

LETTERS = """
    SELECT <nth>, COUNT(*) FROM (
        SELECT 1 AS one FROM {dead_letters} d
        WHERE d.origin_topic = ? AND d.consumer_group = ?
        ORDER BY d.origin_topic, d.consumer_group, d.failed_at LIMIT ?) l"""

# The one after the watermark, or where the log begins if retention has taken that. To look for the
# next one, where it was deleted by name, MySQL would begin at the partition's first: that is asked
# with the numbers themselves.
_LATE = f"""
    (
        SELECT w.id, w.acked, COALESCE((
                   SELECT m.published_at FROM {{messages}} m
                   WHERE m.partition_id = w.id AND m.message_offset = w.acked + 1
               ), (
                   SELECT m.published_at FROM {{messages}} m
                   WHERE m.partition_id = w.id AND m.message_offset = w.first_offset
                     AND w.first_offset > w.acked
               )) AS oldest
        FROM (
            SELECT p.partition_id AS id, p.first_offset,
                   COALESCE(p.offset_acked, p.first_offset - 1) AS acked
            FROM {PLACES} p
            WHERE p.next_offset - 1 > COALESCE(p.offset_acked, p.first_offset - 1)
        ) w
    ) b"""

OLDEST = f"""
    SELECT <nth>, MIN(b.oldest), SUM(CASE WHEN b.oldest IS NULL THEN 1 ELSE 0 END)
    FROM {_LATE}"""

GAPS = f"""
    SELECT <nth>, b.id, b.acked FROM {_LATE}
    WHERE b.oldest IS NULL LIMIT ?"""

FIRST = """
    SELECT <nth>, MIN(f.published_at)
    FROM (
        SELECT m.published_at FROM {messages} m
        WHERE m.partition_id = ? AND m.message_offset > ?
        ORDER BY m.partition_id, m.message_offset LIMIT 1
    ) f"""
