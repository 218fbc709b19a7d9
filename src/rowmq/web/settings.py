"""What can be set about a site, checked once when it is made."""

import re
import secrets
from typing import Self

import msgspec

from rowmq.errors import InvalidOption
from rowmq.quoting import quoted
from rowmq.web.masking import DEFAULT_MASKS, check_masks

__all__ = ["BODY_BYTES_MAX", "TOKEN_CHARS_MIN", "Settings"]

BODY_BYTES_MAX = 8 * 1024 * 1024
TOKEN_CHARS_MIN = 20
SECRET_CHARS_MIN = 32

HOST = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*|[0-9a-f:]*:[0-9a-f:.]*")
ROOT_PATH = re.compile(r"(/[A-Za-z0-9._~-]+)*")


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How a site behaves.

    `read_only` refuses all that writes, whoever asks. `masks` are rules for what payloads and
    headers do not show: `header:NAME`, `field:NAME`, `path:a.b[*].c`, `payload`, with `*` in names
    for anything. `lake` is the folder of Spark's lake, for its page. `hosts` are the names that it
    is served under: others are refused. `token` is one more secret with every role, for whoever
    sets a site up before there are tokens in the database. `secret` signs sessions; those of a site
    without one end with its process, and several processes that serve one site need the same.
    `root_path` is what every path begins with where a proxy passes on no others. `secure_cookies`
    has browsers send cookies over TLS only; None does so if the request came over TLS. `proxied`
    says that a proxy is in front: then nobody is taken to sit at this machine. `strict_transport`
    has browsers that come by TLS come by nothing else to this host, for a year.

    A caller may make `requests_per_second`, and as many at once as `burst`; an address may be wrong
    `failures_per_minute` about its token.
    """

    read_only: bool = False
    masks: tuple[str, ...] = DEFAULT_MASKS
    lake: str | None = None
    hosts: tuple[str, ...] = ()
    token: str | None = None
    secret: str = msgspec.field(default_factory=lambda: secrets.token_urlsafe(32))
    root_path: str = ""
    secure_cookies: bool | None = None
    proxied: bool = False
    strict_transport: bool = False
    session_seconds: float = 12 * 3600.0
    body_bytes_max: int = BODY_BYTES_MAX
    body_seconds_max: float = 30.0
    requests_per_second: float = 200.0
    burst: int = 400
    failures_per_minute: int = 10
    remember_tokens_seconds: float = 1.0
    audit_messages: bool = False

    def checked(self) -> Self:
        """The same settings, or `InvalidOption`."""
        check_masks(self.masks)
        if self.token is not None and len(self.token) < TOKEN_CHARS_MIN:
            raise InvalidOption(
                f"token must have at least {TOKEN_CHARS_MIN} characters that nobody can guess: "
                f"python -c 'import secrets; print(secrets.token_urlsafe(32))' makes some"
            )
        if len(self.secret) < SECRET_CHARS_MIN:
            raise InvalidOption(f"secret must have at least {SECRET_CHARS_MIN} characters")
        if isinstance(self.hosts, str) or not all(map(HOST.fullmatch, self.hosts)):
            raise InvalidOption(
                f"hosts must be a list of names such as rowmq.example.com, in lower case and "
                f"without a port, not {quoted(self.hosts)}"
            )
        if not ROOT_PATH.fullmatch(self.root_path):
            raise InvalidOption(
                f"root_path must look like /queues, without a slash at the end, not "
                f"{quoted(self.root_path)}"
            )
        for name in ("session_seconds", "body_seconds_max", "requests_per_second"):
            if not getattr(self, name) > 0:
                raise InvalidOption(f"{name} must be more than zero")
        for name in ("body_bytes_max", "burst", "failures_per_minute"):
            if getattr(self, name) < 1:
                raise InvalidOption(f"{name} must be 1 or more")
        return self
