"""What `doctor` asks PostgreSQL: its settings, sessions, slots, and the statistics of tables.

Each operation is one transaction with a short patience, so that a table which somebody has locked,
or a catalogue that is slow to read, costs a note and not the whole examination.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from rowmq.store.doctor import Examination
from rowmq.store.doctor_facts import Identity, IndexState, Transaction
from rowmq.store.statement import Operation, Result, Statement

__all__ = [
    "Activity",
    "Capacity",
    "PostgresExamination",
    "PreparedTransaction",
    "Setting",
    "Slot",
    "TableState",
]

PATIENCE = (10_000, 2_000)
"""How long a statement may take, and may wait for a lock, in milliseconds."""


class Setting(NamedTuple):
    """A setting as sessions of this user have it."""

    value: str
    source: str


class Capacity(NamedTuple):
    """Connections in use and allowed, and how far transaction ids have been used up."""

    connections: int
    connections_max: int
    xid_age: int
    multixact_age: int
    unvacuumed: list[str]
    """Tables of ours that autovacuum is told to leave alone."""


class Activity(NamedTuple):
    """Transactions that have been open for long, and how many sessions do not show theirs."""

    transactions: list[Transaction]
    hidden: int
    user: str


class PreparedTransaction(NamedTuple):
    """A transaction that was prepared for a two-phase commit and not ended."""

    name: str
    owner: str
    seconds: float


class Slot(NamedTuple):
    """A replication slot, or a standby, that keeps old rows."""

    name: str
    active: bool
    xid_age: int
    kind: str


class TableState(NamedTuple):
    """A table's rows and size, as the statistics have them."""

    table: str
    live: int
    dead: int
    total_bytes: int
    index_bytes: int
    vacuumed_seconds: float | None


