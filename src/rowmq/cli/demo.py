"""`rowmq demo`: publish, consume and work off jobs on SQLite; nothing is lost or doubled."""

import tempfile
import threading
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import rowmq

__all__ = ["demo"]

CUSTOMERS = 6
ORDERS = 240
PUBLISHERS = 8
WORKERS = 3
BAD_ORDER = 13

JOBS = 6
DELAY_SECONDS = 0.4
JOBS_SECONDS = 10.0


@click.command()
def demo() -> None:
    """Publish, consume and work off jobs on SQLite, in a folder that is removed afterwards."""
    console = Console(highlight=False)
    with tempfile.TemporaryDirectory(prefix="rowmq-demo-") as folder:
        url = f"sqlite:///{Path(folder) / 'demo.db'}"
        console.print(
            f"[bold]RowMQ {rowmq.__version__}[/]: a message queue in a single SQLite file"
        )
        with rowmq.connect(url) as mq:
            first, second = publish_orders(mq, console), publish_orders(mq, console)
            rolled_back = publish_and_fail(mq)
            ledger = Ledger()
            consume(mq, console, ledger)
            show(console, mq, ledger)
            promises = check_topic(mq, ledger, first + second, rolled_back=rolled_back)
            emails = mq.queue("emails", retry=rowmq.Constant(interval=0.05, max_attempts=3))
            put_emails(emails)
            sent = send_emails(emails)
            show_jobs(console, emails, sent)
            verify(console, promises | check_queue(emails, sent))


