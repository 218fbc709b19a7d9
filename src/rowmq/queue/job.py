"""A job: what was put, as it stood when it was looked at; with a lock, if it was claimed."""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, ClassVar, Generic, TypeVar

import msgspec

from rowmq.codec import beginning_of, decode, decode_headers, error_text
from rowmq.errors import InvalidInput, InvalidOption, NotClaimed, PayloadMismatch
from rowmq.message import DeliveryType, State
from rowmq.queue.claiming import Claimed
from rowmq.queue.ticket import Ticket, Wanted, wanted_of
from rowmq.queue.view import View
from rowmq.quoting import quoted
from rowmq.store.archive import Record
from rowmq.store.postings import Posting
from rowmq.store.settles import Kind
from rowmq.times import Duration, from_micros, to_seconds

__all__ = [
    "AnyJob",
    "AsyncJob",
    "ClaimedFacts",
    "Facts",
    "Job",
    "claimed_facts",
    "posted_facts",
    "recorded_facts",
    "tickets_of",
]

T = TypeVar("T")

HELD = "a held job is settled by leaving its block: it is acked, or, if the block raises, failed"
UNCLAIMED = (
    "this job was not claimed: only what try_poll(), try_poll_many() and poll() gave can be settled"
)


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """All that a job shows."""

    id: int
    queue: str
    kind: str
    payload: Any
    key: str | None
    ordering_key: str | None
    headers: Mapping[str, str]
    priority: int
    created_us: int | None
    """Times are in microseconds since 1970, until somebody asks for them."""
    due_us: int
    state: State
    attempts: int = 0
    deliveries: int = 0
    error: str | None = None
    finished_us: int | None = None


class ClaimedFacts(msgspec.Struct, frozen=True):
    """The same, of a job that was claimed: most handlers ask for little but the payload."""

    claimed: Claimed
    payload: Any

    error: ClassVar[None] = None
    finished_us: ClassVar[None] = None
    state: ClassVar[State] = State.PROCESSING

    @property
    def id(self) -> int:
        return self.claimed.job.entry.job_id

    @property
    def queue(self) -> str:
        return self.claimed.lane.queue

    @property
    def kind(self) -> str:
        return self.claimed.lane.kind

    @property
    def key(self) -> str | None:
        return self.claimed.job.key

    @property
    def ordering_key(self) -> str | None:
        return self.claimed.job.ordering_key

    @property
    def headers(self) -> Mapping[str, str]:
        return headers_of(self.claimed.job.headers)[0]

    @property
    def priority(self) -> int:
        return -self.claimed.lane.precedence

    @property
    def created_us(self) -> int | None:
        return self.claimed.job.created_at

    @property
    def due_us(self) -> int:
        return self.claimed.job.entry.due_at

    @property
    def attempts(self) -> int:
        return self.claimed.job.entry.attempts

    @property
    def deliveries(self) -> int:
        return self.claimed.job.entry.deliveries


