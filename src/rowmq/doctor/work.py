"""The work itself: who is behind, what was given up on, and what waits for somebody who is gone."""

from collections.abc import Iterator, Mapping, Sequence
from shlex import quote
from typing import Any

from rowmq.doctor.case import Case
from rowmq.doctor.wording import count, duration
from rowmq.message import Finding, WorkerInfo
from rowmq.store.doctor import ROWS_MAX
from rowmq.store.doctor_facts import (
    Failures,
    GroupState,
    LeftHold,
    LockState,
    QueueState,
    ScheduleState,
    StaleSubscriber,
    StuckJob,
)

__all__ = [
    "judge_failed",
    "judge_groups",
    "judge_holds",
    "judge_letters",
    "judge_locks",
    "judge_queues",
    "judge_schedules",
    "judge_stuck_jobs",
    "judge_subscribers",
    "judge_workers",
]

DAY_SECONDS = 86_400.0


# --- topics ---------------------------------------------------------------------------------------


def judge_groups(groups: Sequence[GroupState], case: Case) -> Iterator[Finding]:
    bad = [finding for group in groups for finding in judge_group(group, case)]
    yield from bad
    if len(groups) >= ROWS_MAX:
        yield case.note(
            f"the first {count(ROWS_MAX, 'group')} were looked at, and there may be more",
            "see all of them: rowmq groups ls",
            groups=len(groups),
        )
    elif not bad:
        lag = sum(group.lag for group in groups)
        yield case.ok(
            f"{count(len(groups), 'group')}, {count(lag, 'message')} behind together",
            groups=len(groups),
            lag=lag,
        )


def judge_group(group: GroupState, case: Case) -> Iterator[Finding]:
    """What is wrong with a group. One that was not looked at whole is never passed over."""
    details = group_details(group)
    found = [*judge_lag(group, case, details)]
    yield from found
    yield from judge_expired(group, case, details)
    if (group.capped or group.oldest_capped) and not found:
        yield case.note(
            f"{named(group)} is {behind(group)}: it has more keys than are looked at",
            f"see where it is most behind: rowmq lag {quote(group.topic)} {quote(group.group)} "
            f"--partitions",
            **details,
        )


def named(group: GroupState) -> str:
    return f"group {group.group!r} of topic {group.topic!r}"


def behind(group: GroupState) -> str:
    """How far a group is behind, and that it may be more."""
    lag, age = count(group.lag, "message"), duration(group.oldest_seconds or 0.0)
    if group.capped:
        lag = f"at least {lag}"
    if group.oldest_capped:
        age = f"at least {age}"
    return f"{lag} behind, the oldest {age} old"


def group_details(group: GroupState) -> dict[str, Any]:
    return {
        "topic": group.topic,
        "group": group.group,
        "lag": group.lag,
        "keys_behind": group.behind,
        "oldest_seconds": group.oldest_seconds,
        "subscribers": group.subscribers,
        "expired": group.expired,
    }


def judge_lag(group: GroupState, case: Case, details: Mapping[str, Any]) -> Iterator[Finding]:
    limits, age = case.thresholds, group.oldest_seconds or 0.0
    is_far = age > limits.seconds("lag_age") or group.lag > limits.lag_messages
    if group.keeps_books:
        if is_far:
            yield case.warning(
                f"{named(group)}, which Spark reads for, is {behind(group)}",
                "see that its stream or archive runs, or give it more to do at once; or, if it is "
                f"not needed any more, run: rowmq groups drop {quote(group.topic)} "
                f"{quote(group.group)}",
                **details,
            )
    elif group.lag and not group.subscribers and age > limits.seconds("unattended"):
        yield case.warning(
            f"nobody consumes {named(group)}: it is {behind(group)}",
            f"start a subscriber of it; or, if the group is not needed any more, run: "
            f"rowmq groups drop {quote(group.topic)} {quote(group.group)}",
            **details,
        )
    elif is_far:
        yield case.warning(
            f"{named(group)} is {behind(group)}, with {count(group.subscribers, 'subscriber')}",
            "start more subscribers if there are more keys than subscribers, make the handler "
            "faster, or see whether a message of one key fails over and over: rowmq lag "
            f"{quote(group.topic)} {quote(group.group)} --partitions",
            **details,
        )


def judge_expired(group: GroupState, case: Case, details: Mapping[str, Any]) -> Iterator[Finding]:
    if group.expired:
        tell = case.warning if group.lag else case.note
        yield tell(
            f"retention took {count(group.expired, 'message')} from {named(group)} before it had "
            f"acked them",
            f"if that is not meant to be, have the group keep up, or keep messages longer: "
            f"rowmq topics configure {quote(group.topic)} --retention 30d",
            **details,
        )


