"""What queues do, as steps: written once, taken by `Queue` and by `AsyncQueue`."""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from rowmq.codec import error_text
from rowmq.drivers.base import Steps
from rowmq.errors import InvalidInput, InvalidOption
from rowmq.message import Message, Outcome, ScheduledMessage
from rowmq.naming import check_job_key
from rowmq.options import check_flag
from rowmq.pacing import Pace
from rowmq.queue.claiming import Claimed
from rowmq.queue.desk import Desk, Put
from rowmq.queue.job import ClaimedFacts, claimed_facts, posted_facts, recorded_facts
from rowmq.queue.ticket import Ticket, Wanted, wanted_of
from rowmq.queue.view import View, micros_of
from rowmq.quoting import quoted
from rowmq.store.archive import Record
from rowmq.store.claims import CLAIM_MAX
from rowmq.store.postings import Offer, Posting, posting_like, posting_of
from rowmq.store.queues import FULL, RELAXED, Settings
from rowmq.store.settles import Kind
from rowmq.store.topics import check_limit, check_retention
from rowmq.times import Duration, from_micros, to_micros, to_seconds
from rowmq.tracing import Tracer

__all__ = [
    "Core",
    "check_order",
    "delivered_too_often",
    "due_micros",
    "told",
]

log = logging.getLogger("rowmq")

PERMITS_MAX = 10_000
"""The highest limit: there is a row for each permit."""

UNSETTLED_MAX = 20
"""How often a job may be claimed and not be settled, if nothing else is said: one that kills its
worker is not to do so for ever.
"""

PUT, OFFER = "put", "offer"
"""What writing jobs is called in traces."""

NewJob = Callable[..., Any]
"""Makes a job of what it shows, and of its ticket."""


