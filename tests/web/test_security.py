"""What strangers try: cookies, hosts, redirects, headers, large and slow bodies, many requests."""

import asyncio
import re
import time
from collections.abc import Callable, Iterator
from importlib.resources import files
from typing import Any

import pytest
from starlette.responses import Response

import rowmq
from rowmq import Ending, Role
from rowmq.errors import InvalidOption
from rowmq.web import Settings, Site, dashboard
from rowmq.web.asking import Ask
from rowmq.web.headers import CONTENT_SECURITY_POLICY
from rowmq.web.routing import Route
from rowmq.web.sessions import FLASH_COOKIE, SESSION_COOKIE
from tests.databases import Database
from tests.web.visiting import ELSEWHERE, FORM, Visitor, sent, visiting

BREAKS = "a\r\nSet-Cookie: evil=1\r\n\r\n<script>alert(1)</script>"


@pytest.fixture
def admin(broker: rowmq.RowMQ) -> str:
    return broker.access.create_token("ann", roles=["admin"])


Make = Callable[..., Site]


@pytest.fixture
async def make(database: Database) -> Any:
    """Makes sites of the test's database; with `routes`, with these beside signing in and out."""
    made: list[Site] = []

    def site_of(*routes: Route, **settings: Any) -> Site:
        own = [route for route in Site("sqlite://", Settings()).routes.all if is_kept(route)]
        site = Site(database.url, Settings(**settings), routes=[*own, *routes])
        made.append(site)
        return site

    yield site_of
    for site in made:
        await site.close()


def is_kept(route: Route) -> bool:
    return route.path in ("/login", "/logout", "/health", "/static/{file}")


def post(endpoint: Any, path: str = "/act", **rule: Any) -> Route:
    return Route("POST", path, endpoint, **{"needs": Role.ADMIN, "action": "test.act", **rule})


def get(endpoint: Any, path: str = "/look", **rule: Any) -> Route:
    return Route("GET", path, endpoint, **{"needs": Role.READ, **rule})


async def fine(_: Ask) -> Response:
    return Response("fine")


# --- every answer ---------------------------------------------------------------------------------


async def test_every_answer_forbids_what_a_page_does_not_need(make: Make, admin: str) -> None:
    async def fail(_: Ask) -> Response:
        raise ZeroDivisionError("a secret of ours")

    site = make(get(fine), get(fail, "/fail"), get(fail, "/api/v1/fail"))
    async with visiting(site, token=admin) as visitor:
        answers = {
            path: await visitor.get(path)
            for path in ("/look", "/login", "/nowhere", "/static/rowmq.css", "/static/x", "/fail",
                         "/api/v1/fail", "/api/v1/nowhere")
        }  # fmt: skip
        answers["DELETE"] = await visitor.delete("/look")
    for path, answer in answers.items():
        policy = answer.headers["content-security-policy"]
        assert policy == CONTENT_SECURITY_POLICY
        assert answer.headers["x-content-type-options"] == "nosniff", path
        assert answer.headers["x-frame-options"] == "DENY"
        is_kept = path == "/static/rowmq.css"
        assert answer.headers["cache-control"] == ("no-cache" if is_kept else "no-store"), path
    assert [answers[path].status_code for path in ("/look", "/fail", "/api/v1/fail")] == [
        200, 500, 500
    ]  # fmt: skip
    assert answers["DELETE"].status_code == 405
    assert answers["DELETE"].headers["allow"] == "GET, HEAD"
    assert not any("a secret of ours" in answer.text for answer in answers.values())
    assert "unsafe" not in CONTENT_SECURITY_POLICY
    assert "default-src 'none'" in CONTENT_SECURITY_POLICY


async def test_a_head_is_answered_without_a_body(make: Make, admin: str) -> None:
    async with visiting(make(get(fine)), token=admin) as visitor:
        answer = await visitor.head("/look")
        assert (answer.status_code, answer.content) == (200, b"")


