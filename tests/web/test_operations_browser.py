"""The pages of operations in a real browser: what scripts do, keys, widths, colours, and faults."""

from collections.abc import Callable
from functools import partial

import pytest
from playwright.sync_api import Page, expect

from rowmq import RowMQ, State
from rowmq.store.seeking import Target
from rowmq.store.workers import Running, WorkerFacts
from tests.web.accessibility import faults
from tests.web.browser import PHONE, Served

EVIL = "<img src=x onerror=alert(1)>\"'><script>alert(2)</script> " + "w" * 120

also_on_postgres = pytest.mark.parametrize("database", ["sqlite", "postgres"], indirect=True)

LIVE_MS = 2_500
"""After which a section that is live has asked for itself again."""


def fill(broker: RowMQ, name: str) -> int:
    """Something for every page to show, under one name; the id of a job that failed."""
    queue = broker.queue(name)
    failed = queue.put({name: name, "n": [1, 2.5, None, True]}, headers={name: name}, key=name)
    job = queue.try_poll()
    assert job is not None
    job.nack(error="Traceback:\n  once", delay=0)
    job = queue.try_poll()
    assert job is not None
    job.reject(error=f"{name}\n{name}")
    queue.put("soon", delay=3600, ordering_key=name)
    queue.put_many([b"\x00\xff", "text"])
    broker.cron.install(name, "*/5 * * * *", queue=name, payload={"a": name}, tend=False)
    broker.publish(name, 1, key=name)
    running = Running(
        handler="shop.import_orders", source=name, id=str(failed.id), key=name, attempt=2,
        seconds=190.0, progress=0.3, note=name, source_type="queue",
    )  # fmt: skip
    facts = WorkerFacts(app="shop", host=name, pid=7, version="1.2.3", handlers=("a", "b"))
    workers, positions = broker._store.workers, broker._store.positions
    broker._run(partial(workers.beat, name, facts, [running], lease_us=600_000_000))
    broker._run(partial(positions.establish, name, name, Target(start="earliest")))
    broker.access.record("queue.pause", who=name, target=name, details={"why": name})
    return failed.id


def paths(name: str, id: int) -> list[tuple[object, ...]]:
    """Every page of operations."""
    return [
        ("queues",),
        ("queues", name),
        ("queues", name, "put"),
        ("queues", name, "settings"),
        ("queues", name, "jobs", id),
        ("jobs",),
        ("schedules",),
        ("schedules", name),
        ("workers",),
        ("workers", name),
        ("spark",),
        ("doctor",),
        ("tokens",),
        ("audit",),
    ]


def use_phone(page: Page) -> None:
    page.set_viewport_size({"width": PHONE["width"], "height": PHONE["height"]})


def faults_of(page: Page, dashboard: Served, *pages: tuple[object, ...]) -> dict[str, list[str]]:
    """What is wrong with pages, by their paths."""
    found = {}
    for path in pages:
        answer = page.goto(dashboard.url(*path))
        assert answer is not None
        assert answer.ok, path
        if wrong := faults(page):
            found["/".join(map(str, path))] = wrong
    return found


@pytest.mark.parametrize(
    ("database", "scheme"),
    [("sqlite", "light"), ("sqlite", "dark"), ("postgres", "light")],
    indirect=["database"],
)
def test_every_page_is_accessible_on_a_desk_and_a_phone_whatever_is_on_it(
    page: Page, dashboard: Served, broker: RowMQ, scheme: str
) -> None:
    """Names that are tags, and longer than a screen, are text and stay in it."""
    page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    id = fill(broker, EVIL)
    dialogs: list[str] = []
    page.on("dialog", lambda dialog: dialogs.append(dialog.message))
    assert faults_of(page, dashboard, *paths(EVIL, id)) == {}
    use_phone(page)
    assert faults_of(page, dashboard, *paths(EVIL, id)) == {}
    assert dialogs == []
    assert page.locator("main img").count() == 0


def test_questions_stay_in_the_window_of_a_phone(
    page: Page, dashboard: Served, broker: RowMQ
) -> None:
    broker.queue("q").put(1, delay=60)
    broker.cron.install("s", "0 2 * * *", queue="q", tend=False)
    use_phone(page)
    for path in (("queues", "q"), ("schedules",), ("schedules", "s")):
        page.goto(dashboard.url(*path))
        for box in page.get_by_label("All on this page").all():
            box.check()
        for question in page.locator("details.confirm summary").all():
            question.click()
            expect(page.locator("details[open] button[type=submit]").last).to_be_in_viewport()
            assert faults(page) == []
            page.keyboard.press("Escape")


