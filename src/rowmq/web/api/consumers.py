"""Consumers: the subscribers of those who poll topics over HTTP.

A partition is delivered by who owns the lease on it, and that is a process: so a consumer lives in
this one, from its first poll until nobody has asked for anything for a while. It belongs to one
token, topic and group, and has a name, `default` if none was given.

    poll ──► the consumer's subscriber ──► deliveries, each with a receipt ──► the client
                                                                                  │
    ack, nack, ... ──► the delivery, if it is here ──► its subscriber             │
                └────► else, by what the receipt says ──► the database  ◄─────────┘

So a settle may come to any process of the site, and a repeated one is told that it was done. What
ends a delivery is the end of its lease: when this process dies, when the consumer is closed, or
when its visibility has passed and somebody has it again.
"""

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from rowmq.client import AsyncRowMQ
from rowmq.errors import AlreadySettled, Closed, InvalidInput, RowMQError, StaleLease
from rowmq.quoting import quoted
from rowmq.subscriber.delivery import AsyncDelivery, let_go
from rowmq.subscriber.receipts import (
    Claim,
    Refusal,
    awaited,
    claim_of,
    settle_claims,
    wanted_of,
)
from rowmq.web.api.models import Poll
from rowmq.web.api.receipts import Owner, Seal
from rowmq.web.problems import Problem

__all__ = ["Consumer", "Consumers", "Handed", "How", "Identity"]

log = logging.getLogger("rowmq.web")

CONSUMERS_MAX = 100
"""How many consumers a process has: each has a subscriber, with heartbeats and leases. One token
may have as many as are free: half of them alone, and less the more others have.
"""

IN_FLIGHT_MAX = 1_000
BYTES_MAX = 8 * 1024 * 1024
"""What a consumer may have delivered and not settled."""

NAME_BYTES_MAX = 200

SWEEP_SECONDS = 1.0

LOOK_SECONDS = 10.0
"""How often it is looked whether an idle consumer is still expected to be asked for something."""

ELSEWHERE = (
    "this receipt is of another token, topic or group; or a server gave it that has another "
    "secret, as one has that was started anew: so this changed nothing, and what was not settled "
    "is delivered again. Servers behind one address need the same secret"
)


class Identity(NamedTuple):
    """What tells consumers apart."""

    owner: Owner
    topic: str
    group: str
    name: str


class Terms(NamedTuple):
    """What is settled for a consumer when it begins."""

    visibility_seconds: float
    max_attempts: int | None
    start: str
    strict: bool
    idle_seconds: float

    @classmethod
    def of(cls, poll: Poll) -> "Terms":
        """What a poll asks for."""
        return cls(*(getattr(poll, name) for name in cls._fields))

    def __str__(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in self._asdict().items())


class Handed(NamedTuple):
    """A delivery, what it is known by, and until when it is nobody else's for certain."""

    claim: Claim
    delivery: AsyncDelivery[Any]
    until: float


class How(NamedTuple):
    """What is to be done with deliveries: `seconds` of a nack's delay, or of an extension."""

    name: str
    seconds: float | None = None
    error: str | None = None

    async def do(self, delivery: AsyncDelivery[Any]) -> None:
        """Do it to one that is here."""
        if self.name == "ack":
            await delivery.ack()
        elif self.name == "nack":
            await delivery.nack(delay=self.seconds, error=self.error)
        elif self.name == "reject":
            await delivery.reject(error=self.error)
        else:
            await delivery.extend(self.seconds or 0.0)


