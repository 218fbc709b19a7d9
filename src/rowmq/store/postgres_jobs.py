"""PostgreSQL's own shapes for jobs: put, claim and ack in one statement each.

A statement by itself needs no BEGIN and no COMMIT: one round trip, and locks are held only while it
commits. Rows of `ready` are deleted by where they lie, which can be no scan, whatever the planner
believes; and only what that gives back is claimed. What is more than the usual case goes the way
that all databases have in common.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from rowmq.errors import RowMQError, UniqueViolation
from rowmq.store.claims import CLAIM_MAX, ClaimedJob, Claims, Cursor, Entry, OpenLane
from rowmq.store.jobs import KEY, Jobs, repeated
from rowmq.store.postings import KeyIdentity, KeyRow, Posting
from rowmq.store.queues import IDS_A_BLOCK, LaneName, Queues
from rowmq.store.settles import Settle, Settles, refused, stale
from rowmq.store.statement import Operation, Statement
from rowmq.store.topics import PAYLOAD_BYTES_DEFAULT

__all__ = ["PostgresClaims", "PostgresJobs", "PostgresQueues", "PostgresSettles"]


class PostgresQueues(Queues):
    ids_roll_back = True
    relaxes = True

    def relaxing(self, template: str, params: list[Any], rows: int) -> tuple[str, list[Any]]:
        return RELAXING.replace("<query>", template), [*params, rows]

    def reserve(self) -> Operation[int]:
        # The sequence of a table that stays empty: nobody waits. It is logged ahead for many values
        # at a time, by whoever comes to the first of them, and that may not be on the disk yet. So
        # that no crash gives these ids to another client, the log has a record of ours to flush.
        sql = self.dialect.sql(RESERVE_LOGGED)
        result = yield Statement("queues.reserve", sql, sole=True)
        return int(result.rows[0][0]) * IDS_A_BLOCK


RESERVE_LOGGED = """
    SELECT nextval(pg_get_serial_sequence('{job_ids}', 'id')),
           pg_logical_emit_message(true, 'rowmq', '')::text"""


class PostgresJobs(Jobs):
    def put(
        self,
        postings: Sequence[Posting],
        ids: Sequence[int],
        *,
        again: bool = False,
        alone: bool = False,
        notify: Collection[str] = (),
    ) -> Operation[list[int]]:
        runs = list(self.dialect.chunks(postings, (posting.size for posting in postings)))
        if not again and len(runs) == 1 and all(posting.plain for posting in postings):
            sql = self.dialect.sql(PUT[alone, bool(notify)])
            params = put_params(postings, ids)
            if notify:
                params.append(sorted(notify))
            try:
                result = yield Statement("jobs.put", sql, params, sole=True)
            except UniqueViolation as error:
                raise repeated(error) from error
            if result.rows:
                now = result.rows[0][0]
                return [now + p.delay_us if p.at is None else p.at for p in postings]
        # A lane is missing, or a payload too large; or there is more to it.
        return (yield from super().put(postings, ids, again=again, alone=alone, notify=notify))

    def lock_keys(self, rows: Iterable[KeyRow]) -> Operation[dict[KeyIdentity, KeyRow]]:
        # New rows and old ones are locked in one pass, in order: two would go in circles.
        held: dict[KeyIdentity, KeyRow] = {}
        for run in self.queues.runs(sorted({row.identity: row for row in rows}.values())):
            sql, params = self.dialect.insert_into("{job_keys} AS k", KEY, run, LOCK_KEY)
            for q, key, kind, *rest in (
                yield Statement("jobs.take_keys", self.dialect.sql(sql), params)
            ):
                row = KeyRow(q, key, kind, *rest)
                held[row.identity] = row
        return held

    def tell(self, names: Collection[str]) -> Operation[None]:
        if names:
            yield Statement("jobs.notify", self.dialect.sql(NOTIFY), (sorted(names),))


def put_params(postings: Sequence[Posting], ids: Sequence[int]) -> list[Any]:
    """The parameters of PUT."""
    largest: dict[LaneName, int] = {}
    for posting in postings:
        largest[posting.lane] = max(largest.get(posting.lane, 0), len(posting.data))
    lanes = sorted(largest)
    numbers = {lane: number for number, lane in enumerate(lanes, 1)}
    times = [posting.at for posting in postings]
    headers = [posting.headers for posting in postings]
    return [
        array(ids),
        shortened([numbers[posting.lane] for posting in postings]),
        times if any(time is not None for time in times) else [],
        shortened([posting.delay_us for posting in postings]),
        shortened([posting.encoding for posting in postings]),
        headers if any(headers) else [],
        [posting.data for posting in postings],
        [lane.queue for lane in lanes],
        [lane.kind for lane in lanes],
        [lane.precedence for lane in lanes],
        [largest[lane] for lane in lanes],
    ]


class PostgresClaims(Claims):
    locks_ready = "FOR UPDATE OF r SKIP LOCKED"

    def claim(
        self,
        lanes: Mapping[OpenLane, Cursor],
        limit: int,
        token: int,
        lock_us: int,
        owner: str,
        *,
        newest: bool = False,
    ) -> Operation[list[ClaimedJob]]:
        how = (limit, token, lock_us, owner)
        if newest or any(lane.limited for lane in lanes):
            return (yield from super().claim(lanes, *how, newest=newest))
        if len(lanes) == 1:
            ((lane, cursor),) = lanes.items()
            where: list[Any] = [lane.id, *cursor]
            sql = self.dialect.sql(CLAIM_ONE[limit > USUAL_MAX])
        else:
            where = [
                [lane.id for lane in lanes],
                [lane.precedence for lane in lanes],
                [due for due, _ in lanes.values()],
                [id for _, id in lanes.values()],
            ]
            sql = self.dialect.sql(CLAIM_MANY[limit > USUAL_MAX])
        result = yield Statement("claims.claim", sql, [*where, *how], sole=True)
        if not result.rows and len(lanes) > 1:
            # Others may have the first jobs of the best lanes for long: then the next one's turn
            # comes.
            return (yield from super().claim(lanes, *how))
        # In the order that they have in the lock; a row without a payload is of a job that is gone.
        # Unlike others, the drivers give text as `str` and payloads as `bytes`.
        return [
            ClaimedJob(Entry(*row[:5]), position, *row[5:])
            for position, row in enumerate(result)
            if row[-1] is not None
        ]


class PostgresSettles(Settles):
    def settle(
        self,
        settles: Sequence[Settle],
        *,
        again: bool = False,
        alone: bool = False,
        whole: bool = False,
    ) -> Operation[list[Exception | None]]:
        several = whole and len(settles) > 1
        if again or several or not all(settle.plain for settle in settles):
            return (yield from super().settle(settles, again=again, alone=alone, whole=whole))
        outcomes: list[Exception | None] = []
        for run in self.queues.runs(settles):
            sole = len(run) == len(settles)
            # One of several statements knows only its own queues.
            sql = self.dialect.sql(ACK_ALONE if alone and sole else ACK)
            result = yield Statement("settles.ack", sql, ack_params(run), sole=sole)
            marks = {token: settled for token, settled in result}  # noqa: C416 - as they were
            for settle in run:
                known = marks.get(settle.token)
                if known is None:
                    outcomes.append(stale(settle))
                else:
                    outcomes.append(refused(settle) if known[settle.position] == "1" else None)
        try:
            yield from self.explain(settles, outcomes)
        except RowMQError as error:
            error.in_doubt = True  # a statement that stands alone is committed by now
            raise
        return outcomes


def ack_params(settles: Sequence[Settle]) -> list[Any]:
    """The parameters of ACK: the tokens of locks, in order, and which of their jobs are acked. All
    else the locks know.
    """
    masks = {token: bytearray() for token in sorted({settle.token for settle in settles})}
    for settle in settles:
        mask, position = masks[settle.token], settle.position
        if len(mask) <= position:
            mask += b"0" * (position + 1 - len(mask))
        mask[position] = ord("1")
    return [list(masks), [mask.decode() for mask in masks.values()]]


def array(values: Iterable[int]) -> str:
    """An array of numbers as text: the drivers take several times as long to encode one as Python
    and the server do to write and read it so.
    """
    return "{" + ",".join(map(str, values)) + "}"


def text_array(values: Sequence[str]) -> str:
    """The same for texts. Each stands in quotes; in it, quotes and backslashes have one before."""
    written = '","'.join(values)
    if "\\" in written or written.count('"') > 2 * (len(values) - 1):
        escaped = (value.replace("\\", "\\\\").replace('"', '\\"') for value in values)
        written = '","'.join(escaped)
    return f'{{"{written}"}}'


def shortened(values: list[Any]) -> list[Any]:
    """The first value alone, if all are the same: drivers take longer for an array's element than
    the database does to see that it is missing.
    """
    return values[:1] if values.count(values[0]) == len(values) else values


LOCK_KEY = """
    ON CONFLICT (queue_id, job_key, kind) DO UPDATE SET job_id = k.job_id
    RETURNING k.queue_id, k.job_key, k.kind, k.job_id, k.lane_id, k.due_at"""

# As `_ONCE_RELAXED`, around a query that is the first of a longer transaction.
RELAXING = """
    SELECT f.*, CASE WHEN bool_and(f.relaxed = 1) OVER () AND COUNT(*) OVER () = e.count
                THEN set_config('synchronous_commit', 'off', true) END
    FROM (<query>) f CROSS JOIN (SELECT ?::bigint AS count) e"""

NOTIFY = "SELECT COUNT(pg_notify('{channel}', name)) FROM unnest($1::text[]) AS t (name)"

# All or nothing: if a lane is missing, or a payload is too large for its queue, no row comes back.
# Of columns that are the same in all rows, only the first value is given. The LIMIT takes nothing
# away: without it, a plan for any parameters expects ten lanes, and looks so dear that every put is
# planned anew.
_PUT = f"""
    WITH lane AS MATERIALIZED (
        SELECT w.number, w.largest, l.id, l.payload_bytes_max, l.relaxed
        FROM (
            SELECT * FROM unnest($8::text[], $9::text[], $10::integer[], $11::bigint[])
                WITH ORDINALITY AS w (queue, kind, precedence, largest, number)
            LIMIT cardinality($8::text[])
        ) w
        CROSS JOIN LATERAL (
            SELECT l.id, COALESCE(q.max_payload_bytes, {PAYLOAD_BYTES_DEFAULT})
                AS payload_bytes_max, q.relaxed
            FROM {{queues}} q JOIN {{lanes}} l ON l.queue_id = q.id
            WHERE q.queue = w.queue AND l.kind = w.kind AND l.precedence = w.precedence
            OFFSET 0
        ) l
    ),
    clock AS MATERIALIZED (SELECT {{now}} AS now),
    placed AS MATERIALIZED (
        SELECT g.id, l.id AS lane_id, c.now,
               COALESCE(g.due_at, c.now + COALESCE(g.delay_us, ($4::bigint[])[1])) AS due_at,
               COALESCE(g.encoding, ($5::smallint[])[1]) AS encoding, g.headers, g.payload
        FROM unnest($1::text::bigint[], $2::integer[], $3::bigint[], $4::bigint[],
                    $5::smallint[], $6::text[], $7::bytea[])
            AS g (id, lane_number, due_at, delay_us, encoding, headers, payload)
        JOIN lane l ON l.number = COALESCE(g.lane_number, 1)
        CROSS JOIN clock c
        WHERE cardinality($8::text[]) = (SELECT COUNT(*) FROM lane)
          AND NOT EXISTS (SELECT FROM lane m WHERE m.largest > m.payload_bytes_max)
        ORDER BY g.id
    ),
    put AS (
        INSERT INTO {{jobs}} (id, created_at, due_at, lane_id, encoding, headers, payload)
        SELECT id, now, due_at, lane_id, encoding, headers, payload FROM placed
    ),
    made_ready AS (
        INSERT INTO {{ready}} (lane_id, due_at, job_id, attempts, deliveries)
        SELECT lane_id, due_at, id, 0, 0 FROM placed
    )<notified>
    SELECT c.now FROM clock c WHERE EXISTS (SELECT FROM placed)<once told><once relaxed>"""

_NOTIFIED = """,
    notified AS MATERIALIZED (
        SELECT COUNT(pg_notify('{channel}', name)) AS queues
        FROM unnest($12::text[]) AS t (name) WHERE EXISTS (SELECT FROM placed)
    )"""

# Always true. The commit that follows does not wait for the disk if all queues are relaxed; what is
# set so ends with the transaction.
_ONCE_RELAXED = """(
        SELECT CASE WHEN bool_and(relaxed = 1) THEN set_config('synchronous_commit', 'off', true)
               ELSE '' END FROM lane
    ) IS NOT NULL"""


def put_sql(*, alone: bool, tells: bool) -> str:
    """PUT for a transaction of our own or of a caller's, and with or without a NOTIFY."""
    told = " AND (SELECT queues FROM notified) IS NOT NULL" if tells else ""
    return (
        _PUT.replace("<notified>", _NOTIFIED if tells else "")
        .replace("<once told>", told)
        .replace("<once relaxed>", f" AND {_ONCE_RELAXED}" if alone else "")
    )


