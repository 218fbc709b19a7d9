"""The pages of operations: queues, jobs, schedules, workers, Spark, doctor, tokens, the trail."""

import re
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

import rowmq
from rowmq import RowMQ, State
from rowmq.store.seeking import Target
from rowmq.store.workers import Running, WorkerFacts
from tests.consuming import statements
from tests.databases import Database
from tests.web.operating import Operator, operating, text_of

EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)> %_&amp;/😈"
"""A name that would be a tag, end an attribute, run, match anything, and leave its path."""

SOON = f"{datetime.now(UTC) + timedelta(hours=12):%FT%T}"

also_on_postgres = pytest.mark.parametrize("database", ["sqlite", "postgres"], indirect=True)


@pytest.fixture
async def operator(database: Database) -> AsyncIterator[Operator]:
    """Somebody at this machine, who may do everything as long as there is no token."""
    async with operating(database.url) as found:
        yield found


def put_failed(broker: RowMQ, count: int = 1, error: str = "boom", queue: str = "q") -> list[int]:
    """Jobs that failed."""
    ids = [broker.queue(queue).put({"n": n}).id for n in range(count)]
    for job in broker.queue(queue).try_poll_many(count):
        job.reject(error=error)
    return ids


def state_of(broker: RowMQ, id: int, queue: str = "q") -> State | None:
    job = broker.queue(queue).get(id)
    return None if job is None else job.state


def ids_in(page: str, queue: str = "q") -> list[int]:
    """The jobs that a page lists, in order."""
    return [int(id) for id in re.findall(rf'href="/queues/{queue}/jobs/(\d+)"', page)]


# --- queues ---------------------------------------------------------------------------------------


async def test_queues_show_how_many_jobs_are_in_which_state(
    broker: RowMQ, operator: Operator
) -> None:
    assert "no queues yet" in await operator.see("queues")
    put_failed(broker, 2, queue="emails")
    broker.queue("emails").put(3)
    broker.queue("others").put(1)
    operator.site.sampler.expire()
    page = await operator.read("queues")
    (row,) = re.findall(r"<tr>(?:(?!</tr>).)*>emails<.*?</tr>", page, re.DOTALL)
    cells = dict(re.findall(r'data-label="(\w+)"[^>]*>(.*?)</td>', row, re.DOTALL))
    counts = {name: text_of(cells[name]) for name in ("Pending", "Failed", "Completed")}
    assert counts == {"Pending": "1", "Failed": "2", "Completed": "0"}
    assert "others" not in await operator.see("queues", name="mail")


async def test_more_queues_take_no_more_statements(broker: RowMQ, operator: Operator) -> None:
    async def taken() -> int:
        with statements(await operator.site.connect()) as seen:
            await operator.read("queues")
        return len(seen)

    broker.queue("q0").put(1)
    few = await taken()
    for n in range(1, 30):
        broker.queue(f"q{n}").put(1)
    assert await taken() <= few


@also_on_postgres
async def test_a_queue_is_paused_and_resumed(broker: RowMQ, operator: Operator) -> None:
    broker.queue("q").put(1)
    listed = await operator.press(await operator.read("queues"), "queues", "q", "pause")
    assert listed.url.path == "/queues"
    assert "Paused:" in text_of(listed.text)
    assert broker.queue("q").try_poll() is None
    shown = await operator.read("queues", "q")
    assert "This queue is paused" in text_of(shown)
    assert (await operator.press(shown, "queues", "q", "resume")).url.path == "/queues/q"
    assert broker.queue("q").try_poll() is not None


async def test_limits_are_set_and_what_was_not_changed_stays(
    broker: RowMQ, operator: Operator
) -> None:
    broker.queue("q").configure(rate=100, retention=timedelta(days=3))
    form = await operator.read("queues", "q", "settings")
    assert 'value="100"' in form
    broker.queue("q").configure(failed_retention=timedelta(days=9))  # somebody else, meanwhile
    fields = {
        "max_in_flight": "5",
        "rate": "none",
        "retention": "3d",
        "failed_retention": "forever",
    }
    saved = await operator.press(form, "queues", "q", "settings", fields=fields)
    assert "Saved." in text_of(saved.text)
    (info,) = broker.queues()
    assert (info.max_in_flight, info.rate, info.retention) == (5, None, timedelta(days=3))


