"""PostgreSQL: arrays in, one statement a batch.

`append` locks or makes the counters, numbers the messages and inserts them in a single statement,
which outside a transaction is one round trip and holds the counters' locks only while it commits.
It looks for known ids in a snapshot that is older than the locks, so a rival who publishes the same
id at the same moment shows as a unique violation; then the locks are taken first, and the same
statement, with a new snapshot, sees everything.
"""

from collections.abc import Iterable, Sequence

from rowmq.errors import SerializationFailure, UniqueViolation
from rowmq.message import PublishResult
from rowmq.naming import check_identifier
from rowmq.store.dialect import Dialect
from rowmq.store.schema import Schema
from rowmq.store.statement import Operation, Row, Statement
from rowmq.store.store import Store
from rowmq.store.topics import (
    MESSAGE_COLUMNS,
    PAYLOAD_BYTES_DEFAULT,
    Entry,
    Span,
    Topics,
    limits_of,
    refuse_oversized,
    results,
    unrepeated,
)

__all__ = ["PostgresDialect", "PostgresSchema", "PostgresTopics", "postgres_store"]


class PostgresDialect(Dialect):
    name = "postgres"
    # clock_timestamp, because now() is when the caller's transaction began.
    now = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
    rows_max = 5_000

    def qualifier(self, schema: str | None) -> str:
        return "" if schema is None else f'"{check_identifier(schema, what="the schema")}".'

    def placeholders(self, sql: str) -> str:
        head, *rest = sql.split("?")
        return head + "".join(f"${number}{part}" for number, part in enumerate(rest, 1))


class PostgresTopics(Topics):
    def publish(
        self, entries: Sequence[Entry], *, alone: bool = True
    ) -> Operation[list[PublishResult]]:
        fresh = unrepeated(entries)
        runs = list(self.runs(fresh))
        given = any(entry.id_given for entry in fresh)
        found: dict[tuple[str, str, str], Row] = {}
        if len(runs) == 1 and (alone or not given):
            try:
                found = yield from self.append(fresh, check=given, sole=alone)
            except UniqueViolation:
                # In a caller's transaction the ids are new ones of our own: it cannot come to this.
                if not alone:
                    raise
        if not found:
            yield from self.lock_partitions(fresh)
            for run in runs:
                found |= yield from self.append(run, check=True, sole=False)
        return results(entries, found)

    def append(
        self, entries: Sequence[Entry], *, check: bool, sole: bool
    ) -> Operation[dict[tuple[str, str, str], Row]]:
        """Number and insert entries; `check` looks for known ids. Offset and known, by identity."""
        result = yield Statement(
            "topics.append",
            self.dialect.sql(APPEND_CHECKED if check else APPEND),
            (*columns_of(entries), *largest_by_topic(entries)),
            sole=sole,
        )
        if len(result) < len(entries):
            yield from self.refuse(entries)
        return {entries[place - 1].identity: (offset, known) for place, offset, known in result}

    def refuse(self, entries: Sequence[Entry]) -> Operation[None]:
        """Say which payload was too large for `append` to insert anything."""
        topics = sorted({entry.topic for entry in entries})
        result = yield Statement("topics.limits", self.dialect.sql(LIMITS), (topics,), sole=True)
        refuse_oversized(entries, limits_of(result))
        raise SerializationFailure("the topic's payload limit was changed at this very moment")

    def lock_partitions(self, entries: Sequence[Entry]) -> Operation[None]:
        """Lock the entries' partitions; make those that are missing, unless one is refused."""
        partitions = sorted({entry.partition for entry in entries})
        names = [list(column) for column in zip(*partitions, strict=True)]
        sql = self.dialect.sql(LOCK_PARTITIONS)
        yield Statement("topics.lock_partitions", sql, (*names, *largest_by_topic(entries)))

    def fetch_ranges(self, spans: Sequence[Span]) -> Operation[Iterable[Row]]:
        return (yield self._fetch("topics.read", MESSAGE_COLUMNS, spans))

    def fetch_times(self, spans: Sequence[Span]) -> Operation[Iterable[Row]]:
        return (yield self._fetch("topics.times", "m.partition_id, m.published_at", spans))

    def _fetch(self, name: str, columns: str, spans: Sequence[Span]) -> Statement:
        sql = self.dialect.sql(FETCH_RANGES.replace("<columns>", columns))
        bounds = [list(column) for column in zip(*(span[1:] for span in spans), strict=True)]
        return Statement(name, sql, bounds, sole=True)


def columns_of(entries: Sequence[Entry]) -> tuple[list[object], ...]:
    """The entries as one array per column."""
    return (
        [entry.topic for entry in entries],
        [entry.key for entry in entries],
        [entry.id for entry in entries],
        [entry.data for entry in entries],
        [entry.encoding for entry in entries],
        [entry.headers for entry in entries],
    )


def largest_by_topic(entries: Sequence[Entry]) -> tuple[list[str], list[int]]:
    """The topics, and the size of the largest payload for each."""
    largest: dict[str, int] = {}
    for entry in entries:
        largest[entry.topic] = max(len(entry.data), largest.get(entry.topic, 0))
    return list(largest), list(largest.values())


# Without the check, for ids that RowMQ made itself and that nobody can have used.
_NONE_KNOWN = "SELECT NULL::bigint AS place, NULL::bigint AS message_offset WHERE false"

# Look-ups stand as subqueries, one row at a time: as joins, a plan for "any parameters" may choose
# to hash a whole table.
_KNOWN = """
        SELECT * FROM (
            SELECT i.place, (
                SELECT m.message_offset FROM {messages} m
                WHERE m.message_id = i.message_id AND m.partition_id = (
                    SELECT p.id FROM {partitions} p
                    WHERE p.topic = i.topic AND p.partition_key = i.partition_key
                )
            ) AS message_offset
            FROM input i
        ) looked_up
        WHERE message_offset IS NOT NULL"""