class PostgresExamination(Examination):
    """What can be asked of PostgreSQL."""

    def ask(self, name: str, template: str, params: Sequence[Any] = ()) -> Operation[Result]:
        # In a transaction, which the patience ends with.
        yield Statement("doctor.patience", PATIENT, PATIENCE)
        return (yield Statement(f"doctor.{name}", self.dialect.sql(template), params))

    def clock(self) -> Operation[int]:
        # By itself: the time that it takes is measured.
        result = yield from super().ask("clock", "SELECT {now}")
        return int(result.rows[0][0])

    def identity(self) -> Operation[Identity]:
        result = yield from self.ask("identity", IDENTITY)
        version, number, user, database, host, port, standby = result.rows[0]
        place = f"{host}:{port}" if host else "local socket"
        numbers = (number // 10_000, number % 10_000)
        return Identity("PostgreSQL", version, numbers, user, database, place, standby)

    def columns(self) -> Operation[list[tuple[str, str]]]:
        result = yield from self.ask("columns", COLUMNS, self._ours())
        return [(table, column) for table, column in result]

    def indexes(self) -> Operation[list[IndexState]]:
        result = yield from self.ask("indexes", INDEXES, self._ours())
        return [
            IndexState(table, name, tuple(columns.split(",")), unique, valid)
            for table, name, columns, unique, valid in result
        ]

    def settings(self) -> Operation[dict[str, Setting]]:
        """The settings that matter, by name."""
        result = yield from self.ask("settings", SETTINGS, (list(SETTING_NAMES),))
        return {name: Setting(value or "", source) for name, value, source in result}

    def capacity(self) -> Operation[Capacity]:
        """How much is left of connections and of transaction ids."""
        result = yield from self.ask("capacity", CAPACITY)
        used, most, xids, multixacts = result.rows[0]
        left_alone = yield from self.ask("autovacuum", UNVACUUMED, self._ours())
        names = [name for (name,) in left_alone]
        return Capacity(int(used), int(most), int(xids), int(multixacts), names)

    def activity(self, *, seconds: float) -> Operation[Activity]:
        """Transactions in this database that have been open for so long."""
        result = yield from self.ask("activity", ACTIVITY, (float(seconds),))
        hidden = yield from self.ask("hidden", HIDDEN)
        count, user = hidden.rows[0]
        return Activity([Transaction(*row) for row in result], int(count), user)

    def prepared(self, *, seconds: float) -> Operation[list[PreparedTransaction]]:
        """Prepared transactions of this database that nobody has ended for so long."""
        result = yield from self.ask("prepared", PREPARED, (float(seconds),))
        return [PreparedTransaction(*row) for row in result]

    def slots(self) -> Operation[list[Slot]]:
        """Replication slots and standbys that keep old rows."""
        result = yield from self.ask("slots", SLOTS)
        return [Slot(*row) for row in result]

    def table_states(self) -> Operation[list[TableState]]:
        """Rows, dead rows and sizes of our tables."""
        result = yield from self.ask("table_states", TABLE_STATES, self._ours())
        return [TableState(*row) for row in result]

    def _ours(self) -> tuple[list[str], str | None]:
        """The parameters of `OURS`."""
        return self.tables(), self.dialect.schema


PATIENT = """
    SELECT set_config('statement_timeout', $1::integer::text, true),
           set_config('lock_timeout', $2::integer::text, true)"""

IDENTITY = """
    SELECT current_setting('server_version'), current_setting('server_version_num')::integer,
           current_user::text, current_database()::text, host(inet_server_addr()),
           inet_server_port(), pg_is_in_recovery()"""

# A class `c` in a namespace `n` that is one of ours.
OURS = """
    c.relkind IN ('r', 'p') AND c.relname::text = ANY (?::text[])
    AND CASE WHEN ?::text IS NULL THEN pg_catalog.pg_table_is_visible(c.oid)
             ELSE n.nspname = $2 END"""

_CLASSES = """
    pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"""

COLUMNS = f"""
    SELECT c.relname::text, a.attname::text FROM {_CLASSES}
    JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid
    WHERE {OURS} AND a.attnum > 0 AND NOT a.attisdropped"""

INDEXES = f"""
    SELECT c.relname::text, i.relname::text, string_agg(a.attname::text, ',' ORDER BY k.place),
           x.indisunique, x.indisvalid AND x.indisready
    FROM {_CLASSES}
    JOIN pg_catalog.pg_index x ON x.indrelid = c.oid
    JOIN pg_catalog.pg_class i ON i.oid = x.indexrelid
    CROSS JOIN LATERAL unnest(x.indkey::smallint[]) WITH ORDINALITY AS k (number, place)
    JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.number
    WHERE {OURS} AND x.indpred IS NULL AND x.indexprs IS NULL AND k.place <= x.indnkeyatts
    GROUP BY c.relname, i.relname, x.indisunique, x.indisvalid, x.indisready"""

SETTING_NAMES = (
    "autovacuum",
    "default_transaction_isolation",
    "default_transaction_read_only",
    "fsync",
    "full_page_writes",
    "idle_in_transaction_session_timeout",
    "lock_timeout",
    "statement_timeout",
    "synchronous_commit",
    "track_counts",
)

# reset_val: the examination's own patience is a setting too.
SETTINGS = """
    SELECT name::text, reset_val::text, source::text FROM pg_catalog.pg_settings
    WHERE name = ANY (?::text[])"""

CAPACITY = """
    SELECT (SELECT SUM(numbackends) FROM pg_catalog.pg_stat_database)::bigint,
           current_setting('max_connections')::integer
               - current_setting('superuser_reserved_connections')::integer,
           age(datfrozenxid)::bigint, mxid_age(datminmxid)::bigint
    FROM pg_catalog.pg_database WHERE datname = current_database()"""

UNVACUUMED = f"""
    SELECT c.relname::text FROM {_CLASSES}
    WHERE {OURS} AND EXISTS (
        SELECT 1 FROM unnest(c.reloptions) AS o (option)
        WHERE o.option ~* '^autovacuum_enabled=(false|off|no|0)$')
    ORDER BY c.relname"""

ACTIVITY = """
    SELECT pid, extract(epoch FROM clock_timestamp() - xact_start)::float8, usename::text,
           application_name::text, state::text, left(query, 400),
           backend_xid IS NOT NULL OR backend_xmin IS NOT NULL
    FROM pg_catalog.pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()
      AND xact_start < clock_timestamp() - make_interval(secs => ?::float8)
      AND backend_type IN ('client backend', 'parallel worker')
    ORDER BY xact_start, pid LIMIT 100"""

HIDDEN = """
    SELECT COUNT(*) FILTER (WHERE query = '<insufficient privilege>'), current_user::text
    FROM pg_catalog.pg_stat_activity WHERE datname = current_database()"""

PREPARED = """
    SELECT gid::text, owner::text, extract(epoch FROM clock_timestamp() - prepared)::float8
    FROM pg_catalog.pg_prepared_xacts
    WHERE database = current_database()
      AND prepared < clock_timestamp() - make_interval(secs => ?::float8)
    ORDER BY prepared LIMIT 100"""

SLOTS = """
    SELECT slot_name::text, active, greatest(age(xmin), age(catalog_xmin))::bigint, 'slot'
    FROM pg_catalog.pg_replication_slots WHERE xmin IS NOT NULL OR catalog_xmin IS NOT NULL
    UNION ALL
    SELECT coalesce(nullif(application_name, ''), client_addr::text, pid::text), true,
           age(backend_xmin)::bigint, 'standby'
    FROM pg_catalog.pg_stat_replication WHERE backend_xmin IS NOT NULL
    LIMIT 100"""

# A row takes 28 bytes at least. Dead rows that have no room were told of late: the table has
# been truncated since.
TABLE_STATES = f"""
    SELECT c.relname::text, coalesce(s.n_live_tup, 0)::bigint,
           least(coalesce(s.n_dead_tup, 0), pg_relation_size(c.oid) / 28)::bigint,
           pg_total_relation_size(c.oid)::bigint, pg_indexes_size(c.oid)::bigint,
           extract(epoch FROM clock_timestamp()
                   - greatest(s.last_autovacuum, s.last_vacuum))::float8
    FROM {_CLASSES} LEFT JOIN pg_catalog.pg_stat_all_tables s ON s.relid = c.oid
    WHERE {OURS} ORDER BY c.relname"""
