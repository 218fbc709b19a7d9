"""Queues, and their model, with which handles and pollers do all that can be done."""

import math
import sys
from contextlib import suppress
from datetime import timedelta
from typing import Any, NamedTuple

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
from rowmq import Outcome
from rowmq.errors import AlreadySettled, KeyTaken, StaleLease
from rowmq.times import to_micros
from tests.models.queue_model import (
    ATTEMPTS_MAX,
    RETRY_US,
    Claim,
    Content,
    Identity,
    Job,
    QueueModel,
    Seen,
    Where,
)
from tests.models.world import BEGAN, World

__all__ = ["QueueMachine"]

LOCK_SECONDS = 60
SECOND = 1_000_000
MANY = 5
ALL = 1_000
CONFIRM = "Yes, please, I know what I'm doing!"
LEFT_EMPTY = ("ready", "locks", "job_keys", "lines", "waiting")
"""Tables that know of live jobs only."""

HANDLES = (
    (0, Seen("q", "", None, math.inf)),
    (1, Seen("q", "", None, math.inf)),
    (0, Seen("q", "int", int, 3)),
    (1, Seen("q", "str", str, math.inf)),
    (1, Seen("r", "", None, 2)),
)
"""Clients, and what their handles see."""

POLLERS = ((0, (2, 4)), (1, (1, 4)))
"""Clients, and the handles of those queues that their pollers claim from."""

PLAIN = st.integers(0, 1)
"""Handles that see all of a queue, and claim what was claimed however often."""

ANY = st.sampled_from([0, 0, 1, 1, 2, 3, 4])
TAKERS = st.integers(0, len(HANDLES) + len(POLLERS) - 1)
KEYS = st.sampled_from(["k1", "k2"])
SOME_KEYS = st.none() | KEYS
LINES = st.none() | st.sampled_from(["l1", "l2"])
PRIORITIES = st.sampled_from([0, 0, 0, 1, -1])
DELAYS = st.sampled_from([0, 0, 30, 90])
TIMES = st.none() | st.integers(0, 4).map(lambda minutes: BEGAN + timedelta(minutes=minutes))
PAYLOADS = st.sampled_from([0, 1, 2, "x"])
OFFERS = st.builds(
    rowmq.ScheduledMessage,
    key=KEYS,
    payload=PAYLOADS,
    at=st.integers(0, 4).map(lambda minutes: BEGAN + timedelta(minutes=minutes)),
    can_update=st.booleans(),
    priority=PRIORITIES,
)
SETTLES = st.sampled_from(["ack", "ack", "nack", "reject", "release", "extend"])
TROUBLE = "it is no use"


class Taker(NamedTuple):
    """A handle or a poller, with what it sees, and the number of its client."""

    real: Any
    views: tuple[Seen, ...]
    client: int

    @property
    def view(self) -> Seen:
        """What a handle sees."""
        (view,) = self.views
        return view

    def disturb(self) -> None:
        """Have it look at all there is."""
        for view in self.views:
            self.real._core.claimer.disturbed(view.queue)


