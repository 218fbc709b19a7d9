"""`rowmq demo`: publish and read on SQLite, and see that nothing is lost or doubled."""

import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click
from rich.console import Console
from rich.progress import track
from rich.table import Table

import rowmq

__all__ = ["demo"]

CUSTOMERS = 5
ORDERS = 200
PUBLISHERS = 8


@click.command()
def demo() -> None:
    """Publish and read on SQLite, in a few seconds, in a directory that is removed afterwards."""
    console = Console(highlight=False)
    with tempfile.TemporaryDirectory(prefix="rowmq-demo-") as folder:
        url = f"sqlite:///{Path(folder) / 'demo.db'}"
        console.print(
            f"[bold]RowMQ {rowmq.__version__}[/]: a message queue in a single SQLite file"
        )
        with rowmq.connect(url) as mq:
            first, second = publish_orders(mq, console), publish_orders(mq, console)
            rolled_back = publish_and_fail(mq)
            show(console, mq)
            verify(console, mq, first, second, rolled_back)


def publish_orders(mq: rowmq.RowMQ, console: Console) -> list[rowmq.PublishResult]:
    """Publish every order from several threads; its id makes a second time harmless."""

    def publish(number: int) -> rowmq.PublishResult:
        return mq.publish(
            "orders",
            {"order": number, "total": number * 1.5},
            key=f"customer-{number % CUSTOMERS}",
            id=f"order-{number}",
            headers={"source": "demo"},
        )

    with ThreadPoolExecutor(PUBLISHERS) as threads:
        results = threads.map(publish, range(ORDERS))
        return list(track(results, "publishing", total=ORDERS, console=console, transient=True))


def publish_and_fail(mq: rowmq.RowMQ) -> bool:
    """Publish in a transaction that fails: the message goes with it."""
    try:
        with mq.transaction() as tx:
            tx.publish("orders", {"order": "never"}, key="customer-0", id="never")
            raise ConnectionAbortedError("the customer's card was refused")  # noqa: TRY301
    except ConnectionAbortedError:
        return all(m.id != "never" for m in mq.read("orders", key="customer-0", limit=ORDERS))


def show(console: Console, mq: rowmq.RowMQ) -> None:
    """The last message of each partition."""
    table = Table(title="the newest order of each customer", title_justify="left")
    for column in ("key", "offset", "id", "payload"):
        table.add_column(column)
    for customer in range(CUSTOMERS):
        message = mq.read("orders", key=f"customer-{customer}", limit=ORDERS)[-1]
        table.add_row(message.key, str(message.offset), message.id, str(message.payload))
    console.print(table)


def verify(
    console: Console,
    mq: rowmq.RowMQ,
    first: list[rowmq.PublishResult],
    second: list[rowmq.PublishResult],
    rolled_back: bool,
) -> None:
    """Say what was promised and whether it held; a promise that broke is exit code 1."""
    messages = mq.read("orders", limit=10 * ORDERS)
    by_key: dict[str | None, list[int | None]] = {}
    for message in messages:
        by_key.setdefault(message.key, []).append(message.offset)
    promises = {
        f"{ORDERS} orders published by {PUBLISHERS} threads, none lost": (
            {m.id for m in messages} == {f"order-{n}" for n in range(ORDERS)}
        ),
        "published again with the same ids: none doubled": (
            len(messages) == ORDERS
            and not any(r.duplicate for r in first)
            and all(r.duplicate for r in second)
        ),
        "each customer's orders numbered without a gap": all(
            offsets == list(range(1, len(offsets) + 1)) for offsets in by_key.values()
        ),
        "a transaction that failed took its message with it": rolled_back,
    }
    for promise, held in promises.items():
        console.print("[green]held[/] " if held else "[red]BROKEN[/]", promise)
    if not all(promises.values()):
        raise click.exceptions.Exit(1)
    console.print("Next: the example in README.md, or [bold]rowmq --help[/]")
