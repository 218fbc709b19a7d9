"""What to do next, decided without a clock or a database: when to try again, and who gets how much.

Retry strategies say how long to wait after a failed attempt, and when to give up; ack policies say
what becomes of a message when its handler is done. The functions
divide partitions among subscribers and messages among partitions. Everything here is a value or a
pure function of its arguments: subscribers who see the same numbers decide the same, so they need
not talk to each other.
"""

import math
import random
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from itertools import islice
from typing import Protocol, runtime_checkable

import msgspec

from rowmq.errors import InvalidOption
from rowmq.quoting import quoted
from rowmq.times import Duration, to_seconds

__all__ = [
    "AckPolicy",
    "Constant",
    "ExponentialBackoff",
    "Linear",
    "NoRetry",
    "RetryStrategy",
    "fair_share",
    "share_out",
    "slice_for",
    "to_shed",
]

TOTAL_SLACK = 1 + 1e-9
"""Three waits of 0.1 are within a limit of 0.3, though as floats their sum is a little more."""


# --- retries ------------------------------------------------------------------------------------


@runtime_checkable
class RetryStrategy(Protocol):
    """How long to wait after a failed attempt, and when to give up."""

    @property
    def max_attempts(self) -> int | None:
        """How many attempts there are in all, the first included; `None` for no limit."""

    def delay(self, attempt: int, *, random: Callable[[], float] = random.random) -> float | None:
        """The seconds to wait after failed attempt number `attempt`, the first being 1; `None` to
        give up. `random` is asked for a number from 0 to 1.
        """


class AckPolicy(Enum):
    """What a worker does with a message when its handler is done. What the handler did itself
    stands.
    """

    ACK_FIRST = "ack_first"
    """Acked before the handler runs: at most once."""
    ACK = "ack"
    """Acked, also after an error."""
    REJECT_ON_ERROR = "reject_on_error"
    """Acked; after an error, given up at once."""
    NACK_ON_ERROR = "nack_on_error"
    """Acked; after an error, tried again as the retry strategy says."""
    MANUAL = "manual"
    """The handler settles it; one that does not has it rejected, and an error is logged."""


class NoRetry(msgspec.Struct, frozen=True):
    """Gives up after the first attempt."""

    @property
    def max_attempts(self) -> int:
        return 1

    def delay(self, attempt: int, *, random: Callable[[], float] = random.random) -> None:  # noqa: ARG002 - as every strategy
        check_attempt(attempt)


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What every strategy that retries has, and how it decides.

    A delay is multiplied by a random factor from `1 - jitter` to 1, so that what failed together
    does not come back together. It gives up after `max_attempts` in all, or when the delays,
    before jitter, would come to more than `max_total_delay`.
    """

    jitter: float = 0.0
    max_attempts: int | None = None
    max_total_delay: Duration | None = None

    def __post_init__(self) -> None:
        check_number(self.jitter, name="jitter", least=0.0, most=1.0)
        check_count(self.max_attempts, name="max_attempts")
        if self.max_total_delay is not None:
            seconds(self.max_total_delay, name="max_total_delay")

    def delay(self, attempt: int, *, random: Callable[[], float] = random.random) -> float | None:
        """The seconds to wait after failed attempt number `attempt`, the first being 1; `None` to
        give up. `random` is asked for a number from 0 to 1.
        """
        check_attempt(attempt)
        if self.max_attempts is not None and attempt >= self.max_attempts:
            return None
        if self.max_total_delay is not None:
            limit = seconds(self.max_total_delay, name="max_total_delay")
            if self._total(attempt) > limit * TOTAL_SLACK:
                return None
        return self._nominal(attempt) * (1 - self.jitter * random())

    def _nominal(self, attempt: int) -> float:
        """The delay after an attempt, before jitter and limits."""
        raise NotImplementedError

    def _total(self, attempt: int) -> float:
        """The sum of the delays up to this attempt's. Not a loop: attempts may be billions."""
        raise NotImplementedError


class Constant(Limits, frozen=True):
    """Waits the same `interval` after every attempt."""

    interval: Duration

    def __post_init__(self) -> None:
        seconds(self.interval, name="interval")
        super().__post_init__()

    def _nominal(self, attempt: int) -> float:  # noqa: ARG002 - the same for all
        return seconds(self.interval, name="interval")

    def _total(self, attempt: int) -> float:
        return attempt * self._nominal(attempt)


class Linear(Limits, frozen=True):
    """Waits `initial` after the first attempt and `step` longer after each, up to `max_delay`."""

    initial: Duration = 1.0
    step: Duration = 1.0
    max_delay: Duration = 30.0

    def __post_init__(self) -> None:
        self._numbers()
        super().__post_init__()

    def _numbers(self) -> tuple[float, float, float]:
        most = seconds(self.max_delay, name="max_delay")
        first = min(seconds(self.initial, name="initial"), most)
        return first, seconds(self.step, name="step"), most

    def _nominal(self, attempt: int) -> float:
        first, step, most = self._numbers()
        return min(first + step * (attempt - 1), most)

    def _total(self, attempt: int) -> float:
        first, step, most = self._numbers()
        if step == 0:
            return attempt * first
        rising = min(attempt, math.floor((most - first) / step) + 1)
        return rising * first + step * (rising * (rising - 1) / 2) + (attempt - rising) * most


