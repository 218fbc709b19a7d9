"""Hearing that a file is written to, where the system tells: inotify, on Linux.

What is told of is a write, by whichever process of this machine, and not yet a commit: that comes a
flush later. Who is told has to look, and more than once.
"""

import contextlib
import ctypes
import errno
import os
import select
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

__all__ = ["FileEvents"]

IN_MODIFY = 0x2
READ_BYTES = 16_384

IGNORED = {errno.EAGAIN, errno.EINTR}

OPEN_MAX = 64
"""How many there may be in a process: a user has 128 by default, for all programs."""

_open: set[int] = set()
"""Those that are open, by their numbers. A set, since each change of it is made in one step."""


class FileEvents:
    """The writes to some files. One thread waits, and any may interrupt it.

    Raises OSError where there is nothing to hear by, or no more of it.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        if sys.platform != "linux":
            raise OSError(errno.ENOSYS, "files are watched on Linux only")
        if len(_open) >= OPEN_MAX:
            raise OSError(errno.EMFILE, "enough files are watched")
        libc = ctypes.CDLL(None, use_errno=True)
        with contextlib.ExitStack() as stack:
            self._inotify = checked(libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
            stack.callback(os.close, self._inotify)
            for path in paths:
                checked(libc.inotify_add_watch(self._inotify, os.fsencode(path), IN_MODIFY))
            self._interruption = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            stack.pop_all()
        _open.add(self._inotify)
        self._lock = threading.Lock()
        self._closed = False
        self._poll = select.poll()
        self._poll.register(self._inotify, select.POLLIN)
        self._poll.register(self._interruption, select.POLLIN)

    def wait(self, seconds: float) -> bool:
        """Whether there was a write since the last call, or is one within some time."""
        told = {fd for fd, _event in self._poll.poll(max(0.0, seconds) * 1_000)}
        if self._inotify not in told:
            return False
        try:
            while len(os.read(self._inotify, READ_BYTES)) == READ_BYTES:
                pass
        except OSError as error:
            if error.errno not in IGNORED:
                raise
        return True

    def interrupt(self) -> None:
        """Have `wait` return at once, now and from now on."""
        with self._lock:
            if not self._closed:
                os.eventfd_write(self._interruption, 1)

    def close(self) -> None:
        """Hear no more. Nobody may be waiting."""
        with self._lock:
            if not self._closed:
                self._closed = True
                _open.discard(self._inotify)
                os.close(self._inotify)
                os.close(self._interruption)

    def forget(self) -> None:
        """Close what a forked child has of it; the parent's stays as it is."""
        if self._lock.acquire(blocking=False):  # else it was being closed, and is half gone
            self._lock.release()
            self.close()


def checked(result: int) -> int:
    """What a function of the C library returned, unless it failed."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
