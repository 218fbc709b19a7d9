"""How much there is to do in queues: counts of some thousand jobs at most, however many there are.

Of each lane and queue the first rows of an index are counted, and the last ones of the archive, so
that a look takes as long with a million jobs as with a few thousand. All queues are looked at in a
handful of statements; those that are empty cost nothing more.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, MutableMapping, Sequence
from datetime import timedelta
from typing import NamedTuple

from rowmq.inspection import QueueBacklog
from rowmq.message import State
from rowmq.store.archive import LOCKS, Archive, Lanes, id_list
from rowmq.store.claims import Entry
from rowmq.store.dialect import as_text
from rowmq.store.statement import Operation, Row, Statement
from rowmq.times import from_micros

__all__ = ["Backlogs"]

LOOKED_AT_MAX = 100_000
"""How many rows of one kind are looked at, over all lanes or queues."""

SHARE_MIN = 100
"""How many rows of a lane or queue are counted, at least."""

BRANCHES_MAX = 50
"""How many lanes or queues one statement looks at."""


class Ready(NamedTuple):
    """What stands first in a lane: how many were looked at, tried before, and due; since when."""

    jobs: int
    tried: int
    due: int
    first_due: int


class Done(NamedTuple):
    """The last of a queue that were completed, or failed, and how many of them lately."""

    jobs: int
    lately: int


Claim = tuple[int, Entry, bool]
"""Of a claimed job: the token of its lock, its entry, and whether the lock has expired."""


class Sight(NamedTuple):
    """What was seen of queues: by lane, or by queue."""

    ready: Mapping[int, Ready]
    waiting: Mapping[int, int]
    completed: Mapping[int, Done]
    failed: Mapping[int, Done]
    put: Mapping[int, int]
    held: Mapping[int, Sequence[Claim]]


class Known(NamedTuple):
    """A queue, with its settings, and whether there is anything in it at all."""

    id: int
    name: str
    paused: bool
    max_in_flight: int | None
    rate: int | None
    rate_period_us: int | None
    has_waiting: bool
    has_completed: bool
    has_failed: bool


class Backlogs:
    """The operations that count what there is to do, for one dialect."""

    def __init__(self, archive: Archive) -> None:
        self.archive = archive
        self.queues = archive.queues
        self.dialect = archive.dialect

    def counts(
        self, queue: str, kinds: Collection[str] | None, *, up_to: int
    ) -> Operation[dict[State, int]]:
        """How many jobs there are in each state, at most so many."""
        lanes = yield from self.archive.lanes(queue, kinds)
        counts = dict.fromkeys(State, 0)
        if lanes is None or not lanes.ids:
            return counts
        now = yield from self.dialect.clock("backlogs.now")
        ready = yield from self._ready(sorted(lanes.ids), up_to, now)
        waiting = yield from self._waiting([lanes.queue_id], up_to)
        held = yield from self._held(lanes.ids)
        count_ready(counts, ready.values())
        count_held(counts, held)
        counts[State.PENDING] += sum(waiting.get(lane, 0) for lane in lanes.ids)
        for state, table in ARCHIVED.items():
            counts[state] = yield from self._count_done(lanes, table, up_to)
        return {state: min(number, up_to) for state, number in counts.items()}

    def backlog(self, *, up_to: int, lately_us: int) -> Operation[list[QueueBacklog]]:
        """Every queue, by name."""
        queues, now = yield from self._queues()
        sql = self.dialect.sql(LANES)
        rows = (yield Statement("backlogs.lanes", sql, sole=True)).rows
        queue_of = {lane: queue_id for lane, queue_id, _ in rows}
        begun = sorted(lane for lane, _, first_due in rows if first_due is not None)
        few, since = share(up_to, len(queues)), now - lately_us
        waited = [queue.id for queue in queues if queue.has_waiting]
        completed = [queue.id for queue in queues if queue.has_completed]
        failed = [queue.id for queue in queues if queue.has_failed]
        sight = Sight(
            ready=(yield from self._ready(begun, up_to, now)),
            waiting=(yield from self._waiting(waited, few)),
            completed=(yield from self._done("{completed}", completed, few, since)),
            failed=(yield from self._done("{failed}", failed, few, since)),
            put=(yield from self._put(up_to, since)),
            held=by_queue((yield from self._held(queue_of.keys())), queue_of),
        )
        lanes: dict[int, list[int]] = {}
        for lane, queue_id in queue_of.items():
            lanes.setdefault(queue_id, []).append(lane)
        most = (share(up_to, len(begun)), few)
        return [backlog_of(queue, lanes.get(queue.id, []), sight, most) for queue in queues]

    # --- looks ------------------------------------------------------------------------------------

    def _queues(self) -> Operation[tuple[list[Known], int]]:
        """All queues, and the time."""
        found, now = [], 0
        for id, name, paused, in_flight, rate, period_us, *firsts, now in (  # noqa: B007
            yield Statement("backlogs.queues", self.dialect.sql(QUEUES), sole=True)
        ):
            waiting, completed, failed = (first is not None for first in firsts)
            limits = (in_flight, rate, period_us)
            found.append(
                Known(id, as_text(name), bool(paused), *limits, waiting, completed, failed)
            )
        return found, now

    def _ready(self, lanes: Sequence[int], up_to: int, now: int) -> Operation[dict[int, Ready]]:
        """The first jobs of lanes that have any."""
        few = share(up_to, len(lanes))
        rows = yield from self._each("backlogs.ready", FIRST_READY, lanes, (few,), (now,))
        return {lane: Ready(*row) for lane, *row in rows}

    def _waiting(self, queues: Sequence[int], few: int) -> Operation[dict[int, int]]:
        """How many wait in the lines of queues, by lane."""
        rows = yield from self._each("backlogs.waiting", SOME_WAITING, queues, (few,))
        return {lane: number for lane, number in rows}  # noqa: C416 - rows are not known to be pairs

    def _done(
        self, table: str, queues: Sequence[int], few: int, since: int
    ) -> Operation[dict[int, Done]]:
        """The last jobs of queues that are done."""
        template = LAST_DONE.replace("<table>", table)
        rows = yield from self._each("backlogs.done", template, queues, (few,), (since,))
        return {queue_id: Done(*row) for queue_id, *row in rows}

    def _count_done(self, lanes: Lanes, table: str, up_to: int) -> Operation[int]:
        """How many of the last jobs that are done were in some lanes."""
        if lanes.whole:
            done = yield from self._done(table, [lanes.queue_id], up_to, 0)
            return sum(found.jobs for found in done.values())
        template = LAST_OF_LANES.replace("<table>", table).replace("<lanes>", id_list(lanes.ids))
        sql = self.dialect.sql(template.replace("<most>", str(up_to)))
        result = yield Statement("backlogs.of_kinds", sql, (lanes.queue_id,), sole=True)
        return int(result.rows[0][0])

    def _each(
        self,
        name: str,
        template: str,
        ids: Sequence[int],
        after: Sequence[int],
        before: Sequence[int] = (),
    ) -> Operation[list[Row]]:
        """What a query gives for each of some lanes or queues that has anything; parameters that
        are the same for all stand before and after the id.
        """
        rows: list[Row] = []
        for start in range(0, len(ids), BRANCHES_MAX):
            run = ids[start : start + BRANCHES_MAX]
            sql = self.dialect.sql(" UNION ALL ".join([template] * len(run)))
            params = [value for id in run for value in (*before, id, *after)]
            rows += (yield Statement(name, sql, params, sole=True)).rows
        return [row for row in rows if row[0] is not None]

    def _put(self, up_to: int, since: int) -> Operation[dict[int, int]]:
        """How many of the newest jobs were put since a time, by lane."""
        sql, params = self.dialect.sql(NEWEST), (up_to, since)
        result = yield Statement("backlogs.put", sql, params, sole=True)
        return {lane: number for lane, number in result}  # noqa: C416 - rows are not known to be pairs

    def _held(self, lanes: Collection[int]) -> Operation[list[Claim]]:
        """The jobs of these lanes that are claimed."""
        sql = self.dialect.sql(LOCKS.replace("<which>", ""))
        result = yield Statement("backlogs.locks", sql, sole=True)
        held = [
            (token, entry, expired)
            for token, *lock in result
            for entry, expired in self.archive.unsettled([lock], lanes)
        ]
        alive = yield from self.archive.alive([(entry, expired) for _, entry, expired in held])
        return [item for item in held if item[1].job_id in alive]


def share(up_to: int, number: int) -> int:
    """How many rows of each of so many lanes or queues are counted."""
    return min(up_to, max(LOOKED_AT_MAX // max(number, 1), SHARE_MIN))


def count_ready(counts: MutableMapping[State, int], lanes: Iterable[Ready]) -> None:
    for lane in lanes:
        counts[State.PENDING] += lane.jobs - lane.tried
        counts[State.RETRYABLE] += lane.tried


def count_held(counts: MutableMapping[State, int], held: Iterable[Claim]) -> None:
    """What an expired lock has is to be claimed again as it was."""
    for _, entry, expired in held:
        given_back = State.RETRYABLE if entry.attempts else State.PENDING
        counts[given_back if expired else State.PROCESSING] += 1


def by_queue(held: Iterable[Claim], queue_of: Mapping[int, int]) -> dict[int, list[Claim]]:
    """Claimed jobs of the same queue together."""
    found: dict[int, list[Claim]] = {}
    for claim in held:
        found.setdefault(queue_of[claim[1].lane_id], []).append(claim)
    return found


def backlog_of(
    queue: Known, lanes: Collection[int], sight: Sight, most: tuple[int, int]
) -> QueueBacklog:
    """What was seen of a queue, when so many jobs of a lane were looked at, and so many others."""
    counts: Counter[State] = Counter()
    ready = [sight.ready[lane] for lane in lanes if lane in sight.ready]
    waiting = sum(sight.waiting.get(lane, 0) for lane in lanes)
    held = sight.held.get(queue.id, [])
    completed = sight.completed.get(queue.id, Done(0, 0))
    failed = sight.failed.get(queue.id, Done(0, 0))
    count_ready(counts, ready)
    count_held(counts, held)
    counts[State.PENDING] += waiting
    counts[State.COMPLETED], counts[State.FAILED] = completed.jobs, failed.jobs
    overdue = [entry.due_at for _, entry, expired in held if expired]
    first = min([lane.first_due for lane in ready if lane.due] + overdue, default=None)
    capped = any(lane.jobs >= most[0] for lane in ready)
    return QueueBacklog(
        name=queue.name,
        paused=queue.paused,
        counts={state.value: counts[state] for state in State},
        capped=capped or max(waiting, completed.jobs, failed.jobs) >= most[1],
        due=sum(lane.due for lane in ready) + len(overdue),
        oldest_due_at=None if first is None else from_micros(first),
        locks=len({token for token, *_ in held}),
        put_lately=sum(sight.put.get(lane, 0) for lane in lanes),
        completed_lately=completed.lately,
        failed_lately=failed.lately,
        max_in_flight=queue.max_in_flight,
        rate=queue.rate,
        rate_period=period_of(queue),
    )


def period_of(queue: Known) -> timedelta | None:
    """The time that a queue's rate is for."""
    if queue.rate is None or queue.rate_period_us is None:
        return None
    return timedelta(microseconds=queue.rate_period_us)


