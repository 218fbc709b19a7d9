"""What applications do with topics: publish, look at messages, change settings.

Both clients have these methods, each a line or two: the input is checked and bound to an operation
here, once, and run by the client. Consuming is in `subscriber`.
"""

import builtins
import secrets
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import partial
from typing import Any, TypeVar, overload

from rowmq.combining import AsyncCombiner, Combiner
from rowmq.drivers.base import AsyncDriver
from rowmq.drivers.forking import after_fork
from rowmq.drivers.watching import Notifier
from rowmq.errors import InvalidInput, InvalidOption
from rowmq.message import Message, PartitionInfo, PublishResult, TopicInfo, new_id, new_ids
from rowmq.naming import KEY_BYTES_MAX, check_key, check_topic
from rowmq.quoting import quoted
from rowmq.store.entries import Entry, entry_of
from rowmq.store.keys import KEYLESS, SHARD_KEYS, Offsets, Place, chosen_key, stored_key
from rowmq.store.statement import Operation
from rowmq.store.store import Store
from rowmq.store.topics import check_limit, check_retention
from rowmq.times import Duration, to_micros
from rowmq.tracing import Tracer

__all__ = ["AsyncTopics", "OwnShard", "Topics"]

T = TypeVar("T")

LAST_KEY = "\U0010ffff" * KEY_BYTES_MAX
"""What no key sorts after."""

PUBLISH = "publish"
"""What publishing is called in traces."""


class OwnShard:
    """Where a client's messages go that have neither a key nor an id.

    It is drawn once, so that they stay in one partition and share commits; and by every process
    anew, so that few of them wait for each other.
    """

    key: str

    def __init__(self) -> None:
        self.reset()
        after_fork(self)

    def reset(self) -> None:
        """Draw a shard: at the start, and in a forked child."""
        self.key = secrets.choice(SHARD_KEYS)


