"""Dead letters as people look for them: page by page, newest first, and sorted by their errors.

A page is found by the letters' own rows, which are small; only the copies that it shows are read.
What errors have in common no index knows: so for a pattern some thousand letters are looked at, and
a page that found few says where to go on.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from rowmq.likeness import LOOKED_AT_CHARS, pattern_of
from rowmq.overview import LetterKind, LetterPage
from rowmq.store.browsing import PAGE_BYTES_MAX
from rowmq.store.cursors import Cursor
from rowmq.store.dialect import as_text
from rowmq.store.letters import COPY, CUT_COLUMNS, LETTER_COLUMNS, Letters, letter_of
from rowmq.store.selection import Selection
from rowmq.store.statement import Operation, Row, Statement
from rowmq.times import from_micros

__all__ = ["ERROR_BYTES", "Sorting", "beginning"]

LOOKS = (500, 4_500)
"""How many letters are looked at for a pattern, at first and if that was not enough."""

KINDS_MAX = 10_000
"""How many letters are sorted by their errors."""

ERROR_BYTES = 4 * LOOKED_AT_CHARS
"""How much of an error is read to see of which kind it is: MySQL's have bytes, not characters."""


class Spot(NamedTuple):
    """A letter that was looked at: where it is, whose, and how its error begins."""

    place: Cursor
    group: str
    error: str | None


class Wanted(NamedTuple):
    """Which letters are looked for."""

    topic: str
    group: str | None
    id: str | None


class Sorting:
    """The operations that look through letters, for one dialect."""

    def __init__(self, letters: Letters) -> None:
        self.letters = letters
        self.dialect = letters.dialect

    # --- pages ----------------------------------------------------------------------------------

    def page(
        self, wanted: Wanted, *, matching: str | None, after: Cursor | None, limit: int, whole: bool
    ) -> Operation[LetterPage]:
        """A page of letters, from a place on: of all, or of those of a kind."""
        chosen: list[Cursor] = []
        count, end, more = 0, after, True
        for depth in (limit + 1,) if matching is None else LOOKS:
            spots = yield from self.look(wanted, end, depth)
            count, more = count + len(spots), len(spots) == depth
            end = spots[-1].place if spots else end
            chosen += [s.place for s in spots if matching in (None, pattern_of(s.error))]
            if len(chosen) > limit or not more:
                break
        shown = (yield from self.fitting(chosen[:limit])) if whole else chosen[:limit]
        if len(shown) < len(chosen):
            end, more = shown[-1], True
        letters = yield from self.read(wanted.topic, shown, whole=whole)
        next = end.written() if more and end is not None else None
        return LetterPage(letters=tuple(letters), next=next, looked_at=count)

    def look(self, wanted: Wanted, after: Cursor | None, limit: int) -> Operation[list[Spot]]:
        """The letters that follow a place, newest first."""
        if wanted.id is not None:
            spots = yield from self.look_up(wanted, after)
            return spots[:limit]
        names = ["d.origin_topic"] + ["d.consumer_group"] * (wanted.group is not None)
        values = [wanted.topic] + ([] if wanted.group is None else [wanted.group])
        conditions = [f"{name} = ?" for name in names]
        params: list[Any] = [self.dialect.text(value) for value in values]
        if after is not None:
            conditions.append(self.dialect.past(ORDER, "<"))
            params += self.dialect.past_params(after)
        order = ", ".join(f"{column} DESC" for column in (*names, *ORDER))
        template = LOOK.replace("<where>", " AND ".join(conditions)).replace("<order>", order)
        sql = self.dialect.sql(template)
        result = yield Statement("sorting.look", sql, (*params, limit), sole=True)
        return spots_of(result.rows)

    def look_up(self, wanted: Wanted, after: Cursor | None) -> Operation[list[Spot]]:
        """The letters of messages with an id: of each group one, or as often as it failed."""
        of_message = Selection(wanted.topic, wanted.group, ids=[str(wanted.id)])
        found = self.letters.filter(of_message)
        sql = self.dialect.sql(found.fill(LOOK_UP))
        result = yield Statement("sorting.look_up", sql, (*found.params, KINDS_MAX), sole=True)
        spots = sorted(spots_of(result.rows), reverse=True)
        return [spot for spot in spots if after is None or spot.place < after]

    def fitting(self, places: Sequence[Cursor]) -> Operation[list[Cursor]]:
        """Of places those whose payloads a page has room for: at least one."""
        sizes: dict[tuple[int, int], int] = {}
        for run in self.dialect.chunks(places, (0 for _ in places)):
            source, params = self.dialect.given(COPY, [place[1:] for place in run])
            sql = self.dialect.sql(SIZES.replace("<source>", source))
            result = yield Statement("sorting.sizes", sql, params, sole=True)
            sizes |= {(id, offset): size for id, offset, size in result}
        room = PAGE_BYTES_MAX
        for count, place in enumerate(places):
            room -= sizes.get(place[1:], 0)
            if room < 0:
                return [*places[: max(count, 1)]]
        return [*places]

    def read(self, topic: str, places: Sequence[Cursor], *, whole: bool) -> Operation[list[Any]]:
        """The letters at places, in their order; one may be gone by now."""
        name, template = (
            ("sorting.read", READ) if whole else ("sorting.beginnings", READ_BEGINNINGS)
        )
        rows: dict[tuple[int, int], Row] = {}
        for run in self.dialect.chunks(places, (0 for _ in places)):
            source, params = self.dialect.given(COPY, [place[1:] for place in run])
            sql = self.dialect.sql(template.replace("<source>", source))
            result = yield Statement(name, sql, params, sole=True)
            rows |= {(row[0], row[1]): row for row in result}
        found = (rows[place[1:]] for place in places if place[1:] in rows)
        return [letter_of(topic, row, None, whole=whole) for row in found]

    # --- kinds ----------------------------------------------------------------------------------

    def kinds(self, topic: str, *, group: str | None) -> Operation[list[LetterKind]]:
        """The letters by what their errors have in common, the most frequent first."""
        spots = yield from self.look(Wanted(topic, group, None), None, KINDS_MAX + 1)
        capped = len(spots) > KINDS_MAX
        kinds: dict[str, list[Spot]] = {}
        patterns: dict[str | None, str] = {}
        for spot in spots[:KINDS_MAX]:
            if spot.error not in patterns:
                patterns[spot.error] = pattern_of(spot.error)
            kinds.setdefault(patterns[spot.error], []).append(spot)
        found = [kind_of(pattern, spots, capped=capped) for pattern, spots in kinds.items()]
        return sorted(found, key=lambda kind: (-kind.count, kind.pattern))


