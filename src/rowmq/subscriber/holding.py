"""A partition that a subscriber owns, as it keeps it in memory, and what to deliver from it next.

Only the owner moves a group's place, so what the owner remembers is what the database holds; every
write is checked against the version it remembers. Where a write's outcome is unknown, or somebody
else may have written, the holding is *doubtful* and must be loaded again before it is used.
"""

import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from rowmq.progress import Progress, Range, State, Stored
from rowmq.store.leases import Change, Counters, Loaded, Work

__all__ = ["Draft", "Holding", "Token", "cut", "is_open", "was_settled"]


RANGES_MAX = 5_000
"""A partition in which so many messages wait, each by itself, gets no new ones for a while."""


class Token:
    """One delivery that was handed out: of what, what it costs, and what became of it."""

    __slots__ = (
        "_free",
        "attempt",
        "bytes",
        "delivery",
        "held",
        "holding",
        "offset",
        "released",
        "tentative",
    )

    def __init__(self, holding: "Holding", offset: int, attempt: int, bytes: int) -> None:
        self.holding = holding
        self.offset = offset
        self.attempt = attempt
        self.bytes = bytes
        self.delivery: Callable[[], Any] = lambda: None
        self.held = False
        """Whether whoever has the delivery keeps it invisible: in strict mode, or in a worker."""
        self._free = [True]
        self.tentative = False
        """Whether it was settled in a transaction of the caller's, which may not be committed."""
        self.released = False
        """Whether that settle was a release: the next delivery then has the same attempt number."""

    def hand_out(self, delivery: Any, *, held: bool) -> None:
        self.delivery = weakref.ref(delivery)
        self.held = held

    @property
    def claimed(self) -> bool:
        """Whether it is settled, or being settled."""
        return not self._free

    def claim(self) -> bool:
        """Take it for settling. False if somebody has: of two threads only one gets it."""
        try:
            self._free.pop()
        except IndexError:
            return False
        return True

    def unclaim(self) -> None:
        """It is not settled after all."""
        self._free = [True]

    def alive(self) -> bool:
        """Whether a handler may still be at work on it."""
        return self.held and self.delivery() is not None

    def __str__(self) -> str:
        return f"key {self.holding.key or None!r}, offset {self.offset}"


class Draft(NamedTuple):
    """A change that is being made to a holding."""

    holding: "Holding"
    progress: Progress

    @property
    def change(self) -> Change:
        holding = self.holding
        after = self.progress.stored()
        return Change(holding.id, holding.epoch, holding.version, holding.baseline, after)


