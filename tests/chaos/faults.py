"""What goes wrong in a trial, once all run: a function of the stage, for about so many seconds.

Each gives the number of times that it has hit somebody, as far as there are signs of that, and goes
on until it has, if it ever does. It is under load: all of it flows when a fault begins.
"""

import random
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import rowmq
from tests.chaos import signs
from tests.chaos.cast import LOOK_SECONDS, ROLES, Cast, Player
from tests.chaos.flow import flows
from tests.chaos.load import LEASE_SECONDS, PERIOD_SECONDS, SCHEDULE
from tests.chaos.places import Place, ServerPlace, SQLitePlace

__all__ = ["FAULTS", "Fault", "Stage"]

BEYOND_SECONDS = 1.5 * LEASE_SECONDS
"""Longer than leases and locks last."""

EFFECT_SECONDS_MAX = 60.0
"""How long to wait for a fault to hit somebody."""

PAUSE_SECONDS_MAX = 10.0
"""How long somebody stands still at most: what has a row locked cannot be taken over before."""

MISSED_TICKS = 3

CROWDS_A_CUT = 20
"""How often strangers take what is free before all are cut off again: for about a second."""


class Stage(NamedTuple):
    """Who takes part, where, and by which chance something happens to them."""

    cast: Cast
    place: Place
    chance: random.Random

    @property
    def server(self) -> ServerPlace:
        assert isinstance(self.place, ServerPlace)
        return self.place

    def anyone(self, *roles: str) -> list[Player]:
        """One of those who take part by now, if there is one."""
        busy = self.cast.busy(*roles)
        return [self.chance.choice(busy)] if busy else []


def rounds(seconds: float, hits: Callable[[], object]) -> Iterator[None]:
    """Again and again for so many seconds, and until somebody was hit, or that takes too long."""
    began = time.monotonic()
    while (passed := time.monotonic() - began) < seconds or (
        passed < EFFECT_SECONDS_MAX and not hits()
    ):
        yield


def held(seconds: float, hits: Callable[[], int]) -> int:
    """Let it be for so many seconds, and until somebody was hit; how often that was."""
    for _ in rounds(seconds, hits):
        time.sleep(LOOK_SECONDS)
    return hits()


# --- to those who take part -----------------------------------------------------------------------


def nothing(_stage: Stage, seconds: float) -> int:
    """All goes well."""
    time.sleep(seconds)
    return 0


def killed(stage: Stage, seconds: float) -> int:
    """Whoever takes part is killed, one after the other, and comes again."""
    hit: list[Player] = []
    for _ in rounds(seconds, hit.copy):
        for player in stage.anyone():
            stage.cast.replace(player)
            if signs.in_the_middle(player.told()):
                hit.append(player)
        time.sleep(stage.chance.uniform(0.1, 1.0))
    return len(hit)


def stopped(stage: Stage, seconds: float) -> int:
    """One of each role stands still for longer than leases last, and until others have what it had;
    then it goes on, and does not know.
    """
    lost: list[int] = []
    for _ in rounds(seconds, lambda: any(lost)):
        players = [player for role in ROLES for player in stage.anyone(role)]
        with stage.cast.paused(players):
            lost.append(absent(stage, {player.name for player in players}))
        time.sleep(stage.chance.uniform(0.1, 0.5))
    return sum(lost)


def absent(stage: Stage, names: set[str]) -> int:
    """Wait until some who stand still have lost what they had; how much that is."""
    began, began_ns = time.monotonic(), time.monotonic_ns()
    while True:
        time.sleep(LOOK_SECONDS)
        lost = signs.takeovers(stage.cast.seen(), names, began_ns)
        passed = time.monotonic() - began
        if passed > BEYOND_SECONDS and (lost or passed > PAUSE_SECONDS_MAX):
            return lost


def unscheduled(stage: Stage, seconds: float) -> int:
    """All who make ticks stand still, which are workers too, until some are overdue."""
    players = stage.cast.living("scheduler", "worker")
    with (
        rowmq.connect(stage.place.database.url, notify=False) as mq,
        stage.cast.paused(players),
    ):
        return held(seconds, lambda: overdue(mq))


def overdue(mq: rowmq.RowMQ) -> int:
    """How many ticks nobody has made that should be there, if they are some."""
    (schedule,) = (info for info in mq.cron.list() if info.name == SCHEDULE)
    assert schedule.next_at is not None
    missed = int((time.time() - schedule.next_at.timestamp()) / PERIOD_SECONDS)
    return missed if missed >= MISSED_TICKS else 0


# --- to servers, and to connections ---------------------------------------------------------------


