"""The values that pass through RowMQ, all frozen.

A `Message` is what is published and what is read: the same shape, with the topic, offset and time
filled in by the database. They are msgspec structs: as light as tuples, with names.
"""

import os
import time
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from enum import Enum, StrEnum
from typing import Any, Generic, Literal, TypeVar

import msgspec

__all__ = [
    "Checkup",
    "CronMessage",
    "DeadLetter",
    "DeliveryType",
    "Finding",
    "GroupInfo",
    "JobError",
    "LagInfo",
    "Level",
    "Message",
    "Migration",
    "Outcome",
    "PartitionInfo",
    "Pipelines",
    "PublishResult",
    "QueueInfo",
    "ReaderInfo",
    "RunningInfo",
    "ScheduleInfo",
    "ScheduledMessage",
    "State",
    "SubscriberInfo",
    "TopicInfo",
    "WorkerInfo",
    "WriterInfo",
    "new_id",
    "new_ids",
]

T = TypeVar("T")


class Message(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """One message of a topic.

    `topic`, `offset`, `published_at` and `shard` are set on messages that were read, and ignored
    when a message is published. Offsets count within a key; messages without one are spread over
    shards, and counted within theirs.
    """

    payload: T
    key: str | None = None
    id: str | None = None
    headers: Mapping[str, str] = {}
    topic: str = ""
    offset: int = 0
    published_at: datetime | None = None
    shard: int = 0


class PublishResult(msgspec.Struct, frozen=True, kw_only=True):
    """Where a published message stands: at an offset of its key or, without one, of a shard.

    `duplicate` says that a message with this id was already there: then `offset` is that one's,
    and nothing was added.
    """

    topic: str
    key: str | None
    id: str
    offset: int
    duplicate: bool
    shard: int = 0


class TopicInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A topic at a glance, from the partitions' counters.

    `retention` is how long a message is kept; None is for ever. `holds_letters` says whether
    messages that groups gave up on have come here: dead letters.
    """

    name: str
    partitions: int
    messages: int
    max_payload_bytes: int
    retention: timedelta | None
    holds_letters: bool = False


class PartitionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What the log of one key holds: the offsets `first_offset` to `last_offset`.

    Messages without a key are in several such logs: `shard` tells them apart, and is 0 for keys. If
    `first_offset` is one more than `last_offset`, all that was there has been collected.
    """

    key: str | None
    first_offset: int
    last_offset: int
    shard: int = 0

    @property
    def messages(self) -> int:
        """How many messages there are, or were, if some of them were deleted one by one."""
        return self.last_offset - self.first_offset + 1


class GroupInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer group at a glance.

    `expired` counts the messages that the topic's retention let go of before this group had acked
    them: if it rises, the group is too slow or abandoned.
    """

    topic: str
    name: str
    start: str
    created_at: datetime
    subscribers: int
    lag: int
    expired: int


class LagInfo(msgspec.Struct, frozen=True, kw_only=True):
    """How far a group is behind in one partition.

    `lag` counts the messages it has not acked, `in_flight` those of them that are delivered and not
    settled, and `retrying` those that failed and wait for another attempt; everything up to
    `offset_acked` is done. `owner` is the subscriber that has the lease.
    `shard` tells apart the partitions of messages without a key.
    """

    key: str | None
    offset_acked: int
    last_offset: int
    lag: int
    in_flight: int
    owner: str | None
    shard: int = 0
    retrying: int = 0


class DeadLetter(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """A message that a group gave up on, as it was, and why.

    `offset` is where it stood in its topic, and `message` what was published there. `handle` names
    this letter and never another one, where ids of messages are unique for each key only.
    """

    message: Message[T]
    group: str
    error: str | None
    attempts: int
    failed_at: datetime
    offset: int
    handle: str


class State(Enum):
    """What a job is at a given time: the first three are alive, the others are the archive."""

    PENDING = "pending"
    PROCESSING = "processing"
    RETRYABLE = "retryable"
    COMPLETED = "completed"
    FAILED = "failed"


class Outcome(Enum):
    """What became of an offer."""

    CREATED = "created"
    UPDATED = "updated"
    IGNORED = "ignored"


class DeliveryType(Enum):
    """Whether a job was handed out for the first time, or was before."""

    FIRST_DELIVERY = "first_delivery"
    REDELIVERY = "redelivery"


class ScheduledMessage(msgspec.Struct, Generic[T], frozen=True):
    """A job to offer by its key: new if there is none with this key, else an update of that one,
    unless `can_update` is False.

    It is due at a time, after a delay by the database's clock, or, without either, now.
    """

    key: str
    payload: T
    at: datetime | None = None
    can_update: bool = True
    priority: int = 0
    headers: Mapping[str, str] | None = None
    delay: float | timedelta | None = None


class CronMessage(msgspec.Struct, Generic[T], frozen=True):
    """A job of a tick, to be put ahead of its time with `cron.install_tick`."""

    payload: T
    at: datetime
    priority: int = 0
    headers: Mapping[str, str] | None = None


class ScheduleInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule, and when it fires.

    `kind` is cron, daily or periodic, `expression` is what it was given and `description` says it
    in words. Ticks go to `queue` or `topic`. Where a function makes the payload, `function` says
    which. `next_at` is None if it never fires again; of a paused one it has no meaning.
    """

    name: str
    kind: str
    expression: str
    description: str
    tz: str
    queue: str | None
    topic: str | None
    key: str | None
    payload: Any
    function: str | None
    headers: Mapping[str, str]
    priority: int
    catch_up: str
    grace: timedelta
    paused: bool
    next_at: datetime | None
    last_at: datetime | None
    config_hash: str
    created_at: datetime


class QueueInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A queue and its settings. None stands for no limit, and for keeping for ever."""

    name: str
    kinds: tuple[str, ...]
    paused: bool
    keep_completed: bool
    keep_failed: bool
    retention: timedelta | None
    failed_retention: timedelta | None
    max_payload_bytes: int
    max_in_flight: int | None
    rate: int | None
    rate_period: timedelta | None
    durability: str


class JobError(msgspec.Struct, frozen=True, kw_only=True):
    """Why an attempt at a job failed."""

    attempt: int
    failed_at: datetime
    error: str | None


class RunningInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A message or job that a worker is at work on.

    `source` is its topic or queue, and `source_type` says which of them: None if a worker of an
    earlier version tells. `id` is that of the job or message; `progress`, from 0 to 1, and `note`
    are what its handler reported last.
    """

    handler: str
    source: str
    id: str
    key: str | None
    attempt: int
    since: datetime
    progress: float | None = None
    note: str | None = None
    source_type: Literal["topic", "queue"] | None = None


class WorkerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A process that runs handlers. It is `alive` if it was heard of lately."""

    name: str
    app: str
    host: str
    pid: int
    version: str
    handlers: tuple[str, ...]
    started_at: datetime
    seen_at: datetime
    alive: bool
    running: tuple[RunningInfo, ...]


class SubscriberInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A subscriber of a group, and how many of its partitions it owns, counted up to ten thousand.
    It is `alive` if it was heard of lately; else its partitions are free for others.
    """

    topic: str
    group: str
    name: str
    partitions: int
    seen_at: datetime
    alive: bool


class ReaderInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A group whose reader keeps its own books: a stream of Spark's, or an archive.

    `lag` messages, in `behind` of its `partitions`, were published and not read by it. `moved_at`
    is when it said last how far it is, and `oldest_at` when the oldest message that it has not read
    was published. Up to half a million partitions of all topics together are looked at: beyond, it
    is `capped`, and at least so far behind; if it is `oldest_capped`, an older message may wait.
    """

    topic: str
    group: str
    created_at: datetime
    moved_at: datetime | None
    partitions: int
    behind: int
    lag: int
    oldest_at: datetime | None
    capped: bool = False
    oldest_capped: bool = False


class WriterInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a sink of Spark's has published last, by its line in the ledger.

    `writer` is `query:` and the id of a stream, `app:` and the name that a batch was given, or
    `replay:` and that of a replay; `version` is the batch's number.
    """

    writer: str
    target: str
    version: int
    written_at: datetime


class Pipelines(msgspec.Struct, frozen=True, kw_only=True):
    """What Spark reads, by topic and group; and what it wrote, the last first, 200 of each."""

    readers: tuple[ReaderInfo, ...]
    writers: tuple[WriterInfo, ...]


class Migration(msgspec.Struct, frozen=True, kw_only=True):
    """One numbered step of the schema, with its SQL for this database."""

    version: int
    name: str
    sql: str


class Level(StrEnum):
    """How bad a finding is, from nothing to do to something that costs messages or work."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    PROBLEM = "problem"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What a check of `doctor` found.

    `details` are the figures that it saw, by name; `advice` is what to do, and empty where there is
    nothing to do.
    """

    check: str
    level: Level
    summary: str
    details: Mapping[str, Any] = {}
    advice: str = ""


class Checkup(msgspec.Struct, frozen=True, kw_only=True):
    """What `doctor` found, check by check. It can be iterated over."""

    findings: tuple[Finding, ...]

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    def __len__(self) -> int:
        return len(self.findings)

    @property
    def level(self) -> Level:
        """The worst level of all findings."""
        order = list(Level)
        return max((finding.level for finding in self.findings), key=order.index, default=Level.OK)

    @property
    def healthy(self) -> bool:
        """Whether there is neither a warning nor a problem."""
        return self.level in (Level.OK, Level.NOTE)

    def of(self, check: str) -> list[Finding]:
        """The findings of one check."""
        return [finding for finding in self.findings if finding.check == check]


def new_id() -> str:
    """A fresh message id: a UUID of version 7, whose order by time keeps index pages warm."""
    return new_ids(1)[0]


def new_ids(count: int) -> list[str]:
    """Fresh message ids in rising order."""
    millis = f"{time.time_ns() // 1_000_000 & 0xFFFF_FFFF_FFFF:012x}"
    head = f"{millis[:8]}-{millis[8:]}-7"
    return [head + tail for tail in sorted(spare_tails(count))]


def spare_tails(count: int) -> list[str]:
    """What ids have beside their time. Made many at a time, since that takes a quarter as long."""
    if count >= SPARE_TAILS:
        return new_tails(count)
    spare = _spare_tails[os.getpid()]
    tails: list[str] = []
    while len(tails) < count:
        try:
            tails.append(spare.popleft())
        except IndexError:
            spare.extend(new_tails(SPARE_TAILS))
    return tails


def new_tails(count: int) -> list[str]:
    random = os.urandom(RANDOM_BYTES * count).hex()
    return [
        f"{random[at : at + 3]}-{VARIANT[random[at + 3]]}{random[at + 4 : at + 7]}-"
        f"{random[at + 7 : at + 19]}"
        for at in range(0, 2 * RANDOM_BYTES * count, 2 * RANDOM_BYTES)
    ]


RANDOM_BYTES = 10
"""How much of it is taken for an id: of these 80 bits 74 are used."""

VARIANT = {digit: "89ab"[int(digit, 16) & 3] for digit in "0123456789abcdef"}
"""The digit that says which kind of UUID it is, with two random bits beside that."""

SPARE_TAILS = 100

_spare_tails: defaultdict[int, deque[str]] = defaultdict(deque)
"""By process: a child must not take those of its parent, and a server that forks by itself, as
uWSGI does, tells Python nothing of it. Each is taken once, by whichever thread.
"""
