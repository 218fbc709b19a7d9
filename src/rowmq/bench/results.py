"""What a run has found, as values: to show, to draw, to judge, and to keep as JSON."""

import statistics
from typing import Any

import msgspec

__all__ = ["Figure", "Line", "Results", "Verdict", "figure_of"]


class Figure(msgspec.Struct, frozen=True):
    """Something that was measured several times."""

    median: float
    least: float
    most: float


def figure_of(values: list[float]) -> Figure:
    """The middle of values, and how far they are apart."""
    return Figure(statistics.median(values), min(values), max(values))


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One subject in one scenario on one database."""

    database: str
    scenario: str
    subject: str
    variant: str
    reference: bool = False
    """Whether the others of its scenario are compared with it."""
    figures: dict[str, Figure] = {}
    """By name: `rate` is messages a second, all others are what its name says."""
    windows: tuple[float, ...] = ()
    """The rates of some times after each other, where these tell more than their middle."""
    trials: int = 0
    version: str = ""
    settings: dict[str, Any] = {}
    error: str | None = None

    def figure(self, name: str) -> float | None:
        """The median of what was measured under a name; None if it was not."""
        found = self.figures.get(name)
        return None if found is None else found.median

    @property
    def name(self) -> str:
        """What is compared, for people."""
        return f"{self.subject}, {self.variant}" if self.variant else self.subject


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """A ratio, or a figure, that is to hold, and what it is."""

    target: str
    database: str
    wanted: str
    measured: float | None
    unit: str
    holds: bool | None
    """None if it was not measured."""


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """All of a run."""

    version: str
    machine: dict[str, str]
    began_at: str
    took_seconds: float
    repeat: int
    complete: bool
    """Whether all of it was measured that was to be."""
    databases: dict[str, dict[str, str]]
    scenarios: dict[str, str]
    """What each scenario was about, in words."""
    lines: list[Line]
    verdicts: list[Verdict] = []

    def find(self, database: str, scenario: str, subject: str, variant: str = "") -> Line | None:
        """The line of a subject and a variant."""
        for line in self.lines:
            known = (line.database, line.scenario, line.subject, line.variant)
            if known == (database, scenario, subject, variant):
                return line
        return None
