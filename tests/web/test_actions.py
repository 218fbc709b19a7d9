"""What people do in a browser beside the usual: many at once, by search, signed in and out, below a
prefix, and where nothing may be changed.
"""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

import rowmq
from rowmq import State
from tests.web.accessibility import faults
from tests.web.browser import Served
from tests.web.scenes import shop
from tests.web.test_lake import make_table

on_a_server_too = pytest.mark.parametrize("database", ["sqlite", "postgres"], indirect=True)


def choose(page: Page, question: str, answer: str) -> None:
    """Open a question, and press a button of it."""
    page.locator("summary", has_text=question).click()
    page.get_by_role("button", name=answer).locator("visible=true").click()


# --- jobs -----------------------------------------------------------------------------------------


@on_a_server_too
def test_all_jobs_that_were_found_are_rescheduled_and_dropped(
    page: Page, dashboard: Served, broker: rowmq.RowMQ
) -> None:
    """Also those that are on other pages, and no others."""
    queue = broker.queue("q")
    queue.put_many(range(60), headers={"tenant": "a"}, delay=60)
    other = queue.put("other", headers={"tenant": "b"}, delay=60)
    page.goto(dashboard.url("queues", "q"))
    page.get_by_label("Header").fill("tenant=a")
    page.get_by_role("button", name="Find").click()
    expect(page.locator("main tbody tr")).to_have_count(50)
    page.get_by_label("All that were found, up to 1,000").check()
    expect(page.locator("[data-selected]")).to_have_text("all")
    page.locator("summary", has_text="Reschedule").click()
    page.get_by_label("In", exact=True).locator("visible=true").fill("2h")
    page.get_by_role("button", name="Reschedule the chosen jobs").click()
    expect(page.get_by_text("Rescheduled 60 jobs.")).to_be_visible()
    later = datetime.now(UTC) + timedelta(hours=1)
    due = {job.id: job.due_at > later for job in queue.live(limit=100)}
    assert sum(due.values()) == 60
    assert not due[other.id]
    expect(page.get_by_label("Header")).to_have_value("tenant=a")
    page.get_by_label("All that were found, up to 1,000").check()
    choose(page, "Drop", "Drop the chosen jobs")
    expect(page.get_by_text("Dropped 60 jobs.")).to_be_visible()
    assert [job.id for job in queue.live()] == [other.id]


@on_a_server_too
def test_one_job_is_rescheduled_and_old_ones_are_pruned(
    page: Page, dashboard: Served, broker: rowmq.RowMQ
) -> None:
    queue = broker.queue("q")
    done = queue.put(1)
    job = queue.try_poll()
    assert job is not None
    job.ack()
    waits = queue.put(2, delay=60)
    page.goto(dashboard.url("queues", "q", "jobs", waits.id))
    page.locator("summary", has_text="Reschedule").click()
    page.locator("details[open] button[type=submit]").click()
    expect(page.get_by_text("give a time, or a delay")).to_be_visible()
    page.locator("summary", has_text="Reschedule").click()
    page.get_by_label("or at (UTC)").fill("2100-01-01T00:00:00")
    page.locator("details[open] button[type=submit]").click()
    expect(page.get_by_text("Rescheduled 1 job.")).to_be_visible()
    found = queue.get(waits.id)
    assert found is not None
    assert found.due_at == datetime(2100, 1, 1, tzinfo=UTC)
    page.goto(dashboard.url("queues", "q", "settings"))
    page.get_by_label("longer ago than").fill("a while")
    page.get_by_role("button", name="Prune").click()
    expect(page.get_by_text("is no duration")).to_be_visible()
    page.get_by_label("longer ago than").fill("0s")
    page.get_by_role("button", name="Prune").click()
    expect(page.get_by_text("Pruned 1 finished jobs.")).to_be_visible()
    assert queue.get(done.id) is None


