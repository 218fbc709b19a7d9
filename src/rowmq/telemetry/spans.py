"""Spans, as OpenTelemetry has them. This is imported when somebody turns traces on.

    publish orders ──traceparent in the headers──► process orders ──► settle orders
      └ topics.publish                               └ whatever the handler does

A message says in its headers, by W3C's Trace Context, which span has sent it; that span is the
parent of the one that handles it, and it is linked to it. What belongs to several traces at once,
such as a commit that concurrent calls share, is a trace of its own with links to all of them.
"""

import contextlib
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from rowmq.codec import decode_headers, encode_headers
from rowmq.drivers.base import Ended
from rowmq.naming import HEADERS_BYTES_MAX
from rowmq.store.statement import Statement
from rowmq.tracing import Received

__all__ = ["Spans", "attach", "span_fields"]

I = TypeVar("I")  # noqa: E741 - an item: what is to be written

TRACEPARENT = "traceparent"
LINKS_MAX = 128
"""How many links a span has at most, which is what OpenTelemetry keeps by default."""

SYSTEMS = {"postgres": "postgresql"}
"""What OpenTelemetry calls databases, where that is another name."""

propagator = TraceContextTextMapPropagator()


def attach(mq: Any, provider: Any, *, statements: bool) -> None:
    """Have a client tell of what it does."""
    Spans(mq, provider, statements=statements)


class Spans:
    """The tracer of one client."""

    def __init__(self, mq: Any, provider: Any, *, statements: bool) -> None:
        version = sys.modules["rowmq"].__version__  # which is above, and there
        self._mq = mq
        self._tracer = trace.get_tracer("rowmq", version, tracer_provider=provider)
        self._database = SYSTEMS.get(mq._engine.database, mq._engine.database)  # noqa: SLF001
        if statements:
            mq._driver.timers.append(self.statement)  # noqa: SLF001 - whoever traces looks inside
        self._tell_all(self)

    def detach(self) -> None:
        """Be told no more."""
        timers = self._mq._driver.timers  # noqa: SLF001
        if self.statement in timers:
            timers.remove(self.statement)
        self._tell_all(None)

    def _tell_all(self, tracer: "Spans | None") -> None:
        """Have all parts of a client know who traces, and those who combine calls of several."""
        mq, desk, home = self._mq, self._mq._desk, self._mq._home  # noqa: SLF001
        mq._tracer = tracer  # noqa: SLF001
        combiners = [subscriber._combiner for subscriber in home.subscribers]  # noqa: SLF001
        for part in (desk, home, mq._combiner, desk.puts, desk.settles, *combiners):  # noqa: SLF001
            part.tracer = tracer

    # --- sending ----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def send(self, operation: str, destination: str, count: int) -> Iterator["Sending"]:
        """Messages are sent in this block, to a topic or a queue."""
        attributes = about(operation, "send", destination)
        if count != 1:
            attributes["messaging.batch.message_count"] = count
        with self._span(f"{operation} {destination}", SpanKind.PRODUCER, attributes) as span:
            yield Sending(span)

    def origin(self) -> Context | None:
        """Where in a trace this is called."""
        return contexts.get_current() if current_span_context() is not None else None

    @contextlib.contextmanager
    def together(self, origins: Sequence[Context | None]) -> Iterator[None]:
        """Work for one caller is part of his trace; that for several has links to all of theirs."""
        if len(origins) == 1:
            token = contexts.attach(Context() if origins[0] is None else origins[0])
            try:
                yield
            finally:
                contexts.detach(token)
            return
        links = links_to(None if origin is None else span_context(origin) for origin in origins)
        if not links:
            yield
            return
        attributes = {"messaging.system": "rowmq", "messaging.batch.message_count": len(origins)}
        with self._span("work together", SpanKind.INTERNAL, attributes, Context(), links):
            yield

    # --- handling ---------------------------------------------------------------------------------

    @contextlib.contextmanager
    def handle(self, handler: str, messages: Sequence[Received]) -> Iterator[None]:
        """Messages are handled in this block: one as part of its sender's trace, several in one of
        their own, with links to those of all of them.
        """
        origins = [origin_of(message.headers) for message in messages]
        attributes = handled_attributes(handler, [message.told() for message in messages])
        links = links_to(map(span_context, origins))
        parent = origins[0] if len(origins) == 1 else Context()
        name = f"process {attributes['messaging.destination.name']}"
        with self._span(name, SpanKind.CONSUMER, attributes, parent, links) as span:
            context = span.get_span_context()
            for message in messages:
                message.traced = context
            yield

    def failed(self, error: BaseException) -> None:
        """The handler of this block has raised."""
        fail(trace.get_current_span(), error)

    @contextlib.contextmanager
    def settle(self, source: str, messages: Sequence[Received]) -> Iterator[None]:
        """What was handled is settled in this block: one as part of its trace. What is given back
        without having been handled is in none.
        """
        handled = [message.traced for message in messages]
        if not any(handled):
            yield
            return
        attributes = about("settle", "settle", source)
        attributes["messaging.batch.message_count"] = len(handled)
        parent, links = Context(), links_to(handled)
        if len(handled) == 1 and links:
            parent, links = trace.set_span_in_context(trace.NonRecordingSpan(handled[0])), []
        with self._span(f"settle {source}", SpanKind.CLIENT, attributes, parent, links):
            yield

    def _span(
        self,
        name: str,
        kind: SpanKind,
        attributes: dict[str, Any],
        context: Context | None = None,
        links: Sequence[Link] = (),
    ) -> contextlib.AbstractContextManager[Span]:
        return self._tracer.start_as_current_span(
            name, context=context, kind=kind, attributes=attributes, links=links
        )

    # --- statements -------------------------------------------------------------------------------

    def statement(self, statement: Statement) -> Ended | None:
        """A statement begins: it has a span if it belongs to a trace. The looks of those who wait
        for messages do not, and would drown all others.
        """
        if current_span_context() is None:
            return None
        span = self._tracer.start_span(
            statement.name,
            kind=SpanKind.CLIENT,
            attributes={
                "db.system.name": self._database,
                "db.operation.name": statement.name,
                "db.query.summary": statement.name,
            },
        )

        def ended(error: BaseException | None) -> None:
            if error is not None:
                fail(span, error)
            span.end()

        return ended