async def test_a_wrong_setting_is_told_beside_its_field_and_nothing_is_saved(
    broker: RowMQ, operator: Operator
) -> None:
    broker.queue("q").put(1)
    form = await operator.read("queues", "q", "settings")
    fields = {"max_in_flight": "5", "retention": "<b>soon"}
    answer = await operator.press(form, "queues", "q", "settings", fields=fields)
    assert answer.status_code == 422
    assert "is no duration: write 30s, 5m" in text_of(answer.text)
    assert 'value="&lt;b&gt;soon"' in answer.text
    assert broker.queues()[0].max_in_flight is None


async def test_finished_jobs_are_pruned(broker: RowMQ, operator: Operator) -> None:
    (id,) = put_failed(broker)
    form = await operator.read("queues", "q", "settings")
    fields = {"state": "failed", "older_than": "0s"}
    answer = await operator.press(form, "queues", "q", "prune", fields=fields)
    assert "Pruned 1 finished" in text_of(answer.text)
    assert state_of(broker, id) is None


# --- jobs -----------------------------------------------------------------------------------------


@pytest.fixture
def jobs(broker: RowMQ) -> dict[str, int]:
    """One job of each sort, by what it is called here."""
    queue = broker.queue("q")
    (failed,) = put_failed(broker)
    queue.put("ok")
    done = queue.try_poll()
    assert done is not None
    done.ack()
    queue.put("again")
    again = queue.try_poll()
    assert again is not None
    again.nack(error="not yet", delay=300)
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    ids = {
        "keyed": queue.put(1, key="k%", delay=3600).id,
        "headed": queue.put(2, headers={"tenant": "a=b"}).id,
        "kind": broker.queue("q", kind="Email").put({"to": "ann"}).id,
        "tomorrow": queue.put(3, at=tomorrow).id,
    }
    return {"failed": failed, "done": done.id, "again": again.id, **ids}


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({"state": "failed"}, {"failed"}),
        ({"state": "completed"}, {"done"}),
        ({"state": "retryable"}, {"again"}),
        ({"kind": "Email"}, {"kind"}),
        ({"key": "k%"}, {"keyed"}),
        ({"header": "tenant=a=b"}, {"headed"}),
        ({"state": "pending", "since": SOON}, {"tomorrow"}),
        ({"state": "failed", "until": "2020-01-01T00:00"}, set()),
        ({}, {"failed", "done", "again", "keyed", "headed", "kind", "tomorrow"}),
    ],
)  # fmt: skip
async def test_jobs_are_found_by_what_is_known_of_them(
    operator: Operator, jobs: dict[str, int], query: dict[str, str], found: set[str]
) -> None:
    page = await operator.read("queues", "q", **query)
    assert set(ids_in(page)) == {jobs[name] for name in found}


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ({"header": "tenant"}, "name=value"),
        ({"since": "soon"}, "is no time"),
        ({"state": "lost"}, "there is no such state"),
        ({"after": "nonsense"}, ""),
    ],
)
async def test_a_wrong_filter_is_told_and_nothing_breaks(
    broker: RowMQ, operator: Operator, query: dict[str, str], told: str
) -> None:
    broker.queue("q").put(1)
    answer = await operator.get("queues", "q", **query)
    assert answer.status_code == 422
    assert told in text_of(answer.text)


async def test_pages_of_jobs_lead_to_each_of_them_once(broker: RowMQ, operator: Operator) -> None:
    put = broker.queue("q").put_many(list(range(120)))
    seen = ids_in(page := await operator.read("queues", "q"))
    while link := re.search(r'rel="next" href="([^"]*)"', page):
        page = (await operator.client.get(link[1].replace("&amp;", "&"))).text
        seen += ids_in(page)
    assert seen == [job.id for job in put]


