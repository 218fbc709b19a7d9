"""Queues, as the clients have them: `queue` and `poller` make handles, `queues` lists them all."""

import builtins
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import Any, TypeVar, overload

from rowmq.combining import AsyncCombiner, Combiner
from rowmq.drivers.base import SyncDriver, take_steps, take_steps_async
from rowmq.drivers.watching import Notifier, Watcher
from rowmq.errors import InvalidInput, InvalidQueue
from rowmq.inspection import QueueBacklog
from rowmq.message import QueueInfo
from rowmq.options import whole
from rowmq.policy import RetryStrategy
from rowmq.queue.desk import Desk, Put, Spare
from rowmq.queue.inspecting import check_ids
from rowmq.queue.job import AsyncJob, Job
from rowmq.queue.poller import AsyncPoller, Poller
from rowmq.queue.queue import AsyncQueue, Queue
from rowmq.queue.view import View, view_of
from rowmq.queue.waiting import TaskWaiter, ThreadWaiter, Waiters
from rowmq.store.archive import Record
from rowmq.store.postings import Posting
from rowmq.store.settles import Settle
from rowmq.store.statement import Operation
from rowmq.store.store import Store
from rowmq.times import Duration, to_seconds

__all__ = ["AsyncQueues", "Queues", "async_desk_of", "desk_of"]

T = TypeVar("T")

LOCK_SECONDS = 300.0
POLL_SECONDS = 0.1

SETTLE_BYTES = 100
"""What a settle takes in a statement, roughly."""


class Queues:
    """The queues of a sync client."""

    _store: Store
    _desk: Desk

    def _run(self, make: Callable[[], Operation[T]], connection: Any = None) -> T:
        raise NotImplementedError

    @overload
    def queue(
        self,
        name: str,
        *,
        type: None = None,
        kind: str | None = None,
        lock_timeout: Duration = LOCK_SECONDS,
        retry: RetryStrategy | None = None,
        max_deliveries: float | None = None,
        poll_interval: Duration = POLL_SECONDS,
    ) -> Queue[Any]: ...

    @overload
    def queue(
        self,
        name: str,
        *,
        type: builtins.type[T],
        kind: str | None = None,
        lock_timeout: Duration = LOCK_SECONDS,
        retry: RetryStrategy | None = None,
        max_deliveries: float | None = None,
        poll_interval: Duration = POLL_SECONDS,
    ) -> Queue[T]: ...

    def queue(
        self,
        name: str,
        *,
        type: Any = None,
        kind: str | None = None,
        lock_timeout: Duration = LOCK_SECONDS,
        retry: RetryStrategy | None = None,
        max_deliveries: float | None = None,
        poll_interval: Duration = POLL_SECONDS,
    ) -> Queue[Any]:
        """A handle of a queue, which is made by the first job in it.

        Payloads come as `type`, if one is given. Its name (or `kind`) is stored with each job: a
        handle with a type sees jobs of that type, and those that were put without one; a handle
        without sees all. A claimed job is locked for `lock_timeout`. A nacked one waits as `retry`
        says: by default 20 attempts, from a second to an hour apart. One that was claimed more
        often than `max_deliveries` has failed, before it is tried again; by default, one that was
        claimed 20 times and never settled. `math.inf` is no limit.
        """
        view = view_of(
            name,
            type=type,
            kind=kind,
            lock_timeout=lock_timeout,
            retry=retry,
            max_deliveries=max_deliveries,
            poll_interval=poll_interval,
        )
        return Queue(self, self._desk, view)

    def poller(self, *queues: Queue[Any] | str) -> Poller[Any]:
        """Claims jobs of several queues at once, given by their names or their handles."""
        return Poller(self, self._desk, [view_in(self, queue) for queue in some(queues)])

    def queues(self) -> list[QueueInfo]:
        """Every queue, with its kinds of jobs and its settings."""
        return self._run(self._store.queues.list_queues)

    def find_job(self, id: int) -> Job[Any] | None:
        """The job with this id, alive or in the archive, whichever queue it is in."""
        found = self._run(find_operation(self._store, id))
        return None if found is None else job_in(self, found)

    def backlog(
        self, *, up_to: int = 10_000, lately_seconds: Duration = 60.0
    ) -> list[QueueBacklog]:
        """How much there is to do in every queue, and what was done lately.

        Of each queue and state at most `up_to` jobs are counted, and fewer where there are very
        many queues: so it takes no longer with a million jobs.
        """
        return self._run(backlog_operation(self._store, up_to, lately_seconds))


