"""The audit trail: who did what, to what, from where, and what came of it."""

from typing import Any

from starlette.responses import Response

from rowmq.errors import InvalidInput
from rowmq.rights import AuditEntry, Role
from rowmq.web.asking import Ask
from rowmq.web.fields import given, number_or_none
from rowmq.web.routing import Route

__all__ = ["ROUTES"]

PAGE = 100


async def show_audit(ask: Ask) -> Response:
    """A page of the trail, the newest first."""
    who, action = given(ask.query, "who"), given(ask.query, "action")
    error, before = None, None
    try:
        before = number_or_none(ask.query.get("before"), name="before")
    except InvalidInput as problem:
        error = str(problem)
    await ask.site.auditor.tell(ask.mq, at_once=True)
    found = await ask.mq.access.audit(limit=PAGE + 1, before=before, who=who, action=action)
    entries = found[:PAGE]
    older = entries[-1].id if len(found) > PAGE else None
    return ask.render(
        "audit.html",
        entries=[(entry, details_of(entry)) for entry in entries],
        by=who or "",
        action=action or "",
        actions=sorted({route.action for route in ask.site.routes.all if route.action}),
        error=error,
        newest=ask.url("audit", who=who, action=action) if before is not None else None,
        older=None if older is None else ask.url("audit", who=who, action=action, before=older),
    )


def details_of(entry: AuditEntry) -> list[tuple[str, str]]:
    """What else the trail says of an action, in words."""
    return [(name.replace("_", " "), words_of(value)) for name, value in entry.details.items()]


def words_of(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


ROUTES = [Route("GET", "/audit", show_audit, needs=Role.ADMIN, everywhere=True)]
