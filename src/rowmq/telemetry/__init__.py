"""Looking at RowMQ from outside: metrics, traces, and which message a log record is about.

Nothing of it costs anything until it is asked for: clients and workers have a place where whoever
measures or traces can be told, and it is empty. prometheus-client (`rowmq[metrics]`) and
opentelemetry-api (`rowmq[otel]`) are imported when they are needed.
"""

from rowmq.telemetry.handling import MessageFilter, handling
from rowmq.telemetry.metrics import Metrics
from rowmq.telemetry.turning import trace, untrace

__all__ = ["MessageFilter", "Metrics", "handling", "trace", "untrace"]