def restarted(stage: Stage, seconds: float) -> int:
    """The server is ended in an orderly way, and started again, at least twice."""
    server = stage.server.server
    assert server is not None
    return twice(stage, seconds, server.restart)


def crashed(stage: Stage, seconds: float) -> int:
    """The server is ended by SIGKILL, and started again a second later, at least twice."""
    server = stage.server.server
    assert server is not None

    def crash() -> None:
        server.kill()
        time.sleep(1)
        server.start()

    return twice(stage, seconds, crash)


def twice(stage: Stage, seconds: float, do: Callable[[], object]) -> int:
    """Do something, and again after a while, and until it has hit somebody."""
    proxy = stage.server.proxy
    before = proxy.interrupted
    do()
    for _ in rounds(seconds, lambda: proxy.interrupted > before):
        time.sleep(max(seconds, LOOK_SECONDS))
        do()
    return proxy.interrupted - before


def cut(stage: Stage, seconds: float) -> int:
    """All connections are reset, again and again."""
    proxy = stage.server.proxy
    before = proxy.interrupted
    for _ in rounds(seconds, lambda: proxy.interrupted > before):
        proxy.cut()
        time.sleep(stage.chance.uniform(0.05, 0.8))
    return proxy.interrupted - before


def unanswered(stage: Stage, seconds: float) -> int:
    """Connections are reset when something is committed, and before that is answered."""
    proxy = stage.server.proxy
    before = proxy.lost_commits
    with proxy.losing():
        return held(seconds, lambda: proxy.lost_commits - before)


def delayed(stage: Stage, seconds: float) -> int:
    """Whatever is sent takes up to a tenth of a second; and all of it flows."""
    proxy = stage.server.proxy
    before = proxy.delayed
    with proxy.delaying(0.1):
        time.sleep(seconds)
        flows(stage.cast)
    return proxy.delayed - before


def silent(stage: Stage, seconds: float) -> int:
    """Every second connection is silent for longer than leases last; then all comes late."""
    proxy = stage.server.proxy
    proxy.silences.clear()
    with proxy.silent():
        time.sleep(max(seconds, BEYOND_SECONDS))
    # Nobody is silent any more, so what is to be heard comes now.
    return held(0.0, lambda: sum(silence > LEASE_SECONDS for silence in proxy.silences))


def crowded(stage: Stage, seconds: float) -> int:
    """Strangers have all connections, and go on taking what becomes free. Some of those who take
    part are quicker than they are: so all are cut off again, until one is told that there is none.
    """
    began = time.monotonic_ns()

    def refused() -> int:
        return signs.troubles(stage.cast.seen(), "no connection", began)

    with stage.server.crowded() as crowd:
        for number, _ in enumerate(rounds(seconds, refused)):
            if number % CROWDS_A_CUT == 0 and not refused():
                stage.server.proxy.cut()
            crowd()
            time.sleep(LOOK_SECONDS)
        return refused()


# --- to what is stored ----------------------------------------------------------------------------


def full(stage: Stage, seconds: float) -> int:
    """There is no room on the disk."""
    assert isinstance(stage.place, SQLitePlace)
    began = time.monotonic_ns()
    with stage.place.full(player.process.pid for player in stage.cast.living()):
        return held(seconds, lambda: signs.troubles(stage.cast.seen(), "disk", began))


def snapshot(stage: Stage, seconds: float) -> int:
    """A transaction stays open, and with it what it has seen; and at the end all of it flows."""
    with stage.place.snapshot() as look:
        seen = look()
        time.sleep(seconds)
        flows(stage.cast)
        return stage.place.messages() - seen if look() == seen else 0


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
    do: Callable[[Stage, float], int]
    where: Callable[[Place], bool] = anywhere
    seconds: float = 6.0
    on_small_disk: bool = False
    hits: bool = True
    """Whether there is to be a sign of it."""


FAULTS = {
    fault.name: fault
    for fault in (
        Fault("none", nothing, seconds=2.0, hits=False),
        Fault("kill", killed),
        Fault("stop", stopped),
        Fault("restart", restarted, on_our_server, seconds=3.0),
        Fault("crash", crashed, on_our_server, seconds=4.0),
        Fault("cut", cut, over_a_network),
        Fault("answers", unanswered, over_a_network),
        Fault("delay", delayed, over_a_network),
        Fault("silence", silent, over_a_network),
        Fault("full", full, in_a_file, on_small_disk=True),
        Fault("snapshot", snapshot, seconds=60.0),
        Fault("scheduler", unscheduled),
        Fault("connections", crowded, over_a_network),
    )
}
