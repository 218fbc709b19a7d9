"""What operators see of topics: pages of messages and of dead letters, previews, and traffic.

All frozen, like the values of `message`. A page tells where the next one begins, as a cursor: a
text that says nothing to people and stays right whatever is published meanwhile.
"""

from datetime import datetime
from enum import Enum
from typing import Any, Final, Literal

import msgspec

from rowmq.message import DeadLetter, Message

__all__ = [
    "ANY",
    "AnyKey",
    "GroupTraffic",
    "LetterKind",
    "LetterPage",
    "MessagePage",
    "PurgeStep",
    "RedriveStep",
    "SeekPreview",
    "SeekStep",
    "TopicTraffic",
    "Traffic",
    "Wherever",
]


class Wherever(Enum):
    """Stands for the messages of a topic whatever their key, where None is for those without."""

    ANY = "any"


AnyKey = Literal[Wherever.ANY]

ANY: Final = Wherever.ANY
"""All messages of a topic, with any key and without one."""


class MessagePage(msgspec.Struct, frozen=True, kw_only=True):
    """Messages of a topic, newest first.

    `older` is the cursor to give as `before` for the page that follows, `newer` the one to give as
    `after` for the page above; None where there is nothing more, as far as this look could see.
    `partial` says that not all partitions were looked at: there are too many, and these are the
    messages of those that were written to last, as far as that could be known quickly.
    """

    messages: tuple[Message[Any], ...]
    newer: str | None = None
    older: str | None = None
    partial: bool = False


class SeekStep(msgspec.Struct, frozen=True, kw_only=True):
    """What a seek would do to a group in one partition, by its counters.

    It is done with everything up to `offset_acked`, and would be delivered `next_offset` next:
    `again` messages a second time, and `skipped` ones never. What is `in_flight` would be void.
    """

    key: str | None
    offset_acked: int
    next_offset: int
    again: int
    skipped: int
    in_flight: int
    shard: int = 0


class SeekPreview(msgspec.Struct, frozen=True, kw_only=True):
    """What a seek would do to a group: in so many `partitions`, all together.

    `steps` are those of them in which it would do most, these first.
    """

    partitions: int
    again: int
    skipped: int
    in_flight: int
    steps: tuple[SeekStep, ...]


class RedriveStep(msgspec.Struct, frozen=True, kw_only=True):
    """What a redrive would do for one group: how many letters it would give back.

    The log has let go of the messages of `gone` of them: these are put back for this group alone.
    `capped` says that there are more letters than were looked at.
    """

    group: str
    letters: int
    gone: int
    capped: bool = False


class PurgeStep(msgspec.Struct, frozen=True, kw_only=True):
    """What a purge would do: how many letters of a group it would delete. `capped` says that there
    are more letters than were looked at.
    """

    group: str
    letters: int
    capped: bool = False


class LetterPage(msgspec.Struct, frozen=True, kw_only=True):
    """Dead letters, newest first.

    `next` is the cursor to give as `after` for those that follow; None if there are none. A page
    that was to match something may have few letters, or none, and a `next` all the same: it is one
    look at so many of them, which `looked_at` counts.
    """

    letters: tuple[DeadLetter[Any], ...]
    next: str | None = None
    looked_at: int = 0


class LetterKind(msgspec.Struct, frozen=True, kw_only=True):
    """Dead letters whose errors differ in numbers, ids and quoted texts only.

    `pattern` is what their errors have in common, and is empty if there was none; `sample` is how
    the error of the last one begins. `capped` says that there are more letters than were looked at,
    which were the newest.
    """

    pattern: str
    count: int
    sample: str | None
    groups: tuple[str, ...]
    first_at: datetime
    last_at: datetime
    capped: bool = False


class TopicTraffic(msgspec.Struct, frozen=True, kw_only=True):
    """A topic in a snapshot: how many messages were ever `published` to it, and how many its log
    holds. `capped` says that it has more partitions than were looked at, and so more of everything:
    beyond half a million, of all topics together, those with the oldest and the newest keys are.
    """

    topic: str
    partitions: int
    published: int
    messages: int
    capped: bool = False


class GroupTraffic(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer group in a snapshot.

    `acked` and `lag` are what was published, divided into what the group is done with and what not.
    `dead_letters` counts up to five thousand; if there may be more, `letters_capped` is true.
    `oldest_at` is when the oldest message that is not acked was published; None if there is none.
    `oldest_capped` says that there may be an older one: it is looked for in a hundred thousand
    partitions that are behind, of all groups together. `capped` says that the group has more
    partitions than were looked at, as for its topic: its lag may be more.
    """

    topic: str
    group: str
    acked: int
    lag: int
    in_flight: int
    subscribers: int
    expired: int
    dead_letters: int
    letters_capped: bool = False
    oldest_at: datetime | None = None
    oldest_capped: bool = False
    capped: bool = False
    created_at: datetime | None = None


class Traffic(msgspec.Struct, frozen=True, kw_only=True):
    """All topics and groups at one time, by the database's clock: two of these tell rates.

    `capped` says that there are more than five hundred topics, or groups, and these are the first.
    """

    at: datetime
    topics: tuple[TopicTraffic, ...]
    groups: tuple[GroupTraffic, ...]
    capped: bool = False
