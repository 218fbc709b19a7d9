"""Sharing a group's partitions out: each subscriber looks, computes its own share, and takes or
gives up. Nobody leads: all see the same numbers and compute the same shares, which add up.

What is given up is drained first: no more is delivered from it, and once nothing of it is in flight
the lease is freed. So a rebalance makes no message be delivered twice.
"""

import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from rowmq.drivers.base import Steps
from rowmq.policy import fair_share, slice_for, to_shed
from rowmq.store.leases import Member, Survey
from rowmq.subscriber.holding import Holding

if TYPE_CHECKING:
    from rowmq.subscriber.subscription import Subscription

__all__ = ["Sharing"]

LOAD_FACTOR = 20
"""A survey that takes long is made less often: at most one part in so many of the time. What comes
after it does not count: to take what is free may mean to wait for others, or for a server.
"""

SLOWER_MAX = 10
"""But at most so many times less often than usual: somebody may have died meanwhile."""

SOONEST_SECONDS = 0.02
"""How soon after one survey a hint may bring about the next."""


class Sharing:
    """A subscriber's part in sharing out its group's partitions."""

    def __init__(self, subscription: "Subscription") -> None:
        self.subscription = subscription
        self.due_at = 0.0
        self._last_at = 0.0
        self._took = 0.0
        self._usually = 0.0
        self._newest = -1
        self._adopt_at = 0.0
        self._adopt_until = 0.0
        self._idle_at = 0.0

    def begin(self) -> None:
        """A membership begins, perhaps in another group of the same name: look at everything."""
        self.due_at = 0.0
        self._newest = -1

    def notice(self, newest: int) -> None:
        """There may be new partitions."""
        if newest > self._newest:
            self.due_at = min(self.due_at, self._last_at + SOONEST_SECONDS)

    def postpone(self) -> None:
        """Try again later."""
        self.due_at = time.monotonic() + self.subscription.options.discovery_interval

    def tend(self, member: Member) -> Steps[None]:
        """Take what is missing to a fair share, or give up what is too much."""
        survey = yield from self._survey(member)
        if survey.alive:
            yield from self._balance(member, survey)
            yield from self._release_idle(member)
        else:
            self.subscription.expired = True
        ended = self._last_at = time.monotonic()
        options = self.subscription.options
        slow = min(LOAD_FACTOR * self._usually, SLOWER_MAX * options.discovery_interval)
        pause = max(options.discovery_interval, slow)
        # One who has expired looks again at once, as somebody new.
        self.due_at = ended + (pause if survey.alive else 0.0)

    def _survey(self, member: Member) -> Steps[Survey]:
        """Look, after having freed what dead subscribers owned and taken in new partitions."""
        subscription = self.subscription
        leases, run = subscription.leases, subscription.flavour.run
        survey = yield from self._look(member)
        again = False
        if survey.dead and survey.alive:
            yield partial(run, partial(leases.sweep, member.group_id, survey.dead))
            again = True
        if self._must_adopt(survey.newest):
            topic = subscription.options.topic
            yield partial(run, partial(leases.adopt, topic, member.group_id))
            again = True
        if again:
            survey = yield from self._look(member)
        return survey

    def _look(self, member: Member) -> Steps[Survey]:
        """Look, and see how long that takes: as the shorter of two, since one may have waited for a
        server that was away.
        """
        subscription = self.subscription
        survey = partial(subscription.leases.survey, member, subscription.options.topic)
        began = time.monotonic()
        seen: Survey = yield partial(subscription.flavour.run, survey)
        took = time.monotonic() - began
        self._usually, self._took = min(self._took, took), took
        return seen

    def _must_adopt(self, newest: int) -> bool:
        """Whether to look for partitions that the group has no place in.

        Their ids rise, but they need not be committed in that order: so it looks for a while after
        each new one, and from time to time in any case.
        """
        now = time.monotonic()
        options = self.subscription.options
        if newest > self._newest:
            self._newest = newest
            self._adopt_until = now + 3 * options.discovery_interval
        elif now > self._adopt_until and now < self._adopt_at:
            return False
        self._adopt_at = now + options.heartbeat_interval
        return True

    def _balance(self, member: Member, survey: Survey) -> Steps[None]:
        subscription = self.subscription
        holdings = subscription.holdings
        if survey.owned != len(holdings):
            yield from self._reconcile(member)
        partitions = survey.leased + len(survey.free)
        share = fair_share(partitions, max(1, survey.subscribers), survey.rank)
        for holding in holdings.values():
            holding.draining = False
        if len(holdings) < share:
            want = share - len(holdings)
            chosen = slice_for(survey.free, survey.rank, survey.subscribers, want)
            yield from self._acquire(member, chosen)
        elif len(holdings) > share:
            owned = [(id, bool(holding.tokens)) for id, holding in holdings.items()]
            shed = [holdings[id] for id in to_shed(owned, share)]
            yield from self._drain(member, shed)

    def _acquire(self, member: Member, partition_ids: Sequence[int]) -> Steps[None]:
        if not partition_ids:
            return
        subscription = self.subscription
        acquire = partial(subscription.leases.acquire, member, partition_ids)
        for loaded, counters in (yield partial(subscription.flavour.run, acquire)):
            subscription.hold(Holding(loaded, counters))

    def _drain(self, member: Member, holdings: Sequence[Holding]) -> Steps[None]:
        """Give up partitions: at once where nothing is in flight, the others when that is so."""
        subscription = self.subscription
        now = subscription.clock.now()
        for holding in holdings:
            subscription.forget(holding.expire(now))
        # What nobody here is at work on any more may have been extended by its receipt, elsewhere.
        quiet = [h for h in holdings if not h.tokens and h.progress.ranges]
        yield from subscription.reload(quiet, skip=True)
        empty = []
        for holding in holdings:
            if subscription.holdings.get(holding.id) is not holding:
                continue  # it was lost, or sought
            if holding.tokens or holding.progress.in_flight(now):
                holding.draining = True
            else:
                empty.append(holding)
        yield from self._release(member, empty)

    def _release(self, member: Member, holdings: Sequence[Holding]) -> Steps[None]:
        if holdings:
            ids = [holding.id for holding in holdings]
            release = partial(self.subscription.leases.release, member, ids)
            self.subscription.lose(holdings)
            yield partial(self.subscription.flavour.run, release)

    def _reconcile(self, member: Member) -> Steps[None]:
        """Free leases that are ours in the database only, since an answer was lost on its way; and
        drop those that are ours in memory only.
        """
        subscription = self.subscription
        owned = partial(subscription.leases.owned, member)
        ids = set((yield partial(subscription.flavour.run, owned)))
        gone = [h for id, h in subscription.holdings.items() if id not in ids]
        subscription.lose(gone)
        unknown = sorted(ids - set(subscription.holdings))
        release = partial(subscription.leases.release, member, unknown)
        yield partial(subscription.flavour.run, release)

    def _release_idle(self, member: Member) -> Steps[None]:
        """Free the leases of partitions that have been empty for a while."""
        subscription = self.subscription
        timeout = subscription.options.idle_timeout
        now = time.monotonic()
        if now < self._idle_at or not subscription.holdings:
            return
        self._idle_at = now + timeout / 4
        idle = partial(subscription.leases.idle, member)
        empty = set((yield partial(subscription.flavour.run, idle)))
        over = []
        for holding in subscription.holdings.values():
            if holding.id not in empty or holding.tokens or holding.lively:
                holding.idle_since = None
            elif holding.idle_since is None:
                holding.idle_since = now
            elif now - holding.idle_since >= timeout:
                over.append(holding)
        yield from self._release(member, over)