def judge_letters(found: Sequence[Failures], case: Case) -> Iterator[Finding]:
    for letters in found:
        topic, group = letters.source, letters.group or ""
        named = f"{quote(topic)} --group {quote(group)}"
        tell = case.warning if letters.number >= case.thresholds.failures else case.note
        yield tell(
            f"{many(letters, 'dead letter')} of group {group!r} of topic {topic!r}, the "
            f"oldest {duration(letters.oldest_seconds)} old; most often: {letters.errors[0][0]!r}",
            f"see them: rowmq dlq ls {named}; once the cause is mended, have them delivered "
            f"again: rowmq dlq redrive {named}; or delete them: rowmq dlq purge {named}",
            topic=topic,
            group=group,
            **failures(letters),
        )
    if not found:
        yield case.ok("no dead letters")


def judge_failed(found: Sequence[Failures], case: Case) -> Iterator[Finding]:
    for jobs in found:
        named = quote(jobs.source)
        recent = jobs.newest_seconds < DAY_SECONDS and jobs.number >= case.thresholds.failures
        tell = case.warning if recent else case.note
        yield tell(
            f"{many(jobs, 'failed job')} in queue {jobs.source!r}, the newest "
            f"{duration(jobs.newest_seconds)} old; most often: {jobs.errors[0][0]!r}",
            f"see them: rowmq jobs ls {named} --state failed; once the cause is mended, have them "
            f"done again: rowmq jobs retry {named} --all; or delete them: "
            f"rowmq jobs prune {named} --state failed --older-than 0s",
            queue=jobs.source,
            **failures(jobs),
        )
    if not found:
        yield case.ok("no failed jobs")


def failures(found: Failures) -> dict[str, object]:
    return {
        "count": found.number,
        "oldest_seconds": found.oldest_seconds,
        "newest_seconds": found.newest_seconds,
        "errors": dict(found.errors),
    }


def many(found: Failures, what: str) -> str:
    return count(found.number, what) + ("" if found.exact else " or more")


# --- what waits for somebody who is gone ----------------------------------------------------------


def judge_subscribers(found: Sequence[StaleSubscriber], case: Case) -> Iterator[Finding]:
    limit = case.thresholds.seconds("expired")
    stale = [s for s in found if s.expired_seconds > limit]
    for subscriber in stale:
        group = f"group {subscriber.group!r} of topic {subscriber.topic!r}"
        details = {
            "topic": subscriber.topic,
            "group": subscriber.group,
            "subscriber": subscriber.name,
            "expired_seconds": subscriber.expired_seconds,
            "partitions": subscriber.partitions,
        }
        gone = f"{subscriber.name!r} of {group} was last heard of a lease and "
        gone += f"{duration(subscriber.expired_seconds)} ago"
        if subscriber.partitions:
            yield case.warning(
                f"subscriber {gone}, and nobody has taken over its "
                f"{count(subscriber.partitions, 'partition')}",
                f"start a subscriber of the group: it takes them over at once; or run: "
                f"rowmq groups drop {quote(subscriber.topic)} {quote(subscriber.group)}",
                **details,
            )
        else:
            yield case.note(
                f"subscriber {gone}; it owns nothing",
                "nothing to do: the next subscriber of the group forgets it",
                **details,
            )
    if not stale:
        yield case.ok("no lease is past its end")


def judge_locks(found: Sequence[LockState], case: Case) -> Iterator[Finding]:
    limit = case.thresholds.seconds("expired")
    old = [lock for lock in found if lock.expired_seconds > limit]
    for queues in sorted({lock.queues for lock in old}):
        locks = [lock for lock in old if lock.queues == queues]
        jobs, age = sum(lock.jobs for lock in locks), max(lock.expired_seconds for lock in locks)
        named = ", ".join(map(repr, queues))
        yield case.warning(
            f"{count(jobs, 'job')} of queue {named} {'was' if jobs == 1 else 'were'} claimed by a "
            f"worker that is gone, up to {duration(age)} past the lock's end, and nobody has "
            f"asked for jobs since",
            f"start a worker that polls {named}: its first poll gives them back",
            queues=list(queues),
            jobs=jobs,
            owners=sorted({lock.owner for lock in locks})[:10],
            expired_seconds=age,
        )
    if not old:
        yield case.ok("no claimed job is past the end of its lock")


def judge_stuck_jobs(found: Sequence[StuckJob], case: Case) -> Iterator[Finding]:
    for job in found:
        lost = job.deliveries - job.attempts
        yield case.warning(
            f"job {job.id} of queue {job.queue!r} was handed out {job.deliveries} times, and "
            f"{lost} times nobody settled it",
            f"its handler takes longer than lock_timeout, or kills its process: raise "
            f"lock_timeout, or give max_deliveries= to have it given up; see it: "
            f"rowmq jobs show {quote(job.queue)} {job.id}",
            queue=job.queue,
            job_id=job.id,
            deliveries=job.deliveries,
            attempts=job.attempts,
        )
    if not found:
        yield case.ok("no job is handed out over and over")


