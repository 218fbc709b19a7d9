"""Receipts: what a claim is known by to whoever does not have the job itself, in any process.

A receipt names the token of a lock, which cannot be guessed, and the job's place in it. All else
that a settle needs is read from the lock, so that nothing that a receipt says has to be believed:
what it tells beside that must be what the lock has, or it is of nothing. When the lock is gone, the
archive has the job by the time at which it ended; for that nothing is looked at but the last day,
whatever a receipt says.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from rowmq.store.claims import ClaimedJob, Entry, OpenLane
from rowmq.store.dialect import as_text_or_none
from rowmq.store.jobs import JOB_ID
from rowmq.store.listing import Listing
from rowmq.store.statement import Operation, Row, Statement

__all__ = ["Claim", "Receipt", "Receipts"]

LOOKED_BACK_US = 86_400_000_000
"""How long a settle that is repeated is told to have been done before, if the job is completed."""


class Receipt(NamedTuple):
    """The place of a claimed job in its lock, and which delivery it is."""

    token: int
    position: int
    job_id: int
    attempts: int
    deliveries: int
    due_at: int
    since: int = 0
    """A time before it was claimed: what became of it did so later."""

    def is_of(self, entry: Entry) -> bool:
        """Whether it is the one of this delivery."""
        mine = (self.job_id, self.attempts, self.deliveries, self.due_at)
        return mine == (entry.job_id, entry.attempts, entry.deliveries, entry.due_at)


class Known(NamedTuple):
    """What a job's own row says of it, but for what is in it."""

    lane_id: int
    due_at: int
    key: str | None
    ordering_key: str | None


class Claim(NamedTuple):
    """A claimed job that a receipt stands for, without its payload, and its lane."""

    job: ClaimedJob
    lane: OpenLane


class Receipts:
    """The operations on receipts, for one dialect."""

    def __init__(self, listing: Listing) -> None:
        self.listing = listing
        self.queues = listing.archive.queues
        self.dialect = listing.dialect

    def find(
        self, queue: str, kinds: Collection[str] | None, receipts: Sequence[Receipt]
    ) -> Operation[list[Claim | bool]]:
        """What receipts of a queue stand for. Of those whose lock, or job, is gone: whether that is
        because this very delivery was settled.
        """
        entries = yield from self._entries({receipt.token for receipt in receipts})
        lanes = yield from self._lanes(queue, kinds)
        held = {r: entry for r in receipts if (entry := entry_of(r, entries, lanes)) is not None}
        jobs = yield from self._jobs(receipt.job_id for receipt in receipts)
        claims = {
            receipt: Claim(claimed(receipt, entry, jobs[entry.job_id]), lanes[entry.lane_id])
            for receipt, entry in held.items()
            if entry.job_id in jobs
        }
        lost = [
            receipt
            for receipt in receipts
            if receipt not in claims
            and (job := jobs.get(receipt.job_id)) is not None
            and job.lane_id in lanes
        ]
        settled = (yield from self._settled(lost, jobs, lanes)) if lost else set()
        return [claims.get(receipt, receipt in settled) for receipt in receipts]

    def _entries(self, tokens: Iterable[int]) -> Operation[dict[int, list[Entry]]]:
        """What locks were written for, by token."""
        wanted = [(token,) for token in sorted(tokens)]
        rows = yield from self.queues.select(
            "receipts.locks", LOCKS, {"token": "bigint"}, wanted, sole=True
        )
        return {
            token: [Entry(*values) for values in self.dialect.unpack(claimed)]
            for token, claimed in rows
        }

    def _lanes(self, queue: str, kinds: Collection[str] | None) -> Operation[dict[int, OpenLane]]:
        rows = yield from self.queues.list_lanes(queue)
        return {
            id: OpenLane(id, queue_id, queue, kind, precedence, False, None)
            for id, queue_id, kind, precedence in rows
            if kinds is None or kind in kinds
        }

    def _jobs(self, ids: Iterable[int]) -> Operation[dict[int, Known]]:
        """What is known of those jobs that are there."""
        wanted = [(id,) for id in sorted(set(ids))]
        rows = yield from self.queues.select(
            "receipts.jobs", KEYS, {"id": "bigint"}, wanted, sole=True
        )
        return {
            id: Known(lane_id, due_at, as_text_or_none(key), as_text_or_none(ordering_key))
            for id, lane_id, due_at, key, ordering_key in rows
        }

    def _settled(
        self, receipts: Sequence[Receipt], jobs: Mapping[int, Known], lanes: Mapping[int, OpenLane]
    ) -> Operation[set[Receipt]]:
        """Those whose deliveries have an end that can still be seen: nobody had the job since then,
        and an attempt was counted, which it is not if people have given the job up.

        Attempts and deliveries begin anew where people had it tried again; but then it is due later
        than it was for this delivery.
        """
        mine = [receipt for receipt in receipts if jobs[receipt.job_id].due_at <= receipt.due_at]
        ends: dict[tuple[int, int], int] = {}
        for look in (self._failed, self._ready, self._completed):
            found = {id for id, _ in ends}
            left = [receipt for receipt in mine if receipt.job_id not in found]
            rows = (yield from look(left, jobs, lanes)) if left else []
            ends |= {(id, deliveries): attempts for id, attempts, deliveries in rows}
        return {r for r in mine if ends.get((r.job_id, r.deliveries), 0) > r.attempts}

    def _failed(self, receipts: Sequence[Receipt], *_: Any) -> Operation[Sequence[Row]]:
        """Ids, attempts and deliveries of jobs that have failed for good."""
        ids = sorted({(receipt.job_id,) for receipt in receipts})
        return (yield from self.queues.select("receipts.failed", FAILED, JOB_ID, ids, sole=True))

    def _ready(
        self, receipts: Sequence[Receipt], jobs: Mapping[int, Known], *_: Any
    ) -> Operation[Sequence[Row]]:
        """The same of jobs that are to be tried again, where their notes say."""
        ids = {receipt.job_id for receipt in receipts}
        rows = [(jobs[id].lane_id, id) for id in sorted(ids)]
        columns = {"lane_id": "bigint", "job_id": "bigint"}
        return (yield from self.queues.select("receipts.ready", READY, columns, rows, sole=True))

    def _completed(
        self, receipts: Sequence[Receipt], _: Mapping[int, Known], lanes: Mapping[int, OpenLane]
    ) -> Operation[Sequence[Row]]:
        """The same of jobs that are done: by time, in one look for all of them, from when the first
        was claimed, or from a day ago.
        """
        (queue_id,) = {lane.queue_id for lane in lanes.values()}
        since = min(max(receipt.due_at, receipt.since) for receipt in receipts)
        rows: list[Row] = []
        for ids in self.queues.runs(sorted({receipt.job_id for receipt in receipts})):
            marks = ", ".join("?" for _ in ids)
            sql = self.dialect.sql(COMPLETED.replace("<ids>", marks))
            params = (queue_id, since, LOOKED_BACK_US, since, LOOKED_BACK_US, *ids)
            rows += yield Statement("receipts.completed", sql, params, sole=True)
        return rows


