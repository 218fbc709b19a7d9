"""Sync and async clients behind one face, so that every behaviour is written down once.

Tests are async. On the async client they await its methods; the sync client is wrapped so that
each call runs in a thread and is awaited likewise.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import rowmq

FLAVOURS = ["sync", "async"]

threads = ThreadPoolExecutor(64, thread_name_prefix="test")


async def in_thread(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a sync function in one of many threads."""
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(threads, partial(function, *args, **kwargs))


class Awaited:
    """A sync client, or transaction, whose methods are awaited."""

    def __init__(self, target: Any) -> None:
        self.target = target

    def __getattr__(self, name: str) -> Any:
        member = getattr(self.target, name)
        if not callable(member):
            return member

        async def call(*args: Any, **kwargs: Any) -> Any:
            kwargs = {key: plain(value) for key, value in kwargs.items()}
            return await in_thread(member, *args, **kwargs)

        return call

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator["Awaited"]:
        manager = self.target.transaction()
        tx = await in_thread(manager.__enter__)
        try:
            yield Awaited(tx)
        except BaseException as error:
            if not await in_thread(manager.__exit__, type(error), error, error.__traceback__):
                raise
        else:
            await in_thread(manager.__exit__, None, None, None)


def plain(value: Any) -> Any:
    return value.target if isinstance(value, Awaited) else value


async def connect(flavour: str, url: str, **options: Any) -> Any:
    """A client of a flavour."""
    if flavour == "async":
        return await rowmq.connect_async(url, **options)
    return Awaited(await in_thread(rowmq.connect, url, **options))
