"""All routes of the HTTP API."""

from functools import lru_cache

import msgspec
from starlette.responses import Response

from rowmq.web.api import consuming, groups, jobs, operations, queues, schedules, topics
from rowmq.web.api.calls import Calls
from rowmq.web.api.openapi import document
from rowmq.web.asking import JSON, Ask
from rowmq.web.routing import API, Route

__all__ = ["CALLS", "ROUTES"]

CALLS: tuple[Calls, ...] = tuple(
    module.CALLS for module in (topics, consuming, groups, queues, jobs, schedules, operations)
)


async def describe(ask: Ask) -> Response:
    """The description of the API, OpenAPI 3.1. It says nothing about what is in the database."""
    return Response(written(ask.root), media_type=JSON)


@lru_cache(maxsize=4)
def written(root: str) -> bytes:
    """The description of an API that is served below a path: anybody may ask for it, often."""
    return msgspec.json.encode(document(CALLS, root))


ROUTES = [
    Route("GET", f"{API}/openapi.json", describe, needs=None),
    *(route for calls in CALLS for route in calls.routes),
]
