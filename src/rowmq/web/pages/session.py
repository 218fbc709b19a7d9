"""Signing in with a token, and out; and whether this server lives."""

from starlette.responses import Response

from rowmq.web.asking import Ask
from rowmq.web.routing import Route

__all__ = ["ROUTES"]


async def show(ask: Ask) -> Response:
    """The form that asks for a token."""
    return ask.render("login.html", next=ask.local(ask.query.get("next", "")), wrong=False)


async def sign_in(ask: Ask) -> Response:
    """Begin a session, or say that the token is none."""
    form = await ask.form()
    after = ask.local(form.get("next", ""))
    caller = await ask.site.keys.by_secret(ask.mq, form.get("token", "").strip(), ask.remote)
    if caller is None:
        ask.note(error="bad-token")
        return ask.render("login.html", status=401, next=after, wrong=True)
    ask.caller = caller
    response = ask.redirect(after)
    ask.site.sessions.begin(ask, response)
    return response


async def sign_out(ask: Ask) -> Response:
    """End the session, for whoever has a copy of it, too, at any server."""
    session, site = ask.session, ask.site
    response = ask.redirect("login")
    site.sessions.forget(ask, response)
    caller = None if session is None else await site.keys.by_session(ask.mq, session)
    if session is None or caller is None:
        ask.in_vain = True
        return response
    ask.caller = caller
    await site.keys.end_session(ask.mq, session, site.sessions.seconds_left(session))
    return response


async def health(ask: Ask) -> Response:
    """That this process answers. Whether its database does is for the doctor."""
    return ask.json_response({"status": "ok"})


ROUTES = [
    Route("GET", "/login", show, needs=None),
    Route("POST", "/login", sign_in, needs=None, action="session.begin"),
    Route("POST", "/logout", sign_out, needs=None, action="session.end"),
    Route("GET", "/health", health, needs=None),
]
