"""What must be true of jobs: see `rules`.

A job that is claimed is certainly held until somebody may have let go of it, it may have been
replaced, or the database's clock may have shown that its lock is over.
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from tests.simulation.history import Claimed, Event, History, JobSettled, Outcome, Put
from tests.simulation.lookups import acked_and_pruned, by_token, clocks_of, ends_of_jobs, grouped

__all__ = [
    "a_key_has_one_live_job",
    "doubled",
    "invented_jobs",
    "jobs_end_as_they_were_settled",
    "late_settles_of_jobs",
    "limits_are_kept",
    "lines_are_kept",
    "locks_of_two",
    "lost_jobs",
    "maybe_pruned",
    "refused_without_reason",
]


def doubled(counted: "Counter[Any]") -> Iterator[str]:
    for what, times in counted.items():
        if times > 1:
            yield f"{what} is there {times} times"


# --- what is there --------------------------------------------------------------------------------


def lost_jobs(history: History) -> Iterator[str]:
    """Jobs that were put, and are gone without a reason."""
    there = {job.mark for job in history.final.jobs}
    pruned = acked_and_pruned(history)
    there |= {claim.mark for claim in history.of(Claimed) if claim.job in pruned}
    puts = list(history.of(Put))
    for put in puts:
        if put.outcome is Outcome.OK and put.mark not in there and not replaced(put, puts):
            yield f"{put.mark} was put into {put.queue}, and is gone"


def replaced(put: Put, puts: Iterable[Put]) -> bool:
    """Whether another offer under the same key may have taken the place of one."""
    return put.key is not None and any(
        (other.queue, other.key) == (put.queue, put.key)
        and other is not put
        and other.replaces
        and other.outcome.possible
        and not other.before(put)
        for other in puts
    )


def replaced_after(claimed: Claimed, puts: Iterable[Put]) -> bool:
    """Whether the job of a claim may have been offered anew: then another one has its place."""
    return claimed.key is not None and any(
        (put.queue, put.key) == (claimed.queue, claimed.key)
        and put.replaces
        and put.outcome.possible
        and not put.before(claimed)
        for put in puts
    )


def maybe_pruned(history: History) -> set[str]:
    """Jobs, by mark, that are not there, and may have been completed and deleted."""
    there = {job.id for job in history.final.jobs}
    pruned = acked_and_pruned(history) - there
    return {claim.mark for claim in history.of(Claimed) if claim.job in pruned}


def invented_jobs(history: History) -> Iterator[str]:
    """Jobs, and claims, that nobody put, or not so."""
    put = {event.mark: event for event in history.of(Put) if event.outcome.possible}
    ticked = {tick.job for tick in history.final.ticks}
    for job in history.final.jobs:
        if job.mark not in put and job.id not in ticked:
            yield f"job {job.id} of {job.queue} is there, and nobody put {job.mark}"
    yield from doubled(Counter(job.mark for job in history.final.jobs if job.mark in put))
    known = {job.id: job.mark for job in history.final.jobs}
    puts, pruned = list(put.values()), acked_and_pruned(history)
    ids: dict[str, int] = {}
    for claimed in history.of(Claimed):
        told = f"job {claimed.job} of {claimed.queue} was claimed"
        source = put.get(claimed.mark)
        if source is None and claimed.job not in ticked:
            yield f"{told} as {claimed.mark}, which nobody put"
        if source is not None and (source.queue, source.key) != (claimed.queue, claimed.key):
            yield f"{told} as {claimed.mark}, which was put otherwise"
        if ids.setdefault(claimed.mark, claimed.job) != claimed.job:
            yield f"{told} as {claimed.mark}, which is job {ids[claimed.mark]}"
        if claimed.job in known and known[claimed.job] != claimed.mark:
            yield f"{told} as {claimed.mark}, and is {known[claimed.job]}"
        gone = claimed.job not in known and claimed.job not in pruned
        if gone and not replaced_after(claimed, puts):
            yield f"{told}, and there is none"


def jobs_end_as_they_were_settled(history: History) -> Iterator[str]:
    """A job is completed if, and only if, it was acked, and failed if it was rejected."""
    possible: dict[str, set[int]] = defaultdict(set)
    for settle in history.of(JobSettled):
        if settle.outcome.possible:
            possible[settle.kind].add(settle.job)
    states = {job.id: job.state for job in history.final.jobs}
    for job in history.final.jobs:
        if job.state == "completed" and job.id not in possible["ack"]:
            yield f"job {job.id} of {job.queue} is completed, and nobody acked it"
        if job.state == "failed" and job.id not in possible["reject"]:
            yield f"job {job.id} of {job.queue} is failed, and nobody rejected it"
    pruned = acked_and_pruned(history)
    for settle in history.of(JobSettled):
        if settle.outcome is not Outcome.OK or not settle.ends:
            continue
        state, wanted = states.get(settle.job), END[settle.kind]
        if state != wanted and not (state is None and settle.job in pruned):
            told = "gone" if state is None else state
            yield f"{settle.kind} of job {settle.job} by {settle.actor} counted, and it is {told}"


END = {"ack": "completed", "reject": "failed"}


# --- who has it -----------------------------------------------------------------------------------


def locks_of_two(history: History) -> Iterator[str]:
    """Jobs that were claimed while others had them locked."""
    puts = list(history.of(Put))
    settles = grouped(history.of(JobSettled), lambda settle: settle.job)
    for job, claims in grouped(history.of(Claimed), lambda claim: claim.job).items():
        for one, other in itertools.combinations(claims, 2):
            follows = partial(may_follow, history, settles=settles.get(job, ()), puts=puts)
            if not follows(one, other) and not follows(other, one):
                yield f"{other.actor} claimed job {job}, which {one.actor} had locked"


def may_follow(
    history: History,
    first: Claimed,
    second: Claimed,
    settles: Sequence[JobSettled],
    puts: Sequence[Put],
) -> bool:
    """Whether a job could be claimed a second time, when the first claim had been made."""
    if second.before(first):
        return False
    if replaced_after(first, [put for put in puts if not second.before(put)]):
        return True  # which makes the first one void
    if any(s.token == first.token and s.ends and s.outcome is Outcome.OK for s in settles):
        return False  # it was done with under the first one
    # Not what the clock has ever shown: it may have been set back since.
    latest = max(clocks_of(history, first, second), default=second.now)
    return latest >= held_until(first, second, settles)


def held_until(first: Claimed, second: Event, settles: Iterable[JobSettled]) -> int:
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


def late_settles_of_jobs(history: History) -> Iterator[str]:
    """A nack or a release that was tried twice, its first answer lost, is not refused: the job
    comes again in any case. Had it counted, two would own the job.
    """
    claims = grouped(history.of(Claimed), lambda claim: claim.job)
    owns = by_token(history)
    for end in history.of(JobSettled):
        if end.outcome is not Outcome.OK or end.kind in ("nack", "release"):
            continue
        told = f"{end.kind} of job {end.job} by {end.actor}"
        own = owns.get((end.job, end.token))
        for claim in claims.get(end.job, ()):
            if claim is own:
                continue
            if own is not None and own.before(claim) and claim.before(end):
                yield f"{told} counted, although {claim.actor} had locked it by then"
            if end.ends and end.before(claim):
                yield f"{told} counted, and {claim.actor} claimed it after that"


def refused_without_reason(history: History) -> Iterator[str]:
    """Settles that were refused, although the lock was good, by the database's clock."""
    claims, puts = by_token(history), list(history.of(Put))
    settles = list(history.of(JobSettled))
    for settle in settles:
        claim = claims.get((settle.job, settle.token))
        if settle.outcome is not Outcome.REFUSED or claim is None:
            continue
        clocks = clocks_of(history, claim, settle)
        others = [s for s in settles if s is not settle and s.job == settle.job]
        late = not clocks or max(clocks) >= held_until(claim, settle, others)
        if not late and not replaced_after(claim, puts):
            yield f"{settle.kind} of job {settle.job} by {settle.actor} was refused, for nothing"


