"""The chores of a worker: collect what is done with, prune archives, forget dead workers.

Every worker does them, now and then, and never in step with others: they are short transactions
that may be repeated, so nobody has to be the one who does them.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from functools import partial

from rowmq.client import AsyncRowMQ
from rowmq.errors import TransientError

__all__ = ["Maintenance"]

log = logging.getLogger("rowmq")


class Maintenance:
    """The chores of one worker."""

    def __init__(self, mq: AsyncRowMQ, interval: float) -> None:
        self._mq = mq
        self._interval = interval

    async def run(self) -> None:
        """Do the chores, for as long as the worker lives."""
        while True:
            await asyncio.sleep(self._interval * random.uniform(0.5, 1.5))
            for chore in (self.collect_topics, self.prune_queues, self.forget_workers):
                await attempt(chore.__name__, chore)

    async def collect_topics(self) -> None:
        """Collect what every group has acked, and what is too old."""
        for topic in await self._mq.topics():
            await attempt(f"to collect topic {topic.name!r}", partial(self._collect, topic.name))

    async def prune_queues(self) -> None:
        """Delete finished jobs that are older than their queues keep them."""
        for queue in await self._mq.queues():
            await attempt(f"to prune queue {queue.name!r}", partial(self._prune, queue.name))

    async def forget_workers(self) -> None:
        """Forget workers that died long ago."""
        await self._mq._run(self._mq._store.workers.forget_dead)

    async def _collect(self, topic: str) -> None:
        collected = await self._mq.gc(topic)
        if collected:
            log.info("collected %d messages of topic %r", collected, topic)

    async def _prune(self, queue: str) -> None:
        pruned = await self._mq.queue(queue).prune()
        if pruned:
            log.info("pruned %d jobs of queue %r", pruned, queue)


async def attempt(what: str, chore: Callable[[], Awaitable[None]]) -> None:
    """Do a chore; what goes wrong is tried again next time, and keeps no other back."""
    try:
        await chore()
    except TransientError as error:
        log.info("a chore is put off, %s: %s", what, error)
    except Exception:
        log.exception("a chore failed, and is tried again later: %s", what)