PUT = {
    (alone, tells): put_sql(alone=alone, tells=tells)
    for alone in (False, True)
    for tells in (False, True)
}
"""By whether it is alone in a transaction of our own, and whether it wakes somebody."""

USUAL_MAX = 1_000
"""How many jobs are claimed at a time by almost everybody, at most."""

# Rows are locked one by one, as they are asked for, whatever the inner limit is. It is for the
# planner, which takes that of a parameter for a tenth of all that waits, and plans each claim anew,
# or for a sort of all that; so it has a number that is not far off.
_TAKEN_FROM_ONE = """
    WITH taken AS MATERIALIZED (
        SELECT place FROM (
            SELECT r.ctid AS place FROM {ready} r
            WHERE r.lane_id = $1 AND r.due_at <= (SELECT {now})
              AND (r.due_at, r.job_id) >= ($2::bigint, $3::bigint)
            ORDER BY r.due_at, r.job_id LIMIT <most> FOR UPDATE SKIP LOCKED
        ) first
        LIMIT (SELECT <limit>::bigint)
    )"""


# Which lanes have the first jobs is found out without a lock, so that no more is locked than taken.
_TAKEN_FROM_MANY = """
    WITH lane AS MATERIALIZED (
        SELECT * FROM unnest((SELECT $1::bigint[]), (SELECT $2::integer[]), (SELECT $3::bigint[]),
                             (SELECT $4::bigint[])) AS l (id, precedence, due_at, job_id)
    ),
    share AS MATERIALIZED (
        SELECT id, due_at, job_id, COUNT(*) AS jobs
        FROM (
            SELECT l.* FROM lane l
            CROSS JOIN LATERAL (
                SELECT f.due_at, f.job_id FROM (
                    SELECT r.due_at, r.job_id FROM {ready} r
                    WHERE r.lane_id = l.id AND r.due_at <= (SELECT {now})
                      AND (r.due_at, r.job_id) >= (l.due_at, l.job_id)
                    ORDER BY r.due_at, r.job_id LIMIT <most>
                ) f
                LIMIT (SELECT <limit>::bigint)
            ) c
            ORDER BY l.precedence, c.due_at, c.job_id LIMIT (SELECT <limit>::bigint)
        ) first
        GROUP BY id, due_at, job_id
    ),
    taken AS MATERIALIZED (
        SELECT t.place FROM share s
        CROSS JOIN LATERAL (
            SELECT f.place FROM (
                SELECT r.ctid AS place FROM {ready} r
                WHERE r.lane_id = s.id AND r.due_at <= (SELECT {now})
                  AND (r.due_at, r.job_id) >= (s.due_at, s.job_id)
                ORDER BY r.due_at, r.job_id LIMIT <most> FOR UPDATE SKIP LOCKED
            ) f
            LIMIT s.jobs
        ) t
    )"""

