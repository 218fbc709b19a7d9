"""The HTTP API, call by call; consuming has a file of its own."""

import json
import re
from base64 import b64encode
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import rowmq
from rowmq.web.api.routes import CALLS, ROUTES
from rowmq.web.routing import PARAM, quote
from tests.databases import Database
from tests.web.calling import API, Api, calling, done

SECRETS = {"password": "hunter2", "name": "ann"}

DONE = {"left": 0, "capped": False}
"""What is said of letters beside how many it was done to, if there are no more of them."""

NAMES = ["%", "a/b", "'; DROP TABLE x; --", "..", "~.", "ünïcödé 🦆", "a?b#c", "x" * 196]


@pytest.fixture
async def api(database: Database) -> AsyncIterator[Api]:
    async with calling(database.url) as found:
        yield found


# --- publish and look -----------------------------------------------------------------------------


async def test_publish_is_repeatable_by_id(api: Api) -> None:
    body = {"payload": {"n": 1}, "key": "ann", "id": "order-1", "headers": {"a": "b"}}
    first = await api.post("/topics/orders/messages", **body)
    assert (first["offset"], first["duplicate"]) == (1, False)
    second = await api.post("/topics/orders/messages", **body)
    assert (second["offset"], second["duplicate"]) == (1, True)
    (message,) = (await api.get("/topics/orders/messages"))["messages"]
    assert message["payload"] == {"n": 1}
    assert (message["key"], message["id"], message["headers"]) == ("ann", "order-1", {"a": "b"})


async def test_a_batch_is_published_whole_or_not_at_all(api: Api) -> None:
    messages: list[dict[str, Any]] = [{"payload": n, "key": "ann"} for n in range(3)]
    told = await api.post("/topics/orders/messages/batch", messages=messages)
    assert [one["offset"] for one in told["published"]] == [1, 2, 3]
    messages.append({"payload": "x" * 2_000_000})
    problem = await api.refused(413, "/topics/orders/messages/batch", messages=messages)
    assert problem["type"] == "urn:rowmq:payload-too-large"
    assert (await api.get("/topics/orders"))["messages"] == 3


@pytest.mark.parametrize(
    ("payload", "encoding"),
    [
        (None, "json"),
        ([1, {"a": [True, 1.5]}], "json"),
        ("<script>alert(1)</script>", "text"),
        (b64encode(bytes(range(256))).decode(), "base64"),
    ],
)
async def test_payloads_come_as_they_were_sent(api: Api, payload: Any, encoding: str) -> None:
    await api.publish("orders", payload, encoding=encoding)
    (delivery,) = await api.poll("orders")
    assert (delivery["message"]["payload"], delivery["message"]["encoding"]) == (payload, encoding)


async def test_a_body_that_is_no_json_is_the_payload(api: Api, broker: rowmq.RowMQ) -> None:
    for kind, path in (("topics", "messages"), ("queues", "jobs")):
        for said, body in (
            ("text/csv; charset=utf-8", "a;ü".encode()),
            ("application/octet-stream", b"\0\xff"),
        ):
            headers = {"Content-Type": said}
            url = f"{API}/{kind}/raw/{path}?key={len(said)}"
            done(await api.client.post(url, content=body, headers=headers))
    assert [m.payload for m in broker.read("raw")] == ["a;ü", b"\0\xff"]
    assert [m.headers["content-type"] for m in broker.read("raw")][1] == "application/octet-stream"
    assert [job.payload for job in broker.queue("raw").live()] == ["a;ü", b"\0\xff"]
    for said in ("application/x-www-form-urlencoded", "text/plain"):
        answer = await api.client.post(
            f"{API}/topics/raw/messages", content=b"\xff", headers={"Content-Type": said}
        )
        assert answer.status_code == 415
        assert "application/octet-stream" in answer.json()["detail"]


