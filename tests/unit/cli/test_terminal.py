"""Commands as people run them: on a terminal, in pipes, with Ctrl-C and Tab."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.shell_completion import BashComplete
from click.testing import CliRunner

import rowmq
from rowmq.cli.main import app
from tests.unit.cli.running import (
    SECONDS_MAX,
    Terminal,
    answer,
    command,
    environment,
    process_environment,
    url_of,
)

EVIL = "\x1b[31mred\x1b]0;owned\x07\x9b2J\u202eevil\r[bold]x[/bold]:smile:"
"""What takes over a terminal that is shown it."""


@pytest.fixture
def url(tmp_path: Path) -> str:
    return url_of(tmp_path)


@pytest.fixture
def mq(url: str) -> Iterator[rowmq.RowMQ]:
    with rowmq.connect(url) as client:
        yield client


def started(url: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command(*arguments),
        env=process_environment(url),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


# --- following, and ending it ---------------------------------------------------------------------


def test_tail_follows_what_others_publish_and_ends_with_ctrl_c(url: str, mq: rowmq.RowMQ) -> None:
    mq.publish("t", "before", key="a")
    with started(url, "tail", "t", "-n", "1", "--json") as tail:
        assert tail.stdout is not None
        assert json.loads(tail.stdout.readline())["payload"] == "before"
        for n in range(3):
            mq.publish("t", n, key=f"new {n}")
        mq.publish("t", 3, key="a")
        seen = [json.loads(tail.stdout.readline())["payload"] for _ in range(4)]
        assert sorted(seen) == [0, 1, 2, 3]
        tail.send_signal(signal.SIGINT)
        shown, told = tail.communicate(timeout=SECONDS_MAX)
    assert (tail.returncode, shown, told.strip()) == (130, "", "")


def test_tail_waits_for_a_topic_that_is_not_there_yet(url: str, mq: rowmq.RowMQ) -> None:
    with started(url, "tail", "t", "--limit", "2", "--json") as tail:
        deadline = time.monotonic() + SECONDS_MAX
        while tail.poll() is None and time.monotonic() < deadline:
            mq.publish("t", "first")  # it may not look yet
            time.sleep(0.05)
        shown, _ = tail.communicate(timeout=SECONDS_MAX)
    assert tail.returncode == 0
    assert [json.loads(line)["payload"] for line in shown.splitlines()] == ["first"] * 2


@pytest.mark.parametrize("more", [[], ["--json"]], ids=["people", "programs"])
def test_a_reader_who_goes_ends_tail_without_a_word(
    url: str, mq: rowmq.RowMQ, more: list[str]
) -> None:
    mq.publish_many("t", [rowmq.Message(payload="x" * 1_000) for _ in range(2_000)])
    with started(url, "tail", "t", "--from", "earliest", *more) as tail:
        assert tail.stdout is not None
        assert tail.stderr is not None
        tail.stdout.readline()
        tail.stdout.close()
        told = tail.stderr.read()
        assert tail.wait(SECONDS_MAX) == 141
    assert told == ""


def test_a_log_file_that_grows_is_published_as_it_grows(url: str, mq: rowmq.RowMQ) -> None:
    with started(url, "publish", "t") as publish:
        assert publish.stdin is not None
        for n in range(3):
            publish.stdin.write(f"{n}\n")
            publish.stdin.flush()
            deadline = time.monotonic() + SECONDS_MAX
            while [m.payload for m in mq.read("t")] != list(range(n + 1)):
                assert time.monotonic() < deadline
                time.sleep(0.01)
        shown, _ = publish.communicate(timeout=SECONDS_MAX)
    assert shown == "published 3 messages to t (new)\n"


def test_ctrl_c_in_the_middle_of_publishing_ends_without_a_traceback(url: str) -> None:
    with started(url, "publish", "t") as publish:
        assert publish.stdin is not None
        publish.stdin.write("1\n")
        publish.stdin.flush()
        path = Path(url.removeprefix("sqlite:///"))
        deadline = time.monotonic() + SECONDS_MAX
        while not path.exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        publish.send_signal(signal.SIGINT)
        assert publish.stderr is not None
        told = publish.stderr.read()
        assert publish.wait(SECONDS_MAX) == 130
    assert told.strip() == ""


# --- a terminal -----------------------------------------------------------------------------------


def test_what_deletes_asks_on_a_terminal(url: str, mq: rowmq.RowMQ) -> None:
    mq.queue("q").put(1, key="k")
    asked = Terminal(url, "jobs", "drop", "q", "k")
    asked.read_until("Go on? [y/N]: ")
    asked.type("n\n")
    assert asked.end() == 1
    assert "nothing was changed" in asked.shown
    assert mq.queue("q").contains("k")
    asked = Terminal(url, "jobs", "drop", "q", "k")
    asked.read_until("Go on? [y/N]: ")
    asked.type("y\n")
    assert asked.end() == 0
    assert not mq.queue("q").contains("k")


def test_ctrl_c_at_a_question_changes_nothing(url: str, mq: rowmq.RowMQ) -> None:
    mq.queue("q").put(1, key="k")
    asked = Terminal(url, "jobs", "drop", "q", "k")
    asked.read_until("Go on? [y/N]: ")
    asked.interrupt()
    assert asked.end() == 130
    assert "Traceback" not in asked.shown
    assert mq.queue("q").contains("k")


def test_what_takes_long_shows_a_bar_and_takes_it_away(url: str, mq: rowmq.RowMQ) -> None:
    mq.publish("t", 1)
    slow = Terminal(url, "publish", "t", "--file", "-")
    slow.read_until("publishing to t")
    slow.type("2\n\x04")
    assert slow.end() == 0
    assert "\x1b[2K" in slow.shown
    assert slow.shown.splitlines()[-1].endswith("published 1 message to t")
    quick = Terminal(url, "publish", "t", "3")
    assert quick.end() == 0
    assert "publishing" not in quick.shown


def test_colours_are_for_terminals_that_want_them(url: str, mq: rowmq.RowMQ) -> None:
    mq.queue("q").put(1)
    coloured = Terminal(url, "jobs", "q")
    assert coloured.end() == 0
    assert "\x1b[36mpending" in coloured.shown
    plain = Terminal(url, "jobs", "q", NO_COLOR="1")
    assert plain.end() == 0
    assert "\x1b[36m" not in plain.shown
    assert "\x1b" not in answer(url, "jobs", "q")


def test_lag_is_watched_until_ctrl_c(url: str, mq: rowmq.RowMQ) -> None:
    mq.publish("t", 1)
    mq.create_group("t", "billing")
    watched = Terminal(url, "lag", "t", "--watch", "--interval", "0.1s")
    watched.read_until("billing")
    watched.shown = ""
    watched.read_until("billing")
    os.kill(watched.process.pid, signal.SIGINT)
    assert watched.end() == 130
    assert "Traceback" not in watched.shown


def test_a_watched_lag_is_json_lines_for_programs(url: str, mq: rowmq.RowMQ) -> None:
    mq.publish("t", 1)
    mq.create_group("t", "g")
    with started(url, "lag", "t", "--watch", "--interval", "0.1s", "--json") as watched:
        assert watched.stdout is not None
        lags = [json.loads(watched.stdout.readline())["groups"][0]["lag"] for _ in range(2)]
        watched.send_signal(signal.SIGINT)
        assert watched.wait(SECONDS_MAX) == 130
    assert lags == [1, 1]


@pytest.fixture
def infested(mq: rowmq.RowMQ) -> None:
    """Everything that can be named by anybody has a name that takes over terminals."""
    mq.publish(EVIL, {"note": EVIL}, key=EVIL, id=EVIL, headers={"h": EVIL})
    mq.publish(EVIL, EVIL, key=EVIL, id=EVIL + "2")
    with mq.subscribe(EVIL, group=EVIL, name=EVIL, discovery_interval=0.05) as sub:
        first, *_ = sub.poll(max=1, timeout=10)
        first.reject(error=EVIL)
    queue = mq.queue(EVIL)
    queue.put(EVIL, key=EVIL, headers={"h": EVIL})
    queue.put({EVIL: EVIL}, priority=1)
    job = queue.try_poll()
    assert job is not None
    job.reject(error=EVIL)
    mq.cron.install(EVIL, "0 2 * * *", payload=EVIL, queue=EVIL, tend=False)


SHOWING = [
    ["topics"], ["topics", EVIL], ["groups", EVIL], ["lag", EVIL], ["lag", EVIL, "--partitions"],
    ["groups"], ["lag"], ["lag", "--partitions"], ["dlq"], ["jobs", "show", EVIL, "1000"],
    ["seek", EVIL, EVIL, "--to", "earliest", "--dry-run"], ["tail", EVIL, "--no-follow"],
    ["dlq", EVIL], ["dlq", "show", EVIL, EVIL], ["dlq", "redrive", EVIL, "--dry-run"],
    ["queues"], ["queues", EVIL], ["jobs", EVIL], ["jobs", EVIL, "--state", "failed"],
    ["jobs", "drop", EVIL, EVIL, "--dry-run"], ["jobs", "show", EVIL, "1001"], ["schedules"],
    ["schedules", EVIL], ["publish", EVIL, EVIL, "--key", EVIL, "--id", EVIL],
    ["jobs", "put", EVIL, EVIL], ["jobs", "put", EVIL, EVIL, "--key", EVIL],
    ["queues", "pause", EVIL], ["groups", "create", EVIL, EVIL], ["gc"], ["gc", EVIL],
    ["groups", "drop", EVIL, "\x1b[31m"], ["lag", EVIL + "x"], ["topics", "configure", EVIL,
    "--retention", "7d"], ["groups", "drop", EVIL, EVIL, "--dry-run"],
    ["dlq", "purge", EVIL, "--yes"], ["schedules", "next", EVIL], ["schedules", "pause", EVIL],
]  # fmt: skip


@pytest.mark.usefixtures("infested")
def test_no_name_payload_or_error_acts_on_a_terminal(url: str) -> None:
    settings = environment(url, FORCE_COLOR="1", NO_COLOR="1")
    for words in SHOWING:
        for more in ([], ["--json"]):
            result = CliRunner().invoke(app, [*words, *more], env=settings)
            shown = result.output
            # What rich itself writes: bold, dim, and plain again.
            for style in ("\x1b[1m", "\x1b[2m", "\x1b[0m"):
                shown = shown.replace(style, "")
            assert {c for c in shown.replace("\n", "") if not c.isprintable()} == set(), words
            assert isinstance(result.exception, SystemExit | None), words


# --- completion -----------------------------------------------------------------------------------


def completions(url: str | None, *words: str, last: str = "") -> list[str]:
    """What a shell is offered after these words."""
    complete = BashComplete(app, {}, "rowmq", "_ROWMQ_COMPLETE")
    with CliRunner().isolation(env=environment(url)) as (out, err, *_):
        found = complete.get_completions(list(words), last)
        assert (out.getvalue(), err.getvalue()) == (b"", b"")
    return [item.value for item in found]


@pytest.fixture
def named(mq: rowmq.RowMQ) -> None:
    mq.publish("orders", 1)
    mq.publish("outbox", 1)
    mq.publish("$(rm -rf x)", 1)
    mq.publish("two words", 1)
    mq.create_group("orders", "billing")
    mq.queue("emails").put(1)
    mq.cron.install("reports", "0 2 * * *", payload=1, queue="emails", tend=False)


@pytest.mark.usefixtures("named")
@pytest.mark.parametrize(
    ("words", "last", "offered"),
    [
        (["tail"], "o", ["orders", "outbox"]),
        (["tail"], "or", ["orders"]),
        (["lag", "orders"], "", ["billing"]),
        (["seek", "orders"], "b", ["billing"]),
        (["jobs", "put"], "e", ["emails"]),
        (["queues"], "em", ["emails"]),
        (["schedules", "pause"], "", ["reports"]),
        (["topics"], "or", ["orders"]),
        (["topics"], "conf", ["configure"]),
        (["gc"], "$", []),
    ],
)
def test_names_are_completed_from_the_database(
    url: str, words: list[str], last: str, offered: list[str]
) -> None:
    assert completions(url, *words, last=last) == offered


@pytest.mark.parametrize("words", [["publish", "t"], ["jobs", "put", "q"]], ids=" ".join)
@pytest.mark.parametrize("option", ["--file", "-f"])
def test_names_of_files_are_completed_by_the_shell(words: list[str], option: str) -> None:
    complete = BashComplete(app, {}, "rowmq", "_ROWMQ_COMPLETE")
    (item,) = complete.get_completions([*words, option], "co")
    assert (item.type, item.value) == ("file", "co")


def test_completing_a_worker_offers_options_and_runs_no_app(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "app.py").write_text("raise SystemExit('it was imported')")
    monkeypatch.chdir(tmp_path)
    assert completions(None, "worker") == []
    assert completions(None, "worker", last="ap") == []
    assert completions(None, "worker", "app:app", last="--proc") == ["--processes"]
    assert completions(None, "worker", "app:app", "--health", "nonsense", last="--proc") == [
        "--processes"
    ]
    assert completions(None, "worker", "app:app", "--log-format", last="js") == ["json"]


@pytest.mark.parametrize(
    "url",
    [None, "sqlite:////nowhere/queue.db", "nonsense", "postgresql://u:p@127.0.0.1:1/x"],
)
def test_without_a_database_nothing_is_completed_and_nothing_is_said(url: str | None) -> None:
    assert completions(url, "tail") == []
    assert "topics" in completions(url, last="to")


@pytest.mark.usefixtures("named")
def test_the_shell_is_told_names_and_nothing_else(url: str) -> None:
    settings = process_environment(
        url, _ROWMQ_COMPLETE="bash_complete", COMP_WORDS="rowmq tail ord", COMP_CWORD="2"
    )
    done = subprocess.run(command(), env=settings, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("plain,orders\n", "")
