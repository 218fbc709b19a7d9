"""The pages of topics in a browser: looked at, and every action done."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from playwright.sync_api import Dialog, Page, expect

import rowmq
from tests.web.accessibility import faults
from tests.web.browser import DESKTOP, PHONE, Served, go
from tests.web.scenes import HOSTILE, HOSTILE_TOPIC, give_up, hostile, shop

on_a_server_too = pytest.mark.parametrize("database", ["sqlite", "postgres"], indirect=True)


def check(page: Page) -> None:
    """A page that was loaded is as it should be: light and dark, wide and on a phone."""
    found = []
    for size in (DESKTOP, PHONE):
        page.set_viewport_size({"width": size["width"], "height": size["height"]})
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            found += [f"{page.url} {scheme} {size['width']}: {one}" for one in faults(page)]
    assert found == []


def pages_of(dashboard: Served, topic: str) -> list[str]:
    """The pages that are there for anything."""
    of = dashboard.url
    return [
        of(),
        of("topics"),
        of("topics", topic),
        of("topics", topic, "messages"),
        of("topics", topic, "publish"),
        of("topics", topic, "settings"),
        of("topics", topic, "groups"),
        of("topics", topic, "letters"),
        of("letters"),
    ]


# --- every page -----------------------------------------------------------------------------------


def test_with_nothing_there_each_page_says_what_to_do(
    page: Page, dashboard: Served, broker: rowmq.RowMQ
) -> None:
    broker.configure_topic("orders", max_payload_bytes=2**20)
    says = ["Nothing is here yet", "no topics yet", "to this topic yet", "No message is kept"]
    says += ["Publish a message", "forever", "No group reads", "given up", "given up"]
    for url, text in zip(pages_of(dashboard, "orders"), says, strict=True):
        page.goto(url)
        assert text in page.inner_html("main"), url
        check(page)


@on_a_server_too
def test_each_page_shows_what_is_there(page: Page, dashboard: Served, broker: rowmq.RowMQ) -> None:
    shop(broker)
    of = dashboard.url
    where = {"key": "customer-1", "offset": 1}
    letter = next(one for one in broker.dead_letters("orders", group="billing"))
    path = ("topics", "orders", "letters", "of", letter.handle)
    more = [
        of("topics", "orders", "message", **where),
        of("topics", "orders", "groups", "billing"),
        of("topics", "orders", "groups", "billing", "seek", to="earliest"),
        of("topics", "orders", "letters", "redrive", all="yes"),
        of(*path),
        of(*path, "edit"),
    ]
    for url in pages_of(dashboard, "orders") + more:
        go(page, url)
        check(page)


def test_what_others_wrote_is_shown_as_text(
    page: Page, dashboard: Served, broker: rowmq.RowMQ
) -> None:
    dialogs: list[str] = []

    def dismiss(dialog: Dialog) -> None:
        dialogs.append(dialog.message)
        dialog.dismiss()

    page.on("dialog", dismiss)
    hostile(broker)
    of, topic = dashboard.url, HOSTILE_TOPIC
    letter = broker.dead_letters(topic)[0]
    path = ("topics", topic, "letters", "of", letter.handle)
    where = {"key": HOSTILE, "offset": 3}
    pages = [
        *pages_of(dashboard, topic),
        of("topics", topic, "message", **where),
        of("topics", topic, "publish", **where),
        of("topics", topic, "messages", key=HOSTILE),
        of("topics", topic, "groups", HOSTILE),
        of("topics", topic, "groups", HOSTILE, "seek", to="earliest", key=HOSTILE),
        of("topics", topic, "letters", group=HOSTILE, matching=f"{HOSTILE} <n>"),
        of("topics", topic, "letters", "purge", group=HOSTILE, all="yes"),
        of(*path),
        of(*path, "edit"),
        of("topics", "x" * 200, "groups", "y" * 200),
        of("topics", "x" * 200, "messages", key="z" * 255),
    ]
    for url in pages:
        go(page, url)
        body = page.text_content("body") or ""
        assert any(text in body for text in ("<b onmouseover", "<script>alert", "xxxxxx")), url
        assert page.locator("main script, main img, main b").count() == 0, url
        assert "&49%" not in body, url
        check(page)
    assert dialogs == []


# --- topics and messages --------------------------------------------------------------------------


@on_a_server_too
def test_a_message_is_published_and_shown(
    page: Page, dashboard: Served, broker: rowmq.RowMQ
) -> None:
    page.goto(dashboard.url("topics"))
    page.get_by_label("To the topic").fill("orders")
    page.get_by_role("button", name="Publish").click()
    page.get_by_label("Payload").fill('{"total": 12')
    page.get_by_role("button", name="Publish").click()
    expect(page.get_by_text("the payload is no JSON")).to_be_visible()
    page.get_by_label("Payload").fill('{"total": 12}')
    page.get_by_label("Key", exact=True).fill("customer-7")
    page.get_by_label("Headers").fill("source=web\nkind=a=b")
    page.get_by_role("button", name="Publish").click()
    expect(page.get_by_text("Published: offset 1, key customer-7")).to_be_visible()
    assert '"total": 12' in page.inner_text("pre.json")
    (message,) = broker.read("orders")
    assert message.payload == {"total": 12}
    assert message.headers == {"source": "web", "kind": "a=b"}
    page.get_by_role("link", name="Publish one like it").click()
    assert page.get_by_label("Headers").input_value() == "source=web\nkind=a=b"
    page.get_by_label("Written as").select_option("base64")
    page.get_by_label("Payload").fill("aGVsbG8=")
    page.get_by_role("button", name="Publish").click()
    expect(page.get_by_text("68 65 6c 6c 6f")).to_be_visible()
    assert broker.read("orders", key="customer-7")[-1].payload == b"hello"


def test_messages_are_found_by_key_offset_time_and_id(
    page: Page, dashboard: Served, broker: rowmq.RowMQ
) -> None:
    broker.publish_many(
        "orders",
        [rowmq.Message(payload=n, key=f"c-{n % 2}", id=f"id-{n}") for n in range(130)],
    )
    payloads = page.locator("table.messages .glimpse")
    page.goto(dashboard.url("topics", "orders", "messages"))
    assert payloads.count() == 50
    page.get_by_role("link", name="Older").click()
    page.get_by_role("link", name="Older").click()
    expect(payloads).to_have_count(30)
    page.get_by_role("link", name="Newer").click()
    expect(payloads).to_have_count(50)
    page.get_by_label("Key", exact=True).fill("c-1")
    page.get_by_label("From offset").fill("64")
    page.get_by_role("button", name="Find").click()
    expect(payloads).to_have_text(["127", "129"])
    page.get_by_label("From offset").fill("10")
    page.get_by_role("button", name="Find").click()
    expect(payloads.first).to_have_text("19")
    page.get_by_role("link", name="Later offsets").click()
    expect(payloads).to_have_text([str(n) for n in range(119, 130, 2)])
    expect(page.get_by_role("link", name="Later offsets")).to_have_count(0)
    page.get_by_role("link", name="Earlier offsets").click()
    expect(payloads.first).to_have_text("19")
    page.get_by_role("link", name="Earlier offsets").click()
    expect(payloads.first).to_have_text("1")
    expect(payloads).to_have_count(50)
    expect(page.get_by_role("link", name="Earlier offsets")).to_have_count(0)
    page.get_by_role("link", name="To the newest").click()
    expect(payloads.first).to_have_text("129")
    page.get_by_role("link", name="Clear").click()
    page.get_by_label("From offset").fill("64")
    page.get_by_role("button", name="Find").click()
    expect(page.get_by_text("offsets count within a key")).to_be_visible()
    page.get_by_role("link", name="Clear").click()
    page.get_by_label("Id", exact=True).fill("id-77")
    page.get_by_role("button", name="Find").click()
    expect(payloads).to_have_text(["77"])
    page.get_by_role("link", name="Clear").click()
    page.get_by_label("Published until (UTC)").fill("2020-01-01T00:00:00")
    page.get_by_role("button", name="Find").click()
    expect(page.get_by_text("No such message is there.")).to_be_visible()


@on_a_server_too
def test_settings_of_a_topic_are_changed(
    page: Page, dashboard: Served, broker: rowmq.RowMQ
) -> None:
    broker.publish("orders", 1)
    page.goto(dashboard.url("topics", "orders", "settings"))
    page.get_by_label("Messages are kept").fill("a week")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("is no duration")).to_be_visible()
    page.get_by_label("Messages are kept").fill("7d")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("Saved.")).to_be_visible()
    (info,) = broker.topics()
    assert info.retention == timedelta(days=7)


# --- groups ---------------------------------------------------------------------------------------


@on_a_server_too
def test_a_group_is_created_moved_and_dropped(
    page: Page, dashboard: Served, broker: rowmq.RowMQ
) -> None:
    broker.publish_many("orders", [rowmq.Message(payload=n, key=f"c-{n % 3}") for n in range(30)])
    page.goto(dashboard.url("topics", "orders", "groups"))
    page.get_by_label("Name").fill("billing")
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_role("heading", name="billing")).to_be_visible()
    assert "30" in page.inner_text(".stats")
    page.get_by_role("link", name="Seek").click()
    page.get_by_label("The end").check()
    page.get_by_role("button", name="Show what would happen").click()
    expect(page.locator(".effects")).to_contain_text("Skipped, never delivered")
    assert "30" in page.locator(".effects .problem").inner_text()
    assert broker.groups("orders")[0].lag == 30, "a preview does nothing"
    page.get_by_role("button", name="Move the group").click()
    expect(page.get_by_text("Moved to whatever is published next")).to_be_visible()
    assert broker.groups("orders")[0].lag == 0
    page.get_by_role("link", name="Seek").click()
    page.get_by_label("An offset").check()
    page.get_by_label("Offset that comes next").fill("4")
    page.get_by_label("Only the key").fill("c-1")
    page.get_by_role("button", name="Show what would happen").click()
    assert "7" in page.locator(".effects .warning").first.inner_text()
    page.get_by_role("button", name="Move the group").click()
    expect(page.get_by_text("Moved to offset 4")).to_be_visible()
    assert broker.groups("orders")[0].lag == 7
    page.get_by_text("Drop", exact=True).click()
    page.get_by_role("button", name="Drop the group").click()
    expect(page.get_by_text("Dropped.")).to_be_visible()
    assert broker.groups("orders") == []


def test_a_group_shows_who_is_behind_and_what_is_tried_again(
    page: Page, dashboard: Served, broker: rowmq.RowMQ
) -> None:
    shop(broker)
    page.goto(dashboard.url("topics", "orders", "groups", "billing"))
    stats = page.locator(".stats .stat")
    (lag,) = (one for one in broker.groups("orders") if one.name == "billing")
    expect(stats.filter(has_text="Lag")).to_contain_text(str(lag.lag))
    expect(stats.filter(has_text="Retrying")).to_contain_text("1")
    expect(stats.filter(has_text="Dead letters")).to_contain_text("7")
    label = page.locator("svg.columns").get_attribute("aria-label")
    assert str(label).startswith("Lag of the ")


# --- dead letters ---------------------------------------------------------------------------------


@on_a_server_too
def test_letters_are_given_back_and_purged(
    page: Page, dashboard: Served, broker: rowmq.RowMQ
) -> None:
    shop(broker)
    page.goto(dashboard.url("letters"))
    page.get_by_role("link", name="orders").first.click()
    expect(page.get_by_text("ValueError: order <n> has no total")).to_be_visible()
    page.get_by_label("Choose letter 2", exact=True).check()
    page.get_by_label("Choose letter 3", exact=True).check()
    expect(page.locator("[data-selected]")).to_have_text("2")
    page.get_by_role("button", name="Give back…").click()
    assert "2" in page.locator(".effects .stat").first.inner_text()
    assert len(broker.dead_letters("orders")) == 9, "a preview does nothing"
    page.get_by_role("button", name="Give back").click()
    expect(page.get_by_text("Gave back 2 letters.")).to_be_visible()
    assert len(broker.dead_letters("orders")) == 7
    page.get_by_role("row").filter(has_text="order <n>").get_by_role("link", name="Purge").click()
    page.get_by_role("button", name="Purge for good").click()
    expect(page.get_by_text("Purged")).to_be_visible()
    left = {letter.error for letter in broker.dead_letters("orders")}
    assert left
    assert left <= {"KeyError: 'city'", "rejected without an error"}


@on_a_server_too
def test_a_letter_is_edited_and_given_back(
    page: Page, dashboard: Served, broker: rowmq.RowMQ
) -> None:
    broker.publish("orders", {"total": "12"}, key="c-1", headers={"source": "web"})
    give_up(broker, "orders", "billing", ["TypeError: total is a text"])
    page.goto(dashboard.url("topics", "orders", "letters"))
    page.get_by_role("link", name="TypeError: total is a text").last.click()
    page.get_by_role("link", name="Edit and give back").click()
    payload = page.get_by_label("Payload")
    assert payload.input_value() == '{\n  "total": "12"\n}'
    payload.fill('{"total": 12}')
    page.get_by_role("button", name="Give back, edited").click()
    expect(page.get_by_text("Given back to billing, edited.")).to_be_visible()
    assert broker.dead_letters("orders") == []
    with broker.subscribe("orders", group="billing") as subscriber:
        (delivery,) = subscriber.poll(timeout=5)
        assert delivery.message.payload == {"total": 12}
        assert delivery.message.headers["source"] == "web"
        delivery.ack()
    assert broker.read("orders")[0].payload == {"total": "12"}, "the log stays as it is"


# --- steering it ----------------------------------------------------------------------------------


def test_keys_are_enough(page: Page, dashboard: Served, broker: rowmq.RowMQ) -> None:
    shop(broker)
    page.goto(dashboard.url())
    page.keyboard.press("Tab")
    expect(page.get_by_text("Skip to content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    page.keyboard.press("g")
    page.keyboard.press("t")
    page.wait_for_url("**/topics")
    page.keyboard.press("/")
    page.keyboard.type("ord")
    page.keyboard.press("Enter")
    page.wait_for_url("**/topics?name=ord")
    page.goto(dashboard.url("topics", "orders", "groups", "billing"))
    drop = page.locator("summary", has_text="Drop")
    drop.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Drop the group")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Drop the group")).to_be_hidden()
    expect(drop).to_be_focused()


def test_pages_follow_without_being_loaded_again(
    page: Page, dashboard: Served, broker: rowmq.RowMQ
) -> None:
    broker.publish("orders", {"n": 1})
    page.goto(dashboard.url("topics", "orders", "messages"))
    page.evaluate("window.sameDocument = true")
    rows = page.locator("table.messages tbody tr")
    expect(rows).to_have_count(1)
    broker.publish("orders", {"n": 2})
    expect(rows).to_have_count(2)
    assert page.evaluate("window.sameDocument")
    page.get_by_role("button", name="Live: pause updating").click()
    expect(page.get_by_role("button", name="Paused: go on updating")).to_be_visible()


def test_light_and_dark_are_remembered(page: Page, dashboard: Served) -> None:
    ground = "() => getComputedStyle(document.body).backgroundColor"
    page.goto(dashboard.url())
    light = page.evaluate(ground)
    page.get_by_role("button", name="Switch to dark").click()
    dark = page.evaluate(ground)
    assert dark != light
    page.goto(dashboard.url("topics"))
    assert page.evaluate(ground) == dark
    page.get_by_role("button", name="Switch to light").click()
    page.emulate_media(color_scheme="dark")
    assert page.evaluate(ground) == light


def test_without_scripts_there_is_all_of_it(
    page: Page, dashboard: Served, broker: rowmq.RowMQ
) -> None:
    shop(broker)
    browser = page.context.browser
    assert browser is not None
    plain = browser.new_context(java_script_enabled=False).new_page()
    plain.goto(dashboard.url("topics", "orders", "publish"))
    plain.get_by_label("Payload").fill('"plain"')
    plain.get_by_label("Key").fill("plain")
    plain.get_by_role("button", name="Publish").click()
    expect(plain.get_by_text("Published: offset 1")).to_be_visible()
    plain.goto(dashboard.url("topics", "orders", "letters"))
    plain.get_by_label("Choose letter 1", exact=True).check()
    plain.get_by_role("button", name="Purge…").click()
    plain.get_by_role("button", name="Purge for good").click()
    expect(plain.get_by_text("Purged 1 letter.")).to_be_visible()
    plain.context.close()


# --- what is not shown ----------------------------------------------------------------------------


def test_read_only_sites_offer_no_action(
    page: Page, serve: Callable[..., Served], broker: rowmq.RowMQ
) -> None:
    shop(broker)
    dashboard = serve(read_only=True)
    urls = pages_of(dashboard, "orders")
    urls += [dashboard.url("topics", "orders", "groups", "billing")]
    for url in urls:
        page.goto(url)
        assert page.locator("main form[method=post]").count() == 0, url
        expect(page.get_by_text("read-only", exact=True)).to_be_visible()


def test_what_is_masked_is_neither_shown_nor_filled_in(
    page: Page, dashboard: Served, broker: rowmq.RowMQ
) -> None:
    broker.publish(
        "users", {"name": "ann", "password": "hunter2"}, key="ann", headers={"x-api-key": "k3y"}
    )
    give_up(broker, "users", "mails", ["ValueError: no"])
    letter = broker.dead_letters("users")[0]
    path = ("topics", "users", "letters", "of", letter.handle)
    where = {"key": "ann", "offset": 1}
    urls = [
        dashboard.url("topics", "users", "messages"),
        dashboard.url("topics", "users", "message", **where),
        dashboard.url("topics", "users", "publish", **where),
        dashboard.url("topics", "users", "letters"),
        dashboard.url(*path),
        dashboard.url(*path, "edit"),
    ]
    for url in urls:
        text = go(page, url)
        assert "ann" in text, url
        assert "hunter2" not in text, url
        assert "k3y" not in text, url
    page.goto(dashboard.url("topics", "users", "message", **where))
    expect(page.get_by_text("masked")).to_be_visible()


def test_a_chart_says_what_it_was_where_one_points(
    page: Page, dashboard: Served, broker: rowmq.RowMQ
) -> None:
    shop(broker)
    page.goto(dashboard.url())
    plot = page.locator(".plot").nth(2)
    box = plot.locator("svg").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] - 1, box["y"] + 10)
    expect(plot.locator(".readout")).to_contain_text("messages ")