@pytest.mark.parametrize("name", NAMES)
async def test_names_are_data(api: Api, name: str) -> None:
    await api.publish(quote(name), 1, key=name, id=name, headers={name: name})
    (delivery,) = await api.poll(quote(name), quote(name), consumer=name[:80])
    assert (delivery["message"]["topic"], delivery["message"]["key"]) == (name, name)
    told = await api.post(
        f"/topics/{quote(name)}/groups/{quote(name)}/ack", receipts=[delivery["receipt"]]
    )
    assert told["settled"] == 1
    assert [topic["name"] for topic in (await api.get("/topics"))["topics"]] == [name]
    path = f"/topics/{quote(name)}/groups/{quote(name)}/consumers/{quote(name[:80])}"
    assert await api.delete(path) == {"changed": True}
    await api.post(f"/queues/{quote(name)}/offers", key=name, payload=name)
    job = await api.get(f"/queues/{quote(name)}/keys/{quote(name)}")
    assert job["payload"] == name
    assert await api.delete(f"/queues/{quote(name)}/keys/{quote(name)}") == {"changed": True}
    path = f"/schedules/{quote(name)}"
    assert (await api.put(path, cron="0 2 * * *", queue=name))["outcome"] == "created"
    assert (await api.get(path))["schedule"]["name"] == name
    assert await api.delete(path) == {"changed": True}


async def test_messages_are_looked_at_page_by_page(api: Api) -> None:
    await api.publish("orders", *range(7), key="ann")
    page = await api.get("/topics/orders/messages", limit=3)
    assert [m["payload"] for m in page["messages"]] == [6, 5, 4]
    page = await api.get("/topics/orders/messages", limit=3, before=page["older"])
    assert [m["payload"] for m in page["messages"]] == [3, 2, 1]
    (partition,) = (await api.get("/topics/orders/partitions"))["partitions"]
    assert (partition["key"], partition["first_offset"], partition["last_offset"]) == ("ann", 1, 7)
    assert (await api.get("/topics/orders/partitions", after="ann"))["partitions"] == []


async def test_who_only_looks_does_not_see_what_is_masked(api: Api) -> None:
    secret = {"Authorization": "Bearer xyz"}
    await api.publish("orders", SECRETS, headers=secret)
    await api.post("/queues/emails/jobs", payload=SECRETS, headers=secret, key="ann")
    (message,) = (await api.get("/topics/orders/messages"))["messages"]
    (job,) = (await api.get("/queues/emails/jobs"))["jobs"]
    told = (await api.get(f"/queues/emails/jobs/{job['id']}"))["job"]
    by_key = await api.get("/queues/emails/keys/ann")
    for seen in (message, job, told, by_key):
        assert "hunter2" not in json.dumps(seen)
        assert "xyz" not in json.dumps(seen)
        assert seen["payload"]["name"] == "ann"
    (delivery,) = await api.poll("orders")
    assert delivery["message"]["payload"] == SECRETS
    assert delivery["message"]["headers"] == secret
    await api.settle("reject", "orders", delivery)
    assert "hunter2" not in json.dumps(await api.get("/topics/orders/letters"))
    (claimed,) = (await api.post("/queues/emails/claim"))["jobs"]
    assert claimed["payload"] == SECRETS


async def test_what_is_masked_cannot_be_looked_for(api: Api) -> None:
    await api.post("/queues/emails/jobs", payload=1, headers={"x-api-key": "a", "tenant": "b"})
    assert len((await api.get("/queues/emails/jobs", header="tenant=b"))["jobs"]) == 1
    for value in ("a", "b"):
        answer = await api.ask(
            "GET", "/queues/emails/jobs", params={"header": f"X_Api_Key={value}"}
        )
        assert answer.status_code == 400
        assert "is masked here" in answer.json()["detail"]


