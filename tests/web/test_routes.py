"""Every route, asked by whoever may not: nobody, a stranger, the wrong role, the wrong scope.

Endpoints are taken away and replaced by one that notes that it was reached. So what is tested here
is the rule of each route, and that there is no way around it; a route that is added is in all of
these tests, and fails them until it has a rule that can be told from here.
"""

import pkgutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import httpx
import pytest
from starlette.responses import Response

import rowmq
from rowmq import Ending, Role
from rowmq.web import Settings, Site
from rowmq.web import api as api_package
from rowmq.web import pages as pages_package
from rowmq.web.asking import Ask
from rowmq.web.routing import PARAM, Route
from rowmq.web.site import API_MODULES, PAGES
from tests.databases import Database
from tests.web.visiting import ELSEWHERE, FORM, Visitor, visiting

ROUTES = Site("sqlite://", Settings()).routes.all
GUARDED = [route for route in ROUTES if route.needs is not None]
WRITING = [route for route in GUARDED if route.writes]

PUBLIC = {
    "GET /health",
    "GET /login",
    "POST /login",
    "POST /logout",
    "GET /static/{file}",
    "GET /api/v1/openapi.json",
}
"""What anybody may ask for: nothing of the database is in it."""

UNSCOPED = {
    "GET /",
    "GET /jobs",
    "GET /letters",
    "GET /queues",
    "GET /schedules",
    "GET /schedules/{schedule}",
    "GET /spark",
    "GET /topics",
    "GET /workers",
    "GET /workers/{worker}",
    "POST /schedules/{schedule}/pause",
    "POST /schedules/{schedule}/remove",
    "POST /schedules/{schedule}/resume",
    "POST /schedules/{schedule}/run",
    "GET /api/v1/queues",
    "GET /api/v1/schedules",
    "GET /api/v1/schedules/{schedule}",
    "PUT /api/v1/schedules/{schedule}",
    "DELETE /api/v1/schedules/{schedule}",
    "POST /api/v1/schedules/{schedule}/pause",
    "POST /api/v1/schedules/{schedule}/resume",
    "POST /api/v1/schedules/{schedule}/run",
    "GET /api/v1/topics",
    "GET /api/v1/workers",
}
"""What is about topics or queues that do not stand in the path: endpoints leave out what the caller
does not see, which `test_scopes` looks at, with the real ones.
"""

Reached = list[str]


def called(route: Route) -> str:
    return f"{route.method} {route.path}"


def path_of(route: Route) -> str:
    """A path of a route, with the names that scopes are tested by."""
    return PARAM.sub(lambda match: f"some-{match[1]}", route.path)


class Spied(NamedTuple):
    """The site, with endpoints that only note that they were reached."""

    site: Site
    reached: Reached


@asynccontextmanager
async def spied(url: str, **settings: Any) -> AsyncIterator[Spied]:
    reached: Reached = []

    def spy(route: Route) -> Callable[[Ask], Any]:
        async def endpoint(_: Ask) -> Response:
            reached.append(called(route))
            return Response("reached")

        return endpoint

    kept = ("/login", "/logout")
    routes = [
        route
        if route.path in kept
        else Route(
            route.method,
            route.path,
            spy(route),
            needs=route.needs,
            topic=route.topic,
            queue=route.queue,
            action=route.action,
            everywhere=route.everywhere,
            audited=route.audited,
            may_be_new=True,  # so that nothing has to be there: see test_existing
        )
        for route in ROUTES
    ]
    limits: dict[str, Any] = {
        "failures_per_minute": 100_000,
        "requests_per_second": 1e6,
        "burst": 1_000_000,
    }
    site = Site(url, Settings(**limits, **settings), routes=routes)
    try:
        yield Spied(site, reached)
    finally:
        await site.close()


@pytest.fixture
def secret(broker: rowmq.RowMQ) -> Callable[..., str]:
    """Makes a token."""
    numbers = iter(range(10_000))
    return lambda **rights: broker.access.create_token(f"t{next(numbers)}", **rights)


async def ask(visitor: Visitor, route: Route, **more: Any) -> httpx.Response:
    return await visitor.request(route.method, path_of(route), **more)


