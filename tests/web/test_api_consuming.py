"""Consuming over HTTP: nothing is lost, and no attempt is spent, whoever dies or asks twice."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

import rowmq
from rowmq.web.api import consumers, waiting
from tests.consuming import eventually
from tests.databases import NAMES, Database
from tests.web.calling import Api, calling, gone_after
from tests.web.visiting import visiting

everywhere = pytest.mark.parametrize("database", NAMES, indirect=True)

SECONDS_MAX = 20


@pytest.fixture
async def api(database: Database) -> AsyncIterator[Api]:
    """A server."""
    async with calling(database.url) as found:
        yield found


@pytest.fixture
async def other(database: Database) -> AsyncIterator[Api]:
    """Another server of the same site."""
    async with calling(database.url) as found:
        yield found


def payloads(deliveries: list[dict[str, Any]]) -> list[Any]:
    return [delivery["message"]["payload"] for delivery in deliveries]


def consumer_of(api: Api) -> consumers.Consumer:
    (found,) = api.site.consumers._consumers.values()
    return found


# --- topics ---------------------------------------------------------------------------------------


@everywhere
async def test_a_message_reaches_each_group_and_is_settled_once(api: Api) -> None:
    await api.publish("orders", {"n": 1}, "two", key="ann")
    for group in ("billing", "search"):
        first, second = await api.poll("orders", group)
        assert payloads([first, second]) == [{"n": 1}, "two"]
        assert first["attempt"] == 1
        receipts = [first["receipt"], second["receipt"]]
        path = f"/topics/orders/groups/{group}"
        assert await api.post(f"{path}/ack", receipts=receipts) == {"settled": 2, "before": []}
        again = await api.post(f"{path}/ack", receipts=receipts)
        assert again == {"settled": 0, "before": receipts}, "who asks twice is told that it is done"
        assert await api.lag("orders", group) == 0


@everywhere
async def test_any_server_settles_what_another_one_delivered(api: Api, other: Api) -> None:
    await api.publish("orders", 1, 2, 3, 4, key="ann")
    one, two, three, four = await api.poll("orders", visibility_seconds=60)
    assert await other.settle("ack", "orders", one) == {"settled": 1, "before": []}
    await other.settle("nack", "orders", two, delay_seconds=0, error="not now")
    await other.settle("reject", "orders", three, error="never")
    await other.settle("extend", "orders", four, seconds=600)
    told = await other.settle("ack", "orders", one, two, three)
    assert told == {"settled": 0, "before": [d["receipt"] for d in (one, two, three)]}

    (again,) = await api.poll("orders", visibility_seconds=60, timeout_seconds=SECONDS_MAX)
    assert (again["message"]["payload"], again["attempt"]) == (2, 2)
    await api.settle("ack", "orders", again, four)
    assert await api.lag("orders") == 0
    (letter,) = (await other.get("/topics/orders/letters"))["letters"]
    assert (letter["message"]["payload"], letter["error"]) == (3, "never")


@everywhere
async def test_a_settle_that_comes_too_late_changes_nothing_and_says_what_to_do(
    api: Api, other: Api
) -> None:
    await api.publish("orders", 1, key="ann")
    await api.publish("orders", 2, key="bob")
    deliveries = {d["message"]["key"]: d for d in await api.poll("orders")}
    await api.post("/topics/orders/groups/billing/seek", to="earliest", key="ann")
    receipts = [deliveries[key]["receipt"] for key in ("ann", "bob")]
    for server in (api, other):
        problem = await server.refused(409, "/topics/orders/groups/billing/ack", receipts=receipts)
        assert problem["type"] == "urn:rowmq:stale-lease"
        assert "whoever gets the message next settles it" in problem["detail"]
        assert [refused["receipt"] for refused in problem["refused"]] == receipts[:1]
        assert problem["settled"] + len(problem["before"]) == 1, "the other one is settled"
    assert payloads(await api.poll("orders", timeout_seconds=SECONDS_MAX)) == [1]


@everywhere
async def test_a_server_that_goes_down_gives_everything_back_at_no_attempt(
    api: Api, other: Api
) -> None:
    await api.publish("orders", 1, key="ann")
    (delivery,) = await api.poll("orders")
    await api.site.consumers.close()
    receipts = [delivery["receipt"]]
    await other.refused(409, "/topics/orders/groups/billing/ack", receipts=receipts)
    (again,) = await other.poll("orders", timeout_seconds=SECONDS_MAX)
    assert again["attempt"] == 1
    await api.refused(503, "/topics/orders/groups/billing/poll")


@everywhere
async def test_a_poll_whose_answer_was_lost_can_be_repeated(api: Api) -> None:
    await api.publish("orders", 1, 2, 3, key="ann")
    lost = await api.poll("orders", id="first", max=2)
    assert await api.poll("orders", id="first", max=2) == lost, "the same, with the same receipts"
    await api.settle("ack", "orders", lost[0])
    assert payloads(await api.poll("orders", id="first", max=2)) == [2]
    assert payloads(await api.poll("orders", id="second", max=2)) == [3]


async def test_who_has_gone_meanwhile_costs_no_attempt(api: Api, monkeypatch: Any) -> None:
    monkeypatch.setattr(waiting, "SLICE_SECONDS", SECONDS_MAX)
    await api.put("/topics/orders/groups/billing")
    leaves = asyncio.Event()
    path, body = "/topics/orders/groups/billing/poll", {"timeout_seconds": SECONDS_MAX}
    waits = asyncio.create_task(gone_after(api.site, path, body, leaves))
    await eventually(lambda: len(api.site.consumers))
    leaves.set()
    await api.publish("orders", 1)
    assert await waits == len('{"deliveries":[]}')
    (delivery,) = await api.poll("orders")
    assert delivery["attempt"] == 1

    leaves.clear()
    body = {"timeout_seconds": SECONDS_MAX}
    waits = asyncio.create_task(gone_after(api.site, "/queues/emails/claim", body, leaves))
    leaves.set()
    await api.post("/queues/emails/jobs", payload="hello")
    await waits
    (job,) = (await api.post("/queues/emails/claim"))["jobs"]
    assert (job["attempt"], job["deliveries"]) == (1, 1)


async def test_a_long_poll_holds_no_connection_and_ends_when_there_is_something(
    database: Database,
) -> None:
    async with calling(database.url) as api:
        await api.put("/topics/orders/groups/g0")  # so that there is a topic to be asked about
        polls = [
            asyncio.create_task(
                api.poll("orders", f"g{n}", timeout_seconds=SECONDS_MAX, start="latest")
            )
            for n in range(20)  # twice as many as there are connections
        ]
        began = time.monotonic()

        async def all_wait() -> bool:
            return len((await api.get("/topics/orders/groups"))["groups"]) == len(polls)

        await eventually(all_wait)
        await api.publish("orders", "news")
        found = await asyncio.gather(*polls)
        assert time.monotonic() - began < SECONDS_MAX
        assert [payloads(one) for one in found] == [["news"]] * len(polls)


async def test_a_server_that_is_to_end_does_not_wait_for_those_who_wait(api: Api) -> None:
    began = time.monotonic()
    waits = asyncio.create_task(api.poll("orders", timeout_seconds=60))
    await eventually(lambda: len(api.site.consumers))
    api.site.consumers.hush()
    assert await waits == []
    assert time.monotonic() - began < 10
    problem = await api.refused(503, "/topics/orders/groups/billing/poll")
    assert "going down" in problem["detail"]


async def test_what_a_client_did_not_settle_in_time_comes_again(api: Api) -> None:
    await api.publish("orders", 1, key="ann")
    (first,) = await api.poll("orders", visibility_seconds=1)
    (second,) = await api.poll("orders", visibility_seconds=1, timeout_seconds=SECONDS_MAX)
    assert second["attempt"] == 2
    await api.refused(409, "/topics/orders/groups/billing/ack", receipts=[first["receipt"]])
    await asyncio.sleep(1.1)
    told = await api.settle("ack", "orders", second)
    assert told["settled"] == 1, "late, but nobody else has it"


@everywhere
async def test_what_was_extended_at_another_server_stays_the_clients(
    api: Api, other: Api, monkeypatch: Any
) -> None:
    """The server that has the consumer is not told of it, and must not take it for idle."""
    monkeypatch.setattr(consumers, "SWEEP_SECONDS", 0.01)
    monkeypatch.setattr(consumers, "LOOK_SECONDS", 0.1)
    await api.publish("orders", 1, 2, key="ann")
    deliveries = await api.poll("orders", visibility_seconds=1)
    consumer = consumer_of(api)
    await other.settle("extend", "orders", deliveries[1], seconds=60)
    consumer.used_at -= 1_000
    await asyncio.sleep(1.1)
    assert len(api.site.consumers) == 1
    assert await other.settle("ack", "orders", *deliveries) == {"settled": 2, "before": []}
    await eventually(lambda: not len(api.site.consumers))


async def test_what_somebody_else_was_given_as_well_is_not_given_back(api: Api) -> None:
    """Of two who ask for the same, one goes away: the other has it. If both do, nobody has."""
    await api.publish("orders", 1, key="ann")
    (delivery,) = await api.poll("orders", id="same", visibility_seconds=600)
    consumer = consumer_of(api)
    handed = list(consumer.open.values())
    assert await consumer.poll(1, "same", 0.0) == handed
    await consumer.forsake(handed)
    assert await api.poll("orders", visibility_seconds=600) == []
    await api.settle("nack", "orders", delivery, delay_seconds=0)

    await api.poll("orders", id="same again", visibility_seconds=600, timeout_seconds=SECONDS_MAX)
    handed = list(consumer.open.values())
    assert await consumer.poll(1, "same again", 0.0) == handed
    await consumer.forsake(handed)
    await consumer.forsake(handed)
    (again,) = await api.poll("orders", visibility_seconds=600)
    assert again["attempt"] == 2, "the attempt that nobody got was none"


@everywhere
async def test_receipts_are_of_use_to_their_database_only(api: Api, database: Database) -> None:
    """The ids of rows are the same in many, and servers of several sites may have one secret."""
    subject = database.create()
    try:
        with rowmq.connect(subject.url, auto_migrate=False) as mq:
            mq.migrate()
        async with calling(subject.url) as elsewhere:
            receipts = []
            for server in (api, elsewhere):
                await server.publish("orders", 1, key="ann")
                receipts += [one["receipt"] for one in await server.poll("orders")]
            ack = "/topics/orders/groups/billing/ack"
            await elsewhere.refused(409, ack, receipts=receipts[:1])
            assert await elsewhere.lag("orders") == 1
            told = await elsewhere.post(ack, receipts=receipts[1:])
            assert told == {"settled": 1, "before": []}
    finally:
        subject.drop()


async def test_a_client_that_never_comes_back_loses_its_partitions_and_its_attempt(
    api: Api, monkeypatch: Any
) -> None:
    monkeypatch.setattr(consumers, "SWEEP_SECONDS", 0.01)
    await api.publish("orders", "poison", key="ann")
    await api.poll("orders", visibility_seconds=1)
    consumer = consumer_of(api)
    consumer.used_at -= 1_000
    await asyncio.sleep(0.05)
    assert len(api.site.consumers) == 1, "what it has is its own until the visibility has passed"
    await eventually(lambda: not len(api.site.consumers))
    (again,) = await api.poll("orders", consumer="another", timeout_seconds=SECONDS_MAX)
    assert again["attempt"] == 2, "or a message that kills its client would do so for ever"


async def test_a_consumer_that_is_closed_gives_back_at_no_attempt(api: Api) -> None:
    await api.publish("orders", 1)
    await api.poll("orders", strict=True)
    path = "/topics/orders/groups/billing/consumers/default"
    assert await api.delete(path) == {"changed": True}
    assert await api.delete(path) == {"changed": False}
    (again,) = await api.poll("orders")
    assert again["attempt"] == 1


async def test_strict_order_waits_for_the_settle_and_not_for_ever(api: Api) -> None:
    await api.publish("orders", 1, 2, key="ann")
    how: dict[str, Any] = {"strict": True, "visibility_seconds": 1}
    assert payloads(await api.poll("orders", **how)) == [1]
    assert await api.poll("orders", **how) == []
    (again,) = await api.poll("orders", **how, timeout_seconds=SECONDS_MAX)
    assert (again["message"]["payload"], again["attempt"]) == (1, 2)
    await api.settle("ack", "orders", again)
    assert payloads(await api.poll("orders", **how, timeout_seconds=SECONDS_MAX)) == [2]


async def test_a_consumer_keeps_the_terms_it_began_with(api: Api) -> None:
    await api.poll("orders", visibility_seconds=5)
    problem = await api.refused(409, "/topics/orders/groups/billing/poll", visibility_seconds=6)
    assert problem["type"] == "urn:rowmq:consumer-conflict"
    assert await api.poll("orders", visibility_seconds=6, consumer="another") == []


async def test_a_group_that_was_dropped_is_there_again_with_the_next_poll(api: Api) -> None:
    await api.poll("orders")
    assert await api.delete("/topics/orders/groups/billing") == {"changed": True}
    await api.refused(404, "/topics/orders/groups/billing/poll")
    await api.publish("orders", 1)
    assert payloads(await api.poll("orders")) == [1]


async def test_receipts_are_of_use_to_their_token_and_group_only(
    database: Database, broker: rowmq.RowMQ
) -> None:
    tokens = [broker.access.create_token(name, roles=["consume"]) for name in ("ann", "bob")]
    broker.publish("orders", 1)
    async with calling(database.url, tokens[0]) as ann, calling(database.url, tokens[1]) as bob:
        (delivery,) = await ann.poll("orders")
        receipts = [delivery["receipt"]]
        for who, group in ((bob, "billing"), (ann, "search")):
            await who.ask("POST", f"/topics/orders/groups/{group}/poll", {})
            path = f"/topics/orders/groups/{group}/ack"
            problem = await who.refused(409, path, receipts=receipts)
            assert problem["type"] == "urn:rowmq:stale-lease"
        forged = receipts[0].replace("t1.", "t1.9")
        await ann.refused(409, "/topics/orders/groups/billing/ack", receipts=[forged])
        await ann.refused(400, "/topics/orders/groups/billing/ack", receipts=["j1-0-0-0-0-0"])
        assert (await ann.settle("ack", "orders", delivery))["settled"] == 1


async def test_a_server_has_so_many_consumers_and_no_more(api: Api) -> None:
    api.site.consumers.most = 1
    await api.poll("orders")
    problem = await api.refused(429, "/topics/orders/groups/search/poll")
    assert problem["type"] == "urn:rowmq:too-many-consumers"
    assert await api.poll("orders") == []


# --- who shares a server --------------------------------------------------------------------------


def token_of(broker: rowmq.RowMQ, name: str, *roles: str) -> str:
    return broker.access.create_token(name, roles=roles or ["consume"])


async def test_one_token_leaves_consumers_and_waits_for_others(
    database: Database, broker: rowmq.RowMQ
) -> None:
    greedy, modest = token_of(broker, "greedy"), token_of(broker, "modest")
    async with calling(database.url, greedy) as api, visiting(api.site, token=modest) as client:
        other = Api(client, api.site)
        api.site.consumers.most = api.site.waits.most = 4
        for name in ("a", "b"):
            await api.poll("orders", name)
        problem = await api.refused(429, "/topics/orders/groups/c/poll")
        assert "4 consumers" not in problem["detail"]
        assert "2 of these are of this token" in problem["detail"]
        assert await api.poll("orders", "a") == [], "those that are there go on"
        assert await other.poll("orders", "c") == []
        claims = [
            asyncio.create_task(api.post("/queues/q/claim", timeout_seconds=SECONDS_MAX))
            for _ in range(6)
        ]
        await eventually(lambda: sum(claim.done() for claim in claims) == 4)
        claim = asyncio.create_task(other.post("/queues/q/claim", timeout_seconds=SECONDS_MAX))
        await asyncio.sleep(0.1)
        assert not claim.done()
        api.site.consumers.hush()
        await asyncio.gather(claim, *claims)
        assert not api.site.waits._of


async def test_administrators_close_consumers_of_others(
    database: Database, broker: rowmq.RowMQ
) -> None:
    path = "/topics/orders/groups/billing/tokens/ann/consumers/default"
    ann, root = token_of(broker, "ann"), token_of(broker, "root", "admin")
    broker.publish("orders", 1)
    async with calling(database.url, ann) as api, visiting(api.site, token=root) as client:
        admin = Api(client, api.site)
        await api.poll("orders")
        await api.refused(403, path, "DELETE")
        assert await admin.delete("/topics/orders/groups/billing/consumers/default") == {
            "changed": False
        }
        assert await admin.delete(path) == {"changed": True}
        assert await admin.delete(path) == {"changed": False}
        (again,) = await admin.poll("orders")
        assert again["attempt"] == 1


@pytest.mark.parametrize("is_first", [False, True], ids=["revoked", "the first token is made"])
async def test_who_waits_is_shut_out_as_others_are(
    database: Database, broker: rowmq.RowMQ, *, is_first: bool
) -> None:
    token = None if is_first else token_of(broker, "ann")
    async with calling(database.url, token, remember_tokens_seconds=0.1) as api:
        asks = [
            ("/queues/emails/claim", {"timeout_seconds": SECONDS_MAX}),
            ("/topics/orders/groups/billing/poll", {"timeout_seconds": SECONDS_MAX}),
        ]
        waits = [asyncio.create_task(api.ask("POST", path, body)) for path, body in asks]
        await eventually(lambda: api.site.waits._of.total() == 2 and len(api.site.consumers))
        began = time.monotonic()
        if is_first:
            token_of(broker, "ann")
        else:
            broker.access.revoke_token("ann")
        statuses = [(await wait).status_code for wait in waits]
        assert statuses == [401, 401]
        told = broker.access.audit(who="(loopback)" if is_first else "ann")
        assert sorted((one.action, one.ending) for one in told) == [
            ("group.poll", rowmq.Ending.REFUSED), ("job.claim", rowmq.Ending.REFUSED)
        ]  # fmt: skip
        assert time.monotonic() - began < SECONDS_MAX / 2
        broker.publish("orders", 1)
        broker.queue("emails").put(1)
        root = token_of(broker, "root", "admin")
        async with visiting(api.site, token=root) as client:
            other = Api(client, api.site)
            (delivery,) = await other.poll("orders", timeout_seconds=SECONDS_MAX)
            (job,) = (await other.post("/queues/emails/claim"))["jobs"]
            assert (delivery["attempt"], job["deliveries"]) == (1, 1)


async def test_what_is_found_for_who_was_shut_out_is_given_back(
    database: Database, broker: rowmq.RowMQ, monkeypatch: Any
) -> None:
    monkeypatch.setattr(waiting, "SLICE_SECONDS", SECONDS_MAX)
    token = token_of(broker, "ann")
    async with calling(database.url, token, remember_tokens_seconds=0) as api:
        body = {"timeout_seconds": SECONDS_MAX}
        claim = asyncio.create_task(api.ask("POST", "/queues/emails/claim", body))
        await eventually(api.site.waits._of.total)
        broker.access.revoke_token("ann")
        broker.queue("emails").put(1)
        assert (await claim).status_code == 401
        job = broker.queue("emails").try_poll()
        assert job is not None
        assert (job.attempt, job.deliveries) == (1, 1)


async def test_a_consumer_ends_with_its_token(
    database: Database, broker: rowmq.RowMQ, monkeypatch: Any
) -> None:
    monkeypatch.setattr(consumers, "SWEEP_SECONDS", 0.01)
    token = token_of(broker, "ann")
    broker.publish("orders", 1)
    async with calling(database.url, token, remember_tokens_seconds=0) as api:
        await api.poll("orders", visibility_seconds=3_600, idle_seconds=3_600)
        broker.access.revoke_token("ann")
        await eventually(lambda: not len(api.site.consumers))
        with broker.subscribe("orders", group="billing") as subscriber:
            (delivery,) = subscriber.poll(timeout=SECONDS_MAX)
            assert delivery.attempt == 1


async def test_a_site_that_was_closed_is_opened_by_who_asks_next(api: Api) -> None:
    await api.publish("orders", 1)
    await api.poll("orders")
    await api.site.close()
    (again,) = await api.poll("orders", timeout_seconds=SECONDS_MAX)
    assert again["attempt"] == 1


# --- queues ---------------------------------------------------------------------------------------


@everywhere
async def test_jobs_are_claimed_at_one_server_and_settled_at_another(api: Api, other: Api) -> None:
    put = await api.post("/queues/emails/jobs/batch", payloads=[1, 2, 3, 4])
    assert len(put["jobs"]) == 4
    claimed = (await api.post("/queues/emails/claim", max=10))["jobs"]
    assert [job["payload"] for job in claimed] == [1, 2, 3, 4]
    one, two, three, four = [job["receipt"] for job in claimed]
    queue = "/queues/emails"
    assert await other.post(f"{queue}/ack", receipts=[one]) == {"settled": 1, "before": []}
    await other.post(f"{queue}/nack", receipts=[two], delay_seconds=0, error="not now")
    await other.post(f"{queue}/reject", receipts=[three], error="never")
    await other.post(f"{queue}/extend", receipts=[four], seconds=600)
    told = await api.post(f"{queue}/ack", receipts=[one])
    assert told == {"settled": 0, "before": [one]}
    (again,) = (await other.post(f"{queue}/claim", timeout_seconds=SECONDS_MAX))["jobs"]
    assert (again["payload"], again["attempt"]) == (2, 2)
    await api.post(f"{queue}/release", receipts=[again["receipt"]])
    (again,) = (await other.post(f"{queue}/claim"))["jobs"]
    assert (again["payload"], again["attempt"]) == (2, 2), "a release is no attempt"
    await api.post(f"{queue}/ack", receipts=[again["receipt"], four])
    counts = (await api.get(queue))["counts"]
    assert (counts["completed"], counts["failed"], counts["processing"]) == (3, 1, 0)


async def test_a_job_that_was_updated_meanwhile_is_not_settled(api: Api) -> None:
    offer = {"key": "ann", "payload": 1}
    assert (await api.post("/queues/emails/offers", **offer))["outcome"] == "created"
    (job,) = (await api.post("/queues/emails/claim"))["jobs"]
    offer["payload"] = 2
    assert (await api.post("/queues/emails/offers", **offer))["outcome"] == "updated"
    problem = await api.refused(409, "/queues/emails/ack", receipts=[job["receipt"]])
    assert problem["type"] == "urn:rowmq:stale-lease"
    await api.refused(409, "/queues/others/ack", receipts=[job["receipt"]])
    (job,) = (await api.post("/queues/emails/claim"))["jobs"]
    assert job["payload"] == 2


async def test_a_claim_waits_for_a_job(api: Api) -> None:
    claim = asyncio.create_task(
        api.post("/queues/emails/claim", timeout_seconds=SECONDS_MAX, max=5)
    )
    await asyncio.sleep(0.1)
    began = time.monotonic()
    await api.post("/queues/emails/jobs", payload="hello")
    (job,) = (await claim)["jobs"]
    assert job["payload"] == "hello"
    assert time.monotonic() - began < SECONDS_MAX / 2


async def test_a_claim_that_cannot_look_for_more_gives_what_it_has(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = type((await api.site.connect()).queue("emails"))
    look = queue.try_poll_many

    async def break_off(self: Any, count: int, **how: Any) -> Any:
        if count == 4:
            raise rowmq.errors.ConnectionLost("it went away")
        return await look(self, count, **how)

    monkeypatch.setattr(queue, "try_poll_many", break_off)
    claim = asyncio.create_task(
        api.post("/queues/emails/claim", timeout_seconds=SECONDS_MAX, max=5)
    )
    await eventually(api.site.waits._of.total)
    await asyncio.sleep(0.1)
    await api.post("/queues/emails/jobs", payload="hello")
    assert [job["payload"] for job in (await claim)["jobs"]] == ["hello"]
