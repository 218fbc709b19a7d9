"""Poll: find what there is, plan in memory what to deliver, mark and fetch it, hand it out."""

import logging
import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import ref

from rowmq.codec import error_text
from rowmq.drivers.base import Steps
from rowmq.errors import PayloadMismatch, TransientError
from rowmq.message import new_id
from rowmq.pacing import Pace
from rowmq.policy import share_out
from rowmq.progress import Range
from rowmq.store.leases import Conflict, Found, Member
from rowmq.store.letters import Burial
from rowmq.store.statement import Row
from rowmq.store.topics import Span, message_of
from rowmq.subscriber.holding import Draft, Holding, Token, cut
from rowmq.subscriber.options import Options
from rowmq.subscriber.settling import (
    Kind,
    Settlement,
    exhausted,
    unsettled_error,
)

if TYPE_CHECKING:
    from rowmq.subscriber.subscription import Subscription

__all__ = ["Polling"]

log = logging.getLogger("rowmq")

FRESH_SECONDS = 0.02
"""How long what was found is good enough to plan with, while there is plenty."""

ROUNDS_MAX = 10
"""And how many times longer, at most, where very many partitions have something."""

AT_ONCE_MAX = 20
"""How often it looks again at once before it takes a breath."""


BREADTH = 100
"""From how many partitions one poll takes its messages, while these have enough: each costs a write
when they are delivered, and another when they are settled.
"""


