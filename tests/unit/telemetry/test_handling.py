"""Log records say which message was being handled when they were made."""

import io
import json
import logging
from collections.abc import Iterator

import pytest

import rowmq
from rowmq.cli.logs import JSONFormatter, TextFormatter
from rowmq.telemetry import MessageFilter, handling

log = logging.getLogger("shop")


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    """What is logged, as JSON, one object a line."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JSONFormatter())
    handler.addFilter(MessageFilter())
    log.addHandler(handler)
    level = log.level
    log.setLevel(logging.INFO)
    yield stream
    log.setLevel(level)
    log.removeHandler(handler)


@pytest.fixture
def mq() -> Iterator[rowmq.RowMQ]:
    with rowmq.connect("sqlite://") as client:
        yield client


def told(lines: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in lines.getvalue().splitlines()]


def test_a_record_tells_of_the_message(mq: rowmq.RowMQ, lines: io.StringIO) -> None:
    mq.publish("orders", {"id": 7}, key="k", id="order-7")
    with mq.subscribe("orders", group="billing") as sub:
        (delivery,) = sub.poll()
        log.info("before")
        with handling(mq, delivery, name="bill"):
            log.info("in the midst of it")
            log.info("mine", extra={"key": "own"})
        log.info("after")
    before, amid, own, after = told(lines)
    expected = {
        "handler": "bill",
        "topic": "orders",
        "group": "billing",
        "message_id": "order-7",
        "key": "k",
        "offset": 1,
        "attempt": 1,
    }
    assert {name: amid[name] for name in expected} == expected
    assert own["key"] == "own", "what a record says of itself stays"
    assert not set(before) & set(expected)
    assert not set(after) & set(expected)


def test_a_record_tells_of_the_job(mq: rowmq.RowMQ, lines: io.StringIO) -> None:
    put = mq.queue("emails").put("a")
    job = mq.queue("emails").try_poll()
    with handling(mq, [job]):
        log.info("sending")
    (line,) = told(lines)
    assert (line["queue"], line["job_id"], line["attempt"]) == ("emails", put.id, 1)
    assert "topic" not in line


def test_people_are_told_at_the_end_of_the_line() -> None:
    record = logging.makeLogRecord({"msg": "slow", "name": "shop"})
    formatter = TextFormatter()
    assert formatter.format(record).endswith(" slow")
    vars(record).update(handler="bill", topic="orders", message_id="order-7", offset=3, attempt=2)
    assert formatter.format(record).endswith(" slow [bill: message order-7 of orders, attempt 2]")
    record.name = "rowmq"
    assert formatter.format(record).endswith(" slow"), "those name the message anyhow"


def test_nothing_handed_out_is_nothing_to_handle(mq: rowmq.RowMQ) -> None:
    with handling(mq, []):
        pass
    with pytest.raises(rowmq.errors.InvalidInput, match="not 'order-7'"), handling(mq, "order-7"):
        pass
    with pytest.raises(rowmq.errors.InvalidInput, match="deliveries and jobs"), handling(mq, [7]):
        pass
