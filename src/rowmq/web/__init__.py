"""The dashboard and the HTTP API: an ASGI application that stands alone or is mounted into another.

    app.mount("/queues", rowmq.web.dashboard("postgresql://..."))

What it is made of comes with the extra `rowmq[web]`.
"""

import importlib.util
from typing import Any

from rowmq.errors import MissingExtra

for module in ("starlette", "jinja2"):
    if importlib.util.find_spec(module) is None:
        raise MissingExtra(f"{module!r} is not installed; run: pip install 'rowmq[web]'")

from rowmq.store.dialect import DEFAULT_PREFIX  # noqa: E402 - once it is known to be of use
from rowmq.web.settings import Settings  # noqa: E402
from rowmq.web.site import Site, Source  # noqa: E402

__all__ = ["Settings", "Site", "dashboard"]


def dashboard(
    source: Source,
    *,
    prefix: str = DEFAULT_PREFIX,
    schema: str | None = None,
    pool_size: int = 10,
    **settings: Any,
) -> Site:
    """An ASGI application with the dashboard at its root, and the HTTP API at `/api/v1`.

    `source` is a URL, an `AsyncRowMQ` of the loop that serves it, or a function that gives one when
    the first request comes. `prefix`, `schema` and `pool_size` are for a URL. Everything else is a
    field of `Settings`, such as `read_only=True`. It can be mounted under any path, and needs no
    lifespan; a client that it opened itself is closed by a lifespan's end or `close()`.

    Without any token it serves this machine only. Raises `InvalidOption`.
    """
    options: dict[str, Any] = {"prefix": prefix, "schema": schema, "pool_size": pool_size}
    if not isinstance(source, str):
        options = {}
    return Site(source, Settings(**settings), **options)
