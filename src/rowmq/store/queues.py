"""Queues and their lanes: names to numbers, settings, and blocks of job ids.

A *lane* is what is claimed in one order: the jobs of one queue, one kind and one priority. It is
made by the first job that needs it, and stays. So a claim goes through few lanes, from the highest
priority down, and in each along an index from which nothing has to be left out.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar

import msgspec

from rowmq.errors import SerializationFailure
from rowmq.message import QueueInfo
from rowmq.store.dialect import Columns, Dialect, are_numbers, as_text
from rowmq.store.statement import Operation, Row, Statement
from rowmq.store.topics import limit_of

__all__ = [
    "FULL",
    "IDS_A_BLOCK",
    "IN_FLIGHT",
    "RATE",
    "RELAXED",
    "Keeps",
    "Lane",
    "LaneName",
    "Queues",
    "Settings",
    "wake_name",
]

T = TypeVar("T")

IDS_A_BLOCK = 1_000
"""How many job ids come with one number that the database gives."""

IN_FLIGHT, RATE = 1, 2
"""What a permit is for. The numbers are stored: they never change."""

Keeps = Mapping[int, tuple[bool, bool]]
"""Whether queues keep what is completed, and what failed; by their ids."""

RETENTION_DEFAULT_US = 7 * 86_400 * 1_000_000
"""How long a completed job is kept if nothing else was said: a week. Failed ones stay."""


def wake_name(queue: str) -> str:
    """What pollers of a queue are woken by; if a topic is called so too, that does no harm."""
    return f"queue {queue}"


class LaneName(NamedTuple):
    """What a lane is for. The empty kind is that of jobs without a type."""

    queue: str
    kind: str
    precedence: int


class Lane(NamedTuple):
    """A lane by its numbers, how large its payloads may be, and whether its queue is relaxed."""

    id: int
    queue_id: int
    payload_bytes_max: int
    relaxed: bool = False


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What `configure` changes: None leaves a setting as it is, 0 is without limit."""

    keep_completed: bool | None = None
    keep_failed: bool | None = None
    retention_us: int | None = None
    failed_retention_us: int | None = None
    max_payload_bytes: int | None = None
    max_in_flight: int | None = None
    rate: int | None = None
    rate_period_us: int | None = None
    paused: bool | None = None
    relaxed: bool | None = None


