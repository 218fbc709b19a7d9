"""Waking up: a subscriber is told that something was published, and need not ask all the time.

The one idea: a wake-up is a hint. Polling stands behind it, so one that is lost costs time and
never a message, and one too many costs a look. That is why both sides may be simple.

    publisher     Notifier: which topics to tell of, and that not too often
    subscribers   Watcher ── a thread ── Watch: what this database has to listen to
                     │                     PostgreSQL: LISTEN, on a connection of its own
                     └─ wake(), wake()     SQLite: a number that changes with every commit
                                           MySQL: nothing

A watch counts only while it was proven to hear: a pooler may accept LISTEN and pass nothing on.

    open ──► alive ──► lost ──► a pause ──► open      to become alive, or lost, wakes everybody,
      └─ deaf ──► a long pause ──► open               since something may have been missed
"""

import contextlib
import logging
import math
import random
import threading
import time
from collections.abc import Callable, Collection, Iterable
from typing import Protocol

from rowmq.drivers.forking import after_fork
from rowmq.drivers.pool import keep_for_ever
from rowmq.errors import Closed, RowMQError

__all__ = ["NOTIFY_SECONDS", "Deaf", "Notifier", "Wake", "Watch", "Watcher"]

NOTIFY_SECONDS = 0.05
"""How often a topic is told of, at most. PostgreSQL lets only one transaction with a NOTIFY commit
at a time: told of each, busy publishers would wait for each other's disk.
"""

TOPICS_MAX = 10_000
"""How many topics a notifier remembers."""

WAIT_SECONDS = 60.0
"""How long a watch is waited for at a time: any time will do, as it can be interrupted."""

CLOSE_SECONDS = 2.0
"""How long closing waits for the thread, which may be connecting."""

LOST_SECONDS = 0.2, 30.0
"""The first and the longest pause after a connection was lost, or not to be had."""

DEAF_SECONDS = 15.0, 600.0
"""The same where nothing is heard: that is how a server is set up, and seldom changes."""

Wake = Callable[[], None]

log = logging.getLogger("rowmq")


class Deaf(RowMQError):
    """A watch is connected, and does not hear what is said."""


class Watch(Protocol):
    """What a database has to listen to. One thread uses it, and any may interrupt."""

    def open(self) -> None:
        """Connect, and prove that it hears. Raises `Deaf` if it does not."""

    def wait(self, seconds: float) -> Collection[str] | None:
        """Topics that were published to, as soon as there are any; None if it may be all of them.

        It may also return early, with nothing.
        """

    def interrupt(self) -> None:
        """Have `open` and `wait` return soon, now and from now on."""

    def close(self) -> None:
        """Let go of the connection, if there is one. Never raises."""


