"""Runs a worker's event loop: like `asyncio.run`, but a task that will not end cannot keep it."""

import asyncio
from collections.abc import Coroutine
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
        result = loop.run_until_complete(main)
        loop.run_until_complete(end_tasks())
        loop.run_until_complete(loop.shutdown_asyncgens())
        return result
    finally:
        asyncio.set_event_loop(None)
        loop.close()


async def end_tasks() -> None:
    """Cancel every other task, and wait a moment for them."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    if left:
        await asyncio.wait(left, timeout=END_SECONDS)
