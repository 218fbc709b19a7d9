"""The source as a stream: Spark is one more consumer group.

Spark's checkpoint knows which offsets were processed; the group's place in the database follows it,
so that garbage collection never passes what Spark may still read, and lag can be seen. The place
moves when Spark says that a batch is done (`commit`), and when it asks for more (`latestOffset`),
as it then names an offset that is in its log of commits.

Where the stream begins is asked for more than once, and by a source that does not know whether it
was asked before: so it is decided by the group's row, which is made once.
"""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from rowmq.client import RowMQ
from rowmq.errors import DataLoss
from rowmq.spark.options import Bound, TopicsOptions
from rowmq.spark.source.batch import read_task, tasks_of
from rowmq.spark.source.offsets import (
    advance,
    establish,
    kept,
    ranges_between,
    refuse_missing,
    standing,
    subscribed,
    whole_topics,
)
from rowmq.spark.source.planning import Offsets, Range, cut_bytes, cut_offsets
from rowmq.store.keys import described
from rowmq.store.positions import Standing
from rowmq.store.topics import Span

__all__ = ["TopicsStream"]

SIZES_MAX = 50_000
"""How many messages are measured for a batch that is limited by bytes."""

NO_LIMIT = 2**62


class TopicsStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads topics as they grow, for a consumer group."""

    def __init__(self, options: TopicsOptions, columns: tuple[str, ...]) -> None:
        self.options = options
        self.columns = columns
        self.group = str(options.group)
        self._mq: RowMQ | None = None
        self._target: Offsets | None = None
        self._latest: Offsets = {}
        self._idle_since = -math.inf  # the first batch waits for nobody

    def __getstate__(self) -> dict[str, Any]:
        """What tasks need to know: they have connections of their own."""
        return {**self.__dict__, "_mq": None, "_latest": {}, "_target": None}

    @property
    def mq(self) -> RowMQ:
        if self._mq is None:
            self._mq = self.options.place.connect()
        return self._mq

    # --- where the stream stands ------------------------------------------------------------------

    def initialOffset(self) -> Offsets:  # noqa: N802 - Spark's name
        offsets = {}
        for topic in subscribed(self.mq, self.options, letters=False):
            establish(self.mq, topic, self.group, self.options.start)
            known = standing(self.mq, topic, self.group)
            offsets[topic] = {key: next_offset(one) for key, one in known.items()}
        return offsets

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:  # noqa: N802 - Spark's
        partitions = self.partitions_now(start)
        refuse_ahead(start, partitions)
        if self.options.fail_on_loss:
            refuse_behind(start, partitions, self.group)
        self.advance(start)
        self._latest = {
            topic: {key: one.next_offset for key, one in known.items()}
            for topic, known in partitions.items()
        }
        ends = self._latest if self._target is None else self._target
        ranges = [
            one
            for topic, known in partitions.items()
            for one in ranges_between(topic, known, start.get(topic), known_of(ends, topic, known))
        ]
        if not isinstance(limit, ReadAllAvailable):
            ranges = self.limited(ranges)
        if ranges:
            self._idle_since = time.monotonic()
        return moved(self.begun(start, partitions), ranges)

    def partitions_now(self, start: Offsets) -> dict[str, dict[str, Standing]]:
        """The partitions of all topics. In those that are new, the group is registered; in those
        that are not, it must still be there.
        """
        found = {}
        for topic in subscribed(self.mq, self.options, letters=False):
            known = standing(self.mq, topic, self.group)
            if any(one.acked is None for one in known.values()) or not known:
                begin = Bound("group" if topic in start else "earliest")
                establish(self.mq, topic, self.group, begin)
                known = standing(self.mq, topic, self.group)
            found[topic] = known
        return found

    def begun(self, start: Offsets, partitions: Mapping[str, Mapping[str, Standing]]) -> Offsets:
        """An offset that knows where topics begin that are new to it, also where there is nothing
        to read yet.
        """
        begins = {
            topic: {key: next_offset(one) for key, one in known.items()}
            for topic, known in partitions.items()
            if topic not in start
        }
        return start | begins

    def limited(self, ranges: Sequence[Range]) -> list[Range]:
        """What the options allow to be read at a time."""
        least = self.options.offsets_min
        waited = time.monotonic() - self._idle_since
        if (
            least is not None
            and self._target is None  # a stream that is to end when it has read all
            and sum(one.size for one in ranges) < least
            and waited < self.options.delay_seconds_max
        ):
            return []
        cut = cut_offsets(ranges, self.options.offsets_max or NO_LIMIT)
        if self.options.bytes_max is None:
            return cut
        return cut_bytes(cut, self.sizes(cut), self.options.bytes_max)

    def sizes(self, ranges: Sequence[Range]) -> dict[int, list[int]]:
        """How many bytes the first messages of ranges have, in order."""
        spans = [
            Span(one.key, one.partition_id, one.first, one.end - 1)
            for one in cut_offsets(ranges, SIZES_MAX)
        ]
        leases = self.mq._store.leases  # noqa: SLF001 - its own
        found = self.mq._run(partial(leases.sizes, spans))  # noqa: SLF001 - its own
        sizes: dict[int, list[int]] = {}
        for (partition_id, _), size in sorted(found.items()):
            sizes.setdefault(partition_id, []).append(size)
        return sizes

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        chosen = self.options
        if chosen.offsets_max is chosen.offsets_min is chosen.bytes_max is None:
            return ReadAllAvailable()
        # Spark has no limit for all of these together: it gives back whatever it is given.
        return ReadMaxRows(chosen.offsets_max or 2**31 - 1)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        # Spark asks for this before it asks where to begin: so nothing is registered yet. What is
        # mistyped is not waited for: the stream would end with nothing read.
        refuse_missing(self.mq, self.options.topics)
        self._target = {
            topic: {
                key: one.next_offset for key, one in standing(self.mq, topic, self.group).items()
            }
            for topic in subscribed(self.mq, self.options, letters=False)
        }

    def reportLatestOffset(self) -> Offsets | None:  # noqa: N802 - Spark's name
        return self._latest or None

    # --- what is read -----------------------------------------------------------------------------

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        partitions = {topic: standing(self.mq, topic, self.group) for topic in end}
        whole = whole_topics(self.mq, end, self.options)
        ranges: list[Range] = []
        for topic, known in partitions.items():
            first, last = start.get(topic), end[topic]
            ranges += ranges_between(topic, known, first, last, whole=topic in whole)
        return tasks_of(kept(ranges, partitions), self.options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_task(self.options, self.columns, partition)

    # --- what is done -----------------------------------------------------------------------------

    def commit(self, end: Offsets) -> None:
        self.advance(end)

    def advance(self, offsets: Offsets) -> None:
        """Move the group's place to what Spark has processed, where that is news."""
        for topic, ends in offsets.items():
            known = standing(self.mq, topic, self.group)
            acked = {
                known[key].partition_id: end - 1
                for key, end in ends.items()
                if key in known and (known[key].acked or 0) < end - 1 < known[key].next_offset
            }
            advance(self.mq, topic, self.group, acked)

    def stop(self) -> None:
        if self._mq is not None:
            self._mq.close()
            self._mq = None


