"""What is wrong with a handler, or an app, is told where it is declared."""

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

import rowmq
from rowmq import AckPolicy, App
from rowmq.errors import Closed, ConfigurationError, InvalidInput, InvalidOption, RowMQError
from rowmq.worker.handler import Pace, pace_of

URL = "sqlite://"


@dataclass
class Order:
    id: int


@dataclass
class Refund:
    id: int


async def handle(payload: Any) -> None: ...


def pace(**options: Any) -> Pace:
    usual: dict[str, Any] = {
        "concurrency": 10,
        "fetch_batch_size": None,
        "overfetch_factor": 1.5,
        "min_fetch_interval": 0,
        "max_fetch_interval": 0.1,
        "flush_interval": 0,
    }
    return pace_of(**(usual | options))


# --- pace ---------------------------------------------------------------------------------------


def test_as_much_is_fetched_as_can_be_done_and_half_as_much_ahead() -> None:
    usual = pace()
    assert (usual.fetch_batch_size, usual.buffer) == (10, 15)


@pytest.mark.parametrize(
    ("batch", "factor", "buffer"),
    [(1, 1, 1), (1, 1.01, 2), (10, 1, 10), (3, 1.5, 5), (7, 3, 21), (2, 0.5e1, 10)],
)
def test_the_buffer_is_the_batch_times_the_factor_rounded_up(
    batch: int, factor: float, buffer: int
) -> None:
    assert pace(fetch_batch_size=batch, overfetch_factor=factor).buffer == buffer


def test_times_may_be_timedeltas() -> None:
    given = pace(min_fetch_interval=timedelta(seconds=2), max_fetch_interval=timedelta(minutes=1))
    assert (given.min_fetch_interval, given.max_fetch_interval) == (2, 60)


@pytest.mark.parametrize(
    "wrong",
    [
        {"concurrency": 0},
        {"concurrency": 1.5},
        {"concurrency": True},
        {"fetch_batch_size": 0},
        {"fetch_batch_size": "10"},
        {"overfetch_factor": 0.9},
        {"overfetch_factor": math.inf},
        {"overfetch_factor": math.nan},
        {"overfetch_factor": True},
        {"overfetch_factor": "2"},
        {"min_fetch_interval": -1},
        {"max_fetch_interval": 0},
        {"flush_interval": -0.1},
        {"flush_interval": math.nan},
    ],
)
def test_a_pace_that_cannot_be_kept_is_refused(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(InvalidOption, match=name):
        pace(**wrong)
    with pytest.raises(InvalidOption, match=name):
        App(URL).worker("q", **wrong)(handle)
    with pytest.raises(InvalidOption, match=name):
        App(URL).subscriber("t", group="g", **wrong)(handle)


# --- handlers -----------------------------------------------------------------------------------

Declare = Callable[[App], Any]


@pytest.mark.parametrize(
    ("declare", "about"),
    [
        (lambda app: app.worker("q", timeout=0), "timeout"),
        (lambda app: app.worker("q", timeout=-1), "timeout"),
        (lambda app: app.worker("q", lock_timeout=0), "lock_timeout"),
        (lambda app: app.worker("q", max_deliveries=0), "max_deliveries"),
        (lambda app: app.worker("q", retry=3), "retry"),
        (lambda app: app.worker("q", ack_policy="ack"), "AckPolicy.ACK"),
        (lambda app: app.worker("q", transactional=1), "transactional"),
        (
            lambda app: app.worker("q", transactional=True, ack_policy=AckPolicy.ACK_FIRST),
            "ACK_FIRST",
        ),
        (lambda app: app.worker(""), "queue"),
        (lambda app: app.worker("q", name=""), "name"),
        (lambda app: app.subscriber("t", group=""), "group"),
        (lambda app: app.subscriber("", group="g"), "topic"),
        (lambda app: app.subscriber("t", group="g", start="now"), "start"),
        (lambda app: app.subscriber("t", group="g", visibility=0), "visibility"),
        (lambda app: app.subscriber("t", group="g", lease_duration=0), "lease_duration"),
        (lambda app: app.subscriber("t", group="g", strict="yes"), "strict"),
        (lambda app: app.subscriber("t", group="g", max_deliveries=0), "max_attempts|deliveries"),
        (lambda app: app.cron("every day"), "cron"),
        (lambda app: app.cron("* * * * *", tz="Nowhere/There"), "Nowhere"),
        (lambda app: app.cron("* * * * *", catch_up="some"), "catch_up"),
    ],
)
def test_a_wrong_option_is_refused_before_anything_runs(declare: Declare, about: str) -> None:
    app = App(URL)
    with pytest.raises((InvalidInput, InvalidOption), match=f"(?i){about}"):
        declare(app)(handle)
    assert app.handlers == ()


def test_a_decorator_gives_the_function_back() -> None:
    app = App(URL)
    assert app.worker("q")(handle) is handle
    assert app.subscriber("t", group="g", name="other")(handle) is handle
    assert [handler.name for handler in app.handlers] == ["handle", "other"]


def test_a_decorator_without_its_brackets_is_told_of() -> None:
    app = App(URL)
    with pytest.raises(RowMQError):
        app.worker(handle)  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="function"):
        app.worker("q")("not a function")  # type: ignore[type-var]