class Core:
    """The queues that a handle sees: one, or several to poll from."""

    def __init__(self, desk: Desk, views: Sequence[View], new_job: NewJob) -> None:
        self.desk = desk
        self.views = {view.queue: view for view in views}
        self.new_job = new_job
        self.claimer = desk.claimer(views)
        self.refused = 0
        """How many jobs have failed before they were tried; for metrics."""

    @property
    def view(self) -> View:
        """The only queue."""
        (view,) = self.views.values()
        return view

    # --- put and offer ----------------------------------------------------------------------------

    def put(self, payload: Any, connection: Any, **how: Any) -> Steps[Any]:
        """Add a job."""
        posting = self._posting(payload, **how)
        if self.desk.tracer is not None:
            return (yield from self._put_traced(self.desk.tracer, payload, posting, connection))
        if connection is None and posting.plain:
            put: Put = yield partial(self.desk.puts.submit, posting)
        else:
            (put,) = yield from self.desk.put([posting], connection)
        return self._posted(posting, payload, put)

    def _put_traced(
        self, tracer: Tracer, payload: Any, posting: Posting, connection: Any
    ) -> Steps[Any]:
        with tracer.send(PUT, self.view.queue, 1) as sent:
            stamped = sent.stamped(posting)
            if connection is None and stamped.plain:
                put: Put = yield partial(self.desk.puts.submit, stamped)
            else:
                (put,) = yield from self.desk.put([stamped], connection)
            sent.known(str(put[0]))
        return self._posted(stamped, payload, put)

    def put_many(self, payloads: Iterable[Any], connection: Any, **how: Any) -> Steps[list[Any]]:
        """Add jobs, all or none."""
        single = isinstance(payloads, str | bytes | bytearray | memoryview | Mapping)
        if single or not isinstance(payloads, Iterable):
            raise InvalidInput(
                f"put_many takes a list of payloads, not a {type(payloads).__name__}"
            )
        given = list(payloads)
        postings: list[Posting] = []
        for place, payload in enumerate(given):
            try:
                if postings:
                    refuse_wrapped(payload)
                    postings.append(posting_like(postings[0], payload))
                else:
                    postings.append(self._posting(payload, **how))
            except InvalidInput as error:
                raise type(error)(f"payload {place}: {error}") from error
        if self.desk.tracer is None or not postings:
            puts = yield from self.desk.put(postings, connection)
        else:
            with self.desk.tracer.send(PUT, self.view.queue, len(postings)) as sent:
                postings = [sent.stamped(posting) for posting in postings]
                puts = yield from self.desk.put(postings, connection)
        triples = zip(postings, given, puts, strict=True)
        return [self._posted(posting, payload, put) for posting, payload, put in triples]

    def _posting(
        self,
        payload: Any,
        *,
        delay: Duration | None,
        at: datetime | None,
        priority: int,
        headers: Any,
        key: str | None = None,
        ordering_key: str | None = None,
    ) -> Posting:
        if delay is not None and at is not None:
            raise InvalidOption("give delay= or at=, but not both")
        refuse_wrapped(payload)
        view = self.view
        return posting_of(
            view.queue,
            view.kind,
            payload,
            at=None if at is None else due_micros(at),
            delay_us=0 if delay is None else round(to_seconds(delay, name="delay") * 1_000_000),
            priority=priority,
            key=check_job_key(key),
            ordering_key=check_job_key(ordering_key, what="an ordering key"),
            headers=headers,
        )

    def _posted(self, posting: Posting, payload: Any, put: Put) -> Any:
        id, due_at = put
        return self.new_job(posted_facts(posting, payload, id=id, due_at=due_at))

    def offer(
        self, messages: Sequence[ScheduledMessage[Any]], connection: Any
    ) -> Steps[list[Outcome]]:
        """Create or update jobs by their keys."""
        offers = []
        for place, message in enumerate(messages):
            try:
                offers.append(self._offer(message))
            except InvalidInput as error:
                if len(messages) == 1:
                    raise
                raise type(error)(f"message {place}: {error}") from error
        if self.desk.tracer is None or not offers:
            return (yield from self.desk.offer(offers, connection))
        with self.desk.tracer.send(OFFER, self.view.queue, len(offers)) as sent:
            stamped = [Offer(sent.stamped(posting), update) for posting, update in offers]
            return (yield from self.desk.offer(stamped, connection))

    def _offer(self, message: ScheduledMessage[Any]) -> Offer:
        if not isinstance(message, ScheduledMessage):
            raise InvalidInput(
                f"offer_batch takes a list of rowmq.ScheduledMessage(key, payload, at), not a "
                f"{type(message).__name__}"
            )
        if message.key is None:
            raise InvalidInput("an offer needs a key; put() adds jobs without one")
        posting = self._posting(
            message.payload,
            delay=message.delay,
            at=message.at,
            priority=message.priority,
            headers=message.headers,
            key=message.key,
        )
        return Offer(posting, check_flag("can_update", message.can_update))

    # --- claim ------------------------------------------------------------------------------------

    def claim(
        self,
        limit: int,
        lock_timeout: Duration | None = None,
        *,
        newest: bool = False,
        patient: bool = False,
    ) -> Steps[list[Any]]:
        """Up to so many jobs that are due. What does not parse, or was delivered too often, is
        failed, and others are looked for.
        """
        if type(limit) is not int:
            raise InvalidOption(f"how many jobs must be a whole number, not {quoted(limit)}")
        if limit <= 0:
            return []
        lock_us = self._lock_us(lock_timeout)
        while True:
            claimed = yield from self.claimer.take(
                min(limit, CLAIM_MAX), lock_us, newest=newest, patient=patient
            )
            jobs, refused = self._hand_out(claimed)
            if refused:
                yield from self._refuse(refused)
            if jobs or not claimed:
                return jobs

    def _lock_us(self, lock_timeout: Duration | None) -> int:
        if lock_timeout is None:
            return max(view.lock_us for view in self.views.values())
        return micros_of("lock_timeout", lock_timeout)

    def _hand_out(self, claimed: Sequence[Claimed]) -> tuple[list[Any], list[Wanted]]:
        jobs: list[Any] = []
        refused: list[Wanted] = []
        for item in claimed:
            view = self.views[item.lane.queue]
            facts, error = claimed_facts(item, view)
            ticket = Ticket(item, view.retry)
            if error is None:
                error = delivered_too_often(facts, view)
            if error is None:
                jobs.append(self.new_job(facts, ticket))
            else:
                # It was not tried, so that costs no attempt.
                refused.append(wanted_of(ticket, Kind.REFUSE, error=error))
        return jobs, refused

    def _refuse(self, refused: Sequence[Wanted]) -> Steps[None]:
        """Fail jobs before they are tried: apart from those that are handed out with them."""
        for item in refused:
            log.warning(
                "job %d of queue %r has failed: %s",
                item.settle.entry.job_id,
                item.settle.queue,
                item.settle.error,
            )
        try:
            yield from self.desk.settle(refused)
            self.refused += len(refused)
        except Exception as error:  # noqa: BLE001 - they come again when their lock expires
            log.warning("jobs could not be failed: %s", error)

    def poll(self, timeout: Duration | None, lock_timeout: Duration | None) -> Steps[Any]:
        """A job, as soon as there is one."""
        seconds = None if timeout is None else to_seconds(timeout, name="timeout")
        deadline = None if seconds is None else time.monotonic() + seconds
        waiter = self.desk.new_waiter()
        watched = False
        pace = Pace()
        try:
            while True:
                woken = waiter.calm()
                pace.begin()
                jobs = yield from self.claim(1, lock_timeout, patient=watched and not woken)
                if jobs:
                    return jobs[0]
                remaining = None if deadline is None else deadline - time.monotonic()
                if remaining is not None and remaining <= 0:
                    return None
                if not watched:
                    self.desk.waiters.add(self.views, waiter)
                    watched = True
                pause = self.pause(pace)
                yield partial(waiter.wait, pause if remaining is None else min(pause, remaining))
        finally:
            self.desk.waiters.remove(self.views, waiter)

    def pause(self, pace: Pace) -> float:
        """How long to wait before the next look, if nothing wakes us."""
        longest = min(view.poll_interval for view in self.views.values())
        pause = pace.pause(longest, watched=self.desk.waiters.woken)
        due = self.claimer.next_due
        # What is due and was not to be had, others have, or a limit keeps back.
        return pause if due is None or due <= 0 else min(pause, max(due, 0.001))

    def settle(self, wanted: Sequence[Wanted], connection: Any) -> Steps[None]:
        """Settle claimed jobs."""
        yield from self.desk.settle(wanted, connection)

    def recorded(self, record: Record) -> Any:
        """A job that was looked at."""
        return self.new_job(recorded_facts(record, self.view))

    # --- settings ---------------------------------------------------------------------------------

    def configure(
        self,
        *,
        connection: Any,
        keep_completed: bool | None = None,
        keep_failed: bool | None = None,
        retention: Duration | None = None,
        failed_retention: Duration | None = None,
        max_payload_bytes: int | None = None,
        max_in_flight: float | None = None,
        rate: float | None = None,
        rate_period: Duration | None = None,
        durability: str | None = None,
    ) -> Steps[None]:
        """Change settings; those left out stay as they are."""
        if rate is not None and rate_period is None:
            rate_period = 1.0
        settings = Settings(
            keep_completed=flag("keep_completed", keep_completed),
            keep_failed=flag("keep_failed", keep_failed),
            retention_us=check_retention(retention),
            failed_retention_us=check_retention(failed_retention, name="failed_retention"),
            max_payload_bytes=check_limit(max_payload_bytes),
            max_in_flight=permits("max_in_flight", max_in_flight),
            rate=permits("rate", rate),
            rate_period_us=None if rate_period is None else micros_of("rate_period", rate_period),
            relaxed=None if durability is None else self._is_relaxed(durability),
        )
        yield from self.set(settings, connection)

    def _is_relaxed(self, durability: str) -> bool:
        store = self.desk.store
        if durability not in (FULL, RELAXED):
            raise InvalidOption(f"durability must be 'full' or 'relaxed', not {quoted(durability)}")
        if durability == RELAXED and not store.queues.relaxes:
            raise InvalidOption(
                "durability='relaxed' is for PostgreSQL and SQLite: MySQL and MariaDB decide for "
                "the whole server whether a commit waits for the disk; leave it 'full', or, if "
                "everything on that server may lose its last second, set "
                "innodb_flush_log_at_trx_commit = 2 there"
            )
        return durability == RELAXED

    def set(self, settings: Settings, connection: Any) -> Steps[None]:
        """Change settings that are checked."""
        configure = partial(self.desk.store.queues.configure, self.view.queue, settings)
        yield partial(self.desk.run, configure, connection)
        self.desk.disturb(self.view.queue)


