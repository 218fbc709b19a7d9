"""What must be forgotten when a process forks.

A child inherits its parent's objects: locks that a thread held which it does not have, and sockets
that are not its own. Whatever holds such things registers here, and is reset in the child before
any other code runs.
"""

import os
import weakref
from typing import Protocol

__all__ = ["Resettable", "after_fork"]


class Resettable(Protocol):
    """Something that a forked child must not use as it is."""

    def reset(self) -> None:
        """Start anew, in the child."""


_registered: "weakref.WeakSet[Resettable]" = weakref.WeakSet()


def after_fork(thing: Resettable) -> None:
    """Have it reset in every child, for as long as it lives."""
    _registered.add(thing)


def _reset_all() -> None:
    for thing in list(_registered):
        thing.reset()


os.register_at_fork(after_in_child=_reset_all)
