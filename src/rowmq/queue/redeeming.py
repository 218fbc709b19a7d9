"""Settling by receipts: a claimed job as a line of text, which whoever has it can settle.

A handler in another program, or behind HTTP, cannot have the job itself. Its receipt holds all that
is needed to find the job's place in its lock again, from any process; what a settle by it does is
fenced as every settle is.

    job.ack()                       queue.settle([queue.receipt(job)], "ack")
       │                                │  parsed, found in its lock, a ticket as the claim has one
       └────────► the same ticket ◄─────┘  (in this process; in others the lock decides)
"""

import re
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Generic, Literal, NoReturn, TypeVar

from rowmq.codec import error_text
from rowmq.drivers.base import Steps, take_steps, take_steps_async
from rowmq.errors import AlreadySettled, InvalidInput, InvalidOption, NotClaimed, StaleLease
from rowmq.queue.claiming import Claimed
from rowmq.queue.core import Core
from rowmq.queue.job import AnyJob, check_extension
from rowmq.queue.ticket import Bearer, Ticket, Wanted, take_all, wanted_of
from rowmq.quoting import quoted
from rowmq.store.receipts import Claim, Receipt
from rowmq.store.settles import Kind
from rowmq.times import Duration, to_seconds

__all__ = ["AsyncRedeeming", "How", "Redeeming"]

T = TypeVar("T")

How = Literal["ack", "nack", "reject", "release", "extend"]
"""What can be done with a claimed job."""

Refusal = AlreadySettled | StaleLease

WAYS = {kind.value: kind for kind in Kind if kind is not Kind.REFUSE}

MARK = "j1"
"""What receipts of jobs begin with: their kind, and the version of their form."""

FORM = re.compile(
    rf"{MARK}-([0-9a-f]{{1,16}})-([0-9]{{1,5}})-([0-9]{{1,19}})-([0-9]{{1,9}})-([0-9]{{1,9}})"
    r"-(-?[0-9]{1,18})-([0-9]{1,18})"
)


class Redeeming(Generic[T]):
    """What a sync queue does with receipts."""

    _core: Core

    def _in(self, connection: Any) -> Any:
        raise NotImplementedError

    def receipt(self, job: AnyJob[T]) -> str:
        """A claimed job as a short text, by which it can be settled from any process: see `settle`.

        It cannot be guessed. Whoever has it can settle the job, and learns nothing from it but the
        job's id, when it was due and about when it was claimed, and how often it was tried.
        """
        return receipt_of(self._core, job)

    def settle(
        self,
        receipts: Iterable[str],
        how: How = "ack",
        *,
        delay: Duration | None = None,
        error: str | BaseException | None = None,
        seconds: Duration | None = None,
        connection: Any = None,
    ) -> list[AlreadySettled | StaleLease | None]:
        """Settle jobs of this queue by their receipts, in one transaction: None, or why not, for
        each.

        `how` is "ack", "nack" (with `delay` and `error`, or as this handle's `retry` says),
        "reject" (with `error`), "release", or "extend" (by `seconds`). A receipt is settled once:
        after that it is `AlreadySettled`, for as long as that can be seen; `StaleLease` if its lock
        was lost, the job was updated, dropped or given up, or it is of another queue. With
        `connection=` those are raised, so that the caller's transaction fails.
        """
        steps = redeem(
            self._core,
            receipts,
            how,
            delay=delay,
            error=error,
            seconds=seconds,
            connection=self._in(connection),
        )
        return take_steps(steps)


class AsyncRedeeming(Generic[T]):
    """What an async queue does with receipts."""

    _core: Core

    def _in(self, connection: Any) -> Any:
        raise NotImplementedError

    def receipt(self, job: AnyJob[T]) -> str:
        """A claimed job as a short text: see `Queue.receipt`."""
        return receipt_of(self._core, job)

    async def settle(
        self,
        receipts: Iterable[str],
        how: How = "ack",
        *,
        delay: Duration | None = None,
        error: str | BaseException | None = None,
        seconds: Duration | None = None,
        connection: Any = None,
    ) -> list[AlreadySettled | StaleLease | None]:
        """Settle jobs by their receipts: see `Queue.settle`."""
        steps = redeem(
            self._core,
            receipts,
            how,
            delay=delay,
            error=error,
            seconds=seconds,
            connection=self._in(connection),
        )
        return await take_steps_async(steps)


