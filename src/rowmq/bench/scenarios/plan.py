"""Scenarios as values, and the few ways in which they are made."""

from typing import Any

import msgspec

from rowmq.bench.playing import Spec
from rowmq.bench.trial import Part

__all__ = ["BATCH_HANDLERS", "NO_ARCHIVE", "RATE", "Entry", "Plan", "Scenario", "handles", "sends"]

NO_ARCHIVE = "no archive"
"""What a way is called that does not keep what is finished."""

BATCH_HANDLERS = "handlers of batches"
"""What a way is called whose handlers take many messages at a time."""

RATE = "rate"


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be measured in a run, on one database."""

    database: str
    peers: tuple[str, ...] = ()
    """Those that can be played."""
    brief: bool = False
    """Whether only the main variants are measured."""
    connections_max: int = 1_000
    scale: float = 1.0
    """How much of what is usual is sent and handled."""
    growth_max: int = 5_000_000
    """How many jobs wait, at the most."""
    seconds: float = 60.0
    """How long a snapshot is held."""
    latency_seconds: float = 20.0

    def some(self, count: int, *, least: int = 200) -> int:
        """How many are sent or handled, of what is usual; in whole thousands, if it is many."""
        scaled = max(least, round(count * self.scale))
        return scaled - scaled % 1_000 if scaled >= 1_000 else scaled


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A subject in a scenario: what it does, and what must be there before."""

    subject: str
    variant: str = ""
    parts: tuple[Part, ...]
    fill: Spec | None = None
    """What waits before the trial begins."""
    expected: int | None = None
    """How much must have been sent or handled, at least; None if time decides about that."""
    filled: int | None = None
    """How many waited for it: what was handled and what is left must add up to that."""
    reference: bool = False
    half_of: str | None = None
    """The variant of this scenario at half of whose rate is to be sent."""


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """What is compared, in turns."""

    name: str
    title: str
    entries: tuple[Entry, ...]
    once: bool = False
    """Whether one repetition says enough: it takes long, and what it says comes of many samples."""


def sends(
    player: str,
    variant: str,
    *,
    messages: int,
    processes: int = 1,
    reference: bool = False,
    **how: Any,
) -> Entry:
    """A subject that sends so many messages, in some processes together."""
    each = messages // processes
    spec = Spec(task="publish", messages=each, **how)
    return Entry(
        subject=player,
        variant=variant,
        parts=tuple(Part(player, spec) for _ in range(processes)),
        expected=each * processes,
        reference=reference,
    )


def handles(
    player: str,
    variant: str,
    *,
    messages: int,
    processes: int = 1,
    reference: bool = False,
    **how: Any,
) -> Entry:
    """A subject that handles so many messages, in some processes together."""
    if processes > 1 and how.get("source") != "topic":
        how = {"idle": 1.0, **how}  # then some wait for nothing in the end
    filled = {name: value for name, value in how.items() if name != "workers"}
    fill = Spec(task="fill", messages=messages, **filled)
    spec = Spec(task="consume", messages=messages, **how)
    groups = how.get("groups", 1)
    return Entry(
        subject=player,
        variant=variant,
        parts=tuple(Part(player, spec) for _ in range(processes)),
        fill=fill,
        expected=messages * groups,
        filled=messages * groups + how.get("backlog", 0),
        reference=reference,
    )
