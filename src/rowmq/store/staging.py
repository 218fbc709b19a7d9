"""Staging: what Spark's tasks write, and its driver publishes at once.

A task writes into a *stage* of its own, in transactions of its own. Nobody sees that, and if the
task fails, or is tried again, nobody ever does. When all tasks are done the driver publishes their
stages in one transaction, by statements whose number does not depend on how many rows there are:

    ledger: is this version new? -> take the stages -> lock the partitions -> place the parts
        -> insert -> advance the counters

A task counts what it has for each partition, its *parts*, and numbers the rows of each. So a
part's first offset gives the offsets of all its rows: nothing has to be sorted.

Stages that nobody publishes are swept when they are old. Who sweeps condemns a stage first, and who
publishes locks it first: so it is done by one of them, or by none.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from rowmq.errors import StageLost, UniqueViolation
from rowmq.store.dialect import as_text
from rowmq.store.entries import oversized
from rowmq.store.jobs import Jobs
from rowmq.store.statement import Operation, Statement
from rowmq.store.topics import LIMIT, Topics, limit_of

__all__ = [
    "STAGED",
    "Part",
    "Stage",
    "StagedRow",
    "Staging",
    "Version",
    "lost",
]

CONDEMNED = 0
"""The batch of stages that nobody may publish any more. It is no stage's id, as others' are."""

SWEPT_MAX = 100
"""How many stages one sweep condemns."""

ROW_OVERHEAD_BYTES = 150
"""What a staged row takes beside its payload, roughly, when statements are filled."""


class StagedRow(NamedTuple):
    """A row of a task: a message or a job, checked and encoded.

    `part` says for which of its stage's parts it is, and `nth` its place there, from 0 on. `name`
    is a message's id or a job's key, if it has one.
    """

    number: int
    part: int
    nth: int
    encoding: int
    payload: bytes
    name: str | None = None
    headers: str | None = None
    ordering_key: str | None = None
    due_at: int | None = None

    @property
    def size(self) -> int:
        """About how many bytes it adds to a statement."""
        return len(self.payload) + len(self.headers or "") + ROW_OVERHEAD_BYTES


class Part(NamedTuple):
    """What a stage has for one partition, or one lane: a topic and a stored key, or a queue, a kind
    and a precedence.
    """

    part: int
    target: str
    name: str
    precedence: int
    messages: int
    largest_bytes: int


class Stage(NamedTuple):
    """A stage that is complete: how many rows it has, and whether they are jobs that have neither a
    key nor an ordering key.
    """

    id: int
    rows: int
    plain: bool = True


class Version(NamedTuple):
    """What is published once: the n-th batch of a writer, for a target."""

    writer: str
    target: str
    number: int


class Staging(ABC):
    """The operations on stages, and how they are published to topics; for one dialect."""

    generated_id = "g.name || '-' || r.number"
    """The id of a message that came without one."""

    def __init__(self, topics: Topics, jobs: Jobs) -> None:
        self.topics = topics
        self.jobs = jobs
        self.queues = jobs.queues
        self.dialect = jobs.dialect

    # --- a task writes ----------------------------------------------------------------------------

    def open(self, name: str) -> Operation[int]:
        """Begin a stage; its id, which is never given twice. `name` is a fresh one, which no other
        stage of any database has.
        """
        return (yield from self.dialect.insert_id("staging.open", OPEN, (self.dialect.text(name),)))

    def fill(self, stage_id: int, rows: Sequence[StagedRow]) -> Operation[None]:
        """Write some rows of a stage; those that are there are left alone."""
        yield from self.check_open(stage_id)
        ending = self.dialect.unless_there("number")
        for run in self.dialect.chunks(rows, (row.size for row in rows)):
            values = [(stage_id, *row) for row in run]
            sql, params = self.dialect.insert_into("{staged}", STAGED, values, ending)
            yield Statement("staging.fill", self.dialect.sql(sql), params)

    def complete(self, stage_id: int, parts: Sequence[Part]) -> Operation[None]:
        """Write down the parts of a stage whose rows are all there."""
        yield from self.check_open(stage_id)
        rows = [(stage_id, *part) for part in parts]
        ending = self.dialect.unless_there("part")
        yield from self.queues.insert("staging.complete", "{stage_parts}", PART, rows, ending)

    def check_open(self, stage_id: int) -> Operation[None]:
        """Raise unless a stage may be written to; until the commit, nobody condemns it."""
        result = yield Statement("staging.is_open", self.dialect.sql(IS_OPEN), (stage_id,))
        if not result.rows:
            raise lost("a task took longer than that")

    # --- the driver publishes ---------------------------------------------------------------------

    def publish(
        self, stages: Sequence[Stage], version: Version | None, *, notify: bool
    ) -> Operation[bool]:
        """Publish what is staged to topics, all of it or nothing, in the order of the stages; False
        if that was done before.

        Messages whose id is in their partition already are left out, also those whose id stands
        earlier in the same stages. Offsets have no gaps. `notify` says whether subscribers are to
        be told, where the database has a way to.
        """
        if not (yield from self.begin(stages, version)):
            return False
        batch = stages[0].id
        topics = yield from self.check_sizes(stages)
        yield from self.lock_partitions(batch)
        yield from self.stamp(batch)
        yield from self.locate("staging.place", PLACE, batch, ("home_id", "first_offset"))
        yield from self.check_count(stages)
        try:
            appended = yield from self.attempt("staging.append", self.append_sql, (batch,))
            if appended != sum(stage.rows for stage in stages):
                raise lost("they were cleared away at this very moment")
            yield from self.advance(batch, ADDED)
        except UniqueViolation:
            # The locks are held, so what is there now is all that can be.
            sql = self.dialect.sql(self.template(APPEND_NEW))
            yield Statement("staging.append_new", sql, (batch,))
            yield from self.advance(batch, FOUND)
        yield from self.jobs.tell(topics if notify else ())
        return True

    def begin(self, stages: Sequence[Stage], version: Version | None) -> Operation[bool]:
        """Enter a version into the ledger, and take the stages; False if either was done before."""
        yield from self.dialect.seize()
        if version is not None and not (yield from self.enter(version)):
            return False
        return (yield from self.take(stages))

    def enter(self, version: Version) -> Operation[bool]:
        """Enter a version; False if it, or a later one, was entered before. Until the commit, who
        else enters one of the same writer waits.
        """
        name = (self.dialect.text(version.writer), self.dialect.text(version.target))
        if (yield from self.entered(name)) >= version.number:
            return False
        yield Statement("staging.enter", self.dialect.sql(ENTER), (version.number, *name))
        return True

    def settle(self, version: Version) -> Operation[int]:
        """Enter a version unless there is one of the same writer, which then stays; its number."""
        yield from self.dialect.seize()
        name = (self.dialect.text(version.writer), self.dialect.text(version.target))
        known = yield from self.entered(name)
        if known >= 0:
            return known
        yield Statement("staging.enter", self.dialect.sql(ENTER), (version.number, *name))
        return version.number

    def entered(self, name: tuple[str | bytes, str | bytes]) -> Operation[int]:
        """The last version of a writer for a target, locked; -1 if it has none yet."""
        ending = self.dialect.unless_there("version")
        sql = self.dialect.sql(KNOW_WRITER.replace("<ending>", ending))
        yield Statement("staging.know_writer", sql, name)
        result = yield Statement("staging.entered", self.dialect.sql(ENTERED), name)
        return int(result.rows[0][0])

    def take(self, stages: Sequence[Stage]) -> Operation[bool]:
        """Make a batch of stages, locked; False if these very ones have been published: their
        commit's answer was lost.
        """
        batch = stages[0].id
        ids = [(id,) for id in sorted(stage.id for stage in stages)]
        rows = yield from self.queues.select("staging.find", FIND, {"id": "bigint"}, ids)
        if all(row[1] == batch and row[2] is not None for row in rows) and len(rows) == len(stages):
            return False
        if len(rows) < len(stages) or any(row[1] is not None for row in rows):
            raise lost("it was swept")
        places = [(stage.id, batch, place) for place, stage in enumerate(stages)]
        yield from self.queues.update("staging.take", "{stages}", PLACES, ("id",), sorted(places))
        return True

    def check_sizes(self, stages: Sequence[Stage]) -> Operation[list[str]]:
        """The topics that the parts of a batch are for, once no payload is too large."""
        found = yield Statement("staging.totals", self.dialect.sql(TOTALS), (stages[0].id,))
        totals = [(as_text(topic), int(messages), size) for topic, messages, size in found]
        if sum(total[1] for total in totals) != sum(stage.rows for stage in stages):
            raise lost("the server crashed")
        for topic, _, size in totals:
            sql, params = self.dialect.sql(LIMIT), (self.dialect.text(topic),)
            result = yield Statement("topics.limit", sql, params)
            limit = limit_of(result.rows[0][0] if result.rows else None)
            if size > limit:
                raise oversized(topic, size, limit)
        return [total[0] for total in totals]

    @abstractmethod
    def lock_partitions(self, batch: int) -> Operation[None]:
        """Lock the partitions that a batch is for, in the order in which all publishers do; make
        those that are missing.
        """

    def stamp(self, batch: int) -> Operation[None]:
        """Write down when it is published: once, so that times rise with the offsets."""
        yield Statement("staging.stamp", self.dialect.sql(STAMP), (batch,))

    def locate(self, name: str, source: str, batch: int, columns: Iterable[str]) -> Operation[None]:
        """Write down where parts of a batch belong."""
        sets = {column: f"w.{column}" for column in columns}
        template = self.dialect.update_from("{stage_parts}", source, ("stage_id", "part"), sets)
        yield Statement(name, self.dialect.sql(template), (batch,))

    def check_count(self, stages: Sequence[Stage]) -> Operation[None]:
        """Raise unless all rows are there that tasks have told of."""
        result = yield Statement("staging.count", self.dialect.sql(COUNT), (stages[0].id,))
        if result.rows[0][0] != sum(stage.rows for stage in stages):
            raise lost("the server crashed")

    @property
    def append_sql(self) -> str:
        return self.template(APPEND)

    def template(self, sql: str) -> str:
        """SQL with the id of each row in its place."""
        return sql.replace("<id>", f"COALESCE(r.name, {self.generated_id})")

    def attempt(self, name: str, template: str, params: Sequence[Any]) -> Operation[int]:
        """Run a statement; how many rows it changed. After a `UniqueViolation` the transaction can
        go on.
        """
        result = yield Statement(name, self.dialect.sql(template), params)
        return result.rowcount

    def advance(self, batch: int, next_offset: str) -> Operation[None]:
        """Move the counters of a batch's partitions."""
        sets = {"next_offset": next_offset, "largest_bytes": LARGEST}
        template = self.dialect.update_from("{partitions}", SUMS, ("id",), sets)
        yield Statement("staging.advance", self.dialect.sql(template), (batch,))

    # --- what is left is cleared away -------------------------------------------------------------

    def clear(self, stage_id: int, first: int, last: int) -> Operation[None]:
        """Delete some rows of a stage that is published, or that nobody will publish."""
        yield Statement("staging.clear", self.dialect.sql(CLEAR), (stage_id, first, last))

    def forget(self, stage_id: int) -> Operation[None]:
        """Delete a stage whose rows are gone."""
        yield Statement("staging.forget_parts", self.dialect.sql(FORGET_PARTS), (stage_id,))
        yield Statement("staging.forget", self.dialect.sql(FORGET), (stage_id,))

    def condemn(self, age_us: int) -> Operation[list[tuple[int, int]]]:
        """Keep old stages from being published; id and last row's number of some of them, -1 where
        there is none. Those that are just being published are left alone.
        """
        yield from self.dialect.seize()
        params = (age_us, SWEPT_MAX)
        found = yield Statement("staging.find_old", self.dialect.sql(FIND_OLD), params)
        ids = sorted(row[0] for row in found)
        yield from self.queues.update(
            "staging.condemn",
            "{stages}",
            {"id": "bigint", "batch_id": "bigint"},
            ("id",),
            [(id, CONDEMNED) for id in ids],
        )
        condemned = []
        for id in ids:
            result = yield Statement("staging.last", self.dialect.sql(LAST), (id,))
            condemned.append((id, int(result.rows[0][0])))
        return condemned


