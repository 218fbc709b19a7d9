"""Heartbeats: what keeps a subscriber's leases alive.

One thread for all subscribers of a client, with a connection of its own: neither a blocked event
loop, nor a pool whose connections are all in use, nor a handler that takes long can stop it. One
subscriber's failed heartbeat does not keep the others from theirs.
"""

import logging
import threading
import time
from collections.abc import Callable
from functools import partial

from rowmq.drivers.base import SyncDriver
from rowmq.drivers.forking import after_fork
from rowmq.drivers.line import Line
from rowmq.subscriber.subscription import Subscription

__all__ = ["Heart"]

log = logging.getLogger("rowmq")

ANSWER_PART = 4
"""A heartbeat is to be answered within one part in so many of the lease's duration."""

RETRY_PART = 5
"""After a failed heartbeat the next is tried after one part in so many of the interval."""

STOP_SECONDS = 5.0


class Heart:
    """The heartbeats of a client's subscribers."""

    def __init__(self, open_driver: Callable[[], SyncDriver]) -> None:
        self._open_driver = open_driver
        self.reset()
        after_fork(self)

    def reset(self) -> None:
        """Beat for nobody: at the start, and in a forked child, which has no such thread."""
        self._changed = threading.Condition()
        self._due: dict[Subscription, float] = {}
        self._thread: threading.Thread | None = None
        self._line = Line(self._open_driver)
        self._stopping = False

    def add(self, subscriber: Subscription) -> None:
        """Beat for a subscriber from now on."""
        with self._changed:
            self._due[subscriber] = time.monotonic() + subscriber.options.heartbeat_interval
            self._stopping = False
            if self._thread is None:
                self._thread = threading.Thread(target=self._beat, name="rowmq-heart", daemon=True)
                self._thread.start()
            self._changed.notify()

    def remove(self, subscriber: Subscription) -> None:
        """Beat for it no more."""
        with self._changed:
            self._due.pop(subscriber, None)

    @property
    def busy(self) -> bool:
        """Whether a thread is beating, which closing waits for."""
        return self._thread is not None

    def close(self) -> None:
        """Stop, and close the connection."""
        with self._changed:
            self._stopping = True
            self._due.clear()
            thread, self._thread = self._thread, None
            self._changed.notify()
        if thread is not None:
            thread.join(STOP_SECONDS)
        self._line.close()

    def _beat(self) -> None:
        while (subscriber := self._next()) is not None:
            pause = self._beat_once(subscriber)
            with self._changed:
                if subscriber in self._due:
                    self._due[subscriber] = time.monotonic() + pause

    def _next(self) -> Subscription | None:
        """The next subscriber to beat for, when it is time to; None at the end."""
        with self._changed:
            while not self._stopping:
                subscriber = min(self._due, key=self._due.__getitem__, default=None)
                now = time.monotonic()
                if subscriber is not None and self._due[subscriber] <= now:
                    return subscriber
                self._changed.wait(None if subscriber is None else self._due[subscriber] - now)
        return None

    def _beat_once(self, subscriber: Subscription) -> float:
        """Beat for one subscriber. How long until its next."""
        options = subscriber.options
        member, interval = subscriber.member, options.heartbeat_interval
        if member is None or subscriber.expired:
            return interval / RETRY_PART
        began = time.monotonic()
        try:
            beat = partial(subscriber.leases.beat, member, lease_us=options.lease_us)
            alive = self._line.ask(beat, seconds=options.lease_duration / ANSWER_PART)
        except Exception as error:  # noqa: BLE001 - the thread must live, and try again
            log.warning("a heartbeat of subscriber %s failed: %s", options.name, error)
            if subscriber.presumed_dead():
                subscriber.expire(member)
            return interval / RETRY_PART
        if alive:
            subscriber.beaten_at = began
        else:
            subscriber.expire(member)
        return max(0.0, interval - (time.monotonic() - began))
