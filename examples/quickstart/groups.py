from dataclasses import dataclass

import rowmq

app = rowmq.App("sqlite:///shop.db")


@dataclass
class Order:
    id: int
    total: float


@app.subscriber("orders", group="billing")
async def bill(order: Order) -> None:
    print(f"billed order {order.id}: {order.total:.2f}", flush=True)


@app.subscriber("orders", group="search")
def index(order: Order) -> None:  # sync handlers run in threads
    print(f"indexed order {order.id}", flush=True)
