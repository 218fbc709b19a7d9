"""What rules look up in a history."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from tests.simulation.history import (
    Claimed,
    Delivered,
    Event,
    History,
    JobSettled,
    Outcome,
    Place,
    Progress,
    Pruned,
    Published,
    Redriven,
    Settled,
    Sought,
    Stored,
)

__all__ = [
    "acked_and_pruned",
    "asked_for",
    "by_place",
    "by_token",
    "clocks_of",
    "ends_of_jobs",
    "first_of_each",
    "grouped",
    "messages_of",
    "reopenings",
    "sure_and_possible_acks",
]

T = TypeVar("T")
K = TypeVar("K")


def grouped(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    found: dict[K, list[T]] = defaultdict(list)
    for item in items:
        found[key(item)].append(item)
    return found


def clocks_of(history: History, first: Event, last: Event) -> Sequence[int]:
    """What the database's clock showed from one event's beginning to another one's end."""
    return history.clocks[first.began : last.ended]


# --- messages -------------------------------------------------------------------------------------


def messages_of(history: History) -> list[Stored]:
    """What there is, and what garbage collection has let go of, as far as anybody has seen it."""
    found = list(history.final.messages)
    known = {message[:2] for message in found}
    seen = [
        Stored(event.partition, event.offset, event.mark)
        for event in history.of(Published)
        if event.outcome is Outcome.OK and event.offset is not None
    ]
    seen += [Stored(e.place.partition, e.offset, e.mark) for e in history.of(Delivered)]
    for message in seen:
        collected = message.offset < history.final.begins.get(message.partition, 0)
        if collected and message[:2] not in known:
            known.add(message[:2])
            found.append(message)
    return found


def asked_for(history: History) -> Iterator[tuple[Progress, list[Stored]]]:
    """For each group's place in a partition the messages that it is to get."""
    messages = grouped(messages_of(history), lambda message: message.partition)
    for progress in history.final.progress:
        logged = messages.get(progress.place.partition, ())
        yield progress, [message for message in logged if message.offset > progress.start]


def by_place(events: Iterable[Delivered]) -> dict[Place, list[Delivered]]:
    return grouped(events, lambda event: event.place)


def first_of_each(deliveries: Iterable[Delivered]) -> list[Delivered]:
    """For each message when it was first delivered."""
    found: dict[int, Delivered] = {}
    for event in deliveries:
        found.setdefault(event.offset, event)
    return list(found.values())


def reopenings(history: History, place: Place) -> list[Redriven | Sought]:
    """What may have made a group be given again what it had done with."""
    topic, group = place.partition.topic, place.group
    found: list[Redriven | Sought] = [
        event for event in history.of(Redriven) if (event.topic, event.group) == (topic, group)
    ]
    found += [event for event in history.of(Sought) if event.place == place]
    return [event for event in found if event.outcome.possible]


def sure_and_possible_acks(history: History) -> tuple[dict[tuple[str, str], int], ...]:
    """How often each group, and queue, has acked what has a mark: at least, and at most."""
    marks = {(m.partition, m.offset): m.mark for m in messages_of(history)}
    claims = by_token(history)
    acks: list[tuple[tuple[str, str], Outcome]] = []
    for settled in history.of(Settled):
        mark = marks.get((settled.place.partition, settled.offset))
        if settled.kind == "ack" and mark is not None:
            acks.append(((settled.place.group, mark), settled.outcome))
    for settle in history.of(JobSettled):
        claim = claims.get((settle.job, settle.token))
        if settle.kind == "ack" and claim is not None:
            acks.append(((settle.queue, claim.mark), settle.outcome))
    sure: dict[tuple[str, str], int] = defaultdict(int)
    possible: dict[tuple[str, str], int] = defaultdict(int)
    for what, outcome in acks:
        sure[what] += outcome is Outcome.OK
        possible[what] += outcome.possible
    return sure, possible


# --- jobs -----------------------------------------------------------------------------------------


def by_token(history: History) -> dict[tuple[int, int], Claimed]:
    """Claims, by their job and their lock."""
    return {(claim.job, claim.token): claim for claim in history.of(Claimed)}


def ends_of_jobs(history: History) -> dict[str, list[JobSettled]]:
    """By mark: what may have done with a job."""
    marks = {claim.job: claim.mark for claim in history.of(Claimed)}
    ends = [s for s in history.of(JobSettled) if s.ends and s.outcome.possible]
    return grouped(ends, lambda settle: marks.get(settle.job, ""))


def acked_and_pruned(history: History) -> set[int]:
    """Jobs that may have been completed, and deleted after that."""
    pruned = [event for event in history.of(Pruned) if event.outcome.possible]
    return {
        settle.job
        for settle in history.of(JobSettled)
        if settle.kind == "ack"
        and settle.outcome.possible
        and any(event.queue == settle.queue and not event.before(settle) for event in pruned)
    }
