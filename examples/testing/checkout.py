"""An outbox: the order and its message are written in one transaction."""

import sqlite3

import rowmq


def place(connection: sqlite3.Connection, mq: rowmq.RowMQ, order: dict[str, float]) -> None:
    """Save an order, and tell of it."""
    connection.execute("INSERT INTO orders VALUES (?, ?)", (order["id"], order["total"]))
    mq.publish("orders", order, key="ann", connection=connection)
    if order["total"] < 0:
        raise ValueError("a total is never negative")
