"""A connection of its own, for what must be said in time: heartbeats, and locks that are kept.

Neither a blocked event loop, nor a pool whose connections are all in use, nor a connection that has
gone silent can stop it.
"""

import queue
import threading
from collections.abc import Callable
from typing import TypeVar

from rowmq.drivers.base import SyncDriver
from rowmq.errors import ConnectionLost
from rowmq.store.statement import Operation

__all__ = ["Line"]

T = TypeVar("T")

ANSWER_SECONDS_MIN = 0.5


class Line:
    """Asks the database, for one thread."""

    def __init__(self, open_driver: Callable[[], SyncDriver]) -> None:
        self._open_driver = open_driver
        self._driver: SyncDriver | None = None

    def ask(self, make: Callable[[], Operation[T]], *, seconds: float) -> T:
        """The answer of the database, in time: a connection that has gone silent is given up."""
        if self._driver is None:
            self._driver = self._open_driver()
        driver, answers = self._driver, queue.SimpleQueue[tuple[T] | Exception]()
        # To connect may take longer, and has a time limit of its own.
        driver.pool.release(driver.pool.acquire(), healthy=True)

        given_up = threading.Event()

        def ask() -> None:
            try:
                answers.put((driver.run(make, retry_for=0),))
            except Exception as error:  # noqa: BLE001 - it is raised where it belongs
                answers.put(error)
            if given_up.is_set():
                driver.pool.clear()

        threading.Thread(target=ask, name="rowmq-line", daemon=True).start()
        try:
            answer = answers.get(timeout=max(seconds, ANSWER_SECONDS_MIN))
        except queue.Empty:
            self._driver = None
            given_up.set()
            raise ConnectionLost(f"the database did not answer within {seconds:g} s") from None
        if isinstance(answer, Exception):
            raise answer
        return answer[0]

    def close(self) -> None:
        """Let go of the connection, if there is one."""
        driver, self._driver = self._driver, None
        if driver is not None:
            driver.pool.clear()  # not closed: that of a database in memory is the client's own
