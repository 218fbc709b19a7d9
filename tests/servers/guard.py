"""Runs one server so that it never outlives the test run, not even one that was killed.

The one idea: this script turns into the server. It forks a watcher, gives up its rights and then
replaces itself, so the server has the process id that `subprocess` already knows:

    test run --starts--> guard --becomes--> server
                           |                  ^
                           +--forks--> watcher +-- ends it when the test run is gone

The watcher sleeps until either of them ends. A parent-death signal would be shorter, but it is sent
when the *thread* that started the server ends, and it would leave the data behind.

It runs by its path, with the standard library only: under root the interpreter and this checkout
may be out of reach for the account of the server, so it is still root that reads them.
"""

import contextlib
import json
import os
import select
import shutil
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

FAREWELL_SECONDS = 5.0


class Launch(NamedTuple):
    """What to run, and for whom; travels as the script's only argument, in JSON."""

    owner_pid: int
    command: list[str]
    environment: dict[str, str]
    uid: int
    gid: int
    folder: str
    farewell_signal: int

    def as_argument(self) -> str:
        return json.dumps(self)


def destroy(pid: int) -> None:
    """Kill a process and its children at once, and wait until they are gone."""
    with contextlib.suppress(ProcessLookupError):
        # A stopped parent starts no child between our look and our shot.
        os.kill(pid, signal.SIGSTOP)
    handles = list(_handles([pid, *_children(pid)]))
    for handle in handles:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
    for handle in handles:
        _wait([handle], FAREWELL_SECONDS)
        os.close(handle)


def _handles(pids: Iterable[int]) -> Iterable[int]:
    """A handle stays with its process, where a number may be given to the next one."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            yield os.pidfd_open(pid)


def _children(pid: int) -> list[int]:
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    except OSError:
        return []
    return [child for child in map(int, text.split()) if child != os.getpid()]


def _wait(handles: list[int], timeout_seconds: float | None) -> set[int]:
    """Which of these processes have ended."""
    poll = select.poll()
    for handle in handles:
        poll.register(handle, select.POLLIN)
    milliseconds = None if timeout_seconds is None else timeout_seconds * 1000
    return {handle for handle, _ in poll.poll(milliseconds)}


def _watch(owner: int, server: int, server_pid: int, launch: Launch) -> None:
    os.chdir("/")
    if owner not in _wait([owner, server], None):
        return  # the test run ended its server itself, and still wants the data or removes it
    with contextlib.suppress(ProcessLookupError):
        # Not SIGKILL for all: PostgreSQL would leave its shared memory behind.
        signal.pidfd_send_signal(server, launch.farewell_signal)
    if not _wait([server], FAREWELL_SECONDS):
        destroy(server_pid)
    _remove(launch.folder)


def _remove(folder: str) -> None:
    """Children of the server may still write for a moment, so one attempt may not be enough."""
    for _ in range(20):
        shutil.rmtree(folder, ignore_errors=True)
        if not Path(folder).exists():
            return
        time.sleep(0.1)


def _become(launch: Launch) -> None:
    # Python ignores these two, and what is ignored stays ignored in the program that follows.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    if os.getuid() != launch.uid:
        os.setgroups([])
        os.setgid(launch.gid)
        os.setuid(launch.uid)
    os.execve(launch.command[0], launch.command, launch.environment)  # noqa: S606


def main() -> None:
    launch = Launch(*json.loads(sys.argv[1]))
    owner = os.pidfd_open(launch.owner_pid)
    if os.getppid() != launch.owner_pid:
        sys.exit("the test run ended before its server began")
    server_pid = os.getpid()
    server = os.pidfd_open(server_pid)
    if os.fork() == 0:
        _watch(owner, server, server_pid, launch)
        os._exit(0)
    _become(launch)


if __name__ == "__main__":
    main()
