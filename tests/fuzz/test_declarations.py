"""What is made before anything is connected to, given anything: strategies, apps and handlers, and
options of Spark's. It is made, or refused in a line.
"""

import inspect
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rowmq
from rowmq.errors import RowMQError
from rowmq.quoting import visible
from rowmq.spark.options import JOBS, READING, Given, jobs_options, topics_options
from tests.fuzz.effort import effort
from tests.fuzz.playing import MESSAGE_CHARS
from tests.fuzz.values import CRONS, HOSTILE, TZS, names, texts

STRATEGIES: tuple[Any, ...] = (
    rowmq.NoRetry,
    rowmq.Constant,
    rowmq.Linear,
    rowmq.ExponentialBackoff,
)
NUMBERS = st.one_of(
    st.sampled_from([0, 1, 1.0, 2, 0.5, 1e-9, 1e9, 3e9, 2**31, 1e6]),
    st.floats(),
    st.integers(),
    st.none(),
    st.timedeltas(),
    HOSTILE,
)
ATTEMPTS = st.sampled_from([1, 2, 3, 10, 1_000, 2**31 - 1])


def refused(error: RowMQError) -> None:
    """An error says in a line what was wrong."""
    said = str(error)
    least, most = MESSAGE_CHARS
    assert said == visible(said)
    assert least <= len(said) <= most, said


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_strategy_gives_a_time_or_is_refused(strategy: Any) -> None:
    options = [name for name in inspect.signature(strategy).parameters if name != "args"]

    @effort(60)
    @given(st.fixed_dictionaries({}, optional=dict.fromkeys(options, NUMBERS)), ATTEMPTS)
    def check(chosen: dict[str, Any], attempt: int) -> None:
        if strategy is rowmq.Constant:
            chosen.setdefault("interval", 1)
        try:
            delay = strategy(**chosen).delay(attempt)
        except RowMQError as error:
            refused(error)
            return
        assert delay is None or (math.isfinite(delay) and delay >= 0)

    check()


async def handle(payload: Any) -> None:
    """A handler."""


DECORATORS: dict[str, dict[str, Any]] = {
    "subscriber": {"topic": names, "group": names},
    "worker": {"queue": names},
    "cron": {"cron": st.sampled_from(CRONS), "tz": st.sampled_from(TZS)},
}
"""What handlers are declared with, and what they need."""


@pytest.mark.parametrize("kind", DECORATORS)
def test_a_handler_is_declared_or_refused(kind: str) -> None:
    declare = getattr(rowmq.App, kind)
    options = [name for name in inspect.signature(declare).parameters if name != "self"]

    @effort(80)
    @given(st.fixed_dictionaries(DECORATORS[kind]), st.sampled_from(options), HOSTILE)
    def check(chosen: dict[str, Any], wrong: str, value: Any) -> None:
        app = rowmq.App("sqlite://")
        try:
            getattr(app, kind)(**(chosen | {wrong: value}))(handle)
        except RowMQError as error:
            refused(error)
            assert app.handlers == ()
            return
        assert len(app.handlers) == 1

    check()


@effort(60)
@given(HOSTILE | names, HOSTILE | names)
def test_an_app_is_made_or_refused(name: Any, seconds: Any) -> None:
    makers: list[Callable[[], Any]] = [
        lambda: rowmq.App("sqlite://", name=name),
        lambda: rowmq.App("sqlite://", graceful_timeout=seconds),
        lambda: rowmq.App("sqlite://").configure(graceful_timeout=seconds),
        lambda: rowmq.App("sqlite://").on_startup(seconds),
        lambda: rowmq.App("sqlite://").middleware(seconds),
    ]
    for make in makers:
        try:
            make()
        except RowMQError as error:
            refused(error)


@effort(60)
@given(HOSTILE | st.floats(0, 1), HOSTILE | texts)
def test_progress_is_reported_or_refused(fraction: Any, note: Any) -> None:
    progress = rowmq.Progress(lambda: None)
    try:
        progress.report(fraction, note)
    except RowMQError as error:
        refused(error)
        return
    assert progress.fraction is None or 0 <= progress.fraction <= 1
    assert progress.note is None or len(progress.note.encode()) <= 4 * 200


OFTEN = ["true", "false", "earliest", "latest", "-1", "0", "1", "10k", "5s", "2026-01-01T00:00:00Z",
         '{"t": {"k": 1}}', '{"t": 1}', "[1]", "t,u", ".*", "(", "(a+)+b", "1" * 400,
         "[" * 5_000, '{"t": {"k": ' + "9" * 400 + "}}"]  # fmt: skip


@effort(150)
@given(
    st.dictionaries(st.sampled_from(READING) | texts, st.sampled_from(OFTEN) | texts, max_size=4),
    st.booleans(),
)
def test_options_of_spark_are_understood_or_refused(options: dict[str, str], stream: bool) -> None:
    chosen = Given({"url": "sqlite:////no/such/file"} | options)
    try:
        if chosen.named(JOBS):
            jobs_options(chosen)
        else:
            topics_options(chosen, stream=stream)
    except RowMQError as error:
        refused(error)
