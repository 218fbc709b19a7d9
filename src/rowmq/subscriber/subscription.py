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
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

from rowmq.drivers.base import Steps
from rowmq.errors import Closed
from rowmq.store.leases import FOUND_MAX, Change, Conflict, Counters, Found, Loaded, Member
from rowmq.store.letters import Burial
from rowmq.store.statement import Operation, Row
from rowmq.store.store import Store
from rowmq.store.topics import Span
from rowmq.subscriber.holding import Draft, Holding, Token
from rowmq.subscriber.options import Options
from rowmq.subscriber.polling import Polling
from rowmq.subscriber.settling import Settlement, Settling
from rowmq.subscriber.sharing import Sharing

__all__ = ["Clock", "Flavour", "Subscription"]

log = logging.getLogger("rowmq")
T = TypeVar("T")


class Clock:
    """The database's time: what it last told, and what has passed since.

    Only the passing of time is this machine's; what its clock is set to does not matter.
    """

    def __init__(self) -> None:
        self._told = 0
        self._at = 0.0

    @property
    def heard(self) -> bool:
        """Whether the database has told its time at all."""
        return self._told > 0

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

    delivery: Callable[..., Any]
    """What is handed out, of a message, its token, the subscription, and `settle`."""

    settle: Callable[..., Any]
    """What settles that."""


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
        self.closing = False
        """Whether it is to be closed by whoever is in a call of it."""
        self.holdings: dict[int, Holding] = {}
        self.lively: set[int] = set()
        self.in_flight = 0
        self.in_flight_bytes = 0
        self.sharing = Sharing(self)
        self.polling = Polling(self)
        self.settling = Settling(self)
        self.unwritten: set[Holding] = set()
        """Partitions of which more is remembered than is written."""
        self.given_up = 0
        """How many messages were given up without a handler; for metrics."""
        self._troubled: set[Holding] = set()
        self._lost: list[Any] = []

    # --- what a subscriber calls ----------------------------------------------------------------

    def start(self) -> Steps[None]:
        """Enter the group, and take a fair share of its partitions."""
        yield from self.locked(self.join(start=self.options.start))
        yield from self.locked(self.sharing.tend(self._member()))

    def settle(self, settlements: Sequence[Settlement]) -> Steps[list[Exception | None]]:
        """Settle deliveries in one transaction. None, or an error, for each."""
        return (yield from self.locked(self.settling.settle(settlements)))

    def tend(self) -> Steps[None]:
        """Take or give up partitions, if it is time to."""
        if time.monotonic() >= self.sharing.due_at and not self.closed:
            yield from self.locked(self._tend())

    def leave(self) -> Steps[None]:
        """Give up everything at once, for others to take over."""
        yield from self.locked(self._leave())

    def _leave(self) -> Steps[None]:
        try:
            if self.member is not None and not self.expired:
                yield from self.mend()  # what reached nobody is to cost no attempt
        except Exception as error:  # noqa: BLE001 - to hand over is what matters
            log.warning("subscriber %s could not tidy up: %s", self.options.name, error)
        finally:
            self.closed = True
            member, self.member = self.member, None
            self.lose(list(self.holdings.values()), tell=False)
        if member is not None:
            yield partial(self.flavour.run, partial(self.leases.leave, member))

    def locked(self, steps: Steps[T]) -> Steps[T]:
        """Take steps that nobody else may come between; then tell of what was lost by them."""
        yield self.flavour.lock.acquire
        try:
            return (yield from steps)
        finally:
            self.flavour.lock.release()
            self._tell()

    @property
    def full(self) -> bool:
        """Whether as much is in flight as may be."""
        options = self.options
        return self.in_flight >= options.max_in_flight or self.in_flight_bytes >= options.max_bytes

    # --- being a member -------------------------------------------------------------------------

    def join(self, *, start: str | None = None) -> Steps[Member]:
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
            self.sharing.begin()
        return self._member()

    def _member(self) -> Member:
        assert self.member is not None  # noqa: S101 - joined before
        return self.member

    def _tend(self) -> Steps[None]:
        member = yield from self.join()
        yield from self.sharing.tend(member)

    def presumed_dead(self) -> bool:
        """Whether the last heartbeat is so old that somebody else may own everything."""
        return time.monotonic() > self.beaten_at + self.options.lease_duration

    def expire(self, member: Member) -> None:
        """A membership is over; from any thread. What that means is done under the lock."""
        if self.member is member:
            self.expired = True
            self.sharing.due_at = 0.0
            self.flavour.wake()

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
        if tell:
            self._lost += told

    def _tell(self) -> None:
        """Tell of deliveries that were lost, without the lock: who is told may want to settle."""
        told, self._lost = self._lost, []
        if told and self.options.on_lost is not None:
            try:
                self.options.on_lost(told)
            except Exception:
                log.exception("on_lost of subscriber %s failed", self.options.name)

    def hold(self, holding: Holding) -> None:
        """Own a partition."""
        self.holdings[holding.id] = holding
        if holding.lively:
            self.lively.add(holding.id)

    # --- what is remembered, and what is so -----------------------------------------------------

    def learn(self, found: Found) -> bool:
        """Take notice of what was found. False if we are not a member any more."""
        self.clock.hear(found.now)
        self.polling.found_at = time.monotonic()
        if not found.alive:
            self.expired = self.polling.again = True
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
                self.doubt(holding)
        self.polling.after = found.work[-1].partition_id if len(found.work) >= FOUND_MAX else 0
        self.sharing.notice(found.newest)
        return True

    def doubt(self, holding: Holding) -> None:
        """What is remembered of a partition may not be so."""
        holding.doubtful = True
        self._troubled.add(holding)

    def mend(self) -> Steps[None]:
        """Load what is doubtful, and write what is not written yet."""
        yield from self.polling.reject_unreadable()
        if self._troubled:
            yield from self.reload(list(self._troubled), skip=True)
        unwritten = [h for h in self.unwritten if self.is_sure_of(h)]
        self.unwritten = set()
        if unwritten:
            try:
                yield from self.write([holding.draft() for holding in unwritten])
            except Conflict:
                self.polling.again = True

    def is_sure_of(self, holding: Holding) -> bool:
        """Whether a partition is ours, and is as we remember it."""
        return self.holdings.get(holding.id) is holding and not holding.doubtful

    # --- writing and loading --------------------------------------------------------------------

    def write(
        self,
        drafts: Sequence[Draft],
        burials: Sequence[Burial] = (),
        spans: Sequence[Span] = (),
        *,
        look: bool = False,
    ) -> Steps[Sequence[Row]]:
        """Write drafts, all or none, and fetch spans; `look` for more, if that comes for nothing.

        Raises `Conflict` if something is not as remembered: it is doubtful then, and must be loaded
        again.
        """
        if not drafts:
            return []
        member = self._member()
        changes = [draft.change for draft in drafts]
        for draft in drafts:
            self.doubt(draft.holding)  # until the database has answered
        operation = partial(self._advance, member, changes, burials, spans, look=look)
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
            self.learn(found)
        return rows

    def _advance(
        self,
        member: Member,
        changes: Sequence[Change],
        burials: Sequence[Burial],
        spans: Sequence[Span],
        *,
        look: bool,
    ) -> Operation[tuple[Sequence[Row], Found | None]]:
        if not burials:
            find = (self.options.topic, self.polling.after) if look else None
            return (yield from self.leases.advance(member, changes, spans=spans, find=find))
        yield from self.leases.write(member, changes)
        yield from self.store.letters.bury(self.options.grave, burials)
        return (yield from self.leases.fetch(spans)), None

    def _is_written(self, drafts: Sequence[Draft], changes: Sequence[Change]) -> Steps[bool]:
        """Whether a refused write was there already: committed by a try whose answer was lost."""
        holdings = [draft.holding for draft in drafts]
        places = yield from self.reload(holdings, skip=False)
        for change in changes:
            place = places.get(change.partition_id)
            if (
                place is None
                or (place.epoch, place.version) != (change.epoch, change.version + 1)
                or place.stored != change.after
            ):
                return False
        return True

    def reload(self, holdings: Sequence[Holding], *, skip: bool) -> Steps[dict[int, Loaded]]:
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
                if holding.progress.stored() != holding.baseline:
                    self.unwritten.add(holding)
            if holding.touched and holding.id in self.holdings:
                holding.touched = False
                self.unwritten.add(self.holdings[holding.id])  # which says that we have looked
        return places

    def _renew(self, holding: Holding, place: Loaded) -> None:
        """A seek: the partition is still ours, and all that was in flight is void."""
        known = (holding.next_offset, holding.largest_bytes)
        self.lose([holding])
        self.hold(Holding(place, Counters(holding.id, holding.key, 1, *known)))

    def remember(self, holding: Holding, tokens: Collection[Token]) -> None:
        """Deliveries of a partition are in flight."""
        holding.tokens.update({token.offset: token for token in tokens})
        self.in_flight += len(tokens)
        self.in_flight_bytes += sum([token.bytes for token in tokens])

    def forget(self, tokens: Collection[Token]) -> None:
        """Deliveries are not in flight any more."""
        self.in_flight -= len(tokens)
        self.in_flight_bytes -= sum([token.bytes for token in tokens])
