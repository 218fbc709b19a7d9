import sqlite3
from collections.abc import Callable

import pytest
from checkout import place

import rowmq
from rowmq.testing import Assertions, TestApp


# part outbox begins
def test_an_order_and_its_message_are_saved_together(rowmq_app: Callable[..., TestApp]) -> None:
    t = rowmq_app()  # no app: a database, a clock and assertions
    connection = sqlite3.connect(t.path)
    connection.execute("CREATE TABLE orders (id integer, total real)")

    with connection:
        place(connection, t.mq, {"id": 7, "total": 12.5})
    t.assert_published("orders", {"id": 7, "total": 12.5}, key="ann", count=1)

    with pytest.raises(ValueError, match="never negative"), connection:
        place(connection, t.mq, {"id": 8, "total": -1})
    t.assert_not_published("orders", lambda order: order["id"] == 8)
    connection.close()
    # part outbox ends


# part client begins
def test_with_a_client_of_your_own() -> None:
    with rowmq.connect("sqlite://") as mq:  # or your PostgreSQL, or MySQL
        mq.publish("orders", {"id": 7})
        Assertions(mq).assert_published("orders", {"id": 7}, count=1)
        # part client ends