# --- keys, lines, limits --------------------------------------------------------------------------


def a_key_has_one_live_job(history: History) -> Iterator[str]:
    """An offer makes a job where its key has none alive, and is ignored where it has one."""
    puts, ends = list(history.of(Put)), ends_of_jobs(history)
    keyed = grouped([put for put in puts if put.key is not None], lambda p: (p.queue, p.key))
    for put in puts:
        rivals = [other for other in keyed.get((put.queue, put.key), ()) if other is not put]
        if put.ignored:
            alive = [other for other in rivals if may_be_alive(other, put, ends)]
            if not alive:
                yield f"{put.mark} was ignored, and {put.queue} had no job with the key {put.key}"
        elif put.outcome is Outcome.OK and not put.replaces:
            for other in rivals:
                if is_alive(other, put, ends) and not replaced(other, puts):
                    yield f"{put.mark} was made under the key {put.key} of {other.mark}"


def may_be_alive(put: Put, during: Event, ends: dict[str, list[JobSettled]]) -> bool:
    """Whether a job may have been there, and alive, while something was done."""
    over = any(end.outcome is Outcome.OK and end.before(during) for end in ends.get(put.mark, ()))
    return put.outcome.possible and not during.before(put) and not over


def is_alive(put: Put, during: Event, ends: dict[str, list[JobSettled]]) -> bool:
    """Whether a job certainly was, all that time."""
    there = put.outcome is Outcome.OK and put.before(during)
    return there and not may_be_over(put.mark, during, ends)


