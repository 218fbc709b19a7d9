"""What the queues of one client share: the database, ids, claimers, and whom to wake.

Everything that takes several transactions is written as steps, once for sync and async code: see
`drivers.base`.
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

from rowmq.drivers.base import Steps, SyncDriver
from rowmq.drivers.forking import after_fork
from rowmq.drivers.watching import Notifier
from rowmq.errors import AlreadySettled, RowMQError, StaleLease
from rowmq.message import Outcome
from rowmq.options import own_name
from rowmq.queue.claiming import Claimer
from rowmq.queue.ids import Ids
from rowmq.queue.ticket import Tickets, Wanted, conclude, give_up, take_all
from rowmq.queue.view import View
from rowmq.queue.waiting import Waiter, Waiters
from rowmq.store.jobs import OldIds
from rowmq.store.postings import Offer, Posting
from rowmq.store.queues import IDS_A_BLOCK, wake_name
from rowmq.store.settles import Settle, refused, stale
from rowmq.store.statement import Operation
from rowmq.store.store import Store
from rowmq.tracing import Tracer

__all__ = ["Desk", "Put", "Spare"]

T = TypeVar("T")

CLAIMERS_MAX = 1_000
"""How many claimers are remembered: where names of queues are made up, there is no end to them."""

SETTLES_MAX = 5_000
"""How many jobs are settled in one transaction."""

Put = tuple[int, int]
"""The id of a job that was put, and when it is due."""


class Submits(Protocol):
    """What has items worked on, perhaps together with others; in async code, to be awaited."""

    def submit(self, item: Any) -> Any: ...


class Desk:
    """A client, to its queues."""

    puts: Submits
    settles: Submits
    tracer: Tracer | None = None

    def __init__(
        self,
        store: Store,
        run: Callable[..., Any],
        *,
        notifier: Notifier,
        waiters: Waiters,
        new_waiter: Callable[[], Waiter],
        spare: "Spare",
    ) -> None:
        """`run` runs an operation, in a transaction of its own or in the one of a connection."""
        self.store = store
        self.run = run
        self.owner = own_name()
        self.ids = Ids()
        self.tickets = Tickets()
        self.notifier = notifier
        self.waiters = waiters
        self.new_waiter = new_waiter
        self.spare = spare
        self._claimers: dict[frozenset[tuple[str, str]], Claimer] = {}

    def repeat(self, operation: Callable[..., Operation[T]], connection: Any = None) -> Any:
        """Run an operation that wants to know whether it may have been committed before."""
        return self.run(Repeated(operation), connection)

    def claimer(self, views: Sequence[View]) -> Claimer:
        """The claimer of what these views see."""
        key = frozenset((view.queue, view.kind) for view in views)
        claimer = self._claimers.get(key)
        if claimer is None:
            if len(self._claimers) >= CLAIMERS_MAX:
                self._claimers.pop(next(iter(self._claimers)), None)
            claimer = self._claimers.setdefault(key, Claimer(self, views))
        return claimer

    # --- put and offer ----------------------------------------------------------------------------

    def put(self, postings: Sequence[Posting], connection: Any = None) -> Steps[list[Put]]:
        """Add jobs in one transaction."""
        if not postings:
            return []
        notify, alone = self._notify(postings, connection), connection is None
        put = partial(self.store.jobs.put, postings, alone=alone, notify=notify)

        def try_put(ids: Sequence[int]) -> Any:
            return self.repeat(partial(put, ids), connection)

        ids, due = yield from self.with_ids(len(postings), try_put, connection)
        self._tell(postings)
        return list(zip(ids, due, strict=True))

    def offer(self, offers: Sequence[Offer], connection: Any = None) -> Steps[list[Outcome]]:
        """Create or update jobs by their keys, in one transaction."""
        if not offers:
            return []
        postings = [offer.posting for offer in offers]
        notify, alone = self._notify(postings, connection), connection is None
        memo: list[Outcome] = []
        offer = partial(self.store.jobs.offer, offers, memo=memo, alone=alone, notify=notify)

        def try_offer(ids: Sequence[int]) -> Any:
            return self.run(partial(offer, ids), connection)

        _, outcomes = yield from self.with_ids(len(offers), try_offer, connection)
        self._tell(postings)
        return outcomes  # type: ignore[no-any-return]

    def with_ids(
        self, count: int, use: Callable[[Sequence[int]], Any], connection: Any
    ) -> Steps[tuple[list[int], Any]]:
        """Do something with new ids, and with newer ones if others have taken theirs later and were
        there before. Gives the ids, and what came of it.
        """
        while True:
            ids = yield from self.new_ids(count, connection)
            try:
                return ids, (yield partial(use, ids))
            except OldIds:
                self.ids.forget()

    def new_ids(self, count: int, connection: Any) -> Steps[list[int]]:
        """Ids for new jobs. A block that a rollback would give to others is for nobody else."""
        queues = self.store.queues
        ids = self.ids.take(count)
        while len(ids) < count:
            first: int = yield partial(self.run, queues.reserve, connection)
            block, wanted = range(first, first + IDS_A_BLOCK), count - len(ids)
            if connection is not None and queues.ids_roll_back:
                ids += block[:wanted]
            else:
                self.ids.add(block)
                ids += self.ids.take(wanted)
        return ids

    def _notify(self, postings: Iterable[Posting], connection: Any) -> frozenset[str]:
        names = {wake_name(posting.lane.queue) for posting in postings}
        return self.notifier.due(names, alone=connection is None)

    def _tell(self, postings: Sequence[Posting]) -> None:
        """Have the claimers and pollers of this client look at what is new."""
        for claimer in list(self._claimers.values()):
            claimer.disturb(postings)
        for queue in {posting.lane.queue for posting in postings}:
            self.waiters.wake(queue)

    def disturb(self, queue: str) -> None:
        """Something has changed in a queue that claimers may have passed by."""
        for claimer in list(self._claimers.values()):
            claimer.disturbed(queue)
        self.waiters.wake(queue)

    def close(self) -> None:
        """The client is being closed: whoever waits is to find that out."""
        self.waiters.wake_all()
        self.spare.close()

    # --- settle -----------------------------------------------------------------------------------

    def settle(self, wanted: Sequence[Wanted], connection: Any = None) -> Steps[None]:
        """Settle claimed jobs; raises the first error, once all that can be settled are."""
        take_all(wanted)
        outcomes = yield from self.settle_taken(wanted, connection)
        if any(outcomes):
            raise next(outcome for outcome in outcomes if outcome is not None)

    def settle_taken(
        self, wanted: Sequence[Wanted], connection: Any = None
    ) -> Steps[list[Exception | None]]:
        """Settle jobs whose tickets were taken; None, or why not, for each."""
        committed = connection is None
        told: list[Exception | None] = []
        part, done, outcomes = wanted[:0], 0, None
        try:
            while done < len(wanted):
                part, outcomes = wanted[done : done + SETTLES_MAX], None
                outcomes = yield from self._settle(part, connection)
                if not committed or any(outcomes):  # mostly, all went well
                    outcomes = yield from self._explained(part, outcomes)
                    conclude(part, outcomes, committed=committed)
                told += outcomes
                done += len(part)
        except BaseException as error:
            if outcomes is None:
                give_up(part, doubted=may_be_done(error))
            else:
                conclude(part, outcomes, committed=committed)
            give_up(wanted[done + SETTLES_MAX :], doubted=False)
            if isinstance(error, RowMQError):
                error.in_doubt = error.in_doubt or done > 0 or outcomes is not None
            raise
        for queue in {item.settle.queue for item in wanted if item.changes_order}:
            self.disturb(queue)
        return told

    def _settle(
        self, wanted: Sequence[Wanted], connection: Any
    ) -> Steps[Sequence[Exception | None]]:
        settles = [item.settle for item in wanted]
        if connection is not None:
            operation = partial(
                self.store.settles.settle_or_raise, settles, lambda place: wanted[place].doubtful
            )
            outcomes: list[Exception | None] = yield partial(self.run, operation, connection)
            return outcomes
        if len(settles) == 1 and settles[0].plain:
            try:
                yield partial(self.settles.submit, settles[0])
            except (StaleLease, AlreadySettled) as error:
                return [error]
            return [None]
        outcomes = yield partial(self.settle_now, settles)
        return outcomes

    def _explained(
        self, wanted: Sequence[Wanted], outcomes: Sequence[Exception | None]
    ) -> Steps[Sequence[Exception | None]]:
        """What was settled in a transaction of the caller's, and is done, is not stale. What has
        left its lock, was not settled from here, and is gone without a trace, was dropped.
        """
        told: list[Exception | None] = []
        for item, outcome in zip(wanted, outcomes, strict=True):
            unclear = StaleLease if item.doubtful else AlreadySettled
            if isinstance(outcome, unclear):
                settled: bool = yield partial(
                    self.run,
                    partial(self.store.settles.was_settled, item.settle, if_gone=item.doubtful),
                )
                told.append(refused(item.settle) if settled else stale(item.settle))
            else:
                told.append(outcome)
        return told

    def settle_now(self, settles: Sequence[Settle]) -> Any:
        """Settle jobs in one transaction; None, or why not, for each."""
        return self.repeat(partial(self.store.settles.settle, settles, alone=True))


def may_be_done(error: BaseException) -> bool:
    """Whether what ended so may have been done. Whoever was interrupted has not heard."""
    return error.in_doubt if isinstance(error, RowMQError) else True


class Spare:
    """A connection beside the pool, to write down what a transaction has begun. Opened when it is
    needed: the pool's may all be taken by those who hold jobs.
    """

    def __init__(self, open_driver: Callable[[], SyncDriver]) -> None:
        self._open = open_driver
        self.reset()
        after_fork(self)

    def reset(self) -> None:
        """There is none yet: at the start, and in a forked child, which leaves the parent's be."""
        self._lock = threading.Lock()
        self._driver: SyncDriver | None = None

    @property
    def driver(self) -> SyncDriver:
        """What runs operations on it."""
        with self._lock:
            if self._driver is None:
                self._driver = self._open()
        return self._driver

    def run(self, make: Callable[[], Operation[Any]]) -> None:
        """Run an operation in a transaction of its own."""
        self.driver.run(make)

    def close(self) -> None:
        """Let go of the connection, if there is one."""
        if self._driver is not None:
            self._driver.close()


class Repeated:
    """Makes an operation, and tells it whether it may have been committed before: if it came to its
    COMMIT, or to an error that leaves that in doubt. After any other error it was not.
    """

    def __init__(self, operation: Callable[..., Operation[Any]]) -> None:
        self._operation = operation
        self._again = False

    def __call__(self) -> Operation[Any]:
        try:
            result = yield from self._operation(again=self._again)
        except RowMQError as error:
            self._again = self._again or error.in_doubt
            raise
        self._again = True
        return result