class Polling:
    """A subscriber's polls."""

    def __init__(self, subscription: "Subscription") -> None:
        self.subscription = subscription
        self.after = 0
        """The partition after which the next look begins, if there are too many for one."""
        self.found_at = 0.0
        self.again = False
        """Whether something has changed that makes another look worth while, at once."""
        self._served = 0
        self._planned_at = 0
        self._pace = Pace()
        self._unreadable: list[Settlement] = []

    def poll(self, limit: int, timeout: float | None) -> Steps[list[Any]]:
        """Deliver up to `limit` messages; wait for the first for as long as `timeout` allows."""
        flavour = self.subscription.flavour
        deadline = None if timeout is None else time.monotonic() + timeout
        at_once = 0
        while True:
            flavour.calm()
            self._pace.begin()
            self.again = False
            deliveries = yield from self.subscription.locked(self._poll(limit))
            if deliveries:
                self._pace.found()
                return deliveries
            if self.subscription.closing:
                return []
            at_once = at_once + 1 if self.again else 0
            if 0 < at_once < AT_ONCE_MAX:
                continue
            remaining = None if deadline is None else deadline - time.monotonic()
            if remaining is not None and remaining <= 0:
                return []
            pause = self._pause()
            yield partial(flavour.wait, pause if remaining is None else min(pause, remaining))

    def _poll(self, limit: int) -> Steps[list[Any]]:
        subscription = self.subscription
        member = yield from subscription.join()
        if time.monotonic() >= subscription.sharing.due_at:
            try:
                yield from subscription.sharing.tend(member)
            except TransientError as error:  # what is owned can be delivered all the same
                log.warning(
                    "subscriber %s could not share out: %s", subscription.options.name, error
                )
                subscription.sharing.postpone()
        yield from subscription.mend()
        look = time.monotonic() - self.found_at > self._fresh_seconds()
        looked = look and not (subscription.leases.finds_more and subscription.clock.heard)
        if looked:
            yield from self._find(member)
        plan = self._plan(limit)
        if not plan and not looked:
            yield from self._find(member)
            looked, plan = True, self._plan(limit)
        if not plan or subscription.expired:
            return []
        return (yield from self._deliver(plan, look=look and not looked))

    def _fresh_seconds(self) -> float:
        """How long what was found is good enough: the more partitions have something, the longer
        the turn of a new one takes in any case.
        """
        rounds = 1 + len(self.subscription.lively) // BREADTH
        return FRESH_SECONDS * min(rounds, ROUNDS_MAX)

    def _find(self, member: Member) -> Steps[None]:
        """Look for work."""
        subscription = self.subscription
        topic = subscription.options.topic
        find = partial(subscription.leases.find, member, topic, after=self.after)
        found: Found = yield partial(subscription.flavour.run, find)
        subscription.learn(found)
        yield from subscription.mend()

    def _plan(self, limit: int) -> "list[Portion]":
        """What to deliver from where, and what to give up, from what is remembered."""
        subscription, options = self.subscription, self.subscription.options
        now = self._planned_at = subscription.clock.now()
        if subscription.full:
            for id in subscription.lively:
                subscription.forget(subscription.holdings[id].expire(now))
        portions: dict[int, Portion] = {}
        wants: dict[int, int] = {}
        part = -(-limit // BREADTH)
        wanted, asked_all = 0, True
        for id in self._in_turn():
            portion = self._portion(subscription.holdings[id])
            if portion is not None:
                portions[id] = portion
                if (size := portion.size) > 0:
                    wants[id] = size
                    wanted += min(size, part)
            if wanted >= limit:  # with a part from each there is no room for more
                asked_all = False
                break
        room = max(0, min(limit, options.max_in_flight - subscription.in_flight))
        shares = share_out(wants, room, self._served)
        if shares:
            # Where not all were asked, and all who were have a part, it is the others' turn.
            turn = shares if asked_all or len(shares) < len(wants) else wants
            self._served = next(reversed(turn))
        for id, portion in portions.items():
            portion.ready = cut(portion.ready, shares.get(id, 0))
        return [p for p in portions.values() if p.ready or p.spent]

    def _in_turn(self) -> list[int]:
        """The partitions that have something, beginning after the one served last."""
        ids = sorted(self.subscription.lively)
        start = bisect_right(ids, self._served)
        return ids[start:] + ids[:start]

    def _portion(self, holding: Holding) -> "Portion | None":
        """What a partition has to deliver now, and to give up."""
        subscription, options = self.subscription, self.subscription.options
        if not holding.lively:
            subscription.lively.discard(holding.id)
            return None
        if holding.draining or holding.doubtful:
            return None
        now = self._planned_at
        if holding.tokens:
            subscription.forget(holding.expire(now))
        ready = holding.ready(now, strict=options.strict)
        spent = [known for known in ready if known.attempts and exhausted(known, options)]
        fresh = [known for known in ready if known not in spent] if spent else ready
        if options.per_key is not None and holding.place[0] is not None:
            fresh = cut(fresh, options.per_key - len(holding.tokens))
        return Portion(holding, fresh, spent)

    def _deliver(self, plan: "list[Portion]", *, look: bool) -> Steps[list[Any]]:
        """Mark messages as delivered, fetch them, and hand them out; `look` for more meanwhile."""
        subscription, options = self.subscription, self.subscription.options
        plan = yield from self._bound(plan)
        until = subscription.clock.now() + options.visibility_us
        drafts, burials = [], []
        for portion in plan:
            draft = portion.holding.draft()
            portion.holding.unanswered += portion.ready
            for known in portion.ready:
                draft.progress.deliver(known.first, known.last, until=until)
            burials += give_up(draft, portion.spent, options, now=self._planned_at)
            drafts.append(draft)
        spans = [span for portion in plan for span in portion.spans()]
        try:
            rows = yield from subscription.write(drafts, burials, spans, look=look)
        except Conflict:
            self.again = True
            return []
        subscription.given_up += sum(known.size for portion in plan for known in portion.spent)
        self.again = bool(plan) and not spans
        return self._hand_out(spans, rows)

    def _bound(self, plan: "list[Portion]") -> Steps["list[Portion]"]:
        """The plan, cut so that its payloads fit into the bytes that may be in flight.

        The largest payload of a partition is known, so mostly there is nothing to ask.
        """
        subscription = self.subscription
        room = subscription.options.max_bytes - subscription.in_flight_bytes
        if sum(p.size * p.holding.largest_bytes for p in plan) <= room:
            return plan
        spans = [span for portion in plan for span in portion.spans()]
        sizes = yield partial(subscription.flavour.run, partial(subscription.leases.sizes, spans))
        first = subscription.in_flight == 0
        for portion in plan:
            taken = 0
            for offset in portion.offsets():
                size = sizes.get((portion.holding.id, offset), 0)
                if size > room and not first:
                    break
                room, first, taken = room - size, False, taken + 1
            portion.ready = cut(portion.ready, taken)
        if served := [portion.holding.id for portion in plan if portion.ready]:
            self._served = served[-1]  # the next poll begins with those who have gone short
        return [p for p in plan if p.ready or p.spent]

    def _hand_out(self, spans: Sequence[Span], rows: Sequence[Row]) -> list[Any]:
        """Deliveries of rows; what is not there any more is done with, what does not parse is given
        up.
        """
        deliveries: list[Any] = []
        for span, found in by_span(spans, rows):
            holding = self.subscription.holdings[span.partition_id]
            deliveries += self._deliveries(holding, span, found)
            if len(found) <= span.last - span.first:
                there = {row[1] for row in found}
                offsets = range(span.first, span.last + 1)
                self._pass_over(holding, [offset for offset in offsets if offset not in there])
        self.again = self.again or (bool(spans) and not deliveries)
        return deliveries

    def reject_unreadable(self) -> Steps[None]:
        """Give up what did not parse: apart from the poll that found it, which has others to hand
        out whatever comes of this.
        """
        unreadable, self._unreadable = self._unreadable, []
        if not unreadable:
            return
        try:
            outcomes = yield from self.subscription.settling.settle(unreadable)
            pairs = zip(unreadable, outcomes, strict=True)
            self.subscription.given_up += sum(s.token.given_up and not o for s, o in pairs)
        except Exception as error:  # noqa: BLE001 - they come again when their visibility passes
            log.warning("what does not parse could not be given up: %s", error)
            outcomes = [error] * len(unreadable)
        except BaseException:
            self._unreadable += unreadable
            raise
        for settlement, problem in zip(unreadable, outcomes, strict=True):
            self._tell(settlement, problem)

    def _tell(self, settlement: Settlement, problem: Exception | None) -> None:
        """Say what became of a message that does not parse."""
        options, fate = self.subscription.options, "comes again"
        if problem is None and settlement.token.given_up:
            fate = "went to the dead letters" if options.buries else "was given up"
        log.warning(
            "group %r of topic %r: the message of %s %s: %s",
            options.group,
            options.topic,
            settlement.token,
            fate,
            settlement.error,
        )

    def _deliveries(self, holding: Holding, span: Span, rows: Sequence[Row]) -> list[Any]:
        """Deliveries of a span's rows, without those that do not parse."""
        subscription, options = self.subscription, self.subscription.options
        topic, place, type = options.topic, holding.place, options.type
        new, settle = subscription.flavour.delivery, subscription.flavour.settle
        held = options.strict or options.held
        known = holding.progress.at(span.first)  # as are all of the span
        attempt, reopened = (known.attempts, known.reopened) if known is not None else (1, 0)
        tokens = [
            Token(holding, row[1], attempt, len(row[3]), held, reopened=reopened) for row in rows
        ]
        subscription.remember(holding, tokens)
        deliveries = []
        for row, token in zip(rows, tokens, strict=True):
            try:
                message = message_of(row, topic, place, type)
            except Exception as problem:  # noqa: BLE001 - a type's own code may raise anything
                self._refuse(token, problem)
                continue
            delivery = new(message, token, subscription, settle)
            token.delivery = ref(delivery)
            deliveries.append(delivery)
        return deliveries

    def _refuse(self, token: Token, problem: Exception) -> None:
        """Note a message that does not parse, to be given up."""
        # A dead letter that does not parse is not to be lost to a wrong type.
        kind = Kind.REJECT if self.subscription.options.buries else Kind.NACK
        # Where it is, a letter says anyhow, and so does the log.
        reason = problem.__cause__ if isinstance(problem, PayloadMismatch) else None
        self._unreadable.append(Settlement(token, kind, error=error_text(reason or problem)))

    def _pass_over(self, holding: Holding, offsets: Sequence[int]) -> None:
        """Messages that were deleted, by name or by age, have nothing left to deliver."""
        for offset in offsets:
            holding.progress.ack(offset, offset)
        if offsets:
            self.subscription.unwritten.add(holding)

    def _pause(self) -> float:
        """How long to wait before the next look, if nothing wakes us."""
        subscription = self.subscription
        watched = subscription.flavour.watched()
        pause = self._pace.pause(subscription.options.poll_interval, watched=watched)
        # What was due when this was planned, and may not be delivered, is not waited for.
        due = min(
            (
                moment
                for id in subscription.lively
                if (moment := subscription.holdings[id].next_due(self._planned_at)) is not None
            ),
            default=None,
        )
        if due is not None:
            pause = min(pause, max((due - subscription.clock.now()) / 1_000_000, 0.001))
        return max(0.0, min(pause, subscription.sharing.due_at - time.monotonic()))


class Portion:
    """What is taken from one partition in a poll."""

    __slots__ = ("holding", "ready", "spent")

    def __init__(self, holding: Holding, ready: list[Range], spent: list[Range]) -> None:
        self.holding = holding
        self.ready = ready
        self.spent = spent

    @property
    def size(self) -> int:
        return sum([known.last - known.first + 1 for known in self.ready])

    def spans(self) -> list[Span]:
        return [Span(self.holding.key, self.holding.id, k.first, k.last) for k in self.ready]

    def offsets(self) -> Iterable[int]:
        return (offset for known in self.ready for offset in range(known.first, known.last + 1))


def by_span(spans: Sequence[Span], rows: Sequence[Row]) -> Iterator[tuple[Span, Sequence[Row]]]:
    """The rows of each span, in order, of rows in any order; some may be missing.

    Mostly they come span by span and in order, and need only be counted off.
    """
    found: dict[tuple[int, int], Row] | None = None
    place = 0
    for span in spans:
        id, offsets = span.partition_id, range(span.first, span.last + 1)
        part = rows[place : place + len(offsets)]
        place += len(offsets)
        if found is None and is_run(part, id, offsets):
            yield span, part
            continue
        if found is None:
            found = {(row[0], row[1]): row for row in rows}
        yield span, [found[id, offset] for offset in offsets if (id, offset) in found]


def is_run(rows: Sequence[Row], id: int, offsets: range) -> bool:
    """Whether rows are those of a partition's offsets, and in order."""
    there = [row[1] for row in rows] == [*offsets]
    return there and [row[0] for row in rows].count(id) == len(offsets)


def give_up(draft: Draft, spent: Iterable[Range], options: Options, *, now: int) -> list[Burial]:
    """Settle what has had all its attempts, and say so."""
    burials = []
    for known in spent:
        draft.progress.ack(known.first, known.last)
        error = unsettled_error(known, options)
        for offset in range(known.first, known.last + 1):
            holding = draft.holding
            how = (known.attempts, error, now, new_id())
            burials.append(Burial(holding.id, holding.key, offset, *how))
    return burials if options.buries else []
