"""What operators do with topics: groups, lag, seek, dead letters, garbage collection.

Both clients have these methods, each a line or two: the input is checked and bound to an operation
here, once, and run by the client.
"""

import builtins
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, TypeVar, overload

from rowmq.drivers.base import Steps, take_steps, take_steps_async
from rowmq.errors import InvalidOption, Locked
from rowmq.message import (
    DeadLetter,
    GroupInfo,
    LagInfo,
    Pipelines,
    SubscriberInfo,
    WorkerInfo,
    new_id,
)
from rowmq.naming import check_group, check_id, check_topic
from rowmq.quoting import quoted
from rowmq.store.groups import STARTS
from rowmq.store.keys import Offsets, Place, chosen_key, stored_key
from rowmq.store.retention import Collected, batches
from rowmq.store.seeking import Target
from rowmq.store.selection import BATCH, Handle, Selection
from rowmq.store.statement import Operation
from rowmq.store.store import Store
from rowmq.store.topics import Span
from rowmq.times import to_micros

__all__ = ["Administration", "AsyncAdministration"]

log = logging.getLogger("rowmq")
T = TypeVar("T")


class Administration:
    """The administration of topics, for sync code."""

    _store: Store

    def _run(self, make: Callable[[], Operation[T]], connection: Any = None) -> T:
        raise NotImplementedError

    def create_group(
        self, topic: str, group: str, *, start: str = "earliest", connection: Any = None
    ) -> bool:
        """Register a consumer group, so that nothing is collected before it has acked it.

        It begins with the oldest message there is (`earliest`) or with the next one published
        (`latest`). False if the group was there: then it stays as it is.
        """
        return self._run(create_operation(self._store, topic, group, start), connection)

    def drop_group(self, topic: str, group: str, *, connection: Any = None) -> bool:
        """Forget a group and its place. Its subscribers raise `UnknownGroup`, its dead letters
        stay. False if there was none.
        """
        return self._run(
            partial(self._store.groups.drop, check_topic(topic), check_group(group)), connection
        )

    def groups(self, topic: str) -> list[GroupInfo]:
        """The consumer groups of a topic."""
        return self._run(partial(self._store.groups.list_groups, check_topic(topic)))

    def group(self, topic: str, group: str) -> GroupInfo | None:
        """One consumer group; None if there is none of this name."""
        return self._run(group_operation(self._store, topic, group))

    def lag(self, topic: str, group: str, *, limit: int | None = None) -> list[LagInfo]:
        """How far a group is behind, partition by partition. Raises `UnknownGroup`.

        With `limit` only so many, those that are most behind first; of a topic with more than a
        hundred thousand partitions, these are looked for among the oldest and the newest.
        """
        return self._run(lag_operation(self._store, topic, group, limit))

    def seek(
        self,
        topic: str,
        group: str,
        *,
        to: str | datetime | Offsets,
        key: str | Place | None = None,
        connection: Any = None,
    ) -> int:
        """Move a group: to `earliest`, `latest`, the first message published at or after a time, or
        to the offsets that it is to be delivered next, by key or by `(key, shard)`.

        With `key` only that partition; `(None, 3)` is a shard of the messages without a key.
        Subscribers may be running: what they have in flight becomes void, and their settles raise
        `StaleLease`. Returns how many partitions were moved.
        """
        return self._run(seek_operation(self._store, topic, group, to, key), connection)

    @overload
    def dead_letters(
        self, topic: str, *, group: str | None = None, limit: int = 100, type: None = None
    ) -> list[DeadLetter[Any]]: ...

    @overload
    def dead_letters(
        self, topic: str, *, group: str | None = None, limit: int = 100, type: builtins.type[T]
    ) -> list[DeadLetter[T]]: ...

    def dead_letters(
        self, topic: str, *, group: str | None = None, limit: int = 100, type: Any = None
    ) -> list[DeadLetter[Any]]:
        """The messages of a topic that its groups, or one of them, gave up on; oldest first."""
        return self._run(letters_operation(self._store, topic, group, limit, type))

    def redrive(
        self,
        topic: str,
        *,
        group: str | None = None,
        ids: Iterable[str] | None = None,
        letters: Iterable[DeadLetter[Any] | str] | None = None,
        limit: int | None = None,
        connection: Any = None,
    ) -> int:
        """Give dead letters back to their groups, or to one of them: all, those of messages with
        some `ids`, or exactly these `letters`, as they were told or by their handles. Of several
        keys messages may have the same id. Other groups see nothing of it.

        One that is not there any more is left out. With `limit` at most so many, a group's oldest
        first. Returns how many it were.
        """
        run = partial(self._run, connection=connection)
        chosen = selection_of(topic, group, ids, letters)
        return take_steps(redrive_steps(run, self._store, chosen, most_of(limit)))

    def purge_dead_letters(
        self,
        topic: str,
        *,
        group: str | None = None,
        ids: Iterable[str] | None = None,
        letters: Iterable[DeadLetter[Any] | str] | None = None,
        limit: int | None = None,
        connection: Any = None,
    ) -> int:
        """Delete dead letters for good: those that `redrive` would take if it were called with the
        same, and those of groups that were dropped. Returns how many it were.
        """
        run = partial(self._run, connection=connection)
        chosen = selection_of(topic, group, ids, letters)
        return take_steps(purge_steps(run, self._store, chosen, most_of(limit)))

    def workers(self) -> list[WorkerInfo]:
        """The processes that run handlers, what they run, and how far they are."""
        return self._run(self._store.workers.list_workers)

    def subscribers(self) -> list[SubscriberInfo]:
        """Who has subscribed to which topic, in which group; at most a thousand."""
        return self._run(self._store.workers.list_subscribers)

    def pipelines(self) -> Pipelines:
        """What Spark's streams and archives read, and how far; and what its sinks wrote."""
        return self._run(self._store.pipes.list_pipelines)

    def gc(self, topic: str) -> int:
        """Delete what every group has acked, and what is older than the topic's retention.

        In many short transactions; a partition in which a publish is not yet committed may be left
        for the next time. What age takes from a group that had not acked it is logged as a
        warning and counted in `groups`. Returns how many messages were deleted.
        """
        return take_steps(gc_steps(self._run, self._store, check_topic(topic)))


