"""`rowmq worker`, as a user starts it: real processes, on SQLite."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import rowmq

TASKS = """
import asyncio, os, sys, time
import rowmq

app = rowmq.App("sqlite:///queue.db", graceful_timeout=5)

@app.worker("emails", concurrency=2, lock_timeout=2)
async def send(email: str) -> None:
    with open("sent.txt", "a") as file:
        print(email, os.getpid(), file=file)
    await asyncio.sleep(0.01)

@app.worker("sleepy")
async def sleep(seconds: float) -> None:
    with open("sent.txt", "a") as file:
        print("sleeping", os.getpid(), file=file)
    await asyncio.sleep(seconds)

@app.worker("deadly")
async def die(_: int) -> None:
    os._exit(9)

@app.subscriber("orders", group="billing")
def bill(order: dict) -> None:
    with open("sent.txt", "a") as file:
        print("order", order["id"], file=file)

def make_app() -> rowmq.App:
    return app

nothing = 3
"""

LOGGING = """
import logging
import rowmq

log = logging.getLogger("shop")
app = rowmq.App("sqlite:///queue.db")

@app.subscriber("orders", group="billing")
def bill(order: dict) -> None:
    log.info("billed")

@app.worker("emails")
async def send(email: str) -> None:
    log.info("sent")
"""

SECONDS_MAX = 20.0


class Worker:
    """A `rowmq worker` in a directory."""

    def __init__(self, folder: Path, *arguments: str, env: dict[str, str] | None = None) -> None:
        self.folder = folder
        self._err = (folder / "err.txt").open("w")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "rowmq", "worker", *arguments],
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=self._err,
            env=os.environ | (env or {}),
        )

    @property
    def log(self) -> str:
        return (self.folder / "err.txt").read_text()

    @property
    def sent(self) -> list[str]:
        path = self.folder / "sent.txt"
        return path.read_text().splitlines() if path.exists() else []

    def until(self, condition: Callable[[], Any]) -> Any:
        """Wait until something holds."""
        deadline = time.monotonic() + SECONDS_MAX
        while not (found := condition()):
            assert time.monotonic() < deadline, self.log
            assert self.process.poll() is None, self.log
            time.sleep(0.02)
        return found

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(SECONDS_MAX)

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()
        self._err.close()


Start = Callable[..., Worker]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tasks.py").write_text(TASKS)
    return tmp_path


@pytest.fixture
def start(folder: Path) -> Iterator[Start]:
    with contextlib.ExitStack() as stack:

        def begin(*arguments: str, env: dict[str, str] | None = None) -> Worker:
            worker = Worker(folder, *arguments, env=env)
            stack.callback(worker.close)
            return worker

        yield begin


@pytest.fixture
def mq(folder: Path) -> Iterator[rowmq.RowMQ]:
    with rowmq.connect(f"sqlite:///{folder / 'queue.db'}") as client:
        yield client


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        number: int = free.getsockname()[1]
        return number


def ask(port: int, path: str = "/health") -> tuple[int, dict[str, Any]]:
    """What a health check is told; 0 if there is nobody yet."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            text = error.read()
        return error.code, json.loads(text) if text.startswith(b"{") else {}
    except OSError:
        return 0, {}


def test_jobs_and_messages_are_handled_until_sigterm(start: Start, mq: rowmq.RowMQ) -> None:
    mq.queue("emails").put_many(["a", "b", "c"])
    mq.publish("orders", {"id": 7})
    worker = start("tasks:app")
    worker.until(lambda: len(worker.sent) == 4)
    assert worker.stop() == 0
    assert mq.queue("emails").counts()["completed"] == 3
    assert [row.lag for row in mq.lag("orders", "billing")] == [0]
    assert "has stopped" in worker.log


@pytest.mark.parametrize("target", ["tasks", "tasks:make_app"])
def test_the_name_of_an_app_may_be_left_out_or_be_a_function(
    start: Start, mq: rowmq.RowMQ, target: str
) -> None:
    mq.queue("emails").put("a")
    worker = start(target)
    worker.until(lambda: worker.sent)
    assert worker.stop(signal.SIGINT) == 0


def test_filters_leave_other_handlers_alone(start: Start, mq: rowmq.RowMQ) -> None:
    mq.queue("emails").put_many(["a", "b"])
    mq.publish("orders", {"id": 1})
    worker = start("tasks:app", "--queues", "emails,deadly")
    worker.until(lambda: len(worker.sent) == 2)
    assert worker.stop() == 0
    assert mq.topics()[0].messages == 1
    assert mq.groups("orders") == []


