"""Commands about queues, jobs, schedules and workers, on SQLite."""

import asyncio
import json
import os
import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import rowmq
from tests.unit.cli.running import answer, invoke, json_of, url_of


@pytest.fixture
def url(tmp_path: Path) -> str:
    return url_of(tmp_path)


@pytest.fixture
def mq(url: str) -> Iterator[rowmq.RowMQ]:
    with rowmq.connect(url) as client:
        yield client


def lines(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


@pytest.fixture
def emails(mq: rowmq.RowMQ) -> dict[str, int]:
    """A queue with a job in each state; their ids."""
    queue = mq.queue("emails", retry=rowmq.Constant(interval=3600, max_attempts=5))
    queue.put_many(["completed", "failed", "retryable", "processing"])
    done, failed, again, taken = queue.try_poll_many(4)
    done.ack()
    failed.reject(error="no such address")
    again.nack(error="the server is busy")
    pending = queue.put("pending", key="reminder-7", delay=60, headers={"h": "v"})
    return {
        "completed": done.id,
        "failed": failed.id,
        "retryable": again.id,
        "processing": taken.id,
        "pending": pending.id,
    }


# --- queues ---------------------------------------------------------------------------------------


@pytest.mark.usefixtures("emails")
def test_queues_are_listed_with_their_jobs_counted(url: str) -> None:
    header, row = lines(answer(url, "queues"))
    assert header == ["queue", "pending", "processing", "retryable", "completed", "failed"]
    assert row == ["emails", "1", "1", "1", "1", "1"]
    told = json_of(url, "queues", "emails")
    assert told["counts"] == dict.fromkeys(header[1:], 1)
    assert (told["retention_seconds"], told["failed_retention_seconds"]) == (604_800, None)
    assert json_of(url, "queues") == [told]
    assert "1 pending, 1 processing" in answer(url, "queues", "emails")
    assert invoke(url, "queues", "nothing").exit_code == 3


@pytest.mark.usefixtures("emails")
def test_a_queue_is_paused_and_resumed(url: str, mq: rowmq.RowMQ) -> None:
    answer(url, "queues", "pause", "emails")
    assert mq.queues()[0].paused
    assert lines(answer(url, "queues"))[1][-1] == "paused"
    assert json_of(url, "queues", "resume", "emails") == {"queue": "emails", "paused": False}
    assert not mq.queues()[0].paused
    assert invoke(url, "queues", "pause", "nothing").exit_code == 3
    assert len(mq.queues()) == 1


def test_a_queue_is_configured(url: str, mq: rowmq.RowMQ) -> None:
    limits = ["--max-in-flight", "5", "--rate", "100", "--rate-period", "1m"]
    kept = ["--retention", "1d", "--failed-retention", "forever", "--no-keep-completed"]
    answer(url, "queues", "configure", "emails", *limits, *kept, "--max-payload", "64KiB")
    (info,) = mq.queues()
    assert (info.max_in_flight, info.rate, info.rate_period) == (5, 100, timedelta(minutes=1))
    assert (info.retention, info.failed_retention) == (timedelta(days=1), None)
    assert (info.keep_completed, info.keep_failed) == (False, True)
    assert (info.max_payload_bytes, info.durability) == (65_536, "full")
    told = json_of(url, "queues", "configure", "emails", "--max-in-flight", "none")
    assert (told["max_in_flight"], told["rate"]) == (None, 100)
    told = json_of(url, "queues", "configure", "emails", "--durability", "relaxed")
    assert (told["durability"], mq.queues()[0].durability) == ("relaxed", "relaxed")
    assert ["durability", "relaxed"] in lines(answer(url, "queues", "ls", "emails"))
    assert lines(answer(url, "queues"))[1][-1] == "relaxed"
    answer(url, "queues", "pause", "emails")
    assert lines(answer(url, "queues"))[1][-2:] == ["paused,", "relaxed"]
    assert invoke(url, "queues", "configure", "emails", "--durability", "off").exit_code == 2
    assert invoke(url, "queues", "configure", "emails").exit_code == 2
    assert invoke(url, "queues", "configure", "emails", "--rate", "fast").exit_code == 2


# --- jobs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["pending", "processing", "retryable", "completed", "failed"])
def test_jobs_are_listed_by_their_state(url: str, emails: dict[str, int], state: str) -> None:
    (job,) = json_of(url, "jobs", "emails", "--state", state)
    assert (job["id"], job["state"], job["payload"]) == (emails[state], state, state)
    header, row = lines(answer(url, "jobs", "emails", "--state", state))
    assert header[:2] == ["id", "state"]
    assert row[:2] == [str(emails[state]), state]


def test_jobs_are_listed_alive_or_all(url: str, emails: dict[str, int]) -> None:
    live = [job["id"] for job in json_of(url, "jobs", "emails")]
    assert live == [emails[state] for state in ("processing", "pending", "retryable")]
    everything = [job["id"] for job in json_of(url, "jobs", "emails", "--state", "all")]
    assert everything[:3] == live
    assert set(everything) == set(emails.values())
    assert len(json_of(url, "jobs", "emails", "--state", "all", "--limit", "4")) == 4
    assert [j["id"] for j in json_of(url, "jobs", "emails", "--key", "reminder-7")] == live[1:2]
    assert json_of(url, "jobs", "emails", "--key", "nothing") == []
    assert "no such address" in answer(url, "jobs", "emails", "--state", "failed")
    assert invoke(url, "jobs", "nothing").exit_code == 3


def test_where_no_jobs_are_alive_it_is_said_which_others_there_are(
    url: str, mq: rowmq.RowMQ
) -> None:
    queue = mq.queue("emails")
    queue.put_many(["a", "b", "c"])
    done, *failed = queue.try_poll_many(3)
    done.ack()
    for job in failed:
        job.reject(error="bad")
    told = invoke(url, "jobs", "emails").stderr
    assert "no live jobs, but 1 completed, 2 failed: rowmq jobs emails --state all" in told
    assert "no live job with the key 'k'" in invoke(url, "jobs", "emails", "--key", "k").stderr
    queue.prune(older_than=0, state=rowmq.State.FAILED)
    queue.prune(older_than=0)
    assert invoke(url, "jobs", "emails").stderr == "queue 'emails' has no live jobs\n"


def test_errors_and_text_are_shown_line_by_line_and_act_on_no_terminal(
    url: str, mq: rowmq.RowMQ
) -> None:
    queue = mq.queue("q")
    queue.put("first\n\x1b[31msecond")
    job = queue.try_poll()
    assert job is not None
    job.reject(error="1 validation error\n  id\n    missing\x1b[2J\r")
    shown = answer(url, "jobs", "show", "q", str(job.id))
    assert ["error", "1", "validation", "error"] in lines(shown)
    assert ["id"] in lines(shown)
    assert ["missing\\x1b[2J\\r"] in lines(shown)
    assert shown.endswith("\npayload\nfirst\n\\x1b[31msecond\n")


def test_a_job_is_shown(url: str, emails: dict[str, int]) -> None:
    told = json_of(url, "jobs", "show", "emails", str(emails["pending"]))
    due = datetime.fromisoformat(told.pop("due_at")) - datetime.fromisoformat(
        told.pop("created_at")
    )
    assert due == timedelta(seconds=60)
    assert told == {
        "id": emails["pending"],
        "queue": "emails",
        "state": "pending",
        "kind": None,
        "key": "reminder-7",
        "ordering_key": None,
        "priority": 0,
        "attempts": 0,
        "deliveries": 0,
        "finished_at": None,
        "error": None,
        "headers": {"h": "v"},
        "payload": "pending",
        "encoding": "text",
        "errors": [],
    }
    told = json_of(url, "jobs", "show", "emails", str(emails["retryable"]))
    assert [(error["attempt"], error["error"]) for error in told["errors"]] == [
        (1, "the server is busy")
    ]
    shown = answer(url, "jobs", "show", "emails", str(emails["retryable"]))
    assert "the server is busy" in shown
    assert "retryable" in shown
    assert invoke(url, "jobs", "show", "emails", "7").exit_code == 3
    assert invoke(url, "jobs", "show", "other", str(emails["pending"])).exit_code == 3
    assert invoke(url, "jobs", "show", "emails", "seven").exit_code == 2


def test_jobs_are_put(url: str, mq: rowmq.RowMQ) -> None:
    how = ["--priority", "3", "--delay", "1h", "--header", "a=b", "--ordering-key", "o"]
    told = json_of(url, "jobs", "put", "emails", '{"to": "ann"}', "text", *how)
    first, second = mq.queue("emails").live()
    assert told == {"queue": "emails", "put": 2, "ids": [first.id, second.id]}
    assert (first.payload, second.payload) == ({"to": "ann"}, "text")
    assert (first.priority, first.headers, first.ordering_key) == (3, {"a": "b"}, "o")
    assert timedelta(minutes=59) < first.due_at - datetime.now(UTC) < timedelta(minutes=61)
    answer(url, "jobs", "put", "timed", "1", "--at", "2030-01-01T01:00:00+01:00", "--key", "k")
    (job,) = mq.queue("timed").live()
    assert (job.due_at, job.key) == (datetime(2030, 1, 1, tzinfo=UTC), "k")


def test_put_says_that_a_queue_is_new(url: str, mq: rowmq.RowMQ) -> None:
    assert answer(url, "jobs", "put", "emials", "1").startswith("put 1 job into emials (new): ")
    assert answer(url, "jobs", "put", "emials", "1").startswith("put 1 job into emials: ")
    mq.queue("emails").configure(max_in_flight=1)
    assert "(new)" not in answer(url, "jobs", "put", "emails", "1")
    assert "(new)" not in answer(url, "jobs", "put", "others", input="")


def test_jobs_are_put_from_files_and_stdin(url: str, mq: rowmq.RowMQ, tmp_path: Path) -> None:
    path = tmp_path / "jobs.jsonl"
    path.write_text("1\n2\n")
    shown = answer(url, "jobs", "put", "q", "--file", str(path), "-f", "-", input="3\n")
    assert shown == "put 3 jobs into q (new)\n"
    assert [job.payload for job in mq.queue("q").live()] == [1, 2, 3]
    result = invoke(url, "jobs", "put", "q", input="1\n{bad\n")
    assert result.exit_code == 1
    assert "stdin:2: this is no JSON" in result.stderr
    assert mq.queue("q").counts()["pending"] == 3


@pytest.mark.usefixtures("emails")
@pytest.mark.parametrize(
    ("arguments", "code", "story"),
    [
        (["x", "--delay", "1h", "--at", "2030-01-01T00:00:00Z"], 2, "not both"),
        (["x", "y", "--key", "k"], 2, "one PAYLOAD"),
        (["x", "--at", "2030-01-01T00:00:00"], 2, "2030-01-01T00:00:00Z"),
        (["x", "--key", "reminder-7"], 1, "KeyTaken"),
        (["x", "--priority", "99999"], 1, "InvalidOption"),
    ],
)
def test_what_cannot_be_put_is_refused(
    url: str, mq: rowmq.RowMQ, arguments: list[str], code: int, story: str
) -> None:
    before = mq.queue("emails").counts()
    result = invoke(url, "jobs", "put", "emails", *arguments)
    assert result.exit_code == code
    assert story in result.stderr
    assert mq.queue("emails").counts() == before


def test_failed_jobs_are_retried(url: str, mq: rowmq.RowMQ, emails: dict[str, int]) -> None:
    id = str(emails["failed"])
    assert answer(url, "jobs", "retry", "emails", id, "--dry-run") == "would be retried: 1 job\n"
    assert mq.queue("emails").counts()["failed"] == 1
    assert answer(url, "jobs", "retry", "emails", id) == "retried 1 job\n"
    assert mq.queue("emails").counts()["failed"] == 0
    assert invoke(url, "jobs", "retry", "emails", id).exit_code == 3
    assert invoke(url, "jobs", "retry", "emails").exit_code == 2
    assert invoke(url, "jobs", "retry", "emails", id, "--all").exit_code == 2


def test_all_failed_jobs_are_retried_but_those_whose_key_is_taken(
    url: str, mq: rowmq.RowMQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rowmq.cli.jobs.BATCH", 3)
    queue = mq.queue("q")
    queue.offer_batch([rowmq.ScheduledMessage(f"k{n}", n) for n in range(12)])
    for job in queue.try_poll_many(12):
        job.reject(error="no")
    for n in (0, 7, 10, 11):
        queue.put("taken", key=f"k{n}")
    told = json_of(url, "jobs", "retry", "q", "--all")
    assert told == {"queue": "q", "retried": 8, "found": 12, "dry_run": False}
    assert {job.key for job in queue.failed()} == {"k0", "k7", "k10", "k11"}
    assert "4 left as they are" in answer(url, "jobs", "retry", "q", "--all")


def test_a_job_is_dropped_by_its_key(url: str, mq: rowmq.RowMQ, emails: dict[str, int]) -> None:
    refused = invoke(url, "jobs", "drop", "emails", "reminder-7")
    assert refused.exit_code == 2
    assert "--yes" in refused.stderr
    answer(url, "jobs", "drop", "emails", "reminder-7", "--dry-run")
    assert mq.queue("emails").contains("reminder-7")
    told = json_of(url, "jobs", "drop", "emails", "reminder-7", "--yes")
    assert (told["id"], told["dropped"]) == (emails["pending"], True)
    assert not mq.queue("emails").contains("reminder-7")
    assert invoke(url, "jobs", "drop", "emails", "reminder-7", "--yes").exit_code == 3


@pytest.mark.usefixtures("emails")
def test_finished_jobs_are_pruned(url: str, mq: rowmq.RowMQ) -> None:
    refused = invoke(url, "jobs", "prune", "emails", "--older-than", "0s")
    assert refused.exit_code == 2
    assert "completed jobs of queue 'emails' that finished more than 0s ago" in refused.stderr
    assert json_of(url, "jobs", "prune", "emails", "--yes") == {"queue": "emails", "pruned": 0}
    answer(url, "jobs", "prune", "emails", "--older-than", "0s", "--yes")
    assert mq.queue("emails").counts()["completed"] == 0
    options = ["--older-than", "0s", "--state", "failed", "--yes"]
    assert answer(url, "jobs", "prune", "emails", *options) == "pruned 1 job of emails\n"
    assert invoke(url, "jobs", "prune", "nothing", "--yes").exit_code == 3


# --- schedules and workers ------------------------------------------------------------------------


@pytest.fixture
def reports(mq: rowmq.RowMQ) -> None:
    mq.cron.install(
        "reports", "0 2 * * *", payload={"a": 1}, queue="reports", tz="Europe/Paris", tend=False
    )


@pytest.mark.usefixtures("reports")
def test_schedules_are_listed_and_looked_at(url: str) -> None:
    assert lines(answer(url, "schedules"))[1][:9] == [
        "reports", "0", "2", "*", "*", "*", "Europe/Paris", "queue", "reports"
    ]  # fmt: skip
    told = json_of(url, "schedules", "reports")
    assert json_of(url, "schedules") == [told]
    assert (told["schedule"], told["expression"], told["payload"]) == (
        "reports",
        "0 2 * * *",
        {"a": 1},
    )
    assert datetime.fromisoformat(told["next_at"]) > datetime.now(UTC)
    assert 'payload\n{\n  "a": 1\n}' in answer(url, "schedules", "reports")
    assert invoke(url, "schedules", "nothing").exit_code == 3


@pytest.mark.usefixtures("reports")
def test_schedules_tell_when_they_fire(url: str) -> None:
    told = json_of(url, "schedules", "next", "reports", "--count", "3")
    times = [datetime.fromisoformat(time) for time in told["next"]]
    assert len(times) == 3
    assert times == sorted(times)
    shown = answer(url, "schedules", "next", "reports", "-n", "2")
    assert shown.count("02:00:00") == 2


@pytest.mark.usefixtures("reports")
def test_schedules_are_paused_resumed_run_and_removed(url: str, mq: rowmq.RowMQ) -> None:
    assert answer(url, "schedules", "pause", "reports") == "paused reports\n"
    assert mq.cron.list()[0].paused
    assert "paused" in answer(url, "schedules")
    assert answer(url, "schedules", "resume", "reports") == "resumed reports\n"
    assert not mq.cron.list()[0].paused
    assert json_of(url, "schedules", "run", "reports")["ran"]
    assert [job.payload for job in mq.queue("reports").live()] == [{"a": 1}]
    assert invoke(url, "schedules", "rm", "reports").exit_code == 2
    removed = invoke(url, "schedules", "rm", "reports", "--yes")
    assert (removed.exit_code, removed.stdout, removed.stderr) == (0, "removed reports\n", "")
    assert mq.cron.list() == []


async def test_removing_the_schedule_of_an_app_says_that_it_comes_back(url: str) -> None:
    app = rowmq.App(url)

    @app.cron("0 2 * * *")
    async def nightly() -> None:
        """Never runs here."""

    async with app:
        removed = invoke(url, "schedules", "rm", "nightly", "--yes")
    assert removed.stdout == "removed nightly\n"
    assert "installs it again when it starts" in removed.stderr
    async with app:
        assert json_of(url, "schedules", "rm", "nightly", "--yes")["removed"]


@pytest.mark.parametrize("verb", ["pause", "resume", "run", "next", "rm"])
def test_a_schedule_that_is_not_there_is_not_found(url: str, verb: str) -> None:
    answer(url, "migrate")
    more = ["--yes"] if verb == "rm" else []
    result = invoke(url, "schedules", verb, "nothing", *more)
    assert result.exit_code == 3
    assert "rowmq schedules lists them" in result.stderr


@pytest.mark.usefixtures("reports")
def test_a_schedule_that_was_misspelt_is_answered_with_one(url: str) -> None:
    assert "did you mean 'reports'?" in invoke(url, "schedules", "pause", "report").stderr


def test_there_are_no_workers(url: str) -> None:
    answer(url, "migrate")
    assert json_of(url, "workers") == []
    assert "no workers" in invoke(url, "workers").stderr
    assert "at nothing" in invoke(url, "workers", "--running").stderr


async def test_workers_are_listed_with_what_they_are_at(url: str) -> None:
    app = rowmq.App(url, name="shop")
    begun, end = asyncio.Event(), asyncio.Event()

    @app.worker("emails")
    async def send(email: str, progress: rowmq.Progress) -> None:  # noqa: ARG001 - as it is put
        progress.report(0.4, "reading\x1b[31m")
        begun.set()
        await end.wait()

    async with app:
        await app.mq.queue("emails").put("ann", key="k")
        await asyncio.wait_for(begun.wait(), 20)
        deadline = time.monotonic() + 20
        while not [
            running["progress"]
            for worker in json_of(url, "workers")  # it may not have been heard of yet
            for running in worker["running"]
            if running["progress"]
        ]:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        (worker,) = json_of(url, "workers")
        shown, table = answer(url, "workers"), answer(url, "workers", "--running")
        end.set()
    assert (worker["app"], worker["alive"], worker["pid"]) == ("shop", True, os.getpid())
    (running,) = worker["running"]
    assert (running["source"], running["key"], running["progress"]) == ("emails", "k", 0.4)
    assert running["source_type"] == "queue"
    assert running["note"] == "reading\x1b[31m"
    assert "alive" in shown
    assert re.search(r" (now|[0-9]+s ago) +(now|[0-9]+s ago) *\n", shown)
    assert "40% reading\\x1b[31m" in table


# --- completion -----------------------------------------------------------------------------------


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script_and_how_to_install_it(shell: str) -> None:
    first, *script = answer(None, "completion", shell).splitlines()
    assert first.startswith("# ")
    assert f"rowmq completion {shell}" in first
    assert "_ROWMQ_COMPLETE" in "\n".join(script)
    told = json.loads(answer(None, "completion", shell, "--json"))
    assert told["shell"] == shell
    assert "rowmq completion nushell" not in first
    assert invoke(None, "completion", "nushell").exit_code == 2
