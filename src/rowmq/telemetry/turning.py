"""Turning traces on and off, for a client."""

import importlib
import os
import sys
from typing import Any, NamedTuple

from rowmq.errors import MissingExtra

__all__ = ["Traces", "trace", "trace_if_configured", "untrace"]

API = "opentelemetry.trace"

DISABLED = "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS"
"""A variable of OpenTelemetry's own: names, separated by commas, of what is not to trace itself."""


class Traces(NamedTuple):
    """How to trace: see `trace`."""

    provider: Any = None
    statements: bool = True


def trace(mq: Any, *, provider: Any = None, statements: bool = True) -> None:
    """Trace what a client publishes, puts and handles, with OpenTelemetry (`rowmq[otel]`).

    `provider` is a tracer provider; without it, the global one is used. With `statements`, SQL
    statements that belong to a trace have spans, too, by their names. A client that is connected
    when a global provider is configured is traced by itself.

    Raises `MissingExtra`.
    """
    spans = imported()
    untrace(mq)
    spans.attach(mq, provider, statements=statements)


def untrace(mq: Any) -> None:
    """Trace a client no more."""
    if mq._tracer is not None:  # noqa: SLF001 - whoever traces looks inside
        mq._tracer.detach()  # noqa: SLF001


def trace_if_configured(mq: Any) -> None:
    """Trace a client if its process has told OpenTelemetry where traces go to."""
    api = sys.modules.get(API)
    if api is None or "rowmq" in os.environ.get(DISABLED, "").replace(" ", "").split(","):
        return
    provider = api.get_tracer_provider()
    if not isinstance(provider, api.ProxyTracerProvider | api.NoOpTracerProvider):
        trace(mq)


def imported() -> Any:
    """What needs OpenTelemetry."""
    try:
        return importlib.import_module("rowmq.telemetry.spans")
    except ImportError as error:
        raise MissingExtra(
            f"traces need opentelemetry-api ({str(error).splitlines()[0]}); "
            f"run: pip install 'rowmq[otel]'"
        ) from error
