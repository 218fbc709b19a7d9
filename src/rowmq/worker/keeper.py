"""Keeps what a worker has, and says what it does: locks are extended, and the worker is heard of.

It is a thread with a connection of its own: a handler that blocks the event loop cannot stop it,
and when the process is gone, so is it. Then the locks run out, and others get the jobs.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from rowmq.drivers.base import SyncDriver
from rowmq.drivers.line import Line
from rowmq.store.store import Store
from rowmq.store.workers import Running, WorkerFacts
from rowmq.worker.unit import Unit

__all__ = ["Keeper"]

log = logging.getLogger("rowmq")

EXTEND_PART = 3
"""A lock is extended when one part in so many of its time has passed."""

ANSWER_PART = 6
"""The database has one part in so many to answer."""

RETRY_PART = 30
"""After an error it is tried again after one part in so many."""

BEAT_SECONDS = 5.0
REPORT_SECONDS = 0.5
"""How soon a handler's progress is told of, at most so often."""

LEASE_SECONDS = 30.0
STOP_SECONDS = 3.0


class Lock:
    """One lock: how many units there are in it, and until when it is surely ours."""

    __slots__ = ("gone", "kept", "token", "units", "until")

    def __init__(self, kept: "Kept", token: int, until: float) -> None:
        self.kept = kept
        self.token = token
        self.until = until
        self.units = 0
        self.gone = False

    @property
    def lost(self) -> bool:
        """Whether it is gone, or may be: it was not extended in time."""
        return self.gone or self.until < time.monotonic()


class Kept:
    """The locks that last equally long."""

    def __init__(self, lock_us: int) -> None:
        self.lock_us = lock_us
        self.tokens: dict[int, Lock] = {}
        self.due_at = time.monotonic() + self.seconds / EXTEND_PART

    @property
    def seconds(self) -> float:
        return self.lock_us / 1_000_000


class Keeper:
    """The thread of one worker."""

    def __init__(
        self,
        store: Store,
        open_driver: Callable[[], SyncDriver],
        *,
        name: str,
        facts: WorkerFacts,
        running: Callable[[], Sequence[Running]],
    ) -> None:
        self.name = name
        self._store = store
        self._line = Line(open_driver)
        self._facts = facts
        self._running = running
        self._changed = threading.Condition()
        self._kept: dict[int, Kept] = {}
        self._suspected: set[int] = set()
        """Locks that were not there once: perhaps a settle had just ended them."""
        self._beat_at = 0.0
        self._told_at = 0.0
        self._stopping = False
        self._thread = threading.Thread(target=self._work, name="rowmq-keeper", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether its thread lives."""
        return self._thread.is_alive() or self._stopping

    def stop(self) -> None:
        """Keep nothing any more, and be no worker."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join(STOP_SECONDS)

    # --- locks ------------------------------------------------------------------------------------

    def keep(self, units: Iterable[Unit], lock_us: int, *, began: float) -> None:
        """Keep the locks of units, whose claim began then, from now on."""
        with self._changed:
            kept = self._kept.get(lock_us)
            if kept is None or not kept.tokens:
                kept = self._kept[lock_us] = Kept(lock_us)
                self._changed.notify()
            until = began + kept.seconds
            for unit in units:
                token = unit.raw._ticket.claimed.token  # type: ignore[union-attr] # it was claimed
                lock = kept.tokens.get(token)
                if lock is None:
                    lock = kept.tokens[token] = Lock(kept, token, until)
                lock.units += 1
                unit.lock = lock

    def let_go(self, units: Iterable[Unit]) -> None:
        """Units are settled, or lost: a lock without any is not kept."""
        with self._changed:
            for unit in units:
                lock, unit.lock = unit.lock, None
                if lock is None:
                    continue
                lock.units -= 1
                if not lock.units:
                    del lock.kept.tokens[lock.token]
                    self._suspected.discard(lock.token)

    @property
    def locks(self) -> int:
        """How many it keeps."""
        with self._changed:
            return sum(len(kept.tokens) for kept in self._kept.values())

    def report(self) -> None:
        """A handler has something to tell: say so soon."""
        with self._changed:
            soon = max(time.monotonic(), self._told_at + REPORT_SECONDS)
            if soon < self._beat_at:
                self._beat_at = soon
                self._changed.notify()

    # --- the thread -------------------------------------------------------------------------------

    def _work(self) -> None:
        while self._wait():
            now = time.monotonic()
            for kept in list(self._kept.values()):
                if kept.tokens and kept.due_at <= now:
                    self._extend(kept)
            if self._beat_at <= time.monotonic():
                self._beat()
        self._leave()
        self._line.close()

    def _wait(self) -> bool:
        """Until something is due; False at the end."""
        with self._changed:
            while not self._stopping:
                due = [kept.due_at for kept in self._kept.values() if kept.tokens]
                pause = min([*due, self._beat_at]) - time.monotonic()
                if pause <= 0:
                    return True
                self._changed.wait(pause)
        return False

    def _extend(self, kept: Kept) -> None:
        with self._changed:
            tokens = {token for token, lock in kept.tokens.items() if not lock.gone}
        began = time.monotonic()
        try:
            keep = partial(self._store.settles.keep, tokens, kept.lock_us)
            there = self._line.ask(keep, seconds=kept.seconds / ANSWER_PART) if tokens else set()
        except Exception as error:  # noqa: BLE001 - the thread must live, and try again
            log.warning("worker %s could not extend its locks: %s", self.name, error)
            kept.due_at = time.monotonic() + kept.seconds / RETRY_PART
            return
        with self._changed:
            for token in there & set(kept.tokens):
                kept.tokens[token].until = began + kept.seconds
            missing = {token for token in tokens - there if token in kept.tokens}
            lost = missing & self._suspected
            self._suspected |= missing
            for token in lost:
                kept.tokens[token].gone = True
        part = EXTEND_PART if missing == lost else RETRY_PART
        kept.due_at = began + kept.seconds / part
        if lost:
            log.warning(
                "worker %s has lost %d locks: their jobs may be run by others, too",
                self.name,
                len(lost),
            )

    def _beat(self) -> None:
        self._told_at = time.monotonic()
        self._beat_at = self._told_at + BEAT_SECONDS
        try:
            beat = partial(
                self._store.workers.beat,
                self.name,
                self._facts,
                self._running(),
                lease_us=round(LEASE_SECONDS * 1_000_000),
            )
            # It is for people: no lock is to be lost over it.
            shortest = min(
                (kept.seconds for kept in list(self._kept.values())), default=BEAT_SECONDS
            )
            self._line.ask(beat, seconds=min(BEAT_SECONDS, shortest / ANSWER_PART))
        except Exception as error:  # noqa: BLE001 - it is for people only, and tried again
            log.warning("worker %s could not say that it is alive: %s", self.name, error)

    def _leave(self) -> None:
        for last in (False, True):  # the connection may have been lost long ago
            try:
                self._line.ask(partial(self._store.workers.leave, self.name), seconds=1.0)
                return
            except Exception as error:  # noqa: BLE001 - it is forgotten after a while
                if last:
                    log.warning("worker %s could not say that it leaves: %s", self.name, error)
