"""One trial: some players at once, started together, and what they did."""

import contextlib
import queue
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any, Self

import msgspec

from rowmq.bench.playing import Spec

__all__ = ["Part", "Played", "PlayerFailed", "run_part", "run_trial"]

TRIAL_SECONDS_MAX = 600.0
END_SECONDS = 5.0
"""How long a player may take to end by itself."""

TOLD_LINES = 12
"""How much of what a player said is told when it fails."""


class PlayerFailed(Exception):
    """A player came to no result; the message says why, as far as it told."""


class Part(msgspec.Struct, frozen=True):
    """A process of a trial: who plays, and what."""

    player: str
    spec: Spec
    counted: bool = True
    """Whether what it handles is what is measured: not so for one that only sends, or holds."""


class Played(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a trial."""

    count: int
    seconds: float
    cpu_seconds: float
    version: str
    settings: dict[str, Any]
    figures: dict[str, float]
    """What players counted beside: statements, percentiles, memory."""
    windows: tuple[float, ...] = ()

    @property
    def rate(self) -> float:
        """Messages a second."""
        return self.count / self.seconds if self.seconds > 0 else 0.0


def run_trial(
    parts: Sequence[Part],
    commands: Mapping[str, Sequence[str]],
    release: Callable[[], None] = lambda: None,
) -> Played:
    """Start players, have them begin together, and wait for all. `release` is called when all are
    ready: it lets those begin who wait for messages, and `go` has their time run.
    """
    with contextlib.ExitStack() as stack:
        players = [stack.enter_context(Player(commands[part.player], part)) for part in parts]
        ready = [player.hear("ready") for player in players]
        release()
        for player in players:
            player.begin()
        done = [player.hear("done") for player in players]
        for player in players:
            player.end()
    counted = [place for place, part in enumerate(parts) if part.counted]
    return played([ready[place] for place in counted], [done[place] for place in counted])


def run_part(part: Part, commands: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Have a player do what is not measured, such as to fill its tables."""
    with Player(commands[part.player], part) as player:
        done = player.hear("done")
        player.end()
    return done


def played(ready: Sequence[dict[str, Any]], done: Sequence[dict[str, Any]]) -> Played:
    """The sum of what the players of a trial did, from the first one's begin to the last one's
    end.
    """
    figures: dict[str, float] = {}
    for line in done:
        for name, value in line.items():
            if name not in TOLD_OTHERWISE and isinstance(value, int | float):
                figures[name] = figures.get(name, 0) + value
    return Played(
        count=sum(line["count"] for line in done),
        seconds=max(line["ended"] for line in done) - min(line["began"] for line in done),
        cpu_seconds=sum(line["cpu"] for line in done),
        version=ready[0]["version"],
        settings=ready[0].get("settings", {}),
        figures=figures,
        windows=tuple(map(sum, zip(*(line.get("windows", ()) for line in done), strict=True))),
    )


TOLD_OTHERWISE = frozenset({"event", "count", "began", "ended", "cpu", "go"})


class Player:
    """A player's process, for as long as the trial lasts."""

    def __init__(self, command: Sequence[str], part: Part) -> None:
        self._name = part.player
        self._command = [*command, msgspec.json.encode(part.spec).decode()]
        self._lines: queue.Queue[str] = queue.Queue()

    def __enter__(self) -> Self:
        self._said: IO[str] = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")
        self._process = subprocess.Popen(  # noqa: S603 - our own command, and no shell
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            encoding="utf-8",
        )
        threading.Thread(target=self._read, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._said):
            with contextlib.suppress(OSError):  # it has gone, and a line was on its way
                if stream is not None:
                    stream.close()

    def _read(self) -> None:
        assert self._process.stdout is not None  # noqa: S101 - it is a pipe
        with contextlib.suppress(ValueError):  # it was closed
            for line in self._process.stdout:
                self._lines.put(line)
        self._lines.put("")

    def hear(self, event: str) -> dict[str, Any]:
        """What the player says when it comes to an event."""
        try:
            line = self._lines.get(timeout=TRIAL_SECONDS_MAX)
        except queue.Empty:
            raise self._failed(f"said nothing for {TRIAL_SECONDS_MAX:.0f} s") from None
        try:
            heard = msgspec.json.decode(line, type=dict[str, Any])
        except msgspec.DecodeError:
            raise self._failed(f"did not come to {event!r}") from None
        if heard.get("event") != event:
            raise self._failed(f"said {heard.get('event')!r} instead of {event!r}")
        return heard

    def begin(self) -> None:
        """Let it go."""
        assert self._process.stdin is not None  # noqa: S101 - it is a pipe
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def end(self) -> None:
        """Wait until it has ended by itself."""
        try:
            code = self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            return  # it has said all, and is ended now
        if code:
            raise self._failed(f"ended with {code}")

    def _failed(self, what: str) -> PlayerFailed:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_SECONDS)
        self._said.seek(0)
        told = "\n".join(self._said.read().splitlines()[-TOLD_LINES:])
        return PlayerFailed(f"{self._name} {what}" + (f":\n{told}" if told else ""))