# The counters are inserted in sorted order, and so locked in sorted order. Nothing is numbered or
# inserted when one payload is refused: then fewer rows come back than went in.
_APPEND = """
    WITH input AS MATERIALIZED (
        SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::bytea[], $5::smallint[],
                             $6::text[])
            WITH ORDINALITY
            AS i (topic, partition_key, message_id, payload, encoding, headers, place)
    ),
    refused AS MATERIALIZED (<refused>
    ),
    known AS MATERIALIZED (<known>
    ),
    fresh AS MATERIALIZED (
        SELECT i.*,
               row_number() OVER (PARTITION BY i.topic, i.partition_key ORDER BY i.place) AS number,
               count(*) OVER (PARTITION BY i.topic, i.partition_key) AS of_partition
        FROM input i
        WHERE i.place NOT IN (SELECT place FROM known) AND NOT EXISTS (SELECT FROM refused)
    ),
    counters AS (
        INSERT INTO {partitions} AS p (topic, partition_key, next_offset)
        SELECT topic, partition_key, 1 + count(*) FROM fresh
        GROUP BY topic, partition_key
        ORDER BY topic COLLATE "C", partition_key COLLATE "C"
        ON CONFLICT (topic, partition_key) DO UPDATE
        SET next_offset = p.next_offset + excluded.next_offset - 1
        RETURNING id, topic, partition_key, next_offset
    ),
    placed AS MATERIALIZED (
        SELECT f.*, c.id AS partition_id,
               c.next_offset - f.of_partition + f.number - 1 AS message_offset
        FROM fresh f
        JOIN counters c ON c.topic = f.topic AND c.partition_key = f.partition_key
    ),
    appended AS (
        INSERT INTO {messages} (partition_id, message_offset, message_id, payload, encoding,
                                headers, published_at)
        SELECT partition_id, message_offset, message_id, payload, encoding, headers, {now}
        FROM placed ORDER BY place
    )
    SELECT place, message_offset, false FROM placed
    UNION ALL
    SELECT place, message_offset, true FROM known WHERE NOT EXISTS (SELECT FROM refused)"""

_REFUSED = f"""
        SELECT 1 FROM unnest($<topics>::text[], $<sizes>::bigint[]) AS s (topic, largest)
        WHERE s.largest > COALESCE(
            (SELECT t.max_payload_bytes FROM {{topics}} t WHERE t.topic = s.topic),
            {PAYLOAD_BYTES_DEFAULT})"""


def refused_by(topics: int, sizes: int) -> str:
    """The topics, among parameters of these numbers, whose largest payload is over the limit."""
    return _REFUSED.replace("<topics>", str(topics)).replace("<sizes>", str(sizes))


_APPEND = _APPEND.replace("<refused>", refused_by(7, 8))
APPEND = _APPEND.replace("<known>", _NONE_KNOWN)
APPEND_CHECKED = _APPEND.replace("<known>", _KNOWN)

# WHERE false: an existing row is locked but not written.
LOCK_PARTITIONS = """
    INSERT INTO {partitions} AS p (topic, partition_key, next_offset)
    SELECT topic, partition_key, 1 FROM unnest($1::text[], $2::text[]) AS w (topic, partition_key)
    WHERE NOT EXISTS (<refused>)
    ORDER BY topic COLLATE "C", partition_key COLLATE "C"
    ON CONFLICT (topic, partition_key) DO UPDATE SET next_offset = p.next_offset WHERE false"""
LOCK_PARTITIONS = LOCK_PARTITIONS.replace("<refused>", refused_by(3, 4))

LIMITS = """
    SELECT w.topic, (SELECT t.max_payload_bytes FROM {topics} t WHERE t.topic = w.topic)
    FROM unnest($1::text[]) AS w (topic)"""

FETCH_RANGES = """
    SELECT <columns>
    FROM unnest($1::bigint[], $2::bigint[], $3::bigint[]) AS s (partition_id, first, last)
    CROSS JOIN LATERAL (
        SELECT * FROM {messages} m
        WHERE m.partition_id = s.partition_id AND m.message_offset BETWEEN s.first AND s.last
        OFFSET 0 -- a fence: each range is looked up by itself
    ) m"""


class PostgresSchema(Schema):
    """DDL is transactional; an advisory lock of the transaction keeps rivals out."""

    # Not to_regclass, which answers from a cache that may be older than the lock.
    exists_sql = """
        SELECT COUNT(*) FROM pg_catalog.pg_class c
        JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
        WHERE c.relname = $1::text
          AND n.nspname = ANY (CASE WHEN $2::text IS NULL THEN current_schemas(false)
                                    ELSE ARRAY[$2::text]::name[] END)"""
    lock_sql = """
        SELECT 1 FROM pg_advisory_xact_lock(hashtext('rowmq-migrate'),
                                            hashtext('{qualifier}{prefix}'))"""

    def exists_params(self) -> tuple[str | None, ...]:
        return (*super().exists_params(), self.dialect.schema)

    def preamble(self) -> str:
        schema = self.dialect.schema
        return "" if schema is None else f'CREATE SCHEMA IF NOT EXISTS "{schema}";\n\n'


def postgres_store(*, prefix: str, schema: str | None) -> Store:
    dialect = PostgresDialect(prefix=prefix, schema=schema)
    return Store(dialect, PostgresTopics(dialect), PostgresSchema(dialect))
