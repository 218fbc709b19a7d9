"""The overview: what needs attention, how much comes in and goes out, and what waits.

It is made from what the sampler has seen: it costs the database nothing, however many look at it.
"""

from collections.abc import Callable
from typing import NamedTuple

from starlette.responses import Response

from rowmq.inspection import COUNT_MAX, QueueBacklog
from rowmq.markup import Markup
from rowmq.overview import GroupTraffic
from rowmq.rights import Role
from rowmq.web import attention
from rowmq.web.asking import Ask
from rowmq.web.callers import Caller
from rowmq.web.charts import Line
from rowmq.web.fields import given
from rowmq.web.routing import Route
from rowmq.web.sampling import Counted, Sample, Snapshot, total
from rowmq.web.trends import Grid, a_second, chart
from rowmq.web.wording import duration, number, short

__all__ = ["ROUTES"]

BUSIEST = 8
"""How many groups, and queues, are shown: those with the most to do."""

NOTICES_MAX = 5
"""How many notices stand above the charts, unless somebody asks for all."""

LATELY_SECONDS = 60.0
"""How far back the jobs were counted that came and went."""


class Figure(NamedTuple):
    """A chart with its name, what it comes to now, and what its lines are."""

    title: str
    now: str
    drawing: Markup
    lines: tuple[Line, ...]


class Totals(NamedTuple):
    """What the caller may see, all together."""

    topics: Counted
    queues: Counted


async def show(ask: Ask) -> Response:
    """The first page."""
    seen, caller = await look(ask), ask.caller
    groups = [group for group in seen.traffic.groups if caller.sees_topic(group.topic)]
    queues = [queue for queue in seen.backlog if caller.sees_queue(queue.name)]
    topics = [topic for topic in seen.traffic.topics if caller.sees_topic(topic.topic)]
    notices = attention.notices(seen, caller)
    shown = notices if given(ask.query, "all") is not None else notices[:NOTICES_MAX]
    return ask.render(
        "overview.html",
        notices=shown,
        left_out=len(notices) - len(shown),
        figures=figures(seen, caller),
        topics=topics,
        messages=sum(topic.messages for topic in topics),
        topics_capped=any(topic.capped for topic in topics),
        groups_capped=any(group.capped for group in groups),
        count_max=COUNT_MAX,
        groups=busiest_groups(groups),
        groups_left=max(len(groups) - BUSIEST, 0),
        queues=busiest_queues(queues),
        capped=any(queue.capped for queue in queues),
        queues_left=max(len(queues) - BUSIEST, 0),
        now_waiting=totals_of(caller)(seen.samples[-1]),
        alive=sum(worker.alive for worker in seen.workers),
        workers=len(seen.workers),
        running=sum(len(worker.running) for worker in seen.workers if worker.alive),
        empty=not topics and not queues and not groups,
    )


async def look(ask: Ask) -> Snapshot:
    """What was seen last, with the workers as the caller may see them."""
    seen: Snapshot = await ask.sampler.look(ask.mq)
    return seen._replace(workers=[ask.caller.worker_seen(worker) for worker in seen.workers])


def busiest_groups(groups: list[GroupTraffic]) -> list[GroupTraffic]:
    return sorted(groups, key=lambda group: (-group.lag, -group.in_flight))[:BUSIEST]


def busiest_queues(queues: list[QueueBacklog]) -> list[QueueBacklog]:
    return sorted(queues, key=lambda queue: (-queue.due, -queue.put_lately))[:BUSIEST]


def totals_of(caller: Caller) -> Callable[[Sample], Totals]:
    """How a look is summed up for a caller."""
    if caller.sees_everything:
        return lambda sample: Totals(sample.topics, sample.queues)
    return lambda sample: Totals(
        total(one for name, one in sample.by_topic.items() if caller.sees_topic(name)),
        total(one for name, one in sample.by_queue.items() if caller.sees_queue(name)),
    )


def figures(seen: Snapshot, caller: Caller) -> list[Figure]:
    """The charts."""
    grid = Grid(seen.samples, every=seen.every, now=seen.traffic.at)
    sums = totals_of(caller)
    known = {sample.at: sums(sample) for sample in seen.samples}

    def topics(pick: Callable[[Counted], float]) -> Callable[[Sample], float]:
        return lambda sample: pick(known[sample.at].topics)

    def queues(pick: Callable[[Counted], float]) -> Callable[[Sample], float]:
        return lambda sample: pick(known[sample.at].queues)

    came = Line("published", grid.rates(topics(lambda one: one.came)), "one")
    went = Line("acked", grid.rates(topics(lambda one: one.went)), "two")
    put = Line("put", grid.levels(queues(lambda one: one.came / LATELY_SECONDS)), "one")
    done = Line("completed", grid.levels(queues(lambda one: one.went / LATELY_SECONDS)), "two")
    lag = Line("messages", grid.levels(topics(lambda one: one.waiting)), "one")
    due = Line("jobs", grid.levels(queues(lambda one: one.waiting)), "two")
    old = Line("messages", grid.levels(topics(lambda one: one.oldest_seconds)), "one")
    late = Line("jobs", grid.levels(queues(lambda one: one.oldest_seconds)), "two")
    letters = Line("dead letters", grid.levels(topics(lambda one: one.failed)), "problem")
    failed = Line("jobs failed / min", grid.levels(queues(lambda one: one.failed)), "warning")
    flying = Line("messages", grid.levels(topics(lambda one: one.in_flight)), "one")
    held = Line("jobs", grid.levels(queues(lambda one: one.in_flight)), "two")
    return [
        Figure(
            "Messages",
            both(came, went, a_second),
            chart(grid, came, went, say=a_second),
            (came, went),
        ),
        Figure(
            "Jobs", both(put, done, a_second), chart(grid, put, done, say=a_second), (put, done)
        ),
        Figure("Backlog", both(lag, due, short), chart(grid, lag, due, whole=True), (lag, due)),
        Figure(
            "Oldest waits for",
            duration(max(latest(old), latest(late))),
            chart(grid, old, late, say=duration, times=True),
            (old, late),
        ),
        Figure(
            "In flight",
            both(flying, held, short),
            chart(grid, flying, held, whole=True),
            (flying, held),
        ),
        Figure(
            "Failures",
            both(letters, failed, number),
            chart(grid, letters, failed, whole=True),
            (letters, failed),
        ),
    ]


def latest(line: Line) -> float:
    """The last value of a line; 0 before there was any."""
    return next((value for value in reversed(line.values) if value is not None), 0.0)


def both(first: Line, second: Line, say: Callable[[float], str]) -> str:
    """What two lines come to now."""
    return f"{say(latest(first))} · {say(latest(second))}"


ROUTES = [Route("GET", "/", show, needs=Role.READ)]
