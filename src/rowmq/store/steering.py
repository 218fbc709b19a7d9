"""What people do to jobs by their ids: have them be due at another time, give them up, drop them.

    reschedule   ready, or waiting in its line ----> the same, at another time
    fail, drop   ready, or waiting in its line ----> failed, or gone
    fail_claimed, drop_claimed      in a lock -----> failed, or gone; to settle it is of no more use

A job moves while people look at it: each operation does what it can with those jobs that are where
it works, tells which these were, and leaves alone what somebody has locked just now. Whoever calls
looks again for the others.

Locks are taken in the order of settles: lock rows, keys, lines; then rows of `ready`, for which
nobody waits. So a claim has a job, or people have it, and never both.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from rowmq.store.archive import LOCKS, Lanes
from rowmq.store.claims import Entry, is_of
from rowmq.store.dialect import as_text, as_text_or_none
from rowmq.store.jobs import JOB_ID, KEY_IDENTITY
from rowmq.store.lines import READY_KEY, WAITING_KEY, Member, ReadyRow
from rowmq.store.listing import Listing
from rowmq.store.postings import KeyIdentity, KeyRow
from rowmq.store.queues import Keeps
from rowmq.store.settles import Held, Kind, Settle, Settles, refusal
from rowmq.store.statement import Operation, Statement

__all__ = ["Steering", "When"]


class When(NamedTuple):
    """When jobs are to be due: at a time, or after a delay from now."""

    at: int | None
    delay_us: int = 0


class Standing(NamedTuple):
    """A job as its row has it, without its payload."""

    id: int
    queue_id: int
    lane_id: int
    due_at: int
    key: str | None
    ordering_key: str | None
    kind: str
    precedence: int

    @property
    def identity(self) -> KeyIdentity:
        """What its key is known by, if it has one."""
        return self.queue_id, str(self.key), self.kind

    def member(self, due_at: int) -> Member:
        """Its place in its line, which it must have, if it is due then."""
        line = (self.queue_id, str(self.ordering_key))
        return Member(*line, self.precedence, due_at, self.id, self.lane_id)


class Taken(NamedTuple):
    """A job that was taken from where it stood; without a row it waited in its line."""

    job: Standing
    row: ReadyRow | None

    @property
    def untried(self) -> bool:
        """Whether it was never claimed, so that its line is in the order of times."""
        return self.row is None or self.row.deliveries == 0

    def settle(self, queue: str, error: str | None) -> Settle:
        """What gives it up."""
        attempts, deliveries = (0, 0) if self.row is None else self.row[3:]
        job = self.job
        entry = Entry(job.id, job.lane_id, job.due_at, attempts, deliveries)
        return settle_of(queue, job, entry, error=error)


class Steering:
    """The operations on jobs that are chosen by people, for one dialect."""

    def __init__(self, listing: Listing, settles: Settles) -> None:
        self.archive = listing.archive
        self.jobs = listing.jobs
        self.lines = listing.jobs.lines
        self.queues = listing.archive.queues
        self.claims = settles.claims
        self.settles = settles
        self.dialect = listing.dialect

    # --- ready, or waiting ------------------------------------------------------------------------

    def reschedule(
        self,
        queue: str,
        kinds: Collection[str] | None,
        ids: Sequence[int],
        when: When,
        *,
        memo: dict[int, int],
        notify: Collection[str] = (),
    ) -> Operation[list[int]]:
        """Have jobs be due at another time; which ones. Their times are noted in `memo`."""
        lanes = yield from self._lanes(queue, kinds)
        if lanes is None:
            return []
        taken = yield from self._take(lanes, ids)
        now = yield from self.dialect.clock("steering.now")
        due_at = now + when.delay_us if when.at is None else when.at
        memo |= {item.job.id: due_at for item in taken}
        yield from self.jobs.set_due([(item.job.id, due_at) for item in taken])
        yield from self._move_keys([item.job for item in taken], due_at)
        in_line = [item for item in taken if item.job.ordering_key is not None and item.untried]
        yield from self._leave(in_line)
        ready = [
            item.row._replace(due_at=due_at)
            for item in taken
            if item.row is not None and (item.job.ordering_key is None or not item.untried)
        ]
        ready += yield from self.lines.join([item.job.member(due_at) for item in in_line])
        yield from self.jobs.make_ready(ready)
        yield from self.jobs.tell(notify)
        return [item.job.id for item in taken]

    def fail(
        self,
        queue: str,
        kinds: Collection[str] | None,
        ids: Sequence[int],
        *,
        error: str | None,
        notify: Collection[str] = (),
    ) -> Operation[list[int]]:
        """Give up jobs that nobody works on; which ones. Who waited behind them may be due now."""
        lanes = yield from self._lanes(queue, kinds)
        if lanes is None:
            return []
        taken = yield from self._take(lanes, ids)
        yield from self._end(taken)
        now = yield from self.dialect.clock("steering.now")
        keeps = yield from self.queues.keeps([lanes.queue_id])
        settles = [item.settle(queue, error) for item in taken]
        yield from self.settles.finish(settles, {NO_LOCK: Held("", now, now)}, keeps)
        rows = [(item.job.id,) for item in taken]
        yield from self.queues.discard("steering.forget", "{holds}", JOB_ID, rows)
        yield from self.jobs.tell(notify)
        return [item.job.id for item in taken]

    def drop(
        self,
        queue: str,
        kinds: Collection[str] | None,
        ids: Sequence[int],
        *,
        notify: Collection[str] = (),
    ) -> Operation[list[int]]:
        """Delete jobs that nobody works on; which ones."""
        lanes = yield from self._lanes(queue, kinds)
        if lanes is None:
            return []
        taken = yield from self._take(lanes, ids)
        yield from self._end(taken)
        dropped = [item.job.id for item in taken]
        yield from self.jobs.delete_jobs(dropped)
        yield from self.jobs.tell(notify)
        return dropped

    def _lanes(self, queue: str, kinds: Collection[str] | None) -> Operation[Lanes | None]:
        yield from self.dialect.seize()
        return (yield from self.archive.lanes(queue, kinds))

    def _take(self, lanes: Lanes, ids: Sequence[int]) -> Operation[list[Taken]]:
        """Take jobs out of `ready`, or out of the rows that wait, under the locks of their keys and
        lines. Those that are elsewhere, or that somebody has locked, are left out.
        """
        jobs = yield from self._standing(lanes, ids)
        keyed = [job.identity for job in jobs if job.key is not None]
        held = yield from self.jobs.find_keys(keyed, skip=True)
        jobs = [job for job in jobs if job.key is None or is_of(held.get(job.identity), job.id)]
        dues = yield from self._dues(jobs)
        waiting = yield from self._take_waiting(jobs, dues)
        ready = yield from self._take_ready([job for job in jobs if job.id not in waiting], dues)
        return [Taken(job, ready.get(job.id)) for job in jobs if job.id in waiting | ready.keys()]

    def _take_waiting(
        self, jobs: Iterable[Standing], dues: Mapping[int, set[int]]
    ) -> Operation[set[int]]:
        """Take jobs out of their lines in which they wait, and keep these locked; which ones."""
        members = [
            job.member(due_at)
            for job in jobs
            if job.ordering_key is not None
            for due_at in sorted(dues[job.id])
        ]
        yield from self.lines.lock([member.line for member in members], create=False)
        rows = [member.waiting_key for member in members]
        found = yield from self.queues.select("steering.waiting", WAITING, WAITING_KEY, rows)
        there = {(id, due_at) for id, due_at in found}
        rows = [member.waiting_key for member in members if (member.job_id, member.due_at) in there]
        yield from self.queues.delete("steering.unline", "{waiting}", WAITING_KEY, rows)
        return {id for id, _ in there}

    def _take_ready(
        self, jobs: Iterable[Standing], dues: Mapping[int, set[int]]
    ) -> Operation[dict[int, ReadyRow]]:
        """Take jobs out of `ready` that nobody else has locked; their rows, by id."""
        places = sorted((job.lane_id, due_at, job.id) for job in jobs for due_at in dues[job.id])
        found = yield from self.queues.select("steering.ready", READY_ROWS, READY_KEY, places)
        rows = {row[2]: ReadyRow(*row) for row in found}
        keys = [row[:3] for row in rows.values()]
        yield from self.queues.delete("steering.take", "{ready}", READY_KEY, keys)
        return rows

    def _standing(self, lanes: Lanes, ids: Iterable[int]) -> Operation[list[Standing]]:
        """Those of the jobs that are there, and in these lanes. A plain look: the locks that follow
        decide.
        """
        wanted = [(id,) for id in sorted(set(ids))]
        rows = yield from self.queues.select("steering.jobs", JOBS, {"id": "bigint"}, wanted)
        known = yield from self.jobs.lanes_of({row[1] for row in rows}.intersection(lanes.ids))
        return [
            Standing(
                id,
                known[lane][0],
                lane,
                due_at,
                as_text_or_none(key),
                as_text_or_none(ordering_key),
                *known[lane][1:],
            )
            for id, lane, due_at, key, ordering_key in rows
            if lane in known
        ]

    def _dues(self, jobs: Iterable[Standing]) -> Operation[dict[int, set[int]]]:
        """When jobs may be due: when they were put for, or when one that was tried before was to be
        tried again.
        """
        dues = {job.id: {job.due_at} for job in jobs}
        rows = yield from self.queues.select(
            "steering.tried_again", TRIED_AGAIN, JOB_ID, [(id,) for id in sorted(dues)]
        )
        for id, due_at in rows:
            dues[id].add(due_at)
        return dues

    def _move_keys(self, jobs: Iterable[Standing], due_at: int) -> Operation[None]:
        """Note with keys where their jobs will be ready."""
        rows = [(*job.identity, due_at) for job in jobs if job.key is not None]
        columns = KEY_IDENTITY | {"due_at": "bigint"}
        yield from self.queues.update(
            "steering.move_keys", "{job_keys}", columns, tuple(KEY_IDENTITY), rows
        )

    def _end(self, taken: Sequence[Taken]) -> Operation[None]:
        """Have others use the keys of jobs that were taken, and have those behind them move up."""
        yield from self.jobs.free_keys(
            KeyRow(*item.job.identity, item.job.id, item.job.lane_id, item.job.due_at)
            for item in taken
            if item.job.key is not None
        )
        yield from self._leave([item for item in taken if item.job.ordering_key is not None])

    def _leave(self, taken: Iterable[Taken]) -> Operation[None]:
        """Have those move up who stood behind heads that were taken."""
        heads = [(item.job.member(0).line, item.job.id) for item in taken if item.row is not None]
        ready = yield from self.lines.leave(heads)
        yield from self.jobs.make_ready(ready)

    # --- claimed ----------------------------------------------------------------------------------

    def fail_claimed(
        self,
        queue: str,
        kinds: Collection[str] | None,
        ids: Sequence[int],
        *,
        error: str | None,
        notify: Collection[str] = (),
    ) -> Operation[list[int]]:
        """Give up jobs that are in locks, and take them from those who have them; which ones."""
        lanes = yield from self._lanes(queue, kinds)
        if lanes is None:
            return []
        done = yield from self._take_away(queue, lanes, ids, error=error)
        yield from self.jobs.tell(notify)
        return done

    def drop_claimed(
        self,
        queue: str,
        kinds: Collection[str] | None,
        ids: Sequence[int],
        *,
        notify: Collection[str] = (),
    ) -> Operation[list[int]]:
        """Delete jobs that are in locks; which ones."""
        lanes = yield from self._lanes(queue, kinds)
        if lanes is None:
            return []
        kept = {lanes.queue_id: (False, False)}
        done = yield from self._take_away(queue, lanes, ids, keeps=kept)
        yield from self.jobs.tell(notify)
        return done

    def _take_away(
        self,
        queue: str,
        lanes: Lanes,
        ids: Sequence[int],
        *,
        error: str | None = None,
        keeps: Keeps | None = None,
    ) -> Operation[list[int]]:
        """Settle jobs in the place of those who have claimed them, as if they were refused."""
        jobs = {job.id: job for job in (yield from self._standing(lanes, ids))}
        claims = yield from self._claims_of(jobs.keys())
        settles = [
            settle_of(queue, jobs[entry.job_id], entry, token=token, position=place, error=error)
            for token, place, entry in claims
        ]
        pairs = {(settle.token, settle.queue_id) for settle in settles}
        held, kept = yield from self.settles.lock(pairs, alone=False)
        valid = [s for s in settles if refusal(s, held.get(s.token)) is None]
        identities = sorted({s.identity for s in valid if s.key is not None})
        keys = yield from self.jobs.find_keys(identities, skip=True)
        valid = [s for s in valid if s.key is None or is_of(keys.get(s.identity), s.entry.job_id)]
        yield from self.settles.apply(valid, held, keys, kept if keeps is None else keeps)
        return [settle.entry.job_id for settle in valid]

    def _claims_of(self, ids: Collection[int]) -> Operation[list[tuple[int, int, Entry]]]:
        """The tokens of locks that have jobs, the places in them, and their entries; of locks that
        nobody is settling just now.
        """
        if not ids:
            return []
        sql = self.dialect.sql(LOCKS.replace("<which>", ""))
        result = yield Statement("steering.locks", sql)
        claims = [
            (token, place, Entry(*values))
            for token, claimed, settled, _ in result
            for place, values in enumerate(self.dialect.unpack(claimed))
            if values[0] in ids and as_text(settled)[place] == "0"
        ]
        tokens = [(token,) for token in sorted({token for token, *_ in claims})]
        rows = yield from self.queues.select(
            "steering.lock", FREE_LOCKS, {"token": "bigint"}, tokens
        )
        free = {token for (token,) in rows}
        return [claim for claim in claims if claim[0] in free]

    # --- where an earlier try has left them -------------------------------------------------------

    def moved(self, memo: Mapping[int, int], ids: Sequence[int]) -> Operation[set[int]]:
        """Those of the jobs that are due when they were said to be."""
        dues = yield from self.jobs.due_times(ids)
        return {id for id, due_at in dues.items() if memo.get(id) == due_at}

    def ended(self, ids: Sequence[int]) -> Operation[set[int]]:
        """Those of the jobs that have failed, or are gone."""
        return (yield from self._without(LIVING, ids))

    def dropped(self, ids: Sequence[int]) -> Operation[set[int]]:
        """Those of the jobs that are gone."""
        return (yield from self._without(JOBS, ids))

    def retried(self, ids: Sequence[int]) -> Operation[set[int]]:
        """Those of the jobs that have not failed, or no more."""
        return (yield from self._without(FAILED, ids))

    def _without(self, template: str, ids: Sequence[int]) -> Operation[set[int]]:
        wanted = [(id,) for id in ids]
        rows = yield from self.queues.select("steering.left", template, {"id": "bigint"}, wanted)
        return set(ids).difference(row[0] for row in rows)


def settle_of(
    queue: str,
    job: Standing,
    entry: Entry,
    *,
    token: int = 0,
    position: int = 0,
    error: str | None = None,
) -> Settle:
    """What gives a job up without an attempt more."""
    return Settle(
        kind=Kind.REFUSE,
        token=token,
        position=position,
        queue=queue,
        queue_id=job.queue_id,
        entry=entry,
        job_kind=job.kind,
        key=job.key,
        ordering_key=job.ordering_key,
        error=error,
    )


NO_LOCK = 0
"""The token of a job that is in no lock."""

FREE_LOCKS = """
    SELECT l.token FROM (<source>) w {join} {locks} l {by_key} ON l.token = w.token
    ORDER BY l.token {skip_locked}"""

JOBS = """
    SELECT j.id, j.lane_id, j.due_at, j.job_key, j.ordering_key
    FROM (<source>) w {join} {jobs} j {by_key} ON j.id = w.id"""

LIVING = """
    SELECT j.id FROM (<source>) w {join} {jobs} j {by_key} ON j.id = w.id
    LEFT JOIN {failed} f ON f.job_id = w.id WHERE f.job_id IS NULL"""

FAILED = "SELECT f.job_id FROM (<source>) w {join} {failed} f {by_key} ON f.job_id = w.id"

WAITING = """
    SELECT t.job_id, t.due_at FROM (<source>) w {join} {waiting} t {by_key}
        ON t.queue_id = w.queue_id AND t.ordering_key = w.ordering_key
       AND t.precedence = w.precedence AND t.due_at = w.due_at AND t.job_id = w.job_id {as_now}"""

TRIED_AGAIN = """
    SELECT e.job_id, e.due_at FROM (<source>) w
    {join} {job_errors} e {by_key} ON e.job_id = w.job_id WHERE e.due_at IS NOT NULL"""

READY_ROWS = """
    SELECT r.lane_id, r.due_at, r.job_id, r.attempts, r.deliveries FROM (<source>) w
    {join} {ready} r {by_key}
        ON r.lane_id = w.lane_id AND r.due_at = w.due_at AND r.job_id = w.job_id
    ORDER BY r.lane_id, r.due_at, r.job_id {skip_locked}"""