async def test_a_job_tells_of_its_attempts_and_errors(broker: RowMQ, operator: Operator) -> None:
    queue = broker.queue("q")
    queue.put({"to": "ann"}, headers={"tenant": "acme", "authorization": "Bearer hush"})
    for error in ("first\nTraceback ...", "second"):
        job = queue.try_poll()
        assert job is not None
        job.nack(error=error, delay=0)
    job = queue.try_poll()
    assert job is not None
    shown = await operator.see("queues", "q", "jobs", job.id)
    told = [shown.index(words) for words in ("Put", "Attempt 1 failed", "Attempt 2 failed")]
    assert told == sorted(told)
    for words in ("first", "Traceback", "second", "Claimed for attempt 3", "acme", '"to"', "ann"):
        assert words in shown
    assert "hush" not in shown
    job.reject(error="for good")
    shown = await operator.see("queues", "q", "jobs", job.id)
    assert "Failed for good" in shown
    assert "for good" in shown


async def test_a_job_says_who_is_at_it_and_how_far(broker: RowMQ, operator: Operator) -> None:
    broker.queue("q").put(1)
    job = broker.queue("q").try_poll()
    assert job is not None
    running = at_work(source="q", id=str(job.id), progress=0.4, note="row 40 of 100")
    beat(broker, "host-1-abc", running)
    shown = await operator.see("queues", "q", "jobs", job.id)
    for words in ("host-1-abc", "40 %", "row 40 of 100"):
        assert words in shown


Act = tuple[str, dict[str, str], Callable[[RowMQ, int], bool]]


def is_due(broker: RowMQ, id: int) -> bool:
    job = broker.queue("q").get(id)
    return job is not None and job.due_at <= datetime.now(UTC)


def is_due_in_2030(broker: RowMQ, id: int) -> bool:
    job = broker.queue("q").get(id)
    return job is not None and job.due_at == datetime(2030, 1, 1, tzinfo=UTC)


def is_failed_for(broker: RowMQ, id: int) -> bool:
    job = broker.queue("q").get(id)
    return job is not None and (job.state, job.error) == (State.FAILED, "by hand")


def is_gone(broker: RowMQ, id: int) -> bool:
    return state_of(broker, id) is None


ACTS: list[Act] = [
    ("run", {}, is_due),
    ("reschedule", {"at": "2030-01-01T00:00"}, is_due_in_2030),
    ("fail", {"error": "by hand"}, is_failed_for),
    ("drop", {}, is_gone),
]


@also_on_postgres
@pytest.mark.parametrize(("action", "fields", "done"), ACTS)
async def test_one_job_is_steered_from_its_page(
    broker: RowMQ,
    operator: Operator,
    action: str,
    fields: dict[str, str],
    done: Callable[[RowMQ, int], bool],
) -> None:
    id, other = (broker.queue("q").put(n, delay=3600).id for n in range(2))
    page = await operator.read("queues", "q", "jobs", id)
    await operator.press(page, "queues", "q", action, fields=fields)
    assert done(broker, id)
    assert state_of(broker, other) is State.PENDING
    assert not done(broker, other)


@pytest.mark.parametrize(("action", "fields", "done"), ACTS)
async def test_several_jobs_are_steered_from_their_list(
    broker: RowMQ,
    operator: Operator,
    action: str,
    fields: dict[str, str],
    done: Callable[[RowMQ, int], bool],
) -> None:
    ids = [broker.queue("q").put(n, delay=3600).id for n in range(3)]
    page = await operator.read("queues", "q")
    answer = await operator.press(
        page, "queues", "q", action, fields={**fields, "ids": [str(id) for id in ids[:2]]}
    )
    assert "2 jobs" in text_of(answer.text)
    assert [done(broker, id) for id in ids] == [True, True, False]


@also_on_postgres
async def test_all_that_were_found_are_retried_and_no_others(
    broker: RowMQ, operator: Operator
) -> None:
    ids = put_failed(broker, 60)
    other = broker.queue("q").put(1, headers={"n": "1"}).id
    job = broker.queue("q").try_poll()
    assert job is not None
    job.reject(error="other")
    page = await operator.read("queues", "q", state="failed", header="n=1")
    answer = await operator.press(page, "queues", "q", "retry", fields={"all": "yes"})
    assert "Retried 1 job." in text_of(answer.text)
    assert "header=n%3D1" in str(answer.url)
    assert state_of(broker, other) is State.PENDING
    page = await operator.read("queues", "q", state="failed")
    await operator.press(page, "queues", "q", "retry", fields={"all": "yes"})
    assert {state_of(broker, id) for id in ids} == {State.PENDING}


