"""Results that were never measured, for tests of what is made of them."""

from typing import Any

from rowmq.bench.results import Figure, Line, Results

__all__ = ["line", "results"]


def line(subject: str, variant: str = "", *, scenario: str = "queues-one", **more: Any) -> Line:
    """A line on PostgreSQL: named figures are medians, measured three times within a tenth."""
    known = {name: more.pop(name) for name in list(more) if name not in Line.__struct_fields__}
    figures = {name: Figure(value, value * 0.9, value * 1.1) for name, value in known.items()}
    given = {"database": "postgresql", "trials": 3, **more}
    return Line(scenario=scenario, subject=subject, variant=variant, figures=figures, **given)


def results(*lines: Line) -> Results:
    return Results(
        version="1.2.3",
        machine={"cores": "2"},
        began_at="2026-03-01T09:30:00+00:00",
        took_seconds=1.0,
        repeat=3,
        complete=True,
        databases={line.database: {"version": "15"} for line in lines},
        scenarios={line.scenario: f"about {line.scenario}" for line in lines},
        lines=list(lines),
    )
