"""Grafana's file asks for metrics that there are, by labels that they have; so does the page."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from rowmq.telemetry import catalogue
from tests.unit.telemetry.expressions import EXPOSED, NAME, check

DOCS = Path(__file__).parents[3] / "docs"
FILE = DOCS / "assets" / "grafana.json"
PAGE = (DOCS / "observability.md").read_text()

ALERT = re.compile(r"^ +expr: (.+)$", re.MULTILINE)
ROW = re.compile(r"^\| (`rowmq_.+?) \|", re.MULTILINE)


def dashboard() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(FILE.read_text())
    return loaded


def targets() -> list[Any]:
    return [
        pytest.param(target["expr"], target["legendFormat"], id=f"{panel['title']}-{number}")
        for panel in dashboard()["panels"]
        for number, target in enumerate(panel.get("targets", ()))
    ]


@pytest.mark.parametrize(("expression", "legend"), targets())
def test_a_panel_asks_for_what_there_is(expression: str, legend: str) -> None:
    check(expression, legend)


@pytest.mark.parametrize("expression", ALERT.findall(PAGE))
def test_an_alert_of_the_page_asks_for_what_there_is(expression: str) -> None:
    check(expression)


def test_the_page_names_every_metric_and_no_other() -> None:
    named = [name for row in ROW.findall(PAGE) for name in NAME.findall(row)]
    assert sorted(named) == sorted(metric.name for metric in catalogue.EVERYTHING)


def test_its_variables_are_labels_that_there_are() -> None:
    for variable in dashboard()["templating"]["list"]:
        if variable["type"] == "query":
            found = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["definition"])
            assert found is not None
            assert found[2] in EXPOSED[found[1]].labels


def test_it_shows_every_metric_that_matters() -> None:
    """All but those that others are told by, or that are there to understand another."""
    shown = set(NAME.findall(FILE.read_text()))
    metrics = {metric.name for metric in catalogue.EVERYTHING}
    left_out = metrics - {EXPOSED[name].name for name in shown}
    assert left_out == {
        "rowmq_group_capped",
        "rowmq_pool_waits_total",
        "rowmq_queue_capped",
        "rowmq_queue_locks",
        "rowmq_topic_capped",
        "rowmq_topic_messages",
        "rowmq_topic_partitions",
        "rowmq_worker_restarts_total",
    }


def test_panels_do_not_lie_upon_each_other() -> None:
    taken: set[tuple[int, int]] = set()
    ids = [panel["id"] for panel in dashboard()["panels"]]
    assert len(set(ids)) == len(ids)
    for panel in dashboard()["panels"]:
        place = panel["gridPos"]
        cells = {
            (place["x"] + across, place["y"] + down)
            for across in range(place["w"])
            for down in range(place["h"])
        }
        assert not cells & taken
        assert place["x"] + place["w"] <= 24
        taken |= cells
