"""A small shop: orders are billed, receipts are sent an hour later, and old carts are cleared."""

from dataclasses import dataclass
from datetime import datetime

import rowmq

app = rowmq.App()  # where it runs is said by ROWMQ_URL


@dataclass
class Order:
    id: int
    total: float


class CardRefused(Exception):
    """The bank said no."""


def charge(order: Order) -> None:
    """Ask the bank; tests put something else here."""
    if order.total > 1000:
        raise CardRefused(f"{order.total:g} is too much")


@app.subscriber("orders", group="billing", retry=rowmq.Constant(interval=60, max_attempts=3))
async def bill(order: Order, mq: rowmq.AsyncRowMQ) -> None:
    charge(order)
    await mq.queue("receipts").put(order, key=f"order-{order.id}", delay=3600)


@app.worker("receipts")
def send_receipt(order: Order, mq: rowmq.RowMQ) -> None:
    mq.publish("receipts-sent", {"order": order.id}, key=str(order.id))


@app.cron("0 3 * * *")
async def clear_carts(at: datetime, mq: rowmq.AsyncRowMQ) -> None:
    await mq.publish("carts-cleared", {"day": at.date().isoformat()})