@pytest.mark.parametrize(
    ("settings", "scheme", "host", "is_strict"),
    [
        ({"strict_transport": True}, "https", "rowmq.example.com", True),
        ({"strict_transport": True}, "http", "rowmq.example.com", False),
        ({"strict_transport": True}, "https", "localhost:8443", False),
        ({}, "https", "rowmq.example.com", False),  # the application's that it is mounted into
    ],
)
async def test_who_comes_by_tls_is_told_to_come_by_nothing_else(
    make: Make, settings: Any, scheme: str, host: str, is_strict: bool
) -> None:
    async with visiting(make(**settings), scheme=scheme, host=host) as visitor:
        for path in ("/login", "/nowhere", "/static/rowmq.css"):
            told = (await visitor.get(path)).headers.get("strict-transport-security")
            assert told == ("max-age=31536000" if is_strict else None)


async def test_what_is_wrong_with_the_schema_is_not_told_to_strangers(
    make: Make, admin: str, database: Database
) -> None:
    site = make(get(fine))
    async with visiting(site, remote=ELSEWHERE) as visitor:
        await site.connect()
        database.execute("DROP TABLE rowmq_tokens")
        for headers in ({}, {"Authorization": f"Bearer {admin}"}):
            answer = await visitor.get("/look", headers=headers)
            assert answer.status_code == 503
            assert "rowmq migrate" in answer.text
            assert "rowmq_tokens" not in answer.text


# --- sessions -------------------------------------------------------------------------------------


def cookie_of(answer: Any, name: str = SESSION_COOKIE) -> str:
    (found,) = [line for line in answer.headers.get_list("set-cookie") if line.startswith(name)]
    return str(found)


@pytest.mark.parametrize(
    ("scheme", "secure_cookies", "is_secure"),
    [("http", None, False), ("https", None, True), ("http", True, True)],
)
async def test_a_session_is_kept_from_scripts_and_from_other_sites(
    make: Make, admin: str, scheme: str, secure_cookies: Any, is_secure: bool
) -> None:
    site = make(secure_cookies=secure_cookies)
    async with visiting(site, scheme=scheme) as visitor:
        cookie = cookie_of(await visitor.sign_in(admin))
    attributes = {part.strip().lower() for part in cookie.split(";")[1:]}
    assert {"httponly", "samesite=strict", "path=/"} <= attributes
    assert ("secure" in attributes) is is_secure
    assert admin not in cookie


async def test_a_session_that_was_planted_is_not_the_one_that_begins(
    make: Make, admin: str
) -> None:
    site = make(get(fine))
    async with visiting(site) as attacker, visiting(site) as victim:
        await attacker.sign_in(admin)
        planted = attacker.cookies[SESSION_COOKIE]
        victim.cookies.set(SESSION_COOKIE, planted)
        refused = await victim.sign_in(admin)
        assert refused.status_code == 403  # a form of that session would have its CSRF token
        victim.cookies.clear()
        for token in ("x", planted.split(".")[0], "." + planted.split(".")[1], planted + "x"):
            victim.cookies.set(SESSION_COOKIE, token)
            assert (await victim.get("/look")).status_code == 303
        victim.cookies.clear()
        await victim.sign_in(admin)
        assert victim.cookies[SESSION_COOKIE] != planted


async def test_a_session_ends_by_signing_out_and_its_copy_too(make: Make, admin: str) -> None:
    site = make(get(fine))
    async with visiting(site) as visitor, visiting(site) as thief:
        await visitor.sign_in(admin)
        thief.cookies.set(SESSION_COOKIE, visitor.cookies[SESSION_COOKIE])
        assert (await thief.get("/look")).text == "fine"
        assert (await visitor.post("/logout")).status_code == 403
        csrf = site.sessions.csrf_of(site.sessions.of(as_request(visitor)))
        assert (await visitor.post("/logout", data={"csrf": csrf})).status_code == 303
        assert SESSION_COOKIE not in visitor.cookies
        assert (await thief.get("/look")).status_code == 303


