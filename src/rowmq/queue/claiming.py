"""Claiming: when to look, where to begin, and what is due next.

A claimer that always finds what it asks for does not look each time: it goes on where it was, and
looks about every half second for what it may have passed by: jobs put back, made earlier, or of a
higher priority. What its own client puts there it is told of.
"""

import secrets
import time
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from rowmq.drivers.base import Steps
from rowmq.queue.view import View
from rowmq.store.claims import HEAD_OF_LANE, ClaimedJob, Cursor, Look, OpenLane
from rowmq.store.jobs import Posting

if TYPE_CHECKING:
    from rowmq.queue.desk import Desk

__all__ = ["Claimed", "Claimer"]

LOOK_SECONDS = 0.5
"""How long a claimer that is kept busy goes on without a look."""

LOOK_SHARE = 0.1
"""What part of the time may go into looks, and claims from the head: while these are slow, fewer
are made.
"""

LOOK_SECONDS_MAX = 1.5
"""None the less, a job that was put back is found within two seconds."""


class Claimed(NamedTuple):
    """A claimed job, its lane, and the token of its lock."""

    job: ClaimedJob
    lane: OpenLane
    token: int


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
        self.next_due: float | None = None
        """In how many seconds, as of the last look, something is due; None if nothing is known."""

    def take(self, limit: int, lock_us: int, *, newest: bool = False) -> Steps[list[Claimed]]:
        """Claim up to so many jobs that are due."""
        while True:
            began = time.monotonic()
            fresh = newest or not self._busy or began >= self._look_at
            if fresh:
                yield from self.look()
                self._cursors = {}
            if not self.lanes:
                self._busy = False
                return []
            token = new_token()
            cursors = {
                lane: HEAD_OF_LANE if fresh else self._cursors.get(lane.id, HEAD_OF_LANE)
                for lane in self.lanes
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
            if fresh:
                slow = (time.monotonic() - began) / LOOK_SHARE
                self._look_at = began + min(max(slow, LOOK_SECONDS), LOOK_SECONDS_MAX)
            self._remember(jobs)
            self._busy = len(jobs) >= limit
            if jobs or fresh:
                lanes = {lane.id: lane for lane in cursors}
                return [Claimed(job, lanes[job.entry.lane_id], token) for job in jobs]

    def look(self) -> Steps[None]:
        """Find the lanes that have something due; give back first what expired."""
        claims = self._desk.store.claims
        find = partial(claims.look, sorted(self._views))
        look: Look = yield partial(self._desk.run, find)
        while look.expires is not None and look.expires <= look.now:
            given: int = yield partial(self._desk.run, claims.give_back)
            look = yield partial(self._desk.run, find)
            if not given:
                break  # somebody else has them just now
        lanes = [lane for lane in look.lanes if self._views[lane.queue].sees(lane.kind)]
        times = [lane.first_due for lane in lanes if lane.first_due is not None]
        self.lanes = [
            lane for lane in lanes if lane.first_due is not None and lane.first_due <= look.now
        ]
        moments = times if look.expires is None else [*times, look.expires]
        self.next_due = (min(moments) - look.now) / 1_000_000 if moments else None

    def disturb(self, postings: Iterable[Posting]) -> None:
        """Jobs were put: look at the next claim, unless they are behind what is being claimed."""
        known = {(lane.queue, lane.kind, lane.precedence) for lane in self.lanes}
        for posting in postings:
            if posting.lane not in known or posting.at is not None:
                self._busy = False

    def disturbed(self) -> None:
        """Something has changed: look at the next claim."""
        self._busy = False

    def _remember(self, jobs: Sequence[ClaimedJob]) -> None:
        """Begin next time where this claim began."""
        first: dict[int, Cursor] = {}
        for job in jobs:
            place = (job.entry.due_at, job.entry.job_id)
            lane = job.entry.lane_id
            first[lane] = min(place, first.get(lane, place))
        self._cursors |= first


def new_token() -> int:
    """A token that no other lock has."""
    return secrets.randbits(62) + 1
