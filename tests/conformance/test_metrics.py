"""What is measured adds up with what has happened."""

import asyncio
from typing import Any

import pytest

import rowmq
from rowmq import AckPolicy
from rowmq.telemetry import Metrics, catalogue
from tests.choices import async_only
from tests.consuming import eventually
from tests.databases import Database
from tests.working import (
    AT_ONCE,
    SOURCES,
    STYLES,
    attach,
    left,
    new_app,
    on_one,
    on_two,
    outcome,
    put,
)

pytestmark = async_only


def nothing(_: Any) -> None:
    """A handler that does nothing."""


Values = dict[tuple[str, ...], float]


async def measured(metrics: Metrics) -> Values:
    """All values by name and labels; of histograms, how many there were."""
    families = await asyncio.to_thread(metrics.families)
    return {
        (family.name, *sample.labels): sum(sample.counts) if family.bounds else sample.value
        for family in families
        for sample in family.samples
    }


def outcomes(values: Values, handler: str = "x") -> dict[str, float]:
    """What became of what a handler was given, without what did not happen."""
    return {
        name[-1]: value
        for name, value in values.items()
        if name[:2] == ("rowmq_handled_total", handler) and value
    }


@pytest.mark.parametrize("source", SOURCES)
async def test_acks_retries_and_dead_letters_add_up(
    mq: Any, database: Database, source: str
) -> None:
    app, metrics = new_app(database), Metrics()
    app.observe(metrics)

    async def work(number: int) -> None:
        if number < 2:
            raise ValueError(number)

    attach(app, source, "x", work, retry=rowmq.Constant(interval=0, max_attempts=3))
    await put(mq, source, "x", *range(5))
    async with app:
        await eventually(lambda: nothing_left(mq, source))
        values = await measured(metrics)
    assert outcomes(values) == {"acked": 3, "retried": 4, "failed": 2}
    assert values["rowmq_handler_failures_total", "x", "x"] == 6
    assert values["rowmq_handler_seconds", "x", "x"] == 9
    assert values["rowmq_fetched_total", "x", "x"] == 9
    assert values["rowmq_settled_total", "x", "x"] == 9
    assert values["rowmq_settle_failures_total", "x", "x"] == 0
    assert values["rowmq_given_up_total", "x", "x"] == 0
    assert values["rowmq_wait_seconds", "x", "x"] == (5 if source == "topic" else 9)
    assert values["rowmq_handler_unsettled", "x", "x"] == 0
    assert values["rowmq_statement_seconds", "commit"] > 0
    assert values["rowmq_database_answers",] == 1
    if source == "topic":
        assert values["rowmq_topic_published_total", "x"] == 5
        assert values["rowmq_group_acked", "x", "g"] == 5
        assert values["rowmq_group_lag", "x", "g"] == 0
        assert values["rowmq_group_dead_letters", "x", "g"] == 2
        assert values["rowmq_group_subscribers", "x", "g"] == 1
        assert values["rowmq_leases", "x", "g"] == 5
    else:
        assert values["rowmq_queue_jobs", "x", "completed"] == 3
        assert values["rowmq_queue_jobs", "x", "failed"] == 2
        assert values["rowmq_queue_put_per_second", "x"] * 60 == pytest.approx(5)


async def nothing_left(mq: Any, source: str) -> bool:
    return await left(mq, source, "x") == 0


@on_two
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("source", SOURCES)
async def test_what_handlers_settle_themselves_is_counted_as_that(
    mq: Any, database: Database, source: str, style: str
) -> None:
    app, metrics = new_app(database), Metrics(figures=False)
    app.observe(metrics)

    async def job(act: str, unit: rowmq.AsyncJob[Any]) -> None:
        await settle(act, unit)

    async def message(act: str, unit: rowmq.AsyncDelivery[Any]) -> None:
        await settle(act, unit)

    async def settle(act: str, unit: Any) -> None:
        if unit.attempt == 1:
            await getattr(unit, act)()

    def job_in_thread(act: str, unit: rowmq.Job[Any]) -> None:
        if unit.attempt == 1:
            getattr(unit, act)()

    def message_in_thread(act: str, unit: rowmq.Delivery[Any]) -> None:
        if unit.attempt == 1:
            getattr(unit, act)()

    handlers: dict[tuple[str, str], Any] = {
        ("queue", "async"): job,
        ("topic", "async"): message,
        ("queue", "sync"): job_in_thread,
        ("topic", "sync"): message_in_thread,
    }
    attach(app, source, "x", handlers[source, style], retry=AT_ONCE)
    await put(mq, source, "x", "ack", "nack", "reject")
    async with app:
        await eventually(lambda: nothing_left(mq, source))
        values = await measured(metrics)
    assert outcomes(values) == {"acked": 2, "retried": 1, "failed": 1}
    assert values["rowmq_handler_failures_total", "x", "x"] == 0


@on_one
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("policy", [AckPolicy.ACK_FIRST, AckPolicy.ACK, AckPolicy.REJECT_ON_ERROR])
async def test_what_a_policy_makes_of_a_failure_is_counted(
    mq: Any, database: Database, source: str, policy: AckPolicy
) -> None:
    app, metrics = new_app(database), Metrics(figures=False)
    app.observe(metrics)

    def fail(_: Any) -> None:
        raise ValueError

    attach(app, source, "x", fail, ack_policy=policy)
    await put(mq, source, "x", 1)
    async with app:
        await eventually(lambda: failed_once(metrics))
        await eventually(lambda: nothing_left(mq, source))
        values = await measured(metrics)
    rejected = policy is AckPolicy.REJECT_ON_ERROR
    assert outcomes(values) == {"failed" if rejected else "acked": 1}


