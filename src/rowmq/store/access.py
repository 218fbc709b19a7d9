"""Tokens, sessions that were signed out of, and the audit trail: who may, and who did.

A token is looked up by the hash of its secret. A session is a cookie and no row; but one that was
signed out of must be known to every server until it would have ended by itself. A row of the trail
is written before an action begins, and told afterwards how it ended. None of this is ever read by
messages and jobs on their way.
"""

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import msgspec

from rowmq.errors import TokenTaken, UniqueViolation
from rowmq.quoting import quoted
from rowmq.rights import AuditEntry, Ending, Role, TokenInfo, digest_of, same
from rowmq.store.dialect import Dialect, Row, as_text
from rowmq.store.statement import Operation, Statement
from rowmq.times import from_micros

__all__ = ["Access", "Grant", "Note"]

TOKENS_MAX = 1_000
"""How many tokens are listed."""

USED_EVERY_US = 60_000_000
"""How exactly it is known when a token was last used: so often, at most, that is written."""

PRUNE_BATCH = 500

FORGET_BATCH = 10
"""How many sessions are forgotten with each that is ended: so there are never many more than were
ended within the time that one lasts.
"""

ID_MAX = 2**62

ENDINGS = (Ending.BEGUN, Ending.DONE, Ending.REFUSED, Ending.FAILED)
"""By their numbers in the database."""


class Grant(NamedTuple):
    """A token that is to be made, checked."""

    name: str
    secret_hash: str
    roles: frozenset[Role]
    topics: Sequence[str]
    queues: Sequence[str]
    lives_us: int | None


class Note(NamedTuple):
    """An entry of the trail that is to be written, with texts that every database can store."""

    who: str
    action: str
    target: str
    remote: str
    ending: Ending
    details: str


