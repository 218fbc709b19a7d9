"""PostgreSQL plans a statement that is run again and again only a few times.

It keeps the plan for any parameters where that looks no dearer than those for particular ones: what
it believes to gain from a parameter decides, and it may be wrong, each time. To plan our longer
statements takes longer than to run them.
"""

import re
from typing import Any

import pytest

import rowmq
from rowmq import Message
from tests.databases import Database

ROUNDS = 20

PLANNED_MAX = 6
"""Five times for particular parameters, and once more while statistics come in."""

PREPARED = "SELECT statement, custom_plans, generic_plans FROM pg_prepared_statements"

COUNTS = re.compile(r"\bCOUNT\(\*\)\s+FROM rowmq_(completed|ready)\b|retried, COUNT")
"""What counts many rows: how it does that best does depend on how many there are."""


def work(mq: rowmq.RowMQ) -> None:
    """What workers, publishers and their kin do all the time."""
    queue, other = mq.queue("q"), mq.queue("other")
    queue.put_many(range(2_000))
    mq.create_group("t", "g")
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


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
def test_what_is_done_all_the_time_is_not_planned_each_time(database: Database) -> None:
    with rowmq.connect(database.url, pool_size=1) as mq:
        work(mq)
        with mq.transaction() as tx:
            prepared = [row for row in tx.execute(PREPARED) if not COUNTS.search(row[0])]
    run_often = [row for row in prepared if row[1] + row[2] > PLANNED_MAX]
    assert len(run_often) > 10
    assert [row for row in run_often if row[1] > PLANNED_MAX] == []
