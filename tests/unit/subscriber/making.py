"""Holdings and options for tests of what is decided without a database."""

import weakref
from typing import Any

from rowmq.progress import Stored
from rowmq.store.leases import Counters, Loaded
from rowmq.subscriber.holding import Holding, Token
from rowmq.subscriber.options import Options, options_of


class Delivered:
    """Stands for a delivery that a handler has."""


def holding(*, next_offset: int = 1, stored: Stored | None = None) -> Holding:
    """A partition that was just acquired."""
    place = stored or Stored(0, 0, 1, 0, 0)
    loaded = Loaded(partition_id=1, leased_by=7, epoch=1, version=1, stored=place)
    return Holding(loaded, Counters(1, "k", 1, next_offset, 100))


def hand_out(held: Holding, offset: int, *, strict: bool = False) -> Delivered:
    """Hand a delivered message out to a handler."""
    known = held.progress.at(offset)
    assert known is not None
    delivery = Delivered()
    token = Token(held, offset, known.attempts, 100, strict, weakref.ref(delivery))
    held.tokens[offset] = token
    return delivery


def options(topic: str = "orders", **given: Any) -> Options:
    """The options of a subscriber."""
    defaults: dict[str, Any] = {
        "group": "g",
        "name": "w",
        "start": "earliest",
        "batch_size": 10,
        "visibility": 60,
        "max_attempts": None,
        "backoff": None,
        "lease_duration": 30,
        "heartbeat_interval": None,
        "strict": False,
        "dlq_suffix": "_dlq",
        "max_in_flight": 1000,
        "max_bytes": 1000,
        "flush_interval": 0,
        "poll_interval": 0.1,
        "discovery_interval": 1,
        "idle_timeout": 60,
        "type": None,
        "on_lost": None,
    }
    return options_of(topic, **(defaults | given))