async def test_settings_of_a_topic_can_be_changed(api: Api) -> None:
    await api.patch("/topics/orders", retention_seconds=3600, max_payload_bytes=10)
    await api.refused(413, "/topics/orders/messages", payload="x" * 11)
    await api.post("/topics/orders/messages", payload="x")
    topic = await api.get("/topics/orders")
    assert (topic["retention_seconds"], topic["max_payload_bytes"]) == (3600, 10)
    await api.refused(404, "/topics/others", "GET")


# --- steer groups ---------------------------------------------------------------------------------


async def test_a_seek_is_looked_at_before_and_then_made(api: Api) -> None:
    await api.publish("orders", 1, 2, 3, key="ann")
    await api.settle("ack", "orders", *await api.poll("orders"))
    path = "/topics/orders/groups/billing/seek"
    (step,) = (await api.get(path, offset=2, key="ann"))["steps"]
    assert (step["next_offset"], step["again"]) == (2, 2)
    assert await api.lag("orders") == 0, "nothing was changed"
    body = {"offsets": [{"key": "ann", "offset": 2}]}
    assert await api.post(path, **body) == {"count": 1}
    assert await api.lag("orders") == 2
    past = (datetime.now(UTC) - timedelta(days=1)).isoformat()
    assert await api.post(path, at=past) == {"count": 1}
    assert await api.lag("orders") == 3
    await api.publish("orders", 4, key="bob")
    preview = await api.get(path, to="latest", limit=1)
    assert (preview["partitions"], preview["skipped"], preview["again"]) == (2, 4, 0)
    assert [(step["key"], step["skipped"]) for step in preview["steps"]] == [("ann", 3)]
    await api.refused(422, path)
    await api.refused(422, path, to="latest", at=past)
    await api.refused(404, "/topics/orders/groups/nobody/seek", to="latest")


async def test_dead_letters_are_sorted_redriven_edited_and_purged(api: Api) -> None:
    for n in range(4):
        await api.publish("orders", n, key="ann", id=f"order-{n}")
    for n, delivery in enumerate(await api.poll("orders")):
        await api.settle("reject", "orders", delivery, error=f"no address for order {n}")
    (kind,) = (await api.get("/topics/orders/letters/kinds"))["kinds"]
    assert (kind["count"], kind["groups"]) == (4, ["billing"])
    page = await api.get("/topics/orders/letters", matching=kind["pattern"], limit=3)
    assert [letter["message"]["payload"] for letter in page["letters"]] == [3, 2, 1]
    rest = await api.get(
        "/topics/orders/letters", matching=kind["pattern"], limit=3, after=page["next"]
    )
    assert [letter["message"]["payload"] for letter in rest["letters"]] == [0]
    (step,) = (await api.get("/topics/orders/redrive"))["steps"]
    assert (step["group"], step["letters"], step["gone"]) == ("billing", 4, 0)

    path = "/topics/orders/redrive"
    await api.refused(422, path, group="billing")
    assert await api.post(path, group="billing", ids=["order-0"]) == DONE | {"count": 1}
    edited = {"group": "billing", "id": "order-1", "payload": "mended"}
    assert await api.post(f"{path}/edited", **edited) == {"changed": True}
    assert await api.post(f"{path}/edited", **edited) == {"changed": False}
    again = await api.poll("orders", timeout_seconds=20)
    if len(again) < 2:
        again += await api.poll("orders", timeout_seconds=20)
    found = {delivery["message"]["payload"] for delivery in again}
    assert found == {0, "mended"}
    await api.settle("ack", "orders", *again)
    assert await api.post("/topics/orders/letters/purge", all=True) == DONE | {"count": 2}
    assert (await api.get("/topics/orders/letters"))["letters"] == []


# --- queues and jobs ------------------------------------------------------------------------------