def delivered_too_often(facts: ClaimedFacts, view: View) -> str | None:
    """Why a job is not to be tried any more, if so."""
    most = view.max_deliveries
    if most is not None:
        too_often = facts.deliveries > most
        story = f"it was claimed {facts.deliveries} times, and max_deliveries is {most}"
        return story if too_often else None
    unsettled = facts.deliveries - 1 - facts.attempts
    if unsettled < UNSETTLED_MAX:
        return None
    return (
        f"it was claimed {unsettled} times and not settled: its workers died, or were slower than "
        f"its lock_timeout; max_deliveries= sets another limit"
    )


def refuse_wrapped(payload: Any) -> None:
    """Raise for what is no payload, but has one."""
    if isinstance(payload, WRAPPED):
        raise InvalidInput(
            f"a payload cannot be a rowmq.{type(payload).__name__}: put takes the payload "
            f"itself and options beside it, as in put(payload, headers=...); offer_batch takes "
            f"rowmq.ScheduledMessage"
        )


WRAPPED = (Message, ScheduledMessage)


def due_micros(at: datetime) -> int:
    """A time that can be stored and be told again, in UTC."""
    if not isinstance(at, datetime):
        raise InvalidOption(
            f"at must be an aware datetime, not {quoted(at)}; for seconds from now use delay="
        )
    micros = to_micros(at)
    try:
        from_micros(micros)
    except OverflowError:
        raise InvalidOption(f"{quoted(at)} is not within the years 1 to 9999 in UTC") from None
    return micros


def check_order(order: str) -> bool:
    """Whether the newest job comes first."""
    if order not in ("fifo", "lifo"):
        raise InvalidOption(f"order must be 'fifo' or 'lifo', not {quoted(order)}")
    return order == "lifo"


def flag(name: str, value: bool | None) -> bool | None:
    return None if value is None else check_flag(name, value)


def permits(name: str, limit: float | None) -> int | None:
    """A limit that can be kept; 0 for none."""
    if limit is None:
        return None
    if limit == float("inf"):
        return 0
    if type(limit) is not int or not 1 <= limit <= PERMITS_MAX:
        raise InvalidOption(
            f"{name} must be a whole number from 1 to {PERMITS_MAX:,}, or math.inf for no limit, "
            f"not {quoted(limit)}; other rates can be had with another rate_period"
        )
    return limit


def told(error: BaseException) -> str:
    """An error as text, which is never empty."""
    return error_text(error) or type(error).__name__
