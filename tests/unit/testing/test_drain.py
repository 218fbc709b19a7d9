"""A drain runs an app's own handlers on all that is due, in order, and on nothing else."""

import asyncio
import contextvars
import logging
import threading
from datetime import UTC, datetime
from typing import Any

import pytest

import rowmq
from rowmq.errors import PayloadMismatch
from rowmq.testing import AsyncTestApp, Handled, TestApp

Payload = dict[str, Any]


def outcomes(handled: list[Handled]) -> list[tuple[str, str, int]]:
    return [(one.handler, one.outcome, one.attempt) for one in handled]


def shop() -> tuple[rowmq.App, list[Any]]:
    """An app whose handlers pass things on, and what they saw."""
    app, seen = rowmq.App("postgresql://nobody@nowhere.invalid/none"), []

    @app.subscriber("orders", group="billing")
    async def bill(order: Payload, mq: rowmq.AsyncRowMQ) -> None:
        seen.append(("bill", order["id"]))
        await mq.queue("emails").put(order)

    @app.subscriber("orders", group="search")
    def index(order: Payload, mq: rowmq.RowMQ) -> None:
        seen.append(("index", order["id"]))
        mq.publish("indexed", order, key=str(order["id"]))

    @app.worker("emails")
    def send(email: Payload) -> None:
        seen.append(("send", email["id"]))

    @app.subscriber("indexed", group="audit")
    async def audit(order: Payload) -> None:
        seen.append(("audit", order["id"]))

    return app, seen


def test_handlers_run_on_what_is_due_and_on_what_they_publish_and_put() -> None:
    app, seen = shop()
    with TestApp(app) as t:
        t.publish("orders", {"id": 1}, key="a")
        t.publish("orders", {"id": 2}, key="b")
        assert seen == []
        handled = t.drain()
        assert sorted(seen) == sorted(
            (what, number) for what in ("bill", "index", "send", "audit") for number in (1, 2)
        )
        assert all(one.outcome == "acked" and one.attempt == 1 for one in handled)
        assert len(handled) == 8
        assert t.drain() == []
        assert t.handled == handled


def test_the_same_names_do_the_same_in_async_tests() -> None:
    app, seen = shop()

    async def main() -> list[Handled]:
        async with AsyncTestApp(app) as t:
            await t.publish("orders", {"id": 1}, key="a")
            await t.queue("emails").put({"id": 9})
            handled = await t.drain()
            assert t.mq is app.mq
            t.assert_published("indexed", {"id": 1}, key="1", count=1)
            return handled

    assert len(asyncio.run(main())) == 5
    assert ("send", 9) in seen


def test_what_is_handled_comes_in_the_same_order_every_time() -> None:
    orders = []
    for _ in range(2):
        app, seen = shop()
        with TestApp(app) as t:
            for number in range(5):
                t.publish("orders", {"id": number}, key=f"key-{number % 2}")
            t.drain()
        orders.append(seen)
    assert orders[0] == orders[1]


def test_messages_of_one_key_are_handled_in_their_order() -> None:
    app, seen = shop()
    with TestApp(app) as t:
        for number in range(5):
            t.publish("orders", {"id": number}, key="a")
        t.drain()
    assert [number for what, number in seen if what == "bill"] == [0, 1, 2, 3, 4]


def test_a_step_handles_one_and_says_when_there_is_none() -> None:
    app, seen = shop()
    with TestApp(app) as t:
        t.queue("emails").put_many([{"id": 1}, {"id": 2}])
        first = t.step()
        assert first is not None
        assert (first.handler, first.payload) == ("send", {"id": 1})
        assert seen == [("send", 1)]
        assert t.step() is not None
        assert t.step() is None


def test_nothing_runs_between_calls_and_no_thread_is_left() -> None:
    before = set(threading.enumerate())
    app, seen = shop()

    @app.cron("* * * * *")
    def often() -> None: ...

    with TestApp(app) as t:
        t.publish("orders", {"id": 1})
        t.drain()
        names = {thread.name for thread in set(threading.enumerate()) - before}
        assert not names & {"rowmq-heart", "rowmq-keeper", "rowmq-cron", "rowmq-watcher"}
        t.publish("orders", {"id": 2})
        assert ("bill", 2) not in seen
        assert not app.mq.cron.tending
        path = t.path
    assert not path.exists()
    assert not path.parent.exists()


# --- errors ---------------------------------------------------------------------------------------


def failing(**options: Any) -> rowmq.App:
    app = rowmq.App()

    @app.subscriber("orders", group="billing", **options)
    async def bill(order: Payload) -> None:
        raise ValueError(f"no {order['id']}")

    return app


