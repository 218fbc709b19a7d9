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
from rowmq.message import DeadLetter, GroupInfo, LagInfo, WorkerInfo, new_id
from rowmq.naming import check_group, check_id, check_topic
from rowmq.quoting import quoted
from rowmq.store.groups import STARTS
from rowmq.store.keys import Offsets, Place, chosen_key, stored_key
from rowmq.store.letters import BATCH
from rowmq.store.retention import Collected, batches
from rowmq.store.seeking import Target
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

    def lag(self, topic: str, group: str) -> list[LagInfo]:
        """How far a group is behind, partition by partition. Raises `UnknownGroup`."""
        return self._run(partial(self._store.groups.lag, check_topic(topic), check_group(group)))

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
        connection: Any = None,
    ) -> int:
        """Give dead letters back to their groups, or to one of them: all, or those of messages with
        some ids. Other groups see nothing of it. Returns how many it were.
        """
        run = partial(self._run, connection=connection)
        return take_steps(redrive_steps(run, self._store, topic, group, check_ids(ids)))

    def purge_dead_letters(
        self,
        topic: str,
        *,
        group: str | None = None,
        ids: Iterable[str] | None = None,
        connection: Any = None,
    ) -> int:
        """Delete dead letters for good. Returns how many it were."""
        run = partial(self._run, connection=connection)
        return take_steps(purge_steps(run, self._store, topic, group, check_ids(ids)))

    def workers(self) -> list[WorkerInfo]:
        """The processes that run handlers, what they run, and how far they are."""
        return self._run(self._store.workers.list_workers)

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

    async def lag(self, topic: str, group: str) -> list[LagInfo]:
        """How far a group is behind, partition by partition. Raises `UnknownGroup`."""
        return await self._run(
            partial(self._store.groups.lag, check_topic(topic), check_group(group))
        )

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
        connection: Any = None,
    ) -> int:
        """Give dead letters back to their groups: see `RowMQ.redrive`."""
        run = partial(self._run, connection=connection)
        steps = redrive_steps(run, self._store, topic, group, check_ids(ids))
        return await take_steps_async(steps)

    async def purge_dead_letters(
        self,
        topic: str,
        *,
        group: str | None = None,
        ids: Iterable[str] | None = None,
        connection: Any = None,
    ) -> int:
        """Delete dead letters for good. Returns how many it were."""
        run = partial(self._run, connection=connection)
        steps = purge_steps(run, self._store, topic, group, check_ids(ids))
        return await take_steps_async(steps)

    async def workers(self) -> list[WorkerInfo]:
        """The processes that run handlers, what they run, and how far they are."""
        return await self._run(self._store.workers.list_workers)

    async def gc(self, topic: str) -> int:
        """Delete what every group has acked, and what is too old: see `RowMQ.gc`."""
        return await take_steps_async(gc_steps(self._run, self._store, check_topic(topic)))


# --- what takes many transactions, as steps: see `drivers.base` ---------------------------------

Run = Callable[[Callable[[], Operation[Any]]], Any]


def redrive_steps(
    run: Run, store: Store, topic: str, group: str | None, ids: Sequence[str] | None
) -> Steps[int]:
    """Give letters back, a batch in a transaction."""
    if group is None:
        groups = yield partial(run, partial(store.groups.list_groups, check_topic(topic)))
        names = [found.name for found in groups]
    else:
        names = [check_group(group)]
        yield partial(run, partial(store.groups.find, check_topic(topic), names[0]))
    total = 0
    for name in names:
        redrive = partial(store.letters.redrive, check_topic(topic), group=name)
        for chosen in runs_of(ids):
            count = partial(store.letters.count, topic, group=name, ids=chosen)
            left: int = yield partial(run, count)
            while left > 0:
                # Counted first, since those that fail again meanwhile are not to be taken again.
                spares = [new_id() for _ in range(min(BATCH, left))]
                done: int = yield partial(run, partial(redrive, ids=chosen, spares=spares))
                total, left = total + done, left - done if done else 0
    return total


def purge_steps(
    run: Run, store: Store, topic: str, group: str | None, ids: Sequence[str] | None
) -> Steps[int]:
    """Delete letters, a batch in a transaction."""
    name = None if group is None else check_group(group)
    total = 0
    for chosen in runs_of(ids):
        count = partial(store.letters.count, check_topic(topic), group=name, ids=chosen)
        left: int = yield partial(run, count)
        while left > 0:
            limit = min(BATCH, left)
            purge = partial(store.letters.purge, topic, group=name, ids=chosen, limit=limit)
            done: int = yield partial(run, purge)
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
    total += yield from wait_for_busy(run, store, topic, busy)
    for old in (False,) if acked_only else (False, True):
        spans = yield partial(run, partial(retention.find_given_back, topic, old=old))
        for batch in batches(spans):
            collect = partial(retention.collect_given_back, topic, batch, old=old)
            total += told(topic, (yield partial(run, collect)))
    if acked_only:
        return total
    spans = yield partial(run, partial(retention.find_old, topic))
    for batch in batches(spans):
        total += told(topic, (yield partial(run, partial(retention.collect_old, topic, batch))))
    return total


def wait_for_busy(run: Run, store: Store, topic: str, busy: Sequence[Span]) -> Steps[int]:
    """Collect what was left out because it was being published to, one partition at a time."""
    total = 0
    given_up: set[int] = set()
    for span in busy:
        if span.partition_id in given_up:
            continue
        collect = partial(store.retention.collect_acked, topic, [span], patient=True)
        try:
            collected: Collected = yield partial(run, collect)
        except Locked:
            given_up.add(span.partition_id)
            log.info("garbage collection of topic %r leaves out a key that is locked", topic)
        else:
            total += collected.messages
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


def runs_of(ids: Sequence[str] | None) -> list[Sequence[str] | None]:
    """Ids in runs that fit into a statement; None stands for all."""
    if ids is None:
        return [None]
    return [ids[start : start + BATCH] for start in range(0, len(ids), BATCH)]


# --- input, checked and bound to an operation -----------------------------------------------------


def create_operation(
    store: Store, topic: str, group: str, start: str
) -> Callable[[], Operation[bool]]:
    if start not in STARTS:
        raise InvalidOption(f"start must be 'earliest' or 'latest', not {quoted(start)}")
    return partial(store.groups.create, check_topic(topic), check_group(group), start=start)


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
    if builtins.type(limit) is not int or not 1 <= limit < 2**62:
        raise InvalidOption(f"limit must be a whole number from 1 on, not {quoted(limit)}")
    name = None if group is None else check_group(group)
    return partial(
        store.letters.list_letters, check_topic(topic), group=name, limit=limit, type=type
    )
