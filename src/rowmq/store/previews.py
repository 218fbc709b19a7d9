"""Previews: what a seek or a redrive would do, by counters and ranges, without a lock.

What happens meanwhile is not in it: nobody waits for somebody who only looks.
"""

import heapq
from collections.abc import Sequence
from typing import Any, NamedTuple

from rowmq.overview import PurgeStep, RedriveStep, SeekPreview, SeekStep
from rowmq.progress import Range, State
from rowmq.store.browsing import Browsing
from rowmq.store.cursors import Cursor
from rowmq.store.dialect import as_text
from rowmq.store.keys import KEYLESS, SHARD_KEYS, place_of
from rowmq.store.letters import Letters
from rowmq.store.seeking import Seeking, Target
from rowmq.store.selection import BATCH, Selection
from rowmq.store.statement import Operation, Statement
from rowmq.store.sweeping import PLACES, Member, Part
from rowmq.store.topics import Span

__all__ = ["Previews"]

LETTERS_MAX = 10_000
"""How many letters are looked at."""


class Standing(NamedTuple):
    """A group's place in a partition: up to where it is done, was delivered to, and its tail."""

    span: Span
    acked: int
    delivered: int
    tail_first: int
    owned: bool
    """Whether somebody who is alive has the lease."""


class Tally(NamedTuple):
    """A group's letters, and how many of them the log has let go of."""

    letters: int
    gone: int


