import rowmq

app = rowmq.App("sqlite:///shop.db")


@app.subscriber("orders", group="billing", transactional=True)
async def bill(order: dict[str, int], tx: rowmq.AsyncTransaction) -> None:
    await tx.execute("INSERT INTO bills (order_id) VALUES (?)", [order["id"]])
    await tx.publish("billed", order, key=str(order["id"]))
    if order["id"] == 2:
        raise RuntimeError("no bill, no message, and order 2 is delivered again")


@app.worker("refunds", transactional=True)
def refund(order: dict[str, int], tx: rowmq.Transaction) -> None:
    tx.execute("DELETE FROM bills WHERE order_id = ?", [order["id"]])
    tx.queue("letters").put({"refunded": order["id"]})
    print(f"refunded order {order['id']}", flush=True)
