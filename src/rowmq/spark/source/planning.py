"""Which offsets a micro-batch takes, and how they are shared out to tasks: pure functions.

Limits are shared fairly: every partition may take up to one level, and the level is as high as the
limit allows. So a quiet key is never kept waiting by a busy one.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

__all__ = ["Offsets", "Range", "cut_bytes", "cut_offsets", "share_out"]

Offsets = dict[str, dict[str, int]]
"""The next offset to read, by topic and stored key: what Spark keeps in its checkpoint."""

TASK_RECORDS_MIN = 5_000
"""Fewer messages than this are not worth another task, unless one was asked for."""


class Range(NamedTuple):
    """Offsets of one partition, from the first to before the end.

    `whole` says that it is a loss if one of them is not there.
    """

    topic: str
    key: str
    partition_id: int
    first: int
    end: int
    largest_bytes: int
    whole: bool = True

    @property
    def size(self) -> int:
        return self.end - self.first


def level_of(amounts: Iterable[int], limit: int) -> int:
    """The highest level for which all amounts, none counted above it, are within the limit."""
    left, waiting = limit, sorted(amounts)
    for place, amount in enumerate(waiting):
        share = left // (len(waiting) - place)
        if amount > share:
            return share
        left -= amount
    return max(waiting, default=0)


def cut_offsets(ranges: Sequence[Range], limit: int) -> list[Range]:
    """As many offsets as a limit allows, shared fairly; all of them if it allows that."""
    if sum(found.size for found in ranges) <= limit:
        return list(ranges)
    level = level_of((found.size for found in ranges), limit)
    spare = limit - sum(min(found.size, level) for found in ranges)
    cut = []
    for found in ranges:
        taken = min(found.size, level)
        if taken < found.size and spare > 0:
            taken, spare = taken + 1, spare - 1
        cut.append(found._replace(end=found.first + taken))
    return [found for found in cut if found.size]


def cut_bytes(
    ranges: Sequence[Range], sizes: Mapping[int, Sequence[int]], limit: int
) -> list[Range]:
    """As many offsets as have about so many bytes, and one whose message alone is over its share.

    `sizes` are those of the first messages of each partition, in order; what comes after them is
    taken to be like them.
    """
    known = {found.partition_id: list(sizes.get(found.partition_id, ())) for found in ranges}
    measured = [size for found in known.values() for size in found]
    mean = math.ceil(sum(measured) / len(measured)) if measured else 0
    # What was not measured is taken to be like the others.
    known = {id: found or [mean] for id, found in known.items()}
    totals = {found: expected_bytes(found, known[found.partition_id]) for found in ranges}
    if sum(totals.values()) <= limit:
        return list(ranges)
    level = level_of(totals.values(), limit)
    cut = [fitting(found, known[found.partition_id], level) for found in ranges]
    left_out = [place for place, found in enumerate(cut) if not found.size and ranges[place].size]
    if left_out:
        # One whose next message is over its share has its turn, another one each time.
        chosen = left_out[sum(found.first for found in ranges) % len(left_out)]
        cut[chosen] = ranges[chosen]._replace(end=ranges[chosen].first + 1)
    return [found for found in cut if found.size]


def expected_bytes(found: Range, sizes: Sequence[int]) -> int:
    """How many bytes a range has, if its end is like its beginning."""
    if not sizes:
        return 0
    return math.ceil(sum(sizes) * max(1.0, found.size / len(sizes)))


def fitting(found: Range, sizes: Sequence[int], level: int) -> Range:
    """The beginning of a range that is within a level of bytes."""
    taken = 0
    for size in sizes[: found.size]:
        if size > level:
            return found._replace(end=found.first + taken)
        level -= size
        taken += 1
    mean = max(1.0, sum(sizes) / max(1, len(sizes)))
    more = min(found.size - taken, int(level / mean)) if sizes else found.size
    return found._replace(end=found.first + taken + more)


def share_out(
    ranges: Sequence[Range], *, partitions_min: int | None, cores: int, records_max: int
) -> list[list[Range]]:
    """The ranges of each task: about equally many messages, long ranges split, short ones together.

    There are `partitions_min` tasks, if there are so many messages; without it, as many as there
    are cores to do a fair piece of work each.
    """
    total = sum(found.size for found in ranges)
    if not total:
        return []
    wanted = partitions_min or min(cores, math.ceil(total / TASK_RECORDS_MIN))
    tasks = min(total, max(wanted, math.ceil(total / records_max)))
    shared: list[list[Range]] = [[]]
    done = 0
    for found in ranges:
        rest = found
        while rest.size:
            # The border of the task that is being filled, so that rounding is spread over all.
            border = total * len(shared) // tasks
            taken = min(rest.size, border - done)
            if taken:
                shared[-1].append(rest._replace(end=rest.first + taken))
                rest = rest._replace(first=rest.first + taken)
                done += taken
            if done >= border and done < total:
                shared.append([])
    return shared
