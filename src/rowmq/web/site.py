"""A site: all routes, as one ASGI application that can stand alone or be mounted under any prefix.

    request ─► route ─► gate ─► audit trail ─► endpoint ─► answer, with the headers of all answers

There is no other way to an endpoint. Whatever goes wrong on the way becomes an answer here. A site
needs no lifespan: it connects when it is first asked, and closes its own client if it is told of a
shutdown.
"""

import asyncio
import contextlib
import logging
from collections.abc import Iterable
from types import ModuleType
from typing import Any
from urllib.parse import quote as percent_encoded

import msgspec
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.types import Message, Receive, Scope, Send

from rowmq.client import AsyncRowMQ
from rowmq.errors import RowMQError, SchemaMissing
from rowmq.quoting import in_line
from rowmq.web import assets, metrics, rendering
from rowmq.web.api import routes as api
from rowmq.web.api.consumers import Consumers
from rowmq.web.api.waiting import Waits
from rowmq.web.asking import Ask, Flash
from rowmq.web.auditing import Auditor
from rowmq.web.gate import Gate
from rowmq.web.headers import STRICT_TRANSPORT, host_of, is_loopback, secure
from rowmq.web.keys import Keys
from rowmq.web.kinds import Kinds
from rowmq.web.lake import Lakes
from rowmq.web.masking import Mask
from rowmq.web.opening import Source, check, open_client
from rowmq.web.pages import (
    audit,
    doctor,
    groups,
    jobs,
    letters,
    messages,
    overview,
    queues,
    schedules,
    session,
    spark,
    tokens,
    topics,
    workers,
)
from rowmq.web.problems import Problem, problem_of
from rowmq.web.routing import API, Route, Routes, segments_of
from rowmq.web.sampling import Sampler
from rowmq.web.sessions import Sessions
from rowmq.web.settings import Settings

__all__ = ["API_MODULES", "MODULES", "PAGES", "Site", "Source"]

log = logging.getLogger("rowmq.web")

PAGES: tuple[ModuleType, ...] = (
    overview,
    topics,
    messages,
    groups,
    letters,
    queues,
    jobs,
    schedules,
    workers,
    spark,
    doctor,
    tokens,
    audit,
    session,
)

API_MODULES: tuple[ModuleType, ...] = (api,)

MODULES: tuple[ModuleType, ...] = (assets, metrics, *PAGES, *API_MODULES)
"""Whose `ROUTES` a site has: pages, and the HTTP API."""

PROBLEM = "application/problem+json"

NOWHERE = "/nowhere"
"""The path of the route that stands for those that there are not: no page's."""

STRANGERS_BYTES_MAX = 64 * 1024
"""How large a body may be that anybody may send."""


