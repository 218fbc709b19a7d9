"""What is being handled just now, for log records: whoever logs in a handler need not say it."""

import contextlib
import logging
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

from rowmq.errors import InvalidInput
from rowmq.queue.job import AnyJob
from rowmq.quoting import quoted
from rowmq.subscriber.delivery import AnyDelivery
from rowmq.telemetry.handed import Handed
from rowmq.tracing import Received

__all__ = ["HANDLED_NOW", "HANDLER_NOW", "MessageFilter", "fields", "handling"]

HANDLED_NOW: ContextVar[Received | None] = ContextVar("rowmq_handled", default=None)
"""The message or job of the handler that this is called by, if any; threads of handlers and tasks
that they begin have it, too.
"""

HANDLER_NOW: ContextVar[str | None] = ContextVar("rowmq_handler", default=None)
"""The name of that handler."""

SPANS = "rowmq.telemetry.spans"


class MessageFilter(logging.Filter):
    """Lets every log record pass, and notes on it what is being handled: `handler`, `topic`,
    `group`, `message_id` and `offset`, or `queue` and `job_id`; `key` and `attempt`; and, when it
    is traced, `trace_id` and `span_id`. What a record says of itself stays.

    It belongs on a log handler, where it sees the records of all loggers:
    `handler.addFilter(MessageFilter())`. `rowmq worker` does so by itself.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Note what is being handled."""
        with contextlib.suppress(Exception):  # a line of a log is no reason to fail
            for name, value in fields():
                if value is not None and not hasattr(record, name):
                    setattr(record, name, value)
        return True


def fields() -> Iterator[tuple[str, Any]]:
    """What is known of that which is being handled just now."""
    message = HANDLED_NOW.get()
    if message is not None:
        yield "handler", HANDLER_NOW.get()
        yield from message.told().items()
    spans = sys.modules.get(SPANS)
    if spans is not None:  # else nothing is traced
        yield from spans.span_fields().items()


@contextlib.contextmanager
def handling(mq: Any, handed: Any, *, name: str = "handler") -> Iterator[None]:
    """For code that polls by itself, what a worker does around a handler: in this block, log
    records tell of the message, and if the client is traced, a span is current whose parent is the
    one that has sent it.

    `handed` is a delivery or a job, or a list of them: then the span has links to those that have
    sent them, and log records tell of the first. An error that leaves the block is noted in the
    span.
    """
    received = received_of(handed)
    if not received:
        yield
        return
    tracer = mq._tracer  # noqa: SLF001 - whoever traces looks inside
    tokens = HANDLED_NOW.set(received[0]), HANDLER_NOW.set(name)
    try:
        with contextlib.nullcontext() if tracer is None else tracer.handle(name, received):
            yield
    finally:
        HANDLED_NOW.reset(tokens[0])
        HANDLER_NOW.reset(tokens[1])


def received_of(handed: Any) -> Sequence[Received]:
    """What was handed out, one or many."""
    some = [handed] if isinstance(handed, AnyJob | AnyDelivery) else handed
    if not isinstance(some, Iterable) or isinstance(some, str | bytes):
        raise InvalidInput(f"handling() takes a delivery or a job, or a list, not {quoted(handed)}")
    found = list(some)
    for raw in found:
        if not isinstance(raw, AnyJob | AnyDelivery):
            raise InvalidInput(f"handling() takes deliveries and jobs, not {quoted(raw)}")
    return [Handed(raw) for raw in found]
