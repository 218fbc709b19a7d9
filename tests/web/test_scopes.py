"""What is out of a token's scope is in no answer, also where no topic or queue is in the path."""

from functools import partial
from typing import Any, Literal

import pytest

import rowmq
from rowmq.store.seeking import Target
from rowmq.store.workers import Running, WorkerFacts
from rowmq.web import Settings, Site, dashboard
from rowmq.web.routing import PARAM, Route
from tests.databases import Database
from tests.web.visiting import Visitor, visiting

ROUTES = Site("sqlite://", Settings()).routes.all
UNSCOPED = [
    route
    for route in ROUTES
    if route.needs is not None and not (route.topic or route.queue or route.everywhere)
]
LISTS = [route for route in UNSCOPED if route.method == "GET" and not route.params]
SINGLE = [route for route in UNSCOPED if route.params and route.params != ("worker",)]

WORKER = "host-7-abc"

KINDS: tuple[Literal["topic", "queue"], ...] = ("topic", "queue")

MIXED: tuple[tuple[str, Literal["topic", "queue"] | None, str], ...] = (
    ("shown", "topic", "pay"),
    ("shown", "queue", "mail"),
    ("veiled", "queue", "pay"),
    ("veiled", "topic", "mail"),
    ("veiled", None, "pay"),
    ("veiled", None, "mail"),
)
"""What workers are at, and whether who sees the topic pay and the queue mail may know of it."""


@pytest.fixture
def filled(broker: rowmq.RowMQ, database: Database) -> dict[str, str]:
    """One of everything that is in scope, and one that is veiled; what paths call the latter."""
    ids = {}
    for place in ("shown", "veiled"):
        topic, queue, group = f"{place}-topic", f"{place}-queue", f"{place}-group"
        broker.publish(topic, {"from": place}, key=f"{place}-key", id=f"{place}-id")
        with broker.subscribe(topic, group=group, name=f"{place}-subscriber") as sub:
            (delivery,) = sub.poll(timeout=5)
            delivery.reject(error=f"{place} error")
        work = broker.queue(queue)
        job = work.put({"from": place}, key=f"{place}-job-key")
        broker.queue(queue).put(f"{place} waits")
        claimed = work.try_poll()
        assert claimed is not None
        claimed.reject(error=f"{place} failure")
        broker.cron.install_periodic(f"{place}-beat", 60, queue=queue, tend=False)
        broker.cron.install_periodic(f"{place}-tick", 60, topic=topic, payload=1, tend=False)
        establish = broker._store.positions.establish
        broker._run(partial(establish, topic, f"{place}-reader", Target(start="earliest")))
        database.execute(
            "INSERT INTO rowmq_ledger (writer, target, version, updated_at) "
            f"VALUES ('query:{place}-writer', '{topic}', 1, 1)"
        )
        ids = {"schedule": f"{place}-beat", "id": str(job.id), "name": f"{place}-beat"}
    facts = WorkerFacts(app="shop:app", host="host", pid=7, version="1", handlers=("shop.bill",))
    running = [
        Running(
            handler="shop.bill",
            source=f"{place}-{what}",
            id=f"{place}-id",
            key=None,
            attempt=1,
            seconds=1.0,
            note=f"{place} note",
            source_type=what,
        )
        for place in ("shown", "veiled")
        for what in KINDS
    ]
    beat = partial(broker._store.workers.beat, WORKER, facts, running, lease_us=60_000_000)
    broker._run(beat)
    return ids | {"worker": WORKER}


@pytest.fixture
def token(broker: rowmq.RowMQ) -> str:
    return broker.access.create_token("some", roles=["admin"], topics=["shown*"], queues=["shown*"])


def path_of(route: Route, names: dict[str, str]) -> str:
    return PARAM.sub(lambda match: names.get(match[1], f"veiled-{match[1]}"), route.path)


@pytest.mark.usefixtures("filled")
async def test_lists_leave_out_what_is_out_of_scope(database: Database, token: str) -> None:
    shown, leaks = set(), []
    site = dashboard(database.url)
    async with visiting(site, token=token) as visitor:
        paths = [route.path for route in LISTS] + [f"/workers/{WORKER}"]
        for path in paths:
            answer = await visitor.get(path)
            assert answer.status_code < 500, path
            if "veiled" in answer.text:
                leaks.append(path)
            if "shown-" in answer.text:
                shown.add(path)
    await site.close()
    assert leaks == []
    assert {
        "/", "/topics", "/queues", "/letters", "/jobs", "/schedules", "/workers", "/spark"
    } <= shown  # fmt: skip