class Site:
    """The dashboard and the HTTP API of a database."""

    def __init__(
        self,
        source: Source,
        settings: Settings,
        *,
        routes: Iterable[Route] | None = None,
        **options: Any,
    ) -> None:
        """`options` are those of `connect_async`, for a source that is a URL."""
        self.source = source
        self.options = options
        self.settings = settings.checked()
        given = [route for module in MODULES for route in module.ROUTES]
        self.routes = Routes(given if routes is None else routes)
        self.mask = Mask(settings.masks)
        self.keys = Keys(settings)
        self.sessions = Sessions(settings)
        self.gate = Gate(settings, self.keys, self.sessions)
        self.auditor = Auditor(messages=settings.audit_messages)
        self.sampler = Sampler()
        self.kinds = Kinds()
        self.consumers = Consumers(settings.secret, knows=self.keys.knows)
        self.waits = Waits()
        self.scrapes = metrics.Scrapes()
        self.lakes = Lakes()
        self._mq: AsyncRowMQ | None = None
        self._connecting = asyncio.Lock()

    # --- life -------------------------------------------------------------------------------------

    async def connect(self) -> AsyncRowMQ:
        """The client, which is made when it is first needed."""
        if self._mq is None:
            async with self._connecting:
                if self._mq is None:
                    self._mq = await open_client(self.source, **self.options)
        return self._mq

    async def close(self) -> None:
        """Close what was opened here: a client that was given is its owner's. Who asks afterwards
        opens it again.
        """
        await self.sampler.close()
        self.kinds.close()
        self.scrapes.close()
        await self.consumers.close()
        mq, self._mq = self._mq, None
        if mq is not None:
            await self.auditor.tell(mq, at_once=True)
        if mq is not None and isinstance(self.source, str):
            await mq.close()
        self._connecting = asyncio.Lock()  # the next ones may be of another loop
        self.consumers.reopen()

    # --- ASGI -------------------------------------------------------------------------------------

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; take note of a start and a shutdown."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            await self._serve(scope, receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008, "reason": ""})

    async def _live(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                try:
                    check(self.source)
                except SchemaMissing as error:
                    await send({"type": "lifespan.startup.failed", "message": str(error)})
                    return
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                await self.close()
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        outgoing = Outgoing(send, head=scope["method"] == "HEAD", strict=self._is_strict(scope))
        segments, method = self._segments(scope), scope["method"]
        found = None if segments is None else self.routes.find(method, segments)
        route, params = found or (self._nowhere(method, segments), {})
        bytes_max = self.settings.body_bytes_max
        if route.needs is None:
            bytes_max = min(bytes_max, STRANGERS_BYTES_MAX)
        ask = Ask(self, Request(scope, limited(receive, bytes_max, scope)), route, params)
        try:
            response = await self._answer(ask)
        except ClientDisconnect:
            return
        await response(scope, receive, outgoing)

    def _is_strict(self, scope: Scope) -> bool:
        """Whether browsers are to come by TLS only. A name of this machine is also that of whatever
        else is served here.
        """
        if not self.settings.strict_transport or scope.get("scheme") != "https":
            return False
        return not is_loopback(host_of(Headers(scope=scope)) or "")

    def _segments(self, scope: Scope) -> tuple[str, ...] | None:
        """Where a path leads, below the root; None if that is nowhere."""
        raw = scope.get("raw_path") or percent_encoded(scope["path"]).encode()
        root = self.settings.root_path
        if not root:
            return segments_of(raw, scope.get("root_path", ""))
        is_below = f"{raw.decode('latin-1')}/".startswith(f"{root}/")
        return segments_of(raw, root) if is_below else None

    def _nowhere(self, method: str, segments: tuple[str, ...] | None) -> Route:
        """Stands for the route that there is not."""
        allowed = [] if segments is None else self.routes.methods(segments)
        is_api = segments is not None and segments[:2] == ("api", "v1")

        async def refuse(ask: Ask) -> Response:
            if allowed:
                told = {"Allow": ", ".join(allowed)}
                text = f"{method[:20]!r} is not for this path: {told['Allow']} is"
                raise Problem(405, text, headers=told)
            if is_api:
                described = ask.url("api", "v1", "openapi.json")
                raise Problem(404, f"there is nothing here: {described} describes all calls")
            await self._recognise(ask)
            raise Problem(404, "there is nothing here")

        return Route("GET", API if is_api else NOWHERE, refuse, needs=None)

    async def _recognise(self, ask: Ask) -> None:
        """Find out who asks, where nobody has to be known: who is gets their navigation."""
        with contextlib.suppress(Problem, RowMQError):
            ask.connected = await self.connect()
            await self.gate.identify(ask)

    async def _answer(self, ask: Ask) -> Response:
        try:
            await self._admit(ask)
            return await self.auditor.answer(ask)
        except ClientDisconnect:
            raise
        except Exception as error:
            problem = problem_of(error)
            if problem is None:
                log.exception("%s of %s failed", ask.route, ask.remote)
                problem = Problem(500, "this went wrong here; the log of this server says more")
            elif problem is not error and problem.status >= 500:
                log.warning("%s of %s failed: %s", ask.route, ask.remote, in_line(str(error)))
            return self.answer_to(ask, problem)

    async def _admit(self, ask: Ask) -> None:
        """Through the gate. What is public and writes nothing does without the database."""
        if ask.route.needs is not None or ask.route.writes:
            ask.connected = await self.connect()
        try:
            await self.gate.admit(ask)
        except Problem as problem:
            await self.auditor.refused(ask, problem)
            raise
        if "x-fragment" not in ask.request.headers:
            flashed = self.sessions.flashed(ask.request)
            ask.flashes = [] if flashed is None else [Flash(*flashed)]

    def answer_to(self, ask: Ask, problem: Problem) -> Response:
        """A problem as an answer: for programs or for people."""
        if ask.route.is_for_programs:
            body = msgspec.json.encode(problem.body())
            return Response(body, problem.status, problem.headers, media_type=PROBLEM)
        is_page = ask.request.method == "GET" and "x-fragment" not in ask.request.headers
        if problem.kind == "token-missing" and is_page:
            return RedirectResponse(ask.url("login", next=asked_for(ask)), 303)
        page = rendering.render(
            ask, "error.html", status=problem.status, title=problem.title, text=problem.detail
        )
        return Response(page, problem.status, problem.headers, media_type="text/html")


class Outgoing:
    """An answer on its way, with the headers of all answers; without its body for a HEAD."""

    def __init__(self, send: Send, *, head: bool, strict: bool = False) -> None:
        self.send = send
        self.head = head
        self.strict = strict

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            secure(headers)
            if self.strict:
                headers.setdefault(*STRICT_TRANSPORT)
        elif message["type"] == "http.response.body" and self.head:
            message = {**message, "body": b""}
        await self.send(message)


def limited(receive: Receive, bytes_max: int, scope: Scope) -> Receive:
    """Receives a body that is not too large: what it says to be, and what comes."""
    said = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
    taken = 0

    async def receive_some() -> Message:
        nonlocal taken
        message = await receive()
        taken += len(message.get("body", b""))
        if taken > bytes_max or (said.isdigit() and int(said[:20]) > bytes_max):
            raise Problem(413, f"the body may have {bytes_max:,} bytes at most")
        return message

    return receive_some


def asked_for(ask: Ask) -> str:
    """The path and query of a request, to come back to."""
    segments = [
        ask.path[part[1:-1]] if part.startswith("{") else part for part in ask.route.segments
    ]
    query = ask.request.url.query
    return ask.url(*segments) + (f"?{query}" if query else "")
