"""What must be true of every run, whatever crashed, was lost, or came too late.

A rule is a function that tells what a history has against it; its name and its first line say what
it holds. `check` asks all of them. Where it cannot be known whether something happened, both are
allowed: a rule speaks up only where no order of events explains what was seen.
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

from tests.simulation.history import (
    Claimed,
    Delivered,
    History,
    JobSettled,
    Outcome,
    Partition,
    Place,
    Progress,
    Published,
    Put,
    Settled,
    Stored,
)

__all__ = ["RULES", "Rule", "Violation", "check"]

Rule = Callable[[History], Iterator[str]]
Placed = TypeVar("Placed", Published, Delivered)


class Violation(NamedTuple):
    """A rule that a history breaks, and how."""

    rule: str
    story: str


def check(history: History) -> list[Violation]:
    """All that is wrong with a history."""
    return [
        Violation(rule.__name__.replace("_", " "), story)
        for rule in RULES
        for story in rule(history)
    ]


# --- what is there --------------------------------------------------------------------------------


def nothing_is_lost(history: History) -> Iterator[str]:
    """What was published or put, and answered for, is there, and where the answer said."""
    stored = {message.mark: message for message in history.final.messages}
    for published in history.of(Published):
        if published.outcome is not Outcome.OK:
            continue
        found = stored.get(published.mark)
        if found is None:
            yield f"{published.mark} was published to {published.partition}, and is gone"
        elif (found.partition, found.offset) != (published.partition, published.offset):
            told = (published.partition, published.offset)
            yield f"{published.mark} is at {found[:2]}, and was said to be at {told}"
    there = {job.mark for job in history.final.jobs}
    puts = list(history.of(Put))
    for put in puts:
        if put.outcome is Outcome.OK and put.mark not in there and not replaced(put, puts):
            yield f"{put.mark} was put into {put.queue}, and is gone"


def replaced(put: Put, puts: Iterable[Put]) -> bool:
    """Whether another offer under the same key may have come after one."""
    return put.key is not None and any(
        (other.queue, other.key) == (put.queue, put.key)
        and other is not put
        and other.outcome.possible
        and not other.before(put)
        for other in puts
    )


def nothing_is_invented(history: History) -> Iterator[str]:
    """What is there, or was handed out, somebody published or put; and each is there once."""
    published = {event.mark: event for event in history.of(Published)}
    for message in history.final.messages:
        source = published.get(message.mark)
        if source is None or not source.outcome.possible:
            yield f"{message.mark} is at {message[:2]}, and nobody published it"
    yield from doubled(Counter(message.mark for message in history.final.messages))
    places = Counter((message.partition, message.offset) for message in history.final.messages)
    yield from doubled(places)
    stored = {(m.partition, m.offset): m.mark for m in history.final.messages}
    for delivered in history.of(Delivered):
        where = (delivered.place.partition, delivered.offset)
        if stored.get(where) != delivered.mark:
            yield f"{delivered.mark} was delivered from {where}, where it is not"
    put = {event.mark for event in history.of(Put) if event.outcome.possible}
    ticked = {tick.job for tick in history.final.ticks}
    for job in history.final.jobs:
        if job.mark not in put and job.id not in ticked:
            yield f"job {job.id} of {job.queue} is there, and nobody put {job.mark}"
    yield from doubled(Counter(job.mark for job in history.final.jobs if job.mark in put))
    known = {job.id for job in history.final.jobs}
    puts = list(history.of(Put))
    for claimed in history.of(Claimed):
        if claimed.job not in known and not updated_after(claimed, puts):
            yield f"job {claimed.job} of {claimed.queue} was claimed, and there is none"


def updated_after(claimed: Claimed, puts: Iterable[Put]) -> bool:
    """Whether the job of a claim may have been offered anew: then another one has its place."""
    return claimed.key is not None and any(
        (put.queue, put.key) == (claimed.queue, claimed.key)
        and put.outcome.possible
        and not put.before(claimed)
        for put in puts
    )


def doubled(counted: Counter[Any]) -> Iterator[str]:
    for what, times in counted.items():
        if times > 1:
            yield f"{what} is there {times} times"


def counts_add_up(history: History) -> Iterator[str]:
    """What RowMQ says how many there are is how many there are."""
    jobs: dict[str, Counter[str]] = defaultdict(Counter)
    for job in history.final.jobs:
        jobs[job.queue][job.state] += 1
    for queue, counts in history.final.counts.items():
        told = {state: count for state, count in counts.items() if count}
        if told != dict(jobs[queue]):
            yield f"{queue} has {dict(jobs[queue])}, and is said to have {told}"
    left: Counter[tuple[str, str]] = Counter()
    for progress, messages in asked_for(history):
        topic, group = progress.place.partition.topic, progress.place.group
        left[topic, group] += sum(not progress.is_done(m.offset) for m in messages)
    for (topic, group), lag in history.final.lags.items():
        if lag != left[topic, group]:
            yield f"{group} has {left[topic, group]} of {topic} to do, and is said to have {lag}"


# --- who gets it ----------------------------------------------------------------------------------


def everything_is_handled_at_least_once(history: History) -> Iterator[str]:
    """Every group gets every message, every job is claimed; and in the end all are done."""
    delivered = {(event.place, event.offset) for event in history.of(Delivered)}
    for progress, messages in asked_for(history):
        for message in messages:
            if (progress.place, message.offset) not in delivered:
                yield f"{message.mark} was never delivered to {progress.place.group}"
            elif not progress.is_done(message.offset):
                yield f"{message.mark} was never done with by {progress.place.group}"
    yield from missing_places(history)
    claimed = {event.job for event in history.of(Claimed)}
    for job in history.final.jobs:
        if job.id not in claimed:
            yield f"job {job.id} of {job.queue} was never claimed"
        elif job.state not in ("completed", "failed"):
            yield f"job {job.id} of {job.queue} was never done with: it is {job.state}"


def missing_places(history: History) -> Iterator[str]:
    """The partitions of its topic that a group knows nothing of."""
    known = {progress.place for progress in history.final.progress}
    groups = {(place.partition.topic, place.group) for place in known}
    for partition in {message.partition for message in history.final.messages}:
        for topic, group in groups:
            if topic == partition.topic and Place(group, partition) not in known:
                yield f"{group} has no place in {partition}"


def nobody_owns_what_another_owns(history: History) -> Iterator[str]:
    """A lease, and a lock, has one owner at a time."""
    yield from leases_of_two(history)
    yield from locks_of_two(history)


def leases_of_two(history: History) -> Iterator[str]:
    for place, events in by_place(history.of(Delivered)).items():
        owners: dict[int, str] = {}
        for event in events:
            owner = owners.setdefault(event.epoch, event.actor)
            if owner != event.actor:
                yield f"{owner} and {event.actor} had the same lease of {place}"
        for late in events:
            if any(event.epoch > late.epoch and event.before(late) for event in events):
                yield f"{late.actor} was given {late.mark} of {place}, which others owned by then"


def locks_of_two(history: History) -> Iterator[str]:
    puts = list(history.of(Put))
    settles: dict[int, list[JobSettled]] = defaultdict(list)
    for settle in history.of(JobSettled):
        settles[settle.job].append(settle)
    for job, claims in by_job(history.of(Claimed)).items():
        for one, other in itertools.combinations(claims, 2):
            follows = partial(may_follow, settles=settles[job], puts=puts)
            if not follows(one, other) and not follows(other, one):
                yield f"{other.actor} claimed job {job}, which {one.actor} had locked"


def may_follow(
    first: Claimed, second: Claimed, settles: Sequence[JobSettled], puts: Sequence[Put]
) -> bool:
    """Whether a job could be claimed a second time, when the first claim had been made."""
    if second.before(first):
        return False
    if updated_after(first, [put for put in puts if not second.before(put)]):
        return True  # which makes the first one void
    if any(s.token == first.token and s.ends and s.outcome is Outcome.OK for s in settles):
        return False  # it was done with under the first one
    return second.now >= held_until(first, second, settles)


def held_until(first: Claimed, second: Claimed, settles: Iterable[JobSettled]) -> int:
    """Until when a claim holds its job, at least, if nobody has let go of it before a second."""
    until = first.until
    for settle in settles:
        if settle.token != first.token or not settle.outcome.possible or second.before(settle):
            continue
        if settle.kind != "extend":
            return 0
        if settle.outcome is Outcome.OK and settle.before(second):
            until = max(until, settle.until)
    return until


def what_comes_too_late_changes_nothing(history: History) -> Iterator[str]:
    """No settle counts once others own the message or the job; and one that counts stands."""
    yield from late_settles(history)
    yield from late_settles_of_jobs(history)


def late_settles(history: History) -> Iterator[str]:
    deliveries = by_place(history.of(Delivered))
    for settled in history.of(Settled):
        if settled.outcome is not Outcome.OK:
            continue
        told = f"{settled.kind} of {settled.place} offset {settled.offset} by {settled.actor}"
        for other in deliveries.get(settled.place, ()):
            newer = other.epoch > settled.epoch
            again = other.offset == settled.offset and other.attempt > settled.attempt
            if other.before(settled) and (newer or again):
                yield f"{told} counted, although {other.actor} owned it by then"
            if settled.ends and other.offset == settled.offset and settled.before(other):
                yield f"{told} counted, and {other.actor} was given it after that"


def late_settles_of_jobs(history: History) -> Iterator[str]:
    """A nack or a release that was tried twice, its first answer lost, is not refused: the job
    comes again in any case. Had it counted, two would own the job.
    """
    claims = by_job(history.of(Claimed))
    for end in history.of(JobSettled):
        if end.outcome is not Outcome.OK or end.kind in ("nack", "release"):
            continue
        told = f"{end.kind} of job {end.job} by {end.actor}"
        own = next((claim for claim in claims[end.job] if claim.token == end.token), None)
        for claim in claims[end.job]:
            if claim is own:
                continue
            if own is not None and own.before(claim) and claim.before(end):
                yield f"{told} counted, although {claim.actor} had locked it by then"
            if end.ends and end.before(claim):
                yield f"{told} counted, and {claim.actor} claimed it after that"


# --- in which order -------------------------------------------------------------------------------


def order_is_kept(history: History) -> Iterator[str]:
    """Of a key, what was published later comes later; in strict mode, when all before is done."""
    published: dict[Partition, list[Published]] = defaultdict(list)
    for event in history.of(Published):
        if event.offset is not None:
            published[event.partition].append(event)
    for partition, events in published.items():
        for first, after in overtaken(events):
            yield f"{first.mark} was published to {partition} before {after.mark}, and is behind it"
    for place, deliveries in by_place(history.of(Delivered)).items():
        fresh = first_of_each(deliveries)
        for one, other in overtaken([event for event in fresh if event.attempt == 1]):
            yield f"{one.mark} was delivered to {place} before {other.mark}, and is behind it"
        if place.group in history.strict:
            yield from too_soon(history, place, deliveries)
    yield from effects_out_of_order(history)


def overtaken(events: Iterable[Placed]) -> Iterator[tuple[Placed, Placed]]:
    """Pairs of events of which the first was over before the second began, and has a later place:
    for each second the first such.
    """
    earliest: Placed | None = None
    for event in sorted(events, key=lambda event: event.offset or 0, reverse=True):
        if earliest is not None and earliest.before(event):
            yield earliest, event
        ended, least = event.ended, None if earliest is None else earliest.ended
        if ended is not None and (least is None or ended < least):
            earliest = event


def first_of_each(deliveries: Iterable[Delivered]) -> list[Delivered]:
    """For each message when it was first delivered."""
    found: dict[int, Delivered] = {}
    for event in deliveries:
        found.setdefault(event.offset, event)
    return list(found.values())


def too_soon(history: History, place: Place, deliveries: Iterable[Delivered]) -> Iterator[str]:
    """Deliveries of a strict group that came before something in front of them was done."""
    ends: dict[int, int] = {}
    for settled in history.of(Settled):
        if settled.place == place and settled.ends and settled.outcome.possible:
            ends[settled.offset] = min(settled.began, ends.get(settled.offset, settled.began))
    progress = next((p for p in history.final.progress if p.place == place), None)
    if progress is None:
        return
    for event in deliveries:
        for offset in range(progress.start + 1, event.offset):
            if offset in progress.dead and offset not in ends:
                continue  # given up, with nobody's settle
            if offset not in ends or (event.ended is not None and ends[offset] > event.ended):
                yield f"{event.mark} was delivered to {place} before offset {offset} was done"
                break


def effects_out_of_order(history: History) -> Iterator[str]:
    """Effects of strict groups whose order is not that of their messages."""
    where = {message.mark: message for message in history.final.messages}
    last: dict[Place, Stored] = {}
    for effect in history.final.effects:
        message = where.get(effect.mark)
        if effect.of not in history.strict or message is None:
            continue
        place = Place(effect.of, message.partition)
        before = last.get(place)
        if before is not None and before.offset > message.offset:
            yield f"{before.mark} took effect before {message.mark}, and is behind it in {place}"
        last[place] = message


# --- what is done with ----------------------------------------------------------------------------


def only_what_was_acked_is_passed_over(history: History) -> Iterator[str]:
    """A group's watermark is over nothing that it has not acked, rejected, or given up."""
    ended = {
        (event.place, event.offset)
        for event in history.of(Settled)
        if event.ends and event.outcome.possible
    }
    for progress, messages in asked_for(history):
        for message in messages:
            offset = message.offset
            done = progress.is_done(offset) and offset not in progress.dead
            if done and (progress.place, offset) not in ended:
                yield f"{message.mark} is done for {progress.place.group}, which never acked it"
    acked = {
        event.job
        for event in history.of(JobSettled)
        if event.kind == "ack" and event.outcome.possible
    }
    for job in history.final.jobs:
        if job.state == "completed" and job.id not in acked:
            yield f"job {job.id} of {job.queue} is completed, and nobody acked it"


