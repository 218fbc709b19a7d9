"""Tells those who measure and trace what a handler does. A crew that nobody looks at has none of
this around its handler.
"""

from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import Any

from rowmq.subscriber.delivery import AsyncDelivery
from rowmq.telemetry.measuring import HandlerMeter
from rowmq.tracing import Tracer
from rowmq.worker.sources import Source
from rowmq.worker.unit import ACK, UNTRACED, Unit, Verdict, kind_in

__all__ = ["Observed", "outcome_of", "settled_outcome"]

Execute = Callable[[Unit], Awaitable[Verdict | None]]

OUTCOMES = {
    "ack": "acked",
    "nack": "retried",
    "reject": "failed",
    "refuse": "failed",
    "release": "released",
}


class Observed:
    """A handler that somebody looks at."""

    def __init__(
        self,
        name: str,
        source: Source,
        execute: Execute,
        *,
        meter: HandlerMeter | None,
        tracer: Tracer | None,
    ) -> None:
        self._name = name
        self._source = source
        self._execute = execute
        self._meter = meter
        self._tracer = tracer

    async def execute(self, unit: Unit) -> Verdict | None:
        """Handle a unit, as `Executor.execute` does."""
        unit.tracer, meter = self._tracer, self._meter
        if meter is not None:
            meter.waited(self._source.waited(unit))
        began = perf_counter()
        try:
            with UNTRACED if self._tracer is None else self._tracer.handle(self._name, (unit,)):
                return await self._execute(unit)
        finally:
            if meter is not None:
                meter.seconds.note(perf_counter() - began)


def settled_outcome(unit: Unit, verdict: Verdict) -> str:
    """What became of a unit whose verdict was to be carried out."""
    if not unit.raw.settled:
        return "lost"
    return "acked" if verdict is ACK else outcome_of(unit)


def outcome_of(unit: Unit) -> str:
    """What became of a unit that was settled as somebody asked: of a nack, whether it was the last.

    Jobs know that beforehand, and ask for a reject.
    """
    raw, asked = unit.raw, unit.asked
    outcome = OUTCOMES["ack" if asked is None else kind_in(asked)]
    if not isinstance(raw, AsyncDelivery) or outcome in ("acked", "released"):
        return outcome
    core: Any = raw._core
    if not raw._token.given_up:
        return "retried"
    return "failed" if core.options.buries else "dropped"