Expected = Callable[[Route, httpx.Response], bool]


async def refuses(
    visitor: Visitor, routes: list[Route], expected: Expected, **more: Any
) -> list[str]:
    """The routes that answer otherwise than they should."""
    wrong = []
    for route in routes:
        answer = await ask(visitor, route, **more)
        if not expected(route, answer):
            wrong.append(f"{called(route)}: {answer.status_code} {answer.text[:200]}")
    return wrong


def is_problem(route: Route, answer: httpx.Response, status: int, kind: str) -> bool:
    """Whether it is refused, for that reason, in the manner of its kind."""
    if answer.status_code != status:
        return False
    if not route.is_for_programs:
        return answer.headers["content-type"].startswith("text/html")
    told = answer.json()
    is_whole = {"title", "status", "detail"} <= told.keys()
    right_type = answer.headers["content-type"] == "application/problem+json"
    return is_whole and right_type and told["type"] == f"urn:rowmq:{kind}"


def refused_with(status: int, kind: str) -> Expected:
    return lambda route, answer: is_problem(route, answer, status, kind)


# --- rules ----------------------------------------------------------------------------------------


def test_every_module_that_has_routes_is_in_the_lists() -> None:
    for package, listed in ((pages_package, PAGES), (api_package, API_MODULES)):
        there = {info.name for info in pkgutil.iter_modules(package.__path__)}
        named = {module.__name__.rpartition(".")[2] for module in listed}
        assert named <= there
        assert len(named) == len(listed)
        for name in there - named:
            module = __import__(f"{package.__name__}.{name}", fromlist=["x"])
            assert not hasattr(module, "ROUTES"), f"{name} has routes that no site has"


def test_what_anybody_may_ask_for_is_no_more_than_this() -> None:
    assert {called(route) for route in ROUTES if route.needs is None} == PUBLIC


def test_every_other_route_says_whom_it_is_for() -> None:
    bare = {
        called(route)
        for route in GUARDED
        if not route.everywhere and route.topic is None and route.queue is None
    }
    assert bare == UNSCOPED


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        ({"method": "POST"}, "names no action"),
        ({"path": "/topics/{topic}"}, "must be in scope"),
        ({"path": "/queues/{queue}"}, "must be in scope"),
        ({"path": "/topics/{name}", "topic": "topic"}, "no parameter 'topic'"),
        ({"method": "TRACE"}, "no such method"),
        ({"path": "/{a}/{a}"}, "two parameters"),
    ],
)
def test_a_route_without_a_whole_rule_cannot_be_made(rule: dict[str, Any], why: str) -> None:
    async def endpoint(_: Ask) -> Response:
        raise AssertionError

    given: dict[str, Any] = {"method": "GET", "path": "/x", "needs": Role.READ, **rule}
    with pytest.raises(ValueError, match=why):
        Route(given.pop("method"), given.pop("path"), endpoint, **given)
    with pytest.raises(TypeError, match="needs"):
        Route("GET", "/x", endpoint)  # type: ignore[call-arg]


def test_pages_and_the_api_call_the_same_action_the_same_and_ask_for_the_same_role() -> None:
    """Whoever looks through the trail for an action finds it by one name, wherever it was done."""
    of_api = {route.action for route in ROUTES if route.is_api and route.writes}
    of_pages = {route.action for route in ROUTES if not route.is_api and route.writes}
    assert of_pages - of_api == {"session.begin", "session.end", "token.create", "token.revoke"}
    roles: dict[str | None, set[Role | None]] = {}
    for route in ROUTES:
        if route.writes:
            roles.setdefault(route.action, set()).add(route.needs)
    assert {action: needs for action, needs in roles.items() if len(needs) > 1} == {}


# --- nobody gets in who may not -------------------------------------------------------------------


