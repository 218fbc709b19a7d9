"""Concurrent calls that need the same lock share a transaction.

Calls with one *lane*, the lock they would wait for, go out together: while one transaction commits,
those that arrive wait, and then one of them works for all. No timer and no background thread: a
lone call goes out at once, and the more callers there are, the more each commit carries. Work that
nobody is in a hurry for may *linger*, so that more calls join it.

Calls that need different locks never share one. If they did, a publish to one key could wait for a
transaction that holds another; and if the one who waits is that transaction's owner, for ever: the
database sees only half of that circle.

Each call still gets its own result or its own error. The work may answer single items with an
error; and when a shared transaction is refused, its calls are repeated one by one, if they may be.
"""

import asyncio
import contextlib
import contextvars
import copy
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Generic, TypeVar, cast

from rowmq.drivers.forking import after_fork
from rowmq.errors import ConnectionLost, RowMQError, TransientError
from rowmq.tracing import Tracer

__all__ = ["AsyncCombiner", "Combiner"]

CALLS_MAX = 1_000
BYTES_MAX = 4 * 1024 * 1024

UNTRACED = contextlib.nullcontext()

I = TypeVar("I")  # noqa: E741 - an item
R = TypeVar("R")


class Call(Generic[I, R]):
    """One caller's item, and what became of it."""

    __slots__ = ("changed", "done", "error", "item", "leads", "origin", "result", "size", "woken")

    def __init__(self, item: I, size: int) -> None:
        self.item = item
        self.size = size
        self.done = False
        self.leads = False
        self.result: R | None = None
        self.error: BaseException | None = None
        # A thread waits for a lock, a task for a future; each is made by who waits. Not for an
        # Event, which is made of two locks and takes three times as long.
        self.woken: threading.Lock
        self.changed: asyncio.Future[None] | None = None
        self.origin: Any = None
        """Where in a trace it was made, if somebody traces."""

    def settle(self, result: R | None, error: BaseException | None = None) -> None:
        self.result, self.error, self.done = result, error, True

    def outcome(self) -> R:
        if self.error is not None:
            raise self.error
        return cast("R", self.result)


class Marker:
    """A flush that waits: when it comes to the head of its lane, all before it are done."""

    __slots__ = ("changed", "woken")

    def __init__(self) -> None:
        self.woken = threading.Lock()
        self.changed: asyncio.Future[None] | None = None


Waiting = deque[Call[I, R] | Marker]


class Lane(Generic[I, R]):
    """The calls that wait for one lock; `led` says that one of them is working."""

    __slots__ = ("led", "waiting")

    def __init__(self) -> None:
        self.waiting: Waiting[I, R] = deque()
        self.led = False


