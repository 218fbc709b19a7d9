"""Sessions of people who signed in: a signed cookie, and nothing on the server.

A session names the token that it was begun with, which is looked up for each request: with the
token, the session ends. The token is named by its id and by a digest of what is kept of its secret:
sites of several databases may share the secret that cookies are signed with, and ids begin at 1 in
each. A session has an end of its own, too; if it was signed out of before that, the database says
so to every server. Its cookie is kept from scripts and from requests of other sites. The CSRF token
of its forms is made from the session, and is no secret to whoever has it; other sites cannot read
it.
"""

import base64
import binascii
import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from rowmq.rights import same
from rowmq.web.settings import Settings

if TYPE_CHECKING:
    from rowmq.web.asking import Ask, Flash

__all__ = ["FLASH_COOKIE", "SESSION_COOKIE", "Session", "Sessions"]

SESSION_COOKIE = "rowmq_session"
FLASH_COOKIE = "rowmq_flash"

FLASH_SECONDS = 60
FLASH_CHARS_MAX = 600

LOOPBACK = "loopback"
"""What the CSRF token of whoever needs no session is made from."""

T = TypeVar("T")


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """Whom a cookie stands for: by the id of a token, or None for the one of the settings, and by
    the token's digest.
    """

    nonce: str
    token_id: int | None
    digest: str
    ends_at: int


class Sessions:
    """Begins, finds and ends sessions."""

    def __init__(self, settings: Settings, *, clock: Callable[[], float] = time.time) -> None:
        self.settings = settings
        self.clock = clock

    def begin(self, ask: "Ask", response: Response) -> None:
        """Have the browser keep a new session of the caller's."""
        seconds = int(self.settings.session_seconds)
        session = Session(
            nonce=secrets.token_urlsafe(16),
            token_id=ask.caller.token_id,
            digest=ask.caller.digest,
            ends_at=int(self.clock()) + seconds,
        )
        self._keep(ask, response, SESSION_COOKIE, self._signed("session", session), seconds)

    def of(self, request: Request) -> Session | None:
        """The session of a request, if it has one that is whole and has not ended by itself.
        Whether it was signed out of, and whether its token is good, is for `Keys` to say.
        """
        session = self._read("session", request.cookies.get(SESSION_COOKIE), Session)
        return None if session is None or session.ends_at <= self.clock() else session

    def seconds_left(self, session: Session) -> float:
        """For how long a session would go on by itself."""
        return max(0.0, session.ends_at - self.clock())

    def forget(self, ask: "Ask", response: Response) -> None:
        """Have the browser forget its session."""
        response.delete_cookie(SESSION_COOKIE, path=path_of(ask), httponly=True, samesite="strict")

    def csrf_of(self, session: Session | None) -> str:
        """What the forms of a session send back."""
        about = LOOPBACK if session is None else f"{session.nonce} {session.digest}"
        return encoded(self._mac("csrf", about.encode()))

    def is_csrf(self, session: Session | None, given: str) -> bool:
        """Whether a form sent back what it should."""
        return same(given, self.csrf_of(session))

    # --- what the next page says ------------------------------------------------------------------

    def flash(self, ask: "Ask", response: Response, flash: "Flash") -> None:
        """Have the next page say something."""
        told = (flash.level, flash.text[:FLASH_CHARS_MAX])
        self._keep(ask, response, FLASH_COOKIE, self._signed("flash", told), FLASH_SECONDS)

    def flashed(self, request: Request) -> tuple[str, str] | None:
        """What is to be said now."""
        return self._read("flash", request.cookies.get(FLASH_COOKIE), tuple[str, str])

    def forget_flash(self, ask: "Ask", response: Response) -> None:
        """It was said."""
        response.delete_cookie(FLASH_COOKIE, path=path_of(ask), httponly=True, samesite="strict")

    # --- cookies that are signed ------------------------------------------------------------------

    def _keep(self, ask: "Ask", response: Response, name: str, value: str, seconds: int) -> None:
        secure = self.settings.secure_cookies
        response.set_cookie(
            name,
            value,
            max_age=seconds,
            path=path_of(ask),
            secure=ask.request.url.scheme == "https" if secure is None else secure,
            httponly=True,
            samesite="strict",
        )

    def _signed(self, purpose: str, value: object) -> str:
        body = msgspec.json.encode(value)
        return f"{encoded(body)}.{encoded(self._mac(purpose, body))}"

    def _read(self, purpose: str, cookie: str | None, type: type[T]) -> T | None:
        body, _, mac = (cookie or "").partition(".")
        try:
            value = base64.b64decode(padded(body), altchars=b"-_", validate=True)
            if not body or not same(mac, encoded(self._mac(purpose, value))):
                return None
            return msgspec.json.decode(value, type=type)
        except (binascii.Error, ValueError, msgspec.MsgspecError):  # signed by another release
            return None

    def _mac(self, purpose: str, body: bytes) -> bytes:
        # With the token of the settings end the sessions that were begun with it.
        key = f"rowmq {purpose} {self.settings.secret} {self.settings.token or ''}".encode()
        return hmac.digest(hashlib.sha256(key).digest(), body, "sha256")


def path_of(ask: "Ask") -> str:
    """Where cookies are sent back to."""
    return ask.root or "/"


def encoded(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()


def padded(text: str) -> str:
    return text + "=" * (-len(text) % 4)
