"""Spark's lake as its own log tells it: its tables, how large they are, and their last commits.

A store far away may take its time, or never answer: one thread looks, those who ask wait for it a
little while, and nobody else begins to look before it has ended. What is wrong with a store may
quote its address and keys: that is for the log of this server.

It needs `deltalake`, of the extra `spark`, and neither Spark nor a Java. Its tables are those of
`rowmq.spark.pipelines`.
"""

import asyncio
import contextlib
import logging
import re
import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from rowmq.quoting import in_line

__all__ = ["Lake", "LakeTable", "Lakes"]

log = logging.getLogger("rowmq.web")

TABLES = ("messages", "dead_letters", "jobs", "lag")

CONTAINERS = ("abfs", "wasb")
"""Kinds of URLs, of Azure, that name a container where others have a user."""

KEPT_SECONDS = 30.0
"""How long an answer is kept: to read a log of a store far away takes its time."""

WAIT_SECONDS = 5.0
"""How long somebody who asks waits for it."""


class LakeTable(msgspec.Struct, frozen=True):
    """A table of the lake, at its newest version."""

    name: str
    version: int
    files: int
    rows: int
    bytes: int
    committed_at: datetime | None


class Lake(msgspec.Struct, frozen=True):
    """A lake, or why it cannot be read."""

    place: str
    tables: Sequence[LakeTable] = ()
    error: str | None = None

    @property
    def address(self) -> str:
        """Where it is, for people to see: without the user of a URL, and without its query, which
        may be a signature. Who has the address could read the lake otherwise.
        """
        scheme, separator, rest = self.place.partition("://")
        if not separator:
            return self.place
        host, slash, path = re.split(r"[?#]", rest, maxsplit=1)[0].partition("/")
        user, at, bare = host.rpartition("@")
        if not scheme.lower().startswith(CONTAINERS) or ":" in user:
            user = at = ""
        return f"{scheme}://{user}{at}{bare}{slash}{path}"

    @property
    def bytes(self) -> int:
        """How large all tables are."""
        return sum(table.bytes for table in self.tables)

    @property
    def committed_at(self) -> datetime | None:
        """When anything was added last."""
        return max((t.committed_at for t in self.tables if t.committed_at), default=None)


class Lakes:
    """Looks at a site's lake now and then, in a thread; what it saw is told for a while."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[float, Lake]] = {}
        self._looking: dict[str, asyncio.Future[Lake]] = {}

    async def look(self, place: str) -> Lake:
        """The lake as it is now, or was a moment ago; if that takes long, as it was seen last."""
        at, known = self._known.get(place, (0.0, None))
        if known is not None and time.monotonic() - at <= KEPT_SECONDS:
            return known
        looking = self._looking.get(place)
        if looking is None or looking.get_loop() is not asyncio.get_running_loop():
            looking = self._looking[place] = self._begin(place)
        await asyncio.wait([looking], timeout=WAIT_SECONDS)
        if looking.done():
            return looking.result()
        return known or Lake(place, error="it has not answered yet: look again in a while")

    def _begin(self, place: str) -> asyncio.Future[Lake]:
        """Look, in a thread that keeps no process from ending."""
        loop = asyncio.get_running_loop()
        looking: asyncio.Future[Lake] = loop.create_future()

        def note(lake: Lake) -> None:
            self._known[place] = (time.monotonic(), lake)
            self._looking.pop(place, None)
            looking.set_result(lake)

        def look() -> None:
            lake = look_at(place)
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(note, lake)

        threading.Thread(target=look, name="rowmq-lake", daemon=True).start()
        return looking


def look_at(place: str) -> Lake:
    """Read the logs of a lake's tables."""
    try:
        import deltalake  # noqa: PLC0415 - of an extra
    except ImportError:
        return Lake(place, error="to see how large it is: pip install 'rowmq[spark]'")
    tables = []
    try:
        for name in TABLES:
            uri = f"{place.rstrip('/')}/{name}"
            if deltalake.DeltaTable.is_deltatable(uri):
                tables.append(table_of(name, deltalake.DeltaTable(uri)))
    except Exception as error:  # noqa: BLE001 - whatever a store of others says
        log.warning("the lake cannot be read: %s", in_line(str(error)))
        return Lake(place, error="it cannot be read; the log of this server says why")
    return Lake(place, tables)


def table_of(name: str, table: Any) -> LakeTable:
    """What the log of a table says."""
    found = table.get_add_actions(flatten=True)
    sizes, rows = (
        [value.as_py() or 0 for value in found.column(column)]
        for column in ("size_bytes", "num_records")
    )
    last: dict[str, Any] = next(iter(table.history(limit=1)), {})
    at = last.get("timestamp")
    return LakeTable(
        name=name,
        version=table.version(),
        files=len(sizes),
        rows=sum(rows),
        bytes=sum(sizes),
        committed_at=None if at is None else datetime.fromtimestamp(at / 1000, UTC),
    )