def as_request(visitor: Visitor) -> Any:
    return type("Request", (), {"cookies": dict(visitor.cookies)})


async def test_a_session_ends_with_its_token_and_by_itself(
    make: Make, admin: str, broker: rowmq.RowMQ
) -> None:
    site = make(get(fine), remember_tokens_seconds=0.0)
    async with visiting(site) as visitor:
        await visitor.sign_in(admin)
        assert (await visitor.get("/look")).text == "fine"
        site.sessions.clock = lambda: time.time() + 12 * 3600 + 1
        assert (await visitor.get("/look")).status_code == 303
        site.sessions.clock = time.time
        assert (await visitor.get("/look")).text == "fine"
        broker.access.revoke_token("ann")
        assert (await visitor.get("/look")).status_code == 303


async def test_a_session_of_another_secret_or_another_token_is_none(make: Make) -> None:
    first, second = "first" * 8, "second" * 8
    sites = [
        make(get(fine), token=first, secret="s" * 32),
        make(get(fine), token=first, secret="s" * 32),
        make(get(fine), token=first, secret="t" * 32),
        make(get(fine), token=second, secret="s" * 32),
    ]
    async with visiting(sites[0]) as visitor:
        await visitor.sign_in(first)
        cookie = visitor.cookies[SESSION_COOKIE]
    statuses = []
    for site in sites:
        async with visiting(site) as visitor:
            visitor.cookies.set(SESSION_COOKIE, cookie)
            statuses.append((await visitor.get("/look")).status_code)
    assert statuses == [200, 200, 303, 303]


async def test_who_is_signed_in_by_another_site_is_not(make: Make, admin: str) -> None:
    async with visiting(make()) as visitor:
        for headers in ({"origin": "http://evil.example"}, {"sec-fetch-site": "cross-site"}):
            answer = await visitor.post("/login", data={"token": admin}, headers=headers)
            assert answer.status_code == 403
            assert SESSION_COOKIE not in visitor.cookies


async def test_a_wrong_token_signs_nobody_in_and_is_written_down(
    make: Make, admin: str, broker: rowmq.RowMQ
) -> None:
    async with visiting(make(), remote=ELSEWHERE) as visitor:
        answer = await visitor.sign_in("rowmq_wrong")
        assert (answer.status_code, dict(visitor.cookies)) == (401, {})
        assert "unknown, expired or revoked" in answer.text
        await visitor.sign_in(admin)
    right, wrong = broker.access.audit()
    assert (right.who, right.action, right.ending) == ("ann", "session.begin", Ending.DONE)
    assert (wrong.who, wrong.ending, wrong.remote) == ("(nobody)", Ending.REFUSED, ELSEWHERE)
    assert wrong.details == {"error": "bad-token"}


# --- redirects and headers ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "after",
    [
        "https://evil.example/",
        "//evil.example/",
        "/\\evil.example/",
        "\\\\evil.example",
        "/\t/evil.example/",
        "javascript:alert(1)",
        "http:evil.example",
        " //evil.example",
        BREAKS,
        "/x\r\nevil: 1",
    ],
)
async def test_signing_in_leads_to_this_site_only(make: Make, admin: str, after: str) -> None:
    site = make()
    async with visiting(site) as visitor:
        assert 'name="next" value="/"' in (await visitor.get("/login", params={"next": after})).text
        answer = await visitor.sign_in(admin, next=after)
        assert (answer.status_code, answer.headers["location"]) == (303, "/")
        assert "evil" not in answer.headers
        answer = await visitor.sign_in(admin, next="/topics/a%2Fb?x=1")
    async with visiting(site) as visitor:
        answer = await visitor.sign_in(admin, next="/topics/a%2Fb?x=1")
        assert answer.headers["location"] == "/topics/a%2Fb?x=1"


