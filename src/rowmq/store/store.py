"""All operations for one database, in one value."""

import msgspec

from rowmq.store.dialect import Dialect
from rowmq.store.groups import Groups
from rowmq.store.leases import Leases
from rowmq.store.letters import Letters
from rowmq.store.retention import Retention
from rowmq.store.schema import Schema
from rowmq.store.seeking import Seeking
from rowmq.store.topics import Topics

__all__ = ["Store", "store_of"]


class Store(msgspec.Struct, frozen=True):
    """What a client can ask of a database, by noun."""

    dialect: Dialect
    topics: Topics
    groups: Groups
    leases: Leases
    letters: Letters
    retention: Retention
    seeking: Seeking
    schema: Schema


def store_of(
    dialect: Dialect, topics: Topics, schema: Schema, *, leases: type[Leases] = Leases
) -> Store:
    """The store of a dialect, from the parts that differ in shape."""
    groups = Groups(dialect, topics)
    owned = leases(dialect, topics, groups)
    letters = Letters(dialect, topics, groups, owned)
    retention = Retention(dialect, topics, groups, owned)
    seeking = Seeking(dialect, topics, groups, owned)
    return Store(dialect, topics, groups, owned, letters, retention, seeking, schema)
