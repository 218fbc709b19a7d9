"""PostgreSQL: arrays in, one statement a batch.

`append` locks or makes the counters, takes the next offsets and inserts in a single statement. By
itself that is one round trip, and the counters' locks are held only while it commits.
It looks for known ids in a snapshot that is older than the locks, so a rival who publishes the same
id at the same moment shows as a unique violation; then the locks are taken first, and the same
statement, with a new snapshot, sees everything.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

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
    Partition,
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
            if len(runs) > 1:
                yield from self.refuse_any(fresh)  # before the first run is appended
            for run in runs:
                found |= yield from self.append(run, check=True, sole=False)
        return results(entries, found)

    def append(
        self, entries: Sequence[Entry], *, check: bool, sole: bool
    ) -> Operation[dict[tuple[str, str, str], Row]]:
        """Append entries; `check` leaves out known ids. Offset and known, by identity."""
        found: dict[tuple[str, str, str], Row] = {}
        sql = self.dialect.sql(APPEND_CHECKED if check else APPEND)
        while entries:
            partitions = by_partition(entries)
            patience = f"{round(self.dialect.lock_timeout * 1000)}ms" if sole else None
            params = (*partition_columns(partitions), *message_columns(partitions), patience)
            result = yield Statement("topics.append", sql, params, sole=sole)
            if not result.rows:
                yield from self.refuse(entries)
            ordered = [entry for group in partitions.values() for entry in group]
            known = {
                ordered[place - 1].identity: (offset, True)
                for is_known, place, offset in result
                if is_known
            }
            if not known:
                groups = list(partitions.values())
                for _, place, first in result:
                    for number, entry in enumerate(groups[place - 1]):
                        found[entry.identity] = (first + number, False)
                return found
            # Nothing was appended: once more, without those that are there.
            found |= known
            entries = [entry for entry in entries if entry.identity not in known]
        return found

    def refuse_any(self, entries: Sequence[Entry]) -> Operation[None]:
        """Raise if a payload is too large."""
        topics = sorted({entry.topic for entry in entries})
        result = yield Statement("topics.limits", self.dialect.sql(LIMITS), (topics,))
        refuse_oversized(entries, limits_of(result))

    def refuse(self, entries: Sequence[Entry]) -> Operation[None]:
        """Say which payload was too large for `append` to insert anything."""
        yield from self.refuse_any(entries)
        raise SerializationFailure("the topic's payload limit was changed at this very moment")

    def lock_partitions(self, entries: Sequence[Entry]) -> Operation[None]:
        """Lock the entries' partitions; make those that are missing, unless one is refused."""
        columns = partition_columns(by_partition(entries))
        yield Statement("topics.lock_partitions", self.dialect.sql(LOCK_PARTITIONS), columns)

    def fetch_ranges(self, spans: Sequence[Span]) -> Operation[Iterable[Row]]:
        return (yield self._fetch("topics.read", MESSAGE_COLUMNS, spans))

    def fetch_times(self, spans: Sequence[Span]) -> Operation[Iterable[Row]]:
        return (yield self._fetch("topics.times", "m.partition_id, m.published_at", spans))

    def _fetch(self, name: str, columns: str, spans: Sequence[Span]) -> Statement:
        sql = self.dialect.sql(FETCH_RANGES.replace("<columns>", columns))
        bounds = [list(column) for column in zip(*(span[1:] for span in spans), strict=True)]
        return Statement(name, sql, bounds, sole=True)


def by_partition(entries: Sequence[Entry]) -> dict[Partition, list[Entry]]:
    """The entries of each partition, sorted by partition: the order of the locks."""
    groups: dict[Partition, list[Entry]] = {}
    for entry in entries:
        groups.setdefault(entry.partition, []).append(entry)
    return dict(sorted(groups.items()))


def partition_columns(groups: Mapping[Partition, Sequence[Entry]]) -> tuple[list[object], ...]:
    """An array each of topic, key, how many messages, and the largest payload's size."""
    return (
        [topic for topic, _ in groups],
        [key for _, key in groups],
        [len(group) for group in groups.values()],
        [max(len(entry.data) for entry in group) for group in groups.values()],
    )


def message_columns(groups: Mapping[Partition, Sequence[Entry]]) -> tuple[list[object], ...]:
    """An array each of the partition's place, the number within it, and what is stored."""
    numbered = [
        (place, number, entry)
        for place, group in enumerate(groups.values(), 1)
        for number, entry in enumerate(group)
    ]
    return (
        [place for place, _, _ in numbered],
        [number for _, number, _ in numbered],
        [entry.id for _, _, entry in numbered],
        [entry.data for _, _, entry in numbered],
        [entry.encoding for _, _, entry in numbered],
        [entry.headers for _, _, entry in numbered],
    )


