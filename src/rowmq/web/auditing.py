"""The audit trail: a row for every action, written before it begins and again when it has ended.

An action that cannot be written down is not done. One that was cut off stays as begun, with what
was asked for. What was refused is written, too, but only so much a minute of each caller, of each
address that nobody is known at, and of all these together: else they could fill the disk with it.
How much was left out is a row, too.
"""

import logging
import time
from collections import Counter
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from rowmq.errors import RowMQError
from rowmq.quoting import within
from rowmq.rights import Ending
from rowmq.web import existing
from rowmq.web.foretold import foretold
from rowmq.web.limits import Limiter
from rowmq.web.problems import Problem, problem_of

if TYPE_CHECKING:
    from rowmq.client import AsyncRowMQ
    from rowmq.web.asking import Ask

__all__ = ["NOBODY", "Auditor"]

log = logging.getLogger("rowmq.web")

NOBODY = "(nobody)"
OURSELVES = "(site)"

ADDRESS_AT_ONCE, ADDRESS_PER_MINUTE = 30, 2
NOBODYS_AT_ONCE, NOBODYS_PER_MINUTE = 300, 5
"""How many rows of those who are nobody, at one address and at all: at once, and in the long run.
Nobody else can be kept from filling the trail for months, and it is kept for ever.
"""

REFUSED_PER_MINUTE = 300
"""How many rows of one who is known."""

ERROR_CHARS_MAX = 200

TELL_SECONDS = 60.0
TOLD_MAX = 10
"""How often it is told what was left out, and of how many callers."""

FORBIDDEN = (401, 403)
REFUSALS = (*FORBIDDEN, 421, 429)


class Auditor:
    """Writes the trail of a site."""

    def __init__(self, *, messages: bool) -> None:
        self.messages = messages
        self.nobodys = Limiter(NOBODYS_PER_MINUTE / 60, NOBODYS_AT_ONCE)
        self.addresses = Limiter(ADDRESS_PER_MINUTE / 60, ADDRESS_AT_ONCE)
        self.known = Limiter(REFUSED_PER_MINUTE / 60, REFUSED_PER_MINUTE)
        self.left_out: Counter[str] = Counter()
        """How many rows of whom were not written, since that was written down."""
        self._told_at = 0.0

    async def answer(self, ask: "Ask") -> Response:
        """What the endpoint answers, with the rows of it."""
        route = ask.route
        if not route.writes:
            return await existing.answer(ask)
        if route.needs is None:  # who it is shows only afterwards
            return await self._afterwards(ask)
        if route.audited or self.messages:
            return await self._around(ask)
        try:
            return await existing.answer(ask)
        except Exception as error:
            if ending_of(error) is Ending.REFUSED:
                await self._write(ask, Ending.REFUSED, why(error))
            raise

    async def refused(self, ask: "Ask", error: Exception) -> None:
        """Write down that the gate did not let an action through."""
        if ask.route.writes:
            await self._write(ask, Ending.REFUSED, why(error))

    async def tell(self, mq: "AsyncRowMQ", *, at_once: bool = False) -> None:
        """Write down how much was left out, now and then."""
        if not self.left_out:
            return
        if not at_once and time.monotonic() - self._told_at < TELL_SECONDS:
            return
        left_out, self.left_out, self._told_at = self.left_out, Counter(), time.monotonic()
        details = {"rows": left_out.total(), "of": dict(left_out.most_common(TOLD_MAX))}
        try:
            await mq.access.record("audit.left_out", who=OURSELVES, details=details)
        except RowMQError as error:
            self.left_out.update(left_out)
            log.warning("the audit trail does not say what it lacks: %s", error)

    async def _around(self, ask: "Ask") -> Response:
        await self.tell(ask.mq)
        try:
            asked = await foretold(ask)
        except Problem as problem:
            await self._write(ask, Ending.FAILED, why(problem))
            raise
        entry = await ask.mq.access.record(
            str(ask.route.action),
            who=ask.caller.name,
            target=target_of(ask),
            details=asked,
            remote=ask.remote,
            ending=Ending.BEGUN,
        )
        try:
            response = await existing.answer(ask)
        except Exception as error:
            await self._conclude(ask, entry, ending_of(error), {**asked, **ask.notes, **why(error)})
            raise
        ending, more = Ending.DONE, {**asked, **ask.notes}
        if response.status_code >= 400:
            ending, more = Ending.FAILED, {**more, "status": response.status_code}
        await self._conclude(ask, entry, ending, more)
        return response

    async def _afterwards(self, ask: "Ask") -> Response:
        try:
            response = await existing.answer(ask)
        except Exception as error:
            await self._write(ask, ending_of(error, REFUSALS), why(error))
            raise
        if response.status_code < 400:
            # What cannot be written down is not answered: nobody gets a session by it.
            if not ask.in_vain:
                await self._record(ask, Ending.DONE, {})
        else:
            ending = Ending.REFUSED if response.status_code in REFUSALS else Ending.FAILED
            await self._write(ask, ending, {})
        return response

    async def _write(self, ask: "Ask", ending: Ending, more: Mapping[str, Any]) -> None:
        """A row after the fact, which nothing depends on any more."""
        if self._is_too_much(ask):
            self.left_out[ask.caller.name or NOBODY] += 1
            log.info("%s, %s, is not written down: too many such", ask.route.action, ending)
            return
        try:
            await self.tell(ask.mq)
            await self._record(ask, ending, more)
        except RowMQError as error:
            log.warning("the audit trail lacks %s of %r: %s", ask.route.action, ask.remote, error)

    def _is_too_much(self, ask: "Ask") -> bool:
        """Whether there were too many rows of these lately; else there is one more."""
        if ask.caller.known:
            return self.known.take(ask.caller.name) > 0
        return self.addresses.take(ask.remote) > 0 or self.nobodys.take("") > 0

    async def _record(self, ask: "Ask", ending: Ending, more: Mapping[str, Any]) -> None:
        await ask.mq.access.record(
            str(ask.route.action),
            who=ask.caller.name or NOBODY,
            target=target_of(ask),
            details={**ask.notes, **more},
            remote=ask.remote,
            ending=ending,
        )

    async def _conclude(
        self, ask: "Ask", entry: int, ending: Ending, details: Mapping[str, Any]
    ) -> None:
        target = None if ask.target is None else target_of(ask)
        try:
            await ask.mq.access.conclude(entry, ending, target=target, details=details)
        except RowMQError as error:
            log.warning("the audit trail does not say how %s ended: %s", ask.route.action, error)


def target_of(ask: "Ask") -> str:
    """What an action is done to: by the path, unless the endpoint knew better."""
    return within(*(ask.path.values() if ask.target is None else ask.target))


def ending_of(error: Exception, refusals: Collection[int] = FORBIDDEN) -> Ending:
    """Whether somebody was not let do something, or it went wrong."""
    found = problem_of(error)
    is_refusal = found is not None and (found.hides is not None or found.status in refusals)
    return Ending.REFUSED if is_refusal else Ending.FAILED


def why(error: Exception) -> dict[str, Any]:
    """What went wrong, for the trail."""
    found = problem_of(error)
    if found is None:
        return {"error": type(error).__name__}
    return {"error": found.hides or found.kind, "detail": found.detail[:ERROR_CHARS_MAX]}