class ExponentialBackoff(Limits, frozen=True):
    """Waits `initial` after the first attempt and `multiplier` times as long after each, up to
    `max_delay`.
    """

    initial: Duration = 1.0
    multiplier: float = 2.0
    max_delay: Duration = 30.0

    def __post_init__(self) -> None:
        check_number(self.multiplier, name="multiplier", least=1.0, most=1e6)
        self._numbers()
        super().__post_init__()

    def _numbers(self) -> tuple[float, float, float]:
        most = seconds(self.max_delay, name="max_delay")
        first = min(seconds(self.initial, name="initial"), most)
        # As a float: whole numbers would grow to billions of digits before they are capped.
        return first, float(self.multiplier), most

    def _nominal(self, attempt: int) -> float:
        first, multiplier, most = self._numbers()
        if first == 0:
            return 0.0
        try:
            return min(first * multiplier ** (attempt - 1), most)
        except OverflowError:
            return most

    def _total(self, attempt: int) -> float:
        first, multiplier, most = self._numbers()
        if first == 0 or multiplier == 1:
            return attempt * first
        growth = math.log1p(multiplier - 1)
        rising = min(attempt, math.floor(math.log(most / first) / growth) + 1)
        # A geometric series, written so that it stays exact for a multiplier of nearly one.
        before_last = first * math.expm1((rising - 1) * growth) / (multiplier - 1)
        return before_last + self._nominal(rising) + (attempt - rising) * most


def seconds(duration: Duration, *, name: str) -> float:
    """Seconds of a duration, in whole microseconds as the database counts them: what is left is
    zero, or large enough to divide by.
    """
    return round(to_seconds(duration, name=name), 6)


def check_number(value: float, *, name: str, least: float, most: float) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool) or not least <= value <= most:
        raise InvalidOption(
            f"{name} must be a number from {least:g} to {most:g}, not {quoted(value)}"
        )


def check_count(value: int | None, *, name: str) -> None:
    if value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InvalidOption(f"{name} must be a whole number from 1, or None, not {quoted(value)}")


def check_attempt(attempt: int) -> None:
    if attempt < 1:
        raise ValueError(f"attempts are counted from 1, not {quoted(attempt)}")


# --- fair shares --------------------------------------------------------------------------------


def fair_share(partitions: int, subscribers: int, rank: int) -> int:
    """How many of the partitions the subscriber of this rank, from 0, is to have.

    The shares of all ranks add up to `partitions` and differ by one at most.
    """
    check_rank(rank, subscribers)
    if partitions < 0:
        raise ValueError(f"there cannot be {partitions} partitions")
    each, left = divmod(partitions, subscribers)
    return each + (rank < left)


def to_shed(owned: Iterable[tuple[int, bool]], share: int) -> list[int]:
    """Which partitions to give up so that `share` stay, of pairs of id and whether it is busy.

    Idle ones go first, since a busy one has deliveries that would be handed out again; among
    equals, the highest id.
    """
    if share < 0:
        raise ValueError(f"a share cannot be {share}")
    order = sorted(owned, key=lambda pair: (pair[1], -pair[0]))
    return [id for id, _ in order[: max(0, len(order) - share)]]


def slice_for(candidates: Sequence[int], rank: int, subscribers: int, want: int) -> list[int]:
    """Up to `want` of the candidates, from a place that depends on the rank, going round.

    So subscribers who look at the same moment choose different ones, and few meet at one.
    """
    check_rank(rank, subscribers)
    if want < 0:
        raise ValueError(f"{want} candidates cannot be wanted")
    start = rank * len(candidates) // subscribers
    going_round = [*candidates[start:], *candidates[:start]]
    return going_round[:want]


def check_rank(rank: int, subscribers: int) -> None:
    if not 0 <= rank < subscribers:
        raise ValueError(f"rank {rank} is not one of {subscribers} subscribers, counted from 0")


def share_out(wants: Mapping[int, int], limit: int, first: int) -> dict[int, int]:
    """Divide `limit` messages among partitions, of which each has so many ready.

    Nobody gets more than it has, and all get equal parts; what one does not need goes to the
    others. What cannot be divided, be it all of it, goes one each to ids in rising order,
    beginning after `first` and going round. The last id of the answer is the `first` to give next
    time: then everybody has its turn. Ids that get nothing are left out.
    """
    if limit < 0:
        raise ValueError(f"{limit} messages cannot be shared out")
    level, left = find_level(sorted(want for want in wants.values() if want > 0), limit)
    ids = sorted(id for id, want in wants.items() if want > 0)
    hungry = (id for id in after(ids, first) if wants[id] > level)
    extra = dict.fromkeys(islice(hungry, left), 1)
    last = next(reversed(extra), first)
    parts = {id: min(wants[id], level) + extra.get(id, 0) for id in after(ids, last)}
    return {id: part for id, part in parts.items() if part}


def find_level(wants: list[int], limit: int) -> tuple[int, int]:
    """As water finds its level: what everybody gets who has so much, and how much is left over,
    of a limit that is poured over sorted wants.
    """
    for place, want in enumerate(wants):
        level, left = divmod(limit, len(wants) - place)
        if want > level:
            return level, left
        limit -= want
    return max(wants, default=0), 0


def after(ids: list[int], first: int) -> list[int]:
    """Sorted ids, beginning after `first` and going round."""
    place = bisect_right(ids, first)
    return ids[place:] + ids[:place]