# The partitions come sorted, and an INSERT takes them, and so locks them, in that order. Look-ups
# are subqueries, one row at a time: as joins, a plan for "any parameters" may hash a whole table.
_WANTED = """
    WITH wanted AS MATERIALIZED (
        SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[]) WITH ORDINALITY
            AS w (topic, partition_key, messages, largest, place)
    )"""

# How long to wait for the locks: for this transaction only, and only if it is our own.
_PATIENCE = """,
    patience AS MATERIALIZED (
        SELECT set_config(
            'lock_timeout', COALESCE($11::text, current_setting('lock_timeout')), true
        ) AS lock_timeout
    )"""

_NONE_REFUSED = f"""
        NOT EXISTS (
            SELECT FROM wanted v
            WHERE v.largest > COALESCE(
                (SELECT t.max_payload_bytes FROM {{topics}} t WHERE t.topic = v.topic),
                {PAYLOAD_BYTES_DEFAULT})
        )"""

_KNOWN = """,
    known AS MATERIALIZED (
        SELECT * FROM (
            SELECT m.place, (
                SELECT stored.message_offset FROM {messages} stored
                WHERE stored.partition_id = w.id AND stored.message_id = m.message_id
            ) AS message_offset
            FROM unnest($5::integer[], $7::text[]) WITH ORDINALITY
                AS m (partition_place, message_id, place)
            JOIN (
                SELECT wanted.place, (
                    SELECT p.id FROM {partitions} p
                    WHERE p.topic = wanted.topic AND p.partition_key = wanted.partition_key
                ) AS id
                FROM wanted OFFSET 0
            ) w ON w.place = m.partition_place
        ) looked_up
        WHERE message_offset IS NOT NULL
    )"""

_OR_KNOWN = f"""
    UNION ALL
    SELECT true, place, message_offset FROM known WHERE {_NONE_REFUSED}"""

# Gives the first offset of each partition; or, if ids are known, those, having appended nothing;
# or no row at all if a payload is refused.
_APPEND = (
    _WANTED
    + _PATIENCE
    + """<known>,
    counters AS (
        INSERT INTO {partitions} AS p (topic, partition_key, next_offset)
        SELECT topic, partition_key, messages + 1 FROM wanted
        WHERE (SELECT lock_timeout FROM patience) IS NOT NULL AND <none refused><none known>
        ON CONFLICT (topic, partition_key) DO UPDATE
        SET next_offset = p.next_offset + excluded.next_offset - 1
        RETURNING id, topic, partition_key, next_offset
    ),
    placed AS MATERIALIZED (
        SELECT w.place, c.id, c.next_offset - w.messages AS first_offset
        FROM wanted w
        JOIN counters c ON c.topic = w.topic AND c.partition_key = w.partition_key
    ),
    appended AS (
        INSERT INTO {messages} (partition_id, message_offset, message_id, payload, encoding,
                                headers, published_at)
        SELECT p.id, p.first_offset + m.number, m.message_id, m.payload, m.encoding, m.headers,
               {now}
        FROM unnest($5::integer[], $6::integer[], $7::text[], $8::bytea[], $9::smallint[],
                    $10::text[])
            AS m (partition_place, number, message_id, payload, encoding, headers)
        JOIN placed p ON p.place = m.partition_place
    )
    SELECT false, place, first_offset FROM placed<or known>"""
).replace("<none refused>", _NONE_REFUSED)

APPEND = _APPEND.replace("<known>", "").replace("<none known>", "").replace("<or known>", "")
APPEND_CHECKED = (
    _APPEND.replace("<known>", _KNOWN)
    .replace("<none known>", " AND NOT EXISTS (SELECT FROM known)")
    .replace("<or known>", _OR_KNOWN)
)

# WHERE false: an existing row is locked but not written.
LOCK_PARTITIONS = (
    _WANTED
    + """
    INSERT INTO {partitions} AS p (topic, partition_key, next_offset)
    SELECT topic, partition_key, 1 FROM wanted WHERE <none refused>
    ON CONFLICT (topic, partition_key) DO UPDATE SET next_offset = p.next_offset WHERE false"""
).replace("<none refused>", _NONE_REFUSED)

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

    def unneeded(self) -> Operation[str]:
        # Even where the schema exists, the right to create others would be asked for.
        sql = "SELECT COUNT(*) FROM pg_catalog.pg_namespace WHERE nspname = $1::text"
        result = yield Statement("schema.namespace", sql, (self.dialect.schema,))
        return self.preamble().strip().removesuffix(";") if result.rows[0][0] else ""


def postgres_store(**options: Any) -> Store:
    """The operations, for the options of a dialect."""
    dialect = PostgresDialect(**options)
    return Store(dialect, PostgresTopics(dialect), PostgresSchema(dialect))