def test_pages_without_anything_on_them_are_accessible_too(
    page: Page, dashboard: Served, broker: RowMQ
) -> None:
    broker.queue("none").configure(max_in_flight=1)
    empty = [path for path in paths("none", 1) if "jobs" not in path[1:]]
    present = [path for path in empty if path[:1] not in (("schedules",), ("workers",))]
    present += [("schedules",), ("workers",), ("doctor",)]
    assert faults_of(page, dashboard, *present) == {}
    page.goto(dashboard.url("doctor", examine="yes"))
    assert faults(page) == []


@also_on_postgres
def test_chosen_jobs_are_retried(page: Page, dashboard: Served, broker: RowMQ) -> None:
    queue = broker.queue("q")
    ids = [queue.put(n).id for n in range(3)]
    for job in queue.try_poll_many(3):
        job.reject(error="boom")
    page.goto(dashboard.url("queues", "q", state="failed"))
    page.get_by_label(f"Choose job {ids[0]}").check()
    page.get_by_label(f"Choose job {ids[2]}").check()
    expect(page.locator("[data-selected]").first).to_have_text("2")
    page.locator("summary", has_text="Retry").click()
    page.get_by_role("button", name="Retry the chosen jobs").click()
    expect(page.get_by_role("status").first).to_contain_text("Retried 2 jobs.")
    states = [found.state for id in ids if (found := queue.get(id)) is not None]
    assert states == [State.PENDING, State.FAILED, State.PENDING]


def test_all_boxes_are_ticked_by_one_and_nothing_can_be_done_without_any(
    page: Page, dashboard: Served, broker: RowMQ
) -> None:
    broker.queue("q").put_many([1, 2, 3])
    page.goto(dashboard.url("queues", "q"))
    for action in ("Retry", "Run now", "Reschedule", "Fail", "Drop"):
        button = page.locator("summary", has_text=action)
        expect(button).to_have_attribute("aria-disabled", "true")
        button.click(force=True)  # as nobody can who sees that it is disabled
        expect(page.locator("details[open]")).to_have_count(0)
    page.get_by_label("All on this page").check()
    expect(page.locator("[data-selected]").first).to_have_text("3")
    page.locator("summary", has_text="Drop").click()
    page.get_by_role("button", name="Drop the chosen jobs").click()
    expect(page.get_by_text("Dropped 3 jobs.")).to_be_visible()
    assert broker.queue("q").counts()["pending"] == 0


@also_on_postgres
def test_a_queue_is_steered_and_limited(page: Page, dashboard: Served, broker: RowMQ) -> None:
    broker.queue("q").put(1)
    page.goto(dashboard.url("queues"))
    page.get_by_role("button", name="Pause", exact=True).click()
    expect(page.get_by_text("Paused: no job is handed out")).to_be_visible()
    assert broker.queues()[0].paused
    page.get_by_role("button", name="Resume").click()
    expect(page.get_by_text("Resumed.")).to_be_visible()
    page.get_by_role("link", name="q", exact=True).click()
    page.get_by_role("link", name="Settings").click()
    page.get_by_label("Jobs at once").fill("7")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("Saved.")).to_be_visible()
    assert (broker.queues()[0].max_in_flight, broker.queues()[0].paused) == (7, False)


