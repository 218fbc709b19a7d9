from dataclasses import dataclass

import rowmq

app = rowmq.App("sqlite:///shop.db")


@dataclass
class Order:
    id: int
    total: float


@app.subscriber(
    "orders",
    group="shipping",
    max_deliveries=3,
    retry=rowmq.Constant(interval=0.2),
)
async def ship(order: Order, context: rowmq.Context) -> None:
    if order.id == 2:
        print(f"attempt {context.attempt}: no address for order {order.id}", flush=True)
        raise LookupError("no address")
    print(f"shipped order {order.id}", flush=True)