class AnyJob(Generic[T]):
    """What jobs of sync and async queues share."""

    __slots__ = ("__weakref__", "_facts", "_settle", "_ticket", "_tx")

    def __init__(
        self,
        facts: Facts | ClaimedFacts,
        settle: Callable[..., Any],
        ticket: Ticket | None = None,
        tx: Any = None,
    ) -> None:
        self._facts = facts
        self._settle = settle
        self._ticket = ticket
        self._tx = tx

    @property
    def id(self) -> int:
        """Its number, which no other job ever has."""
        return self._facts.id

    @property
    def queue(self) -> str:
        """The queue it is in."""
        return self._facts.queue

    @property
    def kind(self) -> str:
        """The name of its payload's type; empty without one."""
        return self._facts.kind

    @property
    def payload(self) -> T:
        """What was put."""
        payload: T = self._facts.payload
        return payload

    @property
    def key(self) -> str | None:
        """What it can be updated, read and dropped by."""
        return self._facts.key

    @property
    def ordering_key(self) -> str | None:
        """The line it is in: one job of it at a time, in order."""
        return self._facts.ordering_key

    @property
    def headers(self) -> Mapping[str, str]:
        """What was put beside the payload."""
        return self._facts.headers

    @property
    def priority(self) -> int:
        """Higher is claimed first."""
        return self._facts.priority

    @property
    def created_at(self) -> datetime | None:
        """When it was put."""
        return moment_of(self._facts.created_us)

    @property
    def due_at(self) -> datetime:
        """When it is, or was, to be claimed."""
        return from_micros(self._facts.due_us)

    @property
    def state(self) -> State:
        """What it was when it was looked at."""
        return self._facts.state

    @property
    def attempts(self) -> int:
        """How many attempts have ended: acked, nacked or rejected."""
        return self._facts.attempts

    @property
    def deliveries(self) -> int:
        """How often it was claimed, this time included, if it was."""
        return self._facts.deliveries

    @property
    def attempt(self) -> int:
        """Which attempt this one is, or would be next, the first being 1; of a finished job, which
        one was the last.
        """
        done = self._facts.finished_us is not None
        return max(self._facts.attempts, 1) if done else self._facts.attempts + 1

    @property
    def delivery_type(self) -> DeliveryType:
        """Whether it was claimed for the first time."""
        first = self._facts.deliveries <= 1
        return DeliveryType.FIRST_DELIVERY if first else DeliveryType.REDELIVERY

    @property
    def error(self) -> str | None:
        """Why it failed, if it did."""
        return self._facts.error

    @property
    def finished_at(self) -> datetime | None:
        """When it was completed, or failed."""
        return moment_of(self._facts.finished_us)

    @property
    def settled(self) -> bool:
        """Whether it was acked, nacked, rejected or released."""
        return self._ticket is not None and self._ticket.taken

    @property
    def tx(self) -> Any:
        """The transaction that holds it, in a block of `hold()`."""
        if self._tx is None:
            raise NotClaimed("this job is not held: job.tx is for `with queue.hold() as job:`")
        return self._tx

    def __repr__(self) -> str:
        key = "" if self.key is None else f", key={self.key!r}"
        return (
            f"<{type(self).__name__} {self.id} of queue {self.queue!r}{key}, "
            f"{self.state.value}, attempt={self.attempt}>"
        )

    def _as(
        self, kind: Kind, *, delay: Duration | None = None, error: str | BaseException | None = None
    ) -> list[Wanted]:
        if self._ticket is None:
            raise NotClaimed(UNCLAIMED if self._tx is None else HELD)
        seconds = None if delay is None else to_seconds(delay, name="delay")
        return [wanted_of(self._ticket, kind, delay=seconds, error=error_text(error))]

    def _ack_wanted(self) -> Wanted:
        if self._ticket is None:
            raise NotClaimed(UNCLAIMED if self._tx is None else HELD)
        return Wanted(self._ticket, self._ticket.settle(Kind.ACK))


class Job(AnyJob[T]):
    """A job of a sync queue.

    One that was claimed is settled once: `ack`, `nack`, `reject` or `release`. Each returns when
    that is durable, or, with `connection=`, is part of the caller's transaction. A second settle
    raises `AlreadySettled`; one after the lock was lost, or after the job was updated, dropped or
    given up, raises `StaleLease` and changes nothing. A lock is of all the jobs that were claimed
    with it: to extend one extends it for all.
    """

    __slots__ = ()

    def ack(self, *, connection: Any = None) -> None:
        """The job is done."""
        self._settle(self._as(Kind.ACK), connection)

    def nack(
        self,
        *,
        delay: Duration | None = None,
        error: str | BaseException | None = None,
        connection: Any = None,
    ) -> None:
        """Try it again after a delay, or as `retry` says; after its last attempt, it has failed."""
        self._settle(self._as(Kind.NACK, delay=delay, error=error), connection)

    def reject(self, *, error: str | BaseException | None = None, connection: Any = None) -> None:
        """Give it up: it has failed."""
        self._settle(self._as(Kind.REJECT, error=error), connection)

    def release(self, *, connection: Any = None) -> None:
        """Give it back as if it had never been claimed: it costs neither attempt nor delivery."""
        self._settle(self._as(Kind.RELEASE), connection)

    def extend(self, seconds: Duration, *, connection: Any = None) -> None:
        """Keep the lock for at least so long from now on."""
        self._settle(self._as(Kind.EXTEND, delay=check_extension(seconds)), connection)