async def test_no_name_can_add_a_header_or_a_tag(make: Make, admin: str) -> None:
    async def go(ask: Ask) -> Response:
        return ask.redirect("things", ask.path["name"], flash=ask.path["name"], q=ask.path["name"])

    async def look(ask: Ask) -> Response:
        return ask.render("error.html", title=ask.path["name"], text=ask.path["name"])

    site = make(post(go, "/things/{name}/go"), get(look, "/things/{name}"))
    async with visiting(site, token=admin) as visitor:
        path = site_path("things", BREAKS)
        answer = await visitor.post(f"{path}/go")
        assert answer.status_code == 303
        assert answer.headers["location"].startswith(f"{path}?q=")
        assert "evil" not in visitor.cookies
        for name, value in answer.headers.raw:
            assert b"\n" not in name + value
        page = (await visitor.get(answer.headers["location"])).text
    assert "<script>alert" not in page
    assert page.count("&lt;script&gt;alert(1)") == 4  # the title twice, the text, what was said
    assert 'src="' in page


def site_path(*segments: str) -> str:
    site = Site("sqlite://", Settings())
    ask = Ask(site, type("Request", (), {"scope": {}}), site.routes.all[0], {})  # type: ignore[arg-type]
    return ask.url(*segments)


async def test_what_is_said_next_is_said_once_and_can_only_be_ours(make: Make, admin: str) -> None:
    async def go(ask: Ask) -> Response:
        return ask.redirect("login", flash="It is done.")

    site = make(post(go))
    async with visiting(site, token=admin) as visitor:
        await visitor.post("/act")
        assert "It is done." in (await visitor.get("/login")).text
        assert "It is done." not in (await visitor.get("/login")).text
        visitor.cookies.set(FLASH_COOKIE, "WyJvayIsImV2aWwiXQ.AAAA")
        assert "evil" not in (await visitor.get("/login")).text


@pytest.mark.parametrize(
    "path",
    [
        "/static/..%2fsite.py",
        "/static/%2e%2e/site.py",
        "/static/..%5csite.py",
        "/static/%2fetc%2fpasswd",
        "/static//etc/passwd",
        "/static/rowmq.css%00",
        "/static/rowmq.css/",
        "/static/",
    ],
)
async def test_nothing_but_assets_is_read_from_files(make: Make, path: str) -> None:
    site = make()
    statuses = {await sent(site, b"", method="GET", path=path)}
    expected = {200} if path == "/static/rowmq.css/" else {404}
    assert statuses == expected


# --- hosts ----------------------------------------------------------------------------------------


async def test_a_site_is_served_under_its_names_only(make: Make, admin: str) -> None:
    site = make(get(fine), post(fine), hosts=("rowmq.example.com",))
    for host, status in [
        ("rowmq.example.com", 200),
        ("ROWMQ.example.com:8080", 200),
        ("localhost", 200),
        ("evil.example", 421),
        ("rowmq.example.com.evil.example", 421),
    ]:
        async with visiting(site, host=host, token=admin, remote=ELSEWHERE) as visitor:
            assert (await visitor.get("/look")).status_code == status, host
    for headers in (
        [],
        [(b"host", b"rowmq.example.com"), (b"host", b"evil.example")],
        [(b"host", b"")],
        [(b"host", b"[::1")],
    ):
        assert await sent(site, b"", method="GET", path="/login", headers=headers) == 400


async def test_other_ports_of_a_host_are_others_sites(make: Make) -> None:
    site = make(hosts=("rowmq.example.com",))
    for host, origin, status in [
        ("rowmq.example.com", "http://rowmq.example.com", 401),
        ("127.0.0.1:8080", "https://rowmq.example.com", 401),  # a proxy changed the host
        ("rowmq.example.com", "http://rowmq.example.com:9999", 403),
        ("localhost:8080", "http://localhost:9999", 403),
        ("localhost:8080", "http://localhost", 403),
    ]:
        async with visiting(site, host=host) as visitor:
            guess = {"token": "rowmq_wrong"}
            answer = await visitor.post("/login", data=guess, headers={"origin": origin})
            assert answer.status_code == status, origin


