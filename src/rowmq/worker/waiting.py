"""Waiting, but not longer than it takes for something to happen."""

import asyncio
import contextlib

__all__ = ["wait_for"]


async def wait_for(event: asyncio.Event, seconds: float) -> None:
    """Wait for an event, or for so long."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
