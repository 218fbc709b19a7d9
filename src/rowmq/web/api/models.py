"""What the API takes and gives of topics and of everything; `job_models` has jobs and schedules."""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

import rowmq
from rowmq.overview import LetterKind, RedriveStep, SeekStep
from rowmq.web.api.members import (
    BATCH_MAX,
    IDS_MAX,
    POLL_MAX,
    Given,
    Handle,
    Headers,
    Key,
    Lasting,
    Moment,
    Name,
    Offset,
    Page,
    Receipts,
    Seconds,
    Shard,
    Shown,
    Wait,
    payload_members,
)
from rowmq.web.api.payloads import Encoding

# --- topics ---------------------------------------------------------------------------------------


class NewMessage(Given):
    """A message to publish. One with an `id` is published once, however often it is sent."""

    payload: Any
    encoding: Encoding = "json"
    key: Key | None = None
    id: Key | None = None
    headers: Headers = msgspec.field(default_factory=dict)


class NewMessages(Given):
    """Messages to publish in one transaction: all of them, or none and an error."""

    messages: Annotated[list[NewMessage], Meta(min_length=1, max_length=BATCH_MAX)]


class RawMessage(Given):
    """What goes with a message whose payload is the body."""

    key: Key | None = None
    id: Key | None = None


class Publication(Shown):
    """What became of many messages, in their order."""

    published: list[rowmq.PublishResult]


class Topic(Shown):
    """A topic. Without a retention, messages are kept until all groups have acked them."""

    name: str
    partitions: int
    messages: int
    max_payload_bytes: int
    retention_seconds: float | None
    holds_letters: bool


class Topics(Shown):
    """The topics that this token may see."""

    topics: list[Topic]


class TopicSettings(Given):
    """Settings of a topic; those left out stay as they are."""

    retention_seconds: Lasting | None = None
    max_payload_bytes: Annotated[int, Meta(ge=1, lt=2**31)] | None = None


class PartitionsWanted(Given):
    """Which partitions: those whose keys begin with a prefix, from one page's last one on."""

    prefix: Key | None = None
    after: Key | None = None
    after_shard: Shard | None = None
    limit: Page = 100


class Partitions(Shown):
    """Partitions, by their keys. Those of messages without a key have none, and a shard."""

    partitions: list[rowmq.PartitionInfo]


class Message(Shown):
    """A message as it stands in its topic."""

    topic: str
    key: str | None
    shard: int
    offset: int
    id: str | None
    headers: Mapping[str, str]
    published_at: datetime | None
    payload: Any
    encoding: Encoding

    @classmethod
    def of(cls, message: "rowmq.Message[Any]") -> "Message":
        """The message, for an answer."""
        return cls(
            topic=message.topic,
            key=message.key,
            shard=message.shard,
            offset=message.offset,
            id=message.id,
            headers=message.headers,
            published_at=message.published_at,
            **payload_members(message.payload),
        )


class MessagesWanted(Given):
    """Which messages: of all partitions, of a key, or, with a `shard`, of those without one.

    `at` and `id` go to a time or to a message; `before` and `after` are the cursors of a page.
    """

    key: Key | None = None
    shard: Shard | None = None
    at: Moment | None = None
    id: Key | None = None
    before: Annotated[str, Meta(max_length=1_000)] | None = None
    after: Annotated[str, Meta(max_length=1_000)] | None = None
    limit: Page = 50


class Messages(Shown):
    """A page of messages, newest first. `newer` and `older` are the cursors of the next pages."""

    messages: list[Message]
    newer: str | None
    older: str | None
    partial: bool
    """Whether there are more partitions than could be looked at: then ask for one by its key."""


class Groups(Shown):
    """The groups of a topic."""

    groups: list[rowmq.GroupInfo]


class NewGroup(Given):
    """A group to create, and where it begins."""

    start: Literal["earliest", "latest"] = "earliest"


class LagWanted(Given):
    """How many partitions, those most behind first."""

    limit: Page = 100


class Lag(Shown):
    """How far a group is behind, by partition."""

    lag: list[rowmq.LagInfo]


# --- consuming topics -----------------------------------------------------------------------------


class Poll(Given):
    """What to deliver, and how.

    A poll whose answer was lost can be sent again with the same `id`: what it delivered comes
    again, at no attempt. `consumer` tells apart consumers with the same token. What follows it is
    settled when a consumer begins, with its first poll; ask for the same each time. It ends when
    nobody has asked for anything for `idle_seconds`, and all that it delivered is settled or its
    visibility has passed.
    """

    max: Annotated[int, Meta(ge=1, le=POLL_MAX)] = 10
    timeout_seconds: Wait = 0.0
    id: Annotated[str, Meta(min_length=1, max_length=200)] | None = None
    consumer: Annotated[str, Meta(min_length=1, max_length=80)] = "default"
    visibility_seconds: Annotated[float, Meta(ge=1, le=43_200)] = 60.0
    max_attempts: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    start: Literal["earliest", "latest"] = "earliest"
    strict: bool = False
    idle_seconds: Annotated[float, Meta(ge=1, le=3_600)] = 60.0


class Delivery(Shown):
    """A message that was delivered, to be settled by its receipt before its visibility passes."""

    receipt: str
    attempt: int
    message: Message


