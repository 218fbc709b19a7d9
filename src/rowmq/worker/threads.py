"""Threads for sync handlers. They are daemons: a handler that never ends cannot keep a process."""

import asyncio
import contextlib
import contextvars
import queue
import threading
from collections.abc import Callable
from typing import Any

__all__ = ["Threads"]

Call = tuple[Callable[[], Any], "asyncio.Future[Any]"]


class Threads:
    """Runs functions in up to so many threads, for one event loop."""

    def __init__(self, count: int, name: str) -> None:
        self._count = count
        self._name = name
        self._calls: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._busy = 0

    def call(self, function: Callable[[], Any]) -> "asyncio.Future[Any]":
        """Run a function in a thread, with the context of the caller. To be awaited."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        context = contextvars.copy_context()
        self._busy += 1
        future.add_done_callback(self._done)
        self._calls.put((lambda: context.run(function), future))
        if len(self._threads) < min(self._busy, self._count):
            name = f"{self._name}-{len(self._threads) + 1}"
            thread = threading.Thread(target=self._work, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()
        return future

    def close(self) -> None:
        """Let the threads end when they are done."""
        for _ in self._threads:
            self._calls.put(None)

    def _done(self, _: "asyncio.Future[Any]") -> None:
        self._busy -= 1

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            do(*call)
            del call  # it may be long before there is another one


def do(function: Callable[[], Any], future: "asyncio.Future[Any]") -> None:
    """Call a function, and tell what it gave."""
    try:
        result = function()
    except StopIteration as error:  # which no future may be given
        tell(future, failure=RuntimeError(f"the handler raised {error!r}"))
    except BaseException as error:  # noqa: BLE001 - it is raised where it is awaited
        tell(future, failure=error)
    else:
        tell(future, result)
    finally:
        del future  # the error refers to this frame, and would keep itself


def tell(
    future: "asyncio.Future[Any]", result: Any = None, failure: BaseException | None = None
) -> None:
    """Bring what a function gave to the event loop, unless nobody waits for it any more."""

    def bring() -> None:
        if future.done():
            return
        if failure is None:
            future.set_result(result)
        else:
            future.set_exception(failure)

    with contextlib.suppress(RuntimeError):  # the loop may be closed by now
        future.get_loop().call_soon_threadsafe(bring)
