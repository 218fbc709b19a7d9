"""SQLite: one writer at a time, and statements that cost no round trip.

Many small statements are cheap here and one big one buys nothing, so the SQL stays simple. The
first statement of a publish is a write: in a transaction that the caller began with a plain BEGIN
it takes the write lock at once, waiting for it if need be, where a read first and a write later
would fail as soon as another writer came between.
"""

from collections.abc import Collection, Hashable, Iterable, Sequence
from typing import Any

from rowmq.store.claims import Claims, Cursor
from rowmq.store.dialect import Dialect
from rowmq.store.entries import Entry, Partition
from rowmq.store.jobs import Jobs, OldIds
from rowmq.store.lines import ReadyRow
from rowmq.store.postings import Place
from rowmq.store.queues import LaneName, Queues
from rowmq.store.schema import Schema
from rowmq.store.staging import Staging
from rowmq.store.statement import Operation, Row, Statement
from rowmq.store.store import Store, store_of
from rowmq.store.topics import Advance, Counter, Placed, Span, StepwiseTopics, limit_of, limited

__all__ = ["SQLiteDialect", "SQLiteSchema", "SQLiteTopics", "sqlite_store"]


class SQLiteDialect(Dialect):
    name = "sqlite"
    # Milliseconds are what SQLite's clock has; its julian day is a float that holds them exactly.
    now = "(CAST(ROUND((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000)"
    # Far from the limits: 500 SELECTs under UNION ALL, 32,766 variables.
    rows_max = numbers_max = 100
    join = "CROSS JOIN"  # which SQLite never reorders
    for_update = for_share = skip_locked = ""

    def placeholders(self, sql: str) -> str:
        return sql

    def seize(self, *, relaxed: bool = False) -> Operation[None]:
        # A write takes the lock, waiting for it; a read first and a write later may fail at once.
        yield Statement("seize", self.sql(LOCK), relaxed=relaxed)

    def delete_from(self, table: str, source: str, keys: Sequence[str]) -> str:
        names = ", ".join(keys)
        return f"DELETE FROM {table} WHERE ({names}) IN (SELECT {names} FROM ({source}) w)"


class SQLiteTopics(StepwiseTopics):
    def lock_of(self, entry: Entry) -> Hashable:  # noqa: ARG002 - it is the same for all
        return "the file"

    def lock_partitions(
        self, partitions: Sequence[Partition]
    ) -> Operation[dict[Partition, Counter]]:
        yield Statement("topics.lock", self.dialect.sql(LOCK))
        counters = {}
        for partition in partitions:
            result = yield Statement("topics.counter", self.dialect.sql(COUNTER), partition)
            for id, next_offset, limit in result:
                counters[partition] = Counter(id, next_offset, limit_of(limit))
        return counters

    def create_partitions(self, partitions: Sequence[Partition]) -> Operation[None]:
        for partition in partitions:
            sql = self.dialect.sql(CREATE_PARTITION)
            yield Statement("topics.create_partition", sql, partition)

    def insert_messages(self, placed: Sequence[Placed]) -> Operation[None]:
        if not placed:
            return
        rows = ", ".join([f"(?, ?, ?, ?, ?, ?, {self.dialect.now})"] * len(placed))
        params = [
            value
            for partition_id, offset, e in placed
            for value in (partition_id, offset, e.id, e.data, e.encoding, e.headers)
        ]
        yield Statement("topics.insert_messages", self.dialect.sql(INSERT_MESSAGES + rows), params)

    def find_messages(self, placed: Sequence[Placed]) -> Operation[dict[tuple[str, str, str], int]]:
        known = {}
        sql = self.dialect.sql(FIND_MESSAGE)
        for partition_id, _, entry in placed:
            result = yield Statement("topics.find_message", sql, (partition_id, entry.id))
            for (offset,) in result:
                known[entry.identity] = offset
        return known

    def advance_partitions(self, advances: Sequence[Advance]) -> Operation[None]:
        sql = self.dialect.sql(ADVANCE_PARTITION)
        for id, next_offset, largest in advances:
            yield Statement("topics.advance_partition", sql, (next_offset, largest, id))

    def fetch(
        self,
        name: str,
        columns: str,
        spans: Sequence[Span],
        *,
        few: int = 0,
        share: bool = False,  # noqa: ARG002 - a snapshot that is too old is an error here
    ) -> Operation[Iterable[Row]]:
        rows: list[Row] = []
        sql = self.dialect.sql(
            FETCH_RANGE.replace("<few>", limited(few)).replace("<columns>", columns)
        )
        for span in spans:
            bounds = (span.partition_id, span.first, span.last)
            rows.extend((yield Statement(name, sql, bounds, sole=True)))
        return rows


# Changes nothing, but is a write.
LOCK = "UPDATE {partitions} SET next_offset = next_offset WHERE id = 0"

CREATE_PARTITION = "INSERT INTO {partitions} (topic, partition_key, next_offset) VALUES (?, ?, 1)"

COUNTER = """
    SELECT p.id, p.next_offset, t.max_payload_bytes
    FROM {partitions} p LEFT JOIN {topics} t ON t.topic = p.topic
    WHERE p.topic = ? AND p.partition_key = ?"""

INSERT_MESSAGES = """
    INSERT INTO {messages} (partition_id, message_offset, message_id, payload, encoding, headers,
                            published_at)
    VALUES """

FIND_MESSAGE = "SELECT message_offset FROM {messages} WHERE partition_id = ? AND message_id = ?"