async def test_without_a_token_nothing_is_answered(database: Database, secret: Any) -> None:
    secret(roles=["admin"])

    def expected(route: Route, answer: httpx.Response) -> bool:
        if route.method == "GET" and not route.is_for_programs:
            return answer.status_code == 303 and "/login?next=" in answer.headers["location"]
        wants = answer.headers.get("www-authenticate", "").startswith("Bearer")
        return wants and is_problem(route, answer, 401, "token-missing")

    async with spied(database.url) as (site, reached):
        for remote in ("127.0.0.1", ELSEWHERE):
            async with visiting(site, remote=remote) as visitor:
                assert await refuses(visitor, GUARDED, expected) == []
    assert reached == []


@pytest.mark.parametrize("wrong", ["unknown", "revoked", "expired", "hash"])
async def test_with_a_wrong_token_nothing_is_answered(
    database: Database, broker: rowmq.RowMQ, secret: Any, wrong: str
) -> None:
    right = secret(roles=["admin"])
    token = "rowmq_" + "x" * 43
    if wrong == "revoked":
        token = broker.access.create_token("gone", roles=["admin"])
        broker.access.revoke_token("gone")
    elif wrong == "expired":
        token = broker.access.create_token("late", roles=["admin"], expires_in=100)
        database.execute("UPDATE rowmq_tokens SET expires_at = 1 WHERE name = 'late'")
    elif wrong == "hash":  # who reads the database cannot get in by it
        ((token,),) = database.execute("SELECT secret_hash FROM rowmq_tokens")
        assert right not in token
    async with spied(database.url) as (site, reached), visiting(site, token=token) as visitor:
        assert await refuses(visitor, GUARDED, refused_with(401, "bad-token")) == []
    assert reached == []


async def test_with_the_wrong_role_nothing_is_answered(database: Database, secret: Any) -> None:
    async with spied(database.url) as (site, reached):
        for role in Role:
            others = [other for other in Role if other not in (role, Role.ADMIN)]
            routes = [route for route in GUARDED if route.needs is role]
            async with visiting(site, token=secret(roles=others)) as visitor:
                assert await refuses(visitor, routes, refused_with(403, "role-missing")) == []
    assert reached == []


async def test_with_the_wrong_scope_nothing_is_answered(database: Database, secret: Any) -> None:
    all_roles = {"roles": ["admin", "read"]}
    narrow = {
        "topic": {"topics": ["another", "some-topics*"], "queues": ["*"]},
        "queue": {"topics": ["*"], "queues": ["another", "some-queues*"]},
    }
    everywhere = [{"topics": ["*"], "queues": ["some*"]}, {"topics": [], "queues": ["*"]}]
    expected = refused_with(403, "out-of-scope")
    async with spied(database.url) as (site, reached):
        for what, scopes in narrow.items():
            routes = [route for route in GUARDED if getattr(route, what)]
            assert routes
            async with visiting(site, token=secret(**all_roles, **scopes)) as visitor:
                assert await refuses(visitor, routes, expected) == []
        for scopes in everywhere:
            routes = [route for route in GUARDED if route.everywhere]
            assert routes
            async with visiting(site, token=secret(**all_roles, **scopes)) as visitor:
                assert await refuses(visitor, routes, expected) == []
    assert reached == []


async def test_with_the_right_token_everything_is_answered(database: Database, secret: Any) -> None:
    """Else the tests above could not fail."""
    async with spied(database.url) as (site, reached):
        for role in Role:
            routes = [route for route in GUARDED if route.needs is role]
            scopes = {"topics": ["some-topic"], "queues": ["some-*"]}
            for everywhere in (False, True):
                chosen = [route for route in routes if route.everywhere is everywhere]
                token = secret(roles=[role], **({} if everywhere else scopes))
                async with visiting(site, token=token) as visitor:
                    for route in chosen:
                        assert (await ask(visitor, route)).text == "reached", called(route)
    assert sorted(reached) == sorted(map(called, GUARDED))


# --- sessions -------------------------------------------------------------------------------------


