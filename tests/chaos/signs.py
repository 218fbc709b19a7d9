"""Signs that what went wrong has hit somebody, found in what those who take part have told.

A fault of which there is no sign is no trial.
"""

from collections.abc import Collection, Iterable

from tests.chaos.record import Trouble
from tests.simulation.history import (
    Claimed,
    Delivered,
    Event,
    JobSettled,
    Place,
    Published,
    Put,
    Settled,
)

__all__ = ["in_the_middle", "takeovers", "troubles"]


def in_the_middle(told: Iterable[Event]) -> bool:
    """Whether somebody died in the middle of something: of a call, or with something in hand."""
    open_calls: list[Event] = []
    handed: set[tuple[object, ...]] = set()
    for event in told:
        if isinstance(event, Published | Put | Settled | JobSettled) and event.ended is None:
            open_calls.append(event)
        if isinstance(event, Delivered):
            handed.add((event.place, event.offset, event.epoch, event.attempt))
        elif isinstance(event, Settled):
            handed.discard((event.place, event.offset, event.epoch, event.attempt))
        elif isinstance(event, Claimed):
            handed.add((event.job, event.token))
        elif isinstance(event, JobSettled):
            handed.discard((event.job, event.token))
    # Of handlers nobody knows when their settles were answered: theirs never have an end.
    calls = [call for call in open_calls if not call.actor.startswith("worker")]
    return bool(calls or handed)


def takeovers(told: Iterable[Event], absent: Collection[str], began: int) -> int:
    """In how many places others were given messages, after some who owned them had been stopped."""
    owners: dict[Place, Delivered] = {}
    later: list[Delivered] = []
    for event in told:
        if not isinstance(event, Delivered) or event.ended is None:
            continue
        if event.ended >= began:
            later.append(event)
        elif event.place not in owners or event.epoch >= owners[event.place].epoch:
            owners[event.place] = event
    return sum(
        owner.actor in absent
        and any(
            event.place == place and event.epoch > owner.epoch and event.actor not in absent
            for event in later
        )
        for place, owner in owners.items()
    )


def troubles(told: Iterable[Event], what: str, since: int) -> int:
    """How often somebody was told of an error that says so."""
    return sum(
        isinstance(event, Trouble) and event.began >= since and what in event.error
        for event in told
    )