class Notifier:
    """Decides which topics to tell of: each at once, and then not again for a while.

    What is published in that while is found by those who were just told: they look again after it.
    A caller's transaction may take long to commit, or never do so. It counts by itself, so that it
    does not keep others silent.
    """

    def __init__(
        self,
        *,
        enabled: bool = True,
        seconds: float = NOTIFY_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._enabled = enabled
        self._seconds = seconds
        self._clock = clock
        self._told: dict[tuple[str, bool], float] = {}

    def due(self, topics: Iterable[str], *, alone: bool = True) -> frozenset[str]:
        """Those of the topics to tell of now. `alone`: no caller's transaction is around it."""
        if not self._enabled:
            return frozenset()
        now = self._clock()
        # No lock, which a fork could leave locked: two threads at the very same time tell twice.
        due = frozenset(
            topic
            for topic in topics
            if now - self._told.get((topic, alone), -math.inf) >= self._seconds
        )
        if len(self._told) > TOPICS_MAX:
            self._told.clear()
        for topic in due:
            self._told[topic, alone] = now
        return due


class Watcher:
    """Calls those who wait for a topic, from one thread, as long as there are any."""

    def __init__(self, new_watch: Callable[[], Watch] | None) -> None:
        """Without a watch it is never alive, and nobody is woken."""
        self._new_watch = new_watch
        self._closed = False
        self._told_deaf = False
        self._start_anew()
        after_fork(self)

    def reset(self) -> None:
        """In a forked child: keep the parent's connection, and never touch it."""
        keep_for_ever((self._listener, self._ending))
        self._start_anew()

    def _start_anew(self) -> None:
        """Nobody waits, and nothing listens."""
        self._lock = threading.Lock()
        self._wakes: dict[str, list[Wake]] = {}
        self._listener: Listener | None = None
        self._ending: list[Listener] = []

    @property
    def alive(self) -> bool:
        """Whether a publish is heard at this time. If not, who waits had better poll often."""
        listener = self._listener
        return listener is not None and listener.alive

    @property
    def busy(self) -> bool:
        """Whether there is a thread that `close` would wait for."""
        return self._listener is not None or any(listener.running for listener in self._ending)

    def add(self, topic: str, wake: Wake) -> None:
        """Have `wake` called when something may have been published to a topic.

        It is called from the watcher's thread, so it must be quick: set an event, not more. If the
        watcher does not hear yet, it is called as soon as it does, whatever was published.
        """
        with self._lock:
            if self._closed:
                raise Closed("this client was closed; connect again")
            if self._listener is None and self._new_watch is not None:
                self._listener = Listener(self._new_watch, self._wake, self._report)
            self._wakes.setdefault(topic, []).append(wake)

    def remove(self, topic: str, wake: Wake) -> None:
        """Do not call it again, but for a call that is on its way. It need not have been added."""
        with self._lock:
            wakes = self._wakes.get(topic, [])
            with contextlib.suppress(ValueError):
                wakes.remove(wake)
            if not wakes:
                self._wakes.pop(topic, None)
            if not self._wakes:
                self._stop()

    def close(self) -> None:
        """Stop, and wait a while for the connection to be closed."""
        with self._lock:
            self._closed = True
            self._wakes.clear()
            self._stop()
        for listener in self._ending:
            listener.join(CLOSE_SECONDS)

    def _stop(self) -> None:
        """Have the thread end by itself; the lock is held."""
        self._ending = [listener for listener in self._ending if listener.running]
        if self._listener is not None:
            self._listener.stop()
            self._ending.append(self._listener)
            self._listener = None

    def _wake(self, topics: Collection[str] | None) -> None:
        with self._lock:
            heard = list(self._wakes) if topics is None else topics
            wakes = [wake for topic in heard for wake in self._wakes.get(topic, ())]
        for wake in wakes:
            try:
                wake()
            except Exception:
                log.exception("a subscriber could not be woken up")

    def _report(self, error: Exception, failures: int) -> None:
        """Say what went wrong: once, if it is of a known kind and goes on."""
        if not isinstance(error, RowMQError):
            log.error("listening for wake-ups failed; it is tried again", exc_info=error)
        elif isinstance(error, Deaf) and failures:
            if not self._told_deaf:
                log.info("subscribers poll, as they cannot be woken up: %s", error)
            self._told_deaf = True
        elif failures <= 1:
            log.info("subscribers poll until they can be woken up again: %s", error)


class Listener:
    """One thread, from its start to its end: it keeps a watch open and passes on what it hears."""

    def __init__(
        self,
        new_watch: Callable[[], Watch],
        wake: Callable[[Collection[str] | None], None],
        report: Callable[[Exception, int], None],
    ) -> None:
        self.alive = False
        self._new_watch = new_watch
        self._wake = wake
        self._report = report
        self._watch: Watch | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rowmq-watch", daemon=True)
        self._thread.start()

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def stop(self) -> None:
        """Have the thread end soon. Does not wait for it."""
        self.alive = False
        self._stopped.set()
        if self._watch is not None:  # else the thread has yet to see that it is stopped
            self._watch.interrupt()

    def join(self, seconds: float) -> None:
        """Wait for the thread to end, unless it is the one that waits."""
        if self._thread is not threading.current_thread():
            self._thread.join(seconds)

    def _run(self) -> None:
        failures = 0
        while not self._stopped.is_set():
            try:
                self._listen()
            except Exception as error:  # noqa: BLE001 - the thread goes on, whatever it is
                if self._stopped.is_set():
                    break
                failures = 0 if self.alive else failures + 1
                self._lose(error, failures)
                self._stopped.wait(pause_seconds(error, failures))

    def _listen(self) -> None:
        """Pass on what is heard, until it is stopped or something goes wrong."""
        with contextlib.closing(self._new_watch()) as watch:
            self._watch = watch
            if self._stopped.is_set():
                return
            watch.open()
            self.alive = True
            self._wake(None)
            while not self._stopped.is_set():
                topics = watch.wait(WAIT_SECONDS)
                if topics is None or topics:
                    self._wake(topics)

    def _lose(self, error: Exception, failures: int) -> None:
        was_alive, self.alive = self.alive, False
        self._report(error, failures)
        if was_alive:
            self._wake(None)


def pause_seconds(error: Exception, failures: int) -> float:
    """How long to wait before the next try: longer each time, never in step with others.

    No failures: it was alive until now, so it may well be again at once.
    """
    first, longest = DEAF_SECONDS if isinstance(error, Deaf) and failures else LOST_SECONDS
    return min(longest, first * 2.0 ** min(failures, 20)) * random.uniform(0.5, 1.0)