async def test_a_form_without_its_csrf_token_is_refused(database: Database, secret: Any) -> None:
    token = secret(roles=["admin"])
    forms = [route for route in WRITING if not route.is_api]
    assert forms
    refused = refused_with(403, "cross-site")
    wrong: list[dict[str, Any]] = [
        {},
        {"data": {"csrf": ""}},
        {"data": {"csrf": "x" * 43}},
        {"headers": {"x-csrf-token": "x"}},
        {"data": {"other": "1"}, "headers": {"content-type": FORM}},
    ]
    async with spied(database.url) as (site, reached), visiting(site) as visitor:
        assert (await visitor.sign_in(token)).status_code == 303
        reached.clear()
        for more in wrong:
            assert await refuses(visitor, forms, refused, **more) == []
        csrf = site.sessions.csrf_of(site.sessions.of(request_with(visitor.cookies)))
        for headers in (
            {"origin": "http://evil.example"},
            {"origin": "null"},
            {"origin": "http://localhost.evil.example"},
            {"sec-fetch-site": "cross-site"},
            {"sec-fetch-site": "same-site"},
        ):
            more = {"data": {"csrf": csrf}, "headers": headers}
            assert await refuses(visitor, forms, refused, **more) == []
        assert reached == []
        for headers in ({"origin": "http://localhost"}, {"sec-fetch-site": "same-origin"}, {}):
            for route in forms:
                answer = await ask(visitor, route, data={"csrf": csrf}, headers=headers)
                assert answer.text == "reached", called(route)


def request_with(cookies: httpx.Cookies) -> Any:
    class Cookies:
        pass

    found = Cookies()
    found.cookies = dict(cookies)  # type: ignore[attr-defined]
    return found


async def test_a_session_is_no_way_to_write_by_the_api(database: Database, secret: Any) -> None:
    """No form has its CSRF token: who writes there sends a token."""
    token = secret(roles=["admin"])
    routes = [route for route in WRITING if route.is_api]
    async with spied(database.url) as (site, reached), visiting(site) as visitor:
        await visitor.sign_in(token)
        assert await refuses(visitor, routes, refused_with(401, "token-missing")) == []
        assert reached == []


# --- without any token ----------------------------------------------------------------------------


FORWARDED = ("", "-for", "-host", "-proto", "-port", "-server", "-prefix")
OF_PROXIES = [
    *(f"x-forwarded{what}" for what in FORWARDED),
    *("forwarded", "via", "cdn-loop", "x-real-ip", "x-real-port"),
    *("x-client-ip", "x-cluster-client-ip", "true-client-ip", "fly-client-ip"),
    *("cf-connecting-ip", "cf-ray", "x-original-host", "x-original-forwarded-for"),
    *("x-envoy-external-address", "x-envoy-internal"),
]
"""What proxies of many makes say of themselves."""


async def test_without_any_token_only_this_machine_is_served(database: Database) -> None:
    closed = refused_with(403, "closed")
    proxied = [{name: "1.2.3.4"} for name in OF_PROXIES]
    async with spied(database.url) as (site, reached):
        strangers: list[dict[str, Any]] = [
            {"remote": ELSEWHERE},
            {"remote": ELSEWHERE, "headers": {"x-forwarded-for": "127.0.0.1"}},
            {"host": "evil.example"},  # a name that leads here: DNS rebinding
            {"host": "127.0.0.1.evil.example"},
            *({"headers": headers} for headers in proxied),
        ]
        for stranger in strangers:
            async with visiting(site, **stranger) as visitor:
                assert await refuses(visitor, GUARDED, closed) == [], stranger
                assert "rowmq tokens create" in (await visitor.get("/")).text
        assert reached == []
        for here in ("localhost", "127.0.0.1:8080", "[::1]:8080"):
            async with visiting(site, host=here) as visitor:
                assert (await visitor.get("/")).text == "reached"


@pytest.mark.parametrize("settings", [{"hosts": ("rowmq.example.com",)}, {"proxied": True}])
async def test_without_any_token_nobody_is_served_through_a_proxy_that_says_nothing(
    database: Database, settings: dict[str, Any]
) -> None:
    """What is set about names and proxies tells that there is one."""
    closed = refused_with(403, "closed")
    hosts = ["localhost"] if "proxied" in settings else settings["hosts"]
    async with spied(database.url, **settings) as (site, reached):
        for host in hosts:
            async with visiting(site, host=host) as visitor:
                assert await refuses(visitor, GUARDED, closed) == [], host
        assert reached == []


