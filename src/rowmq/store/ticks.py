"""Ticks: what has fired, or was put ahead of time, remembered so that it is made once.

A tick is known by its queue, its name, its time and its part. Those of schedules have no queue: the
schedule's own row says when they fire. Those that are put ahead of time are jobs that are due
later; each belongs to a configuration, by its hash, and a new configuration takes the place of what
others of the same prefix have put and nobody has claimed. All of that is found by equality, never
by a pattern, so that no name can be mistaken for another.

Whoever puts or removes ticks of a queue locks the queue's row first: they come one after the other.
A job of theirs is removed only if it can be locked where it waits. If not, somebody has it.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from rowmq.message import Outcome
from rowmq.store.dialect import as_text
from rowmq.store.jobs import Jobs
from rowmq.store.lines import READY_KEY
from rowmq.store.postings import Place, Posting, Stored
from rowmq.store.statement import Operation, Row, Statement

__all__ = ["KEPT_US", "Owner", "Tick", "TickRow", "Ticks"]

KEPT_US = 30 * 86_400 * 1_000_000
"""How long a tick is remembered, from its time on. One that is older is never made."""

FORGET_BATCH = 1_000

NO_QUEUE = ""
NO_PART = ""
"""What stands for a schedule's own ticks: an empty name is refused, so it is free."""

Identity = tuple[int, str]
"""Time and part: what is unique under one queue and prefix."""


class Tick(NamedTuple):
    """A job to be put ahead of time."""

    fire_at: int
    part: str
    posting: Posting
    can_update: bool

    @property
    def identity(self) -> Identity:
        return self.fire_at, self.part


class Owner(NamedTuple):
    """Whose ticks: the queue they are put into, their prefix, and the configuration's hash."""

    queue: str
    prefix: str
    config_hash: str


class TickRow(NamedTuple):
    """A tick that is remembered."""

    fire_at: int
    part: str
    config_hash: str
    job_id: int | None
    lane_id: int | None
    moved_to: int | None = None
    """When its job is due, if people have moved it."""

    @property
    def identity(self) -> Identity:
        return self.fire_at, self.part

    @property
    def ready(self) -> tuple[int | None, int, int | None]:
        """Where its job is, if nobody has claimed it."""
        due_at = self.fire_at if self.moved_to is None else self.moved_to
        return self.lane_id, due_at, self.job_id


