"""Messages into the lake: the log of each topic, without gaps, each message once.

The lake is the truth: a pass begins where the books of the lake end, and the group in the database
follows them. It is only there so that garbage collection waits for the lake.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import msgspec
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from rowmq.errors import DataLoss, InvalidOption, LakeConflict, LakeMismatch, UnknownGroup
from rowmq.spark.options import Bound
from rowmq.spark.pipelines.archiving.desk import Desk, Part, Passed
from rowmq.spark.pipelines.books import Books, Ends
from rowmq.spark.pipelines.lake import Snapshot, open_table, read_snapshot, snapshot_of
from rowmq.spark.pipelines.layout import MESSAGES
from rowmq.spark.pipelines.storage import Root
from rowmq.spark.pipelines.tasks import cores_of, run_tasks
from rowmq.spark.pipelines.writing import Added, write_files
from rowmq.spark.place import Place
from rowmq.spark.source.offsets import advance, establish, standing
from rowmq.spark.source.planning import Range, cut_offsets, share_out
from rowmq.spark.source.reading import read_ranges
from rowmq.store.keys import described, place_of
from rowmq.store.positions import Standing

__all__ = ["Messages"]

log = logging.getLogger("rowmq")

TASK_RECORDS_MAX = 250_000


class Plan(NamedTuple):
    """What a pass is to read, and where it will have come to."""

    ranges: list[Range]
    ends: Ends
    left: int
    lost: int


class Piece(msgspec.Struct, frozen=True):
    """What one task archives."""

    place: Place
    root: Root
    ranges: tuple[Range, ...]
    checked: bool


class Messages(Part):
    """Archives topics: those named, or all but those of dead letters."""

    layout = MESSAGES
    counted_by = ("partition", "offset")

    def __init__(self, desk: Desk, topics: Sequence[str] | None) -> None:
        super().__init__(desk)
        self.topics = topics
        self.established: set[str] = set()

    def check(self) -> None:
        super().check()
        self.chosen()

    def pass_once(self) -> Passed:
        topics = self.chosen()
        if not any(topics.values()) and snapshot_of(self.desk.lake, self.layout) is None:
            return Passed()
        snapshot, books = self.open()
        try:
            plan = self.plan(snapshot, [t for t in topics if topics[t] or t in books.ends], books)
            if not plan.ranges and not plan.lost:
                return Passed()
            added = self.write(snapshot.root, plan.ranges)
        except DataLoss:
            self.refuse_moved(snapshot)
            raise
        rows = sum(file.rows for file in added)
        lost = plan.lost + sum(one.size for one in plan.ranges) - rows
        self.commit(snapshot, books, added, plan.ends)
        letters = self.letter_topics()
        for topic, ends in plan.ends.items():
            if topic not in letters:  # it may have become one just now
                self.follow(topic, ends)
        return Passed(rows, len(added), lost, plan.left, tuple(plan.ends))

    def refuse_moved(self, snapshot: Snapshot) -> None:
        """Raise if somebody else has archived since: what is gone then, or read by the group, may
        well be in the lake.
        """
        if open_table(self.desk.lake, self.layout, owner=self.desk.owner).number != snapshot.number:
            raise LakeConflict(
                f"somebody else has archived to {self.desk.lake.uri} at the same time; nothing was "
                f"added to it"
            )

    def write(self, root: Root, ranges: Sequence[Range]) -> list[Added]:
        """Have tasks write the messages of ranges to files."""
        shared = share_out(
            ranges,
            partitions_min=None,
            cores=cores_of(self.desk.spark),
            records_max=TASK_RECORDS_MAX,
        )
        checked = self.desk.fail_on_loss
        pieces = [Piece(self.desk.place, root, tuple(part), checked) for part in shared]
        return run_tasks(self.desk.spark, archive_ranges, pieces, Added)

    def follow(self, topic: str, ends: Mapping[int, int]) -> None:
        """Move the group to where the lake ends."""
        try:
            advance(self.desk.mq, topic, self.desk.group, {id: end - 1 for id, end in ends.items()})
        except UnknownGroup:  # it was dropped; the next pass makes it anew
            self.established.discard(topic)

    # --- what is to be read -----------------------------------------------------------------------

    def chosen(self) -> dict[str, bool]:
        """The topics to archive, and whether there is something in them to begin with.

        One that has no messages, and that the lake knows nothing of, is left for later: it may
        become one of dead letters. No group is made on those, since garbage collection would then
        delete letters.
        """
        found = {info.name: info for info in self.desk.mq.topics()}
        if self.topics is None:
            return {
                topic: info.messages > 0 for topic, info in found.items() if not info.holds_letters
            }
        for topic in self.topics:
            if topic not in found:
                self.await_topic(topic)
            elif found[topic].holds_letters:
                raise InvalidOption(
                    f"topic {topic!r} holds dead letters: name the topic that they are from. A "
                    f"group on this one would have garbage collection delete them"
                )
        return {topic: True for topic in self.topics if topic in found}

    def letter_topics(self) -> frozenset[str]:
        mq = self.desk.mq
        return mq._run(mq._store.positions.letter_topics)  # noqa: SLF001 - its own

    def await_topic(self, topic: str) -> None:
        """Have garbage collection wait for the lake from a topic's first message on."""
        if topic not in self.established:
            establish(self.desk.mq, topic, self.desk.group, Bound("earliest"))
            self.established.add(topic)

    def plan(self, snapshot: Snapshot, topics: Sequence[str], books: Books) -> Plan:
        """What there is to read, cut to what a pass may take."""
        ranges: list[Range] = []
        ends: Ends = {}
        lost = 0
        for topic in topics:
            known = books.ends.get(topic)
            whole = known is None or books.estimated
            partitions = self.partitions(topic)
            if known is None:
                self.tell_of_gap(topic, partitions, books)
                partitions = self.set_back(topic, partitions)
            self.heal(snapshot, topic, partitions, known or {})
            ahead = {}
            for one in partitions:
                start = start_of(topic, one, known, whole=whole)
                missing = max(0, one.first_offset - start)
                if missing and self.desk.fail_on_loss:
                    raise lost_of(topic, one, start)
                lost += missing
                start = max(start, one.first_offset)
                if (one.acked or 0) >= start:
                    ahead[place_of(one.key)] = start
                if whole or missing:
                    ends.setdefault(topic, {})[one.partition_id] = start
                if start < one.next_offset:
                    place = (one.partition_id, start, one.next_offset, one.largest_bytes)
                    ranges.append(Range(topic, one.key, *place))
            if ahead:
                self.refuse_moved(snapshot)
                log.warning("group %r is ahead of the lake, and set back", self.desk.group)
                self.desk.mq.seek(topic, self.desk.group, to=ahead)
        cut = cut_offsets(ranges, self.desk.records_max)
        for found in cut:
            ends.setdefault(found.topic, {})[found.partition_id] = found.end
        left = sum(found.size for found in ranges) - sum(found.size for found in cut)
        return Plan(cut, ends, left, lost)

    def partitions(self, topic: str) -> list[Standing]:
        """The partitions of a topic, with a group that garbage collection waits for."""
        self.await_topic(topic)
        found = list(standing(self.desk.mq, topic, self.desk.group).values())
        if any(one.acked is None for one in found):  # a new key; or the group was dropped
            establish(self.desk.mq, topic, self.desk.group, Bound("earliest"))
            found = list(standing(self.desk.mq, topic, self.desk.group).values())
        return found

    def set_back(self, topic: str, partitions: list[Standing]) -> list[Standing]:
        """Have a group that is ahead of a new lake stand at the beginning: garbage collection must
        wait for the lake, and not for what the group was before.
        """
        if all((one.acked or 0) < one.first_offset for one in partitions):
            return partitions
        log.warning(
            "group %r has read topic %r before, and the lake has nothing of it: it begins anew, "
            "with the oldest message that is there",
            self.desk.group,
            topic,
        )
        self.desk.mq.seek(topic, self.desk.group, to="earliest")
        return list(standing(self.desk.mq, topic, self.desk.group).values())

    def tell_of_gap(self, topic: str, partitions: Sequence[Standing], books: Books) -> None:
        """Say that a topic is older than the lake's knowledge of it."""
        if books.ends and any(one.first_offset > 1 for one in partitions):
            log.warning("topic %r is new to the lake, which has only what is left of it", topic)

    def heal(
        self,
        snapshot: Snapshot,
        topic: str,
        partitions: Sequence[Standing],
        known: Mapping[int, int],
    ) -> None:
        """Move a group that is behind the lake: whoever committed died before it did so, or the
        group was made anew, or sought back. Or the database was: then the lake has other messages.
        """
        behind = {
            one.partition_id: known[one.partition_id]
            for one in partitions
            if one.partition_id in known
            and (one.acked or 0) < min(known[one.partition_id], one.next_offset) - 1
        }
        if behind:
            self.refuse_restored(snapshot, topic, behind)
            self.follow(topic, behind)

    def refuse_restored(self, snapshot: Snapshot, topic: str, ends: Mapping[int, int]) -> None:
        """Raise if the last message that the lake has of a partition is another one than the
        database's at the same offset.
        """
        mq, lasts = self.desk.mq, {(id, end - 1) for id, end in ends.items()}
        there = mq._run(partial(mq._store.positions.ids, sorted(lasts)))  # noqa: SLF001 - its own
        rows = read_snapshot(self.desk.spark, snapshot, names=[topic])
        rows = rows.where(F.col("offset").isin(sorted({offset for _, offset in lasts})))
        for partition, offset, id in rows.select("partition", "offset", "id").collect():
            if (partition, offset) in lasts and there.get(partition, id) != id:
                raise LakeMismatch(
                    f"the lake and the database have different messages of topic {topic!r} at the "
                    f"offset {offset}: the database was restored to an earlier time, and has "
                    f"published since. Archive it to a new lake"
                )


