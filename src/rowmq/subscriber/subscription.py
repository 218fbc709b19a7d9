"""What a subscriber does, once for sync and async: poll, settle, share out, leave.

A subscription is a generator of steps, like a driver (see `drivers.base`): a step is a call that is
ready to be made, and gives a value or an awaitable. One lock makes one thing happen at a time; it
is held over a round trip to the database and never while anybody waits for messages.

    poll    (find) ─► plan, in memory ─► advance: mark as delivered and fetch, in one round trip
    settle  check, in memory ─► advance: one write for all that settle at the same time
    tend    survey ─► acquire up to the fair share, or release what is too much

Every write names the lease it is made under. If the database refuses it, what is remembered is
loaded again: what was lost is dropped and its handlers are told; the rest is decided anew.
"""

import logging
import random
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Protocol, TypeGuard, TypeVar

from rowmq.drivers.base import Steps
from rowmq.errors import (
    AlreadySettled,
    Closed,
    PayloadMismatch,
    SerializationFailure,
    StaleLease,
)
from rowmq.message import Message, new_id
from rowmq.policy import share_out
from rowmq.progress import Progress, Range
from rowmq.store.leases import FOUND_MAX, Change, Conflict, Counters, Found, Loaded, Member
from rowmq.store.letters import Burial
from rowmq.store.statement import Operation, Row
from rowmq.store.store import Store
from rowmq.store.topics import Span, message_of
from rowmq.subscriber.holding import Draft, Holding, Token, cut, is_open
from rowmq.subscriber.options import Options
from rowmq.subscriber.settling import Kind, Settlement, apply, exhausted, unsettled_error
from rowmq.subscriber.sharing import Sharing

__all__ = ["Clock", "Subscription"]

log = logging.getLogger("rowmq")
T = TypeVar("T")

PAUSE_SECONDS_FIRST = 0.005
PAUSE_GROWTH = 1.6
"""How long to wait after an empty look, and how that grows while there is nothing."""

WATCHED_SECONDS_MAX = 1.0
"""How long to wait at most where a publish wakes those who wait."""

CONFLICTS_MAX = 10
"""How often a write is decided anew before it is given up."""


class Clock:
    """The database's time: what it last told, and what has passed since.

    Only the passing of time is this machine's; what its clock is set to does not matter.
    """

    def __init__(self) -> None:
        self._told = 0
        self._at = 0.0

    def hear(self, now: int) -> None:
        self._told, self._at = now, time.monotonic()

    def now(self) -> int:
        return self._told + round((time.monotonic() - self._at) * 1_000_000)


class Flavour(Protocol):
    """What a subscription needs of sync or async code."""

    lock: Any
    """A lock of threads, or of tasks."""

    def run(self, make: Callable[[], Operation[T]]) -> Any:
        """Run an operation in a transaction of its own."""

    def wait(self, seconds: float) -> Any:
        """Wait, or until woken."""

    def calm(self) -> None:
        """Forget that it was woken."""

    def watched(self) -> bool:
        """Whether a publish wakes it."""

    def wake(self) -> None:
        """Have it look again; from any thread."""

    def deliver(self, message: Message[Any], token: Token) -> Any:
        """A delivery to hand out."""


