"""A queue, and its model, of which two clients do all that can be done with it."""

import math
import sys
from contextlib import suppress
from datetime import timedelta
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    initialize,
    multiple,
    precondition,
    rule,
)

import rowmq
from rowmq import Outcome, State
from rowmq.errors import AlreadySettled, KeyTaken, StaleLease
from rowmq.times import to_micros
from tests.models.queue_model import ATTEMPTS_MAX, RETRY_US, Claim, Content, QueueModel, Where
from tests.models.world import BEGAN, World

__all__ = ["QueueMachine"]

LOCK_SECONDS = 60
SECOND = 1_000_000
MANY = 5
CONFIRM = "Yes, please, I know what I'm doing!"
LEFT_EMPTY = ("ready", "locks", "job_keys", "lines", "waiting")
"""Tables that know of live jobs only."""

CLIENTS = st.integers(0, 1)
KEYS = st.sampled_from(["k1", "k2"])
SOME_KEYS = st.none() | KEYS
LINES = st.none() | st.sampled_from(["l1", "l2"])
PRIORITIES = st.sampled_from([0, 0, 0, 1, -1])
DELAYS = st.sampled_from([0, 0, 30, 90])
TIMES = st.none() | st.integers(0, 4).map(lambda minutes: BEGAN + timedelta(minutes=minutes))
PAYLOADS = st.integers(0, 3)
OFFERS = st.builds(
    rowmq.ScheduledMessage,
    key=KEYS,
    payload=PAYLOADS,
    at=st.integers(0, 4).map(lambda minutes: BEGAN + timedelta(minutes=minutes)),
    can_update=st.booleans(),
    priority=PRIORITIES,
)
SETTLES = st.sampled_from(["ack", "ack", "nack", "reject", "release", "extend"])

Held = tuple[Claim, Any, int]
"""A claim in the model, the real job, and the client that has it."""


class Undone(Exception):
    """Rolls back."""


