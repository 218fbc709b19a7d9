"""Pages that renew themselves: what holds them up, what ends it, and what they cost."""

from collections.abc import Callable
from typing import Any

from playwright.sync_api import Page, Request, Route, expect

import rowmq
from tests.web.accessibility import faults
from tests.web.browser import Served
from tests.web.scenes import shop

LIVE_MS = 2_500
"""After which a section that is live has asked for itself again."""


def asked_within(page: Page, ms: int) -> list[str]:
    """The parts of the page that it asks for in a time."""
    asked: list[str] = []

    def hear(request: Request) -> None:
        if part := request.headers.get("x-fragment"):
            asked.append(part)

    page.on("request", hear)
    page.clock.run_for(ms)
    page.evaluate("fetch(location.origin + '/health')")  # what was asked before it is heard before
    page.remove_listener("request", hear)
    return asked


def renewed(page: Page) -> str:
    """The part that is asked for next, when its time has come."""
    with page.expect_response(lambda answer: "x-fragment" in answer.request.headers) as answered:
        page.clock.run_for(LIVE_MS)
    if answered.value.ok:  # nobody reads what else is answered, and it would never finish
        answered.value.finished()
    return answered.value.request.headers["x-fragment"]


# --- what ends it ---------------------------------------------------------------------------------


def test_who_is_signed_out_is_told_and_led_to_sign_in(
    page: Page, serve: Callable[..., Served], broker: rowmq.RowMQ
) -> None:
    shop(broker)
    path = ("queues", "emails")
    dashboard = serve(remember_tokens_seconds=0)
    broker.access.create_token("other", roles=["admin"])
    page.clock.install()
    page.goto(dashboard.url("login", next="/" + "/".join(path)))
    page.get_by_label("Token").fill(broker.access.create_token("ann", roles=["read"]))
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("button", name="Live: pause updating")).to_be_visible()
    renewed(page)
    expect(page.get_by_text("you are signed out")).to_be_hidden()
    broker.access.revoke_token("ann")
    renewed(page)
    expect(page.get_by_text("you are signed out")).to_be_visible()
    expect(page.get_by_role("button", name="Ended")).to_be_disabled()
    expect(page.get_by_role("button", name="Live")).to_have_count(0)
    assert faults(page) == []
    assert asked_within(page, 20 * LIVE_MS) == [], "nobody asks again"
    page.get_by_role("link", name="Sign in").click()
    page.get_by_label("Token").fill(broker.access.create_token("ann", roles=["read"]))
    page.get_by_role("button", name="Sign in").click()
    expect(page).to_have_url(dashboard.url(*path))


def test_who_may_not_see_it_any_more_is_told(
    page: Page, dashboard: Served, broker: rowmq.RowMQ
) -> None:
    shop(broker)
    page.clock.install()
    page.goto(dashboard.url("topics"))
    page.route("**/topics", lambda route: route.fulfill(status=403, body="no"))
    renewed(page)
    expect(page.get_by_text("may not see this any more")).to_be_visible()


def test_a_server_that_does_not_answer_is_asked_again(
    page: Page, dashboard: Served, broker: rowmq.RowMQ
) -> None:
    shop(broker)
    page.clock.install()
    page.goto(dashboard.url("topics"))
    page.route("**/topics", lambda route: route.abort())
    page.clock.run_for(LIVE_MS)
    expect(page.get_by_text("the server does not answer")).to_be_visible()
    expect(page.get_by_role("button", name="Live")).to_be_visible()
    page.unroute("**/topics")
    page.clock.run_for(2 * LIVE_MS)
    expect(page.get_by_text("the server does not answer")).to_be_hidden()


def test_what_was_paused_goes_on(page: Page, dashboard: Served, broker: rowmq.RowMQ) -> None:
    broker.queue("q").put(1)
    page.clock.install()
    page.goto(dashboard.url("queues"))
    page.get_by_role("button", name="Live: pause updating").click()
    assert asked_within(page, 4 * LIVE_MS) == []
    page.goto(dashboard.url("queues", "q"))
    expect(page.get_by_role("button", name="Paused: go on updating")).to_be_visible()
    second = broker.queue("q").put(2)
    page.get_by_role("button", name="Paused: go on updating").click()
    assert renewed(page) == "rows"
    expect(page.get_by_role("link", name=str(second.id), exact=True)).to_be_visible()


# --- what holds it up -----------------------------------------------------------------------------


def point_at(page: Page, name: str, kind: str) -> None:
    """A pointer does something at the chart of the backlog."""
    box = page.locator(".plot").nth(2).locator("svg").bounding_box()
    assert box is not None
    where = {"clientX": box["x"] + box["width"] - 1, "clientY": box["y"] + 10}
    event: dict[str, Any] = {"bubbles": True, "pointerType": kind, **where}
    page.locator(".plot").nth(2).dispatch_event(name, event)


def test_a_tap_on_a_chart_does_not_stop_it_from_being_renewed(
    page: Page, dashboard: Served, broker: rowmq.RowMQ
) -> None:
    shop(broker)
    page.clock.install()
    page.goto(dashboard.url())
    renewed(page)
    readout = page.locator(".plot .readout").nth(2)
    for last in ("pointerup", "pointercancel"):
        point_at(page, "pointerdown", "touch")
        point_at(page, "pointermove", "touch")
        expect(readout).to_be_visible()
        assert asked_within(page, 3 * LIVE_MS) == [], "while a finger is on it"
        point_at(page, last, "touch")
        expect(readout).to_be_visible()
        assert renewed(page) == "now"
        expect(readout).to_be_hidden()


def test_a_mouse_that_leaves_the_window_does_not_stop_a_chart_from_being_renewed(
    page: Page, dashboard: Served, broker: rowmq.RowMQ
) -> None:
    shop(broker)
    page.clock.install()
    page.goto(dashboard.url())
    renewed(page)
    readout = page.locator(".plot .readout").nth(2)
    leaves = (
        ("html", "pointerleave", {"pointerType": "mouse"}),
        ("body", "pointermove", {"pointerType": "mouse", "bubbles": True}),
    )
    for where, name, event in leaves:
        point_at(page, "pointermove", "mouse")
        expect(readout).to_be_visible()
        assert asked_within(page, 3 * LIVE_MS) == [], "while somebody reads it"
        page.locator(where).dispatch_event(name, event)
        expect(readout).to_be_hidden()
        assert renewed(page) == "now"
    point_at(page, "pointermove", "mouse")
    page.evaluate("window.dispatchEvent(new Event('blur'))")
    assert renewed(page) == "now"


# --- what it costs --------------------------------------------------------------------------------


def test_what_takes_long_is_renewed_seldom(
    page: Page, dashboard: Served, broker: rowmq.RowMQ
) -> None:
    shop(broker)
    page.clock.install()
    page.goto(dashboard.url("queues"))
    held: list[Route] = []
    page.route("**/queues", lambda route: held.append(route))  # noqa: PLW0108 - it is looked at
    with page.expect_request("**/queues"):
        page.clock.run_for(LIVE_MS)
    page.clock.run_for(3_000)
    with page.expect_response("**/queues") as answered:
        held.pop().continue_()
    answered.value.finished()
    assert asked_within(page, 15_000) == []
    page.unroute("**/queues")
    with page.expect_response("**/queues"):
        page.clock.run_for(20_000)