@pytest.mark.usefixtures("filled")
async def test_who_sees_everything_sees_what_others_do_not(
    database: Database, broker: rowmq.RowMQ, token: str
) -> None:
    whole = broker.access.create_token("whole", roles=["read"])
    site = dashboard(database.url)
    async with visiting(site, token=token) as visitor:
        text = (await visitor.get("/spark")).text
        assert "shown-reader" in text
        assert "writer" not in text, "of a ledger's line nobody knows all that it is about"
    async with visiting(site, token=whole) as visitor:
        text = (await visitor.get("/spark")).text
        for name in ("shown-reader", "veiled-reader", "shown-writer", "veiled-writer"):
            assert name in text
    await site.close()


async def test_what_is_out_of_scope_is_not_there_by_its_own_name_either(
    database: Database, broker: rowmq.RowMQ, filled: dict[str, str], token: str
) -> None:
    before = state(broker)
    found = []
    site = dashboard(database.url)
    async with visiting(site, token=token) as visitor:
        for route in SINGLE:
            answer = await asked(visitor, route, filled)
            if answer.status_code not in (400, 403, 404, 422):
                found.append(f"{route}: {answer.status_code}")
            assert "veiled-queue" not in answer.text
        replaced = await visitor.put(
            f"/api/v1/schedules/{filled['schedule']}",
            json={"queue": "shown-queue", "period_seconds": 1, "payload": 1},
        )
        assert replaced.status_code in (403, 404)
    await site.close()
    assert found == []
    assert state(broker) == before


async def asked(visitor: Visitor, route: Route, names: dict[str, str]) -> Any:
    body: dict[str, Any] = {"json": {}} if route.is_api else {"data": {"a": "1"}}
    body = {} if route.method == "GET" else body
    return await visitor.request(route.method, path_of(route, names), **body)


def state(broker: rowmq.RowMQ) -> Any:
    schedules = [(info.name, info.paused, info.last_at) for info in broker.cron.list()]
    return schedules, broker.queue("veiled-queue").counts(), broker.topics()


async def test_work_is_in_scope_by_what_its_source_is_whatever_it_is_called(
    database: Database, broker: rowmq.RowMQ
) -> None:
    """A topic and a queue may have the same name, and a message an id like a job's."""
    secret = broker.access.create_token("some", roles=["read"], topics=["pay"], queues=["mail"])
    whole = broker.access.create_token("whole", roles=["admin"])
    job = broker.queue("mail").put(1)
    facts = WorkerFacts(app="shop:app", host="host", pid=7, version="1", handlers=("shop.bill",))
    running = [
        Running(
            handler=f"{seen}-{what}-{source}",
            source=source,
            id=str(job.id),
            key=None,
            attempt=1,
            seconds=1.0,
            source_type=what,
        )
        for seen, what, source in MIXED
    ]
    beat = partial(broker._store.workers.beat, WORKER, facts, running, lease_us=60_000_000)
    broker._run(beat)
    broker.publish("pay", 1)
    site = dashboard(database.url)
    paths = ("/api/v1/workers", "/workers", f"/workers/{WORKER}")
    async with visiting(site, token=secret) as visitor:
        for path in paths:
            text = (await visitor.get(path)).text
            assert all(one in text for one in ("shown-topic-pay", "shown-queue-mail")), path
            assert "veiled" not in text, path
            assert "shop.bill" not in text, path
        assert "2 handlers at work" in (await visitor.get("/")).text
        text = (await visitor.get(f"/queues/mail/jobs/{job.id}")).text
        assert "shown-queue-mail" in text
    async with visiting(site, token=whole) as visitor:
        assert "veiled-None-pay" in (await visitor.get(paths[0])).text
        assert "shop.bill" in (await visitor.get(paths[2])).text
        assert "6 handlers at work" in (await visitor.get("/")).text
    await site.close()