# --- bodies and pace ------------------------------------------------------------------------------


async def test_a_body_must_not_be_too_large(make: Make, admin: str) -> None:
    async def read(ask: Ask) -> Response:
        return Response(str(len(await ask.body())))

    site = make(post(read), body_bytes_max=1_000)
    host, key = (b"host", b"localhost"), (b"authorization", f"Bearer {admin}".encode())

    async def status(*chunks: bytes, length: bytes | None = None) -> int:
        headers = [host, key] + ([] if length is None else [(b"content-length", length)])
        return await sent(site, *chunks, path="/act", headers=headers)

    assert await status(b"x" * 1_000) == 200
    assert await status(b"x" * 1_001) == 413
    assert await status(b"x" * 600, b"x" * 600) == 413  # it did not say how large it is
    assert await status(b"x", length=b"1001") == 413
    assert await status(b"x", length=b"9" * 5_000) == 413
    assert await status(b"x", length=b"-1") == 200
    strangers = make()
    assert await sent(strangers, b"x" * 65_537, path="/login") == 413


async def test_a_form_must_not_have_too_many_fields_nor_be_anything_else(
    make: Make,
) -> None:
    site = make()
    async with visiting(site) as visitor:
        for data, content_type, status in [
            ("&".join("a=1" for _ in range(2_001)), FORM, 400),
            ("a=%ff", FORM, 400),
            ("{}", "application/json", 415),
            ("{}", "text/plain", 415),
            ("--x", "multipart/form-data; boundary=x", 415),
        ]:
            answer = await visitor.post(
                "/login", content=data, headers={"content-type": content_type}
            )
            assert answer.status_code == status, data[:10]


async def test_a_body_must_not_be_too_slow(make: Make) -> None:
    site = make(body_seconds_max=0.05)

    async def never() -> Any:
        await asyncio.sleep(60)

    statuses = []

    async def send(message: Any) -> None:
        statuses.append(message.get("status"))

    headers = [(b"host", b"localhost"), (b"content-type", FORM.encode())]
    scope = {"type": "http", "method": "POST", "path": "/login", "headers": headers,
             "query_string": b"", "client": ("127.0.0.1", 1), "scheme": "http"}  # fmt: skip
    await site(scope, never, send)
    assert statuses[0] == 408


async def test_who_asks_too_often_waits(make: Make, admin: str) -> None:
    site = make(get(fine), burst=3, requests_per_second=0.5)
    async with visiting(site, token=admin) as visitor, visiting(site, remote=ELSEWHERE) as other:
        statuses = [(await visitor.get("/look")).status_code for _ in range(5)]
        assert statuses == [200, 200, 200, 429, 429]
        assert int((await visitor.get("/look")).headers["retry-after"]) in (1, 2)
        assert (await other.get("/login")).status_code == 200


async def test_who_guesses_tokens_is_stopped_and_nobody_else(make: Make, admin: str) -> None:
    site = make(get(fine), failures_per_minute=3, remember_tokens_seconds=0.0)
    async with visiting(site, token=admin) as visitor, visiting(site) as guesser:
        assert (await visitor.get("/look")).text == "fine"
        statuses = []
        for n in range(5):
            guess = {"Authorization": f"Bearer rowmq_{n}"}
            statuses.append((await guesser.get("/look", headers=guess)).status_code)
        assert statuses == [401, 401, 401, 429, 429]
        assert (await guesser.sign_in("rowmq_6")).status_code == 429
        assert (await visitor.get("/look")).text == "fine"  # from the same address
    async with visiting(site, remote=ELSEWHERE) as other:
        assert (await other.sign_in(admin)).status_code == 303


