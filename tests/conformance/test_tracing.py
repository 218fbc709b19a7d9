"""A trace goes from the one who publishes to the handler, and to the settle of what it did."""

import asyncio
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import rowmq
from rowmq import telemetry
from tests.choices import async_only
from tests.consuming import eventually
from tests.databases import Database
from tests.working import SOURCES, STYLES, attach, new_app, on_one, on_two

pytestmark = async_only

DUE = datetime(2100, 1, 1, tzinfo=UTC)


class Traced:
    """What was traced: all spans that have ended."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self.provider.get_tracer("test")

    @property
    def spans(self) -> tuple[ReadableSpan, ...]:
        return self._exporter.get_finished_spans()

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans if span.name == name]

    def only(self, name: str) -> ReadableSpan:
        found = self.named(name)
        assert len(found) == 1, [span.name for span in self.spans]
        return found[0]

    def children(self, parent: ReadableSpan) -> list[ReadableSpan]:
        return [s for s in self.spans if s.parent and s.parent.span_id == parent.context.span_id]

    def clear(self) -> None:
        self._exporter.clear()


@pytest.fixture
def traced() -> Traced:
    return Traced()


async def send(mq: Any, source: str, payload: Any, **options: Any) -> Any:
    """One message, or one job; gives its id."""
    if source == "queue":
        return str((await mq.queue("x").put(payload, **options)).id)
    return (await mq.publish("x", payload, **options)).id


def nothing(_: Any) -> None:
    """A handler that does nothing."""


def parent_of(span: ReadableSpan) -> int:
    assert span.parent is not None, span.name
    return span.parent.span_id


def linked(span: ReadableSpan) -> set[int]:
    return {link.context.span_id for link in span.links}


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("style", STYLES)
async def test_a_trace_goes_from_its_sender_to_the_handler_and_the_settle(
    mq: Any, database: Database, traced: Traced, source: str, style: str
) -> None:
    app = new_app(database)
    app.trace(provider=traced.provider)
    handled: list[str] = []

    def work(payload: Any) -> None:
        with traced.tracer.start_as_current_span("own work"):
            handled.append(payload)

    async def work_async(payload: Any) -> None:
        await asyncio.sleep(0)
        work(payload)

    attach(app, source, "x", work if style == "sync" else work_async)
    telemetry.trace(mq, provider=traced.provider)
    with traced.tracer.start_as_current_span("request") as request:
        id = await send(mq, source, "payload", headers={"mine": "stays"})
    async with app:
        await eventually(lambda: traced.named("settle x"))
    assert handled == ["payload"]
    sent = traced.only("publish x" if source == "topic" else "put x")
    process, settle, own = (traced.only(n) for n in ("process x", "settle x", "own work"))
    of_trace = {span.context.trace_id for span in (sent, process, settle, own)}
    assert of_trace == {request.get_span_context().trace_id}
    assert sent.kind is SpanKind.PRODUCER
    assert process.kind is SpanKind.CONSUMER
    assert parent_of(process) == sent.context.span_id
    assert linked(process) == {sent.context.span_id}
    assert parent_of(own) == parent_of(settle) == process.context.span_id
    assert process.attributes is not None
    assert process.attributes["messaging.message.id"] == id
    assert process.attributes["messaging.destination.name"] == "x"
    assert process.attributes["rowmq.attempt"] == 1
    for span in (sent, settle):
        statements = traced.children(span)
        assert "commit" in {statement.name for statement in statements} or statements
        for statement in statements:
            if statement is not process:
                assert statement.attributes is not None
                assert statement.attributes["db.operation.name"] == statement.name
                assert statement.attributes["db.system.name"] == (
                    "postgresql" if database.dialect == "postgres" else database.dialect
                )


@on_two
@pytest.mark.parametrize("source", SOURCES)
async def test_each_attempt_is_a_span_and_tells_why_it_failed(
    mq: Any, database: Database, traced: Traced, source: str
) -> None:
    app = new_app(database)
    app.trace(provider=traced.provider)

    async def fail(payload: Any) -> None:
        raise LookupError(f"no {payload}")

    attach(app, source, "x", fail, retry=rowmq.Constant(interval=0, max_attempts=2))
    telemetry.trace(mq, provider=traced.provider)
    await send(mq, source, "address")
    async with app:
        await eventually(lambda: len(traced.named("settle x")) == 2)
    sent = traced.only("publish x" if source == "topic" else "put x")
    first, second = traced.named("process x")
    for attempt, span in enumerate((first, second), 1):
        assert span.attributes is not None
        assert span.attributes["rowmq.attempt"] == attempt
        assert span.attributes["error.type"] == "LookupError"
        assert span.status.status_code is StatusCode.ERROR
        assert parent_of(span) == sent.context.span_id
        assert [event.name for event in span.events] == ["exception"]


@on_one
async def test_what_a_handler_sends_is_part_of_the_trace(
    mq: Any, database: Database, traced: Traced
) -> None:
    """In its transaction, by its client, and from a thread."""
    app = new_app(database)
    app.trace(provider=traced.provider)

    @app.worker("a", transactional=True)
    def first(payload: Any, tx: rowmq.Transaction) -> None:
        tx.publish("b", payload)

    @app.subscriber("b", group="g")
    async def second(payload: Any, client: rowmq.AsyncRowMQ) -> None:
        await client.queue("c").put(payload)

    @app.worker("c")
    async def third(_: Any, job: rowmq.AsyncJob[Any]) -> None:
        await job.ack()

    telemetry.trace(mq, provider=traced.provider)
    await mq.queue("a").put(1)
    async with app:
        await eventually(lambda: traced.named("settle c"))
    chain = ["put a", "process a", "publish b", "process b", "put c", "process c", "settle c"]
    spans = [traced.only(name) for name in chain]
    assert len({span.context.trace_id for span in spans}) == 1
    for before, after in pairwise(spans):
        assert parent_of(after) == before.context.span_id
    assert parent_of(traced.only("settle a")) == traced.only("process a").context.span_id


@on_two
async def test_what_is_sent_and_settled_together_has_links(
    mq: Any, database: Database, traced: Traced
) -> None:
    app = new_app(database)
    app.trace(provider=traced.provider)
    done: list[int] = []

    @app.subscriber("x", group="g", concurrency=10, flush_interval=0.2)
    async def work(number: int) -> None:
        done.append(number)

    telemetry.trace(mq, provider=traced.provider)
    await mq.publish_many("x", [rowmq.Message(payload=n, key=f"k{n}") for n in range(5)])
    sent = traced.only("publish x")
    assert sent.attributes is not None
    assert sent.attributes["messaging.batch.message_count"] == 5
    async with app:
        await eventually(lambda: len(done) == 5)
    processed = traced.named("process x")
    assert {parent_of(span) for span in processed} == {sent.context.span_id}
    settled = set[int]()
    for span in traced.named("settle x"):
        settled |= linked(span) or {parent_of(span)}
    assert settled == {span.context.span_id for span in processed}


@on_one
async def test_who_polls_by_himself_can_trace_what_he_handles(mq: Any, traced: Traced) -> None:
    telemetry.trace(mq, provider=traced.provider)
    await mq.create_group("x", "g")
    for number in range(3):
        await mq.publish("x", number)
    async with mq.subscribe("x", group="g") as sub:
        deliveries: list[Any] = []
        while len(deliveries) < 3:
            deliveries += await sub.poll(max=10)
        with telemetry.handling(mq, deliveries[0], name="one"):
            pass
        with pytest.raises(LookupError), telemetry.handling(mq, deliveries, name="all"):
            raise LookupError
        await sub.ack(deliveries)
    senders = [span.context.span_id for span in traced.named("publish x")]
    one, many = traced.named("process x")
    assert parent_of(one) in senders
    assert many.parent is None
    assert linked(many) == set(senders)
    assert many.status.status_code is StatusCode.ERROR
    assert many.attributes is not None
    assert many.attributes["messaging.batch.message_count"] == 3


@on_one
async def test_who_waits_for_messages_makes_no_spans(
    mq: Any, database: Database, traced: Traced
) -> None:
    await mq.create_group("t", "g")
    app = new_app(database)
    app.trace(provider=traced.provider)
    attach(app, "queue", "q", nothing)
    attach(app, "topic", "t", nothing)
    async with app:
        await asyncio.sleep(0.3)
    assert traced.spans == ()


@on_one
async def test_a_trace_that_the_sender_has_put_there_stays(mq: Any, traced: Traced) -> None:
    """Someone else's trace, as a gateway between brokers would hand it on."""
    telemetry.trace(mq, provider=traced.provider)
    told = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    await mq.publish("x", 1, headers={"Traceparent": told})
    (message,) = await mq.read("x", from_offset=1)
    assert message.headers == {"Traceparent": told}
    assert linked(traced.only("publish x")) == {0xB7AD6B7169203331}