def may_be_over(mark: str, event: Event, ends: dict[str, list[JobSettled]]) -> bool:
    """Whether a job may have been done with when something was over."""
    return any(not event.before(end) for end in ends.get(mark, ()))


def lines_are_kept(history: History) -> Iterator[str]:
    """Of an ordering key one job is claimed at a time; and the next one, in the order in which they
    were put, when it is done. A claim that was released is as if it had never been.
    """
    puts = {put.mark: put for put in history.of(Put) if put.line is not None}
    ends = ends_of_jobs(history)
    lines = grouped(puts.values(), lambda put: (put.queue, put.line))
    claims = grouped(history.of(Claimed), lambda claim: claim.mark)
    releases = {
        settle.token: settle
        for settle in history.of(JobSettled)
        if settle.kind == "release" and settle.outcome.possible
    }
    for line in lines.values():
        claimed = [claim for put in line for claim in claims.get(put.mark, ())]
        for one, other in itertools.permutations(claimed, 2):
            follows = one.mark != other.mark and one.before(other)
            release = releases.get(one.token)
            undone = release is not None and not other.before(release)
            if follows and not undone and not may_be_over(one.mark, other, ends):
                yield f"{other.mark} was claimed before {one.mark} of its line was done"
        for put, claim in itertools.product(line, claimed):
            ahead = put.mark != claim.mark and is_ahead(history, put, puts[claim.mark])
            if ahead and not may_be_over(put.mark, claim, ends):
                yield f"{claim.mark} was claimed before {put.mark}, which was put before it"


def is_ahead(history: History, first: Put, second: Put) -> bool:
    """Whether a job is in front of another one of its line: it was there, and due, before that."""
    if first.outcome is not Outcome.OK or not first.before(second):
        return False
    earlier, later = clocks_of(history, first, first), clocks_of(history, second, second)
    return not earlier or not later or max(earlier) < min(later)


def limits_are_kept(history: History) -> Iterator[str]:
    """No more jobs of a queue are claimed at a time than its limit says."""
    puts = list(history.of(Put))
    settles = grouped(history.of(JobSettled), lambda settle: settle.token)
    for queue, limit in history.limits.items():
        held = [
            (claim.ended, let_go_at(history, claim, settles.get(claim.token, ()), puts))
            for claim in history.of(Claimed)
            if claim.queue == queue and claim.ended is not None
        ]
        for start, end in held:
            count = sum(since <= start < until for since, until in held)
            if start < end and count > limit:
                yield f"{count} jobs of {queue} were claimed at {start}, and its limit is {limit}"


def let_go_at(
    history: History, claim: Claimed, settles: Iterable[JobSettled], puts: Iterable[Put]
) -> float:
    """Until when a claim certainly holds its job, on the line of time."""
    ends = [
        settle.began
        for settle in settles
        if settle.job == claim.job and settle.kind != "extend" and settle.outcome.possible
    ]
    ends += [put.began for put in puts if replaced_after(claim, [put])]
    over = (
        step
        for step, clock in enumerate(history.clocks[claim.began :], claim.began)
        if clock >= claim.until
    )
    return min([*ends, next(over, float("inf"))])
