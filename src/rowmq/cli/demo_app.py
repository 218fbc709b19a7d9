"""The app of `rowmq demo`, run by its worker processes.

What its handlers do is written to a ledger, a table in the same file, by which the demo checks that
nothing was lost or done twice. Leases and locks are short, so that it shows soon who takes over.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

import rowmq

__all__ = ["LEDGER_SQL", "RECEIPT_SECONDS", "SLOW_SECONDS", "Order", "app"]

TAKEN_OVER_SECONDS = 3.0
"""After how long others take over from a worker that is gone."""

WORK_SECONDS = 0.03
SLOW_SECONDS = 15.0
"""How long an order takes, and how long the one takes that is there to be interrupted."""

RECEIPT_SECONDS = 1.5
"""How long after its order a receipt is sent."""

LEDGER_SQL = """
    CREATE TABLE demo_ledger (
        number integer PRIMARY KEY AUTOINCREMENT, effect text NOT NULL, reference text NOT NULL,
        customer text, pid integer NOT NULL, attempt integer NOT NULL, at real NOT NULL);
    CREATE UNIQUE INDEX demo_indexed ON demo_ledger (reference) WHERE effect = 'indexed';
    CREATE TABLE demo_attempts (
        handler text NOT NULL, reference text NOT NULL, attempt integer NOT NULL,
        pid integer NOT NULL);
    CREATE TABLE demo_fixes (name text NOT NULL)"""

WRITE = """
    INSERT OR IGNORE INTO demo_ledger (effect, reference, customer, pid, attempt, at)
    VALUES (?, ?, ?, ?, ?, ?)"""
NOTE = "INSERT INTO demo_attempts (handler, reference, attempt, pid) VALUES (?, ?, ?, ?)"
FIXED = "SELECT 1 FROM demo_fixes WHERE name = 'yen'"


class Order(msgspec.Struct):
    """What customers order."""

    number: int
    currency: str = "EUR"
    slow: bool = False

    @property
    def id(self) -> str:
        return f"order-{self.number}"


class Receipt(msgspec.Struct):
    """What customers get when an order is billed."""

    order: str


app = rowmq.App(name="demo", graceful_timeout=10, maintenance_interval=0)


@app.middleware
async def note(context: rowmq.Context, call_next: Callable[[], Awaitable[Any]]) -> Any:
    """Note each attempt when it begins, whatever becomes of it."""
    row = (context.handler, reference_of(context), context.attempt, os.getpid())
    async with app.mq.transaction() as tx:
        await tx.execute(NOTE, row)
    return await call_next()


def reference_of(context: rowmq.Context) -> str:
    if context.delivery is not None:
        return str(context.delivery.message.id)
    assert context.job is not None  # noqa: S101 - one of them there is
    return str(context.job.id)


@app.subscriber(
    "orders",
    group="billing",
    concurrency=4,
    transactional=True,
    retry=rowmq.Constant(interval=0.3),
    max_deliveries=5,
    visibility=TAKEN_OVER_SECONDS,
    lease_duration=TAKEN_OVER_SECONDS,
)
async def bill(order: Order, delivery: rowmq.Delivery[Order], tx: rowmq.AsyncTransaction) -> None:
    """Bill an order, and put the job that sends its receipt: with the ack, or not at all."""
    first = delivery.attempt == 1
    await asyncio.sleep(SLOW_SECONDS if order.slow and first else WORK_SECONDS)
    if order.number % 15 == 0 and first:
        raise ConnectionError("the card reader does not answer")
    if order.currency == "JPY" and not (await tx.execute(FIXED)).rows:
        raise ZeroDivisionError("yen have no cents")
    customer = delivery.message.key
    await tx.execute(WRITE, effect("billed", order.id, delivery.attempt, customer))
    await tx.queue("receipts").put(Receipt(order.id), delay=RECEIPT_SECONDS)


@app.subscriber(
    "orders",
    group="search",
    concurrency=4,
    strict=True,
    retry=rowmq.Constant(interval=0.2),
    max_deliveries=10,
    visibility=TAKEN_OVER_SECONDS,
    lease_duration=TAKEN_OVER_SECONDS,
)
def index(order: Order, delivery: rowmq.Delivery[Order], mq: rowmq.RowMQ) -> None:
    """Make an order be found. It is acked after that: doing it twice must be harmless, and is."""
    if order.number % 20 == 7 and delivery.attempt == 1:
        raise ConnectionError("the search engine does not answer")
    customer = delivery.message.key
    with mq.transaction() as tx:
        tx.execute(WRITE, effect("indexed", order.id, delivery.attempt, customer))


@app.worker("receipts", concurrency=4, transactional=True, lock_timeout=TAKEN_OVER_SECONDS)
def send(receipt: Receipt, job: rowmq.Job[Receipt], tx: rowmq.Transaction) -> None:
    """Send a receipt."""
    tx.execute(WRITE, effect("sent", receipt.order, job.attempt))


@app.worker("ticks", concurrency=2, transactional=True, lock_timeout=TAKEN_OVER_SECONDS)
async def tick(_: None, job: rowmq.Job[None], tx: rowmq.AsyncTransaction) -> None:
    """Note a tick of the schedule, by the time it was to be made at."""
    await tx.execute(WRITE, effect("ticked", job.headers["rowmq-fire-at"], job.attempt))


def effect(name: str, reference: str, attempt: int, customer: str | None = None) -> tuple[Any, ...]:
    return (name, reference, customer, os.getpid(), attempt, time.time())
