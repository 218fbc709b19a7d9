"""PostgreSQL's own shape for a busy subscriber: what it knows is written, what it asks for fetched,
and what else there is looked for, in one statement and one round trip.
"""

from collections.abc import Sequence
from typing import Any

from rowmq.store.leases import FIND, FOUND_MAX, Change, Conflict, Found, Leases, Member, found_of
from rowmq.store.statement import Operation, Row, Statement
from rowmq.store.topics import MESSAGE_COLUMNS, Span

__all__ = ["PostgresLeases"]


class PostgresLeases(Leases):
    finds_more = True
    # A heartbeat waits for nobody.
    beat_sql = """
        UPDATE {subscribers} SET heartbeat_at = {now}, expires_at = {now} + ?
        WHERE id = (
            SELECT s.id FROM {subscribers} s WHERE s.id = ? AND s.expires_at > {now}
            FOR UPDATE SKIP LOCKED
        )"""

    def advance(
        self,
        member: Member,
        changes: Sequence[Change],
        *,
        spans: Sequence[Span],
        find: tuple[str, int] | None = None,
    ) -> Operation[tuple[list[Row], Found | None]]:
        # Without a statement of its own before it, this is a transaction by itself.
        rows = yield from self._advance(member, changes, spans=spans, find=find, sole=True)
        fetched = [row for row in rows if row[8] == FETCHED]
        if find is None:
            return fetched, None
        found = [(r[0], r[1], r[6], r[7], r[4]) for r in rows if r[8] == FOUND]
        return fetched, found_of(found)

    def write(self, member: Member, changes: Sequence[Change]) -> Operation[None]:
        yield from self._advance(member, changes, spans=(), find=None, sole=False)

    def _advance(
        self,
        member: Member,
        changes: Sequence[Change],
        *,
        spans: Sequence[Span],
        find: tuple[str, int] | None,
        sole: bool,
    ) -> Operation[Sequence[Row]]:
        moved = [(c.partition_id, c.epoch, c.version, *c.after[:5]) for c in sorted(changes)]
        gone = [(c.partition_id, f) for c in changes for f in c.after.removed_since(c.before)]
        put = [(c.partition_id, *r) for c in changes for r in c.after.changed_since(c.before)]
        wanted = [span[1:] for span in spans]
        params: list[Any] = [*member]
        for rows, width in ((moved, 8), (gone, 2), (put, 8), (wanted, 3)):
            params += columns_of(rows, width)
        params.append(f"{round(self.dialect.lock_timeout * 1000)}ms" if sole else None)
        sql = self.dialect.sql(ADVANCE if find is None else ADVANCE_AND_FIND)
        params += find or ()
        result = yield Statement("leases.advance", sql, params, sole=sole)
        if next(row[0] for row in result if row[8] == FENCED) != len(changes):
            raise Conflict("a lease was lost, or its partition was changed by somebody else")
        return result.rows


def columns_of(rows: Sequence[Sequence[Any]], width: int) -> list[list[Any]]:
    """Rows as an array for each column, which there are even if there is no row."""
    return [[row[place] for row in rows] for place in range(width)]


FENCED, FETCHED, FOUND = 0, 1, 2


def numbered(find: str) -> str:
    """FIND, with the numbers of ADVANCE for its parameters."""
    for value in ("$2", "$25", "$1", "$2", "$26", str(FOUND_MAX)):
        find = find.replace("?", value, 1)
    return find