def groups_are_apart(history: History) -> Iterator[str]:
    """What one group settles changes nothing for another."""
    ended: dict[tuple[Partition, int], set[str]] = defaultdict(set)
    for event in history.of(Settled):
        if event.ends and event.outcome.possible:
            ended[event.place.partition, event.offset].add(event.place.group)
    for progress, messages in asked_for(history):
        group = progress.place.group
        for message in messages:
            groups = ended[message.partition, message.offset]
            if progress.is_done(message.offset) and groups and group not in groups:
                if message.offset in progress.dead:
                    continue
                others = ", ".join(sorted(groups))
                yield f"{message.mark} is done for {group}, and only {others} settled it"


def a_tick_is_one_job(history: History) -> Iterator[str]:
    """For every time of a schedule that was due there is one job."""
    made = Counter((tick.schedule, tick.due) for tick in history.final.ticks)
    for (schedule, due), times in made.items():
        if times > 1:
            yield f"{schedule} has {times} jobs for {due}"
    for schedule, due in set(history.final.due) - set(made):
        yield f"{schedule} has no job for {due}"
    for schedule, due in set(made) - set(history.final.due):
        yield f"{schedule} has a job for {due}, which was not due"


def effects_are_there_exactly_once(history: History) -> Iterator[str]:
    """A transactional handler's writes are there once if its ack is, and else not at all."""
    effects = Counter(history.final.effects)
    for effect, times in effects.items():
        if times > 1:
            yield f"{effect.mark} took effect {times} times for {effect.of}"
    wanted: dict[str, set[str]] = defaultdict(set)
    for progress, messages in asked_for(history):
        wanted[progress.place.group] |= {
            message.mark
            for message in messages
            if progress.is_done(message.offset) and message.offset not in progress.dead
        }
    for job in history.final.jobs:
        if job.state == "completed":
            wanted[job.queue].add(job.mark)
    for owner in history.transactional:
        there = {effect.mark for effect in effects if effect.of == owner}
        for mark in wanted[owner] - there:
            yield f"{mark} is acked by {owner}, and has no effect"
        for mark in there - wanted[owner]:
            yield f"{mark} has an effect of {owner}, and is not acked"