class Previews:
    """The operations that tell what others would do, for one dialect."""

    def __init__(self, seeking: Seeking, letters: Letters, browsing: Browsing) -> None:
        self.seeking = seeking
        self.groups = seeking.groups
        self.letters = letters
        self.browsing = browsing
        self.dialect = seeking.dialect

    # --- seek -----------------------------------------------------------------------------------

    def seek(
        self, topic: str, group: str, *, key: str | None, to: Target, limit: int
    ) -> Operation[SeekPreview]:
        """What a seek would do: in all partitions that it would move the group in together, and in
        those in which it would do most.
        """
        group_id = yield from self.groups.find(topic, group)
        found = Totals(limit)
        named = named_by(key, to)
        if named is not None:
            standings = yield from self.named(topic, group_id, named)
            found.add((yield from self.steps(topic, group_id, standings, to)))
            return found.preview()
        swept = yield from self.groups.sweeping.topics([topic])
        for part in swept[topic].parts:
            params = self.groups.sweeping.places(Member(group_id, topic), part)
            standings = yield from self.standings(PLACES, params)
            found.add((yield from self.steps(topic, group_id, standings, to, part)))
        return found.preview()

    def named(self, topic: str, group_id: int, keys: Sequence[str]) -> Operation[list[Standing]]:
        """Where a group stands in the partitions of some keys, as far as there are such."""
        found = []
        for start in range(0, len(keys), BATCH):
            run = [self.dialect.text(key) for key in keys[start : start + BATCH]]
            places = NAMED.replace("<keys>", ", ".join("?" for _ in run))
            params = [group_id, self.dialect.text(topic), *run]
            found += yield from self.standings(places, params)
        return found

    def steps(
        self,
        topic: str,
        group_id: int,
        standings: Sequence[Standing],
        to: Target,
        part: Part | None = None,
    ) -> Operation[list[SeekStep]]:
        """What a seek would do in some partitions: all those of a part, or those of some keys."""
        places = yield from self.places(topic, [standing.span for standing in standings], to)
        ids = [span.partition_id for span, _ in places]
        ranges: dict[int, list[Range]] = {}
        if part is not None:
            ranges = yield from self.ranges(group_id, part.after, part.before)
        else:
            for id in ids:
                ranges |= yield from self.ranges(group_id, id - 1, id + 1)
        by_id = {standing.span.partition_id: standing for standing in standings}
        return [
            step_of(
                by_id[span.partition_id],
                ranges.get(span.partition_id, ()),
                acked + 1,
                keeps_below=to.start != "latest",
            )
            for span, acked in places
        ]

    def standings(self, places: str, params: Sequence[Any]) -> Operation[list[Standing]]:
        """Where a group stands in some partitions."""
        sql = self.dialect.sql(STANDINGS.replace("<places>", places))
        result = yield Statement("previews.standings", sql, params, sole=True)
        return [
            Standing(Span(as_text(name), id, first, after - 1), acked, delivered, tail, bool(owned))
            for id, name, first, after, acked, delivered, tail, owned in result
        ]

    def ranges(self, group_id: int, after: int, before: int) -> Operation[dict[int, list[Range]]]:
        """A group's ranges by partition: in those with ids between two."""
        params = (group_id, after, before)
        result = yield Statement("previews.ranges", self.dialect.sql(RANGES), params, sole=True)
        found: dict[int, list[Range]] = {}
        for id, first, last, state in result:
            found.setdefault(id, []).append(Range(first, last, State(state)))
        return found

    def places(
        self, topic: str, spans: Sequence[Span], to: Target
    ) -> Operation[list[tuple[Span, int]]]:
        """Where a seek would set each partition, by its last offset that would count as acked."""
        if to.time is None:
            return (yield from self.seeking.places(topic, spans, to))
        begins = yield from self.browsing.halve(spans, Cursor(to.time, 0, 0))
        return [(span, begins[span.partition_id] - 1) for span in spans]

    # --- redrive and purge ----------------------------------------------------------------------

    def redrive(self, chosen: Selection) -> Operation[list[RedriveStep]]:
        """What a redrive would give back, by group: as far as there is such a group."""
        if chosen.group is None:
            sql, params = self.dialect.sql(GROUPS), (self.dialect.text(chosen.topic),)
            result = yield Statement("previews.groups", sql, params, sole=True)
            known = {as_text(name) for (name,) in result}
        else:
            yield from self.groups.find(chosen.topic, chosen.group)
            known = {chosen.group}
        found, capped = yield from self.tallies(chosen)
        return [
            RedriveStep(group=name, letters=tally.letters, gone=tally.gone, capped=capped)
            for name, tally in sorted(found.items())
            if name in known
        ]

    def purge(self, chosen: Selection) -> Operation[list[PurgeStep]]:
        """What a purge would delete, by group; also of those that were dropped."""
        found, capped = yield from self.tallies(chosen)
        return [
            PurgeStep(group=name, letters=tally.letters, capped=capped)
            for name, tally in sorted(found.items())
        ]

    def tallies(self, chosen: Selection) -> Operation[tuple[dict[str, Tally], bool]]:
        """Letters by group; and whether there may be more than were looked at."""
        found: dict[str, Tally] = {}
        for part in chosen.parts:
            for name, letters, gone in (yield from self.count(part)):
                known = found.get(name, Tally(0, 0))
                found[name] = Tally(known.letters + letters, known.gone + gone)
        return found, sum(tally.letters for tally in found.values()) >= LETTERS_MAX

    def count(self, chosen: Selection) -> Operation[list[tuple[str, int, int]]]:
        """Letters by group, and how many of them the log has let go of."""
        found = self.letters.filter(chosen)
        # In the order of an index, which is then used whatever the planner thinks of the table.
        order = f"ORDER BY {BY_TOPIC if chosen.group is None else BY_GROUP}"
        if chosen.ids is not None or chosen.handles is not None:
            order = ""
        sql = self.dialect.sql(found.fill(COUNT).replace("<order>", order))
        result = yield Statement("previews.letters", sql, (*found.params, LETTERS_MAX), sole=True)
        return [(as_text(name), int(letters), int(gone)) for name, letters, gone in result]


