"""What everybody who takes part knows: names, times, and what is to fail at first.

```
publishers ─► orders ─► billing   strict, in the transaction of its effect   (workers)
                     ─► audit     a plain handler                            (workers)
                     ─► ledger    by hand, so that it is known what came of each settle (consumers)
           ─► mail    jobs, offered and put, in the transaction of their effect (workers)
           ─► parcels jobs, by hand                                          (consumers)
schedulers ─► ticks   a job for every second                                 (workers)
```
"""

import zlib
from datetime import datetime
from typing import Any

import rowmq
from rowmq.cron.options import FIRE_AT_HEADER
from rowmq.times import to_micros
from tests.simulation.history import Partition, Place

__all__ = [
    "AUDIT",
    "BILLING",
    "GROUPS",
    "INSERT_EFFECT",
    "KEYS",
    "LEASE_SECONDS",
    "LEDGER",
    "LINES",
    "LOCK_SECONDS",
    "MAIL",
    "OUTBOX",
    "PARCELS",
    "PERIOD_SECONDS",
    "QUEUES",
    "RETRY",
    "SCHEDULE",
    "TABLES",
    "TICKS",
    "TOPIC",
    "VISIBILITY_SECONDS",
    "fails_first",
    "line_of",
    "mark_of",
    "place_of",
    "token_of",
]

TOPIC = "orders"
BILLING, AUDIT, LEDGER = GROUPS = ("billing", "audit", "ledger")
MAIL, PARCELS, TICKS = QUEUES = ("mail", "parcels", "ticks")
SCHEDULE = "tick"
OUTBOX = "outbox"
"""Whose effects are those of publishers: in the transaction in which they publish."""

LINES = ("red", "green", "blue")
"""Ordering keys of parcels."""

KEYS = ("a", "b", "c", "d", "e", "f")

LEASE_SECONDS = 2.0
VISIBILITY_SECONDS = 3.0
LOCK_SECONDS = 2.0
PERIOD_SECONDS = 1.0

RETRY = rowmq.Constant(interval=0.1, max_attempts=100_000)

INSERT_EFFECT = "INSERT INTO chaos_effects (owner, mark) VALUES (?, ?)"
_NAMES = "owner varchar(50), mark varchar(50)"
TABLES = {
    "sqlite": f"CREATE TABLE chaos_effects (id INTEGER PRIMARY KEY AUTOINCREMENT, {_NAMES})",
    "postgres": f"CREATE TABLE chaos_effects (id bigserial PRIMARY KEY, {_NAMES})",
    "mysql": f"CREATE TABLE chaos_effects (id bigint PRIMARY KEY AUTO_INCREMENT, {_NAMES})",
}


def fails_first(mark: str, attempt: int) -> bool:
    """Whether a handler is to fail: now and then, and once for the same thing."""
    return attempt == 1 and zlib.crc32(mark.encode()) % 11 == 0


def line_of(mark: str) -> str | None:
    """The ordering key of a job, which is the end of its mark."""
    line = mark.rpartition("@")[2]
    return line if line in LINES else None


def place_of(group: str, delivery: Any) -> Place:
    return Place(group, Partition(TOPIC, delivery.message.key))


def mark_of(job: Any) -> str:
    """What tells a job apart: what was put, or the time of its tick."""
    if job.queue != TICKS:
        return str(job.payload)
    return f"tick {to_micros(datetime.fromisoformat(job.headers[FIRE_AT_HEADER]))}"


def token_of(job: Any) -> int:
    token: int = job._facts.claimed.token
    return token
