"""Tending: a thread that makes the ticks of all schedules when they are due.

Any number of them may run, in any number of processes: they race, and each tick is made once (see
`store.schedules`). So there is nobody to elect, and none whose death is noticed. A tender has a
connection of its own, so that neither a blocked event loop nor a busy pool can stop it, and looks
at no clock but the database's: it sleeps for as long as that says, and then asks again.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from rowmq.codec import error_text
from rowmq.cron.core import Core, Round, pause_seconds
from rowmq.drivers.base import SyncDriver, take_steps
from rowmq.drivers.forking import after_fork
from rowmq.errors import Closed, RowMQError
from rowmq.store.statement import Operation

__all__ = ["TEND_LOCK_SECONDS", "Tender"]

log = logging.getLogger("rowmq")

LOOK_SECONDS = 5.0
"""How long it sleeps at most: others may have installed a schedule, or moved the clock."""

TEND_LOCK_SECONDS = 0.25
"""How long one schedule waits for what a transaction has locked, while others are due."""

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
        self._told: dict[str, tuple[str, float]] = {}

    @property
    def busy(self) -> bool:
        """Whether there is a thread, which closing waits for."""
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> None:
        """Tend schedules from now on, unless that is being done; in any case look at once."""
        with self._lock:
            if self._closed:
                raise Closed("this client was closed; connect again")
            if not self.busy:
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
            done = self._round()
            failed = done is None
            failures = failures + 1 if failed else 0
            wait = pause_seconds(failures) if done is None else done.wait
            # What the round took is part of the time until the next tick.
            seconds = LOOK_SECONDS if wait is None else min(wait, LOOK_SECONDS)
            if not stopping.is_set():
                rest = seconds if failed else seconds - (time.monotonic() - began)
                self._woken.wait(max(rest, 0.0))

    def _round(self) -> Round | None:
        """Make what is due; None if that could not even be found out."""
        try:
            done = take_steps(self._core.tend(again_and_again=True))
        except BaseException as error:  # noqa: BLE001 - the thread must live, and try again
            self._report("", error)
            return None
        for name, problem in done.errors.items():
            self._report(name, problem)
        return done

    def _report(self, name: str, error: BaseException) -> None:
        """Say what went wrong: now and then, if it goes on."""
        if self._stopping.is_set():
            return
        told, told_at = self._told.get(name, ("", 0.0))
        if str(error) == told and time.monotonic() - told_at < REPORT_SECONDS:
            return
        self._told[name] = (str(error), time.monotonic())
        what = f"schedule {name!r}" if name else "the schedules"
        known = isinstance(error, RowMQError)
        log.warning(
            "tending %s failed, and is tried again: %s",
            what,
            error_text(error),
            exc_info=None if known else error,
        )
