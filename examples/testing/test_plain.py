import unittest

from shop import Order, app

from rowmq.testing import TestApp


# part plain begins
class Billing(unittest.TestCase):
    def test_an_order_is_billed(self) -> None:
        with TestApp(app) as t:
            t.publish("orders", Order(id=7, total=12.5))
            handled = t.drain()
            self.assertEqual([one.handler for one in handled], ["bill"])
            t.assert_enqueued("receipts", count=1)
            # part plain ends
