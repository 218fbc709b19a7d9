"""PostgreSQL: arrays in, one statement a batch.

`append` locks or makes the counters, takes the next offsets and inserts in a single statement. By
itself that is one round trip, and the counters' locks are held only while it commits.
It looks for known ids in a snapshot that is older than the locks, so a rival who publishes the same
id at the same moment shows as a unique violation; then the locks are taken first, and the same
statement, with a new snapshot, sees everything.
"""

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from rowmq.errors import SerializationFailure, UniqueViolation
from rowmq.message import PublishResult
from rowmq.naming import check_identifier
from rowmq.store.dialect import Columns, Dialect, equal
from rowmq.store.entries import Entry, Partition, refuse_oversized, results, unrepeated
from rowmq.store.postgres_jobs import (
    PostgresClaims,
    PostgresJobs,
    PostgresQueues,
    PostgresSettles,
    array,
    shortened,
    text_array,
)
from rowmq.store.postgres_leases import PostgresLeases
from rowmq.store.schema import Schema
from rowmq.store.staging import Staging
from rowmq.store.statement import Operation, Row, Statement
from rowmq.store.store import Store, store_of
from rowmq.store.topics import PAYLOAD_BYTES_DEFAULT, Span, Topics, limited, limits_of
from rowmq.store.workers import Workers

__all__ = ["PostgresDialect", "PostgresSchema", "PostgresTopics", "postgres_store"]


class PostgresDialect(Dialect):
    name = "postgres"
    # clock_timestamp, because now() is when the caller's transaction began.
    now = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
    rows_max = numbers_max = 5_000

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._names["channel"] = self.channel

    @property
    def channel(self) -> str:
        """Where this set of tables is told of: a name of LISTEN and NOTIFY.

        It is a hash, as prefix and schema together may be too long. Where no schema was given it
        is the usual one, so that a client who names that one is heard too.
        """
        tables = f"{self.schema or 'public'}.{self.prefix}"
        return f"rowmq_{hashlib.sha256(tables.encode()).hexdigest()[:32]}"

    def qualifier(self, schema: str | None) -> str:
        return "" if schema is None else f'"{check_identifier(schema, what="the schema")}".'

    def placeholders(self, sql: str) -> str:
        head, *rest = sql.split("?")
        return head + "".join(f"${number}{part}" for number, part in enumerate(rest, 1))

    def given(self, columns: Columns, rows: Sequence[Sequence[Any]]) -> tuple[str, list[Any]]:
        # One array for each column: the statement is the same for any number of rows. They are
        # given by subqueries, so that its plan is the same too, and is not made anew each time.
        arrays = ", ".join(f"(SELECT ?::{kind}[])" for kind in columns.values())
        lists = [list(column) for column in zip(*rows, strict=True)]
        return f"SELECT * FROM unnest({arrays}) AS g ({', '.join(columns)})", lists

    def looked_up(self, table: str, alias: str, source: str, keys: Sequence[str]) -> str:
        # A join may be planned as a scan of an index that has the order, or all that is counted.
        found = f"SELECT f.* FROM {table} f WHERE {equal(keys, 'f')} OFFSET 0"
        return f"({source}) w CROSS JOIN LATERAL ({found}) {alias}"

    def discard_from(self, table: str, source: str, keys: Sequence[str]) -> str:
        # For many rows, a join may be planned as a scan of the whole table. A row that is known by
        # one column is found by that, also if it was updated since this statement began. Others,
        # which nobody updates, by where they lie: an update would move them away from there.
        if len(keys) == 1:
            (key,) = keys
            return (
                f"DELETE FROM {table} WHERE {key} = ANY (ARRAY(SELECT w.{key} FROM ({source}) w))"
            )
        found = f"SELECT f.ctid FROM {table} f WHERE {equal(keys, 'f')} OFFSET 0"
        places = f"SELECT f.ctid FROM ({source}) w CROSS JOIN LATERAL ({found}) f"
        return f"DELETE FROM {table} WHERE ctid = ANY (ARRAY({places}))"

    def insert_into(
        self, table: str, columns: Columns, rows: Sequence[Sequence[Any]], ending: str = ""
    ) -> tuple[str, list[Any]]:
        source, lists = self.given(columns, rows)
        return f"INSERT INTO {table} ({', '.join(columns)}) {source} {ending}", lists

    def pack(self, rows: Sequence[Sequence[int]]) -> Any:
        return [list(row) for row in rows]

    packs = "?::bigint = ANY (claimed)"

    def packed(self, number: int) -> Any:
        return number

    def unpack(self, value: Any) -> list[list[int]]:
        return [list(row) for row in value]