class AsyncAdministration:
    """The administration of topics, for async code."""

    _store: Store

    async def _run(self, make: Callable[[], Operation[T]], connection: Any = None) -> T:
        raise NotImplementedError

    async def create_group(
        self, topic: str, group: str, *, start: str = "earliest", connection: Any = None
    ) -> bool:
        """Register a consumer group: see `RowMQ.create_group`."""
        return await self._run(create_operation(self._store, topic, group, start), connection)

    async def drop_group(self, topic: str, group: str, *, connection: Any = None) -> bool:
        """Forget a group and its place: see `RowMQ.drop_group`."""
        return await self._run(
            partial(self._store.groups.drop, check_topic(topic), check_group(group)), connection
        )

    async def groups(self, topic: str) -> list[GroupInfo]:
        """The consumer groups of a topic."""
        return await self._run(partial(self._store.groups.list_groups, check_topic(topic)))

    async def group(self, topic: str, group: str) -> GroupInfo | None:
        """One consumer group, or None: see `RowMQ.group`."""
        return await self._run(group_operation(self._store, topic, group))

    async def lag(self, topic: str, group: str, *, limit: int | None = None) -> list[LagInfo]:
        """How far a group is behind, partition by partition: see `RowMQ.lag`."""
        return await self._run(lag_operation(self._store, topic, group, limit))

    async def seek(
        self,
        topic: str,
        group: str,
        *,
        to: str | datetime | Offsets,
        key: str | Place | None = None,
        connection: Any = None,
    ) -> int:
        """Move a group: see `RowMQ.seek`."""
        return await self._run(seek_operation(self._store, topic, group, to, key), connection)

    @overload
    async def dead_letters(
        self, topic: str, *, group: str | None = None, limit: int = 100, type: None = None
    ) -> list[DeadLetter[Any]]: ...

    @overload
    async def dead_letters(
        self, topic: str, *, group: str | None = None, limit: int = 100, type: builtins.type[T]
    ) -> list[DeadLetter[T]]: ...

    async def dead_letters(
        self, topic: str, *, group: str | None = None, limit: int = 100, type: Any = None
    ) -> list[DeadLetter[Any]]:
        """The messages of a topic that its groups, or one of them, gave up on; oldest first."""
        return await self._run(letters_operation(self._store, topic, group, limit, type))

    async def redrive(
        self,
        topic: str,
        *,
        group: str | None = None,
        ids: Iterable[str] | None = None,
        letters: Iterable[DeadLetter[Any] | str] | None = None,
        limit: int | None = None,
        connection: Any = None,
    ) -> int:
        """Give dead letters back to their groups: see `RowMQ.redrive`."""
        run = partial(self._run, connection=connection)
        chosen = selection_of(topic, group, ids, letters)
        return await take_steps_async(redrive_steps(run, self._store, chosen, most_of(limit)))

    async def purge_dead_letters(
        self,
        topic: str,
        *,
        group: str | None = None,
        ids: Iterable[str] | None = None,
        letters: Iterable[DeadLetter[Any] | str] | None = None,
        limit: int | None = None,
        connection: Any = None,
    ) -> int:
        """Delete dead letters for good: see `RowMQ.purge_dead_letters`."""
        run = partial(self._run, connection=connection)
        chosen = selection_of(topic, group, ids, letters)
        return await take_steps_async(purge_steps(run, self._store, chosen, most_of(limit)))

    async def workers(self) -> list[WorkerInfo]:
        """The processes that run handlers, what they run, and how far they are."""
        return await self._run(self._store.workers.list_workers)

    async def subscribers(self) -> list[SubscriberInfo]:
        """Who has subscribed to which topic, in which group; at most a thousand."""
        return await self._run(self._store.workers.list_subscribers)

    async def pipelines(self) -> Pipelines:
        """What Spark's streams and archives read, and how far; and what its sinks wrote."""
        return await self._run(self._store.pipes.list_pipelines)

    async def gc(self, topic: str) -> int:
        """Delete what every group has acked, and what is too old: see `RowMQ.gc`."""
        return await take_steps_async(gc_steps(self._run, self._store, check_topic(topic)))


