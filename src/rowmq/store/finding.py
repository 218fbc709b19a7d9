"""Pages of the jobs of a queue, by what people look for: state, kind, key, headers, time.

A page goes on where the last one ended, at a place in an index, however many jobs come before it.
What no index knows is looked for among some thousand jobs at a time: a page that found nothing says
where to go on. There are three parts, one after the other:

    standing   ready or claimed, soonest first
    waiting    behind another of their line, line by line
    finished   completed or failed, newest first

A job that moves while somebody turns the pages may be seen twice, or not at all.
"""

import base64
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, Self

import msgspec

from rowmq.codec import decode_headers
from rowmq.errors import InvalidOption
from rowmq.message import State
from rowmq.quoting import quoted
from rowmq.store.archive import Lanes, Record
from rowmq.store.claims import Entry
from rowmq.store.dialect import as_text, as_text_or_none
from rowmq.store.listing import Found, Listing, waiting_state
from rowmq.store.statement import Operation, Row, Statement

__all__ = [
    "FINISHED",
    "HIGHEST",
    "LOWEST",
    "STANDING",
    "WAITING",
    "Finding",
    "Page",
    "Place",
    "Wanted",
]

LOOK_MAX = 5_000
"""How many jobs are looked at for a page."""

SHARE_MIN = 100
"""How many jobs of each lane are looked at, at least."""

BRANCHES_MAX = 50
"""How many lanes one statement looks at."""

LOWEST, HIGHEST = -(2**62), 2**62
"""Before and after all times and ids."""

STANDING, WAITING, FINISHED = range(3)
"""The parts, in their order."""

PRECEDENCES = 2**31
"""What precedences are from, and up to."""

BEGINNINGS: dict[int, tuple[int, ...]] = {
    STANDING: (LOWEST, LOWEST),
    WAITING: (-PRECEDENCES, LOWEST, LOWEST),
    FINISHED: (HIGHEST, HIGHEST),
}
"""Before the first of each part."""

NUMBERS = {part: len(numbers) for part, numbers in BEGINNINGS.items()}

ARCHIVED = (State.COMPLETED, State.FAILED)

PAGE_BYTES_MAX = 8 * 1024 * 1024
"""How many bytes of payloads a page has, if it has more than one job."""


def no_cursor(text: object) -> InvalidOption:
    return InvalidOption(f"{quoted(text)} is no cursor: give one that a page has given")


