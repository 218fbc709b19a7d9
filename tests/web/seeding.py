"""Fills a database as a shop would, so that there is something to look at:

    python -m tests.web.seeding sqlite:///shop.db --messages 1000000 --live 600
    python -m tests.web.seeding sqlite:///large.db --jobs 250000 --archived 100000 --letters 100000

It is no part of the tests. With `--live` it goes on as a worker does: it publishes, consumes, and
fails now and then.
"""

import argparse
import asyncio
import random
import time
from collections.abc import Iterator
from itertools import islice
from typing import Any

import rowmq
from rowmq.store.statement import Operation, Statement

BATCH = 2_000

ERRORS = (
    "ConnectionError: [Errno 111] Connection refused: ('10.0.{n}.{m}', 5432)",
    "KeyError: 'customer_{n}'",
    'ValueError: amount must be more than zero, not -{n}.{m}\n  File "billing.py", line 41',
    "httpx.ReadTimeout: POST https://payments.example/v1/charges/{n} took longer than {m} s",
    "pydantic.ValidationError: 2 validation errors for Order {n}",
)

CITIES = ("Lyon", "Graz", "Porto", "Malmö", "Łódź", "Zürich")


def orders(count: int, dice: random.Random) -> Iterator[rowmq.Message[Any]]:
    for number in range(count):
        customer = int(dice.paretovariate(1.1)) % 2_000
        yield rowmq.Message(
            payload={
                "order": number,
                "total": round(dice.uniform(3, 400), 2),
                "city": dice.choice(CITIES),
                "items": [{"sku": f"A-{dice.randrange(900)}", "count": dice.randrange(1, 4)}],
                "express": dice.random() < 0.2,
            },
            key=f"customer-{customer}",
            headers={"source": "web", "traceparent": f"00-{dice.getrandbits(128):032x}-01"},
        )


def clicks(count: int, dice: random.Random) -> Iterator[rowmq.Message[Any]]:
    for _ in range(count):
        yield rowmq.Message(
            payload={"page": f"/p/{dice.randrange(900)}", "ms": dice.randrange(900)}
        )


def publish(mq: rowmq.RowMQ, topic: str, messages: Iterator[rowmq.Message[Any]]) -> None:
    while batch := list(islice(messages, BATCH)):
        mq.publish_many(topic, batch)


def reject(mq: rowmq.RowMQ, topic: str, group: str, count: int, dice: random.Random) -> None:
    """Has a group give up on some messages."""
    options: dict[str, Any] = {"batch_size": 500, "max_in_flight": 500}
    with mq.subscribe(topic, group=group, **options) as subscriber:
        while count > 0:
            polled = subscriber.poll(timeout=2)
            if not polled:
                return
            for at, delivery in enumerate(polled):
                if at % 5 == 0 and count > 0:
                    error = ERRORS[min(int(dice.paretovariate(0.8)) - 1, len(ERRORS) - 1)]
                    told = error.format(n=dice.randrange(9_000), m=dice.randrange(99))
                    delivery.reject(error=told)
                    count -= 1
                elif at % 61 == 0:
                    delivery.nack(delay=3_600, error="TimeoutError: the mail server took too long")
                else:
                    delivery.ack()


