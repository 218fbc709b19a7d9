"""Entries: messages that are to be written, checked and encoded, and what is told of each.

Nothing here asks the database.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from rowmq.codec import Encoding, encode, encode_headers
from rowmq.errors import PayloadTooLarge
from rowmq.message import PublishResult
from rowmq.naming import check_headers, check_id, check_key
from rowmq.store.keys import id_within, place_of, shard_key
from rowmq.store.statement import Row

__all__ = [
    "ROW_OVERHEAD_BYTES",
    "Entry",
    "Partition",
    "entry_of",
    "oversized",
    "refuse_oversized",
    "results",
    "unrepeated",
]


ROW_OVERHEAD_BYTES = 100
"""What a message's row takes beside its payload, roughly, when statements are filled."""

Partition = tuple[str, str]
"""Topic and stored partition key. Sorted, they are the order in which locks are taken."""


class Entry(msgspec.Struct, frozen=True):
    """A message that passed every check and is encoded: ready to be written.

    Its key is the stored one: see `keys`.
    """

    topic: str
    key: str
    id: str
    id_given: bool
    data: bytes
    encoding: int
    headers: str | None

    @property
    def partition(self) -> Partition:
        return self.topic, self.key

    @property
    def identity(self) -> tuple[str, str, str]:
        """What must be unique: the id within its partition."""
        return self.topic, self.key, self.id

    @property
    def size(self) -> int:
        """About how many bytes it adds to a statement."""
        return len(self.data) + len(self.headers or "") + len(self.id) + ROW_OVERHEAD_BYTES


def entry_of(  # noqa: PLR0917 - by position, since this is called for every message
    topic: str,
    payload: Any,
    key: str | None,
    headers: Mapping[str, str] | None,
    id: str,
    id_given: bool,
    own: str,
) -> Entry:
    """The entry of a message's parts, for a topic that was checked.

    `own` is the stored key that it has without a key and an id: its publisher's shard.
    """
    if payload.__class__ is bytes:  # as it is
        data, encoding = payload, BYTES
    else:
        data, encoding = encode(payload)
    stored = check_key(key)
    if id_given:
        id = check_id(id)
    if stored is None:
        stored = shard_key(id) if id_given else own
        id = id if id_given else id_within(own, id)
    return Entry(
        topic,
        stored,
        id,
        id_given,
        data,
        int(encoding),
        encode_headers(check_headers(headers)) if headers is not None else None,
    )


BYTES = int(Encoding.BYTES)


def unrepeated(entries: Sequence[Entry]) -> list[Entry]:
    """The entries without those whose id stands earlier in the same batch."""
    if not any(entry.id_given for entry in entries):
        return list(entries)  # an id that was made is made once
    first: dict[tuple[str, str, str], Entry] = {}
    for entry in entries:
        first.setdefault(entry.identity, entry)
    return list(first.values())


def refuse_oversized(entries: Iterable[Entry], limits: Mapping[str, int]) -> None:
    """Raise for the first payload that is over its topic's limit."""
    for entry in entries:
        limit = limits[entry.topic]
        if len(entry.data) > limit:
            raise oversized(entry.topic, len(entry.data), limit)


def oversized(topic: str, payload_bytes: int, limit: int) -> PayloadTooLarge:
    return PayloadTooLarge(
        f"a payload of {payload_bytes:,} bytes is over the limit of topic {topic!r}, {limit:,} "
        f"bytes; raise it with configure_topic({topic!r}, max_payload_bytes=...), or store the "
        f"data elsewhere and publish where it is"
    )


def results(
    entries: Sequence[Entry], found: Mapping[tuple[str, str, str], Row]
) -> list[PublishResult]:
    """What to tell the publisher of each entry.

    An id that RowMQ made itself is a duplicate only when an earlier try was committed and its
    answer lost on the way: for the publisher that is the same publish, and no duplicate.
    """
    answers = []
    seen: set[tuple[str, str, str]] = set()
    places = {stored: place_of(stored) for stored in {entry.key for entry in entries}}
    for entry in entries:
        topic, stored, id, id_given = entry.topic, entry.key, entry.id, entry.id_given
        identity = topic, stored, id
        offset, known = found[identity]
        duplicate = id_given and (known or identity in seen)
        if id_given:
            seen.add(identity)
        key, shard = places[stored]
        answers.append(
            PublishResult(
                topic=topic, key=key, shard=shard, id=id, offset=offset, duplicate=duplicate
            )
        )
    return answers
