"""Concurrent single publishes that need the same lock share a transaction.

Calls with one *lane*, the lock they would wait for, go out together: while one transaction commits,
those that arrive wait, and then one of them publishes for all. No timer and no background thread: a
lone call goes out at once, and the more callers there are, the more each commit carries.

Calls that need different locks never share one. If they did, a publish to one key could wait for a
transaction that holds another; and if the one who waits is that transaction's owner, for ever: the
database sees only half of that circle.

Each call still gets its own result or its own error: when a shared transaction is refused, its
calls are repeated one by one.
"""

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from functools import partial

from rowmq.drivers.forking import after_fork
from rowmq.errors import ConnectionLost, RowMQError, TransientError
from rowmq.message import PublishResult
from rowmq.store.topics import Entry

__all__ = ["AsyncCombiner", "Combiner"]

CALLS_MAX = 1_000
BYTES_MAX = 4 * 1024 * 1024


class Call:
    """One caller's message, and what became of it."""

    __slots__ = ("done", "entry", "error", "leads", "result", "woken")

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self.done = False
        self.leads = False
        self.result: PublishResult | None = None
        self.error: BaseException | None = None
        # A lock that its caller waits for: an Event is made of two and takes three times as long.
        self.woken = threading.Lock()

    def settle(self, result: PublishResult | None, error: BaseException | None = None) -> None:
        self.result, self.error, self.done = result, error, True

    def outcome(self) -> PublishResult:
        if self.error is not None:
            raise self.error
        assert self.result is not None  # noqa: S101 - a call is settled with one or the other
        return self.result


