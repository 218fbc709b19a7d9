"""What one request does to dead letters: so many of them that nobody waits for long, in many short
transactions; and how many are left for the next one.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from rowmq.client import AsyncRowMQ
from rowmq.errors import RowMQError
from rowmq.overview import PurgeStep, RedriveStep

__all__ = ["AT_ONCE_MAX", "Cleared", "purge", "redrive"]

AT_ONCE_MAX = 5_000
"""How many letters one request gives back or purges."""


Look = Callable[[], Awaitable[Sequence[RedriveStep | PurgeStep]]]
"""What would be done to those that are left."""


class Cleared(NamedTuple):
    """How many letters it was done to, and how many are left; `capped`: there may be more."""

    done: int
    left: int = 0
    capped: bool = False


async def redrive(mq: AsyncRowMQ, topic: str, **chosen: Any) -> Cleared:
    """Give letters back that are chosen as for `redrive` of the client."""
    done = await mq.redrive(topic, limit=AT_ONCE_MAX, **chosen)
    return await cleared(done, partial(mq.preview_redrive, topic, **chosen))


async def purge(mq: AsyncRowMQ, topic: str, **chosen: Any) -> Cleared:
    """Delete letters that are chosen as for `purge_dead_letters` of the client."""
    done = await mq.purge_dead_letters(topic, limit=AT_ONCE_MAX, **chosen)
    return await cleared(done, partial(mq.preview_purge, topic, **chosen))


async def cleared(done: int, look: Look) -> Cleared:
    """What was done, and what is left, if there may be anything. It is done, also if nobody can
    look afterwards: then there may be more.
    """
    if done < AT_ONCE_MAX:
        return Cleared(done)
    try:
        steps = await look()
    except RowMQError:
        return Cleared(done, capped=True)
    left = sum(step.letters for step in steps)
    return Cleared(done, left, any(step.capped for step in steps))
