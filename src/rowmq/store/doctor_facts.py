"""What `doctor` sees of a database: figures, without a word about what they mean."""

from typing import NamedTuple

import msgspec

from rowmq.errors import SchemaError
from rowmq.store.doctor_schema import Blueprint

__all__ = [
    "Catalogue",
    "Failures",
    "GroupState",
    "Identity",
    "IndexState",
    "LeftHold",
    "LockState",
    "Payload",
    "QueueState",
    "ScheduleState",
    "SchemaState",
    "StaleSubscriber",
    "StuckJob",
    "Transaction",
]


class Identity(NamedTuple):
    """Which server this is, as it says itself."""

    product: str
    version: str
    number: tuple[int, ...]
    user: str
    database: str
    place: str
    standby: bool = False


class IndexState(NamedTuple):
    """An index that is there."""

    table: str
    name: str
    columns: tuple[str, ...]
    unique: bool
    valid: bool = True


class Catalogue(NamedTuple):
    """What should be there, and what is: the columns by table, and the indexes."""

    blueprint: Blueprint
    columns: dict[str, set[str]]
    indexes: list[IndexState]


class SchemaState(NamedTuple):
    """The version of the tables, the one that this library wants, and what is wrong with it."""

    version: int
    latest: int
    error: SchemaError | None


class GroupState(NamedTuple):
    """How far a group is behind, in the partitions that were looked at."""

    topic: str
    group: str
    subscribers: int
    expired: int
    partitions: int
    behind: int
    lag: int
    oldest_seconds: float | None
    keeps_books: bool
    """Whether it is Spark's, which has no subscribers and says now and then how far it is."""
    capped: bool = False
    """Whether it may be further behind: there are more partitions than are looked at."""
    oldest_capped: bool = False
    """Whether an older message may wait."""


class Failures(NamedTuple):
    """What was given up on: dead letters of a topic and group, or failed jobs of a queue."""

    source: str
    group: str | None
    number: int
    oldest_seconds: float
    newest_seconds: float
    errors: list[tuple[str, int]]
    """The most frequent kinds of the newest failures, as `likeness` tells them apart, and how many
    each has.
    """
    exact: bool
    """Whether they were counted to the end."""


class StaleSubscriber(NamedTuple):
    """A subscriber whose lease has run out and that is still registered."""

    topic: str
    group: str
    name: str
    expired_seconds: float
    partitions: int


class QueueState(NamedTuple):
    """A queue: since when its first job is due, and when one was finished last."""

    queue: str
    paused: bool
    limited: bool
    claimed: bool
    """Whether somebody has jobs of it just now."""
    due_seconds: float | None
    finished_seconds: float | None


class LockState(NamedTuple):
    """A lock of jobs that has run out; queues as its jobs have them."""

    owner: str
    queues: tuple[str, ...]
    jobs: int
    expired_seconds: float


class StuckJob(NamedTuple):
    """A job that was handed out often and not settled."""

    queue: str
    id: int
    deliveries: int
    attempts: int


class LeftHold(NamedTuple):
    """A note that a job was begun in a transaction."""

    job_id: int
    starts: int
    seconds: float


class ScheduleState(NamedTuple):
    """A schedule, and for how long it has been due."""

    name: str
    paused: bool
    due_seconds: float | None
    function: str | None
    """What makes its payload: only a process that has installed it with that can fire it."""


class Payload(msgspec.Struct):
    """What matters here of how a schedule is stored."""

    function: str | None = None


class Transaction(NamedTuple):
    """A transaction of somebody else that has been open for long."""

    id: int
    """What the server knows its connection by."""
    seconds: float
    user: str | None
    application: str | None
    state: str | None
    statement: str | None
    holds_back: bool
    """Whether it keeps old rows from being cleaned up."""
