"""Connections, lent out one at a time and never more than so many.

A pool is a stack of places. A place is empty or holds an idle session; who takes an empty one opens
a session into it. The session used last is lent out first, so that few stay warm.

After a fork the child must not touch its parent's connections: not use them, not even close them,
for that would say goodbye to the server in the parent's name. So a pool for threads closes those
that are idle before the fork; those lent out the child keeps, unused, for as long as it lives, and
starts with empty places. An async pool cannot be emptied from outside its loop: its child keeps
them all.
"""

import asyncio
import contextlib
import ctypes
import queue
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

from rowmq.drivers.base import AsyncSession, Session
from rowmq.drivers.forking import after_fork, around_fork
from rowmq.errors import Closed, PoolTimeout

__all__ = ["AsyncPool", "Pool"]

S = TypeVar("S", bound=Session | AsyncSession)

LOOK_SECONDS = 1.0
"""How often whoever waits for a place looks, without being told that there is one."""


class _Places(Generic[S]):
    """The stack of places, and who is in them."""

    stack: Callable[[], Any]
    empty: type[Exception]

    def __init__(self, open_session: Callable[[], Any], *, size: int, timeout: float) -> None:
        self.open_session = open_session
        self.size = size
        self.timeout = timeout
        self.closed = False
        self.waits = 0
        """How often somebody had to wait for a session, and for how long in all; for metrics."""
        self.waited_seconds = 0.0
        self.empty_places()
        after_fork(self)

    def reset(self) -> None:
        """In a forked child: keep the parent's sessions, and never touch them."""
        keep_for_ever((self.places, self.own))
        self.empty_places()

    def empty_places(self) -> None:
        """Start with no session."""
        self.places = type(self).stack()
        self.own: set[S] = set()
        for _ in range(self.size):
            self.places.put_nowait(None)

    @property
    def in_use(self) -> int:
        """How many sessions are lent out, or are being opened."""
        return max(0, self.size - int(self.places.qsize()))

    def owns(self, session: S) -> bool:
        """Whether a session is of this process: after a fork, the parent's are not."""
        return session in self.own

    def release(self, session: S, *, healthy: bool) -> None:
        """Give a session back. One that is not healthy is closed and its place left empty."""
        if session not in self.own:
            return  # the parent's, which it was before the fork
        if healthy and not self.closed:
            self.places.put_nowait(session)
        else:
            try:
                self._close(session)
            finally:
                self.places.put_nowait(None)

    def clear(self) -> None:
        """Close the idle sessions: they were opened to a server that has gone since."""
        for _ in range(self._drain()):
            self.places.put_nowait(None)

    def _drain(self) -> int:
        """Close the idle sessions, and take all free places away: how many those are."""
        drained: list[S | None] = []
        with contextlib.suppress(self.empty):
            while True:
                drained.append(self.places.get_nowait())
        for session in drained:
            if session is not None:
                self._close(session)
        return len(drained)

    def close(self) -> None:
        """Close the idle sessions now, and those lent out as they come back."""
        self.closed = True
        self.clear()

    def _close(self, session: S) -> None:
        self.own.discard(session)
        session.close()

    def refuse_if_closed(self) -> None:
        if self.closed:
            raise Closed("this client was closed; connect again")

    def check_place(self, place: S | None) -> S | None:
        """The place that a caller got, unless the pool was closed while it waited."""
        if self.closed:
            self.places.put_nowait(None)
            if place is not None:
                self._close(place)
            self.refuse_if_closed()
        return place

    def exhausted(self) -> PoolTimeout:
        return PoolTimeout(
            f"all {self.size} connections were in use for {self.timeout:g} seconds; raise "
            f"pool_size, end transactions sooner, or pass the open transaction as connection="
        )