def lost(why: str) -> StageLost:
    return StageLost(
        f"rows that Spark's tasks had written are not there any more: {why}. Nothing was "
        f"published; run the write again, or start the stream again"
    )


STAGED = {
    "stage_id": "bigint",
    "number": "bigint",
    "part": "integer",
    "nth": "bigint",
    "encoding": "smallint",
    "payload": "bytea",
    "name": "text",
    "headers": "text",
    "ordering_key": "text",
    "due_at": "bigint",
}

PART = {
    "stage_id": "bigint",
    "part": "integer",
    "target": "text",
    "name": "text",
    "precedence": "integer",
    "messages": "bigint",
    "largest_bytes": "bigint",
}

PLACES = {"id": "bigint", "batch_id": "bigint", "place": "integer"}

OPEN = "INSERT INTO {stages} (name, created_at) VALUES (?, {now})"

IS_OPEN = "SELECT id FROM {stages} WHERE id = ? AND batch_id IS NULL {for_share}"

KNOW_WRITER = """
    INSERT INTO {ledger} (writer, target, version, updated_at) VALUES (?, ?, -1, {now}) <ending>"""

ENTERED = "SELECT version FROM {ledger} WHERE writer = ? AND target = ? {for_update}"

ENTER = "UPDATE {ledger} SET version = ?, updated_at = {now} WHERE writer = ? AND target = ?"