def claimed(receipt: Receipt, entry: Entry, job: Known) -> ClaimedJob:
    """A claimed job without what is in it."""
    return ClaimedJob(entry, receipt.position, 0, 0, job.key, job.ordering_key, None, b"")


def entry_of(
    receipt: Receipt, entries: Mapping[int, Sequence[Entry]], lanes: Mapping[int, OpenLane]
) -> Entry | None:
    """The entry that a receipt stands for, if its lock is there and has it, and it is of these
    lanes.
    """
    claimed = entries.get(receipt.token, ())
    if not 0 <= receipt.position < len(claimed):
        return None
    entry = claimed[receipt.position]
    return entry if receipt.is_of(entry) and entry.lane_id in lanes else None


LOCKS = "SELECT k.token, k.claimed FROM (<source>) w {join} {locks} k {by_key} ON k.token = w.token"

KEYS = """
    SELECT j.id, j.lane_id, j.due_at, j.job_key, j.ordering_key
    FROM (<source>) w {join} {jobs} j {by_key} ON j.id = w.id"""

FAILED = """
    SELECT f.job_id, f.attempts, f.deliveries
    FROM (<source>) w {join} {failed} f {by_key} ON f.job_id = w.job_id"""

READY = """
    SELECT r.job_id, r.attempts, r.deliveries FROM (<source>) w
    {join} {job_errors} e {by_key} ON e.job_id = w.job_id
    {join} {ready} r {by_key}
        ON r.lane_id = w.lane_id AND r.due_at = e.due_at AND r.job_id = w.job_id"""

COMPLETED = """
    SELECT job_id, attempts, deliveries FROM {completed}
    WHERE queue_id = ? AND finished_at >= (
        SELECT CASE WHEN ? >= {now} - ? THEN ? ELSE {now} - ? END
    ) AND job_id IN (<ids>)"""