def start_of(topic: str, one: Standing, known: Mapping[int, int] | None, *, whole: bool) -> int:
    """The first offset of a partition that the lake does not have.

    Where the lake knows nothing of it, that is all there is, if the lake is new to the topic; else
    the key is new, and so is all of it.
    """
    end = None if known is None else known.get(one.partition_id)
    if end is None:
        return one.first_offset if whole else 1
    if end > one.next_offset:
        raise LakeMismatch(
            f"the lake has the offsets of topic {topic!r}, key {described(one.key)}, up to "
            f"{end - 1}, and the database only up to {one.next_offset - 1}: it was restored to an "
            f"earlier time. What it publishes now has offsets that the lake has other messages at: "
            f"archive it to a new lake"
        )
    return end


def lost_of(topic: str, one: Standing, start: int) -> DataLoss:
    return DataLoss(
        f"the offsets {start} to {one.first_offset - 1} of topic {topic!r}, key "
        f"{described(one.key)}, were deleted before they were archived: by the topic's retention, "
        f"or because the group was dropped. Go on without them with fail_on_loss=False "
        f"(--allow-loss)"
    )


def archive_ranges(piece: Piece) -> Iterator[Added]:
    """Write the messages of ranges to files: what a task does."""
    names = tuple(MESSAGES.columns)
    batches = read_ranges(piece.place, names, piece.ranges, checked=piece.checked)
    return write_files(piece.root, MESSAGES, batches)