# --- receipts as text -----------------------------------------------------------------------------


def receipt_of(core: Core, job: AnyJob[Any]) -> str:
    """The receipt of a claimed job; who settles by it here comes to the job's own ticket."""
    if not isinstance(job, AnyJob):
        raise InvalidInput(f"receipt takes a job that was polled, not {quoted(job)}")
    if job.queue != core.view.queue:
        raise InvalidInput(
            f"this job is of queue {quoted(job.queue)}: ask mq.queue({quoted(job.queue)}) for its "
            f"receipt, which is settled there, too"
        )
    ticket = job._ticket  # noqa: SLF001 - its own package
    if ticket is None:
        raise NotClaimed("only a job that was claimed has a receipt: one of try_poll() or poll()")
    core.desk.tickets.know(job)
    claimed = ticket.claimed
    entry = claimed.job.entry
    place = f"{claimed.token:x}-{claimed.job.position}"
    delivery = f"{entry.job_id}-{entry.attempts}-{entry.deliveries}"
    return f"{MARK}-{place}-{delivery}-{entry.due_at}-{claimed.since}"


def parsed(receipts: Iterable[str]) -> list[Receipt]:
    """What receipts say."""
    if isinstance(receipts, str | bytes) or not isinstance(receipts, Iterable):
        raise InvalidInput(f"settle takes a list of receipts, not {quoted(receipts)}")
    found = []
    for text in receipts:
        match = FORM.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise InvalidInput(
                f"this is no receipt of a job: {quoted(text)}; queue.receipt(job) gives one, and "
                f"it is handed back as it was"
            )
        token, *numbers = match.groups()
        receipt = Receipt(int(token, 16), *map(int, numbers))
        if receipt.token >= 2**63 or receipt.job_id >= 2**63:
            raise InvalidInput(f"this is no receipt of a job: {quoted(text)}")
        found.append(receipt)
    return found


# --- settling -------------------------------------------------------------------------------------


def redeem(
    core: Core,
    receipts: Iterable[str],
    how: str,
    *,
    delay: Duration | None,
    error: str | BaseException | None,
    seconds: Duration | None,
    connection: Any,
) -> Steps[list[Refusal | None]]:
    """Settle what receipts stand for."""
    kind, wait = way_of(how, delay=delay, error=error, seconds=seconds)
    given = parsed(receipts)
    found = yield from bearers_of(core, given, connection)
    refusals: dict[Receipt, Refusal] = {}
    wanted: dict[Receipt, Wanted] = {}
    for receipt, bearer in found.items():
        if isinstance(bearer, AlreadySettled | StaleLease):
            refusals[receipt] = bearer
        else:  # before any is taken: a retry strategy of the user's may raise
            ticket = bearer._ticket  # noqa: SLF001 - its own package
            wanted[receipt] = wanted_of(ticket, kind, delay=wait, error=error_text(error))
    taken: list[tuple[Receipt, Wanted]] = []
    for receipt, item in wanted.items():
        try:
            take_all([item])
        except AlreadySettled as refusal:
            refusals[receipt] = refusal
        else:
            taken.append((receipt, item))
    if connection is not None and refusals:
        raise_instead(taken, next(iter(refusals.values())))
    told: list[Any] = yield from core.desk.settle_taken([item for _, item in taken], connection)
    outcomes = {receipt: told[place] for place, (receipt, _) in enumerate(taken)}
    late = [receipt for receipt, outcome in outcomes.items() if isinstance(outcome, StaleLease)]
    refusals |= yield from explained(core, late)
    return [(outcomes | refusals)[receipt] for receipt in given]


