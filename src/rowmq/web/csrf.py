"""Requests that another site has a browser make: how they are known, and refused.

Browsers say where a request comes from, in `Origin` or `Sec-Fetch-Site`; programs such as curl say
nothing, and have no cookies that somebody else could use. Forms have to send back a token besides,
which other sites cannot read. A request with a token in its `Authorization` header is nobody else's
doing: no site can have a browser send that.
"""

from urllib.parse import urlsplit

from starlette.datastructures import Headers

from rowmq.web.headers import OWN_SITE, host_of
from rowmq.web.problems import Problem

__all__ = ["FIELD", "HEADER", "check_origin", "refused"]

FIELD = "csrf"
HEADER = "x-csrf-token"


def check_origin(headers: Headers, hosts: tuple[str, ...]) -> None:
    """Raise `Problem` if another site has made a browser send this."""
    origin = headers.get("origin")
    if origin is None:
        if headers.get("sec-fetch-site", "") not in OWN_SITE:
            raise refused("it comes from another site")
        return
    try:
        parts = urlsplit(origin)
        name = parts.hostname if parts.port is None else parts.netloc
    except ValueError:
        raise refused("its Origin cannot be read") from None
    if name is None or parts.scheme not in ("http", "https"):
        raise refused("its Origin is none")
    own = parts.netloc.lower() == headers.get("host", "").strip().lower()
    if not own and name not in hosts:  # other ports of a host are others' sites
        raise refused(
            f"it comes from {name!r} and this is {host_of(headers)!r}; a proxy in front must keep "
            f"the Host header, or this name be one of the hosts that are set"
        )


def refused(why: str) -> Problem:
    """The answer to a request that is not the caller's own."""
    return Problem(403, f"this request is refused: {why}", kind="cross-site")