def test_a_handlers_error_is_raised_with_a_note_of_what_it_handled() -> None:
    with TestApp(failing()) as t:
        t.publish("orders", {"id": 7}, key="ann", id="order-7")
        with pytest.raises(ValueError, match="no 7") as caught:
            t.drain()
        (note,) = caught.value.__notes__
        assert "handler 'bill', at attempt 1 of 'orders' order-7 (key 'ann')" in note
        assert outcomes(t.handled) == [("bill", "retried", 1)]


def test_without_raising_a_drain_goes_on_and_returns_the_errors() -> None:
    with TestApp(failing(retry=rowmq.Constant(interval=0, max_attempts=2))) as t:
        t.publish("orders", {"id": 7})
        handled = t.drain(raise_errors=False)
        assert outcomes(handled) == [("bill", "retried", 1), ("bill", "failed", 2)]
        assert [str(one.error) for one in handled] == ["no 7", "no 7"]
        t.assert_dead_lettered("orders", {"id": 7}, group="billing", error="ValueError: no 7")


def test_a_retry_with_a_delay_is_not_due_however_short_it_is() -> None:
    with TestApp(failing(retry=rowmq.Constant(interval=0.001, max_attempts=3))) as t:
        t.publish("orders", {"id": 7})
        for attempt in (1, 2, 3):
            assert [one.attempt for one in t.drain(raise_errors=False)] == [attempt]
            t.clock.move(seconds=0.001)


def test_what_a_policy_acks_is_acked_and_its_error_is_told() -> None:
    with TestApp(failing(ack_policy=rowmq.AckPolicy.ACK)) as t:
        t.publish("orders", {"id": 7})
        (handled,) = t.drain(raise_errors=False)
        assert (handled.outcome, str(handled.error)) == ("acked", "no 7")


def test_what_a_handler_settles_itself_is_told_as_it_did() -> None:
    app = rowmq.App()

    @app.worker("jobs", ack_policy=rowmq.AckPolicy.MANUAL)
    def work(how: str, job: rowmq.Job[str]) -> None:
        if how == "nack":
            job.nack(delay=5)
        else:
            getattr(job, how)()

    with TestApp(app) as t:
        t.queue("jobs").put_many(["ack", "nack", "reject"])
        assert {one.payload: one.outcome for one in t.drain()} == {
            "ack": "acked",
            "nack": "retried",
            "reject": "failed",
        }


def test_a_payload_that_does_not_parse_is_an_error_and_no_silence(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = rowmq.App()

    @app.subscriber("orders", group="billing")
    async def bill(order: Payload) -> None: ...

    @app.worker("emails")
    async def send(email: Payload) -> None: ...

    with caplog.at_level(logging.ERROR), TestApp(app) as t:
        t.publish("orders", [1])
        with pytest.raises(PayloadMismatch, match="Expected `object`"):
            t.drain()
        t.queue("emails").put([2])
        (handled,) = t.drain(raise_errors=False)
        assert (handled.handler, handled.outcome, handled.payload) == ("send", "failed", None)
        t.assert_dead_lettered("orders", [1])
        t.assert_failed("emails", [2])


def test_a_handler_that_feeds_itself_is_an_error_that_names_it() -> None:
    app = rowmq.App()

    @app.subscriber("ping", group="pong")
    async def ping(number: int, mq: rowmq.AsyncRowMQ) -> None:
        await mq.publish("ping", number + 1)

    with TestApp(app) as t:
        t.publish("ping", 1)
        with pytest.raises(AssertionError, match=r"max_time=1 s.*ping [\d,]+ times"):
            t.drain(max_time=1)


def test_a_handler_that_hangs_is_an_error_that_names_it() -> None:
    app = rowmq.App()

    @app.worker("jobs")
    async def hang(_: int) -> None:
        await asyncio.Event().wait()

    with TestApp(app) as t:
        t.queue("jobs").put(1)
        with pytest.raises(AssertionError, match="hang was at work"):
            t.drain(max_time=0.1)


def test_a_handlers_own_timeout_holds() -> None:
    app = rowmq.App()

    @app.worker("jobs", timeout=0.02)
    async def slow(_: int) -> None:
        await asyncio.Event().wait()

    with TestApp(app) as t:
        t.queue("jobs").put(1)
        with pytest.raises(TimeoutError, match=r"longer than its timeout of 0\.02 s"):
            t.drain()


# --- the app's own parts --------------------------------------------------------------------------


def test_middleware_and_hooks_are_the_apps_own() -> None:
    app, told = rowmq.App(), []

    @app.on_startup
    async def begin() -> None:
        await app.mq.publish("started", 1)

    @app.on_shutdown
    def end() -> None:
        told.append("end")

    @app.middleware
    async def around(context: rowmq.Context, call_next: Any) -> Any:
        told.append(f"before {context.handler}")
        return await call_next()

    @app.worker("jobs")
    def work(_: int) -> None:
        told.append("work")

    with TestApp(app) as t:
        t.assert_published("started", 1)
        t.queue("jobs").put(1)
        t.drain()
    assert told == ["before work", "work", "end"]


def test_an_error_of_a_startup_hook_is_raised_and_nothing_is_left() -> None:
    app = rowmq.App()

    @app.on_startup
    def begin() -> None:
        raise LookupError("no configuration")

    t = TestApp(app)
    with pytest.raises(LookupError, match="no configuration"):
        t.start()
    app._startup.clear()
    with t:  # it can be begun again
        assert t.drain() == []


def test_a_transactional_handler_writes_all_or_nothing() -> None:
    app = rowmq.App()

    @app.worker("jobs", transactional=True)
    def work(number: int, tx: rowmq.Transaction) -> None:
        tx.execute("INSERT INTO done VALUES (?)", (number,))
        tx.publish("done", number)
        if number < 0:
            raise ValueError("negative")

    with TestApp(app) as t:
        with t.mq.transaction() as tx:
            tx.execute("CREATE TABLE done (number integer)")
        t.queue("jobs").put_many([1, -1])
        handled = t.drain(raise_errors=False)
        assert [one.outcome for one in handled] == ["acked", "retried"]
        t.assert_published("done", 1, count=1)
        t.assert_published("done", count=1)
        with t.mq.transaction() as tx:
            assert tx.execute("SELECT number FROM done").rows == [(1,)]


def test_an_apps_prefix_is_kept() -> None:
    app = rowmq.App(prefix="shop_")
    with TestApp(app) as t, t.mq.transaction() as tx:
        rows = tx.execute("SELECT name FROM sqlite_master WHERE name = 'shop_jobs'").rows
        assert len(rows) == 1


def test_a_group_that_starts_with_the_latest_gets_what_is_published_in_the_test() -> None:
    app, seen = rowmq.App(), []

    @app.subscriber("orders", group="new", start="latest")
    async def take(order: int) -> None:
        seen.append(order)

    with TestApp(app) as t:
        t.publish("orders", 1)
        t.drain()
    assert seen == [1]


def test_handlers_see_the_context_variables_of_the_test() -> None:
    app, seen = rowmq.App(), []
    tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="none")

    @app.worker("jobs")
    def work(_: int) -> None:
        seen.append(tenant.get())

    with TestApp(app) as t:
        t.queue("jobs").put(1)
        token = tenant.set("acme")
        t.drain()
        tenant.reset(token)
    assert seen == ["acme"]


