"""MySQL and MariaDB: InnoDB at READ COMMITTED, one SQL for both.

Names are VARBINARY and travel as bytes, so neither a collation nor the connection's character set
can change one. Lists of keys are joined as a derived table of parameters with STRAIGHT_JOIN, which
keeps the order in which rows are locked; a list in IN (...) may be scanned, and then locks what it
scans. Ranges are one SELECT each under UNION ALL: a joined range reads the whole partition.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from rowmq.store.claims import Claims, Cursor
from rowmq.store.dialect import Columns, Dialect, are_numbers, as_text, equal, values_table
from rowmq.store.entries import Partition
from rowmq.store.jobs import JOB_ID, Jobs
from rowmq.store.leases import ALIVE, Leases, Member
from rowmq.store.schema import Schema
from rowmq.store.staging import Staging
from rowmq.store.statement import Operation, Row, Statement
from rowmq.store.store import Store, store_of
from rowmq.store.topics import Advance, Counter, Placed, Span, StepwiseTopics, limit_of, limited

__all__ = ["MySQLDialect", "MySQLLeases", "MySQLSchema", "MySQLTopics", "mysql_store"]


class MySQLDialect(Dialect):
    name = "mysql"
    # UTC_TIMESTAMP, because NOW() is in the session's zone and repeats an hour each autumn.
    now = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"
    rows_max = 250
    numbers_max = 2_000
    join = "STRAIGHT_JOIN"
    snapshots = True
    by_key = "FORCE INDEX (PRIMARY)"
    for_share = as_now = "LOCK IN SHARE MODE"  # MariaDB has no other
    # Not INSERT IGNORE, which also turns errors of any other kind into silence.
    on_conflict = "ON DUPLICATE KEY UPDATE version = {offsets}.version"
    lock_topic = """
        INSERT INTO {topics} (topic, created_at) VALUES (?, {now})
        ON DUPLICATE KEY UPDATE created_at = created_at"""

    def placeholders(self, sql: str) -> str:
        return sql.replace("?", "%s")

    def text(self, value: str) -> bytes:
        return value.encode()

    def insert_id(self, name: str, template: str, params: Sequence[Any]) -> Operation[int]:
        yield Statement(name, self.sql(template), params)
        result = yield Statement("last_insert_id", "SELECT LAST_INSERT_ID()")
        return int(result.rows[0][0])

    # It takes these steps by itself, and would not within a recursion.

    def different(self, table: str, column: str) -> str:
        return f"SELECT DISTINCT {column} FROM {table} ORDER BY {column} LIMIT ?"

    # Neither server looks up a comparison of rows in an index.

    def past(self, columns: Sequence[str], sign: str = ">") -> str:
        parts = [
            " AND ".join([*(f"{same} = ?" for same in columns[:nth]), f"{column} {sign} ?"])
            for nth, column in enumerate(columns)
        ]
        return "(" + " OR ".join(f"({part})" for part in parts) + ")"

    def past_params(self, place: Sequence[Any]) -> list[Any]:
        values = super().past_params(place)
        return [value for nth in range(len(values)) for value in values[: nth + 1]]

    # Numbers travel as one JSON text, however many: the drivers write each parameter into the
    # statement by itself, in Python, and the server reads each SELECT of a UNION by itself.

    def given(self, columns: Columns, rows: Sequence[Sequence[Any]]) -> tuple[str, list[Any]]:
        if not are_numbers(columns):
            return super().given(columns, rows)
        paths = ", ".join(
            f"{name} {kind} PATH '$[{place}]'" for place, (name, kind) in enumerate(columns.items())
        )
        text = msgspec.json.encode(rows).decode()
        return f"SELECT given.* FROM JSON_TABLE(?, '$[*]' COLUMNS ({paths})) given", [text]

    def insert_into(
        self, table: str, columns: Columns, rows: Sequence[Sequence[Any]], ending: str = ""
    ) -> tuple[str, list[Any]]:
        # An ending names columns, which the source would have too.
        if ending or not are_numbers(columns):
            return super().insert_into(table, columns, rows, ending)
        source, values = self.given(columns, rows)
        return f"INSERT INTO {table} ({', '.join(columns)}) {source}", values

    def update_from(
        self,
        table: str,
        source: str,
        keys: Sequence[str],
        sets: Mapping[str, str],
        where: str = "1 = 1",
    ) -> str:
        changes = ", ".join(f"t.{column} = {value}" for column, value in sets.items())
        joined = f"({source}) w STRAIGHT_JOIN {table} t {self.by_key} ON {equal(keys)}"
        return f"UPDATE {joined} SET {changes} WHERE {where}"

    def delete_from(self, table: str, source: str, keys: Sequence[str]) -> str:
        joined = f"({source}) w STRAIGHT_JOIN {table} t {self.by_key} ON {equal(keys)}"
        return f"DELETE t FROM {joined}"

    def unless_there(self, column: str) -> str:
        # Not INSERT IGNORE, which also turns errors of any other kind into silence.
        return f"ON DUPLICATE KEY UPDATE {column} = {column}"

    def upsert_from(
        self, table: str, source: str, keys: Sequence[str], columns: Sequence[str]
    ) -> str:
        names = ", ".join([*keys, *columns])
        changes = ", ".join(f"{column} = w.{column}" for column in columns)
        return (
            f"INSERT INTO {table} ({names}) SELECT {names} FROM ({source}) w "
            f"ON DUPLICATE KEY UPDATE {changes}"
        )


class MySQLTopics(StepwiseTopics):
    def find_partitions(
        self, partitions: Sequence[Partition], *, alone: bool
    ) -> Operation[dict[Partition, Counter]]:
        # A caller's transaction is at REPEATABLE READ, if nobody chose otherwise. There, to lock a
        # row that does not exist is to lock the gap, and two who then insert into it deadlock.
        if alone:
            return (yield from self.lock_partitions(partitions))
        return (yield from self._counters("topics.find_partitions", COUNTERS, partitions))

    def lock_partitions(
        self, partitions: Sequence[Partition]
    ) -> Operation[dict[Partition, Counter]]:
        sql = COUNTERS + " FOR UPDATE"
        return (yield from self._counters("topics.lock_partitions", sql, partitions))

    def _counters(
        self, name: str, template: str, partitions: Sequence[Partition]
    ) -> Operation[dict[Partition, Counter]]:
        counters = {}
        for run in self._runs(partitions):
            wanted = values_table(("topic", "partition_key"), len(run))
            sql = self.dialect.sql(template.replace("<wanted>", wanted))
            result = yield Statement(name, sql, self._names(run))
            for topic, key, id, next_offset, limit in result:
                counter = Counter(id, next_offset, limit_of(limit))
                counters[as_text(topic), as_text(key)] = counter
        return counters

    def create_partitions(self, partitions: Sequence[Partition]) -> Operation[None]:
        for run in self._runs(partitions):
            rows = ", ".join(["(?, ?, 1)"] * len(run))
            sql = self.dialect.sql(CREATE_PARTITIONS.replace("<rows>", rows))
            yield Statement("topics.create_partitions", sql, self._names(run))

    def insert_messages(self, placed: Sequence[Placed]) -> Operation[None]:
        if not placed:
            return
        rows = ", ".join([f"(?, ?, ?, ?, ?, ?, {self.dialect.now})"] * len(placed))
        params: list[Any] = []
        for partition_id, offset, e in placed:
            headers = None if e.headers is None else e.headers.encode()
            params += (partition_id, offset, e.id.encode(), e.data, e.encoding, headers)
        yield Statement("topics.insert_messages", self.dialect.sql(INSERT_MESSAGES + rows), params)

    def find_messages(self, placed: Sequence[Placed]) -> Operation[dict[tuple[str, str, str], int]]:
        wanted = values_table(("place", "partition_id", "message_id"), len(placed))
        params: list[Any] = []
        for place, (partition_id, _, entry) in enumerate(placed):
            params += (place, partition_id, entry.id.encode())
        sql = self.dialect.sql(FIND_MESSAGES.replace("<wanted>", wanted))
        result = yield Statement("topics.find_messages", sql, params)
        return {placed[place].entry.identity: offset for place, offset in result}

    def advance_partitions(self, advances: Sequence[Advance]) -> Operation[None]:
        for run in self._runs(advances):
            moved = values_table(("id", "next_offset", "largest_bytes"), len(run))
            sql = self.dialect.sql(ADVANCE_PARTITIONS.replace("<moved>", moved))
            params = [value for advance in run for value in advance]
            yield Statement("topics.advance_partitions", sql, params)

    def fetch(
        self,
        name: str,
        columns: str,
        spans: Sequence[Span],
        *,
        few: int = 0,
        share: bool = False,
    ) -> Operation[Iterable[Row]]:
        how = f"{limited(few)} {self.dialect.for_share if share else ''}"
        one = FETCH_RANGE.replace("<how>", how).replace("<columns>", columns)
        sql = self.dialect.sql(" UNION ALL ".join([one] * len(spans)))
        params = [value for span in spans for value in (span.partition_id, span.first, span.last)]
        return (yield Statement(name, sql, params, sole=True))

    def _runs(self, items: Sequence[Any]) -> Iterable[list[Any]]:
        return self.dialect.chunks(items, (0 for _ in items))

    def _names(self, partitions: Iterable[Partition]) -> list[Any]:
        return [self.dialect.text(name) for partition in partitions for name in partition]

    # MySQL warns of VALUES() and MariaDB has no alias for a row: a derived table suits both.
    configure_sql = """
        INSERT INTO {topics} (topic, max_payload_bytes, retention_us, created_at)
        SELECT w.topic, w.max_payload_bytes, w.retention_us, {now}
        FROM (SELECT ? AS topic, ? AS max_payload_bytes, ? AS retention_us, ? AS sets_retention) w
        ON DUPLICATE KEY UPDATE
        max_payload_bytes = COALESCE(w.max_payload_bytes, {topics}.max_payload_bytes),
        retention_us = IF(w.sets_retention = 1, w.retention_us, {topics}.retention_us)"""


# The limit comes from a subquery, which a locking read leaves unlocked: a joined row would be
# locked too, and make all partitions of a topic wait for each other.
COUNTERS = """
    SELECT w.topic, w.partition_key, p.id, p.next_offset,
           (SELECT t.max_payload_bytes FROM {topics} t WHERE t.topic = p.topic)
    FROM (<wanted>) w
    STRAIGHT_JOIN {partitions} p ON p.topic = w.topic AND p.partition_key = w.partition_key"""

# Not INSERT IGNORE, which also turns errors of any other kind into silence.
CREATE_PARTITIONS = """
    INSERT INTO {partitions} (topic, partition_key, next_offset) VALUES <rows>
    ON DUPLICATE KEY UPDATE next_offset = next_offset"""

INSERT_MESSAGES = """
    INSERT INTO {messages} (partition_id, message_offset, message_id, payload, encoding, headers,
                            published_at)
    VALUES """

# A locking read sees what is committed now, also where the caller's transaction reads a snapshot.
FIND_MESSAGES = """
    SELECT w.place, m.message_offset FROM (<wanted>) w
    STRAIGHT_JOIN {messages} m ON m.partition_id = w.partition_id AND m.message_id = w.message_id
    FOR UPDATE"""

ADVANCE_PARTITIONS = """
    UPDATE (<moved>) moved STRAIGHT_JOIN {partitions} p ON p.id = moved.id
    SET p.next_offset = moved.next_offset,
        p.largest_bytes = GREATEST(p.largest_bytes, moved.largest_bytes)"""

FETCH_RANGE = """
    (SELECT <columns> FROM {messages} m
     WHERE m.partition_id = ? AND m.message_offset BETWEEN ? AND ? <how>)"""


class MySQLLeases(Leases):
    def beat(self, member: Member, *, lease_us: int) -> Operation[bool]:
        # An UPDATE cannot skip what is locked, and the shortest wait for a lock is a second.
        id = member.subscriber_id
        sql = self.dialect.sql(f"{ALIVE} {{skip_locked}}")
        if (yield Statement("leases.own_row", sql, (id,))).rows:
            sql = self.dialect.sql(self.beat_sql)
            yield Statement("leases.beat", sql, (lease_us, id))
            return True
        return (yield from self.is_locked(member))


class MySQLJobs(Jobs):
    def delete_jobs(self, ids: Iterable[int]) -> Operation[None]:
        # From all tables at once: each statement is a round trip, and most jobs have no trace.
        rows = [(id,) for id in sorted(ids)]
        for run in self.queues.runs(rows, JOB_ID):
            source, params = self.dialect.given(JOB_ID, run)
            sql = self.dialect.sql(DELETE_JOBS.replace("<source>", source))
            yield Statement("jobs.delete", sql, params)


DELETE_JOBS = """
    DELETE j, e, h FROM (<source>) w
    STRAIGHT_JOIN {jobs} j {by_key} ON j.id = w.job_id
    LEFT JOIN {job_errors} e ON e.job_id = j.id
    LEFT JOIN {holds} h ON h.job_id = j.id"""


class MySQLClaims(Claims):
    # Neither server looks up a comparison of rows in an index.
    after_cursor = "((r.due_at = ? AND r.job_id >= ?) OR r.due_at > ?)"

    def cursor_params(self, cursor: Cursor) -> tuple[int, ...]:
        due_at, job_id = cursor
        return due_at, job_id, due_at


class MySQLStaging(Staging):
    generated_id = "CONCAT(g.name, '-', r.number)"

    def lock_partitions(self, batch: int) -> Operation[None]:
        # Those that exist first: to insert what is there would lock the gap before it.
        sql = self.dialect.sql(LOCK_STAGED)
        yield Statement("staging.lock", sql, (batch,))
        result = yield Statement("staging.missing", self.dialect.sql(MISSING_STAGED), (batch,))
        if result.rows[0][0]:
            yield Statement("staging.create", self.dialect.sql(CREATE_STAGED), (batch,))
            yield Statement("staging.lock", sql, (batch,))


# MariaDB forgets the order of a derived table that has no limit.
_STAGED = """
    FROM (
        SELECT DISTINCT t.target, t.name
        FROM {stages} g STRAIGHT_JOIN {stage_parts} t ON t.stage_id = g.id
        WHERE g.batch_id = ? ORDER BY t.target, t.name LIMIT 18446744073709551615
    ) w"""

LOCK_STAGED = f"""
    SELECT COUNT(p.id) {_STAGED}
    STRAIGHT_JOIN {{partitions}} p ON p.topic = w.target AND p.partition_key = w.name
    FOR UPDATE"""

_MISSING = f"""{_STAGED}
    LEFT JOIN {{partitions}} p ON p.topic = w.target AND p.partition_key = w.name
    WHERE p.id IS NULL"""

MISSING_STAGED = f"SELECT COUNT(*) {_MISSING}"

CREATE_STAGED = f"""
    INSERT INTO {{partitions}} (topic, partition_key, next_offset)
    SELECT w.target, w.name, 1 {_MISSING}
    ON DUPLICATE KEY UPDATE next_offset = {{partitions}}.next_offset"""


class MySQLSchema(Schema):
    """DDL commits by itself, so a named lock of the session keeps rivals out."""

    exists_sql = """
        SELECT COUNT(*) FROM information_schema.tables
        WHERE table_schema = DATABASE() AND table_name = ?"""

    # A lock's name is server-wide and short: the database's name is in it as a hash.
    lock_name = "CONCAT('rowmq-migrate-', LEFT(SHA2(DATABASE(), 256), 40))"
    lock_sql = f"SELECT GET_LOCK({lock_name}, 300)"
    unlock_sql = f"SELECT RELEASE_LOCK({lock_name})"


def mysql_store(**options: Any) -> Store:
    """The operations, for the options of a dialect."""
    dialect = MySQLDialect(**options)
    return store_of(
        dialect,
        MySQLTopics(dialect),
        MySQLSchema(dialect),
        staging=MySQLStaging,
        leases=MySQLLeases,
        jobs=MySQLJobs,
        claims=MySQLClaims,
    )
