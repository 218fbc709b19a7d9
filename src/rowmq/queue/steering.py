"""Changing jobs that were put, by hand: try them again, at another time, give them up, delete them.

What is done by ids is done to the jobs that are in a state for it, and these are counted: others
stay as they are. A job that a worker has is taken from it by `fail` and by `drop_jobs`: its settle
raises `StaleLease`, and changes nothing.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Generic, TypeVar

from rowmq.codec import error_text
from rowmq.drivers.base import Steps, take_steps, take_steps_async
from rowmq.errors import InvalidInput, InvalidOption
from rowmq.message import State
from rowmq.queue.core import Core, due_micros
from rowmq.queue.inspecting import check_ids, finished_state, needed
from rowmq.queue.job import AsyncJob, Job
from rowmq.store.archive import BATCH
from rowmq.store.queues import wake_name
from rowmq.store.statement import Operation
from rowmq.store.steering import When
from rowmq.times import Duration, to_seconds

__all__ = ["AsyncSteering", "Steering"]

T = TypeVar("T")

CONFIRMATION = "Yes, please, I know what I'm doing!"
"""What `drop_all` wants to hear."""

PAUSES = (0.0, 0.01, 0.1)
"""Before each look for jobs, in seconds: one that is on its way may be in neither place."""

GIVES_BACK_MAX = 100
"""How often expired locks are given back, at most, to find what was in them."""

Change = Callable[[Sequence[int]], Operation[list[int]]]
"""Does something with those of some jobs that it can, and tells which."""

Arrived = Callable[[Sequence[int]], Operation[set[int]]]
"""Which of some jobs are where a change puts them."""


class Counted:
    """Makes a change, and tells also of what an earlier try of it did, whose commit may have
    happened: of those jobs that the repeat finds where they were to go.
    """

    def __init__(self, change: Callable[[], Operation[list[int]]], arrived: Arrived) -> None:
        self._change = change
        self._arrived = arrived
        self._done: set[int] = set()

    def __call__(self) -> Operation[list[int]]:
        done = set((yield from self._change()))
        if missing := self._done - done:
            done |= yield from self._arrived(sorted(missing))
        self._done |= done
        return sorted(done)


class Steering(Generic[T]):
    """What people do to jobs, for a sync queue."""

    _core: Core

    def _in(self, connection: Any) -> Any:
        raise NotImplementedError

    def retry(self, ids: Iterable[int | Job[T]], *, connection: Any = None) -> int:
        """Have failed jobs be claimed again, from their first attempt on; how many it were.

        One whose key has a live job by now stays failed.
        """
        return take_steps(retry(self._core, ids, self._in(connection)))

    def reschedule(
        self,
        ids: Iterable[int | Job[T]],
        *,
        at: datetime | None = None,
        delay: Duration | None = None,
        connection: Any = None,
    ) -> int:
        """Have jobs that nobody has claimed be due at a time, or after a delay; how many it were.

        Attempts are counted on. In a line of an ordering key, one that was never tried goes where
        its new time belongs.
        """
        return take_steps(reschedule(self._core, ids, at, delay, self._in(connection)))

    def run_now(self, ids: Iterable[int | Job[T]], *, connection: Any = None) -> int:
        """Have jobs that nobody has claimed be due now; how many it were. One that waits behind
        another of its ordering key waits on.
        """
        return take_steps(reschedule(self._core, ids, None, 0, self._in(connection)))

    def fail(
        self,
        ids: Iterable[int | Job[T]],
        *,
        error: str | BaseException | None = None,
        connection: Any = None,
    ) -> int:
        """Give up live jobs, also those that are claimed, whose locks become void; how many it
        were. No attempt is counted. `retry` has them be claimed again.
        """
        return take_steps(fail(self._core, ids, error, self._in(connection)))

    def drop_jobs(self, ids: Iterable[int | Job[T]], *, connection: Any = None) -> int:
        """Delete live jobs, also those that are claimed, whose locks become void; how many it were.
        The archive stays.
        """
        return take_steps(drop_jobs(self._core, ids, self._in(connection)))

    def prune(
        self,
        *,
        older_than: Duration | None = None,
        state: State | None = None,
        connection: Any = None,
    ) -> int:
        """Delete finished jobs, in short transactions: those that the queue need not keep longer,
        or completed ones that finished longer ago than `older_than`. Failed ones are deleted only
        if `state` names them, or the queue's `failed_retention` says so.
        """
        return take_steps(prune(self._core, older_than, state, self._in(connection)))

    def drop(self, key: str, *, connection: Any = None) -> bool:
        """Delete the live job with this key, also if it is claimed; False if there is none."""
        return take_steps(drop(self._core, key, self._in(connection)))

    def drop_all(self, confirm: str = "", *, connection: Any = None) -> int:
        """Delete every live job, in short transactions; how many it were. The archive stays.

        `confirm` must be "Yes, please, I know what I'm doing!".
        """
        return take_steps(drop_all(self._core, confirm, self._in(connection)))


class AsyncSteering(Generic[T]):
    """What people do to jobs, for an async queue."""

    _core: Core

    def _in(self, connection: Any) -> Any:
        raise NotImplementedError

    async def retry(self, ids: Iterable[int | AsyncJob[T]], *, connection: Any = None) -> int:
        """Have failed jobs be claimed again, from their first attempt on: see `Queue.retry`."""
        return await take_steps_async(retry(self._core, ids, self._in(connection)))

    async def reschedule(
        self,
        ids: Iterable[int | AsyncJob[T]],
        *,
        at: datetime | None = None,
        delay: Duration | None = None,
        connection: Any = None,
    ) -> int:
        """Have jobs be due at a time, or after a delay: see `Queue.reschedule`."""
        steps = reschedule(self._core, ids, at, delay, self._in(connection))
        return await take_steps_async(steps)

    async def run_now(self, ids: Iterable[int | AsyncJob[T]], *, connection: Any = None) -> int:
        """Have jobs that nobody has claimed be due now: see `Queue.run_now`."""
        return await take_steps_async(reschedule(self._core, ids, None, 0, self._in(connection)))

    async def fail(
        self,
        ids: Iterable[int | AsyncJob[T]],
        *,
        error: str | BaseException | None = None,
        connection: Any = None,
    ) -> int:
        """Give up live jobs, also those that are claimed: see `Queue.fail`."""
        return await take_steps_async(fail(self._core, ids, error, self._in(connection)))

    async def drop_jobs(self, ids: Iterable[int | AsyncJob[T]], *, connection: Any = None) -> int:
        """Delete live jobs, also those that are claimed: see `Queue.drop_jobs`."""
        return await take_steps_async(drop_jobs(self._core, ids, self._in(connection)))

    async def prune(
        self,
        *,
        older_than: Duration | None = None,
        state: State | None = None,
        connection: Any = None,
    ) -> int:
        """Delete finished jobs, in short transactions: see `Queue.prune`."""
        return await take_steps_async(prune(self._core, older_than, state, self._in(connection)))

    async def drop(self, key: str, *, connection: Any = None) -> bool:
        """Delete the live job with this key, also if it is claimed; False if there is none."""
        return await take_steps_async(drop(self._core, key, self._in(connection)))

    async def drop_all(self, confirm: str = "", *, connection: Any = None) -> int:
        """Delete every live job, in short transactions: see `Queue.drop_all`."""
        return await take_steps_async(drop_all(self._core, confirm, self._in(connection)))


# --- as steps -------------------------------------------------------------------------------------


def retry(core: Core, ids: Iterable[Any], connection: Any) -> Steps[int]:
    """Have failed jobs be claimed again."""
    chosen = check_ids(ids)
    store, notify = core.desk.store, wakes(core, connection)
    total = 0
    for start in range(0, len(chosen), BATCH):
        part = chosen[start : start + BATCH]
        retry = partial(store.archive.retry, *where_of(core), part, notify=notify)
        counted = Counted(retry, store.steering.retried)
        done: list[int] = yield partial(core.desk.run, counted, connection)
        total += len(done)
    core.desk.disturb(core.view.queue)
    return total


def prune(
    core: Core, older_than: Duration | None, state: State | str | None, connection: Any
) -> Steps[int]:
    """Delete what is older than given, or than the queue keeps it, in short transactions."""
    age = None if older_than is None else older_than_us(older_than)
    states: Sequence[State] = (State.COMPLETED, State.FAILED)
    if state is not None:
        states = (finished_state(state),)
    elif age is not None:
        states = (State.COMPLETED,)
    total = 0
    store = core.desk.store
    for chosen in states:
        done = BATCH
        while done >= BATCH:
            prune = partial(store.archive.prune, *where_of(core), state=chosen, older_than_us=age)
            counted = Counted(prune, store.steering.dropped)
            done = len((yield partial(core.desk.run, counted, connection)))
            total += done
    return total


def drop(core: Core, key: str, connection: Any) -> Steps[bool]:
    """Delete the live job of a key."""
    store = core.desk.store
    drop = partial(store.jobs.drop, core.view.queue, needed(key), core.view.kinds)
    counted = Counted(drop, store.steering.dropped)
    return bool((yield partial(core.desk.run, counted, connection)))


def drop_all(core: Core, confirm: str, connection: Any) -> Steps[int]:
    """Delete every live job, in short transactions."""
    if confirm != CONFIRMATION:
        raise InvalidInput(
            f"drop_all deletes every live job of queue {core.view.queue!r}; if that is what "
            f"you want, say drop_all(confirm={CONFIRMATION!r})"
        )
    archive, dropped = core.desk.store.archive, core.desk.store.steering.dropped
    total = 0
    for drop in (archive.drop_waiting, archive.drop_ready, archive.drop_claimed):
        done = 1
        while done:
            some = Counted(partial(drop, *where_of(core)), dropped)
            done = len((yield partial(core.desk.run, some, connection)))
            total += done
    return total


def reschedule(
    core: Core,
    ids: Iterable[Any],
    at: datetime | None,
    delay: Duration | None,
    connection: Any,
) -> Steps[int]:
    """Have jobs be due at another time."""
    if (at is None) == (delay is None):
        raise InvalidOption("give at= or delay=, and not both")
    micros = 0 if delay is None else round(to_seconds(delay, name="delay") * 1_000_000)
    when = When(None if at is None else due_micros(at), micros)
    steering, memo = core.desk.store.steering, dict[int, int]()
    move = partial(steering.reschedule, *where_of(core), when=when, memo=memo)
    change = partial(move, notify=wakes(core, connection))
    changes = [(change, partial(steering.moved, memo))]
    return (yield from each(core, ids, changes, connection, gives_back=connection is None))


def fail(
    core: Core, ids: Iterable[Any], error: str | BaseException | None, connection: Any
) -> Steps[int]:
    """Give jobs up."""
    steering, where = core.desk.store.steering, where_of(core)
    text, notify = error_text(error), wakes(core, connection)
    changes = [
        (partial(fail, *where, error=text, notify=notify), steering.ended)
        for fail in (steering.fail, steering.fail_claimed)
    ]
    return (yield from each(core, ids, changes, connection))


def drop_jobs(core: Core, ids: Iterable[Any], connection: Any) -> Steps[int]:
    """Delete jobs."""
    steering, notify = core.desk.store.steering, wakes(core, connection)
    changes = [
        (partial(drop, *where_of(core), notify=notify), steering.dropped)
        for drop in (steering.drop, steering.drop_claimed)
    ]
    return (yield from each(core, ids, changes, connection))


def each(
    core: Core,
    ids: Iterable[Any],
    changes: Iterable[tuple[Change, Arrived]],
    connection: Any,
    *,
    gives_back: bool = False,
) -> Steps[int]:
    """Do something with jobs wherever they stand, some in a transaction; how many it were. Those
    that were nowhere, or locked by somebody, are looked for again.
    """
    left = check_ids(ids)
    total = len(left)
    waiter = core.desk.new_waiter()
    for pause in PAUSES:
        if left and pause:
            yield partial(waiter.wait, pause)
            if gives_back:
                yield from give_back(core)
        for change, arrived in changes:
            done: set[int] = set()
            for start in range(0, len(left), BATCH):
                part = Counted(partial(change, left[start : start + BATCH]), arrived)
                done.update((yield partial(core.desk.run, part, connection)))
            left = [id for id in left if id not in done]
    core.desk.disturb(core.view.queue)
    return total - len(left)


def where_of(core: Core) -> tuple[str, Collection[str] | None]:
    """The queue, and the kinds of it that are seen here."""
    return core.view.queue, core.view.kinds


def wakes(core: Core, connection: Any) -> frozenset[str]:
    """Whom to wake, since a job may be due now that was not before."""
    return core.desk.notifier.due({wake_name(core.view.queue)}, alone=connection is None)


def give_back(core: Core) -> Steps[None]:
    """Have what is in expired locks be ready again."""
    for _ in range(GIVES_BACK_MAX):
        given: int = yield partial(core.desk.run, core.desk.store.claims.give_back)
        if not given:
            return


def older_than_us(older_than: Duration) -> int:
    return round(to_seconds(older_than, name="older_than") * 1_000_000)
