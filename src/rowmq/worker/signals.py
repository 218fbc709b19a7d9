"""SIGTERM and SIGINT: the first one asks to stop, a second one stops at once."""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

__all__ = ["stop_on_signals"]

SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextlib.contextmanager
def stop_on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` at the first signal. Python's own handlers, and not the event loop's: these run
    also while a handler blocks the loop.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are the main thread's
        return
    asked = False

    def ask(number: int, _: FrameType | None) -> None:
        nonlocal asked
        if asked:
            os.write(2, b"stopped at once; what was at work comes again after its time\n")
            os._exit(128 + number)
        asked = True
        stop()  # and nothing else: the signal may have come upon a log line that is being written

    before = {number: signal.signal(number, ask) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