def judge_queues(queues: Sequence[QueueState], case: Case) -> Iterator[Finding]:
    bad = [finding for queue in queues for finding in judge_queue(queue, case)]
    yield from bad
    if not bad:
        yield case.ok(f"{count(len(queues), 'queue')}; no job waits for long", queues=len(queues))


def judge_queue(queue: QueueState, case: Case) -> Iterator[Finding]:
    limits = case.thresholds
    due, last = queue.due_seconds or 0.0, queue.finished_seconds
    details = {
        "queue": queue.queue,
        "oldest_due_seconds": queue.due_seconds,
        "finished_seconds_ago": last,
    }
    waits = f"its first job has been due for {duration(due)}"
    if queue.paused:
        yield case.note(
            f"queue {queue.queue!r} is paused" + (f", and {waits}" if due else ""),
            f"if that is not meant to be: rowmq queues resume {quote(queue.queue)}",
            **details,
        )
    elif due > limits.seconds("unattended") and not queue.claimed and (last is None or last > due):
        yield case.warning(
            f"nobody works off queue {queue.queue!r}: {waits}, and nothing was finished since",
            f"start a worker that polls {queue.queue!r}, with every kind of job that it has",
            **details,
        )
    elif due > limits.seconds("due_age"):
        yield case.warning(
            f"queue {queue.queue!r} is behind: {waits}",
            "raise its limits (rate, max_in_flight), or start more workers"
            if queue.limited
            else "start more workers, or make the handler faster",
            **details,
        )


def judge_holds(found: Sequence[LeftHold], case: Case) -> Iterator[Finding]:
    limit = case.thresholds.seconds("long_transaction")
    old = [hold for hold in found if hold.seconds > limit]
    for hold in old:
        yield case.note(
            f"job {hold.job_id} was begun in hold() {duration(hold.seconds)} ago and not ended "
            f"({count(hold.starts, 'time')} so far)",
            "if it is still being worked on, all is well; else its worker died, and the next "
            "hold() counts that as a failure",
            job_id=hold.job_id,
            starts=hold.starts,
            age_seconds=hold.seconds,
        )
    if not old:
        yield case.ok("no job has been held for long")


# --- schedules and workers ------------------------------------------------------------------------


def judge_schedules(found: Sequence[ScheduleState], case: Case) -> Iterator[Finding]:
    limit = case.thresholds.seconds("unattended")
    bad = False
    for schedule in found:
        due = schedule.due_seconds or 0.0
        details = {"schedule": schedule.name, "due_seconds": schedule.due_seconds}
        if schedule.paused:
            bad = True
            yield case.note(
                f"schedule {schedule.name!r} is paused",
                f"if that is not meant to be: rowmq schedules resume {quote(schedule.name)}",
                **details,
            )
        elif due > limit:
            bad = True
            yield late_schedule(schedule, due, case)
    if not bad:
        yield case.ok(f"{count(len(found), 'schedule')}, none of them late", schedules=len(found))


def late_schedule(schedule: ScheduleState, due: float, case: Case) -> Finding:
    """A schedule that is due, and why it may not have fired."""
    details = {"schedule": schedule.name, "due_seconds": due, "function": schedule.function}
    late = f"schedule {schedule.name!r} should have fired {duration(due)} ago"
    removing = f"or, if it is not needed any more: rowmq schedules rm {quote(schedule.name)}"
    if schedule.function is not None:
        return case.warning(
            f"{late}, and no process is there that has installed it with {schedule.function}",
            f"start the program that installs it: only that has the function which makes its "
            f"payload; {removing}",
            **details,
        )
    return case.warning(
        f"{late}, and nobody tends schedules",
        f"start a worker, or a client that installs a schedule: each tends all of them; {removing}",
        **details,
    )


def judge_workers(found: Sequence[WorkerInfo], case: Case) -> Iterator[Finding]:
    alive = [worker for worker in found if worker.alive]
    bad = False
    for worker in found:
        if worker.alive:
            continue
        bad = True
        replaced = any(other.app == worker.app for other in alive)
        where = (
            f"worker {worker.name!r} of app {worker.app!r} on {worker.host} (process {worker.pid})"
        )
        tell = case.note if replaced else case.warning
        yield tell(
            f"{where} has died; it was last heard of at {worker.seen_at:%Y-%m-%d %H:%M:%S} UTC"
            + ("" if replaced else ", and no other worker of this app is there"),
            "see its log. What it had claimed goes to another worker when its lock runs out"
            if replaced
            else f"start a worker of app {worker.app!r} again, and see the log of that one",
            worker=worker.name,
            app=worker.app,
            host=worker.host,
            pid=worker.pid,
            seen_at=worker.seen_at,
        )
    versions = sorted({worker.version for worker in alive})
    if len(versions) > 1:
        bad = True
        yield case.note(
            f"workers of different versions are at work: {', '.join(versions)}",
            "if this is not the middle of a deployment, bring all of them to the same version",
            versions=versions,
        )
    if not bad:
        yield case.ok(f"{count(len(alive), 'worker')} at work", workers=len(alive))
