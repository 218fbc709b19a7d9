"""The gate: everything that is asked before an endpoint is.

    host ─► who is it? ─► how often? ─► role ─► scope ─► read-only? ─► is the form theirs?

It goes by the route alone. Who brings a token in `Authorization` is known by that and by nothing
else; a user and a password there, which a proxy may have asked for, are not for here. Else a
session counts, except for writes of the API; else, as long as there is no token at all, whoever is
at this machine. Then nobody else is let in, however they ask.
"""

import math
from typing import TYPE_CHECKING

from rowmq.web.callers import Caller
from rowmq.web.csrf import FIELD, HEADER, check_origin, refused
from rowmq.web.headers import host_of, is_from_elsewhere, is_loopback, was_passed_on
from rowmq.web.keys import Keys
from rowmq.web.limits import Limiter
from rowmq.web.problems import Problem
from rowmq.web.sessions import Sessions
from rowmq.web.settings import Settings

if TYPE_CHECKING:
    from rowmq.web.asking import Ask

__all__ = ["CLOSED", "Gate"]

CLOSED = (
    "there is no token yet, so only this machine itself is served: make one with "
    "`rowmq tokens create NAME --role read`, or open http://localhost:... on the machine"
)

BEARER = {"WWW-Authenticate": 'Bearer realm="rowmq"'}


class Gate:
    """Lets a request through, or raises `Problem`."""

    def __init__(self, settings: Settings, keys: Keys, sessions: Sessions) -> None:
        self.settings = settings
        self.keys = keys
        self.sessions = sessions
        self.limiter = Limiter(settings.requests_per_second, settings.burst)

    async def admit(self, ask: "Ask") -> None:
        """Find out who asks, and whether they may."""
        self._check_host(ask)
        route = ask.route
        ask.session = self.sessions.of(ask.request)
        if ask.session is not None:
            ask.csrf = self.sessions.csrf_of(ask.session)
        by_token = False
        if route.needs is not None:
            by_token = await self.identify(ask)
        self._check_pace(ask)
        if route.needs is not None:
            self._check_caller(ask)
        if route.writes:
            if self.settings.read_only and route.needs is not None:
                raise Problem(403, "this site is read-only", kind="read-only")
            if not by_token:
                await self._check_form(ask)
        elif ask.caller.known and not by_token and is_from_elsewhere(ask.request.headers):
            raise refused("a page of another site asks for it")

    async def admit_again(self, ask: "Ask") -> None:
        """Find out whether who was let in some time ago still would be: a token may have been
        revoked, or the first one made.
        """
        if not await self.keys.knows(ask.mq, ask.caller.token_id, ask.caller.digest):
            raise Problem(
                401, "this token was revoked, or has expired", headers=BEARER, kind="bad-token"
            )

    def _check_host(self, ask: "Ask") -> None:
        host = host_of(ask.request.headers)
        if host is None:
            raise Problem(400, "the request must have one Host header")
        hosts = self.settings.hosts
        if hosts and host not in hosts and not is_loopback(host):
            raise Problem(421, "this site is not served under that name", kind="unknown-host")

    async def identify(self, ask: "Ask") -> bool:
        """Find the caller, if it is anybody; True if by a token that came with the request."""
        scheme, _, secret = ask.request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            ask.caller = await self._by_token(ask, secret.strip())
            return True
        if ask.session is not None and not (ask.route.is_api and ask.route.writes):
            caller = await self.keys.by_session(ask.mq, ask.session)
            if caller is not None:
                ask.caller = caller
                ask.signed_in = True
                return False
        if not await self.keys.any(ask.mq):
            self._check_machine(ask)
            ask.caller = Caller.loopback()
            ask.session = None
            ask.csrf = self.sessions.csrf_of(None)
        return False

    async def _by_token(self, ask: "Ask", secret: str) -> Caller:
        caller = await self.keys.by_secret(ask.mq, secret, ask.remote)
        if caller is None:
            raise Problem(
                401, "this token is unknown, expired or revoked", headers=BEARER, kind="bad-token"
            )
        return caller

    def _check_machine(self, ask: "Ask") -> None:
        """Without a token: nobody but this machine, by a name that can only be its own. Any other
        may lead here from a page of somebody who owns it; or from a proxy that says nothing, for
        which names are set.
        """
        request = ask.request
        if (
            self.settings.proxied
            or not is_loopback(ask.remote)
            or was_passed_on(request.headers, request.scope.get("http_version", "1.1"))
            or not is_loopback(host_of(request.headers) or "")
        ):
            raise Problem(403, CLOSED, kind="closed")

    def _check_pace(self, ask: "Ask") -> None:
        caller = ask.caller
        wait = self.limiter.take(f"name {caller.name}" if caller.known else f"at {ask.remote}")
        if wait:
            after = {"Retry-After": str(math.ceil(wait))}
            raise Problem(429, "too many requests; wait a little", headers=after)

    def _check_caller(self, ask: "Ask") -> None:
        route, caller = ask.route, ask.caller
        if not caller.known:
            raise Problem(
                401,
                "sign in, or send Authorization: Bearer and a token"
                + (": here a session may only look" if ask.session is not None else ""),
                headers=BEARER,
                kind="token-missing",
            )
        caller.demand(
            route.needs,
            topic=None if route.topic is None else ask.path[route.topic],
            queue=None if route.queue is None else ask.path[route.queue],
            everything=route.everywhere,
        )

    async def _check_form(self, ask: "Ask") -> None:
        """What a browser was made to send by somebody else is refused."""
        check_origin(ask.request.headers, self.settings.hosts)
        if ask.route.is_api or not ask.csrf:
            return
        given = ask.request.headers.get(HEADER)
        if given is None:
            given = (await ask.form()).get(FIELD, "")
        if not self.sessions.is_csrf(ask.session, given):
            raise refused("its form is from an earlier session; load the page again")