async def test_pages_of_other_sites_have_nothing_asked_for(database: Database, secret: Any) -> None:
    """Be it only to keep it at work: what is answered they cannot read. A link leads here."""
    looking = [route for route in GUARDED if not route.writes]
    refused = refused_with(403, "cross-site")
    foreign = [
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors", "sec-fetch-dest": "image"},
        {"sec-fetch-site": "same-site", "sec-fetch-mode": "cors", "sec-fetch-dest": "empty"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"},
        {"sec-fetch-site": "cross-site"},
    ]
    link = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    own = {"sec-fetch-site": "same-origin", "sec-fetch-mode": "cors"}
    async with spied(database.url) as (site, reached), visiting(site) as visitor:
        token = ""
        for signs_in in (False, True):
            if signs_in:
                token = secret(roles=["admin"])
                site.keys.forget()
                await visitor.sign_in(token)
            for headers in foreign:
                assert await refuses(visitor, looking, refused, headers=headers) == []
            assert reached == []
            for headers in (link, own, {"sec-fetch-site": "none"}):
                assert (await visitor.get("/jobs", headers=headers)).text == "reached"
            reached.clear()
        by_token = foreign[0] | {"Authorization": f"Bearer {token}"}
        assert (await visitor.get("/jobs", headers=by_token)).text == "reached"


async def test_on_this_machine_forms_need_their_csrf_token_too(database: Database) -> None:
    """Other pages in the browser of whoever sits here could send them."""
    forms = [route for route in WRITING if not route.is_api]
    async with spied(database.url) as (site, reached), visiting(site) as visitor:
        assert await refuses(visitor, forms, refused_with(403, "cross-site")) == []
        api = [route for route in WRITING if route.is_api]
        foreign = {"headers": {"origin": "http://evil.example"}}
        assert await refuses(visitor, api, refused_with(403, "cross-site"), **foreign) == []
        assert reached == []
        csrf = site.sessions.csrf_of(None)
        for route in forms:
            assert (await ask(visitor, route, data={"csrf": csrf})).text == "reached"


# --- read-only, and the trail ---------------------------------------------------------------------


async def test_a_read_only_site_lets_nobody_write(database: Database, secret: Any) -> None:
    token = secret(roles=["admin"])
    async with (
        spied(database.url, read_only=True) as (site, reached),
        visiting(site, token=token) as visitor,
    ):
        assert await refuses(visitor, WRITING, refused_with(403, "read-only")) == []
        assert reached == []
        for route in GUARDED:
            if not route.writes:
                assert (await ask(visitor, route)).text == "reached"


async def test_every_action_is_in_the_audit_trail_done_or_refused(
    database: Database, broker: rowmq.RowMQ
) -> None:
    admin = broker.access.create_token("ann", roles=["admin"])
    reader = broker.access.create_token("bob", roles=["read"], topics=["none"], queues=["none"])
    async with spied(database.url, audit_messages=True) as (site, _):
        for token in (admin, reader):
            async with visiting(site, token=token, remote=ELSEWHERE) as visitor:
                for route in WRITING:
                    await ask(visitor, route)
    found = {name: written(broker, name) for name in ("ann", "bob")}
    wanted = sorted((route.action, target_of(route)) for route in WRITING)
    assert sorted((entry.action, entry.target) for entry in found["ann"]) == wanted
    assert {entry.ending for entry in found["ann"]} == {Ending.DONE}
    assert {entry.remote for entry in found["ann"]} == {ELSEWHERE}
    assert sorted((entry.action, entry.target) for entry in found["bob"]) == wanted
    assert {entry.ending for entry in found["bob"]} == {Ending.REFUSED}
    assert all(entry.details["error"] == "role-missing" for entry in found["bob"])


def written(broker: rowmq.RowMQ, who: str) -> list[rowmq.AuditEntry]:
    return broker.access.audit(who=who, limit=1_000)


def target_of(route: Route) -> str:
    return " / ".join(f"some-{param}" for param in route.params)
