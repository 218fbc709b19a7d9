"""Jobs: put, offer by key, read and drop, as operations.

A job's row holds its payload and is written once. Beside it stands a narrow row that says where the
job is: in `ready`, in a lock, in the archive. Ids are taken in blocks before the work begins, so a
put whose answer was lost is known by them when it is repeated.

The row of a key in `job_keys` is what producers of one key meet at, and the settle of its job too:
whoever has locked it decides. An update is a new job in the place of the old one, under a new id;
so whatever lock the old one was in has nothing left to settle.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from rowmq.errors import (
    InvalidInput,
    KeyTaken,
    SerializationFailure,
    UniqueViolation,
)
from rowmq.message import Outcome
from rowmq.store.dialect import as_bytes, as_text, as_text_or_none
from rowmq.store.lines import READY, READY_KEY, TRIES_MAX, WAITING_KEY, Lines, Member, ReadyRow
from rowmq.store.postings import (
    KeyIdentity,
    KeyRow,
    Offer,
    Place,
    Posting,
    Stored,
    decide_all,
    in_same_line,
    refuse_oversized,
)
from rowmq.store.queues import IN_FLIGHT, Queues
from rowmq.store.statement import Operation, Row, Statement

__all__ = [
    "JOB_COLUMNS",
    "JOB_ID",
    "KEY",
    "KEY_IDENTITY",
    "Jobs",
    "OldIds",
    "repeated",
]


class OldIds(InvalidInput):
    """These ids were taken before those of jobs that the new ones are to stand behind. Nothing is
    written, and a caller's transaction goes on: newer ids will do.
    """


class Jobs:
    """The operations on jobs that are not, or need not be, claimed; for one dialect."""

    def __init__(self, queues: Queues, lines: Lines) -> None:
        self.queues = queues
        self.lines = lines
        self.dialect = queues.dialect

    # --- put --------------------------------------------------------------------------------------

    def put(
        self,
        postings: Sequence[Posting],
        ids: Sequence[int],
        *,
        again: bool = False,
        alone: bool = False,
        notify: Collection[str] = (),
    ) -> Operation[list[int]]:
        """Add jobs, all or none; when each is due.

        `again` says that this may have been committed before, and its answer lost; `alone`, that
        the transaction is our own, with nothing else in it. `notify` are the names by which pollers
        are to be woken, where the database has a way to.
        """
        yield from self.seize(postings, alone=alone)
        if again and (known := (yield from self.due_times(ids))):
            # All or none were written; those that are gone have been done already.
            return [known.get(id, next(iter(known.values()))) for id in ids]
        places = yield from self.places(postings, ids, alone=alone)
        yield from self.refuse_old_ids(places)
        yield from self.take_keys([place for place in places if place.posting.key is not None])
        yield from self.write(places)
        yield from self.tell(notify)
        return [place.due_at for place in places]

    def seize(self, postings: Iterable[Posting], *, alone: bool) -> Operation[None]:
        """Begin to write, relaxed if all the queues are."""
        names = {posting.lane for posting in postings} if alone else set()
        queues = {name.queue for name in names}
        yield from self.queues.seize(queues, names, alone=alone)

    def due_times(self, ids: Sequence[int]) -> Operation[dict[int, int]]:
        """When jobs are due, of those that are there."""
        rows = yield from self.queues.select(
            "jobs.find", FIND, {"id": "bigint"}, [(id,) for id in ids]
        )
        return {id: due_at for id, due_at in rows}  # noqa: C416 - rows are not known to be pairs

    def places(
        self, postings: Sequence[Posting], ids: Sequence[int], *, alone: bool = False
    ) -> Operation[list[Place]]:
        """Where postings are to stand, once no payload is too large."""
        names = {posting.lane for posting in postings}
        lanes, now = yield from self.queues.lanes(names, alone=alone)
        refuse_oversized(postings, lanes)
        return [
            Place(p, id, lanes[p.lane], now + p.delay_us if p.at is None else p.at, now)
            for p, id in zip(postings, ids, strict=True)
        ]

    def refuse_old_ids(self, places: Sequence[Place]) -> Operation[None]:  # noqa: ARG002 - for a dialect
        """Raise `OldIds` if a job for now would stand in front of one that was put before it: for a
        clock that does not tell their times apart, so that ids decide.
        """
        yield from ()

    def take_keys(self, places: Sequence[Place]) -> Operation[None]:
        """Make keys point to new jobs; `KeyTaken` if one has a live job."""
        if not places:
            return
        held = yield from self.lock_keys([place.key for place in places])
        taken = [p for p in places if held[p.key.identity].job_id != p.job_id]
        if any(held[p.key.identity] != p.key for p in places if p not in taken):
            raise repeated("with another time")
        if taken:
            # Whoever catches the error may go on: nothing of this is to stay.
            yield from self.free_keys({place.key for place in places if place not in taken})
            raise KeyTaken(
                f"queue {taken[0].posting.lane.queue!r} has a live job with the key "
                f"{taken[0].posting.key!r}: offer_or_update() replaces it, offer_if_not_exists() "
                f"leaves it alone (in Spark: onConflict, update or ignore)"
            )

    def lock_keys(self, rows: Iterable[KeyRow]) -> Operation[dict[KeyIdentity, KeyRow]]:
        """Lock the rows of keys, making those that are missing; as they stand now.

        Inserted first and read afterwards: to lock a row that is missing may lock others out of a
        whole gap. A row that vanishes in between is inserted again.
        """
        wanted = {row.identity: row for row in sorted(rows)}
        held: dict[KeyIdentity, KeyRow] = {}
        for _ in range(TRIES_MAX):
            missing = [row for identity, row in wanted.items() if identity not in held]
            if not missing:
                return held
            ending = self.dialect.unless_there("job_id")
            yield from self.queues.insert("jobs.take_keys", "{job_keys}", KEY, missing, ending)
            held |= yield from self.find_keys([row.identity for row in missing])
        raise SerializationFailure("a key was made and taken away again and again")

    def find_keys(
        self, identities: Sequence[KeyIdentity], *, skip: bool = False
    ) -> Operation[dict[KeyIdentity, KeyRow]]:
        """Lock the rows of those keys that have a live job; `skip` leaves out what others have
        locked.
        """
        template = LOCK_KEYS.replace("<lock>", "{skip_locked}" if skip else "{for_update}")
        found = yield from self.queues.select(
            "jobs.lock_keys", template, KEY_IDENTITY, sorted(identities)
        )
        rows = [KeyRow(q, as_text(key), as_text(kind), *rest) for q, key, kind, *rest in found]
        return {row.identity: row for row in rows}

    def seen_keys(self, identities: Sequence[KeyIdentity]) -> Operation[set[KeyIdentity]]:
        """Those of the keys that have a row, whoever has locked it."""
        template = LOCK_KEYS.replace("<lock>", "")
        found = yield from self.queues.select(
            "jobs.seen_keys", template, KEY_IDENTITY, sorted(identities)
        )
        return {(queue_id, as_text(key), as_text(kind)) for queue_id, key, kind, *_ in found}

    def write(self, places: Sequence[Place]) -> Operation[None]:
        """Write jobs whose keys are taken, and make ready what may be."""
        sizes = (place.posting.size for place in places)
        for run in self.dialect.chunks(places, sizes):
            sql, params = self.dialect.insert_into("{jobs}", JOB, [job_row(p) for p in run])
            try:
                yield Statement("jobs.insert", self.dialect.sql(sql), params)
            except UniqueViolation as error:
                raise repeated(error) from error
        free = [p for p in places if p.posting.ordering_key is None]
        ready = [ReadyRow(place.lane.id, place.due_at, place.job_id) for place in free]
        ready += yield from self.lines.join(
            [place.member for place in places if place.posting.ordering_key is not None]
        )
        yield from self.make_ready(ready)

    def make_ready(self, rows: Sequence[ReadyRow]) -> Operation[None]:
        """Have jobs be claimed when they are due."""
        yield from self.queues.insert("jobs.ready", "{ready}", READY, rows)

    def tell(self, names: Collection[str]) -> Operation[None]:  # noqa: ARG002 - for a dialect
        """Wake those who wait for these names, at the commit, where there is a way to."""
        yield from ()

    # --- offer ------------------------------------------------------------------------------------

    def offer(
        self,
        offers: Sequence[Offer],
        ids: Sequence[int],
        *,
        memo: list[Outcome],
        alone: bool = False,
        notify: Collection[str] = (),
    ) -> Operation[list[Outcome]]:
        """Create, update or leave alone the jobs of keys, one after the other.

        What is decided is noted in `memo`: if that is there when it begins, this may have been
        committed before. `alone` and `notify` are as for `put`.
        """
        postings = [offer.posting for offer in offers]
        yield from self.seize(postings, alone=alone)
        if memo and (yield from self.due_times(ids)):
            return list(memo)
        places = yield from self.places(postings, ids, alone=alone)
        firsts: dict[KeyIdentity, Place] = {}
        for place in places:
            firsts.setdefault(place.key.identity, place)
        held = yield from self.lock_keys([place.key for place in firsts.values()])
        old = {i: row for i, row in held.items() if row.job_id != firsts[i].job_id}
        stored = yield from self.stored([row.job_id for row in old.values()])
        current = {i: stored[row.job_id] for i, row in old.items() if row.job_id in stored}
        outcomes, final = decide_all(offers, places, current)
        # Whichever offer of a key stands in the end, it has the id that the key was made with.
        final = {i: place._replace(job_id=firsts[i].job_id) for i, place in final.items()}
        created = [place for i, place in final.items() if i not in old]
        updated = [in_same_line(p, current.get(i)) for i, p in final.items() if i in old]
        try:
            yield from self.refuse_old_ids(updated)
        except OldIds:
            # In a caller's transaction, nothing of this is to stay.
            yield from self.free_keys(row for i, row in held.items() if i not in old)
            raise
        yield from self.remove([(old[i], current.get(i)) for i in final if i in old])
        # A key that is new points to where the first of its batch was to be.
        keys = [p.key for p in (*created, *updated) if p.key != held[p.key.identity]]
        yield from self.queues.update(
            "jobs.move_keys", "{job_keys}", KEY, tuple(KEY_IDENTITY), keys
        )
        yield from self.write([*created, *updated])
        yield from self.tell(notify)
        memo[:] = outcomes
        return outcomes

    def stored(
        self, ids: Iterable[int], *, only_look: bool = False
    ) -> Operation["dict[int, Stored]"]:
        """What jobs are, by id: as it is now, or, to only look, as this transaction sees it."""
        template = STORED if only_look else STORED + " {as_now}"
        wanted = [(id,) for id in sorted(set(ids))]
        rows = yield from self.queues.select(
            "jobs.stored", template, {"id": "bigint"}, wanted, sole=only_look
        )
        lanes = yield from self.lanes_of({row[1] for row in rows})
        return {row[0]: stored_of(row, lanes[row[1]]) for row in rows}

    def lanes_of(self, ids: Collection[int]) -> Operation[dict[int, tuple[int, str, int]]]:
        """Queue, kind and precedence of lanes. They never change, so nobody is to wait for them;
        only one that is newer than the caller's snapshot is read as it is now.
        """
        found: dict[int, tuple[int, str, int]] = {}
        for template in (LANES, LANES + " {as_now}"):
            missing = [(id,) for id in sorted(ids) if id not in found]
            for id, queue_id, kind, precedence in (
                yield from self.queues.select(
                    "jobs.lanes", template, {"id": "bigint"}, missing, sole=True
                )
            ):
                found[id] = (queue_id, as_text(kind), precedence)
        return found

    # --- read and drop ----------------------------------------------------------------------------

    def find(
        self, queue: str, key: str, kinds: Collection[str] | None, *, only_look: bool = True
    ) -> Operation[list[KeyRow]]:
        """The rows of a key in a queue, of these kinds or all."""
        params = (self.dialect.text(queue), self.dialect.text(key))
        # Not to be shared at first: two who do that, and then want it for themselves, wait in vain.
        sql = self.dialect.sql(FIND_KEY if only_look else FIND_KEY + " {for_update}")
        result = yield Statement("jobs.find_key", sql, params, sole=only_look)
        rows = [KeyRow(q, as_text(k), as_text(kind), *rest) for q, k, kind, *rest in result]
        return sorted(row for row in rows if kinds is None or row.kind in kinds)

    def drop(self, queue: str, key: str, kinds: Collection[str] | None) -> Operation[list[int]]:
        """Delete the live jobs of a key, also those that are claimed, whose locks become void;
        which ones.
        """
        yield from self.dialect.seize()
        found = yield from self.find(queue, key, kinds, only_look=False)
        held = yield from self.find_keys([row.identity for row in found])
        stored = yield from self.stored(row.job_id for row in held.values())
        yield from self.remove([(row, stored.get(row.job_id)) for row in held.values()])
        yield from self.free_keys(held.values())
        return sorted(row.job_id for row in held.values())

    def remove(self, jobs: Sequence[tuple[KeyRow, "Stored | None"]]) -> Operation[None]:
        """Delete jobs whose keys are locked, wherever they stand; but not the keys."""
        yield from self.queues.delete(
            "jobs.unready", "{ready}", READY_KEY, [row.ready for row, _ in jobs]
        )
        yield from self.unline(
            [
                Member(row.queue_id, s.ordering_key, s.precedence, row.due_at, s.id, row.lane_id)
                for row, s in jobs
                if s is not None and s.ordering_key is not None
            ]
        )
        yield from self.delete_jobs([row.job_id for row, _ in jobs])
        for row, _ in jobs:
            yield from self.free_permit(row)

    def free_permit(self, row: KeyRow) -> Operation[None]:
        """Let the permit of a claimed job be used again, if it has one."""
        params = (row.queue_id, IN_FLIGHT, row.job_id)
        # Found by a plain read, and freed by its key: a scan would lock all others.
        result = yield Statement("jobs.find_permit", self.dialect.sql(FIND_PERMIT), params)
        for (number,) in result:
            sql = self.dialect.sql(FREE_PERMIT)
            yield Statement("jobs.free_permit", sql, (*params[:2], number, row.job_id))

    def unline(self, members: Sequence[Member]) -> Operation[None]:
        """Take jobs out of their lines; who comes after a head is made ready."""
        # Under the lines' locks: somebody may be moving up just now.
        yield from self.lines.lock([member.line for member in members], create=False)
        rows = [member.waiting_key for member in members]
        yield from self.queues.delete("lines.drop", "{waiting}", WAITING_KEY, rows)
        ready = yield from self.lines.leave([(member.line, member.job_id) for member in members])
        yield from self.make_ready(ready)

    def free_keys(self, rows: Iterable[KeyRow]) -> Operation[None]:
        """Let keys be used again."""
        identities = sorted(row.identity for row in rows)
        yield from self.queues.delete("jobs.free_keys", "{job_keys}", KEY_IDENTITY, identities)

    def note_errors(
        self, name: str, rows: Sequence[tuple[int, int, int, str | None, int | None]]
    ) -> Operation[None]:
        """Write down why attempts failed, and when the next ones are due: rows of JOB_ERROR.

        The attempts of a job that is retried are counted anew, and the clock may not have moved, or
        was set back: of two that have the same number at the same time, the last is told.
        """
        keys = tuple(JOB_ATTEMPT)
        for run in self.queues.runs(rows):
            source, params = self.dialect.given(JOB_ERROR, run)
            sql = self.dialect.upsert_from("{job_errors}", source, keys, ("error", "due_at"))
            yield Statement(name, self.dialect.sql(sql), params)

    def set_due(self, rows: Sequence[tuple[int, int]]) -> Operation[None]:
        """Note when jobs are due that people have moved, by id: from there on they are found."""
        yield from self.queues.update("jobs.set_due", "{jobs}", JOB_DUE, ("id",), rows)

    def delete_jobs(self, ids: Iterable[int]) -> Operation[None]:
        """Delete jobs, and what is written of their attempts."""
        rows = [(id,) for id in sorted(ids)]
        for table in ("{job_errors}", "{holds}"):
            yield from self.queues.discard("jobs.delete_traces", table, JOB_ID, rows)
        yield from self.queues.discard("jobs.delete", "{jobs}", {"id": "bigint"}, rows)


def stored_of(row: Row, lane: tuple[int, str, int]) -> Stored:
    id, lane_id, due_at, data, encoding, headers, key, ordering_key = row
    queue_id, kind, precedence = lane
    return Stored(
        id=id,
        queue_id=queue_id,
        lane_id=lane_id,
        due_at=due_at,
        data=as_bytes(data),
        encoding=encoding,
        headers=as_text_or_none(headers),
        key=as_text_or_none(key),
        ordering_key=as_text_or_none(ordering_key),
        kind=kind,
        precedence=precedence,
    )


def repeated(error: UniqueViolation | str) -> SerializationFailure:
    """Ids are given once: such a job is there only if an earlier try is being committed."""
    return SerializationFailure(f"these jobs are being committed; look again ({error})")


def job_row(place: Place) -> tuple[Any, ...]:
    p = place.posting
    return (
        place.job_id,
        place.created_at,
        place.due_at,
        place.lane.id,
        p.encoding,
        p.key,
        p.ordering_key,
        p.headers,
        p.data,
    )


JOB_ID = {"job_id": "bigint"}
JOB_ATTEMPT = JOB_ID | {"failed_at": "bigint", "attempt": "integer"}
JOB_ERROR = JOB_ATTEMPT | {"error": "text", "due_at": "bigint"}
JOB_DUE = {"id": "bigint", "due_at": "bigint"}
KEY_IDENTITY = {"queue_id": "bigint", "job_key": "text", "kind": "text"}
KEY = KEY_IDENTITY | {"job_id": "bigint", "lane_id": "bigint", "due_at": "bigint"}

JOB = {
    "id": "bigint",
    "created_at": "bigint",
    "due_at": "bigint",
    "lane_id": "bigint",
    "encoding": "smallint",
    "job_key": "text",
    "ordering_key": "text",
    "headers": "text",
    "payload": "bytea",
}

JOB_COLUMNS = """j.id, j.created_at, j.due_at, j.encoding, j.job_key, j.ordering_key, j.headers,
    j.payload"""

FIND = """
    SELECT j.id, j.due_at FROM (<source>) w {join} {jobs} j {by_key} ON j.id = w.id {as_now}"""

STORED = """
    SELECT j.id, j.lane_id, j.due_at, j.payload, j.encoding, j.headers, j.job_key, j.ordering_key
    FROM (<source>) w {join} {jobs} j {by_key} ON j.id = w.id"""

LANES = """
    SELECT l.id, l.queue_id, l.kind, l.precedence
    FROM (<source>) w {join} {lanes} l {by_key} ON l.id = w.id"""

LOCK_KEYS = """
    SELECT k.queue_id, k.job_key, k.kind, k.job_id, k.lane_id, k.due_at FROM (<source>) w
    {join} {job_keys} k {by_key}
        ON k.queue_id = w.queue_id AND k.job_key = w.job_key AND k.kind = w.kind
    ORDER BY k.queue_id, k.job_key, k.kind <lock>"""

FIND_PERMIT = """
    SELECT number FROM {permits} WHERE queue_id = ? AND purpose = ? AND job_id = ?"""

FREE_PERMIT = """
    UPDATE {permits} SET free_at = 0, token = 0, job_id = NULL
    WHERE queue_id = ? AND purpose = ? AND number = ? AND job_id = ?"""

FIND_KEY = """
    SELECT k.queue_id, k.job_key, k.kind, k.job_id, k.lane_id, k.due_at
    FROM {job_keys} k
    WHERE k.queue_id = (SELECT q.id FROM {queues} q WHERE q.queue = ?) AND k.job_key = ?
    ORDER BY k.kind"""