class Ticks:
    """The operations on ticks, for one dialect."""

    def __init__(self, jobs: Jobs) -> None:
        self.jobs = jobs
        self.queues = jobs.queues
        self.dialect = jobs.dialect

    def take(
        self, name: str, config_hash: str, fires: Mapping[int, int | None], now: int
    ) -> Operation[set[int]]:
        """Remember ticks of a schedule, whose row is locked, and the jobs they make, by their
        times; which of them are new.
        """
        keys = [(NO_QUEUE, name, fire_at, NO_PART) for fire_at in fires]
        rows = yield from self.queues.select("ticks.find", FIND, KEY, keys)
        known = {row[0] for row in rows}
        fresh = [
            (NO_QUEUE, name, fire_at, NO_PART, now, job_id, None, config_hash)
            for fire_at, job_id in fires.items()
            if fire_at not in known
        ]
        yield from self.queues.insert("ticks.insert", "{ticks}", COLUMNS, fresh)
        return set(fires) - known

    # --- put ahead of time ------------------------------------------------------------------------

    def install(
        self,
        owner: Owner,
        ticks: Sequence[Tick],
        ids: Sequence[int],
        *,
        memo: list[Outcome],
        notify: Collection[str] = (),
    ) -> Operation[list[Outcome]]:
        """Put jobs ahead of time, in the place of those that other configurations have put.

        What is decided is noted in `memo`: if that is there when it begins, this may have been
        committed before, which the ids of the jobs show.
        """
        yield from self.dialect.seize()
        yield from self.queues.create_queues([owner.queue])
        yield from self._lock_queue(owner.queue)
        places = yield from self.jobs.places([tick.posting for tick in ticks], ids)
        now = yield from self.dialect.clock("ticks.now")
        held = yield from self._held(owner, ticks)
        if memo and any(row.job_id in ids for row in held.values()):
            return list(memo)
        ahead = yield from self._ahead(owner, now)
        gone = yield from self._withdraw([r for r in ahead if r.config_hash != owner.config_hash])
        yield from self._forget(owner, gone)
        for row in gone:
            held.pop(row.identity, None)
        open = yield from self._open(owner, ticks, held)
        outcomes, final = decide(ticks, held, open, oldest=now - KEPT_US)
        yield from self._write(owner, [places[n] for n in final], [ticks[n] for n in final], held)
        yield from self.jobs.tell(notify)
        memo[:] = outcomes
        return outcomes

    def uninstall(self, owner: Owner, *, memo: list[int]) -> Operation[int]:
        """Remove the jobs of one configuration that nobody has claimed; how many.

        That is noted in `memo`: a repeat that finds none may have been committed before.
        """
        yield from self.dialect.seize()
        if not (yield from self._lock_queue(owner.queue)):
            return 0
        params = [self.dialect.text(value) for value in owner]
        sql = self.dialect.sql(OF_OWNER)
        rows = [row_of(row) for row in (yield Statement("ticks.of_owner", sql, params))]
        gone = yield from self._withdraw(rows)
        yield from self._forget(owner, gone)
        memo[:] = [len(gone) or sum(memo)]
        return sum(memo)

    def _lock_queue(self, queue: str) -> Operation[bool]:
        params = (self.dialect.text(queue),)
        found = yield Statement("ticks.lock_queue", self.dialect.sql(LOCK_QUEUE), params)
        return bool(found.rows)

    def _ahead(self, owner: Owner, now: int) -> Operation[list[TickRow]]:
        """What is not due yet, of all configurations."""
        params = (self.dialect.text(owner.queue), self.dialect.text(owner.prefix), now)
        found = yield Statement("ticks.ahead", self.dialect.sql(AHEAD), params)
        return [row_of(row) for row in found]

    def _held(self, owner: Owner, ticks: Sequence[Tick]) -> Operation[dict[Identity, TickRow]]:
        """What is remembered of ticks."""
        keys = sorted({(owner.queue, owner.prefix, *tick.identity) for tick in ticks})
        rows = yield from self.queues.select("ticks.find", FIND, KEY, keys)
        found = [row_of(row) for row in rows]
        return {row.identity: row for row in found}

    def _open(
        self, owner: Owner, ticks: Sequence[Tick], held: dict[Identity, TickRow]
    ) -> Operation[dict[Identity, Stored]]:
        """The jobs that may be changed: of this configuration, and claimed by nobody. Where they
        are is noted in `held`.
        """
        asked = {tick.identity for tick in ticks if tick.can_update}
        mine = [
            row for i, row in held.items() if i in asked and row.config_hash == owner.config_hash
        ]
        locked = yield from self._lock_ready(mine)
        held |= {row.identity: row for row in locked}
        stored = yield from self.jobs.stored([row.job_id for row in locked if row.job_id])
        return {row.identity: stored[row.job_id] for row in locked if row.job_id in stored}

    def _write(
        self,
        owner: Owner,
        places: Sequence[Place],
        ticks: Sequence[Tick],
        held: Mapping[Identity, TickRow],
    ) -> Operation[None]:
        """Write jobs, in the place of those that are held, and remember them."""
        replaced = [held[tick.identity] for tick in ticks if tick.identity in held]
        yield from self._delete_jobs(replaced)
        yield from self._forget(owner, replaced)
        rows = [
            (
                *(owner.queue, owner.prefix, tick.fire_at, tick.part),
                *(place.created_at, place.job_id, place.lane.id, owner.config_hash),
            )
            for tick, place in zip(ticks, places, strict=True)
        ]
        yield from self.queues.insert("ticks.insert", "{ticks}", COLUMNS, sorted(rows))
        yield from self.jobs.write(places)

    def _withdraw(self, rows: Sequence[TickRow]) -> Operation[list[TickRow]]:
        """Delete the jobs of ticks, of those that nobody has claimed; which ones."""
        locked = yield from self._lock_ready(rows)
        yield from self._delete_jobs(locked)
        return locked

    def _lock_ready(self, rows: Sequence[TickRow]) -> Operation[list[TickRow]]:
        """Lock the jobs of ticks where they wait; those that are there and that nobody has."""
        locked = yield from self._lock_there([row for row in rows if row.job_id is not None])
        there = {row.job_id for row in locked}
        moved = yield from self._moved([row for row in rows if row.job_id not in there])
        return [*locked, *(yield from self._lock_there(moved))]

    def _lock_there(self, rows: Sequence[TickRow]) -> Operation[list[TickRow]]:
        wanted = sorted(row.ready for row in rows)
        found = yield from self.queues.select("ticks.lock_ready", LOCK_READY, READY_KEY, wanted)
        locked = {row[0] for row in found}
        return [row for row in rows if row.job_id in locked]

    def _moved(self, rows: Sequence[TickRow]) -> Operation[list[TickRow]]:
        """Those whose jobs people have moved to another time. A plain look: who moves one just now
        has it.
        """
        ids = sorted({(row.job_id,) for row in rows if row.job_id is not None})
        found = yield from self.queues.select("ticks.due", DUE, {"id": "bigint"}, ids)
        dues = {id: due_at for id, due_at in found}  # noqa: C416 - rows are not known to be pairs
        moved = [row._replace(moved_to=dues.get(row.job_id)) for row in rows]
        return [row for row in moved if row.moved_to not in (None, row.fire_at)]

    def _delete_jobs(self, rows: Sequence[TickRow]) -> Operation[None]:
        """Delete jobs whose ready rows are locked."""
        ready = sorted(row.ready for row in rows)
        yield from self.queues.delete("ticks.unready", "{ready}", READY_KEY, ready)
        yield from self.jobs.delete_jobs([row.job_id for row in rows if row.job_id is not None])

    def _forget(self, owner: Owner, rows: Sequence[TickRow]) -> Operation[None]:
        keys = sorted((owner.queue, owner.prefix, *row.identity) for row in rows)
        yield from self.queues.delete("ticks.delete", "{ticks}", KEY, keys)

    # --- forget -----------------------------------------------------------------------------------

    def forget(self) -> Operation[int]:
        """Delete a batch of the ticks that are too old to be made again; how many."""
        yield from self.dialect.seize()
        now = yield from self.dialect.clock("ticks.now")
        params = (now - KEPT_US, FORGET_BATCH)
        found = yield Statement("ticks.old", self.dialect.sql(OLD), params)
        keys = sorted((as_text(q), as_text(n), at, as_text(part)) for q, n, at, part in found)
        yield from self.queues.delete("ticks.delete", "{ticks}", KEY, keys)
        return len(keys)


