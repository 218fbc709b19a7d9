from django.db import connection
from django.test import TransactionTestCase

import rowmq
from webshop.messaging import OrderPlaced, client
from webshop.models import Order
from webshop.orders import place_order
from webshop.worker import bill


class OrderTests(TransactionTestCase):
    def setUp(self) -> None:
        url = f"sqlite:///{connection.settings_dict['NAME']}"  # the database of the tests
        client.cache_clear()
        with self.settings(ROWMQ_URL=url):
            self.mq: rowmq.RowMQ = client()
        self.addCleanup(self.mq.close)

    def test_placing_an_order_publishes_it(self) -> None:
        order = place_order("ann", 9.5)
        (message,) = self.mq.read("orders", key="ann", type=OrderPlaced)
        self.assertEqual(message.payload, OrderPlaced(order.pk, 9.5))

    def test_billing_marks_the_order(self) -> None:
        order = Order.objects.create(customer="bob", total=1.0)
        bill(OrderPlaced(order.pk, 1.0))
        order.refresh_from_db()
        self.assertTrue(order.billed)