_CLAIM = """,
    gone AS (
        DELETE FROM {ready} r WHERE r.ctid = ANY (ARRAY(SELECT place FROM taken))
        RETURNING r.lane_id, r.due_at, r.job_id, r.attempts, r.deliveries + 1 AS deliveries
    ),
    entry AS MATERIALIZED (SELECT g.*, <precedence> AS precedence FROM gone g),
    locked AS (
        INSERT INTO {locks} (token, locked_until, claimed_at, owner, claimed, settled)
        SELECT <token>::bigint, {now} + <lock>::bigint, {now}, <owner>::text,
               array_agg(
                   ARRAY[job_id, lane_id, due_at, attempts::bigint, deliveries::bigint, 0]
                   ORDER BY precedence, due_at, job_id
               ),
               repeat('0', COUNT(*)::integer)
        FROM entry HAVING COUNT(*) > 0
    )
    SELECT e.job_id, e.lane_id, e.due_at, e.attempts, e.deliveries, j.*
    FROM entry e
    LEFT JOIN LATERAL (
        SELECT j.created_at, j.encoding, j.job_key, j.ordering_key, j.headers, j.payload
        FROM {jobs} j WHERE j.id = e.job_id OFFSET 0
    ) j ON TRUE
    ORDER BY e.precedence, e.due_at, e.job_id"""