class Topics:
    """Topics, for sync code."""

    _store: Store
    _notifier: Notifier
    _combiner: Combiner[Entry, PublishResult]
    _shard: OwnShard
    _tracer: Tracer | None = None

    def _run(self, make: Callable[[], Operation[T]], connection: Any = None) -> T:
        raise NotImplementedError

    def publish(
        self,
        topic: str,
        payload: Any,
        *,
        key: str | None = None,
        id: str | None = None,
        headers: Mapping[str, str] | None = None,
        connection: Any = None,
    ) -> PublishResult:
        """Append a message to a topic. It is durable when this returns.

        Messages with the same `key` keep their order; without one they have none. A second message
        with the same key and `id` adds nothing and is answered with `duplicate=True`. With
        `connection=`, the message is part of the caller's own transaction and there only if that
        commits. Raises `InvalidInput`.
        """
        entry = prepare_one(self._shard, topic, payload, key=key, id=id, headers=headers)
        if self._tracer is not None:
            return self._publish_traced(self._tracer, entry, connection)
        if connection is None:
            return self._combiner.submit(entry)
        return self._publish([entry], connection)[0]

    def publish_many(
        self, topic: str, messages: Iterable[Message[Any]], *, connection: Any = None
    ) -> list[PublishResult]:
        """Append messages to a topic in one transaction: all of them, or none and an error."""
        entries = prepare_many(self._shard, topic, messages)
        if self._tracer is None or not entries:
            return self._publish(entries, connection)
        with self._tracer.send(PUBLISH, topic, len(entries)) as sent:
            return self._publish([sent.stamped(entry) for entry in entries], connection)

    @overload
    def read(
        self,
        topic: str,
        *,
        key: str | Place | None = None,
        from_offset: int | Offsets = 1,
        since: datetime | None = None,
        limit: int = 100,
        type: None = None,
    ) -> list[Message[Any]]: ...

    @overload
    def read(
        self,
        topic: str,
        *,
        key: str | Place | None = None,
        from_offset: int | Offsets = 1,
        since: datetime | None = None,
        limit: int = 100,
        type: builtins.type[T],
    ) -> list[Message[T]]: ...

    def read(
        self,
        topic: str,
        *,
        key: str | Place | None = None,
        from_offset: int | Offsets = 1,
        since: datetime | None = None,
        limit: int = 100,
        type: Any = None,
    ) -> list[Message[Any]]:
        """Look at messages without consuming them, in order of key, shard and offset.

        With `key` one partition, as in `"customer-42"` or, without a key, `(None, 3)` for a shard;
        without it all. From an offset on, or from one for each key, or for each `(key, shard)`
        (others from their first), or those published since a time; at most `limit` in all; payloads
        as `type`, if one is given. Raises `PayloadMismatch` if one does not parse.
        """
        return self._run(
            read_operation(
                self._store.topics.read,
                topic,
                key=key,
                from_offset=from_offset,
                since=since,
                limit=limit,
                type=type,
            )
        )

    def topics(self) -> list[TopicInfo]:
        """Every topic, with its partitions and messages counted."""
        return self._run(self._store.topics.list_topics)

    def topic(self, topic: str) -> TopicInfo | None:
        """One topic; None if nothing was ever published to it, and nobody configured it."""
        return self._run(partial(self._store.topics.find_topic, check_topic(topic)))

    def partitions(
        self,
        topic: str,
        *,
        prefix: str | None = None,
        after: str | Place | None = None,
        limit: int | None = None,
    ) -> list[PartitionInfo]:
        """The keys of a topic, and the shards of messages without one, with the offsets that each
        holds, in order; none if there is no such topic.

        With `prefix` only the keys that begin so; `after` is the key, or `(None, shard)`, that a
        page of at most `limit` ended with.
        """
        return self._run(partitions_operation(self._store, topic, prefix, after, limit))

    def configure_topic(
        self,
        topic: str,
        *,
        retention: Duration | None = None,
        max_payload_bytes: int | None = None,
        connection: Any = None,
    ) -> None:
        """Change a topic's settings; those left out stay as they are.

        A message older than `retention` may be deleted; `timedelta.max`, or an infinite number,
        keeps messages for ever, which is how a topic begins.
        """
        configure = configure_operation(
            self._store.topics.configure, topic, retention, max_payload_bytes
        )
        self._run(configure, connection)

    def _publish_traced(self, tracer: Tracer, entry: Entry, connection: Any) -> PublishResult:
        with tracer.send(PUBLISH, entry.topic, 1) as sent:
            stamped = sent.stamped(entry)
            if connection is None:
                result = self._combiner.submit(stamped)
            else:
                (result,) = self._publish([stamped], connection)
            sent.known(result.id)
            return result

    def _publish(self, entries: list[Entry], connection: Any = None) -> list[PublishResult]:
        if not entries:
            return []
        publish = publish_operation(
            self._store.topics.publish, self._notifier, entries, alone=connection is None
        )
        return self._run(publish, connection)


