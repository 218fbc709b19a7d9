"""What `rowmq bench` prints: ratios first, then figures, and what went wrong."""

import pytest

from rowmq.bench.results import Results, Verdict
from rowmq.cli.bench_tables import show
from tests.unit.bench.measured import line, results


def shown(found: Results, capsys: pytest.CaptureFixture[str]) -> str:
    show(found)
    return capsys.readouterr().out


def test_targets_stand_first_with_what_was_measured(capsys: pytest.CaptureFixture[str]) -> None:
    found = results(line("rowmq", "", rate=100.0))
    found.verdicts.append(
        Verdict(
            target="to a peer",
            database="postgresql",
            wanted="at least 2x",
            measured=1.5,
            unit="x",
            holds=False,
        )
    )
    text = shown(found, capsys)
    assert text.index("What is to hold") < text.index("about queues-one")
    assert "misses  1.50x     at least 2x  PostgreSQL  to a peer" in text


def test_a_ratio_says_how_many_times_as_fast_rowmq_is(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(
        results(
            line("rowmq", "batches of 100", rate=4_000.0, reference=True),
            line("pgqueuer", "", rate=1_000.0),
            line("raw", "", rate=8_000.0),
        ),
        capsys,
    )
    rows = {row.split("  ")[0]: row.split() for row in text.splitlines()}
    assert rows["pgqueuer"][1:5] == ["4.00x", "1,000", "900", "1,100"]
    assert rows["raw limit"][2] == "0.50x"
    assert "1.00x" in rows["RowMQ, batches of 100"]


def test_of_latencies_less_is_better(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(
        results(
            line("rowmq", "notified", scenario="latency-slow", p50_ms=2.0, reference=True),
            line("rowmq", "by polling", scenario="latency-slow", p50_ms=50.0),
        ),
        capsys,
    )
    (row,) = [row for row in text.splitlines() if "by polling" in row]
    assert "25.00x" in row


def test_what_failed_is_told_and_what_is_missing_too(capsys: pytest.CaptureFixture[str]) -> None:
    failed = line("huey", "", error="huey ended with 1:\nno module")
    whole = results(line("rowmq", "", rate=1.0, windows=(2.0, 1.0)), failed)
    text = shown(whole, capsys)
    assert "huey ended with 1:\nno module" in text
    assert "one window after the other: 2 1" in text
    assert "interrupted" not in text


def test_versions_and_settings_of_peers_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(
        results(
            line("pgqueuer", "slow", rate=1.0, version="1.6.0", settings={"batch": 1}),
            line("pgqueuer", "quick", rate=9.0, version="1.6.0", settings={"batch": 1_000}),
        ),
        capsys,
    )
    assert "pgqueuer 1.6.0: batch 1000" in text
    assert "batch 1\n" not in text
