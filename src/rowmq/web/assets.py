"""The style sheet, the script and the icon: read once, served from the package.

A page names them with a hash of what they hold, so that a browser may keep them for ever.
"""

from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import TYPE_CHECKING, NamedTuple

from starlette.responses import Response

from rowmq.web.routing import Route

if TYPE_CHECKING:
    from rowmq.web.asking import Ask

__all__ = ["ROUTES", "asset_of"]

TYPES = {
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}

FILES = ("live.js", "mark.svg", "rowmq.css")
"""All that there are: nothing else of the folder can be asked for."""

YEAR_SECONDS = 31_536_000


class Asset(NamedTuple):
    """A file, its media type, and what tells its version from others."""

    body: bytes
    media_type: str
    version: str


@cache
def asset_of(name: str) -> Asset:
    """One of the files."""
    body = (files("rowmq.web") / "static" / name).read_bytes()
    return Asset(body, TYPES[name.rpartition(".")[2]], sha256(body).hexdigest()[:12])


async def show(ask: "Ask") -> Response:
    """A file, for a year if it was asked for by its version."""
    name = ask.path["file"]
    if name not in FILES:
        return Response("There is no such file.", status_code=404, media_type="text/plain")
    asset = asset_of(name)
    age = YEAR_SECONDS if ask.query.get("v") == asset.version else 0
    headers = {
        "Cache-Control": f"public, max-age={age}, immutable" if age else "no-cache",
        "ETag": f'"{asset.version}"',
    }
    return Response(asset.body, media_type=asset.media_type, headers=headers)


ROUTES = [Route("GET", "/static/{file}", show, needs=None)]
