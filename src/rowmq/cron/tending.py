"""Tending: a thread that makes the ticks of all schedules when they are due.

Any number of them may run, in any number of processes: they race, and each tick is made once (see
`store.schedules`). So there is nobody to elect, and none whose death is noticed. A tender has a
connection of its own, so that neither a blocked event loop nor a busy pool can stop it, and looks
at no clock but the database's: it sleeps for as long as that says, and then asks again.
"""

import logging
import random
import threading
import time
from collections.abc import Callable
from typing import Any

from rowmq.cron.core import Core
from rowmq.drivers.base import SyncDriver, take_steps
from rowmq.drivers.forking import after_fork
from rowmq.errors import Closed
from rowmq.store.statement import Operation

__all__ = ["Tender"]

log = logging.getLogger("rowmq")

LOOK_SECONDS = 5.0
"""How long it sleeps at most: others may have installed a schedule, or moved the clock."""

TROUBLE_SECONDS = 0.5, 5.0
"""The first and the longest pause after an error."""

RETRY_SECONDS = 1.0
"""How long a transient error is retried before it counts as one."""

REPORT_SECONDS = 60.0
"""How often an error that goes on is told."""

STOP_SECONDS = 5.0


class Tender:
    """Makes ticks in the background, from `start` to `stop`."""

    def __init__(
        self, open_driver: Callable[[], SyncDriver], new_core: Callable[[Callable[..., Any]], Core]
    ) -> None:
        """`open_driver` opens a driver of its own; `new_core` makes what does the work, of what
        runs operations.
        """
        self._open_driver = open_driver
        self._core = new_core(self._run)
        self._closed = False
        self.reset()
        after_fork(self)

    def reset(self) -> None:
        """Do nothing: at the start, and in a forked child, which has no such thread."""
        self._lock = threading.Lock()
        self._woken = threading.Event()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._driver: SyncDriver | None = None
        self._told = ("", 0.0)

    @property
    def busy(self) -> bool:
        """Whether there is a thread, which closing waits for."""
        return self._thread is not None

    def start(self) -> None:
        """Tend schedules from now on, unless that is being done; in any case look at once."""
        with self._lock:
            if self._closed:
                raise Closed("this client was closed; connect again")
            if self._thread is None:
                self._stopping = threading.Event()
                arguments = (self._stopping,)
                self._thread = threading.Thread(
                    target=self._tend, args=arguments, name="rowmq-cron", daemon=True
                )
                self._thread.start()
            self._woken.set()

    def wake(self) -> None:
        """Look at once, if it is being tended."""
        self._woken.set()

    def stop(self) -> None:
        """Tend no more. A round that has begun is waited for, for a while."""
        with self._lock:
            thread, self._thread = self._thread, None
            self._stopping.set()
            self._woken.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join(STOP_SECONDS)
        driver = self._driver
        if driver is not None:
            driver.pool.clear()  # not closed: that of a database in memory is the client's own

    def close(self) -> None:
        """Stop for good, and close the connection."""
        with self._lock:
            self._closed = True
        self.stop()
        driver, self._driver = self._driver, None
        if driver is not None:
            driver.close()

    def _run(self, make: Callable[[], Operation[Any]], connection: None = None) -> Any:  # noqa: ARG002
        """Run an operation on the tender's own connection."""
        if self._driver is None:
            self._driver = self._open_driver()
        return self._driver.run(make, retry_for=RETRY_SECONDS)

    def _tend(self, stopping: threading.Event) -> None:
        failures = 0
        while not stopping.is_set():
            self._woken.clear()
            began = time.monotonic()
            wait, errors = self._round()
            failures = failures + 1 if errors else 0
            if errors and not stopping.is_set():
                self._report(errors[0])
                wait = min(wait, pause_seconds(failures))
            # What the round took is part of the time until the next tick.
            seconds = min(wait, LOOK_SECONDS) - (time.monotonic() - began)
            if not stopping.is_set():
                self._woken.wait(max(seconds, pause_seconds(0) if errors else 0.0))

    def _report(self, error: Exception) -> None:
        """Say what went wrong: now and then, if it goes on."""
        told, told_at = self._told
        if str(error) != told or time.monotonic() - told_at > REPORT_SECONDS:
            self._told = (str(error), time.monotonic())
            log.warning("schedules could not be tended; it is tried again: %s", error)

    def _round(self) -> tuple[float, list[Exception]]:
        """Make what is due. How long until there is more, and what went wrong."""
        try:
            done = take_steps(self._core.tend())
        except Exception as error:  # noqa: BLE001 - the thread must live, and try again
            return LOOK_SECONDS, [error]
        return LOOK_SECONDS if done.wait is None else done.wait, done.errors


def pause_seconds(failures: int) -> float:
    """How long to wait after errors: longer each time, never in step with others."""
    first, longest = TROUBLE_SECONDS
    return min(longest, first * 2.0 ** min(failures, 20)) * random.uniform(0.5, 1.0)
