"""What settles a claimed job: its place in a lock, which can be used once."""

from collections.abc import Sequence
from typing import NamedTuple

from rowmq.policy import RetryStrategy
from rowmq.queue.claiming import Claimed
from rowmq.store.settles import Kind, Settle, refused
from rowmq.times import to_seconds

__all__ = ["Ticket", "Wanted", "conclude", "give_up", "take_all", "wanted_of"]


class Ticket:
    """The claim of one job."""

    __slots__ = ("_free", "claimed", "retry", "tentative")

    def __init__(self, claimed: Claimed, retry: RetryStrategy) -> None:
        self.claimed = claimed
        self.retry = retry
        self.tentative = False
        """Whether it was settled in a transaction of which nobody knows if it was committed."""
        self._free = [True]

    @property
    def taken(self) -> bool:
        """Whether the job is settled, or being settled."""
        return not self._free

    def take(self) -> bool:
        """Take it for settling. False if somebody has: of two threads only one gets it."""
        try:
            self._free.pop()
        except IndexError:
            return False
        return True

    def give_back(self) -> None:
        """It is not settled after all."""
        self._free = [True]

    def settle(self, kind: Kind, *, delay_us: int = 0, error: str | None = None) -> Settle:
        """What is to be done with the job, as the database is asked for it."""
        job, lane, token = self.claimed
        return Settle(
            kind=kind,
            token=token,
            position=job.position,
            queue=lane.queue,
            queue_id=lane.queue_id,
            entry=job.entry,
            job_kind=lane.kind,
            key=job.key,
            ordering_key=job.ordering_key,
            delay_us=delay_us,
            error=error,
        )


class Wanted(NamedTuple):
    """A ticket, and what somebody wants to be done with it."""

    ticket: Ticket
    settle: Settle

    @property
    def changes_order(self) -> bool:
        """Whether afterwards a job can be claimed that could not be before."""
        given_back = self.settle.kind in (Kind.NACK, Kind.RELEASE)
        return given_back or self.settle.ordering_key is not None or bool(self.settle.entry.permit)


def wanted_of(
    ticket: Ticket, kind: Kind, *, delay: float | None = None, error: str | None = None
) -> Wanted:
    """What a settle comes to: a nack may be the last one, by the retry strategy."""
    if kind is Kind.NACK:
        own = ticket.retry.delay(ticket.claimed.job.entry.attempts + 1)
        if own is not None:
            own = to_seconds(own, name=f"the delay of {type(ticket.retry).__name__}")
        if own is None:
            kind, delay = Kind.REJECT, None
        elif delay is None:
            delay = own
    micros = 0 if delay is None else round(delay * 1_000_000)
    return Wanted(ticket, ticket.settle(kind, delay_us=micros, error=error))


def take_all(wanted: Sequence[Wanted]) -> None:
    """Take tickets for settling, all or none."""
    taken: list[Ticket] = []
    for item in wanted:
        if item.settle.kind is Kind.EXTEND and not item.ticket.taken:
            continue  # whoever settles it meanwhile is not to be kept from it
        if not item.ticket.take():
            for ticket in taken:
                ticket.give_back()
            raise refused(item.settle)
        taken.append(item.ticket)


def conclude(
    wanted: Sequence[Wanted], outcomes: Sequence[Exception | None], *, committed: bool
) -> list[Exception]:
    """Give back the tickets of jobs that are not settled after all: extended, or refused. The
    errors to be told.
    """
    errors: list[Exception] = []
    for (ticket, settle), outcome in zip(wanted, outcomes, strict=True):
        if outcome is not None:
            errors.append(outcome)
        if settle.kind is Kind.EXTEND:
            continue
        ticket.tentative = ticket.tentative or (outcome is None and not committed)
        if outcome is not None or not committed:
            ticket.give_back()
    return errors


def give_up(wanted: Sequence[Wanted]) -> None:
    """Give back the tickets of jobs of which nobody knows whether they are settled: whoever tries
    again will be told.
    """
    for ticket, settle in wanted:
        if settle.kind is not Kind.EXTEND:
            ticket.give_back()
