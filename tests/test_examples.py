"""Every file of examples/ is run to its end, on a database of its own, in a folder of its own."""

import os
import re
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright._impl._driver import compute_driver_executable

import rowmq
from tests.databases import Database, Databases

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
QUICKSTART = (ROOT / "docs" / "quickstart.md").read_text()
SECONDS = 60


class Folder:
    """A copy of an example's folder, in which its programs are run as a user would run them."""

    def __init__(self, path: Path, url: str | None) -> None:
        self.path = path
        self.environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        self.environment |= {} if url is None else {"DATABASE_URL": url}

    def run(self, *command: str) -> list[str]:
        """The lines that a program prints; it must end well."""
        done = subprocess.run(
            [sys.executable, *command],
            cwd=self.path,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    @contextmanager
    def running(self, *command: str, program: str = sys.executable) -> Iterator["Running"]:
        """A program that goes on until it is told to stop; then it must end well."""
        running = Running([program, *command], self.path, self.environment)
        try:
            yield running
            running.stop()
        finally:
            running.end()

    def worker(self, target: str, *options: str) -> Any:
        """`rowmq worker`."""
        return self.running("-m", "rowmq", "worker", target, *options)


class Running:
    """A program that was started, and what it has printed so far."""

    def __init__(self, command: list[str], folder: Path, environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines: list[str] = []
        self.printed = threading.Condition()
        self.reader = threading.Thread(target=self._read)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self.printed:
                self.lines.append(line.rstrip("\n"))
                self.printed.notify_all()

    def wait_for(self, *wanted: str) -> None:
        """Until each of these has been printed, as part of a line."""

        def seen() -> bool:
            return all(any(text in line for line in self.lines) for text in wanted)

        with self.printed:
            assert self.printed.wait_for(seen, SECONDS), "\n".join(self.lines)

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(SECONDS)
        assert code == 0, "\n".join(self.lines)

    def end(self) -> None:
        """Leave nothing behind, however the test went."""
        self.process.kill()
        self.process.wait()
        self.reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def example(tmp_path: Path) -> Callable[..., Folder]:
    """Copies the folder of an example, which then is the working directory of its programs."""

    def copy(name: str, url: str | None = None) -> Folder:
        path = tmp_path / name
        shutil.copytree(EXAMPLES / name, path, ignore=shutil.ignore_patterns("*.db", "__pycache__"))
        return Folder(path, url)

    return copy


Example = Callable[..., Folder]


def eventually(holds: Callable[[], bool]) -> None:
    """Until something holds that another process brings about."""
    deadline = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def client_of(folder: Folder, file: str) -> rowmq.RowMQ:
    return rowmq.connect(f"sqlite:///{folder.path / file}")


# --- plain scripts ----------------------------------------------------------------------------


def test_scripts_put_jobs_and_work_them_off(example: Example) -> None:
    folder = example("script")
    (folder.path / "addresses.txt").write_text("ann@example.com\nbob@example.com\nnobody\n")
    assert folder.run("enqueue.py", "addresses.txt") == ["3 jobs are waiting"]
    *said, failed = folder.run("work.py")
    assert said == ["welcome, ann@example.com", "welcome, bob@example.com", "2 done, 1 failed"]
    assert re.fullmatch(r"job \d+ failed 2 times: ValueError: 'nobody' is no address", failed)


def test_a_script_follows_a_topic_until_it_is_stopped(example: Example) -> None:
    folder = example("script")
    with folder.running("follow.py") as running, client_of(folder, "jobs.db") as mq:
        running.wait_for("following")
        mq.publish("signups", "ann")
        running.wait_for("1 ann")
    with client_of(folder, "jobs.db") as mq:
        assert [row.lag for row in mq.lag("signups", "greeter")] == [0]


# --- an outbox with SQLAlchemy ----------------------------------------------------------------


def test_an_outbox_commits_and_rolls_back_with_the_session(
    example: Example, empty_database: Database
) -> None:
    said = example("sqlalchemy_outbox", empty_database.url).run("orders.py")
    assert said == ["orders: [12.5]", "messages: [12.5]"]


def test_an_outbox_works_with_the_async_session(example: Example, empty_database: Database) -> None:
    said = example("sqlalchemy_outbox", empty_database.url).run("async_orders.py")
    assert said == ["orders: [12.5]", "messages: [12.5]", "receipts waiting: 1"]


# --- moving from a plain table ----------------------------------------------------------------

OLD_TABLE = """
CREATE TABLE jobs (
    id integer PRIMARY KEY, payload {json} NOT NULL, run_at timestamp NOT NULL,
    priority integer NOT NULL, attempts integer NOT NULL, done boolean NOT NULL
)
"""


@pytest.fixture
def old_table(empty_database: Database) -> Database:
    """A database with a plain job table: seven rows, of which the last is done."""
    json = "jsonb" if empty_database.dialect == "postgres" else "text"
    empty_database.execute(OLD_TABLE.format(json=json))
    empty_database.execute("CREATE TABLE sent (address varchar(200))")
    for number in range(1, 8):
        payload, done = f'{{"to": "user-{number}"}}', "true" if number == 7 else "false"
        empty_database.execute(
            f"INSERT INTO jobs VALUES ({number}, '{payload}', '2026-01-01 00:00', 0, 0, {done})"
        )
    return empty_database


def test_rows_of_a_plain_table_become_jobs_once(example: Example, old_table: Database) -> None:
    folder = example("from_skip_locked", old_table.url)
    said = folder.run("move.py", "--queue", "emails", "--batch", "4")
    assert said == ["4 moved", "6 moved", "done: 6 jobs are waiting"]
    assert old_table.execute("SELECT id FROM jobs") == [(7,)]
    assert folder.run("move.py", "--queue", "emails") == ["done: 6 jobs are waiting"]

    said = folder.run("worker.py")
    assert said == [f"jobs-{number}: sent to user-{number}" for number in range(1, 7)]
    assert old_table.execute("SELECT count(*) FROM sent") == [(6,)]


def test_a_move_that_fails_leaves_the_rows(example: Example, old_table: Database) -> None:
    folder = example("from_skip_locked", old_table.url)
    old_table.execute("UPDATE jobs SET priority = 99999 WHERE id = 5")
    with pytest.raises(AssertionError, match="InvalidOption"):
        folder.run("move.py", "--queue", "emails", "--batch", "4")
    assert old_table.execute("SELECT id FROM jobs ORDER BY id") == [(5,), (6,), (7,)]
    with rowmq.connect(old_table.url) as mq:
        assert mq.queue("emails").counts()["pending"] == 4


# --- workers -----------------------------------------------------------------------------------


def test_the_quickstart_leads_to_a_running_worker(example: Example) -> None:
    folder = example("quickstart")
    with folder.worker("app:app") as worker:
        said = folder.run("publish.py")
        assert said == [f"order-{n} is message {n} of customer-42" for n in (1, 2, 3)]
        worker.wait_for("billed order 1: 9.50", "billed order 2: 9.50", "billed order 3: 9.50")
    assert folder.run("publish.py") == said, "publishing again adds nothing"
    publish_in_the_quickstart(folder)

    with folder.worker("groups:app") as worker:
        worker.wait_for(*printed_in_the_quickstart("groups:app"))
    printed = [line for line in worker.lines if line.startswith(("billed", "indexed"))]
    assert sorted(printed) == sorted(printed_in_the_quickstart("groups:app"))


def publish_in_the_quickstart(folder: Folder) -> None:
    """The command of the page, with the answer that stands there."""
    command, answer = re.findall(r"^\$ (rowmq publish .*)\n(.*)$", QUICKSTART, re.MULTILINE)[0]
    folder.environment["ROWMQ_URL"] = "sqlite:///shop.db"
    assert folder.run("-m", *shlex.split(command)) == [answer]


def printed_in_the_quickstart(target: str) -> list[str]:
    """What a worker prints, as the page has it."""
    return QUICKSTART.partition(f"$ rowmq worker {target}\n")[2].partition("```")[0].splitlines()


def test_the_quickstart_retries_and_heals(example: Example) -> None:
    folder = example("quickstart")
    folder.run("publish.py")
    publish_in_the_quickstart(folder)
    with folder.worker("retries:app") as worker:
        worker.wait_for(*printed_in_the_quickstart("retries:app"))
    printed = [line for line in worker.lines if line.startswith(("shipped", "attempt"))]
    assert sorted(printed) == sorted(printed_in_the_quickstart("retries:app"))
    assert folder.run("heal.py") == [
        "order-2 died after 3 attempts: LookupError: no address",
        "1 given back to the group",
    ]


def test_the_quickstart_does_jobs_by_priority_and_time(example: Example) -> None:
    folder = example("quickstart")
    assert folder.run("put.py") == ["3 jobs are waiting"]
    with folder.worker("jobs:app") as worker:
        worker.wait_for("sent to ann", "sent to bob", "sent to cleo")
    with client_of(folder, "shop.db") as mq:
        assert [schedule.name for schedule in mq.cron.list()] == ["every_minute"]


def test_the_quickstart_commits_a_row_and_its_message_or_neither(example: Example) -> None:
    said = example("quickstart").run("checkout.py")
    assert said == ["rolled back: a negative total", "1 orders, 1 messages"]


def test_handlers_are_given_what_they_ask_for(example: Example) -> None:
    folder = example("workers")
    with folder.worker("handlers:app") as worker, client_of(folder, "shop.db") as mq:
        mq.publish("orders", {"id": 7, "total": 9.5}, key="ann")
        mq.queue("cron.shop.nightly").put(None)
        worker.wait_for("receipt 7 for ann, attempt 1", "the report of")


def test_ack_policies_do_what_they_say(example: Example) -> None:
    folder = example("workers")
    with folder.worker("policies:app") as worker, client_of(folder, "shop.db") as mq:
        mq.queue("clicks").put("a click")
        mq.queue("payments").put_many([5, -5])
        mq.queue("uploads").put_many(
            [{"state": "broken"}, {"state": "arriving"}, {"state": "whole"}]
        )
        worker.wait_for("counted a click", "charged 5", "whole: attempt 1", "arriving: attempt 2")
    with client_of(folder, "shop.db") as mq:
        assert mq.queue("payments").failed()[0].error == "ValueError: a negative amount"
        assert mq.queue("uploads").failed()[0].error == "it cannot be read"
        assert mq.queue("uploads").counts()["completed"] == 2


def test_a_transactional_handler_writes_all_or_nothing(example: Example) -> None:
    folder = example("workers")
    with client_of(folder, "shop.db") as mq:
        with mq.transaction() as tx:
            tx.execute("CREATE TABLE bills (order_id integer PRIMARY KEY)")
        mq.publish_many("orders", [rowmq.Message(payload={"id": n}, key="ann") for n in (1, 2, 3)])
        with folder.worker("transactional:app") as worker:
            worker.wait_for("no bill, no message")
            eventually(lambda: len(mq.read("billed")) == 2)
            mq.queue("refunds").put({"id": 1})
            worker.wait_for("refunded order 1")
        with mq.transaction() as tx:
            assert [list(row) for row in tx.execute("SELECT order_id FROM bills").rows] == [[3]]
        assert mq.queue("letters").counts()["pending"] == 1


def test_progress_is_seen_by_others_and_a_long_handler_stops(example: Example) -> None:
    folder = example("workers")
    with folder.worker("progress:app") as worker, client_of(folder, "shop.db") as mq:
        mq.queue("imports").put(100_000)
        eventually(lambda: any("page" in line for line in folder.run("watch.py")))
        mq.queue("imports").put(3)
        worker.wait_for("3 pages are in")
    assert any("InterruptedError: stopped at page" in line for line in worker.lines)


def test_middleware_and_hooks_are_called_around_handlers(example: Example) -> None:
    folder = example("workers")
    with folder.worker("middleware:app") as worker, client_of(folder, "shop.db") as mq:
        mq.queue("emails").put("ann")
        worker.wait_for("ready", "sent to ann", "send on emails: 0.0 s")
    assert "bye" in worker.lines


def test_an_app_runs_inside_another_program(example: Example) -> None:
    assert example("workers").run("embedded.py") == ["sent to ann@example.com"]


def test_a_handler_acks_in_the_transaction_of_a_session(
    example: Example, empty_database: Database
) -> None:
    folder = example("sqlalchemy_outbox", empty_database.url)
    folder.run("async_orders.py")
    with folder.worker("worker:app") as worker:
        worker.wait_for("discounted order 1")
    assert folder.run("async_orders.py")[0] == "orders: [11.25, 12.5]"


def test_tasks_of_celery_become_handlers(example: Example) -> None:
    folder = example("from_celery")
    assert folder.run("producer.py") == ["4 receipts are waiting"]
    with folder.worker("app:app") as worker:
        worker.wait_for("order 7 sent", "order 8 sent", "order 10 sent", "order 9 sent, attempt 2")


def test_tasks_of_procrastinate_become_handlers(example: Example) -> None:
    folder = example("from_procrastinate")
    assert folder.run("producer.py") == ["CREATED IGNORED"]
    with folder.worker("app:app") as worker:
        worker.wait_for("ann: 1 + 2 = 3", "ann: 3 + 4 = 7")


# --- HTTP ----------------------------------------------------------------------------------------


def test_a_shell_script_does_everything_with_curl(example: Example) -> None:
    folder = example("http")
    with client_of(folder, "shop.db") as mq:
        token = mq.access.create_token("script", roles=["admin"], topics=["orders"], queues=[])
    serve = ("-m", "rowmq", "dashboard", "--url", "sqlite:///shop.db", "--port", "0")
    with folder.running(*serve) as dashboard:
        dashboard.wait_for("is at http://")
        (root,) = re.findall(r"http://[\w.:]+/", "\n".join(dashboard.lines))
        done = subprocess.run(
            ["sh", "consume.sh"],
            cwd=folder.path,
            env={**os.environ, "ROWMQ_API": f"{root}api/v1", "ROWMQ_TOKEN": token},
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert done.stdout.splitlines() == [
        "published again: duplicate true",
        "billed order-1",
        "could not bill order-2, attempt 1",
        "could not bill order-2, attempt 2",
        "gave up order-3",
        "indexed order-1",
        "indexed order-2",
        "indexed order-3",
        'dead letters: "error":"a negative total" "error":"no address" ',
        "billed order-2 after all, attempt 1",
        "billed order-3 after all, attempt 1",
        "left to do: billing 0, search 0",
    ]


def test_a_program_in_javascript_consumes_and_leaves(example: Example) -> None:
    folder = example("http")
    with client_of(folder, "shop.db") as mq:
        token = mq.access.create_token("script", roles=["consume"], topics=["orders"], queues=[])
        totals = {"order-1": 9.5, "order-2": -1, "order-3": 12}
        for id, total in totals.items():
            mq.publish("orders", {"total": total}, key=id, id=id)
        serve = ("-m", "rowmq", "dashboard", "--url", "sqlite:///shop.db", "--port", "0")
        with folder.running(*serve) as dashboard:
            dashboard.wait_for("is at http://")
            (root,) = re.findall(r"http://[\w.:]+/", "\n".join(dashboard.lines))
            folder.environment |= {"ROWMQ_API": f"{root}api/v1", "ROWMQ_TOKEN": token}
            with folder.running("consume.mjs", "orders", "billing", program=node()) as consumer:
                consumer.wait_for("billed order-1: 9.5, attempt 1", "billed order-3: 12, attempt 1")
                eventually(lambda: sum(row.lag for row in mq.lag("orders", "billing")) == 1)
                mq.publish("orders", {"total": 1}, id="order-4")
                consumer.wait_for("billed order-4")
            assert mq.subscribers() == [], "it has left"
    assert not any("billed order-2" in line or "again" in line for line in consumer.lines)


def node() -> str:
    """Node.js, which comes with Playwright."""
    return str(compute_driver_executable()[0])


# --- frameworks --------------------------------------------------------------------------------


def test_a_fastapi_service_publishes_in_the_transaction_of_a_request(example: Example) -> None:
    folder = example("fastapi_app")
    assert folder.run("try_it.py") == [
        "placed: {'id': 1} refused: 422",
        "order 1 is billed; order 2: 404",
    ]
    with client_of(folder, "shop.db") as mq:
        assert len(mq.read("orders")) == 1


def test_a_fastapi_service_publishes_with_asyncpg(example: Example, databases: Databases) -> None:
    database = databases.get("postgres").create()
    folder = example("fastapi_app", database.url)
    (folder.path / "visit.py").write_text(VISIT)
    assert folder.run("visit.py") == ["{'id': 1, 'offset': 1}"]
    assert database.execute("SELECT customer FROM orders") == [("ann",)]
    database.drop()


VISIT = """
import asyncio
import httpx
from with_asyncpg import api

async def main():
    transport = httpx.ASGITransport(app=api)
    async with (
        api.router.lifespan_context(api),
        httpx.AsyncClient(transport=transport, base_url="http://shop") as http,
    ):
        print((await http.post("/orders", params={"customer": "ann", "total": 9.5})).json())

asyncio.run(main())
"""


def test_a_django_shop_publishes_in_atomic_and_runs_a_worker(example: Example) -> None:
    folder = example("django_shop")
    folder.run("manage.py", "migrate")
    assert folder.run("manage.py", "rowmq_migrate") == ["up to date"], "SQLite does it by itself"
    folder.run("manage.py", "makemigrations", "--check")
    folder.run("manage.py", "test", "--noinput")
    (folder.path / "visit.py").write_text(VISIT_DJANGO)
    assert folder.run("visit.py") == ["201 {'id': 1}", "rolled back", "refused", "1 orders"]
    with folder.running("manage.py", "worker") as worker:
        worker.wait_for("billed order 1", "points for order 1")
    with client_of(folder, "shop.db") as mq:
        assert len(mq.read("orders")) == 1


VISIT_DJANGO = """
import os
import django
os.environ["DJANGO_SETTINGS_MODULE"] = "webshop.settings"
django.setup()
from django.db import connection, transaction
from django.test import Client
import rowmq
from webshop.messaging import client
from webshop.models import Order
from webshop.orders import place_order

answer = Client(headers={"host": "localhost"}).post("/orders", {"customer": "ann", "total": "9.5"})
print(answer.status_code, answer.json())
try:
    with transaction.atomic():
        place_order("bob", 1.0)
        raise ValueError
except ValueError:
    print("rolled back")
try:
    client().publish("orders", {}, connection=connection)
except rowmq.errors.NoTransaction:
    print("refused")
print(Order.objects.count(), "orders")
"""


# --- operations --------------------------------------------------------------------------------


def test_a_worker_needs_no_other_rights_than_those_named(databases: Databases) -> None:
    """On PostgreSQL, where users are told apart most finely."""
    database = databases.get("postgres").create()
    role = f"worker_{secrets.token_hex(4)}"
    with rowmq.connect(database.url, schema="rowmq") as mq:
        mq.migrate()
    database.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'secret'")
    for grant in (EXAMPLES / "operations" / "rights.sql").read_text().splitlines():
        if not grant.startswith("--"):
            database.execute(grant.replace("TO worker", f"TO {role}"))
    parts = urlsplit(database.url)
    login = parts._replace(netloc=f"{role}:secret@{parts.hostname}:{parts.port}").geturl()
    with rowmq.connect(login, schema="rowmq") as mq:
        do_a_bit_of_everything(mq)
    database.drop()
    databases.get("postgres").execute(f"DROP ROLE {role}")


def do_a_bit_of_everything(mq: rowmq.RowMQ) -> None:
    mq.publish("orders", 7, key="ann", id="order-7")
    with mq.subscribe("orders", group="billing") as subscriber:
        subscriber.poll(timeout=5)[0].reject(error="no such customer")
    assert mq.redrive("orders") == 1
    mq.gc("orders")
    queue = mq.queue("emails")
    queue.configure(rate=100, max_in_flight=10)
    queue.put("first", ordering_key="ann")
    queue.offer_or_update("key", "second", delay=0)
    with queue.hold() as job:
        assert job is not None
    (job,) = queue.try_poll_many(10)
    job.nack(delay=0, error="again")
    queue.ack(queue.try_poll_many(10))
    assert queue.prune(older_than=0) == 2
    assert mq.cron.install("nightly", "0 2 * * *", queue="emails") is rowmq.Outcome.CREATED
    assert mq.cron.remove("nightly")
    mq.workers()
    assert mq.doctor().of("schema")


# --- tests --------------------------------------------------------------------------------------


def test_examples_that_test(example: Example) -> None:
    folder = example("testing")
    said = folder.run("-m", "pytest", "--asyncio-mode=auto", *QUIETLY, ".")
    assert re.fullmatch(r"\d+ passed in .*", said[-1])


QUIETLY = ["--quiet", "-p", "no:cacheprovider", "-o", "asyncio_default_fixture_loop_scope=function"]


# --- none is left out --------------------------------------------------------------------------


def test_every_example_is_run() -> None:
    """Each program is named in this file or that of Spark, or imported by one that is."""
    spark = Path(__file__).parent / "spark" / "test_docs_spark.py"
    tests = Path(__file__).read_text() + spark.read_text()
    for path in sorted(EXAMPLES.glob("*/*.py")):
        siblings = [other.read_text() for other in path.parent.glob("*.py") if other != path]
        named = f'"{path.name}"' in tests or f'"{path.stem}:app"' in tests
        imported = any(f"from {path.stem} import" in text for text in [*siblings, tests])
        is_test = path.name.startswith("test_")
        assert named or imported or is_test, path.relative_to(ROOT)
