"""What goes wrong in a trial, once all run: a function of the stage, for about so many seconds."""

import random
import time
from collections.abc import Callable
from typing import NamedTuple

from tests.chaos.cast import Cast
from tests.chaos.load import LEASE_SECONDS
from tests.chaos.places import Place, ServerPlace, SQLitePlace

__all__ = ["FAULTS", "Fault", "Stage"]

BEYOND_SECONDS = 1.5 * LEASE_SECONDS
"""Longer than leases and locks last."""


class Stage(NamedTuple):
    """Who takes part, where, and by which chance something happens to them."""

    cast: Cast
    place: Place
    chance: random.Random

    @property
    def server(self) -> ServerPlace:
        assert isinstance(self.place, ServerPlace)
        return self.place


def nothing(_stage: Stage, seconds: float) -> None:
    """All goes well."""
    time.sleep(seconds)


def killed(stage: Stage, seconds: float) -> None:
    """Publishers, workers and consumers are killed, one after the other, and come again."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        player = stage.chance.choice(stage.cast.living("publisher", "worker", "consumer"))
        stage.cast.replace(player)
        time.sleep(stage.chance.uniform(0.1, 1.0))


def stopped(stage: Stage, seconds: float) -> None:
    """A publisher, a worker and a consumer stand still for longer than leases last."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        players = [stage.cast.living(role)[0] for role in ("publisher", "worker", "consumer")]
        with stage.cast.paused(players):
            time.sleep(BEYOND_SECONDS)
        time.sleep(stage.chance.uniform(0.1, 0.5))


def restarted(stage: Stage, seconds: float) -> None:
    """The server is ended in an orderly way, and started again, twice."""
    server = stage.server.server
    assert server is not None
    server.restart()
    time.sleep(seconds / 2)
    server.restart()


def crashed(stage: Stage, seconds: float) -> None:
    """The server is ended by SIGKILL, and started again a second later, twice."""
    server = stage.server.server
    assert server is not None
    for _ in range(2):
        time.sleep(seconds / 2)
        server.kill()
        time.sleep(1)
        server.start()


def cut(stage: Stage, seconds: float) -> None:
    """All connections are reset, again and again."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        stage.server.proxy.cut()
        time.sleep(stage.chance.uniform(0.05, 0.8))


def delayed(stage: Stage, seconds: float) -> None:
    """Whatever is sent takes up to a tenth of a second."""
    with stage.server.proxy.delaying(0.1):
        time.sleep(seconds)


def silent(stage: Stage, seconds: float) -> None:
    """Every second connection is silent for longer than leases last; then all comes late."""
    with stage.server.proxy.silent():
        time.sleep(max(seconds, BEYOND_SECONDS))


def full(stage: Stage, seconds: float) -> None:
    """There is no room on the disk."""
    assert isinstance(stage.place, SQLitePlace)
    with stage.place.full(player.process.pid for player in stage.cast.living()):
        time.sleep(seconds)


def snapshot(stage: Stage, seconds: float) -> None:
    """A transaction stays open, and with it what it has seen."""
    with stage.place.snapshot():
        time.sleep(seconds)


def unscheduled(stage: Stage, seconds: float) -> None:
    """Those who make ticks stand still."""
    with stage.cast.paused(stage.cast.living("scheduler")):
        time.sleep(seconds)


def crowded(stage: Stage, seconds: float) -> None:
    """Strangers have all connections."""
    with stage.server.crowded():
        time.sleep(seconds)


def anywhere(_place: Place) -> bool:
    return True


def on_our_server(place: Place) -> bool:
    return place.is_ours


def over_a_network(place: Place) -> bool:
    return place.has_network


def in_a_file(place: Place) -> bool:
    return not place.has_network


class Fault(NamedTuple):
    """Something that goes wrong, where it can, and for how long if nobody says."""

    name: str
    do: Callable[[Stage, float], None]
    where: Callable[[Place], bool] = anywhere
    seconds: float = 6.0
    on_small_disk: bool = False


FAULTS = {
    fault.name: fault
    for fault in (
        Fault("none", nothing, seconds=2.0),
        Fault("kill", killed),
        Fault("stop", stopped),
        Fault("restart", restarted, on_our_server, seconds=3.0),
        Fault("crash", crashed, on_our_server, seconds=4.0),
        Fault("cut", cut, over_a_network),
        Fault("delay", delayed, over_a_network),
        Fault("silence", silent, over_a_network),
        Fault("full", full, in_a_file, on_small_disk=True),
        Fault("snapshot", snapshot, seconds=60.0),
        Fault("scheduler", unscheduled),
        Fault("connections", crowded, over_a_network),
    )
}