class Combiner(Generic[I, R]):
    """Combines the calls of threads.

    A caller who finds nobody leading its lane leads: it works for all that wait, wakes their
    callers, and then wakes one of those who have come meanwhile, to lead next. So callers whose
    items are done are free to bring more while the next transaction runs.
    """

    tracer: Tracer | None = None

    def __init__(
        self,
        work: Callable[[list[I]], Sequence[R | Exception]],
        lane_of: Callable[[I], Hashable],
        size_of: Callable[[I], int],
        *,
        repeatable: bool,
        linger: float = 0.0,
        calls_max: int | None = None,
    ) -> None:
        """`work` answers each item with its result or its error. `repeatable` says that refused
        work may be repeated item by item; `linger` is for how many seconds it waits for more.
        """
        self._work = work
        self._lane_of = lane_of
        self._size_of = size_of
        self._repeatable = repeatable
        self._linger_seconds = linger
        self._calls_max = CALLS_MAX if calls_max is None else calls_max
        self.reset()
        after_fork(self)

    def reset(self) -> None:
        """Nobody waits and nobody leads: at the start, and in a forked child."""
        self._lock = threading.Lock()
        self._lanes: dict[Hashable, Lane[I, R]] = {}
        self._flushes = 0
        self._hurry = threading.Event()

    def submit(self, item: I) -> R:
        """Have one item worked on, perhaps together with others."""
        call: Call[I, R] = Call(item, self._size_of(item))
        if self.tracer is not None:
            call.origin = self.tracer.origin()
        self._hand_over(self._lane_of(item), call)
        return call.outcome()

    def flush(self) -> None:
        """Wait until what was submitted before is done; meanwhile nobody lingers."""
        markers: list[Marker] = []
        with self._lock:
            self._flushes += 1
            self._hurry.set()
            for lane in self._lanes.values():
                marker = Marker()
                marker.woken.acquire()
                lane.waiting.append(marker)
                markers.append(marker)
        try:
            for marker in markers:
                marker.woken.acquire()
        finally:
            with self._lock:
                self._flushes -= 1
                if not self._flushes:
                    self._hurry.clear()

    def _hand_over(self, name: Hashable, call: Call[I, R]) -> None:
        """Wait until a call is done, and work for the lane while its caller is to lead."""
        call.woken = threading.Lock()
        call.woken.acquire()
        lane: Lane[I, R] | None = None
        try:
            with self._lock:
                lane = self._lanes.get(name)
                if lane is None:
                    lane = self._lanes[name] = Lane()
                lane.waiting.append(call)
                call.leads = not lane.led
                lane.led = True
            if not call.leads:
                call.woken.acquire()  # until it is done, or its caller is to lead
            while not call.done:
                self._work_next(lane)
        finally:
            if lane is not None:
                self._leave(name, lane, call)

    def _work_next(self, lane: Lane[I, R]) -> None:
        if self._linger_seconds and len(lane.waiting) < self._calls_max:
            self._hurry.wait(self._linger_seconds)
        calls: list[Call[I, R]] = []
        try:
            with self._lock:
                release(markers_reached(lane.waiting))
                calls = take(lane.waiting, self._calls_max)
            self._settle(calls)
        except BaseException:
            # This thread is interrupted: those it works for must not wait for ever.
            refuse(
                [call for call in calls if not call.done],
                ConnectionLost(
                    "the thread that did this together with other calls was interrupted; "
                    "whether it is done is not known"
                ),
            )
            raise
        finally:
            release(calls)

    def _leave(self, name: Hashable, lane: Lane[I, R], call: Call[I, R]) -> None:
        """Go, whether done or interrupted; who leads hands over to the next one waiting."""
        with self._lock:
            withdraw(lane.waiting, call)
            if not call.leads:
                return
            # A flush never leads: it waits for one lane after the other, and would hold this one
            # up until all before it are done.
            release(markers_reached(lane.waiting))
            if lane.waiting:
                heir = cast("Call[I, R]", lane.waiting[0])
                heir.leads = True
                heir.woken.release()
            else:
                del self._lanes[name]

    def _settle(self, calls: list[Call[I, R]]) -> None:
        if not calls:
            return
        try:
            with UNTRACED if self.tracer is None else together(self.tracer, calls):
                answers = self._work([call.item for call in calls])
        except Exception as error:  # noqa: BLE001 - it is raised where it belongs
            if self._repeatable and may_repeat(calls, error):
                for call in calls:
                    self._settle([call])
            else:
                refuse(calls, error)
        else:
            deal_out(calls, answers)


