"""Tokens as a site sees them: looked up in the database, and remembered for a moment.

What is remembered is for a second or so, which spares the database a read for each request; a token
that is revoked elsewhere is good that long. Only hashes are remembered. Who is wrong too often from
one address is not looked up any more for a while, so that guessing costs the database nothing; but
tokens that were right before are, so that nobody is locked out by a neighbour's guesses. The token
of the settings is guessed no faster than any other.
"""

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from rowmq.client import AsyncRowMQ
from rowmq.rights import TokenInfo, hash_of, same
from rowmq.web.callers import Caller
from rowmq.web.limits import Limiter
from rowmq.web.problems import Problem
from rowmq.web.sessions import Session
from rowmq.web.settings import Settings

__all__ = ["Keys"]

REMEMBERED_MAX = 10_000


class Keys:
    """Finds the caller of a secret or of a session."""

    def __init__(self, settings: Settings, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.settings = settings
        self.clock = clock
        self.failures = Limiter(
            settings.failures_per_minute / 60, settings.failures_per_minute, clock=clock
        )
        self._operator = None if settings.token is None else Caller.operator(settings.token)
        self._remembered: OrderedDict[tuple[str, Any], tuple[Any, float]] = OrderedDict()
        self._were_right: OrderedDict[str, None] = OrderedDict()
        self._looking: dict[str, dict[str, asyncio.Task[Caller | None]]] = {}
        """Secrets that are being looked up, by where they came from and their hashes."""

    async def by_secret(self, mq: AsyncRowMQ, secret: str, remote: str) -> Caller | None:
        """The caller of a secret; None if it is no token that may be used."""
        hashed = hash_of(secret)
        found: Caller | None = self._recall("secret", hashed)
        if found is not None:
            return found
        while True:
            looking = self._looking.setdefault(remote, {})
            task = looking.get(hashed)
            free = hashed in self._were_right
            if task is not None or free or not (wait := self.failures.take(remote)):
                break
            if not looking:
                del self._looking[remote]
                raise too_many(wait)
            # Some of these may be right, and be given back.
            await asyncio.wait(looking.values(), return_when=asyncio.FIRST_COMPLETED)
        if task is None:
            look = self._look_up(mq, secret, hashed, remote, taken=not free)
            task = looking[hashed] = asyncio.create_task(look, name="rowmq-token")
        return await asyncio.shield(task)

    async def _look_up(
        self, mq: AsyncRowMQ, secret: str, hashed: str, remote: str, *, taken: bool
    ) -> Caller | None:
        """Look a secret up. It was `taken` for a wrong one before: else many that come at once
        would all be let through, as long as none is known to be wrong.
        """
        try:
            found = await self._caller_of(mq, secret)
        except BaseException:
            if taken:
                self.failures.give_back(remote)  # nobody knows whether it is wrong
            raise
        finally:
            self._looking[remote].pop(hashed)
            if not self._looking[remote]:
                del self._looking[remote]
        if found is None:
            # Not remembered: it may be made in this moment, and guesses are of any number.
            self._were_right.pop(hashed, None)
            if not taken:
                self.failures.take(remote)
            return None
        if taken:
            self.failures.give_back(remote)
        self._remember("secret", hashed, found)
        self._were_right[hashed] = None
        if len(self._were_right) > REMEMBERED_MAX:
            self._were_right.popitem(last=False)
        return found

    async def _caller_of(self, mq: AsyncRowMQ, secret: str) -> Caller | None:
        if self.settings.token is not None and same(secret, self.settings.token):
            return self._operator
        found = await mq.access.check_token(secret)
        return None if found is None else Caller.of(found)

    async def by_session(self, mq: AsyncRowMQ, session: Session) -> Caller | None:
        """The caller of a session; None if it was signed out of, or its token is no more."""
        caller = await self.by_digest(mq, session.token_id, session.digest)
        if caller is None:
            return None
        look = partial(mq._store.access.has_ended, session.nonce)  # noqa: SLF001 - the library's own
        run = mq._run  # noqa: SLF001
        return None if await self._through("over", session.nonce, lambda _: run(look)) else caller

    async def by_digest(self, mq: AsyncRowMQ, token_id: int | None, digest: str) -> Caller | None:
        """The caller that has a token, if it may still be used and is the one that is meant: other
        databases have the same ids.
        """
        if token_id is None:
            found = self._operator
        else:
            token: TokenInfo | None = await self._through("id", token_id, mq.access.token)
            found = Caller.of(token) if token is not None and token.live else None
        return found if found is not None and same(found.digest, digest) else None

    async def knows(self, mq: AsyncRowMQ, token_id: int | None, digest: str) -> bool:
        """Whether somebody would still be let in: without a digest, whoever is at this machine."""
        if not digest:
            return not await self.any(mq)
        return await self.by_digest(mq, token_id, digest) is not None

    async def end_session(self, mq: AsyncRowMQ, session: Session, seconds: float) -> None:
        """Have a session be over, which would go on for so long: here at once, and elsewhere in a
        moment.
        """
        end = partial(mq._store.access.end_session, session.nonce, round(seconds * 1_000_000))  # noqa: SLF001
        await mq._run(end)  # noqa: SLF001
        self._remembered.pop(("over", session.nonce), None)

    async def any(self, mq: AsyncRowMQ) -> bool:
        """Whether there is any token. One that was revoked or has expired counts: that the last one
        is gone must not open the doors.
        """
        if self.settings.token is not None:
            return True
        return bool(await self._through("any", None, lambda _: mq.access.has_tokens()))

    def forget(self) -> None:
        """Look everything up again: tokens have changed, and it was done here."""
        self._remembered.clear()

    async def _through(self, kind: str, key: Any, look: Callable[[Any], Awaitable[Any]]) -> Any:
        found = self._recall(kind, key)
        if found is None:
            found = await look(key)
            if found is not None:
                self._remember(kind, key, found)
        return found

    def _recall(self, kind: str, key: Any) -> Any:
        value, until = self._remembered.get((kind, key), (None, 0.0))
        return value if self.clock() < until else None

    def _remember(self, kind: str, key: Any, value: Any) -> None:
        self._remembered[kind, key] = value, self.clock() + self.settings.remember_tokens_seconds
        self._remembered.move_to_end((kind, key))
        while len(self._remembered) > REMEMBERED_MAX:
            self._remembered.popitem(last=False)


def too_many(wait: float) -> Problem:
    """The answer to who was wrong too often."""
    return Problem(
        429,
        "too many wrong tokens came from this address; wait a little",
        headers={"Retry-After": str(math.ceil(wait))},
    )