def test_jobs_are_found_by_filters_by_page_and_by_id(
    page: Page, dashboard: Served, broker: rowmq.RowMQ
) -> None:
    queue = broker.queue("q")
    queue.put_many(range(120), delay=60)
    wanted = queue.put("wanted", key="order-7", headers={"tenant": "b"}, delay=60)
    rows = page.locator("main tbody tr")
    page.goto(dashboard.url("queues", "q"))
    expect(rows).to_have_count(50)
    page.get_by_role("link", name="Next").click()
    page.get_by_role("link", name="Next").click()
    expect(rows).to_have_count(21)
    page.get_by_role("link", name="To the first").click()
    expect(page.get_by_role("link", name="To the first")).to_have_count(0)
    for label, value in (("Key", "order-7"), ("Header", "tenant=b")):
        page.get_by_label(label, exact=True).fill(value)
        page.get_by_role("button", name="Find").click()
        expect(rows).to_have_count(1)
        page.get_by_role("link", name="Clear").click()
    page.get_by_label("State").select_option("failed")
    page.get_by_role("button", name="Find").click()
    expect(page.get_by_text("No job of this queue is like that.")).to_be_visible()
    page.get_by_label("Header").fill("tenant")
    page.get_by_role("button", name="Find").click()
    expect(page.get_by_text("a filter is wrong")).to_be_visible()
    page.goto(dashboard.url("jobs"))
    page.get_by_label("By its id").fill(str(wanted.id))
    page.get_by_role("button", name="Show it").click()
    expect(page.get_by_role("heading", name=f"Job {wanted.id}")).to_be_visible()
    page.goto(dashboard.url("jobs"))
    page.get_by_label("By its id").fill("999999")
    page.get_by_role("button", name="Show it").click()
    expect(page.get_by_text("There is no job 999999")).to_be_visible()


# --- dead letters ---------------------------------------------------------------------------------


@on_a_server_too
@pytest.mark.parametrize(
    ("pressed", "said"),
    [
        (("Give back all…", "Give back"), "Gave back 9 letters."),
        (("Purge all…", "Purge for good"), "Purged 9 letters."),
    ],
)
def test_all_letters_of_a_topic_are_given_back_or_purged(
    page: Page, dashboard: Served, broker: rowmq.RowMQ, pressed: tuple[str, str], said: str
) -> None:
    link, button = pressed
    shop(broker)
    page.goto(dashboard.url("topics", "orders", "letters"))
    page.get_by_role("link", name=link).click()
    expect(page.locator(".effects .stat").first).to_contain_text("9")
    assert faults(page) == []
    assert len(broker.dead_letters("orders")) == 9, "a preview does nothing"
    page.get_by_role("button", name=button).click()
    expect(page.get_by_text(said)).to_be_visible()
    assert broker.dead_letters("orders") == []


def test_one_letter_is_given_back_or_purged_from_its_page(
    page: Page, dashboard: Served, broker: rowmq.RowMQ
) -> None:
    shop(broker)
    letters = page.locator("main form.card tbody a")
    page.goto(dashboard.url("topics", "orders", "letters"))
    letters.first.click()
    page.get_by_role("button", name="Give back", exact=True).click()
    expect(page.get_by_text("Gave back 1 letter.")).to_be_visible()
    assert len(broker.dead_letters("orders")) == 8
    letters.first.click()
    choose(page, "Purge", "Purge for good")
    expect(page.get_by_text("Purged 1 letter.")).to_be_visible()
    assert len(broker.dead_letters("orders")) == 7


# --- who is signed in -----------------------------------------------------------------------------


def test_a_wrong_token_is_refused_and_who_signs_out_is_out(
    page: Page, dashboard: Served, broker: rowmq.RowMQ
) -> None:
    secret = broker.access.create_token("ann", roles=["read"], topics=["orders"], queues=[])
    page.goto(dashboard.url("topics"))
    page.get_by_label("Token").fill("rowmq_wrong")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_text("unknown, expired or revoked")).to_be_visible()
    assert faults(page) == []
    page.get_by_label("Token").fill(secret)
    page.get_by_role("button", name="Sign in").click()
    expect(page).to_have_url(dashboard.url("topics"))
    page.get_by_role("button", name="Sign out").click()
    expect(page).to_have_url(dashboard.url("login"))
    page.go_back()
    page.goto(dashboard.url("queues"))
    expect(page.get_by_label("Token")).to_be_visible()