RULES: tuple[Rule, ...] = (
    nothing_is_lost,
    nothing_is_invented,
    everything_is_handled_at_least_once,
    nobody_owns_what_another_owns,
    what_comes_too_late_changes_nothing,
    order_is_kept,
    only_what_was_acked_is_passed_over,
    groups_are_apart,
    a_tick_is_one_job,
    effects_are_there_exactly_once,
    counts_add_up,
)


# --- looking things up ----------------------------------------------------------------------------


def asked_for(history: History) -> Iterator[tuple[Progress, list[Stored]]]:
    """For each group's place in a partition the messages that it is to get."""
    messages: dict[Partition, list[Stored]] = defaultdict(list)
    for message in history.final.messages:
        messages[message.partition].append(message)
    for progress in history.final.progress:
        stored = messages[progress.place.partition]
        yield progress, [message for message in stored if message.offset > progress.start]


def by_place(events: Iterable[Delivered]) -> dict[Place, list[Delivered]]:
    found: dict[Place, list[Delivered]] = defaultdict(list)
    for event in events:
        found[event.place].append(event)
    return found


def by_job(events: Iterable[Claimed]) -> dict[int, list[Claimed]]:
    found: dict[int, list[Claimed]] = defaultdict(list)
    for event in events:
        found[event.job].append(event)
    return found
