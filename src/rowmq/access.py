"""`mq.access`: tokens of the dashboard and the HTTP API, and the trail of what was done there.

Each method is a line or two: the input is checked here, once, and what happens is in `store`.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

import msgspec

from rowmq.drivers.base import Steps, take_steps, take_steps_async
from rowmq.errors import InvalidOption
from rowmq.quoting import quoted
from rowmq.rights import (
    EVERYTHING,
    AuditEntry,
    Ending,
    Role,
    TokenInfo,
    check_roles,
    check_scopes,
    check_token_name,
    hash_of,
    new_secret,
)
from rowmq.store.access import PRUNE_BATCH, Grant, Note
from rowmq.store.access import Access as Operations
from rowmq.store.statement import Operation
from rowmq.times import Duration, to_seconds

__all__ = ["Access", "AsyncAccess"]

T = TypeVar("T")
Run = Callable[..., Any]

WHO_BYTES_MAX = 200
ACTION_BYTES_MAX = 100
REMOTE_BYTES_MAX = 100
TARGET_BYTES_MAX = 4_000
DETAILS_BYTES_MAX = 32_000
DEPTH_MAX = 10

ENTRIES_MAX = 1_000


class _Handle:
    """What both kinds of handles are made of."""

    def __init__(self, operations: Operations, run: Run) -> None:
        self._operations = operations
        self._run = run


class Access(_Handle):
    """Tokens and the audit trail, for sync code: `mq.access`."""

    def create_token(
        self,
        name: str,
        *,
        roles: Iterable[Role | str] = (Role.READ,),
        topics: Iterable[str] = EVERYTHING,
        queues: Iterable[str] = EVERYTHING,
        expires_in: Duration | None = None,
        connection: Any = None,
    ) -> str:
        """Make a token, and return its secret, which nobody can find out any more afterwards.

        `topics` and `queues` are names, or prefixes that end in `*`. Names of tokens that were
        revoked or have expired can be given again. Raises `TokenTaken` and `InvalidInput`.
        """
        secret = new_secret()
        grant = grant_of(secret, name, roles, (topics, queues), expires_in)
        self._run(partial(self._operations.create, grant), connection)
        return secret

    def tokens(self) -> list[TokenInfo]:
        """Tokens, without their secrets: at most a thousand, the newest first. Those that were
        revoked or have expired come after all that may be used.
        """
        return self._run(self._operations.list_tokens)  # type: ignore[no-any-return]

    def revoke_token(self, name: str, *, connection: Any = None) -> bool:
        """Have a token be good for nothing from now on. False if none of this name is in use.

        Dashboards remember a token for a second.
        """
        run = partial(self._run, connection=connection)
        return take_steps(revoke_steps(run, self._operations, check_token_name(name)))

    def check_token(self, secret: str) -> TokenInfo | None:
        """The token of a secret, unless it was revoked or has expired; None if there is none."""
        return take_steps(check_steps(self._run, self._operations, checked_hash(secret)))

    def token(self, id: int) -> TokenInfo | None:
        """A token by its id, whether it may be used or not."""
        return self._run(partial(self._operations.token, check_number("id", id)))  # type: ignore[no-any-return]

    def has_tokens(self) -> bool:
        """Whether there ever was a token: one that has ended counts."""
        return self._run(self._operations.has_tokens)  # type: ignore[no-any-return]

    def record(
        self,
        action: str,
        *,
        who: str,
        target: str = "",
        details: Mapping[str, Any] | None = None,
        remote: str = "",
        ending: Ending = Ending.DONE,
        connection: Any = None,
    ) -> int:
        """Write into the audit trail that somebody did something; the id of the entry.

        What no database can store, and what is too long, is replaced.
        """
        note = note_of(action, (who, remote), target, details, ending)
        operation = partial(self._operations.record, note)
        return self._run(operation, connection)  # type: ignore[no-any-return]

    def conclude(
        self,
        id: int,
        ending: Ending,
        *,
        target: str | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        """Say in the trail how something ended that was recorded as begun."""
        self._run(conclude_operation(self._operations, id, ending, target, details))

    def audit(
        self,
        *,
        limit: int = 100,
        before: int | None = None,
        who: str | None = None,
        action: str | None = None,
    ) -> list[AuditEntry]:
        """Entries of the trail, the newest first; those before the entry of an id, of somebody, or
        of an action.
        """
        operation = audit_operation(self._operations, limit, before, who, action)
        return self._run(operation)  # type: ignore[no-any-return]

    def prune_audit(self, *, older_than: Duration) -> int:
        """Delete old entries of the trail, in short transactions. Returns how many it were."""
        return take_steps(prune_steps(self._run, self._operations, age_of(older_than)))


class AsyncAccess(_Handle):
    """Tokens and the audit trail, for async code: `mq.access`."""

    async def create_token(
        self,
        name: str,
        *,
        roles: Iterable[Role | str] = (Role.READ,),
        topics: Iterable[str] = EVERYTHING,
        queues: Iterable[str] = EVERYTHING,
        expires_in: Duration | None = None,
        connection: Any = None,
    ) -> str:
        """Make a token, and return its secret: see `Access.create_token`."""
        secret = new_secret()
        grant = grant_of(secret, name, roles, (topics, queues), expires_in)
        await self._run(partial(self._operations.create, grant), connection)
        return secret

    async def tokens(self) -> list[TokenInfo]:
        """All tokens, without their secrets: see `Access.tokens`."""
        return await self._run(self._operations.list_tokens)  # type: ignore[no-any-return]

    async def revoke_token(self, name: str, *, connection: Any = None) -> bool:
        """Have a token be good for nothing from now on: see `Access.revoke_token`."""
        run = partial(self._run, connection=connection)
        return await take_steps_async(revoke_steps(run, self._operations, check_token_name(name)))

    async def check_token(self, secret: str) -> TokenInfo | None:
        """The token of a secret, unless it was revoked or has expired; None if there is none."""
        steps = check_steps(self._run, self._operations, checked_hash(secret))
        return await take_steps_async(steps)

    async def token(self, id: int) -> TokenInfo | None:
        """A token by its id, whether it may be used or not."""
        operation = partial(self._operations.token, check_number("id", id))
        return await self._run(operation)  # type: ignore[no-any-return]

    async def has_tokens(self) -> bool:
        """Whether there ever was a token: one that has ended counts."""
        return await self._run(self._operations.has_tokens)  # type: ignore[no-any-return]

    async def record(
        self,
        action: str,
        *,
        who: str,
        target: str = "",
        details: Mapping[str, Any] | None = None,
        remote: str = "",
        ending: Ending = Ending.DONE,
        connection: Any = None,
    ) -> int:
        """Write into the audit trail that somebody did something: see `Access.record`."""
        note = note_of(action, (who, remote), target, details, ending)
        operation = partial(self._operations.record, note)
        return await self._run(operation, connection)  # type: ignore[no-any-return]

    async def conclude(
        self,
        id: int,
        ending: Ending,
        *,
        target: str | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        """Say in the trail how something ended that was recorded as begun."""
        await self._run(conclude_operation(self._operations, id, ending, target, details))

    async def audit(
        self,
        *,
        limit: int = 100,
        before: int | None = None,
        who: str | None = None,
        action: str | None = None,
    ) -> list[AuditEntry]:
        """Entries of the trail, the newest first: see `Access.audit`."""
        operation = audit_operation(self._operations, limit, before, who, action)
        return await self._run(operation)  # type: ignore[no-any-return]

    async def prune_audit(self, *, older_than: Duration) -> int:
        """Delete old entries of the trail: see `Access.prune_audit`."""
        return await take_steps_async(prune_steps(self._run, self._operations, age_of(older_than)))


# --- what takes several transactions, as steps: see `drivers.base` --------------------------------


def check_steps(run: Run, operations: Operations, secret_hash: str) -> Steps[TokenInfo | None]:
    """Find the token of a secret, and note now and then that it was used."""
    found = yield partial(run, partial(operations.find_secret, secret_hash))
    if found is None or not found[0].live:
        return None
    token, is_long_ago = found
    if is_long_ago:
        yield partial(run, partial(operations.touch, token.id))
    return token  # type: ignore[no-any-return]


def revoke_steps(run: Run, operations: Operations, name: str) -> Steps[bool]:
    """End the token that has a name now: by its id, so that it can be repeated."""
    id = yield partial(run, partial(operations.find_named, name))
    if id is None:
        return False
    yield partial(run, partial(operations.revoke, id))
    return True


def prune_steps(run: Run, operations: Operations, age_us: int) -> Steps[int]:
    """Delete old entries, a batch in a transaction."""
    total = 0
    while True:
        done: int = yield partial(run, partial(operations.prune, age_us))
        total += done
        if done < PRUNE_BATCH:
            return total


# --- input, checked -------------------------------------------------------------------------------


def grant_of(
    secret: str,
    name: str,
    roles: Iterable[Role | str],
    scopes: tuple[Iterable[str], Iterable[str]],
    expires_in: Duration | None,
) -> Grant:
    topics, queues = scopes
    lives = None if expires_in is None else to_seconds(expires_in, name="expires_in")
    if lives == 0:
        raise InvalidOption("expires_in must be more than zero; leave it out for never")
    return Grant(
        name=check_token_name(name),
        secret_hash=hash_of(secret),
        roles=check_roles(roles),
        topics=check_scopes("topics", topics),
        queues=check_scopes("queues", queues),
        lives_us=None if lives is None else round(lives * 1_000_000),
    )


def note_of(
    action: str,
    somebody: tuple[str, str],
    target: str,
    details: Mapping[str, Any] | None,
    ending: Ending,
) -> Note:
    who, remote = somebody
    if not check_text("action", action) or not check_text("who", who):
        raise InvalidOption("an entry of the audit trail says who did what; give both")
    return Note(
        who=fitted(who, WHO_BYTES_MAX),
        action=fitted(action, ACTION_BYTES_MAX),
        target=fitted(check_text("target", target), TARGET_BYTES_MAX),
        remote=fitted(check_text("remote", remote), REMOTE_BYTES_MAX),
        ending=check_ending(ending),
        details=details_text(details),
    )


def conclude_operation(
    operations: Operations,
    id: int,
    ending: Ending,
    target: str | None,
    details: Mapping[str, Any] | None,
) -> Callable[[], Operation[None]]:
    fitting = None if target is None else fitted(check_text("target", target), TARGET_BYTES_MAX)
    known, ended = check_number("id", id), check_ending(ending)
    return partial(operations.conclude, known, ended, fitting, details_text(details))


def audit_operation(
    operations: Operations, limit: int, before: int | None, who: str | None, action: str | None
) -> Callable[[], Operation[list[AuditEntry]]]:
    if type(limit) is not int or not 1 <= limit <= ENTRIES_MAX:
        raise InvalidOption(f"limit must be from 1 to {ENTRIES_MAX:,}, not {quoted(limit)}")
    return partial(
        operations.audit,
        limit=limit,
        before=None if before is None else check_number("before", before),
        who=None if who is None else fitted(check_text("who", who), WHO_BYTES_MAX),
        action=None if action is None else fitted(check_text("action", action), ACTION_BYTES_MAX),
    )


def age_of(older_than: Duration) -> int:
    return round(to_seconds(older_than, name="older_than") * 1_000_000)


def checked_hash(secret: str) -> str:
    return hash_of(check_text("secret", secret))


def check_text(name: str, value: str) -> str:
    if not isinstance(value, str):
        raise InvalidOption(f"{name} must be text, not {quoted(value)}")
    return value


def check_number(name: str, value: int) -> int:
    if type(value) is not int or not 0 <= value < 2**62:
        raise InvalidOption(f"{name} must be a number that an entry or a token has")
    return value


def check_ending(ending: Ending) -> Ending:
    try:
        return Ending(ending)
    except ValueError:
        raise InvalidOption(f"ending must be {', '.join(Ending)}, not {quoted(ending)}") from None


def fitted(text: str, bytes_max: int) -> str:
    """Text that every database can store, cut where it is too long."""
    data = text.replace("\0", "\ufffd").encode(errors="replace")
    if len(data) <= bytes_max:
        return data.decode()
    return data[: bytes_max - len("…".encode())].decode(errors="ignore") + "…"


def details_text(details: Mapping[str, Any] | None) -> str:
    """Details as JSON, if they are not too many."""
    if details is not None and not isinstance(details, Mapping):
        raise InvalidOption(f"details must be a mapping, not {quoted(details)}")
    text = msgspec.json.encode(plain(details or {}, DEPTH_MAX))
    if len(text) > DETAILS_BYTES_MAX:
        text = msgspec.json.encode({"too_long": len(text)})
    return text.decode()


def plain(value: Any, depth: int) -> Any:
    """A value as JSON can have it, with texts that every database can store."""
    if value is None or type(value) in (bool, float):
        return value
    if type(value) is int and abs(value) < 2**63:
        return value
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Mapping) and depth:
        return {told(key, TARGET_BYTES_MAX): plain(v, depth - 1) for key, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset) and depth:
        return [plain(item, depth - 1) for item in value]
    return told(value, DETAILS_BYTES_MAX)


def told(value: Any, bytes_max: int) -> str:
    """Anything as text."""
    return fitted(value if isinstance(value, str) else quoted(value), bytes_max)
