"""No name, payload or error puts a line of its own into a log, or acts on who reads it."""

import enum
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

import rowmq
from rowmq import errors
from rowmq.quoting import visible
from rowmq.testing import TestApp
from tests.choices import on_sqlite
from tests.databases import Database

EVIL = "a\n2026-01-01 00:00:00 ERROR [1] all is lost\r\x1b[2J\x9b\u202e\u2028%s%(x)s"


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Typed:
    colour: Colour


@pytest.fixture(autouse=True)
def logged(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """What is logged while a test runs is in one line each, and plainly visible."""
    caplog.set_level(logging.DEBUG, logger="rowmq")
    yield caplog
    told = [record.getMessage() for record in caplog.get_records("call") if record.name == "rowmq"]
    assert told, "nothing was logged, so nothing was seen"
    assert [message for message in told if message != visible(message)] == []


async def test_a_job_that_cannot_be_read(mq: Any) -> None:
    await mq.queue(EVIL, kind="Typed").put({"colour": EVIL}, key=EVIL, headers={EVIL: EVIL})
    assert await mq.queue(EVIL, type=Typed).try_poll() is None
    (job,) = await mq.queue(EVIL).failed()
    assert "Invalid enum value" in job.error


async def test_a_group_that_loses_messages_to_age(mq: Any) -> None:
    await mq.create_group(EVIL, EVIL)
    await mq.publish(EVIL, EVIL, key=EVIL)
    await mq.configure_topic(EVIL, retention=timedelta(microseconds=1))
    while await mq.gc(EVIL) == 0:
        pass


async def test_a_schedule_that_cannot_be_fired(mq: Any, logged: Any) -> None:
    def failing(_: Any) -> Any:
        raise ValueError(EVIL)

    await mq.cron.install_periodic(EVIL, 0.1, payload=failing, queue=EVIL)
    while not any("is tried again" in record.getMessage() for record in logged.records):
        with pytest.raises(ValueError, match="all is lost"):
            while True:
                await mq.cron.tend()


@on_sqlite
@pytest.mark.parametrize("kind", ["subscriber", "worker"])
def test_a_handler_that_fails(database: Database, kind: str) -> None:
    app = rowmq.App(database.url)

    def fail(payload: Any) -> None:
        raise ValueError(EVIL + payload)

    if kind == "worker":
        app.worker(EVIL, retry=rowmq.NoRetry())(fail)
    else:
        app.subscriber(EVIL, group=EVIL)(fail)
    with TestApp(app) as test:
        if kind == "worker":
            test.mq.queue(EVIL).put(EVIL, key=EVIL, ordering_key=EVIL)
        else:
            test.mq.publish(EVIL, EVIL, key=EVIL, id=EVIL)
        test.drain(raise_errors=False)


@on_sqlite
def test_a_subscriber_that_cannot_say_that_it_leaves(database: Database) -> None:
    with rowmq.connect(database.url, retry_for=0) as mq:
        mq.publish("t", 1)
        sub = mq.subscribe("t", group=EVIL, name=EVIL)
        sub.poll(timeout=0)
        database.execute("DROP TABLE rowmq_subscribers")
        sub.close()
        with pytest.raises(errors.Closed):
            sub.poll()


def test_a_log_of_anything_is_one_line(logged: pytest.LogCaptureFixture) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    log = logging.getLogger("rowmq")
    log.warning("100%% of %d: %s, %r, %5.1f %s", 3, ValueError(EVIL), EVIL, 0.5, EVIL)
    log.warning("%s", Mute())
    log.warning("nothing else")
    first, second, third = [record.getMessage() for record in logged.records]
    assert first.startswith("100% of 3: a\\n2026")
    assert (second, third) == ("<Mute>", "nothing else")
    assert logged.records[0].msg == "100%% of %d: %s, %r, %5.1f %s"