class AsyncQueues:
    """The queues of an async client."""

    _store: Store
    _desk: Desk

    async def _run(self, make: Callable[[], Operation[T]], connection: Any = None) -> T:
        raise NotImplementedError

    @overload
    def queue(
        self,
        name: str,
        *,
        type: None = None,
        kind: str | None = None,
        lock_timeout: Duration = LOCK_SECONDS,
        retry: RetryStrategy | None = None,
        max_deliveries: float | None = None,
        poll_interval: Duration = POLL_SECONDS,
    ) -> AsyncQueue[Any]: ...

    @overload
    def queue(
        self,
        name: str,
        *,
        type: builtins.type[T],
        kind: str | None = None,
        lock_timeout: Duration = LOCK_SECONDS,
        retry: RetryStrategy | None = None,
        max_deliveries: float | None = None,
        poll_interval: Duration = POLL_SECONDS,
    ) -> AsyncQueue[T]: ...

    def queue(
        self,
        name: str,
        *,
        type: Any = None,
        kind: str | None = None,
        lock_timeout: Duration = LOCK_SECONDS,
        retry: RetryStrategy | None = None,
        max_deliveries: float | None = None,
        poll_interval: Duration = POLL_SECONDS,
    ) -> AsyncQueue[Any]:
        """A handle of a queue, which is made by the first job in it: see `RowMQ.queue`."""
        view = view_of(
            name,
            type=type,
            kind=kind,
            lock_timeout=lock_timeout,
            retry=retry,
            max_deliveries=max_deliveries,
            poll_interval=poll_interval,
        )
        return AsyncQueue(self, self._desk, view)

    def poller(self, *queues: AsyncQueue[Any] | str) -> AsyncPoller[Any]:
        """Claims jobs of several queues at once, given by their names or their handles."""
        return AsyncPoller(self, self._desk, [view_in(self, queue) for queue in some(queues)])

    async def queues(self) -> list[QueueInfo]:
        """Every queue, with its kinds of jobs and its settings."""
        return await self._run(self._store.queues.list_queues)

    async def find_job(self, id: int) -> AsyncJob[Any] | None:
        """The job with this id, whichever queue it is in: see `RowMQ.find_job`."""
        found = await self._run(find_operation(self._store, id))
        return None if found is None else job_in(self, found)

    async def backlog(
        self, *, up_to: int = 10_000, lately_seconds: Duration = 60.0
    ) -> list[QueueBacklog]:
        """How much there is to do in every queue: see `RowMQ.backlog`."""
        return await self._run(backlog_operation(self._store, up_to, lately_seconds))


def find_operation(store: Store, id: int) -> Callable[[], Operation[tuple[str, Record] | None]]:
    """The checked argument of `find_job`, bound to its operation."""
    return partial(store.listing.find, check_ids([id])[0])


def job_in(mq: Any, found: tuple[str, Record]) -> Any:
    """A job, as its queue shows it."""
    queue, record = found
    return mq.queue(queue)._core.recorded(record)  # noqa: SLF001 - its own package


def backlog_operation(
    store: Store, up_to: int, lately_seconds: Duration
) -> Callable[[], Operation[list[QueueBacklog]]]:
    """The checked arguments of `backlog`, bound to its operation."""
    lately_us = round(to_seconds(lately_seconds, name="lately_seconds") * 1_000_000)
    return partial(store.backlogs.backlog, up_to=whole("up_to", up_to), lately_us=lately_us)


def some(queues: tuple[Any, ...]) -> tuple[Any, ...]:
    """What `poller` takes, which must not be nothing."""
    if not queues:
        raise InvalidInput("poller() takes the queues to poll, as in mq.poller('emails', 'sms')")
    names = [queue.name if isinstance(queue, Queue | AsyncQueue) else queue for queue in queues]
    if len({str(name) for name in names}) < len(names):
        raise InvalidInput(
            "poller() takes each queue once; a handle without a type sees all kinds of jobs"
        )
    return queues


def view_in(mq: Any, queue: Any) -> View:
    """What a handle sees, or, of a name, what one without a type would."""
    if isinstance(queue, list | tuple | set):
        raise InvalidQueue("a queue must be given by itself, as in mq.poller('emails', 'sms')")
    if isinstance(queue, Queue | AsyncQueue):
        return queue._core.view  # noqa: SLF001 - its own package
    view: View = mq.queue(queue)._core.view  # noqa: SLF001 - its own package
    return view


def desk_of(
    store: Store,
    run: Callable[..., Any],
    *,
    notifier: Notifier,
    watcher: Watcher,
    spare: Callable[[], SyncDriver],
) -> Desk:
    """What the queues of a sync client share."""
    desk = Desk(
        store,
        run,
        notifier=notifier,
        waiters=Waiters(watcher),
        new_waiter=ThreadWaiter,
        spare=Spare(spare),
    )

    def put(postings: list[Posting]) -> list[Put]:
        return take_steps(desk.put(postings))

    def settle(settles: list[Settle]) -> list[Exception | None]:
        outcomes: list[Exception | None] = desk.settle_now(settles)
        return outcomes

    desk.puts = Combiner(put, lock_of_posting, attrgetter("size"), repeatable=True)
    desk.settles = Combiner(settle, lock_of_settle, size_of_settle, repeatable=False)
    return desk


def async_desk_of(
    store: Store,
    run: Callable[..., Any],
    *,
    notifier: Notifier,
    watcher: Watcher,
    spare: Callable[[], SyncDriver],
    at_once: int,
) -> Desk:
    """What the queues of an async client share."""
    desk = Desk(
        store,
        run,
        notifier=notifier,
        waiters=Waiters(watcher),
        new_waiter=TaskWaiter,
        spare=Spare(spare),
    )

    async def put(postings: list[Posting]) -> list[Put]:
        return await take_steps_async(desk.put(postings))

    async def settle(settles: list[Settle]) -> list[Exception | None]:
        outcomes: list[Exception | None] = await desk.settle_now(settles)
        return outcomes

    desk.puts = AsyncCombiner(
        put, lock_of_posting, attrgetter("size"), at_once=at_once, repeatable=True
    )
    desk.settles = AsyncCombiner(
        settle, lock_of_settle, size_of_settle, at_once=at_once, repeatable=False
    )
    return desk


# Plain jobs wait for nobody, so all of a client's share transactions: they have one lock in common,
# as far as a combiner knows, and it is not a lane of a queue.


def lock_of_posting(posting: Posting) -> str:  # noqa: ARG001 - it is the same for all
    return "put"


def lock_of_settle(settle: Settle) -> str:  # noqa: ARG001 - it is the same for all
    return "settle"


def size_of_settle(settle: Settle) -> int:  # noqa: ARG001 - it is the same for all
    return SETTLE_BYTES
