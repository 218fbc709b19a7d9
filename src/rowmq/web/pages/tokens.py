"""Tokens: who has one, for what; a new one, whose secret is shown once; and an end to one."""

from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from typing import Any

from starlette.responses import Response

from rowmq.errors import InvalidInput
from rowmq.rights import Role
from rowmq.spelling import duration_of
from rowmq.web.asking import Ask
from rowmq.web.fields import given, lines_of, optional, put_in_words
from rowmq.web.routing import Route

__all__ = ["ROUTES"]

ROLES = {
    Role.READ: "look at everything in scope, payloads too",
    Role.PRODUCE: "publish messages, put and offer jobs",
    Role.CONSUME: "poll, claim and settle",
    Role.ADMIN: "all of these, and steer: pause, seek, redrive, purge, configure",
}

LIVES = (
    ("", "never"),
    ("1h", "in an hour"),
    ("1d", "in a day"),
    ("30d", "in 30 days"),
    ("90d", "in 90 days"),
    ("365d", "in a year"),
)
"""When a token expires, as it is chosen."""


async def show_tokens(ask: Ask) -> Response:
    """All tokens, without their secrets."""
    return await page(ask, {}, {})


async def create(ask: Ask) -> Response:
    """Make a token, and show its secret: here, once, and never again."""
    fields, errors = await ask.form(), dict[str, str]()
    name = fields.get("name", "").strip()
    roles = await ask.form_list("roles")
    life = put_in_words(partial(life_of, fields), errors, "expires_in")
    scopes = {kind: scopes_of(fields.get(kind, "")) for kind in ("topics", "queues")}
    ask.concerns(name)
    ask.note(roles=sorted(roles), **{kind: list(scopes[kind]) for kind in scopes})
    if errors:
        return await page(ask, fields, errors, roles)
    try:
        secret = await ask.mq.access.create_token(name, roles=roles, expires_in=life, **scopes)
    except InvalidInput as error:
        return await page(ask, fields, {"": str(error)}, roles)
    ask.site.keys.forget()
    response = ask.render("token_made.html", name=name, secret=secret)
    response.headers["Cache-Control"] = "no-store"
    return response


async def revoke(ask: Ask) -> Response:
    """Have a token be good for nothing from now on."""
    name = ask.path["token"]
    if await ask.mq.access.revoke_token(name):
        ask.site.keys.forget()
        return ask.redirect("tokens", flash="Revoked. Whoever shows this token is refused now.")
    return ask.redirect("tokens", flash="There is no live token of this name.", level="note")


def life_of(fields: Mapping[str, str]) -> timedelta | None:
    return optional(given(fields, "expires_in"), duration_of)


def scopes_of(text: str) -> tuple[str, ...]:
    """Names, and prefixes that end in `*`, one on each line."""
    return tuple(lines_of(text))


async def page(
    ask: Ask,
    fields: Mapping[str, str],
    errors: Mapping[str, str],
    chosen: list[str] | None = None,
) -> Response:
    values: dict[str, Any] = {"topics": "*", "queues": "*", **fields}
    return ask.render(
        "tokens.html",
        status=422 if errors else 200,
        tokens=await ask.mq.access.tokens(),
        roles=ROLES,
        chosen=[str(Role.READ)] if chosen is None else chosen,
        lives=LIVES,
        values=values,
        errors=errors,
    )


ROUTES = [
    Route("GET", "/tokens", show_tokens, needs=Role.ADMIN, everywhere=True),
    Route("POST", "/tokens", create, needs=Role.ADMIN, everywhere=True, action="token.create"),
    Route(
        "POST",
        "/tokens/{token}/revoke",
        revoke,
        needs=Role.ADMIN,
        everywhere=True,
        action="token.revoke",
    ),
]