def spots_of(rows: Sequence[Any]) -> list[Spot]:
    return [
        Spot(Cursor(*place), as_text(group), None if error is None else beginning(error))
        for *place, group, error in rows
    ]


def beginning(error: str | bytes | memoryview) -> str:
    """The beginning of an error, which may have been cut within a character."""
    text = error if isinstance(error, str) else bytes(error).decode(errors="ignore")
    return text[:LOOKED_AT_CHARS]


def kind_of(pattern: str, spots: Sequence[Spot], *, capped: bool) -> LetterKind:
    """The kind that letters are of, the newest of which comes first."""
    return LetterKind(
        pattern=pattern,
        count=len(spots),
        sample=spots[0].error,
        groups=tuple(sorted({spot.group for spot in spots})),
        first_at=from_micros(spots[-1].place.time),
        last_at=from_micros(spots[0].place.time),
        capped=capped,
    )


ORDER = ("d.failed_at", "d.partition_id", "d.message_offset")

_SPOT = f"{', '.join(ORDER)}, d.consumer_group, SUBSTR(d.error, 1, {ERROR_BYTES})"

LOOK = f"SELECT {_SPOT} FROM {{dead_letters}} d WHERE <where> ORDER BY <order> LIMIT ?"

LOOK_UP = f"SELECT {_SPOT} FROM <letters> WHERE <where> LIMIT ?"

SIZES = """
    SELECT m.partition_id, m.message_offset, LENGTH(m.payload) FROM (<source>) w
    {join} {messages} m {by_key}
        ON m.partition_id = w.partition_id AND m.message_offset = w.message_offset"""

READ = f"""
    SELECT {LETTER_COLUMNS} FROM (<source>) w
    {{join}} {{dead_letters}} d {{by_key}}
        ON d.partition_id = w.partition_id AND d.message_offset = w.message_offset
    {{join}} {{partitions}} p {{by_key}} ON p.id = d.partition_id
    {{join}} {{messages}} m {{by_key}}
        ON m.partition_id = d.partition_id AND m.message_offset = d.message_offset"""

READ_BEGINNINGS = READ.replace(LETTER_COLUMNS, CUT_COLUMNS)