class PostgresTopics(Topics):
    def publish(
        self,
        entries: Sequence[Entry],
        *,
        alone: bool = True,
        notify: Collection[str] = (),
    ) -> Operation[list[PublishResult]]:
        fresh = unrepeated(entries)
        runs = list(self.runs(fresh))
        given = any(entry.id_given for entry in fresh)
        found: dict[tuple[str, str, str], Row] = {}
        if len(runs) == 1 and (alone or not given):
            try:
                found = yield from self.append(fresh, check=given, sole=alone, notify=notify)
            except UniqueViolation:
                # In a caller's transaction the ids are new ones of our own: it cannot come to this.
                if not alone:
                    raise
        if not found:
            yield from self.lock_partitions(fresh)
            if len(runs) > 1:
                yield from self.refuse_any(fresh)  # before the first run is appended
            for run in runs:
                found |= yield from self.append(run, check=True, sole=False, notify=notify)
        return results(entries, found)

    def append(
        self, entries: Sequence[Entry], *, check: bool, sole: bool, notify: Collection[str]
    ) -> Operation[dict[tuple[str, str, str], Row]]:
        """Append entries; `check` leaves out known ids. Offset and known, by identity."""
        found: dict[tuple[str, str, str], Row] = {}
        while entries:
            partitions = by_partition(entries)
            patience = f"{round(self.dialect.lock_timeout * 1000)}ms" if sole else None
            told = sorted({topic for topic, _ in partitions}.intersection(notify))
            params = [*partition_columns(partitions), *message_columns(partitions), patience]
            if told:
                params.append(told)
            sql = self.dialect.sql(APPEND[len(partitions) == 1, check, bool(told)])
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
                    for offset, entry in enumerate(groups[place - 1], first):
                        found[entry.topic, entry.key, entry.id] = (offset, False)
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

    def fetch(
        self,
        name: str,
        columns: str,
        spans: Sequence[Span],
        *,
        few: int = 0,
        share: bool = False,  # noqa: ARG002 - a snapshot that is too old is an error here
    ) -> Operation[Iterable[Row]]:
        template = FETCH_RANGES.replace("<few>", limited(few))
        sql = self.dialect.sql(template.replace("<columns>", columns))
        bounds = [list(column) for column in zip(*(span[1:] for span in spans), strict=True)]
        return (yield Statement(name, sql, bounds, sole=True))


def by_partition(entries: Sequence[Entry]) -> dict[Partition, list[Entry]]:
    """The entries of each partition, sorted by partition: the order of the locks."""
    groups: dict[Partition, list[Entry]] = {}
    for entry in entries:
        groups.setdefault((entry.topic, entry.key), []).append(entry)
    return dict(sorted(groups.items()))


def partition_columns(groups: Mapping[Partition, Sequence[Entry]]) -> tuple[Any, ...]:
    """An array each of topic, key, how many messages, and the largest payload's size."""
    return (
        shortened([topic for topic, _ in groups]),
        text_array([key for _, key in groups]),
        shortened([len(group) for group in groups.values()]),
        shortened([max([len(entry.data) for entry in group]) for group in groups.values()]),
    )


def message_columns(groups: Mapping[Partition, Sequence[Entry]]) -> tuple[Any, ...]:
    """An array each of the partition's place and what is stored, one partition after the other."""
    entries = [entry for group in groups.values() for entry in group]
    headers = [entry.headers for entry in entries]
    return (
        array(shortened([p for p, group in enumerate(groups.values(), 1) for _ in group])),
        text_array([entry.id for entry in entries]),
        [entry.data for entry in entries],
        shortened([entry.encoding for entry in entries]),
        headers if any(headers) else [],
    )


# The partitions come sorted, and an INSERT takes them, and so locks them, in that order. Look-ups
# are subqueries, one row at a time: as joins, a plan for "any parameters" may hash a whole table.
# Of columns that are the same in all rows, only the first value is given.
_WANTED = """
    WITH wanted AS MATERIALIZED (
        SELECT COALESCE(w.topic, ($1::text[])[1]) AS topic, w.partition_key,
               COALESCE(w.messages, ($3::bigint[])[1]) AS messages,
               COALESCE(w.largest, ($4::bigint[])[1]) AS largest, w.place
        FROM unnest($1::text[], $2::text::text[], $3::bigint[], $4::bigint[]) WITH ORDINALITY
            AS w (topic, partition_key, messages, largest, place)
    )"""