class Consumer:
    """A subscriber, and what it has delivered."""

    def __init__(self, mq: AsyncRowMQ, identity: Identity, terms: Terms) -> None:
        self.mq = mq
        self.identity = identity
        self.terms = terms
        self.open: dict[Claim, Handed] = {}
        self.busy = 0
        """How many requests are at work with it."""
        self.used_at = time.monotonic()
        self._looks_at = 0.0
        self._last: tuple[str, list[Handed]] | None = None
        """What the last poll gave that had an id."""
        self._askers: Counter[Claim] = Counter()
        """How many have asked for it, who did not go away meanwhile."""
        self._polling = asyncio.Lock()
        self._subscriber = mq.subscribe(
            identity.topic,
            group=identity.group,
            name=shortened(f"http/{identity.owner.name}/{identity.name}"),
            visibility=terms.visibility_seconds,
            max_attempts=terms.max_attempts,
            start=terms.start,
            strict=terms.strict,
            max_in_flight=IN_FLIGHT_MAX,
            max_bytes=BYTES_MAX,
        )

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """Keeps it from being idle."""
        self.busy += 1
        try:
            yield
        finally:
            self.busy -= 1
            self.used_at = time.monotonic()

    @property
    def is_idle(self) -> bool:
        """Whether nobody has asked for anything for so long."""
        return not self.busy and time.monotonic() - self.used_at >= self.terms.idle_seconds

    async def is_abandoned(self) -> bool:
        """Whether it is idle, and nobody is expected: what is delivered is the client's until its
        visibility has passed. Only the database knows of that, since any server can settle or
        extend it.
        """
        if not self.is_idle or time.monotonic() < self._looks_at:
            return False
        left = await self.mq._run(partial(awaited, self.mq._store, self._subscriber))  # noqa: SLF001 - the library's own
        self._looks_at = time.monotonic() + min(left, LOOK_SECONDS)
        return left <= 0 and self.is_idle

    @property
    def closed(self) -> bool:
        """Whether its subscriber was closed."""
        return self._subscriber.closed

    async def poll(self, limit: int, id: str | None, seconds: float) -> list[Handed]:
        """What there is to deliver; or, of a poll whose answer was lost, the same again. Of several
        who poll at once, one waits for messages and the others for it.
        """
        deadline = time.monotonic() + seconds
        try:
            async with asyncio.timeout(seconds):
                await self._polling.acquire()
        except TimeoutError:
            return []
        try:
            if again := self._again(id):
                return again
            self._forget()
            left = max(0.0, deadline - time.monotonic())
            return self._hand(await self._subscriber.poll(limit, left), id)
        finally:
            self._polling.release()

    def _again(self, id: str | None) -> list[Handed]:
        if id is None or self._last is None or self._last[0] != id:
            return []
        now = time.monotonic()
        again = [
            handed
            for handed in self._last[1]
            if self.open.get(handed.claim) is handed
            and handed.until > now
            and not handed.delivery.lost
        ]
        self._askers.update(handed.claim for handed in again)
        return again

    def _forget(self) -> None:
        """What is not settled in time is not kept here: by its receipt it can still be, until
        somebody has it again.
        """
        now = time.monotonic()
        self.open = {claim: handed for claim, handed in self.open.items() if handed.until > now}
        self._last = None
        self._askers = Counter({c: n for c, n in self._askers.items() if c in self.open})

    def _hand(self, deliveries: Iterable[AsyncDelivery[Any]], id: str | None) -> list[Handed]:
        until = time.monotonic() + self.terms.visibility_seconds
        handed = []
        for delivery in deliveries:
            claim = claim_of(delivery)
            if claim is not None:
                let_go(delivery)  # who has it is not here, so only its visibility tells
                self.open[claim] = Handed(claim, delivery, until)
                self._askers[claim] = 1
                handed.append(self.open[claim])
        if id is not None:
            self._last = (id, handed)
        return handed

    async def settle(self, claim: Claim, how: How) -> bool:
        """Settle a delivery that is here. False if it cannot be here: the database knows better."""
        handed = self.open.get(claim)
        if handed is None:
            return False
        try:
            await how.do(handed.delivery)
        except AlreadySettled:  # by another request, which may fail yet
            return False
        except StaleLease:
            self.open.pop(claim, None)
            return False
        if how.name != "extend":
            self.open.pop(claim, None)
        elif claim in self.open:
            until = time.monotonic() + (how.seconds or 0.0)
            self.open[claim] = handed._replace(until=until)
        return True

    async def forsake(self, handed: Sequence[Handed]) -> None:
        """Somebody has gone who was to have these: what nobody else asked for is given back."""
        self._askers.subtract(one.claim for one in handed)
        await self.give_back([one for one in handed if self._askers[one.claim] <= 0])

    async def give_back(self, handed: Sequence[Handed]) -> None:
        """Have others get what reached nobody, at once, at no attempt."""
        for one in handed:
            self.open.pop(one.claim, None)
            self._askers.pop(one.claim, None)
        releases = [one.delivery.release() for one in handed]
        for outcome in await asyncio.gather(*releases, return_exceptions=True):
            if isinstance(outcome, BaseException) and not isinstance(outcome, RowMQError):
                raise outcome

    async def close(self) -> None:
        """Hand everything over to others. What is still the client's to settle is given back at no
        attempt, since it cannot be settled any more.
        """
        now = time.monotonic()
        try:
            if not self.closed:
                await self.give_back([one for one in self.open.values() if one.until > now])
        finally:
            self.open.clear()
            await self._subscriber.close()