class Lane:
    """The calls that wait for one lock; `led` says that one of them is publishing."""

    __slots__ = ("led", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[Call] = deque()
        self.led = False


class Combiner:
    """Combines the calls of threads.

    A caller who finds nobody leading its lane leads: it publishes all that wait, wakes their
    callers, and then wakes one of those who have come meanwhile, to lead next. So callers whose
    messages are out are free to bring more while the next transaction runs.
    """

    def __init__(
        self,
        publish: Callable[[list[Entry]], Sequence[PublishResult]],
        lane_of: Callable[[Entry], Hashable],
    ) -> None:
        self._publish = publish
        self._lane_of = lane_of
        self.reset()
        after_fork(self)

    def reset(self) -> None:
        """Nobody waits and nobody leads: at the start, and in a forked child."""
        self._lock = threading.Lock()
        self._lanes: dict[Hashable, Lane] = {}

    def submit(self, entry: Entry) -> PublishResult:
        """Publish one message, perhaps together with others."""
        call, name = Call(entry), self._lane_of(entry)
        call.woken.acquire()
        with self._lock:
            lane = self._lanes.setdefault(name, Lane())
            lane.waiting.append(call)
            leads = call.leads = not lane.led
            lane.led = True
        try:
            if not leads:
                call.woken.acquire()  # until its message is out, or it is to lead
            while not call.done:
                self._publish_next(lane)
        finally:
            self._leave(name, lane, call)
        return call.outcome()

    def _publish_next(self, lane: Lane) -> None:
        with self._lock:
            calls = take(lane.waiting)
        try:
            self._settle(calls)
        except BaseException:
            # This thread is interrupted: those it publishes for must not wait for ever.
            refuse(
                [call for call in calls if not call.done],
                ConnectionLost(
                    "the thread that was publishing was interrupted; "
                    "whether this message is out is not known"
                ),
            )
            raise
        finally:
            for call in calls:
                call.woken.release()

    def _leave(self, name: Hashable, lane: Lane, call: Call) -> None:
        """Go, whether published or interrupted; who leads hands over to the next one waiting."""
        with self._lock:
            if not call.done:  # nobody is to publish what its caller has given up
                with contextlib.suppress(ValueError):
                    lane.waiting.remove(call)
            if not call.leads:
                return
            if lane.waiting:
                lane.waiting[0].leads = True
                lane.waiting[0].woken.release()
            else:
                del self._lanes[name]

    def _settle(self, calls: list[Call]) -> None:
        try:
            results = self._publish([call.entry for call in calls])
        except Exception as error:  # noqa: BLE001 - it is raised where it belongs
            if may_repeat(calls, error):
                for call in calls:
                    self._settle([call])
            else:
                refuse(calls, error)
        else:
            for call, result in zip(calls, results, strict=True):
                call.settle(result)


class AsyncCombiner:
    """Combines the calls of tasks. One task publishes for a lane, apart from its callers: so a
    caller that is cancelled takes nobody else with it.
    """

    def __init__(
        self,
        publish: Callable[[list[Entry]], Awaitable[Sequence[PublishResult]]],
        lane_of: Callable[[Entry], Hashable],
        *,
        at_once: int,
    ) -> None:
        self._publish = publish
        self._lane_of = lane_of
        self._at_once = at_once
        self.reset()
        after_fork(self)

    def reset(self) -> None:
        """Nobody waits: at the start, and in a forked child."""
        self._lanes: dict[Hashable, deque[Call]] = {}
        self._changed: dict[Call, asyncio.Future[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        # As many lanes at a time as there are connections: a burst of keys waits here, where there
        # is no hurry, and not for the pool, which gives up after a while.
        self._turns = asyncio.Semaphore(self._at_once)

    async def submit(self, entry: Entry) -> PublishResult:
        """Publish one message, perhaps together with others."""
        call, name = Call(entry), self._lane_of(entry)
        self._changed[call] = asyncio.get_running_loop().create_future()
        waiting = self._lanes.get(name)
        if waiting is None:
            waiting = self._lanes[name] = deque()
            task = asyncio.create_task(self._work(name, waiting), name="rowmq-publish")
            self._tasks.add(task)
            task.add_done_callback(partial(self._close_lane, name, waiting))
        waiting.append(call)
        try:
            await self._changed[call]
        except BaseException:
            # Cancelled while waiting: nobody is to publish what its caller has given up.
            with contextlib.suppress(ValueError):
                waiting.remove(call)
            raise
        finally:
            self._changed.pop(call, None)
        return call.outcome()

    async def close(self) -> None:
        """Wait until what was submitted is out."""
        if self._tasks:
            await asyncio.wait(set(self._tasks))

    async def _work(self, name: Hashable, waiting: deque[Call]) -> None:
        calls: list[Call] = []
        try:
            while waiting:
                async with self._turns:
                    calls = take(waiting)
                    await self._settle(calls)
                self._wake(calls)
        finally:
            self._lanes.pop(name, None)
            # If the loop is being shut down around us, nobody may be left waiting for ever.
            self._refuse_cancelled(calls)

    def _close_lane(self, name: Hashable, waiting: deque[Call], task: asyncio.Task[None]) -> None:
        """When its task has ended; which, cancelled early enough, has never begun."""
        self._tasks.discard(task)
        if self._lanes.get(name) is waiting:
            del self._lanes[name]
        self._refuse_cancelled(list(waiting))
        waiting.clear()

    def _refuse_cancelled(self, calls: list[Call]) -> None:
        calls = [call for call in calls if not call.done]
        refuse(
            calls,
            ConnectionLost("publishing was cancelled; whether this message is out is unknown"),
        )
        self._wake(calls)

    def _wake(self, calls: list[Call]) -> None:
        for call in calls:
            future = self._changed.get(call)
            if future is not None and not future.done():
                future.set_result(None)

    async def _settle(self, calls: list[Call]) -> None:
        try:
            results = await self._publish([call.entry for call in calls])
        except Exception as error:  # noqa: BLE001 - it is raised where it belongs
            if may_repeat(calls, error):
                for call in calls:
                    await self._settle([call])
            else:
                refuse(calls, error)
        else:
            for call, result in zip(calls, results, strict=True):
                call.settle(result)


def take(waiting: deque[Call]) -> list[Call]:
    """The calls that go into the next transaction, oldest first."""
    calls: list[Call] = []
    size = 0
    while waiting and len(calls) < CALLS_MAX:
        size += waiting[0].entry.size
        if calls and size > BYTES_MAX:
            break
        calls.append(waiting.popleft())
    return calls


def may_repeat(calls: Sequence[Call], error: Exception) -> bool:
    """Whether to repeat calls one by one: the database answered, and not for each of them."""
    return len(calls) > 1 and not isinstance(error, TransientError)


def refuse(calls: Sequence[Call], error: Exception) -> None:
    """Settle calls with an error: each with its own, since it is raised in its own thread."""
    for call in calls:
        own = error
        if len(calls) > 1 and isinstance(error, RowMQError):
            own = type(error)(*error.args)
            own.__cause__ = error
        call.settle(None, own)