_WANTED_ONE = """
    WITH wanted AS (
        SELECT ($1::text[])[1] AS topic, ($2::text::text[])[1] AS partition_key,
               ($3::bigint[])[1] AS messages, ($4::bigint[])[1] AS largest, 1::bigint AS place
    )"""

# How long to wait for the locks: for this transaction only, and only if it is our own.
_PATIENCE = """,
    patience AS MATERIALIZED (
        SELECT set_config(
            'lock_timeout', COALESCE($10::text, current_setting('lock_timeout')), true
        ) AS lock_timeout
    )"""

_NONE_REFUSED = f"""
        NOT EXISTS (
            SELECT FROM <largest> v
            WHERE v.largest > COALESCE(
                (SELECT t.max_payload_bytes FROM {{topics}} t WHERE t.topic = v.topic),
                {PAYLOAD_BYTES_DEFAULT})
        )"""

_LARGEST = "(SELECT topic, MAX(largest) AS largest FROM wanted GROUP BY topic)"

_KNOWN = """,
    known AS MATERIALIZED (
        SELECT * FROM (
            SELECT m.place, (
                SELECT stored.message_offset FROM {messages} stored
                WHERE stored.partition_id = w.id AND stored.message_id = m.message_id
            ) AS message_offset
            FROM unnest($5::text::integer[], $6::text::text[]) WITH ORDINALITY
                AS m (partition_place, message_id, place)
            JOIN (
                SELECT wanted.place, (
                    SELECT p.id FROM {partitions} p
                    WHERE p.topic = wanted.topic AND p.partition_key = wanted.partition_key
                ) AS id
                FROM wanted OFFSET 0
            ) w ON w.place = COALESCE(m.partition_place, 1)
        ) looked_up
        WHERE message_offset IS NOT NULL
    )"""

_OR_KNOWN = f"""
    UNION ALL
    SELECT true, place, message_offset FROM known WHERE {_NONE_REFUSED}"""

_PLACED = """
        SELECT w.place, c.id, c.next_offset - w.messages AS first_offset,
               (SUM(w.messages) OVER (ORDER BY w.place) - w.messages)::bigint AS earlier
        FROM wanted w
        JOIN counters c ON c.topic = w.topic AND c.partition_key = w.partition_key"""

_PLACED_ONE = """
        SELECT w.place, c.id, c.next_offset - w.messages AS first_offset, 0::bigint AS earlier
        FROM wanted w CROSS JOIN counters c"""

_INTO_PLACED = "JOIN placed p ON p.place = COALESCE(m.partition_place, 1)"

# Who listens is told at the commit, also where that is a caller's. It is in the WHERE at the end
# only because what nothing reads would not be run.
_NOTIFIED = """,
    notified AS MATERIALIZED (
        SELECT COUNT(pg_notify('{channel}', topic)) AS topics FROM unnest($11::text[]) AS t (topic)
        WHERE EXISTS (SELECT FROM placed)
    )"""

# Gives the first offset of each partition; or, if ids are known, those, having appended nothing;
# or no row at all if a payload is refused.
_APPEND = """<wanted><patience><known>,
    counters AS (
        INSERT INTO {partitions} AS p (topic, partition_key, next_offset, largest_bytes)
        SELECT topic, partition_key, messages + 1, largest FROM wanted
        WHERE (SELECT lock_timeout FROM patience) IS NOT NULL AND <none refused><none known>
        ON CONFLICT (topic, partition_key) DO UPDATE
        SET next_offset = p.next_offset + excluded.next_offset - 1,
            largest_bytes = GREATEST(p.largest_bytes, excluded.largest_bytes)
        RETURNING id, topic, partition_key, next_offset
    ),
    placed AS MATERIALIZED (<placed>
    ),
    appended AS (
        INSERT INTO {messages} (partition_id, message_offset, message_id, payload, encoding,
                                headers, published_at)
        SELECT p.id, p.first_offset + m.number - p.earlier - 1, m.message_id, m.payload,
               COALESCE(m.encoding, ($8::smallint[])[1]), m.headers, (SELECT {now})
        FROM unnest($5::text::integer[], $6::text::text[], $7::bytea[], $8::smallint[], $9::text[])
            WITH ORDINALITY AS m (partition_place, message_id, payload, encoding, headers, number)
        <into placed>
    )<notified>
    SELECT false, place, first_offset FROM placed<once told><or known>"""