FIND = """
    SELECT g.id, g.batch_id, g.published_at FROM (<source>) w
    {join} {stages} g {by_key} ON g.id = w.id ORDER BY g.id {for_update}"""

TOTALS = """
    SELECT t.target, SUM(t.messages), MAX(t.largest_bytes)
    FROM {stages} g {join} {stage_parts} t ON t.stage_id = g.id
    WHERE g.batch_id = ? GROUP BY t.target ORDER BY t.target"""

STAMP = "UPDATE {stages} SET published_at = (SELECT {now}) WHERE batch_id = ?"

PLACE = """
    SELECT x.stage_id, x.part, p.id AS home_id,
           p.next_offset - x.messages
               + SUM(x.messages) OVER (PARTITION BY p.id ORDER BY g.place) AS first_offset
    FROM {stages} g {join} {stage_parts} x ON x.stage_id = g.id
    {join} {partitions} p ON p.topic = x.target AND p.partition_key = x.name
    WHERE g.batch_id = ?"""

COUNT = """
    SELECT COUNT(*) FROM {stages} g {join} {staged} r ON r.stage_id = g.id WHERE g.batch_id = ?"""

# Rows are read in their own order, and the part of each is looked up: a join that may be turned
# around could read a whole stage for every part.
_ROWS = """
    FROM {stages} g {join} {staged} r ON r.stage_id = g.id
    LEFT JOIN {stage_parts} t ON t.stage_id = r.stage_id AND t.part = r.part
    WHERE g.batch_id = ?"""

