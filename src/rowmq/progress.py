"""How far a group has come in one partition: a watermark, and ranges of offsets above it.

Everything at or below `acked` is done. Everything above `delivered` was never delivered. What is in
between is covered by ranges, each a run of offsets in one state:

                 deliver              ack
    undelivered ────────► DELIVERED ───────► ACKED ──► done, once all before it is
                           │     ▲
                      nack ▼     │ deliver again
                           WAITING

A batch that is delivered and acked whole is one range, and then none. A nack splits a range; equal
neighbours merge. The newest delivered range, the *tail*, is stored in the same row as the
watermark, so that the common case writes one row and no other.

Nothing here does I/O or reads a clock: times are the database's, in microseconds.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import NamedTuple

__all__ = ["Progress", "Range", "State", "Stored"]


class State(IntEnum):
    """What happened to a range of offsets."""

    DELIVERED = 1
    WAITING = 2
    ACKED = 3


class Range(NamedTuple):
    """A run of offsets in one state, both ends included.

    `until` is when a delivered or waiting range may be delivered (again); `attempts` is how often
    it was delivered; `error` is what its last attempt failed with. `reopened` is when it was given
    back after it had been done, 0 if it never was: its attempts are counted anew from then on.
    """

    first: int
    last: int
    state: State
    until: int = 0
    attempts: int = 0
    error: str | None = None
    reopened: int = 0

    @property
    def size(self) -> int:
        return self.last - self.first + 1

    def like(self, other: "Range") -> bool:
        """Whether two ranges differ in nothing but their place."""
        return self[2:] == other[2:]


class Stored(NamedTuple):
    """A progress as the database holds it: the columns of its row, and the other ranges."""

    acked: int
    delivered: int
    tail_first: int
    tail_until: int
    tail_attempts: int
    ranges: tuple[Range, ...] = ()

    def removed_since(self, before: "Stored") -> list[int]:
        """The first offsets of the rows that were there and are not any more."""
        if not before.ranges:
            return []
        mine = {kept.first for kept in self.ranges}
        return [gone.first for gone in before.ranges if gone.first not in mine]

    def changed_since(self, before: "Stored") -> list[Range]:
        """The rows that are new or different."""
        if not self.ranges:
            return []
        known = set(before.ranges)
        return [kept for kept in self.ranges if kept not in known]


class Progress:
    """The progress of one group in one partition. Ranges cover all from `acked` to `delivered`."""

    __slots__ = ("acked", "delivered", "ranges")

    def __init__(self, acked: int = 0, delivered: int | None = None) -> None:
        self.acked = acked
        self.delivered = acked if delivered is None else delivered
        self.ranges: list[Range] = []

    # --- as it is stored ------------------------------------------------------------------------

    @classmethod
    def restored(cls, stored: Stored) -> "Progress":
        """The progress of what the database holds.

        An offset that should be covered and is not was never settled: it waits to be delivered.
        """
        progress = cls(stored.acked, max(stored.acked, stored.delivered))
        found = list(stored.ranges)
        if stored.tail_first <= stored.delivered:
            tail = (stored.tail_first, stored.delivered, State.DELIVERED)
            found.append(Range(*tail, stored.tail_until, stored.tail_attempts))
        following = progress.acked + 1
        for known in sorted(found):
            first, last = max(known.first, following), min(known.last, progress.delivered)
            if first > last:
                continue
            if first > following:
                progress.ranges.append(Range(following, first - 1, State.WAITING))
            progress.ranges.append(known._replace(first=first, last=last))
            following = last + 1
        if following <= progress.delivered:
            progress.ranges.append(Range(following, progress.delivered, State.WAITING))
        progress.tidy()
        return progress

    def stored(self) -> Stored:
        """What the database is to hold."""
        tail = self.ranges[-1] if self.ranges else None
        told = tail is not None and (tail.error is not None or tail.reopened)
        if tail is None or tail.state is not State.DELIVERED or told:
            end = (self.delivered + 1, 0, 0)
            return Stored(self.acked, self.delivered, *end, tuple(self.ranges))
        kept = (tail.first, tail.until, tail.attempts)
        return Stored(self.acked, self.delivered, *kept, tuple(self.ranges[:-1]))

    def copy(self) -> "Progress":
        other = Progress(self.acked, self.delivered)
        other.ranges = self.ranges.copy()
        return other

    # --- what it knows --------------------------------------------------------------------------

    def at(self, offset: int) -> Range | None:
        """The range that covers an offset; None if it is done, or was never delivered."""
        place = bisect_right(self.ranges, offset, key=lambda known: known.first) - 1
        if place < 0 or self.ranges[place].last < offset:
            return None
        return self.ranges[place]

    def due(self, now: int) -> Iterator[Range]:
        """The ranges that may be delivered again, in order."""
        for known in self.ranges:
            if known.state is not State.ACKED and known.until <= now:
                yield known

    def in_flight(self, now: int) -> bool:
        """Whether something is delivered, and nobody else may have it yet."""
        return any(known.state is State.DELIVERED and known.until > now for known in self.ranges)

    def outstanding(self) -> int:
        """How many offsets were delivered and are not acked."""
        return sum(known.size for known in self.ranges if known.state is not State.ACKED)

    # --- what happens to it ---------------------------------------------------------------------

    def deliver(self, first: int, last: int, *, until: int) -> None:
        """Count an attempt for offsets that are due, or follow those delivered so far."""
        again = self._pieces(first, last) if first <= self.delivered else ()
        for known in again:
            attempts = known.attempts + 1
            self.put(known._replace(state=State.DELIVERED, until=until, attempts=attempts))
        if last > self.delivered:
            start, self.delivered = max(first, self.delivered + 1), last
            self.put(Range(start, last, State.DELIVERED, until, 1))

    def ack(self, first: int, last: int) -> None:
        """Offsets are done."""
        self.put(Range(first, last, State.ACKED))

    def ack_all(self, offsets: Iterable[int]) -> None:
        """The same for many, in any order."""
        first = last = 0
        for offset in sorted(offsets):
            if offset != last + 1 and last:
                self.ack(first, last)
            if offset != last + 1 or not last:
                first = offset
            last = offset
        if last:
            self.ack(first, last)

    def wait(self, offset: int, *, until: int, error: str | None) -> None:
        """An offset is to be delivered again, not before a time."""
        for known in self._pieces(offset, offset):
            self.put(known._replace(state=State.WAITING, until=until, error=error or known.error))

    def extend(self, offset: int, *, until: int) -> None:
        """A delivered offset stays invisible until another time."""
        for known in self._pieces(offset, offset):
            self.put(known._replace(until=until))

    def release(self, offset: int) -> None:
        """A delivered offset was not tried: it is due at once, and that was no attempt."""
        for known in self._pieces(offset, offset):
            if known.state is State.DELIVERED:
                attempts = known.attempts - 1
                self.put(known._replace(state=State.WAITING, until=0, attempts=attempts))

    def give_back(self) -> None:
        """What was delivered is due at once: whoever had it cannot settle it any more."""
        for known in [known for known in self.ranges if known.state is State.DELIVERED]:
            self.put(known._replace(state=State.WAITING, until=0))

    def take_back(self, delivered: Range) -> None:
        """A delivery never reached anybody: it is due at once, and that was no attempt.

        It is one of the offsets in a range as it was before; what is not as that delivery left it
        has been settled, or delivered again, and stays as it is.
        """
        for known in self._pieces(delivered.first, delivered.last):
            same = known.reopened == delivered.reopened
            if known.state is State.DELIVERED and same and known.attempts == delivered.attempts + 1:
                back = known._replace(state=State.WAITING, until=0, attempts=delivered.attempts)
                self.put(back)

    def reopen(self, offset: int, *, at: int = 0) -> None:
        """An offset that was done is to be delivered again, as if for the first time; `at` is the
        time, by which its deliveries are told from those before it.
        """
        if offset <= self.acked:
            done = Range(offset, self.acked, State.ACKED)
            self.ranges.insert(0, done)
            self.acked = offset - 1
        if offset <= self.delivered:
            self.put(Range(offset, offset, State.WAITING, reopened=at))

    def skip_to(self, offset: int, *, since: int | None = None) -> int:
        """All before an offset is let go of; but what was delivered before another one, `since`,
        and is not done, stays as it is. How many of those let go of were not acked.
        """
        if offset <= self.acked + 1:
            return 0
        kept = self._open_before(self.acked + 1 if since is None else since)
        done = sum(
            min(known.last, offset - 1) - known.first + 1
            for known in self.ranges
            if known.state is State.ACKED and known.first < offset
        )
        lost = offset - 1 - self.acked - done
        self.acked = offset - 1
        self.delivered = max(self.delivered, self.acked)
        ranges = [known for known in self.ranges if known.last >= offset]
        self.ranges = [known._replace(first=max(known.first, offset)) for known in ranges]
        self.tidy()
        if kept:
            first = kept[0].first
            self.ranges.insert(0, Range(first, self.acked, State.ACKED))
            self.acked = first - 1
        for known in kept:
            self.put(known)
        return lost - sum(known.size for known in kept)

    def _open_before(self, offset: int) -> list[Range]:
        """What is not done of all that was delivered before an offset."""
        return [
            known
            for known in self._pieces(self.acked + 1, offset - 1)
            if known.state is not State.ACKED
        ]

    # --- ranges ---------------------------------------------------------------------------------

    def _pieces(self, first: int, last: int) -> list[Range]:
        """The ranges between two offsets, cut to fit."""
        return [
            known._replace(first=max(known.first, first), last=min(known.last, last))
            for known in self.ranges
            if known.first <= last and known.last >= first
        ]

    def put(self, new: Range) -> None:
        """Put a range in the place of whatever covers its offsets."""
        ranges = self.ranges
        if not ranges or ranges[-1].last < new.first:  # as most that are delivered
            self.ranges[-1:] = merged([*ranges[-1:], new])
        elif new.first <= ranges[0].first and ranges[-1].last <= new.last:  # as most acks
            self.ranges = [new]
        else:
            self._put_between(new)
        self._advance()

    def _put_between(self, new: Range) -> None:
        place = bisect_right(self.ranges, new.first, key=lambda known: known.first) - 1
        place = max(place, 0)
        if self.ranges and self.ranges[place].last < new.first:
            place += 1
        end = place
        pieces: list[Range] = []
        while end < len(self.ranges) and self.ranges[end].first <= new.last:
            old = self.ranges[end]
            if old.first < new.first:
                pieces.append(old._replace(last=new.first - 1))
            if old.last > new.last:
                pieces.append(old._replace(first=new.last + 1))
            end += 1
        pieces.append(new)
        pieces.sort()
        # With the neighbours, since these may be equal now.
        start, stop = max(0, place - 1), min(len(self.ranges), end + 1)
        around = [*self.ranges[start:place], *pieces, *self.ranges[end:stop]]
        self.ranges[start:stop] = merged(around)

    def tidy(self) -> None:
        """Merge equal neighbours, and raise the watermark."""
        self.ranges = merged(self.ranges)
        self._advance()

    def _advance(self) -> None:
        while self.ranges and self.ranges[0].state is State.ACKED:
            self.acked = self.ranges.pop(0).last


def merged(ranges: Iterable[Range]) -> list[Range]:
    """Ranges in order, equal neighbours made one."""
    result: list[Range] = []
    for known in ranges:
        if result and result[-1].last + 1 == known.first and result[-1].like(known):
            result[-1] = result[-1]._replace(last=known.last)
        else:
            result.append(known)
    return result
