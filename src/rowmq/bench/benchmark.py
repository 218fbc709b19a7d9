"""A whole run: which scenarios there are, on which databases, by whom they are played."""

import contextlib
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import msgspec

import rowmq
from rowmq.bench.home import Home, open_home
from rowmq.bench.results import Line, Results
from rowmq.bench.running import Commands, run_scenario
from rowmq.bench.scenarios.consume import queues, topics
from rowmq.bench.scenarios.cost import cost
from rowmq.bench.scenarios.growth import growth
from rowmq.bench.scenarios.latency import latency
from rowmq.bench.scenarios.peers import PEERS
from rowmq.bench.scenarios.plan import Plan, Scenario
from rowmq.bench.scenarios.publish import publish, put
from rowmq.bench.targets import verdicts
from rowmq.errors import InvalidOption

__all__ = ["Choice", "Tell", "chosen", "measure", "names", "scenarios_of"]

Tell = Callable[[float, str, str], None]
"""Is told how much of all is done, from 0 to 1, and what is measured next: a scenario, and who
plays.
"""

PLAYERS = {"rowmq": "player", "raw": "raw", "plain": "plain"}

SIZES: dict[str, dict[str, Any]] = {
    "quick": {
        "brief": True,
        "scale": 0.2,
        "growth_max": 100_000,
        "seconds": 3.0,
        "latency_seconds": 2.0,
    },
    "usual": {},
    "full": {"growth_max": 5_000_000},
}
GROWTH_ELSEWHERE = 100_000
"""How many jobs wait on other databases than PostgreSQL, usually: to write them takes longest."""


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """What to measure, and how thoroughly."""

    urls: tuple[str, ...]
    only: tuple[str, ...] = ()
    """What the names of scenarios begin with; all, if there are none."""
    repeat: int = 3
    size: Literal["quick", "usual", "full"] = "usual"
    peers: Mapping[str, Sequence[str]] = {}
    """How each peer is started."""


def scenarios_of(plan: Plan) -> list[Scenario]:
    """All that can be measured on a database."""
    families: Iterable[Callable[[Plan], Iterable[Scenario]]]
    families = (publish, put, topics, queues, latency, growth, cost)
    return [scenario for family in families for scenario in family(plan)]


def names() -> dict[str, str]:
    """The scenarios by their names, and what each is about."""
    plan = Plan(database="postgresql")
    return {scenario.name: scenario.title for scenario in scenarios_of(plan)}


def measure(choice: Choice, tell: Tell) -> Results:
    """Measure what was chosen, on one database after the other."""
    chosen(choice.only)
    began = time.monotonic()
    began_at = datetime.now(UTC).isoformat(timespec="seconds")
    lines: list[Line] = []
    titles: dict[str, str] = {}
    databases: dict[str, dict[str, str]] = {}
    complete = False
    with contextlib.ExitStack() as stack:
        # All are there before the first is measured, which may take half an hour.
        homes = [stack.enter_context(open_home(url)) for url in choice.urls]
        check_different(homes)
        with contextlib.suppress(KeyboardInterrupt):  # what was measured until then is told
            for place, home in enumerate(homes):
                databases[home.database] = home.link.facts()
                plan = plan_of(home, choice)
                titles |= {scenario.name: scenario.title for scenario in scenarios_of(plan)}
                share = Share(tell, place, len(homes))
                for measured in measured_at(home, plan, choice, share):
                    lines += measured
            complete = True
    results = Results(
        version=rowmq.__version__,
        machine=machine(),
        began_at=began_at,
        took_seconds=round(time.monotonic() - began, 1),
        repeat=choice.repeat,
        complete=complete,
        databases=databases,
        scenarios=titles,
        lines=lines,
    )
    return msgspec.structs.replace(results, verdicts=list(verdicts(results)))


def check_different(homes: Sequence[Home]) -> None:
    """Refuse what could not be told apart in a table."""
    names = [home.database for home in homes]
    for name in names:
        if names.count(name) > 1:
            raise InvalidOption(f"two URLs lead to {name}: measure one after the other")


class Share:
    """The part of the progress that is one database's."""

    def __init__(self, tell: Tell, place: int, databases: int) -> None:
        self._tell = tell
        self._place = place
        self._databases = databases
        self._done = 0
        self.trials = 1

    def __call__(self, scenario: str, entry: str) -> None:
        done = (self._place + self._done / self.trials) / self._databases
        self._tell(done, scenario, entry)
        self._done += 1


def plan_of(home: Home, choice: Choice) -> Plan:
    sizes = SIZES[choice.size]
    if home.database != "postgresql":
        sizes = {"growth_max": GROWTH_ELSEWHERE} | sizes
    return Plan(
        database=home.database,
        peers=tuple(choice.peers),
        connections_max=home.link.connections_max(),
        **sizes,
    )


def measured_at(home: Home, plan: Plan, choice: Choice, share: Share) -> Iterator[list[Line]]:
    """The lines of one scenario after the other."""
    wanted = [scenario for scenario in scenarios_of(plan) if is_chosen(scenario.name, choice.only)]
    share.trials = sum(len(s.entries) * (1 if s.once else choice.repeat) for s in wanted)
    commands = commands_of(choice.peers)
    for scenario in wanted:
        yield run_scenario(home, scenario, commands, repeat=choice.repeat, tell=share)


def is_chosen(name: str, only: Sequence[str]) -> bool:
    """Whether a scenario is to be measured: one that is named, or whose name begins so."""
    return not only or any(name == one or begins(name, one) for one in only)


def begins(name: str, one: str) -> bool:
    return name.startswith(one) and one not in names()


def commands_of(peers: Mapping[str, Sequence[str]]) -> Commands:
    own = {
        name: [sys.executable, "-m", f"rowmq.bench.{module}"] for name, module in PLAYERS.items()
    }
    return {**own, **peers}


def chosen(only: Sequence[str]) -> dict[str, str]:
    """The scenarios that are chosen, by their names, and what each is about."""
    known = names()
    for name in only:
        if not any(scenario.startswith(name) for scenario in known):
            raise InvalidOption(
                f"there is no scenario that begins with {name!r}; there are: {', '.join(known)}"
            )
    return {name: title for name, title in known.items() if is_chosen(name, only)}


def peer_scripts() -> dict[str, Path]:
    """The script by which each peer is played."""
    folder = Path(__file__).parent / "peers"
    return {peer.name: folder / f"play_{peer.name}.py" for peer in PEERS}


def machine() -> dict[str, str]:
    """What this machine is, as far as it matters."""
    return {
        "processor": processor(),
        "cores": str(os.cpu_count()),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


def processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text("utf-8", errors="replace")
    except OSError:
        return platform.processor()
    models = [line.partition(":")[2].strip() for line in text.splitlines() if "model name" in line]
    return models[0] if models else platform.processor()
