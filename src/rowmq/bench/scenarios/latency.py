"""How long it takes from sending to handling, in another process."""

from collections.abc import Iterable

from rowmq.bench.playing import Spec
from rowmq.bench.scenarios.plan import Entry, Plan, Scenario, sends
from rowmq.bench.trial import Part

__all__ = ["latency"]

SLOW = 10.0
PEAK = "peak, 16 callers"
PEAK_MESSAGES = 20_000
HALF_SECONDS = 5.0


def latency(plan: Plan) -> Iterable[Scenario]:
    """At ten a second, and at half of what one process can send one by one."""
    notify = (True, False) if plan.database == "postgresql" else (True,)
    yield Scenario(
        name="latency-slow",
        title=f"from sending to handling, at {SLOW:.0f} a second",
        once=True,
        entries=(
            *(under_way(plan, "topic", notify=on, reference=on) for on in notify),
            *(under_way(plan, "queue", notify=on) for on in notify if not plan.brief),
        ),
    )
    peak = sends("rowmq", PEAK, messages=plan.some(PEAK_MESSAGES), source="topic", callers=16)
    yield Scenario(
        name="latency-half",
        title="from sending to handling, at half the peak rate of one sending process",
        once=True,
        entries=(peak, *(under_way(plan, "topic", notify=on, half=True) for on in notify)),
    )


def under_way(
    plan: Plan, source: str, *, notify: bool, half: bool = False, reference: bool = False
) -> Entry:
    """A sender at a rate, and a worker, in processes of their own."""
    seconds = min(HALF_SECONDS, plan.latency_seconds) if half else plan.latency_seconds
    how = Spec(
        task="latency",
        source="topic" if source == "topic" else "queue",
        rate=SLOW,
        seconds=seconds,
        notify=notify,
        batch=100,
    )
    said = "" if plan.database != "postgresql" else ", notified" if notify else ", by polling"
    return Entry(
        subject="rowmq",
        variant=source + said,
        parts=(Part("rowmq", how), Part("rowmq", pacing(how), counted=False)),
        half_of=PEAK if half else None,
        reference=reference or (half and notify),
    )


def pacing(how: Spec) -> Spec:
    return Spec(
        task="pace",
        source=how.source,
        rate=how.rate,
        seconds=how.seconds,
        notify=how.notify,
    )
