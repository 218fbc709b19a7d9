"""Those who take part in a trial: processes, what they have told, and what can be done to them.

One that was killed comes again under a new name, with a record of its own.
"""

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Self

from tests.chaos.record import Reader
from tests.simulation.history import Crashed, Event

__all__ = ["Cast", "Player", "until"]

ROOT = Path(__file__).parents[2]
LOOK_SECONDS = 0.05
WAIT_SECONDS_MAX = 180.0
STOP_SECONDS_MAX = 90.0

ROLES = ("publisher", "worker", "consumer", "scheduler")


def until(
    condition: Callable[[], object], what: str, seconds_max: float = WAIT_SECONDS_MAX
) -> None:
    """Wait for a condition. Raises `TimeoutError`."""
    deadline = time.monotonic() + seconds_max
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {seconds_max:.0f} s in vain until {what}")
        time.sleep(LOOK_SECONDS)


class Player:
    """A process that takes part."""

    def __init__(self, role: str, name: str, folder: Path, url: str) -> None:
        self.role = role
        self.name = name
        self.record = Reader(folder / f"{name}.jsonl")
        self.log = folder / f"{name}.log"
        command = [sys.executable, "-m", f"tests.chaos.{role}", url, str(self.record.path)]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, cwd=ROOT)
        self.died: int | None = None
        """When it was killed."""
        self.asked = False
        """Whether it was asked to come to an end."""

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.died = time.monotonic_ns()

    def failed(self) -> str | None:
        """How it ended badly, or by itself, which nobody may."""
        code = self.process.poll()
        if self.died is not None or code is None or (code == 0 and self.asked):
            return None
        return f"{self.name} ended with {code}: {self.tail()}"

    def busy(self) -> bool:
        """Whether it takes part by now."""
        return (bool(self.told()) or self.role == "scheduler") and self.record.ready

    def told(self) -> list[Event]:
        """What it has told so far."""
        list(self.record.read())
        return list(self.record.events.values())

    def tail(self) -> str:
        """The last of what it said."""
        return " | ".join(self.log.read_text(errors="replace").splitlines()[-5:])


class Cast:
    """All of them, with the dead."""

    def __init__(self, folder: Path, url: str, count: int = 2) -> None:
        """With so many of each role."""
        self.count = count
        self.folder = folder
        self.url = url
        self.players: list[Player] = []
        self._numbers = itertools.count(1)

    def __enter__(self) -> Self:
        for role in ROLES * self.count:
            self.enter(role)
        return self

    def __exit__(self, *_: object) -> None:
        for player in self.living():
            player.send(signal.SIGCONT)
            player.kill()

    def enter(self, role: str) -> Player:
        """Another one of a role."""
        player = Player(role, f"{role}-{next(self._numbers)}", self.folder, self.url)
        self.players.append(player)
        return player

    def living(self, *roles: str) -> list[Player]:
        return [
            player
            for player in self.players
            if player.process.poll() is None and (not roles or player.role in roles)
        ]

    def busy(self, *roles: str) -> list[Player]:
        """The living that take part by now."""
        return [player for player in self.living(*roles) if player.busy()]

    def replace(self, player: Player) -> Player:
        """Kill one, and have another take its place."""
        player.kill()
        return self.enter(player.role)

    @contextlib.contextmanager
    def paused(self, players: Iterable[Player]) -> Iterator[None]:
        """Have some stand still, wherever they are, and go on afterwards."""
        found = list(players)
        for player in found:
            player.send(signal.SIGSTOP)
            os.waitid(os.P_PID, player.process.pid, os.WSTOPPED | os.WNOWAIT)
        try:
            yield
        finally:
            for player in found:
                player.send(signal.SIGCONT)

    def stop(self, *roles: str) -> None:
        """Ask them to come to an end, and wait until they have."""
        players = self.living(*roles)
        for player in players:
            player.asked = True
            player.send(signal.SIGTERM)
        names = ", ".join(player.name for player in players)
        until(lambda: not self.living(*roles), f"{names} ended", STOP_SECONDS_MAX)

    def seen(self) -> list[Event]:
        """All that was told so far."""
        return [event for player in self.players for event in player.told()]

    def look(self) -> list[Event]:
        """What they have told since the last look."""
        new: list[Event] = []
        for player in self.players:
            new += player.record.read()
        return new

    def all_ready(self) -> bool:
        for player in self.players:
            list(player.record.read())
        return all(player.record.ready for player in self.living())

    def told(self) -> list[Event]:
        """All that was told, and who was killed, in the order in which it began."""
        events = self.seen()
        events += [
            Crashed(actor=player.name, began=player.died, ended=player.died)
            for player in self.players
            if player.died is not None
        ]
        return sorted(events, key=lambda event: event.began)

    def wait(self, condition: Callable[[], object], what: str) -> None:
        """Wait for a condition, as long as nobody fails. Raises `TimeoutError`."""
        until(lambda: condition() or self.failures(), what)
        if self.failures():
            raise TimeoutError(f"somebody failed before {what}")

    def failures(self) -> list[str]:
        return [told for player in self.players if (told := player.failed())]
