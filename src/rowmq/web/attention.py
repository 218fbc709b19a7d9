"""What needs attention, from what the dashboard has looked at anyway: pure functions.

It is what `doctor` would say of the work, as far as it costs nothing, and measured the same; what
it costs something to find out, the doctor's page says.
"""

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import NamedTuple

from rowmq.doctor.thresholds import Thresholds
from rowmq.inspection import QueueBacklog
from rowmq.message import Level, ScheduleInfo, WorkerInfo
from rowmq.overview import GroupTraffic, Traffic
from rowmq.web.callers import Caller
from rowmq.web.sampling import Snapshot
from rowmq.web.wording import duration, number

__all__ = ["Notice", "notices"]

ALIKE_MAX = 3
"""How many notices of a kind are shown one by one."""

LIMITS = Thresholds()

UNSEEN = "not seen whole"

JUST_NOW_SECONDS = 10.0
"""How late a schedule may be before anybody says so: who tends it looks now and then."""


class Notice(NamedTuple):
    """Something to look at: what is said around a `name`, and which page shows it."""

    level: Level
    kind: str
    before: str
    name: str
    after: str
    hint: str
    path: tuple[str, ...]


def notices(seen: Snapshot, caller: Caller) -> list[Notice]:
    """All that needs attention and that the caller may see, the worst first."""
    found = [
        *of_schedules(seen.schedules, seen.traffic.at, caller),
        *of_groups(seen, caller),
        *of_many(seen.traffic),
        *of_queues(seen.backlog, seen.traffic.at, caller),
        *of_workers(seen.workers, seen.traffic.at),
    ]
    order = list(Level)
    found.sort(key=lambda notice: order.index(notice.level), reverse=True)
    return list(few_of_each(found))


def few_of_each(found: Iterable[Notice]) -> Iterator[Notice]:
    """The first of each kind, and how many others there are."""
    counts: dict[str, int] = {}
    rest: dict[str, Notice] = {}
    for notice in found:
        counts[notice.kind] = counts.get(notice.kind, 0) + 1
        if counts[notice.kind] <= ALIKE_MAX:
            yield notice
        else:
            rest.setdefault(notice.kind, notice)
    for kind, notice in rest.items():
        words = f"{number(counts[kind] - ALIKE_MAX)} more like this: {kind}."
        yield Notice(notice.level, kind, words, "", "", "", notice.path[:1])


# --- topics ---------------------------------------------------------------------------------------


def of_groups(seen: Snapshot, caller: Caller) -> Iterator[Notice]:
    """Groups that nobody reads for, that are far behind, that lost messages, or gave up on some."""
    readers = {(reader.topic, reader.group) for reader in seen.pipelines.readers}
    began = {(group.topic, group.group): group for group in seen.began.groups}
    since = duration((seen.traffic.at - seen.began.at).total_seconds())
    for group in seen.traffic.groups:
        if not caller.sees_topic(group.topic):
            continue
        before = began.get((group.topic, group.group), group)
        yield from of_letters(group, before, since)
        yield from of_expired(group, before, since)
        is_reader = (group.topic, group.group) in readers
        lag = list(of_lag(group, seen.traffic, is_reader=is_reader))
        yield from lag or of_unseen(group)


def of_letters(group: GroupTraffic, before: GroupTraffic, since: str) -> Iterator[Notice]:
    """Dead letters: new ones are bad news, old ones wait for somebody to decide."""
    if not group.dead_letters:
        return
    more = group.dead_letters - before.dead_letters
    count = number(group.dead_letters) + ("+" if group.letters_capped else "")
    path = ("topics", group.topic, "letters")
    after = f" gave up on messages of {group.topic}: {count} dead letters"
    if more > 0:
        hint = f"{number(more)} came in the last {since}. See what their errors have in common."
        yield Notice(Level.PROBLEM, "dead letters grow", "Group ", group.group, after, hint, path)
    else:
        hint = "None came lately. Give them back once the cause is mended, or purge them."
        yield Notice(Level.WARNING, "dead letters wait", "Group ", group.group, after, hint, path)


def of_expired(group: GroupTraffic, before: GroupTraffic, since: str) -> Iterator[Notice]:
    """Messages that were too old before the group got to them."""
    lost = group.expired - before.expired
    if lost > 0:
        yield Notice(
            Level.PROBLEM,
            "messages lost to retention",
            "Group ",
            group.group,
            f" of {group.topic} lost {number(lost)} messages to the topic's retention",
            f"In the last {since}. Keep messages longer, or add subscribers.",
            ("topics", group.topic, "groups", group.group),
        )


