"""Calls of the HTTP API within a test, without a socket: what is asked for, what is answered."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from rowmq.web import Settings, Site
from tests.web.visiting import HERE, visiting

__all__ = ["API", "SECRET", "Api", "calling", "gone_after", "server"]

API = "/api/v1"

SECRET = "the same for all servers of a test, and nobody's else"

PROBLEM = "application/problem+json"


class Api:
    """Somebody who calls the API of a site."""

    def __init__(self, client: httpx.AsyncClient, site: Site) -> None:
        self.client = client
        self.site = site

    async def ask(self, method: str, path: str, body: Any = None, **more: Any) -> httpx.Response:
        """Whatever is answered."""
        sent = {} if body is None else {"json": body}
        return await self.client.request(method, API + path, **sent, **more)

    async def get(self, path: str, **query: Any) -> Any:
        """What is to be seen."""
        return done(await self.ask("GET", path, params=query))

    async def post(self, path: str, **body: Any) -> Any:
        """What comes of it."""
        return done(await self.ask("POST", path, body))

    async def put(self, path: str, **body: Any) -> Any:
        return done(await self.ask("PUT", path, body))

    async def patch(self, path: str, **body: Any) -> Any:
        return done(await self.ask("PATCH", path, body))

    async def delete(self, path: str) -> Any:
        return done(await self.ask("DELETE", path))

    async def refused(self, status: int, path: str, method: str = "POST", **body: Any) -> Any:
        """The problem, which must be of this status."""
        answer = await self.ask(method, path, body if method != "GET" else None)
        assert answer.status_code == status, answer.text
        assert answer.headers["content-type"] == PROBLEM
        problem = answer.json()
        assert problem["status"] == status
        assert problem["type"].startswith("urn:rowmq:")
        return problem

    # --- topics -----------------------------------------------------------------------------------

    async def publish(self, topic: str, *payloads: Any, **how: Any) -> None:
        """Publish, one after the other."""
        messages = [{"payload": payload, **how} for payload in payloads]
        await self.post(f"/topics/{topic}/messages/batch", messages=messages)

    async def poll(self, topic: str, group: str = "billing", **how: Any) -> list[dict[str, Any]]:
        """What is delivered."""
        answer = await self.post(f"/topics/{topic}/groups/{group}/poll", **how)
        deliveries: list[dict[str, Any]] = answer["deliveries"]
        return deliveries

    async def settle(self, how: str, topic: str, *deliveries: Any, **more: Any) -> Any:
        """Settle deliveries to `billing`."""
        receipts = [delivery["receipt"] for delivery in deliveries]
        return await self.post(f"/topics/{topic}/groups/billing/{how}", receipts=receipts, **more)

    async def lag(self, topic: str, group: str = "billing") -> int:
        """How far a group is behind."""
        answer = await self.get(f"/topics/{topic}/groups/{group}/lag")
        return sum(row["lag"] for row in answer["lag"])


def done(answer: httpx.Response) -> Any:
    assert answer.status_code == 200, answer.text
    return answer.json()


@asynccontextmanager
async def server(url: str, **settings: Any) -> AsyncIterator[Site]:
    """A server's site; several of a database are several servers."""
    site = Site(url, Settings(**{"secret": SECRET, **settings}))
    try:
        yield site
    finally:
        await site.close()


@asynccontextmanager
async def calling(url: str, token: str | None = None, **settings: Any) -> AsyncIterator[Api]:
    """Somebody who calls a server of their own."""
    async with server(url, **settings) as site, visiting(site, token=token) as client:
        yield Api(client, site)


async def gone_after(site: Site, path: str, body: Any, leaves: asyncio.Event) -> int:
    """Ask, and go away without waiting for the answer: what was answered to nobody, in bytes."""
    sent = [json.dumps(body).encode()]
    answered = 0

    async def receive() -> dict[str, Any]:
        if sent:
            return {"type": "http.request", "body": sent.pop(), "more_body": False}
        await leaves.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        nonlocal answered
        answered += len(message.get("body", b""))

    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    scope = {
        "type": "http",
        "method": "POST",
        "path": API + path,
        "raw_path": (API + path).encode(),
        "query_string": b"",
        "root_path": "",
        "http_version": "1.1",
        "scheme": "http",
        "client": (HERE, 50_000),
        "server": ("localhost", 80),
        "headers": headers,
    }
    await site(scope, receive, send)
    return answered