ARCHIVED = {State.COMPLETED: "{completed}", State.FAILED: "{failed}"}

# The whole order of the indexes, as with claims: without it, MySQL reads a whole queue for one row.
QUEUES = """
    SELECT q.id, q.queue, q.paused, q.max_in_flight, q.rate, q.rate_period_us,
           (SELECT t.job_id FROM {waiting} t WHERE t.queue_id = q.id
            ORDER BY t.queue_id, t.ordering_key, t.precedence, t.due_at, t.job_id LIMIT 1),
           (SELECT c.job_id FROM {completed} c WHERE c.queue_id = q.id
            ORDER BY c.queue_id DESC, c.finished_at DESC, c.job_id DESC LIMIT 1),
           (SELECT f.job_id FROM {failed} f WHERE f.queue_id = q.id
            ORDER BY f.queue_id DESC, f.finished_at DESC, f.job_id DESC LIMIT 1),
           {now}
    FROM {queues} q ORDER BY q.queue"""

LANES = """
    SELECT l.id, l.queue_id,
           (SELECT r.due_at FROM {ready} r WHERE r.lane_id = l.id
            ORDER BY r.lane_id, r.due_at, r.job_id LIMIT 1)
    FROM {lanes} l"""

FIRST_READY = """
    SELECT MIN(few.lane_id), COUNT(*), COUNT(CASE WHEN few.attempts > 0 THEN 1 END),
           COUNT(CASE WHEN few.due_at <= ? THEN 1 END), MIN(few.due_at)
    FROM (
        SELECT r.lane_id, r.due_at, r.attempts FROM {ready} r WHERE r.lane_id = ?
        ORDER BY r.lane_id, r.due_at, r.job_id LIMIT ?
    ) few"""