# --- what takes many transactions, as steps: see `drivers.base` ---------------------------------

Run = Callable[[Callable[[], Operation[Any]]], Any]


def redrive_steps(run: Run, store: Store, chosen: Selection, most: int | None) -> Steps[int]:
    """Give letters back, a batch in a transaction."""
    if chosen.group is None:
        groups = yield partial(run, partial(store.groups.list_groups, chosen.topic))
        names = [found.name for found in groups]
    else:
        names = [chosen.group]
        yield partial(run, partial(store.groups.find, chosen.topic, chosen.group))
    total = 0
    for part in chosen.parts:
        found: list[str] = names
        if part.handles is not None and part.group is None:
            found = yield partial(run, partial(store.letters.groups_of, part))
        for name in found:
            if name in names:
                room = None if most is None else most - total
                of_group = part._replace(group=name)
                redrive = partial(redrive_batch, store, of_group)
                total += yield from in_batches(run, store, of_group, room, redrive)
    return total


def redrive_batch(store: Store, chosen: Selection, limit: int) -> Operation[int]:
    """Give a batch of one group's letters back."""
    spares = [new_id() for _ in range(limit)]
    return store.letters.redrive(chosen, group=str(chosen.group), spares=spares)


def purge_steps(run: Run, store: Store, chosen: Selection, most: int | None) -> Steps[int]:
    """Delete letters, a batch in a transaction."""
    total = 0
    for part in chosen.parts:
        room = None if most is None else most - total
        purge = partial(purge_batch, store, part)
        total += yield from in_batches(run, store, part, room, purge)
    return total


def purge_batch(store: Store, chosen: Selection, limit: int) -> Operation[int]:
    """Delete a batch of letters."""
    return store.letters.purge(chosen, limit=limit)


def in_batches(
    run: Run,
    store: Store,
    chosen: Selection,
    most: int | None,
    do: Callable[[int], Operation[int]],
) -> Steps[int]:
    """Do it to letters until there are none left, a batch in a transaction."""
    # Counted first, since those that fail again meanwhile are not to be taken again.
    left: int = yield partial(run, partial(store.letters.count, chosen, limit=most))
    total = 0
    while left > 0:
        done: int = yield partial(run, partial(do, min(BATCH, left)))
        total, left = total + done, left - done if done else 0
    return total


def gc_steps(run: Run, store: Store, topic: str, *, acked_only: bool = False) -> Steps[int]:
    """Collect what may go by now, a batch in a transaction; what is too old, only if it is acked
    by every group, where that is asked for.
    """
    retention = store.retention
    total = 0
    acked = yield partial(run, partial(retention.find_acked, topic))
    busy: list[Span] = []
    for batch in batches(acked):
        collected: Collected = yield partial(
            run, partial(retention.collect_acked, topic, batch, patient=False)
        )
        total += collected.messages
        busy += collected.busy
    total += yield from wait_for_busy(run, topic, busy, retention.collect_acked)
    for old in (False,) if acked_only else (False, True):
        spans = yield partial(run, partial(retention.find_given_back, topic, old=old))
        for batch in batches(spans):
            collect = partial(retention.collect_given_back, topic, batch, old=old)
            total += told(topic, (yield partial(run, collect)))
    if acked_only:
        return total
    spans = yield partial(run, partial(retention.find_old, topic))
    busy = []
    for batch in batches(spans):
        collected = yield partial(run, partial(retention.collect_old, topic, batch, patient=False))
        total += told(topic, collected)
        busy += collected.busy
    total += yield from wait_for_busy(run, topic, busy, retention.collect_old)
    return total