class Access:
    """The operations on tokens and on the trail, for one dialect."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect

    # --- tokens -----------------------------------------------------------------------------------

    def create(self, grant: Grant) -> Operation[None]:
        """Make a token. Raises `TokenTaken` if another one of its name may still be used."""
        dialect, name = self.dialect, self.dialect.text(grant.name)
        yield from dialect.seize()
        yield Statement("access.let_go", dialect.sql(LET_GO), (name,))
        found = yield Statement("access.named", dialect.sql(NAMED), (name,))
        if found.rows:
            if same(as_text(found.rows[0][1]), grant.secret_hash):
                return  # the answer to its commit was lost
            raise taken(grant.name)
        roles = ",".join(sorted(grant.roles))
        scopes = (msgspec.json.encode(names).decode() for names in (grant.topics, grant.queues))
        texts = (grant.secret_hash, grant.name, grant.name, roles, *scopes)
        params = (grant.lives_us, *map(dialect.text, texts))
        try:
            yield Statement("access.create", dialect.sql(CREATE), params)
        except UniqueViolation as error:
            raise taken(grant.name) from error

    def list_tokens(self) -> Operation[list[TokenInfo]]:
        """Tokens, those that may be used before those that have ended; the newest of each first."""
        found = yield Statement("access.tokens", self.dialect.sql(TOKENS), (TOKENS_MAX,), sole=True)
        return [token_of(row) for row in found]

    def has_tokens(self) -> Operation[bool]:
        """Whether there ever was a token."""
        found = yield Statement("access.has_tokens", self.dialect.sql(ANY), sole=True)
        return bool(found.rows)

    def token(self, id: int) -> Operation[TokenInfo | None]:
        """The token of an id."""
        found = yield Statement("access.token", self.dialect.sql(BY_ID), (id,), sole=True)
        return token_of(found.rows[0]) if found.rows else None

    def find_secret(self, secret_hash: str) -> Operation[tuple[TokenInfo, bool] | None]:
        """The token of a secret, and whether it is long ago that it was used."""
        params = (USED_EVERY_US, self.dialect.text(secret_hash))
        found = yield Statement("access.find_secret", self.dialect.sql(BY_HASH), params, sole=True)
        if not found.rows:
            return None
        *facts, is_long_ago = found.rows[0]
        token = token_of(facts)
        return (token, bool(is_long_ago)) if same(token.digest, digest_of(secret_hash)) else None

    def touch(self, id: int) -> Operation[None]:
        """Write down that a token was used."""
        yield Statement("access.touch", self.dialect.sql(TOUCH), (id,), sole=True)

    def find_named(self, name: str) -> Operation[int | None]:
        """The id of the token that has a name now."""
        params = (self.dialect.text(name),)
        found = yield Statement("access.named", self.dialect.sql(NAMED), params, sole=True)
        return int(found.rows[0][0]) if found.rows else None

    def revoke(self, id: int) -> Operation[None]:
        """End a token."""
        yield from self.dialect.seize()
        yield Statement("access.revoke", self.dialect.sql(REVOKE), (id,))

    # --- sessions that were signed out of ---------------------------------------------------------

    def end_session(self, nonce: str, lasts_us: int) -> Operation[None]:
        """Have a session be over for every server. It would have lasted so long: afterwards it need
        not be known any more, and so goes with one that is ended later.
        """
        dialect = self.dialect
        yield from dialect.seize()
        found = yield Statement("access.over", dialect.sql(OVER), (FORGET_BATCH,))
        for row in found:
            yield Statement("access.forget_session", dialect.sql(FORGET_SESSION), tuple(row))
        params = (dialect.text(nonce), lasts_us)
        ending = dialect.unless_there("nonce")
        yield Statement("access.end_session", f"{dialect.sql(END_SESSION)} {ending}", params)

    def has_ended(self, nonce: str) -> Operation[bool]:
        """Whether a session was signed out of, at any server."""
        params = (self.dialect.text(nonce),)
        found = yield Statement("access.has_ended", self.dialect.sql(ENDED), params, sole=True)
        return bool(found.rows)

    # --- the trail --------------------------------------------------------------------------------

    def record(self, note: Note) -> Operation[int]:
        """Write an entry; its id."""
        yield from self.dialect.seize()
        texts = (note.who, note.action, note.target, note.remote, note.details)
        params = (ENDINGS.index(note.ending), *map(self.dialect.text, texts))
        return (yield from self.dialect.insert_id("access.record", RECORD, params))

    def conclude(
        self, id: int, ending: Ending, target: str | None, details: str
    ) -> Operation[None]:
        """Say how something ended. Without a target, that stays as it is."""
        text = self.dialect.text
        stored = None if target is None else text(target)
        params = (ENDINGS.index(ending), stored, text(details), id)
        yield Statement("access.conclude", self.dialect.sql(CONCLUDE), params, sole=True)

    def audit(
        self, *, limit: int, before: int | None, who: str | None, action: str | None
    ) -> Operation[list[AuditEntry]]:
        """Entries, the newest first, of those before an id."""
        # A range, though who and action are the same at both of its ends: an equality would let
        # PostgreSQL go through all entries by their ids, in the hope to come upon enough of them.
        chosen = {"who": who, "action": action}
        fixed = {column: value for column, value in chosen.items() if value is not None}
        columns = (*fixed, "id")
        bounds = {"<": ID_MAX if before is None else before, ">": 0}
        within = " AND ".join(self.dialect.past(columns, sign) for sign in bounds)
        order = ", ".join(f"{column} DESC" for column in columns)
        sql = self.dialect.sql(AUDIT.replace("<within>", within).replace("<order>", order))
        places = (self.dialect.past_params((*fixed.values(), id)) for id in bounds.values())
        params = (*chain.from_iterable(places), limit)
        found = yield Statement("access.audit", sql, params, sole=True)
        return [entry_of(row) for row in found]

    def prune(self, age_us: int) -> Operation[int]:
        """Delete some of the oldest entries, if they are so old; how many."""
        yield from self.dialect.seize()
        params = (age_us, PRUNE_BATCH)
        found = yield Statement("access.oldest", self.dialect.sql(OLDEST), params)
        old = [id for id, is_old in found if is_old]
        if not old:
            return 0
        # What was written in the meantime has other ids.
        bounds = (min(old), max(old), age_us)
        yield Statement("access.prune", self.dialect.sql(PRUNE), bounds)
        return len(old)


def taken(name: str) -> TokenTaken:
    return TokenTaken(
        f"there is a token {quoted(name)} already: choose another name, or revoke that one first"
    )


def token_of(row: Row) -> TokenInfo:
    id, name, roles, topics, queues, secret_hash, created_at, *moments, live = row
    expires_at, used_at, revoked_at = (
        None if moment is None else from_micros(moment) for moment in moments
    )
    return TokenInfo(
        id=int(id),
        name=as_text(name),
        roles=frozenset(map(Role, as_text(roles).split(","))),
        topics=scopes_of(topics),
        queues=scopes_of(queues),
        created_at=from_micros(created_at),
        expires_at=expires_at,
        used_at=used_at,
        revoked_at=revoked_at,
        live=bool(live),
        digest=digest_of(as_text(secret_hash)),
    )


def scopes_of(value: str | bytes) -> tuple[str, ...]:
    return msgspec.json.decode(as_text(value), type=tuple[str, ...])


def entry_of(row: Row) -> AuditEntry:
    id, at, ending, who, action, target, remote, details = row
    return AuditEntry(
        id=int(id),
        at=from_micros(at),
        who=as_text(who),
        action=as_text(action),
        target=as_text(target),
        ending=ENDINGS[ending],
        details=msgspec.json.decode(as_text(details)),
        remote=as_text(remote),
    )


LIVE = "revoked_at IS NULL AND (expires_at IS NULL OR expires_at > {now})"

FACTS = f"""id, name, roles, topics, queues, secret_hash,
    created_at, expires_at, used_at, revoked_at,
    CASE WHEN {LIVE} THEN 1 ELSE 0 END AS live"""

TOKENS = f"SELECT {FACTS} FROM {{tokens}} ORDER BY live DESC, id DESC LIMIT ?"

ANY = "SELECT id FROM {tokens} LIMIT 1"

BY_ID = f"SELECT {FACTS} FROM {{tokens}} WHERE id = ?"

BY_HASH = f"""
    SELECT {FACTS},
        CASE WHEN used_at > {{now}} - ? THEN 0 ELSE 1 END AS is_long_ago
    FROM {{tokens}} WHERE secret_hash = ?"""

TOUCH = "UPDATE {tokens} SET used_at = {now} WHERE id = ?"

LET_GO = "UPDATE {tokens} SET name_in_use = NULL WHERE name_in_use = ? AND expires_at <= {now}"

NAMED = "SELECT id, secret_hash FROM {tokens} WHERE name_in_use = ?"

CREATE = """
    INSERT INTO {tokens}
        (created_at, expires_at, secret_hash, name, name_in_use, roles, topics, queues)
    VALUES ({now}, {now} + ?, ?, ?, ?, ?, ?, ?)"""

REVOKE = """
    UPDATE {tokens} SET revoked_at = {now}, name_in_use = NULL
    WHERE id = ? AND revoked_at IS NULL"""

OVER = """
    SELECT nonce FROM {ended_sessions} WHERE ends_at <= {now}
    ORDER BY ends_at LIMIT ? {skip_locked}"""

FORGET_SESSION = "DELETE FROM {ended_sessions} WHERE nonce = ?"

END_SESSION = "INSERT INTO {ended_sessions} (nonce, ends_at) VALUES (?, {now} + ?)"

ENDED = "SELECT 1 FROM {ended_sessions} WHERE nonce = ?"

RECORD = """
    INSERT INTO {audit} (at, ending, who, action, target, remote, details)
    VALUES ({now}, ?, ?, ?, ?, ?, ?)"""

CONCLUDE = "UPDATE {audit} SET ending = ?, target = COALESCE(?, target), details = ? WHERE id = ?"

AUDIT = """
    SELECT id, at, ending, who, action, target, remote, details FROM {audit}
    WHERE <within> ORDER BY <order> LIMIT ?"""

OLDEST = """
    SELECT id, CASE WHEN at <= {now} - ? THEN 1 ELSE 0 END AS is_old
    FROM {audit} ORDER BY id LIMIT ?"""

PRUNE = "DELETE FROM {audit} WHERE id BETWEEN ? AND ? AND at <= {now} - ?"
