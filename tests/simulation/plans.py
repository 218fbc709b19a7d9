"""What a run is about, beyond what all are: a seed decides. So each stays small, and together they
go everywhere.
"""

import random
from typing import NamedTuple

__all__ = ["COLLECT", "REDRIVE", "SEEK", "Plan", "plan_of"]

COLLECT, REDRIVE, SEEK = "collect", "redrive", "seek"

DUTIES = ((), (COLLECT,), (REDRIVE,), (COLLECT, REDRIVE), (SEEK,))
"""What operators do beside. What was collected cannot be sought; and who seeks must know that
nobody else has moved the group meanwhile, so as never to pass over anything.
"""


class Plan(NamedTuple):
    """What happens in a run."""

    keyless: bool
    """Whether some messages have no key."""
    lines: bool
    """Whether some jobs have an ordering key."""
    limit: int | None
    """How many jobs may be in flight."""
    plain: bool
    """Whether one of the groups acks by itself, and not in the transaction of an effect."""
    duties: tuple[str, ...]
    """What operators do."""

    @property
    def keys(self) -> tuple[str | None, ...]:
        return ("a", "b", None) if self.keyless else ("a", "b")


def plan_of(seed: int) -> Plan:
    """The plan of a seed."""
    chance = random.Random(f"{seed} plan")
    return Plan(
        keyless=chance.random() < 0.5,
        lines=chance.random() < 0.5,
        limit=chance.choice([None, None, 1, 2]),
        plain=chance.random() < 0.5,
        duties=chance.choice(DUTIES),
    )