async def test_what_has_changed_meanwhile_is_told(broker: RowMQ, operator: Operator) -> None:
    (id,) = put_failed(broker)
    page = await operator.read("queues", "q", "jobs", id)
    broker.queue("q").retry([id])
    answer = await operator.press(page, "queues", "q", "retry")
    assert "the others stay as they are" in text_of(answer.text)


async def test_nothing_chosen_and_no_time_given_are_told(broker: RowMQ, operator: Operator) -> None:
    id = broker.queue("q").put(1, delay=60).id
    page = await operator.read("queues", "q")
    assert "No job was chosen" in text_of((await operator.press(page, "queues", "q", "run")).text)
    for fields in ({}, {"at": "2030-01-01T00:00", "delay": "5m"}, {"delay": "soon"}):
        chosen = {**fields, "ids": str(id)}
        answer = await operator.press(page, "queues", "q", "reschedule", fields=chosen)
        assert 'class="alert warning"' in answer.text


async def test_a_job_that_is_put_in_a_form_is_as_it_was_written(
    broker: RowMQ, operator: Operator
) -> None:
    fields = {
        "payload": '{"to":\r\n "änn"}',
        "form": "json",
        "key": "k",
        "ordering_key": "line",
        "priority": "-3",
        "delay": "1h",
        "headers": "a=1\r\nb=x=y",
    }
    form = await operator.read("queues", "new/queue", "put")
    answer = await operator.press(form, "queues", "new/queue", "put", fields=fields)
    job = broker.queue("new/queue").read("k")
    assert job is not None
    assert answer.url.path.endswith(f"/jobs/{job.id}")
    assert (job.payload, job.ordering_key, job.priority) == ({"to": "änn"}, "line", -3)
    assert job.headers == {"a": "1", "b": "x=y"}
    assert job.due_at > datetime.now(UTC) + timedelta(minutes=59)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"payload": "{"}, "no JSON"),
        ({"payload": "1", "priority": "high"}, "whole number"),
        ({"payload": "1", "delay": "5m", "at": "2030-01-01T00:00"}, "not both"),
        ({"payload": "1", "headers": "x"}, "name=value"),
    ],
)
async def test_a_form_that_cannot_be_put_comes_back_with_what_was_written(
    broker: RowMQ, operator: Operator, fields: dict[str, str], told: str
) -> None:
    form = await operator.read("queues", "q", "put")
    answer = await operator.press(form, "queues", "q", "put", fields=fields)
    assert answer.status_code == 422
    assert told in text_of(answer.text)
    assert fields["payload"] in answer.text
    assert broker.queues() == []


async def test_a_job_is_found_by_its_id_in_whichever_queue(
    broker: RowMQ, operator: Operator
) -> None:
    (id,) = put_failed(broker, queue="far/away")
    found = await operator.client.get("/jobs", params={"id": str(id)}, follow_redirects=True)
    assert found.status_code == 200
    assert f"Job {id}" in text_of(found.text)
    lost = await operator.client.get("/jobs", params={"id": "12x"}, follow_redirects=True)
    assert "There is no job 12x" in text_of(lost.text)
    assert str(id) in await operator.see("jobs")
    assert (await operator.get("queues", "far/away", "jobs", "9999")).status_code == 404


async def test_jobs_cannot_be_found_by_what_is_masked(broker: RowMQ, operator: Operator) -> None:
    """Whether any is found would tell the value, to whoever looks and to whoever steers."""
    broker.queue("q").put(1, headers={"authorization": "right"}, delay=60)
    page = await operator.read("queues", "q")
    for value in ("right", "wrong"):
        sought = {"header": f"Authorization={value}"}
        for path in (("queues", "q"), ("jobs",)):
            answer = await operator.get(*path, **sought, state="pending")
            assert answer.status_code == 422
            assert "is masked here" in text_of(answer.text)
            assert "Payload" not in text_of(answer.text)
        every = {"all": "yes", "found": urlencode(sought)}
        answer = await operator.press(page, "queues", "q", "drop", fields=every)
        assert "is masked here" in text_of(answer.text)
    assert broker.queue("q").counts()["pending"] == 1