SOME_WAITING = """
    SELECT few.lane_id, COUNT(*)
    FROM (
        SELECT t.lane_id FROM {waiting} t WHERE t.queue_id = ?
        ORDER BY t.queue_id, t.ordering_key, t.precedence, t.due_at, t.job_id LIMIT ?
    ) few GROUP BY few.lane_id"""

LAST_DONE = """
    SELECT MIN(few.queue_id), COUNT(*), COUNT(CASE WHEN few.finished_at >= ? THEN 1 END)
    FROM (
        SELECT f.queue_id, f.finished_at FROM <table> f WHERE f.queue_id = ?
        ORDER BY f.queue_id DESC, f.finished_at DESC, f.job_id DESC LIMIT ?
    ) few"""

# Each job is looked up, where a join may be made with all of them. A limit that is a parameter
# would be taken for a tenth of what there is.
LAST_OF_LANES = """
    SELECT COUNT(CASE WHEN (SELECT j.lane_id FROM {jobs} j WHERE j.id = few.job_id) IN (<lanes>)
           THEN 1 END)
    FROM (
        SELECT f.job_id FROM <table> f WHERE f.queue_id = ?
        ORDER BY f.queue_id DESC, f.finished_at DESC, f.job_id DESC LIMIT <most>
    ) few"""

NEWEST = """
    SELECT few.lane_id, COUNT(*)
    FROM (SELECT j.lane_id, j.created_at FROM {jobs} j ORDER BY j.id DESC LIMIT ?) few
    WHERE few.created_at >= ? GROUP BY few.lane_id"""