class Holding:
    """An owned partition."""

    def __init__(self, loaded: Loaded, counters: Counters) -> None:
        self.id = loaded.partition_id
        self.key = counters.key
        self.next_offset = counters.next_offset
        self.largest_bytes = counters.largest_bytes
        self.epoch = loaded.epoch
        self.tokens: dict[int, Token] = {}
        self.unanswered: list[Range] = []
        """What is being marked as delivered, until the database has answered."""
        self.doubtful = False
        self.touched = False
        """Whether somebody else has changed our place, and asked us to look."""
        self.draining = False
        self.lost = False
        self.idle_since: float | None = None
        self.restore(loaded)

    def restore(self, loaded: Loaded) -> None:
        """Take over what the database holds."""
        self.version = loaded.version
        self.baseline: Stored = loaded.stored
        self.progress = Progress.restored(loaded.stored)
        self.doubtful = False

    def reload(self, loaded: Loaded) -> list[Token]:
        """Take over what the database holds for a lease that is still ours.

        Gives the tokens that are settled, or void. What was to be delivered when the answer was
        lost has reached nobody.
        """
        self.restore(loaded)
        for unanswered in self.unanswered:  # which stay so until a write is answered
            self.progress.take_back(unanswered)
        gone = [token for token in self.tokens.values() if not is_open(self.progress, token)]
        for token in gone:
            del self.tokens[token.offset]
            if token.tentative and was_settled(self.progress, token):
                token.claim()
        return gone

    def learn(self, work: Work) -> None:
        """Take notice of a partition's counters."""
        self.next_offset = max(self.next_offset, work.next_offset)
        self.largest_bytes = work.largest_bytes

    def draft(self) -> Draft:
        """Begin a change."""
        return Draft(self, self.progress.copy())

    def commit(self, draft: Draft, after: Stored) -> None:
        """A change was written."""
        self.progress = draft.progress
        self.baseline = after
        self.version += 1
        self.unanswered = []
        self.doubtful = False

    @property
    def lively(self) -> bool:
        """Whether there is, or will be, something to deliver."""
        return self.next_offset > self.progress.delivered + 1 or bool(self.progress.ranges)

    # --- what is next ---------------------------------------------------------------------------

    def due(self, now: int) -> Iterator[Range]:
        """What may be delivered again: waited long enough, and no living handler has it."""
        for known in self.progress.due(now):
            yield from self.without_held(known)

    def without_held(self, known: Range) -> Iterator[Range]:
        held = sorted(
            offset
            for offset, token in self.tokens.items()
            if known.first <= offset <= known.last and token.alive()
        )
        first = known.first
        for offset in held:
            if first < offset:
                yield known._replace(first=first, last=offset - 1)
            first = offset + 1
        if first <= known.last:
            yield known._replace(first=first)

    def ready(self, now: int, *, strict: bool) -> list[Range]:
        """What can be delivered now, in order: what is due again, then what is new."""
        ranges = list(self.due(now))
        following = self.progress.delivered + 1
        if following < self.next_offset and len(self.progress.ranges) < RANGES_MAX:
            ranges.append(Range(following, self.next_offset - 1, State.WAITING))
        return self.only_next(ranges, now) if strict else ranges

    def only_next(self, ranges: Iterable[Range], now: int) -> list[Range]:
        """Of what can be delivered, the one message that strict order allows, if it does.

        All before it is acked, and nothing is in flight.
        """
        following = self.progress.acked + 1
        if any(
            known.state is State.DELIVERED and known.until > now for known in self.progress.ranges
        ):
            return []
        if any(token.alive() for token in self.tokens.values()):
            return []
        first = next(iter(ranges), None)
        if first is None or first.first != following:
            return []
        return [first._replace(last=following)]

    def next_due(self, after: int) -> int | None:
        """When the first of those that wait is due, after a time."""
        times = [
            known.until
            for known in self.progress.ranges
            if known.state is not State.ACKED and known.until > after
        ]
        return min(times, default=None)

    def expire(self, now: int) -> list[Token]:
        """Take away the tokens of deliveries that were not settled in time."""
        over = [
            token
            for token in self.tokens.values()
            if not token.alive()
            and (known := self.progress.at(token.offset)) is not None
            and known.until <= now
        ]
        for token in over:
            del self.tokens[token.offset]
        return over


def is_open(progress: Progress, token: Token) -> bool:
    """Whether a delivery can still be settled: it is the last one of its message."""
    known = progress.at(token.offset)
    return (
        known is not None
        and known.state is State.DELIVERED
        and known.attempts == token.attempt
        and token.holding.tokens.get(token.offset, None if token.released else token) is token
    )


def was_settled(progress: Progress, token: Token) -> bool:
    """Whether a delivery is done with, and not just delivered again."""
    known = progress.at(token.offset)
    attempts = token.attempt - token.released
    return known is None or (
        known.state is not State.DELIVERED
        and (known.state is State.ACKED or known.attempts == attempts)
    )


def cut(ranges: Iterable[Range], count: int) -> list[Range]:
    """The first `count` offsets of ranges."""
    kept = []
    for known in ranges:
        if count <= 0:
            break
        last = min(known.last, known.first + count - 1)
        kept.append(known._replace(last=last))
        count -= last - known.first + 1
    return kept