def refuse_ahead(start: Offsets, partitions: Mapping[str, Mapping[str, Standing]]) -> None:
    """Raise if Spark has read more than there ever was: these are not the messages it knows."""
    for topic, known in partitions.items():
        for key, offset in start.get(topic, {}).items():
            one = known.get(key)
            if one is None or offset > one.next_offset:
                last = 0 if one is None else one.next_offset - 1
                raise DataLoss(
                    f"the checkpoint is ahead of the database: topic {topic!r}, key "
                    f"{described(key)}, was read up to offset {offset - 1}, and ends with {last}. "
                    f"It was restored to an earlier time, or is another one: begin with a new "
                    f"checkpoint and a new group"
                )


def refuse_behind(
    start: Offsets, partitions: Mapping[str, Mapping[str, Standing]], group: str
) -> None:
    """Raise if the group has come further than Spark says: its place only ever follows Spark."""
    for topic, known in partitions.items():
        for key, offset in start.get(topic, {}).items():
            one = known.get(key)
            # Where retention took the group further, something is gone: that is told elsewhere.
            if one is not None and one.first_offset <= offset <= (one.acked or 0):
                raise DataLoss(
                    f"group {group!r} has topic {topic!r}, key {described(key)}, up to offset "
                    f"{one.acked}, and the checkpoint only up to {offset - 1}: it is an older "
                    f"copy, or the group was sought, or somebody else uses it. What Spark would "
                    f"publish again, the sink takes for done. Begin with a new checkpoint, which "
                    f"goes on where the group is (see `rowmq seek`), or set "
                    f".option('failOnDataLoss', 'false') to go on where the checkpoint is"
                )


def next_offset(one: Standing) -> int:
    """Where a group goes on in a partition: behind what it has acked, or at the beginning."""
    return one.first_offset if one.acked is None else one.acked + 1


def known_of(ends: Offsets, topic: str, known: Mapping[str, Standing]) -> dict[str, int]:
    """The ends of a topic's partitions, as far as they are known."""
    return {key: end for key, end in ends.get(topic, {}).items() if key in known}


def moved(start: Offsets, ranges: Sequence[Range]) -> Offsets:
    """An offset, moved to the ends of ranges."""
    offsets = {topic: dict(keys) for topic, keys in start.items()}
    for one in ranges:
        offsets.setdefault(one.topic, {})[one.key] = one.end
    return offsets