async def test_jobs_are_put_offered_and_withdrawn(api: Api) -> None:
    soon = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    put = await api.post("/queues/emails/jobs", payload=1, at=soon, priority=5, key="ann")
    assert put["queue"] == "emails"
    problem = await api.refused(409, "/queues/emails/jobs", payload=2, key="ann")
    assert problem["type"] == "urn:rowmq:key-taken"
    offers: list[dict[str, Any]] = [
        {"key": "ann", "payload": 1, "at": soon, "can_update": False},
        {"key": "ann", "payload": 3},
        {"key": "bob", "payload": 4},
    ]
    told = await api.post("/queues/emails/offers/batch", offers=offers)
    assert told["outcomes"] == ["ignored", "updated", "created"]
    assert await api.delete("/queues/emails/keys/bob") == {"changed": True}
    await api.refused(404, "/queues/emails/keys/bob", "GET")
    (job,) = (await api.post("/queues/emails/claim", max=100))["jobs"]
    assert job["payload"] == 3


async def test_jobs_are_found_and_steered(api: Api) -> None:
    put = await api.post("/queues/emails/jobs/batch", payloads=list(range(5)))
    ids = [job["id"] for job in put["jobs"]]
    assert await api.post("/queues/emails/fail", ids=ids[:2], error="no") == {"count": 2}
    page = await api.get("/queues/emails/jobs", state="failed", limit=1)
    assert (page["jobs"][0]["error"], page["jobs"][0]["state"]) == ("no", "failed")
    assert page["next"] is not None
    told = await api.get(f"/queues/emails/jobs/{ids[0]}")
    assert [event["what"] for event in told["events"]][:1] == ["put"]
    assert await api.post("/queues/emails/retry", ids=ids) == {"count": 2}
    assert await api.post("/queues/emails/reschedule", ids=ids, delay_seconds=900) == {"count": 5}
    assert (await api.post("/queues/emails/claim"))["jobs"] == []
    assert await api.post("/queues/emails/run", ids=ids[3:]) == {"count": 2}
    assert len((await api.post("/queues/emails/claim", max=9))["jobs"]) == 2
    assert await api.post("/queues/emails/drop", ids=ids[:1]) == {"count": 1}
    await api.refused(404, f"/queues/emails/jobs/{ids[0]}", "GET")
    await api.refused(404, "/queues/emails/jobs/x", "GET")
    await api.refused(422, "/queues/emails/reschedule", ids=ids)
    assert await api.post("/queues/emails/prune", state="failed") == {"count": 0}


async def test_a_queue_is_paused_and_limited(api: Api) -> None:
    await api.post("/queues/emails/jobs/batch", payloads=[1, 2])
    await api.post("/queues/emails/pause")
    assert (await api.post("/queues/emails/claim"))["jobs"] == []
    assert (await api.get("/queues/emails"))["queue"]["paused"]
    await api.post("/queues/emails/resume")
    await api.patch("/queues/emails", max_in_flight=1, retention_seconds=60)
    assert len((await api.post("/queues/emails/claim", max=2))["jobs"]) == 1
    queue = (await api.get("/queues"))["queues"][0]
    assert (queue["max_in_flight"], queue["retention_seconds"]) == (1, 60)
    await api.patch("/queues/emails", max_in_flight=0)
    assert len((await api.post("/queues/emails/claim", max=2))["jobs"]) == 1


# --- schedules and the whole ----------------------------------------------------------------------


