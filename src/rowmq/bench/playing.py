"""The player's side of a trial: what it is asked, and the lines in which it answers.

    ready ──► go ──► done

A player reads its spec from the command line, connects, says `ready`, waits for the line `go`,
works, and says `done`. Times are those of `time.monotonic()`, which all processes of a machine
share.
"""

import asyncio
import resource
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

__all__ = ["Spec", "Stage", "cpu_seconds", "end", "resident_bytes", "say", "spec_of"]

PAGE_BYTES = resource.getpagesize()


class Spec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a player is asked to do. Each task uses those fields that it needs."""

    task: str
    url: str = ""
    messages: int = 0
    """How many are sent, filled in or handled, in all."""
    batch: int = 1
    callers: int = 1
    payload_bytes: int = 200
    handler: Literal["async", "sync", "batch"] = "async"
    """A handler for batches takes many messages at a time."""
    keep: bool = True
    """Whether finished jobs stay in the archive."""
    idle: float = 2.0
    """After so many seconds without anything to handle, all is done."""
    client: Literal["async", "sync"] = "async"
    source: Literal["queue", "topic"] = "queue"
    partitions: int = 1
    """Over how many keys messages are spread; 0 is without keys."""
    groups: int = 1
    workers: int = 1
    """How many apps there are in one process."""
    gather: bool = False
    """Whether all workers are there before the first message can be seen."""
    rate: float = 0.0
    seconds: float = 0.0
    window: float = 10.0
    notify: bool = True
    backlog: int = 0
    archived: int = 0


class Stage:
    """Where a player talks with who started it."""

    def __init__(self, subject: str, version: str) -> None:
        self._subject = subject
        self._version = version
        self._cpu_at_go = 0.0
        self._written_at_go: int | None = None

    def ready(self, **settings: Any) -> None:
        """Say that the player can begin."""
        say(event="ready", name=self._subject, version=self._version, settings=settings)

    def wait(self) -> float:
        """Wait for `go`; when it came."""
        if sys.stdin.readline().strip() != "go":
            raise SystemExit(1)  # whoever asked has gone
        self._cpu_at_go, self._written_at_go = cpu_seconds(), written_bytes()
        return time.monotonic()

    async def wait_async(self) -> float:
        """Wait for `go`, while other tasks run; when it came."""
        return await asyncio.to_thread(self.wait)

    def done(self, *, count: int, began: float, ended: float, **more: Any) -> None:
        """Say what was done, with what it took of the processor, of memory and of the disk."""
        written = written_bytes()
        if written is not None and self._written_at_go is not None:
            more["disk_bytes"] = written - self._written_at_go
        say(
            event="done",
            count=count,
            began=began,
            ended=ended,
            cpu=cpu_seconds() - self._cpu_at_go,
            **more,
        )


async def end(tasks: Sequence["asyncio.Task[Any]"]) -> None:
    """Cancel tasks that go on for ever; raises if one has come to another end."""
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.result()


def spec_of(arguments: list[str]) -> Spec:
    """What a player's command line asks for."""
    return msgspec.json.decode(arguments[1], type=Spec)


def say(**line: Any) -> None:
    sys.stdout.write(msgspec.json.encode(line).decode() + "\n")
    sys.stdout.flush()


def cpu_seconds() -> float:
    """What this process and its children have taken of the processor."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def written_bytes() -> int | None:
    """What this process has had written to disks; None where the system does not tell."""
    try:
        lines = Path("/proc/self/io").read_text("ascii").splitlines()
    except OSError:
        return None
    fields = dict(line.split(": ") for line in lines)
    return int(fields["write_bytes"]) - int(fields["cancelled_write_bytes"])


def resident_bytes() -> int:
    """How much memory this process has now; at its most, where the system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * PAGE_BYTES
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
