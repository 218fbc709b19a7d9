"""Routes: what may be asked for, and the rule that each of them has.

There is no route without a rule: a `Route` says which role it needs (None: anybody's), which of its
path's parameters is a topic or a queue that must be in the caller's scope, and, if it writes, as
what action it stands in the audit trail. One that leaves something out cannot be made. The gate
goes by nothing else, so that no page can forget to ask.

Paths are matched segment by segment, each decoded on its own: a name may hold any character, also a
slash. Only `.` and `..` cannot be in a URL, where browsers take them for steps: `quote` writes a
tilde before them.
"""

import re
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote as percent_encoded
from urllib.parse import unquote_to_bytes

from rowmq.rights import Role

if TYPE_CHECKING:
    from starlette.responses import Response

    from rowmq.web.asking import Ask

__all__ = ["API", "METRICS", "Endpoint", "Found", "Route", "Routes", "quote", "segments_of"]

API = "/api/v1"
"""What the paths of the HTTP API begin with."""

METRICS = "/metrics"
"""What Prometheus asks for."""

METHODS = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE"})

DOTS = re.compile(r"~*\.\.?")
PARAM = re.compile(r"\{([a-z_]+)\}")

SCOPED = ("topic", "queue")

Endpoint = Callable[["Ask"], Awaitable["Response"]]


class Route:
    """A method and a path, what answers, and the rule for it.

    `path` is made of literal segments and of `{parameters}`, each a whole segment. `topic` and
    `queue` name the parameter that must be in the caller's scope. `action` is required of all that
    is no GET. `everywhere` is for what concerns all topics and queues at once, such as tokens: then
    the caller's scopes must be everything. `audited` is False for what programs do message by
    message, which the audit trail has only if it was refused, or if the settings ask for all.
    `may_be_new` is for what makes the topic or queue that the path names, waits for it, or goes by
    receipts, which say more than names: everything else is a 404 where there is none.
    """

    def __init__(
        self,
        method: str,
        path: str,
        endpoint: Endpoint,
        *,
        needs: Role | None,
        topic: str | None = None,
        queue: str | None = None,
        action: str | None = None,
        everywhere: bool = False,
        audited: bool = True,
        may_be_new: bool = False,
    ) -> None:
        self.method = method
        self.path = path
        self.endpoint = endpoint
        self.needs = needs
        self.topic = topic
        self.queue = queue
        self.action = action
        self.everywhere = everywhere
        self.audited = audited
        self.may_be_new = may_be_new
        self.segments = tuple(path.strip("/").split("/")) if path != "/" else ()
        self.params = tuple(match[1] for one in self.segments if (match := PARAM.fullmatch(one)))
        self._check()

    def __repr__(self) -> str:
        return f"Route({self.method} {self.path})"

    @property
    def is_api(self) -> bool:
        """Whether it belongs to the HTTP API."""
        return self.path.startswith(f"{API}/") or self.path == API

    @property
    def is_for_programs(self) -> bool:
        """Whether whoever asks is no browser, and has no use for a page."""
        return self.is_api or self.path == METRICS

    @property
    def writes(self) -> bool:
        """Whether it may change anything."""
        return self.action is not None

    def _check(self) -> None:
        if self.method not in METHODS or not self.path.startswith("/"):
            raise ValueError(f"{self!r} has no such method, or its path does not begin with /")
        if self.method != "GET" and self.action is None:
            raise ValueError(f"{self!r} writes, and names no action for the audit trail")
        for what, chosen in (("topic", self.topic), ("queue", self.queue)):
            if chosen is not None and chosen not in self.params:
                raise ValueError(f"{self!r} has no parameter {chosen!r} to check the scope of")
            if chosen is None and what in self.params and self.needs is not None:
                raise ValueError(f"{self!r} does not say that its {what} must be in scope")
        if len(set(self.params)) < len(self.params):
            raise ValueError(f"{self!r} has two parameters of the same name")


class Found(NamedTuple):
    """A route that fits, with the parameters of the path."""

    route: Route
    params: dict[str, str]


class Routes:
    """All routes of a site, by how many segments they have. A literal goes before a parameter."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self.all = tuple(routes)
        self._by_length: dict[int, list[Route]] = {}
        seen: set[tuple[str, str]] = set()
        for route in self.all:
            shape = (route.method, PARAM.sub("{}", route.path))
            if shape in seen:
                raise ValueError(f"there are two of {route!r}")
            seen.add(shape)
            self._by_length.setdefault(len(route.segments), []).append(route)
        for routes_alike in self._by_length.values():
            routes_alike.sort(key=precedence)

    def find(self, method: str, segments: tuple[str, ...]) -> Found | None:
        """The route for a request; a HEAD is answered like a GET."""
        wanted = "GET" if method == "HEAD" else method
        for route in self._by_length.get(len(segments), ()):
            if route.method == wanted and (params := matched(route, segments)) is not None:
                return Found(route, params)
        return None

    def methods(self, segments: tuple[str, ...]) -> list[str]:
        """What may be asked of a path, for who asked for something else."""
        routes = self._by_length.get(len(segments), ())
        found = {route.method for route in routes if matched(route, segments) is not None}
        return sorted(found | {"HEAD"} if "GET" in found else found)


def precedence(route: Route) -> tuple[bool, ...]:
    """Sorts routes that fit the same path: the first literal decides."""
    return tuple(PARAM.fullmatch(segment) is not None for segment in route.segments)


def matched(route: Route, segments: tuple[str, ...]) -> dict[str, str] | None:
    """The parameters of a path, if the route fits it."""
    params: dict[str, str] = {}
    for wanted, given in zip(route.segments, segments, strict=True):
        match = PARAM.fullmatch(wanted)
        if match is not None:
            params[match[1]] = plain(given)
        elif wanted != given:
            return None
    return params


def segments_of(raw_path: bytes, root_path: str) -> tuple[str, ...] | None:
    """The decoded segments of a path below the root; None if it is no text. One slash at the end
    says nothing.
    """
    try:
        parts = raw_path.partition(b"?")[0].split(b"/")[1:]
        found = [unquote_to_bytes(part).decode() for part in parts]
    except UnicodeDecodeError:
        return None
    root = [part for part in root_path.split("/") if part]
    if found[: len(root)] == root:
        found = found[len(root) :]
    if found and not found[-1]:
        found.pop()
    return tuple(found)


def quote(name: str) -> str:
    """A name as one segment of a path."""
    return percent_encoded(f"~{name}" if DOTS.fullmatch(name) else name, safe="")


def plain(segment: str) -> str:
    """The name that `quote` made a segment of, decoded."""
    return segment[1:] if segment.startswith("~") and DOTS.fullmatch(segment) else segment
