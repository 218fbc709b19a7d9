"""The client of a site: of a URL, or given by whoever has one."""

import inspect
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from rowmq.client import AsyncRowMQ, connect_async
from rowmq.engine import split, sqlite_path
from rowmq.errors import ConfigurationError, SchemaMissing

__all__ = ["Source", "check", "open_client"]

Source = str | AsyncRowMQ | Callable[[], AsyncRowMQ | Awaitable[AsyncRowMQ]]
"""The database: a URL, a client, or what gives one when it is first asked."""


def check(source: Source) -> None:
    """Raise `SchemaMissing` if the URL names an SQLite file that is not there: to connect would
    make one, and who only looks at a database must not.
    """
    if not isinstance(source, str):
        return
    url, parts, database = split(source)
    path = sqlite_path(url, parts) if database == "sqlite" else ""
    if path and not Path(path).exists():
        raise SchemaMissing(
            f"there is no file {path!r} for the dashboard to look at: rowmq migrate makes it, and "
            f"so does the first message or job; or correct the URL"
        )


async def open_client(source: Source, **options: Any) -> AsyncRowMQ:
    """The client; `options` are those of `connect_async`, for a source that is a URL."""
    if isinstance(source, str):
        check(source)
        return await connect_async(source, **options)
    made = source if isinstance(source, AsyncRowMQ) else source()
    client = await made if inspect.isawaitable(made) else made
    if not isinstance(client, AsyncRowMQ):
        raise ConfigurationError(
            f"a site needs a URL, an AsyncRowMQ or a function that gives one, not a "
            f"{type(client).__name__}"
        )
    return client
