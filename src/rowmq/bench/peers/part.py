"""The part that every peer plays: the spec, the lines to the coordinator, the counting.

A script runs in the peers' own environment, as a process of its own:

    coordinator                        player
        spec, JSON in argv[1]  ----->  connects, makes itself ready
                               <-----  {"event": "ready", "name": ..., "settings": ...}
        go                     ----->  works
                               <-----  {"event": "done", "count": ..., "began": ..., "ended": ...}

Only `publish` and `consume` are measured and wait for `go`; `prepare`, `fill` and `check` say
nothing but `done`. Times are those of the monotonic clock, which all processes of a machine share.
Only the standard library is imported here, so that a fake peer can play without any environment.
"""

import asyncio
import inspect
import json
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from importlib.metadata import version
from typing import Any, TextIO
from urllib.parse import unquote, urlsplit

MEASURED = ("publish", "consume")
# How often a waiting player looks whether all is done; what it reports does not depend on it.
LOOK_SECONDS = 0.02


class Refused(Exception):
    """The spec asks for what this player cannot do; the message says what it can."""


@dataclass(frozen=True)
class Spec:
    """What a player is to do. Fields of other players' specs are left aside."""

    task: str
    url: str
    messages: int = 0
    batch: int = 1
    callers: int = 1
    payload_bytes: int = 200
    handler: str = "async"
    keep: bool = True
    idle: float = 2.0

    @classmethod
    def of(cls, text: str) -> "Spec":
        """Read a spec and check what every task relies on."""
        given = json.loads(text)
        known = {field.name for field in fields(cls)}
        spec = cls(**{name: value for name, value in given.items() if name in known})
        for name in ("batch", "callers", "payload_bytes"):
            if getattr(spec, name) < 1:
                raise Refused(f"{name} must be at least 1, not {getattr(spec, name)}.")
        return spec

    @property
    def database(self) -> str:
        """The kind of database: postgresql, mysql (also for MariaDB) or sqlite."""
        scheme = urlsplit(self.url).scheme
        return {"postgres": "postgresql", "mariadb": "mysql"}.get(scheme, scheme)

    @property
    def path(self) -> str:
        """The file of an SQLite database."""
        return unquote(urlsplit(self.url).path)[1:]

    def require(self, *databases: str) -> None:
        if self.database not in databases:
            raise Refused(f"This peer runs on {' and '.join(databases)}, not on {self.database}.")

    def payload(self) -> bytes:
        return b"x" * self.payload_bytes

    def document(self) -> dict[str, str]:
        """A payload for peers that take JSON only; written as JSON it has `payload_bytes`."""
        return {"data": "x" * max(self.payload_bytes - len('{"data": ""}'), 0)}


@dataclass(frozen=True)
class Played:
    """How much was done, and between which moments."""

    count: int
    began: float
    ended: float


class Stage:
    """The two ends of the line to the coordinator, and the CPU time spent since `go`.

    What a peer's own code prints goes to stderr, so that it cannot get between the lines.
    """

    def __init__(self, name: str, packages: tuple[str, ...], *, lines: TextIO, go: TextIO) -> None:
        self._who = {
            "name": name,
            "version": version(packages[0]) if packages else "",
            "versions": {package: version(package) for package in packages},
        }
        self._lines = lines
        self._go = go
        self._cpu = 0.0
        self.began = 0.0

    def ready(self, **settings: Any) -> float:
        """Say that all is ready and wait for `go`. Returns the moment it came."""
        self._say({"event": "ready", **self._who, "settings": settings})
        line = self._go.readline()
        if line.strip() != "go":
            raise Refused(f"The coordinator was to say go, but said {line!r}; did it end?")
        self._cpu = _cpu_seconds()
        self.began = time.monotonic()
        return self.began

    def done(self, played: Played) -> None:
        cpu = round(_cpu_seconds() - self._cpu, 6)
        self._say({"event": "done", **asdict(played), "go": self.began, "cpu": cpu})

    def done_unmeasured(self, **more: Any) -> None:
        self._say({"event": "done", **more})

    def _say(self, line: Mapping[str, Any]) -> None:
        print(json.dumps(line), file=self._lines, flush=True)


class Tally:
    """Counts what handlers were given, and knows when there will be no more.

    Time runs from the first handler, so that what a runtime does to start up is not held against
    the peer, to the last one. Any thread may count.
    """

    def __init__(self, spec: Spec) -> None:
        self._messages = spec.messages
        self._idle_seconds = spec.idle
        self._first: float | None = None
        self._last = 0.0
        self._lock = threading.Lock()
        self.count = 0

    def add(self, count: int = 1) -> None:
        with self._lock:
            self._last = time.monotonic()
            if self._first is None:
                self._first = self._last
            self.count += count

    def over(self) -> bool:
        """Whether all were handled, or nothing was for as long as the spec says."""
        if self.count >= self._messages:
            return True
        return time.monotonic() - self._last > self._idle_seconds

    async def wait(self) -> None:
        self._last = time.monotonic()
        # Handlers may count in threads, which cannot set an event of the loop.
        while not self.over():  # noqa: ASYNC110
            await asyncio.sleep(LOOK_SECONDS)

    def wait_in_thread(self) -> None:
        self._last = time.monotonic()
        while not self.over():
            time.sleep(LOOK_SECONDS)

    def played(self, began: float) -> Played:
        """From the first handler to the last; `began` if there was none."""
        if self._first is None:
            return Played(0, began, began)
        return Played(self.count, self._first, self._last)


async def by_callers(spec: Spec, send: Callable[[int], Awaitable[Any]]) -> Played:
    """Send all messages by so many tasks at once, each taking its share a batch at a time."""

    async def caller(share: int) -> None:
        for sent in range(0, share, spec.batch):
            await send(min(spec.batch, share - sent))

    began = time.monotonic()
    await asyncio.gather(*(caller(share) for share in shares(spec)))
    return Played(spec.messages, began, time.monotonic())


async def warmed_up(spec: Spec, send: Callable[[Spec], Awaitable[Played]]) -> None:
    """Send once by each caller, before it counts: that opens connections, and makes plans."""
    await send(replace(spec, messages=spec.callers * spec.batch))


def shares(spec: Spec) -> list[int]:
    """How many messages each caller sends."""
    whole, rest = divmod(spec.messages, spec.callers)
    return [whole + (number < rest) for number in range(spec.callers)]


Task = Callable[[Spec, Stage], Any]


def play(
    name: str,
    tasks: Mapping[str, Task],
    *,
    packages: tuple[str, ...],
    run: Callable[[Any], Any] = asyncio.run,
) -> None:
    """Do the task of the spec in argv[1]. `run` runs those that are coroutines.

    `packages` are the distributions whose versions matter, the peer's own first. A measured task
    returns what it `Played`, `check` how many messages are left; the others return nothing.
    """
    lines = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    stage = Stage(name, packages, lines=lines, go=sys.stdin)
    try:
        spec = Spec.of(sys.argv[1])
        result = task_of(spec, name, tasks)(spec, stage)
        if inspect.iscoroutine(result):
            result = run(result)
    except Refused as error:
        sys.exit(f"{name}: {error}")
    if spec.task in MEASURED:
        stage.done(result)
    elif spec.task == "check":
        stage.done_unmeasured(left=result)
    else:
        stage.done_unmeasured(count=spec.messages if spec.task == "fill" else 0)


def task_of(spec: Spec, name: str, tasks: Mapping[str, Task]) -> Task:
    if spec.task not in tasks:
        raise Refused(f"{name} knows the tasks {', '.join(tasks)}, not {spec.task!r}.")
    return tasks[spec.task]


def _cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