def test_the_url_option_wins_over_the_apps_own(start: Start, folder: Path, mq: rowmq.RowMQ) -> None:
    mq.queue("emails").put("here")
    with rowmq.connect(f"sqlite:///{folder / 'other.db'}") as other:
        other.queue("emails").put("there")
    worker = start("tasks:app", "--url", "sqlite:///other.db")
    worker.until(lambda: worker.sent)
    worker.stop()
    assert [line.split()[0] for line in worker.sent] == ["there"]


def test_handlers_that_do_not_end_in_time_are_told_of_by_the_exit_code(
    start: Start, mq: rowmq.RowMQ
) -> None:
    mq.queue("sleepy").put(60.0)
    worker = start("tasks:app", "--graceful-timeout", "0.2")
    worker.until(lambda: worker.sent)
    assert worker.stop() == 5
    counts = mq.queue("sleepy").counts()
    assert counts["retryable"] == 1, "it is tried again"
    assert "still at work" in worker.log


def test_a_second_signal_stops_at_once(start: Start, mq: rowmq.RowMQ) -> None:
    mq.queue("sleepy").put(60.0)
    worker = start("tasks:app", "--graceful-timeout", "60")
    worker.until(lambda: worker.sent)
    worker.process.send_signal(signal.SIGTERM)
    worker.until(lambda: "stopping" in worker.log)
    deadline = time.monotonic() + SECONDS_MAX
    while worker.process.poll() is None:  # the first ones may be too close to be a second one
        assert time.monotonic() < deadline
        worker.process.send_signal(signal.SIGTERM)
        time.sleep(0.05)
    assert worker.process.returncode == 128 + signal.SIGTERM


def test_health_says_how_it_does(start: Start, port: int) -> None:
    worker = start("tasks:app", "--health", str(port))
    worker.until(lambda: ask(port)[0] == 200)
    status, told = ask(port, "/healthz?x=1")
    assert (status, told["healthy"], told["status"]) == (200, True, "running")
    assert {crew["handler"] for crew in told["handlers"]} == {"send", "sleep", "die", "bill"}
    assert ask(port, "/secrets")[0] == 404
    assert worker.stop() == 0


def test_processes_share_the_work_and_are_started_again(
    start: Start, mq: rowmq.RowMQ, port: int
) -> None:
    worker = start("tasks:app", "--processes", "2", "--health", str(port))
    worker.until(lambda: ask(port)[0] == 200)
    pids = {child["pid"] for child in ask(port)[1]["processes"]}
    assert len(pids) == 2
    victim = pids.pop()
    os.kill(victim, signal.SIGKILL)
    worker.until(lambda: ask(port)[0] == 503)
    worker.until(lambda: ask(port)[0] == 200)
    restarts = [child["restarts"] for child in ask(port)[1]["processes"]]
    assert sorted(restarts) == [0, 1]
    mq.queue("emails").put_many([str(number) for number in range(100)])
    worker.until(lambda: mq.queue("emails").counts()["completed"] == 100)
    assert worker.stop() == 0
    assert len({line.split()[1] for line in worker.sent}) == 2, "both had their part"


def test_children_end_when_their_parent_is_killed(start: Start, mq: rowmq.RowMQ, port: int) -> None:
    worker = start("tasks:app", "--processes", "2", "--health", str(port))
    worker.until(lambda: ask(port)[0] == 200)
    assert len(mq.workers()) == 2
    worker.process.kill()
    worker.process.wait()
    deadline = time.monotonic() + SECONDS_MAX
    while mq.workers():
        assert time.monotonic() < deadline, worker.log
        time.sleep(0.05)


def test_a_job_that_kills_its_process_is_given_up(start: Start, mq: rowmq.RowMQ) -> None:
    q = mq.queue("deadly")
    q.put(1)
    for _ in range(2):
        worker = start("tasks:app", "--queues", "deadly")
        assert worker.process.wait(SECONDS_MAX) == 9
        job = q.archive() or q.counts()["processing"]
        assert job == 1, "it is claimed, and nobody has it"
        (token,) = [row[0] for row in rows(mq, "SELECT token FROM rowmq_locks")]
        with mq.transaction() as tx:  # its time has come
            tx.execute("UPDATE rowmq_locks SET locked_until = 1 WHERE token = ?", (token,))
    assert mq.queue("deadly", max_deliveries=2).try_poll() is None
    assert [job.attempts for job in q.failed()] == [0]


