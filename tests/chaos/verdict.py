"""What a trial came to: the rules that its history breaks, and figures.

The rules are those of the simulator. Some are added, for what is only done here, and for what is
known only here: that a fault has hit somebody, and when all went on.
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

import msgspec

from tests.chaos.load import BILLING, MAIL, OUTBOX, line_of
from tests.chaos.record import Offered
from tests.simulation import rules
from tests.simulation.history import (
    Claimed,
    Delivered,
    Event,
    Final,
    History,
    JobSettled,
    Outcome,
    Place,
    Published,
    Put,
    Settled,
)
from tests.simulation.rules import Violation

__all__ = ["Verdict", "blame", "course_violations", "history_of", "judge"]

COLUMNS = {
    "nothing is lost": "lost",
    "everything is handled at least once": "lost",
    "nothing is invented": "doubled",
    "effects are there exactly once": "doubled",
    "what was committed together is there together": "doubled",
    "an offer makes way for one other": "lost",
    "nothing is given up": "lost",
    "order is kept": "out_of_order",
    "lines are kept": "out_of_order",
    "an owner gets them in order": "out_of_order",
    "nobody owns what another owns": "stale",
    "what comes too late changes nothing": "stale",
    "a tick is one job": "ticks",
}
"""Where a broken rule is counted; all others are told among what else is wrong."""


WAITS_SECONDS = 20.0
"""What those who take part wait for, one after the other: a lease, a message that was given to
somebody else, a lock in the database, and the longest pause after an error.
"""

SLOWER = 10
"""How many times longer than at its beginning a trial may take to get going, beside those waits."""


class Verdict(msgspec.Struct, kw_only=True):
    """The row of a trial in the table."""

    fault: str
    database: str
    version: str = ""
    """Of the database."""
    messages: int = 0
    """Messages, jobs and ticks."""
    redeliveries: int = 0
    unknown: int = 0
    """Of how many publishes and puts nobody was told what came."""
    lost: int = 0
    doubled: int = 0
    out_of_order: int = 0
    stale: int = 0
    ticks: int = 0
    """Ticks that were made twice, or not at all."""
    other: int = 0
    hits: int = 0
    """Signs that the fault has hit somebody: see `faults`."""
    flowed_after: float | None = None
    """Seconds at the beginning until all flowed: each key to each group, each queue, each schedule.
    Nothing was wrong then, so this is how fast the machine is.
    """
    lasted: float = 0.0
    """How many seconds the fault went on: so much may have piled up."""
    recovered_after: float | None = None
    """As at the beginning, from the end of the fault."""
    done_after: float | None = None
    """Seconds from the last message and job until all of them were done."""
    stories: list[str] = []

    @property
    def good(self) -> bool:
        return not self.stories


def history_of(events: list[Event], final: Final) -> History:
    """A trial, in the words of the rules."""
    return History(
        events=tuple(events),
        final=final,
        strict=frozenset({BILLING}),
        transactional=frozenset({BILLING, MAIL}),
    )


def judge(verdict: Verdict, history: History) -> None:
    """Write into a row what a history came to."""
    final = history.final
    verdict.messages = len(final.messages) + len(final.jobs)
    verdict.redeliveries = redeliveries(history)
    attempts: list[Published | Put] = [*history.of(Published), *history.of(Put)]
    verdict.unknown = sum(event.outcome is Outcome.UNKNOWN for event in attempts)
    for violation in [*rules.check(without_outbox(history)), *own_violations(history)]:
        blame(verdict, violation)


def blame(verdict: Verdict, violation: Violation) -> None:
    """Count what is wrong, and tell it."""
    column = COLUMNS.get(violation.rule, "other")
    setattr(verdict, column, getattr(verdict, column) + 1)
    verdict.stories.append(f"{violation.rule}: {violation.story}")


def without_outbox(history: History) -> History:
    """Only with the effects of handlers: a publisher acks nothing."""
    effects = tuple(effect for effect in history.final.effects if effect.of != OUTBOX)
    final = msgspec.structs.replace(history.final, effects=effects)
    return msgspec.structs.replace(history, final=final)


def own_violations(history: History) -> Iterator[Violation]:
    for rule in OWN_RULES:
        for story in rule(history):
            yield Violation(rule.__name__.replace("_", " "), story)


def course_violations(verdict: Verdict, *, hits: bool = True) -> Iterator[Violation]:
    """What is wrong with the course of a trial: that the fault hit nobody, or that it went on late.

    `hits` says whether there is to be a sign of the fault.
    """
    if hits and not verdict.hits and verdict.recovered_after is not None:
        yield Violation("the fault hits somebody", f"there is no sign of {verdict.fault}")
    for what, seconds in (
        ("all of it flowed again", verdict.recovered_after),
        ("all was done", verdict.done_after),
    ):
        if seconds is not None and seconds > in_time(verdict):
            yield Violation("it goes on in time", f"{what} after {seconds:.1f} s")


def in_time(verdict: Verdict) -> float:
    """Within how many seconds a trial is to go on: those of all waits, one after the other, those
    in which what has piled up can be worked off, and what a slow machine explains.
    """
    return WAITS_SECONDS + verdict.lasted + SLOWER * (verdict.flowed_after or 0.0)


def what_was_committed_together_is_there_together(history: History) -> Iterator[str]:
    """A publisher's own row is there once if the message of its transaction is, and else not."""
    rows = Counter(effect.mark for effect in history.final.effects if effect.of == OUTBOX)
    there = {m.mark for m in history.final.messages if m.mark.endswith(OUTBOX)}
    for mark in sorted(rows.keys() | there):
        wanted = int(mark in there)
        if rows[mark] != wanted:
            yield f"{mark} has {rows[mark]} rows of its publisher, and not {wanted}"


