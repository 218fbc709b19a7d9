"""A run: scenarios one after the other, each repeated, with its subjects in turns.

Within a repetition all subjects have their turn, in another order each time: so whatever else the
machine does meanwhile meets all of them alike.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec

from rowmq.bench import filling
from rowmq.bench.home import Home
from rowmq.bench.playing import Spec
from rowmq.bench.results import Line, figure_of
from rowmq.bench.scenarios.plan import RATE, Entry, Scenario
from rowmq.bench.trial import Part, Played, PlayerFailed, run_part, run_trial
from rowmq.bench.wording import database_name

__all__ = ["Commands", "Tell", "run_scenario"]

Commands = Mapping[str, Sequence[str]]
"""How each player is started."""

Tell = Callable[[str, str], None]
"""Is told what is measured next, a scenario and who plays, as often as there are trials."""


def run_scenario(
    home: Home, scenario: Scenario, commands: Commands, *, repeat: int, tell: Tell
) -> list[Line]:
    """Measure every entry of a scenario, in turns."""
    stands = [Stand(home, scenario, entry) for entry in scenario.entries]
    for turn in range(1 if scenario.once else repeat):
        order = list(stands)
        if not any(stand.entry.half_of for stand in stands):  # which needs what others measured
            random.Random(f"{scenario.name} {turn}").shuffle(order)
        for stand in order:
            tell(f"{database_name(home.database)}: {scenario.title}", stand.name)
            stand.play(commands, stands)
    return [stand.line() for stand in stands]


class Stand:
    """How an entry stands: its trials so far."""

    def __init__(self, home: Home, scenario: Scenario, entry: Entry) -> None:
        self.entry = entry
        self._home = home
        self._scenario = scenario
        self._played: list[Played] = []
        self._costs: list[dict[str, float]] = []
        self._error: str | None = None

    @property
    def name(self) -> str:
        return f"{self.entry.subject} {self.entry.variant}".rstrip()

    @property
    def rate(self) -> float | None:
        return self._played[-1].rate if self._played else None

    def play(self, commands: Commands, others: Sequence["Stand"]) -> None:
        """One trial. Who has failed once is not tried again: a table says why."""
        if self._error is not None:
            return
        try:
            entry = paced(self._placed(), others)
            self._before(entry, commands)
            self._measure(entry, commands)
        except PlayerFailed as error:
            self._error = str(error)
        except Exception as error:  # noqa: BLE001 - the others are to have their turn
            self._error = f"{self.name} could not be made ready: {error}"

    def _placed(self) -> Entry:
        """The entry with URLs in its specs."""

        def place(spec: Spec, player: str) -> Spec:
            return msgspec.structs.replace(spec, url=self._home.url_of(player))

        entry = self.entry
        parts = tuple(
            msgspec.structs.replace(part, spec=place(part.spec, where(part, entry)))
            for part in entry.parts
        )
        fill = None if entry.fill is None else place(entry.fill, entry.subject)
        return msgspec.structs.replace(entry, parts=parts, fill=fill)

    def _before(self, entry: Entry, commands: Commands) -> None:
        link = self._home.link_of(entry.subject)
        try:
            link.flush()
            if entry.subject == "rowmq":
                filling.prepare(link)
                if entry.fill is not None:
                    filling.fill(link, entry.fill)
                elif entry.parts[0].spec.task == "publish":
                    filling.make_room(entry.parts[0].spec)
            else:
                url = entry.parts[0].spec.url
                run_part(Part(entry.subject, Spec(task="prepare", url=url)), commands)
                if entry.fill is not None:
                    run_part(Part(entry.subject, entry.fill), commands)
            link.tidy()
        finally:
            if link is not self._home.link:
                link.close()

    def _measure(self, entry: Entry, commands: Commands) -> None:
        link = self._home.link
        before = link.reading()

        def release() -> None:
            nonlocal before
            now = link.reading(settled=False)
            # What players do to be ready does not count; but rows are told of too late for that.
            before = msgspec.structs.replace(now, rows_written=before.rows_written)
            if entry.fill is not None and entry.fill.gather:
                filling.release(link, entry.fill)

        played = run_trial(entry.parts, commands, release)
        costs = link.reading().since(before)
        self._check(entry, played, commands)
        self._played.append(played)
        self._costs.append(costs)

    def _check(self, entry: Entry, played: Played, commands: Commands) -> None:
        """What was counted must add up, and the database must agree."""
        expected = entry.expected
        if expected is None and (first := entry.parts[0].spec).task == "latency":
            expected = round(first.rate * first.seconds)
        if expected is not None and played.count < expected:
            raise PlayerFailed(f"{self.name} handled {played.count:,} instead of {expected:,}")
        if entry.filled is None or entry.fill is None:
            return
        if entry.subject == "rowmq":
            left = filling.left(entry.fill)
        else:
            spec = msgspec.structs.replace(entry.fill, task="check")
            left = run_part(Part(entry.subject, spec), commands)["left"]
        if left != entry.filled - played.count:
            raise PlayerFailed(
                f"{self.name} had {entry.filled:,} to handle and handled {played.count:,}, but "
                f"{left:,} are left in the database"
            )

    def line(self) -> Line:
        """What came of all trials."""
        entry, played = self.entry, self._played
        values: dict[str, list[float]] = {}
        for one, costs in zip(played, self._costs, strict=True):
            for name, value in figures_of(one, costs).items():
                values.setdefault(name, []).append(value)
        return Line(
            database=self._home.database,
            scenario=self._scenario.name,
            subject=entry.subject,
            variant=entry.variant,
            reference=entry.reference,
            figures={name: figure_of(found) for name, found in values.items()},
            windows=played[-1].windows if played else (),
            trials=len(played),
            version=played[-1].version if played else "",
            settings=played[-1].settings if played else {},
            error=self._error,
        )


def where(part: Part, entry: Entry) -> str:
    """Whose tables a part works on: one that only helps, on those of its entry."""
    return part.player if part.counted else entry.subject


def paced(entry: Entry, others: Sequence[Stand]) -> Entry:
    """The entry at half of what another one has reached."""
    if entry.half_of is None:
        return entry
    rates = [other.rate for other in others if other.entry.variant == entry.half_of]
    if not rates or rates[0] is None:
        raise PlayerFailed(f"{entry.half_of} was not measured")
    at_half = partial(msgspec.structs.replace, rate=round(rates[0] / 2, 1))
    parts = tuple(msgspec.structs.replace(part, spec=at_half(part.spec)) for part in entry.parts)
    return msgspec.structs.replace(entry, parts=parts)


PER_MESSAGE = ("log_bytes", "disk_bytes", "rows_written", "statements")
"""What is counted for a whole trial, and told for one message."""


def figures_of(played: Played, costs: Mapping[str, float]) -> dict[str, float]:
    """What a trial says: the rate, and what a message costs."""
    found = {RATE: played.rate, **played.figures}
    count = played.count
    if not count:
        return found
    for name in PER_MESSAGE:
        value = costs.get(name, played.figures.get(name))
        if value is not None:
            found[name] = value / count
    if "log_bytes" in found:
        found.pop("disk_bytes", None)  # then it is the server that writes
    found["client_cpu"] = played.cpu_seconds * 1_000_000 / count
    if "cpu_seconds" in costs:
        found["server_cpu"] = costs["cpu_seconds"] * 1_000_000 / count
    return found
