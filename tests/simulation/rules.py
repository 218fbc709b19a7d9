"""What must be true of every run, whatever crashed, was lost, or came too late.

A rule is a function that tells what a history has against it; its name and its first line say what
it holds. `check` asks all of them. Where it cannot be known whether something happened, both are
allowed: a rule speaks up only where no order of events explains what was seen.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple, TypeVar

from tests.simulation.history import (
    Claimed,
    Delivered,
    Effect,
    History,
    Outcome,
    Partition,
    Place,
    Published,
    Redriven,
    Settled,
    Sought,
    Stored,
)
from tests.simulation.job_rules import (
    a_key_has_one_live_job,
    doubled,
    invented_jobs,
    jobs_end_as_they_were_settled,
    late_settles_of_jobs,
    limits_are_kept,
    lines_are_kept,
    locks_of_two,
    lost_jobs,
    maybe_pruned,
    refused_without_reason,
)
from tests.simulation.lookups import (
    asked_for,
    by_place,
    clocks_of,
    first_of_each,
    grouped,
    messages_of,
    reopenings,
    sure_and_possible_acks,
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
    """What was published or put, and answered for, is there, and where the answer said; but for
    what garbage collection or pruning have taken when it was done.
    """
    stored = grouped(messages_of(history), lambda message: message.mark)
    for published in history.of(Published):
        if published.outcome is not Outcome.OK:
            continue
        found = [message[:2] for message in stored.get(published.mark, ())]
        told = (published.partition, published.offset)
        if not found:
            yield f"{published.mark} was published to {published.partition}, and is gone"
        elif published.offset is not None and told not in found:
            yield f"{published.mark} is at {found[0]}, and was said to be at {told}"
    yield from lost_jobs(history)


def nothing_is_invented(history: History) -> Iterator[str]:
    """What is there, or was handed out, somebody published or put; and each is there once."""
    published = {event.mark for event in history.of(Published) if event.outcome.possible}
    messages = messages_of(history)
    for message in messages:
        if message.mark not in published:
            yield f"{message.mark} is at {message[:2]}, and nobody published it"
    # A publish that is tried again may find that what it has published was collected by then.
    begins = history.final.begins
    kept = [m for m in messages if m.offset >= begins.get(m.partition, 0)]
    yield from doubled(Counter(message.mark for message in kept))
    yield from doubled(Counter(message[:2] for message in messages))
    stored = {message[:2]: message.mark for message in messages}
    for delivered in history.of(Delivered):
        where = (delivered.place.partition, delivered.offset)
        if stored.get(where) != delivered.mark:
            yield f"{delivered.mark} was delivered from {where}, where it is not"
    for letter in history.final.letters:
        where = (letter.place.partition, letter.offset)
        if stored.get(where) != letter.mark:
            yield f"{letter.mark} is a dead letter of {where}, where it is not"
    yield from invented_jobs(history)


def nothing_is_left_behind(history: History) -> Iterator[str]:
    """When all is done, no row is there that only what is alive needs, or that has no job."""
    for what, count in history.final.rests.items():
        if count:
            yield f"{count} {what} are left"


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
    yield from not_again(history)
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
    for partition in {message.partition for message in messages_of(history)}:
        for topic, group in groups:
            if topic == partition.topic and Place(group, partition) not in known:
                yield f"{group} has no place in {partition}"


def not_again(history: History) -> Iterator[str]:
    """What a group was set back to, or given back, and was not given again."""
    messages = grouped(messages_of(history), lambda message: message.partition)
    deliveries = by_place(history.of(Delivered))
    for sought in history.of(Sought):
        if sought.outcome is not Outcome.OK or is_doubtful(history, sought):
            continue
        place = sought.place
        again = {e.offset for e in deliveries.get(place, ()) if not e.before(sought)}
        for message in messages.get(place.partition, ()):
            if message.offset >= sought.offset and message.offset not in again:
                yield f"{message.mark} was not delivered to {place.group} again, which was set back"


def is_doubtful(history: History, sought: Sought) -> bool:
    """Whether another seek may have taken effect after one, of which nobody knows where it was."""
    return any(
        other.place == sought.place and other.outcome is Outcome.UNKNOWN and other.ended is None
        for other in history.of(Sought)
    )


def nobody_owns_what_another_owns(history: History) -> Iterator[str]:
    """A lease, and a lock, has one owner at a time; and what was handed out is invisible."""
    yield from leases_of_two(history)
    yield from handed_out_twice(history)
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


def handed_out_twice(history: History) -> Iterator[str]:
    """Messages that one owner was given again before it had settled them, or their time was up."""
    settles = grouped(history.of(Settled), lambda settled: settled.number)
    numbered = [event for event in history.of(Delivered) if event.number]
    same = grouped(numbered, lambda event: (event.place, event.offset, event.epoch))
    for events in same.values():
        for one, other in pairwise(sorted(events, key=lambda event: event.number)):
            settled = any(
                settle.outcome.possible and not other.before(settle)
                for settle in settles.get(one.number, ())
            )
            latest = max(clocks_of(history, one, other), default=0)
            if not settled and latest < one.until:
                yield f"{other.mark} was given to {other.actor} twice, as {one.place}"


def what_comes_too_late_changes_nothing(history: History) -> Iterator[str]:
    """No settle counts once others own the message or the job; one that comes in time counts, and
    stands.
    """
    yield from late_settles(history)
    yield from late_settles_of_jobs(history)
    yield from refused_without_reason(history)


def late_settles(history: History) -> Iterator[str]:
    deliveries = by_place(history.of(Delivered))
    reopened = {place: reopenings(history, place) for place in deliveries}
    for settled in history.of(Settled):
        if settled.outcome is not Outcome.OK:
            continue
        told = f"{settled.kind} of {settled.place} offset {settled.offset} by {settled.actor}"
        for other in deliveries.get(settled.place, ()):
            newer = other.epoch > settled.epoch
            if other.before(settled) and (newer or is_later(other, settled)):
                yield f"{told} counted, although {other.actor} owned it by then"
            gone = settled.ends and other.offset == settled.offset and settled.before(other)
            if gone and not between(settled, other, reopened[settled.place]):
                yield f"{told} counted, and {other.actor} was given it after that"
        yield from voided(settled, deliveries.get(settled.place, ()), reopened, told)


def is_later(other: Delivered, settled: Settled) -> bool:
    """Whether a delivery is a later one, of the same message, than the one that was settled. How
    many attempts there were does not always tell: a release takes one back.
    """
    if other.number and settled.number:
        return other.offset == settled.offset and other.number > settled.number
    return other.offset == settled.offset and other.attempt > settled.attempt


def between(settled: Settled, other: Delivered, reopened: Iterable[Redriven | Sought]) -> bool:
    """Whether something was given back after it was settled, and before it was delivered."""
    return any(not event.before(settled) and not other.before(event) for event in reopened)


def voided(
    settled: Settled,
    deliveries: Iterable[Delivered],
    reopened: dict[Place, list[Redriven | Sought]],
    told: str,
) -> Iterator[str]:
    """What was in flight when its group was set back, and was settled all the same."""
    own = next((e for e in deliveries if e.number and e.number == settled.number), None)
    for sought in reopened.get(settled.place, ()):
        sure = isinstance(sought, Sought) and sought.outcome is Outcome.OK
        if sure and own is not None and own.before(sought) and sought.before(settled):
            yield f"{told} counted, although the group was set back by then"


# --- in which order -------------------------------------------------------------------------------


def order_is_kept(history: History) -> Iterator[str]:
    """Of a key, what was published later comes later; in strict mode, when all before is done."""
    published: dict[Partition, list[Published]] = defaultdict(list)
    for event in history.of(Published):
        if event.offset is not None and not event.duplicate:
            published[event.partition].append(event)
    for partition, events in published.items():
        for first, after in overtaken(events):
            yield f"{first.mark} was published to {partition} before {after.mark}, and is behind it"
    for place, deliveries in by_place(history.of(Delivered)).items():
        fresh = [event for event in first_of_each(deliveries) if event.attempt == 1]
        for one, other in overtaken(until_reopened(history, place, fresh)):
            yield f"{one.mark} was delivered to {place} before {other.mark}, and is behind it"
        yield from handed_out_of_order(place, fresh)
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


def until_reopened(
    history: History, place: Place, deliveries: Iterable[Delivered]
) -> list[Delivered]:
    """Those before anything was given back: what nobody lived to tell may come again after that."""
    first = min([event.began for event in reopenings(history, place)], default=None)
    return [e for e in deliveries if first is None or (e.ended is not None and e.ended < first)]


def handed_out_of_order(place: Place, fresh: Iterable[Delivered]) -> Iterator[str]:
    """What one owner was given in a wrong order, also by one poll."""
    numbered = [event for event in fresh if event.number]
    for events in grouped(numbered, lambda event: event.epoch).values():
        for one, other in pairwise(sorted(events, key=lambda event: event.number)):
            if one.offset > other.offset:
                yield f"{one.mark} was handed out to {place} before {other.mark}"


def too_soon(history: History, place: Place, deliveries: Iterable[Delivered]) -> Iterator[str]:
    """Deliveries of a strict group that came before something in front of them was done."""
    ends: dict[int, list[Settled]] = defaultdict(list)
    for settled in history.of(Settled):
        if settled.place == place and settled.ends and settled.outcome.possible:
            ends[settled.offset].append(settled)
    progress = next((p for p in history.final.progress if p.place == place), None)
    if progress is None:
        return
    sought = [event for event in history.of(Sought) if event.place == place]
    for event in deliveries:
        since = [s for s in sought if s.outcome is Outcome.OK and s.before(event)]
        for offset in range(progress.start + 1, event.offset):
            # Set back, a group has to be done with it once more.
            rounds = [s for s in since if s.offset <= offset]
            if not any(is_done_by(event, end, rounds) for end in ends[offset]):
                yield f"{event.mark} was delivered to {place} before offset {offset} was done"
                break


def is_done_by(event: Delivered, end: Settled, rounds: Iterable[Sought]) -> bool:
    """Whether a settle may have taken effect before a delivery, and after all seeks before that."""
    return not event.before(end) and not any(end.before(sought) for sought in rounds)


def effects_out_of_order(history: History) -> Iterator[str]:
    """Effects of strict groups whose order is not that of their messages: as often as a group was
    set back it may begin anew, and what was rejected comes when it is given back.
    """
    where = {message.mark: message for message in messages_of(history)}
    rejected = {(e.place, e.offset) for e in history.of(Settled) if e.kind == "reject"}
    rounds = Counter(event.place for event in history.of(Sought) if event.outcome.possible)
    last: dict[Place, Stored] = {}
    for effect in history.final.effects:
        message = where.get(effect.mark)
        if effect.of not in history.strict or message is None:
            continue
        place = Place(effect.of, message.partition)
        if (place, message.offset) in rejected:
            continue
        before = last.get(place)
        if before is not None and before.offset > message.offset:
            rounds[place] -= 1
            if rounds[place] < 0:
                told = f"{before.mark} took effect before {message.mark}"
                yield f"{told}, and is behind it in {place}"
        last[place] = message


# --- what is done with ----------------------------------------------------------------------------


def only_what_was_acked_is_passed_over(history: History) -> Iterator[str]:
    """A group's watermark is over nothing that it has not acked, or rejected; and what it has
    rejected is a dead letter, until it is given back.
    """
    ended: dict[str, set[tuple[Place, int]]] = defaultdict(set)
    for event in history.of(Settled):
        if event.outcome.possible:
            ended[event.kind].add((event.place, event.offset))
    for progress, messages in asked_for(history):
        place, group = progress.place, progress.place.group
        for message in messages:
            dead = message.offset in progress.dead
            what = (place, message.offset)
            if dead and what not in ended["reject"]:
                yield f"{message.mark} is a dead letter of {group}, which never rejected it"
            elif progress.is_done(message.offset) and not dead and what not in ended["ack"]:
                yield f"{message.mark} is done for {group}, which never acked it"
    yield from letters_too_many(history)
    yield from jobs_end_as_they_were_settled(history)


def letters_too_many(history: History) -> Iterator[str]:
    """A message is a dead letter once for each time that it was rejected."""
    rejects = Counter(
        (event.place, event.offset)
        for event in history.of(Settled)
        if event.kind == "reject" and event.outcome.possible
    )
    for what, times in Counter(letter[:2] for letter in history.final.letters).items():
        if times > rejects[what]:
            yield f"{what} is a dead letter {times} times, and was rejected {rejects[what]} times"


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
    again = {event.place.group for event in history.of(Sought) if event.outcome.possible}
    yield from effects_without_acks(history, effects, again)
    wanted, gone = acked_in_the_end(history), maybe_pruned(history)
    for owner in history.transactional:
        there = {effect.mark for effect in effects if effect.of == owner}
        for mark in wanted[owner] - there:
            yield f"{mark} is acked by {owner}, and has no effect"
        # What was acked once, set back, and not acked again has its effect all the same.
        for mark in there - wanted[owner] - gone if owner not in again else ():
            yield f"{mark} has an effect of {owner}, and is not acked"


def effects_without_acks(
    history: History, effects: "Counter[Effect]", again: set[str]
) -> Iterator[str]:
    """Effects that are not as many as acks; `again` are the groups that were set back."""
    sure, possible = sure_and_possible_acks(history)
    # What was published again after it was collected is another message, with effects of its own.
    copies = Counter(message.mark for message in messages_of(history))
    for effect, times in effects.items():
        if not possible[effect]:
            yield f"{effect.mark} took effect for {effect.of}, which never acked it"
        elif times > (possible[effect] if effect.of in again else max(1, copies[effect.mark])):
            yield f"{effect.mark} took effect {times} times for {effect.of}"
    for (owner, mark), times in sure.items():
        if owner in history.transactional and effects[Effect(owner, mark)] < times:
            yield f"{mark} was acked {times} times by {owner}, and has less effects"


def acked_in_the_end(history: History) -> dict[str, set[str]]:
    """What each group and queue has acked, by what is left of it."""
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
    return wanted


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
    nothing_is_left_behind,
    a_key_has_one_live_job,
    lines_are_kept,
    limits_are_kept,
)