def numbered(template: str, numbers: Mapping[str, str]) -> str:
    """A template with its own names for parameters filled in."""
    for name, number in numbers.items():
        template = template.replace(f"<{name}>", number)
    return template


ONE = {"limit": "$4", "token": "$5", "lock": "$6", "owner": "$7", "precedence": "g.lane_id"}
MANY = {
    "limit": "$5",
    "token": "$6",
    "lock": "$7",
    "owner": "$8",
    "precedence": "(SELECT l.precedence FROM lane l WHERE l.id = g.lane_id)",
}
MOST = {False: {"most": str(USUAL_MAX)}, True: {"most": str(CLAIM_MAX)}}
"""By whether more are asked for than usual."""

CLAIM_ONE = {large: numbered(_TAKEN_FROM_ONE + _CLAIM, ONE | most) for large, most in MOST.items()}
CLAIM_MANY = {
    large: numbered(_TAKEN_FROM_MANY + _CLAIM, MANY | most) for large, most in MOST.items()
}

# A row of `locks` that somebody has just changed is looked at again, as it now is. Parameters are
# given by subqueries, so that the planner has nothing to gain from looking at them: it would plan
# the statement anew each time, which takes longer than to run it.
ACK = """
    WITH held AS MATERIALIZED (
        SELECT w.token, k.settled, k.claimed_at, k.claimed,
               k.settled::varbit | m.mask AS after, ~ k.settled::varbit & m.mask AS acked
        FROM unnest((SELECT $1::bigint[]), (SELECT $2::text[])) AS w (token, mask)
        CROSS JOIN LATERAL (
            -- Unpacked once, and not for each job in it.
            SELECT k.settled, k.claimed_at, k.claimed || ARRAY[]::bigint[] AS claimed
            FROM {locks} k WHERE k.token = w.token FOR UPDATE
        ) k
        CROSS JOIN LATERAL (SELECT rpad(w.mask, length(k.settled), '0')::varbit AS mask) m
    ),
    entry AS MATERIALIZED (
        SELECT h.claimed_at, h.claimed[n][1] AS job_id, h.claimed[n][2] AS lane_id,
               h.claimed[n][4] + 1 AS attempts, h.claimed[n][5] AS deliveries
        FROM held h CROSS JOIN LATERAL generate_series(1, length(h.acked)) AS n
        WHERE get_bit(h.acked, n - 1) = 1
    ),
    lane AS MATERIALIZED (
        SELECT l.id, l.queue_id, COALESCE(q.keep_completed, 1) AS keep,
               COALESCE(q.relaxed, 0) AS relaxed
        FROM (SELECT DISTINCT lane_id FROM entry) e
        CROSS JOIN LATERAL (
            SELECT l.id, l.queue_id FROM {lanes} l WHERE l.id = e.lane_id OFFSET 0
        ) l
        LEFT JOIN {queues} q ON q.id = l.queue_id
    ),
    valid AS MATERIALIZED (
        SELECT l.queue_id, l.keep, e.* FROM entry e JOIN lane l ON l.id = e.lane_id
    ),
    clock AS MATERIALIZED (SELECT {now} AS now),
    kept AS (
        INSERT INTO {completed} (queue_id, finished_at, job_id, started_at, attempts, deliveries)
        -- Where the clock was set back meanwhile: a job is looked for from when it was due on.
        SELECT v.queue_id, GREATEST(c.now, v.claimed_at), v.job_id, v.claimed_at, v.attempts,
               v.deliveries
        FROM valid v CROSS JOIN clock c WHERE v.keep = 1
    ),
    gone AS MATERIALIZED (SELECT ARRAY(SELECT job_id FROM valid WHERE keep = 0) AS jobs),
    dropped AS (
        DELETE FROM {jobs} j WHERE j.id = ANY ((SELECT jobs FROM gone)::bigint[])
    ),
    traces AS (
        DELETE FROM {job_errors} e WHERE e.job_id = ANY ((SELECT jobs FROM gone)::bigint[])
    ),
    notes AS (
        DELETE FROM {holds} n WHERE n.job_id = ANY ((SELECT jobs FROM gone)::bigint[])
    ),
    marked AS (
        UPDATE {locks} k SET settled = (SELECT h.after::text FROM held h WHERE h.token = k.token)
        WHERE k.token = ANY (ARRAY(SELECT token FROM held WHERE position(B'0' IN after) > 0))
    ),
    ended AS (
        DELETE FROM {locks} k
        WHERE k.token = ANY (ARRAY(SELECT token FROM held WHERE position(B'0' IN after) = 0))
    )
    SELECT token, settled FROM held"""

ACK_ALONE = f"{ACK} WHERE {_ONCE_RELAXED}"
