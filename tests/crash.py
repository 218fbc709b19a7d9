"""Subscribers that end without saying so.

One that has *stopped* is what SIGSTOP makes of its process: no heartbeat, no work in the
background, and its handlers may wake up later. One that has *crashed* has also been silent for so
long that its lease is over: that time is not waited for, but passes in its row.
"""

import asyncio
import contextlib
from typing import Any

from rowmq.subscriber.flavours import Threads
from rowmq.subscriber.subscription import Subscription
from tests.databases import Database
from tests.flavours import in_thread, plain


def core_of(sub: Any) -> Subscription:
    """What a subscriber of either flavour is made of."""
    core: Subscription = plain(sub)._core
    return core


async def stop(sub: Any) -> None:
    """Stop a subscriber's heartbeats and background work, without a word to anybody."""
    subscriber = plain(sub)
    core, flavour = subscriber._core, subscriber._flavour
    home = flavour.home
    home.heart.remove(core)
    home.watcher.remove(core.options.topic, flavour.wake)
    home.left(subscriber)  # its client must not close it either
    if isinstance(flavour, Threads):
        flavour.stopping.set()
        assert flavour.tender is not None
        await in_thread(flavour.tender.join)
    else:
        assert flavour.tender is not None
        flavour.tender.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await flavour.tender


def expire(database: Database, sub: Any) -> None:
    """Let the time of a subscriber's lease be over."""
    member = core_of(sub).member
    assert member is not None
    database.execute(
        f"UPDATE rowmq_subscribers SET expires_at = 1 WHERE id = {member.subscriber_id}"
    )


async def crash(database: Database, sub: Any) -> None:
    """A subscriber is killed, and its lease runs out."""
    await stop(sub)
    expire(database, sub)
