"""What `doctor` asks MySQL and MariaDB: their settings, transactions, and the sizes of tables."""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from rowmq.store.dialect import as_text, as_text_or_none
from rowmq.store.doctor import Examination
from rowmq.store.doctor_facts import Identity, IndexState, Transaction
from rowmq.store.statement import Operation

__all__ = ["MySQLExamination", "MySQLTable"]


class MySQLTable(NamedTuple):
    """A table's size, and what of it is free; its engine and text columns."""

    table: str
    engine: str
    rows: int
    total_bytes: int
    free_bytes: int
    text_columns: tuple[str, ...]
    """Columns with a character set: names would be compared by a collation."""


class MySQLExamination(Examination):
    """What can be asked of MySQL and MariaDB."""

    def identity(self) -> Operation[Identity]:
        result = yield from self.ask("identity", IDENTITY)
        version, user, database, host, port = [as_text(str_of(value)) for value in result.rows[0]]
        product = "MariaDB" if is_mariadb(version) else "MySQL"
        number = number_of(version)
        return Identity(product, version, number, user, database, f"{host}:{port}")

    def columns(self) -> Operation[list[tuple[str, str]]]:
        result = yield from self.ask("columns", self._named(COLUMNS), self.tables())
        return [(as_text(table), as_text(column)) for table, column, _ in result]

    def indexes(self) -> Operation[list[IndexState]]:
        result = yield from self.ask("indexes", self._named(INDEXES), self.tables())
        found: dict[tuple[str, str], tuple[list[str], bool]] = {}
        for table, name, column, non_unique in result:
            key = (as_text(table), as_text(name))
            found.setdefault(key, ([], not int(non_unique)))[0].append(as_text(column))
        return [
            IndexState(*key, tuple(columns), unique) for key, (columns, unique) in found.items()
        ]

    def settings(self) -> Operation[dict[str, str]]:
        """The settings that matter, and some figures of the server's, by name."""
        values: dict[str, str] = {}
        for name, template, wanted in (
            ("settings", VARIABLES, SETTING_NAMES),
            ("status", STATUS, STATUS_NAMES),
        ):
            result = yield from self.ask(name, listing(template, wanted), wanted)
            values |= {as_text(key).lower(): as_text(str_of(value)) for key, value in result}
        return values

    def activity(self, *, seconds: float) -> Operation[list[Transaction]]:
        """Transactions that have been open for so long."""
        result = yield from self.ask("product", "SELECT VERSION()")
        version = as_text(result.rows[0][0])
        old = is_mariadb(version) or number_of(version) < (8, 0, 22)
        template = ACTIVITY.replace("<processes>", PROCESSES[old])
        result = yield from self.ask("activity", template, (int(seconds),))
        return [
            Transaction(
                id=int(id),
                seconds=float(age),
                user=as_text_or_none(user),
                application=as_text_or_none(host),
                state=", ".join(as_text(part) for part in (state, command) if part),
                statement=as_text_or_none(statement),
                holds_back=True,
            )
            for id, age, state, statement, user, host, command in result
        ]

    def history(self) -> Operation[int]:
        """How many old versions of rows wait to be cleaned up."""
        version = yield from self.ask("product", "SELECT VERSION()")
        template = HISTORY[is_mariadb(as_text(version.rows[0][0]))]
        result = yield from self.ask("history", template)
        return int(result.rows[0][-1])

    def table_states(self) -> Operation[list[MySQLTable]]:
        """Sizes of our tables."""
        names = self.tables()
        result = yield from self.ask("columns", self._named(COLUMNS), names)
        texts: dict[str, list[str]] = {}
        for table, column, charset in result:
            if charset is not None:
                texts.setdefault(as_text(table), []).append(as_text(column))
        result = yield from self.ask("table_states", self._named(TABLE_STATES), names)
        return [
            MySQLTable(
                table=as_text(table),
                engine=as_text(engine or ""),
                rows=int(rows or 0),
                total_bytes=int(total or 0),
                free_bytes=int(free or 0),
                text_columns=tuple(texts.get(as_text(table), ())),
            )
            for table, engine, rows, total, free in result
        ]

    def _named(self, template: str) -> str:
        return listing(template, self.tables())


def listing(template: str, values: Sequence[Any]) -> str:
    """A template with a placeholder for each value of its list."""
    return template.replace("<list>", ", ".join("?" for _ in values))


def str_of(value: Any) -> str | bytes:
    return value if isinstance(value, str | bytes) else str(value)


def is_mariadb(version: str) -> bool:
    return "mariadb" in version.lower()


def number_of(version: str) -> tuple[int, ...]:
    """The numbers of a version. MariaDB may put 5.5.5 before its own, for old replicas."""
    match = re.match(r"(?:5\.5\.5-)?(\d+)\.(\d+)\.(\d+)", version)
    return tuple(int(part) for part in match.groups()) if match else ()


IDENTITY = "SELECT VERSION(), CURRENT_USER(), DATABASE(), @@hostname, @@port"

COLUMNS = """
    SELECT table_name, column_name, character_set_name FROM information_schema.columns
    WHERE table_schema = DATABASE() AND table_name IN (<list>)"""

INDEXES = """
    SELECT table_name, index_name, column_name, non_unique FROM information_schema.statistics
    WHERE table_schema = DATABASE() AND table_name IN (<list>)
    ORDER BY table_name, index_name, seq_in_index"""

SETTING_NAMES = (
    "binlog_format",
    "innodb_doublewrite",
    "innodb_flush_log_at_trx_commit",
    "innodb_read_only",
    "log_bin",
    "max_allowed_packet",
    "max_connections",
    "read_only",
    "super_read_only",
    "sync_binlog",
    "transaction_isolation",
    "tx_isolation",
    "wait_timeout",
)

STATUS_NAMES = ("Threads_connected",)

VARIABLES = "SHOW GLOBAL VARIABLES WHERE Variable_name IN (<list>)"

STATUS = "SHOW GLOBAL STATUS WHERE Variable_name IN (<list>)"

# Where MySQL has the second, the first is deprecated, and holds all sessions up for a moment.
PROCESSES = {True: "information_schema.processlist", False: "performance_schema.processlist"}

# The time is the server's own, whatever zone this session has.
ACTIVITY = """
    SELECT t.trx_mysql_thread_id,
           TIMESTAMPDIFF(SECOND, t.trx_started,
                         CONVERT_TZ(UTC_TIMESTAMP(), '+00:00', 'SYSTEM')) AS age,
           t.trx_state, SUBSTRING(t.trx_query, 1, 400), p.user, p.host, p.command
    FROM information_schema.innodb_trx t
    LEFT JOIN <processes> p ON p.id = t.trx_mysql_thread_id
    WHERE t.trx_mysql_thread_id <> CONNECTION_ID()
    HAVING age >= ?
    ORDER BY age DESC LIMIT 100"""

HISTORY = {
    True: "SHOW GLOBAL STATUS LIKE 'Innodb_history_list_length'",
    False: """
        SELECT name, count FROM information_schema.innodb_metrics
        WHERE name = 'trx_rseg_history_len'""",
}

TABLE_STATES = """
    SELECT table_name, engine, table_rows, data_length + index_length, data_free
    FROM information_schema.tables
    WHERE table_schema = DATABASE() AND table_name IN (<list>) ORDER BY table_name"""
