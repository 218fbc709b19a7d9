"""Plots are SVG that any page can show, in light and in dark."""

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from rowmq.bench.plots import draw
from tests.unit.bench.measured import line, results

# What is parsed here was drawn here.
# ruff: noqa: S314

SVG = "{http://www.w3.org/2000/svg}"


def texts(path: Path) -> list[str]:
    return [element.text or "" for element in ET.parse(path).iter(f"{SVG}text")]


def test_a_scenario_is_drawn_for_both_grounds(tmp_path: Path) -> None:
    found = results(
        line("rowmq", "batches of 1,000", rate=40_000.0, reference=True),
        line("pgqueuer", "", rate=10_000.0),
    )
    paths = list(draw(found, tmp_path / "plots"))
    assert [path.name for path in paths] == [
        "postgresql-queues-one-light.svg",
        "postgresql-queues-one-dark.svg",
    ]
    light, dark = paths
    assert light.read_text() != dark.read_text()
    for path in paths:
        told = texts(path)
        assert "PostgreSQL: about queues-one" in told
        assert "RowMQ, batches of 1,000" in told
        assert {"40,000", "10,000", "a second"} <= set(told)


def test_bars_are_as_long_as_what_they_stand_for(tmp_path: Path) -> None:
    found = results(line("rowmq", "a", rate=40.0), line("raw", "b", rate=10.0))
    path, _ = draw(found, tmp_path)
    ours, limit = ET.parse(path).iter(f"{SVG}rect")
    assert (ours.get("class"), limit.get("class")) == ("ours", "limit")
    ratio = float(ours.get("width", "0")) / float(limit.get("width", "1"))
    assert ratio == pytest.approx(4.0, rel=0.01)


def test_windows_are_lines_one_after_the_other(tmp_path: Path) -> None:
    found = results(
        line("rowmq", "no snapshot held", scenario="growth-snapshot", rate=5.0, windows=(6.0, 4.0)),
        line("plain", "a snapshot held", scenario="growth-snapshot", rate=2.0, windows=(3.0, 1.0)),
    )
    path, _ = draw(found, tmp_path)
    kinds = [element.get("class") for element in ET.parse(path).iter(f"{SVG}path")]
    assert kinds == ["line ours", "line theirs held"]


def test_what_failed_is_not_drawn_and_words_are_no_markup(tmp_path: Path) -> None:
    found = results(line("rowmq", "<b> & co", rate=1.0), line("huey", "", error="could not be had"))
    path, _ = draw(found, tmp_path)
    told = texts(path)
    assert "RowMQ, <b> & co" in told
    assert not any("huey" in text for text in told)