class AsyncTopics:
    """Topics, for async code."""

    _driver: AsyncDriver
    _store: Store
    _notifier: Notifier
    _combiner: AsyncCombiner[Entry, PublishResult]
    _shard: OwnShard
    _tracer: Tracer | None = None

    async def _run(self, make: Callable[[], Operation[T]], connection: Any = None) -> T:
        raise NotImplementedError

    async def publish(
        self,
        topic: str,
        payload: Any,
        *,
        key: str | None = None,
        id: str | None = None,
        headers: Mapping[str, str] | None = None,
        connection: Any = None,
    ) -> PublishResult:
        """Append a message to a topic: see `RowMQ.publish`."""
        entry = prepare_one(self._shard, topic, payload, key=key, id=id, headers=headers)
        if self._tracer is not None:
            return await self._publish_traced(self._tracer, entry, connection)
        if connection is None:
            self._driver.check_loop()
            return await self._combiner.submit(entry)
        return (await self._publish([entry], connection))[0]

    async def publish_many(
        self, topic: str, messages: Iterable[Message[Any]], *, connection: Any = None
    ) -> list[PublishResult]:
        """Append messages to a topic in one transaction: see `RowMQ.publish_many`."""
        entries = prepare_many(self._shard, topic, messages)
        if self._tracer is None or not entries:
            return await self._publish(entries, connection)
        with self._tracer.send(PUBLISH, topic, len(entries)) as sent:
            return await self._publish([sent.stamped(entry) for entry in entries], connection)

    @overload
    async def read(
        self,
        topic: str,
        *,
        key: str | Place | None = None,
        from_offset: int | Offsets = 1,
        since: datetime | None = None,
        limit: int = 100,
        type: None = None,
    ) -> list[Message[Any]]: ...

    @overload
    async def read(
        self,
        topic: str,
        *,
        key: str | Place | None = None,
        from_offset: int | Offsets = 1,
        since: datetime | None = None,
        limit: int = 100,
        type: builtins.type[T],
    ) -> list[Message[T]]: ...

    async def read(
        self,
        topic: str,
        *,
        key: str | Place | None = None,
        from_offset: int | Offsets = 1,
        since: datetime | None = None,
        limit: int = 100,
        type: Any = None,
    ) -> list[Message[Any]]:
        """Look at messages without consuming them: see `RowMQ.read`."""
        return await self._run(
            read_operation(
                self._store.topics.read,
                topic,
                key=key,
                from_offset=from_offset,
                since=since,
                limit=limit,
                type=type,
            )
        )

    async def topics(self) -> list[TopicInfo]:
        """Every topic, with its partitions and messages counted."""
        return await self._run(self._store.topics.list_topics)

    async def topic(self, topic: str) -> TopicInfo | None:
        """One topic, or None: see `RowMQ.topic`."""
        return await self._run(partial(self._store.topics.find_topic, check_topic(topic)))

    async def partitions(
        self,
        topic: str,
        *,
        prefix: str | None = None,
        after: str | Place | None = None,
        limit: int | None = None,
    ) -> list[PartitionInfo]:
        """The keys of a topic and the offsets that each holds: see `RowMQ.partitions`."""
        return await self._run(partitions_operation(self._store, topic, prefix, after, limit))

    async def configure_topic(
        self,
        topic: str,
        *,
        retention: Duration | None = None,
        max_payload_bytes: int | None = None,
        connection: Any = None,
    ) -> None:
        """Change a topic's settings: see `RowMQ.configure_topic`."""
        configure = configure_operation(
            self._store.topics.configure, topic, retention, max_payload_bytes
        )
        await self._run(configure, connection)

    async def _publish_traced(self, tracer: Tracer, entry: Entry, connection: Any) -> PublishResult:
        with tracer.send(PUBLISH, entry.topic, 1) as sent:
            stamped = sent.stamped(entry)
            if connection is None:
                self._driver.check_loop()
                result = await self._combiner.submit(stamped)
            else:
                (result,) = await self._publish([stamped], connection)
            sent.known(result.id)
            return result

    async def _publish(self, entries: list[Entry], connection: Any = None) -> list[PublishResult]:
        if not entries:
            return []
        publish = publish_operation(
            self._store.topics.publish, self._notifier, entries, alone=connection is None
        )
        return await self._run(publish, connection)


# --- input, checked and bound to an operation -----------------------------------------------------


def prepare_one(
    shard: OwnShard,
    topic: str,
    payload: Any,
    *,
    key: str | None,
    id: str | None,
    headers: Mapping[str, str] | None,
) -> Entry:
    """The entry of one message's parts."""
    if isinstance(payload, Message):
        raise InvalidInput(
            "a Message was given as the payload: use publish_many(topic, [message]), or give "
            "message.payload with its key=, id= and headers="
        )
    made = new_id() if id is None else id
    return entry_of(check_topic(topic), payload, key, headers, made, id is not None, shard.key)


