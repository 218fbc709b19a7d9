"""Whoever measures nothing and traces nothing pays nothing."""

import subprocess
import sys
from typing import Any

import pytest

import rowmq
from rowmq.errors import MissingExtra
from rowmq.telemetry import Metrics, trace, untrace

SCRIPT = """
import sys, rowmq, rowmq.telemetry
with rowmq.connect("sqlite://") as mq:
    mq.publish("t", 1)
    assert not mq._driver.timers and mq._tracer is None
for name in ("opentelemetry", "prometheus_client", "rowmq.telemetry.spans"):
    assert name not in sys.modules, name
"""

CONFIGURED = """
import os, rowmq
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
with rowmq.connect("sqlite://") as mq:
    assert mq._tracer is None
trace.set_tracer_provider(TracerProvider())
with rowmq.connect("sqlite://") as mq:
    assert mq._tracer is not None
os.environ["OTEL_PYTHON_DISABLED_INSTRUMENTATIONS"] = "redis, rowmq"
with rowmq.connect("sqlite://") as mq:
    assert mq._tracer is None
"""


def run(script: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_nothing_is_imported_before_it_is_asked_for() -> None:
    run(SCRIPT)


def test_a_process_that_has_configured_opentelemetry_is_traced_unless_it_says_no() -> None:
    run(CONFIGURED)


def test_what_was_turned_off_leaves_nothing_behind() -> None:
    with rowmq.connect("sqlite://") as mq, mq.subscribe("t", group="g") as sub:
        parts: list[Any] = [
            mq._desk,
            mq._home,
            mq._combiner,
            mq._desk.puts,
            mq._desk.settles,
            sub._combiner,
        ]
        trace(mq)
        trace(mq)
        assert len(mq._driver.timers) == 1
        assert all(part.tracer is mq._tracer is not None for part in parts)
        untrace(mq)
        assert mq._driver.timers == []
        assert mq._tracer is None
        assert all(part.tracer is None for part in parts)
        untrace(mq)


def test_an_extra_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("rowmq.telemetry.exposition", "rowmq.telemetry.spans"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    app = rowmq.App("sqlite://")
    with pytest.raises(MissingExtra, match=r"pip install 'rowmq\[metrics\]'"):
        Metrics().text()
    with pytest.raises(MissingExtra, match=r"pip install 'rowmq\[otel\]'"):
        app.trace()
    with rowmq.connect("sqlite://") as mq:
        with pytest.raises(MissingExtra, match=r"pip install 'rowmq\[otel\]'"):
            trace(mq)
        mq.publish("t", 1)


def test_a_client_is_measured_once() -> None:
    metrics = Metrics()
    with rowmq.connect("sqlite://") as mq:
        metrics.observe(mq)
        metrics.observe(mq)
        assert len(mq._driver.timers) == 1
        mq.publish("t", 1)
        families = {family.name: family for family in metrics.families()}
        commits = next(
            sample
            for sample in families["rowmq_statement_seconds"].samples
            if sample.labels == ("commit",)
        )
        assert sum(commits.counts) >= 1
        assert families["rowmq_pool_size"].samples[0].value >= 1
