"""What settles a claimed job: its place in a lock, which can be used once."""

import threading
from collections.abc import Sequence
from typing import Any
from weakref import WeakValueDictionary

import msgspec

from rowmq.policy import RetryStrategy
from rowmq.queue.claiming import Claimed
from rowmq.store.settles import Kind, Settle, refused
from rowmq.times import to_seconds

__all__ = ["Bearer", "Ticket", "Tickets", "Wanted", "conclude", "give_up", "take_all", "wanted_of"]


class Ticket(msgspec.Struct, eq=False, gc=False):
    """The claim of one job."""

    claimed: Claimed
    retry: RetryStrategy
    free: bool = True
    """There until somebody takes it for settling."""
    tentative: bool = False
    """Whether it was settled, and nobody knows if that was committed."""

    def __repr__(self) -> str:  # the one that is made reads `free`, which may not be there
        return f"<Ticket of lock {self.claimed.token}, {'taken' if self.taken else 'free'}>"

    @property
    def taken(self) -> bool:
        """Whether the job is settled, or being settled."""
        return not hasattr(self, "free")

    def take(self) -> bool:
        """Take it for settling. False if somebody has: of two threads only one gets it, since an
        attribute can be deleted once.
        """
        try:
            del self.free
        except AttributeError:
            return False
        return True

    def give_back(self) -> None:
        """It is not settled after all."""
        self.free = True

    def settle(self, kind: Kind, *, delay_us: int = 0, error: str | None = None) -> Settle:
        """What is to be done with the job, as the database is asked for it."""
        claimed = self.claimed
        job, lane = claimed.job, claimed.lane
        return Settle(
            kind,
            claimed.token,
            job.position,
            lane.queue,
            lane.queue_id,
            job.entry,
            lane.kind,
            job.key,
            job.ordering_key,
            delay_us,
            error,
        )


class Bearer:
    """Has a ticket, as a job has its own: what is remembered of it ends when nobody has it."""

    __slots__ = ("__weakref__", "_ticket")

    def __init__(self, ticket: Ticket) -> None:
        self._ticket: Ticket | None = ticket


class Tickets:
    """Who has the tickets that receipts stand for: a job and its receipts come to the same ticket,
    so that of two who settle at the same time only one does.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bearers: WeakValueDictionary[tuple[int, int], Any] = WeakValueDictionary()

    def get(self, token: int, position: int) -> Any:
        """Who has the ticket of a place in a lock, if anybody does."""
        with self._lock:
            return self._bearers.get((token, position))

    def know(self, bearer: Any) -> Any:
        """Who has the ticket of this one's place in its lock: this one, unless there is another."""
        claimed = bearer._ticket.claimed  # noqa: SLF001 - its own package
        with self._lock:
            return self._bearers.setdefault((claimed.token, claimed.job.position), bearer)


class Wanted(msgspec.Struct, frozen=True, gc=False):
    """A ticket, and what somebody wants to be done with it."""

    ticket: Ticket
    settle: Settle

    @property
    def doubtful(self) -> bool:
        """Whether this ticket may have settled its job: in a transaction whose end nobody knows,
        or, while its lock is being extended, just now.
        """
        ticket = self.ticket
        return ticket.tentative or (self.settle.kind is Kind.EXTEND and ticket.taken)

    @property
    def changes_order(self) -> bool:
        """Whether afterwards a job can be claimed that could not be before."""
        settle = self.settle
        given_back = settle.kind is Kind.NACK or settle.kind is Kind.RELEASE
        return given_back or settle.ordering_key is not None or bool(settle.entry.permit)


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
        ticket, settle = item.ticket, item.settle
        extends = settle.kind is Kind.EXTEND
        if extends and not ticket.taken:
            continue  # whoever settles it meanwhile is not to be kept from it
        if extends or not ticket.take():
            for other in taken:
                other.give_back()
            raise refused(settle)
        taken.append(ticket)


def conclude(
    wanted: Sequence[Wanted], outcomes: Sequence[Exception | None], *, committed: bool
) -> None:
    """Give back the tickets of jobs that are not settled after all: extended, or refused."""
    for item, outcome in zip(wanted, outcomes, strict=True):
        ticket = item.ticket
        if item.settle.kind is Kind.EXTEND:
            continue
        ticket.tentative = ticket.tentative or (outcome is None and not committed)
        if outcome is not None or not committed:
            ticket.give_back()


def give_up(wanted: Sequence[Wanted], *, doubted: bool) -> None:
    """Give back the tickets of jobs that are not settled; or of which nobody knows whether they
    are: whoever tries again will be told.
    """
    for item in wanted:
        if item.settle.kind is not Kind.EXTEND:
            item.ticket.tentative = item.ticket.tentative or doubted
            item.ticket.give_back()
