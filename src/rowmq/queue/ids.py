"""Job ids, taken from the database in blocks and given out one by one."""

import os
import threading

from rowmq.drivers.forking import after_fork

__all__ = ["Ids"]


class Ids:
    """Ids that are taken and not used yet. A forked child takes its own, also if it is of a server
    that forks by itself, as uWSGI does, and tells Python nothing of it.
    """

    def __init__(self) -> None:
        self.reset()
        after_fork(self)

    def reset(self) -> None:
        """There are none: at the start, and in a forked child, since the parent has them."""
        self._lock = threading.Lock()
        self._free: list[range] = []
        self._last = 0
        self._process = os.getpid()

    def take(self, count: int) -> list[int]:
        """Up to so many ids, each higher than those before: they decide the order of jobs that are
        due at the same time.
        """
        if self._process != os.getpid():
            self.reset()
        taken: list[int] = []
        with self._lock:
            while self._free and len(taken) < count:
                block = self._free.pop(0)
                wanted = count - len(taken)
                taken += block[:wanted]
                if block[wanted:]:
                    self._free.insert(0, block[wanted:])
            self._last = max([self._last, *taken[-1:]])
        return taken

    def forget(self) -> None:
        """Have none any more."""
        with self._lock:
            self._free = []

    def add(self, block: range) -> None:
        """Have more of them; but for a block that comes too late to be in order."""
        with self._lock:
            if block.start > self._last:
                self._free = sorted([*self._free, block], key=lambda block: block.start)
