"""Giving messages back to one group, from wherever they were kept.

It is what redriving is to dead letters: the offset is opened again in the place of that group, and
of no other. If the log has let go of the message meanwhile, it is put back where it stood: below
the log's first offset, where only the group that it is open for will look.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rowmq.errors import InvalidOption
from rowmq.store.groups import Readers
from rowmq.store.keys import key_of
from rowmq.store.letters import RESTORE, reopen
from rowmq.store.staging import Version
from rowmq.store.statement import Operation, Statement
from rowmq.store.store import Store

__all__ = ["GivingBack", "Returned"]


class Returned(NamedTuple):
    """A message as it was in the log, and an id that is free, should its own be taken by now."""

    partition_id: int
    key: str | None
    offset: int
    id: str
    payload: bytes
    encoding: int
    headers: str | None
    published_at: int
    spare_id: str


class GivingBack:
    """The operation of giving messages back, for one database."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.dialect = store.dialect

    def give_back(
        self, group: str, messages: Mapping[str, Sequence[Returned]], version: Version
    ) -> Operation[int | None]:
        """Open messages again for a group, by topic; how many it had done before. Others will be
        delivered to it in any case. None if this version was entered before: nothing is done then.
        """
        yield from self.dialect.seize()
        if not (yield from self.store.staging.enter(version)):
            return None
        opened = 0
        for topic in sorted(messages):
            opened += yield from self.reopen(topic, group, messages[topic])
        return opened

    def reopen(self, topic: str, group: str, rows: Sequence[Returned]) -> Operation[int]:
        """Open messages of one topic again."""
        leases = self.store.leases
        yield from self.store.groups.lock(topic)
        yield from self.store.groups.assign(topic, group, Readers.SUBSCRIBERS)
        group_id = yield from self.store.groups.find(topic, group, keep=True)
        yield from leases.adopt(topic, group_id)
        yield from self.check(topic, rows)
        now = yield from self.dialect.clock("giving_back.now")
        places = yield from leases.load(group_id, sorted({row.partition_id for row in rows}))
        opened: set[tuple[int, int]] = set()
        changes = []
        for place in places:
            offsets = {row.offset for row in rows if row.partition_id == place.partition_id}
            change, reopened = reopen(place, offsets, at=now)
            opened |= {(place.partition_id, offset) for offset in reopened}
            changes.append(change)
        yield from self.restore([row for row in rows if (row.partition_id, row.offset) in opened])
        yield from leases.overwrite(group_id, changes)
        return len(opened)

    def check(self, topic: str, rows: Sequence[Returned]) -> Operation[None]:
        """Raise for a message that this database never had at its place."""
        spans = yield from self.store.seeking.partitions(topic, None)
        known = {span.partition_id: span for span in spans}
        for row in rows:
            span = known.get(row.partition_id)
            if span is None or key_of(span.key) != row.key or row.offset > span.last:
                raise InvalidOption(
                    f"topic {topic!r} never had a message at offset {row.offset} of the key "
                    f"{row.key!r}: it is from another database, and can be replayed to a "
                    f"topic, but not to a group"
                )

    def restore(self, rows: Sequence[Returned]) -> Operation[None]:
        """Put messages back that the log has let go of, where they stood."""
        letters = self.store.letters
        there = yield from letters.fetch((row.partition_id, row.offset) for row in rows)
        for row in rows:
            if (row.partition_id, row.offset) in there:
                continue
            text = self.dialect.text
            taken = yield from letters.known(row.partition_id, text(row.id))
            id = text(row.spare_id if taken else row.id)
            content = (row.payload, row.encoding, row.headers, row.published_at)
            params = (id, row.partition_id, row.offset, *content)
            yield Statement("giving_back.restore", self.dialect.sql(RESTORE), params)
