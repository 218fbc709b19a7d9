"""Stored keys: what stands in the database for a message's key, and for none.

Messages with a key wait for each other, from the lock of their counter to the flush of its commit:
that is what their order costs. Those without one need no order. So they are spread over a few
partitions, their *shards*, each with a counter of its own, and many processes can publish at once.

Which shard it is follows from the id: so whoever publishes it again comes to the same partition,
and finds it. An id that is made for a message is made for the publisher's own shard: what one
client publishes stays together, and shares a commit.

A shard has a stored key like any other partition, one that no message's key can be: nothing else
has to know of shards, but whoever shows keys to people.
"""

import json
from collections.abc import Iterable, Mapping
from zlib import crc32

from rowmq.errors import InvalidOption
from rowmq.naming import SHARD_MARK, check_key
from rowmq.quoting import quoted

__all__ = [
    "KEYLESS",
    "SHARDS",
    "SHARD_KEYS",
    "Offsets",
    "Place",
    "chosen_key",
    "described",
    "id_within",
    "key_of",
    "named",
    "of_partitions",
    "place_of",
    "shard_key",
    "shard_of",
    "stored_key",
]

Place = tuple[str | None, int]
"""A key, or None, and the shard: what people know a partition by."""

Keyed = Mapping[str, int] | Mapping[None, int] | Mapping[str | None, int]
Placed = Mapping[Place, int] | Mapping[tuple[None, int], int]
Offsets = Keyed | Placed
"""An offset for each key, where None stands for messages without one; or for each key and shard.
All kinds are named, since to a type checker a mapping with keys of fewer kinds is another one.
"""

SHARDS = 8
"""Over how many partitions the messages of a topic that have no key are spread. A subscriber has as
many more to look after, so it is not more than it takes.
"""

SHARD_KEYS = tuple(f"{SHARD_MARK}{number}" for number in range(SHARDS))
"""The stored keys of the shards. They sort by their number, and before all others."""

KEYLESS = ""
"""All messages without a key, where something is said of them: no partition has this stored key."""

UUID_CHARS = 36

_NUMBERS = {key: number for number, key in enumerate(SHARD_KEYS)}
_DIGITS = {digit: SHARD_KEYS[int(digit, 16) % SHARDS] for digit in "0123456789abcdefABCDEF"}


def key_of(stored: str) -> str | None:
    """The key of a partition's messages; None if they have none."""
    return None if stored in _NUMBERS else stored


def shard_of(stored: str) -> int:
    """The number of a shard; 0 where messages have a key."""
    return _NUMBERS.get(stored, 0)


def place_of(stored: str) -> Place:
    """Key and shard of a partition's messages."""
    shard = _NUMBERS.get(stored)
    return (stored, 0) if shard is None else (None, shard)


def shard_key(id: str) -> str:
    """The stored key of a message without a key, by its id.

    What begins with a UUID of version 7, as ids do that are made here, says it by the last digit of
    that, which is random.
    """
    if len(id) >= UUID_CHARS and id[14] == "7" and id[23] == "-":
        said = _DIGITS.get(id[UUID_CHARS - 1])
        if said is not None:
            return said
    return SHARD_KEYS[crc32(id.encode()) % SHARDS]


def id_within(stored: str, id: str) -> str:
    """A fresh id, changed, where messages have no key, so that it is one of this shard."""
    return id[:-1] + stored[-1] if stored in _NUMBERS else id


def stored_key(key: str | Place | None) -> str:
    """The stored key that somebody means by a key, or by a key and a shard; or KEYLESS."""
    if not isinstance(key, tuple):
        return check_key(key) or KEYLESS
    try:
        name, shard = key
    except ValueError:
        raise InvalidOption(
            f"a partition is a key and a shard, (key, shard), not {quoted(key)}"
        ) from None
    if type(shard) is not int or not 0 <= shard < (SHARDS if name is None else 1):
        most = "messages with a key have shard 0" if name else f"shards are 0 to {SHARDS - 1}"
        raise InvalidOption(f"{quoted(key)} is no partition: {most}")
    return check_key(name) or SHARD_KEYS[shard]


def chosen_key(key: str | Place | None) -> str | None:
    """The stored key of the one partition that is meant; None, as given, for all of them."""
    return None if key is None else stored_key(key)


def described(stored: str) -> str:
    """A stored key, for errors."""
    return named(place_of(stored))


def named(place: Place) -> str:
    """Key and shard, for errors."""
    key, shard = place
    return f"None, shard {shard}" if key is None else repr(key)


def of_partitions(
    topic: str, offsets: Mapping[str, int], known: Iterable[str], *, in_json: bool = False
) -> dict[str, int]:
    """Offsets by the stored keys of partitions, also where all messages without a key are meant.

    Numbers below 1 stand for an end of the log, and are right for any shard. Offsets are not: each
    shard counts for itself. An error calls shards as who gave the offsets does: in Python, or
    `in_json` by their stored keys.
    """
    found: dict[str, int] = {}
    if (offset := offsets.get(KEYLESS)) is not None:
        shards = [stored for stored in known if stored in _NUMBERS]
        if len(shards) > 1 and offset > 0:
            each = ", ".join(
                json.dumps(stored) if in_json else repr(place_of(stored))
                for stored in sorted(shards)
            )
            raise InvalidOption(
                f"messages without a key are in {len(shards)} partitions of topic {topic!r}, each "
                f"with offsets of its own: give one for each of {each}"
            )
        if not shards:
            raise InvalidOption(f"topic {topic!r} has no messages with the key None")
        found = dict.fromkeys(shards, offset)
    return found | {stored: offset for stored, offset in offsets.items() if stored != KEYLESS}