Held = tuple[Claim, Any, Taker]
"""A claim in the model, the real job, and who has it."""


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
        self.handles = [self._handle(client, view) for client, view in HANDLES]
        self.takers = self.handles + [
            Taker(
                self.clients[client].poller(*(self.handles[place].real for place in places)),
                tuple(HANDLES[place][1] for place in places),
                client,
            )
            for client, places in POLLERS
        ]
        self.model = QueueModel(world.now)

    def _handle(self, client: int, view: Seen) -> Taker:
        queue: Any = self.clients[client].queue(
            view.queue,
            type=view.type,
            retry=rowmq.Constant(interval=RETRY_US / SECOND, max_attempts=ATTEMPTS_MAX),
            lock_timeout=LOCK_SECONDS,
            max_deliveries=view.deliveries_max,
        )
        return Taker(queue, (view,), client)

    @initialize(
        limits=st.tuples(*[st.sampled_from([None, None, None, 1, 2])] * 2),
        first=st.lists(st.tuples(ANY, PAYLOADS, SOME_KEYS, LINES), max_size=4),
    )
    def begin(
        self,
        limits: tuple[int | None, int | None],
        first: list[tuple[int, int | str, str | None, str | None]],
    ) -> None:
        for handle, limit in zip((0, 4), limits, strict=True):
            if limit is not None:
                queue = self.handles[handle]
                queue.real.configure(max_in_flight=limit)
                self.model.limits[queue.view.queue] = limit
        for which, payload, key, line in first:
            self.put(which, payload, delay=0, priority=0, key=key, line=line, stays=True)

    # --- put, offer, drop -------------------------------------------------------------------------

    def _content(self, which: int, payload: int | str, due: int, **how: Any) -> Content:
        view = HANDLES[which][1]
        return Content(view.queue, view.kind, payload, due, **how)

    @rule(
        which=ANY,
        payload=PAYLOADS,
        delay=DELAYS,
        priority=PRIORITIES,
        key=SOME_KEYS,
        line=LINES,
        stays=st.sampled_from([True, True, True, False]),
    )
    def put(
        self,
        which: int,
        payload: int | str,
        *,
        delay: int,
        priority: int,
        key: str | None,
        line: str | None,
        stays: bool,
    ) -> None:
        """Put a job, in a transaction that is rolled back unless it `stays`."""
        due = self.model.now + delay * SECOND
        content = self._content(which, payload, due, priority=priority, key=key, line=line)
        taken = key is not None and content.identity in self.model.keys
        queue, client = self.handles[which].real, self.handles[which].client
        how = {"delay": delay, "priority": priority, "key": key, "ordering_key": line}
        try:
            with suppress(Undone), self.clients[client].transaction() as tx:
                job = queue.put(payload, **how, connection=tx)
                if not stays:
                    raise Undone
        except KeyTaken:
            assert taken
            return
        assert not taken
        if stays:
            assert (to_micros(job.due_at), job.kind) == (due, content.kind)
            self.model.put(job.id, content)

    @rule(which=ANY, payloads=st.lists(PAYLOADS, min_size=1, max_size=4), line=LINES)
    def put_many(self, which: int, payloads: list[int | str], line: str | None) -> None:
        jobs = self.handles[which].real.put_many(payloads, ordering_key=line)
        for job, payload in zip(jobs, payloads, strict=True):
            self.model.put(job.id, self._content(which, payload, self.model.now, line=line))

    @rule(
        which=ANY,
        key=KEYS,
        payload=PAYLOADS,
        at=TIMES,
        priority=PRIORITIES,
        can_update=st.booleans(),
    )
    def offer(
        self, which: int, key: str, payload: int | str, at: Any, priority: int, *, can_update: bool
    ) -> None:
        queue = self.handles[which].real
        offer = queue.offer_or_update if can_update else queue.offer_if_not_exists
        outcome = offer(key, payload, at, priority=priority)
        given = None if at is None else to_micros(at)
        due = self.model.now if given is None else given
        content = self._content(which, payload, due, priority=priority, key=key)
        assert outcome is self.model.outcome(content, at=given, can_update=can_update)
        if outcome is not Outcome.IGNORED:
            self._offered(which, {content.identity: content})

    @rule(which=ANY, offers=st.lists(OFFERS, min_size=1, max_size=4))
    def offer_batch(self, which: int, offers: list[rowmq.ScheduledMessage[int | str]]) -> None:
        """Offer several at once: they are decided one after the other, and the last one stands."""
        outcomes: list[Outcome] = []
        told = self.handles[which].real.offer_batch(offers)
        final: dict[Identity, Content] = {}
        for offer in offers:
            assert offer.at is not None
            at, how = to_micros(offer.at), {"priority": offer.priority, "key": offer.key}
            content = self._content(which, offer.payload, at, **how)
            outcome = self.model.outcome(
                content, at=at, can_update=offer.can_update, had=final.get(content.identity)
            )
            outcomes.append(outcome)
            if outcome is not Outcome.IGNORED:
                final[content.identity] = content
        assert [outcome for _, outcome in told] == outcomes
        self._offered(which, final)

    def _offered(self, which: int, final: dict[Identity, Content]) -> None:
        """Offers have made or replaced the jobs of these keys: see under which ids."""
        live = self.handles[which].real.live(limit=ALL)
        fresh = {(j.queue, j.kind, str(j.key)): j.id for j in live if j.id not in self.model.jobs}
        assert fresh.keys() == final.keys()
        for identity, content in sorted(final.items()):
            change = self.model.update if identity in self.model.keys else self.model.put
            change(fresh[identity], content)

    @precondition(lambda self: sum(job.alive for job in self.model.jobs.values()) > MANY)
    @rule(which=ANY)
    def drop_all(self, which: int) -> None:
        handle = self.handles[which]
        assert handle.real.drop_all(CONFIRM) == self.model.drop_all(handle.view)

    @rule(which=ANY, key=KEYS)
    def drop(self, which: int, key: str) -> None:
        handle = self.handles[which]
        assert handle.real.drop(key) is self.model.drop(handle.view, key)

    @precondition(lambda self: any(j.where is Where.FAILED for j in self.model.jobs.values()))
    @rule(which=ANY, place=st.integers(0, 5))
    def retry(self, which: int, place: int) -> None:
        """Retry a job that has failed, if the handle sees it and nobody has its key by now."""
        handle = self.handles[which]
        failed = [job.id for job in self.model.jobs.values() if job.where is Where.FAILED]
        id = failed[place % len(failed)]
        assert handle.real.retry([id]) == self.model.retry(handle.view, id)

    @precondition(lambda self: any(job.alive for job in self.model.jobs.values()))
    @rule(which=ANY, place=st.integers(0, 9), act=st.sampled_from(["now", "then", "fail", "drop"]))
    def steer(self, which: int, place: int, act: str) -> None:
        """Do something by hand to a job, wherever it is: one of which it can be done, if any."""
        handle, model = self.handles[which], self.model
        live = [job for job in model.seen(handle.view) if job.alive]
        claimed = [job for job in live if job.where is Where.CLAIMED and job not in model.expired()]
        some = [job for job in live if act in ("fail", "drop") or job not in claimed]
        some = some or [*model.jobs.values()]
        id = some[place % len(some)].id
        if act in ("now", "then"):
            delay = 0 if act == "now" else 45
            told = handle.real.reschedule([id], delay=delay)
            done = model.reschedule(handle.view, id, model.now + delay * SECOND)
        elif act == "fail":
            told, done = handle.real.fail([id], error=TROUBLE), model.fail(handle.view, id, TROUBLE)
        else:
            told, done = handle.real.drop_jobs([id]), model.drop_job(handle.view, id)
        assert told == done

    @precondition(lambda self: not all(job.alive for job in self.model.jobs.values()))
    @rule(
        which=ANY,
        where=st.sampled_from([Where.COMPLETED, Where.FAILED]),
        age=st.sampled_from([0, 30, 600]),
    )
    def prune(self, which: int, where: Where, age: int) -> None:
        handle = self.handles[which]
        told = handle.real.prune(older_than=age, state=where.value)
        assert told == self.model.prune(handle.view, where, age * SECOND)

    # --- claim ------------------------------------------------------------------------------------

    def _taker(self, which: int, *, busy: bool) -> Taker:
        """One of those who claim; if it is to be `busy`, one who has something to claim, if any."""
        some = [t for t in self.takers if busy and self._has_work(t)] or self.takers
        return some[which % len(some)]

    def _has_work(self, taker: Taker) -> bool:
        queues = {view.queue for view in taker.views}
        over = any(job.content.queue in queues for job in self.model.expired())
        return over or bool(self.model.claimable(taker.views))

    @rule(
        which=TAKERS,
        limit=st.integers(1, 4),
        busy=st.sampled_from([True, True, True, False]),
        target=claims,
    )
    def claim(self, which: int, limit: int, *, busy: bool) -> MultipleResults[Held]:
        """Claim as one does who looks at all there is: exactly the first jobs, in order."""
        taker = self._taker(which, busy=busy)
        taker.disturb()
        jobs = taker.real.try_poll_many(limit)
        self.model.give_back()
        expected = self.model.claim(taker.views, limit, self._until())
        assert [job.id for job in jobs] == [claim.job.id for claim in expected]
        return self._claimed(jobs, expected, taker)

    def _can_be_quick(self) -> bool:
        """Whether whoever claims some of what there is has all of it handed out, and nothing is
        kept back by a pause, of which one who is busy hears later.
        """
        model = self.model
        ready = [job for job in model.jobs.values() if job.where is Where.READY]
        return not (model.paused or model.expired()) and not any(
            model.refused([view], job) or job.deliveries + 1 > view.deliveries_max
            for _, view in HANDLES
            for job in ready
            if job.content.queue == view.queue and view.sees(job.content.kind)
        )

    @precondition(lambda self: self._can_be_quick())
    @rule(which=TAKERS, limit=st.integers(1, 4), target=claims)
    def claim_quickly(self, which: int, limit: int) -> MultipleResults[Held]:
        """Claim as one may who is busy: some of what there is, if there is any."""
        taker = self._taker(which, busy=True)
        taker.real._core.claimer._look_at = math.inf  # however slow the machine is
        jobs = taker.real.try_poll_many(limit)
        ready = self.model.claimable(taker.views)
        assert bool(jobs) == bool(ready)
        assert {job.id for job in jobs} <= {job.id for job in self.model.due(taker.views)}
        assert len(jobs) <= min(limit, len(ready))
        return self._claimed(jobs, self.model.take([job.id for job in jobs], self._until()), taker)

    # Where a hold is a claim, on SQLite, a claim that was never settled is one that died.
    @precondition(lambda self: not self._next_has_died())
    @rule(which=PLAIN, order=st.sampled_from(["fifo", "fifo", "lifo"]), fails=st.booleans())
    def hold(self, which: int, order: str, *, fails: bool) -> None:
        """Do the first job in a transaction, or fail to."""
        handle = self.handles[which]
        handle.disturb()
        held: list[int] = []
        with (
            suppress(Undone),
            handle.real.hold(order=order, max_failures=ATTEMPTS_MAX) as job,
        ):
            held += [] if job is None else [job.id]
            if fails:
                raise Undone(TROUBLE)
        self.model.give_back()
        expected = self.model.claimable(handle.views, newest=order == "lifo")[:1]
        assert held == [known.id for known in expected]
        for id in held:
            self.model.hold(id, error=f"Undone: {TROUBLE}" if fails else None)

    def _next_has_died(self) -> bool:
        """Whether what is held next was claimed by somebody who has not settled it."""
        ready = [job for job in self.model.due(HANDLES[0][1:]) if job.deliveries > job.attempts]
        return bool(ready or self.model.expired())

    def _until(self) -> int:
        return self.model.now + LOCK_SECONDS * SECOND

    def _claimed(self, jobs: list[Any], claims: list[Claim], taker: Taker) -> MultipleResults[Held]:
        for claim, job in zip(claims, jobs, strict=True):
            known, content = claim.job, claim.job.content
            told = (job.queue, job.kind, job.payload, to_micros(job.due_at))
            assert told == (content.queue, content.kind, content.payload, known.due)
            assert (job.priority, job.key) == (content.priority, content.key)
            assert job.ordering_key == content.line
            assert (job.attempts, job.deliveries) == (known.attempts, known.deliveries)
        return multiple(*((claim, job, taker) for claim, job in zip(claims, jobs, strict=True)))

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
            seconds = max(delay, 1) if how == "extend" else delay
            self.model.settle(claim, how, seconds * SECOND, TROUBLE)

    @rule(held=claims, how=SETTLES)
    def settle_in_vain(self, held: Held, how: str) -> None:
        """Settle in a transaction that is rolled back: then nothing is settled."""
        claim, job, taker = held
        with suppress(Undone), self.clients[taker.client].transaction() as tx:
            assert self._settle(job, how, 45, connection=tx) in self._told(claim)
            claim.tried = True
            raise Undone

    @rule(first=claims, second=claims)
    def ack_together(self, first: Held, second: Held) -> None:
        """Ack in one transaction: all of them, or none."""
        taker = first[2]
        both = [held for held in (first, second) if held[2].client == taker.client]
        chosen = {id(held[0]): held for held in both}.values()
        refusals = [self.model.refusal(claim) for claim, *_ in chosen]
        with suppress(StaleLease, AlreadySettled), self.clients[taker.client].transaction() as tx:
            taker.real.ack([job for _, job, _ in chosen], connection=tx)
            assert not any(refusals)
        if not any(refusals):
            for claim, *_ in chosen:
                self.model.settle(claim, "ack", 0)

    def _told(self, claim: Claim) -> set[type[Exception] | None]:
        """What may be told to whoever settles a claim."""
        refusal = self.model.refusal(claim)
        # Nobody remembers what became of the transaction: it may have been this one who settled it.
        # Nor, as long as the clock stands still, whether it was an attempt before a retry.
        given_up = claim.job.given_up is claim.lock
        doubtful = (claim.tried or given_up) and refusal is StaleLease
        # Of one that was pruned there is no trace, and with a key it may have been updated.
        traceless = claim.job.id not in self.model.jobs and claim.job.content.key is not None
        forgotten = traceless and refusal is AlreadySettled
        return {StaleLease, AlreadySettled} if doubtful or forgotten else {refusal}

    @staticmethod
    def _settle(job: Any, how: str, delay: int, **where: Any) -> type[Exception] | None:
        try:
            if how == "nack":
                job.nack(delay=delay, error=TROUBLE, **where)
            elif how == "reject":
                job.reject(error=TROUBLE, **where)
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

    @precondition(lambda self: self.model.paused or any(j.lock for j in self.model.jobs.values()))
    @rule(which=ANY, paused=st.booleans())
    def pause(self, which: int, *, paused: bool) -> None:
        handle = self.handles[which]
        (handle.real.pause if paused else handle.real.resume)()
        change = self.model.paused.add if paused else self.model.paused.discard
        change(handle.view.queue)

    # --- look -------------------------------------------------------------------------------------

    @rule(which=ANY, place=st.integers(0, 9))
    def look(self, which: int, place: int) -> None:
        """Everything that is told of a queue is so."""
        queue, view, model = self.handles[which].real, self.handles[which].view, self.model
        seen = model.seen(view)
        assert queue.counts() == model.counts(view)
        for key in ("k1", "k2"):
            job, known = queue.read(key), model.read(view, key)
            assert (None if job is None else job.id) == (None if known is None else known.id)
            assert queue.contains(key) is (known is not None)
        live = {job.id: facts_of(job) for job in queue.live(limit=ALL)}
        assert live == {job.id: self._known(job) for job in seen if job.alive}
        pages = [model.jobs[job.id] for job in all_pages(queue)]
        standing = [model.jobs[id] for id in live if model.jobs[id].where is not Where.WAITING]
        assert [job for job in pages if job in standing] == standing
        assert sorted(job.id for job in pages) == sorted(job.id for job in seen)
        assert queue.counts(up_to=ALL) == model.counts(view)
        self._look_at_archive(queue, view)
        if model.jobs:
            self._look_at_one(queue, view, [*model.jobs.values()][place % len(model.jobs)])

    def _look_at_archive(self, queue: Any, view: Seen) -> None:
        """What is finished is told as it ended, and why."""
        for where in (Where.COMPLETED, Where.FAILED):
            known = {job.id: job for job in self.model.seen(view) if job.where is where}
            told = {job.id: job for job in queue.archive(state=where.value, limit=ALL)}
            assert told.keys() == known.keys()
            for id, job in told.items():
                assert (job.attempts, job.deliveries) == (known[id].attempts, known[id].deliveries)
                assert to_micros(job.finished_at) == known[id].finished
                assert bool(job.error) is bool(known[id].error)
                assert (job.error or "").startswith(known[id].error)

    def _look_at_one(self, queue: Any, view: Seen, known: Job) -> None:
        """A job is found by its id, wherever it is, by those who see it."""
        job = queue.get(known.id)
        if known not in self.model.seen(view):
            assert job is None
        elif known.alive:
            assert facts_of(job) == self._known(known)
        else:
            assert (job.state, job.attempts) == (self.model.state(known), known.attempts)

    def _known(self, job: Job) -> tuple[Any, ...]:
        waits = job.where is Where.WAITING
        tried = (0, 0) if waits else (job.attempts, job.deliveries)
        content = job.content
        what = (content.queue, content.kind, content.priority, content.key, content.line)
        return (*what, self.model.state(job), *tried, job.due)

    def teardown(self) -> None:
        """End the example; if nothing went wrong, see what becomes of what is left."""
        try:
            if sys.exception() is None:
                self._finish()
        finally:
            self.world.end()

    def _finish(self) -> None:
        """In the end all live jobs are claimed, once each, and nothing else is left of them."""
        for which in (0, 4):
            self.look(which, 0)
            self.pause(which, paused=False)
        self.pass_time(86_400)
        everything = len(self.takers) - 1
        while (results := self.claim(everything, 10, busy=False)).values:
            for claim, job, _ in results.values:
                self.model.settle(claim, "ack", 0)
                job.ack()
        assert not any(job.alive for job in self.model.jobs.values())
        for which in (1, 4):
            self.look(which, 0)
        for table in LEFT_EMPTY:
            assert self.world.database.execute(f"SELECT * FROM rowmq_{table}") == [], table


def all_pages(queue: Any) -> list[Any]:
    """The jobs that are found, some at a time."""
    jobs: list[Any] = []
    page = queue.find(limit=3)
    jobs += page.jobs
    while page.next is not None:
        page = queue.find(limit=3, after=page.next)
        jobs += page.jobs
    return jobs


def facts_of(job: Any) -> tuple[Any, ...]:
    """What is told of a live job."""
    what = (job.queue, job.kind, job.priority, job.key, job.ordering_key)
    return (*what, job.state, job.attempts, job.deliveries, to_micros(job.due_at))