class Subscription:
    """One subscriber of a group: what it owns, what is in flight, and what to do next."""

    def __init__(self, store: Store, options: Options, flavour: Flavour) -> None:
        self.store = store
        self.leases = store.leases
        self.options = options
        self.flavour = flavour
        self.clock = Clock()
        self.member: Member | None = None
        self.beaten_at = 0.0
        self.expired = False
        self.closed = False
        self.holdings: dict[int, Holding] = {}
        self.lively: set[int] = set()
        self.in_flight = 0
        self.in_flight_bytes = 0
        self.sharing = Sharing(self)
        self._served = 0
        self._after = 0
        self._fresh = False
        self._again = False
        self._troubled: set[Holding] = set()
        self._unwritten: set[Holding] = set()
        self._empty_looks = 0

    # --- what a subscriber calls ----------------------------------------------------------------

    def start(self) -> Steps[None]:
        """Enter the group, and take a fair share of its partitions."""
        yield from self.locked(self._join(start=self.options.start))
        yield from self.locked(self.sharing.tend(self._member()))

    def poll(self, limit: int, timeout: float | None) -> Steps[list[Any]]:
        """Deliver up to `limit` messages; wait for the first for as long as `timeout` allows."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            self.flavour.calm()
            deliveries = yield from self.locked(self._poll(limit))
            if deliveries:
                self._empty_looks = 0
                return deliveries
            pause = self._pause()
            if deadline is not None:
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    return []
                pause = min(pause, remaining)
            yield partial(self.flavour.wait, pause)

    def settle(self, settlements: Sequence[Settlement]) -> Steps[list[Exception | None]]:
        """Settle deliveries in one transaction. None, or an error, for each."""
        return (yield from self.locked(self._settle(settlements)))

    def tend(self) -> Steps[None]:
        """Take or give up partitions, if it is time to."""
        if time.monotonic() >= self.sharing.due_at and not self.closed:
            yield from self.locked(self._tend())

    def leave(self) -> Steps[None]:
        """Give up everything at once, for others to take over."""
        yield self.flavour.lock.acquire
        try:
            self.closed = True
            member, self.member = self.member, None
            self.lose(list(self.holdings.values()), tell=False)
            if member is not None:
                yield partial(self.flavour.run, partial(self.leases.leave, member))
        finally:
            self.flavour.lock.release()

    def locked(self, steps: Steps[T]) -> Steps[T]:
        """Take steps that nobody else may come between."""
        yield self.flavour.lock.acquire
        try:
            return (yield from steps)
        finally:
            self.flavour.lock.release()

    # --- being a member -------------------------------------------------------------------------

    def _join(self, *, start: str | None = None) -> Steps[Member]:
        """Be a member of the group: again, if the heartbeat was missed."""
        if self.closed:
            raise Closed("this subscriber was closed; subscribe again")
        if self.expired:
            self.expired = False
            self.member = None
            self.lose(list(self.holdings.values()))
        if self.member is None:
            began = time.monotonic()
            o = self.options
            register = partial(
                self.leases.register,
                o.topic,
                o.group,
                start=start,
                name=o.name,
                lease_us=o.lease_us,
            )
            self.member = yield partial(self.flavour.run, register)
            self.beaten_at = began
            self.sharing.due_at = 0.0
        return self._member()

    def _member(self) -> Member:
        assert self.member is not None  # noqa: S101 - joined before
        return self.member

    def _tend(self) -> Steps[None]:
        member = yield from self._join()
        yield from self.sharing.tend(member)

    @property
    def presumed_dead(self) -> bool:
        """Whether the last heartbeat is so old that somebody else may own everything."""
        return time.monotonic() > self.beaten_at + self.options.lease_duration

    def lose(self, holdings: Iterable[Holding], *, tell: bool = True) -> None:
        """Drop partitions that are not ours any more, and tell whoever handles their messages."""
        told = []
        for holding in holdings:
            holding.lost = True
            self.holdings.pop(holding.id, None)
            self.lively.discard(holding.id)
            told += [d for token in holding.tokens.values() if (d := token.delivery()) is not None]
            self.forget(holding.tokens.values())
            holding.tokens = {}
        if told and tell and self.options.on_lost is not None:
            try:
                self.options.on_lost(told)
            except Exception:
                log.exception("on_lost of subscriber %s failed", self.options.name)

    def hold(self, holding: Holding) -> None:
        """Own a partition."""
        self.holdings[holding.id] = holding
        if holding.lively:
            self.lively.add(holding.id)

    # --- poll -----------------------------------------------------------------------------------

    def _poll(self, limit: int) -> Steps[list[Any]]:
        member = yield from self._join()
        if time.monotonic() >= self.sharing.due_at:
            yield from self.sharing.tend(member)
        yield from self._mend()
        was_fresh, self._fresh = self._fresh, False
        if not was_fresh and not (yield from self._find(member)):
            return []
        plan = self._plan(limit)
        if was_fresh and not plan:
            if not (yield from self._find(member)):
                return []
            plan = self._plan(limit)
        return (yield from self._deliver(plan)) if plan else []

    def _find(self, member: Member) -> Steps[bool]:
        """Look for work. False if we are not a member any more."""
        find = partial(self.leases.find, member, after=self._after)
        found: Found = yield partial(self.flavour.run, find)
        alive = self._learn(found)
        yield from self._mend()
        return alive

    def _learn(self, found: Found) -> bool:
        """Take notice of what was found. False if we are not a member any more."""
        self.clock.hear(found.now)
        if not found.alive:
            self.expired = self._again = True
            return False
        for work in found.work:
            holding = self.holdings.get(work.partition_id)
            if holding is None:
                self.sharing.due_at = 0.0  # a lease that we do not know of: look into it
                continue
            holding.learn(work)
            self.lively.add(holding.id)
            if work.epoch != holding.epoch or work.touched:
                holding.touched = work.touched
                self._doubt(holding)
        self._after = found.work[-1].partition_id if len(found.work) >= FOUND_MAX else 0
        self.sharing.notice(found.newest)
        return True

    def _doubt(self, holding: Holding) -> None:
        """What is remembered of a partition may not be so."""
        holding.doubtful = True
        self._troubled.add(holding)

    def _mend(self) -> Steps[None]:
        """Load what is doubtful, and write what is not written yet."""
        if self._troubled:
            yield from self._reload(list(self._troubled), skip=True)
        unwritten = [h for h in self._unwritten if self.is_sure_of(h)]
        self._unwritten = set()
        if unwritten:
            try:
                yield from self._write([holding.draft() for holding in unwritten])
            except Conflict:
                self._again = True

    def is_sure_of(self, holding: Holding) -> bool:
        """Whether a partition is ours, and is as we remember it."""
        return self.holdings.get(holding.id) is holding and not holding.doubtful

    def _plan(self, limit: int) -> "list[Portion]":
        """What to deliver from where, and what to give up, from what is remembered."""
        now = self.clock.now()
        portions: dict[int, Portion] = {}
        for id in sorted(self.lively):
            holding = self.holdings[id]
            if not holding.lively:
                self.lively.discard(id)
            elif not holding.draining and not holding.doubtful:
                self.forget(holding.expire(now))
                ready = holding.ready(now, strict=self.options.strict)
                spent = [
                    known for known in ready if known.attempts and exhausted(known, self.options)
                ]
                portions[id] = Portion(holding, [k for k in ready if k not in spent], spent)
        room = min(limit, self.options.max_in_flight - self.in_flight)
        wants = {id: portion.size for id, portion in portions.items() if portion.size}
        shares = share_out(wants, max(0, room), self._served)
        if shares:
            self._served = next(reversed(shares))
        for id, portion in portions.items():
            portion.ready = cut(portion.ready, shares.get(id, 0))
        return [p for p in portions.values() if p.ready or p.spent]

    def _deliver(self, plan: "list[Portion]") -> Steps[list[Any]]:
        """Mark messages as delivered, fetch them and hand them out."""
        plan = yield from self._bound(plan)
        until = self.clock.now() + self.options.visibility_us
        drafts, burials = [], []
        for portion in plan:
            draft = portion.holding.draft()
            for known in portion.ready:
                draft.progress.deliver(known.first, known.last, until=until)
            burials += give_up(draft, portion.spent, self.options)
            drafts.append(draft)
        spans = [span for portion in plan for span in portion.spans()]
        try:
            rows = yield from self._write(drafts, burials, spans)
        except Conflict:
            self._again = True
            return []
        self._again = not spans
        return (yield from self._hand_out(spans, rows))

    def _bound(self, plan: "list[Portion]") -> Steps["list[Portion]"]:
        """The plan, cut so that its payloads fit into the bytes that may be in flight.

        The largest payload of a partition is known, so mostly there is nothing to ask.
        """
        room = self.options.max_bytes - self.in_flight_bytes
        if sum(p.size * p.holding.largest_bytes for p in plan) <= room:
            return plan
        spans = [span for portion in plan for span in portion.spans()]
        sizes = yield partial(self.flavour.run, partial(self.leases.sizes, spans))
        first = self.in_flight == 0
        for portion in plan:
            taken = 0
            for offset in portion.offsets():
                size = sizes.get((portion.holding.id, offset), 0)
                if size > room and not first:
                    break
                room, first, taken = room - size, False, taken + 1
            portion.ready = cut(portion.ready, taken)
        return [p for p in plan if p.ready or p.spent]

    def _hand_out(self, spans: Sequence[Span], rows: Iterable[Row]) -> Steps[list[Any]]:
        """Deliveries of rows; what is not there any more is done with, what does not parse is given
        up.
        """
        found = {(row[0], row[1]): row for row in rows}
        deliveries, unreadable = [], []
        for span in spans:
            holding = self.holdings[span.partition_id]
            missing = []
            for offset in range(span.first, span.last + 1):
                row = found.get((span.partition_id, offset))
                if row is None:
                    missing.append(offset)
                    continue
                delivery, error = self._delivery(holding, row)
                deliveries.append(delivery)
                if error is not None:
                    token = holding.tokens[offset]
                    unreadable.append(Settlement(token, Kind.REJECT, error=error))
            self._pass_over(holding, missing)
        if unreadable:
            bad = {id(settlement.token.delivery()) for settlement in unreadable}
            deliveries = [delivery for delivery in deliveries if id(delivery) not in bad]
            yield from self._settle(unreadable)
            self._again = not deliveries
        return deliveries

    def _delivery(self, holding: Holding, row: Row) -> tuple[Any, str | None]:
        offset = row[1]
        known = holding.progress.at(offset)
        attempt = known.attempts if known is not None else 1
        token = Token(holding, offset, attempt, len(row[3]))
        error = None
        topic, kind = self.options.topic, self.options.type
        try:
            message = message_of(row, topic, holding.key, kind)
        except PayloadMismatch as mismatch:
            error = str(mismatch)
            message = message_of(row, topic, holding.key, None)
        delivery = self.flavour.deliver(message, token)
        token.hand_out(delivery, held=self.options.strict)
        holding.tokens[offset] = token
        self.in_flight += 1
        self.in_flight_bytes += token.bytes
        return delivery, error

    def _pass_over(self, holding: Holding, offsets: Sequence[int]) -> None:
        """Messages that were deleted, by name or by age, have nothing left to deliver."""
        for offset in offsets:
            holding.progress.ack(offset, offset)
        if offsets:
            self._unwritten.add(holding)

    def _pause(self) -> float:
        """How long to wait before the next look, if nothing wakes us."""
        if self._again:
            self._again = False
            return 0.0
        longest = self.options.poll_interval
        if self.flavour.watched():
            longest = max(longest, WATCHED_SECONDS_MAX)
        self._empty_looks = min(self._empty_looks + 1, 30)
        pause = min(longest, PAUSE_SECONDS_FIRST * PAUSE_GROWTH**self._empty_looks)
        now = self.clock.now()
        times = [self.holdings[id].next_due(now) for id in self.lively]
        due = min((moment - now for moment in times if moment is not None), default=None)
        pause *= random.uniform(0.75, 1.0)  # never in step with others
        if due is not None:
            pause = min(pause, max(due / 1_000_000, 0.001))
        return max(0.0, min(pause, self.sharing.due_at - time.monotonic()))

    # --- settle ---------------------------------------------------------------------------------

    def _settle(self, settlements: Sequence[Settlement]) -> Steps[list[Exception | None]]:
        for _ in range(CONFLICTS_MAX):
            doubtful = {s.token.holding.id: s.token.holding for s in settlements}
            yield from self._reload([h for h in doubtful.values() if h.doubtful], skip=False)
            drafts, burials, outcomes = self._draft(settlements)
            try:
                yield from self._write(drafts, burials)
            except Conflict:
                continue
            self._finish(settlements, outcomes)
            return outcomes
        raise SerializationFailure("the partition was changed by others again and again; try again")

    def _draft(
        self, settlements: Sequence[Settlement]
    ) -> tuple[list[Draft], list[Burial], list[Exception | None]]:
        """What settlements come to, and which of them are void."""
        now = self.clock.now()
        drafts: dict[int, Draft] = {}
        burials: list[Burial] = []
        outcomes: list[Exception | None] = []
        for settlement in settlements:
            token, holding = settlement.token, settlement.token.holding
            if self.holdings.get(holding.id) is not holding:
                outcomes.append(stale(token))
                continue
            draft = drafts.get(holding.id) or holding.draft()
            if not is_open(draft.progress, token):
                outcomes.append(void(token))
                continue
            drafts[holding.id] = draft
            burial = apply(draft.progress, settlement, self.options, now=now)
            burials += [] if burial is None else [burial]
            outcomes.append(None)
        return list(drafts.values()), burials, outcomes

    def _finish(
        self, settlements: Sequence[Settlement], outcomes: Sequence[Exception | None]
    ) -> None:
        for settlement, outcome in zip(settlements, outcomes, strict=True):
            token, holding = settlement.token, settlement.token.holding
            if settlement.kind is Kind.EXTEND and outcome is None:
                continue
            if holding.tokens.get(token.offset) is token:
                del holding.tokens[token.offset]
                self.forget([token])
            if holding.draining and not holding.tokens:
                self.sharing.due_at = 0.0
            if settlement.kind is Kind.NACK and holding.id in self.holdings:
                self.lively.add(holding.id)

    def settle_within(self, settlements: Sequence[Settlement]) -> Operation[None]:
        """Settle in a transaction of the caller's: from what the database holds, not from what is
        remembered, since nobody knows yet whether it will be committed.
        """
        member = self.member
        holdings: dict[int, Holding] = {s.token.holding.id: s.token.holding for s in settlements}
        for settlement in settlements:
            holding = settlement.token.holding
            if member is None or self.holdings.get(holding.id) is not holding:
                raise stale(settlement.token)
        assert member is not None  # noqa: S101 - just checked
        for holding in holdings.values():
            self._doubt(holding)
        yield from self.store.dialect.seize()
        loaded = yield from self.leases.load(member.group_id, sorted(holdings))
        places = {place.partition_id: place for place in loaded}
        drafts: dict[int, Draft] = {}
        burials = []
        now = self.clock.now()
        for settlement in settlements:
            token, holding = settlement.token, settlement.token.holding
            place = places.get(holding.id)
            if not is_ours(place, holding, member):
                raise stale(token)
            draft = drafts.setdefault(holding.id, Draft(holding, Progress.restored(place.stored)))
            if not is_open(draft.progress, token):
                raise void(token)
            burial = apply(draft.progress, settlement, self.options, now=now)
            burials += [] if burial is None else [burial]
        changes = [
            Change(id, d.holding.epoch, places[id].version, places[id].stored, d.progress.stored())
            for id, d in drafts.items()
        ]
        yield from self.leases.write(member, changes)
        if burials:
            yield from self.store.letters.bury(self.options.grave, burials)

    # --- writing and loading --------------------------------------------------------------------

    def _write(
        self, drafts: Sequence[Draft], burials: Sequence[Burial] = (), spans: Sequence[Span] = ()
    ) -> Steps[Sequence[Row]]:
        """Write drafts, all or none, and fetch spans. `Conflict` if something is not as remembered:
        it is doubtful then, and must be loaded again.
        """
        if not drafts:
            return []
        member = self._member()
        changes = [draft.change for draft in drafts]
        for draft in drafts:
            self._doubt(draft.holding)  # until the database has answered
        operation = partial(self._advance, member, changes, burials, spans)
        rows: Sequence[Row]
        found: Found | None
        try:
            rows, found = yield partial(self.flavour.run, operation)
        except Conflict:
            if spans or not (yield from self._is_written(drafts, changes)):
                raise
            return []
        for draft, change in zip(drafts, changes, strict=True):
            draft.holding.commit(draft, change.after)
            self._troubled.discard(draft.holding)
        if found is not None:
            self._fresh = self._learn(found)
        return rows

    def _advance(
        self,
        member: Member,
        changes: Sequence[Change],
        burials: Sequence[Burial],
        spans: Sequence[Span],
    ) -> Operation[tuple[Sequence[Row], Found | None]]:
        if not burials:
            return (yield from self.leases.advance(member, changes, spans=spans, after=self._after))
        yield from self.leases.write(member, changes)
        yield from self.store.letters.bury(self.options.grave, burials)
        return (yield from self.leases.fetch(spans)), None

    def _is_written(self, drafts: Sequence[Draft], changes: Sequence[Change]) -> Steps[bool]:
        """Whether a refused write was there already: committed by a try whose answer was lost."""
        holdings = [draft.holding for draft in drafts]
        places = yield from self._reload(holdings, skip=False)
        for change in changes:
            place = places.get(change.partition_id)
            if (
                place is None
                or (place.epoch, place.version) != (change.epoch, change.version + 1)
                or place.stored != change.after
            ):
                return False
        return True

    def _reload(self, holdings: Sequence[Holding], *, skip: bool) -> Steps[dict[int, Loaded]]:
        """Load holdings again; those that are not ours any more are lost. `skip` those that a
        transaction has locked: they stay doubtful.
        """
        self._troubled -= {h for h in holdings if self.holdings.get(h.id) is not h}
        holdings = [h for h in holdings if self.holdings.get(h.id) is h]
        if not holdings:
            return {}
        member = self._member()
        ids = sorted(holding.id for holding in holdings)
        load = partial(self.leases.load, member.group_id, ids, skip=skip)
        places = {place.partition_id: place for place in (yield partial(self.flavour.run, load))}
        for holding in holdings:
            place = places.get(holding.id)
            if place is None and skip:
                continue
            self._troubled.discard(holding)
            if place is None or place.leased_by != member.subscriber_id:
                self.lose([holding])
            elif place.epoch != holding.epoch:
                self._renew(holding, place)
            else:
                self.forget(holding.reload(place))
                self.hold(holding)
            if holding.touched and holding.id in self.holdings:
                holding.touched = False
                self._unwritten.add(self.holdings[holding.id])  # which says that we have looked
        return places

    def _renew(self, holding: Holding, place: Loaded) -> None:
        """A seek: the partition is still ours, and all that was in flight is void."""
        known = (holding.next_offset, holding.largest_bytes)
        self.lose([holding])
        self.hold(Holding(place, Counters(holding.id, holding.key, 1, *known)))

    def forget(self, tokens: Iterable[Token]) -> None:
        """Deliveries are not in flight any more."""
        for token in tokens:
            self.in_flight -= 1
            self.in_flight_bytes -= token.bytes


class Portion:
    """What is taken from one partition in a poll."""

    __slots__ = ("holding", "ready", "spent")

    def __init__(self, holding: Holding, ready: list[Range], spent: list[Range]) -> None:
        self.holding = holding
        self.ready = ready
        self.spent = spent

    @property
    def size(self) -> int:
        return sum(known.size for known in self.ready)

    def spans(self) -> list[Span]:
        return [Span(self.holding.key, self.holding.id, k.first, k.last) for k in self.ready]

    def offsets(self) -> Iterable[int]:
        return (offset for known in self.ready for offset in range(known.first, known.last + 1))


def give_up(draft: Draft, spent: Iterable[Range], options: Options) -> list[Burial]:
    """Settle what has had all its attempts, and say so."""
    burials = []
    for known in spent:
        draft.progress.ack(known.first, known.last)
        error = unsettled_error(known, options)
        for offset in range(known.first, known.last + 1):
            holding = draft.holding
            burials.append(Burial(holding.id, holding.key, offset, known.attempts, error, new_id()))
    return burials if options.buries else []


def is_ours(place: Loaded | None, holding: Holding, member: Member) -> TypeGuard[Loaded]:
    """Whether a lease is the one that a holding was delivered from."""
    return (
        place is not None
        and place.leased_by == member.subscriber_id
        and place.epoch == holding.epoch
    )


def void(token: Token) -> Exception:
    """Why a delivery of a partition that is still ours cannot be settled."""
    return settled_before(token) if token.tentative else stale(token)


def stale(token: Token) -> StaleLease:
    return StaleLease(
        f"{token}: the lease was lost, or the visibility passed and it was delivered again; so "
        f"nothing was changed. Whoever has the message now will settle it: let go of this delivery"
    )


def settled_before(token: Token) -> AlreadySettled:
    return AlreadySettled(f"{token}: this delivery was settled before, and that stands")