class _Stack:
    """The last one in is the first one out, for threads.

    Ctrl-C may come between any two steps of Python's own. Then `queue.LifoQueue` may keep its lock,
    and whoever closes the pool waits for ever. Here what is there is there after each single step;
    a bell that was not rung only makes somebody look a little later.
    """

    def __init__(self) -> None:
        self._places: deque[Any] = deque()
        self._bell: queue.SimpleQueue[None] = queue.SimpleQueue()
        """Rung for each place that comes, as long as it is there."""

    def put_nowait(self, place: Any) -> None:
        self._places.append(place)
        self._bell.put(None)

    def get(self, *, timeout: float) -> Any:
        """Wait so long for a place; raises `queue.Empty` if none came back."""
        deadline = time.monotonic() + timeout
        while True:
            with contextlib.suppress(queue.Empty):
                return self.get_nowait()
            left = deadline - time.monotonic()
            if left <= 0:
                raise queue.Empty
            with contextlib.suppress(queue.Empty, IndexError):
                self._bell.get(timeout=min(left, LOOK_SECONDS))
                return self._places.pop()

    def get_nowait(self) -> Any:
        try:
            place = self._places.pop()
        except IndexError:
            raise queue.Empty from None
        with contextlib.suppress(queue.Empty):
            self._bell.get_nowait()
        return place

    def qsize(self) -> int:
        return len(self._places)


class Pool(_Places[S]):
    """A pool for threads."""

    stack = _Stack
    empty = queue.Empty
    open_session: Callable[[], S]

    def __init__(
        self,
        open_session: Callable[[], S],
        *,
        size: int,
        timeout: float,
        fork_patience: float = 0.0,
    ) -> None:
        """A fork waits `fork_patience` seconds for the sessions that other threads have."""
        super().__init__(open_session, size=size, timeout=timeout)
        self.fork_patience = fork_patience
        self.withheld = 0
        around_fork(self)

    def suspend(self) -> None:
        """Close the idle sessions, and lend nothing out until the fork is over."""
        self.withheld += self._drain()
        deadline = time.monotonic() + self.fork_patience
        with contextlib.suppress(queue.Empty):
            while self.withheld < self.size:
                session = self.places.get(timeout=max(0.0, deadline - time.monotonic()))
                self.withheld += 1
                if session is not None:
                    self._close(session)

    def resume(self) -> None:
        """Lend out again."""
        withheld, self.withheld = self.withheld, 0
        for _ in range(withheld):
            self.places.put_nowait(None)

    def reset(self) -> None:
        super().reset()
        self.withheld = 0

    def acquire(self) -> S:
        """A session for the caller alone, idle or new; waits while all are lent out."""
        self.refuse_if_closed()
        try:
            place: S | None = self.places.get_nowait()
        except queue.Empty:
            place = self._next_place()
        session = self.check_place(place)
        if session is None:
            try:
                session = self.open_session()
            except BaseException:
                self.places.put_nowait(None)
                raise
            self.own.add(session)
        return session

    def _next_place(self) -> S | None:
        began = time.monotonic()
        self.waits += 1
        try:
            place: S | None = self.places.get(timeout=self.timeout)
            return place
        except queue.Empty:
            raise self.exhausted() from None
        finally:
            self.waited_seconds += time.monotonic() - began


class AsyncPool(_Places[S]):
    """A pool for one event loop."""

    stack = asyncio.LifoQueue
    empty = asyncio.QueueEmpty
    open_session: Callable[[], Awaitable[S]]

    async def acquire(self) -> S:
        """A session for the caller alone, idle or new; waits while all are lent out."""
        self.refuse_if_closed()
        try:
            session: S | None = self.places.get_nowait()
        except asyncio.QueueEmpty:
            session = self.check_place(await self._next_place())
        if session is None:
            try:
                session = await self.open_session()
            except BaseException:
                self.places.put_nowait(None)
                raise
            self.own.add(session)
        return session

    async def _next_place(self) -> S | None:
        began = time.monotonic()
        self.waits += 1
        try:
            async with asyncio.timeout(self.timeout):
                place: S | None = await self.places.get()
                return place
        except TimeoutError:
            raise self.exhausted() from None
        finally:
            self.waited_seconds += time.monotonic() - began


def keep_for_ever(thing: Any) -> None:
    """Keep an object beyond even the end of the interpreter, which would finalise it: a connection
    closes itself then, and SQLite's would roll back the parent's transaction in shared memory.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))
