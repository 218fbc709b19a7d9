"""What is to hold: ratios within one run, and a few figures; and whether they do.

A target names lines of the results. Where a subject was measured in several ways, its quickest
counts, ours and theirs alike; but who keeps what is finished is compared with who keeps it, too.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from rowmq.bench.results import Line, Results, Verdict
from rowmq.bench.scenarios.plan import BATCH_HANDLERS, NO_ARCHIVE

__all__ = ["verdicts"]

POSTGRES, SQLITE = "postgresql", "sqlite"
MYSQL = ("mariadb", "mysql")

Measure = Callable[[Results, str], float | None]


class Target(NamedTuple):
    """Something that is to be at least, or at most, a number."""

    words: str
    databases: tuple[str, ...]
    limit: float
    at_least: bool
    unit: str
    measure: Measure


def best(
    results: Results,
    database: str,
    scenario: str,
    subject: str,
    *,
    keep: bool = True,
    batched: bool = False,
) -> float | None:
    """The rate of a subject in its quickest way that keeps what is finished, or does not, and whose
    handlers take one message at a time, or many. Unknown if one of them failed: it might have been
    the quickest.
    """
    ways = [
        line
        for line in results.lines
        if (line.database, line.scenario, line.subject) == (database, scenario, subject)
        and (NO_ARCHIVE not in line.variant) is keep
        and (BATCH_HANDLERS in line.variant) is batched
    ]
    if any(line.error is not None for line in ways):
        return None
    return max((rate for line in ways if (rate := line.figure("rate")) is not None), default=None)


def ratio(ours: float | None, theirs: float | None) -> float | None:
    return ours / theirs if ours is not None and theirs else None


def to_peer(scenario: str, peer: str, *, keep: bool = True, batched: bool = False) -> Measure:
    """Our rate to a peer's, each in its quickest way; the peer's handlers may take many messages at
    a time, ours take one.
    """
    return lambda results, database: ratio(
        best(results, database, scenario, "rowmq", keep=keep),
        best(results, database, scenario, peer, keep=keep, batched=batched),
    )


def between(
    scenario: str, variant: str, other: str, *, subject: str = "rowmq", name: str = "rate"
) -> Measure:
    """A figure of one of our variants to that of another variant, or of another subject."""

    def measure(results: Results, database: str) -> float | None:
        return ratio(
            figure(results.find(database, scenario, "rowmq", variant), name),
            figure(results.find(database, scenario, subject, other), name),
        )

    return measure


def figure(line: Line | None, name: str) -> float | None:
    """A figure of a line, unless one of its trials has failed."""
    return None if line is None or line.error is not None else line.figure(name)


def plain(scenario: str, variant: str, name: str) -> Measure:
    """A figure as it is."""
    return lambda results, database: figure(
        results.find(database, scenario, "rowmq", variant), name
    )


def topics_to_pgqueuer(results: Results, database: str) -> float | None:
    """Our rate with 16 partitions to pgqueuer's in its quickest way."""
    ours = results.find(database, "topics-partitions", "rowmq", "16 partitions")
    return ratio(figure(ours, "rate"), best(results, database, "topics-partitions", "pgqueuer"))


def groups_cost(results: Results, database: str) -> float | None:
    """How much longer three groups take than one, for as many messages published."""
    one = figure(results.find(database, "topics-sharing", "rowmq", "1 subscriber, 1 group"), "rate")
    three = figure(
        results.find(database, "topics-sharing", "rowmq", "1 subscriber, 3 groups"), "rate"
    )
    found = ratio(one, three)
    return None if found is None else 3 * found


def whole_job_bytes(results: Results, database: str) -> float | None:
    """What is logged for a job from its put to its ack, in batches of 100."""
    put = figure(results.find(database, "queues-put", "rowmq", "batches of 100"), "log_bytes")
    done = figure(results.find(database, "queues-one", "rowmq", "batches of 100"), "log_bytes")
    return None if put is None or done is None else put + done


def to_own_postgres(results: Results, database: str) -> float | None:
    """Our rate on this database to that on PostgreSQL, in the same run."""
    return ratio(
        best(results, database, "queues-one", "rowmq"),
        best(results, POSTGRES, "queues-one", "rowmq"),
    )


def least(words: str, limit: float, measure: Measure, *databases: str, unit: str = "x") -> Target:
    return Target(words, databases or (POSTGRES,), limit, at_least=True, unit=unit, measure=measure)


def most(words: str, limit: float, measure: Measure, *databases: str, unit: str = "x") -> Target:
    return Target(
        words, databases or (POSTGRES,), limit, at_least=False, unit=unit, measure=measure
    )