def rows(mq: rowmq.RowMQ, sql: str) -> list[Any]:
    with mq.transaction() as tx:
        return list(tx.execute(sql).rows)


@pytest.mark.parametrize(
    ("target", "story"),
    [
        ("nowhere:app", "there is no module nowhere"),
        ("tasks:ap", "it has: app"),
        ("tasks:nothing", "is a int, and not a rowmq.App"),
        ("tasks.py:app", "named by its module: tasks:app"),
        ("./tasks.py", "named by its module: tasks:app"),
    ],
)
def test_a_wrong_target_is_explained(start: Start, target: str, story: str) -> None:
    worker = start(target)
    assert worker.process.wait(SECONDS_MAX) == 2
    assert story in worker.log
    assert "Traceback" not in worker.log


@pytest.mark.parametrize(
    ("option", "value", "story"),
    [
        ("--queues", "emials", "no handler for queues emials"),
        ("--topics", "emails", "no handler for topics emails"),
        ("--health", "here", "give a port"),
        ("--processes", "0", "0 is not in the range"),
    ],
)
def test_a_wrong_option_is_explained(start: Start, option: str, value: str, story: str) -> None:
    worker = start("tasks:app", option, value)
    assert worker.process.wait(SECONDS_MAX) in (1, 2)
    assert story in worker.log
    assert "Traceback" not in worker.log


def test_a_port_that_is_taken_is_an_error(start: Start, port: int) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        worker = start("tasks:app", "--health", str(port))
        assert worker.process.wait(SECONDS_MAX) == 2
    assert "cannot listen" in worker.log


def test_an_app_without_a_database_says_what_to_do(start: Start, folder: Path) -> None:
    (folder / "bare.py").write_text("import rowmq\napp = rowmq.App()\n")
    worker = start("bare:app", env={"ROWMQ_URL": ""})
    assert worker.process.wait(SECONDS_MAX) == 1
    assert "set ROWMQ_URL" in worker.log


@pytest.mark.parametrize("format", ["text", "json"])
def test_a_password_never_reaches_the_log(start: Start, folder: Path, format: str) -> None:
    (folder / "loud.py").write_text(
        "import logging, rowmq\n"
        "app = rowmq.App('postgresql://me:h%40nter2@127.0.0.1:1/shop', retry_for=0)\n"
        "logging.getLogger('rowmq').warning('to %s', 'postgresql://me:p@ss:word@host/shop')\n"
    )
    worker = start("loud:app", "--log-format", format, "--log-level", "debug")
    assert worker.process.wait(SECONDS_MAX) == 1
    assert "me:***@host/shop" in worker.log
    assert not re.search("h(%40|@)nter2|p@ss|word@host", worker.log)


def test_json_logs_are_one_object_a_line(start: Start, mq: rowmq.RowMQ) -> None:
    mq.queue("sleepy").put("no number")
    worker = start("tasks:app", "--log-format", "json")
    worker.until(lambda: mq.queue("sleepy").counts()["failed"] == 1)
    worker.stop()
    lines = [json.loads(line) for line in worker.log.splitlines()]
    assert {"time", "level", "logger", "message", "pid"} <= set(lines[0])
    assert any("does not parse" in line["message"] for line in lines)


def test_a_name_cannot_write_lines_of_the_log(start: Start, folder: Path) -> None:
    (folder / "sly.py").write_text(
        "import logging, rowmq\n"
        "app = rowmq.App('sqlite:///queue.db')\n"
        "logging.getLogger('rowmq').warning('queue %s', 'q\\n12:00:00 INFO all is well\\x1b[2J')\n"
    )
    worker = start("sly:app")
    worker.until(lambda: "runs no handlers" in worker.log)
    worker.stop()
    assert "\\n12:00:00" in worker.log
    assert "\x1b" not in worker.log


def pids_of(port: int) -> list[int]:
    return [child["pid"] for child in ask(port)[1]["processes"]]


def test_a_signal_to_all_processes_at_once_is_one_signal(
    start: Start, mq: rowmq.RowMQ, port: int
) -> None:
    """As systemd sends it, to the parent and to the children that the parent asks, too."""
    mq.queue("sleepy").put_many([1.0, 1.0])
    worker = start("tasks:app", "--processes", "2", "--health", str(port))
    worker.until(lambda: len(worker.sent) == 2 and len(mq.workers()) == 2)
    for pid in [*pids_of(port), worker.process.pid]:
        os.kill(pid, signal.SIGTERM)
    assert worker.process.wait(SECONDS_MAX) == 0
    assert mq.queue("sleepy").counts()["completed"] == 2, "they came to their end"
    assert mq.workers() == []


