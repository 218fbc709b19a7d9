"""Commands about tokens and the audit trail, on SQLite."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import rowmq
from rowmq.cli.audit import ACTIONS
from rowmq.web.site import MODULES
from tests.unit.cli.running import answer, invoke, json_of, url_of


@pytest.fixture
def url(tmp_path: Path) -> str:
    return url_of(tmp_path)


@pytest.fixture
def mq(url: str) -> Iterator[rowmq.RowMQ]:
    with rowmq.connect(url) as client:
        yield client


# --- tokens ---------------------------------------------------------------------------------------


def test_the_first_token_is_told_to_close_the_door_and_to_leave_nobody_in_charge(url: str) -> None:
    first = invoke(url, "tokens", "create", "shop", "--role", "produce")
    assert first.stdout.startswith("rowmq_")
    assert len(first.stdout.splitlines()) == 1
    assert "from now on" in first.stderr
    assert "rowmq tokens create NAME --role admin makes one" in first.stderr
    second = invoke(url, "tokens", "create", "search")
    assert second.stderr == "this is shown once: keep it where secrets are kept\n"


def test_a_first_token_for_admin_leaves_somebody_in_charge(url: str) -> None:
    said = invoke(url, "tokens", "create", "ann", "--role", "admin").stderr
    assert "from now on" in said
    assert "admin" not in said


def test_what_the_first_token_changes_is_no_part_of_the_document(url: str) -> None:
    result = invoke(url, "tokens", "create", "shop", "--json")
    assert json.loads(result.stdout).keys() == {"token", "secret", "roles", "topics", "queues"}
    assert "from now on" in result.stderr


def test_a_token_that_was_misspelt_is_answered_with_one(url: str) -> None:
    answer(url, "tokens", "create", "shop")
    result = invoke(url, "tokens", "revoke", "shpo", "--yes")
    assert (result.exit_code, json_of(url, "tokens")[0]["live"]) == (3, True)
    assert "did you mean 'shop'?" in result.stderr


# --- the audit trail ------------------------------------------------------------------------------


def test_the_actions_that_are_known_are_those_that_are_written() -> None:
    routed = {route.action for module in MODULES for route in module.ROUTES} - {None, ""}
    assert set(ACTIONS) == routed | {"audit.left_out", "audit.prune"}


def test_an_action_that_there_is_not_is_refused_with_those_that_there_are(url: str) -> None:
    answer(url, "tokens", "create", "ann")
    result = invoke(url, "audit", "ls", "--action", "topic.seek")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "there is no action 'topic.seek'. Did you mean 'group.seek'?" in result.stderr
    assert all(action in result.stderr for action in ACTIONS)


def test_an_action_of_somebody_elses_is_known_once_it_was_recorded(
    url: str, mq: rowmq.RowMQ
) -> None:
    id = mq.access.record("shop.closed", who="ann")
    assert json_of(url, "audit", "ls", "--action", "shop.closed")[0]["id"] == id
    assert json_of(url, "audit", "ls", "--action", "shop.closed", "--before", str(id)) == []


@pytest.mark.parametrize("chosen", [["--action", "group.seek"], ["--who", "bob"], ["--before=1"]])
def test_a_trail_without_such_entries_is_not_called_empty(url: str, chosen: list[str]) -> None:
    answer(url, "migrate")
    assert invoke(url, "audit").stderr == "nothing was done yet\n"
    answer(url, "tokens", "create", "ann")
    assert invoke(url, "audit", "ls", *chosen).stderr == "no entry is like that\n"


def test_the_example_of_the_help_can_match(url: str, mq: rowmq.RowMQ) -> None:
    mq.access.record("group.seek", who="ann")
    (example,) = [
        line.split() for line in answer(None, "audit", "--help").splitlines() if "--who" in line
    ]
    assert len(json_of(url, *example[1:])) == 1
