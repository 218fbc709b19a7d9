"""What must be put away, or forgotten, when a process forks.

A child inherits its parent's objects: locks that a thread held which it does not have, and sockets
that are not its own. Whatever holds such things registers here, and is reset in the child before
any other code runs.

SQLite wants more. It keeps its file locks in tables of the process, which the child inherits while
the locks themselves stay with the parent: a child that opens the same file then believes it holds
locks that it does not, and the parent, closing, removes the log that the child still writes to. So
what can be closed is closed before the fork, in the parent, and opened again by who needs it.
"""

import os
import weakref
from typing import Protocol

__all__ = ["FORK_SECONDS", "Resettable", "Suspendable", "after_fork", "around_fork"]

FORK_SECONDS = 1.0
"""How long a fork waits for what other threads do with SQLite."""


class Resettable(Protocol):
    """Something that a forked child must not use as it is."""

    def reset(self) -> None:
        """Start anew, in the child."""


class Suspendable(Resettable, Protocol):
    """Something that is better closed while its process forks."""

    def suspend(self) -> None:
        """Put away what the child should not inherit, before the fork."""

    def resume(self) -> None:
        """Go on, in the parent."""


# Sets of references, since a copy of one is made in one step, whatever other threads add.
_reset: "set[weakref.ref[Resettable]]" = set()
_suspended: "set[weakref.ref[Suspendable]]" = set()


def after_fork(thing: Resettable) -> None:
    """Have it reset in every child, for as long as it lives."""
    _reset.add(weakref.ref(thing, _reset.discard))


def around_fork(thing: Suspendable) -> None:
    """Have it suspended while a child is made, and reset in the child."""
    after_fork(thing)
    _suspended.add(weakref.ref(thing, _suspended.discard))


def _before() -> None:
    for reference in list(_suspended):
        if (thing := reference()) is not None:
            thing.suspend()


def _after_in_parent() -> None:
    for reference in list(_suspended):
        if (thing := reference()) is not None:
            thing.resume()


def _after_in_child() -> None:
    for reference in list(_reset):
        if (thing := reference()) is not None:
            thing.reset()


os.register_at_fork(
    before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child
)