def prepare_many(shard: OwnShard, topic: str, messages: Iterable[Message[Any]]) -> list[Entry]:
    """The entries of many messages; the error of a bad one says which it is."""
    topic = check_topic(topic)
    if isinstance(messages, Message | Mapping | str | bytes) or not isinstance(messages, Iterable):
        raise InvalidInput(
            f"publish_many takes a list of rowmq.Message(payload=...), not a "
            f"{type(messages).__name__}"
        )
    given = list(messages)
    for place, message in enumerate(given):
        if not isinstance(message, Message):
            raise InvalidInput(
                f"item {place} is a {type(message).__name__}: wrap each payload, as in "
                f"rowmq.Message(payload=...)"
            )
    spare = iter(new_ids(sum(message.id is None for message in given)))
    entries, own = [], shard.key
    for place, message in enumerate(given):
        try:
            given_id = message.id
            id = next(spare) if given_id is None else given_id
            parts = (message.payload, message.key, message.headers)
            entries.append(entry_of(topic, *parts, id, given_id is not None, own))
        except InvalidInput as error:
            raise type(error)(f"message {place}: {error}") from error
    return entries


def publish_operation(
    publish: Callable[..., Operation[list[PublishResult]]],
    notifier: Notifier,
    entries: list[Entry],
    *,
    alone: bool,
) -> Callable[[], Operation[list[PublishResult]]]:
    """Entries bound to `publish`, with whom to tell: decided once, and repeated with a retry."""
    notify = notifier.due({entry.topic for entry in entries}, alone=alone)
    return partial(publish, entries, alone=alone, notify=notify)


def partitions_operation(
    store: Store,
    topic: str,
    prefix: str | None,
    after: str | Place | None,
    limit: int | None,
) -> Callable[[], Operation[list[PartitionInfo]]]:
    """The checked arguments of `partitions`, bound to its operation."""
    if limit is not None and (type(limit) is not int or not 1 <= limit < 2**62):
        raise InvalidOption(f"limit must be a whole number from 1 on, not {quoted(limit)}")
    first = check_key(prefix)
    return partial(
        store.topics.list_partitions,
        check_topic(topic),
        after=chosen_key(after),
        keys=None if first is None else (first, first + LAST_KEY),
        limit=limit,
    )


def configure_operation(
    configure: Callable[..., Operation[None]],
    topic: str,
    retention: Duration | None,
    max_payload_bytes: int | None,
) -> Callable[[], Operation[None]]:
    """The checked arguments of `configure_topic`, bound to its operation."""
    return partial(
        configure,
        check_topic(topic),
        max_payload_bytes=check_limit(max_payload_bytes),
        retention_us=check_retention(retention),
    )


def read_operation(
    read: Callable[..., Operation[list[Message[Any]]]],
    topic: str,
    *,
    key: str | Place | None,
    from_offset: int | Offsets,
    since: datetime | None,
    limit: int,
    type: Any,
) -> Callable[[], Operation[list[Message[Any]]]]:
    """The checked arguments of `read`, bound to its operation."""
    return partial(
        read,
        check_topic(topic),
        key=chosen_key(key),
        from_offset=check_from(from_offset),
        since=None if since is None else to_micros(since),
        limit=check_number("limit", limit),
        type=type,
    )


def check_from(offset: int | Offsets) -> int | dict[str, int]:
    """Where to read from: for all partitions, or for each, by its stored key."""
    if not isinstance(offset, Mapping):
        return check_number("from_offset", offset)
    found = {stored_key(key): check_number("from_offset", n) for key, n in offset.items()}
    if KEYLESS in found:
        return dict.fromkeys(SHARD_KEYS, found.pop(KEYLESS)) | found
    return found


def check_number(name: str, value: int) -> int:
    if type(value) is not int or not 1 <= value < 2**62:
        raise InvalidOption(f"{name} must be a whole number from 1 on, not {quoted(value)}")
    return value
