"""Handling messages of topics and jobs of queues, through the runtime that workers have."""

from collections.abc import Iterable

from rowmq.bench.playing import Spec
from rowmq.bench.scenarios.peers import handled_by_peers
from rowmq.bench.scenarios.plan import NO_ARCHIVE, Entry, Plan, Scenario, handles
from rowmq.bench.trial import Part

__all__ = ["queues", "topics"]

MESSAGES = 200_000
BATCH = 1_000

JOBS = {1: 4_000, 10: 20_000, 100: 50_000, 1_000: 100_000}
"""How many jobs are claimed in batches of so many."""


def topics(plan: Plan) -> Iterable[Scenario]:
    """By partitions; by subscribers and groups."""
    messages = plan.some(MESSAGES)
    yield Scenario(
        name="topics-partitions",
        title="consume and ack a topic, one process",
        entries=(
            *(
                consumes(messages, words(partitions, "partition"), partitions=partitions)
                for partitions in ((1, 16) if plan.brief else (1, 16, 1_000, 10_000))
            ),
            reads(messages),
            *handled_by_peers(plan, only="pgqueuer"),
        ),
    )
    yield Scenario(
        name="topics-sharing",
        title="consume and ack 16 partitions: subscribers in processes of their own, and groups",
        entries=tuple(
            consumes(
                messages * max(1, subscribers // 2),
                f"{words(subscribers, 'subscriber')}, {words(groups, 'group')}",
                processes=subscribers,
                groups=groups,
                gather=True,
                reference=(subscribers, groups) == (1, 1),
            )
            for groups in (1, 3)
            for subscribers in ((1, 2) if plan.brief else (1, 2, 4))
            if not plan.brief or (groups, subscribers) != (3, 2)
        ),
    )


def consumes(
    messages: int,
    variant: str,
    *,
    partitions: int = 16,
    groups: int = 1,
    processes: int = 1,
    gather: bool = False,
    reference: bool | None = None,
) -> Entry:
    return handles(
        "rowmq",
        variant,
        messages=messages,
        processes=processes,
        source="topic",
        batch=BATCH,
        partitions=partitions,
        groups=groups,
        gather=gather,
        reference=partitions == 16 if reference is None else reference,
    )


def reads(messages: int) -> Entry:
    """Plain reads of the same rows, one after the other."""
    fill = Spec(task="fill", messages=messages, partitions=16)
    read = Spec(task="consume", messages=messages, batch=BATCH, partitions=16)
    return Entry(
        subject="raw",
        variant="reads only",
        parts=(Part("raw", read),),
        fill=fill,
        expected=messages,
    )


def queues(plan: Plan) -> Iterable[Scenario]:
    """In one process and in two, in batches, with async and sync handlers, archive on and off."""
    yield Scenario(
        name="queues-one",
        title="claim and ack jobs, one process",
        entries=(
            *(claims(plan, batch) for batch in batches(plan)),
            *(
                claims(plan, batch, keep=False)
                for batch in batches(plan)[-1 if plan.brief else -2 :]
            ),
            claims(plan, 100, handler="sync"),
            *handled_by_peers(plan),
        ),
    )
    yield Scenario(
        name="queues-two",
        title="claim and ack jobs, two processes",
        entries=(
            *(claims(plan, batch, processes=2) for batch in batches(plan)),
            claims(plan, 1_000, processes=2, keep=False),
            *(
                claims(plan, batch, processes=2, handler="sync")
                for batch in batches(plan)
                if batch == 100 and not plan.brief
            ),
            *handled_by_peers(plan, processes=2),
        ),
    )


def batches(plan: Plan) -> list[int]:
    """How many jobs are claimed at a time."""
    return list(JOBS)[-2:] if plan.brief else list(JOBS)


def claims(
    plan: Plan, batch: int, *, processes: int = 1, handler: str = "async", keep: bool = True
) -> Entry:
    variant = f"batches of {batch:,}"
    variant += "" if keep else f", {NO_ARCHIVE}"
    variant += "" if handler == "async" else ", sync handlers"
    slow = 10 if handler == "sync" else 1
    return handles(
        "rowmq",
        variant,
        messages=plan.some(JOBS[batch] // slow) * processes,
        processes=processes,
        batch=batch,
        handler=handler,
        keep=keep,
        reference=batch == 1_000 and keep and handler == "async",
    )


def words(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")
