import rowmq


def check_out(mq: rowmq.RowMQ, total: float) -> None:
    with mq.transaction() as tx:  # the row and the message: both, or neither
        tx.execute("INSERT INTO orders (total) VALUES (?)", [total])
        tx.publish("orders", {"total": total}, key="customer-42")
        if total < 0:
            raise ValueError("a negative total")


with rowmq.connect("sqlite:///checkout.db") as mq:
    with mq.transaction() as tx:
        tx.execute("CREATE TABLE IF NOT EXISTS orders (id integer PRIMARY KEY, total real)")
    for total in (12.5, -1.0):
        try:
            check_out(mq, total)
        except ValueError as error:
            print(f"rolled back: {error}")
    with mq.transaction() as tx:
        ((orders,),) = tx.execute("SELECT count(*) FROM orders").rows
    print(f"{orders} orders, {len(mq.read('orders'))} messages")