def fill(mq: rowmq.RowMQ, messages: int, jobs: int) -> None:
    dice = random.Random(7)
    for group in ("billing", "search", "analytics"):
        mq.create_group("orders", group)
    publish(mq, "orders", orders(messages * 7 // 10, dice))
    publish(mq, "clicks", clicks(messages * 3 // 10, dice))
    mq.publish("mails", "Dear Ann,\n\nyour parcel is on its way.\n", key="ann@example.com")
    mq.publish("mails", bytes(range(256)), key="scan.png", headers={"type": "image/png"})
    mq.create_group("clicks", "sessions", start="latest")
    mq.create_group("orders", "archive", start="latest")
    mq.seek("orders", "billing", to="latest")
    mq.seek("orders", "search", to="latest")
    publish(mq, "orders", orders(9_000, dice))
    reject(mq, "orders", "billing", 1_200, dice)
    reject(mq, "orders", "search", 40, dice)
    emails = mq.queue("emails")
    for start in range(0, jobs, BATCH):
        emails.put_many({"to": f"customer-{start + n}@example.com"} for n in range(BATCH))
    mq.queue("reports").put_many(({"day": n} for n in range(40)), delay=7_200)
    mq.queue("invoices").put_many({"order": n} for n in range(300))
    mq.queue("invoices").pause()
    payments = mq.queue("payments")
    payments.put({"order": 4711, "total": 120.5}, key="order-4711", headers={"tenant": "acme"})
    for attempt, delay in enumerate((0, 3_600)):
        job = payments.try_poll()
        assert job is not None
        job.nack(delay=delay, error=ERRORS[3 * attempt].format(n=17, m=30))


def archive(mq: rowmq.RowMQ, count: int) -> None:
    """Has jobs been done, or have failed, one of ten."""
    queue = mq.queue("emails")
    while count > 0 and (jobs := queue.try_poll_many(min(BATCH, count), lock_timeout=600)):
        count -= len(jobs)
        for job in jobs[::10]:
            job.reject(error=ERRORS[0])
        queue.ack([job for nth, job in enumerate(jobs) if nth % 10])


LETTERS = """
    INSERT INTO {dead_letters} (partition_id, message_offset, origin_partition_id, origin_offset,
                                failed_at, attempts, origin_topic, consumer_group, origin_id, error)
    SELECT m.partition_id, m.message_offset, m.partition_id, m.message_offset, m.published_at, 3,
           'orders', 'billing', m.message_id,
           CASE WHEN m.message_offset < 9000 THEN ? WHEN m.message_offset < 12000 THEN ? ELSE ? END
    FROM {messages} m JOIN {partitions} p ON p.id = m.partition_id
    WHERE p.topic = 'clicks' ORDER BY m.partition_id, m.message_offset LIMIT ?"""


def bury(mq: rowmq.RowMQ, count: int) -> None:
    """Writes letters as if a group had given up on so many: to do so by hand takes an hour."""

    def write() -> Operation[None]:
        sql = mq._store.dialect.sql(LETTERS)
        yield Statement("seeding.letters", sql, (*ERRORS[:3], count), sole=True)

    mq._run(write)


def live(url: str, seconds: float) -> None:
    """Publishes and consumes for a while."""
    app = rowmq.App(url, name="shop")
    dice = random.Random()
    declare(app, dice)

    async def run() -> None:
        async with app:
            end = time.monotonic() + seconds
            turn = 0
            while time.monotonic() < end:
                turn += 1
                await trade(app.mq, turn, dice)
                await asyncio.sleep(0.2)

    asyncio.run(run())


def declare(app: rowmq.App, dice: random.Random) -> None:
    """The handlers of the shop."""

    @app.subscriber("orders", group="billing", concurrency=20)
    async def bill(order: dict[str, Any]) -> None:
        await asyncio.sleep(dice.uniform(0.002, 0.05))
        if dice.random() < 0.01:
            raise ValueError(f"order {order['order']} has no total")

    @app.subscriber("clicks", group="sessions", concurrency=20)
    async def count(_: dict[str, Any]) -> None:
        await asyncio.sleep(0.001)

    @app.worker("emails", concurrency=10)
    async def send(_: dict[str, Any]) -> None:
        await asyncio.sleep(dice.uniform(0.05, 0.4))
        if dice.random() < 0.03:
            raise ConnectionError("the mail server hung up")

    @app.worker("reports", concurrency=2)
    async def report(_: dict[str, Any], progress: rowmq.Progress) -> None:
        for step in range(100):
            progress.report(step / 100, f"{step} of 100 pages")
            await asyncio.sleep(1)

    @app.cron("*/5 * * * *")
    async def sweep() -> None:
        await asyncio.sleep(1)


async def trade(mq: rowmq.AsyncRowMQ, turn: int, dice: random.Random) -> None:
    """What comes in, sometimes more and sometimes less."""
    swing = 1 + (turn // 40) % 3
    await mq.publish_many("orders", list(orders(4 * swing, dice)))
    await mq.publish_many("clicks", list(clicks(6 * swing, dice)))
    if turn % 4 == 0:
        await mq.queue("emails").put({"to": f"customer-{turn}@example.com"})
    if turn % 300 == 1:
        await mq.queue("reports").put({"day": turn})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--archived", type=int, default=0)
    parser.add_argument("--letters", type=int, default=0)
    parser.add_argument("--live", type=float, default=0.0)
    chosen = parser.parse_args()
    with rowmq.connect(chosen.url) as mq:
        mq.migrate()
        if not mq.topics():
            fill(mq, chosen.messages, chosen.jobs)
            archive(mq, chosen.archived)
            bury(mq, chosen.letters)
    if chosen.live:
        live(chosen.url, chosen.live)


if __name__ == "__main__":
    main()
