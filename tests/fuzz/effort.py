"""How hard to try: in the suite briefly, and the same each time; by `make fuzz` long."""

import os

from hypothesis import HealthCheck, settings

__all__ = ["effort"]

EXAMPLES = int(os.environ.get("ROWMQ_FUZZ_EXAMPLES", "0"))
"""How many examples of each property to try; 0 is the suite, which has to be quick."""


def effort(examples: int) -> settings:
    """The settings of a property of which the suite tries so many examples."""
    return settings(
        max_examples=EXAMPLES or examples,
        derandomize=not EXAMPLES,
        database=None,
        deadline=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )
