"""Visits a site within the test, as a program or as a browser would, without a socket."""

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlencode

import httpx

__all__ = ["ELSEWHERE", "FORM", "HERE", "Visitor", "csrf_in", "sent", "visiting"]

HERE, ELSEWHERE = "127.0.0.1", "203.0.113.9"
"""Addresses: this machine's, and somebody else's."""

FORM = "application/x-www-form-urlencoded"

CSRF = re.compile(r'name="csrf" value="([^"]+)"')


class Visitor(httpx.AsyncClient):
    """Somebody at an address who calls a site by a name."""

    async def sign_in(self, token: str, **more: str) -> httpx.Response:
        """Begin a session."""
        return await self.post("/login", data={"token": token, **more})

    async def csrf(self, path: str) -> str:
        """What forms of a page send back."""
        return csrf_in((await self.get(path)).text)


def csrf_in(page: str) -> str:
    found = CSRF.search(page)
    assert found is not None, "there is no form that writes"
    return found[1]


@asynccontextmanager
async def visiting(
    app: Any,
    *,
    remote: str = HERE,
    host: str = "localhost",
    scheme: str = "http",
    token: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> AsyncIterator[Visitor]:
    """A visitor of a site; with a token, one that sends it with each request."""
    sends = dict(headers or {}) | ({} if token is None else {"Authorization": f"Bearer {token}"})
    transport = httpx.ASGITransport(app=app, client=(remote, 50_000))
    base = f"{scheme}://{host}"
    async with Visitor(transport=transport, base_url=base, headers=sends) as visitor:
        yield visitor


async def sent(app: Any, *chunks: bytes, method: str = "POST", path: str = "/", **more: Any) -> int:
    """The status of an answer to a request that is made by hand, in chunks that httpx would not
    send. `headers` are pairs of bytes.
    """
    statuses = []
    waiting = list(chunks)

    async def receive() -> dict[str, Any]:
        body = waiting.pop(0)
        return {"type": "http.request", "body": body, "more_body": bool(waiting)}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": urlencode({}).encode(),
        "root_path": "",
        "http_version": "1.1",
        "scheme": "http",
        "client": (HERE, 50_000),
        "server": ("localhost", 80),
        "headers": [(b"host", b"localhost")],
    }
    await app(scope | more, receive, send)
    (status,) = statuses
    return int(status)
