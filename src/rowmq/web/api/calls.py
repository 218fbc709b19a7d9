"""Calls: a function with annotated arguments is a route, its checks, and its description.

    topics = Calls("Topics", "...")

    @topics.post("/topics/{topic}/messages", needs=Role.PRODUCE, action="message.publish")
    async def publish(ask: Ask, body: NewMessage) -> PublishResult:
        '''Append a message to a topic.'''

What is asked for as `body` is the JSON of the request, as `query` what stands after the question
mark; both are checked by their structs. What is returned is the answer. The same annotations make
the OpenAPI document, so that the two cannot differ.
"""

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, get_type_hints

import msgspec
from starlette.responses import Response

from rowmq.rights import Role
from rowmq.web.asking import JSON, Ask
from rowmq.web.existing import NO_QUEUE, NO_TOPIC
from rowmq.web.problems import Problem
from rowmq.web.routing import API, PARAM, Route

__all__ = ["Call", "Calls"]

Function = Callable[..., Awaitable[Any]]
F = TypeVar("F", bound=Function)

ABSENT = {"topic": NO_TOPIC, "queue": NO_QUEUE}
"""What paths name that has to be in scope, and there; and what is said if it is not."""


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One call of the API."""

    method: str
    path: str
    tag: str
    function: Function
    needs: Role | None
    body: Any
    query: Any
    gives: Any
    raw: bool
    """Whether a body that is no JSON is a payload as it is."""
    conflicts: str | None
    """When it is refused with a 409."""
    missing: str | None
    """When it is refused with a 404."""

    @property
    def name(self) -> str:
        """What it is called in clients that are made of the description."""
        return self.function.__name__

    @property
    def params(self) -> list[str]:
        """The parameters of its path."""
        return PARAM.findall(self.path)

    @property
    def needs_body(self) -> bool:
        """Whether an empty body says too little."""
        return self.body is not None and not is_optional(self.body)

    async def answer(self, ask: Ask) -> Response:
        """Answer a request."""
        arguments: dict[str, Any] = {}
        query = asked(ask, self.query)
        if self.query is not None:
            arguments["query"] = query
        if self.body is not None:
            raw = self.raw and ask.content_type != JSON
            arguments["body"] = None if raw else await self._sent(ask)
        value = await self.function(ask, **arguments)
        return value if isinstance(value, Response) else ask.json_response(value)

    async def _sent(self, ask: Ask) -> Any:
        if not self.needs_body and not await ask.body():
            return self.body()
        return await ask.json(self.body)


class Calls:
    """The calls of one part of the API."""

    def __init__(self, tag: str, about: str) -> None:
        self.tag = tag
        self.about = about
        self.all: list[Call] = []
        self.routes: list[Route] = []

    def get(self, path: str, **rule: Any) -> Callable[[F], F]:
        """A call that only looks."""
        return self._add("GET", path, **rule)

    def post(self, path: str, **rule: Any) -> Callable[[F], F]:
        """A call that does something."""
        return self._add("POST", path, **rule)

    def put(self, path: str, **rule: Any) -> Callable[[F], F]:
        """A call that has something be so."""
        return self._add("PUT", path, **rule)

    def patch(self, path: str, **rule: Any) -> Callable[[F], F]:
        """A call that changes some of it."""
        return self._add("PATCH", path, **rule)

    def delete(self, path: str, **rule: Any) -> Callable[[F], F]:
        """A call that removes something."""
        return self._add("DELETE", path, **rule)

    def _add(
        self,
        method: str,
        path: str,
        *,
        needs: Role | None,
        raw: bool = False,
        conflicts: str | None = None,
        missing: str | None = None,
        may_be_new: bool = False,
        **rule: Any,
    ) -> Callable[[F], F]:
        def add(function: F) -> F:
            hints = get_type_hints(function, include_extras=True)
            scoped: dict[str, Any] = {what: what for what in ABSENT if f"{{{what}}}" in path}
            absent = [] if may_be_new else [told for what, told in ABSENT.items() if what in scoped]
            call = Call(
                method=method,
                path=API + path,
                tag=self.tag,
                function=function,
                needs=needs,
                body=bare(hints.get("body")),
                query=hints.get("query"),
                gives=hints["return"],
                raw=raw,
                conflicts=conflicts,
                missing=" ".join([*absent, *([] if missing is None else [missing])]) or None,
            )
            self.all.append(call)
            self.routes.append(
                Route(
                    method,
                    call.path,
                    call.answer,
                    needs=needs,
                    may_be_new=may_be_new,
                    **scoped,
                    **rule,
                )
            )
            return function

        return add


def asked(ask: Ask, type: Any) -> Any:
    """What stands after the question mark, checked."""
    given = dict(ask.query)
    if type is None:
        if given:
            raise Problem(422, f"this call takes no parameters, and was given {', '.join(given)}")
        return None
    try:
        return msgspec.convert(given, type, strict=False)
    except msgspec.ValidationError as error:
        raise Problem(422, f"the parameters after ? are not what was expected: {error}") from None


def bare(type: Any) -> Any:
    """The struct of an annotation that may also be None."""
    members = [member for member in getattr(type, "__args__", ()) if member is not NoneType]
    return members[0] if members else type


NoneType = type(None)


def is_optional(type: Any) -> bool:
    """Whether a struct can be made of nothing."""
    return not any(field.required for field in msgspec.structs.fields(type))


def told(function: Function) -> tuple[str, str]:
    """The first sentence of what a function says of itself, and the rest."""
    text = " ".join((inspect.getdoc(function) or "").split())
    first, _, rest = text.partition(". ")
    return first.rstrip("."), rest