Knows = Callable[[AsyncRowMQ, int | None, str], Awaitable[bool]]
"""Says whether the token of an id and a digest may still be used."""


class Consumers:
    """All consumers of this process."""

    def __init__(self, secret: str, *, knows: Knows, most: int = CONSUMERS_MAX) -> None:
        self.seal = Seal(secret)
        self.knows = knows
        self.most = most
        self.closing = False
        self._consumers: dict[Identity, Consumer] = {}
        self._sweeper: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._consumers)

    def get(self, mq: AsyncRowMQ, identity: Identity, poll: Poll) -> Consumer:
        """A consumer, new if there is none of this name."""
        if self.closing:
            raise Problem(503, "this server is going down: ask again", headers={"Retry-After": "1"})
        found = self._consumers.get(identity)
        terms = Terms.of(poll)
        if found is None or found.closed:
            return self._begin(mq, identity, terms)
        if found.terms != terms:
            raise Problem(
                409,
                f"consumer {quoted(identity.name)} began with other terms: {found.terms}. Ask for "
                f"the same each time, choose another name with consumer, or close this one",
                kind="consumer-conflict",
            )
        return found

    def _begin(self, mq: AsyncRowMQ, identity: Identity, terms: Terms) -> Consumer:
        own = sum(other.owner == identity.owner for other in self._consumers)
        if own >= self.most - len(self) and identity not in self._consumers:
            raise Problem(
                429,
                f"this server has {len(self)} consumers of at most {self.most}, and {own} of these "
                f"are of this token, which may have no more than are free: close some, or leave "
                f"them for as long as they are to be idle",
                kind="too-many-consumers",
                headers={"Retry-After": "10"},
            )
        consumer = self._consumers[identity] = Consumer(mq, identity, terms)
        if self._sweeper is None or self._sweeper.done():
            self._sweeper = asyncio.create_task(self._sweep(), name="rowmq-api-consumers")
        return consumer

    async def poll(
        self, consumer: Consumer, limit: int, id: str | None, seconds: float
    ) -> list[Handed]:
        """What a consumer has to deliver. One whose group was dropped is closed: the next poll
        makes another.
        """
        await self._know(consumer.mq)
        try:
            return await consumer.poll(limit, id, seconds)
        except InvalidInput:
            await self.close_one(consumer)
            raise
        except Closed:
            if not consumer.closed:
                raise
            raise Problem(
                409, "this consumer was closed meanwhile: poll again", kind="consumer-closed"
            ) from None

    async def settle(
        self,
        mq: AsyncRowMQ,
        whose: tuple[Owner, str, str],
        receipts: Sequence[str],
        how: How,
    ) -> list[Refusal | None]:
        """Settle deliveries of a token, topic and group: None, or why not, for each. Those that are
        not here, or not as they are remembered here, are settled in the database.
        """
        owner, topic, group = whose
        await self._know(mq)
        claims = [self.seal.claim(receipt, owner) for receipt in receipts]
        known = [claim for claim in claims if claim is not None]
        here = [one for one in self._consumers.values() if one.identity[:3] == whose]
        settled: dict[Claim, Refusal | None] = dict.fromkeys(await settle_here(here, known, how))
        left = [claim for claim in dict.fromkeys(known) if claim not in settled]
        if left:
            wanted = wanted_of(left, how.name, seconds=how.seconds, error=how.error)
            make = partial(settle_claims, mq._store, topic, group, wanted)  # noqa: SLF001 - the library's own
            outcomes = await mq._run(make)  # noqa: SLF001
            settled |= zip(left, outcomes, strict=True)
        refused = StaleLease(ELSEWHERE)
        return [refused if claim is None else settled[claim] for claim in claims]

    async def _know(self, mq: AsyncRowMQ) -> None:
        """Find out which database this is, once."""
        if self.seal.database is None:
            self.seal.database = await mq._run(mq._store.schema.born_at)  # noqa: SLF001 - the library's own

    # --- ending -----------------------------------------------------------------------------------

    async def close_one(self, consumer: Consumer) -> None:
        """Close a consumer."""
        if self._consumers.get(consumer.identity) is consumer:
            del self._consumers[consumer.identity]
        await consumer.close()

    async def close_named(self, identity: Identity) -> bool:
        """Close a consumer by what it is called; False if there is none."""
        consumer = self._consumers.get(identity)
        if consumer is None:
            return False
        await self.close_one(consumer)
        return True

    async def close_of(self, token: str, topic: str, group: str, name: str) -> bool:
        """Close the consumers of a token's name, be it of several; False if there are none."""
        wanted = (token, topic, group, name)
        found = [
            consumer
            for (owner, *rest), consumer in self._consumers.items()
            if (owner.name, *rest) == wanted
        ]
        for consumer in found:
            await self.close_one(consumer)
        return bool(found)

    def reopen(self) -> None:
        """What was closed is to be used again, perhaps with another database behind its URL."""
        self.closing = False
        self.seal.database = None

    def hush(self) -> None:
        """The process is going down: have nobody wait any longer, and no new ones begin."""
        self.closing = True

    async def close(self) -> None:
        """Hand everything over."""
        self.hush()
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        for consumer in list(self._consumers.values()):
            await self._close_quietly(consumer)

    async def _sweep(self) -> None:
        """Close those that are idle, and those whose tokens are good for nothing any more, for as
        long as there are any.
        """
        while self._consumers:
            await asyncio.sleep(SWEEP_SECONDS)
            shut_out = await self._shut_out()
            for consumer in list(self._consumers.values()):
                # One that is busy finds out by itself, and answers so.
                revoked = consumer.identity.owner in shut_out and not consumer.busy
                if consumer.closed or revoked or await self._is_abandoned(consumer):
                    await self._close_quietly(consumer)

    async def _is_abandoned(self, consumer: Consumer) -> bool:
        try:
            return await consumer.is_abandoned()
        except RowMQError as error:
            log.info("it could not be looked up whether a consumer is idle: %s", error)
            return False

    async def _shut_out(self) -> set[Owner]:
        """Those who would not be let in any more."""
        clients = {consumer.identity.owner: consumer.mq for consumer in self._consumers.values()}
        try:
            return {
                owner
                for owner, mq in clients.items()
                if not await self.knows(mq, owner.token_id, owner.digest)
            }
        except RowMQError as error:
            log.info("tokens of consumers could not be looked up: %s", error)
            return set()

    async def _close_quietly(self, consumer: Consumer) -> None:
        try:
            await self.close_one(consumer)
        except Exception as error:  # noqa: BLE001 - its lease ends by itself; others go on
            log.warning("consumer %r was not closed in order: %s", consumer.identity, error)


async def settle_here(
    consumers: Sequence[Consumer], claims: Sequence[Claim], how: How
) -> list[Claim]:
    """Settle what these have delivered; those at the same time share a commit. Which it were."""
    found = [(one, claim) for one in consumers for claim in claims if claim in one.open]
    with contextlib.ExitStack() as stack:
        for consumer in {id(one): one for one, _ in found}.values():
            stack.enter_context(consumer.in_use())
        done = await asyncio.gather(
            *(one.settle(claim, how) for one, claim in found), return_exceptions=True
        )
    for outcome in done:
        if isinstance(outcome, BaseException):
            raise outcome
    return [claim for (_, claim), settled in zip(found, done, strict=True) if settled is True]


def shortened(name: str) -> str:
    """As much of a name as a subscriber's may have."""
    return name.encode(errors="replace")[:NAME_BYTES_MAX].decode(errors="ignore")