ADVANCE_PARTITION = """
    UPDATE {partitions} SET next_offset = ?, largest_bytes = MAX(largest_bytes, ?) WHERE id = ?"""

FETCH_RANGE = """
    SELECT <columns> FROM {messages} m
    WHERE m.partition_id = ? AND m.message_offset BETWEEN ? AND ? <few>"""


class SQLiteQueues(Queues):
    ids_roll_back = True
    relaxes = True

    def __init__(self, dialect: Dialect) -> None:
        super().__init__(dialect)
        # So that only those pay for the look who gain from it. It decides nothing.
        self._seen_relaxed: set[str | int] = set()

    def are_relaxed(
        self, queues: Collection[str | int], lanes: Collection[LaneName] = ()
    ) -> Operation[bool]:
        # A transaction that has begun cannot be relaxed any more, nor can it be made to wait.
        if not self._seen_relaxed.issuperset(queues):
            return False
        if lanes:
            found, _ = yield from self.find_lanes(sorted(lanes), sole=True)
            return len(found) == len(lanes) and all(lane.relaxed for lane in found.values())
        rows = yield from self.select(
            "queues.relaxed", ARE_RELAXED, {"id": "bigint"}, [(id,) for id in queues], sole=True
        )
        for id, relaxed in rows:
            self.note(bool(relaxed), id)
        return len(rows) == len(queues) and all(relaxed for _, relaxed in rows)

    def note(self, relaxed: bool, *queues: str | int) -> None:
        if relaxed:
            self._seen_relaxed.update(queues)
        else:
            self._seen_relaxed.difference_update(queues)

    def delete(
        self, name: str, table: str, columns: dict[str, str], rows: Sequence[Sequence[Any]]
    ) -> Operation[None]:
        # A list of keys with text in it is looked up by their first column only.
        if "text" not in columns.values():
            yield from super().delete(name, table, columns, rows)
            return
        keys = " AND ".join(f"{column} = ?" for column in columns)
        sql = self.dialect.sql(f"DELETE FROM {table} WHERE {keys}")
        for row in rows:
            yield Statement(name, sql, row)


ARE_RELAXED = """
    SELECT q.id, q.relaxed FROM (<source>) w {join} {queues} q ON q.id = w.id"""


class SQLiteJobs(Jobs):
    def refuse_old_ids(self, places: Sequence[Place]) -> Operation[None]:
        # Several clients can put within a millisecond, with ids of blocks that they took in any
        # order. Nobody else can write now, so ids that are newer then are newer at the commit.
        firsts: dict[tuple[Any, ...], int] = {}
        for place in places:
            if place.posting.ordering_key is not None and place.posting.at is None:
                member = place.member
                moment = (*member.line, member.precedence, member.due_at)
                firsts[moment] = min(member.job_id, firsts.get(moment, member.job_id))
        sql = self.dialect.sql(LATER_ID)
        for moment, job_id in firsts.items():
            values = (*moment, job_id)
            if (yield Statement("lines.later_id", sql, (*values, *values))).rows:
                raise OldIds("a job of the same moment and line has a later id")


LATER_ID = """
    SELECT 1 FROM {waiting}
    WHERE queue_id = ? AND ordering_key = ? AND precedence = ? AND due_at = ? AND job_id > ?
    UNION ALL
    SELECT 1 FROM {lines}
    WHERE queue_id = ? AND ordering_key = ? AND head_order = ? AND head_due = ? AND head_id > ?
    LIMIT 1"""


class SQLiteClaims(Claims):
    def remove(self, taken: Sequence[ReadyRow]) -> Operation[None]:
        # Nobody else writes, so what was taken of a lane is all that is there from its first job to
        # its last.
        lanes: dict[int, list[Cursor]] = {}
        for lane_id, due_at, job_id, *_ in taken:
            lanes.setdefault(lane_id, []).append((due_at, job_id))
        sql = self.dialect.sql(REMOVE)
        for lane_id, places in lanes.items():
            params = (lane_id, *min(places), *max(places))
            yield Statement("claims.take", sql, params)


REMOVE = """
    DELETE FROM {ready} WHERE lane_id = ? AND (due_at, job_id) BETWEEN (?, ?) AND (?, ?)"""


class SQLiteStaging(Staging):
    def lock_partitions(self, batch: int) -> Operation[None]:
        yield Statement("staging.lock", self.dialect.sql(CREATE_STAGED), (batch,))


CREATE_STAGED = """
    INSERT INTO {partitions} (topic, partition_key, next_offset)
    SELECT DISTINCT t.target, t.name, 1
    FROM {stages} g CROSS JOIN {stage_parts} t ON t.stage_id = g.id
    WHERE g.batch_id = ? ON CONFLICT DO NOTHING"""


class SQLiteSchema(Schema):
    """The write lock that the transaction begins with keeps rivals out: nothing else is needed."""

    exists_sql = "SELECT COUNT(*) FROM sqlite_master WHERE type = 'table' AND name = ?"


def sqlite_store(**options: Any) -> Store:
    """The operations, for the options of a dialect."""
    dialect = SQLiteDialect(**options)
    topics, schema = SQLiteTopics(dialect), SQLiteSchema(dialect)
    return store_of(
        dialect,
        topics,
        schema,
        staging=SQLiteStaging,
        queues=SQLiteQueues,
        jobs=SQLiteJobs,
        claims=SQLiteClaims,
    )
