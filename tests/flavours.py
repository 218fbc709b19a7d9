"""Sync and async clients behind one face, so that every behaviour is written down once.

Tests are async. On the async client they await its methods; the sync client is wrapped so that
each call runs in a thread and is awaited likewise.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Self

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
        if isinstance(member, rowmq.Transaction) or not callable(member):
            return awaited(member)

        async def call(*args: Any, **kwargs: Any) -> Any:
            given = [plain(value) for value in args]
            kwargs = {key: plain(value) for key, value in kwargs.items()}
            return awaited(await in_thread(member, *given, **kwargs))

        return call

    def subscribe(self, *args: Any, **kwargs: Any) -> "Subscribing":
        return Subscribing(partial(self.target.subscribe, *args, **kwargs))

    def queue(self, *args: Any, **kwargs: Any) -> "Awaited":
        return Awaited(self.target.queue(*args, **kwargs))

    def poller(self, *queues: Any) -> "Awaited":
        return Awaited(self.target.poller(*[plain(queue) for queue in queues]))

    @asynccontextmanager
    async def hold(self, **options: Any) -> AsyncIterator[Any]:
        async with entered(self.target.hold(**options)) as job:
            yield awaited(job)

    async def __aiter__(self) -> AsyncIterator["Awaited"]:
        """The deliveries of a subscriber."""
        deliveries = iter(self.target)
        while (delivery := await in_thread(next, deliveries, None)) is not None:
            yield Awaited(delivery)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await in_thread(self.target.close)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator["Awaited"]:
        async with entered(self.target.transaction()) as tx:
            yield Awaited(tx)


@asynccontextmanager
async def entered(manager: Any) -> AsyncIterator[Any]:
    """A sync context manager, entered and left in a thread."""
    value = await in_thread(manager.__enter__)
    try:
        yield value
    except BaseException as error:
        if not await in_thread(manager.__exit__, type(error), error, error.__traceback__):
            raise
    else:
        await in_thread(manager.__exit__, None, None, None)


class Subscribing:
    """A sync subscriber to be: awaited, or entered, like an async one."""

    def __init__(self, subscribe: Callable[[], Any]) -> None:
        self.subscribe = subscribe
        self.subscriber: Awaited | None = None

    async def start(self) -> Awaited:
        self.subscriber = Awaited(await in_thread(self.subscribe))
        return self.subscriber

    def __await__(self) -> Generator[Any, None, Awaited]:
        return self.start().__await__()

    async def __aenter__(self) -> Awaited:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        assert self.subscriber is not None
        await self.subscriber.close()


def plain(value: Any) -> Any:
    """What a sync client is given: the sync things themselves."""
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value.target if isinstance(value, Awaited) else value


def awaited(value: Any) -> Any:
    """What a sync client gives, made to be awaited where it has methods."""
    if isinstance(value, list):
        return [awaited(item) for item in value]
    handles = (rowmq.Access, rowmq.Cron, rowmq.Delivery, rowmq.Job, rowmq.Transaction)
    has_methods = isinstance(value, handles)
    return Awaited(value) if has_methods else value


async def connect(flavour: str, url: str, **options: Any) -> Any:
    """A client of a flavour."""
    if flavour == "async":
        return await rowmq.connect_async(url, **options)
    return Awaited(await in_thread(rowmq.connect, url, **options))