SLOW = """
import time
open("importing.txt", "a").close()
time.sleep(1.0)
from tasks import app
"""


def test_a_stop_before_the_start_is_not_forgotten(
    start: Start, folder: Path, mq: rowmq.RowMQ
) -> None:
    (folder / "slow.py").write_text(SLOW)
    mq.queue("emails").put("a")
    worker = start("slow:app", "--processes", "2", "--graceful-timeout", "5")
    worker.until((folder / "importing.txt").exists)
    began = time.monotonic()
    assert worker.stop() == 0
    assert time.monotonic() - began < 5, worker.log
    assert worker.sent == []


def test_liveness_is_not_readiness(start: Start, mq: rowmq.RowMQ, port: int) -> None:
    mq.queue("sleepy").put(3.0)
    worker = start("tasks:app", "--health", str(port))
    worker.until(lambda: worker.sent and ask(port)[0] == 200)
    worker.process.send_signal(signal.SIGTERM)
    worker.until(lambda: ask(port, "/readyz")[0] == 503)
    assert ask(port, "/livez")[0] == 200, "nobody should kill it for that"
    assert worker.process.wait(SECONDS_MAX) == 0


def scraped(port: int) -> dict[str, float]:
    """Metrics of a worker, by name and labels as they are written; none if there is nobody yet."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            lines = answer.read().decode().splitlines()
    except OSError:
        return {}
    told = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in told}


def test_metrics_of_one_process(start: Start, mq: rowmq.RowMQ, port: int) -> None:
    """Beside its health, at the same port."""
    worker = start("tasks:app", "--metrics", str(port), "--health", str(port))
    mq.queue("emails").put_many(["a", "b", "c"])
    done = 'rowmq_handled_total{handler="send",outcome="acked",source="emails"}'
    worker.until(lambda: scraped(port).get(done) == 3)
    told = scraped(port)
    assert told["rowmq_database_answers"] == 1
    assert told['rowmq_group_lag{group="billing",topic="orders"}'] == 0
    assert told['rowmq_queue_paused{queue="emails"}'] == 0
    assert worker.until(lambda: ask(port, "/readyz")[0] == 200)
    assert ask(port, "/livez")[0] == 200
    assert worker.stop() == 0


def test_metrics_of_several_processes(start: Start, mq: rowmq.RowMQ, port: int) -> None:
    worker = start("tasks:app", "--processes", "2", "--metrics", str(port))
    mq.queue("emails").put_many([str(number) for number in range(20)])

    def done() -> float:
        return sum(
            value
            for name, value in scraped(port).items()
            if name.startswith("rowmq_handled_total") and 'outcome="acked"' in name
        )

    worker.until(lambda: mq.queue("emails").counts()["completed"] == 20)
    worker.until(lambda: done() == 20)
    told = worker.until(lambda: (t := scraped(port)).get("rowmq_database_answers") == 1 and t)
    healthy = {name: value for name, value in told.items() if name.startswith("rowmq_worker_he")}
    assert [re.findall(r'process="(.)"', name) for name in sorted(healthy)] == [["1"], ["2"]]
    assert told['rowmq_worker_restarts_total{process="1"}'] == 0
    assert told['rowmq_queue_jobs{queue="emails",state="completed"}'] == 20
    assert worker.stop() == 0


def test_what_a_handler_logs_says_of_which_message(
    folder: Path, start: Start, mq: rowmq.RowMQ
) -> None:
    (folder / "logging_tasks.py").write_text(LOGGING)
    mq.publish("orders", {"id": 1}, id="order-1")
    mq.queue("emails").put("a")
    worker = start("logging_tasks:app", "--log-format", "json")
    worker.until(lambda: worker.log.count('"logger":"shop"') == 2)
    assert worker.stop() == 0
    lines = [json.loads(line) for line in worker.log.splitlines()]
    job, message = sorted((line for line in lines if line["logger"] == "shop"), key=of_topic)
    assert (message["message"], message["message_id"], message["topic"]) == (
        "billed",
        "order-1",
        "orders",
    )
    assert (message["handler"], message["group"], message["attempt"]) == ("bill", "billing", 1)
    assert (job["message"], job["queue"], job["handler"]) == ("sent", "emails", "send")
    assert job["job_id"] > 0
    assert all("message_id" not in line for line in lines if line["logger"] == "rowmq")


def of_topic(line: dict[str, Any]) -> bool:
    return "topic" in line
