"""Runs a worker's event loop: like `asyncio.run`, but a task that will not end cannot keep it."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

__all__ = ["run_loop"]

T = TypeVar("T")

END_SECONDS = 1.0
"""How long tasks that are left have to end, once they are cancelled."""


def run_loop(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, and let go of what does not end with it."""
    loop = asyncio.new_event_loop()
    try:
        asyncio.set_event_loop(loop)
        loop.set_default_executor(DaemonExecutor())
        result = loop.run_until_complete(main)
        loop.run_until_complete(end_tasks())
        loop.run_until_complete(loop.shutdown_asyncgens())
        return result
    finally:
        asyncio.set_event_loop(None)
        loop.close()


class DaemonExecutor(ThreadPoolExecutor):
    """Threads for `asyncio.to_thread` that do not outlive the process: Python waits for those of a
    plain pool when it exits, however long they take.
    """

    def submit(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> "Future[T]":
        future: Future[T] = Future()

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(function(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
                future.set_exception(error)

        threading.Thread(target=work, name="rowmq-thread", daemon=True).start()
        return future


async def end_tasks() -> None:
    """Cancel every other task, and wait a moment for them."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    if left:
        await asyncio.wait(left, timeout=END_SECONDS)