def explained(core: Core, late: Sequence[Receipt]) -> Steps[dict[Receipt, Refusal]]:
    """Why receipts whose locks were lost just now could not be settled: others may have done it."""
    if not late:
        return {}
    find = partial(core.desk.store.receipts.find, core.view.queue, core.view.kinds, late)
    looked: list[Claim | bool] = yield partial(core.desk.run, find)
    return {
        receipt: refusal_of(receipt, core.view.queue, settled=settled is True)
        for receipt, settled in zip(late, looked, strict=True)
    }


def raise_instead(taken: Sequence[tuple[Receipt, Wanted]], refusal: Refusal) -> NoReturn:
    """In a caller's transaction it is all or none."""
    for _, wanted in taken:
        if wanted.settle.kind is not Kind.EXTEND:
            wanted.ticket.give_back()
    raise refusal


def bearers_of(
    core: Core, receipts: Sequence[Receipt], connection: Any
) -> Steps[dict[Receipt, Any]]:
    """Who has the tickets that receipts stand for, each once: jobs that are known here, and, of
    others, who is made by what their locks say. Of those that have none any more, why.
    """
    view, desk = core.view, core.desk
    found: dict[Receipt, Any] = {}
    for receipt in receipts:
        bearer = desk.tickets.get(receipt.token, receipt.position)
        if bearer is not None and is_of(bearer._ticket.claimed, receipt, core):  # noqa: SLF001 - its own package
            found[receipt] = bearer
    missing = [receipt for receipt in dict.fromkeys(receipts) if receipt not in found]
    if missing:
        find = partial(desk.store.receipts.find, view.queue, view.kinds, missing)
        looked: list[Claim | bool] = yield partial(desk.run, find, connection)
        for receipt, locked in zip(missing, looked, strict=True):
            if isinstance(locked, Claim):
                claimed = Claimed(locked.job, locked.lane, receipt.token, receipt.since)
                found[receipt] = desk.tickets.know(Bearer(Ticket(claimed, view.retry)))
            else:
                found[receipt] = refusal_of(receipt, view.queue, settled=locked)
    return found


def is_of(claimed: Claimed, receipt: Receipt, core: Core) -> bool:
    """Whether a claim is the one of a receipt, and of this queue as it is seen here."""
    lane = claimed.lane
    mine = lane.queue == core.view.queue and core.view.sees(lane.kind)
    return mine and receipt.is_of(claimed.job.entry)


def refusal_of(receipt: Receipt, queue: str, *, settled: bool) -> AlreadySettled | StaleLease:
    """Why a receipt without a lock cannot be settled."""
    if settled:
        return AlreadySettled(
            f"job {receipt.job_id} of queue {queue!r} was settled before; the first settle stands"
        )
    return StaleLease(
        f"the lock on job {receipt.job_id} of queue {queue!r} is gone, or the receipt is of "
        f"another queue, so this changed nothing: its time ran out and the job was given back, it "
        f"was settled and others have had it since, or it was updated, dropped or given up; let go "
        f"of it, and give jobs a longer lock_timeout, or extend them in time"
    )


def way_of(
    how: str,
    *,
    delay: Duration | None,
    error: str | BaseException | None,
    seconds: Duration | None,
) -> tuple[Kind, float | None]:
    """What is to be done, and for how long; what does not go with it is refused."""
    kind = WAYS.get(how) if isinstance(how, str) else None
    if kind is None:
        raise InvalidOption(f"how must be one of {', '.join(WAYS)}, not {quoted(how)}")
    if delay is not None and kind is not Kind.NACK:
        raise InvalidOption(f"delay= is for a nack, and this is {how!r}")
    if error is not None and kind not in (Kind.NACK, Kind.REJECT):
        raise InvalidOption(f"error= is for a nack or a reject, and this is {how!r}")
    if (seconds is not None) != (kind is Kind.EXTEND):
        raise InvalidOption("an extend takes seconds=, the time from now on; nothing else does")
    if seconds is not None:
        return kind, check_extension(seconds)
    return kind, None if delay is None else to_seconds(delay, name="delay")
