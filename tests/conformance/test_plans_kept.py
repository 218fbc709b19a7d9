"""PostgreSQL plans a statement that is run again and again only a few times.

It keeps the plan for any parameters where that looks no dearer than those for particular ones: what
it believes to gain from a parameter decides, and it may be wrong, each time. To plan our longer
statements takes longer than to run them.
"""

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql as composed

import rowmq
from rowmq import Message
from rowmq.store.statement import Statement
from tests.databases import Database

ROUNDS = 20

WINDOWS = 5
"""How often so many rounds are tried. In the first, each statement is planned five times for its
parameters, and whenever statistics come in, those that look dearer now are planned some times more.
"""

OFTEN = 10

PREPARED = "SELECT statement, custom_plans, generic_plans FROM pg_prepared_statements"

COUNTS = re.compile(r"\bCOUNT\(\*\)\s+FROM rowmq_(completed|ready)\b|retried, COUNT")
"""What counts many rows: how it does that best does depend on how many there are."""


def work(mq: rowmq.RowMQ) -> None:
    """What workers, publishers and their kin do all the time."""
    queue, other = mq.queue("q"), mq.queue("other")
    both = mq.poller("q", "other")
    with mq.subscribe("t", group="g") as sub:
        for n in range(ROUNDS):
            publish(mq, n)
            settle(sub.poll(max=20, timeout=0))
            queue.put(n, priority=n % 2)
            other.put_many(range(5))
            queue.offer_or_update(f"k{n % 4}", n)
            settle(queue.try_poll_many(50))
            settle(both.try_poll_many(20))


def publish(mq: rowmq.RowMQ, n: int) -> None:
    mq.publish("t", n)
    mq.publish("t", n, key="k", id=f"id-{n}")
    mq.publish_many("t", [Message(payload=n, key=f"k{n % 3}") for n in range(9)])


def settle(work: list[Any]) -> None:
    """Each way of settling, and ack for all others."""
    for number, one in enumerate(work):
        if number == 1:
            one.nack(delay=0)
        elif number == 2:
            one.reject(error="broken")
        elif number == 3:
            one.extend(60)
        else:
            one.ack()


on_postgres = pytest.mark.parametrize("database", ["postgres"], indirect=True)


@on_postgres
def test_what_is_done_all_the_time_is_not_planned_each_time(database: Database) -> None:
    with rowmq.connect(database.url, pool_size=1) as mq:
        mq.queue("q").put_many(range(2_000))
        mq.create_group("t", "g")
        assert planned_in_the_end(mq) == {}
        database.analyze()
        assert planned_in_the_end(mq) == {}


def planned_in_the_end(mq: rowmq.RowMQ) -> dict[str, int]:
    """Which statements are planned however often they are run, and how often."""
    before, planned = prepared(mq), dict[str, int]()
    for _ in range(WINDOWS):
        work(mq)
        after = prepared(mq)
        new = {sql: now - before.get(sql, Counter()) for sql, now in after.items()}
        before = after
        often = {sql: runs["planned"] for sql, runs in new.items() if runs.total() >= OFTEN}
        assert len(often) > 10
        planned = {sql: times for sql, times in often.items() if times}
        if not planned:
            break
    return planned


def prepared(mq: rowmq.RowMQ) -> dict[str, Counter[str]]:
    """How often statements were run with a plan of their own, and with one that was kept."""
    with mq.transaction() as tx:
        rows = tx.execute(PREPARED)
    return {
        sql: Counter(planned=planned, kept=kept)
        for sql, planned, kept in rows
        if not COUNTS.search(sql)
    }


BURST = 50_000

FILL = f"""
    INSERT INTO rowmq_ready (lane_id, due_at, job_id, attempts, deliveries)
    SELECT lane_id, due_at, {10**9} + n, 0, 0
    FROM rowmq_ready CROSS JOIN generate_series(1, {BURST}) n"""


@on_postgres
@pytest.mark.parametrize("known", ["never analyzed", "empty", "ten rows", "all rows"])
def test_a_claim_sorts_nothing_whatever_is_known_of_what_waits(
    database: Database, known: str
) -> None:
    """A queue is drained most of the time, and that is when statistics are made; then comes a burst
    of jobs, of which a claim takes the first ones.
    """
    subject = database.create()
    try:
        with rowmq.connect(subject.url, auto_migrate=False, pool_size=1) as mq:
            mq.migrate()
            subject.execute("ALTER TABLE rowmq_ready SET (autovacuum_enabled = false)")
            queue = mq.queue("q")
            if known == "empty":
                subject.execute("VACUUM ANALYZE rowmq_ready")
            queue.put_many(range(10))
            if known == "ten rows":
                subject.execute("VACUUM ANALYZE rowmq_ready")
            lane_row = (
                "DELETE FROM rowmq_ready WHERE job_id > (SELECT MIN(job_id) FROM rowmq_ready)"
            )
            subject.execute(lane_row)
            subject.execute(FILL)
            if known == "all rows":
                subject.execute("VACUUM ANALYZE rowmq_ready")
            claims: list[Statement] = []
            mq._driver.observers.append(
                lambda s: claims.append(s) if s.name == "claims.claim" else None
            )
            for _ in range(ROUNDS):
                queue.try_poll_many(10)
            queue.try_poll_many(2_000)
        first, last = claims[1], claims[-1]
        for claim in (first, last):
            assert "Sort" not in taking(subject, claim)
    finally:
        subject.drop()


def taking(database: Database, statement: Statement) -> list[str]:
    """The steps by which a claim finds its rows."""
    with psycopg.connect(database.url) as connection:
        values = composed.SQL(", ").join(composed.Literal(value) for value in statement.params)
        connection.execute("SET plan_cache_mode = force_generic_plan")
        connection.execute("PREPARE claim AS " + statement.sql)
        explain = composed.SQL("EXPLAIN (FORMAT JSON) EXECUTE claim({})").format(values)
        row = connection.execute(explain).fetchone()
    assert row is not None
    nodes = list(walked(row[0][0]["Plan"]))
    (taken,) = [node for node in nodes if node.get("Subplan Name") == "CTE taken"]
    return [node["Node Type"] for node in walked(taken)]


def walked(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from walked(child)
