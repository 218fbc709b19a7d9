"""Concurrent single publishes of one process share a transaction.

While one transaction commits, the calls that arrive wait together; then one of them publishes for
all. No timer and no background thread: a lone call goes out at once, and the more callers there
are, the more each commit carries. Messages to one partition gain most, since its counter's lock is
held over every commit.

Each call still gets its own result or its own error: when a shared transaction is refused, its
calls are repeated one by one.
"""

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

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


class Combiner:
    """Combines the calls of threads.

    A caller who finds nobody leading leads: it publishes all that wait, wakes their callers, and
    then wakes one of those who have come meanwhile, to lead next. So callers whose messages are out
    are free to bring more while the next transaction runs.
    """

    def __init__(self, publish: Callable[[list[Entry]], Sequence[PublishResult]]) -> None:
        self._publish = publish
        self.reset()
        after_fork(self)

    def reset(self) -> None:
        """Nobody waits and nobody leads: at the start, and in a forked child."""
        self._lock = threading.Lock()
        self._waiting: deque[Call] = deque()
        self._led = False

    def submit(self, entry: Entry) -> PublishResult:
        """Publish one message, perhaps together with others."""
        call = Call(entry)
        call.woken.acquire()
        with self._lock:
            self._waiting.append(call)
            leads = call.leads = not self._led
            self._led = True
        try:
            if not leads:
                call.woken.acquire()  # until its message is out, or it is to lead
            while not call.done:
                self._publish_next()
        finally:
            self._leave(call)
        return call.outcome()

    def _publish_next(self) -> None:
        with self._lock:
            calls = take(self._waiting)
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

    def _leave(self, call: Call) -> None:
        """Go, whether published or interrupted; who leads hands over to the next one waiting."""
        with self._lock:
            if not call.done:  # nobody is to publish what its caller has given up
                with contextlib.suppress(ValueError):
                    self._waiting.remove(call)
            if not call.leads:
                return
            self._led = bool(self._waiting)
            if self._led:
                self._waiting[0].leads = True
                self._waiting[0].woken.release()

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
    """Combines the calls of tasks. One task publishes, apart from its callers: so a caller that is
    cancelled takes nobody else with it.
    """

    def __init__(
        self, publish: Callable[[list[Entry]], Awaitable[Sequence[PublishResult]]]
    ) -> None:
        self._publish = publish
        self.reset()
        after_fork(self)

    def reset(self) -> None:
        """Nobody waits: at the start, and in a forked child."""
        self._waiting: deque[Call] = deque()
        self._changed: dict[Call, asyncio.Future[None]] = {}
        self._task: asyncio.Task[None] | None = None

    async def submit(self, entry: Entry) -> PublishResult:
        """Publish one message, perhaps together with others."""
        call = Call(entry)
        self._changed[call] = asyncio.get_running_loop().create_future()
        self._waiting.append(call)
        if self._task is None:
            self._task = asyncio.create_task(self._work(), name="rowmq-publish")
        try:
            await self._changed[call]
        except BaseException:
            # Cancelled while waiting: nobody is to publish what its caller has given up.
            with contextlib.suppress(ValueError):
                self._waiting.remove(call)
            raise
        finally:
            self._changed.pop(call, None)
        return call.outcome()

    async def close(self) -> None:
        """Wait until what was submitted is out."""
        if self._task is not None:
            await asyncio.wait({self._task})

    async def _work(self) -> None:
        calls: list[Call] = []
        try:
            while self._waiting:
                calls = take(self._waiting)
                await self._settle(calls)
                self._wake(calls)
        except BaseException:
            # The loop is being shut down around us: nobody may be left waiting for ever.
            calls += self._waiting
            self._waiting.clear()
            refuse(
                [call for call in calls if not call.done],
                ConnectionLost("publishing was cancelled; whether this message is out is unknown"),
            )
            self._wake(calls)
            raise
        finally:
            self._task = None

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
