"""Which database, and which tables in it: what the driver's side and the tasks both need to know.

A place travels to the executors inside Spark's own pickles. It never shows its URL: plans, logs and
messages of errors are read by others than the database's owners.
"""

import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec

import rowmq
from rowmq.client import RowMQ
from rowmq.engine import SCHEMES, TARGETS, split, store_for
from rowmq.errors import InvalidOption
from rowmq.store.dialect import DEFAULT_LOCK_SECONDS, DEFAULT_PREFIX
from rowmq.store.store import Store

__all__ = ["Place", "place_of"]

POOL_SIZE = 2
"""A task has one thread, and the driver's side of a source has one; one more to spare."""


class Place(msgspec.Struct, frozen=True):
    """A database and the set of tables in it."""

    url: str
    prefix: str = DEFAULT_PREFIX
    schema: str | None = None

    @property
    def database(self) -> str:
        """Which database it is: sqlite, postgres or mysql."""
        return SCHEMES[urlsplit(self.url).scheme.lower().split("+")[0]]

    @property
    def store(self) -> Store:
        """The operations and the spelling of this database, for these tables."""
        return store_for(self.database, prefix=self.prefix, schema=self.schema)

    @property
    def target(self) -> Any:
        """What a driver connects to: a path, a URL, or options."""
        url, parts, database = split(self.url)
        return TARGETS[database](url, parts)

    def connect(self, *, lock_timeout: float = DEFAULT_LOCK_SECONDS) -> RowMQ:
        """A client, to be closed by whoever asked for it."""
        return rowmq.connect(
            self.url,
            prefix=self.prefix,
            schema=self.schema,
            pool_size=POOL_SIZE,
            lock_timeout=lock_timeout,
            prepared_statements=False,  # so that a pooler may stand in between
        )

    def __repr__(self) -> str:
        return f"Place({self.database}, prefix={self.prefix!r})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("database", self.database), ("prefix", self.prefix)]


def place_of(options: Mapping[str, str]) -> Place:
    """The place that options name; without a `url`, the one in the environment."""
    url = options.get("url") or os.environ.get("ROWMQ_URL")
    if not url:
        raise InvalidOption(
            "which database? Give .option('url', 'postgresql://user:password@host/database'), or "
            "set ROWMQ_URL in the environment of Spark's driver"
        )
    url, parts, database = split(url)
    target = TARGETS[database](url, parts)
    if database == "sqlite":
        if not target:
            raise InvalidOption(
                "Spark cannot read a database in memory, which no other process sees: name a file, "
                "as in sqlite:////var/lib/queue.db"
            )
        # Tasks run in other directories than the driver.
        escaped = str(target).replace("%", "%25").replace("?", "%3F").replace("#", "%23")
        url = f"sqlite:///{escaped}"
    place = Place(url, options.get("prefix") or DEFAULT_PREFIX, options.get("schema") or None)
    _ = place.store  # a bad prefix or schema is told now, by the driver
    return place