def test_the_trail_is_narrowed_and_turned(
    page: Page, dashboard: Served, broker: rowmq.RowMQ
) -> None:
    for n in range(120):
        who = "ann" if n % 2 else "bob"
        broker.access.record("queue.pause" if n % 3 else "group.seek", who=who, target=f"t{n}")
    rows = page.locator("main tbody tr")
    page.goto(dashboard.url("audit"))
    first = rows.count()
    page.get_by_role("link", name="Older").click()
    expect(page.get_by_role("cell", name=f"t{119 - first}", exact=True)).to_be_visible()
    page.get_by_role("link", name="To the newest").click()
    expect(page.get_by_role("cell", name="t119", exact=True)).to_be_visible()
    page.get_by_label("Who").fill("ann")
    page.get_by_label("Action").select_option("group.seek")
    page.get_by_role("button", name="Find").click()
    expect(rows).to_have_count(20)
    assert "bob" not in page.inner_text("main tbody")


# --- what pages help with -------------------------------------------------------------------------


def test_what_is_shown_is_copied(page: Page, dashboard: Served, broker: rowmq.RowMQ) -> None:
    broker.publish("orders", {"total": 12}, key="ann", id="order-1")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto(dashboard.url("topics", "orders", "message", key="ann", offset=1))
    page.get_by_role("button", name="Copy id").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == "order-1"
    page.get_by_role("button", name="Copy", exact=True).click()
    page.wait_for_function("navigator.clipboard.readText().then(text => text.startsWith('{'))")
    assert page.evaluate("navigator.clipboard.readText()") == '{\n  "total": 12\n}'


def test_the_lake_stands_on_the_page_of_spark(
    page: Page, serve: Callable[..., Served], tmp_path: Path
) -> None:
    make_table(tmp_path, "messages", 1_234)
    dashboard = serve(lake=str(tmp_path))
    page.goto(dashboard.url("spark"))
    expect(page.get_by_role("row").filter(has_text="messages")).to_contain_text("1,234")
    assert faults(page) == []


def test_below_a_prefix_everything_is_below_it(
    page: Page, serve: Callable[..., Served], broker: rowmq.RowMQ
) -> None:
    shop(broker)
    dashboard = serve(below="/ops/queues", remember_tokens_seconds=0)
    secret = broker.access.create_token("ann", roles=["admin"])
    page.clock.install()
    page.goto(dashboard.url("topics"))
    page.get_by_label("Token").fill(secret)
    page.get_by_role("button", name="Sign in").click()
    expect(page).to_have_url(dashboard.url("topics"))
    page.get_by_role("link", name="orders", exact=True).first.click()
    expect(page).to_have_url(dashboard.url("topics", "orders"))
    page.keyboard.press("g")
    page.keyboard.press("q")
    page.wait_for_url(dashboard.url("queues"))
    broker.queue("later").put(1)
    page.clock.run_for(2_500)
    row = page.get_by_role("row").filter(has_text="later")
    row.get_by_role("button", name="Pause").click()
    expect(page.get_by_text("Paused: no job is handed out")).to_be_visible()
    expect(page).to_have_url(dashboard.url("queues"))
    assert {queue.name: queue.paused for queue in broker.queues()} == {
        "emails": False,
        "later": True,
    }
    page.get_by_role("button", name="Switch to dark").click()
    page.goto(dashboard.url("workers"))
    assert page.locator("html").get_attribute("data-theme") == "dark"
    page.get_by_role("button", name="Sign out").click()
    expect(page).to_have_url(dashboard.url("login"))


def operations(queue: str, job: int) -> Iterator[tuple[object, ...]]:
    """Pages on which there would be something to do."""
    yield from (("queues",), ("queues", queue), ("jobs",), ("schedules",), ("schedules", "s"))
    yield from (("queues", queue, "settings"), ("queues", queue, "jobs", job), ("tokens",))


def test_where_nothing_may_be_changed_no_operation_is_offered(
    page: Page, serve: Callable[..., Served], broker: rowmq.RowMQ
) -> None:
    job = broker.queue("q").put(1, delay=60)
    broker.cron.install("s", "0 2 * * *", queue="q", tend=False)
    dashboard = serve(read_only=True)
    for path in operations("q", job.id):
        page.goto(dashboard.url(*path))
        assert page.locator("main form[method=post]").count() == 0, path
        expect(page.get_by_text("read-only", exact=True)).to_be_visible()
        assert faults(page) == []
    found = broker.queue("q").get(job.id)
    assert found is not None
    assert found.state is State.PENDING
