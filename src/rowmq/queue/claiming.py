"""Claiming: when to look, where to begin, and what is due next.

A claimer that always finds what it asks for does not look each time: it goes on where it was, and
looks about every half second for what it may have passed by: jobs put back, made earlier, or of a
higher priority. What its own client puts there it is told of.

One that found nothing looks for what is due since then, if its caller is patient: before that are
the entries of jobs that are gone, perhaps a million of them, until the database has cleaned up.
What may have come among them it looks for about every half second too.
"""

import secrets
import time
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from rowmq.drivers.base import Steps
from rowmq.queue.view import View
from rowmq.store.claims import HEAD_OF_LANE, ClaimedJob, Cursor, Look, OpenLane
from rowmq.store.postings import Posting

if TYPE_CHECKING:
    from rowmq.queue.desk import Desk

__all__ = ["Claimed", "Claimer"]

LOOK_SECONDS = 0.5
"""How long a claimer goes on without a look at all there is."""

LATE_US = 1_000_000
"""How long after it is due a job may be committed, and be found at the next look."""

LOOK_SHARE = 0.1
"""What part of the time may go into looks, and claims from the head: while these are slow, fewer
are made.
"""

LOOK_SECONDS_MAX = 1.0
"""None the less, a job that was put back is found within two seconds: a pause may come to that."""

DOUBT_SECONDS = 2.0
"""How long what was changed in a transaction may take to be committed, and be found at the next
look.
"""


class Claimed(msgspec.Struct, frozen=True, gc=False):
    """A claimed job, its lane, and the token of its lock."""

    job: ClaimedJob
    lane: OpenLane
    token: int
    since: int = 0
    """A time of the database before it was claimed: of the last look."""


class Claimer:
    """Claims the jobs of some queues, for one client."""

    def __init__(self, desk: "Desk", views: Sequence[View]) -> None:
        self._desk = desk
        self._views = {view.queue: view for view in views}
        self.lanes: list[OpenLane] = []
        """Those that had something due at the last look."""
        self._cursors: dict[int, Cursor] = {}
        self._busy = False
        self._look_at = 0.0
        self._since = HEAD_OF_LANE[0]
        self._doubt_until = 0.0
        self._expires: int | None = None
        self._news = 0
        self.clock = (0, 0.0)
        """What the database's clock said at the last look, in microseconds, and when that was."""
        self.next_due: float | None = None
        """In how many seconds, as of the last look, something is due; None if nothing is known."""

    def take(
        self, limit: int, lock_us: int, *, newest: bool = False, patient: bool = False
    ) -> Steps[list[Claimed]]:
        """Claim up to so many jobs that are due. Who is patient asks again soon, and may be told
        that there are none although one was put back.
        """
        while True:
            began = time.monotonic()
            news, lanes = self._news, self.lanes
            busy = self._busy and bool(lanes)
            may_miss = busy or (patient and began >= self._doubt_until)
            thorough = newest or began >= self._look_at or not may_miss
            fresh = thorough or not busy
            if fresh:
                lanes = yield from self.look(since=HEAD_OF_LANE[0] if thorough else self._since)
                self._cursors = {}
            if not lanes:
                self._busy = False
                if thorough and news == self._news:
                    self._put_off(began)
                return []
            token, since = new_token(), self.clock[0]
            cursors = {
                lane: lane.head if fresh else self._cursors.get(lane.id, lane.head)
                for lane in lanes
            }
            jobs: list[ClaimedJob] = yield partial(
                self._desk.repeat,
                partial(
                    self._desk.store.claims.take,
                    cursors,
                    limit=limit,
                    token=token,
                    lock_us=lock_us,
                    owner=self._desk.owner,
                    newest=newest,
                ),
            )
            if thorough and news == self._news:
                self._put_off(began)
            if not newest:
                self._remember(jobs)
            self._busy = len(jobs) >= limit and news == self._news
            if jobs or fresh:
                by_id = {lane.id: lane for lane in lanes}
                return [Claimed(job, by_id[job.entry.lane_id], token, since) for job in jobs]

    def _put_off(self, began: float) -> None:
        """Look at all there is again after a while; while that is slow, less often."""
        slow = (time.monotonic() - began) / LOOK_SHARE
        self._look_at = began + min(max(slow, LOOK_SECONDS), LOOK_SECONDS_MAX)

    def look(self, since: int = HEAD_OF_LANE[0]) -> Steps[list[OpenLane]]:
        """The lanes that have something due, since then; what expired is given back first."""
        claims, queues = self._desk.store.claims, sorted(self._views)
        look: Look = yield partial(self._desk.run, partial(claims.look, queues, since))
        expired, self._expires = self._expires, look.expires
        if since > HEAD_OF_LANE[0] and expired is not None and expired <= look.now:
            # Others may have given back what was waited for.
            since = HEAD_OF_LANE[0]
            look = yield partial(self._desk.run, partial(claims.look, queues))
        while look.expires is not None and look.expires <= look.now:
            given: int = yield partial(self._desk.run, claims.give_back)
            look = yield partial(self._desk.run, partial(claims.look, queues))
            if not given:
                break  # somebody else has them just now
        self.clock = (look.now, time.monotonic())
        seen = [lane for lane in look.lanes if self._views[lane.queue].sees(lane.kind)]
        times = [lane.first_due for lane in seen if lane.first_due is not None]
        lanes = [lane for lane in seen if lane.first_due is not None and lane.first_due <= look.now]
        if since > self._since and not lanes:
            return lanes  # somebody who has looked further back meanwhile has found something
        self.lanes = lanes
        # What is due may be kept back by a limit, or by a pause, and then be let go.
        kept_back = {lane.queue for lane in look.lanes if not lane.limited} != self._views.keys()
        self._since = HEAD_OF_LANE[0] if lanes or kept_back else look.now - LATE_US
        moments = times if look.expires is None else [*times, look.expires]
        self.next_due = (min(moments) - look.now) / 1_000_000 if moments else None
        return lanes

    def disturb(self, postings: Iterable[Posting]) -> None:
        """Jobs were put: look at the next claim, unless they are behind what is being claimed."""
        known = {(lane.queue, lane.kind, lane.precedence) for lane in self.lanes}
        for posting in postings:
            lane = posting.lane
            if lane.queue in self._views and (lane not in known or posting.at is not None):
                self.disturbed(lane.queue)

    def disturbed(self, queue: str) -> None:
        """Something has changed: look at all there is at the next claim, and for a while, since it
        may not be committed yet.
        """
        if queue in self._views:
            self._news += 1
            self._busy, self._look_at = False, 0.0
            self._doubt_until = time.monotonic() + DOUBT_SECONDS

    def _remember(self, jobs: Sequence[ClaimedJob]) -> None:
        """Begin next time where this claim began: jobs of a lane are in its order."""
        seen: set[int] = set()
        for job in jobs:
            entry = job.entry
            if entry.lane_id not in seen:
                seen.add(entry.lane_id)
                self._cursors[entry.lane_id] = (entry.due_at, entry.job_id)


def new_token() -> int:
    """A token that no other lock has. A lock that was handed out must be there until it is settled
    or given back, whatever crashes: claims wait for the disk also in queues that are relaxed.
    """
    return secrets.randbits(62) + 1