async def test_a_read_only_site_shows_no_buttons(database: Database, broker: RowMQ) -> None:
    (id,) = put_failed(broker)
    broker.cron.install("s", "0 2 * * *", queue="q", tend=False)
    async with operating(database.url, read_only=True) as operator:
        for path in (
            ("queues",),
            ("queues", "q"),
            ("queues", "q", "put"),
            ("queues", "q", "settings"),
            ("queues", "q", "jobs", id),
            ("schedules",),
            ("schedules", "s"),
            ("tokens",),
        ):
            assert 'method="post"' not in await operator.read(*path), path


# --- schedules ------------------------------------------------------------------------------------


async def test_schedules_stand_in_plain_words_with_their_times(
    broker: RowMQ, operator: Operator
) -> None:
    assert "no schedules" in await operator.see("schedules")
    broker.cron.install("nightly/1", "30 2 * * 1", queue="q", payload={"a": 1}, tend=False)
    shown = await operator.see("schedules")
    (info,) = broker.cron.list()
    for words in ("nightly/1", info.description, "queue q", "never", "in "):
        assert words in shown
    assert "nightly" not in await operator.see("schedules", name="other")
    shown = await operator.see("schedules", "nightly/1")
    for moment in broker.cron.next("nightly/1", 10):
        assert f"{moment:%Y-%m-%d %H:%M:%S}" in shown
    assert "30 2 * * 1" in shown


@also_on_postgres
async def test_a_schedule_is_paused_resumed_run_and_removed(
    broker: RowMQ, operator: Operator
) -> None:
    broker.cron.install("s/1", "0 2 * * *", queue="q", payload="tick", tend=False)
    page = await operator.read("schedules")
    page = (await operator.press(page, "schedules", "s/1", "pause")).text
    assert broker.cron.list()[0].paused
    page = (await operator.press(page, "schedules", "s/1", "resume")).text
    assert not broker.cron.list()[0].paused
    await operator.press(page, "schedules", "s/1", "run")
    job = broker.queue("q").try_poll()
    assert job is not None
    assert job.payload == "tick"
    page = await operator.read("schedules", "s/1")
    assert (await operator.press(page, "schedules", "s/1", "remove")).url.path == "/schedules"
    assert broker.cron.list() == []
    assert (await operator.get("schedules", "s/1")).status_code == 404


async def test_a_schedule_whose_payload_a_function_makes_cannot_be_run_from_here(
    broker: RowMQ, operator: Operator
) -> None:
    def report_of(at: datetime) -> str:
        return f"{at:%F}"

    broker.cron.install("s", "0 2 * * *", queue="q", payload=report_of, tend=False)
    page = await operator.read("schedules", "s")
    assert "/schedules/s/run" not in page
    assert "cannot be run from here" in text_of(page)


# --- workers, Spark, doctor -----------------------------------------------------------------------


def at_work(**given: Any) -> Running:
    usual = {"handler": "shop.send", "source": "q", "id": "1", "key": None, "attempt": 1}
    return Running(**{**usual, "source_type": "queue", "seconds": 125.0, **given})


def beat(broker: RowMQ, name: str, *running: Running, host: str = "web-1") -> None:
    """What a worker does every now and then."""
    facts = WorkerFacts(app="shop", host=host, pid=7, version="1.2.3", handlers=("shop.send",))
    workers = broker._store.workers
    broker._run(partial(workers.beat, name, facts, running, lease_us=60_000_000))


async def test_workers_show_who_is_alive_and_what_they_own_and_run(
    database: Database, broker: RowMQ, operator: Operator
) -> None:
    assert "No worker runs" in await operator.see("workers")
    beat(broker, "web-1-7-aa", at_work(id="42", progress=0.25, note="a quarter"))
    beat(broker, "web-2-8-bb")
    database.execute("UPDATE rowmq_workers SET expires_at = 1 WHERE name = 'web-2-8-bb'")
    broker.publish("t", 1, key="k")
    with (
        broker.subscribe("t", group="g", name="web-1-7-cc") as own,
        broker.subscribe("t", group="alone", name="script"),
    ):
        own.poll(timeout=5)
        shown = await operator.see("workers")
        for words in ("Alive 1", "Gone, within a day 1", "1.2.3", "pid 7", "25 %", "a quarter"):
            assert words in shown
        for words in ("2 min 5 s", "q · 42", "t alone script 1"):
            assert words in shown
        shown = await operator.see("workers", "web-1-7-aa")
        assert "t g 1" in shown
        assert "script" not in shown
        assert "Nobody has heard" in await operator.see("workers", "web-2-8-bb")
    assert (await operator.get("workers", "nobody")).status_code == 404