async def failed_once(metrics: Metrics) -> bool:
    return (await measured(metrics)).get(("rowmq_handler_failures_total", "x", "x")) == 1


@on_one
async def test_what_fails_among_dead_letters_is_dropped(mq: Any, database: Database) -> None:
    app, metrics = new_app(database), Metrics(figures=False)
    app.observe(metrics)

    def fail(_: Any) -> None:
        raise ValueError

    retry = rowmq.Constant(interval=0, max_attempts=2)
    attach(app, "topic", "x_dlq", fail, retry=retry)
    await mq.publish("x_dlq", 1)
    async with app:
        await eventually(lambda: not_lagging(mq))
        values = await measured(metrics)
    assert outcomes(values, "x_dlq") == {"retried": 1, "dropped": 1}


async def not_lagging(mq: Any) -> bool:
    rows = await mq.lag("x_dlq", "g")
    return bool(rows) and all(row.lag == 0 for row in rows)


@on_two
@pytest.mark.parametrize("source", SOURCES)
async def test_what_no_handler_was_given_is_counted_apart(
    mq: Any, database: Database, source: str
) -> None:
    app, metrics = new_app(database), Metrics(figures=False)
    app.observe(metrics)

    async def work(number: int) -> None:
        """It is never called."""

    attach(app, source, "x", work)
    await put(mq, source, "x", "no number")
    async with app:
        await eventually(lambda: is_outcome(mq, source, "dead"))
        await eventually(lambda: given_up(metrics))
        values = await measured(metrics)
    assert outcomes(values) == {}


async def is_outcome(mq: Any, source: str, wanted: str) -> bool:
    return await outcome(mq, source, "x") == wanted


async def given_up(metrics: Metrics) -> bool:
    return (await measured(metrics))["rowmq_given_up_total", "x", "x"] == 1


@on_one
async def test_what_was_lost_is_not_counted_as_done(mq: Any, database: Database) -> None:
    """Its lock is taken away while the handler is at work."""
    app, metrics = new_app(database), Metrics(figures=False)
    app.observe(metrics)
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def work(_: Any) -> None:
        begun.set()
        await go_on.wait()

    attach(app, "queue", "x", work)
    job = await mq.queue("x").put(1, key="k")
    async with app:
        await begun.wait()
        values = await measured(metrics)
        assert values["rowmq_handlers_running", "x", "x"] == 1
        assert values["rowmq_job_locks",] == 1
        assert await mq.queue("x").drop("k")
        go_on.set()
        await eventually(lambda: lost_one(metrics))
        values = await measured(metrics)
    assert job.id
    assert outcomes(values) == {"lost": 1}
    assert values["rowmq_settle_failures_total", "x", "x"] > 0


async def lost_one(metrics: Metrics) -> bool:
    return "lost" in outcomes(await measured(metrics))


@on_one
async def test_every_metric_is_told_by_a_worker(mq: Any, database: Database) -> None:
    """Of the catalogue, but for what belongs to a parent of several processes."""
    app, metrics = new_app(database), Metrics()
    app.observe(metrics)

    @app.cron("* * * * *")
    def tick() -> None:
        """It need not come."""

    attach(app, "queue", "q", nothing)
    attach(app, "topic", "t", nothing)
    await put(mq, "queue", "q", "a")
    await put(mq, "topic", "t", "a")
    async with app:
        await app.mq.cron.install_periodic("beat", period=1, queue="q", payload="b")
        await eventually(lambda: fired(metrics))
        told = {family.name: family for family in await asyncio.to_thread(metrics.families)}
    known = {metric.name: metric for metric in catalogue.EVERYTHING}
    del known["rowmq_worker_restarts_total"]
    assert set(told) == set(known)
    for name, family in told.items():
        assert family.labels == known[name].labels
    assert metrics.text().count(b"# HELP") < len(known), "a worker that has ended tells less"


async def fired(metrics: Metrics) -> bool:
    values = await measured(metrics)
    return values.get(("rowmq_schedule_fires_total", "beat"), 0) > 0


@on_one
async def test_an_app_that_runs_again_counts_on(mq: Any, database: Database) -> None:
    app, metrics = new_app(database), Metrics(figures=False)
    app.observe(metrics)
    attach(app, "queue", "x", nothing)
    for number in (1, 2):
        await put(mq, "queue", "x", number)
        async with app:
            await eventually(lambda: nothing_left(mq, "queue"))
    assert outcomes(await measured(metrics)) == {"acked": 2}


@on_one
async def test_a_sample_of_ten_thousand_topics_has_an_end(mq: Any, database: Database) -> None:
    """However many there are in the database, and each with its group."""
    metrics = Metrics(values_max=5)
    app = new_app(database)
    app.observe(metrics)
    for number in range(20):
        await mq.create_group(f"topic-{number}", "g")
        await mq.publish(f"topic-{number}", 1)
    for _ in range(3):
        await mq.publish("topic-19", 1)
    async with app:
        values = await measured(metrics)
    lag = {name[1:]: value for name, value in values.items() if name[0] == "rowmq_group_lag"}
    assert len(lag) == 6
    assert sum(lag.values()) == 23
    assert lag["topic-19", "g"] == 4, "the busiest has a series of its own"
