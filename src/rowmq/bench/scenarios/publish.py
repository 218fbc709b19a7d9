"""Publishing to topics, and putting jobs into queues, against the raw limit and the peers."""

from collections.abc import Iterable

from rowmq.bench.scenarios.peers import sent_by_peers
from rowmq.bench.scenarios.plan import Entry, Plan, Scenario, sends

__all__ = ["publish", "put"]

PARTITIONS = (1, 16, 1_000)
PROCESSES = 4
SINGLE, CONCURRENT, SMALL, LARGE = 2_000, 20_000, 40_000, 100_000


def publish(plan: Plan) -> Iterable[Scenario]:
    """One by one, by 16 at once, in batches of 100 and 1,000; to 1, 16 and 1,000 partitions."""
    yield Scenario(
        name="publish-single",
        title="publish one by one, one caller",
        entries=(
            *to_partitions(plan, SINGLE),
            *in_other_ways(plan, SINGLE),
            sends("raw", "", messages=plan.some(SINGLE)),
            *sent_by_peers(plan),
        ),
    )
    yield Scenario(
        name="publish-concurrent",
        title="publish one by one, 16 callers at once in one process",
        entries=(
            *to_partitions(plan, CONCURRENT, callers=16),
            *in_other_ways(plan, CONCURRENT, callers=16),
            *sent_by_peers(plan, callers=16),
        ),
    )
    if not plan.brief:
        yield from_processes(plan)
    for batch, messages in ((100, SMALL), (1_000, LARGE)):
        yield Scenario(
            name=f"publish-{batch}",
            title=f"publish in batches of {batch:,}",
            entries=(
                *to_partitions(plan, messages, batch=batch),
                sends("raw", "", messages=plan.some(messages), batch=batch),
                *sent_by_peers(plan, batch=batch),
            ),
        )


def from_processes(plan: Plan) -> Scenario:
    """Who publishes to one partition waits for the others' flushes; without keys nobody does."""
    return Scenario(
        name="publish-processes",
        title=f"publish one by one, {PROCESSES} processes with 4 callers each",
        entries=tuple(
            sends(
                "rowmq",
                variant,
                messages=plan.some(CONCURRENT),
                source="topic",
                partitions=partitions,
                callers=4,
                processes=PROCESSES,
                reference=partitions == 1,
            )
            for variant, partitions in (("1 partition", 1), ("without keys", 0))
        ),
    )


def to_partitions(plan: Plan, messages: int, *, batch: int = 1, callers: int = 1) -> list[Entry]:
    return [
        sends(
            "rowmq",
            "1 partition" if partitions == 1 else f"{partitions:,} partitions",
            messages=plan.some(messages),
            source="topic",
            partitions=partitions,
            batch=batch,
            callers=callers,
            reference=partitions == 1,
        )
        for partitions in (PARTITIONS[:1] if plan.brief else PARTITIONS)
    ]


def in_other_ways(plan: Plan, messages: int, *, callers: int = 1) -> list[Entry]:
    """Without keys, where nothing has to stay in order; and from threads, by the sync client."""
    if plan.brief:
        return []
    count = plan.some(messages)
    return [
        sends(
            "rowmq",
            "without keys",
            messages=count,
            source="topic",
            partitions=0,
            callers=callers,
        ),
        sends(
            "rowmq",
            "sync client",
            messages=count,
            source="topic",
            client="sync",
            callers=callers,
        ),
    ]


def put(plan: Plan) -> Iterable[Scenario]:
    """Jobs one by one, by 16 at once, and in batches."""
    ours = [
        sends("rowmq", "one caller", messages=plan.some(SINGLE)),
        sends("rowmq", "one caller, sync client", messages=plan.some(SINGLE), client="sync"),
        sends("rowmq", "16 callers", messages=plan.some(CONCURRENT), callers=16, reference=True),
        sends("rowmq", "batches of 10", messages=plan.some(CONCURRENT), batch=10),
        sends("rowmq", "batches of 100", messages=plan.some(SMALL), batch=100),
        sends("rowmq", "batches of 1,000", messages=plan.some(LARGE), batch=1_000),
    ]
    theirs = []
    if plan.database == "sqlite":  # elsewhere they are compared with publishing
        single = sent_by_peers(plan)
        theirs = [named(entry, "one caller") for entry in single]
        theirs += [named(entry, "16 callers") for entry in sent_by_peers(plan, callers=16)]
    if plan.brief:
        ours = [entry for entry in ours if entry.reference] + ours[:1] + ours[-1:]
    yield Scenario(name="queues-put", title="put jobs into a queue", entries=(*ours, *theirs))


def named(entry: Entry, variant: str) -> Entry:
    return Entry(subject=entry.subject, variant=variant, parts=entry.parts, expected=entry.expected)
