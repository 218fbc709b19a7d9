"""Giving a dead letter back with another payload.

The message in the log is never changed: other groups may still read it, and it says what was
published. So the group is given a message of its own instead: it stands below the log, like one
that was put back there (see `letters`), where only the group that its offset is open for will look.
The letter goes, and its copy with it, in the same transaction: there is one of the two, and never
both.

    letter of offset 7, done in the log ─► a message of another id at an offset below zero, open

A poll bounds its memory by the partition's largest payload, so there has to be room for this one
before it is there. That is a transaction of its own: a publish locks that counter after whatever
its transaction has settled, so whoever has a group's place must not ask for a counter.

No letter that was ever made may name an offset that means another message by now. So the edits of
a topic are counted: no offset is given twice, and what is edited later is delivered later.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from rowmq.codec import decode_headers, encode_headers
from rowmq.errors import InvalidOption
from rowmq.store.dialect import as_text
from rowmq.store.entries import oversized
from rowmq.store.keys import described, id_within
from rowmq.store.letters import Letters, origin_of, reopen
from rowmq.store.selection import BATCH, Selection
from rowmq.store.statement import Operation, Row, Statement
from rowmq.store.topics import LIMIT, limit_of

__all__ = ["EDITED_ID", "EDITED_OFFSET", "Edit", "Rewriting"]

EDITED_ID, EDITED_OFFSET = "rowmq-edited-id", "rowmq-edited-offset"
"""The headers that name the message which was edited first, whose offset is one of the log."""

OFFSETS_BELOW = 2**43
"""How far below zero offsets begin."""


class Edit(msgspec.Struct):
    """What a letter's message is to become. `headers` are its own, as they are stored, unless it
    keeps those that it has.
    """

    data: bytes
    encoding: int
    headers: str | None
    keeps_headers: bool
    id: str
    partition_id: int | None = None
    """Where an earlier try was to put it, whose commit may have happened."""


class Rewriting:
    """The operation of editing letters, for one dialect."""

    def __init__(self, letters: Letters) -> None:
        self.letters = letters
        self.leases = letters.leases
        self.groups = letters.groups
        self.dialect = letters.dialect

    def make_room(self, chosen: Selection, *, key: str | None, edit: Edit) -> Operation[None]:
        """See that the partition of a letter is known to hold a payload as large as this one."""
        yield from self.dialect.seize()
        yield from self.refuse_oversized(chosen.topic, edit)
        for partition_id in places_of((yield from self.find(chosen, key))):
            size = len(edit.data)
            params = (size, partition_id, size)
            yield Statement("rewriting.make_room", self.dialect.sql(MAKE_ROOM), params)

    def redrive(self, chosen: Selection, *, key: str | None, edit: Edit) -> Operation[bool | None]:
        """Give a letter, or those of a message, back to the group, edited. Whether there was one;
        None, and nothing is done, if there is no room for it: its log was emptied meanwhile.

        A letter that is chosen by its handle tells itself whose it is.
        """
        yield from self.dialect.seize()
        group = chosen.group
        if group is None and (found := (yield from self.find(chosen, key))):
            group = as_text(found[0][6])
        if group is None:
            return (yield from self.is_done(edit))
        yield from self.groups.lock(chosen.topic)
        group_id = yield from self.groups.find(chosen.topic, group, keep=True)
        yield from self.leases.adopt(chosen.topic, group_id)
        rows = yield from self.find(chosen, key)
        if not rows:
            return (yield from self.is_done(edit))
        refuse_many(chosen, rows)
        if not (yield from self.give_back(chosen.topic, group_id, rows, edit)):
            return None
        yield from self.letters.remove(rows)
        return True

    def refuse_oversized(self, topic: str, edit: Edit) -> Operation[None]:
        sql, params = self.dialect.sql(LIMIT), (self.dialect.text(topic),)
        result = yield Statement("topics.limit", sql, params)
        limit = limit_of(result.rows[0][0] if result.rows else None)
        if len(edit.data) > limit:
            raise oversized(topic, len(edit.data), limit)

    def find(self, chosen: Selection, key: str | None) -> Operation[list[Row]]:
        """The letters of a message, as `letters` lists them: several, if it failed again."""
        rows = yield from self.letters.select(chosen, limit=BATCH)
        return [row for row in rows if key is None or as_text(row[9]) == key]

    def is_done(self, edit: Edit) -> Operation[bool]:
        """Whether the letter is gone because an earlier try was committed, and its answer lost."""
        if edit.partition_id is None:
            return False
        return (yield from self.letters.known(edit.partition_id, self.dialect.text(edit.id)))

    def give_back(
        self, topic: str, group_id: int, rows: Sequence[Row], edit: Edit
    ) -> Operation[bool]:
        """Put the edited message below the log, and open it for the group; False if there is no
        room for it. Under the topic's lock, so that nobody empties the log before this is done.
        """
        row = rows[-1]  # the last one, if it failed again
        partition_id = row[2]
        counted = self.dialect.text(topic)
        yield Statement("rewriting.count", self.dialect.sql(COUNT), (counted,))
        params = (counted, partition_id)
        found = yield Statement("rewriting.below", self.dialect.sql(BELOW), params)
        ((now, edits, largest),) = found.rows
        if largest < len(edit.data):
            return False
        edit.partition_id, edit.id = partition_id, id_within(as_text(row[9]), edit.id)
        (place,) = yield from self.leases.load(group_id, [partition_id])
        offset = edits - OFFSETS_BELOW
        values = [partition_id, offset, edit.data, edit.encoding, headers_of(row, edit)]
        sql = self.dialect.sql(INSERT)
        yield Statement("rewriting.insert", sql, [self.dialect.text(edit.id), *values])
        change, _ = reopen(place, [offset], at=now)
        yield from self.leases.overwrite(group_id, [change])
        return True


def places_of(rows: Sequence[Row]) -> list[int]:
    """The partitions that letters are from."""
    return sorted({row[2] for row in rows})


def refuse_many(chosen: Selection, rows: Sequence[Row]) -> None:
    """Raise if letters are of several messages, which have this id under several keys."""
    if len(places_of(rows)) > 1:
        keys = ", ".join(sorted({described(as_text(row[9])) for row in rows}))
        raise InvalidOption(
            f"messages of several keys of topic {chosen.topic!r} have the id "
            f"{as_text(rows[0][7])!r}: say by letter= which letter is meant, or by key= of which "
            f"key: {keys}"
        )


def headers_of(row: Row, edit: Edit) -> str | None:
    """The headers of an edited message, with what it was made of."""
    had = decode_headers(origin_of(row)[0])
    headers = dict(had if edit.keeps_headers else decode_headers(edit.headers))
    made: dict[str, Any] = {EDITED_ID: as_text(row[7]), EDITED_OFFSET: str(row[3])}
    if row[3] < 0:  # it was edited before, and these are ours
        made |= {name: had[name] for name in made if name in had}
    return encode_headers(headers | made)


MAKE_ROOM = "UPDATE {partitions} SET largest_bytes = ? WHERE id = ? AND largest_bytes < ?"

COUNT = "UPDATE {topics} SET edited = edited + 1 WHERE topic = ?"

BELOW = """
    SELECT {now}, (SELECT t.edited FROM {topics} t WHERE t.topic = ?),
           (SELECT p.largest_bytes FROM {partitions} p WHERE p.id = ?)"""

INSERT = """
    INSERT INTO {messages} (message_id, partition_id, message_offset, payload, encoding, headers,
                            published_at)
    VALUES (?, ?, ?, ?, ?, ?, {now})"""