class Sending:
    """Messages that are being sent in a span."""

    def __init__(self, span: Span) -> None:
        self._span = span
        self._carrier: dict[str, str] = {}
        propagator.inject(self._carrier, trace.set_span_in_context(span))
        self._done: dict[str | None, str | None] = {}
        """Headers as they were, and as they are sent: those of a batch are often the same."""

    def stamped(self, item: I) -> I:
        """What is to be written, with where it comes from in its headers. What its sender has put
        there himself stays, and is linked to.
        """
        before: str | None = item.headers  # type: ignore[attr-defined] # entries and postings do
        if before not in self._done:
            if len(self._done) > LINKS_MAX:
                self._done.clear()
            self._done[before] = self._headers(before)
        return msgspec.structs.replace(item, headers=self._done[before])  # type: ignore[type-var]

    def _headers(self, before: str | None) -> str | None:
        headers = decode_headers(before)
        if any(name.lower() == TRACEPARENT for name in headers):
            context = span_context(origin_of(headers))
            if context is not None:
                self._span.add_link(context)
            return before
        whole = headers | self._carrier
        size = sum(len(name.encode()) + len(value.encode()) for name, value in whole.items())
        return encode_headers(whole) if size <= HEADERS_BYTES_MAX else before

    def known(self, id: str) -> None:
        """Tell the id of the only message."""
        self._span.set_attribute("messaging.message.id", id)


def about(operation: str, type: str, destination: str) -> dict[str, Any]:
    """What is done with messages, as OpenTelemetry calls it."""
    return {
        "messaging.system": "rowmq",
        "messaging.operation.name": operation,
        "messaging.operation.type": type,
        "messaging.destination.name": destination,
    }


def handled_attributes(handler: str, told: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What is known of messages that are handled; of several, what they have in common."""
    first = told[0]
    attributes = about("process", "process", first.get("topic") or first["queue"])
    attributes["rowmq.handler"] = handler
    if "group" in first:
        attributes["messaging.consumer.group.name"] = first["group"]
    if len(told) > 1:
        return attributes | {"messaging.batch.message_count": len(told)}
    id = str(first["message_id"] if "group" in first else first["job_id"])
    return attributes | {"messaging.message.id": id, "rowmq.attempt": first["attempt"]}


def origin_of(headers: Mapping[str, str]) -> Context:
    """The context of who has sent a message; an empty one if its headers do not say."""
    carrier = {name.lower(): value for name, value in headers.items()}
    return propagator.extract(carrier, context=Context())


def span_context(context: Context) -> SpanContext | None:
    """The span of a context, if there is one."""
    found = trace.get_current_span(context).get_span_context()
    return found if found.is_valid else None


def current_span_context() -> SpanContext | None:
    """The span that this is called in, if there is one."""
    found = trace.get_current_span().get_span_context()
    return found if found.is_valid else None


def links_to(found: Iterable[SpanContext | None]) -> list[Link]:
    """Links to spans, each once, and not to more than are kept."""
    known = {(c.trace_id, c.span_id): c for c in found if c is not None}
    return [Link(context) for context in list(known.values())[:LINKS_MAX]]


def fail(span: Span, error: BaseException) -> None:
    """Note why what a span is about has failed."""
    span.set_attribute("error.type", type(error).__qualname__)
    try:
        span.record_exception(error)
        said = str(error)
    except Exception:  # noqa: BLE001 - what an error says is its own code, which may raise
        said = ""
    span.set_status(Status(StatusCode.ERROR, said or type(error).__name__))


def span_fields() -> dict[str, str]:
    """The ids of the current span, for a log record."""
    context = current_span_context()
    if context is None:
        return {}
    return {
        "trace_id": trace.format_trace_id(context.trace_id),
        "span_id": trace.format_span_id(context.span_id),
    }