async def test_schedules_are_installed_and_steered(api: Api, broker: rowmq.RowMQ) -> None:
    nightly = {"cron": "0 2 * * *", "queue": "reports", "payload": {"a": 1}, "tz": "Europe/Paris"}
    assert await api.put("/schedules/nightly", **nightly) == {"outcome": "created"}
    assert await api.put("/schedules/nightly", **nightly) == {"outcome": "ignored"}
    assert await api.put("/schedules/noon", daily=["12:00"], topic="noons") == {
        "outcome": "created"
    }
    assert await api.put("/schedules/beat", period_seconds=60, queue="beats") == {
        "outcome": "created"
    }
    found = (await api.get("/schedules"))["schedules"]
    assert [one["name"] for one in found] == ["beat", "nightly", "noon"]
    told = await api.get("/schedules/nightly")
    assert told["schedule"]["tz"] == "Europe/Paris"
    assert len(told["next"]) == 10
    assert await api.post("/schedules/nightly/pause") == {"changed": True}
    assert await api.post("/schedules/nightly/resume") == {"changed": True}
    await api.post("/schedules/nightly/run")
    assert [job.payload for job in broker.queue("reports").live()] == [{"a": 1}]
    assert await api.delete("/schedules/nightly") == {"changed": True}
    await api.refused(404, "/schedules/nightly", "GET")
    await api.refused(422, "/schedules/x", "PUT", queue="reports")
    await api.refused(422, "/schedules/x", "PUT", daily=["25:00"], queue="reports")
    await api.refused(400, "/schedules/x", "PUT", cron="never", queue="reports")


async def test_schedules_are_in_the_scope_of_what_they_feed(
    database: Database, broker: rowmq.RowMQ
) -> None:
    broker.cron.install("theirs", "0 2 * * *", queue="theirs", tend=False)
    token = broker.access.create_token("mine", roles=["admin"], topics=[], queues=["mine"])
    async with calling(database.url, token) as api:
        await api.put("/schedules/mine", period_seconds=60, queue="mine")
        assert [one["name"] for one in (await api.get("/schedules"))["schedules"]] == ["mine"]
        await api.refused(403, "/schedules/x", "PUT", period_seconds=60, queue="theirs")
        await api.refused(404, "/schedules/theirs", "PUT", period_seconds=60, queue="mine")
        await api.refused(404, "/schedules/theirs", "DELETE")
        await api.refused(403, "/doctor", "GET")
        assert (await api.get("/queues"))["queues"] == []


@pytest.mark.parametrize("what", ["PUT", "DELETE", "pause", "resume", "run"])
async def test_a_schedule_that_is_replaced_meanwhile_is_somebody_elses(
    database: Database, broker: rowmq.RowMQ, what: str
) -> None:
    token = broker.access.create_token("mine", roles=["admin"], topics=[], queues=["mine"])
    broker.cron.install_periodic("beat", 60, queue="mine", tend=False)
    async with calling(database.url, token) as api:
        mq = await api.site.connect()
        look = mq.cron.list

        async def look_and_be_late() -> Any:
            found = await look()
            broker.cron.install_periodic("beat", 60, queue="theirs", tend=False)
            return found

        mq.cron.list = look_and_be_late  # type: ignore[method-assign]
        if what == "PUT":
            body = {"queue": "mine", "period_seconds": 5}
            await api.refused(404, "/schedules/beat", "PUT", **body)
        elif what == "DELETE":
            await api.refused(404, "/schedules/beat", "DELETE")
        else:
            await api.refused(404, f"/schedules/beat/{what}")
    (info,) = broker.cron.list()
    assert (info.queue, info.paused, info.last_at) == ("theirs", False, None)
    assert list(broker.queue("theirs").live()) == []


async def test_workers_and_the_doctor_are_there(api: Api) -> None:
    assert await api.get("/workers") == {"workers": []}
    told = await api.get("/doctor")
    assert told["level"] in ("ok", "note", "warning", "problem")
    assert {"check", "level", "summary", "details", "advice"} <= set(told["findings"][0])


# --- what is refused ------------------------------------------------------------------------------


