"""A unit of work: a job or a delivery, as the worker handles it."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from rowmq.codec import error_text
from rowmq.errors import AlreadySettled
from rowmq.policy import AckPolicy
from rowmq.queue.job import AsyncJob, Job
from rowmq.store.settles import Kind as JobKind
from rowmq.subscriber.delivery import AsyncDelivery, Delivery
from rowmq.subscriber.settling import Kind as DeliveryKind
from rowmq.telemetry.handed import headers_of, told_of
from rowmq.transaction import Transaction
from rowmq.worker.context import Progress

if TYPE_CHECKING:
    from rowmq.tracing import Tracer
    from rowmq.worker.keeper import Lock

__all__ = ["ACK", "RELEASE", "UNTRACED", "Interrupted", "Unit", "Verdict", "verdict_of"]

UNTRACED = contextlib.nullcontext()

SETTLES = ("ack", "nack", "reject", "release", "extend")


class Verdict(NamedTuple):
    """What is to become of a unit."""

    kind: str
    error: str | BaseException | None = None


ACK = Verdict("ack")
RELEASE = Verdict("release")
UNSETTLED = "the handler ended and had not settled it, as its ack policy MANUAL asks for"


class Interrupted(Exception):
    """A handler was cut short, since its worker stops."""


def verdict_of(policy: AckPolicy, error: BaseException | None) -> Verdict | None:
    """What becomes of a unit whose handler has not settled it itself; None if nothing does.

    One that was cut short is tried again, whatever the policy: it was no error of its own.
    """
    if policy is AckPolicy.NACK_ON_ERROR and error is None:
        return ACK
    if policy is AckPolicy.ACK_FIRST:
        return None
    if isinstance(error, Interrupted):
        return Verdict("nack", error)
    if policy is AckPolicy.MANUAL:
        return Verdict("reject", error or UNSETTLED)
    if error is None or policy is AckPolicy.ACK:
        return ACK
    return Verdict("reject" if policy is AckPolicy.REJECT_ON_ERROR else "nack", error)


class Unit(msgspec.Struct, eq=False):
    """A job or a delivery that was fetched."""

    raw: "AsyncJob[Any] | AsyncDelivery[Any]"
    settled: "Callable[[Sequence[Unit]], None] | None" = None
    """Is told when its handler has settled it."""
    order: str | None = None
    """What it is handled in the order of, if anything: the key of a message."""
    lock: "Lock | None" = None
    """The lock that a job is in, while somebody keeps it."""
    finished: bool = False
    """Whether it is settled, or lost, so that nothing is kept for it."""
    progress: Progress | None = None
    """How far its handler is, if that can tell."""
    began_at: float = 0.0
    called: bool = False
    """Whether its function was called at all."""
    returned: bool = False
    """Whether that came to a good end."""
    manual: bool = False
    """Whether its handler has settled it."""
    tentative: bool = False
    """Whether that is part of a transaction of the handler's own, which may yet be undone."""
    over: bool = False
    """Whether its handler's time is over, and what it does now comes too late."""
    tx: Any = None
    """The transaction of its handler, while that is open."""
    straggler: "asyncio.Future[Any] | None" = None
    """A thread that goes on although nobody waits for it any more."""
    tasks: "list[asyncio.Task[None]] | None" = None
    """The settles that its handler has begun."""
    asked: Any = None
    """What was asked to become of it, if that was no ack without further ado."""
    tracer: "Tracer | None" = None
    """Who traces it, if anybody does."""
    traced: Any = None
    """The tracer's own."""

    @property
    def id(self) -> str:
        """What people know it by. It may be looked at just when its message is let go of."""
        raw = self.raw
        if not isinstance(raw, AsyncDelivery):
            return str(raw.id)
        message = getattr(raw, "message", None)
        return (message and message.id) or str(raw._token.offset)

    @property
    def source(self) -> str:
        """The topic, or the queue."""
        raw = self.raw
        return raw._core.options.topic if isinstance(raw, AsyncDelivery) else raw.queue

    @property
    def headers(self) -> Mapping[str, str]:
        """What was sent beside its payload."""
        return headers_of(self.raw)

    def told(self) -> dict[str, Any]:
        """What it is known by, to traces and logs."""
        return told_of(self.raw)

    @property
    def key(self) -> str | None:
        raw = self.raw
        return raw._token.holding.place[0] if isinstance(raw, AsyncDelivery) else raw.key

    def wanted(self, verdict: Verdict) -> list[Any]:
        """A verdict, as its source takes it."""
        if verdict is ACK:
            return [self.raw._ack_wanted()]
        kinds: Any = DeliveryKind if isinstance(self.raw, AsyncDelivery) else JobKind
        try:
            return self.raw._as(kinds[verdict.kind.upper()], error=verdict.error)
        except Exception as error:  # noqa: BLE001 - a retry strategy of the user's may raise anything
            problem = f"{error_text(verdict.error)}; and its retry strategy: {error_text(error)}"
            return self.raw._as(kinds.REJECT, error=problem)

    async def settle(self, wanted: Sequence[Any], connection: Any = None) -> None:
        """Settle it as its handler asks: in the handler's transaction, if it has one."""
        with UNTRACED if self.tracer is None else self.tracer.settle(self.source, (self,)):
            await self.raw._settle(wanted, self.tx if connection is None else connection)
        self.settled_by_handler(wanted, own=connection is not None)

    def settled_by_handler(self, wanted: Sequence[Any], *, own: bool) -> None:
        """Its handler has settled it, perhaps in a transaction of its own."""
        if any(kind_in(item) == "extend" for item in wanted):
            return
        self.asked = wanted[-1]
        self.manual, self.tentative = True, own
        if self.tx is None and not own and self.settled is not None:
            self.settled([self])

    def check_in_time(self) -> None:
        """Refuse what a handler does after its time."""
        if self.over:
            raise AlreadySettled(
                f"{self.raw!r}: its handler had ended, or run out of time, so this changed nothing"
            )

    # --- as handlers see it -----------------------------------------------------------------------

    def for_async(self) -> "EagerJob | EagerDelivery":
        """The job or delivery for an async handler."""
        raw = self.raw
        if isinstance(raw, AsyncDelivery):
            given: EagerJob | EagerDelivery = EagerDelivery(
                raw.message, raw._token, raw._core, self.settle
            )
        else:
            given = EagerJob(raw._facts, self.settle, raw._ticket, self.tx)
        given.unit = self
        return given

    def for_threads(
        self, settle: Callable[..., None], tx: Transaction | None
    ) -> "Job[Any] | Delivery[Any]":
        """The job or delivery for a sync handler, whose settles go where they are told to."""
        raw = self.raw
        if isinstance(raw, AsyncDelivery):
            return Delivery(raw.message, token=raw._token, core=raw._core, settle=settle)
        return Job(raw._facts, settle=settle, ticket=raw._ticket, tx=tx)

    @property
    def settling(self) -> bool:
        """Whether its handler has begun to settle it."""
        return self.tasks is not None

    def begin_settle(self, settle: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Settle it, whether the handler waits for that or not."""
        task = asyncio.get_running_loop().create_task(settle)
        if self.tasks is None:
            self.tasks = []
        self.tasks.append(task)
        return task

    async def settles_done(self, *, strict: bool = False) -> BaseException | None:
        """Wait for the settles that its handler has begun. Gives, or raises, the first error."""
        tasks, self.tasks = self.tasks, None
        if not tasks:
            return None
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        problem = next((outcome for outcome in outcomes if outcome is not None), None)
        if strict and problem is not None:
            raise problem
        return problem


def kind_in(item: Any) -> str:
    """What is asked for by a settle of a job, or of a delivery."""
    kind = item.kind if hasattr(item, "kind") else item.settle.kind
    return str(kind.value)


def eager(name: str) -> Callable[..., Any]:
    """A settle that is begun when it is called, whether anybody awaits it or not."""

    def begin(self: Any, *args: Any, **kwargs: Any) -> "Awaitable[None]":
        self.unit.check_in_time()
        settle = getattr(super(type(self), self), name)
        task: asyncio.Task[None] = self.unit.begin_settle(settle(*args, **kwargs))
        return task

    return begin


class EagerJob(AsyncJob[Any]):
    """A job whose settles need not be awaited."""

    __slots__ = ("unit",)
    unit: Unit


class EagerDelivery(AsyncDelivery[Any]):
    """A delivery whose settles need not be awaited."""

    __slots__ = ("unit",)
    unit: Unit


for _name in SETTLES:
    setattr(EagerJob, _name, eager(_name))
    setattr(EagerDelivery, _name, eager(_name))
