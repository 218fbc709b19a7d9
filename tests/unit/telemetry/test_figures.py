"""What the database says is asked for now and then, however many want to know."""

import asyncio
import threading
import time
from datetime import UTC, datetime, timedelta
from typing import ClassVar

import msgspec
import pytest

from rowmq.inspection import QueueBacklog
from rowmq.overview import GroupTraffic, TopicTraffic, Traffic
from rowmq.telemetry import figures
from rowmq.telemetry.families import Gathering, Labels
from rowmq.telemetry.figures import Figures, Look, OwnClient, Seen

NOW = datetime(2026, 1, 1, tzinfo=UTC)

TRAFFIC = Traffic(
    at=NOW,
    topics=(TopicTraffic(topic="orders", partitions=3, published=10, messages=8),),
    groups=(
        GroupTraffic(
            topic="orders",
            group="billing",
            acked=6,
            lag=4,
            in_flight=1,
            subscribers=2,
            expired=0,
            dead_letters=3,
            oldest_at=NOW - timedelta(seconds=90),
        ),
    ),
)

BACKLOG = [
    QueueBacklog(
        name="emails",
        paused=True,
        counts={"pending": 5, "failed": 2},
        capped=False,
        due=4,
        oldest_due_at=None,
        locks=1,
        put_lately=120,
        completed_lately=60,
        failed_lately=6,
        max_in_flight=None,
        rate=None,
        rate_period=None,
    )
]

SEEN = Seen(TRAFFIC, BACKLOG, 0.25)


def done(seen: Seen | None) -> Look:
    look = Look()
    look.set_result(seen)
    return look


def told(found: Figures) -> dict[tuple[str, ...], float]:
    gathering = Gathering(Labels(10))
    found.gather(gathering)
    return {
        (family.name, *sample.labels): sample.value
        for family in gathering.families()
        for sample in family.samples
    }


def test_it_tells_what_it_saw() -> None:
    found = Figures(lambda: done(SEEN))
    found.wait()
    values = told(found)
    assert values["rowmq_group_lag", "orders", "billing"] == 4
    assert values["rowmq_group_oldest_seconds", "orders", "billing"] == 90
    assert values["rowmq_queue_jobs", "emails", "pending"] == 5
    assert values["rowmq_queue_put_per_second", "emails"] == 2
    assert values["rowmq_queue_finished_per_second", "emails", "failed"] == 0.1
    assert values["rowmq_queue_paused", "emails"] == 1
    assert values["rowmq_database_look_seconds",] == 0.25
    assert values["rowmq_database_answers",] == 1


def test_however_many_ask_the_database_is_looked_at_once() -> None:
    looks: list[int] = []

    def begin() -> Look:
        looks.append(1)
        return done(SEEN)

    found = Figures(begin)
    for _ in range(100):
        found.wait()
    assert len(looks) == 1


def test_and_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "FRESH_SECONDS", 0.0)
    monkeypatch.setattr(figures, "SHARE_MAX", float("inf"))
    looks = iter([SEEN, None])
    found = Figures(lambda: done(next(looks)))
    found.wait()
    assert told(found)["rowmq_database_answers",] == 1
    found.wait()
    assert told(found) == {("rowmq_database_answers",): 0}, "what it said before may not be so"


def test_a_database_that_is_silent_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "WAIT_SECONDS", 0.01)
    pending = Look()
    found = Figures(lambda: pending)
    found.wait()
    assert told(found) == {("rowmq_database_answers",): 0}
    pending.set_result(SEEN)
    assert told(found)["rowmq_group_lag", "orders", "billing"] == 4
    found.close()


async def test_in_an_event_loop_nobody_blocks_it() -> None:
    """The loop may be the one that is to look."""
    loop = asyncio.get_running_loop()

    async def look() -> Seen:
        return SEEN

    found = Figures(lambda: asyncio.run_coroutine_threadsafe(look(), loop))
    began = time.monotonic()
    found.wait()
    assert time.monotonic() - began < figures.WAIT_SECONDS / 2
    await found.wait_async()
    assert told(found)["rowmq_database_answers",] == 1


def test_a_client_of_its_own_is_made_once_and_closed() -> None:
    class Client:
        made: ClassVar[list["Client"]] = []
        closed = False

        def __init__(self) -> None:
            self.made.append(self)

        def traffic(self) -> Traffic:
            assert threading.current_thread().name == "rowmq-figures"
            return TRAFFIC

        def backlog(self, **_: object) -> list[QueueBacklog]:
            return BACKLOG

        def close(self) -> None:
            self.closed = True

    asking = OwnClient(Client)
    for _ in range(2):
        seen = asking.begin().result(5)
        assert seen is not None
        assert seen.traffic is TRAFFIC
    asking.close()
    (client,) = Client.made
    assert client.closed


def test_a_client_that_cannot_be_made_tells_nothing() -> None:
    def fail() -> None:
        raise OSError("there is no such host")

    assert OwnClient(fail).begin().result(5) is None


# --- large topics ---------------------------------------------------------------------------------


def seen_of(published: int, *, capped: bool) -> Seen:
    topic = TopicTraffic(
        topic="orders", partitions=3, published=published, messages=8, capped=capped
    )
    (group,) = TRAFFIC.groups
    groups = (msgspec.structs.replace(group, capped=capped),)
    return Seen(Traffic(at=NOW, topics=(topic,), groups=groups), [], 0.0)


def test_a_counter_never_falls(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is known of a part of a topic is less than what was known of all of it."""
    monkeypatch.setattr(figures, "FRESH_SECONDS", 0.0)
    looks = [seen_of(10, capped=True), seen_of(50, capped=False), seen_of(20, capped=True)]
    coming = iter([*looks, seen_of(60, capped=False)])
    found = Figures(lambda: done(next(coming)))
    published, marks = [], []
    for _ in range(4):
        found.wait()
        now = told(found)
        published.append(now.get(("rowmq_topic_published_total", "orders")))
        marks.append(
            (now["rowmq_topic_capped", "orders"], now["rowmq_group_capped", "orders", "billing"])
        )
    assert published == [None, 50, 50, 60]
    assert marks == [(1, 1), (0, 0), (1, 1), (0, 0)]


def test_where_a_look_takes_long_the_next_one_is_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "FRESH_SECONDS", 0.0)
    looks = []

    def begin() -> Look:
        looks.append(1)
        return done(Seen(TRAFFIC, BACKLOG, 1.5))

    found = Figures(begin)
    for _ in range(3):
        found.wait()
    assert len(looks) == 1
    assert told(found)["rowmq_database_answers",] == 1