_APPEND = """
    INSERT INTO {messages} (partition_id, message_offset, message_id, payload, encoding, headers,
                            published_at)"""

APPEND = f"""{_APPEND}
    SELECT t.home_id, t.first_offset + r.nth, <id>, r.payload, r.encoding, r.headers,
           g.published_at {_ROWS}"""

# What is wide is looked up at the end: only numbers and ids are sorted.
APPEND_NEW = f"""{_APPEND}
    SELECT o.home_id, p.next_offset + o.nth - 1, o.message_id, r.payload, r.encoding, r.headers,
           o.published_at
    FROM (
        SELECT w.*, ROW_NUMBER() OVER (PARTITION BY w.home_id ORDER BY w.place, w.number) AS nth
        FROM (
            SELECT r.stage_id, r.number, g.place, g.published_at, t.home_id, <id> AS message_id,
                   ROW_NUMBER() OVER (PARTITION BY t.home_id, <id> ORDER BY g.place, r.number)
                       AS times
            {_ROWS} AND (
                SELECT m.message_offset FROM {{messages}} m
                WHERE m.partition_id = t.home_id AND m.message_id = <id>
            ) IS NULL
        ) w
        WHERE w.times = 1
    ) o
    LEFT JOIN {{staged}} r ON r.stage_id = o.stage_id AND r.number = o.number
    LEFT JOIN {{partitions}} p ON p.id = o.home_id"""

SUMS = """
    SELECT x.home_id AS id, SUM(x.messages) AS messages, MAX(x.largest_bytes) AS largest
    FROM {stages} g {join} {stage_parts} x ON x.stage_id = g.id
    WHERE g.batch_id = ? GROUP BY x.home_id"""

ADDED = "t.next_offset + w.messages"
"""The next offset, if every row was appended."""

FOUND = """COALESCE(
    (SELECT MAX(m.message_offset) + 1 FROM {messages} m
     WHERE m.partition_id = t.id AND m.message_offset >= t.next_offset), t.next_offset)"""
"""The next offset, by what is there."""

LARGEST = "CASE WHEN w.largest > t.largest_bytes THEN w.largest ELSE t.largest_bytes END"

CLEAR = "DELETE FROM {staged} WHERE stage_id = ? AND number BETWEEN ? AND ?"

FORGET_PARTS = "DELETE FROM {stage_parts} WHERE stage_id = ?"

FORGET = "DELETE FROM {stages} WHERE id = ?"

FIND_OLD = """
    SELECT id FROM {stages} WHERE created_at < {now} - ?
    ORDER BY created_at LIMIT ? {skip_locked}"""

LAST = "SELECT COALESCE(MAX(number), -1) FROM {staged} WHERE stage_id = ?"