class Totals:
    """What is added up of a preview, of which only the largest steps are kept."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.partitions = self.again = self.skipped = self.in_flight = 0
        self.most: list[SeekStep] = []

    def add(self, steps: Sequence[SeekStep]) -> None:
        """Count steps in."""
        self.partitions += len(steps)
        self.again += sum(step.again for step in steps)
        self.skipped += sum(step.skipped for step in steps)
        self.in_flight += sum(step.in_flight for step in steps)
        self.most = heapq.nsmallest(self.limit, [*self.most, *steps], key=rank_of)

    def preview(self) -> SeekPreview:
        """All together."""
        return SeekPreview(
            partitions=self.partitions,
            again=self.again,
            skipped=self.skipped,
            in_flight=self.in_flight,
            steps=tuple(self.most),
        )


def rank_of(step: SeekStep) -> tuple[int, str, int]:
    """Where the most would change comes first; of equals, in the order of their keys."""
    return -(step.again + step.skipped + step.in_flight), step.key or "", step.shard


def named_by(key: str | None, to: Target) -> list[str] | None:
    """The stored keys of the only partitions that are meant; None if it is all of them."""
    if key is not None:
        return [key]
    if to.offsets is None:
        return None
    shards = SHARD_KEYS if KEYLESS in to.offsets else ()
    return sorted({*to.offsets, *shards} - {KEYLESS})


def step_of(
    standing: Standing, ranges: Sequence[Range], next: int, *, keeps_below: bool
) -> SeekStep:
    """What it does to a group in one partition to have an offset be its next one.

    What was given back to it below the log stays open, unless it goes to the end.
    """
    span, acked = standing.span, standing.acked
    done = [Range(span.first, acked, State.ACKED)]
    done += [known for known in ranges if known.state is State.ACKED]
    again = sum(inside(known, max(next, span.first), span.last) for known in done)
    passed = max(0, min(next, span.last + 1) - span.first)
    skipped = passed - sum(inside(known, span.first, next - 1) for known in done)
    if not keeps_below:
        waiting = [known for known in ranges if known.state is not State.ACKED]
        skipped += sum(inside(known, known.first, span.first - 1) for known in waiting)
    in_flight = 0
    if standing.owned:
        in_flight = max(0, standing.delivered - standing.tail_first + 1)
        in_flight += sum(known.size for known in ranges if known.state is State.DELIVERED)
    key, shard = place_of(span.key)
    return SeekStep(
        key=key,
        shard=shard,
        offset_acked=acked,
        next_offset=next,
        again=again,
        skipped=skipped,
        in_flight=in_flight,
    )


def inside(known: Range, first: int, last: int) -> int:
    """How many offsets of a range lie between two, both included."""
    return max(0, min(known.last, last) - max(known.first, first) + 1)


STANDINGS = """
    SELECT p.partition_id, p.partition_key, p.first_offset, p.next_offset,
           COALESCE(p.offset_acked, p.first_offset - 1),
           COALESCE(p.offset_delivered, p.first_offset - 1),
           COALESCE(p.tail_first, p.first_offset),
           CASE WHEN s.id IS NULL THEN 0 ELSE 1 END
    FROM <places> p
    LEFT JOIN {subscribers} s ON s.id = p.leased_by AND s.expires_at > {now}"""

NAMED = """(
        SELECT q.id AS partition_id, q.partition_key, q.first_offset, q.next_offset,
               o.offset_acked, o.offset_delivered, o.tail_first, o.leased_by
        FROM {partitions} q
        LEFT JOIN {offsets} o ON o.group_id = ? AND o.partition_id = q.id
        WHERE q.topic = ? AND q.partition_key IN (<keys>)
    )"""

RANGES = """
    SELECT partition_id, first_offset, last_offset, state FROM {delivery_state}
    WHERE group_id = ? AND partition_id > ? AND partition_id < ?"""

GROUPS = "SELECT consumer_group FROM {groups} WHERE topic = ?"

BY_TOPIC = "d.origin_topic, d.failed_at, d.partition_id, d.message_offset"

BY_GROUP = "d.origin_topic, d.consumer_group, d.failed_at, d.partition_id, d.message_offset"

COUNT = """
    SELECT c.consumer_group, COUNT(*), SUM(CASE WHEN c.there IS NULL THEN 1 ELSE 0 END)
    FROM (
        SELECT l.consumer_group,
               (SELECT 1 FROM {messages} m
                WHERE m.partition_id = l.origin_partition_id
                  AND m.message_offset = l.origin_offset) AS there
        FROM (
            SELECT d.consumer_group, d.origin_partition_id, d.origin_offset FROM <letters>
            WHERE <where> <order> LIMIT ?
        ) l
    ) c
    GROUP BY c.consumer_group"""