class Queues:
    """The operations on queues as such, for one dialect."""

    ids_roll_back = False
    """Whether a block of ids that was taken in a transaction may be given again if it is undone."""

    relaxes = False
    """Whether a commit by itself may return before it is on the disk: see `relaxing`."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect

    def reserve(self) -> Operation[int]:
        """Take a block of job ids; the first of them."""
        number = yield from self.dialect.insert_id("queues.reserve", RESERVE, ())
        yield Statement("queues.reserved", self.dialect.sql(RESERVED), (number,))
        return number * IDS_A_BLOCK

    # --- lanes ------------------------------------------------------------------------------------

    def find_lanes(
        self,
        names: Sequence[LaneName],
        *,
        share: bool = False,
        alone: bool = False,
        sole: bool = False,
    ) -> Operation[tuple[dict[LaneName, Lane], int]]:
        """Those lanes that exist, and the time; 0 if there is none of them."""
        lanes: dict[LaneName, Lane] = {}
        now = 0
        for run in self.runs(names):
            source, params = self.dialect.given(LANE_NAME, run)
            lock = "{for_share}" if share else ""
            template = FIND_LANES.replace("<source>", source).replace("<lock>", lock)
            if alone:
                template, params = self.relaxing(template, params, len(names))
            sql = self.dialect.sql(template)
            for queue, kind, precedence, id, queue_id, limit, moment, relaxed, *_ in (
                yield Statement("queues.find_lanes", sql, params, sole=sole)
            ):
                name = LaneName(as_text(queue), as_text(kind), precedence)
                lanes[name] = Lane(id, queue_id, limit_of(limit), bool(relaxed))
                now = moment
                self.note(bool(relaxed), name.queue, queue_id)
        return lanes, now

    def lanes(
        self, names: Iterable[LaneName], *, alone: bool = False
    ) -> Operation[tuple[dict[LaneName, Lane], int]]:
        """The lanes of names, made where they are missing, and the time."""
        wanted = sorted(set(names))
        # What makes a lane is never relaxed: if that was lost, its number would be given to another
        # one, and claimers that know it would take jobs of the wrong queue.
        lanes, now = yield from self.find_lanes(wanted, alone=alone)
        missing = [name for name in wanted if name not in lanes]
        if missing:
            yield from self.create_lanes(missing)
            # A snapshot that is older than a rival's lane must not hide it.
            lanes, now = yield from self.find_lanes(wanted, share=self.dialect.snapshots)
            if len(lanes) < len(wanted):
                raise SerializationFailure("a queue was made and is not there")
        return lanes, now

    def create_lanes(self, names: Sequence[LaneName]) -> Operation[None]:
        """Make lanes, and their queues, unless somebody else has just done so."""
        yield from self.create_queues({name.queue for name in names})
        for run in self.runs(names):
            source, params = self.dialect.given(LANE_NAME, run)
            ending = self.dialect.unless_there(f"{self.dialect.fill('{lanes}')}.kind")
            template = CREATE_LANES.replace("<source>", source).replace("<ending>", ending)
            yield Statement("queues.create_lanes", self.dialect.sql(template), params)

    def create_queues(self, names: Iterable[str]) -> Operation[None]:
        """Make queues, unless they are there."""
        ending = self.dialect.unless_there("created_at")
        sql = self.dialect.sql(CREATE_QUEUE.replace("<ending>", ending))
        for name in sorted(names):
            params = (self.dialect.text(name), RETENTION_DEFAULT_US)
            yield Statement("queues.create", sql, params)

    def list_lanes(self, queue: str) -> Operation[list[tuple[int, int, str, int]]]:
        """Lane, queue, kind and precedence of all lanes of a queue, in the order of claims."""
        sql, params = self.dialect.sql(LIST_LANES), (self.dialect.text(queue),)
        result = yield Statement("queues.list_lanes", sql, params, sole=True)
        return [(id, queue_id, as_text(kind), order) for id, queue_id, kind, order in result]

    # --- settings ---------------------------------------------------------------------------------

    def list_queues(self) -> Operation[list[QueueInfo]]:
        """Every queue that ever had a job or was configured, by name."""
        sql, kinds_sql = LIST.replace("<one>", ""), LIST_KINDS.replace("<one>", "")
        result = yield Statement("queues.list", self.dialect.sql(sql), sole=True)
        lanes = yield Statement("queues.list_kinds", self.dialect.sql(kinds_sql), sole=True)
        kinds: dict[int, list[str]] = {}
        for queue_id, kind in lanes:
            kinds.setdefault(queue_id, []).append(as_text(kind))
        return [queue_info(row, kinds.get(row[0], [])) for row in result]

    def find_queue(self, queue: str) -> Operation[QueueInfo | None]:
        """A queue as in the list, if it ever had a job or was configured."""
        sql = self.dialect.sql(LIST.replace("<one>", "WHERE queue = ?"))
        result = yield Statement("queues.look", sql, (self.dialect.text(queue),), sole=True)
        if not result.rows:
            return None
        row = result.rows[0]
        sql = self.dialect.sql(LIST_KINDS.replace("<one>", "WHERE queue_id = ?"))
        lanes = yield Statement("queues.look_kinds", sql, (row[0],), sole=True)
        return queue_info(row, [as_text(kind) for _, kind in lanes])

    def configure(self, queue: str, settings: Settings) -> Operation[None]:
        """Change settings of a queue, which is made if it is new."""
        yield from self.create_queues([queue])
        changes = {
            field: value
            for field in Settings.__struct_fields__
            if (value := getattr(settings, field)) is not None
        }
        if not changes:
            return
        sets = ", ".join(f"{column} = ?" for column in changes)
        values = [int(v) if f in FLAGS else v or None for f, v in changes.items()]
        sql = self.dialect.sql(CONFIGURE.replace("<sets>", sets))
        yield Statement("queues.configure", sql, (*values, self.dialect.text(queue)))
        yield from self.provide_permits(queue)

    def provide_permits(self, queue: str) -> Operation[None]:
        """Have as many permits as the limits of a queue say."""
        sql = self.dialect.sql(LIMITS)
        result = yield Statement("queues.limits", sql, (self.dialect.text(queue),))
        ((queue_id, in_flight, rate),) = result.rows
        for purpose, limit in ((IN_FLIGHT, in_flight or 0), (RATE, rate or 0)):
            sql = self.dialect.sql(LAST_PERMIT)
            ((last,),) = (yield Statement("queues.permits", sql, (queue_id, purpose))).rows
            rows = [(queue_id, 0, purpose, number) for number in range(1, limit + 1)]
            ending = self.dialect.unless_there("number")
            yield from self.insert("queues.add_permits", "{permits}", PERMIT, rows, ending)
            if last > limit:
                # Those in use stay, and are counted, until they are free; unless there is no limit.
                sql = self.dialect.sql(DROP_PERMITS if limit else DROP_ALL_PERMITS)
                yield Statement("queues.drop_permits", sql, (queue_id, purpose, limit))

    def keeps(self, queue_ids: Iterable[int]) -> Operation[Keeps]:
        """Whether queues keep what is completed, and what failed."""
        kept = {}
        for run in self.runs(sorted(set(queue_ids))):
            source, params = self.dialect.given({"id": "bigint"}, [(id,) for id in run])
            sql = self.dialect.sql(KEEPS.replace("<source>", source))
            for id, completed, failed in (yield Statement("queues.keeps", sql, params)):
                kept[id] = bool(completed), bool(failed)
        return kept

    # --- durability -------------------------------------------------------------------------------

    # A put, an offer or a settle that is `alone`, in a transaction of our own with nothing else in
    # it, need not wait for the disk if all its queues are relaxed. A commit that does wait takes
    # along all that came before it, so nothing that lasts was ever built on something lost.

    def relaxing(self, template: str, params: list[Any], rows: int) -> tuple[str, list[Any]]:  # noqa: ARG002 - for a dialect
        """A query with a column `relaxed` that also has its transaction not wait for the disk, if
        it gives so many rows and all are relaxed; where a query can do that.
        """
        return template, params

    def are_relaxed(
        self,
        queues: Collection[str | int],  # noqa: ARG002 - for a dialect
        lanes: Collection[LaneName] = (),  # noqa: ARG002 - for a dialect
    ) -> Operation[bool]:
        """Whether queues, by name or by id, are relaxed and these lanes there: looked up before the
        transaction begins, where it must be known by then. Else False.
        """
        yield from ()
        return False

    def seize(
        self, queues: Collection[str | int], lanes: Collection[LaneName] = (), *, alone: bool
    ) -> Operation[None]:
        """Begin to write, relaxed if all these queues are and it is `alone`. Our own transaction is
        one that writes, from its first statement on: only one that is relaxed must begin here.
        """
        relaxed = alone and (yield from self.are_relaxed(queues, lanes))
        if relaxed or not alone:
            yield from self.dialect.seize(relaxed=relaxed)
        if relaxed and not (yield from self.are_relaxed(queues, lanes)):
            raise SerializationFailure("the durability of a queue was changed at this very moment")

    def note(self, relaxed: bool, *queues: str | int) -> None:
        """Queues, by name or by id, were seen to be so."""

    # --- many rows --------------------------------------------------------------------------------

    def insert(
        self,
        name: str,
        table: str,
        columns: dict[str, str],
        rows: Sequence[Sequence[Any]],
        ending: str = "",
    ) -> Operation[None]:
        """Insert rows, in as few statements as it takes."""
        for run in self.runs(rows, columns):
            sql, params = self.dialect.insert_into(table, columns, run, ending)
            yield Statement(name, self.dialect.sql(sql), params)

    def delete(
        self, name: str, table: str, columns: dict[str, str], rows: Sequence[Sequence[Any]]
    ) -> Operation[None]:
        """Delete the rows that have these keys."""
        for run in self.runs(rows, columns):
            source, params = self.dialect.given(columns, run)
            sql = self.dialect.sql(self.dialect.delete_from(table, source, tuple(columns)))
            yield Statement(name, sql, params)

    def discard(
        self, name: str, table: str, columns: dict[str, str], rows: Sequence[Sequence[Any]]
    ) -> Operation[None]:
        """Delete the rows that have these keys: see `discard_from`."""
        for run in self.runs(rows, columns):
            source, params = self.dialect.given(columns, run)
            sql = self.dialect.sql(self.dialect.discard_from(table, source, tuple(columns)))
            yield Statement(name, sql, params)

    def update(
        self,
        name: str,
        table: str,
        columns: dict[str, str],
        keys: Sequence[str],
        rows: Sequence[Sequence[Any]],
    ) -> Operation[None]:
        """Update the rows that have the keys among these columns with the other columns."""
        sets = {column: f"w.{column}" for column in columns if column not in keys}
        for run in self.runs(rows, columns):
            source, params = self.dialect.given(columns, run)
            sql = self.dialect.sql(self.dialect.update_from(table, source, keys, sets))
            yield Statement(name, sql, params)

    def select(
        self,
        name: str,
        template: str,
        columns: dict[str, str],
        rows: Sequence[Sequence[Any]],
        *,
        alone: bool = False,
        sole: bool = False,
    ) -> Operation[list[Row]]:
        """What a query gives for given rows, its `<source>`; if it is `alone`, see `relaxing`."""
        found: list[Row] = []
        for run in self.runs(rows, columns):
            source, params = self.dialect.given(columns, run)
            filled = template.replace("<source>", source)
            if alone:
                filled, params = self.relaxing(filled, params, len(rows))
            sql = self.dialect.sql(filled)
            found += (yield Statement(name, sql, params, sole=sole)).rows
        return found

    def runs(self, items: Sequence[T], columns: Columns | None = None) -> Iterable[Sequence[T]]:
        """Small items in runs that fit into one statement each; of numbers only, by the columns
        that they are for, there may fit more.
        """
        numbers = columns is not None and are_numbers(columns)
        most = self.dialect.numbers_max if numbers else self.dialect.rows_max
        for start in range(0, len(items), most):
            yield items[start : start + most]


def queue_info(row: Row, kinds: Iterable[str]) -> QueueInfo:
    """A row of LIST, and the kinds of jobs of that queue."""
    (
        _,
        name,
        paused,
        keep_completed,
        keep_failed,
        retention,
        failed_retention,
        limit,
        in_flight,
        rate,
        period,
        relaxed,
    ) = row
    return QueueInfo(
        name=as_text(name),
        kinds=tuple(sorted(kinds)),
        paused=bool(paused),
        keep_completed=bool(keep_completed),
        keep_failed=bool(keep_failed),
        retention=span_of(retention),
        failed_retention=span_of(failed_retention),
        max_payload_bytes=limit_of(limit),
        max_in_flight=in_flight,
        rate=rate,
        rate_period=span_of(period),
        durability=RELAXED if relaxed else FULL,
    )


def span_of(micros: int | None) -> timedelta | None:
    """A stored duration; None is for ever."""
    return None if micros is None else timedelta(microseconds=micros)


FULL, RELAXED = "full", "relaxed"
"""Whether a put or a settle returns when it is on the disk, or when it is committed."""

FLAGS = {"keep_completed", "keep_failed", "paused", "relaxed"}
"""Settings of which 0 means no, and not that there is no limit."""

LANE_NAME = {"queue": "text", "kind": "text", "precedence": "integer"}
PERMIT = {"queue_id": "bigint", "free_at": "bigint", "purpose": "smallint", "number": "integer"}

RESERVE = "INSERT INTO {job_ids} (id) VALUES (NULL)"

RESERVED = "DELETE FROM {job_ids} WHERE id = ?"

FIND_LANES = """
    SELECT w.queue, w.kind, w.precedence, l.id, q.id, q.max_payload_bytes, {now}, q.relaxed
    FROM (<source>) w {join} {queues} q ON q.queue = w.queue
    {join} {lanes} l ON l.queue_id = q.id AND l.kind = w.kind AND l.precedence = w.precedence
    <lock>"""

CREATE_QUEUE = """
    INSERT INTO {queues} (queue, retention_us, created_at) VALUES (?, ?, {now}) <ending>"""

CREATE_LANES = """
    INSERT INTO {lanes} (queue_id, kind, precedence)
    SELECT q.id, w.kind, w.precedence FROM (<source>) w {join} {queues} q ON q.queue = w.queue
    WHERE 1 = 1 <ending>"""

LIST_LANES = """
    SELECT l.id, q.id, l.kind, l.precedence FROM {queues} q {join} {lanes} l ON l.queue_id = q.id
    WHERE q.queue = ? ORDER BY l.precedence, l.id"""

LIST = """
    SELECT id, queue, paused, keep_completed, keep_failed, retention_us, failed_retention_us,
           max_payload_bytes, max_in_flight, rate, rate_period_us, relaxed
    FROM {queues} <one> ORDER BY queue"""

LIST_KINDS = "SELECT DISTINCT queue_id, kind FROM {lanes} <one>"

CONFIGURE = "UPDATE {queues} SET <sets> WHERE queue = ?"

LIMITS = "SELECT id, max_in_flight, rate FROM {queues} WHERE queue = ? {for_update}"

LAST_PERMIT = """
    SELECT COALESCE(MAX(number), 0) FROM {permits} WHERE queue_id = ? AND purpose = ? {as_now}"""

DROP_ALL_PERMITS = "DELETE FROM {permits} WHERE queue_id = ? AND purpose = ? AND number > ?"

DROP_PERMITS = """
    DELETE FROM {permits}
    WHERE queue_id = ? AND purpose = ? AND number > ? AND token = 0 AND free_at <= {now}"""

KEEPS = """
    SELECT q.id, q.keep_completed, q.keep_failed
    FROM (<source>) w {join} {queues} q {by_key} ON q.id = w.id"""