def wait_for_busy(
    run: Run, topic: str, busy: Sequence[Span], collect: Callable[..., Operation[Collected]]
) -> Steps[int]:
    """Collect what was left out because it was being published to, one partition at a time."""
    total = 0
    given_up: set[int] = set()
    for span in busy:
        if span.partition_id in given_up:
            continue
        try:
            collected: Collected = yield partial(run, partial(collect, topic, [span], patient=True))
        except Locked:
            given_up.add(span.partition_id)
            log.info("garbage collection of topic %r leaves out a key that is locked", topic)
        else:
            total += told(topic, collected)
    return total


def told(topic: str, collected: Collected) -> int:
    """Say what groups lost to age, and give how many messages were collected."""
    for group, count in collected.expired.items():
        log.warning(
            "retention of topic %r took %d messages from group %r that it had not acked",
            topic,
            count,
            group,
        )
    return collected.messages


def check_ids(ids: Iterable[str] | None) -> list[str] | None:
    """Message ids, each once."""
    if ids is None:
        return None
    if isinstance(ids, str) or not isinstance(ids, Iterable):
        raise InvalidOption(f"ids must be a list of message ids, not {quoted(ids)}")
    return sorted({check_id(id) for id in ids})


def selection_of(
    topic: str,
    group: str | None,
    ids: Iterable[str] | None,
    letters: Iterable[DeadLetter[Any] | str] | None,
) -> Selection:
    """Which letters are meant, checked."""
    if ids is not None and letters is not None:
        raise InvalidOption("give ids= of messages, or letters= that are meant exactly; not both")
    name = None if group is None else check_group(group)
    return Selection(check_topic(topic), name, check_ids(ids), check_letters(letters))


def check_letters(letters: Iterable[DeadLetter[Any] | str] | None) -> list[Handle] | None:
    """Handles of letters, each once."""
    if letters is None:
        return None
    if isinstance(letters, str) or not isinstance(letters, Iterable):
        raise InvalidOption(
            f"letters must be a list of dead letters, or of their handles, not {quoted(letters)}"
        )
    return sorted({handle_of(letter) for letter in letters})


def handle_of(letter: DeadLetter[Any] | str) -> Handle:
    """The handle of a letter that was told, or that was given itself."""
    return Handle.read(letter.handle if isinstance(letter, DeadLetter) else letter)


def most_of(limit: int | None) -> int | None:
    return None if limit is None else check_limit(limit)


# --- input, checked and bound to an operation -----------------------------------------------------


def create_operation(
    store: Store, topic: str, group: str, start: str
) -> Callable[[], Operation[bool]]:
    if start not in STARTS:
        raise InvalidOption(f"start must be 'earliest' or 'latest', not {quoted(start)}")
    return partial(store.groups.create, check_topic(topic), check_group(group), start=start)


def group_operation(
    store: Store, topic: str, group: str
) -> Callable[[], Operation[GroupInfo | None]]:
    return partial(store.groups.find_group, check_topic(topic), check_group(group))


def lag_operation(
    store: Store, topic: str, group: str, limit: int | None
) -> Callable[[], Operation[list[LagInfo]]]:
    limit = None if limit is None else check_limit(limit)
    return partial(store.groups.lag, check_topic(topic), check_group(group), limit=limit)


def seek_operation(
    store: Store, topic: str, group: str, to: str | datetime | Offsets, key: str | Place | None
) -> Callable[[], Operation[int]]:
    stored = chosen_key(key)
    target = target_of(to)
    if target.offsets is not None and key is not None:
        raise InvalidOption("give offsets by key, as in to={key: offset}, or key=, but not both")
    return partial(
        store.seeking.seek, check_topic(topic), check_group(group), key=stored, to=target
    )


def target_of(to: str | datetime | Offsets) -> Target:
    """Where to seek to, checked."""
    if isinstance(to, datetime):
        return Target(time=to_micros(to))
    if isinstance(to, Mapping):
        offsets = {}
        for key, offset in to.items():
            if type(offset) is not int or not 1 <= offset < 2**62:
                raise InvalidOption(
                    f"an offset must be a whole number from 1 on, not {quoted(offset)}"
                )
            offsets[stored_key(key)] = offset
        return Target(offsets=offsets)
    if isinstance(to, str) and to in STARTS:
        return Target(start=to)
    raise InvalidOption(
        f"to must be 'earliest', 'latest', an aware datetime, or offsets by key, not {quoted(to)}"
    )


def letters_operation(
    store: Store, topic: str, group: str | None, limit: int, type: Any
) -> Callable[[], Operation[list[DeadLetter[Any]]]]:
    chosen = selection_of(topic, group, None, None)
    return partial(store.letters.list_letters, chosen, limit=check_limit(limit), type=type)


def check_limit(limit: int) -> int:
    if type(limit) is not int or not 1 <= limit < 2**62:
        raise InvalidOption(f"limit must be a whole number from 1 on, not {quoted(limit)}")
    return limit