class Deliveries(Shown):
    """What there was to deliver; nothing, if the time was up."""

    deliveries: list[Delivery]


class Settle(Given):
    """What to settle."""

    receipts: Receipts


class Nack(Given):
    """What to try again, when, and why it failed."""

    receipts: Receipts
    delay_seconds: Seconds | None = None
    error: str | None = None


class Reject(Given):
    """What to give up, and why."""

    receipts: Receipts
    error: str | None = None


class Extend(Given):
    """For how long from now on to keep what was delivered, or claimed, from others."""

    receipts: Receipts
    seconds: Annotated[float, Meta(ge=0.001, le=43_200)]


class Settled(Shown):
    """How many were settled, and which had been settled before: what was done first stands."""

    settled: int
    before: list[str]


class Done(Shown):
    """Whether that changed anything: it may have been so already."""

    changed: bool


class Counted(Shown):
    """How many it were."""

    count: int


# --- steering groups ------------------------------------------------------------------------------


class OffsetOf(Given):
    """The next offset of a key or, without one, of a shard of the messages without a key; without
    either, of all of these.
    """

    offset: Offset
    key: Key | None = None
    shard: Shard | None = None


class Seek(Given):
    """Where a group is to go on: at the start, at the end, at a time, or at offsets.

    With a `key`, or a `shard` of the messages without one, only there.
    """

    to: Literal["earliest", "latest"] | None = None
    at: Moment | None = None
    offsets: Annotated[list[OffsetOf], Meta(min_length=1, max_length=BATCH_MAX)] | None = None
    key: Key | None = None
    shard: Shard | None = None


class SeekWanted(Given):
    """A seek to preview: to the start, the end, a time or, of a key or shard, an offset."""

    to: Literal["earliest", "latest"] | None = None
    at: Moment | None = None
    offset: Offset | None = None
    key: Key | None = None
    shard: Shard | None = None
    limit: Page = 50


class SeekPreview(Shown):
    """What a seek would do: in so many partitions together, and in those in which it would do most,
    these first.
    """

    partitions: int
    again: int
    skipped: int
    in_flight: int
    steps: list[SeekStep]


class LettersWanted(Given):
    """Which dead letters: of a group, of a kind by its pattern, or of a message by its id."""

    group: Name | None = None
    id: Key | None = None
    matching: Annotated[str, Meta(max_length=1_000)] | None = None
    after: Annotated[str, Meta(max_length=1_000)] | None = None
    limit: Page = 50


class DeadLetter(Shown):
    """A message that a group gave up on, and why. Its `handle` names this letter and no other."""

    group: str
    error: str | None
    attempts: int
    failed_at: datetime
    handle: str
    message: Message


class DeadLetters(Shown):
    """A page of dead letters, newest first. Where few match, one may be empty and have a `next`."""

    letters: list[DeadLetter]
    next: str | None


class LetterKinds(Shown):
    """Dead letters by what their errors have in common, the most frequent first."""

    kinds: list[LetterKind]


class Letters(Given):
    """Which dead letters: some exactly, by their handles; those of some messages, by their ids,
    which messages of several keys may share; or all of a topic, or of a group.

    Leaving out everything means all, so it has to be said: `"all": true`.
    """

    group: Name | None = None
    letters: Annotated[list[Handle], Meta(min_length=1, max_length=IDS_MAX)] | None = None
    ids: Annotated[list[Key], Meta(min_length=1, max_length=IDS_MAX)] | None = None
    all: bool = False


class Cleared(Shown):
    """How many letters it was done to, and how many are left, counted up to 10,000: `capped` says
    that there may be more.
    """

    count: int
    left: int
    capped: bool


class LettersOf(Given):
    """Which dead letters a redrive would be about."""

    group: Name | None = None


class RedrivePreview(Shown):
    """What a redrive would do."""

    steps: list[RedriveStep]


class EditedLetter(Given):
    """A dead letter to give back to its group with another payload: by its handle, as `letter`; or
    by its group and the id of its message, with its `key` or `shard` where several have this id.
    """

    payload: Any
    letter: Handle | None = None
    group: Name | None = None
    id: Key | None = None
    encoding: Encoding = "json"
    headers: Headers | None = None
    key: Key | None = None
    shard: Shard | None = None


# --- the whole ------------------------------------------------------------------------------------


class Workers(Shown):
    """The processes that run handlers."""

    workers: list[rowmq.WorkerInfo]


class Findings(Shown):
    """What doctor found, and the worst level of it."""

    level: rowmq.Level
    healthy: bool
    findings: list[rowmq.Finding]


class Refused(Shown):
    """A receipt that was refused, and why: nothing was changed by it."""

    receipt: str
    detail: str


class Problem(Shown):
    """What went wrong, by RFC 9457. `type` is for programs, `detail` says what to do.

    `refused` are the receipts of a settle that were refused; the others were `settled`, or had been
    `before`. `in_doubt` says that it may have been done all the same: repeat it.
    """

    type: str
    title: str
    status: int
    detail: str
    settled: int | msgspec.UnsetType = msgspec.UNSET
    before: list[str] | msgspec.UnsetType = msgspec.UNSET
    refused: list[Refused] | msgspec.UnsetType = msgspec.UNSET
    in_doubt: bool | msgspec.UnsetType = msgspec.UNSET