def decide(
    ticks: Sequence[Tick],
    held: Mapping[Identity, TickRow],
    open: Mapping[Identity, Stored],
    *,
    oldest: int,
) -> tuple[list[Outcome], list[int]]:
    """The outcome of each tick, in their order, and the numbers of those that are to be written."""
    outcomes = [Outcome.IGNORED] * len(ticks)
    final: dict[Identity, int] = {}
    for number, tick in enumerate(ticks):
        identity = tick.identity
        earlier = ticks[final[identity]] if identity in final else None
        if tick.fire_at < oldest:
            continue
        if earlier is None and identity not in held:
            outcomes[number], final[identity] = Outcome.CREATED, number
        elif tick.can_update and differs(tick, earlier, open.get(identity)):
            outcomes[number], final[identity] = Outcome.UPDATED, number
    return outcomes, list(final.values())


def differs(tick: Tick, earlier: Tick | None, stored: Stored | None) -> bool:
    """Whether a tick would change what an earlier one of its batch made, or what is stored."""
    new = tick.posting
    if earlier is not None:
        return new != earlier.posting
    if stored is None:
        return False  # it may not be changed
    told = (stored.data, stored.encoding, stored.headers, stored.precedence)
    return told != (new.data, new.encoding, new.headers, new.lane.precedence)


def row_of(row: Row) -> TickRow:
    fire_at, part, config_hash, job_id, lane_id = row
    return TickRow(fire_at, as_text(part), as_text(config_hash), job_id, lane_id)


KEY = {"queue": "text", "name": "text", "fire_at": "bigint", "part": "text"}
COLUMNS: dict[str, Any] = KEY | {
    "fired_at": "bigint",
    "job_id": "bigint",
    "lane_id": "bigint",
    "config_hash": "text",
}

_COLUMNS = "t.fire_at, t.part, t.config_hash, t.job_id, t.lane_id"

FIND = f"""
    SELECT {_COLUMNS} FROM (<source>) w {{join}} {{ticks}} t {{by_key}}
        ON t.queue = w.queue AND t.name = w.name AND t.fire_at = w.fire_at AND t.part = w.part
    {{as_now}}"""

AHEAD = f"""
    SELECT {_COLUMNS} FROM {{ticks}} t
    WHERE t.queue = ? AND t.name = ? AND t.fire_at > ? ORDER BY t.fire_at, t.part {{as_now}}"""

OF_OWNER = f"""
    SELECT {_COLUMNS} FROM {{ticks}} t
    WHERE t.queue = ? AND t.name = ? AND t.config_hash = ? ORDER BY t.fire_at, t.part {{as_now}}"""

LOCK_QUEUE = "SELECT id FROM {queues} WHERE queue = ? {for_update}"

LOCK_READY = """
    SELECT r.job_id FROM (<source>) w {join} {ready} r {by_key}
        ON r.lane_id = w.lane_id AND r.due_at = w.due_at AND r.job_id = w.job_id {skip_locked}"""

DUE = "SELECT j.id, j.due_at FROM (<source>) w {join} {jobs} j {by_key} ON j.id = w.id"

OLD = """
    SELECT queue, name, fire_at, part FROM {ticks} WHERE fire_at < ? ORDER BY fire_at LIMIT ?"""
