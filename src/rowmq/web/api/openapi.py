"""The API's description, OpenAPI 3.1: made of the calls themselves, and of the models that check
what they are given and write what they answer. So it cannot say anything else than what is so.
"""

from collections.abc import Iterable, Sequence
from functools import cache
from http import HTTPStatus
from typing import Any

import msgspec

import rowmq
from rowmq.web.api import models
from rowmq.web.api.calls import Call, Calls, told
from rowmq.web.routing import API

__all__ = ["document"]

REF = "#/components/schemas/{name}"
JSON = "application/json"
PROBLEM = "application/problem+json"

ABOUT = """
Topics, queues and schedules of a RowMQ database, for programs in any language. Durations are in
seconds and times in RFC 3339, with a zone. What a request says that nobody knows is an error, so
that nothing misspelt is overlooked; an answer may have more members in a later version.

In a path, a name is one segment, percent-encoded: a slash in it is `%2F`. For a name that is `.` or
`..`, which programs take for steps, write a tilde before it.

A token says who asks: `Authorization: Bearer rowmq_...`. Its roles and scopes are those that it was
made with, by `rowmq tokens create`. Errors are problems as of RFC 9457, with a `type` for programs
and a `detail` for people that says what to do.
"""

PARAMETERS: dict[str, dict[str, Any]] = {
    "topic": {"description": "The topic.", "schema": {"type": "string", "minLength": 1}},
    "group": {"description": "The consumer group.", "schema": {"type": "string", "minLength": 1}},
    "consumer": {"description": "The consumer.", "schema": {"type": "string", "minLength": 1}},
    "token": {"description": "A token's name.", "schema": {"type": "string", "minLength": 1}},
    "queue": {"description": "The queue.", "schema": {"type": "string", "minLength": 1}},
    "key": {"description": "The job's key.", "schema": {"type": "string", "minLength": 1}},
    "id": {"description": "The job's id.", "schema": {"type": "integer", "minimum": 0}},
    "letter": {"description": "The dead letter's handle.", "schema": {"type": "string"}},
    "schedule": {"description": "The schedule.", "schema": {"type": "string", "minLength": 1}},
}
"""What stands in paths."""

PROBLEMS = {
    400: "A name or value cannot be used, or the body is no JSON. Nothing was changed.",
    401: "There is no token, or it is unknown, expired or revoked.",
    403: "The token lacks the role, or the scope; or the site is read-only.",
    408: "The body did not arrive in time.",
    413: "The body, or a payload in it, is too large.",
    415: "The body is not what its Content-Type says, or that is not for this call.",
    422: "The body, or a parameter, is not what was expected; the detail says where.",
    429: "Too many requests, or consumers: wait as Retry-After says.",
    503: "The database cannot be reached, or is busy: try again, as Retry-After says.",
}
OF_ALL = (400, 401, 403, 422, 429, 503)
OF_BODIES = (408, 413, 415)


@cache
def parts(all_calls: tuple[Calls, ...]) -> dict[str, Any]:
    """The document, but for where it is served."""
    calls = [call for some in all_calls for call in some.all]
    types = dict.fromkeys(type for call in calls for type in (call.body, call.query, call.gives))
    found = [type for type in types if type is not None]
    schemas, components = msgspec.json.schema_components([*found, models.Problem], ref_template=REF)
    of = dict(zip(found, schemas, strict=False))
    paths: dict[str, Any] = {}
    for call in calls:
        path = paths.setdefault(call.path.removeprefix(API), {})
        path[call.method.lower()] = operation(call, of, components)
    queries = {type.__name__ for type in found if any(call.query is type for call in calls)}
    return {
        "openapi": "3.1.0",
        "info": {"title": "RowMQ", "version": rowmq.__version__, "description": ABOUT.strip()},
        "tags": [{"name": some.tag, "description": some.about} for some in all_calls],
        "paths": paths,
        "components": {
            "schemas": {name: it for name, it in components.items() if name not in queries},
            "responses": {str(status): problem(status, text) for status, text in PROBLEMS.items()},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
    }


def document(all_calls: Sequence[Calls], root: str) -> dict[str, Any]:
    """The document of an API that is served below a path."""
    return parts(tuple(all_calls)) | {"servers": [{"url": f"{root}{API}"}]}


def operation(call: Call, of: dict[Any, Any], components: dict[str, Any]) -> dict[str, Any]:
    """A call, described."""
    first, rest = told(call.function)
    role = f"Needs the role `{call.needs}`." if call.needs is not None else ""
    described: dict[str, Any] = {
        "operationId": call.name,
        "tags": [call.tag],
        "summary": first,
        "description": " ".join(filter(None, [rest, role])),
        "parameters": [*path_parameters(call), *query_parameters(call, components)],
        "responses": responses(call, of),
    }
    if call.body is not None:
        described["requestBody"] = {
            "required": call.needs_body,
            "content": {JSON: {"schema": of[call.body]}} | (RAW if call.raw else {}),
        }
    return described


RAW: dict[str, Any] = {
    "text/plain": {"schema": {"type": "string"}},
    "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
}
"""A payload as it is."""


def path_parameters(call: Call) -> Iterable[dict[str, Any]]:
    """What stands in the path of a call."""
    return (
        {"name": name, "in": "path", "required": True} | PARAMETERS[name] for name in call.params
    )


def query_parameters(call: Call, components: dict[str, Any]) -> Iterable[dict[str, Any]]:
    """What may stand after the question mark: nobody can write null there, so that is left out."""
    if call.query is None:
        return
    schema = components[call.query.__name__]
    for name, given in schema["properties"].items():
        yield {
            "name": name,
            "in": "query",
            "required": name in schema.get("required", ()),
            "schema": without_null(given),
        }


def without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema for text of a URL."""
    some = [one for one in schema.get("anyOf", ()) if one != {"type": "null"}]
    if len(some) == 1:
        return dict(some[0])
    if "enum" in schema:
        return schema | {"enum": [one for one in schema["enum"] if one is not None]}
    return schema


def responses(call: Call, of: dict[Any, Any]) -> dict[str, Any]:
    """What a call may answer."""
    done = {"description": "Done.", "content": {JSON: {"schema": of[call.gives]}}}
    found: dict[int, dict[str, Any]] = {200: done}
    statuses = OF_ALL if call.body is None else (*OF_ALL, *OF_BODIES)
    found |= {status: {"$ref": f"#/components/responses/{status}"} for status in statuses}
    for status, when in ((404, call.missing), (409, call.conflicts)):
        if when is not None:
            found[status] = problem(status, when)
    return {str(status): found[status] for status in sorted(found)}


def problem(status: int, when: str) -> dict[str, Any]:
    """An answer that is a problem."""
    answer: dict[str, Any] = {
        "description": f"{HTTPStatus(status).phrase}. {when}",
        "content": {PROBLEM: {"schema": {"$ref": REF.format(name="Problem")}}},
    }
    if status in (429, 503):
        seconds = {"description": "Seconds to wait.", "schema": {"type": "integer"}}
        answer["headers"] = {"Retry-After": seconds}
    return answer
