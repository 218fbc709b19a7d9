"""Settling a delivery: what ack, nack, reject and extend do to a partition's progress. Pure."""

from enum import Enum
from typing import NamedTuple

from rowmq.message import new_id
from rowmq.progress import Progress, Range
from rowmq.store.letters import Burial
from rowmq.subscriber.holding import Token
from rowmq.subscriber.options import Options

__all__ = ["Kind", "Settlement", "apply", "exhausted", "unsettled_error"]


class Kind(Enum):
    """What is done with a delivery."""

    ACK = "ack"
    NACK = "nack"
    REJECT = "reject"
    EXTEND = "extend"


class Settlement(NamedTuple):
    """What somebody wants to be done with a delivery."""

    token: Token
    kind: Kind
    delay: float | None = None
    error: str | None = None


def apply(
    progress: Progress, settlement: Settlement, options: Options, *, now: int
) -> Burial | None:
    """Do it to the progress. A burial, if the message is given up."""
    token = settlement.token
    offset, attempt = token.offset, token.attempt
    if settlement.kind is Kind.ACK:
        progress.ack(offset, offset)
        return None
    if settlement.kind is Kind.EXTEND:
        progress.extend(offset, until=now + micros(settlement.delay or 0.0))
        return None
    if settlement.kind is Kind.NACK:
        delay = retry_delay(settlement.delay, attempt, options)
        if delay is not None:
            progress.wait(offset, until=now + micros(delay), error=settlement.error)
            return None
    known = progress.at(offset)
    last_error = known.error if known is not None else None
    progress.ack(offset, offset)
    if not options.buries:
        return None
    error = settlement.error or last_error or f"{settlement.kind.value}ed without an error"
    return Burial(token.holding.id, token.holding.key, offset, attempt, error, new_id())


def retry_delay(delay: float | None, attempt: int, options: Options) -> float | None:
    """How long a nacked message waits; None if it was its last attempt."""
    backoff = options.backoff.delay(attempt)
    if attempt >= options.max_attempts or backoff is None:
        return None
    return backoff if delay is None else delay


def exhausted(known: Range, options: Options) -> bool:
    """Whether a range that is due has had all its attempts, without being settled."""
    limit = options.backoff.max_attempts
    attempts_max = options.max_attempts if limit is None else min(limit, options.max_attempts)
    return known.attempts >= attempts_max


def unsettled_error(known: Range, options: Options) -> str:
    """What to say of a message whose handlers never said anything."""
    story = (
        f"delivered {known.attempts} times and never settled: each time its subscriber died, lost "
        f"its lease, or let the visibility of {options.visibility:g} s pass"
    )
    return story if known.error is None else f"{story}; the last error before: {known.error}"


def micros(seconds: float) -> int:
    return round(seconds * 1_000_000)