class Ledger:
    """What the workers did."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.billed: dict[str | None, list[int]] = defaultdict(list)
        self.by_worker: dict[str, int] = defaultdict(int)
        self.retried = 0

    def bill(self, worker: str, delivery: rowmq.Delivery[dict[str, int]]) -> None:
        with self.lock:
            self.billed[delivery.message.key].append(delivery.message.offset)
            self.by_worker[worker] += 1
            self.retried += delivery.attempt > 1

    @property
    def total(self) -> int:
        return sum(self.by_worker.values())


def publish_orders(mq: rowmq.RowMQ, console: Console) -> list[rowmq.PublishResult]:
    """Publish every order from several threads; its id makes a second time harmless."""

    def publish(number: int) -> rowmq.PublishResult:
        return mq.publish(
            "orders",
            {"order": number},
            key=f"customer-{number % CUSTOMERS}",
            id=f"order-{number}",
            headers={"source": "demo"},
        )

    with (
        ThreadPoolExecutor(PUBLISHERS) as threads,
        Progress(console=console, transient=True) as bar,
    ):
        return list(
            bar.track(threads.map(publish, range(ORDERS)), ORDERS, description="publishing")
        )


def publish_and_fail(mq: rowmq.RowMQ) -> bool:
    """Publish in a transaction that fails: the message goes with it."""
    try:
        with mq.transaction() as tx:
            tx.publish("orders", {"order": "never"}, key="customer-0", id="never")
            raise ConnectionAbortedError("the customer's card was refused")  # noqa: TRY301
    except ConnectionAbortedError:
        return all(m.id != "never" for m in mq.read("orders", key="customer-0", limit=ORDERS))


def consume(mq: rowmq.RowMQ, console: Console, ledger: Ledger) -> None:
    """Three workers of one group share the customers; one order is bad, some fail at first."""
    mq.create_group("orders", "billing")
    mq.create_group("orders", "search")  # which nobody runs: nothing of it is lost
    done = threading.Event()

    def work(name: str) -> None:
        with mq.subscribe("orders", group="billing", name=name, discovery_interval=0.05) as sub:
            while not done.is_set():
                for delivery in sub.poll(max=5, timeout=0.1):
                    handle(name, delivery, ledger)

    with ThreadPoolExecutor(WORKERS) as threads, Progress(console=console, transient=True) as bar:
        task = bar.add_task("consuming", total=ORDERS - 1)
        workers = [threads.submit(work, f"worker-{number}") for number in range(1, WORKERS + 1)]
        while ledger.total < ORDERS - 1 and not any(worker.done() for worker in workers):
            bar.update(task, completed=ledger.total)
            done.wait(0.02)
        done.set()
        for worker in workers:
            worker.result()


def handle(worker: str, delivery: rowmq.Delivery[dict[str, int]], ledger: Ledger) -> None:
    order = delivery.message.payload["order"]
    if order == BAD_ORDER:
        delivery.reject(error="no such product")
    elif order % 40 == 0 and delivery.attempt == 1:
        delivery.nack(delay=0.05, error="the card reader did not answer")
    else:
        delivery.ack()
        ledger.bill(worker, delivery)


def show(console: Console, mq: rowmq.RowMQ, ledger: Ledger) -> None:
    """Where each group stands."""
    table = Table(title="where the groups stand", title_justify="left")
    for column in ("group", "key", "acked", "last", "lag"):
        table.add_column(column, justify="left" if column in ("group", "key") else "right")
    for group in ("billing", "search"):
        for row in mq.lag("orders", group):
            counts = (row.offset_acked, row.last_offset, row.lag)
            table.add_row(group, row.key, *map(str, counts))
        table.add_section()
    console.print(table)
    shares = ", ".join(f"{name} {count}" for name, count in sorted(ledger.by_worker.items()))
    console.print(f"billed by {shares}; {ledger.retried} at the second attempt")
    for letter in mq.dead_letters("orders"):
        console.print(f"dead letter of {letter.group}: {letter.message.id}, {letter.error}")


def check_topic(
    mq: rowmq.RowMQ,
    ledger: Ledger,
    published: list[rowmq.PublishResult],
    *,
    rolled_back: bool,
) -> dict[str, bool]:
    """What topics promise, and whether it held."""
    by_key: dict[str | None, list[int]] = defaultdict(list)
    for message in mq.read("orders", limit=10 * ORDERS):
        by_key[message.key].append(message.offset)
    billed = {key: sorted(offsets) for key, offsets in ledger.billed.items()}
    letters = {(letter.message.key, letter.offset) for letter in mq.dead_letters("orders")}
    expected = {k: [o for o in offsets if (k, o) not in letters] for k, offsets in by_key.items()}
    return {
        f"{ORDERS} orders published twice with the same ids: none doubled": (
            sum(map(len, by_key.values())) == ORDERS
            and [result.duplicate for result in published] == [False] * ORDERS + [True] * ORDERS
        ),
        "each customer's orders numbered without a gap": all(
            offsets == list(range(1, len(offsets) + 1)) for offsets in by_key.values()
        ),
        "a transaction that failed took its message with it": rolled_back,
        "every order billed once, or in the dead letters": billed == expected and len(letters) == 1,
        "a group that nobody runs has missed nothing": (
            sum(row.lag for row in mq.lag("orders", "search")) == ORDERS
        ),
        "so garbage collection takes nothing": mq.gc("orders") == 0,
    }


def put_emails(emails: rowmq.Queue[str]) -> None:
    """Put jobs: one to be done later, one before the others, and one key twice."""
    emails.put("reminder", delay=DELAY_SECONDS)
    emails.put_many(["welcome", "flaky", "newsletter"])
    emails.put("password reset", priority=5)
    emails.offer_or_update("invoice-7", "invoice of 12 euros")
    emails.offer_or_update("invoice-7", "invoice of 15 euros")


def send_emails(emails: rowmq.Queue[str]) -> list[rowmq.Job[str]]:
    """Work them off; one fails at first. What was sent, in its order."""
    sent: list[rowmq.Job[str]] = []
    deadline = time.monotonic() + JOBS_SECONDS
    while unfinished(emails) and time.monotonic() < deadline:
        job = emails.poll(timeout=1.0)
        if job is None:
            continue
        if job.payload == "flaky" and job.attempt == 1:
            job.nack(error="the mail server did not answer")
        else:
            job.ack()
            sent.append(job)
    return sent


def unfinished(emails: rowmq.Queue[str]) -> int:
    counts = emails.counts()
    return counts["pending"] + counts["processing"] + counts["retryable"]


def show_jobs(console: Console, emails: rowmq.Queue[str], sent: list[rowmq.Job[str]]) -> None:
    """What was sent, and what the queue says of it."""
    table = Table(title="jobs, in the order they were done", title_justify="left")
    for column in ("job", "priority", "attempt"):
        table.add_column(column, justify="left" if column == "job" else "right")
    for job in sent:
        table.add_row(job.payload, str(job.priority), str(job.attempt))
    console.print(table)
    for job in sent:
        for error in emails.errors(job.id):
            console.print(f"attempt {error.attempt} at {job.payload}: {error.error}")
    counts = ", ".join(f"{state} {count}" for state, count in emails.counts().items())
    console.print(f"the queue has {counts}")


def check_queue(emails: rowmq.Queue[str], sent: list[rowmq.Job[str]]) -> dict[str, bool]:
    """What queues promise, and whether it held."""
    payloads = [job.payload for job in sent]
    archived = emails.archive(state=rowmq.State.COMPLETED)
    late = [job for job in archived if job.payload == "reminder"]
    return {
        "the job with the highest priority done first": payloads[:1] == ["password reset"],
        "the delayed job not done before its time": (
            [job.finished_at is not None and job.finished_at >= job.due_at for job in late]
            == [True]
        ),
        "the job that failed tried again": [j.attempt for j in sent if j.payload == "flaky"] == [2],
        "one job for a key, with what was offered last": (
            [job.payload for job in sent if job.key] == ["invoice of 15 euros"]
        ),
        "every job done once, and in the archive": (
            len(sent) == JOBS and sorted(payloads) == sorted(job.payload for job in archived)
        ),
    }


def verify(console: Console, promises: dict[str, bool]) -> None:
    """Say what was promised and whether it held; a promise that broke is exit code 1."""
    for promise, held in promises.items():
        console.print("[green]held[/] " if held else "[red]BROKEN[/]", promise)
    if not all(promises.values()):
        raise click.exceptions.Exit(1)
    console.print("Next: the examples in README.md, or [bold]rowmq --help[/]")
