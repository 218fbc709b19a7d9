"""Every call of the HTTP API, given anything that its own description allows, and what it forbids:
it answers as the description says, and never with an error of the server's.
"""

import asyncio
import itertools
import json
from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest
import requests
import schemathesis
from hypothesis import given
from hypothesis import strategies as st
from schemathesis.checks import CHECKS, load_all_checks
from schemathesis.core.result import Ok
from schemathesis.generation import GenerationMode

import rowmq
from rowmq.web import Settings, Site
from rowmq.web.api.openapi import document
from rowmq.web.api.routes import CALLS
from rowmq.web.api.waiting import Waits
from rowmq.web.routing import API
from tests.databases import Databases
from tests.fuzz.effort import effort

HOST = "http://localhost"
EXAMPLES = 4

load_all_checks()
WANTED = CHECKS.get_by_names(
    [
        "not_a_server_error",
        "status_code_conformance",
        "content_type_conformance",
        "response_headers_conformance",
        "response_schema_conformance",
        "negative_data_rejection",
    ]
)

TOLD = json.loads(msgspec.json.encode(document(CALLS, HOST)))
del TOLD["security"]  # who may ask is tested route by route; here, whoever is at this machine may
DESCRIPTION = schemathesis.openapi.from_dict(TOLD)
LOADED = list(DESCRIPTION.get_all_operations())
OPERATIONS: list[Any] = [found.ok() for found in LOADED if isinstance(found, Ok)]


def says_more(operation: Any) -> bool:
    """Whether it takes anything beside names in its path: any text may be one."""
    return bool(operation.query) or bool(operation.body)


KNOWN = {
    "topic": "orders",
    "group": "billing",
    "consumer": "default",
    "queue": "emails",
    "key": "ann",
    "schedule": "nightly",
}
"""Names that there is something of, so that not all that is asked for is missing."""


NAMED_BY_BODY = ("receipts", "ids")
"""Members of bodies that name what was given to somebody, or was put: nobody guesses one."""

SOME = 6
"""How many there are of each: more than there are examples."""


class Player:
    """A site with something of everything in it, and somebody who asks."""

    def __init__(self, url: str) -> None:
        self.mq = rowmq.connect(url)
        self.fresh = itertools.count()
        self.loop = asyncio.new_event_loop()
        settings = Settings(requests_per_second=1e6, burst=1_000_000)
        self.site = Site(url, settings)
        self.site.waits = Waits(0)  # nobody waits for messages and jobs that do not come
        transport = httpx.ASGITransport(app=self.site, raise_app_exceptions=True)
        self.client = httpx.AsyncClient(transport=transport, base_url=HOST)

    def ask(self, case: Any) -> httpx.Response:
        """Ask as the case says."""
        how = case.as_transport_kwargs(base_url=f"{HOST}/api/v1")
        told: Any = requests.Request(**how).prepare()
        request = self.client.build_request(
            told.method, told.url, headers=dict(told.headers), content=told.body or b""
        )
        return self.loop.run_until_complete(self.client.send(request))

    def prepare(self, operation: Any) -> dict[str, list[Any]]:
        """What is there for an operation, in a topic or queue of its own: other operations may
        have dropped, paused or moved those that all of them know.
        """
        name = f"fresh-{next(self.fresh)}"
        names = KNOWN | {"topic": name, "queue": name}
        if "{topic}" in operation.path:
            things = self.of_topic(name, settles=takes(operation, "receipts"))
        else:
            things = self.of_queue(name, operation.path)
        return {name: [value] * SOME for name, value in names.items()} | things

    def of_topic(self, topic: str, *, settles: bool) -> dict[str, list[Any]]:
        """Receipts of deliveries of a topic, or ids of its dead letters."""
        ids = [f"{topic}-{n}" for n in range(SOME)]
        self.mq.publish_many(topic, [rowmq.Message(payload=1, id=id) for id in ids])
        if settles:
            polled = self.post(f"/topics/{topic}/groups/billing/poll", {"max": SOME})
            return {"receipts": [one["receipt"] for one in polled["deliveries"]]}
        with self.mq.subscribe(topic, group="billing") as subscriber:
            while ids_left := len(ids) - len(self.mq.dead_letters(topic)):
                for delivery in subscriber.poll(ids_left, timeout=5):
                    delivery.reject(error="no address")
        return {"ids": ids}

    def of_queue(self, queue: str, path: str) -> dict[str, list[Any]]:
        """Receipts of jobs of a queue, and ids of such that failed, or wait."""
        jobs = self.mq.queue(queue).put_many([{"to": "ann"}] * SOME)
        ids = [job.id for job in jobs]
        claimed = self.post(f"/queues/{queue}/claim", {"max": SOME})["jobs"]
        receipts = [one["receipt"] for one in claimed]
        if path.endswith("/retry"):
            self.post(f"/queues/{queue}/reject", {"receipts": receipts})
        elif path.endswith(("/run", "/reschedule", "/fail", "/drop", "/{id}")):
            self.post(f"/queues/{queue}/release", {"receipts": receipts})
        return {"receipts": receipts, "ids": ids, "id": [str(id) for id in ids]}

    def post(self, path: str, body: Any) -> Any:
        """What comes of a call that is right."""
        url = f"{HOST}/api/v1{path}"
        answer = self.loop.run_until_complete(self.client.post(url, json=body))
        assert answer.status_code == 200, answer.text
        return answer.json()

    def close(self) -> None:
        self.mq.close()
        self.loop.run_until_complete(self.client.aclose())
        self.loop.run_until_complete(self.site.close())
        self.loop.close()