async def test_a_partition_that_there_cannot_be_is_refused_in_words(
    broker: RowMQ, operator: Operator
) -> None:
    broker.publish("orders", 1, key="first-page")
    for wrong, words in (("abc", "a shard is a number"), ("99", "shard")):
        answer = await operator.get("topics", "orders", shard=wrong)
        assert answer.status_code == 422
        assert words in text_of(answer.text)
        assert "first-page" not in answer.text


async def test_spark_shows_lag_and_commits_of_pipelines(
    database: Database, broker: RowMQ, operator: Operator, tmp_path: Path
) -> None:
    assert "No pipeline" in await operator.see("spark")
    broker.publish_many("orders", [rowmq.Message(payload=n, key="k") for n in range(1234)])
    establish = broker._store.positions.establish
    broker._run(partial(establish, "orders", "lake", Target(start="earliest")))
    operator.site.sampler.expire()
    shown = await operator.see("spark")
    assert "orders lake 1,234" in shown
    assert "1 of 1" in shown
    async with operating(database.url, lake=str(tmp_path)) as other:
        assert str(tmp_path) in await other.see("spark")


async def test_the_doctor_finds_what_it_finds_on_the_command_line(
    broker: RowMQ, operator: Operator
) -> None:
    assert "In order" not in await operator.see("doctor")
    put_failed(broker, 30)
    shown = await operator.see("doctor", examine="yes")
    found = [one for one in broker.doctor() if one.level is not rowmq.Level.OK]
    assert found
    for finding in found:
        assert finding.advice is None or " ".join(finding.advice.split()) in shown
    only = await operator.see("doctor", examine="yes", version="on")
    assert len(only) < len(shown)
    link = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    asked = await operator.client.get("/doctor", params={"examine": "yes"}, headers=link)
    assert asked.status_code == 200
    assert "In order" not in asked.text, "a link of another site has nothing examined"


# --- tokens and the trail -------------------------------------------------------------------------


async def test_a_token_is_shown_once_and_works_until_it_is_revoked(
    database: Database, broker: RowMQ
) -> None:
    async with operating(database.url) as operator:
        form = await operator.read("tokens")
        fields = {"name": "ann", "roles": ["admin", "read"], "topics": "*", "queues": "*\r\nq/*"}
        made = await operator.press(form, "tokens", fields=fields)
        assert made.headers["cache-control"] == "no-store"
        (secret,) = re.findall(r"rowmq_[\w-]{20,}(?=</pre>)", made.text)
    (token,) = broker.access.tokens()
    assert (token.name, token.queues, token.expires_at) == ("ann", ("*", "q/*"), None)
    async with operating(database.url, token=secret, remember_tokens_seconds=0) as operator:
        page = await operator.read("tokens")
        assert secret not in page
        gone = await operator.press(page, "tokens", "ann", "revoke")
        assert gone.status_code == 401


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"name": ""}, "name"),
        ({"name": "a", "roles": []}, "role"),
        ({"name": "(a)"}, "parenthesis"),
    ],
)
async def test_a_token_that_cannot_be_made_is_told_why(
    broker: RowMQ, operator: Operator, fields: dict[str, Any], told: str
) -> None:
    form = await operator.read("tokens")
    answer = await operator.press(form, "tokens", fields={"roles": ["read"], **fields})
    assert answer.status_code == 422
    assert told in text_of(answer.text)
    assert broker.access.tokens() == []


async def test_the_trail_has_every_action_the_last_first(broker: RowMQ, operator: Operator) -> None:
    assert "Nobody has done anything" in await operator.see("audit")
    (id,) = put_failed(broker)
    page = await operator.read("queues")
    await operator.press(page, "queues", "q", "pause")
    page = await operator.read("queues", "q", "jobs", id)
    await operator.press(page, "queues", "q", "retry")
    shown = await operator.see("audit")
    table = shown[shown.index("Details") :]
    assert table.index("job.retry") < table.index("queue.pause")
    assert f"ids {id}" in table
    page = await operator.read("audit", action="queue.pause")
    rows = page[page.index("<tbody>") :]
    assert "queue.pause" in rows
    assert "job.retry" not in rows
    assert "no such entry" in await operator.see("audit", who="nobody")


