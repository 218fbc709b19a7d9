"""Settles: what becomes of claimed jobs, many in one transaction.

Every settle names the token of its lock and the job's place in it. It counts only if that lock is
there and the job has not left it; and, if the job has a key, only if the key still points to this
job, since whoever updated or dropped it meanwhile has made the lock void for it. A lock that has
expired holds until somebody gives its jobs back.

Locks are taken in this order: lock rows, keys, lines, permits; each sorted. So settles wait for
each other, but never in a circle.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

import msgspec

from rowmq.errors import AlreadySettled, StaleLease
from rowmq.store.claims import Claims, Entry, is_of
from rowmq.store.dialect import as_text
from rowmq.store.jobs import KEY_IDENTITY
from rowmq.store.lines import ReadyRow
from rowmq.store.postings import KeyIdentity, KeyRow
from rowmq.store.queues import Keeps
from rowmq.store.statement import Operation, Statement

__all__ = ["SAME_PLACE", "Held", "Kind", "Settle", "Settles", "refusal", "refused", "stale"]


class Kind(Enum):
    """What is done with a job."""

    ACK = "ack"
    NACK = "nack"
    REJECT = "reject"
    REFUSE = "refuse"
    """A reject before it was tried: no attempt is counted."""
    RELEASE = "release"
    EXTEND = "extend"


SAME_PLACE = -1
"""The delay of a nack that leaves the job where it stood in its lane."""


class Settle(msgspec.Struct, frozen=True, gc=False):
    """A job of a lock, and what is to be done with it."""

    kind: Kind
    token: int
    position: int
    queue: str
    queue_id: int
    entry: Entry
    job_kind: str
    key: str | None = None
    ordering_key: str | None = None
    delay_us: int = 0
    """Of a nack: when it is due again. Of an extension: how long the lock is to last."""
    error: str | None = None

    @property
    def plain(self) -> bool:
        """Whether it is done by its own lock row alone."""
        free = self.key is None and self.ordering_key is None and not self.entry.permit
        return free and self.kind is Kind.ACK

    @property
    def identity(self) -> KeyIdentity:
        """What its key is known by, if it has one."""
        return self.queue_id, str(self.key), self.job_kind


class Held(NamedTuple):
    """A locked lock row."""

    settled: str
    claimed_at: int
    now: int


class Settles:
    """The operations that settle, for one dialect."""

    def __init__(self, claims: Claims) -> None:
        self.claims = claims
        self.jobs = claims.jobs
        self.queues = claims.queues
        self.dialect = claims.dialect

    def settle(
        self,
        settles: Sequence[Settle],
        *,
        again: bool = False,
        alone: bool = False,
        whole: bool = False,
    ) -> Operation[list[Exception | None]]:
        """Settle jobs; None, or why not, for each. If the `whole` is asked for, all or none.

        `again` says that this may have been committed before, and its answer lost; `alone`, that
        the transaction is our own, with nothing else in it.
        """
        # A lock lasts as long as it was said to: an extension is never relaxed.
        alone = alone and all(settle.kind is not Kind.EXTEND for settle in settles)
        queue_ids = {settle.queue_id for settle in settles}
        yield from self.queues.seize(queue_ids, alone=alone)
        pairs = {(s.token, s.queue_id) for s in settles}
        held, keeps = yield from self.lock(pairs, alone=alone)
        outcomes = [refusal(settle, held.get(settle.token)) for settle in settles]
        keyed = [p for p, s in enumerate(settles) if s.key is not None and outcomes[p] is None]
        keys = yield from self.jobs.find_keys(sorted({settles[place].identity for place in keyed}))
        for place in keyed:
            settle = settles[place]
            if not is_of(keys.get(settle.identity), settle.entry.job_id):
                outcomes[place] = stale(settle)
        valid = [s for s, outcome in zip(settles, outcomes, strict=True) if outcome is None]
        if not whole or len(valid) == len(settles):
            yield from self.apply(valid, held, keys, keeps)
        if again:
            yield from self.forgive(settles, outcomes)
        yield from self.explain(settles, outcomes)
        return outcomes

    def settle_or_raise(
        self, settles: Sequence[Settle], doubtful: Callable[[int], bool]
    ) -> Operation[list[Exception | None]]:
        """Settle jobs; or raise why one cannot be, so that the caller's transaction fails.

        `doubtful` says at which places are those that were settled in a transaction before, of
        which nobody knows what became. It is asked once it matters: that may change meanwhile.
        """
        outcomes = yield from self.settle(settles, whole=True)
        for place, outcome in enumerate(outcomes):
            if outcome is None:
                continue
            doubted, settle = doubtful(place), settles[place]
            if isinstance(outcome, StaleLease if doubted else AlreadySettled):
                settled = yield from self.was_settled(settle, if_gone=doubted)
                raise refused(settle) if settled else stale(settle)
            raise outcome
        return outcomes

    def lock(
        self, pairs: Collection[tuple[int, int]], *, alone: bool
    ) -> Operation[tuple[dict[int, Held], Keeps]]:
        """Lock the rows of locks that are there, in order, by pairs of a token and a queue that has
        jobs in it; and what these queues keep, which saves a round trip.
        """
        columns = {"token": "bigint", "queue_id": "bigint"}
        rows = yield from self.queues.select(
            "settles.lock", LOCK, columns, sorted(pairs), alone=alone
        )
        held: dict[int, Held] = {}
        keeps: dict[int, tuple[bool, bool]] = {}
        for token, settled, claimed_at, now, queue_id, completed, failed, relaxed, *_ in rows:
            held[token] = Held(as_text(settled), claimed_at, now)
            if completed is not None:
                keeps[queue_id] = bool(completed), bool(failed)
                self.queues.note(bool(relaxed), queue_id)
        return held, keeps

    def apply(
        self,
        settles: Sequence[Settle],
        held: Mapping[int, Held],
        keys: Mapping[KeyIdentity, KeyRow],
        keeps: Keeps,
    ) -> Operation[None]:
        """Do what valid settles ask for."""
        if not settles:
            return
        extended = [settle for settle in settles if settle.kind is Kind.EXTEND]
        yield from self.extend(extended, held)
        leaving = [settle for settle in settles if settle.kind is not Kind.EXTEND]
        finished = [s for s in leaving if s.kind in FINISHING]
        yield from self.finish(finished, held, keeps)
        ready = [
            put_back(s, held[s.token].now) for s in leaving if s.kind in (Kind.NACK, Kind.RELEASE)
        ]
        yield from self.jobs.free_keys([keys[s.identity] for s in finished if s.key is not None])
        yield from self.note([s for s in leaving if s.kind is Kind.NACK], held)
        ready += yield from self.jobs.lines.leave(
            [((s.queue_id, s.ordering_key), s.entry.job_id) for s in finished if s.ordering_key]
        )
        yield from self.jobs.make_ready(ready)
        yield from self.claims.free_permits(
            [(s.queue_id, s.entry.permit, s.token) for s in leaving if s.entry.permit]
        )
        yield from self.mark(leaving, held)

    def finish(
        self, settles: Sequence[Settle], held: Mapping[int, Held], keeps: Keeps
    ) -> Operation[None]:
        """Archive jobs, or delete them, as their queues say."""
        if not settles:
            return
        completed, failed, dropped = [], [], []
        for s in settles:
            keep_completed, keep_failed = keeps.get(s.queue_id, KEPT)
            lock, entry = held[s.token], s.entry
            # Where the clock was set back meanwhile: a job is looked for from when it was due on.
            times = (max(lock.now, lock.claimed_at), lock.claimed_at)
            row = (s.queue_id, entry.job_id, *times, attempts_after(s), entry.deliveries)
            if s.kind is Kind.ACK and keep_completed:
                completed.append(row)
            elif s.kind is not Kind.ACK and keep_failed:
                failed.append((*row, s.error))
            else:
                dropped.append(entry.job_id)
        yield from self.queues.insert("settles.complete", "{completed}", COMPLETED, completed)
        yield from self.queues.insert("settles.fail", "{failed}", FAILED, failed)
        yield from self.jobs.delete_jobs(dropped)

    def note(self, settles: Sequence[Settle], held: Mapping[int, Held]) -> Operation[None]:
        """Note why attempts failed, and where keyed jobs will be ready next."""
        errors = [
            (
                s.entry.job_id,
                held[s.token].now,
                s.entry.attempts + 1,
                s.error,
                due_again(s, held[s.token].now),
            )
            for s in settles
        ]
        yield from self.jobs.note_errors("settles.note", errors)
        rows = [
            (*s.identity, due_again(s, held[s.token].now)) for s in settles if s.key is not None
        ]
        columns = KEY_IDENTITY | {"due_at": "bigint"}
        yield from self.queues.update(
            "settles.move_keys", "{job_keys}", columns, tuple(KEY_IDENTITY), rows
        )

    def mark(self, settles: Sequence[Settle], held: Mapping[int, Held]) -> Operation[None]:
        """Note in the locks which jobs have left; a lock without any is deleted."""
        marks: dict[int, list[str]] = {}
        for settle in settles:
            row = marks.get(settle.token)
            if row is None:
                row = marks[settle.token] = list(held[settle.token].settled)
            row[settle.position] = "1"
        left = [(token, "".join(row)) for token, row in sorted(marks.items()) if "0" in row]
        ended = [(token,) for token, row in sorted(marks.items()) if "0" not in row]
        columns = {"token": "bigint", "settled": "text"}
        yield from self.queues.update("settles.mark", "{locks}", columns, ("token",), left)
        yield from self.queues.delete("settles.unlock", "{locks}", {"token": "bigint"}, ended)

    def extend(self, settles: Sequence[Settle], held: Mapping[int, Held]) -> Operation[None]:
        """Have locks last at least so long from now on."""
        for s in settles:
            until = held[s.token].now + s.delay_us
            yield Statement("settles.extend", self.dialect.sql(EXTEND), (until, s.token, until))

    def keep(self, tokens: Iterable[int], lock_us: int) -> Operation[set[int]]:
        """Have locks last so long from now on. Those that are there, also if a settle has them just
        now: nobody is to wait for a handler's transaction here.
        """
        yield from self.dialect.seize()
        wanted = [(token,) for token in sorted(set(tokens))]
        by_token = {"token": "bigint"}
        free = yield from self.queues.select("settles.keep_lock", FREE, by_token, wanted)
        until = [(token, max(now + lock_us, locked)) for token, locked, now in free]
        columns = by_token | {"locked_until": "bigint"}
        yield from self.queues.update("settles.keep", "{locks}", columns, ("token",), until)
        kept = {token for token, *_ in free}
        missing = [row for row in wanted if row[0] not in kept]
        there = yield from self.queues.select("settles.is_locked", THERE, by_token, missing)
        return kept | {token for (token,) in there}

    def forgive(
        self, settles: Sequence[Settle], outcomes: list[Exception | None]
    ) -> Operation[None]:
        """What was refused because it had been done before was not refused.

        A nack or a release may have been done or not: either way the job comes again.
        """
        for place, settle in enumerate(settles):
            outcome = outcomes[place]
            done = settle.kind in (Kind.NACK, Kind.RELEASE)
            if outcome is not None and not done and settle.kind is not Kind.EXTEND:
                done = yield from self.is_done(settle)
            if done:
                outcomes[place] = None

    def explain(
        self, settles: Sequence[Settle], outcomes: list[Exception | None]
    ) -> Operation[None]:
        """A job that has left its lock was settled; or it was given back, and the lock stayed for
        others whose keys were busy.
        """
        for place, settle in enumerate(settles):
            left = isinstance(outcomes[place], AlreadySettled)
            if left and not (yield from self.was_settled(settle)):
                outcomes[place] = stale(settle)

    def was_settled(self, settle: Settle, *, if_gone: bool = True) -> Operation[bool]:
        """Whether the attempt at a job has an end: the job is done, or it was nacked. One that is
        gone may be done, or may have been dropped: whoever asks says what to make of that.
        """
        for kind in (Kind.ACK, Kind.REJECT):
            ended = msgspec.structs.replace(settle, kind=kind)
            if (yield from self.is_done(ended, if_gone=if_gone)):
                return True
        entry = settle.entry
        params = (entry.job_id, entry.due_at, entry.attempts + 1, entry.due_at)
        result = yield Statement("settles.is_noted", self.dialect.sql(IS_NOTED), params)
        return bool(result.rows)

    def is_done(self, settle: Settle, *, if_gone: bool = True) -> Operation[bool]:
        """Whether this settle of this delivery put a job into the archive: if the lock was lost,
        somebody else may have, and so may people who gave it up, which counts no attempt. A job
        that is gone says nothing: then it is as the caller says.
        """
        id, deliveries = settle.entry.job_id, settle.entry.deliveries
        sql = self.dialect.sql(IS_KEPT)
        kept = (yield Statement("settles.is_kept", sql, (id,))).rows
        if not kept:
            # Or it was updated; then its key has another job.
            keyed = [settle.identity] if settle.key is not None else []
            return if_gone and not (yield from self.jobs.seen_keys(keyed))
        if kept[0][0] > settle.entry.due_at:
            return False  # it was tried again since then, and its deliveries are counted anew
        if settle.kind is not Kind.ACK:
            sql = self.dialect.sql(IS_FAILED)
            params: tuple[int, ...] = (id, deliveries, attempts_after(settle))
            return bool((yield Statement("settles.is_failed", sql, params)).rows)
        sql = self.dialect.sql(IS_COMPLETED)
        params = (settle.queue_id, settle.entry.due_at, id, deliveries)
        return bool((yield Statement("settles.is_completed", sql, params)).rows)


def put_back(settle: Settle, now: int) -> ReadyRow:
    """The ready row of a job that was nacked, or given back as if it had never been claimed."""
    entry = settle.entry
    if settle.kind is Kind.RELEASE:
        return entry.ready._replace(deliveries=entry.deliveries - 1)
    return entry.ready._replace(due_at=due_again(settle, now), attempts=entry.attempts + 1)


def attempts_after(settle: Settle) -> int:
    """How many attempts at a job have ended when this settle has."""
    attempts = settle.entry.attempts
    return attempts if settle.kind is Kind.REFUSE else attempts + 1


def due_again(settle: Settle, now: int) -> int:
    """When a nacked job is due."""
    return settle.entry.due_at if settle.delay_us == SAME_PLACE else now + settle.delay_us


def refusal(settle: Settle, held: Held | None) -> Exception | None:
    """Why a settle cannot count, as far as its lock tells."""
    if held is None:
        return stale(settle)
    return refused(settle) if held.settled[settle.position] == "1" else None


def stale(settle: Settle) -> StaleLease:
    """The error of a settle whose lock is not there, or void."""
    return StaleLease(
        f"the lock on job {settle.entry.job_id} of queue {settle.queue!r} was lost, so this "
        f"{settle.kind.value} changed nothing: its time ran out and the job was given back, or the "
        f"job was updated or dropped, or given up, perhaps by this very transaction; give jobs a "
        f"longer lock_timeout, or extend() it in time"
    )


def refused(settle: Settle) -> AlreadySettled:
    """The error of a settle that comes second."""
    return AlreadySettled(
        f"job {settle.entry.job_id} of queue {settle.queue!r} was settled before; the first settle "
        f"stands"
    )


FINISHING = (Kind.ACK, Kind.REJECT, Kind.REFUSE)

KEPT = (True, True)
"""What a queue that is not there any more would keep."""

FINISHED = {
    "queue_id": "bigint",
    "job_id": "bigint",
    "finished_at": "bigint",
    "started_at": "bigint",
}
COUNTS = {"attempts": "integer", "deliveries": "integer"}
COMPLETED = FINISHED | COUNTS
FAILED = FINISHED | COUNTS | {"error": "text"}

# Subqueries, which a locking read leaves unlocked: nobody is to wait for a queue's settings.
LOCK = """
    SELECT l.token, l.settled, l.claimed_at, {now}, w.queue_id,
           (SELECT q.keep_completed FROM {queues} q WHERE q.id = w.queue_id),
           (SELECT q.keep_failed FROM {queues} q WHERE q.id = w.queue_id),
           (SELECT q.relaxed FROM {queues} q WHERE q.id = w.queue_id) AS relaxed
    FROM (<source>) w {join} {locks} l {by_key} ON l.token = w.token
    ORDER BY l.token {for_update}"""

FREE = """
    SELECT l.token, l.locked_until, {now} FROM (<source>) w
    {join} {locks} l {by_key} ON l.token = w.token
    ORDER BY l.token {skip_locked}"""

THERE = "SELECT l.token FROM (<source>) w {join} {locks} l {by_key} ON l.token = w.token"

EXTEND = "UPDATE {locks} SET locked_until = ? WHERE token = ? AND locked_until < ?"

IS_KEPT = "SELECT due_at FROM {jobs} WHERE id = ? {as_now}"

IS_FAILED = """
    SELECT job_id FROM {failed} WHERE job_id = ? AND deliveries = ? AND attempts = ? {as_now}"""

# Since it was due, and not later: one that was retried has the numbers of its attempts again.
IS_NOTED = """
    SELECT e.job_id FROM {job_errors} e {join} {jobs} j ON j.id = e.job_id
    WHERE e.job_id = ? AND e.failed_at >= ? AND e.attempt = ? AND j.due_at <= ? {as_now}"""

IS_COMPLETED = """
    SELECT job_id FROM {completed}
    WHERE queue_id = ? AND finished_at >= ? AND job_id = ? AND deliveries = ? LIMIT 1 {as_now}"""
