"""Partitions in URLs and forms: a key, or the number of a shard of the messages without one."""

from collections.abc import Mapping
from typing import Any

from rowmq.errors import InvalidOption
from rowmq.spelling import is_number
from rowmq.store.keys import Place
from rowmq.web.fields import given

__all__ = ["fields_of", "place_in", "said"]


def place_in(fields: Mapping[str, str]) -> str | Place | None:
    """The partition that `key` or `shard` name; None if neither does. Keys are taken as they are:
    one may begin with a space.
    """
    key, shard = fields.get("key", ""), given(fields, "shard")
    if key:
        return key
    if shard is None:
        return None
    if not is_number(shard):
        raise InvalidOption("a shard is a number from 0")
    return (None, int(shard))


def fields_of(key: str | None, shard: int) -> dict[str, Any]:
    """What names a partition in a URL."""
    return {"shard": shard} if key is None else {"key": key}


def said(place: str | Place | None) -> str:
    """A partition in a sentence."""
    if place is None:
        return "all partitions"
    if isinstance(place, tuple):
        key, shard = place
        return f"shard {shard} of the messages without a key" if key is None else f"key {key}"
    return f"key {place}"