def an_offer_makes_way_for_one_other(history: History) -> Iterator[str]:
    """Of a key no more offers are gone than others have taken the place of one, as far as told."""
    there = {job.mark for job in history.final.jobs}
    gone: Counter[tuple[str, str | None]] = Counter()
    updates: Counter[tuple[str, str | None]] = Counter()
    for offer in history.of(Offered):
        key = (offer.queue, offer.key)
        gone[key] += offer.outcome is Outcome.OK and offer.mark not in there
        updates[key] += offer.outcome.possible and offer.answer in (None, "UPDATED")
    for key, count in gone.items():
        if count > updates[key]:
            yield f"{count} offers of {key} are gone, and no more than {updates[key]} were updates"


def nothing_is_given_up(history: History) -> Iterator[str]:
    """There are attempts enough for everything, and nobody rejects anything."""
    for job in history.final.jobs:
        if job.state == "failed":
            yield f"job {job.id} of {job.queue} is given up: {job.mark}"
    for progress in history.final.progress:
        for offset in sorted(progress.dead):
            yield f"offset {offset} is a dead letter of {progress.place}"


def an_owner_gets_them_in_order(history: History) -> Iterator[str]:
    """Under one lease, whoever has it is first given what comes first; also where it is not known
    when that began, it is known which was written down before which.
    """
    furthest: dict[tuple[Place, int, str], Delivered] = {}
    seen: set[tuple[Place, int, str, int]] = set()
    for event in history.of(Delivered):
        lease = (event.place, event.epoch, event.actor)
        if event.attempt > 1 or (*lease, event.offset) in seen:
            continue
        seen.add((*lease, event.offset))
        before = furthest.get(lease)
        if before is not None and before.offset > event.offset:
            yield f"{event.actor} got {event.mark} of {event.place} after {before.mark}"
        else:
            furthest[lease] = event


def lines_are_kept(history: History) -> Iterator[str]:
    """A job of a line is claimed when all that were put before it are done."""
    ids = {job.mark: job.id for job in history.final.jobs}
    done = ends_of_jobs(history)
    claims: dict[str, list[Claimed]] = defaultdict(list)
    for claimed in history.of(Claimed):
        claims[claimed.mark].append(claimed)
    for puts in lines(history):
        for first, second in itertools.combinations(puts, 2):
            there = first.outcome is Outcome.OK and first.mark in ids
            if not there or not first.before(second):
                continue
            end = done.get(ids[first.mark])
            for claimed in claims[second.mark]:
                if end is None or (claimed.ended is not None and claimed.ended < end):
                    yield f"{second.mark} was claimed before {first.mark} was done"


def ends_of_jobs(history: History) -> dict[int, int]:
    """When jobs were done at the earliest: under a claim that no other came after."""
    claims: dict[int, list[Claimed]] = defaultdict(list)
    for claimed in history.of(Claimed):
        claims[claimed.job].append(claimed)
    last = {
        (job, one.token)
        for job, found in claims.items()
        for one in found
        if not any(one.before(other) for other in found)
    }
    done: dict[int, int] = {}
    for settled in history.of(JobSettled):
        possible = settled.ends and settled.outcome.possible
        if possible and (settled.job, settled.token) in last:
            done[settled.job] = min(settled.began, done.get(settled.job, settled.began))
    return done


def lines(history: History) -> Iterable[list[Put]]:
    """What was put into each line, in that order."""
    found: dict[str, list[Put]] = defaultdict(list)
    for put in history.of(Put):
        line = line_of(put.mark)
        if line is not None:
            found[line].append(put)
    return found.values()


OWN_RULES = (
    what_was_committed_together_is_there_together,
    an_offer_makes_way_for_one_other,
    nothing_is_given_up,
    an_owner_gets_them_in_order,
    lines_are_kept,
)


def redeliveries(history: History) -> int:
    """How often something was given out again, and nobody had asked for that by a nack."""
    handed = Counter((event.place, event.offset) for event in history.of(Delivered))
    claimed = Counter(event.job for event in history.of(Claimed))
    again = handed.total() - len(handed) + claimed.total() - len(claimed)
    settled: list[Settled | JobSettled] = [*history.of(Settled), *history.of(JobSettled)]
    return max(again - sum(event.kind == "nack" for event in settled), 0)