# All or nothing: unless every lease is as its owner knows it, no part of this does anything. The
# rows are locked one by one, by their keys and in order; a row that somebody has just changed is
# looked at again as it now is, and is then not at the version that was asked for. Arrays are given
# by subqueries, so that the planner has nothing to gain from looking at them: it would plan each
# poll and settle anew.
ADVANCE = """
    WITH wanted AS MATERIALIZED (
        SELECT * FROM unnest((SELECT $3::bigint[]), (SELECT $4::bigint[]), (SELECT $5::bigint[]),
                             (SELECT $6::bigint[]), (SELECT $7::bigint[]), (SELECT $8::bigint[]),
                             (SELECT $9::bigint[]), (SELECT $10::integer[]))
            AS w (partition_id, epoch, version, acked, delivered, first, until, attempts)
    ),
    patience AS MATERIALIZED (
        SELECT set_config(
            'lock_timeout', COALESCE($24::text, current_setting('lock_timeout')), true
        ) AS lock_timeout
    ),
    fenced AS MATERIALIZED (
        SELECT o.partition_id FROM wanted w CROSS JOIN LATERAL (
            SELECT o.partition_id FROM {offsets} o
            WHERE (SELECT lock_timeout FROM patience) IS NOT NULL
              AND o.group_id = $1 AND o.partition_id = w.partition_id AND o.leased_by = $2
              AND o.epoch = w.epoch AND o.version = w.version
            FOR UPDATE
        ) o
    ),
    whole AS MATERIALIZED (
        SELECT 1 WHERE (SELECT count(*) FROM fenced) = cardinality($3::bigint[])
    ),
    moved AS (
        UPDATE {offsets} o
        SET offset_acked = w.acked, offset_delivered = w.delivered, tail_first = w.first,
            tail_until = w.until, tail_attempts = w.attempts, version = o.version + 1, touched = 0
        FROM wanted w
        WHERE o.group_id = $1 AND o.partition_id = w.partition_id AND EXISTS (SELECT FROM whole)
    ),
    removed AS (
        DELETE FROM {delivery_state} d
        USING unnest((SELECT $11::bigint[]), (SELECT $12::bigint[]))
            AS r (partition_id, first_offset)
        WHERE d.group_id = $1 AND d.partition_id = r.partition_id
          AND d.first_offset = r.first_offset AND EXISTS (SELECT FROM whole)
    ),
    put AS (
        INSERT INTO {delivery_state} (group_id, partition_id, first_offset, last_offset, state,
                                      invisible_until, attempts, error, reopened)
        SELECT $1, r.*
        FROM unnest((SELECT $13::bigint[]), (SELECT $14::bigint[]), (SELECT $15::bigint[]),
                    (SELECT $16::smallint[]), (SELECT $17::bigint[]), (SELECT $18::integer[]),
                    (SELECT $19::text[]), (SELECT $20::bigint[])) AS r
        WHERE EXISTS (SELECT FROM whole)
        ON CONFLICT (group_id, partition_id, first_offset) DO UPDATE
        SET last_offset = excluded.last_offset, state = excluded.state,
            invisible_until = excluded.invisible_until, attempts = excluded.attempts,
            error = excluded.error, reopened = excluded.reopened
    )
    SELECT (SELECT count(*) FROM fenced) AS partition_id, NULL::bigint AS message_offset,
           NULL::text AS message_id, NULL::bytea AS payload, NULL::smallint AS encoding,
           NULL::text AS headers, NULL::bigint AS published_at, NULL::bigint AS largest_bytes,
           0 AS kind
    UNION ALL
    SELECT <columns>, NULL, 1
    FROM unnest((SELECT $21::bigint[]), (SELECT $22::bigint[]), (SELECT $23::bigint[]))
        AS s (partition_id, first, last)
    CROSS JOIN LATERAL (
        SELECT * FROM {messages} m
        WHERE m.partition_id = s.partition_id AND m.message_offset BETWEEN s.first AND s.last
        OFFSET 0 -- a fence: each range is looked up by itself
    ) m
    WHERE EXISTS (SELECT FROM whole)""".replace("<columns>", MESSAGE_COLUMNS)

ADVANCE_AND_FIND = (
    ADVANCE
    + f"""
    UNION ALL
    SELECT f.partition_id, f.epoch, NULL, NULL, f.touched::smallint, NULL, f.next_offset,
           f.largest_bytes, 2
    FROM ({numbered(FIND)}) f"""
)