def test_two_handlers_of_one_name_are_refused() -> None:
    app = App(URL)
    app.worker("q")(handle)
    with pytest.raises(InvalidOption, match="name="):
        app.worker("other")(handle)


def test_two_handlers_of_one_queue_are_told_apart_by_their_classes() -> None:
    app = App(URL)

    @app.worker("money")
    async def order(order: Order) -> None: ...

    @app.worker("money")
    async def refund(refund: Refund) -> None: ...

    with pytest.raises(InvalidOption, match="take each other's"):
        app.worker("money", name="again")(order)
    with pytest.raises(InvalidOption, match="take each other's"):
        app.worker("money")(handle)
    assert [handler.name for handler in app.handlers] == ["order", "refund"]


@pytest.mark.parametrize("plain", [int, str, dict, list[int], Order | None, Any])
def test_plain_types_take_all_jobs_of_a_queue(plain: Any) -> None:
    async def handler(payload: Any) -> None: ...

    handler.__annotations__["payload"] = plain
    app = App(URL)
    app.worker("q")(handler)
    view = app.handlers[0].view
    assert view is not None
    assert view.kinds is None


def test_two_handlers_of_one_group_are_refused_and_of_two_groups_are_not() -> None:
    app = App(URL)
    app.subscriber("t", group="a")(handle)
    app.subscriber("t", group="b", name="other")(handle)
    with pytest.raises(InvalidOption, match="group"):
        app.subscriber("t", group="a", name="third")(handle)


def test_a_topic_and_a_queue_may_have_one_name() -> None:
    app = App(URL)
    app.subscriber("x", group="g")(handle)
    app.worker("x", name="other")(handle)
    assert [handler.source for handler in app.handlers] == ["x", "x"]


def test_a_cron_handler_has_a_queue_of_its_own() -> None:
    app = App(URL)

    @app.cron("0 2 * * *", tz="Europe/Paris")
    def nightly() -> None: ...

    (handler,) = app.handlers
    assert (handler.name, handler.source) == ("nightly", "cron.nightly")
    with pytest.raises(InvalidOption, match="each other's"):
        app.worker("cron.nightly")(handle)


# --- apps ---------------------------------------------------------------------------------------


def test_an_apps_options_are_those_of_connect() -> None:
    with pytest.raises(InvalidOption, match=r"'pool'.*pool_size"):
        App(URL, pool=5)
    with pytest.raises(InvalidOption, match="graceful_timeout"):
        App(URL, graceful_timeout=-1)
    with pytest.raises(InvalidOption, match="maintenance_interval"):
        App(URL, maintenance_interval="1 min")  # type: ignore[arg-type]
    with pytest.raises((InvalidOption, InvalidInput), match="name"):
        App(URL, name="")


def test_an_app_without_a_database_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROWMQ_URL", raising=False)
    with pytest.raises(ConfigurationError, match="ROWMQ_URL"):
        App().run()


