"""`Ask`: a request that the gate let through, and what an endpoint needs to answer it.

Whoever writes an endpoint sees nothing but this: the caller is known, the role and the scopes of
the path are checked, the form's CSRF token too, and what comes of the action will be in the audit
trail. What is not in the path is for the endpoint to check, with `demand`.
"""

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import parse_qsl, urlencode

import msgspec
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from rowmq.client import AsyncRowMQ
from rowmq.message import QueueInfo
from rowmq.rights import Role
from rowmq.web import rendering
from rowmq.web.callers import Caller
from rowmq.web.problems import Problem
from rowmq.web.routing import Route, quote
from rowmq.web.sessions import Session
from rowmq.web.settings import Settings

if TYPE_CHECKING:
    from rowmq.web.site import Site

__all__ = ["Ask", "Flash"]

T = TypeVar("T")

FORM_FIELDS_MAX = 2_000
FORM = "application/x-www-form-urlencoded"
JSON = "application/json"


class Flash(NamedTuple):
    """What the page after an action says about it: `level` is ok, warning or problem."""

    level: str
    text: str


class Ask:
    """One request."""

    def __init__(self, site: "Site", request: Request, route: Route, path: dict[str, str]) -> None:
        self.site = site
        self.request = request
        self.route = route
        self.path = path
        """The parameters of the path, decoded."""
        self.caller = Caller.nobody()
        self.csrf = ""
        """What forms must send back as `csrf`; empty if nobody is signed in."""
        self.session: Session | None = None
        self.signed_in = False
        """Whether there is a session, which can be signed out of."""
        self.flashes: list[Flash] = []
        self.notes: dict[str, Any] = {}
        self.target: tuple[str, ...] | None = None
        self.in_vain = False
        """Whether there was nothing to do, and so nothing for the audit trail."""
        self.connected: AsyncRowMQ | None = None
        self.queue: QueueInfo | None = None
        """The queue of the path, once it was found: see `existing`."""
        self._body: bytes | None = None
        self._form: list[tuple[str, str]] | None = None

    # --- what is there ----------------------------------------------------------------------------

    @property
    def mq(self) -> AsyncRowMQ:
        """The database."""
        if self.connected is None:
            raise RuntimeError("a public route that writes nothing has no database")
        return self.connected

    @property
    def settings(self) -> Settings:
        """What was set about the site."""
        return self.site.settings

    @property
    def sampler(self) -> Any:
        """What charts are made from: see `sampling`."""
        return self.site.sampler

    @property
    def is_renewal(self) -> bool:
        """Whether a page that is open asks for a part of itself again."""
        return rendering.FRAGMENT in self.request.headers

    @property
    def query(self) -> Mapping[str, str]:
        """The parameters after the question mark; of several of a name, the last."""
        return self.request.query_params

    @property
    def remote(self) -> str:
        """The address that it comes from."""
        return self.request.client.host if self.request.client else ""

    # --- what was sent ----------------------------------------------------------------------------

    async def body(self) -> bytes:
        """The body, if it is neither too large nor too slow."""
        if self._body is None:
            try:
                async with asyncio.timeout(self.settings.body_seconds_max):
                    self._body = await self.request.body()
            except TimeoutError:
                raise Problem(408, "the body of the request did not arrive in time") from None
        return self._body

    async def form(self) -> dict[str, str]:
        """The fields of a form; of several of a name, the last."""
        return dict(await self._fields())

    async def form_list(self, name: str) -> list[str]:
        """All values of a form's field, such as the boxes that were ticked."""
        return [value for field, value in await self._fields() if field == name]

    async def _fields(self) -> list[tuple[str, str]]:
        if self._form is None:
            body = await self.body()
            if body and self.content_type != FORM:
                raise Problem(415, f"a form is sent as {FORM}")
            self._form = fields_of(body)
        return self._form

    @property
    def content_type(self) -> str:
        """What the body is said to be, without parameters."""
        return self.request.headers.get("content-type", "").partition(";")[0].strip().lower()

    async def json(self, type: type[T]) -> T:
        """The body as JSON of a type, checked."""
        if self.content_type != JSON:
            raise Problem(415, f"the body must be JSON, with Content-Type: {JSON}")
        try:
            return msgspec.json.decode(await self.body(), type=type)
        except msgspec.ValidationError as error:
            raise Problem(422, f"the body is not what was expected: {error}") from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Problem(400, f"the body is no JSON: {error}") from None

    # --- what the caller may do -------------------------------------------------------------------

    def demand(
        self, role: Role | None = None, *, topic: str | None = None, queue: str | None = None
    ) -> None:
        """Refuse a caller who lacks a role, or in whose scope a topic or queue is not: for what
        stands in a body or a query, since the path is checked already.
        """
        self.caller.demand(role, topic=topic, queue=queue)

    def note(self, **details: Any) -> None:
        """Have the audit trail say more about this action. No payloads: they are not for it."""
        self.notes |= details

    def concerns(self, *names: str) -> None:
        """Have the audit trail say what it was done to, each name in the one before, if the path
        does not.
        """
        self.target = names

    # --- what must not be shown -------------------------------------------------------------------

    def mask(self, payload: Any) -> Any:
        """A payload without what the settings hide; the same object if that is nothing."""
        return self.site.mask.payload(payload)

    def mask_headers(self, headers: Mapping[str, str]) -> Mapping[str, str]:
        """Headers without what the settings hide."""
        return self.site.mask.headers(headers)

    # --- answers ----------------------------------------------------------------------------------

    @property
    def root(self) -> str:
        """What stands before every path of this site, without a slash at its end."""
        root: str = self.settings.root_path or self.request.scope.get("root_path", "")
        return "/".join(quote(part) if part else "" for part in root.rstrip("/").split("/"))

    def url(self, *segments: object, **query: object) -> str:
        """The URL of a path: each segment and value is quoted; None in the query is left out."""
        path = "/".join(quote(str(segment)) for segment in segments)
        chosen = {name: str(value) for name, value in query.items() if value is not None}
        return f"{self.root}/{path}" + (f"?{urlencode(chosen)}" if chosen else "")

    def render(self, template: str, *, status: int = 200, **context: Any) -> HTMLResponse:
        """A page; only one block of it, if that is what was asked for: see `rendering`."""
        response = HTMLResponse(rendering.render(self, template, **context), status)
        if self.flashes:
            self.site.sessions.forget_flash(self, response)
        return response

    def redirect(
        self, *segments: object, flash: str | None = None, level: str = "ok", **query: object
    ) -> Response:
        """To another page, after an action, with what to say there. A first segment that begins
        with a slash is a whole path, as `url` gave it.
        """
        first = str(segments[0]) if segments else ""
        path = self.local(first) if first.startswith("/") else self.url(*segments, **query)
        response = RedirectResponse(path, 303)
        if flash is not None:
            self.site.sessions.flash(self, response, Flash(level, flash))
        return response

    def local(self, path: str) -> str:
        """A path of this site, or its first page: never somebody else's site."""
        safe = path.startswith(f"{self.root}/") and not path.startswith("//") and "\\" not in path
        return path if safe and path.isprintable() else self.url()

    def json_response(
        self, value: Any, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> Response:
        """JSON of anything that msgspec encodes."""
        body = msgspec.json.encode(value)
        return Response(body, status, dict(headers or {}), media_type=JSON)


def fields_of(body: bytes) -> list[tuple[str, str]]:
    """The fields of a form."""
    try:
        return parse_qsl(
            body.decode(),
            keep_blank_values=True,
            strict_parsing=bool(body),
            errors="strict",
            max_num_fields=FORM_FIELDS_MAX,
        )
    except ValueError:
        raise Problem(400, "the form cannot be read") from None
