"""Scenarios are complete, and compare like with like."""

import pytest

from rowmq.bench.benchmark import is_chosen, names, scenarios_of
from rowmq.bench.scenarios.peers import PEERS
from rowmq.bench.scenarios.plan import Plan, Scenario

DATABASES = ["postgresql", "mariadb", "mysql", "sqlite"]
ALL_PEERS = tuple(peer.name for peer in PEERS)


def scenarios(database: str, **options: bool) -> list[Scenario]:
    return scenarios_of(Plan(database=database, peers=ALL_PEERS, **options))


@pytest.mark.parametrize("database", DATABASES)
@pytest.mark.parametrize("brief", [True, False])
def test_a_scenario_has_one_reference_and_tells_its_entries_apart(
    database: str, brief: bool
) -> None:
    for scenario in scenarios(database, brief=brief):
        known = [(entry.subject, entry.variant) for entry in scenario.entries]
        assert len(set(known)) == len(known), scenario.name
        assert sum(entry.reference for entry in scenario.entries) == 1, scenario.name


@pytest.mark.parametrize("database", DATABASES)
def test_what_is_filled_in_is_enough_for_what_is_handled(database: str) -> None:
    for scenario in scenarios(database):
        for entry in scenario.entries:
            if entry.fill is not None and entry.expected is not None:
                there = entry.fill.messages * entry.fill.groups + entry.fill.backlog
                assert there >= entry.expected, (scenario.name, entry.variant)


def test_peers_play_only_where_they_can() -> None:
    played = {
        database: {entry.subject for s in scenarios(database) for entry in s.entries}
        for database in DATABASES
    }
    assert "procrastinate" in played["postgresql"]
    assert "huey" in played["sqlite"]
    assert "procrastinate" not in played["sqlite"] | played["mariadb"]
    assert {"rowmq", "raw"} <= played["mysql"]


def test_backlogs_of_growth_leave_as_many_to_claim() -> None:
    (waiting,) = [s for s in scenarios("postgresql") if s.name == "growth-waiting"]
    assert {entry.expected for entry in waiting.entries} == {50_000}
    assert [entry.variant for entry in waiting.entries] == [
        "10,000 waiting",
        "100,000 waiting",
        "1,000,000 waiting",
        "5,000,000 waiting",
        "1,000,000 archived",
    ]


def test_no_more_workers_are_measured_than_a_server_has_connections_for() -> None:
    plan = Plan(database="postgresql", connections_max=100)
    (workers,) = [s for s in scenarios_of(plan) if s.name == "growth-workers"]
    assert [entry.variant for entry in workers.entries] == ["1 worker", "16 workers"]


def test_scenarios_are_listed_by_names_that_begin_with_their_family() -> None:
    families = {name.partition("-")[0] for name in names()}
    assert families == {"publish", "topics", "queues", "latency", "growth", "cost"}


def test_a_scenario_is_chosen_by_its_name_or_how_that_begins() -> None:
    assert [name for name in names() if is_chosen(name, ("publish-100",))] == ["publish-100"]
    assert [name for name in names() if is_chosen(name, ("publish-1", "cost"))] == [
        "publish-100",
        "publish-1000",
        "cost-idle",
    ]
    assert all(is_chosen(name, ()) for name in names())