def of_lag(group: GroupTraffic, traffic: Traffic, *, is_reader: bool) -> Iterator[Notice]:
    """What waits for long, or with nobody there."""
    if not group.lag:
        return
    more = "+" if group.capped else ""
    age = None if group.oldest_at is None else (traffic.at - group.oldest_at).total_seconds()
    old = "" if age is None or age < 1 else f", the oldest for {duration(age)}"
    path = ("topics", group.topic, "groups", group.group)
    waits = f"{number(group.lag)}{more} messages of {group.topic} wait{old}"
    is_old = age is not None and age >= LIMITS.seconds("unattended")
    if not group.subscribers and not is_reader and (is_old or age is None):
        yield Notice(
            Level.WARNING,
            "groups without subscribers",
            "Nobody reads for group ",
            group.group,
            f": {waits}",
            "Start its workers; or drop the group, if nobody needs it: it keeps messages from "
            "being collected.",
            path,
        )
    elif (age or 0) >= LIMITS.seconds("lag_age") or group.lag >= LIMITS.lag_messages:
        yield Notice(
            Level.WARNING,
            "groups far behind",
            "Group ",
            group.group,
            f" is behind: {waits}",
            "See which partitions are behind, and who owns them.",
            path,
        )


def of_unseen(group: GroupTraffic) -> Iterator[Notice]:
    """What seems to be well, and may be not: there was more than could be looked at."""
    if group.capped:
        after = f" of {group.topic} has more partitions than are looked at"
        hint = "It is behind by what is shown, or by more: rowmq lag looks at each of them."
    elif group.lag and group.oldest_capped:
        after = f" of {group.topic} is behind in more partitions than are looked into"
        hint = "The oldest message may have waited for longer than is shown."
    else:
        return
    path = ("topics", group.topic, "groups", group.group)
    yield Notice(Level.WARNING, UNSEEN, "Group ", group.group, after, hint, path)


def of_many(traffic: Traffic) -> Iterator[Notice]:
    """More topics or groups than are looked at, whoever may see them."""
    if traffic.capped:
        shown = f"{number(len(traffic.topics))} topics and {number(len(traffic.groups))} groups"
        hint = "What is not shown is not judged, either: rowmq lag and rowmq doctor tell of others."
        before = f"There are more topics or groups than are looked at: these are {shown}"
        yield Notice(Level.WARNING, UNSEEN, before, "", "", hint, ("topics",))


# --- queues, schedules, workers -------------------------------------------------------------------


def of_queues(backlog: Iterable[QueueBacklog], now: datetime, caller: Caller) -> Iterator[Notice]:
    """Queues that are paused with work in them, overdue, or in which jobs fail."""
    for queue in backlog:
        if not caller.sees_queue(queue.name):
            continue
        age = 0.0 if queue.oldest_due_at is None else (now - queue.oldest_due_at).total_seconds()
        path = ("queues", queue.name)
        more = "+" if queue.capped else ""
        if queue.paused and queue.due:
            after = f" is paused, and {number(queue.due)}{more} jobs are due"
            hint = f"The oldest has waited for {duration(age)}. Resume it when you are done."
            yield Notice(
                Level.WARNING, "queues paused with work", "Queue ", queue.name, after, hint, path
            )
        elif queue.due and age >= LIMITS.seconds("unattended"):
            bad = age >= LIMITS.seconds("due_age")
            level = Level.PROBLEM if bad else Level.WARNING
            after = f": {number(queue.due)}{more} jobs are overdue, the oldest by {duration(age)}"
            hint = "Are there workers for it? Is a limit too low, or are there too few of them?"
            yield Notice(level, "queues overdue", "Queue ", queue.name, after, hint, path)
        if queue.failed_lately:
            after = f": {number(queue.failed_lately)} jobs failed for good in the last minute"
            hint = "Their errors are with the jobs that failed."
            yield Notice(
                Level.WARNING, "queues with failures", "Queue ", queue.name, after, hint, path
            )


def of_schedules(
    schedules: Iterable[ScheduleInfo], now: datetime, caller: Caller
) -> Iterator[Notice]:
    """Schedules that nobody fires."""
    for schedule in schedules:
        late = 0.0 if schedule.next_at is None else (now - schedule.next_at).total_seconds()
        if (
            schedule.paused
            or late < JUST_NOW_SECONDS
            or not caller.sees(schedule.queue, schedule.topic)
        ):
            continue
        bad = late >= LIMITS.seconds("unattended")
        yield Notice(
            Level.PROBLEM if bad else Level.WARNING,
            "schedules late",
            "Schedule ",
            schedule.name,
            f" should have fired {duration(late)} ago",
            "Nobody tends schedules: a worker does, and so does whoever installs one.",
            ("schedules", schedule.name),
        )


def of_workers(workers: Iterable[WorkerInfo], now: datetime) -> Iterator[Notice]:
    """Workers that have not been heard of."""
    for worker in workers:
        if worker.alive:
            continue
        silent = duration((now - worker.seen_at).total_seconds())
        many = "1 handler" if len(worker.running) == 1 else f"{len(worker.running):,} handlers"
        ran = f" It was running {many}." if worker.running else ""
        yield Notice(
            Level.WARNING,
            "workers silent",
            "Worker ",
            worker.name,
            f" on {worker.host} has not been heard of for {silent}",
            f"What it had is given to others.{ran} Did it crash, or lose the database?",
            ("workers",),
        )