async def test_the_environment_names_the_database(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("ROWMQ_URL", f"sqlite:///{tmp_path}/from_environment.db")
    async with App(maintenance_interval=0):
        pass
    assert (tmp_path / "from_environment.db").exists()


def test_what_does_not_run_has_no_client_and_is_not_healthy() -> None:
    app = App(URL)
    with pytest.raises(Closed, match="async with app"):
        _ = app.mq
    assert app.health() == {"healthy": False, "alive": True, "status": "stopped"}
    app.stop()  # which is nothing to complain of


def test_middleware_is_async() -> None:
    app = App(URL)
    with pytest.raises(InvalidOption, match="async def"):

        @app.middleware
        def wrong(context: rowmq.Context, call_next: Any) -> Any: ...


# --- which handlers -----------------------------------------------------------------------------


def chosen(app: App, **which: Any) -> list[str]:
    return [handler.name for handler in app.chosen(**which)]


@pytest.fixture
def mixed() -> App:
    app = App(URL)
    app.worker("emails", name="send")(handle)
    app.worker("images", name="resize")(handle)
    app.subscriber("emails", group="log", name="log")(handle)
    app.subscriber("orders", group="bill", name="bill")(handle)
    app.cron("0 * * * *", name="hourly")(handle)
    return app


def test_handlers_can_be_chosen(mixed: App) -> None:
    everything = ["send", "resize", "log", "bill", "hourly"]
    assert chosen(mixed) == everything
    assert chosen(mixed, queues=["emails"]) == ["send"]
    assert chosen(mixed, topics=["emails"]) == ["log"]
    assert chosen(mixed, queues=["images", "cron.hourly"], topics=["orders"]) == [
        "resize",
        "bill",
        "hourly",
    ]
    assert chosen(mixed, queues=[]) == []


def test_to_choose_what_there_is_not_is_refused(mixed: App) -> None:
    with pytest.raises(InvalidOption, match=r"queues orders.*cron\.hourly, emails, images"):
        mixed.chosen(queues=["orders"])
    with pytest.raises(InvalidOption, match=r"topics images.*emails, orders"):
        mixed.chosen(topics=["images"])


async def test_an_app_that_runs_takes_no_more_handlers(tmp_path: Any) -> None:
    app = App(f"sqlite:///{tmp_path}/a.db", maintenance_interval=0)
    async with app:
        with pytest.raises(ConfigurationError, match="running"):
            app.worker("late")(handle)
        with pytest.raises(ConfigurationError, match="running"):
            async with app:
                pass
        assert app.health()["status"] == "running"
    app.worker("later")(handle)


def test_progress_goes_from_0_to_1() -> None:
    told: list[None] = []
    progress = rowmq.Progress(lambda: told.append(None))
    progress.report(0)
    progress.report(0.25, "reading")
    assert (progress.fraction, progress.note) == (0.25, "reading")
    progress.report(note="x" * 1_000)
    assert progress.fraction == 0.25
    assert progress.note is not None
    assert len(progress.note) <= 200
    progress.report(1)
    assert len(told) == 4
    for wrong in (-0.1, 1.01, math.nan, True, "half"):
        with pytest.raises(InvalidOption, match="from 0 to 1"):
            progress.report(wrong)  # type: ignore[arg-type]
    assert progress.fraction == 1


def test_two_runs_one_after_the_other_in_two_loops(tmp_path: Any) -> None:
    app = App(f"sqlite:///{tmp_path}/a.db", maintenance_interval=0)

    async def once() -> str:
        async with app:
            return str(app.health()["status"])

    assert [asyncio.run(once()) for _ in range(2)] == ["running", "running"]


def test_the_schedules_of_an_app_with_a_name_are_its_own() -> None:
    names = []
    for app in (App(URL), App(URL, name="billing"), App(URL, name="shop")):

        @app.cron("@daily")
        def cleanup() -> None: ...

        (handler,) = app.handlers
        assert handler.timetable is not None
        names.append((handler.name, handler.timetable.name, handler.source))
    assert names == [
        ("cleanup", "cleanup", "cron.cleanup"),
        ("cleanup", "billing.cleanup", "cron.billing.cleanup"),
        ("cleanup", "shop.cleanup", "cron.shop.cleanup"),
    ]