class AsyncJob(AnyJob[T]):
    """A job of an async queue: see `Job`."""

    __slots__ = ()

    async def ack(self, *, connection: Any = None) -> None:
        """The job is done."""
        await self._settle(self._as(Kind.ACK), connection)

    async def nack(
        self,
        *,
        delay: Duration | None = None,
        error: str | BaseException | None = None,
        connection: Any = None,
    ) -> None:
        """Try it again after a delay, or as `retry` says; after its last attempt, it has failed."""
        await self._settle(self._as(Kind.NACK, delay=delay, error=error), connection)

    async def reject(
        self, *, error: str | BaseException | None = None, connection: Any = None
    ) -> None:
        """Give it up: it has failed."""
        await self._settle(self._as(Kind.REJECT, error=error), connection)

    async def release(self, *, connection: Any = None) -> None:
        """Give it back as if it had never been claimed: it costs neither attempt nor delivery."""
        await self._settle(self._as(Kind.RELEASE), connection)

    async def extend(self, seconds: Duration, *, connection: Any = None) -> None:
        """Keep the lock for at least so long from now on."""
        await self._settle(self._as(Kind.EXTEND, delay=check_extension(seconds)), connection)


def check_extension(seconds: Duration) -> float:
    duration = to_seconds(seconds, name="the seconds of extend()")
    if duration < 0.001:
        raise InvalidOption(
            "extend takes the seconds from now on, a millisecond or more; release() gives a job "
            "back at once"
        )
    return duration


def tickets_of(jobs: Iterable[AnyJob[Any]]) -> list[Wanted]:
    """Many acks, each job once."""
    if isinstance(jobs, AnyJob):
        raise InvalidInput("ack takes a list of jobs; for a single one call job.ack()")
    if not isinstance(jobs, Iterable):
        raise InvalidInput(f"ack takes a list of jobs, not {quoted(jobs)}")
    wanted: dict[int, Wanted] = {}
    for job in jobs:
        if not isinstance(job, AnyJob):
            raise InvalidInput(f"ack takes jobs that were polled, not {quoted(job)}")
        if id(job) not in wanted:
            wanted[id(job)] = job._ack_wanted()  # noqa: SLF001 - its own module
    return list(wanted.values())


# --- what a job shows, from where it comes -------------------------------------------------------


def posted_facts(posting: Posting, payload: Any, *, id: int, due_at: int) -> Facts:
    """Of a job that was just put."""
    return Facts(
        id=id,
        queue=posting.lane.queue,
        kind=posting.lane.kind,
        payload=payload,
        key=posting.key,
        ordering_key=posting.ordering_key,
        headers=decode_headers(posting.headers),
        priority=-posting.lane.precedence,
        created_us=None,
        due_us=due_at,
        state=State.PENDING,
    )


def claimed_facts(claimed: Claimed, view: View) -> tuple[ClaimedFacts, str | None]:
    """Of a job that was claimed, and why its payload cannot be read, if it cannot."""
    job = claimed.job
    payload, error = payload_of(job.payload, job.encoding, view.type)
    if error is None and job.headers is not None:
        error = headers_of(job.headers)[1]
    return ClaimedFacts(claimed, payload), error


def recorded_facts(record: Record, view: View) -> Facts:
    """Of a job that was looked at; its bytes, if its payload does not parse as the type."""
    return Facts(
        id=record.id,
        queue=view.queue,
        kind=record.kind,
        payload=recorded_payload(record, view),
        key=record.key,
        ordering_key=record.ordering_key,
        headers=headers_of(record.headers)[0],
        priority=record.priority,
        created_us=record.created_at,
        due_us=record.due_at,
        state=record.state,
        attempts=record.attempts,
        deliveries=record.deliveries,
        error=record.error,
        finished_us=record.finished_at,
    )


def recorded_payload(record: Record, view: View) -> Any:
    if record.cut:
        return beginning_of(record.payload, record.encoding)
    payload, error = payload_of(record.payload, record.encoding, view.type)
    if error is not None:
        payload, error = payload_of(record.payload, record.encoding, None)
    return payload if error is None else record.payload


def moment_of(micros: int | None) -> datetime | None:
    return None if micros is None else from_micros(micros)


def headers_of(text: str | None) -> tuple[dict[str, str], str | None]:
    """Headers, or why they cannot be read: another program may have written them."""
    if text is None:
        return {}, None
    try:
        return decode_headers(text), None
    except msgspec.MsgspecError as error:
        return {}, f"the headers cannot be read: {error}"


def payload_of(data: bytes, encoding: int, type: Any) -> tuple[Any, str | None]:
    """A payload as a type, or why it cannot be read."""
    try:
        return decode(data, encoding, type), None
    except PayloadMismatch as error:
        return None, str(error)
    except Exception as error:  # noqa: BLE001 - a type's own code may raise anything
        return None, error_text(error)
