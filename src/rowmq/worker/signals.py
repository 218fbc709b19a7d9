"""SIGTERM and SIGINT: the first one asks to stop, a second one stops at once."""

import contextlib
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

__all__ = ["SAME_SECONDS", "stop_on_signals"]

SIGNALS = (signal.SIGTERM, signal.SIGINT)

SAME_SECONDS = 0.3
"""Signals that come so close together are one: a terminal and `timeout` may each send it."""

UNFINISHED = 5
"""The exit code of a process that did not come to its end, and was ended."""

LATE = b"the stop took too long; what was at work comes again after its time\n"
AT_ONCE = b"stopped at once; what was at work comes again after its time\n"


@contextlib.contextmanager
def stop_on_signals(stop: Callable[[], None], *, seconds_max: float) -> Iterator[None]:
    """Call `stop` at the first signal, and see that the process ends within so many seconds.

    Python's own handlers, and not the event loop's: these run also while a handler blocks the loop.
    They do as little as can be: a signal may come upon a log line, or a lock.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are the main thread's
        return
    asked_at: float | None = None
    ears, mouth = os.pipe()
    watch = threading.Thread(
        target=end_if_late, args=(ears, seconds_max), name="rowmq-signals", daemon=True
    )
    watch.start()

    def ask(number: int, _: FrameType | None) -> None:
        nonlocal asked_at
        now = time.monotonic()
        if asked_at is not None:
            if now - asked_at > SAME_SECONDS:
                os.write(2, AT_ONCE)
                os._exit(128 + number)
            return
        asked_at = now
        os.write(mouth, b".")
        stop()

    before = {number: signal.signal(number, ask) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(mouth)
        watch.join()


def end_if_late(ears: int, seconds: float) -> None:
    """Wait for a signal, and then so long for the end: a database that does not answer, or a
    handler that blocks, must not keep a process that is to go.
    """
    if os.read(ears, 1) and not select.select([ears], [], [], seconds)[0]:
        os.write(2, LATE)
        os._exit(UNFINISHED)
    os.close(ears)
