"""What is known of a queue's jobs: counts, live jobs by key, and the archive.

The archive is the jobs that are completed or failed. Nothing leaves it but by `retry`, and by
`prune`, which deletes what is older than the queue keeps, a batch in a transaction.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from rowmq.message import JobError, State
from rowmq.store.claims import Claims, Entry
from rowmq.store.dialect import as_bytes, as_text, as_text_or_none, beginning
from rowmq.store.jobs import JOB_COLUMNS, JOB_ID
from rowmq.store.lines import READY_KEY, WAITING_KEY, Member, ReadyRow
from rowmq.store.postings import KeyRow, Stored
from rowmq.store.statement import Operation, Row, Statement
from rowmq.times import from_micros

__all__ = ["BATCH", "Archive", "Lanes", "Record", "id_list", "record_of"]

COUNTS_MAX = 10
"""How often a queue is looked at before its counts are told as they are: others never pause."""

BATCH = 1_000
"""How many jobs are deleted, or dropped, in one transaction."""


class Record(NamedTuple):
    """A job as it stands, with all that is stored of it."""

    id: int
    state: State
    kind: str
    priority: int
    created_at: int
    due_at: int
    encoding: int
    key: str | None
    ordering_key: str | None
    headers: str | None
    payload: bytes
    attempts: int
    deliveries: int
    error: str | None = None
    finished_at: int | None = None
    cut: bool = False
    """Whether the payload is only the beginning of it."""


class Lanes(NamedTuple):
    """Lanes of a queue that are looked at, and whether these are all."""

    queue_id: int
    ids: frozenset[int]
    whole: bool


class Archive:
    """The operations on what is known of jobs, for one dialect."""

    def __init__(self, claims: Claims) -> None:
        self.claims = claims
        self.jobs = claims.jobs
        self.queues = claims.queues
        self.dialect = claims.dialect

    def lanes(self, queue: str, kinds: Collection[str] | None) -> Operation[Lanes | None]:
        """The lanes of some kinds of a queue, or all; None if it never had a job of any kind."""
        rows = yield from self.queues.list_lanes(queue)
        ids = frozenset(row[0] for row in rows if kinds is None or row[2] in kinds)
        return Lanes(rows[0][1], ids, kinds is None) if rows else None

    # --- counts and live jobs ---------------------------------------------------------------------

    def counts(self, queue: str, kinds: Collection[str] | None) -> Operation[dict[State, int]]:
        """How many jobs there are in each state.

        What an update put into another lane, or under another id, while this was looked at, would
        be in none of what was seen: then it is looked at anew.
        """
        counts, gone = dict.fromkeys(State, 0), set[int]()
        for _ in range(COUNTS_MAX):
            lanes = yield from self.lanes(queue, kinds)
            if lanes is None:
                break
            counts, missing = yield from self._count(lanes)
            if missing <= gone and (yield from self.lanes(queue, kinds)) == lanes:
                break
            gone |= missing
        return counts

    def _count(self, lanes: Lanes) -> Operation[tuple[dict[State, int], set[int]]]:
        """The counts, in one statement, since a job that is on its way from one table to another
        would be seen in both of them, or in neither; and who is in a lock, but is no more.
        """
        counts = dict.fromkeys(State, 0)
        template = of_lanes(COUNTS, lanes).replace("<lanes>", id_list(lanes.ids))
        params = (lanes.queue_id,) * COUNTS.count("?")
        result = yield Statement("archive.count", self.dialect.sql(template), params, sole=True)
        locks: list[Row] = []
        for state, number, *lock in result:
            if state is None:
                locks.append(tuple(lock))
            else:
                counts[State(as_text(state))] += int(number)
        held = self.unsettled(locks, lanes.ids)
        alive = yield from self.alive(held)
        for entry, expired in held:
            if entry.job_id in alive:
                # What an expired lock has is to be claimed again as it was.
                given_back = State.RETRYABLE if entry.attempts else State.PENDING
                counts[given_back if expired else State.PROCESSING] += 1
        return counts, {entry.job_id for entry, _ in held} - alive

    def claimed(self, lanes: Collection[int]) -> Operation[list[tuple[Entry, bool]]]:
        """The jobs of these lanes that are in locks and not settled, and whether theirs expired."""
        held = yield from self.held(lanes)
        alive = yield from self.alive(held)
        return [(entry, expired) for entry, expired in held if entry.job_id in alive]

    def held(self, lanes: Collection[int]) -> Operation[list[tuple[Entry, bool]]]:
        """The same, and those that were updated or dropped meanwhile."""
        sql = self.dialect.sql(LOCKS.replace("<which>", ""))
        result = yield Statement("archive.locks", sql, sole=True)
        return self.unsettled([row[1:] for row in result], lanes)

    def unsettled(self, locks: Iterable[Row], lanes: Collection[int]) -> list[tuple[Entry, bool]]:
        """What these locks, rows of LOCKS without the token, still have of some lanes."""
        found = []
        for claimed, settled, expired in locks:
            for entry, mark in zip(self.dialect.unpack(claimed), as_text(settled), strict=True):
                if mark == "0" and entry[1] in lanes:
                    found.append((Entry(*entry), bool(expired)))
        return found

    def alive(self, held: Iterable[tuple[Entry, bool]]) -> Operation[set[int]]:
        """The ids of those that were not updated or dropped: these are in their locks still."""
        ids = [(id,) for id in sorted({entry.job_id for entry, _ in held})]
        columns = {"id": "bigint"}
        rows = yield from self.queues.select("archive.alive", ALIVE, columns, ids, sole=True)
        return {id for (id,) in rows}

    def claim_of(self, job_id: int) -> Operation[tuple[Entry, bool] | None]:
        """The entry of a job in a lock, and whether that has expired; None if there is none."""
        sql = self.dialect.sql(LOCKS.replace("<which>", f"WHERE {self.dialect.packs}"))
        params = (self.dialect.packed(job_id),)
        result = yield Statement("archive.lock_of", sql, params, sole=True)
        for _, claimed, settled, expired in result:
            for entry, mark in zip(self.dialect.unpack(claimed), as_text(settled), strict=True):
                if mark == "0" and entry[0] == job_id:
                    return Entry(*entry), bool(expired)
        return None

    def read(self, queue: str, key: str, kinds: Collection[str] | None) -> Operation[Record | None]:
        """The live job of a key, wherever it stands."""
        found = yield from self.jobs.find(queue, key, kinds)
        for row in found:
            record = yield from self.live(row)
            if record is not None:
                return record
        return None

    def live(self, row: KeyRow) -> Operation[Record | None]:
        """The job of a key, wherever it stands: ready, in a lock, or waiting in its line."""
        jobs = yield from self.fetch([row.job_id])
        if row.job_id not in jobs:
            return None
        sql = self.dialect.sql(READY_ROW)
        ready = (yield Statement("archive.ready", sql, row.ready, sole=True)).rows
        claim = None if ready else (yield from self.claim_of(row.job_id))
        attempts, deliveries = ready[0] if ready else (0, 0)  # else it waits in its line
        if claim is not None:
            attempts, deliveries = claim[0].attempts, claim[0].deliveries
        state = State.RETRYABLE if attempts else State.PENDING
        if claim is not None and not claim[1]:
            state = State.PROCESSING
        return record_of(jobs[row.job_id], state, attempts, deliveries, due_at=row.due_at)

    def errors(self, job_id: int) -> Operation[list[JobError]]:
        """Why earlier attempts at a job failed, oldest first."""
        result = yield Statement("archive.errors", self.dialect.sql(ERRORS), (job_id,), sole=True)
        return [
            JobError(
                attempt=attempt,
                failed_at=from_micros(moment),
                error=as_text_or_none(error),
            )
            for attempt, moment, error in result
        ]

    # --- the archive ------------------------------------------------------------------------------

    def list_finished(
        self,
        queue: str,
        kinds: Collection[str] | None,
        *,
        state: State,
        since: int | None,
        limit: int,
    ) -> Operation[list[Record]]:
        """Completed or failed jobs, the newest first."""
        lanes = yield from self.lanes(queue, kinds)
        if lanes is None:
            return []
        template = LIST_COMPLETED if state is State.COMPLETED else LIST_FAILED
        sql = self.dialect.sql(of_lanes(template, lanes))
        params = (lanes.queue_id, -(2**62) if since is None else since, limit)
        result = yield Statement("archive.list", sql, params, sole=True)
        found = {row[0]: row for row in result}
        jobs = yield from self.fetch(found)
        return [
            record_of(
                jobs[id],
                state,
                attempts,
                deliveries,
                error=as_text_or_none(error),
                finished_at=finished_at,
            )
            for id, finished_at, attempts, deliveries, error in found.values()
            if id in jobs
        ]

    def fetch(self, ids: Iterable[int], *, whole: bool = True) -> Operation[dict[int, Row]]:
        """What is stored of jobs, for `record_of`, by id. If not `whole`, with the beginnings of
        payloads only; a byte more, if there is more.
        """
        name, sql = ("archive.fetch", FETCH) if whole else ("archive.begin", FETCH_BEGINNINGS)
        rows = yield from self.queues.select(
            name, sql, {"id": "bigint"}, [(id,) for id in ids], sole=True
        )
        return {row[0]: row for row in rows}

    def retry(
        self,
        queue: str,
        kinds: Collection[str] | None,
        ids: Sequence[int],
        *,
        notify: Collection[str] = (),
    ) -> Operation[list[int]]:
        """Have failed jobs be claimed again, from their first attempt on; which ones.

        One whose key has a live job by now stays failed.
        """
        yield from self.dialect.seize()
        lanes = yield from self.lanes(queue, kinds)
        if lanes is None:
            return []
        rows = yield from self.queues.select(
            "archive.lock_failed", LOCK_FAILED, JOB_ID, [(id,) for id in sorted(set(ids))]
        )
        failed = {row[0]: row for row in rows if row[1] == lanes.queue_id}
        stored = yield from self.jobs.stored(failed)
        chosen = [job for job in stored.values() if job.lane_id in lanes.ids]
        now = yield from self.dialect.clock("archive.now")
        keyed = [
            KeyRow(job.queue_id, job.key, job.kind, job.id, job.lane_id, now)
            for job in chosen
            if job.key is not None
        ]
        held = yield from self.jobs.lock_keys(keyed)
        taken = {row.job_id for row in keyed if held[row.identity].job_id != row.job_id}
        chosen = [job for job in chosen if job.id not in taken]
        yield from self._revive(chosen, now)
        notes = [(job.id, *failed[job.id][2:]) for job in chosen]
        texts = [(*note[:3], as_text_or_none(note[3]), now) for note in notes]
        yield from self.jobs.note_errors("archive.note", texts)
        yield from self.queues.delete(
            "archive.unfail", "{failed}", JOB_ID, [(job.id,) for job in chosen]
        )
        yield from self.jobs.tell(notify)
        return [job.id for job in chosen]

    def _revive(self, chosen: Sequence[Stored], now: int) -> Operation[None]:
        """Make jobs ready that have their keys again, or let them wait in their lines. They are due
        at another time than before, as those are that people have moved: by that they are found,
        and whoever had one earlier is told from who has it next.
        """
        yield from self.jobs.set_due([(job.id, now) for job in chosen])
        ready = [ReadyRow(job.lane_id, now, job.id) for job in chosen if job.ordering_key is None]
        ready += yield from self.jobs.lines.join(
            [
                Member(job.queue_id, job.ordering_key, job.precedence, now, job.id, job.lane_id)
                for job in chosen
                if job.ordering_key is not None
            ]
        )
        yield from self.jobs.make_ready(ready)

    def prune(
        self,
        queue: str,
        kinds: Collection[str] | None,
        *,
        state: State,
        older_than_us: int | None,
    ) -> Operation[list[int]]:
        """Delete a batch of what is older than given, or than the queue keeps it; which jobs."""
        yield from self.dialect.seize()
        lanes = yield from self.lanes(queue, kinds)
        if lanes is None:
            return []
        sql = self.dialect.sql(RETENTION)
        params = (self.dialect.text(queue),)
        for completed_us, failed_us, now in (yield Statement("archive.retention", sql, params)):
            kept = completed_us if state is State.COMPLETED else failed_us
            age = kept if older_than_us is None else older_than_us
            if age is None:
                return []
            return (yield from self._prune(lanes, state, now - age))
        return []

    def _prune(self, lanes: Lanes, state: State, before: int) -> Operation[list[int]]:
        queue_id = lanes.queue_id
        completed = state is State.COMPLETED
        table = "{completed}" if completed else "{failed}"
        template = of_lanes(OLD.replace("<table>", table), lanes)
        params = (queue_id, before, BATCH)
        result = yield Statement("archive.old", self.dialect.sql(template), params)
        rows = [(queue_id, finished_at, job_id) for finished_at, job_id in result]
        if completed:
            yield from self.queues.discard("archive.prune", "{completed}", COMPLETED_KEY, rows)
        else:
            ids = [(job_id,) for _, _, job_id in rows]
            yield from self.queues.discard("archive.prune", "{failed}", JOB_ID, ids)
        pruned = [job_id for _, _, job_id in rows]
        yield from self.jobs.delete_jobs(pruned)
        return pruned

    # --- drop all ---------------------------------------------------------------------------------

    def drop_waiting(self, queue: str, kinds: Collection[str] | None) -> Operation[list[int]]:
        """Delete a batch of jobs that wait in lines; which ones."""
        yield from self.dialect.seize()
        lanes = yield from self.lanes(queue, kinds)
        if lanes is None or not lanes.ids:
            return []
        sql = self.dialect.sql(SOME_WAITING.replace("<kinds>", id_list(lanes.ids)))
        result = yield Statement("archive.some_waiting", sql, (lanes.queue_id, BATCH))
        lines = [(queue_id, as_text(key)) for queue_id, key, *_ in result]
        # Nobody moves up any more: what is still there can be deleted.
        yield from self.jobs.lines.lock(lines, create=False)
        rows = [(q, as_text(key), *rest) for q, key, *rest in result]
        there = yield from self.queues.select("archive.still_waiting", STILL, WAITING_KEY, rows)
        ids = {row[0] for row in there}
        rows = [row for row in rows if row[-1] in ids]
        yield from self.queues.delete("archive.drop_waiting", "{waiting}", WAITING_KEY, rows)
        yield from self._drop(ids)
        return sorted(ids)

    def drop_ready(self, queue: str, kinds: Collection[str] | None) -> Operation[list[int]]:
        """Delete a batch of jobs that could be claimed, now or later; which ones."""
        yield from self.dialect.seize()
        lanes = yield from self.lanes(queue, kinds)
        if lanes is None or not lanes.ids:
            return []
        sql = self.dialect.sql(SOME_READY.replace("<kinds>", id_list(lanes.ids)))
        result = yield Statement("archive.some_ready", sql, (BATCH,))
        yield from self.queues.delete("archive.drop_ready", "{ready}", READY_KEY, list(result))
        ids = [job_id for _, _, job_id in result]
        yield from self._drop(ids)
        return ids

    def drop_claimed(self, queue: str, kinds: Collection[str] | None) -> Operation[list[int]]:
        """Delete the jobs that are in locks, to settle them is of no more use; which ones."""
        yield from self.dialect.seize()
        lanes = yield from self.lanes(queue, kinds)
        if lanes is None:
            return []
        gone: list[int] = []
        template = LOCKS.replace("<which>", "") + " {for_update}"
        result = yield Statement("archive.lock_locks", self.dialect.sql(template))
        for token, claimed, settled, _ in result:
            marks = list(as_text(settled))
            dropped = []
            for place, values in enumerate(self.dialect.unpack(claimed)):
                entry = Entry(*values)
                if marks[place] == "0" and entry.lane_id in lanes.ids:
                    marks[place] = "1"
                    dropped.append(entry)
            if not dropped:
                continue
            if "0" in marks:
                params = (self.dialect.text("".join(marks)), token)
                yield Statement("archive.void", self.dialect.sql(VOID), params)
            else:
                yield from self.queues.delete(
                    "archive.unlock", "{locks}", {"token": "bigint"}, [(token,)]
                )
            gone += yield from self._drop([entry.job_id for entry in dropped])
            yield from self.claims.free_permits(
                [(lanes.queue_id, entry.permit, token) for entry in dropped if entry.permit]
            )
        return gone

    def _drop(self, ids: Iterable[int]) -> Operation[list[int]]:
        """Delete jobs that stand nowhere any more, with their keys and their places in lines; which
        ones were there.
        """
        stored = yield from self.jobs.stored(ids)
        keys = [(j.queue_id, j.key, j.kind) for j in stored.values() if j.key is not None]
        held = yield from self.jobs.find_keys(keys)
        mine = [row for row in held.values() if row.job_id in stored]
        yield from self.jobs.free_keys(mine)
        ready = yield from self.jobs.lines.leave(
            [((j.queue_id, j.ordering_key), j.id) for j in stored.values() if j.ordering_key]
        )
        yield from self.jobs.make_ready(ready)
        yield from self.jobs.delete_jobs(stored)
        return sorted(stored)


def record_of(
    row: Row,
    state: State,
    attempts: int,
    deliveries: int,
    *,
    due_at: int | None = None,
    error: str | None = None,
    finished_at: int | None = None,
) -> Record:
    """A job, of a row of FETCH."""
    id, created_at, due, encoding, key, ordering_key, headers, payload, kind, precedence = row
    return Record(
        id=id,
        state=state,
        kind=as_text(kind),
        priority=-precedence,
        created_at=created_at,
        due_at=due if due_at is None else due_at,
        encoding=encoding,
        key=as_text_or_none(key),
        ordering_key=as_text_or_none(ordering_key),
        headers=as_text_or_none(headers),
        payload=as_bytes(payload),
        attempts=attempts,
        deliveries=deliveries,
        error=error,
        finished_at=finished_at,
    )


def id_list(ids: Collection[int]) -> str:
    """Numbers of our own, as SQL."""
    return ", ".join(str(int(id)) for id in sorted(ids)) or "0"


def of_lanes(template: str, lanes: Lanes) -> str:
    """A query of finished jobs, of these lanes only: with their jobs, unless these are all."""
    if lanes.whole:
        return template.replace("<of kinds>", "").replace("<kinds>", "")
    kinds = f"AND j.lane_id IN ({id_list(lanes.ids)})"
    return template.replace("<of kinds>", JOINED).replace("<kinds>", kinds)


ALIVE = "SELECT j.id FROM (<source>) w {join} {jobs} j {by_key} ON j.id = w.id"

COMPLETED_KEY = {"queue_id": "bigint", "finished_at": "bigint", "job_id": "bigint"}

# The locks come first, since a database takes the types of columns from there.
COUNTS = """
    SELECT NULL AS state, 0 AS number, claimed, settled,
           CASE WHEN locked_until <= {now} THEN 1 ELSE 0 END AS expired
    FROM {locks}
    UNION ALL
    SELECT CASE WHEN attempts > 0 THEN 'retryable' ELSE 'pending' END, COUNT(*), NULL, NULL, NULL
    FROM {ready} WHERE lane_id IN (<lanes>)
    GROUP BY CASE WHEN attempts > 0 THEN 'retryable' ELSE 'pending' END
    UNION ALL
    SELECT 'pending', COUNT(*), NULL, NULL, NULL
    FROM {waiting} WHERE queue_id = ? AND lane_id IN (<lanes>)
    UNION ALL
    SELECT 'completed', COUNT(*), NULL, NULL, NULL
    FROM {completed} f <of kinds> WHERE f.queue_id = ? <kinds>
    UNION ALL
    SELECT 'failed', COUNT(*), NULL, NULL, NULL
    FROM {failed} f <of kinds> WHERE f.queue_id = ? <kinds>"""

JOINED = "{join} {jobs} j ON j.id = f.job_id "

LOCKS = """
    SELECT token, claimed, settled, CASE WHEN locked_until <= {now} THEN 1 ELSE 0 END FROM {locks}
    <which> ORDER BY token"""

READY_ROW = """
    SELECT attempts, deliveries FROM {ready} WHERE lane_id = ? AND due_at = ? AND job_id = ?"""

ERRORS = """
    SELECT attempt, failed_at, error FROM {job_errors} WHERE job_id = ?
    ORDER BY failed_at, attempt"""

LIST_COMPLETED = """
    SELECT f.job_id, f.finished_at, f.attempts, f.deliveries, NULL
    FROM {completed} f {join} {jobs} j ON j.id = f.job_id
    WHERE f.queue_id = ? AND f.finished_at >= ? <kinds>
    ORDER BY f.finished_at DESC, f.job_id DESC LIMIT ?"""

LIST_FAILED = """
    SELECT f.job_id, f.finished_at, f.attempts, f.deliveries, f.error
    FROM {failed} f {join} {jobs} j ON j.id = f.job_id
    WHERE f.queue_id = ? AND f.finished_at >= ? <kinds>
    ORDER BY f.finished_at DESC, f.job_id DESC LIMIT ?"""

FETCH = f"""
    SELECT {JOB_COLUMNS}, l.kind, l.precedence
    FROM (<source>) w {{join}} {{jobs}} j {{by_key}} ON j.id = w.id
    {{join}} {{lanes}} l {{by_key}} ON l.id = j.lane_id"""

FETCH_BEGINNINGS = FETCH.replace("j.payload", beginning("j.payload"))

LOCK_FAILED = """
    SELECT f.job_id, f.queue_id, f.finished_at, f.attempts, f.error
    FROM (<source>) w {join} {failed} f {by_key} ON f.job_id = w.job_id
    ORDER BY f.job_id {for_update}"""

RETENTION = "SELECT retention_us, failed_retention_us, {now} FROM {queues} WHERE queue = ?"

OLD = """
    SELECT f.finished_at, f.job_id FROM <table> f <of kinds>
    WHERE f.queue_id = ? AND f.finished_at <= ? <kinds>
    ORDER BY f.finished_at, f.job_id LIMIT ? {skip_locked}"""

SOME_WAITING = """
    SELECT queue_id, ordering_key, precedence, due_at, job_id FROM {waiting}
    WHERE queue_id = ? AND lane_id IN (<kinds>) LIMIT ? {as_now}"""

STILL = """
    SELECT t.job_id FROM (<source>) w {join} {waiting} t {by_key}
        ON t.queue_id = w.queue_id AND t.ordering_key = w.ordering_key
       AND t.precedence = w.precedence AND t.due_at = w.due_at AND t.job_id = w.job_id {as_now}"""

SOME_READY = """
    SELECT lane_id, due_at, job_id FROM {ready} WHERE lane_id IN (<kinds>)
    LIMIT ? {skip_locked}"""

VOID = "UPDATE {locks} SET settled = ? WHERE token = ?"
