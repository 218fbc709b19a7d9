"""All operations for one database, in one value."""

import msgspec

from rowmq.store.dialect import Dialect
from rowmq.store.schema import Schema
from rowmq.store.topics import Topics

__all__ = ["Store"]


class Store(msgspec.Struct, frozen=True):
    """What a client can ask of a database, by noun."""

    dialect: Dialect
    topics: Topics
    schema: Schema