def append_template(*, one: bool, check: bool, tell: bool) -> str:
    """The statement with what a batch needs and nothing else: each part takes its time, and of a
    small batch that is most of it.
    """
    parts = {
        "<wanted>": _WANTED_ONE if one else _WANTED,
        "<patience>": _PATIENCE,
        "<known>": _KNOWN if check else "",
        "<none known>": " AND NOT EXISTS (SELECT FROM known)" if check else "",
        "<or known>": _OR_KNOWN if check else "",
        "<placed>": _PLACED_ONE if one else _PLACED,
        "<notified>": _NOTIFIED if tell else "",
        "<once told>": "\n    WHERE (SELECT topics FROM notified) IS NOT NULL" if tell else "",
        "<into placed>": "CROSS JOIN placed p" if one else _INTO_PLACED,
        "<none refused>": _NONE_REFUSED,
        "<largest>": "wanted" if one else _LARGEST,
    }
    template = _APPEND
    for name, part in parts.items():
        template = template.replace(name, part)
    return template


APPEND = {
    (one, check, tell): append_template(one=one, check=check, tell=tell)
    for one in (False, True)
    for check in (False, True)
    for tell in (False, True)
}
"""By whether there is one partition, whether ids may be known, and whether somebody is told."""

# WHERE false: an existing row is locked but not written.
LOCK_PARTITIONS = (
    _WANTED
    + """
    INSERT INTO {partitions} AS p (topic, partition_key, next_offset)
    SELECT topic, partition_key, 1 FROM wanted WHERE <none refused>
    ON CONFLICT (topic, partition_key) DO UPDATE SET next_offset = p.next_offset WHERE false"""
).replace("<none refused>", _NONE_REFUSED.replace("<largest>", _LARGEST))

LIMITS = """
    SELECT w.topic, (SELECT t.max_payload_bytes FROM {topics} t WHERE t.topic = w.topic)
    FROM unnest($1::text[]) AS w (topic)"""

FETCH_RANGES = """
    SELECT <columns>
    FROM unnest((SELECT $1::bigint[]), (SELECT $2::bigint[]), (SELECT $3::bigint[]))
        AS s (partition_id, first, last)
    CROSS JOIN LATERAL (
        SELECT * FROM {messages} m
        WHERE m.partition_id = s.partition_id AND m.message_offset BETWEEN s.first AND s.last
        <few> OFFSET 0 -- a fence: each range is looked up by itself
    ) m"""


class PostgresStaging(Staging):
    def lock_partitions(self, batch: int) -> Operation[None]:
        yield Statement("staging.lock", self.dialect.sql(LOCK_STAGED), (batch,))

    def attempt(self, name: str, template: str, params: Sequence[Any]) -> Operation[int]:
        # An error would end the transaction.
        yield Statement("staging.savepoint", "SAVEPOINT rowmq_staging")
        try:
            return (yield from super().attempt(name, template, params))
        except UniqueViolation:
            yield Statement("staging.undo", "ROLLBACK TO SAVEPOINT rowmq_staging")
            raise


# WHERE false: an existing row is locked but not written.
LOCK_STAGED = """
    INSERT INTO {partitions} AS p (topic, partition_key, next_offset)
    SELECT w.target, w.name, 1
    FROM (
        SELECT DISTINCT t.target, t.name
        FROM {stages} g JOIN {stage_parts} t ON t.stage_id = g.id WHERE g.batch_id = ?
    ) w
    ORDER BY w.target, w.name
    ON CONFLICT (topic, partition_key) DO UPDATE SET next_offset = p.next_offset WHERE false"""


class PostgresWorkers(Workers):
    # A range of the index by owners, in its order. The rows of one owner may be looked for in the
    # table until there are so many: that looks cheap where few own all there is, and is not for
    # whoever owns nothing.
    owned_sql = """
        SELECT x.leased_by, COUNT(*)
        FROM (SELECT ?::bigint AS group_id, ?::bigint AS id) w
        CROSS JOIN LATERAL (
            SELECT o.leased_by FROM {offsets} o
            WHERE o.group_id = w.group_id AND o.leased_by BETWEEN w.id AND w.id
            ORDER BY o.leased_by, o.partition_id LIMIT ?
        ) x
        GROUP BY x.leased_by"""


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
    return store_of(
        dialect,
        PostgresTopics(dialect),
        PostgresSchema(dialect),
        staging=PostgresStaging,
        leases=PostgresLeases,
        queues=PostgresQueues,
        jobs=PostgresJobs,
        claims=PostgresClaims,
        settles=PostgresSettles,
        workers=PostgresWorkers,
    )
