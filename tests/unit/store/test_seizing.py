"""On SQLite, a put, an offer or a settle holds the write lock before it reads anything."""

from collections.abc import Callable
from typing import Any

import pytest

import rowmq
from rowmq import ScheduledMessage

BEGIN, COMMIT = "BEGIN IMMEDIATE", "COMMIT"


WRITES = ("INSERT", "UPDATE", "DELETE")


def new(payload: str) -> ScheduledMessage[Any]:
    return ScheduledMessage(key=payload, payload=payload)


CALLS: list[Callable[[Any, Any], object]] = [
    lambda q, _: q.put("another"),
    lambda q, _: q.put("the first of its priority", priority=7),
    lambda q, _: q.put_many(["one", "two"]),
    lambda q, _: q.offer_or_update("key", "updated"),
    lambda q, _: q.offer_if_not_exists("key", "ignored"),
    lambda q, _: q.offer_batch([new("x"), new("y")]),
    lambda _, job: job.ack(),
    lambda _, job: job.nack(delay=1),
    lambda _, job: job.reject(),
    lambda _, job: job.release(),
    lambda _, job: job.extend(60),
]


@pytest.mark.parametrize("durability", ["full", "relaxed"])
@pytest.mark.parametrize("call", CALLS, ids=range(len(CALLS)))
def test_it_begins_as_one_that_writes(call: Callable[[Any, Any], object], durability: str) -> None:
    said: list[str] = []
    with rowmq.connect("sqlite://") as mq:
        queue = mq.queue("q")
        queue.configure(durability=durability)
        queue.put("a job")
        queue.offer_or_update("key", "a job with a key", delay=600)
        job = queue.try_poll()
        pool: Any = mq._driver.pool  # which has one connection: that is the database
        pool.session.connection.set_trace_callback(said.append)
        call(queue, job)
    said = [" ".join(sql.split()) for sql in said]
    assert said.count(BEGIN) == said.count(COMMIT) == 1
    before, inside = said[: said.index(BEGIN)], said[said.index(BEGIN) : said.index(COMMIT)]
    assert [sql for sql in said if sql.startswith(WRITES) and sql not in inside] == []
    assert any(sql.startswith(WRITES) for sql in inside)
    # Only to know whether to relax it, something is looked up before it begins.
    assert durability == "relaxed" or before == []
