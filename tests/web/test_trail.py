"""The audit trail: what it says of actions that were cut off, refused, left out, or named oddly."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlencode

import pytest

import rowmq
from rowmq import AuditEntry, Ending
from rowmq.web import Site, dashboard
from rowmq.web.sessions import SESSION_COOKIE
from tests.databases import Database
from tests.web.calling import API
from tests.web.visiting import ELSEWHERE, FORM, Visitor, visiting

REMOTES = [f"203.0.113.{n}" for n in range(20)]


@pytest.fixture
async def site(database: Database) -> AsyncIterator[Site]:
    found = dashboard(database.url)
    yield found
    await found.close()


@pytest.fixture
def admin(broker: rowmq.RowMQ) -> str:
    return broker.access.create_token("ann", roles=["admin"])


def trail(broker: rowmq.RowMQ, **chosen: Any) -> list[AuditEntry]:
    return broker.access.audit(limit=1_000, **chosen)


# --- what was refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PUT", f"{API}/schedules/theirs"),
        ("DELETE", f"{API}/schedules/theirs"),
        ("POST", f"{API}/schedules/theirs/pause"),
        ("POST", f"{API}/schedules/theirs/run"),
        ("POST", "/schedules/theirs/pause"),
    ],
)
async def test_a_schedule_out_of_scope_is_not_there_and_the_trail_says_that_it_was_refused(
    site: Site, broker: rowmq.RowMQ, method: str, path: str
) -> None:
    broker.cron.install_periodic("theirs", 60, queue="theirs", tend=False)
    token = broker.access.create_token("bob", roles=["admin"], topics=[], queues=["mine"])
    body = {"json": {"queue": "mine", "period_seconds": 60}} if method == "PUT" else {}
    if path.startswith("/schedules"):
        body = {"data": {"a": "1"}}
    async with visiting(site, token=token) as visitor:
        hidden = await visitor.request(method, path, **body)  # type: ignore[arg-type]
        if method != "PUT":
            missing = await visitor.request(method, path.replace("theirs", "none!!"), **body)  # type: ignore[arg-type]
            assert hidden.text.replace("theirs", "none!!") == missing.text
    assert hidden.status_code == 404
    entry = trail(broker)[-1]
    assert (entry.target, entry.ending) == ("theirs", Ending.REFUSED)
    assert entry.details["error"] == "out-of-scope"
    assert [info.queue for info in broker.cron.list()] == ["theirs"]


# --- what was cut off -----------------------------------------------------------------------------


async def cut_off(site: Site, visitor: Visitor, method: str, path: str, **more: Any) -> None:
    """Do something with a process that dies before it can say how that ended."""

    async def never(*_: Any, **__: Any) -> None:
        raise asyncio.CancelledError

    (await site.connect()).access.conclude = never  # type: ignore[method-assign]
    with pytest.raises(asyncio.CancelledError):
        await visitor.request(method, path, **more)


async def test_what_was_cut_off_says_what_it_was(
    site: Site, admin: str, broker: rowmq.RowMQ
) -> None:
    form = {"name": "backdoor", "roles": ["admin", "read"], "topics": "*", "expires_in": ""}
    async with visiting(site, token=admin) as visitor:
        await cut_off(site, visitor, "POST", "/tokens", data=form)
    (entry,) = trail(broker)
    assert (entry.action, entry.ending) == ("token.create", Ending.BEGUN)
    assert entry.details == {"name": "backdoor", "roles": ["admin", "read"], "topics": "*"}


async def test_what_was_asked_for_is_kept_when_it_is_done(
    site: Site, admin: str, broker: rowmq.RowMQ
) -> None:
    asked = {"queue": "q", "cron": "0 3 * * *", "tz": "Europe/Berlin"}
    broker.queue("q").put("x")
    broker.publish("orders", 1)
    broker.create_group("orders", "g")
    seek = "/topics/orders/groups/g/seek"
    async with visiting(site, token=admin) as visitor:
        assert (await visitor.put(f"{API}/schedules/nightly", json=asked)).status_code == 200
        for path, form in (
            ("/queues/q/prune", {"state": "completed", "older_than": "7d"}),
            (seek, {"to": "earliest"}),
        ):
            assert (await visitor.post(path, data=form)).status_code == 303
        assert (await visitor.post(f"{API}{seek}", json={"to": "latest"})).status_code == 200
    found = trail(broker)
    assert {entry.ending for entry in found} == {Ending.DONE}
    api, page, prune, put = (entry.details for entry in found)
    assert put.items() >= asked.items()
    assert prune == {"state": "completed", "older_than": "7d", "pruned": 0}
    assert page == {"to": "earliest", "moved": 1}
    assert api == {"to": "latest", "key": None, "moved": 1}


async def test_neither_payloads_nor_secrets_are_told_beforehand(
    site: Site, admin: str, broker: rowmq.RowMQ
) -> None:
    broker.publish("orders", 1)
    told = {"group": "billing", "id": "order-1", "key": "ann"}
    asked = {**told, "payload": {"card": "SECRET"}, "headers": {"x": "SECRET"}, "token": "SECRET"}
    async with visiting(site, token=admin) as visitor:
        await cut_off(site, visitor, "POST", f"{API}/topics/orders/redrive/edited", json=asked)
        await cut_off(
            site, visitor, "POST", "/queues/mails/put", data={"payload": "SECRET", "key": "ann"}
        )
    put, edited = trail(broker)
    assert (edited.target, edited.details) == ("orders", told)
    assert (put.target, put.details) == ("mails", {"key": "ann"})


async def test_what_is_told_beforehand_is_not_more_than_there_is_room_for(
    site: Site, admin: str, broker: rowmq.RowMQ
) -> None:
    asked = {"ids": list(range(1_000)), "error": "x", "at": "x" * 5_000}
    many = [("roles", f"role {n}" + "x" * 300) for n in range(1_000)]
    async with visiting(site, token=admin) as visitor:
        await visitor.post(f"{API}/queues/mails/reschedule", json=asked)
        form = {"content-type": FORM}
        await visitor.post("/tokens", content=urlencode(many), headers=form)
        for body in ("[1]", "{", "\xff"):
            sent = {"content": body, "headers": {"content-type": "application/json"}}
            assert (await visitor.post(f"{API}/queues/mails/retry", **sent)).status_code >= 400  # type: ignore[arg-type]
    *_, tokens, jobs = trail(broker)
    assert jobs.details["ids"] == [*range(20), "…"]
    assert len(jobs.details["at"]) == 201
    assert len(str(tokens.details)) < 10_000


# --- what was refused -----------------------------------------------------------------------------


async def test_what_an_endpoint_refuses_is_refused_in_the_trail(
    site: Site, broker: rowmq.RowMQ
) -> None:
    token = broker.access.create_token("bob", roles=["admin"], queues=["mine"])
    async with visiting(site, token=token) as visitor:
        asked = {"queue": "theirs", "period_seconds": 60}
        assert (await visitor.put(f"{API}/schedules/x", json=asked)).status_code == 403
    (entry,) = trail(broker)
    assert (entry.ending, entry.details["error"]) == (Ending.REFUSED, "out-of-scope")


async def test_a_session_that_cannot_be_written_down_does_not_begin(
    site: Site, admin: str, database: Database
) -> None:
    async with visiting(site) as visitor:
        await visitor.get("/login")
        database.execute("ALTER TABLE rowmq_audit RENAME TO gone")
        assert (await visitor.sign_in(admin)).status_code == 503
        assert SESSION_COOKIE not in visitor.cookies
        database.execute("ALTER TABLE gone RENAME TO rowmq_audit")
        assert (await visitor.sign_in(admin)).status_code == 303


# --- what is left out -----------------------------------------------------------------------------


async def test_who_signs_out_without_a_session_leaves_no_trace(
    site: Site, admin: str, broker: rowmq.RowMQ
) -> None:
    async with visiting(site, remote=ELSEWHERE) as visitor:
        for _ in range(50):
            assert (await visitor.post("/logout")).status_code == 303
        assert (await visitor.sign_in("rowmq_wrong")).status_code == 401
        await visitor.sign_in(admin)
        cookie, csrf = visitor.cookies[SESSION_COOKIE], await visitor.csrf("/tokens")
        for _ in range(3):  # it is over after the first
            visitor.cookies.set(SESSION_COOKIE, cookie)
            await visitor.post("/logout", data={"csrf": csrf})
            visitor.cookies.clear()
    assert [(one.who, one.action) for one in trail(broker)] == [
        ("ann", "session.end"), ("ann", "session.begin"), ("(nobody)", "session.begin")
    ]  # fmt: skip


async def test_one_address_cannot_keep_others_out_of_the_trail(
    site: Site, admin: str, broker: rowmq.RowMQ
) -> None:
    auditor = site.auditor
    for limiter in (auditor.nobodys, auditor.addresses, auditor.known):
        limiter.clock = lambda: 1_000.0
    for remote in REMOTES:
        async with visiting(site, remote=remote) as visitor:
            for _ in range(40 if remote == REMOTES[0] else 1):
                assert (await visitor.post("/tokens")).status_code == 401
    found = [one.remote for one in trail(broker, who="(nobody)")]
    assert (found.count(REMOTES[0]), set(found)) == (30, set(REMOTES))
    async with visiting(site, token=admin) as visitor:
        assert "audit.left_out" in (await visitor.get("/audit")).text
    (told,) = trail(broker, action="audit.left_out")
    assert (told.who, told.details) == ("(site)", {"rows": 10, "of": {"(nobody)": 10}})


async def test_strangers_do_not_fill_the_trail_in_the_long_run(
    site: Site, admin: str, broker: rowmq.RowMQ
) -> None:
    auditor, now = site.auditor, 1_000.0
    for limiter in (auditor.nobodys, auditor.addresses, auditor.known):
        limiter.clock = lambda: now
    hours = 3
    async with visiting(site, remote=ELSEWHERE) as visitor:
        for _ in range(hours):
            for _ in range(40):
                assert (await visitor.post("/tokens")).status_code == 401
            now += 600
    assert len(trail(broker, who="(nobody)")) == 30 + (hours - 1) * 20
    assert admin


async def test_what_was_left_out_is_told_when_a_site_is_closed(
    site: Site, admin: str, broker: rowmq.RowMQ
) -> None:
    async with visiting(site, remote=ELSEWHERE) as visitor:
        for _ in range(40):
            await visitor.post("/tokens")
    await site.close()
    rows = sum(one.details["rows"] for one in trail(broker, action="audit.left_out"))
    assert rows + len(trail(broker, who="(nobody)")) == 40
    assert admin


# --- what it was done to --------------------------------------------------------------------------


async def test_no_two_things_are_called_the_same(
    site: Site, admin: str, broker: rowmq.RowMQ
) -> None:
    pairs = [("a / b", "c"), ("a", "b / c"), ("a", '"b'), ("a", "b "), ("a", "b"), ("a/b", "c")]
    async with visiting(site, token=admin) as visitor:
        for topic, group in pairs:
            made = await visitor.post(f"/topics/{quoted(topic)}/groups", data={"group": group})
            assert made.status_code == 303
            path = f"{API}/topics/{quoted(topic)}/groups/{quoted(group)}"
            assert (await visitor.put(path, json={})).status_code == 200
    found = [one.target for one in reversed(trail(broker))]
    assert found[::2] == found[1::2] == [
        '"a / b" / c', 'a / "b / c"', 'a / "\\"b"', 'a / "b "', "a / b", '"a/b" / c'
    ]  # fmt: skip


def quoted(name: str) -> str:
    return name.replace("/", "%2F").replace(" ", "%20").replace('"', "%22")