def test_a_job_is_put_and_steered(page: Page, dashboard: Served, broker: RowMQ) -> None:
    page.goto(dashboard.url("queues"))
    page.get_by_label("Into the queue").fill("emails")
    page.get_by_role("button", name="Put a job").click()
    page.get_by_label("Payload").fill('{"to": "ann"}')
    page.get_by_label("Due in").fill("1h")
    page.get_by_role("button", name="Put", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("pending")
    page.get_by_role("button", name="Run now").click()
    expect(page.get_by_text("Now due: 1 job.")).to_be_visible()
    page.locator("summary", has_text="Fail").click()
    page.get_by_label("Why").fill("not wanted")
    page.locator("details[open] button[type=submit]").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("failed")
    expect(page.locator(".timeline")).to_contain_text("not wanted")
    page.locator("summary", has_text="Retry").click()
    page.locator("details[open] button[type=submit]").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("pending")
    assert broker.queue("emails").counts()["pending"] == 1


def test_what_happens_is_shown_without_a_reload_and_chosen_boxes_stay(
    page: Page, dashboard: Served, broker: RowMQ
) -> None:
    first = broker.queue("q").put(1, delay=60)
    page.clock.install()
    page.goto(dashboard.url("queues", "q"))
    page.evaluate("window.here = true")
    second = broker.queue("q").put(2, delay=60)
    page.clock.run_for(LIVE_MS)
    expect(page.get_by_label(f"Choose job {second.id}")).to_be_visible()
    page.get_by_label(f"Choose job {first.id}").check()
    third = broker.queue("q").put(3, delay=60)
    page.clock.run_for(5 * LIVE_MS)
    expect(page.get_by_label(f"Choose job {third.id}")).to_have_count(0)
    expect(page.get_by_label(f"Choose job {first.id}")).to_be_checked()
    page.get_by_label(f"Choose job {first.id}").uncheck()
    page.locator("h1").click()
    page.clock.run_for(LIVE_MS)
    expect(page.get_by_label(f"Choose job {third.id}")).to_be_visible()
    assert page.evaluate("window.here")


def test_keys_alone_find_and_pause_a_queue(page: Page, dashboard: Served, broker: RowMQ) -> None:
    for name in ("apples", "pears"):
        broker.queue(name).put(1)
    page.goto(dashboard.url("workers"))
    page.keyboard.press("g")
    page.keyboard.press("q")
    page.wait_for_url(dashboard.url("queues"))
    page.keyboard.press("/")
    page.keyboard.type("pear")
    page.keyboard.press("Enter")
    page.wait_for_url("**name=pear**")
    page.get_by_role("link", name="pears").focus()
    page.keyboard.press("Enter")
    page.wait_for_url(dashboard.url("queues", "pears"))
    page.locator("summary", has_text="Pause").focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.get_by_text("This queue is paused")).to_be_visible()
    paused = {one.name for one in broker.queues() if one.paused}
    assert paused == {"pears"}


def test_a_schedule_is_steered(page: Page, dashboard: Served, broker: RowMQ) -> None:
    broker.cron.install("nightly", "0 2 * * *", queue="q", payload=1, tend=False)
    page.goto(dashboard.url("schedules"))
    page.get_by_role("link", name="nightly").click()
    page.get_by_role("button", name="Pause", exact=True).click()
    expect(page.get_by_text("Paused: it makes no ticks")).to_be_visible()
    page.get_by_role("button", name="Resume").click()
    page.locator("summary", has_text="Run now").click()
    page.locator("details[open] button[type=submit]").click()
    expect(page.get_by_text("Made a tick now")).to_be_visible()
    assert broker.queue("q").counts()["pending"] == 1
    page.locator("summary", has_text="Remove").click()
    page.locator("details[open] button[type=submit]").click()
    expect(page.get_by_text("There are no schedules.")).to_be_visible()
    assert broker.cron.list() == []


def test_the_doctor_examines(page: Page, dashboard: Served) -> None:
    page.goto(dashboard.url("doctor"))
    page.get_by_text("Only some checks").click()
    version = page.locator("input[name=version]")
    version.check()
    page.get_by_role("button", name="Examine").click()
    expect(page.locator("main tbody td:first-child")).to_have_text(["version"])
    expect(version).to_be_checked()


def test_a_token_is_made_used_to_sign_in_and_revoked(
    page: Page, serve: Callable[..., Served], broker: RowMQ
) -> None:
    dashboard = serve(remember_tokens_seconds=0)
    page.goto(dashboard.url("tokens"))
    page.get_by_label("Name").fill("ann")
    page.get_by_label("admin").check()
    page.get_by_role("button", name="Make it").click()
    secret = page.locator("pre.code").inner_text()
    page.goto(dashboard.url("audit"))
    page.get_by_label("Token").fill(secret)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("cell", name="token.create")).to_be_visible()
    page.goto(dashboard.url("tokens"))
    page.locator("summary", has_text="Revoke").click()
    page.locator("details[open] button[type=submit]").click()
    assert not any(token.live for token in broker.access.tokens())