async def test_nobody_can_fill_the_audit_trail(make: Make, admin: str, broker: rowmq.RowMQ) -> None:
    site = make(post(fine))
    auditor = site.auditor
    for limiter in (auditor.nobodys, auditor.addresses, auditor.known):
        limiter.clock = lambda: 1_000.0
    async with visiting(site, remote=ELSEWHERE) as visitor:
        for _ in range(50):
            assert (await visitor.post("/act")).status_code == 401
        for path in ("/logout", "/login"):
            await visitor.post(path)
    assert len(broker.access.audit(who="(nobody)")) == 30
    reader = broker.access.create_token("bob")
    async with visiting(site, token=reader) as visitor:
        for _ in range(310):
            assert (await visitor.post("/act")).status_code == 403
    assert len(broker.access.audit(who="bob", limit=1_000)) == 300
    async with visiting(site, token=admin) as visitor:
        assert (await visitor.post("/act")).status_code == 200
    assert broker.access.audit(who="ann")[0].ending is Ending.DONE


# --- the audit trail ------------------------------------------------------------------------------


async def test_an_action_is_written_down_before_it_begins(
    make: Make, admin: str, broker: rowmq.RowMQ
) -> None:
    endings = []

    async def act(ask: Ask) -> Response:
        (entry,) = broker.access.audit()
        endings.append(entry.ending)
        ask.concerns("what it was")
        ask.note(count=3)
        return Response("fine")

    async def fail(_: Ask) -> Response:
        raise rowmq.errors.InvalidInput("this cannot be")

    async def crash(_: Ask) -> Response:
        raise ZeroDivisionError("a secret of ours")

    site = make(post(act, "/{name}/act"), post(fail, "/fail"), post(crash, "/crash"))
    async with visiting(site, token=admin) as visitor:
        await visitor.post("/x/act")
        assert (await visitor.post("/fail")).status_code == 400
        assert (await visitor.post("/crash")).status_code == 500
    crashed, failed, done = broker.access.audit()
    assert endings == [Ending.BEGUN]
    assert (done.ending, done.target, done.details) == (Ending.DONE, "what it was", {"count": 3})
    assert failed.ending is Ending.FAILED
    assert failed.details == {"error": "invalid-input", "detail": "this cannot be"}
    assert (crashed.ending, crashed.details) == (Ending.FAILED, {"error": "ZeroDivisionError"})


async def test_what_cannot_be_written_down_is_not_done(
    make: Make, admin: str, database: Database
) -> None:
    done = []

    async def act(_: Ask) -> Response:
        done.append(1)
        return Response("fine")

    site = make(post(act))
    async with visiting(site, token=admin) as visitor:
        assert (await visitor.post("/act")).status_code == 200
        database.execute("DROP TABLE rowmq_audit")
        assert (await visitor.post("/act")).status_code == 503
    assert done == [1]


# --- settings -------------------------------------------------------------------------------------


def nonsense() -> Iterator[dict[str, Any]]:
    yield {"token": "short"}
    yield {"secret": "short"}
    yield {"root_path": "queues"}
    yield {"root_path": "/queues/"}
    yield {"root_path": "/a\r\nb"}
    yield {"masks": ("everything",)}
    yield {"masks": "payload"}
    yield {"hosts": "example.com"}
    yield {"hosts": ("http://example.com",)}
    yield {"hosts": ("Example.com",)}
    yield {"burst": 0}
    yield {"body_bytes_max": 0}
    yield {"session_seconds": 0}


@pytest.mark.parametrize("settings", list(nonsense()), ids=str)
def test_settings_that_mean_nothing_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption):
        dashboard("sqlite://", **settings)


def test_no_template_has_a_script_or_a_style_inside() -> None:
    """The policy would refuse them; and so would it the attributes that are scripts."""
    for template in (files("rowmq.web") / "templates").iterdir():
        text = template.read_text(encoding="utf-8")
        for pattern in (r"<script(?! src=)", r"<style", r"\sstyle=", r"\son[a-z]+=", "javascript:"):
            assert not re.search(pattern, text), (template.name, pattern)
        # What is not escaped is made by functions of ours, which templates do not call for that.
        assert "|safe" not in text.replace(" ", "")
        assert "autoescape" not in text