@on_one
async def test_what_is_no_trace_is_handled_all_the_same(
    mq: Any, database: Database, traced: Traced
) -> None:
    app = new_app(database)
    app.trace(provider=traced.provider)
    done: list[int] = []

    def work(number: int) -> None:
        done.append(number)

    attach(app, "topic", "x", work)
    await mq.publish("x", 1, headers={"traceparent": "00-zzz"})
    await mq.publish("x", 2)
    async with app:
        await eventually(lambda: sorted(done) == [1, 2])
    assert [span.parent for span in traced.named("process x")] == [None, None]


async def test_an_offer_that_changes_nothing_is_ignored_in_another_trace(
    mq: Any, traced: Traced
) -> None:
    """Where a job was offered from is not what it is."""
    telemetry.trace(mq, provider=traced.provider)
    queue = mq.queue("x")
    at = rowmq.ScheduledMessage("k", "payload", DUE)
    outcomes = [(await queue.offer_batch([at]))[0][1] for _ in range(2)]
    assert outcomes == [rowmq.Outcome.CREATED, rowmq.Outcome.IGNORED]
    job = await queue.read("k")
    assert job.headers["traceparent"].split("-")[2] == format(
        traced.named("offer x")[0].context.span_id, "016x"
    )


@on_two
async def test_calls_that_share_a_transaction_are_traced_together(mq: Any, traced: Traced) -> None:
    telemetry.trace(mq, provider=traced.provider)
    await asyncio.gather(*(mq.publish("x", n, key="k") for n in range(20)))
    sent = {span.context.span_id: span for span in traced.named("publish x")}
    assert len(sent) == 20
    shared = traced.named("work together")
    assert shared, "they were not combined"
    for span in shared:
        assert len(linked(span)) > 1
        assert linked(span) <= set(sent)
        assert traced.children(span), "its statements"


@on_one
async def test_headers_that_are_full_are_left_as_they_are(mq: Any, traced: Traced) -> None:
    telemetry.trace(mq, provider=traced.provider)
    full = {"a": "x" * (64 * 1024 - 1)}
    await mq.publish("x", 1, headers=full)
    (message,) = await mq.read("x", from_offset=1)
    assert message.headers == full
