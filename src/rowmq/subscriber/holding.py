"""A partition that a subscriber owns, as it keeps it in memory, and what to deliver from it next.

Only the owner moves a group's place, so what the owner remembers is what the database holds; every
write is checked against the version it remembers. Where a write's outcome is unknown, or somebody
else may have written, the holding is *doubtful* and must be loaded again before it is used.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import msgspec

from rowmq.progress import Progress, Range, State, Stored
from rowmq.store.keys import named, place_of
from rowmq.store.leases import Change, Counters, Loaded, Work

__all__ = ["Draft", "Holding", "Token", "cut", "is_last", "is_open", "was_settled"]


RANGES_MAX = 5_000
"""A partition in which so many messages wait, each by itself, gets no new ones for a while."""


def nobody() -> None:
    """The delivery of a token that was handed out to nobody."""


class Token(msgspec.Struct, eq=False):
    """One delivery that was handed out: of what, what it costs, and what became of it."""

    holding: "Holding"
    offset: int
    attempt: int
    bytes: int
    held: bool = False
    """Whether whoever has the delivery keeps it invisible: in strict mode, or in a worker."""
    delivery: Callable[[], Any] = nobody
    """A weak reference to the delivery."""
    free: bool = True
    """There until somebody takes it for settling."""
    tentative: bool = False
    """Whether it was settled in a transaction of the caller's, which may not be committed."""
    released: bool = False
    """Whether that settle was a release: the next delivery then has the same attempt number."""
    given_up: bool = False
    """Whether that settle was a reject, or the last nack there could be."""
    reopened: int = 0
    """When its message was given back after it had been done: attempts are counted from then on."""

    @property
    def claimed(self) -> bool:
        """Whether it is settled, or being settled."""
        return not hasattr(self, "free")

    def claim(self) -> bool:
        """Take it for settling. False if somebody has: of two threads only one gets it, since an
        attribute can be deleted once.
        """
        try:
            del self.free
        except AttributeError:
            return False
        return True

    def unclaim(self) -> None:
        """It is not settled after all."""
        self.free = True

    def alive(self) -> bool:
        """Whether a handler may still be at work on it."""
        return self.held and self.delivery() is not None

    def __str__(self) -> str:
        return f"key {named(self.holding.place)}, offset {self.offset}"

    def __repr__(self) -> str:  # the one that is made reads `free`, which may not be there
        return f"<Token of {self}, {'claimed' if self.claimed else 'free'}>"


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
        self.place = place_of(counters.key)
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
        first = known.first
        for offset in sorted(token.offset for token in self.tokens_of(known) if token.alive()):
            if first < offset:
                yield known._replace(first=first, last=offset - 1)
            first = offset + 1
        if first <= known.last:
            yield known._replace(first=first)

    def tokens_of(self, known: Range) -> list[Token]:
        """The tokens of a range's offsets, looked for where there are fewer."""
        tokens = self.tokens
        if known.size > len(tokens):
            return [t for t in tokens.values() if known.first <= t.offset <= known.last]
        offsets = range(known.first, known.last + 1)
        return [tokens[offset] for offset in offsets if offset in tokens]

    def ready(self, now: int, *, strict: bool) -> list[Range]:
        """What can be delivered now, in order: what is due again, then what is new."""
        ranges = list(self.due(now)) if self.progress.ranges else []
        following = self.progress.delivered + 1
        if following < self.next_offset and len(self.progress.ranges) < RANGES_MAX:
            ranges.append(Range(following, self.next_offset - 1, State.WAITING))
        return self.only_next(ranges, now) if strict else ranges

    def only_next(self, ranges: Iterable[Range], now: int) -> list[Range]:
        """Of what can be delivered, the one message that strict order allows, if it does.

        All before it is acked, and nothing is in flight.
        """
        following = self.progress.acked + 1
        if self.progress.in_flight(now):
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
            for known in self.progress.ranges
            if known.until <= now
            for token in self.tokens_of(known)
            if not token.alive()
        ]
        for token in over:
            del self.tokens[token.offset]
        return over


def is_open(progress: Progress, token: Token) -> bool:
    """Whether a delivery can still be settled: it is the last one of its message."""
    return is_last(progress.at(token.offset), token)


def is_last(known: Range | None, token: Token) -> bool:
    """Whether what is known of a message says that this delivery of it is the last one."""
    return (
        known is not None
        and known.state is State.DELIVERED
        and (known.attempts, known.reopened) == (token.attempt, token.reopened)
        and token.holding.tokens.get(token.offset, None if token.released else token) is token
    )


def was_settled(progress: Progress, token: Token) -> bool:
    """Whether a delivery is done with, and not just delivered again."""
    known = progress.at(token.offset)
    attempts = token.attempt - token.released
    return known is None or (
        known.state is not State.DELIVERED
        and (
            known.state is State.ACKED
            or (known.attempts, known.reopened) == (attempts, token.reopened)
        )
    )


def cut(ranges: Iterable[Range], count: int) -> list[Range]:
    """The first `count` offsets of ranges."""
    kept = []
    for known in ranges:
        if count <= 0:
            break
        size = known.size
        kept.append(known if size <= count else known._replace(last=known.first + count - 1))
        count -= size
    return kept