class QueueMachine(RuleBasedStateMachine):
    """What is put, offered, claimed and settled on both sides."""

    claims = Bundle("claims")

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world
        world.begin()
        self.clients = [world.connect(), world.connect()]
        retry = rowmq.Constant(interval=RETRY_US / SECOND, max_attempts=ATTEMPTS_MAX)
        self.queues = [
            mq.queue("q", retry=retry, lock_timeout=LOCK_SECONDS, max_deliveries=math.inf)
            for mq in self.clients
        ]
        self.model = QueueModel(world.now)

    @initialize(
        limit=st.sampled_from([None, None, None, 1, 2]),
        first=st.lists(st.tuples(PAYLOADS, SOME_KEYS, LINES), max_size=4),
    )
    def begin(self, limit: int | None, first: list[tuple[int, str | None, str | None]]) -> None:
        self.queues[0].configure(max_in_flight=math.inf if limit is None else limit)
        self.model.limit = limit
        for payload, key, line in first:
            self.put(0, payload, delay=0, priority=0, key=key, line=line, stays=True)

    # --- put, offer, drop -------------------------------------------------------------------------

    @rule(
        client=CLIENTS,
        payload=PAYLOADS,
        delay=DELAYS,
        priority=PRIORITIES,
        key=SOME_KEYS,
        line=LINES,
        stays=st.sampled_from([True, True, True, False]),
    )
    def put(
        self,
        client: int,
        payload: int,
        *,
        delay: int,
        priority: int,
        key: str | None,
        line: str | None,
        stays: bool,
    ) -> None:
        """Put a job, in a transaction that is rolled back unless it `stays`."""
        due = self.model.now + delay * SECOND
        content = Content(payload, due, priority, key, line)
        taken = key in self.model.keys
        queue = self.queues[client]
        try:
            with suppress(Undone), self.clients[client].transaction() as tx:
                job = queue.put(
                    payload,
                    delay=delay,
                    priority=priority,
                    key=key,
                    ordering_key=line,
                    connection=tx,
                )
                if not stays:
                    raise Undone
        except KeyTaken:
            assert taken
            return
        assert not taken
        if stays:
            assert job.due_at == self.world.clock.now + timedelta(seconds=delay)
            self.model.put(job.id, content)

    @rule(client=CLIENTS, payloads=st.lists(PAYLOADS, min_size=1, max_size=4), line=LINES)
    def put_many(self, client: int, payloads: list[int], line: str | None) -> None:
        jobs = self.queues[client].put_many(payloads, ordering_key=line)
        for job, payload in zip(jobs, payloads, strict=True):
            self.model.put(job.id, Content(payload, self.model.now, line=line))

    @rule(
        client=CLIENTS,
        key=KEYS,
        payload=PAYLOADS,
        at=TIMES,
        priority=PRIORITIES,
        can_update=st.booleans(),
    )
    def offer(
        self, client: int, key: str, payload: int, at: Any, priority: int, *, can_update: bool
    ) -> None:
        queue = self.queues[client]
        offer = queue.offer_or_update if can_update else queue.offer_if_not_exists
        outcome = offer(key, payload, at, priority=priority)
        given = None if at is None else to_micros(at)
        content = Content(payload, self.model.now if given is None else given, priority, key)
        assert outcome is self.model.outcome(content, at=given, can_update=can_update)
        if outcome is Outcome.IGNORED:
            return
        job = queue.read(key)
        assert job is not None
        change = self.model.put if outcome is Outcome.CREATED else self.model.update
        change(job.id, content)

    @rule(client=CLIENTS, offers=st.lists(OFFERS, min_size=1, max_size=4))
    def offer_batch(self, client: int, offers: list[rowmq.ScheduledMessage[int]]) -> None:
        """Offer several at once: they are decided one after the other, and the last one stands."""
        outcomes: list[Outcome] = []
        told = self.queues[client].offer_batch(offers)
        final: dict[str, Content] = {}
        for offer in offers:
            assert offer.key is not None
            assert offer.at is not None
            content = Content(offer.payload, to_micros(offer.at), offer.priority, offer.key)
            outcome = self.model.outcome(
                content,
                at=content.due,
                can_update=offer.can_update,
                had=final.get(offer.key),
            )
            outcomes.append(outcome)
            if outcome is not Outcome.IGNORED:
                final[offer.key] = content
        assert [outcome for _, outcome in told] == outcomes
        for key, content in sorted(final.items()):
            job = self.queues[client].read(key)
            assert job is not None
            change = self.model.update if key in self.model.keys else self.model.put
            change(job.id, content)

    @precondition(lambda self: sum(job.alive for job in self.model.jobs.values()) > MANY)
    @rule(client=CLIENTS)
    def drop_all(self, client: int) -> None:
        assert self.queues[client].drop_all(CONFIRM) == self.model.drop_all()

    @rule(client=CLIENTS, key=KEYS)
    def drop(self, client: int, key: str) -> None:
        assert self.queues[client].drop(key) is self.model.drop(key)

    @precondition(lambda self: self.model.counts()["failed"])
    @rule(client=CLIENTS, which=st.integers(0, 5))
    def retry(self, client: int, which: int) -> None:
        """Retry a job that has failed, if nobody has its key by now."""
        failed = [job.id for job in self.model.jobs.values() if job.where is Where.FAILED]
        id = failed[which % len(failed)]
        assert self.queues[client].retry([id]) == self.model.retry(id)

    # --- claim ------------------------------------------------------------------------------------

    @precondition(lambda self: self.model.claimable() or self.model.expired())
    @rule(client=CLIENTS, limit=st.integers(1, 4), target=claims)
    def claim(self, client: int, limit: int) -> MultipleResults[Held]:
        """Claim as one does who looks at all there is: exactly the first jobs, in order."""
        queue = self.queues[client]
        queue._core.claimer.disturbed("q")
        jobs = queue.try_poll_many(limit)
        self.model.give_back()
        expected = [job.id for job in self.model.claimable()[:limit]]
        assert [job.id for job in jobs] == expected
        return self._claimed(jobs, client)

    @precondition(lambda self: self.model.claimable() and not self.model.expired())
    @rule(client=CLIENTS, limit=st.integers(1, 4), target=claims)
    def claim_quickly(self, client: int, limit: int) -> MultipleResults[Held]:
        """Claim as one may who is busy: some of what there is, if there is any."""
        queue = self.queues[client]
        queue._core.claimer._look_at = math.inf  # however slow the machine is
        jobs = queue.try_poll_many(limit)
        ready = self.model.claimable()
        assert bool(jobs) == bool(ready)
        unlimited = QueueModel(self.model.now, jobs=self.model.jobs)
        assert {job.id for job in jobs} <= {job.id for job in unlimited.claimable()}
        assert len(jobs) <= min(limit, len(ready))
        return self._claimed(jobs, client)

    # Where a hold is a claim, on SQLite, a claim that was never settled is one that died.
    @precondition(lambda self: not self.model.died())
    @rule(client=CLIENTS, fails=st.booleans())
    def hold(self, client: int, *, fails: bool) -> None:
        """Do the first job in a transaction, or fail to."""
        queue = self.queues[client]
        queue._core.claimer.disturbed("q")
        held: list[int] = []
        with suppress(Undone), queue.hold(max_failures=ATTEMPTS_MAX) as job:
            held += [] if job is None else [job.id]
            if fails:
                raise Undone
        self.model.give_back()
        assert held == [known.id for known in self.model.claimable()[:1]]
        for id in held:
            self.model.hold(id, fails=fails)

    def _claimed(self, jobs: list[Any], client: int) -> MultipleResults[Held]:
        until = self.model.now + LOCK_SECONDS * SECOND
        claims = self.model.claim([job.id for job in jobs], until)
        for claim, job in zip(claims, jobs, strict=True):
            known = claim.job
            told = (job.payload, job.priority, job.key, job.ordering_key)
            content = known.content
            assert told == (content.payload, content.priority, content.key, content.line)
            assert (job.attempts, job.deliveries) == (known.attempts, known.deliveries)
        return multiple(*((claim, job, client) for claim, job in zip(claims, jobs, strict=True)))

    # --- settle -----------------------------------------------------------------------------------

    @rule(held=claims)
    def ack(self, held: Held) -> None:
        self.settle(held, "ack", 0)

    @rule(held=claims, delay=st.sampled_from([0, 45, 120]))
    def nack(self, held: Held, delay: int) -> None:
        self.settle(held, "nack", delay)

    @rule(held=claims, how=st.sampled_from(["reject", "release"]))
    def give_up(self, held: Held, how: str) -> None:
        self.settle(held, how, 0)

    @rule(held=claims, delay=st.sampled_from([0, 45, 120]))
    def extend(self, held: Held, delay: int) -> None:
        self.settle(held, "extend", delay)

    def settle(self, held: Held, how: str, delay: int) -> None:
        claim, job, _ = held
        refusal = self.model.refusal(claim)
        assert self._settle(job, how, delay) in self._told(claim)
        if refusal is None:
            self.model.settle(claim, how, max(delay, 1 if how == "extend" else 0) * SECOND)

    @rule(held=claims, how=SETTLES)
    def settle_in_vain(self, held: Held, how: str) -> None:
        """Settle in a transaction that is rolled back: then nothing is settled."""
        claim, job, client = held
        with suppress(Undone), self.clients[client].transaction() as tx:
            assert self._settle(job, how, 45, connection=tx) in self._told(claim)
            claim.tried = True
            raise Undone

    @rule(first=claims, second=claims)
    def ack_together(self, first: Held, second: Held) -> None:
        """Ack in one transaction: all of them, or none."""
        client = first[2]
        chosen = {id(held[0]): held for held in (first, second) if held[2] == client}.values()
        refusals = [self.model.refusal(claim) for claim, *_ in chosen]
        with suppress(StaleLease, AlreadySettled), self.clients[client].transaction() as tx:
            self.queues[client].ack([job for _, job, _ in chosen], connection=tx)
            assert not any(refusals)
        if not any(refusals):
            for claim, *_ in chosen:
                self.model.settle(claim, "ack", 0)

    def _told(self, claim: Claim) -> set[type[Exception] | None]:
        """What may be told to whoever settles a claim."""
        refusal = self.model.refusal(claim)
        # Nobody remembers what became of the transaction: it may have been this one who settled it.
        doubtful = claim.tried and refusal is StaleLease
        return {refusal, AlreadySettled} if doubtful else {refusal}

    @staticmethod
    def _settle(job: Any, how: str, delay: int, **where: Any) -> type[Exception] | None:
        try:
            if how == "nack":
                job.nack(delay=delay, **where)
            elif how == "extend":
                job.extend(max(delay, 1), **where)
            else:
                getattr(job, how)(**where)
        except (StaleLease, AlreadySettled) as error:
            return type(error)
        return None

    # --- time and settings ------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([1, 30, 61, 600]))
    def pass_time(self, seconds: int) -> None:
        self.world.clock.move(seconds=seconds)
        self.model.now = self.world.now

    @precondition(lambda self: self.model.paused or self.model.counts()["processing"])
    @rule(client=CLIENTS, paused=st.booleans())
    def pause(self, client: int, *, paused: bool) -> None:
        queue = self.queues[client]
        (queue.pause if paused else queue.resume)()
        self.model.paused = paused

    # --- look -------------------------------------------------------------------------------------

    @rule(client=CLIENTS)
    def look(self, client: int) -> None:
        """Everything that is told of the queue is so."""
        queue, model = self.queues[client], self.model
        assert queue.counts() == model.counts()
        for key in ("k1", "k2"):
            job, known = queue.read(key), model.keys.get(key)
            assert (None if job is None else job.id) == (None if known is None else known.id)
        live = {job.id for job in model.jobs.values() if job.alive}
        assert {job.id for job in queue.live(limit=1_000)} == live
        for state, where in ((State.COMPLETED, Where.COMPLETED), (State.FAILED, Where.FAILED)):
            told = {job.id: job.attempts for job in queue.archive(state=state, limit=1_000)}
            known_jobs = [job for job in model.jobs.values() if job.where is where]
            assert told == {job.id: job.attempts for job in known_jobs}

    def teardown(self) -> None:
        """End the example; if nothing went wrong, see what becomes of what is left."""
        try:
            if sys.exception() is None:
                self._finish()
        finally:
            self.world.end()

    def _finish(self) -> None:
        """In the end all live jobs are claimed, once each, and nothing else is left of them."""
        self.look(0)
        self.pause(0, paused=False)
        self.pass_time(86_400)
        while (results := self.claim(1, 10)).values:
            for claim, job, _ in results.values:
                self.model.settle(claim, "ack", 0)
                job.ack()
        assert not any(job.alive for job in self.model.jobs.values())
        self.look(1)
        for table in LEFT_EMPTY:
            assert self.world.database.execute(f"SELECT * FROM rowmq_{table}") == [], table