class Place(NamedTuple):
    """A place in a part: a time and an id, or of those that wait their line, precedence, time and
    id. Without numbers it is the beginning.
    """

    part: int
    numbers: tuple[int, ...] = ()
    line: str = ""

    @classmethod
    def read(cls, text: str) -> Self:
        """The place that a page has told of."""
        try:
            data = base64.b64decode(text.encode("ascii"), altchars=b"-_", validate=True)
            part, numbers, line = msgspec.json.decode(data, type=tuple[int, tuple[int, ...], str])
        except (AttributeError, ValueError, msgspec.MsgspecError):
            raise no_cursor(text) from None
        known = len(numbers) == NUMBERS.get(part) and all(LOWEST <= n <= HIGHEST for n in numbers)
        in_line = part == WAITING and -PRECEDENCES <= numbers[0] < PRECEDENCES and "\0" not in line
        if not known or not (in_line or (part != WAITING and not line)):
            raise no_cursor(text)
        return cls(part, numbers, line)

    def written(self) -> str:
        """As a text that people give back for the next page, which says nothing to them."""
        numbers = self.numbers or BEGINNINGS[self.part]
        data = msgspec.json.encode((self.part, numbers, self.line))
        return base64.b64encode(data, altchars=b"-_").decode()


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What is looked for. Times are when live jobs are due, and when others have finished."""

    states: frozenset[State]
    key: str | None = None
    headers: Mapping[str, str] = {}
    since: int = LOWEST
    until: int = HIGHEST

    @property
    def detailed(self) -> bool:
        """Whether the rows of jobs have to be looked at."""
        return self.key is not None or bool(self.headers)

    @property
    def ready(self) -> bool:
        """Whether some of what can be claimed is wanted."""
        return State.PENDING in self.states or State.RETRYABLE in self.states

    @property
    def timed(self) -> bool:
        """Whether not any time will do."""
        return self.since > LOWEST or self.until < HIGHEST

    def includes(self, moment: int) -> bool:
        """Whether it is the right time."""
        return self.since <= moment < self.until


class Spot(NamedTuple):
    """A job that was looked at, and where."""

    place: Place
    id: int
    found: Found


class Looked(NamedTuple):
    """What a look came to: the jobs that may be wanted, how many were looked at, and where to go
    on, if this was not all.
    """

    spots: list[Spot]
    looked_at: int
    next: Place | None


class Page(NamedTuple):
    """Jobs, where the next page begins, if there may be one, and how many were looked at."""

    records: list[Record]
    next: Place | None
    looked_at: int


class Finding:
    """The operations that look for jobs by pages, for one dialect."""

    def __init__(self, listing: Listing) -> None:
        self.listing = listing
        self.archive = listing.archive
        self.jobs = listing.jobs
        self.queues = listing.archive.queues
        self.dialect = listing.dialect

    def find(
        self,
        queue: str,
        kinds: Collection[str] | None,
        wanted: Wanted,
        *,
        limit: int,
        after: Place | None,
        whole: bool = True,
    ) -> Operation[Page]:
        """A page of at most so many jobs, from a place on."""
        chosen, next, count = yield from self._choose(queue, kinds, wanted, limit, after)
        fitting = chosen[:limit]
        if whole:
            fitting = yield from self._of_size(fitting)
        if len(chosen) > len(fitting):
            next = fitting[-1].place
        records = yield from self._records(fitting, whole=whole)
        return Page(records, next, count)

    def first_of(
        self,
        queues: Sequence[tuple[str, Collection[str] | None]],
        wanted: Wanted,
        *,
        limit: int,
    ) -> Operation[tuple[list[tuple[str, Record]], bool]]:
        """The first jobs of several queues, each with its queue, and whether there are more: live
        ones soonest first, then finished ones, newest first. Of payloads the beginnings are read.
        """
        whose: dict[int, str] = {}
        spots: list[Spot] = []
        more = False
        for queue, kinds in queues:
            chosen, next, _ = yield from self._choose(queue, kinds, wanted, limit, None)
            more = more or next is not None
            spots += chosen
            whose |= {spot.id: queue for spot in chosen}
        spots.sort(key=precedence)
        records = yield from self._records(spots[:limit], whole=False)
        found = [(whose[record.id], record) for record in records]
        return found, more or len(spots) > limit

    def _choose(
        self,
        queue: str,
        kinds: Collection[str] | None,
        wanted: Wanted,
        limit: int,
        after: Place | None,
    ) -> Operation[tuple[list[Spot], Place | None, int]]:
        """Jobs that are wanted, one more than so many if there are more; where to go on, if these
        are all up to there; and how many were looked at.
        """
        lanes = yield from self.archive.lanes(queue, kinds)
        if lanes is None or not lanes.ids:
            return [], None, 0
        begin = Place(STANDING) if after is None else after
        chosen: list[Spot] = []
        count, next = 0, None
        for part in self._parts(wanted, queue, kinds):
            if part.number < begin.part:
                continue
            scans = wanted.detailed or part.scans(wanted, lanes)
            room = LOOK_MAX - count if scans else limit + 1 - len(chosen)
            if room <= 0:
                next = Place(part.number)
                break
            start = begin if part.number == begin.part else Place(part.number)
            looked = yield from part.look(lanes, wanted, start, room)
            count += looked.looked_at
            checks_lane = part.number == FINISHED and not lanes.whole
            chosen += yield from self._fitting(looked.spots, lanes, wanted, checks_lane=checks_lane)
            next = looked.next
            if next is not None or len(chosen) > limit:
                break
        return chosen, next, count

    def _parts(self, wanted: Wanted, queue: str, kinds: Collection[str] | None) -> Iterable["Part"]:
        """Where to look, in this order."""
        alive = not wanted.states.issubset(ARCHIVED)
        if alive and wanted.key is not None:
            yield Part(STANDING, partial(self._of_key, (queue, kinds)), some_standing)
        elif alive:
            yield Part(STANDING, self._standing, some_standing)
            yield Part(WAITING, self._waiting, some_waiting)
        if wanted.states.intersection(ARCHIVED):
            yield Part(FINISHED, self._finished, some_finished)

    # --- ready or claimed -------------------------------------------------------------------------

    def _standing(self, lanes: Lanes, wanted: Wanted, start: Place, room: int) -> Operation[Looked]:
        """What is ready or claimed, soonest first. Of each lane a share is looked at: up to where
        all of them were.
        """
        first, place = max(start.numbers or BEGINNINGS[STANDING], (wanted.since, LOWEST))
        begin = (first, place)
        seen: dict[int, tuple[tuple[int, int], Found]] = {}
        ends: list[tuple[int, int]] = []
        if wanted.ready:
            share = min(room, max(LOOK_MAX // len(lanes.ids), SHARE_MIN))
            rows = yield from self._ready(lanes, begin, wanted.until, share)
            for lane in rows.values():
                for id, due_at, attempts, deliveries in lane:
                    found = Found(waiting_state(attempts), attempts, deliveries, due_at)
                    seen[id] = (due_at, id), found
                if len(lane) == share:
                    ends.append((lane[-1][1], lane[-1][0]))
        claimed = yield from self._claimed(lanes, begin, wanted.until)
        if len(claimed) > room:
            claimed = claimed[:room]
            ends.append((claimed[-1][0].due_at, claimed[-1][0].job_id))
        alive = yield from self.archive.alive(claimed)
        for entry, expired in claimed:
            if entry.job_id in alive:
                state = waiting_state(entry.attempts) if expired else State.PROCESSING
                found = Found(state, entry.attempts, entry.deliveries, entry.due_at)
                seen[entry.job_id] = (entry.due_at, entry.job_id), found
        end = min(ends, default=None)
        looked = sorted((at, id, found) for id, (at, found) in seen.items() if not end or at <= end)
        spots = [
            Spot(Place(STANDING, at), id, found)
            for at, id, found in looked
            if found.state in wanted.states
        ]
        return Looked(spots, len(looked), None if end is None else Place(STANDING, end))

    def _ready(
        self, lanes: Lanes, begin: tuple[int, int], until: int, share: int
    ) -> Operation[dict[int, list[Row]]]:
        """The first jobs of each lane after a place: id, due time, attempts, deliveries."""
        found: dict[int, list[Row]] = {}
        place = self.dialect.past_params(begin)
        one = READY.replace("<past>", self.dialect.past(("r.due_at", "r.job_id")))
        ids = sorted(lanes.ids)
        for run in (ids[i : i + BRANCHES_MAX] for i in range(0, len(ids), BRANCHES_MAX)):
            sql = self.dialect.sql(" UNION ALL ".join([one] * len(run)))
            params = [value for lane in run for value in (lane, *place, until, share)]
            for lane, *row in (yield Statement("finding.ready", sql, params, sole=True)):
                found.setdefault(lane, []).append(tuple(row))
        for rows in found.values():
            rows.sort(key=lambda row: (row[1], row[0]))
        return found

    def _claimed(
        self, lanes: Lanes, begin: tuple[int, int], until: int
    ) -> Operation[list[tuple[Entry, bool]]]:
        """What is claimed, after a place, and whether the lock has expired."""
        held = yield from self.archive.held(lanes.ids)
        later = [
            (entry, expired)
            for entry, expired in held
            if begin < (entry.due_at, entry.job_id) and entry.due_at < until
        ]
        return sorted(later, key=lambda item: (item[0].due_at, item[0].job_id))

    def _of_key(
        self,
        where: tuple[str, Collection[str] | None],
        lanes: Lanes,
        wanted: Wanted,
        start: Place,
        room: int,
    ) -> Operation[Looked]:
        """The live jobs of a key, one of each kind: there is an index of them."""
        (queue, kinds), spots = where, []
        rows = yield from self.jobs.find(queue, str(wanted.key), kinds)
        for row in rows[:room]:
            record = yield from self.archive.live(row)
            if record is None or row.lane_id not in lanes.ids:
                continue
            at = (record.due_at, record.id)
            found = Found(record.state, record.attempts, record.deliveries, record.due_at)
            fits = record.state in wanted.states and wanted.includes(record.due_at)
            if fits and at > start.numbers:
                spots.append(Spot(Place(STANDING, at), record.id, found))
        return Looked(sorted(spots, key=lambda spot: spot.place), len(rows), None)

    # --- behind another of their line -------------------------------------------------------------

    def _waiting(self, lanes: Lanes, wanted: Wanted, start: Place, room: int) -> Operation[Looked]:
        if State.PENDING not in wanted.states:
            return Looked([], 0, None)
        begin = (start.line, *(start.numbers or BEGINNINGS[WAITING]))
        past = self.dialect.past(("ordering_key", "precedence", "due_at", "job_id"))
        sql = self.dialect.sql(BEHIND.replace("<past>", past))
        params = (lanes.queue_id, *self.dialect.past_params(begin), room)
        rows = (yield Statement("finding.waiting", sql, params, sole=True)).rows
        spots = [
            Spot(
                Place(WAITING, (precedence, due_at, id), as_text(line)),
                id,
                Found(State.PENDING, 0, 0, due_at),
            )
            for line, precedence, due_at, id, lane in rows
            if lane in lanes.ids and wanted.includes(due_at)
        ]
        if len(rows) < room:
            return Looked(spots, len(rows), None)
        line, *numbers, _ = rows[-1]
        return Looked(spots, len(rows), Place(WAITING, tuple(numbers), as_text(line)))

    # --- finished ---------------------------------------------------------------------------------

    def _finished(self, lanes: Lanes, wanted: Wanted, start: Place, room: int) -> Operation[Looked]:
        begin = min(start.numbers or BEGINNINGS[FINISHED], (wanted.until, LOWEST))
        past = self.dialect.past(("f.finished_at", "f.job_id"), "<")
        looked: list[Spot] = []
        ends: list[tuple[int, ...]] = []
        for state, table in ((State.COMPLETED, "{completed}"), (State.FAILED, "{failed}")):
            if state not in wanted.states:
                continue
            sql = self.dialect.sql(DONE.replace("<past>", past).replace("<table>", table))
            place = self.dialect.past_params(begin)
            params = (lanes.queue_id, *place, wanted.since, room)
            rows = (yield Statement("finding.finished", sql, params, sole=True)).rows
            for id, finished_at, attempts, deliveries in rows:
                found = Found(state, attempts, deliveries, None, None, finished_at)
                looked.append(Spot(Place(FINISHED, (finished_at, id)), id, found))
            if len(rows) == room:
                ends.append(looked[-1].place.numbers)
        end = max(ends, default=None)
        spots = [spot for spot in looked if end is None or spot.place.numbers >= end]
        spots.sort(key=lambda spot: spot.place, reverse=True)
        return Looked(spots, len(spots), None if end is None else Place(FINISHED, end))

    # --- what fits --------------------------------------------------------------------------------

    def _fitting(
        self, spots: Sequence[Spot], lanes: Lanes, wanted: Wanted, *, checks_lane: bool
    ) -> Operation[list[Spot]]:
        """Those that are wanted also by what their rows say."""
        if not wanted.detailed and not checks_lane:
            return list(spots)
        ids = [(spot.id,) for spot in spots]
        rows = yield from self.queues.select(
            "finding.details", DETAILS, {"id": "bigint"}, ids, sole=True
        )
        fitting = {
            id
            for id, lane, key, headers in rows
            if lane in lanes.ids
            and (wanted.key is None or wanted.key == as_text_or_none(key))
            and has_headers(as_text_or_none(headers), wanted.headers)
        }
        return [spot for spot in spots if spot.id in fitting]

    def _of_size(self, spots: Sequence[Spot]) -> Operation[list[Spot]]:
        """The first of them, whose payloads are not too large together."""
        ids = [(spot.id,) for spot in spots]
        rows = yield from self.queues.select(
            "finding.sizes", SIZES, {"id": "bigint"}, ids, sole=True
        )
        sizes = {id: size for id, size in rows}  # noqa: C416 - rows are not known to be pairs
        fitting: list[Spot] = []
        left = PAGE_BYTES_MAX
        for spot in spots:
            left -= sizes.get(spot.id, 0)
            if fitting and left < 0:
                break
            fitting.append(spot)
        return fitting

    def _records(self, spots: Sequence[Spot], *, whole: bool) -> Operation[list[Record]]:
        """All that is stored of jobs, and why they failed."""
        failed = [(spot.id,) for spot in spots if spot.found.state is State.FAILED]
        rows = yield from self.queues.select(
            "finding.errors", ERRORS, {"id": "bigint"}, failed, sole=True
        )
        errors = {id: as_text_or_none(error) for id, error in rows}
        found = {spot.id: spot.found._replace(error=errors.get(spot.id)) for spot in spots}
        ids = [spot.id for spot in spots]
        return (yield from self.listing.records(ids, found, whole=whole))


def precedence(spot: Spot) -> tuple[bool, int, int]:
    """Sorts jobs of several queues."""
    finished_at = spot.found.finished_at
    if finished_at is None:
        return False, spot.found.due_at or 0, spot.id
    return True, -finished_at, -spot.id


class Part(NamedTuple):
    """A part, how to look at it, and whether what is wanted of it has to be looked for among
    others: what comes before what else is in its index.
    """

    number: int
    look: Callable[[Lanes, Wanted, Place, int], Operation[Looked]]
    scans: Callable[[Wanted, Lanes], bool]


def some_standing(wanted: Wanted, _: Lanes) -> bool:
    """Whether only the first attempts are wanted, or only the others."""
    return wanted.ready and not wanted.states.issuperset((State.PENDING, State.RETRYABLE))


def some_waiting(wanted: Wanted, lanes: Lanes) -> bool:
    """Whether only some kinds are wanted, or some times."""
    return wanted.timed or not lanes.whole


def some_finished(_: Wanted, lanes: Lanes) -> bool:
    """Whether only some kinds are wanted."""
    return not lanes.whole


def has_headers(text: str | None, wanted: Mapping[str, str]) -> bool:
    """Whether a job has these headers, perhaps among others."""
    if not wanted:
        return True
    try:
        headers = decode_headers(text)
    except msgspec.MsgspecError:
        return False  # another program has written them
    return all(headers.get(name) == value for name, value in wanted.items())


READY = """
    SELECT * FROM (
        SELECT r.lane_id, r.job_id, r.due_at, r.attempts, r.deliveries FROM {ready} r
        WHERE r.lane_id = ? AND <past> AND r.due_at < ?
        ORDER BY r.lane_id, r.due_at, r.job_id LIMIT ?
    ) few"""

BEHIND = """
    SELECT ordering_key, precedence, due_at, job_id, lane_id FROM {waiting}
    WHERE queue_id = ? AND <past>
    ORDER BY queue_id, ordering_key, precedence, due_at, job_id LIMIT ?"""

DONE = """
    SELECT f.job_id, f.finished_at, f.attempts, f.deliveries FROM <table> f
    WHERE f.queue_id = ? AND <past> AND f.finished_at >= ?
    ORDER BY f.queue_id DESC, f.finished_at DESC, f.job_id DESC LIMIT ?"""

DETAILS = """
    SELECT j.id, j.lane_id, j.job_key, j.headers
    FROM (<source>) w {join} {jobs} j {by_key} ON j.id = w.id"""

SIZES = """
    SELECT j.id, LENGTH(j.payload) FROM (<source>) w {join} {jobs} j {by_key} ON j.id = w.id"""

ERRORS = "SELECT f.job_id, f.error FROM (<source>) w {join} {failed} f {by_key} ON f.job_id = w.id"
