"""PostgreSQL's own shapes for jobs: put, claim and ack in one statement each.

A statement by itself needs no BEGIN and no COMMIT: one round trip, and locks are held only while it
commits. Rows of `ready` are deleted by where they lie, which can be no scan, whatever the planner
believes; and only what that gives back is claimed. What is more than the usual case goes the way
that all databases have in common.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from rowmq.errors import UniqueViolation
from rowmq.store.claims import ClaimedJob, Claims, Cursor, Entry, OpenLane, job_of
from rowmq.store.jobs import JOB_COLUMNS, KEY, Jobs, KeyIdentity, KeyRow, Posting, repeated
from rowmq.store.queues import IDS_A_BLOCK, Queues
from rowmq.store.settles import Settle, Settles, refused, stale
from rowmq.store.statement import Operation, Statement
from rowmq.store.topics import PAYLOAD_BYTES_DEFAULT

__all__ = ["PostgresClaims", "PostgresJobs", "PostgresQueues", "PostgresSettles"]


class PostgresQueues(Queues):
    def reserve(self) -> Operation[int]:
        # The sequence of a table that stays empty: nothing is written, and nobody waits.
        sql = self.dialect.sql("SELECT nextval(pg_get_serial_sequence('{job_ids}', 'id'))")
        result = yield Statement("queues.reserve", sql, sole=True)
        return int(result.rows[0][0]) * IDS_A_BLOCK


class PostgresJobs(Jobs):
    def put(
        self,
        postings: Sequence[Posting],
        ids: Sequence[int],
        *,
        again: bool = False,
        notify: Collection[str] = (),
    ) -> Operation[list[int]]:
        runs = list(self.dialect.chunks(postings, (posting.size for posting in postings)))
        if not again and len(runs) == 1 and all(posting.plain for posting in postings):
            sql = self.dialect.sql(PUT)
            params = put_params(postings, ids, notify)
            try:
                result = yield Statement("jobs.put", sql, params, sole=True)
            except UniqueViolation as error:
                raise repeated(error) from error
            if result.rows:
                due = {id: moment for id, moment in result}  # noqa: C416 - not known to be pairs
                return [due[id] for id in ids]
        # A lane is missing, or a payload too large; or there is more to it.
        return (yield from super().put(postings, ids, again=again, notify=notify))

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


def put_params(
    postings: Sequence[Posting], ids: Sequence[int], notify: Collection[str]
) -> list[Any]:
    """The parameters of PUT."""
    lanes = sorted({posting.lane for posting in postings})
    numbers = {lane: number for number, lane in enumerate(lanes, 1)}
    return [
        list(ids),
        [numbers[posting.lane] for posting in postings],
        [posting.at for posting in postings],
        [posting.delay_us for posting in postings],
        [posting.encoding for posting in postings],
        [posting.headers for posting in postings],
        [posting.data for posting in postings],
        [lane.queue for lane in lanes],
        [lane.kind for lane in lanes],
        [lane.precedence for lane in lanes],
        sorted(notify),
    ]


class PostgresClaims(Claims):
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
            sql = self.dialect.sql(CLAIM_ONE)
        else:
            where = [
                [lane.id for lane in lanes],
                [lane.precedence for lane in lanes],
                [due for due, _ in lanes.values()],
                [id for _, id in lanes.values()],
            ]
            sql = self.dialect.sql(CLAIM_MANY)
        result = yield Statement("claims.claim", sql, [*where, *how], sole=True)
        if not result.rows and len(lanes) > 1:
            # Others may have the first jobs of the best lanes for long: then the next one's turn
            # comes.
            return (yield from super().claim(lanes, *how))
        return [job_of(Entry(*row[1:6]), row[0], row[6:]) for row in result]


class PostgresSettles(Settles):
    def settle(
        self, settles: Sequence[Settle], *, again: bool = False, whole: bool = False
    ) -> Operation[list[Exception | None]]:
        several = whole and len(settles) > 1
        if again or several or not all(settle.plain for settle in settles):
            return (yield from super().settle(settles, again=again, whole=whole))
        outcomes: list[Exception | None] = []
        for run in self.queues.runs(settles):
            sql = self.dialect.sql(ACK)
            sole = len(run) == len(settles)
            result = yield Statement("settles.ack", sql, ack_params(run), sole=sole)
            known = {(token, position): settled for token, position, settled in result}
            for settle in run:
                settled = known.get((settle.token, settle.position))
                refusal = stale(settle) if settled is None else refused(settle) if settled else None
                outcomes.append(refusal)
        return outcomes


def ack_params(settles: Sequence[Settle]) -> list[Any]:
    """The parameters of ACK."""
    return [
        sorted({settle.token for settle in settles}),
        [settle.token for settle in settles],
        [settle.position for settle in settles],
        [settle.entry.job_id for settle in settles],
        [settle.queue_id for settle in settles],
        [settle.entry.attempts + 1 for settle in settles],
        [settle.entry.deliveries for settle in settles],
    ]


LOCK_KEY = """
    ON CONFLICT (queue_id, job_key, kind) DO UPDATE SET job_id = k.job_id
    RETURNING k.queue_id, k.job_key, k.kind, k.job_id, k.lane_id, k.due_at"""

NOTIFY = "SELECT COUNT(pg_notify('{channel}', name)) FROM unnest($1::text[]) AS t (name)"

# All or nothing: if a lane is missing, or a payload is too large for its queue, no row comes back.
PUT = f"""
    WITH given AS MATERIALIZED (
        SELECT * FROM unnest($1::bigint[], $2::integer[], $3::bigint[], $4::bigint[],
                             $5::smallint[], $6::text[], $7::bytea[])
            AS g (id, lane_number, due_at, delay_us, encoding, headers, payload)
    ),
    lane AS MATERIALIZED (
        SELECT w.number, l.id, l.payload_bytes_max
        FROM unnest($8::text[], $9::text[], $10::integer[]) WITH ORDINALITY
            AS w (queue, kind, precedence, number)
        CROSS JOIN LATERAL (
            SELECT l.id, COALESCE(q.max_payload_bytes, {PAYLOAD_BYTES_DEFAULT})
                AS payload_bytes_max
            FROM {{queues}} q JOIN {{lanes}} l ON l.queue_id = q.id
            WHERE q.queue = w.queue AND l.kind = w.kind AND l.precedence = w.precedence
            OFFSET 0
        ) l
    ),
    clock AS MATERIALIZED (SELECT {{now}} AS now),
    placed AS MATERIALIZED (
        SELECT g.id, l.id AS lane_id, COALESCE(g.due_at, c.now + g.delay_us) AS due_at, c.now,
               g.encoding, g.headers, g.payload
        FROM given g JOIN lane l ON l.number = g.lane_number CROSS JOIN clock c
        WHERE cardinality($8::text[]) = (SELECT COUNT(*) FROM lane)
          AND NOT EXISTS (
            SELECT FROM given v JOIN lane m ON m.number = v.lane_number
            WHERE octet_length(v.payload) > m.payload_bytes_max
        )
        ORDER BY g.id
    ),
    put AS (
        INSERT INTO {{jobs}} (id, created_at, due_at, lane_id, encoding, headers, payload)
        SELECT id, now, due_at, lane_id, encoding, headers, payload FROM placed
    ),
    made_ready AS (
        INSERT INTO {{ready}} (lane_id, due_at, job_id, attempts, deliveries)
        SELECT lane_id, due_at, id, 0, 0 FROM placed
    ),
    notified AS MATERIALIZED (
        SELECT COUNT(pg_notify('{{channel}}', name)) AS queues
        FROM unnest($11::text[]) AS t (name) WHERE EXISTS (SELECT FROM placed)
    )
    SELECT id, due_at FROM placed WHERE (SELECT queues FROM notified) IS NOT NULL"""

_TAKEN_FROM_ONE = """
    WITH taken AS MATERIALIZED (
        SELECT r.ctid AS place FROM {ready} r
        WHERE r.lane_id = $1 AND r.due_at <= (SELECT {now})
          AND (r.due_at, r.job_id) >= ($2::bigint, $3::bigint)
        ORDER BY r.due_at, r.job_id LIMIT <limit> FOR UPDATE SKIP LOCKED
    )"""

# Which lanes have the first jobs is found out without a lock, so that no more is locked than taken.
_TAKEN_FROM_MANY = """
    WITH lane AS MATERIALIZED (
        SELECT * FROM unnest($1::bigint[], $2::integer[], $3::bigint[], $4::bigint[])
            AS l (id, precedence, due_at, job_id)
    ),
    share AS MATERIALIZED (
        SELECT id, due_at, job_id, COUNT(*) AS jobs
        FROM (
            SELECT l.* FROM lane l
            CROSS JOIN LATERAL (
                SELECT r.due_at, r.job_id FROM {ready} r
                WHERE r.lane_id = l.id AND r.due_at <= (SELECT {now})
                  AND (r.due_at, r.job_id) >= (l.due_at, l.job_id)
                ORDER BY r.due_at, r.job_id LIMIT <limit>
            ) c
            ORDER BY l.precedence, c.due_at, c.job_id LIMIT <limit>
        ) first
        GROUP BY id, due_at, job_id
    ),
    taken AS MATERIALIZED (
        SELECT t.place FROM share s
        CROSS JOIN LATERAL (
            SELECT r.ctid AS place FROM {ready} r
            WHERE r.lane_id = s.id AND r.due_at <= (SELECT {now})
              AND (r.due_at, r.job_id) >= (s.due_at, s.job_id)
            ORDER BY r.due_at, r.job_id LIMIT s.jobs FOR UPDATE SKIP LOCKED
        ) t
    )"""

_CLAIM = f""",
    gone AS (
        DELETE FROM {{ready}} r WHERE r.ctid = ANY (ARRAY(SELECT place FROM taken))
        RETURNING r.lane_id, r.due_at, r.job_id, r.attempts, r.deliveries + 1 AS deliveries
    ),
    entry AS MATERIALIZED (
        SELECT g.*, (ROW_NUMBER() OVER (ORDER BY <precedence>, g.due_at, g.job_id) - 1)::integer
            AS position
        FROM gone g
    ),
    locked AS (
        INSERT INTO {{locks}} (token, locked_until, claimed_at, owner, claimed, settled)
        SELECT <token>::bigint, {{now}} + <lock>::bigint, {{now}}, <owner>::text,
               array_agg(
                   ARRAY[job_id, lane_id, due_at, attempts::bigint, deliveries::bigint, 0]
                   ORDER BY position
               ),
               repeat('0', COUNT(*)::integer)
        FROM entry HAVING COUNT(*) > 0
    )
    SELECT e.position, e.job_id, e.lane_id, e.due_at, e.attempts, e.deliveries, j.*
    FROM entry e
    CROSS JOIN LATERAL (
        SELECT {JOB_COLUMNS} FROM {{jobs}} j WHERE j.id = e.job_id OFFSET 0
    ) j
    ORDER BY e.position"""


def numbered(template: str, numbers: Mapping[str, str]) -> str:
    """A template with its own names for parameters filled in."""
    for name, number in numbers.items():
        template = template.replace(f"<{name}>", number)
    return template


CLAIM_ONE = numbered(
    _TAKEN_FROM_ONE + _CLAIM,
    {"limit": "$4", "token": "$5", "lock": "$6", "owner": "$7", "precedence": "g.lane_id"},
)
CLAIM_MANY = numbered(
    _TAKEN_FROM_MANY + _CLAIM,
    {
        "limit": "$5",
        "token": "$6",
        "lock": "$7",
        "owner": "$8",
        "precedence": "(SELECT l.precedence FROM lane l WHERE l.id = g.lane_id)",
    },
)

# A row of `locks` that somebody has just changed is looked at again, as it now is.
ACK = """
    WITH item AS MATERIALIZED (
        SELECT * FROM unnest($2::bigint[], $3::integer[], $4::bigint[], $5::bigint[], $6::integer[],
                             $7::integer[])
            AS i (token, position, job_id, queue_id, attempts, deliveries)
    ),
    held AS MATERIALIZED (
        SELECT w.token, k.settled, k.claimed_at FROM unnest($1::bigint[]) AS w (token)
        CROSS JOIN LATERAL (
            SELECT k.settled, k.claimed_at FROM {locks} k WHERE k.token = w.token FOR UPDATE
        ) k
    ),
    known AS MATERIALIZED (
        SELECT i.*, h.claimed_at, substr(h.settled, i.position + 1, 1) = '1' AS settled
        FROM item i JOIN held h ON h.token = i.token
    ),
    valid AS MATERIALIZED (
        SELECT k.*, q.keep FROM known k
        CROSS JOIN LATERAL (
            SELECT COALESCE((SELECT q.keep_completed FROM {queues} q WHERE q.id = k.queue_id), 1)
                AS keep
        ) q
        WHERE NOT k.settled
    ),
    clock AS MATERIALIZED (SELECT {now} AS now),
    kept AS (
        INSERT INTO {completed} (queue_id, finished_at, job_id, started_at, attempts, deliveries)
        SELECT v.queue_id, c.now, v.job_id, v.claimed_at, v.attempts, v.deliveries
        FROM valid v CROSS JOIN clock c WHERE v.keep = 1
    ),
    dropped AS (
        DELETE FROM {jobs} j WHERE j.id = ANY (ARRAY(SELECT job_id FROM valid WHERE keep = 0))
    ),
    traces AS (
        DELETE FROM {job_errors} e
        WHERE e.job_id = ANY (ARRAY(SELECT job_id FROM valid WHERE keep = 0))
    ),
    notes AS (
        DELETE FROM {holds} n WHERE n.job_id = ANY (ARRAY(SELECT job_id FROM valid WHERE keep = 0))
    ),
    mark AS MATERIALIZED (
        SELECT h.token, string_agg(
            CASE WHEN v.token IS NULL THEN substr(h.settled, p + 1, 1) ELSE '1' END, '' ORDER BY p
        ) AS settled
        FROM held h CROSS JOIN LATERAL generate_series(0, length(h.settled) - 1) AS p
        LEFT JOIN valid v ON v.token = h.token AND v.position = p
        GROUP BY h.token
    ),
    marked AS (
        UPDATE {locks} k SET settled = (SELECT m.settled FROM mark m WHERE m.token = k.token)
        WHERE k.token = ANY (ARRAY(SELECT token FROM mark WHERE position('0' IN settled) > 0))
    ),
    ended AS (
        DELETE FROM {locks} k WHERE k.token = ANY (
            ARRAY(SELECT token FROM mark WHERE position('0' IN settled) = 0)
        )
    )
    SELECT token, position, settled FROM known"""
