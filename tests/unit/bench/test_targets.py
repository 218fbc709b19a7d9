"""What is to hold is judged by the figures of one run, and by nothing that was not measured."""

import pytest

from rowmq.bench.benchmark import scenarios_of
from rowmq.bench.results import Line, Verdict
from rowmq.bench.scenarios.peers import PEERS
from rowmq.bench.scenarios.plan import Plan
from rowmq.bench.targets import verdicts
from tests.unit.bench.measured import line, results


def verdict_on(target: str, *lines: Line) -> Verdict:
    (found,) = [one for one in verdicts(results(*lines)) if one.target == target]
    return found


@pytest.mark.parametrize(("theirs", "holds"), [(49.0, True), (50.0, True), (51.0, False)])
def test_a_ratio_holds_from_its_limit_on(theirs: float, holds: bool) -> None:
    found = verdict_on(
        "claim and ack to pgqueuer, one process",
        line("rowmq", "batches of 1,000", rate=100.0),
        line("pgqueuer", "batches of 1,000", rate=theirs),
    )
    assert found.holds is holds
    assert found.measured == pytest.approx(100 / theirs)
    assert found.wanted == "at least 2x"


@pytest.mark.parametrize(("written", "holds"), [(399.0, True), (400.0, True), (401.0, False)])
def test_a_cost_holds_up_to_its_limit(written: float, holds: bool) -> None:
    found = verdict_on(
        "WAL of a claim and an ack, batches of 100",
        line("rowmq", "batches of 100", rate=1.0, log_bytes=written),
    )
    assert found.holds is holds
    assert found.wanted == "at most 400 bytes"


def test_the_quickest_way_of_each_counts() -> None:
    found = verdict_on(
        "claim and ack to pgmq's read and archive",
        line("rowmq", "batches of 100", rate=10.0),
        line("rowmq", "batches of 1,000", rate=30.0),
        line("pgmq", "batches of 100", rate=20.0),
        line("pgmq", "batches of 1,000", rate=15.0),
    )
    assert found.measured == pytest.approx(1.5)


def test_who_keeps_what_is_finished_is_compared_with_who_keeps_it() -> None:
    lines = [
        line("rowmq", "batches of 1,000", database="mariadb", rate=30.0),
        line("rowmq", "batches of 1,000, no archive", database="mariadb", rate=90.0),
        line("sqlbroker", "batches of 1,000", database="mariadb", rate=10.0),
        line("sqlbroker", "batches of 1,000, no archive", database="mariadb", rate=15.0),
    ]
    kept = verdict_on("claim and ack to faststream-sqlbroker", *lines)
    assert kept.measured == pytest.approx(3.0)
    unkept = verdict_on("claim and ack to faststream-sqlbroker, no archive", *lines)
    assert unkept.measured == pytest.approx(6.0)


def test_three_groups_are_compared_in_time() -> None:
    found = verdict_on(
        "three groups to one group, in time",
        line("rowmq", "1 subscriber, 1 group", scenario="topics-sharing", rate=100.0),
        line("rowmq", "1 subscriber, 3 groups", scenario="topics-sharing", rate=120.0),
    )
    assert found.measured == pytest.approx(2.5)
    assert found.holds


def test_a_way_that_failed_might_have_been_the_quickest() -> None:
    found = verdict_on(
        "claim and ack to pgmq's read and archive",
        line("rowmq", "batches of 1,000", rate=30.0),
        line("pgmq", "batches of 100", rate=15.0),
        line("pgmq", "batches of 1,000", error="it was not to be had"),
    )
    assert (found.measured, found.holds) == (None, None)


def test_what_was_not_measured_neither_holds_nor_misses() -> None:
    alone = line("rowmq", "batches of 1,000", rate=100.0)
    failed = line("pgqueuer", "batches of 1,000", error="it was not to be had")
    for found in verdicts(results(alone, failed)):
        assert (found.measured, found.holds) == (None, None)


def test_databases_that_were_not_measured_are_not_judged() -> None:
    found = list(verdicts(results(line("rowmq", database="sqlite", rate=1.0))))
    assert found
    assert {one.database for one in found} == {"sqlite"}


def test_every_target_is_about_what_a_run_measures() -> None:
    """A variant that is renamed would leave its target without a figure."""
    peers = tuple(peer.name for peer in PEERS)
    lines = [
        line(
            entry.subject,
            entry.variant,
            scenario=scenario.name,
            database=database,
            rate=1.0,
            log_bytes=1.0,
            p50_ms=1.0,
            p99_ms=1.0,
        )
        for database in ("postgresql", "mariadb", "mysql", "sqlite")
        for scenario in scenarios_of(Plan(database=database, peers=peers, connections_max=2_000))
        for entry in scenario.entries
    ]
    unknown = [one.target for one in verdicts(results(*lines)) if one.measured is None]
    assert unknown == []
