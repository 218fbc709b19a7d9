from dataclasses import dataclass
from datetime import datetime

import rowmq

app = rowmq.App("sqlite:///shop.db", name="shop")


@dataclass
class Order:
    id: int
    total: float


@dataclass
class Receipt:
    order: int
    customer: str


@app.subscriber("orders", group="billing", concurrency=50)
async def bill(order: Order, delivery: rowmq.Delivery[Order], mq: rowmq.AsyncRowMQ) -> None:
    receipt = Receipt(order.id, delivery.message.key or "nobody")
    await mq.queue("receipts", type=Receipt).put(receipt)


@app.worker("receipts", concurrency=20)
def send_receipt(receipt: Receipt, job: rowmq.Job[Receipt]) -> None:  # sync: runs in a thread
    print(f"receipt {receipt.order} for {receipt.customer}, attempt {job.attempt}", flush=True)


@app.cron("0 2 * * *", tz="Europe/Paris")
async def nightly(fire_time: datetime) -> None:
    print(f"the report of {fire_time:%d %B}", flush=True)
