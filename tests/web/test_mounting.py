"""Mounted into another application, under a prefix of any kind; and behind a proxy with one."""

import importlib
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Mount

import rowmq.web
from rowmq import Role
from rowmq.errors import ConfigurationError, MissingExtra
from rowmq.web import Settings, Site, dashboard
from rowmq.web.asking import Ask
from rowmq.web.routing import Route, quote
from rowmq.web.sessions import SESSION_COOKIE
from tests.databases import Database
from tests.web.visiting import ELSEWHERE, visiting

NAME = "a/b ?%2F&é"


async def look(ask: Ask) -> Response:
    return ask.json_response({"url": ask.url("things", ask.path["name"]), "name": ask.path["name"]})


LOOK = Route("GET", "/things/{name}", look, needs=Role.READ)


def in_fastapi(prefix: str, site: Site) -> Any:
    app = FastAPI()
    app.mount(prefix, site)
    return app


def in_starlette(prefix: str, site: Site) -> Any:
    return Starlette(routes=[Mount(prefix, app=site)])


def in_both(prefix: str, site: Site) -> Any:
    inner = Starlette(routes=[Mount("/inner", app=site)])
    return Starlette(routes=[Mount(prefix, app=inner)])


@pytest.mark.parametrize(
    ("mounted", "prefix", "root"),
    [
        (in_fastapi, "/queues", "/queues"),
        (in_starlette, "/a/b-c", "/a/b-c"),
        (in_starlette, "/static", "/static"),
        (in_both, "/outer", "/outer/inner"),
        (lambda _, site: site, "", ""),
    ],
)
async def test_all_paths_are_below_the_prefix(
    database: Database, broker: rowmq.RowMQ, mounted: Callable[..., Any], prefix: str, root: str
) -> None:
    token = broker.access.create_token("ann", roles=["admin"])
    kept = [route for route in Site("sqlite://", Settings()).routes.all if not route.needs]
    site = Site(database.url, Settings(), routes=[*kept, LOOK])
    async with visiting(mounted(prefix, site)) as visitor:
        page = (await visitor.get(f"{root}/login")).text
        assert f'action="{root}/login"' in page
        assert f'href="{root}/static/rowmq.css?v=' in page
        assert (await visitor.get(f"{root}/static/rowmq.css")).status_code == 200
        away = await visitor.get(f"{root}/things/x")
        assert (
            away.headers["location"] == f"{root}/login?next={root.replace('/', '%2F')}%2Fthings%2Fx"
        )
        signed = await visitor.post(
            f"{root}/login", data={"token": token, "next": f"{root}/things/x"}
        )
        assert signed.headers["location"] == f"{root}/things/x"
        assert f"Path={root or '/'};" in signed.headers["set-cookie"] + ";"
        outside = await visitor.post(f"{root}/login", data={"token": token, "next": "/elsewhere"})
        if root:
            assert outside.status_code == 403 or outside.headers["location"] == f"{root}/"
        seen = (await visitor.get(site_url(root, NAME))).json()
        assert seen == {"url": site_url(root, NAME), "name": NAME}
        nowhere = await visitor.get(f"{root}/api/v1/nowhere")
        assert nowhere.headers["content-type"] == "application/problem+json"
    await site.close()


def site_url(root: str, name: str) -> str:
    return f"{root}/things/{quote(name)}"


async def test_a_proxy_may_pass_on_no_other_paths(database: Database, broker: rowmq.RowMQ) -> None:
    token = broker.access.create_token("ann", roles=["admin"])
    site = dashboard(database.url, root_path="/ops/queues")
    async with visiting(site, remote=ELSEWHERE) as visitor:
        assert 'action="/ops/queues/login"' in (await visitor.get("/ops/queues/login")).text
        assert (await visitor.get("/ops/queues/queues")).status_code == 303
        for path in ("/login", "/ops/queues-login", "/ops/queues/../login"):
            assert (await visitor.get(path)).status_code == 404
        signed = await visitor.post("/ops/queues/login", data={"token": token})
        assert signed.headers["location"] == "/ops/queues/"
        assert "Path=/ops/queues;" in signed.headers["set-cookie"]
        assert SESSION_COOKIE in signed.headers["set-cookie"]
    await site.close()


async def test_a_site_is_given_a_client_or_what_makes_one(database: Database) -> None:
    async with await rowmq.connect_async(database.url) as mq:

        async def make() -> rowmq.AsyncRowMQ:
            return mq

        for source in (mq, lambda: mq, make):
            site = dashboard(source)
            async with visiting(site) as visitor:
                assert (await visitor.get("/tokens")).status_code == 200
            await site.close()
        assert await mq.topics() == []  # it is its owner's to close
    with rowmq.connect(database.url) as sync:
        site = dashboard(lambda: sync)  # type: ignore[arg-type, return-value]
        with pytest.raises(ConfigurationError, match="not a RowMQ"):
            await site.connect()


def files_in(folder: Path) -> list[str]:
    return [file.name for file in folder.iterdir()]


@pytest.mark.parametrize("settings", [{}, {"read_only": True}])
async def test_a_file_that_is_not_there_is_not_made_and_the_log_says_what_to_do(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, settings: dict[str, Any]
) -> None:
    path = tmp_path / "nope.db"
    site = dashboard(f"sqlite:///{path}", **settings)
    async with visiting(in_fastapi("/queues", site)) as visitor:
        for asked_for in ("/queues/", "/queues/api/v1/topics", "/queues/nowhere"):
            answer = await visitor.get(asked_for)
            assert answer.status_code == (404 if "nowhere" in asked_for else 503)
            assert "nope.db" not in answer.text  # which is nobody's business
            assert "rowmq migrate" in answer.text or answer.status_code == 404
        assert f"there is no file '{path}'" in caplog.text
        assert "rowmq migrate makes it" in caplog.text
        assert files_in(tmp_path) == []
        with rowmq.connect(f"sqlite:///{path}") as mq:
            mq.publish("orders", 1)
        assert (await visitor.get("/queues/")).status_code == 200
    await site.close()


async def test_a_lifespan_begins_with_no_file_that_is_not_there(tmp_path: Path) -> None:
    told: list[Any] = []

    async def receive() -> Any:
        return {"type": "lifespan.startup"}

    async def send(message: Any) -> None:
        told.append(message)

    await dashboard(f"sqlite:///{tmp_path}/nope.db")({"type": "lifespan"}, receive, send)
    (failed,) = told
    assert failed["type"] == "lifespan.startup.failed"
    assert "rowmq migrate makes it" in failed["message"]
    assert files_in(tmp_path) == []


async def test_a_lifespan_closes_what_the_site_opened(database: Database) -> None:
    site = dashboard(database.url)
    waiting = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]
    told: list[str] = []

    async def receive() -> Any:
        return waiting.pop(0)

    async def send(message: Any) -> None:
        told.append(message["type"])

    mq = await site.connect()
    await site({"type": "lifespan"}, receive, send)
    assert told == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    with pytest.raises(rowmq.errors.Closed):
        await mq.topics()


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "jinja2" else find(name)
    )
    with pytest.raises(MissingExtra, match=r"pip install 'rowmq\[web\]'"):
        importlib.reload(rowmq.web)
    monkeypatch.undo()
    importlib.reload(rowmq.web)
