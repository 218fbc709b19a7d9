"""What callers of the API are told of the library's errors is about the API, not about Python."""

import re

import pytest

import rowmq
from rowmq import errors
from rowmq.web.problems import problem_of

PYTHON = re.compile(r"\w\(|\b[a-z_]+=|\bmq\.|lock_timeout")
"""Methods, arguments, and what calls of the API name otherwise."""

NAME = "a; b(c=1), 'd'"


@pytest.fixture
def mq() -> "rowmq.RowMQ":
    client = rowmq.connect("sqlite://")
    client.publish_many(NAME, [rowmq.Message(payload=1, key=key, id="same") for key in "ab"])
    client.configure_topic(NAME, max_payload_bytes=10)
    client.queue(NAME).configure(max_payload_bytes=10)
    client.queue(NAME).put(1, key="taken")
    return client


def edit_one_of_two(mq: "rowmq.RowMQ") -> None:
    with mq.subscribe(NAME, group="g") as subscriber:
        for delivery in subscriber.poll(timeout=5):
            delivery.reject(error="boom")
    mq.redrive_edited(NAME, group="g", id="same", payload=1)


def stale(mq: "rowmq.RowMQ") -> None:
    queue = mq.queue(NAME)
    receipt = queue.receipt(queue.try_poll_many(1)[0])
    queue.fail([job.id for job in queue.find().jobs])
    (outcome,) = queue.settle([receipt], "ack")
    raise outcome  # type: ignore[misc]


CALLS = {
    "group": lambda mq: mq.lag(NAME, "none"),
    "taken": lambda mq: mq.queue(NAME).put(2, key="taken"),
    "large message": lambda mq: mq.publish(NAME, "x" * 100),
    "large job": lambda mq: mq.queue(NAME).put("x" * 100),
    "stale": stale,
    "receipt": lambda mq: mq.queue(NAME).settle(["x"], "ack"),
    "due twice": lambda mq: mq.queue(NAME).put(1, at=mq.queue(NAME).find().jobs[0].due_at, delay=1),
    "browse": lambda mq: mq.browse(NAME, id="x", before="y"),
    "letter": lambda mq: mq.redrive_edited(NAME, payload=1),
    "letters": edit_one_of_two,
    "schedule": lambda mq: mq.cron.pause("none"),
}


@pytest.mark.parametrize("call", CALLS)
def test_advice_names_nothing_of_python(mq: "rowmq.RowMQ", call: str) -> None:
    with pytest.raises(errors.RowMQError) as raised:
        CALLS[call](mq)  # type: ignore[no-untyped-call]
    said = str(raised.value).replace(repr(NAME), "").replace(NAME, "")
    assert PYTHON.search(said), "else it needs no other words"
    problem = problem_of(raised.value)
    assert problem is not None
    told = problem.detail.replace(repr(NAME), "").replace(NAME, "")
    assert not PYTHON.search(told), told
    assert told[:10] == said[:10], "what went wrong is told as it was"
    mq.close()