TARGETS = (
    least("claim and ack to pgqueuer, one process", 2.0, to_peer("queues-one", "pgqueuer")),
    least("claim and ack to pgqueuer, two processes", 2.0, to_peer("queues-two", "pgqueuer")),
    least("claim and ack to pgmq's read and archive", 1.0, to_peer("queues-one", "pgmq")),
    least("claim and ack to procrastinate", 10.0, to_peer("queues-one", "procrastinate")),
    most(
        "WAL of a claim and an ack, batches of 100",
        400.0,
        plain("queues-one", "batches of 100", "log_bytes"),
        unit=" bytes",
    ),
    most("WAL of a put, a claim and an ack", 1_000.0, whole_job_bytes, unit=" bytes"),
    least(
        "consume and ack to pgqueuer, 16 partitions, one process",
        5.0,
        topics_to_pgqueuer,
    ),
    most("three groups to one group, in time", 3.2, groups_cost),
    least(
        "10,000 partitions to 16",
        0.5,
        between("topics-partitions", "10,000 partitions", "16 partitions"),
    ),
    least(
        "publish in batches of 1,000 to raw COPY",
        0.5,
        between("publish-1000", "1 partition", "", subject="raw"),
    ),
    least(
        "16 tasks publishing singly to one partition, to procrastinate's defer",
        10.0,
        between("publish-concurrent", "1 partition", "", subject="procrastinate"),
    ),
    least(
        "put to huey, 16 callers",
        2.0,
        between("queues-put", "16 callers", "16 callers", subject="huey"),
        SQLITE,
    ),
    least(
        "put to huey, one caller, both from a thread",
        2.0,
        between("queues-put", "one caller, sync client", "one caller", subject="huey"),
        SQLITE,
    ),
    least("claim and ack to huey", 2.0, to_peer("queues-one", "huey", keep=False), SQLITE),
    least("claim and ack to faststream-sqlbroker", 5.0, to_peer("queues-one", "sqlbroker"), *MYSQL),
    least(
        "claim and ack to faststream-sqlbroker, no archive",
        5.0,
        to_peer("queues-one", "sqlbroker", keep=False),
        *MYSQL,
    ),
    least(
        "claim and ack to faststream-sqlbroker, whose handlers take batches",
        5.0,
        to_peer("queues-one", "sqlbroker", batched=True),
        *MYSQL,
    ),
    least(
        "claim and ack to faststream-sqlbroker, whose handlers take batches, no archive",
        5.0,
        to_peer("queues-one", "sqlbroker", keep=False, batched=True),
        *MYSQL,
    ),
    least("claim and ack to RowMQ on PostgreSQL", 0.5, to_own_postgres, *MYSQL),
    least(
        "1,000,000 waiting to 10,000 waiting",
        0.85,
        between("growth-waiting", "1,000,000 waiting", "10,000 waiting"),
    ),
    least(
        "a snapshot held to none held",
        0.5,
        between("growth-snapshot", "a snapshot held", "no snapshot held"),
    ),
    least(
        "a snapshot held, to a plain SKIP LOCKED queue",
        5.0,
        between("growth-snapshot", "a snapshot held", "a snapshot held", subject="plain"),
    ),
    least("256 workers to 16", 0.7, between("growth-workers", "256 workers", "16 workers")),
    most(
        "from publish to handler, median, 10 a second, notified",
        5.0,
        plain("latency-slow", "topic, notified", "p50_ms"),
        unit=" ms",
    ),
    most(
        "from publish to handler, 99 %, 10 a second, notified",
        25.0,
        plain("latency-slow", "topic, notified", "p99_ms"),
        unit=" ms",
    ),
    most(
        "from publish to handler, median, 10 a second",
        5.0,
        plain("latency-slow", "topic", "p50_ms"),
        SQLITE,
        unit=" ms",
    ),
)


def verdicts(results: Results) -> Iterator[Verdict]:
    """What came of each target, on those databases that were measured."""
    for target in TARGETS:
        for database in target.databases:
            if database not in results.databases:
                continue
            measured = target.measure(results, database)
            sign = "at least" if target.at_least else "at most"
            holds = None
            if measured is not None:
                holds = (measured >= target.limit) is target.at_least or measured == target.limit
            yield Verdict(
                target=target.words,
                database=database,
                wanted=f"{sign} {target.limit:,g}{target.unit}",
                measured=measured,
                unit=target.unit,
                holds=holds,
            )
