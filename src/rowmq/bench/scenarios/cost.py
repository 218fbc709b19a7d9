"""What a worker takes that has nothing to do. What messages cost is measured with all else."""

from collections.abc import Iterable
from typing import Literal

from rowmq.bench.playing import Spec
from rowmq.bench.scenarios.plan import Entry, Plan, Scenario
from rowmq.bench.trial import Part

__all__ = ["cost"]

IDLE_SECONDS = 5.0
SOURCES: tuple[Literal["queue", "topic"], ...] = ("queue", "topic")


def cost(plan: Plan) -> Iterable[Scenario]:
    """Memory and statements of an idle worker."""
    seconds = min(IDLE_SECONDS, plan.latency_seconds)
    yield Scenario(
        name="cost-idle",
        title="a worker with one handler and nothing to do",
        once=True,
        entries=tuple(
            Entry(
                subject="rowmq",
                variant=source,
                parts=(Part("rowmq", Spec(task="idle", source=source, seconds=seconds)),),
                reference=source == "queue",
            )
            for source in SOURCES
        ),
    )
