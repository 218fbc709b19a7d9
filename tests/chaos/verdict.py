"""What a trial came to: the rules that its history breaks, and figures.

The rules are those of the simulator. Two are added: what a publisher wrote in the transaction in
which it published is there if the message is; and jobs of one ordering key are done one by one.
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

import msgspec

from tests.chaos.load import BILLING, MAIL, OUTBOX, line_of
from tests.simulation import rules
from tests.simulation.history import (
    Claimed,
    Delivered,
    Event,
    Final,
    History,
    JobSettled,
    Outcome,
    Published,
    Put,
    Settled,
)
from tests.simulation.rules import Violation

__all__ = ["Verdict", "history_of", "judge"]

COLUMNS = {
    "nothing is lost": "lost",
    "everything is handled at least once": "lost",
    "nothing is invented": "doubled",
    "effects are there exactly once": "doubled",
    "what was committed together is there together": "doubled",
    "order is kept": "out_of_order",
    "lines are kept": "out_of_order",
    "nobody owns what another owns": "stale",
    "what comes too late changes nothing": "stale",
    "a tick is one job": "ticks",
}
"""Where a broken rule is counted; all others are told among what else is wrong."""


CLOCK_NS = 1_000_000
"""SQLite's clock counts milliseconds."""


class Verdict(msgspec.Struct, kw_only=True):
    """The row of a trial in the table."""

    fault: str
    database: str
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
    recovered_after: float | None = None
    """Seconds from the end of the fault until all went on: each group with each key."""
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
    for rule in (what_was_committed_together_is_there_together, lines_are_kept):
        for story in rule(history):
            yield Violation(rule.__name__.replace("_", " "), story)


def what_was_committed_together_is_there_together(history: History) -> Iterator[str]:
    """A publisher's own row is there once if the message of its transaction is, and else not."""
    rows = Counter(effect.mark for effect in history.final.effects if effect.of == OUTBOX)
    there = {m.mark for m in history.final.messages if m.mark.endswith(OUTBOX)}
    for mark in sorted(rows.keys() | there):
        wanted = int(mark in there)
        if rows[mark] != wanted:
            yield f"{mark} has {rows[mark]} rows of its publisher, and not {wanted}"


def lines_are_kept(history: History) -> Iterator[str]:
    """A job of a line is claimed when all that were put before it are done: at an earlier time of
    the database's clock, since at the same time ids decide.
    """
    ids = {job.mark: job.id for job in history.final.jobs}
    done: dict[int, int] = {}
    for settled in history.of(JobSettled):
        if settled.ends and settled.outcome.possible:
            done[settled.job] = min(settled.began, done.get(settled.job, settled.began))
    claims: dict[str, list[Claimed]] = defaultdict(list)
    for claimed in history.of(Claimed):
        claims[claimed.mark].append(claimed)
    for puts in lines(history):
        for first, second in itertools.combinations(puts, 2):
            if first.mark not in ids or first.ended is None:
                continue
            if first.ended + CLOCK_NS >= second.began:
                continue
            end = done.get(ids[first.mark])
            for claimed in claims[second.mark]:
                if end is None or (claimed.ended is not None and claimed.ended < end):
                    yield f"{second.mark} was claimed before {first.mark} was done"


def lines(history: History) -> Iterable[list[Put]]:
    """What was put into each line, in that order."""
    found: dict[str, list[Put]] = defaultdict(list)
    for put in history.of(Put):
        line = line_of(put.mark)
        if line is not None:
            found[line].append(put)
    return found.values()


def redeliveries(history: History) -> int:
    """How often something was given out again, and nobody had asked for that by a nack."""
    handed = Counter((event.place, event.offset) for event in history.of(Delivered))
    claimed = Counter(event.job for event in history.of(Claimed))
    again = handed.total() - len(handed) + claimed.total() - len(claimed)
    settled: list[Settled | JobSettled] = [*history.of(Settled), *history.of(JobSettled)]
    return max(again - sum(event.kind == "nack" for event in settled), 0)
