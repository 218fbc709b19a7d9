"""Who looks at a topic, queue or group that is not there, or steers it, is told; none is made."""

import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

import rowmq
from rowmq import Ending
from rowmq.web import Settings, Site
from rowmq.web.routing import PARAM, Route
from tests.databases import Database
from tests.web.calling import API, Api, calling
from tests.web.operating import operating
from tests.web.visiting import csrf_in, visiting

ROUTES = [route for route in Site("sqlite://", Settings()).routes.all if route.topic or route.queue]

MAKING = {
    "GET /queues/{queue}/put",
    "GET /topics/{topic}/publish",
    "POST /queues/{queue}/put",
    "POST /topics/{topic}/groups",
    "POST /topics/{topic}/publish",
    "PATCH /api/v1/queues/{queue}",
    "PATCH /api/v1/topics/{topic}",
    "POST /api/v1/queues/{queue}/claim",
    "POST /api/v1/queues/{queue}/jobs",
    "POST /api/v1/queues/{queue}/jobs/batch",
    "POST /api/v1/queues/{queue}/offers",
    "POST /api/v1/queues/{queue}/offers/batch",
    "POST /api/v1/topics/{topic}/groups/{group}/poll",
    "POST /api/v1/topics/{topic}/messages",
    "POST /api/v1/topics/{topic}/messages/batch",
    "PUT /api/v1/topics/{topic}/groups/{group}",
    *(f"POST /api/v1/queues/{{queue}}/{how}" for how in ("ack", "nack", "reject", "release")),
    "POST /api/v1/queues/{queue}/extend",
    *(f"POST {API}/topics/{{topic}}/groups/{{group}}/{how}" for how in ("ack", "nack", "reject")),
    "POST /api/v1/topics/{topic}/groups/{group}/extend",
}
"""What makes what it names, waits for it, or goes by receipts."""


def called(route: Route) -> str:
    return f"{route.method} {route.path}"


def path_of(route: Route, **names: str) -> str:
    return PARAM.sub(lambda match: names.get(match[1], "nope"), route.path)


async def asked(visitor: httpx.AsyncClient, route: Route, csrf: str, **names: str) -> Any:
    body: dict[str, Any] = {"json": {}} if route.is_api else {"data": {"csrf": csrf}}
    sent = {} if route.method == "GET" else body
    return await visitor.request(route.method, path_of(route, **names), **sent)


@pytest.fixture
async def api(database: Database) -> AsyncIterator[Api]:
    async with calling(database.url) as found:
        yield found


def test_what_may_be_new_is_no_more_than_this() -> None:
    assert {called(route) for route in ROUTES if route.may_be_new} == MAKING


@pytest.mark.parametrize("database", ["sqlite", "postgres", "mariadb"], indirect=True)
@pytest.mark.usefixtures("database")
async def test_what_is_not_there_is_a_404_that_says_so_and_is_not_made(
    broker: rowmq.RowMQ, api: Api
) -> None:
    broker.queue("there").put(1)
    csrf = csrf_in((await api.client.get("/queues/there")).text)
    wrong = []
    for route in ROUTES:
        if route.may_be_new:
            continue
        answer = await asked(api.client, route, csrf)
        what = "topic" if route.topic else "queue"
        told = answer.text.replace("&#39;", "'")
        if answer.status_code != 404 or f"there is no {what} 'nope'" not in told:
            wrong.append(f"{called(route)}: {answer.status_code} {told[:200]}")
    assert wrong == []
    assert broker.topics() == []
    assert [info.name for info in broker.queues()] == ["there"]
    assert {entry.ending for entry in broker.access.audit()} == {Ending.FAILED}


async def test_a_topic_is_there_with_a_message_a_group_or_settings(
    broker: rowmq.RowMQ, api: Api
) -> None:
    broker.publish("message", 1)
    broker.create_group("group", "g")
    broker.configure_topic("settings", retention=60)
    for topic in ("message", "group", "settings"):
        for path in ("", "/messages", "/partitions", "/groups", "/letters"):
            await api.get(f"/topics/{topic}{path}")
        assert (await api.client.get(f"/topics/{topic}")).status_code == 200


async def test_a_queue_is_there_with_a_job_or_settings(broker: rowmq.RowMQ, api: Api) -> None:
    await api.patch("/queues/settings", max_in_flight=3)
    broker.queue("job").put(1)
    for queue in ("settings", "job"):
        await api.get(f"/queues/{queue}")
        await api.get(f"/queues/{queue}/jobs")
        assert await api.post(f"/queues/{queue}/pause") == {"changed": True}


async def test_a_group_that_is_not_there_is_told_in_words_of_the_api(
    broker: rowmq.RowMQ, api: Api
) -> None:
    broker.publish("orders", 1)
    for method, path in (("GET", "lag"), ("POST", "seek"), ("DELETE", "")):
        body = {"to": "latest"} if method == "POST" else {}
        at = f"/topics/orders/groups/nope/{path}".rstrip("/")
        problem = await api.refused(404, at, method, **body)
        assert problem["type"] == "urn:rowmq:unknown-group"
        assert "topic 'orders' has no group 'nope'" in problem["detail"]
        assert not re.search(r"\w\(", problem["detail"])
        told = await api.refused(404, at.replace("orders", "ordes"), method, **body)
        assert "there is no topic 'ordes'" in told["detail"]


async def test_forms_of_what_is_new_lead_to_no_page_that_is_not_there(database: Database) -> None:
    async with operating(database.url) as operator:
        for path, label in (("topics", "topic"), ("queues", "queue")):
            form = "publish" if path == "topics" else "put"
            page = await operator.read(path, "new", form)
            assert f"There is no such {label} yet" in page
            assert 'class="tabs"' not in page
            answer = await operator.press(page, path, "new", form, fields={"payload": "1"})
            assert answer.status_code == 200
            page = await operator.read(path, "new", form)
            assert 'class="tabs"' in page
            assert "There is no such" not in page


async def test_nobody_learns_what_is_there_beyond_their_scope(
    database: Database, broker: rowmq.RowMQ
) -> None:
    broker.publish("secret", 1)
    broker.queue("secret").put(1)
    token = broker.access.create_token("some", roles=["admin"], topics=["mine"], queues=["mine"])
    async with calling(database.url, token) as api, visiting(api.site, token=token) as visitor:
        for route in ROUTES:
            names = {"topic": "secret", "queue": "secret"}
            there = await asked(visitor, route, "", **names)
            missing = await asked(visitor, route, "")
            assert there.status_code == missing.status_code == 403, called(route)
