"""What operators do with topics: groups, lag, seek, dead letters, garbage collection.

Both clients have these methods, each a line or two: the input is checked and bound to an operation
here, once, and run by the client.
"""

import builtins
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, TypeVar, overload

from rowmq.errors import InvalidOption
from rowmq.message import DeadLetter, GroupInfo, LagInfo, new_id
from rowmq.naming import check_group, check_id, check_key, check_topic
from rowmq.store.groups import STARTS, Target
from rowmq.store.letters import BATCH, Letters
from rowmq.store.retention import Collected
from rowmq.store.statement import Operation
from rowmq.store.store import Store
from rowmq.store.topics import KEYLESS
from rowmq.times import to_micros

__all__ = ["Administration", "AsyncAdministration"]

log = logging.getLogger("rowmq")
T = TypeVar("T")

Offsets = Mapping[str | None, int]


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
        """How far a group is behind, for each partition, by key. Raises `UnknownGroup`."""
        return self._run(partial(self._store.groups.lag, check_topic(topic), check_group(group)))

    def seek(
        self,
        topic: str,
        group: str,
        *,
        to: str | datetime | Offsets,
        key: str | None = None,
        connection: Any = None,
    ) -> int:
        """Move a group: to `earliest`, `latest`, the first message published at or after a time, or
        to the offsets that it is to be delivered next, by key.

        With `key` only that partition. Subscribers may be running: what they have in flight becomes
        void, and their settles raise `StaleLease`. Returns how many partitions were moved.
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
        total = 0
        for name in [group] if group is not None else [g.name for g in self.groups(topic)]:
            for chosen in Chosen.of(self._store.letters, topic, name, ids):
                chosen.left = self._run(chosen.count, connection)
                for batch in chosen.redrives(name):
                    total += chosen.done(self._run(batch, connection))
        return total

    def purge_dead_letters(
        self,
        topic: str,
        *,
        group: str | None = None,
        ids: Iterable[str] | None = None,
        connection: Any = None,
    ) -> int:
        """Delete dead letters for good. Returns how many it were."""
        total = 0
        for chosen in Chosen.of(self._store.letters, topic, group, ids):
            chosen.left = self._run(chosen.count, connection)
            for batch in chosen.purges():
                total += chosen.done(self._run(batch, connection))
        return total

    def gc(self, topic: str) -> int:
        """Delete what every group has acked, and what is older than the topic's retention.

        In many short transactions. What age takes from a group that had not acked it is logged as a
        warning and counted in `groups`. Returns how many messages were deleted.
        """
        collecting = Collecting(self._store, topic)
        for batch in collecting.batches():
            collecting.note(self._run(batch))
        return collecting.total


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
        """How far a group is behind, for each partition, by key. Raises `UnknownGroup`."""
        return await self._run(
            partial(self._store.groups.lag, check_topic(topic), check_group(group))
        )

    async def seek(
        self,
        topic: str,
        group: str,
        *,
        to: str | datetime | Offsets,
        key: str | None = None,
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
        total = 0
        for name in [group] if group is not None else [g.name for g in await self.groups(topic)]:
            for chosen in Chosen.of(self._store.letters, topic, name, ids):
                chosen.left = await self._run(chosen.count, connection)
                for batch in chosen.redrives(name):
                    total += chosen.done(await self._run(batch, connection))
        return total

    async def purge_dead_letters(
        self,
        topic: str,
        *,
        group: str | None = None,
        ids: Iterable[str] | None = None,
        connection: Any = None,
    ) -> int:
        """Delete dead letters for good. Returns how many it were."""
        total = 0
        for chosen in Chosen.of(self._store.letters, topic, group, ids):
            chosen.left = await self._run(chosen.count, connection)
            for batch in chosen.purges():
                total += chosen.done(await self._run(batch, connection))
        return total

    async def gc(self, topic: str) -> int:
        """Delete what every group has acked, and what is too old: see `RowMQ.gc`."""
        collecting = Collecting(self._store, topic)
        for batch in collecting.batches():
            collecting.note(await self._run(batch))
        return collecting.total


class Chosen:
    """Dead letters that something is to be done with, a batch at a time.

    They are counted first: those that fail again meanwhile are not among them.
    """

    def __init__(
        self, letters: Letters, topic: str, group: str | None, ids: Sequence[str] | None
    ) -> None:
        self.letters = letters
        self.topic = topic
        self.group = group
        self.ids = ids
        self.left = 0

    @classmethod
    def of(
        cls, letters: Letters, topic: str, group: str | None, ids: Iterable[str] | None
    ) -> "list[Chosen]":
        """All letters, or those of some ids, in runs that fit into a statement."""
        check_topic(topic)
        if group is not None:
            check_group(group)
        if ids is None:
            return [cls(letters, topic, group, None)]
        if isinstance(ids, str):
            raise InvalidOption("ids must be a list of message ids, not a single one")
        wanted = sorted({check_id(id) for id in ids})
        runs = [wanted[start : start + BATCH] for start in range(0, len(wanted), BATCH)]
        return [cls(letters, topic, group, run) for run in runs]

    def count(self) -> Operation[int]:
        return self.letters.count(self.topic, group=self.group, ids=self.ids)

    def done(self, count: int) -> int:
        """A batch came to so many: if to none, there is nothing left."""
        self.left = self.left - count if count else 0
        return count

    def purges(self) -> Iterator[Callable[[], Operation[int]]]:
        while self.left > 0:
            limit = min(BATCH, self.left)
            options = {"group": self.group, "ids": self.ids, "limit": limit}
            yield partial(self.letters.purge, self.topic, **options)  # type: ignore[arg-type]

    def redrives(self, group: str) -> Iterator[Callable[[], Operation[int]]]:
        while self.left > 0:
            spares = [new_id() for _ in range(min(BATCH, self.left))]
            yield partial(
                self.letters.redrive, self.topic, group=group, ids=self.ids, spares=spares
            )


class Collecting:
    """A garbage collection under way."""

    def __init__(self, store: Store, topic: str) -> None:
        self.collect = partial(store.retention.collect, check_topic(topic))
        self.topic = topic
        self.total = 0
        self.last = Collected(1, more=True, expired={})

    def batches(self) -> Iterator[Callable[[], Operation[Collected]]]:
        while self.last.more:
            # What could not be had without waiting is waited for.
            yield partial(self.collect, patient=self.last.messages == 0)

    def note(self, collected: Collected) -> None:
        self.last = collected
        self.total += collected.messages
        for group, count in collected.expired.items():
            log.warning(
                "retention of topic %r took %d messages from group %r that it had not acked",
                self.topic,
                count,
                group,
            )


def create_operation(
    store: Store, topic: str, group: str, start: str
) -> Callable[[], Operation[bool]]:
    if start not in STARTS:
        raise InvalidOption(f"start must be 'earliest' or 'latest', not {start!r}")
    return partial(store.groups.create, check_topic(topic), check_group(group), start=start)


def seek_operation(
    store: Store, topic: str, group: str, to: str | datetime | Offsets, key: str | None
) -> Callable[[], Operation[int]]:
    stored = check_key(key)
    target = target_of(to)
    if target.offsets is not None and key is not None:
        raise InvalidOption("give offsets by key, as in to={key: offset}, or key=, but not both")
    return partial(store.groups.seek, check_topic(topic), check_group(group), key=stored, to=target)


def target_of(to: str | datetime | Offsets) -> Target:
    """Where to seek to, checked."""
    if isinstance(to, datetime):
        return Target(time=to_micros(to))
    if isinstance(to, Mapping):
        offsets = {}
        for key, offset in to.items():
            if type(offset) is not int or not 1 <= offset < 2**62:
                raise InvalidOption(f"an offset must be a whole number from 1 on, not {offset!r}")
            offsets[KEYLESS if key is None else str(check_key(key))] = offset
        return Target(offsets=offsets)
    if isinstance(to, str) and to in STARTS:
        return Target(start=to)
    raise InvalidOption(
        f"to must be 'earliest', 'latest', an aware datetime, or offsets by key, not {to!r}"
    )


def letters_operation(
    store: Store, topic: str, group: str | None, limit: int, type: Any
) -> Callable[[], Operation[list[DeadLetter[Any]]]]:
    if builtins.type(limit) is not int or not 1 <= limit < 2**62:
        raise InvalidOption(f"limit must be a whole number from 1 on, not {limit!r}")
    name = None if group is None else check_group(group)
    return partial(
        store.letters.list_letters, check_topic(topic), group=name, limit=limit, type=type
    )
