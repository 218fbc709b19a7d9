"""What things are called, for people: databases, subjects, scenarios, and what is measured."""

import msgspec

from rowmq.bench.results import Line
from rowmq.bench.scenarios.plan import RATE

__all__ = [
    "Measure",
    "amount",
    "database_name",
    "has_settings",
    "line_name",
    "measures_of",
    "settings_told",
]

DATABASES = {
    "postgresql": "PostgreSQL",
    "mysql": "MySQL",
    "mariadb": "MariaDB",
    "sqlite": "SQLite",
}

SUBJECTS = {
    "rowmq": "RowMQ",
    "raw": "raw limit",
    "plain": "plain SKIP LOCKED queue",
    "sqlbroker": "faststream-sqlbroker",
}


def database_name(database: str) -> str:
    return DATABASES.get(database, database)


def subject_name(subject: str) -> str:
    return SUBJECTS.get(subject, subject)


def line_name(line: Line) -> str:
    """Who did what, in a line of a table."""
    name = subject_name(line.subject)
    return f"{name}, {line.variant}" if line.variant else name


def has_settings(line: Line) -> bool:
    """Whether it is a line of a queue that was set up: what the raw limit is has no settings."""
    return line.subject not in ("raw", "plain")


def settings_told(line: Line) -> str:
    """A subject, its version and its settings."""
    told = ", ".join(f"{name} {value}" for name, value in line.settings.items())
    return f"{subject_name(line.subject)} {line.version}: {told}"


def amount(value: float) -> str:
    """A ratio, or a figure, as it is told."""
    return f"{value:,.0f}" if value >= 100 else f"{value:,.2f}"


class Measure(msgspec.Struct, frozen=True, kw_only=True):
    """A column of a table."""

    name: str
    title: str
    places: int = 0
    """How many decimals are told."""
    unit: float = 1.0
    """What the figure is divided by."""

    def value(self, figure: float) -> float | int:
        """A figure as it is told."""
        told = round(figure / self.unit, self.places)
        return told if self.places else int(told)

    def shown(self, line: Line) -> float | int | None:
        """What a line says of it."""
        found = line.figure(self.name)
        return None if found is None else self.value(found)

    def ratio(self, ours: float | None, theirs: float | None) -> float | None:
        """How many times as good ours is: of a rate more is better, of all else less."""
        if not ours or not theirs:
            return None
        return ours / theirs if self.name == RATE else theirs / ours


COSTS = (
    Measure(name="log_bytes", title="log bytes", places=0),
    Measure(name="disk_bytes", title="disk bytes", places=0),
    Measure(name="rows_written", title="rows", places=2),
    Measure(name="statements", title="statements", places=3),
    Measure(name="client_cpu", title="client CPU µs", places=1),
    Measure(name="server_cpu", title="server CPU µs", places=1),
)
"""All for one message; CPU seconds a million messages are microseconds for one."""

RATES = (Measure(name=RATE, title="a second"), *COSTS)

MEMORY = Measure(name="rss_bytes", title="MiB", places=1, unit=1024.0**2)

LATENCIES = (
    Measure(name="p50_ms", title="median ms", places=2),
    Measure(name="p99_ms", title="99 % ms", places=2),
    Measure(name="max_ms", title="most ms", places=1),
    Measure(name=RATE, title="a second"),
)

MEASURES = {
    "latency": LATENCIES,
    "cost": (
        MEMORY,
        Measure(name="idle_statements", title="statements a second", places=1),
        Measure(name="idle_cpu_ms", title="CPU ms a second", places=1),
    ),
    "topics": (*RATES, MEMORY),
    "queues": (*RATES, MEMORY),
}


def measures_of(scenario: str) -> tuple[Measure, ...]:
    """What is told of the lines of a scenario; the first is what they are compared by."""
    return MEASURES.get(scenario.partition("-")[0], RATES)