on_one_database = pytest.mark.parametrize("player", ["sqlite"], indirect=True)
"""What is refused before the database is asked is refused alike on all."""


def takes(operation: Any, member: str) -> bool:
    """Whether its body has a member of this name."""
    told = TOLD["paths"][operation.path][operation.method].get("requestBody", {})
    for content in told.get("content", {}).values():
        schema = content["schema"]
        if name := schema.get("$ref", "").rpartition("/")[2]:
            schema = TOLD["components"]["schemas"][name]
        if member in schema.get("properties", {}):
            return True
    return False


def names_something(operation: Any) -> bool:
    """Whether it is about something that was given to somebody, or was put."""
    return "/jobs/{id}" in operation.path or any(takes(operation, one) for one in NAMED_BY_BODY)


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def player(request: pytest.FixtureRequest, databases: Databases) -> Iterator[Player]:
    database = databases.get(request.param)
    with rowmq.connect(database.url) as mq:
        mq.publish_many("orders", [rowmq.Message(payload=n, key="ann") for n in range(3)])
        with mq.subscribe("orders", group="billing") as subscriber:
            for delivery in subscriber.poll():
                delivery.reject(error="no address")
        queue = mq.queue("emails")
        queue.put_many([{"to": "ann"}, b"\0\xff", "text"])
        queue.offer_or_update("ann", 1)
        mq.cron.install("nightly", "0 2 * * *", queue="emails", tend=False)
    found = Player(database.url)
    yield found
    found.close()
    databases.give_back(database)


def played(player: Player, operation: Any, mode: GenerationMode) -> None:
    """Ask for an operation in ways that its description allows, or in such as it does not."""

    @effort(EXAMPLES)
    @given(case=operation.as_strategy(generation_mode=mode), known=st.booleans())
    def ask(case: Any, known: bool) -> None:
        if known and mode is GenerationMode.POSITIVE:
            names = {name: KNOWN.get(name, value) for name, value in case.path_parameters.items()}
            case.path_parameters = names
        case.validate_response(player.ask(case), checks=WANTED)

    ask()


def played_with(player: Player, operation: Any, things: dict[str, list[Any]]) -> set[int]:
    """Ask for an operation with what is there for it, in ways that its description allows; with
    what statuses it was answered.
    """
    statuses: set[int] = set()
    turns = itertools.count()

    @effort(EXAMPLES)
    @given(case=operation.as_strategy(generation_mode=GenerationMode.POSITIVE))
    def ask(case: Any) -> None:
        nth = next(turns) % SOME
        case.path_parameters = {name: things[name][nth] for name in case.path_parameters}
        if isinstance(case.body, dict):
            given = {name: [things[name][nth]] for name in NAMED_BY_BODY if takes(operation, name)}
            case.body = case.body | given
        answer = player.ask(case)
        statuses.add(answer.status_code)
        case.validate_response(answer, checks=WANTED)

    ask()
    return statuses


def label(operation: Any) -> str:
    return str(operation.label)


def test_every_call_can_be_asked_for() -> None:
    assert [found.err() for found in LOADED if not isinstance(found, Ok)] == []
    calls = {f"{call.method} {call.path.removeprefix(API)}" for part in CALLS for call in part.all}
    assert {label(operation) for operation in OPERATIONS} == calls


@pytest.mark.parametrize("operation", OPERATIONS, ids=label)
def test_what_is_allowed_is_answered_as_described(player: Player, operation: Any) -> None:
    played(player, operation, GenerationMode.POSITIVE)


@pytest.mark.parametrize("operation", [one for one in OPERATIONS if says_more(one)], ids=label)
@on_one_database
def test_what_is_not_allowed_is_refused_as_described(player: Player, operation: Any) -> None:
    played(player, operation, GenerationMode.NEGATIVE)


@pytest.mark.parametrize(
    "operation", [one for one in OPERATIONS if names_something(one)], ids=label
)
def test_what_is_there_is_found_and_answered_as_described(player: Player, operation: Any) -> None:
    """Receipts that were given, and ids of jobs and letters that are there."""
    assert 200 in played_with(player, operation, player.prepare(operation))