async def test_the_trail_has_pages(broker: RowMQ, operator: Operator) -> None:
    for n in range(150):
        broker.access.record("test", who="ann", target=f"target {n}.")
    page = await operator.read("audit")
    assert "target 149." in page
    assert "target 49." not in page
    (link,) = re.findall(r'rel="next" href="([^"]*)"', page)
    older = (await operator.client.get(link.replace("&amp;", "&"))).text
    assert "target 49." in older
    assert "target 0." in older
    assert 'rel="next"' not in older


# --- what strangers have named --------------------------------------------------------------------


async def test_names_payloads_and_errors_are_text_wherever_they_stand(
    broker: RowMQ, operator: Operator
) -> None:
    queue = broker.queue(EVIL)
    id = queue.put({EVIL: EVIL}, key=EVIL, headers={EVIL: EVIL}, ordering_key=EVIL).id
    job = queue.try_poll()
    assert job is not None
    job.reject(error=f"{EVIL}\n{EVIL}")
    live = broker.queue(EVIL, kind=EVIL[:60]).put(EVIL).id
    broker.cron.install(EVIL, "0 2 * * *", queue=EVIL, payload=EVIL, tend=False)
    beat(broker, EVIL, at_work(handler=EVIL, source=EVIL, id=EVIL, key=EVIL, note=EVIL), host=EVIL)
    broker.publish(EVIL, 1)
    broker._run(partial(broker._store.positions.establish, EVIL, EVIL, Target(start="earliest")))
    broker.access.record(EVIL[:60], who=EVIL, target=EVIL, remote=EVIL, details={EVIL: EVIL})
    with broker.subscribe(EVIL, group="g", name=EVIL):
        for path in (
            ("queues",),
            ("jobs",),
            ("queues", EVIL),
            ("queues", EVIL, "settings"),
            ("queues", EVIL, "put"),
            ("queues", EVIL, "jobs", id),
            ("queues", EVIL, "jobs", live),
            ("schedules",),
            ("schedules", EVIL),
            ("workers",),
            ("workers", EVIL),
            ("spark",),
            ("audit",),
        ):
            page = await operator.read(*path)
            assert "alert(1)" in page, path
            assert "<script>alert" not in page
            assert "<img" not in page
            assert not re.search(r'="[^"]*"\'>', page)
        for query in ({"kind": EVIL}, {"key": EVIL}, {"header": EVIL}, {"since": EVIL}):
            answer = await operator.get("queues", EVIL, **query)
            assert "<img" not in answer.text
        for fields in ({"payload": EVIL}, {"payload": "1", "priority": EVIL, "headers": EVIL}):
            form = await operator.read("queues", EVIL, "put")
            answer = await operator.press(form, "queues", EVIL, "put", fields=fields)
            assert answer.status_code == 422
            assert "<img" not in answer.text
    for action in ("pause", "resume"):
        page = await operator.read("queues", EVIL)
        await operator.press(page, "queues", EVIL, action)
        assert next(one for one in broker.queues() if one.name == EVIL).paused is (
            action == "pause"
        )


async def test_what_is_out_of_scope_is_not_listed(database: Database, broker: RowMQ) -> None:
    put_failed(broker, queue="theirs")
    put_failed(broker, queue="ours")
    broker.cron.install("their nightly", "0 2 * * *", queue="theirs", tend=False)
    broker.publish("their topic", 1)
    beat(broker, "w-1-a", at_work(source="theirs", note="their note"), at_work(source="ours"))
    secret = broker.access.create_token("us", roles=["read"], topics=["ours"], queues=["our*"])
    with broker.subscribe("their topic", group="their group", name="their subscriber"):
        async with operating(database.url, token=secret) as operator:
            for path in ("queues", "jobs", "schedules", "workers", "spark"):
                assert "their" not in await operator.see(path), path
            assert "ours" in await operator.see("queues")
            for path in ("doctor", "tokens", "audit"):
                assert (await operator.get(path)).status_code == 403
            for theirs in (("queues", "theirs"), ("schedules", "their nightly")):
                assert (await operator.get(*theirs)).status_code in (403, 404)
