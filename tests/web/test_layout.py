"""Pages fit: nothing is cut off, hidden beyond an edge, or out of line with what is beside it."""

from typing import Any

import pytest
from playwright.sync_api import FloatRect, Page, expect

import rowmq
from tests.web.browser import DESKTOP, PHONE, Served
from tests.web.scenes import shop

TIME_FIELD_PX = 215
"""What a time with its seconds, AM or PM and the button of its calendar take."""

SIZES = pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desk", "phone"])


def use(page: Page, size: dict[str, int]) -> None:
    page.set_viewport_size({"width": size["width"], "height": size["height"]})


def boxes(page: Page, selector: str) -> list[FloatRect]:
    """Where elements are; those that are not shown are left out."""
    found = [element.bounding_box() for element in page.locator(selector).all()]
    return [box for box in found if box is not None]


@SIZES
def test_all_tabs_are_in_the_window(
    page: Page, dashboard: Served, broker: rowmq.RowMQ, size: dict[str, int]
) -> None:
    shop(broker)
    use(page, size)
    for path in (("topics", "orders", "publish"), ("queues", "emails", "put")):
        page.goto(dashboard.url(*path))
        tabs = boxes(page, ".tabs a")
        assert len(tabs) >= 3
        assert all(tab["x"] >= 0 and tab["x"] + tab["width"] <= size["width"] for tab in tabs)
        expect(page.locator(".tabs [aria-current=page]")).to_be_in_viewport()


@SIZES
def test_fields_of_times_are_wide_enough_for_all_of_one(
    page: Page, dashboard: Served, broker: rowmq.RowMQ, size: dict[str, int]
) -> None:
    shop(broker)
    use(page, size)
    for path in (
        ("topics", "orders", "messages"),
        ("topics", "orders", "groups", "billing", "seek"),
        ("queues", "emails"),
        ("queues", "emails", "put"),
        ("jobs",),
    ):
        page.goto(dashboard.url(*path))
        widths = [box["width"] for box in boxes(page, "main input[type=datetime-local]")]
        assert widths, path
        assert min(widths) >= TIME_FIELD_PX, path


def test_labels_of_filters_stand_in_one_line(
    page: Page, dashboard: Served, broker: rowmq.RowMQ
) -> None:
    shop(broker)
    for size in (DESKTOP, PHONE):
        use(page, size)
        for path in (("topics", "orders", "messages"), ("queues", "emails")):
            page.goto(dashboard.url(*path))
            heights = {round(box["height"]) for box in boxes(page, ".filters label")}
            assert len(heights) == 1, path


def test_charts_beside_each_other_are_equally_high(
    page: Page, dashboard: Served, broker: rowmq.RowMQ
) -> None:
    shop(broker)
    for path in ((), ("topics", "orders"), ("topics", "orders", "groups", "billing")):
        page.goto(dashboard.url(*path))
        for what in (".card:has(> .chart)", ".plot svg"):
            rows: dict[int, set[tuple[int, int]]] = {}
            for box in boxes(page, f".charts {what}"):
                place = (round(box["y"]), round(box["height"]))
                rows.setdefault(round(box["y"] / 100), set()).add(place)
            assert rows, path
            assert all(len(places) == 1 for places in rows.values()), (path, what, rows)


def test_words_of_the_audit_trail_are_not_broken(
    page: Page, dashboard: Served, broker: rowmq.RowMQ
) -> None:
    who, remote = "administrator", "203.0.113.200"
    details = {"letters": ["7.1.1772357400000000"], "kind": "ValueError", "count": 1_000}
    for action in ("letters.redrive_edited", "queue.pause"):
        broker.access.record(
            action, who=who, target="settlements / bookkeepers", remote=remote, details=details
        )
    page.goto(dashboard.url("audit"))
    for column, text in (("who-did", who), ("from-where", remote)):
        name = page.locator(f"td.{column} .name").first
        expect(name).to_have_text(text)
        assert name.evaluate(
            "name => name.scrollHeight < 2 * parseFloat(getComputedStyle(name).lineHeight)"
        )
    assert boxes(page, "td.to-what")[0]["width"] >= 150


def test_the_lag_of_a_group_is_that_of_its_partitions(
    page: Page, dashboard: Served, broker: rowmq.RowMQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sampler has looked a moment ago, when there was less."""
    broker.create_group("orders", "billing")
    broker.publish("orders", 1, key="a")
    page.goto(dashboard.url("topics", "orders", "groups", "billing"))
    seen, sampler = dashboard.site.sampler._latest, dashboard.site.sampler
    assert seen is not None

    async def look(_: Any) -> Any:
        return seen

    monkeypatch.setattr(sampler, "look", look)
    broker.publish_many("orders", [rowmq.Message(payload=n, key=f"k{n}") for n in range(5)])
    page.reload()
    expect(page.locator(".stat-value").first).to_have_text("6")
    expect(page.locator("td.lag")).to_have_count(6)
    expect(page.get_by_text("Highest first: 1 behind.")).to_be_visible()