def test_what_a_test_has_claimed_itself_is_not_handled_until_its_lock_runs_out() -> None:
    app, seen = shop()
    with TestApp(app) as t:
        emails = t.queue("emails", lock_timeout=60)
        emails.put({"id": 1})
        job = emails.try_poll()
        assert job is not None
        assert t.drain() == []
        t.clock.move(minutes=2)
        t.drain()
        assert seen == [("send", 1)]


def test_a_lock_that_runs_out_under_a_handler_is_told_as_lost() -> None:
    app = rowmq.App()

    @app.worker("jobs", lock_timeout=60)
    async def slow(_: int) -> None:
        t.clock.move(minutes=2)
        stolen = t.mq.queue("jobs").try_poll()
        assert stolen is not None

    with TestApp(app) as t:
        t.queue("jobs").put(1)
        (handled,) = t.drain()
        assert handled.outcome == "lost"


# --- wrong use ------------------------------------------------------------------------------------


def test_wrong_use_is_told_what_to_do() -> None:
    app = rowmq.App()
    with pytest.raises(rowmq.errors.Closed, match=r"with TestApp\(app\) as t"):
        TestApp(app).drain()
    with pytest.raises(rowmq.errors.InvalidInput, match=r"rowmq\.App, not 'app'"):
        TestApp("app")  # type: ignore[arg-type]
    with TestApp(app), pytest.raises(rowmq.errors.ConfigurationError, match="running already"):
        TestApp(app).start()
    with pytest.raises(rowmq.errors.Closed):
        _ = app.mq


async def test_a_sync_test_app_in_async_code_says_which_one_to_use() -> None:
    with pytest.raises(rowmq.errors.ConfigurationError, match="AsyncTestApp"):
        TestApp(rowmq.App()).start()


async def test_an_async_test_app_that_was_not_begun_says_so() -> None:
    with pytest.raises(rowmq.errors.Closed, match="async with AsyncTestApp"):
        await AsyncTestApp(rowmq.App()).drain()


def test_a_cron_handler_is_given_the_time_it_was_to_run_at() -> None:
    app, seen = rowmq.App(), []

    @app.cron("30 2 * * *", tz="Europe/Paris")
    def nightly(at: datetime) -> None:
        seen.append(at)

    with TestApp(app, now=datetime(2030, 6, 1, tzinfo=UTC)) as t:
        t.run_for(days=1)
    assert seen == [datetime(2030, 6, 1, 0, 30, tzinfo=UTC)]