async def test_problems_say_what_is_wrong_and_what_to_do(api: Api) -> None:
    problem = await api.refused(422, "/topics/orders/messages", payload=1, kee="ann")
    assert "kee" in problem["detail"]
    problem = await api.refused(422, "/topics/orders/messages", key="ann")
    assert "payload" in problem["detail"]
    problem = await api.refused(400, "/topics/orders/messages", payload=1, key="\0")
    assert problem["type"] == "urn:rowmq:invalid-key"
    answer = await api.ask("POST", "/topics/orders/messages/batch", content=b"{", headers=JSON)
    assert (answer.status_code, answer.json()["title"]) == (400, "Bad Request")
    answer = await api.ask("GET", "/topics", params={"limit": 1})
    assert answer.status_code == 422
    answer = await api.ask("DELETE", "/topics")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")
    nowhere = await api.refused(404, "/nothing", "GET")
    assert "/api/v1/openapi.json describes all calls" in nowhere["detail"]
    await api.refused(422, "/queues/emails/jobs", payload="é", encoding="base64")
    await api.refused(422, "/topics/orders/groups/billing/poll", timeout_seconds=61)


JSON = {"Content-Type": "application/json"}


async def test_a_read_only_site_lets_nobody_write(database: Database) -> None:
    async with calling(database.url, read_only=True) as api:
        problem = await api.refused(403, "/topics/orders/messages", payload=1)
        assert problem["type"] == "urn:rowmq:read-only"
        assert await api.get("/topics") == {"topics": []}


# --- the description ------------------------------------------------------------------------------


async def test_the_description_has_every_call_and_only_what_is_there(api: Api) -> None:
    described = await api.get("/openapi.json")
    told = {
        (method.upper(), API + path)
        for path, calls in described["paths"].items()
        for method in calls
    }
    there = {(route.method, route.path) for route in ROUTES}
    assert there - told == {("GET", f"{API}/openapi.json")}
    assert told <= there
    operations = [one for calls in described["paths"].values() for one in calls.values()]
    ids = [one["operationId"] for one in operations]
    assert len(set(ids)) == len(ids)
    assert all(one["summary"] and one["tags"] for one in operations)
    for path, calls in described["paths"].items():
        for one in calls.values():
            named = [p["name"] for p in one["parameters"] if p["in"] == "path"]
            assert named == PARAM.findall(path)
    text = json.dumps(described)
    for name in references(text):
        kind, _, part = name.partition("/")
        assert part in described["components"][kind], name
    for name in described["components"]["schemas"]:
        assert f"schemas/{name}" in text, f"nobody refers to {name}"


def references(text: str) -> set[str]:
    return {part.partition('"')[0] for part in text.split("#/components/")[1:]}


async def test_the_description_says_where_it_is_served(database: Database) -> None:
    async with calling(database.url, root_path="/queues") as api:
        described = done(await api.client.get(f"/queues{API}/openapi.json"))
        assert described["servers"] == [{"url": "/queues/api/v1"}]


def test_every_call_says_what_it_is_for() -> None:
    for calls in CALLS:
        assert calls.about
        for call in calls.all:
            assert (call.function.__doc__ or "").strip().endswith(".")


def test_the_documentation_names_every_call() -> None:
    page = (Path(__file__).parent.parent.parent / "docs" / "http-api.md").read_text()
    rows = {
        (method, path): role
        for method, path, role in re.findall(
            r"^\| `([A-Z]+) (/\S*)` \| (\w*) ?\|", page, re.MULTILINE
        )
    }
    assert rows == {
        (route.method, route.path.removeprefix(API)): str(route.needs or "") for route in ROUTES
    }


async def test_one_is_looked_up_by_its_name(api: Api) -> None:
    """And not found in a list of all of them, whose statements are these."""
    for name in ("orders", "clicks"):
        await api.publish(name, 1)
        await api.post(f"/queues/{name}/jobs", payload=1)
    seen: set[str] = set()
    mq = await api.site.connect()
    mq._driver.observers.append(lambda statement: seen.add(statement.name))
    assert (await api.get("/topics/orders"))["name"] == "orders"
    assert (await api.get("/queues/orders"))["queue"]["name"] == "orders"
    assert {"topics.find", "queues.look"} <= seen
    assert seen.isdisjoint({"topics.list", "queues.list", "queues.list_kinds"})