class AsyncCombiner(Generic[I, R]):
    """Combines the calls of tasks. One task works for a lane, apart from its callers: so a caller
    that is cancelled takes nobody else with it.
    """

    tracer: Tracer | None = None

    def __init__(
        self,
        work: Callable[[list[I]], Awaitable[Sequence[R | Exception]]],
        lane_of: Callable[[I], Hashable],
        size_of: Callable[[I], int],
        *,
        at_once: int,
        repeatable: bool,
        linger: float = 0.0,
        calls_max: int | None = None,
    ) -> None:
        """As for `Combiner`; `at_once` is for how many lanes it works at a time."""
        self._work = work
        self._lane_of = lane_of
        self._size_of = size_of
        self._at_once = at_once
        self._repeatable = repeatable
        self._linger_seconds = linger
        self._calls_max = CALLS_MAX if calls_max is None else calls_max
        self.reset()
        after_fork(self)

    def reset(self) -> None:
        """Nobody waits: at the start, and in a forked child."""
        self._lanes: dict[Hashable, Waiting[I, R]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._flushes = 0
        self._lingering: set[asyncio.Future[None]] = set()
        # As many lanes at a time as there are connections: a burst of keys waits here, where there
        # is no hurry, and not for the pool, which gives up after a while.
        self._turns = asyncio.Semaphore(self._at_once)

    async def submit(self, item: I) -> R:
        """Have one item worked on, perhaps together with others."""
        call: Call[I, R] = Call(item, self._size_of(item))
        if self.tracer is not None:
            call.origin = self.tracer.origin()
        changed = call.changed = asyncio.get_running_loop().create_future()
        waiting = self._lane(self._lane_of(item))
        waiting.append(call)
        try:
            await changed
        except BaseException:
            withdraw(waiting, call)  # cancelled while waiting
            raise
        return call.outcome()

    async def flush(self) -> None:
        """Wait until what was submitted before is done; meanwhile nobody lingers."""
        markers: list[Marker] = []
        for waiting in self._lanes.values():
            markers.append(Marker())
            waiting.append(markers[-1])
        with self._hurry():
            await woken(markers)

    async def close(self) -> None:
        """Wait until what was submitted is done; meanwhile nobody lingers."""
        if self._tasks:
            with self._hurry():
                await asyncio.wait(set(self._tasks))

    @contextlib.contextmanager
    def _hurry(self) -> Iterator[None]:
        self._flushes += 1
        for pause in self._lingering:
            if not pause.done():
                pause.set_result(None)
        try:
            yield
        finally:
            self._flushes -= 1

    def _lane(self, name: Hashable) -> Waiting[I, R]:
        """Those who wait for a lock; a task works for them from now on, if none does yet."""
        waiting = self._lanes.get(name)
        if waiting is not None:
            return waiting
        waiting = deque()
        # It works for others, too, and so not in the context of whoever came first.
        task = asyncio.create_task(
            self._serve(name, waiting), name="rowmq-combine", context=contextvars.Context()
        )
        self._tasks.add(task)
        task.add_done_callback(partial(self._close_lane, name, waiting))
        self._lanes[name] = waiting
        return waiting

    async def _serve(self, name: Hashable, waiting: Waiting[I, R]) -> None:
        calls: list[Call[I, R]] = []
        try:
            while waiting:
                await self._linger(waiting)
                async with self._turns:
                    calls = take(waiting, self._calls_max)
                    await self._settle(calls)
                wake(calls)
                wake(markers_reached(waiting))
        finally:
            self._lanes.pop(name, None)
            # If the loop is being shut down around us, nobody may be left waiting for ever.
            refuse_cancelled(calls)

    async def _linger(self, waiting: Waiting[I, R]) -> None:
        if not self._linger_seconds or self._flushes or len(waiting) >= self._calls_max:
            return
        # Not an Event, which would belong to the first loop that waited for it.
        pause = asyncio.get_running_loop().create_future()
        self._lingering.add(pause)
        try:
            await asyncio.wait({pause}, timeout=self._linger_seconds)
        finally:
            self._lingering.discard(pause)

    def _close_lane(self, name: Hashable, waiting: Waiting[I, R], task: asyncio.Task[None]) -> None:
        """When its task has ended; which, cancelled early enough, has never begun."""
        self._tasks.discard(task)
        if self._lanes.get(name) is waiting:
            del self._lanes[name]
        refuse_cancelled(waiting)
        waiting.clear()

    async def _settle(self, calls: list[Call[I, R]]) -> None:
        if not calls:
            return
        try:
            with UNTRACED if self.tracer is None else together(self.tracer, calls):
                answers = await self._work([call.item for call in calls])
        except Exception as error:  # noqa: BLE001 - it is raised where it belongs
            if self._repeatable and may_repeat(calls, error):
                for call in calls:
                    await self._settle([call])
            else:
                refuse(calls, error)
        else:
            deal_out(calls, answers)


def together(
    tracer: Tracer, calls: Sequence[Call[I, R]]
) -> contextlib.AbstractContextManager[None]:
    """The work for calls, as part of the traces that they were made in."""
    return tracer.together([call.origin for call in calls])


def take(waiting: Waiting[I, R], calls_max: int) -> list[Call[I, R]]:
    """The calls that go into the next transaction, oldest first, none of them behind a flush."""
    calls: list[Call[I, R]] = []
    size = 0
    while waiting and len(calls) < calls_max:
        call = waiting[0]
        if isinstance(call, Marker):
            break
        size += call.size
        if calls and size > BYTES_MAX:
            break
        calls.append(call)
        waiting.popleft()
    return calls


def markers_reached(waiting: Waiting[I, R]) -> list[Marker]:
    """Take the flushes from the head of a lane: nothing before them is left to do."""
    markers: list[Marker] = []
    while waiting and isinstance(marker := waiting[0], Marker):
        markers.append(marker)
        waiting.popleft()
    return markers


def withdraw(waiting: Waiting[I, R], call: Call[I, R]) -> None:
    """Nobody is to work for what its caller has given up."""
    if call.done:
        return
    kept = [waiter for waiter in waiting if waiter is not call]
    waiting.clear()
    waiting.extend(kept)


def release(waiters: Iterable[Call[I, R] | Marker]) -> None:
    """Wake threads."""
    for waiter in waiters:
        waiter.woken.release()


async def woken(markers: Sequence[Marker]) -> None:
    """Wait in a task, until all are woken."""
    loop = asyncio.get_running_loop()
    for marker in markers:
        marker.changed = loop.create_future()
    for marker in markers:
        await cast("asyncio.Future[None]", marker.changed)


def wake(waiters: Iterable[Call[I, R] | Marker]) -> None:
    """Wake tasks, except those that have gone."""
    for waiter in waiters:
        if waiter.changed is not None and not waiter.changed.done():
            waiter.changed.set_result(None)


def refuse_cancelled(waiters: Iterable[Call[I, R] | Marker]) -> None:
    """Wake tasks whose work was cancelled, so that nobody is left waiting for ever."""
    refuse(
        [call for call in waiters if isinstance(call, Call) and not call.done],
        ConnectionLost(
            "the task that did this together with other calls was cancelled; "
            "whether it is done is not known"
        ),
    )
    wake(waiters)


def deal_out(calls: Sequence[Call[I, R]], answers: Sequence[R | Exception]) -> None:
    """Give every call its answer: a result, or an error of its own."""
    for call, answer in zip(calls, answers, strict=True):
        if isinstance(answer, Exception):
            call.settle(None, answer)
        else:
            call.settle(answer)


def may_repeat(calls: Sequence[Call[I, R]], error: Exception) -> bool:
    """Whether to repeat calls one by one: the database answered, and not for each of them; and for
    certain nothing was done.
    """
    doubted = isinstance(error, RowMQError) and error.in_doubt
    return len(calls) > 1 and not doubted and not isinstance(error, TransientError)


def refuse(calls: Sequence[Call[I, R]], error: Exception) -> None:
    """Settle calls with an error: each with its own, since it is raised in its own thread."""
    for call in calls:
        call.settle(None, error if len(calls) == 1 else copy_of(error))


def copy_of(error: Exception) -> Exception:
    """The same error for another thread; if its kind cannot be copied, they must share it."""
    try:
        own = copy.copy(error)
    except Exception:  # noqa: BLE001 - whatever its constructor makes of these arguments
        return error
    own.__cause__ = error
    return own
