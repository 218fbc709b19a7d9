"""Who may do what: roles, scopes and tokens, and the trail of what was done. Plain values.

A token is a secret that a person or a program shows to the dashboard or the HTTP API. It has roles,
which say what may be done, and scopes, which say to what: names of topics and queues, or prefixes
of names that end in `*`. The database keeps a hash of it only, so that nobody who reads a backup
can use it. The secret is 256 random bits: no salt, and no slow hash, would make it harder to guess.
"""

import hashlib
import hmac
import secrets
from collections.abc import Iterable, Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any

import msgspec

from rowmq.errors import InvalidName, InvalidOption
from rowmq.naming import check_scope, check_token
from rowmq.quoting import quoted

__all__ = [
    "EVERYTHING",
    "AuditEntry",
    "Ending",
    "Role",
    "TokenInfo",
    "check_roles",
    "check_scopes",
    "check_token_name",
    "digest_of",
    "hash_of",
    "new_secret",
    "same",
    "within",
]

SCOPES_MAX = 100

EVERYTHING = ("*",)

SECRET_PREFIX = "rowmq_"  # noqa: S105 - what a secret begins with, so that scanners know it


class Role(StrEnum):
    """What a token is for."""

    READ = "read"
    """Look at everything in scope, payloads too."""

    PRODUCE = "produce"
    """Publish messages, put and offer jobs."""

    CONSUME = "consume"
    """Poll, claim, settle."""

    ADMIN = "admin"
    """All of these, and steer: pause, seek, redrive, purge, configure."""


class Ending(StrEnum):
    """What became of an action of the audit trail."""

    BEGUN = "begun"
    """It was begun, and nobody said how it ended: whoever did it was cut off."""

    DONE = "done"
    REFUSED = "refused"
    FAILED = "failed"


class TokenInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A token, without its secret.

    `used_at` is when it was last shown, to the minute. `live` says that it may be used: it is
    neither revoked nor expired, by the database's clock when it was looked at. `digest` tells it
    from all others, also from those of other databases, whose ids and names may be the same;
    nothing of the secret can be found out by it.
    """

    id: int
    name: str
    roles: frozenset[Role]
    topics: tuple[str, ...]
    queues: tuple[str, ...]
    created_at: datetime
    expires_at: datetime | None
    used_at: datetime | None
    revoked_at: datetime | None
    live: bool
    digest: str


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Something that somebody did, or tried to: `who` did `action` to `target`, from `remote`."""

    id: int
    at: datetime
    who: str
    action: str
    target: str
    ending: Ending
    details: Mapping[str, Any]
    remote: str


def new_secret() -> str:
    """A secret that nobody can guess."""
    return SECRET_PREFIX + secrets.token_urlsafe(32)


def hash_of(secret: str) -> str:
    """What the database keeps of a secret."""
    return hashlib.sha256(secret.encode(errors="surrogatepass")).hexdigest()


def digest_of(secret_hash: str) -> str:
    """What tells a token from all others, of any database: made of what is kept of its secret."""
    return hashlib.sha256(f"rowmq token {secret_hash}".encode()).hexdigest()[:32]


def same(left: str, right: str) -> bool:
    """Whether two texts are the same, in a time that does not tell where they differ."""
    return hmac.compare_digest(
        left.encode(errors="surrogatepass"), right.encode(errors="surrogatepass")
    )


def within(name: str, scopes: Iterable[str]) -> bool:
    """Whether a name is in scope: named, or begun by a prefix that ends in `*`."""
    return any(
        name.startswith(scope[:-1]) if scope.endswith("*") else name == scope for scope in scopes
    )


def check_token_name(name: str) -> str:
    """The name of a token, if it can be one."""
    name = check_token(name)
    if not name.strip() or name.startswith("("):
        raise InvalidName(
            f"a token's name must not be blank, and not begin with a parenthesis, which the audit "
            f"trail has for callers without a token; got {quoted(name)}"
        )
    return name


def check_roles(roles: Iterable[Role | str]) -> frozenset[Role]:
    """Roles, at least one, by value or name."""
    known = ", ".join(Role)
    if isinstance(roles, str) or not isinstance(roles, Iterable):
        raise InvalidOption(f"roles must be a list of {known}, not {quoted(roles)}")
    found = list(roles)
    try:
        checked = frozenset(Role(role) for role in found)
    except ValueError:
        raise InvalidOption(f"roles are {known}; got {quoted(found)}") from None
    if not checked:
        raise InvalidOption(f"a token needs at least one role, of {known}")
    return checked


def check_scopes(name: str, scopes: Iterable[str]) -> tuple[str, ...]:
    """Names, and prefixes that end in `*`, each once. None at all is right: nothing is in scope."""
    if isinstance(scopes, str) or not isinstance(scopes, Iterable):
        raise InvalidOption(
            f"{name} must be a list of names, or of prefixes that end in *, not {quoted(scopes)}"
        )
    checked = dict.fromkeys(check_scope(scope) for scope in scopes)
    if len(checked) > SCOPES_MAX:
        raise InvalidOption(f"{name} may have at most {SCOPES_MAX} scopes, not {len(checked)}")
    return tuple(checked)
